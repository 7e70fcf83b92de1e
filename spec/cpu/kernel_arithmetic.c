/* The part of kernel_test for arithmetic: functions against the C library, bits and packed integers
 * against loops, half and bfloat16 against exact sums rounded once. Included by kernel_test.c. */
#include <fenv.h>

/* ---- mathematical functions ---- */

static double relative_error(double got, double expected) {
    if (isnan(expected) || isinf(expected)) {
        return (isnan(got) && isnan(expected)) || got == expected ? 0.0 : INFINITY;
    }
    double scale = fabs(expected) > 1e-300 ? fabs(expected) : 1.0;
    return fabs(got - expected) / scale;
}

/* Inverse functions and the like, by bisection on what the C library has: slow and certain. */
static double bisect(double (*f)(double), double y, double low, double high) {
    bool rises = f(high) > f(low);
    for (int i = 0; i < 300; i++) {
        double middle = 0.5 * (low + high);
        if ((f(middle) < y) == rises) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return 0.5 * (low + high);
}
static double normal_cdf(double x) {
    return 0.5 * erfc(-x / sqrt(2.0));
}
/* Near 1, erf says less about its argument than erfc near 0. */
static double erf_inverse(double y) {
    double x = y == 1 || y == -1 ? INFINITY : bisect(erfc, 1 - fabs(y), 0, 27);
    return copysign(fabs(y) < 0.5 ? bisect(erf, fabs(y), 0, 6) : x, y);
}
static double bessel_i(int order, double x) {
    /* 1/pi times the integral of exp(x cos t) cos(order t), by the trapezoidal rule, which
     * converges faster than any power here. */
    double sum = 0.5 * (exp(x) + exp(-x) * (order % 2 == 0 ? 1 : -1));
    for (int i = 1; i < 200; i++) {
        double t = M_PI * i / 200;
        sum += exp(x * cos(t)) * cos(order * t);
    }
    return sum / 200;
}
static double scaled_erfc(double x) {
    /* erfc underflows from 27 on; there 1 / (x + (1/2) / (x + 1 / (x + (3/2) / ...))). */
    if (x < 10) {
        return (double)(expl((long double)x * x) * erfcl(x));
    }
    double f = x;
    for (int k = 60; k > 0; k--) {
        f = x + 0.5 * k / f;
    }
    return 1 / (sqrt(M_PI) * f);
}

static int doubles_expected(double v, double *out) {
    int i = 0, e;
    double whole, part;
    out[i++] = sin(v);
    out[i++] = cos(v);
    out[i++] = tan(v);
    out[i++] = exp(v);
    out[i++] = exp2(v);
    out[i++] = pow(10, v);
    out[i++] = log(fabs(v));
    out[i++] = log2(fabs(v));
    out[i++] = log10(fabs(v));
    out[i++] = log1p(fabs(v));
    out[i++] = expm1(v);
    out[i++] = sqrt(fabs(v));
    out[i++] = 1 / sqrt(fabs(v));
    out[i++] = cbrt(v);
    out[i++] = 1 / cbrt(v);
    out[i++] = erf(v);
    out[i++] = erfc(v);
    out[i++] = scaled_erfc(v);
    out[i++] = normal_cdf(v);
    out[i++] = erf_inverse(tanh(v));
    out[i++] = bisect(normal_cdf, 0.5 + 0.49 * sin(v), -9, 9);
    out[i++] = bisect(erfc, 1.0 + sin(v), -6, 27);
    part = fmod(v, 2.0);
    double s = (double)sinl(3.14159265358979323846264338L * part);
    double c = (double)cosl(3.14159265358979323846264338L * part);
    out[i++] = s;
    out[i++] = c;
    out[i++] = s + c;
    out[i++] = sin(v) - cos(v);
    out[i++] = lgamma(fabs(v) + 0.5);
    out[i++] = tgamma(fabs(v) + 0.5);
    out[i++] = hypot(v, 2.0);
    out[i++] = 1 / hypot(v, 2.0);
    out[i++] = sqrt(v * v + 5);
    out[i++] = sqrt(v * v + 14);
    out[i++] = j0(v);
    out[i++] = j1(v);
    out[i++] = jn(3, v);
    out[i++] = y0(fabs(v) + 0.1);
    out[i++] = bessel_i(0, v);
    out[i++] = bessel_i(1, v);
    part = frexp(v, &e);
    out[i++] = part + e;
    out[i++] = v * 8 + v / 4 + ilogb(v);
    part = modf(v, &whole);
    out[i++] = part + 2 * whole;
    out[i++] = remainder(v, 0.7) + fmod(v, 0.7);
    out[i++] = pow(fabs(v), 1.5) + v * v * v;
    out[i++] = fma(v, 3.0, 1.0) + fmin(v, 1.0) + fmax(v, 1.0) + fdim(v, 1.0);
    out[i++] = floor(v) + 2 * ceil(v) + 4 * trunc(v) + 8 * round(v) + 16 * rint(v);
    out[i++] = (double)(lrint(v) + 2 * llround(v)) + copysign(1.0, v) + nextafter(v, 9e9);
    out[i++] = 4 + 8 * (signbit(v) != 0);
    out[i++] = asin(sin(v)) + acos(cos(v)) + atan(v) + atan2(v, 2.0);
    out[i++] = sinh(v) + asinh(v) + acosh(fabs(v) + 1.0) + atanh(sin(v) * 0.9);
    out[i++] = M_PI;
    return i;
}

static int singles_expected(double v, double *out) {
    int i = 0;
    double f = fabs(v);
    out[i++] = sin(v);
    out[i++] = cos(v);
    out[i++] = exp(v);
    out[i++] = log(f);
    out[i++] = pow(10, v);
    out[i++] = sin(M_PI * fmod(v, 2.0));
    out[i++] = cos(M_PI * fmod(v, 2.0));
    out[i++] = 1 / sqrt(f);
    out[i++] = erf(v);
    out[i++] = bisect(erfc, (double)(1.0f + sinf((float)v)), -6, 27);
    out[i++] = erf_inverse((double)tanhf((float)v));
    out[i++] = normal_cdf(v);
    out[i++] = bisect(normal_cdf, (double)(0.5f + 0.4f * sinf((float)v)), -9, 9);
    out[i++] = scaled_erfc(v);
    out[i++] = 1 / cbrt(v);
    out[i++] = bessel_i(0, v);
    out[i++] = pow(f, 2.5);
    out[i++] = v * v + 1;
    out[i++] = v < 0 ? 0 : v > 1 ? 1 : v;
    out[i++] = tgamma(f + 0.5);
    out[i++] = sqrt(v * v + 5);
    out[i++] = sin(v) * cos(v);
    out[i++] = (double)(fmodf((float)v, 0.7f) + floorf((float)v) + truncf((float)v) +
                        roundf((float)v) + rintf((float)v));
    out[i++] = fmin(v, 0.5) + fmax(v, 0.25) + fmin(v, 2.0) + 2;
    out[i++] = tanh(v) + atan2(v, 1.0) + hypot(v, 1.0) + M_PI;
    out[i++] = sin(v);
    out[i++] = cos(v);
    out[i++] = exp(v);
    out[i++] = log(f);
    out[i++] = v * v;
    out[i++] = v / 3;
    out[i++] = 1 / v;
    out[i++] = sqrt(f);
    out[i++] = 1 / sqrt(f);
    out[i++] = v * v + v;
    out[i++] = pow(10, v) + log2(f) + log10(f) + tan(v);
    return i;
}

static const double math_values[] = {0.25,  -0.25, 0.5,  -0.75, 1.0,   -1.5,  2.0,  2.5,
                                     -2.75, 3.25,  -4.5, 5.125, -6.25, 7.875, -8.5, 9.0625};
#define MATH_COUNT ((int)(sizeof math_values / sizeof *math_values))

static void math_tests(void) {
    struct program p = program_open("math.cu", "");
    static double out[64 * 16], expected[64];
    static float fout[64 * 16], x[16];
    struct {
        const double *x;
        double *out;
        int n;
    } doubles = {math_values, out, MATH_COUNT};
    bool ok = runs(launch(&p, "doubles", SHAPE(1, 32), &doubles, 1));
    double worst = 0;
    for (int t = 0; t < MATH_COUNT; t++) {
        int count = doubles_expected(math_values[t], expected);
        for (int i = 0; i < count; i++) {
            double error = relative_error(out[i * MATH_COUNT + t], expected[i]);
            /* Near a zero the arguments' own rounding shows. */
            if (error > 1e-11 && fabs(out[i * MATH_COUNT + t] - expected[i]) > 1e-14) {
                printf("# double function %d of %g: %.17g, expected %.17g\n", i, math_values[t],
                       out[i * MATH_COUNT + t], expected[i]);
                ok = false;
            } else if (fabs(expected[i]) > 1e-3) {
                worst = error > worst ? error : worst;
            }
        }
    }
    check(ok, "functions in double precision (relative error up to %.1e)", worst);
    for (int t = 0; t < MATH_COUNT; t++) {
        x[t] = (float)math_values[t];
    }
    struct {
        const float *x;
        float *out;
        int n;
    } singles = {x, fout, MATH_COUNT};
    ok = runs(launch(&p, "singles", SHAPE(1, 32), &singles, 1));
    worst = 0;
    for (int t = 0; t < MATH_COUNT; t++) {
        int count = singles_expected(math_values[t], expected);
        for (int i = 0; i < count; i++) {
            double got = (double)fout[i * MATH_COUNT + t];
            double error = relative_error(got, expected[i]);
            if (error > 3e-6 && fabs(got - expected[i]) > 1e-6) {
                printf("# float function %d of %g: %.9g, expected %.9g\n", i, math_values[t], got,
                       expected[i]);
                ok = false;
            } else if (fabs(expected[i]) > 1e-3) {
                worst = error > worst ? error : worst;
            }
        }
    }
    check(ok, "functions and fast intrinsics in single precision (up to %.1e)", worst);
    program_close(&p);
}

/* The same operation under each of the processor's rounding modes. */
static void roundings_test(void) {
    static const int modes[4] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    struct program p = program_open("math.cu", "");
    bool ok = p.module != NULL;
    for (int k = 0; k < 8; k++) {
        float f[32];
        double g[24];
        struct {
            float a, b;
            double c, d;
            long long i;
            float *f;
            double *g;
        } args = {(k & 1 ? -1.0f : 1.0f) / 3,
                  0.1f + (float)k,
                  (k & 2 ? -1.0 : 1.0) / 7,
                  3.3 + k,
                  (k & 4 ? -1 : 1) * 0x7123456789abcdefll,
                  f,
                  g};
        ok = ok && runs(launch(&p, "roundings", SHAPE(1, 1), &args, 1));
        for (int m = 0; ok && m < 4; m++) {
            volatile float a = args.a, b = args.b;
            volatile double c = args.c, d = args.d;
            volatile long long i = args.i;
            fesetround(modes[m]);
            volatile float fe[8] = {a + b,         a * b,    a / b,    sqrtf(b),
                                    fmaf(a, b, a), (float)c, (float)i, a - b};
            volatile double ge[6] = {c + d, c * d, c / d, sqrt(d), fma(c, d, c), (double)i};
            fesetround(FE_TONEAREST);
            for (int o = 0; o < 8; o++) {
                ok = ok && f[4 * o + m] == fe[o];
            }
            for (int o = 0; o < 6; o++) {
                ok = ok && g[4 * o + m] == ge[o];
            }
        }
    }
    check(ok, "directed rounding: arithmetic and conversions in four modes");
    program_close(&p);
}

/* ---- bits ---- */

static unsigned bits_reversed(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) {
        r |= (x >> i & 1u) << (31 - i);
    }
    return r;
}

