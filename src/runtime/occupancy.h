/* How much of a kernel a multiprocessor holds at once, and what keeps it from holding more. */
#ifndef GPU_RUNTIME_OCCUPANCY_H
#define GPU_RUNTIME_OCCUPANCY_H

#include "wire/record.h"

struct gpu_occupancy {
    uint32_t blocks;     /* of a multiprocessor; 0: such blocks cannot be launched */
    uint32_t warps;      /* in these */
    uint32_t warps_max;  /* that a multiprocessor can hold */
    const char *limiter; /* "registers", "shared memory", "threads", "blocks" */
};
/* For blocks of so many threads with so many bytes of dynamic shared memory.
 * Source: CUDA Programming Guide, "Technical Specifications per Compute Capability"; the units of
 * allocation of compute capability 7.0 and later. */
struct gpu_occupancy gpu_occupancy_find(const struct wire_device_facts *device,
                                        const struct wire_kernel_facts *kernel,
                                        uint32_t block_threads, uint32_t shared_bytes);

#endif
