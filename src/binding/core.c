/* The module table, and what all kinds of handles have in common. */
#include "binding/core.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "binding/buffer.h"
#include "binding/caller.h"
#include "binding/check.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/hooks.h"
#include "binding/kernel.h"
#include "binding/loop.h"
#include "binding/memory.h"
#include "binding/recovery.h"
#include "binding/stream.h"
#include "binding/trace.h"

static const char core_key; /* registry: the module table */

/* ---- kinds ---- */

const char *gpu_lua_kind_name(enum gpu_lua_kind kind) {
    static const char *const names[] = {
#define X(name, text) text,
        GPU_LUA_KIND_TABLE(X)
#undef X
    };
    return names[kind];
}

/* As the registry and __name have it. */
static const char *type_name(enum gpu_lua_kind kind) {
    static const char *const names[] = {
#define X(name, text) "gpulua." text,
        GPU_LUA_KIND_TABLE(X)
#undef X
    };
    return names[kind];
}

void gpu_lua_push_weak(lua_State *L, const void *key, const char *mode) {
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, key) == LUA_TTABLE) {
        return;
    }
    lua_pop(L, 1);
    lua_newtable(L);
    lua_createtable(L, 0, 1);
    lua_pushstring(L, mode);
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

void gpu_lua_push_function(lua_State *L, lua_CFunction function) {
    gpu_lua_push_object(L);
    lua_pushcclosure(L, function, 1);
}

void gpu_lua_set_functions(lua_State *L, const luaL_Reg *functions) {
    gpu_lua_push_object(L);
    luaL_setfuncs(L, functions, 1);
}

/* core.hold_calls(): for the interpreter, whose thread is nobody else's: see gpu_device_hold_calls.
 */
static int hold_calls(lua_State *L) {
    (void)L;
    gpu_device_hold_calls(true);
    return 0;
}

/* ---- functions of ours that are written in Lua, for scripts ---- */

static int entry_end(lua_State *L, int status, lua_KContext context) {
    (void)status;
    (void)context;
    return lua_gettop(L);
}

static int entry_call(lua_State *L) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_callk(L, lua_gettop(L) - 1, LUA_MULTRET, 0, entry_end);
    return entry_end(L, LUA_OK, 0);
}

/* core.entry(f) -> a function of C's that calls f; f itself, if it is C's. See entries.lua. */
static int core_entry(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    if (!lua_iscfunction(L, 1)) {
        lua_pushcclosure(L, entry_call, 1);
    }
    return 1;
}

/* ---- what is written first with values that lie on the device ---- */

static const struct {
    enum gpu_lua_kind kind;
    const char *message, *hint;
} computed[] = {
    {GPU_LUA_KIND_BUFFER,
     "a buffer's elements lie on the device, where Lua cannot compute with them",
     "gpu.map(\"x + 1\", { x = buffer }) does so there; buffer:read() brings them"},
    {GPU_LUA_KIND_SCALAR, "a scalar lies on the device, where Lua cannot compute with it",
     "scalar:get() waits for its value; kernels and gpu.map take it as it is"},
};

/* Upvalues: the object, the place in `computed`, the event. Another value may know what to do. */
static int compute(lua_State *L) {
    lua_Integer at = lua_tointeger(L, lua_upvalueindex(2));
    const char *event = lua_tostring(L, lua_upvalueindex(3));
    for (int other = 2; other > 0; other--) {
        if (luaL_getmetafield(L, other, event) != LUA_TNIL && lua_tocfunction(L, -1) != compute) {
            lua_insert(L, 1);
            lua_call(L, 2, 1);
            return 1;
        }
    }
    gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT, computed[at].hint, "%s", computed[at].message);
}

/* Into the metatable on top. */
static void refuse_to_compute(lua_State *L, enum gpu_lua_kind kind) {
    static const char *const events[] = {"__add", "__sub", "__mul", "__div", "__idiv",  "__mod",
                                         "__pow", "__unm", "__lt",  "__le",  "__concat"};
    for (size_t at = 0; at < sizeof computed / sizeof *computed; at++) {
        for (size_t i = 0; computed[at].kind == kind && i < sizeof events / sizeof *events; i++) {
            gpu_lua_push_object(L);
            lua_pushinteger(L, (lua_Integer)at);
            lua_pushstring(L, events[i]);
            lua_pushcclosure(L, compute, 3);
            lua_setfield(L, -2, events[i]);
        }
    }
}

