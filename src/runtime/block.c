/* Blocks: memory with an identity and a history. A freed block retires until every use of it is
 * over, and only then goes back to the resource that it is from. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph.h"
#include "runtime/memory/stack.h"
#include "runtime/recovery.h"
#include "runtime/work.h"

#define REAP_AT_CREATE 2u /* more than one, so that the list shrinks while blocks come and go */

/* ---- the end ---- */

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
        gpu_device_end_link(device, link);
    }
    gpu_history_finish(&block->history);
    if (block->shadow) {
        block->device->observer->block_gone(block->device->observer->user, block->shadow);
        block->shadow = NULL;
    }
    if (block->module && device->link) { /* the executor knows the variable by this number */
        gpu_slab_number_give(device, gpu_wire_address_slab(block->address));
    }
    gpu_module_release(block->module);
    gpu_memory_release(block->memory);
    gpu_block_release(block->home);
    gpu_block_release(block->copy);
    gpu_failure_release(block->lost);
    if (device->block_spare_count < GPU_BLOCKS_SPARE_MAX) {
        block->next = device->block_spare;
        device->block_spare = block;
        device->block_spare_count++;
    } else {
        free(block);
    }
    gpu_device_drop(device);
}

void gpu_blocks_finish(struct gpu_device *device) {
    while (device->block_spare) {
        struct gpu_block *block = device->block_spare;
        device->block_spare = block->next;
        free(block);
    }
    device->block_spare_count = 0;
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
    gpu_flight_note_gone(&device->flight, block);
}

/* Check mode: the executor knows every block of device memory. Of a device that closes it need not
 * know which are over: where it has stopped already, each word would be waited for in vain. */
static void tell_block(const struct gpu_block *block, enum wire_opcode opcode) {
    struct gpu_device *device = block->device;
    if (block->is_hidden || (device->is_closing && opcode == WIRE_OP_BLOCK_OVER)) {
        return;
    }
    struct {
        struct wire_record record;
        char text[64];
    } told = {.record = {.length_bytes = sizeof told, .opcode = (uint8_t)opcode}};
    _Static_assert(sizeof told % 16 == 0, "as records are");
    told.record.u.block.address = block->address;
    told.record.u.block.bytes = block->byte_count;
    told.record.u.block.number = block->number;
    told.record.u.block.is_scratch = block->is_scratch;
    if (opcode == WIRE_OP_BLOCK_CREATE) {
        memcpy(told.text, block->label, sizeof block->label);
    } else if (block->end_site.source) {
        snprintf(told.text, sizeof told.text, "%.48s:%d", block->end_site.source,
                 block->end_site.line);
    }
    struct gpu_error ignored = {0};
    if (device->link && gpu_device_publish(device, &told.record, &ignored)) {
        gpu_error_finish(&ignored); /* the device is lost, and says so elsewhere */
    }
}

/* Every use of it is over. Returns the bytes that are free again. */
static uint64_t give_back(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    uint64_t bytes = block->grant.byte_count;
    if (block->is_staging) {
        device->stats.staging_bytes -= bytes;
    }
    gpu_memory_deallocate(block->memory, &block->grant, block);
    return block->is_host ? 0 : bytes;
}

static void count_retiring(struct gpu_block *block, bool is_begin) {
    uint64_t bytes = block->grant.byte_count;
    for (struct gpu_memory *memory = block->memory; memory; memory = memory->upstream) {
        memory->retiring_bytes += is_begin ? bytes : (uint64_t)0 - bytes;
    }
    if (!block->is_host) {
        block->device->stats.bytes_pending += is_begin ? bytes : (uint64_t)0 - bytes;
    }
}

static bool was_never_used(const struct gpu_block *block) {
    const struct gpu_history *history = &block->history;
    return history->count == 1 && history->capacity == 0 && history->first.write.seq == 0 &&
           history->first.read_count == 0;
}

