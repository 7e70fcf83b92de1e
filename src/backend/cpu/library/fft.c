/* The library "fft" on the CPU device: FFTW, which is loaded at run time, for each precision when
 * it is first needed. FFTW because it takes every size, any layout and sizes beyond 32 bits, is
 * fast, and every distribution has it. It spreads long transforms over the cores where its library
 * of threads is installed. */
#include "backend/fft.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/device.h"
#include "backend/cpu/library.h"

/* ---- FFTW ---- */

struct dim {
    ptrdiff_t size, in_stride, out_stride;
};

enum {
    SIGN_FORWARD = -1,
    SIGN_INVERSE = 1,
    MEASURE = 0,
    DESTROY_INPUT = 1,
    UNALIGNED = 2,
    PRESERVE_INPUT = 16,
    ESTIMATE = 64
};

#define THREADS_FROM (1 << 15) /* numbers: below, waking a thread takes longer than the work */

struct fftw_plan; /* FFTW's own */
/* clang-format off */
#define PLAN_ARGUMENTS                                                                             \
    int rank, const struct dim *dims, int loop_rank, const struct dim *loops, void *in, void *out
/* X(name behind fftw_ or fftwf_, result, arguments) */
#define FFTW_TABLE(X)                                                                              \
    X(plan_guru64_dft, struct fftw_plan *, (PLAN_ARGUMENTS, int sign, unsigned flags))                    \
    X(plan_guru64_dft_r2c, struct fftw_plan *, (PLAN_ARGUMENTS, unsigned flags))                          \
    X(plan_guru64_dft_c2r, struct fftw_plan *, (PLAN_ARGUMENTS, unsigned flags))                          \
    X(execute_dft, void, (const struct fftw_plan *plan, void *in, void *out))                             \
    X(execute_dft_r2c, void, (const struct fftw_plan *plan, void *in, void *out))                         \
    X(execute_dft_c2r, void, (const struct fftw_plan *plan, void *in, void *out))                         \
    X(destroy_plan, void, (struct fftw_plan *plan))                                                \
    X(alignment_of, int, (void *numbers))
#define FFTW_THREADS_TABLE(X)                                                                      \
    X(init_threads, int, (void))                                                                   \
    X(plan_with_nthreads, void, (int count))                                                       \
    X(make_planner_thread_safe, void, (void))
/* clang-format on */

struct fftw {
    bool is_open, has_threads;
#define X(name, result, arguments) result(*name) arguments;
    FFTW_TABLE(X)
    FFTW_THREADS_TABLE(X)
#undef X
};

static struct fftw of_f32, of_f64;

