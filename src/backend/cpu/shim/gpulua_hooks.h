// Check mode: the entry points of the compiler's access instrumentation. Each says to the runtime
// what is about to be accessed; nothing of ours is reported, because all of it lies in the region.
//
// They are each module's own, hidden: modules do not meet here, nor does a runtime of the same names
// that the library may have been built with. Initialisers run before the flag is set, on any stack.
#ifndef GPULUA_HOOKS_H
#define GPULUA_HOOKS_H

#define GPULUA_HOOK                                                                                \
    __attribute__((used, noinline, visibility("hidden"), no_sanitize("thread"),                        \
                   no_instrument_function))

unsigned gpulua_check_flag = 0;

// Where the hook that this is inlined into was called.
__attribute__((no_sanitize("thread"), always_inline)) static inline void
gpulua_note_site(cpu_context *context) {
#if defined(__x86_64__) || defined(__aarch64__) // where frames begin with these two
    void *const *own = static_cast<void *const *>(__builtin_frame_address(0));
    context->frame = static_cast<void *const *>(own[0]);
    context->site = own[1];
#else
    (void)context;
#endif
}

__attribute__((no_sanitize("thread"), always_inline)) static inline void
gpulua_access(const volatile void *address, size_t bytes, unsigned flags) {
    if (gpulua_check_flag != 0) {
        cpu_context *context = gpulua_context();
        gpulua_note_site(context);
        context->services->access(context, const_cast<const void *>(address), bytes, flags);
    }
}

extern "C" {
GPULUA_HOOK void gpulua_note_warp(cpu_context *context) {
    gpulua_note_site(context);
    context->current->site = context->site;
}
GPULUA_HOOK void gpulua_note_barrier(cpu_context *context, const char *file, unsigned line,
                                     unsigned column) {
    gpulua_note_site(context);
    context->current->site = context->site;
    context->barrier_file = file;
    context->barrier_line = line;
    context->barrier_column = column;
}
// The compiler takes vectors apart, so that no access tells where all of one has to lie: it checks that
// itself (-fsanitize=alignment).
struct gpulua_mismatch {
    struct {
        const char *file;
        unsigned line, column;
    } place;
    const struct {
        unsigned short kind, facts;
        char name[1]; // in quotes
    } *type;
    unsigned char log_alignment, use;
};
GPULUA_HOOK void __ubsan_handle_type_mismatch_v1(gpulua_mismatch *mismatch, unsigned long address) {
    if (gpulua_check_flag != 0) {
        cpu_context *context = gpulua_context();
        gpulua_note_site(context);
        context->services->misplaced(context, reinterpret_cast<const void *>(address),
                                     1u << mismatch->log_alignment, mismatch->type->name,
                                     static_cast<cpu_use>(mismatch->use));
    }
}
GPULUA_HOOK void __tsan_init() {}
GPULUA_HOOK void __tsan_func_entry(void *) {}
GPULUA_HOOK void __tsan_func_exit() {}
GPULUA_HOOK void __tsan_ignore_thread_begin() {}
GPULUA_HOOK void __tsan_ignore_thread_end() {}
GPULUA_HOOK void __tsan_vptr_update(void **address, void *) {
    gpulua_access(address, sizeof(void *), CPU_ACCESS_WRITE);
}
GPULUA_HOOK void __tsan_vptr_read(void **address) {
    gpulua_access(address, sizeof(void *), CPU_ACCESS_READ);
}
#define GPULUA_SIZED(prefix, bytes, flags)                                                         \
    GPULUA_HOOK void __tsan_##prefix##read##bytes(void *address) {                                 \
        gpulua_access(address, bytes, CPU_ACCESS_READ | (flags));                                  \
    }                                                                                              \
    GPULUA_HOOK void __tsan_##prefix##write##bytes(void *address) {                                \
        gpulua_access(address, bytes, CPU_ACCESS_WRITE | (flags));                                 \
    }
