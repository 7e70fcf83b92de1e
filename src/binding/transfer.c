/* Moving data in and out of buffers and host buffers.
 *
 * To a device: elements are converted into staging memory, at most GPU_STAGING_CHUNK_BYTES at a
 * time, and uploaded behind what is in flight; the call does not wait. From a device: a chunk is
 * downloaded, waited for and converted, then the next. Host buffers are memory that both sides see:
 * they are read and written in place once nothing in flight touches them.
 *
 * Code of the script's may close a buffer or its device in the middle of a call: a metamethod or
 * function of the data's, a finaliser wherever Lua allocates, another task while this one is
 * parked. So what may run it comes first; then the buffer is checked (again), and only then its
 * block is looked at. submit_for and the operation behind it run nothing of the script's. */
#include <string.h>

#include "binding/buffer.h"
#include "binding/check.h"
#include "binding/core.h"
#include "binding/data.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/stream.h"

/* Staging memory of one transfer, to be closed, so that an error in the middle gives it back. */
struct transfer {
    struct gpu_device *device; /* retained */
    struct gpu_staging staging;
    bool has_staging;
    uint32_t naps;         /* for want of staging memory */
    uint64_t first, count; /* elements of the buffer, from 0 */
    uint64_t position;     /* done so far */
    uint64_t chunk;        /* elements in flight */
};

static void transfer_end(struct transfer *transfer) {
    if (transfer->has_staging) {
        transfer->has_staging = false;
        gpu_staging_release(transfer->device, &transfer->staging);
    }
    if (transfer->device) {
        struct gpu_device *device = transfer->device;
        transfer->device = NULL;
        gpu_device_release(device);
    }
}

static int transfer_gc(lua_State *L) {
    transfer_end(lua_touserdata(L, 1));
    return 0;
}

/* Pushes it, to be closed; the buffer is usable then. */
static struct transfer *transfer_new(lua_State *L, struct gpulua *g, const struct buffer *buffer,
                                     uint64_t first, uint64_t count) {
    struct transfer *transfer = gpu_lua_new(L, g, GPU_LUA_KIND_STAGING, sizeof *transfer, 0);
    gpu_lua_buffer_check_open(L, buffer);
    transfer->device = gpu_device_retain(gpu_block_device(buffer->ref.block));
    transfer->first = first;
    transfer->count = count;
    lua_toclose(L, -1);
    return transfer;
}

#define STAGING_NAP_NS 1000000
#define STAGING_NAPS 100     /* until the collector looks who holds it */
#define HOST_PART_BYTES 4096 /* so much of a host buffer goes into a table at once */

static uint64_t chunk_elems(const struct buffer *buffer) {
    return GPU_STAGING_CHUNK_BYTES / buffer->elem_bytes;
}

/* It may run finalisers. */
static void staging_take(lua_State *L, struct transfer *transfer, uint64_t byte_count) {
    struct gpu_error error;
    gpulua_status status =
        gpu_staging_acquire(transfer->device, byte_count, &transfer->staging, &error);
    if (status == GPULUA_CAPACITY) {
        /* Perhaps coroutines that nobody resumes any more hold it. */
        gpu_error_finish(&error);
        lua_gc(L, LUA_GCCOLLECT);
        status = gpu_staging_acquire(transfer->device, byte_count, &transfer->staging, &error);
    }
    if (status) {
        gpu_lua_throw(L, &error);
    }
    transfer->has_staging = true;
}

static void staging_give(struct transfer *transfer) {
    transfer->has_staging = false;
    gpu_staging_release(transfer->device, &transfer->staging);
}

/* ---- idle blocks ---- */

