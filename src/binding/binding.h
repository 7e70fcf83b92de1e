/* What the files of the binding share: kinds of handles, checks, errors, sites.
 *
 * One file per Lua type. Every C function of ours has the gpulua object as its first upvalue
 * (GPU_LUA(L)). A handle is a userdata of one kind; its metatable is found by address, so that a
 * check costs a few nanoseconds. A Lua error is a longjmp: it never leaves behind a half-built
 * object or a struct gpu_error that owns memory. So what is made in C is put into a userdata with a
 * finaliser that already exists, and a gpu_error is turned into an error object by gpu_lua_throw,
 * which frees it first. */
#ifndef GPU_BINDING_BINDING_H
#define GPU_BINDING_BINDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lauxlib.h>
#include <lua.h>

#include "gpulua.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/op.h"
#include "runtime/share.h"
#include "runtime/work.h"

/* clang-format off */
/* X(C name, name for scripts) */
#define GPU_LUA_KIND_TABLE(X)                                                                     \
    X(DEVICE, "device") X(BUFFER, "buffer") X(HOST, "host buffer") X(MODULE, "module")             \
    X(KERNEL, "kernel") X(STREAM, "stream") X(MEMORY, "memory") X(OP, "op") X(RECORDER, "recorder") \
    X(CAPTURE, "capture") X(GRAPH, "graph") X(SCALAR, "scalar") X(POOL, "pool") X(TASK, "task")     \
    X(GROUP, "group") X(USE, "use") X(STAGING, "staging")                                          \
    X(GROUP_ROOM, "room of a group")
/* clang-format on */
enum gpu_lua_kind {
#define X(name, text) GPU_LUA_KIND_##name,
    GPU_LUA_KIND_TABLE(X)
#undef X
        GPU_LUA_KIND_COUNT
};

/* Devices wait that long for work in flight when they are closed before they abandon it, */
#define GPU_LUA_CLOSE_TIMEOUT_MS 2000
/* and that long for it to end by itself when the script is over, unless the host says otherwise. */
#define GPU_LUA_EXIT_TIMEOUT_MS 5000
/* After that time the host is told what is being waited for. */
#define GPU_LUA_QUIET_TIMEOUT_MS 1000

/* ---- handles (core.c) ---- */

/* Handles that launches check begin with this: comparing it costs a quarter of asking for the
 * metatable. gpu_lua_new sets it and the finaliser clears it, so memory that was a handle once does
 * not pass for one. */
struct tagged {
    const void *metatable;
};
static inline bool gpu_lua_kind_is_tagged(enum gpu_lua_kind kind) {
    return kind == GPU_LUA_KIND_DEVICE || kind == GPU_LUA_KIND_BUFFER ||
           kind == GPU_LUA_KIND_KERNEL || kind == GPU_LUA_KIND_GRAPH;
}

/* Makes the metatable of a kind: `methods` into __index unless `metamethods` has one of its own.
 * Either may be NULL. Leaves nothing on the stack. */
void gpu_lua_kind_new(lua_State *L, struct gpulua *g, enum gpu_lua_kind kind,
                      const luaL_Reg *methods, const luaL_Reg *metamethods);
/* One method more, with upvalues of its own: the function on top, which is popped. */
void gpu_lua_kind_set_method(lua_State *L, const struct gpulua *g, enum gpu_lua_kind kind,
                             const char *name);
/* For an object with a bound on its heap that is to hold for what handles have outside of it, too:
 * each handle is as much larger there, so that the collector hears of it as well. What is reserved
 * so is never touched. */
void gpu_lua_count_outside(struct gpulua *g);
/* Pushes a zeroed userdata of that kind. */
void *gpu_lua_new(lua_State *L, struct gpulua *g, enum gpu_lua_kind kind, size_t bytes,
                  int user_values);
/* The buffer at `index`, which is closed, needs no finaliser any more: that spares the collector a
 * call for each. It stays a buffer in every other way. */
void gpu_lua_buffer_unfinalize(lua_State *L, struct gpulua *g, int index);
/* The handle at `index` if it is of that kind, else NULL. */
void *gpu_lua_test(lua_State *L, const struct gpulua *g, int index, enum gpu_lua_kind kind);
/* The same, but raises InvalidArgument. */
void *gpu_lua_check(lua_State *L, const struct gpulua *g, int index, enum gpu_lua_kind kind);
/* Raises that what is at 1 is not what the method that runs belongs to; `kind` names it ("buffer").
 */
_Noreturn void gpu_lua_bad_self(lua_State *L, const char *kind, const char *wanted);
/* What the value at `index` is, for messages; may push it. */
const char *gpu_lua_describe(lua_State *L, int index);
/* Raises InvalidArgument unless the value at `index` can be called. `number`: of the argument, for
 * scripts. */
