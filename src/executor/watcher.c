/* Inline, on backends whose device writes words by itself: a thread that looks at what the script
 * waits for while the script sleeps, and wakes it through the eventfd.
 *
 * It runs only between arm and whatever comes next. While it is at work the lock is its own; the
 * executor's first step on any call is to take the lock and say that it watches no more. So the way
 * of a record costs one load of a flag. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "executor/executor.h"
#include "wire/sync.h"

/* Has anything happened that the script should wake for? Locked. */
static bool look(struct wire_executor *executor) {
    for (uint32_t i = 0; i < executor->watch_count; i++) {
        uint32_t stream = executor->watches[i].stream;
        if (gpu_wire_page_done(executor->page, stream) >= executor->watches[i].seq) {
            return true;
        }
        struct backend_error error = {0};
        bool is_over = /* or, where a word will come, a fault that nobody else is told of */
            executor->ops->event_query(executor->watches[i].event, &error) != BACKEND_PENDING;
        free(error.log);
        if (is_over) {
            return true; /* the executor, polled by the script, finds it so, too */
        }
    }
    struct backend_error error = {0};
    bool is_well = executor->ops->device_status(executor->device, &error) == GPULUA_OK;
    free(error.log);
    return !is_well;
}

static void *watcher_main(void *user) {
    struct wire_executor *executor = user;
    uint64_t since_ns = 0;
    prctl(PR_SET_TIMERSLACK, EXECUTOR_TIMER_SLACK_NS, 0, 0, 0);
    if (executor->ops->calls_begin != NULL) {
        (void)executor->ops->calls_begin(true);
    }
    pthread_mutex_lock(&executor->watch_lock);
    while (!executor->watcher_stops) {
        if (!atomic_load_explicit(&executor->is_watching, memory_order_relaxed)) {
            pthread_cond_wait(&executor->watch_work, &executor->watch_lock);
            since_ns = gpu_wire_now_ns();
            continue;
        }
        if (look(executor)) {
            atomic_store_explicit(&executor->is_watching, false, memory_order_release);
            /* Not only for wanted words: the loss of the device is one more reason. */
            gpu_executor_wake(executor);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t nap_ns = gpu_executor_nap_ns(gpu_wire_now_ns() - since_ns);
        until.tv_nsec +=
            (long)(nap_ns < executor->watch_nap_min_ns ? executor->watch_nap_min_ns : nap_ns);
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&executor->watch_work, &executor->watch_lock, &until);
    }
    pthread_mutex_unlock(&executor->watch_lock);
    return NULL;
}

/* Without a thread the script's own bounded sleeps are what makes it look again. */
static bool start(struct wire_executor *executor) {
    if (executor->has_watcher) {
        return true;
    }
    executor->has_watcher = gpu_wire_thread_start(&executor->watcher, watcher_main, executor) == 0;
    return executor->has_watcher;
}

void gpu_executor_watch_begin(struct wire_executor *executor, int64_t nap_min_ns) {
    if (executor->device == NULL || (executor->want_count == 0 && executor->printing_count == 0) ||
        !start(executor)) {
        return;
    }
    pthread_mutex_lock(&executor->watch_lock);
    executor->watch_count = 0;
    executor->watch_nap_min_ns = nap_min_ns;
    for (uint32_t i = 0; i < executor->want_count; i++) {
        uint32_t slot = executor->wants[i];
        uint64_t seq = atomic_load_explicit(&executor->page->wanted[slot], memory_order_relaxed);
        struct executor_event *event = gpu_executor_event_of(executor, slot, seq);
        if (event != NULL) {
            executor->watches[executor->watch_count].stream = slot;
            executor->watches[executor->watch_count].seq = seq;
            executor->watches[executor->watch_count].event = event->event;
            executor->watch_count++;
        }
    }
    atomic_store_explicit(&executor->is_watching, true, memory_order_release);
    pthread_cond_signal(&executor->watch_work);
    pthread_mutex_unlock(&executor->watch_lock);
}

void gpu_executor_watch_pause(struct wire_executor *executor) {
    if (atomic_load_explicit(&executor->is_watching, memory_order_acquire)) {
        pthread_mutex_lock(&executor->watch_lock);
        atomic_store_explicit(&executor->is_watching, false, memory_order_release);
        pthread_mutex_unlock(&executor->watch_lock);
    }
}

void gpu_executor_watch_stop(struct wire_executor *executor) {
    if (!executor->has_watcher) {
        return;
    }
    pthread_mutex_lock(&executor->watch_lock);
    executor->watcher_stops = true;
    atomic_store_explicit(&executor->is_watching, false, memory_order_release);
    pthread_cond_signal(&executor->watch_work);
    pthread_mutex_unlock(&executor->watch_lock);
    pthread_join(executor->watcher, NULL);
    executor->has_watcher = false;
    executor->watcher_stops = false;
}
