// What __half and __nv_bfloat16 have in common: everything but their bits.
//
// Arithmetic is done in float and rounded once more: float has more than twice the bits and two, so
// sums, products, quotients and square roots come out as if rounded once. A fused multiply-add is
// done in double and rounded to odd on the way, which makes it exact too.
#ifndef GPULUA_SMALL_FLOAT_H
#define GPULUA_SMALL_FLOAT_H

// x rounded to a float whose last bit is set when it is not exact: what is rounded again to fewer
// bits afterwards is rounded as x itself would be.
GPULUA_INLINE float gpulua_odd_float(double x) {
    float near = (float)x;
    if ((double)near == x || x != x) {
        return near;
    }
    unsigned bits = __float_as_uint(near);
    bits -= __builtin_fabs((double)near) > __builtin_fabs(x) ? 1u : 0u;
    return __uint_as_float(bits | 1u);
}
// a * b + c likewise; the product of two small floats is exact in double.
GPULUA_INLINE double gpulua_odd_fma(float a, float b, float c) {
    double product = (double)a * (double)b, sum, error;
    __asm__("" : "+" GPULUA_FLOAT_REGISTER(product)); // not to be fused: its rounding is looked at
    sum = product + (double)c;
    double part = sum - product;
    error = (product - (sum - part)) + ((double)c - part);
    if (error == 0.0 || error != error || __builtin_isinf(sum)) {
        return sum;
    }
    long long bits = __double_as_longlong(sum);
    bits -= (error > 0.0) != (sum > 0.0) ? 1 : 0; // rounded away from zero: back
    return __longlong_as_double(bits | 1);
}

