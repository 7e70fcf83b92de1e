/* Whose work it was that bodies of conditional nodes did. CUPTI tells of it without a call, before
 * or after it tells of the launch. All of it under the tracer's lock. */
#ifndef GPU_BACKEND_CUDA_TRACER_BODIES_H
#define GPU_BACKEND_CUDA_TRACER_BODIES_H

#include "backend/cuda/tracer_nodes.h"

struct cuda_bodies {
    /* Of an operation's node. WIRE_NODES_MISSING and how many, without times: it lacks those. */
    void (*tell)(uint64_t operation, uint32_t node, int64_t begin_ns, int64_t end_ns);
    struct body_launch *launches; /* owned, in the order of their numbers */
    struct body_launch *sorted;   /* owned: as much room */
    uint32_t launch_count, launch_capacity;
    uint64_t launch_last;    /* number */
    struct body_work *works; /* owned: until it is known whose they are */
    uint32_t work_count, work_capacity;
};

/* The most that are kept: of what is beyond that, it is told how much it was. */
#define CUDA_BODIES_LAUNCHES_MAX (1u << 18)
#define CUDA_BODIES_WORKS_MAX (1u << 18)
/* For so long a launch is kept when a later one was told of. */
#define CUDA_BODIES_KEPT_NS INT64_C(1000000000)

/* A graph with that map, which is retained, is being launched. Returns the launch's number; 0: no
 * memory for it, which is told. */
uint64_t gpu_cuda_bodies_launch(struct cuda_bodies *bodies, uint64_t operation,
                                struct cuda_node_map *map, int64_t now_ns);
/* Work of the graph's own nodes was told. `graph`: the upper half of its id. 0 as a launch is fine,
 * as is one that is known no more, here and below. */
void gpu_cuda_bodies_begun(struct cuda_bodies *bodies, uint64_t launch, uint32_t graph,
                           int64_t begin_ns);
/* If nothing of it has been told, nothing will be: no work waits for that any more. */
void gpu_cuda_bodies_give_up(struct cuda_bodies *bodies, uint64_t launch);
/* Nothing of it has been told yet, and nothing will be, though it may have run: the same of it and
 * of all before it, which lack what bodies did. */
void gpu_cuda_bodies_forget(struct cuda_bodies *bodies, uint64_t launch);
/* Gives up all whose operations have these bits. */
void gpu_cuda_bodies_give_up_all(struct cuda_bodies *bodies, uint64_t mask, uint64_t bits);
/* Work of a body was told. */
void gpu_cuda_bodies_work(struct cuda_bodies *bodies, uint64_t node_id, int64_t begin_ns,
                          int64_t end_ns);
/* All that is over has been told: tells what is known to be whose. */
void gpu_cuda_bodies_settle(struct cuda_bodies *bodies, int64_t now_ns);
void gpu_cuda_bodies_finish(struct cuda_bodies *bodies);

#endif
