/* A thread of its own watches the time and says in `interrupt` when it is up; the hook that every
 * coroutine has from its beginning reads that, at each call and each few instructions. The thread
 * itself sets no hook: to do that while the coroutine runs is safe in a signal handler of the same
 * thread, and not beside it. */
#include "binding/limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "wire/sync.h"

#define AGAIN_NS INT64_C(1000000)
/* Between two looks at `interrupt`. An instruction can take 2 ms, for what it joins or compares may
 * be as long as the heap; so there are few. It makes short loops 2.4 times as slow, calls of small
 * functions 2 times, and work with strings and tables not at all. */
#define INSTRUCTIONS_BETWEEN_LOOKS 16

struct limits {
    int64_t run_ns;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    int64_t begun_ns; /* of what runs; 0: nothing does */
    bool is_watching; /* the thread sleeps until a time, not until something begins */
    bool stops;
};

static void sleep_until(struct limits *limits, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    pthread_cond_timedwait(&limits->change, &limits->lock, &until);
}

static void *watch(void *user) {
    struct gpulua *g = user;
    struct limits *limits = g->limits;
    pthread_mutex_lock(&limits->lock);
    while (!limits->stops) {
        int64_t end_ns = limits->begun_ns + limits->run_ns, now_ns = gpu_lua_now_ns();
        limits->is_watching = limits->begun_ns != 0;
        if (!limits->is_watching) {
            pthread_cond_wait(&limits->change, &limits->lock);
        } else if (now_ns < end_ns) {
            sleep_until(limits, end_ns);
        } else if (atomic_load(&g->interrupt) >= GPU_LUA_TIME_IS_UP) {
            sleep_until(limits, now_ns + AGAIN_NS); /* who took an interrupt took this along */
        } else {
            atomic_fetch_add(&g->interrupt, GPU_LUA_TIME_IS_UP);
        }
    }
    pthread_mutex_unlock(&limits->lock);
    return NULL;
}

static void drop(struct gpulua *g) {
    struct limits *limits = g->limits;
    g->limits = NULL;
    pthread_cond_destroy(&limits->change);
    pthread_mutex_destroy(&limits->lock);
    free(limits);
}

bool gpu_lua_limits_start(struct gpulua *g, int64_t run_ns) {
    struct limits *limits = calloc(1, sizeof *limits);
    if (!limits) {
        errno = ENOMEM;
        return false;
    }
    limits->run_ns = run_ns;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&limits->change, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&limits->lock, NULL);
    g->limits = limits;
    int rc = gpu_wire_thread_start(&limits->thread, watch, g);
    if (rc != 0) {
        drop(g);
        errno = rc;
        return false;
    }
    /* Coroutines get that of the one that they are made in. */
    lua_sethook(g->L, gpu_lua_stop_hook, LUA_MASKCALL | LUA_MASKCOUNT, INSTRUCTIONS_BETWEEN_LOOKS);
    return true;
}

void gpu_lua_limits_stop(struct gpulua *g) {
    struct limits *limits = g->limits;
    if (!limits) {
        return;
    }
    pthread_mutex_lock(&limits->lock);
    limits->stops = true;
    pthread_cond_signal(&limits->change);
    pthread_mutex_unlock(&limits->lock);
    pthread_join(limits->thread, NULL);
    drop(g);
}

static void set_begun(struct gpulua *g, int64_t begun_ns) {
    struct limits *limits = g->limits;
    pthread_mutex_lock(&limits->lock);
    limits->begun_ns = begun_ns;
    if (atomic_load(&g->interrupt) >= GPU_LUA_TIME_IS_UP) { /* nobody else sets it */
        atomic_fetch_sub(&g->interrupt, GPU_LUA_TIME_IS_UP);
    }
    if (begun_ns != 0 && !limits->is_watching) {
        limits->is_watching = true;
        pthread_cond_signal(&limits->change);
    }
    pthread_mutex_unlock(&limits->lock);
}

void gpu_lua_limits_begin_run(struct gpulua *g, int64_t *outer_ns) {
    *outer_ns = g->limits->begun_ns; /* which this thread alone writes */
    set_begun(g, gpu_lua_now_ns());
}

void gpu_lua_limits_end_run(struct gpulua *g, int64_t outer_ns) {
    set_begun(g, outer_ns);
}

bool gpu_lua_limits_turn_is_over(const struct gpulua *g, int64_t begun_ns) {
    return g->limits && gpu_lua_now_ns() - begun_ns >= g->limits->run_ns;
}

void gpu_lua_limits_fail(lua_State *L, const struct gpulua *g) {
    gpu_lua_fail_hint(L, GPULUA_CAPACITY,
                      "wait now and then, with gpu.sleep(0), or raise run_limit_ms",
                      "ran for more than %g ms without a wait",
                      g->limits ? (double)g->limits->run_ns / 1e6 : 0.0);
}
