/* The history of a block: what has last written and read each range of it.
 *
 * A history is a row of spans without gaps, each with its newest write and, since then, the newest
 * read of each stream. At first one span covers all. A use of a part cuts at its ends; a write
 * makes one span of those that it covers. Where a block would have more than GPU_SPANS_MAX spans,
 * no more cuts are made: a use then counts for all of the spans that it touches, which orders more
 * than is needed and never less. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state.h"

#define SPANS_AT_FIRST 8u

void gpu_history_init(struct gpu_history *history, uint64_t byte_count) {
    *history = (struct gpu_history){.count = 1};
    history->first.byte_end = byte_count > 0 ? byte_count : 1; /* 0: hazards without contents */
}

static void span_finish(struct gpu_span *span) {
    if (span->read_capacity != 0) {
        free(span->reads.heap);
    }
    span->read_capacity = 0;
    span->read_count = 0;
}

void gpu_history_finish(struct gpu_history *history) {
    struct gpu_span *spans = gpu_history_spans(history);
    for (uint32_t i = 0; i < history->count; i++) {
        span_finish(&spans[i]);
    }
    if (history->capacity != 0) {
        free(history->heap);
    }
    *history = (struct gpu_history){0};
}

uint32_t gpu_history_find(const struct gpu_history *history, uint64_t byte_offset) {
    const struct gpu_span *spans = gpu_history_spans(history);
    uint32_t low = 0;
    uint32_t high = history->count - 1; /* the answer lies in low .. high */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (spans[middle].byte_end > byte_offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* ---- cutting ---- */

/* Nothing more can be learned from it: all is over, and the write did not fail. By the last poll:
 * words may have moved since, and the failures behind them not been read yet. */
static bool is_past(const struct gpu_device *device, const struct gpu_span *span) {
    if (span->write.seq != 0 && (span->write.seq > device->done[span->write.slot] ||
                                 gpu_failed_find(device, span->write) != NULL)) {
        return false;
    }
    const struct gpu_point *reads = gpu_span_reads(span);
    for (uint32_t i = 0; i < span->read_count; i++) {
        if (!gpu_point_is_over(device, reads[i])) {
            return false;
        }
    }
    return true;
}

static bool is_equal(const struct gpu_span *a, const struct gpu_span *b) {
    if (a->write.slot != b->write.slot || a->write.seq != b->write.seq ||
        a->read_count != b->read_count) {
        return false;
    }
    const struct gpu_point *of_a = gpu_span_reads(a), *of_b = gpu_span_reads(b);
    for (uint32_t i = 0; i < a->read_count; i++) {
        if (of_a[i].slot != of_b[i].slot || of_a[i].seq != of_b[i].seq) {
            return false;
        }
    }
    return true;
}

/* Neighbours that say the same become one. */
static void compact(const struct gpu_device *device, struct gpu_history *history) {
    struct gpu_span *spans = gpu_history_spans(history);
    uint32_t kept = 0;
    for (uint32_t i = 1; i < history->count; i++) {
        bool are_past = is_past(device, &spans[kept]) && is_past(device, &spans[i]);
        if (are_past || is_equal(&spans[kept], &spans[i])) {
            if (are_past) {
                spans[kept].write = (struct gpu_point){0};
                spans[kept].read_count = 0;
            }
            spans[kept].byte_end = spans[i].byte_end;
            span_finish(&spans[i]);
        } else if (++kept != i) {
            spans[kept] = spans[i];
        }
    }
    history->count = kept + 1;
}

static bool grow(struct gpu_history *history) {
    uint32_t capacity = history->capacity == 0 ? SPANS_AT_FIRST : history->capacity * 2;
    struct gpu_span *grown =
        realloc(history->capacity == 0 ? NULL : history->heap, capacity * sizeof *grown);
    if (!grown) {
        return false;
    }
    if (history->capacity == 0) {
        grown[0] = history->first;
    }
    history->heap = grown;
    history->capacity = capacity;
    return true;
}

static bool copy_reads(struct gpu_span *to, const struct gpu_span *from) {
    if (from->read_capacity == 0) {
        return true; /* they lie in the span, and are copied with it */
    }
    to->reads.heap = malloc(from->read_capacity * sizeof *to->reads.heap);
    if (!to->reads.heap) {
        return false;
    }
    memcpy(to->reads.heap, from->reads.heap, from->read_count * sizeof *to->reads.heap);
    return true;
}

/* A boundary at byte_offset, if there may be one more. False: no memory. */
static bool cut(struct gpu_block *block, uint64_t byte_offset) {
    struct gpu_history *history = &block->history;
    uint32_t at = gpu_history_find(history, byte_offset);
    const struct gpu_span *spans = gpu_history_spans(history);
    if (byte_offset == 0 || spans[at].byte_end <= byte_offset ||
        (at > 0 && spans[at - 1].byte_end == byte_offset)) {
        return true;
    }
    if (history->count == GPU_SPANS_MAX) {
        compact(block->device, history);
        if (history->count == GPU_SPANS_MAX) {
            block->device->stats.hazards_widened++;
            block->device->stats.overflows++;
            return true;
        }
        at = gpu_history_find(history, byte_offset);
        spans = gpu_history_spans(history);
        if (at > 0 && spans[at - 1].byte_end == byte_offset) {
            return true;
        }
    }
    if (history->count >= history->capacity && !grow(history)) {
        return false;
    }
    struct gpu_span left = history->heap[at];
    if (!copy_reads(&left, &history->heap[at])) {
        return false;
    }
    memmove(&history->heap[at + 1], &history->heap[at],
            (history->count - at) * sizeof history->heap[0]);
    left.byte_end = byte_offset;
    history->heap[at] = left;
    history->count++;
    return true;
}

/* Drops reads that are over; true if there is room for one more, or one of this stream to replace.
 */
static bool make_room(const struct gpu_device *device, struct gpu_span *span, uint32_t slot) {
    struct gpu_point *reads = gpu_span_reads(span);
    for (uint32_t i = 0; i < span->read_count; i++) {
        if (reads[i].slot == slot) {
            return true;
        }
    }
    uint32_t capacity = span->read_capacity != 0 ? span->read_capacity : GPU_SPAN_READS;
    if (span->read_count < capacity) {
        return true;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < span->read_count; i++) {
        if (!gpu_point_is_over(device, reads[i])) {
            reads[kept++] = reads[i];
        }
    }
    span->read_count = kept;
    if (kept < capacity) {
        return true;
    }
    struct gpu_point *grown =
        malloc(2u * capacity * sizeof *grown); /* one for each stream at most */
    if (!grown) {
        return false;
    }
    memcpy(grown, reads, span->read_count * sizeof *grown);
    if (span->read_capacity != 0) {
        free(span->reads.heap);
    }
    span->reads.heap = grown;
    span->read_capacity = 2u * capacity;
    return true;
}

bool gpu_history_cut(const struct gpu_use *use) {
    const struct gpu_history *history = &use->block->history;
    bool is_whole =
        history->count == 1 && use->byte_begin == 0 && use->byte_end == history->first.byte_end;
    return is_whole || (cut(use->block, use->byte_begin) && cut(use->block, use->byte_end));
}

bool gpu_history_make_room(const struct gpu_use *use, uint32_t slot) {
    struct gpu_history *history = &use->block->history;
    if (use->access != GPU_READ) {
        return true;
    }
    struct gpu_span *spans = gpu_history_spans(history);
    for (uint32_t i = gpu_history_find(history, use->byte_begin);
         i < history->count && (i == 0 || spans[i - 1].byte_end < use->byte_end); i++) {
        if (!make_room(use->block->device, &spans[i], slot)) {
            return false;
        }
    }
    return true;
}

/* ---- noting ---- */

void gpu_history_commit(const struct gpu_use *use, struct gpu_point point) {
    struct gpu_history *history = &use->block->history;
    struct gpu_span *spans = gpu_history_spans(history);
    uint32_t first = gpu_history_find(history, use->byte_begin);
    uint32_t end = first; /* behind the last span that the use touches */
    do {
        if (!(use->access & GPU_WRITE)) {
            gpu_span_note_read(&spans[end], point);
        }
    } while (spans[end++].byte_end < use->byte_end);
    if (!(use->access & GPU_WRITE)) {
        return;
    }
    /* It has waited for all that was there, and where it covers a span in part it depends on it. */
    spans[first].write = point;
    spans[first].read_count = 0;
    if (end - first > 1) {
        for (uint32_t i = first + 1; i < end; i++) {
            span_finish(&spans[i]);
        }
        spans[first].byte_end = spans[end - 1].byte_end;
        memmove(&spans[first + 1], &spans[end], (history->count - end) * sizeof spans[0]);
        history->count -= end - first - 1;
    }
}

/* ---- questions ---- */

/* What is asked about: a range of a block, and, where that is a variable of a module, all that uses
 * the module's variables, which one a kernel touches being known to nobody. */
static uint32_t refs_of(const struct gpu_ref *ref, struct gpu_ref refs[2]) {
    refs[0] = *ref;
    if (!ref->block->module) {
        return 1;
    }
    refs[1] = (struct gpu_ref){.block = ref->block->module->hazards, .byte_count = 1};
    return 2;
}

/* The spans that a ref touches, as indices from *first up to what is returned. */
static uint32_t spans_of(const struct gpu_ref *ref, uint32_t *first) {
    const struct gpu_history *history = &ref->block->history;
    const struct gpu_span *spans = gpu_history_spans(history);
    uint32_t end = *first = gpu_history_find(history, ref->byte_offset);
    while (spans[end++].byte_end < ref->byte_offset + ref->byte_count && end < history->count) {}
    return end;
}

static bool is_idle(const struct gpu_ref *ref, bool for_write) {
    const struct gpu_device *device = ref->block->device;
    const struct gpu_span *spans = gpu_history_spans(&ref->block->history);
    uint32_t i, end = spans_of(ref, &i);
    for (; i < end; i++) {
        if (spans[i].write.seq != 0 && !gpu_point_is_over(device, spans[i].write)) {
            return false;
        }
        const struct gpu_point *reads = gpu_span_reads(&spans[i]);
        for (uint32_t k = 0; for_write && k < spans[i].read_count; k++) {
            if (!gpu_point_is_over(device, reads[k])) {
                return false;
            }
        }
    }
    return true;
}

bool gpu_ref_is_idle(const struct gpu_ref *ref, bool for_write) {
    GPU_ENTER_WHOLE(ref->block->device, true);
    gpu_repeat_settle(ref->block->device);
    struct gpu_ref refs[2];
    uint32_t count = refs_of(ref, refs);
    return is_idle(&refs[0], for_write) && (count < 2 || is_idle(&refs[1], for_write));
}

static struct gpu_op *pending_at(struct gpu_device *device, struct gpu_point point) {
    if (point.seq == 0 || gpu_point_is_over(device, point)) {
        return NULL;
    }
    struct gpu_op *op = gpu_op_find_pending(device, point);
    return op ? gpu_op_retain(op) : NULL;
}

static struct gpu_op *pending_of(const struct gpu_ref *ref, bool for_write) {
    struct gpu_device *device = ref->block->device;
    const struct gpu_span *spans = gpu_history_spans(&ref->block->history);
    struct gpu_op *op = NULL;
    uint32_t i, end = spans_of(ref, &i);
    for (; i < end && !op; i++) {
        op = pending_at(device, spans[i].write);
        const struct gpu_point *reads = gpu_span_reads(&spans[i]);
        for (uint32_t k = 0; for_write && !op && k < spans[i].read_count; k++) {
            op = pending_at(device, reads[k]);
        }
    }
    return op;
}

struct gpu_op *gpu_ref_pending(const struct gpu_ref *ref, bool for_write) {
    GPU_ENTER_WHOLE(ref->block->device, NULL);
    (void)gpu_device_poll(ref->block->device);
    gpu_repeat_settle(ref->block->device);
    struct gpu_ref refs[2];
    uint32_t count = refs_of(ref, refs);
    struct gpu_op *op = pending_of(&refs[0], for_write);
    return op || count < 2 ? op : pending_of(&refs[1], for_write);
}

static struct gpu_failure *failure_of(const struct gpu_ref *ref) {
    struct gpu_device *device = ref->block->device;
    uint32_t i, end = spans_of(ref, &i);
    const struct gpu_span *spans = gpu_history_spans(&ref->block->history);
    /* Words may have moved since the last poll, and the failures behind them not been read yet. */
    bool is_behind = false;
    for (uint32_t k = i; k < end; k++) {
        is_behind = is_behind || spans[k].write.seq > device->done[spans[k].write.slot];
    }
    if (is_behind) {
        (void)gpu_device_poll(device);
        end = spans_of(ref, &i);
        spans = gpu_history_spans(&ref->block->history);
    }
    struct gpu_failure *failure = NULL;
    for (; i < end && device->failed_count != 0 && !failure; i++) {
        failure = spans[i].write.seq != 0 ? gpu_failed_find(device, spans[i].write) : NULL;
    }
    return failure;
}

bool gpu_ref_failure(const struct gpu_ref *ref, struct gpu_error *error) {
    struct gpu_device *device = ref->block->device;
    GPU_ENTER_WHOLE(device, false);
    gpu_repeat_settle(device);
    struct gpu_ref refs[2];
    uint32_t count = refs_of(ref, refs);
    struct gpu_failure *failure = failure_of(&refs[0]);
    failure = failure || count < 2 ? failure : failure_of(&refs[1]);
    if (failure) {
        gpu_failure_observe(device, failure);
        if (error) {
            gpu_error_copy(error, gpu_failure_error(failure));
        }
    }
    return failure != NULL;
}

static bool is_cut_at(const struct gpu_history *history, uint64_t byte_offset) {
    const struct gpu_span *spans = gpu_history_spans(history);
    uint32_t at = gpu_history_find(history, byte_offset);
    return byte_offset == (at > 0 ? spans[at - 1].byte_end : 0) ||
           byte_offset == spans[at].byte_end;
}

void gpu_ref_overwritten(const struct gpu_ref *ref) {
    struct gpu_device *device = ref->block->device;
    GPU_ENTER_WHOLE(device);
    const struct gpu_use use = {.block = ref->block,
                                .byte_begin = ref->byte_offset,
                                .byte_end = ref->byte_offset + ref->byte_count,
                                .access = GPU_WRITE};
    if (device->failed_count == 0) {
        return;
    }
    gpu_repeat_forget(device);
    if (gpu_history_cut(&use) && is_cut_at(&ref->block->history, use.byte_begin) &&
        is_cut_at(&ref->block->history, use.byte_end)) {
        gpu_history_commit(&use, (struct gpu_point){0}); /* by nothing on the device */
    }
}

bool gpu_history_has_write(const struct gpu_history *history, struct gpu_point point) {
    const struct gpu_span *spans = gpu_history_spans(history);
    for (uint32_t i = 0; i < history->count; i++) {
        if (spans[i].write.slot == point.slot && spans[i].write.seq == point.seq) {
            return true;
        }
    }
    return false;
}
