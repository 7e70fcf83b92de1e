/* Launches of one graph behind each other (see hazards.h). */
#include "ranges/ranges.h"
#include "runtime/graph/state.h"

#include <string.h>

bool gpu_repeat_is(const struct gpu_stream *stream, const struct gpu_use *uses) {
    const struct gpu_device *device = stream->device;
    const struct gpu_repeat *repeat = &device->repeat;
    return repeat->uses == uses && repeat->is_known && repeat->stream_number == stream->number &&
           device->failed_count == 0 && device->report_count == 0 && !device->observer &&
           !device->is_unfenced;
}

void gpu_repeat_find(const struct gpu_stream *stream, struct gpu_waits *waits) {
    const struct gpu_device *device = stream->device;
    const struct gpu_repeat *repeat = &device->repeat;
    waits->count = 0;
    waits->failure = NULL;
    waits->is_full = false;
    for (uint32_t i = 0; i < repeat->wait_count; i++) {
        struct wire_wait wait = repeat->waits[i];
        wait.seq = wait.seq ? wait.seq : repeat->point.seq;
        if (wait.seq > device->done[wait.stream]) {
            waits->items[waits->count++] = wait;
        }
    }
}

/* What a second launch waits for, a third one does: for whose failure is its own, too. In what
 * order they come is known by then: the stream is behind all that either is behind. */
static void keep_waits(struct gpu_repeat *repeat, const struct gpu_waits *waits) {
    repeat->wait_count = 0;
    for (uint32_t i = 0; i < waits->count; i++) {
        struct wire_wait wait = waits->items[i];
        bool is_before = wait.stream == repeat->point.slot && wait.seq == repeat->point.seq;
        wait.seq = is_before ? 0 : wait.seq;
        wait.flags &= WIRE_WAIT_DEPENDS;
        if (wait.flags) {
            repeat->waits[repeat->wait_count++] = wait;
        }
    }
    if (waits->is_behind_over) {
        repeat->waits[repeat->wait_count++] =
            (struct wire_wait){.stream = repeat->point.slot, .flags = WIRE_WAIT_DEPENDS};
    }
}

void gpu_repeat_commit(struct gpu_stream *stream, const struct gpu_envelope *envelope,
                       uint64_t seq) {
    struct gpu_repeat *repeat = &stream->device->repeat;
    const struct gpu_point point = {.slot = stream->slot, .seq = seq};
    if (envelope->graph) {
        envelope->graph->made.last = point;
    }
    if (envelope->is_repeat) {
        repeat->point.seq = seq;
        repeat->is_owed = true;
        return;
    }
    gpu_repeat_settle(stream->device); /* its waits may have been found before others came */
    gpu_hazards_commit(point, envelope->uses, envelope->use_count);
    repeat->is_known = envelope->graph && repeat->uses == envelope->uses &&
                       repeat->stream_number == stream->number;
    if (repeat->is_known) {
        keep_waits(repeat, &envelope->waits);
    }
    repeat->uses = envelope->graph ? envelope->uses : NULL;
    repeat->use_count = envelope->use_count;
    repeat->stream_number = stream->number;
    repeat->point = point;
}

void gpu_repeat_settle(struct gpu_device *device) {
    struct gpu_repeat *repeat = &device->repeat;
    if (repeat->is_owed) {
        repeat->is_owed = false;
        gpu_hazards_commit(repeat->point, repeat->uses, repeat->use_count);
    }
}

void gpu_repeat_forget(struct gpu_device *device) {
    gpu_repeat_settle(device);
    device->repeat.uses = NULL;
}

/* ---- launches by their number alone ---- */

static uint64_t running_task(const struct gpu_device *device) {
    return device->tasks ? device->tasks->running : 0;
}

bool gpu_repeat_may_owe(const struct gpu_graph *graph, const struct gpu_submit *submit) {
    struct gpu_device *device = graph->device;
    const struct gpu_stream *stream = submit->stream;
    const struct gpu_repeat *repeat = &device->repeat;
    return gpu_repeat_is(stream, graph->uses.list) && !submit->label && stream->tail &&
           strcmp(stream->tail->label, graph->label[0] ? graph->label : "graph") == 0 &&
           (repeat->wait_count == 0 || (repeat->wait_count == 1 && repeat->waits[0].seq == 0)) &&
           device->state == GPU_DEVICE_OPEN && device->link && !device->share &&
           device->backlog_bytes == 0 && !device->deferred && !device->is_polling &&
           !device->holding && !device->is_injected && device->unfenced_wait == 0 &&
           !stream->is_closed && !gpu_ranges_are_on &&
           device->failures_seen == device->failures_forgotten &&
           device->submits_since_poll + 1 < GPU_POLL_EVERY_SUBMITS &&
           device->stats.ops_in_flight + GPU_REPEATS_OWED_MAX <=
               device->stats.limit_ops_in_flight &&
           gpu_ops_reserve(device, GPU_REPEATS_OWED_MAX);
}

