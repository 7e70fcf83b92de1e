/* Guard: memory that tells when it was written by who should not have. Before and behind each block
 * lies a canary; what is freed is poisoned and kept from being used again for a while. Canaries are
 * looked at when a block is freed, poison when it leaves the quarantine, both on demand.
 *
 * Looking means to read device memory back, so it happens in the calls that make, free or check
 * memory, never where others only give back a block. A tool to find bugs with: each block costs a
 * few transfers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/memory/quarantine.h"
#include "runtime/watchdog.h"
#include "runtime/work.h"

#define CANARY_BYTE 0xC5
#define LOOK_NAP_NS INT64_C(1000000)

struct entry {
    struct gpu_kept kept; /* its grant is from the resource below */
    uint64_t asked_bytes, number;
    char label[48];
    struct gpu_site site;
};

struct guard_memory {
    struct gpu_memory base;
    uint64_t canary_bytes, quarantine_bytes_max;
    struct gpu_stream *stream;                     /* retained; made when first needed */
    struct gpu_kept_list live, freed, quarantined; /* freed: not looked at yet */
    struct gpu_kept_list doomed; /* of a life of the device that ended while somebody looked */
    uint64_t life;               /* counts those */
    struct gpu_kept *next_live;  /* the next one where somebody looks at all that live; or NULL */
    bool is_looking;             /* a thread is; it lets go of the device's lock where it waits */
    struct gpu_error *finding;   /* borrowed: where the first one goes; NULL: to those of the device
                                    that nobody has observed */
    struct gpu_error *unseen;    /* borrowed: why it could not look; NULL: nobody asks */
};

/* ---- device work, waited for ---- */

static gpulua_status own_stream(struct guard_memory *memory, struct gpu_error *error) {
    return memory->stream
               ? GPULUA_OK
               : gpu_stream_create_own(memory->base.device, "guard", &memory->stream, error);
}

static gpulua_status end_of(struct gpu_op *op, struct gpu_error *error) {
    gpulua_status status = gpu_op_wait(op, -1, error);
    if (status == GPULUA_OK && gpu_op_status(op)) {
        gpu_error_copy(error, gpu_op_error(op));
        status = error->code;
    }
    gpu_op_observe(op);
    gpu_op_release(op);
    return status;
}

static gpulua_status fill(struct gpu_device *device, struct gpu_stream *stream, uint64_t address,
                          uint64_t byte_count, uint8_t value, struct gpu_error *error) {
    struct gpu_block *block = gpu_block_create_external(device, address, byte_count, "guard");
    if (!block) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a guard");
    }
    struct gpu_ref ref = {.block = block, .byte_count = byte_count, .type = GPU_TYPE_U8};
    struct gpu_submit submit = {.stream = stream, .label = "guard"};
    struct gpu_op *op = NULL;
    gpulua_status status = gpu_work_fill(&submit, &ref, &value, &op, error);
    if (status == GPULUA_OK) {
        status = end_of(op, error);
    }
    gpu_block_close(block);
    return status;
}

/* The first byte that is not `value`; *at = byte_count: all are. */
static gpulua_status find_other(struct guard_memory *memory, uint64_t address, uint64_t byte_count,
                                uint8_t value, uint64_t *at, struct gpu_error *error) {
    struct gpu_device *device = memory->base.device;
    struct gpu_block *block = gpu_block_create_external(device, address, byte_count, "guard");
    if (!block) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a guard");
    }
    struct gpu_ref ref = {.block = block, .byte_count = byte_count, .type = GPU_TYPE_U8};
    struct gpu_submit submit = {.stream = memory->stream, .label = "guard"};
    gpulua_status status = GPULUA_OK;
    bool is_found = false;
    for (*at = 0; status == GPULUA_OK && !is_found && *at < byte_count;) {
        struct gpu_staging staging;
        struct gpu_op *op = NULL;
        uint64_t part = byte_count - *at;
        part = part < GPU_STAGING_CHUNK_BYTES ? part : GPU_STAGING_CHUNK_BYTES;
        status = gpu_staging_acquire(device, part, &staging, error);
        if (status) {
            break;
        }
        status = gpu_work_download(&submit, &ref, *at, &staging, part, &op, error);
        status = status ? status : end_of(op, error);
        for (uint64_t i = 0; status == GPULUA_OK && !is_found && i < part; i++) {
            is_found = staging.bytes[i] != value;
            *at += !is_found;
        }
        gpu_staging_release(device, &staging);
    }
    gpu_block_close(block);
    return status;
}

