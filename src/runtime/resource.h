/* Memory resources: where the memory of blocks comes from.
 *
 * A resource gives ranges of device memory and takes them back. Those at the bottom ask the
 * executor: slab (the device's default: ranges of few large grants, found on this side, no round
 * trip), driver (the driver's stream-ordered pool: each allocation counts as a write on its
 * stream), direct (a grant of its own for each, asked for and given back at once; it does not
 * belong to the order of streams, so launches refuse it). The others stand on one below them, any
 * of them on any other: budget, statistics, logging, guard, policy. A device's budget lies under
 * all of them, at the bottom.
 *
 * Owner thread only. A resource lives while it is referenced: blocks retain theirs, and each
 * retains the one below it. Releasing never calls the executor. */
#ifndef GPU_RUNTIME_RESOURCE_H
#define GPU_RUNTIME_RESOURCE_H

#include "runtime/device.h"

struct gpu_memory;
struct gpu_stream;

enum gpu_memory_kind {
    GPU_MEMORY_SLAB,
    GPU_MEMORY_DRIVER,
    GPU_MEMORY_DIRECT,
    GPU_MEMORY_BUDGET,
    GPU_MEMORY_STATISTICS,
    GPU_MEMORY_LOGGING,
    GPU_MEMORY_GUARD,
    GPU_MEMORY_POLICY,
    GPU_MEMORY_PINNED,   /* the arena; a device has one, and nobody makes others */
    GPU_MEMORY_EXTERNAL, /* of other libraries: see exchange.h; the same */
    GPU_MEMORY_KIND_COUNT
};

/* What to do when the device has no memory left. */
enum gpu_oom_policy { GPU_OOM_FAIL, GPU_OOM_FREE, GPU_OOM_WAIT };

#define GPU_CHECK_QUARANTINE_BYTES (UINT64_C(64) << 20) /* of slabs in check mode */
#define GPU_GUARD_CANARY_BYTES_MAX (UINT64_C(1) << 20)
#define GPU_LOG_TEXT_BYTES_MAX (UINT64_C(1) << 24)
#define GPU_MEMORY_DEPTH_MAX 16u /* resources on top of each other */

struct gpu_memory_info {
    enum gpu_memory_kind kind;
    struct gpu_memory *upstream; /* what it stands on; NULL: the device's default. Not for slab,
                                    driver, direct */
    uint64_t limit_bytes;        /* budget: > 0 */
    const char *label;           /* budget: what errors call it; copied. NULL: it has none */
    uint64_t quarantine_bytes;   /* guard: freed memory that is kept from being used again */
    uint64_t canary_bytes;       /* guard: before and behind each block; rounded up to 512 */
    uint64_t text_bytes;         /* logging: of lines that nobody has taken yet */
    enum gpu_oom_policy policy;  /* policy */
    int64_t timeout_ns;          /* policy: of GPU_OOM_WAIT */
};
/* OutOfMemory (of the host), Capacity (more than GPU_MEMORY_DEPTH_MAX on top of each other), and
 * InvalidArgument: an upstream of another device, a limit of 0. */
gpulua_status gpu_memory_create(struct gpu_device *device, const struct gpu_memory_info *info,
                                struct gpu_memory **memory, struct gpu_error *error);
struct gpu_memory *gpu_memory_retain(struct gpu_memory *memory);
void gpu_memory_release(struct gpu_memory *memory);

const char *gpu_memory_kind_name(const struct gpu_memory *memory);
struct gpu_device *gpu_memory_device(const struct gpu_memory *memory);
struct gpu_memory *gpu_memory_upstream(const struct gpu_memory *memory); /* or NULL; borrowed */
/* Itself, or the nearest below it, of that kind; NULL: there is none. Borrowed. */
struct gpu_memory *gpu_memory_find(struct gpu_memory *memory, enum gpu_memory_kind kind);
/* Can uses of it be ordered by streams? Strict recorders refuse what cannot. */
bool gpu_memory_is_trackable(const struct gpu_memory *memory);
uint64_t gpu_memory_outstanding_bytes(const struct gpu_memory *memory); /* granted and not back */
uint64_t gpu_memory_outstanding_count(const struct gpu_memory *memory);
/* The least that the budgets from here down still allow, and the limit of that one. */
uint64_t gpu_memory_remaining_bytes(const struct gpu_memory *memory, uint64_t *limit_bytes);
/* Works off what it and those below hold back: checks of what was freed, and, if urgent, all that
 * is in quarantine. Returns bytes given back. May block. */
