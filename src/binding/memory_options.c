/* The options of dev:memory, as the resources that they ask for. */
#include <string.h>

#include "binding/memory.h"

#define LOG_TEXT_BYTES 65536
#define CANARY_BYTES 512
#define QUARANTINE_BYTES (INT64_C(16) << 20)
#define WAIT_SECONDS 1.0

/* The layer that an option asks for; the caller fills it. */
static struct gpu_memory_info *add_layer(struct memory_wishes *wishes, enum gpu_memory_kind kind) {
    struct gpu_memory_info *layer = &wishes->layers[wishes->layer_count++];
    *layer = (struct gpu_memory_info){.kind = kind};
    return layer;
}

static void get_bottom(lua_State *L, struct gpulua *g, struct memory_wishes *wishes) {
    static const char *const names[] = {"slab", "driver", "direct"};
    static const enum gpu_memory_kind kinds[] = {GPU_MEMORY_SLAB, GPU_MEMORY_DRIVER,
                                                 GPU_MEMORY_DIRECT};
    int type = lua_getfield(L, 2, "from");
    int at = lua_gettop(L);
    wishes->bottom = GPU_MEMORY_SLAB;
    if (type == LUA_TSTRING) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (strcmp(names[i], gpu_lua_text(L, at, "from", "memory")) == 0) {
                wishes->bottom = kinds[i];
                is_known = true;
            }
        }
        if (!is_known) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "from of memory: \"slab\", \"driver\", \"direct\" or a memory expected, "
                         "got \"%s\"",
                         lua_tostring(L, at));
        }
    } else if (type != LUA_TNIL) {
        if (!gpu_lua_test(L, g, at, GPU_LUA_KIND_MEMORY)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "from of memory: \"slab\", \"driver\", \"direct\" or a memory expected, "
                         "got %s",
                         gpu_lua_describe(L, at));
        }
        wishes->below = at;
        return;
    }
    lua_pop(L, 1);
}

static void get_policy(lua_State *L, struct memory_wishes *wishes) {
    static const char *const names[] = {"fail", "free", "wait"};
    int top = lua_gettop(L);
    const char *name = gpu_lua_push_field_string(L, 2, "oom", "memory");
    int type = lua_getfield(L, 2, "timeout");
    bool is_wait = name && strcmp(name, "wait") == 0;
    if (type != LUA_TNIL && (type != LUA_TNUMBER || !(lua_tonumber(L, -1) >= 0) || !is_wait)) {
        gpu_lua_fail(
            L, GPULUA_INVALID_ARGUMENT,
            "timeout of memory: seconds, a number from 0 on, together with oom = \"wait\"");
    }
    double seconds = type == LUA_TNIL ? WAIT_SECONDS : lua_tonumber(L, -1);
    if (!name) {
        lua_settop(L, top);
        return;
    }
    struct gpu_memory_info *layer = add_layer(wishes, GPU_MEMORY_POLICY);
    for (int i = 0; i < 3; i++) {
        if (strcmp(names[i], name) == 0) {
            layer->policy = (enum gpu_oom_policy)i;
            layer->timeout_ns = seconds > 4e9 ? INT64_MAX / 2 : (int64_t)(seconds * 1e9);
            lua_settop(L, top);
            return;
        }
    }
    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                 "oom of memory: \"fail\", \"free\" or \"wait\" expected, got \"%s\"", name);
}

/* Is the option there? It leaves its value on the stack: a table, or true. False pops it. */
static bool has_option(lua_State *L, const char *name, int other_type, const char *expected) {
    int type = lua_getfield(L, 2, name);
    if (type == LUA_TNIL || (type == LUA_TBOOLEAN && !lua_toboolean(L, -1))) {
        lua_pop(L, 1);
        return false;
    }
    if (type != LUA_TBOOLEAN && type != other_type) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s of memory: %s expected, got %s", name,
                     expected, gpu_lua_describe(L, -1));
    }
    return true;
}

static void get_guard(lua_State *L, struct memory_wishes *wishes) {
    static const char *const options[] = {"canary", "quarantine", NULL};
    if (!has_option(L, "guard", LUA_TTABLE, "true or {canary=, quarantine=}")) {
        return;
    }
    int at = lua_gettop(L);
    struct gpu_memory_info *layer = add_layer(wishes, GPU_MEMORY_GUARD);
    layer->canary_bytes = CANARY_BYTES;
    layer->quarantine_bytes = QUARANTINE_BYTES;
    if (lua_istable(L, at)) {
        gpu_lua_check_options(L, at, options, "guard");
        layer->canary_bytes = (uint64_t)gpu_lua_field_integer(
            L, at, "canary", "guard", CANARY_BYTES, 1, (int64_t)GPU_GUARD_CANARY_BYTES_MAX);
        layer->quarantine_bytes = (uint64_t)gpu_lua_field_integer(L, at, "quarantine", "guard",
                                                                  QUARANTINE_BYTES, 0, INT64_MAX);
    }
    lua_pop(L, 1);
}

void gpu_lua_memory_wishes(lua_State *L, struct gpulua *g, struct memory_wishes *wishes) {
    static const char *const options[] = {"from",       "budget", "guard",     "oom",   "timeout",
                                          "statistics", "log",    "log_bytes", "label", NULL};
    gpu_lua_check_options(L, 2, options, "memory");
    *wishes = (struct memory_wishes){.bottom = GPU_MEMORY_SLAB};
    if (!lua_istable(L, 2)) {
        return;
    }
    const char *label = gpu_lua_push_field_string(L, 2, "label", "memory");
    (void)gpu_label_copy(wishes->label, sizeof wishes->label, label);
    lua_pop(L, 1);
    get_bottom(L, g, wishes);
    get_policy(L, wishes);
    get_guard(L, wishes);
    int64_t budget = gpu_lua_field_integer(L, 2, "budget", "memory", 0, 1, INT64_MAX);
    if (budget > 0) {
        add_layer(wishes, GPU_MEMORY_BUDGET)->limit_bytes = (uint64_t)budget;
    }
    if (has_option(L, "statistics", LUA_TBOOLEAN, "true")) {
        add_layer(wishes, GPU_MEMORY_STATISTICS);
        lua_pop(L, 1);
    }
    int64_t text_bytes =
        gpu_lua_field_integer(L, 2, "log_bytes", "memory", LOG_TEXT_BYTES, GPU_LOG_LINE_BYTES_MAX,
                              (int64_t)GPU_LOG_TEXT_BYTES_MAX);
    if (has_option(L, "log", LUA_TFUNCTION, "true or a function")) {
        gpu_lua_refuse_in_sandbox(L, g, "logs of memories"); /* nobody counts their bytes */
        add_layer(wishes, GPU_MEMORY_LOGGING)->text_bytes = (uint64_t)text_bytes;
        wishes->sink = lua_isfunction(L, -1) ? lua_gettop(L) : 0; /* stays there */
    } else if (lua_getfield(L, 2, "log_bytes") != LUA_TNIL) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "log_bytes of memory: it is for a memory with log = true or a function");
    } else {
        lua_pop(L, 1);
    }
}
