/* Devices as scripts have them. */
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/scalar.h"

#include <stdlib.h>
#include <string.h>

#include "binding/caller.h"
#include "binding/check.h"
#include "binding/core.h"
#include "binding/hooks.h"
#include "binding/stream.h"
#include "binding/trace.h"
#include "runtime/trace.h"

static const char anchors_key; /* registry: light userdata of a device handle -> the handle */

struct gpu_device *gpu_lua_check_device(lua_State *L, struct gpulua *g, int index,
                                        struct device_handle **handle) {
    struct device_handle *found = gpu_lua_check(L, g, index, GPU_LUA_KIND_DEVICE);
    if (!found->device) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed device");
    }
    if (handle) {
        *handle = found;
    }
    return found->device;
}

void gpu_lua_push_device(lua_State *L, struct gpulua *g, struct gpu_device *device) {
    struct device_handle *handle = gpu_lua_find_device(g, device);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    lua_rawgetp(L, -1, handle);
    lua_remove(L, -2);
}

/* ---- failures that nobody has seen ---- */

void gpu_lua_raise_unobserved(lua_State *L, struct gpu_device *device, bool is_own) {
    struct gpu_error error;
    if (gpu_device_take_unobserved(device, is_own, &error) || gpu_device_check(device, &error)) {
        gpu_lua_throw(L, &error);
    }
}

#define REPORTED_MAX 16u /* of a device; of the rest how many there are */

void gpu_lua_device_report(struct gpulua *g, lua_State *L, struct device_handle *handle) {
    struct gpu_error error;
    uint64_t count = 0, more = 0;
    gpulua_status last = GPULUA_OK;
    while (handle->device && lua_checkstack(L, 4) && /* a finaliser may close it meanwhile */
           gpu_device_take_unobserved(handle->device, false, &error)) {
        if (++count <= REPORTED_MAX) {
            gpu_lua_error_push_owned(L, &error);
            gpu_lua_tell(g, L, NULL);
        } else {
            more++;
            last = error.code;
            gpu_error_finish(&error);
        }
    }
    if (more > 0) {
        gpu_error_set(&error, last, "%llu more failures that nobody has seen",
                      (unsigned long long)more);
        gpu_lua_error_push_owned(L, &error);
        gpu_lua_tell(g, L, NULL);
    }
}

/* ---- opening ---- */

struct options {
    const char *name;  /* NULL: the default */
    const char *label; /* or NULL */
    gpulua_isolation isolation;
    uint64_t budget_bytes;
    bool is_plain, is_unfenced, is_unsettled, is_cpu;
    bool is_named;          /* by the script */
    uint64_t unfenced_wait; /* 0: none */
    bool is_checked;
    bool is_hashed; /* check = "hashes" */
    uint64_t seed;
    const char *order;    /* or NULL */
    int32_t restarts_max; /* as in gpu_device_info */
    double window_s, watchdog_s;
    bool has_spare, is_exact;
    const char *coredump_path; /* or NULL */
    gpulua_completion completion;
    uint32_t traced_ops_max;    /* 0: not traced */
    uint32_t ops_in_flight_max; /* 0: as many as there may be */
};

static const char *const isolations[] = {[GPULUA_ISOLATE_NONE] = "none",
                                         [GPULUA_ISOLATE_PROCESS] = "process",
                                         [GPULUA_ISOLATE_THREAD] = "thread"};

static const char *const completions[] = {[GPULUA_COMPLETION_WORD] = "word",
                                          [GPULUA_COMPLETION_EVENT] = "event",
                                          [GPULUA_COMPLETION_BLOCK] = "block"};

/* 1 to 3, or 0. */
static int find_name(const char *const names[4], const char *text) {
    int found = 3;
    while (found > 0 && strcmp(text, names[found]) != 0) {
        found--;
    }
    return found;
}

gpulua_status gpu_lua_isolation(const char *text, const char *what, gpulua_isolation *isolation,
                                struct gpu_error *error) {
    *isolation = (gpulua_isolation)find_name(isolations, text);
    return *isolation ? GPULUA_OK
                      : gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                      "%s: \"process\", \"thread\" or \"none\" expected, got "
                                      "\"%s\"",
                                      what, text);
}

gpulua_status gpu_lua_completion(const char *text, gpulua_completion *completion,
                                 struct gpu_error *error) {
    const char *what = text ? "completion of device" : "GPULUA_COMPLETION";
    text = text ? text : gpu_lua_setting(NULL, what);
    *completion =
        text ? (gpulua_completion)find_name(completions, text) : GPULUA_COMPLETION_DEFAULT;
    return !text || *completion ? GPULUA_OK
                                : gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                                "%s: \"word\", \"event\" or \"block\" expected, "
                                                "got \"%s\"",
                                                what, text);
}

