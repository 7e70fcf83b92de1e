/* A link: one device's command ring, replies, completion page and arena, with an executor at its
 * other end.
 *
 * The script side knows nothing else of the executor. Three transports: `inline` calls the executor
 * on the script's thread, `thread` runs it on another one, `process` in a child of ours. All
 * functions belong to the owner thread. */
#ifndef GPU_WIRE_LINK_H
#define GPU_WIRE_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "gpulua.h"
#include "wire/page.h"
#include "wire/record.h"

#define WIRE_COMMAND_RING_BYTES (1u << 20)
#define WIRE_REPLY_RING_BYTES (1u << 18)
#define WIRE_ARENA_BYTES (UINT64_C(1) << 38)       /* reserved, sparse: 256 GiB of address space */
#define WIRE_ARENA_CHUNK_BYTES (UINT64_C(1) << 24) /* committed and pinned in multiples of this */

enum wire_transport {
    WIRE_TRANSPORT_INLINE = 1,
    WIRE_TRANSPORT_PROCESS = 2,
    WIRE_TRANSPORT_THREAD = 3
};

/* An error below the runtime: plain text, no allocation. */
struct wire_error {
    gpulua_status status;
    int32_t driver_code;
    char message[512];
};

struct wire_restart {
    bool has_begun; /* a process was started, whatever has become of it */
    bool is_spare;  /* it is the one of gpu_wire_link_keep_spare, which has its first record */
};

struct wire_link;

struct wire_link_ops {
    /* Hands one record to the executor. While the ring is full it waits, at most a bounded while,
     * draining replies through on_reply meanwhile; never yields. GPULUA_TIMEOUT: there was no room,
     * and nothing is published; GPULUA_DEVICE_LOST once the executor is gone. */
    gpulua_status (*publish)(struct wire_link *link, const struct wire_record *record);
    /* Blocks until the executor has taken all that was published, draining replies meanwhile; at
     * most a bounded while. False: not yet. */
    bool (*settle)(struct wire_link *link);
    /* Work that the executor cannot do by itself on this transport (inline: let it look at wanted
     * events); notices a dead child at a bounded cost. Never blocks. Cheap enough to call in a spin
     * loop. */
    void (*poll)(struct wire_link *link);
    /* Declares that the script side is about to sleep on poll_fd: from here until disarm, a wanted
     * word, a reply or a change of state makes poll_fd readable. Returns true if something is there
     * already (then do not sleep). */
    bool (*arm)(struct wire_link *link);
    void (*disarm)(struct wire_link *link);
    /* Inline, not armed: the way of a launch is gone once (gpu_executor_warm), by the script's own
     * thread. False: it cannot be. NULL: an executor that is awake by itself does so. */
    bool (*warm)(struct wire_link *link);
    /* Ends the executor: CLOSE has been answered or timed out. Kills a child that is still there.
     */
    void (*close)(struct wire_link *link);
    /* Only where link->can_restart: see gpu_wire_link_restart and gpu_wire_link_is_settled. */
    gpulua_status (*restart)(struct wire_link *link, const uint64_t done[WIRE_STREAMS_MAX],
                             struct wire_restart *restart, struct wire_error *error);
    gpulua_status (*keep_spare)(struct wire_link *link, const struct wire_record *first,
                                struct wire_error *error);
    bool (*tell_spare)(struct wire_link *link, const struct wire_record *record,
                       uint64_t *position);
    bool (*has_taken)(struct wire_link *link, uint64_t position);
    void (*abandon)(struct wire_link *link);
    bool (*is_settled)(struct wire_link *link);
};

struct wire_link {
    const struct wire_link_ops *ops;
    enum wire_transport transport;
    struct wire_page *page; /* mapped, shared with the executor */
    uint8_t *arena;         /* mapped, WIRE_ARENA_BYTES reserved */
    uint64_t arena_bytes;   /* reserved */
    int poll_fd;            /* readable when armed and something happened; owned */
    bool can_restart;       /* an executor that is lost can be replaced */
    bool never_waits;       /* set by the caller: publish says TIMEOUT at once */
    bool executor_slept;    /* a record had to wake it; whoever waits next allows for that, and
                               clears it */
    void (*on_reply)(
        void *user,
        const struct wire_reply *reply); /* called from drain and publish, owner thread */
    void *user;
};

/* What is started for the process transport. */
struct wire_program {
    const char *path; /* absolute: of gpulua-exec */
    /* Confined: its environment is what it needs, and the folder for compiled code this one; NULL:
     * the default. */
    bool is_confined;
    const char *cache_path;
};

struct wire_link_info {
    enum wire_transport transport;
    struct wire_program program; /* process */
    /* Borrowed while the link lives; not 0: the start of a child is waited for no longer. */
    const _Atomic int *interrupt;
    void (*on_reply)(void *user, const struct wire_reply *reply);
    void *user;
};

