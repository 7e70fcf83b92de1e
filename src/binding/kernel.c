/* Kernels, and the way of a launch from Lua: everything is checked here or below at the call, and
 * nothing but the op's handle is allocated. */
#include "binding/kernel.h"
#include "binding/graph.h"
#include "binding/scalar.h"

#include <math.h>
#include <string.h>

#include "binding/buffer.h"
#include "binding/caller.h"
#include "binding/core.h"
#include "binding/data.h"
#include "binding/device.h"
#include "binding/stream.h"
#include "runtime/occupancy.h"
#include "runtime/op_ref.h"

#define DEFAULT_BLOCK_THREADS 256u

struct kernel_handle *gpu_lua_kernel_new(lua_State *L, struct gpulua *g) {
    return gpu_lua_new(L, g, GPU_LUA_KIND_KERNEL, sizeof(struct kernel_handle), 0);
}

void gpu_lua_kernel_set(struct kernel_handle *handle, struct gpu_kernel *kernel) {
    handle->kernel = kernel;
    handle->signature = gpu_kernel_signature(kernel);
    handle->device = gpu_module_device(gpu_kernel_module(kernel));
}

static inline struct kernel_handle *check_kernel_of(lua_State *L, struct gpulua *g, int index,
                                                    const struct lua_value *value) {
    struct kernel_handle *handle = gpu_lua_test_argument(L, g, index, value, GPU_LUA_KIND_KERNEL);
    if (!handle) {
        (void)gpu_lua_check(L, g, index, GPU_LUA_KIND_KERNEL); /* raises */
    }
    if (!handle || !handle->kernel) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed kernel");
    }
    return handle;
}

static struct kernel_handle *check_kernel(lua_State *L, struct gpulua *g, int index) {
    return check_kernel_of(L, g, index, NULL);
}

/* Pushes a handle of our own of the kernel at 1 and returns it: for what makes values of Lua's
 * while it looks at the kernel, because a finaliser may close the script's. */
static struct kernel_handle *hold_kernel(lua_State *L, struct gpulua *g) {
    struct kernel_handle *held = gpu_lua_kernel_new(L, g);
    gpu_lua_kernel_set(held, gpu_kernel_retain(check_kernel(L, g, 1)->kernel));
    return held;
}

/* ---- arguments ---- */

#define ARGUMENT_TEXT_BYTES 192

/* "argument 2 (a) of kernel 'saxpy'" */
static const char *argument_text(const struct kernel_handle *handle, const struct gpu_param *param,
                                 char *text) {
    const char *name = gpu_kernel_name(handle->kernel);
    snprintf(text, ARGUMENT_TEXT_BYTES,
             param->name[0] ? "argument %u (%s) of kernel '%.80s'"
                            : "argument %u%s of kernel '%.80s'",
             (unsigned)param->number, param->name, name);
    return text;
}

/* As people know it: of a handle its name. */
static const char *type_of(lua_State *L, int at) {
    const char *type = luaL_typename(L, at);
    return luaL_getmetafield(L, at, "__name") == LUA_TSTRING ? lua_tostring(L, -1) : type;
}

/* What to do where something of another kind was given. */
static const char *hint_for(lua_State *L, const struct gpu_param *param, int at) {
    struct gpulua *g = gpu_lua_find(L);
    if (param->kind == GPU_PARAM_POINTER) {
        return lua_istable(L, at) ? "dev:upload(type, table) makes a buffer of it"
                                  : gpu_error_hint(GPULUA_INVALID_ARGUMENT);
    } else if (gpu_lua_test(L, g, at, GPU_LUA_KIND_SCALAR)) {
        return "a kernel that is to see what a scalar has takes it by a pointer, const T *; "
               "scalar:get() waits for the number";
    }
    return gpu_lua_test(L, g, at, GPU_LUA_KIND_BUFFER)
               ? "a buffer goes where the kernel has a pointer; look at the order of the arguments"
               : gpu_error_hint(GPULUA_INVALID_ARGUMENT);
}

