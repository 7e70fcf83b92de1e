/* The pattern functions of a sandbox. */
#ifndef GPU_HOST_PATTERN_H
#define GPU_HOST_PATTERN_H

#include <lua.h>

/* Puts find, match, gmatch and gsub into the table on top. They answer what Lua's own do, and raise
 * where an interrupt or the state's limits say so (binding/limits.h). */
void gpu_pattern_functions_set(lua_State *L);

#endif
