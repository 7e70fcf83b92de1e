/* The library "blas" on CUDA: cuBLAS. One handle for each device, which is set to the stream and
 * the workspace of each call. The workspace is an argument, so that the script's side knows who
 * uses it when: nothing runs in memory that cuBLAS took for itself. Calls have the 64-bit
 * interface. */
#include "backend/cuda/blas.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static gpulua_status load(struct cuda_blas *blas, struct backend_error *error) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", NULL};
    static const char *const lt_names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    void *library = NULL;
    /* First, because the other needs it, and may not find it by itself. */
    gpulua_status status =
        gpu_cuda_toolkit_load("cuBLASLt (libcublasLt, part of the CUDA toolkit)",
                              "GPULUA_LIBCUBLASLT", lt_names, &blas->lt_library, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_toolkit_load("cuBLAS (libcublas, part of the CUDA toolkit)",
                                       "GPULUA_LIBCUBLAS", names, &library, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    struct {
        void *library;
        const char *name;
        void *to;
    } const wanted[] = {
#define X(name) {library, #name, &blas->name},
        BLAS_TABLE(X)
#undef X
#define X(name) {blas->lt_library, #name, &blas->name},
            BLAS_LT_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *symbol = dlsym(wanted[i].library, wanted[i].name);
        if (symbol == NULL) {
            return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,
                                    "the library that is taken for cuBLAS has no %s: version 12 or "
                                    "newer is needed",
                                    wanted[i].name);
        }
        memcpy(wanted[i].to, &symbol, sizeof symbol);
    }
    return GPULUA_OK;
}

gpulua_status gpu_cuda_blas_result(const struct cuda_blas *blas, cublasStatus_t result,
                                   const char *call, struct backend_error *error) {
    if (__builtin_expect(result == CUBLAS_STATUS_SUCCESS, 1)) {
        return GPULUA_OK;
    }
    gpulua_status status = result == CUBLAS_STATUS_ALLOC_FAILED    ? GPULUA_OUT_OF_MEMORY
                           : result == CUBLAS_STATUS_NOT_SUPPORTED ? GPULUA_UNSUPPORTED
                                                                   : GPULUA_LIBRARY_ERROR;
    return gpu_backend_fail(error, status, (int32_t)result, "%.*s: %s", (int)strcspn(call, "("),
                            call, blas->cublasGetStatusString(result));
}

static gpulua_status open_blas(struct backend_device *device, struct backend_error *error) {
    if (device->blas != NULL) {
        return GPULUA_OK;
    }
    struct cuda_blas *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    gpulua_status status = load(made, error);
    if (status == GPULUA_OK) {
        status = BLAS(made, error, cublasCreate_v2(&made->handle));
    }
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    device->blas = made;
    return GPULUA_OK;
}

/* Of a lost device only our own memory is freed. */
void gpu_cuda_blas_close(struct backend_device *device) {
    struct cuda_blas *blas = device->blas;
    if (blas != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        gpu_cuda_blas_epilogue_close(blas);
        (void)blas->cublasDestroy_v2(blas->handle);
    }
    device->blas = NULL;
    free(blas);
}

/* ---- types ---- */

union blas_factor gpu_cuda_blas_factor(int32_t type, double re, double im) {
    switch (type) {
    case BLAS_F64:
        return (union blas_factor){.f64 = re};
    case BLAS_C64:
        return (union blas_factor){.c64 = {(float)re, (float)im}};
    case BLAS_C128:
        return (union blas_factor){.c128 = {re, im}};
    default:
        return (union blas_factor){.f32 = (float)re};
    }
}

cudaDataType_t gpu_cuda_blas_type(int32_t type) {
    static const cudaDataType_t types[BLAS_TYPE_COUNT] = {CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F,
                                                          CUDA_R_64F, CUDA_C_32F,  CUDA_C_64F};
    return types[type];
}

cublasComputeType_t gpu_cuda_blas_compute(const struct blas_matrix_call *call) {
    bool is_wide = call->type == BLAS_F64 || call->type == BLAS_C128;
    bool may_round = call->may_round != 0 && (call->type == BLAS_F32 || call->type == BLAS_C64);
    return is_wide     ? CUBLAS_COMPUTE_64F
           : may_round ? CUBLAS_COMPUTE_32F_FAST_TF32
                       : CUBLAS_COMPUTE_32F;
}

