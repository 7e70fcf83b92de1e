/* Captures and graphs as hosts make them and launch them: what gpulua.h promises. On the device
 * that GPULUA_DEVICE names, under both transports. */
#include "host/exchange.h"

static gpulua *open_device(gpulua_isolation isolation) {
    const char *device = getenv("GPULUA_DEVICE");
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = device != NULL && device[0] != '\0' ? device : "cpu";
    config.isolation = isolation;
    config.on_error = print_error;
    return gpulua_new(&config);
}

static bool is_capturing(lua_State *L, int index, gpulua_capturing wanted, uint64_t node_count) {
    gpulua_capture_state state;
    bool good = gpulua_capture_describe(L, index, &state) == GPULUA_OK &&
                state.struct_bytes == sizeof state && state.capturing == wanted &&
                state.node_count == node_count;
    if (!good) {
        printf("# %d, %d nodes\n", (int)state.capturing, (int)state.node_count);
    }
    return good;
}

/* Calls the script's function as a host does, outside of tasks. */
static bool call(lua_State *L, const char *name) {
    lua_getglobal(L, name);
    bool good = lua_pcall(L, 0, 0, 0) == LUA_OK;
    if (!good) {
        printf("# %s\n", luaL_tolstring(L, -1, NULL));
        lua_pop(L, 2);
    }
    return good;
}

/* Waits for what a graph writes, and reads the host buffer `h` of the script. */
static bool h_is(gpulua *g, double first) {
    void *bytes = NULL;
    gpulua_buffer *h = global_buffer(g, "h");
    CHECK(run(g, "h:copy(x) ok = true"));
    bool good = gpulua_buffer_map(g, h, GPULUA_READ, &bytes) == GPULUA_OK &&
                (double)((float *)bytes)[0] == first;
    if (bytes && !good) {
        printf("# %g, wanted %g\n", (double)((float *)bytes)[0], first);
    }
    gpulua_buffer_release(h);
    return good;
}

static const char script[] =
    "x, h = dev:buffer('f32', 4, {label = 'x'}):fill(0), dev:host('f32', 4)\n"
    "s = dev:stream {} pool = dev:pool()\n"
    "function work() mod.add:launch(one, x, 4) mod.add:launch({grid = 1, block = 1, stream = s}, "
    "x, "
    "4) end\n"
    "function temporary() local t = dev:buffer('f32', 4) t:copy(x) x:copy(t) t:close() end\n"
    "dev:synchronize() ok = true";

