/* CUPTI, where it is there: what kernels, copies and fills took, to the nanosecond, without events
 * around them; of graphs, what each node took (tracer_nodes.h). One for the process, whose traced
 * devices share it.
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

/* By which CUPTI will tell of a graph's node. False: it cannot. */
bool gpu_cuda_tracer_node_id(CUgraphNode node, uint64_t *id);
/* The next call of the driver launches a graph with that map. */
void gpu_cuda_trace_graph(struct cuda_node_map *map);
/* It has failed: nothing will be told of it. */
void gpu_cuda_trace_graph_failed(void);
bool gpu_cuda_tells_times(struct backend_device *device);

#endif
