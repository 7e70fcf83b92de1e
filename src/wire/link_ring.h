/* A link to an executor that runs by itself, at the other end of a ring: what the transports thread
 * and process share. They differ in who is there, and in how that ends.
 *
 * Once the other end has died nothing is published any more; what it had still said is delivered,
 * and then one WIRE_REPLY_LOST that says how it died. */
#ifndef GPU_WIRE_LINK_RING_H
#define GPU_WIRE_LINK_RING_H

#include "wire/transport.h"

struct link_ring;

/* Who is at the other end. */
struct link_far {
    const char *name; /* "the device's process" */
    /* Has it died by itself? Never blocks. */
    bool (*is_dead)(struct link_ring *self);
    /* It has, and this says how in self->death; or it must, for what self->death says. */
    void (*bury)(struct link_ring *self, bool must);
    /* It ends, for good; CLOSE has been answered (self->core.close_answered) or not. */
    void (*end)(struct link_ring *self);
    /* Of a link that can be restarted. restart: somebody else at a page of its own
     * (core.link.page), or nothing has changed but that the one before is dead. */
    gpulua_status (*restart)(struct link_ring *self, const uint64_t done[WIRE_STREAMS_MAX],
                             struct wire_restart *restart, struct wire_error *error);
    gpulua_status (*keep_spare)(struct link_ring *self, const struct wire_record *first,
                                struct wire_error *error);
    /* What the spare takes, and `*page` its page; NULL: there is none. */
    struct wire_ring *(*spare_commands)(struct link_ring *self, struct wire_page **page);
    bool (*has_taken)(struct link_ring *self, uint64_t position);
    bool (*is_settled)(struct link_ring *self);
};

struct link_ring {
    struct link_core core; /* first */
    struct wire_ring commands;
    const struct link_far *far;
    uint32_t poll_count;
    uint32_t publish_count;
    bool is_dead; /* noticed */
    bool is_ended;
    bool has_settled; /* who was there before has ended, and no sleeper was told yet */
    char death[200];  /* how, in words */
};

/* The core's link has its page and its arena; `self` is zeroed but for these and what is the
 * transport's own. */
void gpu_wire_link_ring_init(struct link_ring *self, const struct link_far *far);

#endif
