/* Stacks of our own, and switching between them (see fibre.h). */
#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/fibre.h"

#if defined(__x86_64__) || defined(__aarch64__)
#define HAS_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

#if defined(GPU_CPU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(GPU_CPU_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

static_assert(sizeof(struct cpu_region) <= CPU_SERIAL_STACK_OFFSET - CPU_SERIAL_STACK_BYTES,
              "the head fits");
static_assert(CPU_SERIAL_STACK_OFFSET + CPU_SERIAL_STACK_BYTES <=
                  CPU_STACKS_OFFSET - CPU_STACK_BYTES,
              "the stack fits");
static_assert(offsetof(struct cpu_region, context) == 0, "kernels find the context there");
static_assert(sizeof(struct cpu_thread) == 64, "one line each");

static unsigned char *region_bytes(struct cpu_region *region) {
    return (unsigned char *)region;
}

struct cpu_region *gpu_cpu_region_create(void) {
    /* Twice the length holds an aligned piece; the rest is given back. */
    unsigned char *base = mmap(NULL, 2 * CPU_REGION_BYTES, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (base == MAP_FAILED) {
        return NULL;
    }
    uintptr_t start = ((uintptr_t)base + CPU_REGION_BYTES - 1) & ~(CPU_REGION_BYTES - 1);
    size_t before = start - (uintptr_t)base;
    if (before > 0) {
        munmap(base, before);
    }
    munmap(base + before + CPU_REGION_BYTES, CPU_REGION_BYTES - before);
    struct cpu_region *region = (struct cpu_region *)(void *)(base + before);
    if (mprotect(region, sizeof *region, PROT_READ | PROT_WRITE) != 0) {
        munmap(region, CPU_REGION_BYTES);
        return NULL;
    }
    return region;
}

void gpu_cpu_region_destroy(struct cpu_region *region) {
    if (region == NULL) {
        return;
    }
#if defined(GPU_CPU_TSAN)
    for (unsigned i = 0; i < CPU_BLOCK_THREADS_MAX; i++) {
        if (region->threads[i].sanitizer != NULL) {
            __tsan_destroy_fiber(region->threads[i].sanitizer);
        }
    }
#endif
    munmap(region, CPU_REGION_BYTES);
}

static void canaries_write(struct cpu_region *region) {
    for (unsigned i = 0; i < region->stacks_ready; i++) {
        *gpu_cpu_fibre_canary(region, i) = CPU_STACK_CANARY;
    }
}

bool gpu_cpu_region_stacks(struct cpu_region *region, unsigned count) {
    if (count <= region->stacks_ready) {
        return true;
    }
    /* One more, in front: what the first may overrun before it is found. */
    unsigned char *from = region_bytes(region) + CPU_STACKS_OFFSET - CPU_STACK_BYTES;
    size_t bytes = (count + 1ul) * CPU_STACK_BYTES;
    if (mprotect(from, bytes, PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
#ifdef MADV_NOHUGEPAGE
    /* Each stack uses a page or two of its 64: huge pages would make each cost all of them. */
    madvise(from, bytes, MADV_NOHUGEPAGE);
#endif
    region->stacks_ready = count;
    canaries_write(region);
    return true;
}

bool gpu_cpu_region_serial_stack(struct cpu_region *region) {
    if (!region->has_serial_stack) { /* as above, one more */
        region->has_serial_stack =
            mprotect(region_bytes(region) + CPU_SERIAL_STACK_OFFSET - CPU_SERIAL_STACK_BYTES,
                     2ul * CPU_SERIAL_STACK_BYTES, PROT_READ | PROT_WRITE) == 0;
    }
    return region->has_serial_stack;
}

/* ---- switching ---- */

#if defined(HAS_OWN_SWITCH)

/* A new stack begins in this: calls the entry that gpu_cpu_fibre_prepare left in a saved register.
 */
void gpu_cpu_stack_begin(void);

#if defined(__x86_64__)
/* System V: rbx, rbp, r12 to r15 survive calls. */
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden gpu_cpu_stack_switch\n"
        ".globl gpu_cpu_stack_switch\n"
        ".type gpu_cpu_stack_switch, @function\n"
        "gpu_cpu_stack_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size gpu_cpu_stack_switch, .-gpu_cpu_stack_switch\n"
        ".p2align 4\n"
        ".hidden gpu_cpu_stack_begin\n"
        ".globl gpu_cpu_stack_begin\n"
        ".type gpu_cpu_stack_begin, @function\n"
        "gpu_cpu_stack_begin:\n"
        "    .cfi_startproc\n"
        "    .cfi_undefined rip\n"
        "    movq %r13, %rdi\n"
        "    call *%r12\n"
        "    ud2\n"
        "    .cfi_endproc\n"
        ".size gpu_cpu_stack_begin, .-gpu_cpu_stack_begin\n");

static void *stack_prepare(unsigned char *top, void (*entry)(struct cpu_region *region),
                           struct cpu_region *region) {
    /* As the switch leaves it: r15 r14 r13 r12 rbx rbp, return address; 16-aligned behind. */
    uintptr_t *sp = (uintptr_t *)(void *)top - 7;
    memset(sp, 0, 6 * sizeof *sp);
    sp[2] = (uintptr_t)region;
    sp[3] = (uintptr_t)entry;
    sp[6] = (uintptr_t)gpu_cpu_stack_begin;
    return sp;
}
#else
/* AAPCS64: x19 to x30 and d8 to d15 survive calls. */
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden gpu_cpu_stack_switch\n"
        ".globl gpu_cpu_stack_switch\n"
        ".type gpu_cpu_stack_switch, %function\n"
        "gpu_cpu_stack_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size gpu_cpu_stack_switch, .-gpu_cpu_stack_switch\n"
        ".p2align 4\n"
        ".hidden gpu_cpu_stack_begin\n"
        ".globl gpu_cpu_stack_begin\n"
        ".type gpu_cpu_stack_begin, %function\n"
        "gpu_cpu_stack_begin:\n"
        "    .cfi_startproc\n"
        "    .cfi_undefined x30\n"
        "    mov x0, x20\n"
        "    blr x19\n"
        "    brk #1\n"
        "    .cfi_endproc\n"
        ".size gpu_cpu_stack_begin, .-gpu_cpu_stack_begin\n");

static void *stack_prepare(unsigned char *top, void (*entry)(struct cpu_region *region),
                           struct cpu_region *region) {
    uintptr_t *sp = (uintptr_t *)(void *)(top - 160);
    memset(sp, 0, 160);
    sp[0] = (uintptr_t)entry;
    sp[1] = (uintptr_t)region;
    sp[11] = (uintptr_t)gpu_cpu_stack_begin;
    return sp;
}
#endif

#else /* any other processor: correct, and slow */

void gpu_cpu_stack_switch(void **from, void *to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, to);
}

