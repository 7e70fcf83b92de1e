/* gpulua: scripting GPU pipelines. The one public header.
 *
 * A `gpulua` object belongs to one lua_State and to one thread at a time. Only gpulua_wake and
 * gpulua_interrupt may be called from other threads. No function prints, exits, aborts or installs
 * a signal handler. In a child by fork the devices of its parent's objects are closed, and
 * gpulua_close ends nothing of the parent's. C99 and C++ clean.
 *
 * A struct begins with its size, struct_bytes, and gets new members at its end within a major
 * version. A host and a library of different releases go together:
 * - A struct that calls take is set up by its _init, a macro that gives the library the size of the
 *   host's own header; where there are no macros, the _init_sized function behind it is called
 *   with that size. Calls take any size since 0.1.0: 0 is the default of every member, also of one
 *   that is not there. A larger one is InvalidArgument if something is set in it that this library
 *   does not know.
 * - An answer is filled as far as the host's struct goes, by macros over _sized functions, too.
 *   Afterwards struct_bytes says how much of it this library knows; what is behind that is 0.
 * - What the library hands out by pointer, gpulua_error, gpulua_place and gpulua_hook_info, is its
 *   own: a member that came after 0.1.0 is there if struct_bytes goes beyond its offset. */
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
    X(1, INVALID_ARGUMENT, "InvalidArgument", "an argument is wrong", "see what the function takes in docs/reference.md")     \
    X(2, INVALID_DATA, "InvalidData", "data could not be used as given", "check the named element or file")            \
    X(3, OUT_OF_BOUNDS, "OutOfBounds", "a range lies outside its buffer", "indices run from 1 to #buffer, inclusive")  \
    X(4, CLOSED, "Closed", "a handle was used after close", "keep the handle open for as long as it is used")          \
    X(5, STALE, "Stale", "memory of an earlier life of the device", "make the buffer again, or make it durable")       \
    X(6, USE_AFTER_FREE, "UseAfterFree", "the memory was freed", "free a buffer only when nothing uses it any more")   \
    X(7, OUT_OF_BUDGET, "OutOfBudget", "the memory budget is exhausted", "close buffers or raise the budget")          \
    X(8, OUT_OF_MEMORY, "OutOfMemory", "no memory is left", "close buffers or use smaller ones")                       \
    X(9, CAPACITY, "Capacity", "a limit is reached", "close what is no longer used or raise the limit")                \
    X(10, STREAM_MISUSE, "StreamMisuse", "a stream or recorder was used wrongly", "streams belong to one device, captures and recorders to one task") \
    X(11, CAPTURE_ACTIVE, "CaptureActive", "this cannot be done inside a capture", "do it before the capture, or after the launch: of a graphed function on what its call returns")\
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
    X(23, LIBRARY_ERROR, "LibraryError", "a library reported an error", "the library's manual says what its code means") \
    X(24, DRIVER, "Driver", "the driver reported an error", "see the driver's text in the message")                    \
    X(25, DEVICE_LOST, "DeviceLost", "the device is gone", "in a process of its own it comes up again: dev:await() waits for that; `suspects` may name the cause")     \
    X(26, UNRECOVERABLE, "Unrecoverable", "the device cannot come back", "start a new process")                        \
    X(27, TIMEOUT, "Timeout", "the time is over", "allow more time or look for what hangs")                            \
    X(28, CANCELLED, "Cancelled", "the wait was cancelled", "this is how cancellation shows; clean up and return")     \
    X(29, INTERRUPTED, "Interrupted", "interrupted by the user or the host", "nothing is wrong with the script")       \
    X(30, NOT_YIELDABLE, "NotYieldable", "waiting for a task is impossible here", "await it from the task's body")     \
    X(31, NO_DEVICE, "NoDevice", "there is no such device", "see gpulua --info for what there is")                     \
    X(32, UNSUPPORTED, "Unsupported", "this device or build cannot do it", "gpulua --info says what is there")           \
    X(33, IO, "Io", "a file or system call failed", "look at the path, who may read or write there, and how much room is left")
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
    /* The device is driven on the script's thread. On CUDA what was current there before a call is
     * current again behind it, be it one of these or of a function of Lua's; within gpulua_step
     * (functions that scripts call, on_end, hooks) it may be the device's context. */
    GPULUA_ISOLATE_NONE = 1,
    GPULUA_ISOLATE_PROCESS =
        2, /* the device lives in a child process: its death is an error, not ours */
    GPULUA_ISOLATE_THREAD = 3 /* the device is driven on a thread of ours: what ends it ends us */
} gpulua_isolation;

/* How the end of work is found out. All tell of faults, and end waits at their time limits. */
typedef enum gpulua_completion {
    GPULUA_COMPLETION_DEFAULT =
        0, /* what $GPULUA_COMPLETION says: "word", "event" or "block"; word */
    /* The device writes words into memory that script and executor look at: for a short while, then
     * they sleep. */
    GPULUA_COMPLETION_WORD = 1,
    /* The device writes nothing: events are asked for, for a short while without a pause, then from
     * time to time. */
    GPULUA_COMPLETION_EVENT = 2,
    /* Nor does it here, and threads sleep in the driver instead of asking: for machines with few
     * processors. An end is told later by two or three times what it takes to wake a thread. */
    GPULUA_COMPLETION_BLOCK = 3
} gpulua_completion;

/* Where in a kernel something was done, and by whom. */
typedef struct gpulua_place {
    size_t struct_bytes;
    const char *source;           /* as the kernel was compiled; "": the line is not known */
    const char *caller;           /* where that is in a function: the source of the kernel, or "" */
    int line, caller_line;        /* in them, or 0 */
    uint32_t block[3], thread[3]; /* blockIdx, threadIdx */
} gpulua_place;

/* An error as a host sees it. What it points to lives until the next call on the same object from
 * the same thread. */
