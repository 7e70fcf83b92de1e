// Bit and integer intrinsics, conversions, arithmetic with directed rounding, packed integers.
#ifndef GPULUA_BITS_H
#define GPULUA_BITS_H

// ---- bits ----

GPULUA_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
GPULUA_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
GPULUA_INLINE int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
GPULUA_INLINE int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
GPULUA_INLINE int __ffs(int x) { return __builtin_ffs(x); }
GPULUA_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
GPULUA_INLINE unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
GPULUA_INLINE unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
// Bytes 0 to 3 are x, 4 to 7 are y; each nibble of `selector` picks one, its top bit the sign of it.
GPULUA_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i) & 15u;
        unsigned byte = (unsigned)(bytes >> (8 * (pick & 7u))) & 255u;
        result |= ((pick & 8u) != 0 ? ((byte & 128u) != 0 ? 255u : 0u) : byte) << (8 * i);
    }
    return result;
}
GPULUA_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31u) >> 32);
}
GPULUA_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    unsigned long long both = (unsigned long long)high << 32 | low;
    return shift >= 32u ? low : (unsigned)(both << shift >> 32);
}
GPULUA_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31u));
}
GPULUA_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    unsigned long long both = (unsigned long long)high << 32 | low;
    return shift >= 32u ? high : (unsigned)(both >> shift);
}
// The position of the offset-th set bit from `base` on (upward from 1, downward from -1).
GPULUA_INLINE unsigned __fns(unsigned mask, unsigned base, int offset) {
    if (offset == 0) {
        return base < 32u && (mask >> base & 1u) != 0 ? base : 0xffffffffu;
    }
    int step = offset > 0 ? 1 : -1, left = offset > 0 ? offset : -offset;
    for (int i = (int)base; i >= 0 && i < 32; i += step) {
        if ((mask >> i & 1u) != 0 && --left == 0) {
            return (unsigned)i;
        }
    }
    return 0xffffffffu;
}

// ---- integers ----

GPULUA_INLINE int __mul24(int x, int y) {
    return (int)((unsigned)((int)((unsigned)x << 8) >> 8) * (unsigned)((int)((unsigned)y << 8) >> 8));
}
GPULUA_INLINE unsigned __umul24(unsigned x, unsigned y) {
    return (x & 0xffffffu) * (y & 0xffffffu);
}
GPULUA_INLINE int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
GPULUA_INLINE unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((unsigned long long)x * y >> 32);
}
GPULUA_INLINE long long __mul64hi(long long x, long long y) {
    return (long long)((__int128)x * y >> 64);
}
GPULUA_INLINE unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
GPULUA_INLINE unsigned __sad(int x, int y, unsigned z) {
    return z + (x > y ? (unsigned)x - (unsigned)y : (unsigned)y - (unsigned)x);
}
GPULUA_INLINE unsigned __usad(unsigned x, unsigned y, unsigned z) {
    return z + (x > y ? x - y : y - x);
}
GPULUA_INLINE int __hadd(int x, int y) { return (int)(((long long)x + y) >> 1); }
GPULUA_INLINE int __rhadd(int x, int y) { return (int)(((long long)x + y + 1) >> 1); }
GPULUA_INLINE unsigned __uhadd(unsigned x, unsigned y) {
    return (unsigned)(((unsigned long long)x + y) >> 1);
}
GPULUA_INLINE unsigned __urhadd(unsigned x, unsigned y) {
    return (unsigned)(((unsigned long long)x + y + 1) >> 1);
}

