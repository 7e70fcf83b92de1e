/* Running blocks.
 *
 * A kernel without barriers and warp operations is called once for a range of blocks and loops over
 * their threads itself. In one with them every thread of a block is a fibre, and this file is their
 * scheduler: one fibre runs until it stops at a barrier or a warp operation, or ends; then the next
 * one that can run is switched to, directly. All fibres of a block run on one thread, so nothing
 * here needs an atomic.
 *
 * Who can run is a bit in `runnable` of its warp. A barrier is over when every thread that has not
 * ended waits at it; a warp operation when every lane of its mask that has not ended does. The last
 * to arrive does the work for all and goes on without a switch.
 *
 * As long as nothing but barriers has stopped anybody and nobody has ended, threads take turns in a
 * circle, and the bits say nothing that barrier_count does not: the block is `in_step`, and a
 * barrier costs little more than the switch. block_out_of_step writes the bits down. */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/check/run.h"
#include "backend/cpu/fibre.h"
#include "backend/cpu/library.h"
#include "backend/cpu/module.h"
#include "backend/cpu/run.h"

#define WARP_THREADS 32u
#define WARPS_MAX (CPU_BLOCK_THREADS_MAX / WARP_THREADS)
#define STACK_RESERVE_BYTES (16u * 1024u) /* for what kernels call of ours and of the C library */

struct warp_group {
    uint32_t mask, arrived;
    enum cpu_warp_operation operation;
};

struct warp {
    uint32_t alive;
    uint32_t runnable;
    uint32_t at_barrier;
    uint32_t at_active_mask;
    uint32_t group_count;
    struct warp_group groups[WARP_THREADS];
};

/* One worker's block in progress; lives in cpu_region.state. */
struct block {
    struct cpu_launch *launch;
    struct check_run *check;        /* borrowed; NULL: not in check mode */
    struct cpu_thread *threads_end; /* behind the block's last thread */
    uint32_t thread_count;
    uint32_t alive_count;
    uint32_t barrier_count;  /* threads that wait at the barrier */
    uint32_t vote_count;     /* of them, those whose predicate holds */
    uint32_t vote_result;    /* of the last barrier */
    uint32_t runnable_warps; /* bit w: warps[w].runnable is not 0 */
    uint32_t warp_count;
    bool in_step; /* then runnable, at_barrier and runnable_warps are out of date */
    struct warp warps[WARPS_MAX];
};

static_assert(sizeof(struct block) <= CPU_BLOCK_STATE_BYTES, "the region has room for it");

static _Thread_local struct cpu_region *worker_region;

static inline struct cpu_region *region_of(struct cpu_context *context) {
    return (struct cpu_region *)(void *)context;
}

static inline struct block *block_of(struct cpu_context *context) {
    return (struct block *)(void *)region_of(context)->state;
}

/* ---- failing ---- */

void gpu_cpu_launch_note(struct cpu_launch *launch, const struct backend_failure *failure) {
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&launch->failed, &none, 1)) {
        snprintf(launch->failure, sizeof launch->failure, "%s", failure->text);
        launch->failure_status = failure->status;
        launch->failure_place_count = failure->place_count;
        for (uint32_t i = 0; i < failure->place_count; i++) {
            launch->failure_places[i] = failure->places[i];
        }
        atomic_store(&launch->failed, 2);
    }
}

/* Leaves all threads of the block where they are. */
GPU_CPU_ON_FIBRE static void block_abandon(struct cpu_context *context) {
    struct cpu_region *region = region_of(context);
    gpu_cpu_fibre_hop(region, context->current, &region->worker);
}

GPU_CPU_ON_FIBRE void gpu_cpu_launch_fail(struct cpu_context *context,
                                          const struct backend_failure *failure) {
    gpu_cpu_launch_note(block_of(context)->launch, failure);
    block_abandon(context);
}

