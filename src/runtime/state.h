/* The structs behind the runtime's handles, for the files of runtime/ alone. */
#ifndef GPU_RUNTIME_STATE_H
#define GPU_RUNTIME_STATE_H

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/fork.h"
#include "runtime/hazards.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/op.h"
#include "runtime/range.h"
#include "runtime/seat.h"
#include "runtime/share.h"
#include "runtime/trace.h"
#include "wire/link.h"

/* Why an op failed; shared by the op, the failed set and the list of unobserved failures. */
struct gpu_failure {
    uint32_t refs;
    bool is_observed;
    struct gpu_failure *root;    /* retained; NULL: this is one */
    const struct gpu_seat *seat; /* whose it is to observe; NULL: anybody's. Compared alone */
    uint64_t task;               /* that launched it, unless that has ended; 0: none */
    struct gpu_error error;
};

/* Something whose release has to wait for the owner's next call: a collector may run anywhere. */
struct gpu_deferred {
    struct gpu_deferred *next;
    void (*run)(struct gpu_device *device, struct gpu_deferred *self);
};

#define GPU_OP_DEPS_INLINE 4u

enum gpu_op_state { GPU_OP_PENDING, GPU_OP_SUCCEEDED, GPU_OP_FAILED };

/* What all have comes first, so that work touches as little memory as it can. */
struct gpu_op {
    uint32_t refs;   /* the stream's or request list's own while pending, and the callers' */
    uint8_t state;   /* enum gpu_op_state */
    bool is_replied; /* requests: the reply is here, the next poll ends it */
    bool has_deadline : 1, has_extras : 1; /* in the device's watchdog; some of what is last here */
    bool takes_long : 1;               /* requests: the answer may take any time: code is made */
    bool is_given_up : 1;              /* requests: whoever asked has been told otherwise */
    bool is_repair : 1, is_replay : 1; /* gives back what a loss took: nobody's work; covers */
    struct gpu_device *device;         /* retained */
    struct gpu_stream *stream;         /* retained while pending; NULL: a request, or over */
    uint64_t stream_number;            /* 0: a request */
    uint32_t slot;                     /* of the stream */
    uint32_t dep_count;
    uint64_t seq;        /* on the stream; or the request's number */
    uint64_t number;     /* in the order in which the device was given work; 0: a request */
    struct gpu_op *next; /* in the stream's pending list, the request list or the free list */
    const char *label;   /* interned or static */
    struct gpu_site site;
    const struct gpu_seat *seat; /* of a shared device: who submitted it. Compared alone */
    uint64_t task;               /* the number of the task that did; 0: none */
    struct gpu_point *deps;      /* ops whose output this one reads; deps_inline or owned */
    /* From here on: nothing in those of the free list. */
    struct gpu_waiter *waiters;
    struct gpu_failure *failure; /* retained; set as soon as known */
    void *shadow;                /* the observer's */
    struct gpu_op_ref *ref;      /* while pending: a loose one; see op_ref.h */
    struct wire_reply *reply;    /* of requests: owned copy until the poll */
    /* Requests: called once by the poll that ends it, before waiters. No reply: the device is gone.
     */
    void (*on_reply)(struct gpu_op *op, void *user, const struct wire_reply *reply);
    void *on_reply_user;
    struct gpu_point deps_inline[GPU_OP_DEPS_INLINE];
    /* Only while has_extras. */
    struct gpu_hooked *hooked;   /* owned: what a host is told of its end; NULL: nobody asks */
    struct gpu_report *report;   /* retained: of its own launches; see report.h */
    struct gpu_report *needs[4]; /* retained: of what it depends on */
    uint32_t need_count;
};

/* What operations of one line have in common; see op_ref.h. */
struct gpu_origin;
struct gpu_origins {
    struct gpu_origin **table; /* by hash; NULL: none */
    uint32_t capacity, count;
};
void gpu_origins_finish(struct gpu_origins *origins);
/* It is over, and its loose reference is all that there is: true, that does not keep it any more;
 * it does if there is more to know. */
bool gpu_op_leave_ref(struct gpu_op *op);

#define GPU_KNOWN_MAX 64u
struct gpu_known {
    uint64_t at_seq; /* from this operation of its own on, a stream is behind the point */
    struct gpu_point point;
};

/* What a spare was told of beforehand. */
struct gpu_told {
    uint64_t spare_seq; /* which one; 0: none */
    uint64_t position;  /* when it has taken that: gpu_wire_link_has_taken */
};

struct gpu_stream {
    uint32_t refs;
    uint32_t slot;
    uint64_t number;
    struct gpu_device *device; /* retained */
    int priority;
    bool is_closed, is_user, is_deferred;
    bool is_foreign; /* the device's cuda_stream */
    uint64_t native; /* the driver's handle; 0: the host has not got it, and cannot capture it */
    char label[64];
    uint32_t traced_text;        /* as of blocks: its label in the trace */
    uint64_t wanted;             /* what the page was last told */
    struct gpu_op *head, *tail;  /* pending, in order */
    struct gpu_deferred release; /* destroying: waits until pending is empty */
    struct gpu_told told;
    uint64_t waited[WIRE_STREAMS_MAX];     /* per slot: all further work is behind this seq */
    struct gpu_known known[GPU_KNOWN_MAX]; /* how `waited` grew; a ring */
    uint64_t known_count;                  /* ever noted */
    /* Marks that were put there though the host may be capturing it: of whoever waits for one of
     * them it is asked whether anybody can. 0: there are none. */
    uint64_t owed_from, owed_to;
};

#define GPU_SPAN_READS 2u
#define GPU_SPANS_MAX 64u

/* A range of a block, from the end of the span before, whose bytes have the same history. */
struct gpu_span {
    uint64_t byte_end;
    struct gpu_point write; /* newest write */
    uint32_t read_count;    /* since then, the newest read of each stream */
    uint32_t read_capacity; /* 0: they lie in the span */
    union {
        struct gpu_point inside[GPU_SPAN_READS];
        struct gpu_point *heap; /* owned */
    } reads;
};

struct gpu_history {
    uint32_t count;    /* of spans, at least 1, at most GPU_SPANS_MAX */
    uint32_t capacity; /* 0: the one span is `first` */
    union {
        struct gpu_span first;
        struct gpu_span *heap; /* owned */
    };
};

