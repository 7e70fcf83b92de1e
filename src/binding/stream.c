/* Streams, and which of them work goes to when a script does not say. */
#include "binding/stream.h"
#include "binding/graph.h"

#include <stdlib.h>
#include <string.h>

#include "binding/check.h"
#include "binding/core.h"
#include "binding/device.h"

/* ---- the current stream ---- */

/* `handle` NULL: the device is closed. */
static struct gpu_stream *first_use(lua_State *L, struct gpu_device *device,
                                    struct device_handle *handle, uint32_t index) {
    struct gpu_stream *stream = NULL;
    struct gpu_error error;
    if (gpu_device_task_stream(device, index, &stream, &error)) {
        gpu_lua_throw(L, &error);
    }
    if (handle) {
        handle->task_streams[index] = stream;
    }
    return stream;
}

struct gpu_stream *gpu_lua_current_stream(lua_State *L, struct gpulua *g,
                                          struct gpu_device *device) {
    const struct scope *scope = gpu_lua_scope(g);
    for (struct use *use = scope->use; use; use = use->outer) {
        if (gpu_stream_device(use->stream) == device) {
            return use->stream;
        }
    }
    struct device_handle *handle = gpu_lua_find_device(g, device);
    if (handle && handle->task_streams[scope->stream_index]) {
        return handle->task_streams[scope->stream_index];
    }
    return first_use(L, device, handle, scope->stream_index);
}

static void use_end(struct use *use) {
    /* Usually the innermost; not if coroutines inside a task interleave their uses. */
    for (struct use **at = use->scope ? &use->scope->use : NULL; at && *at; at = &(*at)->outer) {
        if (*at == use) {
            *at = use->outer;
            break;
        }
    }
    use->scope = NULL;
    struct gpu_stream *stream = use->stream;
    use->stream = NULL;
    if (stream) {
        gpu_stream_release(stream);
    }
}

void gpu_lua_uses_leave(struct scope *scope) {
    for (struct use *use = scope->use; use; use = use->outer) {
        use->scope = NULL;
    }
    scope->use = NULL;
}

/* Each copy is kept by the one inside it. */
struct use *gpu_lua_uses_copy(lua_State *L, struct gpulua *g) {
    struct use *innermost = NULL, *inner = NULL;
    lua_pushnil(L); /* stack: innermost, inner */
    lua_pushnil(L);
    for (const struct use *use = gpu_lua_scope(g)->use; use; use = use->outer) {
        struct use *copy = gpu_lua_new(L, g, GPU_LUA_KIND_USE, sizeof *copy, 1);
        copy->stream = gpu_stream_retain(use->stream);
        if (inner) {
            inner->outer = copy;
            lua_pushvalue(L, -1);
            lua_setiuservalue(L, -3, 1);
        } else {
            innermost = copy;
            lua_copy(L, -1, -3);
        }
        inner = copy;
        lua_replace(L, -2);
    }
    lua_pop(L, 1);
    return innermost;
}

static int use_gc(lua_State *L) {
    use_end(lua_touserdata(L, 1));
    return 0;
}

/* ---- streams ---- */

struct gpu_stream *gpu_lua_check_stream(lua_State *L, struct gpulua *g, int index) {
    struct stream_handle *handle = gpu_lua_check(L, g, index, GPU_LUA_KIND_STREAM);
    if (!handle->stream) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed stream");
    }
    return handle->stream;
}

void gpu_lua_streams_prune(struct stream_record **records, bool all) {
    for (struct stream_record **at = records; *at;) {
        struct stream_record *record = *at;
        struct gpu_op *tail = all || !record->is_left ? NULL : gpu_stream_tail(record->stream);
        if (tail || (!all && !record->is_left)) {
            gpu_op_release(tail);
            at = &record->next;
            continue;
        }
        *at = record->next;
        gpu_stream_release(record->stream);
        if (record->is_left) {
            free(record);
        } else {
            record->stream = NULL; /* its handle frees it */
            record->next = NULL;
        }
    }
}

const struct stream_record *gpu_lua_streams_older(const struct device_handle *handle,
                                                  uint64_t number, bool also_left) {
    const struct stream_record *record = handle->streams;
    while (record &&
           ((record->is_left && !also_left) || gpu_stream_number(record->stream) >= number)) {
        record = record->next;
    }
    return record;
}

/* core.streams(dev) -> those that dev:stream made and that nobody has closed or dropped, by number:
 * {label =, source = "file:line" or nil} */
int gpu_lua_streams(lua_State *L) {
    struct device_handle *handle;
    (void)gpu_lua_check_device(L, GPU_LUA(L), 1, &handle);
    lua_newtable(L);
    uint64_t last = UINT64_MAX;
    /* From the newest on, looked for again each time: finalisers may close them. */
    for (const struct stream_record *record;
         (record = gpu_lua_streams_older(handle, last, false));) {
        struct gpu_site site = record->site;
        last = gpu_stream_number(record->stream);
        lua_pushstring(L, gpu_stream_label(record->stream));
        lua_createtable(L, 0, 2);
        lua_insert(L, -2);
        lua_setfield(L, -2, "label");
        gpu_lua_set_source(L, site.source, site.line);
        lua_rawseti(L, -2, (lua_Integer)last);
    }
    return 1;
}

