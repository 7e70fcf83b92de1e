/* The envelope around one operation: what it uses is collected, its waits are found, its record is
 * built in scratch and published whole, and its uses are noted behind it. Until the record is out
 * nothing has happened; once it is out nothing can fail any more. */
#include <stdlib.h>
#include <string.h>

#include "ranges/ranges.h"
#include "runtime/graph/state.h"
#include "runtime/native_capture.h"
#include "runtime/report.h"
#include "runtime/watchdog.h"
#include "runtime/work.h"

static gpulua_status wait_for_room(struct gpu_device *device, struct gpu_error *error) {
    for (bool has_waited = false;; has_waited = true) {
        (void)gpu_device_poll(device);
        gpulua_status status = gpu_device_check(device, error);
        if (status) {
            return status;
        }
        if (device->stats.ops_in_flight < device->stats.limit_ops_in_flight) {
            return GPULUA_OK;
        }
        if (gpu_device_is_interrupted(device)) {
            return gpu_error_set(error, GPULUA_INTERRUPTED,
                                 "interrupted with %llu operations in flight",
                                 (unsigned long long)device->stats.ops_in_flight);
        }
        if (gpu_time_is_told(device, "waiting for room for more work", error)) {
            return GPULUA_TIMEOUT;
        }
        device->stats.throttles += !has_waited;
        gpu_device_want_any(device);
        gpu_device_nap(device, INT64_C(200000));
    }
}

static gpulua_status throttle(struct gpu_device *device, struct gpu_error *error) {
    int64_t begun_ns = gpu_blocked_begin(device);
    gpulua_status status = wait_for_room(device, error);
    gpu_blocked_end(device, "room for more work", begun_ns);
    return status;
}

gpulua_status gpu_envelope_begin(struct gpu_envelope *envelope, const struct gpu_submit *submit,
                                 const char *name, struct gpu_error *error) {
    struct gpu_stream *stream = submit->stream;
    struct gpu_device *device = stream->device;
    gpulua_status status = GPULUA_OK;
    bool is_open = device->state == GPU_DEVICE_OPEN && device->link && !device->share;
    if (!is_open && (status = gpu_device_check(device, error))) {
        return status;
    }
    if (stream->is_closed) {
        return gpu_error_set(error, GPULUA_CLOSED, "attempt to use a closed stream (number %llu)",
                             (unsigned long long)stream->number);
    }
    if (++device->submits_since_poll >= GPU_POLL_EVERY_SUBMITS) {
        (void)gpu_device_poll(device);
    }
    envelope->capture = submit->capture;
    if (__builtin_expect(device->trace != NULL, 0)) {
        envelope->asked_ns = gpu_clock_ns();
    }
    if (__builtin_expect(submit->capture != NULL, 0)) {
        status = gpu_capture_check(submit->capture, submit->label ? submit->label : name, error);
        if (status) {
            return status;
        }
    } else if (device->stats.ops_in_flight >= device->stats.limit_ops_in_flight &&
               (status = throttle(device, error))) {
        return status;
    } else if (__builtin_expect(stream->native != 0, 0) &&
               (status = gpu_stream_check_uncaptured(stream, error))) {
        return status;
    }
    if (device->deferred) {
        gpu_device_run_deferred(device);
    }
    envelope->stream = stream;
    envelope->label = submit->label ? gpu_device_intern(device, submit->label) : name;
    if (!envelope->label) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the label of '%s'",
                             name);
    }
    envelope->site = submit->site;
    envelope->use_count = 0;
    envelope->uses = envelope->room;
    envelope->report = NULL;
    envelope->form = NULL;
    envelope->graph = NULL;
    envelope->is_repeat = envelope->is_done_already = false;
    envelope->interludes = device->interludes;
    return GPULUA_OK;
}

static void note_waits(struct gpu_stream *stream, uint64_t seq, const struct gpu_waits *waits) {
    for (uint32_t i = 0; i < waits->count; i++) {
        const struct wire_wait *wait = &waits->items[i];
        if ((wait->flags & WIRE_WAIT_ORDER) && stream->waited[wait->stream] < wait->seq) {
            gpu_clock_wait(stream, seq, (struct gpu_point){.slot = wait->stream, .seq = wait->seq});
            stream->device->stats.waits_issued++;
        }
    }
}

