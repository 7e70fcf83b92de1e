/* Buffers and recorders as hosts hold them: what gpulua.h promises. */
#include "host/exchange.h"

static void test_buffers(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    gpulua_buffer *x = NULL, *y = NULL;
    gpulua_buffer_info info;
    void *bytes = NULL;
    CHECK(run(g, prelude));
    CHECK(run(g, "x = dev:upload('f32', {1, 2, 3, 4, 5, 6}) s = x:slice(3, 4)\n"
                 "h = dev:host('i16', {2, 3}, {label = 'h'}) h[1] = 7 ok = true"));
    x = global_buffer(g, "x");
    gpulua_buffer_describe(x, &info);
    CHECK(info.struct_bytes == sizeof info && strcmp(info.type, "f32") == 0);
    CHECK(info.dim_count == 1 && info.shape[0] == 6 && info.elem_count == 6 &&
          info.byte_count == 24);
    CHECK(strcmp(info.device_kind, "cpu") == 0 && info.device_ordinal == 0);
    CHECK(!info.is_host && !info.is_external && !info.is_read_only && info.is_usable);
    CHECK(info.label == NULL);
    CHECK(gpulua_buffer_map(g, x, GPULUA_READ, &bytes) == GPULUA_OK);
    CHECK(((float *)bytes)[5] == 6);
    y = global_buffer(g, "s"); /* a slice: that range */
    void *inside = NULL;
    CHECK(gpulua_buffer_map(g, y, GPULUA_READ_WRITE, &inside) == GPULUA_OK);
    CHECK((char *)inside == (char *)bytes + 8);
    ((float *)inside)[0] = 30;
    CHECK(run(g, "ok = x:read()[3] == 30"));
    gpulua_buffer_release(y);
    y = global_buffer(g, "h");
    gpulua_buffer_describe(y, &info);
    CHECK(info.is_host && info.dim_count == 2 && info.shape[0] == 2 && info.shape[1] == 3);
    CHECK(strcmp(info.label, "h") == 0 && strcmp(info.type, "i16") == 0);
    CHECK(gpulua_buffer_map(g, y, GPULUA_WRITE, &bytes) == GPULUA_OK);
    CHECK(((int16_t *)bytes)[0] == 7);
    ((int16_t *)bytes)[5] = 9;
    CHECK(run(g, "ok = h[6] == 9"));
    /* The host's hold and the script's are apart. */
    CHECK(run(g, "h:close() h = nil collectgarbage() ok = true"));
    CHECK(gpulua_buffer_map(g, y, GPULUA_READ, &bytes) == GPULUA_OK && ((int16_t *)bytes)[5] == 9);
    set_global(g, "h2", y);
    CHECK(run(g, "ok = h2[6] == 9 and h2.type == 'i16' and #h2.shape == 2 and h2.label == 'h'"));
    CHECK(gpulua_buffer_retain(y) == y);
    gpulua_buffer_release(y);
    gpulua_buffer_release(y);
    CHECK(run(g, "ok = h2[6] == 9"));
    /* The same memory: what is launched on one is ordered for the other. */
    set_global(g, "x2", x);
    CHECK(
        run(g, "mod.add:launch(one, x, 6) ok = x2:read()[1] == 2 x2:close() ok = ok and #x == 6"));
    CHECK(run(g, "x:free() ok = true"));
    gpulua_buffer_describe(x, &info);
    CHECK(!info.is_usable && info.elem_count == 6);
    FAILS(gpulua_buffer_map(g, x, GPULUA_READ, &bytes), GPULUA_USE_AFTER_FREE, "was freed");
    FAILS(gpulua_push_buffer(L, x), GPULUA_USE_AFTER_FREE, "was freed");
    gpulua_buffer_release(x);
    lua_pushinteger(L, 5);
    FAILS(gpulua_to_buffer(L, -1, &x), GPULUA_INVALID_ARGUMENT, "buffer expected");
    CHECK(x == NULL && lua_gettop(L) == 1);
    lua_settop(L, 0);
    CHECK(run(g, "c = dev:buffer('f32', 1) c:close() ok = true"));
    lua_getglobal(L, "c");
    FAILS(gpulua_to_buffer(L, -1, &x), GPULUA_CLOSED, "closed buffer");
    lua_settop(L, 0);
    gpulua_buffer_release(NULL);
    gpulua_close(g);
}

