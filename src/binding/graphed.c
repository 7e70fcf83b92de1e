/* Functions that become graphs: what each call of one does. The rest is lua/gpulua/graphed.lua. */
#include <lauxlib.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "binding/buffer.h"
#include "binding/caller.h"
#include "binding/graph.h"
#include "binding/loop.h"
#include "binding/scalar.h"

/* What a graphed function keeps by number, as in graphed.lua. */
enum {
    GRAPHED_GRAPH = 1, /* false: no call is a replay */
    GRAPHED_KNOWN,     /* what f was run with last, a table as below; no table: nothing is known */
    GRAPHED_FUNCTION,
    GRAPHED_RESULTS, /* no table: none */
    GRAPHED_GIVEN    /* the same as GRAPHED_KNOWN of a run of which nothing has come yet */
};
/* By number in such a table: the arguments lie behind these, and behind them the upvalues. */
enum {
    KNOWN_ARGUMENT_COUNT = 1,
    KNOWN_UPVALUE_COUNT,
    KNOWN_COPIES /* of those arguments that are tables of plain values; no table: none are */
};

/* What f was run with last, where it is known how Lua keeps values: read like that, a call that
 * changes nothing takes a few instructions for each of them, and not some hundred and fifty. The
 * objects among them are there as long as GRAPHED_KNOWN. */
struct graphed_last {
    int argument_count, upvalue_count;
    bool has_copies;
    struct lua_value values[]; /* the arguments, then the upvalues */
};

/* Where these are on the stack; the arguments, `count`, lie from `first` on. */
struct graphed_call {
    int known, function, first, count;
};