/* What a memory resource gave. */
struct gpu_grant {
    uint64_t address;       /* wire address; pinned memory: arena offset */
    uint64_t byte_count;    /* rounded */
    struct gpu_range range; /* of a slab or of the arena; without node: a region of its own */
    void *tag;              /* of the topmost resource that needs one */
};

struct gpu_block {
    uint32_t refs;
    bool is_host, is_freed, is_staging, is_deferred, is_trackable;
    bool is_hidden;    /* gpulua's own: check mode is not told of it */
    bool is_scratch;   /* of a graph's temporary */
    bool is_foreign;   /* imported: memory of another library (exchange.h) */
    bool is_read_only; /* of those: work that writes it is refused */
    bool is_external;  /* a module's variable: no memory of ours; or a module's own hazard block: no
                          memory at all */
    bool is_temporary; /* made in a capture, for its nodes alone: see graph/temporary.c. Not
                          trackable then, and without memory of its own */
    bool is_lone;      /* was a temporary, and has memory of its own for a conditional node, but
                          nobody uses it but its graph: see graph/temporary.c. Not trackable */
    bool is_arena;     /* what temporaries lie in */
    bool has_late_writer;      /* host memory that work which was lost with a device was to write:
                                  until its process has ended, it may yet */
    struct gpu_device *device; /* retained */
    struct gpu_memory *memory; /* retained; NULL: external */
    uint64_t number, epoch;
    uint64_t byte_count; /* as asked */
    enum gpu_type type;  /* that it was made with; GPU_TYPE_COUNT: nobody has said */
    uint64_t address;    /* as in the grant */
    struct gpu_grant grant;
    struct gpu_history history;
    struct gpu_module *module; /* retained: whose variable this is */
    uint32_t export_count;     /* a freed block's memory stays while there are any */
    void *shadow;              /* the observer's */
    uint64_t variable_address; /* of a module's variable: where its executor has it */
    uint8_t keeping;           /* enum gpu_keeping */
    struct gpu_failure *lost;  /* retained: of what was to write it when the device was lost */
    struct gpu_block *copy;    /* retained: host memory with what is to be restored; NULL: none */
    uint64_t copy_version;     /* counts what the script has written into it */
    struct gpu_block *home; /* retained: in whose memory a temporary lies; NULL: not placed yet */
    const struct gpu_block
        *twin;            /* of a temporary in an update of a graph: that graph's; or NULL */
    uint64_t maker;       /* of a temporary: the number of its capture */
    uint32_t made_number; /* in that */
    struct gpu_block *next, *previous; /* live blocks, next in retiring, or next spare one */
    struct gpu_deferred release;
    uint32_t traced_text;           /* its label in the device's trace; 0: none yet */
    int64_t made_ns;                /* gpu_clock_coarse_ns */
    struct gpu_site site, end_site; /* where the script made it, and freed it, if that is known */
    char label[GPU_BLOCK_LABEL_BYTES];
    bool is_label_cut; /* of a longer one it is the beginning: gpu_label_copy */
};

/* Made in a capture, and perhaps of no other use: gpu_temporary_use has to be asked. */
static inline bool gpu_block_is_of_capture(const struct gpu_block *block) {
    return block->is_temporary || block->is_lone;
}

/* For another one like it. */
static inline struct gpu_block_info gpu_block_info_of(const struct gpu_block *block) {
    return (struct gpu_block_info){.byte_count = block->byte_count,
                                   .label = block->label[0] ? block->label : NULL,
                                   .is_label_cut = block->is_label_cut,
                                   .site = block->site};
}
#define GPU_BLOCKS_SPARE_MAX 1024u /* structs kept for the next blocks */

/* A budget: what of it is used, and who wants to know when it gets tight. */
struct gpu_account {
    uint64_t limit_bytes, used_bytes;
    uint64_t level_begin_bytes, level_end_bytes; /* of used_bytes: where the level stays as it is */
    uint8_t level;                               /* enum gpu_pressure */
    uint32_t listener_count;
    struct gpu_listener *listeners; /* owned */
};

struct gpu_failed_point {
    struct gpu_point point;
    bool is_needed;              /* while the list is swept */
    struct gpu_failure *failure; /* retained */
};

struct gpu_id_pool { /* small integers, the lowest free one first-in-last-out */
    uint32_t *free_ids;
    uint32_t free_count, free_capacity;
    uint32_t next;
};

#define GPU_INTERN_MAX 65536u

struct gpu_flight_use {
    uint64_t address; /* of the block, as in its record */
    uint64_t byte_begin, byte_end;
    uint64_t block_bytes;       /* all of the block */
    uint64_t block_number : 48; /* more than can be made */
    uint64_t access : 2;        /* enum gpu_access */
    uint64_t type : 4;          /* enum gpu_type: of the block */
    uint64_t is_module : 1;     /* no memory: order alone */
    uint64_t is_host : 1, is_staging : 1;
    uint64_t is_filled : 1; /* there was something in it before anybody wrote it */
};
_Static_assert(GPU_TYPE_COUNT < 16, "it fits");
static inline struct gpu_flight_use gpu_flight_use_of(const struct gpu_block *block,
                                                      uint64_t byte_begin, uint64_t byte_end,
                                                      uint8_t access) {
    return (struct gpu_flight_use){
        .address = block->address,
        .byte_begin = byte_begin,
        .byte_end = byte_end,
        .block_bytes = block->byte_count,
        .block_number = block->number & ((UINT64_C(1) << 48) - 1),
        .access = access & 3u,
        .type = (uint32_t)block->type & 15u,
        .is_module = block->byte_count == 0,
        .is_host = block->is_host,
        .is_staging = block->is_staging,
        .is_filled = block->is_foreign || block->module,
    };
}
enum gpu_flight_fate { GPU_FLIGHT_UNTOLD, GPU_FLIGHT_SUSPECT, GPU_FLIGHT_NOT_STARTED };
struct gpu_flight_op { /* two cache lines */
    struct gpu_point point;
    uint64_t number; /* of the operation: in the order of launching, from 1 */
    uint64_t stream_number;
    uint64_t block_last;   /* the number of the newest block then */
    const char *label;     /* interned or static */
    struct gpu_site site;  /* interned */
    struct gpu_form *form; /* retained: of a launch; NULL: none */
    uint64_t use_first;    /* counted from the device's first use */
    uint64_t data_first;   /* counted from its first byte of data */
    union {
        struct {
            uint32_t grid[3];
            uint16_t block[3];
        } launch;
        struct {
            uint64_t number, version;
        } graph; /* of the launch of one */
    };
    uint32_t use_count, shared_bytes;
    uint16_t data_bytes;   /* arguments; of a fill its pattern; 0: none */
    uint8_t opcode, flags; /* of its record */
    uint8_t fate;          /* enum gpu_flight_fate: with a loss of the device */
};
_Static_assert(sizeof(struct gpu_flight_op) == 128, "two cache lines");
_Static_assert(GPU_ARGS_BYTES_MAX <= UINT16_MAX, "counted in data_bytes");
/* The name of a block that is gone. */
struct gpu_flight_name {
    uint64_t block_number;
    struct gpu_site site;
    char label[48];
};
struct gpu_flight {
    struct gpu_flight_op *ops;                            /* owned; a ring */
    struct gpu_flight_use *uses;                          /* owned; a ring */
    uint8_t *data;                                        /* owned; a ring */
    struct gpu_flight_name *names;                        /* owned; a ring */
    uint64_t op_count, use_count, data_count, name_count; /* ever noted */
    uint64_t block_last;                                  /* of what was forgotten last */
};