static void test_new(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE), *other = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    gpulua_buffer *x = NULL;
    gpulua_buffer_info info;
    void *bytes = NULL;
    gpulua_buffer_info_init(&info);
    info.type = "f64";
    info.dim_count = 2;
    info.shape[0] = 3;
    info.shape[1] = 4;
    info.label = "mine";
    CHECK(gpulua_buffer_new(L, 0, &info, &x) == GPULUA_OK && lua_gettop(L) == 0);
    set_global(g, "x", x);
    CHECK(run(g, "ok = x.label == 'mine' and #x == 12 and x.shape[2] == 4\n"
                 "x:fill(3) gpu = require 'gpulua' dev = gpu.device()"));
    CHECK(gpulua_buffer_map(g, x, GPULUA_READ, &bytes) == GPULUA_OK && ((double *)bytes)[11] == 3);
    FAILS(gpulua_buffer_map(g, x, (gpulua_access)0, &bytes), GPULUA_INVALID_ARGUMENT, "an access");
    gpulua_buffer_release(x);
    info.is_host = 1;
    lua_getglobal(L, "dev");
    CHECK(gpulua_buffer_new(L, -1, &info, &x) == GPULUA_OK && lua_gettop(L) == 1);
    CHECK(gpulua_buffer_map(g, x, GPULUA_READ, &bytes) == GPULUA_OK && ((double *)bytes)[11] == 0);
    CHECK(failed(other, gpulua_buffer_map(other, x, GPULUA_READ, &bytes), GPULUA_INVALID_ARGUMENT,
                 "another gpulua object"));
    CHECK(gpulua_push_buffer(gpulua_state(other), x) == GPULUA_INVALID_ARGUMENT);
    gpulua_buffer *none = NULL;
    info.type = "f31";
    FAILS(gpulua_buffer_new(L, 1, &info, &none), GPULUA_INVALID_ARGUMENT, "an element type");
    info.type = "f32";
    info.shape[1] = 0;
    FAILS(gpulua_buffer_new(L, 1, &info, &none), GPULUA_INVALID_ARGUMENT, "elements");
    info.dim_count = 9;
    FAILS(gpulua_buffer_new(L, 1, &info, &none), GPULUA_INVALID_ARGUMENT, "dimensions");
    info.struct_bytes--;
    FAILS(gpulua_buffer_new(L, 1, &info, &none), GPULUA_INVALID_ARGUMENT, "info_init");
    gpulua_buffer_info_init(&info);
    info.type = "f32";
    info.dim_count = 1;
    info.shape[0] = 1;
    lua_pushinteger(L, 1);
    FAILS(gpulua_buffer_new(L, -1, &info, &none), GPULUA_INVALID_ARGUMENT, "device expected");
    CHECK(none == NULL);
    gpulua_close(g);
    gpulua_close(other);
    gpulua_buffer_describe(x, &info); /* it has lost its memory, and says what it was */
    CHECK(!info.is_usable && info.elem_count == 12 && info.is_host);
    gpulua_buffer_release(x);
}

/* The host's work between a script's: each way in which they conflict. */
static gpulua *captured_object;
static gpulua_recorder *captured_recorder;

/* What a script calls inside a capture. */
static int call_preflight(lua_State *L) {
    lua_pushinteger(L, gpulua_recorder_preflight(captured_object, captured_recorder));
    return 1;
}