/* What is another one than when f ran last, and which argument or upvalue, from 1. */
struct graphed_difference {
    enum { IS_SAME, IS_COUNT, IS_ARGUMENT, IS_CONTENT, IS_UPVALUE } what;
    int number;
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
 * they hold: the first one that holds something else; 0: none. */
static int find_other_content(lua_State *L, int known) {
    int found = 0, top = lua_gettop(L);
    if (lua_rawgeti(L, known, KNOWN_COPIES) == LUA_TTABLE) {
        lua_Integer count = (lua_Integer)lua_rawlen(L, top + 1);
        for (lua_Integer i = 1; i <= count && found == 0; i++) {
            if (lua_rawgeti(L, top + 1, i) == LUA_TTABLE && !is_copy_same(L)) {
                lua_rawgeti(L, top + 2, 0); /* which argument it is of */
                found = (int)lua_tointeger(L, -1);
            }
            lua_settop(L, top + 1);
        }
    }
    lua_settop(L, top);
    return found;
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

/* Pops it. A script may have put anything there. */
static int pop_count(lua_State *L) {
    lua_Integer count = lua_tointeger(L, -1);
    lua_pop(L, 1);
    return count > 0 && count < INT_MAX / 4 ? (int)count : 0;
}

static int count_at(lua_State *L, int known, int which) {
    lua_rawgeti(L, known, which);
    return pop_count(L);
}

/* core.graphed_keep(graph, known): what the next call with that graph is compared with, and which
 * has to stay there. */
int gpu_lua_graphed_keep(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    struct graph_handle *handle = gpu_lua_check_graph_handle(L, g, 1);
    const struct lua_call *call = gpu_lua_call(L, &g->caller);
    int arguments = count_at(L, 2, KNOWN_ARGUMENT_COUNT);
    int upvalues = count_at(L, 2, KNOWN_UPVALUE_COUNT), count = arguments + upvalues;
    struct graphed_last *last = handle->last;
    if (last && last->argument_count + last->upvalue_count < count) {
        free(last);
        last = handle->last = NULL;
    }
    if (call && !last) { /* without it each is asked for */
        last = handle->last = malloc(sizeof *last + (size_t)count * sizeof last->values[0]);
    }
    if (last) {
        last->argument_count = arguments;
        last->upvalue_count = upvalues;
        last->has_copies = lua_rawgeti(L, 2, KNOWN_COPIES) == LUA_TTABLE;
        lua_settop(L, 2);
        for (int i = 0; i < count; i++) { /* it is known how those are kept that lie on the stack */
            lua_rawgeti(L, 2, KNOWN_COPIES + 1 + i);
            last->values[i] = *gpu_lua_argument(call, 3);
            lua_settop(L, 2);
        }
    }
    return 0;
}

/* core.graphed_state(graph) -> what memory is gone that it was captured with; nil: none; is it
 * closed itself? How many calls were replays. */
int gpu_lua_graphed_state(lua_State *L) {
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
    lua_pushinteger(L, (lua_Integer)handle->replays);
    return 3;
}

/* core.graphed_replays(graph, more) -> how many calls were replays, with so many more; also when it
 * is closed. */
int gpu_lua_graphed_replays(lua_State *L) {
    struct graph_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_GRAPH);
    handle->replays += (uint64_t)luaL_checkinteger(L, 2);
    lua_pushinteger(L, (lua_Integer)handle->replays);
    return 1;
}

static struct graphed_difference find_difference(lua_State *L, const struct graphed_call *call) {
    if (count_at(L, call->known, KNOWN_ARGUMENT_COUNT) != call->count) {
        return (struct graphed_difference){.what = IS_COUNT};
    }
    for (int i = 1; i <= call->count; i++) {
        lua_rawgeti(L, call->known, KNOWN_COPIES + i);
        bool is_same = is_same_value(L, -1, call->first + i - 1);
        lua_pop(L, 1);
        if (!is_same) {
            return (struct graphed_difference){.what = IS_ARGUMENT, .number = i};
        }
    }
    int content = find_other_content(L, call->known);
    if (content != 0) {
        return (struct graphed_difference){.what = IS_CONTENT, .number = content};
    }
    for (int i = 1; lua_getupvalue(L, call->function, i); i++) {
        lua_rawgeti(L, call->known, KNOWN_COPIES + call->count + i);
        bool is_same = is_same_value(L, -1, -2);
        lua_pop(L, 2);
        if (!is_same) {
            return (struct graphed_difference){.what = IS_UPVALUE, .number = i};
        }
    }
    return (struct graphed_difference){.what = IS_SAME};
}

/* What can be kept without keeping anything alive, and is a word already. */
static bool is_plain(lua_State *L, int index) {
    int type = lua_type(L, index);
    return type == LUA_TNUMBER || type == LUA_TBOOLEAN || type == LUA_TNIL;
}

/* core.graphed_difference(known, f, ...) -> the first thing that is another one than in `known`, of
 * the arguments, of what those hold that are tables of plain values, and of f's upvalues: its
 * number (of an upvalue less than 0) or what it is; and, if they are to be seen, what it is now,
 * what it was, and whether both are numbers, booleans or nil; nothing: all is the same. */
int gpu_lua_graphed_difference(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    const struct graphed_call call = {1, 2, 3, lua_gettop(L) - 2};
    luaL_checkstack(L, LUA_MINSTACK, "too many arguments");
    const struct graphed_difference found = find_difference(L, &call);
    switch (found.what) {
    case IS_COUNT:
        lua_pushliteral(L, "the number of arguments");
        lua_pushinteger(L, call.count);
        lua_rawgeti(L, 1, KNOWN_ARGUMENT_COUNT);
        break;
    case IS_ARGUMENT:
        lua_pushinteger(L, found.number);
        lua_pushvalue(L, call.first + found.number - 1);
        lua_rawgeti(L, 1, KNOWN_COPIES + found.number);
        break;
    case IS_CONTENT:
        lua_pushfstring(L, "what is in argument %d has changed", found.number);
        return 1;
    case IS_UPVALUE:
        lua_pushinteger(L, -found.number);
        (void)lua_getupvalue(L, 2, found.number);
        lua_rawgeti(L, 1, KNOWN_COPIES + call.count + found.number);
        break;
    default:
        return 0;
    }
    lua_pushboolean(L, is_plain(L, -2) && is_plain(L, -1));
    return 4;
}

/* ---- running f ---- */

/* Stack: the graphed function, f, its arguments, what it has returned. */
static int body_ended(lua_State *L, int status, lua_KContext context) {
    (void)status;
    int arguments = (int)context, upvalues = 0;
    int result_count = lua_gettop(L) - 2 - arguments;
    bool has_tables = false;
    luaL_checkstack(L, arguments + LUA_MINSTACK, "too many arguments");
    while (lua_getupvalue(L, 2, upvalues + 1)) {
        lua_pop(L, 1);
        upvalues++;
    }
    lua_createtable(L, KNOWN_COPIES + arguments + upvalues, 0);
    int known = lua_gettop(L);
    lua_pushinteger(L, arguments);
    lua_rawseti(L, known, KNOWN_ARGUMENT_COUNT);
    lua_pushinteger(L, upvalues);
    lua_rawseti(L, known, KNOWN_UPVALUE_COUNT);
    for (int i = 1; i <= arguments; i++) {
        has_tables = has_tables || lua_istable(L, 2 + i);
        lua_pushvalue(L, 2 + i);
        lua_rawseti(L, known, KNOWN_COPIES + i);
    }
    for (int i = 1; i <= upvalues; i++) {
        (void)lua_getupvalue(L, 2, i);
        lua_rawseti(L, known, KNOWN_COPIES + arguments + i);
    }
    lua_pushboolean(L, 0);
    if (has_tables) {
        lua_settop(L, known);
        lua_pushvalue(L, lua_upvalueindex(1));
        for (int i = 1; i <= arguments; i++) {
            lua_pushvalue(L, 2 + i);
        }
        lua_call(L, arguments, 1);
    }
    lua_rawseti(L, known, KNOWN_COPIES);
    lua_rawseti(L, 1, GRAPHED_GIVEN);
    return result_count;
}

static int body(lua_State *L) {
    int count = lua_gettop(L) - 2;
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checkstack(L, count + LUA_MINSTACK, "too many arguments");
    for (int i = 2; i <= 2 + count; i++) {
        lua_pushvalue(L, i);
    }
    lua_callk(L, count, LUA_MULTRET, count, body_ended);
    return body_ended(L, LUA_OK, count);
}

/* core.graphed_body(copies_of) -> the body of a task, body(graphed, f, ...): calls f(...). Its
 * arguments and upvalues are looked at right behind it, before another task comes and changes them;
 * copies_of(...) gives copies of those arguments that are tables of plain values, or nothing. */
int gpu_lua_graphed_body(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    lua_pushcclosure(L, body, 1);
    return 1;
}

/* core.graphed_results(...) -> these as a table, with their number as n; false: none */
int gpu_lua_graphed_results(lua_State *L) {
    int count = lua_gettop(L);
    if (count == 0) {
        lua_pushboolean(L, 0);
        return 1;
    }
    lua_createtable(L, count, 1);
    lua_insert(L, 1);
    for (int i = count; i >= 1; i--) {
        lua_rawseti(L, 1, i);
    }
    lua_pushinteger(L, count);
    lua_setfield(L, 1, "n");
    return 1;
}

static int count_results(lua_State *L, int results) {
    lua_getfield(L, results, "n");
    return pop_count(L);
}

static void give_out(lua_State *L, struct gpulua *g, int index) {
    const struct buffer *buffer = gpu_lua_test(L, g, index, GPU_LUA_KIND_BUFFER);
    buffer = buffer ? buffer : gpu_lua_scalar_test(L, g, index);
    if (buffer && buffer->ref.block) {
        gpu_graph_give_out(buffer->ref.block);
    }
}

/* core.graphed_give_out(results): buffers among what f has returned (false: nothing), or in tables
 * of that, are the caller's. */
int gpu_lua_graphed_give_out(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_settop(L, 1);
    int count = lua_toboolean(L, 1) ? count_results(L, 1) : 0;
    for (int i = 1; i <= count; i++, lua_settop(L, 1)) {
        lua_rawgeti(L, 1, i);
        give_out(L, g, 2);
        lua_pushnil(L);
        while (lua_istable(L, 2) && lua_next(L, 2)) {
            give_out(L, g, 4);
            lua_pop(L, 1);
        }
    }
    return 0;
}

/* Pushes what f has returned. */
static int push_results(lua_State *L, int results) {
    int count = count_results(L, results);
    luaL_checkstack(L, count, "too many results");
    for (int i = 1; i <= count; i++) {
        lua_rawgeti(L, results, i);
    }
    return count;
}

/* The graph whose handle lies at `index`, of the graphed function at 1: how many values have been
 * pushed; -1: it does nothing, see gpu_lua_graph_submit. */
static inline __attribute__((always_inline)) int launch(lua_State *L, struct gpulua *g,
                                                        const struct lua_call *call,
                                                        const struct graph_handle *handle,
                                                        bool may_be_gone) {
    bool has_results = lua_rawgeti(L, 1, GRAPHED_RESULTS) == LUA_TTABLE;
    int results = lua_gettop(L);
    const struct gpu_lua_graph_call launched = {.call = call, .handle = handle};
    enum gpu_lua_submitted submitted = gpu_lua_graph_submit(L, g, &launched, may_be_gone);
    if (submitted == GPU_LUA_OP_PUSHED) {
        return 1 + (has_results ? push_results(L, results) : 0);
    }
    return submitted == GPU_LUA_NOT_SUBMITTED ? -1 : 0;
}

/* Stack: the graphed function, and what the call comes to: a graph to launch, or an op and what f
 * has returned. */
static int run_ended(lua_State *L, int status, lua_KContext context) {
    (void)status;
    (void)context;
    struct gpulua *g = GPU_LUA(L);
    if (lua_gettop(L) != 2 || !lua_istable(L, 1) || !gpu_lua_test(L, g, 2, GPU_LUA_KIND_GRAPH)) {
        return lua_gettop(L) - 1;
    }
    const struct lua_call *call = gpu_lua_call(L, &g->caller);
    return launch(L, g, call, gpu_lua_check_graph_handle(L, g, 2), false);
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
    const struct graphed_call to = {top + 2, top + 1, 2, count};
    return has ? find_other_content(L, top + 2) == 0 : find_difference(L, &to).what == IS_SAME;
}

/* graphed(...) -> op, what f returned when it ran last. Upvalues: what is called with the same
 * where that is not a replay with nothing to patch. */
static int graphed_call(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int count = lua_gettop(L) - 1, graph = count + 2;
    const struct lua_call *call = gpu_lua_call(L, &g->caller);
    if (lua_istable(L, 1) && lua_rawgeti(L, 1, GRAPHED_GRAPH) == LUA_TUSERDATA) {
        luaL_checkstack(L, LUA_MINSTACK, "too many arguments");
        struct graph_handle *handle = gpu_lua_graph_handle(L, g, call, graph);
        if (handle->graph && !gpu_lua_is_captured(g, gpu_graph_device(handle->graph)) &&
            is_replay(L, g, handle->last, call, count)) {
            int pushed = launch(L, g, call, handle, true);
            if (pushed >= 0) {
                handle->replays++;
                return pushed;
            }
        }
    }
    luaL_checkany(L, 1);
    lua_settop(L, count + 1);
    luaL_checkstack(L, 2, "too many arguments");
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_pushvalue(L, 1);
    lua_rotate(L, 2, 2);
    lua_callk(L, count + 1, LUA_MULTRET, 0, run_ended);
    return run_ended(L, LUA_OK, 0);
}

/* core.graphed_caller(run) -> the __call of graphed functions */
int gpu_lua_graphed_caller(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    gpu_lua_push_object(L);
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, graphed_call, 2);
    return 1;
}
