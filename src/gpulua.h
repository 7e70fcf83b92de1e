/* gpulua: scripting GPU pipelines. The one public header.
 *
 * A `gpulua` object belongs to one lua_State and to one thread at a time. Only gpulua_wake and
 * gpulua_interrupt may be called from other threads. No function prints, exits, aborts or installs
 * a signal handler. C99 and C++ clean. */
#ifndef GPULUA_H
#define GPULUA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPULUA_VERSION_MAJOR 0
#define GPULUA_VERSION_MINOR 1
#define GPULUA_VERSION_PATCH 0

#if defined(__GNUC__) && !defined(GPULUA_STATIC)
#define GPULUA_API __attribute__((visibility("default")))
#else
#define GPULUA_API
#endif

/* clang-format off */
/* Every error: X(number, C name, Lua code, what it means, what to do). Numbers are never reused. */
#define GPULUA_STATUS_TABLE(X)                                                                                        \
    X(1, INVALID_ARGUMENT, "InvalidArgument", "an argument is wrong", "check the named argument against the manual")   \
    X(2, INVALID_DATA, "InvalidData", "data could not be used as given", "check the named element or file")            \
    X(3, OUT_OF_BOUNDS, "OutOfBounds", "a range lies outside its buffer", "indices run from 1 to #buffer, inclusive")  \
    X(4, CLOSED, "Closed", "a handle was used after close", "keep the handle open for as long as it is used")          \
    X(5, STALE, "Stale", "memory of an earlier life of the device", "make the buffer again, or make it durable")       \
    X(6, USE_AFTER_FREE, "UseAfterFree", "the memory was freed", "free a buffer only when nothing uses it any more")   \
    X(7, OUT_OF_BUDGET, "OutOfBudget", "the memory budget is exhausted", "close buffers or raise the budget")          \
    X(8, OUT_OF_MEMORY, "OutOfMemory", "no memory is left", "close buffers or use smaller ones")                       \
    X(9, CAPACITY, "Capacity", "a limit is reached", "close what is no longer used or raise the limit")                \
    X(10, STREAM_MISUSE, "StreamMisuse", "a stream or recorder was used wrongly", "see the message")                   \
    X(11, CAPTURE_ACTIVE, "CaptureActive", "this cannot be done inside a capture", "do it before or after the capture")\
    X(12, CAPTURE_INVALIDATED, "CaptureInvalidated", "the capture was broken", "capture again")                        \
    X(13, EMPTY_CAPTURE, "EmptyCapture", "the capture recorded nothing", "launch something inside the capture")        \
    X(14, POOL_SEALED, "PoolSealed", "the pool is sealed", "unseal it before recording into it")                       \
    X(15, POOL_IN_USE, "PoolInUse", "a graph still uses the pool", "close the graphs first")                           \
    X(16, TOPOLOGY_CHANGED, "TopologyChanged", "the sequence of operations changed", "capture again")                  \
    X(17, COMPILE_FAILED, "CompileFailed", "the kernel source does not compile", "read the compiler's log")            \
    X(18, KERNEL_FAILED, "KernelFailed", "a kernel reported a failure", "see the message for block and thread")        \
    X(19, DEPENDENCY_FAILED, "DependencyFailed", "what this needed had failed", "see `root` for the first failure")    \
    X(20, UNDECLARED_ACCESS, "UndeclaredAccess", "a kernel broke its declaration", "declare the access or mend it")    \
    X(21, RACE_FOUND, "RaceFound", "two accesses are not ordered", "order them, or make them atomic")                  \
    X(22, LIBRARY_UNAVAILABLE, "LibraryUnavailable", "a library could not be loaded", "install one of the named")      \
    X(23, LIBRARY_ERROR, "LibraryError", "a library reported an error", "see the message")                             \
    X(24, DRIVER, "Driver", "the driver reported an error", "see the driver's text in the message")                    \
    X(25, DEVICE_LOST, "DeviceLost", "the device is gone", "open the device again; `suspects` may name the cause")     \
    X(26, UNRECOVERABLE, "Unrecoverable", "the device cannot come back", "start a new process")                        \
    X(27, TIMEOUT, "Timeout", "the time is over", "allow more time or look for what hangs")                            \
    X(28, CANCELLED, "Cancelled", "the wait was cancelled", "this is how cancellation shows; clean up and return")     \
    X(29, INTERRUPTED, "Interrupted", "interrupted by the user or the host", "nothing is wrong with the script")       \
    X(30, NOT_YIELDABLE, "NotYieldable", "waiting for a task is impossible here", "await it from the task's body")     \
    X(31, NO_DEVICE, "NoDevice", "there is no such device", "see gpulua --info for what there is")                     \
    X(32, UNSUPPORTED, "Unsupported", "this device or build cannot do it", "see the message")                          \
    X(33, IO, "Io", "a file or system call failed", "see the message")
/* clang-format on */

typedef enum gpulua_status {
    GPULUA_OK = 0,
#define X(number, name, code, meaning, hint) GPULUA_##name = number,
    GPULUA_STATUS_TABLE(X)
#undef X
} gpulua_status;

/* The Lua-side name of a status ("InvalidArgument"), "OK" for 0, "Unknown" for anything else.
 * Static storage. */
