/* Captures and graphs. A task belongs to at most one capture: what it launches on that capture's
 * device becomes a node there, and so does what the tasks launch that it spawns meanwhile. */
#include "runtime/graph.h"

#include <stdlib.h>

#include "binding/buffer.h"
#include "binding/caller.h"
#include "binding/core.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/loop.h"
#include "binding/stream.h"

struct capture_handle {
    struct gpu_capture *capture; /* owned; NULL: closed, or finished */
    struct gpulua *g;
    uint64_t number; /* given out once */
    struct gpu_site site;
    struct capture_handle *next, **link;
};

struct pool_handle {
    struct gpu_pool *pool; /* retained; NULL: closed */
};

/* ---- which capture ---- */

static bool is_detached(const struct task *task) {
    while (task && !task->is_detached) {
        task = task->parent;
    }
    return task;
}

static struct capture_handle *current(struct gpulua *g) {
    struct scope *scope = gpu_lua_scope(g);
    if (scope->capture == 0) {
        return NULL;
    }
    for (struct capture_handle *handle = g->captures; handle; handle = handle->next) {
        if (handle->number == scope->capture) {
            return handle;
        }
    }
    if (!scope->is_in_for_good || is_detached(g->running)) {
        scope->capture = 0; /* it has ended */
    }
    return NULL;
}

struct gpu_capture *gpu_lua_capture_find(lua_State *L, struct gpulua *g,
                                         struct gpu_device *device) {
    const struct capture_handle *handle = current(g);
    if (!handle && gpu_lua_scope(g)->capture != 0) {
        gpu_lua_fail(L, GPULUA_CAPTURE_INVALIDATED,
                     "the capture that this task was spawned into has ended");
    }
    return handle && gpu_capture_device(handle->capture) == device ? handle->capture : NULL;
}

bool gpu_lua_is_captured(struct gpulua *g, const struct gpu_device *device) {
    const struct capture_handle *handle = current(g);
    return handle && (!device || gpu_capture_device(handle->capture) == device);
}

void gpu_lua_check_eager(lua_State *L, struct gpulua *g, const struct gpu_device *device,
                         const char *what) {
    if (gpu_lua_is_captured(g, device)) {
        gpu_lua_fail(L, GPULUA_CAPTURE_ACTIVE, "%s cannot be captured", what);
    }
}

/* ---- pools ---- */

static struct gpu_pool *check_pool(lua_State *L, struct gpulua *g, int index) {
    struct pool_handle *handle = gpu_lua_check(L, g, index, GPU_LUA_KIND_POOL);
    if (!handle->pool) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed pool");
    }
    return handle->pool;
}

/* dev:pool() -> pool. */
int gpu_lua_device_pool(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)gpu_lua_check_device(L, g, 1, NULL);
    struct pool_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_POOL, sizeof *handle, 0);
    struct gpu_error error;
    if (gpu_pool_create(gpu_lua_check_device(L, g, 1, NULL), &handle->pool, &error)) {
        handle->pool = NULL;
        gpu_lua_throw(L, &error);
    }
    return 1;
}

/* gpu.pool(number) -> the pool that pool:handle() gave the number of, or nil: it is gone. */
int gpu_lua_pool_find(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int is_integer;
    lua_Integer number = lua_tointegerx(L, 1, &is_integer);
    if (lua_type(L, 1) != LUA_TNUMBER || !is_integer) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of pool: the number of a pool expected, got %s",
                     gpu_lua_describe(L, 1));
    }
    struct pool_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_POOL, sizeof *handle, 0);
    for (struct device_handle *device = g->devices; device && !handle->pool && number > 0;
         device = device->next) {
        handle->pool = gpu_pool_find(device->device, (uint64_t)number);
    }
    if (!handle->pool) {
        luaL_pushfail(L);
    }
    return 1;
}

/* pool:record(...) -> the pool: keeps these buffers until the pool is cleared or gone. PoolSealed.
 */
