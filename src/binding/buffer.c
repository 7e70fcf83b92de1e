/* Buffers, views and slices: their making, shape, range and end. Moving data is in transfer.c. */
#include "binding/buffer.h"
#include "binding/graph.h"

#include <stdio.h>
#include <string.h>

#include "binding/core.h"
#include "binding/data.h"
#include "binding/device.h"
#include "binding/memory.h"
#include "binding/recovery.h"
#include "binding/stream.h"

/* Lua's collector is driven by device bytes, too: garbage handles may hold a lot of memory. So many
 * bytes, or that share of the budget if it is less, are as much reason for a cycle as a heap that
 * has doubled. */
#define GC_CYCLE_BYTES (UINT64_C(32) << 20)
#define GC_CYCLE_SHARE 8u
#define GC_STEPS 16u /* in a cycle */

/* ---- checks ---- */

static enum gpu_lua_kind kind_of(lua_State *L, struct gpulua *g, int index) {
    return gpu_lua_test(L, g, index, GPU_LUA_KIND_HOST) ? GPU_LUA_KIND_HOST : GPU_LUA_KIND_BUFFER;
}

void gpu_lua_buffer_check_open(lua_State *L, const struct buffer *buffer) {
    struct gpu_error error;
    if (!buffer->ref.block) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed buffer");
    }
    if (gpu_ref_check_since(&buffer->ref, 0, "the buffer", &error)) {
        gpu_lua_throw(L, &error);
    }
}

struct buffer *gpu_lua_buffer_at(lua_State *L, struct gpulua *g, int index) {
    struct buffer *buffer = gpu_lua_test(L, g, index, GPU_LUA_KIND_BUFFER);
    if (!buffer) {
        buffer = gpu_lua_test(L, g, index, GPU_LUA_KIND_HOST);
    }
    return buffer ? buffer : gpu_lua_check(L, g, index, GPU_LUA_KIND_BUFFER);
}

struct buffer *gpu_lua_check_buffer(lua_State *L, struct gpulua *g, int index) {
    struct buffer *buffer = gpu_lua_buffer_at(L, g, index);
    gpu_lua_buffer_check_open(L, buffer);
    return buffer;
}

/* What NumPy and C call an element type: what it is called here, or NULL. */
static const char *type_called(const char *name) {
    static const char *const names[][2] = {
        {"bool", "u8"},      {"char", "i8"},       {"int8", "i8"},        {"uint8", "u8"},
        {"short", "i16"},    {"int16", "i16"},     {"uint16", "u16"},     {"int", "i32"},
        {"int32", "i32"},    {"uint32", "u32"},    {"long", "i64"},       {"int64", "i64"},
        {"uint64", "u64"},   {"half", "f16"},      {"float16", "f16"},    {"bfloat16", "bf16"},
        {"float", "f32"},    {"float32", "f32"},   {"double", "f64"},     {"float64", "f64"},
        {"complex", "c128"}, {"complex64", "c64"}, {"complex128", "c128"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i][0]) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

enum gpu_type gpu_lua_check_type(lua_State *L, int index, const char *what) {
    size_t length;
    enum gpu_type type = GPU_TYPE_COUNT;
    index = lua_absindex(L, index);
    if (lua_type(L, index) == LUA_TSTRING) {
        const char *text = lua_tolstring(L, index, &length);
        type = gpu_type_parse(text, length);
    }
    if (type == GPU_TYPE_COUNT) {
        const char *called =
            lua_type(L, index) == LUA_TSTRING ? type_called(lua_tostring(L, index)) : NULL;
        const char *hint =
            called ? lua_pushfstring(L, "'%s' is '%s' here", lua_tostring(L, index), called)
                   : gpu_error_hint(GPULUA_INVALID_ARGUMENT);
        gpu_lua_fail_hint(
            L, GPULUA_INVALID_ARGUMENT, hint,
            "argument 1 of %s: an element type (i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 "
            "f32 f64 c64 c128) expected, got %s",
            what,
            lua_type(L, index) == LUA_TSTRING ? gpu_lua_text(L, index, "argument 1", what)
                                              : luaL_typename(L, index));
    }
    return type;
}

static uint64_t check_dim(lua_State *L, int index, const char *what) {
    int is_integer = 0;
    lua_Integer value =
        lua_type(L, index) == LUA_TNUMBER ? lua_tointegerx(L, index, &is_integer) : 0;
    if (!is_integer || value <= 0) {
        lua_pushvalue(L, index);
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 2 of %s: a whole number of elements from 1 on, or a table of them, "
                     "expected, got %s",
                     what,
                     lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1) : luaL_typename(L, -1));
    }
    return (uint64_t)value;
}