static cublasOperation_t operation(int32_t transpose) {
    return (cublasOperation_t)transpose; /* CUBLAS_OP_N, _T, _C are 0, 1, 2 as well */
}
static_assert((int)CUBLAS_OP_N == BLAS_AS_IT_IS && (int)CUBLAS_OP_T == BLAS_TRANSPOSED &&
                  (int)CUBLAS_OP_C == BLAS_CONJUGATED,
              "operation");

/* ---- calls ---- */

/* Setting the stream takes the workspace away. */
static gpulua_status prepare(struct cuda_blas *blas, const struct backend_stream *stream,
                             void *workspace, uint64_t workspace_bytes, bool has_device_results,
                             struct backend_error *error) {
    gpulua_status status = GPULUA_OK;
    /* Setting the stream also takes away the workspace, which another handle's buffer was. */
    if (!blas->has_stream || blas->stream != stream->handle ||
        (workspace == NULL && blas->workspace != NULL)) {
        status = BLAS(blas, error, cublasSetStream_v2(blas->handle, (cudaStream_t)stream->handle));
        blas->stream = stream->handle;
        blas->has_stream = status == GPULUA_OK;
        blas->workspace = NULL;
        blas->workspace_bytes = 0;
    }
    if (status == GPULUA_OK && workspace != NULL &&
        (blas->workspace != workspace || blas->workspace_bytes != workspace_bytes)) {
        status = BLAS(blas, error, cublasSetWorkspace_v2(blas->handle, workspace, workspace_bytes));
        blas->workspace = status == GPULUA_OK ? workspace : NULL;
        blas->workspace_bytes = workspace_bytes;
    }
    if (status == GPULUA_OK && blas->has_device_results != has_device_results) {
        status = BLAS(blas, error,
                      cublasSetPointerMode_v2(blas->handle, has_device_results
                                                                ? CUBLAS_POINTER_MODE_DEVICE
                                                                : CUBLAS_POINTER_MODE_HOST));
        if (status == GPULUA_OK) {
            blas->has_device_results = has_device_results;
        }
    }
    return status;
}

/* Begins the function of a call, which finds the handle as it has to be: `blas`, `call`, and of
 * matrices `alpha` and `beta`, of vectors `alpha`. */
#define MATRIX_CALL(name)                                                                          \
    static gpulua_status name(struct cuda_blas *blas, struct backend_stream *stream,               \
                              const struct blas_matrix_call *call, const void *alpha,              \
                              const void *beta, struct backend_error *error);                      \
    static gpulua_status run_##name(struct backend_device *device, void *made,                     \
                                    struct backend_stream *stream, const void *args,               \
                                    struct backend_error *error) {                                 \
        (void)made;                                                                                \
        const struct blas_matrix_call *call = args;                                                \
        const union blas_factor alpha =                                                            \
            gpu_cuda_blas_factor(call->type, call->alpha, call->alpha_im);                         \
        const union blas_factor beta =                                                             \
            gpu_cuda_blas_factor(call->type, call->beta, call->beta_im);                           \
        gpulua_status status =                                                                     \
            prepare(device->blas, stream, call->workspace, call->workspace_bytes, false, error);   \
        return status != GPULUA_OK ? status                                                        \
                                   : name(device->blas, stream, call, &alpha, &beta, error);       \
    }                                                                                              \
    static gpulua_status name(                                                                     \
        struct cuda_blas *blas, __attribute__((unused)) struct backend_stream *stream,             \
        const struct blas_matrix_call *call, __attribute__((unused)) const void *alpha,            \
        __attribute__((unused)) const void *beta, struct backend_error *error)
#define VECTOR_CALL(name, has_device_results)                                                      \
    static gpulua_status name(struct cuda_blas *blas, const struct blas_vector_call *call,         \
                              const void *alpha, struct backend_error *error);                     \
    static gpulua_status run_##name(struct backend_device *device, void *made,                     \
                                    struct backend_stream *stream, const void *args,               \
                                    struct backend_error *error) {                                 \
        (void)made;                                                                                \
        const struct blas_vector_call *call = args;                                                \
        const union blas_factor alpha =                                                            \
            gpu_cuda_blas_factor(call->type, call->alpha, call->alpha_im);                         \
        gpulua_status status = prepare(device->blas, stream, call->workspace,                      \
                                       call->workspace_bytes, has_device_results, error);          \
        return status != GPULUA_OK ? status : name(device->blas, call, &alpha, error);             \
    }                                                                                              \
    static gpulua_status name(struct cuda_blas *blas, const struct blas_vector_call *call,         \
                              __attribute__((unused)) const void *alpha,                           \
                              struct backend_error *error)

