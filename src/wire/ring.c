/* The byte ring: see ring.h. */
#include "wire/ring.h"

#include <assert.h>
#include <string.h>

#include "wire/sync.h"

#define CACHE_LINE_BYTES 64
#define MESSAGE_BYTES_MIN 16u
#define AHEAD_BYTES 256u /* two launches */

bool gpu_wire_ring_push(struct wire_ring *ring, const void *message, uint32_t length_bytes) {
    uint64_t capacity = ring->capacity_bytes;
    assert(length_bytes >= MESSAGE_BYTES_MIN && length_bytes % 16u == 0);
    assert(length_bytes <= capacity / 2);
    uint64_t offset = ring->position & (capacity - 1);
    uint64_t end_bytes = capacity - offset;
    uint64_t skip_bytes = length_bytes > end_bytes ? end_bytes : 0;
    uint64_t need_bytes = skip_bytes + length_bytes;
    if (ring->position - ring->seen + need_bytes > capacity) {
        /* A tail beyond the head (the other side went mad) reads as a full ring. */
        uint64_t tail = atomic_load_explicit(ring->tail, memory_order_acquire);
        uint64_t used_bytes = ring->position - tail;
        if (used_bytes > capacity) {
            return false;
        }
        ring->seen = tail;
        if (used_bytes + need_bytes > capacity) {
            return false;
        }
    }
    if (skip_bytes != 0) {
        const uint32_t marker = 0;
        memcpy(ring->bytes + offset, &marker, sizeof marker);
        offset = 0;
    }
    if (length_bytes == 64) {
        memcpy(ring->bytes + offset, message, 64); /* most records: inlined by the compiler */
    } else {
        memcpy(ring->bytes + offset, message, length_bytes);
    }
    ring->position += need_bytes;
    atomic_store_explicit(ring->head, ring->position, memory_order_release);
    /* The other core has read what lies there now. The exchange that wakes it (gpu_wire_flag_wake)
     * would wait for those lines; so each is asked for once, some messages early. */
    uint64_t from = ring->position - (need_bytes < AHEAD_BYTES ? need_bytes : AHEAD_BYTES);
    uint64_t at = (from + AHEAD_BYTES + CACHE_LINE_BYTES - 1) & ~(uint64_t)(CACHE_LINE_BYTES - 1);
    for (; at < ring->position + AHEAD_BYTES; at += CACHE_LINE_BYTES) {
        gpu_wire_will_write(ring->bytes + (at & (capacity - 1)));
    }
    return true;
}

static uint32_t length_at(const struct wire_ring *ring, uint64_t offset) {
    uint32_t length_bytes;
    memcpy(&length_bytes, ring->bytes + offset, sizeof length_bytes);
    return length_bytes;
}

const void *gpu_wire_ring_peek(struct wire_ring *ring, uint32_t *length_bytes, bool *corrupt) {
    uint64_t capacity = ring->capacity_bytes;
    *corrupt = false;
    if (ring->seen == ring->position) {
        ring->seen = atomic_load_explicit(ring->head, memory_order_acquire);
        if (ring->seen == ring->position) {
            return NULL;
        }
    }
    uint64_t there_bytes = ring->seen - ring->position;
    if (there_bytes > capacity || there_bytes % 16u != 0) {
        *corrupt = true;
        return NULL;
    }
    uint64_t offset = ring->position & (capacity - 1);
    uint32_t length = length_at(ring, offset);
    if (length == 0) {
        /* The marker is published together with the message behind it. */
        uint64_t skip_bytes = capacity - offset;
        if (offset == 0 || skip_bytes >= there_bytes) {
            *corrupt = true;
            return NULL;
        }
        ring->position += skip_bytes;
        there_bytes -= skip_bytes;
        offset = 0;
        length = length_at(ring, 0);
    }
    if (length < MESSAGE_BYTES_MIN || length % 16u != 0 || length > capacity / 2 ||
        length > there_bytes || length > capacity - offset) {
        *corrupt = true;
        return NULL;
    }
    *length_bytes = length;
    /* The next message lies in the other core's cache: ask for it while this one is worked on. */
    const uint8_t *next = ring->bytes + ((offset + length) & (capacity - 1));
    __builtin_prefetch(next);
    __builtin_prefetch(next + CACHE_LINE_BYTES);
    return ring->bytes + offset;
}

void gpu_wire_ring_pop(struct wire_ring *ring, uint32_t length_bytes) {
    ring->position += length_bytes;
    atomic_store_explicit(ring->tail, ring->position, memory_order_release);
}

bool gpu_wire_ring_empty(struct wire_ring *ring) {
    return atomic_load_explicit(ring->head, memory_order_acquire) == ring->position;
}
