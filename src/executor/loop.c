/* The loop of an executor that runs by itself, on a thread or as gpulua-exec.
 *
 * While records come, they are taken. When none has come for a while, words go behind the newest
 * work. The executor spins for longer, and at last sleeps on the page's futex; publishing a record
 * and wishing for a word wake it. Where only polling finds out what the script waits for, it naps
 * instead, for longer the longer nothing happens. Of scripts that work in rounds, such as frames,
 * it learns how long they pause, and is awake a moment before the next round begins, with the
 * driver's code at hand: to be woken, and to launch from cold caches, takes longer than most of
 * what is asked for. With completion = "block" it does nothing of the kind, and sleeps at once:
 * other threads sleep for what the script waits for. */
#include <sched.h>
#include <sys/prctl.h>

#include "executor/executor.h"
#include "executor/rhythm.h"
#include "wire/sync.h"

#define WORDS_NS 10000u /* a script that enqueues as it goes has the next record ready by then */
#define RECORDS_PER_POLL 16u
#define ROUNDS_PER_CLOCK 16u

#if defined(__SANITIZE_THREAD__)
/* What the script saw finished before it published a record is before that record's work, by way of
 * another process. ThreadSanitizer watches one process alone: it is shown the same order here. */
static void note_order(const struct wire_executor *executor) {
    uint32_t limit = atomic_load_explicit(&executor->wanted_limit, memory_order_relaxed);
    for (uint32_t slot = 0; slot < limit; slot++) {
        (void)gpu_wire_page_done(executor->page, slot);
    }
}
#else
static void note_order(const struct wire_executor *executor) {
    (void)executor;
}
#endif

static bool is_stopped(const struct wire_executor *executor) {
    return atomic_load_explicit(&executor->is_stopped, memory_order_acquire);
}

void gpu_executor_stop(struct wire_executor *executor) {
    atomic_store_explicit(&executor->is_stopped, true, memory_order_seq_cst);
    gpu_wire_flag_wake(&executor->page->executor_sleeps);
}

/* Takes what is there. The number taken; `*corrupt`: the ring makes no sense. */
static uint64_t take_all(struct wire_executor *executor, struct wire_ring *commands,
                         bool *corrupt) {
    uint64_t count = 0;
    while (!executor->is_closed && !is_stopped(executor)) {
        uint32_t length_bytes = 0;
        const struct wire_record *record = gpu_wire_ring_peek(commands, &length_bytes, corrupt);
        if (record == NULL) {
            break;
        }
        if (length_bytes < sizeof *record) {
            *corrupt = true;
            break;
        }
        note_order(executor);
        gpu_executor_take(executor, record);
        gpu_wire_ring_pop(commands, length_bytes);
        if (++count % RECORDS_PER_POLL == 0) {
            gpu_executor_poll(executor);
        }
    }
    return count;
}

static void sleep_until_called(struct wire_executor *executor, struct wire_ring *commands,
                               int64_t timeout_ns) {
    struct wire_page *page = executor->page;
    /* See gpu_wire_flag_wake: the exchange first, then the looks. */
    atomic_exchange_explicit(&page->executor_sleeps, 1, memory_order_acq_rel);
    bool must_not = timeout_ns < 0 && /* else it is looked for soon */
                    atomic_load_explicit(&executor->is_alarmed, memory_order_acquire);
    if (gpu_wire_ring_empty(commands) && !is_stopped(executor) && !must_not &&
        atomic_load_explicit(&page->wishes, memory_order_acquire) == executor->wishes_seen &&
        atomic_load_explicit(&executor->done_count, memory_order_acquire) == 0 &&
        atomic_load_explicit(&executor->back_count, memory_order_acquire) == 0) {
        gpu_wire_futex_wait(&page->executor_sleeps, 1, timeout_ns);
    }
    atomic_store_explicit(&page->executor_sleeps, 0, memory_order_relaxed);
}

