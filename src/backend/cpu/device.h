/* The CPU device's insides: device.c (ops, memory), kept.c (its pool), queue.c (streams, items),
 * share.c (doing items, alone or together), event.c (events), pool.c (worker threads), graph.c,
 * lanes.c and control.c (graphs, see graph.h).
 *
 * A stream is a queue of items that are done one after another. At most one worker serves a stream
 * at a time; it does item after item until the queue is empty or an event has to be waited for.
 * Large items are split: other workers join in, and whoever finishes last goes on with the stream,
 * so that no worker ever waits for another. */
#ifndef GPU_CPU_DEVICE_H
#define GPU_CPU_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/kernel.h"

/* Of one stream's queue, about 4,096 operations with their events and words; adding one more blocks
 * until the queue has shrunk to CPU_ITEMS_LOW. */
#define CPU_ITEMS_MAX 12288u
#define CPU_ITEMS_LOW 9216u
#define CPU_WORKERS_MAX 512u
#define CPU_COPY_GRAIN_BYTES 262144u /* copies and fills are split at this size */
#define CPU_PRIORITY_HIGHEST (-5)

enum cpu_item_kind {
    CPU_ITEM_LAUNCH,
    CPU_ITEM_COPY,
    CPU_ITEM_FILL,
    CPU_ITEM_GRAPH,   /* all of one, once */
    CPU_ITEM_CONTROL, /* a conditional node of a graph */
    CPU_ITEM_WORD,
    CPU_ITEM_EVENT,
    CPU_ITEM_WAIT
};

/* One record of an event: shared by the event, the item that fires it and those that wait. */
struct cpu_ticket {
    _Atomic uint32_t ref_count;
    /* Streams parked here, or a mark that it has fired. */
    _Atomic(struct backend_stream *) parked;
    _Atomic uint32_t sleeps; /* futex: 1 while a thread sleeps until it fires */
    bool is_timed;
    int64_t fired_ns; /* if it is */
};

/* A launch in a queue; the arguments lie behind it. */
struct cpu_launch_item {
    struct cpu_launch launch;
    uint32_t args_room_bytes;
    struct cpu_launch_item *next; /* in the stream's list of spare ones */
    _Alignas(64) uint8_t args[];
};

struct cpu_item {
    struct cpu_item *next;
    enum cpu_item_kind kind;
    uint32_t elem_bytes; /* fill */
    uint32_t node;       /* of a graph, counted from 1: see backend_sink.timed; 0: none */
    uint64_t seq;
    int64_t begun_ns; /* of a node that is traced, in the run that is under way */
    /* Whose part it is: done with each launch of the graph, never recycled, its ticket the graph's.
     * NULL: of a stream's queue. */
    struct backend_graph *graph;
    union {
        struct cpu_launch_item *launch;
        struct cpu_ticket *ticket;
        struct {
            uint8_t *dst;
            const uint8_t *src;
            uint64_t bytes;
        } copy;
        struct {
            uint8_t *dst;
            uint64_t elem_count;
            uint64_t pattern[2];
        } fill;
        struct {
            _Atomic uint64_t *word;
            uint64_t value;
        } word;
        struct {
            struct backend_graph *graph;
            uint64_t free_count; /* check mode: blocks that were freed before it was launched */
            struct cpu_item *patches; /* owned: see backend_graph */
        } run;
        struct cpu_control *control;
    } u;
};

/* An item cut into units that several workers claim. One of the device's, so that a worker may look
 * at it however late it comes. */
struct cpu_job {
    /* Low 16 bits: workers at it, or CPU_JOB_FREE. High 16 bits: seats for more. Whoever brings the
     * workers down to 0 finishes the item. */
    _Atomic uint32_t users;
    struct backend_stream *stream;
    struct cpu_item *item;
    uint64_t unit_count;
    uint64_t units_min;                 /* claimed at a time */
    uint64_t parts;                     /* of what is left, one is claimed */
    _Alignas(64) _Atomic uint64_t next; /* first unit not yet claimed; may run past the end */
};
#define CPU_JOB_FREE 0xffffu
#define CPU_JOBS_MAX 64u

struct backend_stream {
    struct backend_device *device;
    uint32_t slot;
    int priority;
    struct backend_stream *next_ready, *next_parked;
    struct backend_stream *next, **link; /* all streams of the device but those of graphs */
    struct backend_graph *recorder;      /* takes what is put here; NULL: it is done */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* room again, or idle */
    struct cpu_item *head, *tail, *spare_items;
    struct cpu_launch_item *spare_launches;
    uint32_t item_count; /* queued and being done */
    bool is_full;
    bool is_active; /* ready, being served or parked */
    bool is_awaited;

    bool has_moved; /* server only: a word or event moved, sink.moved is still to be called */

    /* Check mode. */
    uint64_t rank;
    uint64_t word_value; /* written last */
};

struct backend_event {
    struct cpu_ticket *ticket; /* of the last record; NULL: never recorded */
};

#define CPU_KEPT_BYTES_MAX (UINT64_C(64) << 20) /* that the memory pool keeps */

