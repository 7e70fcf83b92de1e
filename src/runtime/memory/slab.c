/* Slab and pinned: ranges of large grants, found on this side. Allocating and freeing are
 * bookkeeping; only growth is a round trip. */
#include <assert.h>
#include <stdlib.h>

#include "runtime/memory/quarantine.h"
#include "runtime/recovery.h"

#define MIB (UINT64_C(1) << 20)
#define SLAB_BYTES_MIN (64 * MIB) /* amortises the round trip and the driver's cost of mapping */
#define SLAB_BYTES_MAX (1024 * MIB)
#define SLAB_ALIGN_BYTES (2 * MIB) /* the granularity of CUDA's virtual memory interface */

#define RECENT_COUNT 16u

struct slab_memory {
    struct gpu_memory base;
    struct gpu_range_allocator *ranges; /* owned */
    /* Ranges freed last, by their size: who asks for the same again gets them back without any
     * cutting and joining. byte_count 0: none. */
    struct gpu_range recent[RECENT_COUNT];
    /* Check mode: what was freed, poisoned, and waits until others may have it, so that who still
     * uses it is found. It has left every budget, and comes out before one of them is too small. */
    struct gpu_kept_list quarantined;
};

struct pinned_memory {
    struct gpu_memory base;
    struct gpu_range_allocator *ranges; /* owned */
    uint64_t *region_offsets;           /* owned; in the arena */
    uint32_t region_count;
    uint64_t top_bytes;
    struct gpu_kept_list late; /* what the device's former process may write yet */
};

static uint64_t round_up(uint64_t bytes, uint64_t to) {
    return (bytes + to - 1) / to * to;
}

/* ---- slabs ---- */

gpulua_status gpu_slab_number_take(struct gpu_device *device, uint32_t *number,
                                   struct gpu_error *error) {
    struct gpu_id_pool *ids = &device->slab_ids;
    if (ids->free_count == 0 && ids->next >= WIRE_SLABS_MAX) {
        return gpu_error_set(error, GPULUA_CAPACITY,
                             "a device has at most %u slabs and variables at a time",
                             WIRE_SLABS_MAX);
    }
    if (!gpu_id_take(ids, number)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a slab");
    }
    return GPULUA_OK;
}

void gpu_slab_number_give(struct gpu_device *device, uint32_t number) {
    assert(number > 0);
    struct gpu_error ignored = {0};
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_DESTROY, .object = number};
    if (gpu_device_publish(device, &record, &ignored)) {
        gpu_error_finish(&ignored); /* the device is lost, and says so elsewhere */
    }
    gpu_id_give(&device->slab_ids, number);
}

gpulua_status gpu_slab_ask(struct gpu_device *device, struct wire_record *record, const char *label,
                           struct gpu_error *error) {
    gpulua_status status = gpu_slab_number_take(device, &record->object, error);
    if (status) {
        return status;
    }
    status = gpu_request_wait(device, record, label, NULL, NULL, error);
    if (status) {
        gpu_slab_number_give(device, record->object);
    }
    return status;
}

static gpulua_status create_slab(struct slab_memory *memory, uint64_t bytes,
                                 struct gpu_error *error) {
    struct gpu_device *device = memory->base.device;
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_CREATE};
    record.u.slab.bytes = bytes;
    gpulua_status status = gpu_slab_ask(device, &record, "slab", error);
    if (status) {
        return status;
    }
    if (!gpu_range_region_add(memory->ranges, record.object, bytes)) {
        gpu_slab_number_give(device, record.object);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a slab");
    }
    device->stats.bytes_reserved += bytes;
    return GPULUA_OK;
}

static gpulua_status grow_slabs(struct slab_memory *memory, uint64_t byte_count,
                                struct gpu_error *error) {
    struct gpu_device *device = memory->base.device;
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
    gpulua_status status = create_slab(memory, wanted, error);
    if (status == GPULUA_OUT_OF_MEMORY && wanted > exact) {
        gpu_error_finish(error);
        status = create_slab(memory, exact, error);
    }
    if (status == GPULUA_OUT_OF_MEMORY && gpu_device_trim(device) > 0) {
        gpu_error_finish(error);
        status = create_slab(memory, exact, error);
    }
    if (status == GPULUA_OUT_OF_MEMORY && gpu_recovery_outwait(device, &status, error)) {
        gpu_error_finish(error);
        status = create_slab(memory, exact, error);
    }
    return status;
}

