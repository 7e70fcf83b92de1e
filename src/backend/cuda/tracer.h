/* CUPTI, where it is there: what kernels, copies and fills took, to the nanosecond, without events
 * around them. One for the process, whose traced devices share it. */
#ifndef GPU_BACKEND_CUDA_TRACER_H
#define GPU_BACKEND_CUDA_TRACER_H

#include "backend/cuda/device.h"

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
bool gpu_cuda_tells_times(struct backend_device *device);

#endif
