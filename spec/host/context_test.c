/* Hosts with a CUDA context, and a stream, of their own, over backend/fake_cuda.c: what is current
 * behind each call, and cuda_context and cuda_stream of the configurations. On a GPU:
 * examples/hosts/cuda-host.c. */
#include <dlfcn.h>
#include <stdint.h>
#include <unistd.h>

#include "host/dlpack.h"
#include "host/exchange.h"

#ifdef GPULUA_CUDA

#include "backend/fake_host.h"

/* What the host has made current, and what is behind a call, whose value this is. */
static void *wanted;
static bool stays(const char *call) {
    bool good = current() == wanted;
    if (!good) {
        printf("# behind %s: %p, not %p\n", call, current(), wanted);
        cu.cuCtxSetCurrent(wanted);
    }
    return good;
}
#define STAYS(call)                                                                                \
    do {                                                                                           \
        call;                                                                                      \
        tap_check(&tap, stays(#call), #call);                                                      \
    } while (0)

static const char script[] =
    "gpu = require 'gpulua' dev = gpu.device() other = dev:stream {}\n"
    "x, y = dev:upload('f32', {1, 2, 3, 4}), dev:buffer('f32', 4)\n"
    "h = dev:host('f32', 4)\n"
    "tick = dev:load('bench/tick.ptx'):kernel('tick', 'i32, inout i32*')\n"
    "function work()\n"
    "  y:copy(x) other:use(function() x:fill(3) end) y:await()\n"
    "  local t <close> = dev:stream {} t:use(function() y:fill(3) end)\n"
    "  local m <close> = dev:memory {from = 'driver'} m:buffer('f32', 4):close()\n"
    "  local g <close> = dev:capture(function() y:copy(x) end) g:launch()\n"
    "  assert(y:read()[4] == 3)\n"
    "  local z = dev:buffer('i32', 4)\n"
    "  local p <close> = dev:capture(function() tick:launch(1, 0, z) end) p:launch()\n"
    "  assert(p:bind { ['tick#1.1'] = 1 }) p:launch()\n"
    "end\n"
    "function code(f, ...)\n"
    "  local good, e = pcall(f, ...) return not good and e.code, tostring(e)\n"
    "end\n"
    "work() ok = true";

static gpulua_config config_of(void *context) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cuda";
    config.isolation = GPULUA_ISOLATE_NONE;
    config.cuda_context = context;
    config.on_error = print_error;
    return config;
}

static void test_recorders(gpulua *g, gpulua_buffer *x) {
    lua_State *L = gpulua_state(g);
    gpulua_recorder *r;
    gpulua_stream_capture *capture;
    gpulua_stream_capture_info info;
    uintptr_t stream = 0, graph = 0;
    gpulua_capturing capturing;
    STAYS(CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK));
    STAYS(gpulua_recorder_write(r, x, "x"));
    STAYS(CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK));
    STAYS(CHECK(gpulua_recorder_stream(g, r, &stream) == GPULUA_OK));
    STAYS(CHECK(gpulua_recorder_wait(g, r) == GPULUA_OK));
    STAYS(CHECK(gpulua_recorder_commit(g, r) == GPULUA_OK));
    STAYS(gpulua_recorder_release(r));
    gpulua_stream_capture_info_init(&info);
    info.stream = stream;
    STAYS(CHECK(gpulua_stream_capture_begin(L, &info, &capture) == GPULUA_OK));
    STAYS(CHECK(gpulua_stream_capture_status(g, capture, &capturing) == GPULUA_OK));
    STAYS(CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK));
    STAYS(gpulua_stream_capture_release(capture));
    CHECK(cu.cuGraphDestroy((void *)graph) == 0);
}

