/* The process transport: the executor is a child of ours, gpulua-exec, at the other end of a ring
 * in shared memory. The child's death is seen through a pidfd. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire/link_ring.h"
#include "wire/spawn.h"

#define EXIT_GRACE_MS 2000 /* a child that has answered CLOSE ends by itself */

struct link_process {
    struct link_ring ring; /* first */
    struct spawn_child child;
};

/* ---- the child ---- */

static bool child_is_dead(struct link_ring *ring) {
    return gpu_wire_spawn_is_dead(&((struct link_process *)ring)->child);
}

/* Its descriptor no longer makes poll_fd readable. */
static void child_bury(struct link_ring *ring, bool must) {
    struct link_process *self = (struct link_process *)ring;
    epoll_ctl(ring->core.link.poll_fd, EPOLL_CTL_DEL, self->child.pidfd, NULL);
    if (must) {
        syscall(SYS_pidfd_send_signal, self->child.pidfd, SIGKILL, NULL, 0);
    } else {
        gpu_wire_spawn_reap(&self->child, ring->death, sizeof ring->death);
    }
}

static void child_end(struct link_ring *ring) {
    struct link_process *self = (struct link_process *)ring;
    epoll_ctl(ring->core.link.poll_fd, EPOLL_CTL_DEL, self->child.pidfd, NULL);
    gpu_wire_spawn_end(&self->child, ring->core.close_answered ? EXIT_GRACE_MS : 0);
}

static const struct link_far far = {
    .name = "the device's process", .is_dead = child_is_dead, .bury = child_bury, .end = child_end};

/* ---- opening ---- */

static void process_release(struct wire_link *link) {
    if (link->poll_fd >= 0) {
        close(link->poll_fd);
        link->poll_fd = -1;
    }
}

static int process_pid(const struct wire_link *link) {
    return ((const struct link_process *)link)->child.pid;
}

static gpulua_status watch(struct link_process *self, int fd, struct wire_error *error) {
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(self->ring.core.link.poll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return gpu_wire_fail(error, GPULUA_IO, errno, "epoll_ctl: %s", strerror(errno));
    }
    return GPULUA_OK;
}

/* Starts the child on an arena that both sides can map: its address space may be fuller than ours.
 */
static gpulua_status start(struct link_process *self, const char *path, int page_fd,
                           struct wire_error *error) {
    struct wire_link *link = &self->ring.core.link;
    for (uint64_t bytes_max = WIRE_ARENA_BYTES;; bytes_max = link->arena_bytes / 2) {
        int arena_fd = -1;
        link->arena = gpu_wire_arena_create(&arena_fd, bytes_max, &link->arena_bytes, error);
        if (link->arena == NULL) {
            return error->status;
        }
        gpulua_status status = gpu_wire_spawn(path, page_fd, arena_fd, self->ring.core.event_fd,
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
    struct wire_link *link = &self->ring.core.link;
    self->ring.core.event_fd = -1;
    self->ring.core.release = process_release;
    self->ring.core.pid = process_pid;
    self->child = (struct spawn_child){.pid = 0, .pidfd = -1, .control_fd = -1};
    link->poll_fd = -1;
    if (info->executor_path == NULL || info->executor_path[0] == '\0') {
        gpu_wire_fail(error, GPULUA_IO, 0, "no path to gpulua-exec is known");
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
    if (start(self, info->executor_path, page_fd, error) != GPULUA_OK ||
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