void gpu_lua_check_function(lua_State *L, int index, int number, const char *what);
/* Raises InvalidArgument where a method was given more than the `most` arguments that it takes.
 * Nils are not minded, nor are handles: x:copy(blas:gemm(...)) has the op besides the buffer. */
void gpu_lua_check_count(lua_State *L, int most, const char *what, const char *hint);
/* Pushes the gpulua object of the state. */
void gpu_lua_push_object(lua_State *L);
/* Pushes a function of ours: with the gpulua object as its upvalue. */
void gpu_lua_push_function(lua_State *L, lua_CFunction function);
/* The registry's table of that key, made when it is first asked for. `mode`: what is weak, "k" or
 * "v". */
void gpu_lua_push_weak(lua_State *L, const void *key, const char *mode);
const char *gpu_lua_kind_name(enum gpu_lua_kind kind);
/* Puts functions of ours into the table on top. */
void gpu_lua_set_functions(lua_State *L, const luaL_Reg *functions);

/* ---- errors (error.c) ---- */

void gpu_lua_error_open(lua_State *L, struct gpulua *g);
/* Raises what `error` says and frees what it owns. */
_Noreturn void gpu_lua_throw(lua_State *L, struct gpu_error *error);
_Noreturn void gpu_lua_fail(lua_State *L, gpulua_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with a hint of its own instead of the code's. */
_Noreturn void gpu_lua_fail_hint(lua_State *L, gpulua_status code, const char *hint,
                                 const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Raises OutOfBounds with its figures: `length` elements behind `offset` of `size`. `hint`: static;
 * NULL: the code's. */
_Noreturn void gpu_lua_fail_range(lua_State *L, const char *hint, int64_t offset, int64_t length,
                                  uint64_t size, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* Pushes an error object. `error` stays its owner's. */
void gpu_lua_error_push(lua_State *L, const struct gpu_error *error);
/* The same, and frees what it owns. Never raises: without memory it pushes Lua's message about
 * that. Needs four free slots. */
void gpu_lua_error_push_owned(lua_State *L, struct gpu_error *error);
/* The status of the error object at `index`; 0 for every other value. */
gpulua_status gpu_lua_error_code(lua_State *L, const struct gpulua *g, int index);
/* Is it of a Lua file of ours? After lua_getinfo with "S". */
bool gpu_lua_is_ours(const lua_Debug *ar);
/* The innermost line of a script that `L` runs, not of our own Lua files; false: there is none. */
bool gpu_lua_where(lua_State *L, lua_Debug *ar);
/* core.raise(code, message[, hint]) */
int gpu_lua_error_raise(lua_State *L);

/* ---- small things (core.c) ---- */

/* The innermost line of a script that is being run, for messages and error objects (caller.c). */
void gpu_lua_site(lua_State *L, struct gpulua *g, struct gpu_device *device, struct gpu_site *site);
/* Optional seconds at `index`, argument `number` of `what`, as an absolute time of gpu_lua_now_ns;
 * INT64_MAX: no limit. */
int64_t gpu_lua_opt_deadline(lua_State *L, int index, int number, const char *what);
/* The same, not optional. */
int64_t gpu_lua_check_deadline(lua_State *L, int index, int number, const char *what);
int64_t gpu_lua_now_ns(void);
/* An optional string field of the table at `index` (absolute); NULL if it is nil or there is no
 * table. The string stays alive as long as the table has it (see gpu_lua_keep_option). `what` names
 * the table in messages. */
const char *gpu_lua_field_string(lua_State *L, int index, const char *field, const char *what);
/* A string at `index`, for who would take it to end at a zero byte: one in it is refused. */
const char *gpu_lua_text(lua_State *L, int index, const char *field, const char *what);
/* The same, but leaves the value on the stack, which keeps the string: for where more of the script
 * may run before it is used. */
const char *gpu_lua_push_field_string(lua_State *L, int index, const char *field, const char *what);
/* Pops what the table at `index` (absolute) has for that option. The table keeps it, unless a
 * metamethod has made it: then the registry does until the option is next asked for. */
void gpu_lua_keep_option(lua_State *L, int index, const char *field);
int64_t gpu_lua_field_integer(lua_State *L, int index, const char *field, const char *what,
                              int64_t fallback, int64_t min, int64_t max);
/* Raises InvalidArgument for the first key of the options at `index` that is not among `names`
 * (NULL-terminated). Not a table: nothing, if nil, else InvalidArgument. */
void gpu_lua_check_options(lua_State *L, int index, const char *const *names, const char *what);

#endif