static void set_count(lua_State *L, const char *what, uint64_t count,
                      struct buffer_request *request) {
    if (__builtin_mul_overflow(count, (uint64_t)gpu_type_bytes(request->type),
                               &request->byte_count) ||
        request->byte_count > INT64_MAX) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 2 of %s: more elements than any memory has", what);
    }
    request->elem_count = count;
}

void gpu_lua_check_shape(lua_State *L, int index, const char *what,
                         struct buffer_request *request) {
    uint64_t count = 1;
    bool is_too_large = false;
    if (lua_istable(L, index)) {
        lua_Unsigned dims = lua_rawlen(L, index);
        if (dims == 0 || dims > GPU_LUA_DIMS_MAX) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "argument 2 of %s: 1 to %u dimensions, got %llu", what, GPU_LUA_DIMS_MAX,
                         (unsigned long long)dims);
        }
        request->dim_count = (uint32_t)dims;
        for (uint32_t i = 0; i < request->dim_count; i++) {
            lua_geti(L, index, (lua_Integer)i + 1);
            request->shape[i] = check_dim(L, -1, what);
            lua_pop(L, 1);
        }
    } else {
        request->dim_count = 1;
        request->shape[0] = check_dim(L, index, what);
    }
    for (uint32_t i = 0; i < request->dim_count; i++) {
        is_too_large |= __builtin_mul_overflow(count, request->shape[i], &count);
    }
    set_count(L, what, is_too_large ? UINT64_MAX : count, request);
}

void gpu_lua_check_range(lua_State *L, int index, const struct buffer *buffer, const char *what,
                         uint64_t *first, uint64_t *count) {
    lua_Integer ends[2] = {1, (lua_Integer)buffer->elem_count};
    for (int i = 0; i < 2; i++) {
        int is_integer = 1;
        if (lua_isnoneornil(L, index + i)) {
            continue;
        }
        if (lua_type(L, index + i) == LUA_TNUMBER) {
            ends[i] = lua_tointegerx(L, index + i, &is_integer);
        }
        if (lua_type(L, index + i) != LUA_TNUMBER || !is_integer) {
            const char *got = lua_type(L, index + i) == LUA_TNUMBER
                                  ? lua_tostring(L, index + i)
                                  : gpu_lua_describe(L, index + i);
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "argument %d of %s: an index, a whole number, expected, got %s",
                         index + i - 1, what, got);
        }
    }
    if (ends[0] > ends[1] && ends[0] <= (lua_Integer)buffer->elem_count && ends[1] >= 1) {
        gpu_lua_fail(L, GPULUA_OUT_OF_BOUNDS,
                     "%s: element %lld, the first, comes after element %lld, the last", what,
                     (long long)ends[0], (long long)ends[1]);
    }
    if (ends[0] < 1 || ends[1] > (lua_Integer)buffer->elem_count || ends[0] > ends[1]) {
        uint64_t first_index = (uint64_t)ends[0], last_index = (uint64_t)ends[1];
        if (lua_isnoneornil(L, index + 1)) {
            gpu_lua_fail_range(L, NULL, (int64_t)(first_index - 1),
                               (int64_t)(last_index - first_index + 1), buffer->elem_count,
                               "%s: elements from %lld on are not within 1 to %llu", what,
                               (long long)ends[0], (unsigned long long)buffer->elem_count);
        }
        gpu_lua_fail_range(
            L, NULL, (int64_t)(first_index - 1), (int64_t)(last_index - first_index + 1),
            buffer->elem_count, "%s: elements %lld to %lld are not within 1 to %llu", what,
            (long long)ends[0], (long long)ends[1], (unsigned long long)buffer->elem_count);
    }
    *first = (uint64_t)ends[0] - 1;
    *count = (uint64_t)(ends[1] - ends[0]) + 1;
}

