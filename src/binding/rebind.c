/* Graphs that are changed: graph:update, graph:bind. */
#include <lauxlib.h>
#include <string.h>

#include "runtime/graph.h"

#include "binding/buffer.h"
#include "binding/core.h"
#include "binding/data.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/scalar.h"
#include "binding/stream.h"

/* true, how many nodes have other arguments, and the first; false and what has changed: it was made
 * anew. */
static int push_change(lua_State *L, const struct gpu_graph_change *change) {
    char first[512] = "";
    lua_pushboolean(L, !change->is_rebuilt);
    if (change->is_rebuilt) {
        lua_pushstring(L, change->why);
        return 2;
    }
    if (change->node != 0) {
        gpu_graph_change_text(change, first, sizeof first);
    }
    lua_pushinteger(L, change->patched);
    lua_pushstring(L, first);
    return 3;
}

/* ---- updates ---- */

/* core.capture_again(graph) -> capture for an update of it; see core.capture_begin. */
int gpu_lua_capture_again(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)gpu_lua_check_graph(L, g, 1);
    gpu_lua_check_eager(L, g, NULL, "an update of a graph");
    struct gpu_capture **capture = gpu_lua_capture_new(L, g);
    struct gpu_device *device = gpu_graph_device(gpu_lua_check_graph(L, g, 1));
    struct gpu_submit submit = {.stream = gpu_lua_current_stream(L, g, device)};
    gpu_lua_site(L, g, device, &submit.site);
    struct gpu_error error;
    if (gpu_capture_again(gpu_lua_check_graph(L, g, 1), &submit, capture, &error)) {
        *capture = NULL;
        gpu_lua_throw(L, &error);
    }
    gpu_lua_capture_note(L, &submit.site);
    return 1;
}

/* The graph at 2 becomes what the capture at 1 has recorded, which ends. */
static void update(lua_State *L, struct gpulua *g, bool may_rebuild,
                   struct gpu_graph_change *change) {
    gpu_lua_capture_collect(L, gpu_lua_capture_at(L, g, 1));
    struct gpu_graph *graph = gpu_lua_check_graph(L, g, 2);
    struct gpu_capture *capture = gpu_lua_capture_take(L, g);
    struct gpu_error error;
    gpulua_status status = gpu_graph_update(graph, capture, may_rebuild, change, &error);
    gpu_capture_release(capture);
    if (status) {
        gpu_lua_throw(L, &error);
    }
}

/* core.capture_update(capture, graph, may_rebuild) -> true, nodes, the first, how many of them are
 * writes that have their data somewhere else, or false, why. */
int gpu_lua_capture_update(lua_State *L) {
    struct gpu_graph_change change;
    update(L, GPU_LUA(L), lua_toboolean(L, 3), &change);
    int count = push_change(L, &change);
    if (change.is_rebuilt) {
        return count;
    }
    lua_pushinteger(L, change.restaged);
    return count + 1;
}

/* core.graphed_update(capture, graph) -> nil, nodes, how many of them are writes that have their
 * data somewhere else, and of the first, for core.node_text, its number, label, file and line (nil,
 * 0: not known); or why it was made anew. */
int gpu_lua_graphed_update(lua_State *L) {
    struct gpu_graph_change change;
    update(L, GPU_LUA(L), true, &change);
    if (change.is_rebuilt) {
        lua_pushstring(L, change.why);
        return 1;
    }
    lua_pushnil(L);
    lua_pushinteger(L, change.patched);
    lua_pushinteger(L, change.restaged);
    lua_pushinteger(L, change.node);
    lua_pushstring(L, change.label);
    lua_pushstring(L, change.site.source);
    lua_pushinteger(L, change.site.line);
    return 7;
}

/* core.node_text(number, label, file, line) -> the node in words */
int gpu_lua_node_text(lua_State *L) {
    char text[512];
    const struct gpu_graph_change change = {
        .node = (uint32_t)luaL_checkinteger(L, 1),
        .label = luaL_checkstring(L, 2),
        .site = {.source = luaL_optstring(L, 3, NULL), .line = (int)luaL_checkinteger(L, 4)}};
    gpu_graph_change_text(&change, text, sizeof text);
    lua_pushstring(L, text);
    return 1;
}

/* core.capture_active([device]) -> does the caller's task belong to a capture of it? Of any? */
int gpu_lua_capture_active(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    if (lua_isnone(L, 1)) {
        lua_pushboolean(L, gpu_lua_is_captured(g, NULL));
        return 1;
    }
    lua_pushboolean(L, gpu_lua_capture_find(L, g, gpu_lua_check_device(L, g, 1, NULL)) != NULL);
    return 1;
}

/* ---- binds ---- */

