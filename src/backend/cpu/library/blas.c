/* The library "blas" on the CPU device: OpenBLAS, which is loaded at run time; geam, epilogues and
 * 16-bit types are done here. OpenBLAS because it is what distributions ship as their fast BLAS, it
 * spreads a call over the cores itself, and it may be called from several threads. */
#include "backend/blas.h"

#include <complex.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/library.h"

/* ---- OpenBLAS ---- */

enum { COLUMNS = 102, NO_TRANS = 111, UPPER = 121, NON_UNIT = 131, LEFT = 141 };

/* X(name behind cblas_, result, arguments): for a type of real numbers and one of complex ones. S
 * is how a factor is given. */
#define TYPE_TABLE(X, p, T, S)                                                                     \
    X(p##gemm, void,                                                                               \
      (int order, int ta, int tb, int m, int n, int k, S alpha, const T *a, int lda, const T *b,   \
       int ldb, S beta, T *c, int ldc))                                                            \
    X(p##gemv, void,                                                                               \
      (int order, int ta, int m, int n, S alpha, const T *a, int lda, const T *x, int incx,        \
       S beta, T *y, int incy))                                                                    \
    X(p##syrk, void,                                                                               \
      (int order, int triangle, int trans, int n, int k, S alpha, const T *a, int lda, S beta,     \
       T *c, int ldc))                                                                             \
    X(p##trsm, void,                                                                               \
      (int order, int side, int triangle, int trans, int diag, int m, int n, S alpha, const T *a,  \
       int lda, T *b, int ldb))                                                                    \
    X(p##axpy, void, (int n, S alpha, const T *x, int incx, T *y, int incy))                       \
    X(p##scal, void, (int n, S alpha, T *x, int incx))                                             \
    X(p##copy, void, (int n, const T *x, int incx, T *y, int incy))                                \
    X(p##swap, void, (int n, T *x, int incx, T *y, int incy))                                      \
    X(i##p##amax, size_t, (int n, const T *x, int incx))
#define REAL_TABLE(X, p, T)                                                                        \
    TYPE_TABLE(X, p, T, T)                                                                         \
    X(p##ger, void,                                                                                \
      (int order, int m, int n, T alpha, const T *x, int incx, const T *y, int incy, T *a,         \
       int lda))                                                                                   \
    X(p##dot, T, (int n, const T *x, int incx, const T *y, int incy))                              \
    X(p##rot, void, (int n, T *x, int incx, T *y, int incy, T c, T s))                             \
    X(p##nrm2, T, (int n, const T *x, int incx))                                                   \
    X(p##asum, T, (int n, const T *x, int incx))
#define COMPLEX_TABLE(X, p, r, T, R)                                                               \
    TYPE_TABLE(X, p, T, const void *)                                                              \
    X(p##geru, void,                                                                               \
      (int order, int m, int n, const void *alpha, const T *x, int incx, const T *y, int incy,     \
       T *a, int lda))                                                                             \
    X(p##dotu_sub, void, (int n, const T *x, int incx, const T *y, int incy, T *result))           \
    X(p##dotc_sub, void, (int n, const T *x, int incx, const T *y, int incy, T *result))           \
    X(r##nrm2, R, (int n, const T *x, int incx))                                                   \
    X(r##asum, R, (int n, const T *x, int incx))
typedef float complex float_complex;
typedef double complex double_complex;

#define TABLE(X)                                                                                   \
    REAL_TABLE(X, s, float)                                                                        \
    REAL_TABLE(X, d, double)                                                                       \
    COMPLEX_TABLE(X, c, sc, float_complex, float)                                                  \
    COMPLEX_TABLE(X, z, dz, double_complex, double)

static struct {
    void *library;
#define X(name, result, arguments) result(*name) arguments;
    TABLE(X)
#undef X
} blas;

static gpulua_status open_blas(struct backend_error *error) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so", NULL};
    void *library = NULL;
    if (blas.library != NULL) {
        return GPULUA_OK;
    }
    gpulua_status status = gpu_cpu_library_load("GPULUA_LIBOPENBLAS", names,
                                                "OpenBLAS (Debian: libopenblas0)", &library, error);
    if (status != GPULUA_OK) {
        return status;
    }
#define X(name, result, arguments)                                                                 \
    {                                                                                              \
        void *symbol = dlsym(library, "cblas_" #name);                                             \
        if (symbol == NULL) {                                                                      \
            return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,                          \
                                    "the library that is taken for OpenBLAS has no cblas_" #name); \
        }                                                                                          \
        memcpy(&blas.name, &symbol, sizeof symbol);                                                \
    }
    TABLE(X)
#undef X
    blas.library = library;
    return GPULUA_OK;
}

/* ---- what is given ---- */

static int transpose_of(int32_t transpose) {
    return NO_TRANS + transpose;
}

/* OpenBLAS counts in int. */
static bool fits(const int64_t *sizes, size_t count, struct backend_error *error) {
    for (size_t i = 0; i < count; i++) {
        if (sizes[i] > INT_MAX) {
            gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                             "a size of %" PRId64 ": OpenBLAS counts to %d", sizes[i], INT_MAX);
            return false;
        }
    }
    return true;
}

static bool matrix_fits(const struct blas_matrix_call *call, struct backend_error *error) {
    const int64_t sizes[] = {call->m, call->n, call->k, call->lda, call->ldb, call->ldc};
    return fits(sizes, sizeof sizes / sizeof *sizes, error);
}

static gpulua_status wrong_type(const char *name, struct backend_error *error) {
    return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0, "%s of this type", name);
}

/* ---- calls of one type ---- */

/* A factor as the calls take it. */
#define PLAIN_F32(value, value_im) ((float)(value))
#define PLAIN_F64(value, value_im) (value)
#define PAIR_F32(value, value_im) ((const float[2]){(float)(value), (float)(value_im)})
#define PAIR_F64(value, value_im) ((const double[2]){(value), (value_im)})

#define MATRIX_CALLS(p, T, S)                                                                      \
    static void gemm_##p(const struct blas_matrix_call *c, const void *a, const void *b,           \
                         void *to) {                                                               \
        blas.p##gemm(COLUMNS, transpose_of(c->transpose_a), transpose_of(c->transpose_b),          \
                     (int)c->m, (int)c->n, (int)c->k, S(c->alpha, c->alpha_im), a, (int)c->lda, b, \
                     (int)c->ldb, S(c->beta, c->beta_im), to, (int)c->ldc);                        \
    }                                                                                              \
    static void gemv_##p(const struct blas_matrix_call *c) {                                       \
        blas.p##gemv(COLUMNS, transpose_of(c->transpose_a), (int)c->m, (int)c->n,                  \
                     S(c->alpha, c->alpha_im), c->a, (int)c->lda, c->b, (int)c->ldb,               \
                     S(c->beta, c->beta_im), c->c, (int)c->ldc);                                   \
    }                                                                                              \
    static void syrk_##p(const struct blas_matrix_call *c) {                                       \
        blas.p##syrk(COLUMNS, UPPER + c->triangle, transpose_of(c->transpose_a), (int)c->n,        \
                     (int)c->k, S(c->alpha, c->alpha_im), c->a, (int)c->lda,                       \
                     S(c->beta, c->beta_im), c->c, (int)c->ldc);                                   \
    }                                                                                              \
    static void trsm_##p(const struct blas_matrix_call *c) {                                       \
        blas.p##trsm(COLUMNS, LEFT + c->side, UPPER + c->triangle, transpose_of(c->transpose_a),   \
                     NON_UNIT + c->has_unit_diagonal, (int)c->m, (int)c->n,                        \
                     S(c->alpha, c->alpha_im), c->a, (int)c->lda, c->c, (int)c->ldc);              \
    }

#define GEAM_EDGE 32 /* of the squares that are done one after another, for the cache */
#define IDENTITY(x) (x)

/* c = alpha op(a) + beta op(b), element by element; what has the factor 0 is not read. */
#define GEAM(p, T, CONJUGATE, FACTOR)                                                              \
    static inline T geam_take_##p(const T *from, int64_t ld, int32_t transpose, int64_t i,         \
                                  int64_t j) {                                                     \
        T value = transpose == BLAS_AS_IT_IS ? from[i + j * ld] : from[j + i * ld];                \
        return transpose == BLAS_CONJUGATED ? CONJUGATE(value) : value;                            \
    }                                                                                              \
    static void geam_##p(const struct blas_matrix_call *c) {                                       \
        const T alpha = FACTOR(c->alpha, c->alpha_im);                                             \
        const T beta = c->b != NULL ? FACTOR(c->beta, c->beta_im) : 0;                             \
        for (int64_t j0 = 0; j0 < c->n; j0 += GEAM_EDGE) {                                         \
            for (int64_t i0 = 0; i0 < c->m; i0 += GEAM_EDGE) {                                     \
                int64_t j1 = j0 + GEAM_EDGE < c->n ? j0 + GEAM_EDGE : c->n;                        \
                int64_t i1 = i0 + GEAM_EDGE < c->m ? i0 + GEAM_EDGE : c->m;                        \
                for (int64_t j = j0; j < j1; j++) {                                                \
                    for (int64_t i = i0; i < i1; i++) {                                            \
                        T sum = 0;                                                                 \
                        if (alpha != 0) {                                                          \
                            sum = alpha * geam_take_##p(c->a, c->lda, c->transpose_a, i, j);       \
                        }                                                                          \
                        if (beta != 0) {                                                           \
                            sum += beta * geam_take_##p(c->b, c->ldb, c->transpose_b, i, j);       \
                        }                                                                          \
                        ((T *)c->c)[i + j * c->ldc] = sum;                                         \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

#define VECTOR_CALLS(p, T, S)                                                                      \
    static void axpy_##p(const struct blas_vector_call *v) {                                       \
        blas.p##axpy((int)v->n, S(v->alpha, v->alpha_im), v->x, (int)v->incx, v->y, (int)v->incy); \
    }                                                                                              \
    static void scal_##p(const struct blas_vector_call *v) {                                       \
        blas.p##scal((int)v->n, S(v->alpha, v->alpha_im), (void *)(uintptr_t)v->x, (int)v->incx);  \
    }                                                                                              \
    static void copy_##p(const struct blas_vector_call *v) {                                       \
        blas.p##copy((int)v->n, v->x, (int)v->incx, v->y, (int)v->incy);                           \
    }                                                                                              \
    static void swap_##p(const struct blas_vector_call *v) {                                       \
        blas.p##swap((int)v->n, (void *)(uintptr_t)v->x, (int)v->incx, v->y, (int)v->incy);        \
    }                                                                                              \
    static void iamax_##p(const struct blas_vector_call *v) {                                      \
        *(int64_t *)v->result =                                                                    \
            v->n > 0 ? (int64_t)blas.i##p##amax((int)v->n, v->x, (int)v->incx) + 1 : 0;            \
    }

#define REAL_CALLS(p, T, S)                                                                        \
    MATRIX_CALLS(p, T, S)                                                                          \
    VECTOR_CALLS(p, T, S)                                                                          \
    static T factor_##p(double re, double im) {                                                    \
        (void)im;                                                                                  \
        return (T)re;                                                                              \
    }                                                                                              \
    GEAM(p, T, IDENTITY, factor_##p)                                                               \
    static void ger_##p(const struct blas_matrix_call *c) {                                        \
        blas.p##ger(COLUMNS, (int)c->m, (int)c->n, (T)c->alpha, c->a, (int)c->lda, c->b,           \
                    (int)c->ldb, c->c, (int)c->ldc);                                               \
    }                                                                                              \
    static void dot_##p(const struct blas_vector_call *v) {                                        \
        *(T *)v->result = blas.p##dot((int)v->n, v->x, (int)v->incx, v->y, (int)v->incy);          \
    }                                                                                              \
    static void rot_##p(const struct blas_vector_call *v) {                                        \
        blas.p##rot((int)v->n, (void *)(uintptr_t)v->x, (int)v->incx, v->y, (int)v->incy,          \
                    (T)v->alpha, (T)v->beta);                                                      \
    }                                                                                              \
    static void nrm2_##p(const struct blas_vector_call *v) {                                       \
        *(T *)v->result = blas.p##nrm2((int)v->n, v->x, (int)v->incx);                             \
    }                                                                                              \
    static void asum_##p(const struct blas_vector_call *v) {                                       \
        *(T *)v->result = blas.p##asum((int)v->n, v->x, (int)v->incx);                             \
    }

