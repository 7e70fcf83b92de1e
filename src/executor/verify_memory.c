/* What memory there is, and of which part the hashes are known (see verify.h). */
#include <stdlib.h>
#include <string.h>

#include "executor/verify.h"

bool gpu_verify_grow(void *list, uint32_t count, uint32_t *capacity, size_t item_bytes) {
    void **items = list;
    if (count < *capacity) {
        return true;
    }
    uint32_t wanted = *capacity * 2 + 16;
    void *grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

/* ---- slabs ---- */

/* The first slab that ends behind the address. */
static uint32_t slab_behind(const struct executor_verify *verify, uint64_t address) {
    uint32_t low = 0, high = verify->slab_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (verify->slabs[middle].address + verify->slabs[middle].bytes <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct verify_slab *gpu_verify_slab_of(const struct executor_verify *verify, uint64_t address) {
    uint32_t at = slab_behind(verify, address);
    bool is_inside = at < verify->slab_count && verify->slabs[at].address <= address;
    return is_inside ? &verify->slabs[at] : NULL;
}

static bool slab_add(struct executor_verify *verify, uint64_t address, uint64_t bytes) {
    if (gpu_verify_slab_of(verify, address) != NULL) {
        return true;
    }
    if (!gpu_verify_grow(&verify->slabs, verify->slab_count, &verify->slab_capacity,
                         sizeof *verify->slabs)) {
        return false;
    }
    uint32_t at = slab_behind(verify, address);
    memmove(&verify->slabs[at + 1], &verify->slabs[at],
            (verify->slab_count - at) * sizeof *verify->slabs);
    verify->slabs[at] = (struct verify_slab){.address = address, .bytes = bytes};
    verify->slab_count++;
    return true;
}

/* ---- blocks ---- */

/* The first block that ends behind the address. */
static uint32_t block_behind(const struct executor_verify *verify, uint64_t address) {
    uint32_t low = 0, high = verify->block_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (verify->blocks[middle].address + verify->blocks[middle].bytes <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Takes the blocks that begin or end in the range out; the place where they were. */
static uint32_t blocks_drop(struct executor_verify *verify, uint64_t address, uint64_t bytes) {
    uint32_t at = block_behind(verify, address), end = at;
    while (end < verify->block_count && verify->blocks[end].address < address + bytes) {
        end++;
    }
    memmove(&verify->blocks[at], &verify->blocks[end],
            (verify->block_count - end) * sizeof *verify->blocks);
    verify->block_count -= end - at;
    return at;
}

void gpu_executor_verify_block(struct wire_executor *executor, const struct wire_record *record,
                               uint64_t address, const char *label) {
    struct executor_verify *verify = executor->verify;
    uint64_t bytes = record->u.block.bytes;
    const struct executor_slab *slab =
        gpu_executor_row(&executor->slabs, gpu_wire_address_slab(record->u.block.address));
    if (slab == NULL || !slab_add(verify, slab->address, slab->bytes) ||
        !gpu_verify_grow(&verify->blocks, verify->block_count, &verify->block_capacity,
                         sizeof *verify->blocks)) {
        verify->has_failed = true;
        return;
    }
    uint32_t at = blocks_drop(verify, address, bytes);
    memmove(&verify->blocks[at + 1], &verify->blocks[at],
            (verify->block_count - at) * sizeof *verify->blocks);
    struct verify_block *block = &verify->blocks[at];
    *block =
        (struct verify_block){.address = address, .bytes = bytes, .number = record->u.block.number};
    strncpy(block->label, label, sizeof block->label - 1);
    verify->block_count++;
}

void gpu_executor_verify_block_free(struct wire_executor *executor, uint64_t number) {
    struct executor_verify *verify = executor->verify;
    for (uint32_t i = 0; i < verify->block_count; i++) {
        if (verify->blocks[i].number == number) {
            verify->blocks[i].is_freed = true;
            return;
        }
    }
}

void gpu_executor_verify_slab_gone(struct wire_executor *executor, uint64_t address) {
    struct executor_verify *verify = executor->verify;
    struct verify_slab *slab = gpu_verify_slab_of(verify, address);
    if (slab == NULL) {
        return;
    }
    blocks_drop(verify, slab->address, slab->bytes);
    if (slab->table != NULL) {
        executor->ops->slab_destroy(executor->device, slab->table);
    }
    verify->slab_count--;
    memmove(slab, slab + 1, (verify->slab_count - (uint32_t)(slab - verify->slabs)) * sizeof *slab);
}

/* ---- what is known ---- */

static void dirty(struct verify_block *block, uint64_t begin, uint64_t end) {
    begin = begin > block->begin ? begin : block->begin;
    end = end < block->end ? end : block->end;
    if (begin >= end) {
        return;
    }
    if (block->dirty_begin == block->dirty_end) {
        block->dirty_begin = begin;
        block->dirty_end = end;
    } else {
        block->dirty_begin = begin < block->dirty_begin ? begin : block->dirty_begin;
        block->dirty_end = end > block->dirty_end ? end : block->dirty_end;
    }
}

void gpu_executor_verify_written(struct wire_executor *executor, uint64_t address, uint64_t bytes) {
    struct executor_verify *verify = executor->verify;
    for (uint32_t i = 0; i < verify->block_count; i++) {
        dirty(&verify->blocks[i], address, address + bytes);
    }
}

void gpu_verify_forget(struct executor_verify *verify) {
    for (uint32_t i = 0; i < verify->block_count; i++) {
        verify->blocks[i].begin = verify->blocks[i].end = 0;
    }
}

void gpu_executor_verify_forget(struct wire_executor *executor) {
    gpu_verify_forget(executor->verify);
}

void gpu_verify_watch(struct executor_verify *verify) {
    uint64_t last_end = 0;
    for (uint32_t i = 0; i < verify->block_count; i++) {
        struct verify_block *block = &verify->blocks[i];
        const struct verify_slab *slab = gpu_verify_slab_of(verify, block->address);
        uint64_t begin = slab->address, end = slab->address + slab->bytes;
        uint64_t block_end = block->address + block->bytes;
        if (block->address - begin > VERIFY_GAP_BYTES) {
            begin = block->address - VERIFY_GAP_BYTES;
        }
        begin = begin > last_end ? begin : last_end;
        if (end - block_end > VERIFY_GAP_BYTES) {
            end = block_end + VERIFY_GAP_BYTES;
        }
        if (i + 1 < verify->block_count && verify->blocks[i + 1].address < end) {
            end = verify->blocks[i + 1].address;
        }
        if (begin < block->begin || end > block->end) {
            block->dirty_begin = begin;
            block->dirty_end = end;
        }
        block->begin = begin;
        block->end = end;
        last_end = end;
    }
}

void gpu_verify_settle(struct executor_verify *verify) {
    for (uint32_t i = 0; i < verify->block_count; i++) {
        struct verify_block *block = &verify->blocks[i];
        bool was_hashed = true;
        for (uint32_t k = 0; k < verify->write_count; k++) {
            const struct verify_range *write = &verify->writes[k];
            was_hashed = was_hashed &&
                         (write->end <= block->dirty_begin || write->begin >= block->dirty_end);
        }
        if (was_hashed) {
            block->dirty_begin = block->dirty_end = 0;
        }
        for (uint32_t k = 0; k < verify->write_count; k++) {
            dirty(block, verify->writes[k].begin, verify->writes[k].end);
        }
    }
}