static int pool_record(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_pool *pool = check_pool(L, g, 1);
    int count = lua_gettop(L);
    struct gpu_error error;
    for (int i = 2; i <= count;
         i++) { /* all of them first: one that is refused leaves it as it was */
        if (!gpu_lua_test(L, g, i, GPU_LUA_KIND_BUFFER) &&
            !gpu_lua_test(L, g, i, GPU_LUA_KIND_HOST)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "argument %d of record: a buffer expected, got %s", i - 1,
                         gpu_lua_describe(L, i));
        }
        if (gpu_pool_check(pool, &gpu_lua_check_buffer(L, g, i)->ref, &error)) {
            gpu_lua_throw(L, &error);
        }
    }
    for (int i = 2; i <= count; i++) {
        if (gpu_pool_record(pool, &gpu_lua_check_buffer(L, g, i)->ref, &error)) {
            gpu_lua_throw(L, &error);
        }
    }
    lua_settop(L, 1);
    return 1;
}

static int seal(lua_State *L, bool is_sealed) {
    gpu_pool_seal(check_pool(L, GPU_LUA(L), 1), is_sealed);
    lua_settop(L, 1);
    return 1;
}

/* pool:seal() -> the pool, which from here on takes no buffer that it has not. */
static int pool_seal(lua_State *L) {
    return seal(L, true);
}
/* pool:unseal() -> the pool, which takes buffers again. */
static int pool_unseal(lua_State *L) {
    return seal(L, false);
}

/* pool:sealed() -> whether it takes no buffer that it has not */
static int pool_sealed(lua_State *L) {
    lua_pushboolean(L, gpu_pool_is_sealed(check_pool(L, GPU_LUA(L), 1)));
    return 1;
}

/* pool:count() -> buffers that it keeps */
static int pool_count(lua_State *L) {
    lua_pushinteger(L, gpu_pool_count(check_pool(L, GPU_LUA(L), 1)));
    return 1;
}

/* pool:clear() -> the pool, which keeps nothing any more. PoolInUse: a graph or a capture uses it.
 */
static int pool_clear(lua_State *L) {
    struct gpu_error error;
    if (gpu_pool_clear(check_pool(L, GPU_LUA(L), 1), &error)) {
        gpu_lua_throw(L, &error);
    }
    lua_settop(L, 1);
    return 1;
}

/* pool:handle() -> its number, for gpu.pool */
static int pool_handle_number(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)gpu_pool_number(check_pool(L, GPU_LUA(L), 1)));
    return 1;
}

static void pool_end(struct pool_handle *handle) {
    struct gpu_pool *pool = handle->pool;
    handle->pool = NULL;
    gpu_pool_release(pool);
}

/* pool:close(): ends the handle; graphs that use the pool keep it. */
static int pool_close(lua_State *L) {
    pool_end(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_POOL));
    return 0;
}

static int pool_gc(lua_State *L) {
    pool_end(lua_touserdata(L, 1));
    return 0;
}

static int pool_tostring(lua_State *L) {
    struct pool_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_POOL);
    if (handle->pool) {
        lua_pushfstring(
            L, "gpulua.pool %I on %s (%d buffers%s)", (LUAI_UACINT)gpu_pool_number(handle->pool),
            gpu_device_name(gpu_pool_device(handle->pool)), (int)gpu_pool_count(handle->pool),
            gpu_pool_is_sealed(handle->pool) ? ", sealed" : "");
    } else {
        lua_pushliteral(L, "gpulua.pool (closed)");
    }
    return 1;
}

/* ---- captures ---- */

static struct capture_handle *check_capture_at(lua_State *L, struct gpulua *g, int index) {
    struct capture_handle *handle = gpu_lua_check(L, g, index, GPU_LUA_KIND_CAPTURE);
    if (!handle->capture) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed capture");
    }
    return handle;
}

static struct capture_handle *check_capture(lua_State *L, struct gpulua *g) {
    return check_capture_at(L, g, 1);
}

static void unlink_capture(struct capture_handle *handle) {
    if (handle->link) {
        *handle->link = handle->next;
        if (handle->next) {
            handle->next->link = handle->link;
        }
        handle->link = NULL;
    }
}

static void capture_end(struct capture_handle *handle) {
    struct gpu_capture *capture = handle->capture;
    handle->capture = NULL;
    unlink_capture(handle);
    if (capture) {
        gpu_capture_cancel(capture);
        gpu_capture_release(capture);
    }
}

