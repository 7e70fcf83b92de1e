/* Hooks of scripts (hooks.h): from the runtime's hooks to the handler in lua/gpulua/hooks.lua. */
#include "binding/hooks.h"

#include <stdlib.h>
#include <string.h>

#include "binding/core.h"
#include "binding/device.h"
#include "runtime/hooks.h"

static const char handler_key; /* registry: the function for all events */
static const char thread_key;  /* registry: the coroutine on which it runs */

/* An operation that is over, which the script has not been told. */
struct ended {
    struct ended *next;
    uint64_t number;
    gpulua_status status;
    int64_t host_ns, device_ns;
    char message[]; /* "" with OK */
};

struct script_hooks {
    struct device_handle *handle;
    struct ended *first, **last; /* owned, in the order of their ends */
    uint64_t lost;               /* ends for which there was no memory */
};

void gpu_lua_fail_in_hook(lua_State *L) {
    gpu_lua_fail_hint(L, GPULUA_STREAM_MISUSE,
                      "let the hook put down what it saw, and a task do the rest",
                      "a hook cannot call gpulua");
}

/* ---- calling the handler ---- */

/* The coroutine with the handler and the event's name on it; NULL: there is no memory. */
static lua_State *begin(struct gpulua *g, const char *event) {
    lua_State *L = g->hooks_thread;
    if (!L || g->ends_in_hook || !lua_checkstack(L, 24)) {
        return NULL;
    }
    lua_rawgetp(L, LUA_REGISTRYINDEX, &handler_key);
    lua_pushstring(L, event); /* interned since the handler was set: takes no memory */
    return L;
}

/* On the coroutine: handler, event, arguments. An interrupt that met the hook goes on to who was
 * interrupted. */
static void call(struct gpulua *g, lua_State *L, int argument_count) {
    bool was_interrupted = atomic_load(&g->interrupt) != 0;
    lua_State *innermost = gpu_lua_set_innermost(g, L);
    int status = lua_pcall(L, argument_count + 1, 0, 0);
    gpu_lua_set_innermost(g, innermost);
    if (status == LUA_OK) {
        return;
    }
    if (!was_interrupted && gpu_lua_error_code(L, g, -1) == GPULUA_INTERRUPTED) {
        lua_pop(L, 1);
        gpulua_interrupt(g);
    } else {
        gpu_lua_tell(g, L, NULL);
    }
}

static void push_text(lua_State *L, const char *text) {
    if (text) {
        lua_pushstring(L, text);
    } else {
        lua_pushnil(L);
    }
}

/* ---- what the runtime calls ---- */

static int push_info(lua_State *L) {
    const gpulua_hook_info *info = lua_touserdata(L, 1);
    struct script_hooks *hooks = lua_touserdata(L, 2);
    gpu_lua_push_device(L, hooks->handle->g, hooks->handle->device);
    push_text(L, info->name);
    push_text(L, info->label);
    push_text(L, info->library);
    push_text(L, info->type);
    lua_pushinteger(L, (lua_Integer)info->stream);
    lua_pushinteger(L, (lua_Integer)info->bytes);
    if (info->source) {
        lua_pushfstring(L, "%s:%d", info->source, info->line);
    } else {
        lua_pushnil(L);
    }
    return 8;
}

/* Pushes what `push` answers for two pointers. False: there is no memory; the coroutine is empty.
 */
static bool push_safely(lua_State *L, lua_CFunction push, const void *first, void *second) {
    lua_pushcfunction(L, push);
    lua_pushlightuserdata(L, (void *)(uintptr_t)first);
    lua_pushlightuserdata(L, second);
    if (lua_pcall(L, 2, LUA_MULTRET, 0)) {
        lua_settop(L, 0);
        return false;
    }
    return true;
}

/* Calls the handler with the event and what `push` answers. The runtime may be in the middle of a
 * call: all along finalisers may do as little as the hook itself. */
static void tell(struct script_hooks *hooks, const char *event, lua_CFunction push,
                 const void *first) {
    struct gpulua *g = hooks->handle->g;
    bool was_in_hook = g->is_in_hook;
    g->is_in_hook = true;
    lua_State *L = begin(g, event);
    if (L && push_safely(L, push, first, hooks)) {
        call(g, L, lua_gettop(L) - 2);
    }
    g->is_in_hook = was_in_hook;
}

static void before_enqueue(void *user, const gpulua_hook_info *info) {
    tell(user, "before_enqueue", push_info, info);
}

struct outcome {
    uint64_t number;
    gpulua_status status;
    const char *message;
    int64_t host_ns, device_ns;
};

