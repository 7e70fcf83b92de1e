/* Publishing into a ring, and hearing of its other end (see link_ring.h). */
#include "wire/link_ring.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "wire/sync.h"

#define SPIN_NS 50000u        /* a full ring: this long before the first nap */
#define SETTLE_NS 20000000u   /* between two looks of the caller at what else there is */
#define NAP_MS 1              /* the executor needs many times this to empty a full ring */
#define POLLS_PER_LOOK 256u   /* one system call in so many calls of poll */
#define RECORDS_PER_LOOK 1024 /* publishing without end must notice a dead child, too */

static void die(struct link_ring *self, const char *why) {
    if (self->is_dead) {
        return;
    }
    struct wire_page *page = self->core.link.page;
    self->is_dead = true;
    if (why != NULL) {
        snprintf(self->death, sizeof self->death, "%s", why);
    }
    self->far->bury(self, why != NULL);
    if (atomic_load_explicit(&page->state, memory_order_acquire) != WIRE_STATE_CLOSED) {
        atomic_store_explicit(&page->state, WIRE_STATE_LOST, memory_order_release);
    }
}

/* Also of who was there before: its end would make poll_fd readable until it is known. */
static void look_for_death(struct link_ring *self) {
    if (self->core.link.can_restart) {
        (void)self->far->is_settled(self);
    }
    if (!self->is_dead && self->far->is_dead(self)) {
        die(self, NULL);
    }
}

/* Delivered behind all that the child itself had said. */
static uint32_t tell_death(struct link_ring *self) {
    struct {
        struct wire_reply reply;
        char text[256];
    } lost;
    memset(&lost, 0, sizeof lost);
    self->core.lost_told = true;
    snprintf(lost.text, sizeof lost.text, "%s is gone: %s", self->far->name, self->death);
    lost.reply.length_bytes = sizeof lost;
    lost.reply.kind = WIRE_REPLY_LOST;
    lost.reply.status = GPULUA_DEVICE_LOST;
    lost.reply.text_bytes = (uint32_t)strlen(lost.text);
    self->core.link.on_reply(self->core.link.user, &lost.reply);
    return 1;
}

static uint32_t ring_drain(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    bool is_dead = self->is_dead; /* before the ring is read: then the ring holds all there is */
    bool corrupt = false;
    uint32_t count = gpu_wire_core_drain(&self->core, &corrupt);
    if (corrupt && !self->is_dead) {
        die(self, "it wrote over the reply ring, and was killed");
        is_dead = true;
    }
    /* After the answer to CLOSE it ended in good order: nobody needs to hear of it. */
    if (is_dead && !self->core.lost_told && !self->core.close_answered &&
        (corrupt || gpu_wire_ring_empty(&self->core.replies))) {
        count += tell_death(self);
    }
    return count;
}

/* The ring is full. Replies are drained meanwhile: the executor may be waiting for room there. One
 * that hangs never makes any, which is for the caller to find out. */
static gpulua_status publish_slowly(struct link_ring *self, const struct wire_record *record) {
    struct wire_link *link = &self->core.link;
    uint64_t start_ns = gpu_wire_now_ns();
    for (uint32_t round = 0;; round++) {
        ring_drain(link);
        if (self->is_dead) {
            return GPULUA_DEVICE_LOST;
        }
        if (gpu_wire_ring_push(&self->commands, record, record->length_bytes)) {
            return GPULUA_OK;
        }
        uint64_t tail = atomic_load_explicit(self->commands.tail, memory_order_relaxed);
        if (self->commands.position - tail > self->commands.capacity_bytes) {
            die(self, "it wrote over the counters of the command ring, and was killed");
            continue;
        }
        uint64_t waited_ns = gpu_wire_now_ns() - start_ns;
        if (waited_ns >= SETTLE_NS || link->never_waits) {
            return GPULUA_TIMEOUT;
        }
        if (waited_ns < SPIN_NS) {
            gpu_wire_relax();
            if (round % 16u == 15u) {
                sched_yield();
            }
            continue;
        }
        /* Wants are left alone: they are for the caller's own sleep. */
        gpu_wire_flag_wake(&link->page->executor_sleeps);
        bool armed = self->core.armed;
        gpu_wire_core_sleep_begin(&self->core);
        if (gpu_wire_ring_empty(&self->core.replies)) {
            struct pollfd entry = {.fd = link->poll_fd, .events = POLLIN};
            poll(&entry, 1, NAP_MS);
        }
        if (!armed) {
            gpu_wire_core_sleep_end(&self->core);
        }
        look_for_death(self);
    }
}

static gpulua_status ring_publish(struct wire_link *link, const struct wire_record *record) {
    struct link_ring *self = (struct link_ring *)link;
    if (self->publish_count++ % RECORDS_PER_LOOK == RECORDS_PER_LOOK - 1) {
        look_for_death(self);
    }
    if (self->is_dead) {
        ring_drain(link); /* what it had said, and what it died of, come first */
        return GPULUA_DEVICE_LOST;
    }
    if (record->opcode == WIRE_OP_CLOSE) {
        self->core.close_seq = record->seq;
    }
    if (!gpu_wire_ring_push(&self->commands, record, record->length_bytes)) {
        gpulua_status status = publish_slowly(self, record);
        if (status != GPULUA_OK) {
            return status;
        }
    }
    if (gpu_wire_flag_wake(&link->page->executor_sleeps)) {
        link->executor_slept = true;
    }
    return GPULUA_OK;
}