/* The call of each type that it has. */
#define BY_TYPE(name_s, name_d, name_c, name_z, ARGUMENTS)                                         \
    call->type == BLAS_F32    ? BLAS(blas, error, name_s ARGUMENTS(float))                         \
    : call->type == BLAS_F64  ? BLAS(blas, error, name_d ARGUMENTS(double))                        \
    : call->type == BLAS_C64  ? BLAS(blas, error, name_c ARGUMENTS(cuComplex))                     \
    : call->type == BLAS_C128 ? BLAS(blas, error, name_z ARGUMENTS(cuDoubleComplex))               \
                              : gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0, "of this type")

MATRIX_CALL(gemm) {
    if (call->bias != NULL || call->epilogue != BLAS_NO_EPILOGUE) {
        return gpu_cuda_blas_epilogue(blas, stream, call, error);
    }
    cudaDataType_t type = gpu_cuda_blas_type(call->type);
    cudaDataType_t c_type = gpu_cuda_blas_type(call->c_type);
    cublasComputeType_t compute = gpu_cuda_blas_compute(call);
    if (call->batch == 1) {
        return BLAS(blas, error,
                    cublasGemmEx_64(blas->handle, operation(call->transpose_a),
                                    operation(call->transpose_b), call->m, call->n, call->k, alpha,
                                    call->a, type, call->lda, call->b, type, call->ldb, beta,
                                    call->c, c_type, call->ldc, compute, CUBLAS_GEMM_DEFAULT));
    }
    return BLAS(blas, error,
                cublasGemmStridedBatchedEx_64(
                    blas->handle, operation(call->transpose_a), operation(call->transpose_b),
                    call->m, call->n, call->k, alpha, call->a, type, call->lda, call->stride_a,
                    call->b, type, call->ldb, call->stride_b, beta, call->c, c_type, call->ldc,
                    call->stride_c, call->batch, compute, CUBLAS_GEMM_DEFAULT));
}

#define GEMV(T)                                                                                    \
    (blas->handle, operation(call->transpose_a), call->m, call->n, (const T *)alpha,               \
     (const T *)call->a, call->lda, (const T *)call->b, call->ldb, (const T *)beta, (T *)call->c,  \
     call->ldc)
MATRIX_CALL(gemv) {
    return BY_TYPE(cublasSgemv_v2_64, cublasDgemv_v2_64, cublasCgemv_v2_64, cublasZgemv_v2_64,
                   GEMV);
}

#define GER(T)                                                                                     \
    (blas->handle, call->m, call->n, (const T *)alpha, (const T *)call->a, call->lda,              \
     (const T *)call->b, call->ldb, (T *)call->c, call->ldc)
MATRIX_CALL(ger) {
    return BY_TYPE(cublasSger_v2_64, cublasDger_v2_64, cublasCgeru_v2_64, cublasZgeru_v2_64, GER);
}

#define GEAM(T)                                                                                    \
    (blas->handle, operation(call->transpose_a), operation(call->transpose_b), call->m, call->n,   \
     (const T *)alpha, (const T *)call->a, call->lda,                                              \
     (const T *)(call->b != NULL ? beta : &nothing),                                               \
     (const T *)(call->b != NULL ? call->b : call->a), call->ldb, (T *)call->c, call->ldc)
MATRIX_CALL(geam) {
    static const union blas_factor nothing;
    return BY_TYPE(cublasSgeam_64, cublasDgeam_64, cublasCgeam_64, cublasZgeam_64, GEAM);
}

static cublasFillMode_t fill_of(const struct blas_matrix_call *call) {
    return call->triangle == BLAS_UPPER ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
}

#define SYRK(T)                                                                                    \
    (blas->handle, fill_of(call), operation(call->transpose_a), call->n, call->k,                  \
     (const T *)alpha, (const T *)call->a, call->lda, (const T *)beta, (T *)call->c, call->ldc)
MATRIX_CALL(syrk) {
    return BY_TYPE(cublasSsyrk_v2_64, cublasDsyrk_v2_64, cublasCsyrk_v2_64, cublasZsyrk_v2_64,
                   SYRK);
}

#define TRSM(T)                                                                                    \
    (blas->handle, call->side == BLAS_LEFT ? CUBLAS_SIDE_LEFT : CUBLAS_SIDE_RIGHT, fill_of(call),  \
     operation(call->transpose_a),                                                                 \
     call->has_unit_diagonal ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT, call->m, call->n,          \
     (const T *)alpha, (const T *)call->a, call->lda, (T *)call->c, call->ldc)
MATRIX_CALL(trsm) {
    return BY_TYPE(cublasStrsm_v2_64, cublasDtrsm_v2_64, cublasCtrsm_v2_64, cublasZtrsm_v2_64,
                   TRSM);
}

