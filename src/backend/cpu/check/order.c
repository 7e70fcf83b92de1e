/* The order of accesses in check mode (see order.h). */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/check/order.h"

static void thread_time(struct cpu_thread *thread, uint32_t linear, uint32_t time) {
    thread->check_bits = gpu_check_thread_bits(linear, time);
}

void gpu_check_order_launch(struct check_order *order, uint64_t *stamp_next) {
    order->stamp_next = stamp_next;
    order->launch_first = *stamp_next;
    order->release_count = 0;
    order->fences_count = 0;
}

/* Times begin anew with each stamp. */
static void interval_start(struct check_order *order, struct cpu_thread *threads, uint32_t count) {
    bool has_times = order->has_fences;
    if (order->has_wide) {
        order->has_wide = false;
        memcpy(order->before.times, order->wide, sizeof order->wide);
        order->before_stamp = order->stamp;
    }
    order->stamp = (*order->stamp_next)++;
    for (uint32_t w = 0; w < CHECK_WARPS_MAX; w++) {
        struct check_warp *warp = &order->warps[w];
        if (warp->is_used) {
            has_times = true;
            memset(warp, 0, sizeof *warp);
        }
    }
    if (order->has_fences) {
        order->has_fences = false;
        memset(order->fenced, 0, sizeof order->fenced);
        memset(order->wide, 0, sizeof order->wide);
        memset(order->released, 0, sizeof order->released);
        memset(order->acquired, 0, sizeof order->acquired);
    }
    for (uint32_t i = 0; has_times && i < count; i++) {
        thread_time(&threads[i], i, 0);
    }
}

void gpu_check_order_block(struct check_order *order, struct cpu_thread *threads, uint32_t count) {
    interval_start(order, threads, 0);
    for (uint32_t i = 0; i < count; i++) {
        thread_time(&threads[i], i, 0);
    }
    order->block_first = order->stamp;
    order->before_stamp = 0;
    order->has_acquired = false;
}

void gpu_check_order_barrier(struct check_order *order, struct cpu_thread *threads,
                             uint32_t count) {
    interval_start(order, threads, count);
}

/* The warp's next time. Once all are used up, what was before counts as ordered. */
static uint32_t time_next(struct check_order *order, struct cpu_thread *threads, uint32_t count,
                          struct check_warp *warp) {
    if (warp->time == CHECK_TIME_MAX) {
        interval_start(order, threads, count);
    }
    warp->is_used = true;
    return ++warp->time;
}

void gpu_check_order_warp(struct check_order *order, struct cpu_thread *threads, uint32_t count,
                          uint32_t w, uint32_t lanes) {
    struct check_warp *warp = &order->warps[w];
    uint32_t time = time_next(order, threads, count, warp);
    uint16_t row[CHECK_WARP_THREADS] = {0};
    for (uint32_t k = 0; k < CHECK_WARP_THREADS; k++) {
        if ((lanes >> k & 1) != 0) {
            for (uint32_t j = 0; j < CHECK_WARP_THREADS; j++) {
                row[j] = warp->seen[k][j] > row[j] ? warp->seen[k][j] : row[j];
            }
        }
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        row[__builtin_ctz(rest)] = (uint16_t)time;
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest), linear = w * CHECK_WARP_THREADS + lane;
        memcpy(warp->seen[lane], row, sizeof row);
        thread_time(&threads[linear], linear, time);
    }
}

void gpu_check_order_fence(struct check_order *order, struct cpu_thread *threads, uint32_t count,
                           uint32_t thread, bool is_wide) {
    struct check_warp *warp = &order->warps[thread / CHECK_WARP_THREADS];
    uint32_t time = time_next(order, threads, count, warp);
    thread_time(&threads[thread], thread, time);
    order->fenced[thread] = (uint16_t)time;
    order->wide[thread] = is_wide ? (uint16_t)time : order->wide[thread];
    order->has_wide = order->has_wide || is_wide;
    order->has_fences = true;
}

