/* What our Lua files that call libraries ask: the library itself, and their arguments. */
#include "binding/buffer.h"
#include "binding/core.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/kernel.h"
#include "binding/scalar.h"
#include "binding/stream.h"

/* core.library(device, name[, options]) -> module, whose kernels are the calls of a library that
 * the device's backend knows. `options`: lines. Waits; yields in a task. */
int gpu_lua_device_library(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    gpu_lua_check_eager(L, g, device, "loading a library");
    lua_settop(L, 3);
    struct gpu_module_info info = {
        .name = luaL_checkstring(L, 2),
        .kind = GPU_MODULE_LIBRARY,
        .options = luaL_optstring(L, 3, ""),
    };
    lua_settop(L, 4); /* where gpu_lua_module_create has it */
    return gpu_lua_module_create(L, g, device, &info);
}

/* core.library_value(module, name) -> a number that the library told of it, or nil */
int gpu_lua_library_value(lua_State *L) {
    const struct module_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_MODULE);
    uint64_t value = 0;
    if (handle->module && gpu_module_value(handle->module, luaL_checkstring(L, 2), &value)) {
        lua_pushinteger(L, (lua_Integer)value);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

/* core.dims(buffer or scalar) -> element type, number of elements, its dimensions; nil: another
 * value. Closed. */
int gpu_lua_dims(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const struct buffer *buffer = gpu_lua_scalar_test(L, g, 1);
    if (!buffer) {
        buffer = gpu_lua_test_tagged(L, g, 1, GPU_LUA_KIND_BUFFER);
    }
    if (!buffer) {
        lua_pushnil(L);
        return 1;
    }
    gpu_lua_buffer_check_open(L, buffer);
    lua_pushstring(L, gpu_type_name(buffer->ref.type));
    lua_pushinteger(L, (lua_Integer)buffer->elem_count);
    for (uint32_t i = 0; i < buffer->dim_count; i++) {
        lua_pushinteger(L, (lua_Integer)buffer->shape[i]);
    }
    return 2 + (int)buffer->dim_count;
}

/* core.stream_number(device[, stream]) -> of the stream, or of the one that work goes to here; nil
 * in a capture of the device. */
int gpu_lua_stream_number(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    if (gpu_lua_capture_find(L, g, device)) {
        lua_pushnil(L);
        return 1;
    }
    if (!lua_isnoneornil(L, 2) && !gpu_lua_test(L, g, 2, GPU_LUA_KIND_STREAM)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "stream of launch: a stream expected, got %s",
                     luaL_typename(L, 2)); /* as the launch that is to come would say */
    }
    struct gpu_stream *stream = lua_isnoneornil(L, 2) ? gpu_lua_current_stream(L, g, device)
                                                      : gpu_lua_check_stream(L, g, 2);
    lua_pushinteger(L, (lua_Integer)gpu_stream_number(stream));
    return 1;
}
