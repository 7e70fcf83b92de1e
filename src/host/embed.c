/* The embedding API of gpulua.h, and what `require` finds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "binding/core.h"
#include "binding/deflate.h"
#include "binding/image.h"
#include "binding/limits.h"
#include "binding/loop.h"
#include "binding/lua_files.h"
#include "binding/samples.h"
#include "host/handle.h"
#include "host/heap.h"
#include "host/sandbox.h"
#include "host/structs.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

/* Failures of gpulua_new and gpulua_attach, which have no object to keep them. */
static _Thread_local struct {
    gpulua_error view;
    char message[1024]; /* as in struct gpu_error */
} creation_error;

const char *gpulua_version(void) {
    return TEXT(GPULUA_VERSION_MAJOR) "." TEXT(GPULUA_VERSION_MINOR) "." TEXT(GPULUA_VERSION_PATCH);
}

/* ---- modules ---- */

static const char module_key;   /* registry: the table that require "gpulua" answers */
static const char standard_key; /* registry: what our own modules have for globals */

static const struct gpu_embedded_file *find_file(const char *name) {
    for (size_t i = 0; i < gpu_lua_file_count; i++) {
        if (strcmp(gpu_lua_files[i].name, name) == 0) {
            return &gpu_lua_files[i];
        }
    }
    return NULL;
}

static void load_embedded(lua_State *L, const struct gpu_embedded_file *file) {
    const char *name = lua_pushfstring(L, "=gpulua/%s", file->name);
    if (luaL_loadbufferx(L, (const char *)file->bytes, file->byte_count, name, "t") != LUA_OK) {
        lua_error(L);
    }
    lua_remove(L, -2);
}

/* Fields of the table on top, into a new one in its place. */
static void copy_fields(lua_State *L) {
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, -3);) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2); /* the copy, key, key, value */
        lua_rawset(L, -4);
    }
    lua_remove(L, -2);
}

/* require of our own modules. Upvalues: what it has answered, how ours are opened, Lua's. */
static int require_own(lua_State *L) {
    luaL_checkstring(L, 1);
    lua_settop(L, 1);
    lua_pushvalue(L, 1);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) {
        return 1;
    }
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    lua_pushvalue(L, 1);
    bool is_loaded = lua_rawget(L, -2) != LUA_TNIL;
    lua_pushvalue(L, 1);
    bool is_ours = lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL;
    if (is_loaded || !is_ours) {
        lua_pushvalue(L, lua_upvalueindex(3));
        lua_replace(L, -2);
    }
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    if (is_ours) {
        lua_pushvalue(L, 1);
        lua_pushvalue(L, -2);
        lua_rawset(L, lua_upvalueindex(1));
        lua_pushvalue(L, 1);
        lua_pushvalue(L, -2);
        lua_rawset(L, 3); /* loaded */
    }
    return 1;
}

/* Pushes Lua's globals and libraries as they were when the first module of ours was opened, so that
 * these do what they do whatever the script makes of its own; what is in none of them is the
 * script's. */
static void push_standard(lua_State *L) {
    static const char *const names[] = {
        "_G",       "_VERSION", "assert",   "collectgarbage", "dofile",  "error",  "getmetatable",
        "ipairs",   "load",     "loadfile", "next",           "pairs",   "pcall",  "print",
        "rawequal", "rawget",   "rawlen",   "rawset",         "require", "select", "setmetatable",
        "tonumber", "tostring", "type",     "warn",           "xpcall"};
    static const char *const libraries[] = {LUA_COLIBNAME,   LUA_DBLIBNAME,   LUA_IOLIBNAME,
                                            LUA_LOADLIBNAME, LUA_MATHLIBNAME, LUA_OSLIBNAME,
                                            LUA_STRLIBNAME,  LUA_TABLIBNAME,  LUA_UTF8LIBNAME};
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &standard_key) == LUA_TTABLE) {
        return;
    }
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushglobaltable(L);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lua_pushstring(L, names[i]);
        lua_pushvalue(L, -1);
        lua_rawget(L, -3);
        lua_rawset(L, -4);
    }
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        lua_pushstring(L, libraries[i]);
        lua_pushvalue(L, -1);
        if (lua_rawget(L, -3) == LUA_TTABLE) {
            copy_fields(L);
        }
        lua_rawset(L, -4);
    }
    lua_createtable(L, 0, 1);
    lua_insert(L, -2);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_newtable(L);
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    copy_fields(L);
    lua_getfield(L, -3, "require");
    lua_pushcclosure(L, require_own, 3);
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "gpulua.require"); /* the interpreter's, for its end */
    lua_setfield(L, -2, "require");
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &standard_key);
}

