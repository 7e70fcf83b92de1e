/* The Lua half of gpulua (lua/gpulua/), embedded at build time by tools/embed.lua. Static storage.
 */
#ifndef GPU_BINDING_LUA_FILES_H
#define GPU_BINDING_LUA_FILES_H

#include <stddef.h>

struct gpu_lua_file {
    const char *name;           /* "npy.lua" */
    const unsigned char *bytes; /* not NUL-terminated */
    size_t byte_count;
};

extern const struct gpu_lua_file gpu_lua_files[];
extern const size_t gpu_lua_file_count;

#endif