/* The block's. NULL: no memory. */
static struct check_release *release_of(struct check_order *order) {
    if (order->release_count > 0 &&
        order->releases[order->release_count - 1].first == order->block_first) {
        return &order->releases[order->release_count - 1];
    }
    if (order->release_count == order->release_capacity) {
        uint64_t capacity = order->release_capacity * 2 + 64;
        struct check_release *grown = realloc(order->releases, capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        order->releases = grown;
        order->release_capacity = capacity;
    }
    order->releases[order->release_count] = (struct check_release){.first = order->block_first};
    return &order->releases[order->release_count++];
}

static void release_note(struct check_order *order, uint32_t thread) {
    struct check_release *release = release_of(order);
    if (release != NULL) {
        release->thread = release->last != order->stamp || release->thread == thread
                              ? thread
                              : CHECK_THREAD_SEVERAL;
        release->last = order->stamp;
        release->time = order->wide[thread];
    }
}

/* False: no memory. */
static bool fences_keep(struct check_order *order) {
    uint64_t count = order->fences_count;
    if (count > 0 && memcmp(&order->fences[count - 1], &order->before, sizeof order->before) == 0) {
        return true;
    }
    if (count == order->fences_capacity) {
        uint64_t capacity = count * 2 + 4;
        struct check_fences *grown = realloc(order->fences, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        order->fences = grown;
        order->fences_capacity = capacity;
    }
    order->fences[order->fences_count++] = order->before;
    return true;
}

static void release_before_note(struct check_order *order) {
    struct check_release *release = release_of(order);
    if (release != NULL && release->fences_stamp != order->before_stamp && fences_keep(order)) {
        release->fences_stamp = order->before_stamp;
        release->fences = order->fences_count - 1;
    }
}

void gpu_check_order_atomic(struct check_order *order, uint32_t thread, bool writes) {
    order->has_acquired = true;
    order->has_fences = true;
    order->acquired[thread] = true;
    if (!writes) {
        return;
    }
    if (order->fenced[thread] != 0) {
        order->released[thread] = order->fenced[thread];
    }
    if (order->wide[thread] != 0) {
        release_note(order, thread);
    } else if (order->before_stamp != 0) {
        release_before_note(order);
    }
}

void gpu_check_order_finish(struct check_order *order) {
    free(order->releases);
    order->releases = NULL;
    order->release_count = 0;
    order->release_capacity = 0;
    free(order->fences);
    order->fences = NULL;
    order->fences_count = 0;
    order->fences_capacity = 0;
}

static bool is_published(const struct check_order *order, uint64_t tag) {
    uint64_t stamp = gpu_check_tag_stamp(tag), low = 0, high = order->release_count;
    while (low < high) { /* the last that begins at or before the stamp */
        uint64_t middle = (low + high) / 2;
        if (order->releases[middle].first <= stamp) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const struct check_release *release = low > 0 ? &order->releases[low - 1] : NULL;
    if (release == NULL) {
        return false;
    }
    uint32_t thread = gpu_check_tag_thread(tag), time = gpu_check_tag_time(tag);
    return stamp < release->last || stamp < release->fences_stamp ||
           (stamp == release->last && (release->thread != thread || time < release->time)) ||
           (stamp == release->fences_stamp && time < order->fences[release->fences].times[thread]);
}

bool gpu_check_is_ordered(const struct check_order *order, uint64_t tag, uint32_t thread) {
    uint64_t stamp = gpu_check_tag_stamp(tag);
    if (stamp < order->block_first) {
        return order->has_acquired && is_published(order, tag);
    }
    if (stamp != order->stamp) {
        return true;
    }
    uint32_t by = gpu_check_tag_thread(tag), time = gpu_check_tag_time(tag);
    if (by == thread) {
        return true;
    }
    if (by / CHECK_WARP_THREADS == thread / CHECK_WARP_THREADS &&
        time < order->warps[by / CHECK_WARP_THREADS]
                   .seen[thread % CHECK_WARP_THREADS][by % CHECK_WARP_THREADS]) {
        return true;
    }
    return order->acquired[thread] && time < order->released[by];
}