static void test_graph(gpulua *g) {
    lua_State *L = gpulua_state(g);
    gpulua_capture_info info;
    gpulua_launch_info launch;
    gpulua_capture_info_init(&info);
    info.label = "step";
    CHECK(gpulua_push_capture(L, &info) == GPULUA_OK && lua_gettop(L) == 1);
    CHECK(is_capturing(L, 1, GPULUA_CAPTURING_ACTIVE, 0));
    CHECK(call(L, "work") && is_capturing(L, -1, GPULUA_CAPTURING_ACTIVE, 2));
    CHECK(run(g, "ok = x:read()[1] == 0")); /* a task works on, and nothing has been done */
    CHECK(gpulua_capture_finish(L, -1) == GPULUA_OK && lua_gettop(L) == 2);
    CHECK(is_capturing(L, 1, GPULUA_CAPTURING_NONE, 0));
    lua_pushvalue(L, 2);
    lua_setglobal(L, "graph");
    CHECK(run(g, "local nodes, edges = graph:nodes()\n"
                 "ok = nodes == 2 and edges == 1 and tostring(graph):find('(step)', 1, true)"));
    CHECK(gpulua_graph_upload(L, 2, NULL) == GPULUA_OK);
    CHECK(gpulua_graph_upload(L, 2, NULL) == GPULUA_OK);
    CHECK(gpulua_graph_launch(L, 2, NULL) == GPULUA_OK && lua_gettop(L) == 2 && h_is(g, 2));
    gpulua_launch_info_init(&launch);
    launch.label = "frame";
    lua_getglobal(L, "s");
    launch.stream_index = -1;
    CHECK(gpulua_graph_launch(L, -2, &launch) == GPULUA_OK && h_is(g, 4));
    CHECK(run(g, "graph:launch():await() ok = x:read()[4] == 6 and graph:replays() == 3"));
    /* What the host calls is eager again. */
    CHECK(call(L, "work") && h_is(g, 8));
    /* Launched in a capture its nodes are that capture's; an upload would be done at once. */
    lua_settop(L, 2);
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK);
    FAILS(gpulua_graph_upload(L, 2, NULL), GPULUA_CAPTURE_ACTIVE, "an upload");
    CHECK(gpulua_graph_launch(L, 2, NULL) == GPULUA_OK &&
          is_capturing(L, 3, GPULUA_CAPTURING_ACTIVE, 2));
    CHECK(gpulua_capture_finish(L, 3) == GPULUA_OK && h_is(g, 8));
    CHECK(gpulua_graph_launch(L, -1, NULL) == GPULUA_OK && h_is(g, 10));
    /* The host waits by a recorder, where memory is not its own. */
    gpulua_recorder *r = NULL;
    gpulua_buffer *x = global_buffer(g, "x");
    CHECK(gpulua_graph_launch(L, -1, NULL) == GPULUA_OK);
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_read(r, x, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK && gpulua_recorder_wait(g, r) == GPULUA_OK);
    CHECK(run(g, "ok = x:done()"));
    CHECK(gpulua_recorder_commit(g, r) == GPULUA_OK);
    gpulua_recorder_release(r);
    gpulua_buffer_release(x);
    CHECK(run(g, "ok = x:read()[1] == 12"));
    CHECK(run(g, "graph:close() ok = true"));
    FAILS(gpulua_graph_launch(L, 2, NULL), GPULUA_CLOSED, "closed graph");
    FAILS(gpulua_graph_upload(L, 2, NULL), GPULUA_CLOSED, "closed graph");
    lua_settop(L, 0);
}

/* Memory: of the graph's own, of a pool; made by the host itself. */
static void test_memory(gpulua *g) {
    lua_State *L = gpulua_state(g);
    gpulua_capture_info info;
    gpulua_buffer_info want;
    gpulua_buffer *y = NULL;
    gpulua_capture_info_init(&info);
    lua_getglobal(L, "dev");
    lua_getglobal(L, "pool");
    info.device_index = 1;
    info.pool_index = -1;
    CHECK(run(g, "x:fill(1) ok = pool:count() == 0"));
    CHECK(gpulua_push_capture(L, &info) == GPULUA_OK);
    CHECK(call(L, "temporary") && call(L, "work"));
    gpulua_buffer_info_init(&want);
    want.type = "f32";
    want.dim_count = 1;
    want.shape[0] = 4;
    CHECK(gpulua_buffer_new(L, 1, &want, &y) == GPULUA_OK);
    set_global(g, "y", y);
    lua_getglobal(L, "y");
    CHECK(luaL_dostring(L, "y:copy(x)") == LUA_OK);
    lua_settop(L, 3);
    CHECK(gpulua_capture_finish(L, -1) == GPULUA_OK);
    CHECK(run(g, "ok = pool:count() >= 2"));
    CHECK(gpulua_graph_launch(L, -1, NULL) == GPULUA_OK && h_is(g, 3));
    CHECK(run(g, "ok = y:read()[4] == 3")); /* it was kept, so it is an ordinary buffer */
    CHECK(run(g, "y:close() y = nil pool:seal() ok = true"));
    gpulua_buffer_release(y);
    CHECK(gpulua_push_capture(L, &info) == GPULUA_INVALID_ARGUMENT); /* -1 is the graph */
    info.pool_index = 2;
    CHECK(gpulua_push_capture(L, &info) == GPULUA_OK);
    CHECK(gpulua_buffer_new(L, 1, &want, &y) == GPULUA_POOL_SEALED && y == NULL);
    CHECK(gpulua_capture_cancel(L, -1) == GPULUA_OK);
    lua_settop(L, 0);
    CHECK(run(g, "collectgarbage() collectgarbage() pool:unseal() pool:clear() ok = true"));
}

