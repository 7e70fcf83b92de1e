/* Memory resources as scripts have them: dev:memory{...} and its methods. */
#include "binding/memory.h"

#include <stdlib.h>
#include <string.h>

#include "binding/core.h"
#include "binding/device.h"
#include "binding/trace.h"

static const char anchors_key; /* registry: light userdata of a handle -> the handle, weakly */

/* A function of the script that frees memory. */
struct oom_hook {
    struct oom_hook *next;
    struct memory_handle *handle;
    int function; /* in the handle's user value */
};

struct memory_handle *gpu_lua_check_memory(lua_State *L, struct gpulua *g, int index) {
    struct memory_handle *handle = gpu_lua_check(L, g, index, GPU_LUA_KIND_MEMORY);
    if (!handle->memory) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed memory");
    }
    return handle;
}

/* Keeps the value on top, which is popped, as long as the handle at `index`. */
static int keep(lua_State *L, int index) {
    lua_getiuservalue(L, index, 1);
    lua_insert(L, -2);
    int number = luaL_ref(L, -2);
    lua_pop(L, 1);
    return number;
}

/* Pushes the handle. False: it is being collected; nothing is pushed. */
static bool push_handle(lua_State *L, const struct memory_handle *handle) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    bool is_there = lua_rawgetp(L, -1, handle) == LUA_TUSERDATA;
    lua_remove(L, is_there ? -2 : -1);
    if (!is_there) {
        lua_pop(L, 1);
    }
    return is_there;
}

/* Pushes what keep has kept. False: the handle is being collected; nothing is pushed. */
static bool push_kept(lua_State *L, const struct memory_handle *handle, int number) {
    if (!push_handle(L, handle)) {
        return false;
    }
    lua_getiuservalue(L, -1, 1);
    lua_rawgeti(L, -1, number);
    lua_replace(L, -3);
    lua_pop(L, 1);
    return true;
}

/* ---- calls back ---- */

/* Called by the runtime in the middle of an allocation: what the function raises waits. */
static bool run_hook(void *user, void *caller, uint64_t byte_count) {
    const struct oom_hook *hook = user;
    struct gpu_lua_call *call = caller;
    lua_State *L = call ? call->L : NULL;
    if (!L || !lua_checkstack(L, 8) || !push_kept(L, hook->handle, hook->function)) {
        return false;
    }
    lua_pushinteger(L, (lua_Integer)byte_count);
    bool has_failed = lua_pcall(L, 1, 1, 0) != LUA_OK;
    bool has_freed = !has_failed && lua_toboolean(L, -1);
    if (has_failed && call->error_ref == LUA_NOREF) {
        call->error_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    } else {
        lua_pop(L, 1);
    }
    return has_freed;
}

/* Called by the runtime from anywhere: only takes note. */
static void note_pressure(void *user, enum gpu_pressure level) {
    struct memory_handle *handle = user;
    handle->level = (uint8_t)level;
    if (handle->pressed_link) {
        return;
    }
    handle->next_pressed = handle->g->pressed;
    handle->pressed_link = &handle->g->pressed;
    if (handle->next_pressed) {
        handle->next_pressed->pressed_link = &handle->next_pressed;
    }
    handle->g->pressed = handle;
}

static void unlink_pressed(struct memory_handle *handle) {
    if (handle->pressed_link) {
        *handle->pressed_link = handle->next_pressed;
        if (handle->next_pressed) {
            handle->next_pressed->pressed_link = handle->pressed_link;
        }
        handle->pressed_link = NULL;
        handle->next_pressed = NULL;
    }
}

