/* Buffers as hosts hold them. */
#include <stdlib.h>
#include <string.h>

#include "binding/device.h"
#include "binding/graph.h"
#include "binding/memory.h"
#include "host/handle.h"
#include "host/structs.h"
#include "runtime/exchange.h"

_Static_assert(GPULUA_DIMS_MAX == GPU_LUA_DIMS_MAX, "what the host sees");

/* ---- calling ---- */

struct gpulua *gpu_host_find(lua_State *L, gpulua_status *status) {
    if (!lua_checkstack(L, GPU_HOST_STACK)) {
        *status = GPULUA_OUT_OF_MEMORY;
        return NULL;
    }
    struct gpulua *g = gpu_lua_find(L);
    if (!g) {
        *status = GPULUA_INVALID_ARGUMENT; /* there is nobody to keep a message */
    } else if (g->is_closed) {
        *status = gpu_lua_keep_error(g, GPULUA_CLOSED, "the object is closed");
        g = NULL;
    }
    return g;
}

static const char nothing; /* its address: what a host has given no index of */

void gpu_host_push(lua_State *L, int index) {
    if (index == 0) {
        lua_pushlightuserdata(L, (void *)(uintptr_t)&nothing);
    } else {
        lua_pushvalue(L, index);
    }
}

bool gpu_host_is_given(lua_State *L, int index) {
    if (lua_isnil(L, index)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "there is nil at an index: a handle expected, or index 0 for the default");
    }
    return lua_touserdata(L, index) != &nothing;
}

gpulua_status gpu_host_call(struct gpulua *g, lua_State *L, lua_CFunction function, void *request,
                            int index) {
    index = index == 0 ? 0 : lua_absindex(L, index);
    lua_pushcfunction(L, function);
    lua_pushlightuserdata(L, request);
    gpu_host_push(L, index);
    return lua_pcall(L, 2, 0, 0) == LUA_OK ? GPULUA_OK : gpu_lua_keep_raised(g, L);
}

struct gpu_device *gpu_host_device(lua_State *L, struct gpulua *g, int index) {
    if (!gpu_host_is_given(L, index)) {
        gpu_lua_push_function(L, gpu_lua_device_get);
        lua_call(L, 0, 1);
        lua_replace(L, index);
    }
    return gpu_lua_check_device(L, g, index, NULL);
}

/* ---- handles ---- */

static void buffer_empty(struct host_handle *handle) {
    struct gpulua_buffer *buffer = (struct gpulua_buffer *)handle;
    gpu_ref_close(buffer->device, &buffer->ref);
}

static void buffer_destroy(struct host_handle *handle) {
    struct gpulua_buffer *buffer = (struct gpulua_buffer *)handle;
    gpu_device_release(buffer->device);
    free(buffer);
}

struct gpulua_buffer *gpu_host_buffer_create(struct gpulua *g, const struct gpu_ref *ref,
                                             uint32_t dim_count, const uint64_t *shape) {
    struct gpulua_buffer *made = calloc(1, sizeof *made);
    if (!made) {
        return NULL;
    }
    struct gpu_device *device = gpu_block_device(ref->block);
    const char *ordinal = strchr(gpu_device_name(device), ':');
    made->g = g;
    made->device = gpu_device_retain(device);
    gpu_ref_copy(device, ref, &made->ref);
    made->elem_count = ref->byte_count / gpu_type_bytes(ref->type);
    made->dim_count = dim_count;
    memcpy(made->shape, shape, dim_count * sizeof *shape);
    made->is_host = gpu_block_is_host(ref->block);
    made->is_foreign = gpu_block_is_foreign(ref->block);
    strncpy(made->device_kind, gpu_device_kind(device), sizeof made->device_kind - 1);
    made->device_ordinal = ordinal ? (int)strtol(ordinal + 1, NULL, 10) : 0;
    strncpy(made->label, gpu_block_label(ref->block), sizeof made->label - 1);
    gpu_lua_host_handle_add(g, &made->handle, buffer_empty, buffer_destroy);
    return made;
}

struct gpulua_buffer *gpu_host_buffer_of(struct gpulua *g, const struct buffer *buffer) {
    return gpu_host_buffer_create(g, &buffer->ref, buffer->dim_count, buffer->shape);
}

gpulua_status gpu_host_check(struct gpulua *g, const struct gpulua_buffer *buffer,
                             const char *what) {
    struct gpu_error error = {0};
    gpu_lua_sit(g);
    if (buffer->g != g) { /* and perhaps to another thread */
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT,
                                  "the buffer belongs to another gpulua object");
    }
    return gpu_ref_check(&buffer->ref, NULL, what, &error) ? gpu_lua_keep_failure(g, &error)
                                                           : GPULUA_OK;
}