/* What waits or is the host's own cannot be captured, and the capture goes on. */
static void test_refused(gpulua *g) {
    lua_State *L = gpulua_state(g);
    gpulua_buffer *x = global_buffer(g, "x"), *h = global_buffer(g, "h");
    struct DLManagedTensorVersioned *tensor = NULL;
    gpulua_recorder *r = NULL, *before = NULL;
    void *bytes;
    CHECK(gpulua_recorder_new(L, NULL, &before) == GPULUA_OK);
    gpulua_recorder_read(before, x, "x");
    CHECK(gpulua_recorder_preflight(g, before) == GPULUA_OK);
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK);
    FAILS(gpulua_push_capture(L, NULL), GPULUA_CAPTURE_ACTIVE, "a second capture in the task");
    FAILS(gpulua_buffer_map(g, h, GPULUA_READ, &bytes), GPULUA_CAPTURE_ACTIVE, "map");
    CHECK(bytes == NULL);
    FAILS(gpulua_dlpack_export(L, h, NULL, &tensor), GPULUA_CAPTURE_ACTIVE, "an export");
    CHECK(tensor == NULL);
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_write(r, x, "x");
    FAILS(gpulua_recorder_preflight(g, r), GPULUA_CAPTURE_ACTIVE, "own work");
    gpulua_recorder_cancel(r);
    gpulua_recorder_release(r);
    FAILS(gpulua_recorder_wait(g, before), GPULUA_CAPTURE_ACTIVE, "a wait");
    CHECK(gpulua_recorder_commit(g, before) == GPULUA_OK);
    gpulua_recorder_release(before);
    CHECK(luaL_dostring(L, "return select(2, pcall(x.read, x)).code") == LUA_OK &&
          strcmp(lua_tostring(L, -1), "CaptureActive") == 0);
    lua_settop(L, 1);
    CHECK(call(L, "work") && is_capturing(L, 1, GPULUA_CAPTURING_ACTIVE, 2));
    CHECK(gpulua_capture_finish(L, 1) == GPULUA_OK);
    CHECK(gpulua_buffer_map(g, h, GPULUA_READ, &bytes) == GPULUA_OK);
    lua_settop(L, 0);
    gpulua_buffer_release(x);
    gpulua_buffer_release(h);
}

static void test_ends(gpulua *g) {
    lua_State *L = gpulua_state(g);
    gpulua_capture_state state;
    gpulua_capture_info info;
    gpulua_launch_info launch;
    CHECK(run(g, "x:fill(0) ok = true"));
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK);
    FAILS(gpulua_capture_finish(L, 1), GPULUA_EMPTY_CAPTURE, "nothing");
    CHECK(lua_gettop(L) == 1 && is_capturing(L, 1, GPULUA_CAPTURING_NONE, 0));
    FAILS(gpulua_capture_finish(L, 1), GPULUA_CLOSED, "closed capture");
    CHECK(gpulua_capture_cancel(L, 1) == GPULUA_OK && gpulua_capture_cancel(L, 1) == GPULUA_OK);
    /* Cancelled: nothing of it is done, and what follows is. */
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work"));
    CHECK(gpulua_capture_cancel(L, 2) == GPULUA_OK && h_is(g, 0));
    CHECK(call(L, "work") && h_is(g, 2));
    /* A script that closes it, in another task. */
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work"));
    lua_pushvalue(L, 3);
    lua_setglobal(L, "c");
    CHECK(run(g, "c:close() ok = true") && is_capturing(L, 3, GPULUA_CAPTURING_NONE, 0));
    CHECK(call(L, "work") && h_is(g, 4));
    /* One that is dropped ends with the collector. */
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK);
    lua_settop(L, 0);
    lua_gc(L, LUA_GCCOLLECT);
    CHECK(call(L, "work") && h_is(g, 6));
    /* An error of what the host calls leaves it to the host. */
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work"));
    CHECK(luaL_dostring(L, "mod.add:launch(one, 5, 4)") != LUA_OK);
    lua_settop(L, 1);
    CHECK(is_capturing(L, 1, GPULUA_CAPTURING_ACTIVE, 2));
    CHECK(gpulua_capture_finish(L, 1) == GPULUA_OK);
    CHECK(gpulua_graph_launch(L, 2, NULL) == GPULUA_OK && h_is(g, 8));
    /* Bad input. */
    lua_settop(L, 0);
    lua_pushinteger(L, 5);
    FAILS(gpulua_capture_describe(L, 1, &state), GPULUA_INVALID_ARGUMENT, "capture expected");
    CHECK(state.capturing == GPULUA_CAPTURING_NONE && state.struct_bytes == sizeof state);
    FAILS(gpulua_capture_finish(L, 1), GPULUA_INVALID_ARGUMENT, "capture expected");
    FAILS(gpulua_capture_cancel(L, 1), GPULUA_INVALID_ARGUMENT, "capture expected");
    FAILS(gpulua_graph_launch(L, 1, NULL), GPULUA_INVALID_ARGUMENT, "graph expected");
    FAILS(gpulua_graph_upload(L, 1, NULL), GPULUA_INVALID_ARGUMENT, "graph expected");
    gpulua_capture_info_init(&info);
    info.device_index = 1;
    FAILS(gpulua_push_capture(L, &info), GPULUA_INVALID_ARGUMENT, "device expected");
    info.device_index = 0;
    info.pool_index = 1;
    FAILS(gpulua_push_capture(L, &info), GPULUA_INVALID_ARGUMENT, "pool expected");
    info.struct_bytes--;
    FAILS(gpulua_push_capture(L, &info), GPULUA_INVALID_ARGUMENT, "capture_info_init");
    gpulua_launch_info_init(&launch);
    launch.stream_index = 1;
    lua_getglobal(L, "graph");
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work") &&
          gpulua_capture_finish(L, -1) == GPULUA_OK);
    FAILS(gpulua_graph_launch(L, -1, &launch), GPULUA_INVALID_ARGUMENT, "stream expected");
    launch.struct_bytes--;
    FAILS(gpulua_graph_launch(L, -1, &launch), GPULUA_INVALID_ARGUMENT, "launch_info_init");
    FAILS(gpulua_graph_upload(L, -1, &launch), GPULUA_INVALID_ARGUMENT, "launch_info_init");
    /* A buffer that is gone. */
    CHECK(run(g, "x:free() ok = true"));
    FAILS(gpulua_graph_launch(L, -1, NULL), GPULUA_USE_AFTER_FREE, "freed");
    lua_settop(L, 0);
}