/* Who ends a capture belongs to none from then on; for others that it has ended comes as news. */
static void leave(struct gpulua *g, const struct capture_handle *handle) {
    struct scope *scope = gpu_lua_scope(g);
    if (scope->capture == handle->number) {
        scope->capture = 0;
    }
}

struct gpu_capture **gpu_lua_capture_new(lua_State *L, struct gpulua *g) {
    struct capture_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_CAPTURE, sizeof *handle, 0);
    handle->g = g;
    handle->number = ++g->capture_number;
    handle->next = g->captures;
    handle->link = &g->captures;
    if (handle->next) {
        handle->next->link = &handle->next;
    }
    g->captures = handle;
    return &handle->capture;
}

void gpu_lua_capture_note(lua_State *L, const struct gpu_site *site) {
    struct capture_handle *handle = lua_touserdata(L, -1);
    handle->site = *site;
}

struct gpu_capture *gpu_lua_capture_running(struct gpulua *g) {
    const struct capture_handle *handle = current(g);
    return handle ? handle->capture : NULL;
}

struct gpu_capture *gpu_lua_capture_at(lua_State *L, struct gpulua *g, int index) {
    return check_capture_at(L, g, index)->capture;
}

struct gpu_capture *gpu_lua_capture_look(lua_State *L, struct gpulua *g, int index) {
    const struct capture_handle *handle = gpu_lua_check(L, g, index, GPU_LUA_KIND_CAPTURE);
    return handle->capture;
}

struct gpu_capture *gpu_lua_capture_take(lua_State *L, struct gpulua *g) {
    struct capture_handle *handle = check_capture(L, g);
    struct gpu_capture *capture = handle->capture;
    leave(g, handle);
    handle->capture = NULL;
    unlink_capture(handle);
    return capture;
}

/* core.capture_begin(device, {label=, pool=}) -> capture. Not yet anybody's: see capture_enter and
 * capture_spawn. CaptureActive: the task is in one. */
int gpu_lua_capture_begin(lua_State *L) {
    static const char *const options[] = {"label", "pool", NULL};
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_refuse_in_sandbox(L, g, "captures"); /* nobody counts the memory of their nodes */
    (void)gpu_lua_check_device(L, g, 1, NULL);
    lua_settop(L, 2);
    if (lua_isuserdata(L, 2)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of capture: a function that launches expected, got %s: that was "
                     "launched before the capture",
                     gpu_lua_describe(L, 2));
    }
    gpu_lua_check_options(L, 2, options, "capture");
    bool has_pool = lua_istable(L, 2) && lua_getfield(L, 2, "pool") != LUA_TNIL;
    if (has_pool && !gpu_lua_test(L, g, 3, GPU_LUA_KIND_POOL)) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "pool of capture: a pool expected, got %s",
                     gpu_lua_describe(L, 3));
    }
    gpu_lua_check_eager(L, g, NULL, "a second capture in the task");
    struct gpu_submit submit = {.label = gpu_lua_push_field_string(L, 2, "label", "capture")};
    struct gpu_capture **capture = gpu_lua_capture_new(L, g);
    /* Nothing of the script's runs from here on. */
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    struct gpu_pool *pool = has_pool ? check_pool(L, g, 3) : NULL;
    submit.stream = gpu_lua_current_stream(L, g, device);
    gpu_lua_site(L, g, device, &submit.site);
    struct gpu_error error;
    if (gpu_capture_create(&submit, pool, capture, &error)) {
        *capture = NULL;
        gpu_lua_throw(L, &error);
    }
    gpu_lua_capture_note(L, &submit.site);
    return 1;
}

/* core.capture_enter(capture): the caller's task belongs to it from here on. */
int gpu_lua_capture_enter(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct scope *scope = gpu_lua_scope(g);
    scope->capture = check_capture(L, g)->number;
    scope->is_in_for_good = false;
    return 0;
}

/* core.capture_spawn(capture, f, ...) -> task that belongs to it, on its spawner's stream.
 * NotYieldable: nobody could wait for it. */