static void test_memory(gpulua *g, gpulua_buffer *x) {
    lua_State *L = gpulua_state(g);
    struct DLManagedTensorVersioned *out;
    gpulua_buffer_info info;
    gpulua_buffer *made, *host = global_buffer(g, "h");
    gpulua_memory_info memory;
    void *bytes;
    gpulua_buffer_info_init(&info);
    info.type = "f32";
    info.dim_count = 1;
    info.shape[0] = 1000;
    STAYS(CHECK(gpulua_buffer_new(L, 0, &info, &made) == GPULUA_OK));
    STAYS(gpulua_buffer_release(made));
    STAYS(CHECK(gpulua_buffer_map(g, host, GPULUA_READ, &bytes) == GPULUA_OK));
    gpulua_buffer_release(host);
    gpulua_memory_info_init(&memory);
    memory.from = "direct";
    STAYS(CHECK(gpulua_push_memory(L, 0, &memory) == GPULUA_OK));
    STAYS(CHECK(gpulua_dlpack_export(L, x, NULL, &out) == GPULUA_OK));
    STAYS(CHECK(gpulua_dlpack_import(L, 0, out, NULL, &made) == GPULUA_OK));
    STAYS(gpulua_buffer_release(made));
    STAYS(CHECK(gpulua_push_capture(L, NULL) == GPULUA_OK));
    lua_getglobal(L, "y");
    STAYS(lua_getfield(L, -1, "fill"));
    lua_insert(L, -2);
    lua_pushnumber(L, 3);
    STAYS(CHECK(lua_pcall(L, 2, 0, 0) == LUA_OK));
    STAYS(CHECK(gpulua_capture_finish(L, -1) == GPULUA_OK));
    STAYS(CHECK(gpulua_graph_upload(L, -1, NULL) == GPULUA_OK));
    STAYS(CHECK(gpulua_graph_launch(L, -1, NULL) == GPULUA_OK));
    STAYS(CHECK(gpulua_inject_slow(L, 0, NULL, 0) == GPULUA_OK));
    STAYS(lua_settop(L, 0));
}

/* Every call that may come to the driver, in an attached state and in one of gpulua's. */
static void test_calls(void *before, void *context) {
    gpulua_config config = config_of(context);
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    cu.cuCtxSetCurrent(wanted = before);
    gpulua *g;
    STAYS(g = gpulua_attach(L, &config));
    STAYS(CHECK(run(g, script)));
    gpulua_buffer *x;
    STAYS(x = global_buffer(g, "x"));
    test_recorders(g, x);
    test_memory(g, x);
    STAYS(gpulua_timeout_ms(g));
    STAYS(CHECK(run(g, "x:fill(1) gpu.sleep(0.006) ok = true")));
    /* Functions that the host calls by itself. */
    STAYS(CHECK(luaL_dostring(L, "y:fill(2) x:copy(y) assert(x:read()[1] == 2)") == LUA_OK));
    STAYS(CHECK(luaL_dostring(L, "work()") == LUA_OK));
    STAYS(CHECK(luaL_dostring(L, "work() collectgarbage()") == LUA_OK));
    STAYS(CHECK(luaL_dostring(L, "dev:synchronize() dev:trim()") == LUA_OK));
    STAYS(gpulua_buffer_release(x));
    STAYS(gpulua_cancel_all(g));
    STAYS(gpulua_close(g));
    STAYS(lua_close(L));
    /* A state that is closed with a device in it. */
    L = luaL_newstate();
    luaL_openlibs(L);
    STAYS(g = gpulua_attach(L, &config));
    STAYS(CHECK(luaL_dostring(L, script) == LUA_OK));
    STAYS(lua_close(L));
    /* And a device of several objects. */
    gpulua_device_config device_config;
    gpulua_device *device;
    gpulua_device_config_init(&device_config);
    device_config.device = "cuda";
    device_config.isolation = GPULUA_ISOLATE_NONE;
    device_config.cuda_context = context;
    STAYS(device = gpulua_device_open(&device_config));
    gpulua_config_init(&config);
    config.shared_device = device;
    STAYS(g = gpulua_new(&config));
    STAYS(CHECK(run(g, script)));
    STAYS(gpulua_close(g));
    STAYS(gpulua_device_close(device));
#if !defined(__SANITIZE_THREAD__) /* which does not see the words that the fake driver writes */
    /* On a thread of its own, which is ended here. */
    config = config_of(context);
    config.isolation = GPULUA_ISOLATE_THREAD;
    STAYS(g = gpulua_new(&config));
    STAYS(CHECK(run(g, script)));
    STAYS(gpulua_close(g));
#endif
    cu.cuCtxSetCurrent(NULL);
    CHECK(FAKE(long, live) == 0);
}

static bool is_refused(const gpulua_config *config, const char *text) {
    gpulua *g = gpulua_new(config);
    bool good = g == NULL && gpulua_last_error(NULL)->code == GPULUA_INVALID_ARGUMENT &&
                strstr(gpulua_last_error(NULL)->message, text) != NULL;
    if (!good) {
        printf("# %s\n", gpulua_last_error(NULL)->message);
    }
    gpulua_close(g);
    return good;
}