#define GPULUA_SIZES(X, prefix, flags)                                                             \
    X(prefix, 1, flags) X(prefix, 2, flags) X(prefix, 4, flags) X(prefix, 8, flags)                \
    X(prefix, 16, flags)
GPULUA_SIZES(GPULUA_SIZED, , 0)
GPULUA_SIZES(GPULUA_SIZED, volatile_, CPU_ACCESS_VOLATILE)
GPULUA_SIZES(GPULUA_SIZED, unaligned_, CPU_ACCESS_UNALIGNED)
GPULUA_SIZES(GPULUA_SIZED, unaligned_volatile_, CPU_ACCESS_UNALIGNED | CPU_ACCESS_VOLATILE)
#define GPULUA_BOTH(prefix, bytes, flags)                                                          \
    GPULUA_HOOK void __tsan_##prefix##read_write##bytes(void *address) {                           \
        gpulua_access(address, bytes, CPU_ACCESS_READ | CPU_ACCESS_WRITE | (flags));               \
    }
GPULUA_SIZES(GPULUA_BOTH, , 0)
GPULUA_SIZES(GPULUA_BOTH, unaligned_, CPU_ACCESS_UNALIGNED)
GPULUA_HOOK void __tsan_read_range(void *address, unsigned long bytes) {
    gpulua_access(address, bytes, CPU_ACCESS_READ | CPU_ACCESS_RANGE);
}
GPULUA_HOOK void __tsan_write_range(void *address, unsigned long bytes) {
    gpulua_access(address, bytes, CPU_ACCESS_WRITE | CPU_ACCESS_RANGE);
}

// Atomics: the compiler has put these in the place of its own. A launch runs on one thread, so they are
// plain operations; atomic ones clang would put these in the place of again.
#define GPULUA_RMW (CPU_ACCESS_READ | CPU_ACCESS_WRITE | CPU_ACCESS_ATOMIC)
#define GPULUA_UPDATE(bits, T, name, expression)                                                   \
    GPULUA_HOOK T __tsan_atomic##bits##_##name(volatile T *address, T value, int) {                \
        gpulua_access(address, sizeof(T), GPULUA_RMW);                                             \
        T old = *address;                                                                          \
        *address = static_cast<T>(expression);                                                     \
        return old;                                                                                \
    }
#define GPULUA_COMPARE(bits, T, strength)                                                          \
    GPULUA_HOOK int __tsan_atomic##bits##_compare_exchange_##strength(                             \
        volatile T *address, T *expected, T value, int, int) {                                     \
        gpulua_access(address, sizeof(T), GPULUA_RMW);                                             \
        T old = *address;                                                                          \
        bool is_same = old == *expected;                                                           \
        if (is_same) {                                                                             \
            *address = value;                                                                      \
        } else {                                                                                   \
            *expected = old;                                                                       \
        }                                                                                          \
        return is_same;                                                                            \
    }
// U: without a sign, so that sums wrap around.
#define GPULUA_ATOMICS(bits, T, U)                                                                 \
    GPULUA_HOOK T __tsan_atomic##bits##_load(const volatile T *address, int) {                     \
        gpulua_access(address, sizeof(T), CPU_ACCESS_READ | CPU_ACCESS_ATOMIC);                    \
        return *address;                                                                           \
    }                                                                                              \
    GPULUA_HOOK void __tsan_atomic##bits##_store(volatile T *address, T value, int) {              \
        gpulua_access(address, sizeof(T), CPU_ACCESS_WRITE | CPU_ACCESS_ATOMIC);                   \
        *address = value;                                                                          \
    }                                                                                              \
    GPULUA_UPDATE(bits, T, exchange, value)                                                        \
    GPULUA_UPDATE(bits, T, fetch_add, static_cast<U>(old) + static_cast<U>(value))                 \
    GPULUA_UPDATE(bits, T, fetch_sub, static_cast<U>(old) - static_cast<U>(value))                 \
    GPULUA_UPDATE(bits, T, fetch_and, old & value)                                                 \
    GPULUA_UPDATE(bits, T, fetch_or, old | value)                                                  \
    GPULUA_UPDATE(bits, T, fetch_xor, old ^ value)                                                 \
    GPULUA_UPDATE(bits, T, fetch_nand, ~(old & value))                                             \
    GPULUA_COMPARE(bits, T, strong)                                                                \
    GPULUA_COMPARE(bits, T, weak)                                                                  \
    GPULUA_HOOK T __tsan_atomic##bits##_compare_exchange_val(volatile T *address, T expected,      \
                                                             T value, int, int) {                  \
        gpulua_access(address, sizeof(T), GPULUA_RMW);                                             \
        T old = *address;                                                                          \
        if (old == expected) {                                                                     \
            *address = value;                                                                      \
        }                                                                                          \
        return old;                                                                                \
    }
