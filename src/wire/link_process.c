/* The process transport: the executor is a child of ours, gpulua-exec, at the other end of a ring
 * in shared memory.
 *
 * The child's death is seen through a pidfd. From then on nothing is published, what it had still
 * said is delivered, and then one WIRE_REPLY_LOST that says how it died. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire/spawn.h"
#include "wire/sync.h"
#include "wire/transport.h"

#define SPIN_NS 50000u        /* a full ring: this long before the first nap */
#define SETTLE_NS 20000000u   /* between two looks of the caller at what else there is */
#define NAP_MS 1              /* the executor needs many times this to empty a full ring */
#define POLLS_PER_LOOK 256u   /* one system call in so many calls of poll */
#define EXIT_GRACE_MS 2000    /* a child that has answered CLOSE ends by itself */
#define RECORDS_PER_LOOK 1024 /* publishing without end must notice a dead child, too */

struct link_process {
    struct link_core core;
    struct wire_ring commands;
    struct spawn_child child;
    uint32_t poll_count;
    uint32_t publish_count;
    bool is_dead; /* noticed; the descriptor no longer makes poll_fd readable */
    bool is_ended;
    char death[200]; /* how, in words */
};

static void die(struct link_process *self, const char *why) {
    if (self->is_dead) {
        return;
    }
    struct wire_page *page = self->core.link.page;
    self->is_dead = true;
    epoll_ctl(self->core.link.poll_fd, EPOLL_CTL_DEL, self->child.pidfd, NULL);
    if (why != NULL) {
        syscall(SYS_pidfd_send_signal, self->child.pidfd, SIGKILL, NULL, 0);
        snprintf(self->death, sizeof self->death, "%s", why);
    } else {
        gpu_wire_spawn_reap(&self->child, self->death, sizeof self->death);
    }
    if (atomic_load_explicit(&page->state, memory_order_acquire) != WIRE_STATE_CLOSED) {
        atomic_store_explicit(&page->state, WIRE_STATE_LOST, memory_order_release);
    }
}

static void look_for_death(struct link_process *self) {
    if (!self->is_dead && gpu_wire_spawn_is_dead(&self->child)) {
        die(self, NULL);
    }
}

/* Delivered behind all that the child itself had said. */
static uint32_t tell_death(struct link_process *self) {
    struct {
        struct wire_reply reply;
        char text[256];
    } lost;
    memset(&lost, 0, sizeof lost);
    self->core.lost_told = true;
    snprintf(lost.text, sizeof lost.text, "the device's process is gone: %s", self->death);
    lost.reply.length_bytes = sizeof lost;
    lost.reply.kind = WIRE_REPLY_LOST;
    lost.reply.status = GPULUA_DEVICE_LOST;
    lost.reply.text_bytes = (uint32_t)strlen(lost.text);
    self->core.link.on_reply(self->core.link.user, &lost.reply);
    return 1;
}

