/* Exchange of buffers by DLPack. */
#include "host/dlpack.h"

#include <stdlib.h>
#include <string.h>

#include "binding/device.h"
#include "binding/graph.h"
#include "binding/stream.h"
#include "host/handle.h"
#include "host/structs.h"
#include "runtime/exchange.h"

static const struct {
    uint8_t code, bits;
} type_table[GPU_TYPE_COUNT] = {
    [GPU_TYPE_I8] = {DLPACK_INT, 8},       [GPU_TYPE_U8] = {DLPACK_UINT, 8},
    [GPU_TYPE_I16] = {DLPACK_INT, 16},     [GPU_TYPE_U16] = {DLPACK_UINT, 16},
    [GPU_TYPE_I32] = {DLPACK_INT, 32},     [GPU_TYPE_U32] = {DLPACK_UINT, 32},
    [GPU_TYPE_I64] = {DLPACK_INT, 64},     [GPU_TYPE_U64] = {DLPACK_UINT, 64},
    [GPU_TYPE_F16] = {DLPACK_FLOAT, 16},   [GPU_TYPE_BF16] = {DLPACK_BFLOAT, 16},
    [GPU_TYPE_F32] = {DLPACK_FLOAT, 32},   [GPU_TYPE_F64] = {DLPACK_FLOAT, 64},
    [GPU_TYPE_C64] = {DLPACK_COMPLEX, 64}, [GPU_TYPE_C128] = {DLPACK_COMPLEX, 128},
};

static gpulua_status take_exchange(const gpulua_exchange *given, gpulua_exchange *exchange,
                                   struct gpu_error *error) {
    gpulua_status status = gpu_host_take_exchange(given, exchange, error);
    if (status) {
        return status;
    }
    if (exchange->order < GPULUA_ORDER_DEFAULT || exchange->order > GPULUA_ORDER_NONE) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "there is no order %d of an exchange",
                             (int)exchange->order);
    }
    if (exchange->order == GPULUA_ORDER_STREAM && exchange->stream == 0) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "order of an exchange: stream 0 may be one of two default streams: 1 "
                             "is the legacy one, 2 the one of the thread");
    }
    return GPULUA_OK;
}

/* Our stream in an exchange of ORDER_STREAM. Stack: the stream at `index`. */
static struct gpu_submit exchange_submit(lua_State *L, struct gpulua *g, struct gpu_device *device,
                                         int index) {
    struct gpu_submit submit = {.stream = gpu_host_is_given(L, index)
                                              ? gpu_lua_check_stream(L, g, index)
                                              : gpu_lua_current_stream(L, g, device)};
    if (gpu_stream_device(submit.stream) != device) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "stream of an exchange: it is of another device than the buffer");
    }
    gpu_lua_site(L, g, device, &submit.site);
    return submit;
}

/* ---- export ---- */

/* What an export carries behind it. */
struct outgoing {
    union {
        struct DLManagedTensor plain;
        struct DLManagedTensorVersioned versioned;
    } as;
    int64_t shape[GPU_LUA_DIMS_MAX], strides[GPU_LUA_DIMS_MAX];
};

static void delete_plain(struct DLManagedTensor *self) {
    gpu_export_return(self->context);
}

static void delete_versioned(struct DLManagedTensorVersioned *self) {
    gpu_export_return(self->context);
}

static void fill_tensor(const struct gpulua_buffer *buffer, struct outgoing *out, uint64_t address,
                        struct dlpack_tensor *tensor) {
    bool is_cuda = !buffer->is_host && strcmp(buffer->device_kind, "cuda") == 0;
    int64_t stride = 1;
    for (uint32_t i = buffer->dim_count; i-- > 0;) {
        out->shape[i] = (int64_t)buffer->shape[i];
        out->strides[i] = stride;
        stride *= out->shape[i];
    }
    *tensor = (struct dlpack_tensor){
        .data = (void *)(uintptr_t)address,
        .device = {.kind = is_cuda ? DLPACK_CUDA : DLPACK_CPU,
                   .ordinal = is_cuda ? buffer->device_ordinal : 0},
        .dim_count = (int32_t)buffer->dim_count,
        .type = {.code = type_table[buffer->ref.type].code,
                 .bits = type_table[buffer->ref.type].bits,
                 .lanes = 1},
        .shape = out->shape,
        .strides = out->strides,
    };
}

