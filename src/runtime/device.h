/* A device as scripts have it: a link to an executor, its streams, its memory, the operations in
 * flight.
 *
 * Owner thread only. No function here yields; which may block is said. The life of things: a device
 * lives while anything of it is referenced (streams, blocks, modules and ops retain it), but after
 * gpu_device_close or a loss every call on it fails with Closed or DeviceLost. Releasing the last
 * reference of a thing never calls the executor: it appends to a list that the next call on the
 * device works off. So a garbage collector may release at any moment. */
#ifndef GPU_RUNTIME_DEVICE_H
#define GPU_RUNTIME_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/error.h"
#include "wire/record.h"

struct gpu_device;
struct gpu_stream;
struct gpu_op;

#define GPU_TASK_STREAMS 32u         /* streams that tasks share in turn */
#define GPU_USER_STREAMS_MAX 256u    /* streams made by dev:stream */
#define GPU_OPS_IN_FLIGHT_MAX 16384u /* a further one blocks until the oldest is over */
#define GPU_STAGING_BYTES_MAX (UINT64_C(1) << 28) /* transfers in flight; a further one blocks */
#define GPU_BLOCK_LABEL_BYTES 48u                 /* of a buffer's, with its NUL: gpu_label_copy */
#define GPU_BLOCK_BYTES_MAX (UINT64_C(1) << WIRE_SLAB_SHIFT)
#define GPU_RESTARTS_MAX 3u
#define GPU_RESTARTS_WINDOW_S 60.0
#define GPU_SOURCE_BYTES_MAX (UINT64_C(1) << 28) /* of a module, source or code */

/* What a checked device tells whoever looks at it. `shadow` is the observer's own, NULL at first.
 */
struct gpu_seen_use {
    void **shadow;     /* of the block, or of the module whose variable it is */
    const char *label; /* of the block, or ""; a variable's name */
    uint64_t block_number, byte_begin, byte_end;
    uint64_t base;    /* which byte of the shadow its first one is: a module has many variables */
    bool is_variable; /* of a module; it has no block number then */
    bool is_atomic;   /* by atomic operations alone */
    uint8_t access;   /* enum gpu_access */
    bool is_private;  /* staging memory of one transfer, a graph's temporaries, which each launch
                         writes first, or order alone: nobody can race there */
};
struct gpu_seen_wait { /* for work of another stream */
    uint64_t stream;   /* number */
    uint64_t seq;
};
struct gpu_submission {
    struct gpu_device *device;
    void **shadow;      /* of the operation */
    const char *label;  /* interned */
    const char *source; /* interned; NULL: none */
    int line;
    uint64_t stream; /* number */
    uint64_t seq;
    const struct gpu_seen_use *uses;
    uint32_t use_count;
    const struct gpu_seen_wait *waits;
    uint32_t wait_count;
};
struct gpu_observer {
    void *user;
    /* Before work is enqueued. A status refuses it. */
    gpulua_status (*submit)(void *user, const struct gpu_submission *submission,
                            struct gpu_error *error);
    /* Before work is captured, whose edges come of the order in which that is done. The shadows are
     * the capture's. */
    gpulua_status (*capture)(void *user, const struct gpu_submission *submission,
                             struct gpu_error *error);
    /* An operation has been done, one of those that could have been, by slot. NULL for those that
     * are not known any more. */
    void (*ran)(void *user, struct gpu_device *device, void *shadow, void *const *ready,
                uint32_t ready_count);
    /* What the operation is seen to have done to a variable of a module: before `ran`. Of several
     * streams in any order. A status is its failure. */
    gpulua_status (*touched)(void *user, void *shadow, const struct gpu_seen_use *use,
                             struct gpu_error *error);
    /* Nothing has the operation or the block any more. */
    void (*op_gone)(void *user, void *shadow);
    void (*block_gone)(void *user, void *shadow);
};

