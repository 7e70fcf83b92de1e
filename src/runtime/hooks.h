/* What a host and a script see of each operation (gpulua_hooks, dev:hooks). */
#ifndef GPU_RUNTIME_HOOKS_H
#define GPU_RUNTIME_HOOKS_H

#include "runtime/state.h"
#include "runtime/work.h"

struct gpu_hooks;

/* Each has a set of its own; the host's is called first. */
enum gpu_hooks_owner { GPU_HOOKS_HOST, GPU_HOOKS_SCRIPT, GPU_HOOKS_OWNER_COUNT };

/* NULL: none. Copied. */
gpulua_status gpu_device_set_hooks(struct gpu_device *device, enum gpu_hooks_owner owner,
                                   const gpulua_hooks *hooks, struct gpu_error *error);
void gpu_hooks_release(struct gpu_hooks *hooks); /* NULL: nothing */

/* An operation between its first and its last hook. */
struct gpu_hooked {
    struct gpu_hooks *hooks; /* retained; NULL: no hook is to be called */
    gpulua_hook_info info;   /* texts are interned or static */
    int64_t begun_ns;
};

void gpu_hooks_fire_begin(const struct gpu_submit *submit, const char *name, const char *library,
                          const struct gpu_ref *const *refs, uint32_t ref_count,
                          struct gpu_hooked *hooked);
gpulua_status gpu_hooks_fire_end(const struct gpu_submit *submit, struct gpu_hooked *hooked,
                                 gpulua_status status, const struct gpu_error *error);

/* Of what is only captured nothing is done yet. */
static inline bool gpu_hooks_are_set(const struct gpu_submit *submit) {
    return __builtin_expect(submit->stream->device->hooks != NULL, 0) && !submit->capture;
}
/* `refs`: what it uses. */
static inline void gpu_hooks_begin(const struct gpu_submit *submit, const char *name,
                                   const struct gpu_ref *const *refs, uint32_t ref_count,
                                   struct gpu_hooked *hooked) {
    hooked->hooks = NULL;
    if (gpu_hooks_are_set(submit)) {
        gpu_hooks_fire_begin(submit, name, NULL, refs, ref_count, hooked);
    }
}
/* What came of the call: the newest operation of the stream, or nothing. Returns `status`. */
static inline gpulua_status gpu_hooks_end(const struct gpu_submit *submit,
                                          struct gpu_hooked *hooked, gpulua_status status,
                                          const struct gpu_error *error) {
    return __builtin_expect(hooked->hooks != NULL, 0)
               ? gpu_hooks_fire_end(submit, hooked, status, error)
               : status;
}
/* Around telling those who wait, of an operation that may have hooks. The latter frees op->hooked.
 */
void gpu_hooks_before_complete(struct gpu_op *op);
void gpu_hooks_after_complete(struct gpu_op *op);

#endif