/* The chunk on top, a module of ours, gets its globals. */
static void give_globals(lua_State *L) {
    if (!gpu_sandbox_trust(L)) {
        push_standard(L);
        lua_setupvalue(L, -2, 1);
    }
}

void gpu_host_load_file(lua_State *L, const char *name) {
    const struct gpu_embedded_file *file = find_file(name);
    if (!file) {
        luaL_error(L, "gpulua was built without %s", name);
    }
    load_embedded(L, file);
}

static void load_module(lua_State *L, const char *name) {
    gpu_host_load_file(L, name);
    give_globals(L);
}

/* A preload function: upvalue = light userdata of the file. A text is its own module. */
static int open_embedded(lua_State *L) {
    const struct gpu_embedded_file *file = lua_touserdata(L, lua_upvalueindex(1));
    const char *dot = strrchr(file->name, '.');
    if (dot && strcmp(dot, ".lua") != 0) {
        lua_pushlstring(L, (const char *)file->bytes, file->byte_count);
        return 1;
    }
    load_embedded(L, file);
    give_globals(L);
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

/* "npy.lua" is preloaded as gpulua.npy, and so on. */
static void preload(lua_State *L) {
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    for (size_t i = 0; i < gpu_lua_file_count; i++) {
        const char *name = gpu_lua_files[i].name;
        const char *dot = strrchr(name, '.');
        if (!dot || strcmp(name, "init.lua") == 0) {
            continue;
        }
        lua_pushliteral(L, "gpulua.");
        lua_pushlstring(L, name, (size_t)(dot - name));
        lua_concat(L, 2);
        lua_pushlightuserdata(L, (void *)(uintptr_t)&gpu_lua_files[i]);
        lua_pushcclosure(L, open_embedded, 1);
        lua_rawset(L, -3);
    }
    static const luaL_Reg cores[] = {{"gpulua.core", luaopen_gpulua_core},
                                     {"gpulua.deflate_core", luaopen_gpulua_deflate_core},
                                     {"gpulua.image_core", luaopen_gpulua_image_core},
                                     {"gpulua.samples_core", luaopen_gpulua_samples_core},
                                     {NULL, NULL}};
    luaL_setfuncs(L, cores, 0);
    lua_pop(L, 1);
}

int luaopen_gpulua_core(lua_State *L) {
    luaL_checkversion(L);
    struct gpulua *g = gpu_lua_open(L, NULL);
    preload(L);
    gpu_lua_core_push(L, g);
    return 1;
}

/* The module table: what init.lua answers for the core table. Opened again on the same state, it
 * answers the same table. */
int luaopen_gpulua(lua_State *L) {
    lua_settop(L, 0);
    luaopen_gpulua_core(L);
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &module_key) == LUA_TTABLE) {
        return 1;
    }
    lua_pop(L, 1);
    load_module(L, "init.lua");
    lua_insert(L, -2);
    lua_call(L, 1, 1);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &module_key);
    return 1;
}

