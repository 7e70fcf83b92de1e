// Atomic functions. Relaxed, as CUDA's are; device, block and system scope are one here.
#ifndef GPULUA_ATOMIC_H
#define GPULUA_ATOMIC_H

// X(type), and the scope suffixes
#define GPULUA_SCOPED(M, ...) M(, __VA_ARGS__) M(_block, __VA_ARGS__) M(_system, __VA_ARGS__)

#define GPULUA_ATOMIC_BUILTIN(scope, name, builtin, T)                                             \
    GPULUA_INLINE T name##scope(T *address, T value) {                                             \
        return builtin(address, value, __ATOMIC_RELAXED);                                          \
    }
// What the processor has no instruction for, of `old`. In check mode the first exchange finds the
// value: a read by itself would be seen, behind a fence.
#define GPULUA_ATOMIC_UPDATE(scope, name, T, Word, expression)                                     \
    GPULUA_INLINE T name##scope(T *address, T value) {                                             \
        static_assert(sizeof(T) == sizeof(Word), "same bits");                                     \
        Word *word = reinterpret_cast<Word *>(address);                                            \
        Word bits = GPULUA_IS_CHECKED ? (Word)0 : __atomic_load_n(word, __ATOMIC_RELAXED), next;   \
        T old;                                                                                     \
        do {                                                                                       \
            __builtin_memcpy(&old, &bits, sizeof(T));                                              \
            const T changed = expression;                                                          \
            __builtin_memcpy(&next, &changed, sizeof(T));                                          \
        } while (!__atomic_compare_exchange_n(word, &bits, next, true, __ATOMIC_RELAXED,           \
                                              __ATOMIC_RELAXED));                                  \
        return old;                                                                                \
    }
#define GPULUA_ATOMIC_CAS(scope, T)                                                                \
    GPULUA_INLINE T atomicCAS##scope(T *address, T compare, T value) {                             \
        __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED,             \
                                    __ATOMIC_RELAXED);                                             \
        return compare;                                                                            \
    }
#define GPULUA_ATOMIC_INTEGER(T)                                                                   \
    GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicExch, __atomic_exchange_n, T)                       \
    GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicAnd, __atomic_fetch_and, T)                         \
    GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicOr, __atomic_fetch_or, T)                           \
    GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicXor, __atomic_fetch_xor, T)                         \
    GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicMin, T, T, value < old ? value : old)                \
    GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicMax, T, T, value > old ? value : old)                \
    GPULUA_SCOPED(GPULUA_ATOMIC_CAS, T)
GPULUA_ATOMIC_INTEGER(int)
GPULUA_ATOMIC_INTEGER(unsigned int)
GPULUA_ATOMIC_INTEGER(unsigned long long)
GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicMin, long long, long long, value < old ? value : old)
GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicMax, long long, long long, value > old ? value : old)
GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicAnd, __atomic_fetch_and, long long)
GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicOr, __atomic_fetch_or, long long)
GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicXor, __atomic_fetch_xor, long long)
GPULUA_SCOPED(GPULUA_ATOMIC_CAS, unsigned short)

GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicAdd, __atomic_fetch_add, int)
GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicAdd, __atomic_fetch_add, unsigned int)
GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicAdd, __atomic_fetch_add, unsigned long long)
GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicSub, __atomic_fetch_sub, int)
GPULUA_SCOPED(GPULUA_ATOMIC_BUILTIN, atomicSub, __atomic_fetch_sub, unsigned int)
GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicInc, unsigned int, unsigned int,
              old >= value ? 0u : old + 1u)
GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicDec, unsigned int, unsigned int,
              old == 0u || old > value ? value : old - 1u)
GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicAdd, float, unsigned int, old + value)
GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicAdd, double, unsigned long, old + value)
GPULUA_SCOPED(GPULUA_ATOMIC_UPDATE, atomicExch, float, unsigned int, ((void)old, value))

// Each element by itself is atomic, the whole is not: as in CUDA.
#define GPULUA_X(scope, unused)                                                                    \
    GPULUA_INLINE float2 atomicAdd##scope(float2 *address, float2 value) {                         \
        float x = atomicAdd##scope(&address->x, value.x);                                          \
        float y = atomicAdd##scope(&address->y, value.y);                                          \
        return float2{x, y};                                                                       \
    }                                                                                              \
    GPULUA_INLINE float4 atomicAdd##scope(float4 *address, float4 value) {                         \
        float x = atomicAdd##scope(&address->x, value.x);                                          \
        float y = atomicAdd##scope(&address->y, value.y);                                          \
        float z = atomicAdd##scope(&address->z, value.z);                                          \
        float w = atomicAdd##scope(&address->w, value.w);                                          \
        return float4{x, y, z, w};                                                                 \
    }
GPULUA_SCOPED(GPULUA_X, unused)
#undef GPULUA_X

#endif
