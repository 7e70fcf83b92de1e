/* The process transport: the executor is a child of ours, gpulua-exec, at the other end of a ring
 * in shared memory. The child's death is seen through a pidfd. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire/link_ring.h"
#include "wire/spawn.h"

#define EXIT_GRACE_MS 2000 /* a child that has answered CLOSE ends by itself */

struct link_process {
    struct link_ring ring; /* first */
    char *path;            /* owned: of gpulua-exec */
    int arena_fd;          /* owned: for the next one */
    struct spawn_child child;
    struct spawn_child
        former; /* killed, and not known to have ended yet; pidfd -1: there is none */
};

static gpulua_status watch(struct link_process *self, int fd, struct wire_error *error) {
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(self->ring.core.link.poll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return gpu_wire_fail(error, GPULUA_IO, errno, "epoll_ctl: %s", strerror(errno));
    }
    return GPULUA_OK;
}

static void unwatch(struct link_process *self, int fd) {
    if (fd >= 0) {
        epoll_ctl(self->ring.core.link.poll_fd, EPOLL_CTL_DEL, fd, NULL);
    }
}

/* ---- the child ---- */

static bool child_is_dead(struct link_ring *ring) {
    return gpu_wire_spawn_is_dead(&((struct link_process *)ring)->child);
}

/* Its descriptor no longer makes poll_fd readable. */
static void child_bury(struct link_ring *ring, bool must) {
    struct link_process *self = (struct link_process *)ring;
    unwatch(self, self->child.pidfd);
    if (must) {
        syscall(SYS_pidfd_send_signal, self->child.pidfd, SIGKILL, NULL, 0);
    } else {
        gpu_wire_spawn_reap(&self->child, ring->death, sizeof ring->death);
    }
}

static void child_end(struct link_ring *ring) {
    struct link_process *self = (struct link_process *)ring;
    unwatch(self, self->child.pidfd);
    unwatch(self, self->former.pidfd);
    gpu_wire_spawn_end(&self->former, 0);
    gpu_wire_spawn_end(&self->child, ring->core.close_answered ? EXIT_GRACE_MS : 0);
}

/* ---- another one ---- */

static bool is_settled(struct link_ring *ring) {
    struct link_process *self = (struct link_process *)ring;
    if (self->former.pidfd < 0) {
        return true;
    }
    if (!gpu_wire_spawn_is_dead(&self->former)) {
        return false;
    }
    unwatch(self, self->former.pidfd);
    gpu_wire_spawn_end(&self->former, 0);
    return true;
}

/* Kills the child, without waiting for its end: a driver may take a while for that. */
static void depose(struct link_process *self) {
    if (self->child.pidfd < 0) {
        return;
    }
    unwatch(self, self->former.pidfd);
    gpu_wire_spawn_end(&self->former, 0); /* two at a time are enough */
    unwatch(self, self->child.pidfd);
    syscall(SYS_pidfd_send_signal, self->child.pidfd, SIGKILL, NULL, 0);
    self->former = self->child;
    self->child = (struct spawn_child){.pid = 0, .pidfd = -1, .control_fd = -1};
    struct wire_error ignored;
    (void)watch(self, self->former.pidfd, &ignored); /* whoever polls now and then sees it, too */
}

static gpulua_status restart(struct link_ring *ring, const uint64_t done[WIRE_STREAMS_MAX],
                             struct wire_error *error) {
    struct link_process *self = (struct link_process *)ring;
    struct wire_link *link = &ring->core.link;
    struct wire_page *former = link->page;
    int page_fd = -1, event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    depose(self);
    struct wire_page *page = event_fd >= 0 ? gpu_wire_page_create(&page_fd, error) : NULL;
    if (event_fd < 0) {
        gpu_wire_fail(error, GPULUA_IO, errno, "eventfd: %s", strerror(errno));
    }
    if (page == NULL) {
        goto fail;
    }
    for (uint32_t slot = 0; slot < WIRE_STREAMS_MAX; slot++) {
        atomic_store_explicit(&page->host_done[slot], done[slot], memory_order_relaxed);
    }
    if (gpu_wire_spawn(self->path, page_fd, self->arena_fd, event_fd, link->arena_bytes,
                       &self->child, error) != GPULUA_OK) {
        goto fail;
    }
    unwatch(self, ring->core.event_fd);
    if (watch(self, event_fd, error) != GPULUA_OK ||
        watch(self, self->child.pidfd, error) != GPULUA_OK) {
        depose(self);
        goto fail;
    }
    close(ring->core.event_fd);
    close(page_fd);
    ring->core.event_fd = event_fd;
    link->page = page;
    gpu_wire_page_destroy(former);
    return GPULUA_OK;

fail:
    if (event_fd >= 0) {
        close(event_fd);
    }
    if (page_fd >= 0) {
        close(page_fd);
    }
    gpu_wire_page_destroy(page);
    return error->status;
}

