/* References to operations that need not keep them.
 *
 * Whoever launches a thousand times and asks about none of it would keep a thousand operations
 * until it lets go of them, which scripts do when their collector comes. A loose reference keeps an
 * operation only until it ends well; then there is a number and where it came from in its place, of
 * which the operation can be put together again, and its memory serves the next one. */
#ifndef GPU_RUNTIME_OP_REF_H
#define GPU_RUNTIME_OP_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/op.h"

/* Zeroed, or with a reference in `op`. A loose one stays where it is until it is dropped. */
struct gpu_op_ref {
    struct gpu_op *op;               /* NULL: there is none, or it was not kept */
    const struct gpu_origin *origin; /* of what was not kept; whose device is retained */
    uint64_t seq;
};

/* From now on it is loose, if its operation is pending, on a device of this thread alone, and has
 * no other such reference. */
void gpu_op_ref_loosen(struct gpu_op_ref *ref);
/* The operation, which is kept from now on. NULL: there is none, or (`is_short`) no host memory. */
struct gpu_op *gpu_op_ref_get(struct gpu_op_ref *ref, bool *is_short);
void gpu_op_ref_drop(struct gpu_op_ref *ref);
static inline bool gpu_op_ref_is_empty(const struct gpu_op_ref *ref) {
    return !ref->op && !ref->origin;
}

#endif
