/* Launches, copies, fills, transfers, marks. */
#include "runtime/work.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "runtime/graph/state.h"
#include "runtime/hooks.h"
#include "runtime/native_capture.h"
#include "runtime/report.h"
#include "runtime/uses.h"

static uint64_t address_of(const struct gpu_ref *ref) {
    return ref->block->address + ref->byte_offset;
}

/* Memory of other libraries: ordered, and writable where it is written. */
static gpulua_status check_foreign(const struct gpu_ref *ref, uint8_t access, const char *what,
                                   struct gpu_error *error) {
    const struct gpu_block *block = ref->block;
    if (!block->is_trackable) {
        return gpu_error_set(error, GPULUA_STREAM_MISUSE,
                             "%s is external memory (allocation %llu%s%s) that was given without "
                             "an ordering: nobody knows what else uses it",
                             what, (unsigned long long)block->number, block->label[0] ? ", " : "",
                             block->label);
    }
    if (block->is_read_only && (access & GPU_WRITE)) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT,
            "%s is external memory (allocation %llu%s%s) that its owner gave to be "
            "read only",
            what, (unsigned long long)block->number, block->label[0] ? ", " : "", block->label);
    }
    return GPULUA_OK;
}

static gpulua_status check_ref(const struct gpu_ref *ref, struct gpu_device *device,
                               struct gpu_capture *capture, uint8_t access, const char *what,
                               struct gpu_error *error) {
    if (ref->block && ref->block->is_lone && gpu_temporary_is_lone_of(ref->block, capture)) {
        return GPULUA_OK;
    }
    gpulua_status status = gpu_ref_check(ref, device, what, error);
    if (status == GPULUA_OK && gpu_block_is_of_capture(ref->block)) {
        return gpu_temporary_use(ref->block, capture, what, error);
    }
    return status == GPULUA_OK && ref->block->is_foreign ? check_foreign(ref, access, what, error)
                                                         : status;
}

static gpulua_status no_memory_for_node(struct gpu_error *error) {
    return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a node");
}

gpulua_status gpu_work_use(struct gpu_envelope *envelope, const struct gpu_ref *ref, uint8_t access,
                           const char *what, struct gpu_error *error) {
    gpulua_status status =
        check_ref(ref, envelope->stream->device, envelope->capture, access, what, error);
    if (status == GPULUA_OK) {
        gpu_envelope_use_ref(envelope, ref, access);
    }
    return status;
}

static gpulua_status submit_fill(const struct gpu_submit *submit, const struct gpu_ref *ref,
                                 const void *element, struct gpu_op **op, struct gpu_error *error) {
    struct gpu_envelope envelope;
    struct gpu_device *device = submit->stream->device;
    gpulua_status status = gpu_envelope_begin(&envelope, submit, "fill", error);
    if (status == GPULUA_OK) {
        status = check_ref(ref, device, submit->capture, GPU_WRITE, "fill", error);
    }
    if (status == GPULUA_OK && ref->block->is_host) { /* which the binding fills itself */
        status = gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                               "fill: a host buffer where the device is to fill its own memory");
    }
    if (status) {
        return status;
    }
    gpu_envelope_use_ref(&envelope, ref, GPU_WRITE);
    struct wire_record *record;
    status = gpu_envelope_record(&envelope, WIRE_OP_FILL, &record, error);
    if (status) {
        return status;
    }
    uint32_t elem_bytes = gpu_type_bytes(ref->type);
    record->u.fill.dst = address_of(ref);
    record->u.fill.elem_bytes = elem_bytes;
    record->u.fill.elem_count = ref->byte_count / elem_bytes;
    memcpy(record->u.fill.pattern, element, elem_bytes);
    if (submit->capture && !gpu_capture_keep_transfer(submit->capture, ref, NULL)) {
        return no_memory_for_node(error);
    }
    status = gpu_envelope_submit(&envelope, record, 0, op, error);
    if (status == GPULUA_OK && !submit->capture) {
        device->stats.fills++;
        if (__builtin_expect(ref->block->copy != NULL, 0)) {
            gpu_block_note_write(ref->block, ref->byte_offset, NULL, ref->byte_count, element,
                                 elem_bytes);
        }
    }
    return status;
}

