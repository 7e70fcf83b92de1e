/* Host buffers: pinned memory that this process and the executor share. */
#include <string.h>

#include "binding/buffer.h"
#include "binding/check.h"
#include "binding/core.h"
#include "binding/data.h"
#include "binding/device.h"
#include "binding/graph.h"

/* dev:host(type, shape[, options]) -> host buffer of zeros. shape: n or {d1, d2, ...}; options:
 * {label =}. InvalidArgument; OutOfMemory, Capacity. Does not block. */
int gpu_lua_device_host(lua_State *L) {
    static const char *const options[] = {"label", NULL};
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_refuse_in_sandbox(L, g, "host buffers");
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    struct buffer_request request = {.type = gpu_lua_check_type(L, 2, "host"), .is_host = true};
    lua_settop(L, 4);
    gpu_lua_check_shape(L, 3, "host", &request);
    gpu_lua_check_options(L, 4, options, "host");
    request.label = gpu_lua_push_field_string(L, 4, "label", "host");
    struct buffer *buffer = gpu_lua_buffer_make(L, g, device, &request);
    gpu_lua_buffer_check_open(L, buffer); /* of a device that a listener may have closed */
    /* New memory may have been somebody else's: what the script sees starts as zeros. */
    memset(gpu_lua_host_bytes(buffer), 0, request.byte_count);
    return 1;
}

/* Where the element is that the key at 2 names, in bytes. */
static uint64_t offset_at(lua_State *L, const struct buffer *buffer) {
    int is_integer;
    lua_Integer i = lua_tointegerx(L, 2, &is_integer);
    if (!is_integer) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "the index of a host buffer is not a whole number: %s", lua_tostring(L, 2));
    }
    if (i < 1 || i > (lua_Integer)buffer->elem_count) {
        gpu_lua_fail_range(L, NULL, (int64_t)((uint64_t)i - 1), 1, buffer->elem_count,
                           "index %lld is not within 1 to %llu", (long long)i,
                           (unsigned long long)buffer->elem_count);
    }
    return (uint64_t)(i - 1) * buffer->elem_bytes;
}

/* Stack: buffer, index. */
static int get_ready(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    lua_settop(L, 2);
    struct buffer *buffer = gpu_lua_check_buffer(L, g, 1);
    uint64_t offset = offset_at(L, buffer);
    gpu_lua_check_eager(L, g, gpu_block_device(buffer->ref.block), "reading a host buffer");
    if (status == LUA_OK) {
        gpu_lua_check_touch(g, L, &buffer->ref, offset, buffer->elem_bytes, false,
                            "host_buffer[i]");
    }
    if (!gpu_ref_is_idle(&buffer->ref, false)) {
        gpu_lua_wait_idle(L, g, buffer, false, get_ready);
        gpu_lua_check_contents(L, buffer);
    } else if (gpu_ref_failure(&buffer->ref, NULL)) {
        gpu_lua_check_contents(L, buffer);
    }
    uint8_t element[16]; /* a complex one allocates */
    memcpy(element, gpu_lua_host_bytes(buffer) + offset, buffer->elem_bytes);
    gpu_lua_check_read(g, L, &buffer->ref, element, buffer->elem_bytes);
    gpu_lua_push_element(L, buffer->ref.type, element);
    return 1;
}

static int host_index(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    if (lua_type(L, 2) == LUA_TNUMBER) {
        gpu_lua_check(L, g, 1, GPU_LUA_KIND_HOST);
        return get_ready(L, LUA_OK, 0);
    }
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    return gpu_lua_buffer_index_field(L, g, gpu_lua_check(L, g, 1, GPU_LUA_KIND_HOST));
}

/* Stack: buffer, index, value. */
static int set_ready(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    uint8_t value[16];
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    lua_settop(L, 3);
    struct buffer *buffer = gpu_lua_buffer_at(L, g, 1);
    /* First: a metamethod of the value's may close the buffer. */
    const char *reason = gpu_lua_to_element(L, 3, buffer->ref.type, value);
    gpu_lua_buffer_check_open(L, buffer);
    uint64_t offset = offset_at(L, buffer);
    if (reason) {
        gpu_lua_bad_element(L, 3, (uint64_t)lua_tointeger(L, 2), buffer->ref.type, reason);
    }
    if (status == LUA_OK) {
        gpu_lua_check_touch(g, L, &buffer->ref, offset, buffer->elem_bytes, true, "host_buffer[i]");
    }
    gpu_lua_wait_idle(L, g, buffer, true, set_ready);
    memcpy(gpu_lua_host_bytes(buffer) + offset, value, buffer->elem_bytes);
    return 0;
}

static int host_newindex(lua_State *L) {
    gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_HOST);
    if (lua_type(L, 2) != LUA_TNUMBER) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "the index of a host buffer is a whole number, got %s", luaL_typename(L, 2));
    }
    return set_ready(L, LUA_OK, 0);
}

void gpu_lua_host_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"fill", gpu_lua_buffer_fill},
                                       {"write", gpu_lua_buffer_write},
                                       {"copy", gpu_lua_buffer_copy},
                                       {"read", gpu_lua_buffer_read},
                                       {"bytes", gpu_lua_buffer_bytes},
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
                                           {"__index", host_index},
                                           {"__newindex", host_newindex},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_HOST, methods, metamethods);
}