struct gpu_device_info {
    const char *name;           /* "cpu", "cuda", "cuda:1"; NULL: first GPU, else cpu */
    const char *label;          /* behind the name in messages; NULL: none */
    gpulua_isolation isolation; /* DEFAULT: process on cuda, none on cpu */
    const char *executor_path;  /* NULL: $GPULUA_EXECUTOR, beside this library or program, the
                                   libexec of this build */
    const char *cache_path;     /* NULL: the default */
    const char *flight_path;    /* a file for what it was given last when it is lost; NULL: none */
    const char *flight_folder;  /* where that begins unless it is from the root; NULL: the working
                                   folder when it is opened */
    uint64_t budget_bytes;      /* 0: what is free on the device when it is opened */
    bool is_unfenced;  /* for the twins of race tests alone: hazards are found but not waited for */
    bool is_unsettled; /* for the same: events that are owed are never recorded */
    uint64_t unfenced_wait;     /* for mutation tests alone: this one of the waits that the recorder
                             finds, from 1, is left out, and nobody but the device notices; 0: none */
    uint32_t ops_in_flight_max; /* 0, or more than there may be: GPU_OPS_IN_FLIGHT_MAX */
    bool is_confined;           /* the CPU device in a process that can do nothing but compute, for
                                   kernels of anybody's (executor/confine.h); not in check mode */
    bool is_checked;            /* check mode */
    bool is_hashed;             /* by hashes, as on devices that cannot see accesses */
    uint64_t seed;              /* of check mode */
    const char *order;          /* of check mode: see backend_open_info; NULL: by the seed */
    /* Borrowed until the device is destroyed; called in check mode alone; NULL: nobody looks. */
    const struct gpu_observer *observer;
    /* Lines of the device for the host's log, told in a poll; NULL: nobody wants them. May not call
     * the device. */
    void (*on_log)(void *user, const char *line);
    void *log_user;
    /* Borrowed; non-zero ends blocking waits with Interrupted; NULL: none. */
    const _Atomic int *interrupt;
    /* With isolation `process`: how often within the window it comes up again after a loss. 0:
     * GPU_RESTARTS_MAX and GPU_RESTARTS_WINDOW_S; negative: not at all. */
    int32_t restarts_max;
    /* With isolation `process`, a folder: a GPU that is lost to a fault of a kernel leaves a small
     * core dump there, which the error names. NULL: $GPULUA_COREDUMP for such devices, else none.
     */
    const char *coredump_path;
    bool is_exact; /* of suspects of a loss there is one for each stream at most: costs a
                      completion word behind each operation */
    /* DEFAULT: words. In check mode of the CPU device, where work is done when somebody asks and
     * nobody waits for time to pass, it is words whatever this says. */
    gpulua_completion completion;
    /* Traced (trace.h). Where the device does not tell by itself when work was done, that is asked
     * after as with completion = "event", whatever that says, and there is no "exact". So many
     * operations are kept; 0: it is not. */
    uint32_t traced_ops_max;
    bool has_spare; /* a second process with the device open takes over from a lost one */
    /* On CUDA: the host's context that the device lives in (without a process of its own; borrowed
     * until it is closed), and its stream that all task streams stand for (with isolation `none`).
     * NULL: the primary one, which is of `name`; streams of our own. */
    void *cuda_context, *cuda_stream;
    double watchdog_s; /* how long an operation may take once nothing is in front of it, or the
                          device is lost; 0: any time */
    double restarts_window_s;
};

/* Blocks until the device is up (a GPU in a child process: about 200 ms). NoDevice,
 * LibraryUnavailable, Io (executor missing: which paths were tried), InvalidArgument (unknown
 * name), Driver. */
gpulua_status gpu_device_open(const struct gpu_device_info *info, struct gpu_device **device,
                              struct gpu_error *error);
/* Around several calls, of any devices, on this thread: the driver's state of the thread, which is
 * as it was behind each call (a host may have a CUDA context current), need be so behind the last
 * alone. */
void gpu_device_hold_calls(bool are_held);
struct gpu_device *gpu_device_retain(struct gpu_device *device);
void gpu_device_release(struct gpu_device *device);