/* More waits than one record holds: as many as fit go behind a mark of their own. */
static gpulua_status spill_waits(struct gpu_envelope *envelope, struct gpu_error *error) {
    struct gpu_envelope *mark = malloc(sizeof *mark);
    if (!mark) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the waits of '%s'",
                             envelope->label);
    }
    mark->stream = envelope->stream;
    mark->label = "mark";
    mark->site = envelope->site;
    mark->capture = NULL;
    mark->uses = mark->room;
    mark->use_count = 0;
    mark->waits.count = 0;
    mark->report = NULL;
    mark->asked_ns = envelope->asked_ns;
    mark->form = NULL;
    mark->graph = NULL;
    mark->is_repeat = mark->is_done_already = false;
    mark->waits.failure = NULL;
    mark->waits.is_full = false;
    for (uint32_t i = 0; i < envelope->waits.count; i++) {
        if (envelope->waits.items[i].flags & WIRE_WAIT_ORDER) {
            mark->waits.items[mark->waits.count] = envelope->waits.items[i];
            mark->waits.items[mark->waits.count++].flags = WIRE_WAIT_ORDER;
        }
    }
    struct wire_record *record = (struct wire_record *)(void *)envelope->stream->device->scratch;
    memset(record, 0, sizeof *record);
    record->opcode = WIRE_OP_MARK;
    record->wait_count = (uint8_t)mark->waits.count;
    memcpy(gpu_wire_record_waits(record), mark->waits.items,
           mark->waits.count * sizeof(struct wire_wait));
    gpulua_status status = gpu_envelope_submit(mark, record, 0, NULL, error);
    free(mark);
    return status;
}

/* The order with other streams has a place in marks; what an operation depends on has none but in
 * its own record, which has to wait for some of it then. */
static gpulua_status make_room(struct gpu_envelope *envelope, struct gpu_error *error) {
    struct gpu_device *device = envelope->stream->device;
    const struct gpu_waits *waits = &envelope->waits;
    for (uint32_t i = 0; i < waits->count; i++) {
        if ((waits->items[i].flags & WIRE_WAIT_ORDER) != 0) {
            return spill_waits(envelope, error);
        }
    }
    struct gpu_op *op = gpu_op_find_pending(
        device, (struct gpu_point){.slot = waits->items[0].stream, .seq = waits->items[0].seq});
    if (!op) {
        gpu_device_poll(device);
        return GPULUA_OK;
    }
    gpu_op_retain(op);
    gpulua_status status = gpu_op_wait(op, -1, error);
    gpu_op_release(op);
    return status;
}

/* As if the fence had been lost on its way: the script side believes that it is there. */
static void leave_out_wait(struct gpu_device *device, struct wire_record *record) {
    struct wire_wait *waits = gpu_wire_record_waits(record);
    for (uint32_t i = 0; i < record->wait_count; i++) {
        if ((waits[i].flags & WIRE_WAIT_ORDER) && ++device->wait_count == device->unfenced_wait) {
            waits[i].flags &= ~(uint32_t)WIRE_WAIT_ORDER;
        }
    }
}

gpulua_status gpu_envelope_record(struct gpu_envelope *envelope, enum wire_opcode opcode,
                                  struct wire_record **record, struct gpu_error *error) {
    struct gpu_device *device = envelope->stream->device;
    struct gpu_waits *waits = &envelope->waits;
    if (envelope->capture) { /* what it waits for is found when it is launched */
        struct wire_record *node = (struct wire_record *)(void *)device->scratch;
        memset(node, 0, sizeof *node);
        node->opcode = (uint8_t)opcode;
        waits->count = 0;
        waits->failure = NULL;
        *record = node;
        return GPULUA_OK;
    }
    if (device->holding) {
        gpulua_status status = gpu_recorder_check(envelope, error);
        if (status) {
            return status;
        }
    }
    if (envelope->is_repeat) {
        gpu_repeat_find(envelope->stream, waits);
    }
    while (!envelope->is_repeat) {
        if (!gpu_hazards_find(envelope->stream, envelope->uses, envelope->use_count, waits)) {
            return gpu_error_set(error, GPULUA_OUT_OF_MEMORY,
                                 "no host memory to record the uses of '%s'", envelope->label);
        }
        gpulua_status status = GPULUA_OK;
        if (__builtin_expect(device->may_owe, 0)) {
            status = gpu_waits_check(device, waits->items, waits->count, error);
        }
        if (status == GPULUA_OK && !waits->is_full) {
            break;
        }
        status = status ? status : make_room(envelope, error);
        if (status) {
            return status;
        }
    }
    if (__builtin_expect(envelope->interludes != device->interludes, 0)) {
        device->is_overtaken = true; /* what was checked may be freed, frozen, or of another life */
        return gpu_error_set(error, GPULUA_STREAM_MISUSE, "'%s' was overtaken", envelope->label);
    }
    struct wire_record *built = (struct wire_record *)(void *)device->scratch;
    memset(built, 0, sizeof *built);
    built->opcode = (uint8_t)opcode;
    built->wait_count = (uint8_t)waits->count;
    if (waits->count > 0) {
        memcpy(gpu_wire_record_waits(built), waits->items, waits->count * sizeof(struct wire_wait));
    }
    if (device->unfenced_wait != 0) {
        leave_out_wait(device, built);
    }
    *record = built;
    return GPULUA_OK;
}