static const struct link_far far = {.name = "the device's process",
                                    .is_dead = child_is_dead,
                                    .bury = child_bury,
                                    .end = child_end,
                                    .restart = restart,
                                    .is_settled = is_settled};

/* ---- opening ---- */

static void process_release(struct wire_link *link) {
    struct link_process *self = (struct link_process *)link;
    if (link->poll_fd >= 0) {
        close(link->poll_fd);
        link->poll_fd = -1;
    }
    if (self->arena_fd >= 0) {
        close(self->arena_fd);
        self->arena_fd = -1;
    }
    free(self->path);
    self->path = NULL;
}

static int process_pid(const struct wire_link *link) {
    return ((const struct link_process *)link)->child.pid;
}

/* Starts the child on an arena that both sides can map: its address space may be fuller than ours.
 */
static gpulua_status start(struct link_process *self, int page_fd, struct wire_error *error) {
    struct wire_link *link = &self->ring.core.link;
    for (uint64_t bytes_max = WIRE_ARENA_BYTES;; bytes_max = link->arena_bytes / 2) {
        link->arena = gpu_wire_arena_create(&self->arena_fd, bytes_max, &link->arena_bytes, error);
        if (link->arena == NULL) {
            return error->status;
        }
        gpulua_status status =
            gpu_wire_spawn(self->path, page_fd, self->arena_fd, self->ring.core.event_fd,
                           link->arena_bytes, &self->child, error);
        if (status != GPULUA_OUT_OF_MEMORY) {
            return status;
        }
        close(self->arena_fd);
        self->arena_fd = -1;
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
    struct wire_link *link = &self->ring.core.link;
    self->ring.core.event_fd = -1;
    self->ring.core.release = process_release;
    self->ring.core.pid = process_pid;
    self->child = self->former = (struct spawn_child){.pid = 0, .pidfd = -1, .control_fd = -1};
    self->arena_fd = -1;
    link->poll_fd = -1;
    link->can_restart = true;
    if (info->executor_path == NULL || info->executor_path[0] == '\0') {
        gpu_wire_fail(error, GPULUA_IO, 0, "no path to gpulua-exec is known");
        goto fail;
    }
    self->path = strdup(info->executor_path);
    if (self->path == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        goto fail;
    }
    link->page = gpu_wire_page_create(&page_fd, error);
    if (link->page == NULL || gpu_wire_core_init(&self->ring.core, info, error) != GPULUA_OK) {
        goto fail;
    }
    link->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (link->poll_fd < 0) {
        gpu_wire_fail(error, GPULUA_IO, errno, "epoll_create1: %s", strerror(errno));
        goto fail;
    }
    gpu_wire_link_ring_init(&self->ring, &far);
    if (start(self, page_fd, error) != GPULUA_OK ||
        watch(self, self->ring.core.event_fd, error) != GPULUA_OK ||
        watch(self, self->child.pidfd, error) != GPULUA_OK) {
        goto fail;
    }
    close(page_fd);
    self->ring.core.state_seen = WIRE_STATE_READY;
    return link;

fail:
    if (page_fd >= 0) {
        close(page_fd);
    }
    gpu_wire_spawn_end(&self->child, 0);
    process_release(link);
    gpu_wire_core_finish(&self->ring.core);
    free(self);
    return NULL;
}
