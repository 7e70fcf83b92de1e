/* Which nodes of a graph the driver's are: CUPTI tells of a graph's work by the driver's ids. */
#ifndef GPU_BACKEND_CUDA_TRACER_NODES_H
#define GPU_BACKEND_CUDA_TRACER_NODES_H

#include <stdatomic.h>

#include "backend/cuda/graph.h"

/* It is made of parts, each begun before what is in it: the graph's own, which is part 0, and one
 * for each body of a conditional node, with that node's number. */
struct cuda_node_map {
    _Atomic uint32_t ref_count;
    bool is_broken;       /* no memory, or CUPTI cannot tell: of no use */
    _Atomic bool is_over; /* its graph is gone */
    uint32_t graph;       /* the tracer's: the executable one, by CUPTI's count; 0: not known yet */
    uint64_t told_last;   /* the tracer's: the last launch of which something was told; 0: none */
    struct map_part {
        struct map_entry {
            uint32_t end;    /* behind the last of the driver's nodes that are this one's */
            uint32_t number; /* ours, from 1; 0: none */
        } * entries;         /* owned */
        uint32_t entry_count;
        uint32_t number; /* of the node whose body it is; 0: it is the graph */
    } * parts;           /* owned */
    uint32_t part_count, part_max;
    struct map_entry *entries; /* owned: of all parts, once it is sealed */
    uint32_t entry_count;
};

/* NULL: the device is not traced by CUPTI, or there is no memory; then the others do nothing. */
struct cuda_node_map *gpu_cuda_node_map(struct backend_device *device);
uint32_t gpu_cuda_node_map_begin(struct cuda_node_map *map, uint32_t number);
/* All of the part is in `handle`. The handles of the nodes are those that they ended with, in their
 * order; some may be NULL, or the same. */
void gpu_cuda_node_map_end(struct backend_device *device, struct cuda_node_map *map, uint32_t part,
                           CUgraph handle, const struct graph_node *nodes, uint32_t count);
/* Before the first launch, when all parts have ended. */
void gpu_cuda_node_map_seal(struct cuda_node_map *map);
/* With its graph. */
void gpu_cuda_node_map_drop(struct cuda_node_map *map);

void gpu_cuda_node_map_retain(struct cuda_node_map *map);
void gpu_cuda_node_map_release(struct cuda_node_map *map);
/* The number of the node that CUPTI's id is of, from 1; 0: of none that is known. */
uint32_t gpu_cuda_node_map_find(const struct cuda_node_map *map, uint64_t id);

#endif