/* ---- kinds ---- */

/* Upvalues: the object, the kind's name. */
static int refuse_field(lua_State *L) {
    const char *kind = lua_tostring(L, lua_upvalueindex(2));
    gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT, "keep it in a variable or table of the script's",
                      "the fields of %s %s cannot be set: %s",
                      strchr("aeiou", kind[0]) ? "an" : "a", kind,
                      lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : luaL_typename(L, 2));
}

void gpu_lua_kind_new(lua_State *L, struct gpulua *g, enum gpu_lua_kind kind,
                      const luaL_Reg *methods, const luaL_Reg *metamethods) {
    if (luaL_newmetatable(L, type_name(kind))) {
        refuse_to_compute(L, kind);
        gpu_lua_push_object(L);
        lua_pushstring(L, gpu_lua_kind_name(kind));
        lua_pushcclosure(L, refuse_field, 2);
        lua_setfield(L, -2, "__newindex");
        if (metamethods) {
            gpu_lua_set_functions(L, metamethods);
        }
        if (methods) {
            lua_newtable(L);
            gpu_lua_set_functions(L, methods);
            /* Tracebacks name functions that they find there, also where pcall is who calls. */
            luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
            lua_pushvalue(L, -2);
            lua_setfield(L, -2, type_name(kind));
            lua_pop(L, 1);
            if (lua_getfield(L, -2, "__index") == LUA_TNIL) {
                lua_pop(L, 1);
                lua_setfield(L, -2, "__index");
            } else {
                /* A function: it has the object and the methods as upvalues. */
                lua_pop(L, 1);
                lua_pushvalue(L, -1);
                lua_setfield(L, -3, "methods");
                lua_CFunction index = NULL;
                for (const luaL_Reg *entry = metamethods; entry && entry->name; entry++) {
                    index = strcmp(entry->name, "__index") == 0 ? entry->func : index;
                }
                gpu_lua_push_object(L);
                lua_insert(L, -2);
                lua_pushcclosure(L, index, 2);
                lua_setfield(L, -2, "__index");
            }
        }
    }
    /* Scripts do not get it: its finaliser trusts its argument. */
    lua_pushstring(L, type_name(kind));
    lua_setfield(L, -2, "__metatable");
    g->metatables[kind] = lua_topointer(L, -1);
    if (g->metatable_refs[kind] == 0) {
        lua_pushvalue(L, -1);
        g->metatable_refs[kind] = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    if (kind == GPU_LUA_KIND_BUFFER && g->closed_buffers_ref == 0) {
        lua_newtable(L);
        for (lua_pushnil(L); lua_next(L, -3);) {
            lua_pushvalue(L, -2);
            lua_insert(L, -2); /* the copy, key, key, value */
            lua_rawset(L, -4);
        }
        lua_pushnil(L);
        lua_setfield(L, -2, "__gc");
        g->closed_buffers = lua_topointer(L, -1);
        g->closed_buffers_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    lua_rawsetp(L, LUA_REGISTRYINDEX, g->metatables[kind]);
}

void gpu_lua_kind_set_method(lua_State *L, const struct gpulua *g, enum gpu_lua_kind kind,
                             const char *name) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, g->metatables[kind]);
    lua_getfield(L, -1, "__index");
    lua_pushvalue(L, -3);
    lua_setfield(L, -2, name);
    lua_pop(L, 3);
}

void gpu_lua_buffer_unfinalize(lua_State *L, struct gpulua *g, int index) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, g->closed_buffers_ref);
    lua_setmetatable(L, index);
}

/* Rounded measurements: a buffer and who uses its ranges, a pool, an operation. Of other kinds
 * there are few, or all is in the heap. */
void gpu_lua_count_outside(struct gpulua *g) {
    g->outside_bytes[GPU_LUA_KIND_BUFFER] = 1024;
    g->outside_bytes[GPU_LUA_KIND_SCALAR] = 1536;
    g->outside_bytes[GPU_LUA_KIND_POOL] = 640;
    g->outside_bytes[GPU_LUA_KIND_OP] = 320;
}

