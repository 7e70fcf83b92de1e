// Loads and stores with cache hints, memory functions, clocks, the heap.
#ifndef GPULUA_MEMORY_H
#define GPULUA_MEMORY_H

// Hints only: a processor's caches manage themselves. (__ldcv asks for memory as it is now.)
#define GPULUA_X(name)                                                                             \
    template <class T> GPULUA_INLINE T name(const T *address) { return *address; }
GPULUA_X(__ldg) GPULUA_X(__ldca) GPULUA_X(__ldcg) GPULUA_X(__ldcs) GPULUA_X(__ldlu)
#undef GPULUA_X
template <class T> GPULUA_INLINE T __ldcv(const T *address) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return *address;
}
#define GPULUA_X(name)                                                                             \
    template <class T> GPULUA_INLINE void name(T *address, T value) { *address = value; }
GPULUA_X(__stwb) GPULUA_X(__stcg) GPULUA_X(__stcs) GPULUA_X(__stwt)
#undef GPULUA_X

#ifdef GPULUA_CHECKED
#define GPULUA_LIBRARY __attribute__((used, noinline, visibility("hidden"), no_sanitize("thread")))
#define GPULUA_OPERATOR __attribute__((used, weak)) // gpulua_hooks.h has them, too
#else
#define GPULUA_LIBRARY
#define GPULUA_OPERATOR __attribute__((used))
#endif
extern "C" {
GPULUA_LIBRARY void *memcpy(void *, const void *, size_t) noexcept;
GPULUA_LIBRARY void *memset(void *, int, size_t) noexcept;
GPULUA_LIBRARY void *malloc(size_t) noexcept;
GPULUA_LIBRARY void free(void *) noexcept;
}

// Of this module only: it is loaded with its symbols local and bound to itself.
GPULUA_OPERATOR void *operator new(size_t bytes) {
    return malloc(bytes);
}
GPULUA_OPERATOR void *operator new[](size_t bytes) {
    return malloc(bytes);
}
GPULUA_OPERATOR void operator delete(void *address) noexcept {
    free(address);
}
GPULUA_OPERATOR void operator delete[](void *address) noexcept {
    free(address);
}
GPULUA_OPERATOR void operator delete(void *address, size_t) noexcept {
    free(address);
}
GPULUA_OPERATOR void operator delete[](void *address, size_t) noexcept {
    free(address);
}
inline void *operator new(size_t, void *place) noexcept { return place; }
inline void *operator new[](size_t, void *place) noexcept { return place; }

// Ticks of one nanosecond.
GPULUA_INLINE long long clock64() { return (long long)gpulua_context()->services->time_ns(); }
GPULUA_INLINE clock_t clock() { return (clock_t)clock64(); }

[[noreturn]] GPULUA_INLINE void __trap() { __builtin_trap(); }
GPULUA_INLINE void __brkpt() { __builtin_trap(); }
GPULUA_INLINE void __prof_trigger(int) {}

namespace std {
template <class T> struct gpulua_plain { typedef T type; };
template <class T> struct gpulua_plain<T &> { typedef T type; };
template <class T> struct gpulua_plain<T &&> { typedef T type; };
template <class T>
GPULUA_INLINE constexpr typename gpulua_plain<T>::type &&move(T &&value) noexcept {
    return static_cast<typename gpulua_plain<T>::type &&>(value);
}
template <class T>
GPULUA_INLINE constexpr T &&forward(typename gpulua_plain<T>::type &value) noexcept {
    return static_cast<T &&>(value);
}
} // namespace std

#endif