uint64_t gpu_memory_reap(struct gpu_memory *memory, bool is_urgent);

/* ---- budget ---- */

/* Room for `count` blocks of so many bytes each, of all or of none, in every budget from here down:
 * OutOfBudget as one block of their sum would be. What was reserved is drawn by
 * gpu_block_create with info.is_reserved, or given back. */
struct gpu_block_info;
gpulua_status gpu_memory_reserve(struct gpu_memory *memory, const uint64_t *byte_counts,
                                 uint32_t count, const struct gpu_block_info *caller,
                                 struct gpu_error *error);
void gpu_memory_unreserve(struct gpu_memory *memory, uint64_t byte_count); /* of one block */

enum gpu_pressure {
    GPU_PRESSURE_NONE,
    GPU_PRESSURE_LOW,      /* from 50% of the limit on */
    GPU_PRESSURE_MEDIUM,   /* 70% */
    GPU_PRESSURE_HIGH,     /* 85% */
    GPU_PRESSURE_CRITICAL, /* 95% */
    GPU_PRESSURE_COUNT
};
const char *gpu_pressure_name(enum gpu_pressure level);
/* Of the nearest budget from here down; there is always one. */
enum gpu_pressure gpu_memory_pressure(const struct gpu_memory *memory);
/* Called whenever the level of that budget changes, from within the call that changes it: it may
 * only take note. One for each user; f NULL: not any more. False: no memory. */
bool gpu_memory_listen(struct gpu_memory *memory, void (*f)(void *user, enum gpu_pressure level),
                       void *user);

/* ---- policy ---- */

/* A way to free memory of the device, tried when there is none: higher priorities first, of equal
 * ones the older. Returns whether it has freed something. `caller` is that of the allocation. It
 * may free and allocate. Capacity beyond GPU_HOOKS_MAX; InvalidArgument: no policy from here down.
 */
#define GPU_HOOKS_MAX 64u
typedef bool gpu_oom_hook(void *user, void *caller, uint64_t byte_count);
gpulua_status gpu_memory_hook_add(struct gpu_memory *memory, int64_t priority, gpu_oom_hook *f,
                                  void *user, struct gpu_error *error);
/* All hooks of that user. */
void gpu_memory_hooks_remove(struct gpu_memory *memory, const void *user);

/* ---- statistics, of the nearest from here down; all 0 without one ---- */

/* clang-format off */
#define GPU_MEMORY_STATS_TABLE(X)                                                                  \
    X(allocs) X(frees) X(failures) X(bytes_live) X(bytes_live_max) X(bytes_total) X(largest_bytes) \
    X(blocks_live) X(blocks_live_max)
/* clang-format on */
struct gpu_memory_stats {
#define X(name) uint64_t name;
    GPU_MEMORY_STATS_TABLE(X)
#undef X
};
void gpu_memory_stats(const struct gpu_memory *memory, struct gpu_memory_stats *stats);

/* ---- logging, of the nearest from here down ---- */

/* "12 allocate 1024 bytes for allocation 7 'x' at pipeline.lua:3": each event has the next number,
 * also one that is dropped because the text is full. */
#define GPU_LOG_LINE_BYTES_MAX 192u
/* Takes the oldest line. False: there is none. */
bool gpu_memory_log_take(struct gpu_memory *memory, char line[GPU_LOG_LINE_BYTES_MAX]);
/* A line that was taken and could not be delivered. */
void gpu_memory_log_drop(struct gpu_memory *memory);
void gpu_memory_log_counts(const struct gpu_memory *memory, uint64_t *events, uint64_t *drops);

/* ---- guard, from here down ---- */

/* Looks at what was freed, when its uses are over, and, if that is wanted, at the canaries of every
 * block alive and at all that is in quarantine, when the device is idle; waits (blocking) for that.
 * OutOfBounds or UseAfterFree names the block whose neighbourhood or remains were written; further
 * findings are failures of the device that nobody has observed yet. What keeps it from looking is
 * raised, too. Without a guard it is well. */
gpulua_status gpu_memory_check(struct gpu_memory *memory, bool is_everything,
                               struct gpu_error *error);

#endif
