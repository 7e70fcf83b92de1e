/* The completion page: what both sides of the ring read and write. One per epoch, in a memory of
 * its own, so that a dying executor cannot complete work of the next one. Pinned by the CUDA
 * backend, so that the GPU itself writes device_done.
 *
 * (stream, seq) is over when max(device_done[stream], host_done[stream]) >= seq. Both only grow;
 * slots that are reused go on counting. Failures of operations up to seq are in the reply ring
 * before the word reaches seq: read the word first (acquire), then drain the replies, then draw
 * conclusions. */
#ifndef GPU_WIRE_PAGE_H
#define GPU_WIRE_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#include "wire/record.h"

#define WIRE_PAGE_MAGIC 0x67706c37u /* bumped with every change of layout or records */

enum wire_state {
    WIRE_STATE_STARTING = 0,
    WIRE_STATE_READY = 1, /* the executor takes records */
    WIRE_STATE_LOST = 2,  /* the device faulted for good, or the executor is gone */
    WIRE_STATE_CLOSED = 3 /* closed in good order */
};

struct wire_page {
    uint32_t magic;
    uint32_t command_bytes; /* size of the command ring, a power of two; it lies behind the page */
    uint32_t reply_bytes;   /* size of the reply ring, a power of two; behind the command ring */
    _Atomic uint32_t state;
    _Atomic uint32_t is_in_charge; /* written by the script side: 0 while the executor is a spare */
    _Alignas(64) _Atomic uint64_t command_head; /* written by the script side: bytes published */
    _Alignas(64) _Atomic uint64_t command_tail; /* written by the executor: bytes consumed */
    _Alignas(64) _Atomic uint64_t reply_head;   /* written by the executor */
    _Alignas(64) _Atomic uint64_t reply_tail;   /* written by the script side */
    _Alignas(64) _Atomic uint32_t
        executor_sleeps; /* futex: 1 while the executor sleeps for a record or a wish */
    _Alignas(64) _Atomic uint32_t
        script_sleeps; /* 1: write the eventfd when a wanted word, a reply or the state moves */
    _Alignas(64) _Atomic uint32_t wishes; /* bumped after wanted[] changed */
    _Alignas(64) _Atomic uint64_t unread; /* written by the device when it is warmed up */
    _Alignas(64) _Atomic uint64_t
        events_made; /* written by the executor: of the driver, ever; and ended */
    _Atomic uint64_t events_ended;
    _Atomic uint32_t is_loading; /* written by the executor: code, for which the driver waits until
                                  * nothing runs, and it cannot look at events meanwhile */
    _Atomic uint32_t wishes_heard; /* written by the executor: it has looked for all up to there */
    _Alignas(64) _Atomic uint64_t
        device_done[WIRE_STREAMS_MAX]; /* written in stream order (by the GPU on CUDA) */
    _Alignas(
        64) _Atomic uint64_t host_done[WIRE_STREAMS_MAX]; /* written by the executor's poller */
    _Alignas(64) _Atomic uint64_t
        wanted[WIRE_STREAMS_MAX]; /* somebody waits for this seq; 0 or a past one: nobody */
};

static inline uint64_t gpu_wire_page_done(const struct wire_page *page, uint32_t stream) {
    uint64_t device = atomic_load_explicit(&page->device_done[stream], memory_order_acquire);
    uint64_t host = atomic_load_explicit(&page->host_done[stream], memory_order_acquire);
    return device > host ? device : host;
}

#endif
