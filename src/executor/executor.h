/* The executor's insides, shared by the files of executor/.
 *
 * Everything here belongs to the executor's thread (the script's own under the inline transport),
 * but for what is said to be locked or atomic: replies and failures come from threads of the
 * backend and from the compile thread, too. */
#ifndef GPU_EXECUTOR_EXECUTOR_H
#define GPU_EXECUTOR_EXECUTOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "wire/link.h"
#include "wire/memory.h"
#include "wire/page.h"
#include "wire/record.h"
#include "wire/ring.h"

#define EXECUTOR_EVENTS 256u /* events held for each stream; a power of two */
/* Where no words are written, as many as are in flight, up to this: what the runtime allows
 * (GPU_OPS_IN_FLIGHT_MAX). */
#define EXECUTOR_EVENTS_MAX 16384u
/* A completion word at least this often: of what may have been running when the device is lost no
 * more are named (the runtime's GPU_SUSPECTS_PER_STREAM_MAX, and GPU_REPLAYS_SUSPECTED_MAX, where
 * launches of one graph count as one: on a GPU a word takes 2 us, as much as a small kernel). */
#define EXECUTOR_OPS_PER_WORD 8u
#define EXECUTOR_REPLAYS_PER_WORD 64u
/* Between two looks at what only looking finds out, after so long without success: so an end is
 * seen at most 20 us or a 256th of the wait late, and waits of a second and more take less than one
 * per cent of a core. */
static inline int64_t gpu_executor_nap_ns(uint64_t waited_ns) {
    uint64_t nap_ns = waited_ns / 256u;
    return nap_ns < 20000u ? 20000 : nap_ns > 4000000u ? 4000000 : (int64_t)nap_ns;
}
/* And where threads sleep for all that is waited for: for the case that one of them is not woken.
 */
#define EXECUTOR_SLEPT_NAP_NS INT64_C(50000000)
#define EXECUTOR_TIMER_SLACK_NS 1000ul /* of threads that nap; Linux gives 50,000 */

#define EXECUTOR_OBJECTS_MAX (1u << 20) /* modules, kernels: numbers beyond are mistakes */
/* Asks whether the device is well once in so many polls, and behind each nap. */
#define EXECUTOR_POLLS_PER_STATUS 64u

struct executor_slab {
    struct backend_slab *slab; /* owned; NULL for a variable of a module */
    uint64_t address;          /* 0: no such slab */
    uint64_t bytes;
    uint32_t module; /* whose variable it is */
    bool is_adopted;
    uint64_t begin; /* adopted memory begins so many bytes behind the address */
};
/* What slabs are aligned to: adopted memory keeps its place between two multiples. */
#define EXECUTOR_SLAB_ALIGN_BYTES 512u

enum executor_module_state { MODULE_NONE = 0, MODULE_COMPILING, MODULE_READY };

struct executor_module {
    enum executor_module_state state;
    struct backend_module *module; /* owned */
    uint64_t request;              /* of the compilation that is under way */
    bool is_ahead;                 /* nobody has asked for it yet, and then as `number` */
    uint64_t number;
};

struct executor_kernel {
    struct backend_kernel *kernel; /* lives as long as its module; NULL: no such kernel */
    uint32_t module;
    bool prints;
};

struct executor_label {
    char text[WIRE_LABEL_BYTES];
};

/* A table that grows to the largest number used. */
struct executor_table {
    void *rows; /* owned */
    uint32_t count;
    uint32_t row_bytes;
};

struct executor_event {
    struct backend_event *event; /* owned; NULL until first needed */
    uint64_t seq;                /* recorded behind this operation */
    bool has_word;               /* the device writes the page's word right behind it */
    bool is_timed;               /* `begin` was recorded in front of it */
    struct backend_event *begin; /* owned; traced devices alone */
};