static void put_retiring(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    count_retiring(block, true);
    block->refs++; /* the retiring list's */
    *device->retiring_tail = block;
    device->retiring_tail = &block->next;
}

/* Nobody but work in flight may use its memory any more. */
static void retire_memory(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    if (!block->is_host) {
        device->stats.bytes_live -= block->grant.byte_count;
        device->stats.frees++;
        if (device->trace) {
            gpu_trace_note_memory(device->trace, block, false);
        }
        if (device->is_checked) {
            tell_block(block, WIRE_OP_BLOCK_FREE);
        }
    }
    if (was_never_used(block)) {
        (void)give_back(block);
        return;
    }
    put_retiring(block);
}

/* The end of a block as scripts see it. Its struct lives on while refs point to it. */
static void retire(struct gpu_block *block) {
    struct gpu_device *device = block->device;
    unlink_live(block);
    block->is_freed = true;
    device->block_ends++;
    /* No memory of ours, or the device is closed; or another library has it still. */
    if (!block->is_external && device->memory && block->export_count == 0) {
        retire_memory(block);
    }
}

void gpu_block_restore(struct gpu_block *block) {
    if (block->is_host || block->is_external || block->is_freed) {
        return;
    }
    struct gpu_memory *bottom = block->memory;
    while (bottom->upstream) {
        bottom = bottom->upstream;
    }
    if (bottom->ops->restore_grant) {
        bottom->ops->restore_grant(bottom, &block->grant);
    }
    if (block->device->is_checked) {
        tell_block(block, WIRE_OP_BLOCK_CREATE);
    }
}

void gpu_block_note_write(struct gpu_block *block, uint64_t byte_offset, const void *bytes,
                          uint64_t byte_count, const void *element, uint32_t element_bytes) {
    uint8_t *to = block->copy ? gpu_block_host_bytes(block->copy) : NULL;
    if (!to) {
        return;
    }
    block->copy_version++;
    to += byte_offset;
    if (bytes) {
        memcpy(to, bytes, byte_count);
        return;
    }
    memcpy(to, element, element_bytes); /* then what is there, doubled again and again */
    for (uint64_t done = element_bytes; done < byte_count;) {
        uint64_t more = done < byte_count - done ? done : byte_count - done;
        memcpy(to + done, to, more);
        done += more;
    }
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
    count_retiring(block, false);
    if (device->is_checked && !block->is_host) {
        tell_block(block, WIRE_OP_BLOCK_OVER);
    }
    uint64_t bytes = give_back(block);
    if (--block->refs == 0) {
        destroy(block);
    }
    return bytes;
}