/* ---- findings ---- */

static void tell(struct guard_memory *memory, const struct entry *entry, gpulua_status code,
                 const char *what) {
    struct gpu_device *device = memory->base.device;
    struct gpu_error error;
    char place[96] = "";
    if (entry->site.source) {
        snprintf(place, sizeof place, ", made at %.60s:%d", entry->site.source, entry->site.line);
    }
    gpu_error_set(&error, code, "buffer%s%s%s (allocation %llu, %llu bytes%s): %s",
                  entry->label[0] ? " '" : "", entry->label, entry->label[0] ? "'" : "",
                  (unsigned long long)entry->number, (unsigned long long)entry->asked_bytes, place,
                  what);
    device->stats.guard_findings++;
    if (memory->finding && memory->finding->code == GPULUA_OK) {
        *memory->finding = error;
    } else {
        gpu_failure_keep(device, memory->base.seat, &error);
    }
}

static gpulua_status could_not_look(struct guard_memory *memory, struct gpu_error *error) {
    gpulua_status status = error->code;
    if (memory->unseen && memory->unseen->code == GPULUA_OK) {
        *memory->unseen = *error;
    } else {
        gpu_error_finish(error);
    }
    return status;
}

/* A canary says so once: it is put right again. */
static gpulua_status look_at_canaries(struct guard_memory *memory, const struct entry *entry) {
    struct gpu_error error;
    char what[160];
    uint64_t at, front = memory->canary_bytes;
    uint64_t begin = entry->kept.grant.address + front + entry->asked_bytes;
    uint64_t back = entry->kept.grant.address + entry->kept.grant.byte_count - begin;
    struct gpu_device *device = memory->base.device;
    device->stats.guard_checks++;
    gpulua_status status =
        find_other(memory, entry->kept.grant.address, front, CANARY_BYTE, &at, &error);
    if (status == GPULUA_OK && at < front) {
        snprintf(what, sizeof what, "something wrote byte -%llu, before its first",
                 (unsigned long long)(front - at));
        tell(memory, entry, GPULUA_OUT_OF_BOUNDS, what);
        status =
            fill(device, memory->stream, entry->kept.grant.address, front, CANARY_BYTE, &error);
    }
    if (status == GPULUA_OK) {
        status = find_other(memory, begin, back, CANARY_BYTE, &at, &error);
    }
    if (status == GPULUA_OK && at < back) {
        snprintf(what, sizeof what, "something wrote byte %llu, behind its last",
                 (unsigned long long)(entry->asked_bytes + at));
        tell(memory, entry, GPULUA_OUT_OF_BOUNDS, what);
        status = fill(device, memory->stream, begin, back, CANARY_BYTE, &error);
    }
    return status ? could_not_look(memory, &error) : GPULUA_OK;
}

static gpulua_status look_at_poison(struct guard_memory *memory, const struct entry *entry) {
    struct gpu_error error;
    char what[160];
    uint64_t at, begin = entry->kept.grant.address + memory->canary_bytes;
    memory->base.device->stats.guard_checks++;
    gpulua_status status =
        find_other(memory, begin, entry->asked_bytes, WIRE_POISON_BYTE, &at, &error);
    if (status == GPULUA_OK && at < entry->asked_bytes) {
        snprintf(what, sizeof what, "something wrote its byte %llu after it was freed",
                 (unsigned long long)at);
        tell(memory, entry, GPULUA_USE_AFTER_FREE, what);
        status = fill(memory->base.device, memory->stream, begin, entry->asked_bytes,
                      WIRE_POISON_BYTE, &error);
    }
    return status ? could_not_look(memory, &error) : GPULUA_OK;
}