void gpu_lua_memory_tell(lua_State *L, struct gpulua *g) {
    luaL_checkstack(L, 8, NULL);
    while (g->pressed) {
        struct memory_handle *handle = g->pressed;
        const char *level = gpu_pressure_name((enum gpu_pressure)handle->level);
        uint64_t limit, remaining = gpu_memory_remaining_bytes(handle->memory, &limit);
        unlink_pressed(handle);
        if (!push_kept(L, handle, 1)) { /* the list of listeners; finalisers may close the rest */
            continue;
        }
        int list = lua_gettop(L);
        lua_Integer count = (lua_Integer)lua_rawlen(L, list);
        for (lua_Integer i = 1; i <= count; i++) {
            lua_rawgeti(L, list, i);
            lua_pushstring(L, level);
            lua_pushinteger(L, (lua_Integer)remaining);
            struct task *task = gpu_lua_task_new(L, g, list + 1, true);
            gpu_lua_task_detach(task);
            gpu_lua_task_ready(g, task);
            lua_settop(L, list);
        }
        lua_settop(L, list - 1);
    }
}

/* The sink may close the memory: that is the end of the lines, too. */
static void drain_log(lua_State *L, struct memory_handle *handle) {
    char line[GPU_LOG_LINE_BYTES_MAX];
    handle->is_draining = true; /* what the sink itself makes or closes is logged, and comes next */
    while (handle->memory && gpu_memory_log_take(handle->memory, line)) {
        if (!push_kept(L, handle, handle->sink)) {
            break;
        }
        lua_pushstring(L, line);
        if (lua_pcall(L, 1, 0, 0) != LUA_OK) {
            lua_pop(L, 1);
            if (handle->memory) {
                gpu_memory_log_drop(handle->memory);
            }
        }
    }
    handle->is_draining = false;
}

void gpu_lua_memory_after(lua_State *L, struct memory_handle *handle, struct gpu_lua_call *call,
                          struct gpu_error *error) {
    int error_ref = call->error_ref;
    luaL_checkstack(L, 9, NULL);
    int top = lua_gettop(L);
    if (handle && !push_handle(L, handle)) { /* the stack keeps it and those below it */
        handle = NULL;
    }
    for (struct memory_handle *at = handle; at; at = at->below) {
        if (at->sink && !at->is_draining && at->memory) {
            drain_log(L, at);
        }
    }
    lua_settop(L, top);
    gpu_lua_memory_tell(L, call->g);
    if (error_ref != LUA_NOREF) {
        if (error) {
            gpu_error_finish(error);
        }
        lua_rawgeti(L, LUA_REGISTRYINDEX, error_ref);
        luaL_unref(L, LUA_REGISTRYINDEX, error_ref);
        lua_error(L);
    }
}

void gpu_lua_memory_freed(lua_State *L, struct gpu_memory *memory) {
    struct gpu_error error;
    gpulua_status status = GPULUA_OK;
    if (gpu_memory_find(memory, GPU_MEMORY_GUARD) &&
        gpu_device_state(gpu_memory_device(memory)) == GPU_DEVICE_OPEN) {
        status = gpu_memory_check(memory, false, &error);
    }
    gpu_memory_release(memory);
    if (status) {
        gpu_lua_throw(L, &error);
    }
}

/* ---- making ---- */

/* Stands the layers on each other; what is half built goes when the handle does. */
static void build(lua_State *L, struct memory_handle *handle, const struct memory_wishes *wishes) {
    struct gpu_error error;
    gpulua_status status = GPULUA_OK;
    if (handle->below) {
        handle->memory = gpu_memory_retain(handle->below->memory);
    } else {
        status =
            gpu_memory_create(handle->device, &(struct gpu_memory_info){.kind = wishes->bottom},
                              &handle->memory, &error);
    }
    for (int i = 0; i < wishes->layer_count && status == GPULUA_OK; i++) {
        struct gpu_memory_info info = wishes->layers[i];
        struct gpu_memory *made = NULL;
        info.upstream = handle->memory;
        info.label = handle->label;
        status = gpu_memory_create(handle->device, &info, &made, &error);
        if (status == GPULUA_OK) {
            gpu_memory_release(handle->memory);
            handle->memory = made;
        }
    }
    if (status) {
        gpu_lua_throw(L, &error);
    }
}

