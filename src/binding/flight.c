/* The flight ring for scripts. */
#include "runtime/flight.h"

#include <stdlib.h>

#include "binding/core.h"
#include "binding/device.h"

static int push_text(lua_State *L) {
    lua_pushlstring(L, lua_touserdata(L, 1), (size_t)lua_tointeger(L, 2));
    return 1;
}

/* device:flight([path]) -> text. lua/gpulua/recovery.lua writes it into a file. */
int gpu_lua_device_flight(lua_State *L) {
    gpu_lua_refuse_in_sandbox(L, GPU_LUA(L), "flight");
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL);
    struct gpu_error error;
    char *text;
    size_t byte_count;
    if (gpu_flight_text(device, &text, &byte_count, &error)) {
        gpu_lua_throw(L, &error);
    }
    lua_pushcfunction(L, push_text); /* which may raise, for want of memory */
    lua_pushlightuserdata(L, text);
    lua_pushinteger(L, (lua_Integer)byte_count);
    int status = lua_pcall(L, 2, 1, 0);
    free(text);
    return status ? lua_error(L) : 1;
}

/* core.flight_path() -> the file that it is written into when a device is lost, and the folder
 * where that begins, nil: it is from the root; nil: none */
int gpu_lua_flight_path(lua_State *L) {
    lua_pushstring(L, GPU_LUA(L)->config.flight_path);
    lua_pushstring(L, GPU_LUA(L)->flight_folder);
    return 2;
}

/* core.flight_files() -> how many losses have been written into files, or could not be */
int gpu_lua_flight_files(lua_State *L) {
    lua_pushinteger(L, gpu_flight_files());
    return 1;
}

/* core.log(line): a line for the host's log, if there is one */
int gpu_lua_log(lua_State *L) {
    const struct gpulua *g = GPU_LUA(L);
    if (g->config.on_log) {
        g->config.on_log(g->config.user, luaL_checkstring(L, 1));
    }
    return 0;
}
