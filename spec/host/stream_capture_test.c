/* Streams that the host captures by the CUDA driver, while scripts work: on backend/cuda over
 * backend/fake_cuda.c, which forbids what a driver forbids, and, where GPULUA_DEVICE names a GPU,
 * once more on that. */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <unistd.h>

#include "host/dlpack.h"
#include "host/exchange.h"

static gpulua *g;

static gpulua *open_on(const char *device, gpulua_isolation isolation) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = device;
    config.isolation = isolation;
    config.on_error = print_error;
    return gpulua_new(&config);
}

/* Where nobody else knows the device's streams. */
static void test_unsupported(const char *device, gpulua_isolation isolation) {
    gpulua_stream_capture_info info;
    gpulua_stream_capture *capture = (gpulua_stream_capture *)&info;
    g = open_on(device, isolation);
    gpulua_stream_capture_info_init(&info);
    info.stream = 4096;
    FAILS(gpulua_stream_capture_begin(gpulua_state(g), &info, &capture), GPULUA_UNSUPPORTED,
          "no streams that another library knows");
    CHECK(capture == NULL);
    gpulua_stream_capture_release(NULL);
    gpulua_close(g);
}

#ifdef GPULUA_CUDA

#include "backend/fake.h"

#define DRIVER_TABLE(X)                                                                            \
    X(cuInit, unsigned)                                                                            \
    X(cuDevicePrimaryCtxRetain, void **, int)                                                      \
    X(cuDevicePrimaryCtxRelease_v2, int)                                                           \
    X(cuCtxSetCurrent, void *)                                                                     \
    X(cuStreamCreateWithPriority, void **, unsigned, int)                                          \
    X(cuStreamDestroy_v2, void *)                                                                  \
    X(cuStreamBeginCapture_v2, void *, int)                                                        \
    X(cuStreamEndCapture, void *, void **)                                                         \
    X(cuStreamIsCapturing, void *, int *)                                                          \
    X(cuStreamQuery, void *)                                                                       \
    X(cuStreamSynchronize, void *)                                                                 \
    X(cuStreamWaitEvent, void *, void *, unsigned)                                                 \
    X(cuMemsetD32Async, uint64_t, unsigned, size_t, void *)                                        \
    X(cuEventCreate, void **, unsigned)                                                            \
    X(cuEventRecord, void *, void *)                                                               \
    X(cuEventDestroy_v2, void *)                                                                   \
    X(cuMemAlloc_v2, uint64_t *, size_t)                                                           \
    X(cuMemFree_v2, uint64_t)                                                                      \
    X(cuGraphGetNodes, void *, void **, size_t *)                                                  \
    X(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)                            \
    X(cuGraphLaunch, void *, void *)                                                               \
    X(cuGraphExecDestroy, void *)                                                                  \
    X(cuGraphDestroy, void *)
static struct {
#define X(name, ...) int (*name)(__VA_ARGS__);
    DRIVER_TABLE(X)
#undef X
} cu;

enum { NONE, ACTIVE, INVALIDATED, UNSAFE = 900 };

static lua_State *L;
static void *driver; /* the library */
static bool is_fake;
static void *context, *own; /* the host's hold on the context, and its stream */
static int ordinal;
static char library[256];