void gpu_lua_wait_idle(lua_State *L, struct gpulua *g, const struct buffer *buffer, bool for_write,
                       lua_KFunction k) {
    gpu_lua_check_eager(L, g, gpu_block_device(buffer->ref.block),
                        "reading or writing a host buffer from the script");
    while (!gpu_ref_is_idle(&buffer->ref, for_write)) {
        struct gpu_op **op = gpu_lua_op_new(L, g);
        gpu_lua_buffer_check_open(L, buffer);
        *op = gpu_ref_pending(&buffer->ref, for_write);
        if (*op) {
            gpu_lua_wait_op(L, g, *op, k);
        }
        lua_pop(L, 1);
        gpu_lua_buffer_check_open(L, buffer);
    }
    gpu_lua_check_know_buffer(g, &buffer->ref);
}

void gpu_lua_check_contents(lua_State *L, struct buffer *buffer) {
    struct gpu_device *device = gpu_block_device(buffer->ref.block);
    gpu_device_poll(device);
    struct gpu_error error;
    if (gpu_ref_failure(&buffer->ref, &error)) {
        gpu_lua_throw(L, &error);
    }
    gpu_lua_raise_unobserved(L, device, true);
}

uint8_t *gpu_lua_host_bytes(const struct buffer *buffer) {
    return (uint8_t *)gpu_block_host_bytes(buffer->ref.block) + buffer->ref.byte_offset;
}

static bool is_host(const struct buffer *buffer) {
    return gpu_block_is_host(buffer->ref.block);
}

static struct gpu_submit submit_for(lua_State *L, struct gpulua *g, const struct buffer *buffer) {
    struct gpu_device *device = gpu_block_device(buffer->ref.block);
    struct gpu_submit submit = {.stream = gpu_lua_current_stream(L, g, device),
                                .capture = gpu_lua_capture_find(L, g, device)};
    gpu_lua_site(L, g, device, &submit.site);
    return submit;
}

static void overwritten(const struct buffer *buffer, uint64_t first, uint64_t count) {
    struct gpu_ref range = buffer->ref;
    range.byte_offset += first * buffer->elem_bytes;
    range.byte_count = count * buffer->elem_bytes;
    gpu_ref_overwritten(&range);
}

/* ---- in ---- */

/* Elements of the data at `data` (a string, table or function), first from 0 in the data. */
static void convert(lua_State *L, int data, uint64_t data_first, uint64_t buffer_first,
                    uint64_t count, const struct buffer *buffer, uint8_t *bytes) {
    switch (lua_type(L, data)) {
    case LUA_TSTRING:
        memcpy(bytes, lua_tostring(L, data) + data_first * buffer->elem_bytes,
               count * buffer->elem_bytes);
        break;
    case LUA_TTABLE:
        gpu_lua_from_table(L, data, data_first + 1, count, buffer->ref.type, bytes);
        break;
    default:
        gpu_lua_from_function(L, data, buffer_first + data_first + 1, count, buffer->ref.type,
                              bytes);
        break;
    }
}

/* How many elements the data has; a function has as many as there is room for. */
static uint64_t data_count(lua_State *L, struct gpulua *g, const struct buffer *buffer,
                           uint64_t first, int data) {
    switch (lua_type(L, data)) {
    case LUA_TSTRING:
        if (lua_rawlen(L, data) % buffer->elem_bytes != 0) {
            gpu_lua_fail(L, GPULUA_INVALID_DATA, "%llu bytes are not a whole number of %s elements",
                         (unsigned long long)lua_rawlen(L, data), gpu_type_name(buffer->ref.type));
        }
        return lua_rawlen(L, data) / buffer->elem_bytes;
    case LUA_TTABLE:
        return gpu_lua_table_count(L, data);
    case LUA_TFUNCTION:
        return buffer->elem_count - first;
    default:
        break;
    }
    if (!gpu_lua_test(L, g, data, GPU_LUA_KIND_BUFFER) &&
        !gpu_lua_test(L, g, data, GPU_LUA_KIND_HOST)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of write: a table of numbers, a string of bytes, a buffer or a "
                     "function expected, got %s",
                     gpu_lua_describe(L, data));
    }
    return gpu_lua_check_buffer(L, g, data)->elem_count;
}