void *gpu_lua_new(lua_State *L, struct gpulua *g, enum gpu_lua_kind kind, size_t bytes,
                  int user_values) {
    if (bytes == 2 * sizeof(void *) && user_values == 0) {
        bytes += sizeof(void *); /* no box of a luaL_Buffer, which host/heap.c knows by its size */
    }
    void *handle = lua_newuserdatauv(L, bytes + g->outside_bytes[kind], user_values);
    memset(handle, 0, bytes);
    lua_rawgeti(L, LUA_REGISTRYINDEX, g->metatable_refs[kind]);
    lua_setmetatable(L, -2);
    if (gpu_lua_kind_is_tagged(kind)) {
        ((struct tagged *)handle)->metatable = g->metatables[kind];
    }
    return handle;
}

void *gpu_lua_test(lua_State *L, const struct gpulua *g, int index, enum gpu_lua_kind kind) {
    void *handle = lua_touserdata(L, index);
    if (!handle) {
        return NULL;
    }
    if (gpu_lua_kind_is_tagged(kind) &&
        lua_rawlen(L, index) >= sizeof(struct tagged) && /* 0: a light one */
        ((const struct tagged *)handle)->metatable == g->metatables[kind]) {
        return handle;
    }
    if (!lua_getmetatable(L, index)) {
        return NULL;
    }
    const void *metatable = lua_topointer(L, -1);
    bool is = metatable == g->metatables[kind] ||
              (kind == GPU_LUA_KIND_BUFFER && metatable == g->closed_buffers);
    lua_pop(L, 1);
    return is ? handle : NULL;
}

static bool is_module(lua_State *L, int index) {
    index = lua_absindex(L, index);
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    lua_getfield(L, -1, "gpulua");
    bool is = lua_rawequal(L, index, -1);
    lua_pop(L, 2);
    return is;
}

const char *gpu_lua_describe(lua_State *L, int index) {
    if (luaL_getmetafield(L, index, "__name") == LUA_TSTRING) {
        return lua_tostring(L, -1);
    }
    if (lua_istable(L, index) && is_module(L, index)) {
        return "gpulua itself, whose functions are called with a dot, not a colon";
    }
    if (lua_type(L, index) == LUA_TNUMBER) {
        lua_pushvalue(L, index);
        return lua_pushfstring(L, "number %s", lua_tostring(L, -1));
    }
    return lua_isnone(L, index) ? "nothing" : luaL_typename(L, index);
}

static bool is_entry(lua_State *L, lua_Debug *ar) {
    lua_getinfo(L, "f", ar);
    bool is = lua_tocfunction(L, -1) == entry_call;
    lua_pop(L, 1);
    return is;
}

/* What was called by the script: this function, or the one of ours that has come to it. */
static bool find_called(lua_State *L, lua_Debug *ar) {
    lua_Debug caller;
    int level = 0;
    while (lua_getstack(L, level + 1, &caller) && lua_getinfo(L, "S", &caller) &&
           (gpu_lua_is_ours(&caller) || is_entry(L, &caller))) {
        level++;
    }
    return lua_getstack(L, level, ar) && lua_getinfo(L, "n", ar) && ar->name && ar->name[0] != '?';
}

_Noreturn void gpu_lua_bad_self(lua_State *L, const char *kind, const char *wanted) {
    lua_Debug ar;
    char hint[96];
    bool has_name = find_called(L, &ar);
    bool is_method = has_name && strcmp(ar.namewhat, "method") == 0;
    const char *name = has_name ? ar.name : "a method";
    const char *got = gpu_lua_describe(L, 1);
    snprintf(hint, sizeof hint, "methods are called with a colon: %s:%.32s(...)", kind,
             has_name ? name : "name");
    gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT, is_method ? "check what it is called on" : hint,
                      "what %s is called on: %s expected, got %s", name, wanted, got);
}

void gpu_lua_check_function(lua_State *L, int index, int number, const char *what) {
    if (lua_type(L, index) == LUA_TFUNCTION) {
        return;
    }
    if (luaL_getmetafield(L, index, "__call") != LUA_TNIL) {
        lua_pop(L, 1);
        return;
    }
    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "argument %d of %s: a function expected, got %s",
                 number, what, lua_isnone(L, index) ? "no value" : gpu_lua_describe(L, index));
}

