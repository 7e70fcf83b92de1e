/* Driver and direct: memory that the executor is asked for one allocation at a time. Each is a
 * slab of its own on the wire; its number is used again when it is gone.
 *
 * Driver: from the driver's pool, on the stream of the allocation, behind what is on it. Direct:
 * outside of every stream; both sides have it at once, and the driver may make the device wait. */
#include "runtime/memory/stack.h"
#include "runtime/recovery.h"

static gpulua_status take(struct gpu_memory *memory, struct gpu_memory_request *request,
                          struct wire_record *record, struct gpu_grant *grant,
                          struct gpu_error *error) {
    struct gpu_device *device = memory->device;
    gpulua_status status = gpu_device_reserve(device, request, error);
    if (status) {
        return status;
    }
    record->length_bytes = sizeof *record;
    record->u.slab.bytes = request->byte_count;
    status = gpu_slab_ask(device, record, memory->ops->kind, error);
    if (status == GPULUA_OUT_OF_MEMORY && gpu_device_trim(device) > 0) { /* slabs had it */
        gpu_error_finish(error);
        status = gpu_slab_ask(device, record, memory->ops->kind, error);
    }
    if (status == GPULUA_OUT_OF_MEMORY && gpu_recovery_outwait(device, &status, error)) {
        gpu_error_finish(error);
        status = gpu_slab_ask(device, record, memory->ops->kind, error);
    }
    if (status) {
        gpu_account_release(&device->account, request->byte_count);
        return status;
    }
    device->stats.bytes_reserved += request->byte_count;
    grant->byte_count = request->byte_count;
    grant->address = gpu_wire_address(record->object, 0);
    grant->range = (struct gpu_range){.region = record->object, .byte_count = request->byte_count};
    return GPULUA_OK;
}

static gpulua_status driver_allocate(struct gpu_memory *memory, struct gpu_memory_request *request,
                                     struct gpu_grant *grant, struct gpu_error *error) {
    struct gpu_stream *stream = request->stream;
    if (!stream) {
        gpulua_status status = gpu_device_task_stream(memory->device, 0, &stream, error);
        if (status) {
            if (request->is_reserved) {
                request->is_reserved = false;
                gpu_account_release(&memory->device->account, request->byte_count);
            }
            return status;
        }
        request->stream = stream;
    }
    struct wire_record record = {.opcode = WIRE_OP_POOL_ALLOC, .stream = stream->slot};
    request->is_on_stream = true;
    return take(memory, request, &record, grant, error);
}

static gpulua_status direct_allocate(struct gpu_memory *memory, struct gpu_memory_request *request,
                                     struct gpu_grant *grant, struct gpu_error *error) {
    struct wire_record record = {.opcode = WIRE_OP_SLAB_CREATE};
    return take(memory, request, &record, grant, error);
}

static void give(struct gpu_memory *memory, struct gpu_grant *grant,
                 const struct gpu_block *block) {
    struct gpu_device *device = memory->device;
    (void)block;
    gpu_slab_number_give(device, grant->range.region);
    device->stats.bytes_reserved -= grant->byte_count;
    gpu_account_release(&device->account, grant->byte_count);
}

/* Also of the driver's pool: nothing is in flight whose order it would be in. */
static void restore(struct gpu_memory *memory, const struct gpu_grant *grant) {
    struct wire_record record = {.length_bytes = sizeof record,
                                 .opcode = WIRE_OP_SLAB_CREATE,
                                 .object = grant->range.region};
    record.u.slab.bytes = grant->byte_count;
    gpu_recovery_request(memory->device, &record, memory->ops->kind, true, NULL, NULL);
}

void gpu_driver_trim(struct gpu_device *device) {
    struct gpu_error ignored = {0};
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_POOL_TRIM};
    if (gpu_device_publish(device, &record, &ignored)) {
        gpu_error_finish(&ignored);
    }
}

static const struct gpu_memory_ops driver_ops = {
    .kind = "driver",
    .allocate = driver_allocate,
    .deallocate = give,
    .restore_grant = restore,
};
const struct gpu_memory_class gpu_memory_driver_class = {
    .ops = &driver_ops, .bytes = sizeof(struct gpu_memory), .is_bottom = true};

static const struct gpu_memory_ops direct_ops = {
    .kind = "direct",
    .allocate = direct_allocate,
    .deallocate = give,
    .restore_grant = restore,
};
const struct gpu_memory_class gpu_memory_direct_class = {
    .ops = &direct_ops, .bytes = sizeof(struct gpu_memory), .is_bottom = true};
