/* A ring with the bytes of an input in it, as its other end could have left them there. */
#ifndef SPEC_FUZZ_RING_H
#define SPEC_FUZZ_RING_H

#include "fuzz/fuzz.h"
#include "wire/ring.h"

#define FUZZ_RING_BYTES                                                                            \
    8192u /* small, so that inputs run over its end; malloc'ed for itself alone */

struct fuzz_ring {
    struct wire_ring ring; /* the reader's */
    _Atomic uint64_t head, tail;
};

/* Two bytes of the input say where the reader is, one how much more than there is was published;
 * the rest is what was. */
static inline void fuzz_ring_fill(struct fuzz_ring *it, struct fuzz_input *input) {
    uint16_t at;
    fuzz_take(input, &at, sizeof at);
    uint8_t more = fuzz_byte(input);
    size_t count = input->byte_count < FUZZ_RING_BYTES ? input->byte_count : FUZZ_RING_BYTES;
    uint64_t position = (uint64_t)at * 16u;
    uint8_t *bytes = calloc(1, FUZZ_RING_BYTES);
    for (size_t i = 0; i < count; i++) {
        bytes[(position + i) % FUZZ_RING_BYTES] = input->bytes[i];
    }
    memset(it, 0, sizeof *it);
    it->head = position + ((count + 15u) & ~(size_t)15u) + more;
    it->tail = position;
    it->ring = (struct wire_ring){.bytes = bytes,
                                  .capacity_bytes = FUZZ_RING_BYTES,
                                  .head = &it->head,
                                  .tail = &it->tail,
                                  .position = position,
                                  .seen = position};
}

static inline void fuzz_ring_free(struct fuzz_ring *it) {
    free(it->ring.bytes);
}

#endif