/* Waits at most timeout_ms for work in flight, then ends the executor: pending operations fail with
 * Closed or, when their work did not end in time, DeviceLost. Idempotent. Blocks. */
void gpu_device_close(struct gpu_device *device, int64_t timeout_ms);

enum gpu_device_state {
    GPU_DEVICE_OPEN,
    GPU_DEVICE_CLOSED,
    GPU_DEVICE_LOST,
    GPU_DEVICE_RETURNING /* lost, and another executor is about to take over */
};
enum gpu_device_state gpu_device_state(const struct gpu_device *device);
/* GPULUA_OK, or Closed / DeviceLost with the reason. */
gpulua_status gpu_device_check(struct gpu_device *device, struct gpu_error *error);

const char *gpu_device_name(const struct gpu_device *device); /* "cpu", "cuda:0" */
/* For people: "cpu", and with a label "cpu 'scorer'". */
const char *gpu_device_title(const struct gpu_device *device);
bool gpu_device_is_checked(const struct gpu_device *device);
uint64_t gpu_device_seed(const struct gpu_device *device);
const char *gpu_device_kind(const struct gpu_device *device); /* "cpu", "cuda" */
/* What stands before the name of a device in messages that set it apart from another one: two
 * openings of a device have one name. */
const char *gpu_device_kin(const struct gpu_device *device, const struct gpu_device *other);
gpulua_isolation gpu_device_isolation(const struct gpu_device *device); /* not DEFAULT */
uint64_t gpu_device_epoch(const struct gpu_device *device);
const struct wire_device_facts *gpu_device_facts(const struct gpu_device *device);
int gpu_device_pid(const struct gpu_device *device); /* of the executor's process, or 0 */

/* A copy of `text` that lives as long as the device; the same pointer for the same text. NULL: no
 * memory. */
const char *gpu_device_intern(struct gpu_device *device, const char *text);
/* Traced: when all was done that is over is known afterwards. Blocks for an answer. */
void gpu_device_trace_flush(struct gpu_device *device);
/* NULL: it is not traced. Borrowed. */
struct gpu_trace *gpu_device_trace(const struct gpu_device *device);

/* What the backends of this build need and find, and the cache: the lines of backend.h's describe.
 * malloc'ed. Blocks. */
gpulua_status gpu_device_describe(struct gpu_device *device, char **text, struct gpu_error *error);

/* Looks at the completion page and the replies: ends what is over, fires its waiters, works off
 * deferred releases. Never blocks. Returns the number of operations that ended. */
uint32_t gpu_device_poll(struct gpu_device *device);

/* Check mode: nothing is done before it is asked for, so whoever looks whether work is over asks
 * for it: now and then, by the seed, so that it also sees it not being over. Who asks waits until
 * it has been done, which makes its order what it is; but not longer than until then (INT64_MAX: as
 * long as it takes; looks GPU_LOOK_NS at most). No-ops else. */
#define GPU_LOOK_NS INT64_C(10000000000)
void gpu_device_ask(struct gpu_device *device, int64_t until_ns);
/* Before looking whether it is over; polls. */
void gpu_op_look(struct gpu_op *op);

/* For sleeping in the host's own loop: arm, and unless it returned true (something is there: poll
 * now) sleep until gpu_device_poll_fd is readable; then disarm and poll. `until_ns` as above. */
bool gpu_device_arm(struct gpu_device *device, int64_t until_ns);
/* Whether it is worth looking for a short while first. */
bool gpu_device_spins(const struct gpu_device *device);
void gpu_device_disarm(struct gpu_device *device);
/* For sleeping until a certain time, before it is armed. True: after the sleep the next launch
 * would find the way to the driver cold, on this thread, and gpu_device_warm, at its end and when
 * it is not armed any more, goes it once, which takes some 10 us. Not where there was no work since
 * it did that last. The first time it is gone at once, when nothing is under way, because that
 * takes longer. */