static gpulua_isolation check_isolation(lua_State *L, const char *text, const char *what) {
    gpulua_isolation isolation = GPULUA_ISOLATE_DEFAULT;
    struct gpu_error error;
    if (gpu_lua_isolation(text, what, &isolation, &error)) {
        gpu_lua_throw(L, &error);
    }
    return isolation;
}

/* Stack: 1 = name, 2 = options. `check = false` switches off what the program was started with. */
static void get_check(lua_State *L, struct gpulua *g, struct options *options) {
    if (g->check_text) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "GPULUA_CHECK: a seed, a whole number from 0 on, or \"hashes\" expected, got "
                     "\"%s\"",
                     g->check_text);
    }
    options->is_checked = g->config.check != 0;
    options->is_hashed = g->config.check == 2;
    options->seed = g->config.check_seed;
    options->order = gpu_lua_field_string(L, 2, "order", "device");
    const char *order = getenv("GPULUA_CHECK_ORDER");
    if (options->is_checked && !options->order && order && order[0]) {
        options->order = order;
    }
    if (!lua_istable(L, 2)) {
        return;
    }
    int type = lua_getfield(L, 2, "check");
    bool is_hashed = type == LUA_TSTRING && strcmp(lua_tostring(L, -1), "hashes") == 0;
    if (type != LUA_TNIL && type != LUA_TBOOLEAN && !is_hashed) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "check of device: true, false or \"hashes\" expected, got %s",
                     gpu_lua_describe(L, -1));
    }
    if (type != LUA_TNIL) {
        options->is_hashed = is_hashed;
        options->is_checked = lua_toboolean(L, -1);
    }
    bool has_seed = lua_getfield(L, 2, "seed") != LUA_TNIL;
    lua_pop(L, 2);
    if ((has_seed || options->order) && !options->is_checked) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "%s of device: it is for check mode (check = true)",
                     has_seed ? "seed" : "order");
    }
    options->seed = (uint64_t)gpu_lua_field_integer(L, 2, "seed", "device", (int64_t)options->seed,
                                                    0, INT64_MAX);
}

/* Stack: 1 = name, 2 = options. 0: not said. */
static double get_seconds(lua_State *L, const char *name) {
    if (!lua_istable(L, 2) || lua_getfield(L, 2, name) == LUA_TNIL) {
        return 0;
    }
    double seconds = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
    if (!(seconds > 0 && seconds <= 1e9)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "%s of device: seconds, more than 0, expected, got %s", name,
                     gpu_lua_describe(L, lua_gettop(L)));
    }
    lua_pop(L, 1);
    return seconds;
}

/* Stack: 1 = name, 2 = options. */
static bool get_flag(lua_State *L, const char *name, bool otherwise) {
    if (!lua_istable(L, 2)) {
        return otherwise;
    }
    int type = lua_getfield(L, 2, name);
    if (type != LUA_TNIL && type != LUA_TBOOLEAN) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s of device: true or false expected, got %s",
                     name, gpu_lua_describe(L, lua_gettop(L)));
    }
    bool is_set = type == LUA_TNIL ? otherwise : lua_toboolean(L, -1);
    lua_pop(L, 1);
    return is_set;
}

/* Stack: 1 = name, 2 = options. How many operations are kept. */
static uint32_t get_trace(lua_State *L, struct gpulua *g) {
    uint32_t otherwise = g->config.trace ? GPU_TRACE_OPS_MAX : 0;
    int type = lua_istable(L, 2) ? lua_getfield(L, 2, "trace") : (lua_pushnil(L), LUA_TNIL);
    lua_Integer count = lua_isinteger(L, -1) ? lua_tointeger(L, -1) : 0;
    bool is_set = lua_toboolean(L, -1);
    if (type == LUA_TNUMBER && (count < 1 || count > GPU_TRACE_OPS_MAX)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "trace of device: a whole number of operations to be kept, 1 to %d, expected, "
                     "got %s",
                     (int)GPU_TRACE_OPS_MAX, lua_tostring(L, -1));
    }
    if (type != LUA_TNIL && type != LUA_TBOOLEAN && type != LUA_TNUMBER) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "trace of device: true, false or a number of operations expected, got %s",
                     gpu_lua_describe(L, lua_gettop(L)));
    }
    lua_pop(L, 1);
    return type == LUA_TNIL      ? otherwise
           : type == LUA_TNUMBER ? (uint32_t)count
           : is_set              ? GPU_TRACE_OPS_MAX
                                 : 0;
}

/* Stack: 1 = name, 2 = options. */
static gpulua_completion get_completion(lua_State *L) {
    const char *text = gpu_lua_field_string(L, 2, "completion", "device");
    gpulua_completion completion;
    struct gpu_error error;
    if (gpu_lua_completion(text, &completion, &error)) {
        gpu_lua_throw(L, &error);
    }
    return completion;
}

