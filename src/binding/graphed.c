/* Functions that become graphs: what each call of one does. The rest is lua/gpulua/graphed.lua. */
#include <lauxlib.h>
#include <limits.h>
#include <stdlib.h>
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
    GRAPHED_RESULTS /* no table: none */
};

/* What f was run with last, where it is known how Lua keeps values: read like that, a call that
 * changes nothing takes a few instructions for each of them, and not some hundred and fifty. The
 * objects among them are there as long as the tables of arguments and upvalues. */
struct graphed_last {
    int argument_count, upvalue_count;
    bool has_copies;
    struct lua_value values[]; /* the arguments, then the upvalues */
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

/* The same bits are the same value; others may be, of strings. */
static bool has_same_bits(const struct lua_value *a, const struct lua_value *b) {
    return a->type == b->type && (a->integer == b->integer || a->type == LUA_VALUE_NIL ||
                                  a->type == LUA_VALUE_FALSE || a->type == LUA_VALUE_TRUE);
}

/* Of `call`, whose arguments lie behind the graphed function itself, and of the function there.
 * False also where that is not known. */
static bool has_last(lua_State *L, const struct gpulua *g, const struct graphed_last *last,
                     const struct lua_call *call, int count, int function) {
    const struct lua_function *f = gpu_lua_function(L, &g->caller, function);
    bool is = last && call && f && count == last->argument_count &&
              f->upvalue_count == last->upvalue_count;
    const struct lua_value *value = last ? last->values : NULL;
    for (int i = 0; is && i < count; i++) {
        is = has_same_bits(gpu_lua_argument(call, 2 + i), value++);
    }
    for (int i = 0; is && i < last->upvalue_count; i++) {
        is = has_same_bits(f->upvalues[i]->value, value++);
    }
    return is;
}

/* Pushes each, because it is known how those are kept that lie on the stack. */
static void note_values(lua_State *L, const struct gpulua *g, int table, int count,
                        struct lua_value *values) {
    for (int i = 0; i < count; i++) {
        lua_rawgeti(L, table, i + 1);
        values[i] = *gpu_lua_argument(gpu_lua_call(L, &g->caller), lua_gettop(L));
        lua_pop(L, 1);
    }
}

static int count_in(lua_State *L, int table) {
    lua_getfield(L, table, "n");
    lua_Integer count = lua_tointeger(L, -1);
    lua_pop(L, 1);
    return count > 0 && count < INT_MAX / 2 ? (int)count : 0;
}

/* core.graphed_keep(graph, known, upvalues): these two, which have to stay there, are what the next
 * call with that graph is compared with. */
int gpu_lua_graphed_keep(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    luaL_checktype(L, 3, LUA_TTABLE);
    int arguments = count_in(L, 2), upvalues = count_in(L, 3);
    struct graph_handle *handle = gpu_lua_check_graph_handle(L, g, 1);
    free(handle->last);
    handle->last = NULL;
    size_t value_count = (size_t)arguments + (size_t)upvalues;
    struct graphed_last *last =
        g->caller.is_known ? malloc(sizeof *last + value_count * sizeof last->values[0]) : NULL;
    if (last) { /* else each is asked for */
        last->argument_count = arguments;
        last->upvalue_count = upvalues;
        last->has_copies = lua_rawgeti(L, 2, 0) == LUA_TTABLE;
        note_values(L, g, 2, arguments, last->values);
        note_values(L, g, 3, upvalues, last->values + arguments);
        handle->last = last;
    }
    return 0;
}

/* core.graphed_gone(graph) -> what memory is gone that it was captured with; nil: none; is it
 * closed itself? */
int gpu_lua_graphed_gone(lua_State *L) {
    struct gpu_error error;
    const struct graph_handle *handle = gpu_lua_graph_handle(L, GPU_LUA(L), NULL, 1);
    if (!handle->graph) {
        lua_pushliteral(L, "its graph was closed");
    } else if (gpu_graph_check(handle->graph, &error) == GPULUA_OK) {
        lua_pushnil(L);
    } else {
        lua_pushstring(L, error.message);
        gpu_error_finish(&error);
    }
    lua_pushboolean(L, !handle->graph);
    return 2;
}

/* core.graphed_replays(graph, more) -> how many calls were replays, with so many more; also when it
 * is closed. */
int gpu_lua_graphed_replays(lua_State *L) {
    struct graph_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_GRAPH);
    handle->replays += (uint64_t)luaL_checkinteger(L, 2);
    lua_pushinteger(L, (lua_Integer)handle->replays);
    return 1;
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
    int count = count_in(L, results);
    luaL_checkstack(L, count, "too many results");
    for (int i = 1; i <= count; i++) {
        lua_rawgeti(L, results, i);
    }
    return count;
}

/* As f ran last? What lies in the graphed function is looked at closely, because a script can put
 * something else there. Leaves at most three values more on the stack. */
static bool is_replay(lua_State *L, const struct gpulua *g, const struct graphed_last *last,
                      const struct lua_call *call, int count) {
    int top = lua_gettop(L);
    if (lua_rawgeti(L, 1, GRAPHED_FUNCTION) != LUA_TFUNCTION) {
        return false;
    }
    bool has = has_last(L, g, last, call, count, top + 1);
    if (has && !last->has_copies) {
        return true;
    }
    if (lua_rawgeti(L, 1, GRAPHED_KNOWN) != LUA_TTABLE) {
        return false;
    }
    return has ? are_copies_same(L, top + 2)
               : lua_rawgeti(L, 1, GRAPHED_UPVALUES) == LUA_TTABLE &&
                     is_same(L, &(struct graphed_call){top + 2, top + 3, top + 1, 2, count});
}

/* graphed(...) -> op, what f returned when it ran last. Upvalues: what is called with the same
 * where that is not a replay with nothing to patch. */
static int graphed_call(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int count = lua_gettop(L) - 1, graph = count + 2;
    const struct lua_call *call = gpu_lua_call(L, &g->caller);
    enum gpu_lua_submitted submitted = GPU_LUA_NOT_SUBMITTED;
    bool has_results = false;
    if (lua_istable(L, 1) && lua_rawgeti(L, 1, GRAPHED_GRAPH) == LUA_TUSERDATA) {
        luaL_checkstack(L, LUA_MINSTACK, "too many arguments");
        struct graph_handle *handle = gpu_lua_graph_handle(L, g, call, graph);
        if (handle->graph && !gpu_lua_is_captured(g, gpu_graph_device(handle->graph)) &&
            is_replay(L, g, handle->last, call, count)) {
            has_results = lua_rawgeti(L, 1, GRAPHED_RESULTS) == LUA_TTABLE;
            int results = lua_gettop(L);
            const struct gpu_lua_graph_call launch = {.call = call, .handle = handle};
            submitted = gpu_lua_graph_submit(L, g, &launch, true);
            handle->replays += submitted != GPU_LUA_NOT_SUBMITTED;
            if (submitted == GPU_LUA_OP_PUSHED) {
                return 1 + (has_results ? push_results(L, results) : 0);
            }
        }
    }
    if (submitted != GPU_LUA_NOT_SUBMITTED) {
        return 0;
    }
    lua_settop(L, count + 1);
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_insert(L, 1);
    lua_callk(L, count + 1, LUA_MULTRET, 0, run_ended);
    return lua_gettop(L);
}

/* core.graphed_caller(run) -> the __call of graphed functions */
int gpu_lua_graphed_caller(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    gpu_lua_push_object(L);
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, graphed_call, 2);
    return 1;
}