#define COMPLEX_CALLS(p, r, T, R, S, CONJUGATE)                                                    \
    MATRIX_CALLS(p, T, S)                                                                          \
    VECTOR_CALLS(p, T, S)                                                                          \
    static T factor_##p(double re, double im) {                                                    \
        R parts[2] = {(R)re, (R)im};                                                               \
        T factor;                                                                                  \
        memcpy(&factor, parts, sizeof factor);                                                     \
        return factor;                                                                             \
    }                                                                                              \
    GEAM(p, T, CONJUGATE, factor_##p)                                                              \
    static void ger_##p(const struct blas_matrix_call *c) {                                        \
        blas.p##geru(COLUMNS, (int)c->m, (int)c->n, S(c->alpha, c->alpha_im), c->a, (int)c->lda,   \
                     c->b, (int)c->ldb, c->c, (int)c->ldc);                                        \
    }                                                                                              \
    static void dot_##p(const struct blas_vector_call *v) {                                        \
        (v->is_conjugated ? blas.p##dotc_sub : blas.p##dotu_sub)((int)v->n, v->x, (int)v->incx,    \
                                                                 v->y, (int)v->incy, v->result);   \
    }                                                                                              \
    static void rot_##p(const struct blas_vector_call *v) {                                        \
        T *x = (T *)(uintptr_t)v->x, *y = v->y;                                                    \
        for (int64_t i = 0; i < v->n; i++, x += v->incx, y += v->incy) {                           \
            T old = *x;                                                                            \
            *x = (R)v->alpha * old + (R)v->beta * *y;                                              \
            *y = (R)v->alpha * *y - (R)v->beta * old;                                              \
        }                                                                                          \
    }                                                                                              \
    static void nrm2_##p(const struct blas_vector_call *v) {                                       \
        *(R *)v->result = blas.r##nrm2((int)v->n, v->x, (int)v->incx);                             \
    }                                                                                              \
    static void asum_##p(const struct blas_vector_call *v) {                                       \
        *(R *)v->result = blas.r##asum((int)v->n, v->x, (int)v->incx);                             \
    }

