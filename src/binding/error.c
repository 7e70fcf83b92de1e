/* Error objects: tables with a metatable of ours. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "binding/graph.h"
#include "binding/limits.h"
#include "binding/loop.h"

/* {label, stream, seq, source, line} */
static void push_op_info(lua_State *L, const struct gpu_op_info *info) {
    lua_createtable(L, 0, 5);
    lua_pushstring(L, info->label);
    lua_setfield(L, -2, "label");
    lua_pushinteger(L, (lua_Integer)info->stream);
    lua_setfield(L, -2, "stream");
    lua_pushinteger(L, (lua_Integer)info->seq);
    lua_setfield(L, -2, "seq");
    if (info->source[0]) {
        lua_pushstring(L, info->source);
        lua_setfield(L, -2, "source");
        lua_pushinteger(L, info->line);
        lua_setfield(L, -2, "line");
    }
}

static void set_integer(lua_State *L, const char *field, uint64_t value) {
    lua_pushinteger(L, (lua_Integer)value);
    lua_setfield(L, -2, field);
}

bool gpu_lua_is_ours(const lua_Debug *ar) {
    return strncmp(ar->source, "=gpulua/", 8) == 0;
}

bool gpu_lua_where(lua_State *L, lua_Debug *ar) {
    for (int level = 0; level < 16 && lua_getstack(L, level, ar); level++) {
        lua_getinfo(L, "Sl", ar);
        if (ar->currentline > 0 && !gpu_lua_is_ours(ar)) {
            return true;
        }
    }
    return false;
}

/* The line that raises; where there is none, as in the body of a task that is a C function, the
 * line that spawned it.
 */
static void set_where(lua_State *L) {
    lua_Debug ar;
    struct gpulua *g = gpu_lua_find(L);
    if (gpu_lua_where(L, &ar)) {
        lua_pushstring(L, ar.short_src);
        lua_pushinteger(L, ar.currentline);
    } else if (g && g->running && g->running->co == L && g->running->line > 0) {
        lua_pushstring(L, g->running->source);
        lua_pushinteger(L, g->running->line);
    } else {
        return;
    }
    lua_setfield(L, -3, "line");
    lua_setfield(L, -2, "source");
}

static void set_metatable(lua_State *L) {
    if (luaL_newmetatable(L, "gpulua.error")) {
        lua_pushliteral(L, "gpulua.error");
        lua_setfield(L, -2, "__name");
    }
    lua_setmetatable(L, -2);
}

static const char suspects_key; /* registry: lists of suspects by number; weak */

