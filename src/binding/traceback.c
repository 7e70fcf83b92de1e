/* A stack as text, as Lua's own traceback writes it. That one goes through all that package.loaded
 * has for each of the functions on the stack, which for an error of a program with a dozen modules
 * takes 80 to 300 us; here each function has its name once. */
#include <string.h>

#include "binding/loop.h"

/* luaL_traceback shows as many of the first and of the last levels of a deep stack. */
#define LEVELS_FIRST 10
#define LEVELS_LAST 11

/* Keys of the registry: the names of functions, the modules that they are of, both by weak keys, so
 * that a name keeps no function; and how many modules there were then. */
static const char key_names, key_modules, key_count;

static lua_Integer loaded_count(lua_State *L) {
    lua_Integer count = 0;
    if (lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE) == LUA_TTABLE) {
        for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
            count++;
        }
    }
    lua_pop(L, 1);
    return count;
}

/* Notes the functions of all modules. Makes no string and so no step of the collector, whose
 * finalisers could change the tables meanwhile. What is global has that name, whatever module has
 * it, too. */
static void names_add(lua_State *L) {
    int top = lua_gettop(L), names = top + 1, modules = top + 2, globals = top + 3,
        loaded = top + 4;
    gpu_lua_push_weak(L, &key_names, "k");
    gpu_lua_push_weak(L, &key_modules, "k");
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    for (lua_pushnil(L); lua_istable(L, loaded) && lua_next(L, loaded); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || !lua_istable(L, -1)) {
            continue;
        }
        bool is_global = lua_rawequal(L, -1, globals);
        for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
            if (lua_type(L, -2) != LUA_TSTRING || !lua_isfunction(L, -1)) {
                continue;
            }
            lua_pushvalue(L, -1);
            bool is_named = lua_rawget(L, names) != LUA_TNIL;
            lua_pop(L, 1);
            if (is_global || !is_named) {
                lua_pushvalue(L, -1);
                lua_pushvalue(L, -3);
                lua_rawset(L, names);
                lua_pushvalue(L, -1);
                if (is_global) {
                    lua_pushnil(L);
                } else {
                    lua_pushvalue(L, -5);
                }
                lua_rawset(L, modules);
            }
        }
    }
    lua_settop(L, top);
}

/* Where modules have come or gone. One in the place of another is not seen: the names of its
 * functions are those that the calls have for them. */
static void names_renew(lua_State *L) {
    lua_Integer count = loaded_count(L);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &key_count);
    bool is_new = lua_tointeger(L, -1) != count;
    lua_pop(L, 1);
    if (is_new) {
        names_add(L);
        lua_pushinteger(L, count);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &key_count);
    }
}

/* Pushes what the table at `key` of the registry has of the function at `function`. Its type. */
static int push_known(lua_State *L, const void *key, int function) {
    gpu_lua_push_weak(L, key, "k");
    lua_pushvalue(L, function);
    lua_rawget(L, -2);
    lua_remove(L, -2);
    return lua_type(L, -1);
}

/* Pops the function on top and adds "function 'gpulua.open'". False: it has no such name. */
static bool add_global_name(lua_State *L, luaL_Buffer *text) {
    int function = lua_gettop(L);
    if (push_known(L, &key_names, function) == LUA_TNIL) {
        lua_settop(L, function - 1);
        return false;
    }
    const char *name = lua_tostring(L, -1);
    if (push_known(L, &key_modules, function) == LUA_TSTRING) {
        lua_pushfstring(L, "function '%s.%s'", lua_tostring(L, -1), name);
    } else {
        lua_pushfstring(L, "function '%s'", name);
    }
    lua_replace(L, function);
    lua_settop(L, function);
    luaL_addvalue(text);
    return true;
}

static void add_level(lua_State *L, luaL_Buffer *text, lua_Debug *ar) {
    lua_getinfo(L, "Slnt", ar);
    if (ar->currentline > 0) {
        lua_pushfstring(L, "\n\t%s:%d: in ", ar->short_src, ar->currentline);
    } else {
        lua_pushfstring(L, "\n\t%s: in ", ar->short_src);
    }
    luaL_addvalue(text);
    lua_getinfo(L, "f", ar);
    if (!add_global_name(L, text)) {
        if (strcmp(ar->namewhat, "global") == 0) { /* which no module had then */
            lua_pushfstring(L, "function '%s'", ar->name);
        } else if (ar->namewhat[0]) {
            lua_pushfstring(L, "%s '%s'", ar->namewhat, ar->name);
        } else if (ar->what[0] == 'm') {
            lua_pushliteral(L, "main chunk");
        } else if (ar->what[0] != 'C') {
            lua_pushfstring(L, "function <%s:%d>", ar->short_src, ar->linedefined);
        } else {
            lua_pushliteral(L, "?");
        }
        luaL_addvalue(text);
    }
    if (ar->istailcall) {
        luaL_addstring(text, "\n\t(...tail calls...)");
    }
}

/* The last level of the stack. Asking for a level walks to it. */
static int last_level(lua_State *L) {
    lua_Debug ar;
    int there = 0, not_there = 1;
    while (lua_getstack(L, not_there, &ar)) {
        there = not_there;
        not_there *= 2;
    }
    while (not_there - there > 1) {
        int middle = (there + not_there) / 2;
        *(lua_getstack(L, middle, &ar) ? &there : &not_there) = middle;
    }
    return there;
}

void gpu_lua_push_traceback(lua_State *L, int level) {
    luaL_checkstack(L, LUA_MINSTACK, NULL);
    names_renew(L);
    lua_Debug ar;
    int left_out = last_level(L) - level + 1 - LEVELS_FIRST - LEVELS_LAST;
    int left_out_at = left_out > 1 ? level + LEVELS_FIRST : -1; /* in the place of one: that one */
    luaL_Buffer text;
    luaL_buffinit(L, &text);
    luaL_addstring(&text, "stack traceback:");
    for (; lua_getstack(L, level, &ar); level++) {
        if (level == left_out_at) {
            lua_pushfstring(L, "\n\t...\t(skipping %d levels)", left_out);
            luaL_addvalue(&text);
            level += left_out - 1;
        } else {
            add_level(L, &text, &ar);
        }
    }
    luaL_pushresult(&text);
}