/* ---- making ---- */

/* In proportion: a cycle's bytes advance the collector by the size of Lua's heap, at most so much
 * at once. Handles that were closed since have been taken off the debt, so a program that closes
 * what it makes pays nothing. */
static void pay_debt(lua_State *L, struct gpulua *g, struct gpu_device *device, uint64_t bytes) {
    uint64_t cycle_bytes = gpu_device_budget_bytes(device) / GC_CYCLE_SHARE;
    cycle_bytes = cycle_bytes < GC_CYCLE_BYTES ? cycle_bytes : GC_CYCLE_BYTES;
    uint64_t debt = g->gc_debt_bytes;
    if (debt >= cycle_bytes / GC_STEPS && lua_gc(L, LUA_GCISRUNNING)) {
        uint64_t heap_kib = (uint64_t)lua_gc(L, LUA_GCCOUNT) + 1;
        debt = debt < cycle_bytes ? debt : cycle_bytes;
        g->gc_debt_bytes = 0;
        lua_gc(L, LUA_GCSTEP, (int)(heap_kib * (debt >> 9) / (cycle_bytes >> 9 | 1)) + 1);
    }
    g->gc_debt_bytes += bytes < GPU_LUA_BUFFER_BYTES_MIN ? GPU_LUA_BUFFER_BYTES_MIN : bytes;
}

static void forgive_debt(struct gpulua *g, uint64_t bytes) {
    bytes = bytes < GPU_LUA_BUFFER_BYTES_MIN ? GPU_LUA_BUFFER_BYTES_MIN : bytes;
    g->gc_debt_bytes -= bytes < g->gc_debt_bytes ? bytes : g->gc_debt_bytes;
}

/* What the runtime calls when memory is short: what is garbage may hold it. */
static void collect(void *caller) {
    struct gpu_lua_call *call = caller;
    lua_gc(call->L, LUA_GCCOLLECT);
}

/* In a capture, of the device's own memory: it has none before the capture ends. */
static bool is_temporary(lua_State *L, struct gpulua *g, struct gpu_device *device,
                         const struct buffer_request *request) {
    return !request->is_host && !request->memory && !request->reserved &&
           gpu_lua_capture_find(L, g, device);
}

static void create_block(lua_State *L, struct gpulua *g, struct gpu_device *device,
                         const struct buffer_request *request, struct gpu_block **block) {
    struct gpu_error error;
    struct gpu_lua_call call = {.L = L, .g = g, .error_ref = LUA_NOREF};
    struct gpu_block_info info = {
        .byte_count = request->byte_count,
        .label = request->label,
        .is_host = request->is_host,
        .keeping = request->keeping,
        .memory = request->reserved,
        .is_reserved = request->reserved != NULL,
        .collect = collect,
        .caller = &call,
    };
    pay_debt(L, g, device, request->byte_count);
    if (request->memory) {
        if (!info.memory) { /* a finaliser or a metamethod may have closed it */
            info.memory = request->memory->memory;
        }
        if (!info.memory) {
            gpu_lua_fail(L, GPULUA_CLOSED, "buffer: the memory was closed while it was made");
        }
        if (gpu_memory_find(info.memory, GPU_MEMORY_DRIVER)) {
            info.stream = gpu_lua_current_stream(L, g, device);
        }
    }
    gpu_lua_site(L, g, device, &info.site); /* who asks where the memory went asks later */
    if (request->reserved) {
        ++*request->drawn;
    }
    gpulua_status status = is_temporary(L, g, device, request)
                               ? gpu_block_create_temporary(device, &info, block, &error)
                               : gpu_block_create(device, &info, block, &error);
    if (status) {
        *block = NULL;
    }
    if (request->memory || g->pressed) {
        gpu_lua_memory_after(L, request->memory, &call, status ? &error : NULL);
    }
    if (status) {
        gpu_lua_throw(L, &error);
    }
}

/* What is made inside a capture belongs to its pool. `block` NULL: before it is made. */
static void keep_in_pool(lua_State *L, struct gpulua *g, struct gpu_device *device,
                         struct gpu_block *block) {
    struct gpu_error error;
    struct gpu_capture *capture = gpu_lua_capture_find(L, g, device);
    if (capture && gpu_capture_keep(capture, block, &error)) {
        gpu_lua_throw(L, &error);
    }
}