static void bits_test(struct program *p, unsigned x, unsigned y, unsigned long long l) {
    unsigned out[31];
    unsigned long long lout[6];
    struct {
        unsigned x, y;
        unsigned long long l;
        unsigned *out;
        unsigned long long *lout;
    } args = {x, y, l, out, lout};
    bool ok = runs(launch(p, "bits", SHAPE(1, 1), &args, 1));
    int sx = (int)x, sy = (int)y;
    long long x24 = (int)(x << 8) >> 8, y24 = (int)(y << 8) >> 8;
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned dp4 = 7, udp4 = 7;
    for (int i = 0; i < 32; i += 8) {
        dp4 += (unsigned)((signed char)(x >> i) * (signed char)(y >> i));
        udp4 += (x >> i & 255u) * (y >> i & 255u);
    }
    unsigned nth = UINT32_MAX;
    for (int i = 4, left = 3; i < 32; i++) {
        if ((x >> i & 1u) != 0 && --left == 0) {
            nth = (unsigned)i;
        }
    }
    long long distance = (long long)sx - sy, udistance = (long long)x - (long long)y;
    const unsigned expected[31] = {(unsigned)__builtin_popcount(x),
                                   x >> 5 == 0 ? 32u : (unsigned)__builtin_clz(x >> 5),
                                   32,
                                   (unsigned)__builtin_ffs((int)(x << 7)),
                                   0,
                                   bits_reversed(x),
                                   (x >> 8 & 255u) | (x >> 24) << 8 | (y >> 8 & 255u) << 16 |
                                       (y >> 24) << 24,
                                   (x >> 8 & 255u) | (y & 128u ? 255u : 0u) << 8 |
                                       (x & 255u) << 16 | (x & 128u ? 255u : 0u) << 24,
                                   (unsigned)(both << 9 >> 32),
                                   (unsigned)(both >> 9),
                                   (unsigned)(both << 9 >> 32),
                                   x,
                                   y,
                                   (unsigned)(x24 * y24),
                                   (x & 0xffffffu) * (y & 0xffffffu),
                                   (unsigned)((long long)sx * sy >> 32),
                                   (unsigned)((unsigned long long)x * y >> 32),
                                   (unsigned)(distance < 0 ? -distance : distance) + 5,
                                   (unsigned)(udistance < 0 ? -udistance : udistance) + 5,
                                   (unsigned)(((long long)sx + sy) >> 1),
                                   (unsigned)(((long long)sx + sy + 1) >> 1),
                                   (unsigned)(((unsigned long long)x + y) >> 1),
                                   (unsigned)(((unsigned long long)x + y + 1) >> 1),
                                   dp4,
                                   udp4,
                                   7u + (unsigned)((short)x * (signed char)y) +
                                       (unsigned)((short)(x >> 16) * (signed char)(y >> 8)),
                                   7u + (x & 0xffffu) * (y >> 16 & 255u) + (x >> 16) * (y >> 24),
                                   nth,
                                   (unsigned)__builtin_popcountll(l),
                                   l >> 3 == 0 ? 64u : (unsigned)__builtin_clzll(l >> 3),
                                   (unsigned)__builtin_ffsll((long long)(l << 40))};
    for (int i = 0; i < 31; i++) {
        if (out[i] != expected[i]) {
            printf("# bits %d of %08x %08x: %08x, expected %08x\n", i, x, y, out[i], expected[i]);
            ok = false;
        }
    }
    unsigned long long high = (l >> 32) * (l >> 32) + (((l >> 32) * (l & UINT32_MAX) >> 32) << 1);
    high += (((l & UINT32_MAX) * (l & UINT32_MAX) >> 32) +
             2 * ((l >> 32) * (l & UINT32_MAX) & UINT32_MAX)) >>
            32;
    long long times = (long long)l / 4 * -3; /* only its sign is used */
    ok = ok &&
         lout[0] == ((unsigned long long)bits_reversed((unsigned)l) << 32 |
                     bits_reversed((unsigned)(l >> 32))) &&
         lout[1] == high && ((long long)lout[2] < 0) == (times < 0) && lout[3] == l &&
         lout[4] == 0x40040000u && lout[5] == 0x3ff8000000000000ull;
    check(ok, "bit and integer intrinsics of %08x, %08x", x, y);
}

