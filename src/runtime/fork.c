/* Devices in a child by fork. It has its parent's devices in its memory, and of theirs are the
 * rings, the descriptors and the process or thread that does the work: a second voice there would
 * end what is the parent's, when the child only ends. So in the child all of them are closed, and
 * what they had is left as it is. */
#include <pthread.h>

#include "runtime/state.h"

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct gpu_device *first;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void before_fork(void) {
    pthread_mutex_lock(&all.lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&all.lock);
}

/* Other threads are not here any more, and so cannot give back what they had locked. */
static void in_child(void) {
    pthread_mutex_init(&all.lock, NULL);
    for (struct gpu_device *device = all.first; device; device = device->all_next) {
        struct gpu_share *share = device->share;
        gpu_repeat_end(device);
        device->is_inherited = device->is_closing = true;
        device->state = GPU_DEVICE_CLOSED;
        device->link = NULL;
        if (share) {
            pthread_mutex_init(&share->mutex, NULL);
            atomic_store_explicit(&share->owner, 0, memory_order_relaxed);
            share->depth = 0;
        }
    }
}

static void watch(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}

void gpu_fork_add(struct gpu_device *device) {
    pthread_once(&all.once, watch);
    pthread_mutex_lock(&all.lock);
    device->all_next = all.first;
    device->all_link = &all.first;
    if (all.first) {
        all.first->all_link = &device->all_next;
    }
    all.first = device;
    pthread_mutex_unlock(&all.lock);
}

void gpu_fork_remove(struct gpu_device *device) {
    pthread_mutex_lock(&all.lock);
    *device->all_link = device->all_next;
    if (device->all_next) {
        device->all_next->all_link = device->all_link;
    }
    pthread_mutex_unlock(&all.lock);
}
