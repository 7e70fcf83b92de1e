/* The thread transport: the executor runs on a thread of this process, at the other end of a ring.
 * The script's thread pays for putting a record there, and not for the driver. What ends the
 * process ends the script, too: only a process of its own is apart from it. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/link_ring.h"
#include "wire/sync.h"

struct link_thread {
    struct link_ring ring;          /* first */
    struct wire_executor *executor; /* owned; the thread's while that runs */
    pthread_t thread;
    _Atomic bool is_broken; /* the thread takes nothing any more: the ring made no sense */
};

static void *thread_main(void *user) {
    struct link_thread *self = user;
    if (!gpu_executor_run(self->executor)) {
        atomic_store_explicit(&self->is_broken, true, memory_order_release);
    }
    return NULL;
}

static bool thread_is_dead(struct link_ring *ring) {
    struct link_thread *self = (struct link_thread *)ring;
    return atomic_load_explicit(&self->is_broken, memory_order_acquire);
}

/* Only a stray write into the rings leads here. */
static void thread_bury(struct link_ring *ring, bool must) {
    if (must) {
        gpu_executor_stop(((struct link_thread *)ring)->executor);
    } else {
        snprintf(ring->death, sizeof ring->death, "the command ring made no sense");
    }
}

/* Without a CLOSE record before, this waits for the work that is there, as the inline transport
 * does: a kernel that never ends cannot be stopped in our own process. */
static void thread_end(struct link_ring *ring) {
    struct link_thread *self = (struct link_thread *)ring;
    gpu_executor_stop(self->executor);
    pthread_join(self->thread, NULL);
    gpu_executor_destroy(self->executor);
    self->executor = NULL;
}

static const struct link_far far = {.name = "the device's thread",
                                    .is_dead = thread_is_dead,
                                    .bury = thread_bury,
                                    .end = thread_end};

static void thread_release(struct wire_link *link) {
    (void)link; /* poll_fd is the core's event_fd */
}

static int thread_pid(const struct wire_link *link) {
    (void)link;
    return 0;
}

/* Signals are for the host's threads. */
static int start(struct link_thread *self) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&self->thread, NULL, thread_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

struct wire_link *gpu_wire_thread_open(const struct wire_link_info *info,
                                       struct wire_error *error) {
    struct link_thread *self = calloc(1, sizeof *self);
    if (self == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        return NULL;
    }
    struct link_core *core = &self->ring.core;
    struct wire_link *link = &core->link;
    core->event_fd = -1;
    core->release = thread_release;
    core->pid = thread_pid;
    link->page = gpu_wire_page_create(NULL, error);
    if (link->page == NULL) {
        goto fail;
    }
    link->arena = gpu_wire_arena_create(NULL, WIRE_ARENA_BYTES, &link->arena_bytes, error);
    if (link->arena == NULL || gpu_wire_core_init(core, info, error) != GPULUA_OK) {
        goto fail;
    }
    link->poll_fd = core->event_fd;
    gpu_wire_link_ring_init(&self->ring, &far);
    const struct wire_executor_info executor_info = {
        .page = link->page,
        .arena = link->arena,
        .arena_bytes = link->arena_bytes,
        .event_fd = core->event_fd,
        .place = WIRE_EXECUTOR_THREAD,
    };
    self->executor = gpu_executor_create(&executor_info, error);
    if (self->executor == NULL) {
        goto fail;
    }
    core->state_seen = atomic_load(&link->page->state);
    int code = start(self);
    if (code != 0) {
        gpu_wire_fail(error, GPULUA_CAPACITY, code, "cannot start a thread: %s", strerror(code));
        gpu_executor_destroy(self->executor);
        goto fail;
    }
    return link;

fail:
    gpu_wire_core_finish(core);
    free(self);
    return NULL;
}