/* In the update of a graph: what was made at this place before. */
static struct gpu_block *made_before(lua_State *L, struct gpulua *g, struct gpu_device *device,
                                     const struct buffer_request *request) {
    struct gpu_capture *capture = gpu_lua_capture_find(L, g, device);
    return capture && !request->memory && !request->reserved
               ? gpu_capture_made_before(capture, request->byte_count, request->label,
                                         request->is_host)
               : NULL;
}

struct buffer *gpu_lua_buffer_make(lua_State *L, struct gpulua *g, struct gpu_device *device,
                                   const struct buffer_request *request) {
    struct buffer *buffer = gpu_lua_new(
        L, g, request->is_host ? GPU_LUA_KIND_HOST : GPU_LUA_KIND_BUFFER, sizeof *buffer, 0);
    buffer->ref.block = made_before(L, g, device, request);
    if (!buffer->ref.block) {
        keep_in_pool(L, g, device, NULL);
        create_block(L, g, device, request, &buffer->ref.block);
        keep_in_pool(L, g, device, buffer->ref.block);
    }
    buffer->is_owing = true;
    buffer->ref.byte_count = request->byte_count;
    buffer->ref.type = request->type;
    gpu_block_set_type(buffer->ref.block, request->type);
    buffer->elem_count = request->elem_count;
    buffer->elem_bytes = gpu_type_bytes(request->type);
    buffer->dim_count = request->dim_count;
    memcpy(buffer->shape, request->shape, sizeof buffer->shape);
    if (request->rebuild) {
        gpu_lua_note_rebuild(L, g, request->rebuild, buffer->ref.block);
    }
    return buffer;
}

/* What cannot be there again. */
static void check_keeping(lua_State *L, struct gpulua *g, const char *what,
                          struct gpu_device *device, const struct buffer_request *request) {
    const char *option = request->keeping == GPU_KEEP_PLACE ? "rebuild" : "durable";
    if (gpu_lua_capture_find(L, g, device)) {
        gpu_lua_fail(L, GPULUA_CAPTURE_ACTIVE,
                     "%s of %s: a buffer that is made in a capture is made anew with its graph",
                     option, what);
    }
    if (request->memory && request->memory->memory &&
        gpu_memory_find(request->memory->memory, GPU_MEMORY_GUARD)) {
        gpu_lua_fail(L, GPULUA_UNSUPPORTED,
                     "%s of %s: memory with a guard does not survive the loss of the device",
                     option, what);
    }
}

void gpu_lua_buffer_options(lua_State *L, struct gpulua *g, int index, const char *what,
                            struct gpu_device *device, struct buffer_request *request) {
    static const char *const options[] = {"label", "memory", "durable", "rebuild", NULL};
    if (lua_isnoneornil(L, index)) {
        return;
    }
    gpu_lua_check_options(L, index, options, what);
    request->keeping = gpu_lua_keeping(L, index, what);
    request->label = gpu_lua_push_field_string(L, index, "label", what);
    if (lua_getfield(L, index, "memory") != LUA_TNIL) {
        if (!gpu_lua_test(L, g, lua_gettop(L), GPU_LUA_KIND_MEMORY)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "memory of %s: what dev:memory has made expected, got %s", what,
                         gpu_lua_describe(L, lua_gettop(L)));
        }
        request->memory = gpu_lua_check_memory(L, g, lua_gettop(L));
        if (request->memory->device != device) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "memory of %s: it is of %s%s, the buffer of %s", what,
                         gpu_device_kin(request->memory->device, device),
                         gpu_device_title(request->memory->device), gpu_device_title(device));
        }
    }
    request->rebuild = request->keeping == GPU_KEEP_PLACE ? index : 0;
    if (request->keeping != GPU_KEEP_NOTHING) {
        check_keeping(L, g, what, device, request);
    }
}

/* dev:buffer(type, shape[, options]) -> buffer, with undefined contents. shape: n or {d1, d2, ...};
 * options: {label =, memory = what dev:memory gave, durable =, rebuild =}. InvalidArgument;
 * Unsupported; OutOfBudget, OutOfMemory, Capacity. Blocks only where memory is short. */