static int clamp(int x, int low, int high) {
    return x < low ? low : x > high ? high : x;
}

enum packed_kind { SIGNED4, UNSIGNED4, SIGNED2, UNSIGNED2 };

static unsigned packed_apply(int which, unsigned x, unsigned y, enum packed_kind kind) {
    int bits = kind <= UNSIGNED4 ? 8 : 16;
    unsigned mask = (1u << bits) - 1, result = 0;
    for (int at = 0; at < 32; at += bits) {
        unsigned ux = x >> at & mask, uy = y >> at & mask;
        bool is_signed = kind == SIGNED4 || kind == SIGNED2;
        int a = is_signed ? (bits == 8 ? (signed char)ux : (short)ux) : (int)ux;
        int b = is_signed ? (bits == 8 ? (signed char)uy : (short)uy) : (int)uy;
        int low = is_signed ? -(1 << (bits - 1)) : 0;
        int high = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
        const int results[] = {a + b,
                               clamp(a + b, low, high),
                               a - b,
                               clamp(a - b, low, high),
                               a > b ? a - b : b - a,
                               a > b ? a : b,
                               a < b ? a : b,
                               (a + b) >> 1,
                               -a,
                               a < 0 ? -a : a,
                               clamp(a < 0 ? -a : a, low, high),
                               a == b ? -1 : 0,
                               a > b ? -1 : 0,
                               a < b ? -1 : 0,
                               a >= b ? 1 : 0,
                               (a + b + 1) >> 1,
                               (int)floor((a + b) / 2.0 + (a + b >= 0 ? 0.5 : 0.0))};
        result |= ((unsigned)results[which] & mask) << at;
    }
    return result;
}

