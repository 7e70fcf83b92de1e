/* Blocks: sub-allocated on this side from slabs that the executor grants (device memory) and from
 * the arena (pinned memory shared with it). Allocating and freeing are bookkeeping; only growth by
 * a slab is a round trip. A freed block retires until every use of it is over, and only then
 * becomes free memory again. */
#include "runtime/memory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state.h"

#define MIB (UINT64_C(1) << 20)
#define SLAB_BYTES_MIN (64 * MIB) /* amortises the round trip and the driver's cost of mapping */
#define SLAB_BYTES_MAX (1024 * MIB)
#define SLAB_ALIGN_BYTES (2 * MIB) /* the granularity of CUDA's virtual memory interface */
#define REAP_AT_CREATE 2u /* more than one, so that the list shrinks while blocks come and go */
/* Check mode keeps blocks apart: an access past an end hits no other. */
#define CHECK_GAP_BYTES (UINT64_C(64) << 10)

static uint64_t round_up(uint64_t bytes, uint64_t to) {
    return (bytes + to - 1) / to * to;
}

/* ---- growth ---- */

static gpulua_status create_slab(struct gpu_device *device, uint64_t bytes,
                                 struct gpu_error *error) {
    if (device->slab_next >= WIRE_SLABS_MAX) {
        return gpu_error_set(error, GPULUA_CAPACITY, "a device gives at most %u slabs in one life",
                             WIRE_SLABS_MAX);
    }
    uint32_t slab = device->slab_next + 1;
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_CREATE, .object = slab};
    record.u.slab.bytes = bytes;
    device->slab_next = slab; /* used up also when it fails: never reused */
    gpulua_status status = gpu_request_wait(device, &record, "slab", NULL, NULL, error);
    if (status) {
        return status;
    }
    if (!gpu_range_region_add(device->ranges, slab, bytes)) {
        struct wire_record destroy = {
            .length_bytes = sizeof destroy, .opcode = WIRE_OP_SLAB_DESTROY, .object = slab};
        (void)gpu_device_publish(device, &destroy, error);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a slab");
    }
    device->stats.bytes_reserved += bytes;
    return GPULUA_OK;
}

static gpulua_status grow_slabs(struct gpu_device *device, uint64_t byte_count,
                                struct gpu_error *error) {
    uint64_t exact = round_up(byte_count, SLAB_ALIGN_BYTES);
    uint64_t wanted = device->stats.bytes_reserved / 2;
    wanted = wanted < SLAB_BYTES_MIN   ? SLAB_BYTES_MIN
             : wanted > SLAB_BYTES_MAX ? SLAB_BYTES_MAX
                                       : wanted;
    wanted = round_up(wanted, SLAB_ALIGN_BYTES);
    /* Never reserve more than the budget only to be generous. */
    if (wanted < exact || device->stats.bytes_reserved + wanted > device->stats.budget_bytes) {
        wanted = exact;
    }
    gpulua_status status = create_slab(device, wanted, error);
    if (status == GPULUA_OUT_OF_MEMORY && wanted > exact) {
        gpu_error_finish(error);
        status = create_slab(device, exact, error);
    }
    if (status == GPULUA_OUT_OF_MEMORY && gpu_device_trim(device) > 0) {
        gpu_error_finish(error);
        status = create_slab(device, exact, error);
    }
    return status;
}

static gpulua_status grow_arena(struct gpu_device *device, uint64_t byte_count,
                                struct gpu_error *error) {
    uint64_t bytes = round_up(byte_count, WIRE_ARENA_CHUNK_BYTES);
    if (bytes > device->link->arena_bytes - device->arena_top_bytes) {
        return gpu_error_set(
            error, GPULUA_OUT_OF_MEMORY,
            "no address space is left for %llu bytes of host memory shared with the device",
            (unsigned long long)byte_count);
    }
    size_t count = device->arena_region_count + 1u;
    struct gpu_arena_region *regions = realloc(device->arena_regions, count * sizeof *regions);
    if (!regions) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for an arena chunk");
    }
    device->arena_regions = regions;
    if (!gpu_range_region_add(device->arena_ranges, device->arena_region_count, bytes)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for an arena chunk");
    }
    regions[device->arena_region_count++] =
        (struct gpu_arena_region){.byte_offset = device->arena_top_bytes};
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_ARENA_REGISTER};
    record.u.arena.byte_offset = device->arena_top_bytes;
    record.u.arena.bytes = bytes;
    device->arena_top_bytes += bytes;
    return gpu_device_publish(device, &record, error);
}