static bool note_dependencies(struct gpu_op *op, const struct gpu_waits *waits) {
    for (uint32_t i = 0; i < waits->count; i++) {
        if (!(waits->items[i].flags & WIRE_WAIT_DEPENDS)) {
            continue;
        }
        if (op->dep_count == GPU_OP_DEPS_INLINE) {
            struct gpu_point *more = malloc(waits->count * sizeof *more);
            if (!more) {
                return false;
            }
            memcpy(more, op->deps_inline, sizeof op->deps_inline);
            op->deps = more;
        }
        op->deps[op->dep_count++] =
            (struct gpu_point){.slot = waits->items[i].stream, .seq = waits->items[i].seq};
    }
    return true;
}

/* The executor may forget failures that every later record takes into account by itself. */
static gpulua_status forget_failures(struct gpu_device *device, struct gpu_error *error) {
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_FORGET_FAILURES};
    record.u.failures.count = device->failures_seen;
    device->failures_forgotten = device->failures_seen;
    return gpu_device_publish(device, &record, error);
}

struct gpu_seen_use gpu_envelope_see(const struct gpu_use *use, void **shadow) {
    const struct gpu_block *block = use->block;
    return (struct gpu_seen_use){
        .shadow = shadow,
        .label = block->label,
        .block_number = block->number,
        .byte_begin = block->variable_address + use->byte_begin,
        .byte_end = block->variable_address + use->byte_end,
        .base = block->variable_address,
        .is_variable = block->module != NULL,
        .access = use->access & GPU_READ_WRITE,
        .is_private = block->is_staging || block->byte_count == 0,
    };
}

static gpulua_status observe(const struct gpu_envelope *envelope, const struct wire_record *record,
                             struct gpu_op *work, struct gpu_error *error) {
    struct gpu_seen_use room[GPU_USES_MAX], *uses = room;
    if (envelope->use_count > GPU_USES_MAX) {
        uses = malloc(envelope->use_count * sizeof *uses);
        if (!uses) {
            return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the uses of '%s'",
                                 envelope->label);
        }
    }
    for (uint32_t i = 0; i < envelope->use_count; i++) {
        struct gpu_block *block = envelope->uses[i].block;
        uint64_t base;
        uses[i] = gpu_envelope_see(&envelope->uses[i], gpu_block_shadow(block, &base));
        uses[i].is_private |= block->is_scratch || block->is_lone;
    }
    struct gpu_seen_wait waits[WIRE_WAITS_MAX];
    const struct wire_wait *issued = gpu_wire_record_waits(record);
    uint32_t wait_count = 0;
    for (uint32_t i = 0; i < record->wait_count; i++) {
        const struct gpu_stream *stream = work->device->streams[issued[i].stream];
        if ((issued[i].flags & WIRE_WAIT_ORDER) && stream) {
            waits[wait_count++] =
                (struct gpu_seen_wait){.stream = stream->number, .seq = issued[i].seq};
        }
    }
    const struct gpu_submission submission = {
        .device = work->device,
        .shadow = &work->shadow,
        .label = work->label,
        .source = work->site.source,
        .line = work->site.line,
        .stream = envelope->stream->number,
        .seq = work->seq,
        .uses = uses,
        .use_count = envelope->use_count,
        .waits = waits,
        .wait_count = wait_count,
    };
    const struct gpu_observer *observer = work->device->observer;
    gpulua_status status = observer->submit(observer->user, &submission, error);
    if (uses != room) {
        free(uses);
    }
    return status;
}