static void test_refusals(void *context) {
    gpulua_device_config device_config;
    gpulua_config config = config_of(context);
    config.isolation = GPULUA_ISOLATE_PROCESS;
    CHECK(is_refused(&config, "cuda_context needs isolation none or thread"));
    config.isolation = GPULUA_ISOLATE_DEFAULT;
    CHECK(is_refused(&config, "cuda_context needs isolation none or thread"));
    config.isolation = GPULUA_ISOLATE_THREAD;
    config.cuda_stream = (void *)2;
    CHECK(is_refused(&config, "cuda_stream needs isolation none"));
    gpulua_device_config_init(&device_config);
    device_config.device = "cpu";
    gpulua_device *shared = gpulua_device_open(&device_config);
    config = config_of(context);
    config.shared_device = shared;
    CHECK(is_refused(&config, "shared_device"));
    gpulua_device_close(shared);
    device_config.cuda_context = context;
    CHECK(gpulua_device_open(&device_config) == NULL &&
          strstr(gpulua_last_error(NULL)->message, "the CPU device has no CUDA context") != NULL);
    device_config.device = "cuda:1";
    CHECK(gpulua_device_open(&device_config) == NULL && /* process is what GPUs are in */
          strstr(gpulua_last_error(NULL)->message, "cuda_context is for devices with isolation") !=
              NULL);
    device_config.device = "cuda:0";
    device_config.isolation = GPULUA_ISOLATE_NONE;
    CHECK(gpulua_device_open(&device_config) == NULL &&
          gpulua_last_error(NULL)->code == GPULUA_INVALID_ARGUMENT &&
          strstr(gpulua_last_error(NULL)->message, "one of cuda:1, not of cuda:0") != NULL);
    /* No GPU at all: the CPU device has nothing of the context. */
    device_config.device = NULL;
    FAKE(int, devices) = 0;
    CHECK(gpulua_device_open(&device_config) == NULL &&
          gpulua_last_error(NULL)->code == GPULUA_NO_DEVICE);
    FAKE(int, devices) = 2;
    config = config_of(context);
    gpulua *g = gpulua_new(&config);
    CHECK(run(g, "gpu = require 'gpulua'\n"
                 "local good, e = pcall(gpu.device, 'cuda:0')\n"
                 "assert(not good and e.code == 'InvalidArgument')\n"
                 "good, e = pcall(gpu.device, 'cuda', {isolate = 'process'})\n"
                 "assert(not good and e.code == 'InvalidArgument')\n"
                 "assert(e.message:find 'none or thread')\n"
                 "local cpu <close> = gpu.device 'cpu'\n"
                 "assert(cpu:buffer('f32', 1):fill(2):read()[1] == 2) ok = true"));
    gpulua_close(g);
    CHECK(FAKE(long, live) == 0);
}

/* A context of another ordinal: the device is that one, and memory of the host's there comes in. */
static void test_ordinal(void *context) {
    gpulua_config config = config_of(context);
    config.device = NULL;
    gpulua *g = gpulua_new(&config), *second = gpulua_new(&config);
    CHECK(run(g, script) && run(g, "ok = dev.name == 'cuda:1' and gpu.device 'cuda:1' == dev and "
                                   "gpu.device 'cuda' == dev"));
    CHECK(run(second, script)); /* both in one context */
    gpulua_buffer *x = global_buffer(g, "x");
    struct DLManagedTensorVersioned *out = NULL;
    CHECK(gpulua_dlpack_export(gpulua_state(g), x, NULL, &out) == GPULUA_OK);
    CHECK(out->tensor.device.kind == DLPACK_CUDA && out->tensor.device.ordinal == 1);
    out->deleter(out);
    gpulua_buffer_release(x);
    gpulua_close(second);
    CHECK(run(g, "work() ok = true"));
    gpulua_close(g);
    CHECK(FAKE(long, live) == 0);
}