uint64_t gpu_device_reap(struct gpu_device *device) {
    GPU_ENTER(device);
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

bool gpu_device_wait_retiring(struct gpu_device *device, struct gpu_error *error,
                              gpulua_status *status) {
    *status = GPULUA_OK;
    if (!device->retiring) {
        return false;
    }
    struct gpu_block *block = device->retiring;
    struct gpu_ref all = whole(block);
    gpu_block_retain(block);
    struct gpu_op *op;
    int64_t begun_ns = gpu_blocked_begin(device);
    while (*status == GPULUA_OK && (op = gpu_ref_pending(&all, true))) {
        *status = gpu_op_wait(op, -1, error);
        gpu_op_release(op);
    }
    gpu_blocked_end(device, "freed memory", begun_ns);
    gpu_block_release(block);
    gpu_device_run_deferred(device);
    return true;
}

static void end(struct gpu_block *block) {
    block->refs = 1;
    if (!block->is_freed) {
        retire(block);
    }
    if (--block->refs == 0) {
        destroy(block);
    }
}

static void run_release(struct gpu_device *device, struct gpu_deferred *deferred) {
    (void)device;
    struct gpu_block *block =
        (struct gpu_block *)(void *)((char *)deferred - offsetof(struct gpu_block, release));
    block->is_deferred = false;
    if (block->refs == 0) {
        end(block);
    }
}

struct gpu_block *gpu_block_retain(struct gpu_block *block) {
    GPU_ENTER(block->device);
    block->refs++;
    return block;
}

void gpu_block_release(struct gpu_block *block) {
    if (!block) {
        return;
    }
    GPU_ENTER_WHOLE(block->device);
    if (--block->refs > 0 || block->is_deferred) {
        return;
    }
    block->is_deferred = true;
    gpu_device_defer(block->device, &block->release, run_release);
}

void gpu_block_close(struct gpu_block *block) {
    if (!block) {
        return;
    }
    GPU_ENTER_WHOLE(block->device);
    if (block->refs > 1 || block->is_deferred) {
        gpu_block_release(block);
    } else {
        end(block);
    }
}

void gpu_block_keep_staging(struct gpu_block *block) {
    if (block->is_staging) {
        block->is_staging = false;
        block->device->stats.staging_bytes -= block->grant.byte_count;
    }
}

bool gpu_block_note_late_writer(struct gpu_block *block) {
    struct gpu_ref all = whole(block);
    bool is_pending = block->is_host && !gpu_ref_is_idle(&all, false);
    block->has_late_writer |= is_pending;
    return is_pending;
}

void gpu_block_export_end(struct gpu_block *block) {
    block->export_count--;
    bool is_last = block->export_count == 0 && block->is_freed;
    if (is_last && !block->is_external && block->device->memory) {
        retire_memory(block);
    }
    gpu_block_release(block);
}

void gpu_block_free(struct gpu_block *block) {
    GPU_ENTER_WHOLE(block->device);
    bool is_graphs = block->is_temporary && block->home && !block->twin; /* and not the script's */
    if (!block->is_freed && !is_graphs) {
        retire(block);
    }
}

void gpu_block_ends_at(struct gpu_block *block, const struct gpu_site *site) {
    GPU_ENTER(block->device);
    block->end_site = *site;
}

/* ---- creation ---- */

static struct gpu_block *make(struct gpu_device *device, uint64_t byte_count, const char *label) {
    struct gpu_block *block = device->block_spare;
    if (block) {
        device->block_spare = block->next;
        device->block_spare_count--;
        memset(block, 0, offsetof(struct gpu_block, site));
    } else {
        block = calloc(1, sizeof *block);
        if (!block) {
            return NULL;
        }
    }
    block->refs = 1;
    block->is_trackable = true;
    block->device = gpu_device_keep(device);
    block->number = ++device->block_number_next;
    block->epoch = device->epoch;
    block->made_ns = gpu_clock_coarse_ns();
    block->byte_count = byte_count;
    block->type = GPU_TYPE_COUNT;
    gpu_history_init(&block->history, byte_count);
    block->site = block->end_site = (struct gpu_site){0};
    block->is_label_cut = gpu_label_copy(block->label, sizeof block->label, label);
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

struct gpu_block *gpu_block_create_foreign(struct gpu_device *device, uint64_t address,
                                           uint64_t byte_count, const char *label) {
    struct gpu_block *block = make(device, byte_count, label);
    if (block) {
        block->is_foreign = true;
        block->address = address;
        block->memory = gpu_memory_retain(device->external);
        block->memory->outstanding_count++;
        device->stats.allocs++;
        if (device->is_checked) {
            tell_block(block, WIRE_OP_BLOCK_CREATE);
        }
    }
    return block;
}

uint64_t gpu_grant_give(struct gpu_memory *memory, struct gpu_grant *grant,
                        const struct gpu_block *name, const struct gpu_stream *stream) {
    struct gpu_device *device = memory->device;
    struct gpu_point last = {0};
    if (stream) {
        last = (struct gpu_point){.slot = stream->slot, .seq = device->slot_seq[stream->slot]};
    }
    if (gpu_point_is_over(device, last)) {
        uint64_t bytes = grant->byte_count;
        gpu_memory_deallocate(memory, grant, name);
        return bytes;
    }
    struct gpu_block *block = make(device, grant->byte_count, name->label);
    if (block) { /* else there is no host memory to know when: for good */
        unlink_live(block);
        block->number = name->number;
        block->site = name->site;
        block->is_freed = block->is_hidden = true;
        block->memory = gpu_memory_retain(memory);
        block->grant = *grant;
        block->history.first.write = last;
        put_retiring(block);
        block->refs--;
    }
    return 0;
}

uint64_t gpu_block_granted_bytes(uint64_t byte_count) {
    return (byte_count + GPU_RANGE_ALIGN_BYTES - 1) & ~(GPU_RANGE_ALIGN_BYTES - 1ull);
}

uint64_t gpu_block_gap_bytes(const struct gpu_device *device) {
    return device->is_checked ? UINT64_C(64) << 10 : 0;
}

static gpulua_status check_size(struct gpu_device *device, const struct gpu_block_info *info,
                                struct gpu_error *error) {
    uint64_t limit = info->is_host ? device->link->arena_bytes : GPU_BLOCK_BYTES_MAX;
    if (info->byte_count > 0 && info->byte_count <= limit - GPU_RANGE_ALIGN_BYTES) {
        return GPULUA_OK;
    }
    if (!info->is_host && info->byte_count > 0) {
        return gpu_memory_refuse(info->memory ? info->memory : device->memory, info->byte_count,
                                 info->label, error);
    }
    return gpu_error_set(error, info->byte_count ? GPULUA_OUT_OF_MEMORY : GPULUA_INVALID_ARGUMENT,
                         "a block has 1 to %llu bytes, not %llu", (unsigned long long)limit,
                         (unsigned long long)info->byte_count);
}

static gpulua_status allocate(struct gpu_memory *memory, struct gpu_memory_request *request,
                              struct gpu_grant *grant, struct gpu_error *error) {
    gpulua_status status = gpu_memory_allocate(memory, request, grant, error);
    if (__builtin_expect(status != GPULUA_OUT_OF_MEMORY, 1) || gpu_memory_has_policy(memory)) {
        return status;
    }
    status = gpu_memory_try_again(memory, request, true, grant, error);
    return status == GPULUA_OUT_OF_MEMORY
               ? gpu_memory_try_evicting(memory, request, -1, grant, error)
               : status;
}

/* Memory in the order of a stream is there behind what is on that stream: the allocation counts as
 * a write on it. */
static gpulua_status note_allocation(struct gpu_block *block, struct gpu_stream *stream,
                                     struct gpu_error *error) {
    struct gpu_submit submit = {.stream = stream, .label = "allocation", .site = block->site};
    struct gpu_ref all = whole(block);
    return gpu_work_allocated(&submit, &all, error);
}

static void account_begin(struct gpu_block *block) {
    struct gpu_stats *stats = &block->device->stats;
    stats->allocs++;
    stats->bytes_live += block->grant.byte_count;
    if (stats->bytes_live > stats->bytes_live_max) {
        stats->bytes_live_max = stats->bytes_live;
    }
    if (block->device->trace) {
        gpu_trace_note_memory(block->device->trace, block, true);
    }
}

static struct gpu_memory *memory_for(struct gpu_device *device, const struct gpu_block_info *info) {
    return info->is_host ? device->pinned : info->memory ? info->memory : device->memory;
}

/* Host memory for what is to be restored, in which nothing is yet. */
static gpulua_status make_copy(struct gpu_block *block, struct gpu_error *error) {
    struct gpu_block_info info = {.byte_count = block->byte_count,
                                  .label = "copy",
                                  .is_host = true,
                                  .is_hidden = true,
                                  .site = block->site};
    if (block->device->recovery.restarts_max == 0) {
        return GPULUA_OK; /* nothing is ever restored */
    }
    gpulua_status status = gpu_block_create(block->device, &info, &block->copy, error);
    if (status == GPULUA_OK) {
        memset(gpu_block_host_bytes(block->copy), 0, block->byte_count);
    }
    return status;
}

/* What it is to have, from here on, as an ordinary block. */
static gpulua_status give_memory(struct gpu_block *block, const struct gpu_block_info *info,
                                 bool is_injected, struct gpu_error *error) {
    struct gpu_device *device = block->device;
    struct gpu_memory *memory = memory_for(device, info);
    struct gpu_memory_request request = {
        .byte_count = gpu_block_granted_bytes(info->byte_count),
        .asked_bytes = info->byte_count,
        .number = block->number,
        .label = info->label,
        .site = info->site,
        .stream = info->stream,
        .collect = info->collect,
        .caller = info->caller,
        .is_reserved = info->is_reserved,
        .is_injected = is_injected,
    };
    block->memory = gpu_memory_retain(memory); /* also for as long as a collection may end it */
    block->is_external = true; /* it has no memory, and the device may be lost before it has */
    gpulua_status status = allocate(memory, &request, &block->grant, error);
    if (status) {
        return status;
    }
    block->is_external = false;
    block->is_trackable = memory->is_trackable;
    block->site = info->site;
    block->is_host = info->is_host;
    block->is_hidden = info->is_hidden;
    block->address = block->grant.address;
    device->host_block_count += info->is_host;
    if (!info->is_host) {
        account_begin(block);
        if (device->is_checked) {
            tell_block(block, WIRE_OP_BLOCK_CREATE);
        }
    }
    return request.is_on_stream ? note_allocation(block, request.stream, error) : GPULUA_OK;
}

gpulua_status gpu_block_create(struct gpu_device *device, const struct gpu_block_info *info,
                               struct gpu_block **block, struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        if (info->is_reserved) {
            gpu_memory_unreserve(info->memory, info->byte_count);
        }
        return status;
    }
    if (device->deferred || gpu_exports_are_returned(device)) {
        gpu_device_run_deferred(device);
    }
    gpu_device_reap_some(device, REAP_AT_CREATE);
    struct gpu_memory *memory = memory_for(device, info);
    struct gpu_block *made = NULL;
    status = check_size(device, info, error);
    bool is_injected =
        status == GPULUA_OK && device->is_injected && gpu_inject_due(device, GPULUA_INJECT_OOM);
    if (is_injected && !gpu_memory_has_policy(memory)) {
        const struct gpu_memory_request request = {.asked_bytes = info->byte_count,
                                                   .label = info->label};
        status = gpu_memory_fail_injected(&request, error);
    }
    if (status == GPULUA_OK && !(made = make(device, info->byte_count, info->label))) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a block");
    }
    if (status) {
        if (info->is_reserved) {
            gpu_memory_unreserve(memory, info->byte_count);
        }
        return status;
    }
    made->is_label_cut |= info->is_label_cut;
    made->is_scratch = info->is_scratch;
    made->keeping = (uint8_t)(info->is_host ? GPU_KEEP_NOTHING : info->keeping);
    status = give_memory(made, info, is_injected, error);
    if (status == GPULUA_OK && made->keeping == GPU_KEEP_CONTENT) {
        status = make_copy(made, error);
    }
    if (status) {
        gpu_block_close(made);
        return status;
    }
    *block = made;
    return GPULUA_OK;
}

