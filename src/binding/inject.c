/* Injected failures, for specs: what a script does when things go wrong. */
#include "binding/core.h"
#include "binding/device.h"

/* dev:inject{oom=, fault=, lost=} -> the device. The n-th from now on, counted from 1, goes wrong,
 * once; 0 withdraws it. oom: of new buffers, which raises OutOfMemory. fault: of operations (a
 * graph's launch is one), as if that one had faulted: the device is lost, and the errors name it.
 * lost: the device's process is killed at that operation; without one, the same as fault. Does not
 * block. */
int gpu_lua_device_inject(lua_State *L) {
    static const char *const names[GPU_INJECT_COUNT + 1] = {[GPULUA_INJECT_OOM] = "oom",
                                                            [GPULUA_INJECT_FAULT] = "fault",
                                                            [GPULUA_INJECT_LOST] = "lost"};
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL);
    luaL_checkstack(L, 8, NULL);
    if (!lua_istable(L, 2)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of inject: a table {oom=, fault=, lost=} expected, got %s",
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