GPU_CPU_ON_FIBRE static void service_fail(struct cpu_context *context, const char *expression,
                                          const char *file, unsigned line) {
    struct cpu_launch *launch = block_of(context)->launch;
    const uint32_t *b = context->block_index, *t = context->current->index;
    char where[96], text[sizeof launch->failure];
    struct wire_place place = {.line = line};
    memcpy(place.block, b, sizeof place.block);
    memcpy(place.thread, t, sizeof place.thread);
    snprintf(place.source, sizeof place.source, "%s", file);
    snprintf(where, sizeof where, "block (%u,%u,%u), thread (%u,%u,%u)", b[0], b[1], b[2], t[0],
             t[1], t[2]);
    /* The place matters more than a long expression. */
    snprintf(text, sizeof text, "kernel '%.64s': assertion `%.160s' failed at %.120s:%u, %s",
             launch->kernel->table->name, expression, file, line, where);
    const struct backend_failure failure = {GPULUA_KERNEL_FAILED, text, &place, 1};
    gpu_cpu_launch_fail(context, &failure);
}

/* Check mode: who waits for whom. */
GPU_CPU_ON_FIBRE static void stuck_find(struct cpu_context *context) {
    const struct block *block = block_of(context);
    for (uint32_t w = 0; w < block->warp_count; w++) {
        const struct warp *warp = &block->warps[w];
        for (uint32_t g = 0; g < warp->group_count; g++) {
            const struct warp_group *group = &warp->groups[g];
            uint32_t missing = group->mask & warp->alive & ~group->arrived;
            gpu_check_find_stuck(context,
                                 w * WARP_THREADS + (uint32_t)__builtin_ctz(group->arrived),
                                 group->mask, w * WARP_THREADS + (uint32_t)__builtin_ctz(missing));
        }
    }
}

/* Nobody can run and nobody ever will: on a GPU this block would hang. */
GPU_CPU_ON_FIBRE static void block_stuck(struct cpu_context *context) {
    struct block *block = block_of(context);
    const uint32_t *b = context->block_index;
    char text[sizeof block->launch->failure];
    if (block->check != NULL) {
        stuck_find(context);
    }
    snprintf(text, sizeof text,
             "kernel '%.64s': block (%u,%u,%u) is stuck: %u of its threads wait at __syncthreads, "
             "%u in warp operations for lanes that never come",
             block->launch->kernel->table->name, b[0], b[1], b[2], block->barrier_count,
             block->alive_count - block->barrier_count);
    const struct backend_failure failure = {.status = GPULUA_KERNEL_FAILED, .text = text};
    gpu_cpu_launch_fail(context, &failure);
}

GPU_CPU_ON_FIBRE static void stack_overrun(struct cpu_context *context) {
    const struct cpu_kernel_table *kernel = block_of(context)->launch->kernel->table;
    const uint32_t *b = context->block_index;
    char text[256];
    snprintf(text, sizeof text,
             "kernel '%.64s': its local memory is larger than the CPU device's %u KB per thread, "
             "block (%u,%u,%u)",
             kernel->name, (kernel->has_fibres ? CPU_STACK_BYTES : CPU_SERIAL_STACK_BYTES) / 1024,
             b[0], b[1], b[2]);
    const struct backend_failure failure = {.status = GPULUA_KERNEL_FAILED, .text = text};
    gpu_cpu_launch_fail(context, &failure);
}

/* To be called before anybody else runs on a stack that `self` may have written to. */
GPU_CPU_ON_FIBRE static inline void stack_look(struct cpu_context *context,
                                               const struct cpu_thread *self) {
    uint64_t canary = *gpu_cpu_fibre_canary(region_of(context), self->linear);
    if (__builtin_expect(canary != CPU_STACK_CANARY, 0)) {
        stack_overrun(context);
    }
}

/* A function begins, and its frame is at `address`: of modules that are watched. */
GPU_CPU_ON_FIBRE static void service_frame(struct cpu_context *context, const void *address) {
    uintptr_t offset = (uintptr_t)address - (uintptr_t)context;
    uintptr_t begin =
        block_of(context)->launch->kernel->table->has_fibres
            ? CPU_STACKS_OFFSET + (uintptr_t)context->current->linear * CPU_STACK_BYTES
            : CPU_SERIAL_STACK_OFFSET;
    if (offset < begin + STACK_RESERVE_BYTES) {
        stack_overrun(context);
    }
}

/* ---- the scheduler ---- */

static inline void warp_run(struct block *block, uint32_t w, uint32_t lanes) {
    block->warps[w].runnable |= lanes;
    block->runnable_warps |= 1u << w;
}