/* One stream slot in use. */
struct executor_stream {
    struct backend_stream *stream; /* owned; NULL: it could not be created, `failure` says why */
    struct backend_error failure;
    int priority;
    bool is_foreign;               /* the host's */
    bool is_ahead;                 /* nobody has asked for it yet */
    struct executor_event *events; /* owned; of the newest operations, a ring */
    uint32_t event_capacity;       /* a power of two */
    uint64_t event_count;          /* records so far */
    uint64_t asked_count;          /* without words: so many of them are known to be over */
    uint64_t told_count;           /* traced: of so many it was told when they were done */
    int64_t told_ns;               /* the end of the last of them */
    uint64_t last_seq;             /* submitted */
    uint64_t word_seq;             /* newest one with a word behind it */
    uint32_t since_word;           /* so many since then; launches of one graph count as one */
    uint64_t print_seq; /* newest launch whose text is not out yet; 0: none. While there is one, no
                           word is written: poll flushes first */
    bool owes_event;    /* behind the newest operation there is none yet: it is of no use so far, or
                           is_taken, or is_short */
    bool is_taken;      /* the host had captured the stream when it was to be recorded */
    bool is_short;      /* there was no memory for it, at the last try */
    bool is_dirty;      /* in executor->dirty: work without a word behind it; where no words are
                           written, work that nobody knows the end of */
};

/* A node that could not be changed: each launch tries once more. */
struct executor_bad_node {
    struct executor_bad_node *next;
    uint32_t node;
    struct wire_record *record; /* owned: what it is to be */
};

/* An operation of a stream. */
struct executor_use {
    uint32_t stream;
    uint64_t seq; /* 0: none */
};

/* A graph, or one that is being put together. */
struct executor_graph {
    bool is_there, is_ready;
    bool prints;
    uint32_t node_count, record_capacity;
    /* While it is put together: bodies that have been begun, each in the one before, with what they
     * have so far and how many more their node has. The first one is the graph. */
    uint32_t depth;
    struct {
        uint32_t node_count, more;
    } bodies[WIRE_CONTROL_DEPTH_MAX + 1];
    struct backend_graph *graph;   /* owned; NULL: launches are verified by hashes, or it failed */
    struct backend_stream *stream; /* the graph's */
    struct wire_record **records;  /* owned, each of them: where launches are verified by hashes */
    struct backend_error failure;  /* the first one, until GRAPH_END has told it; then of a node
                                      that could not be changed, until all of those are */
    struct executor_bad_node *bad; /* owned: those, in the order in which they have failed */
    bool fails_for_good;           /* there was no memory to note which, or what it is to be */
    struct executor_use last;      /* its newest launch or upload, which is behind those before */
};

/* A module or a graph whose end waits for work that may still use it. */
struct executor_grave {
    struct executor_grave *next;
    struct backend_module *module; /* NULL: a graph */
    struct backend_graph *graph;
    uint32_t count;
    struct executor_use uses[];
};

/* Operations known to have failed, until the script side has drawn its conclusions. */
struct executor_failed {
    uint64_t seq;
    uint32_t stream;
    uint32_t is_used;
    uint64_t number; /* of the failure that is its root, counted from 1 */
};

struct executor_job;      /* compile.c */
struct executor_verify;   /* verify.h */
struct executor_sleepers; /* sleeper.c */
struct executor_late_reply {
    struct executor_late_reply *next;
    struct wire_reply reply; /* the rest follows */
};

struct wire_executor {
    struct wire_executor_info info;
    struct wire_page *page; /* = info.page */