static bool ring_settle(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    uint64_t end_ns = gpu_wire_now_ns() + SETTLE_NS;
    for (uint32_t round = 1; !self->is_dead; round++) {
        ring_drain(link);
        if (atomic_load_explicit(self->commands.tail, memory_order_acquire) ==
            self->commands.position) {
            ring_drain(link); /* what it said before it was done */
            return true;
        }
        gpu_wire_relax();
        if (round % 16u == 0) {
            sched_yield();
            look_for_death(self);
            if (gpu_wire_now_ns() >= end_ns) {
                return false;
            }
        }
    }
    return true;
}

static void ring_poll(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    if (self->poll_count++ % POLLS_PER_LOOK == 0) {
        look_for_death(self);
    }
}

static bool ring_arm(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    gpu_wire_core_sleep_begin(&self->core);
    look_for_death(self);
    bool found = gpu_wire_core_look(&self->core) || self->has_settled;
    self->has_settled = false;
    if (self->is_dead && !self->core.lost_told && !self->core.close_answered) {
        found = true;
    }
    if (found) {
        gpu_wire_core_sleep_end(&self->core);
    }
    return found;
}

static void ring_disarm(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    if (self->core.armed) {
        if (!gpu_wire_core_sleep_end(&self->core)) {
            look_for_death(self); /* who woke us, if not the executor? */
        }
        gpu_wire_core_look(&self->core);
    }
}

static void ring_close(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    if (self->is_ended) {
        return;
    }
    self->is_ended = true;
    self->is_dead = true;
    self->core.lost_told = true;
    self->far->end(self);
    if (atomic_load_explicit(&link->page->state, memory_order_acquire) != WIRE_STATE_CLOSED) {
        atomic_store_explicit(&link->page->state, WIRE_STATE_LOST, memory_order_release);
    }
}

static void ring_begin(struct link_ring *self) {
    struct wire_page *page = self->core.link.page;
    gpu_wire_ring_command(&self->commands, page);
    /* A spare was told something already. */
    self->commands.position = atomic_load_explicit(&page->command_head, memory_order_relaxed);
    gpu_wire_ring_reply(&self->core.replies, page);
}

static gpulua_status ring_restart(struct wire_link *link, const uint64_t done[WIRE_STREAMS_MAX],
                                  struct wire_restart *restart, struct wire_error *error) {
    struct link_ring *self = (struct link_ring *)link;
    bool was_armed = self->core.armed;
    self->is_dead = self->core.lost_told = true; /* nobody is there until somebody is */
    gpulua_status status = self->far->restart(self, done, restart, error);
    if (status != GPULUA_OK) {
        return status;
    }
    ring_begin(self);
    self->is_dead = self->core.lost_told = self->core.close_answered = self->core.armed = false;
    self->core.close_seq = self->core.claims_count = 0;
    self->core.state_seen = WIRE_STATE_READY;
    memset(self->core.wanted_bits, 0, sizeof self->core.wanted_bits);
    self->death[0] = '\0';
    if (was_armed) { /* somebody sleeps on poll_fd */
        gpu_wire_core_sleep_begin(&self->core);
    }
    return GPULUA_OK;
}

static gpulua_status ring_keep_spare(struct wire_link *link, const struct wire_record *first,
                                     struct wire_error *error) {
    struct link_ring *self = (struct link_ring *)link;
    return self->far->keep_spare(self, first, error);
}

static bool ring_tell_spare(struct wire_link *link, const struct wire_record *record,
                            uint64_t *position) {
    struct link_ring *self = (struct link_ring *)link;
    struct wire_page *page = NULL;
    struct wire_ring *commands = self->far->spare_commands(self, &page);
    if (commands == NULL || !gpu_wire_ring_push(commands, record, record->length_bytes)) {
        return false;
    }
    *position = commands->position;
    gpu_wire_flag_wake(&page->executor_sleeps);
    return true;
}

static bool ring_has_taken(struct wire_link *link, uint64_t position) {
    struct link_ring *self = (struct link_ring *)link;
    return self->far->has_taken(self, position);
}

/* Nothing more is heard of it. */
static void ring_abandon(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    if (!self->is_dead) {
        self->core.lost_told = true;
        die(self, "it was lost");
    }
}

static bool ring_is_settled(struct wire_link *link) {
    struct link_ring *self = (struct link_ring *)link;
    return self->far->is_settled(self);
}

static const struct wire_link_ops ring_ops = {
    .publish = ring_publish,
    .settle = ring_settle,
    .poll = ring_poll,
    .arm = ring_arm,
    .disarm = ring_disarm,
    .close = ring_close,
    .restart = ring_restart,
    .keep_spare = ring_keep_spare,
    .tell_spare = ring_tell_spare,
    .has_taken = ring_has_taken,
    .abandon = ring_abandon,
    .is_settled = ring_is_settled,
};

void gpu_wire_link_ring_init(struct link_ring *self, const struct link_far *far) {
    self->far = far;
    self->core.drain = ring_drain;
    self->core.link.ops = &ring_ops;
    ring_begin(self);
}
