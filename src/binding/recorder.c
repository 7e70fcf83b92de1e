/* Recorders: declaring what a host's own work uses. Typed operations need none. */
#include "runtime/recorder.h"

#include <stdio.h>
#include <string.h>

#include "binding/buffer.h"
#include "binding/core.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/stream.h"

struct recorder_handle {
    struct gpu_recorder *recorder; /* owned; NULL: closed */
};

static struct gpu_recorder *check_recorder(lua_State *L, struct gpulua *g) {
    struct recorder_handle *handle = gpu_lua_check(L, g, 1, GPU_LUA_KIND_RECORDER);
    if (!handle->recorder) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed recorder");
    }
    return handle->recorder;
}

/* dev:recorder{stream=, mode="strict"|"permissive", label=} -> recorder for work on that stream
 * (the current one). InvalidArgument: options, a foreign stream. Does not block. */
int gpu_lua_device_recorder(lua_State *L) {
    static const char *const options[] = {"stream", "mode", "label", NULL};
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_refuse_in_sandbox(L, g, "recorders");
    (void)gpu_lua_check_device(L, g, 1, NULL);
    struct gpu_submit submit = {0};
    lua_settop(L, 2);
    gpu_lua_check_options(L, 2, options, "recorder");
    submit.label = gpu_lua_push_field_string(L, 2, "label", "recorder");
    const char *mode = gpu_lua_push_field_string(L, 2, "mode", "recorder");
    bool is_permissive = mode && strcmp(mode, "permissive") == 0;
    if (mode && !is_permissive && strcmp(mode, "strict") != 0) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "mode of recorder: \"strict\" or \"permissive\" expected, got \"%s\"", mode);
    }
    bool has_stream = lua_istable(L, 2) && lua_getfield(L, 2, "stream") != LUA_TNIL;
    int stream = lua_gettop(L);
    struct recorder_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_RECORDER, sizeof *handle, 0);
    /* Nothing of the script's runs from here on. */
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    if (has_stream) {
        if (!gpu_lua_test(L, g, stream, GPU_LUA_KIND_STREAM)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "stream of recorder: a stream expected, got %s", luaL_typename(L, stream));
        }
        submit.stream = gpu_lua_check_stream(L, g, stream);
        if (gpu_stream_device(submit.stream) != device) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "stream of recorder: it is of another device");
        }
    } else {
        submit.stream = gpu_lua_current_stream(L, g, device);
    }
    gpu_lua_site(L, g, device, &submit.site);
    struct gpu_error error;
    if (gpu_recorder_create(&submit, is_permissive ? GPU_RECORDER_PERMISSIVE : GPU_RECORDER_STRICT,
                            &handle->recorder, &error)) {
        handle->recorder = NULL;
        gpu_lua_throw(L, &error);
    }
    return 1;
}

/* Every argument: a buffer or host buffer; in strict mode anything else is what preflight raises.
 */
static int note(lua_State *L, uint8_t access, const char *call) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_recorder *recorder = check_recorder(L, g);
    int count = lua_gettop(L);
    if (gpu_recorder_has_ended(recorder)) {
        gpu_lua_fail(L, GPULUA_CLOSED, "%s of a recorder that has ended", call);
    }
    if (count < 2) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s of a recorder: a buffer expected, got nothing",
                     call);
    }
    for (int i = 2; i <= count; i++) {
        struct buffer *buffer = gpu_lua_test(L, g, i, GPU_LUA_KIND_BUFFER);
        if (!buffer) {
            buffer = gpu_lua_test(L, g, i, GPU_LUA_KIND_HOST);
        }
        char what[64];
        snprintf(what, sizeof what, "argument %d of %s", i - 1, call);
        gpu_recorder_use(recorder, buffer ? &buffer->ref : NULL, access, what);
    }
    lua_settop(L, 1);
    return 1;
}

/* recorder:read(...) -> the recorder: what is enqueued will read these buffers. Never raises for
 * what it is given: preflight does. Closed: it has ended. */
static int recorder_read(lua_State *L) {
    return note(L, GPU_READ, "read");
}

/* recorder:write(...) -> the recorder: the same of what is written. */
static int recorder_write(lua_State *L) {
    return note(L, GPU_WRITE, "write");
}

/* recorder:read_write(...) -> the recorder: the same of what is read and written. */
static int recorder_read_write(lua_State *L) {
    return note(L, GPU_READ_WRITE, "read_write");
}

/* recorder:preflight() -> the recorder: the stream waits for all that conflicts. Raises the first
 * rejection of a strict recorder; StreamMisuse; DependencyFailed. May block while too much is in
 * flight; never yields. */
static int recorder_preflight(lua_State *L) {
    struct gpu_error error;
    struct gpulua *g = GPU_LUA(L);
    struct gpu_recorder *recorder = check_recorder(L, g);
    gpu_lua_check_eager(L, g, gpu_recorder_device(recorder), "a host's own work");
    if (gpu_recorder_preflight(recorder, &error)) {
        gpu_lua_throw(L, &error);
    }
    lua_settop(L, 1);
    return 1;
}

/* recorder:commit() -> op that is over when all is that is on the stream now. Ends the recorder.
 * StreamMisuse: without preflight, or a use after it. */
static int recorder_commit(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)check_recorder(L, g);
    struct gpu_op **op = gpu_lua_op_new(L, g);
    struct gpu_error error;
    /* Again: a finaliser may have closed it. */
    if (gpu_recorder_commit(check_recorder(L, g), op, &error)) {
        *op = NULL;
        gpu_lua_throw(L, &error);
    }
    return 1;
}

/* recorder:count() -> uses so far, before those of the same bytes are joined */
static int recorder_count(lua_State *L) {
    lua_pushinteger(L, gpu_recorder_count(check_recorder(L, GPU_LUA(L))));
    return 1;
}

/* recorder:cancel(): nothing was enqueued; forgets the uses */
static int recorder_cancel(lua_State *L) {
    gpu_recorder_cancel(check_recorder(L, GPU_LUA(L)));
    return 0;
}

static void handle_end(struct recorder_handle *handle) {
    struct gpu_recorder *recorder = handle->recorder;
    handle->recorder = NULL;
    gpu_recorder_release(recorder);
}

/* recorder:close(): abandons it. Before preflight that cancels it, behind it that commits it. */
static int recorder_close(lua_State *L) {
    handle_end(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_RECORDER));
    return 0;
}

static int recorder_gc(lua_State *L) {
    handle_end(lua_touserdata(L, 1));
    return 0;
}

static int recorder_tostring(lua_State *L) {
    struct recorder_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_RECORDER);
    if (handle->recorder) {
        lua_pushfstring(L, "gpulua.recorder (%d uses)", (int)gpu_recorder_count(handle->recorder));
    } else {
        lua_pushliteral(L, "gpulua.recorder (closed)");
    }
    return 1;
}

bool gpu_lua_recorder_is_closed(const void *handle) {
    return !((const struct recorder_handle *)handle)->recorder;
}

void gpu_lua_recorder_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"read", recorder_read},
                                       {"write", recorder_write},
                                       {"read_write", recorder_read_write},
                                       {"preflight", recorder_preflight},
                                       {"commit", recorder_commit},
                                       {"cancel", recorder_cancel},
                                       {"count", recorder_count},
                                       {"close", recorder_close},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", recorder_gc},
                                           {"__close", recorder_close},
                                           {"__tostring", recorder_tostring},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_RECORDER, methods, metamethods);
}