static bool load(const char *name) {
    driver = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    bool good = driver != NULL;
#define X(function, ...)                                                                           \
    if (good) {                                                                                    \
        void *symbol = dlsym(driver, #function);                                                   \
        good = symbol != NULL;                                                                     \
        memcpy(&cu.function, &symbol, sizeof symbol);                                              \
    }
    DRIVER_TABLE(X)
#undef X
    return good;
}

static bool check(bool good, const char *what) {
    char text[512];
    snprintf(text, sizeof text, "%s%s", is_fake ? "" : "on the GPU: ", what);
    if (!good && g != NULL) {
        printf("# %s\n", gpulua_last_error(g)->message);
    }
    return tap_check(&tap, good, text);
}
#undef CHECK
#define CHECK(good) check(good, #good)

/* What a script may do at any time: new memory of each kind, work on several streams with waits
 * between them, waiting and asking, streams that come and go, a graph. */
static const char script[] =
    "gpu = require 'gpulua' dev = gpu.device()\n"
    "function code(f, ...)\n"
    "  local good, e = pcall(f, ...) return not good and e.code, tostring(e)\n"
    "end\n"
    "s, other = dev:stream {}, dev:stream {}\n"
    "x, y = dev:upload('i32', {0, 0, 0, 0}), dev:upload('i32', {0, 0, 0, 0})\n"
    "function busy(n)\n"
    "  local a, b = dev:buffer('i32', n), dev:buffer('i32', n)\n"
    "  a:fill(3) other:use(function() b:copy(a) end) dev:synchronize()\n"
    "  local h = dev:host('i32', n) h:copy(b) assert(h[n] == 3)\n"
    "  assert(b:read(n)[1] == 3 and b:done())\n"
    "  local t <close> = dev:stream {}\n"
    "  t:use(function() a:write({7}, n) end) assert(a:read(n)[1] == 7)\n"
    "  local m <close> = dev:memory {from = 'driver'}\n"
    "  local c = m:buffer('i32', n) c:copy(a) assert(c:read(n)[1] == 7) c:close()\n"
    "  local d <close> = dev:memory {from = 'direct'}\n"
    "  d:buffer('i32', n):close()\n"
    "  local graph <close> = dev:capture(function() b:copy(a) a:fill(4) end)\n"
    "  graph:launch() assert(b:read(n)[1] == 7 and a:read(n)[1] == 4)\n"
    "  if compiled then\n"
    "    local mod <close> = dev:compile(('extern \"C\" __global__ void set(int *x) '\n"
    "      .. '{ *x = %d; printf(\"\"); }'):format(n))\n"
    "    mod.set:launch({grid = 1, block = 1}, a) assert(a:read(1, 1)[1] == n)\n"
    "  end\n"
    "  a:close() b:close() h:close() t:close() collectgarbage() dev:trim()\n"
    "end\n"
    "busy(1000) ok = true";

static bool rig_open(void) {
    g = open_on(is_fake ? "cuda:0" : getenv("GPULUA_DEVICE"), GPULUA_ISOLATE_NONE);
    L = g != NULL ? gpulua_state(g) : NULL;
    if (L == NULL) {
        printf("# %s\n", gpulua_last_error(NULL)->message);
        return false;
    }
    lua_pushboolean(L, !is_fake);
    lua_setglobal(L, "compiled");
    return run(g, script) && cu.cuInit(0) == 0 &&
           cu.cuDevicePrimaryCtxRetain(&context, ordinal) == 0 &&
           cu.cuCtxSetCurrent(context) == 0 && cu.cuStreamCreateWithPriority(&own, 1, 0) == 0;
}

static void rig_close(void) {
    if (g != NULL) {
        lua_settop(L, 0);
        gpulua_close(g);
        g = NULL;
    }
    CHECK(cu.cuCtxSetCurrent(context) == 0 && cu.cuStreamDestroy_v2(own) == 0);
    CHECK(cu.cuCtxSetCurrent(NULL) == 0 && cu.cuDevicePrimaryCtxRelease_v2(ordinal) == 0);
}

/* What the driver says of the stream. */
static int driver_status(void *stream) {
    int status = -1;
    return cu.cuStreamIsCapturing(stream, &status) == 0 ? status : -1;
}

static bool is_capturing(gpulua_stream_capture *capture, gpulua_capturing wanted) {
    gpulua_capturing found;
    return gpulua_stream_capture_status(g, capture, &found) == GPULUA_OK && found == wanted;
}

static gpulua_stream_capture *begin(void *stream, gpulua_capture_mode mode) {
    gpulua_stream_capture *capture = NULL;
    gpulua_stream_capture_info info;
    gpulua_stream_capture_info_init(&info);
    info.stream = (uintptr_t)stream;
    info.mode = mode;
    if (!CHECK(gpulua_stream_capture_begin(L, &info, &capture) == GPULUA_OK)) {
        exit(tap_finish(&tap)); /* nothing below makes sense */
    }
    return capture;
}

static uint64_t address_of(const char *name) {
    struct DLManagedTensorVersioned *out = NULL;
    gpulua_buffer *buffer = global_buffer(g, name);
    CHECK(gpulua_dlpack_export(L, buffer, NULL, &out) == GPULUA_OK);
    uint64_t address = out != NULL ? (uint64_t)(uintptr_t)out->tensor.data : 0;
    if (out != NULL) {
        out->deleter(out);
    }
    gpulua_buffer_release(buffer);
    return address;
}

static bool has_nodes(uintptr_t graph, size_t wanted) {
    size_t count = 0;
    bool good = cu.cuGraphGetNodes((void *)graph, NULL, &count) == 0 && count == wanted;
    if (!good) {
        printf("# %zu nodes\n", count);
    }
    return good;
}

/* Launches the host's graph as work of its own that writes x, on the stream of the recorder. */
static bool launch(uintptr_t graph, bool is_kept) {
    gpulua_recorder *r = NULL;
    gpulua_buffer *x = global_buffer(g, "x");
    uintptr_t stream = 0;
    void *exec = NULL;
    if (graph == 0 || !CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK)) {
        gpulua_buffer_release(x);
        return false;
    }
    gpulua_recorder_write(r, x, "x");
    bool good = cu.cuGraphInstantiateWithFlags(&exec, (void *)graph, 0) == 0 &&
                gpulua_recorder_preflight(g, r) == GPULUA_OK &&
                gpulua_recorder_stream(g, r, &stream) == GPULUA_OK &&
                cu.cuGraphLaunch(exec, (void *)stream) == 0 &&
                gpulua_recorder_commit(g, r) == GPULUA_OK;
    good = run(g, "x:read() ok = true") && good;
    gpulua_recorder_release(r);
    gpulua_buffer_release(x);
    return cu.cuGraphExecDestroy(exec) == 0 && (is_kept || cu.cuGraphDestroy((void *)graph) == 0) &&
           good;
}

/* ---- a stream of the host's ---- */

static void test_modes(void) {
    uint64_t x = address_of("x");
    for (int mode = GPULUA_CAPTURE_MODE_DEFAULT; mode <= GPULUA_CAPTURE_MODE_RELAXED; mode++) {
        uintptr_t graph = 1;
        char text[200];
        gpulua_stream_capture *capture = begin(own, (gpulua_capture_mode)mode);
        CHECK(is_capturing(capture, GPULUA_CAPTURING_ACTIVE) && driver_status(own) == ACTIVE);
        CHECK(cu.cuMemsetD32Async(x, (unsigned)mode + 10, 1, own) == 0);
        /* More than was ever there, so that the driver has to give some. */
        snprintf(text, sizeof text, "busy(%d) busy(1000) ok = x:read()[1] == %d", (5 + mode) << 20,
                 mode == 0 ? 0 : mode + 9);
        CHECK(run(g, text));
        CHECK(cu.cuMemsetD32Async(x + 4, (unsigned)mode + 10, 1, own) == 0);
        CHECK(run(g, "busy(1000) ok = true"));
        CHECK(is_capturing(capture, GPULUA_CAPTURING_ACTIVE));
        CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK && has_nodes(graph, 2));
        CHECK(cu.cuGraphDestroy((void *)graph) == 0);
        CHECK(is_capturing(capture, GPULUA_CAPTURING_NONE) && driver_status(own) == NONE);
        FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CLOSED, "has ended");
        CHECK(graph == 0);
        gpulua_stream_capture_release(capture);
        capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
        CHECK(cu.cuMemsetD32Async(x, (unsigned)mode + 10, 1, own) == 0);
        CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK && has_nodes(graph, 1));
        CHECK(launch(graph, false));
        snprintf(text, sizeof text, "ok = x:read()[1] == %d", mode + 10);
        CHECK(run(g, text));
        gpulua_stream_capture_release(capture);
    }
}

