/* The process transport: the executor is a child of ours, gpulua-exec, at the other end of a ring
 * in shared memory. The child's death is seen through a pidfd. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire/descriptor.h"
#include "wire/link_ring.h"
#include "wire/spawn.h"
#include "wire/sync.h"

#define EXIT_GRACE_MS 2000   /* a child that has answered CLOSE ends by itself */
#define SPARE_PATIENCE_MS 20 /* the script waits meanwhile; another one takes a few ms */

/* A child that is to take over, with what it is called by. */
struct heir {
    struct wire_page *page; /* owned; NULL: there is none */
    struct wire_ring commands;
    int event_fd; /* owned */
    struct spawn_child child;
};

struct link_process {
    struct link_ring ring;        /* first */
    struct wire_program program;  /* its texts owned */
    const _Atomic int *interrupt; /* borrowed; NULL: none */
    int arena_fd;                 /* owned: for the next one */
    struct spawn_child child;
    /* Killed, and not known to have ended yet; pidfd -1: there is none. */
    struct spawn_child former;
    struct heir spare;
};

static const struct spawn_child no_child = {.pid = 0, .pidfd = -1, .control_fd = -1};

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

static void drop_heir(struct heir *heir) {
    gpu_wire_spawn_end(&heir->child, 0);
    if (heir->event_fd >= 0) {
        close(heir->event_fd);
        heir->event_fd = -1;
    }
    gpu_wire_page_destroy(heir->page);
    heir->page = NULL;
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
    drop_heir(&self->spare);
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
    ring->has_settled = true;
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
    self->child = no_child;
    struct wire_error ignored;
    (void)watch(self, self->former.pidfd, &ignored); /* whoever polls now and then sees it, too */
}

/* Starts a child. It may not take records yet. */
static gpulua_status make_heir(const struct link_process *self, struct heir *heir,
                               struct wire_error *error) {
    int page_fd = -1;
    *heir = (struct heir){.event_fd = gpu_wire_event_open(error), .child = no_child};
    gpulua_status status = heir->event_fd < 0 ? error->status : GPULUA_OK;
    if (status == GPULUA_OK) {
        heir->page = gpu_wire_page_create(&page_fd, error);
        status = heir->page != NULL
                     ? gpu_wire_spawn(&self->program, page_fd, self->arena_fd, heir->event_fd,
                                      self->ring.core.link.arena_bytes, &heir->child, error)
                     : error->status;
    }
    if (page_fd >= 0) {
        close(page_fd);
    }
    if (status != GPULUA_OK) {
        drop_heir(heir);
    }
    return status;
}

/* It is the child from here on, and the link's page is its page. Gone, where it does not take
 * records or cannot be watched. */
static gpulua_status enthrone(struct link_process *self, struct heir *heir, int patience_ms,
                              struct wire_error *error) {
    struct link_core *core = &self->ring.core;
    if (gpu_wire_spawn_await(self->program.path, &heir->child, patience_ms, self->interrupt,
                             error) != GPULUA_OK) {
        drop_heir(heir);
        return error->status;
    }
    unwatch(self, core->event_fd);
    if (watch(self, heir->event_fd, error) != GPULUA_OK ||
        watch(self, heir->child.pidfd, error) != GPULUA_OK) {
        drop_heir(heir);
        return error->status;
    }
    if (core->event_fd >= 0) {
        close(core->event_fd);
    }
    core->event_fd = heir->event_fd;
    gpu_wire_page_destroy(core->link.page);
    core->link.page = heir->page;
    self->child = heir->child;
    atomic_store_explicit(&core->link.page->is_in_charge, 1, memory_order_release);
    gpu_wire_flag_wake(&core->link.page->executor_sleeps);
    return GPULUA_OK;
}

static gpulua_status keep_spare(struct link_ring *ring, const struct wire_record *first,
                                struct wire_error *error) {
    struct link_process *self = (struct link_process *)ring;
    struct heir *spare = &self->spare;
    drop_heir(spare);
    gpulua_status status = make_heir(self, spare, error);
    if (status == GPULUA_OK) {
        gpu_wire_ring_command(&spare->commands, spare->page);
        (void)gpu_wire_ring_push(&spare->commands, first, first->length_bytes); /* it is empty */
        gpu_wire_flag_wake(&spare->page->executor_sleeps);
    }
    return status;
}

static struct wire_ring *spare_commands(struct link_ring *ring, struct wire_page **page) {
    struct heir *spare = &((struct link_process *)ring)->spare;
    if (spare->page == NULL) {
        return NULL;
    }
    *page = spare->page;
    return &spare->commands;
}

/* One that is dead will not look any more. */
static bool has_taken(struct link_ring *ring, uint64_t position) {
    struct heir *spare = &((struct link_process *)ring)->spare;
    struct wire_page *page = spare->page != NULL ? spare->page : ring->core.link.page;
    return atomic_load_explicit(&page->command_tail, memory_order_acquire) >= position ||
           (spare->page != NULL && gpu_wire_spawn_is_dead(&spare->child));
}