gpulua_status gpu_work_fill(const struct gpu_submit *submit, const struct gpu_ref *ref,
                            const void *element, struct gpu_op **op, struct gpu_error *error) {
    GPU_ENTER(submit->stream->device);
    gpulua_status status;
    struct gpu_hooked hooked;
    gpu_hooks_begin(submit, "fill", &ref, 1, &hooked);
    do {
        status = submit_fill(submit, ref, element, op, error);
    } while (status && gpu_share_wait(submit->stream->device, &status, error));
    return gpu_hooks_end(submit, &hooked, status, error);
}

static gpulua_status submit_copy(const struct gpu_submit *submit, const struct gpu_ref *dst,
                                 const struct gpu_ref *src, struct gpu_op **op,
                                 struct gpu_error *error) {
    struct gpu_envelope envelope;
    struct gpu_device *device = submit->stream->device;
    gpulua_status status = gpu_envelope_begin(&envelope, submit, "copy", error);
    if (status == GPULUA_OK) {
        status = check_ref(dst, device, submit->capture, GPU_WRITE, "destination of copy", error);
    }
    if (status == GPULUA_OK) {
        status = check_ref(src, device, submit->capture, GPU_READ, "source of copy", error);
    }
    if (status) {
        return status;
    }
    if (dst->byte_count != src->byte_count) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "copy of %llu bytes into %llu bytes",
                             (unsigned long long)src->byte_count,
                             (unsigned long long)dst->byte_count);
    }
    if (dst->block == src->block && dst->byte_offset < src->byte_offset + src->byte_count &&
        src->byte_offset < dst->byte_offset + dst->byte_count) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT,
            "copy between overlapping ranges of one buffer (bytes %llu and %llu, %llu long)",
            (unsigned long long)dst->byte_offset, (unsigned long long)src->byte_offset,
            (unsigned long long)src->byte_count);
    }
    if (dst->block->is_host && src->block->is_host) { /* which the binding copies itself */
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "copy between two host buffers, which the device has no part in");
    }
    gpu_envelope_use_ref(&envelope, src, GPU_READ);
    gpu_envelope_use_ref(&envelope, dst, GPU_WRITE);
    enum wire_opcode opcode = dst->block->is_host   ? WIRE_OP_DOWNLOAD
                              : src->block->is_host ? WIRE_OP_UPLOAD
                                                    : WIRE_OP_COPY;
    struct wire_record *record;
    status = gpu_envelope_record(&envelope, opcode, &record, error);
    if (status) {
        return status;
    }
    record->u.copy.dst = address_of(dst);
    record->u.copy.src = address_of(src);
    record->u.copy.bytes = dst->byte_count;
    if (submit->capture && !gpu_capture_keep_transfer(submit->capture, dst, src)) {
        return no_memory_for_node(error);
    }
    status = gpu_envelope_submit(&envelope, record, 0, op, error);
    if (status == GPULUA_OK && !submit->capture) {
        device->stats.copies += opcode == WIRE_OP_COPY;
        device->stats.uploads += opcode == WIRE_OP_UPLOAD;
        device->stats.downloads += opcode == WIRE_OP_DOWNLOAD;
    }
    return status;
}

gpulua_status gpu_work_copy(const struct gpu_submit *submit, const struct gpu_ref *dst,
                            const struct gpu_ref *src, struct gpu_op **op,
                            struct gpu_error *error) {
    GPU_ENTER(submit->stream->device);
    gpulua_status status;
    struct gpu_hooked hooked;
    const struct gpu_ref *refs[] = {dst, src};
    gpu_hooks_begin(submit, "copy", refs, 2, &hooked);
    do {
        status = submit_copy(submit, dst, src, op, error);
    } while (status && gpu_share_wait(submit->stream->device, &status, error));
    return gpu_hooks_end(submit, &hooked, status, error);
}