static _Noreturn void bad_argument(lua_State *L, const struct gpu_param *param, int at,
                                   const char *reason) {
    char text[ARGUMENT_TEXT_BYTES];
    const struct kernel_handle *handle = hold_kernel(L, gpu_lua_find(L));
    const char *value;
    if (lua_type(L, at) == LUA_TNUMBER) {
        lua_pushvalue(L, at);
        value = lua_tostring(L, -1);
    } else {
        value = type_of(L, at);
    }
    gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT, hint_for(L, param, at), "%s: %s %s (%s expected)",
                      argument_text(handle, param, text), value, reason, param->text);
}

static _Noreturn void not_known(lua_State *L, const struct gpu_param *param, int at) {
    char text[ARGUMENT_TEXT_BYTES];
    const struct kernel_handle *handle = hold_kernel(L, gpu_lua_find(L));
    size_t length = strlen(param->text);
    bool is_pointer = length > 0 && param->text[length - 1] == '*';
    gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT,
                      is_pointer ? "module:kernel(name, \"n: i32, p: inout void*\") takes any "
                                   "buffer there, such as one of u8 written with string.pack"
                                 : "module:kernel(name, \"n: i32, p: { x: in f32*, count: i32 }\") "
                                   "says what a structure has",
                      "%s: %s cannot be passed without a signature by hand (%s expected)",
                      argument_text(handle, param, text), type_of(L, at), param->text);
}

static _Noreturn void closed_argument(lua_State *L, const struct kernel_handle *handle,
                                      const struct gpu_param *param) {
    char text[ARGUMENT_TEXT_BYTES];
    gpu_lua_fail(L, GPULUA_CLOSED, "%s: attempt to use a closed buffer",
                 argument_text(handle, param, text));
}

static inline bool is_complex(const struct gpu_param *param) {
    return param->type == GPU_TYPE_C64 || param->type == GPU_TYPE_C128;
}

/* Tables may have metamethods, which may close the kernel or buffers that came before. */
static __attribute__((noinline)) void get_complex(lua_State *L, const struct gpu_param *param,
                                                  int at, const struct gpu_arg *args,
                                                  struct gpu_arg *arg) {
    const char *reason = gpu_lua_to_element(L, at, param->type, arg->scalar.bytes);
    const struct kernel_handle *handle = check_kernel(L, gpu_lua_find(L), 1);
    for (const struct gpu_arg *before = args; before < arg; before++) {
        if (before->ref && !before->ref->block) {
            closed_argument(L, handle, &handle->signature->params[before - args]);
        }
    }
    if (reason) {
        bad_argument(L, param, at, reason);
    }
}

/* `value`: the argument as Lua keeps it; NULL: not known. `args`: all of them, `arg` is one. */
static inline void get_scalar(lua_State *L, const struct gpu_param *param, int at,
                              const struct lua_value *value, const struct gpu_arg *args,
                              struct gpu_arg *arg) {
    arg->ref = NULL;
    if (param->type == GPU_TYPE_I32 && gpu_lua_is_kept_as(value, LUA_VALUE_INTEGER) &&
        value->integer == (int32_t)value->integer) {
        arg->scalar.i = value->integer;
        return;
    }
    if ((param->type == GPU_TYPE_I64 || param->type == GPU_TYPE_U64) &&
        gpu_lua_is_kept_as(value, LUA_VALUE_INTEGER)) {
        arg->scalar.i = value->integer;
        return;
    }
    if (param->type == GPU_TYPE_F32 && gpu_lua_is_kept_as(value, LUA_VALUE_NUMBER)) {
        arg->scalar.f32 = (float)value->number;
        if (isfinite(arg->scalar.f32)) {
            return;
        }
    }
    if (param->byte_count == 1 && lua_isboolean(L, at)) {
        arg->scalar.i = lua_toboolean(L, at);
        return;
    }
    arg->scalar.u = 0;
    if (is_complex(param)) {
        get_complex(L, param, at, args, arg);
        return;
    }
    const char *reason = gpu_lua_to_element(L, at, param->type, arg->scalar.bytes);
    if (reason) {
        bad_argument(L, param, at, reason);
    }
}