/* One table for all errors of a loss, while one of them has it. */
static void push_suspects(lua_State *L, const struct gpu_error *error) {
    gpu_lua_push_weak(L, &suspects_key, "v");
    lua_Integer number = (lua_Integer)error->suspects_number;
    if (number == 0 || lua_rawgeti(L, -1, number) != LUA_TTABLE) {
        lua_settop(L, number == 0 ? lua_gettop(L) : lua_gettop(L) - 1);
        lua_createtable(L, (int)error->suspect_count, 0);
        for (uint32_t i = 0; i < error->suspect_count; i++) {
            push_op_info(L, &error->suspects[i]);
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
        lua_pushvalue(L, -1);
        lua_rawseti(L, -3, number); /* 0: of no loss, and never looked up */
    }
    lua_remove(L, -2);
}

/* {x, y, z}, as `field` of the table on top */
static void set_index(lua_State *L, const char *field, const uint32_t *index) {
    lua_createtable(L, 3, 0);
    for (int i = 0; i < 3; i++) {
        lua_pushinteger(L, index[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, field);
}

static void set_line(lua_State *L, const char *source, uint32_t line) {
    if (line != 0) {
        lua_pushstring(L, source);
        lua_setfield(L, -2, "source");
        lua_pushinteger(L, line);
        lua_setfield(L, -2, "line");
    }
}

/* A list of {block, thread, source, line, caller = {source, line}} */
static void push_places(lua_State *L, const struct gpu_error *error) {
    lua_createtable(L, (int)error->place_count, 0);
    for (uint32_t i = 0; i < error->place_count; i++) {
        const struct gpu_kernel_place *place = &error->places[i];
        lua_createtable(L, 0, 5);
        set_index(L, "block", place->block);
        set_index(L, "thread", place->thread);
        set_line(L, place->source, place->line);
        if (place->caller_line != 0) {
            lua_createtable(L, 0, 2);
            set_line(L, place->caller, place->caller_line);
            lua_setfield(L, -2, "caller");
        }
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

static const char *hint_of(lua_State *L, const struct gpu_error *error) {
    struct gpulua *g = error->code == GPULUA_STALE && !error->hint ? gpu_lua_find(L) : NULL;
    if (g && gpu_lua_is_captured(g, NULL)) {
        return "make the buffer again before the capture, or make it durable there";
    }
    return error->hint ? error->hint : gpu_error_hint(error->code);
}

static void push_error(lua_State *L, const struct gpu_error *error, int level) {
    luaL_checkstack(L, 8, NULL);
    lua_createtable(L, 0, 8);
    lua_pushstring(L, gpulua_status_name(error->code));
    lua_setfield(L, -2, "code");
    lua_pushstring(L, error->message);
    lua_setfield(L, -2, "message");
    lua_pushstring(L, hint_of(L, error));
    lua_setfield(L, -2, "hint");
    if (error->driver_code) {
        lua_pushinteger(L, error->driver_code);
        lua_setfield(L, -2, "driver_code");
    }
    if (error->log) {
        lua_pushstring(L, error->log);
        lua_setfield(L, -2, "log");
    }
    if (error->op.is_known) {
        push_op_info(L, &error->op);
        lua_setfield(L, -2, "op");
    }
    if (error->root.is_known) {
        push_op_info(L, &error->root);
        lua_pushstring(L, gpulua_status_name(error->root_code));
        lua_setfield(L, -2, "code");
        lua_setfield(L, -2, "root");
    }
    if (error->other.is_known) {
        push_op_info(L, &error->other);
        lua_setfield(L, -2, "other");
    }
    if (error->suspects) {
        push_suspects(L, error);
        lua_setfield(L, -2, "suspects");
    }
    if (error->place_count > 0) {
        push_places(L, error);
        lua_setfield(L, -2, "places");
    }
    if (error->code == GPULUA_OUT_OF_BUDGET) {
        set_integer(L, "requested", error->requested_bytes);
        set_integer(L, "current", error->current_bytes);
        set_integer(L, "remaining", error->remaining_bytes);
        set_integer(L, "limit", error->limit_bytes);
    } else if (error->has_range) {
        set_integer(L, "offset", (uint64_t)error->range_offset);
        set_integer(L, "length", (uint64_t)error->range_length);
        set_integer(L, "size", (uint64_t)error->range_size);
    } else if (error->code == GPULUA_CAPACITY && error->capacity_max) {
        set_integer(L, "max", error->capacity_max);
    }
    set_where(L);
    gpu_lua_task_traceback(L, gpu_lua_find(L), level);
    if (strcmp(lua_tostring(L, -1), "stack traceback:") == 0) {
        lua_pop(L, 1); /* a coroutine in which nothing runs */
        lua_pushliteral(L, "");
    }
    lua_setfield(L, -2, "traceback");
    set_metatable(L);
}

void gpu_lua_error_push(lua_State *L, const struct gpu_error *error) {
    push_error(L, error, 0);
}

static int push_protected(lua_State *L) {
    push_error(L, lua_touserdata(L, 1), 1);
    return 1;
}

void gpu_lua_error_push_owned(lua_State *L, struct gpu_error *error) {
    lua_pushcfunction(L, push_protected);
    lua_pushlightuserdata(L, error);
    (void)lua_pcall(L, 1, 1, 0); /* failed: the message about memory takes its place */
    gpu_error_finish(error);
}

_Noreturn void gpu_lua_throw(lua_State *L, struct gpu_error *error) {
    const struct gpulua *g = error->code == GPULUA_INTERRUPTED ? gpu_lua_find(L) : NULL;
    if (g && atomic_load(&g->interrupt) >= GPU_LUA_TIME_IS_UP) { /* what it was interrupted by */
        gpu_error_finish(error);
        gpu_lua_limits_fail(L, g);
    }
    if (!lua_checkstack(L, 4)) {
        lua_settop(L, 0); /* nothing of it is needed any more */
    }
    gpu_lua_error_push_owned(L, error);
    lua_error(L);
    __builtin_unreachable();
}

_Noreturn void gpu_lua_fail(lua_State *L, gpulua_status code, const char *format, ...) {
    struct gpu_error error;
    char message[sizeof error.message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    gpu_error_set(&error, code, "%s", message);
    gpu_lua_throw(L, &error);
}

_Noreturn void gpu_lua_fail_hint(lua_State *L, gpulua_status code, const char *hint,
                                 const char *format, ...) {
    struct gpu_error error;
    char message[sizeof error.message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    gpu_error_set(&error, code, "%s", message);
    gpu_lua_error_push(L, &error);
    lua_pushstring(L, hint);
    lua_setfield(L, -2, "hint");
    lua_error(L);
    __builtin_unreachable();
}

_Noreturn void gpu_lua_fail_range(lua_State *L, const char *hint, int64_t offset, int64_t length,
                                  uint64_t size, const char *format, ...) {
    struct gpu_error error;
    char message[sizeof error.message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    gpu_error_set(&error, GPULUA_OUT_OF_BOUNDS, "%s", message);
    gpu_error_set_range(&error, offset, length, (int64_t)size);
    error.hint = hint;
    gpu_lua_throw(L, &error);
}

static bool is_error(lua_State *L, int index) {
    if (lua_type(L, index) != LUA_TTABLE || !lua_getmetatable(L, index)) {
        return false;
    }
    luaL_getmetatable(L, "gpulua.error");
    bool is = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return is;
}

static gpulua_status status_from_name(const char *name) {
#define X(number, c_name, lua_name, meaning, hint)                                                 \
    if (strcmp(name, lua_name) == 0) {                                                             \
        return GPULUA_##c_name;                                                                    \
    }
    GPULUA_STATUS_TABLE(X)
#undef X
    return GPULUA_OK;
}

gpulua_status gpu_lua_error_code(lua_State *L, const struct gpulua *g, int index) {
    (void)g;
    if (!lua_checkstack(L, 3) || !is_error(L, index)) {
        return GPULUA_OK;
    }
    index = lua_absindex(L, index);
    lua_pushliteral(L, "code");
    lua_rawget(L, index);
    const char *name = lua_tostring(L, -1);
    gpulua_status status = name ? status_from_name(name) : GPULUA_OK;
    lua_pop(L, 1);
    return status;
}

/* core.raise(code, message[, hint[, offset, length, size]]): the last three of OutOfBounds. */
int gpu_lua_error_raise(lua_State *L) {
    struct gpu_error error;
    gpulua_status status = status_from_name(luaL_checkstring(L, 1));
    luaL_argcheck(L, status != GPULUA_OK, 1, "no such code");
    gpu_error_set(&error, status, "%s", luaL_checkstring(L, 2));
    const char *hint = luaL_optstring(L, 3, NULL);
    if (!lua_isnoneornil(L, 4)) {
        gpu_error_set_range(&error, luaL_checkinteger(L, 4), luaL_checkinteger(L, 5),
                            luaL_checkinteger(L, 6));
    }
    push_error(L, &error, 1); /* what our Lua files call to raise is no news */
    if (hint) {
        lua_pushstring(L, hint);
        lua_setfield(L, -2, "hint");
    }
    return lua_error(L);
}

/* ---- as text ---- */

static void add_field(lua_State *L, luaL_Buffer *text, const char *format, const char *field) {
    lua_getfield(L, 1, field);
    const char *value = lua_tostring(L, -1);
    if (value && value[0]) {
        lua_pushfstring(L, format, value);
        lua_remove(L, -2);
        luaL_addvalue(text);
    } else {
        lua_pop(L, 1);
    }
}

/* "saxpy" (stream 3, 7th on it) from pipeline.lua:12; the table of the op is on top, and popped.
 * `more`: so many behind it on its stream are the same. */
static void add_op(lua_State *L, luaL_Buffer *text, const char *lead, lua_Integer more) {
    int op = lua_gettop(L);
    char line[320], last[32] = "";
    lua_getfield(L, op, "label");
    lua_getfield(L, op, "stream");
    lua_getfield(L, op, "seq");
    lua_getfield(L, op, "source");
    lua_getfield(L, op, "line");
    const char *label = lua_tostring(L, op + 1);
    const char *source = lua_tostring(L, op + 4);
    long long seq = (long long)lua_tointeger(L, op + 3);
    if (more > 0) {
        snprintf(last, sizeof last, " to %lld", seq + (long long)more);
    }
    int used = snprintf(line, sizeof line, "\n  %s: %s (stream %lld, seq %lld%s)", lead,
                        label ? label : "?", (long long)lua_tointeger(L, op + 2), seq, last);
    if (source && used > 0 && (size_t)used < sizeof line) {
        snprintf(line + used, sizeof line - (size_t)used, ", asked for at %s:%lld", source,
                 (long long)lua_tointeger(L, op + 5));
    }
    lua_settop(L, op - 1);
    luaL_addstring(text, line);
}

/* Requests, such as a compilation, are on no stream and from no line of their own: the error's line
 * says it all. */
static bool is_request(lua_State *L) {
    bool has_source = lua_getfield(L, -1, "source") != LUA_TNIL;
    lua_getfield(L, -2, "stream");
    bool is_on_stream = lua_tointeger(L, -1) != 0;
    lua_pop(L, 2);
    return !has_source && !is_on_stream;
}

/* Without the log, if that follows. */
static void add_message(lua_State *L, luaL_Buffer *text) {
    lua_getfield(L, 1, "message");
    lua_getfield(L, 1, "log");
    const char *message = lua_tostring(L, -2);
    const char *end = message && lua_isstring(L, -1) ? strchr(message, '\n') : NULL;
    lua_pop(L, 1);
    if (end) {
        lua_pushlstring(L, message, (size_t)(end - message));
        lua_remove(L, -2);
    }
    if (message) {
        luaL_addvalue(text);
    } else {
        lua_pop(L, 1);
    }
}

static void add_op_field(lua_State *L, luaL_Buffer *text, const char *field) {
    if (lua_getfield(L, 1, field) == LUA_TTABLE && !is_request(L)) {
        add_op(L, text, field, 0);
    } else {
        lua_pop(L, 1);
    }
}

/* The table of one of an error's suspects; false: there is none, or something else, and nothing is
 * pushed. */
static bool push_suspect(lua_State *L, lua_Integer number) {
    if (lua_getfield(L, 1, "suspects") == LUA_TTABLE) {
        lua_rawgeti(L, -1, number);
        lua_remove(L, -2);
    }
    if (!lua_istable(L, -1)) {
        lua_pop(L, 1);
        return false;
    }
    return true;
}

/* Is the operation on top the one below it again, so many places behind it on its stream? */
static bool is_next_of(lua_State *L, lua_Integer places) {
    static const char *const fields[] = {"label", "stream", "source", "line"};
    int later = lua_gettop(L), earlier = later - 1;
    lua_getfield(L, earlier, "seq");
    lua_getfield(L, later, "seq");
    bool is_it = lua_tointeger(L, -2) + places == lua_tointeger(L, -1);
    lua_pop(L, 2);
    for (size_t i = 0; i < sizeof fields / sizeof *fields && is_it; i++) {
        lua_getfield(L, earlier, fields[i]);
        lua_getfield(L, later, fields[i]);
        is_it = lua_rawequal(L, -1, -2);
        lua_pop(L, 2);
    }
    return is_it;
}

static int error_tostring(lua_State *L) {
    luaL_Buffer text;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    luaL_buffinit(L, &text);
    lua_getfield(L, 1, "source");
    lua_getfield(L, 1, "line");
    if (lua_isstring(L, -2) && lua_isinteger(L, -1)) {
        lua_pushfstring(L, "%s:%I: ", lua_tostring(L, -2), (LUAI_UACINT)lua_tointeger(L, -1));
        lua_insert(L, -3);
        lua_pop(L, 2);
        luaL_addvalue(&text);
    } else {
        lua_pop(L, 2);
    }
    add_field(L, &text, "%s: ", "code");
    add_message(L, &text);
    add_op_field(L, &text, "op");
    add_op_field(L, &text, "root");
    lua_Integer count =
        lua_getfield(L, 1, "suspects") == LUA_TTABLE ? (lua_Integer)lua_rawlen(L, -1) : 0;
    lua_pop(L, 1);
    /* The buffer's own value, if any, lies below: it may be used while only ours is above. What is
     * in the list may change it. */
    for (lua_Integer i = 1; i <= count; i++) {
        lua_Integer more = 0;
        if (!push_suspect(L, i)) {
            continue;
        }
        while (i < count && push_suspect(L, i + 1)) {
            bool is_next = is_next_of(L, more + 1);
            lua_pop(L, 1);
            if (!is_next) {
                break;
            }
            more++;
            i++;
        }
        add_op(L, &text, "suspect", more);
    }
    add_field(L, &text, "\n%s", "log");
    if (gpu_lua_error_code(L, NULL, 1) != GPULUA_INTERRUPTED) { /* as Lua's interpreter shows it */
        add_field(L, &text, "\n  hint: %s", "hint");
    }
    add_field(L, &text, "\n%s", "traceback");
    luaL_pushresult(&text);
    return 1;
}

void gpu_lua_error_open(lua_State *L, struct gpulua *g) {
    (void)g;
    luaL_newmetatable(L, "gpulua.error");
    lua_pushliteral(L, "gpulua.error");
    lua_setfield(L, -2, "__name");
    lua_pushcfunction(L, error_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);
}
