/* Occupancy, against what the driver says of kernels on GPUs of compute capability 9.0 and 8.6, and
 * on the CPU device. */
#include <string.h>

#include "backend/tap.h"
#include "runtime/occupancy.h"

static struct tap tap;

static const struct wire_device_facts hopper = {.warp_threads = 32,
                                                .mp_threads = 2048,
                                                .mp_registers = 65536,
                                                .mp_shared_bytes = 233472,
                                                .mp_blocks = 32,
                                                .shared_bytes_max = 232448,
                                                .shared_reserved_bytes = 1024};
static const struct wire_device_facts ampere = {.warp_threads = 32,
                                                .mp_threads = 1536,
                                                .mp_registers = 65536,
                                                .mp_shared_bytes = 102400,
                                                .mp_blocks = 16,
                                                .shared_bytes_max = 101376,
                                                .shared_reserved_bytes = 1024};
static const struct wire_device_facts cpu = {
    .warp_threads = 32, .mp_threads = 1024, .mp_blocks = 1, .shared_bytes_max = 49152};

static bool is(const struct wire_device_facts *device, uint32_t registers, uint32_t fixed,
               uint32_t threads, uint32_t shared, uint32_t blocks, const char *limiter) {
    struct wire_kernel_facts kernel = {
        .block_threads_max = 1024, .shared_bytes_static = fixed, .registers = registers};
    struct gpu_occupancy found = gpu_occupancy_find(device, &kernel, threads, shared);
    bool good = found.blocks == blocks && strcmp(found.limiter, limiter) == 0 &&
                found.warps == blocks * ((threads + 31) / 32) &&
                found.warps_max == device->mp_threads / 32;
    if (!good) {
        printf("# %u registers, %u + %u bytes, %u threads: %u blocks by %s\n", registers, fixed,
               shared, threads, found.blocks, found.limiter);
    }
    return good;
}

int main(void) {
    tap_check(&tap,
              is(&hopper, 16, 0, 256, 0, 8, "threads") &&
                  is(&hopper, 16, 0, 1024, 0, 2, "threads") &&
                  is(&ampere, 16, 0, 256, 0, 6, "threads"),
              "threads");
    tap_check(&tap,
              is(&hopper, 16, 0, 32, 0, 32, "blocks") && is(&ampere, 16, 0, 64, 0, 16, "blocks"),
              "blocks");
    /* 64 registers: 2,048 a warp, 8 warps in each of 4 partitions; 255: 8,192, 2 in each; 33: 1,280
     * (not 1,056), 12 in each. */
    tap_check(&tap,
              is(&hopper, 64, 0, 256, 0, 4, "registers") &&
                  is(&hopper, 255, 0, 256, 0, 1, "registers") &&
                  is(&hopper, 33, 0, 128, 0, 12, "registers") &&
                  is(&hopper, 33, 0, 512, 0, 3, "registers"),
              "registers, in units of a warp's");
    /* With 1 KiB for the system in each block. */
    tap_check(&tap,
              is(&hopper, 16, 32768, 256, 0, 6, "shared memory") &&
                  is(&hopper, 16, 0, 128, 232448, 1, "shared memory") &&
                  is(&hopper, 16, 16384, 64, 16384, 6, "shared memory") &&
                  is(&ampere, 16, 49152, 128, 0, 2, "shared memory"),
              "shared memory, fixed and dynamic");
    tap_check(&tap,
              is(&hopper, 16, 0, 0, 0, 0, "threads") && is(&hopper, 16, 0, 1025, 0, 0, "threads") &&
                  is(&hopper, 16, 1, 32, 232448, 0, "shared memory"),
              "what cannot be launched");
    tap_check(&tap, is(&cpu, 0, 0, 256, 0, 1, "blocks") && is(&cpu, 0, 4096, 1024, 0, 1, "threads"),
              "a core has one block at a time");
    return tap_finish(&tap);
}
