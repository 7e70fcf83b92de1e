/* What memory there is, in check mode (see check.h). */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/check/check.h"

bool gpu_check_grow(void *list, size_t count, size_t *capacity, size_t item_bytes) {
    void **items = list;
    if (count < *capacity) {
        return true;
    }
    size_t wanted = *capacity * 2 + 16;
    void *grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

struct check *gpu_check_create(uint64_t seed, const struct backend_sink *sink) {
    struct check *check = calloc(1, sizeof *check);
    if (check != NULL) {
        check->seed = seed;
        check->sink = sink;
        check->stamp_next = 1;
    }
    return check;
}

void gpu_check_destroy(struct check *check) {
    if (check == NULL) {
        return;
    }
    for (size_t i = 0; i < check->slab_count; i++) {
        gpu_check_space_finish(&check->slabs[i]);
    }
    for (size_t i = 0; i < check->other_count; i++) {
        gpu_check_space_finish(check->others[i]);
        free(check->others[i]);
    }
    for (size_t i = 0; i < check->heap_count; i++) {
        free((void *)check->heap[i].address);
    }
    gpu_check_order_finish(&check->order);
    free(check->slabs);
    free((void *)check->others);
    free(check->heap);
    free(check->blocks);
    free(check->warned);
    free(check);
}

/* ---- slabs ---- */

/* The first slab or block that ends behind the address. */
#define FIRST_BEHIND(list, count, start_of, address, at)                                           \
    do {                                                                                           \
        size_t high_ = (count);                                                                    \
        (at) = 0;                                                                                  \
        while ((at) < high_) {                                                                     \
            size_t middle_ = ((at) + high_) / 2;                                                   \
            if ((list)[middle_].start_of + (list)[middle_].bytes <= (address)) {                   \
                (at) = middle_ + 1;                                                                \
            } else {                                                                               \
                high_ = middle_;                                                                   \
            }                                                                                      \
        }                                                                                          \
    } while (0)

struct check_space *gpu_check_slab_of(const struct check *check, uint64_t address) {
    size_t at;
    FIRST_BEHIND(check->slabs, check->slab_count, base, address, at);
    bool is_inside = at < check->slab_count && check->slabs[at].base <= address;
    return is_inside ? &check->slabs[at] : NULL;
}

void gpu_check_slab_create(struct check *check, uint64_t address, uint64_t bytes) {
    size_t at;
    struct check_space space;
    if (!gpu_check_grow(&check->slabs, check->slab_count, &check->slab_capacity,
                        sizeof *check->slabs) ||
        !gpu_check_space_init(&space, address, bytes)) {
        check->has_failed = true;
        return;
    }
    FIRST_BEHIND(check->slabs, check->slab_count, base, address, at);
    memmove(&check->slabs[at + 1], &check->slabs[at],
            (check->slab_count - at) * sizeof *check->slabs);
    check->slabs[at] = space;
    check->slab_count++;
}

void gpu_check_slab_destroy(struct check *check, uint64_t address) {
    struct check_space *space = gpu_check_slab_of(check, address);
    if (space != NULL) {
        size_t at = (size_t)(space - check->slabs);
        gpu_check_space_finish(space);
        check->slab_count--;
        memmove(space, space + 1, (check->slab_count - at) * sizeof *space);
    }
}

/* ---- blocks ---- */

const struct check_block *gpu_check_block_of(const struct check *check, uint64_t address) {
    size_t at;
    FIRST_BEHIND(check->blocks, check->block_count, address, address, at);
    bool is_inside = at < check->block_count && check->blocks[at].address <= address;
    return is_inside ? &check->blocks[at] : NULL;
}

/* In the place of all freed ones whose addresses it takes. */
void gpu_check_block_create(struct check *check, uint64_t number, uint64_t address, uint64_t bytes,
                            const char *label, bool is_scratch) {
    size_t at, end;
    if (!gpu_check_grow(&check->blocks, check->block_count, &check->block_capacity,
                        sizeof *check->blocks)) {
        check->has_failed = true;
        return;
    }
    FIRST_BEHIND(check->blocks, check->block_count, address, address, at);
    for (end = at; end < check->block_count && check->blocks[end].address < address + bytes;) {
        end++;
    }
    memmove(&check->blocks[at + 1], &check->blocks[end],
            (check->block_count - end) * sizeof *check->blocks);
    check->block_count -= end - at;
    struct check_block *block = &check->blocks[at];
    *block = (struct check_block){
        .address = address, .bytes = bytes, .number = number, .is_scratch = is_scratch};
    check->has_scratch = check->has_scratch || is_scratch;
    strncpy(block->label, label, sizeof block->label - 1);
    check->block_count++;
    struct check_space *slab = gpu_check_slab_of(check, address);
    if (slab != NULL) {
        gpu_check_space_mark(slab, address - slab->base, bytes, false);
    }
}

void gpu_check_block_free(struct check *check, uint64_t number, const char *where) {
    check->free_count++;
    for (size_t i = 0; i < check->block_count; i++) {
        struct check_block *block = &check->blocks[i];
        if (block->number == number) {
            block->freed = check->free_count;
            strncpy(block->where, where, sizeof block->where - 1);
            return;
        }
    }
}

/* ---- what is written ---- */

void gpu_check_scratch_begin(struct check *check) {
    for (size_t i = 0; check->has_scratch && i < check->block_count; i++) {
        const struct check_block *block = &check->blocks[i];
        struct check_space *slab =
            block->is_scratch ? gpu_check_slab_of(check, block->address) : NULL;
        if (slab != NULL) {
            gpu_check_space_mark(slab, block->address - slab->base, block->bytes, false);
        }
    }
}

void gpu_check_filled(struct check *check, uint64_t address, uint64_t bytes) {
    struct check_space *slab = gpu_check_slab_of(check, address);
    if (slab != NULL) {
        gpu_check_space_mark(slab, address - slab->base, bytes, true);
    }
}

void gpu_check_copied(struct check *check, uint64_t dst, uint64_t src, uint64_t bytes) {
    struct check_space *to = gpu_check_slab_of(check, dst);
    const struct check_space *from = gpu_check_slab_of(check, src);
    if (to != NULL && from != NULL) {
        gpu_check_space_copy(to, dst - to->base, from, src - from->base, bytes);
    } else if (to != NULL) {
        gpu_check_space_mark(to, dst - to->base, bytes, true);
    }
}

/* ---- other memory ---- */

struct check_space *gpu_check_space_of(struct check *check, uintptr_t base, uint64_t bytes) {
    for (size_t i = 0; i < check->other_count; i++) {
        struct check_space *space = check->others[i];
        if (space->base == base && space->bytes == bytes) {
            return space;
        }
    }
    struct check_space *made = calloc(1, sizeof *made);
    if (made == NULL ||
        !gpu_check_grow(&check->others, check->other_count, &check->other_capacity,
                        sizeof(struct check_space *)) ||
        !gpu_check_space_init(made, base, bytes)) {
        free(made);
        return NULL;
    }
    return check->others[check->other_count++] = made;
}