/* ---- retiring ---- */

static struct gpu_ref whole(struct gpu_block *block) {
    return (struct gpu_ref){.block = block, .byte_count = block->byte_count};
}

bool gpu_block_uses_over(struct gpu_block *block) {
    struct gpu_ref all = whole(block);
    return gpu_ref_is_idle(&all, true);
}

static void destroy(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    if (block->is_host && --device->host_block_count == 0 && device->mapped_link) {
        struct wire_link *link = device->mapped_link;
        device->mapped_link = NULL;
        gpu_wire_link_close(link);
    }
    gpu_history_finish(&block->history);
    gpu_module_release(block->module);
    free(block);
    gpu_device_release(device);
}

static void unlink_live(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    if (block->previous) {
        block->previous->next = block->next;
    } else {
        device->blocks = block->next;
    }
    if (block->next) {
        block->next->previous = block->previous;
    }
    block->next = block->previous = NULL;
    device->stats.blocks_live--;
}

static void account_end(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    uint64_t bytes = block->range.byte_count;
    if (block->is_external || !device->ranges) {
        return;
    }
    if (block->is_staging) {
        return; /* counted until its memory is free again: the bound is about memory */
    }
    if (!block->is_host) {
        device->stats.bytes_live -= bytes;
        device->stats.bytes_pending += bytes;
        device->stats.frees++;
    }
}

/* The end of a block as scripts see it. Its struct lives on while refs point to it. */
static void retire(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    unlink_live(block);
    account_end(block);
    block->is_freed = true;
    if (block->is_external || !device->ranges) { /* no memory of ours, or the device is closed */
        return;
    }
    block->next = NULL;
    block->refs++; /* the retiring list's */
    *device->retiring_tail = block;
    device->retiring_tail = &block->next;
}

/* Check mode: the executor knows every block of device memory. */
static void tell_block(const struct gpu_block *block, enum wire_opcode opcode) {
    struct gpu_device *device = block->device;
    struct {
        struct wire_record record;
        char label[sizeof block->label];
    } told = {.record = {.length_bytes = sizeof told, .opcode = (uint8_t)opcode}};
    _Static_assert(sizeof told % 16 == 0, "as records are");
    told.record.u.block.address = block->address;
    told.record.u.block.bytes = block->byte_count;
    told.record.u.block.number = block->number;
    memcpy(told.label, block->label, sizeof told.label);
    struct gpu_error ignored = {0};
    if (device->link && gpu_device_publish(device, &told.record, &ignored)) {
        gpu_error_finish(&ignored); /* the device is lost, and says so elsewhere */
    }
}

static uint64_t give_back(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    uint64_t bytes = block->range.byte_count;
    if (block->is_host) {
        gpu_range_free(device->arena_ranges, &block->range);
        if (block->is_staging) {
            device->stats.staging_bytes -= bytes;
        }
        return 0;
    }
    if (device->is_checked) {
        tell_block(block, WIRE_OP_BLOCK_FREE);
    }
    gpu_range_free(device->ranges, &block->range);
    device->stats.bytes_pending -= bytes;
    return bytes;
}

/* Takes the block at *link, whose uses are over, off the retiring list. Returns bytes given back.
 */
static uint64_t retire_finish(struct gpu_device *device, struct gpu_block **link) {
    struct gpu_block *block = *link;
    *link = block->next;
    if (!*link) {
        device->retiring_tail = link;
    }
    block->next = NULL;
    uint64_t bytes = give_back(block);
    if (--block->refs == 0) {
        destroy(block);
    }
    return bytes;
}

uint64_t gpu_device_reap(struct gpu_device *device) {
    uint64_t bytes = 0;
    gpu_device_run_deferred(device);
    struct gpu_block **link = &device->retiring;
    while (*link) {
        struct gpu_block *block = *link;
        if (!gpu_block_uses_over(block)) {
            link = &block->next;
            continue;
        }
        bytes += retire_finish(device, link);
    }
    return bytes;
}

/* The oldest few whose uses are over; stops at one that is still in use. Keeps the list short and
 * memory warm at a bounded cost for each call. */
void gpu_device_reap_some(struct gpu_device *device, uint32_t count_max) {
    while (device->retiring && count_max-- > 0 && gpu_block_uses_over(device->retiring)) {
        (void)retire_finish(device, &device->retiring);
    }
}