static uint32_t process_drain(struct wire_link *link) {
    struct link_process *self = (struct link_process *)link;
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

/* The ring is full. Replies are drained meanwhile: the executor may be waiting for room there. */
static gpulua_status publish_slowly(struct link_process *self, const struct wire_record *record) {
    struct wire_link *link = &self->core.link;
    uint64_t spin_end_ns = gpu_wire_now_ns() + SPIN_NS;
    for (uint32_t round = 0;; round++) {
        process_drain(link);
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
        if (gpu_wire_now_ns() < spin_end_ns) {
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

static gpulua_status process_publish(struct wire_link *link, const struct wire_record *record) {
    struct link_process *self = (struct link_process *)link;
    if (self->publish_count++ % RECORDS_PER_LOOK == RECORDS_PER_LOOK - 1) {
        look_for_death(self);
    }
    if (self->is_dead) {
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

static bool process_settle(struct wire_link *link) {
    struct link_process *self = (struct link_process *)link;
    uint64_t end_ns = gpu_wire_now_ns() + SETTLE_NS;
    for (uint32_t round = 1; !self->is_dead; round++) {
        process_drain(link);
        if (atomic_load_explicit(self->commands.tail, memory_order_acquire) ==
            self->commands.position) {
            process_drain(link); /* what it said before it was done */
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

static void process_poll(struct wire_link *link) {
    struct link_process *self = (struct link_process *)link;
    if (self->poll_count++ % POLLS_PER_LOOK == 0) {
        look_for_death(self);
    }
}

static bool process_arm(struct wire_link *link) {
    struct link_process *self = (struct link_process *)link;
    gpu_wire_core_sleep_begin(&self->core);
    look_for_death(self);
    bool found = gpu_wire_core_look(&self->core);
    if (self->is_dead && !self->core.lost_told && !self->core.close_answered) {
        found = true;
    }
    if (found) {
        gpu_wire_core_sleep_end(&self->core);
    }
    return found;
}

static void process_disarm(struct wire_link *link) {
    struct link_process *self = (struct link_process *)link;
    if (self->core.armed) {
        if (!gpu_wire_core_sleep_end(&self->core)) {
            look_for_death(self); /* who woke us, if not the executor? */
        }
        gpu_wire_core_look(&self->core);
    }
}

static void process_close(struct wire_link *link) {
    struct link_process *self = (struct link_process *)link;
    if (self->is_ended) {
        return;
    }
    self->is_ended = true;
    self->is_dead = true;
    self->core.lost_told = true;
    epoll_ctl(link->poll_fd, EPOLL_CTL_DEL, self->child.pidfd, NULL);
    gpu_wire_spawn_end(&self->child, self->core.close_answered ? EXIT_GRACE_MS : 0);
    if (atomic_load_explicit(&link->page->state, memory_order_acquire) != WIRE_STATE_CLOSED) {
        atomic_store_explicit(&link->page->state, WIRE_STATE_LOST, memory_order_release);
    }
}

static void process_release(struct wire_link *link) {
    if (link->poll_fd >= 0) {
        close(link->poll_fd);
        link->poll_fd = -1;
    }
}

static int process_pid(const struct wire_link *link) {
    return ((const struct link_process *)link)->child.pid;
}

static const struct wire_link_ops process_ops = {
    .publish = process_publish,
    .settle = process_settle,
    .poll = process_poll,
    .arm = process_arm,
    .disarm = process_disarm,
    .close = process_close,
};

static gpulua_status watch(struct link_process *self, int fd, struct wire_error *error) {
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(self->core.link.poll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return gpu_wire_fail(error, GPULUA_IO, errno, "epoll_ctl: %s", strerror(errno));
    }
    return GPULUA_OK;
}

/* Starts the child on an arena that both sides can map: its address space may be fuller than ours.
 */
static gpulua_status start(struct link_process *self, const char *path, int page_fd,
                           struct wire_error *error) {
    struct wire_link *link = &self->core.link;
    for (uint64_t bytes_max = WIRE_ARENA_BYTES;; bytes_max = link->arena_bytes / 2) {
        int arena_fd = -1;
        link->arena = gpu_wire_arena_create(&arena_fd, bytes_max, &link->arena_bytes, error);
        if (link->arena == NULL) {
            return error->status;
        }
        gpulua_status status = gpu_wire_spawn(path, page_fd, arena_fd, self->core.event_fd,
                                              link->arena_bytes, &self->child, error);
        close(arena_fd); /* the mapping holds it */
        if (status != GPULUA_OUT_OF_MEMORY) {
            return status;
        }
        gpu_wire_arena_destroy(link->arena, link->arena_bytes);
        link->arena = NULL;
        if (link->arena_bytes / 2 < WIRE_ARENA_BYTES_MIN) {
            return status;
        }
    }
}

struct wire_link *gpu_wire_process_open(const struct wire_link_info *info,
                                        struct wire_error *error) {
    int page_fd = -1;
    struct link_process *self = calloc(1, sizeof *self);
    if (self == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        return NULL;
    }
    struct wire_link *link = &self->core.link;
    self->core.event_fd = -1;
    self->core.drain = process_drain;
    self->core.release = process_release;
    self->core.pid = process_pid;
    self->child = (struct spawn_child){.pid = 0, .pidfd = -1, .control_fd = -1};
    link->ops = &process_ops;
    link->poll_fd = -1;
    if (info->executor_path == NULL || info->executor_path[0] == '\0') {
        gpu_wire_fail(error, GPULUA_IO, 0, "no path to gpulua-exec is known");
        goto fail;
    }
    link->page = gpu_wire_page_create(&page_fd, error);
    if (link->page == NULL || gpu_wire_core_init(&self->core, info, error) != GPULUA_OK) {
        goto fail;
    }
    link->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (link->poll_fd < 0) {
        gpu_wire_fail(error, GPULUA_IO, errno, "epoll_create1: %s", strerror(errno));
        goto fail;
    }
    gpu_wire_ring_command(&self->commands, link->page);
    if (start(self, info->executor_path, page_fd, error) != GPULUA_OK ||
        watch(self, self->core.event_fd, error) != GPULUA_OK ||
        watch(self, self->child.pidfd, error) != GPULUA_OK) {
        goto fail;
    }
    close(page_fd);
    self->core.state_seen = WIRE_STATE_READY;
    return link;

fail:
    if (page_fd >= 0) {
        close(page_fd);
    }
    gpu_wire_spawn_end(&self->child, 0);
    process_release(link);
    gpu_wire_core_finish(&self->core);
    free(self);
    return NULL;
}