/* What may take only so long (watchdog.h). */
struct gpu_watchdog {
    int64_t term_ns; /* for each operation, from when nothing is in front of it; 0: any time */
    uint64_t watched_number; /* of the oldest one that is pending, when last seen */
    int64_t watched_ns;      /* since then */
    bool was_loading;        /* code, when last looked at */
    bool is_again;           /* it is watched anew, since that ended */
    bool asks_for_code;      /* and that takes its time */
    uint64_t asked_number;   /* of the request that is waited for, when last seen; 0: of none */
    int64_t asked_ns;        /* since then */
    int64_t patience_ns;     /* how long it may be waited for */
    struct gpu_deadline {
        struct gpu_op *op; /* retained */
        int64_t at_ns;
        int64_t over_ns; /* at last, though nobody may know whether it is over */
        double seconds;
        bool is_asked; /* it is due, and its word has been asked for, then, by that wish */
        int64_t asked_ns;
        uint32_t wish;
    } * deadlines; /* owned */
    uint32_t count, capacity;
    int64_t next_ns; /* the first of them */
};

/* What there was no memory for when it came. */
struct gpu_late_news {
    struct gpu_news *news; /* owned: has the newest of them; of none nothing */
    uint32_t count;
};
/* On the way to the next life of a device (recovery.h). */
struct gpu_recovery {
    uint32_t restarts_max; /* within the window; 0: it does not come up again */
    int64_t window_ns;
    int64_t *begun_ns;        /* owned: of the newest restarts_max; a ring */
    uint64_t begun_count;     /* ever */
    uint32_t failed_count;    /* attempts since it was up last that led nowhere */
    int64_t idle_since_ns;    /* since then no process could be started; 0: the last one could */
    int64_t next_ns;          /* not another one before */
    struct wire_record *open; /* owned: what opens the device */
    struct gpu_error last;    /* how it was lost last, also when it is up again */
    struct gpu_news *news;    /* retained: the newest */
    struct gpu_late_news late_loss, late_return; /* in that order (news.c) */
    struct gpu_failure *loss; /* retained: the same, as what was pending has failed with */
    struct gpu_op *op;        /* over when it is up again; NULL: nobody has asked for one */
    uint32_t pending_count;   /* requests of the restoration that are not answered */
    struct gpu_point unbuilt; /* the write of blocks whose content has to be made anew */
    bool has_spare;           /* an executor with the device open waits to take over */
    uint64_t spare_seq, told_arena_bytes; /* of its request to open; so many it knows */
    struct gpu_unread *unread; /* owned: texts of closed modules that it may yet look at */
    bool is_open, is_restoring, has_memory, is_failed, is_given_up, is_stepping;
    bool was_returning; /* what failed with this loss was the restoration's */
    /* What the former life may still do to this one until its process has ended. */
    bool has_late_writers;             /* in host memory that somebody has a handle to */
    uint64_t former_bytes, free_bytes; /* of the device: what it has, and what the new one finds */
    uint64_t first_free_bytes;         /* what the first one found */
    bool has_former;                   /* it may not have ended when memory was asked for last */
    int former_pid;                    /* of its process; 0: there was none */
    int64_t late_ns;                   /* it should have ended by then */
    bool is_former_late;               /* and has not, which was told */
};

/* Numbers of what is compared by its address. */
#define GPU_INDEX_NONE UINT32_MAX
#define GPU_GRAPHS_LEAVING_MAX 16u
struct gpu_place {
    const void *key; /* compared alone; NULL: free */
    uint32_t number;
};
struct gpu_index {
    struct gpu_place *places; /* owned */
    uint32_t capacity, count;
};