/* Our calls leave the mode of the host's thread as it was: its own unsafe calls break what they
 * would break without us. */
static void test_own_calls(void) {
    static const int wanted[] = {UNSAFE, UNSAFE, UNSAFE, 0};
    for (int mode = GPULUA_CAPTURE_MODE_DEFAULT; mode <= GPULUA_CAPTURE_MODE_RELAXED; mode++) {
        uint64_t memory = 0;
        uintptr_t graph = 1;
        gpulua_stream_capture *capture = begin(own, (gpulua_capture_mode)mode);
        CHECK(run(g, "busy(1000) ok = true"));
        CHECK(cu.cuMemAlloc_v2(&memory, 4096) == wanted[mode]);
        if (mode != GPULUA_CAPTURE_MODE_RELAXED) {
            CHECK(is_capturing(capture, GPULUA_CAPTURING_INVALIDATED));
            CHECK(run(g, "busy(1000) ok = true"));
            CHECK(cu.cuMemsetD32Async(0, 0, 1, own) != 0);
            FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CAPTURE_INVALIDATED, "");
            CHECK(graph == 0 && is_capturing(capture, GPULUA_CAPTURING_NONE));
        } else {
            CHECK(is_capturing(capture, GPULUA_CAPTURING_ACTIVE));
            CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK &&
                  has_nodes(graph, 0));
            CHECK(cu.cuGraphDestroy((void *)graph) == 0 && cu.cuMemFree_v2(memory) == 0);
        }
        gpulua_stream_capture_release(capture);
        /* The stream is usable, and can be captured again. */
        uint64_t x = address_of("x");
        CHECK(cu.cuMemsetD32Async(x, 5, 1, own) == 0 && cu.cuStreamSynchronize(own) == 0);
        CHECK(run(g, "ok = x:read()[1] == 5"));
        gpulua_stream_capture_release(begin(own, (gpulua_capture_mode)mode));
        CHECK(driver_status(own) == NONE);
    }
}

/* The twin: nobody has told us, and our calls break it. The device is well. */
static void test_unannounced(void) {
    void *graph = NULL;
    if (cu.cuStreamBeginCapture_v2(own, 1) != 0) {
        CHECK(!"the driver captures");
        return;
    }
    /* Asking whether an operation is over that has others behind it. */
    CHECK(run(g, "y:fill(1) local op = dev:current():mark() y:fill(0) op:await() ok = true"));
    CHECK(driver_status(own) == INVALIDATED && cu.cuStreamEndCapture(own, &graph) != 0);
    CHECK(cu.cuStreamBeginCapture_v2(own, 1) == 0);
    CHECK(run(g, "c, m = code(busy, 30 << 20) ok = not c or c == 'CaptureActive' or c == "
                 "'CaptureInvalidated'"));
    CHECK(driver_status(own) == INVALIDATED);
    CHECK(cu.cuStreamEndCapture(own, &graph) != 0 && graph == NULL);
    CHECK(run(g, "collectgarbage() busy(1000) ok = true"));
}

static void *end_elsewhere(void *user) {
    uintptr_t graph = 0;
    gpulua_status status = gpulua_stream_capture_end(g, user, &graph);
    if (graph != 0) {
        cu.cuGraphDestroy((void *)graph);
    }
    return (void *)(intptr_t)status;
}

static gpulua_status on_thread(void *(*function)(void *user), void *user) {
    pthread_t thread;
    void *status = NULL;
    pthread_create(&thread, NULL, function, user);
    pthread_join(thread, &status);
    return (gpulua_status)(intptr_t)status;
}

static void *work_elsewhere(void *user) {
    (void)user;
    gpulua *there = open_on(is_fake ? "cuda:0" : getenv("GPULUA_DEVICE"), GPULUA_ISOLATE_NONE);
    bool good = there != NULL;
    if (good) {
        lua_pushboolean(gpulua_state(there), !is_fake);
        lua_setglobal(gpulua_state(there), "compiled");
        good = run(there, script);
    }
    gpulua_close(there);
    return (void *)(intptr_t)(good ? GPULUA_OK : GPULUA_DRIVER);
}

static void test_threads(void) {
    static const gpulua_capture_mode modes[] = {GPULUA_CAPTURE_MODE_GLOBAL,
                                                GPULUA_CAPTURE_MODE_THREAD_LOCAL};
    for (int i = 0; i < 2; i++) {
        uintptr_t graph = 0;
        gpulua_stream_capture *capture = begin(own, modes[i]);
        FAILS(on_thread(end_elsewhere, capture), GPULUA_STREAM_MISUSE, "cuStreamEndCapture");
        /* A device of another object, opened, used and closed in another thread meanwhile. */
        CHECK(on_thread(work_elsewhere, NULL) == GPULUA_OK);
        CHECK(is_capturing(capture, GPULUA_CAPTURING_ACTIVE));
        CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK);
        CHECK(cu.cuGraphDestroy((void *)graph) == 0);
        gpulua_stream_capture_release(capture);
    }
    gpulua_stream_capture *capture = begin(own, GPULUA_CAPTURE_MODE_RELAXED);
    CHECK(on_thread(end_elsewhere, capture) == GPULUA_OK && driver_status(own) == NONE);
    gpulua_stream_capture_release(capture);
}