/* Both are usable. */
static void copy_from(lua_State *L, struct gpulua *g, struct buffer *to, uint64_t first,
                      uint64_t count, const struct buffer *from, const char *what) {
    struct gpu_submit submit = submit_for(L, g, to);
    struct gpu_ref range = to->ref;
    struct gpu_error error;
    range.byte_offset += first * to->elem_bytes;
    range.byte_count = count * to->elem_bytes;
    if (to->ref.type != from->ref.type) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s: it has elements of type %s, the buffer %s",
                     what, gpu_type_name(from->ref.type), gpu_type_name(to->ref.type));
    }
    if (gpu_block_device(to->ref.block) != gpu_block_device(from->ref.block)) {
        gpu_lua_fail(
            L, GPULUA_INVALID_ARGUMENT, "%s: it belongs to %s%s, the buffer to %s", what,
            gpu_device_kin(gpu_block_device(from->ref.block), gpu_block_device(to->ref.block)),
            gpu_device_title(gpu_block_device(from->ref.block)),
            gpu_device_title(gpu_block_device(to->ref.block)));
    }
    bool are_hosts = is_host(to) && is_host(from); /* both are idle */
    if (are_hosts && !gpu_lua_refs_overlap(&range, &from->ref)) {
        gpu_lua_check_read(g, L, &from->ref, gpu_lua_host_bytes(from), range.byte_count);
        memcpy(gpu_lua_host_bytes(to) + first * to->elem_bytes, gpu_lua_host_bytes(from),
               range.byte_count);
        overwritten(to, first, count);
    } else if (gpu_work_copy(&submit, &range, &from->ref, NULL, &error)) {
        gpu_lua_throw(L, &error);
    }
}

/* Elements of a host buffer, before anything is waited for; of others nothing. As many as it has.
 */
static void touch(struct gpulua *g, lua_State *L, const struct buffer *buffer, uint64_t first,
                  uint64_t count, bool is_write, const char *what) {
    if (is_host(buffer) && first < buffer->elem_count) {
        uint64_t left = buffer->elem_count - first;
        gpu_lua_check_touch(g, L, &buffer->ref, first * buffer->elem_bytes,
                            (count < left ? count : left) * buffer->elem_bytes, is_write, what);
    }
}

/* From one host buffer to another no device is needed: behind what the device does with them. */
static void wait_for_hosts(lua_State *L, struct gpulua *g, int status, const struct buffer *to,
                           uint64_t first, struct buffer *from, lua_KFunction k) {
    if (is_host(to) && is_host(from)) {
        if (status == LUA_OK) {
            touch(g, L, from, 0, from->elem_count, false, "host_buffer:copy");
            touch(g, L, to, first, from->elem_count, true, "host_buffer:copy");
        }
        gpu_lua_wait_idle(L, g, from, false, k);
        gpu_lua_check_contents(L, from);
        gpu_lua_wait_idle(L, g, to, true, k);
        gpu_lua_buffer_check_open(L, from);
    }
}

/* A chunk that lies in staging memory goes to the device, or into the host buffer. */
static void put_chunk(lua_State *L, struct gpulua *g, struct transfer *transfer,
                      struct buffer *buffer, uint64_t first, uint64_t count) {
    struct gpu_error error;
    uint64_t byte_offset = first * buffer->elem_bytes;
    gpu_lua_buffer_check_open(L, buffer); /* a function of the script's ran meanwhile */
    struct gpu_submit submit = submit_for(L, g, buffer);
    if (gpu_work_upload(&submit, &buffer->ref, byte_offset, &transfer->staging,
                        count * buffer->elem_bytes, NULL, &error)) {
        gpu_lua_throw(L, &error);
    }
}

