/* The Lua half of gpulua (lua/gpulua/), embedded at build time: "npy.lua". */
#ifndef GPU_BINDING_LUA_FILES_H
#define GPU_BINDING_LUA_FILES_H

#include "embedded.h"

extern const struct gpu_embedded_file gpu_lua_files[];
extern const size_t gpu_lua_file_count;

#endif