/* Lanes that wait in __activemask at one place of the source, once the others have stopped. */
static void active_mask_release(struct cpu_context *context, uint32_t w) {
    struct block *block = block_of(context);
    struct warp *warp = &block->warps[w];
    struct cpu_thread *threads = region_of(context)->threads + w * WARP_THREADS;
    uint32_t site = threads[__builtin_ctz(warp->at_active_mask)].source_lane, together = 0;
    for (uint32_t rest = warp->at_active_mask; rest != 0; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest);
        together |= threads[lane].source_lane == site ? 1u << lane : 0;
    }
    for (uint32_t rest = together; rest != 0; rest &= rest - 1) {
        threads[__builtin_ctz(rest)].value = together;
    }
    warp->at_active_mask &= ~together;
    warp_run(block, w, together);
}

static inline void thread_stop(struct cpu_context *context, uint32_t w, uint32_t bit) {
    struct block *block = block_of(context);
    struct warp *warp = &block->warps[w];
    warp->runnable &= ~bit;
    if (warp->runnable == 0) {
        block->runnable_warps &= ~(1u << w);
        if (warp->at_active_mask != 0) {
            active_mask_release(context, w);
        }
    }
}

/* One of the warps that can run, as the seed has it: check mode. */
static uint32_t warp_random(const struct block *block) {
    uint32_t warps = block->runnable_warps;
    for (uint64_t skip = gpu_check_random(block->check) % (uint32_t)__builtin_popcount(warps);
         skip > 0; skip--) {
        warps &= warps - 1;
    }
    return (uint32_t)__builtin_ctz(warps);
}

GPU_CPU_ON_FIBRE static inline void doubts_settle(struct cpu_context *context) {
    if (__builtin_expect(block_of(context)->check != NULL, 0)) {
        gpu_check_settle(context);
    }
}

/* The next after `linear` that can run, in a circle; UINT32_MAX: nobody. */
static inline uint32_t thread_next(const struct block *block, uint32_t linear) {
    uint32_t w = linear / WARP_THREADS, lane = linear % WARP_THREADS;
    uint32_t above = block->warps[w].runnable & (UINT32_MAX << lane << 1);
    if (above == 0) {
        if (block->runnable_warps == 0) {
            return UINT32_MAX;
        }
        uint32_t later = w == WARPS_MAX - 1 ? 0 : block->runnable_warps & (UINT32_MAX << (w + 1));
        w = block->check != NULL
                ? warp_random(block)
                : (uint32_t)__builtin_ctz(later != 0 ? later : block->runnable_warps);
        above = block->warps[w].runnable;
    }
    return w * WARP_THREADS + (uint32_t)__builtin_ctz(above);
}

static void thread_entry(struct cpu_region *region);

/* Goes on with `next`; returns when `self` is gone on with. */
GPU_CPU_ON_FIBRE static inline void
thread_switch(struct cpu_context *context, struct cpu_thread *self, struct cpu_thread *next) {
    struct cpu_region *region = region_of(context);
    stack_look(context, self);
    context->current = next;
    if (__builtin_expect(next->stack_pointer == NULL, 0)) {
        gpu_cpu_fibre_prepare(region, next, next->linear, false, thread_entry);
    }
    gpu_cpu_fibre_hop(region, self, next);
}

/* Goes on with another thread; returns when this one is gone on with. */
GPU_CPU_ON_FIBRE static inline void thread_leave(struct cpu_context *context,
                                                 struct cpu_thread *self) {
    uint32_t next = thread_next(block_of(context), self->linear);
    if (__builtin_expect(next == UINT32_MAX, 0)) {
        block_stuck(context);
    }
    struct cpu_thread *thread = &region_of(context)->threads[next];
    if (thread != self) {
        thread_switch(context, self, thread);
    }
}

/* Bits [from, to) of 32 that begin at bit `start` of a longer row. */
static inline uint32_t range_bits(uint32_t from, uint32_t to, uint32_t start) {
    from = from > start ? from - start : 0;
    to = to > start ? to - start : 0;
    if (from >= to || from >= WARP_THREADS) {
        return 0;
    }
    uint32_t below = to >= WARP_THREADS ? UINT32_MAX : (1u << to) - 1;
    return below & (UINT32_MAX << from);
}

