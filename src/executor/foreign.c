/* What an exchange with other libraries needs of the device: their memory, their streams, and ours
 * as the driver knows them. All of it is in one process. */
#include <inttypes.h>

#include "executor/executor.h"

static gpulua_status check_here(const struct wire_executor *executor, struct backend_error *error) {
    if (executor->info.place != WIRE_EXECUTOR_APART) {
        return GPULUA_OK;
    }
    return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                            "the device lives in a process of its own, which does not see memory "
                            "of this one (isolation none and thread do)");
}

/* What a host puts on a stream comes in front of or behind our own by when it does so: on a thread
 * of ours that is later than when the script said it. */
static gpulua_status check_inline(const struct wire_executor *executor,
                                  struct backend_error *error) {
    if (executor->info.place == WIRE_EXECUTOR_INLINE) {
        return GPULUA_OK;
    }
    return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                            "the device lives on a thread or in a process of its own, which shares "
                            "no streams with the host (isolation none does)");
}

gpulua_status gpu_executor_adopt(struct wire_executor *executor, const struct wire_record *record,
                                 struct backend_error *error) {
    uint64_t address = record->u.foreign.address, bytes = record->u.foreign.bytes;
    if (check_here(executor, error) != GPULUA_OK) {
        return error->status;
    }
    struct executor_slab *row = gpu_executor_slab_new(executor, record->object, error);
    if (row == NULL) {
        return error->status;
    }
    if (address < EXECUTOR_SLAB_ALIGN_BYTES) { /* its slab would begin at 0, as none does */
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "there is no memory at address %" PRIu64, address);
    }
    uint64_t begin = address % EXECUTOR_SLAB_ALIGN_BYTES;
    *row = (struct executor_slab){
        .address = address - begin, .bytes = begin + bytes, .begin = begin, .is_adopted = true};
    if (executor->ops->memory_adopt != NULL) {
        executor->ops->memory_adopt(executor->device, address, bytes);
    }
    return GPULUA_OK;
}

bool gpu_executor_is_adopted(const struct wire_executor *executor, uint64_t address) {
    const struct executor_slab *slab =
        gpu_executor_row(&executor->slabs, gpu_wire_address_slab(address));
    return slab != NULL && slab->is_adopted;
}

gpulua_status gpu_executor_slab_find(struct wire_executor *executor,
                                     const struct wire_record *record,
                                     struct wire_slab_facts *facts, struct backend_error *error) {
    uint64_t low = record->u.foreign.address, high = low + record->u.foreign.bytes;
    if (check_here(executor, error) != GPULUA_OK) {
        return error->status;
    }
    for (uint32_t i = 1; i < executor->slabs.count; i++) {
        const struct executor_slab *slab = gpu_executor_row(&executor->slabs, i);
        bool is_it = record->object != 0
                         ? i == record->object
                         : slab->address + slab->begin < high && low < slab->address + slab->bytes;
        if (slab->address != 0 && is_it) {
            *facts = (struct wire_slab_facts){
                .address = slab->address, .bytes = slab->bytes, .begin = slab->begin, .slab = i};
            return GPULUA_OK;
        }
    }
    *facts = (struct wire_slab_facts){0};
    return GPULUA_OK;
}

/* ---- streams ---- */

static gpulua_status no_streams(struct backend_error *error) {
    return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                            "the streams of this device are nothing that another library knows");
}

gpulua_status gpu_executor_stream_native(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         struct wire_stream_facts *facts,
                                         struct backend_error *error) {
    const struct executor_stream *row = executor->streams[record->stream];
    if (check_inline(executor, error) != GPULUA_OK) {
        return error->status;
    }
    if (executor->ops->stream_native == NULL) {
        return no_streams(error);
    }
    if (row == NULL || row->stream == NULL) {
        return gpu_backend_fail(error, GPULUA_CLOSED, 0, "stream slot %" PRIu32 " is not there",
                                record->stream);
    }
    gpu_executor_settle(executor, record->stream);
    /* Recorded later, it would be behind the host's work. */
    if (row->owes_event && !row->is_taken) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                "no memory for an event behind what is on the stream");
    }
    facts->native = executor->ops->stream_native(row->stream);
    return GPULUA_OK;
}

static bool is_owed(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    struct executor_event *event;
    struct backend_error ignored;
    gpu_backend_error_init(&ignored);
    return gpu_executor_event_awaited(executor, slot, seq, &event, &ignored) ==
           GPULUA_CAPTURE_ACTIVE;
}

gpulua_status gpu_executor_capture(struct wire_executor *executor, const struct wire_record *record,
                                   struct wire_capture_facts *facts, struct backend_error *error) {
    const struct backend_ops *ops = executor->ops;
    uint64_t stream = record->u.capture.stream;
    if (check_inline(executor, error) != GPULUA_OK) {
        return error->status;
    }
    if (ops->capture_begin == NULL) {
        return no_streams(error);
    }
    gpulua_status status;
    switch (record->opcode) {
    case WIRE_OP_CAPTURE_BEGIN:
        gpu_executor_settle_taken(executor);
        return ops->capture_begin(executor->device, stream,
                                  (enum wire_capture_mode)record->u.capture.mode, error);
    case WIRE_OP_CAPTURE_LOOK: {
        enum wire_capture_state state = WIRE_CAPTURE_NONE;
        uint64_t seq = record->u.capture.seq;
        status = ops->capture_look(executor->device, stream, &state, error);
        facts->state = state;
        facts->is_owed = seq != 0 && is_owed(executor, record->stream, seq);
        return status;
    }
    default:
        status = ops->capture_end(executor->device, stream,
                                  record->u.capture.is_dropped ? NULL : &facts->graph, error);
        gpu_executor_settle_taken(executor);
        return status;
    }
}

gpulua_status gpu_executor_stream_give(struct wire_executor *executor,
                                       const struct wire_record *record,
                                       struct backend_error *error) {
    if (check_inline(executor, error) != GPULUA_OK) {
        return error->status;
    }
    if (executor->ops->stream_give == NULL) {
        return no_streams(error);
    }
    if (gpu_wire_page_done(executor->page, record->stream) >= record->u.foreign.seq) {
        return GPULUA_OK;
    }
    struct executor_event *event;
    gpulua_status status =
        gpu_executor_event_awaited(executor, record->stream, record->u.foreign.seq, &event, error);
    return event == NULL
               ? status
               : executor->ops->stream_give(event->event, record->u.foreign.stream, error);
}

gpulua_status gpu_executor_stream_take(struct wire_executor *executor,
                                       const struct wire_record *record,
                                       struct backend_stream *stream, struct backend_error *error) {
    if (check_inline(executor, error) != GPULUA_OK) {
        return error->status;
    }
    return executor->ops->stream_take == NULL
               ? no_streams(error)
               : executor->ops->stream_take(stream, record->u.foreign.stream, error);
}