GPULUA_INLINE int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 32; i += 8) {
        sum += (unsigned)((int)(signed char)(a >> i) * (int)(signed char)(b >> i));
    }
    return (int)sum;
}
GPULUA_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) {
        c += (a >> i & 255u) * (b >> i & 255u);
    }
    return c;
}
GPULUA_INLINE int __dp4a(char4 a, char4 b, int c) {
    return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
GPULUA_INLINE unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
    return c + (unsigned)(a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w);
}
// Two 16-bit numbers of a with the low (or high) two bytes of b.
GPULUA_INLINE int gpulua_dp2a(int a, int b, int c) {
    return (int)((unsigned)c + (unsigned)((short)a * (signed char)b) +
                 (unsigned)((short)(a >> 16) * (signed char)(b >> 8)));
}
GPULUA_INLINE unsigned gpulua_dp2a(unsigned a, unsigned b, unsigned c) {
    return c + (a & 0xffffu) * (b & 255u) + (a >> 16) * (b >> 8 & 255u);
}
GPULUA_INLINE int __dp2a_lo(int a, int b, int c) { return gpulua_dp2a(a, b, c); }
GPULUA_INLINE int __dp2a_hi(int a, int b, int c) { return gpulua_dp2a(a, b >> 16, c); }
GPULUA_INLINE unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) {
    return gpulua_dp2a(a, b, c);
}
GPULUA_INLINE unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c) {
    return gpulua_dp2a(a, b >> 16, c);
}
GPULUA_INLINE int __dp2a_lo(short2 a, char4 b, int c) { return c + a.x * b.x + a.y * b.y; }
GPULUA_INLINE int __dp2a_hi(short2 a, char4 b, int c) { return c + a.x * b.z + a.y * b.w; }
GPULUA_INLINE unsigned __dp2a_lo(ushort2 a, uchar4 b, unsigned c) {
    return c + (unsigned)(a.x * b.x) + (unsigned)(a.y * b.y);
}
GPULUA_INLINE unsigned __dp2a_hi(ushort2 a, uchar4 b, unsigned c) {
    return c + (unsigned)(a.x * b.z) + (unsigned)(a.y * b.w);
}

// ---- the same bits as another type ----