/* Before anything but a barrier stops `self`, which runs: the threads that wait at the barrier are
 * the barrier_count ones before it in the circle. */
static void block_out_of_step(struct cpu_context *context, const struct cpu_thread *self) {
    struct block *block = block_of(context);
    uint32_t count = block->barrier_count, end = self->linear, wrapped = 0;
    uint32_t begin = end >= count ? end - count : 0;
    wrapped = count > end ? block->thread_count - (count - end) : block->thread_count;
    block->in_step = false;
    block->runnable_warps = 0;
    for (uint32_t w = 0; w < block->warp_count; w++) {
        struct warp *warp = &block->warps[w];
        warp->at_barrier = range_bits(begin, end, w * WARP_THREADS) |
                           range_bits(wrapped, block->thread_count, w * WARP_THREADS);
        warp->runnable = warp->alive & ~warp->at_barrier;
        block->runnable_warps |= warp->runnable != 0 ? 1u << w : 0;
    }
}

/* Threads that wait at the barrier can run again. */
static void barrier_release(struct block *block) {
    if (block->check != NULL) {
        gpu_check_order_barrier(block->check->order, block->check->region->threads,
                                block->thread_count);
    }
    if (!block->in_step) {
        /* All who have not ended were there, so nobody waits for anything else. */
        block->in_step = block->alive_count == block->thread_count && block->check == NULL;
        for (uint32_t w = 0; w < block->warp_count; w++) {
            struct warp *warp = &block->warps[w];
            if (warp->at_barrier != 0) {
                warp_run(block, w, warp->at_barrier);
                warp->at_barrier = 0;
            }
        }
    }
    block->vote_result = block->vote_count;
    block->vote_count = 0;
    block->barrier_count = 0;
}

GPU_CPU_ON_FIBRE static void barrier_wait(struct cpu_context *context, struct cpu_thread *self) {
    uint32_t w = self->linear / WARP_THREADS, bit = 1u << self->linear % WARP_THREADS;
    block_of(context)->warps[w].at_barrier |= bit;
    thread_stop(context, w, bit);
    thread_leave(context, self);
}

GPU_CPU_ON_FIBRE static void service_barrier(struct cpu_context *context) {
    struct block *block = block_of(context);
    struct cpu_thread *self = context->current;
    if (__builtin_expect(block->check != NULL, 0)) {
        gpu_check_settle(context);
        gpu_check_barrier_reached(context, block->barrier_count == 0);
    }
    if (++block->barrier_count == block->alive_count) {
        barrier_release(block);
        return;
    }
    if (__builtin_expect(!block->in_step, 0)) {
        barrier_wait(context, self);
        return;
    }
    struct cpu_thread *first = region_of(context)->threads;
    struct cpu_thread *next = self + 1 == block->threads_end ? first : self + 1;
    /* The stacks of a large block do not fit the first cache: fetch the one after the next. */
    __builtin_prefetch((next + 1 == block->threads_end ? first : next + 1)->stack_pointer);
    thread_switch(context, self, next);
}

GPU_CPU_ON_FIBRE static unsigned service_barrier_vote(struct cpu_context *context,
                                                      enum cpu_vote vote, unsigned predicate) {
    struct block *block = block_of(context);
    /* Threads that have ended take no part: "all" means that nobody votes against. */
    block->vote_count += (vote == CPU_VOTE_AND) == (predicate == 0);
    service_barrier(context);
    switch (vote) {
    case CPU_VOTE_COUNT:
        return block->vote_result;
    case CPU_VOTE_AND:
        return block->vote_result == 0;
    case CPU_VOTE_OR:
    default:
        return block->vote_result != 0;
    }
}

/* ---- warp operations ---- */

static uint64_t reduce(enum cpu_warp_operation operation, uint64_t a, uint64_t b) {
    uint32_t x = (uint32_t)a, y = (uint32_t)b;
    switch (operation) {
    case CPU_WARP_ADD:
        return x + y;
    case CPU_WARP_MIN_SIGNED:
        return (int32_t)x < (int32_t)y ? x : y;
    case CPU_WARP_MAX_SIGNED:
        return (int32_t)x > (int32_t)y ? x : y;
    case CPU_WARP_MIN_UNSIGNED:
        return x < y ? x : y;
    case CPU_WARP_MAX_UNSIGNED:
        return x > y ? x : y;
    case CPU_WARP_AND:
        return x & y;
    case CPU_WARP_OR:
        return x | y;
    default:
        return x ^ y;
    }
}

