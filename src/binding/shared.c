/* Devices of several objects: how many hold one, and the seat of an object. */
#include <stdlib.h>
#include <string.h>

#include "binding/device.h"

#define STREAMS_PER_SEAT 8u /* until the next object's begin */

struct gpulua_device *gpu_lua_shared_retain(struct gpulua_device *shared) {
    if (shared) {
        atomic_fetch_add_explicit(&shared->refs, 1, memory_order_relaxed);
    }
    return shared;
}

void gpu_lua_shared_release(struct gpulua_device *shared) {
    if (shared && atomic_fetch_sub_explicit(&shared->refs, 1, memory_order_acq_rel) == 1) {
        gpu_device_close(shared->device, shared->close_timeout_ms);
        gpu_device_release(shared->device);
        free(shared);
    }
}

bool gpu_lua_shared_is_meant(const struct gpulua *g, const char *name) {
    struct gpulua_device *shared = g->config.shared_device;
    return shared && (!name || strcmp(name, gpu_device_name(shared->device)) == 0);
}

gpulua_status gpu_lua_shared_take(struct gpulua *g, struct device_handle *handle,
                                  struct gpu_error *error) {
    struct gpulua_device *shared = g->config.shared_device;
    gpulua_status status = gpu_seat_take(shared->device, &g->interrupt, &g->seat, error);
    if (status) {
        return status;
    }
    if (!gpu_lua_watch_device(g, gpu_seat_event_fd(g->seat))) {
        gpu_seat_leave(g->seat);
        g->seat = NULL;
        return gpu_error_set(error, GPULUA_IO,
                             "device %s cannot be watched: no file descriptor or memory left",
                             gpu_device_name(shared->device));
    }
    gpu_lua_sit(g);
    handle->shared = gpu_lua_shared_retain(shared);
    handle->device = gpu_device_retain(shared->device);
    /* Objects begin on different streams: else they would wait for each other. */
    g->next_stream = gpu_seat_number(g->seat) * STREAMS_PER_SEAT % GPU_TASK_STREAMS;
    g->scope.stream_index = g->next_stream;
    return GPULUA_OK;
}

void gpu_lua_shared_leave(struct gpulua *g, struct device_handle *handle) {
    gpu_lua_unwatch_device(g, gpu_seat_event_fd(g->seat));
    gpu_seat_leave(g->seat);
    g->seat = NULL;
    gpu_lua_sit(g);
    gpu_lua_shared_release(handle->shared);
    handle->shared = NULL;
}