template <class To, class From> GPULUA_INLINE To gpulua_bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
GPULUA_INLINE int __float_as_int(float x) { return gpulua_bit_cast<int>(x); }
GPULUA_INLINE unsigned __float_as_uint(float x) { return gpulua_bit_cast<unsigned>(x); }
GPULUA_INLINE float __int_as_float(int x) { return gpulua_bit_cast<float>(x); }
GPULUA_INLINE float __uint_as_float(unsigned x) { return gpulua_bit_cast<float>(x); }
GPULUA_INLINE long long __double_as_longlong(double x) { return gpulua_bit_cast<long long>(x); }
GPULUA_INLINE double __longlong_as_double(long long x) { return gpulua_bit_cast<double>(x); }
GPULUA_INLINE int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
GPULUA_INLINE int __double2loint(double x) { return (int)__double_as_longlong(x); }
GPULUA_INLINE double __hiloint2double(int high, int low) {
    return __longlong_as_double(
        (long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

// ---- directed rounding ----
//
// The processor's rounding mode is set around one operation. The empty volatile statements tie the
// operation to its place between the two settings.

enum gpulua_rounding { GPULUA_RN, GPULUA_RD, GPULUA_RU, GPULUA_RZ };

#if defined(__x86_64__)
#define GPULUA_FLOAT_REGISTER "x"
GPULUA_INLINE unsigned gpulua_rounding_set(gpulua_rounding mode) {
    unsigned old, changed;
    __asm__ volatile("stmxcsr %0" : "=m"(old));
    changed = (old & ~0x6000u) | (unsigned)mode << 13;
    __asm__ volatile("ldmxcsr %0" : : "m"(changed));
    return old;
}
GPULUA_INLINE void gpulua_rounding_restore(unsigned old) {
    __asm__ volatile("ldmxcsr %0" : : "m"(old));
}
#elif defined(__aarch64__)
#define GPULUA_FLOAT_REGISTER "w"
GPULUA_INLINE unsigned long gpulua_rounding_set(gpulua_rounding mode) {
    // FPCR counts nearest, up, down, zero.
    unsigned long old, bits = mode == GPULUA_RU ? 1 : mode == GPULUA_RD ? 2 : (unsigned long)mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"((old & ~(3ul << 22)) | bits << 22));
    return old;
}
GPULUA_INLINE void gpulua_rounding_restore(unsigned long old) {
    __asm__ volatile("msr fpcr, %0" : : "r"(old));
}
#else
#define GPULUA_FLOAT_REGISTER "m"
extern "C" int fesetround(int) noexcept;
extern "C" int fegetround() noexcept;
GPULUA_INLINE int gpulua_rounding_set(gpulua_rounding mode) {
    int old = fegetround();
    fesetround(mode == GPULUA_RN ? __FE_TONEAREST : mode == GPULUA_RD ? __FE_DOWNWARD
               : mode == GPULUA_RU ? __FE_UPWARD : __FE_TOWARDZERO);
    return old;
}
GPULUA_INLINE void gpulua_rounding_restore(int old) { fesetround(old); }
#endif

#define GPULUA_PIN(x) __asm__ volatile("" : "+" GPULUA_FLOAT_REGISTER(x))
#define GPULUA_PIN_INTEGER(x) __asm__ volatile("" : "+r"(x))

#define GPULUA_ROUNDINGS(M, ...)                                                                   \
    M(rd, GPULUA_RD, __VA_ARGS__) M(ru, GPULUA_RU, __VA_ARGS__) M(rz, GPULUA_RZ, __VA_ARGS__)

// Nearest is what the operators do; spelt as one operation that is not fused with its neighbours.
#define GPULUA_BINARY(suffix, mode, name, T, operation)                                            \
    GPULUA_INLINE T name##_##suffix(T a, T b) {                                                    \
        auto old = gpulua_rounding_set(mode);                                                      \
        GPULUA_PIN(a);                                                                             \
        GPULUA_PIN(b);                                                                             \
        T result = a operation b;                                                                  \
        GPULUA_PIN(result);                                                                        \
        gpulua_rounding_restore(old);                                                              \
        return result;                                                                             \
    }
#define GPULUA_CALL(suffix, mode, name, T, call)                                                   \
    GPULUA_INLINE T name##_##suffix(T a) {                                                         \
        auto old = gpulua_rounding_set(mode);                                                      \
        GPULUA_PIN(a);                                                                             \
        T result = call(a);                                                                        \
        GPULUA_PIN(result);                                                                        \
        gpulua_rounding_restore(old);                                                              \
        return result;                                                                             \
    }
#define GPULUA_FUSED(suffix, mode, name, T, call)                                                  \
    GPULUA_INLINE T name##_##suffix(T a, T b, T c) {                                               \
        auto old = gpulua_rounding_set(mode);                                                      \
        GPULUA_PIN(a);                                                                             \
        GPULUA_PIN(b);                                                                             \
        GPULUA_PIN(c);                                                                             \
        T result = call(a, b, c);                                                                  \
        GPULUA_PIN(result);                                                                        \
        gpulua_rounding_restore(old);                                                              \
        return result;                                                                             \
    }
#define GPULUA_CONVERT(suffix, mode, name, From, To, pin)                                          \
    GPULUA_INLINE To name##_##suffix(From a) {                                                     \
        auto old = gpulua_rounding_set(mode);                                                      \
        pin(a);                                                                                    \
        To result = (To)a;                                                                         \
        GPULUA_PIN(result);                                                                        \
        gpulua_rounding_restore(old);                                                              \
        return result;                                                                             \
    }