/* While a script sleeps a thread of ours asks the driver, which a global capture forbids to all. */
static void test_sleep(void) {
    uintptr_t graph = 0;
    gpulua_stream_capture *capture = begin(own, GPULUA_CAPTURE_MODE_GLOBAL);
    volatile int *pending = is_fake ? dlsym(driver, "fake_pending") : NULL;
    if (is_fake) {
        *pending = 1;
    }
    CHECK(luaL_loadstring(L,
                          "ok = nil\n"
                          "if compiled then\n"
                          "  local mod = dev:compile('extern \"C\" __global__ void spin(int *x) '\n"
                          "    .. '{ long long start = clock64(); '\n"
                          "    .. 'while (clock64() - start < 200000000) { } *x = 0; }')\n"
                          "  mod.spin:launch({grid = 1, block = 1}, y)\n"
                          "end\n"
                          "y:fill(1) local op = dev:current():mark() y:fill(0) op:await()\n"
                          "ok = true") == LUA_OK &&
          gpulua_load_function(g, 0) == GPULUA_OK);
    for (int i = 0; i < 10; i++) {
        gpulua_step(g, 10);
    }
    if (is_fake) {
        CHECK(gpulua_tasks(g) == 1);
        *pending = 0;
    }
    while (gpulua_tasks(g) > 0 && gpulua_step(g, -1) >= 0) {}
    lua_getglobal(L, "ok");
    CHECK(lua_toboolean(L, -1) && is_capturing(capture, GPULUA_CAPTURING_ACTIVE));
    lua_settop(L, 0);
    CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK);
    CHECK(cu.cuGraphDestroy((void *)graph) == 0);
    gpulua_stream_capture_release(capture);
}

/* Several at once, which end in any order. */
static void test_several(void) {
    void *streams[3];
    gpulua_stream_capture *captures[3];
    uintptr_t graphs[3] = {0};
    uint64_t x = address_of("x");
    for (int i = 0; i < 3; i++) {
        CHECK(cu.cuStreamCreateWithPriority(&streams[i], 1, 0) == 0);
        captures[i] = begin(streams[i], (gpulua_capture_mode)(i + 1));
        CHECK(cu.cuMemsetD32Async(x, 20 + (unsigned)i, 1, streams[i]) == 0);
    }
    for (int i = 0; i < 3; i++) {
        int at = (i + 1) % 3;
        CHECK(run(g, "busy(1000) ok = true"));
        CHECK(gpulua_stream_capture_end(g, captures[at], &graphs[at]) == GPULUA_OK &&
              has_nodes(graphs[at], 1));
        gpulua_stream_capture_release(captures[at]);
    }
    /* When none is captured any more, because the host's own calls here could break the others. */
    for (int at = 0; at < 3; at++) {
        CHECK(launch(graphs[at], false) && cu.cuStreamDestroy_v2(streams[at]) == 0);
        lua_pushinteger(L, 20 + at);
        lua_setglobal(L, "wanted");
        CHECK(run(g, "ok = x:read()[1] == wanted"));
    }
}

static void *work_on_shared(void *device) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.shared_device = device;
    config.on_error = print_error;
    gpulua *there = gpulua_new(&config);
    bool good = there != NULL && run(there, script);
    gpulua_close(there);
    return (void *)(intptr_t)(good ? GPULUA_OK : GPULUA_DRIVER);
}

/* One device of two objects: the other one works on, and closes. */
static void test_shared(void) {
    gpulua_device_config device_config;
    gpulua_config config;
    gpulua_stream_capture *capture = NULL;
    gpulua_stream_capture_info info;
    uintptr_t graph = 0;
    gpulua_device_config_init(&device_config);
    device_config.device = is_fake ? "cuda:0" : getenv("GPULUA_DEVICE");
    device_config.isolation = GPULUA_ISOLATE_NONE;
    gpulua_device *device = gpulua_device_open(&device_config);
    gpulua_config_init(&config);
    config.shared_device = device;
    gpulua *mine = gpulua_new(&config);
    if (!CHECK(device != NULL && mine != NULL && run(mine, script))) {
        return;
    }
    gpulua_stream_capture_info_init(&info);
    info.stream = (uintptr_t)own;
    info.mode = GPULUA_CAPTURE_MODE_GLOBAL;
    CHECK(gpulua_stream_capture_begin(gpulua_state(mine), &info, &capture) == GPULUA_OK);
    CHECK(on_thread(work_on_shared, device) == GPULUA_OK && driver_status(own) == ACTIVE);
    CHECK(gpulua_stream_capture_end(mine, capture, &graph) == GPULUA_OK);
    CHECK(cu.cuGraphDestroy((void *)graph) == 0);
    gpulua_stream_capture_release(capture);
    /* What one leaves open ends with that one. */
    CHECK(gpulua_stream_capture_begin(gpulua_state(mine), &info, &capture) == GPULUA_OK);
    CHECK(run(mine, "dev:close() ok = true") && driver_status(own) == ACTIVE);
    gpulua_close(mine);
    CHECK(cu.cuCtxSetCurrent(context) == 0 && driver_status(own) == NONE);
    CHECK(on_thread(work_on_shared, device) == GPULUA_OK);
    gpulua_stream_capture_release(capture);
    gpulua_device_close(device);
}