void gpu_executor_await_charge(struct wire_executor *executor, uint64_t until_ns) {
    struct wire_page *page = executor->page;
    uint64_t now_ns;
    while (executor->info.place == WIRE_EXECUTOR_APART && (now_ns = gpu_wire_now_ns()) < until_ns &&
           !is_stopped(executor)) {
        atomic_exchange_explicit(&page->executor_sleeps, 1, memory_order_acq_rel);
        bool is_in_charge = atomic_load_explicit(&page->is_in_charge, memory_order_acquire) != 0;
        if (!is_in_charge && !is_stopped(executor)) {
            gpu_wire_futex_wait(&page->executor_sleeps, 1, (int64_t)(until_ns - now_ns));
        }
        atomic_store_explicit(&page->executor_sleeps, 0, memory_order_relaxed);
        if (is_in_charge) {
            return;
        }
    }
}

/* Once in a round: that of `round_ns`. The first time code is loaded, which waits for the device,
 * and who waits here meanwhile might wait for ever: not while it works. */
static void warm_up(struct wire_executor *executor, uint64_t round_ns, uint64_t *warmed_ns) {
    if (*warmed_ns != round_ns && (executor->has_warmed || gpu_executor_is_idle(executor))) {
        *warmed_ns = round_ns;
        (void)gpu_executor_warm(executor);
    }
}

bool gpu_executor_run(struct wire_executor *executor) {
    struct wire_ring commands;
    gpu_executor_hold(true); /* for good: the thread is ours */
    prctl(PR_SET_TIMERSLACK, EXECUTOR_TIMER_SLACK_NS, 0, 0, 0);
    gpu_wire_ring_command(&commands, executor->page);
    uint64_t active_ns = gpu_wire_now_ns();
    struct executor_rhythm rhythm = {.round_ns = active_ns};
    uint64_t warmed_ns = 0;
    uint32_t wishes = executor->wishes_seen;
    bool corrupt = false;
    for (uint32_t round = 1;; round++) {
        uint64_t taken = take_all(executor, &commands, &corrupt);
        if (corrupt) {
            gpu_executor_lose(executor, 0, "the command ring makes no sense");
            return false;
        }
        if (executor->is_closed || is_stopped(executor)) {
            return true;
        }
        gpu_executor_poll(executor);
        if (taken != 0 || wishes != executor->wishes_seen) {
            wishes = executor->wishes_seen;
            active_ns = gpu_wire_now_ns();
            if (taken != 0) {
                gpu_executor_rhythm_note(&rhythm, active_ns);
            }
            round = 0;
            continue;
        }
        if (round % ROUNDS_PER_CLOCK != 0) {
            gpu_wire_relax();
            continue;
        }
        uint64_t now_ns = gpu_wire_now_ns();
        uint64_t idle_ns = now_ns - active_ns;
        uint64_t end_ns = 0;
        bool spins = executor->completion != GPULUA_COMPLETION_BLOCK;
        uint64_t expected_ns = spins ? gpu_executor_rhythm_expect(&rhythm, &end_ns) : 0;
        if (idle_ns >= WORDS_NS) {
            gpu_executor_words(executor);
        }
        if (idle_ns < (spins ? EXECUTOR_SPIN_NS : WORDS_NS) ||
            (now_ns >= expected_ns && now_ns < end_ns)) {
            if (idle_ns >= EXECUTOR_SPIN_NS) {
                warm_up(executor, rhythm.round_ns, &warmed_ns);
            }
            sched_yield(); /* the device's own threads may need this core */
        } else if (gpu_executor_must_poll(executor)) {
            sleep_until_called(executor, &commands,
                               gpu_executor_sleepers_send(executor) ? EXECUTOR_SLEPT_NAP_NS
                                                                    : gpu_executor_nap_ns(idle_ns));
            executor->poll_count = EXECUTOR_POLLS_PER_STATUS - 1; /* the next one asks */
            round = ROUNDS_PER_CLOCK - 1;                         /* one look behind each nap */
        } else if (now_ns < expected_ns) {
            if (!executor->has_warmed) {
                warm_up(executor, rhythm.round_ns, &warmed_ns);
            }
            sleep_until_called(executor, &commands, (int64_t)(expected_ns - now_ns));
        } else {
            if (spins && !executor->has_warmed) {
                warm_up(executor, rhythm.round_ns, &warmed_ns);
            }
            sleep_until_called(executor, &commands, -1);
            active_ns = gpu_wire_now_ns();
        }
    }
}
