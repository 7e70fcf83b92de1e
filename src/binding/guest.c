/* The guest: another library's loop, which runs inside of ours.
 *
 * Each turn that runs tasks begins with it, so that it sees what tasks have begun in its library
 * before we sleep, and has its turn when tasks are always ready. It runs on the main thread,
 * outside of tasks: what its callbacks spawn belongs to nobody, and they cannot wait for tasks. */
#include <errno.h>
#include <string.h>

#include <lauxlib.h>

#include "binding/check.h"
#include "binding/loop.h"

static const char guest_key; /* registry: the function */

/* Calls the function, which returns nothing while there is nothing to wait for, else a descriptor
 * and perhaps a time: when one of them is due it is to be called again. */
static int call(lua_State *L) {
    struct gpulua *g = lua_touserdata(L, 1);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &guest_key);
    lua_call(L, 0, 2);
    g->guest_deadline_ns = gpu_lua_opt_deadline(L, lua_gettop(L), 2, "guest");
    if (lua_isnil(L, -2)) {
        gpu_lua_slot_clear(&g->guest);
    } else if (!g->guest.descriptor && !g->is_closed &&
               !gpu_lua_slot_watch_descriptor(&g->guest, g, (int)lua_tointeger(L, -2))) {
        luaL_error(L, "the guest's descriptor cannot be waited for: %s", strerror(errno));
    }
    return 0;
}

/* False: the error is on top of the main thread's stack. */
static bool run(struct gpulua *g) {
    lua_State *L = g->L;
    g->guest_deadline_ns = INT64_MAX;
    g->guest_is_due = false;
    lua_pushcfunction(L, call);
    lua_pushlightuserdata(L, g);
    return lua_pcall(L, 1, 0, 0) == LUA_OK;
}

void gpu_lua_guest_end(struct gpulua *g) {
    gpu_lua_slot_clear(&g->guest);
    g->guest_deadline_ns = INT64_MAX;
    g->guest_is_due = g->has_guest = false;
}

/* Stock Lua's answer to Ctrl-C: an error from a hook, wherever it is. */
static bool is_interrupt(lua_State *L) {
    static const char text[] = "interrupted!";
    size_t length = 0;
    const char *message = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &length) : NULL;
    return length >= sizeof text - 1 && strcmp(message + length - (sizeof text - 1), text) == 0;
}

void gpu_lua_guest_run(struct gpulua *g) {
    if (!g->has_guest || !lua_checkstack(g->L, 8)) {
        return;
    }
    gpu_lua_check_know_all(g); /* callbacks count as behind all that was submitted before */
    if (!run(g)) {
        if (is_interrupt(g->L)) { /* it is for who waits, and the guest goes on */
            lua_pop(g->L, 1);
            g->guest_is_due = true;
            atomic_store(&g->interrupt, 1);
            return;
        }
        gpu_lua_guest_end(g);
        gpu_lua_tell(g, g->L, NULL);
    }
}

/* core.guest([f]): from here on f is the guest; without one there is none. Calls it at once, and
 * raises its error. */
int gpu_lua_guest(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_refuse_in_sandbox(L, g, "guest");
    gpu_lua_guest_end(g);
    lua_settop(L, 1);
    bool is_given = !lua_isnil(L, 1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &guest_key);
    if (!is_given) {
        return 0;
    }
    luaL_checkstack(g->L, 8, NULL);
    g->has_guest = true;
    if (!run(g)) {
        gpu_lua_guest_end(g);
        lua_xmove(g->L, L, 1); /* does nothing where they are the same */
        return lua_error(L);
    }
    return 0;
}
