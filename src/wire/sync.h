/* The few primitives that both ends of a link share: clock, pause, futex. Futexes are not private:
 * the words lie in memory that two processes map. */
#ifndef GPU_WIRE_SYNC_H
#define GPU_WIRE_SYNC_H

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void gpu_wire_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

/* This core will soon write that cache line, which another core has read: asks for it to be ours
 * meanwhile. Without -mprfchw compilers ask for it to be shared, which is of no use. */
static inline void gpu_wire_will_write(const void *line) {
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw %0"
                         :
                         : "m"(*(const char *)line)); /* no operation where unknown */
#else
    __builtin_prefetch(line, 1);
#endif
}

static inline uint64_t gpu_wire_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void gpu_wire_nap_ns(uint64_t nap_ns) {
    struct timespec nap = {(time_t)(nap_ns / 1000000000u), (long)(nap_ns % 1000000000u)};
    nanosleep(&nap, NULL);
}

/* A thread of ours that no signal comes to: the host's are for the host's. 0, or pthread_create's
 * error. */
static inline int gpu_wire_thread_start(pthread_t *thread, void *(*run)(void *), void *user) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

/* Sleeps while *word == value, at most timeout_ns (negative: for ever). May wake for no reason. */
static inline void gpu_wire_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ns < 0 ? NULL : &timeout, NULL, 0);
}

static inline void gpu_wire_futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Wakes who sleeps on a flag of the page (executor_sleeps); true: somebody did. Both sides use
 * read-modify-writes on the flag: the waker publishes, then exchanges; the sleeper exchanges, then
 * looks. Whichever exchange comes second sees what the other side did before its own, so that no
 * wake is lost, and no fence is needed. */
static inline bool gpu_wire_flag_wake(_Atomic uint32_t *flag) {
    if (atomic_exchange_explicit(flag, 0, memory_order_acq_rel) == 0) {
        return false;
    }
    gpu_wire_futex_wake(flag);
    return true;
}

#endif