static struct gpu_ref staging_ref(const struct gpu_staging *staging, uint64_t byte_count) {
    return (struct gpu_ref){
        .block = staging->owner, .byte_offset = 0, .byte_count = byte_count, .type = GPU_TYPE_U8};
}

static gpulua_status check_part(const struct gpu_ref *ref, uint64_t byte_offset,
                                uint64_t byte_count, const struct gpu_staging *staging,
                                struct gpu_error *error) {
    if (byte_offset > ref->byte_count || byte_count > ref->byte_count - byte_offset) {
        gpulua_status status = gpu_error_set(
            error, GPULUA_OUT_OF_BOUNDS, "bytes %llu to %llu of a buffer of %llu bytes",
            (unsigned long long)byte_offset, (unsigned long long)(byte_offset + byte_count),
            (unsigned long long)ref->byte_count);
        gpu_error_set_range(error, (int64_t)byte_offset, (int64_t)byte_count,
                            (int64_t)ref->byte_count);
        return status;
    }
    assert(byte_count <= staging->byte_count);
    (void)staging;
    return GPULUA_OK;
}

gpulua_status gpu_work_upload(const struct gpu_submit *submit, const struct gpu_ref *dst,
                              uint64_t byte_offset, const struct gpu_staging *staging,
                              uint64_t byte_count, struct gpu_op **op, struct gpu_error *error) {
    GPU_ENTER(submit->stream->device);
    gpulua_status status =
        gpu_ref_check(dst, submit->stream->device, "destination of write", error);
    if (status == GPULUA_OK) {
        status = check_part(dst, byte_offset, byte_count, staging, error);
    }
    if (status) {
        return status;
    }
    struct gpu_ref src = staging_ref(staging, byte_count);
    struct gpu_ref part = *dst;
    part.byte_offset += byte_offset;
    part.byte_count = byte_count;
    struct gpu_submit named = *submit;
    named.label = submit->label ? submit->label : "write";
    status = gpu_work_copy(&named, &part, &src, op, error);
    if (status == GPULUA_OK && !submit->capture) {
        gpu_block_note_write(part.block, part.byte_offset, staging->bytes, byte_count, NULL, 0);
    }
    return status;
}

gpulua_status gpu_work_download(const struct gpu_submit *submit, const struct gpu_ref *src,
                                uint64_t byte_offset, const struct gpu_staging *staging,
                                uint64_t byte_count, struct gpu_op **op, struct gpu_error *error) {
    GPU_ENTER(submit->stream->device);
    gpulua_status status = gpu_ref_check(src, submit->stream->device, "source of read", error);
    if (status == GPULUA_OK) {
        status = check_part(src, byte_offset, byte_count, staging, error);
    }
    if (status) {
        return status;
    }
    struct gpu_ref dst = staging_ref(staging, byte_count);
    struct gpu_ref part = *src;
    part.byte_offset += byte_offset;
    part.byte_count = byte_count;
    struct gpu_submit named = *submit;
    named.label = submit->label ? submit->label : "read";
    return gpu_work_copy(&named, &dst, &part, op, error);
}

gpulua_status gpu_work_allocated(const struct gpu_submit *submit, const struct gpu_ref *ref,
                                 struct gpu_error *error) {
    struct gpu_envelope envelope;
    gpulua_status status = gpu_envelope_begin(&envelope, submit, "allocation", error);
    if (status) {
        return status;
    }
    gpu_envelope_use_ref(&envelope, ref, GPU_WRITE);
    struct wire_record *record;
    status = gpu_envelope_record(&envelope, WIRE_OP_MARK, &record, error);
    return status ? status : gpu_envelope_submit(&envelope, record, 0, NULL, error);
}

