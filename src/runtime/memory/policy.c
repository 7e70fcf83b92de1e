/* What to do when the device has no memory left: fail, ask those who can free some, or wait until
 * others have. Garbage and what is freed but in use come first, always. */
#include <stdlib.h>

#include "runtime/graph.h"
#include "runtime/memory/stack.h"
#include "runtime/watchdog.h"

#define WAIT_NAP_NS INT64_C(1000000)

struct hook {
    int64_t priority;
    gpu_oom_hook *f;
    void *user;
    bool is_asked; /* in the round at hand, or added since it began */
};

struct policy_memory {
    struct gpu_memory base;
    enum gpu_oom_policy policy;
    int64_t timeout_ns;
    bool is_asking; /* a hook runs: what it allocates fails plainly */
    uint32_t hook_count;
    struct hook hooks[GPU_HOOKS_MAX]; /* in the order in which they are asked */
};

gpulua_status gpu_memory_try_again(struct gpu_memory *memory, struct gpu_memory_request *request,
                                   bool may_wait, struct gpu_grant *grant,
                                   struct gpu_error *error) {
    struct gpu_device *device = memory->device;
    gpu_error_finish(error);
    device->stats.oom_retries++;
    gpulua_status status = gpu_memory_recover(device, request, error);
    if (status == GPULUA_OK) {
        status = gpu_memory_allocate(memory, request, grant, error);
    }
    while (status == GPULUA_OUT_OF_MEMORY && may_wait && device->retiring) {
        gpu_error_finish(error);
        (void)gpu_device_wait_retiring(device, error, &status);
        status = status ? status : gpu_memory_recover(device, request, error);
        status = status ? status : gpu_memory_allocate(memory, request, grant, error);
    }
    device->stats.recoveries += status == GPULUA_OK;
    return status;
}

gpulua_status gpu_memory_try_evicting(struct gpu_memory *memory, struct gpu_memory_request *request,
                                      int64_t patience_ns, struct gpu_grant *grant,
                                      struct gpu_error *error) {
    struct gpu_device *device = memory->device;
    gpulua_status status = GPULUA_OUT_OF_MEMORY;
    while (gpu_graphs_evict_for(&status, device, patience_ns, error)) {
        status = gpu_memory_allocate(memory, request, grant, error);
    }
    device->stats.recoveries += status == GPULUA_OK;
    return status;
}

static struct hook *next_hook(struct policy_memory *memory) {
    for (uint32_t i = 0; i < memory->hook_count; i++) {
        if (!memory->hooks[i].is_asked) {
            return &memory->hooks[i];
        }
    }
    return NULL;
}

/* A hook may add hooks and remove them, itself too. */
static gpulua_status ask_hooks(struct policy_memory *memory, struct gpu_memory_request *request,
                               struct gpu_grant *grant, struct gpu_error *error) {
    gpulua_status status = GPULUA_OUT_OF_MEMORY;
    struct hook *hook;
    memory->is_asking = true;
    for (uint32_t i = 0; i < memory->hook_count; i++) {
        memory->hooks[i].is_asked = false;
    }
    while (status == GPULUA_OUT_OF_MEMORY && (hook = next_hook(memory))) {
        hook->is_asked = true;
        uint32_t depth = gpu_share_pause(memory->base.device);
        bool has_freed = hook->f(hook->user, request->caller, request->byte_count);
        gpu_share_resume(memory->base.device, depth);
        if (has_freed) {
            status = gpu_memory_try_again(memory->base.upstream, request, true, grant, error);
        }
    }
    memory->is_asking = false;
    return status;
}

gpulua_status gpu_memory_check_wait(struct gpu_device *device, const char *what,
                                    struct gpu_error *error) {
    if (gpu_device_is_interrupted(device)) {
        return gpu_error_set(error, GPULUA_INTERRUPTED, "interrupted while %s", what);
    }
    return gpu_time_is_told(device, what, error) ? GPULUA_TIMEOUT : GPULUA_OK;
}

static gpulua_status wait_for_memory(struct policy_memory *memory,
                                     struct gpu_memory_request *request, struct gpu_grant *grant,
                                     struct gpu_error *error) {
    struct gpu_device *device = memory->base.device;
    int64_t end_ns = gpu_clock_ns() + memory->timeout_ns, begun_ns = gpu_blocked_begin(device);
    gpulua_status status = GPULUA_OUT_OF_MEMORY;
    int64_t left_ns;
    while (status == GPULUA_OUT_OF_MEMORY && (left_ns = end_ns - gpu_clock_ns()) > 0) {
        struct gpu_error ended = {0};
        if ((status = gpu_memory_check_wait(device, "waiting for memory", &ended))) {
            gpu_error_finish(error);
            *error = ended;
            break;
        }
        gpu_device_want_any(device);
        gpu_device_nap(device, left_ns < WAIT_NAP_NS ? left_ns : WAIT_NAP_NS);
        status = gpu_memory_try_again(memory->base.upstream, request, false, grant, error);
    }
    gpu_blocked_end(device, "memory", begun_ns);
    return status;
}

