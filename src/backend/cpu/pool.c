/* Worker threads of the CPU device: one for each core that this process may use.
 *
 * What there is to do is either a stream to be served or a share in a job that another worker has
 * opened. Streams come first, so that several streams run at the same time even when each of them
 * could keep all the cores busy. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/device.h"

#define WORKER_STACK_BYTES (8u << 20)
#define SPIN_NS 20000u /* one idle worker looks around this long before it sleeps */
#define SPINNERS_MAX 1u

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

/* Locked. */
static uint32_t offers_of(struct backend_device *device) {
    return atomic_load_explicit(&device->ready_count, memory_order_relaxed) + device->job_count;
}

/* Locked. Enough workers for what is offered: those that spin find it by themselves. */
static void call_workers(struct backend_device *device, uint32_t count) {
    uint32_t offers = offers_of(device);
    atomic_store_explicit(&device->offer_count, offers, memory_order_release);
    if (count <= device->spinning_count && offers <= device->spinning_count) {
        return;
    }
    for (uint32_t i = 0; i < count && i < device->idle_count; i++) {
        pthread_cond_signal(&device->work);
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
    atomic_fetch_add_explicit(&device->ready_count, 1, memory_order_relaxed);
    call_workers(device, 1);
    pthread_mutex_unlock(&device->lock);
}

void gpu_cpu_pool_share(struct backend_stream *stream) {
    struct backend_device *device = stream->device;
    struct cpu_job *job = &stream->job;
    pthread_mutex_lock(&device->lock);
    job->is_shared = true;
    job->is_listed = true;
    job->list_previous = NULL;
    job->list_next = device->jobs;
    if (device->jobs != NULL) {
        device->jobs->job.list_previous = stream;
    }
    device->jobs = stream;
    device->job_count++;
    uint64_t others = job->unit_count - 1;
    call_workers(device,
                 others < device->worker_count - 1 ? (uint32_t)others : device->worker_count - 1);
    pthread_mutex_unlock(&device->lock);
}

/* Locked. */
static void unlist(struct backend_device *device, struct cpu_job *job) {
    if (!job->is_listed) {
        return;
    }
    job->is_listed = false;
    if (job->list_previous != NULL) {
        job->list_previous->job.list_next = job->list_next;
    } else {
        device->jobs = job->list_next;
    }
    if (job->list_next != NULL) {
        job->list_next->job.list_previous = job->list_previous;
    }
    device->job_count--;
    atomic_store_explicit(&device->offer_count, offers_of(device), memory_order_relaxed);
}

bool gpu_cpu_pool_leave(struct backend_stream *stream) {
    struct backend_device *device = stream->device;
    struct cpu_job *job = &stream->job;
    if (!job->is_shared) {
        return true;
    }
    pthread_mutex_lock(&device->lock);
    if (atomic_load_explicit(&job->next, memory_order_relaxed) >= job->unit_count) {
        unlist(device, job);
    }
    bool is_last = --job->user_count == 0;
    pthread_mutex_unlock(&device->lock);
    return is_last;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Locked, and again on return. Waits for something to do, for a moment with open eyes. */
static void rest(struct backend_device *device) {
    if (device->spinning_count < SPINNERS_MAX) {
        device->spinning_count++;
        pthread_mutex_unlock(&device->lock);
        uint64_t end_ns = now_ns() + SPIN_NS;
        while (atomic_load_explicit(&device->offer_count, memory_order_acquire) == 0 &&
               now_ns() < end_ns) {
            sched_yield();
        }
        pthread_mutex_lock(&device->lock);
        device->spinning_count--;
        if (device->ready != NULL || device->jobs != NULL || device->is_stopping) {
            return;
        }
    }
    device->idle_count++;
    pthread_cond_wait(&device->work, &device->lock);
    device->idle_count--;
}

static void *worker_main(void *user) {
    struct backend_device *device = user;
    pthread_mutex_lock(&device->lock);
    for (;;) {
        struct backend_stream *stream = device->ready;
        if (stream != NULL) {
            device->ready = stream->next_ready;
            atomic_fetch_sub_explicit(&device->ready_count, 1, memory_order_relaxed);
            atomic_store_explicit(&device->offer_count, offers_of(device), memory_order_relaxed);
            pthread_mutex_unlock(&device->lock);
            gpu_cpu_stream_serve(stream, false);
            pthread_mutex_lock(&device->lock);
        } else if (device->jobs != NULL) {
            stream = device->jobs;
            stream->job.user_count++;
            pthread_mutex_unlock(&device->lock);
            gpu_cpu_job_work(stream, true);
            if (gpu_cpu_pool_leave(stream)) {
                gpu_cpu_stream_serve(stream, true);
            }
            pthread_mutex_lock(&device->lock);
        } else if (device->is_stopping) {
            break;
        } else {
            rest(device);
        }
    }
    pthread_mutex_unlock(&device->lock);
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
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->work, NULL);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
    sigset_t before;
    block_signals(&before);
    int rc = 0;
    /* Under the lock: workers read worker_count only after they have held it. */
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
        pthread_cond_destroy(&device->work);
        pthread_mutex_destroy(&device->lock);
        free(device->workers);
        return gpu_backend_fail(error, GPULUA_CAPACITY, rc, "cannot start a worker thread: %s",
                                strerror(rc));
    }
    return GPULUA_OK; /* fewer threads than cores will do */
}

void gpu_cpu_pool_stop(struct backend_device *device) {
    pthread_mutex_lock(&device->lock);
    device->is_stopping = true;
    pthread_cond_broadcast(&device->work);
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < device->worker_count; i++) {
        pthread_join(device->workers[i], NULL);
    }
    pthread_cond_destroy(&device->work);
    pthread_mutex_destroy(&device->lock);
    free(device->workers);
}