void gpu_lua_check_count(lua_State *L, int most, const char *what, const char *hint) {
    for (int i = most + 2; i <= lua_gettop(L); i++) {
        if (!lua_isnil(L, i) && lua_type(L, i) != LUA_TUSERDATA) {
            gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT, hint,
                              "argument %d of %s: it takes %d, got %s", i - 1, what, most,
                              gpu_lua_describe(L, i));
        }
    }
}

void *gpu_lua_check(lua_State *L, const struct gpulua *g, int index, enum gpu_lua_kind kind) {
    void *handle = gpu_lua_test(L, g, index, kind);
    if (!handle && index == 1) {
        gpu_lua_bad_self(L, gpu_lua_kind_name(kind), type_name(kind));
    }
    if (!handle) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "argument %d: %s expected, got %s", index - 1,
                     type_name(kind), gpu_lua_describe(L, index));
    }
    return handle;
}

/* ---- small things ---- */

int64_t gpu_lua_opt_deadline(lua_State *L, int index, int number, const char *what) {
    return lua_isnoneornil(L, index) ? INT64_MAX : gpu_lua_check_deadline(L, index, number, what);
}

int64_t gpu_lua_check_deadline(lua_State *L, int index, int number, const char *what) {
    int is_number = lua_type(L, index) == LUA_TNUMBER;
    double seconds = is_number ? lua_tonumber(L, index) : NAN;
    if (isnan(seconds) || seconds < 0) {
        const char *got = isnan(seconds) ? "nan" : "";
        if (!is_number) {
            got = gpu_lua_describe(L, index);
        } else if (!isnan(seconds)) {
            lua_pushvalue(L, index);
            got = lua_tostring(L, -1);
        }
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument %d of %s: seconds, a number from 0 on, expected, got %s", number,
                     what, got);
    }
    if (seconds > 4e9) {
        return INT64_MAX;
    }
    return gpu_lua_now_ns() + (int64_t)(seconds * 1e9);
}

void gpu_lua_keep_option(lua_State *L, int index, const char *field) {
    if (lua_getmetatable(L, index)) {
        lua_pop(L, 1);
        lua_pushfstring(L, "gpulua.option.%s", field);
        lua_insert(L, -2);
        lua_rawset(L, LUA_REGISTRYINDEX);
    } else {
        lua_pop(L, 1);
    }
}

const char *gpu_lua_text(lua_State *L, int index, const char *field, const char *what) {
    size_t length;
    const char *text = lua_tolstring(L, index, &length);
    if (text && strlen(text) != length) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s of %s: a zero byte in it", field, what);
    }
    return text;
}

const char *gpu_lua_push_field_string(lua_State *L, int index, const char *field,
                                      const char *what) {
    if (!lua_istable(L, index)) {
        lua_pushnil(L);
        return NULL;
    }
    int type = lua_getfield(L, index, field);
    if (type != LUA_TNIL && type != LUA_TSTRING) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s of %s: a string expected, got %s", field, what,
                     luaL_typename(L, -1));
    }
    return gpu_lua_text(L, -1, field, what);
}

const char *gpu_lua_field_string(lua_State *L, int index, const char *field, const char *what) {
    if (!lua_istable(L, index)) {
        return NULL;
    }
    const char *text = gpu_lua_push_field_string(L, index, field, what);
    gpu_lua_keep_option(L, index, field);
    return text;
}

int64_t gpu_lua_field_integer(lua_State *L, int index, const char *field, const char *what,
                              int64_t fallback, int64_t min, int64_t max) {
    if (!lua_istable(L, index)) {
        return fallback;
    }
    int is_integer = 1;
    int64_t value = fallback;
    if (lua_getfield(L, index, field) != LUA_TNIL) {
        value = lua_type(L, -1) == LUA_TNUMBER ? lua_tointegerx(L, -1, &is_integer) : 0;
        is_integer = is_integer && lua_type(L, -1) == LUA_TNUMBER;
        if (!is_integer || value < min || value > max) {
            const char *got =
                lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1) : luaL_typename(L, -1);
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "%s of %s: a whole number from %lld to %lld expected, got %s", field, what,
                         (long long)min, (long long)max, got);
        }
    }
    lua_pop(L, 1);
    return value;
}

