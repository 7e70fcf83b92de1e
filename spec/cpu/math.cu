// Mathematical functions: out[i * n + t] is function i of x[t].
#include <math_constants.h>

extern "C" __global__ void doubles(const double *x, double *out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    double v = x[t], a, b;
    int i = 0, e;
    out[n * i++ + t] = sin(v);
    out[n * i++ + t] = cos(v);
    out[n * i++ + t] = tan(v);
    out[n * i++ + t] = exp(v);
    out[n * i++ + t] = exp2(v);
    out[n * i++ + t] = exp10(v);
    out[n * i++ + t] = log(fabs(v));
    out[n * i++ + t] = log2(fabs(v));
    out[n * i++ + t] = log10(fabs(v));
    out[n * i++ + t] = log1p(fabs(v));
    out[n * i++ + t] = expm1(v);
    out[n * i++ + t] = sqrt(fabs(v));
    out[n * i++ + t] = rsqrt(fabs(v));
    out[n * i++ + t] = cbrt(v);
    out[n * i++ + t] = rcbrt(v);
    out[n * i++ + t] = erf(v);
    out[n * i++ + t] = erfc(v);
    out[n * i++ + t] = erfcx(v);
    out[n * i++ + t] = normcdf(v);
    out[n * i++ + t] = erfinv(tanh(v));
    out[n * i++ + t] = normcdfinv(0.5 + 0.49 * sin(v));
    out[n * i++ + t] = erfcinv(1.0 + sin(v));
    out[n * i++ + t] = sinpi(v);
    out[n * i++ + t] = cospi(v);
    sincospi(v, &a, &b);
    out[n * i++ + t] = a + b;
    sincos(v, &a, &b);
    out[n * i++ + t] = a - b;
    out[n * i++ + t] = lgamma(fabs(v) + 0.5);
    out[n * i++ + t] = tgamma(fabs(v) + 0.5);
    out[n * i++ + t] = hypot(v, 2.0);
    out[n * i++ + t] = rhypot(v, 2.0);
    out[n * i++ + t] = norm3d(v, 1.0, 2.0);
    out[n * i++ + t] = norm4d(v, 1.0, 2.0, 3.0);
    out[n * i++ + t] = j0(v);
    out[n * i++ + t] = j1(v);
    out[n * i++ + t] = jn(3, v);
    out[n * i++ + t] = y0(fabs(v) + 0.1);
    out[n * i++ + t] = cyl_bessel_i0(v);
    out[n * i++ + t] = cyl_bessel_i1(v);
    out[n * i++ + t] = frexp(v, &e) + e;
    out[n * i++ + t] = ldexp(v, 3) + scalbn(v, -2) + ilogb(v);
    out[n * i++ + t] = modf(v, &a) + 2 * a;
    out[n * i++ + t] = remainder(v, 0.7) + fmod(v, 0.7);
    out[n * i++ + t] = pow(fabs(v), 1.5) + pow(v, 3);
    out[n * i++ + t] = fma(v, 3.0, 1.0) + fmin(v, 1.0) + fmax(v, 1.0) + fdim(v, 1.0);
    out[n * i++ + t] = floor(v) + 2 * ceil(v) + 4 * trunc(v) + 8 * round(v) + 16 * rint(v);
    out[n * i++ + t] = (double)(lrint(v) + 2 * llround(v)) + copysign(1.0, v) + nextafter(v, 9e9);
    out[n * i++ + t] = isnan(v) + 2 * isinf(v) + 4 * isfinite(v) + 8 * signbit(v);
    out[n * i++ + t] = asin(sin(v)) + acos(cos(v)) + atan(v) + atan2(v, 2.0);
    out[n * i++ + t] = sinh(v) + asinh(v) + acosh(fabs(v) + 1.0) + atanh(sin(v) * 0.9);
    out[n * i++ + t] = CUDART_PI;
}

