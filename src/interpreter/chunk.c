/* Chunks run as tasks, and fail with the messages of Lua's interpreter. */
#include <string.h>

#include <lauxlib.h>

#include "interpreter/program.h"

static void on_interrupt(int number) {
    signal(number, SIG_DFL); /* a second one ends the program */
    program.was_interrupted = 1;
    gpulua_interrupt(program.g);
}

/* At a prompt the first may have to wait for another task, which the second one ends; a third one
 * ends the program. */
static volatile sig_atomic_t typed_count;
static void on_typed_interrupt(int number) {
    if (++typed_count > 1) {
        signal(number, SIG_DFL);
    }
    program.was_interrupted = 1;
    gpulua_interrupt(program.g);
}

static int call_tostring(lua_State *L) {
    return luaL_callmeta(L, 1, "__tostring");
}

/* The message that Lua's interpreter would print for the error on top; replaces it. */
static void to_message(lua_State *L, int task) {
    bool has_traceback = true;
    if (!lua_isstring(L, -1)) {
        lua_pushcfunction(L, call_tostring);
        lua_pushvalue(L, -2);
        bool is_ok = lua_pcall(L, 1, 1, 0) == LUA_OK;
        if (is_ok && lua_type(L, -1) == LUA_TSTRING) {
            has_traceback = false;
        } else {
            lua_pop(L, 1);
            lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, -1));
        }
        lua_remove(L, -2);
    }
    lua_getfield(L, task, "traceback");
    lua_pushvalue(L, task);
    lua_call(L, 1, 1);
    if (has_traceback && lua_isstring(L, -1)) {
        lua_pushliteral(L, "\n");
        lua_insert(L, -2);
        lua_concat(L, 3);
    } else {
        lua_pop(L, 1);
    }
}

static bool task_is_over(lua_State *L, int task) {
    lua_getfield(L, task, "done");
    lua_pushvalue(L, task);
    lua_call(L, 1, 1);
    bool is_over = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return is_over;
}

static void run_tasks(lua_State *L, int task, bool is_typed) {
    void (*handler)(int) = is_typed ? on_typed_interrupt : on_interrupt;
    void (*outer)(int) = signal(SIGINT, handler);
    typed_count = 0;
    while (!ending_is_due() && (task ? !task_is_over(L, task) : gpulua_tasks(program.g) > 0)) {
        if (gpulua_step(program.g, -1) < 0) {
            break;
        }
        if (is_typed) {
            typed_count = 0; /* whom they were for has them */
            signal(SIGINT, handler);
        }
    }
    signal(SIGINT, outer == SIG_ERR ? SIG_DFL : outer);
}

void chunk_run_tasks(lua_State *L, int task) {
    run_tasks(L, task, false);
}

static int run_by(lua_State *L, int arg_count, bool is_typed) {
    int base = lua_gettop(L) - arg_count;
    program.was_interrupted = 0;
    luaL_checkstack(L, LUA_MINSTACK, "too many arguments"); /* they may fill what there is */
    lua_getfield(L, LUA_REGISTRYINDEX, is_typed ? "gpulua.spawn_typed" : "gpulua.spawn");
    lua_insert(L, base);
    lua_call(L, arg_count + 1, 1);
    run_tasks(L, base, is_typed);
    if (!task_is_over(L, base)) {
        lua_settop(L, base - 1);
        lua_pushboolean(L, 0);
        lua_pushfstring(L, "ended by signal %d (%s)", (int)program.end_signal,
                        strsignal(program.end_signal));
        return -1;
    }
    lua_getfield(L, base, "join");
    lua_pushvalue(L, base);
    lua_call(L, 1, LUA_MULTRET);
    bool ok = lua_toboolean(L, base + 1);
    if (!ok) {
        lua_settop(L, base + 2);
        to_message(L, base);
    }
    lua_remove(L, base);
    return ok ? lua_gettop(L) - base : -1;
}

int chunk_run(lua_State *L, int arg_count) {
    return run_by(L, arg_count, false);
}

int chunk_run_typed(lua_State *L, int arg_count) {
    return run_by(L, arg_count, true);
}

bool chunk_do(lua_State *L, int status, int arg_count) {
    int base = lua_gettop(L) - (status == LUA_OK ? arg_count : 0);
    bool ok = false;
    if (status == LUA_OK) {
        ok = chunk_run(L, arg_count) >= 0;
    }
    if (!ok) {
        program_say(program.name,
                    lua_isstring(L, -1) ? lua_tostring(L, -1) : "(error message not a string)");
    }
    lua_settop(L, base - 1);
    return ok;
}

bool chunk_do_string(lua_State *L, const char *text, const char *name) {
    return chunk_do(L, luaL_loadbuffer(L, text, strlen(text), name), 0);
}

bool chunk_do_file(lua_State *L, const char *path) {
    return chunk_do(L, luaL_loadfile(L, path), 0);
}

/* A task of its own, so that modules may wait in their main chunks where require allows it. */
static int value_called(lua_State *L, int status, lua_KContext context) {
    (void)status;
    (void)context;
    return lua_gettop(L);
}

static int call_value(lua_State *L) {
    lua_callk(L, lua_gettop(L) - 1, LUA_MULTRET, 0, value_called);
    return lua_gettop(L);
}

bool chunk_do_library(lua_State *L, const char *text) {
    const char *equals = strchr(text, '=');
    const char *name = equals ? equals + 1 : text;
    int arg_count = 1;
    if (lua_getglobal(L, "require") != LUA_TFUNCTION) { /* it may be called, or says why not */
        lua_pushcfunction(L, call_value);
        lua_insert(L, -2);
        arg_count++;
    }
    lua_pushstring(L, name);
    int count = chunk_run(L, arg_count);
    if (count < 0) {
        program_say(program.name, lua_tostring(L, -1));
        lua_pop(L, 2);
        return false;
    }
    lua_settop(L, lua_gettop(L) - count + 1); /* true, the module */
    if (equals) {
        lua_pushlstring(L, text, (size_t)(equals - text));
    } else {
        lua_pushstring(L, text);
    }
    lua_insert(L, -2);
    lua_pushglobaltable(L);
    lua_insert(L, -3);
    lua_settable(L, -3);
    lua_pop(L, 2);
    return true;
}