static bool find(void *library, const char *prefix, const char *name, void *to) {
    char symbol_name[64] = "";
    strcat(strcat(symbol_name, prefix), name);
    void *symbol = dlsym(library, symbol_name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Without it, or with one that is not whole, transforms have one thread. A library that somebody
 * named has its threads in itself, or none: the usual ones belong to the usual library. */
static void open_threads(struct fftw *fftw, void *library, const char *prefix,
                         const char *const *names, bool is_named) {
    struct backend_error ignored = {0};
    if (!is_named) {
        (void)gpu_cpu_library_load("", names, "", &library, &ignored);
    }
    bool has_all = library != NULL;
#define X(name, result, arguments) has_all = has_all && find(library, prefix, #name, &fftw->name);
    FFTW_THREADS_TABLE(X)
#undef X
    fftw->has_threads = has_all && fftw->init_threads() != 0;
    if (fftw->has_threads) {
        fftw->make_planner_thread_safe(); /* a host may have plans of its own */
    }
}

static gpulua_status open_fftw(bool is_f64, struct fftw **opened, struct backend_error *error) {
    static const char *const names_f32[] = {"libfftw3f.so.3", NULL};
    static const char *const names_f64[] = {"libfftw3.so.3", NULL};
    static const char *const threads_f32[] = {"libfftw3f_threads.so.3", NULL};
    static const char *const threads_f64[] = {"libfftw3_threads.so.3", NULL};
    struct fftw *fftw = is_f64 ? &of_f64 : &of_f32;
    const char *variable = is_f64 ? "GPULUA_LIBFFTW3" : "GPULUA_LIBFFTW3F";
    const char *prefix = is_f64 ? "fftw_" : "fftwf_", *missing = NULL, *named = getenv(variable);
    *opened = fftw;
    if (fftw->is_open) {
        return GPULUA_OK;
    }
    void *library;
    gpulua_status status = gpu_cpu_library_load(variable, is_f64 ? names_f64 : names_f32,
                                                is_f64 ? "FFTW for f64 (Debian: libfftw3-double3)"
                                                       : "FFTW for f32 (Debian: libfftw3-single3)",
                                                &library, error);
    if (status != GPULUA_OK) {
        return status;
    }
#define X(name, result, arguments)                                                                 \
    missing = missing != NULL || find(library, prefix, #name, &fftw->name) ? missing : #name;
    FFTW_TABLE(X)
#undef X
    if (missing != NULL) {
        return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,
                                "the library that is taken for FFTW has no %s%s: version 3.3 or "
                                "newer is needed",
                                prefix, missing);
    }
    open_threads(fftw, library, prefix, is_f64 ? threads_f64 : threads_f32,
                 named != NULL && named[0] != '\0');
    fftw->is_open = true;
    return GPULUA_OK;
}

/* ---- plans ---- */

/* [1]: in and out are the same memory; [1]: one of them is not aligned as FFTW likes it, which most
 * slices are not. It takes twice the time, and is made when it is first needed. */
struct made_fft {
    struct fft_plan plan;
    const struct fftw *fftw;
    struct fftw_plan *_Atomic plans[FFT_DIRECTION_COUNT][2][2]; /* NULL: not made */
    int threads;
};

/* FFTW makes and ends one plan at a time. */
static pthread_mutex_t planner = PTHREAD_MUTEX_INITIALIZER;

/* The inverse of a real plan with several dimensions destroys what it reads, whatever flags say. */
static bool is_copied(const struct fft_plan *plan, enum fft_direction direction) {
    return direction == FFT_INVERSE && plan->is_real && plan->rank > 1 && !plan->may_overwrite;
}

/* The way to go for a call like this one, made unless it is there. What is measured has to be
 * written to. NULL: FFTW has none. */
static struct fftw_plan *find_plan(struct made_fft *made, enum fft_direction direction, void *in,
                                   void *out, bool is_unaligned, bool is_measured) {
    const struct fft_plan *plan = &made->plan;
    const struct fftw *fftw = made->fftw;
    struct fftw_plan *_Atomic *way = &made->plans[direction][in == out][is_unaligned];
    struct fftw_plan *found = *way;
    if (found != NULL) {
        return found;
    }
    bool from_x = direction == FFT_FORWARD;
    const struct fft_side *from = gpu_fft_side(plan, from_x), *to = gpu_fft_side(plan, !from_x);
    struct dim dims[FFT_RANK_MAX], loop = {plan->batch, from->distance, to->distance};
    for (int64_t i = 0; i < plan->rank; i++) {
        dims[i] = (struct dim){plan->sizes[i], from->strides[i], to->strides[i]};
    }
    bool may_destroy = in == out || (direction == FFT_INVERSE && plan->is_real &&
                                     (plan->rank > 1 || plan->may_overwrite));
    unsigned flags = (is_unaligned ? (unsigned)UNALIGNED : 0u) |
                     (is_measured ? (unsigned)MEASURE : ESTIMATE) |
                     (may_destroy ? DESTROY_INPUT : PRESERVE_INPUT);
    pthread_mutex_lock(&planner);
    if (fftw->has_threads) {
        fftw->plan_with_nthreads(made->threads);
    }
    if (*way == NULL) {
        *way = !plan->is_real ? fftw->plan_guru64_dft((int)plan->rank, dims, 1, &loop, in, out,
                                                      from_x ? SIGN_FORWARD : SIGN_INVERSE, flags)
                              : (from_x ? fftw->plan_guru64_dft_r2c : fftw->plan_guru64_dft_c2r)(
                                    (int)plan->rank, dims, 1, &loop, in, out, flags);
    }
    if (fftw->has_threads) {
        fftw->plan_with_nthreads(1); /* what a host that never asked has */
    }
    pthread_mutex_unlock(&planner);
    return *way;
}

static gpulua_status no_plan(struct backend_error *error) {
    return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                            "FFTW has no plan for these sizes and strides");
}

/* `in`, `out`: memory to measure with, aligned to 64 bytes. */
static gpulua_status make_plans(struct made_fft *made, char *in, char *out,
                                struct backend_error *error) {
    const struct fft_plan *plan = &made->plan;
    int64_t count = plan->batch;
    for (int64_t i = 0; i < plan->rank; i++) {
        count *= plan->sizes[i];
    }
    made->threads =
        made->fftw->has_threads && count >= THREADS_FROM ? (int)gpu_cpu_core_count() : 1;
    for (int i = 0; i < FFT_DIRECTION_COUNT; i++) {
        enum fft_direction direction = (enum fft_direction)i;
        bool is_wanted = direction == FFT_FORWARD ? plan->has_forward : plan->has_inverse;
        if (is_wanted && (!find_plan(made, direction, in, out, false, plan->is_measured) ||
                          (plan->may_be_in_place &&
                           !find_plan(made, direction, in, in, false, plan->is_measured)))) {
            return no_plan(error);
        }
    }
    return GPULUA_OK;
}

static void drop(void *state) {
    struct made_fft *made = state;
    pthread_mutex_lock(&planner);
    for (int i = 0; made != NULL && i < 4 * FFT_DIRECTION_COUNT; i++) {
        struct fftw_plan *way = made->plans[i / 4][i / 2 % 2][i % 2];
        if (way != NULL) {
            made->fftw->destroy_plan(way);
        }
    }
    pthread_mutex_unlock(&planner);
    free(made);
}

static gpulua_status make(const char *options, void **state, char **description,
                          struct backend_error *error) {
    static char nothing[2][64] __attribute__((aligned(64))); /* estimates do not look into it */
    struct fft_plan plan;
    struct fftw *fftw = NULL;
    gpulua_status status = gpu_fft_parse(options, &plan, error);
    status = status == GPULUA_OK ? open_fftw(plan.is_f64 != 0, &fftw, error) : status;
    if (status != GPULUA_OK) {
        return status;
    }
    uint64_t bytes[2] = {gpu_fft_span_bytes(&plan, true), gpu_fft_span_bytes(&plan, false)};
    uint64_t most = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    uint64_t rounded = (most + 63) / 64 * 64;
    char *in = plan.is_measured ? aligned_alloc(64, rounded) : nothing[0];
    char *out = plan.is_measured ? aligned_alloc(64, rounded) : nothing[1];
    struct made_fft *made = calloc(1, sizeof *made);
    if (made == NULL || in == NULL || out == NULL) {
        status =
            gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory to make a plan in");
    } else {
        if (plan.is_measured) { /* not with whatever numbers are there, which may be slow ones */
            memset(in, 0, rounded);
            memset(out, 0, rounded);
        }
        made->plan = plan;
        made->fftw = fftw;
        status = make_plans(made, in, out, error);
    }
    if (plan.is_measured) {
        free(in);
        free(out);
    }
    if (status == GPULUA_OK) {
        const uint64_t work_bytes[FFT_DIRECTION_COUNT] = {
            [FFT_INVERSE] = is_copied(&plan, FFT_INVERSE) ? bytes[1] : 0};
        *description = gpu_fft_describe(&plan, work_bytes);
        status = *description != NULL
                     ? GPULUA_OK
                     : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for a module");
    }
    if (status != GPULUA_OK) {
        drop(made);
        return status;
    }
    *state = made;
    return GPULUA_OK;
}

/* ---- calls ---- */

#define SCALE(T)                                                                                   \
    static void scale_##T(T *base, const struct fft_loops *loops, T factor) {                      \
        const uint64_t *n = loops->sizes, *s = loops->strides;                                     \
        for (uint64_t row = 0; row < n[0] * n[1] * n[2] * n[3]; row++) {                           \
            uint64_t i3 = row % n[3], i2 = row / n[3] % n[2];                                      \
            uint64_t i1 = row / (n[3] * n[2]) % n[1], i0 = row / (n[3] * n[2] * n[1]);             \
            T *at = base + i0 * s[0] + i1 * s[1] + i2 * s[2] + i3 * s[3];                          \
            for (uint64_t i = 0; i < n[4]; i++) {                                                  \
                at[i * s[4]] *= factor;                                                            \
            }                                                                                      \
        }                                                                                          \
    }
