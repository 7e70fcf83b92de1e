/* The executor: takes records in order and hands each to what does it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "executor/executor.h"
#include "wire/sync.h"

/* ---- records that are neither work nor requests ---- */

static void take_nop(struct wire_executor *executor, const struct wire_record *record) {
    (void)executor;
    (void)record;
}

static void take_arena_register(struct wire_executor *executor, const struct wire_record *record) {
    if (!atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        gpu_executor_arena_register(executor, record);
    }
}

static void take_slab_destroy(struct wire_executor *executor, const struct wire_record *record) {
    if (executor->device != NULL) {
        gpu_executor_slab_destroy(executor, record->object);
    }
}

static void take_pool_trim(struct wire_executor *executor, const struct wire_record *record) {
    (void)record;
    if (executor->device != NULL && executor->ops->pool_trim != NULL &&
        !atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        executor->ops->pool_trim(executor->device);
    }
}

static void take_stream_create(struct wire_executor *executor, const struct wire_record *record) {
    if (!atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        gpu_executor_stream_create(executor, record);
    }
}

static void take_stream_destroy(struct wire_executor *executor, const struct wire_record *record) {
    gpu_executor_stream_destroy(executor, record->stream);
}

static void take_module_unload(struct wire_executor *executor, const struct wire_record *record) {
    if (executor->device != NULL) {
        gpu_executor_module_unload(executor, record->object);
    }
}

static void take_forget(struct wire_executor *executor, const struct wire_record *record) {
    gpu_executor_failed_forget(executor, record->u.failures.count);
}

static void take_ask(struct wire_executor *executor, const struct wire_record *record) {
    const struct executor_stream *row = executor->streams[record->stream];
    if (executor->device != NULL && executor->ops->ask != NULL && row != NULL &&
        row->stream != NULL && !atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        executor->ops->ask(executor->device, row->stream, record->seq);
    }
}

static void take_block(struct wire_executor *executor, const struct wire_record *record) {
    const struct backend_ops *ops = executor->ops;
    struct backend_error error = {0};
    uint64_t address = 0;
    if (executor->device == NULL || !executor->is_checked ||
        atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        return;
    }
    char text[64];
    size_t room = gpu_wire_record_payload_bytes(record);
    room = room < sizeof text ? room : sizeof text;
    memcpy(text, gpu_wire_record_payload(record), room);
    text[room > 0 ? room - 1 : 0] = '\0';
    if (record->opcode == WIRE_OP_BLOCK_FREE) {
        if (executor->verify != NULL) {
            gpu_executor_verify_block_free(executor, record->u.block.number);
        } else if (ops->block_free != NULL) {
            ops->block_free(executor->device, record->u.block.number, text);
        }
    } else if (gpu_executor_resolve(executor, record->u.block.address, record->u.block.bytes,
                                    &address, &error) == GPULUA_OK) {
        uint64_t bytes = record->u.block.bytes;
        bool is_adopted = gpu_executor_is_adopted(executor, record->u.block.address);
        if (executor->verify != NULL) {
            /* The owner of adopted memory may change it at any time, and does not tell. */
            if (record->opcode == WIRE_OP_BLOCK_CREATE && !is_adopted) {
                gpu_executor_verify_block(executor, record, address, text);
            } else if (record->opcode == WIRE_OP_BLOCK_WRITTEN) {
                gpu_executor_verify_written(executor, address, bytes);
            }
        } else if (record->opcode == WIRE_OP_BLOCK_CREATE && ops->block_create != NULL) {
            ops->block_create(executor->device, record->u.block.number, address, bytes, text,
                              record->u.block.is_scratch != 0);
        } else if (record->opcode == WIRE_OP_BLOCK_WRITTEN && ops->block_written != NULL) {
            ops->block_written(executor->device, address, bytes);
        } else if (record->opcode == WIRE_OP_BLOCK_OVER && ops->block_over != NULL && !is_adopted) {
            ops->block_over(executor->device, address, bytes);
        }
    }
    free(error.log);
}

static void take_label(struct wire_executor *executor, const struct wire_record *record) {
    struct executor_label *row =
        gpu_executor_row_make(&executor->labels, record->object, EXECUTOR_OBJECTS_MAX);
    if (row != NULL) {
        size_t room = gpu_wire_record_payload_bytes(record);
        room = room < sizeof row->text ? room : sizeof row->text;
        memcpy(row->text, gpu_wire_record_payload(record), room);
        row->text[sizeof row->text - 1] = '\0';
    }
}

static void take_graph_destroy(struct wire_executor *executor, const struct wire_record *record) {
    gpu_executor_graph_destroy(executor, record->object);
}

typedef void taker(struct wire_executor *executor, const struct wire_record *record);

