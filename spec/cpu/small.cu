// half and bfloat16. All bit patterns and pairs come from the host.
#include <cuda_fp16.h>
#include <cuda_bf16.h>

template <typename T> __device__ void arithmetic(const T *x, const T *y, const T *z, T *out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    out[0 * n + t] = x[t] + y[t];
    out[1 * n + t] = __hsub(x[t], y[t]);
    out[2 * n + t] = x[t] * y[t];
    out[3 * n + t] = x[t] / y[t];
    out[4 * n + t] = __hfma(x[t], y[t], z[t]);
    out[5 * n + t] = hsqrt(__habs(x[t]));
    out[6 * n + t] = -x[t];
    out[7 * n + t] = __hmax(x[t], y[t]);
    T s = x[t];
    s += y[t];
    s -= z[t];
    out[8 * n + t] = s;
    out[9 * n + t] = x[t] < y[t] ? T(1.0f) : x[t] == y[t] ? T(2.0f) : __hge(x[t], y[t]) ? T(3.0f) : T(4.0f);
}
extern "C" __global__ void half_arithmetic(const half *x, const half *y, const half *z, half *out, int n) {
    arithmetic(x, y, z, out, n);
}
extern "C" __global__ void bf16_arithmetic(const __nv_bfloat16 *x, const __nv_bfloat16 *y,
                                           const __nv_bfloat16 *z, __nv_bfloat16 *out, int n) {
    arithmetic(x, y, z, out, n);
}

extern "C" __global__ void half_convert(const float *f, const double *d, const int *i, half *out,
                                        float *back, int *ints, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    out[0 * n + t] = __float2half(f[t]);
    out[1 * n + t] = __double2half(d[t]);
    out[2 * n + t] = __int2half_rn(i[t]);
    out[3 * n + t] = __float2half_rz(f[t]);
    out[4 * n + t] = __float2half_ru(f[t]);
    out[5 * n + t] = __float2half_rd(f[t]);
    back[t] = __half2float(out[t]);
    ints[t] = __half2int_rn(out[t]);
}
extern "C" __global__ void bf16_convert(const float *f, const double *d, const int *i,
                                        __nv_bfloat16 *out, float *back, int *ints, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    out[0 * n + t] = __float2bfloat16(f[t]);
    out[1 * n + t] = __double2bfloat16(d[t]);
    out[2 * n + t] = __int2bfloat16_rn(i[t]);
    out[3 * n + t] = __float2bfloat16_rz(f[t]);
    out[4 * n + t] = __float2bfloat16_ru(f[t]);
    out[5 * n + t] = __float2bfloat16_rd(f[t]);
    back[t] = __bfloat162float(out[t]);
    ints[t] = __bfloat162int_rn(out[t]);
}

extern "C" __global__ void pairs(const half2 *x, half2 *out, half *sum, float2 *wide, __nv_bfloat162 *b) {
    int t = threadIdx.x;
    half2 v = x[t] * x[t] + __float2half2_rn(1.0f);
    out[t] = __hfma2(v, __halves2half2(__low2half(v), __high2half(v)), __lowhigh2highlow(v));
    wide[t] = __half22float2(x[t]);
    half part = __hadd(x[t].x, x[t].y);
    for (int k = 16; k > 0; k /= 2) part = part + __shfl_xor_sync(0xffffffffu, part, k);
    if (t == 0) sum[0] = part;
    half2 swapped = __shfl_sync(0xffffffffu, x[t], 31 - t);
    if (t == 1) sum[1] = swapped.y;
    atomicAdd(&sum[2], __float2half(1.0f));
    b[t] = __float22bfloat162_rn(make_float2(t + 0.5f, -t)) + __floats2bfloat162_rn(1.0f, 2.0f);
}

__global__ void names(half a, __nv_bfloat16 b, const half *c, half2 *d, const __nv_bfloat162 *e) {}
