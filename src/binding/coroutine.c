/* coroutine.resume, wrap and yield for programs that own their state: they note which coroutine
 * runs, so that an interrupt stops it, and keep a task's body from yielding past the loop. */
#include "binding/core.h"
#include "binding/loop.h"

/* Results or the error are on top of L. -1: failed. */
static int resume(lua_State *L, struct gpulua *g, lua_State *co, int arg_count) {
    int result_count;
    if (!lua_checkstack(co, arg_count)) {
        lua_pushliteral(L, "too many arguments to resume");
        return -1;
    }
    lua_xmove(L, co, arg_count);
    lua_State *outer = gpu_lua_set_innermost(g, co);
    int status = lua_resume(co, L, arg_count, &result_count);
    gpu_lua_set_innermost(g, outer);
    if (outer && atomic_load(&g->interrupt)) {
        /* It came while the inner one ran, which did not get to see it. */
        gpu_lua_interrupt_again(g);
    }
    if (status != LUA_OK && status != LUA_YIELD) {
        lua_xmove(co, L, 1);
        return -1;
    }
    if (!lua_checkstack(L, result_count + 1)) {
        lua_pop(co, result_count);
        lua_pushliteral(L, "too many results to resume");
        return -1;
    }
    lua_xmove(co, L, result_count);
    return result_count;
}

static int coroutine_resume(lua_State *L) {
    lua_State *co = lua_tothread(L, 1);
    luaL_argexpected(L, co, 1, "thread");
    int count = resume(L, GPU_LUA(L), co, lua_gettop(L) - 1);
    lua_pushboolean(L, count >= 0);
    lua_insert(L, count >= 0 ? -(count + 1) : -2);
    return count >= 0 ? count + 1 : 2;
}

static int wrapped(lua_State *L) {
    lua_State *co = lua_tothread(L, lua_upvalueindex(2));
    int count = resume(L, GPU_LUA(L), co, lua_gettop(L));
    if (count >= 0) {
        return count;
    }
    int status = lua_status(co);
    if (status != LUA_OK && status != LUA_YIELD) {
        status = lua_resetthread(co); /* closes what it left open */
        lua_xmove(co, L, 1);
    }
    if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
        luaL_where(L, 1);
        lua_insert(L, -2);
        lua_concat(L, 2);
    }
    return lua_error(L);
}

static int coroutine_wrap(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_State *co = lua_newthread(L);
    lua_pushvalue(L, 1);
    lua_xmove(L, co, 1);
    gpu_lua_push_object(L);
    lua_insert(L, -2);
    lua_pushcclosure(L, wrapped, 2);
    return 1;
}

static int coroutine_yield(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    if (g->running && g->running->co == L) {
        lua_pushliteral(L, "attempt to yield from outside a coroutine");
        return lua_error(L);
    }
    return lua_yield(L, lua_gettop(L));
}

int gpu_lua_adopt_coroutines(lua_State *L) {
    static const luaL_Reg functions[] = {{"resume", coroutine_resume},
                                         {"wrap", coroutine_wrap},
                                         {"yield", coroutine_yield},
                                         {NULL, NULL}};
    if (lua_getglobal(L, "coroutine") == LUA_TTABLE) {
        gpu_lua_set_functions(L, functions);
    }
    return 0;
}