struct export_request {
    struct gpulua_buffer *buffer;
    const gpulua_exchange *exchange;
    bool is_versioned, is_read_only;
    struct gpu_export *made;
};

/* Stack: the request, our stream. */
static int export_buffer(lua_State *L) {
    struct export_request *request = lua_touserdata(L, 1);
    const gpulua_exchange *exchange = request->exchange;
    struct gpulua_buffer *buffer = request->buffer;
    struct gpulua *g = gpu_lua_find(L);
    struct gpu_error error;
    struct gpu_export *made = NULL;
    uint64_t address = 0;
    gpulua_status status = GPULUA_OK;
    bool for_write = !request->is_read_only;
    if (exchange->order != GPULUA_ORDER_NONE) {
        gpu_lua_check_eager(L, g, gpu_block_device(buffer->ref.block), "an export");
    }
    if (exchange->order == GPULUA_ORDER_STREAM) {
        struct gpu_submit submit = exchange_submit(L, g, gpu_block_device(buffer->ref.block), 2);
        status = gpu_ref_address(&buffer->ref, &address, &error); /* Unsupported before work */
        if (status == GPULUA_OK) {
            status = gpu_ref_give(&submit, &buffer->ref, for_write, exchange->stream, &error);
        }
    } else if (exchange->order != GPULUA_ORDER_NONE) {
        status = gpu_ref_wait(&buffer->ref, for_write, &error);
    }
    if (status == GPULUA_OK) {
        status = gpu_export_create(&buffer->ref, sizeof(struct outgoing), &made, &address, &error);
    }
    if (status) {
        gpu_lua_throw(L, &error);
    }
    struct outgoing *out = gpu_export_extra(made);
    if (request->is_versioned) {
        struct DLManagedTensorVersioned *tensor = &out->as.versioned;
        tensor->version.major = DLPACK_MAJOR;
        tensor->version.minor = DLPACK_MINOR;
        tensor->context = made;
        tensor->deleter = delete_versioned;
        tensor->flags = request->is_read_only ? DLPACK_FLAG_READ_ONLY : 0;
        fill_tensor(buffer, out, address, &tensor->tensor);
    } else {
        struct DLManagedTensor *tensor = &out->as.plain;
        tensor->context = made;
        tensor->deleter = delete_plain;
        fill_tensor(buffer, out, address, &tensor->tensor);
    }
    request->made = made;
    return 0;
}