    /* The device. */
    const struct backend_ops *ops; /* NULL until OPEN has succeeded */
    struct backend_device *device;
    char *cache_path; /* owned */
    gpulua_completion completion;
    bool is_checked;     /* check mode, of either kind: it is told of blocks */
    bool is_traced;      /* it is told when work was done (trace.c) */
    bool is_unsettled;   /* for the twins of race tests alone: events that are owed are forgotten */
    bool tells_times;    /* and the device tells that by itself */
    bool has_untold;     /* work that it has not told of */
    uint64_t flushed_ns; /* when it was asked to last */
    pthread_mutex_t times_lock;
    struct wire_times *times; /* owned: that it has told, and nobody else */
    uint32_t time_capacity;
    _Atomic uint32_t time_count; /* locked, but for a look */
    bool page_is_writable;       /* the device can write words into the page, and is to */
    bool page_is_registered;     /* to be unregistered */
    bool is_closed;
    _Atomic bool is_lost;
    _Atomic bool is_stopped; /* its loop is to end */
    _Atomic bool is_alarmed; /* see backend_sink */
    uint32_t poll_count;
    bool asks_driver; /* in this poll, of what is wanted */

    /* Objects. */
    struct executor_table slabs, modules, kernels, graphs, labels;
    struct executor_stream *streams[WIRE_STREAMS_MAX]; /* owned */
    bool stream_is_owed[WIRE_STREAMS_MAX]; /* asked for when there was no memory even for its row */
    uint32_t stream_limit;                 /* highest slot ever used, plus 1 */
    _Atomic uint32_t wanted_limit;         /* the same, for other threads */
    struct executor_table pinned;          /* arena chunks, struct executor_pin */
    uint32_t pin_count;
    uint64_t pinned_bytes;         /* of the arena, from its begin */
    struct executor_grave *graves; /* the oldest first */

    /* Completion. */
    uint32_t dirty[WIRE_STREAMS_MAX]; /* streams with is_dirty */
    uint32_t dirty_count;
    uint32_t ops_per_word;   /* EXECUTOR_OPS_PER_WORD, or 1 */
    bool has_warmed;         /* once: what it takes is loaded */
    uint32_t printing_count; /* streams with print_seq */
    uint32_t wishes_seen;
    uint32_t wants[WIRE_STREAMS_MAX]; /* streams whose wanted word has not come yet */
    uint32_t want_count;

    /* Replies: several threads, one ring. */
    pthread_mutex_t reply_lock;
    struct wire_ring replies;
    uint8_t *reply_scratch;                            /* owned; one whole reply */
    struct executor_late_reply *late_head, *late_tail; /* inline: found no room in the ring */
    _Atomic uint32_t late_count;
    bool lost_told;

    /* Failures. */
    pthread_mutex_t failed_lock;
    struct executor_failed *failed; /* owned; open addressing */
    uint32_t failed_capacity;       /* a power of two, or 0 */
    _Atomic uint32_t failed_count;
    uint64_t failure_number;   /* under reply_lock: failures published */
    uint64_t forgotten_number; /* under failed_lock */

    /* Compilation. */
    pthread_t compiler;
    bool has_compiler;
    bool compiler_stops; /* under compile_lock, as the two lists */
    pthread_mutex_t compile_lock;
    pthread_cond_t compile_work;
    struct executor_job *jobs_head, *jobs_tail; /* to do */
    struct executor_job *done_head, *done_tail; /* done, to be loaded */
    _Atomic uint32_t done_count;

    /* Inline, for backends without threads of their own: watches while the script sleeps. */
    pthread_t watcher;
    bool has_watcher;
    _Atomic bool is_watching;
    bool watcher_stops;       /* under watch_lock */
    int64_t watch_nap_min_ns; /* under watch_lock */
    pthread_mutex_t watch_lock;
    pthread_cond_t watch_work;
    uint32_t watch_count;
    struct {
        uint32_t stream;
        uint64_t seq;
        struct backend_event *event;
    } watches[WIRE_STREAMS_MAX];

    struct executor_sleepers *sleepers; /* owned; NULL: none has been needed yet */
    _Atomic uint32_t back_count;        /* of sleepers, until they are collected */

    struct executor_verify *verify; /* owned; NULL: launches are not verified by hashes */
    struct backend_use *uses;       /* owned; of the launch at hand, in check mode */
    uint32_t use_capacity;

    _Alignas(
        16) uint8_t args[WIRE_RECORD_BYTES_MAX]; /* of the launch at hand, addresses resolved */
};