gpulua_status gpu_envelope_submit(struct gpu_envelope *envelope, struct wire_record *record,
                                  uint32_t payload_bytes, struct gpu_op **op,
                                  struct gpu_error *error) {
    struct gpu_stream *stream = envelope->stream;
    struct gpu_device *device = stream->device;
    if (envelope->capture) {
        return gpu_capture_add(envelope->capture, envelope, record, payload_bytes, op, error);
    }
    struct gpu_op *work = gpu_op_create(device, stream, envelope->label, envelope->site);
    if (!work || !note_dependencies(work, &envelope->waits)) {
        gpu_op_release(work);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the operation '%s'",
                             envelope->label);
    }
    if (__builtin_expect(device->report_count > 0, 0)) {
        gpu_report_attach(work, &envelope->waits, envelope->report);
    }
    if (device->failures_seen != device->failures_forgotten && !device->has_new_failures) {
        gpulua_status status = forget_failures(device, error);
        if (status) {
            gpu_op_release(work);
            return status;
        }
    }
    if (__builtin_expect(device->state != GPU_DEVICE_OPEN, 0)) { /* a poll has found out */
        gpu_op_release(work);
        return gpu_device_check_open(device, error);
    }
    record->stream = stream->slot;
    record->seq = work->seq = device->slot_seq[stream->slot] + 1;
    if (device->observer) {
        gpulua_status status = observe(envelope, record, work, error);
        if (status) {
            gpu_op_release(work);
            return status;
        }
    }
    if (envelope->waits.failure) {
        work->failure = gpu_failure_of_dependency(work, envelope->waits.failure);
        record->flags |= WIRE_FLAG_SKIP;
    }
    if (__builtin_expect(device->is_injected, 0)) {
        record->flags |= gpu_inject_flags(device);
    }
    work->is_replay = (record->flags & WIRE_FLAGS_REPLAY) == WIRE_FLAGS_REPLAY;
    if (__builtin_expect(gpu_ranges_are_on, 0)) {
        record->u.named.label = gpu_label_number(device, envelope->label);
    }
    uint32_t length = (uint32_t)sizeof *record +
                      record->wait_count * (uint32_t)sizeof(struct wire_wait) + payload_bytes;
    record->length_bytes = (length + 15u) & ~15u;

    /* Pending before it is out: an inline executor may answer from within publish. */
    struct gpu_op *before = stream->tail;
    gpu_op_append(stream, work);
    gpulua_status status = __builtin_expect(envelope->is_done_already, 0)
                               ? gpu_device_publish(device, record, error)
                               : gpu_device_publish_or_not(device, record, error);
    if (status) {
        stream->tail = before;
        if (before) {
            before->next = NULL;
        } else {
            stream->head = NULL;
        }
        gpu_op_release(work);
        return status;
    }
    device->slot_seq[stream->slot] = work->seq;
    work->number = ++device->op_number_next;
    if (work->failure) {
        gpu_failed_add(device, (struct gpu_point){stream->slot, work->seq}, work->failure);
    }
    if (__builtin_expect(envelope->graph != NULL || device->repeat.uses != NULL, 0)) {
        gpu_repeat_commit(stream, envelope, work->seq);
    } else {
        const struct gpu_point point = {.slot = stream->slot, .seq = work->seq};
        gpu_hazards_commit(point, envelope->uses, envelope->use_count);
    }
    note_waits(stream, work->seq, &envelope->waits);
    gpu_flight_note(&device->flight, work, envelope, record);
    if (__builtin_expect(device->trace != NULL, 0)) {
        gpu_trace_note(device->trace, work, envelope, record);
    }
    if (++device->stats.ops_in_flight > device->stats.ops_in_flight_max) {
        device->stats.ops_in_flight_max = device->stats.ops_in_flight;
    }
    if (op) {
        work->refs++;
        *op = work;
    }
    return GPULUA_OK;
}