/* dev:stream{priority=, label=} */
int gpu_lua_device_stream(lua_State *L) {
    static const char *const options[] = {"priority", "label", NULL};
    struct gpulua *g = GPU_LUA(L);
    struct device_handle *owner;
    (void)gpu_lua_check_device(L, g, 1, NULL);
    lua_settop(L, 2);
    gpu_lua_check_options(L, 2, options, "stream");
    struct gpu_stream_info info = {
        .priority = (int)gpu_lua_field_integer(L, 2, "priority", "stream", 0, -1000, 1000),
        .label = gpu_lua_push_field_string(L, 2, "label", "stream"),
    };
    struct stream_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_STREAM, sizeof *handle, 0);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, &owner);
    handle->made = calloc(1, sizeof *handle->made);
    if (!handle->made) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for a stream");
    }
    struct gpu_error error;
    gpu_lua_streams_prune(&owner->streams, false);
    gpulua_status status = gpu_stream_create(device, &info, &handle->stream, &error);
    if (status == GPULUA_CAPACITY) {
        /* Perhaps forgotten handles hold them. */
        gpu_error_finish(&error);
        lua_gc(L, LUA_GCCOLLECT);
        (void)gpu_lua_check_device(L, g, 1, NULL);
        gpu_lua_streams_prune(&owner->streams, false);
        gpu_device_poll(device);
        status = gpu_stream_create(device, &info, &handle->stream, &error);
    }
    if (status) {
        handle->stream = NULL;
        gpu_lua_throw(L, &error);
    }
    gpu_lua_site(L, g, device, &handle->made->site);
    handle->made->stream = gpu_stream_retain(handle->stream);
    handle->made->next = owner->streams;
    owner->streams = handle->made;
    return 1;
}

/* dev:current() -> the stream that work goes to here */
int gpu_lua_device_current(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)gpu_lua_check_device(L, g, 1, NULL);
    struct stream_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_STREAM, sizeof *handle, 0);
    handle->stream =
        gpu_stream_retain(gpu_lua_current_stream(L, g, gpu_lua_check_device(L, g, 1, NULL)));
    return 1;
}

static int use_ended(lua_State *L, int status, lua_KContext context) {
    (void)status;
    (void)context;
    return lua_gettop(L) - 2;
}

/* stream:use(f, ...): calls f with this as the current stream of the task; returns its results */
static int stream_use(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)gpu_lua_check_stream(L, g, 1);
    gpu_lua_check_function(L, 2, 1, "use");
    struct use *use = gpu_lua_new(L, g, GPU_LUA_KIND_USE, sizeof *use, 0);
    use->stream = gpu_stream_retain(gpu_lua_check_stream(L, g, 1));
    use->scope = gpu_lua_scope(g);
    use->outer = use->scope->use;
    use->scope->use = use;
    lua_insert(L, 2);
    lua_toclose(L, 2); /* stack: stream, use, f, arguments */
    lua_callk(L, lua_gettop(L) - 3, LUA_MULTRET, 0, use_ended);
    return use_ended(L, LUA_OK, 0);
}

/* The stream is at index 1. `after`: kept by the caller, or NULL. Pushes the op. */
static void mark(lua_State *L, struct gpulua *g, struct gpu_op *after) {
    struct gpu_op **op = gpu_lua_op_new(L, g); /* it may run finalisers, which close things */
    struct gpu_stream *stream = gpu_lua_check_stream(L, g, 1);
    struct gpu_submit submit = {.stream = stream,
                                .capture = gpu_lua_capture_find(L, g, gpu_stream_device(stream))};
    struct gpu_error error;
    gpu_lua_site(L, g, gpu_stream_device(stream), &submit.site);
    if (gpu_work_mark(&submit, after, op, &error)) {
        *op = NULL;
        gpu_lua_throw(L, &error);
    }
}

/* stream:wait(after) -> stream. after: an op or a stream. What is put on this stream from here on
 * starts behind it, or behind all that is on that stream now. Does not block. */
