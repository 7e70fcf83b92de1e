/* Lines from a terminal, as Lua's interpreter takes them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>

#include "interpreter/program.h"

static bool read_line(lua_State *L, bool is_first) {
    char *line = NULL;
    size_t capacity = 0;
    lua_getglobal(L, is_first ? "_PROMPT" : "_PROMPT2");
    const char *prompt = lua_isnil(L, -1) ? NULL : luaL_tolstring(L, -1, NULL);
    fputs(prompt ? prompt : is_first ? "> " : ">> ", stdout);
    fflush(stdout);
    ssize_t length = getline(&line, &capacity, stdin);
    if (length < 0) {
        free(line);
        return false;
    }
    if (length > 0 && line[length - 1] == '\n') {
        length--;
    }
    if (is_first && length > 0 && line[0] == '=') {
        lua_pushliteral(L, "return ");
        lua_pushlstring(L, line + 1, (size_t)length - 1);
        lua_concat(L, 2);
    } else {
        lua_pushlstring(L, line, (size_t)length);
    }
    free(line);
    return true;
}

static bool is_incomplete(lua_State *L, int status) {
    static const char mark[] = "<eof>";
    size_t length;
    if (status != LUA_ERRSYNTAX) {
        return false;
    }
    const char *message = lua_tolstring(L, -1, &length);
    return message && length >= sizeof mark - 1 &&
           strcmp(message + length - (sizeof mark - 1), mark) == 0;
}

/* Leaves a chunk or a message. -1: the input is over. */
static int read_chunk(lua_State *L) {
    lua_settop(L, 0);
    if (!read_line(L, true)) {
        return -1;
    }
    lua_replace(L, 1);
    lua_settop(L, 1);
    /* An expression first: its values are shown. */
    const char *expression = lua_pushfstring(L, "return %s", lua_tostring(L, 1));
    if (luaL_loadbuffer(L, expression, strlen(expression), "=stdin") == LUA_OK) {
        lua_replace(L, 1);
        lua_settop(L, 1);
        return LUA_OK;
    }
    lua_settop(L, 1);
    for (;;) {
        size_t length;
        const char *text = lua_tolstring(L, 1, &length);
        int status = luaL_loadbuffer(L, text, length, "=stdin");
        if (!is_incomplete(L, status) || !read_line(L, false)) {
            lua_replace(L, 1);
            lua_settop(L, 1);
            return status;
        }
        lua_replace(L, 2); /* the further line */
        lua_settop(L, 2);
        lua_pushliteral(L, "\n");
        lua_insert(L, 2);
        lua_concat(L, 3);
    }
}

static void show_results(lua_State *L, int count) {
    if (count == 0) {
        return;
    }
    luaL_checkstack(L, LUA_MINSTACK, "too many results to print");
    lua_getglobal(L, "print");
    lua_insert(L, -(count + 1));
    if (lua_pcall(L, count, 0, 0) != LUA_OK) {
        program_say(program.name,
                    lua_pushfstring(L, "error calling 'print' (%s)", lua_tostring(L, -1)));
    }
}

void interactive_run(lua_State *L) {
    int status;
    const char *name = program.name;
    program.name = NULL;
    while ((status = read_chunk(L)) != -1) {
        int count = status == LUA_OK ? chunk_run(L, 0) : -1;
        if (count >= 0) {
            show_results(L, count);
        } else {
            program_say(NULL,
                        lua_isstring(L, -1) ? lua_tostring(L, -1) : "(error message not a string)");
        }
    }
    lua_settop(L, 0);
    putchar('\n');
    fflush(stdout);
    program.name = name;
}
