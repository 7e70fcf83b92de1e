/* Work: waits, then the operation itself, or its skipping or failing, and always what marks its
 * end. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "executor/executor.h"
#include "ranges/ranges.h"
#include "wire/sync.h"

/* Blocks until it is over. Nothing later is done meanwhile on any stream. */
static void wait_here(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    if (executor->ops != NULL && executor->ops->ask != NULL) {
        executor->ops->ask(executor->device, executor->streams[slot]->stream, seq);
    }
    executor->asks_driver = true; /* also where a word is to come: behind a fault none does */
    while (!gpu_executor_is_over(executor, slot, seq)) {
        gpu_wire_nap_ns(100000);
    }
    executor->asks_driver = false;
}

/* Later work on the stream behind every operation that the record waits for. A skipped record does
 * this too: the script side leaves out waits that an earlier record on the stream has made, and
 * takes what is behind this one for being behind those as well. So what cannot be put on the stream
 * is waited for here. */
static gpulua_status issue_waits(struct wire_executor *executor, const struct wire_record *record,
                                 struct backend_stream *stream, struct backend_error *error) {
    const struct wire_wait *waits = gpu_wire_record_waits(record);
    for (uint32_t i = 0; i < record->wait_count; i++) {
        const struct wire_wait *wait = &waits[i];
        if ((wait->flags & WIRE_WAIT_ORDER) == 0 || wait->stream == record->stream ||
            wait->stream >= WIRE_STREAMS_MAX ||
            gpu_wire_page_done(executor->page, wait->stream) >= wait->seq) {
            continue;
        }
        struct executor_event *event;
        gpulua_status status =
            gpu_executor_event_awaited(executor, wait->stream, wait->seq, &event, error);
        if (status == GPULUA_OK && event != NULL && stream != NULL) {
            status = executor->ops->stream_wait(stream, event->event, error);
        }
        if (status == GPULUA_DEVICE_LOST || gpu_executor_is_captured(status)) {
            return status;
        }
        if (status != GPULUA_OK || (event != NULL && stream == NULL)) {
            wait_here(executor, wait->stream, wait->seq);
        }
        if (status != GPULUA_OK) {
            free(error->log);
            gpu_backend_error_init(error);
        }
    }
    return GPULUA_OK;
}

/* The number of the oldest failure among what the record reads; 0: none is known. */
static uint64_t failed_dependency(struct wire_executor *executor,
                                  const struct wire_record *record) {
    if (atomic_load_explicit(&executor->failed_count, memory_order_acquire) == 0) {
        return 0;
    }
    const struct wire_wait *waits = gpu_wire_record_waits(record);
    uint64_t oldest = 0;
    for (uint32_t i = 0; i < record->wait_count; i++) {
        if ((waits[i].flags & WIRE_WAIT_DEPENDS) != 0) {
            uint64_t number = gpu_executor_failed_find(executor, waits[i].stream, waits[i].seq);
            if (number != 0 && (oldest == 0 || number < oldest)) {
                oldest = number;
            }
        }
    }
    return oldest;
}

/* ---- the operations ---- */

/* What the launch declares, with real addresses: in check mode. */
static gpulua_status resolve_uses(struct wire_executor *executor, const struct wire_record *record,
                                  struct backend_launch *launch, struct backend_error *error) {
    uint32_t count = record->u.launch.use_count;
    uint32_t offset =
        gpu_wire_launch_uses_offset(record->u.launch.args_bytes, record->u.launch.reloc_count);
    uint32_t bytes = gpu_wire_record_payload_bytes(record);
    if (offset > bytes || count * sizeof(struct wire_use) > bytes - offset) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "the launch's uses do not fit its record");
    }
    if (count > executor->use_capacity) {
        struct backend_use *grown = realloc(executor->uses, count * sizeof *grown);
        if (grown == NULL) {
            return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
        }
        executor->uses = grown;
        executor->use_capacity = count;
    }
    const uint8_t *payload = gpu_wire_record_payload(record);
    for (uint32_t i = 0; i < count; i++) {
        struct wire_use use;
        memcpy(&use, payload + offset + i * sizeof use, sizeof use);
        struct backend_use *to = &executor->uses[i];
        *to = (struct backend_use){
            .bytes = use.bytes, .access = use.access, .param = use.param, .part = use.part};
        memcpy(to->name, use.name, sizeof to->name - 1);
        gpulua_status status =
            gpu_executor_resolve(executor, use.address, use.bytes, &to->address, error);
        if (status != GPULUA_OK) {
            return status;
        }
    }
    launch->uses = executor->uses;
    launch->use_count = count;
    return GPULUA_OK;
}