struct backend_slab {
    struct backend_slab *next, **link;
    struct backend_slab *next_kept; /* of the pool, while nobody has it */
    bool is_pooled, is_kept;
    uint8_t *base; /* with the guard pages */
    uint64_t span_bytes, bytes;
};

struct cpu_module_entry {
    struct cpu_module_entry *next;
    struct cpu_module *module;
};

struct cpu_schedule; /* check/schedule.c */

struct backend_device {
    const struct backend_ops *ops;
    struct backend_sink sink;
    bool is_timed;    /* events have times */
    char *cache_path; /* owned; NULL: the default */
    uint64_t memory_bytes, slab_bytes;
    uint64_t page_bytes;
    char name[96];
    struct backend_slab *slabs;
    struct backend_slab *kept; /* by the memory pool, the latest first */
    uint64_t kept_bytes;
    struct backend_stream *streams;
    struct backend_graph *graphs;
    struct cpu_module_entry *modules;
    struct check *check;           /* owned; NULL: not in check mode */
    struct cpu_schedule *schedule; /* owned; check mode: instead of workers */

    pthread_t *workers; /* owned */
    uint32_t worker_count;
    pthread_mutex_t lock;
    struct backend_stream *ready; /* under the lock; by priority, then first come first served */
    struct cpu_job *jobs;         /* owned */
    uint32_t job_count;           /* as many as can be open at once, or CPU_JOBS_MAX */

    /* What idle workers look at. */
    _Alignas(64) _Atomic uint64_t open_jobs; /* bit i: jobs[i] has units and a seat, probably */
    _Atomic uint32_t ready_count;            /* written under the lock */
    _Atomic uint32_t spinner_count, sleeper_count;
    _Atomic uint32_t wake_count; /* futex: calls so far */
    _Atomic bool is_stopping;
};

/* ---- pool.c ---- */
gpulua_status gpu_cpu_pool_start(struct backend_device *device, struct backend_error *error);
void gpu_cpu_pool_stop(struct backend_device *device);
uint32_t gpu_cpu_core_count(void);
/* A stream with something to do, to be served by some worker. */
void gpu_cpu_pool_ready(struct backend_stream *stream);
/* Work has been put where idle workers look: calls up to `count` of them. */
void gpu_cpu_pool_call(struct backend_device *device, uint32_t count);

/* ---- share.c ---- */
/* Does a launch, copy or fill, or as much of it as others leave. True: it is finished, and the
 * caller goes on with the stream. False: somebody else does. */
bool gpu_cpu_item_do(struct backend_stream *stream, struct cpu_item *item);
/* Takes a seat at an open job, if there is one, and works there. `*stream`: whose item the caller
 * has to finish, being the last; else NULL. */
bool gpu_cpu_job_help(struct backend_device *device, struct backend_stream **stream,
                      struct cpu_item **item);

/* ---- queue.c ---- */
gpulua_status gpu_cpu_stream_create(struct backend_device *device, uint32_t slot, int priority,
                                    struct backend_stream **stream, struct backend_error *error);
void gpu_cpu_stream_destroy(struct backend_device *device, struct backend_stream *stream);
/* One that is a graph's, and not among the device's. NULL: no memory. */
struct backend_stream *gpu_cpu_stream_make(struct backend_device *device, uint32_t slot,
                                           int priority);
/* Serves a stream until there is nothing to do. `finished`: an item of it that has just been done,
 * or NULL. */
void gpu_cpu_stream_serve(struct backend_stream *stream, struct cpu_item *finished);

enum backend_query gpu_cpu_stream_query(struct backend_stream *stream, struct backend_error *error);
gpulua_status gpu_cpu_stream_word(struct backend_stream *stream, _Atomic uint64_t *word,
                                  uint64_t value, struct backend_error *error);
/* A blank item, with a launch of `args_bytes` if wanted; blocks while the queue is full. NULL: no
 * memory. */
struct cpu_item *gpu_cpu_item_make(struct backend_stream *stream, enum cpu_item_kind kind,
                                   uint64_t seq, uint32_t args_bytes);
void gpu_cpu_item_put(struct backend_stream *stream, struct cpu_item *item);
/* Of one that is done. The stream's lock is held where workers serve it. */
void gpu_cpu_item_recycle(struct backend_stream *stream, struct cpu_item *item);
/* Tells of a launch that failed; of a graph's, with the graph's name, and of the first only. */
void gpu_cpu_item_report(struct backend_stream *stream, struct cpu_item *item);

/* ---- event.c ---- */
int64_t gpu_cpu_clock_ns(void); /* monotonic */
/* The caller's; NULL: no memory. */
struct cpu_ticket *gpu_cpu_ticket_create(void);
void gpu_cpu_ticket_retain(struct cpu_ticket *ticket);
void gpu_cpu_ticket_release(struct cpu_ticket *ticket); /* NULL is fine */
bool gpu_cpu_ticket_has_fired(const struct cpu_ticket *ticket);
/* Readies what is parked. */
void gpu_cpu_ticket_fire(struct cpu_ticket *ticket);
/* Then the thread that sleeps for it. A graph's have none, and may be gone once they have fired. */
void gpu_cpu_ticket_wake(struct cpu_ticket *ticket);
/* True: the stream is parked, and may be running again already. False: it has fired meanwhile. */
bool gpu_cpu_ticket_park(struct cpu_ticket *ticket, struct backend_stream *stream);
gpulua_status gpu_cpu_stream_wait(struct backend_stream *stream, struct backend_event *event,
                                  struct backend_error *error);