static void run_release(struct gpu_device *device, struct gpu_deferred *deferred) {
    (void)device;
    struct gpu_block *block =
        (struct gpu_block *)(void *)((char *)deferred - offsetof(struct gpu_block, release));
    block->is_deferred = false;
    if (block->refs > 0) {
        return;
    }
    block->refs = 1;
    if (!block->is_freed) {
        retire(block);
    }
    if (--block->refs == 0) {
        destroy(block);
    }
}

struct gpu_block *gpu_block_retain(struct gpu_block *block) {
    block->refs++;
    return block;
}

void gpu_block_release(struct gpu_block *block) {
    if (!block || --block->refs > 0 || block->is_deferred) {
        return;
    }
    block->is_deferred = true;
    gpu_device_defer(block->device, &block->release, run_release);
}

void gpu_block_free(struct gpu_block *block) {
    if (!block->is_freed) {
        retire(block);
    }
}

/* ---- creation ---- */

static struct gpu_block *make(struct gpu_device *device, uint64_t byte_count, const char *label) {
    struct gpu_block *block = calloc(1, sizeof *block);
    if (!block) {
        return NULL;
    }
    block->refs = 1;
    block->device = gpu_device_retain(device);
    block->number = ++device->block_number_next;
    block->epoch = device->epoch;
    block->byte_count = byte_count;
    gpu_history_init(&block->history, byte_count);
    if (label) {
        snprintf(block->label, sizeof block->label, "%s", label);
    }
    block->next = device->blocks;
    if (device->blocks) {
        device->blocks->previous = block;
    }
    device->blocks = block;
    device->stats.blocks_live++;
    return block;
}

struct gpu_block *gpu_block_create_external(struct gpu_device *device, uint64_t address,
                                            uint64_t byte_count, const char *label) {
    struct gpu_block *block = make(device, byte_count, label);
    if (block) {
        block->is_external = true;
        block->address = address;
    }
    return block;
}

/* The oldest retiring block's last use, to wait for; false: nothing retires. */
static bool wait_for_retiring(struct gpu_device *device, struct gpu_error *error,
                              gpulua_status *status) {
    *status = GPULUA_OK;
    if (!device->retiring) {
        return false;
    }
    struct gpu_block *block = device->retiring;
    struct gpu_ref all = whole(block);
    gpu_block_retain(block);
    struct gpu_op *op;
    while (*status == GPULUA_OK && (op = gpu_ref_pending(&all, true))) {
        *status = gpu_op_wait(op, -1, error);
        gpu_op_release(op);
    }
    gpu_block_release(block);
    gpu_device_run_deferred(device);
    return true;
}

static gpulua_status over_budget(struct gpu_device *device, uint64_t bytes, const char *label,
                                 struct gpu_error *error) {
    uint64_t limit = device->stats.budget_bytes;
    uint64_t current = device->stats.bytes_live;
    uint64_t remaining = limit > current ? limit - current : 0;
    gpu_error_set(error, GPULUA_OUT_OF_BUDGET,
                  "%llu bytes%s%s asked of device %s, %llu of %llu in use, %llu left",
                  (unsigned long long)bytes, label ? " for " : "", label ? label : "", device->name,
                  (unsigned long long)current, (unsigned long long)limit,
                  (unsigned long long)remaining);
    error->requested_bytes = bytes;
    error->current_bytes = current;
    error->remaining_bytes = remaining;
    error->limit_bytes = limit;
    return GPULUA_OUT_OF_BUDGET;
}

/* Room within the budget: memory whose uses are still in flight counts until they are over, so wait
 * for it. */
static gpulua_status reserve_budget(struct gpu_device *device, const struct gpu_block_info *info,
                                    uint64_t bytes, struct gpu_error *error) {
    uint64_t limit = device->stats.budget_bytes;
    if (bytes > limit) {
        return over_budget(device, bytes, info->label, error);
    }
    while (device->stats.bytes_live + device->stats.bytes_pending > limit - bytes) {
        (void)gpu_device_reap(device);
        if (device->stats.bytes_live + device->stats.bytes_pending <= limit - bytes) {
            break;
        }
        if (device->stats.bytes_live > limit - bytes) {
            return over_budget(device, bytes, info->label, error);
        }
        gpulua_status status;
        if (!wait_for_retiring(device, error, &status)) {
            return over_budget(device, bytes, info->label, error);
        }
        if (status) {
            return status;
        }
    }
    return GPULUA_OK;
}

