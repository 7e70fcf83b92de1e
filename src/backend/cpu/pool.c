/* Worker threads of the CPU device: one for each core that this process may use.
 *
 * What there is to do is either a stream to be served or a seat at a job that another worker has
 * opened. Streams come first, so that several streams run at the same time even when each of them
 * could keep all the cores busy.
 *
 * A worker that has just worked looks around for a moment before it sleeps, so that one short
 * launch behind the other finds all that it needs awake. Who offers work counts on those, and wakes
 * as many of the others as it wants besides, with one call. Offers and the counts of who looks and
 * who sleeps are sequentially consistent: either the one who offers sees the other, or the other
 * sees the offer. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/device.h"

#define WORKER_STACK_BYTES (8u << 20)
#define SPIN_NS 50000u /* how long a worker looks around after work */
#define SPIN_LOOKS 32u /* between two looks at the clock */

uint32_t gpu_cpu_core_count(void) {
    /* Sets for more processors than the usual 1,024 exist: grow until the system is content. */
    for (size_t cpus = 1024; cpus <= (1u << 18); cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (set == NULL) {
            break;
        }
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : -1;
        CPU_FREE(set);
        if (count > 0) {
            return (uint32_t)count;
        }
        if (errno != EINVAL) {
            break;
        }
    }
    return 1;
}

/* ---- offers ---- */

static bool has_offers(struct backend_device *device) {
    return atomic_load(&device->ready_count) != 0 || atomic_load(&device->open_jobs) != 0;
}

void gpu_cpu_pool_call(struct backend_device *device, uint32_t count) {
    uint32_t spinners = atomic_load(&device->spinner_count);
    if (count > spinners && atomic_load(&device->sleeper_count) > 0) {
        atomic_fetch_add(&device->wake_count, 1);
        syscall(SYS_futex, &device->wake_count, FUTEX_WAKE_PRIVATE, count - spinners, NULL, NULL,
                0);
    }
}

void gpu_cpu_pool_ready(struct backend_stream *stream) {
    struct backend_device *device = stream->device;
    pthread_mutex_lock(&device->lock);
    struct backend_stream **link = &device->ready;
    while (*link != NULL && (*link)->priority <= stream->priority) {
        link = &(*link)->next_ready;
    }
    stream->next_ready = *link;
    *link = stream;
    atomic_fetch_add(&device->ready_count, 1);
    pthread_mutex_unlock(&device->lock);
    gpu_cpu_pool_call(device, 1);
}

/* NULL: another worker was first. */
static struct backend_stream *ready_take(struct backend_device *device) {
    if (atomic_load(&device->ready_count) == 0) {
        return NULL;
    }
    pthread_mutex_lock(&device->lock);
    struct backend_stream *stream = device->ready;
    bool has_more = false;
    if (stream != NULL) {
        device->ready = stream->next_ready;
        has_more = atomic_fetch_sub(&device->ready_count, 1) > 1;
    }
    pthread_mutex_unlock(&device->lock);
    if (has_more) {
        gpu_cpu_pool_call(device, 1); /* whoever offered those may have counted on us */
    }
    return stream;
}

/* ---- workers ---- */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One core is left to those who launch. */
static bool spin_enter(struct backend_device *device) {
    uint32_t most = device->worker_count > 2 ? device->worker_count - 1 : 1;
    if (atomic_fetch_add(&device->spinner_count, 1) < most) {
        return true;
    }
    atomic_fetch_sub(&device->spinner_count, 1);
    return false;
}

static void spin(struct backend_device *device) {
    if (!spin_enter(device)) {
        return;
    }
    uint64_t end_ns = now_ns() + SPIN_NS;
    bool found = false;
    do {
        for (uint32_t i = 0; i < SPIN_LOOKS && !found; i++) {
            relax();
            found = has_offers(device);
        }
        if (!found) {
            sched_yield();
        }
    } while (!found && now_ns() < end_ns);
    atomic_fetch_sub(&device->spinner_count, 1);
}

static void rest(struct backend_device *device) {
    uint32_t seen = atomic_load(&device->wake_count);
    atomic_fetch_add(&device->sleeper_count, 1);
    if (!has_offers(device) && !atomic_load(&device->is_stopping)) {
        syscall(SYS_futex, &device->wake_count, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    atomic_fetch_sub(&device->sleeper_count, 1);
}

/* False: there was nothing to do. */
static bool work(struct backend_device *device) {
    struct cpu_item *item = NULL;
    struct backend_stream *stream = ready_take(device);
    if (stream == NULL && !gpu_cpu_job_help(device, &stream, &item)) {
        return false;
    }
    if (stream != NULL) {
        gpu_cpu_stream_serve(stream, item);
    }
    return true;
}

static void *worker_main(void *user) {
    struct backend_device *device = user;
    /* worker_count is final once the lock is free. */
    pthread_mutex_lock(&device->lock);
    pthread_mutex_unlock(&device->lock);
    bool has_worked = false;
    for (;;) {
        if (work(device)) {
            has_worked = true;
        } else if (atomic_load(&device->is_stopping)) {
            break;
        } else if (has_worked) {
            has_worked = false;
            spin(device);
        } else {
            rest(device);
        }
    }
    gpu_cpu_thread_finish();
    return NULL;
}

/* The host's signals are for the host's threads; faults of a kernel go where faults go. */
static void block_signals(sigset_t *before) {
    sigset_t set;
    sigfillset(&set);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&set, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &set, before);
}

gpulua_status gpu_cpu_pool_start(struct backend_device *device, struct backend_error *error) {
    /* Two at least: a kernel that waits for what another stream does must not wait for ever. */
    uint32_t wanted = gpu_cpu_core_count();
    wanted = wanted < 2 ? 2 : wanted;
    wanted = wanted < CPU_WORKERS_MAX ? wanted : CPU_WORKERS_MAX;
    device->workers = calloc(wanted, sizeof *device->workers);
    if (device->workers == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    device->job_count = wanted < CPU_JOBS_MAX ? wanted : CPU_JOBS_MAX;
    device->jobs = aligned_alloc(64, device->job_count * sizeof *device->jobs);
    if (device->jobs == NULL) {
        free(device->workers);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    for (uint32_t i = 0; i < device->job_count; i++) {
        atomic_init(&device->jobs[i].users, CPU_JOB_FREE | 1u << 16);
    }
    pthread_mutex_init(&device->lock, NULL);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
    sigset_t before;
    block_signals(&before);
    int rc = 0;
    /* Under the lock: workers begin when they have had it. */
    pthread_mutex_lock(&device->lock);
    while (device->worker_count < wanted && rc == 0) {
        rc = pthread_create(&device->workers[device->worker_count], &attributes, worker_main,
                            device);
        device->worker_count += rc == 0;
    }
    pthread_mutex_unlock(&device->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (device->worker_count == 0) {
        pthread_mutex_destroy(&device->lock);
        free(device->jobs);
        free(device->workers);
        return gpu_backend_fail(error, GPULUA_CAPACITY, rc, "cannot start a worker thread: %s",
                                strerror(rc));
    }
    return GPULUA_OK; /* fewer threads than cores will do */
}

void gpu_cpu_pool_stop(struct backend_device *device) {
    atomic_store(&device->is_stopping, true);
    atomic_fetch_add(&device->wake_count, 1);
    syscall(SYS_futex, &device->wake_count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    for (uint32_t i = 0; i < device->worker_count; i++) {
        pthread_join(device->workers[i], NULL);
    }
    pthread_mutex_destroy(&device->lock);
    free(device->jobs);
    free(device->workers);
}