/* dev:memory([options]) -> memory, which buffers can be made of: mem:buffer(...), or the option
 * `memory` of dev:buffer and dev:upload. Options:
 *   from        "slab" (default: the device's own), "driver" (the driver's pool, in the order of
 *               streams), "direct" (synchronous; launches refuse it), or another memory to stand on
 *   oom         when the device has no memory left: "fail", "free" (asks what mem:on_oom has),
 *               "wait" (until others free, at most `timeout` seconds, 1 by default)
 *   guard       true or {canary = bytes (512), quarantine = bytes (16 MiB)}: writes outside of a
 *               buffer and after its end are found
 *   budget      bytes that may be in use at once
 *   statistics  true: mem:stats()
 *   log         true: mem:log() has the lines; or a function that gets them; `log_bytes` (65536)
 *               of lines are kept, further ones only counted
 *   label       text
 * They lie on each other in this order, `log` on top; for another order stand one memory on
 * another. InvalidArgument, Unsupported (the driver has no pool), Capacity. Does not block. */
int gpu_lua_device_memory(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct memory_wishes wishes;
    (void)gpu_lua_check_device(L, g, 1, NULL);
    lua_settop(L, 2);
    gpu_lua_memory_wishes(L, g, &wishes);
    struct memory_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_MEMORY, sizeof *handle, 1);
    int at = lua_gettop(L);
    handle->g = g;
    memcpy(handle->label, wishes.label, sizeof handle->label);
    lua_createtable(L, 4, 0);
    lua_newtable(L); /* 1: the listeners */
    lua_rawseti(L, -2, 1);
    lua_setiuservalue(L, -2, 1);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    lua_pushvalue(L, -2);
    lua_rawsetp(L, -2, handle);
    lua_pop(L, 1);
    if (wishes.below) {
        lua_pushvalue(L, wishes.below);
        (void)keep(L, at);
    }
    if (wishes.sink) {
        lua_pushvalue(L, wishes.sink);
        handle->sink = keep(L, at);
    }
    /* Nothing of the script's runs from here on. */
    handle->device = gpu_device_retain(gpu_lua_check_device(L, g, 1, NULL));
    handle->below = wishes.below ? gpu_lua_check_memory(L, g, wishes.below) : NULL;
    build(L, handle, &wishes);
    handle->is_guarded = gpu_memory_find(handle->memory, GPU_MEMORY_GUARD) != NULL;
    handle->is_logging = gpu_memory_find(handle->memory, GPU_MEMORY_LOGGING) != NULL;
    g->guard_count += handle->is_guarded;
    return 1;
}

/* ---- methods ---- */

static void after(lua_State *L, struct memory_handle *handle) {
    struct gpu_lua_call call = {.L = L, .g = handle->g, .error_ref = LUA_NOREF};
    gpu_lua_memory_after(L, handle, &call, NULL);
}

/* mem:stats() -> counters of its statistics (0 without), and outstanding_bytes, outstanding_count,
 * remaining_bytes, limit_bytes, log_events, log_drops */
static int memory_stats(lua_State *L) {
    struct memory_handle *handle = gpu_lua_check_memory(L, GPU_LUA(L), 1);
    struct gpu_memory_stats stats;
    uint64_t limit, events, drops;
    gpu_memory_stats(handle->memory, &stats);
    gpu_memory_log_counts(handle->memory, &events, &drops);
    uint64_t remaining = gpu_memory_remaining_bytes(handle->memory, &limit);
    uint64_t bytes = gpu_memory_outstanding_bytes(handle->memory);
    uint64_t count = gpu_memory_outstanding_count(handle->memory);
    lua_newtable(L);
#define FIELD(name, value)                                                                         \
    lua_pushinteger(L, (lua_Integer)(value));                                                      \
    lua_setfield(L, -2, name);
#define X(name) FIELD(#name, stats.name)
    GPU_MEMORY_STATS_TABLE(X)
#undef X
    FIELD("remaining_bytes", remaining)
    FIELD("limit_bytes", limit)
    FIELD("outstanding_bytes", bytes)
    FIELD("outstanding_count", count)
    FIELD("log_events", events)
    FIELD("log_drops", drops)
#undef FIELD
    return 1;
}