struct executor_pin {
    void *base;
};

/* ---- objects.c ---- */
/* The row of a number, NULL if it has none or is out of range. */
void *gpu_executor_row(const struct executor_table *table, uint32_t number);
/* The same, the table growing; NULL: no memory or beyond `limit`. Rows start as zeros. */
void *gpu_executor_row_make(struct executor_table *table, uint32_t number, uint32_t limit);
/* What that has to be told as. */
gpulua_status gpu_executor_row_missing(struct backend_error *error, const char *what,
                                       uint32_t number, uint32_t limit);
void gpu_executor_table_free(struct executor_table *table);
/* A wire address as the device sees it, for an access of `bytes`. */
gpulua_status gpu_executor_resolve(const struct wire_executor *executor, uint64_t address,
                                   uint64_t bytes, uint64_t *resolved, struct backend_error *error);
/* The same of an argument of a kernel: an address of slab 0 is an offset in the arena. */
gpulua_status gpu_executor_resolve_arg(const struct wire_executor *executor, uint64_t address,
                                       uint64_t *resolved, struct backend_error *error);
/* A range of the arena as host memory; NULL if it is not one. */
void *gpu_executor_arena(const struct wire_executor *executor, uint64_t byte_offset,
                         uint64_t bytes);
/* The row of a slab that is to be; NULL: the number cannot be used. */
struct executor_slab *gpu_executor_slab_new(struct wire_executor *executor, uint32_t number,
                                            struct backend_error *error);
void gpu_executor_slab_destroy(struct wire_executor *executor, uint32_t number);

/* ---- foreign.c: memory and streams of somebody else in this process ---- */
gpulua_status gpu_executor_adopt(struct wire_executor *executor, const struct wire_record *record,
                                 struct backend_error *error);
/* Is the wire address in memory that somebody else owns? It is not ours to watch or to poison. */
bool gpu_executor_is_adopted(const struct wire_executor *executor, uint64_t address);
gpulua_status gpu_executor_slab_find(struct wire_executor *executor,
                                     const struct wire_record *record,
                                     struct wire_slab_facts *facts, struct backend_error *error);
gpulua_status gpu_executor_stream_native(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         struct wire_stream_facts *facts,
                                         struct backend_error *error);
gpulua_status gpu_executor_stream_give(struct wire_executor *executor,
                                       const struct wire_record *record,
                                       struct backend_error *error);
/* CAPTURE_BEGIN, CAPTURE_LOOK, CAPTURE_END. */
gpulua_status gpu_executor_capture(struct wire_executor *executor, const struct wire_record *record,
                                   struct wire_capture_facts *facts, struct backend_error *error);
gpulua_status gpu_executor_stream_take(struct wire_executor *executor,
                                       const struct wire_record *record,
                                       struct backend_stream *stream, struct backend_error *error);
void gpu_executor_stream_create(struct wire_executor *executor, const struct wire_record *record);
/* One that could not be made for want of memory is tried again. */
void gpu_executor_stream_retry(struct wire_executor *executor, uint32_t slot);
void gpu_executor_stream_destroy(struct wire_executor *executor, uint32_t slot);
void gpu_executor_module_unload(struct wire_executor *executor, uint32_t number);
/* Is the module that a record asks for there, since before it was asked for? Then it is the
 * script's from now on. What had its number before is gone, if it was nobody's. */
bool gpu_executor_module_claim(struct wire_executor *executor, const struct wire_record *record);
/* Ends the module when all that was submitted so far is over. */
void gpu_executor_bury_module(struct wire_executor *executor, struct backend_module *module);
/* Ends the graph when its last use is over, whatever else is under way. */
void gpu_executor_bury_graph(struct wire_executor *executor, struct backend_graph *graph,
                             struct executor_use last);
void gpu_executor_graves_look(struct wire_executor *executor, bool all);
void gpu_executor_arena_register(struct wire_executor *executor, const struct wire_record *record);
/* Everything; the device's work is over or lost. */
void gpu_executor_objects_free(struct wire_executor *executor);