static gpulua_status submit_mark(const struct gpu_submit *submit, struct gpu_op *after,
                                 struct gpu_op **op, struct gpu_error *error) {
    struct gpu_envelope envelope;
    struct gpu_stream *stream = submit->stream;
    if (submit->capture) { /* nodes are ordered by what they use, and by nothing else */
        gpulua_status active = gpu_capture_check(submit->capture, after ? "wait" : "mark", error);
        return active || !op ? active
                             : gpu_capture_op(submit->capture, "mark", &submit->site, op, error);
    }
    if (after && gpu_op_is_captured(after)) {
        gpu_error_copy(error, &after->failure->error);
        return error->code;
    }
    if (after && (after->stream_number == 0 || after->device != stream->device)) {
        return gpu_error_set(error, GPULUA_STREAM_MISUSE,
                             "a stream can wait for work of its own device only");
    }
    gpulua_status status = gpu_envelope_begin(&envelope, submit, after ? "wait" : "mark", error);
    if (status) {
        return status;
    }
    if (after && stream->device->may_owe) {
        const struct wire_wait wait = {
            .stream = after->slot, .flags = WIRE_WAIT_ORDER, .seq = after->seq};
        status = gpu_waits_check(stream->device, &wait, after->slot != stream->slot, error);
    }
    struct wire_record *record;
    if (status == GPULUA_OK) {
        status = gpu_envelope_record(&envelope, WIRE_OP_MARK, &record, error);
    }
    if (status) {
        return status;
    }
    if (after && after->slot != stream->slot && !gpu_op_is_over(after)) {
        envelope.waits.items[0] =
            (struct wire_wait){.stream = after->slot, .flags = WIRE_WAIT_ORDER, .seq = after->seq};
        envelope.waits.count = 1;
        record->wait_count = 1;
        *gpu_wire_record_waits(record) = envelope.waits.items[0];
    }
    status = gpu_envelope_submit(&envelope, record, 0, op, error);
    stream->device->stats.marks += status == GPULUA_OK;
    return status;
}

gpulua_status gpu_work_mark(const struct gpu_submit *submit, struct gpu_op *after,
                            struct gpu_op **op, struct gpu_error *error) {
    GPU_ENTER(submit->stream->device);
    struct gpu_hooked hooked;
    gpu_hooks_begin(submit, after ? "wait" : "mark", NULL, 0, &hooked);
    gpulua_status status = submit_mark(submit, after, op, error);
    return gpu_hooks_end(submit, &hooked, status, error);
}

/* ---- launches ---- */

static gpulua_status bad_dimension(const struct gpu_launch *launch, const char *what, unsigned axis,
                                   uint32_t value, uint32_t limit, struct gpu_error *error) {
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                         "%s of kernel '%s': %c is %u, allowed is 1 to %u", what,
                         gpu_kernel_name(launch->kernel), (int)('x' + (int)axis), value, limit);
}

static gpulua_status check_shape(const struct gpu_launch *launch, struct gpu_error *error) {
    const struct wire_device_facts *device = &launch->submit.stream->device->facts;
    const struct wire_kernel_facts *kernel = &launch->kernel->facts;
    bool is_flat = (launch->grid[1] | launch->grid[2] | launch->block[1] | launch->block[2]) == 1;
    for (unsigned axis = 0; axis < (is_flat ? 1u : 3u); axis++) {
        if (launch->grid[axis] - 1u >= device->grid_max[axis]) { /* 0 is the largest then */
            return bad_dimension(launch, "grid", axis, launch->grid[axis], device->grid_max[axis],
                                 error);
        }
        if (launch->block[axis] - 1u >= device->block_max[axis]) {
            return bad_dimension(launch, "block", axis, launch->block[axis],
                                 device->block_max[axis], error);
        }
    }
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    if (threads > kernel->block_threads_max) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "block of kernel '%s' has %llu threads, allowed are %u",
                             gpu_kernel_name(launch->kernel), (unsigned long long)threads,
                             kernel->block_threads_max);
    }
    if ((uint64_t)launch->shared_bytes + kernel->shared_bytes_static > device->shared_bytes_max) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT,
            "kernel '%s' would use %llu bytes of shared memory (%u dynamic), the device has %u",
            gpu_kernel_name(launch->kernel),
            (unsigned long long)launch->shared_bytes + kernel->shared_bytes_static,
            launch->shared_bytes, device->shared_bytes_max);
    }
    return GPULUA_OK;
}