static void test_bad_input(void) {
    gpulua_stream_capture_info info;
    gpulua_stream_capture *capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT), *second;
    gpulua_stream_capture_info_init(&info);
    info.stream = (uintptr_t)own;
    FAILS(gpulua_stream_capture_begin(L, &info, &second), GPULUA_CAPTURE_ACTIVE, "being captured");
    CHECK(second == NULL && is_capturing(capture, GPULUA_CAPTURING_ACTIVE));
    for (uintptr_t legacy = 0; legacy <= 1; legacy++) {
        info.stream = legacy;
        FAILS(gpulua_stream_capture_begin(L, &info, &second), GPULUA_INVALID_ARGUMENT, "legacy");
    }
    info.mode = (gpulua_capture_mode)4;
    FAILS(gpulua_stream_capture_begin(L, &info, &second), GPULUA_INVALID_ARGUMENT, "capture_mode");
    info.mode = (gpulua_capture_mode)-1;
    FAILS(gpulua_stream_capture_begin(L, &info, &second), GPULUA_INVALID_ARGUMENT, "capture_mode");
    gpulua_stream_capture_info_init(&info);
    lua_pushinteger(L, 1);
    info.device_index = -1;
    FAILS(gpulua_stream_capture_begin(L, &info, &second), GPULUA_INVALID_ARGUMENT, "device");
    lua_settop(L, 0);
    info.struct_bytes--;
    FAILS(gpulua_stream_capture_begin(L, &info, &second), GPULUA_INVALID_ARGUMENT, "info_init");
    gpulua *there = open_on("cpu", GPULUA_ISOLATE_NONE);
    uintptr_t graph = 1;
    CHECK(failed(there, gpulua_stream_capture_end(there, capture, &graph), GPULUA_INVALID_ARGUMENT,
                 "another gpulua object"));
    CHECK(graph == 0);
    gpulua_close(there);
    /* The host ends it by the driver. */
    void *made = NULL;
    CHECK(cu.cuStreamEndCapture(own, &made) == 0 && cu.cuGraphDestroy(made) == 0);
    CHECK(is_capturing(capture, GPULUA_CAPTURING_NONE));
    second = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
    gpulua_stream_capture_release(second);
    CHECK(driver_status(own) == NONE);
    FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CLOSED, "");
    gpulua_stream_capture_release(capture);
    capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
    CHECK(cu.cuStreamEndCapture(own, &made) == 0 && cu.cuGraphDestroy(made) == 0);
    FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CLOSED, "by somebody else");
    gpulua_stream_capture_release(capture);
}

/* ---- streams of ours ---- */

static gpulua_recorder *recorder_on(const char *stream, void **native) {
    gpulua_recorder *r = NULL;
    gpulua_recorder_info info;
    gpulua_recorder_info_init(&info);
    lua_getglobal(L, stream);
    info.stream_index = -1;
    if (!CHECK(gpulua_recorder_new(L, &info, &r) == GPULUA_OK)) {
        exit(tap_finish(&tap));
    }
    lua_pop(L, 1);
    uintptr_t found = 0;
    CHECK(gpulua_recorder_stream(g, r, &found) == GPULUA_OK && found != 0);
    *native = (void *)found;
    return r;
}

/* Nothing of ours goes onto a captured stream, and nothing of the capture is lost. */
static const char refused[] =
    "local function on_s(f, ...) return (code(s.use, s, f, ...)) end\n"
    "local c, m = code(s.use, s, function() y:fill(1) end)\n"
    "assert(c == wanted and m:find('stream', 1, true), m)\n"
    "assert(on_s(y.write, y, {1}, 1) == wanted)\n"
    "assert(on_s(y.copy, y, dev:upload('i32', {1, 2, 3, 4})) == wanted)\n"
    "local m <close> = dev:memory {from = 'driver'}\n"
    "assert(on_s(m.buffer, m, 'i32', 4) == wanted)\n"
    "local graph <close> = dev:capture(function() y:fill(9) end)\n"
    "assert(on_s(graph.launch, graph) == wanted and on_s(graph.upload, graph) == wanted)\n"
    "assert(on_s(dev.recorder, dev, {stream = s}) == wanted)\n"
    "dev:synchronize() ok = y:read()[1] == 0";

static void test_ours(bool is_announced) {
    uint64_t x = address_of("x");
    void *native = NULL, *made = NULL;
    uintptr_t graph = 0;
    gpulua_stream_capture *capture = NULL;
    gpulua_recorder *second = NULL;
    gpulua_buffer *buffer = global_buffer(g, "x");
    CHECK(run(g, "x:fill(0) y:fill(0) s:use(function() for i = 1, 5 do x:write({i}, 1) end end)\n"
                 "wanted = 'CaptureActive' ok = true"));
    gpulua_recorder *r = recorder_on("s", &native);
    gpulua_recorder_write(r, buffer, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    if (is_announced) {
        capture = begin(native, GPULUA_CAPTURE_MODE_DEFAULT);
    } else {
        CHECK(cu.cuStreamBeginCapture_v2(native, 1) == 0);
    }
    CHECK(cu.cuMemsetD32Async(x, 77, 1, native) == 0);
    CHECK(run(g, refused) && driver_status(native) == ACTIVE);
    FAILS(gpulua_recorder_wait(g, r), GPULUA_CAPTURE_ACTIVE, "capturing stream");
    FAILS(gpulua_recorder_commit(g, r), GPULUA_CAPTURE_ACTIVE, "capturing stream");
    FAILS(gpulua_recorder_preflight(g, r), GPULUA_STREAM_MISUSE, "second preflight");
    lua_getglobal(L, "s");
    gpulua_recorder_info info;
    gpulua_recorder_info_init(&info);
    info.stream_index = -1;
    FAILS(gpulua_recorder_new(L, &info, &second), GPULUA_CAPTURE_ACTIVE, "capturing stream");
    lua_settop(L, 0);
    /* Other streams work on, but for what the recorder holds. */
    CHECK(run(g, "busy(2000) ok = code(x.fill, x, 1) == 'StreamMisuse'"));
    CHECK(run(g, "for i = 1, 200 do y:write({i}, 1) end ok = y:read()[1] == 200 y:fill(0)"));
    CHECK(driver_status(native) == ACTIVE);
    if (is_announced) {
        CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK);
    } else {
        CHECK(cu.cuStreamEndCapture(native, &made) == 0);
        graph = (uintptr_t)made;
    }
    CHECK(graph != 0 && has_nodes(graph, 1));
    CHECK(gpulua_recorder_wait(g, r) == GPULUA_OK && gpulua_recorder_commit(g, r) == GPULUA_OK);
    gpulua_recorder_release(r);
    gpulua_stream_capture_release(capture);
    CHECK(run(g, "ok = x:read()[1] == 5"));
    CHECK(run(g, "s:use(function() y:fill(8) end) ok = y:read()[1] == 8"));
    CHECK(launch(graph, true) && run(g, "ok = x:read()[1] == 77"));
    CHECK(run(g, "x:fill(1) ok = true") && launch(graph, false));
    CHECK(run(g, "ok = x:read()[1] == 77 and x:read()[2] == 1"));

    /* Broken: told as that, until it has ended. */
    r = recorder_on("s", &native);
    gpulua_recorder_read(r, buffer, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    if (is_announced) {
        capture = begin(native, GPULUA_CAPTURE_MODE_DEFAULT);
    } else {
        CHECK(cu.cuStreamBeginCapture_v2(native, 1) == 0);
    }
    CHECK(cu.cuStreamQuery(native) != 0 && driver_status(native) == INVALIDATED);
    CHECK(run(g, "wanted = 'CaptureInvalidated' y:fill(0) ok = true") && run(g, refused));
    FAILS(gpulua_recorder_commit(g, r), GPULUA_CAPTURE_INVALIDATED, "broken");
    CHECK(run(g, "busy(1000) ok = true") && driver_status(native) == INVALIDATED);
    if (is_announced) {
        FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CAPTURE_INVALIDATED, "");
        gpulua_stream_capture_release(capture);
    } else {
        CHECK(cu.cuStreamEndCapture(native, &made) != 0);
    }
    CHECK(gpulua_recorder_commit(g, r) == GPULUA_OK);
    gpulua_recorder_release(r);
    CHECK(run(g, "s:use(function() x:fill(6) end) ok = x:read()[1] == 6"));
    gpulua_buffer_release(buffer);
}

