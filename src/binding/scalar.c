/* Scalars: one element on the device that the script sets between launches, for kernels that take a
 * pointer to it. The value travels in the record of a fill, so that setting one waits for nothing
 * and needs no memory of the host's. */
#include "binding/scalar.h"

#include <string.h>

#include "binding/buffer.h"
#include "binding/core.h"
#include "binding/data.h"
#include "binding/device.h"
#include "binding/graph.h"

/* User value 1: its buffer. */
struct scalar_handle {
    struct buffer *buffer; /* borrowed from the user value */
};

struct buffer *gpu_lua_scalar_test(lua_State *L, struct gpulua *g, int index) {
    struct scalar_handle *handle = gpu_lua_test(L, g, index, GPU_LUA_KIND_SCALAR);
    return handle ? handle->buffer : NULL;
}

static struct buffer *check_scalar(lua_State *L, struct gpulua *g) {
    struct scalar_handle *handle = gpu_lua_check(L, g, 1, GPU_LUA_KIND_SCALAR);
    if (!handle->buffer || !handle->buffer->ref.block) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed scalar");
    }
    gpu_lua_buffer_check_open(L, handle->buffer);
    return handle->buffer;
}

static void set(lua_State *L, struct gpulua *g, struct buffer *buffer, int at, const char *what) {
    uint8_t element[16] = {0};
    const char *reason = gpu_lua_to_element(L, at, buffer->ref.type, element);
    gpu_lua_buffer_check_open(L, buffer); /* a metamethod may have closed it */
    struct gpu_device *device = gpu_block_device(buffer->ref.block);
    if (reason) {
        gpu_lua_bad_value(L, at, buffer->ref.type, reason, what);
    }
    (void)gpu_lua_capture_find(L, g, device); /* of one that is over it is refused */
    struct gpu_submit submit = {.stream = gpu_lua_current_stream(L, g, device), .label = "set"};
    struct gpu_error error;
    gpu_lua_site(L, g, device, &submit.site);
    if (gpu_work_fill(&submit, &buffer->ref, element, NULL, &error)) {
        gpu_lua_throw(L, &error);
    }
}

/* Pushes a scalar over the buffer on top of the stack, which has one element. */
static void push_scalar(lua_State *L, struct gpulua *g, struct buffer *buffer) {
    struct scalar_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_SCALAR, sizeof *handle, 1);
    lua_pushvalue(L, -2);
    lua_setiuservalue(L, -2, 1);
    handle->buffer = buffer;
}

/* core.scalar_of(buffer of one element) -> a scalar, which has the buffer's memory and whatever
 * value is there. */
int gpu_lua_scalar_of(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *buffer = gpu_lua_check(L, g, 1, GPU_LUA_KIND_BUFFER);
    gpu_lua_buffer_check_open(L, buffer);
    if (buffer->elem_count != 1) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "a scalar of %llu elements",
                     (unsigned long long)buffer->elem_count);
    }
    lua_settop(L, 1);
    push_scalar(L, g, buffer);
    return 1;
}

/* dev:scalar(type, value[, {label=}]) -> scalar */
int gpu_lua_device_scalar(lua_State *L) {
    static const char *const options[] = {"label", NULL};
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    struct buffer_request request = {
        .type = gpu_lua_check_type(L, 2, "scalar"), .dim_count = 1, .shape = {1}, .elem_count = 1};
    gpu_lua_check_eager(L, g, device, "a new scalar");
    lua_settop(L, 4);
    gpu_lua_check_options(L, 4, options, "scalar");
    request.label = gpu_lua_push_field_string(L, 4, "label", "scalar");
    request.byte_count = gpu_type_bytes(request.type);
    request.keeping = GPU_KEEP_CONTENT;
    struct buffer *buffer = gpu_lua_buffer_make(L, g, device, &request);
    set(L, g, buffer, 3, "value of scalar");
    push_scalar(L, g, buffer);
    return 1;
}

/* scalar:set(value) -> the scalar. In the order of the current stream, behind all that reads the
 * value before. CaptureActive. Blocks only while too much is in flight. */
static int scalar_set(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *buffer = check_scalar(L, g);
    if (gpu_lua_is_captured(g, gpu_block_device(buffer->ref.block))) {
        gpu_lua_fail_hint(L, GPULUA_CAPTURE_ACTIVE,
                          "set it before the launch: a graph reads the value that is there then",
                          "set of a scalar cannot be captured");
    }
    lua_settop(L, 2);
    set(L, g, buffer, 2, "value of set");
    lua_settop(L, 1);
    return 1;
}

/* scalar:get() -> table with the value, which init.lua takes out. Waits for what writes it; yields
 * in a task. */
static int scalar_get(lua_State *L) {
    (void)check_scalar(L, GPU_LUA(L));
    lua_settop(L, 1);
    lua_getiuservalue(L, 1, 1);
    lua_replace(L, 1);
    return gpu_lua_buffer_read(L);
}

/* scalar:close(): ends the handle; work in flight keeps the memory. */
static int scalar_close(lua_State *L) {
    (void)gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_SCALAR);
    lua_settop(L, 1);
    lua_getiuservalue(L, 1, 1);
    lua_replace(L, 1);
    return lua_isnil(L, 1) ? 0 : gpu_lua_buffer_close(L);
}

static int scalar_tostring(lua_State *L) {
    struct scalar_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_SCALAR);
    if (!handle->buffer || !handle->buffer->ref.block) {
        lua_pushliteral(L, "gpulua.scalar (closed)");
        return 1;
    }
    const struct gpu_block *block = handle->buffer->ref.block;
    const char *label = gpu_block_label(block);
    lua_pushfstring(L, "gpulua.scalar %s on %s%s%s%s", gpu_type_name(handle->buffer->ref.type),
                    gpu_device_name(gpu_block_device(block)), label[0] ? " (" : "", label,
                    label[0] ? ")" : "");
    return 1;
}

bool gpu_lua_scalar_is_closed(const void *handle) {
    const struct scalar_handle *scalar = handle;
    return !scalar->buffer || !scalar->buffer->ref.block;
}

/* scalar.type, scalar.device, scalar.label. Upvalues: the object, the methods. */
static int scalar_index(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    const char *field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (strcmp(field, "shape") == 0 || !gpu_lua_buffer_field(L, g, check_scalar(L, g), field)) {
        lua_pushnil(L);
    }
    return 1;
}

void gpu_lua_scalar_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {
        {"set", scalar_set}, {"get", scalar_get}, {"close", scalar_close}, {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__close", scalar_close},
                                           {"__tostring", scalar_tostring},
                                           {"__index", scalar_index},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_SCALAR, methods, metamethods);
}
