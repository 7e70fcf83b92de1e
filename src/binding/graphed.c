/* Functions that become graphs: what each call of one does. The rest is lua/gpulua/graphed.lua. */
#include <lauxlib.h>
#include <limits.h>
#include <string.h>

#include "binding/caller.h"
#include "binding/graph.h"
#include "binding/loop.h"

/* What a graphed function keeps by number, as in graphed.lua. */
enum {
    GRAPHED_GRAPH = 1, /* false: no call is a replay */
    GRAPHED_KNOWN,
    GRAPHED_UPVALUES,
    GRAPHED_FUNCTION,
    GRAPHED_RESULTS,
    GRAPHED_REPLAYS
};

/* Where these are on the stack; the arguments, `count`, lie from `first` on. */
struct graphed_call {
    int known, upvalues, function, first, count;
};

/* Nothing that f could do with one would come out otherwise with the other: 0.0 and -0.0 are not
 * the same, nor are 1 and 1.0; a NaN is what it was. */
static bool is_same_value(lua_State *L, int a, int b) {
    if (lua_type(L, a) != LUA_TNUMBER || lua_type(L, b) != LUA_TNUMBER) {
        return lua_rawequal(L, a, b);
    }
    if (lua_isinteger(L, a) || lua_isinteger(L, b)) {
        return lua_isinteger(L, a) && lua_isinteger(L, b) && lua_rawequal(L, a, b);
    }
    lua_Number first = lua_tonumber(L, a), second = lua_tonumber(L, b);
    return memcmp(&first, &second, sizeof first) == 0;
}

/* The tables whose copy is on top of the stack, {table, entries, key, value, ...} for each, hold
 * what they held then, in that order. Raw. */
static bool is_copy_same(lua_State *L) {
    int copy = lua_gettop(L);
    lua_Integer end = (lua_Integer)lua_rawlen(L, copy);
    bool is = true;
    for (lua_Integer at = 1; at <= end && is;) {
        is = lua_rawgeti(L, copy, at) == LUA_TTABLE && lua_rawgeti(L, copy, at + 1) == LUA_TNUMBER;
        lua_Integer count = is ? lua_tointeger(L, -1) : 0;
        at += 2;
        lua_pushnil(L);
        while (is && lua_next(L, copy + 1)) { /* key, value */
            lua_rawgeti(L, copy, at++);
            lua_rawgeti(L, copy, at++);
            is = count-- > 0 && lua_rawequal(L, -4, -2) && is_same_value(L, -3, -1);
            lua_pop(L, 3);
        }
        is = is && count == 0;
        lua_settop(L, copy);
    }
    return is;
}

/* Of the arguments that are kept at `known` the tables of plain values, which are compared by what
 * they hold. */
static bool are_copies_same(lua_State *L, int known) {
    bool is = true;
    int top = lua_gettop(L);
    if (lua_rawgeti(L, known, 0) == LUA_TTABLE) {
        lua_Integer count = (lua_Integer)lua_rawlen(L, top + 1);
        for (lua_Integer i = 1; i <= count && is; i++) {
            is = lua_rawgeti(L, top + 1, i) == LUA_TTABLE && is_copy_same(L);
            lua_settop(L, top + 1);
        }
    }
    lua_settop(L, top);
    return is;
}

static bool is_same(lua_State *L, const struct graphed_call *call) {
    bool is =
        lua_getfield(L, call->known, "n") == LUA_TNUMBER && lua_tointeger(L, -1) == call->count;
    lua_pop(L, 1);
    for (int i = 0; i < call->count && is; i++) {
        lua_rawgeti(L, call->known, i + 1);
        is = is_same_value(L, -1, call->first + i);
        lua_pop(L, 1);
    }
    for (int i = 1; is && lua_getupvalue(L, call->function, i); i++) {
        lua_rawgeti(L, call->upvalues, i);
        is = is_same_value(L, -1, -2);
        lua_pop(L, 2);
    }
    return is && are_copies_same(L, call->known);
}

/* core.graphed_same(known, upvalues, f, ...) -> are the arguments those in `known`, and hold tables
 * of plain values among them what they held? Are the upvalues of f those in `upvalues`? */
int gpu_lua_graphed_same(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    luaL_checktype(L, 3, LUA_TFUNCTION);
    lua_pushboolean(L, is_same(L, &(struct graphed_call){1, 2, 3, 4, lua_gettop(L) - 3}));
    return 1;
}

/* core.graphed_same_copy(copy) -> do the tables in it hold what they held when it was made? */
int gpu_lua_graphed_same_copy(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_pushboolean(L, is_copy_same(L));
    return 1;
}

/* core.graphed_same_value(a, b) -> is one of them as good as the other, as above? */
int gpu_lua_graphed_same_value(lua_State *L) {
    lua_settop(L, 2);
    lua_pushboolean(L, is_same_value(L, 1, 2));
    return 1;
}

static int run_ended(lua_State *L, int status, lua_KContext context) {
    (void)status;
    (void)context;
    return lua_gettop(L);
}

/* Pushes what f has returned. */
static int push_results(lua_State *L, int results) {
    lua_getfield(L, results, "n");
    lua_Integer wanted = lua_tointeger(L, -1);
    int count = wanted > 0 && wanted < INT_MAX ? (int)wanted : 0;
    lua_pop(L, 1);
    luaL_checkstack(L, count, "too many results");
    for (int i = 1; i <= count; i++) {
        lua_rawgeti(L, results, i);
    }
    return count;
}

/* graphed(...) -> op, what f returned when it ran last. Upvalue: what is called with the same where
 * that is not a replay with nothing to patch. */
static int graphed_call(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int count = lua_gettop(L) - 1;
    /* What lies there is looked at closely, because a script can put something else there. */
    bool is_replay = lua_istable(L, 1) && lua_rawgeti(L, 1, GRAPHED_GRAPH) == LUA_TUSERDATA;
    int graph = count + 2;
    if (is_replay) {
        luaL_checkstack(L, LUA_MINSTACK, "too many arguments");
        is_replay = !gpu_lua_is_captured(g, gpu_graph_device(gpu_lua_check_graph(L, g, graph)));
    }
    if (is_replay) {
        is_replay = lua_rawgeti(L, 1, GRAPHED_KNOWN) == LUA_TTABLE;
        is_replay &= lua_rawgeti(L, 1, GRAPHED_UPVALUES) == LUA_TTABLE;
        is_replay &= lua_rawgeti(L, 1, GRAPHED_FUNCTION) == LUA_TFUNCTION;
        is_replay &= lua_rawgeti(L, 1, GRAPHED_RESULTS) == LUA_TTABLE;
        is_replay = is_replay &&
                    is_same(L, &(struct graphed_call){graph + 1, graph + 2, graph + 3, 2, count});
    }
    if (!is_replay) {
        lua_settop(L, count + 1);
        lua_pushvalue(L, lua_upvalueindex(2));
        lua_insert(L, 1);
        lua_callk(L, count + 1, LUA_MULTRET, 0, run_ended);
        return lua_gettop(L);
    }
    lua_rawgeti(L, 1, GRAPHED_REPLAYS);
    lua_Integer replays = lua_tointeger(L, -1);
    lua_pushinteger(L, replays + 1);
    lua_rawseti(L, 1, GRAPHED_REPLAYS);
    return gpu_lua_graph_submit(L, g, graph, 0) ? 1 + push_results(L, graph + 4) : 0;
}

/* core.graphed_caller(run) -> the __call of graphed functions */
int gpu_lua_graphed_caller(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    gpu_lua_push_object(L);
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, graphed_call, 2);
    return 1;
}
