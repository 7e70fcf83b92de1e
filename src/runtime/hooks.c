/* Hooks: kept by what is under way, so that others can be set at any time. */
#include "runtime/hooks.h"

#include <stdlib.h>
#include <string.h>

struct gpu_hooks {
    uint32_t refs;
    gpulua_hooks sets[GPU_HOOKS_OWNER_COUNT];
};

/* Calls `hook`, where somebody has set it, with the owner's user and the further arguments. */
#define FIRE(hooks, hook, ...)                                                                     \
    for (uint32_t i_ = 0; i_ < GPU_HOOKS_OWNER_COUNT; i_++) {                                      \
        const gpulua_hooks *set_ = &(hooks)->sets[i_];                                             \
        if (set_->hook) {                                                                          \
            set_->hook(set_->user, __VA_ARGS__);                                                   \
        }                                                                                          \
    }

void gpu_hooks_release(struct gpu_hooks *hooks) {
    if (hooks && --hooks->refs == 0) {
        free(hooks);
    }
}

gpulua_status gpu_device_set_hooks(struct gpu_device *device, enum gpu_hooks_owner owner,
                                   const gpulua_hooks *hooks, struct gpu_error *error) {
    GPU_ENTER(device);
    bool is_needed = hooks != NULL;
    struct gpu_hooks *made = calloc(1, sizeof *made);
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for hooks");
    }
    made->refs = 1;
    for (uint32_t i = 0; i < GPU_HOOKS_OWNER_COUNT; i++) {
        if (i == owner && hooks) {
            made->sets[i] = *hooks;
        } else if (i != owner && device->hooks) {
            made->sets[i] = device->hooks->sets[i];
            is_needed |= made->sets[i].struct_bytes != 0;
        }
    }
    gpu_hooks_release(device->hooks);
    device->hooks = is_needed ? made : NULL;
    if (!is_needed) {
        free(made);
    }
    return GPULUA_OK;
}

void gpu_hooks_fire_begin(const struct gpu_submit *submit, const char *name, const char *library,
                          const struct gpu_ref *const *refs, uint32_t ref_count,
                          struct gpu_hooked *hooked) {
    struct gpu_device *device = submit->stream->device;
    const char *label = submit->label ? gpu_device_intern(device, submit->label) : name;
    *hooked = (struct gpu_hooked){.hooks = device->hooks, .begun_ns = gpu_clock_ns()};
    hooked->info.struct_bytes = sizeof hooked->info;
    hooked->info.name = name;
    hooked->info.label = label ? label : name;
    hooked->info.library = library ? gpu_device_intern(device, library) : NULL;
    hooked->info.stream = submit->stream->number;
    enum gpu_type type = GPU_TYPE_COUNT;
    bool is_mixed = false;
    for (uint32_t i = 0; i < ref_count; i++) {
        if (refs[i]) {
            hooked->info.bytes += refs[i]->byte_count;
            is_mixed |= type != GPU_TYPE_COUNT && type != refs[i]->type;
            type = refs[i]->type;
        }
    }
    hooked->info.type = type < GPU_TYPE_COUNT && !is_mixed ? gpu_type_name(type) : NULL;
    hooked->info.source = submit->site.source;
    hooked->info.line = submit->site.line;
    hooked->hooks->refs++;
    FIRE(hooked->hooks, before_enqueue, &hooked->info)
}

gpulua_status gpu_hooks_fire_end(const struct gpu_submit *submit, struct gpu_hooked *hooked,
                                 gpulua_status status, const struct gpu_error *error) {
    struct gpu_device *device = submit->stream->device;
    /* It is pending: a poll, which might have ended it, comes later. */
    struct gpu_op *op = status ? NULL : submit->stream->tail;
    hooked->info.number = op ? op->number : 0;
    FIRE(hooked->hooks, after_enqueue, &hooked->info, status, status ? error->message : NULL)
    bool is_awaited = false;
    for (uint32_t i = 0; op && i < GPU_HOOKS_OWNER_COUNT; i++) {
        const gpulua_hooks *set = &hooked->hooks->sets[i];
        is_awaited |= set->before_complete || set->after_complete;
    }
    struct gpu_hooked *kept = is_awaited ? malloc(sizeof *kept) : NULL;
    if (kept) {
        *kept = *hooked;
        op->hooked = kept;
        op->has_extras = true;
        gpu_op_want(op); /* its end is told when it comes, not when somebody waits */
        return status;
    }
    if (is_awaited && device->on_log) { /* not in silence */
        device->on_log(device->log_user, "no host memory for the hooks of an operation's end");
    }
    gpu_hooks_release(hooked->hooks);
    return status;
}

void gpu_hooks_before_complete(struct gpu_op *op) {
    if (op->hooked) {
        FIRE(op->hooked->hooks, before_complete, &op->hooked->info)
    }
}

void gpu_hooks_after_complete(struct gpu_op *op) {
    struct gpu_hooked *hooked = op->hooked;
    if (!hooked) {
        return;
    }
    op->hooked = NULL;
    const struct gpu_error *error = op->failure ? gpu_failure_error(op->failure) : NULL;
    int64_t host_ns = gpu_clock_ns() - hooked->begun_ns;
    int64_t device_ns = op->device->trace ? gpu_trace_device_ns(op->device->trace, op->number) : -1;
    FIRE(hooked->hooks, after_complete, &hooked->info, error ? error->code : GPULUA_OK,
         error ? error->message : NULL, host_ns, device_ns)
    gpu_hooks_release(hooked->hooks);
    free(hooked);
}