int gpu_lua_capture_spawn(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct capture_handle *handle = check_capture(L, g);
    uint64_t number = handle->number;
    const struct gpu_site site = handle->site;
    gpu_lua_check_function(L, 2, 2, "capture");
    gpu_lua_check_waits(L, g);
    struct task *task = gpu_lua_task_beside(L, g, 2, &site);
    task->scope.capture = number;
    task->scope.is_in_for_good = true;
    gpu_lua_task_ready(g, task);
    return 1;
}

void gpu_lua_capture_collect(lua_State *L, struct gpu_capture *capture) {
    if (gpu_capture_wants_collect(capture)) {
        lua_gc(L, LUA_GCCOLLECT);
    }
}

bool gpu_lua_graph_collect(lua_State *L, struct gpu_error *error) {
    if (error->code != GPULUA_OUT_OF_BUDGET && error->code != GPULUA_OUT_OF_MEMORY) {
        return false;
    }
    gpu_error_finish(error);
    lua_gc(L, LUA_GCCOLLECT);
    return true;
}

/* capture:finish() -> graph. Ends the capture. EmptyCapture, CaptureInvalidated, what the driver
 * says of the nodes. Blocks until the device has the graph. */
int gpu_lua_capture_finish(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_capture_collect(L, check_capture(L, g)->capture);
    struct graph_handle *graph = gpu_lua_new(L, g, GPU_LUA_KIND_GRAPH, sizeof *graph, 0);
    struct capture_handle *handle = check_capture(L, g); /* a finaliser may have closed it */
    leave(g, handle);
    struct gpu_error error;
    unlink_capture(handle);
    gpulua_status status = gpu_capture_finish(handle->capture, &graph->graph, &error);
    if (status) {
        graph->graph = NULL;
    }
    capture_end(handle);
    if (status) {
        gpu_lua_throw(L, &error);
    }
    return 1;
}

/* capture:count() -> nodes so far */
static int capture_count(lua_State *L) {
    lua_pushinteger(L, gpu_capture_count(check_capture(L, GPU_LUA(L))->capture));
    return 1;
}

/* capture:close(): nothing comes of it, unless it is finished. */
int gpu_lua_capture_close(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct capture_handle *handle = gpu_lua_check(L, g, 1, GPU_LUA_KIND_CAPTURE);
    leave(g, handle);
    capture_end(handle);
    return 0;
}

/* core.captures_end([number]) -> the number of the newest capture, a list of those behind `number`
 * that had not ended: {device =, label =, source = "file:line" or nil}, the newest first. They have
 * ended now; without a number none has. */
int gpu_lua_captures_end(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    uint64_t last = lua_isnoneornil(L, 1) ? UINT64_MAX : (uint64_t)luaL_checkinteger(L, 1);
    uint64_t newest = g->capture_number;
    struct capture_handle *handle;
    lua_settop(L, 0);
    lua_pushinteger(L, (lua_Integer)newest);
    lua_newtable(L);
    while ((handle = g->captures) && handle->number > last) {
        if (!handle->capture) { /* it could not begin */
            unlink_capture(handle);
            continue;
        }
        char label[256], name[64]; /* copies: its device may end with it */
        snprintf(label, sizeof label, "%s", gpu_capture_label(handle->capture));
        snprintf(name, sizeof name, "%s", gpu_device_name(gpu_capture_device(handle->capture)));
        struct gpu_site site = handle->site;
        char source[256] = "";
        snprintf(source, sizeof source, "%s", site.source ? site.source : "");
        leave(g, handle);
        capture_end(handle); /* first: what follows may collect it */
        lua_createtable(L, 0, 3);
        lua_pushstring(L, name);
        lua_setfield(L, -2, "device");
        lua_pushstring(L, label);
        lua_setfield(L, -2, "label");
        gpu_lua_set_source(L, source[0] ? source : NULL, site.line);
        lua_rawseti(L, 2, (lua_Integer)lua_rawlen(L, 2) + 1);
    }
    return 2;
}

static int capture_gc(lua_State *L) {
    capture_end(lua_touserdata(L, 1));
    return 0;
}