/* Stack: ..., data, ...; pops nothing. Host buffers are idle. */
void gpu_lua_buffer_put(lua_State *L, struct gpulua *g, struct buffer *buffer, uint64_t first,
                        int data) {
    uint64_t count = data_count(L, g, buffer, first, data);
    if (count == 0) {
        gpu_lua_fail(L, GPULUA_INVALID_DATA, "the data has no elements");
    }
    if (count > buffer->elem_count - first) {
        gpu_lua_fail_range(L, NULL, (int64_t)first, (int64_t)count, buffer->elem_count,
                           "the data has %llu elements, from element %llu on the buffer has %llu",
                           (unsigned long long)count, (unsigned long long)first + 1,
                           (unsigned long long)(buffer->elem_count - first));
    }
    if (lua_type(L, data) == LUA_TUSERDATA) {
        gpu_lua_buffer_check_open(L, buffer);
        copy_from(L, g, buffer, first, count, gpu_lua_check_buffer(L, g, data), "the data");
        return;
    }
    uint64_t chunk_max = chunk_elems(buffer);
    struct transfer *transfer = transfer_new(L, g, buffer, first, count);
    uint64_t chunk = count < chunk_max ? count : chunk_max;
    bool to_host = is_host(buffer);
    /* A table of several chunks is looked through first, so that a bad element changes nothing. */
    int passes = count > chunk_max && lua_type(L, data) == LUA_TTABLE ? 2 : 1;
    for (int pass = 1; pass <= passes; pass++) {
        for (uint64_t done = 0; done < count; done += chunk) {
            uint64_t now = count - done < chunk ? count - done : chunk;
            if (!transfer->has_staging) {
                staging_take(L, transfer, chunk * buffer->elem_bytes);
            }
            convert(L, data, done, first, now, buffer, transfer->staging.bytes);
            if (pass < passes) {
                continue;
            }
            if (to_host) {
                gpu_lua_buffer_check_open(L, buffer);
                if (!gpu_ref_is_idle(&buffer->ref, true)) {
                    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                                 "what gives the elements has begun work with the buffer itself");
                }
                memcpy(gpu_lua_host_bytes(buffer) + (first + done) * buffer->elem_bytes,
                       transfer->staging.bytes, now * buffer->elem_bytes);
                overwritten(buffer, first + done, now);
                continue;
            }
            put_chunk(L, g, transfer, buffer, first + done, now);
            staging_give(transfer); /* its memory waits for the upload */
        }
    }
    transfer_end(transfer);
    lua_pop(L, 1);
}

/* Stack: buffer, data, first element or nil. */
static int write_ready(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    lua_settop(L, 3);
    struct buffer *buffer = gpu_lua_check_buffer(L, g, 1);
    uint64_t first = 0, rest;
    if (!lua_isnil(L, 3)) {
        lua_pushnil(L);
        gpu_lua_check_range(L, 3, buffer, "write", &first, &rest);
        lua_settop(L, 3);
    } else if (lua_type(L, 2) != LUA_TFUNCTION) {
        uint64_t count = data_count(L, g, buffer, 0, 2);
        if (count != buffer->elem_count) {
            gpu_lua_fail(L, GPULUA_INVALID_DATA,
                         "write: the data has %llu elements, the buffer has %llu (write(data, i) "
                         "writes a part)",
                         (unsigned long long)count, (unsigned long long)buffer->elem_count);
        }
        gpu_lua_buffer_check_open(L, buffer);
    }
    if (lua_type(L, 2) == LUA_TUSERDATA) {
        wait_for_hosts(L, g, status, buffer, first, gpu_lua_check_buffer(L, g, 2), write_ready);
    } else if (is_host(buffer)) {
        if (g->check && status == LUA_OK) {
            uint64_t count = data_count(L, g, buffer, first, 2);
            gpu_lua_buffer_check_open(L, buffer); /* __len may be anything */
            touch(g, L, buffer, first, count, true, "host_buffer:write");
        }
        gpu_lua_wait_idle(L, g, buffer, true, write_ready);
    }
    gpu_lua_buffer_put(L, g, buffer, first, 2);
    lua_settop(L, 1);
    return 1;
}