GPULUA_API const char *gpulua_status_name(gpulua_status status);

typedef struct lua_State lua_State;
typedef struct gpulua gpulua;

typedef enum gpulua_isolation {
    GPULUA_ISOLATE_DEFAULT = 0, /* process on cuda, none on cpu */
    GPULUA_ISOLATE_NONE = 1,    /* the device is driven on the script's thread */
    GPULUA_ISOLATE_PROCESS =
        2 /* the device lives in a child process: its death is an error, not ours */
} gpulua_isolation;

/* An error as a host sees it. Strings live until the next call on the same object from the same
 * thread. */
typedef struct gpulua_error {
    size_t struct_bytes;
    gpulua_status code;
    const char *message;   /* never NULL */
    const char *hint;      /* what to do; may be "" */
    const char *source;    /* script file of the culprit, or "" */
    int line;              /* in it, or 0 */
    const char *traceback; /* or "" */
} gpulua_error;

typedef struct gpulua_config {
    size_t struct_bytes;         /* set by gpulua_config_init */
    const char *device;          /* "cpu", "cuda", "cuda:N"; NULL: first GPU, else the CPU device */
    gpulua_isolation isolation;  /* transport of devices that the script opens without saying */
    uint64_t memory_limit_bytes; /* Lua heap; 0: none (gpulua_new only) */
    uint64_t device_budget_bytes; /* device memory per device; 0: what the device has */
    const char *executor_path; /* gpulua-exec; NULL: $GPULUA_EXECUTOR, then beside this library */
    const char
        *cache_path; /* compiled kernels; NULL: $GPULUA_CACHE, then the user's cache folder */
    int check; /* not 0: CPU devices are opened in check mode, with check_seed; 0: $GPULUA_CHECK,
                  a seed, does the same */
    uint64_t check_seed;
    void (*on_error)(void *user,
                     const gpulua_error *error); /* a task failed and nobody joined it */
    void (*on_log)(void *user,
                   const char *line); /* what a close waits for; what check mode finds odd */
    void *user;
} gpulua_config;

GPULUA_API const char *gpulua_version(void);

/* Fills `config` with defaults. Call it first; then set fields. */
GPULUA_API void gpulua_config_init(gpulua_config *config);

/* A new state with Lua's standard libraries and gpulua in it. NULL on failure:
 * gpulua_last_error(NULL) says why. Opens no device. `config` may be NULL and is copied. */
GPULUA_API gpulua *gpulua_new(const gpulua_config *config);

/* gpulua in a state of the host's, which stays the host's: it is not closed, and its panic handler,
 * allocator and warning function are left alone. Again on the same state: the same object, its
 * count of attachments raised. */
GPULUA_API gpulua *gpulua_attach(lua_State *L, const gpulua_config *config);

GPULUA_API lua_State *gpulua_state(gpulua *g);

/* Loads a file (NULL: standard input) and starts it as a task. Does not run it: gpulua_step does.
 */
GPULUA_API gpulua_status gpulua_load_file(gpulua *g, const char *path);

/* The same for a function on top of the state's stack with `arg_count` arguments above it; pops all
 * of them. */
GPULUA_API gpulua_status gpulua_load_function(gpulua *g, int arg_count);

/* One turn: runs every task that can run, waits up to `timeout_ms` (-1: for ever, 0: not at all)
 * for the next event. Returns the number of tasks left (>= 0) or -status. Not re-entrant. May block
 * for timeout_ms, never longer than tasks themselves do. */
GPULUA_API int gpulua_step(gpulua *g, int timeout_ms);

/* Tasks not yet finished. */
GPULUA_API int gpulua_tasks(const gpulua *g);

/* A descriptor that is readable when gpulua_step has something to do; valid until close. */
GPULUA_API int gpulua_pollfd(gpulua *g);

/* Milliseconds until gpulua_step wants to be called even if the descriptor stays quiet: 0 now, -1
 * never. */
GPULUA_API int gpulua_timeout_ms(gpulua *g);

/* From any thread (and from signal handlers): ends a wait in gpulua_step early; stops the running
 * script with Interrupted at its next instruction or wait. */
GPULUA_API void gpulua_wake(gpulua *g);
GPULUA_API void gpulua_interrupt(gpulua *g);

/* The last failure of a call on `g`, or of gpulua_new and gpulua_attach on this thread when `g` is
 * NULL. */
GPULUA_API const gpulua_error *gpulua_last_error(const gpulua *g);

/* Cancels tasks, waits for the devices a moment (not after gpulua_interrupt), frees everything.
 * NULL is fine. An attached state stays open. Work that never ends is told to on_log; it ends with
 * its process, and without one of its own this call does not return. */
GPULUA_API void gpulua_close(gpulua *g);

/* `require "gpulua"` in any Lua 5.4. */
GPULUA_API int luaopen_gpulua_core(lua_State *L);
GPULUA_API int luaopen_gpulua(lua_State *L);
GPULUA_API int luaopen_gpulua_image(lua_State *L);
GPULUA_API int luaopen_gpulua_npy(lua_State *L);

#ifdef __cplusplus
}
#endif

#endif