static void packed_test(struct program *p, unsigned x, unsigned y) {
    unsigned out[25];
    struct {
        unsigned x, y;
        unsigned *out;
    } args = {x, y, out};
    bool ok = runs(launch(p, "packed", SHAPE(1, 1), &args, 1));
    unsigned mixed = (x & 0xffff0000u) | (y & 0xffffu), sad = 0, ssad = 0;
    for (int i = 0; i < 32; i += 8) {
        sad += (unsigned)abs((int)(x >> i & 255u) - (int)(y >> i & 255u));
        ssad += (unsigned)abs((signed char)(x >> i) - (signed char)(y >> i));
    }
    const unsigned expected[25] = {packed_apply(0, x, y, UNSIGNED4),
                                   packed_apply(0, x, y, UNSIGNED2),
                                   packed_apply(1, x, y, SIGNED4),
                                   packed_apply(1, x, y, UNSIGNED2),
                                   packed_apply(2, x, y, UNSIGNED4),
                                   packed_apply(3, x, y, UNSIGNED4),
                                   packed_apply(3, x, y, SIGNED2),
                                   packed_apply(4, x, y, UNSIGNED4),
                                   packed_apply(4, x, y, SIGNED2),
                                   packed_apply(5, x, y, SIGNED4),
                                   packed_apply(5, x, y, UNSIGNED4),
                                   packed_apply(6, x, y, SIGNED2),
                                   packed_apply(6, x, y, UNSIGNED2),
                                   packed_apply(15, x, y, UNSIGNED4),
                                   packed_apply(16, x, y, SIGNED4),
                                   packed_apply(7, x, y, UNSIGNED4),
                                   packed_apply(8, x, x, UNSIGNED4),
                                   packed_apply(9, x, x, SIGNED4),
                                   packed_apply(10, 0x80ff7f01u, 0, SIGNED4),
                                   packed_apply(11, x, mixed, UNSIGNED4),
                                   packed_apply(12, x, y, SIGNED4),
                                   packed_apply(13, x, y, UNSIGNED4),
                                   packed_apply(14, x, y, SIGNED2),
                                   sad,
                                   ssad};
    for (int i = 0; i < 25; i++) {
        if (out[i] != expected[i]) {
            printf("# packed %d: %08x, expected %08x\n", i, out[i], expected[i]);
            ok = false;
        }
    }
    check(ok, "packed integers of %08x, %08x", x, y);
}

