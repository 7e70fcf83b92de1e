/* coroutine.create, resume, wrap, close and yield for programs that own their state: they note
 * which coroutine runs, so that an interrupt stops it, and keep a task's body from yielding past
 * the loop. */
#include "binding/core.h"
#include "binding/loop.h"

/* Where time is limited a coroutine's body is called by `guarded`. An error that a hook raises
 * would end the coroutine while hooks are off in it, and they stay off there: so what closes its
 * variables afterwards could never be stopped. Behind a protected call hooks are on again. */
static int guarded_ended(lua_State *L, int status, lua_KContext context) {
    (void)context;
    return status == LUA_OK || status == LUA_YIELD ? lua_gettop(L) : lua_error(L);
}

/* Upvalue: the body. */
static int guarded(lua_State *L) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    int status = lua_pcallk(L, lua_gettop(L) - 1, LUA_MULTRET, 0, 0, guarded_ended);
    return guarded_ended(L, status, 0);
}

/* Pushes the coroutine of the function at 1. */
static void create(lua_State *L, const struct gpulua *g) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_State *co = lua_newthread(L);
    lua_pushvalue(L, 1);
    if (g->limits) {
        lua_pushcclosure(L, guarded, 1);
    }
    lua_xmove(L, co, 1);
}

/* Results or the error are on top of L. -1: failed. */
static int resume(lua_State *L, struct gpulua *g, lua_State *co, int arg_count) {
    int result_count;
    gpu_lua_check_interrupt(L, g); /* the inner one would not get to see it */
    if (!lua_checkstack(co, arg_count)) {
        lua_pushliteral(L, "too many arguments to resume");
        return -1;
    }
    lua_xmove(L, co, arg_count);
    lua_State *outer = gpu_lua_set_innermost(g, co);
    int status = lua_resume(co, L, arg_count, &result_count);
    gpu_lua_set_innermost(g, outer);
    if (outer && atomic_load(&g->interrupt)) {
        gpu_lua_interrupt_again(g); /* it came while the inner one ran, which did not see it */
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

/* What the coroutine has left open is closed; an interrupt stops that, too. */
static int reset(struct gpulua *g, lua_State *co) {
    lua_State *outer = gpu_lua_set_innermost(g, co);
    int status = lua_resetthread(co);
    gpu_lua_set_innermost(g, outer);
    if (outer && atomic_load(&g->interrupt)) {
        gpu_lua_interrupt_again(g);
    }
    return status;
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
    struct gpulua *g = GPU_LUA(L);
    int count = resume(L, g, co, lua_gettop(L));
    if (count >= 0) {
        return count;
    }
    int status = lua_status(co);
    if (status != LUA_OK && status != LUA_YIELD) {
        status = reset(g, co);
        lua_xmove(co, L, 1);
    }
    if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
        luaL_where(L, 1);
        lua_insert(L, -2);
        lua_concat(L, 2);
    }
    return lua_error(L);
}

static int coroutine_create(lua_State *L) {
    create(L, GPU_LUA(L));
    return 1;
}

static int coroutine_wrap(lua_State *L) {
    create(L, GPU_LUA(L));
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

static int coroutine_close(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_State *co = lua_tothread(L, 1);
    luaL_argexpected(L, co, 1, "thread");
    lua_Debug ar;
    bool is_active = co == L || (lua_status(co) == LUA_OK && lua_getstack(co, 0, &ar));
    if (is_active) {
        return luaL_error(L, "cannot close a %s coroutine", co == L ? "running" : "normal");
    }
    gpu_lua_check_interrupt(L, g);
    if (reset(g, co) == LUA_OK) {
        lua_pushboolean(L, true);
        return 1;
    }
    lua_pushboolean(L, false);
    lua_xmove(co, L, 1);
    return 2;
}

int gpu_lua_adopt_coroutines(lua_State *L) {
    static const luaL_Reg functions[] = {{"create", coroutine_create}, {"resume", coroutine_resume},
                                         {"wrap", coroutine_wrap},     {"close", coroutine_close},
                                         {"yield", coroutine_yield},   {NULL, NULL}};
    if (lua_getglobal(L, "coroutine") == LUA_TTABLE) {
        gpu_lua_set_functions(L, functions);
    }
    return 0;
}
