// CUDA C on a host compiler: everything that a kernel may use without including anything.
//
// Compiled once into a precompiled header; kernels, after the token pass of rewrite.c, are compiled
// behind it. No system header is included: a kernel may then use any name that CUDA leaves free,
// and the compiler has little to read. Names that begin with gpulua_ or cpu_ are ours.
#ifndef GPULUA_CUDA_H
#define GPULUA_CUDA_H

#include "gpulua_abi.h"

#define GPULUA_INLINE static inline __attribute__((always_inline))

// Words of CUDA that mean nothing here, or something that the compiler knows by another name. The
// token pass deals with __global__, __shared__, __launch_bounds__ and with what they stand before.
#define __host__
#define __device__
#define __constant__
#define __managed__
#define __grid_constant__
#define __nv_pure__ __attribute__((pure))
#ifndef __clang__
#define __builtin_assume(...) ((void)0)
#endif
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __inline_hint__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef long clock_t;

// What the compiler makes of {1, 2, 3} where nothing else says what it is: it knows these two
// members.
namespace std {
template <class T> class initializer_list {
    const T *gpulua_array;
    size_t gpulua_size;
    constexpr initializer_list(const T *array, size_t size)
        : gpulua_array(array), gpulua_size(size) {}

  public:
    typedef T value_type;
    constexpr initializer_list() noexcept : gpulua_array(nullptr), gpulua_size(0) {}
    constexpr size_t size() const noexcept { return gpulua_size; }
    constexpr const T *begin() const noexcept { return gpulua_array; }
    constexpr const T *end() const noexcept { return gpulua_array + gpulua_size; }
};
} // namespace std

#ifndef NULL
#define NULL __null
#endif

GPULUA_INLINE cpu_context *gpulua_context() {
#if defined(__x86_64__)
    unsigned long sp;
    __asm__("movq %%rsp, %0" : "=r"(sp));
#elif defined(__aarch64__)
    unsigned long sp;
    __asm__("mov %0, sp" : "=r"(sp));
#else
    unsigned long sp = (unsigned long)__builtin_frame_address(0);
#endif
    return reinterpret_cast<cpu_context *>(sp & ~(CPU_REGION_BYTES - 1));
}

#ifdef GPULUA_CHECKED
#define GPULUA_IS_CHECKED true
#else
#define GPULUA_IS_CHECKED false
#endif

#include "gpulua_vector.h"

// In kernels these names are parameters (see gpulua_entry.h); elsewhere the token pass puts calls
// of these in their place.
GPULUA_INLINE uint3 gpulua_thread_index() {
    const unsigned *index = gpulua_context()->current->index;
    return uint3{index[0], index[1], index[2]};
}
GPULUA_INLINE uint3 gpulua_block_index() {
    const unsigned *index = gpulua_context()->block_index;
    return uint3{index[0], index[1], index[2]};
}
GPULUA_INLINE dim3 gpulua_block_dim() {
    const unsigned *size = gpulua_context()->block;
    return dim3(size[0], size[1], size[2]);
}
GPULUA_INLINE dim3 gpulua_grid_dim() {
    const unsigned *size = gpulua_context()->grid;
    return dim3(size[0], size[1], size[2]);
}
static constexpr int warpSize = 32;

// extern __shared__ T name[]: the token pass writes T (&name)[] = gpulua_dynamic_shared().
struct gpulua_shared_start {
    void *address;
    template <class T> __attribute__((always_inline)) operator T &() const {
        return *reinterpret_cast<T *>(address);
    }
};
GPULUA_INLINE gpulua_shared_start gpulua_dynamic_shared() {
    return gpulua_shared_start{gpulua_context()->dynamic_shared};
}

[[noreturn]] __attribute__((noinline, cold, unused)) static void
gpulua_assert_failed(const char *expression, const char *file, unsigned line, uint3 thread) {
    cpu_context *context = gpulua_context();
    context->current->index[0] = thread.x;
    context->current->index[1] = thread.y;
    context->current->index[2] = thread.z;
    context->services->fail(context, expression, file, line);
    __builtin_unreachable();
}

template <class... Arguments>
inline __attribute__((noinline)) int printf(const char *format, Arguments... arguments) {
    gpulua_context()->has_printed = 1;
    return __builtin_printf(format, arguments...);
}

#include "gpulua_divide.h"
#include "gpulua_bits.h"
#include "gpulua_math.h"
#include "gpulua_sync.h"
#include "gpulua_atomic.h"
#include "gpulua_memory.h"
#include "gpulua_check.h"
#include "gpulua_entry.h"

#endif