static inline void get_pointer(lua_State *L, struct gpulua *g, const struct kernel_handle *handle,
                               const struct gpu_param *param, int at, const struct lua_value *value,
                               struct gpu_arg *arg) {
    struct buffer *buffer = gpu_lua_test_argument(L, g, at, value, GPU_LUA_KIND_BUFFER);
    if (buffer || (buffer = gpu_lua_scalar_test(L, g, at))) {
        if (!buffer->ref.block) {
            closed_argument(L, handle, param);
        }
        arg->ref = &buffer->ref;
    } else if (lua_isnil(L, at)) {
        arg->ref = NULL;
    } else {
        bad_argument(L, param, at,
                     gpu_lua_test(L, g, at, GPU_LUA_KIND_HOST)
                         ? "is memory of the host, which buffer:copy(host) brings to the device"
                         : "is not a buffer of the device");
    }
}

static void push_signature(lua_State *L, const struct gpu_signature *signature) {
    luaL_Buffer text;
    size_t length = gpu_signature_write(signature, NULL, 0);
    char *to = luaL_buffinitsize(L, &text, length + 1);
    (void)gpu_signature_write(signature, to, length + 1);
    luaL_pushresultsize(&text, length);
}

static _Noreturn void bad_count(lua_State *L, struct gpulua *g, int count) {
    lua_settop(L, 1);
    const struct kernel_handle *handle = hold_kernel(L, g);
    if (count < 0) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "launch of kernel '%s': the number of threads expected, or a table with the "
                     "grid and the block",
                     gpu_kernel_name(handle->kernel));
    }
    push_signature(L, handle->signature);
    gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT,
                      "they follow the number of threads, or the table with the grid",
                      "kernel '%s' takes %u argument%s, got %d (%s)",
                      gpu_kernel_name(handle->kernel), handle->signature->number_count,
                      handle->signature->number_count == 1 ? "" : "s", count, lua_tostring(L, -1));
}

/* ---- structures ---- */

#define LEVELS_MAX (1 + (int)GPU_PARTS_DEEP)

struct level {
    const struct gpu_part *opened; /* NULL: the arguments themselves */
    lua_Integer count;             /* parts so far */
    int table;
};

/* What is wrong with `name`, a part of what is at this level of argument `number`. */
static _Noreturn void bad_part(lua_State *L, const struct level *levels, int level, uint32_t number,
                               const char *problem) {
    luaL_Buffer path;
    luaL_buffinit(L, &path);
    for (int i = 1; i <= level; i++) {
        luaL_addstring(&path, i > 1 ? "." : "");
        luaL_addstring(&path, levels[i].opened->name);
    }
    luaL_pushresult(&path);
    const struct kernel_handle *handle = hold_kernel(L, gpu_lua_find(L));
    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "argument %u (%s) of kernel '%.80s': %s",
                 (unsigned)number, lua_tostring(L, -2), gpu_kernel_name(handle->kernel), problem);
}

/* The part beside it, in what both are in; NULL: it is the last. */
static const struct gpu_part *beside(const struct gpu_part *part) {
    const struct gpu_part *next = gpu_part_behind(part);
    return next->kind == GPU_PART_CLOSE ? NULL : next;
}

static lua_Integer count_parts(const struct gpu_part *opened) {
    lua_Integer count = 0;
    for (const struct gpu_part *part = opened + 1; part; part = beside(part)) {
        count++;
    }
    return count;
}

static bool has_part(const struct gpu_part *opened, const char *name, size_t name_bytes) {
    const struct gpu_part *part = opened + 1;
    while (part &&
           (strlen(part->name) != name_bytes || memcmp(part->name, name, name_bytes) != 0)) {
        part = beside(part);
    }
    return part != NULL;
}

/* Of the table on top of the stack: all that it has is a part. */
static void check_parts(lua_State *L, const struct level *levels, int level, uint32_t number) {
    const struct gpu_part *opened = levels[level].opened;
    int table = lua_gettop(L);
    lua_Integer count = count_parts(opened);
    lua_pushnil(L);
    while (lua_next(L, table)) {
        lua_pop(L, 1);
        bool is_name = lua_type(L, -1) == LUA_TSTRING;
        size_t name_bytes = 0;
        const char *name = is_name ? lua_tolstring(L, -1, &name_bytes) : NULL;
        lua_Integer place = lua_isinteger(L, -1) ? lua_tointeger(L, -1) : 0;
        if ((place < 1 || place > count) && (!name || !has_part(opened, name, name_bytes))) {
            lua_pushvalue(L, -1);
            const char *key = is_name || lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1)
                                                                        : luaL_typename(L, -1);
            bad_part(L, levels, level, number, lua_pushfstring(L, "it has no part '%s'", key));
        }
    }
}

