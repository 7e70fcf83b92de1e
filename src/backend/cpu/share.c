/* Doing an item: alone, or with others who take seats at a job.
 *
 * Calling workers costs microseconds, theirs and the caller's, so a launch gets as many as its
 * length pays for. How long it will take is known from the kernel's launches before; a kernel that
 * is new, or takes longer than it used to, is shared as soon as that shows.
 *
 * A job is joined and left with one atomic operation each. Nobody waits for anybody: whoever finds
 * nothing left to claim leaves, and the last to leave goes on with the stream. */
#include <string.h>

#include "backend/cpu/check/check.h"
#include "backend/cpu/graph.h"
#include "backend/cpu/module.h"

#define HELPER_NS_MIN 4000u          /* of work that a helper has to find to be worth calling */
#define SHARE_NS_MIN 20000u          /* a launch that was thought short is shared after this long */
#define SHARE_THREADS_MIN 1024u      /* of a kernel that is not known: more are shared at once */
#define PARTS_PER_USER 2u            /* claims: half a fair share of what is left .. */
#define UNITS_MIN_PARTS_PER_USER 32u /* .. down to this part of a fair share of all */

/* ---- doing parts of items ---- */

typedef uint16_t any16 __attribute__((aligned(1), may_alias));
typedef uint32_t any32 __attribute__((aligned(1), may_alias));
typedef uint64_t any64 __attribute__((aligned(1), may_alias));

static void fill_part(uint8_t *dst, const uint64_t pattern[2], uint32_t elem_bytes,
                      uint64_t count) {
    switch (elem_bytes) {
    case 1:
        memset(dst, (int)(pattern[0] & 0xff), count);
        break;
    case 2:
        for (uint64_t i = 0; i < count; i++) {
            ((any16 *)dst)[i] = (uint16_t)pattern[0];
        }
        break;
    case 4:
        for (uint64_t i = 0; i < count; i++) {
            ((any32 *)dst)[i] = (uint32_t)pattern[0];
        }
        break;
    case 8:
        for (uint64_t i = 0; i < count; i++) {
            ((any64 *)dst)[i] = pattern[0];
        }
        break;
    default:
        for (uint64_t i = 0; i < count; i++) {
            ((any64 *)dst)[2 * i] = pattern[0];
            ((any64 *)dst)[2 * i + 1] = pattern[1];
        }
        break;
    }
}

static bool overlaps(const struct cpu_item *item) {
    uintptr_t dst = (uintptr_t)item->u.copy.dst;
    uintptr_t src = (uintptr_t)item->u.copy.src;
    return dst < src + item->u.copy.bytes && src < dst + item->u.copy.bytes;
}

/* Units of a launch are blocks; of copies and fills, grains. */
static void do_units(struct cpu_item *item, uint64_t first, uint64_t count) {
    if (item->kind == CPU_ITEM_LAUNCH) {
        gpu_cpu_blocks_run(&item->u.launch->launch, first, count);
    } else if (item->kind == CPU_ITEM_COPY) {
        uint64_t start = first * CPU_COPY_GRAIN_BYTES;
        uint64_t bytes = count * CPU_COPY_GRAIN_BYTES;
        if (bytes > item->u.copy.bytes - start) {
            bytes = item->u.copy.bytes - start;
        }
        memcpy(item->u.copy.dst + start, item->u.copy.src + start, bytes);
    } else {
        uint64_t grain = CPU_COPY_GRAIN_BYTES / item->elem_bytes;
        uint64_t start = first * grain;
        uint64_t elem_count = count * grain;
        if (elem_count > item->u.fill.elem_count - start) {
            elem_count = item->u.fill.elem_count - start;
        }
        fill_part(item->u.fill.dst + start * item->elem_bytes, item->u.fill.pattern,
                  item->elem_bytes, elem_count);
    }
}

static uint64_t now_ns(void) {
    return (uint64_t)gpu_cpu_clock_ns();
}

/* ---- jobs ---- */

static uint64_t bit_of(const struct backend_device *device, const struct cpu_job *job) {
    return UINT64_C(1) << (job - device->jobs);
}

static void job_show(struct backend_device *device, struct cpu_job *job) {
    atomic_fetch_or(&device->open_jobs, bit_of(device, job));
}

static void job_hide(struct backend_device *device, struct cpu_job *job) {
    if ((atomic_load_explicit(&device->open_jobs, memory_order_relaxed) & bit_of(device, job)) !=
        0) {
        atomic_fetch_and(&device->open_jobs, ~bit_of(device, job));
    }
}

/* NULL: all are in use. */
static struct cpu_job *job_take(struct backend_device *device) {
    for (uint32_t i = 0; i < device->job_count; i++) {
        uint32_t free_one = CPU_JOB_FREE | 1u << 16;
        struct cpu_job *job = &device->jobs[i];
        /* No seats: being prepared. */
        if (atomic_load_explicit(&job->users, memory_order_relaxed) == free_one &&
            atomic_compare_exchange_strong_explicit(&job->users, &free_one, CPU_JOB_FREE,
                                                    memory_order_acquire, memory_order_relaxed)) {
            return job;
        }
    }
    return NULL;
}