typedef struct gpulua_error {
    size_t struct_bytes;
    gpulua_status code;    /* InvalidData: also of errors of Lua's own */
    const char *message;   /* never NULL; of a task's, all there is to say but the traceback */
    const char *hint;      /* what to do; may be "" */
    const char *source;    /* script file of the culprit, or "" */
    int line;              /* in it, or 0 */
    const char *traceback; /* or "" */
    /* Of what a kernel did, a finding of check mode or a failed assert: where; and the other one of
     * a race, of barriers that diverge and the like. NULL: there is none. */
    const gpulua_place *place, *other_place;
} gpulua_error;

typedef struct gpulua_config {
    size_t struct_bytes;         /* set by gpulua_config_init */
    const char *device;          /* "cpu", "cuda", "cuda:N"; NULL: first GPU, else the CPU device */
    gpulua_isolation isolation;  /* transport of devices that the script opens without saying */
    uint64_t memory_limit_bytes; /* Lua heap; 0: none. gpulua_new only: gpulua_attach refuses it */
    uint64_t device_budget_bytes; /* device memory per device; 0: what the device has */
    const char *executor_path; /* gpulua-exec; NULL: $GPULUA_EXECUTOR, then beside this library */
    const char
        *cache_path; /* compiled kernels; NULL: $GPULUA_CACHE, then the user's cache folder */
    /* 1: devices that the script opens are traced, as with $GPULUA_TRACE=1: when each operation was
     * asked for, done and known to be over is kept, for require "gpulua.trace" and for the device
     * times of hooks. A shared device is traced where its host has said so (trace_ops_max); then
     * the script sees what all objects give it while it has the device. Not in a sandbox */
    int trace;
    int check; /* 1: devices are opened in check mode, with check_seed; 2: the CPU device as well
                  only with the hashes that a GPU has; 0: $GPULUA_CHECK, a seed or "hashes", does
                  the same */
    uint64_t check_seed;
    /* Whenever a device is lost, what it was given last is written into this file (FILE, FILE.2,
     * ...; from the working folder of now), for `gpulua --replay`; NULL: $GPULUA_FLIGHT, or nowhere
     */
    const char *flight_path;
    /* gpu.device() of scripts is this one; see gpulua_device_open. NULL: a device of their own */
    struct gpulua_device *shared_device;
    void (*on_error)(void *user,
                     const gpulua_error *error); /* a task failed and nobody joined it */
    /* Lines that are no errors: what a close waits for, what check mode finds odd, where a flight
     * was written, that a device is not traced, why compiled kernels are not kept; what a sandbox
     * prints. */
    void (*on_log)(void *user, const char *line);
    void *user;
    /* For how long a task may run between two waits, in milliseconds: one that goes on has had its
     * time, fails with Capacity, and gets to do nothing more. A step begins no other task once its
     * own time is as long; the rest run in the next. 0: for ever, in a sandbox 25 ms. gpulua_new
     * only: gpulua_attach refuses it. Each coroutine has a hook then, which the script must not
     * take away */
    uint32_t run_limit_ms;
    /* 1: the script is not trusted. It finds Lua's libraries without files, programs, bytecode and
     * finalisers, and gpulua's; docs/embedding.md says what. memory_limit_bytes is 16 MiB then
     * unless it says something else; it has no device but shared_device, which is in a process of
     * its own, and compiles nothing unless allow_compile is set. What scripts print goes to on_log.
     * gpulua_new only: gpulua_attach refuses it */
    int sandbox;
    int allow_compile; /* 1: a sandbox compiles kernels; its device has to be confined */
    /* For how long gpulua_close waits for work in flight, in milliseconds: then a device in a
     * process of its own ends with it, and a shared one goes on with it. 0: 5000 */
    uint32_t close_timeout_ms;
    /* A CUcontext of the host's: GPUs that scripts open live in it, and not in the primary context.
     * The device is the one that it is of; a `device` with another number is InvalidArgument. For
     * isolation NONE and THREAD, said here. It stays the host's, who keeps it until gpulua_close;
     * destroyed before, the device is lost. Not with shared_device, which has its own */
    void *cuda_context;
    /* A CUstream of that context (or of the primary one): what scripts put on no stream of their
     * own goes there, in one order with what the host puts there. For isolation NONE alone. It
     * stays the host's, who keeps it until gpulua_close */
    void *cuda_stream;
} gpulua_config;

GPULUA_API const char *gpulua_version(void);

/* Fills `config` with defaults. Call it first; then set fields. */
GPULUA_API void gpulua_config_init_sized(gpulua_config *config, size_t struct_bytes);
#define gpulua_config_init(config) gpulua_config_init_sized(config, sizeof(gpulua_config))

/* A new state with Lua's standard libraries and gpulua in it. Its collector is generational, as
 * lua's is, but where run_limit_ms or sandbox is set: there it is incremental, for a whole
 * collection of an old heap could take longer than that. NULL on failure: gpulua_last_error(NULL)
 * says why. Opens no device. `config` may be NULL and is copied. */
GPULUA_API gpulua *gpulua_new(const gpulua_config *config);

/* gpulua in a state of the host's, which stays the host's: it is not closed, and its panic handler,
 * allocator and warning function are left alone. Again on the same state: the same object, its
 * count of attachments raised. */
GPULUA_API gpulua *gpulua_attach(lua_State *L, const gpulua_config *config);

GPULUA_API lua_State *gpulua_state(gpulua *g);

/* Loads a file (NULL: standard input) and starts it as a task. Does not run it: gpulua_step does.
 */
GPULUA_API gpulua_status gpulua_load_file(gpulua *g, const char *path);

/* The same for a function on top of the stack of gpulua_state(g) with `arg_count` arguments above
 * it; pops all of them. InvalidArgument: they are not there. */
GPULUA_API gpulua_status gpulua_load_function(gpulua *g, int arg_count);

/* The same for who wants to know what came of it: unless the call fails, `on_end` is called once,
 * by the step in which the task ends, or by gpulua_close, which ends what is left. `error` is NULL,
 * and L has `result_count` results, the last on top; or there are none, and `error` says what the
 * task failed with (Cancelled, Interrupted, too); on_error hears nothing of it. What is called from
 * there is called from within gpulua_step. */
typedef void (*gpulua_on_end)(void *user, lua_State *L, int result_count,
                              const gpulua_error *error);
