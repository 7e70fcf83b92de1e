/* Stacks of our own, and switching between them.
 *
 * A region is what one worker needs to run blocks: a context (shim/gpulua_abi.h), the records of
 * 1,024 threads, dynamic shared memory and stacks. Its addresses are reserved at once; memory is
 * asked for as far as needed. It belongs to the thread that made it. */
#ifndef GPU_CPU_FIBRE_H
#define GPU_CPU_FIBRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/module.h"

#if defined(__SANITIZE_ADDRESS__)
#define GPU_CPU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GPU_CPU_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define GPU_CPU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GPU_CPU_TSAN 1
#endif
#endif

/* Functions that switch stacks must not put poison on the one that they leave. */
#if defined(__GNUC__)
#define GPU_CPU_ON_FIBRE __attribute__((no_sanitize("address")))
#else
#define GPU_CPU_ON_FIBRE
#endif

#define CPU_STACK_BYTES (256u * 1024u) /* a thread of a block with barriers */
#define CPU_SERIAL_STACK_BYTES                                                                     \
    (4u * 1024u * 1024u) /* blocks without: one stack for all threads                              \
                          */
/* Where they are in a region: head, serial stack, then stacks of threads up to its end. */
#define CPU_SERIAL_STACK_OFFSET (8ul << 20)
#define CPU_STACKS_OFFSET                                                                          \
    (CPU_REGION_BYTES - (unsigned long)CPU_BLOCK_THREADS_MAX * CPU_STACK_BYTES)
#define CPU_SANITIZER_USES_MAX 4096u /* of a stack, before ThreadSanitizer is told of a new one */
#define CPU_BLOCK_STATE_BYTES (32u * 1024u)

struct cpu_region {
    struct cpu_context context;   /* first: kernels find it */
    struct cpu_services services; /* of check mode, where what kernels read of ours lies together */
    struct cpu_thread worker;     /* where the worker's own stack was left */
    struct cpu_thread caller;     /* where one was left that has the worker do something */
    void (*call)(void *data);     /* what; NULL: nothing */
    void *call_data;
    unsigned stacks_ready; /* stacks that have memory, from 0 */
    bool has_serial_stack;
    const void *worker_stack; /* for AddressSanitizer */
    size_t worker_stack_bytes;
#if defined(GPU_CPU_TSAN)
    unsigned sanitizer_uses[CPU_BLOCK_THREADS_MAX];
#endif
    _Alignas(64) unsigned char state[CPU_BLOCK_STATE_BYTES]; /* run.c's */
    _Alignas(64) struct cpu_thread threads[CPU_BLOCK_THREADS_MAX];
    _Alignas(64) unsigned char args[CPU_ARGS_BYTES_MAX];
    unsigned char before_shared[64 * 1024]; /* nobody's, so that accesses there are found */
    _Alignas(4096) unsigned char shared[CPU_SHARED_BYTES_MAX];
};

/* Dynamic shared memory, or beside it, where nothing else is. */
static inline bool gpu_cpu_region_is_shared(const struct cpu_region *region, uintptr_t address) {
    return address - (uintptr_t)region->before_shared <
           (uintptr_t)region + CPU_SERIAL_STACK_OFFSET - (uintptr_t)region->before_shared;
}

/* NULL: no memory. */
struct cpu_region *gpu_cpu_region_create(void);
void gpu_cpu_region_destroy(struct cpu_region *region);

/* Gives memory to the first `count` stacks, or to the serial one. False: there is none. */
bool gpu_cpu_region_stacks(struct cpu_region *region, unsigned count);
bool gpu_cpu_region_serial_stack(struct cpu_region *region);

/* A failed launch has dropped its stacks, overrun perhaps, some of them in the middle of functions
 * that had marked their frames for AddressSanitizer. */
void gpu_cpu_region_left(struct cpu_region *region);

/* Stacks whose tops are a power of two apart meet in the same few sets of the cache. Each thread
 * keeps some five lines in use, so neighbours start that much further down, within a page. */
#define CPU_STACK_COLOUR_BYTES 320u
#define CPU_STACK_COLOURS 12u

/* What a stack that is overrun has written over: behind its end, where the next one's top is, whose
 * page is in use anyway. It is looked at whenever a thread lets others run, so before those are. */
#define CPU_STACK_CANARY UINT64_C(0x9E6B1DC0A7F35842)
#define CPU_STACK_CANARY_BYTES 16ul

static inline uint64_t *gpu_cpu_fibre_canary(struct cpu_region *region, unsigned index) {
    unsigned colour = (index + CPU_STACK_COLOURS - 1) % CPU_STACK_COLOURS;
    return (uint64_t *)(void *)((unsigned char *)region + CPU_STACKS_OFFSET +
                                (unsigned long)index * CPU_STACK_BYTES -
                                colour * CPU_STACK_COLOUR_BYTES - CPU_STACK_CANARY_BYTES);
}

/* Behind the stack, one of the region's, that the address lies in. */
const void *gpu_cpu_fibre_stack_end(struct cpu_region *region, const void *address);

/* Makes `thread` (one of region->threads, its number is `index`) begin with entry(region) when it
 * is next switched to; `entry` never returns. The serial form uses the large stack. */
void gpu_cpu_fibre_prepare(struct cpu_region *region, struct cpu_thread *thread, unsigned index,
                           bool is_serial, void (*entry)(struct cpu_region *region));

/* The bare switch: saves the caller's registers on its stack and its stack pointer in *from, goes
 * on where `to` was left. Returns when somebody switches back. */
void gpu_cpu_stack_switch(void **from, void *to);

/* The switch with the sanitizers told. `from` runs, `to` waits; one of both may be
 * &region->worker. */
void gpu_cpu_fibre_hop_noted(struct cpu_region *region, struct cpu_thread *from,
                             struct cpu_thread *to);
/* The worker goes on with a thread, and returns when one hops back. */
void gpu_cpu_fibre_enter(struct cpu_region *region, struct cpu_thread *thread);
/* From a thread: has the worker do call(data) on its own stack, which is the larger one. */
void gpu_cpu_fibre_call(struct cpu_region *region, void (*call)(void *data), void *data);
/* To be called first on a new stack. */
void gpu_cpu_fibre_arrived(struct cpu_region *region, struct cpu_thread *self);

static inline void gpu_cpu_fibre_hop(struct cpu_region *region, struct cpu_thread *from,
                                     struct cpu_thread *to) {
#if defined(GPU_CPU_ASAN) || defined(GPU_CPU_TSAN)
    gpu_cpu_fibre_hop_noted(region, from, to);
#else
    (void)region;
    gpu_cpu_stack_switch(&from->stack_pointer, to->stack_pointer);
#endif
}

#endif