/* A part of what is left, smaller towards the end so that all finish together. */
static uint64_t claim(struct cpu_job *job, uint64_t *first) {
    uint64_t next = atomic_load_explicit(&job->next, memory_order_relaxed);
    if (next >= job->unit_count) {
        return 0;
    }
    uint64_t count = (job->unit_count - next) / job->parts;
    count = count < job->units_min ? job->units_min : count;
    next = atomic_fetch_add_explicit(&job->next, count, memory_order_relaxed);
    if (next >= job->unit_count) {
        return 0;
    }
    *first = next;
    return count < job->unit_count - next ? count : job->unit_count - next;
}

static bool has_failed(const struct cpu_item *item) {
    return item->kind == CPU_ITEM_LAUNCH &&
           atomic_load_explicit(&item->u.launch->launch.failed, memory_order_relaxed) != 0;
}

/* Claims and does units until none is left. False: left early, because other streams have nobody to
 * serve them; only a helper does. */
static bool job_work(struct backend_device *device, struct cpu_job *job, bool is_helper) {
    uint64_t first = 0, count;
    while ((count = claim(job, &first)) != 0) {
        do_units(job->item, first, count);
        if (has_failed(job->item)) {
            atomic_store_explicit(&job->next, job->unit_count, memory_order_relaxed);
        }
        if (is_helper && atomic_load_explicit(&device->ready_count, memory_order_relaxed) != 0) {
            return false;
        }
    }
    job_hide(device, job);
    return true;
}

/* True: the caller was the last. `gives_seat`: another may come in its place. */
static bool job_leave(struct backend_device *device, struct cpu_job *job, bool gives_seat) {
    if (gives_seat) {
        job_show(device, job);
    }
    uint32_t before = atomic_fetch_add_explicit(
        &job->users, gives_seat ? (1u << 16) - 1u : UINT32_MAX, memory_order_acq_rel);
    if ((before & 0xffffu) != 1) {
        return false;
    }
    job_hide(device, job);
    return true;
}

/* By the last, who has taken from it what he needs. */
static void job_free(struct cpu_job *job) {
    atomic_store_explicit(&job->users, CPU_JOB_FREE | 1u << 16, memory_order_release);
}

static bool job_join(struct backend_device *device, struct cpu_job *job) {
    uint32_t users = atomic_load_explicit(&job->users, memory_order_relaxed);
    do {
        uint32_t count = users & 0xffffu;
        if (count == 0 || count == CPU_JOB_FREE || users >> 16 == 0) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&job->users, &users, users + 1u - (1u << 16),
                                                    memory_order_acquire, memory_order_relaxed));
    if (users >> 16 == 1) {
        job_hide(device, job); /* that was the last seat */
    }
    return true;
}

bool gpu_cpu_job_help(struct backend_device *device, struct backend_stream **stream,
                      struct cpu_item **item) {
    uint64_t open = atomic_load_explicit(&device->open_jobs, memory_order_relaxed);
    for (; open != 0; open &= open - 1) {
        struct cpu_job *job = &device->jobs[__builtin_ctzll(open)];
        if (!job_join(device, job)) {
            continue;
        }
        struct backend_stream *of = job->stream;
        struct cpu_item *done = job->item;
        bool is_all = job_work(device, job, true);
        *stream = NULL;
        if (job_leave(device, job, !is_all)) {
            job_free(job);
            *stream = of;
            *item = done;
        }
        return true;
    }
    return false;
}

/* ---- items ---- */