/* ---- reply.c: any thread ---- */
gpulua_status gpu_executor_reply_init(struct wire_executor *executor);
void gpu_executor_reply_finish(struct wire_executor *executor);
/* Answers a request. `text` may be NULL; it is cut at WIRE_REPLY_TEXT_BYTES_MAX and says so. */
void gpu_executor_answer(struct wire_executor *executor, uint64_t request, gpulua_status status,
                         int32_t driver_code, const char *text, const void *body,
                         uint32_t body_bytes);
void gpu_executor_answer_error(struct wire_executor *executor, uint64_t request,
                               const struct backend_error *error);
/* Work failed: into the set of failed operations, then into the reply ring. `node` as backend_sink
 * has it. */
void gpu_executor_fail(struct wire_executor *executor, uint32_t stream, uint64_t seq, uint32_t node,
                       int32_t driver_code, const struct backend_failure *failure);
void gpu_executor_touched(struct wire_executor *executor, uint32_t stream, uint64_t seq,
                          const struct backend_touched *touched);
void gpu_executor_ran(struct wire_executor *executor, uint32_t stream, uint64_t seq,
                      const struct wire_point *ready, uint32_t ready_count);
void gpu_executor_log(struct wire_executor *executor, const char *line);
/* Wakes nobody: what they are of is about to end. */
void gpu_executor_tell_times(struct wire_executor *executor, const struct wire_times *times,
                             uint32_t count);
/* The device is gone: said once, all further work is ignored. */
void gpu_executor_lose(struct wire_executor *executor, int32_t driver_code, const char *text);
/* Inline: moves replies that found no room into the ring. */
void gpu_executor_replies_flush(struct wire_executor *executor);
/* Wakes a sleeping script for good reason; or only if a wanted word has moved. */
void gpu_executor_wake(struct wire_executor *executor);
void gpu_executor_wake_if_wanted(struct wire_executor *executor);

/* ---- failed.c ---- */
void gpu_executor_failed_add(struct wire_executor *executor, uint32_t stream, uint64_t seq,
                             uint64_t number);
/* The number of the root failure of an operation, 0: it is not known to have failed. */
uint64_t gpu_executor_failed_find(struct wire_executor *executor, uint32_t stream, uint64_t seq);
void gpu_executor_failed_forget(struct wire_executor *executor, uint64_t count);

/* ---- work.c ---- */
void gpu_executor_work(struct wire_executor *executor, const struct wire_record *record);
/* The operation itself, without waits and without what marks its end. */
gpulua_status gpu_executor_do(struct wire_executor *executor, const struct wire_record *record,
                              struct backend_stream *stream, bool *prints,
                              struct backend_error *error);

/* ---- graph.c ---- */
void gpu_executor_graph_begin(struct wire_executor *executor, const struct wire_record *record);
void gpu_executor_graph_node(struct wire_executor *executor, const struct wire_record *record);
gpulua_status gpu_executor_graph_end(struct wire_executor *executor,
                                     const struct wire_record *record, struct backend_error *error);
/* GRAPH_LAUNCH or GRAPH_UPLOAD. */
gpulua_status gpu_executor_graph_launch(struct wire_executor *executor,
                                        const struct wire_record *record,
                                        struct backend_stream *stream, bool *prints,
                                        struct backend_error *error);
void gpu_executor_graph_destroy(struct wire_executor *executor, uint32_t number);

/* ---- control.c ---- */
/* Whether the device has conditional nodes, and what it does before the first. */
gpulua_status gpu_executor_control_prepare(struct wire_executor *executor,
                                           struct backend_error *error);
/* Which body the next nodes are of: the record is one of the graph's, as all are seen in order. */
gpulua_status gpu_executor_control_follow(struct executor_graph *row,
                                          const struct wire_record *record,
                                          struct backend_error *error);