/* Pushes the next value of a level: by its name, or in its place. */
static void push_next(lua_State *L, struct level *levels, int level, const char *name,
                      uint32_t number) {
    struct level *in = &levels[level];
    in->count++;
    if (level == 0) {
        lua_pushvalue(L, in->table + (int)in->count);
        return;
    }
    lua_rawgeti(L, in->table, in->count);
    lua_pushstring(L, name);
    lua_rawget(L, in->table);
    if (!lua_isnil(L, -1) && !lua_isnil(L, -2)) {
        bad_part(L, levels, level, number, lua_pushfstring(L, "'%s' is there twice", name));
    }
    lua_remove(L, lua_isnil(L, -1) ? -1 : -2);
}

/* What is one value, however deep, needs no table around it. */
static bool is_single(const struct gpu_part *opened) {
    return gpu_part_values(opened, gpu_part_behind(opened)) == 1;
}

/* Of arguments that are tables, vectors and structures, the parts become arguments, how many is
 * returned. Raw: no metamethod runs. Names are strings of Lua's, so finalisers may: the kernel is
 * held. */
static int spread(lua_State *L, struct gpulua *g) {
    const struct gpu_signature *signature = hold_kernel(L, g)->signature;
    const struct gpu_part *part = gpu_signature_parts(signature);
    const struct gpu_part *end = part + signature->part_count;
    const struct gpu_param *param = signature->params;
    struct level levels[LEVELS_MAX] = {{.table = 2}};
    int level = 0, slots = lua_gettop(L);
    luaL_checkstack(L, LEVELS_MAX + (int)signature->param_count + LUA_MINSTACK, "arguments");
    lua_settop(L, slots + LEVELS_MAX);
    for (; part < end; part++) {
        if (part->kind == GPU_PART_CLOSE) {
            level--;
            continue;
        }
        push_next(L, levels, level, part->name, param->number);
        if (part->kind == GPU_PART_VALUE) {
            if (level > 0 && lua_isnil(L, -1) && param->kind != GPU_PARAM_POINTER) {
                bad_part(L, levels, level, param->number,
                         lua_pushfstring(L, "'%s' is missing", part->name));
            }
            param++;
            continue;
        }
        level++;
        levels[level] = (struct level){.opened = part, .table = slots + level};
        bool is_one = is_single(part);
        if (lua_type(L, -1) == LUA_TTABLE &&
            !(is_one && is_complex(param) && lua_rawlen(L, -1) == 2)) {
            check_parts(L, levels, level, param->number);
            lua_replace(L, slots + level);
        } else if (is_one && level > 1 && lua_isnil(L, -1) && param->kind != GPU_PARAM_POINTER) {
            bad_part(L, levels, level - 1, param->number,
                     lua_pushfstring(L, "'%s' is missing", part->name));
        } else if (is_one) {                  /* also a complex number, which is a table of two */
            part = gpu_part_behind(part) - 2; /* what closes it comes next */
            param++;
        } else {
            const char *got = type_of(L, -1);
            const char *what = part->length > 0
                                   ? lua_pushfstring(L, "n array of %d", (int)part->length)
                               : part->text[0] ? lua_pushfstring(L, " %s", part->text)
                                               : " structure";
            bad_part(L, levels, level, param->number,
                     lua_pushfstring(L, "a table expected for a%s, got %s", what, got));
        }
    }
    for (uint32_t i = 0; i < signature->param_count; i++) {
        lua_copy(L, slots + LEVELS_MAX + 1 + (int)i, 3 + (int)i);
    }
    int count = (int)signature->param_count;
    lua_settop(L, 2 + count);
    return count;
}