int gpu_lua_device_buffer(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    struct buffer_request request = {.type = gpu_lua_check_type(L, 2, "buffer")};
    lua_settop(L, 4);
    gpu_lua_check_shape(L, 3, "buffer", &request);
    gpu_lua_buffer_options(L, g, 4, "buffer", device, &request);
    gpu_lua_buffer_make(L, g, device, &request);
    return 1;
}

/* Options have no length. */
static bool is_table_of_data(lua_State *L, int index) {
    if (!lua_istable(L, index) || lua_rawlen(L, index) > 0) {
        return lua_istable(L, index);
    }
    bool has_length = luaL_getmetafield(L, index, "__len") != LUA_TNIL;
    lua_pop(L, has_length ? 1 : 0);
    return has_length;
}

/* Behind a shape: is there data at `index`, and not options, which come last? */
static bool is_data(lua_State *L, struct gpulua *g, int index) {
    return !lua_isnoneornil(L, index + 1) || lua_isfunction(L, index) ||
           lua_type(L, index) == LUA_TSTRING || is_table_of_data(L, index) ||
           gpu_lua_test(L, g, index, GPU_LUA_KIND_BUFFER) ||
           gpu_lua_test(L, g, index, GPU_LUA_KIND_HOST);
}

/* Of data that is no function: it has what the shape wants. */
static void check_count(lua_State *L, struct gpulua *g, int index,
                        const struct buffer_request *request) {
    uint64_t count, wanted = request->elem_count;
    const char *what = "buffer", *of = "elements";
    if (lua_istable(L, index)) {
        count = gpu_lua_table_count(L, index);
        what = "table";
    } else if (lua_type(L, index) == LUA_TSTRING) {
        count = lua_rawlen(L, index);
        wanted = request->byte_count;
        what = "string";
        of = "bytes";
    } else {
        count = gpu_lua_check_buffer(L, g, index)->elem_count;
    }
    if (count != wanted) {
        bool is_nested = lua_istable(L, index) &&
                         gpu_type_class(request->type) != GPU_CLASS_COMPLEX &&
                         lua_rawgeti(L, index, 1) == LUA_TTABLE;
        gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT,
                          is_nested ? GPU_LUA_FLAT_HINT : gpu_error_hint(GPULUA_INVALID_ARGUMENT),
                          "argument 3 of upload: a %s of %llu %s, where the shape has %llu", what,
                          (unsigned long long)count, of, (unsigned long long)wanted);
    }
}

/* dev:upload(type, data[, options]) -> buffer, or
 * dev:upload(type, shape, data[, options]) -> buffer. data: a table, a string, a buffer or, with a
 * shape, a function. InvalidArgument; InvalidData names the element; what dev:buffer raises. */
int gpu_lua_device_upload(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    struct buffer_request request = {.type = gpu_lua_check_type(L, 2, "upload"), .dim_count = 1};
    uint32_t elem_bytes = gpu_type_bytes(request.type);
    int data = 3;
    lua_settop(L, 5);
    int first = lua_type(L, 3);
    if (lua_isfunction(L, 4) ||
        ((first == LUA_TNUMBER || first == LUA_TTABLE) && is_data(L, g, 4))) {
        gpu_lua_check_shape(L, 3, "upload", &request);
        data = 4;
        if (!lua_isfunction(L, 4)) {
            check_count(L, g, 4, &request);
        }
    } else if (lua_type(L, 3) == LUA_TSTRING) {
        request.byte_count = lua_rawlen(L, 3);
        if (request.byte_count % elem_bytes != 0) {
            gpu_lua_fail(L, GPULUA_INVALID_DATA,
                         "argument 2 of upload: %llu bytes are not a whole number of %s elements",
                         (unsigned long long)request.byte_count, gpu_type_name(request.type));
        }
        request.elem_count = request.byte_count / elem_bytes;
    } else if (lua_istable(L, 3)) {
        set_count(L, "upload", gpu_lua_table_count(L, 3), &request);
    } else if (gpu_lua_test(L, g, 3, GPU_LUA_KIND_BUFFER) ||
               gpu_lua_test(L, g, 3, GPU_LUA_KIND_HOST)) {
        struct buffer *from = gpu_lua_check_buffer(L, g, 3);
        set_count(L, "upload", from->elem_count, &request);
        request.dim_count = from->dim_count;
        memcpy(request.shape, from->shape, sizeof request.shape);
    } else if (lua_type(L, 3) == LUA_TNUMBER) {
        gpu_lua_fail(
            L, GPULUA_INVALID_ARGUMENT,
            "argument 3 of upload: behind a number of elements a function that gives them, "
            "or a table, string or buffer with them expected, got %s",
            gpu_lua_describe(L, 4));
    } else {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 2 of upload: a table of numbers, a string of bytes, a buffer, or a "
                     "number of elements with a function expected, got %s",
                     gpu_lua_describe(L, 3));
    }
    if (request.elem_count == 0) {
        gpu_lua_fail(L, GPULUA_INVALID_DATA, "argument 2 of upload: it has no elements");
    }
    if (request.dim_count == 1) {
        request.shape[0] = request.elem_count;
    }
    gpu_lua_buffer_options(L, g, data + 1, "upload", device, &request);
    struct buffer *buffer = gpu_lua_buffer_make(L, g, device, &request);
    gpu_lua_buffer_put(L, g, buffer, 0, data);
    return 1;
}

