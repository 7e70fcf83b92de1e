/* Check mode of the CPU device: every access of a kernel is seen, and held against what the launch
 * declares, against what memory there is, and against the other threads' accesses.
 *
 *   check.c    what memory there is: slabs, blocks, and what was ever written
 *   launch.c   one launch: its uses, the order of its blocks and warps, its end
 *   access.c   the services that kernels call at each access
 *   find.c     an access that is not right: which finding it is, and its text
 *   touched.c  what it has done to variables of its module
 *   order.c    which threads are ordered    shadow.c  bytes and who accessed them last
 *
 * Kernels are compiled with the host compiler's thread-sanitizer instrumentation, but its runtime
 * is not linked: shim/gpulua_hooks.h has its entry points, which ask the services of the context.
 *
 * All of it is on the executor's thread: a checked device has no workers, and does its work when
 * it is asked for (schedule.h). So what is told of slabs and blocks meets work that was enqueued
 * before. It cannot matter to that: memory is told of before its first use is enqueued, and its end
 * when all uses are over; what is freed counts for what is launched behind it alone. */
#ifndef GPU_CPU_CHECK_CHECK_H
#define GPU_CPU_CHECK_CHECK_H

#include "backend/backend.h"
#include "backend/cpu/check/order.h"
#include "backend/cpu/check/shadow.h"
#include "backend/cpu/kernel.h"

#define CHECK_LABEL_BYTES 64u

/* A block of the script's; a freed one is kept until its addresses are another's. */
struct check_block {
    uint64_t address, bytes, number;
    uint64_t freed;  /* its number among those that were freed; 0: it is not */
    bool is_scratch; /* a graph's temporary */
    char label[CHECK_LABEL_BYTES], where[CHECK_LABEL_BYTES];
};

/* Memory that a kernel took from the heap. */
struct check_heap {
    uintptr_t address;
    uint64_t bytes;
};

/* What has been said already, so that it is not said with every launch. */
struct check_warned {
    const struct cpu_kernel_table *kernel;
    uint32_t part, access;
};

struct check {
    const struct backend_sink *sink; /* borrowed from the device */
    uint64_t seed;

    struct check_space *slabs; /* owned; by address */
    size_t slab_count, slab_capacity;
    struct check_block *blocks; /* owned; by address, none overlap */
    size_t block_count, block_capacity;
    uint64_t free_count; /* blocks freed so far */
    bool has_scratch;
    struct check_space **others; /* owned, one by one: uses hold them while more come. Of modules
                                    and of shared memory */
    size_t other_count, other_capacity;
    struct check_heap *heap; /* owned */
    size_t heap_count, heap_capacity;
    struct check_warned *warned; /* owned */
    size_t warned_count, warned_capacity;
    uint64_t stamp_next;
    struct check_order order;
    bool has_failed; /* no memory for what has to be known: every launch fails */
};

struct check *gpu_check_create(uint64_t seed, const struct backend_sink *sink);
void gpu_check_destroy(struct check *check);

/* ---- what there is ---- */
void gpu_check_slab_create(struct check *check, uint64_t address, uint64_t bytes);
void gpu_check_slab_destroy(struct check *check, uint64_t address);
void gpu_check_block_create(struct check *check, uint64_t number, uint64_t address, uint64_t bytes,
                            const char *label, bool is_scratch);
/* A launch of a graph begins, and does nothing beside others: its temporaries have no history. */
void gpu_check_scratch_begin(struct check *check);
void gpu_check_block_free(struct check *check, uint64_t number, const char *where);

/* A copy, upload or fill has been done, or somebody else may write there. `src` may be memory of
 * the host's. */
void gpu_check_filled(struct check *check, uint64_t address, uint64_t bytes);
void gpu_check_copied(struct check *check, uint64_t dst, uint64_t src, uint64_t bytes);

struct check_space *gpu_check_slab_of(const struct check *check, uint64_t address);
/* The block that has the address, or NULL. */
const struct check_block *gpu_check_block_of(const struct check *check, uint64_t address);
/* A space for memory that is no slab, made when there is none. NULL: no memory. */
struct check_space *gpu_check_space_of(struct check *check, uintptr_t base, uint64_t bytes);
/* One more of a growing list; false: no memory. */
bool gpu_check_grow(void *list, size_t count, size_t *capacity, size_t item_bytes);

/* ---- launches (launch.c) ---- */

/* A launch as the executor gives it, its uses and which blocks are freed behind its arguments; the
 * arguments that a queue copies. malloc'ed; NULL: no memory. */
void *gpu_check_launch_pack(struct check *check, const struct backend_launch *launch,
                            uint32_t *args_bytes);
/* A packed launch of a graph, which is launched again: what has been freed by then counts. */
void gpu_check_launch_now(struct cpu_launch *launch, uint64_t free_count);
/* Runs all blocks on the calling thread. */
void gpu_check_launch_run(struct check *check, struct cpu_launch *launch, uint32_t stream,
                          uint64_t seq);

#endif
