/* Streams of the CPU device: queues of items, and what is done for each. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/check/schedule.h"
#include "backend/cpu/device.h"
#include "backend/cpu/module.h"

#define ARGS_ROOM_BYTES 256u /* of launches that are kept for reuse */

static gpulua_status fail_memory(struct backend_error *error) {
    return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
}

/* ---- serving a stream ---- */

void gpu_cpu_item_recycle(struct backend_stream *stream, struct cpu_item *item) {
    if (item->graph != NULL) {
        return;
    }
    if (item->kind == CPU_ITEM_LAUNCH) {
        struct cpu_launch_item *launch = item->u.launch;
        if (launch->args_room_bytes == ARGS_ROOM_BYTES) {
            launch->next = stream->spare_launches;
            stream->spare_launches = launch;
        } else {
            free(launch);
        }
    }
    item->next = stream->spare_items;
    stream->spare_items = item;
    stream->item_count--;
    if (stream->is_full && stream->item_count <= CPU_ITEMS_LOW) {
        stream->is_full = false;
        pthread_cond_broadcast(&stream->changed);
    }
}

void gpu_cpu_item_report(struct backend_stream *stream, struct cpu_item *item) {
    if (__builtin_expect(stream->device->is_timed, 0) && item->node != 0) {
        gpu_cpu_graph_node_end(item);
    }
    if (item->kind == CPU_ITEM_GRAPH) { /* check mode, where it is done as one */
        item = gpu_cpu_graph_failed_checked(item->u.run.graph);
        if (item == NULL) {
            return;
        }
    }
    if (item->kind == CPU_ITEM_LAUNCH &&
        atomic_load_explicit(&item->u.launch->launch.failed, memory_order_acquire) == 2) {
        const struct backend_sink *sink = &stream->device->sink;
        uint32_t slot = stream->slot;
        uint64_t seq = item->seq;
        if (item->graph == NULL || gpu_cpu_graph_fail(item->graph, &slot, &seq)) {
            const struct cpu_launch *launch = &item->u.launch->launch;
            const struct backend_failure failure = {launch->failure_status, launch->failure,
                                                    launch->failure_places,
                                                    launch->failure_place_count};
            sink->failed(sink->user, slot, seq, item->node, &failure);
        }
    }
}

static bool is_mark(const struct cpu_item *item) {
    return item != NULL && (item->kind == CPU_ITEM_WORD || item->kind == CPU_ITEM_EVENT);
}

/* The next item, or NULL: the stream is idle. Before anything that takes time, and before idling,
 * those who wait are told that words and events have moved. */
