/* Ranges for profilers: whether there are any, and those of scripts (lua/gpulua/ranges.lua). */
#include "ranges/ranges.h"

#include "binding/core.h"
#include "binding/loop.h"

void gpu_lua_ranges_begin(struct gpulua *g) {
    const char *setting = gpu_lua_setting(NULL, "GPULUA_NVTX");
    if (!gpu_ranges_wanted(setting)) {
        return;
    }
    gpu_ranges_enable();
    if (!gpu_ranges_are_built() && g->config.on_log) {
        g->config.on_log(g->config.user,
                         "GPULUA_NVTX: this gpulua was built without NVTX's headers "
                         "(nvtx3/nvToolsExt.h), and tells profilers nothing");
    }
}

/* core.ranges_are_on() -> on, built */
int gpu_lua_ranges_are_on(lua_State *L) {
    lua_pushboolean(L, gpu_ranges_are_on);
    lua_pushboolean(L, gpu_ranges_are_built());
    return 2;
}

/* core.range_start(name, payload) -> what ends it */
int gpu_lua_range_start(lua_State *L) {
    size_t byte_count;
    const char *name = luaL_checklstring(L, 1, &byte_count);
    uint64_t payload = (uint64_t)luaL_checkinteger(L, 2);
    lua_pushinteger(L,
                    (lua_Integer)gpu_range_do_start(GPU_RANGE_SCRIPT, name, byte_count, payload));
    return 1;
}

/* core.range_end(what range_start gave) */
int gpu_lua_range_end(lua_State *L) {
    gpu_range_do_end((uint64_t)luaL_checkinteger(L, 1));
    return 0;
}
