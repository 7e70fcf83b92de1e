/* Children by fork (fork.h). */
#include "runtime/fork.h"

#include <pthread.h>

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct gpu_fork *first;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void before_fork(void) {
    pthread_mutex_lock(&all.lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&all.lock);
}

/* Other threads are not here any more, and so cannot give back what they had locked. */
static void call_in_child(void) {
    pthread_mutex_init(&all.lock, NULL);
    for (struct gpu_fork *fork = all.first; fork; fork = fork->next) {
        fork->in_child(fork);
    }
}

static void watch(void) {
    pthread_atfork(before_fork, in_parent, call_in_child);
}

void gpu_fork_add(struct gpu_fork *fork, void (*in_child)(struct gpu_fork *fork)) {
    pthread_once(&all.once, watch);
    pthread_mutex_lock(&all.lock);
    fork->in_child = in_child;
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