bool gpu_device_wants_warmth(struct gpu_device *device);
void gpu_device_warm(struct gpu_device *device);
int gpu_device_poll_fd(const struct gpu_device *device);

/* Blocks until nothing is in flight, timeout_ns have passed (Timeout; -1: for ever), or an
 * interrupt. DeviceLost once the device is. */
gpulua_status gpu_device_wait_idle(struct gpu_device *device, int64_t timeout_ns,
                                   struct gpu_error *error);
uint32_t gpu_device_ops_in_flight(const struct gpu_device *device);
/* Polls, then describes the first `max` of what is in flight, oldest first of each stream, the
 * device's own requests left out. Returns how many there are. */
struct gpu_op_info;
uint32_t gpu_device_in_flight(struct gpu_device *device, struct gpu_op_info *infos, uint32_t max);

/* When it wants to be polled, on gpu_clock_ns' clock; INT64_MAX: when poll_fd says so. */
int64_t gpu_device_alarm_ns(const struct gpu_device *device);
/* News of a device: losses (and that it does not come up any more), and that it is up again, each
 * in its turn. Who wants to hear of it has the newest so far, and goes on from there. Of those for
 * which there was no memory the newest loss, which says how many there were, and return are told
 * when there is some. */
struct gpu_news;
struct gpu_news *gpu_device_news(struct gpu_device *device);
bool gpu_device_has_news(struct gpu_device *device, const struct gpu_news *seen);
/* Goes to the next, which has to be there. True: it is a loss, and `loss` is filled. */
bool gpu_device_next_news(struct gpu_device *device, struct gpu_news **seen,
                          struct gpu_error *loss);
void gpu_device_leave_news(struct gpu_device *device, struct gpu_news **seen);
/* Somebody knows that it was: that work was lost with it is not raised elsewhere any more. */
void gpu_device_observe_loss(struct gpu_device *device);
/* The same of all losses so far. */
void gpu_device_observe_losses(struct gpu_device *device);
/* Lost, and about to come up again. */
bool gpu_device_is_returning(const struct gpu_device *device);
/* Retained: is over when it is up again, or cannot be (Unrecoverable, Closed). NULL: it is not on
 * its way. Polls. */
struct gpu_op *gpu_device_return(struct gpu_device *device);

/* Tasks of who uses the device: work that is given to it is the running one's. Borrowed; NULL:
 * none. Of a shared device each seat has its own: the caller's. */
struct gpu_tasks {
    uint64_t running; /* its number; 0: none */
    bool (*is_live)(const struct gpu_tasks *tasks, uint64_t number);
    /* On a traced device a call has waited, since then, within itself. NULL: nobody asks. */
    void (*blocked)(const struct gpu_tasks *tasks, const char *what, int64_t begun_ns);
    /* Until when calls of the one that runs may wait within themselves; INT64_MAX: as long as it
     * takes. `is_told`: a call has failed because that time is up; those behind it get some more,
     * to clean up. NULL: as long as it takes. */
    int64_t (*until_ns)(const struct gpu_tasks *tasks, bool is_told);
};
void gpu_device_set_tasks(struct gpu_device *device, const struct gpu_tasks *tasks);
/* The oldest failure that nobody has observed, moved into `error` and thereby observed. `is_own`:
 * none of another task, unless that has ended. False: none. */
bool gpu_device_take_unobserved(struct gpu_device *device, bool is_own, struct gpu_error *error);

/* Budget and memory. Budget counts bytes of live blocks as rounded. reap returns bytes whose
 * release became final. */
uint64_t gpu_device_reap(struct gpu_device *device);
uint64_t gpu_device_budget_bytes(const struct gpu_device *device);
/* Gives wholly free slabs back to the driver; returns bytes. May block until uses of freed memory
 * are over. */
uint64_t gpu_device_trim(struct gpu_device *device);

