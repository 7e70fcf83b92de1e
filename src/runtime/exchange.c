/* Exports, and the order between other libraries' streams and ours (see exchange.h). Imports are in
 * memory/external.c. */
#include "runtime/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/memory/stack.h"
#include "runtime/native_capture.h"
#include "runtime/uses.h"

/* ---- addresses ---- */

static void on_facts(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    if (reply && reply->status == GPULUA_OK &&
        reply->body_bytes >= sizeof(struct wire_slab_facts)) {
        memcpy(user, gpu_wire_reply_body(reply), sizeof(struct wire_slab_facts));
    }
}

gpulua_status gpu_slab_find(struct gpu_device *device, uint32_t slab, uint64_t address,
                            uint64_t byte_count, struct wire_slab_facts *facts,
                            struct gpu_error *error) {
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_FIND, .object = slab};
    record.u.foreign.address = address;
    record.u.foreign.bytes = byte_count;
    *facts = (struct wire_slab_facts){0};
    return gpu_request_wait(device, &record, "find memory", on_facts, facts, error);
}

gpulua_status gpu_ref_address(const struct gpu_ref *ref, uint64_t *address,
                              struct gpu_error *error) {
    GPU_ENTER(ref->block->device);
    struct gpu_block *block = ref->block;
    struct wire_slab_facts facts;
    if (block->is_host) {
        *address =
            (uint64_t)(uintptr_t)block->device->link->arena + block->address + ref->byte_offset;
        return GPULUA_OK;
    }
    if (block->device->isolation == GPULUA_ISOLATE_PROCESS) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "the memory of device %s is in a process of its own: only host "
                             "buffers (dev:host) are shared with this one",
                             block->device->title);
    }
    gpulua_status status = gpu_block_is_of_capture(block)
                               ? gpu_temporary_use(block, NULL, "export", error)
                               : GPULUA_OK;
    if (status) {
        return status;
    }
    uint64_t wire = block->address + ref->byte_offset;
    status = gpu_slab_find(block->device, gpu_wire_address_slab(wire), 0, 0, &facts, error);
    *address = facts.address + gpu_wire_address_offset(wire);
    return status;
}

/* ---- exports ---- */

/* What the memory of exports hangs on. The device holds one reference until it is closed and the
 * last host buffer is gone, each export one: whoever drops the last ends the link. */
struct gpu_home {
    atomic_uint refs;
    atomic_bool is_left; /* nobody works the list off any more */
    _Atomic(struct gpu_export *) returned;
    struct wire_link *link;     /* owned, once the device has let go of it */
    struct gpu_import *imports; /* those that are lent out: told behind the last export */
};

struct gpu_export {
    struct gpu_home *home;
    struct gpu_export *returned_next;
    /* The owner's: */
    struct gpu_block *block; /* retained */
    struct gpu_export *next, **link;
    _Alignas(16) uint8_t extra[];
};

