/* OpenBLAS as a program in C calls it: what bench/blas.lua measures, without gpulua. Prints `name
 * value unit` lines, medians. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

enum { ROUNDS = 9, COLUMNS = 102, NO_TRANS = 111 };

typedef void sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                   int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void saxpy(int n, float alpha, const float *x, int incx, float *y, int incy);

static void *symbol_of(void *library, const char *name) {
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "OpenBLAS (Debian: libopenblas0) has no %s, or is not there\n", name);
        exit(1);
    }
    return symbol;
}

static float *ones(size_t count) {
    float *values = malloc(count * sizeof *values);
    if (values == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = 1;
    }
    return values;
}

static void measure_gemm(sgemm *gemm, int n, int runs) {
    size_t count = (size_t)n * (size_t)n;
    float *a = ones(count), *b = ones(count), *c = ones(count);
    double times[ROUNDS];
    gemm(COLUMNS, NO_TRANS, NO_TRANS, n, n, n, 1, a, n, b, n, 0, c, n);
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int i = 0; i < runs; i++) {
            gemm(COLUMNS, NO_TRANS, NO_TRANS, n, n, n, 1, a, n, b, n, 0, c, n);
        }
        times[round] = (now_ns() - start) / runs;
    }
    printf("gemm_f32_%d %.1f GFLOP/s\n", n, 2.0 * n * n * n / median(times, ROUNDS));
    free(a);
    free(b);
    free(c);
}

static void measure_axpy(saxpy *axpy, int n, int runs) {
    float *x = ones((size_t)n), *y = ones((size_t)n);
    double times[ROUNDS];
    axpy(n, 1, x, 1, y, 1);
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int i = 0; i < runs; i++) {
            axpy(n, 1, x, 1, y, 1);
        }
        times[round] = (now_ns() - start) / runs;
    }
    printf("axpy_f32_%d %.1f us\n", n, median(times, ROUNDS) / 1e3);
    free(x);
    free(y);
}

int main(void) {
    const char *path = getenv("GPULUA_LIBOPENBLAS");
    void *library = dlopen(path != NULL ? path : "libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    sgemm *gemm;
    saxpy *axpy;
    *(void **)(void *)&gemm = symbol_of(library, "cblas_sgemm");
    *(void **)(void *)&axpy = symbol_of(library, "cblas_saxpy");
    measure_gemm(gemm, 64, 500);
    measure_gemm(gemm, 512, 10);
    measure_gemm(gemm, 2048, 1);
    measure_axpy(axpy, 1 << 20, 20);
    return 0;
}
