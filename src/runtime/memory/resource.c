/* Making resources, stacking them, asking them, and their end. */
#include "runtime/resource.h"

#include <stdlib.h>

#include "runtime/memory/stack.h"

static const struct gpu_memory_class *const class_table[GPU_MEMORY_KIND_COUNT] = {
    [GPU_MEMORY_SLAB] = &gpu_memory_slab_class,
    [GPU_MEMORY_DRIVER] = &gpu_memory_driver_class,
    [GPU_MEMORY_DIRECT] = &gpu_memory_direct_class,
    [GPU_MEMORY_BUDGET] = &gpu_memory_budget_class,
    [GPU_MEMORY_STATISTICS] = &gpu_memory_statistics_class,
    [GPU_MEMORY_LOGGING] = &gpu_memory_logging_class,
    [GPU_MEMORY_GUARD] = &gpu_memory_guard_class,
    [GPU_MEMORY_POLICY] = &gpu_memory_policy_class,
    [GPU_MEMORY_PINNED] = &gpu_memory_pinned_class,
    [GPU_MEMORY_EXTERNAL] = &gpu_memory_external_class,
};

/* ---- making ---- */

static struct gpu_memory *make(struct gpu_device *device, const struct gpu_memory_info *info,
                               struct gpu_memory *upstream, bool is_own, struct gpu_error *error) {
    const struct gpu_memory_class *class = class_table[info->kind];
    struct gpu_memory *made = calloc(1, class->bytes);
    if (!made) {
        gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a memory resource");
        return NULL;
    }
    made->ops = class->ops;
    made->kind = info->kind;
    made->refs = 1;
    made->depth = upstream ? upstream->depth + 1 : 1;
    made->is_trackable = upstream ? upstream->is_trackable : info->kind != GPU_MEMORY_DIRECT;
    made->is_own = is_own;
    made->device = device;
    made->seat = gpu_seat_of(device);
    if (class->init && class->init(made, info, error)) {
        free(made);
        return NULL;
    }
    made->upstream = upstream ? gpu_memory_retain(upstream) : NULL;
    if (!is_own) {
        gpu_device_retain(device);
    }
    made->next = device->memories;
    made->link = &device->memories;
    if (made->next) {
        made->next->link = &made->next;
    }
    device->memories = made;
    return made;
}

gpulua_status gpu_memory_create(struct gpu_device *device, const struct gpu_memory_info *info,
                                struct gpu_memory **memory, struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        return status;
    }
    if (info->kind == GPU_MEMORY_SLAB) {
        *memory = gpu_memory_retain(device->memory); /* there is one: all share its slabs */
        return GPULUA_OK;
    }
    struct gpu_memory *upstream = info->upstream;
    if (class_table[info->kind]->is_bottom) {
        upstream = NULL;
    } else if (!upstream) {
        upstream = device->memory;
    }
    if (upstream && upstream->device != device) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT, "memory of %s%s cannot stand on memory of %s",
            gpu_device_kin(device, upstream->device), device->title, upstream->device->title);
    }
    if (upstream && upstream->depth >= GPU_MEMORY_DEPTH_MAX) {
        gpu_error_set(error, GPULUA_CAPACITY, "at most %u memory resources stand on each other",
                      GPU_MEMORY_DEPTH_MAX);
        error->capacity_max = GPU_MEMORY_DEPTH_MAX;
        return GPULUA_CAPACITY;
    }
    gpu_error_set(error, GPULUA_OK, "%s", "");
    *memory = make(device, info, upstream, false, error);
    return *memory ? GPULUA_OK : error->code;
}

bool gpu_memory_open(struct gpu_device *device) {
    struct gpu_error error = {0};
    device->memory =
        make(device, &(struct gpu_memory_info){.kind = GPU_MEMORY_SLAB}, NULL, true, &error);
    device->pinned =
        make(device, &(struct gpu_memory_info){.kind = GPU_MEMORY_PINNED}, NULL, true, &error);
    device->external =
        make(device, &(struct gpu_memory_info){.kind = GPU_MEMORY_EXTERNAL}, NULL, true, &error);
    return device->memory && device->pinned && device->external;
}

/* ---- the end ---- */

static void destroy(struct gpu_memory *memory) {
    struct gpu_device *device = memory->device;
    struct gpu_memory *upstream = memory->upstream;
    if (memory->ops->finish) {
        memory->ops->finish(memory);
    }
    *memory->link = memory->next;
    if (memory->next) {
        memory->next->link = memory->link;
    }
    bool is_own = memory->is_own;
    free(memory);
    gpu_memory_release(upstream);
    if (!is_own) {
        gpu_device_release(device);
    }
}