struct gpu_device {
    uint32_t refs;
    uint8_t state; /* enum gpu_device_state */
    bool is_closing, is_polling, is_unfenced, is_checked;
    bool is_overtaken; /* by an interlude: what was refused just now is asked for again */
    bool may_owe;      /* a stream has marks that nobody may be able to wait for (owed_from) */
    bool is_ordered;   /* check mode in which work is done when it is asked for */
    bool is_confined;  /* for kernels of anybody's, who may have its process */
    bool is_inherited; /* by fork: it is the parent's, and closed here (device.c) */
    bool is_torn;      /* and another thread was changing what it has: nobody looks at that */
    struct gpu_fork fork;
    /* Check mode. */
    uint64_t seed, random;
    int64_t patient_until_ns; /* who asks waits no longer */
    bool is_behind;           /* somebody had no patience: it is still at work on what was asked */
    uint64_t unfenced_wait, wait_count;  /* of mutation tests: waits found so far */
    const struct gpu_observer *observer; /* borrowed */
    struct gpu_hooks *hooks;             /* retained; NULL: none */
    struct gpu_trace *trace;             /* retained; NULL: it is not traced */
    const struct gpu_tasks *tasks;       /* borrowed; NULL: none; see gpu_tasks_of */
    int64_t seen_ns;  /* of a traced one, while ends are noted that one look saw; 0: now */
    bool is_injected; /* one of these is not 0 */
    uint64_t injected[GPU_INJECT_COUNT]; /* how many from now on it comes; 0: never */
    struct {
        struct gpu_kernel *kernel; /* retained; NULL: nothing is to be slow */
        char *name;                /* owned: of what is */
        int64_t ns;
    } slow;
    char name[32], title[104]; /* "cpu", "cpu 'scorer'" */
    char kind[8];
    char *flight_path, *flight_folder; /* owned: where losses are written; NULL: nowhere */
    uint64_t flight_losses;            /* that have been */
    char *coredump_base; /* owned: a core dump is this and "-PID.core"; NULL: there are none */
    gpulua_isolation isolation;
    uint64_t epoch;
    uint64_t interludes;    /* in which others may have undone what a call had checked */
    struct wire_link *link; /* owned; NULL once closed */
    /* Owned: after the close, while somebody still holds memory in the arena. A script may close
     * the device in the middle of a transfer, in a function that the transfer calls. */
    struct wire_link *mapped_link;
    uint32_t host_block_count;
    struct wire_device_facts facts;
    const atomic_int *interrupt;                  /* borrowed */
    struct gpu_share *share;                      /* owned; NULL: one thread has the device */
    void (*on_log)(void *user, const char *line); /* or NULL */
    void *log_user;
    struct gpu_error lost; /* why, once lost */
    struct gpu_recovery recovery;
    struct gpu_watchdog watchdog;
    uint32_t suspects_max;  /* named, of each stream */
    bool is_exact;          /* a word behind each operation */
    bool has_told_not_kept; /* that the cache of compiled code takes nothing */
    gpulua_completion completion;

    /* streams */
    struct gpu_stream
        *streams[WIRE_STREAMS_MAX];      /* by slot; retained by themselves until destroyed */
    uint64_t slot_seq[WIRE_STREAMS_MAX]; /* last seq given out per slot: never starts again */
    uint64_t done[WIRE_STREAMS_MAX];     /* last sight of the page */
    uint32_t slot_count;                 /* slots ever used */
    uint32_t user_stream_count;
    uint64_t stream_number_next;
    struct gpu_stream *task_streams[GPU_TASK_STREAMS]; /* retained */
    uint64_t cuda_stream; /* the host's, the first and only one of these; 0: there is none */

    /* operations */
    struct gpu_op *requests, **requests_tail; /* pending */
    struct gpu_op *op_free;
    uint32_t op_free_count;
    struct gpu_origins origins;
    uint64_t request_number_next;
    uint32_t submits_since_poll;
    uint64_t warmed_number; /* of the newest operation when it was last warmed up; 0: never */
    bool stays_cold;        /* it cannot be */
    uint64_t op_number_next, module_number_next, kernel_number_next, graph_number_next;
    uint64_t failures_seen, failures_forgotten; /* WIRE_REPLY_FAILUREs */
    bool has_new_failures;
    struct gpu_report_row *report_rows; /* owned; see report.h */
    struct gpu_report *report_free;
    uint32_t report_count;             /* that are in use */
    bool has_early_reports;            /* that were seen, and have to wait for others */
    uint64_t report_number;            /* of the newest; none is used twice */
    struct gpu_failure *failure_spare; /* for when there is no memory for one */
    struct gpu_failed_point *failed;
    uint32_t failed_count, failed_capacity;
    struct gpu_failure **unobserved;
    uint32_t unobserved_count, unobserved_capacity;

    /* memory */
    struct gpu_memory *memory, *pinned; /* retained: the default, and the arena; NULL once closed */
    struct gpu_memory *external;        /* retained: of imports; NULL once closed */
    struct gpu_import *imports;         /* owned */
    struct gpu_export *exports;         /* that have not come back */
    struct gpu_home *home;              /* shared with exports; NULL: there never was one */
    struct gpu_memory *memories;        /* all, the youngest first */
    struct gpu_account account;         /* the device's budget */
    struct gpu_id_pool slab_ids;
    uint64_t block_number_next, capture_number_next;
    uint64_t block_ends;      /* blocks that were freed, and lives of the device */
    struct gpu_block *blocks; /* live */
    struct gpu_block *block_spare;
    uint32_t block_spare_count;
    struct gpu_block *retiring, **retiring_tail; /* freed, uses perhaps in flight */
    struct gpu_deferred *deferred, **deferred_tail;
    struct gpu_deferred
        *later; /* found not to be possible yet; back on `deferred` with the next poll */
    struct gpu_id_pool module_ids, kernel_ids, graph_ids;
    struct gpu_module *modules;

    struct gpu_pool *pools; /* of graphs */
    struct gpu_graph *graphs;
    uint64_t graph_clock;                                    /* launches */
    struct gpu_point graphs_leaving[GPU_GRAPHS_LEAVING_MAX]; /* last of those that went and ran */
    uint32_t leaving_count;

    struct gpu_flight flight;
    struct gpu_recorder *holding; /* recorders between preflight and commit */
    struct gpu_repeat repeat;

    const char **interned; /* open addressing */
    uint32_t interned_count, interned_capacity;
    struct gpu_index labels; /* that the executor knows, interned or static; see labels.c */
    uint64_t labels_epoch;   /* when they were sent */

    uint8_t *backlog; /* records that found no room, whole, one behind the other */
    size_t backlog_bytes, backlog_sent_bytes, backlog_capacity;

    struct gpu_stats stats;
    _Alignas(16) uint8_t scratch[WIRE_RECORD_BYTES_MAX]; /* the record being built */
};

/* ---- share.c ----
 *
 * What begins with GPU_ENTER holds the device's lock, if it has one, until it returns, and finds
 * all noted that the device has been given (gpu_repeat). */