/* A CONTROL, whose node has been begun, or a BODY_END. */
gpulua_status gpu_executor_control_put(struct wire_executor *executor, struct executor_graph *row,
                                       const struct wire_record *record,
                                       struct backend_error *error);
/* Where the record of a node lies that is in no body. */
uint32_t gpu_executor_records_find(const struct executor_graph *row, uint32_t node);
/* Does the graph's records one after another, as the launch, waiting for the values that choose
 * bodies. */
gpulua_status gpu_executor_records_run(struct wire_executor *executor,
                                       const struct executor_graph *row,
                                       const struct wire_record *launch,
                                       struct backend_stream *stream, bool *prints,
                                       struct backend_error *error);

/* ---- request.c ---- */
void gpu_executor_request(struct wire_executor *executor, const struct wire_record *record);
/* Waits for the device's work, frees everything, closes the device. */
void gpu_executor_device_close(struct wire_executor *executor);

/* ---- verify*.c: check mode by hashes; only with executor->verify, but for the first two ---- */
gpulua_status gpu_executor_verify_create(struct wire_executor *executor,
                                         struct backend_error *error);
void gpu_executor_verify_destroy(struct wire_executor *executor);
void gpu_executor_verify_block(struct wire_executor *executor, const struct wire_record *record,
                               uint64_t address, const char *label);
void gpu_executor_verify_block_free(struct wire_executor *executor, uint64_t number);
/* Before the slab goes. */
void gpu_executor_verify_slab_gone(struct wire_executor *executor, uint64_t address);
/* For messages: which kernel has the number. */
void gpu_executor_verify_kernel(struct wire_executor *executor, uint32_t number, const char *name);
/* A copy, an upload or a fill writes there, or nobody knows who writes where. */
void gpu_executor_verify_written(struct wire_executor *executor, uint64_t address, uint64_t bytes);
void gpu_executor_verify_forget(struct wire_executor *executor);
/* Runs a launch, alone on the device, and returns when it is over: with UNDECLARED_ACCESS,
 * OUT_OF_BOUNDS or USE_AFTER_FREE if it has changed what it does not declare. */
gpulua_status gpu_executor_verify_launch(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         const struct backend_launch *launch,
                                         struct backend_error *error);
/* The source of its kernels, for tests. */
extern const char gpu_executor_verify_source[];

/* ---- completion.c ---- */
/* An operation has been submitted: an event behind it, which may be owed if nobody has a handle on
 * it, and a word when it is time for one. `flags`: of its record, 0 if it was not done. */
void gpu_executor_submitted(struct wire_executor *executor, uint32_t slot, uint64_t seq,
                            bool prints, unsigned flags);
/* Before something else is put on the stream: the event that is owed. */
void gpu_executor_settle(struct wire_executor *executor, uint32_t slot);
/* What the backend says where a host captures the stream, on a thread that only itself can end that
 * on: nothing is put there meanwhile, events and waits neither. */
bool gpu_executor_is_captured(gpulua_status status);
/* Those that are owed because the host has captured the stream. */
void gpu_executor_settle_taken(struct wire_executor *executor);
/* The event that stands for (slot, seq) or for something later; NULL: nothing to wait for, or there
 * can be none yet. */
struct executor_event *gpu_executor_event_of(struct wire_executor *executor, uint32_t slot,
                                             uint64_t seq);
/* For who is to be behind it: NULL is nothing to wait for. CAPTURE_ACTIVE: there can be none yet.
 * OUT_OF_MEMORY: there is none for want of memory; gpu_executor_is_over tells all the same. */
gpulua_status gpu_executor_event_awaited(struct wire_executor *executor, uint32_t slot,
                                         uint64_t seq, struct executor_event **event,
                                         struct backend_error *error);
/* An event of the device's, counted in the page. */
gpulua_status gpu_executor_event_make(struct wire_executor *executor, struct backend_event **event,
                                      struct backend_error *error);