/* What a lane gets from one that takes no part is undefined: its own value; in check mode poison,
 * so that it shows where it is used. */
static void shuffle(struct cpu_thread *threads, uint32_t lanes, bool is_checked) {
    uint64_t values[WARP_THREADS];
    const uint64_t poison = WIRE_POISON_BYTE * UINT64_C(0x0101010101010101);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest);
        values[lane] = threads[lane].value;
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest), source = threads[lane].source_lane;
        bool is_there = (lanes >> source & 1) != 0;
        threads[lane].value = is_there ? values[source] : is_checked ? poison : values[lane];
    }
}

static void match_any(struct cpu_thread *threads, uint32_t lanes) {
    for (uint32_t todo = lanes; todo != 0;) {
        uint64_t value = threads[__builtin_ctz(todo)].value;
        uint32_t same = 0;
        for (uint32_t rest = todo; rest != 0; rest &= rest - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(rest);
            same |= threads[lane].value == value ? 1u << lane : 0;
        }
        todo &= ~same;
        for (uint32_t rest = same; rest != 0; rest &= rest - 1) {
            threads[__builtin_ctz(rest)].value = same;
        }
    }
}

/* What all lanes get alike. */
static uint64_t common_result(enum cpu_warp_operation operation, const struct cpu_thread *threads,
                              uint32_t lanes) {
    uint64_t first = threads[__builtin_ctz(lanes)].value;
    uint64_t result = operation == CPU_WARP_BALLOT ? 0 : first;
    bool is_first = true;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest);
        uint64_t value = threads[lane].value;
        if (operation == CPU_WARP_BALLOT) {
            result |= value != 0 ? UINT64_C(1) << lane : 0;
        } else if (operation == CPU_WARP_MATCH_ALL) {
            if (value != first) {
                return 0;
            }
        } else if (!is_first) {
            result = reduce(operation, result, value);
        }
        is_first = false;
    }
    return operation == CPU_WARP_MATCH_ALL ? lanes : result;
}

/* Ends an operation: every lane of the group gets its result and can run. */
static void group_complete(struct cpu_context *context, uint32_t w, uint32_t g) {
    struct block *block = block_of(context);
    struct warp *warp = &block->warps[w];
    struct cpu_thread *threads = region_of(context)->threads + w * WARP_THREADS;
    enum cpu_warp_operation operation = warp->groups[g].operation;
    uint32_t lanes = warp->groups[g].arrived;
    if (__builtin_expect(block->check != NULL, 0)) {
        gpu_check_order_warp(block->check->order, region_of(context)->threads, block->thread_count,
                             w, lanes);
    }
    if (operation == CPU_WARP_SHUFFLE) {
        shuffle(threads, lanes, block->check != NULL);
    } else if (operation == CPU_WARP_MATCH_ANY) {
        match_any(threads, lanes);
    } else if (operation != CPU_WARP_SYNC) {
        uint64_t result = common_result(operation, threads, lanes);
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            threads[__builtin_ctz(rest)].value = result;
        }
    }
    warp->groups[g] = warp->groups[--warp->group_count];
    warp_run(block, w, lanes);
}

GPU_CPU_ON_FIBRE static unsigned long service_warp(struct cpu_context *context,
                                                   enum cpu_warp_operation operation, unsigned mask,
                                                   unsigned long value, unsigned source_lane) {
    doubts_settle(context);
    struct cpu_thread *self = context->current;
    uint32_t w = self->linear / WARP_THREADS, bit = 1u << self->linear % WARP_THREADS, g;
    struct warp *warp = &block_of(context)->warps[w];
    if (block_of(context)->in_step) {
        block_out_of_step(context, self);
    }
    if (__builtin_expect(block_of(context)->check != NULL, 0) && (mask & bit) == 0) {
        gpu_check_find_mask(context, mask);
    }
    mask |= bit;
    self->value = value;
    self->source_lane = source_lane;
    for (g = 0; g < warp->group_count; g++) {
        if (warp->groups[g].mask == mask && warp->groups[g].operation == operation) {
            break;
        }
    }
    if (g == warp->group_count) {
        warp->groups[warp->group_count++] = (struct warp_group){mask, 0, operation};
    }
    warp->groups[g].arrived |= bit;
    if ((mask & warp->alive & ~warp->groups[g].arrived) == 0) {
        group_complete(context, w, g);
    } else {
        thread_stop(context, w, bit);
        thread_leave(context, self);
    }
    return self->value;
}