/* For those who require one of our files before gpulua itself. */
static int open_file(lua_State *L, const char *name) {
    lua_settop(L, 1);
    luaopen_gpulua_core(L);
    load_module(L, name);
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

int luaopen_gpulua_busted(lua_State *L) {
    return open_file(L, "busted.lua");
}

int luaopen_gpulua_image(lua_State *L) {
    return open_file(L, "image.lua");
}

int luaopen_gpulua_luv(lua_State *L) {
    return open_file(L, "luv.lua");
}

int luaopen_gpulua_npy(lua_State *L) {
    return open_file(L, "npy.lua");
}

int luaopen_gpulua_trace(lua_State *L) {
    return open_file(L, "trace.lua");
}

int luaopen_gpulua_wav(lua_State *L) {
    return open_file(L, "wav.lua");
}

/* ---- objects ---- */

void gpu_host_keep_creation_error(gpulua_status code, const char *message) {
    memset(&creation_error, 0, sizeof creation_error);
    snprintf(creation_error.message, sizeof creation_error.message, "%s", message);
    creation_error.view.struct_bytes = sizeof creation_error.view;
    creation_error.view.code = code;
    creation_error.view.message = creation_error.message;
    creation_error.view.hint = gpu_error_hint(code);
    creation_error.view.source = creation_error.view.traceback = "";
}

/* Stack: light userdata of the configuration, open the standard libraries? */
static int attach_protected(lua_State *L) {
    const gpulua_config *config = lua_touserdata(L, 1);
    bool is_ours = lua_toboolean(L, 2);
    if (is_ours && !config->sandbox) {
        luaL_openlibs(L);
    }
    struct gpulua *g = gpu_lua_open(L, config);
    if (is_ours && config->sandbox) {
        gpu_sandbox_open(L);
    }
    preload(L);
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(L, luaopen_gpulua);
    lua_setfield(L, -2, "gpulua");
    gpu_lua_core_push(L, g);
    if (lua_toboolean(L, 2)) {
        lua_getfield(L, -1, "adopt_coroutines");
        lua_call(L, 0, 0);
    }
    return 0;
}

/* Of what the host has of CUDA itself. NULL: it is as it should be. */
static const char *check_cuda(const gpulua_config *config) {
    if (!config->cuda_context && !config->cuda_stream) {
        return NULL;
    }
    if (config->shared_device) {
        return "cuda_context and cuda_stream are for devices of one object: the context of a "
               "shared_device is in its gpulua_device_config";
    }
    if (config->cuda_stream && config->isolation != GPULUA_ISOLATE_NONE) {
        return "cuda_stream needs isolation none: on a thread or in a process of its own a device "
               "shares no streams with the host";
    }
    return config->isolation != GPULUA_ISOLATE_NONE && config->isolation != GPULUA_ISOLATE_THREAD
               ? "cuda_context needs isolation none or thread: a process of its own has contexts "
                 "of its own"
               : NULL;
}

static bool take_config(const gpulua_config *given, gpulua_config *config, bool is_attached) {
    const char *failure = NULL;
    struct gpu_error error;
    if (gpu_host_take_config(given, config, &error)) {
        gpu_host_keep_creation_error(error.code, error.message);
        gpu_error_finish(&error);
        return false;
    }
    if (is_attached &&
        (config->sandbox || config->run_limit_ms > 0 || config->memory_limit_bytes > 0)) {
        failure = "sandbox, run_limit_ms and memory_limit_bytes are for gpulua_new: a state of the "
                  "host's has its own libraries, hooks and allocator";
    } else if (config->sandbox && config->shared_device &&
               !gpu_host_is_isolated(config->shared_device)) {
        failure = "the device of a sandbox has to be in a process of its own";
    } else if (config->allow_compile && !(config->sandbox && config->shared_device &&
                                          gpu_host_is_confined(config->shared_device))) {
        failure = "allow_compile is for sandboxes with a device that is confined "
                  "(gpulua_device_config.confined): whatever else may compile as it is";
    }
    failure = failure ? failure : check_cuda(config);
    if (failure) {
        gpu_host_keep_creation_error(GPULUA_INVALID_ARGUMENT, failure);
    }
    return !failure;
}

static gpulua *attach(lua_State *L, const gpulua_config *config, bool with_libraries) {
    if (!lua_checkstack(L, 8)) {
        gpu_host_keep_creation_error(GPULUA_OUT_OF_MEMORY, "no memory for the stack");
        return NULL;
    }
    lua_pushcfunction(L, attach_protected);
    lua_pushlightuserdata(L, (void *)(uintptr_t)config);
    lua_pushboolean(L, with_libraries);
    int status = lua_pcall(L, 2, 0, 0);
    if (status != LUA_OK) {
        const char *message = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
        gpu_host_keep_creation_error(status == LUA_ERRMEM ? GPULUA_OUT_OF_MEMORY : GPULUA_IO,
                                     message ? message : "gpulua cannot start");
        lua_pop(L, 1);
        return NULL;
    }
    return gpu_lua_find(L);
}

gpulua *gpulua_attach(lua_State *L, const gpulua_config *given) {
    gpulua_config config;
    gpulua *g = take_config(given, &config, true) ? attach(L, &config, false) : NULL;
    if (g) {
        g->attach_count++;
    }
    return g;
}

gpulua *gpulua_new(const gpulua_config *given) {
    struct heap *heap;
    gpulua_config config;
    if (!take_config(given, &config, false)) {
        return NULL;
    }
    uint64_t limit_bytes = config.memory_limit_bytes;
    if (config.sandbox && limit_bytes == 0) {
        limit_bytes = GPU_SANDBOX_MEMORY_BYTES;
    }
    lua_State *L = gpu_heap_state(limit_bytes, &heap);
    if (!L) {
        gpu_host_keep_creation_error(GPULUA_OUT_OF_MEMORY, "no memory for a Lua state");
        return NULL;
    }
    gpulua *g = attach(L, &config, true);
    if (!g) {
        lua_close(L);
        gpu_heap_destroy(heap);
        return NULL;
    }
    g->owns_state = true;
    g->memory = heap;
    g->memory_lift = gpu_heap_lift;
    if (config.sandbox) {
        gpu_heap_bound_tables(heap);
        gpu_lua_count_outside(g);
    }
    uint32_t run_ms = config.run_limit_ms;
    if (config.sandbox && run_ms == 0) {
        run_ms = GPU_SANDBOX_RUN_MS;
    }
    if (run_ms == 0) {
        lua_gc(L, LUA_GCGEN, 0, 0); /* as lua does; one whole collection may take too long else */
    }
    if (run_ms > 0 && !gpu_lua_limits_start(g, (int64_t)run_ms * 1000000)) {
        gpu_host_keep_creation_error(GPULUA_CAPACITY, strerror(errno));
        gpulua_close(g);
        return NULL;
    }
    return g;
}

lua_State *gpulua_state(gpulua *g) {
    return g->L;
}

void gpulua_close(gpulua *g) {
    if (!g) {
        return;
    }
    if (!g->owns_state && g->attach_count > 1) {
        g->attach_count--;
        return;
    }
    if (g->turn_depth > 0 || g->running || g->is_closing) { /* what has called would be freed */
        (void)gpu_lua_keep_error(g, GPULUA_STREAM_MISUSE,
                                 g->is_closing ? "gpulua_close was called from within itself"
                                               : "gpulua_close was called from within gpulua_step");
        return;
    }
    g->is_closing = g->owns_state;
    gpu_lua_guest_run(g);
    if (!g->owns_state) {
        g->attach_count = 0;
        gpu_lua_shut(g, g->L, true, 0);
        return;
    }
    lua_State *L = g->L;
    struct heap *heap = g->memory;
    gpu_lua_shut(g, L, true, 0);
    lua_close(L); /* the object is in it */
    gpu_heap_destroy(heap);
}

/* ---- tasks ---- */

/* Who wants to know what came of a task. */
struct listener {
    gpulua_on_end on_end; /* NULL: nobody does */
    void *user;
};

/* Stack: light userdata of the listener, the function, its arguments. */
static int load_function_protected(lua_State *L) {
    const struct listener *listener = lua_touserdata(L, 1);
    struct gpulua *g = gpu_lua_find(L);
    struct task *task = gpu_lua_task_new(L, g, 2, true);
    task->is_host_started = true;
    task->on_end = listener->on_end;
    task->on_end_user = listener->user;
    gpu_lua_task_ready(g, task);
    return 0;
}

gpulua_status gpulua_load_function(gpulua *g, int arg_count) {
    return gpulua_call(g, arg_count, NULL, NULL);
}

/* Is there a function with its arguments on the stack? What is not there may be on a coroutine's
 * stack, where a function that a script calls has pushed it. */
static gpulua_status check_pushed(gpulua *g, int arg_count) {
    char message[160];
    int count = gpu_lua_host_values(g);
    if (arg_count < 0 || count <= arg_count) {
        snprintf(message, sizeof message,
                 "a function with %d argument%s expected on the stack of gpulua_state: the stack "
                 "has fewer, %d value%s",
                 arg_count, arg_count == 1 ? "" : "s", count, count == 1 ? "" : "s");
    } else if (lua_type(g->L, -(arg_count + 1)) != LUA_TFUNCTION) {
        snprintf(message, sizeof message, "a function expected below the arguments, got %s",
                 luaL_typename(g->L, -(arg_count + 1)));
    } else {
        return GPULUA_OK;
    }
    return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT, message);
}

