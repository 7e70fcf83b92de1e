// Barriers, fences and warp operations. Kernels that reach one of the waiting ones run their
// threads as fibres: rewrite.c finds them by these names and keeps the list.
#ifndef GPULUA_SYNC_H
#define GPULUA_SYNC_H

#define GPULUA_FULL_WARP 0xffffffffu

// Check mode tells barriers apart by where they are called.
#if defined(__clang__)
#define GPULUA_PLACE                                                                               \
    const char *file = __builtin_FILE(), unsigned line = __builtin_LINE(),                         \
               unsigned column = __builtin_COLUMN()
#define GPULUA_PLACE_GIVEN file, line, column
#elif __GNUC__ >= 11
namespace std {
class source_location {
  public:
    struct __impl { // as the compiler makes it
        const char *_M_file_name, *_M_function_name;
        unsigned _M_line, _M_column;
    };
};
} // namespace std
#define GPULUA_PLACE const void *place = __builtin_source_location()
#define GPULUA_PLACE_OF static_cast<const std::source_location::__impl *>(place)
#define GPULUA_PLACE_GIVEN                                                                         \
    GPULUA_PLACE_OF->_M_file_name, GPULUA_PLACE_OF->_M_line, GPULUA_PLACE_OF->_M_column
#else
#define GPULUA_PLACE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()
#define GPULUA_PLACE_GIVEN file, line, 0
#endif
extern "C" { // gpulua_hooks.h
void gpulua_note_barrier(cpu_context *context, const char *file, unsigned line, unsigned column);
void gpulua_note_warp(cpu_context *context);
}
GPULUA_INLINE cpu_context *gpulua_at_barrier(const char *file, unsigned line, unsigned column) {
    cpu_context *context = gpulua_context();
    if constexpr (GPULUA_IS_CHECKED) {
        gpulua_note_barrier(context, file, line, column);
    }
    return context;
}

GPULUA_INLINE void __syncthreads(GPULUA_PLACE) {
    cpu_context *context = gpulua_at_barrier(GPULUA_PLACE_GIVEN);
    context->services->barrier(context);
}
GPULUA_INLINE int __syncthreads_count(int predicate, GPULUA_PLACE) {
    cpu_context *context = gpulua_at_barrier(GPULUA_PLACE_GIVEN);
    return (int)context->services->barrier_vote(context, CPU_VOTE_COUNT, predicate != 0);
}
GPULUA_INLINE int __syncthreads_and(int predicate, GPULUA_PLACE) {
    cpu_context *context = gpulua_at_barrier(GPULUA_PLACE_GIVEN);
    return (int)context->services->barrier_vote(context, CPU_VOTE_AND, predicate != 0);
}
GPULUA_INLINE int __syncthreads_or(int predicate, GPULUA_PLACE) {
    cpu_context *context = gpulua_at_barrier(GPULUA_PLACE_GIVEN);
    return (int)context->services->barrier_vote(context, CPU_VOTE_OR, predicate != 0);
}

// The threads of a block share a processor thread, so only other blocks need the fences.
GPULUA_INLINE void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
GPULUA_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
GPULUA_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

GPULUA_INLINE void __nanosleep(unsigned) {
    cpu_context *context = gpulua_context();
    context->services->yield(context);
}

GPULUA_INLINE unsigned long gpulua_warp(cpu_warp_operation operation, unsigned mask,
                                        unsigned long value, unsigned source_lane = 0) {
    cpu_context *context = gpulua_context();
    if constexpr (GPULUA_IS_CHECKED) {
        gpulua_note_warp(context);
    }
    return context->services->warp(context, operation, mask, value, source_lane);
}
GPULUA_INLINE unsigned gpulua_lane() { return gpulua_context()->current->linear & 31u; }

GPULUA_INLINE void __syncwarp(unsigned mask = GPULUA_FULL_WARP) {
    gpulua_warp(CPU_WARP_SYNC, mask, 0);
}
GPULUA_INLINE unsigned gpulua_active_mask(unsigned site) {
    cpu_context *context = gpulua_context();
    return context->services->active_mask(context, site);
}
GPULUA_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
    return (unsigned)gpulua_warp(CPU_WARP_BALLOT, mask, predicate != 0);
}
GPULUA_INLINE int __any_sync(unsigned mask, int predicate) {
    return gpulua_warp(CPU_WARP_BALLOT, mask, predicate != 0) != 0;
}
GPULUA_INLINE int __all_sync(unsigned mask, int predicate) {
    return gpulua_warp(CPU_WARP_BALLOT, mask, predicate == 0) == 0;
}

