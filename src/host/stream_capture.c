/* Captures of the host's own, by the CUDA driver: begun and ended here so that gpulua knows. */
#include <stdlib.h>

#include "host/handle.h"
#include "host/structs.h"
#include "runtime/native_capture.h"

struct gpulua_stream_capture {
    struct host_handle handle; /* first */
    const struct gpulua *g;    /* whose it is, until it is emptied; compared alone */
    struct gpu_device *device; /* retained; NULL: emptied */
    struct gpu_stream *ours;   /* retained: if the captured stream is one of ours; else NULL */
    uint64_t stream;
    bool is_over;
};

static void capture_empty(struct host_handle *handle) {
    struct gpulua_stream_capture *capture = (struct gpulua_stream_capture *)handle;
    struct gpu_error ignored = {0};
    gpu_lua_sit(capture->g);
    if (!capture->is_over && gpu_native_capture_drop(capture->device, capture->stream, &ignored)) {
        gpu_error_finish(&ignored); /* the device is gone, and has ended it; or it cannot be */
    }
    gpu_stream_release(capture->ours);
    gpu_device_release(capture->device);
    capture->ours = NULL;
    capture->device = NULL;
    capture->is_over = true;
}

static void capture_destroy(struct host_handle *handle) {
    free(handle);
}

struct begin_request {
    const gpulua_stream_capture_info *info;
    enum wire_capture_mode mode;
    struct gpulua_stream_capture *made;
};

/* Stack: the request, a device. */
static int begin(lua_State *L) {
    struct begin_request *request = lua_touserdata(L, 1);
    struct gpulua *g = gpu_lua_find(L);
    struct gpu_device *device = gpu_host_device(L, g, 2);
    struct gpu_error error = {0};
    struct gpulua_stream_capture *made = calloc(1, sizeof *made);
    if (!made) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for a capture");
    }
    if (gpu_native_capture_begin(device, request->info->stream, request->mode, &error)) {
        free(made);
        gpu_lua_throw(L, &error);
    }
    made->g = g;
    made->device = gpu_device_retain(device);
    made->stream = request->info->stream;
    made->ours = gpu_stream_of_native(device, made->stream);
    gpu_lua_host_handle_add(g, &made->handle, capture_empty, capture_destroy);
    request->made = made;
    return 0;
}

gpulua_status gpulua_stream_capture_begin(lua_State *L, const gpulua_stream_capture_info *given,
                                          gpulua_stream_capture **capture) {
    static const enum wire_capture_mode modes[] = {
        [GPULUA_CAPTURE_MODE_DEFAULT] = WIRE_CAPTURE_THREAD_LOCAL,
        [GPULUA_CAPTURE_MODE_GLOBAL] = WIRE_CAPTURE_GLOBAL,
        [GPULUA_CAPTURE_MODE_THREAD_LOCAL] = WIRE_CAPTURE_THREAD_LOCAL,
        [GPULUA_CAPTURE_MODE_RELAXED] = WIRE_CAPTURE_RELAXED};
    gpulua_status status = GPULUA_OK;
    gpulua_stream_capture_info info;
    struct gpu_error error;
    *capture = NULL;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (gpu_host_take_stream_capture_info(given, &info, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    if ((unsigned)info.mode >= sizeof modes / sizeof modes[0]) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT,
                                  "mode of a stream capture: a gpulua_capture_mode expected");
    }
    struct begin_request request = {.info = &info, .mode = modes[info.mode]};
    status = gpu_host_call(g, L, begin, &request, info.device_index);
    *capture = request.made;
    return status;
}

static gpulua_status check(struct gpulua *g, const struct gpulua_stream_capture *capture) {
    gpu_lua_sit(g);
    if (!capture->device) {
        return gpu_lua_keep_error(g, GPULUA_CLOSED, "the object of the capture is closed");
    }
    if (capture->g != g) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT,
                                  "the capture belongs to another gpulua object");
    }
    return GPULUA_OK;
}

gpulua_status gpulua_stream_capture_status(gpulua *g, gpulua_stream_capture *capture,
                                           gpulua_capturing *capturing) {
    static const gpulua_capturing states[] = {[WIRE_CAPTURE_NONE] = GPULUA_CAPTURING_NONE,
                                              [WIRE_CAPTURE_ACTIVE] = GPULUA_CAPTURING_ACTIVE,
                                              [WIRE_CAPTURE_INVALIDATED] =
                                                  GPULUA_CAPTURING_INVALIDATED};
    enum wire_capture_state state = WIRE_CAPTURE_NONE;
    struct gpu_error error = {0};
    *capturing = GPULUA_CAPTURING_NONE;
    gpulua_status status = check(g, capture);
    if (status == GPULUA_OK && !capture->is_over &&
        gpu_native_capture_look(capture->device, capture->stream, &state, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    *capturing = states[state];
    return status;
}

gpulua_status gpulua_stream_capture_end(gpulua *g, gpulua_stream_capture *capture,
                                        uintptr_t *graph) {
    struct gpu_error error = {0};
    uint64_t made = 0;
    *graph = 0;
    gpulua_status status = check(g, capture);
    if (status) {
        return status;
    }
    if (capture->is_over) {
        return gpu_lua_keep_error(g, GPULUA_CLOSED, "the capture has ended");
    }
    status = gpu_native_capture_end(capture->device, capture->stream, &made, &error);
    capture->is_over = status != GPULUA_STREAM_MISUSE;
    *graph = (uintptr_t)made;
    return status ? gpu_lua_keep_failure(g, &error) : GPULUA_OK;
}

void gpulua_stream_capture_release(gpulua_stream_capture *capture) {
    if (capture) {
        gpu_lua_host_handle_release(&capture->handle);
    }
}
