/* Memory that is exchanged with other libraries of this process: theirs that we use, ours that they
 * use, and the order of what both do with it.
 *
 * An import is a block whose memory somebody else owns. It has an identity and a history as any
 * block; when every use of it is over, or its device is closed, the owner is told once. Memory that
 * is known already, because it is ours or was imported before, keeps its block.
 *
 * An export keeps a block's memory where it is, whatever happens to the block, the device and the
 * state, until it is returned. That may be done by any thread, also long after the device was
 * closed: what the memory hangs on is then left to the exports, and the last one frees it. Owner
 * thread only, but for gpu_export_return. */
#ifndef GPU_RUNTIME_EXCHANGE_H
#define GPU_RUNTIME_EXCHANGE_H

#include "runtime/memory.h"
#include "runtime/work.h"

struct gpu_import_info {
    uint64_t address, byte_count; /* in this process; both > 0 */
    const char *label;            /* or NULL */
    /* Somebody has said when the memory is ready: its uses can be tracked from there on. */
    bool is_ordered;
    bool is_read_only; /* work that writes it is refused */
    bool is_host;      /* not memory of a GPU: kernels of a CUDA device cannot use it */
    /* The memory is not needed any more. On the owner's thread, from any call on the device. */
    void (*release)(void *user);
    void *user;
};
/* Retains `*block`; the memory begins at `*byte_offset` of it. `*is_known`: it had a block before,
 * and `release` will not be called. Unsupported: the device cannot reach it, but for our own memory
 * that comes back: it lives in a process of its own, or it is a GPU and the memory is_host.
 * InvalidArgument: the range lies across the end of memory that is known. UseAfterFree: it is ours,
 * but its buffer was freed. May block. */
gpulua_status gpu_import(struct gpu_device *device, const struct gpu_import_info *info,
                         struct gpu_block **block, uint64_t *byte_offset, bool *is_known,
                         struct gpu_error *error);

struct gpu_export;
/* With room for `extra_bytes` of the caller's. `*address`: of the ref in this process (on CUDA, as
 * the device sees it; host buffers: as the host does). Unsupported: device memory of a process of
 * its own. */
gpulua_status gpu_export_create(const struct gpu_ref *ref, size_t extra_bytes,
                                struct gpu_export **made, uint64_t *address,
                                struct gpu_error *error);
void *gpu_export_extra(struct gpu_export *lent); /* aligned as malloc does */
/* Any thread. `lent` and its extra bytes are gone afterwards. */
void gpu_export_return(struct gpu_export *lent);

/* Where the ref's bytes are in this process, as gpu_export_create says it. */
gpulua_status gpu_ref_address(const struct gpu_ref *ref, uint64_t *address,
                              struct gpu_error *error);

/* Blocks until all is over that touches (for_write) or writes the ref; then the failure that left
 * it undefined, if there is one. Interrupted. */
gpulua_status gpu_ref_wait(const struct gpu_ref *ref, bool for_write, struct gpu_error *error);
/* The other library's stream (the driver's handle) goes on when that is over; does not block. */
gpulua_status gpu_ref_give(const struct gpu_submit *submit, const struct gpu_ref *ref,
                           bool for_write, uint64_t foreign_stream, struct gpu_error *error);
/* Whoever uses the ref here from now on waits for what is on the other library's stream now. */
gpulua_status gpu_ref_take(const struct gpu_submit *submit, const struct gpu_ref *ref,
                           uint64_t foreign_stream, struct gpu_error *error);
/* Check mode: somebody else may write the ref, so none of it counts as never written. */
void gpu_ref_written(const struct gpu_ref *ref);

/* Unsupported unless other libraries know the device's streams: CUDA, in this process. */
gpulua_status gpu_streams_are_shared(const struct gpu_device *device, struct gpu_error *error);
/* The driver's handle of a stream of ours. Unsupported: it has none, or in another process. */
gpulua_status gpu_stream_native(struct gpu_stream *stream, uint64_t *native,
                                struct gpu_error *error);

#endif