void gpu_share_lock(struct gpu_share *share);
void gpu_share_unlock(struct gpu_share *share);
static inline struct gpu_share *gpu_enter(const struct gpu_device *device) {
    struct gpu_share *share = device->share;
    if (share) {
        gpu_share_lock(share);
    } else if (__builtin_expect(device->repeat.graph != NULL, 0)) {
        gpu_repeat_end((struct gpu_device *)(uintptr_t)device);
    }
    return share;
}
static inline void gpu_leave(struct gpu_share *const *share) {
    if (*share) {
        gpu_share_unlock(*share);
    }
}
#define GPU_ENTER(device)                                                                          \
    __attribute__((cleanup(gpu_leave), unused)) struct gpu_share *const entered = gpu_enter(device)
/* The same in what goes from one thing of the device to others: returns where it is torn. */
#define GPU_ENTER_WHOLE(device, ...)                                                               \
    GPU_ENTER(device);                                                                             \
    if (__builtin_expect((device)->is_torn, 0)) {                                                  \
        return __VA_ARGS__;                                                                        \
    }

/* References as the runtime itself counts them, with the lock held. */
static inline struct gpu_device *gpu_device_keep(struct gpu_device *device) {
    device->refs++;
    return device;
}
static inline void gpu_device_drop(struct gpu_device *device) {
    if (device->refs > 1) {
        device->refs--;
    } else {
        gpu_device_release(device);
    }
}
static inline struct gpu_stream *gpu_stream_keep(struct gpu_stream *stream) {
    stream->refs++;
    return stream;
}
static inline void gpu_stream_drop(struct gpu_stream *stream) {
    if (stream->refs > 1) {
        stream->refs--;
    } else {
        gpu_stream_release(stream);
    }
}

/* Around what may take long or run anything: the lock is let go, however often this thread has
 * taken it. Not from within a poll, which others must not find half done: then it is kept. */
uint32_t gpu_share_pause(struct gpu_device *device);
void gpu_share_resume(struct gpu_device *device, uint32_t depth);
/* The executor has been called, and looks out for nobody any more who sleeps. */
static inline void gpu_share_touched(struct gpu_device *device) {
    if (device->share && device->link && device->link->transport == WIRE_TRANSPORT_INLINE) {
        device->share->wants_arming = device->share->asleep_count > 0;
    }
}
/* The device is lost, which its link tells but once: wakes all, who then see to what is theirs. */
void gpu_share_lost(struct gpu_device *device);
/* Operations have ended: wakes those who sleep for that. */
void gpu_share_tell(struct gpu_device *device);
/* Did it fail for a recorder of another seat (sleeps a while), or an interlude? Try again. */
bool gpu_share_wait(struct gpu_device *device, gpulua_status *status, struct gpu_error *error);
/* The caller's seat; NULL: the device is not shared, or the caller has none there. */
struct gpu_seat *gpu_share_seat(const struct gpu_share *share);
static inline struct gpu_seat *gpu_seat_of(const struct gpu_device *device) {
    return device->share ? gpu_share_seat(device->share) : NULL;
}
static inline const struct gpu_tasks *gpu_tasks_of(const struct gpu_device *device,
                                                   const struct gpu_seat *seat) {
    return seat ? seat->tasks : device->tasks;
}
int64_t gpu_clock_ns(void);
/* Around what a call waits for within itself, for traces. */
static inline int64_t gpu_blocked_begin(const struct gpu_device *device) {
    return device->trace ? gpu_clock_ns() : 0;
}
static inline void gpu_blocked_end(const struct gpu_device *device, const char *what,
                                   int64_t begun_ns) {
    const struct gpu_tasks *tasks = begun_ns ? gpu_tasks_of(device, gpu_seat_of(device)) : NULL;
    if (tasks && tasks->blocked) {
        tasks->blocked(tasks, what, begun_ns);
    }
}
/* The waiter, which is not linked, fires when its seat next polls. */
void gpu_seat_fire(struct gpu_waiter *waiter, struct gpu_op *op);
/* In the caller's poll: what has happened to what is its own. Returns how many waiters fired. */
uint32_t gpu_seat_hear(struct gpu_device *device);
/* What gpu_device_arm and its kin do on a shared device. */
bool gpu_seat_arm(struct gpu_device *device);
void gpu_seat_disarm(struct gpu_device *device);
void gpu_seat_nap(struct gpu_device *device, int64_t timeout_ns);

/* ---- device.c ---- */
void gpu_device_defer(struct gpu_device *device, struct gpu_deferred *deferred,
                      void (*run)(struct gpu_device *device, struct gpu_deferred *self));
/* From within `run`: not done yet; asks again at the next poll. */
void gpu_device_defer_later(struct gpu_device *device, struct gpu_deferred *deferred,
                            void (*run)(struct gpu_device *device, struct gpu_deferred *self));
void gpu_device_retry_later(struct gpu_device *device);
void gpu_device_run_deferred(struct gpu_device *device);

/* ---- inject.c ---- */
/* Is it this one that goes wrong? Counts. */
bool gpu_inject_due(struct gpu_device *device, gpulua_injection what);
/* In front of a launch that is to be slow. */
struct gpu_launch;
gpulua_status gpu_inject_delay(const struct gpu_launch *launch, struct gpu_error *error);
/* What the next operation's record is to say of that. */
uint8_t gpu_inject_flags(struct gpu_device *device);
/* What gpu_device_check says to those who have a seat, if it is shared. */
gpulua_status gpu_device_check_open(struct gpu_device *device, struct gpu_error *error);
/* Publishes and counts; fails when the device is lost, which the link or a watchdog says, and has
 * marked it so then. Where there is no room and nobody has time to wait for some (an interrupt, a
 * close, a poll), the record is kept and goes out before all later ones. */
gpulua_status gpu_device_publish(struct gpu_device *device, const struct wire_record *record,
                                 struct gpu_error *error);
/* The same for what need not go out: GPULUA_INTERRUPTED in place of being kept. */
gpulua_status gpu_device_publish_or_not(struct gpu_device *device, const struct wire_record *record,
                                        struct gpu_error *error);
/* What was kept goes out, as far as there is room. */
void gpu_device_send_backlog(struct gpu_device *device);
bool gpu_id_take(struct gpu_id_pool *pool, uint32_t *id);
void gpu_id_give(struct gpu_id_pool *pool, uint32_t id);
void gpu_id_pool_finish(struct gpu_id_pool *pool);