/* buffer:write(data[, i]) -> buffer. The data is copied at the call. */
int gpu_lua_buffer_write(lua_State *L) {
    (void)GPU_LUA(L); /* refuses it in a hook */
    gpu_lua_check_count(L, 2, "write", "write(data, i) begins at element i; its end is the data's");
    lua_settop(L, 3);
    return write_ready(L, LUA_OK, 0);
}

/* Stack: buffer, from. */
static int copy_ready(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = GPU_LUA(L);
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    if (lua_gettop(L) > 2) {
        lua_settop(L, 2);
    }
    struct buffer *to = gpu_lua_check_buffer(L, g, 1);
    if (!gpu_lua_test(L, g, 2, GPU_LUA_KIND_BUFFER) && !gpu_lua_test(L, g, 2, GPU_LUA_KIND_HOST)) {
        gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT, "tables and strings go in with write",
                          "argument 1 of copy: a buffer or host buffer expected, got %s",
                          gpu_lua_describe(L, 2));
    }
    struct buffer *from = gpu_lua_check_buffer(L, g, 2);
    if (to->elem_count != from->elem_count) {
        gpu_lua_fail_range(
            L, "buffer:slice(i, j) is a part of one", 0, (int64_t)from->elem_count, to->elem_count,
            "argument 1 of copy: it has %llu elements, the buffer %llu",
            (unsigned long long)from->elem_count, (unsigned long long)to->elem_count);
    }
    wait_for_hosts(L, g, status, to, 0, from, copy_ready);
    copy_from(L, g, to, 0, to->elem_count, from, "argument 1 of copy");
    lua_settop(L, 1);
    return 1;
}

/* buffer:copy(from) -> buffer. From another buffer or host buffer of as many elements. */
int gpu_lua_buffer_copy(lua_State *L) {
    gpu_lua_check_count(L, 1, "copy",
                        "parts are to:slice(i, j):copy(from:slice(k, l)); a stream is "
                        "that of stream:use(f)");
    return copy_ready(L, LUA_OK, 0);
}

/* Stack: buffer, value. */
static int fill_ready(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    uint8_t element[16];
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    lua_settop(L, 2);
    struct buffer *buffer = gpu_lua_buffer_at(L, g, 1);
    const char *reason = gpu_lua_to_element(L, 2, buffer->ref.type, element);
    gpu_lua_buffer_check_open(L, buffer);
    if (reason) {
        gpu_lua_bad_value(L, 2, buffer->ref.type, reason, "argument 1 of fill");
    }
    if (is_host(buffer)) {
        if (status == LUA_OK) {
            touch(g, L, buffer, 0, buffer->elem_count, true, "host_buffer:fill");
        }
        gpu_lua_wait_idle(L, g, buffer, true, fill_ready);
        uint8_t *bytes = gpu_lua_host_bytes(buffer);
        for (uint64_t i = 0; i < buffer->elem_count; i++) {
            memcpy(bytes + i * buffer->elem_bytes, element, buffer->elem_bytes);
        }
        overwritten(buffer, 0, buffer->elem_count);
    } else {
        struct gpu_submit submit = submit_for(L, g, buffer);
        struct gpu_error error;
        if (gpu_work_fill(&submit, &buffer->ref, element, NULL, &error)) {
            gpu_lua_throw(L, &error);
        }
    }
    lua_settop(L, 1);
    return 1;
}

/* buffer:fill(value) -> buffer */
int gpu_lua_buffer_fill(lua_State *L) {
    (void)GPU_LUA(L); /* refuses it in a hook */
    gpu_lua_check_count(L, 1, "fill",
                        "a part is filled by buffer:slice(i, j):fill(value); a stream is "
                        "that of stream:use(f)");
    return fill_ready(L, LUA_OK, 0);
}

/* ---- out ---- */

/* Stack: buffer, true for bytes, transfer, result (table), op. */
static int read_chunk(lua_State *L, int status, lua_KContext context);