/* A recorder that is dropped between preflight and commit: its uses are noted behind the stream's
 * work, so the capture has to end. */
static void test_abandoned(void) {
    void *native = NULL;
    gpulua_buffer *x = global_buffer(g, "x");
    CHECK(run(g, "before = dev:stats().recorders_abandoned ok = true"));
    for (int is_announced = 0; is_announced <= 1; is_announced++) {
        gpulua_stream_capture *capture = NULL;
        uintptr_t graph = 0;
        gpulua_recorder *r = recorder_on("s", &native);
        gpulua_recorder_write(r, x, "x");
        CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
        if (is_announced) {
            capture = begin(native, GPULUA_CAPTURE_MODE_DEFAULT);
        } else {
            CHECK(cu.cuStreamBeginCapture_v2(native, 1) == 0);
        }
        gpulua_recorder_release(r);
        CHECK(run(g, "x:fill(2) ok = x:read()[1] == 2") && driver_status(native) == NONE);
        if (is_announced) {
            CHECK(is_capturing(capture, GPULUA_CAPTURING_NONE));
            FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CLOSED, "");
            gpulua_stream_capture_release(capture);
        }
    }
    CHECK(run(g, "ok = dev:stats().recorders_abandoned == before + 2"));
    gpulua_buffer_release(x);
}

enum elsewhere { ANNOUNCED, BY_DRIVER, LEFT }; /* the last: it goes with the device */
static struct {
    enum elsewhere way;
    void *native;
    sem_t has_begun, is_to_end;
} there;

static void *capture_there(void *unused) {
    gpulua_stream_capture *capture = NULL;
    uintptr_t graph = 0;
    void *made = NULL;
    bool good = cu.cuCtxSetCurrent(context) == 0;
    if (there.way == ANNOUNCED) {
        capture = begin(there.native, GPULUA_CAPTURE_MODE_DEFAULT);
    } else {
        good = cu.cuStreamBeginCapture_v2(there.native, 1) == 0 && good;
    }
    sem_post(&there.has_begun);
    sem_wait(&there.is_to_end);
    if (there.way == ANNOUNCED) {
        good = gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK && good;
        gpulua_stream_capture_release(capture);
        made = (void *)graph;
    } else if (there.way == BY_DRIVER) {
        good = cu.cuStreamEndCapture(there.native, &made) == 0 && good;
    }
    CHECK(good && (made == NULL || cu.cuGraphDestroy(made) == 0));
    return unused;
}

/* A capture behind the other thread's is none of what the recorder has left there. */
static void capture_once_more(bool is_announced) {
    gpulua_stream_capture *capture = NULL;
    uintptr_t graph = 0;
    void *made = NULL;
    if (is_announced) {
        capture = begin(there.native, GPULUA_CAPTURE_MODE_DEFAULT);
        CHECK(run(g, "x:fill(4) ok = x:read()[1] == 4")); /* it was noted in between */
        CHECK(driver_status(there.native) == ACTIVE);
        CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK && has_nodes(graph, 0));
        gpulua_stream_capture_release(capture);
        made = (void *)graph;
    } else {
        CHECK(cu.cuStreamBeginCapture_v2(there.native, 1) == 0);
        CHECK(run(g, "ok = code(x.fill, x, 4) == 'CaptureActive'")); /* nobody has looked */
        CHECK(driver_status(there.native) == ACTIVE);
        CHECK(cu.cuStreamEndCapture(there.native, &made) == 0);
    }
    CHECK(cu.cuGraphDestroy(made) == 0);
}

/* The same where another thread captures the stream, which alone can end that: what needs what the
 * recorder uses fails or waits for as long, and the device is well. */