REAL_CALLS(s, float, PLAIN_F32)
REAL_CALLS(d, double, PLAIN_F64)
COMPLEX_CALLS(c, sc, float_complex, float, PAIR_F32, conjf)
COMPLEX_CALLS(z, dz, double_complex, double, PAIR_F64, conj)

/* ---- 16-bit numbers ---- */

static float float_of(int32_t type, const void *from, int64_t i) {
    if (type == BLAS_F16) {
        _Float16 value;
        memcpy(&value, (const uint16_t *)from + i, sizeof value);
        return (float)value;
    }
    if (type == BLAS_BF16) {
        uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    return ((const float *)from)[i];
}

/* To the nearest, ties to even. */
static void float_to(int32_t type, void *to, int64_t i, float value) {
    if (type == BLAS_F16) {
        _Float16 half = (_Float16)value;
        memcpy((uint16_t *)to + i, &half, sizeof half);
    } else if (type == BLAS_BF16) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits = isnan(value) ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    } else {
        ((float *)to)[i] = value;
    }
}

/* ---- gemm ---- */

static void gemm_plain(const struct blas_matrix_call *call, const void *a, const void *b, void *c) {
    static void (*const of_type[BLAS_TYPE_COUNT])(const struct blas_matrix_call *, const void *,
                                                  const void *, void *) = {
        [BLAS_F32] = gemm_s, [BLAS_F64] = gemm_d, [BLAS_C64] = gemm_c, [BLAS_C128] = gemm_z};
    of_type[call->type](call, a, b, c);
}