/* ---- ask.c ---- */
/* Somebody sleeps until something is over: asks for one of the operations that are waited for, or,
 * with `for_any`, for any work if there are none. */
void gpu_ask_before_sleep(struct gpu_device *device, bool for_any, int64_t until_ns);
/* Waits until the request is answered, so that when that happens is no matter of time. */
void gpu_ask_answer(struct gpu_op *request);
/* Waits until the executor has taken what was published. */
void gpu_ask_settle(struct gpu_device *device);

/* ---- recovery.c ---- */
/* The device is lost, and this is how: "... is lost: <text>" */
void gpu_device_lose(struct gpu_device *device, int32_t driver_code, const char *text);

/* ---- completion.c ---- */
int64_t
gpu_clock_coarse_ns(void); /* the same clock, some milliseconds late, for a fifth of the time */
/* Sleeps until something may have happened on the device, at most timeout_ns (-1: a bounded while).
 */
void gpu_device_nap(struct gpu_device *device, int64_t timeout_ns);
/* Before a nap that any end may end: an end that nobody wants to see is not always seen. */
void gpu_device_want_any(struct gpu_device *device);
bool gpu_device_is_interrupted(const struct gpu_device *device);
/* Everything pending fails: the device is lost (`text` says how) or closed. */
void gpu_device_fail_all(struct gpu_device *device, const char *text, int32_t driver_code,
                         bool by_close);
void gpu_device_on_reply(void *user, const struct wire_reply *reply);
bool gpu_point_is_over(const struct gpu_device *device,
                       struct gpu_point point); /* looks at the page */

/* ---- op.c ---- */
struct gpu_op *gpu_op_create(struct gpu_device *device, struct gpu_stream *stream,
                             const char *label, struct gpu_site site);
/* The next ones need no memory of the host's. False: there is none. */
bool gpu_ops_reserve(struct gpu_device *device, uint32_t count);
/* The stream's newest from now on. */
static inline void gpu_op_append(struct gpu_stream *stream, struct gpu_op *op) {
    if (stream->tail) {
        stream->tail->next = op;
    } else {
        stream->head = op;
    }
    stream->tail = op;
}
/* Of what is pending. NULL: it is not. */
struct gpu_op *gpu_op_find_pending(const struct gpu_device *device, struct gpu_point point);
/* Has all ended that was given to the device up to the operation of that number? */
bool gpu_ops_are_over(const struct gpu_device *device, uint64_t number);
/* Somebody wants to know when it is over: on some transports nobody is told otherwise. */
void gpu_op_want(struct gpu_op *op);
/* It fails, and whatever depends on it, once it is over. */
void gpu_op_fail(struct gpu_op *op, gpulua_status status, int32_t driver_code, const char *text);
void gpu_failures_spread(struct gpu_device *device); /* to what is pending and depends on them */
void gpu_op_end(struct gpu_op *op); /* pending no more: state by its failure; waiters fire; drops
                                       the list's ref */
/* The seat's waiters fire when it next polls, although the op may not be over. */
void gpu_op_dismiss(struct gpu_op *op, const struct gpu_seat *seat);
/* A failure of no operation, for whoever (of that seat, if there is one) next asks the device for
 * what nobody has observed. Takes what the error owns. */
void gpu_failure_keep(struct gpu_device *device, const struct gpu_seat *seat,
                      struct gpu_error *error);
/* So that failures are kept also while there is no memory. False: no memory. */
bool gpu_failures_init(struct gpu_device *device);
/* Retained for the caller: what fails while there is no memory for a failure of its own. */
struct gpu_failure *gpu_failure_without_memory(struct gpu_device *device);
struct gpu_failure *gpu_failure_create(void); /* zeroed; NULL: no memory */
/* It and its root have been seen by the caller: by that of its seat, if it has one. */
void gpu_failure_observe(const struct gpu_device *device, struct gpu_failure *failure);
/* Its error, complete. */
const struct gpu_error *gpu_failure_error(struct gpu_failure *failure);
struct gpu_failure *gpu_failure_retain(struct gpu_failure *failure);
void gpu_failure_release(struct gpu_failure *failure);
/* The failure that (slot, seq) ended with, or NULL. */
struct gpu_failure *gpu_failed_find(const struct gpu_device *device, struct gpu_point point);
void gpu_failed_add(struct gpu_device *device, struct gpu_point point, struct gpu_failure *failure);
/* Wherever it is findable. False: nowhere. */
bool gpu_failed_replace(struct gpu_device *device, const struct gpu_failure *before,
                        struct gpu_failure *failure);
void gpu_unobserved_add(struct gpu_device *device, struct gpu_failure *failure);
/* What came of `root` (NULL: of any loss) and is the running task's to see, or an ended one's. */
void gpu_failures_observe_of(struct gpu_device *device, const struct gpu_failure *root);
struct gpu_failure *gpu_failure_of_dependency(const struct gpu_op *op, struct gpu_failure *cause);
/* A request: publishes `record` (opcode, object, u set; payload behind the header if any) and
 * returns its op. */
gpulua_status gpu_request(struct gpu_device *device, struct wire_record *record, const char *label,
                          void (*on_reply)(struct gpu_op *op, void *user,
                                           const struct wire_reply *reply),
                          void *user, struct gpu_op **op, struct gpu_error *error);
/* The same of a device that is not open yet. */
gpulua_status gpu_request_unchecked(struct gpu_device *device, struct wire_record *record,
                                    const char *label,
                                    void (*on_reply)(struct gpu_op *op, void *user,
                                                     const struct wire_reply *reply),
                                    void *user, struct gpu_op **op, struct gpu_error *error);
/* A request that the executor has, or is about to have, under that number; the list's. NULL: no
 * memory. */
struct gpu_op *gpu_request_expect(struct gpu_device *device, uint64_t seq, const char *label,
                                  void (*on_reply)(struct gpu_op *op, void *user,
                                                   const struct wire_reply *reply),
                                  void *user);
