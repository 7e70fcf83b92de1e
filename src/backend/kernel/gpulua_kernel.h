// For kernels that can say that something is wrong:
//
//     #include <gpulua_kernel.h>
//     extern "C" __global__ void roots(int n, const float *x, float *y, gpulua_ctx ctx) {
//         int i = blockIdx.x * blockDim.x + threadIdx.x;
//         if (i >= n || !gpulua_check(ctx, x[i] >= 0, "x[%d] is %g", i, x[i])) return;
//         y[i] = sqrtf(x[i]);
//     }
//
// gpulua fills in the last parameter; scripts do not pass it. The first check of a launch that fails
// is what its operation fails with (KernelFailed); the kernel goes on, and the device stays up.
#ifndef GPULUA_KERNEL_H
#define GPULUA_KERNEL_H

#if defined(__GPULUA_CPU__)
// Reports are no memory of the kernel's: check mode is not to see what is done with them.
#define GPULUA_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define GPULUA_UNSEEN __noinline__
#endif
#if defined(GPULUA_CHECKED)
#define GPULUA_FIRST GPULUA_UNSEEN inline
#elif defined(__GPULUA_CPU__)
#define GPULUA_FIRST __attribute__((always_inline)) inline
#else
#define GPULUA_FIRST __forceinline__
#endif

#define GPULUA_REPORT_ARGS 8
#define GPULUA_REPORT_CHARS 144

// In memory of the host that the device writes to. runtime/report.c has the same.
struct gpulua_report {
    unsigned state; // 0: nothing has failed, 1: somebody is writing, 2: it is all there
    unsigned line;
    unsigned block[3], thread[3];
    unsigned index; // reports lie in rows; the first of each says whether one of them has failed
    unsigned arg_count;
    unsigned char kinds[GPULUA_REPORT_ARGS]; // 'i' and 'u', 'I' and 'U' of 32 bits, 'f', 'p'
    unsigned long long args[GPULUA_REPORT_ARGS];
    char format[GPULUA_REPORT_CHARS]; // cut where it is too long
};

// A launch that has failed, or skipped itself, puts its number in its word, in memory of the device,
// for those behind it: the host's is too far away to be asked by every thread.
struct gpulua_need {
    const unsigned long long *word; // null: none
    unsigned long long number;
};

struct gpulua_ctx {
    gpulua_report *report;
    unsigned long long *word;
    unsigned long long number;
    unsigned long long *whole_word; // of the launch of a graph that this is part of; null: of none
    unsigned long long whole_number;
    gpulua_need needs[4]; // launches whose output this one reads
};

// The launch has failed, or skips itself. (Members one by one: a parameter of the kernel whose address
// is taken would be copied by each thread.)
__device__ GPULUA_UNSEEN inline void gpulua_tell(unsigned long long *word, unsigned long long number,
                                                 unsigned long long *whole_word,
                                                 unsigned long long whole_number) {
    *word = number;
    if (whole_word) {
        *whole_word = whole_number;
    }
}

__device__ GPULUA_UNSEEN inline void gpulua_put(gpulua_report *r, unsigned i, char kind, unsigned long long bits) {
    r->kinds[i] = (unsigned char)kind;
    r->args[i] = bits;
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, long long v) {
    gpulua_put(r, i, 'i', (unsigned long long)v);
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, long v) { gpulua_arg(r, i, (long long)v); }
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, int v) {
    gpulua_put(r, i, 'I', (unsigned long long)(long long)v);
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, unsigned long long v) {
    gpulua_put(r, i, 'u', v);
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, unsigned long v) {
    gpulua_put(r, i, 'u', v);
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, unsigned v) { gpulua_put(r, i, 'U', v); }
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, double v) {
    gpulua_put(r, i, 'f', (unsigned long long)__double_as_longlong(v));
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, const void *v) {
    gpulua_put(r, i, 'p', (unsigned long long)v);
}

// The first thread of a launch that fails gets it.
__device__ GPULUA_UNSEEN inline bool gpulua_report_take(gpulua_report *r) {
    if (!r || *(volatile unsigned *)&r->state != 0) {
        return false;
    }
#if defined(__GPULUA_CPU__)
    return __sync_bool_compare_and_swap(&r->state, 0u, 1u);
#else
    return atomicCAS(&r->state, 0u, 1u) == 0;
#endif
}

__device__ GPULUA_UNSEEN inline void gpulua_report_begin(gpulua_report *r, uint3 block, uint3 thread,
                                                         unsigned line, const char *format,
                                                         unsigned arg_count) {
    r->line = line;
    r->block[0] = block.x, r->block[1] = block.y, r->block[2] = block.z;
    r->thread[0] = thread.x, r->thread[1] = thread.y, r->thread[2] = thread.z;
    r->arg_count = arg_count;
    unsigned k = 0;
    for (; k < GPULUA_REPORT_CHARS - 1 && format[k]; k++) {
        r->format[k] = format[k];
    }
    r->format[k] = 0;
}

__device__ GPULUA_UNSEEN inline void gpulua_report_end(gpulua_report *r) {
    __threadfence_system();
    *(volatile unsigned *)&r->state = 2;
    __threadfence_system();
    *(volatile unsigned *)&(r - r->index)->state = 1;
}

template <class... Args>
__device__ GPULUA_UNSEEN bool gpulua_fail(gpulua_report *report, unsigned long long *word,
                                          unsigned long long number, unsigned long long *whole_word,
                                          unsigned long long whole_number, uint3 block, uint3 thread,
                                          unsigned line, const char *format, Args... args) {
    static_assert(sizeof...(Args) <= GPULUA_REPORT_ARGS, "gpulua_check: at most 8 values");
    if (gpulua_report_take(report)) {
        gpulua_report_begin(report, block, thread, line, format, (unsigned)sizeof...(Args));
        unsigned i = 0;
        int each[] = {0, (gpulua_arg(report, i++, args), 0)...};
        (void)each, (void)i;
        gpulua_tell(word, number, whole_word, whole_number);
        gpulua_report_end(report);
    }
    return false;
}

// Is the condition true? If not, the launch fails with this text, as printf makes it of the format
// and up to 8 numbers or pointers behind it (texts, %s, are "?"). `ctx` is of this launch alone: it
// must not be kept for another.
#define gpulua_check(ctx, condition, ...)                                                          \
    ((condition) ? true                                                                            \
                 : gpulua_fail((ctx).report, (ctx).word, (ctx).number, (ctx).whole_word,           \
                               (ctx).whole_number, blockIdx, threadIdx, (unsigned)__LINE__,        \
                               __VA_ARGS__))

// Has something failed that this launch reads? gpulua asks it in front of each kernel of a source
// whose last parameter is a gpulua_ctx, which does nothing then; where that comes from a macro or
// has another name, or in precompiled code, the kernel may ask by itself. Of more than four launches
// that report and that it reads from, four are looked at. Either way the operation fails. What it
// needs is over: the words do not change.
__device__ GPULUA_FIRST bool gpulua_is_skipped(const gpulua_ctx &ctx) {
    bool skips = false;
    for (int i = 0; i < 4; i++) {
        skips = skips || (ctx.needs[i].word && *ctx.needs[i].word == ctx.needs[i].number);
    }
    if (skips) {
        // What reads our output is to skip itself, too.
        gpulua_tell(ctx.word, ctx.number, ctx.whole_word, ctx.whole_number);
    }
    return skips;
}

#endif