/* The device is closed under a capture and a graph. */
/* A global that is not there, say: nil at an index is never taken for the index 0. */
static void test_nil(gpulua *g) {
    static const char nil_expected[] = "there is nil at an index";
    lua_State *L = gpulua_state(g);
    gpulua_buffer_info buffer_info;
    gpulua_capture_info capture;
    gpulua_exchange exchange;
    gpulua_hooks hooks;
    gpulua_launch_info launch;
    gpulua_memory_info memory;
    gpulua_recorder_info recorder_info;
    gpulua_buffer *buffer = NULL, *x = global_buffer(g, "x");
    gpulua_recorder *recorder = NULL;
    struct DLManagedTensorVersioned *tensor = NULL;
    lua_settop(L, 0);
    lua_pushnil(L);
    gpulua_buffer_info_init(&buffer_info);
    buffer_info.type = "f32";
    buffer_info.dim_count = 1;
    buffer_info.shape[0] = 4;
    FAILS(gpulua_buffer_new(L, 1, &buffer_info, &buffer), GPULUA_INVALID_ARGUMENT, nil_expected);
    FAILS(gpulua_inject_slow(L, 1, NULL, 0), GPULUA_INVALID_ARGUMENT, nil_expected);
    gpulua_hooks_init(&hooks);
    FAILS(gpulua_set_hooks(L, 1, &hooks), GPULUA_INVALID_ARGUMENT, nil_expected);
    FAILS(gpulua_set_hooks(L, 1, NULL), GPULUA_INVALID_ARGUMENT, nil_expected);
    gpulua_memory_info_init(&memory);
    FAILS(gpulua_push_memory(L, 1, &memory), GPULUA_INVALID_ARGUMENT, nil_expected);
    memory.from_index = 1;
    FAILS(gpulua_push_memory(L, 0, &memory), GPULUA_INVALID_ARGUMENT, nil_expected);
    gpulua_recorder_info_init(&recorder_info);
    recorder_info.device_index = 1;
    FAILS(gpulua_recorder_new(L, &recorder_info, &recorder), GPULUA_INVALID_ARGUMENT, nil_expected);
    gpulua_exchange_init(&exchange);
    exchange.order = GPULUA_ORDER_STREAM;
    exchange.stream = 1;
    exchange.stream_index = 1;
    FAILS(gpulua_dlpack_export(L, x, &exchange, &tensor), GPULUA_INVALID_ARGUMENT, nil_expected);
    gpulua_capture_info_init(&capture);
    capture.device_index = 1;
    FAILS(gpulua_push_capture(L, &capture), GPULUA_INVALID_ARGUMENT, nil_expected);
    capture.device_index = 0;
    capture.pool_index = 1;
    FAILS(gpulua_push_capture(L, &capture), GPULUA_INVALID_ARGUMENT, nil_expected);
    gpulua_launch_info_init(&launch);
    launch.stream_index = 1;
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work") &&
          gpulua_capture_finish(L, -1) == GPULUA_OK);
    FAILS(gpulua_graph_launch(L, -1, &launch), GPULUA_INVALID_ARGUMENT, nil_expected);
    FAILS(gpulua_graph_upload(L, -1, &launch), GPULUA_INVALID_ARGUMENT, nil_expected);
    launch.stream_index = 0;
    CHECK(gpulua_graph_launch(L, -1, &launch) == GPULUA_OK && lua_gettop(L) == 3);
    CHECK(run(g, "x:fill(0) ok = true"));
    lua_settop(L, 0);
    gpulua_buffer_release(x);
}

