/* Memory resources as hosts make them and look at them: dev:memory from C. */
#include "binding/memory.h"
#include "binding/device.h"
#include "host/handle.h"
#include "host/structs.h"

/* Stack: a table on top. A number that is 0 is an option that is not there. */
static void set_bytes(lua_State *L, const char *name, uint64_t bytes) {
    if (bytes > 0) {
        lua_pushinteger(L, bytes > INT64_MAX ? INT64_MAX : (lua_Integer)bytes);
        lua_setfield(L, -2, name);
    }
}

static void set_text(lua_State *L, const char *name, const char *text) {
    if (text) {
        lua_pushstring(L, text);
        lua_setfield(L, -2, name);
    }
}

static void set_true(lua_State *L, const char *name) {
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, name);
}

/* As scripts make one: dev:memory{...}. Stack: the description, the device, the memory to stand
 * on. */
static int new_memory(lua_State *L) {
    const gpulua_memory_info *info = lua_touserdata(L, 1);
    (void)gpu_host_device(L, gpu_lua_find(L), 2);
    gpu_lua_push_function(L, gpu_lua_device_memory);
    lua_pushvalue(L, 2);
    lua_createtable(L, 0, 9);
    set_text(L, "from", info->from);
    if (gpu_host_is_given(L, 3)) {
        lua_pushvalue(L, 3);
        lua_setfield(L, -2, "from");
    }
    set_text(L, "oom", info->oom);
    if (info->timeout_s != 0) {
        lua_pushnumber(L, info->timeout_s);
        lua_setfield(L, -2, "timeout");
    }
    if (info->is_guarded) {
        lua_createtable(L, 0, 2);
        set_bytes(L, "canary", info->canary_bytes);
        set_bytes(L, "quarantine", info->quarantine_bytes);
        lua_setfield(L, -2, "guard");
    }
    set_bytes(L, "budget", info->budget_bytes);
    if (info->has_statistics) {
        set_true(L, "statistics");
    }
    if (info->has_log) {
        set_true(L, "log");
        set_bytes(L, "log_bytes", info->log_bytes);
    }
    set_text(L, "label", info->label);
    lua_call(L, 2, 1);
    return 1;
}

/* NULL: nothing that scripts could not say either. */
static const char *what_is_wrong(const gpulua_memory_info *info) {
    if (info->from && info->from_index != 0) {
        return "from or from_index of memory: one of them alone";
    }
    if (!info->is_guarded && (info->canary_bytes > 0 || info->quarantine_bytes > 0)) {
        return "canary_bytes and quarantine_bytes of memory: with is_guarded alone";
    }
    return info->has_log || info->log_bytes == 0 ? NULL : "log_bytes of memory: with has_log alone";
}

gpulua_status gpulua_push_memory(lua_State *L, int device_index, const gpulua_memory_info *given) {
    gpulua_status status = GPULUA_OK;
    gpulua_memory_info info;
    struct gpu_error error;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (gpu_host_take_memory_info(given, &info, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    const char *wrong = what_is_wrong(&info);
    if (wrong) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT, wrong);
    }
    device_index = device_index == 0 ? 0 : lua_absindex(L, device_index);
    int from_index = info.from_index == 0 ? 0 : lua_absindex(L, info.from_index);
    lua_pushcfunction(L, new_memory);
    lua_pushlightuserdata(L, &info);
    gpu_host_push(L, device_index);
    gpu_host_push(L, from_index);
    return lua_pcall(L, 3, 1, 0) == LUA_OK ? GPULUA_OK : gpu_lua_keep_raised(g, L);
}

static int describe(lua_State *L) {
    gpulua_memory_state *state = lua_touserdata(L, 1);
    const struct memory_handle *handle = gpu_lua_check_memory(L, gpu_lua_find(L), 2);
    struct gpu_memory_stats stats;
    gpu_memory_stats(handle->memory, &stats);
    gpu_memory_log_counts(handle->memory, &state->log_events, &state->log_drops);
    state->kind = gpu_memory_kind_name(handle->memory);
    state->is_trackable = gpu_memory_is_trackable(handle->memory);
    state->pressure = gpu_pressure_name(gpu_memory_pressure(handle->memory));
    state->remaining_bytes = gpu_memory_remaining_bytes(handle->memory, &state->limit_bytes);
    state->outstanding_bytes = gpu_memory_outstanding_bytes(handle->memory);
    state->outstanding_count = gpu_memory_outstanding_count(handle->memory);
    state->allocs = stats.allocs;
    state->frees = stats.frees;
    state->failures = stats.failures;
    state->bytes_live = stats.bytes_live;
    state->bytes_live_max = stats.bytes_live_max;
    return 0;
}

gpulua_status gpulua_memory_describe_sized(lua_State *L, int index, gpulua_memory_state *state,
                                           size_t struct_bytes) {
    gpulua_status status = GPULUA_OK;
    gpulua_memory_state answer = {0};
    struct gpulua *g = gpu_host_find(L, &status);
    status = g ? gpu_host_call(g, L, describe, &answer, index) : status;
    gpu_host_answer(&answer, sizeof answer, state, struct_bytes);
    return status;
}