/* ---- public ---- */

static int to_buffer(lua_State *L) {
    struct gpulua_buffer **made = lua_touserdata(L, 1);
    struct gpulua *g = gpu_lua_find(L);
    *made = gpu_host_buffer_of(g, gpu_lua_check_buffer(L, g, 2));
    if (!*made) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for a buffer's handle");
    }
    return 0;
}

gpulua_status gpulua_to_buffer(lua_State *L, int index, gpulua_buffer **buffer) {
    gpulua_status status = GPULUA_OK;
    *buffer = NULL;
    struct gpulua *g = gpu_host_find(L, &status);
    return g ? gpu_host_call(g, L, to_buffer, buffer, index) : status;
}

struct new_request {
    const gpulua_buffer_info *info;
    struct gpulua_buffer *made;
};

/* As scripts make one: dev:buffer(type, shape, {label = label}), or mem:buffer. */
static int new_buffer(lua_State *L) {
    struct new_request *request = lua_touserdata(L, 1);
    const gpulua_buffer_info *info = request->info;
    struct gpulua *g = gpu_lua_find(L);
    lua_CFunction make = info->is_host ? gpu_lua_device_host : gpu_lua_device_buffer;
    if (!info->is_host && gpu_lua_test(L, g, 2, GPU_LUA_KIND_MEMORY)) {
        make = gpu_lua_memory_buffer;
    } else {
        (void)gpu_host_device(L, g, 2);
    }
    gpu_lua_push_function(L, make);
    lua_pushvalue(L, 2);
    lua_pushstring(L, info->type);
    lua_createtable(L, info->dim_count, 0);
    for (int i = 0; i < info->dim_count; i++) {
        lua_pushinteger(L, (lua_Integer)info->shape[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_createtable(L, 0, 1);
    lua_pushstring(L, info->label);
    lua_setfield(L, -2, "label");
    lua_call(L, 4, 1);
    request->made = gpu_host_buffer_of(g, gpu_lua_check_buffer(L, g, -1));
    lua_insert(L, 1);
    gpu_lua_push_function(L, gpu_lua_buffer_close); /* its handle; the memory is held */
    lua_insert(L, 1);
    lua_settop(L, 2);
    lua_call(L, 1, 0);
    if (!request->made) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no host memory for a buffer's handle");
    }
    return 0;
}

gpulua_status gpulua_buffer_new(lua_State *L, int device_index, const gpulua_buffer_info *given,
                                gpulua_buffer **buffer) {
    gpulua_status status = GPULUA_OK;
    gpulua_buffer_info info;
    struct gpu_error error;
    *buffer = NULL;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    if (gpu_host_take_buffer_info(given, &info, &error)) {
        return gpu_lua_keep_failure(g, &error);
    }
    if (info.dim_count < 1 || info.dim_count > GPULUA_DIMS_MAX) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT, "a buffer has 1 to 8 dimensions");
    }
    struct new_request request = {.info = &info};
    status = gpu_host_call(g, L, new_buffer, &request, device_index);
    if (status) {
        gpulua_buffer_release(request.made);
        return status;
    }
    *buffer = request.made;
    return GPULUA_OK;
}

/* The device, which another object may have opened that this one shares it with. */
static void open_shared(lua_State *L, struct gpulua *g, const struct gpulua_buffer *buffer) {
    struct gpulua_device *shared = g->config.shared_device;
    if (shared && shared->device == buffer->device && !gpu_lua_find_device(g, buffer->device)) {
        gpu_lua_push_function(L, gpu_lua_device_get);
        lua_call(L, 0, 0);
    }
}

static int push_buffer(lua_State *L) {
    const struct gpulua_buffer *from = lua_touserdata(L, 1);
    struct gpulua *g = gpu_lua_find(L);
    open_shared(L, g, from);
    if (from->g != g && !gpu_lua_find_device(g, from->device)) { /* before anything is counted */
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "the buffer belongs to another gpulua object");
    }
    if (from->g != g && from->is_host) {
        gpu_lua_fail(L, GPULUA_UNSUPPORTED,
                     "a host buffer is of one object: nobody orders what two threads do with its "
                     "elements");
    }
    struct buffer *buffer = gpu_lua_new(
        L, g, from->is_host ? GPU_LUA_KIND_HOST : GPU_LUA_KIND_BUFFER, sizeof *buffer, 0);
    gpu_ref_copy(from->device, &from->ref, &buffer->ref);
    struct gpu_error error = {0};
    if (gpu_ref_check(&buffer->ref, NULL, "push", &error)) {
        gpu_lua_throw(L, &error);
    }
    buffer->elem_count = from->elem_count;
    buffer->elem_bytes = gpu_type_bytes(from->ref.type);
    buffer->dim_count = from->dim_count;
    memcpy(buffer->shape, from->shape, sizeof buffer->shape);
    return 1;
}

