/* Errors of the runtime: a status, a message for people, and who was the culprit.
 *
 * A function that can fail returns a gpulua_status and, when it is not GPULUA_OK, has filled the
 * `struct gpu_error` that its caller passed. On success the struct is untouched. A filled error
 * owns `log`, `suspects` and `places`. */
#ifndef GPU_RUNTIME_ERROR_H
#define GPU_RUNTIME_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpulua.h"

/* Where in a script something was asked for. `source` is interned in the device (gpu_device_intern)
 * or static. */
struct gpu_site {
    const char *source; /* "pipeline.lua", or NULL */
    int line;
};

/* An operation as errors and listings show it. */
struct gpu_op_info {
    bool is_known;
    char label[64];  /* "saxpy", "fill", or what the script gave: gpu_label_copy */
    uint64_t stream; /* number, never reused */
    uint64_t seq;    /* on that stream, from 1 */
    char source[64];
    int line;
};

/* Where in a kernel something was done, and by whom. Named as the compiler names sources. */
struct gpu_kernel_place {
    char source[256], caller[256];
    uint32_t line, caller_line; /* 0: not known; not in a function that the kernel calls */
    uint32_t block[3], thread[3];
};

#define GPU_SUSPECTS_PER_STREAM_MAX 8u
#define GPU_REPLAYS_SUSPECTED_MAX 64u /* where launches of one graph count as one of them */

struct gpu_error {
    gpulua_status code;
    int32_t driver_code; /* the driver's number, or 0 */
    char message[1024];
    char *log;        /* owned; a compiler's log, or NULL */
    const char *hint; /* static; NULL: that of the code */
    struct gpu_op_info op;
    struct gpu_op_info root;  /* of DependencyFailed */
    gpulua_status root_code;  /* what that failed with */
    struct gpu_op_info other; /* of RaceFound between tasks: what the other one did */
    struct gpu_op_info
        *suspects; /* owned; of DeviceLost: what was not over, oldest first per stream */
    uint32_t suspect_count;
    uint32_t place_count;
    struct gpu_kernel_place
        *places; /* owned; of a kernel: what failed, then what it is in a race with */
    /* Of the list of suspects, the same in all errors of one loss; 0: there is none. Operations
     * that were lost get the list itself when somebody asks for their error (gpu_failure_error). */
    uint64_t suspects_number;
    /* OutOfBudget */
    uint64_t requested_bytes, current_bytes, remaining_bytes, limit_bytes;
    /* OutOfBounds, where that is known: what was asked for, and of how much: elements, of a view
     * bytes */
    bool has_range;
    int64_t range_offset, range_length, range_size;
    uint64_t capacity_max; /* Capacity: the limit that is reached, where it is a script's */
};

/* Sets code and message (cut at its end with "..." when too long), zeroes the rest; returns `code`.
 */
gpulua_status gpu_error_set(struct gpu_error *error, gpulua_status code, const char *format, ...)
    __attribute__((cold, format(printf, 3, 4)));

/* Of OutOfBounds: `length` from `offset` on, of `size`. */
static inline void gpu_error_set_range(struct gpu_error *error, int64_t offset, int64_t length,
                                       int64_t size) {
    if (error) {
        error->has_range = true;
        error->range_offset = offset;
        error->range_length = length;
        error->range_size = size;
    }
}

/* A label (NULL: none), as far as it fits into `room` bytes with its NUL: of a longer one the
 * beginning, up to the end of a character, and "..."; true. */
bool gpu_label_copy(char *to, size_t room, const char *label);

/* A deep copy. If memory fails, log, suspects and places are left out. */
void gpu_error_copy(struct gpu_error *to, const struct gpu_error *from);
/* Only that list, where `to` has none. */
void gpu_error_copy_suspects(struct gpu_error *to, const struct gpu_error *from);
void gpu_error_copy_places(struct gpu_error *to, const struct gpu_error *from);

/* Frees what a filled error owns. Safe on a zeroed one; twice is fine. */
void gpu_error_finish(struct gpu_error *error);

/* The hint of a status, from the status table; "" for GPULUA_OK. */
const char *gpu_error_hint(gpulua_status code);

#endif