/* Blocks for a request's answer, and takes its reference; on_reply gets replies of status 0. */
gpulua_status gpu_request_end(struct gpu_op *op, struct gpu_error *error);
/* gpu_request and its end. */
gpulua_status
gpu_request_wait(struct gpu_device *device, struct wire_record *record, const char *label,
                 void (*on_reply)(struct gpu_op *op, void *user, const struct wire_reply *reply),
                 void *user, struct gpu_error *error);

/* ---- history.c ---- */
void gpu_history_init(struct gpu_history *history, uint64_t byte_count);
void gpu_history_finish(struct gpu_history *history);
/* The index of the span that has byte_offset; the last one if it lies behind the end. */
uint32_t gpu_history_find(const struct gpu_history *history, uint64_t byte_offset);
/* First the cuts of all uses, which may join others', then room for each. False: no memory. */
bool gpu_history_cut(const struct gpu_use *use);
bool gpu_history_make_room(const struct gpu_use *use, uint32_t slot);
void gpu_history_commit(const struct gpu_use *use, struct gpu_point point);
/* Is that the newest write of any of it? */
bool gpu_history_has_write(const struct gpu_history *history, struct gpu_point point);

static inline struct gpu_span *gpu_history_spans(const struct gpu_history *history) {
    return history->capacity != 0 ? history->heap : (struct gpu_span *)(uintptr_t)&history->first;
}
static inline struct gpu_point *gpu_span_reads(const struct gpu_span *span) {
    return span->read_capacity != 0 ? span->reads.heap
                                    : (struct gpu_point *)(uintptr_t)span->reads.inside;
}

/* There is room for it. */
static inline void gpu_span_note_read(struct gpu_span *span, struct gpu_point point) {
    struct gpu_point *reads = gpu_span_reads(span);
    for (uint32_t i = 0; i < span->read_count; i++) {
        if (reads[i].slot == point.slot) {
            reads[i].seq = point.seq;
            return;
        }
    }
    reads[span->read_count++] = point;
}

/* ---- flight.c ---- */
bool gpu_flight_init(struct gpu_flight *flight);
void gpu_flight_finish(struct gpu_flight *flight);
/* An operation, behind the publishing of its record. */
struct gpu_envelope;
void gpu_flight_note(struct gpu_flight *flight, const struct gpu_op *op,
                     const struct gpu_envelope *envelope, const struct wire_record *record);
/* It was lost with the device. */
void gpu_flight_note_fate(struct gpu_flight *flight, const struct gpu_op *op,
                          enum gpu_flight_fate fate);
/* A block is going, whose label and site would go with it. */
void gpu_flight_note_gone(struct gpu_flight *flight, const struct gpu_block *block);

/* ---- clock.c ---- */
/* The stream's operation at_seq waits for the point: so does all behind it, and for what that was
 * behind. */
void gpu_clock_wait(struct gpu_stream *stream, uint64_t at_seq, struct gpu_point point);
/* Is the operation `through` behind the point? False also where that is forgotten. */
bool gpu_clock_covers(const struct gpu_device *device, struct gpu_point through,
                      struct gpu_point point);

/* ---- index.c ---- */
/* GPU_INDEX_NONE: it has none. */
uint32_t gpu_index_find(const struct gpu_index *index, const void *key);
/* Where its number stands; one that is new has GPU_INDEX_NONE, to be set. NULL: no memory. */
uint32_t *gpu_index_make(struct gpu_index *index, const void *key);
void gpu_index_finish(struct gpu_index *index);

/* ---- labels.c ---- */
/* Of a label that is interned or static, from 1. 0: no memory, or the device is lost. */
uint32_t gpu_label_number(struct gpu_device *device, const char *label);

/* ---- envelope.c ---- */
#define GPU_POLL_EVERY_SUBMITS 64u /* completed ops are given back in batches */
struct gpu_envelope {
    struct gpu_stream *stream;
    const char *label;
    struct gpu_site site;
    struct gpu_capture *capture; /* borrowed: it becomes a node there; NULL: it is done */
    uint32_t use_count;
    bool is_repeat;       /* see hazards.h */
    bool is_done_already; /* by others, on the stream: no room or haste refuses it */
    struct gpu_use *uses; /* `room`, or somebody else's */
    struct gpu_use room[GPU_USES_MAX];
    struct gpu_waits waits;
    struct gpu_report *report; /* borrowed: of a kernel that has one */
    int64_t asked_ns;          /* of traced devices: when it was begun */
    struct gpu_form *form;     /* borrowed: of what it launches; NULL: no kernel */
    struct gpu_graph *graph;   /* borrowed: which it launches; NULL: none */
    uint64_t interludes;       /* the device's, before what it uses was checked */
};
/* Checks stream and device; makes room for one more op in flight (may block). */
struct gpu_submit;
gpulua_status gpu_envelope_begin(struct gpu_envelope *envelope, const struct gpu_submit *submit,
                                 const char *name, struct gpu_error *error);
/* A ref that `what` needs (work.c). gpu_ref_check's codes, and those of external memory. */
gpulua_status gpu_work_use(struct gpu_envelope *envelope, const struct gpu_ref *ref, uint8_t access,
                           const char *what, struct gpu_error *error);
/* Finds the waits; the record's header (zeroed but for opcode and waits) in scratch; its payload
 * goes to gpu_wire_record_payload. Refused behind an interlude: callers ask gpu_share_wait. */
gpulua_status gpu_envelope_record(struct gpu_envelope *envelope, enum wire_opcode opcode,
                                  struct wire_record **record, struct gpu_error *error);
/* ---- recorder.c ---- */
/* StreamMisuse: a recorder on another stream holds what the envelope uses. */
gpulua_status gpu_recorder_check(const struct gpu_envelope *envelope, struct gpu_error *error);
/* Those that the seat holds count as abandoned: others may be waiting for them. */
void gpu_recorders_leave(struct gpu_device *device, const struct gpu_seat *seat);
/* The device is up again: what was held in its former life holds nothing. */
void gpu_recorders_lose(struct gpu_device *device);

/* As the observer sees it; `shadow`: where its own for the block lies. */
struct gpu_seen_use gpu_envelope_see(const struct gpu_use *use, void **shadow);
gpulua_status gpu_envelope_submit(struct gpu_envelope *envelope, struct wire_record *record,
                                  uint32_t payload_bytes, struct gpu_op **op,
                                  struct gpu_error *error);

