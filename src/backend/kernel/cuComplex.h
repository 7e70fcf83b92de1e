// Complex numbers under the toolkit's names, as float2 and double2: buffers of c64 and c128 are arrays of them.
#ifndef GPULUA_CUCOMPLEX_H
#define GPULUA_CUCOMPLEX_H

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

// SUFFIX is f for floats and nothing for doubles. The quotient and the absolute value do not overflow on the way.
#define GPULUA_COMPLEX(COMPLEX, NUMBER, REAL, SUFFIX)                                                                  \
    static __inline__ __host__ __device__ COMPLEX make_##COMPLEX(REAL re, REAL im) {                                   \
        return make_##NUMBER(re, im);                                                                                  \
    }                                                                                                                  \
    static __inline__ __host__ __device__ REAL cuCreal##SUFFIX(COMPLEX a) {                                            \
        return a.x;                                                                                                    \
    }                                                                                                                  \
    static __inline__ __host__ __device__ REAL cuCimag##SUFFIX(COMPLEX a) {                                            \
        return a.y;                                                                                                    \
    }                                                                                                                  \
    static __inline__ __host__ __device__ COMPLEX cuConj##SUFFIX(COMPLEX a) {                                          \
        return make_##NUMBER(a.x, -a.y);                                                                               \
    }                                                                                                                  \
    static __inline__ __host__ __device__ COMPLEX cuCadd##SUFFIX(COMPLEX a, COMPLEX b) {                               \
        return make_##NUMBER(a.x + b.x, a.y + b.y);                                                                    \
    }                                                                                                                  \
    static __inline__ __host__ __device__ COMPLEX cuCsub##SUFFIX(COMPLEX a, COMPLEX b) {                               \
        return make_##NUMBER(a.x - b.x, a.y - b.y);                                                                    \
    }                                                                                                                  \
    static __inline__ __host__ __device__ COMPLEX cuCmul##SUFFIX(COMPLEX a, COMPLEX b) {                               \
        return make_##NUMBER(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);                                            \
    }                                                                                                                  \
    static __inline__ __host__ __device__ COMPLEX cuCfma##SUFFIX(COMPLEX a, COMPLEX b, COMPLEX c) {                    \
        return make_##NUMBER(fma##SUFFIX(a.x, b.x, fma##SUFFIX(-a.y, b.y, c.x)),                                       \
                             fma##SUFFIX(a.x, b.y, fma##SUFFIX(a.y, b.x, c.y)));                                       \
    }                                                                                                                  \
    static __inline__ __host__ __device__ COMPLEX cuCdiv##SUFFIX(COMPLEX a, COMPLEX b) {                               \
        REAL unit = 1 / (fabs##SUFFIX(b.x) + fabs##SUFFIX(b.y)), x = b.x * unit, y = b.y * unit;                       \
        REAL re = a.x * unit, im = a.y * unit, by = 1 / (x * x + y * y);                                               \
        return make_##NUMBER((re * x + im * y) * by, (im * x - re * y) * by);                                          \
    }                                                                                                                  \
    static __inline__ __host__ __device__ REAL cuCabs##SUFFIX(COMPLEX a) {                                             \
        return hypot##SUFFIX(a.x, a.y);                                                                                \
    }

GPULUA_COMPLEX(cuFloatComplex, float2, float, f)
GPULUA_COMPLEX(cuDoubleComplex, double2, double, )
#undef GPULUA_COMPLEX

static __inline__ __host__ __device__ cuComplex make_cuComplex(float re, float im) {
    return make_float2(re, im);
}
static __inline__ __host__ __device__ cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex a) {
    return make_double2(a.x, a.y);
}
static __inline__ __host__ __device__ cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex a) {
    return make_float2((float)a.x, (float)a.y);
}

#endif