extern "C" __global__ void singles(const float *x, float *out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    float v = x[t], a, b;
    int i = 0;
    out[n * i++ + t] = sinf(v);
    out[n * i++ + t] = cos(v);
    out[n * i++ + t] = expf(v);
    out[n * i++ + t] = log(fabsf(v));
    out[n * i++ + t] = exp10f(v);
    out[n * i++ + t] = sinpif(v);
    out[n * i++ + t] = cospi(v);
    out[n * i++ + t] = rsqrtf(fabsf(v));
    out[n * i++ + t] = erff(v);
    out[n * i++ + t] = erfcinvf(1.0f + sinf(v));
    out[n * i++ + t] = erfinvf(tanhf(v));
    out[n * i++ + t] = normcdff(v);
    out[n * i++ + t] = normcdfinvf(0.5f + 0.4f * sinf(v));
    out[n * i++ + t] = erfcxf(v);
    out[n * i++ + t] = rcbrtf(v);
    out[n * i++ + t] = cyl_bessel_i0f(v);
    out[n * i++ + t] = powf(fabsf(v), 2.5f);
    out[n * i++ + t] = fmaf(v, v, 1.0f);
    out[n * i++ + t] = __saturatef(v);
    out[n * i++ + t] = tgammaf(fabsf(v) + 0.5f);
    out[n * i++ + t] = norm3df(v, 1.0f, 2.0f);
    sincosf(v, &a, &b);
    out[n * i++ + t] = a * b;
    out[n * i++ + t] = fmodf(v, 0.7f) + floorf(v) + truncf(v) + roundf(v) + rintf(v);
    out[n * i++ + t] = fminf(v, 0.5f) + fmaxf(v, 0.25f) + min(v, 2.0f) + max(1, 2);
    out[n * i++ + t] = tanh(v) + atan2f(v, 1.0f) + hypotf(v, 1.0f) + CUDART_PI_F;
    // intrinsics: close to the functions
    out[n * i++ + t] = __sinf(v);
    out[n * i++ + t] = __cosf(v);
    out[n * i++ + t] = __expf(v);
    out[n * i++ + t] = __logf(fabsf(v));
    out[n * i++ + t] = __powf(fabsf(v), 2.0f);
    out[n * i++ + t] = __fdividef(v, 3.0f);
    out[n * i++ + t] = __frcp_rn(v);
    out[n * i++ + t] = __fsqrt_rn(fabsf(v));
    out[n * i++ + t] = __frsqrt_rn(fabsf(v));
    out[n * i++ + t] = __fmaf_rn(v, v, v);
    out[n * i++ + t] = __exp10f(v) + __log2f(fabsf(v)) + __log10f(fabsf(v)) + __tanf(v);
}

// Directed rounding: the same operation in four ways.
extern "C" __global__ void roundings(float a, float b, double c, double d, long long i, float *f,
                                     double *g) {
    f[0] = __fadd_rn(a, b); f[1] = __fadd_rd(a, b); f[2] = __fadd_ru(a, b); f[3] = __fadd_rz(a, b);
    f[4] = __fmul_rn(a, b); f[5] = __fmul_rd(a, b); f[6] = __fmul_ru(a, b); f[7] = __fmul_rz(a, b);
    f[8] = __fdiv_rn(a, b); f[9] = __fdiv_rd(a, b); f[10] = __fdiv_ru(a, b); f[11] = __fdiv_rz(a, b);
    f[12] = __fsqrt_rn(b); f[13] = __fsqrt_rd(b); f[14] = __fsqrt_ru(b); f[15] = __fsqrt_rz(b);
    f[16] = __fmaf_rn(a, b, a); f[17] = __fmaf_rd(a, b, a); f[18] = __fmaf_ru(a, b, a);
    f[19] = __fmaf_rz(a, b, a);
    f[20] = __double2float_rn(c); f[21] = __double2float_rd(c); f[22] = __double2float_ru(c);
    f[23] = __double2float_rz(c);
    f[24] = __ll2float_rn(i); f[25] = __ll2float_rd(i); f[26] = __ll2float_ru(i);
    f[27] = __ll2float_rz(i);
    f[28] = __fsub_rn(a, b); f[29] = __fsub_rd(a, b); f[30] = __fsub_ru(a, b); f[31] = __fsub_rz(a, b);
    g[0] = __dadd_rn(c, d); g[1] = __dadd_rd(c, d); g[2] = __dadd_ru(c, d); g[3] = __dadd_rz(c, d);
    g[4] = __dmul_rn(c, d); g[5] = __dmul_rd(c, d); g[6] = __dmul_ru(c, d); g[7] = __dmul_rz(c, d);
    g[8] = __ddiv_rn(c, d); g[9] = __ddiv_rd(c, d); g[10] = __ddiv_ru(c, d); g[11] = __ddiv_rz(c, d);
    g[12] = __dsqrt_rn(d); g[13] = __dsqrt_rd(d); g[14] = __dsqrt_ru(d); g[15] = __dsqrt_rz(d);
    g[16] = __fma_rn(c, d, c); g[17] = __fma_rd(c, d, c); g[18] = __fma_ru(c, d, c);
    g[19] = __fma_rz(c, d, c);
    g[20] = __ll2double_rn(i); g[21] = __ll2double_rd(i); g[22] = __ll2double_ru(i);
    g[23] = __ll2double_rz(i);
}
