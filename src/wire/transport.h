/* What the transports share behind wire/link.h. A transport's link begins with a link_core. */
#ifndef GPU_WIRE_TRANSPORT_H
#define GPU_WIRE_TRANSPORT_H

#include "wire/link.h"
#include "wire/memory.h"
#include "wire/ring.h"

struct link_core {
    struct wire_link link; /* first: what the runtime sees */
    struct wire_ring replies;
    int event_fd;                                 /* owned */
    uint64_t wanted_bits[WIRE_STREAMS_MAX / 64u]; /* streams with a want not yet reported */
    uint32_t state_seen;                          /* the page's state as last reported by arm */
    bool armed;
    bool lost_told;        /* on_reply has had its WIRE_REPLY_LOST */
    bool close_answered;   /* and the answer to its CLOSE */
    uint64_t close_seq;    /* request number of a CLOSE that was published; 0: none */
    uint64_t claims_count; /* writes to event_fd that were announced and are not read yet */
    uint32_t (*drain)(struct wire_link *link);
    /* After ops->close: frees everything but the core. NULL: there is nothing else. */
    void (*release)(struct wire_link *link);
    int (*pid)(const struct wire_link *link); /* NULL: there is no process */
};

struct wire_link *gpu_wire_inline_open(const struct wire_link_info *info, struct wire_error *error);
struct wire_link *gpu_wire_thread_open(const struct wire_link_info *info, struct wire_error *error);
struct wire_link *gpu_wire_process_open(const struct wire_link_info *info,
                                        struct wire_error *error);

/* What an executor writes to wake us; -1: `error` is filled. */
int gpu_wire_event_open(struct wire_error *error);
/* What the info says, and the reply ring: the page must be there. */
void gpu_wire_core_init(struct link_core *core, const struct wire_link_info *info);
void gpu_wire_core_finish(struct link_core *core);

/* All of that, in memory of this process, and an executor on it, which the caller owns. NULL: gone
 * again, but for `core` itself, and `error` is filled. */
struct wire_executor *gpu_wire_core_open_here(struct link_core *core,
                                              const struct wire_link_info *info,
                                              enum wire_executor_place place,
                                              struct wire_error *error);

/* Hands what is in the reply ring to on_reply, which may publish and so come back here. `*corrupt`:
 * the ring's content makes no sense. */
uint32_t gpu_wire_core_drain(struct link_core *core, bool *corrupt);

/* Sets and clears the flag that makes the executor write the eventfd, and keeps count of what must
 * be read from it. */
void gpu_wire_core_sleep_begin(struct link_core *core);
bool gpu_wire_core_sleep_end(struct link_core *core); /* true: the executor has woken us */

/* Is there something that a sleeper would have been woken for? Reports a fulfilled want and a state
 * once. */
bool gpu_wire_core_look(struct link_core *core);

#endif