/* The key is on top. */
static _Noreturn void bad_option(lua_State *L, const char *key, const char *const *names,
                                 const char *what) {
    const char *type = luaL_typename(L, -1);
    luaL_Buffer known;
    luaL_buffinit(L, &known);
    for (const char *const *name = names; *name; name++) {
        luaL_addstring(&known, name == names ? "" : ", ");
        luaL_addstring(&known, *name);
    }
    luaL_pushresult(&known);
    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s: there is no option %s%s%s; there are: %s", what,
                 key ? "'" : "of type ", key ? key : type, key ? "'" : "", lua_tostring(L, -1));
}

void gpu_lua_check_options(lua_State *L, int index, const char *const *names, const char *what) {
    if (lua_isnoneornil(L, index)) {
        return;
    }
    if (!lua_istable(L, index)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "options of %s: a table expected, got %s", what,
                     gpu_lua_describe(L, index));
    }
    lua_pushnil(L);
    while (lua_next(L, index)) {
        lua_pop(L, 1);
        const char *key = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
        bool is_known = false;
        for (const char *const *name = names; key && *name && !is_known; name++) {
            is_known = strcmp(*name, key) == 0;
        }
        if (!is_known) {
            bad_option(L, key, names, what);
        }
    }
}

bool gpu_lua_handle_is_closed(enum gpu_lua_kind kind, const void *handle) {
    switch (kind) {
    case GPU_LUA_KIND_DEVICE:
        return !((const struct device_handle *)handle)->device;
    case GPU_LUA_KIND_BUFFER:
    case GPU_LUA_KIND_HOST:
        return !((const struct buffer *)handle)->ref.block;
    case GPU_LUA_KIND_MODULE:
        return !((const struct module_handle *)handle)->module;
    case GPU_LUA_KIND_KERNEL:
        return !((const struct kernel_handle *)handle)->kernel;
    case GPU_LUA_KIND_STREAM:
        return !((const struct stream_handle *)handle)->stream;
    case GPU_LUA_KIND_RECORDER:
        return gpu_lua_recorder_is_closed(handle);
    case GPU_LUA_KIND_CAPTURE:
    case GPU_LUA_KIND_GRAPH:
    case GPU_LUA_KIND_POOL:
        return gpu_lua_graph_is_closed(kind, handle);
    case GPU_LUA_KIND_SCALAR:
        return gpu_lua_scalar_is_closed(handle);
    case GPU_LUA_KIND_MEMORY:
        return !((const struct memory_handle *)handle)->memory;
    case GPU_LUA_KIND_OP:
        return gpu_lua_op_is_closed(handle);
    default:
        return false; /* a task has nothing to close */
    }
}

/* ---- the module ---- */

/* gpu.type(value): "buffer", "closed buffer", or nil; like io.type */
static int core_type(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    if (lua_isnone(L, 1)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of type: a value expected, got nothing");
    }
    if (gpu_lua_error_code(L, g, 1) != GPULUA_OK) {
        lua_pushliteral(L, "error");
        return 1;
    }
    for (int kind = 0; kind <= GPU_LUA_KIND_TASK; kind++) {
        void *handle = gpu_lua_test(L, g, 1, (enum gpu_lua_kind)kind);
        if (handle) {
            bool is_closed = gpu_lua_handle_is_closed((enum gpu_lua_kind)kind, handle);
            lua_pushfstring(L, "%s%s", is_closed ? "closed " : "",
                            gpu_lua_kind_name((enum gpu_lua_kind)kind));
            return 1;
        }
    }
    luaL_pushfail(L);
    return 1;
}

static void check_outside(lua_State *L, const struct gpulua *g, const char *what) {
    if (g->running || g->turn_depth > 0) {
        gpu_lua_fail(L, GPULUA_STREAM_MISUSE, "%s cannot be called from a task: the loop runs",
                     what);
    }
}

/* gpu.step([seconds]) -> tasks left; without seconds it does not wait */
static int core_step(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int64_t deadline_ns = lua_isnoneornil(L, 1) ? 0 : gpu_lua_check_deadline(L, 1, 1, "step");
    check_outside(L, g, "step");
    gpu_lua_check_interrupt(L, g);
    if (!gpu_lua_turn(g, L, deadline_ns, true)) {
        gpu_lua_unstick(g);
    }
    gpu_lua_arm(g);
    lua_pushinteger(L, g->task_count);
    return 1;
}