/* Opens a link with an executor that takes records; the device itself is opened by an OPEN record.
 * Blocks for the start of the child (a few milliseconds; the device's own start is not in it). NULL
 * on failure, `error` filled. */
struct wire_link *gpu_wire_link_open(const struct wire_link_info *info, struct wire_error *error);
void gpu_wire_link_close(struct wire_link *link); /* NULL is fine */

/* A new executor in place of a lost one, which is killed: a page of its own, whose words begin at
 * `done`, empty rings, the same arena with what is in it, the same poll_fd. The device is opened
 * anew by an OPEN record. Blocks for the start of the child (a few milliseconds). Where the spare
 * could not take over and another one has, `error` says why all the same. Unsupported:
 * !link->can_restart. On failure the link stays dead, and can be restarted once more. */
gpulua_status gpu_wire_link_restart(struct wire_link *link, const uint64_t done[WIRE_STREAMS_MAX],
                                    struct wire_restart *restart, struct wire_error *error);
/* Starts an executor that takes `first` at once, and takes over with the next restart: what it
 * answers is heard then. Blocks for the start of the child. */
gpulua_status gpu_wire_link_keep_spare(struct wire_link *link, const struct wire_record *first,
                                       struct wire_error *error);
/* Hands the spare a record with WIRE_FLAG_AHEAD. Never waits. False: there is no spare, or no room.
 * `*position`: for gpu_wire_link_has_taken, which says whether the spare, or the executor that it
 * has become, has taken the record. */
bool gpu_wire_link_tell_spare(struct wire_link *link, const struct wire_record *record,
                              uint64_t *position);
bool gpu_wire_link_has_taken(struct wire_link *link, uint64_t position);
/* Of a link that can be restarted, whose executor is of no use any more: it is killed, without
 * waiting for its end. Another time: nothing. */
void gpu_wire_link_abandon(struct wire_link *link);

/* Has the executor before that ended, and with it all that it had of the device, and its hold on
 * the arena? Never blocks; poll_fd is readable when it ends. */
bool gpu_wire_link_is_settled(struct wire_link *link);

/* Hands every reply that is there to on_reply. Returns how many. */
uint32_t gpu_wire_link_drain(struct wire_link *link);

/* Asks for (stream, seq) to become visible even while later work runs: see wanted[]. 0 withdraws.
 */
void gpu_wire_link_want(struct wire_link *link, uint32_t stream, uint64_t seq);

/* The process id of the child, or 0. For tests and messages. */
int gpu_wire_link_pid(const struct wire_link *link);

/* ---- the other end: what a transport needs of an executor; implemented in executor/ ---- */

struct wire_executor;
struct executor_assertions; /* executor/assertions.h */
struct executor_broker;     /* executor/broker.h */
enum wire_executor_place {
    WIRE_EXECUTOR_INLINE, /* on the script's thread: no loop of its own */
    WIRE_EXECUTOR_THREAD, /* a loop, in the script's process */
    WIRE_EXECUTOR_APART   /* and in another one, which sees nothing of it but page and arena */
};
struct wire_executor_info {
    struct wire_page *page;
    uint8_t *arena;
    uint64_t arena_bytes;
    int event_fd; /* written when page->script_sleeps and something happened; borrowed */
    enum wire_executor_place place;
    const struct executor_broker *broker;   /* borrowed: whom a confined one asks to compile; NULL:
                                               nobody */
    struct executor_assertions *assertions; /* borrowed: what the driver has printed of failed
                                     assertions, for the text of a loss; NULL: nobody listens */
};
struct wire_executor *gpu_executor_create(const struct wire_executor_info *info,
                                          struct wire_error *error);
void gpu_executor_take(struct wire_executor *executor, const struct wire_record *record);
void gpu_executor_poll(
    struct wire_executor *executor); /* looks at wanted events, writes words, wakes the script */
void gpu_executor_arm(struct wire_executor *executor); /* inline: the script is about to sleep */
/* Work is expected in a moment, from this thread (executor.c). False: nothing can be done. */
bool gpu_executor_warm(struct wire_executor *executor);
/* Any thread: until it is let go as often, executors may leave the driver's state of the thread as
 * they need it, where they else put back each time what was (the current context). */
void gpu_executor_hold(bool is_held);
bool gpu_executor_is_closed(const struct wire_executor *executor); /* CLOSE was taken */
/* Its loop: takes records until it is closed or stopped (from any thread). False: the link broke.
 */
bool gpu_executor_run(struct wire_executor *executor);
void gpu_executor_stop(struct wire_executor *executor);
void gpu_executor_destroy(struct wire_executor *executor);

#endif