static int push_outcome(lua_State *L) {
    const struct outcome *outcome = lua_touserdata(L, 1);
    struct script_hooks *hooks = lua_touserdata(L, 2);
    gpu_lua_push_device(L, hooks->handle->g, hooks->handle->device);
    lua_pushinteger(L, (lua_Integer)outcome->number);
    if (outcome->status) {
        struct gpu_error error = {0};
        gpu_error_set(&error, outcome->status, "%s", outcome->message);
        gpu_lua_error_push_owned(L, &error);
    } else {
        lua_pushnil(L);
    }
    lua_pushnumber(L, (lua_Number)outcome->host_ns / 1e9);
    if (outcome->device_ns >= 0) {
        lua_pushnumber(L, (lua_Number)outcome->device_ns / 1e9);
    } else {
        lua_pushnil(L);
    }
    return 5;
}

static void after_enqueue(void *user, const gpulua_hook_info *info, gpulua_status status,
                          const char *message) {
    const struct outcome outcome = {info->number, status, message, 0, -1};
    tell(user, "after_enqueue", push_outcome, &outcome);
}

/* From a poll: only takes note. */
static void after_complete(void *user, const gpulua_hook_info *info, gpulua_status status,
                           const char *message, int64_t host_ns, int64_t device_ns) {
    struct script_hooks *hooks = user;
    size_t length = message ? strlen(message) : 0;
    struct ended *ended = malloc(sizeof *ended + length + 1);
    if (!ended) {
        hooks->lost++;
        hooks->handle->g->hooks_untold++;
        return;
    }
    *ended = (struct ended){
        .number = info->number, .status = status, .host_ns = host_ns, .device_ns = device_ns};
    memcpy(ended->message, message ? message : "", length + 1);
    *hooks->last = ended;
    hooks->last = &ended->next;
    hooks->handle->g->hooks_untold++;
}

/* ---- telling ---- */

static void tell_ended(struct script_hooks *hooks, const struct ended *ended) {
    const struct outcome outcome = {ended->number, ended->status, ended->message, ended->host_ns,
                                    ended->device_ns};
    tell(hooks, "before_complete", push_outcome, &outcome);
    tell(hooks, "after_complete", push_outcome, &outcome);
}

static void tell_lost(struct gpulua *g, struct script_hooks *hooks) {
    char line[96];
    snprintf(line, sizeof line, "no host memory for the hooks of %llu operations' ends",
             (unsigned long long)hooks->lost);
    hooks->lost = 0;
    if (g->config.on_log) {
        g->config.on_log(g->config.user, line);
    }
}

/* Hooks close no devices, so that the list stays what it is. */
void gpu_lua_hooks_tell(struct gpulua *g) {
    if (__builtin_expect(g->hooks_untold == 0 || g->is_in_hook, 1)) {
        return;
    }
    g->hooks_untold = 0;
    for (struct device_handle *handle = g->devices; handle; handle = handle->next) {
        struct script_hooks *hooks = handle->hooks;
        while (hooks && hooks->first) {
            struct ended *ended = hooks->first;
            hooks->first = ended->next;
            if (!hooks->first) {
                hooks->last = &hooks->first;
            }
            tell_ended(hooks, ended);
            free(ended);
        }
        if (hooks && hooks->lost > 0) {
            tell_lost(g, hooks);
        }
    }
}

void gpu_lua_hooks_finish(struct device_handle *handle) {
    struct script_hooks *hooks = handle->hooks;
    handle->hooks = NULL;
    if (!hooks) {
        return;
    }
    while (hooks->first) {
        struct ended *ended = hooks->first;
        hooks->first = ended->next;
        free(ended);
    }
    free(hooks);
}

/* ---- setting ---- */

/* core.hooks_handler(f): f("before_enqueue", device, name, label, library, type, stream, bytes,
 * where), f("after_enqueue", device, number, error), f("before_complete" and "after_complete",
 * device, number, error, host seconds, device seconds); nil for what is not known. */
int gpu_lua_hooks_handler(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_settop(L, 1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &handler_key);
    g->hooks_thread = lua_newthread(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &thread_key);
    return 0;
}

static struct script_hooks *hooks_of(struct device_handle *handle) {
    if (!handle->hooks) {
        handle->hooks = calloc(1, sizeof *handle->hooks);
        if (handle->hooks) {
            handle->hooks->handle = handle;
            handle->hooks->last = &handle->hooks->first;
        }
    }
    return handle->hooks;
}

/* core.hooks_set(dev, is_wanted). Unsupported: a device of several objects. */
int gpu_lua_hooks_set(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct device_handle *handle;
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, &handle);
    struct gpu_error error = {0};
    if (handle->shared) {
        gpu_lua_fail(L, GPULUA_UNSUPPORTED,
                     "hooks: other threads work on this device too, which the host has opened");
    }
    bool is_wanted = lua_toboolean(L, 2);
    gpulua_hooks set = {.struct_bytes = sizeof set,
                        .user = is_wanted ? hooks_of(handle) : NULL,
                        .before_enqueue = before_enqueue,
                        .after_enqueue = after_enqueue,
                        .after_complete = after_complete};
    if (is_wanted && !set.user) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for hooks");
    }
    if (gpu_device_set_hooks(device, GPU_HOOKS_SCRIPT, is_wanted ? &set : NULL, &error)) {
        gpu_lua_throw(L, &error);
    }
    return 0;
}
