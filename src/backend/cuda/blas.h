/* Inside the library "blas" on CUDA: blas.c (cuBLAS), blas_epilogue.c (cuBLASLt). */
#ifndef GPU_CUDA_BLAS_H
#define GPU_CUDA_BLAS_H

#include <cublasLt.h>
#include <cublas_v2.h>

#include "backend/blas.h"
#include "backend/cuda/toolkit.h"

/* X(name): of a type that real and complex numbers have. */
#define BLAS_TYPE_TABLE(X, T)                                                                      \
    X(cublas##T##gemv_v2_64)                                                                       \
    X(cublas##T##geam_64)                                                                          \
    X(cublas##T##syrk_v2_64)                                                                       \
    X(cublas##T##trsm_v2_64)                                                                       \
    X(cublas##T##axpy_v2_64)                                                                       \
    X(cublas##T##scal_v2_64)                                                                       \
    X(cublas##T##copy_v2_64)                                                                       \
    X(cublas##T##swap_v2_64)
/* clang-format off */
#define BLAS_TABLE(X)                                                                              \
    X(cublasCreate_v2) X(cublasDestroy_v2) X(cublasSetStream_v2) X(cublasSetWorkspace_v2)          \
    X(cublasSetPointerMode_v2) X(cublasGetStatusString) X(cublasGemmEx_64)                         \
    X(cublasGemmStridedBatchedEx_64)                                                               \
    BLAS_TYPE_TABLE(X, S) BLAS_TYPE_TABLE(X, D) BLAS_TYPE_TABLE(X, C) BLAS_TYPE_TABLE(X, Z)        \
    X(cublasSger_v2_64) X(cublasDger_v2_64) X(cublasCgeru_v2_64) X(cublasZgeru_v2_64)              \
    X(cublasSrot_v2_64) X(cublasDrot_v2_64) X(cublasCsrot_v2_64) X(cublasZdrot_v2_64)              \
    X(cublasSdot_v2_64) X(cublasDdot_v2_64) X(cublasCdotu_v2_64) X(cublasZdotu_v2_64)              \
    X(cublasCdotc_v2_64) X(cublasZdotc_v2_64)                                                      \
    X(cublasSnrm2_v2_64) X(cublasDnrm2_v2_64) X(cublasScnrm2_v2_64) X(cublasDznrm2_v2_64)          \
    X(cublasSasum_v2_64) X(cublasDasum_v2_64) X(cublasScasum_v2_64) X(cublasDzasum_v2_64)          \
    X(cublasIsamax_v2_64) X(cublasIdamax_v2_64) X(cublasIcamax_v2_64) X(cublasIzamax_v2_64)
#define BLAS_LT_TABLE(X)                                                                           \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmul) X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate)   \
    X(cublasLtMatrixLayoutDestroy) X(cublasLtMatrixLayoutSetAttribute)                             \
    X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy)                           \
    X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic)
/* clang-format on */

/* Everything that decides what cuBLASLt does for a product, except addresses and factors. Compared
 * byte by byte. */
struct blas_product {
    int64_t m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, batch;
    uint64_t workspace_bytes;
    int32_t type, c_type, transpose_a, transpose_b, epilogue, may_round;
    uint32_t has_bias, adds; /* beta is not 0 */
    uint32_t align_a, align_b, align_c, align_bias;
};

#define BLAS_PLANS_MAX 64u

struct blas_plan {
    struct blas_product product;
    uint64_t used; /* clock of its last use; 0: free */
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t how;
};

struct cuda_blas {
    cublasHandle_t handle;
    /* What the handle is set to. */
    CUstream stream;
    void *workspace;
    uint64_t workspace_bytes;
    bool has_stream, has_device_results;
    cublasLtHandle_t lt; /* made when first needed */
    void *lt_library;
    uint64_t clock;
    struct blas_plan plans[BLAS_PLANS_MAX];
#define X(name) __typeof__(name) *name;
    BLAS_TABLE(X)
    BLAS_LT_TABLE(X)
#undef X
};

/* A factor in the type that a product is computed in. */
union blas_factor {
    float f32;
    double f64;
    cuComplex c64;
    cuDoubleComplex c128;
};
union blas_factor gpu_cuda_blas_factor(int32_t type, double re, double im);
cudaDataType_t gpu_cuda_blas_type(int32_t type);
cublasComputeType_t gpu_cuda_blas_compute(const struct blas_matrix_call *call);
gpulua_status gpu_cuda_blas_result(const struct cuda_blas *blas, cublasStatus_t result,
                                   const char *call, struct backend_error *error);
#define BLAS(blas, error, call) gpu_cuda_blas_result((blas), (blas)->call, #call, (error))

/* A product with a bias or something else behind it. */
gpulua_status gpu_cuda_blas_epilogue(struct cuda_blas *blas, struct backend_stream *stream,
                                     const struct blas_matrix_call *call,
                                     struct backend_error *error);
void gpu_cuda_blas_epilogue_close(struct cuda_blas *blas);

#endif