gpulua_status gpulua_push_buffer(lua_State *L, gpulua_buffer *buffer) {
    gpulua_status status = GPULUA_OK;
    struct gpulua *g = gpu_host_find(L, &status);
    if (!g) {
        return status;
    }
    lua_pushcfunction(L, push_buffer);
    lua_pushlightuserdata(L, buffer);
    return lua_pcall(L, 1, 1, 0) == LUA_OK ? GPULUA_OK : gpu_lua_keep_raised(g, L);
}

void gpulua_buffer_describe_sized(const gpulua_buffer *buffer, gpulua_buffer_info *info,
                                  size_t struct_bytes) {
    struct gpu_error ignored = {0};
    gpulua_buffer_info answer = {0};
    if (buffer->ref.block) { /* not emptied: its object is there */
        gpu_lua_sit(buffer->g);
    }
    answer.type = gpu_type_name(buffer->ref.type);
    answer.dim_count = (int)buffer->dim_count;
    for (uint32_t i = 0; i < buffer->dim_count; i++) {
        answer.shape[i] = (int64_t)buffer->shape[i];
    }
    answer.label = buffer->label[0] ? buffer->label : NULL;
    answer.is_host = buffer->is_host;
    answer.device_kind = buffer->device_kind;
    answer.device_ordinal = buffer->device_ordinal;
    answer.elem_count = buffer->elem_count;
    answer.byte_count = buffer->ref.byte_count;
    answer.is_external = buffer->is_foreign;
    answer.is_read_only = buffer->ref.block && gpu_block_is_read_only(buffer->ref.block);
    answer.is_usable = gpu_ref_check(&buffer->ref, NULL, "describe", &ignored) == GPULUA_OK;
    gpu_error_finish(&ignored);
    gpu_host_answer(&answer, sizeof answer, info, struct_bytes);
}

gpulua_status gpulua_buffer_map(gpulua *g, gpulua_buffer *buffer, gpulua_access access,
                                void **bytes) {
    struct gpu_error error = {0};
    uint64_t address = 0;
    *bytes = NULL;
    gpulua_status status = gpu_host_check(g, buffer, "map");
    if (status) {
        return status;
    }
    if (access < GPULUA_READ || access > GPULUA_READ_WRITE) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT,
                                  "map: an access (read, write or both) expected");
    }
    if (gpu_lua_is_captured(g, buffer->device)) {
        return gpu_lua_keep_error(
            g, GPULUA_CAPTURE_ACTIVE,
            "map: what is captured is not done, so nothing can be waited for");
    }
    if ((access & GPULUA_WRITE) && gpu_block_is_read_only(buffer->ref.block)) {
        return gpu_lua_keep_error(g, GPULUA_INVALID_ARGUMENT,
                                  "map: external memory that its owner gave to be read only");
    }
    if (!buffer->is_host && strcmp(buffer->device_kind, "cpu") != 0) {
        return gpu_lua_keep_error(g, GPULUA_UNSUPPORTED,
                                  "map: the memory of a GPU is not the host's: copy it into a host "
                                  "buffer (dev:host)");
    }
    status = gpu_ref_address(&buffer->ref, &address, &error);
    if (status == GPULUA_OK) {
        status = gpu_ref_wait(&buffer->ref, access & GPULUA_WRITE, &error);
    }
    if (status) {
        return gpu_lua_keep_failure(g, &error);
    }
    if (access & GPULUA_WRITE) {
        gpu_ref_written(&buffer->ref);
    }
    *bytes = (void *)(uintptr_t)address;
    return GPULUA_OK;
}

gpulua_buffer *gpulua_buffer_retain(gpulua_buffer *buffer) {
    gpu_lua_host_handle_retain(&buffer->handle);
    return buffer;
}

void gpulua_buffer_release(gpulua_buffer *buffer) {
    if (buffer) {
        gpu_lua_host_handle_release(&buffer->handle);
    }
}
