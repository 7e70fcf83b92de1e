// How kernels are called, and what a module says of them.
//
// The token pass gives every kernel these first parameters, GPULUA_HIDDEN_PARAMS, under the names
// that its body uses anyway, so that they live in registers and a loop over threads can be
// vectorised. `gpulua_part` is one of:
//   WHOLE  the kernel as written;
//   PROBE  the guard at its head only (`if (i < n)`, `if (i >= n) return;`): clears gpulua_pass
//          where a thread would not do the work behind it;
//   WORK   the guard taken as passed.
// A row of threads that all pass then runs without the test, which is what lets the compiler use
// plain vector stores instead of masked ones.
#ifndef GPULUA_ENTRY_H
#define GPULUA_ENTRY_H

enum gpulua_kernel_part { GPULUA_WHOLE, GPULUA_PROBE, GPULUA_WORK };

#define GPULUA_HIDDEN_TYPES const uint3, const uint3, const dim3, const dim3, const int, bool &
#define GPULUA_HIDDEN_PARAMS                                                                       \
    const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim,          \
        const int gpulua_part, bool &gpulua_pass

// What the token pass found in a kernel's text.
enum gpulua_kernel_flags {
    GPULUA_FIBRES = 1,  // has barriers or warp operations
    GPULUA_CONTEXT = 2, // calls functions that ask for threadIdx
    GPULUA_GUARD = 4,   // begins with a guard
    GPULUA_MONOTONE = 8 // which holds for a whole block if it holds for its last thread
};

// ---- types as the library names them ----

template <class T> struct gpulua_element {
    static constexpr const char *code = nullptr;
    static constexpr unsigned lanes = 1;
};
#define GPULUA_X(T, text)                                                                          \
    template <> struct gpulua_element<T> {                                                         \
        static constexpr const char *code = text;                                                  \
        static constexpr unsigned lanes = 1;                                                       \
    };
GPULUA_X(void, "void")
GPULUA_X(bool, "u8")
GPULUA_X(char, "i8") GPULUA_X(signed char, "i8") GPULUA_X(unsigned char, "u8")
GPULUA_X(short, "i16") GPULUA_X(unsigned short, "u16")
GPULUA_X(int, "i32") GPULUA_X(unsigned int, "u32")
GPULUA_X(long, sizeof(long) == 8 ? "i64" : "i32")
GPULUA_X(unsigned long, sizeof(long) == 8 ? "u64" : "u32")
GPULUA_X(long long, "i64") GPULUA_X(unsigned long long, "u64")
GPULUA_X(float, "f32") GPULUA_X(double, "f64")
#undef GPULUA_X
#define GPULUA_LANES(T, count, text)                                                               \
    template <> struct gpulua_element<T> {                                                         \
        static constexpr const char *code = text;                                                  \
        static constexpr unsigned lanes = count;                                                   \
    };