// T, T2: the types. S, S2: how functions call them. Before it: gpulua_to_float(T) and
// gpulua_round(T *, float), to nearest even. `word` is the member with the bits.
#define GPULUA_SMALL_FLOAT(T, T2, S, S2, Raw, Raw2)                                                \
    GPULUA_INLINE T gpulua_##S(float x) {                                                          \
        T result;                                                                                  \
        gpulua_round(&result, x);                                                                  \
        return result;                                                                             \
    }                                                                                              \
    GPULUA_INLINE T gpulua_##S(double x) { return gpulua_##S(gpulua_odd_float(x)); }               \
    GPULUA_INLINE T gpulua_##S##_bits(unsigned bits) {                                             \
        T result;                                                                                  \
        result.__x = (unsigned short)bits;                                                         \
        return result;                                                                             \
    }                                                                                              \
    /* One step up (+1) or down (-1) in value. */                                                  \
    GPULUA_INLINE T gpulua_##S##_step(T x, int step) {                                             \
        unsigned bits = x.__x;                                                                     \
        if ((bits & 0x7fffu) == 0u) {                                                              \
            return gpulua_##S##_bits(step > 0 ? 1u : 0x8001u);                                     \
        }                                                                                          \
        return gpulua_##S##_bits((bits & 0x8000u) != 0u ? bits - (unsigned)step                    \
                                                        : bits + (unsigned)step);                  \
    }                                                                                              \
    GPULUA_INLINE T gpulua_##S##_directed(double x, gpulua_rounding mode) {                        \
        T near = gpulua_##S(x);                                                                    \
        double back = (double)gpulua_to_float(near);                                               \
        if (back == x || x != x) {                                                                 \
            return near;                                                                           \
        }                                                                                          \
        bool is_above = back > x;                                                                  \
        if (mode == GPULUA_RD || (mode == GPULUA_RZ && x > 0.0)) {                                 \
            return is_above ? gpulua_##S##_step(near, -1) : near;                                  \
        }                                                                                          \
        return is_above ? near : gpulua_##S##_step(near, 1);                                       \
    }                                                                                              \
    GPULUA_INLINE T __float2##S(float x) { return gpulua_##S(x); }                                 \
    GPULUA_INLINE T __float2##S##_rn(float x) { return gpulua_##S(x); }                            \
    GPULUA_INLINE T __float2##S##_rz(float x) { return gpulua_##S##_directed(x, GPULUA_RZ); }      \
    GPULUA_INLINE T __float2##S##_rd(float x) { return gpulua_##S##_directed(x, GPULUA_RD); }      \
    GPULUA_INLINE T __float2##S##_ru(float x) { return gpulua_##S##_directed(x, GPULUA_RU); }      \
    GPULUA_INLINE T __double2##S(double x) { return gpulua_##S(x); }                               \
    GPULUA_INLINE float __##S##2float(T x) { return gpulua_to_float(x); }                          \
    GPULUA_INLINE short __##S##_as_short(T x) { return (short)x.__x; }                             \
    GPULUA_INLINE unsigned short __##S##_as_ushort(T x) { return x.__x; }                          \
    GPULUA_INLINE T __short_as_##S(short x) { return gpulua_##S##_bits((unsigned)x); }             \
    GPULUA_INLINE T __ushort_as_##S(unsigned short x) { return gpulua_##S##_bits(x); }             \
    GPULUA_SMALL_CONVERT(T, S, int, int, int)                                                      \
    GPULUA_SMALL_CONVERT(T, S, uint, unsigned, uint)                                               \
    GPULUA_SMALL_CONVERT(T, S, short, short, int)                                                  \
    GPULUA_SMALL_CONVERT(T, S, ushort, unsigned short, uint)                                       \
    GPULUA_SMALL_CONVERT(T, S, ll, long long, ll)                                                  \
    GPULUA_SMALL_CONVERT(T, S, ull, unsigned long long, ull)                                       \
    /* pairs */                                                                                    \
    GPULUA_INLINE T2 __halves2##S2(T x, T y) { return T2(x, y); }                                  \
    GPULUA_INLINE T2 make_##S2(T x, T y) { return T2(x, y); }                                      \
    GPULUA_INLINE T2 __##S##2##S2(T x) { return T2(x, x); }                                        \
    GPULUA_INLINE T2 __float2##S2##_rn(float x) { return T2(gpulua_##S(x), gpulua_##S(x)); }       \
    GPULUA_INLINE T2 __floats2##S2##_rn(float x, float y) {                                        \
        return T2(gpulua_##S(x), gpulua_##S(y));                                                   \
    }                                                                                              \
    GPULUA_INLINE T2 __float22##S2##_rn(float2 x) { return __floats2##S2##_rn(x.x, x.y); }         \
    GPULUA_INLINE float2 __##S2##2float2(T2 x) {                                                   \
        return float2{gpulua_to_float(x.x), gpulua_to_float(x.y)};                                 \
    }                                                                                              \
    GPULUA_INLINE float __low2float(T2 x) { return gpulua_to_float(x.x); }                         \
    GPULUA_INLINE float __high2float(T2 x) { return gpulua_to_float(x.y); }                        \
    GPULUA_INLINE T __low2##S(T2 x) { return x.x; }                                                \
    GPULUA_INLINE T __high2##S(T2 x) { return x.y; }                                               \
    GPULUA_INLINE T2 __low2##S2(T2 x) { return T2(x.x, x.x); }                                     \
    GPULUA_INLINE T2 __high2##S2(T2 x) { return T2(x.y, x.y); }                                    \
    GPULUA_INLINE T2 __lows2##S2(T2 x, T2 y) { return T2(x.x, y.x); }                              \
    GPULUA_INLINE T2 __highs2##S2(T2 x, T2 y) { return T2(x.y, y.y); }                             \
    GPULUA_INLINE T2 __lowhigh2highlow(T2 x) { return T2(x.y, x.x); }                              \
    /* arithmetic */                                                                               \
    GPULUA_SMALL_BINARY(T, T2, S, add, +)                                                          \
    GPULUA_SMALL_BINARY(T, T2, S, sub, -)                                                          \
    GPULUA_SMALL_BINARY(T, T2, S, mul, *)                                                          \
    GPULUA_INLINE T __hdiv(T a, T b) {                                                             \
        return gpulua_##S(gpulua_to_float(a) / gpulua_to_float(b));                                \
    }                                                                                              \
    GPULUA_INLINE T2 __h2div(T2 a, T2 b) { return T2(__hdiv(a.x, b.x), __hdiv(a.y, b.y)); }        \
    GPULUA_INLINE T gpulua_saturate_small(T x) {                                                   \
        return gpulua_##S(__saturatef(gpulua_to_float(x)));                                        \
    }                                                                                              \
    GPULUA_INLINE T __hfma(T a, T b, T c) {                                                        \
        return gpulua_##S(                                                                         \
            gpulua_odd_fma(gpulua_to_float(a), gpulua_to_float(b), gpulua_to_float(c)));           \
    }                                                                                              \
    GPULUA_INLINE T __hfma_sat(T a, T b, T c) { return gpulua_saturate_small(__hfma(a, b, c)); }   \
    GPULUA_INLINE T __hfma_relu(T a, T b, T c) {                                                   \
        T r = __hfma(a, b, c);                                                                     \
        return gpulua_to_float(r) < 0.0f ? gpulua_##S##_bits(0u) : r;                              \
    }                                                                                              \
    GPULUA_INLINE T2 __hfma2(T2 a, T2 b, T2 c) {                                                   \
        return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                   \
    }                                                                                              \
    GPULUA_INLINE T2 __hfma2_sat(T2 a, T2 b, T2 c) {                                               \
        return T2(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y));                           \
    }                                                                                              \
    GPULUA_INLINE T2 __hfma2_relu(T2 a, T2 b, T2 c) {                                              \
        return T2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y));                         \
    }                                                                                              \
    GPULUA_INLINE T __hneg(T x) { return gpulua_##S##_bits(x.__x ^ 0x8000u); }                     \
    GPULUA_INLINE T __habs(T x) { return gpulua_##S##_bits(x.__x & 0x7fffu); }                     \
    GPULUA_INLINE T2 __hneg2(T2 x) { return T2(__hneg(x.x), __hneg(x.y)); }                        \
    GPULUA_INLINE T2 __habs2(T2 x) { return T2(__habs(x.x), __habs(x.y)); }                        \
    GPULUA_INLINE bool __hisnan(T x) { return __builtin_isnan(gpulua_to_float(x)); }               \
    GPULUA_INLINE int __hisinf(T x) { return __builtin_isinf_sign(gpulua_to_float(x)); }           \
    GPULUA_INLINE T2 __hisnan2(T2 x) {                                                             \
        return T2(gpulua_##S(__hisnan(x.x) ? 1.0f : 0.0f),                                         \
                  gpulua_##S(__hisnan(x.y) ? 1.0f : 0.0f));                                        \
    }                                                                                              \
    /* Of a number and a NaN the number; a zero is smaller than the other when it is negative. */  \
    GPULUA_INLINE T __hmin(T a, T b) {                                                             \
        float x = gpulua_to_float(a), y = gpulua_to_float(b);                                      \
        T zero = gpulua_##S##_bits((unsigned)(a.__x | b.__x));                                     \
        return y != y || x < y ? a : x == y ? zero : b;                                            \
    }                                                                                              \
    GPULUA_INLINE T __hmax(T a, T b) {                                                             \
        float x = gpulua_to_float(a), y = gpulua_to_float(b);                                      \
        T zero = gpulua_##S##_bits((unsigned)(a.__x & b.__x));                                     \
        return y != y || x > y ? a : x == y ? zero : b;                                            \
    }                                                                                              \
    GPULUA_INLINE T __hmin_nan(T a, T b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmin(a, b); } \
    GPULUA_INLINE T __hmax_nan(T a, T b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmax(a, b); } \
    GPULUA_INLINE T2 __hmin2(T2 a, T2 b) { return T2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }        \
    GPULUA_INLINE T2 __hmax2(T2 a, T2 b) { return T2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }        \
    /* comparisons */                                                                              \
    GPULUA_SMALL_COMPARE(T, T2, S, eq, ==)                                                         \
    GPULUA_SMALL_COMPARE(T, T2, S, ne, !=)                                                         \
    GPULUA_SMALL_COMPARE(T, T2, S, lt, <)                                                          \
    GPULUA_SMALL_COMPARE(T, T2, S, le, <=)                                                         \
    GPULUA_SMALL_COMPARE(T, T2, S, gt, >)                                                          \
    GPULUA_SMALL_COMPARE(T, T2, S, ge, >=)                                                         \
    /* operators */                                                                                \
    GPULUA_SMALL_OPERATOR(T, T2, +, __hadd, __hadd2)                                               \
    GPULUA_SMALL_OPERATOR(T, T2, -, __hsub, __hsub2)                                               \
    GPULUA_SMALL_OPERATOR(T, T2, *, __hmul, __hmul2)                                               \
    GPULUA_SMALL_OPERATOR(T, T2, /, __hdiv, __h2div)                                               \
    GPULUA_INLINE T operator+(const T &x) { return x; }                                            \
    GPULUA_INLINE T operator-(const T &x) { return __hneg(x); }                                    \
    GPULUA_INLINE T2 operator+(const T2 &x) { return x; }                                          \
    GPULUA_INLINE T2 operator-(const T2 &x) { return __hneg2(x); }                                 \
    GPULUA_INLINE T &operator++(T &x) { return x = __hadd(x, gpulua_##S(1.0f)); }                  \
    GPULUA_INLINE T &operator--(T &x) { return x = __hsub(x, gpulua_##S(1.0f)); }                  \
    GPULUA_INLINE T operator++(T &x, int) {                                                        \
        T old = x;                                                                                 \
        ++x;                                                                                       \
        return old;                                                                                \
    }                                                                                              \
    GPULUA_INLINE T operator--(T &x, int) {                                                        \
        T old = x;                                                                                 \
        --x;                                                                                       \
        return old;                                                                                \
    }                                                                                              \
    /* functions, in float */                                                                      \
    GPULUA_SMALL_FUNCTION(T, T2, S, sin, __builtin_sinf)                                           \
    GPULUA_SMALL_FUNCTION(T, T2, S, cos, __builtin_cosf)                                           \
    GPULUA_SMALL_FUNCTION(T, T2, S, exp, __builtin_expf)                                           \
    GPULUA_SMALL_FUNCTION(T, T2, S, exp2, __builtin_exp2f)                                         \
    GPULUA_SMALL_FUNCTION(T, T2, S, exp10, exp10f)                                                 \
    GPULUA_SMALL_FUNCTION(T, T2, S, log, __builtin_logf)                                           \
    GPULUA_SMALL_FUNCTION(T, T2, S, log2, __builtin_log2f)                                         \
    GPULUA_SMALL_FUNCTION(T, T2, S, log10, __builtin_log10f)                                       \
    GPULUA_SMALL_FUNCTION(T, T2, S, sqrt, __builtin_sqrtf)                                         \
    GPULUA_SMALL_FUNCTION(T, T2, S, rsqrt, rsqrtf)                                                 \
    GPULUA_SMALL_FUNCTION(T, T2, S, rcp, 1.0f /)                                                   \
    GPULUA_SMALL_FUNCTION(T, T2, S, tanh, __builtin_tanhf)                                         \
    GPULUA_SMALL_FUNCTION(T, T2, S, floor, __builtin_floorf)                                       \
    GPULUA_SMALL_FUNCTION(T, T2, S, ceil, __builtin_ceilf)                                         \
    GPULUA_SMALL_FUNCTION(T, T2, S, trunc, __builtin_truncf)                                       \
    GPULUA_SMALL_FUNCTION(T, T2, S, rint, __builtin_rintf)                                         \
    /* warps and memory */                                                                         \
    GPULUA_SHUFFLES(T)                                                                             \
    GPULUA_SHUFFLES(T2)                                                                            \
    GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicAdd, T, unsigned short, old + value)                 \
    GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicAdd, T2, unsigned, old + value)                      \
    template <> struct gpulua_element<T> {                                                         \
        static constexpr const char *code = gpulua_small_name((T *)nullptr);                       \
        static constexpr unsigned lanes = 1;                                                       \
    };                                                                                             \
    template <> struct gpulua_element<T2> {                                                        \
        static constexpr const char *code = gpulua_small_name((T *)nullptr);                       \
        static constexpr unsigned lanes = 2;                                                       \
    };                                                                                             \
    template <> struct gpulua_param<T> {                                                           \
        static cpu_type_facts facts() {                                                            \
            return {gpulua_element<T>::code, gpulua_spelling<T>(), 1, CPU_PARAM_SCALAR, sizeof(T), \
                    alignof(T)};                                                                   \
        }                                                                                          \
    };

#define GPULUA_SMALL_CONVERT(T, S, name, I, Via)                                                   \
    GPULUA_INLINE I __##S##2##name##_rn(T x) {                                                     \
        return (I)gpulua_narrow<I>(__builtin_rintf(gpulua_to_float(x)));                           \
    }                                                                                              \
    GPULUA_INLINE I __##S##2##name##_rz(T x) {                                                     \
        return (I)gpulua_narrow<I>(__builtin_truncf(gpulua_to_float(x)));                          \
    }                                                                                              \
    GPULUA_INLINE I __##S##2##name##_rd(T x) {                                                     \
        return (I)gpulua_narrow<I>(__builtin_floorf(gpulua_to_float(x)));                          \
    }                                                                                              \
    GPULUA_INLINE I __##S##2##name##_ru(T x) {                                                     \
        return (I)gpulua_narrow<I>(__builtin_ceilf(gpulua_to_float(x)));                           \
    }                                                                                              \
    GPULUA_INLINE T __##name##2##S##_rn(I x) { return gpulua_##S(gpulua_odd_integer(x)); }         \
    GPULUA_INLINE T __##name##2##S##_rz(I x) {                                                     \
        return gpulua_##S##_directed(gpulua_odd_integer(x), GPULUA_RZ);                            \
    }                                                                                              \
    GPULUA_INLINE T __##name##2##S##_rd(I x) {                                                     \
        return gpulua_##S##_directed(gpulua_odd_integer(x), GPULUA_RD);                            \
    }                                                                                              \
    GPULUA_INLINE T __##name##2##S##_ru(I x) {                                                     \
        return gpulua_##S##_directed(gpulua_odd_integer(x), GPULUA_RU);                            \
    }