static gpulua_status export_any(lua_State *L, gpulua_buffer *buffer, const gpulua_exchange *given,
                                bool is_versioned, struct outgoing **out) {
    gpulua_status status = GPULUA_OK;
    struct gpu_error error = {0};
    gpulua_exchange exchange;
    *out = NULL;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g || (status = gpu_host_check(g, buffer, "export"))) {
        return status;
    }
    if (take_exchange(given, &exchange, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    struct export_request request = {
        .buffer = buffer,
        .exchange = &exchange,
        .is_versioned = is_versioned,
        .is_read_only = exchange.is_read_only || gpu_block_is_read_only(buffer->ref.block),
    };
    if (request.is_read_only && !is_versioned) {
        return gpu_lua_keep_error(g, GPULUA_UNSUPPORTED,
                                  "export: an unversioned tensor cannot say that its memory is "
                                  "read only: ask for a versioned one");
    }
    status = gpu_host_call(g, L, export_buffer, &request, exchange.stream_index);
    if (status == GPULUA_OK) {
        *out = gpu_export_extra(request.made);
    }
    return status;
}

gpulua_status gpulua_dlpack_export(lua_State *L, gpulua_buffer *buffer,
                                   const gpulua_exchange *exchange,
                                   struct DLManagedTensorVersioned **tensor) {
    struct outgoing *out;
    gpulua_status status = export_any(L, buffer, exchange, true, &out);
    *tensor = out ? &out->as.versioned : NULL;
    return status;
}

gpulua_status gpulua_dlpack_export_unversioned(lua_State *L, gpulua_buffer *buffer,
                                               const gpulua_exchange *exchange,
                                               struct DLManagedTensor **tensor) {
    struct outgoing *out;
    gpulua_status status = export_any(L, buffer, exchange, false, &out);
    *tensor = out ? &out->as.plain : NULL;
    return status;
}

/* ---- what a tensor says ---- */

/* What comes in, in our terms. */
struct incoming {
    enum gpu_type type;
    uint32_t dim_count;
    uint64_t shape[GPU_LUA_DIMS_MAX];
    uint64_t elem_count, byte_count;
    uint64_t address;
};

static const char *device_name_of(int32_t kind) {
    switch (kind) {
#define X(number, name)                                                                            \
    case number:                                                                                   \
        return #name;
        DLPACK_DEVICE_TABLE(X)
#undef X
    default:
        return "unknown";
    }
}

static gpulua_status read_type(const struct dlpack_type *type, struct incoming *in,
                               struct gpu_error *error) {
    if (type->lanes != 1) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "tensor: elements of %u lanes: buffers have one (make the lanes a "
                             "dimension)",
                             type->lanes);
    }
    for (int i = 0; i < GPU_TYPE_COUNT; i++) {
        if (type_table[i].code == type->code && type_table[i].bits == type->bits) {
            in->type = (enum gpu_type)i;
            return GPULUA_OK;
        }
    }
    if (type->code == DLPACK_BOOL && type->bits == 8) {
        in->type = GPU_TYPE_U8;
        return GPULUA_OK;
    }
    return gpu_error_set(error, GPULUA_UNSUPPORTED,
                         "tensor: elements of type code %u with %u bits: buffers have none such",
                         type->code, type->bits);
}

static gpulua_status read_shape(const struct dlpack_tensor *tensor, struct incoming *in,
                                struct gpu_error *error) {
    if (tensor->dim_count < 0 || (tensor->dim_count > 0 && !tensor->shape)) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "tensor: %d dimensions%s",
                             (int)tensor->dim_count,
                             tensor->dim_count > 0 ? " without a shape" : "");
    }
    if (tensor->dim_count > (int32_t)GPU_LUA_DIMS_MAX) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "tensor: %d dimensions, buffers have at most %u",
                             (int)tensor->dim_count, GPU_LUA_DIMS_MAX);
    }
    in->dim_count = (uint32_t)tensor->dim_count;
    in->elem_count = 1;
    bool is_empty = false, is_too_large = false;
    for (uint32_t i = 0; i < in->dim_count; i++) {
        if (tensor->shape[i] < 0) {
            return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                 "tensor: dimension %u of its shape is %lld", i + 1,
                                 (long long)tensor->shape[i]);
        }
        in->shape[i] = (uint64_t)tensor->shape[i];
        is_empty = is_empty || in->shape[i] == 0;
        is_too_large |= __builtin_mul_overflow(in->elem_count, in->shape[i], &in->elem_count);
    }
    if (is_empty) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "tensor: it has no elements, a buffer has at least one");
    }
    is_too_large |=
        __builtin_mul_overflow(in->elem_count, (uint64_t)gpu_type_bytes(in->type), &in->byte_count);
    if (is_too_large || in->byte_count > INT64_MAX) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "tensor: its shape has more elements than any memory");
    }
    if (in->dim_count == 0) { /* one element */
        in->dim_count = 1;
        in->shape[0] = 1;
    }
    return GPULUA_OK;
}