static gpulua_status run_launch(struct wire_executor *executor, const struct wire_record *record,
                                struct backend_stream *stream, bool *prints,
                                struct backend_error *error) {
    const struct executor_kernel *kernel = gpu_executor_row(&executor->kernels, record->object);
    if (kernel == NULL || kernel->kernel == NULL) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "kernel %" PRIu32
                                " is not there: its module was unloaded or never loaded",
                                record->object);
    }
    uint32_t args_bytes = record->u.launch.args_bytes;
    uint32_t reloc_count = record->u.launch.reloc_count;
    uint32_t bytes = gpu_wire_record_payload_bytes(record);
    if (args_bytes > bytes || reloc_count * sizeof(uint16_t) > bytes - args_bytes) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "the launch's arguments do not fit its record");
    }
    const uint8_t *payload = gpu_wire_record_payload(record);
    memcpy(executor->args, payload, args_bytes);
    for (uint32_t i = 0; i < reloc_count; i++) {
        uint16_t offset;
        memcpy(&offset, payload + args_bytes + i * sizeof offset, sizeof offset);
        if (offset + sizeof(uint64_t) > args_bytes) {
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                    "an address lies outside the launch's arguments");
        }
        uint64_t address;
        memcpy(&address, executor->args + offset, sizeof address);
        if (address != 0) {
            gpulua_status status = gpu_executor_resolve_arg(executor, address, &address, error);
            if (status != GPULUA_OK) {
                return status;
            }
            memcpy(executor->args + offset, &address, sizeof address);
        }
    }
    struct backend_launch launch = {
        .kernel = kernel->kernel,
        .stream = stream,
        .seq = record->seq,
        .shared_bytes = record->u.launch.shared_bytes,
        .args = executor->args,
        .args_bytes = args_bytes,
    };
    for (int i = 0; i < 3; i++) {
        launch.grid[i] = record->u.launch.grid[i];
        launch.block[i] = record->u.launch.block[i];
    }
    *prints = kernel->prints;
    if (record->u.launch.use_count != 0) {
        gpulua_status status = resolve_uses(executor, record, &launch, error);
        if (status != GPULUA_OK) {
            return status;
        }
    }
    return executor->verify != NULL ? gpu_executor_verify_launch(executor, record, &launch, error)
                                    : executor->ops->launch(&launch, error);
}

static gpulua_status run_copy(struct wire_executor *executor, const struct wire_record *record,
                              struct backend_stream *stream, struct backend_error *error) {
    uint64_t bytes = record->u.copy.bytes;
    uint64_t dst = 0;
    uint64_t src = 0;
    void *host = NULL;
    gpulua_status status = GPULUA_OK;
    if (record->opcode == WIRE_OP_UPLOAD) {
        host = gpu_executor_arena(executor, record->u.copy.src, bytes);
    } else {
        status = gpu_executor_resolve(executor, record->u.copy.src, bytes, &src, error);
    }
    if (record->opcode == WIRE_OP_DOWNLOAD) {
        host = gpu_executor_arena(executor, record->u.copy.dst, bytes);
    } else if (status == GPULUA_OK) {
        status = gpu_executor_resolve(executor, record->u.copy.dst, bytes, &dst, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    if (executor->verify != NULL && record->opcode != WIRE_OP_DOWNLOAD) {
        gpu_executor_verify_written(executor, dst, bytes);
    }
    if (record->opcode == WIRE_OP_COPY) {
        return executor->ops->copy(stream, record->seq, dst, src, bytes, error);
    }
    if (host == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_BOUNDS, 0,
                                "%" PRIu64 " bytes at an offset outside the arena", bytes);
    }
    if (record->opcode == WIRE_OP_UPLOAD) {
        return executor->ops->upload(stream, record->seq, dst, host, bytes, error);
    }
    return executor->ops->download(stream, record->seq, host, src, bytes, error);
}

static gpulua_status run_fill(struct wire_executor *executor, const struct wire_record *record,
                              struct backend_stream *stream, struct backend_error *error) {
    uint32_t elem_bytes = record->u.fill.elem_bytes;
    uint64_t elem_count = record->u.fill.elem_count;
    if (elem_bytes == 0 || elem_bytes > 16 || (elem_bytes & (elem_bytes - 1)) != 0 ||
        elem_count > UINT64_MAX / elem_bytes) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "a fill of %" PRIu64 " elements of %" PRIu32 " bytes", elem_count,
                                elem_bytes);
    }
    uint64_t dst = 0;
    gpulua_status status =
        gpu_executor_resolve(executor, record->u.fill.dst, elem_count * elem_bytes, &dst, error);
    if (status != GPULUA_OK) {
        return status;
    }
    if (executor->verify != NULL) {
        gpu_executor_verify_written(executor, dst, elem_count * elem_bytes);
    }
    return executor->ops->fill(stream, record->seq, dst, record->u.fill.pattern, elem_bytes,
                               elem_count, error);
}

