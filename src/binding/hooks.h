/* Hooks of scripts (dev:hooks): functions that see each operation of a device.
 *
 * The first two are called while an operation is put together, on a coroutine of their own. What
 * that operation uses has to stay: so nothing of gpulua's can be called then, which GPU_LUA sees to
 * (g->is_in_hook), and what a hook raises is told (gpulua_config.on_error) and goes no further. The
 * other two are called from the loop and at the end of waits, for events never run Lua code.
 * lua/gpulua/hooks.lua knows which functions there are. */
#ifndef GPU_BINDING_HOOKS_H
#define GPU_BINDING_HOOKS_H

#include "binding/loop.h"
#include "runtime/device.h"

struct device_handle;

/* Calls hooks of operations that are over; none is lost. Does not raise. */
void gpu_lua_hooks_tell(struct gpulua *g);
/* The same, at the end of a wait: for what the device has just ended (NULL: none), too. */
static inline void gpu_lua_hooks_catch_up(struct gpulua *g, struct gpu_device *device) {
    if (__builtin_expect(g->hooks_thread != NULL, 0)) {
        if (device) {
            (void)gpu_device_poll(device);
        }
        gpu_lua_hooks_tell(g);
    }
}
/* The handle's device is closed, and everything has been told or is told no more. */
void gpu_lua_hooks_finish(struct device_handle *handle);

int gpu_lua_hooks_handler(lua_State *L); /* core.hooks_handler */
int gpu_lua_hooks_set(lua_State *L);     /* core.hooks_set */

#endif