// A value as the 64 bits that lanes exchange, and back.
template <class T> GPULUA_INLINE unsigned long gpulua_to_bits(const T &value) {
    static_assert(sizeof(T) <= 8, "lanes exchange values of at most 8 bytes");
    unsigned long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    __asm__("" : "+r"(bits));
    return bits;
}
template <class T> GPULUA_INLINE T gpulua_from_bits(unsigned long bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

// The lane that each of the four shuffles reads from; `width` is a power of two up to 32.
GPULUA_INLINE unsigned gpulua_lane_of(unsigned lane, int source, int width) {
    return (lane & ~((unsigned)width - 1)) | ((unsigned)source & ((unsigned)width - 1));
}
GPULUA_INLINE unsigned gpulua_lane_up(unsigned lane, unsigned delta, int width) {
    unsigned position = lane & ((unsigned)width - 1);
    return delta <= position ? lane - delta : lane;
}
GPULUA_INLINE unsigned gpulua_lane_down(unsigned lane, unsigned delta, int width) {
    unsigned position = lane & ((unsigned)width - 1);
    return delta < (unsigned)width - position ? lane + delta : lane;
}
GPULUA_INLINE unsigned gpulua_lane_xor(unsigned lane, int mask, int width) {
    unsigned source = lane ^ ((unsigned)mask & 31u);
    unsigned last = lane | ((unsigned)width - 1);
    return source <= last ? source : lane;
}

// Lanes that nobody reads from often shuffle a variable without a value. That is a matter of course
// in CUDA C, but an optimiser may conclude that no such lane exists. So the variable is passed by
// reference, and its bits go through a statement that the optimiser does not look into.
#define GPULUA_SHUFFLES(T)                                                                         \
    GPULUA_INLINE T __shfl_sync(unsigned mask, const T &value, int source, int width = 32) {         \
        return gpulua_from_bits<T>(gpulua_warp(CPU_WARP_SHUFFLE, mask, gpulua_to_bits(value),      \
                                               gpulua_lane_of(gpulua_lane(), source, width)));     \
    }                                                                                              \
    GPULUA_INLINE T __shfl_up_sync(unsigned mask, const T &value, unsigned delta, int width = 32) {       \
        return gpulua_from_bits<T>(gpulua_warp(CPU_WARP_SHUFFLE, mask, gpulua_to_bits(value),      \
                                               gpulua_lane_up(gpulua_lane(), delta, width)));      \
    }                                                                                              \
    GPULUA_INLINE T __shfl_down_sync(unsigned mask, const T &value, unsigned delta, int width = 32) {     \
        return gpulua_from_bits<T>(gpulua_warp(CPU_WARP_SHUFFLE, mask, gpulua_to_bits(value),      \
                                               gpulua_lane_down(gpulua_lane(), delta, width)));    \
    }                                                                                              \
    GPULUA_INLINE T __shfl_xor_sync(unsigned mask, const T &value, int lane_mask, int width = 32) {       \
        return gpulua_from_bits<T>(gpulua_warp(CPU_WARP_SHUFFLE, mask, gpulua_to_bits(value),      \
                                               gpulua_lane_xor(gpulua_lane(), lane_mask, width))); \
    }
GPULUA_SHUFFLES(int)
GPULUA_SHUFFLES(unsigned int)
GPULUA_SHUFFLES(long)
GPULUA_SHUFFLES(unsigned long)
GPULUA_SHUFFLES(long long)
GPULUA_SHUFFLES(unsigned long long)
GPULUA_SHUFFLES(float)
GPULUA_SHUFFLES(double)

#define GPULUA_X(T)                                                                                \
    GPULUA_INLINE unsigned __match_any_sync(unsigned mask, T value) {                              \
        return (unsigned)gpulua_warp(CPU_WARP_MATCH_ANY, mask, gpulua_to_bits(value));             \
    }                                                                                              \
    GPULUA_INLINE unsigned __match_all_sync(unsigned mask, T value, int *predicate) {              \
        unsigned lanes = (unsigned)gpulua_warp(CPU_WARP_MATCH_ALL, mask, gpulua_to_bits(value));   \
        *predicate = lanes != 0;                                                                   \
        return lanes;                                                                              \
    }
GPULUA_X(int)
GPULUA_X(unsigned int)
GPULUA_X(long)
GPULUA_X(unsigned long)
GPULUA_X(long long)
GPULUA_X(unsigned long long)
GPULUA_X(float)
GPULUA_X(double)
#undef GPULUA_X

GPULUA_INLINE int __reduce_add_sync(unsigned mask, int value) {
    return (int)gpulua_warp(CPU_WARP_ADD, mask, (unsigned)value);
}
GPULUA_INLINE unsigned __reduce_add_sync(unsigned mask, unsigned value) {
    return (unsigned)gpulua_warp(CPU_WARP_ADD, mask, value);
}
GPULUA_INLINE int __reduce_min_sync(unsigned mask, int value) {
    return (int)gpulua_warp(CPU_WARP_MIN_SIGNED, mask, (unsigned)value);
}
GPULUA_INLINE unsigned __reduce_min_sync(unsigned mask, unsigned value) {
    return (unsigned)gpulua_warp(CPU_WARP_MIN_UNSIGNED, mask, value);
}
GPULUA_INLINE int __reduce_max_sync(unsigned mask, int value) {
    return (int)gpulua_warp(CPU_WARP_MAX_SIGNED, mask, (unsigned)value);
}
GPULUA_INLINE unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    return (unsigned)gpulua_warp(CPU_WARP_MAX_UNSIGNED, mask, value);
}
GPULUA_INLINE unsigned __reduce_and_sync(unsigned mask, unsigned value) {
    return (unsigned)gpulua_warp(CPU_WARP_AND, mask, value);
}
GPULUA_INLINE unsigned __reduce_or_sync(unsigned mask, unsigned value) {
    return (unsigned)gpulua_warp(CPU_WARP_OR, mask, value);
}
GPULUA_INLINE unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
    return (unsigned)gpulua_warp(CPU_WARP_XOR, mask, value);
}

#endif