void gpu_repeat_begin(struct gpu_graph *graph, const struct gpu_submit *submit) {
    struct gpu_device *device = graph->device;
    struct gpu_repeat *repeat = &device->repeat;
    repeat->graph = graph;
    repeat->task = running_task(device);
    repeat->site = submit->site;
    repeat->label = submit->stream->tail->label;
    repeat->next.record = (struct wire_record){
        .length_bytes =
            (uint32_t)(sizeof repeat->next.record + repeat->wait_count * sizeof(struct wire_wait)),
        .opcode = WIRE_OP_GRAPH_LAUNCH,
        .flags = WIRE_FLAGS_REPLAY,
        .wait_count = repeat->wait_count,
        .stream = repeat->point.slot,
        .object = graph->made.id,
    };
    repeat->next.wait =
        (struct wire_wait){.stream = repeat->point.slot, .flags = WIRE_WAIT_DEPENDS};
}

bool gpu_repeat_again(struct gpu_graph *graph, const struct gpu_submit *submit) {
    struct gpu_device *device = graph->device;
    struct gpu_repeat *repeat = &device->repeat;
    if (repeat->graph != graph || device->streams[repeat->point.slot] != submit->stream ||
        repeat->site.line != submit->site.line || repeat->site.source != submit->site.source ||
        submit->label || submit->capture || repeat->owed_count == GPU_REPEATS_OWED_MAX ||
        repeat->task != running_task(device)) {
        return false;
    }
    repeat->next.record.seq = repeat->point.seq + 1;
    repeat->next.wait.seq = repeat->point.seq;
    if (device->link->ops->publish(device->link, &repeat->next.record)) {
        return false;
    }
    repeat->point.seq++;
    repeat->owed_count++;
    if (__builtin_expect(!repeat->graph, 0)) { /* something was heard meanwhile */
        repeat->graph = graph;
        gpu_repeat_end(device);
    }
    return true;
}

static void note_one(struct gpu_device *device, const struct gpu_envelope *envelope, uint64_t seq) {
    const struct gpu_repeat *repeat = &device->repeat;
    struct gpu_stream *stream = envelope->stream;
    struct wire_record record = repeat->next.record;
    struct gpu_op *op = gpu_op_create(device, stream, repeat->label, repeat->site); /* reserved */
    op->task = repeat->task;
    op->is_replay = true;
    op->seq = record.seq = seq;
    op->number = ++device->op_number_next;
    if (repeat->wait_count > 0) {
        op->deps[op->dep_count++] = (struct gpu_point){repeat->point.slot, seq - 1};
    }
    gpu_op_append(stream, op);
    gpu_flight_note(&device->flight, op, envelope, &record);
}

void gpu_repeat_end(struct gpu_device *device) {
    struct gpu_repeat *repeat = &device->repeat;
    struct gpu_graph *graph = repeat->graph;
    uint32_t count = repeat->owed_count;
    if (!graph) {
        return;
    }
    repeat->graph = NULL;
    repeat->owed_count = 0;
    if (count == 0) {
        return;
    }
    struct gpu_envelope envelope;
    envelope.stream = device->streams[repeat->point.slot];
    envelope.uses = graph->uses.list;
    envelope.use_count = graph->uses.count;
    envelope.form = NULL;
    envelope.graph = graph;
    for (uint32_t left = count; left > 0; left--) {
        note_one(device, &envelope, repeat->point.seq + 1 - left);
    }
    repeat->is_owed = true;
    device->slot_seq[repeat->point.slot] = repeat->point.seq;
    device->submits_since_poll += count;
    graph->replays += count;
    graph->made.used_at = device->graph_clock += count;
    graph->made.last = repeat->point;
    struct gpu_stats *stats = &device->stats;
    stats->replays += count;
    stats->records += count;
    stats->record_bytes += (uint64_t)count * repeat->next.record.length_bytes;
    stats->ops_in_flight += count;
    if (stats->ops_in_flight > stats->ops_in_flight_max) {
        stats->ops_in_flight_max = stats->ops_in_flight;
    }
}