#define GPULUA_SMALL_BINARY(T, T2, S, name, operation)                                             \
    GPULUA_INLINE T __h##name(T a, T b) {                                                          \
        float result = gpulua_to_float(a) operation gpulua_to_float(b);                            \
        return gpulua_##S(result);                                                                 \
    }                                                                                              \
    GPULUA_INLINE T __h##name##_rn(T a, T b) { return __h##name(a, b); }                           \
    GPULUA_INLINE T __h##name##_sat(T a, T b) {                                                    \
        return gpulua_##S(__saturatef(gpulua_to_float(__h##name(a, b))));                          \
    }                                                                                              \
    GPULUA_INLINE T2 __h##name##2(T2 a, T2 b) {                                                    \
        return T2(__h##name(a.x, b.x), __h##name(a.y, b.y));                                       \
    }                                                                                              \
    GPULUA_INLINE T2 __h##name##2_rn(T2 a, T2 b) { return __h##name##2(a, b); }                    \
    GPULUA_INLINE T2 __h##name##2_sat(T2 a, T2 b) {                                                \
        return T2(__h##name##_sat(a.x, b.x), __h##name##_sat(a.y, b.y));                           \
    }
#define GPULUA_SMALL_COMPARE(T, T2, S, name, operation)                                            \
    GPULUA_INLINE bool __h##name(T a, T b) {                                                       \
        float x = gpulua_to_float(a), y = gpulua_to_float(b);                                      \
        return x operation y && x == x && y == y;                                                  \
    }                                                                                              \
    GPULUA_INLINE bool __h##name##u(T a, T b) {                                                    \
        float x = gpulua_to_float(a), y = gpulua_to_float(b);                                      \
        return x operation y || x != x || y != y;                                                  \
    }                                                                                              \
    GPULUA_INLINE T2 __h##name##2(T2 a, T2 b) {                                                    \
        return T2(gpulua_##S(__h##name(a.x, b.x) ? 1.0f : 0.0f),                                   \
                  gpulua_##S(__h##name(a.y, b.y) ? 1.0f : 0.0f));                                  \
    }                                                                                              \
    GPULUA_INLINE T2 __h##name##u2(T2 a, T2 b) {                                                   \
        return T2(gpulua_##S(__h##name##u(a.x, b.x) ? 1.0f : 0.0f),                                \
                  gpulua_##S(__h##name##u(a.y, b.y) ? 1.0f : 0.0f));                               \
    }                                                                                              \
    GPULUA_INLINE unsigned __h##name##2_mask(T2 a, T2 b) {                                         \
        return (__h##name(a.x, b.x) ? 0xffffu : 0u) | (__h##name(a.y, b.y) ? 0xffff0000u : 0u);    \
    }                                                                                              \
    GPULUA_INLINE unsigned __h##name##u2_mask(T2 a, T2 b) {                                        \
        return (__h##name##u(a.x, b.x) ? 0xffffu : 0u) |                                           \
               (__h##name##u(a.y, b.y) ? 0xffff0000u : 0u);                                        \
    }                                                                                              \
    GPULUA_INLINE bool __hb##name##2(T2 a, T2 b) {                                                 \
        return __h##name(a.x, b.x) && __h##name(a.y, b.y);                                         \
    }                                                                                              \
    GPULUA_INLINE bool __hb##name##u2(T2 a, T2 b) {                                                \
        return __h##name##u(a.x, b.x) && __h##name##u(a.y, b.y);                                   \
    }                                                                                              \
    GPULUA_INLINE bool operator operation(const T &a, const T &b) {                                \
        return gpulua_to_float(a) operation gpulua_to_float(b);                                    \
    }                                                                                              \
    GPULUA_INLINE bool operator operation(const T2 &a, const T2 &b) { return __hb##name##2(a, b); }
#define GPULUA_SMALL_OPERATOR(T, T2, operation, one, two)                                          \
    GPULUA_INLINE T operator operation(const T &a, const T &b) { return one(a, b); }               \
    GPULUA_INLINE T2 operator operation(const T2 &a, const T2 &b) { return two(a, b); }            \
    GPULUA_INLINE T &operator operation##=(T &a, const T &b) { return a = one(a, b); }             \
    GPULUA_INLINE T2 &operator operation##=(T2 &a, const T2 &b) { return a = two(a, b); }
#define GPULUA_SMALL_FUNCTION(T, T2, S, name, call)                                                \
    GPULUA_INLINE T h##name(T x) { return gpulua_##S(call(gpulua_to_float(x))); }                  \
    GPULUA_INLINE T2 h2##name(T2 x) { return T2(h##name(x.x), h##name(x.y)); }

// A float that is integral already to an integer; out of range gives the nearest end, NaN 0.
template <class I> GPULUA_INLINE I gpulua_narrow(float x) {
    return gpulua_saturate<I>((double)x, sizeof(I) == 8 ? (I)(1ull << 63) : (I)0);
}
// An integer to double, rounded to odd where it has more bits.
template <class I> GPULUA_INLINE double gpulua_odd_integer(I x) {
    double near = (double)x;
    if constexpr (sizeof(I) == 8) {
        __int128 back = (__int128)near;
        if (back != (__int128)x) {
            long long bits = __double_as_longlong(near);
            bits -= (back > (__int128)x) == (near > 0.0) ? 1 : 0;
            near = __longlong_as_double(bits | 1);
        }
    }
    return near;
}

// The members of both types: constructors from numbers, conversions to them, assignment.
#define GPULUA_SMALL_MEMBERS(T, Raw)                                                               \
    unsigned short __x;                                                                            \
    T() = default;                                                                                 \
    __attribute__((always_inline)) T(const Raw &raw) : __x(raw.x) {}                               \
    __attribute__((always_inline)) T(float x) { gpulua_round(this, x); }                           \
    __attribute__((always_inline)) T(double x) { gpulua_round(this, gpulua_odd_float(x)); }        \
    GPULUA_SMALL_FROM(T, short) GPULUA_SMALL_FROM(T, unsigned short) GPULUA_SMALL_FROM(T, int)     \
    GPULUA_SMALL_FROM(T, unsigned) GPULUA_SMALL_FROM(T, long) GPULUA_SMALL_FROM(T, unsigned long)  \
    GPULUA_SMALL_FROM(T, long long) GPULUA_SMALL_FROM(T, unsigned long long)                       \
    __attribute__((always_inline)) operator Raw() const { return Raw{__x}; }                       \
    __attribute__((always_inline)) operator float() const { return gpulua_to_float(*this); }       \
    __attribute__((always_inline)) operator bool() const { return (__x & 0x7fffu) != 0; }          \
    GPULUA_SMALL_TO(signed char) GPULUA_SMALL_TO(unsigned char) GPULUA_SMALL_TO(char)              \
    GPULUA_SMALL_TO(short) GPULUA_SMALL_TO(unsigned short) GPULUA_SMALL_TO(int)                    \
    GPULUA_SMALL_TO(unsigned) GPULUA_SMALL_TO(long) GPULUA_SMALL_TO(unsigned long)                 \
    GPULUA_SMALL_TO(long long) GPULUA_SMALL_TO(unsigned long long)
#define GPULUA_SMALL_FROM(T, I)                                                                    \
    __attribute__((always_inline)) T(I x) {                                                        \
        gpulua_round(this, gpulua_odd_float(gpulua_odd_integer(x)));                               \
    }
#define GPULUA_SMALL_TO(I)                                                                         \
    __attribute__((always_inline)) operator I() const {                                            \
        return gpulua_narrow<I>(__builtin_truncf(gpulua_to_float(*this)));                         \
    }

#endif
