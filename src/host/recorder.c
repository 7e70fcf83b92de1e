/* Recorders as hosts hold them. */
#include "runtime/recorder.h"

#include <stdlib.h>

#include "binding/graph.h"
#include "binding/stream.h"
#include "host/handle.h"
#include "host/structs.h"
#include "runtime/exchange.h"

struct gpulua_recorder {
    struct host_handle handle;     /* first */
    const struct gpulua *g;        /* whose it is, until it is emptied */
    struct gpu_recorder *recorder; /* owned; NULL: emptied */
    struct gpu_stream *stream;     /* retained */
};

static void recorder_empty(struct host_handle *handle) {
    struct gpulua_recorder *recorder = (struct gpulua_recorder *)handle;
    gpu_recorder_release(recorder->recorder);
    gpu_stream_release(recorder->stream);
    recorder->recorder = NULL;
    recorder->stream = NULL;
}

static void recorder_destroy(struct host_handle *handle) {
    free(handle);
}

struct new_request {
    const gpulua_recorder_info *info;
    struct gpulua_recorder *made;
};

/* Stack: the request, a stream or a device. */
static int new_recorder(lua_State *L) {
    struct new_request *request = lua_touserdata(L, 1);
    const gpulua_recorder_info *info = request->info;
    struct gpulua *g = gpu_lua_find(L);
    struct gpu_error error;
    struct gpu_submit submit = {.label = info->label};
    struct gpu_device *device;
    if (info->stream_index != 0) {
        submit.stream = gpu_lua_check_stream(L, g, 2);
        device = gpu_stream_device(submit.stream);
    } else {
        device = gpu_host_device(L, g, 2);
        submit.stream = gpu_lua_current_stream(L, g, device);
    }
    gpu_lua_site(L, g, device, &submit.site);
    struct gpulua_recorder *made = calloc(1, sizeof *made);
    if (!made) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for a recorder");
    }
    if (gpu_recorder_create(&submit,
                            info->is_permissive ? GPU_RECORDER_PERMISSIVE : GPU_RECORDER_STRICT,
                            &made->recorder, &error)) {
        free(made);
        gpu_lua_throw(L, &error);
    }
    made->g = g;
    made->stream = gpu_stream_retain(submit.stream);
    gpu_lua_host_handle_add(g, &made->handle, recorder_empty, recorder_destroy);
    request->made = made;
    return 0;
}

gpulua_status gpulua_recorder_new(lua_State *L, const gpulua_recorder_info *given,
                                  gpulua_recorder **recorder) {
    gpulua_status status = GPULUA_OK;
    gpulua_recorder_info info;
    struct gpu_error error;
    *recorder = NULL;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (gpu_host_take_recorder_info(given, &info, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    struct new_request request = {.info = &info};
    status = gpu_host_call(g, L, new_recorder, &request,
                           info.stream_index ? info.stream_index : info.device_index);
    *recorder = request.made;
    return status;
}

static void use(struct gpulua_recorder *recorder, const struct gpulua_buffer *buffer,
                uint8_t access, const char *name) {
    if (recorder->recorder) {
        gpu_lua_sit(recorder->g);
        gpu_recorder_use(recorder->recorder, buffer ? &buffer->ref : NULL, access,
                         name ? name : "a use of a recorder");
    }
}

void gpulua_recorder_read(gpulua_recorder *recorder, const gpulua_buffer *buffer,
                          const char *name) {
    use(recorder, buffer, GPU_READ, name);
}

void gpulua_recorder_write(gpulua_recorder *recorder, const gpulua_buffer *buffer,
                           const char *name) {
    use(recorder, buffer, GPU_WRITE, name);
}

void gpulua_recorder_read_write(gpulua_recorder *recorder, const gpulua_buffer *buffer,
                                const char *name) {
    use(recorder, buffer, GPU_READ_WRITE, name);
}

static gpulua_status check_open(struct gpulua *g, const struct gpulua_recorder *recorder) {
    gpu_lua_sit(g);
    if (!recorder->recorder) {
        return gpu_lua_keep_error(g, GPULUA_CLOSED, "attempt to use a closed recorder");
    }
    return recorder->g == g /* or perhaps of another thread */
               ? GPULUA_OK
               : gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT,
                                    "the recorder belongs to another gpulua object");
}

gpulua_status gpulua_recorder_preflight(gpulua *g, gpulua_recorder *recorder) {
    struct gpu_error error = {0};
    gpulua_status status = check_open(g, recorder);
    if (status == GPULUA_OK && gpu_lua_is_captured(g, gpu_recorder_device(recorder->recorder))) {
        return gpu_lua_keep_error(g, GPULUA_CAPTURE_ACTIVE, "a host's own work cannot be captured");
    }
    if (status == GPULUA_OK && gpu_recorder_preflight(recorder->recorder, &error)) {
        status = gpu_lua_keep_failure(g, &error);
    }
    return status;
}

gpulua_status gpulua_recorder_wait(gpulua *g, gpulua_recorder *recorder) {
    struct gpu_error error = {0};
    struct gpu_op *tail = NULL;
    gpulua_status status = check_open(g, recorder);
    if (status) {
        return status;
    }
    if (gpu_lua_is_captured(g, gpu_recorder_device(recorder->recorder))) {
        return gpu_lua_keep_error(g, GPULUA_CAPTURE_ACTIVE, "a wait cannot be captured");
    }
    struct gpu_submit submit = {.stream = recorder->stream, .label = "recorder"};
    status = gpu_work_mark(&submit, NULL, &tail, &error);
    if (status == GPULUA_OK) {
        status = gpu_op_wait(tail, -1, &error);
        gpu_op_release(tail);
    }
    return status ? gpu_lua_keep_failure(g, &error) : GPULUA_OK;
}

gpulua_status gpulua_recorder_stream(gpulua *g, gpulua_recorder *recorder, uintptr_t *stream) {
    struct gpu_error error = {0};
    uint64_t native = 0;
    *stream = 0;
    gpulua_status status = check_open(g, recorder);
    if (status == GPULUA_OK && gpu_stream_native(recorder->stream, &native, &error)) {
        status = gpu_lua_keep_failure(g, &error);
    }
    *stream = (uintptr_t)native;
    return status;
}

gpulua_status gpulua_recorder_commit(gpulua *g, gpulua_recorder *recorder) {
    struct gpu_error error = {0};
    gpulua_status status = check_open(g, recorder);
    if (status == GPULUA_OK && gpu_recorder_commit(recorder->recorder, NULL, &error)) {
        status = gpu_lua_keep_failure(g, &error);
    }
    return status;
}

void gpulua_recorder_cancel(gpulua_recorder *recorder) {
    if (recorder->recorder) {
        gpu_lua_sit(recorder->g);
        gpu_recorder_cancel(recorder->recorder);
    }
}

void gpulua_recorder_release(gpulua_recorder *recorder) {
    if (recorder) {
        gpu_lua_host_handle_release(&recorder->handle);
    }
}