static int capture_tostring(lua_State *L) {
    struct capture_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_CAPTURE);
    if (handle->capture) {
        lua_pushfstring(L, "gpulua.capture on %s (%d nodes)",
                        gpu_device_name(gpu_capture_device(handle->capture)),
                        (int)gpu_capture_count(handle->capture));
    } else {
        lua_pushliteral(L, "gpulua.capture (closed)");
    }
    return 1;
}

/* ---- graphs ---- */

static struct gpu_graph *open_graph(lua_State *L, const struct graph_handle *handle) {
    if (!handle->graph) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed graph");
    }
    return handle->graph;
}

struct graph_handle *gpu_lua_graph_handle(lua_State *L, struct gpulua *g,
                                          const struct lua_call *call, int index) {
    struct graph_handle *handle =
        gpu_lua_test_argument(L, g, index, gpu_lua_argument(call, index), GPU_LUA_KIND_GRAPH);
    return handle ? handle /* else that says what it is */
                  : gpu_lua_check(L, g, index, GPU_LUA_KIND_GRAPH);
}

struct graph_handle *gpu_lua_check_graph_handle(lua_State *L, struct gpulua *g, int index) {
    struct graph_handle *handle = gpu_lua_graph_handle(L, g, NULL, index);
    (void)open_graph(L, handle);
    return handle;
}

struct gpu_graph *gpu_lua_check_graph(lua_State *L, struct gpulua *g, int index) {
    return gpu_lua_check_graph_handle(L, g, index)->graph;
}

static struct gpu_graph *check_graph(lua_State *L, struct gpulua *g) {
    return gpu_lua_check_graph(L, g, 1);
}

/* Behind it nothing of Lua's is made until the work is submitted: that may run finalisers, which
 * may close what this looks at. */
static struct gpu_graph *submit_for(lua_State *L, struct gpulua *g,
                                    const struct gpu_lua_graph_call *call, const char *what,
                                    struct gpu_submit *submit) {
    static const char *const names[] = {"stream", "label", NULL};
    int options = call->options;
    *submit = (struct gpu_submit){0};
    if (options) {
        gpu_lua_check_options(L, options, names, what);
        submit->label = gpu_lua_push_field_string(L, options, "label", what);
        if (lua_getfield(L, options, "stream") != LUA_TNIL) {
            if (!gpu_lua_test(L, g, -1, GPU_LUA_KIND_STREAM)) {
                gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "stream of %s: a stream expected, got %s",
                             what, gpu_lua_describe(L, -1));
            }
            submit->stream = gpu_lua_check_stream(L, g, -1);
        }
    }
    struct gpu_graph *graph = open_graph(L, call->handle);
    struct gpu_device *device = gpu_graph_device(graph);
    if (!submit->stream) {
        submit->stream = gpu_lua_current_stream(L, g, device);
    }
    if (__builtin_expect(gpu_lua_scope(g)->capture != 0, 0)) {
        submit->capture = gpu_lua_capture_find(L, g, device);
    }
    gpu_lua_site_of(L, g, call->call, device, &submit->site);
    return graph;
}

enum gpu_lua_submitted gpu_lua_graph_submit(lua_State *L, struct gpulua *g,
                                            const struct gpu_lua_graph_call *call,
                                            bool may_be_gone) {
    struct gpu_op **op = gpu_lua_is_result_wanted(call->call) ? gpu_lua_op_new(L, g) : NULL;
    int top = op ? lua_gettop(L) : 0;
    struct gpu_submit submit;
    struct gpu_graph *graph = submit_for(L, g, call, "launch", &submit);
    struct gpu_error error;
    gpulua_status status = gpu_graph_launch(graph, &submit, op, &error);
    if (__builtin_expect(status != GPULUA_OK, 0)) {
        if (op) {
            *op = NULL;
        }
        /* It may have had to be made anew on the device. */
        if (!submit.capture && gpu_lua_graph_collect(L, &error)) {
            graph = submit_for(L, g, call, "launch", &submit);
            status = gpu_graph_launch(graph, &submit, op, &error);
        }
    }
    if (status) {
        if (op) {
            *op = NULL;
        }
        if (may_be_gone && (status == GPULUA_STALE || status == GPULUA_USE_AFTER_FREE)) {
            gpu_error_finish(&error);
            return GPU_LUA_NOT_SUBMITTED;
        }
        gpu_lua_throw(L, &error);
    }
    if (!op) {
        return GPU_LUA_NOTHING_PUSHED;
    }
    gpu_lua_op_loosen(op);
    lua_settop(L, top);
    return GPU_LUA_OP_PUSHED;
}

