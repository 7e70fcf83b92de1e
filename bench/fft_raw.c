/* Fourier transforms with FFTW and cuFFT alone, in C: what bench/fft.lua is measured against.
 *
 * Prints `name value unit` lines (medians): cpu_... with FFTW as a program would use it by itself
 * (estimates, aligned memory, a thread for each core), cuda_... with cuFFT. Both are opened with
 * dlopen, so the program builds anywhere and says what is not there. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure.h"

#define REPEATS 15

static const struct transform {
    const char *name;
    int size, batch, is_real;
} transforms[] = {{"c2c_1024", 1024, 1, 0},
                  {"c2c_2^20", 1 << 20, 1, 0},
                  {"r2c_2^20", 1 << 20, 1, 1},
                  {"c2c_4096x1024", 1024, 4096, 0}};
#define TRANSFORMS (sizeof transforms / sizeof transforms[0])

static double values[REPEATS];

static void print_median(const char *device, const char *name) {
    qsort(values, REPEATS, sizeof *values, by_value);
    printf("%s_%s %.2f us\n", device, name, values[REPEATS / 2] / 1000);
}

/* ---- FFTW ---- */

#define ESTIMATE 64u
#define CALLS 5

static void *(*p_plan_many_dft)(int, const int *, int, void *, const int *, int, int, void *,
                                const int *, int, int, int, unsigned);
static void *(*p_plan_many_dft_r2c)(int, const int *, int, void *, const int *, int, int, void *,
                                    const int *, int, int, unsigned);
static void (*p_execute)(void *);
static void *(*p_malloc)(size_t);
static int (*p_init_threads)(void);
static void (*p_plan_with_nthreads)(int);

static void find(void *library, const char *name, void *to) {
    void *symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
}

static void run_fftw(void) {
    void *library = dlopen("libfftw3f.so.3", RTLD_NOW);
    if (!library) {
        puts("# no libfftw3f.so.3 here");
        return;
    }
    find(library, "fftwf_plan_many_dft", &p_plan_many_dft);
    find(library, "fftwf_plan_many_dft_r2c", &p_plan_many_dft_r2c);
    find(library, "fftwf_execute", &p_execute);
    find(library, "fftwf_malloc", &p_malloc);
    void *threads = dlopen("libfftw3f_threads.so.3", RTLD_NOW);
    if (threads) {
        find(threads, "fftwf_init_threads", &p_init_threads);
        find(threads, "fftwf_plan_with_nthreads", &p_plan_with_nthreads);
        p_init_threads();
    }
    for (size_t t = 0; t < TRANSFORMS; t++) {
        const struct transform *of = &transforms[t];
        int count = of->size * of->batch;
        char *in = p_malloc((size_t)count * 8), *out = p_malloc((size_t)count * 8 + 8);
        memset(in, 0, (size_t)count * 8);
        memset(out, 0, (size_t)count * 8 + 8);
        if (threads) {
            p_plan_with_nthreads(count > 4096 ? (int)sysconf(_SC_NPROCESSORS_ONLN) : 1);
        }
        void *plan = of->is_real
                         ? p_plan_many_dft_r2c(1, &of->size, of->batch, in, NULL, 1, of->size, out,
                                               NULL, 1, of->size / 2 + 1, ESTIMATE)
                         : p_plan_many_dft(1, &of->size, of->batch, in, NULL, 1, of->size, out,
                                           NULL, 1, of->size, -1, ESTIMATE);
        for (int r = -1; r < REPEATS; r++) {
            double start = now_ns();
            for (int i = 0; i < CALLS; i++) {
                p_execute(plan);
            }
            values[r < 0 ? 0 : r] = (now_ns() - start) / CALLS;
        }
        print_median("cpu", of->name);
    }
}

/* ---- cuFFT ---- */

#if __has_include(<cuda.h>) && __has_include(<cufft.h>)
#include <cuda.h>
#include <cufft.h>

#define GPU_CALLS 1000 /* so many that waiting for their end does not count */
#define DRIVER(X)
#include "driver.h"

#define FFT(call)                                                                                  \
    do {                                                                                           \
        int result_ = (int)(call);                                                                 \
        if (result_ != 0) {                                                                        \
            fprintf(stderr, "%s: error %d\n", #call, result_);                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static __typeof__(cufftPlan1d) *p_cufftPlan1d;
static __typeof__(cufftSetStream) *p_cufftSetStream;
static __typeof__(cufftExecC2C) *p_cufftExecC2C;
static __typeof__(cufftExecR2C) *p_cufftExecR2C;

static void run_cufft(void) {
    CUstream stream;
    void *library = dlopen("libcufft.so.12", RTLD_NOW);
    library = library ? library : dlopen("/usr/local/cuda/lib64/libcufft.so.12", RTLD_NOW);
    library = library ? library : dlopen("libcufft.so.11", RTLD_NOW);
    if (!driver_open()) {
        return;
    }
    if (!library) {
        puts("# no libcufft here");
        return;
    }
    find(library, "cufftPlan1d", &p_cufftPlan1d);
    find(library, "cufftSetStream", &p_cufftSetStream);
    find(library, "cufftExecC2C", &p_cufftExecC2C);
    find(library, "cufftExecR2C", &p_cufftExecR2C);
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t t = 0; t < TRANSFORMS; t++) {
        const struct transform *of = &transforms[t];
        size_t bytes = (size_t)of->size * (size_t)of->batch * 8 + 8;
        CUdeviceptr in, out;
        cufftHandle plan;
        CK(p_cuMemAlloc_v2(&in, bytes));
        CK(p_cuMemAlloc_v2(&out, bytes));
        FFT(p_cufftPlan1d(&plan, of->size, of->is_real ? CUFFT_R2C : CUFFT_C2C, of->batch));
        FFT(p_cufftSetStream(plan, (cudaStream_t)stream));
        for (int r = -1; r < REPEATS; r++) {
            double start = now_ns();
            for (int i = 0; i < GPU_CALLS; i++) {
                if (of->is_real) {
                    FFT(p_cufftExecR2C(plan, (cufftReal *)in, (cufftComplex *)out));
                } else {
                    FFT(p_cufftExecC2C(plan, (cufftComplex *)in, (cufftComplex *)out,
                                       CUFFT_FORWARD));
                }
            }
            CK(p_cuStreamSynchronize(stream));
            values[r < 0 ? 0 : r] = (now_ns() - start) / GPU_CALLS;
        }
        print_median("cuda", of->name);
    }
}
#else
static void run_cufft(void) {
    puts("# built without cuda.h and cufft.h");
}
#endif

int main(void) {
    run_fftw();
    run_cufft();
    return 0;
}
