/* The thread transport: the executor runs on a thread of this process, at the other end of a ring.
 * The script's thread pays for putting a record there, and not for the driver. What ends the
 * process ends the script, too: only a process of its own is apart from it. */
#include <errno.h>
#include <pthread.h>
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

struct wire_link *gpu_wire_thread_open(const struct wire_link_info *info,
                                       struct wire_error *error) {
    struct link_thread *self = calloc(1, sizeof *self);
    if (self == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        return NULL;
    }
    struct link_core *core = &self->ring.core;
    self->executor = gpu_wire_core_open_here(core, info, WIRE_EXECUTOR_THREAD, error);
    if (self->executor == NULL) {
        free(self);
        return NULL;
    }
    gpu_wire_link_ring_init(&self->ring, &far);
    int code = gpu_wire_thread_start(&self->thread, thread_main, self);
    if (code != 0) {
        gpu_wire_fail(error, GPULUA_CAPACITY, code, "cannot start a thread: %s", strerror(code));
        gpu_executor_destroy(self->executor);
        gpu_wire_core_finish(core);
        free(self);
        return NULL;
    }
    return &core->link;
}