/* ---- temporaries ---- */

gpulua_status gpu_block_create_temporary(struct gpu_device *device,
                                         const struct gpu_block_info *info,
                                         struct gpu_block **block, struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    if (status == GPULUA_OK) {
        status = check_size(device, info, error);
    }
    if (status) {
        return status;
    }
    struct gpu_block *made = make(device, info->byte_count, info->label);
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a block");
    }
    made->is_label_cut |= info->is_label_cut;
    made->is_temporary = made->is_external = true;
    made->is_trackable = false;
    made->site = info->site;
    *block = made;
    return GPULUA_OK;
}

gpulua_status gpu_block_settle(struct gpu_block *block, struct gpu_error *error) {
    const struct gpu_block_info info = gpu_block_info_of(block);
    struct gpu_ref all = whole(block);
    gpulua_status status = gpu_ref_check(&all, block->device, "buffer", error);
    if (status) {
        return status;
    }
    status = give_memory(block, &info, false, error);
    if (status) {
        gpu_memory_release(block->memory);
        block->memory = NULL;
        return status;
    }
    gpu_block_release(block->home);
    block->home = NULL;
    block->twin = NULL;
    block->is_temporary = false;
    return GPULUA_OK;
}

/* ---- questions ---- */

const char *gpu_block_name(const struct gpu_block *block, char *text) {
    const char *quote = block->label[0] ? "'" : "";
    int length = snprintf(text, GPU_BLOCK_NAME_BYTES, "allocation %llu%s%s%s%s",
                          (unsigned long long)block->number, block->label[0] ? " " : "", quote,
                          block->label, quote);
    if (block->site.source) {
        snprintf(text + length, GPU_BLOCK_NAME_BYTES - (size_t)length, ", made at %.80s:%d",
                 block->site.source, block->site.line);
    }
    return text;
}