/* Stack: the parent at 1. A range of it with another type or shape. */
static struct buffer *make_over(lua_State *L, struct gpulua *g, const struct buffer *parent) {
    struct buffer *buffer = gpu_lua_new(L, g, kind_of(L, g, 1), sizeof *buffer, 0);
    gpu_lua_buffer_check_open(L, parent); /* a finaliser may have closed it */
    buffer->ref.block = gpu_block_retain(parent->ref.block);
    buffer->ref.byte_offset = parent->ref.byte_offset;
    buffer->ref.byte_count = parent->ref.byte_count;
    buffer->ref.type = parent->ref.type;
    buffer->elem_bytes = parent->elem_bytes;
    return buffer;
}

/* buffer:view(type, shape) -> the same bytes as another type and shape */
static int buffer_view(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *parent = gpu_lua_check_buffer(L, g, 1);
    struct buffer_request request = {.type = parent->ref.type};
    gpu_lua_check_count(L, 2, "view", "a shape is a table: buffer:view(type, {rows, columns})");
    lua_settop(L, 3);
    if (!lua_isnil(L, 2)) {
        request.type = gpu_lua_check_type(L, 2, "view");
    }
    if (lua_isnil(L, 3)) {
        uint32_t elem_bytes = gpu_type_bytes(request.type);
        request.dim_count = 1;
        request.shape[0] = request.elem_count = parent->ref.byte_count / elem_bytes;
        request.byte_count = request.elem_count * elem_bytes;
    } else {
        gpu_lua_check_shape(L, 3, "view", &request);
        gpu_lua_buffer_check_open(L, parent); /* a metamethod of the shape may have closed it */
    }
    if (request.byte_count != parent->ref.byte_count) {
        gpu_lua_fail_range(
            L, "a view has all bytes of the buffer; buffer:slice(i, j) is a part of it", 0,
            (int64_t)request.byte_count, parent->ref.byte_count,
            "view: the buffer has %llu bytes, the type and shape asked for have %llu",
            (unsigned long long)parent->ref.byte_count, (unsigned long long)request.byte_count);
    }
    if (!gpu_ref_is_aligned(&parent->ref, gpu_type_bytes(request.type))) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "view: a slice that starts at byte %llu is not aligned for %s",
                     (unsigned long long)parent->ref.byte_offset, gpu_type_name(request.type));
    }
    struct buffer *view = make_over(L, g, parent);
    view->ref.type = request.type;
    view->elem_bytes = gpu_type_bytes(request.type);
    view->elem_count = request.elem_count;
    view->dim_count = request.dim_count;
    memcpy(view->shape, request.shape, sizeof view->shape);
    return 1;
}

/* buffer:slice(i, j) -> elements i to j, sharing the memory */
static int buffer_slice(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *parent = gpu_lua_check_buffer(L, g, 1);
    uint64_t first, count;
    gpu_lua_check_count(L, 2, "slice", "i and j are the first element and the last");
    lua_settop(L, 3);
    gpu_lua_check_range(L, 2, parent, "slice", &first, &count);
    struct buffer *slice = make_over(L, g, parent);
    slice->ref.byte_offset += first * parent->elem_bytes;
    slice->ref.byte_count = count * parent->elem_bytes;
    slice->elem_count = count;
    slice->dim_count = 1;
    slice->shape[0] = count;
    return 1;
}

