/* Staging: transfer memory in the arena, bounded and counted until it is free again. */
#include <assert.h>

#include "runtime/memory/stack.h"

#define HELD_NAP_NS INT64_C(1000000)

static uint64_t rounded(uint64_t byte_count) {
    return (byte_count + GPU_RANGE_ALIGN_BYTES - 1) & ~(GPU_RANGE_ALIGN_BYTES - 1ull);
}

bool gpu_staging_has_room(struct gpu_device *device, uint64_t byte_count) {
    GPU_ENTER(device);
    uint64_t bytes = rounded(byte_count) + GPU_STAGING_CHUNK_BYTES;
    if (device->stats.staging_bytes + bytes > GPU_STAGING_BYTES_MAX) {
        (void)gpu_device_reap(device);
    }
    bool has_room = device->stats.staging_bytes + bytes <= GPU_STAGING_BYTES_MAX;
    if (!has_room) {
        gpu_device_want_any(device); /* whoever asks will sleep */
    }
    return has_room;
}

gpulua_status gpu_staging_acquire(struct gpu_device *device, uint64_t byte_count,
                                  struct gpu_staging *staging, struct gpu_error *error) {
    GPU_ENTER(device);
    assert(byte_count > 0 && byte_count <= GPU_STAGING_CHUNK_BYTES);
    uint64_t bytes = rounded(byte_count);
    for (bool has_waited = false; device->stats.staging_bytes + bytes > GPU_STAGING_BYTES_MAX;
         has_waited = true) {
        (void)gpu_device_reap(device);
        if (device->stats.staging_bytes + bytes <= GPU_STAGING_BYTES_MAX) {
            break;
        }
        gpulua_status status = GPULUA_OK;
        if (device->share && !device->retiring) {
            status = gpu_memory_check_wait(device, "waiting for staging memory", error);
            if (status) {
                return status;
            }
            int64_t begun_ns = gpu_blocked_begin(device);
            gpu_device_want_any(device);
            gpu_device_nap(device, HELD_NAP_NS); /* others are at work on theirs */
            gpu_blocked_end(device, "staging memory", begun_ns);
        } else if (!gpu_device_wait_retiring(device, error, &status)) {
            return gpu_error_set(error, GPULUA_CAPACITY,
                                 "all %llu bytes of staging memory are held",
                                 (unsigned long long)GPU_STAGING_BYTES_MAX);
        }
        if (status) {
            return status;
        }
        device->stats.throttles += !has_waited;
    }
    struct gpu_block_info info = {.byte_count = byte_count, .label = "staging", .is_host = true};
    struct gpu_block *block = NULL;
    gpulua_status status = gpu_block_create(device, &info, &block, error);
    if (status) {
        return status;
    }
    block->is_staging = true;
    device->stats.staging_bytes += block->grant.byte_count;
    if (device->stats.staging_bytes > device->stats.staging_bytes_max) {
        device->stats.staging_bytes_max = device->stats.staging_bytes;
    }
    *staging = (struct gpu_staging){.bytes = gpu_block_host_bytes(block),
                                    .byte_count = byte_count,
                                    .arena_offset = block->address,
                                    .owner = block};
    return GPULUA_OK;
}

void gpu_staging_release(struct gpu_device *device, struct gpu_staging *staging) {
    GPU_ENTER(device);
    (void)device;
    gpu_block_release(staging->owner);
    *staging = (struct gpu_staging){0};
}
