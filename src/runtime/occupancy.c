#include "runtime/occupancy.h"

#define WARP_REGISTERS_UNIT 256u /* registers are given to a warp in these */
#define SHARED_UNIT 128u         /* shared memory to a block */
#define SUB_PARTITIONS 4u        /* of a multiprocessor, each with its part of the registers */

static uint32_t round_up(uint32_t value, uint32_t unit) {
    return (value + unit - 1) / unit * unit;
}

struct gpu_occupancy gpu_occupancy_find(const struct wire_device_facts *device,
                                        const struct wire_kernel_facts *kernel,
                                        uint32_t block_threads, uint32_t shared_bytes) {
    uint32_t warp = device->warp_threads != 0 ? device->warp_threads : 32;
    uint32_t block_warps = (block_threads + warp - 1) / warp;
    struct gpu_occupancy found = {.warps_max = device->mp_threads / warp, .limiter = "threads"};
    uint64_t shared = (uint64_t)kernel->shared_bytes_static + shared_bytes;
    if (block_threads == 0 || block_threads > kernel->block_threads_max) {
        return found;
    }
    if (shared > device->shared_bytes_max) {
        found.limiter = "shared memory";
        return found;
    }
    uint32_t limits[4] = {found.warps_max / block_warps, device->mp_blocks, UINT32_MAX, UINT32_MAX};
    static const char *const names[4] = {"threads", "blocks", "registers", "shared memory"};
    if (kernel->registers != 0 && device->mp_registers != 0) {
        uint32_t of_warp = round_up(kernel->registers * warp, WARP_REGISTERS_UNIT);
        limits[2] = device->mp_registers / SUB_PARTITIONS / of_warp * SUB_PARTITIONS / block_warps;
    }
    shared += device->shared_reserved_bytes;
    if (shared != 0 && device->mp_shared_bytes != 0) {
        limits[3] = device->mp_shared_bytes / round_up((uint32_t)shared, SHARED_UNIT);
    }
    int least = 0;
    for (int i = 1; i < 4; i++) {
        least = limits[i] < limits[least] ? i : least;
    }
    found.blocks = limits[least];
    found.warps = found.blocks * block_warps;
    found.limiter = names[least];
    return found;
}