static const char *describe(const struct gpu_launch *launch, const struct gpu_param *param,
                            char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "argument %u%s%s%s of kernel '%s'", param->number,
             param->name[0] ? " (" : "", param->name, param->name[0] ? ")" : "",
             gpu_kernel_name(launch->kernel));
    return text;
}

/* Vectors of 2 to 4 elements: the buffer has a whole number of them, and begins where one may lie,
 * those of 3 wherever one of their elements may. */
static gpulua_status check_lanes(const struct gpu_launch *launch, const struct gpu_param *param,
                                 const struct gpu_ref *ref, struct gpu_error *error) {
    uint64_t lane_bytes = (uint64_t)gpu_type_bytes(param->type) * param->lanes;
    if (ref->byte_count % lane_bytes == 0 &&
        (param->lanes == 3 || address_of(ref) % lane_bytes == 0)) {
        return GPULUA_OK;
    }
    char what[160];
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                         "%s: wants %s, so the buffer's length%s must be %s of %u elements",
                         describe(launch, param, what, sizeof what), param->text,
                         param->lanes == 3 ? "" : " and start",
                         param->lanes == 3 ? "a multiple" : "multiples", param->lanes);
}

/* The types differ. */
static gpulua_status check_type(const struct gpu_launch *launch, const struct gpu_param *param,
                                enum gpu_type type, struct gpu_error *error) {
    /* Complex numbers are pairs: c64 goes where float2 is wanted, c128 where double2 is. */
    bool is_pair = (type == GPU_TYPE_C64 && param->type == GPU_TYPE_F32 && param->lanes == 2) ||
                   (type == GPU_TYPE_C128 && param->type == GPU_TYPE_F64 && param->lanes == 2);
    if (is_pair || param->type == GPU_TYPE_COUNT) { /* void *: any type */
        return GPULUA_OK;
    }
    char what[160], view[64] = "";
    if (gpu_type_bytes(type) == gpu_type_bytes(param->type)) {
        snprintf(view, sizeof view, " (buffer:view(\"%s\") has the same bytes)",
                 gpu_type_name(param->type));
    }
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "%s: wants %s, got a buffer of %s%s",
                         describe(launch, param, what, sizeof what), param->text,
                         gpu_type_name(type), view);
}

/* Memory of other libraries, a capture's own, or whose uses nobody can order. */
static gpulua_status check_origin(const struct gpu_launch *launch, const struct gpu_param *param,
                                  const struct gpu_ref *ref, struct gpu_error *error) {
    char what[160];
    struct gpu_block *block = ref->block;
    (void)describe(launch, param, what, sizeof what);
    if (gpu_block_is_of_capture(block)) {
        return gpu_temporary_use(block, launch->submit.capture, what, error);
    }
    if (block->is_foreign) {
        return check_foreign(ref, param->access, what, error);
    }
    return gpu_error_set(
        error, GPULUA_STREAM_MISUSE,
        "%s is direct memory (allocation %llu%s%s), whose uses no stream can order", what,
        (unsigned long long)block->number, block->label[0] ? ", " : "", block->label);
}

