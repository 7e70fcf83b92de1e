/* Ops: pieces of work that a script can wait for. The handle is made before the work is submitted,
 * so that nothing is lost if memory is short. */
#include <string.h>

#include "binding/core.h"
#include "binding/graph.h"
#include "binding/stream.h"
#include "runtime/flight.h"
#include "runtime/op_ref.h"

/* A handle is a reference to its op. None: closed, or nothing came of it. */
struct gpu_op_ref *gpu_lua_op_place(lua_State *L, const struct gpulua *g) {
    struct gpu_op_ref *handle =
        lua_newuserdatauv(L, sizeof *handle + g->outside_bytes[GPU_LUA_KIND_OP], 0);
    handle->op = NULL;
    handle->origin = NULL;
    return handle;
}

struct gpu_op **gpu_lua_op_new(lua_State *L, struct gpulua *g) {
    struct gpu_op_ref *handle = gpu_lua_op_place(L, g);
    lua_rawgetp(L, LUA_REGISTRYINDEX, g->metatables[GPU_LUA_KIND_OP]);
    lua_setmetatable(L, -2);
    return &handle->op;
}

void gpu_lua_op_loosen(struct gpu_op **op) {
    gpu_op_ref_loosen((struct gpu_op_ref *)(void *)op); /* whose first it is */
}

void gpu_lua_op_captured(lua_State *L, struct gpulua *g, struct gpu_op *op) {
    if (op == g->captured_op) { /* which the handle has a reference of */
        gpu_op_release(op);
        lua_rawgetp(L, LUA_REGISTRYINDEX, &g->captured_op);
        return;
    }
    *gpu_lua_op_new(L, g) = op;
    if (gpu_op_is_captured(op)) {
        lua_pushvalue(L, -1);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &g->captured_op);
        g->captured_op = op;
    }
}

static struct gpu_op *op_of(lua_State *L, struct gpu_op_ref *handle) {
    bool is_short;
    struct gpu_op *op = gpu_op_ref_get(handle, &is_short);
    if (is_short) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for an op");
    }
    return op;
}

struct gpu_op *gpu_lua_op_at(lua_State *L, int index) {
    return op_of(L, lua_touserdata(L, index));
}

bool gpu_lua_op_is_closed(const void *handle) {
    return gpu_op_ref_is_empty(handle);
}

static struct gpu_op_ref *check_handle(lua_State *L, struct gpulua *g, int index) {
    return gpu_lua_check(L, g, index, GPU_LUA_KIND_OP);
}

struct gpu_op *gpu_lua_check_op(lua_State *L, struct gpulua *g, int index) {
    struct gpu_op *op = op_of(L, check_handle(L, g, index));
    if (!op) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed op");
    }
    return op;
}

/* op:elapsed() -> seconds on the device if that is traced and it is over, else nil */
static int op_elapsed(lua_State *L) {
    double elapsed_s = gpu_op_elapsed_s(gpu_lua_check_op(L, GPU_LUA(L), 1));
    if (elapsed_s < 0) {
        luaL_pushfail(L);
    } else {
        lua_pushnumber(L, elapsed_s);
    }
    return 1;
}

/* op:close(): ends the handle, not the operation. That of captured work is not the caller's alone.
 */
static int op_close(lua_State *L) {
    struct gpu_op_ref *handle = check_handle(L, GPU_LUA(L), 1);
    if (!handle->op || !gpu_op_is_captured(handle->op)) {
        gpu_op_ref_drop(handle);
    }
    return 0;
}

static int op_gc(lua_State *L) {
    gpu_op_ref_drop(lua_touserdata(L, 1));
    return 0;
}

/* Upvalues: the object, the methods. */
static int op_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    struct gpu_op *op = gpu_lua_check_op(L, GPU_LUA(L), 1);
    const char *field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    struct gpu_op_info info;
    gpu_op_info(op, &info);
    if (strcmp(field, "label") == 0) {
        lua_pushstring(L, info.label);
    } else if (strcmp(field, "stream") == 0) {
        lua_pushinteger(L, (lua_Integer)info.stream);
    } else if (strcmp(field, "seq") == 0) {
        lua_pushinteger(L, (lua_Integer)info.seq);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static int op_tostring(lua_State *L) {
    struct gpu_op *op = op_of(L, check_handle(L, GPU_LUA(L), 1));
    if (!op) {
        lua_pushliteral(L, "gpulua.op (closed)");
        return 1;
    }
    struct gpu_op_info info;
    gpu_op_info(op, &info);
    lua_pushfstring(L, "gpulua.op %s on %s (stream %I, seq %I)", info.label,
                    gpu_device_name(gpu_op_device(op)), (LUAI_UACINT)info.stream,
                    (LUAI_UACINT)info.seq);
    return 1;
}

/* ---- gpu.why ---- */

static const char *hazard_text(enum gpu_hazard_kind kind) {
    static const char *const texts[] = {
        [GPU_HAZARD_RAW] = "RAW", [GPU_HAZARD_WAW] = "WAW", [GPU_HAZARD_WAR] = "WAR"};
    return texts[kind];
}

/* "RAW on buffer 'x' (allocation 12), bytes 0 to 4095" */
static void push_hazard_text(lua_State *L, const struct gpu_hazard *hazard) {
    if (hazard->is_module) { /* order alone: what is so is known by the label */
        bool is_pool = strcmp(hazard->label, "pool") == 0;
        lua_pushfstring(L, "%s on the %s", hazard_text(hazard->kind),
                        is_pool ? "memory of a pool" : "variables of a module");
        return;
    }
    const char *quote = hazard->label[0] ? "'" : "";
    lua_pushfstring(L, "%s on buffer %s%s%s%s(allocation %I), bytes %I to %I",
                    hazard_text(hazard->kind), quote, hazard->label, quote,
                    hazard->label[0] ? " " : "", (LUAI_UACINT)hazard->block_number,
                    (LUAI_UACINT)hazard->byte_begin, (LUAI_UACINT)hazard->byte_end - 1);
}

static void set_integer(lua_State *L, const char *field, uint64_t value) {
    lua_pushinteger(L, (lua_Integer)value);
    lua_setfield(L, -2, field);
}

static void push_hazard(lua_State *L, const struct gpu_hazard *hazard) {
    lua_createtable(L, 0, 6);
    lua_pushstring(L, hazard_text(hazard->kind));
    lua_setfield(L, -2, "hazard");
    push_hazard_text(L, hazard);
    lua_setfield(L, -2, "message");
    if (!hazard->is_module) {
        lua_pushstring(L, hazard->label);
        lua_setfield(L, -2, "buffer");
        set_integer(L, "allocation", hazard->block_number);
        set_integer(L, "offset", hazard->byte_begin);
        set_integer(L, "length", hazard->byte_end - hazard->byte_begin);
    }
}

static const char *why_not(const struct gpu_why *why) {
    return !why->is_later ? "it was launched first" : "they share no byte that either writes";
}

static struct gpu_op *check_argument(lua_State *L, struct gpulua *g, int index) {
    if (!gpu_lua_test(L, g, index, GPU_LUA_KIND_OP)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "argument %d of why: an op expected, got %s",
                     index, gpu_lua_describe(L, index));
    }
    return gpu_lua_check_op(L, g, index);
}

