/* Launches of one graph behind each other (see hazards.h). */
#include "runtime/state.h"

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
    if (envelope->is_repeat) {
        repeat->point.seq = seq;
        repeat->is_owed = true;
        return;
    }
    const struct gpu_point point = {.slot = stream->slot, .seq = seq};
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
