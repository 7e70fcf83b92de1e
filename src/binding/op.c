/* Ops: pieces of work that a script can wait for. The handle is made before the work is submitted,
 * so that nothing is lost if memory is short. */
#include <string.h>

#include "binding/core.h"
#include "binding/stream.h"

/* What gpu_lua_new does, without looking its metatable up by name. */
struct gpu_op **gpu_lua_op_new(lua_State *L, struct gpulua *g) {
    struct gpu_op **handle = lua_newuserdatauv(L, sizeof *handle, 0);
    *handle = NULL;
    lua_rawgetp(L, LUA_REGISTRYINDEX, g->metatables[GPU_LUA_KIND_OP]);
    lua_setmetatable(L, -2);
    return handle;
}

struct gpu_op *gpu_lua_check_op(lua_State *L, struct gpulua *g, int index) {
    struct gpu_op **handle = gpu_lua_check(L, g, index, GPU_LUA_KIND_OP);
    if (!*handle) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed op");
    }
    return *handle;
}

/* op:elapsed() -> seconds on the device when it was traced, else nil */
static int op_elapsed(lua_State *L) {
    gpu_lua_check_op(L, GPU_LUA(L), 1);
    luaL_pushfail(L);
    return 1;
}

static int op_close(lua_State *L) {
    struct gpu_op **handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_OP);
    struct gpu_op *op = *handle;
    *handle = NULL;
    gpu_op_release(op);
    return 0;
}

static int op_gc(lua_State *L) {
    struct gpu_op **handle = lua_touserdata(L, 1);
    struct gpu_op *op = *handle;
    *handle = NULL;
    gpu_op_release(op);
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
    struct gpu_op **handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_OP);
    if (!*handle) {
        lua_pushliteral(L, "gpulua.op (closed)");
        return 1;
    }
    struct gpu_op_info info;
    gpu_op_info(*handle, &info);
    lua_pushfstring(L, "gpulua.op %s on %s (stream %I, seq %I)", info.label,
                    gpu_device_name(gpu_op_device(*handle)), (LUAI_UACINT)info.stream,
                    (LUAI_UACINT)info.seq);
    return 1;
}

void gpu_lua_op_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"await", gpu_lua_await},
                                       {"join", gpu_lua_join},
                                       {"done", gpu_lua_done},
                                       {"on_done", gpu_lua_on_done},
                                       {"elapsed", op_elapsed},
                                       {"close", op_close},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", op_gc},
                                           {"__close", op_close},
                                           {"__tostring", op_tostring},
                                           {"__index", op_index},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_OP, methods, metamethods);
}