static void test_recorder(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    gpulua_recorder *r = NULL;
    gpulua_recorder_info info;
    void *bytes = NULL;
    uintptr_t stream = 1;
    CHECK(run(g, prelude));
    CHECK(run(g, "a, b = dev:stream {}, dev:stream {}\n"
                 "x = dev:buffer('f32', 4, {label = 'x'}):fill(1) dev:synchronize() ok = true"));
    gpulua_buffer *x = global_buffer(g, "x");
    CHECK(gpulua_buffer_map(g, x, GPULUA_READ_WRITE, &bytes) == GPULUA_OK);
    CHECK(run(g, "mod.spin:launch({grid = 1, block = 1, stream = a}, x, 4, 200000000) ok = true"));
    gpulua_recorder_info_init(&info);
    lua_getglobal(L, "b");
    info.stream_index = -1;
    info.label = "mine";
    CHECK(gpulua_recorder_new(L, &info, &r) == GPULUA_OK);
    lua_settop(L, 0);
    gpulua_recorder_read_write(r, x, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    CHECK(gpulua_recorder_wait(g, r) == GPULUA_OK);
    CHECK(((float *)bytes)[3] == 2); /* the kernel is over */
    ((float *)bytes)[3] = 40;
    CHECK(run(
        g, "local c, m = code(mod.add.launch, mod.add, {grid = 1, block = 1, stream = a}, x, 4)\n"
           "ok = c == 'StreamMisuse' and m:find('frozen', 1, true)"));
    FAILS(gpulua_recorder_preflight(g, r), GPULUA_STREAM_MISUSE, "second preflight");
    FAILS(gpulua_recorder_stream(g, r, &stream), GPULUA_UNSUPPORTED, "no streams");
    CHECK(stream == 0);
    CHECK(gpulua_recorder_commit(g, r) == GPULUA_OK);
    CHECK(run(g, "mod.add:launch({grid = 1, block = 1, stream = a}, x, 4) ok = x:read()[4] == 41"));
    FAILS(gpulua_recorder_commit(g, r), GPULUA_CLOSED, "has ended");
    gpulua_recorder_release(r);
    gpulua_recorder_release(NULL);

    /* Strict refuses what is no buffer, at preflight, and says which; permissive leaves it out. */
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_write(r, NULL, "the frame");
    gpulua_recorder_read(r, x, "x");
    FAILS(gpulua_recorder_preflight(g, r), GPULUA_STREAM_MISUSE, "the frame: untracked");
    FAILS(gpulua_recorder_commit(g, r), GPULUA_STREAM_MISUSE, "without preflight");
    gpulua_recorder_cancel(r);
    gpulua_recorder_release(r);
    gpulua_recorder_info_init(&info);
    info.is_permissive = 1;
    CHECK(gpulua_recorder_new(L, &info, &r) == GPULUA_OK);
    gpulua_recorder_write(r, NULL, "the frame");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    gpulua_recorder_read(r, x, "x");
    FAILS(gpulua_recorder_commit(g, r), GPULUA_STREAM_MISUSE, "x: used after preflight");
    gpulua_recorder_release(r);

    /* Nothing, committed; cancelled before preflight. */
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK &&
          gpulua_recorder_commit(g, r) == GPULUA_OK);
    gpulua_recorder_release(r);
    info.struct_bytes = 3;
    FAILS(gpulua_recorder_new(L, &info, &r), GPULUA_INVALID_ARGUMENT, "recorder_info_init");
    gpulua_recorder_info_init(&info);
    lua_pushinteger(L, 4);
    info.stream_index = 1;
    FAILS(gpulua_recorder_new(L, &info, &r), GPULUA_INVALID_ARGUMENT, "stream expected");
    CHECK(r == NULL);
    lua_settop(L, 0);

    /* What the host does by itself is no node. */
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_write(r, x, "x");
    captured_object = g;
    captured_recorder = r;
    lua_register(L, "preflight", call_preflight);
    CHECK(run(g, "local status\n"
                 "dev:capture(function() status = preflight() x:fill(1) end):close()\n"
                 "captured_status = status ok = true"));
    lua_getglobal(L, "captured_status");
    CHECK(lua_tointeger(L, -1) == GPULUA_CAPTURE_ACTIVE);
    lua_settop(L, 0);
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK &&
          gpulua_recorder_commit(g, r) == GPULUA_OK);
    gpulua_recorder_release(r);

    /* Abandoned between the two: committed, and counted. */
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_write(r, x, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    gpulua_recorder_release(r);
    CHECK(run(g, "x:read() ok = dev:stats().recorders_abandoned == 1"));

    /* One that the object's end finds. */
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_write(r, x, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    gpulua_close(g);
    gpulua_recorder_write(r, x, "x");
    gpulua_recorder_cancel(r);
    gpulua_recorder_release(r);
    gpulua_buffer_release(x);
}

/* Nothing of the device's memory is the host's under process; host buffers are. */
static void test_process(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_PROCESS);
    void *bytes = NULL;
    if (!CHECK(run(g, prelude))) {
        gpulua_close(g);
        return;
    }
    CHECK(run(g, "x = dev:buffer('f32', 4):fill(1) h = dev:host('f32', 4) h:copy(x)\n"
                 "mod.spin:launch(one, x, 4, 100000000) h:copy(x) ok = true"));
    gpulua_buffer *x = global_buffer(g, "x"), *h = global_buffer(g, "h");
    FAILS(gpulua_buffer_map(g, x, GPULUA_READ, &bytes), GPULUA_UNSUPPORTED, "process of its own");
    CHECK(gpulua_buffer_map(g, h, GPULUA_READ, &bytes) == GPULUA_OK && ((float *)bytes)[3] == 2);
    gpulua_buffer_release(x);
    gpulua_buffer_release(h);
    gpulua_close(g);
}