/* CUDA promises only that the answer names lanes that are here together. Waiting until no other
 * lane of the warp can get here gives what a warp that reconverges would give. */
GPU_CPU_ON_FIBRE static unsigned service_active_mask(struct cpu_context *context, unsigned site) {
    doubts_settle(context);
    struct cpu_thread *self = context->current;
    uint32_t w = self->linear / WARP_THREADS, bit = 1u << self->linear % WARP_THREADS;
    self->source_lane = site;
    if (block_of(context)->in_step) {
        block_out_of_step(context, self);
    }
    block_of(context)->warps[w].at_active_mask |= bit;
    thread_stop(context, w, bit);
    thread_leave(context, self);
    return (unsigned)self->value;
}

GPU_CPU_ON_FIBRE static void service_yield(struct cpu_context *context) {
    doubts_settle(context);
    if (block_of(context)->in_step) {
        block_out_of_step(context, context->current);
    }
    thread_leave(context, context->current);
}

static unsigned long service_time_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long)now.tv_sec * 1000000000ul + (unsigned long)now.tv_nsec;
}

static const struct cpu_services services = {
    .fail = service_fail,
    .barrier = service_barrier,
    .barrier_vote = service_barrier_vote,
    .warp = service_warp,
    .active_mask = service_active_mask,
    .yield = service_yield,
    .time_ns = service_time_ns,
    .access = gpu_check_access,
    .misplaced = gpu_check_misplaced,
    .fence = gpu_check_fence,
    .heap = gpu_check_heap,
    .frame = service_frame,
};

/* ---- blocks ---- */

/* A thread has ended: whoever waited only for it goes on. */
GPU_CPU_ON_FIBRE static void thread_end(struct cpu_context *context) {
    doubts_settle(context);
    struct block *block = block_of(context);
    struct cpu_thread *self = context->current;
    uint32_t w = self->linear / WARP_THREADS, bit = 1u << self->linear % WARP_THREADS;
    struct warp *warp = &block->warps[w];
    if (block->in_step) {
        block_out_of_step(context, self);
    }
    warp->alive &= ~bit;
    if (--block->alive_count == 0) {
        struct cpu_region *region = region_of(context);
        stack_look(context, self);
        gpu_cpu_fibre_hop(region, self, &region->worker);
    }
    for (uint32_t g = warp->group_count; g-- > 0;) {
        if ((warp->groups[g].mask & warp->alive & ~warp->groups[g].arrived) == 0) {
            group_complete(context, w, g);
        }
    }
    thread_stop(context, w, bit);
    if (block->barrier_count == block->alive_count) {
        barrier_release(block);
    }
    thread_leave(context, self);
}

GPU_CPU_ON_FIBRE static void thread_entry(struct cpu_region *region) {
    gpu_cpu_fibre_arrived(region, region->context.current);
    block_of(&region->context)->launch->kernel->table->run(&region->context);
    thread_end(&region->context);
}

GPU_CPU_ON_FIBRE static void serial_entry(struct cpu_region *region) {
    gpu_cpu_fibre_arrived(region, region->context.current);
    block_of(&region->context)->launch->kernel->table->run(&region->context);
    gpu_cpu_fibre_hop(region, region->context.current, &region->worker);
}

static void block_start(struct cpu_region *region, struct block *block, uint32_t thread_count) {
    block->thread_count = thread_count;
    block->alive_count = thread_count;
    block->threads_end = region->threads + thread_count;
    block->in_step = block->check == NULL;
    block->barrier_count = 0;
    block->vote_count = 0;
    block->warp_count = (thread_count + WARP_THREADS - 1) / WARP_THREADS;
    block->runnable_warps =
        block->warp_count == WARPS_MAX ? UINT32_MAX : (1u << block->warp_count) - 1;
    for (uint32_t w = 0; w < block->warp_count; w++) {
        uint32_t lanes = thread_count - w * WARP_THREADS;
        struct warp *warp = &block->warps[w];
        warp->alive = lanes >= WARP_THREADS ? UINT32_MAX : (1u << lanes) - 1;
        warp->runnable = warp->alive;
        warp->at_barrier = 0;
        warp->at_active_mask = 0;
        warp->group_count = 0;
    }
    for (uint32_t i = 0; i < thread_count; i++) {
        region->threads[i].stack_pointer = NULL;
    }
}