static gpulua_status policy_allocate(struct gpu_memory *base, struct gpu_memory_request *request,
                                     struct gpu_grant *grant, struct gpu_error *error) {
    struct policy_memory *memory = (struct policy_memory *)base;
    bool may_retry = memory->policy != GPU_OOM_FAIL && !memory->is_asking;
    bool is_injected = request->is_injected && memory->policy != GPU_OOM_FAIL;
    request->is_injected = request->is_injected && !is_injected;
    if (is_injected && request->is_reserved) { /* as a try does that fails */
        request->is_reserved = false;
        gpu_memory_unreserve(base->upstream, request->byte_count);
    }
    gpulua_status status = is_injected ? gpu_memory_fail_injected(request, error)
                                       : gpu_memory_allocate(base->upstream, request, grant, error);
    if (status != GPULUA_OUT_OF_MEMORY || !may_retry) {
        return status; /* what is not tried again here its caller does, or those above */
    }
    request->is_collected |= is_injected; /* that garbage has gone is no help */
    if (!is_injected && !gpu_memory_has_policy(base->upstream)) {
        status = gpu_memory_try_again(base->upstream, request, memory->policy == GPU_OOM_FREE,
                                      grant, error);
    }
    if (status == GPULUA_OUT_OF_MEMORY) {
        status = memory->policy == GPU_OOM_FREE ? ask_hooks(memory, request, grant, error)
                                                : wait_for_memory(memory, request, grant, error);
    }
    /* Who waits for memory has done so already. */
    int64_t patience_ns = memory->policy == GPU_OOM_FREE ? -1 : WAIT_NAP_NS;
    return status == GPULUA_OUT_OF_MEMORY && !is_injected
               ? gpu_memory_try_evicting(base->upstream, request, patience_ns, grant, error)
               : status;
}

bool gpu_memory_has_policy(const struct gpu_memory *memory) {
    for (; memory; memory = memory->upstream) {
        if (memory->kind == GPU_MEMORY_POLICY &&
            ((const struct policy_memory *)memory)->policy != GPU_OOM_FAIL) {
            return true;
        }
    }
    return false;
}

gpulua_status gpu_memory_fail_injected(const struct gpu_memory_request *request,
                                       struct gpu_error *error) {
    const char *label = request->label ? request->label : "";
    return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "injected: no memory for %llu bytes%s%s%s",
                         (unsigned long long)request->asked_bytes, label[0] ? " for '" : "", label,
                         label[0] ? "'" : "");
}

static void policy_deallocate(struct gpu_memory *base, struct gpu_grant *grant,
                              const struct gpu_block *block) {
    gpu_memory_deallocate(base->upstream, grant, block);
}

static gpulua_status policy_init(struct gpu_memory *base, const struct gpu_memory_info *info,
                                 struct gpu_error *error) {
    struct policy_memory *memory = (struct policy_memory *)base;
    (void)error;
    memory->policy = info->policy;
    memory->timeout_ns = info->timeout_ns;
    return GPULUA_OK;
}

gpulua_status gpu_memory_hook_add(struct gpu_memory *memory, int64_t priority, gpu_oom_hook *f,
                                  void *user, struct gpu_error *error) {
    GPU_ENTER(memory->device);
    struct policy_memory *policy =
        (struct policy_memory *)gpu_memory_find(memory, GPU_MEMORY_POLICY);
    if (!policy || policy->policy != GPU_OOM_FREE) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT,
            "this memory asks nobody to free: it was not made with oom = \"free\"");
    }
    if (policy->hook_count == GPU_HOOKS_MAX) {
        gpu_error_set(error, GPULUA_CAPACITY, "a memory has at most %u hooks", GPU_HOOKS_MAX);
        error->capacity_max = GPU_HOOKS_MAX;
        return GPULUA_CAPACITY;
    }
    uint32_t at = policy->hook_count++;
    for (; at > 0 && policy->hooks[at - 1].priority < priority; at--) {
        policy->hooks[at] = policy->hooks[at - 1];
    }
    policy->hooks[at] = (struct hook){priority, f, user, policy->is_asking};
    return GPULUA_OK;
}

void gpu_memory_hooks_remove(struct gpu_memory *memory, const void *user) {
    struct policy_memory *policy =
        (struct policy_memory *)gpu_memory_find(memory, GPU_MEMORY_POLICY);
    uint32_t kept = 0;
    for (uint32_t i = 0; policy && i < policy->hook_count; i++) {
        if (policy->hooks[i].user != user) {
            policy->hooks[kept++] = policy->hooks[i];
        }
    }
    if (policy) {
        policy->hook_count = kept;
    }
}

static const struct gpu_memory_ops policy_ops = {
    .kind = "policy", .allocate = policy_allocate, .deallocate = policy_deallocate};
const struct gpu_memory_class gpu_memory_policy_class = {
    .ops = &policy_ops, .bytes = sizeof(struct policy_memory), .init = policy_init};