#define GPULUA_X(name, element, a1, a2, a3, a4)                                                    \
    GPULUA_LANES(name##1, 1, gpulua_element<element>::code)                                        \
    GPULUA_LANES(name##2, 2, gpulua_element<element>::code)                                        \
    GPULUA_LANES(name##3, 3, gpulua_element<element>::code)                                        \
    GPULUA_LANES(name##4, 4, gpulua_element<element>::code)
GPULUA_VECTOR_TYPES(GPULUA_X)
#undef GPULUA_X
GPULUA_LANES(dim3, 3, "u32")

template <class T> struct gpulua_is_const { static constexpr bool value = false; };
template <class T> struct gpulua_is_const<const T> { static constexpr bool value = true; };

// The compiler spells T in the name of this function.
template <class T> const char *gpulua_spelling() { return __PRETTY_FUNCTION__; }

template <class T> struct gpulua_size {
    static constexpr unsigned bytes = sizeof(T), alignment = alignof(T);
};
template <> struct gpulua_size<void> { static constexpr unsigned bytes = 0, alignment = 1; };

// An enumeration is the number that it is kept as: on a GPU an int, unless its text says another
// type or its values need one.
template <class T> struct gpulua_signed { typedef T type; };
template <> struct gpulua_signed<unsigned> { typedef int type; };
template <class T, class = void> struct gpulua_kept {
    typedef typename gpulua_signed<__underlying_type(T)>::type type;
};
template <class T> struct gpulua_kept<T, decltype(void(T{0}))> { // possible if a type is said
    typedef __underlying_type(T) type;
};
template <class T, bool = __is_enum(T)> struct gpulua_number { typedef T type; };
template <class T> struct gpulua_number<T, true> : gpulua_kept<T> {};

// Of classes, vectors alone have a name in signatures.
template <class T> struct gpulua_param {
    static cpu_type_facts facts() {
        typedef gpulua_element<typename gpulua_number<T>::type> element;
        constexpr bool is_known =
            element::code != nullptr && (__is_class(T) == false || element::lanes > 1);
        return {is_known ? element::code : nullptr, gpulua_spelling<T>(),
                is_known ? element::lanes : 1, is_known ? CPU_PARAM_SCALAR : CPU_PARAM_OTHER,
                sizeof(T), alignof(T)};
    }
};
template <class T> struct gpulua_param<T *> {
    static cpu_type_facts facts() {
        typedef gpulua_element<
            typename gpulua_number<typename gpulua_remove_cv<T>::type>::type> element;
        return {element::code, gpulua_spelling<T *>(), element::lanes,
                element::code == nullptr    ? CPU_PARAM_OTHER
                : gpulua_is_const<T>::value ? CPU_PARAM_IN
                                            : CPU_PARAM_INOUT,
                sizeof(T *), alignof(T *)};
    }
};

// ---- arguments ----

template <class... P> struct gpulua_layout;
template <> struct gpulua_layout<> {
    static constexpr size_t offset(size_t, size_t at) { return at; }
};
template <class First, class... Rest> struct gpulua_layout<First, Rest...> {
    static constexpr size_t offset(size_t index, size_t at) {
        at = (at + alignof(First) - 1) & ~(alignof(First) - 1);
        return index == 0 ? at : gpulua_layout<Rest...>::offset(index - 1, at + sizeof(First));
    }
};
template <size_t... I> struct gpulua_indices {};
template <size_t N, size_t... I>
struct gpulua_make_indices : gpulua_make_indices<N - 1, N - 1, I...> {};
template <size_t... I> struct gpulua_make_indices<0, I...> {
    typedef gpulua_indices<I...> type;
};

template <class T> GPULUA_INLINE T gpulua_argument(const void *args, size_t offset) {
    typedef T __attribute__((may_alias)) aliased;
    return *reinterpret_cast<const aliased *>(static_cast<const char *>(args) + offset);
}

// ---- calling ----

template <auto Kernel, unsigned Flags, class F> struct gpulua_caller;
template <auto Kernel, unsigned Flags, class... P>
struct gpulua_caller<Kernel, Flags,
                     void (*)(uint3, uint3, dim3, dim3, int, bool &, P...)> {
    // One row of threads, x = 0 .. block.x - 1. Threads of a block may run in any order and at
    // once, which is all that `omp simd` claims of the iterations.
    template <int Part>
    static __attribute__((always_inline)) inline void row(uint3 thread, uint3 block_index,
                                                          dim3 block, dim3 grid, P... p) {
        const unsigned count = block.x;
        bool unused = true;
        if constexpr ((Flags & GPULUA_CONTEXT) != 0) {
            unsigned *index = gpulua_context()->current->index;
            index[1] = thread.y;
            index[2] = thread.z;
            for (unsigned x = 0; x < count; x++) {
                index[0] = x;
                Kernel(uint3{x, thread.y, thread.z}, block_index, block, grid, Part, unused, p...);
            }
        } else {
#pragma omp simd
            for (unsigned x = 0; x < count; x++) {
                Kernel(uint3{x, thread.y, thread.z}, block_index, block, grid, Part, unused, p...);
            }
        }
    }
    static __attribute__((always_inline)) inline bool row_passes(uint3 thread, uint3 block_index,
                                                                 dim3 block, dim3 grid, P... p) {
        const unsigned count = block.x;
        unsigned stopped = 0;
#pragma omp simd reduction(+ : stopped)
        for (unsigned x = 0; x < count; x++) {
            bool pass = true;
            Kernel(uint3{x, thread.y, thread.z}, block_index, block, grid, GPULUA_PROBE, pass,
                   p...);
            stopped += pass ? 0u : 1u;
        }
        return stopped == 0;
    }

    static __attribute__((always_inline)) inline void
    block(uint3 block_index, dim3 block, dim3 grid, P... p) {
        // What holds of every launch, said so that index arithmetic is known not to wrap.
        if (block.x == 0 || block.x > 1024 || block.y > 1024 || block.z > 64) {
            __builtin_unreachable();
        }
        constexpr bool has_guard = (Flags & GPULUA_GUARD) != 0 && (Flags & GPULUA_CONTEXT) == 0;
        if constexpr (has_guard && (Flags & GPULUA_MONOTONE) != 0) {
            bool pass = true;
            Kernel(uint3{block.x - 1, block.y - 1, block.z - 1}, block_index, block, grid,
                   GPULUA_PROBE, pass, p...);
            if (pass) {
                for (unsigned z = 0; z < block.z; z++) {
                    for (unsigned y = 0; y < block.y; y++) {
                        row<GPULUA_WORK>(uint3{0, y, z}, block_index, block, grid, p...);
                    }
                }
                return;
            }
        }
        for (unsigned z = 0; z < block.z; z++) {
            for (unsigned y = 0; y < block.y; y++) {
                uint3 thread{0, y, z};
                if constexpr (has_guard && (Flags & GPULUA_MONOTONE) == 0) {
                    if (row_passes(thread, block_index, block, grid, p...)) {
                        row<GPULUA_WORK>(thread, block_index, block, grid, p...);
                        continue;
                    }
                }
                row<GPULUA_WHOLE>(thread, block_index, block, grid, p...);
            }
        }
    }

    // Indices as most kernels form them, blockIdx.x * blockDim.x + threadIdx.x, fit an int in all
    // but giant launches. In a loop of its own the compiler may rely on it.
    static __attribute__((always_inline)) inline void serial(cpu_context *context, P... p) {
        const dim3 block(context->block[0], context->block[1], context->block[2]);
        const dim3 grid(context->grid[0], context->grid[1], context->grid[2]);
        const unsigned long end = context->first_block + context->block_count;
        unsigned long i = context->first_block;
        uint3 index{(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                    (unsigned)(i / grid.x / grid.y)};
        for (; i < end; i++) {
            if (__atomic_load_n(context->has_failed, __ATOMIC_RELAXED) != 0) {
                return;
            }
            context->block_index[0] = index.x;
            context->block_index[1] = index.y;
            context->block_index[2] = index.z;
            if (index.x * (unsigned long)block.x <= 0x7fffff00ul - 1024 &&
                index.y * (unsigned long)block.y <= 0x7fffff00ul - 1024) {
                if (index.x * block.x > 0x7fffff00u - 1024 ||
                    index.y * block.y > 0x7fffff00u - 1024) {
                    __builtin_unreachable();
                }
                gpulua_caller::block(index, block, grid, p...);
            } else {
                huge(index, block, grid, p...);
            }
            index.x++;
            if (index.x == grid.x) {
                index.x = 0;
                index.y++;
                if (index.y == grid.y) {
                    index.y = 0;
                    index.z++;
                }
            }
        }
    }
    static __attribute__((noinline)) void huge(uint3 index, dim3 block, dim3 grid, P... p) {
        for (unsigned z = 0; z < block.z; z++) {
            for (unsigned y = 0; y < block.y; y++) {
                row<GPULUA_WHOLE>(uint3{0, y, z}, index, block, grid, p...);
            }
        }
    }

    template <size_t... I>
    static __attribute__((always_inline)) inline void run(cpu_context *context,
                                                          gpulua_indices<I...>) {
        const void *args = context->args;
        if constexpr ((Flags & GPULUA_FIBRES) != 0 || GPULUA_IS_CHECKED) {
            const unsigned *t = context->current->index, *b = context->block_index;
            bool pass = true;
            Kernel(uint3{t[0], t[1], t[2]}, uint3{b[0], b[1], b[2]},
                   dim3(context->block[0], context->block[1], context->block[2]),
                   dim3(context->grid[0], context->grid[1], context->grid[2]), GPULUA_WHOLE, pass,
                   gpulua_argument<P>(args, gpulua_layout<P...>::offset(I, 0))...);
        } else {
            serial(context, gpulua_argument<P>(args, gpulua_layout<P...>::offset(I, 0))...);
        }
    }
    static void entry(cpu_context *context) {
        run(context, typename gpulua_make_indices<sizeof...(P)>::type());
    }
    static const cpu_type_facts *params() {
        static const cpu_type_facts facts[sizeof...(P) + 1] = {gpulua_param<P>::facts()..., {}};
        return facts;
    }
    static constexpr unsigned param_count = sizeof...(P);
};

struct gpulua_cluster {
    unsigned x, y, z;
    constexpr gpulua_cluster(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

template <auto Kernel, unsigned Flags>
cpu_kernel_table gpulua_kernel(const char *name, unsigned threads_max, const char *param_names,
                               gpulua_cluster cluster = {}) {
    typedef gpulua_caller<Kernel, Flags, decltype(Kernel)> caller;
    return {name, caller::entry, caller::params(), caller::param_count,
            (Flags & GPULUA_FIBRES) != 0, threads_max, param_names,
            {cluster.x, cluster.y, cluster.z}};
}

// ---- variables ----

template <class T> struct gpulua_array {
    typedef T element;
    static constexpr unsigned long count = 1;
};
template <class T, size_t N> struct gpulua_array<T[N]> {
    typedef typename gpulua_array<T>::element element;
    static constexpr unsigned long count = N * gpulua_array<T>::count;
};

template <class T>
cpu_global_table gpulua_global(const char *name, const T *variable, bool is_constant) {
    typedef typename gpulua_array<typename gpulua_remove_cv<T>::type>::element plain;
    typedef typename gpulua_remove_cv<plain>::type element;
    return {name, const_cast<void *>(static_cast<const volatile void *>(variable)),
            sizeof(T),
            {gpulua_element<element>::code, gpulua_spelling<element>(),
             gpulua_element<element>::lanes, CPU_PARAM_SCALAR, sizeof(element), alignof(element)},
            gpulua_array<typename gpulua_remove_cv<T>::type>::count, is_constant};
}

#endif