static const uint32_t bytes_of[BLAS_TYPE_COUNT] = {2, 2, 4, 8, 8, 16};

static float epilogue_of(int32_t epilogue, float x) {
    switch (epilogue) {
    case BLAS_RELU:
        return x > 0 || isnan(x) ? x : 0;
    case BLAS_GELU: /* as cuBLAS computes it */
        return 0.5f * x * (1 + tanhf(0.797884561f * (x + 0.044715f * x * x * x)));
    default:
        return x;
    }
}

/* sum + bias, and what comes behind it, into c. */
static void gemm_finish(const struct blas_matrix_call *call, const float *sum, int64_t ld_sum,
                        void *c) {
    for (int64_t j = 0; j < call->n; j++) {
        for (int64_t i = 0; i < call->m; i++) {
            float value = sum[i + j * ld_sum];
            value += call->bias != NULL ? float_of(call->c_type, call->bias, i) : 0;
            float_to(call->c_type, c, i + j * call->ldc, epilogue_of(call->epilogue, value));
        }
    }
}

/* Rows and columns as they lie, widened. */
static float *widen(int32_t type, const void *from, int64_t rows, int64_t columns, int64_t ld) {
    float *wide = malloc((size_t)(rows * columns + 1) * sizeof *wide);
    for (int64_t j = 0; wide != NULL && j < columns; j++) {
        for (int64_t i = 0; i < rows; i++) {
            wide[i + j * rows] = float_of(type, from, i + j * ld);
        }
    }
    return wide;
}

