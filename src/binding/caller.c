/* The call that a function of ours was called with (see caller.h). */
#include "binding/caller.h"

#include <lauxlib.h>
#include <string.h>

#include "binding/binding.h"
#include "binding/loop.h"

#define LEVELS_MAX 12 /* behind so many functions of C and of ours no script is looked for */

#define IS_C 2u /* in the status */

/* ---- is it laid out like that? ---- */

#define PROBES 5u

struct probe {
    uint32_t count;
    bool fails;
    int result_count[PROBES];
    const uint32_t *instruction[PROBES];
};

static int note_call(lua_State *L) {
    struct probe *probe = lua_touserdata(L, lua_upvalueindex(1));
    lua_Debug own, caller;
    if (probe->count >= PROBES || !lua_getstack(L, 0, &own) || !lua_getstack(L, 1, &caller)) {
        probe->fails = true;
        return 0;
    }
    const struct lua_call *of_own = (const void *)own.i_ci, *of_caller = (const void *)caller.i_ci;
    probe->fails |=
        of_own->previous != of_caller || !(of_own->status & IS_C) || (of_caller->status & IS_C);
    probe->result_count[probe->count] = of_own->result_count;
    probe->instruction[probe->count++] = of_caller->instruction;
    return 0;
}

/* The arguments are 7, 2.5, a userdata without user values and one with one. */
static int note_values(lua_State *L) {
    lua_Debug own;
    bool *is = lua_touserdata(L, lua_upvalueindex(1));
    if (lua_gettop(L) != 4 || !lua_getstack(L, 0, &own)) {
        return 0;
    }
    const struct lua_value *values =
        ((const struct lua_call *)(const void *)own.i_ci)->function + 1;
    const char *plain = lua_touserdata(L, 3), *other = lua_touserdata(L, 4);
    *is = values[0].type == LUA_VALUE_INTEGER && values[0].integer == 7 &&
          values[1].type == LUA_VALUE_NUMBER && values[1].number == 2.5 &&
          values[2].type == LUA_VALUE_USERDATA && values[3].type == LUA_VALUE_USERDATA &&
          plain - (const char *)values[2].object == offsetof(struct lua_userdata, memory) &&
          other - (const char *)values[3].object > (ptrdiff_t)sizeof(struct lua_userdata) &&
          gpu_lua_memory_of(&values[2], lua_rawlen(L, 3)) == plain &&
          !gpu_lua_memory_of(&values[2], lua_rawlen(L, 3) + 1) &&
          !gpu_lua_memory_of(&values[3], 0) && !gpu_lua_memory_of(&values[0], 0);
    return 0;
}

static bool are_values_as_known(lua_State *L) {
    bool is = false;
    int top = lua_gettop(L);
    lua_pushlightuserdata(L, &is);
    lua_pushcclosure(L, note_values, 1);
    lua_pushinteger(L, 7);
    lua_pushnumber(L, 2.5);
    (void)lua_newuserdatauv(L, 40, 0);
    (void)lua_newuserdatauv(L, 40, 1);
    bool is_well = lua_pcall(L, 4, 0, 0) == LUA_OK;
    lua_settop(L, top);
    return is_well && is;
}

#define FUNCTION_TYPE 6 /* of its own, where a value's would have the collector's bit, too */

/* What f's upvalues are, 7 and 2.5: whether they are variables of what runs, or were. */
static bool is_function_as_known(lua_State *L, int index, bool has_ended) {
    const struct lua_function *f = lua_topointer(L, index);
    const struct lua_upvalue *const *upvalues = f->upvalues;
    if (f->type != FUNCTION_TYPE || f->upvalue_count != 2) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        if (upvalues[i] != lua_upvalueid(L, index, i + 1) ||
            (has_ended && (const void *)upvalues[i]->value != (const void *)(upvalues[i] + 1))) {
            return false; /* what it points to may be nothing */
        }
    }
    return upvalues[0]->value->type == LUA_VALUE_INTEGER && upvalues[0]->value->integer == 7 &&
           upvalues[1]->value->type == LUA_VALUE_NUMBER && upvalues[1]->value->number == 2.5;
}

static int note_function(lua_State *L) {
    bool *is = lua_touserdata(L, lua_upvalueindex(1));
    *is = *is && lua_gettop(L) == 2 && lua_isfunction(L, 1) && !lua_iscfunction(L, 1) &&
          is_function_as_known(L, 1, lua_toboolean(L, 2));
    return 0;
}

static bool are_functions_as_known(lua_State *L) {
    static const char source[] = "local note = ...\n"
                                 "local f\n"
                                 "do local a, b = 7, 2.5 f = function() return a, b end end\n"
                                 "note(f, true)\n"
                                 "local c, d = 7, 2.5\n"
                                 "note(function() return c, d end, false)\n"
                                 "return true";
    bool is = true;
    int top = lua_gettop(L);
    bool is_well = luaL_loadbufferx(L, source, sizeof source - 1, "=gpulua/caller", "t") == LUA_OK;
    if (is_well) {
        lua_pushlightuserdata(L, &is);
        lua_pushcclosure(L, note_function, 1);
        is_well = lua_pcall(L, 1, 1, 0) == LUA_OK && lua_toboolean(L, -1);
    }
    lua_settop(L, top);
    return is_well && is;
}