/* Runs the threads of one block to their ends. */
static void block_run(struct cpu_region *region, uint32_t thread_count) {
    struct block *block = (struct block *)(void *)region->state;
    block_start(region, block, thread_count);
    uint32_t number = block->check != NULL ? warp_random(block) * WARP_THREADS : 0;
    struct cpu_thread *first = &region->threads[number];
    region->context.current = first;
    gpu_cpu_fibre_prepare(region, first, number, false, thread_entry);
    gpu_cpu_fibre_enter(region, first);
}

static void threads_number(struct cpu_region *region, const uint32_t block[3]) {
    uint32_t i = 0;
    for (uint32_t z = 0; z < block[2]; z++) {
        for (uint32_t y = 0; y < block[1]; y++) {
            for (uint32_t x = 0; x < block[0]; x++, i++) {
                struct cpu_thread *thread = &region->threads[i];
                thread->index[0] = x;
                thread->index[1] = y;
                thread->index[2] = z;
                thread->linear = i;
            }
        }
    }
}

/* Everything of a launch that its blocks share. False: no memory. */
static bool launch_enter(struct cpu_region *region, struct cpu_launch *launch) {
    struct cpu_context *context = &region->context;
    const struct cpu_kernel *kernel = launch->kernel;
    ((struct block *)(void *)region->state)->launch = launch;
    ((struct block *)(void *)region->state)->check = NULL;
    context->services = &services;
    context->dynamic_shared = region->shared;
    context->args = launch->args;
    context->has_failed = (const unsigned *)(const void *)&launch->failed;
    context->has_printed = 0;
    memcpy(context->grid, launch->grid, sizeof context->grid);
    memcpy(context->block, launch->block, sizeof context->block);
    if ((uintptr_t)launch->args % (kernel->args_alignment ? kernel->args_alignment : 1) != 0) {
        memcpy(region->args, launch->args, kernel->args_bytes);
        context->args = region->args;
    }
    if (!kernel->table->has_fibres) {
        return gpu_cpu_region_serial_stack(region);
    }
    uint32_t thread_count = launch->block[0] * launch->block[1] * launch->block[2];
    if (!gpu_cpu_region_stacks(region, thread_count)) {
        return false;
    }
    threads_number(region, launch->block);
    return true;
}

bool gpu_cpu_launch_has_failed(const struct cpu_launch *launch) {
    return atomic_load_explicit(&launch->failed, memory_order_relaxed) != 0;
}

void gpu_cpu_launch_no_memory(struct cpu_launch *launch) {
    char text[256];
    snprintf(text, sizeof text, "kernel '%.64s': no memory for the stacks of its threads",
             launch->kernel->table->name);
    const struct backend_failure failure = {.status = GPULUA_KERNEL_FAILED, .text = text};
    gpu_cpu_launch_note(launch, &failure);
}

void gpu_cpu_launch_leave(struct cpu_region *region, struct cpu_launch *launch) {
    if (gpu_cpu_launch_has_failed(launch)) {
        gpu_cpu_region_left(region);
    }
    if (region->context.has_printed) {
        fflush(stdout);
    }
}

void gpu_cpu_library_call(struct cpu_launch *launch) {
    struct backend_error error = {0};
    gpu_cpu_library_enter();
    gpulua_status status = launch->kernel->call(launch->kernel->call_made, launch->args, &error);
    gpu_cpu_library_leave();
    if (status != GPULUA_OK) {
        char text[512];
        snprintf(text, sizeof text, "%s: %.400s", launch->kernel->table->name, error.message);
        const struct backend_failure failure = {.status = status, .text = text};
        gpu_cpu_launch_note(launch, &failure);
    }
}