#define AXPY(T)                                                                                    \
    (blas->handle, call->n, (const T *)alpha, (const T *)call->x, call->incx, (T *)call->y,        \
     call->incy)
VECTOR_CALL(axpy, false) {
    return BY_TYPE(cublasSaxpy_v2_64, cublasDaxpy_v2_64, cublasCaxpy_v2_64, cublasZaxpy_v2_64,
                   AXPY);
}

#define SCAL(T) (blas->handle, call->n, (const T *)alpha, (T *)(uintptr_t)call->x, call->incx)
VECTOR_CALL(scal, false) {
    return BY_TYPE(cublasSscal_v2_64, cublasDscal_v2_64, cublasCscal_v2_64, cublasZscal_v2_64,
                   SCAL);
}

#define COPY(T) (blas->handle, call->n, (const T *)call->x, call->incx, (T *)call->y, call->incy)
VECTOR_CALL(copy, false) {
    return BY_TYPE(cublasScopy_v2_64, cublasDcopy_v2_64, cublasCcopy_v2_64, cublasZcopy_v2_64,
                   COPY);
}

#define SWAP(T)                                                                                    \
    (blas->handle, call->n, (T *)(uintptr_t)call->x, call->incx, (T *)call->y, call->incy)
VECTOR_CALL(swap, false) {
    return BY_TYPE(cublasSswap_v2_64, cublasDswap_v2_64, cublasCswap_v2_64, cublasZswap_v2_64,
                   SWAP);
}

VECTOR_CALL(rot, false) {
    const float c32 = (float)call->alpha, s32 = (float)call->beta;
    const double c64 = call->alpha, s64 = call->beta;
    void *x = (void *)(uintptr_t)call->x, *y = call->y;
    switch (call->type) {
    case BLAS_F32:
        return BLAS(
            blas, error,
            cublasSrot_v2_64(blas->handle, call->n, x, call->incx, y, call->incy, &c32, &s32));
    case BLAS_F64:
        return BLAS(
            blas, error,
            cublasDrot_v2_64(blas->handle, call->n, x, call->incx, y, call->incy, &c64, &s64));
    case BLAS_C64:
        return BLAS(
            blas, error,
            cublasCsrot_v2_64(blas->handle, call->n, x, call->incx, y, call->incy, &c32, &s32));
    default:
        return BLAS(
            blas, error,
            cublasZdrot_v2_64(blas->handle, call->n, x, call->incx, y, call->incy, &c64, &s64));
    }
}

#define DOT(T)                                                                                     \
    (blas->handle, call->n, (const T *)call->x, call->incx, (const T *)call->y, call->incy,        \
     (T *)call->result)
VECTOR_CALL(dot, true) {
    if (call->is_conjugated && call->type == BLAS_C64) {
        return BLAS(blas, error, cublasCdotc_v2_64 DOT(cuComplex));
    }
    if (call->is_conjugated && call->type == BLAS_C128) {
        return BLAS(blas, error, cublasZdotc_v2_64 DOT(cuDoubleComplex));
    }
    return BY_TYPE(cublasSdot_v2_64, cublasDdot_v2_64, cublasCdotu_v2_64, cublasZdotu_v2_64, DOT);
}

#define ONE(T) (blas->handle, call->n, (const T *)call->x, call->incx, call->result)
VECTOR_CALL(nrm2, true) {
    return BY_TYPE(cublasSnrm2_v2_64, cublasDnrm2_v2_64, cublasScnrm2_v2_64, cublasDznrm2_v2_64,
                   ONE);
}
VECTOR_CALL(asum, true) {
    return BY_TYPE(cublasSasum_v2_64, cublasDasum_v2_64, cublasScasum_v2_64, cublasDzasum_v2_64,
                   ONE);
}
VECTOR_CALL(iamax, true) {
    return BY_TYPE(cublasIsamax_v2_64, cublasIdamax_v2_64, cublasIcamax_v2_64, cublasIzamax_v2_64,
                   ONE);
}

static const struct cuda_toolkit_call calls[] = {
#define X(name, run, kind, a, b, c, factors) {#name, run_##run, BLAS_ARGS_BYTES_##kind},
    BLAS_CALLS(X)
#undef X
};

const struct cuda_toolkit gpu_cuda_blas = {
    .name = "blas",
    .open = open_blas,
    .calls = calls,
    .call_count = sizeof calls / sizeof calls[0],
    .description = BLAS_DESCRIPTION,
    .calls_repeat = true,
};