static bool are_calls_as_known(lua_State *L) {
    static const char source[] = "local f = ...\n"
                                 "for _ = 1, 2 do f() end\n"
                                 "local a = f()\n"
                                 "local b, c, d = f(a, f())\n"
                                 "return b, c, d";
    static const int expected[PROBES] = {0, 0, 1, -1, 3};
    struct probe probe = {0};
    int top = lua_gettop(L);
    if (luaL_loadbufferx(L, source, sizeof source - 1, "=gpulua/caller", "t") != LUA_OK) {
        lua_settop(L, top);
        return false;
    }
    lua_pushlightuserdata(L, &probe);
    lua_pushcclosure(L, note_call, 1);
    bool is = lua_pcall(L, 1, 0, 0) == LUA_OK && !probe.fails && probe.count == PROBES;
    lua_settop(L, top);
    const uint32_t *before = probe.instruction[0];
    for (uint32_t i = 0; i < PROBES; i++) {
        const uint32_t *at = probe.instruction[i];
        is = is && probe.result_count[i] == expected[i] &&
             (i < 2 ? at == before : at > before && at < before + 64);
        before = at;
    }
    return is;
}

static const char functions_key;

/* The weak table has false, a function and false again, each as rawset puts it there. */
static const struct lua_value *open_functions(lua_State *L) {
    gpu_lua_push_weak(L, &functions_key, "v");
    for (uint32_t i = 1; i <= CALLER_PLACES; i++) { /* so that setting one allocates nothing */
        lua_pushboolean(L, 0);
        lua_rawseti(L, -2, (lua_Integer)i);
    }
    const struct lua_table *table = lua_topointer(L, -1);
    const struct lua_value *found = table->array_count == CALLER_PLACES ? table->array : NULL;
    bool is = found && luaL_loadstring(L, "return true") == LUA_OK;
    for (uint32_t i = 0; is && i < CALLER_PLACES; i++) {
        lua_pushvalue(L, -1);
        lua_rawseti(L, -3, (lua_Integer)i + 1);
        is = found[i].type == LUA_VALUE_FUNCTION && found[i].object == lua_topointer(L, -1);
        lua_pushboolean(L, 0);
        lua_rawseti(L, -3, (lua_Integer)i + 1);
        is = is && found[i].type == LUA_VALUE_FALSE;
    }
    lua_pop(L, found ? 2 : 1);
    return is ? found : NULL;
}

void gpu_lua_caller_open(lua_State *L, struct gpulua *g) {
    g->caller.functions = open_functions(L);
    g->caller.is_known = g->caller.functions && are_calls_as_known(L) && are_values_as_known(L) &&
                         are_functions_as_known(L);
}

void gpu_lua_caller_forget(struct gpulua *g) {
    memset(g->caller.places, 0, sizeof g->caller.places);
}

/* ---- asking ---- */

static uint32_t place_of(const void *at) {
    uintptr_t bits = (uintptr_t)at / sizeof(uint32_t);
    return (uint32_t)(bits ^ bits >> 6 ^ bits >> 12) & (CALLER_PLACES - 1);
}

/* NULL: it has not called before. Only a function that is there still has its instructions where
 * they were. */
static inline const struct caller_place *find(const struct caller *caller,
                                              const struct gpu_device *device, const void *at) {
    uint32_t number = place_of(at);
    const struct caller_place *place = &caller->places[number];
    bool is_it = place->at == at && place->device == device &&
                 caller->functions[number].type == LUA_VALUE_FUNCTION;
    return is_it ? place : NULL;
}

static void keep(lua_State *L, struct gpulua *g, lua_Debug *ar, const struct caller_place *place) {
    uint32_t number = place_of(place->at);
    gpu_lua_push_weak(L, &functions_key, "v");
    lua_getinfo(L, "f", ar);
    lua_rawseti(L, -2, (lua_Integer)number + 1);
    lua_pop(L, 1);
    g->caller.places[number] = *place;
}

/* What lua.h says; a line of 0 where it is none of the script's. */
static struct gpu_site look(lua_State *L, struct gpu_device *device, lua_Debug *ar) {
    struct gpu_site site = {0};
    lua_getinfo(L, "Sl", ar);
    if (ar->currentline > 0 && !gpu_lua_is_ours(ar)) {
        site.source = gpu_device_intern(device, ar->short_src);
        site.line = site.source ? ar->currentline : 0; /* no line without its file */
    }
    return site;
}

/* With lua.h alone. */
static struct gpu_site site_of_level(lua_State *L, struct gpu_device *device) {
    struct gpu_site site = {0};
    lua_Debug ar;
    for (int level = 1; site.line == 0 && level < LEVELS_MAX && lua_getstack(L, level, &ar);
         level++) {
        site = look(L, device, &ar);
    }
    return site;
}

void gpu_lua_site_of(lua_State *L, struct gpulua *g, const struct lua_call *call,
                     struct gpu_device *device, struct gpu_site *site) {
    if (!call) {
        *site = site_of_level(L, device);
        return;
    }
    *site = (struct gpu_site){0};
    call = call->previous;
    /* The first of all is no function's. */
    for (int level = 1; level < LEVELS_MAX && call->previous; level++, call = call->previous) {
        if (call->status & IS_C) {
            continue;
        }
        const void *at = call->instruction;
        const struct caller_place *place = find(&g->caller, device, at);
        if (place) {
            *site = place->site;
        } else {
            lua_Debug ar = {.i_ci = (struct CallInfo *)(uintptr_t)call};
            *site = look(L, device, &ar);
            keep(L, g, &ar, &(struct caller_place){at, device, *site});
        }
        if (site->line != 0) {
            return;
        }
    }
}

void gpu_lua_site(lua_State *L, struct gpulua *g, struct gpu_device *device,
                  struct gpu_site *site) {
    gpu_lua_site_of(L, g, gpu_lua_call(L, &g->caller), device, site);
}