static void take_chunk(lua_State *L, struct gpulua *g, const struct buffer *buffer,
                       struct transfer *transfer, const uint8_t *bytes) {
    uint64_t number = transfer->position + 1;
    gpu_lua_check_read(g, L, &buffer->ref, bytes, transfer->chunk * buffer->elem_bytes);
    if (lua_toboolean(L, 2)) {
        lua_pushlstring(L, (const char *)bytes, transfer->chunk * buffer->elem_bytes);
        lua_rawseti(L, 4, (lua_Integer)lua_rawlen(L, 4) + 1);
    } else {
        gpu_lua_to_table(L, 4, number, transfer->chunk, buffer->ref.type, bytes);
    }
    transfer->position += transfer->chunk;
    transfer->chunk = 0;
}

/* All of it. Elements are copied first, for complex ones allocate; a string does behind its copy.
 */
static void read_host(lua_State *L, struct gpulua *g, const struct buffer *buffer,
                      struct transfer *transfer) {
    uint64_t offset = transfer->first * buffer->elem_bytes;
    size_t byte_count = transfer->count * buffer->elem_bytes;
    gpu_lua_check_read(g, L, &buffer->ref, gpu_lua_host_bytes(buffer) + offset, byte_count);
    if (lua_toboolean(L, 2)) {
        lua_pushlstring(L, (const char *)gpu_lua_host_bytes(buffer) + offset, byte_count);
        lua_rawseti(L, 4, 1);
        return;
    }
    uint8_t part[HOST_PART_BYTES];
    uint64_t part_max = sizeof part / buffer->elem_bytes;
    for (uint64_t done = 0; done < transfer->count; done += part_max) {
        uint64_t left = transfer->count - done, now = left < part_max ? left : part_max;
        gpu_lua_buffer_check_open(L, buffer);
        memcpy(part, gpu_lua_host_bytes(buffer) + offset + done * buffer->elem_bytes,
               now * buffer->elem_bytes);
        gpu_lua_to_table(L, 4, done + 1, now, buffer->ref.type, part);
    }
}

static int read_end(lua_State *L, struct transfer *transfer) {
    transfer_end(transfer);
    if (!lua_toboolean(L, 2)) {
        lua_settop(L, 4);
        return 1;
    }
    if (lua_rawlen(L, 4) == 1) {
        lua_rawgeti(L, 4, 1);
        return 1;
    }
    luaL_Buffer text;
    lua_Integer count = (lua_Integer)lua_rawlen(L, 4);
    luaL_buffinit(L, &text);
    for (lua_Integer i = 1; i <= count; i++) {
        lua_rawgeti(L, 4, i);
        luaL_addvalue(&text);
    }
    luaL_pushresult(&text);
    return 1;
}

/* The op of the chunk is over. */
static void check_chunk(lua_State *L) {
    struct gpu_op *op = gpu_lua_op_at(L, 5);
    if (gpu_op_status(op) != GPULUA_OK) {
        gpu_lua_error_push(L, gpu_op_error(op));
        gpu_op_observe(op);
        lua_error(L);
    }
}

static void finish_chunk(lua_State *L, struct gpulua *g, const struct buffer *buffer,
                         struct transfer *transfer) {
    take_chunk(L, g, buffer, transfer, transfer->staging.bytes);
    staging_give(transfer);
    lua_settop(L, 4);
}

/* So many tasks may read at once that they hold all staging memory: the next one sleeps until some
 * of them have gone on. */
static void wait_for_staging(lua_State *L, struct gpulua *g, struct transfer *transfer,
                             uint64_t byte_count) {
    if (gpu_lua_may_park(g, L) && !gpu_staging_has_room(transfer->device, byte_count)) {
        if (++transfer->naps == STAGING_NAPS) { /* or coroutines that nobody resumes any more do */
            lua_gc(L, LUA_GCCOLLECT);
        }
        if (!gpu_lua_timer_set(g, &g->running->timer, gpu_lua_now_ns() + STAGING_NAP_NS)) {
            gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for a timer");
        }
        gpu_lua_park(L, g, read_chunk);
    }
}