static int stream_wait(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)gpu_lua_check_stream(L, g, 1);
    struct gpu_device *device = NULL;
    lua_settop(L, 2);
    struct gpu_op **after = gpu_lua_op_new(L, g); /* of our own: the script's may be closed */
    struct gpu_stream *stream = gpu_lua_check_stream(L, g, 1);
    if (gpu_lua_test(L, g, 2, GPU_LUA_KIND_STREAM)) {
        struct gpu_stream *other = gpu_lua_check_stream(L, g, 2);
        *after = gpu_stream_tail(other);
        device = gpu_stream_device(other);
    } else if (gpu_lua_test(L, g, 2, GPU_LUA_KIND_OP)) {
        *after = gpu_op_retain(gpu_lua_check_op(L, g, 2));
        device = gpu_op_device(*after);
    } else {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of wait: an op or a stream expected, got %s", luaL_typename(L, 2));
    }
    if (device != gpu_stream_device(stream)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of wait: it belongs to %s%s, the stream to %s",
                     gpu_device_kin(device, gpu_stream_device(stream)), gpu_device_title(device),
                     gpu_device_title(gpu_stream_device(stream)));
    }
    if (*after) {
        gpu_lua_check_know_op(g, *after); /* so are the effects of what this task launches next */
        mark(L, g, *after);
    }
    lua_settop(L, 1);
    return 1;
}

/* stream:mark() -> op that is over when all that is on the stream is */
static int stream_mark(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_check_stream(L, g, 1);
    mark(L, g, NULL);
    return 1;
}

/* Stack: stream. The work that was on it when it was asked is over, or the wait was blocking. */
static int synchronized(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    struct gpu_device *device = gpu_stream_device(gpu_lua_check_stream(L, g, 1));
    gpu_device_poll(device);
    gpu_lua_check_know_all(g);
    gpu_lua_raise_unobserved(L, device, true);
    lua_settop(L, 1);
    return 1;
}

/* stream:synchronize() -> stream. Waits for all that is on it now; raises a failure that nobody has
 * seen. CaptureActive; yields in a task. */
static int stream_synchronize(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_settop(L, 1);
    gpu_lua_check_eager(L, g, gpu_stream_device(gpu_lua_check_stream(L, g, 1)), "synchronize");
    struct gpu_op **tail = gpu_lua_op_new(L, g);
    *tail = gpu_stream_tail(gpu_lua_check_stream(L, g, 1));
    if (*tail) {
        gpu_lua_wait_op(L, g, *tail, synchronized); /* its end is the end of all before it */
    }
    return synchronized(L, LUA_OK, 0);
}

static void handle_end(struct stream_handle *handle, bool is_close) {
    struct gpu_stream *stream = handle->stream;
    struct stream_record *made = handle->made;
    handle->stream = NULL;
    handle->made = NULL;
    if (stream && made && is_close) {
        gpu_stream_close(stream);
    }
    if (made && made->stream) {
        made->is_left = true; /* the device's list frees it */
    } else {
        free(made);
    }
    if (stream) {
        gpu_stream_release(stream);
    }
}

/* stream:close(): ends the handle; what is on the stream goes on. */
static int stream_close(lua_State *L) {
    handle_end(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_STREAM), true);
    return 0;
}

static int stream_gc(lua_State *L) {
    handle_end(lua_touserdata(L, 1), false);
    return 0;
}

static int stream_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    struct gpu_stream *stream = gpu_lua_check_stream(L, GPU_LUA(L), 1);
    const char *field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (strcmp(field, "id") == 0) {
        lua_pushinteger(L, (lua_Integer)gpu_stream_number(stream));
    } else if (strcmp(field, "label") == 0) {
        lua_pushstring(L, gpu_stream_label(stream));
    } else if (strcmp(field, "priority") == 0) {
        lua_pushinteger(L, gpu_stream_priority(stream));
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static int stream_tostring(lua_State *L) {
    struct stream_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_STREAM);
    if (!handle->stream) {
        lua_pushliteral(L, "gpulua.stream (closed)");
        return 1;
    }
    const char *label = gpu_stream_label(handle->stream);
    lua_pushfstring(L, "gpulua.stream %I on %s%s%s%s",
                    (LUAI_UACINT)gpu_stream_number(handle->stream),
                    gpu_device_name(gpu_stream_device(handle->stream)), label[0] ? " (" : "", label,
                    label[0] ? ")" : "");
    return 1;
}

static int stream_eq(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct stream_handle *a = gpu_lua_test(L, g, 1, GPU_LUA_KIND_STREAM);
    struct stream_handle *b = gpu_lua_test(L, g, 2, GPU_LUA_KIND_STREAM);
    lua_pushboolean(L, a && b && a->stream && a->stream == b->stream);
    return 1;
}

void gpu_lua_stream_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"use", stream_use},     {"wait", stream_wait},
                                       {"mark", stream_mark},   {"synchronize", stream_synchronize},
                                       {"close", stream_close}, {NULL, NULL}};
    static const luaL_Reg metamethods[] = {
        {"__gc", stream_gc}, {"__close", stream_close}, {"__tostring", stream_tostring},
        {"__eq", stream_eq}, {"__index", stream_index}, {NULL, NULL}};
    static const luaL_Reg use_metamethods[] = {{"__gc", use_gc}, {"__close", use_gc}, {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_STREAM, methods, metamethods);
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_USE, NULL, use_metamethods);
}
