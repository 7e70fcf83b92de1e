/* What a script that is not trusted finds in its state. */
#ifndef GPU_HOST_SANDBOX_H
#define GPU_HOST_SANDBOX_H

#include <stdbool.h>

#include <lua.h>

/* How long a task may run between two waits where the host has not said, so that a step, which may
 * begin one more task just before its time is over, is back within 100 ms. */
#define GPU_SANDBOX_RUN_MS 25u
#define GPU_SANDBOX_MEMORY_BYTES (16u << 20)

/* In a new state with an object: opens the libraries and makes the script's table of globals the
 * state's. Raises. */
void gpu_sandbox_open(lua_State *L);
/* The chunk on top, one of our own, gets our own table of globals, in a sandbox. Whether it is one.
 */
bool gpu_sandbox_trust(lua_State *L);

#endif
