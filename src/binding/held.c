/* What the host holds of a state.
 *
 * A handle has two holders: the host, and its object until that ends or the host lets go. Of a
 * shared device the two may be threads at work at the same time: whoever takes the handle off the
 * object's list empties it, outside of the lock, since what was borrowed comes back to its owner
 * then, who may let go of further handles. */
#include <pthread.h>

#include "binding/loop.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all lists: held for a few stores */

void gpu_lua_host_handle_add(struct gpulua *g, struct host_handle *handle,
                             void (*empty)(struct host_handle *handle),
                             void (*destroy)(struct host_handle *handle)) {
    atomic_init(&handle->refs, 2);
    handle->empty = empty;
    handle->destroy = destroy;
    pthread_mutex_lock(&lock);
    handle->next = g->host_handles;
    handle->link = &g->host_handles;
    if (handle->next) {
        handle->next->link = &handle->next;
    }
    g->host_handles = handle;
    pthread_mutex_unlock(&lock);
}

/* Locked. */
static void take_off(struct host_handle *handle) {
    *handle->link = handle->next;
    if (handle->next) {
        handle->next->link = handle->link;
    }
    handle->next = NULL;
    handle->link = NULL;
}

static void drop(struct host_handle *handle) {
    if (atomic_fetch_sub_explicit(&handle->refs, 1, memory_order_acq_rel) == 1) {
        handle->destroy(handle);
    }
}

void gpu_lua_host_handle_retain(struct host_handle *handle) {
    atomic_fetch_add_explicit(&handle->refs, 1, memory_order_relaxed);
}

void gpu_lua_host_handle_release(struct host_handle *handle) {
    pthread_mutex_lock(&lock);
    uint32_t before = atomic_fetch_sub_explicit(&handle->refs, 1, memory_order_acq_rel);
    bool is_ours = before == 2 && handle->link; /* only the object has it now */
    if (is_ours) {
        take_off(handle);
    }
    pthread_mutex_unlock(&lock);
    if (is_ours) {
        handle->empty(handle);
        drop(handle);
    } else if (before == 1) {
        handle->destroy(handle);
    }
}

void gpu_lua_host_handles_end(struct gpulua *g) {
    for (;;) {
        pthread_mutex_lock(&lock);
        struct host_handle *handle = g->host_handles;
        if (handle) {
            take_off(handle);
        }
        pthread_mutex_unlock(&lock);
        if (!handle) {
            return;
        }
        handle->empty(handle);
        drop(handle);
    }
}