static struct cpu_item *take_item(struct backend_stream *stream, struct cpu_item *finished) {
    pthread_mutex_lock(&stream->lock);
    if (finished != NULL) {
        gpu_cpu_item_recycle(stream, finished);
    }
    while (stream->has_moved && !is_mark(stream->head)) {
        stream->has_moved = false;
        pthread_mutex_unlock(&stream->lock);
        stream->device->sink.moved(stream->device->sink.user);
        pthread_mutex_lock(&stream->lock);
    }
    struct cpu_item *item = stream->head;
    if (item != NULL) {
        stream->head = item->next;
        if (stream->head == NULL) {
            stream->tail = NULL;
        }
    } else {
        stream->is_active = false;
        if (stream->is_awaited) {
            pthread_cond_broadcast(&stream->changed);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return item;
}

/* True: parked. The item is given back first: once parked, the stream is not ours. */
static bool wait_for_event(struct backend_stream *stream, struct cpu_item *item) {
    struct cpu_ticket *ticket = item->u.ticket;
    bool is_graphs = item->graph != NULL;
    pthread_mutex_lock(&stream->lock);
    gpu_cpu_item_recycle(stream, item);
    pthread_mutex_unlock(&stream->lock);
    bool is_parked = gpu_cpu_ticket_park(ticket, stream);
    if (!is_graphs) {
        gpu_cpu_ticket_release(ticket);
    }
    return is_parked;
}

void gpu_cpu_stream_serve(struct backend_stream *stream, struct cpu_item *finished) {
    struct cpu_item *item = finished;
    if (finished != NULL) {
        gpu_cpu_item_report(stream, finished);
    }
    while ((item = take_item(stream, item)) != NULL) {
        switch (item->kind) {
        case CPU_ITEM_WORD:
            atomic_store_explicit(item->u.word.word, item->u.word.value, memory_order_release);
            stream->has_moved = true;
            break;
        case CPU_ITEM_EVENT:
            gpu_cpu_ticket_fire(item->u.ticket);
            if (item->graph == NULL) {
                gpu_cpu_ticket_wake(item->u.ticket);
                gpu_cpu_ticket_release(item->u.ticket);
                stream->has_moved = true;
            }
            break;
        case CPU_ITEM_GRAPH:
            gpu_cpu_graph_start(stream, item);
            break;
        case CPU_ITEM_CONTROL:
            if (!gpu_cpu_graph_has_failed(item->graph)) {
                gpu_cpu_control_start(stream, item);
            }
            break;
        case CPU_ITEM_WAIT:
            if (wait_for_event(stream, item)) {
                return;
            }
            item = NULL;
            break;
        default:
            if (item->graph != NULL && gpu_cpu_graph_has_failed(item->graph)) {
                break;
            }
            if (__builtin_expect(stream->device->is_timed, 0) && item->node != 0) {
                gpu_cpu_graph_node_begin(item);
            }
            if (!gpu_cpu_item_do(stream, item)) {
                return;
            }
            gpu_cpu_item_report(stream, item);
            break;
        }
    }
}

/* ---- adding items ---- */

struct cpu_item *gpu_cpu_item_make(struct backend_stream *stream, enum cpu_item_kind kind,
                                   uint64_t seq, uint32_t args_bytes) {
    struct cpu_launch_item *launch = NULL;
    pthread_mutex_lock(&stream->lock);
    while (stream->is_full) {
        pthread_cond_wait(&stream->changed, &stream->lock);
    }
    struct cpu_item *item = stream->spare_items;
    if (item != NULL) {
        stream->spare_items = item->next;
    }
    if (kind == CPU_ITEM_LAUNCH && args_bytes <= ARGS_ROOM_BYTES) {
        launch = stream->spare_launches;
        if (launch != NULL) {
            stream->spare_launches = launch->next;
        }
    }
    pthread_mutex_unlock(&stream->lock);
    if (item == NULL) {
        item = malloc(sizeof *item);
    }
    if (kind == CPU_ITEM_LAUNCH && launch == NULL) {
        uint32_t room = args_bytes <= ARGS_ROOM_BYTES ? ARGS_ROOM_BYTES : args_bytes;
        size_t bytes = (sizeof *launch + room + 63u) & ~(size_t)63u;
        launch = aligned_alloc(64, bytes);
        if (launch != NULL) {
            launch->args_room_bytes = room;
        }
    }
    if (item == NULL || (kind == CPU_ITEM_LAUNCH && launch == NULL)) {
        free(item);
        free(launch);
        return NULL;
    }
    item->next = NULL;
    item->kind = kind;
    item->seq = seq;
    item->node = 0;
    item->graph = NULL;
    if (kind == CPU_ITEM_LAUNCH) {
        item->u.launch = launch;
    }
    return item;
}

void gpu_cpu_item_put(struct backend_stream *stream, struct cpu_item *item) {
    if (stream->recorder != NULL) {
        gpu_cpu_graph_take(stream->recorder, item);
        return;
    }
    pthread_mutex_lock(&stream->lock);
    if (stream->tail != NULL) {
        stream->tail->next = item;
    } else {
        stream->head = item;
    }
    stream->tail = item;
    if (++stream->item_count >= CPU_ITEMS_MAX) {
        stream->is_full = true;
    }
    if (stream->device->schedule != NULL) {
        pthread_mutex_unlock(&stream->lock);
        gpu_cpu_schedule_put(stream, item);
        return;
    }
    bool was_active = stream->is_active;
    stream->is_active = true;
    pthread_mutex_unlock(&stream->lock);
    if (!was_active) {
        gpu_cpu_pool_ready(stream);
    }
}

/* Active, but without items, is one that waits for another. */
enum backend_query gpu_cpu_stream_query(struct backend_stream *stream,
                                        struct backend_error *error) {
    (void)error;
    pthread_mutex_lock(&stream->lock);
    bool is_idle = !stream->is_active && stream->item_count == 0;
    pthread_mutex_unlock(&stream->lock);
    return is_idle ? BACKEND_DONE : BACKEND_PENDING;
}

gpulua_status gpu_cpu_stream_word(struct backend_stream *stream, _Atomic uint64_t *word,
                                  uint64_t value, struct backend_error *error) {
    struct cpu_item *item = gpu_cpu_item_make(stream, CPU_ITEM_WORD, 0, 0);
    if (item == NULL) {
        return fail_memory(error);
    }
    item->u.word.word = word;
    item->u.word.value = value;
    gpu_cpu_item_put(stream, item);
    return GPULUA_OK;
}

static gpulua_status put_copy(struct backend_stream *stream, uint64_t seq, void *dst,
                              const void *src, uint64_t bytes, struct backend_error *error) {
    struct cpu_item *item = gpu_cpu_item_make(stream, CPU_ITEM_COPY, seq, 0);
    if (item == NULL) {
        return fail_memory(error);
    }
    item->u.copy.dst = dst;
    item->u.copy.src = src;
    item->u.copy.bytes = bytes;
    gpu_cpu_item_put(stream, item);
    return GPULUA_OK;
}

gpulua_status gpu_cpu_copy(struct backend_stream *stream, uint64_t seq, uint64_t dst, uint64_t src,
                           uint64_t bytes, struct backend_error *error) {
    return put_copy(stream, seq, (void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes,
                    error);
}

gpulua_status gpu_cpu_upload(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                             const void *src, uint64_t bytes, struct backend_error *error) {
    return put_copy(stream, seq, (void *)(uintptr_t)dst, src, bytes, error);
}

gpulua_status gpu_cpu_download(struct backend_stream *stream, uint64_t seq, void *dst, uint64_t src,
                               uint64_t bytes, struct backend_error *error) {
    return put_copy(stream, seq, dst, (const void *)(uintptr_t)src, bytes, error);
}

gpulua_status gpu_cpu_fill(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                           const void *element, uint32_t elem_bytes, uint64_t elem_count,
                           struct backend_error *error) {
    struct cpu_item *item = gpu_cpu_item_make(stream, CPU_ITEM_FILL, seq, 0);
    if (item == NULL) {
        return fail_memory(error);
    }
    item->elem_bytes = elem_bytes;
    item->u.fill.dst = (uint8_t *)(uintptr_t)dst;
    item->u.fill.elem_count = elem_count;
    memset(item->u.fill.pattern, 0, sizeof item->u.fill.pattern);
    memcpy(item->u.fill.pattern, element, elem_bytes);
    gpu_cpu_item_put(stream, item);
    return GPULUA_OK;
}

static gpulua_status check_launch(const struct backend_launch *launch,
                                  struct backend_error *error) {
    static const uint32_t grid_max[3] = {0x7fffffffu, 65535u, 65535u};
    static const uint32_t block_max[3] = {1024u, 1024u, 64u};
    const struct cpu_kernel *kernel = (const struct cpu_kernel *)launch->kernel;
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (launch->grid[i] == 0 || launch->grid[i] > grid_max[i] || launch->block[i] == 0 ||
            launch->block[i] > block_max[i]) {
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                    "a grid of %" PRIu32 " x %" PRIu32 " x %" PRIu32
                                    " blocks of %" PRIu32 " x %" PRIu32 " x %" PRIu32
                                    " threads cannot be launched",
                                    launch->grid[0], launch->grid[1], launch->grid[2],
                                    launch->block[0], launch->block[1], launch->block[2]);
        }
        threads *= launch->block[i];
        uint32_t cluster = kernel->table->cluster[i];
        if (cluster > 1 && launch->grid[i] % cluster != 0) {
            const uint32_t *grid = launch->grid, *of = kernel->table->cluster;
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                    "a grid of %" PRIu32 " x %" PRIu32 " x %" PRIu32
                                    " blocks is no whole number of clusters of %" PRIu32
                                    " x %" PRIu32 " x %" PRIu32 " (__cluster_dims__)",
                                    grid[0], grid[1], grid[2], of[0], of[1], of[2]);
        }
    }
    if (threads > CPU_BLOCK_THREADS_MAX) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "a block of %" PRIu64 " threads; %u is the most", threads,
                                CPU_BLOCK_THREADS_MAX);
    }
    if (launch->shared_bytes > CPU_SHARED_BYTES_MAX) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "%" PRIu32 " bytes of shared memory; %u is the most",
                                launch->shared_bytes, CPU_SHARED_BYTES_MAX);
    }
    return GPULUA_OK;
}