/* mem:log() -> list of the lines that nobody has had yet: "12 allocate 1024 bytes for allocation 7
 * 'x' at pipeline.lua:3"; a number that is missing is of a line for which there was no room */
static int memory_log(lua_State *L) {
    struct memory_handle *handle = gpu_lua_check_memory(L, GPU_LUA(L), 1);
    char line[GPU_LOG_LINE_BYTES_MAX];
    if (!handle->is_logging) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "log: this memory was not made with log = true");
    }
    lua_newtable(L);
    for (lua_Integer i = 1; handle->memory && gpu_memory_log_take(handle->memory, line); i++) {
        lua_pushstring(L, line);
        lua_rawseti(L, -2, i);
    }
    return 1;
}

/* mem:check() -> mem. Looks at the neighbourhood of every buffer and at all that is in quarantine;
 * raises OutOfBounds or UseAfterFree naming the buffer. Waits (blocking) for the device. */
static int memory_check(lua_State *L) {
    struct memory_handle *handle = gpu_lua_check_memory(L, GPU_LUA(L), 1);
    struct gpu_error error;
    if (!handle->is_guarded) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "check: this memory was not made with guard");
    }
    struct gpu_lua_began began;
    gpu_lua_trace_wait_begins(GPU_LUA(L), NULL, "check", &began);
    gpulua_status status = gpu_memory_check(handle->memory, true, &error);
    gpu_lua_trace_wait_ends(L, GPU_LUA(L), &began);
    if (status) {
        gpu_lua_throw(L, &error);
    }
    lua_settop(L, 1);
    return 1;
}

/* mem:reap() -> bytes that came free: of buffers whose work is over, and out of quarantine */
static int memory_reap(lua_State *L) {
    struct memory_handle *handle = gpu_lua_check_memory(L, GPU_LUA(L), 1);
    lua_pushinteger(L, (lua_Integer)gpu_memory_reap(handle->memory, true));
    after(L, handle);
    return 1;
}

/* mem:on_pressure(f) -> mem. f(level, remaining bytes) runs as a task of its own when the level of
 * the nearest budget changes: "none", "low" (from 50% on), "medium" (70%), "high" (85%), "critical"
 * (95%) */
static int memory_on_pressure(lua_State *L) {
    struct memory_handle *handle = gpu_lua_check_memory(L, GPU_LUA(L), 1);
    lua_settop(L, 2);
    gpu_lua_check_function(L, 2, 1, "on_pressure");
    if (!handle->is_listening) {
        if (!gpu_memory_listen(handle->memory, note_pressure, handle)) {
            gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for a listener");
        }
        handle->is_listening = true;
    }
    lua_getiuservalue(L, 1, 1);
    lua_rawgeti(L, -1, 1);
    lua_pushvalue(L, 2);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    lua_settop(L, 1);
    return 1;
}

/* mem:on_oom(f[, priority]) -> mem. f(bytes) is called when the device has no memory left, in the
 * middle of the allocation: it frees what it can and returns whether it has. Higher priorities
 * first (0 by default), then in the order of the calls. InvalidArgument: not made with
 * oom = "free". */
static int memory_on_oom(lua_State *L) {
    struct memory_handle *handle = gpu_lua_check_memory(L, GPU_LUA(L), 1);
    struct gpu_error error;
    int is_integer = 1;
    lua_settop(L, 3);
    gpu_lua_check_function(L, 2, 1, "on_oom");
    lua_Integer priority = lua_isnil(L, 3) ? 0 : lua_tointegerx(L, 3, &is_integer);
    if (!is_integer) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 2 of on_oom: a priority, a whole number, expected, got %s",
                     gpu_lua_describe(L, 3));
    }
    lua_settop(L, 2);
    int function = keep(L, 1);
    (void)gpu_lua_check_memory(L, handle->g, 1);
    struct oom_hook *hook = calloc(1, sizeof *hook);
    if (!hook) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for a hook");
        return 0;
    }
    hook->next = handle->hooks;
    hook->handle = handle;
    hook->function = function;
    if (gpu_memory_hook_add(handle->memory, priority, run_hook, hook, &error)) {
        free(hook);
        gpu_lua_throw(L, &error);
    }
    handle->hooks = hook;
    lua_settop(L, 1);
    return 1;
}