static struct gpu_range *recent_of(struct slab_memory *memory, uint64_t byte_count) {
    uint64_t units = byte_count / GPU_RANGE_ALIGN_BYTES;
    return &memory->recent[(units ^ units >> 4 ^ units >> 11) % RECENT_COUNT];
}

static void forget_recent(struct slab_memory *memory) {
    for (uint32_t i = 0; i < RECENT_COUNT; i++) {
        if (memory->recent[i].byte_count > 0) {
            gpu_range_free(memory->ranges, &memory->recent[i]);
            memory->recent[i].byte_count = 0;
        }
    }
}

/* False: nothing fits, wherever it lies. */
static bool find_range(struct slab_memory *memory, uint64_t byte_count, struct gpu_range *range) {
    struct gpu_range *recent = recent_of(memory, byte_count);
    if (recent->byte_count == byte_count) {
        *range = *recent;
        recent->byte_count = 0;
        return true;
    }
    if (gpu_range_alloc(memory->ranges, byte_count, range)) {
        return true;
    }
    forget_recent(memory);
    return gpu_range_alloc(memory->ranges, byte_count, range);
}

/* ---- quarantine ---- */

static void release_range(struct slab_memory *memory, const struct gpu_range *range) {
    struct gpu_range *recent = recent_of(memory, range->byte_count);
    if (recent->byte_count > 0) {
        gpu_range_free(memory->ranges, recent);
    }
    *recent = *range;
}

static void let_out(struct slab_memory *memory) {
    struct gpu_kept *oldest = memory->quarantined.head;
    gpu_kept_take(&memory->quarantined, oldest);
    memory->base.device->stats.bytes_quarantined = memory->quarantined.byte_count;
    release_range(memory, &oldest->grant.range);
    free(oldest);
}

/* The newest stays, however large. False: no host memory to keep it. */
static bool take_in(struct slab_memory *memory, const struct gpu_grant *grant) {
    struct gpu_kept *kept = calloc(1, sizeof *kept);
    if (!kept) {
        return false;
    }
    kept->grant = *grant;
    kept->grant.byte_count = grant->range.byte_count; /* with the gap */
    gpu_kept_put(&memory->quarantined, kept);
    while (memory->quarantined.byte_count > GPU_CHECK_QUARANTINE_BYTES &&
           memory->quarantined.head != kept) {
        let_out(memory);
    }
    memory->base.device->stats.bytes_quarantined = memory->quarantined.byte_count;
    return true;
}

static bool find_quarantined(struct slab_memory *memory, uint64_t byte_count,
                             struct gpu_range *range) {
    bool is_found = false;
    while (!is_found && memory->quarantined.head) {
        let_out(memory);
        is_found = find_range(memory, byte_count, range);
    }
    return is_found;
}

static uint64_t slab_reap(struct gpu_memory *base, bool is_urgent) {
    struct slab_memory *memory = (struct slab_memory *)base;
    uint64_t bytes = is_urgent ? memory->quarantined.byte_count : 0;
    while (is_urgent && memory->quarantined.head) {
        let_out(memory);
    }
    return bytes;
}

/* More slabs, as far as the budget goes; then what is in quarantine; then as if none were. */
static gpulua_status find_more(struct slab_memory *memory, uint64_t byte_count,
                               struct gpu_range *range, struct gpu_error *error) {
    const struct gpu_stats *stats = &memory->base.device->stats;
    uint64_t exact = round_up(byte_count, SLAB_ALIGN_BYTES);
    uint64_t gaps_bytes =
        gpu_block_gap_bytes(memory->base.device) * (memory->base.outstanding_count + 1);
    if (stats->bytes_reserved + exact > stats->budget_bytes + gaps_bytes &&
        find_quarantined(memory, byte_count, range)) {
        return GPULUA_OK;
    }
    gpulua_status status = grow_slabs(memory, byte_count, error);
    bool is_short = status == GPULUA_OUT_OF_MEMORY || status == GPULUA_CAPACITY;
    if (is_short && find_quarantined(memory, byte_count, range)) {
        gpu_error_finish(error);
        return GPULUA_OK;
    }
    if (status == GPULUA_OK && !find_range(memory, byte_count, range)) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no room for %llu bytes",
                               (unsigned long long)byte_count);
    }
    return status;
}

/* ---- the resource ---- */