static gpulua_status reserve_range(struct gpu_device *device, const struct gpu_block_info *info,
                                   uint64_t bytes, struct gpu_range *range,
                                   struct gpu_error *error) {
    struct gpu_range_allocator *ranges = info->is_host ? device->arena_ranges : device->ranges;
    if (gpu_range_alloc(ranges, bytes, range)) {
        return GPULUA_OK;
    }
    if (device->retiring) {
        (void)gpu_device_poll(device);
        (void)gpu_device_reap(device);
        if (gpu_range_alloc(ranges, bytes, range)) {
            return GPULUA_OK;
        }
    }
    gpulua_status status =
        info->is_host ? grow_arena(device, bytes, error) : grow_slabs(device, bytes, error);
    while (status == GPULUA_OUT_OF_MEMORY && info->may_wait && device->retiring) {
        gpulua_status waited;
        gpu_error_finish(error);
        (void)wait_for_retiring(device, error, &waited);
        if (waited) {
            return waited;
        }
        (void)gpu_device_reap(device);
        if (gpu_range_alloc(ranges, bytes, range)) {
            return GPULUA_OK;
        }
        if (!device->retiring) {
            status =
                info->is_host ? grow_arena(device, bytes, error) : grow_slabs(device, bytes, error);
        }
    }
    if (status) {
        return status;
    }
    if (!gpu_range_alloc(ranges, bytes, range)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no room for %llu bytes",
                             (unsigned long long)bytes);
    }
    return GPULUA_OK;
}

gpulua_status gpu_block_create(struct gpu_device *device, const struct gpu_block_info *info,
                               struct gpu_block **block, struct gpu_error *error) {
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        return status;
    }
    gpu_device_run_deferred(device);
    gpu_device_reap_some(device, REAP_AT_CREATE);
    uint64_t limit = info->is_host ? device->link->arena_bytes : GPU_BLOCK_BYTES_MAX;
    if (info->byte_count == 0 || info->byte_count > limit - GPU_RANGE_ALIGN_BYTES) {
        if (!info->is_host && info->byte_count > 0) {
            return over_budget(device, info->byte_count, info->label, error);
        }
        return gpu_error_set(error,
                             info->byte_count ? GPULUA_OUT_OF_MEMORY : GPULUA_INVALID_ARGUMENT,
                             "a block has 1 to %llu bytes, not %llu", (unsigned long long)limit,
                             (unsigned long long)info->byte_count);
    }
    uint64_t bytes = round_up(info->byte_count, GPU_RANGE_ALIGN_BYTES);
    if (device->is_checked && !info->is_host) {
        bytes += CHECK_GAP_BYTES;
    }
    if (!info->is_host && (status = reserve_budget(device, info, bytes, error))) {
        return status;
    }
    struct gpu_range range;
    status = reserve_range(device, info, bytes, &range, error);
    if (status) {
        return status;
    }
    struct gpu_block *made = make(device, info->byte_count, info->label);
    if (!made) {
        gpu_range_free(info->is_host ? device->arena_ranges : device->ranges, &range);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a block");
    }
    made->range = range;
    made->site = info->site;
    made->is_host = info->is_host;
    device->host_block_count += info->is_host;
    if (info->is_host) {
        made->address = device->arena_regions[range.region].byte_offset + range.byte_offset;
    } else {
        made->address = gpu_wire_address(range.region, range.byte_offset);
        device->stats.allocs++;
        device->stats.bytes_live += range.byte_count;
        if (device->stats.bytes_live > device->stats.bytes_live_max) {
            device->stats.bytes_live_max = device->stats.bytes_live;
        }
    }
    if (device->is_checked && !info->is_host) {
        tell_block(made, WIRE_OP_BLOCK_CREATE);
    }
    *block = made;
    return GPULUA_OK;
}

/* ---- questions ---- */

gpulua_status gpu_ref_check(const struct gpu_ref *ref, struct gpu_device *device, const char *what,
                            struct gpu_error *error) {
    const struct gpu_block *block = ref->block;
    if (!block) {
        return gpu_error_set(error, GPULUA_CLOSED, "%s: attempt to use a closed buffer", what);
    }
    gpulua_status status = gpu_device_check(block->device, error);
    if (status) {
        return status;
    }
    if (block->epoch != block->device->epoch) {
        return gpu_error_set(error, GPULUA_STALE,
                             "%s: block %llu is of epoch %llu, device %s is in epoch %llu", what,
                             (unsigned long long)block->number, (unsigned long long)block->epoch,
                             block->device->name, (unsigned long long)block->device->epoch);
    }
    if (block->is_freed) {
        return gpu_error_set(
            error, GPULUA_USE_AFTER_FREE, "%s: the memory (allocation %llu%s%s) was freed", what,
            (unsigned long long)block->number, block->label[0] ? ", " : "", block->label);
    }
    if (device && block->device != device) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT, "%s: the buffer is on %s%s, the work is for %s", what,
            gpu_device_kin(block->device, device), block->device->name, device->name);
    }
    return GPULUA_OK;
}