gpulua_status gpu_cpu_launch_put(const struct backend_launch *launch, struct backend_error *error) {
    gpulua_status status = check_launch(launch, error);
    if (status != GPULUA_OK) {
        return status;
    }
    struct cpu_item *item =
        gpu_cpu_item_make(launch->stream, CPU_ITEM_LAUNCH, launch->seq, launch->args_bytes);
    if (item == NULL) {
        return fail_memory(error);
    }
    struct cpu_launch *made = &item->u.launch->launch;
    made->kernel = (struct cpu_kernel *)launch->kernel;
    memcpy(made->grid, launch->grid, sizeof made->grid);
    memcpy(made->block, launch->block, sizeof made->block);
    made->shared_bytes = launch->shared_bytes;
    made->args = item->u.launch->args;
    atomic_store_explicit(&made->failed, 0, memory_order_relaxed);
    made->failure[0] = '\0';
    if (launch->args_bytes != 0) {
        memcpy(item->u.launch->args, launch->args, launch->args_bytes);
    }
    gpu_cpu_item_put(launch->stream, item);
    return GPULUA_OK;
}

/* ---- streams ---- */

struct backend_stream *gpu_cpu_stream_make(struct backend_device *device, uint32_t slot,
                                           int priority) {
    struct backend_stream *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    made->device = device;
    made->slot = slot;
    made->priority = priority > 0                      ? 0
                     : priority < CPU_PRIORITY_HIGHEST ? CPU_PRIORITY_HIGHEST
                                                       : priority;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    return made;
}