/* ---- giving back ---- */

static void bury_doomed(struct guard_memory *memory) {
    while (memory->doomed.head) {
        struct entry *entry = (struct entry *)memory->doomed.head;
        gpu_kept_take(&memory->doomed, &entry->kept);
        free(entry);
    }
}

static void looking_ends(struct guard_memory *memory) {
    memory->is_looking = false;
    memory->next_live = NULL;
    bury_doomed(memory);
}

/* To the resource below: now, or, where a wait was given up, behind what is still at work there.
 * Returns the bytes that are free. */
static uint64_t give_below(struct guard_memory *memory, struct gpu_stream *stream,
                           struct entry *entry) {
    struct gpu_block name = {.number = entry->number, .site = entry->site};
    memcpy(name.label, entry->label, sizeof name.label);
    return gpu_grant_give(memory->base.upstream, &entry->kept.grant, &name, stream);
}

/* The entry is the caller's. */
static uint64_t let_go(struct guard_memory *memory, struct gpu_kept_list *list,
                       struct entry *entry) {
    gpu_kept_take(list, &entry->kept);
    return give_below(memory, memory->stream, entry);
}

static uint64_t give_up(struct guard_memory *memory, struct gpu_kept_list *list,
                        struct entry *entry) {
    uint64_t byte_count = let_go(memory, list, entry);
    free(entry);
    return byte_count;
}

/* What was freed is looked at and goes into quarantine, if its poison can be put there. */
static uint64_t take_in(struct guard_memory *memory, struct entry *entry) {
    struct gpu_error error;
    uint64_t life = memory->life;
    gpulua_status status = look_at_canaries(memory, entry);
    if (memory->life != life) {
        return 0; /* it is doomed */
    }
    if (memory->quarantine_bytes_max == 0 || status) {
        return give_up(memory, &memory->freed, entry);
    }
    if (fill(memory->base.device, memory->stream, entry->kept.grant.address + memory->canary_bytes,
             entry->asked_bytes, WIRE_POISON_BYTE, &error)) {
        gpu_error_finish(&error);
        return memory->life != life ? 0 : give_up(memory, &memory->freed, entry);
    }
    if (memory->life != life) {
        return 0;
    }
    gpu_kept_take(&memory->freed, &entry->kept);
    gpu_kept_put(&memory->quarantined, &entry->kept);
    return 0;
}

static uint64_t guard_reap(struct gpu_memory *base, bool is_urgent) {
    struct guard_memory *memory = (struct guard_memory *)base;
    struct gpu_error error;
    uint64_t bytes = 0;
    if (memory->is_looking || !memory->base.device->memory ||
        (!memory->freed.head && !memory->quarantined.head)) {
        return 0;
    }
    if (own_stream(memory, &error)) {
        gpu_error_finish(&error);
        return 0;
    }
    memory->is_looking = true;
    while (memory->freed.head) {
        bytes += take_in(memory, (struct entry *)memory->freed.head);
    }
    uint64_t kept_bytes = is_urgent ? 0 : memory->quarantine_bytes_max;
    while (memory->quarantined.head && memory->quarantined.byte_count > kept_bytes) {
        struct entry *oldest = (struct entry *)memory->quarantined.head;
        uint64_t life = memory->life;
        (void)look_at_poison(memory, oldest);
        bytes += memory->life != life ? 0 : give_up(memory, &memory->quarantined, oldest);
    }
    looking_ends(memory);
    return bytes;
}

/* Another thread looks, short of memory, and tells of what it finds. False: no time for that. */
static bool wait_for_looker(const struct guard_memory *memory, struct gpu_error *error) {
    struct gpu_device *device = memory->base.device;
    while (memory->is_looking && device->link) {
        if (gpu_device_is_interrupted(device)) {
            gpu_error_finish(error);
            gpu_error_set(error, GPULUA_INTERRUPTED,
                          "interrupted while another thread looks at guarded memory");
            return false;
        }
        if (gpu_time_is_up(device)) {
            gpu_error_finish(error);
            (void)gpu_time_is_told(device, "another thread's look at guarded memory", error);
            return false;
        }
        gpu_device_nap(device, LOOK_NAP_NS);
    }
    return true;
}