/* ---- the end, and how it looks ---- */

/* Findings of check mode say where the memory was freed that they are about. */
static void note_end(lua_State *L, struct gpulua *g, struct gpu_block *block) {
    if (g->check && gpu_device_is_checked(gpu_block_device(block))) {
        struct gpu_site site;
        gpu_lua_site(L, g, gpu_block_device(block), &site);
        gpu_block_ends_at(block, &site);
    }
}

static void buffer_close(lua_State *L, struct gpulua *g, struct buffer *buffer) {
    struct gpu_block *block = buffer->ref.block;
    if (!block) {
        return;
    }
    buffer->ref.block = NULL;
    if (buffer->is_owing) {
        forgive_debt(g, buffer->ref.byte_count);
    }
    struct gpu_memory *guarded = g->guard_count > 0 ? gpu_block_memory(block) : NULL;
    if (guarded) {
        gpu_memory_retain(guarded);
    }
    note_end(L, g, block);
    gpu_block_close(block);
    if (guarded) {
        gpu_lua_memory_freed(L, guarded);
    }
    if (g->pressed) {
        gpu_lua_memory_tell(L, g);
    }
}

/* buffer:close(): ends the handle; the memory stays for others that share it, and for work in
 * flight. Raises what a guard finds. */
int gpu_lua_buffer_close(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *buffer = gpu_lua_test(L, g, 1, GPU_LUA_KIND_BUFFER);
    bool is_device = buffer != NULL;
    if (!buffer) {
        buffer = gpu_lua_test(L, g, 1, GPU_LUA_KIND_HOST);
    }
    bool is_host = buffer != NULL && !is_device;
    buffer = buffer ? buffer : gpu_lua_check(L, g, 1, GPU_LUA_KIND_BUFFER);
    if (!is_host && buffer->ref.block) {
        gpu_lua_keep_rebuild(L, 1, buffer);
        buffer->tag.metatable = NULL;
        gpu_lua_buffer_unfinalize(L, g, 1);
    }
    buffer_close(L, g, buffer);
    return 0;
}

void gpu_lua_buffer_undo(struct gpulua *g, struct buffer *buffer) {
    struct gpu_block *block = buffer->ref.block;
    if (block) {
        buffer->ref.block = NULL;
        forgive_debt(g, buffer->ref.byte_count);
        gpu_block_close(block);
    }
}

int gpu_lua_buffer_gc(lua_State *L) {
    struct buffer *buffer = lua_touserdata(L, 1);
    struct gpu_block *block = buffer->ref.block;
    gpu_lua_keep_rebuild(L, 1, buffer);
    buffer->tag.metatable = NULL;
    buffer->ref.block = NULL;
    gpu_block_release(block);
    return 0;
}

/* buffer:free(): ends the memory for every handle of it */
int gpu_lua_buffer_free(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *buffer = gpu_lua_check_buffer(L, g, 1);
    gpu_lua_check_eager(L, g, gpu_block_device(buffer->ref.block), "free");
    struct gpu_memory *guarded = g->guard_count > 0 ? gpu_block_memory(buffer->ref.block) : NULL;
    note_end(L, g, buffer->ref.block);
    gpu_block_free(buffer->ref.block);
    if (guarded) {
        gpu_lua_memory_freed(L, gpu_memory_retain(guarded));
    }
    if (g->pressed) {
        gpu_lua_memory_tell(L, g);
    }
    return 0;
}

int gpu_lua_buffer_len(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_pushinteger(L, (lua_Integer)gpu_lua_check_buffer(L, g, 1)->elem_count);
    return 1;
}