GPULUA_ROUNDINGS(GPULUA_BINARY, __fadd, float, +)
GPULUA_ROUNDINGS(GPULUA_BINARY, __fsub, float, -)
GPULUA_ROUNDINGS(GPULUA_BINARY, __fmul, float, *)
GPULUA_ROUNDINGS(GPULUA_BINARY, __fdiv, float, /)
GPULUA_ROUNDINGS(GPULUA_BINARY, __dadd, double, +)
GPULUA_ROUNDINGS(GPULUA_BINARY, __dsub, double, -)
GPULUA_ROUNDINGS(GPULUA_BINARY, __dmul, double, *)
GPULUA_ROUNDINGS(GPULUA_BINARY, __ddiv, double, /)
GPULUA_ROUNDINGS(GPULUA_CALL, __frcp, float, 1.0f /)
GPULUA_ROUNDINGS(GPULUA_CALL, __drcp, double, 1.0 /)
GPULUA_ROUNDINGS(GPULUA_CALL, __fsqrt, float, __builtin_sqrtf)
GPULUA_ROUNDINGS(GPULUA_CALL, __dsqrt, double, __builtin_sqrt)
GPULUA_ROUNDINGS(GPULUA_FUSED, __fmaf, float, __builtin_fmaf)
GPULUA_ROUNDINGS(GPULUA_FUSED, __fma, double, __builtin_fma)
GPULUA_ROUNDINGS(GPULUA_CONVERT, __double2float, double, float, GPULUA_PIN)
GPULUA_ROUNDINGS(GPULUA_CONVERT, __int2float, int, float, GPULUA_PIN_INTEGER)
GPULUA_ROUNDINGS(GPULUA_CONVERT, __uint2float, unsigned, float, GPULUA_PIN_INTEGER)
GPULUA_ROUNDINGS(GPULUA_CONVERT, __ll2float, long long, float, GPULUA_PIN_INTEGER)
GPULUA_ROUNDINGS(GPULUA_CONVERT, __ull2float, unsigned long long, float, GPULUA_PIN_INTEGER)
GPULUA_ROUNDINGS(GPULUA_CONVERT, __ll2double, long long, double, GPULUA_PIN_INTEGER)
GPULUA_ROUNDINGS(GPULUA_CONVERT, __ull2double, unsigned long long, double, GPULUA_PIN_INTEGER)

// The pins keep a product from being fused with a sum: that is what these are called for.
#define GPULUA_X(name, T, operation)                                                               \
    GPULUA_INLINE T name(T a, T b) {                                                               \
        T result = a operation b;                                                                  \
        __asm__("" : "+" GPULUA_FLOAT_REGISTER(result));                                           \
        return result;                                                                             \
    }
GPULUA_X(__fadd_rn, float, +) GPULUA_X(__fsub_rn, float, -) GPULUA_X(__fmul_rn, float, *)
GPULUA_X(__dadd_rn, double, +) GPULUA_X(__dsub_rn, double, -) GPULUA_X(__dmul_rn, double, *)
#undef GPULUA_X
GPULUA_INLINE float __fdiv_rn(float a, float b) { return a / b; }
GPULUA_INLINE double __ddiv_rn(double a, double b) { return a / b; }
GPULUA_INLINE float __frcp_rn(float a) { return 1.0f / a; }
GPULUA_INLINE double __drcp_rn(double a) { return 1.0 / a; }
GPULUA_INLINE float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
GPULUA_INLINE double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
GPULUA_INLINE float __frsqrt_rn(float a) { return (float)(1.0 / __builtin_sqrt((double)a)); }
GPULUA_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPULUA_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
GPULUA_INLINE float __fmaf_ieee_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPULUA_INLINE float __double2float_rn(double a) { return (float)a; }
GPULUA_INLINE float __int2float_rn(int a) { return (float)a; }
GPULUA_INLINE float __uint2float_rn(unsigned a) { return (float)a; }
GPULUA_INLINE float __ll2float_rn(long long a) { return (float)a; }
GPULUA_INLINE float __ull2float_rn(unsigned long long a) { return (float)a; }
GPULUA_INLINE double __int2double_rn(int a) { return (double)a; }
GPULUA_INLINE double __uint2double_rn(unsigned a) { return (double)a; }
GPULUA_INLINE double __ll2double_rn(long long a) { return (double)a; }
GPULUA_INLINE double __ull2double_rn(unsigned long long a) { return (double)a; }