GPULUA_API gpulua_status gpulua_call(gpulua *g, int arg_count, gpulua_on_end on_end, void *user);

/* One turn: runs every task that can run, waits up to `timeout_ms` (-1: for ever, 0: not at all)
 * for the next event. Returns the number of tasks left (>= 0) or -status. Not re-entrant. May block
 * for timeout_ms, never longer than tasks themselves do. */
GPULUA_API int gpulua_step(gpulua *g, int timeout_ms);

/* Tasks not yet finished. */
GPULUA_API int gpulua_tasks(const gpulua *g);

/* A descriptor that is readable when gpulua_step has something to do; valid until close. */
GPULUA_API int gpulua_pollfd(gpulua *g);

/* Milliseconds until gpulua_step wants to be called even if the descriptor stays quiet: 0 now, -1
 * never; at most 1000 while tasks wait for a device. Asked before each wait for the descriptor:
 * calls that block take its wakes away, and this one brings them back. */
GPULUA_API int gpulua_timeout_ms(gpulua *g);

/* From any thread (and from signal handlers): ends a wait in gpulua_step early; stops the running
 * script with Interrupted at its next instruction or wait. */
GPULUA_API void gpulua_wake(gpulua *g);
GPULUA_API void gpulua_interrupt(gpulua *g);

/* task:cancel() of every task: waits raise Cancelled in the next steps, which ends tasks that do
 * not catch it, without on_error. Work that was launched goes on. Does not block; of a closed
 * object it does nothing. Called by a function of the host's that a script calls, for that task,
 * too. */
GPULUA_API void gpulua_cancel_all(gpulua *g);

/* ---- one device for several objects ----
 *
 *     gpulua_device_config_init(&device_config);
 *     config.shared_device = gpulua_device_open(&device_config);
 *     ... gpulua_new(&config) in each of several threads ...
 *     gpulua_device_close(config.shared_device);
 *
 * The objects share its executor, its memory and its fate: a kernel that kills the device ends what
 * all of them have in flight. Work of two of them that touches the same buffer (gpulua_push_buffer)
 * is ordered as that of one would be, in the order in which it was launched. Budgets, limits and
 * stats() are the device's. Each object still belongs to one thread at a time, and what it has in
 * flight ends there. dev:close() of a script leaves the device to the others. There is no check
 * mode: its order would depend on time. The kernel lets 500 objects sleep on a device in a process
 * of its own, 100 where an epoll of the host watches their descriptors; the next one is Io. */

typedef struct gpulua_device gpulua_device;

typedef struct gpulua_device_config {
    size_t struct_bytes;        /* set by gpulua_device_config_init */
    const char *device;         /* "cpu", "cuda", "cuda:N"; NULL: first GPU, else the CPU device */
    gpulua_isolation isolation; /* DEFAULT: process for GPUs, none for the CPU device */
    uint64_t budget_bytes;      /* device memory; 0: what the device has */
    const char *executor_path;  /* as in gpulua_config */
    const char *cache_path;
    void (*on_log)(void *user, const char *line); /* from any thread that calls the device */
    void *user;
    /* With isolation PROCESS: how often within so many seconds the device comes up again after a
     * loss, in another process. 0 and 0: 3 times in 60 s; negative: not at all. Buffers are Stale
     * then, unless they were made durable. */
    int restarts;
    double window_s;
    int spare;         /* not 0: a second process with the device open, and modules and libraries
                          loaded, waits to take over */
    double watchdog_s; /* an operation that takes longer, once nothing is in front of it, loses the
                          device; so does one that does not answer ten times as long, 20 s at
                          least, while nothing runs; 0: any time */
    /* A folder: a GPU in a process of its own that is lost to a fault of a kernel leaves a small
     * core dump for cuda-gdb there, in a new file, which the error names; the error then comes as
     * much later. NULL: $GPULUA_COREDUMP, else none. */
    const char *coredump_path;
    gpulua_completion completion;
    /* 1: for kernels of anybody's. The CPU device in a process that reads the system's libraries
     * and nothing else of files, and has no programs, sockets or processes; compilers run beside it
     * under the same rules. What kernels print is dropped. Landlock (Linux 6.12) and seccomp have
     * to be there: Unsupported */
    int confined;
    uint32_t trace_ops_max;     /* not 0: it is traced, for objects with config.trace, and so many
                                   operations are kept, up to 2,000,000; 0: as $GPULUA_TRACE says */
    const char *flight_path;    /* as in gpulua_config */
    uint32_t ops_in_flight_max; /* an operation more blocks until the oldest is over; 0: 16,384,
                                   which is the most */
    uint32_t close_timeout_ms;  /* the close waits so long for work in flight, which then ends with
                                   the device's process; 0: 2000 */
    /* As in gpulua_config. The host keeps it until the device is closed, which the last object that
     * has it does */
    void *cuda_context;
} gpulua_device_config;
GPULUA_API void gpulua_device_config_init_sized(gpulua_device_config *config, size_t struct_bytes);
#define gpulua_device_config_init(config)                                                          \
    gpulua_device_config_init_sized(config, sizeof(gpulua_device_config))

/* Blocks until the device is up. NULL on failure: gpulua_last_error(NULL) says why. `config` may be
 * NULL. Any thread. */
GPULUA_API gpulua_device *gpulua_device_open(const gpulua_device_config *config);
/* Ends the host's own hold; the device closes with the last object that has it, on the thread of
 * that, and waits for work in flight up to close_timeout_ms; without a process of its own, until it
 * is over. NULL is fine. Any thread. */
GPULUA_API void gpulua_device_close(gpulua_device *device);
/* 1, and one more each time when the device has come up again. Any thread. */
GPULUA_API uint64_t gpulua_device_epoch(const gpulua_device *device);

/* For tests of what goes wrong, as dev:inject: the n-th new buffer (OOM) or operation (FAULT, LOST)
 * from now on, of all objects that have the device, counted from 1; 0 withdraws it. FAULT: the
 * device is lost as by a fault of that operation; LOST: its process is killed there; without one,
 * the same as FAULT. Does not block. InvalidArgument: no such failure. Any thread. */