/* In f32, from which what comes out is rounded once. */
static gpulua_status gemm_narrow(const struct blas_matrix_call *call, const void *a, const void *b,
                                 void *c, struct backend_error *error) {
    bool turns_a = call->transpose_a != BLAS_AS_IT_IS, turns_b = call->transpose_b != BLAS_AS_IT_IS;
    struct blas_matrix_call wide = *call;
    wide.type = BLAS_F32;
    wide.lda = turns_a ? call->k : call->m;
    wide.ldb = turns_b ? call->n : call->k;
    wide.ldc = call->m;
    float *wide_a = widen(call->type, a, wide.lda, turns_a ? call->m : call->k, call->lda);
    float *wide_b = widen(call->type, b, wide.ldb, turns_b ? call->k : call->n, call->ldb);
    float *wide_c = call->beta != 0 ? widen(call->c_type, c, call->m, call->n, call->ldc)
                                    : malloc((size_t)(call->m * call->n + 1) * sizeof(float));
    gpulua_status status = GPULUA_OK;
    wide.lda = wide.lda > 0 ? wide.lda : 1;
    wide.ldb = wide.ldb > 0 ? wide.ldb : 1;
    wide.ldc = wide.ldc > 0 ? wide.ldc : 1;
    if (wide_a == NULL || wide_b == NULL || wide_c == NULL) {
        status = gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                  "no host memory for the matrices as f32");
    } else {
        gemm_s(&wide, wide_a, wide_b, wide_c);
        gemm_finish(call, wide_c, call->m, c);
    }
    free(wide_a);
    free(wide_b);
    free(wide_c);
    return status;
}

static gpulua_status run_gemm(void *made, const void *args, struct backend_error *error) {
    (void)made;
    const struct blas_matrix_call *call = args;
    if (!matrix_fits(call, error)) {
        return error->status;
    }
    uint32_t bytes = bytes_of[call->type], c_bytes = bytes_of[call->c_type];
    gpulua_status status = GPULUA_OK;
    for (int64_t i = 0; i < call->batch && status == GPULUA_OK; i++) {
        const uint8_t *a = (const uint8_t *)call->a + i * call->stride_a * bytes;
        const uint8_t *b = (const uint8_t *)call->b + i * call->stride_b * bytes;
        uint8_t *c = (uint8_t *)call->c + i * call->stride_c * c_bytes;
        if (call->type == BLAS_F16 || call->type == BLAS_BF16) {
            status = gemm_narrow(call, a, b, c, error);
            continue;
        }
        gemm_plain(call, a, b, c);
        if (call->bias != NULL || call->epilogue != BLAS_NO_EPILOGUE) {
            gemm_finish(call, (const float *)(const void *)c, call->ldc, c);
        }
    }
    return status;
}

/* ---- the others ---- */

#define RUN(name, struct_type, check)                                                              \
    static gpulua_status run_##name(void *made, const void *args, struct backend_error *error) {   \
        (void)made;                                                                                \
        static void (*const of_type[BLAS_TYPE_COUNT])(const struct struct_type *) = {              \
            [BLAS_F32] = name##_s,                                                                 \
            [BLAS_F64] = name##_d,                                                                 \
            [BLAS_C64] = name##_c,                                                                 \
            [BLAS_C128] = name##_z};                                                               \
        const struct struct_type *call = args;                                                     \
        if (!check(call, error)) {                                                                 \
            return error->status;                                                                  \
        }                                                                                          \
        if (of_type[call->type] == NULL) {                                                         \
            return wrong_type(#name, error);                                                       \
        }                                                                                          \
        of_type[call->type](call);                                                                 \
        return GPULUA_OK;                                                                          \
    }

static bool vector_fits(const struct blas_vector_call *call, struct backend_error *error) {
    const int64_t sizes[] = {call->n, call->incx, call->incy};
    return fits(sizes, sizeof sizes / sizeof *sizes, error);
}

RUN(gemv, blas_matrix_call, matrix_fits)
RUN(ger, blas_matrix_call, matrix_fits)
RUN(geam, blas_matrix_call, matrix_fits)
RUN(syrk, blas_matrix_call, matrix_fits)
RUN(trsm, blas_matrix_call, matrix_fits)
RUN(axpy, blas_vector_call, vector_fits)
RUN(scal, blas_vector_call, vector_fits)
RUN(copy, blas_vector_call, vector_fits)
RUN(swap, blas_vector_call, vector_fits)
RUN(rot, blas_vector_call, vector_fits)
RUN(dot, blas_vector_call, vector_fits)
RUN(nrm2, blas_vector_call, vector_fits)
RUN(asum, blas_vector_call, vector_fits)
RUN(iamax, blas_vector_call, vector_fits)

static const struct cpu_library_call calls[] = {
#define X(name, run, kind, a, b, c, factors) {#name, run_##run, BLAS_ARGS_BYTES_##kind},
    BLAS_CALLS(X)
#undef X
};

const struct cpu_library gpu_cpu_blas = {
    .name = "blas",
    .open = open_blas,
    .calls = calls,
    .call_count = sizeof calls / sizeof *calls,
    .description = BLAS_DESCRIPTION,
};