/* Saturated; what is out of range in the C library is undefined. */
static long long saturated(double x, double low, double high, long long least, long long most,
                           long long nan) {
    return isnan(x) ? nan : x <= low ? least : x >= high ? most : (long long)x;
}

static void conversion_test(struct program *p) {
    enum { N = 12 };
    static const double d[N] = {0.0,  0.5,  1.5,   -0.5, -2.5,       3e9,
                                -3e9, 1e20, -1e20, NAN,  123456.789, -1e-30};
    float f[N];
    int i[8 * N];
    unsigned u[2 * N];
    long long l[2 * N];
    unsigned long long ul[N];
    for (int t = 0; t < N; t++) {
        f[t] = (float)d[t];
    }
    struct {
        const float *f;
        const double *d;
        int n;
        int *i;
        unsigned *u;
        long long *l;
        unsigned long long *ul;
    } args = {f, d, N, i, u, l, ul};
    bool ok = runs(launch(p, "conversions", SHAPE(1, 32), &args, 1));
#define INT_OF(x, nan) (int)saturated(x, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX, nan)
    for (int t = 0; t < N; t++) {
        double x = (double)f[t];
        ok = ok && i[8 * t] == INT_OF(rint(x), 0) && i[8 * t + 1] == INT_OF(trunc(x), 0) &&
             i[8 * t + 2] == INT_OF(ceil(x), 0) && i[8 * t + 3] == INT_OF(floor(x), 0) &&
             i[8 * t + 4] == INT_OF(rint(d[t]), INT32_MIN) &&
             i[8 * t + 5] == INT_OF(trunc(d[t]), INT32_MIN) &&
             memcmp(&i[8 * t + 6], &f[t], 4) == 0 &&
             u[2 * t] == (unsigned)saturated(rint(x), 0, 0x1p32, 0, UINT32_MAX, 0) &&
             u[2 * t + 1] == (unsigned)saturated(ceil(d[t]), 0, 0x1p32, 0, UINT32_MAX, INT32_MIN) &&
             l[2 * t] == saturated(rint(x), -0x1p63, 0x1p63, INT64_MIN, INT64_MAX, INT64_MIN) &&
             l[2 * t + 1] ==
                 saturated(floor(d[t]), -0x1p63, 0x1p63, INT64_MIN, INT64_MAX, INT64_MIN);
        ok = ok && (d[t] >= 0x1p63 ? ul[t] == UINT64_MAX
                    : isnan(d[t])  ? ul[t] == 1ull << 63
                                   : ul[t] == (d[t] > 0 ? (unsigned long long)d[t] : 0));
    }
    check(ok, "floating point to integers: rounded, and saturated out of range");
}