static gpulua_status slab_allocate(struct gpu_memory *base, struct gpu_memory_request *request,
                                   struct gpu_grant *grant, struct gpu_error *error) {
    struct slab_memory *memory = (struct slab_memory *)base;
    struct gpu_device *device = base->device;
    gpulua_status status = gpu_device_reserve(device, request, error);
    if (status) {
        return status;
    }
    uint64_t byte_count = request->byte_count + gpu_block_gap_bytes(device);
    if (!find_range(memory, byte_count, &grant->range)) {
        if (device->retiring) {
            (void)gpu_device_poll(device);
            (void)gpu_device_reap(device);
        }
        if (!find_range(memory, byte_count, &grant->range)) {
            status = find_more(memory, byte_count, &grant->range, error);
        }
    }
    if (status) {
        gpu_account_release(&device->account, request->byte_count);
        return status;
    }
    grant->byte_count = request->byte_count;
    grant->address = gpu_wire_address(grant->range.region, grant->range.byte_offset);
    return GPULUA_OK;
}

static void slab_deallocate(struct gpu_memory *base, struct gpu_grant *grant,
                            const struct gpu_block *block) {
    struct slab_memory *memory = (struct slab_memory *)base;
    (void)block;
    if (!base->device->is_checked || !take_in(memory, grant)) {
        release_range(memory, &grant->range);
    }
    gpu_account_release(&base->device->account, grant->byte_count);
}

uint64_t gpu_slabs_trim(struct gpu_memory *base) {
    struct slab_memory *memory = (struct slab_memory *)base;
    struct gpu_device *device = base->device;
    uint64_t bytes, total = 0;
    uint32_t slab;
    (void)slab_reap(base, true);
    forget_recent(memory);
    while ((slab = gpu_range_region_take_free(memory->ranges, &bytes)) != 0) {
        struct gpu_error ignored = {0};
        struct wire_record record = {
            .length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_DESTROY, .object = slab};
        if (gpu_device_publish(device, &record, &ignored)) {
            gpu_error_finish(&ignored);
            break;
        }
        gpu_id_give(&device->slab_ids, slab);
        device->stats.bytes_reserved -= bytes;
        total += bytes;
    }
    return total;
}

/* Slabs that nothing survives in are gone with the device. */
static void slab_lose(struct gpu_memory *base) {
    struct slab_memory *memory = (struct slab_memory *)base;
    uint64_t bytes;
    uint32_t slab;
    (void)slab_reap(base, true);
    forget_recent(memory);
    while ((slab = gpu_range_region_take_free(memory->ranges, &bytes)) != 0) {
        gpu_id_give(&base->device->slab_ids, slab);
        base->device->stats.bytes_reserved -= bytes;
    }
}

static void slab_restore(struct gpu_memory *base) {
    const struct slab_memory *memory = (const struct slab_memory *)base;
    uint64_t bytes;
    uint32_t slab;
    for (uint32_t i = 0; (slab = gpu_range_region_at(memory->ranges, i, &bytes)) != 0; i++) {
        struct wire_record record = {
            .length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_CREATE, .object = slab};
        record.u.slab.bytes = bytes;
        gpu_recovery_request(base->device, &record, "slab", true, NULL, NULL);
    }
}

static gpulua_status slab_init(struct gpu_memory *base, const struct gpu_memory_info *info,
                               struct gpu_error *error) {
    struct slab_memory *memory = (struct slab_memory *)base;
    (void)info;
    gpu_kept_init(&memory->quarantined);
    memory->ranges = gpu_range_allocator_create();
    return memory->ranges ? GPULUA_OK
                          : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory");
}

static void slab_finish(struct gpu_memory *base) {
    struct slab_memory *memory = (struct slab_memory *)base;
    (void)slab_reap(base, true);
    gpu_range_allocator_destroy(memory->ranges);
}

static const struct gpu_memory_ops slab_ops = {
    .kind = "slab",
    .allocate = slab_allocate,
    .deallocate = slab_deallocate,
    .reap = slab_reap,
    .lose = slab_lose,
    .restore = slab_restore,
    .finish = slab_finish,
};
const struct gpu_memory_class gpu_memory_slab_class = {
    .ops = &slab_ops, .bytes = sizeof(struct slab_memory), .init = slab_init, .is_bottom = true};

/* ---- pinned ---- */