gpulua_status gpu_executor_do(struct wire_executor *executor, const struct wire_record *record,
                              struct backend_stream *stream, bool *prints,
                              struct backend_error *error) {
    switch (record->opcode) {
    case WIRE_OP_LAUNCH:
        return run_launch(executor, record, stream, prints, error);
    case WIRE_OP_FILL:
        return run_fill(executor, record, stream, error);
    case WIRE_OP_GRAPH_LAUNCH:
    case WIRE_OP_GRAPH_UPLOAD:
        return gpu_executor_graph_launch(executor, record, stream, prints, error);
    case WIRE_OP_CONTROL:
    case WIRE_OP_BODY_END:
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "a part of a graph in no graph");
    case WIRE_OP_MARK:
    case WIRE_OP_STREAM_TAKE:
        /* A host's own work, or another library's, may lie in front of it. */
        if (executor->verify != NULL) {
            gpu_executor_verify_forget(executor);
        }
        return record->opcode == WIRE_OP_MARK
                   ? GPULUA_OK
                   : gpu_executor_stream_take(executor, record, stream, error);
    default:
        return run_copy(executor, record, stream, error);
    }
}

/* ---- */

/* For profilers: what the driver is asked from here to its end belongs to the operation. */
static uint64_t start_range(const struct wire_executor *executor,
                            const struct wire_record *record) {
    static const uint8_t kinds[WIRE_OPCODE_COUNT] = {
        [WIRE_OP_LAUNCH] = GPU_RANGE_LAUNCH,      [WIRE_OP_COPY] = GPU_RANGE_COPY,
        [WIRE_OP_UPLOAD] = GPU_RANGE_COPY,        [WIRE_OP_DOWNLOAD] = GPU_RANGE_COPY,
        [WIRE_OP_FILL] = GPU_RANGE_FILL,          [WIRE_OP_MARK] = GPU_RANGE_MARK,
        [WIRE_OP_STREAM_TAKE] = GPU_RANGE_MARK,   [WIRE_OP_GRAPH_LAUNCH] = GPU_RANGE_GRAPH,
        [WIRE_OP_GRAPH_UPLOAD] = GPU_RANGE_GRAPH,
    };
    bool is_library = record->opcode == WIRE_OP_LAUNCH && record->u.launch.is_library;
    const struct executor_label *row =
        record->u.named.label != 0 ? gpu_executor_row(&executor->labels, record->u.named.label)
                                   : NULL;
    const char *label = row != NULL ? row->text : NULL;
    return gpu_range_do_start(is_library ? GPU_RANGE_LIBRARY : kinds[record->opcode], label,
                              label != NULL ? strlen(label) : 0, record->seq);
}

/* Work on a stream that is not there: it fails, and is over at once. */
static void fail_without_stream(struct wire_executor *executor, const struct wire_record *record,
                                const struct backend_error *error) {
    const struct backend_failure failure = {.status = error->status, .text = error->message};
    gpu_executor_fail(executor, record->stream, record->seq, 0, error->driver_code, &failure);
    gpu_executor_host_done(executor, record->stream, record->seq);
    if (executor->streams[record->stream] != NULL) {
        executor->streams[record->stream]->last_seq = record->seq;
    }
    gpu_executor_wake_if_wanted(executor);
}