gpulua_status gpu_memory_check(struct gpu_memory *memory, bool is_everything,
                               struct gpu_error *error) {
    GPU_ENTER(memory->device);
    struct gpu_device *device = memory->device;
    gpulua_status status = gpu_device_check(device, error);
    while (status == GPULUA_OK && memory->retiring_bytes > 0 &&
           gpu_device_wait_retiring(device, error, &status)) {
        (void)gpu_device_reap(device);
    }
    if (status == GPULUA_OK && is_everything) {
        status = gpu_device_wait_idle(device, -1, error);
    }
    if (status) {
        return status;
    }
    struct gpu_error finding = {0}, unseen = {0};
    for (struct gpu_memory *base = gpu_memory_find(memory, GPU_MEMORY_GUARD); base;
         base = gpu_memory_find(base->upstream, GPU_MEMORY_GUARD)) {
        struct guard_memory *guard = (struct guard_memory *)base;
        if (!wait_for_looker(guard, &unseen)) {
            break;
        }
        guard->finding = &finding;
        guard->unseen = is_everything ? &unseen : NULL;
        (void)guard_reap(base, false);
        if (is_everything && unseen.code == GPULUA_OK && own_stream(guard, &unseen) == GPULUA_OK) {
            uint64_t life = guard->life;
            guard->is_looking = true;
            /* Any of them may be freed while it waits. */
            for (struct gpu_kept *kept = guard->live.head; kept && guard->life == life;
                 kept = guard->next_live) {
                guard->next_live = kept->next;
                (void)look_at_canaries(guard, (struct entry *)kept);
            }
            for (struct gpu_kept *kept = guard->quarantined.head; kept && guard->life == life;
                 kept = kept->next) {
                (void)look_at_poison(guard, (struct entry *)kept);
            }
            looking_ends(guard);
        }
        guard->finding = guard->unseen = NULL;
    }
    if (finding.code) {
        gpu_error_finish(&unseen);
    }
    *error = finding.code ? finding : unseen;
    return error->code;
}

/* ---- the resource ---- */

static uint64_t guard_below_bytes(const struct gpu_memory *base, uint64_t byte_count) {
    return byte_count + 2 * ((const struct guard_memory *)base)->canary_bytes;
}

static gpulua_status put_canaries(struct guard_memory *memory, struct gpu_stream *stream,
                                  const struct entry *entry, struct gpu_error *error) {
    struct gpu_device *device = memory->base.device;
    uint64_t begin = entry->kept.grant.address + memory->canary_bytes + entry->asked_bytes;
    gpulua_status status =
        fill(device, stream, entry->kept.grant.address, memory->canary_bytes, CANARY_BYTE, error);
    if (status == GPULUA_OK) {
        status = fill(device, stream, begin,
                      entry->kept.grant.address + entry->kept.grant.byte_count - begin, CANARY_BYTE,
                      error);
    }
    return status;
}

static gpulua_status guard_allocate(struct gpu_memory *base, struct gpu_memory_request *request,
                                    struct gpu_grant *grant, struct gpu_error *error) {
    struct guard_memory *memory = (struct guard_memory *)base;
    uint64_t byte_count = request->byte_count, asked_bytes = request->asked_bytes;
    (void)guard_reap(base, false);
    request->asked_bytes = request->byte_count = guard_below_bytes(base, byte_count);
    gpulua_status status = gpu_memory_allocate(base->upstream, request, grant, error);
    request->byte_count = byte_count;
    request->asked_bytes = asked_bytes;
    if (status) {
        return status;
    }
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry) {
        struct gpu_block name = {.number = request->number};
        gpu_memory_deallocate(base->upstream, grant, &name);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a guard");
    }
    entry->kept.grant = *grant;
    entry->asked_bytes = request->asked_bytes;
    entry->number = request->number;
    entry->site = request->site;
    (void)gpu_label_copy(entry->label, sizeof entry->label, request->label);
    status = own_stream(memory, error);
    /* What is in the order of a stream is there for that stream alone so far. */
    struct gpu_stream *stream = request->is_on_stream ? request->stream : memory->stream;
    status = status ? status : put_canaries(memory, stream, entry, error);
    if (status) {
        (void)give_below(memory, stream, entry);
        free(entry);
        return status;
    }
    gpu_kept_put(&memory->live, &entry->kept);
    grant->address += memory->canary_bytes;
    grant->byte_count = byte_count;
    grant->tag = entry;
    return GPULUA_OK;
}