/* graph:launch({stream=, label=}) -> op. All nodes as one operation; in a capture, its nodes become
 * that capture's. UseAfterFree: a buffer of it was freed. Blocks only while too much is in flight.
 */
int gpu_lua_graph_launch(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_lua_graph_call call = {.call = gpu_lua_call(L, &g->caller)};
    int count = lua_gettop(L); /* behind it lies what was there before */
    call.options = count < 2 || lua_isnil(L, 2) ? 0 : 2;
    call.handle = gpu_lua_graph_handle(L, g, count > 0 ? call.call : NULL, 1);
    return gpu_lua_graph_submit(L, g, &call, false) == GPU_LUA_OP_PUSHED;
}

/* graph:upload({stream=}) -> the graph: what the first launch would do beside launching. Only the
 * first call does something. */
int gpu_lua_graph_upload(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const struct graph_handle *handle = gpu_lua_check_graph_handle(L, g, 1);
    gpu_lua_check_eager(L, g, gpu_graph_device(handle->graph), "an upload");
    lua_settop(L, 2);
    const struct gpu_lua_graph_call call = {
        .call = gpu_lua_call(L, &g->caller), .handle = handle, .options = lua_isnil(L, 2) ? 0 : 2};
    struct gpu_submit submit;
    struct gpu_graph *graph = submit_for(L, g, &call, "upload", &submit);
    struct gpu_error error;
    gpulua_status status = gpu_graph_upload(graph, &submit, &error);
    if (status && gpu_lua_graph_collect(L, &error)) {
        graph = submit_for(L, g, &call, "upload", &submit);
        status = gpu_graph_upload(graph, &submit, &error);
    }
    if (status) {
        gpu_lua_throw(L, &error);
    }
    lua_settop(L, 1);
    return 1;
}

/* graph:fork() -> a second graph of the same nodes, with temporaries and a pool of its own: replays
 * of both run beside each other as far as they do not write the same; graph:bind gives it other
 * buffers. UseAfterFree: a buffer of it was freed. Unsupported: it has conditional nodes. Blocks
 * until the device has the graph. */
static int graph_fork(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_check_eager(L, g, gpu_graph_device(check_graph(L, g)), "a fork");
    struct graph_handle *fork = gpu_lua_new(L, g, GPU_LUA_KIND_GRAPH, sizeof *fork, 0);
    struct gpu_device *device = gpu_graph_device(check_graph(L, g));
    struct gpu_submit submit = {.stream = gpu_lua_current_stream(L, g, device)};
    gpu_lua_site(L, g, device, &submit.site);
    struct gpu_error error;
    gpulua_status status = gpu_graph_fork(check_graph(L, g), &submit, &fork->graph, &error);
    if (status && gpu_lua_graph_collect(L, &error)) {
        submit.stream = gpu_lua_current_stream(L, g, gpu_graph_device(check_graph(L, g)));
        status = gpu_graph_fork(check_graph(L, g), &submit, &fork->graph, &error);
    }
    if (status) {
        fork->graph = NULL;
        gpu_lua_throw(L, &error);
    }
    return 1;
}

/* graph:nodes() -> nodes, edges */
static int graph_nodes(lua_State *L) {
    struct gpu_graph_info info;
    gpu_graph_info(check_graph(L, GPU_LUA(L)), &info);
    lua_pushinteger(L, info.node_count);
    lua_pushinteger(L, info.edge_count);
    return 2;
}

/* graph:replays() -> launches so far */
static int graph_replays(lua_State *L) {
    struct gpu_graph_info info;
    gpu_graph_info(check_graph(L, GPU_LUA(L)), &info);
    lua_pushinteger(L, (lua_Integer)info.replays);
    return 1;
}