static void test_abandoned_elsewhere(enum elsewhere way) {
    pthread_t thread;
    gpulua_buffer *x = global_buffer(g, "x");
    there.way = way;
    sem_init(&there.has_begun, 0, 0);
    sem_init(&there.is_to_end, 0, 0);
    CHECK(run(g, "x:fill(1) dev:synchronize() ok = true"));
    gpulua_recorder *r = recorder_on("s", &there.native);
    gpulua_recorder_write(r, x, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    pthread_create(&thread, NULL, capture_there, NULL);
    sem_wait(&there.has_begun);
    gpulua_recorder_release(r);
    CHECK(run(g, "local e, m = code(x.read, x)\n"
                 "ok = e == 'CaptureActive' and m:find('the host captures')"));
    /* Each time, for who has failed is not behind it; nor is who waits for that. */
    CHECK(run(g, "local into = dev:buffer('i32', 4)\n"
                 "for _ = 1, 3 do\n"
                 "  assert(code(x.read, x) == 'CaptureActive')\n"
                 "  assert(code(x.fill, x, 9) == 'CaptureActive')\n"
                 "  assert(code(into.copy, into, x) == 'CaptureActive')\n"
                 "  assert(code(other.wait, other, s) == 'CaptureActive')\n"
                 "  assert(code(other.use, other, x.fill, x, 9) == 'CaptureActive')\n"
                 "end\n"
                 "into:fill(1) ok = into:read()[1] == 1"));
    CHECK(run(g, "local e = code(gpu.timeout, 0.05, function() dev:synchronize() end)\n"
                 "ok = e == 'Timeout'"));
    CHECK(run(g, "y:fill(3) ok = y:read()[1] == 3") && driver_status(there.native) == ACTIVE);
    if (way == LEFT) {
        CHECK(run(g, "dev:close() ok = true"));
    }
    sem_post(&there.is_to_end);
    pthread_join(thread, NULL);
    if (way != LEFT) {
        CHECK(driver_status(there.native) == NONE);
        capture_once_more(way == ANNOUNCED);
        CHECK(run(g, "dev:synchronize() x:fill(4) ok = x:read()[1] == 4"));
        CHECK(run(g, "s:use(function() x:fill(5) end) ok = x:read()[1] == 5"));
    }
    gpulua_buffer_release(x);
    sem_destroy(&there.has_begun);
    sem_destroy(&there.is_to_end);
}

/* The host's capture of its own stream takes in one of ours, by an event, and lets it go. */
static void test_forked(void) {
    void *native = NULL, *event = NULL;
    uintptr_t graph = 0;
    uint64_t at = address_of("x");
    gpulua_buffer *x = global_buffer(g, "x");
    gpulua_recorder *r = recorder_on("s", &native);
    gpulua_recorder_write(r, x, "x");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
    CHECK(cu.cuEventCreate(&event, 2) == 0);
    gpulua_stream_capture *capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
    CHECK(cu.cuMemsetD32Async(at, 1, 1, own) == 0 && cu.cuEventRecord(event, own) == 0 &&
          cu.cuStreamWaitEvent(native, event, 0) == 0);
    CHECK(driver_status(native) == ACTIVE);
    CHECK(cu.cuMemsetD32Async(at + 4, 2, 1, native) == 0);
    CHECK(run(g, "y:fill(0) wanted = 'CaptureActive' ok = true") && run(g, refused));
    FAILS(gpulua_recorder_commit(g, r), GPULUA_CAPTURE_ACTIVE, "capturing stream");
    CHECK(cu.cuEventRecord(event, native) == 0 && cu.cuStreamWaitEvent(own, event, 0) == 0);
    CHECK(run(g, "busy(1000) ok = true"));
    CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK && has_nodes(graph, 2));
    CHECK(gpulua_recorder_commit(g, r) == GPULUA_OK && launch(graph, false));
    CHECK(run(g, "local t = x:read() ok = t[1] == 1 and t[2] == 2"));
    gpulua_recorder_release(r);
    gpulua_stream_capture_release(capture);

    /* Not joined: nothing comes of it. */
    capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
    CHECK(cu.cuEventRecord(event, own) == 0 && cu.cuStreamWaitEvent(native, event, 0) == 0);
    CHECK(cu.cuMemsetD32Async(at + 4, 2, 1, native) == 0);
    FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CAPTURE_INVALIDATED, "");
    CHECK(driver_status(own) == NONE && driver_status(native) == NONE);
    gpulua_stream_capture_release(capture);
    CHECK(run(g, "s:use(function() x:fill(3) end) ok = x:read()[2] == 3"));
    cu.cuEventDestroy_v2(event);
    gpulua_buffer_release(x);
}

/* Exchange in the order of a stream that is being captured. */
static void test_exchange(void) {
    struct DLManagedTensorVersioned *out = NULL, *back = NULL;
    gpulua_exchange exchange;
    gpulua_buffer *x = global_buffer(g, "x"), *again = NULL;
    uintptr_t graph = 0;
    CHECK(gpulua_dlpack_export(L, x, NULL, &out) == GPULUA_OK);
    gpulua_exchange_init(&exchange);
    exchange.order = GPULUA_ORDER_STREAM;
    exchange.stream = (uintptr_t)own;
    gpulua_stream_capture *capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
    FAILS(gpulua_dlpack_export(L, x, &exchange, &back), GPULUA_CAPTURE_ACTIVE, "capturing its own");
    CHECK(back == NULL && is_capturing(capture, GPULUA_CAPTURING_ACTIVE));
    FAILS(gpulua_dlpack_import(L, 0, out, &exchange, &again), GPULUA_CAPTURE_ACTIVE,
          "capturing its own");
    CHECK(again == NULL && is_capturing(capture, GPULUA_CAPTURING_ACTIVE));
    CHECK(run(g, "busy(1000) x:fill(4) ok = x:read()[1] == 4"));
    CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK && has_nodes(graph, 0));
    CHECK(cu.cuGraphDestroy((void *)graph) == 0);
    gpulua_stream_capture_release(capture);
    if (CHECK(gpulua_dlpack_export(L, x, &exchange, &back) == GPULUA_OK)) {
        back->deleter(back);
    }
    CHECK(gpulua_dlpack_import(L, 0, out, &exchange, &again) == GPULUA_OK);
    gpulua_buffer_release(again);
    gpulua_buffer_release(x);
}

/* ---- ends ---- */

