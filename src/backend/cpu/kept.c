/* The memory pool of the CPU device, as a CUDA driver has one: what is given back is kept for the
 * next who asks, up to a limit. Memory is there at once, which is before the stream gets so far. */
#include "backend/cpu/device.h"

gpulua_status gpu_cpu_kept_alloc(struct backend_stream *stream, uint64_t bytes,
                                 struct backend_slab **slab, uint64_t *address,
                                 struct backend_error *error) {
    struct backend_device *device = stream->device;
    struct backend_slab **best = NULL;
    for (struct backend_slab **link = &device->kept; *link != NULL; link = &(*link)->next_kept) {
        /* At most half of it is wasted. */
        if ((*link)->bytes >= bytes && (*link)->bytes / 2 <= bytes &&
            (best == NULL || (*link)->bytes < (*best)->bytes)) {
            best = link;
        }
    }
    if (bytes > 0 && best != NULL) {
        struct backend_slab *found = *best;
        *best = found->next_kept;
        found->is_kept = false;
        device->kept_bytes -= found->bytes;
        *slab = found;
        *address = (uint64_t)(uintptr_t)(found->base + device->page_bytes);
        return GPULUA_OK;
    }
    gpulua_status status = device->ops->slab_create(device, bytes, slab, address, error);
    if (status == GPULUA_OK) {
        (*slab)->is_pooled = true;
    }
    return status;
}

bool gpu_cpu_kept_put(struct backend_device *device, struct backend_slab *slab) {
    if (!slab->is_pooled || slab->is_kept ||
        slab->bytes > CPU_KEPT_BYTES_MAX - device->kept_bytes) {
        return false;
    }
    slab->is_kept = true;
    slab->next_kept = device->kept;
    device->kept = slab;
    device->kept_bytes += slab->bytes;
    return true;
}

void gpu_cpu_kept_trim(struct backend_device *device) {
    while (device->kept != NULL) {
        struct backend_slab *slab = device->kept;
        device->kept = slab->next_kept;
        device->kept_bytes -= slab->bytes;
        device->ops->slab_destroy(device, slab); /* still marked as kept: it goes for good */
    }
}