GPULUA_ATOMICS(8, char, unsigned char)
GPULUA_ATOMICS(16, short, unsigned short)
GPULUA_ATOMICS(32, int, unsigned int)
GPULUA_ATOMICS(64, long, unsigned long)

// __threadfence is a thread's fence, __threadfence_block a signal's (gpulua_sync.h).
GPULUA_HOOK void __tsan_atomic_thread_fence(int) {
    if (gpulua_check_flag != 0) {
        cpu_context *context = gpulua_context();
        context->services->fence(context, 1);
    }
}
GPULUA_HOOK void __tsan_atomic_signal_fence(int) {
    if (gpulua_check_flag != 0) {
        cpu_context *context = gpulua_context();
        context->services->fence(context, 0);
    }
}

// The C library's are not instrumented, and the compiler calls them for what it copies.
__attribute__((no_sanitize("thread"), always_inline)) static inline void *
gpulua_move(void *dst, const void *src, size_t bytes) {
    gpulua_access(src, bytes, CPU_ACCESS_READ | CPU_ACCESS_RANGE);
    gpulua_access(dst, bytes, CPU_ACCESS_WRITE | CPU_ACCESS_RANGE);
    volatile unsigned char *to = static_cast<volatile unsigned char *>(dst);
    const volatile unsigned char *from = static_cast<const volatile unsigned char *>(src);
    if (dst < src) {
        for (size_t i = 0; i < bytes; i++) to[i] = from[i];
    } else {
        for (size_t i = bytes; i-- > 0;) to[i] = from[i];
    }
    return dst;
}
GPULUA_HOOK void *memmove(void *dst, const void *src, size_t bytes) noexcept {
    return gpulua_move(dst, src, bytes);
}
void *memcpy(void *dst, const void *src, size_t bytes) noexcept {
    return gpulua_move(dst, src, bytes);
}
__attribute__((no_sanitize("thread"), always_inline)) static inline void *
gpulua_set(void *dst, int value, size_t bytes) {
    gpulua_access(dst, bytes, CPU_ACCESS_WRITE | CPU_ACCESS_RANGE);
    volatile unsigned char *to = static_cast<volatile unsigned char *>(dst);
    for (size_t i = 0; i < bytes; i++) to[i] = static_cast<unsigned char>(value);
    return dst;
}
void *memset(void *dst, int value, size_t bytes) noexcept {
    return gpulua_set(dst, value, bytes);
}
// clang's names for them, from version 15 on.
GPULUA_HOOK void *__tsan_memmove(void *dst, const void *src, size_t bytes) {
    return gpulua_move(dst, src, bytes);
}
GPULUA_HOOK void *__tsan_memcpy(void *dst, const void *src, size_t bytes) {
    return gpulua_move(dst, src, bytes);
}
GPULUA_HOOK void *__tsan_memset(void *dst, int value, size_t bytes) {
    return gpulua_set(dst, value, bytes);
}
void *malloc(size_t bytes) noexcept {
    cpu_context *context = gpulua_context();
    return gpulua_check_flag != 0 ? context->services->heap(context, nullptr, bytes) : nullptr;
}
void free(void *address) noexcept {
    cpu_context *context = gpulua_context();
    if (gpulua_check_flag != 0 && address != nullptr) {
        context->services->heap(context, address, 0);
    }
}
} // extern "C"

#endif