static uint64_t units_of(const struct cpu_item *item) {
    if (item->kind == CPU_ITEM_LAUNCH) {
        const struct cpu_launch *launch = &item->u.launch->launch;
        return (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    }
    uint64_t bytes = item->kind == CPU_ITEM_COPY ? item->u.copy.bytes
                                                 : item->u.fill.elem_count * item->elem_bytes;
    return (bytes + CPU_COPY_GRAIN_BYTES - 1) / CPU_COPY_GRAIN_BYTES;
}

/* At most so many that there is a unit and a worker for each, and the caller's. */
static uint32_t helpers_limit(const struct backend_device *device, uint64_t wanted,
                              uint64_t units) {
    uint64_t most = device->worker_count - 1;
    most = most < units - 1 ? most : units - 1;
    return (uint32_t)(wanted < most ? wanted : most);
}

static uint64_t whole_ns(uint64_t unit_ns, uint64_t units) {
    return units <= UINT64_MAX / UINT32_MAX ? unit_ns * units : UINT64_MAX;
}

/* How many are called before anything of the item is done. */
static uint32_t helpers_first(const struct backend_device *device, const struct cpu_item *item,
                              uint64_t units) {
    if (item->kind != CPU_ITEM_LAUNCH) {
        return helpers_limit(device, UINT64_MAX, units);
    }
    const struct cpu_launch *launch = &item->u.launch->launch;
    uint32_t block_ns = atomic_load_explicit(&launch->kernel->block_ns, memory_order_relaxed);
    if (block_ns != 0) {
        return helpers_limit(device, whole_ns(block_ns, units) / HELPER_NS_MIN, units);
    }
    uint64_t threads = units * launch->block[0] * launch->block[1] * launch->block[2];
    return helpers_limit(device, threads >= SHARE_THREADS_MIN ? UINT64_MAX : 0, units);
}

static void cost_learn(struct cpu_item *item, uint64_t spent_ns, uint64_t count) {
    uint64_t block_ns = spent_ns / count;
    block_ns = block_ns == 0 ? 1 : block_ns < UINT32_MAX ? block_ns : UINT32_MAX;
    _Atomic uint32_t *known = &item->u.launch->launch.kernel->block_ns;
    uint64_t before = atomic_load_explicit(known, memory_order_relaxed);
    before = before == 0 ? block_ns : before;
    atomic_store_explicit(known, (uint32_t)((3 * before + block_ns + 2) / 4), memory_order_relaxed);
}

/* A launch that is thought to be short: parts of it, each larger, as long as that holds. Returns
 * the blocks that are done; `*helpers`: how many the rest of them is worth. */
static uint64_t launch_try_alone(const struct backend_device *device, struct cpu_item *item,
                                 uint64_t units, uint32_t *helpers) {
    uint64_t start_ns = now_ns(), done = 1, spent_ns;
    do_units(item, 0, 1);
    while ((spent_ns = now_ns() - start_ns) < SHARE_NS_MIN && done < units) {
        uint64_t count = 3 * done < units - done ? 3 * done : units - done;
        do_units(item, done, count);
        done += count;
    }
    cost_learn(item, spent_ns, done);
    *helpers = done < units
                   ? helpers_limit(device, whole_ns(spent_ns / done, units - done) / HELPER_NS_MIN,
                                   units - done)
                   : 0;
    return done;
}

static void job_open(struct cpu_job *job, struct backend_stream *stream, struct cpu_item *item,
                     uint64_t first, uint64_t units, uint32_t helpers) {
    job->stream = stream;
    job->item = item;
    job->unit_count = units;
    job->parts = (uint64_t)PARTS_PER_USER * (helpers + 1);
    job->units_min = units / ((uint64_t)UNITS_MIN_PARTS_PER_USER * (helpers + 1));
    job->units_min = job->units_min == 0 ? 1 : job->units_min;
    atomic_store_explicit(&job->next, first, memory_order_relaxed);
    atomic_store_explicit(&job->users, 1u | helpers << 16, memory_order_release);
}

/* Check mode: all of it here, one after the other, and what it has written is noted. */
static void item_do_checked(struct backend_stream *stream, struct cpu_item *item) {
    struct check *check = stream->device->check;
    if (item->kind == CPU_ITEM_GRAPH) {
        gpu_cpu_graph_run_checked(stream, item);
    } else if (item->kind == CPU_ITEM_LAUNCH) {
        gpu_check_launch_run(check, &item->u.launch->launch, stream->slot, item->seq);
    } else if (item->kind == CPU_ITEM_COPY) {
        uint64_t dst = (uint64_t)(uintptr_t)item->u.copy.dst;
        uint64_t src = (uint64_t)(uintptr_t)item->u.copy.src;
        memmove(item->u.copy.dst, item->u.copy.src, item->u.copy.bytes);
        gpu_check_copied(check, dst, src, item->u.copy.bytes);
    } else {
        do_units(item, 0, units_of(item));
        gpu_check_filled(check, (uint64_t)(uintptr_t)item->u.fill.dst,
                         item->u.fill.elem_count * item->elem_bytes);
    }
}

bool gpu_cpu_item_do(struct backend_stream *stream, struct cpu_item *item) {
    struct backend_device *device = stream->device;
    if (device->check != NULL) {
        item_do_checked(stream, item);
        return true;
    }
    if (item->kind == CPU_ITEM_COPY && overlaps(item)) {
        memmove(item->u.copy.dst, item->u.copy.src, item->u.copy.bytes);
        return true;
    }
    uint64_t units = units_of(item), first = 0;
    bool can_share = units > 1 && device->worker_count > 1;
    uint32_t helpers = can_share ? helpers_first(device, item, units) : 0;
    if (can_share && helpers == 0) {
        first = launch_try_alone(device, item, units, &helpers);
    }
    struct cpu_job *job = helpers > 0 ? job_take(device) : NULL;
    if (job == NULL) {
        do_units(item, first, units - first);
        return true;
    }
    job_open(job, stream, item, first, units, helpers);
    job_show(device, job);
    gpu_cpu_pool_call(device, helpers);
    uint64_t count = claim(job, &first);
    if (count > 0) {
        uint64_t start_ns = now_ns();
        do_units(item, first, count);
        if (item->kind == CPU_ITEM_LAUNCH) {
            cost_learn(item, now_ns() - start_ns, count);
        }
    }
    (void)job_work(device, job, false);
    if (!job_leave(device, job, false)) {
        return false;
    }
    job_free(job);
    return true;
}