static void start_chunk(lua_State *L, struct gpulua *g, struct buffer *buffer,
                        struct transfer *transfer) {
    struct gpu_error error;
    uint64_t left = transfer->count - transfer->position;
    uint64_t chunk = left < chunk_elems(buffer) ? left : chunk_elems(buffer);
    wait_for_staging(L, g, transfer, chunk * buffer->elem_bytes);
    struct gpu_op **op = gpu_lua_op_new(L, g);
    staging_take(L, transfer, chunk * buffer->elem_bytes);
    gpu_lua_buffer_check_open(L, buffer);
    struct gpu_submit submit = submit_for(L, g, buffer);
    transfer->chunk = chunk;
    if (gpu_work_download(&submit, &buffer->ref,
                          (transfer->first + transfer->position) * buffer->elem_bytes,
                          &transfer->staging, chunk * buffer->elem_bytes, op, &error)) {
        *op = NULL;
        gpu_lua_throw(L, &error);
    }
}

static int read_chunk(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    struct transfer *transfer = lua_touserdata(L, 3);
    if (transfer->chunk) {
        check_chunk(L); /* before the buffer: of a lost device, the op knows more */
    }
    struct buffer *buffer = gpu_lua_check_buffer(L, g, 1);
    if (is_host(buffer)) {
        lua_settop(L, 4);
        if (status == LUA_OK) {
            touch(g, L, buffer, transfer->first, transfer->count, false,
                  lua_toboolean(L, 2) ? "host_buffer:bytes" : "host_buffer:read");
        }
        gpu_lua_wait_idle(L, g, buffer, false, read_chunk);
        gpu_lua_check_contents(L, buffer);
        read_host(L, g, buffer, transfer);
        return read_end(L, transfer);
    }
    if (transfer->chunk) {
        finish_chunk(L, g, buffer, transfer);
    }
    while (transfer->position < transfer->count) {
        start_chunk(L, g, buffer, transfer);
        gpu_lua_wait_op(L, g, gpu_lua_op_at(L, 5), read_chunk);
        check_chunk(L);
        finish_chunk(L, g, buffer, transfer);
    }
    gpu_lua_raise_unobserved(L, transfer->device, true);
    return read_end(L, transfer);
}

static int read_start(lua_State *L, const char *what, bool as_bytes) {
    struct gpulua *g = GPU_LUA(L);
    uint64_t first, count;
    struct buffer *buffer = gpu_lua_check_buffer(L, g, 1);
    gpu_lua_check_eager(L, g, gpu_block_device(buffer->ref.block), what);
    gpu_lua_check_count(L, 2, what, "i and j are the first element and the last");
    lua_settop(L, 3);
    gpu_lua_check_range(L, 2, buffer, what, &first, &count);
    if (!as_bytes && count > INT32_MAX) {
        gpu_lua_fail(L, GPULUA_CAPACITY, "%s: %llu elements are more than a table holds", what,
                     (unsigned long long)count);
    }
    lua_settop(L, 1);
    lua_pushboolean(L, as_bytes);
    transfer_new(L, g, buffer, first, count);
    lua_createtable(L, as_bytes ? 1 : (int)count, 0);
    return read_chunk(L, LUA_OK, 0);
}

/* buffer:read([i[, j]]) -> table of elements. Waits for what writes the buffer. */
int gpu_lua_buffer_read(lua_State *L) {
    return read_start(L, "read", false);
}

/* buffer:bytes([i[, j]]) -> the same as a string of bytes */
int gpu_lua_buffer_bytes(lua_State *L) {
    return read_start(L, "bytes", true);
}

void gpu_lua_transfer_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg metamethods[] = {
        {"__gc", transfer_gc}, {"__close", transfer_gc}, {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_STAGING, NULL, metamethods);
}