gpulua_status gpulua_call(gpulua *g, int arg_count, gpulua_on_end on_end, void *user) {
    struct listener listener = {on_end, user};
    lua_State *L = g->L;
    if (g->is_closed || check_pushed(g, arg_count)) {
        int count = gpu_lua_host_values(g);
        lua_pop(L, arg_count < 0 ? 0 : count <= arg_count ? count : arg_count + 1);
        return g->is_closed ? gpu_lua_keep_error(g, GPULUA_CLOSED, "the object is closed")
                            : GPULUA_INVALID_ARGUMENT;
    }
    if (!lua_checkstack(L, 2)) {
        lua_pop(L, arg_count + 1);
        return gpu_lua_keep_error(g, GPULUA_OUT_OF_MEMORY, "no memory for the stack");
    }
    lua_pushcfunction(L, load_function_protected);
    lua_insert(L, -(arg_count + 2));
    lua_pushlightuserdata(L, &listener);
    lua_insert(L, -(arg_count + 2));
    int status = lua_pcall(L, arg_count + 2, 0, 0);
    if (status != LUA_OK) {
        const char *message = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
        gpu_lua_keep_error(g, GPULUA_OUT_OF_MEMORY,
                           message ? message : "the task could not be started");
        lua_pop(L, 1);
        return GPULUA_OUT_OF_MEMORY;
    }
    return GPULUA_OK;
}