static void run_release(struct gpu_device *device, struct gpu_deferred *deferred) {
    struct gpu_memory *memory =
        (struct gpu_memory *)(void *)((char *)deferred - offsetof(struct gpu_memory, release));
    (void)device;
    memory->is_deferred = false;
    if (memory->refs == 0) {
        destroy(memory);
    }
}

struct gpu_memory *gpu_memory_retain(struct gpu_memory *memory) {
    GPU_ENTER(memory->device);
    memory->refs++;
    return memory;
}

void gpu_memory_release(struct gpu_memory *memory) {
    if (!memory) {
        return;
    }
    GPU_ENTER_WHOLE(memory->device);
    if (--memory->refs == 0 && !memory->is_deferred) {
        memory->is_deferred = true;
        gpu_device_defer(memory->device, &memory->release, run_release);
    }
}

void gpu_memory_close(struct gpu_device *device) {
    if (device->link) { /* nothing is in flight any more: every retiring block goes */
        (void)gpu_device_reap(device);
    }
    struct gpu_memory *slab = device->memory, *pinned = device->pinned;
    struct gpu_memory *external = device->external;
    device->memory = device->pinned = device->external = NULL;
    gpu_memory_release(slab);
    gpu_memory_release(pinned);
    gpu_memory_release(external);
    device->stats.bytes_live = device->stats.bytes_pending = device->stats.bytes_reserved = 0;
    if (device->trace) {
        gpu_trace_forget_memory(device->trace);
    }
}

/* ---- another life of the device ---- */

void gpu_memories_lose(struct gpu_device *device) {
    for (struct gpu_memory *memory = device->memories; memory; memory = memory->next) {
        if (memory->ops->lose && memory->upstream) { /* what stands on others gives it to these */
            memory->ops->lose(memory);
        }
    }
    for (struct gpu_memory *memory = device->memories; memory; memory = memory->next) {
        if (memory->ops->lose && !memory->upstream) {
            memory->ops->lose(memory);
        }
    }
}

void gpu_memories_restore(struct gpu_device *device) {
    for (struct gpu_memory *memory = device->memories; memory; memory = memory->next) {
        if (memory->ops->restore) {
            memory->ops->restore(memory);
        }
    }
}

/* ---- coming free ---- */

static uint64_t reap_all(struct gpu_device *device, bool is_urgent) {
    uint64_t bytes = 0;
    for (struct gpu_memory *memory = device->memories; memory;) {
        gpu_memory_retain(memory); /* what it does may end others */
        bytes += memory->ops->reap ? memory->ops->reap(memory, is_urgent) : 0;
        struct gpu_memory *next = memory->next;
        gpu_memory_release(memory);
        memory = next;
    }
    return bytes;
}

gpulua_status gpu_memory_recover(struct gpu_device *device, struct gpu_memory_request *request,
                                 struct gpu_error *error) {
    bool is_first = !request->is_collected;
    request->is_collected = true;
    if (is_first && request->collect) {
        device->stats.collections++;
        uint32_t depth = gpu_share_pause(device);
        request->collect(request->caller);
        gpu_share_resume(device, depth);
    }
    gpulua_status status = gpu_device_check(device, error);
    if (status == GPULUA_OK) {
        (void)gpu_device_poll(device);
        (void)gpu_device_reap(device);
        (void)reap_all(device, true);
    }
    return status;
}

uint64_t gpu_memory_reap(struct gpu_memory *memory, bool is_urgent) {
    GPU_ENTER_WHOLE(memory->device, 0);
    uint64_t bytes = gpu_device_reap(memory->device);
    for (; memory; memory = memory->upstream) {
        bytes += memory->ops->reap ? memory->ops->reap(memory, is_urgent) : 0;
    }
    return bytes;
}

/* ---- questions ---- */

const char *gpu_memory_kind_name(const struct gpu_memory *memory) {
    return memory->ops->kind;
}
struct gpu_device *gpu_memory_device(const struct gpu_memory *memory) {
    return memory->device;
}
struct gpu_memory *gpu_memory_upstream(const struct gpu_memory *memory) {
    return memory->upstream;
}
bool gpu_memory_is_trackable(const struct gpu_memory *memory) {
    return memory->is_trackable;
}
uint64_t gpu_memory_outstanding_bytes(const struct gpu_memory *memory) {
    GPU_ENTER(memory->device);
    return memory->outstanding_bytes;
}
uint64_t gpu_memory_outstanding_count(const struct gpu_memory *memory) {
    GPU_ENTER(memory->device);
    return memory->outstanding_count;
}

struct gpu_memory *gpu_memory_find(struct gpu_memory *memory, enum gpu_memory_kind kind) {
    while (memory && memory->kind != kind) {
        memory = memory->upstream;
    }
    return memory;
}