/* Where a dimension is 1 its stride says nothing. */
static gpulua_status check_strides(const struct dlpack_tensor *tensor, struct gpu_error *error) {
    int64_t compact = 1;
    for (int32_t i = tensor->strides ? tensor->dim_count : 0; i-- > 0;) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != compact) {
            return gpu_error_set(error, GPULUA_UNSUPPORTED,
                                 "tensor: stride %lld of dimension %d, where compact rows have "
                                 "%lld: buffers are compact (make a contiguous copy)",
                                 (long long)tensor->strides[i], (int)i + 1, (long long)compact);
        }
        compact *= tensor->shape[i];
    }
    return GPULUA_OK;
}

/* Parts of complex numbers are what has to be aligned. */
static gpulua_status read_address(const struct dlpack_tensor *tensor, struct incoming *in,
                                  struct gpu_error *error) {
    uint64_t end;
    uint32_t align_bytes = gpu_type_bytes(in->type);
    align_bytes /= gpu_type_class(in->type) == GPU_CLASS_COMPLEX ? 2 : 1;
    if (!tensor->data) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "tensor: its data is a null pointer");
    }
    if (__builtin_add_overflow((uint64_t)(uintptr_t)tensor->data, tensor->byte_offset,
                               &in->address) ||
        __builtin_add_overflow(in->address, in->byte_count, &end)) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "tensor: byte offset %llu with %llu bytes behind it runs over the end "
                             "of all memory",
                             (unsigned long long)tensor->byte_offset,
                             (unsigned long long)in->byte_count);
    }
    if (in->address % align_bytes != 0) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "tensor: its data lies at %#llx, which is not aligned for %s",
                             (unsigned long long)in->address, gpu_type_name(in->type));
    }
    return GPULUA_OK;
}

static bool is_host_kind(int32_t kind) {
    return kind == DLPACK_CPU || kind == DLPACK_CUDA_HOST;
}

/* Memory of the host is tried with every device: what was ours comes back. */
static gpulua_status check_device(const struct dlpack_device *from, struct gpu_device *device,
                                  struct gpu_error *error) {
    bool is_cuda = strcmp(gpu_device_kind(device), "cuda") == 0;
    const char *ordinal = strchr(gpu_device_name(device), ':');
    if (is_host_kind(from->kind) || (from->kind == DLPACK_CUDA_MANAGED && !is_cuda)) {
        return GPULUA_OK;
    }
    if (from->kind != DLPACK_CUDA && from->kind != DLPACK_CUDA_MANAGED) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "tensor: it is on a device of kind %d (%s), which gpulua has none of",
                             (int)from->kind, device_name_of(from->kind));
    }
    if (!is_cuda || (from->kind == DLPACK_CUDA && from->ordinal != strtol(ordinal + 1, NULL, 10))) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "tensor: it is on cuda:%d, the device to import it for is %s",
                             (int)from->ordinal, gpu_device_name(device));
    }
    return GPULUA_OK;
}

static gpulua_status read_tensor(const struct dlpack_tensor *tensor, struct incoming *in,
                                 struct gpu_error *error) {
    gpulua_status status = read_type(&tensor->type, in, error);
    if (status == GPULUA_OK) {
        status = read_shape(tensor, in, error);
    }
    if (status == GPULUA_OK) {
        status = check_strides(tensor, error);
    }
    if (status == GPULUA_OK) {
        status = read_address(tensor, in, error);
    }
    return status;
}

/* ---- import ---- */

/* The tensor that an import holds. One of the two. */
struct hold {
    struct DLManagedTensor *plain;
    struct DLManagedTensorVersioned *versioned;
    bool is_taken; /* not yet: the import may still fail, and leaves it alone */
};

