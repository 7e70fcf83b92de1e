/* Captures as the rest of the binding sees them. */
#ifndef GPU_BINDING_GRAPH_H
#define GPU_BINDING_GRAPH_H

#include "binding/binding.h"
#include "runtime/graph.h"

/* The capture that the running task's work on the device belongs to; NULL: it is done. Borrowed,
 * and good until Lua's collector runs, which may end it. Raises CaptureInvalidated in a task that
 * was spawned into a capture that has ended. */
struct gpu_capture *gpu_lua_capture_find(lua_State *L, struct gpulua *g, struct gpu_device *device);
/* Raises CaptureActive if the running task belongs to a capture of the device (NULL: of any). */
void gpu_lua_check_eager(lua_State *L, struct gpulua *g, const struct gpu_device *device,
                         const char *what);

int gpu_lua_device_pool(lua_State *L);
int gpu_lua_pool_find(lua_State *L);
int gpu_lua_capture_begin(lua_State *L);
int gpu_lua_capture_enter(lua_State *L);
int gpu_lua_capture_spawn(lua_State *L);

#endif
