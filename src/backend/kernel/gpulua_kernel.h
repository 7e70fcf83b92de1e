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
#define GPULUA_FIRST GPULUA_UNSEEN inline
#else
#define GPULUA_UNSEEN __noinline__
#define GPULUA_FIRST __forceinline__
#endif

#define GPULUA_REPORT_ARGS 8
#define GPULUA_REPORT_CHARS 144

// In memory of the host that the device writes to. runtime/report.h has the same.
struct gpulua_report {
    unsigned state; // 0: nothing has failed, 1: somebody is writing, 2: it is all there, 3: skipped
    unsigned line;
    unsigned block[3], thread[3];
    unsigned index; // reports lie in rows; the first of each says whether one of them has failed
    unsigned arg_count;
    unsigned char kinds[GPULUA_REPORT_ARGS]; // 'i', 'u', 'f' or 'p'
    unsigned long long args[GPULUA_REPORT_ARGS];
    char format[GPULUA_REPORT_CHARS]; // cut where it is too long
};

struct gpulua_ctx {
    gpulua_report *report;         // of this launch
    const gpulua_report *needs[6]; // of launches whose output this one reads
};

__device__ GPULUA_UNSEEN inline void gpulua_put(gpulua_report *r, unsigned i, char kind, unsigned long long bits) {
    r->kinds[i] = (unsigned char)kind;
    r->args[i] = bits;
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, long long v) {
    gpulua_put(r, i, 'i', (unsigned long long)v);
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, long v) { gpulua_arg(r, i, (long long)v); }
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, int v) { gpulua_arg(r, i, (long long)v); }
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, unsigned long long v) {
    gpulua_put(r, i, 'u', v);
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, unsigned long v) {
    gpulua_put(r, i, 'u', v);
}
__device__ inline void gpulua_arg(gpulua_report *r, unsigned i, unsigned v) { gpulua_put(r, i, 'u', v); }
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
__device__ GPULUA_UNSEEN bool gpulua_fail(gpulua_report *report, uint3 block, uint3 thread,
                                          unsigned line, const char *format, Args... args) {
    static_assert(sizeof...(Args) <= GPULUA_REPORT_ARGS, "gpulua_check: at most 8 values");
    if (gpulua_report_take(report)) {
        gpulua_report_begin(report, block, thread, line, format, (unsigned)sizeof...(Args));
        unsigned i = 0;
        int each[] = {0, (gpulua_arg(report, i++, args), 0)...};
        (void)each, (void)i;
        gpulua_report_end(report);
    }
    return false;
}

// Is the condition true? If not, the launch fails with this text, as printf makes it of the format
// and up to 8 numbers or pointers behind it.
#define gpulua_check(ctx, condition, ...)                                                          \
    ((condition) ? true                                                                            \
                 : gpulua_fail((ctx).report, blockIdx, threadIdx, (unsigned)__LINE__, __VA_ARGS__))

// Has something failed that this launch reads? gpulua asks it in front of each kernel of a source
// that has a gpulua_ctx, which does nothing then.
__device__ GPULUA_FIRST bool gpulua_is_skipped(gpulua_ctx ctx) {
    bool skips = false;
    for (int i = 0; i < 6; i++) {
        skips = skips || (ctx.needs[i] && *(const volatile unsigned *)&ctx.needs[i]->state >= 2);
    }
#if !defined(__GPULUA_CPU__)
    bool is_first = threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
#else
    bool is_first = true;
#endif
    if (skips && is_first && ctx.report) { // what reads our output is to skip itself, too
        *(volatile unsigned *)&ctx.report->state = 3;
    }
    return skips;
}

#endif