static gpulua_status grow_arena(struct pinned_memory *memory, uint64_t byte_count,
                                struct gpu_error *error) {
    struct gpu_device *device = memory->base.device;
    uint64_t bytes = round_up(byte_count, WIRE_ARENA_CHUNK_BYTES);
    if (bytes > device->link->arena_bytes - memory->top_bytes) {
        return gpu_error_set(
            error, GPULUA_OUT_OF_MEMORY,
            "no address space is left for %llu bytes of host memory shared with the device",
            (unsigned long long)byte_count);
    }
    size_t count = memory->region_count + 1u;
    uint64_t *offsets = realloc(memory->region_offsets, count * sizeof *offsets);
    if (!offsets) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for an arena chunk");
    }
    memory->region_offsets = offsets;
    if (!gpu_range_region_add(memory->ranges, memory->region_count, bytes)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for an arena chunk");
    }
    offsets[memory->region_count++] = memory->top_bytes;
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_ARENA_REGISTER};
    record.u.arena.byte_offset = memory->top_bytes;
    record.u.arena.bytes = bytes;
    memory->top_bytes += bytes;
    gpu_recovery_tell_arena(device, memory->top_bytes);
    return gpu_device_publish(device, &record, error);
}

static void release_late(struct pinned_memory *memory) {
    while (memory->late.head) {
        struct gpu_kept *oldest = memory->late.head;
        gpu_kept_take(&memory->late, oldest);
        gpu_range_free(memory->ranges, &oldest->grant.range);
        free(oldest);
    }
}

static gpulua_status pinned_allocate(struct gpu_memory *base, struct gpu_memory_request *request,
                                     struct gpu_grant *grant, struct gpu_error *error) {
    struct pinned_memory *memory = (struct pinned_memory *)base;
    if (memory->late.head && gpu_wire_link_is_settled(base->device->link)) {
        release_late(memory);
    }
    if (!gpu_range_alloc(memory->ranges, request->byte_count, &grant->range)) {
        if (base->device->retiring) {
            (void)gpu_device_poll(base->device);
            (void)gpu_device_reap(base->device);
        }
        if (!gpu_range_alloc(memory->ranges, request->byte_count, &grant->range)) {
            gpulua_status status = grow_arena(memory, request->byte_count, error);
            if (status) {
                return status;
            }
            if (!gpu_range_alloc(memory->ranges, request->byte_count, &grant->range)) {
                return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no room for %llu bytes",
                                     (unsigned long long)request->byte_count);
            }
        }
    }
    grant->byte_count = request->byte_count;
    grant->address = memory->region_offsets[grant->range.region] + grant->range.byte_offset;
    return GPULUA_OK;
}

static void pinned_deallocate(struct gpu_memory *base, struct gpu_grant *grant,
                              const struct gpu_block *block) {
    struct pinned_memory *memory = (struct pinned_memory *)base;
    struct gpu_kept *kept = block->has_late_writer ? calloc(1, sizeof *kept) : NULL;
    if (kept) { /* until somebody asks when that process has ended */
        kept->grant = *grant;
        gpu_kept_put(&memory->late, kept);
    } else if (!block->has_late_writer) { /* else there is no memory to know when: for good */
        gpu_range_free(memory->ranges, &grant->range);
    }
}

/* The arena is memory of this process; the device has to know of it once more. */
static void pinned_restore(struct gpu_memory *base) {
    const struct pinned_memory *memory = (const struct pinned_memory *)base;
    struct gpu_error ignored = {0};
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_ARENA_REGISTER};
    record.u.arena.bytes = memory->top_bytes;
    if (memory->top_bytes > 0 && gpu_device_publish(base->device, &record, &ignored)) {
        gpu_error_finish(&ignored); /* the link is dead: that is noticed */
    }
}

void gpu_memory_pinned_tell(struct gpu_memory *base) {
    gpu_recovery_tell_arena(base->device, ((struct pinned_memory *)base)->top_bytes);
}

static gpulua_status pinned_init(struct gpu_memory *base, const struct gpu_memory_info *info,
                                 struct gpu_error *error) {
    struct pinned_memory *memory = (struct pinned_memory *)base;
    (void)info;
    gpu_kept_init(&memory->late);
    memory->ranges = gpu_range_allocator_create();
    return memory->ranges ? GPULUA_OK
                          : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory");
}

static void pinned_finish(struct gpu_memory *base) {
    struct pinned_memory *memory = (struct pinned_memory *)base;
    release_late(memory);
    gpu_range_allocator_destroy(memory->ranges);
    free(memory->region_offsets);
}

static const struct gpu_memory_ops pinned_ops = {
    .kind = "pinned",
    .allocate = pinned_allocate,
    .deallocate = pinned_deallocate,
    .restore = pinned_restore,
    .finish = pinned_finish,
};
const struct gpu_memory_class gpu_memory_pinned_class = {.ops = &pinned_ops,
                                                         .bytes = sizeof(struct pinned_memory),
                                                         .init = pinned_init,
                                                         .is_bottom = true};