/* Of what cannot be durable; NULL: it can. */
static const char *stale_hint(const struct gpu_block *block) {
    if (block->maker != 0) {
        return "capture again: what is made in a capture cannot be durable";
    }
    return block->memory && gpu_memory_find(block->memory, GPU_MEMORY_GUARD)
               ? "make the buffer again: memory with a guard cannot be durable"
               : NULL;
}

gpulua_status gpu_ref_check(const struct gpu_ref *ref, struct gpu_device *device, const char *what,
                            struct gpu_error *error) {
    const struct gpu_block *block = ref->block;
    if (!block) {
        return gpu_error_set(error, GPULUA_CLOSED, "%s: attempt to use a closed buffer", what);
    }
    GPU_ENTER(block->device);
    gpulua_status status = gpu_device_check(block->device, error);
    if (status) {
        return status;
    }
    char name[GPU_BLOCK_NAME_BYTES];
    if (block->epoch != block->device->epoch) {
        status = gpu_error_set(error, GPULUA_STALE,
                               "%s: the memory (%s) was lost with the device: it is of epoch %llu, "
                               "device %s is in epoch %llu",
                               what, gpu_block_name(block, name), (unsigned long long)block->epoch,
                               block->device->title, (unsigned long long)block->device->epoch);
        if (error) {
            error->hint = stale_hint(block);
        }
        return status;
    }
    if (block->is_freed) {
        return gpu_error_set(error, GPULUA_USE_AFTER_FREE, "%s: the memory (%s) was freed", what,
                             gpu_block_name(block, name));
    }
    if (device && block->device != device) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT, "%s: the buffer is on %s%s, the work is for %s", what,
            gpu_device_kin(block->device, device), block->device->title, device->title);
    }
    return GPULUA_OK;
}

