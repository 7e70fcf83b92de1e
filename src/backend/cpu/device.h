/* The CPU device's insides: device.c (ops, memory), queue.c (streams, items), event.c (events),
 * pool.c (worker threads).
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
#define CPU_SPLIT_THREADS_MIN 1024u  /* launches of more threads are split at once */
#define CPU_SPLIT_NS_MIN 20000u      /* others if their first block takes this long */
#define CPU_PRIORITY_HIGHEST (-5)

enum cpu_item_kind {
    CPU_ITEM_LAUNCH,
    CPU_ITEM_COPY,
    CPU_ITEM_FILL,
    CPU_ITEM_WORD,
    CPU_ITEM_EVENT,
    CPU_ITEM_WAIT
};

/* One record of an event: shared by the event, the item that fires it and those that wait. */
struct cpu_ticket {
    _Atomic uint32_t ref_count;
    /* Streams parked here, or a mark that it has fired. */
    _Atomic(struct backend_stream *) parked;
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
    uint64_t seq;
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
    } u;
};

/* The item that a stream is at, cut into units that workers claim. */
struct cpu_job {
    struct cpu_item *item;
    uint64_t unit_count;
    uint64_t units_min;    /* claimed at a time */
    _Atomic uint64_t next; /* first unit not yet claimed */
    uint32_t user_count;   /* workers at it; under the device's lock */
    bool is_listed;        /* in the device's list; under its lock */
    bool is_shared;        /* was ever listed */
    struct backend_stream *list_next, *list_previous;
};

struct backend_stream {
    struct backend_device *device;
    uint32_t slot;
    int priority;
    struct backend_stream *next_ready, *next_parked;
    struct backend_stream *next, **link; /* all streams of the device */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* room again, or idle */
    struct cpu_item *head, *tail, *spare_items;
    struct cpu_launch_item *spare_launches;
    uint32_t item_count; /* queued and being done */
    bool is_full;
    bool is_active; /* ready, being served or parked */
    bool is_awaited;

    bool has_moved; /* server only: a word or event moved, sink.moved is still to be called */
    struct cpu_job job;
};

struct backend_event {
    struct cpu_ticket *ticket; /* of the last record; NULL: never recorded */
};

struct backend_slab {
    struct backend_slab *next, **link;
    uint8_t *base; /* with the guard pages */
    uint64_t span_bytes, bytes;
};

struct cpu_module_entry {
    struct cpu_module_entry *next;
    struct cpu_module *module;
};

struct backend_device {
    const struct backend_ops *ops;
    struct backend_sink sink;
    char *cache_path; /* owned; NULL: the default */
    uint64_t memory_bytes, slab_bytes;
    uint64_t page_bytes;
    char name[96];
    struct backend_slab *slabs;
    struct backend_stream *streams;
    struct cpu_module_entry *modules;

    pthread_t *workers; /* owned */
    uint32_t worker_count;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct backend_stream *ready; /* by priority, then first come first served */
    struct backend_stream *jobs;  /* streams whose job has units to claim */
    uint32_t job_count, idle_count;
    _Atomic uint32_t ready_count; /* written under the lock */
    _Atomic uint32_t offer_count; /* ready_count + job_count, for those who spin */
    uint32_t spinning_count;
    bool is_stopping;
};

/* ---- pool.c ---- */
gpulua_status gpu_cpu_pool_start(struct backend_device *device, struct backend_error *error);
void gpu_cpu_pool_stop(struct backend_device *device);
uint32_t gpu_cpu_core_count(void);
/* A stream with something to do, to be served by some worker. */
void gpu_cpu_pool_ready(struct backend_stream *stream);
/* Offers the stream's job to others. */
void gpu_cpu_pool_share(struct backend_stream *stream);
/* The caller is done with the stream's job. True: it was the last, and the item is finished. */
bool gpu_cpu_pool_leave(struct backend_stream *stream);

/* ---- queue.c ---- */
gpulua_status gpu_cpu_stream_create(struct backend_device *device, uint32_t slot, int priority,
                                    struct backend_stream **stream, struct backend_error *error);
void gpu_cpu_stream_destroy(struct backend_device *device, struct backend_stream *stream);
/* Serves a stream until there is nothing to do; `resume`: its job has just been finished. */
void gpu_cpu_stream_serve(struct backend_stream *stream, bool resume);
/* Does units of the stream's job until all are claimed; a helper leaves earlier if other streams
 * have nobody to serve them. */
void gpu_cpu_job_work(struct backend_stream *stream, bool is_helper);

gpulua_status gpu_cpu_stream_word(struct backend_stream *stream, _Atomic uint64_t *word,
                                  uint64_t value, struct backend_error *error);
/* A blank item, with a launch of `args_bytes` if wanted; blocks while the queue is full. NULL: no
 * memory. */
struct cpu_item *gpu_cpu_item_make(struct backend_stream *stream, enum cpu_item_kind kind,
                                   uint64_t seq, uint32_t args_bytes);
void gpu_cpu_item_put(struct backend_stream *stream, struct cpu_item *item);

/* ---- event.c ---- */
void gpu_cpu_ticket_release(struct cpu_ticket *ticket); /* NULL is fine */
/* Readies what is parked. */
void gpu_cpu_ticket_fire(struct cpu_ticket *ticket);
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

#endif