static void hold_end(void *user) {
    struct hold *hold = user;
    if (hold->is_taken && hold->plain && hold->plain->deleter) {
        hold->plain->deleter(hold->plain);
    } else if (hold->is_taken && hold->versioned && hold->versioned->deleter) {
        hold->versioned->deleter(hold->versioned);
    }
    free(hold);
}

struct import_request {
    const struct dlpack_tensor *tensor;
    struct hold *hold; /* owned until an import has it */
    const gpulua_exchange *exchange;
    bool is_read_only;
    struct gpulua_buffer *made;
};

/* Into a new host buffer; pushes nothing. */
static void import_copy(lua_State *L, struct gpulua *g, struct import_request *request,
                        const struct incoming *in) {
    lua_settop(L, 2);
    gpu_lua_push_function(L, gpu_lua_device_host);
    lua_pushvalue(L, 2);
    lua_pushstring(L, gpu_type_name(in->type));
    lua_createtable(L, (int)in->dim_count, 0);
    for (uint32_t i = 0; i < in->dim_count; i++) {
        lua_pushinteger(L, (lua_Integer)in->shape[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_createtable(L, 0, 1);
    lua_pushstring(L, request->exchange->label);
    lua_setfield(L, -2, "label");
    lua_call(L, 4, 1);
    struct buffer *copy = gpu_lua_check_buffer(L, g, -1);
    memcpy(gpu_lua_host_bytes(copy), (const void *)(uintptr_t)in->address, in->byte_count);
    request->made = gpu_host_buffer_of(g, copy);
    request->hold->is_taken = request->made != NULL;
    struct hold *hold = request->hold;
    request->hold = NULL;
    hold_end(hold);
}

static gpulua_status order_import(lua_State *L, struct gpulua *g, struct import_request *request,
                                  struct gpu_device *device, const struct gpu_ref *ref,
                                  struct gpu_error *error) {
    const gpulua_exchange *exchange = request->exchange;
    if (exchange->order != GPULUA_ORDER_STREAM) {
        gpu_ref_written(ref);
        return GPULUA_OK;
    }
    struct gpu_submit submit = exchange_submit(L, g, device, 3);
    return gpu_ref_take(&submit, ref, exchange->stream, error);
}

/* When it raises behind the import, `made` has the block, and the caller ends that. */
static void import_memory(lua_State *L, struct gpulua *g, struct import_request *request,
                          struct gpu_device *device, const struct incoming *in) {
    const gpulua_exchange *exchange = request->exchange;
    bool is_host = is_host_kind(request->tensor->device.kind) ||
                   request->tensor->device.kind == DLPACK_CUDA_MANAGED;
    struct gpu_error error;
    bool is_known;
    struct gpu_ref ref = {.byte_count = in->byte_count, .type = in->type};
    struct gpu_import_info info = {
        .address = in->address,
        .byte_count = in->byte_count,
        .label = exchange->label,
        .is_ordered = exchange->order == GPULUA_ORDER_READY ||
                      exchange->order == GPULUA_ORDER_STREAM ||
                      (exchange->order == GPULUA_ORDER_DEFAULT && is_host),
        .is_read_only = request->is_read_only,
        .is_host = request->tensor->device.kind == DLPACK_CPU,
        .release = hold_end,
        .user = request->hold,
    };
    gpulua_status status =
        gpu_import(device, &info, &ref.block, &ref.byte_offset, &is_known, &error);
    if (status == GPULUA_UNSUPPORTED && exchange->may_copy &&
        exchange->order != GPULUA_ORDER_STREAM && is_host_kind(request->tensor->device.kind)) {
        gpu_error_finish(&error);
        import_copy(L, g, request, in);
        return;
    }
    if (status) {
        gpu_lua_throw(L, &error);
    }
    struct hold *hold = request->hold;
    request->hold = is_known ? hold : NULL;
    request->made = gpu_host_buffer_create(g, &ref, in->dim_count, in->shape);
    gpu_block_release(ref.block);
    if (!request->made) {
        return;
    }
    if (order_import(L, g, request, device, &ref, &error)) {
        gpu_lua_throw(L, &error);
    }
    hold->is_taken = true;
    if (is_known) { /* its owner keeps the memory, and needs no second word of us */
        request->hold = NULL;
        hold_end(hold);
    }
}

/* Stack: the request, a device, our stream. */
static int import_tensor(lua_State *L) {
    struct import_request *request = lua_touserdata(L, 1);
    struct gpulua *g = gpu_lua_find(L);
    struct gpu_error error;
    struct incoming in;
    if (read_tensor(request->tensor, &in, &error)) {
        gpu_lua_throw(L, &error);
    }
    struct gpu_device *device = gpu_host_device(L, g, 2);
    if (check_device(&request->tensor->device, device, &error)) {
        gpu_lua_throw(L, &error);
    }
    if (request->exchange->order == GPULUA_ORDER_STREAM && gpu_streams_are_shared(device, &error)) {
        gpu_lua_throw(L, &error);
    }
    import_memory(L, g, request, device, &in);
    if (!request->made) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for a buffer's handle");
    }
    return 0;
}

static gpulua_status import_any(lua_State *L, int device_index, const struct dlpack_tensor *tensor,
                                struct hold taken, const gpulua_exchange *given,
                                gpulua_buffer **buffer) {
    gpulua_status status = GPULUA_OK;
    gpulua_exchange exchange;
    struct gpu_error error;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (take_exchange(given, &exchange, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    struct import_request request = {
        .tensor = tensor,
        .exchange = &exchange,
        .is_read_only = taken.versioned && (taken.versioned->flags & DLPACK_FLAG_READ_ONLY),
        .hold = malloc(sizeof *request.hold),
    };
    if (!request.hold) {
        return gpu_lua_keep_error(g, GPULUA_OUT_OF_MEMORY, "no host memory for an import");
    }
    *request.hold = taken;
    device_index = device_index == 0 ? 0 : lua_absindex(L, device_index);
    int stream_index = exchange.stream_index == 0 ? 0 : lua_absindex(L, exchange.stream_index);
    lua_pushcfunction(L, import_tensor);
    lua_pushlightuserdata(L, &request);
    gpu_host_push(L, device_index);
    gpu_host_push(L, stream_index);
    if (lua_pcall(L, 3, 0, 0) != LUA_OK) {
        status = gpu_lua_keep_raised(g, L);
        gpulua_buffer_release(request.made);
    } else {
        *buffer = request.made;
    }
    free(request.hold);
    return status;
}

gpulua_status gpulua_dlpack_import(lua_State *L, int device_index,
                                   struct DLManagedTensorVersioned *tensor,
                                   const gpulua_exchange *exchange, gpulua_buffer **buffer) {
    gpulua_status status = GPULUA_OK;
    *buffer = NULL;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (!tensor) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT, "tensor: a null pointer");
    }
    if (tensor->version.major != DLPACK_MAJOR) {
        struct gpu_error error;
        gpu_error_set(&error, GPULUA_UNSUPPORTED,
                      "tensor: DLPack %u.%u; versioned tensors of 1.x are understood",
                      tensor->version.major, tensor->version.minor);
        return gpu_lua_keep_failure(g, &error);
    }
    return import_any(L, device_index, &tensor->tensor, (struct hold){.versioned = tensor},
                      exchange, buffer);
}

gpulua_status gpulua_dlpack_import_unversioned(lua_State *L, int device_index,
                                               struct DLManagedTensor *tensor,
                                               const gpulua_exchange *exchange,
                                               gpulua_buffer **buffer) {
    gpulua_status status = GPULUA_OK;
    *buffer = NULL;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (!tensor) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT, "tensor: a null pointer");
    }
    return import_any(L, device_index, &tensor->tensor, (struct hold){.plain = tensor}, exchange,
                      buffer);
}
