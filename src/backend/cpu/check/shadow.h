/* What check mode knows of every byte that kernels can reach.
 *
 * A space is a range of addresses (a slab, a module's variables, shared memory) with, for each
 * byte, whether it was ever written, and with cells that say who accessed it last. All of it is
 * reserved at once and costs memory only where something was touched.
 *
 * A cell stands for four bytes, or for one on pages where an access was smaller or not aligned: a
 * page begins with cells of four bytes and changes once, for good. So what is said of an access is
 * exact to the byte, and the usual one touches one cell. Cells and pages count from the space's
 * base, which may be anywhere.
 *
 * A tag says who accessed: stamp | thread | time | kind. Stamps are drawn from one counter of the
 * device, at the begin of each block and at each of its barriers, and never come again; so tags of
 * launches before need not be cleared away, and who was before a barrier shows by its stamp alone.
 * Times order the threads of a warp between two barriers (order.h). */
#ifndef GPU_CPU_CHECK_SHADOW_H
#define GPU_CPU_CHECK_SHADOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK_PAGE_BYTES 4096u
#define CHECK_CELL_BYTES 4u

#define CHECK_KIND_PLAIN 0u
#define CHECK_KIND_ATOMIC 1u
#define CHECK_KIND_VOLATILE 2u
#define CHECK_KIND_BITS 2u
#define CHECK_TIME_BITS 16u
#define CHECK_TIME_MAX ((1u << CHECK_TIME_BITS) - 1u)
#define CHECK_THREAD_SHIFT (CHECK_KIND_BITS + CHECK_TIME_BITS)
#define CHECK_STAMP_SHIFT (CHECK_THREAD_SHIFT + 10u)

struct check_cell {
    uint64_t write; /* tag of the newest write; 0: none */
    uint64_t read;  /* tag of the newest read, see lanes */
    uint64_t other; /* tag of a read by another block of the launch, before; 0: none */
    /* Who has read with the stamp of `read`: lanes of its warp that nothing orders; 0: threads of
     * several warps, `read` one of them and `second` another. */
    uint32_t lanes;
    uint32_t second;
    /* Where in the module's code these accesses are (check/run.h); 0: not known, or not the same
     * for all that `read` and `lanes` stand for. */
    uint32_t write_site, read_site, other_site, second_site;
};

struct check_space {
    uintptr_t base;
    uint64_t bytes;
    uint64_t *written; /* bit for each byte */
    uint8_t *is_fine;  /* for each page: its cells stand for a byte */
    struct check_cell *coarse, *fine;
    void *mapping; /* owned; holds all of these */
    size_t mapping_bytes;
};

/* False: no memory. */
bool gpu_check_space_init(struct check_space *space, uintptr_t base, uint64_t bytes);
void gpu_check_space_finish(struct check_space *space);

/* Offsets from the space's base; ranges lie inside. */
void gpu_check_space_mark(struct check_space *space, uint64_t offset, uint64_t bytes,
                          bool is_written);
void gpu_check_space_copy(struct check_space *dst, uint64_t dst_offset,
                          const struct check_space *src, uint64_t src_offset, uint64_t bytes);
/* The first byte from `offset` on that is written, or is not; `bytes`: there is none. */
uint64_t gpu_check_space_find(const struct check_space *space, uint64_t offset, uint64_t bytes,
                              bool is_written);
/* Gives a page cells of single bytes. */
void gpu_check_space_refine(struct check_space *space, uint64_t page);

static inline uint64_t gpu_check_tag_stamp(uint64_t tag) {
    return tag >> CHECK_STAMP_SHIFT;
}
static inline uint32_t gpu_check_tag_thread(uint64_t tag) {
    return (uint32_t)(tag >> CHECK_THREAD_SHIFT) & 1023u;
}
static inline uint32_t gpu_check_tag_time(uint64_t tag) {
    return (uint32_t)(tag >> CHECK_KIND_BITS) & CHECK_TIME_MAX;
}
static inline uint32_t gpu_check_tag_kind(uint64_t tag) {
    return (uint32_t)tag & ((1u << CHECK_KIND_BITS) - 1u);
}

#endif