SCALE(float)
SCALE(double)

static void scale(const struct fft_plan *plan, bool is_x, void *base, double factor) {
    struct fft_loops loops;
    gpu_fft_loops(plan, is_x, &loops);
    if (plan->is_f64) {
        scale_double(base, &loops, factor);
    } else {
        scale_float(base, &loops, (float)factor);
    }
}

static gpulua_status run(struct made_fft *made, const struct fft_call *call,
                         enum fft_direction direction, struct backend_error *error) {
    const struct fft_plan *plan = &made->plan;
    const struct fftw *fftw = made->fftw;
    void *in = (void *)(uintptr_t)call->in;
    bool is_in_place = in == call->out;
    if (!(direction == FFT_FORWARD ? plan->has_forward : plan->has_inverse) ||
        (is_in_place && !plan->may_be_in_place)) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "this plan has no such direction, or none in place");
    }
    if (is_copied(plan, direction) && !is_in_place) {
        uint64_t bytes = gpu_fft_span_bytes(plan, false);
        if (call->work == NULL || call->work_bytes < bytes) {
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "no room for a copy");
        }
        in = memcpy(call->work, in, bytes);
    }
    bool is_unaligned = fftw->alignment_of(in) != 0 || fftw->alignment_of(call->out) != 0;
    const struct fftw_plan *way = find_plan(made, direction, in, call->out, is_unaligned, false);
    if (way == NULL) {
        return no_plan(error);
    }
    sigset_t all, before; /* FFTW's threads get none of the process's signals */
    if (made->threads > 1) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    (!plan->is_real             ? fftw->execute_dft
     : direction == FFT_FORWARD ? fftw->execute_dft_r2c
                                : fftw->execute_dft_c2r)(way, in, call->out);
    if (made->threads > 1) {
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (call->scale != 1) {
        scale(plan, direction == FFT_INVERSE, call->out, call->scale);
    }
    return GPULUA_OK;
}

#define X(name, direction)                                                                         \
    static gpulua_status run_##name(void *made, const void *args, struct backend_error *error) {   \
        return run(made, args, direction, error);                                                  \
    }
FFT_CALLS(X)
#undef X

static const struct cpu_library_call calls[] = {
#define X(name, direction) {#name, run_##name, sizeof(struct fft_call)},
    FFT_CALLS(X)
#undef X
};

const struct cpu_library gpu_cpu_fft = {
    .name = "fft",
    .calls = calls,
    .call_count = sizeof calls / sizeof calls[0],
    .make = make,
    .drop = drop,
};