/* All parts stand one after the other; a table among them was meant for several. */
static void check_flat(lua_State *L, struct gpulua *g, const struct gpu_signature *signature) {
    for (int i = 0; i < (int)signature->param_count; i++) {
        const struct gpu_param *param = &signature->params[i];
        if (__builtin_expect(lua_type(L, 3 + i) == LUA_TTABLE && !is_complex(param), 0)) {
            char text[ARGUMENT_TEXT_BYTES];
            gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT,
                              "structures and vectors are either all tables, or all of their parts "
                              "one after the other; by the count these are parts",
                              "%s: table (%s expected)",
                              argument_text(hold_kernel(L, g), param, text), param->text);
        }
    }
}

/* ---- the launch's shape ---- */

static uint32_t to_dim(lua_State *L, int at, const char *field) {
    int is_integer = 0;
    lua_Integer value = lua_type(L, at) == LUA_TNUMBER ? lua_tointegerx(L, at, &is_integer) : 0;
    if (!is_integer || value < 1 || value > UINT32_MAX) {
        lua_pushvalue(L, at);
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "%s of launch: a whole number from 1 on, or a table of up to three, expected, "
                     "got %s",
                     field,
                     lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1) : luaL_typename(L, -1));
    }
    return (uint32_t)value;
}

/* The dimensions on top of the stack. `call`: of what runs, or NULL. */
static void get_dims(lua_State *L, const struct lua_call *call, const char *field, uint32_t *dims) {
    const struct lua_value *value = gpu_lua_argument(call, lua_gettop(L));
    if (gpu_lua_is_kept_as(value, LUA_VALUE_INTEGER) && (uint64_t)value->integer - 1 < UINT32_MAX) {
        dims[0] = (uint32_t)value->integer;
        return;
    }
    if (lua_type(L, -1) != LUA_TTABLE) {
        dims[0] = to_dim(L, -1, field);
        return;
    }
    lua_Unsigned count = lua_rawlen(L, -1);
    if (count < 1 || count > 3) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s of launch: one to three numbers, got %llu",
                     field, (unsigned long long)count);
    }
    for (lua_Unsigned i = 0; i < count; i++) {
        lua_rawgeti(L, -1, (lua_Integer)i + 1);
        dims[i] = to_dim(L, -1, field);
        lua_pop(L, 1);
    }
}

enum { OPTION_GRID, OPTION_BLOCK, OPTION_SHARED, OPTION_STREAM, OPTION_LABEL };
static const char *const options[GPU_LUA_LAUNCH_OPTIONS + 1] = {"grid",   "block", "shared",
                                                                "stream", "label", NULL};

/* Short strings are the same string in one state: from here on they are told by where they are. */
static void keep_options(lua_State *L, struct gpulua *g) {
    for (uint32_t i = 0; i < GPU_LUA_LAUNCH_OPTIONS; i++) {
        g->launch_options[i] = lua_pushstring(L, options[i]);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &options[i]);
    }
}

/* One pass over the table: a launch is too short for a look-up of every field that could be there.
 * The stream is kept by the table, in which nothing of the script's runs from here to the launch,
 * the label by the stack: a hook may take it out of the table. */
static void get_config(lua_State *L, struct gpulua *g, const struct lua_call *call, int config,
                       struct gpu_launch *launch) {
    const char *const *names = g->launch_options;
    bool has_grid = false;
    lua_pushnil(L);
    while (lua_next(L, config)) {
        const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
        if (key == names[OPTION_GRID]) {
            get_dims(L, call, key, launch->grid);
            has_grid = true;
        } else if (key == names[OPTION_BLOCK]) {
            get_dims(L, call, key, launch->block);
        } else if (key == names[OPTION_SHARED]) {
            launch->shared_bytes =
                (uint32_t)gpu_lua_field_integer(L, config, "shared", "launch", 0, 0, UINT32_MAX);
        } else if (key == names[OPTION_STREAM]) {
            if (!gpu_lua_test(L, g, -1, GPU_LUA_KIND_STREAM)) {
                gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                             "stream of launch: a stream expected, got %s", luaL_typename(L, -1));
            }
            launch->submit.stream = gpu_lua_check_stream(L, g, -1);
        } else if (key == names[OPTION_LABEL]) {
            launch->submit.label = gpu_lua_push_field_string(L, config, "label", "launch");
            lua_insert(L, -3);
        } else if (lua_type(L, -2) == LUA_TNUMBER) {
            gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT,
                              "{ grid = ..., block = ... }, or a number of threads",
                              "launch: grid and block go by name, got a list");
        } else {
            gpu_lua_check_options(L, config, options, "launch"); /* raises, naming it */
        }
        lua_pop(L, 1);
    }
    if (!has_grid) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "grid of launch is missing: how many blocks the kernel runs");
    }
}

