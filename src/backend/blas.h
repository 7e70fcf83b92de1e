/* The library "blas" as backends offer it: its calls and what they are given.
 *
 * Each call is a kernel of the module that library_open makes, and its arguments are one of the two
 * structs below, laid out as the signatures in the description say. Matrices are stored column by
 * column here, as BLAS has it; lua/gpulua/blas.lua turns rows into that. Pointers that a call has
 * no use for are null. Sizes and leading dimensions count elements. */
#ifndef GPU_BACKEND_BLAS_H
#define GPU_BACKEND_BLAS_H

#include <stddef.h>
#include <stdint.h>

enum blas_type { BLAS_F16, BLAS_BF16, BLAS_F32, BLAS_F64, BLAS_C64, BLAS_C128, BLAS_TYPE_COUNT };
enum blas_transpose { BLAS_AS_IT_IS, BLAS_TRANSPOSED, BLAS_CONJUGATED };
enum blas_triangle { BLAS_UPPER, BLAS_LOWER };
enum blas_side { BLAS_LEFT, BLAS_RIGHT };
enum blas_epilogue { BLAS_NO_EPILOGUE, BLAS_RELU, BLAS_GELU };

/* Calls that have a matrix in them. Complex numbers have their imaginary part in ..._im. */
struct blas_matrix_call {
    const void *a, *b;
    void *c;
    const void *bias; /* m elements of c's type, added to each column of c; gemm alone */
    void *workspace;  /* for the library while the call is at work */
    int64_t m, n, k;
    int64_t lda, ldb, ldc; /* of a vector: from one element to the next */
    int64_t stride_a, stride_b, stride_c, batch;
    uint64_t workspace_bytes;
    double alpha, alpha_im, beta, beta_im;
    int32_t type;   /* enum blas_type: of a and b */
    int32_t c_type; /* of c: the same, or f32 where a and b are f16 or bf16 */
    int32_t transpose_a, transpose_b;
    int32_t triangle, side, has_unit_diagonal;
    int32_t epilogue;
    int32_t may_round; /* f32: products may be computed from tf32 */
};

struct blas_vector_call {
    const void *x;
    void *y;      /* scal: none, x is what is changed */
    void *result; /* one element: of the type, of its real type (nrm2, asum), or i64 (iamax: from 1,
                     0 where there is none) */
    void *workspace;
    int64_t n, incx, incy;
    uint64_t workspace_bytes;
    double alpha, alpha_im; /* rot: the cosine in alpha, the sine in beta */
    double beta;
    int32_t type;
    int32_t is_conjugated; /* dot: x */
};

/* clang-format off */
/* X(name, what does it, kind of call, the three pointers: what users call them, and how they are accessed; the factors
   that it has) */
#define BLAS_CALLS(X)                                                                                                  \
    X(gemm,     gemm, MATRIX, "b: in", "a: in", "c: out", ALPHA)      /* c = alpha a b + beta c, where beta is 0 .. */ \
    X(gemm_add, gemm, MATRIX, "b: in", "a: in", "c: inout", ALPHA_BETA) /* .. or not, here and below */                \
    X(gemv,     gemv, MATRIX, "a: in", "x: in", "y: out", ALPHA)      /* b and c are vectors */                        \
    X(gemv_add, gemv, MATRIX, "a: in", "x: in", "y: inout", ALPHA_BETA)                                                \
    X(ger,      ger,  MATRIX, "y: in", "x: in", "a: inout", ALPHA)      /* c += alpha a b^T: a and b are vectors */    \
    X(geam,     geam, MATRIX, "a: in", "b: in", "c: out", ALPHA_BETA) /* c = alpha a + beta b .. */                    \
    X(geam_one, geam, MATRIX, "a: in", "in", "c: out", ALPHA)         /* .. without b */                               \
    X(syrk,     syrk, MATRIX, "a: in", "in", "c: out", ALPHA)      /* c = alpha a a^T + beta c, one triangle */        \
    X(syrk_add, syrk, MATRIX, "a: in", "in", "c: inout", ALPHA_BETA)                                                   \
    X(trsm,     trsm, MATRIX, "a: in", "in", "b: inout", ALPHA)      /* c = alpha a^-1 c, or c a^-1 */                 \
    X(axpy,     axpy, VECTOR, "x: in", "y: inout", "out", ALPHA)                                                       \
    X(scal,     scal, VECTOR, "x: inout", "in", "out", ALPHA)                                                          \
    X(copy,     copy, VECTOR, "x: in", "y: out", "out", NONE)                                                          \
    X(swap,     swap, VECTOR, "x: inout", "y: inout", "out", NONE)                                                     \
    X(rot,      rot,  VECTOR, "x: inout", "y: inout", "out", ROT)                                                      \
    X(dot,      dot,  VECTOR, "x: in", "y: in", "out: out", NONE)                                                      \
    X(nrm2,     nrm2, VECTOR, "x: in", "in", "out: out", NONE)                                                         \
    X(asum,     asum, VECTOR, "x: in", "in", "out: out", NONE)                                                         \
    X(iamax,    iamax, VECTOR, "x: in", "in", "out: out", NONE)
/* clang-format on */

/* What has a name may be bound in graphs, a factor with its imaginary part: not what decides which
 * memory a call reaches to, and no factor that it does not have. */
#define BLAS_MATRIX_NONE "f64, f64, f64, f64"
#define BLAS_MATRIX_ALPHA "alpha: f64, alpha_im: f64, f64, f64"
#define BLAS_MATRIX_ALPHA_BETA "alpha: f64, alpha_im: f64, beta: f64, beta_im: f64"
#define BLAS_VECTOR_NONE "f64, f64, f64"
#define BLAS_VECTOR_ALPHA "alpha: f64, alpha_im: f64, f64"
#define BLAS_VECTOR_ROT "c: f64, f64, s: f64"
#define BLAS_SIGNATURE_MATRIX(a, b, c, factors)                                                    \
    a " void*, " b " void*, " c " void*, bias: in void*, out void*, i64, i64, i64, i64, i64, "     \
      "i64, i64, i64, i64, i64, u64, " BLAS_MATRIX_##factors                                       \
        ", i32, i32, i32, i32, i32, i32, i32, i32, i32"
#define BLAS_SIGNATURE_VECTOR(x, y, result, factors)                                               \
    x " void*, " y " void*, " result                                                               \
      " void*, out void*, i64, i64, i64, u64, " BLAS_VECTOR_##factors ", i32, i32"
#define BLAS_DESCRIBE(name, run, kind, a, b, c, factors)                                           \
    "kernel " #name " " BLAS_SIGNATURE_##kind(a, b, c, factors) "\n"
/* What library_open says. */
#define BLAS_DESCRIPTION BLAS_CALLS(BLAS_DESCRIBE)

#define BLAS_ARGS_BYTES_MATRIX sizeof(struct blas_matrix_call)
#define BLAS_ARGS_BYTES_VECTOR sizeof(struct blas_vector_call)

#endif
