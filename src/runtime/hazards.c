/* Hazards: which earlier work an operation has to wait for, found from the ranges that it
 * reads and writes.
 *
 * A range remembers its newest write and, since then, the newest read of each stream (history.c). A
 * read waits for the write; a write waits for the write and all those reads. Work of the same
 * stream needs no wait; work that is over needs none; and what the stream is behind already needs
 * none (clock.c), nor what is before something else that is waited for. Every read also depends on
 * the write it reads: if that failed, so does the reader. A write that covers only a part of a span
 * that could not be cut is taken as reading it too, because what it leaves alone has the old
 * history. */
#include "runtime/state.h"

static void add(struct gpu_stream *stream, struct gpu_waits *waits, struct gpu_point point,
                uint32_t flags) {
    struct wire_wait *same = NULL;
    for (uint32_t i = 0; i < waits->count; i++) {
        struct wire_wait *wait = &waits->items[i];
        if (wait->stream != point.slot) {
            continue;
        }
        if (wait->seq == point.seq) {
            same = wait;
        } else if (flags & wait->flags & WIRE_WAIT_ORDER) {
            /* One order per stream is enough: the later one. */
            if (wait->seq > point.seq) {
                flags &= ~(uint32_t)WIRE_WAIT_ORDER;
            } else {
                wait->flags &= ~(uint32_t)WIRE_WAIT_ORDER;
            }
            stream->device->stats.waits_elided++;
        }
    }
    if (same) {
        same->flags |= flags;
        return;
    }
    if (flags == 0) {
        return;
    }
    for (uint32_t i = 0; i < waits->count; i++) { /* a place that an order left behind */
        if (waits->items[i].flags == 0) {
            waits->items[i] =
                (struct wire_wait){.stream = point.slot, .flags = flags, .seq = point.seq};
            return;
        }
    }
    if (waits->count == WIRE_WAITS_MAX - 1u) {
        waits->is_full = true;
        return;
    }
    waits->items[waits->count++] =
        (struct wire_wait){.stream = point.slot, .flags = flags, .seq = point.seq};
}

static inline void wait_for(struct gpu_stream *stream, struct gpu_waits *waits,
                            struct gpu_point point, bool depends) {
    struct gpu_device *device = stream->device;
    if (depends && device->failed_count > 0 && !waits->failure) {
        waits->failure = gpu_failed_find(device, point);
    }
    if (point.seq <= device->done[point.slot]) { /* over by the last sight, or nothing */
        waits->is_behind_over |= depends && point.seq == device->repeat.point.seq &&
                                 point.slot == device->repeat.point.slot;
        return;
    }
    uint32_t flags = depends ? WIRE_WAIT_DEPENDS : 0;
    if (point.slot != stream->slot && !device->is_unfenced) {
        if (stream->waited[point.slot] < point.seq) {
            flags |= WIRE_WAIT_ORDER;
        } else {
            device->stats.waits_elided++;
        }
    }
    if (flags) {
        add(stream, waits, point, flags);
    }
}

/* Nearly always a use is of a whole block that was never used in part: its one span. Else NULL. */
static inline struct gpu_span *span_of_whole(const struct gpu_use *use) {
    struct gpu_history *history = &use->block->history;
    return history->capacity == 0 && use->byte_begin == 0 &&
                   use->byte_end == history->first.byte_end
               ? &history->first
               : NULL;
}

static inline void find_in_span(struct gpu_stream *stream, struct gpu_waits *waits,
                                const struct gpu_use *use, const struct gpu_span *span,
                                bool is_part) {
    /* A module's hazard block has order but no contents that could be undefined. */
    bool depends = ((use->access & GPU_READ) || is_part) && use->block->byte_count > 0;
    const struct gpu_point write = span->write;
    if (write.seq != waits->last.seq || write.slot != waits->last.slot ||
        depends > waits->last_depends) {
        wait_for(stream, waits, write, depends);
        waits->last = write;
        waits->last_depends = depends;
    }
    if (use->access & GPU_WRITE) {
        const struct gpu_point *reads = gpu_span_reads(span);
        for (uint32_t k = 0; k < span->read_count; k++) {
            wait_for(stream, waits, reads[k], false);
        }
    }
}