static void get_scalar(lua_State *L, int at, const char *name, struct gpu_graph_bind *bind) {
    const struct gpu_param *param = bind->place.param;
    bind->scalar.u = 0;
    if (param->byte_count == 1 && lua_isboolean(L, at)) {
        bind->scalar.i = lua_toboolean(L, at);
        return;
    }
    bool is_pair = bind->place.index_im != bind->place.index && lua_istable(L, at);
    double pair[2] = {0, 0};
    const char *reason = is_pair ? gpu_lua_to_element(L, at, GPU_TYPE_C128, (uint8_t *)pair)
                                 : gpu_lua_to_element(L, at, param->type, bind->scalar.bytes);
    if (is_pair) {
        bind->scalar.f64 = pair[0];
    }
    bind->scalar_im.f64 = pair[1];
    if (reason) {
        gpu_lua_bad_value(L, at, is_pair ? GPU_TYPE_C128 : param->type, reason,
                          lua_pushfstring(L, "'%s' of bind", name));
    }
}

static void get_buffer(lua_State *L, struct gpulua *g, int at, const char *name,
                       struct gpu_graph_bind *bind) {
    bool is_pointer = bind->place.param != NULL;
    if (is_pointer && lua_isboolean(L, at) && !lua_toboolean(L, at)) {
        bind->ref = (struct gpu_ref){0}; /* a NULL pointer */
        return;
    }
    const struct buffer *buffer = gpu_lua_scalar_test(L, g, at);
    if (!buffer && (gpu_lua_test(L, g, at, GPU_LUA_KIND_BUFFER) ||
                    (!is_pointer && gpu_lua_test(L, g, at, GPU_LUA_KIND_HOST)))) {
        buffer = gpu_lua_check_buffer(L, g, at);
    }
    if (buffer && buffer->ref.block) {
        bind->ref = buffer->ref;
        return;
    }
    if (gpu_lua_test(L, g, at, GPU_LUA_KIND_SCALAR)) {
        gpu_lua_fail(L, GPULUA_CLOSED, "'%s' of bind: attempt to use a closed scalar", name);
    }
    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "'%s' of bind: a buffer expected, got %s", name,
                 gpu_lua_describe(L, at));
}

/* The name is at `at`, the value behind it. */
static void get_bind(lua_State *L, struct gpulua *g, const struct gpu_graph *graph,
                     const struct gpu_graph_names *names, int at, struct gpu_graph_bind *bind) {
    struct gpu_error error;
    if (lua_type(L, at) != LUA_TSTRING) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "bind: a buffer's label or \"kernel#n.parameter\" expected for a key, got %s",
                     gpu_lua_describe(L, at));
    }
    const char *name = gpu_lua_text(L, at, "a name", "bind");
    bind->name = name;
    if (gpu_graph_find(graph, names, name, &bind->place, &error)) {
        gpu_lua_throw(L, &error);
    }
    if (bind->place.param && bind->place.param->kind == GPU_PARAM_SCALAR) {
        get_scalar(L, at + 1, name, bind);
    } else {
        get_buffer(L, g, at + 1, name, bind);
    }
}

/* Puts `key` and what is on top of the stack into the table at 3, or, where it is a table and the
 * graph has no such place, what is in that, under "key.name". Raw. Pops it. */
static void flatten(lua_State *L, struct gpulua *g, const char *key, int depth) {
    struct gpu_graph_place place;
    struct gpu_error error;
    int value = lua_gettop(L);
    bool is_open = lua_istable(L, value) && !luaL_getmetafield(L, value, "__name") &&
                   depth < (int)GPU_PARTS_DEEP && lua_checkstack(L, LUA_MINSTACK);
    lua_settop(L, value);
    if (is_open && gpu_graph_find(gpu_lua_check_graph(L, g, 1), NULL, key, &place, &error)) {
        gpu_error_finish(&error);
        lua_pushnil(L);
        while (lua_next(L, value)) {
            bool is_place = lua_isinteger(L, -2);
            if (!is_place && lua_type(L, -2) != LUA_TSTRING) {
                gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                             "'%s' of bind: a field's name expected, got %s", key,
                             gpu_lua_describe(L, -2));
            }
            lua_pushfstring(L, "%s.", key);
            lua_pushvalue(L, -3);
            lua_concat(L, 2);
            lua_pushvalue(L, -2);
            flatten(L, g, gpu_lua_text(L, -2, "a name", "bind"), depth + 1);
            lua_pop(L, 2); /* the part's name and the value */
        }
        lua_pop(L, 1);
        return;
    }
    lua_pushstring(L, key);
    if (lua_rawget(L, 3) != LUA_TNIL) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "bind: '%s' is there twice", key);
    }
    lua_pop(L, 1);
    lua_pushstring(L, key);
    lua_insert(L, -2);
    lua_rawset(L, 3);
}

/* Vectors and structures in the table at 2 become their parts. */
static void spread_pairs(lua_State *L, struct gpulua *g) {
    bool has_tables = false;
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        has_tables = has_tables || (lua_istable(L, -1) && lua_type(L, -2) == LUA_TSTRING);
    }
    if (!has_tables) {
        return;
    }
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, 2);) {
        if (lua_type(L, -2) == LUA_TSTRING) {
            flatten(L, g, gpu_lua_text(L, -2, "a name", "bind"), 0);
        } else {
            lua_pushvalue(L, -2);
            lua_insert(L, -2);
            lua_rawset(L, 3);
        }
    }
    lua_replace(L, 2);
}