/* ---- half and bfloat16 ---- */

/* Wide enough for sums and products of small floats to be exact. */
#if defined(__x86_64__)
typedef __float128 exact;
#else
typedef long double exact;
#endif

struct format {
    int digits, exponent_min, exponent_max; /* of 1.xxx times 2 to the exponent */
};
static const struct format half_format = {11, -14, 15}, bf16_format = {8, -126, 127};

static double small_value(unsigned bits, const struct format *format) {
    int fraction_bits = format->digits - 1;
    int exponent = (int)(bits & 0x7fffu) >> fraction_bits, top = 0x7fff >> fraction_bits;
    int fraction = (int)bits & ((1 << fraction_bits) - 1);
    double sign = bits & 0x8000u ? -1 : 1;
    if (exponent == top) {
        return fraction ? NAN : sign * INFINITY;
    }
    double value = exponent == 0 ? ldexp(fraction, format->exponent_min - fraction_bits)
                                 : ldexp(fraction + (1 << fraction_bits),
                                         exponent - 1 + format->exponent_min - fraction_bits);
    return sign * value;
}

/* The nearest in the format, ties to even; or by `mode` as in fenv.h. Bits; 0x7fff for NaN. */
static unsigned small_round(exact value, bool is_negative, const struct format *format, int mode) {
    unsigned sign = is_negative ? 0x8000u : 0, top = 0x7fffu >> (format->digits - 1);
    unsigned infinite = top << (format->digits - 1);
    if (value != value) {
        return 0x7fffu;
    }
    exact size = is_negative ? -value : value;
    if (size > (exact)1e60) {
        bool is_infinite = isinf((double)size);
        if (!is_infinite && (mode == FE_TOWARDZERO || (mode == FE_DOWNWARD && !is_negative) ||
                             (mode == FE_UPWARD && is_negative))) {
            return sign | (infinite - 1);
        }
        return sign | infinite;
    }
    int exponent = size == 0 ? format->exponent_min : ilogb((double)size);
    exponent = exponent < format->exponent_min ? format->exponent_min : exponent;
    exact quantum = (exact)ldexp(1.0, exponent - format->digits + 1);
    if (size < (exact)ldexp(1.0, exponent) && exponent > format->exponent_min) {
        exponent--;
        quantum /= 2;
    }
    long long steps = (long long)(size / quantum); /* exact: a power of two */
    exact rest = size - (exact)steps * quantum;
    bool up = mode == FE_TONEAREST ? rest * 2 > quantum || (rest * 2 == quantum && (steps & 1))
                                   : rest > 0 && mode == (is_negative ? FE_DOWNWARD : FE_UPWARD);
    steps += up;
    /* Biased exponent and fraction add up, carries included. */
    long long bits = steps + ((long long)(exponent - format->exponent_min) << (format->digits - 1));
    if (bits >= infinite) {
        bool stays = mode == FE_TOWARDZERO || (mode == FE_DOWNWARD && !is_negative) ||
                     (mode == FE_UPWARD && is_negative);
        return sign | (stays ? infinite - 1 : infinite);
    }
    return sign | (unsigned)bits;
}

static bool small_equal(unsigned got, unsigned expected, const struct format *format) {
    bool got_nan = isnan(small_value(got, format)), nan = isnan(small_value(expected, format));
    return got_nan || nan ? got_nan && nan : got == expected;
}