static void stack_begin(unsigned entry_high, unsigned entry_low, unsigned region_high,
                        unsigned region_low) {
    void (*entry)(struct cpu_region * region) =
        (void (*)(struct cpu_region *))((uintptr_t)entry_high << 16 << 16 | entry_low);
    entry((struct cpu_region *)((uintptr_t)region_high << 16 << 16 | region_low));
    __builtin_unreachable(); /* entries do not return */
}

static void *stack_prepare(unsigned char *top, void (*entry)(struct cpu_region *region),
                           struct cpu_region *region) {
    ucontext_t *context = (ucontext_t *)((uintptr_t)(top - sizeof *context) & ~(uintptr_t)63);
    uintptr_t e = (uintptr_t)entry, r = (uintptr_t)region;
    getcontext(context);
    context->uc_link = NULL;
    context->uc_stack.ss_sp = (unsigned char *)context - 65536;
    context->uc_stack.ss_size = 65536;
    makecontext(context, (void (*)(void))stack_begin, 4, (unsigned)(e >> 16 >> 16), (unsigned)e,
                (unsigned)(r >> 16 >> 16), (unsigned)r);
    return context;
}
#endif

/* The stack that an address lies in. */
static unsigned char *stack_at(struct cpu_region *region, const void *address, size_t *bytes) {
    uintptr_t offset = (uintptr_t)address - (uintptr_t)region;
    if (offset < CPU_STACKS_OFFSET) {
        *bytes = CPU_SERIAL_STACK_BYTES;
        return region_bytes(region) + CPU_SERIAL_STACK_OFFSET;
    }
    *bytes = CPU_STACK_BYTES;
    return region_bytes(region) + offset / CPU_STACK_BYTES * CPU_STACK_BYTES;
}

const void *gpu_cpu_fibre_stack_end(struct cpu_region *region, const void *address) {
    size_t bytes;
    unsigned char *begin = stack_at(region, address, &bytes);
    return begin + bytes;
}

