/* Captures and graphs as hosts make them and launch them: dev:capture and its kin from C. */
#include "binding/graph.h"
#include "host/handle.h"
#include "host/structs.h"

/* Calls function(L) in protected mode with light userdata of `request` at 1 and copies of the
 * values at two indices behind it; what it returns is left on the stack. */
static gpulua_status call(struct gpulua *g, lua_State *L, lua_CFunction function,
                          const void *request, int index, int more_index, int result_count) {
    index = index == 0 ? 0 : lua_absindex(L, index);
    more_index = more_index == 0 ? 0 : lua_absindex(L, more_index);
    lua_pushcfunction(L, function);
    lua_pushlightuserdata(L, (void *)(uintptr_t)request);
    gpu_host_push(L, index);
    gpu_host_push(L, more_index);
    return lua_pcall(L, 3, result_count, 0) == LUA_OK ? GPULUA_OK : gpu_lua_keep_raised(g, L);
}

/* ---- captures ---- */

/* As scripts begin one: dev:capture{...}. Stack: the description, the device, the pool. */
static int begin(lua_State *L) {
    const gpulua_capture_info *info = lua_touserdata(L, 1);
    (void)gpu_host_device(L, gpu_lua_find(L), 2);
    gpu_lua_push_function(L, gpu_lua_capture_begin);
    lua_pushvalue(L, 2);
    lua_createtable(L, 0, 2);
    lua_pushstring(L, info->label);
    lua_setfield(L, -2, "label");
    if (gpu_host_is_given(L, 3)) {
        lua_pushvalue(L, 3);
        lua_setfield(L, -2, "pool");
    }
    lua_call(L, 2, 1);
    gpu_lua_push_function(L, gpu_lua_capture_enter);
    lua_pushvalue(L, -2);
    lua_call(L, 1, 0);
    return 1;
}

gpulua_status gpulua_push_capture(lua_State *L, const gpulua_capture_info *given) {
    gpulua_status status = GPULUA_OK;
    gpulua_capture_info info;
    struct gpu_error error;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (gpu_host_take_capture_info(given, &info, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    return call(g, L, begin, &info, info.device_index, info.pool_index, 1);
}

static int describe(lua_State *L) {
    gpulua_capture_state *state = lua_touserdata(L, 1);
    struct gpu_capture *capture = gpu_lua_capture_look(L, gpu_lua_find(L), 2);
    if (capture) {
        bool is_well = gpu_capture_is_active(capture) &&
                       gpu_device_state(gpu_capture_device(capture)) == GPU_DEVICE_OPEN;
        state->capturing = is_well ? GPULUA_CAPTURING_ACTIVE : GPULUA_CAPTURING_INVALIDATED;
        state->node_count = gpu_capture_count(capture);
    }
    return 0;
}

gpulua_status gpulua_capture_describe_sized(lua_State *L, int index, gpulua_capture_state *state,
                                            size_t struct_bytes) {
    gpulua_status status = GPULUA_OK;
    gpulua_capture_state answer = {0};
    struct gpulua *g = gpu_host_find(L, &status);
    status = g ? gpu_host_call(g, L, describe, &answer, index) : status;
    gpu_host_answer(&answer, sizeof answer, state, struct_bytes);
    return status;
}

/* Stack: the request, the capture. */
static int finish(lua_State *L) {
    gpu_lua_push_function(L, gpu_lua_capture_finish);
    lua_pushvalue(L, 2);
    lua_call(L, 1, 1);
    return 1;
}

gpulua_status gpulua_capture_finish(lua_State *L, int index) {
    gpulua_status status = GPULUA_OK;
    struct gpulua *g = gpu_host_find(L, &status);
    return g ? call(g, L, finish, NULL, index, 0, 1) : status;
}

static int cancel(lua_State *L) {
    gpu_lua_push_function(L, gpu_lua_capture_close);
    lua_pushvalue(L, 2);
    lua_call(L, 1, 0);
    return 0;
}

gpulua_status gpulua_capture_cancel(lua_State *L, int index) {
    gpulua_status status = GPULUA_OK;
    struct gpulua *g = gpu_host_find(L, &status);
    return g ? gpu_host_call(g, L, cancel, NULL, index) : status;
}

/* ---- graphs ---- */

struct launch_request {
    lua_CFunction function; /* graph:launch or graph:upload */
    const gpulua_launch_info *info;
};

/* Stack: the request, the graph, the stream. */
static int launch(lua_State *L) {
    const struct launch_request *request = lua_touserdata(L, 1);
    gpu_lua_push_function(L, request->function);
    lua_pushvalue(L, 2);
    if (request->info) {
        lua_createtable(L, 0, 2);
        lua_pushstring(L, request->info->label);
        lua_setfield(L, -2, "label");
        if (gpu_host_is_given(L, 3)) {
            lua_pushvalue(L, 3);
            lua_setfield(L, -2, "stream");
        }
    } else {
        lua_pushnil(L);
    }
    lua_call(L, 2, 0);
    return 0;
}

static gpulua_status launch_with(lua_State *L, int index, const gpulua_launch_info *given,
                                 lua_CFunction function) {
    gpulua_status status = GPULUA_OK;
    gpulua_launch_info info;
    struct gpu_error error;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (gpu_host_take_launch_info(given, &info, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    const struct launch_request request = {.function = function, .info = given ? &info : NULL};
    return call(g, L, launch, &request, index, info.stream_index, 0);
}

gpulua_status gpulua_graph_launch(lua_State *L, int index, const gpulua_launch_info *info) {
    return launch_with(L, index, info, gpu_lua_graph_launch);
}

gpulua_status gpulua_graph_upload(lua_State *L, int index, const gpulua_launch_info *info) {
    return launch_with(L, index, info, gpu_lua_graph_upload);
}