static unsigned random_next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void small_arithmetic_test(struct program *p, const char *name,
                                  const struct format *format) {
    enum { N = 4096 };
    static uint16_t in[3][N], out[10 * N];
    static const unsigned special_bits[] = {0,     0x8000u, 1,       0x8001u, 0x3ffu,  0x400u,
                                            0x7fu, 0x80u,   0x3c00u, 0x3f80u, 0x7bffu, 0x7f7fu};
    unsigned state = 12345;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 3; k++) {
            unsigned bits = random_next(&state) & 0xffffu;
            if (format == &bf16_format) {
                /* Exponents whose sums and products the exact type can hold. */
                unsigned exponent = 127 - 20 + random_next(&state) % 41;
                bits = (bits & 0x807fu) | exponent << 7;
            }
            if (random_next(&state) % 16 == 0) {
                bits = special_bits[random_next(&state) % 12];
            }
            in[k][i] = (uint16_t)bits;
        }
    }
    struct {
        const uint16_t *x, *y, *z;
        uint16_t *out;
        int n;
    } args = {in[0], in[1], in[2], out, N};
    char kernel[64];
    snprintf(kernel, sizeof kernel, "%s_arithmetic", name);
    bool ok = runs(launch(p, kernel, SHAPE(N / 128, 128), &args, 2));
    unsigned wrong[10] = {0};
    for (int i = 0; i < N; i++) {
        double x = small_value(in[0][i], format), y = small_value(in[1][i], format);
        double z = small_value(in[2][i], format);
        exact ex = (exact)x, ey = (exact)y, ez = (exact)z;
        unsigned sum = small_round(ex + ey, signbit(x + y) != 0, format, FE_TONEAREST);
        double rounded = small_value(sum, format);
        exact product = ex * ey;
        double about = x * y + z;
        exact fused = product + ez, part = fused - product;
        exact lost = (product - (fused - part)) + (ez - part);
        if (lost != 0 && isfinite(about)) { /* keep on which side of the sum it was */
            fused += (lost > 0 ? 1 : -1) * (fused < 0 ? -fused : fused) * (exact)0x1p-100;
        }
        bool is_negative = fused == 0 ? signbit(about) != 0 : fused < 0;
        unsigned expected[10] = {
            sum,
            small_round(ex - ey, signbit(x - y) != 0, format, FE_TONEAREST),
            small_round(product, signbit(x * y) != 0, format, FE_TONEAREST),
            small_round((exact)(x / y), signbit(x / y) != 0, format, FE_TONEAREST),
            small_round(fused, is_negative, format, FE_TONEAREST),
            small_round((exact)sqrt(fabs(x)), false, format, FE_TONEAREST),
            isnan(x) ? 0x7fffu : in[0][i] ^ 0x8000u,
            isnan(x)   ? in[1][i]
            : isnan(y) ? in[0][i]
            : x > y    ? in[0][i]
                       : in[1][i],
            small_round((exact)rounded - ez, signbit(rounded - z) != 0, format, FE_TONEAREST),
            small_round(x < y    ? 1
                        : x == y ? 2
                        : x >= y ? 3
                                 : 4,
                        false, format, FE_TONEAREST)};
        for (int k = 0; k < 10; k++) {
            unsigned got = out[k * N + i];
            if (k == 7 && x == 0 && y == 0) {
                continue; /* a zero of either sign */
            }
            if (!small_equal(got, expected[k], format) && wrong[k]++ == 0) {
                printf("# %s operation %d of %04x %04x %04x: %04x, expected %04x\n", name, k,
                       in[0][i], in[1][i], in[2][i], got, expected[k]);
                ok = false;
            }
        }
    }
    check(ok, "%s: + - * / fma sqrt neg max compare are exact on %d triples", name, N);
}

