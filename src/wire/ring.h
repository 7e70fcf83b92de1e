/* A byte ring of whole messages between one producer and one consumer, in memory that two processes
 * may share.
 *
 * Head and tail count bytes for ever and live in the completion page, so they are passed in. A
 * message never wraps: where it does not fit before the end, a wrap marker (length 0) fills the
 * rest. Messages start with their length in a uint32_t and are multiples of 16 bytes. The producer
 * publishes with release, the consumer takes with acquire. */
#ifndef GPU_WIRE_RING_H
#define GPU_WIRE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct wire_ring {
    uint8_t *bytes;          /* borrowed from the mapping */
    uint64_t capacity_bytes; /* a power of two */
    _Atomic uint64_t *head;  /* borrowed from the page */
    _Atomic uint64_t *tail;
    uint64_t position; /* this side's own copy of the counter that it writes */
    uint64_t seen;     /* this side's last sight of the other counter */
};

/* Producer: copies a whole message in and publishes it. False: no room now. A message larger than
 * half the capacity is the caller's bug (assert). */
bool gpu_wire_ring_push(struct wire_ring *ring, const void *message, uint32_t length_bytes);

/* Consumer: the next message, in place, or NULL. It stays valid until gpu_wire_ring_pop.
 * `*length_bytes` is validated against the capacity: a corrupt length yields NULL and sets
 * *corrupt. */
const void *gpu_wire_ring_peek(struct wire_ring *ring, uint32_t *length_bytes, bool *corrupt);
void gpu_wire_ring_pop(struct wire_ring *ring, uint32_t length_bytes);

bool gpu_wire_ring_empty(struct wire_ring *ring);

#endif