// ---- floating point to integer: out of range gives the nearest end, as on a GPU ----

// `x` is integral already. Not-a-number gives `nan`: 0 from float, the sign bit alone from double.
template <class I> GPULUA_INLINE I gpulua_saturate(double x, I nan) {
    constexpr bool is_signed = I(-1) < I(0);
    constexpr int bits = (int)sizeof(I) * 8 - (is_signed ? 1 : 0);
    constexpr double end = 2.0 * (double)(1ull << (bits - 1)); // one past the largest
    constexpr I largest = (I)(((I)1 << (bits - 1)) - 1 + ((I)1 << (bits - 1)));
    if (x != x) {
        return nan;
    }
    if (x >= end) {
        return largest;
    }
    if (x < (is_signed ? -end : 0.0)) {
        return is_signed ? (I)(-largest - 1) : (I)0;
    }
    return (I)x;
}
#define GPULUA_X(name, From, To, nan)                                                              \
    GPULUA_INLINE To name##_rn(From x) { return gpulua_saturate<To>(__builtin_rint((double)x), nan); } \
    GPULUA_INLINE To name##_rz(From x) { return gpulua_saturate<To>(__builtin_trunc((double)x), nan); } \
    GPULUA_INLINE To name##_ru(From x) { return gpulua_saturate<To>(__builtin_ceil((double)x), nan); } \
    GPULUA_INLINE To name##_rd(From x) { return gpulua_saturate<To>(__builtin_floor((double)x), nan); }
GPULUA_X(__float2int, float, int, 0)
GPULUA_X(__float2uint, float, unsigned, 0)
GPULUA_X(__float2ll, float, long long, (long long)(1ull << 63))
GPULUA_X(__float2ull, float, unsigned long long, 1ull << 63)
GPULUA_X(__double2int, double, int, (int)(1u << 31))
GPULUA_X(__double2uint, double, unsigned, 1u << 31)
GPULUA_X(__double2ll, double, long long, (long long)(1ull << 63))
GPULUA_X(__double2ull, double, unsigned long long, 1ull << 63)
#undef GPULUA_X

// ---- two 16-bit or four 8-bit integers in a word ----

GPULUA_INLINE int gpulua_clamp(int x, int low, int high) {
    return x < low ? low : x > high ? high : x;
}
// No function objects: each would be a type more that the compiler loads with each kernel.
#define GPULUA_PACKED(name, Element, expression)                                                   \
    GPULUA_INLINE unsigned name(unsigned x, unsigned y) {                                          \
        unsigned result = 0;                                                                       \
        for (unsigned at = 0; at < 32u; at += sizeof(Element) * 8) {                               \
            const int a = (Element)(x >> at), b = (Element)(y >> at);                              \
            result |= ((unsigned)(expression) & ((1u << sizeof(Element) * 8) - 1)) << at;          \
        }                                                                                          \
        return result;                                                                             \
    }
#define GPULUA_PACKED_ONE(name, Element, expression)                                               \
    GPULUA_INLINE unsigned name(unsigned x) {                                                      \
        unsigned result = 0;                                                                       \
        for (unsigned at = 0; at < 32u; at += sizeof(Element) * 8) {                               \
            const int a = (Element)(x >> at);                                                      \
            result |= ((unsigned)(expression) & ((1u << sizeof(Element) * 8) - 1)) << at;          \
        }                                                                                          \
        return result;                                                                             \
    }