/* Stack: 1 = name, 2 = options. */
static void get_options(lua_State *L, struct gpulua *g, struct options *options) {
    static const char *const names[] = {
        "isolate",  "label",      "budget", "unfenced",    "check",  "seed",
        "order",    "restarts",   "spare",  "attribution", "window", "watchdog",
        "coredump", "completion", "trace",  "in_flight",   NULL};
    if (lua_type(L, 1) == LUA_TTABLE && lua_isnil(L, 2)) {
        lua_insert(L, 1); /* gpu.device{...}: the default device with options */
    }
    int type = lua_type(L, 1);
    if (lua_istable(L, 2)) {
        lua_pushliteral(L, "pollfd");
        bool is_module = lua_rawget(L, 2) != LUA_TNIL;
        lua_pop(L, 1);
        if (is_module) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "argument 1 of device: it is called with a dot, gpu.device()");
        }
    }
    if (type != LUA_TNIL && type != LUA_TSTRING) {
        gpu_lua_fail(
            L, GPULUA_INVALID_ARGUMENT,
            "argument 1 of device: a name (\"cpu\", \"cuda\", \"cuda:1\") expected, got %s",
            gpu_lua_describe(L, 1));
    }
    gpu_lua_check_options(L, 2, names, "device");
    options->name =
        type == LUA_TSTRING ? gpu_lua_text(L, 1, "argument 1", "device") : g->config.device;
    if (options->name && strlen(options->name) >= sizeof((struct device_handle *)NULL)->requested) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of device: there is no device '%.200s'", options->name);
    }
    options->is_plain = lua_isnil(L, 2);
    options->is_cpu = options->name && strcmp(options->name, "cpu") == 0;
    options->is_named = type == LUA_TSTRING;
    options->is_unfenced = options->is_unsettled = false;
    options->unfenced_wait = 0;
    options->label = gpu_lua_field_string(L, 2, "label", "device");
    const char *isolate = gpu_lua_field_string(L, 2, "isolate", "device");
    options->isolation = g->config.isolation;
    if (isolate) {
        options->isolation = check_isolation(L, isolate, "isolate of device");
    } else if (g->isolation_text) {
        options->isolation = check_isolation(L, g->isolation_text, "GPULUA_ISOLATE");
    }
    if (lua_istable(L, 2)) {
        int kind = lua_getfield(L, 2, "unfenced");
        if (kind == LUA_TNUMBER) { /* one of the waits alone */
            options->unfenced_wait = (uint64_t)lua_tointeger(L, -1);
        } else if (kind == LUA_TSTRING && strcmp(lua_tostring(L, -1), "owed") == 0) {
            options->is_unsettled = true;
        } else {
            options->is_unfenced = lua_toboolean(L, -1);
        }
        lua_pop(L, 1);
    }
    int64_t restarts = gpu_lua_field_integer(L, 2, "restarts", "device", -1, 0, 1000000);
    options->restarts_max = restarts == 0 ? -1 : restarts < 0 ? 0 : (int32_t)restarts;
    options->window_s = get_seconds(L, "window");
    options->has_spare = get_flag(L, "spare", false);
    const char *attribution = gpu_lua_field_string(L, 2, "attribution", "device");
    options->is_exact = attribution && strcmp(attribution, "exact") == 0;
    if (attribution && !options->is_exact) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "attribution of device: \"exact\" expected, got \"%s\"", attribution);
    }
    options->watchdog_s = get_seconds(L, "watchdog");
    options->coredump_path = gpu_lua_field_string(L, 2, "coredump", "device");
    options->completion = get_completion(L);
    options->ops_in_flight_max =
        (uint32_t)gpu_lua_field_integer(L, 2, "in_flight", "device", 0, 1, GPU_OPS_IN_FLIGHT_MAX);
    options->traced_ops_max = get_trace(L, g);
    get_check(L, g, options);
    options->budget_bytes = (uint64_t)gpu_lua_field_integer(
        L, 2, "budget", "device", (int64_t)g->config.device_budget_bytes, 1, INT64_MAX);
}

static struct device_handle *find_open(struct gpulua *g, const struct options *options,
                                       bool is_shared) {
    const char *name = options->name ? options->name : "";
    for (struct device_handle *handle = g->devices; handle; handle = handle->next) {
        if (handle->is_plain &&
            (gpu_device_state(handle->device) == GPU_DEVICE_OPEN ||
             gpu_device_is_returning(handle->device)) &&
            ((is_shared && handle->shared) || strcmp(handle->requested, name) == 0 ||
             (name[0] == '\0' && handle->is_default) ||
             strcmp(gpu_device_name(handle->device), name) == 0)) {
            return handle;
        }
    }
    return NULL;
}

