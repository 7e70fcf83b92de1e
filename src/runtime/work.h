/* What a script can ask of a stream. Each call validates, finds the hazards, publishes one record
 * and returns an op (retained for the caller; NULL pointer: not wanted). A failure at the call
 * enqueues nothing. None of them yields; they block only while the ring is full or too much is in
 * flight. */
#ifndef GPU_RUNTIME_WORK_H
#define GPU_RUNTIME_WORK_H

#include "runtime/memory.h"
#include "runtime/module.h"

struct gpu_capture;
struct gpu_graph;

/* What a capture has made for itself (gpu_block_is_of_capture), about to be used by a node of
 * `capture` (NULL: by what is done, or exported): by any other use than a node of its own capture
 * it becomes an ordinary block first. UseAfterFree: it has become a part of a graph, whose other
 * nodes use the same memory. gpu_block_create's codes. */
gpulua_status gpu_temporary_use(struct gpu_block *block, const struct gpu_capture *capture,
                                const char *what, struct gpu_error *error);

/* Common to all: where it goes and how it is shown. */
struct gpu_submit {
    struct gpu_stream *stream;
    struct gpu_capture *capture; /* of the stream's device: what is submitted becomes a node there
                                    (runtime/graph.h); NULL: it is done */
    const char *label;           /* NULL: the operation's own name */
    struct gpu_site site;
};

/* Fills the ref with copies of one element (gpu_type_bytes of its type). */
gpulua_status gpu_work_fill(const struct gpu_submit *submit, const struct gpu_ref *ref,
                            const void *element, struct gpu_op **op, struct gpu_error *error);
/* Same number of bytes; ranges of one block may not overlap. Device or host blocks, either way. */
gpulua_status gpu_work_copy(const struct gpu_submit *submit, const struct gpu_ref *dst,
                            const struct gpu_ref *src, struct gpu_op **op, struct gpu_error *error);
/* Between staging memory and byte_count bytes of a device ref from byte_offset on. upload: the
 * staging may be released right behind the call. download: its bytes are there when the op is over.
 */
gpulua_status gpu_work_upload(const struct gpu_submit *submit, const struct gpu_ref *dst,
                              uint64_t byte_offset, const struct gpu_staging *staging,
                              uint64_t byte_count, struct gpu_op **op, struct gpu_error *error);
gpulua_status gpu_work_download(const struct gpu_submit *submit, const struct gpu_ref *src,
                                uint64_t byte_offset, const struct gpu_staging *staging,
                                uint64_t byte_count, struct gpu_op **op, struct gpu_error *error);
/* Later work on submit->stream starts after `after` (any stream of the device; NULL: just a mark).
 */
gpulua_status gpu_work_mark(const struct gpu_submit *submit, struct gpu_op *after,
                            struct gpu_op **op, struct gpu_error *error);

/* The ref's memory was allocated in the order of submit->stream: a write of all of it that writes
 * nothing. */
gpulua_status gpu_work_allocated(const struct gpu_submit *submit, const struct gpu_ref *ref,
                                 struct gpu_error *error);

union gpu_scalar { /* as the parameter's type wants it, in its first bytes */
    int64_t i;
    uint64_t u;
    double f64;
    float f32;
    uint8_t bytes[16];
};
struct gpu_arg {
    const struct gpu_ref *ref; /* pointers; NULL: a NULL pointer */
    union gpu_scalar scalar;
};
struct gpu_launch {
    struct gpu_submit submit;
    struct gpu_kernel *kernel;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    const struct gpu_arg *args; /* one for each parameter of the kernel's signature */
    uint32_t arg_count;
};
/* Unsupported: the kernel reports failures, and the capture is a body of a conditional node. NULL:
 * it is captured nowhere. */
gpulua_status gpu_work_check_reports(const struct gpu_kernel *kernel,
                                     const struct gpu_capture *capture, struct gpu_error *error);
/* InvalidArgument: grid, block, shared against the device's and kernel's limits; argument count; a
 * ref's element type, or a length that is no multiple of a vector parameter's; a foreign device.
 * gpu_ref_check's codes. */
gpulua_status gpu_work_launch(const struct gpu_launch *launch, struct gpu_op **op,
                              struct gpu_error *error);

#endif
