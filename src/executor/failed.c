/* The set of operations known to have failed, or skipped because of one that had.
 *
 * A record that reads the output of one of them is skipped. The script side draws the same
 * conclusion once it has seen the failure, and flags its later records itself; FORGET_FAILURES says
 * how far it has got, and the set shrinks. Almost always empty, so the count is looked at first. */
#include <stdlib.h>
#include <string.h>

#include "executor/executor.h"

static uint32_t hash(uint32_t stream, uint64_t seq) {
    uint64_t mixed = (seq * 512u + stream) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32);
}

/* The row of (stream, seq), or the free one where it belongs. The table is never full. */
static struct executor_failed *slot_of(struct executor_failed *rows, uint32_t capacity,
                                       uint32_t stream, uint64_t seq) {
    uint32_t i = hash(stream, seq) & (capacity - 1);
    while (rows[i].is_used && (rows[i].stream != stream || rows[i].seq != seq)) {
        i = (i + 1) & (capacity - 1);
    }
    return &rows[i];
}

/* Copies the rows worth keeping into a table of that capacity. Locked. */
static bool rebuild(struct wire_executor *executor, uint32_t capacity) {
    struct executor_failed *rows = calloc(capacity, sizeof *rows);
    if (rows == NULL) {
        return false;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < executor->failed_capacity; i++) {
        const struct executor_failed *row = &executor->failed[i];
        if (row->is_used && row->number > executor->forgotten_number) {
            *slot_of(rows, capacity, row->stream, row->seq) = *row;
            count++;
        }
    }
    free(executor->failed);
    executor->failed = rows;
    executor->failed_capacity = capacity;
    atomic_store_explicit(&executor->failed_count, count, memory_order_release);
    return true;
}

void gpu_executor_failed_add(struct wire_executor *executor, uint32_t stream, uint64_t seq,
                             uint64_t number) {
    pthread_mutex_lock(&executor->failed_lock);
    uint32_t count = atomic_load_explicit(&executor->failed_count, memory_order_relaxed);
    if (number > executor->forgotten_number) {
        if (count * 2 >= executor->failed_capacity) {
            rebuild(executor, executor->failed_capacity == 0 ? 64 : executor->failed_capacity * 2);
        }
        /* Without memory for a larger table its last free rows are used up, but for one that ends
         * searches. Then dependents run; the script side fails them all the same. */
        count = atomic_load_explicit(&executor->failed_count, memory_order_relaxed);
        if (count + 1 < executor->failed_capacity) {
            struct executor_failed *row =
                slot_of(executor->failed, executor->failed_capacity, stream, seq);
            if (!row->is_used) {
                *row = (struct executor_failed){
                    .seq = seq, .stream = stream, .is_used = 1, .number = number};
                atomic_store_explicit(&executor->failed_count, count + 1, memory_order_release);
            }
        }
    }
    pthread_mutex_unlock(&executor->failed_lock);
}

uint64_t gpu_executor_failed_find(struct wire_executor *executor, uint32_t stream, uint64_t seq) {
    if (atomic_load_explicit(&executor->failed_count, memory_order_acquire) == 0) {
        return 0;
    }
    uint64_t number = 0;
    pthread_mutex_lock(&executor->failed_lock);
    if (executor->failed_capacity != 0) {
        const struct executor_failed *row =
            slot_of(executor->failed, executor->failed_capacity, stream, seq);
        number = row->is_used ? row->number : 0;
    }
    pthread_mutex_unlock(&executor->failed_lock);
    return number;
}

void gpu_executor_failed_forget(struct wire_executor *executor, uint64_t count) {
    pthread_mutex_lock(&executor->failed_lock);
    if (count > executor->forgotten_number) {
        executor->forgotten_number = count;
        uint32_t capacity = executor->failed_capacity;
        if (capacity != 0 && rebuild(executor, capacity)) {
            uint32_t left = atomic_load_explicit(&executor->failed_count, memory_order_relaxed);
            if (left == 0) {
                free(executor->failed);
                executor->failed = NULL;
                executor->failed_capacity = 0;
            }
        }
    }
    pthread_mutex_unlock(&executor->failed_lock);
}