typedef enum gpulua_injection {
    GPULUA_INJECT_OOM = 0,
    GPULUA_INJECT_FAULT = 1,
    GPULUA_INJECT_LOST = 2
} gpulua_injection;
GPULUA_API gpulua_status gpulua_device_inject(gpulua_device *device, gpulua_injection what,
                                              uint64_t n);

/* As dev:inject{slow=, seconds=}: the next launch of the kernel of that name on the device at
 * `index` begins so much later; a `kernel` of NULL withdraws it. Blocks for the first one, which
 * compiles a kernel that waits. InvalidArgument: no device there, a negative time; Closed,
 * DeviceLost. */
GPULUA_API gpulua_status gpulua_inject_slow(lua_State *L, int index, const char *kernel,
                                            double seconds);

/* ---- memory ----
 *
 * A gpulua_buffer is the host's own hold on a buffer of a script: a typed range of memory on a
 * device. It is counted, and independent of the script's handles: closing those does not end it,
 * buffer:free() does. It belongs to the object whose state it came from, and to that object's
 * thread (but see gpulua_push_buffer); at gpulua_close it loses its memory, and every call but
 * describe and release fails with Closed from then on.
 *
 * `L` below is the state of the object, or a coroutine of it, so that C functions that scripts call
 * can use them; what fails is said by gpulua_last_error of its object. Nothing here yields. A state
 * without an object is InvalidArgument, a full stack OutOfMemory; these keep no message. An index
 * is one of a value on its stack. Where 0 stands for a default, nil at another index does not: it
 * is InvalidArgument. */

typedef struct gpulua_buffer gpulua_buffer;

#define GPULUA_DIMS_MAX 8

typedef struct gpulua_buffer_info {
    size_t struct_bytes; /* set by gpulua_buffer_info_init */
    const char *type;    /* element type, "f32" and so on as scripts write it */
    int dim_count;       /* 1 to GPULUA_DIMS_MAX */
    int64_t shape[GPULUA_DIMS_MAX];
    const char *label; /* or NULL */
    int is_host;       /* a host buffer: dev:host */
    /* Answers of gpulua_buffer_describe; not looked at by gpulua_buffer_new: */
    const char *device_kind; /* "cpu", "cuda"; host buffers too say whose they are */
    uint64_t elem_count, byte_count;
    int device_ordinal;
    int is_external;  /* memory that another library owns */
    int is_read_only; /* of that: work that writes it is refused */
    int is_usable;    /* 0: closed, freed, or its device is gone */
} gpulua_buffer_info;
GPULUA_API void gpulua_buffer_info_init_sized(gpulua_buffer_info *info, size_t struct_bytes);
#define gpulua_buffer_info_init(info)                                                              \
    gpulua_buffer_info_init_sized(info, sizeof(gpulua_buffer_info))

/* The buffer or host buffer at `index`; the value stays there. The same range and type: of a slice
 * or a view, that one. Count 1. InvalidArgument: another value; Closed, Stale, UseAfterFree. */
GPULUA_API gpulua_status gpulua_to_buffer(lua_State *L, int index, gpulua_buffer **buffer);
/* A new one on the device, or of the memory (gpulua_push_memory, dev:memory), at `device_index`, or
 * with 0 on the default device (gpu.device()), which is opened. Uses type, shape, label, is_host.
 * Contents are undefined, of host buffers zeros. The errors of dev:buffer and dev:host, and blocks
 * as they do; InvalidArgument: a host buffer of a memory. */
GPULUA_API gpulua_status gpulua_buffer_new(lua_State *L, int device_index,
                                           const gpulua_buffer_info *info, gpulua_buffer **buffer);
/* Pushes a handle for scripts: the same memory, range, type and shape. It closes apart from this
 * one. InvalidArgument: a buffer of another object, unless both share its device; of those a host
 * buffer is Unsupported. Such a buffer may be pushed, retained and released on any thread. Opens
 * the shared device for the state. Closed, Stale, UseAfterFree. */
GPULUA_API gpulua_status gpulua_push_buffer(lua_State *L, gpulua_buffer *buffer);
/* Fills all of `info`, which needs no init; its strings live as long as the buffer. Never fails: of
 * a buffer without memory it answers what it was. */
GPULUA_API void gpulua_buffer_describe_sized(const gpulua_buffer *buffer, gpulua_buffer_info *info,
                                             size_t struct_bytes);
#define gpulua_buffer_describe(buffer, info)                                                       \
    gpulua_buffer_describe_sized(buffer, info, sizeof(gpulua_buffer_info))

typedef enum gpulua_access {
    GPULUA_READ = 1,
    GPULUA_WRITE = 2,
    GPULUA_READ_WRITE = 3
} gpulua_access;
/* Where the bytes are for this process: of host buffers on every device, and of the CPU device's
 * buffers with isolation none or thread. Waits until nothing on the device writes them (nor, for a
 * write, reads them); from then on the host sees to it that no work of a script's is in its way, or
 * maps again. The pointer is good until the buffer is freed or the device closed. Unsupported:
 * device memory that this process does not see; InvalidArgument: a write of read-only memory;
 * CaptureActive: the caller's task belongs to a capture; Interrupted; the error that left the
 * contents undefined. */
GPULUA_API gpulua_status gpulua_buffer_map(gpulua *g, gpulua_buffer *buffer, gpulua_access access,
                                           void **bytes);
GPULUA_API gpulua_buffer *gpulua_buffer_retain(gpulua_buffer *buffer);
/* NULL is fine. Also after gpulua_close. */
GPULUA_API void gpulua_buffer_release(gpulua_buffer *buffer);

/* ---- memory resources ----
 *
 * dev:memory of scripts: what a buffer's memory comes from, layers that lie on each other in the
 * order of these fields, the last on top. One memory stands on another with from_index. */