/* A name may only turn out to be that of an open device when it is looked up: "cuda" is "cuda:0",
 * and the default whatever is there. Then the one that was there is meant from now on. */
static struct device_handle *find_same(struct gpulua *g, const struct device_handle *opened) {
    const struct options options = {.name = gpu_device_name(opened->device)};
    struct device_handle *same = opened->is_plain ? find_open(g, &options, false) : NULL;
    if (same && opened->requested[0] == '\0') {
        same->is_default = true;
    } else if (same) {
        memcpy(same->requested, opened->requested, sizeof same->requested);
    }
    return same;
}

static void link_handle(struct gpulua *g, struct device_handle *handle) {
    struct device_handle **tail = &g->devices;
    while (*tail) {
        tail = &(*tail)->next;
    }
    *tail = handle;
    handle->is_linked = true;
}

static void unlink_handle(struct gpulua *g, struct device_handle *handle) {
    for (struct device_handle **at = &g->devices; handle->is_linked && *at; at = &(*at)->next) {
        if (*at == handle) {
            *at = handle->next;
            break;
        }
    }
    handle->is_linked = false;
    handle->next = NULL;
}

/* That a device cannot be opened; of one that is not there, what to do. */
static _Noreturn void raise_missing(lua_State *L, struct gpu_error *error) {
    bool is_missing = error->code == GPULUA_NO_DEVICE || error->code == GPULUA_LIBRARY_UNAVAILABLE;
    gpu_lua_error_push_owned(L, error);
    if (is_missing && lua_istable(L, -1)) {
        lua_pushliteral(L, "gpulua --info shows what there is; every machine has "
                           "gpu.device(\"cpu\"), which gpu.device() takes "
                           "where there is no GPU");
        lua_setfield(L, -2, "hint");
    }
    lua_error(L);
    __builtin_unreachable();
}

/* core.describe(dev) -> text: what the backends of this build need and find, and the cache */
int gpu_lua_device_describe(lua_State *L) {
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL);
    struct gpu_error error;
    char *text;
    if (gpu_device_describe(device, &text, &error)) {
        gpu_lua_throw(L, &error);
    }
    lua_pushstring(L, text); /* short of memory it leaks a few lines, once */
    free(text);
    return 1;
}

/* gpu.device([name[, options]]). Blocks until the device is up. */
int gpu_lua_device_get(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct options options;
    struct gpu_error error;
    lua_settop(L, 2);
    if (g->is_closed) {
        gpu_lua_fail(L, GPULUA_CLOSED, "gpulua is closed: no device can be opened any more");
    }
    get_options(L, g, &options);
    bool is_shared =
        options.is_plain && gpu_lua_shared_is_meant(g, options.is_named ? options.name : NULL);
    if (g->config.sandbox && !is_shared) {
        gpu_lua_fail(L, GPULUA_NO_DEVICE,
                     g->config.shared_device
                         ? "a sandbox has the one device that its host gives it: gpu.device()"
                         : "a sandbox has the device that its host gives it, and there is none");
    }
    struct device_handle *handle = options.is_plain ? find_open(g, &options, is_shared) : NULL;
    if (handle) {
        gpu_lua_push_device(L, g, handle->device);
        return 1;
    }
    struct gpu_device_info info = {
        .name = options.name,
        .label = options.label,
        .isolation = options.isolation,
        .executor_path = g->config.executor_path,
        .cache_path = g->config.cache_path,
        .flight_path = g->config.flight_path,
        .flight_folder = g->flight_folder,
        .budget_bytes = options.budget_bytes,
        .is_unfenced = options.is_unfenced,
        .is_unsettled = options.is_unsettled,
        .unfenced_wait = options.unfenced_wait,
        .is_checked = options.is_checked,
        .is_hashed = options.is_hashed,
        .seed = options.seed,
        .order = options.order,
        .on_log = g->config.on_log,
        .log_user = g->config.user,
        .interrupt = &g->interrupt,
        .restarts_max = options.restarts_max,
        .restarts_window_s = options.window_s,
        .watchdog_s = options.watchdog_s,
        .has_spare = options.has_spare,
        .is_exact = options.is_exact,
        .coredump_path = options.coredump_path,
        .completion = options.completion,
        .traced_ops_max = options.traced_ops_max,
        .ops_in_flight_max = options.ops_in_flight_max,
        .cuda_context = options.is_cpu ? NULL : g->config.cuda_context,
        .cuda_stream = options.is_cpu ? NULL : g->config.cuda_stream,
    };
    info.observer = options.is_checked ? gpu_lua_check_start(g, options.seed) : NULL;
    if (options.is_checked && !info.observer) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for check mode");
    }
    if (is_shared && options.is_checked) {
        gpu_lua_fail(L, GPULUA_UNSUPPORTED,
                     "check mode is for devices of one object: this one is shared");
    }
    handle = gpu_lua_new(L, g, GPU_LUA_KIND_DEVICE, sizeof *handle, 0);
    handle->g = g;
    handle->poll_fd = -1;
    handle->is_plain = options.is_plain;
    strncpy(handle->requested, options.name ? options.name : "", sizeof handle->requested - 1);
    (void)gpu_label_copy(handle->label, sizeof handle->label, options.label);
    /* Anchored first: afterwards nothing may raise. */
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    lua_pushvalue(L, -2);
    lua_rawsetp(L, -2, handle);
    gpulua_status status = is_shared ? gpu_lua_shared_take(g, handle, &error)
                                     : gpu_device_open(&info, &handle->device, &error);
    if (status) {
        handle->device = NULL;
        lua_pushnil(L);
        lua_rawsetp(L, -2, handle);
        if (status == GPULUA_INTERRUPTED) {
            gpu_lua_raise_interrupt(L, g);
        }
        raise_missing(L, &error);
    }
    struct device_handle *same = is_shared ? NULL : find_same(g, handle);
    if (same) {
        gpu_device_close(handle->device, 0);
        gpu_device_release(handle->device);
        handle->device = NULL;
        lua_pushnil(L);
        lua_rawsetp(L, -2, handle);
        gpu_lua_push_device(L, g, same->device);
        return 1;
    }
    gpu_device_set_tasks(handle->device, &g->tasks);
    if (!gpu_lua_trace_device(g, handle) && g->config.on_log) { /* it works all the same */
        g->config.on_log(g->config.user, "no host memory to keep what is traced of a device");
    }
    lua_pop(L, 1);
    gpu_lua_caller_forget(g); /* it may have the address of one that is gone */
    handle->news = gpu_device_news(handle->device);
    link_handle(g, handle);
    if (options.is_checked) {
        gpu_lua_check_opened(g);
    }
    handle->poll_fd = gpu_device_poll_fd(handle->device);
    if (!gpu_lua_watch_device(g, handle->poll_fd)) {
        gpu_lua_device_close(g, handle);
        gpu_lua_fail(L, GPULUA_IO, "device %s cannot be watched: no file descriptor or memory left",
                     gpu_device_title(handle->closed_device));
    }
    return 1;
}