gpulua_status gpu_cpu_event_create(struct backend_device *device, struct backend_event **event,
                                   struct backend_error *error);
void gpu_cpu_event_destroy(struct backend_device *device, struct backend_event *event);
gpulua_status gpu_cpu_event_record(struct backend_event *event, struct backend_stream *stream,
                                   struct backend_error *error);
enum backend_query gpu_cpu_event_query(struct backend_event *event, struct backend_error *error);
enum backend_query gpu_cpu_event_wait(struct backend_event *event);
gpulua_status gpu_cpu_event_times(struct backend_event *begin, struct backend_event *end,
                                  int64_t *begin_ns, int64_t *end_ns, struct backend_error *error);
gpulua_status gpu_cpu_copy(struct backend_stream *stream, uint64_t seq, uint64_t dst, uint64_t src,
                           uint64_t bytes, struct backend_error *error);
gpulua_status gpu_cpu_upload(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                             const void *src, uint64_t bytes, struct backend_error *error);
gpulua_status gpu_cpu_download(struct backend_stream *stream, uint64_t seq, void *dst, uint64_t src,
                               uint64_t bytes, struct backend_error *error);
gpulua_status gpu_cpu_fill(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                           const void *element, uint32_t elem_bytes, uint64_t elem_count,
                           struct backend_error *error);
gpulua_status gpu_cpu_launch_put(const struct backend_launch *launch, struct backend_error *error);

/* ---- graph.c ---- */
gpulua_status gpu_cpu_graph_begin(struct backend_device *device, struct backend_graph **graph,
                                  struct backend_stream **stream, struct backend_error *error);
gpulua_status gpu_cpu_graph_node(struct backend_graph *graph, const uint32_t *deps,
                                 uint32_t dep_count, struct backend_error *error);
gpulua_status gpu_cpu_graph_end(struct backend_graph *graph, struct backend_error *error);
gpulua_status gpu_cpu_graph_upload(struct backend_stream *stream, struct backend_graph *graph,
                                   struct backend_error *error);
gpulua_status gpu_cpu_graph_launch(struct backend_stream *stream, uint64_t seq,
                                   struct backend_graph *graph, struct backend_error *error);
gpulua_status gpu_cpu_graph_patch(struct backend_graph *graph, uint32_t node, bool is_launch,
                                  struct backend_error *error);
gpulua_status gpu_cpu_graph_patched(struct backend_graph *graph, gpulua_status status,
                                    struct backend_error *error);
void gpu_cpu_graph_destroy(struct backend_device *device, struct backend_graph *graph);
gpulua_status gpu_cpu_graph_control(struct backend_graph *graph,
                                    const struct backend_control *control,
                                    struct backend_error *error);
gpulua_status gpu_cpu_graph_body_end(struct backend_graph *graph, struct backend_error *error);
/* Chooses a body; what of it is to be done on the stream itself comes next there, and then, for a
 * loop, the item once more. */
void gpu_cpu_control_start(struct backend_stream *stream, struct cpu_item *item);
/* The work of the node that was begun last. */
void gpu_cpu_graph_take(struct backend_graph *graph, struct cpu_item *item);
/* Starts what a CPU_ITEM_GRAPH is for: its lanes are under way, and what is to be done on the
 * stream itself comes next there. */
void gpu_cpu_graph_start(struct backend_stream *stream, struct cpu_item *item);
/* Of the run that is under way: a node has failed, and the rest is left out. */
bool gpu_cpu_graph_has_failed(const struct backend_graph *graph);
/* A node has failed. False: it is not the run's first. Else who is to be told. */
bool gpu_cpu_graph_fail(struct backend_graph *graph, uint32_t *slot, uint64_t *seq);
/* Traced devices: the item of a node is about to be done; it is done. */
void gpu_cpu_graph_node_begin(struct cpu_item *item);
void gpu_cpu_graph_node_end(const struct cpu_item *item);

/* The node at which the last run ended, in check mode; NULL: it went well. */
struct cpu_item *gpu_cpu_graph_failed_checked(const struct backend_graph *graph);

/* ---- kept.c: the memory pool ---- */
gpulua_status gpu_cpu_kept_alloc(struct backend_stream *stream, uint64_t bytes,
                                 struct backend_slab **slab, uint64_t *address,
                                 struct backend_error *error);
/* False: it is not the pool's, or the pool keeps enough. */
bool gpu_cpu_kept_put(struct backend_device *device, struct backend_slab *slab);
void gpu_cpu_kept_trim(struct backend_device *device);

#endif