typedef struct gpulua_memory_info {
    size_t struct_bytes; /* set by gpulua_memory_info_init */
    const char *from;    /* "slab", "driver" or "direct"; NULL: slab */
    int from_index;      /* or where a memory to stand on is; 0: none */
    const char *oom;     /* when the device has no memory: "fail", "free" or "wait"; NULL: fail */
    double timeout_s;    /* of "wait"; 0: the usual second */
    int is_guarded;      /* with canaries and quarantine, of so many bytes; 0: the usual ones */
    uint64_t canary_bytes, quarantine_bytes;
    uint64_t budget_bytes; /* 0: none */
    int has_statistics;
    int has_log; /* lines are kept for mem:log(), log_bytes of them; 0: the usual ones */
    uint64_t log_bytes;
    const char *label; /* or NULL */
} gpulua_memory_info;
GPULUA_API void gpulua_memory_info_init_sized(gpulua_memory_info *info, size_t struct_bytes);
#define gpulua_memory_info_init(info)                                                              \
    gpulua_memory_info_init_sized(info, sizeof(gpulua_memory_info))
/* Makes a memory of the device at `device_index` (0: the default device) and pushes its handle,
 * which belongs to the state like any value: kept in a variable or the registry, given to scripts,
 * named to gpulua_buffer_new, closed by mem:close() or collected. InvalidArgument, Unsupported (the
 * driver has no pool), Capacity (too many on each other). Does not block. */
GPULUA_API gpulua_status gpulua_push_memory(lua_State *L, int device_index,
                                            const gpulua_memory_info *info);

typedef struct gpulua_memory_state {
    size_t struct_bytes;
    const char *kind;     /* of the top layer: "budget", "slab" and so on */
    const char *pressure; /* "none", "low", "medium", "high", "critical" */
    int is_trackable;     /* 0: launches and strict recorders refuse it */
    uint64_t limit_bytes; /* of the tightest budget from here down */
    uint64_t remaining_bytes;
    uint64_t outstanding_bytes, outstanding_count;
    /* With statistics, else 0. */
    uint64_t allocs, frees, failures, bytes_live, bytes_live_max;
    uint64_t log_events, log_drops;
} gpulua_memory_state;
/* What the memory at `index` has given. Strings are static. InvalidArgument: another value;
 * Closed. */
GPULUA_API gpulua_status gpulua_memory_describe_sized(lua_State *L, int index,
                                                      gpulua_memory_state *state,
                                                      size_t struct_bytes);
#define gpulua_memory_describe(L, index, state)                                                    \
    gpulua_memory_describe_sized(L, index, state, sizeof(gpulua_memory_state))

/* ---- work of the host's own ----
 *
 * A recorder orders what a host does with buffers by itself between what scripts do with them:
 *
 *     gpulua_recorder_new(L, &info, &r);
 *     gpulua_recorder_read(r, x, "x");
 *     gpulua_recorder_write(r, y, "y");
 *     gpulua_recorder_preflight(g, r);        the stream waits for what conflicts
 *     gpulua_recorder_stream(g, r, &stream);  ... launches of the host's own on that stream ...
 *     gpulua_recorder_commit(g, r);           later work waits for them
 *     gpulua_recorder_release(r);
 *
 * Work on the host's thread (memory that is mapped) calls gpulua_recorder_wait instead of asking
 * for the stream. Between preflight and commit conflicting work on other streams is refused. */

typedef struct gpulua_recorder gpulua_recorder;

typedef struct gpulua_recorder_info {
    size_t struct_bytes; /* set by gpulua_recorder_info_init */
    int stream_index;    /* of a stream; 0: the current one of the device */
    int device_index;    /* with stream_index 0: of the device; 0: the default device */
    int is_permissive;   /* what has no identity or cannot be tracked is left out; 0: strict, such a
                            use   is what preflight raises */
    const char *label;   /* for messages; or NULL */
} gpulua_recorder_info;
GPULUA_API void gpulua_recorder_info_init_sized(gpulua_recorder_info *info, size_t struct_bytes);
#define gpulua_recorder_info_init(info)                                                            \
    gpulua_recorder_info_init_sized(info, sizeof(gpulua_recorder_info))

/* `info` may be NULL. InvalidArgument: no stream or device there; Closed; CaptureActive: the host
 * captures the stream. */
GPULUA_API gpulua_status gpulua_recorder_new(lua_State *L, const gpulua_recorder_info *info,
                                             gpulua_recorder **recorder);
/* A use of a buffer, or with NULL of memory that is no buffer; `name` is for messages. They do not
 * fail: the first use that a strict recorder cannot take is raised by preflight (StreamMisuse:
 * untracked, external without an ordering; InvalidArgument: another device, read-only memory;
 * Closed, Stale, UseAfterFree), a use after preflight by commit. */
GPULUA_API void gpulua_recorder_read(gpulua_recorder *recorder, const gpulua_buffer *buffer,
                                     const char *name);
GPULUA_API void gpulua_recorder_write(gpulua_recorder *recorder, const gpulua_buffer *buffer,
                                      const char *name);
GPULUA_API void gpulua_recorder_read_write(gpulua_recorder *recorder, const gpulua_buffer *buffer,
                                           const char *name);
/* This and the next three are InvalidArgument for a recorder of another object.
 * Makes the stream wait; nothing is enqueued if it fails. What the uses say, above; StreamMisuse: a
 * second time, or another recorder holds the memory; CaptureActive: the caller's task belongs to a
 * capture, or the host captures the stream; DependencyFailed: what is read is known to be
 * undefined. May block while too much is in flight. */
GPULUA_API gpulua_status gpulua_recorder_preflight(gpulua *g, gpulua_recorder *recorder);
/* Blocks until all on the stream so far is over: after preflight, the host's thread may use the
 * memory. Interrupted; CaptureActive, as preflight. */
GPULUA_API gpulua_status gpulua_recorder_wait(gpulua *g, gpulua_recorder *recorder);
/* The driver's handle of the stream (a CUstream, in the device's context). Unsupported: not on CUDA
 * with isolation none. */
GPULUA_API gpulua_status gpulua_recorder_stream(gpulua *g, gpulua_recorder *recorder,
                                                uintptr_t *stream);