static int from_script(lua_State *L) {
    gpulua_buffer *buffer = NULL;
    void *bytes = NULL;
    gpulua_status status = gpulua_to_buffer(L, 1, &buffer);
    if (status == GPULUA_OK) {
        gpulua *g = lua_touserdata(L, lua_upvalueindex(1));
        status = gpulua_buffer_map(g, buffer, GPULUA_READ, &bytes);
        lua_pushnumber(L, status == GPULUA_OK ? ((float *)bytes)[0] : -1);
        gpulua_push_buffer(L, buffer);
        gpulua_buffer_release(buffer);
        return 2;
    }
    lua_pushstring(L, gpulua_status_name(status));
    return 1;
}

/* C functions that a task calls, in its coroutine. */
static void test_from_scripts(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    lua_pushlightuserdata(L, g);
    lua_pushcclosure(L, from_script, 1);
    lua_setglobal(L, "see");
    CHECK(run(g, prelude));
    CHECK(run(
        g,
        "local x = dev:upload('f32', {5})\n"
        "gpu.spawn(function() mod.add:launch(one, x, 1)\n"
        "  local v, y = see(x) ok = v == 6 and y:read()[1] == 6 and see(1) == 'InvalidArgument'\n"
        "end):join()"));
    gpulua_close(g);
    gpulua_buffer *none;
    L = luaL_newstate();
    lua_pushnil(L);
    CHECK(gpulua_to_buffer(L, 1, &none) == GPULUA_INVALID_ARGUMENT && none == NULL);
    lua_close(L);
}