/* Threads in all: blocks of the default size, as many as it takes. */
static inline void get_threads(lua_State *L, const struct kernel_handle *handle, int type,
                               const struct lua_value *value, struct gpu_launch *launch) {
    int is_integer = gpu_lua_is_kept_as(value, LUA_VALUE_INTEGER);
    lua_Integer threads = is_integer            ? value->integer
                          : type == LUA_TNUMBER ? lua_tointegerx(L, 2, &is_integer)
                                                : 0;
    if (!is_integer || threads < 1) {
        handle = hold_kernel(L, gpu_lua_find(L));
        lua_pushvalue(L, 2);
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "launch of kernel '%s': a number of threads from 1 on, or a table {grid=, "
                     "block=, shared=, stream=, label=}, expected, got %s",
                     gpu_kernel_name(handle->kernel),
                     type == LUA_TNUMBER ? lua_tostring(L, -1) : type_of(L, 2));
    }
    uint32_t block = gpu_kernel_facts(handle->kernel)->block_threads_max;
    block = block && block < DEFAULT_BLOCK_THREADS ? block : DEFAULT_BLOCK_THREADS;
    if (threads < block) { /* no thread more than was asked for where one block does */
        block = (uint32_t)threads;
    }
    lua_Integer blocks = threads / block + (threads % block != 0);
    if (blocks > UINT32_MAX) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "launch of kernel '%s': %lld threads are too many",
                     gpu_kernel_name(handle->kernel), (long long)threads);
    }
    launch->block[0] = block;
    launch->grid[0] = (uint32_t)blocks;
}

/* Upvalues: the object, the metatable of ops.
 * kernel:launch(config, ...) -> op. config: threads, or {grid=, block=, shared=, stream=, label=}.
 * In a capture, where nobody can wait for it, launches of one line return the same op. A gpulua_ctx
 * at the end of the kernel's parameters (kernel/gpulua_kernel.h) is not passed: what the kernel
 * checks with it and does not hold fails the op with KernelFailed. Does not block, but while too
 * much is in flight. */