/* gpu.pollfd() -> a descriptor that is readable when gpu.step has something to do */
static int core_pollfd(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_arm(g);
    lua_pushinteger(L, g->epoll_fd);
    return 1;
}

/* gpu.timeout_hint() -> seconds until step wants to be called, or nil: only when pollfd says so */
static int core_timeout_hint(lua_State *L) {
    int64_t left_ns = gpu_lua_hint_ns(GPU_LUA(L));
    if (left_ns < 0) {
        luaL_pushfail(L);
    } else {
        lua_pushnumber(L, (lua_Number)left_ns / 1e9);
    }
    return 1;
}

/* core.task_count() -> how many have not ended */
static int core_task_count(lua_State *L) {
    lua_pushinteger(L, GPU_LUA(L)->task_count);
    return 1;
}

/* core.end_hook(): the program is about to exit, and if a hook does that, nothing comes back to it.
 * From here on what it may not do can be done, and no hook is called. */
static int core_end_hook(lua_State *L) {
    struct gpulua *g = gpu_lua_find(L);
    g->ends_in_hook = g->ends_in_hook || g->is_in_hook;
    g->is_in_hook = false;
    return 0;
}

/* core.shutdown([report]): ends tasks and devices; the state goes on. For programs about to exit.
 * `report` is called between the two, when nothing of the tasks holds a buffer any more. */
static int core_shutdown(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_settop(L, 1);
    gpu_lua_guest_run(g);
    gpu_lua_shut(g, L, true, lua_isfunction(L, 1) ? 1 : 0);
    return 0;
}