/* ---- the end, and how it looks ---- */

static void handle_end(struct memory_handle *handle) {
    struct gpu_memory *memory = handle->memory;
    struct gpu_device *device = handle->device;
    unlink_pressed(handle);
    handle->memory = NULL;
    handle->device = NULL;
    if (memory && handle->is_listening) {
        (void)gpu_memory_listen(memory, NULL, handle);
    }
    while (handle->hooks) {
        struct oom_hook *hook = handle->hooks;
        handle->hooks = hook->next;
        gpu_memory_hooks_remove(memory, hook); /* there are none without memory */
        free(hook);
    }
    gpu_memory_release(memory);
    gpu_device_release(device);
}

/* mem:close(): its buffers stay, and what it stands on */
static int memory_close(lua_State *L) {
    handle_end(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_MEMORY));
    return 0;
}

static int memory_gc(lua_State *L) {
    handle_end(lua_touserdata(L, 1));
    return 0;
}

static int memory_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    struct gpulua *g = GPU_LUA(L);
    struct memory_handle *handle = gpu_lua_check_memory(L, g, 1);
    const char *field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (strcmp(field, "kind") == 0) {
        lua_pushstring(L, gpu_memory_kind_name(handle->memory));
    } else if (strcmp(field, "label") == 0) {
        lua_pushstring(L, handle->label);
    } else if (strcmp(field, "device") == 0) {
        gpu_lua_push_device(L, g, handle->device);
    } else if (strcmp(field, "trackable") == 0) {
        lua_pushboolean(L, gpu_memory_is_trackable(handle->memory));
    } else if (strcmp(field, "pressure") == 0) {
        lua_pushstring(L, gpu_pressure_name(gpu_memory_pressure(handle->memory)));
    } else {
        lua_pushnil(L);
    }
    return 1;
}

/* "gpulua.memory logging on budget on slab on cpu (label)" */
static int memory_tostring(lua_State *L) {
    struct memory_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_MEMORY);
    if (!handle->memory) {
        lua_pushliteral(L, "gpulua.memory (closed)");
        return 1;
    }
    luaL_Buffer text;
    luaL_buffinit(L, &text);
    luaL_addstring(&text, "gpulua.memory ");
    for (const struct gpu_memory *at = handle->memory; at; at = gpu_memory_upstream(at)) {
        luaL_addstring(&text, gpu_memory_kind_name(at));
        luaL_addstring(&text, " on ");
    }
    luaL_addstring(&text, gpu_device_name(handle->device));
    if (handle->label[0]) {
        lua_pushfstring(L, " (%s)", handle->label);
        luaL_addvalue(&text);
    }
    luaL_pushresult(&text);
    return 1;
}

void gpu_lua_memory_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"buffer", gpu_lua_memory_buffer},
                                       {"buffers", gpu_lua_memory_buffers},
                                       {"stats", memory_stats},
                                       {"log", memory_log},
                                       {"check", memory_check},
                                       {"reap", memory_reap},
                                       {"on_pressure", memory_on_pressure},
                                       {"on_oom", memory_on_oom},
                                       {"close", memory_close},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", memory_gc},
                                           {"__close", memory_close},
                                           {"__tostring", memory_tostring},
                                           {"__index", memory_index},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_MEMORY, methods, metamethods);
    gpu_lua_memory_room_open(L, g);
    gpu_lua_push_weak(L, &anchors_key, "v");
    lua_pop(L, 1);
}