static void find_in_spans(struct gpu_stream *stream, struct gpu_waits *waits,
                          const struct gpu_use *use) {
    const struct gpu_history *history = &use->block->history;
    const struct gpu_span *spans = gpu_history_spans(history);
    uint32_t at = gpu_history_find(history, use->byte_begin);
    uint64_t byte_begin = at > 0 ? spans[at - 1].byte_end : 0;
    do {
        const struct gpu_span *span = &spans[at];
        bool is_part = byte_begin < use->byte_begin || span->byte_end > use->byte_end;
        find_in_span(stream, waits, use, span, is_part);
        byte_begin = span->byte_end;
    } while (spans[at++].byte_end < use->byte_end);
}

/* A wait that another of the waits implies is left out, and what is left moves up. */
static void leave_out_implied(struct gpu_stream *stream, struct gpu_waits *waits) {
    struct gpu_device *device = stream->device;
    for (uint32_t i = 0; i < waits->count; i++) {
        struct wire_wait *wait = &waits->items[i];
        struct gpu_point point = {.slot = wait->stream, .seq = wait->seq};
        for (uint32_t k = 0; (wait->flags & WIRE_WAIT_ORDER) && k < waits->count; k++) {
            const struct wire_wait *other = &waits->items[k];
            struct gpu_point through = {.slot = other->stream, .seq = other->seq};
            if (k != i && (other->flags & WIRE_WAIT_ORDER) && other->stream != wait->stream &&
                gpu_clock_covers(device, through, point)) {
                wait->flags &= ~(uint32_t)WIRE_WAIT_ORDER;
                device->stats.waits_elided++;
            }
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < waits->count; i++) {
        if (waits->items[i].flags) {
            waits->items[kept++] = waits->items[i];
        }
    }
    waits->count = kept;
}

bool gpu_hazards_find(struct gpu_stream *stream, const struct gpu_use *uses, uint32_t use_count,
                      struct gpu_waits *waits) {
    waits->count = 0;
    waits->failure = NULL;
    waits->is_full = waits->is_behind_over = waits->last_depends = false;
    waits->last = (struct gpu_point){0};
    struct gpu_repeat *repeat = &stream->device->repeat;
    if (repeat->is_owed) {
        gpu_repeat_settle(stream->device);
    }
    repeat->is_known = false; /* room may be made of what it counts on */
    bool is_cut = false;
    for (uint32_t i = 0; i < use_count; i++) {
        const struct gpu_use *use = &uses[i];
        const struct gpu_span *span = span_of_whole(use);
        for (uint32_t k = i; !span && !is_cut && k < use_count; k++) {
            if (!gpu_history_cut(&uses[k])) {
                return false;
            }
        }
        is_cut = is_cut || !span;
        bool has_room = span && ((use->access & GPU_WRITE) ||
                                 (span->read_capacity == 0 && span->read_count < GPU_SPAN_READS));
        if (!has_room && !gpu_history_make_room(use, stream->slot)) {
            return false;
        }
        if (span) {
            find_in_span(stream, waits, use, span, false);
        } else {
            find_in_spans(stream, waits, use);
        }
    }
    if (waits->count > 1) {
        leave_out_implied(stream, waits);
    }
    return true;
}

void gpu_hazards_commit(struct gpu_point point, const struct gpu_use *uses, uint32_t use_count) {
    for (uint32_t i = 0; i < use_count; i++) {
        struct gpu_span *span = span_of_whole(&uses[i]);
        if (!span) {
            gpu_history_commit(&uses[i], point);
        } else if (uses[i].access & GPU_WRITE) {
            span->write = point;
            span->read_count = 0;
        } else {
            gpu_span_note_read(span, point);
        }
    }
}