/* gpu.why(later, earlier) -> what orders one op after another: a list of hazards, each {hazard =
 * "RAW", "WAR" or "WAW", buffer = label, allocation =, offset =, length = (bytes in the
 * allocation), message =}; the list itself has `order` ("stream": both are on one; "fence": the
 * later one's waits), `from` and `to` (numbers of the streams) and `message`. nil and a reason:
 * nothing orders it. Raises InvalidArgument: ops of different devices, or too long ago. Does not
 * block. */
int gpu_lua_why(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_why why;
    struct gpu_error error;
    if (gpu_op_why(check_argument(L, g, 1), check_argument(L, g, 2), &why, &error)) {
        gpu_lua_throw(L, &error);
    }
    if (!why.is_later || (why.hazard_count == 0 && !why.is_same_stream)) {
        lua_pushnil(L);
        lua_pushstring(L, why_not(&why));
        return 2;
    }
    uint32_t count = why.hazard_count < GPU_HAZARDS_MAX ? why.hazard_count : GPU_HAZARDS_MAX;
    lua_createtable(L, (int)count, 4);
    for (uint32_t i = 0; i < count; i++) {
        push_hazard(L, &why.hazards[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_pushstring(L, why.is_same_stream ? "stream" : "fence");
    lua_setfield(L, -2, "order");
    set_integer(L, "from", why.stream_earlier);
    set_integer(L, "to", why.stream_later);
    if (why.is_same_stream) {
        lua_pushfstring(L, "both are on stream %I", (LUAI_UACINT)why.stream_later);
    } else {
        lua_pushfstring(L, "stream %I waits for stream %I", (LUAI_UACINT)why.stream_later,
                        (LUAI_UACINT)why.stream_earlier);
    }
    for (uint32_t i = 0; i < count; i++) {
        lua_pushstring(L, i == 0 ? ": " : ", ");
        push_hazard_text(L, &why.hazards[i]);
        lua_concat(L, 3);
    }
    if (why.hazard_count > count) {
        lua_pushfstring(L, ", and %I more", (LUAI_UACINT)(why.hazard_count - count));
        lua_concat(L, 2);
    }
    lua_setfield(L, -2, "message");
    return 1;
}

/* op:deadline(seconds) -> op. If it is not over by then the device is lost, and DeviceLost names
 * it: a kernel that does not end cannot be stopped by less. In a process of its own the device
 * comes up again; in this one the kernel goes on, and closing the device waits for it. Once more:
 * from now on. CaptureActive. Does not block. */
static int op_deadline(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_op *op = gpu_lua_check_op(L, g, 1);
    struct gpu_error error;
    gpu_lua_check_eager(L, g, gpu_op_device(op), "deadline");
    double seconds = lua_type(L, 2) == LUA_TNUMBER ? lua_tonumber(L, 2) : -1;
    if (!(seconds >= 0 && seconds <= 1e9)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of deadline: seconds, a number from 0 to 1e9, expected, got %s",
                     lua_type(L, 2) == LUA_TNUMBER ? luaL_tolstring(L, 2, NULL)
                                                   : gpu_lua_describe(L, 2));
    }
    if (gpu_op_set_deadline(op, seconds, &error)) {
        gpu_lua_throw(L, &error);
    }
    lua_settop(L, 1);
    return 1;
}

void gpu_lua_op_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"await", gpu_lua_await}, {"join", gpu_lua_join},
                                       {"done", gpu_lua_done},   {"on_done", gpu_lua_on_done},
                                       {"elapsed", op_elapsed},  {"deadline", op_deadline},
                                       {"close", op_close},      {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", op_gc},
                                           {"__close", op_close},
                                           {"__tostring", op_tostring},
                                           {"__index", op_index},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_OP, methods, metamethods);
}