static int kernel_launch(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int count = lua_gettop(L) - 2;
    const struct lua_call *call = gpu_lua_call(L, &g->caller);
    struct kernel_handle *handle =
        check_kernel_of(L, g, 1, count >= -1 ? gpu_lua_argument(call, 1) : NULL);
    const struct gpu_signature *signature = handle->signature;
    struct gpu_arg args[GPU_PARAMS_MAX];
    struct gpu_launch launch = {
        .kernel = handle->kernel,
        .grid = {1, 1, 1},
        .block = {1, 1, 1},
        .args = args,
        .arg_count = signature->param_count,
    };
    if (__builtin_expect(signature->part_count > 0, 0)) {
        if (count == (int)signature->number_count) {
            count = spread(L, g);
            (void)check_kernel(L, g, 1); /* a finaliser may have closed it: raises */
        } else if (count == (int)signature->param_count) {
            check_flat(L, g, signature);
        }
    }
    if (count != (int)signature->param_count) {
        bad_count(L, g, count);
    }
    struct gpu_op_ref *op = NULL;
    struct gpu_op *captured = NULL;
    bool is_wanted = gpu_lua_is_result_wanted(call);
    if (!is_wanted || (__builtin_expect(gpu_lua_scope(g)->capture != 0, 0) &&
                       gpu_lua_capture_find(L, g, handle->device))) {
        lua_pushnil(L); /* nothing is made before the launch; see gpu_lua_op_captured */
    } else {
        /* gpu_lua_op_new, without a look-up; before all that is borrowed from handles, because
         * making it may run finalisers, which may close them. */
        op = gpu_lua_op_place(L, g);
        lua_pushvalue(L, lua_upvalueindex(2));
        lua_setmetatable(L, -2);
    }
    if (__builtin_expect(!handle->kernel, 0)) {
        (void)check_kernel(L, g, 1); /* raises */
    }
    const struct gpu_param *param = signature->params;
    struct gpu_arg *arg = args;
    for (int at = 3; at < 3 + count; at++, param++, arg++) {
        const struct lua_value *value = gpu_lua_argument(call, at);
        if (param->kind == GPU_PARAM_POINTER) {
            get_pointer(L, g, handle, param, at, value, arg);
        } else if (param->kind == GPU_PARAM_SCALAR) {
            get_scalar(L, param, at, value, args, arg);
        } else {
            not_known(L, param, at);
        }
    }
    int top = 2 + count + 1, type = lua_type(L, 2);
    if (type == LUA_TTABLE) { /* behind the arguments, whose metamethods may change it */
        launch.block[0] = DEFAULT_BLOCK_THREADS;
        get_config(L, g, call, 2, &launch);
    } else {
        get_threads(L, handle, type, gpu_lua_argument(call, 2), &launch);
    }
    if (!launch.submit.stream) {
        launch.submit.stream = gpu_lua_current_stream(L, g, handle->device);
    }
    if (__builtin_expect(gpu_lua_scope(g)->capture != 0, 0)) {
        launch.submit.capture = gpu_lua_capture_find(L, g, handle->device);
    }
    gpu_lua_site_of(L, g, call, handle->device, &launch.submit.site);
    struct gpu_error error;
    struct gpu_op **to = op ? &op->op : is_wanted ? &captured : NULL;
    if (gpu_work_launch(&launch, to, &error)) {
        if (op) {
            op->op = NULL;
        }
        gpu_lua_throw(L, &error);
    }
    if (type == LUA_TTABLE) {
        lua_settop(L, top);
    }
    if (op) {
        gpu_op_ref_loosen(op);
    } else if (is_wanted) {
        gpu_lua_op_captured(L, g, captured);
    }
    return 1; /* the op, if anybody wants it */
}

/* kernel(...): the way that functions are called. */
static int kernel_call(lua_State *L) {
    struct kernel_handle *handle = check_kernel(L, GPU_LUA(L), 1);
    gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT,
                      "kernel:launch(threads, ...), or with {grid=, block=} for threads",
                      "kernel '%s' is not called, but launched", gpu_kernel_name(handle->kernel));
}

/* ---- facts ---- */

/* kernel:signature() -> "n: i32, a: f32, x: in f32*, y: inout f32*" */
static int kernel_signature(lua_State *L) {
    push_signature(L, hold_kernel(L, GPU_LUA(L))->signature);
    return 1;
}

/* core.kernel_arguments(kernel) -> for each argument, and part of one, its element type, or false
 */
int gpu_lua_kernel_arguments(lua_State *L) {
    const struct gpu_signature *signature = hold_kernel(L, GPU_LUA(L))->signature;
    lua_createtable(L, (int)signature->param_count, 0);
    for (uint32_t i = 0; i < signature->param_count; i++) {
        enum gpu_type type = signature->params[i].type;
        if (type < GPU_TYPE_COUNT) {
            lua_pushstring(L, gpu_type_name(type));
        } else {
            lua_pushboolean(L, false);
        }
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

/* kernel:attributes() -> what the driver says of it */
static int kernel_attributes(lua_State *L) {
    const struct kernel_handle *handle = hold_kernel(L, GPU_LUA(L));
    const struct wire_kernel_facts *facts = gpu_kernel_facts(handle->kernel);
    const struct {
        const char *name;
        uint32_t value;
    } fields[] = {{"block_threads_max", facts->block_threads_max},
                  {"shared_bytes", facts->shared_bytes_static},
                  {"registers", facts->registers},
                  {"local_bytes", facts->local_bytes},
                  {"args_bytes", handle->signature->args_bytes}};
    lua_createtable(L, 0, 6);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushinteger(L, fields[i].value);
        lua_setfield(L, -2, fields[i].name);
    }
    lua_pushstring(L, gpu_kernel_name(handle->kernel));
    lua_setfield(L, -2, "name");
    return 1;
}

static lua_Integer opt_count(lua_State *L, int index, const char *what, lua_Integer otherwise,
                             lua_Integer least, lua_Integer most) {
    if (lua_isnoneornil(L, index)) {
        return otherwise;
    }
    int is_whole = 0;
    lua_Integer count = lua_type(L, index) == LUA_TNUMBER ? lua_tointegerx(L, index, &is_whole) : 0;
    if (!is_whole || count < least || count > most) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument %d of occupancy: %s, a whole number from %d on, expected, got %s",
                     index - 1, what, (int)least, gpu_lua_describe(L, index));
    }
    return count;
}

