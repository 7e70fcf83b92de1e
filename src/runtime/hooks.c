/* Hooks: kept by what is under way, so that others can be set at any time. */
#include "runtime/hooks.h"

#include <stdlib.h>
#include <string.h>

struct gpu_hooks {
    uint32_t refs;
    gpulua_hooks set;
};

void gpu_hooks_release(struct gpu_hooks *hooks) {
    if (hooks && --hooks->refs == 0) {
        free(hooks);
    }
}

gpulua_status gpu_device_set_hooks(struct gpu_device *device, const gpulua_hooks *hooks,
                                   struct gpu_error *error) {
    GPU_ENTER(device);
    struct gpu_hooks *made = hooks ? malloc(sizeof *made) : NULL;
    if (hooks && !made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for hooks");
    }
    if (made) {
        *made = (struct gpu_hooks){.refs = 1, .set = *hooks};
    }
    gpu_hooks_release(device->hooks);
    device->hooks = made;
    return GPULUA_OK;
}

void gpu_hooks_fire_begin(const struct gpu_submit *submit, const char *name, const char *library,
                          const struct gpu_ref *const *refs, uint32_t ref_count,
                          struct gpu_hooked *hooked) {
    struct gpu_device *device = submit->stream->device;
    const char *label = submit->label ? gpu_device_intern(device, submit->label) : name;
    *hooked = (struct gpu_hooked){.hooks = device->hooks, .begun_ns = gpu_clock_ns()};
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
    hooked->hooks->refs++;
    const gpulua_hooks *set = &hooked->hooks->set;
    if (set->before_enqueue) {
        set->before_enqueue(set->user, &hooked->info);
    }
}

gpulua_status gpu_hooks_fire_end(const struct gpu_submit *submit, struct gpu_hooked *hooked,
                                 gpulua_status status, const struct gpu_error *error) {
    struct gpu_device *device = submit->stream->device;
    const gpulua_hooks *set = &hooked->hooks->set;
    /* It is pending: a poll, which might have ended it, comes later. */
    struct gpu_op *op = status ? NULL : submit->stream->tail;
    hooked->info.number = op ? op->number : 0;
    if (set->after_enqueue) {
        set->after_enqueue(set->user, &hooked->info, status, status ? error->message : NULL);
    }
    bool is_awaited = op && (set->before_complete || set->after_complete);
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
    const gpulua_hooks *set = op->hooked ? &op->hooked->hooks->set : NULL;
    if (set && set->before_complete) {
        set->before_complete(set->user, &op->hooked->info);
    }
}

void gpu_hooks_after_complete(struct gpu_op *op) {
    struct gpu_hooked *hooked = op->hooked;
    if (!hooked) {
        return;
    }
    const gpulua_hooks *set = &hooked->hooks->set;
    op->hooked = NULL;
    if (set->after_complete) {
        const struct gpu_error *error = op->failure ? gpu_failure_error(op->failure) : NULL;
        int64_t took_ns =
            op->device->trace && !error ? gpu_trace_device_ns(op->device->trace, op->number) : -1;
        set->after_complete(set->user, &hooked->info, error ? error->code : GPULUA_OK,
                            error ? error->message : NULL, gpu_clock_ns() - hooked->begun_ns,
                            took_ns);
    }
    gpu_hooks_release(hooked->hooks);
    free(hooked);
}
