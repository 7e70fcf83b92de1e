/* Injected failures, for specs: what a script does when things go wrong. */
#include "binding/core.h"
#include "binding/device.h"
#include "binding/kernel.h"

/* core.inject_slow(dev[, kernel, name, ns]): the next launch of the kernel of that name comes
 * behind one of `kernel`; without any, none does. */
int gpu_lua_inject_slow(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_refuse_in_sandbox(L, g, "inject");
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    struct gpu_error error;
    struct gpu_kernel *kernel = NULL;
    if (!lua_isnoneornil(L, 2)) {
        const struct kernel_handle *handle = gpu_lua_check(L, g, 2, GPU_LUA_KIND_KERNEL);
        kernel = handle->kernel;
    }
    if (gpu_device_inject_slow(device, kernel, kernel ? luaL_checkstring(L, 3) : NULL,
                               kernel ? luaL_checkinteger(L, 4) : 0, &error)) {
        gpu_lua_throw(L, &error);
    }
    return 0;
}

/* Of inject.lua, the part that is counted: dev:inject{oom=, fault=, lost=} -> the device. */
int gpu_lua_device_inject(lua_State *L) {
    gpu_lua_refuse_in_sandbox(L, GPU_LUA(L), "inject");
    static const char *const names[GPU_INJECT_COUNT + 1] = {[GPULUA_INJECT_OOM] = "oom",
                                                            [GPULUA_INJECT_FAULT] = "fault",
                                                            [GPULUA_INJECT_LOST] = "lost"};
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL);
    luaL_checkstack(L, 8, NULL);
    if (!lua_istable(L, 2)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of inject: a table {oom=, fault=, lost=, slow=} expected, got %s",
                     gpu_lua_describe(L, 2));
    }
    gpu_lua_check_options(L, 2, names, "inject");
    for (int what = 0; what < GPU_INJECT_COUNT; what++) {
        int64_t n = gpu_lua_field_integer(L, 2, names[what], "inject", -1, 0, INT64_MAX);
        if (n >= 0) {
            gpu_device_inject(device, (gpulua_injection)what, (uint64_t)n);
        }
    }
    lua_settop(L, 1);
    return 1;
}