gpulua_status gpu_ref_check_since(const struct gpu_ref *ref, uint32_t epoch, const char *what,
                                  struct gpu_error *error) {
    struct gpu_device *device = ref->block->device;
    GPU_ENTER(device);
    gpulua_status status = gpu_ref_check(ref, NULL, what, error);
    bool is_next_life = epoch != 0 && epoch != (uint32_t)device->epoch;
    if (is_next_life && (status == GPULUA_OK || status == GPULUA_STALE)) {
        status = gpu_error_set(error, GPULUA_DEVICE_LOST, "work on %s was lost: %s; it is up again",
                               what, device->recovery.last.message);
        error->driver_code = device->recovery.last.driver_code;
    }
    if ((status == GPULUA_DEVICE_LOST || status == GPULUA_UNRECOVERABLE) && device->recovery.loss) {
        gpu_error_copy_suspects(error, &device->recovery.loss->error);
        gpu_device_observe_loss(device);
        if (ref->block->lost) {
            gpu_failure_observe(device, ref->block->lost);
        }
    }
    return status;
}

bool gpu_ref_is_durable(const struct gpu_ref *ref) {
    return ref->block->keeping == GPU_KEEP_CONTENT;
}

bool gpu_ref_has_copy(const struct gpu_ref *ref) {
    GPU_ENTER(ref->block->device);
    return ref->block->copy != NULL;
}

