/* completion = "block": threads that sleep in the driver, each for one event that somebody waits
 * for, so that nobody has to ask.
 *
 * They run beside everything else and touch nothing of the executor's but the page, which is for
 * all. An event that one of them has is neither recorded again nor destroyed by anybody else: who
 * needs its place leaves it to the sleeper, and it ends when that is back. What a sleeper finds
 * over it tells the script itself, unless text has to be flushed first; anything else is the
 * executor's to look at, which it wakes. */
#include <stdlib.h>

#include "executor/executor.h"
#include "wire/sync.h"

/* As many as streams that tasks share (the runtime's GPU_TASK_STREAMS): with more to wait for, the
 * rest is asked for from time to time. */
#define SLEEPERS_MAX 32u

enum sleeper_state { SLEEPER_IDLE, SLEEPER_SENT, SLEEPER_BACK };

struct sleeper {
    struct wire_executor *executor;
    pthread_t thread;
    pthread_cond_t work;
    enum sleeper_state state; /* under the lock */
    /* The executor's to change, while it is idle. */
    struct backend_event *event; /* NULL: idle */
    uint32_t stream;
    uint64_t seq; /* over with the event */
    bool tells;
    bool owns; /* the event is nobody else's any more */
    /* The sleeper's, until it is back. */
    enum backend_query answer;
};

struct executor_sleepers {
    pthread_mutex_t lock;
    bool stops; /* under the lock */
    /* The executor's. */
    bool is_useless; /* the driver cannot wait */
    uint32_t count;
    struct sleeper all[SLEEPERS_MAX];
};

/* ---- the threads ---- */

static void tell(const struct sleeper *self) {
    struct wire_executor *executor = self->executor;
    if (self->answer == BACKEND_DONE && self->tells) {
        gpu_executor_host_done(executor, self->stream, self->seq);
        gpu_executor_wake_if_wanted(executor);
    } else if (executor->info.place == WIRE_EXECUTOR_INLINE) {
        gpu_executor_wake(executor); /* the script, which then polls */
    } else {
        gpu_wire_flag_wake(&executor->page->executor_sleeps);
    }
}

static void *sleeper_main(void *user) {
    struct sleeper *self = user;
    struct wire_executor *executor = self->executor;
    struct executor_sleepers *sleepers = executor->sleepers;
    if (executor->ops->calls_begin != NULL) {
        (void)executor->ops->calls_begin(true);
    }
    pthread_mutex_lock(&sleepers->lock);
    for (;;) {
        if (self->state == SLEEPER_SENT) {
            pthread_mutex_unlock(&sleepers->lock);
            self->answer = executor->ops->event_wait(self->event);
            const struct sleeper told = {.executor = executor,
                                         .stream = self->stream,
                                         .seq = self->seq,
                                         .tells = self->tells,
                                         .answer = self->answer};
            pthread_mutex_lock(&sleepers->lock);
            self->state = SLEEPER_BACK;
            atomic_fetch_add_explicit(&executor->back_count, 1, memory_order_release);
            pthread_mutex_unlock(&sleepers->lock);
            tell(&told);
            pthread_mutex_lock(&sleepers->lock);
        } else if (sleepers->stops) {
            break;
        } else {
            pthread_cond_wait(&self->work, &sleepers->lock);
        }
    }
    pthread_mutex_unlock(&sleepers->lock);
    return NULL;
}

/* ---- the executor ---- */

static bool create(struct wire_executor *executor) {
    struct executor_sleepers *sleepers = calloc(1, sizeof *sleepers);
    if (sleepers != NULL) {
        pthread_mutex_init(&sleepers->lock, NULL);
        executor->sleepers = sleepers;
    }
    return sleepers != NULL;
}

/* NULL: all have something, and there can be no more. */
static struct sleeper *find_idle(struct wire_executor *executor) {
    struct executor_sleepers *sleepers = executor->sleepers;
    for (uint32_t i = 0; i < sleepers->count; i++) {
        if (sleepers->all[i].event == NULL) {
            return &sleepers->all[i];
        }
    }
    if (sleepers->count == SLEEPERS_MAX) {
        return NULL;
    }
    struct sleeper *made = &sleepers->all[sleepers->count];
    made->executor = executor;
    pthread_cond_init(&made->work, NULL);
    if (gpu_wire_thread_start(&made->thread, sleeper_main, made) != 0) {
        pthread_cond_destroy(&made->work);
        return NULL;
    }
    sleepers->count++;
    return made;
}