/* Notes the uses behind what is on the stream now, and ends the recorder. StreamMisuse: uses but no
 * preflight; or uses after it, which are noted all the same. CaptureActive, CaptureInvalidated: the
 * host captures the stream; to be called again when that has ended. Interrupted, Timeout,
 * OutOfMemory: nothing is noted yet; to be called again. */
GPULUA_API gpulua_status gpulua_recorder_commit(gpulua *g, gpulua_recorder *recorder);
/* Nothing was enqueued: forgets the uses and ends it. */
GPULUA_API void gpulua_recorder_cancel(gpulua_recorder *recorder);
/* One that is not over: before preflight it is cancelled, after it its uses are committed, and
 * counted as recorders_abandoned; a capture of its stream is ended and dropped for that. NULL is
 * fine. Also after gpulua_close. */
GPULUA_API void gpulua_recorder_release(gpulua_recorder *recorder);

/* ---- captures and graphs ----
 *
 * dev:capture of scripts: work that is recorded instead of being done, and then launched as one
 * operation, again and again.
 *
 *     gpulua_push_capture(L, &info);          from here on work of the caller's task is recorded
 *     ... lua_call of scripts' functions, in the same coroutine ...
 *     gpulua_capture_finish(L, -1);           a graph is on top of the stack
 *     gpulua_graph_launch(L, -1, NULL);
 *
 * A capture belongs to the task whose code calls, and outside of tasks to what the host calls by
 * itself; tasks that are spawned in it belong to it, others (those of gpulua_load_*, too) work on.
 * What waits or reads back is CaptureActive there, gpulua_recorder_preflight, gpulua_recorder_wait,
 * gpulua_buffer_map and exports included. Captures and graphs are handles, as scripts have them:
 * they belong to the state like any value, and end by close(), or when they are collected. */

typedef enum gpulua_capturing {
    GPULUA_CAPTURING_NONE = 0,       /* it has ended */
    GPULUA_CAPTURING_ACTIVE = 1,     /* work is recorded */
    GPULUA_CAPTURING_INVALIDATED = 2 /* it is broken: nothing can come of it, but it has to end */
} gpulua_capturing;

typedef struct gpulua_capture_info {
    size_t struct_bytes; /* set by gpulua_capture_info_init */
    int device_index;    /* of a device; 0: the default device, which is opened */
    int pool_index;      /* of a pool, dev:pool; 0: one of the graph's own */
    const char *label;   /* of the graph; or NULL */
} gpulua_capture_info;
GPULUA_API void gpulua_capture_info_init_sized(gpulua_capture_info *info, size_t struct_bytes);
#define gpulua_capture_info_init(info)                                                             \
    gpulua_capture_info_init_sized(info, sizeof(gpulua_capture_info))

/* Begins a capture and pushes its handle. `info` may be NULL. Does not block. CaptureActive: the
 * task belongs to one already; InvalidArgument: no device or pool there, a pool of another device;
 * Closed, DeviceLost. */
GPULUA_API gpulua_status gpulua_push_capture(lua_State *L, const gpulua_capture_info *info);

typedef struct gpulua_capture_state {
    size_t struct_bytes;
    gpulua_capturing capturing;
    uint64_t node_count; /* recorded so far; 0: it has ended */
} gpulua_capture_state;
/* How the capture at `index` is. InvalidArgument: another value. */
GPULUA_API gpulua_status gpulua_capture_describe_sized(lua_State *L, int index,
                                                       gpulua_capture_state *state,
                                                       size_t struct_bytes);
#define gpulua_capture_describe(L, index, state)                                                   \
    gpulua_capture_describe_sized(L, index, state, sizeof(gpulua_capture_state))
/* Ends the capture at `index`, whether it succeeds or not, and pushes the graph that has come of
 * it; the capture's handle stays where it is. Blocks until the device has the graph. EmptyCapture:
 * nothing was recorded; CaptureInvalidated: something could not be recorded; Closed: it has ended;
 * OutOfMemory, OutOfBudget; what the driver says of a node. */
GPULUA_API gpulua_status gpulua_capture_finish(lua_State *L, int index);
/* Ends the capture at `index` and drops what it has recorded; of one that has ended nothing.
 * InvalidArgument: another value. */
GPULUA_API gpulua_status gpulua_capture_cancel(lua_State *L, int index);

typedef struct gpulua_launch_info {
    size_t struct_bytes; /* set by gpulua_launch_info_init */
    int stream_index;    /* of a stream; 0: the current one of the device */
    const char *label;   /* or NULL */
} gpulua_launch_info;
GPULUA_API void gpulua_launch_info_init_sized(gpulua_launch_info *info, size_t struct_bytes);
#define gpulua_launch_info_init(info)                                                              \
    gpulua_launch_info_init_sized(info, sizeof(gpulua_launch_info))

/* Launches the graph at `index`, all of it as one operation that waits for what conflicts; in a
 * capture its nodes become that capture's. `info` may be NULL. Returns when it is enqueued (blocks
 * while too much is in flight, and while the device gets a graph back that had to make room);
 * gpulua_buffer_map, gpulua_recorder_wait and scripts wait for it, and a launch that fails is told
 * there. InvalidArgument: no graph or stream there; UseAfterFree, Stale: a buffer of the graph;
 * Closed, OutOfBudget, DeviceLost. */
GPULUA_API gpulua_status gpulua_graph_launch(lua_State *L, int index,
                                             const gpulua_launch_info *info);
/* What its first launch would do beside launching, in advance; the second time nothing. The same
 * errors, and CaptureActive. */
GPULUA_API gpulua_status gpulua_graph_upload(lua_State *L, int index,
                                             const gpulua_launch_info *info);

/* ---- hooks ----
 *
 * Functions of the host that see each operation of a device (launches, copies, fills, marks,
 * graphs; not what is only captured) when it is asked for and when it is over, for traces and
 * accounting. Ends on one stream are told in their order, ends on several in any. They are called
 * on the thread that asks or polls, and may call nothing of gpulua's. Without them they cost a
 * branch. */