int gpu_lua_buffer_tostring(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    bool is_host = kind_of(L, g, 1) == GPU_LUA_KIND_HOST;
    struct buffer *buffer =
        gpu_lua_check(L, g, 1, is_host ? GPU_LUA_KIND_HOST : GPU_LUA_KIND_BUFFER);
    const char *name = is_host ? "gpulua.host buffer" : "gpulua.buffer";
    if (!buffer->ref.block) {
        lua_pushfstring(L, "%s (closed)", name);
        return 1;
    }
    char shape[GPU_LUA_DIMS_MAX * 21 + 1] = ""; /* one push: a finaliser runs behind it */
    size_t length = 0;
    for (uint32_t i = 0; i < buffer->dim_count; i++) {
        length += (size_t)snprintf(shape + length, sizeof shape - length, "%s%llu", i ? "," : "",
                                   (unsigned long long)buffer->shape[i]);
    }
    const char *label = gpu_block_label(buffer->ref.block);
    lua_pushfstring(L, "%s %s[%s]%s on %s%s%s%s", name, gpu_type_name(buffer->ref.type), shape,
                    gpu_block_is_stale(buffer->ref.block)   ? " (stale)"
                    : gpu_block_is_freed(buffer->ref.block) ? " (freed)"
                                                            : "",
                    gpu_device_name(gpu_block_device(buffer->ref.block)), label[0] ? " (" : "",
                    label, label[0] ? ")" : "");
    return 1;
}

bool gpu_lua_buffer_field(lua_State *L, struct gpulua *g, const struct buffer *buffer,
                          const char *field) {
    if (strcmp(field, "type") == 0) {
        lua_pushstring(L, gpu_type_name(buffer->ref.type));
    } else if (strcmp(field, "shape") == 0) {
        lua_createtable(L, (int)buffer->dim_count, 0);
        for (uint32_t i = 0; i < buffer->dim_count; i++) {
            lua_pushinteger(L, (lua_Integer)buffer->shape[i]);
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
    } else if (strcmp(field, "label") == 0) {
        lua_pushstring(L, gpu_block_label(buffer->ref.block));
    } else if (strcmp(field, "device") == 0) {
        gpu_lua_push_device(L, g, gpu_block_device(buffer->ref.block));
    } else {
        return false;
    }
    return true;
}

int gpu_lua_buffer_index_field(lua_State *L, struct gpulua *g, struct buffer *buffer) {
    if (!buffer->ref.block) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed buffer");
    }
    if (lua_type(L, 2) != LUA_TSTRING || !gpu_lua_buffer_field(L, g, buffer, lua_tostring(L, 2))) {
        lua_pushnil(L);
    }
    return 1;
}

static _Noreturn void not_indexed(lua_State *L, const char *hint) {
    gpu_lua_fail_hint(
        L, GPULUA_INVALID_ARGUMENT, hint,
        "a buffer of a device is not indexed by numbers: its memory is not the script's");
}

static int buffer_index(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    struct buffer *buffer = gpu_lua_check(L, g, 1, GPU_LUA_KIND_BUFFER);
    if (lua_type(L, 2) == LUA_TNUMBER) {
        not_indexed(L, "read it with buffer:read(i, i)[1]; a host buffer (dev:host) has elements");
    }
    return gpu_lua_buffer_index_field(L, g, buffer);
}

static int buffer_newindex(lua_State *L) {
    gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_BUFFER);
    if (lua_type(L, 2) == LUA_TNUMBER) {
        not_indexed(
            L, "write it with buffer:write({value}, i); a host buffer (dev:host) has elements");
    }
    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "the fields of a buffer cannot be set: %s",
                 lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : luaL_typename(L, 2));
}

void gpu_lua_buffer_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"fill", gpu_lua_buffer_fill},
                                       {"write", gpu_lua_buffer_write},
                                       {"copy", gpu_lua_buffer_copy},
                                       {"read", gpu_lua_buffer_read},
                                       {"bytes", gpu_lua_buffer_bytes},
                                       {"view", buffer_view},
                                       {"slice", buffer_slice},
                                       {"await", gpu_lua_await},
                                       {"join", gpu_lua_join},
                                       {"done", gpu_lua_done},
                                       {"close", gpu_lua_buffer_close},
                                       {"free", gpu_lua_buffer_free},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", gpu_lua_buffer_gc},
                                           {"__close", gpu_lua_buffer_close},
                                           {"__len", gpu_lua_buffer_len},
                                           {"__tostring", gpu_lua_buffer_tostring},
                                           {"__index", buffer_index},
                                           {"__newindex", buffer_newindex},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_BUFFER, methods, metamethods);
}
