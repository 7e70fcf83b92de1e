// __nv_bfloat16 and __nv_bfloat162: the upper half of a float.
#ifndef GPULUA_CUDA_BF16_H
#define GPULUA_CUDA_BF16_H

#include "gpulua_small_float.h"

struct __nv_bfloat16;
struct __nv_bfloat162;
GPULUA_INLINE float gpulua_to_float(__nv_bfloat16 x);
GPULUA_INLINE void gpulua_round(__nv_bfloat16 *result, float x);

struct __nv_bfloat16_raw { unsigned short x; };
struct __attribute__((aligned(4))) __nv_bfloat162_raw { unsigned short x, y; };

struct __attribute__((aligned(2), may_alias)) __nv_bfloat16 {
    GPULUA_SMALL_MEMBERS(__nv_bfloat16, __nv_bfloat16_raw)
};
struct __attribute__((aligned(4), may_alias)) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __attribute__((always_inline)) __nv_bfloat162(const __nv_bfloat16 &a, const __nv_bfloat16 &b)
        : x(a), y(b) {}
    __attribute__((always_inline)) __nv_bfloat162(const __nv_bfloat162_raw &raw)
        : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
    __attribute__((always_inline)) operator __nv_bfloat162_raw() const { return {x.__x, y.__x}; }
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

GPULUA_INLINE float gpulua_to_float(__nv_bfloat16 x) {
    return __uint_as_float((unsigned)x.__x << 16);
}
GPULUA_INLINE void gpulua_round(__nv_bfloat16 *result, float x) {
    unsigned bits = __float_as_uint(x);
    unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    result->__x = (unsigned short)(x != x ? 0x7fffu : rounded);
}

constexpr const char *gpulua_small_name(__nv_bfloat16 *) { return "bf16"; }
GPULUA_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162, __nv_bfloat16_raw,
                   __nv_bfloat162_raw)

#endif