#define GPULUA_X(lanes, S, U, smin, smax, umax)                                                    \
    GPULUA_PACKED(__vadd##lanes, U, a + b)                                                         \
    GPULUA_PACKED(__vaddss##lanes, S, gpulua_clamp(a + b, smin, smax))                             \
    GPULUA_PACKED(__vaddus##lanes, U, gpulua_clamp(a + b, 0, umax))                                \
    GPULUA_PACKED(__vsub##lanes, U, a - b)                                                         \
    GPULUA_PACKED(__vsubss##lanes, S, gpulua_clamp(a - b, smin, smax))                             \
    GPULUA_PACKED(__vsubus##lanes, U, gpulua_clamp(a - b, 0, umax))                                \
    GPULUA_PACKED(__vavgs##lanes, S, (a + b + (a + b >= 0)) >> 1)                                  \
    GPULUA_PACKED(__vavgu##lanes, U, (a + b + 1) >> 1)                                             \
    GPULUA_PACKED(__vhaddu##lanes, U, (a + b) >> 1)                                                \
    GPULUA_PACKED(__vabsdiffs##lanes, S, a > b ? a - b : b - a)                                    \
    GPULUA_PACKED(__vabsdiffu##lanes, U, a > b ? a - b : b - a)                                    \
    GPULUA_PACKED(__vmaxs##lanes, S, a > b ? a : b)                                                \
    GPULUA_PACKED(__vmaxu##lanes, U, a > b ? a : b)                                                \
    GPULUA_PACKED(__vmins##lanes, S, a < b ? a : b)                                                \
    GPULUA_PACKED(__vminu##lanes, U, a < b ? a : b)                                                \
    GPULUA_PACKED_ONE(__vneg##lanes, U, -a)                                                        \
    GPULUA_PACKED_ONE(__vnegss##lanes, S, gpulua_clamp(-a, smin, smax))                            \
    GPULUA_PACKED_ONE(__vabs##lanes, S, a < 0 ? -a : a)                                            \
    GPULUA_PACKED_ONE(__vabsss##lanes, S, gpulua_clamp(a < 0 ? -a : a, smin, smax))                \
    GPULUA_PACKED_COMPARE(eq##lanes, U, a == b)                                                    \
    GPULUA_PACKED_COMPARE(ne##lanes, U, a != b)                                                    \
    GPULUA_PACKED_COMPARE(ges##lanes, S, a >= b)                                                   \
    GPULUA_PACKED_COMPARE(geu##lanes, U, a >= b)                                                   \
    GPULUA_PACKED_COMPARE(gts##lanes, S, a > b)                                                    \
    GPULUA_PACKED_COMPARE(gtu##lanes, U, a > b)                                                    \
    GPULUA_PACKED_COMPARE(les##lanes, S, a <= b)                                                   \
    GPULUA_PACKED_COMPARE(leu##lanes, U, a <= b)                                                   \
    GPULUA_PACKED_COMPARE(lts##lanes, S, a < b)                                                    \
    GPULUA_PACKED_COMPARE(ltu##lanes, U, a < b)                                                    \
    GPULUA_INLINE unsigned __vsads##lanes(unsigned x, unsigned y) {                                \
        return gpulua_packed_sum<U>(__vabsdiffs##lanes(x, y));                                     \
    }                                                                                              \
    GPULUA_INLINE unsigned __vsadu##lanes(unsigned x, unsigned y) {                                \
        return gpulua_packed_sum<U>(__vabsdiffu##lanes(x, y));                                     \
    }
#define GPULUA_PACKED_COMPARE(name, Element, expression)                                           \
    GPULUA_PACKED(__vcmp##name, Element, (expression) ? -1 : 0)                                    \
    GPULUA_PACKED(__vset##name, Element, (expression) ? 1 : 0)
template <class Element> GPULUA_INLINE unsigned gpulua_packed_sum(unsigned x) {
    unsigned sum = 0;
    for (unsigned at = 0; at < 32u; at += sizeof(Element) * 8) {
        sum += (Element)(x >> at);
    }
    return sum;
}
GPULUA_X(2, short, unsigned short, -32768, 32767, 65535)
GPULUA_X(4, signed char, unsigned char, -128, 127, 255)
#undef GPULUA_X

// ---- sums and extremes of three at once (DPX) ----

GPULUA_INLINE int gpulua_sum(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
GPULUA_INLINE unsigned gpulua_sum(unsigned a, unsigned b) { return a + b; }
template <class T> GPULUA_INLINE T gpulua_larger(T a, T b) { return a > b ? a : b; }
template <class T> GPULUA_INLINE T gpulua_smaller(T a, T b) { return a < b ? a : b; }

#define GPULUA_DPX(type, T, sum, larger, smaller)                                                  \
    GPULUA_INLINE T __viaddmax_##type(T a, T b, T c) { return larger(sum(a, b), c); }              \
    GPULUA_INLINE T __viaddmin_##type(T a, T b, T c) { return smaller(sum(a, b), c); }             \
    GPULUA_INLINE T __vimax3_##type(T a, T b, T c) { return larger(larger(a, b), c); }             \
    GPULUA_INLINE T __vimin3_##type(T a, T b, T c) { return smaller(smaller(a, b), c); }
#define GPULUA_DPX_RELU_3(name, T, larger)                                                         \
    GPULUA_INLINE T name##_relu(T a, T b, T c) { return larger(name(a, b, c), T(0)); }
#define GPULUA_DPX_RELU(type, T, larger, smaller)                                                  \
    GPULUA_DPX_RELU_3(__viaddmax_##type, T, larger)                                                \
    GPULUA_DPX_RELU_3(__viaddmin_##type, T, larger)                                                \
    GPULUA_DPX_RELU_3(__vimax3_##type, T, larger)                                                  \
    GPULUA_DPX_RELU_3(__vimin3_##type, T, larger)                                                  \
    GPULUA_INLINE T __vimax_##type##_relu(T a, T b) { return larger(larger(a, b), T(0)); }         \
    GPULUA_INLINE T __vimin_##type##_relu(T a, T b) { return larger(smaller(a, b), T(0)); }
GPULUA_DPX(s32, int, gpulua_sum, gpulua_larger, gpulua_smaller)
GPULUA_DPX(u32, unsigned, gpulua_sum, gpulua_larger, gpulua_smaller)
GPULUA_DPX(s16x2, unsigned, __vadd2, __vmaxs2, __vmins2)
GPULUA_DPX(u16x2, unsigned, __vadd2, __vmaxu2, __vminu2)
GPULUA_DPX_RELU(s32, int, gpulua_larger, gpulua_smaller)
GPULUA_DPX_RELU(s16x2, unsigned, __vmaxs2, __vmins2)

// These also say whether it is the first.
#define GPULUA_DPX_WHICH(name, type, T, order, extreme)                                            \
    GPULUA_INLINE T name##_##type(T a, T b, bool *is_first) {                                      \
        *is_first = a order b;                                                                     \
        return extreme(a, b);                                                                      \
    }
#define GPULUA_DPX_WHICH_2(name, type, Half, order, extreme)                                       \
    GPULUA_INLINE unsigned name##_##type(unsigned a, unsigned b, bool *high, bool *low) {          \
        *high = (Half)(a >> 16) order(Half)(b >> 16);                                              \
        *low = (Half)a order(Half) b;                                                              \
        return extreme(a, b);                                                                      \
    }
GPULUA_DPX_WHICH(__vibmax, s32, int, >=, gpulua_larger)
GPULUA_DPX_WHICH(__vibmax, u32, unsigned, >=, gpulua_larger)
GPULUA_DPX_WHICH(__vibmin, s32, int, <=, gpulua_smaller)
GPULUA_DPX_WHICH(__vibmin, u32, unsigned, <=, gpulua_smaller)
GPULUA_DPX_WHICH_2(__vibmax, s16x2, short, >=, __vmaxs2)
GPULUA_DPX_WHICH_2(__vibmax, u16x2, unsigned short, >=, __vmaxu2)
GPULUA_DPX_WHICH_2(__vibmin, s16x2, short, <=, __vmins2)
GPULUA_DPX_WHICH_2(__vibmin, u16x2, unsigned short, <=, __vminu2)

#endif