static void test_closed(gpulua *g) {
    lua_State *L = gpulua_state(g);
    CHECK(run(g, script));
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work"));
    CHECK(gpulua_capture_finish(L, 1) == GPULUA_OK);
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work"));
    CHECK(run(g, "dev:close() ok = true"));
    CHECK(is_capturing(L, 3, GPULUA_CAPTURING_INVALIDATED, 2));
    FAILS(gpulua_capture_finish(L, 3), GPULUA_CLOSED, "closed");
    CHECK(is_capturing(L, 3, GPULUA_CAPTURING_NONE, 0));
    FAILS(gpulua_graph_launch(L, 2, NULL), GPULUA_CLOSED, "closed");
    lua_settop(L, 0);
}

/* C functions that a task calls: its own captures, in its coroutine. */
static int begin(lua_State *L) {
    lua_pushstring(L, gpulua_status_name(gpulua_push_capture(L, NULL)));
    return lua_gettop(L); /* a capture, if there is one, and the status */
}
static int finish(lua_State *L) {
    if (gpulua_capture_finish(L, 1) == GPULUA_OK) {
        gpulua_graph_launch(L, -1, NULL);
        return 1;
    }
    return 0;
}

static void test_tasks(gpulua *g) {
    lua_State *L = gpulua_state(g);
    lua_register(L, "begin", begin);
    lua_register(L, "finish", finish);
    CHECK(run(g, script));
    CHECK(run(g, "local b = gpu.spawn(function() x:fill(10) end)\n"
                 "gpu.spawn(function()\n"
                 "  local c, status = begin()\n"
                 "  assert(status == 'OK' and begin() == 'CaptureActive')\n"
                 "  work()\n"
                 "  gpu.spawn(work):await()\n" /* a child of it */
                 "  b:await()\n"               /* another task, which works on */
                 "  assert(c:count() == 4)\n"
                 "  finish(c)\n"
                 "  work()\n"
                 "end):await()\n"
                 "ok = x:read()[1] == 16"));
    /* The host's own capture ends with the object. */
    CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK && call(L, "work"));
}

int main(void) {
    static const gpulua_isolation isolations[] = {GPULUA_ISOLATE_NONE, GPULUA_ISOLATE_PROCESS,
                                                  GPULUA_ISOLATE_THREAD};
    for (int i = 0; i < 3; i++) {
        gpulua *g = open_device(isolations[i]);
        if (CHECK(g != NULL && run(g, prelude) && run(g, script))) {
            test_graph(g);
            test_memory(g);
            test_refused(g);
            test_nil(g);
            test_ends(g);
            test_tasks(g);
        }
        gpulua_close(g);
        g = open_device(isolations[i]);
        if (CHECK(g != NULL && run(g, prelude))) {
            test_closed(g);
        }
        gpulua_close(g);
    }
    return tap_finish(&tap);
}