typedef struct gpulua_hook_info {
    size_t struct_bytes;
    const char *name;    /* of the kernel; "copy", "fill", "mark", "wait", "graph" */
    const char *label;   /* as errors show it */
    const char *library; /* "blas", whose call it is; NULL: of none */
    const char *type;    /* of all elements that it uses, "f32"; NULL: of several types, or none */
    uint64_t stream;     /* the stream's number */
    uint64_t bytes;      /* of the memory that it declares to use, however often; 0 for graphs */
    uint64_t number;     /* of the operation, in the order of asking; 0 where it was refused */
    int line;            /* of the call in the script's file, `source`, as errors show it; */
    const char *source;  /* NULL: it is of none */
} gpulua_hook_info;
/* Any may be NULL. An operation that is refused at the call fires the first two alone. */
typedef struct gpulua_hooks {
    size_t struct_bytes; /* set by gpulua_hooks_init */
    void *user;
    void (*before_enqueue)(void *user, const gpulua_hook_info *info);
    /* `message`: NULL with OK. */
    void (*after_enqueue)(void *user, const gpulua_hook_info *info, gpulua_status status,
                          const char *message);
    /* It is over; nobody who waits for it has been told. */
    void (*before_complete)(void *user, const gpulua_hook_info *info);
    /* All have been. `host_ns`: since before_enqueue. `device_ns`: on the device; -1: not known. */
    void (*after_complete)(void *user, const gpulua_hook_info *info, gpulua_status status,
                           const char *message, int64_t host_ns, int64_t device_ns);
} gpulua_hooks;
GPULUA_API void gpulua_hooks_init_sized(gpulua_hooks *hooks, size_t struct_bytes);
#define gpulua_hooks_init(hooks) gpulua_hooks_init_sized(hooks, sizeof(gpulua_hooks))
/* Copies `hooks`; NULL: none any more. What is under way keeps the ones that it began with, so
 * `user` has to live until that is over. Does not block. InvalidArgument: not set up by
 * gpulua_hooks_init. For devices of several objects: any thread. */
GPULUA_API gpulua_status gpulua_device_set_hooks(gpulua_device *device, const gpulua_hooks *hooks);
/* The same for the device at `index`. InvalidArgument: no device there; Closed. */
GPULUA_API gpulua_status gpulua_set_hooks(lua_State *L, int index, const gpulua_hooks *hooks);

/* ---- captures of the host's own, by the CUDA driver ----
 *
 * A host captures a CUstream of its own, or ours (gpulua_recorder_stream), into a CUgraph: the
 * driver's cuStreamBeginCapture and cuStreamEndCapture, of which gpulua knows, so that what scripts
 * do meanwhile does not break it:
 *
 *     gpulua_stream_capture_begin(L, &info, &capture);
 *     ... launches of the host's own on the stream; scripts may run ...
 *     gpulua_stream_capture_end(g, capture, &graph);
 *     gpulua_stream_capture_release(capture);
 *
 * What scripts do is no part of it: it is done at once, on other streams, and our calls of the
 * driver are not those that the capture's mode forbids. (A capture that was begun by the driver
 * itself on a stream that gpulua has not given out is known to nobody here: our calls on a thread
 * may break it, and what the driver refuses then is CaptureActive or CaptureInvalidated.) While one
 * of our streams is captured nothing is put on it: launches, marks, gpulua_recorder_new, preflight,
 * wait and commit on it are CaptureActive, or CaptureInvalidated if the capture is broken, and
 * leave it as it was; so are imports and exports that name a captured stream of the host's. To
 * order the host's launches of the graph, wrap each in a recorder, as any work of its own; a
 * capture between preflight and commit is fine if it has ended before commit. */

typedef struct gpulua_stream_capture gpulua_stream_capture;

typedef enum gpulua_capture_mode {
    GPULUA_CAPTURE_MODE_DEFAULT = 0,      /* thread_local */
    GPULUA_CAPTURE_MODE_GLOBAL = 1,       /* unsafe calls of any thread break it. Those of gpulua's
                                             objects in other threads do not, but for those that are
                                             under way while it begins */
    GPULUA_CAPTURE_MODE_THREAD_LOCAL = 2, /* unsafe calls of the thread that began it break it */
    GPULUA_CAPTURE_MODE_RELAXED = 3       /* none does; any thread may end it */
} gpulua_capture_mode;

typedef struct gpulua_stream_capture_info {
    size_t struct_bytes; /* set by gpulua_stream_capture_info_init */
    int device_index;    /* of the stream; 0: the default device */
    gpulua_capture_mode mode;
    uintptr_t stream; /* CUstream, in the device's context; not the legacy one */
} gpulua_stream_capture_info;
GPULUA_API void gpulua_stream_capture_info_init_sized(gpulua_stream_capture_info *info,
                                                      size_t struct_bytes);
#define gpulua_stream_capture_info_init(info)                                                      \
    gpulua_stream_capture_info_init_sized(info, sizeof(gpulua_stream_capture_info))

/* Does not block. Unsupported: not on CUDA with isolation none; CaptureActive: the stream is being
 * captured; InvalidArgument: the legacy stream, an unknown mode; Closed, Driver. */
GPULUA_API gpulua_status gpulua_stream_capture_begin(lua_State *L,
                                                     const gpulua_stream_capture_info *info,
                                                     gpulua_stream_capture **capture);
/* How it is now, also when the host has ended it by the driver itself. Closed: the device. */
GPULUA_API gpulua_status gpulua_stream_capture_status(gpulua *g, gpulua_stream_capture *capture,
                                                      gpulua_capturing *capturing);
/* Ends it; `graph` is a CUgraph, the host's to destroy (0 on failure). CaptureInvalidated: it was
 * broken, or work was forked off and not joined; StreamMisuse: it belongs to the thread that began
 * it, and goes on; Closed: it has ended, or its device has. After all but StreamMisuse the stream
 * is as before. */
GPULUA_API gpulua_status gpulua_stream_capture_end(gpulua *g, gpulua_stream_capture *capture,
                                                   uintptr_t *graph);
/* One that has not ended is ended and what it has recorded dropped, as by gpulua_close and the
 * close of its device. NULL is fine. Also after gpulua_close. */
GPULUA_API void gpulua_stream_capture_release(gpulua_stream_capture *capture);