void gpu_cpu_blocks_run(struct cpu_launch *launch, uint64_t first, uint64_t count) {
    if (count == 0 || gpu_cpu_launch_has_failed(launch)) {
        return;
    }
    if (launch->kernel->call != NULL) {
        gpu_cpu_library_call(launch);
        return;
    }
    assert(launch->shared_bytes <= CPU_SHARED_BYTES_MAX);
    assert((uint64_t)launch->block[0] * launch->block[1] * launch->block[2] <=
           CPU_BLOCK_THREADS_MAX);
    if (worker_region == NULL) {
        worker_region = gpu_cpu_region_create();
    }
    struct cpu_region *region = worker_region;
    if (region == NULL || !launch_enter(region, launch)) {
        gpu_cpu_launch_no_memory(launch);
        return;
    }
    struct cpu_context *context = &region->context;
    if (!launch->kernel->table->has_fibres) {
        context->first_block = first;
        context->block_count = count;
        context->current = &region->threads[0];
        gpu_cpu_fibre_prepare(region, context->current, 0, true, serial_entry);
        gpu_cpu_fibre_enter(region, context->current);
    } else {
        uint32_t thread_count = launch->block[0] * launch->block[1] * launch->block[2];
        for (uint64_t i = first; i < first + count && !gpu_cpu_launch_has_failed(launch); i++) {
            context->block_index[0] = (uint32_t)(i % launch->grid[0]);
            context->block_index[1] = (uint32_t)(i / launch->grid[0] % launch->grid[1]);
            context->block_index[2] = (uint32_t)(i / launch->grid[0] / launch->grid[1]);
            block_run(region, thread_count);
        }
    }
    gpu_cpu_launch_leave(region, launch);
}

/* ---- check mode ---- */

struct cpu_region *gpu_cpu_launch_enter(struct cpu_launch *launch) {
    if (worker_region == NULL) {
        worker_region = gpu_cpu_region_create();
    }
    struct cpu_region *region = worker_region;
    if (region == NULL || !launch_enter(region, launch)) {
        return NULL;
    }
    /* Kernels read these with instrumented code, and of the region that is no access. */
    region->services = services;
    region->context.services = &region->services;
    memcpy(region->args, launch->args, launch->kernel->args_bytes);
    region->context.args = region->args;
    threads_number(region, launch->block);
    return region;
}

/* Warps in an order of the seed's, the lanes of each in theirs. */
GPU_CPU_ON_FIBRE static void checked_serial_entry(struct cpu_region *region) {
    struct block *block = block_of(&region->context);
    gpu_cpu_fibre_arrived(region, region->context.current);
    while (block->runnable_warps != 0) {
        uint32_t w = warp_random(block), first = w * WARP_THREADS;
        block->runnable_warps &= ~(1u << w);
        for (uint32_t i = first; i < first + WARP_THREADS && i < block->thread_count; i++) {
            region->context.current = &region->threads[i];
            block->launch->kernel->table->run(&region->context);
            gpu_check_settle(&region->context);
        }
    }
    gpu_cpu_fibre_hop(region, region->context.current, &region->worker);
}

void gpu_cpu_block_run_checked(struct cpu_region *region, struct cpu_launch *launch,
                               struct check_run *run, uint64_t number) {
    struct block *block = (struct block *)(void *)region->state;
    struct cpu_context *context = &region->context;
    uint32_t thread_count = launch->block[0] * launch->block[1] * launch->block[2];
    context->block_index[0] = (uint32_t)(number % launch->grid[0]);
    context->block_index[1] = (uint32_t)(number / launch->grid[0] % launch->grid[1]);
    context->block_index[2] = (uint32_t)(number / launch->grid[0] / launch->grid[1]);
    if (!gpu_check_block(run, number, thread_count)) {
        gpu_cpu_launch_no_memory(launch);
        return;
    }
    block->check = run;
    if (launch->kernel->table->has_fibres) {
        block_run(region, thread_count);
    } else {
        block_start(region, block, thread_count);
        context->current = &region->threads[0];
        gpu_cpu_fibre_prepare(region, context->current, 0, true, checked_serial_entry);
        gpu_cpu_fibre_enter(region, context->current);
    }
    block->check = NULL;
}

void gpu_cpu_thread_finish(void) {
    gpu_cpu_region_destroy(worker_region);
    worker_region = NULL;
}
