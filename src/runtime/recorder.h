/* Recorders for work that a host enqueues itself: what it uses is declared first, then its stream
 * is made to wait (preflight), the host enqueues, and commit notes the uses behind it. Typed
 * operations do all this by themselves.
 *
 * Between preflight and commit the recorder holds what it uses: conflicting work on other streams
 * is refused, because nothing could order it. A recorder that is dropped before preflight is
 * cancelled; after it, work may have been enqueued, so its uses are committed and counted
 * (`recorders_abandoned`). Owner thread only. */
#ifndef GPU_RUNTIME_RECORDER_H
#define GPU_RUNTIME_RECORDER_H

#include "runtime/memory.h"
#include "runtime/work.h"

struct gpu_recorder;

enum gpu_recorder_mode {
    GPU_RECORDER_STRICT,    /* what cannot be tracked is an error at preflight */
    GPU_RECORDER_PERMISSIVE /* what has no identity is left out */
};

/* For work on submit's stream, which is retained. OutOfMemory, and what a closed stream or device
 * says. */
gpulua_status gpu_recorder_create(const struct gpu_submit *submit, enum gpu_recorder_mode mode,
                                  struct gpu_recorder **recorder, struct gpu_error *error);
/* Notes a use; never fails by itself. `ref` NULL: memory that is none of ours. `what` names the
 * argument in messages. In strict mode the first use that cannot be tracked is what preflight
 * raises; a use after preflight is what commit raises. */
void gpu_recorder_use(struct gpu_recorder *recorder, const struct gpu_ref *ref, uint8_t access,
                      const char *what);
struct gpu_device *gpu_recorder_device(const struct gpu_recorder *recorder);
/* Uses so far, before those of the same bytes are joined. */
uint32_t gpu_recorder_count(const struct gpu_recorder *recorder);
/* By commit, cancel or close: it takes no uses any more. */
bool gpu_recorder_has_ended(const struct gpu_recorder *recorder);
/* Makes the stream wait for all that conflicts. The latched rejection: its own code (Closed, Stale,
 * UseAfterFree, InvalidArgument of a foreign device), or StreamMisuse for memory that is untracked
 * or held by another recorder. DependencyFailed: what would be read is known to have failed.
 * StreamMisuse: a second preflight. Nothing is enqueued then. May block for room in flight. */
gpulua_status gpu_recorder_preflight(struct gpu_recorder *recorder, struct gpu_error *error);
/* Notes the uses behind what is on the stream now. `*op` (retained; may be NULL) is over when that
 * is. StreamMisuse: no preflight (unless there are no uses), or uses after it: these are noted all
 * the same. Interrupted, Timeout, OutOfMemory: nothing is noted, and it can be called again. */
gpulua_status gpu_recorder_commit(struct gpu_recorder *recorder, struct gpu_op **op,
                                  struct gpu_error *error);
/* Nothing was enqueued: forgets the uses. */
void gpu_recorder_cancel(struct gpu_recorder *recorder);
/* NULL is fine. May be called by a collector: what is left to do is done by the device's next call.
 */
void gpu_recorder_release(struct gpu_recorder *recorder);

#endif