uint64_t gpu_ref_copy_version(const struct gpu_ref *ref) {
    GPU_ENTER(ref->block->device);
    return ref->block->copy_version;
}

void gpu_ref_keep(const struct gpu_ref *ref, const void *bytes) {
    GPU_ENTER(ref->block->device);
    gpu_block_note_write(ref->block, ref->byte_offset, bytes, ref->byte_count, NULL, 0);
}

void gpu_ref_copy(struct gpu_device *device, const struct gpu_ref *from, struct gpu_ref *to) {
    GPU_ENTER(device);
    *to = *from;
    if (to->block) {
        gpu_block_retain(to->block);
    }
}

void gpu_ref_close(struct gpu_device *device, struct gpu_ref *ref) {
    GPU_ENTER(device);
    struct gpu_block *block = ref->block;
    ref->block = NULL;
    gpu_block_close(block);
}

struct gpu_device *gpu_block_device(const struct gpu_block *block) {
    return block->device;
}
uint64_t gpu_block_number(const struct gpu_block *block) {
    return block->number;
}
bool gpu_block_is_rebuilt_for_others(const struct gpu_block *block) {
    if (block->keeping != GPU_KEEP_PLACE) { /* which it is made with */
        return false;
    }
    GPU_ENTER(block->device);
    return !block->is_freed && block->refs > 1;
}
struct gpu_block *gpu_device_find_block(struct gpu_device *device, uint64_t number) {
    GPU_ENTER(device);
    struct gpu_block *block = device->blocks;
    while (block && block->number != number) {
        block = block->next;
    }
    return block && !block->is_freed ? gpu_block_retain(block) : NULL;
}
uint64_t gpu_block_bytes(const struct gpu_block *block) {
    return block->byte_count;
}
void **gpu_block_shadow(struct gpu_block *block, uint64_t *base) {
    *base = block->variable_address;
    return block->module ? &block->module->hazards->shadow : &block->shadow;
}
const char *gpu_block_label(const struct gpu_block *block) {
    return block->label;
}
void gpu_block_set_type(struct gpu_block *block, enum gpu_type type) {
    block->type = type;
}
bool gpu_block_is_host(const struct gpu_block *block) {
    return block->is_host;
}
bool gpu_block_is_freed(const struct gpu_block *block) {
    GPU_ENTER(block->device);
    return block->is_freed;
}
bool gpu_block_is_stale(const struct gpu_block *block) {
    GPU_ENTER(block->device);
    return block->epoch != block->device->epoch;
}

void *gpu_block_host_bytes(const struct gpu_block *block) {
    assert(block->is_host);
    return block->device->link ? block->device->link->arena + block->address : NULL;
}

bool gpu_block_is_foreign(const struct gpu_block *block) {
    return block->is_foreign;
}
bool gpu_block_is_read_only(const struct gpu_block *block) {
    return block->is_read_only;
}
bool gpu_ref_is_aligned(const struct gpu_ref *ref, uint64_t byte_count) {
    return (ref->block->address + ref->byte_offset) % byte_count == 0;
}

bool gpu_block_is_trackable(const struct gpu_block *block) {
    return block->is_trackable;
}
struct gpu_memory *gpu_block_memory(const struct gpu_block *block) {
    return block->memory;
}

/* ---- giving back to the driver ---- */

uint64_t gpu_device_trim(struct gpu_device *device) {
    GPU_ENTER(device);
    struct gpu_error ignored = {0};
    if (gpu_device_check(device, &ignored)) {
        gpu_error_finish(&ignored);
        return 0;
    }
    (void)gpu_device_poll(device);
    (void)gpu_device_reap(device);
    uint64_t bytes = gpu_slabs_trim(device->memory);
    gpu_driver_trim(device);
    return bytes;
}
