/* Two tables of globals: ours has Lua's libraries for the modules of gpulua, the script's has what
 * lua/gpulua/sandbox.lua makes of them. Nothing leads from one to the other: there is no debug
 * library and no package table, and require opens three modules by name. */
#include "host/sandbox.h"

#include <string.h>

#include <lauxlib.h>
#include <lualib.h>

#include "binding/core.h"
#include "binding/loop.h"
#include "host/handle.h"
#include "host/pattern.h"

static const char trusted_key; /* registry: our own modules' table of globals */

/* Upvalue 1: the object. Lines of scripts go where the host's other lines go. */
static int print_line(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const char *line = luaL_checkstring(L, 1);
    if (g->config.on_log) {
        g->config.on_log(g->config.user, line);
    }
    return 0;
}

/* require for scripts. */
static int open_module(lua_State *L) {
    static const char *const public[] = {"gpulua", "gpulua.npy", "gpulua.wav", "gpulua.image"};
    const char *name = luaL_checkstring(L, 1);
    bool is_public = false;
    for (size_t i = 0; i < sizeof public / sizeof *public; i++) {
        is_public |= strcmp(name, public[i]) == 0;
    }
    if (!is_public) {
        lua_pushfstring(L, "a sandbox has no module '%s'", name);
        return lua_error(L);
    }
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    if (lua_getfield(L, -1, name) != LUA_TNIL) {
        return 1;
    }
    lua_pop(L, 1);
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_getfield(L, -1, name);
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    lua_pushvalue(L, -1);
    lua_setfield(L, -4, name);
    return 1;
}

void gpu_sandbox_open(lua_State *L) {
    luaL_openlibs(L);
    luaL_Buffer first; /* so that its metatable is there: see host/heap.c */
    luaL_buffinitsize(L, &first, 2 * LUAL_BUFFERSIZE);
    luaL_pushresultsize(&first, 0);
    lua_pop(L, 1);
    gpu_host_load_file(L, "sandbox.lua");
    static const luaL_Reg functions[] = {
        {"print", print_line}, {"require", open_module}, {NULL, NULL}};
    lua_newtable(L);
    gpu_pattern_functions_set(L);
    lua_newtable(L);
    gpu_lua_set_functions(L, functions);
    lua_getfield(L, -1, "print");
    lua_getfield(L, -2, "require");
    lua_remove(L, -3);
    lua_call(L, 3, 1);
    lua_pushglobaltable(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &trusted_key);
    lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
}

bool gpu_sandbox_trust(lua_State *L) {
    bool is_sandbox = lua_rawgetp(L, LUA_REGISTRYINDEX, &trusted_key) == LUA_TTABLE;
    if (is_sandbox) {
        lua_setupvalue(L, -2, 1);
    } else {
        lua_pop(L, 1);
    }
    return is_sandbox;
}