static int push_devices(lua_State *L, bool also_lost) {
    struct gpulua *g = GPU_LUA(L);
    lua_Integer count = 0;
    lua_newtable(L);
    for (struct device_handle *handle = g->devices; handle; handle = handle->next) {
        if (also_lost || gpu_device_state(handle->device) == GPU_DEVICE_OPEN) {
            gpu_lua_push_device(L, g, handle->device);
            lua_rawseti(L, -2, ++count);
        }
    }
    return 1;
}

/* gpu.devices() -> those that are open */
int gpu_lua_device_list(lua_State *L) {
    return push_devices(L, false);
}

/* core.unclosed_devices() -> those, and those that are lost */
int gpu_lua_unclosed_devices(lua_State *L) {
    return push_devices(L, true);
}

/* ---- closing ---- */

void gpu_lua_device_close(struct gpulua *g, struct device_handle *handle) {
    struct gpu_device *device = handle->device;
    if (!device) {
        return;
    }
    gpu_lua_unwatch_device(g, handle->poll_fd);
    if (handle->shared) {
        gpu_lua_trace_leave(g, device);
    } else {
        gpu_device_close(device, 0);
    }
    gpu_lua_check_closed(g, device);
    gpu_lua_streams_prune(&handle->streams, true);
    gpu_lua_hooks_tell(g);
    /* Not before: what its end completes still finds the loop. */
    unlink_handle(g, handle);
    handle->device = NULL;
    handle->closed_device = device;
    gpu_device_leave_news(device, &handle->news);
    gpu_device_set_tasks(device, NULL);
    if (handle->shared) {
        gpu_lua_shared_leave(g, handle);
    }
}

static gpulua_status wait_idle(struct gpu_device *device, int64_t timeout_ms,
                               struct gpu_error *error) {
    return gpu_device_wait_idle(device, timeout_ms * 1000000, error);
}