static void home_drop(struct gpu_home *home) {
    if (atomic_fetch_sub_explicit(&home->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    struct gpu_export *lent = atomic_load_explicit(&home->returned, memory_order_acquire);
    while (lent) {
        struct gpu_export *next = lent->returned_next;
        free(lent);
        lent = next;
    }
    gpu_wire_link_close(home->link);
    gpu_imports_end(&home->imports);
    free(home);
}

static bool home_open(struct gpu_device *device) {
    if (device->home) {
        return true;
    }
    struct gpu_home *home = calloc(1, sizeof *home);
    if (home) {
        atomic_init(&home->refs, 1);
        device->home = home;
    }
    return home != NULL;
}

gpulua_status gpu_export_create(const struct gpu_ref *ref, size_t extra_bytes,
                                struct gpu_export **made, uint64_t *address,
                                struct gpu_error *error) {
    if (!ref->block) {
        return gpu_ref_check(ref, NULL, "export", error);
    }
    struct gpu_device *device = ref->block->device;
    GPU_ENTER(device);
    gpulua_status status = gpu_ref_check(ref, NULL, "export", error);
    if (status) {
        return status;
    }
    gpu_exports_collect(device);
    struct gpu_export *lent = calloc(1, sizeof *lent + extra_bytes);
    if (!lent || !home_open(device)) {
        free(lent);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for an export");
    }
    /* First: another thread may free it while its address is asked for. */
    lent->block = gpu_block_retain(ref->block);
    lent->block->export_count++;
    status = gpu_ref_address(ref, address, error);
    if (status) {
        gpu_block_export_end(lent->block);
        free(lent);
        return status;
    }
    lent->home = device->home;
    atomic_fetch_add_explicit(&lent->home->refs, 1, memory_order_relaxed);
    lent->next = device->exports;
    lent->link = &device->exports;
    if (lent->next) {
        lent->next->link = &lent->next;
    }
    device->exports = lent;
    device->stats.exports_live++;
    gpu_ref_written(ref);
    *made = lent;
    return GPULUA_OK;
}

void *gpu_export_extra(struct gpu_export *lent) {
    return lent->extra;
}

void gpu_export_return(struct gpu_export *lent) {
    struct gpu_home *home = lent->home;
    if (atomic_load_explicit(&home->is_left, memory_order_acquire)) {
        free(lent);
    } else {
        lent->returned_next = atomic_load_explicit(&home->returned, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&home->returned, &lent->returned_next, lent,
                                                      memory_order_release, memory_order_relaxed)) {
        }
    }
    home_drop(home);
}

static void unlink_export(struct gpu_export *lent) {
    *lent->link = lent->next;
    if (lent->next) {
        lent->next->link = lent->link;
    }
}

bool gpu_exports_are_returned(const struct gpu_device *device) {
    return device->home &&
           atomic_load_explicit(&device->home->returned, memory_order_relaxed) != NULL;
}

void gpu_exports_collect(struct gpu_device *device) {
    if (!gpu_exports_are_returned(device)) {
        return;
    }
    struct gpu_export *lent =
        atomic_exchange_explicit(&device->home->returned, NULL, memory_order_acquire);
    while (lent) {
        struct gpu_export *next = lent->returned_next;
        unlink_export(lent);
        device->stats.exports_live--;
        gpu_block_export_end(lent->block);
        free(lent);
        lent = next;
    }
}

bool gpu_exports_have_device_memory(const struct gpu_device *device) {
    for (const struct gpu_export *lent = device->exports; lent; lent = lent->next) {
        if (!lent->block->is_host) {
            return true;
        }
    }
    return false;
}

bool gpu_exports_note_late_writers(struct gpu_device *device) {
    bool is_any = false;
    for (struct gpu_export *lent = device->exports; lent; lent = lent->next) {
        is_any |= gpu_block_note_late_writer(lent->block);
    }
    return is_any;
}

void gpu_exports_leave(struct gpu_device *device) {
    if (!device->home) {
        return;
    }
    gpu_exports_collect(device);
    while (device->exports) { /* one that comes back meanwhile stays in the list of the home */
        struct gpu_export *lent = device->exports;
        if (lent->block->is_foreign) {
            gpu_import_leave(lent->block->grant.tag, &device->home->imports);
        }
        unlink_export(lent);
        gpu_block_export_end(lent->block);
    }
    device->stats.exports_live = 0;
    atomic_store_explicit(&device->home->is_left, true, memory_order_release);
}

void gpu_device_end_link(struct gpu_device *device, struct wire_link *link) {
    struct gpu_home *home = device->home;
    device->home = NULL;
    if (home) {
        home->link = link;
        home_drop(home);
    } else {
        gpu_wire_link_close(link);
    }
}

/* ---- order ---- */

gpulua_status gpu_ref_wait(const struct gpu_ref *ref, bool for_write, struct gpu_error *error) {
    struct gpu_device *device = ref->block->device;
    GPU_ENTER(device);
    uint32_t epoch = gpu_ref_is_idle(ref, for_write) ? 0 : (uint32_t)device->epoch;
    struct gpu_op *op;
    while ((op = gpu_ref_pending(ref, for_write))) {
        gpulua_status status = gpu_op_wait(op, -1, error);
        gpu_op_release(op);
        if (status) {
            return status;
        }
    }
    return gpu_ref_failure(ref, error) ? error->code
                                       : gpu_ref_check_since(ref, epoch, "the buffer", error);
}

gpulua_status gpu_streams_are_shared(const struct gpu_device *device, struct gpu_error *error) {
    if (strcmp(device->kind, "cuda") == 0 && device->isolation == GPULUA_ISOLATE_NONE) {
        return GPULUA_OK;
    }
    return gpu_error_set(error, GPULUA_UNSUPPORTED,
                         "device %s%s has no streams that another library knows: say that the "
                         "memory is ready, or wait for it",
                         device->title,
                         device->isolation == GPULUA_ISOLATE_PROCESS  ? ", in a process of its own,"
                         : device->isolation == GPULUA_ISOLATE_THREAD ? ", on a thread of its own,"
                                                                      : "");
}

/* A mark that uses the ref; with a stream of somebody else's, behind what is on it. */
static gpulua_status touch_now(const struct gpu_submit *submit, const struct gpu_ref *ref,
                               uint8_t access, const uint64_t *foreign_stream, struct gpu_op **op,
                               struct gpu_error *error) {
    struct gpu_envelope envelope;
    struct wire_record *record;
    gpulua_status status =
        gpu_envelope_begin(&envelope, submit, foreign_stream ? "import" : "export", error);
    if (status) {
        return status;
    }
    /* Making room for one more operation may have taken a while. */
    status = gpu_ref_check(ref, submit->stream->device, "exchange", error);
    if (status == GPULUA_OK && gpu_block_is_of_capture(ref->block)) {
        status = gpu_temporary_use(ref->block, NULL, "exchange", error);
    }
    if (status) {
        return status;
    }
    gpu_envelope_use_ref(&envelope, ref, access);
    status = gpu_envelope_record(&envelope, foreign_stream ? WIRE_OP_STREAM_TAKE : WIRE_OP_MARK,
                                 &record, error);
    if (status) {
        return status;
    }
    if (foreign_stream) {
        record->u.foreign.stream = *foreign_stream;
    } else if (envelope.waits.failure) {
        gpu_failure_observe(submit->stream->device, envelope.waits.failure);
        gpu_error_copy(error, &envelope.waits.failure->error);
        return error->code;
    }
    return gpu_envelope_submit(&envelope, record, 0, op, error);
}

static gpulua_status touch(const struct gpu_submit *submit, const struct gpu_ref *ref,
                           uint8_t access, const uint64_t *foreign_stream, struct gpu_op **op,
                           struct gpu_error *error) {
    gpulua_status status;
    do {
        status = touch_now(submit, ref, access, foreign_stream, op, error);
    } while (status && gpu_share_wait(submit->stream->device, &status, error));
    return status;
}

gpulua_status gpu_ref_give(const struct gpu_submit *submit, const struct gpu_ref *ref,
                           bool for_write, uint64_t foreign_stream, struct gpu_error *error) {
    GPU_ENTER(ref->block->device);
    struct gpu_device *device = ref->block->device;
    struct gpu_op *op = NULL;
    gpulua_status status = gpu_native_check_uncaptured(device, foreign_stream, error);
    if (status == GPULUA_OK) {
        status = touch(submit, ref, for_write ? GPU_READ_WRITE : GPU_READ, NULL, &op, error);
    }
    if (status == GPULUA_OK) {
        struct wire_record record = {.length_bytes = sizeof record,
                                     .opcode = WIRE_OP_STREAM_GIVE,
                                     .stream = submit->stream->slot};
        record.u.foreign.seq = op->seq;
        record.u.foreign.stream = foreign_stream;
        status = gpu_request_wait(device, &record, "export", NULL, NULL, error);
        gpu_op_release(op);
    }
    return status;
}

gpulua_status gpu_ref_take(const struct gpu_submit *submit, const struct gpu_ref *ref,
                           uint64_t foreign_stream, struct gpu_error *error) {
    GPU_ENTER(ref->block->device);
    gpulua_status status = gpu_native_check_uncaptured(ref->block->device, foreign_stream, error);
    return status ? status : touch(submit, ref, GPU_WRITE, &foreign_stream, NULL, error);
}

void gpu_ref_written(const struct gpu_ref *ref) {
    GPU_ENTER(ref->block->device);
    struct gpu_device *device = ref->block->device;
    if (!device->is_checked || ref->block->is_host) {
        return;
    }
    struct gpu_error ignored = {0};
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_BLOCK_WRITTEN};
    record.u.block.address = ref->block->address + ref->byte_offset;
    record.u.block.bytes = ref->byte_count;
    record.u.block.number = ref->block->number;
    if (gpu_device_publish(device, &record, &ignored)) {
        gpu_error_finish(&ignored); /* the device is lost, and says so elsewhere */
    }
}

static void on_native(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    if (reply && reply->status == GPULUA_OK &&
        reply->body_bytes >= sizeof(struct wire_stream_facts)) {
        memcpy(user, gpu_wire_reply_body(reply), sizeof(struct wire_stream_facts));
    }
}

gpulua_status gpu_stream_native(struct gpu_stream *stream, uint64_t *native,
                                struct gpu_error *error) {
    GPU_ENTER(stream->device);
    struct wire_stream_facts facts = {0};
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_STREAM_NATIVE, .stream = stream->slot};
    gpulua_status status = gpu_device_check(stream->device, error);
    if (status == GPULUA_OK) {
        status = gpu_streams_are_shared(stream->device, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_request_wait(stream->device, &record, "stream", on_native, &facts, error);
    }
    if (status == GPULUA_OK) {
        stream->native = facts.native;
    }
    *native = facts.native;
    return status;
}
