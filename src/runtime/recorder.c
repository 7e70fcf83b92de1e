/* The recorder: which earlier work an operation has to wait for, found from what it reads and
 * writes.
 *
 * A block remembers its newest write and, since then, the newest read of each stream. A read waits
 * for the write; a write waits for the write and all those reads. Work of the same stream needs no
 * wait; work that is over needs none; and what the stream has already waited for needs none again
 * (`waited`). Every read also depends on the write it reads: if that failed, so does the reader. A
 * write that covers only a part of its block is taken as reading it too, because what it leaves
 * alone has the old history. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state.h"

static bool is_over_by_last_sight(const struct gpu_device *device, struct gpu_point point) {
    return point.seq <= device->done[point.slot];
}

static void add(struct gpu_stream *stream, struct gpu_waits *waits, struct gpu_point point,
                uint32_t flags) {
    for (uint32_t i = 0; i < waits->count; i++) {
        struct wire_wait *wait = &waits->items[i];
        if (wait->stream != point.slot) {
            continue;
        }
        if (wait->seq == point.seq) {
            wait->flags |= flags;
            return;
        }
        /* One order per stream is enough: the later one. */
        if ((flags & WIRE_WAIT_ORDER) && (wait->flags & WIRE_WAIT_ORDER)) {
            if (wait->seq > point.seq) {
                flags &= ~(uint32_t)WIRE_WAIT_ORDER;
            } else {
                wait->flags &= ~(uint32_t)WIRE_WAIT_ORDER;
            }
            stream->device->stats.waits_elided++;
        }
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

static void wait_for(struct gpu_stream *stream, struct gpu_waits *waits, struct gpu_point point,
                     bool depends) {
    struct gpu_device *device = stream->device;
    if (point.seq == 0) {
        return;
    }
    if (depends && device->failed_count > 0 && !waits->failure) {
        waits->failure = gpu_failed_find(device, point);
    }
    if (is_over_by_last_sight(device, point)) {
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

void gpu_recorder_find(struct gpu_stream *stream, const struct gpu_use *uses, uint32_t use_count,
                       struct gpu_waits *waits) {
    waits->count = 0;
    waits->failure = NULL;
    waits->is_full = false;
    for (uint32_t i = 0; i < use_count; i++) {
        const struct gpu_block *block = uses[i].block;
        /* A module's hazard block has order but no contents that could be undefined. */
        bool has_contents = block->byte_count > 0;
        wait_for(stream, waits, block->write, (uses[i].access & GPU_READ) != 0 && has_contents);
        if (uses[i].access & GPU_WRITE) {
            for (uint32_t k = 0; k < block->read_count; k++) {
                wait_for(stream, waits, block->reads[k], false);
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

/* Drops reads that are over; true if there is room for one more, or one of this stream to replace.
 */
static bool make_room(struct gpu_block *block, uint32_t slot) {
    for (uint32_t i = 0; i < block->read_count; i++) {
        if (block->reads[i].slot == slot) {
            return true;
        }
    }
    if (block->read_count < block->read_capacity) {
        return true;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < block->read_count; i++) {
        if (!gpu_point_is_over(block->device, block->reads[i])) {
            block->reads[kept++] = block->reads[i];
        }
    }
    block->read_count = kept;
    if (kept < block->read_capacity) {
        return true;
    }
    uint32_t capacity = block->read_capacity * 2; /* at most one for each stream slot */
    struct gpu_point *grown = malloc(capacity * sizeof *grown);
    if (!grown) {
        return false;
    }
    memcpy(grown, block->reads, block->read_count * sizeof *grown);
    if (block->reads != block->reads_inline) {
        free(block->reads);
    }
    block->reads = grown;
    block->read_capacity = capacity;
    return true;
}

bool gpu_recorder_prepare(struct gpu_stream *stream, const struct gpu_use *uses,
                          uint32_t use_count) {
    for (uint32_t i = 0; i < use_count; i++) {
        if (uses[i].access == GPU_READ && !make_room(uses[i].block, stream->slot)) {
            return false;
        }
    }
    return true;
}

static void commit_read(struct gpu_block *block, struct gpu_point point) {
    for (uint32_t i = 0; i < block->read_count; i++) {
        if (block->reads[i].slot == point.slot) {
            block->reads[i].seq = point.seq;
            return;
        }
    }
    assert(block->read_count < block->read_capacity);
    block->reads[block->read_count++] = point;
}

void gpu_recorder_commit(struct gpu_stream *stream, uint64_t seq, const struct gpu_use *uses,
                         uint32_t use_count) {
    struct gpu_point point = {.slot = stream->slot, .seq = seq};
    for (uint32_t i = 0; i < use_count; i++) {
        struct gpu_block *block = uses[i].block;
        if (uses[i].access & GPU_WRITE) {
            block->write = point;
            block->read_count = 0;
        } else {
            commit_read(block, point);
        }
    }
}
