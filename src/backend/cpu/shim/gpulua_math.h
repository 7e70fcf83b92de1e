// Mathematical functions: single and double precision, and the fast intrinsics.
//
// What the C library has is called through the compiler's builtins, under C's names for both
// precisions and C++'s overloads. The rest is written here, in double where single is asked for.
#ifndef GPULUA_MATH_H
#define GPULUA_MATH_H

// X(name): double name(double), float namef(float), and float name(float)
#define GPULUA_MATH_1(X)                                                                           \
    X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(cbrt) X(ceil) X(cos) X(cosh) X(erf)       \
    X(erfc) X(exp) X(exp2) X(expm1) X(fabs) X(floor) X(lgamma) X(log) X(log10) X(log1p) X(log2)    \
    X(logb) X(nearbyint) X(rint) X(round) X(sin) X(sinh) X(sqrt) X(tan) X(tanh) X(tgamma) X(trunc)
#define GPULUA_MATH_2(X)                                                                           \
    X(atan2) X(copysign) X(fdim) X(fmax) X(fmin) X(fmod) X(hypot) X(nextafter) X(pow) X(remainder)

#define GPULUA_X(name)                                                                             \
    extern "C" double name(double) noexcept;                                                       \
    extern "C" float name##f(float) noexcept;                                                      \
    GPULUA_INLINE float name(float x) { return __builtin_##name##f(x); }
GPULUA_MATH_1(GPULUA_X)
#undef GPULUA_X
#define GPULUA_X(name)                                                                             \
    extern "C" double name(double, double) noexcept;                                               \
    extern "C" float name##f(float, float) noexcept;                                               \
    GPULUA_INLINE float name(float x, float y) { return __builtin_##name##f(x, y); }
GPULUA_MATH_2(GPULUA_X)
#undef GPULUA_X

extern "C" {
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double scalbn(double, int) noexcept;
float scalbnf(float, int) noexcept;
double scalbln(double, long) noexcept;
float scalblnf(float, long) noexcept;
double frexp(double, int *) noexcept;
float frexpf(float, int *) noexcept;
double modf(double, double *) noexcept;
float modff(float, float *) noexcept;
double remquo(double, double, int *) noexcept;
float remquof(float, float, int *) noexcept;
int ilogb(double) noexcept;
int ilogbf(float) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long lround(double) noexcept;
long lroundf(float) noexcept;
long long llrint(double) noexcept;
long long llrintf(float) noexcept;
long long llround(double) noexcept;
long long llroundf(float) noexcept;
double j0(double) noexcept;
float j0f(float) noexcept;
double j1(double) noexcept;
float j1f(float) noexcept;
double jn(int, double) noexcept;
float jnf(int, float) noexcept;
double y0(double) noexcept;
float y0f(float) noexcept;
double y1(double) noexcept;
float y1f(float) noexcept;
double yn(int, double) noexcept;
float ynf(int, float) noexcept;
double exp10(double) noexcept;
float exp10f(float) noexcept;
void sincos(double, double *, double *) noexcept;
void sincosf(float, float *, float *) noexcept;
double nan(const char *) noexcept;
float nanf(const char *) noexcept;
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
}
GPULUA_INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
GPULUA_INLINE float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
GPULUA_INLINE float scalbn(float x, int n) { return __builtin_scalbnf(x, n); }
GPULUA_INLINE float scalbln(float x, long n) { return __builtin_scalblnf(x, n); }
GPULUA_INLINE float frexp(float x, int *n) { return __builtin_frexpf(x, n); }
GPULUA_INLINE float modf(float x, float *whole) { return __builtin_modff(x, whole); }
GPULUA_INLINE float remquo(float x, float y, int *n) { return __builtin_remquof(x, y, n); }
GPULUA_INLINE int ilogb(float x) { return __builtin_ilogbf(x); }
GPULUA_INLINE long lrint(float x) { return __builtin_lrintf(x); }
GPULUA_INLINE long lround(float x) { return __builtin_lroundf(x); }
GPULUA_INLINE long long llrint(float x) { return __builtin_llrintf(x); }
GPULUA_INLINE long long llround(float x) { return __builtin_llroundf(x); }
GPULUA_INLINE float exp10(float x) { return exp10f(x); }
GPULUA_INLINE void sincos(float x, float *s, float *c) { sincosf(x, s, c); }
GPULUA_INLINE float pow(float x, int n) { return __builtin_powf(x, (float)n); }
GPULUA_INLINE double pow(double x, int n) { return __builtin_pow(x, (double)n); }

GPULUA_INLINE float abs(float x) { return __builtin_fabsf(x); }
GPULUA_INLINE double abs(double x) { return __builtin_fabs(x); }
GPULUA_INLINE long abs(long x) { return x < 0 ? -x : x; }
GPULUA_INLINE long long abs(long long x) { return x < 0 ? -x : x; }

GPULUA_INLINE bool isnan(float x) { return __builtin_isnan(x); }
GPULUA_INLINE bool isnan(double x) { return __builtin_isnan(x); }
GPULUA_INLINE bool isinf(float x) { return __builtin_isinf_sign(x) != 0; }
GPULUA_INLINE bool isinf(double x) { return __builtin_isinf_sign(x) != 0; }
GPULUA_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
GPULUA_INLINE bool isfinite(double x) { return __builtin_isfinite(x); }
GPULUA_INLINE bool signbit(float x) { return __builtin_signbit(x) != 0; }
GPULUA_INLINE bool signbit(double x) { return __builtin_signbit(x) != 0; }
GPULUA_INLINE int __isnanf(float x) { return __builtin_isnan(x); }
GPULUA_INLINE int __isnan(double x) { return __builtin_isnan(x); }
GPULUA_INLINE int __isinff(float x) { return __builtin_isinf_sign(x) != 0; }
GPULUA_INLINE int __isinf(double x) { return __builtin_isinf_sign(x) != 0; }
GPULUA_INLINE int __finitef(float x) { return __builtin_isfinite(x); }
GPULUA_INLINE int __finite(double x) { return __builtin_isfinite(x); }
GPULUA_INLINE int __signbitf(float x) { return __builtin_signbit(x) != 0; }
GPULUA_INLINE int __signbit(double x) { return __builtin_signbit(x) != 0; }

// ---- min and max ----

// Templates, so that a source may have its own of the same parameters, which are called then, as
// with NVRTC.
#define GPULUA_YIELDING template <int = 0> GPULUA_INLINE

GPULUA_YIELDING constexpr int min(int a, int b) { return b < a ? b : a; }
GPULUA_YIELDING constexpr int max(int a, int b) { return a < b ? b : a; }
#define GPULUA_X(A, B, R)                                                                          \
    GPULUA_YIELDING constexpr R min(A a, B b) { return (R)b < (R)a ? (R)b : (R)a; }                \
    GPULUA_YIELDING constexpr R max(A a, B b) { return (R)a < (R)b ? (R)b : (R)a; }
GPULUA_X(unsigned, unsigned, unsigned)
GPULUA_X(int, unsigned, unsigned) GPULUA_X(unsigned, int, unsigned)
GPULUA_X(long, long, long)
GPULUA_X(unsigned long, unsigned long, unsigned long)
GPULUA_X(long, unsigned long, unsigned long) GPULUA_X(unsigned long, long, unsigned long)
GPULUA_X(long long, long long, long long)
GPULUA_X(unsigned long long, unsigned long long, unsigned long long)
GPULUA_X(long long, unsigned long long, unsigned long long)
GPULUA_X(unsigned long long, long long, unsigned long long)
#undef GPULUA_X
GPULUA_YIELDING float min(float a, float b) { return __builtin_fminf(a, b); }
GPULUA_YIELDING float max(float a, float b) { return __builtin_fmaxf(a, b); }
GPULUA_YIELDING double min(double a, double b) { return __builtin_fmin(a, b); }
GPULUA_YIELDING double max(double a, double b) { return __builtin_fmax(a, b); }
GPULUA_YIELDING double min(float a, double b) { return __builtin_fmin((double)a, b); }
GPULUA_YIELDING double min(double a, float b) { return __builtin_fmin(a, (double)b); }
GPULUA_YIELDING double max(float a, double b) { return __builtin_fmax((double)a, b); }
GPULUA_YIELDING double max(double a, float b) { return __builtin_fmax(a, (double)b); }
GPULUA_INLINE unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
GPULUA_INLINE unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
GPULUA_INLINE long long llmin(long long a, long long b) { return a < b ? a : b; }
GPULUA_INLINE long long llmax(long long a, long long b) { return a > b ? a : b; }
GPULUA_INLINE unsigned long long ullmin(unsigned long long a, unsigned long long b) {
    return a < b ? a : b;
}
GPULUA_INLINE unsigned long long ullmax(unsigned long long a, unsigned long long b) {
    return a > b ? a : b;
}

// ---- what C has not ----

// X(name, parameters, arguments): float forms, computed in double and rounded once
#define GPULUA_SINGLE(name, params, args)                                                          \
    GPULUA_INLINE float name##f params { return (float)name args; }

GPULUA_INLINE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
GPULUA_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
GPULUA_INLINE float rsqrt(float x) { return rsqrtf(x); }
GPULUA_INLINE double rcbrt(double x) { return 1.0 / __builtin_cbrt(x); }
GPULUA_SINGLE(rcbrt, (float x), ((double)x))
GPULUA_INLINE double rhypot(double x, double y) { return 1.0 / __builtin_hypot(x, y); }
GPULUA_SINGLE(rhypot, (float x, float y), ((double)x, (double)y))
GPULUA_INLINE double norm3d(double a, double b, double c) {
    return __builtin_hypot(__builtin_hypot(a, b), c);
}
GPULUA_SINGLE(norm3d, (float a, float b, float c), ((double)a, (double)b, (double)c))
GPULUA_INLINE double norm4d(double a, double b, double c, double d) {
    return __builtin_hypot(__builtin_hypot(a, b), __builtin_hypot(c, d));
}
GPULUA_SINGLE(norm4d, (float a, float b, float c, float d),
              ((double)a, (double)b, (double)c, (double)d))
GPULUA_INLINE double rnorm3d(double a, double b, double c) { return 1.0 / norm3d(a, b, c); }
GPULUA_SINGLE(rnorm3d, (float a, float b, float c), ((double)a, (double)b, (double)c))
GPULUA_INLINE double rnorm4d(double a, double b, double c, double d) {
    return 1.0 / norm4d(a, b, c, d);
}
GPULUA_SINGLE(rnorm4d, (float a, float b, float c, float d),
              ((double)a, (double)b, (double)c, (double)d))
GPULUA_INLINE double norm(int count, const double *x) {
    double length = 0;
    for (int i = 0; i < count; i++) {
        length = __builtin_hypot(length, x[i]);
    }
    return length;
}
GPULUA_INLINE float normf(int count, const float *x) {
    double length = 0;
    for (int i = 0; i < count; i++) {
        length = __builtin_hypot(length, (double)x[i]);
    }
    return (float)length;
}
GPULUA_INLINE double rnorm(int count, const double *x) { return 1.0 / norm(count, x); }
GPULUA_INLINE float rnormf(int count, const float *x) {
    double length = 0;
    for (int i = 0; i < count; i++) {
        length = __builtin_hypot(length, (double)x[i]);
    }
    return (float)(1.0 / length);
}

#define GPULUA_PI 3.14159265358979323846

// sin(pi x) and cos(pi x): the whole turns are taken off exactly first.
GPULUA_INLINE double sinpi(double x) {
    if (!__builtin_isfinite(x)) {
        return x - x;
    }
    double whole = __builtin_rint(2.0 * x), rest = __builtin_fma(whole, -0.5, x) * GPULUA_PI;
    long long quarter = (long long)__builtin_fmod(whole, 4.0);
    double result = (quarter & 1) != 0 ? __builtin_cos(rest) : __builtin_sin(rest);
    result = (quarter & 2) != 0 ? -result : result;
    // At whole numbers the answer is a zero of the argument's sign.
    return x == __builtin_trunc(x) ? 0.0 * x : result;
}
GPULUA_INLINE double cospi(double x) {
    if (!__builtin_isfinite(x)) {
        return x - x;
    }
    double whole = __builtin_rint(2.0 * x), rest = __builtin_fma(whole, -0.5, x) * GPULUA_PI;
    long long quarter = (long long)__builtin_fmod(whole, 4.0);
    double result = (quarter & 1) != 0 ? __builtin_sin(rest) : __builtin_cos(rest);
    result = ((quarter + 1) & 2) != 0 ? -result : result;
    return result + 0.0; // no negative zero
}
GPULUA_SINGLE(sinpi, (float x), ((double)x))
GPULUA_SINGLE(cospi, (float x), ((double)x))
GPULUA_INLINE float sinpi(float x) { return sinpif(x); }
GPULUA_INLINE float cospi(float x) { return cospif(x); }
GPULUA_INLINE void sincospi(double x, double *s, double *c) {
    *s = sinpi(x);
    *c = cospi(x);
}
GPULUA_INLINE void sincospif(float x, float *s, float *c) {
    *s = sinpif(x);
    *c = cospif(x);
}
GPULUA_INLINE void sincospi(float x, float *s, float *c) { sincospif(x, s, c); }

// exp(x*x) * erfc(x). Beyond 25 by the continued fraction erfc has (Abramowitz and Stegun 7.1.14);
// exp(x*x) is split so that the rounding of x*x does not spoil it.
GPULUA_INLINE double erfcx(double x) {
    if (x < 25.0) {
        double square = x * x, error = __builtin_fma(x, x, -square);
        double e = __builtin_exp(square);
        return __builtin_isinf(e) ? e * 2.0
                                  : __builtin_fma(e, error, e) * __builtin_erfc(x);
    }
    double fraction = x;
    for (int k = 12; k > 0; k--) {
        fraction = x + 0.5 * k / fraction;
    }
    return 0.56418958354775628695 / fraction;
}
GPULUA_SINGLE(erfcx, (float x), ((double)x))
GPULUA_INLINE double normcdf(double x) {
    return 0.5 * __builtin_erfc(-x * 0.70710678118654752440);
}
GPULUA_SINGLE(normcdf, (float x), ((double)x))

// The inverse of erfc: a rational start (Abramowitz and Stegun 26.2.23, for the normal quantile),
// then Halley's iteration, which triples the digits each time.
GPULUA_INLINE double erfcinv(double y) {
    if (!(y > 0.0 && y < 2.0)) {
        return y == 0.0 ? __builtin_inf() : y == 2.0 ? -__builtin_inf() : __builtin_nan("");
    }
    double p = y < 1.0 ? y : 2.0 - y;
    if (p == 1.0) {
        return 0.0;
    }
    double t = __builtin_sqrt(-2.0 * __builtin_log(0.5 * p));
    double x = 0.70710678118654752440 *
               (t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                        (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
    for (int i = 0; i < 4; i++) {
        // error / derivative, with erfc written through erfcx where exp(-x*x) would vanish
        double step = x < 1.0 ? (__builtin_erfc(x) - p) * __builtin_exp(x * x)
                              : erfcx(x) - p * __builtin_exp(x * x);
        step *= 0.88622692545275801365;
        x += step / (1.0 + x * step);
    }
    return y < 1.0 ? x : -x;
}
GPULUA_SINGLE(erfcinv, (float x), ((double)x))
GPULUA_INLINE double erfinv(double y) {
    if (!(y > -1.0 && y < 1.0)) {
        return y == 1.0 ? __builtin_inf() : y == -1.0 ? -__builtin_inf() : __builtin_nan("");
    }
    double a = __builtin_fabs(y);
    double x;
    if (a < 0.5) {
        // 1 - a would lose the digits of a small a.
        x = a * 0.88622692545275801365;
        for (int i = 0; i < 4; i++) {
            double step = (__builtin_erf(x) - a) * __builtin_exp(x * x) * 0.88622692545275801365;
            x -= step / (1.0 + x * step);
        }
    } else {
        x = erfcinv(1.0 - a);
    }
    return __builtin_copysign(x, y);
}
GPULUA_SINGLE(erfinv, (float x), ((double)x))
GPULUA_INLINE double normcdfinv(double p) { return -1.41421356237309504880 * erfcinv(2.0 * p); }
GPULUA_SINGLE(normcdfinv, (float x), ((double)x))

// Modified Bessel functions of the first kind: the power series, all of whose terms are positive,
// and beyond 40 the asymptotic one (Abramowitz and Stegun 9.6.10, 9.7.1).
GPULUA_INLINE double gpulua_bessel_i(int order, double x) {
    double a = __builtin_fabs(x), sum, term;
    if (a < 40.0) {
        term = order == 0 ? 1.0 : 0.5 * a;
        sum = term;
        for (int k = 1; k < 200 && term > sum * 1e-17; k++) {
            term *= 0.25 * a * a / ((double)k * (k + order));
            sum += term;
        }
    } else {
        double mu = 4.0 * order * order;
        term = 1.0;
        sum = 1.0;
        for (int k = 1; k < 30; k++) {
            double next = -term * (mu - (2.0 * k - 1.0) * (2.0 * k - 1.0)) / (8.0 * k * a);
            if (__builtin_fabs(next) < 1e-17 * sum) {
                break;
            }
            term = next;
            sum += term;
        }
        sum *= __builtin_exp(a - 0.5 * __builtin_log(2.0 * GPULUA_PI * a));
    }
    return order == 1 && x < 0.0 ? -sum : sum;
}
GPULUA_INLINE double cyl_bessel_i0(double x) { return gpulua_bessel_i(0, x); }
GPULUA_INLINE double cyl_bessel_i1(double x) { return gpulua_bessel_i(1, x); }
GPULUA_SINGLE(cyl_bessel_i0, (float x), ((double)x))
GPULUA_SINGLE(cyl_bessel_i1, (float x), ((double)x))

GPULUA_INLINE float rcbrt(float x) { return rcbrtf(x); }
GPULUA_INLINE float erfcx(float x) { return erfcxf(x); }
GPULUA_INLINE float erfinv(float x) { return erfinvf(x); }
GPULUA_INLINE float erfcinv(float x) { return erfcinvf(x); }
GPULUA_INLINE float normcdf(float x) { return normcdff(x); }
GPULUA_INLINE float normcdfinv(float x) { return normcdfinvf(x); }

// ---- fast intrinsics: here as exact as the others ----

GPULUA_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
GPULUA_INLINE float __sinf(float x) { return __builtin_sinf(x); }
GPULUA_INLINE float __cosf(float x) { return __builtin_cosf(x); }
GPULUA_INLINE float __tanf(float x) { return __builtin_tanf(x); }
GPULUA_INLINE float __tanhf(float x) { return __builtin_tanhf(x); }
GPULUA_INLINE void __sincosf(float x, float *s, float *c) { sincosf(x, s, c); }
GPULUA_INLINE float __expf(float x) { return __builtin_expf(x); }
GPULUA_INLINE float __exp10f(float x) { return exp10f(x); }
GPULUA_INLINE float __logf(float x) { return __builtin_logf(x); }
GPULUA_INLINE float __log2f(float x) { return __builtin_log2f(x); }
GPULUA_INLINE float __log10f(float x) { return __builtin_log10f(x); }
GPULUA_INLINE float __powf(float x, float y) { return __builtin_powf(x, y); }
GPULUA_INLINE float __fdividef(float x, float y) { return x / y; }
GPULUA_INLINE float fdividef(float x, float y) { return x / y; }
GPULUA_INLINE double fdivide(double x, double y) { return x / y; }
GPULUA_INLINE float fdivide(float x, float y) { return x / y; }

#endif