static void test_memory(gpulua_isolation isolation) {
    gpulua *g = open_object(isolation);
    lua_State *L = gpulua_state(g);
    gpulua_memory_info info;
    gpulua_memory_state state;
    gpulua_buffer_info want;
    gpulua_buffer *x = NULL, *y = NULL;
    CHECK(run(g, prelude));
    gpulua_memory_info_init(&info);
    info.budget_bytes = 1 << 20;
    info.has_statistics = 1;
    info.label = "pool";
    CHECK(gpulua_push_memory(L, 0, &info) == GPULUA_OK && lua_gettop(L) == 1);
    CHECK(gpulua_memory_describe(L, 1, &state) == GPULUA_OK);
    CHECK(strcmp(state.kind, "statistics") == 0 && strcmp(state.pressure, "none") == 0);
    CHECK(state.limit_bytes == 1 << 20 && state.remaining_bytes == 1 << 20);
    CHECK(state.is_trackable && state.outstanding_bytes == 0 && state.allocs == 0);

    gpulua_buffer_info_init(&want);
    want.type = "f32";
    want.dim_count = 1;
    want.shape[0] = 3 << 16;
    want.label = "x";
    CHECK(gpulua_buffer_new(L, 1, &want, &x) == GPULUA_OK);
    CHECK(gpulua_memory_describe(L, 1, &state) == GPULUA_OK);
    CHECK(state.outstanding_bytes == 3 << 18 && state.outstanding_count == 1);
    CHECK(state.remaining_bytes == 1 << 18 && state.allocs == 1 && state.bytes_live == 3 << 18);
    CHECK(strcmp(state.pressure, "medium") == 0);
    FAILS(gpulua_buffer_new(L, 1, &want, &y), GPULUA_OUT_OF_BUDGET, "262144 left");
    CHECK(y == NULL);
    want.is_host = 1;
    FAILS(gpulua_buffer_new(L, 1, &want, &y), GPULUA_INVALID_ARGUMENT, "device expected");
    want.is_host = 0;

    /* One on another, and scripts use it as their own. */
    gpulua_memory_info_init(&info);
    info.from_index = 1;
    info.is_guarded = 1;
    info.has_log = 1;
    CHECK(gpulua_push_memory(L, 0, &info) == GPULUA_OK && lua_gettop(L) == 2);
    lua_pushvalue(L, 2);
    lua_setglobal(L, "mem");
    CHECK(run(g, "do local b <close> = mem:buffer('f32', 8):fill(1) end ok = #mem:log() == 2"));
    CHECK(gpulua_memory_describe(L, 2, &state) == GPULUA_OK);
    CHECK(strcmp(state.kind, "logging") == 0 && state.log_events == 2 && state.log_drops == 0);
    set_global(g, "x", x);
    CHECK(run(g, "x:free() mem:reap() ok = true"));
    gpulua_buffer_release(x);
    CHECK(gpulua_memory_describe(L, 1, &state) == GPULUA_OK && state.frees >= 1);

    /* What cannot be. */
    FAILS(gpulua_memory_describe(L, 0, &state), GPULUA_INVALID_ARGUMENT, "memory expected");
    info.from = "slab";
    FAILS(gpulua_push_memory(L, 0, &info), GPULUA_INVALID_ARGUMENT, "one of them alone");
    info.from_index = 0;
    info.from = "attic";
    FAILS(gpulua_push_memory(L, 0, &info), GPULUA_INVALID_ARGUMENT, "attic");
    info.from = "slab";
    info.oom = "never";
    FAILS(gpulua_push_memory(L, 0, &info), GPULUA_INVALID_ARGUMENT, "never");
    info.oom = "wait";
    info.timeout_s = -1;
    FAILS(gpulua_push_memory(L, 0, &info), GPULUA_INVALID_ARGUMENT, "a number from 0 on");
    info.timeout_s = 0;
    info.log_bytes = 4096;
    info.has_log = 0;
    FAILS(gpulua_push_memory(L, 0, &info), GPULUA_INVALID_ARGUMENT, "with has_log alone");
    info.canary_bytes = 512;
    info.is_guarded = 0;
    FAILS(gpulua_push_memory(L, 0, &info), GPULUA_INVALID_ARGUMENT, "with is_guarded alone");
    info.struct_bytes = 8;
    FAILS(gpulua_push_memory(L, 0, &info), GPULUA_INVALID_ARGUMENT, "gpulua_memory_info_init");
    CHECK(lua_gettop(L) == 2);
    CHECK(run(g, "mem:close() ok = true"));
    FAILS(gpulua_memory_describe(L, 2, &state), GPULUA_CLOSED, "closed memory");
    gpulua_close(g);
}

int main(void) {
    test_memory(GPULUA_ISOLATE_NONE);
    test_memory(GPULUA_ISOLATE_PROCESS);
    test_memory(GPULUA_ISOLATE_THREAD);
    test_buffers();
    test_new();
    test_recorder();
    test_process();
    test_from_scripts();
    return tap_finish(&tap);
}