/* ---- block.c ---- */
/* Is all over that has used any of it? */
bool gpu_block_uses_over(struct gpu_block *block);
void gpu_device_reap_some(struct gpu_device *device, uint32_t count_max);
/* The block of an import; its memory is not set up. NULL: no memory. */
struct gpu_block *gpu_block_create_foreign(struct gpu_device *device, uint64_t address,
                                           uint64_t byte_count, const char *label);
/* Staging memory that is kept for good: it counts as staging no more. Else nothing. */
void gpu_block_keep_staging(struct gpu_block *block);
/* Was work that is pending to write it? */
bool gpu_block_note_late_writer(struct gpu_block *block);
/* An export of it is over. */
void gpu_block_export_end(struct gpu_block *block);
/* A block without memory of its own (a module's variable or its hazards). */
struct gpu_block *gpu_block_create_external(struct gpu_device *device, uint64_t address,
                                            uint64_t byte_count, const char *label);
void gpu_blocks_finish(struct gpu_device *device); /* the spare ones */

/* ---- exchange.c ---- */
/* What the executor knows of a slab; with `slab` 0, of the one that has any of these bytes of our
 * process: facts->slab is 0 if there is none. */
gpulua_status gpu_slab_find(struct gpu_device *device, uint32_t slab, uint64_t address,
                            uint64_t byte_count, struct wire_slab_facts *facts,
                            struct gpu_error *error);
bool gpu_exports_are_returned(const struct gpu_device *device);
void gpu_exports_collect(struct gpu_device *device); /* those that have come back */
bool gpu_exports_have_device_memory(const struct gpu_device *device);
bool gpu_exports_note_late_writers(struct gpu_device *device); /* any: true */
/* At the close of the device: from here on they are nobody's but their users'. */
void gpu_exports_leave(struct gpu_device *device);
/* Nothing of the device needs it any more; exports may. */
void gpu_device_end_link(struct gpu_device *device, struct wire_link *link);

/* ---- module.c ---- */
/* The device ends: it will not load them again. Their handles may stay. */
void gpu_modules_close(struct gpu_device *device);

/* ---- recipe.c ----
 * What a module was made of, and how its launches know a kernel. Both may outlive the device's
 * code: the flight ring shows work that is over. */
struct gpu_recipe {
    uint32_t refs;
    uint8_t kind;    /* enum gpu_module_kind */
    uint64_t number; /* of the device's modules, from 1 */
    char *name;      /* owned */
    char *options;   /* owned; NULL: none */
    char *text;      /* owned, with a NUL behind it: source; NULL: code, or a library */
    uint64_t text_bytes;
};
struct gpu_form {
    uint32_t refs;
    uint64_t number;           /* of the device's kernels, from 1 */
    struct gpu_recipe *recipe; /* retained */
    char *name;                /* owned */
    char *by_hand;             /* owned: the signature as a script gave it; NULL: the compiler's */
    struct gpu_signature *signature; /* owned; NULL: not known yet */
    uint32_t traced_number;          /* of it in the device's trace; 0: none yet */
};
struct gpu_recipe *gpu_recipe_create(const struct gpu_module_info *info, uint64_t number);
void gpu_recipe_release(struct gpu_recipe *recipe); /* NULL: nothing */
struct gpu_form *gpu_form_create(struct gpu_recipe *recipe, uint64_t number, const char *name,
                                 const char *by_hand);
void gpu_form_release(struct gpu_form *form); /* NULL: nothing */

struct gpu_module {
    uint32_t refs;
    struct gpu_device *device; /* retained */
    struct gpu_recipe *recipe; /* retained */
    uint32_t id;
    uint64_t number; /* never reused */
    bool has_id, is_loaded, is_deferred;
    bool is_missing;  /* in this life of the device: it could not be loaded again */
    uint8_t access;   /* of a launch, to its variables: read, unless kernels may write some */
    const char *name; /* the recipe's */
    /* Retained: stands for all its variables: every launch uses it, if there are any; and nodes, so
     * that it lives as long as they run. */
    struct gpu_block *hazards;
    uint64_t launched; /* the number of its newest launch; 0: none yet */
    /* Retained: the text or code in the arena. Until the answer, or, where the device may come up
     * again, for as long as the module lives. */
    struct gpu_block *image;
    uint8_t kind; /* enum gpu_module_kind */
    uint64_t text_bytes;
    const char *options;             /* the recipe's */
    struct gpu_module *next, **link; /* of the device */
    struct gpu_described_kernel *kernels;
    uint32_t kernel_count;
    struct gpu_described_global *globals;
    uint32_t global_count;
    struct gpu_described_value *values;
    uint32_t value_count;
    struct gpu_module_entry { /* taken for kernels of this module; until it is unloaded */
        uint32_t id;
        char *name;                     /* owned */
        bool is_known;                  /* the executor has it, and these are its facts */
        struct wire_kernel_facts facts; /* for whoever wants it next */
    } * entries;                        /* owned */
    uint32_t entry_count;
    struct gpu_told told;
    uint32_t told_entry_count;
    struct gpu_deferred release;
};

struct gpu_kernel {
    uint32_t refs;
    struct gpu_module *module; /* retained */
    uint32_t id;
    struct gpu_form *form;                 /* retained */
    const char *name;                      /* the form's, as the signature is */
    const struct gpu_signature *signature; /* NULL: not known yet */
    const char *label;                     /* the name, interned in the device */
    const char *source;                    /* the module's, interned; of kernels that report */
    struct wire_kernel_facts facts;
};

/* ---- block.c ---- */
/* What the script has just written there is what is restored. `bytes` NULL: `element` again and
 * again. */
void gpu_block_note_write(struct gpu_block *block, uint64_t byte_offset, const void *bytes,
                          uint64_t byte_count, const void *element, uint32_t element_bytes);

/* ---- stream.c ---- */
void gpu_streams_finish(struct gpu_device *device);
/* One of the runtime's own, which counts against no limit of the script's. */
gpulua_status gpu_stream_create_own(struct gpu_device *device, const char *label,
                                    struct gpu_stream **stream, struct gpu_error *error);

#endif
