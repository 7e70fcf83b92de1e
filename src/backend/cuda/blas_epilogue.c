/* Products with a bias and an activation behind them, by cuBLASLt. It is asked once for the best
 * way to do a product, which takes longer than the product; answers are kept, those used last. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/blas.h"

static uint32_t alignment(const void *pointer) {
    uintptr_t low = (uintptr_t)pointer & 255u;
    return low == 0 ? 256u : (uint32_t)(low & (~low + 1u));
}

static struct blas_product product_of(const struct blas_matrix_call *call) {
    struct blas_product product;
    memset(&product, 0, sizeof product); /* compared byte by byte */
    product.m = call->m;
    product.n = call->n;
    product.k = call->k;
    product.lda = call->lda;
    product.ldb = call->ldb;
    product.ldc = call->ldc;
    product.stride_a = call->stride_a;
    product.stride_b = call->stride_b;
    product.stride_c = call->stride_c;
    product.batch = call->batch;
    product.workspace_bytes = call->workspace_bytes;
    product.type = call->type;
    product.c_type = call->c_type;
    product.transpose_a = call->transpose_a;
    product.transpose_b = call->transpose_b;
    product.epilogue = call->epilogue;
    product.may_round = call->may_round;
    product.has_bias = call->bias != NULL;
    product.adds = call->beta != 0;
    product.align_a = alignment(call->a);
    product.align_b = alignment(call->b);
    product.align_c = alignment(call->c);
    product.align_bias = alignment(call->bias);
    return product;
}

static void plan_free(const struct cuda_blas *blas, struct blas_plan *plan) {
    if (plan->what != NULL) {
        (void)blas->cublasLtMatmulDescDestroy(plan->what);
    }
    cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->c};
    for (size_t i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            (void)blas->cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    *plan = (struct blas_plan){0};
}

static gpulua_status layout_make(const struct cuda_blas *blas, int32_t type, int64_t rows,
                                 int64_t columns, int64_t ld, int64_t batch, int64_t stride,
                                 cublasLtMatrixLayout_t *layout, struct backend_error *error) {
    int32_t count = (int32_t)batch;
    gpulua_status status = BLAS(blas, error,
                                cublasLtMatrixLayoutCreate(layout, gpu_cuda_blas_type(type),
                                                           (uint64_t)rows, (uint64_t)columns, ld));
    if (status == GPULUA_OK && batch > 1) {
        status = BLAS(blas, error,
                      cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                       &count, sizeof count));
        status = status != GPULUA_OK
                     ? status
                     : BLAS(blas, error,
                            cublasLtMatrixLayoutSetAttribute(
                                *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                sizeof stride));
    }
    return status;
}

static gpulua_status what_make(const struct cuda_blas *blas, const struct blas_matrix_call *call,
                               cublasLtMatmulDesc_t *what, struct backend_error *error) {
    static const cublasLtEpilogue_t epilogues[][2] = {
        [BLAS_NO_EPILOGUE] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS},
        [BLAS_RELU] = {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS},
        [BLAS_GELU] = {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS}};
    const int32_t transpose_a = call->transpose_a, transpose_b = call->transpose_b;
    const cublasLtEpilogue_t epilogue = epilogues[call->epilogue][call->bias != NULL];
    const cudaDataType_t bias = gpu_cuda_blas_type(call->c_type);
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof transpose_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof transpose_b},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias, sizeof bias},
    };
    gpulua_status status =
        BLAS(blas, error, cublasLtMatmulDescCreate(what, gpu_cuda_blas_compute(call), CUDA_R_32F));
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0] && status == GPULUA_OK; i++) {
        status = BLAS(blas, error,
                      cublasLtMatmulDescSetAttribute(*what, attributes[i].name, attributes[i].value,
                                                     attributes[i].bytes));
    }
    return status;
}

/* The address of the bias, which is no part of what was planned, though its alignment is. */
static gpulua_status bias_set(const struct cuda_blas *blas, const struct blas_plan *plan,
                              const struct blas_matrix_call *call, struct backend_error *error) {
    return call->bias == NULL
               ? GPULUA_OK
               : BLAS(blas, error,
                      cublasLtMatmulDescSetAttribute(plan->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                     &call->bias, sizeof call->bias));
}

