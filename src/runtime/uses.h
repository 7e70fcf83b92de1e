/* What an envelope's work uses. */
#ifndef GPU_RUNTIME_USES_H
#define GPU_RUNTIME_USES_H

#include <assert.h>

#include "runtime/state.h"

static inline void gpu_envelope_use(struct gpu_envelope *envelope, const struct gpu_use *use) {
    for (uint32_t i = 0; i < envelope->use_count; i++) {
        struct gpu_use *known = &envelope->uses[i];
        if (known->block == use->block && known->byte_begin == use->byte_begin &&
            known->byte_end == use->byte_end) {
            known->access |= use->access;
            return;
        }
    }
    assert(envelope->use_count < GPU_USES_MAX);
    envelope->uses[envelope->use_count++] = *use;
}
static inline void gpu_envelope_use_module(struct gpu_envelope *envelope,
                                           const struct gpu_module *module, uint8_t access) {
    const struct gpu_use use = {.block = module->hazards, .byte_end = 1, .access = access};
    gpu_envelope_use(envelope, &use);
}
/* All uses of memory come this way: which variable of its module a kernel touches nobody knows, so
 * a variable shares the hazards of its module. At most two uses. */
static inline void gpu_envelope_use_ref(struct gpu_envelope *envelope, const struct gpu_ref *ref,
                                        uint8_t access) {
    const struct gpu_use use = {.block = ref->block,
                                .byte_begin = ref->byte_offset,
                                .byte_end = ref->byte_offset + ref->byte_count,
                                .access = access};
    gpu_envelope_use(envelope, &use);
    if (__builtin_expect(ref->block->module != NULL, 0)) {
        gpu_envelope_use_module(envelope, ref->block->module, access);
    }
}

#endif
