/* Devices that a host opens for several objects. */
#include <stdlib.h>

#include "binding/device.h"
#include "binding/trace.h"
#include "host/handle.h"
#include "host/structs.h"
#include "runtime/hooks.h"
#include "runtime/trace.h"

static uint32_t traced_ops_max(const gpulua_device_config *config) {
    uint32_t count = config->trace_ops_max;
    if (count == 0) {
        return gpu_lua_trace_is_wanted() ? GPU_TRACE_OPS_MAX : 0;
    }
    return count < GPU_TRACE_OPS_MAX ? count : GPU_TRACE_OPS_MAX;
}

/* $GPULUA_DEVICE, $GPULUA_ISOLATE, $GPULUA_COMPLETION and $GPULUA_TRACE say what the configuration
 * does not, as for devices of objects. */
static gpulua_status open(const gpulua_device_config *config, struct gpulua_device *shared,
                          struct gpu_error *error) {
    bool is_confined = config->confined != 0;
    struct gpu_device_info info = {
        .name = is_confined && !config->device ? "cpu"
                                               : gpu_lua_setting(config->device, "GPULUA_DEVICE"),
        .isolation = config->isolation,
        .executor_path = config->executor_path,
        .cache_path = config->cache_path,
        .flight_path = gpu_lua_setting(config->flight_path, "GPULUA_FLIGHT"),
        .budget_bytes = config->budget_bytes,
        .on_log = config->on_log,
        .log_user = config->user,
        .restarts_max = config->restarts,
        .restarts_window_s = config->window_s,
        .has_spare = config->spare != 0,
        .watchdog_s = config->watchdog_s,
        .coredump_path = config->coredump_path,
        .completion = config->completion,
        .is_confined = is_confined,
        .ops_in_flight_max = config->ops_in_flight_max,
        .traced_ops_max = traced_ops_max(config),
        .cuda_context = config->cuda_context,
    };
    const char *isolate = gpu_lua_setting(NULL, "GPULUA_ISOLATE");
    gpulua_status status = GPULUA_OK;
    if (info.isolation == GPULUA_ISOLATE_DEFAULT && isolate && !is_confined) {
        status = gpu_lua_isolation(isolate, "GPULUA_ISOLATE", &info.isolation, error);
    }
    if (status == GPULUA_OK && info.completion == GPULUA_COMPLETION_DEFAULT) {
        status = gpu_lua_completion(NULL, &info.completion, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_device_open(&info, &shared->device, error);
    }
    if (status) {
        return status;
    }
    shared->is_confined = is_confined;
    shared->close_timeout_ms =
        config->close_timeout_ms > 0 ? config->close_timeout_ms : GPU_LUA_CLOSE_TIMEOUT_MS;
    status = gpu_device_share(shared->device, error);
    if (status) {
        gpu_device_close(shared->device, 0);
        gpu_device_release(shared->device);
    }
    return status;
}

gpulua_device *gpulua_device_open(const gpulua_device_config *given) {
    gpulua_device_config config;
    struct gpu_error error = {0};
    struct gpulua_device *shared = calloc(1, sizeof *shared);
    if (!shared) {
        gpu_host_keep_creation_error(GPULUA_OUT_OF_MEMORY, "no host memory for a device");
        return NULL;
    }
    atomic_init(&shared->refs, 1);
    if (gpu_host_take_device_config(given, &config, &error) || open(&config, shared, &error)) {
        gpu_host_keep_creation_error(error.code, error.message);
        gpu_error_finish(&error);
        free(shared);
        return NULL;
    }
    return shared;
}

gpulua_status gpulua_device_inject(gpulua_device *device, gpulua_injection what, uint64_t n) {
    if (!device || (int)what < 0 || (int)what >= GPU_INJECT_COUNT) {
        return GPULUA_INVALID_ARGUMENT;
    }
    gpu_device_inject(device->device, what, n);
    return GPULUA_OK;
}

bool gpu_host_is_confined(const struct gpulua_device *device) {
    return device->is_confined;
}

bool gpu_host_is_isolated(const struct gpulua_device *device) {
    return gpu_device_isolation(device->device) == GPULUA_ISOLATE_PROCESS;
}

uint64_t gpulua_device_epoch(const gpulua_device *device) {
    return device ? gpu_device_epoch(device->device) : 0;
}

void gpulua_device_close(gpulua_device *device) {
    gpu_lua_shared_release(device);
}

/* ---- injection ---- */

struct slow {
    const char *kernel;
    double seconds;
};

/* dev:inject{ slow =, seconds = }. Stack: the kernel's name and the time, the device. */
static int inject_slow(lua_State *L) {
    const struct slow *slow = lua_touserdata(L, 1);
    (void)gpu_host_device(L, gpu_lua_find(L), 2);
    lua_getfield(L, 2, "inject");
    lua_pushvalue(L, 2);
    lua_createtable(L, 0, 2);
    if (slow->kernel) {
        lua_pushstring(L, slow->kernel);
        lua_setfield(L, -2, "slow");
        lua_pushnumber(L, slow->seconds);
        lua_setfield(L, -2, "seconds");
    } else {
        lua_pushboolean(L, 0);
        lua_setfield(L, -2, "slow");
    }
    lua_call(L, 2, 0);
    return 0;
}

gpulua_status gpulua_inject_slow(lua_State *L, int index, const char *kernel, double seconds) {
    gpulua_status status = GPULUA_OK;
    struct gpulua *g = gpu_host_find(L, &status);
    struct slow slow = {kernel, seconds};
    return g ? gpu_host_call(g, L, inject_slow, &slow, index) : status;
}

/* ---- hooks ---- */

gpulua_status gpulua_device_set_hooks(gpulua_device *device, const gpulua_hooks *given) {
    gpulua_hooks hooks;
    struct gpu_error error = {0};
    if (!device) {
        return GPULUA_INVALID_ARGUMENT;
    }
    gpulua_status status = gpu_host_take_hooks(given, &hooks, &error);
    if (status == GPULUA_OK) {
        status =
            gpu_device_set_hooks(device->device, GPU_HOOKS_HOST, given ? &hooks : NULL, &error);
    }
    gpu_error_finish(&error);
    return status;
}

static int set_hooks(lua_State *L) {
    const gpulua_hooks *hooks = lua_touserdata(L, 1);
    struct gpu_device *device = gpu_host_device(L, gpu_lua_find(L), 2);
    struct gpu_error error = {0};
    if (gpu_device_set_hooks(device, GPU_HOOKS_HOST, hooks, &error)) {
        gpu_lua_throw(L, &error);
    }
    return 0;
}

gpulua_status gpulua_set_hooks(lua_State *L, int index, const gpulua_hooks *given) {
    gpulua_status status = GPULUA_OK;
    gpulua_hooks hooks;
    struct gpu_error error;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (gpu_host_take_hooks(given, &hooks, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    return gpu_host_call(g, L, set_hooks, given ? &hooks : NULL, index);
}