static void small_convert_test(struct program *p, const char *name, const struct format *format) {
    enum { N = 4096 };
    static const int modes[6] = {FE_TONEAREST,  FE_TONEAREST, FE_TONEAREST,
                                 FE_TOWARDZERO, FE_UPWARD,    FE_DOWNWARD};
    static float f[N], back[N];
    static double d[N];
    static int in[N], ints[N];
    static uint16_t out[6 * N];
    unsigned state = 99;
    for (int i = 0; i < N; i++) {
        unsigned bits = random_next(&state) << 8 ^ random_next(&state);
        unsigned small = random_next(&state) & 0xffffu;
        memcpy(&f[i], &bits, 4);
        d[i] = ldexp((double)random_next(&state) + random_next(&state) * 0x1p-24,
                     (int)(random_next(&state) % 60) - 50);
        if (i % 3 == 0) { /* on and around the middle between neighbours */
            double value = small_value(small, format), next = small_value(small + 1, format);
            f[i] = (float)(0.5 * (value + next));
            d[i] = 0.5 * (value + next) * (1 + (i % 2 ? 0x1p-50 : 0));
        }
        in[i] = (int)bits >> i % 31;
    }
    struct {
        const float *f;
        const double *d;
        const int *i;
        uint16_t *out;
        float *back;
        int *ints;
        int n;
    } args = {f, d, in, out, back, ints, N};
    char kernel[64];
    snprintf(kernel, sizeof kernel, "%s_convert", name);
    bool ok = runs(launch(p, kernel, SHAPE(N / 256, 256), &args, 2));
    for (int i = 0; i < N; i++) {
        const double from[6] = {(double)f[i], d[i],         in[i],
                                (double)f[i], (double)f[i], (double)f[i]};
        for (int k = 0; ok && k < 6; k++) {
            unsigned expected =
                small_round((exact)from[k], signbit(from[k]) != 0, format, modes[k]);
            if (!small_equal(out[k * N + i], expected, format)) {
                printf("# %s conversion %d of %a: %04x, expected %04x\n", name, k, from[k],
                       out[k * N + i], expected);
                ok = false;
            }
        }
        double value = small_value(out[i], format);
        ok = ok && (isnan(value) ? isnan(back[i]) : (double)back[i] == value) &&
             ints[i] == INT_OF(rint(value), 0);
    }
    check(ok, "%s: conversions from float, double, int, in four modes, and back, on %d values",
          name, N);
}

static void small_tests(void) {
    struct program p = program_open("small.cu", "");
    small_arithmetic_test(&p, "half", &half_format);
    small_arithmetic_test(&p, "bf16", &bf16_format);
    small_convert_test(&p, "half", &half_format);
    small_convert_test(&p, "bf16", &bf16_format);
    enum { N = 32 };
    uint16_t x[2 * N], out[2 * N], sum[4] = {0}, b[2 * N];
    float wide[2 * N];
    double total = 0;
    for (int i = 0; i < 2 * N; i++) {
        x[i] = (uint16_t)small_round(i % 5, false, &half_format, FE_TONEAREST);
        total += i % 5;
    }
    struct {
        const uint16_t *x;
        uint16_t *out, *sum;
        float *wide;
        uint16_t *b;
    } args = {x, out, sum, wide, b};
    bool ok = runs(launch(&p, "pairs", SHAPE(1, N), &args, 1));
    for (int t = 0; t < N; t++) {
        double v0 = (2 * t % 5) * (2 * t % 5) + 1, v1 = ((2 * t + 1) % 5) * ((2 * t + 1) % 5) + 1;
        ok = ok && small_value(out[2 * t], &half_format) == v0 * v0 + v1 &&
             small_value(out[2 * t + 1], &half_format) == v1 * v1 + v0 &&
             wide[2 * t] == (float)(2 * t % 5) && wide[2 * t + 1] == (float)((2 * t + 1) % 5) &&
             small_value(b[2 * t], &bf16_format) == t + 1.5 &&
             small_value(b[2 * t + 1], &bf16_format) == 2.0 - t;
    }
    check(ok && small_value(sum[0], &half_format) == total &&
              small_value(sum[1], &half_format) == (double)(61 % 5) &&
              small_value(sum[2], &half_format) == N,
          "pairs of halves, shuffles and atomics on them");
    check(
        p.description != NULL &&
            strstr(p.description,
                   "kernel names a: f16, b: bf16, c: in f16*, d: inout f16x2*, e: in bf16x2*\n") !=
                NULL,
        "half and bfloat16 have names in descriptions");
    program_close(&p);
}

static void arithmetic_tests(void) {
    math_tests();
    roundings_test();
    struct program p = program_open("bits.cu", "");
    bits_test(&p, 0x12345678u, 0x9abcdef0u, 0x0123456789abcdefull);
    bits_test(&p, 0xfffffff0u, 0x80000001u, 0xf000000000000001ull);
    bits_test(&p, 0u, 0xffffffffu, 0ull);
    packed_test(&p, 0x12345678u, 0x9abcdef0u);
    packed_test(&p, 0x80ff7f01u, 0x7f80ff00u);
    packed_test(&p, 0xffff0000u, 0xff00ff00u);
    conversion_test(&p);
    program_close(&p);
    small_tests();
}
