// __half and __half2: IEEE binary16.
#ifndef GPULUA_CUDA_FP16_H
#define GPULUA_CUDA_FP16_H

#include "gpulua_small_float.h"

struct __half;
struct __half2;
GPULUA_INLINE float gpulua_to_float(__half x);
GPULUA_INLINE void gpulua_round(__half *result, float x);

struct __half_raw { unsigned short x; };
struct __attribute__((aligned(4))) __half2_raw { unsigned short x, y; };

struct __attribute__((aligned(2), may_alias)) __half { GPULUA_SMALL_MEMBERS(__half, __half_raw) };
struct __attribute__((aligned(4), may_alias)) __half2 {
    __half x, y;
    __half2() = default;
    __attribute__((always_inline)) __half2(const __half &a, const __half &b) : x(a), y(b) {}
    __attribute__((always_inline)) __half2(const __half2_raw &raw)
        : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
    __attribute__((always_inline)) operator __half2_raw() const { return {x.__x, y.__x}; }
};
typedef __half half;
typedef __half2 half2;
typedef __half __nv_half;
typedef __half2 __nv_half2;
typedef __half_raw __nv_half_raw;
typedef __half2_raw __nv_half2_raw;

#if defined(__F16C__) && defined(__clang__)
#define GPULUA_HALF_STORAGE __fp16
#elif (defined(__F16C__) || defined(__aarch64__)) && defined(__FLT16_MANT_DIG__) && __GNUC__ >= 12
#define GPULUA_HALF_STORAGE _Float16
#endif

GPULUA_INLINE float gpulua_to_float(__half x) {
#ifdef GPULUA_HALF_STORAGE
    GPULUA_HALF_STORAGE storage;
    __builtin_memcpy(&storage, &x.__x, sizeof storage);
    return (float)storage;
#else
    unsigned bits = x.__x, sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
    if (rest >= 0x0f800000u) { // infinite or not a number
        unsigned quiet = (rest & 0x007fffffu) != 0u ? 0x00400000u : 0u;
        return __uint_as_float(sign | 0x7f800000u | (rest & 0x007fffffu) | quiet);
    }
    // As a float the exponent is 112 too small; the multiplication also makes subnormals right.
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest) * 0x1p112f));
#endif
}
GPULUA_INLINE void gpulua_round(__half *result, float x) {
#ifdef GPULUA_HALF_STORAGE
    GPULUA_HALF_STORAGE storage = (GPULUA_HALF_STORAGE)x;
    __builtin_memcpy(&result->__x, &storage, sizeof storage);
#else
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        rest = 0x7fffu;
    } else if (rest >= 0x477ff000u) { // rounds to more than the largest
        rest = 0x7c00u;
    } else if (rest < 0x38800000u) { // subnormal: adding 0.5 leaves the bits that are kept
        rest = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;
    } else {
        rest = (rest + 0xfffu + (rest >> 13 & 1u) - 0x38000000u) >> 13;
    }
    result->__x = (unsigned short)(sign | rest);
#endif
}

constexpr const char *gpulua_small_name(__half *) { return "f16"; }
GPULUA_SMALL_FLOAT(__half, __half2, half, half2, __half_raw, __half2_raw)

GPULUA_INLINE signed char __half2char_rz(__half x) {
    return gpulua_narrow<signed char>(__builtin_truncf(gpulua_to_float(x)));
}
GPULUA_INLINE unsigned char __half2uchar_rz(__half x) {
    return gpulua_narrow<unsigned char>(__builtin_truncf(gpulua_to_float(x)));
}

#endif
