/* Inside checking: one launch while it runs (see check.h). Kernels reach it through
 * context->check. */
#ifndef GPU_CPU_CHECK_RUN_H
#define GPU_CPU_CHECK_RUN_H

#include "backend/cpu/check/check.h"
#include "backend/cpu/fibre.h"

/* A range that the launch declares. */
struct check_use {
    uint64_t address, bytes;
    uint32_t access;                /* WIRE_USE_READ, WIRE_USE_WRITE */
    const struct backend_use *from; /* what it is of, for messages */
    struct check_space *space;      /* borrowed; NULL: a module's variable */
    bool is_written;                /* every byte was, before the launch */
    bool can_race;                  /* another thread of the launch may write there */
    uint32_t done;                  /* what the kernel has done, as `access` */
};

/* Memory of the launch's module, known once an access asks for it. */
struct check_module {
    bool is_known;
    uintptr_t low, high;                 /* its image */
    uintptr_t written_low, written_high; /* the part of it that can be written */
    uintptr_t shared_low, shared_high;   /* its __shared__ variables, those of this worker */
    uintptr_t used_low, used_high;       /* of what can be written, what the launch has used */
};

/* An access that is about to be made. */
struct check_access {
    uintptr_t address;
    uint64_t bytes;
    uint32_t flags; /* enum cpu_access */
    uint32_t site;
    uint64_t
        first; /* accesses with earlier stamps are another launch's, or another block's memory */
};

/* An access that was made before, with which another one races at the byte `address`. */
struct check_before {
    uintptr_t address;
    uint64_t tag;
    uint32_t site;
    bool is_write;
};

/* A plain read of what another thread's atomic operation wrote. It is a race, unless the thread
 * goes on with an atomic operation there, as every loop around atomicCAS does: that shows if the
 * value was old. Decided at the thread's next barrier, its end, or its next such read. */
struct check_doubt {
    bool is_set;
    struct check_access access;
    struct check_before before;
};

/* A barrier that a thread waits at. */
struct check_barrier {
    const char *file; /* borrowed from the module's code, as the two numbers */
    uint32_t line, column;
    const void *site; /* as in the context, as the next one */
    void *const *frame;
    uint32_t thread;
};

/* A block that was begun, and the stamp that it began with. */
struct check_run_block {
    uint64_t number, stamp;
};

struct check_run {
    struct check *check;
    struct cpu_launch *launch;
    struct cpu_region *region;
    struct check_order *order;
    struct check_module module;
    uintptr_t
        code; /* in the module: sites are how far behind it, modulo 2^32, the access returns */
    uint32_t use_count;
    uint64_t free_count; /* blocks that were freed before the launch */
    uint64_t random;
    struct check_run_block *blocks; /* owned: those so far */
    uint64_t block_count, block_capacity;
    struct check_doubt doubt;     /* of the thread that runs */
    struct check_barrier barrier; /* that the first to arrive waits at */
    struct check_use uses[];
};

static inline struct check_run *gpu_check_run_of(struct cpu_context *context) {
    return context->check;
}
static inline uint32_t gpu_check_access_wanted(uint32_t flags) {
    return (flags & CPU_ACCESS_READ ? WIRE_USE_READ : 0u) |
           (flags & CPU_ACCESS_WRITE ? WIRE_USE_WRITE : 0u);
}

/* ---- access.c ---- */
void gpu_check_access(struct cpu_context *context, const void *address, unsigned long bytes,
                      unsigned flags);
void gpu_check_misplaced(struct cpu_context *context, const void *address, unsigned alignment,
                         const char *type, enum cpu_use use);
void gpu_check_fence(struct cpu_context *context, unsigned is_wide);
void *gpu_check_heap(struct cpu_context *context, void *address, unsigned long bytes);

/* ---- launch.c: what run.c tells, and asks ---- */
struct check_run *gpu_check_run_begin(struct check *check, struct cpu_launch *launch,
                                      struct cpu_region *region, uint32_t stream, uint64_t seq);
void gpu_check_run_end(struct check_run *run);
uint64_t gpu_check_random(struct check_run *run);
/* False: no memory. */
bool gpu_check_block(struct check_run *run, uint64_t block, uint32_t thread_count);
/* The thread that runs is about to let others run, or ends. */
void gpu_check_settle(struct cpu_context *context);
/* A thread is about to wait at the barrier, the first if `is_first`. */
void gpu_check_barrier_reached(struct cpu_context *context, bool is_first);

/* ---- touched.c ---- */
/* The run is over: what it has done to its module's variables goes to the sink. */
void gpu_check_tell_touched(struct check_run *run, uint32_t stream, uint64_t seq);

/* ---- find.c ---- */
void gpu_check_use_name(const struct check_run *run, const struct check_use *use, char *text,
                        size_t text_bytes);
/* None of these returns. */
/* No use allows the access. */
void gpu_check_find_undeclared(struct cpu_context *context, const struct check_access *access);
void gpu_check_find_misaligned(struct cpu_context *context, const struct check_access *access);
/* Before its accesses, which may be of its members alone. `type`: its name, in quotes. */
void gpu_check_find_misplaced(struct cpu_context *context, uintptr_t address, unsigned alignment,
                              const char *type, enum cpu_use use);
/* Byte `offset` of the access was never written, or, declared out, not yet. */
void gpu_check_find_unwritten(struct cpu_context *context, const struct check_access *access,
                              const struct check_use *use, uint64_t offset);
/* The access before is not ordered before this one. */
void gpu_check_find_race(struct cpu_context *context, const struct check_access *access,
                         const struct check_before *before);
/* The block is stuck: thread `waiting` is in a warp operation for the lanes of `mask`, and
 * `missing`, which is one of them, waits elsewhere. */
void gpu_check_find_stuck(struct cpu_context *context, uint32_t waiting, uint32_t mask,
                          uint32_t missing);
/* A warp operation for lanes of which the thread is none. */
void gpu_check_find_mask(struct cpu_context *context, uint32_t mask);
/* Another barrier than that of the first to arrive. */
void gpu_check_find_barrier(struct cpu_context *context, const struct check_barrier *here);

#endif