static inline gpulua_status check_pointer(const struct gpu_launch *launch,
                                          const struct gpu_param *param, const struct gpu_ref *ref,
                                          struct gpu_error *error) {
    struct gpu_device *device = launch->submit.stream->device;
    const struct gpu_block *block = ref->block;
    bool is_well =
        block && block->device == device && !block->is_freed && block->epoch == device->epoch;
    char what[160];
    if (!is_well && !(block && gpu_temporary_is_lone_of(block, launch->submit.capture))) {
        return gpu_ref_check(ref, device, describe(launch, param, what, sizeof what), error);
    }
    if (block->is_host) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "%s: a host buffer is not device memory; copy it into a buffer",
                             describe(launch, param, what, sizeof what));
    }
    gpulua_status status = GPULUA_OK;
    if (ref->type != param->type) {
        status = check_type(launch, param, ref->type, error);
    }
    if (status == GPULUA_OK && param->lanes > 1) {
        status = check_lanes(launch, param, ref, error);
    }
    if (status == GPULUA_OK && (block->is_foreign || !block->is_trackable)) {
        status = check_origin(launch, param, ref, error);
    }
    return status;
}

static gpulua_status check_args(const struct gpu_launch *launch, struct gpu_envelope *envelope,
                                struct gpu_error *error) {
    const struct gpu_signature *signature = launch->kernel->signature;
    uint32_t count = signature->param_count;
    if (launch->arg_count != count) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "kernel '%s' takes %u arguments, got %u",
                             gpu_kernel_name(launch->kernel), count, launch->arg_count);
    }
    const struct gpu_param *end = signature->params + count;
    const struct gpu_arg *arg = launch->args;
    for (const struct gpu_param *param = signature->params; param < end; param++, arg++) {
        const struct gpu_ref *ref = arg->ref;
        if (param->kind == GPU_PARAM_POINTER && ref) {
            gpulua_status status = check_pointer(launch, param, ref, error);
            if (status) {
                return status;
            }
            gpu_envelope_use_ref(envelope, ref, param->access);
        } else if (param->kind == GPU_PARAM_UNSUPPORTED) {
            char what[160];
            return gpu_error_set(error, GPULUA_UNSUPPORTED,
                                 "%s is a '%s': give the kernel a signature by hand",
                                 describe(launch, param, what, sizeof what), param->text);
        }
    }
    return GPULUA_OK;
}

/* Nearly all scalars have 4 or 8 bytes: a store each, where a memcpy of any length is a call. */
static inline void put_scalar(uint8_t *to, const union gpu_scalar *scalar, uint32_t byte_count) {
    if (byte_count == 4) {
        memcpy(to, scalar->bytes, 4);
    } else if (byte_count == 8) {
        memcpy(to, scalar->bytes, 8);
    } else {
        memcpy(to, scalar->bytes, byte_count);
    }
}

static uint32_t write_payload(const struct gpu_launch *launch, uint8_t *payload,
                              struct wire_record *record) {
    const struct gpu_signature *signature = launch->kernel->signature;
    const struct gpu_param *end = signature->params + signature->param_count;
    const struct gpu_arg *arg = launch->args;
    uint8_t *relocs = payload + signature->args_bytes;
    uint16_t reloc_count = 0;
    if (signature->has_gaps) {
        memset(payload, 0, signature->args_bytes);
    }
    for (const struct gpu_param *param = signature->params; param < end; param++, arg++) {
        uint8_t *to = payload + param->byte_offset;
        if (param->kind == GPU_PARAM_SCALAR) {
            put_scalar(to, &arg->scalar, param->byte_count);
            continue;
        }
        const struct gpu_ref *ref = arg->ref;
        uint64_t address = ref ? address_of(ref) : 0;
        memcpy(to, &address, sizeof address);
        if (ref) {
            uint16_t offset = (uint16_t)param->byte_offset;
            memcpy(relocs + sizeof offset * reloc_count++, &offset, sizeof offset);
        }
    }
    record->u.launch.args_bytes = signature->args_bytes;
    record->u.launch.reloc_count = reloc_count;
    return signature->args_bytes + reloc_count * (uint32_t)sizeof(uint16_t);
}

/* The last parameter of a kernel that reports; more relocations behind the others. A node gets room
 * for it, which is filled before each launch of the graph. */
