/* Which accesses of one block are ordered: by barriers, by operations of a warp, by fences.
 *
 * Between two barriers (one stamp) only threads of one warp can be ordered, by __syncwarp, a
 * shuffle or a vote that both took part in. A warp counts such operations; `seen[i][k]` is the
 * count up to which lane i knows what lane k did, passed on as lanes meet.
 *
 * A fence followed by an atomic operation publishes what the thread did before; a thread that has
 * performed an atomic operation since may know of it. That is kept without the location, so that
 * locks and "the last block adds up" raise nothing. The fence may also be one of each thread's own,
 * in front of a barrier, and the atomic operation anybody's behind it. */
#ifndef GPU_CPU_CHECK_ORDER_H
#define GPU_CPU_CHECK_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/check/shadow.h"
#include "backend/cpu/module.h"

#define CHECK_WARP_THREADS 32u
#define CHECK_WARPS_MAX (CPU_BLOCK_THREADS_MAX / CHECK_WARP_THREADS)

struct check_warp {
    bool is_used; /* since the last barrier */
    uint32_t time;
    uint16_t seen[CHECK_WARP_THREADS][CHECK_WARP_THREADS];
};

/* Times of the fences that each thread of a block had made when it came to a barrier; 0: none. */
struct check_fences {
    uint16_t times[CPU_BLOCK_THREADS_MAX];
};

/* A block that has published something: all before its last barrier before that, and what the one
 * thread that did so accessed before its fence. By an atomic operation behind a barrier alone, what
 * was in front of the fences before that. Stamps of 0: nothing. */
struct check_release {
    uint64_t first, last; /* stamps */
    uint32_t thread;      /* CHECK_THREAD_SEVERAL: more than one, with the last stamp */
    uint32_t time;        /* of that thread's fence */
    uint64_t fences_stamp;
    uint64_t fences; /* which */
};
#define CHECK_THREAD_SEVERAL UINT32_MAX

struct check_order {
    uint64_t *stamp_next;                     /* the device's */
    uint64_t launch_first;                    /* stamps of the launch begin here, */
    uint64_t block_first;                     /* those of the block here, */
    uint64_t stamp;                           /* and this is now */
    bool has_acquired;                        /* the block has performed an atomic operation */
    bool has_fences;                          /* something of the four below is not 0 */
    uint16_t fenced[CPU_BLOCK_THREADS_MAX];   /* times of this interval: of the last fence, */
    uint16_t wide[CPU_BLOCK_THREADS_MAX];     /* of the last that is for other blocks too, */
    uint16_t released[CPU_BLOCK_THREADS_MAX]; /* of what an atomic operation has published since */
    bool acquired[CPU_BLOCK_THREADS_MAX];
    struct check_warp warps[CHECK_WARPS_MAX];
    bool has_wide;                  /* something of `wide` is not 0 */
    struct check_fences before;     /* what `wide` was, in the last interval that had any */
    uint64_t before_stamp;          /* of this block; 0: none */
    struct check_release *releases; /* owned; of the launch, by stamp */
    uint64_t release_count, release_capacity;
    struct check_fences *fences; /* owned; of the launch: blocks mostly have the same */
    uint64_t fences_count, fences_capacity;
};

/* The low bits of a thread's tag, kept in its record. */
static inline uint64_t gpu_check_thread_bits(uint32_t thread, uint32_t time) {
    return (uint64_t)thread << CHECK_THREAD_SHIFT | (uint64_t)time << CHECK_KIND_BITS;
}

void gpu_check_order_launch(struct check_order *order, uint64_t *stamp_next);
/* Threads are the block's records: a new interval starts their times anew. */
void gpu_check_order_block(struct check_order *order, struct cpu_thread *threads, uint32_t count);
void gpu_check_order_barrier(struct check_order *order, struct cpu_thread *threads, uint32_t count);
/* Lanes of warp `w` have met. */
void gpu_check_order_warp(struct check_order *order, struct cpu_thread *threads, uint32_t count,
                          uint32_t w, uint32_t lanes);
void gpu_check_order_fence(struct check_order *order, struct cpu_thread *threads, uint32_t count,
                           uint32_t thread, bool is_wide);
/* An atomic operation; what it publishes if it writes. */
void gpu_check_order_atomic(struct check_order *order, uint32_t thread, bool writes);
void gpu_check_order_finish(struct check_order *order);

/* Does `thread`, now, come behind the access of that tag? Of this launch, by another thread. */
bool gpu_check_is_ordered(const struct check_order *order, uint64_t tag, uint32_t thread);

#endif