static taker *const taker_table[WIRE_OPCODE_COUNT] = {
    [WIRE_OP_NOP] = take_nop,
    [WIRE_OP_OPEN] = gpu_executor_request,
    [WIRE_OP_ARENA_REGISTER] = take_arena_register,
    [WIRE_OP_SLAB_CREATE] = gpu_executor_request,
    [WIRE_OP_SLAB_DESTROY] = take_slab_destroy,
    [WIRE_OP_POOL_ALLOC] = gpu_executor_request,
    [WIRE_OP_SLAB_ADOPT] = gpu_executor_request,
    [WIRE_OP_SLAB_FIND] = gpu_executor_request,
    [WIRE_OP_POOL_TRIM] = take_pool_trim,
    [WIRE_OP_STREAM_CREATE] = take_stream_create,
    [WIRE_OP_STREAM_DESTROY] = take_stream_destroy,
    [WIRE_OP_STREAM_NATIVE] = gpu_executor_request,
    [WIRE_OP_CAPTURE_BEGIN] = gpu_executor_request,
    [WIRE_OP_CAPTURE_LOOK] = gpu_executor_request,
    [WIRE_OP_CAPTURE_END] = gpu_executor_request,
    [WIRE_OP_STREAM_GIVE] = gpu_executor_request,
    [WIRE_OP_MODULE_COMPILE] = gpu_executor_request,
    [WIRE_OP_MODULE_LOAD] = gpu_executor_request,
    [WIRE_OP_MODULE_LIBRARY] = gpu_executor_request,
    [WIRE_OP_MODULE_UNLOAD] = take_module_unload,
    [WIRE_OP_KERNEL_GET] = gpu_executor_request,
    [WIRE_OP_GLOBAL_GET] = gpu_executor_request,
    [WIRE_OP_MEMORY_INFO] = gpu_executor_request,
    [WIRE_OP_DESCRIBE] = gpu_executor_request,
    [WIRE_OP_FORGET_FAILURES] = take_forget,
    [WIRE_OP_BLOCK_CREATE] = take_block,
    [WIRE_OP_BLOCK_FREE] = take_block,
    [WIRE_OP_BLOCK_WRITTEN] = take_block,
    [WIRE_OP_BLOCK_OVER] = take_block,
    [WIRE_OP_ASK] = take_ask,
    [WIRE_OP_GRAPH_BEGIN] = gpu_executor_graph_begin,
    [WIRE_OP_GRAPH_END] = gpu_executor_request,
    [WIRE_OP_GRAPH_DESTROY] = take_graph_destroy,
    [WIRE_OP_GRAPH_LAUNCH] = gpu_executor_work,
    [WIRE_OP_GRAPH_UPLOAD] = gpu_executor_work,
    [WIRE_OP_CLOSE] = gpu_executor_request,
    [WIRE_OP_TRACE_FLUSH] = gpu_executor_request,
    [WIRE_OP_LABEL] = take_label,
    [WIRE_OP_LAUNCH] = gpu_executor_work,
    [WIRE_OP_COPY] = gpu_executor_work,
    [WIRE_OP_UPLOAD] = gpu_executor_work,
    [WIRE_OP_DOWNLOAD] = gpu_executor_work,
    [WIRE_OP_FILL] = gpu_executor_work,
    [WIRE_OP_MARK] = gpu_executor_work,
    [WIRE_OP_STREAM_TAKE] = gpu_executor_work,
    [WIRE_OP_CONTROL] = gpu_executor_work,
    [WIRE_OP_BODY_END] = gpu_executor_work,
};

static bool is_sound(const struct wire_record *record) {
    return record->opcode < WIRE_OPCODE_COUNT && record->stream < WIRE_STREAMS_MAX &&
           record->length_bytes <= WIRE_RECORD_BYTES_MAX &&
           record->length_bytes >= sizeof *record + record->wait_count * sizeof(struct wire_wait);
}

/* Around all that calls the device on a thread that may be the host's. */
static int calls_begin(const struct wire_executor *executor) {
    return executor->device != NULL && executor->ops->calls_begin != NULL
               ? executor->ops->calls_begin(false)
               : -1;
}

static void calls_end(const struct wire_executor *executor, int before) {
    if (executor->ops != NULL && executor->ops->calls_end != NULL) {
        executor->ops->calls_end(before);
    }
}

void gpu_executor_hold(bool is_held) {
    for (size_t i = 0; gpu_backend_table[i] != NULL; i++) {
        if (gpu_backend_table[i]->calls_hold != NULL) {
            gpu_backend_table[i]->calls_hold(is_held);
        }
    }
}

void gpu_executor_take(struct wire_executor *executor, const struct wire_record *record) {
    gpu_executor_watch_pause(executor);
    if (!is_sound(record)) {
        gpu_executor_lose(executor, 0, "a command record makes no sense");
        return;
    }
    int before = calls_begin(executor);
    taker_table[record->opcode](executor, record);
    calls_end(executor, before);
}