static gpulua_status how_find(const struct cuda_blas *blas, const struct blas_product *product,
                              struct blas_plan *plan, struct backend_error *error) {
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &product->workspace_bytes,
         sizeof product->workspace_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &product->align_a, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &product->align_b, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &product->align_c, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &product->align_c, sizeof(uint32_t)},
    };
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    gpulua_status status = BLAS(blas, error, cublasLtMatmulPreferenceCreate(&preference));
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0] && status == GPULUA_OK; i++) {
        status =
            BLAS(blas, error,
                 cublasLtMatmulPreferenceSetAttribute(preference, attributes[i].name,
                                                      attributes[i].value, attributes[i].bytes));
    }
    if (status == GPULUA_OK) {
        status =
            BLAS(blas, error,
                 cublasLtMatmulAlgoGetHeuristic(blas->lt, plan->what, plan->a, plan->b, plan->c,
                                                plan->c, preference, 1, &found, &count));
    }
    if (preference != NULL) {
        (void)blas->cublasLtMatmulPreferenceDestroy(preference);
    }
    if (status == GPULUA_OK && count == 0) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "cuBLASLt has no way to do this product with what comes behind it");
    }
    plan->how = found.algo;
    return status;
}

static gpulua_status plan_make(const struct cuda_blas *blas, const struct blas_matrix_call *call,
                               struct blas_plan *plan, struct backend_error *error) {
    bool turns_a = call->transpose_a != BLAS_AS_IT_IS, turns_b = call->transpose_b != BLAS_AS_IT_IS;
    gpulua_status status = what_make(blas, call, &plan->what, error);
    if (status == GPULUA_OK) {
        status =
            layout_make(blas, call->type, turns_a ? call->k : call->m, turns_a ? call->m : call->k,
                        call->lda, call->batch, call->stride_a, &plan->a, error);
    }
    if (status == GPULUA_OK) {
        status =
            layout_make(blas, call->type, turns_b ? call->n : call->k, turns_b ? call->k : call->n,
                        call->ldb, call->batch, call->stride_b, &plan->b, error);
    }
    if (status == GPULUA_OK) {
        status = layout_make(blas, call->c_type, call->m, call->n, call->ldc, call->batch,
                             call->stride_c, &plan->c, error);
    }
    if (status == GPULUA_OK) {
        status = bias_set(blas, plan, call, error);
    }
    return status == GPULUA_OK ? how_find(blas, &plan->product, plan, error) : status;
}

/* One that is known, or the place of the one used longest ago, made anew. */
static gpulua_status plan_find(struct cuda_blas *blas, const struct blas_matrix_call *call,
                               struct blas_plan **plan, struct backend_error *error) {
    const struct blas_product product = product_of(call);
    struct blas_plan *oldest = &blas->plans[0];
    for (uint32_t i = 0; i < BLAS_PLANS_MAX; i++) {
        struct blas_plan *known = &blas->plans[i];
        if (known->used != 0 && memcmp(&known->product, &product, sizeof product) == 0) {
            known->used = ++blas->clock;
            *plan = known;
            return GPULUA_OK;
        }
        oldest = known->used < oldest->used ? known : oldest;
    }
    plan_free(blas, oldest);
    oldest->product = product;
    gpulua_status status = plan_make(blas, call, oldest, error);
    if (status != GPULUA_OK) {
        plan_free(blas, oldest);
        return status;
    }
    oldest->used = ++blas->clock;
    *plan = oldest;
    return GPULUA_OK;
}

gpulua_status gpu_cuda_blas_epilogue(struct cuda_blas *blas, struct backend_stream *stream,
                                     const struct blas_matrix_call *call,
                                     struct backend_error *error) {
    if (call->m == 0 || call->n == 0 || call->batch == 0) {
        return GPULUA_OK;
    }
    gpulua_status status =
        blas->lt != NULL ? GPULUA_OK : BLAS(blas, error, cublasLtCreate(&blas->lt));
    struct blas_plan *plan = NULL;
    if (status == GPULUA_OK) {
        status = plan_find(blas, call, &plan, error);
    }
    if (status == GPULUA_OK) {
        status = bias_set(blas, plan, call, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    const float alpha = (float)call->alpha, beta = (float)call->beta;
    return BLAS(blas, error,
                cublasLtMatmul(blas->lt, plan->what, &alpha, call->a, plan->a, call->b, plan->b,
                               &beta, call->c, plan->c, call->c, plan->c, &plan->how,
                               call->workspace, call->workspace_bytes,
                               (cudaStream_t)stream->handle));
}

void gpu_cuda_blas_epilogue_close(struct cuda_blas *blas) {
    for (uint32_t i = 0; i < BLAS_PLANS_MAX; i++) {
        plan_free(blas, &blas->plans[i]);
    }
    if (blas->lt != NULL) {
        (void)blas->cublasLtDestroy(blas->lt);
    }
}
