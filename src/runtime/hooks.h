/* What a host sees of each operation (gpulua_hooks). */
#ifndef GPU_RUNTIME_HOOKS_H
#define GPU_RUNTIME_HOOKS_H

#include "runtime/work.h"

struct gpu_hooks;

/* NULL: none. Copied. */
gpulua_status gpu_device_set_hooks(struct gpu_device *device, const gpulua_hooks *hooks,
                                   struct gpu_error *error);
void gpu_hooks_release(struct gpu_hooks *hooks); /* NULL: nothing */

/* An operation between its first and its last hook. */
struct gpu_hooked {
    struct gpu_hooks *hooks; /* retained */
    gpulua_hook_info info;   /* texts are interned or static */
    int64_t begun_ns;
};

/* `refs`: what it uses. False: no hook is to be called, also not at the end. */
bool gpu_hooks_begin(const struct gpu_submit *submit, const char *name, const char *library,
                     const struct gpu_ref *const *refs, uint32_t ref_count,
                     struct gpu_hooked *hooked);
/* What came of the call: the newest operation of the stream, or nothing. Returns `status`. */
gpulua_status gpu_hooks_end(const struct gpu_submit *submit, struct gpu_hooked *hooked,
                            gpulua_status status, const struct gpu_error *error);
/* Around telling those who wait. The latter frees op->hooked. */
void gpu_hooks_before_complete(struct gpu_op *op);
void gpu_hooks_after_complete(struct gpu_op *op);

#endif
