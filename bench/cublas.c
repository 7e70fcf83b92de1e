/* Products with cuBLAS alone, in C: what bench/gemm.lua is measured against. Prints `name value
 * unit` lines (medians). Libraries are opened with dlopen, so the program builds anywhere and says
 * so where there is no GPU. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#include <cuda.h>

#define REPEATS 15
#define BURST 20
#define WORKSPACE_BYTES ((size_t)32 << 20)

#define DRIVER(X)                                                                                  \
    X(cuMemFree_v2, CUresult, (CUdeviceptr))                                                       \
    X(cuMemsetD32Async, CUresult, (CUdeviceptr, unsigned, size_t, CUstream))
#include "driver.h"

#define BLAS_TABLE(X)                                                                              \
    X(cublasCreate_v2)                                                                             \
    X(cublasSetStream_v2)                                                                          \
    X(cublasSetWorkspace_v2)                                                                       \
    X(cublasGemmEx_64)                                                                             \
    X(cublasGemmStridedBatchedEx_64)
#define X(name) static __typeof__(name) *b_##name;
BLAS_TABLE(X)
#undef X

static CUstream stream;
static cublasHandle_t handle;

static int blas_open(void) {
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    library = library ? library : dlopen("/usr/local/cuda/lib64/libcublas.so.13", RTLD_NOW);
    library = library ? library : dlopen("libcublas.so.12", RTLD_NOW);
    if (!library) {
        puts("# no cuBLAS here");
        return 0;
    }
#define X(name)                                                                                    \
    *(void **)&b_##name = dlsym(library, #name);                                                   \
    if (!b_##name) {                                                                               \
        puts("# cuBLAS lacks " #name);                                                             \
        return 0;                                                                                  \
    }
    BLAS_TABLE(X)
#undef X
    CUdeviceptr workspace;
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuMemAlloc_v2(&workspace, WORKSPACE_BYTES));
    return b_cublasCreate_v2(&handle) == CUBLAS_STATUS_SUCCESS &&
           b_cublasSetStream_v2(handle, (cudaStream_t)stream) == CUBLAS_STATUS_SUCCESS &&
           b_cublasSetWorkspace_v2(handle, (void *)workspace, WORKSPACE_BYTES) ==
               CUBLAS_STATUS_SUCCESS;
}

struct product {
    int64_t n, batch;
    cudaDataType_t type;
    cublasComputeType_t compute;
    CUdeviceptr a, b, c;
};

static void multiply(const struct product *p) {
    const float one = 1, zero = 0;
    const void *a = (const void *)p->a, *b = (const void *)p->b;
    void *c = (void *)p->c;
    int64_t n = p->n, all = n * n;
    cublasStatus_t status =
        p->batch == 1
            ? b_cublasGemmEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, p->type, n, b,
                                p->type, n, &zero, c, p->type, n, p->compute, CUBLAS_GEMM_DEFAULT)
            : b_cublasGemmStridedBatchedEx_64(
                  handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, p->type, n, all, b, p->type,
                  n, all, &zero, c, p->type, n, all, p->batch, p->compute, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "cuBLAS: error %d\n", (int)status);
        exit(1);
    }
}

static void measure(const char *name, int64_t n, int64_t batch, cudaDataType_t type,
                    cublasComputeType_t compute, int count) {
    struct product p = {.n = n, .batch = batch, .type = type, .compute = compute};
    size_t words = (size_t)(n * n * batch) * (type == CUDA_R_16BF ? 2 : 4) / 4;
    CUdeviceptr *memory[] = {&p.a, &p.b, &p.c};
    for (int i = 0; i < 3; i++) {
        CK(p_cuMemAlloc_v2(memory[i], words * 4));
        CK(p_cuMemsetD32Async(*memory[i], type == CUDA_R_16BF ? 0x3c003c00u : 0x3c000000u, words,
                              stream));
    }
    double enqueue[REPEATS], whole[REPEATS];
    multiply(&p);
    for (int r = 0; r < REPEATS; r++) {
        CK(p_cuStreamSynchronize(stream));
        double start = now_ns();
        for (int i = 0; i < BURST; i++) {
            multiply(&p);
        }
        enqueue[r] = (now_ns() - start) / BURST;
        CK(p_cuStreamSynchronize(stream));
        start = now_ns();
        for (int i = 0; i < count; i++) {
            multiply(&p);
        }
        CK(p_cuStreamSynchronize(stream));
        whole[r] = (now_ns() - start) / count;
    }
    printf("%s_enqueue %.0f ns\n%s %.2f us\n", name, median(enqueue, REPEATS), name,
           median(whole, REPEATS) / 1000);
    for (int i = 0; i < 3; i++) {
        CK(p_cuMemFree_v2(*memory[i]));
    }
}

int main(void) {
    if (!driver_open() || !blas_open()) {
        return 0;
    }
    measure("gemm_64_f32", 64, 1, CUDA_R_32F, CUBLAS_COMPUTE_32F, 2000);
    measure("gemm_512_f32_x64", 512, 64, CUDA_R_32F, CUBLAS_COMPUTE_32F, 100);
    measure("gemm_8192_f32", 8192, 1, CUDA_R_32F, CUBLAS_COMPUTE_32F, 3);
    measure("gemm_8192_tf32", 8192, 1, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, 10);
    measure("gemm_8192_bf16", 8192, 1, CUDA_R_16BF, CUBLAS_COMPUTE_32F, 10);
    return 0;
}
#else
int main(void) {
    puts("# built without cublas_v2.h");
    return 0;
}
#endif