/* See gpulua_device_inject. */
#define GPU_INJECT_COUNT 3
void gpu_device_inject(struct gpu_device *device, gpulua_injection what, uint64_t n);
/* The next launch of the kernel `name`, not in a capture, comes behind one of `kernel` (retained),
 * which takes nanoseconds as its one argument. NULL: none. */
struct gpu_kernel;
gpulua_status gpu_device_inject_slow(struct gpu_device *device, struct gpu_kernel *kernel,
                                     const char *name, int64_t ns, struct gpu_error *error);

/* Counters. X(name): every one a uint64_t, all in stats(). */
/* clang-format off */
#define GPU_STATS_TABLE(X)                                                                                   \
    X(launches) X(captures) X(replays) X(fallbacks) X(overflows) X(compilations) X(compile_ns) X(cache_hits) X(events_created) X(events_live) X(drops) X(copies) X(fills) X(uploads) X(downloads) X(marks)                                           \
    X(waits_issued) X(waits_elided) X(hazards_widened) X(recorders_abandoned)                                 \
    X(ops_completed) X(ops_failed) X(ops_in_flight) X(ops_in_flight_max)                                      \
    X(allocs) X(frees) X(bytes_live) X(bytes_live_max) X(bytes_pending) X(bytes_reserved) X(bytes_quarantined) X(budget_bytes) \
    X(staging_bytes) X(staging_bytes_max) X(blocks_live) X(streams_live) X(modules_live) X(kernels_live) X(graphs_live) X(graph_bytes) X(graph_evictions) \
    X(imports_live) X(exports_live) X(losses) X(returns)                                                                      \
    X(oom_retries) X(recoveries) X(collections) X(guard_checks) X(guard_findings)                                            \
    X(requests) X(records) X(record_bytes) X(throttles) X(errors_unobserved)                                  \
    X(limit_task_streams) X(limit_user_streams) X(limit_ops_in_flight) X(limit_staging_bytes)                 \
    X(limit_arena_bytes) X(limit_block_bytes) X(limit_slabs) X(limit_labels)                                  \
    X(limit_source_bytes) X(limit_params) X(limit_args_bytes) X(limit_spans) X(limit_flight_ops)  \
    X(limit_memory_depth) X(limit_oom_hooks) X(limit_quarantine_bytes) X(limit_bodies) X(limit_body_depth) X(limit_restarts)
/* clang-format on */
struct gpu_stats {
#define X(name) uint64_t name;
    GPU_STATS_TABLE(X)
#undef X
};
void gpu_device_stats(struct gpu_device *device, struct gpu_stats *stats);

/* ---- streams ---- */

struct gpu_stream_info {
    int priority; /* CUDA's: lower is more urgent; clamped into the device's range */
    const char *label;
};
/* Capacity beyond GPU_USER_STREAMS_MAX. Does not block. */
gpulua_status gpu_stream_create(struct gpu_device *device, const struct gpu_stream_info *info,
                                struct gpu_stream **stream, struct gpu_error *error);
/* One of the device's own task streams, index < GPU_TASK_STREAMS; made at first use; borrowed from
 * the device. Of a device with a cuda_stream it is that one, whatever the index. */
gpulua_status gpu_device_task_stream(struct gpu_device *device, uint32_t index,
                                     struct gpu_stream **stream, struct gpu_error *error);
struct gpu_stream *gpu_stream_retain(struct gpu_stream *stream);
void gpu_stream_release(struct gpu_stream *stream);
/* Refuses further work; what is on it finishes; its slot is reused afterwards. Idempotent. */
void gpu_stream_close(struct gpu_stream *stream);
bool gpu_stream_is_closed(const struct gpu_stream *stream);
uint64_t gpu_stream_number(const struct gpu_stream *stream);
int gpu_stream_priority(const struct gpu_stream *stream);
const char *gpu_stream_label(const struct gpu_stream *stream); /* or "" */
struct gpu_device *gpu_stream_device(const struct gpu_stream *stream);
/* The newest op on it that is not over, retained; NULL: nothing is in flight. */
struct gpu_op *gpu_stream_tail(struct gpu_stream *stream);

#endif