/* Pushes the pairs of the table at 2, which nothing changes meanwhile: how many. */
static uint32_t push_pairs(lua_State *L) {
    uint32_t count = 0;
    for (lua_pushnil(L); lua_next(L, 2); lua_pushvalue(L, -2)) { /* stays, for the next key */
        count++;
        if (!lua_checkstack(L, 16)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "bind: %u names are too many", count);
        }
    }
    return count;
}

/* What is at `at` instead of a table with metamethods: the same without, but for its name. */
static void make_plain(lua_State *L, int at) {
    if (!lua_istable(L, at) || !lua_getmetatable(L, at)) {
        return;
    }
    lua_Integer count = luaL_len(L, at);
    lua_newtable(L);
    for (lua_Integer i = 1; i <= count && i <= 3; i++) { /* none has more than two */
        lua_geti(L, at, i);
        lua_rawseti(L, -2, i);
    }
    if (lua_getfield(L, -2, "__name") == LUA_TSTRING) { /* for messages */
        lua_createtable(L, 0, 1);
        lua_insert(L, -2);
        lua_setfield(L, -2, "__name");
        lua_setmetatable(L, -2);
    } else {
        lua_pop(L, 1);
    }
    lua_replace(L, at);
    lua_pop(L, 1);
}

/* Memory for what a bind of many names needs, of Lua's. */
struct workplace {
    struct gpu_graph_bind *binds;
    void *names; /* NULL: few names are looked up one by one */
    size_t names_bytes;
};
#define NAMES_FEW 16u

static void push_workplace(lua_State *L, const struct gpu_graph *graph, uint32_t count,
                           struct workplace *place) {
    *place = (struct workplace){.names_bytes = gpu_graph_names_bytes(graph)};
    place->names = count > NAMES_FEW ? lua_newuserdatauv(L, place->names_bytes, 0) : NULL;
    place->binds = lua_newuserdatauv(L, (count + 1) * sizeof *place->binds, 0);
}

/* Looks at the graph and the values as they are now: finalisers may have closed what was there.
 * Stack: from 3 on the pairs. Runs nothing of the script's. */
static gpulua_status try_bind(lua_State *L, struct gpulua *g, const struct gpu_site *site,
                              const struct workplace *place, uint32_t count,
                              struct gpu_graph_change *change, struct gpu_error *error) {
    struct gpu_graph *graph = gpu_lua_check_graph(L, g, 1);
    struct gpu_graph_bind *binds = place->binds;
    const struct gpu_graph_names *names =
        place->names && gpu_graph_names_bytes(graph) <= place->names_bytes
            ? gpu_graph_names_make(graph, place->names)
            : NULL;
    const struct gpu_submit submit = {
        .stream = gpu_lua_current_stream(L, g, gpu_graph_device(graph)), .site = *site};
    memset(binds, 0, (count + 1) * sizeof *binds);
    for (uint32_t i = 0; i < count; i++) {
        get_bind(L, g, graph, names, 3 + 2 * (int)i, &binds[i]);
    }
    return gpu_graph_bind(graph, &submit, binds, count, change, error);
}

/* graph:bind{ name = buffer, number or table of parts, ... } -> true, nodes that have changed[, the
 * first] or false, why: the graph was made anew, because what follows what is another thing now. A
 * name is a buffer's label, or "kernel#n.parameter"; of a library's call, what it was given as
 * buffers and factors ("gemm#1.alpha"), and no sizes. Launches before are not affected.
 * InvalidArgument: no such name, or several; another type or size. */
int gpu_lua_graph_bind(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_check_eager(L, g, gpu_graph_device(gpu_lua_check_graph(L, g, 1)), "a bind");
    lua_settop(L, 2);
    if (!lua_istable(L, 2)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of bind: a table {name = buffer or number} expected, got %s",
                     gpu_lua_describe(L, 2));
    }
    spread_pairs(L, g);
    uint32_t count = push_pairs(L);
    for (uint32_t i = 0; i < count; i++) {
        make_plain(L, 4 + 2 * (int)i);
    }
    struct workplace place;
    push_workplace(L, gpu_lua_check_graph(L, g, 1), count, &place);
    struct gpu_site site;
    gpu_lua_site(L, g, gpu_graph_device(gpu_lua_check_graph(L, g, 1)), &site);
    struct gpu_graph_change change;
    struct gpu_error error;
    gpulua_status status = try_bind(L, g, &site, &place, count, &change, &error);
    if (status && gpu_lua_graph_collect(L, &error)) {
        status = try_bind(L, g, &site, &place, count, &change, &error);
    }
    if (status) {
        gpu_lua_throw(L, &error);
    }
    return push_change(L, &change);
}
