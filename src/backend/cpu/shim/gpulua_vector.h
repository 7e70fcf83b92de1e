// CUDA's vector types, dim3 and their makers.
#ifndef GPULUA_VECTOR_H
#define GPULUA_VECTOR_H

// X(name, element, alignment of 1, 2, 3, 4 elements)
#define GPULUA_VECTOR_TYPES(X)                                                                     \
    X(char, signed char, 1, 2, 1, 4)                                                               \
    X(uchar, unsigned char, 1, 2, 1, 4)                                                            \
    X(short, short, 2, 4, 2, 8)                                                                    \
    X(ushort, unsigned short, 2, 4, 2, 8)                                                          \
    X(int, int, 4, 8, 4, 16)                                                                       \
    X(uint, unsigned int, 4, 8, 4, 16)                                                             \
    X(long, long, 8, 16, 8, 16)                                                                    \
    X(ulong, unsigned long, 8, 16, 8, 16)                                                          \
    X(longlong, long long, 8, 16, 8, 16)                                                           \
    X(ulonglong, unsigned long long, 8, 16, 8, 16)                                                 \
    X(float, float, 4, 8, 4, 16)                                                                   \
    X(double, double, 8, 16, 8, 16)

#define GPULUA_X(name, element, a1, a2, a3, a4)                                                    \
    struct __attribute__((aligned(a1), may_alias)) name##1 { element x; };                         \
    struct __attribute__((aligned(a2), may_alias)) name##2 { element x, y; };                      \
    struct __attribute__((aligned(a3), may_alias)) name##3 { element x, y, z; };                   \
    struct __attribute__((aligned(a4), may_alias)) name##4 { element x, y, z, w; };                \
    GPULUA_INLINE constexpr name##1 make_##name##1(element x) { return name##1{x}; }               \
    GPULUA_INLINE constexpr name##2 make_##name##2(element x, element y) {                         \
        return name##2{x, y};                                                                      \
    }                                                                                              \
    GPULUA_INLINE constexpr name##3 make_##name##3(element x, element y, element z) {              \
        return name##3{x, y, z};                                                                   \
    }                                                                                              \
    GPULUA_INLINE constexpr name##4 make_##name##4(element x, element y, element z, element w) {   \
        return name##4{x, y, z, w};                                                                \
    }
GPULUA_VECTOR_TYPES(GPULUA_X)
#undef GPULUA_X

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

#endif