static void test_stream(void *context, void *other) {
    gpulua_config config = config_of(context);
    void *own = NULL, *graph = NULL;
    uintptr_t native = 0;
    gpulua_recorder *r;
    cu.cuCtxSetCurrent(wanted = context);
    cu.cuStreamCreateWithPriority(&own, 1, 0);
    cu.cuCtxSetCurrent(wanted = other);
    config.cuda_stream = own;
    gpulua *g = gpulua_new(&config);
    STAYS(CHECK(run(g, script)));
    STAYS(CHECK(run(g, "y:fill(1) ok = true")));
    CHECK(FAKE(void *, recorded_on) == own);
    STAYS(CHECK(run(g, "local t = gpu.spawn(function() x:fill(1) end) t:await() ok = true")));
    CHECK(FAKE(void *, recorded_on) == own); /* whichever task */
    STAYS(CHECK(run(g, "other:use(function() x:fill(1) end) ok = true")));
    CHECK(FAKE(void *, recorded_on) != own);
    STAYS(CHECK(gpulua_recorder_new(gpulua_state(g), NULL, &r) == GPULUA_OK));
    STAYS(CHECK(gpulua_recorder_stream(g, r, &native) == GPULUA_OK && native == (uintptr_t)own));
    gpulua_recorder_release(r);
    cu.cuCtxSetCurrent(context);
    CHECK(cu.cuStreamBeginCapture_v2(own, 1) == 0);
    cu.cuCtxSetCurrent(other);
    STAYS(CHECK(run(g, "ok = code(y.fill, y, 3) == 'CaptureActive'")));
    STAYS(CHECK(run(g, "other:use(function() x:fill(5) ok = x:read()[1] == 5 end)")));
    STAYS(gpulua_close(g));
    cu.cuCtxSetCurrent(context);
    CHECK(cu.cuStreamEndCapture(own, &graph) == 0 && cu.cuGraphDestroy(graph) == 0);
    CHECK(cu.cuStreamDestroy_v2(own) == 0 && FAKE(long, live) == 0);
    cu.cuCtxSetCurrent(other);
    cu.cuStreamCreateWithPriority(&own, 1, 0);
    config.cuda_stream = own;
    g = gpulua_new(&config);
    CHECK(run(g, "local good, e = pcall(require 'gpulua'.device)\n"
                 "ok = not good and e.code == 'InvalidArgument' and "
                 "e.message:find 'another context' ~= nil"));
    gpulua_close(g);
    cu.cuStreamDestroy_v2(own);
    cu.cuCtxSetCurrent(NULL);
}

/* What a function of the host's finds and does, that a script calls in a step. */
static int set_current(lua_State *L) {
    cu.cuCtxSetCurrent(lua_touserdata(L, 1));
    return 0;
}

static void test_within(void *own, void *other) {
    gpulua_config config = config_of(NULL);
    cu.cuCtxSetCurrent(wanted = own);
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    lua_register(L, "set", set_current);
    lua_pushlightuserdata(L, other);
    lua_setglobal(L, "theirs");
    STAYS(CHECK(run(g, script)));
    int switches = FAKE(int, switches), refused = FAKE(int, refused);
    STAYS(CHECK(run(g, "for i = 1, 100 do y:fill(i) end ok = true")));
    CHECK(FAKE(int, switches) <= switches + 2 && FAKE(int, refused) == refused);
    wanted = other;
    STAYS(CHECK(run(g, "y:fill(1) set(theirs) y:fill(2) ok = true")));
    gpulua_close(g);
    CHECK(current() == other);
    cu.cuCtxSetCurrent(NULL);
}

/* The last two leave the driver with what it refuses to give back. */
static void test_destroyed(void) {
    void *context = make_context(0);
    gpulua_config config = config_of(context);
    gpulua *g = gpulua_new(&config);
    cu.cuCtxSetCurrent(wanted = NULL);
    STAYS(CHECK(run(g, script)));
    cu.cuCtxDestroy_v2(context);
    STAYS(CHECK(run(g, "local c, text = code(function() y:fill(1) y:read() end)\n"
                       "ok = c == 'DeviceLost' and text:find '%(709' ~= nil")));
    STAYS(gpulua_close(g));
    FAKE(long, live) = 0;
}

static void test_lost(void *own) {
    gpulua_config config = config_of(NULL);
    cu.cuCtxSetCurrent(wanted = own);
    gpulua *g = gpulua_new(&config);
    STAYS(CHECK(run(g, script)));
    fail_next("cuEventRecord", 700, 0);
    STAYS(CHECK(run(g, "ok = code(function() y:fill(1) y:await() end) == 'DeviceLost' and\n"
                       "  code(function() y:read() end) == 'DeviceLost'\n")));
    STAYS(gpulua_close(g));
}

int main(void) {
    unsetenv("GPULUA_DEVICE"); /* what is said here is all */
    unsetenv("GPULUA_ISOLATE");
    void *primary = NULL;
    if (!tap_check(&tap, build_host(), "the fake driver is built")) {
        return tap_finish(&tap);
    }
    void *own = make_context(0), *other = make_context(1);
    test_calls(NULL, NULL);
    test_calls(own, NULL);
    test_calls(other, NULL);
    test_calls(NULL, own);
    test_calls(own, own);
    test_calls(other, own);
    cu.cuDevicePrimaryCtxRetain(&primary, 0);
    FAKE(long, live) = 0;
    test_calls(primary, NULL);
    test_calls(primary, own);
    cu.cuDevicePrimaryCtxRelease_v2(0);
    FAKE(long, live) = 0;
    test_refusals(other);
    test_ordinal(other);
    test_stream(own, other);
    test_within(own, other);
    test_destroyed();
    test_lost(own);
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "contexts of hosts", "built without the cuda backend");
    return tap_finish(&tap);
}

#endif