/* ---- exchange with other libraries, by DLPack ----
 *
 * The structs are those of dlpack.h (1.x), which a host may include beside this header. Without
 * copying: host buffers on every device; buffers of the CPU device with isolation none or thread,
 * as host memory; buffers of CUDA devices with isolation none or thread. Tensors are compact, row
 * by row.
 *
 * A buffer that goes out keeps its memory until the consumer calls the deleter, whatever happens to
 * the buffer, the device and the object; the deleter may be called by any thread, also after
 * gpulua_close. What comes in is held until every use of it is over; then the producer's deleter is
 * called once, by the object's thread in some later call, by gpulua_close at the latest; only what
 * was lent out again by then is given back behind the last tensor, by whoever ends that. Memory
 * that went out and comes back, even by way of others, is the buffer's memory: scripts' work on
 * both is ordered, strict recorders take it. So is memory that comes in twice. Other memory is
 * external; it has a history from there on. */

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* How what is done before an exchange and what is done after it are ordered. */
typedef enum gpulua_order {
    /* READY for host memory and for all that is exported; NONE for device memory that comes in. */
    GPULUA_ORDER_DEFAULT = 0,
    /* Import: the producer's work is over. Export: returns when ours is (of a read-only export,
     * when what writes is). */
    GPULUA_ORDER_READY = 1,
    /* CUDA alone: nobody blocks. Import: work here waits for what is on the producer's `stream`.
     * Export: the consumer's `stream` goes on when ours is over. */
    GPULUA_ORDER_STREAM = 2,
    /* Nobody sees to it. External memory that comes in so is refused by launches, transfers and
     * strict recorders (StreamMisuse); importing it again with an order changes that. */
    GPULUA_ORDER_NONE = 3
} gpulua_order;

typedef struct gpulua_exchange {
    size_t struct_bytes; /* set by gpulua_exchange_init */
    gpulua_order order;
    uintptr_t stream; /* CUstream, in the device's context; 1: the legacy default stream, 2: the
                         per-thread one, as in the array API */
    int stream_index; /* our stream that takes part in ORDER_STREAM; 0: the current one */
    int is_read_only; /* export: the consumer must not write (versioned tensors alone can say so) */
    int may_copy; /* import: host memory that the device cannot reach (another process, a GPU) is
                     copied into a new host buffer instead of Unsupported */
    const char *label; /* import: of the buffer; or NULL */
} gpulua_exchange;
GPULUA_API void gpulua_exchange_init_sized(gpulua_exchange *exchange, size_t struct_bytes);
#define gpulua_exchange_init(exchange) gpulua_exchange_init_sized(exchange, sizeof(gpulua_exchange))

/* A tensor over the buffer's bytes, to be ended by its deleter. `exchange` may be NULL: all
 * defaults. Unsupported: device memory of a process of its own; a stream of a device that has none
 * for others; read-only in an unversioned tensor. CaptureActive: the caller's task belongs to a
 * capture (but with ORDER_NONE), or the host captures the stream. Closed, Stale, UseAfterFree,
 * Interrupted; the error that left the contents undefined. May block, see gpulua_order. */
GPULUA_API gpulua_status gpulua_dlpack_export(lua_State *L, gpulua_buffer *buffer,
                                              const gpulua_exchange *exchange,
                                              struct DLManagedTensorVersioned **tensor);
GPULUA_API gpulua_status gpulua_dlpack_export_unversioned(lua_State *L, gpulua_buffer *buffer,
                                                          const gpulua_exchange *exchange,
                                                          struct DLManagedTensor **tensor);
/* A buffer over the tensor's memory, for the device at `device_index` (0: the default device). With
 * GPULUA_OK the tensor is ours, else it stays the caller's, untouched. A tensor without dimensions
 * is one element; booleans are u8. InvalidArgument: a tensor that makes no sense (null pointers,
 * negative sizes, more bytes than there can be, elements that are not aligned), one of another
 * device, memory that lies across the end of a known buffer, an unknown order. Unsupported: another
 * major version, an element type or number of lanes that buffers do not have, no elements, more
 * than GPULUA_DIMS_MAX dimensions, strides that are not compact, memory of a kind or in a place
 * that the device cannot use, a stream of a device that has none for others. UseAfterFree: memory
 * of ours whose buffer was freed. CaptureActive: the host captures the stream. The message names
 * what it was. May block. */
GPULUA_API gpulua_status gpulua_dlpack_import(lua_State *L, int device_index,
                                              struct DLManagedTensorVersioned *tensor,
                                              const gpulua_exchange *exchange,
                                              gpulua_buffer **buffer);
GPULUA_API gpulua_status gpulua_dlpack_import_unversioned(lua_State *L, int device_index,
                                                          struct DLManagedTensor *tensor,
                                                          const gpulua_exchange *exchange,
                                                          gpulua_buffer **buffer);

/* The last failure of a call on `g`, or of gpulua_new and gpulua_attach on this thread when `g` is
 * NULL. */
GPULUA_API const gpulua_error *gpulua_last_error(const gpulua *g);

/* Cancels tasks, waits for the devices up to close_timeout_ms (not after gpulua_interrupt), frees
 * everything. NULL is fine. From within gpulua_step nothing is closed: gpulua_last_error says
 * StreamMisuse. An attached state stays open. Work that never ends is told to on_log; it ends with
 * its process, and without one of its own this call does not return. */
GPULUA_API void gpulua_close(gpulua *g);

/* `require "gpulua"` in any Lua 5.4. */
GPULUA_API int luaopen_gpulua_core(lua_State *L);
GPULUA_API int luaopen_gpulua(lua_State *L);
GPULUA_API int luaopen_gpulua_busted(lua_State *L);
GPULUA_API int luaopen_gpulua_image(lua_State *L);
GPULUA_API int luaopen_gpulua_luv(lua_State *L);
GPULUA_API int luaopen_gpulua_npy(lua_State *L);
GPULUA_API int luaopen_gpulua_trace(lua_State *L);
GPULUA_API int luaopen_gpulua_wav(lua_State *L);

#ifdef __cplusplus
}
#endif

#endif