static bool is_slept_for(const struct executor_sleepers *sleepers,
                         const struct backend_event *event) {
    for (uint32_t i = 0; i < sleepers->count; i++) {
        if (sleepers->all[i].event == event) {
            return true;
        }
    }
    return false;
}

static bool sleep_for(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    const struct executor_event *event = gpu_executor_event_of(executor, slot, seq);
    if (event == NULL) {
        return false;
    }
    if (is_slept_for(executor->sleepers, event->event)) {
        return true;
    }
    struct sleeper *sleeper = find_idle(executor);
    if (sleeper == NULL) {
        return false;
    }
    pthread_mutex_lock(&executor->sleepers->lock);
    sleeper->event = event->event;
    sleeper->stream = slot;
    sleeper->seq = event->seq;
    sleeper->tells = executor->streams[slot]->print_seq == 0;
    sleeper->owns = false;
    sleeper->state = SLEEPER_SENT;
    pthread_cond_signal(&sleeper->work);
    pthread_mutex_unlock(&executor->sleepers->lock);
    return true;
}

bool gpu_executor_sleepers_send(struct wire_executor *executor) {
    if (executor->completion != GPULUA_COMPLETION_BLOCK || executor->ops->event_wait == NULL ||
        (executor->sleepers == NULL && !create(executor)) || executor->sleepers->is_useless) {
        return false;
    }
    bool is_all = true;
    for (uint32_t i = 0; i < executor->want_count; i++) {
        uint32_t slot = executor->wants[i];
        uint64_t wanted = atomic_load_explicit(&executor->page->wanted[slot], memory_order_acquire);
        is_all &= wanted == 0 || sleep_for(executor, slot, wanted);
    }
    for (uint32_t slot = 0; executor->printing_count != 0 && slot < executor->stream_limit;
         slot++) {
        const struct executor_stream *stream = executor->streams[slot];
        if (stream != NULL && stream->print_seq != 0) {
            is_all &= sleep_for(executor, slot, stream->last_seq);
        }
    }
    return is_all;
}

void gpu_executor_sleepers_collect(struct wire_executor *executor) {
    struct executor_sleepers *sleepers = executor->sleepers;
    if (atomic_load_explicit(&executor->back_count, memory_order_acquire) == 0) {
        return;
    }
    pthread_mutex_lock(&sleepers->lock);
    for (uint32_t i = 0; i < sleepers->count; i++) {
        struct sleeper *sleeper = &sleepers->all[i];
        if (sleeper->state == SLEEPER_BACK) {
            sleeper->state = SLEEPER_IDLE;
            atomic_fetch_sub_explicit(&executor->back_count, 1, memory_order_relaxed);
            sleepers->is_useless |= sleeper->answer != BACKEND_DONE;
            if (sleeper->owns) {
                gpu_executor_event_end(executor, sleeper->event);
            }
            sleeper->event = NULL;
        }
    }
    pthread_mutex_unlock(&sleepers->lock);
}

bool gpu_executor_sleepers_keep(struct wire_executor *executor, const struct backend_event *event) {
    struct executor_sleepers *sleepers = executor->sleepers;
    for (uint32_t i = 0; sleepers != NULL && i < sleepers->count; i++) {
        if (sleepers->all[i].event == event) {
            sleepers->all[i].owns = true;
            return true;
        }
    }
    return false;
}

void gpu_executor_sleepers_stop(struct wire_executor *executor) {
    struct executor_sleepers *sleepers = executor->sleepers;
    if (sleepers == NULL) {
        return;
    }
    pthread_mutex_lock(&sleepers->lock);
    sleepers->stops = true;
    for (uint32_t i = 0; i < sleepers->count; i++) {
        pthread_cond_signal(&sleepers->all[i].work);
    }
    pthread_mutex_unlock(&sleepers->lock);
    for (uint32_t i = 0; i < sleepers->count; i++) {
        pthread_join(sleepers->all[i].thread, NULL);
        pthread_cond_destroy(&sleepers->all[i].work);
    }
    gpu_executor_sleepers_collect(executor);
    pthread_mutex_destroy(&sleepers->lock);
    free(sleepers);
    executor->sleepers = NULL;
}