static void lose_by_wish(struct wire_executor *executor, const struct wire_record *record) {
    if ((record->flags & WIRE_FLAG_DIE) != 0 && executor->info.place == WIRE_EXECUTOR_APART) {
        raise(SIGKILL);
    }
    gpu_executor_lose(executor, 0, "an injected fault");
}

void gpu_executor_work(struct wire_executor *executor, const struct wire_record *record) {
    if (atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        return;
    }
    if (__builtin_expect((record->flags & (WIRE_FLAG_FAULT | WIRE_FLAG_DIE)) != 0, 0)) {
        lose_by_wish(executor, record);
        return;
    }
    if (__builtin_expect((record->flags & WIRE_FLAG_NODE) != 0, 0)) {
        gpu_executor_graph_node(executor, record);
        return;
    }
    struct backend_error error;
    gpu_backend_error_init(&error);
    struct executor_stream *row = executor->streams[record->stream];
    struct backend_stream *stream = row != NULL ? row->stream : NULL;
    /* What is over, and so what may be ended, is known by numbers that rise. */
    if (__builtin_expect(row != NULL && record->seq <= row->last_seq, 0)) {
        gpu_executor_lose(executor, 0, "a command record makes no sense");
        return;
    }
    if (__builtin_expect(stream == NULL, 0)) {
        gpu_executor_stream_retry(executor, record->stream);
        row = executor->streams[record->stream];
        stream = row != NULL ? row->stream : NULL;
    }
    if (__builtin_expect(stream != NULL && row->owes_event, 0) &&
        (record->flags & WIRE_FLAG_COVERS) == 0) {
        gpu_executor_settle(executor, record->stream);
    }
    gpulua_status status = issue_waits(executor, record, stream, &error);
    if (__builtin_expect(atomic_load_explicit(&executor->is_lost, memory_order_relaxed), 0)) {
        free(error.log); /* an event that was owed could not be recorded */
        return;
    }
    if (stream == NULL) {
        if (row == NULL) {
            gpu_backend_fail(&error, executor->device == NULL ? GPULUA_NO_DEVICE : GPULUA_CLOSED, 0,
                             "stream slot %" PRIu32 " is not there", record->stream);
        }
        fail_without_stream(executor, record, row != NULL ? &row->failure : &error);
        free(error.log);
        return;
    }
    bool prints = false;
    bool is_done = false;
    if (status == GPULUA_OK && (record->flags & WIRE_FLAG_SKIP) == 0) {
        uint64_t number = failed_dependency(executor, record);
        is_done = number == 0;
        if (__builtin_expect(executor->is_traced, 0) && is_done) {
            gpu_executor_trace_begin(executor, record->stream, record->seq);
        }
        if (number != 0) {
            gpu_executor_failed_add(executor, record->stream, record->seq, number);
        } else if (__builtin_expect(gpu_ranges_are_on, 0)) {
            uint64_t range = start_range(executor, record);
            status = gpu_executor_do(executor, record, stream, &prints, &error);
            gpu_range_do_end(range);
        } else {
            status = gpu_executor_do(executor, record, stream, &prints, &error);
        }
        if (__builtin_expect(executor->is_traced, 0) && is_done) {
            gpu_executor_trace_end(executor);
        }
    }
    if (status == GPULUA_DEVICE_LOST) {
        gpu_executor_lose(executor, error.driver_code, error.message);
    } else {
        if (status != GPULUA_OK) {
            const struct backend_failure failure = {.status = status, .text = error.message};
            gpu_executor_fail(executor, record->stream, record->seq, 0, error.driver_code,
                              &failure);
        }
        if (__builtin_expect(executor->is_traced, 0)) {
            gpu_executor_trace_note(executor, record->stream, is_done && status == GPULUA_OK);
        }
        is_done = is_done && status == GPULUA_OK;
        gpu_executor_submitted(executor, record->stream, record->seq, prints && is_done,
                               is_done ? record->flags : 0u);
    }
    free(error.log);
}