static uint32_t write_context(const struct gpu_signature *signature, uint8_t *payload,
                              struct wire_record *record, const struct gpu_envelope *envelope) {
    struct gpu_report *needs[GPU_REPORT_NEEDS_MAX];
    struct gpu_report_context context = {0};
    uint16_t offsets[GPU_REPORT_RELOCS_MAX];
    uint32_t need_count = GPU_REPORT_NEEDS_MAX;
    if (envelope->report) {
        need_count = gpu_report_needs(envelope->stream->device, &envelope->waits, needs);
        gpu_report_context(envelope->report, NULL, needs, need_count, &context);
    }
    uint32_t count = gpu_report_relocs(need_count, offsets);
    uint32_t at = signature->params[signature->param_count].byte_offset;
    memcpy(payload + at, &context, sizeof context);
    uint8_t *relocs = payload + signature->args_bytes;
    for (uint32_t i = 0; i < count; i++) {
        uint16_t offset = (uint16_t)(at + offsets[i]);
        memcpy(relocs + sizeof offset * record->u.launch.reloc_count++, &offset, sizeof offset);
    }
    return signature->args_bytes + record->u.launch.reloc_count * (uint32_t)sizeof(uint16_t);
}

/* Check mode: what the launch declares, behind its arguments. */
static uint32_t write_uses(const struct gpu_launch *launch, uint8_t *payload,
                           struct wire_record *record) {
    const struct gpu_signature *signature = launch->kernel->signature;
    uint32_t offset =
        gpu_wire_launch_uses_offset(record->u.launch.args_bytes, record->u.launch.reloc_count);
    uint32_t end =
        record->u.launch.args_bytes + record->u.launch.reloc_count * (uint32_t)sizeof(uint16_t);
    memset(payload + end, 0, offset - end);
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_ref *ref = launch->args[i].ref;
        if (signature->params[i].kind != GPU_PARAM_POINTER || !ref) {
            continue;
        }
        const struct gpu_param *param = &signature->params[i];
        struct wire_use use = {.address = address_of(ref),
                               .bytes = ref->byte_count,
                               .access = param->access,
                               .param = (uint16_t)(param->number - 1u),
                               .part = (uint16_t)i};
        snprintf(use.name, sizeof use.name, "%s", param->name);
        memcpy(payload + offset, &use, sizeof use);
        offset += (uint32_t)sizeof use;
        record->u.launch.use_count++;
    }
    return offset;
}

gpulua_status gpu_work_check_reports(const struct gpu_kernel *kernel,
                                     const struct gpu_capture *capture, struct gpu_error *error) {
    return !kernel->signature->has_context || !capture || gpu_capture_depth(capture) == 0
               ? GPULUA_OK
               : gpu_error_set(error, GPULUA_UNSUPPORTED,
                               "kernel '%s' reports failures (it has a " GPU_REPORT_CONTEXT_NAME
                               "), and cannot be in the body of a conditional node",
                               gpu_kernel_name(kernel));
}

