/* Children by fork (fork.h). */
#include "runtime/fork.h"

#include <pthread.h>
#include <time.h>

#include "runtime/state.h"

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct gpu_fork *first;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

/* Who has a lock may itself wait for what the forking thread has, or for its end (a host's handlers
 * for forks lock, too, and its functions are called with locks of ours): not for ever. */
#define PATIENCE_NS INT64_C(1000000000)
#define LOOK_NS 100000

static bool hold_all(void) {
    bool has_all = true;
    for (struct gpu_fork *fork = all.first; fork; fork = fork->next) {
        fork->is_held = fork->hold && fork->hold(fork);
        has_all &= fork->is_held || !fork->hold;
    }
    return has_all;
}

static void let_go_of_all(void) {
    for (struct gpu_fork *fork = all.first; fork; fork = fork->next) {
        if (fork->is_held) {
            fork->let_go(fork);
        }
    }
}

/* Nothing is held while it waits: who has a lock may be about to take this one, too. */
static void before_fork(void) {
    int64_t end_ns = gpu_clock_ns() + PATIENCE_NS;
    pthread_mutex_lock(&all.lock);
    while (!hold_all() && gpu_clock_ns() < end_ns) {
        let_go_of_all();
        pthread_mutex_unlock(&all.lock);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        pthread_mutex_lock(&all.lock);
    }
}

static void in_parent(void) {
    let_go_of_all();
    pthread_mutex_unlock(&all.lock);
}

/* Other threads are not here any more, and so cannot give back what they had locked. */
static void call_in_child(void) {
    pthread_mutex_init(&all.lock, NULL);
    let_go_of_all();
    for (struct gpu_fork *fork = all.first; fork; fork = fork->next) {
        fork->in_child(fork);
    }
}

static void watch(void) {
    pthread_atfork(before_fork, in_parent, call_in_child);
}

void gpu_fork_add(struct gpu_fork *fork) {
    pthread_once(&all.once, watch);
    pthread_mutex_lock(&all.lock);
    fork->next = all.first;
    fork->link = &all.first;
    if (all.first) {
        all.first->link = &fork->next;
    }
    all.first = fork;
    pthread_mutex_unlock(&all.lock);
}

void gpu_fork_remove(struct gpu_fork *fork) {
    pthread_mutex_lock(&all.lock);
    *fork->link = fork->next;
    if (fork->next) {
        fork->next->link = fork->link;
    }
    pthread_mutex_unlock(&all.lock);
}