#if defined(GPU_CPU_ASAN)
static const void *stack_of(struct cpu_region *region, const struct cpu_thread *thread,
                            size_t *bytes) {
    if (thread == &region->worker) {
        *bytes = region->worker_stack_bytes;
        return region->worker_stack;
    }
    return stack_at(region, thread->stack_pointer, bytes);
}
#endif

void gpu_cpu_fibre_prepare(struct cpu_region *region, struct cpu_thread *thread, unsigned index,
                           bool is_serial, void (*entry)(struct cpu_region *region)) {
    unsigned char *top =
        is_serial ? region_bytes(region) + CPU_SERIAL_STACK_OFFSET + CPU_SERIAL_STACK_BYTES
                  : (unsigned char *)gpu_cpu_fibre_canary(region, index + 1);
    thread->stack_pointer = stack_prepare(top, entry, region);
#if defined(GPU_CPU_ASAN)
    thread->sanitizer = NULL;
#elif defined(GPU_CPU_TSAN)
    /* Entries never return, so each use leaves calls behind on the sanitizer's own stack, which
     * holds 65,536. A new one each time would be slow. */
    if (thread->sanitizer != NULL && ++region->sanitizer_uses[index] == CPU_SANITIZER_USES_MAX) {
        __tsan_destroy_fiber(thread->sanitizer);
        thread->sanitizer = NULL;
    }
    if (thread->sanitizer == NULL) {
        thread->sanitizer = __tsan_create_fiber(0);
        region->sanitizer_uses[index] = 0;
    }
#endif
}

/* ---- the worker's stack ---- */

void gpu_cpu_fibre_enter(struct cpu_region *region, struct cpu_thread *thread) {
    gpu_cpu_fibre_hop(region, &region->worker, thread);
    while (region->call != NULL) {
        region->call(region->call_data);
        region->call = NULL;
        gpu_cpu_fibre_hop(region, &region->worker, &region->caller);
    }
}

GPU_CPU_ON_FIBRE void gpu_cpu_fibre_call(struct cpu_region *region, void (*call)(void *data),
                                         void *data) {
    region->call = call;
    region->call_data = data;
    gpu_cpu_fibre_hop(region, &region->caller, &region->worker);
}

/* ---- sanitizers ---- */

void gpu_cpu_region_left(struct cpu_region *region) {
#if defined(GPU_CPU_ASAN)
    if (region->has_serial_stack) {
        __asan_unpoison_memory_region(region_bytes(region) + CPU_SERIAL_STACK_OFFSET -
                                          CPU_SERIAL_STACK_BYTES,
                                      2ul * CPU_SERIAL_STACK_BYTES);
    }
    __asan_unpoison_memory_region(region_bytes(region) + CPU_STACKS_OFFSET - CPU_STACK_BYTES,
                                  (region->stacks_ready + 1ul) * CPU_STACK_BYTES);
#endif
    canaries_write(region);
}

GPU_CPU_ON_FIBRE void gpu_cpu_fibre_arrived(struct cpu_region *region, struct cpu_thread *self) {
#if defined(GPU_CPU_ASAN)
    const void *left;
    size_t left_bytes;
    __sanitizer_finish_switch_fiber(self->sanitizer, &left, &left_bytes);
    uintptr_t offset = (uintptr_t)left - (uintptr_t)region;
    if (offset >= CPU_REGION_BYTES) {
        region->worker_stack = left;
        region->worker_stack_bytes = left_bytes;
    }
#else
    (void)region;
    (void)self;
#endif
}

GPU_CPU_ON_FIBRE void gpu_cpu_fibre_hop_noted(struct cpu_region *region, struct cpu_thread *from,
                                              struct cpu_thread *to) {
#if defined(GPU_CPU_ASAN)
    size_t bytes;
    const void *bottom = stack_of(region, to, &bytes);
    __sanitizer_start_switch_fiber(&from->sanitizer, bottom, bytes);
#elif defined(GPU_CPU_TSAN)
    if (from == &region->worker || from == &region->caller) {
        from->sanitizer = __tsan_get_current_fiber();
    }
    __tsan_switch_to_fiber(to->sanitizer, 0);
#endif
    gpu_cpu_stack_switch(&from->stack_pointer, to->stack_pointer);
    gpu_cpu_fibre_arrived(region, from);
}
