/* What a script writes beside a line of progress that is open: on a terminal the line gives way,
 * and the next step draws it again. print, io.write and file:write are Lua's own behind that. */
#include <unistd.h>

#include <lauxlib.h>
#include <lualib.h>

#include "interpreter/program.h"

static lua_CFunction plain_print, plain_write, plain_file_write;

static void give_way(const FILE *file) {
    int descriptor = file == stdout ? STDOUT_FILENO : file == stderr ? STDERR_FILENO : -1;
    if (program.line_is_open && descriptor >= 0 && isatty(descriptor)) {
        program.line_is_open = false;
        fputs("\r\33[K", stderr);
        fflush(stderr);
    }
}

static void give_way_to(lua_State *L, int index) {
    const luaL_Stream *stream = luaL_testudata(L, index, LUA_FILEHANDLE);
    if (stream) {
        give_way(stream->f);
    }
}

static int print(lua_State *L) {
    give_way(stdout);
    return plain_print(L);
}

static int io_write(lua_State *L) {
    if (program.line_is_open) {
        lua_getfield(L, LUA_REGISTRYINDEX, "_IO_output");
        give_way_to(L, -1);
        lua_pop(L, 1);
    }
    return plain_write(L);
}

static int file_write(lua_State *L) {
    give_way_to(L, 1);
    return plain_file_write(L);
}

/* The function of that name in the table on top becomes ours. */
static void replace(lua_State *L, const char *name, lua_CFunction ours, lua_CFunction *plain) {
    lua_getfield(L, -1, name);
    *plain = lua_tocfunction(L, -1);
    lua_pop(L, 1);
    lua_pushcfunction(L, ours);
    lua_setfield(L, -2, name);
}

void output_take_over(lua_State *L) {
    int top = lua_gettop(L);
    lua_pushglobaltable(L);
    replace(L, "print", print, &plain_print);
    if (lua_getglobal(L, LUA_IOLIBNAME) == LUA_TTABLE) {
        replace(L, "write", io_write, &plain_write);
    }
    luaL_getmetatable(L, LUA_FILEHANDLE);
    if (lua_istable(L, -1) && lua_getfield(L, -1, "__index") == LUA_TTABLE) {
        replace(L, "write", file_write, &plain_file_write);
    }
    lua_settop(L, top);
}