/* `report`: where the kernel says what is wrong; NULL: it does not. */
static gpulua_status submit_launch(const struct gpu_launch *launch, struct gpu_report *report,
                                   struct gpu_op **op, struct gpu_error *error) {
    struct gpu_envelope envelope;
    struct gpu_device *device = launch->submit.stream->device;
    struct gpu_module *module = launch->kernel->module;
    if (module->device != device) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT, "kernel '%s' is of %s%s, the stream of %s",
            gpu_kernel_name(launch->kernel), gpu_device_kin(module->device, device),
            gpu_device_title(module->device), device->title);
    }
    gpulua_status status =
        gpu_envelope_begin(&envelope, &launch->submit, launch->kernel->label, error);
    if (status == GPULUA_OK) {
        status = check_shape(launch, error);
    }
    if (status == GPULUA_OK) {
        status = check_args(launch, &envelope, error);
    }
    if (status) {
        return status;
    }
    status = gpu_work_check_reports(launch->kernel, launch->submit.capture, error);
    if (status) {
        return status;
    }
    /* Every kernel may read and write its module's variables. A node's module must outlive each
     * launch of the graph. */
    if (module->global_count > 0 || launch->submit.capture) {
        gpu_envelope_use_module(&envelope, module, module->access);
    }
    envelope.report = report;
    envelope.form = launch->kernel->form;
    struct wire_record *record;
    status = gpu_envelope_record(&envelope, WIRE_OP_LAUNCH, &record, error);
    if (status) {
        return status;
    }
    record->object = launch->kernel->id;
    for (unsigned axis = 0; axis < 3; axis++) {
        record->u.launch.grid[axis] = launch->grid[axis];
        record->u.launch.block[axis] = (uint16_t)launch->block[axis];
    }
    record->u.launch.shared_bytes = launch->shared_bytes;
    record->u.launch.is_library = module->kind == GPU_MODULE_LIBRARY;
    uint8_t *payload = gpu_wire_record_payload(record);
    uint32_t payload_bytes = write_payload(launch, payload, record);
    if (launch->kernel->signature->has_context) {
        payload_bytes = write_context(launch->kernel->signature, payload, record, &envelope);
    }
    if (device->is_checked) {
        payload_bytes = write_uses(launch, payload, record);
    }
    if (launch->submit.capture && !gpu_capture_keep_launch(launch->submit.capture, launch)) {
        return no_memory_for_node(error);
    }
    status = gpu_envelope_submit(&envelope, record, payload_bytes, op, error);
    if (status == GPULUA_OK && !launch->submit.capture) {
        device->stats.launches++;
        module->launched = device->op_number_next;
    }
    return status;
}

static void begin_hooks(const struct gpu_launch *launch, struct gpu_hooked *hooked) {
    const struct gpu_signature *signature = launch->kernel->signature;
    const struct gpu_module *module = launch->kernel->module;
    const struct gpu_ref *refs[GPU_PARAMS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < signature->param_count && i < launch->arg_count; i++) {
        if (signature->params[i].kind == GPU_PARAM_POINTER) {
            refs[count++] = launch->args[i].ref;
        }
    }
    gpu_hooks_fire_begin(&launch->submit, launch->kernel->label,
                         module->kind == GPU_MODULE_LIBRARY ? module->name : NULL, refs, count,
                         hooked);
}

static inline gpulua_status launch_once(const struct gpu_launch *launch, struct gpu_report *report,
                                        struct gpu_op **op, struct gpu_error *error) {
    gpulua_status status;
    do {
        status = submit_launch(launch, report, op, error);
    } while (status && gpu_share_wait(launch->submit.stream->device, &status, error));
    return status;
}

/* It may take memory, and with that some time: before anything is looked at. */
static gpulua_status launch_reporting(const struct gpu_launch *launch, struct gpu_op **op,
                                      struct gpu_error *error) {
    struct gpu_report *report = NULL;
    const struct gpu_report_of of = {.source = launch->kernel->source};
    gpulua_status status = gpu_report_take(launch->submit.stream->device, &of, &report, error);
    if (status == GPULUA_OK) {
        status = launch_once(launch, report, op, error);
    }
    gpu_report_release(report);
    return status;
}

gpulua_status gpu_work_launch(const struct gpu_launch *launch, struct gpu_op **op,
                              struct gpu_error *error) {
    GPU_ENTER(launch->submit.stream->device);
    gpulua_status status;
    if (__builtin_expect(launch->submit.stream->device->is_injected, 0) &&
        (status = gpu_inject_delay(launch, error))) {
        return status;
    }
    struct gpu_hooked hooked;
    hooked.hooks = NULL; /* the rest is read where there are some */
    if (gpu_hooks_are_set(&launch->submit)) {
        begin_hooks(launch, &hooked);
    }
    bool reports = launch->kernel->signature->has_context && !launch->submit.capture;
    status = __builtin_expect(reports, 0) ? launch_reporting(launch, op, error)
                                          : launch_once(launch, NULL, op, error);
    return gpu_hooks_end(&launch->submit, &hooked, status, error);
}