static void tell_heard(struct wire_executor *executor) {
    _Atomic uint32_t *heard = &executor->page->wishes_heard;
    if (atomic_load_explicit(heard, memory_order_relaxed) != executor->wishes_seen) {
        atomic_store_explicit(heard, executor->wishes_seen, memory_order_release);
    }
}

void gpu_executor_poll(struct wire_executor *executor) {
    gpu_executor_watch_pause(executor);
    int before = calls_begin(executor);
    gpu_executor_replies_flush(executor);
    if (executor->device != NULL) {
        gpu_executor_compile_collect(executor);
    }
    if (executor->device != NULL &&
        !atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        gpu_executor_completion_poll(executor);
        gpu_executor_trace_poll(executor);
    } else {
        executor->wishes_seen = atomic_load_explicit(&executor->page->wishes, memory_order_acquire);
        executor->want_count = 0;
    }
    gpu_executor_loaded(executor);
    tell_heard(executor);
    calls_end(executor, before);
}

void gpu_executor_arm(struct wire_executor *executor) {
    if (gpu_executor_must_poll(executor)) {
        int before = calls_begin(executor);
        gpu_executor_words(executor);
        calls_end(executor, before);
        bool is_slept_for = gpu_executor_sleepers_send(executor);
        gpu_executor_watch_begin(executor, is_slept_for ? EXECUTOR_SLEPT_NAP_NS : 0);
        executor->poll_count = EXECUTOR_POLLS_PER_STATUS - 1; /* the next one asks */
    }
}

/* Whatever is done on a device that is traced or checked is taken for work. These calls need break
 * no capture, because nobody has asked for them: the loop's thread is ours, and says so for good.
 */
bool gpu_executor_warm(struct wire_executor *executor) {
    bool is_well =
        executor->device != NULL && !atomic_load_explicit(&executor->is_lost, memory_order_relaxed);
    if (!is_well || executor->ops->warm == NULL || !executor->page_is_writable ||
        executor->is_traced || executor->is_checked) {
        return false;
    }
    bool is_ours = executor->info.place != WIRE_EXECUTOR_INLINE;
    int before = -1;
    if (executor->ops->calls_begin != NULL) {
        before = executor->ops->calls_begin(is_ours);
    }
    if (!executor->has_warmed) {
        gpu_executor_loads(executor);
    }
    bool works = executor->ops->warm(executor->device, &executor->page->unread);
    executor->has_warmed = true;
    gpu_executor_loaded(executor); /* nothing was under way */
    if (!is_ours) {
        calls_end(executor, before);
    }
    return works;
}

bool gpu_executor_is_closed(const struct wire_executor *executor) {
    return executor->is_closed;
}

struct wire_executor *gpu_executor_create(const struct wire_executor_info *info,
                                          struct wire_error *error) {
    struct wire_executor *executor = NULL;
    if (posix_memalign((void **)&executor, 64, sizeof *executor) != 0) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        return NULL;
    }
    memset(executor, 0, sizeof *executor);
    executor->info = *info;
    executor->page = info->page;
    executor->slabs.row_bytes = sizeof(struct executor_slab);
    executor->modules.row_bytes = sizeof(struct executor_module);
    executor->kernels.row_bytes = sizeof(struct executor_kernel);
    executor->graphs.row_bytes = sizeof(struct executor_graph);
    executor->labels.row_bytes = sizeof(struct executor_label);
    executor->pinned.row_bytes = sizeof(struct executor_pin);
    if (gpu_executor_reply_init(executor) != GPULUA_OK) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, ENOMEM, "out of memory");
        free(executor);
        return NULL;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&executor->reply_lock, NULL);
    pthread_mutex_init(&executor->times_lock, NULL);
    pthread_mutex_init(&executor->failed_lock, NULL);
    pthread_mutex_init(&executor->compile_lock, NULL);
    pthread_mutex_init(&executor->watch_lock, NULL);
    pthread_cond_init(&executor->compile_work, &attributes);
    pthread_cond_init(&executor->watch_work, &attributes);
    pthread_condattr_destroy(&attributes);
    atomic_store_explicit(&info->page->state, WIRE_STATE_READY, memory_order_release);
    return executor;
}

void gpu_executor_destroy(struct wire_executor *executor) {
    if (executor == NULL) {
        return;
    }
    int before = calls_begin(executor);
    gpu_executor_device_close(executor);
    calls_end(executor, before);
    gpu_executor_reply_finish(executor);
    free(executor->failed);
    free(executor->uses);
    pthread_cond_destroy(&executor->watch_work);
    pthread_cond_destroy(&executor->compile_work);
    pthread_mutex_destroy(&executor->watch_lock);
    pthread_mutex_destroy(&executor->compile_lock);
    pthread_mutex_destroy(&executor->failed_lock);
    pthread_mutex_destroy(&executor->reply_lock);
    pthread_mutex_destroy(&executor->times_lock);
    free(executor->times);
    free(executor);
}