/* It looks at these when it is told of streams. */
static void tell_done(const struct heir *heir, const uint64_t done[WIRE_STREAMS_MAX]) {
    for (uint32_t slot = 0; slot < WIRE_STREAMS_MAX; slot++) {
        atomic_store_explicit(&heir->page->host_done[slot], done[slot], memory_order_relaxed);
    }
}

/* Takes over what the spare has, unless it is of no use. */
static bool crown_spare(struct link_process *self, struct heir *spare, struct wire_error *error) {
    if (!gpu_wire_spawn_has_begun(&spare->child, SPARE_PATIENCE_MS)) {
        gpu_wire_fail(error, GPULUA_IO, 0, "it was still being started");
    } else if (gpu_wire_spawn_is_dead(&spare->child)) {
        char how[160];
        gpu_wire_spawn_reap(&spare->child, how, sizeof how);
        gpu_wire_fail(error, GPULUA_IO, 0, "it had ended (%s)", how);
    } else {
        return enthrone(self, spare, SPARE_PATIENCE_MS, error) == GPULUA_OK;
    }
    drop_heir(spare);
    return false;
}

static gpulua_status restart(struct link_ring *ring, const uint64_t done[WIRE_STREAMS_MAX],
                             struct wire_restart *came, struct wire_error *error) {
    struct link_process *self = (struct link_process *)ring;
    struct heir heir = self->spare;
    depose(self);
    self->spare = (struct heir){.event_fd = -1, .child = no_child};
    error->status = GPULUA_OK;
    if (heir.page != NULL) { /* one that has not begun by now is not waited for */
        tell_done(&heir, done);
        came->is_spare = came->has_begun = crown_spare(self, &heir, error);
    }
    if (came->is_spare) {
        return GPULUA_OK;
    }
    struct wire_error failed = {0};
    gpulua_status status = make_heir(self, &heir, &failed);
    came->has_begun = status == GPULUA_OK;
    if (status == GPULUA_OK) {
        tell_done(&heir, done);
        status = enthrone(self, &heir, SPAWN_PATIENCE_MS, &failed);
    }
    if (status != GPULUA_OK) {
        *error = failed;
    }
    return status;
}

static const struct link_far far = {.name = "the device's process",
                                    .is_dead = child_is_dead,
                                    .bury = child_bury,
                                    .end = child_end,
                                    .restart = restart,
                                    .keep_spare = keep_spare,
                                    .spare_commands = spare_commands,
                                    .has_taken = has_taken,
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
    free((char *)(uintptr_t)self->program.path);
    free((char *)(uintptr_t)self->program.cache_path);
    self->program = (struct wire_program){.path = NULL};
}

static int process_pid(const struct wire_link *link) {
    return ((const struct link_process *)link)->child.pid;
}

/* Starts the child on an arena that both sides can map: its address space may be fuller than ours.
 */
static gpulua_status start(struct link_process *self, struct wire_error *error) {
    struct wire_link *link = &self->ring.core.link;
    struct heir heir;
    for (uint64_t bytes_max = WIRE_ARENA_BYTES;; bytes_max = link->arena_bytes / 2) {
        link->arena = gpu_wire_arena_create(&self->arena_fd, bytes_max, &link->arena_bytes, error);
        if (link->arena == NULL) {
            return error->status;
        }
        gpulua_status status = make_heir(self, &heir, error);
        if (status == GPULUA_OK) {
            status = enthrone(self, &heir, SPAWN_PATIENCE_MS, error);
        }
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
    struct link_process *self = calloc(1, sizeof *self);
    if (self == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        return NULL;
    }
    struct wire_link *link = &self->ring.core.link;
    self->ring.core.event_fd = -1;
    self->ring.core.release = process_release;
    self->ring.core.pid = process_pid;
    self->child = self->former = no_child;
    self->spare = (struct heir){.event_fd = -1, .child = no_child};
    self->arena_fd = -1;
    link->poll_fd = -1;
    link->can_restart = true;
    const struct wire_program *program = &info->program;
    if (program->path == NULL || program->path[0] == '\0') {
        gpu_wire_fail(error, GPULUA_IO, 0, "no path to gpulua-exec is known");
        goto fail;
    }
    self->program.path = strdup(program->path);
    self->program.is_confined = program->is_confined;
    self->interrupt = info->interrupt;
    self->program.cache_path = program->cache_path != NULL ? strdup(program->cache_path) : NULL;
    if (self->program.path == NULL ||
        (program->cache_path != NULL && self->program.cache_path == NULL)) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        goto fail;
    }
    link->poll_fd = gpu_wire_descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (link->poll_fd < 0) {
        gpu_wire_fail(error, GPULUA_IO, errno, "epoll_create1: %s", strerror(errno));
        goto fail;
    }
    if (start(self, error) != GPULUA_OK) {
        goto fail;
    }
    gpu_wire_core_init(&self->ring.core, info);
    gpu_wire_link_ring_init(&self->ring, &far);
    self->ring.core.state_seen = WIRE_STATE_READY;
    return link;

fail:
    gpu_wire_spawn_end(&self->child, 0);
    process_release(link);
    gpu_wire_core_finish(&self->ring.core);
    free(self);
    return NULL;
}
