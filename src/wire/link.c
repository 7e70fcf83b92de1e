/* What all transports share: opening, draining replies, wants, and the protocol around sleeping.
 *
 * Sleeping. The script side sets script_sleeps and then looks; the executor moves a word and then
 * exchanges script_sleeps. Whoever takes the flag away from 1 writes the eventfd, once for each
 * sleep, so that what has to be read from it is known and a leftover never wakes the next sleep. */
#include "wire/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "wire/descriptor.h"
#include "wire/sync.h"
#include "wire/transport.h"

/* Copied on the stack; larger ones (logs, facts) by malloc, and without memory this much of them.
 */
#define REPLY_BYTES_SMALL 1024u

void gpu_wire_core_init(struct link_core *core, const struct wire_link_info *info) {
    core->link.transport = info->transport;
    core->link.on_reply = info->on_reply;
    core->link.user = info->user;
    gpu_wire_ring_reply(&core->replies, core->link.page);
}

int gpu_wire_event_open(struct wire_error *error) {
    int fd = gpu_wire_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fd < 0) {
        gpu_wire_fail(error, GPULUA_IO, errno, "eventfd: %s", strerror(errno));
    }
    return fd;
}

void gpu_wire_core_finish(struct link_core *core) {
    if (core->event_fd >= 0) {
        close(core->event_fd);
        core->event_fd = -1;
    }
    gpu_wire_arena_destroy(core->link.arena, core->link.arena_bytes);
    gpu_wire_page_destroy(core->link.page);
    core->link.arena = NULL;
    core->link.page = NULL;
}

struct wire_executor *gpu_wire_core_open_here(struct link_core *core,
                                              const struct wire_link_info *info,
                                              enum wire_executor_place place,
                                              struct wire_error *error) {
    struct wire_link *link = &core->link;
    struct wire_executor *executor = NULL;
    core->event_fd = -1;
    link->page = gpu_wire_page_create(NULL, error);
    if (link->page != NULL) {
        link->arena = gpu_wire_arena_create(NULL, WIRE_ARENA_BYTES, &link->arena_bytes, error);
    }
    if (link->arena != NULL && (core->event_fd = gpu_wire_event_open(error)) >= 0) {
        gpu_wire_core_init(core, info);
        const struct wire_executor_info executor_info = {.page = link->page,
                                                         .arena = link->arena,
                                                         .arena_bytes = link->arena_bytes,
                                                         .event_fd = core->event_fd,
                                                         .place = place};
        executor = gpu_executor_create(&executor_info, error);
    }
    if (executor == NULL) {
        gpu_wire_core_finish(core);
        return NULL;
    }
    link->poll_fd = core->event_fd;
    core->state_seen = atomic_load(&link->page->state);
    return executor;
}

static void deliver(struct link_core *core, const struct wire_reply *reply) {
    if (reply->kind == WIRE_REPLY_LOST) {
        if (core->lost_told) {
            return;
        }
        core->lost_told = true;
    } else if (reply->kind == WIRE_REPLY_RESULT && core->close_seq != 0 &&
               reply->seq == core->close_seq) {
        core->close_answered = true;
    }
    core->link.on_reply(core->link.user, reply);
}

/* Texts and bodies must lie inside the message. */
static bool is_sound(const struct wire_reply *reply, uint32_t length_bytes) {
    if (length_bytes < sizeof *reply) {
        return false;
    }
    uint64_t text_span =
        reply->text_bytes != 0 ? ((uint64_t)reply->text_bytes + 1u + 15u) & ~(uint64_t)15u : 0;
    return sizeof *reply + text_span + reply->body_bytes <= length_bytes;
}

/* The beginning of a larger one. No reply may stay in the ring: work whose failure is in it, or
 * behind it, would end well. */
static void cut(struct wire_reply *reply) {
    const uint32_t room = REPLY_BYTES_SMALL - (uint32_t)sizeof *reply - 1u;
    if (reply->kind == WIRE_REPLY_RESULT && reply->status == GPULUA_OK) {
        reply->status = GPULUA_OUT_OF_MEMORY;
        reply->text_bytes = (uint32_t)snprintf((char *)(reply + 1), room,
                                               "no host memory for an answer of the device");
    }
    reply->text_bytes = reply->text_bytes < room ? reply->text_bytes : room;
    reply->body_bytes = 0;
    reply->length_bytes = REPLY_BYTES_SMALL;
}

uint32_t gpu_wire_core_drain(struct link_core *core, bool *corrupt) {
    uint32_t count = 0;
    *corrupt = false;
    /* As many bytes as the ring holds: whoever says more meanwhile is heard the next time, and one
     * that never stops keeps nobody here. */
    uint64_t start = core->replies.position;
    while (core->replies.position - start < core->replies.capacity_bytes) {
        uint32_t length_bytes = 0;
        const void *message = gpu_wire_ring_peek(&core->replies, &length_bytes, corrupt);
        if (message == NULL) {
            return count;
        }
        /* Out of the ring before the call: on_reply may publish, publishing may drain. */
        _Alignas(16) uint8_t small[REPLY_BYTES_SMALL];
        void *large = length_bytes > sizeof small ? malloc(length_bytes) : NULL;
        bool is_cut = length_bytes > sizeof small && large == NULL;
        struct wire_reply *reply = large != NULL ? large : (void *)small;
        memcpy(reply, message, is_cut ? sizeof small : length_bytes);
        reply->length_bytes = length_bytes; /* what was looked at, whatever is there now */
        if (!is_sound(reply, length_bytes)) {
            free(large);
            *corrupt = true;
            return count;
        }
        if (is_cut) {
            cut(reply);
        }
        if (reply->text_bytes != 0) {
            ((char *)(reply + 1))[reply->text_bytes] = '\0'; /* whatever was there */
        }
        gpu_wire_ring_pop(&core->replies, length_bytes);
        deliver(core, reply);
        count++;
        free(large);
    }
    return count;
}