bool gpu_lua_device_settle(struct gpulua *g, struct device_handle *handle, int64_t timeout_ms,
                           struct gpu_error *error) {
    struct gpu_device *device = handle->device;
    bool is_isolated = gpu_device_isolation(device) == GPULUA_ISOLATE_PROCESS;
    if (gpu_device_state(device) != GPU_DEVICE_OPEN) {
        return true;
    }
    int64_t left_ms = timeout_ms > handle->waited_ms ? timeout_ms - handle->waited_ms : 0;
    int64_t quiet_ms = left_ms < GPU_LUA_QUIET_TIMEOUT_MS ? left_ms : GPU_LUA_QUIET_TIMEOUT_MS;
    gpulua_status status = wait_idle(device, quiet_ms, error);
    if (status == GPULUA_INTERRUPTED && !is_isolated) {
        /* It ends when it ends, and that is told. */
        int interrupt = atomic_exchange(&g->interrupt, 0);
        status = wait_idle(device, quiet_ms, error);
        atomic_store(&g->interrupt, interrupt);
    }
    if (status == GPULUA_TIMEOUT) {
        const struct gpu_op_info *op = &error->op;
        if (g->config.on_log) {
            char line[256];
            snprintf(line, sizeof line,
                     op->source[0] ? "waiting for '%s' to end, launched at %s:%d"
                                   : "waiting for '%s' to end",
                     op->label, op->source, op->line);
            g->config.on_log(g->config.user, line);
        }
        if (is_isolated || handle->shared) {
            status = wait_idle(device, left_ms - quiet_ms, error);
        }
    }
    if (status == GPULUA_TIMEOUT) {
        struct gpu_op_info op = error->op;
        gpu_error_set(error, GPULUA_TIMEOUT, "'%s' had not ended %.6g s after the script, and %s",
                      op.label, (double)timeout_ms / 1e3,
                      handle->shared ? "goes on: its device is shared"
                                     : "was ended with its device");
        error->op = op;
        return !is_isolated && !handle->shared;
    }
    gpu_error_finish(error);
    return true;
}

/* dev:close(): waits a moment for work in flight, then ends it */
static int device_close(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct device_handle *handle = gpu_lua_check(L, g, 1, GPU_LUA_KIND_DEVICE);
    if (!handle->device) {
        return 0;
    }
    struct gpu_error error = {0};
    struct gpu_lua_began began;
    gpu_lua_trace_wait_begins(g, NULL, "close", &began);
    (void)gpu_lua_device_settle(g, handle, GPU_LUA_CLOSE_TIMEOUT_MS, &error);
    gpu_lua_device_report(g, L, handle);
    gpu_lua_device_close(g, handle);
    gpu_lua_trace_wait_ends(L, g, &began);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    lua_pushnil(L);
    lua_rawsetp(L, -2, handle);
    return 0;
}

/* Only when the state closes: open devices are anchored. */
static int device_gc(lua_State *L) {
    struct device_handle *handle = lua_touserdata(L, 1);
    handle->tag.metatable = NULL;
    if (handle->device && !handle->g->is_closed) {
        gpu_lua_shut(handle->g, L, false, 0);
    }
    struct gpu_device *closed = handle->closed_device;
    handle->closed_device = NULL;
    gpu_device_release(closed);
    gpu_lua_hooks_finish(handle);
    return 0;
}

/* ---- methods ---- */

/* The new op on top, if there is one in it, goes into the table at 2. */
static void note_tail(lua_State *L, struct gpu_op *const *tail) {
    if (*tail) {
        lua_rawseti(L, 2, (lua_Integer)lua_rawlen(L, 2) + 1);
    } else {
        lua_pop(L, 1);
    }
}

/* Stack: device, ops that were the newest on their streams. */
static int synchronized(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    lua_settop(L, 2);
    for (lua_Integer left; (left = (lua_Integer)lua_rawlen(L, 2)) > 0;) {
        lua_rawgeti(L, 2, left);
        lua_pushnil(L);
        lua_rawseti(L, 2, left);
        gpu_lua_wait_op(L, g, gpu_lua_op_at(L, 3), synchronized);
        lua_settop(L, 2);
    }
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    gpu_device_poll(device);
    gpu_lua_hooks_tell(g);
    gpu_lua_check_know_all(g);
    gpu_lua_raise_unobserved(L, device, false);
    lua_settop(L, 1);
    return 1;
}

/* dev:synchronize() -> dev. Waits for all work that was given to the device so far; raises a
 * failure that nobody has seen. */
static int device_synchronize(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct device_handle *handle;
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, &handle);
    gpu_lua_check_eager(L, g, device, "synchronize");
    struct gpu_error error;
    lua_settop(L, 1);
    lua_newtable(L);
    if (gpu_device_check(device, &error)) {
        gpu_lua_throw(L, &error);
    }
    for (uint32_t index = 0; index < GPU_TASK_STREAMS; index++) {
        if (handle->task_streams[index]) {
            struct gpu_op **tail = gpu_lua_op_new(L, g);
            (void)gpu_lua_check_device(L, g, 1, NULL); /* a finaliser may have closed it */
            *tail = gpu_stream_tail(handle->task_streams[index]);
            note_tail(L, tail);
        }
    }
    gpu_lua_streams_prune(&handle->streams, false);
    for (uint64_t last = UINT64_MAX; gpu_lua_streams_older(handle, last, true);) {
        struct gpu_op **tail = gpu_lua_op_new(L, g);
        (void)gpu_lua_check_device(L, g, 1, NULL);
        const struct stream_record *record = gpu_lua_streams_older(handle, last, true);
        if (record) { /* else finalisers have closed the others */
            last = gpu_stream_number(record->stream);
            *tail = gpu_stream_tail(record->stream);
        }
        note_tail(L, tail);
    }
    return synchronized(L, LUA_OK, 0);
}