static void guard_deallocate(struct gpu_memory *base, struct gpu_grant *grant,
                             const struct gpu_block *block) {
    struct guard_memory *memory = (struct guard_memory *)base;
    struct entry *entry = grant->tag;
    (void)block;
    if (memory->next_live == &entry->kept) {
        memory->next_live = entry->kept.next;
    }
    gpu_kept_take(&memory->live, &entry->kept);
    gpu_kept_put(&memory->freed, &entry->kept);
}

static gpulua_status guard_init(struct gpu_memory *base, const struct gpu_memory_info *info,
                                struct gpu_error *error) {
    struct guard_memory *memory = (struct guard_memory *)base;
    if (info->canary_bytes == 0 || info->canary_bytes > GPU_GUARD_CANARY_BYTES_MAX) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT, "a canary has 1 to %llu bytes, not %llu",
            (unsigned long long)GPU_GUARD_CANARY_BYTES_MAX, (unsigned long long)info->canary_bytes);
    }
    memory->canary_bytes = (info->canary_bytes + GPU_RANGE_ALIGN_BYTES - 1) /
                           GPU_RANGE_ALIGN_BYTES * GPU_RANGE_ALIGN_BYTES;
    memory->quarantine_bytes_max = info->quarantine_bytes;
    gpu_kept_init(&memory->live);
    gpu_kept_init(&memory->freed);
    gpu_kept_init(&memory->quarantined);
    gpu_kept_init(&memory->doomed);
    return GPULUA_OK;
}

static void forget(struct guard_memory *memory, struct gpu_kept_list *list) {
    while (list->head) {
        if (memory->base.device->memory) {
            (void)give_up(memory, list, (struct entry *)list->head);
        } else { /* the device is closed, and its memory gone */
            struct entry *entry = (struct entry *)list->head;
            gpu_kept_take(list, &entry->kept);
            free(entry);
        }
    }
}

/* Who looks waits for the device, and finds its entry here still; it is freed when that is over. */
static void doom(struct guard_memory *memory, struct gpu_kept_list *list) {
    while (list->head) {
        struct entry *entry = (struct entry *)list->head;
        (void)let_go(memory, list, entry);
        gpu_kept_put(&memory->doomed, &entry->kept);
    }
}

static void guard_lose(struct gpu_memory *base) {
    struct guard_memory *memory = (struct guard_memory *)base;
    memory->life++;
    doom(memory, &memory->freed);
    doom(memory, &memory->quarantined);
    if (!memory->is_looking) {
        bury_doomed(memory);
    }
}

static void guard_finish(struct gpu_memory *base) {
    struct guard_memory *memory = (struct guard_memory *)base;
    bury_doomed(memory);
    forget(memory, &memory->freed);
    forget(memory, &memory->quarantined);
    forget(memory, &memory->live); /* of blocks that outlive their device */
    gpu_stream_release(memory->stream);
}

static const struct gpu_memory_ops guard_ops = {
    .kind = "guard",
    .allocate = guard_allocate,
    .deallocate = guard_deallocate,
    .reap = guard_reap,
    .lose = guard_lose,
    .finish = guard_finish,
    .below_bytes = guard_below_bytes,
};
const struct gpu_memory_class gpu_memory_guard_class = {
    .ops = &guard_ops, .bytes = sizeof(struct guard_memory), .init = guard_init};
