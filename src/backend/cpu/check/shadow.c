/* Spaces of check mode (see shadow.h). */
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/check/shadow.h"

#define WORD_BITS 64u

static size_t round_up(size_t bytes) {
    return (bytes + CHECK_PAGE_BYTES - 1) & ~(size_t)(CHECK_PAGE_BYTES - 1);
}

bool gpu_check_space_init(struct check_space *space, uintptr_t base, uint64_t bytes) {
    uint64_t pages = bytes / CHECK_PAGE_BYTES + 1;
    uint64_t whole = pages * CHECK_PAGE_BYTES;
    size_t written_bytes = round_up(whole / 8), fine_bytes = round_up(pages);
    size_t coarse_cells_bytes = whole / CHECK_CELL_BYTES * sizeof(struct check_cell);
    size_t fine_cells_bytes = whole * sizeof(struct check_cell);
    size_t mapping_bytes = written_bytes + fine_bytes + coarse_cells_bytes + fine_cells_bytes;
    uint8_t *mapping = mmap(NULL, mapping_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        return false;
    }
    *space = (struct check_space){
        .base = base,
        .bytes = bytes,
        .written = (uint64_t *)(void *)mapping,
        .is_fine = mapping + written_bytes,
        .coarse = (struct check_cell *)(void *)(mapping + written_bytes + fine_bytes),
        .fine = (struct check_cell *)(void *)(mapping + written_bytes + fine_bytes +
                                              coarse_cells_bytes),
        .mapping = mapping,
        .mapping_bytes = mapping_bytes,
    };
    return true;
}

void gpu_check_space_finish(struct check_space *space) {
    if (space->mapping != NULL) {
        munmap(space->mapping, space->mapping_bytes);
    }
    memset(space, 0, sizeof *space);
}

/* Bits [from, to) of a word. */
static uint64_t word_mask(uint64_t from, uint64_t to) {
    uint64_t below = to >= WORD_BITS ? UINT64_MAX : (UINT64_C(1) << to) - 1;
    return below & (UINT64_MAX << from);
}

void gpu_check_space_mark(struct check_space *space, uint64_t offset, uint64_t bytes,
                          bool is_written) {
    uint64_t end = offset + bytes;
    while (offset < end) {
        uint64_t word = offset / WORD_BITS, start = word * WORD_BITS;
        uint64_t mask = word_mask(offset - start, end - start);
        if (is_written) {
            space->written[word] |= mask;
        } else if (space->written[word] != 0) { /* pages that nobody touched stay so */
            space->written[word] &= ~mask;
        }
        offset = start + WORD_BITS;
    }
}

static bool is_marked(const struct check_space *space, uint64_t offset) {
    return (space->written[offset / WORD_BITS] >> (offset % WORD_BITS) & 1) != 0;
}

void gpu_check_space_copy(struct check_space *dst, uint64_t dst_offset,
                          const struct check_space *src, uint64_t src_offset, uint64_t bytes) {
    if (dst == src && src_offset < dst_offset && dst_offset < src_offset + bytes) {
        for (uint64_t i = bytes; i-- > 0;) {
            gpu_check_space_mark(dst, dst_offset + i, 1, is_marked(src, src_offset + i));
        }
        return;
    }
    for (uint64_t at = 0; at < bytes;) {
        bool is_written = is_marked(src, src_offset + at);
        uint64_t run = gpu_check_space_find(src, src_offset + at, bytes - at, !is_written);
        gpu_check_space_mark(dst, dst_offset + at, run, is_written);
        at += run;
    }
}

uint64_t gpu_check_space_find(const struct check_space *space, uint64_t offset, uint64_t bytes,
                              bool is_written) {
    uint64_t at = offset, end = offset + bytes;
    while (at < end) {
        uint64_t word = at / WORD_BITS, start = word * WORD_BITS;
        uint64_t bits = is_written ? space->written[word] : ~space->written[word];
        bits &= word_mask(at - start, end - start);
        if (bits != 0) {
            return start + (uint64_t)__builtin_ctzll(bits) - offset;
        }
        at = start + WORD_BITS;
    }
    return bytes;
}

void gpu_check_space_refine(struct check_space *space, uint64_t page) {
    const struct check_cell *from = &space->coarse[page * (CHECK_PAGE_BYTES / CHECK_CELL_BYTES)];
    struct check_cell *to = &space->fine[page * CHECK_PAGE_BYTES];
    for (uint32_t i = 0; i < CHECK_PAGE_BYTES; i++) {
        const struct check_cell *cell = &from[i / CHECK_CELL_BYTES];
        if ((cell->write | cell->read) != 0) {
            to[i] = *cell;
        }
    }
    space->is_fine[page] = 1;
}