/* Closed under it: the device by a script, our stream, the object. */
static void test_closed(void) {
    void *native = NULL;
    uintptr_t graph = 1;
    gpulua_capturing capturing;
    gpulua_recorder_release(recorder_on("s", &native));
    gpulua_stream_capture *capture = begin(native, GPULUA_CAPTURE_MODE_DEFAULT);
    CHECK(run(g, "s:close() s = nil collectgarbage() collectgarbage() dev:synchronize()\n"
                 "dev:stream {}:close() ok = true"));
    CHECK(is_capturing(capture, GPULUA_CAPTURING_ACTIVE)); /* the stream is kept for it */
    CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK && has_nodes(graph, 0));
    CHECK(cu.cuGraphDestroy((void *)graph) == 0);
    gpulua_stream_capture_release(capture);
    /* One that nobody has told us of goes with the stream. */
    gpulua_recorder_release(recorder_on("other", &native));
    CHECK(cu.cuStreamBeginCapture_v2(native, 1) == 0);
    CHECK(run(g, "other:close() other = nil collectgarbage() collectgarbage() dev:synchronize()\n"
                 "local t = dev:stream {} t:use(function() y:fill(1) end) ok = y:read()[1] == 1"));
    capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
    CHECK(run(g, "dev:close() ok = true"));
    FAILS(gpulua_stream_capture_status(g, capture, &capturing), GPULUA_CLOSED, "closed");
    CHECK(capturing == GPULUA_CAPTURING_NONE);
    FAILS(gpulua_stream_capture_end(g, capture, &graph), GPULUA_CLOSED, "closed");
    gpulua_stream_capture_release(capture);
    CHECK(cu.cuCtxSetCurrent(context) == 0 && driver_status(own) == NONE);
}

static void test_left_open(void) {
    gpulua_stream_capture *capture = begin(own, GPULUA_CAPTURE_MODE_DEFAULT);
    gpulua_close(g);
    g = NULL;
    gpulua_stream_capture_release(capture);
    CHECK(cu.cuCtxSetCurrent(context) == 0 && driver_status(own) == NONE);
    if (is_fake) {
        long live = *(long *)dlsym(driver, "fake_live");
        CHECK(live == 2); /* the host's stream, and its context */
    }
}

static void test_all(void) {
    if (!CHECK(rig_open())) {
        gpulua_close(g);
        return;
    }
    test_unannounced(); /* before the host has the handle of a stream of ours */
    test_modes();
    test_own_calls();
    test_threads();
    test_sleep();
    test_several();
    test_shared();
    test_bad_input();
    test_ours(false);
    test_ours(true);
    test_abandoned();
    test_forked();
    test_exchange();
    rig_close();
    if (CHECK(rig_open())) {
        test_closed();
        rig_close();
    }
    if (CHECK(rig_open())) {
        test_left_open();
        rig_close();
    }
    if (CHECK(rig_open())) {
        test_abandoned_elsewhere(ANNOUNCED);
        if (is_fake) { /* a real driver breaks the capture when we try to end it */
            test_abandoned_elsewhere(BY_DRIVER);
            test_abandoned_elsewhere(LEFT);
        }
        rig_close();
    }
}

/* An executor that would warm up before the rounds of another device's script, and so call the
 * driver while nobody has asked for anything, does not where the host has the context, too; its
 * work breaks no capture, whether gpulua was told of it or not. */
static void test_rounds(bool is_told) {
    volatile int *runs = dlsym(driver, "fake_runs");
    if (!CHECK(rig_open())) {
        return;
    }
    CHECK(run(g,
              "b = gpu.device('cuda:0', { isolate = 'thread' }) z = b:buffer('i32', 4) ok = true"));
    gpulua_stream_capture *capture = is_told ? begin(own, GPULUA_CAPTURE_MODE_GLOBAL) : NULL;
    CHECK(is_told || cu.cuStreamBeginCapture_v2(own, 0) == 0);
    int before = *runs;
    for (int i = 0; i < 40; i++) {
        CHECK(run(g, "z:fill(1) ok = true"));
        usleep(4000);
    }
    CHECK(*runs == before);
    CHECK(driver_status(own) == ACTIVE);
    uintptr_t graph = 0;
    if (is_told) {
        CHECK(gpulua_stream_capture_end(g, capture, &graph) == GPULUA_OK);
        gpulua_stream_capture_release(capture);
    } else {
        CHECK(cu.cuStreamEndCapture(own, (void **)(void *)&graph) == 0);
    }
    CHECK(graph != 0 && cu.cuGraphDestroy((void *)graph) == 0);
    CHECK(run(g, "b:close() ok = true"));
    rig_close();
}

int main(void) {
    const char *device = getenv("GPULUA_DEVICE"), *usual = getenv("GPULUA_LIBCUDA");
    ordinal = device != NULL && strncmp(device, "cuda:", 5) == 0 ? atoi(device + 5) : 0;
    bool has_gpu = device != NULL && strncmp(device, "cuda", 4) == 0;
    test_unsupported("cpu", GPULUA_ISOLATE_NONE);
    test_unsupported("cpu", GPULUA_ISOLATE_PROCESS);
    if (has_gpu && load(usual != NULL && usual[0] != '\0' ? usual : "libcuda.so.1")) {
        test_unsupported(device, GPULUA_ISOLATE_PROCESS);
        test_all();
    } else {
        tap_skip(&tap, "captures of the host's, on a GPU", "GPULUA_DEVICE names none");
    }
    is_fake = true;
    ordinal = 0;
    if (CHECK(mkdtemp(folder) != NULL && build_fake("fake_cuda", library) != NULL &&
              load(library))) {
        setenv("GPULUA_LIBCUDA", library, 1);
        test_unsupported("cuda:0", GPULUA_ISOLATE_PROCESS);
        test_all();
        test_rounds(true);
        test_rounds(false);
    }
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    test_unsupported("cpu", GPULUA_ISOLATE_NONE);
    test_unsupported("cpu", GPULUA_ISOLATE_PROCESS);
    tap_skip(&tap, "captures of the host's", "built without the cuda backend");
    return tap_finish(&tap);
}

#endif