/* kernel:occupancy([block_threads = 256 [, shared_bytes = 0]]) -> blocks of so many threads, with
 * so many bytes of dynamic shared memory, that a multiprocessor holds at once (0: they cannot be
 * launched), and { warps =, warps_max =, share = warps of those that it can hold, limiter =
 * "registers", "shared memory", "threads" or "blocks": what there is too little of for one more }.
 * Without arguments the blocks are the driver's own answer. InvalidArgument; does not block. */
static int kernel_occupancy(lua_State *L) {
    struct kernel_handle *handle = check_kernel(L, GPU_LUA(L), 1);
    const struct wire_kernel_facts *facts = gpu_kernel_facts(handle->kernel);
    bool is_plain = lua_isnoneornil(L, 2) && lua_isnoneornil(L, 3);
    uint32_t threads = (uint32_t)opt_count(L, 2, "threads", 256, 1, 1 << 20);
    uint32_t shared = (uint32_t)opt_count(L, 3, "bytes of shared memory", 0, 0, INT32_MAX);
    struct gpu_occupancy found =
        gpu_occupancy_find(gpu_device_facts(handle->device), facts, threads, shared);
    lua_pushinteger(L, is_plain ? facts->occupancy_blocks : found.blocks);
    lua_createtable(L, 0, 4);
    lua_pushinteger(L, found.warps);
    lua_setfield(L, -2, "warps");
    lua_pushinteger(L, found.warps_max);
    lua_setfield(L, -2, "warps_max");
    lua_pushnumber(L, found.warps_max != 0 ? (double)found.warps / found.warps_max : 0);
    lua_setfield(L, -2, "share");
    lua_pushstring(L, found.limiter);
    lua_setfield(L, -2, "limiter");
    return 2;
}

static void kernel_end(struct kernel_handle *handle) {
    struct gpu_kernel *kernel = handle->kernel;
    handle->kernel = NULL;
    if (kernel) {
        gpu_kernel_release(kernel);
    }
}

/* kernel:close(): ends the handle; launches in flight go on. */
static int kernel_close(lua_State *L) {
    kernel_end(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_KERNEL));
    return 0;
}

static int kernel_gc(lua_State *L) {
    struct kernel_handle *handle = lua_touserdata(L, 1);
    handle->tag.metatable = NULL;
    kernel_end(handle);
    return 0;
}

static int kernel_tostring(lua_State *L) {
    struct kernel_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_KERNEL);
    if (!handle->kernel) {
        lua_pushliteral(L, "gpulua.kernel (closed)");
        return 1;
    }
    lua_pushfstring(L, "gpulua.kernel %s on %s", gpu_kernel_name(handle->kernel),
                    gpu_device_name(handle->device));
    return 1;
}

void gpu_lua_kernel_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"signature", kernel_signature},
                                       {"attributes", kernel_attributes},
                                       {"occupancy", kernel_occupancy},
                                       {"close", kernel_close},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", kernel_gc},
                                           {"__close", kernel_close},
                                           {"__tostring", kernel_tostring},
                                           {"__call", kernel_call},
                                           {NULL, NULL}};
    keep_options(L, g);
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_KERNEL, methods, metamethods);
    gpu_lua_push_object(L);
    lua_rawgetp(L, LUA_REGISTRYINDEX, g->metatables[GPU_LUA_KIND_OP]);
    lua_pushcclosure(L, kernel_launch, 2);
    gpu_lua_kind_set_method(L, g, GPU_LUA_KIND_KERNEL, "launch");
}