/* graph:pool() -> the pool that keeps its buffers */
static int graph_pool(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)check_graph(L, g);
    struct pool_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_POOL, sizeof *handle, 0);
    handle->pool = gpu_pool_retain(gpu_graph_pool(check_graph(L, g)));
    return 1;
}

/* graph:dot([path]) -> the graph as text for Graphviz. init.lua writes it into a file. */
static int graph_dot(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    size_t room = 0, bytes;
    char *text = NULL;
    gpu_device_trace_flush(gpu_graph_device(check_graph(L, g)));
    /* A finaliser may have closed it, or times have come meanwhile. */
    while ((bytes = gpu_graph_dot(check_graph(L, g), text, room)) >= room) {
        room = bytes + 1;
        text = lua_newuserdatauv(L, room, 0);
    }
    lua_pushlstring(L, text, bytes);
    return 1;
}

static void graph_end(struct graph_handle *handle) {
    struct gpu_graph *graph = handle->graph;
    handle->graph = NULL;
    gpu_graph_release(graph);
    free(handle->last);
    handle->last = NULL;
}

/* graph:close(): ends the handle; launches in flight go on. */
static int graph_close(lua_State *L) {
    graph_end(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_GRAPH));
    return 0;
}

static int graph_gc(lua_State *L) {
    struct graph_handle *handle = lua_touserdata(L, 1);
    handle->tag.metatable = NULL;
    graph_end(handle);
    return 0;
}

static int graph_tostring(lua_State *L) {
    struct graph_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_GRAPH);
    if (handle->graph) {
        struct gpu_graph_info info;
        gpu_graph_info(handle->graph, &info);
        lua_pushfstring(L, "gpulua.graph on %s (%d nodes, %d edges)%s%s%s",
                        gpu_device_name(gpu_graph_device(handle->graph)), (int)info.node_count,
                        (int)info.edge_count, info.label[0] ? " (" : "", info.label,
                        info.label[0] ? ")" : "");
    } else {
        lua_pushliteral(L, "gpulua.graph (closed)");
    }
    return 1;
}

bool gpu_lua_graph_is_closed(enum gpu_lua_kind kind, const void *handle) {
    if (kind == GPU_LUA_KIND_POOL) {
        return !((const struct pool_handle *)handle)->pool;
    }
    return kind == GPU_LUA_KIND_GRAPH ? !((const struct graph_handle *)handle)->graph
                                      : !((const struct capture_handle *)handle)->capture;
}

void gpu_lua_graph_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg capture_methods[] = {{"finish", gpu_lua_capture_finish},
                                               {"count", capture_count},
                                               {"close", gpu_lua_capture_close},
                                               {NULL, NULL}};
    static const luaL_Reg capture_metamethods[] = {{"__gc", capture_gc},
                                                   {"__close", gpu_lua_capture_close},
                                                   {"__tostring", capture_tostring},
                                                   {NULL, NULL}};
    static const luaL_Reg methods[] = {{"launch", gpu_lua_graph_launch},
                                       {"upload", gpu_lua_graph_upload},
                                       {"bind", gpu_lua_graph_bind},
                                       {"fork", graph_fork},
                                       {"nodes", graph_nodes},
                                       {"replays", graph_replays},
                                       {"dot", graph_dot},
                                       {"pool", graph_pool},
                                       {"close", graph_close},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {
        {"__gc", graph_gc}, {"__close", graph_close}, {"__tostring", graph_tostring}, {NULL, NULL}};
    static const luaL_Reg pool_methods[] = {
        {"record", pool_record},        {"seal", pool_seal},   {"unseal", pool_unseal},
        {"sealed", pool_sealed},        {"count", pool_count}, {"clear", pool_clear},
        {"handle", pool_handle_number}, {"close", pool_close}, {NULL, NULL}};
    static const luaL_Reg pool_metamethods[] = {
        {"__gc", pool_gc}, {"__close", pool_close}, {"__tostring", pool_tostring}, {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_POOL, pool_methods, pool_metamethods);
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_CAPTURE, capture_methods, capture_metamethods);
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_GRAPH, methods, metamethods);
}
