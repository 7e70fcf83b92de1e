/* The inline transport: the executor is called on the script's thread. Page, rings and arena are
 * private memory; the command ring stays empty. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire/transport.h"

struct link_inline {
    struct link_core core;
    struct wire_executor *executor; /* owned; NULL once closed */
};

static gpulua_status inline_publish(struct wire_link *link, const struct wire_record *record) {
    struct link_inline *self = (struct link_inline *)link;
    if (self->executor == NULL) {
        return GPULUA_DEVICE_LOST;
    }
    gpu_executor_take(self->executor, record);
    return GPULUA_OK;
}

static bool inline_settle(struct wire_link *link) {
    (void)link; /* taken within publish */
    return true;
}

static void inline_poll(struct wire_link *link) {
    struct link_inline *self = (struct link_inline *)link;
    if (self->executor != NULL) {
        gpu_executor_poll(self->executor);
    }
}

/* Replies that found no room in the ring wait in the executor, which moves them over when polled.
 */
static uint32_t inline_drain(struct wire_link *link) {
    struct link_inline *self = (struct link_inline *)link;
    uint32_t count = 0;
    uint32_t round_count;
    do {
        bool corrupt = false;
        inline_poll(link);
        round_count = gpu_wire_core_drain(&self->core, &corrupt);
        count += round_count;
    } while (round_count != 0);
    return count;
}

static bool inline_arm(struct wire_link *link) {
    struct link_inline *self = (struct link_inline *)link;
    gpu_wire_core_sleep_begin(&self->core);
    if (self->executor != NULL) {
        gpu_executor_poll(self->executor);
    }
    bool found = gpu_wire_core_look(&self->core);
    if (found) {
        gpu_wire_core_sleep_end(&self->core);
    } else if (self->executor != NULL) {
        gpu_executor_arm(self->executor);
    }
    return found;
}

static void inline_disarm(struct wire_link *link) {
    struct link_inline *self = (struct link_inline *)link;
    if (self->core.armed) {
        gpu_wire_core_sleep_end(&self->core);
        inline_poll(link); /* and no watcher looks at the device any more */
        gpu_wire_core_look(&self->core);
    }
}

static bool inline_warm(struct wire_link *link) {
    struct link_inline *self = (struct link_inline *)link;
    return self->executor != NULL && gpu_executor_warm(self->executor);
}

/* Without a CLOSE record before, this waits for the work that is there. A kernel that never ends
 * cannot be stopped in our own process: then this never returns. The process transport is for
 * those. */
static void inline_close(struct wire_link *link) {
    struct link_inline *self = (struct link_inline *)link;
    gpu_executor_destroy(self->executor);
    self->executor = NULL;
    atomic_store_explicit(&link->page->state, WIRE_STATE_CLOSED, memory_order_release);
}

static const struct wire_link_ops inline_ops = {
    .publish = inline_publish,
    .settle = inline_settle,
    .poll = inline_poll,
    .arm = inline_arm,
    .disarm = inline_disarm,
    .warm = inline_warm,
    .close = inline_close,
};

struct wire_link *gpu_wire_inline_open(const struct wire_link_info *info,
                                       struct wire_error *error) {
    struct link_inline *self = calloc(1, sizeof *self);
    if (self == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        return NULL;
    }
    self->core.drain = inline_drain;
    self->core.link.ops = &inline_ops;
    self->executor = gpu_wire_core_open_here(&self->core, info, WIRE_EXECUTOR_INLINE, error);
    if (self->executor == NULL) {
        free(self);
        return NULL;
    }
    return &self->core.link;
}