static void read_event(struct link_core *core) {
    uint64_t value = 0;
    if (read(core->event_fd, &value, sizeof value) == sizeof value) {
        core->claims_count -= value < core->claims_count ? value : core->claims_count;
    }
}

void gpu_wire_core_sleep_begin(struct link_core *core) {
    if (core->armed) {
        return;
    }
    if (core->claims_count != 0) {
        read_event(core);
    }
    core->armed = true;
    atomic_exchange_explicit(&core->link.page->script_sleeps, 1, memory_order_acq_rel);
}

bool gpu_wire_core_sleep_end(struct link_core *core) {
    if (!core->armed) {
        return false;
    }
    core->armed = false;
    bool claimed =
        atomic_exchange_explicit(&core->link.page->script_sleeps, 0, memory_order_acq_rel) == 0;
    core->claims_count += claimed;
    read_event(core); /* a claim's write may still be on its way: then the next arm reads it. One
                         that nobody has claimed would wake every sleep from now on */
    return claimed;
}

bool gpu_wire_core_look(struct link_core *core) {
    struct wire_page *page = core->link.page;
    bool found = !gpu_wire_ring_empty(&core->replies);
    uint32_t state = atomic_load_explicit(&page->state, memory_order_acquire);
    if (state != core->state_seen) {
        core->state_seen = state;
        found = true;
    }
    for (uint32_t word = 0; word < WIRE_STREAMS_MAX / 64u; word++) {
        for (uint64_t bits = core->wanted_bits[word]; bits != 0; bits &= bits - 1) {
            uint32_t stream = word * 64u + (uint32_t)__builtin_ctzll(bits);
            uint64_t seq = atomic_load_explicit(&page->wanted[stream], memory_order_relaxed);
            if (gpu_wire_page_done(page, stream) >= seq) {
                /* Withdrawn, so that the executor stops waking us for it. */
                atomic_store_explicit(&page->wanted[stream], 0, memory_order_relaxed);
                core->wanted_bits[word] &= ~(UINT64_C(1) << (stream % 64u));
                found = true;
            }
        }
    }
    return found;
}

struct wire_link *gpu_wire_link_open(const struct wire_link_info *info, struct wire_error *error) {
    struct wire_error unused;
    if (error == NULL) {
        error = &unused;
    }
    switch (info->transport) {
    case WIRE_TRANSPORT_INLINE:
        return gpu_wire_inline_open(info, error);
    case WIRE_TRANSPORT_PROCESS:
        return gpu_wire_process_open(info, error);
    case WIRE_TRANSPORT_THREAD:
        return gpu_wire_thread_open(info, error);
    }
    gpu_wire_fail(error, GPULUA_INVALID_ARGUMENT, 0, "no transport has the number %d",
                  (int)info->transport);
    return NULL;
}

void gpu_wire_link_close(struct wire_link *link) {
    if (link == NULL) {
        return;
    }
    struct link_core *core = (struct link_core *)link;
    link->ops->close(link);
    if (core->release != NULL) {
        core->release(link);
    }
    gpu_wire_core_finish(core);
    free(core);
}

static gpulua_status check_restart(const struct wire_link *link, struct wire_error *error) {
    return link->can_restart ? GPULUA_OK
                             : gpu_wire_fail(error, GPULUA_UNSUPPORTED, 0,
                                             "an executor in this process cannot be replaced");
}

gpulua_status gpu_wire_link_restart(struct wire_link *link, const uint64_t done[WIRE_STREAMS_MAX],
                                    struct wire_restart *restart, struct wire_error *error) {
    *restart = (struct wire_restart){.has_begun = false};
    gpulua_status status = check_restart(link, error);
    return status != GPULUA_OK ? status : link->ops->restart(link, done, restart, error);
}

gpulua_status gpu_wire_link_keep_spare(struct wire_link *link, const struct wire_record *first,
                                       struct wire_error *error) {
    gpulua_status status = check_restart(link, error);
    return status != GPULUA_OK ? status : link->ops->keep_spare(link, first, error);
}

bool gpu_wire_link_tell_spare(struct wire_link *link, const struct wire_record *record,
                              uint64_t *position) {
    return link->can_restart && link->ops->tell_spare(link, record, position);
}

bool gpu_wire_link_has_taken(struct wire_link *link, uint64_t position) {
    return !link->can_restart || link->ops->has_taken(link, position);
}

void gpu_wire_link_abandon(struct wire_link *link) {
    if (link->can_restart) {
        link->ops->abandon(link);
    }
}

bool gpu_wire_link_is_settled(struct wire_link *link) {
    return !link->can_restart || link->ops->is_settled(link);
}

uint32_t gpu_wire_link_drain(struct wire_link *link) {
    return ((struct link_core *)link)->drain(link);
}

void gpu_wire_link_want(struct wire_link *link, uint32_t stream, uint64_t seq) {
    struct link_core *core = (struct link_core *)link;
    struct wire_page *page = link->page;
    uint64_t bit = UINT64_C(1) << (stream % 64u);
    atomic_store_explicit(&page->wanted[stream], seq, memory_order_release);
    if (seq == 0) {
        core->wanted_bits[stream / 64u] &= ~bit;
        return;
    }
    core->wanted_bits[stream / 64u] |= bit;
    atomic_fetch_add_explicit(&page->wishes, 1, memory_order_acq_rel);
    gpu_wire_flag_wake(&page->executor_sleeps);
}

int gpu_wire_link_pid(const struct wire_link *link) {
    const struct link_core *core = (const struct link_core *)link;
    return core->pid != NULL ? core->pid(link) : 0;
}