void gpu_lua_core_push(lua_State *L, struct gpulua *g) {
    static const luaL_Reg functions[] = {{"spawn", gpu_lua_spawn},
                                         {"spawn_run", gpu_lua_spawn_run},
                                         {"spawn_root", gpu_lua_spawn_root},
                                         {"spawn_typed", gpu_lua_spawn_typed},
                                         {"spawn_timed", gpu_lua_spawn_timed},
                                         {"hold", gpu_lua_hold},
                                         {"release", gpu_lua_release},
                                         {"guest", gpu_lua_guest},
                                         {"check_waits", gpu_lua_check_waits_here},
                                         {"place", gpu_lua_place},
                                         {"tasks", gpu_lua_tasks},
                                         {"task_count", core_task_count},
                                         {"task_seed", gpu_lua_check_task_seed},
                                         {"check_picks", gpu_lua_check_picks_tasks},
                                         {"is_within", gpu_lua_is_within},
                                         {"in_flight", gpu_lua_in_flight},
                                         {"raise_unseen", gpu_lua_raise_unseen},
                                         {"streams", gpu_lua_streams},
                                         {"all", gpu_lua_all},
                                         {"any", gpu_lua_any},
                                         {"sleep", gpu_lua_sleep},
                                         {"readable", gpu_lua_readable},
                                         {"why", gpu_lua_why},
                                         {"step", core_step},
                                         {"pollfd", core_pollfd},
                                         {"timeout_hint", core_timeout_hint},
                                         {"type", core_type},
                                         {"raise", gpu_lua_error_raise},
                                         {"entry", core_entry},
                                         {"device", gpu_lua_device_get},
                                         {"devices", gpu_lua_device_list},
                                         {"unclosed_devices", gpu_lua_unclosed_devices},
                                         {"told", gpu_lua_told},
                                         {"captures_end", gpu_lua_captures_end},
                                         {"end_hook", core_end_hook},
                                         {"shutdown", core_shutdown},
                                         {"describe", gpu_lua_device_describe},
                                         {"pool", gpu_lua_pool_find},
                                         {"control_check", gpu_lua_control_check},
                                         {"control_begin", gpu_lua_control_begin},
                                         {"control_add", gpu_lua_control_add},
                                         {"capture_begin", gpu_lua_capture_begin},
                                         {"capture_again", gpu_lua_capture_again},
                                         {"capture_update", gpu_lua_capture_update},
                                         {"graphed_update", gpu_lua_graphed_update},
                                         {"node_text", gpu_lua_node_text},
                                         {"capture_active", gpu_lua_capture_active},
                                         {"graphed_caller", gpu_lua_graphed_caller},
                                         {"graphed_state", gpu_lua_graphed_state},
                                         {"graphed_keep", gpu_lua_graphed_keep},
                                         {"graphed_replays", gpu_lua_graphed_replays},
                                         {"graphed_body", gpu_lua_graphed_body},
                                         {"graphed_difference", gpu_lua_graphed_difference},
                                         {"graphed_results", gpu_lua_graphed_results},
                                         {"graphed_give_out", gpu_lua_graphed_give_out},
                                         {"overlap", gpu_lua_overlap},
                                         {"map_kind", gpu_lua_map_kind},
                                         {"map_fits", gpu_lua_map_fits},
                                         {"library", gpu_lua_device_library},
                                         {"library_value", gpu_lua_library_value},
                                         {"dims", gpu_lua_dims},
                                         {"stream_number", gpu_lua_stream_number},
                                         {"scalar_of", gpu_lua_scalar_of},
                                         {"capture_enter", gpu_lua_capture_enter},
                                         {"capture_spawn", gpu_lua_capture_spawn},
                                         {"adopt_coroutines", gpu_lua_adopt_coroutines},
                                         {"hold_calls", hold_calls},
                                         {"device_events", gpu_lua_device_events},
                                         {"inject_slow", gpu_lua_inject_slow},
                                         {"device_return", gpu_lua_device_return},
                                         {"check_meet", gpu_lua_check_meet},
                                         {"rebuilds", gpu_lua_rebuilds},
                                         {"rebuilds_kept", gpu_lua_rebuilds_kept},
                                         {"keep_version", gpu_lua_keep_version},
                                         {"keep", gpu_lua_keep},
                                         {"flight_path", gpu_lua_flight_path},
                                         {"flight_files", gpu_lua_flight_files},
                                         {"log", gpu_lua_log},
                                         {"memory_map", gpu_lua_memory_map},
                                         {"terminal", gpu_lua_terminal},
                                         {"line_is_open", gpu_lua_line_is_open},
                                         {"seconds", gpu_lua_seconds},
                                         {"shown", gpu_lua_shown},
                                         {"fitting", gpu_lua_fitting},
                                         {"kernel_arguments", gpu_lua_kernel_arguments},
                                         {"ranges_are_on", gpu_lua_ranges_are_on},
                                         {"range_start", gpu_lua_range_start},
                                         {"range_end", gpu_lua_range_end},
                                         {"hooks_handler", gpu_lua_hooks_handler},
                                         {"hooks_set", gpu_lua_hooks_set},
                                         {"trace_info", gpu_lua_trace_info},
                                         {"trace_op", gpu_lua_trace_op},
                                         {"trace_waits", gpu_lua_trace_waits},
                                         {"trace_nodes", gpu_lua_trace_nodes},
                                         {"missed_wakes", gpu_lua_missed_wakes},
                                         {"trace_uses", gpu_lua_trace_uses},
                                         {"trace_arguments", gpu_lua_trace_arguments},
                                         {"trace_span", gpu_lua_trace_span},
                                         {"trace_range", gpu_lua_trace_range},
                                         {"trace_range_end", gpu_lua_trace_range_end},
                                         {"trace_settle", gpu_lua_trace_settle},
                                         {NULL, NULL}};
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &core_key) == LUA_TTABLE) {
        return;
    }
    lua_pop(L, 1);
    gpu_lua_error_open(L, g);
    gpu_lua_caller_open(L, g);
    gpu_lua_group_open(L, g);
    gpu_lua_task_open(L, g);
    gpu_lua_op_open(L, g);
    gpu_lua_stream_open(L, g);
    gpu_lua_device_open(L, g);
    gpu_lua_buffer_open(L, g);
    gpu_lua_host_open(L, g);
    gpu_lua_memory_open(L, g);
    gpu_lua_transfer_open(L, g);
    gpu_lua_module_open(L, g);
    gpu_lua_kernel_open(L, g);
    gpu_lua_recorder_open(L, g);
    gpu_lua_graph_open(L, g);
    gpu_lua_scalar_open(L, g);
    lua_newtable(L);
    gpu_lua_set_functions(L, functions);
    lua_pushstring(L, gpulua_version());
    lua_setfield(L, -2, "version");
    lua_pushboolean(L, g->config.sandbox);
    lua_setfield(L, -2, "is_sandbox");
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &core_key);
}
