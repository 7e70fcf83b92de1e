/* CUPTI, where it is there: what kernels, copies and fills took, to the nanosecond, without events
 * around them; of graphs, what each node took. One for the process, whose traced devices share it.
 */
#ifndef GPU_BACKEND_CUDA_TRACER_H
#define GPU_BACKEND_CUDA_TRACER_H

#include "backend/cuda/graph.h"

/* Times of the device's work go to sink.timed from now on. LIBRARY_UNAVAILABLE: there is no CUPTI;
 * UNSUPPORTED: another version's, another tool has it, or GPULUA_CUPTI=0; LIBRARY_ERROR. */
gpulua_status gpu_cuda_tracer_open(struct backend_device *device, struct backend_error *error);
void gpu_cuda_tracer_close(struct backend_device *device); /* not open: nothing */
/* Adds CUPTI's line to what --info shows. */
void gpu_cuda_tracer_describe(struct text *text);

/* Slots. */
void gpu_cuda_trace_begin(struct backend_device *device, uint32_t slot, uint64_t seq);
void gpu_cuda_trace_end(struct backend_device *device);
void gpu_cuda_trace_flush(struct backend_device *device);

/* Which nodes of a launched graph the driver's are. It is made of parts, each begun before what is
 * in it: the graph's own, which is part 0, and one for each body, with its node's number. NULL: the
 * device is not traced by CUPTI, or nobody can tell; then the others do nothing. */
struct cuda_node_map;
struct cuda_node_map *gpu_cuda_trace_map(struct backend_device *device);
uint32_t gpu_cuda_trace_map_begin(struct cuda_node_map *map, uint32_t number);
/* All of the part is in `handle`. The handles of the nodes are those that they ended with, in their
 * order; some may be NULL, or the same. */
void gpu_cuda_trace_map_end(struct backend_device *device, struct cuda_node_map *map, uint32_t part,
                            CUgraph handle, const struct graph_node *nodes, uint32_t count);
/* Before the first launch, when all parts have ended. */
void gpu_cuda_trace_map_seal(struct cuda_node_map *map);
void gpu_cuda_trace_unmap(struct cuda_node_map *map);
/* The next call of the driver launches a graph with that map. */
void gpu_cuda_trace_graph(struct cuda_node_map *map);
/* It has failed: nothing will be told of it. */
void gpu_cuda_trace_graph_failed(void);
bool gpu_cuda_tells_times(struct backend_device *device);

#endif
