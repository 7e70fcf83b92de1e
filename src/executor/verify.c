/* One launch between two hashes (see verify.h). */
#include <stdlib.h>
#include <string.h>

#include "executor/verify.h"

/* ---- names ---- */

void gpu_executor_verify_kernel(struct wire_executor *executor, uint32_t number, const char *name) {
    char **row = gpu_executor_row_make(&executor->verify->kernels, number, EXECUTOR_OBJECTS_MAX);
    if (row != NULL) {
        free(*row);
        *row = strdup(name);
    }
}

/* ---- what is declared ---- */

static int by_begin(const void *a, const void *b) {
    const struct verify_range *left = a, *right = b;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static bool writes_read(struct executor_verify *verify, const struct backend_launch *launch) {
    uint32_t count = 0;
    verify->write_count = 0;
    for (uint32_t i = 0; i < launch->use_count; i++) {
        const struct backend_use *use = &launch->uses[i];
        if ((use->access & WIRE_USE_WRITE) == 0 || use->bytes == 0) {
            continue;
        }
        if (!gpu_verify_grow(&verify->writes, count, &verify->write_capacity,
                             sizeof *verify->writes)) {
            return false;
        }
        verify->writes[count++] =
            (struct verify_range){.begin = use->address, .end = use->address + use->bytes};
    }
    if (count > 0) {
        qsort(verify->writes, count, sizeof *verify->writes, by_begin);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct verify_range *last =
            verify->write_count > 0 ? &verify->writes[verify->write_count - 1] : NULL;
        if (last != NULL && verify->writes[i].begin <= last->end) {
            last->end = verify->writes[i].end > last->end ? verify->writes[i].end : last->end;
        } else {
            verify->writes[verify->write_count++] = verify->writes[i];
        }
    }
    return true;
}

/* ---- what is hashed ---- */

static uint64_t round_down(uint64_t address) {
    return address & ~(uint64_t)(VERIFY_CHUNK_BYTES - 1);
}

static uint64_t round_up(uint64_t address) {
    return round_down(address + VERIFY_CHUNK_BYTES - 1);
}

static bool span_add(struct verify_spans *spans, uint32_t block, uint64_t begin, uint64_t end,
                     uint64_t table) {
    if (spans->count == spans->capacity) {
        uint32_t capacity = spans->capacity;
        if (!gpu_verify_grow(&spans->list, spans->count, &spans->capacity, sizeof *spans->list) ||
            !gpu_verify_grow(&spans->blocks, spans->count, &capacity, sizeof *spans->blocks)) {
            spans->capacity = capacity;
            return false;
        }
    }
    spans->list[spans->count] = (struct verify_span){
        .begin = begin, .end = end, .table = table, .chunk = spans->chunk_count};
    spans->blocks[spans->count++] = block;
    spans->chunk_count += (round_up(end) - round_down(begin)) / VERIFY_CHUNK_BYTES;
    return true;
}

/* Part of a chunk, whose hash is for this launch alone. */
static bool edge_add(struct executor_verify *verify, uint32_t block, uint64_t begin, uint64_t end) {
    uint64_t table = VERIFY_EDGE | verify->edge_count * sizeof(uint64_t);
    verify->edge_count++;
    return span_add(&verify->takes, block, begin, end, table) &&
           span_add(&verify->looks, block, begin, end, table);
}

/* Whole chunks: hashed before the launch only where the table does not know them. */
static bool chunks_add(struct executor_verify *verify, uint32_t number, uint64_t begin,
                       uint64_t end) {
    const struct verify_block *block = &verify->blocks[number];
    const struct verify_slab *slab = gpu_verify_slab_of(verify, block->address);
    uint64_t first = round_down(block->dirty_begin), last = round_up(block->dirty_end);
    uint64_t table = slab->table_address - slab->address / VERIFY_CHUNK_BYTES * sizeof(uint64_t);
    first = first > begin ? first : begin;
    last = last < end ? last : end;
    if (block->dirty_begin < block->dirty_end && first < last &&
        !span_add(&verify->takes, number, first, last,
                  table + first / VERIFY_CHUNK_BYTES * sizeof(uint64_t))) {
        return false;
    }
    return span_add(&verify->looks, number, begin, end,
                    table + begin / VERIFY_CHUNK_BYTES * sizeof(uint64_t));
}

static bool piece_add(struct executor_verify *verify, uint32_t block, uint64_t begin,
                      uint64_t end) {
    uint64_t first = round_up(begin), last = round_down(end);
    if (begin >= end) {
        return true;
    }
    if (first > last) {
        return edge_add(verify, block, begin, end);
    }
    return (begin == first || edge_add(verify, block, begin, first)) &&
           (first == last || chunks_add(verify, block, first, last)) &&
           (last == end || edge_add(verify, block, last, end));
}

/* The range, but for what the launch declares as written. */
static bool range_add(struct executor_verify *verify, uint32_t block, uint64_t begin,
                      uint64_t end) {
    for (uint32_t i = 0; i < verify->write_count && begin < end; i++) {
        const struct verify_range *write = &verify->writes[i];
        if (write->end <= begin || write->begin >= end) {
            continue;
        }
        if (!piece_add(verify, block, begin, write->begin)) {
            return false;
        }
        begin = write->end;
    }
    return piece_add(verify, block, begin, end);
}

/* A block and what lies around it are apart, so that a difference is in one of them. */
static bool spans_make(struct executor_verify *verify) {
    verify->takes.count = verify->looks.count = verify->edge_count = 0;
    verify->takes.chunk_count = verify->looks.chunk_count = 0;
    gpu_verify_watch(verify);
    for (uint32_t i = 0; i < verify->block_count; i++) {
        const struct verify_block *block = &verify->blocks[i];
        uint64_t end = block->address + block->bytes;
        if (!range_add(verify, i, block->begin, block->address) ||
            !range_add(verify, i, block->address, end) || !range_add(verify, i, end, block->end)) {
            return false;
        }
    }
    return true;
}

/* ---- */

gpulua_status gpu_executor_verify_launch(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         const struct backend_launch *launch,
                                         struct backend_error *error) {
    struct executor_verify *verify = executor->verify;
    uint64_t changed = UINT64_MAX;
    gpulua_status status = gpu_verify_tables_make(executor, error);
    if (status != GPULUA_OK) {
        return status;
    }
    if (verify->has_failed || !writes_read(verify, launch) || !spans_make(verify)) {
        gpu_verify_forget(verify);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory for check mode");
    }
    status = gpu_verify_run(executor, launch, &changed, error);
    /* A launch that failed by itself has said why. */
    bool has_failed =
        status != GPULUA_OK || gpu_executor_failed_find(executor, record->stream, record->seq) != 0;
    if (!has_failed && changed != UINT64_MAX) {
        has_failed = true;
        status = gpu_verify_find(executor, record, launch, changed, error);
    }
    if (has_failed) {
        gpu_verify_forget(verify);
    } else {
        gpu_verify_settle(verify);
    }
    return status;
}