gpulua_status gpu_cpu_stream_create(struct backend_device *device, uint32_t slot, int priority,
                                    struct backend_stream **stream, struct backend_error *error) {
    struct backend_stream *made = gpu_cpu_stream_make(device, slot, priority);
    if (made == NULL) {
        return fail_memory(error);
    }
    made->next = device->streams;
    made->link = &device->streams;
    if (made->next != NULL) {
        made->next->link = &made->next;
    }
    device->streams = made;
    if (device->schedule != NULL) {
        gpu_cpu_schedule_join(made);
    }
    *stream = made;
    return GPULUA_OK;
}

void gpu_cpu_stream_destroy(struct backend_device *device, struct backend_stream *stream) {
    if (device->schedule != NULL && stream->head != NULL) {
        gpu_cpu_schedule_ask(device, NULL, 0); /* of the device's close alone: it is idle else */
    }
    pthread_mutex_lock(&stream->lock);
    stream->is_awaited = true;
    while (stream->is_active) {
        pthread_cond_wait(&stream->changed, &stream->lock);
    }
    pthread_mutex_unlock(&stream->lock);
    if (stream->link != NULL) {
        *stream->link = stream->next;
    }
    if (stream->next != NULL) {
        stream->next->link = stream->link;
    }
    while (stream->spare_items != NULL) {
        struct cpu_item *item = stream->spare_items;
        stream->spare_items = item->next;
        free(item);
    }
    while (stream->spare_launches != NULL) {
        struct cpu_launch_item *launch = stream->spare_launches;
        stream->spare_launches = launch->next;
        free(launch);
    }
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}