/* dev:stats() -> a table of all counters and limits, integers: GPU_STATS_TABLE. Does not block. */
static int device_stats(lua_State *L) {
    struct gpu_stats stats;
    gpu_device_stats(gpu_lua_check_device(L, GPU_LUA(L), 1, NULL), &stats);
    lua_newtable(L);
#define X(name)                                                                                    \
    lua_pushinteger(L, (lua_Integer)stats.name);                                                   \
    lua_setfield(L, -2, #name);
    GPU_STATS_TABLE(X)
#undef X
    return 1;
}

void gpu_lua_set_source(lua_State *L, const char *source, int line) {
    if (source && source[0]) {
        lua_pushfstring(L, "%s:%d", source, line);
        lua_setfield(L, -2, "source");
    }
}

struct map_push {
    const struct gpu_memory_entry *entries;
    uint32_t count;
};

static int push_map(lua_State *L) {
    static const char *const kinds[GPU_HOLDING_COUNT] = {
        [GPU_HOLDS_BUFFER] = "buffer",     [GPU_HOLDS_HOST] = "host",
        [GPU_HOLDS_POOL] = "pool",         [GPU_HOLDS_TEMPORARY] = "temporary",
        [GPU_HOLDS_VARIABLE] = "variable", [GPU_HOLDS_IMPORT] = "import",
        [GPU_HOLDS_GRAPH] = "graph",       [GPU_HOLDS_OWN] = "gpulua",
    };
    const struct map_push *push = lua_touserdata(L, 1);
    lua_createtable(L, (int)push->count, 0);
    for (uint32_t i = 0; i < push->count; i++) {
        const struct gpu_memory_entry *entry = &push->entries[i];
        lua_createtable(L, 0, 9);
        lua_pushstring(L, kinds[entry->kind]);
        lua_setfield(L, -2, "kind");
        lua_pushinteger(L, (lua_Integer)entry->number);
        lua_setfield(L, -2, "number");
        lua_pushstring(L, entry->label);
        lua_setfield(L, -2, "label");
        gpu_lua_set_source(L, entry->site.source, entry->site.line);
        lua_pushinteger(L, (lua_Integer)entry->byte_count);
        lua_setfield(L, -2, "bytes");
        lua_pushinteger(L, (lua_Integer)entry->memory_bytes);
        lua_setfield(L, -2, "memory_bytes");
        if (entry->age_ns >= 0) {
            lua_pushnumber(L, (lua_Number)entry->age_ns / 1e9);
            lua_setfield(L, -2, "age");
        }
        lua_pushstring(L, entry->is_host ? "host" : "device");
        lua_setfield(L, -2, "where");
        lua_pushboolean(L, entry->is_freed);
        lua_setfield(L, -2, "freed");
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

/* core.memory_map(dev) -> what it has given out, in no order; see lua/gpulua/memory_map.lua */
int gpu_lua_memory_map(lua_State *L) {
    gpu_lua_refuse_in_sandbox(L, GPU_LUA(L), "memory_map");
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL);
    struct gpu_memory_entry *entries;
    struct map_push push;
    struct gpu_error error;
    if (gpu_device_memory_map(device, &entries, &push.count, &error)) {
        gpu_lua_throw(L, &error);
    }
    push.entries = entries;
    lua_pushcfunction(L, push_map); /* which may raise, for want of memory */
    lua_pushlightuserdata(L, &push);
    int status = lua_pcall(L, 1, 1, 0);
    free(entries);
    return status ? lua_error(L) : 1;
}

/* core.in_flight(dev) -> a list of the operations that are not over, oldest first of each stream:
 * {label =, stream =, seq =, source = "file:line" or nil} */
int gpu_lua_in_flight(lua_State *L) {
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL);
    uint32_t room = gpu_device_in_flight(device, NULL, 0);
    struct gpu_op_info *infos = lua_newuserdatauv(L, room * sizeof *infos, 0);
    device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL); /* a finaliser may have closed it */
    uint32_t count = gpu_device_in_flight(device, infos, room);
    lua_newtable(L); /* stack: device, infos, list */
    for (uint32_t i = 0; i < count && i < room; i++) {
        lua_createtable(L, 0, 4);
        lua_pushstring(L, infos[i].label);
        lua_setfield(L, -2, "label");
        lua_pushinteger(L, (lua_Integer)infos[i].stream);
        lua_setfield(L, -2, "stream");
        lua_pushinteger(L, (lua_Integer)infos[i].seq);
        lua_setfield(L, -2, "seq");
        gpu_lua_set_source(L, infos[i].source, infos[i].line);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

/* core.raise_unseen(dev): raises a failure of work that is over and that nobody has seen; then it
 * is seen. Does not wait. */
int gpu_lua_raise_unseen(lua_State *L) {
    gpu_lua_raise_unobserved(L, gpu_lua_check_device(L, GPU_LUA(L), 1, NULL), false);
    return 0;
}

/* dev:trim() -> bytes given back to the driver */
static int device_trim(lua_State *L) {
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, NULL);
    lua_gc(L, LUA_GCCOLLECT);
    gpu_device_reap(device);
    lua_pushinteger(L, (lua_Integer)gpu_device_trim(device));
    return 1;
}

static const char *isolation_text(const struct gpu_device *device) {
    return isolations[gpu_device_isolation(device)];
}

static int push_field(lua_State *L, struct gpu_device *device, const char *field) {
    const struct wire_device_facts *facts = gpu_device_facts(device);
    if (strcmp(field, "name") == 0) {
        lua_pushstring(L, gpu_device_name(device));
    } else if (strcmp(field, "kind") == 0) {
        lua_pushstring(L, gpu_device_kind(device));
    } else if (strcmp(field, "epoch") == 0) {
        lua_pushinteger(L, (lua_Integer)gpu_device_epoch(device));
    } else if (strcmp(field, "memory_bytes") == 0) {
        lua_pushinteger(L, (lua_Integer)facts->memory_bytes);
    } else if (strcmp(field, "compute") == 0) {
        lua_pushnumber(L, facts->compute / 10.0);
    } else if (strcmp(field, "multiprocessors") == 0) {
        lua_pushinteger(L, facts->multiprocessors);
    } else if (strcmp(field, "model") == 0) {
        lua_pushstring(L, facts->name);
    } else if (strcmp(field, "isolation") == 0) {
        lua_pushstring(L, isolation_text(device));
    } else if (strcmp(field, "driver_version") == 0) {
        lua_pushinteger(L, facts->driver_version);
    } else if (strcmp(field, "check") == 0) {
        lua_pushboolean(L, gpu_device_is_checked(device));
    } else if (strcmp(field, "pid") == 0 && gpu_device_pid(device) > 0) {
        lua_pushinteger(L, gpu_device_pid(device)); /* of the executor's process */
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static int device_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    struct device_handle *handle;
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, &handle);
    const char *field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (strcmp(field, "label") == 0) {
        lua_pushstring(L, handle->label);
        return 1;
    }
    return push_field(L, device, field);
}

static int device_tostring(lua_State *L) {
    struct device_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_DEVICE);
    if (!handle->device) {
        lua_pushliteral(L, "gpulua.device (closed)");
        return 1;
    }
    const char *state = gpu_device_is_returning(handle->device)               ? ", coming up again"
                        : gpu_device_state(handle->device) == GPU_DEVICE_LOST ? ", lost"
                                                                              : "";
    lua_pushfstring(L, "gpulua.device %s, isolation %s%s%s%s%s", gpu_device_name(handle->device),
                    isolation_text(handle->device), state, handle->label[0] ? " (" : "",
                    handle->label, handle->label[0] ? ")" : "");
    return 1;
}

void gpu_lua_device_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"buffer", gpu_lua_device_buffer},
                                       {"upload", gpu_lua_device_upload},
                                       {"host", gpu_lua_device_host},
                                       {"memory", gpu_lua_device_memory},
                                       {"compile", gpu_lua_device_compile},
                                       {"load", gpu_lua_device_load},
                                       {"stream", gpu_lua_device_stream},
                                       {"recorder", gpu_lua_device_recorder},
                                       {"scalar", gpu_lua_device_scalar},
                                       {"pool", gpu_lua_device_pool},
                                       {"current", gpu_lua_device_current},
                                       {"synchronize", device_synchronize},
                                       {"order", gpu_lua_check_order},
                                       {"stats", device_stats},
                                       {"flight", gpu_lua_device_flight},
                                       {"trim", device_trim},
                                       {"inject", gpu_lua_device_inject},
                                       {"close", device_close},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", device_gc},
                                           {"__close", device_close},
                                           {"__tostring", device_tostring},
                                           {"__index", device_index},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_DEVICE, methods, metamethods);
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key) != LUA_TTABLE) {
        lua_createtable(L, 0, 2);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &anchors_key);
    }
    lua_pop(L, 1);
}
