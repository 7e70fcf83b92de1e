/* The one place that knows of sizes of structs: gpulua_*_init_sized, and what calls make of theirs.
 */
#include "host/structs.h"

#include <stddef.h>
#include <string.h>

/* More is no size, but what a struct held that nobody has set up. */
#define STRUCT_BYTES_MAX 4096

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static void set_up(void *into, size_t struct_bytes) {
    memset(into, 0, struct_bytes);
    memcpy(into, &struct_bytes, least(struct_bytes, sizeof struct_bytes));
}

gpulua_status gpu_host_take(const struct gpu_host_struct *kind, const void *given, void *taken,
                            struct gpu_error *error) {
    const unsigned char *bytes = given;
    size_t count = 0;
    if (given) {
        memcpy(&count, given, sizeof count);
        if (count < kind->first_bytes || count > STRUCT_BYTES_MAX) {
            return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                 "gpulua_%s: no release has one of %zu bytes: call "
                                 "gpulua_%s_init, which sets struct_bytes, before anything is set",
                                 kind->name, count, kind->name);
        }
    }
    for (size_t i = kind->bytes; i < count; i++) {
        if (bytes[i] != 0) {
            return gpu_error_set(
                error, GPULUA_INVALID_ARGUMENT,
                "gpulua_%s: something is set at byte %zu, where this library, "
                "gpulua %s, has no member: leave members of a later gpulua.h as "
                "gpulua_%s_init sets them, or install the library of that gpulua.h",
                kind->name, i, gpulua_version(), kind->name);
        }
    }
    set_up(taken, kind->bytes);
    if (count > sizeof count) {
        memcpy((unsigned char *)taken + sizeof count, bytes + sizeof count,
               least(count, kind->bytes) - sizeof count);
    }
    return GPULUA_OK;
}

void gpu_host_answer(const void *answer, size_t answer_bytes, void *into, size_t into_bytes) {
    size_t filled = least(answer_bytes, into_bytes);
    memset(into, 0, into_bytes);
    memcpy(into, answer, filled);
    memcpy(into, &filled, least(filled, sizeof filled));
}

#define END_OF(type, member) (offsetof(type, member) + sizeof(((type *)NULL)->member))

#define DEFINE(name, last)                                                                         \
    void gpulua_##name##_init_sized(gpulua_##name *into, size_t struct_bytes) {                    \
        set_up(into, struct_bytes);                                                                \
    }                                                                                              \
    gpulua_status gpu_host_take_##name(const gpulua_##name *given, gpulua_##name *taken,           \
                                       struct gpu_error *error) {                                  \
        static const struct gpu_host_struct kind = {#name, sizeof(gpulua_##name),                  \
                                                    END_OF(gpulua_##name, last)};                  \
        return gpu_host_take(&kind, given, taken, error);                                          \
    }
GPU_HOST_STRUCTS(DEFINE)