/* Stack: light userdata of the path. Leaves the chunk. */
static int load_file_protected(lua_State *L) {
    const char *path = lua_touserdata(L, 1);
    struct gpulua *g = gpu_lua_find(L);
    int status = luaL_loadfilex(L, path, g && g->config.sandbox ? "t" : NULL);
    if (status != LUA_OK) {
        lua_pushinteger(L, status);
        return 2;
    }
    return 1;
}

gpulua_status gpulua_load_file(gpulua *g, const char *path) {
    lua_State *L = g->L;
    if (g->is_closed || !lua_checkstack(L, 4)) {
        return gpu_lua_keep_error(g, g->is_closed ? GPULUA_CLOSED : GPULUA_OUT_OF_MEMORY,
                                  g->is_closed ? "the object is closed"
                                               : "no memory for the stack");
    }
    int top = lua_gettop(L);
    lua_pushcfunction(L, load_file_protected);
    lua_pushlightuserdata(L, (void *)(uintptr_t)path);
    int status = lua_pcall(L, 1, LUA_MULTRET, 0);
    if (status == LUA_OK && lua_gettop(L) == top + 1) {
        return gpulua_load_function(g, 0);
    }
    if (status == LUA_OK) {
        status = (int)lua_tointeger(L, -1);
        lua_pop(L, 1);
    }
    const char *message = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    gpulua_status code = status == LUA_ERRMEM    ? GPULUA_OUT_OF_MEMORY
                         : status == LUA_ERRFILE ? GPULUA_IO
                                                 : GPULUA_INVALID_DATA;
    gpu_lua_keep_error(g, code, message);
    lua_settop(L, top);
    return code;
}

int gpulua_step(gpulua *g, int timeout_ms) {
    if (g->is_closed) {
        return -(int)gpu_lua_keep_error(g, GPULUA_CLOSED, "the object is closed");
    }
    gpu_lua_sit(g);
    if (g->turn_depth > 0 || g->running) {
        return -(int)gpu_lua_keep_error(g, GPULUA_STREAM_MISUSE,
                                        "gpulua_step was called from within gpulua_step");
    }
    int64_t deadline_ns =
        timeout_ms < 0 ? INT64_MAX : gpu_lua_now_ns() + (int64_t)timeout_ms * 1000000;
    gpu_device_hold_calls(true);
    if (!gpu_lua_turn(g, g->L, timeout_ms == 0 ? 0 : deadline_ns, true) && g->task_count > 0) {
        gpu_lua_unstick(g);
    }
    if (g->ready_count == 0) { /* else nobody sleeps before the next step, see gpulua_timeout_ms */
        gpu_lua_arm(g);
    }
    gpu_device_hold_calls(false);
    return (int)g->task_count;
}

int gpulua_tasks(const gpulua *g) {
    return g->is_closed ? 0 : (int)g->task_count;
}

void gpulua_cancel_all(gpulua *g) {
    gpu_lua_sit(g);
    for (struct task *task = g->live, *next; task; task = next) {
        next = task->live_next;
        if (!task->parent) {
            gpu_lua_task_cancel(task); /* and what it has spawned */
        }
    }
}

int gpulua_pollfd(gpulua *g) {
    return g->is_closed ? -1 : g->epoll_fd;
}

int gpulua_timeout_ms(gpulua *g) {
    if (g->is_closed) {
        return -1;
    }
    int64_t left_ns = gpu_lua_hint_ns(g);
    if (left_ns < 0) {
        return -1;
    }
    int64_t left_ms = left_ns / 1000000 + (left_ns % 1000000 > 0);
    return left_ms > INT32_MAX ? INT32_MAX : (int)left_ms;
}

const gpulua_error *gpulua_last_error(const gpulua *g) {
    const gpulua_error *error = g ? &g->last_error.view : &creation_error.view;
    static const gpulua_error none = {
        .struct_bytes = sizeof none, .message = "", .hint = "", .source = "", .traceback = ""};
    return error->message ? error : &none;
}