struct gpu_device *gpu_block_device(const struct gpu_block *block) {
    return block->device;
}
uint64_t gpu_block_number(const struct gpu_block *block) {
    return block->number;
}
uint64_t gpu_block_bytes(const struct gpu_block *block) {
    return block->byte_count;
}
const char *gpu_block_label(const struct gpu_block *block) {
    return block->label;
}
bool gpu_block_is_host(const struct gpu_block *block) {
    return block->is_host;
}
bool gpu_block_is_freed(const struct gpu_block *block) {
    return block->is_freed;
}

void *gpu_block_host_bytes(const struct gpu_block *block) {
    assert(block->is_host);
    return block->device->link ? block->device->link->arena + block->address : NULL;
}

/* ---- staging ---- */

gpulua_status gpu_staging_acquire(struct gpu_device *device, uint64_t byte_count,
                                  struct gpu_staging *staging, struct gpu_error *error) {
    assert(byte_count > 0 && byte_count <= GPU_STAGING_CHUNK_BYTES);
    uint64_t bytes = round_up(byte_count, GPU_RANGE_ALIGN_BYTES);
    while (device->stats.staging_bytes + bytes > GPU_STAGING_BYTES_MAX) {
        (void)gpu_device_reap(device);
        if (device->stats.staging_bytes + bytes <= GPU_STAGING_BYTES_MAX) {
            break;
        }
        gpulua_status status;
        if (!wait_for_retiring(device, error, &status)) {
            return gpu_error_set(error, GPULUA_CAPACITY,
                                 "all %llu bytes of staging memory are held",
                                 (unsigned long long)GPU_STAGING_BYTES_MAX);
        }
        if (status) {
            return status;
        }
        device->stats.throttles++;
    }
    struct gpu_block_info info = {
        .byte_count = byte_count, .label = "staging", .is_host = true, .may_wait = true};
    struct gpu_block *block = NULL;
    gpulua_status status = gpu_block_create(device, &info, &block, error);
    if (status) {
        return status;
    }
    block->is_staging = true;
    device->stats.staging_bytes += block->range.byte_count;
    if (device->stats.staging_bytes > device->stats.staging_bytes_max) {
        device->stats.staging_bytes_max = device->stats.staging_bytes;
    }
    *staging = (struct gpu_staging){.bytes = gpu_block_host_bytes(block),
                                    .byte_count = byte_count,
                                    .arena_offset = block->address,
                                    .owner = block};
    return GPULUA_OK;
}

void gpu_staging_release(struct gpu_device *device, struct gpu_staging *staging) {
    (void)device;
    gpu_block_release(staging->owner);
    *staging = (struct gpu_staging){0};
}

/* ---- the end ---- */

uint64_t gpu_device_trim(struct gpu_device *device) {
    struct gpu_error ignored = {0};
    uint64_t total = 0;
    if (gpu_device_check(device, &ignored)) {
        gpu_error_finish(&ignored);
        return 0;
    }
    (void)gpu_device_poll(device);
    (void)gpu_device_reap(device);
    uint64_t bytes;
    uint32_t slab;
    while ((slab = gpu_range_region_take_free(device->ranges, &bytes)) != 0) {
        struct wire_record record = {
            .length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_DESTROY, .object = slab};
        if (gpu_device_publish(device, &record, &ignored)) {
            gpu_error_finish(&ignored);
            break;
        }
        device->stats.bytes_reserved -= bytes;
        total += bytes;
    }
    return total;
}

void gpu_memory_finish(struct gpu_device *device) {
    (void)gpu_device_reap(device); /* nothing is in flight any more: every retiring block goes */
    gpu_range_allocator_destroy(device->ranges);
    gpu_range_allocator_destroy(device->arena_ranges);
    free(device->arena_regions);
    device->ranges = device->arena_ranges = NULL;
    device->arena_regions = NULL;
    device->stats.bytes_live = device->stats.bytes_pending = device->stats.bytes_reserved = 0;
}