void gpu_executor_event_end(struct wire_executor *executor, struct backend_event *event);
/* The row of the operation that is to be submitted next. */
struct executor_event *gpu_executor_event_next(struct wire_executor *executor, uint32_t slot);
/* Is it over? Asks the device if the page does not say so, and then says it in the page. */
bool gpu_executor_is_over(struct wire_executor *executor, uint32_t slot, uint64_t seq);
/* All that has been given to the device is over. */
bool gpu_executor_is_idle(struct wire_executor *executor);
/* Words behind the newest work of every stream, or a look at it: the ring has run dry. */
void gpu_executor_words(struct wire_executor *executor);
/* Code is going to be loaded, and was: what runs tells of its end by itself meanwhile. The next
 * poll says the second, when it has told what is over. */
void gpu_executor_loads(struct wire_executor *executor);
void gpu_executor_loaded(struct wire_executor *executor);
/* Blocks until then (monotonic clock), or until the script's side takes it as its executor. */
void gpu_executor_await_charge(struct wire_executor *executor, uint64_t until_ns);
/* Moves host_done; only forward. Any thread. */
void gpu_executor_host_done(struct wire_executor *executor, uint32_t slot, uint64_t seq);
void gpu_executor_completion_poll(struct wire_executor *executor);
/* Is there something that only polling will find out? */
bool gpu_executor_must_poll(const struct wire_executor *executor);
/* From any thread: see backend_sink. */
void gpu_executor_alarm(struct wire_executor *executor, bool is_alarmed);

/* ---- trace.c; of traced devices alone ---- */
/* Around an operation; afterwards, before gpu_executor_submitted: something or nothing came of it.
 */
void gpu_executor_trace_begin(struct wire_executor *executor, uint32_t slot, uint64_t seq);
void gpu_executor_trace_end(struct wire_executor *executor);
void gpu_executor_trace_note(struct wire_executor *executor, uint32_t slot, bool is_done);
/* sink.timed: any thread. */
void gpu_executor_timed(struct wire_executor *executor, uint32_t slot, uint64_t seq, uint32_t node,
                        int64_t begin_ns, int64_t end_ns);
/* All that is over, now; or, where the device tells by itself, if it was not asked lately. */
void gpu_executor_trace_flush(struct wire_executor *executor);
void gpu_executor_trace_rest(struct wire_executor *executor);
/* Of what takes long, so that nobody keeps too much. */
void gpu_executor_trace_poll(struct wire_executor *executor);
/* What is over up to there. */
void gpu_executor_trace_tell(struct wire_executor *executor, uint32_t slot, uint64_t seq);

/* ---- compile.c ---- */
gpulua_status gpu_executor_compile_start(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         struct backend_error *error);
/* Ahead of time: on this thread, and loaded, with no answer. */
gpulua_status gpu_executor_compile_ahead(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         struct backend_error *error);
/* Loads what has been compiled, and answers. */
void gpu_executor_compile_collect(struct wire_executor *executor);
/* Ends the thread; what is still to do is answered with CLOSED. */
void gpu_executor_compile_stop(struct wire_executor *executor);

/* ---- sleeper.c ---- */
/* Threads sleep for what is waited for. True: for all of it. */
bool gpu_executor_sleepers_send(struct wire_executor *executor);
/* Those that are back can be sent again. */
void gpu_executor_sleepers_collect(struct wire_executor *executor);
/* True: a thread sleeps for the event, which is no longer the caller's. */
bool gpu_executor_sleepers_keep(struct wire_executor *executor, const struct backend_event *event);
/* Waits for those that are not back: all work is over, or the device is lost. */
void gpu_executor_sleepers_stop(struct wire_executor *executor);

/* ---- watcher.c ---- */
/* With naps of `nap_min_ns` at least. */
void gpu_executor_watch_begin(struct wire_executor *executor, int64_t nap_min_ns);
void gpu_executor_watch_pause(struct wire_executor *executor);
void gpu_executor_watch_stop(struct wire_executor *executor);

#endif
