/* The call that a function of ours was called with (see caller.h). */
#include "binding/caller.h"

#include <lauxlib.h>
#include <string.h>

#include "binding/binding.h"
#include "binding/loop.h"

#define LEVELS_MAX 12 /* behind so many functions of C and of ours no script is looked for */

/* struct CallInfo of Lua 5.4 (lstate.h), as far as it is read here. */
struct lua_call {
    void *function, *top;
    struct lua_call *previous, *next;
    const uint32_t *instruction; /* of a Lua function: behind the call that it is in */
    void *more[2];
    int32_t of_call;
    int16_t result_count; /* that whoever called wants; -1: all there are */
    uint16_t status;
};

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

static bool is_as_known(lua_State *L) {
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

void gpu_lua_caller_open(lua_State *L, struct gpulua *g) {
    static const char functions_key;
    g->caller.is_known = is_as_known(L);
    gpu_lua_push_weak(L, &functions_key, "v");
    for (uint32_t i = 1; i <= CALLER_PLACES; i++) { /* so that setting one allocates nothing */
        lua_pushboolean(L, 0);
        lua_rawseti(L, -2, (lua_Integer)i);
    }
    g->caller.functions_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}

void gpu_lua_caller_forget(struct gpulua *g) {
    memset(g->caller.places, 0, sizeof g->caller.places);
}

/* ---- asking ---- */

bool gpu_lua_is_result_wanted(lua_State *L, const struct gpulua *g) {
    lua_Debug ar;
    if (!g->caller.is_known || !lua_getstack(L, 0, &ar)) {
        return true;
    }
    return ((const struct lua_call *)(const void *)ar.i_ci)->result_count != 0;
}

static uint32_t place_of(const void *at) {
    uintptr_t bits = (uintptr_t)at / sizeof(uint32_t);
    return (uint32_t)(bits ^ bits >> 6 ^ bits >> 12) & (CALLER_PLACES - 1);
}

/* NULL: it has not called before. Only a function that is there still has its instructions where
 * they were. */
static const struct caller_place *find(lua_State *L, const struct gpulua *g,
                                       const struct gpu_device *device, const void *at) {
    uint32_t number = place_of(at);
    const struct caller_place *place = &g->caller.places[number];
    if (place->at != at || place->device != device) {
        return NULL;
    }
    lua_rawgeti(L, LUA_REGISTRYINDEX, g->caller.functions_ref);
    bool is_there = lua_rawgeti(L, -1, (lua_Integer)number + 1) == LUA_TFUNCTION;
    lua_pop(L, 2);
    return is_there ? place : NULL;
}

static void keep(lua_State *L, struct gpulua *g, lua_Debug *ar, const struct caller_place *place) {
    uint32_t number = place_of(place->at);
    lua_rawgeti(L, LUA_REGISTRYINDEX, g->caller.functions_ref);
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
        site.line = ar->currentline;
    }
    return site;
}

void gpu_lua_site(lua_State *L, struct gpulua *g, struct gpu_device *device,
                  struct gpu_site *site) {
    lua_Debug ar;
    *site = (struct gpu_site){0};
    for (int level = 1; site->line == 0 && level < LEVELS_MAX && lua_getstack(L, level, &ar);
         level++) {
        const struct lua_call *call = (const void *)ar.i_ci;
        if (!g->caller.is_known) {
            *site = look(L, device, &ar);
        } else if (!(call->status & IS_C)) {
            const void *at = call->instruction;
            const struct caller_place *place = find(L, g, device, at);
            *site = place ? place->site : look(L, device, &ar);
            if (!place) {
                keep(L, g, &ar, &(struct caller_place){at, device, *site});
            }
        }
    }
    if (!site->source) { /* no line without its file */
        site->line = 0;
    }
}
