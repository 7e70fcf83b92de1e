/* A host that uses CUDA itself: its own hold on a context, its own stream, its own memory. A script
 * works on that memory in place; who comes first is said by streams, and nobody blocks.
 *
 *   the host fills its memory, on its stream
 *   the script's kernel reads and writes it: behind the fill
 *   the host copies it, on its stream: behind the kernel
 *
 * Four times: in the device's primary context, in one of cuCtxCreate, there on the host's own
 * stream (cuda_stream), and on a thread of gpulua's. Each with that context current, with another
 * one, and with none; behind each call it has to be as before.
 *
 * Says what it has found, and ends with 1 where something is wrong, with 77 where there is no GPU.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <gpulua.h>
#include <lauxlib.h>
#include <lua.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT 4096

/* Not the newest one, which cuda.h has under its name. */
extern CUresult create_context(CUcontext *context, unsigned flags, CUdevice device);

/* The driver is loaded at run time, as gpulua does it. */
#define DRIVER_TABLE(X)                                                                            \
    X(cuInit, "cuInit")                                                                            \
    X(cuGetErrorName, "cuGetErrorName")                                                            \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")                                   \
    X(create_context, "cuCtxCreate_v2")                                                            \
    X(cuCtxDestroy, "cuCtxDestroy_v2")                                                             \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                                       \
    X(cuCtxGetCurrent, "cuCtxGetCurrent")                                                          \
    X(cuCtxSetCurrent, "cuCtxSetCurrent")                                                          \
    X(cuStreamCreate, "cuStreamCreate")                                                            \
    X(cuStreamSynchronize, "cuStreamSynchronize")                                                  \
    X(cuStreamDestroy, "cuStreamDestroy_v2")                                                       \
    X(cuMemAlloc, "cuMemAlloc_v2")                                                                 \
    X(cuMemFree, "cuMemFree_v2")                                                                   \
    X(cuMemsetD32Async, "cuMemsetD32Async")                                                        \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")
static struct {
#define X(name, symbol) __typeof__(&name) name;
    DRIVER_TABLE(X)
#undef X
} driver;

static int load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int is_whole = library != NULL;
#define X(name, symbol)                                                                            \
    if (is_whole) {                                                                                \
        void *found = dlsym(library, symbol);                                                      \
        is_whole = found != NULL;                                                                  \
        memcpy(&driver.name, &found, sizeof found);                                                \
    }
    DRIVER_TABLE(X)
#undef X
    return is_whole;
}

static int failures;

/* Says what the driver refused. */
static int good(CUresult result, const char *call) {
    const char *name = NULL;
    if (result != CUDA_SUCCESS) {
        driver.cuGetErrorName(result, &name);
        fprintf(stderr, "cuda-host: %s: %s\n", call, name ? name : "an unknown error");
        failures++;
    }
    return result == CUDA_SUCCESS;
}
#define CU(call, ...) good(driver.call(__VA_ARGS__), #call)

/* What the host has made current before it calls gpulua. */
static CUcontext before;

/* Is it so behind the call, too? */
static void look(const char *call) {
    CUcontext now = NULL;
    if (driver.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now != before) {
        fprintf(stderr, "cuda-host: %p was current, and %p is behind %s\n", (void *)before,
                (void *)now, call);
        failures++;
        driver.cuCtxSetCurrent(before);
    }
}
/* `result` gets what the call gives, which is then looked behind. */
#define DO(result, call) (result = (call), look(#call))

static void on_error(void *user, const gpulua_error *error) {
    (void)user;
    fprintf(stderr, "cuda-host: %s\n", error->message);
    failures++;
}

/* The unversioned tensor of DLPack, as dlpack.h has it. */
struct DLManagedTensor {
    struct {
        void *data;
        int32_t device_kind, device_ordinal; /* 2: CUDA */
        int32_t dim_count;
        uint8_t type, bits; /* 2: floats */
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self);
};

static const char script[] =
    "local x = ...\n"
    "local dev = require 'gpulua'.device()\n"
    "local code = dev:compile[[\n"
    "  extern \"C\" __global__ void shift(int n, float k, float *x) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) x[i] = 2 * x[i] + k * i;\n"
    "  }]]\n"
    "code.shift:launch(#x, #x, 0.5, x)\n"
    "local y = dev:buffer('f32', #x)\n"
    "function again()\n" /* the host calls it by itself */
    "  y:fill(1)\n"
    "  for i = 1, 40 do code.shift:launch(#y, #y, 0, y) end\n"
    "  assert(y:read(1, 1)[1] == 2.0 ^ 40)\n"
    "  local has_blas, blas = pcall(dev.blas, dev)\n"
    "  if has_blas then\n"
    "    y:fill(2) blas:scal { alpha = 3, x = y } assert(y:read(1, 1)[1] == 6)\n"
    "  elseif blas.code ~= 'LibraryUnavailable' then\n"
    "    error(blas)\n"
    "  end\n"
    "end\n"
    "again()\n";

struct mode {
    const char *name;
    int is_created; /* cuCtxCreate's, and not the primary one */
    int is_given;   /* to gpulua; the primary one it finds by itself */
    int has_stream; /* the script works on the host's stream */
    gpulua_isolation isolation;
};

/* Lends the memory at `memory` to the script and takes it back; in the order that `exchange` says.
 */
static int work(gpulua *g, CUdeviceptr memory, const gpulua_exchange *exchange) {
    lua_State *L = gpulua_state(g);
    static int64_t shape[1] = {COUNT};
    static struct DLManagedTensor in; /* gpulua's until gpulua_close at the latest */
    struct DLManagedTensor *out = NULL;
    gpulua_buffer *x = NULL;
    gpulua_status status;
    int left;
    in.tensor.data = (void *)(uintptr_t)memory;
    in.tensor.device_kind = in.tensor.type = 2;
    in.tensor.bits = 32;
    in.tensor.lanes = 1;
    in.tensor.dim_count = 1;
    in.tensor.shape = shape;
    /* Work of the script's waits for what is on the stream now. */
    DO(status, gpulua_dlpack_import_unversioned(L, 0, &in, exchange, &x));
    if (status) {
        return 0;
    }
    int is_well = luaL_loadstring(L, script) == LUA_OK && gpulua_push_buffer(L, x) == GPULUA_OK &&
                  gpulua_load_function(g, 1) == GPULUA_OK;
    do {
        DO(left, gpulua_step(g, -1));
    } while (left > 0);
    /* What the host puts on the stream from here on waits for the script's kernel. */
    DO(status, gpulua_dlpack_export_unversioned(L, x, exchange, &out));
    is_well = is_well && status == GPULUA_OK;
    if (out) {
        out->deleter(out);
        look("the deleter");
    }
    if (lua_getglobal(L, "again") != LUA_TFUNCTION) {
        return 0;
    }
    DO(left, lua_pcall(L, 0, 0, 0));
    if (left != LUA_OK) {
        fprintf(stderr, "cuda-host: %s\n", luaL_tolstring(L, -1, NULL));
        failures++;
    }
    gpulua_buffer_release(x);
    look("gpulua_buffer_release");
    return is_well;
}

static void run(const struct mode *mode, CUcontext context, CUcontext current) {
    static float result[COUNT];
    CUstream stream = NULL;
    CUdeviceptr memory = 0;
    gpulua_config config;
    gpulua_exchange exchange;
    unsigned one;
    int is_well;
    memcpy(&one, &(float){1}, sizeof one);
    if (!CU(cuCtxSetCurrent, context) || !CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) ||
        !CU(cuMemAlloc, &memory, sizeof result) ||
        !CU(cuMemsetD32Async, memory, one, COUNT, stream)) {
        return;
    }
    gpulua_exchange_init(&exchange);
    exchange.label = "the host's";
    exchange.order = GPULUA_ORDER_STREAM;
    exchange.stream = (uintptr_t)stream;
    if (mode->isolation == GPULUA_ISOLATE_THREAD) { /* which shares memory, and no streams */
        exchange.order = GPULUA_ORDER_READY;
        CU(cuStreamSynchronize, stream);
    }
    gpulua_config_init(&config);
    config.device = "cuda";
    config.isolation = mode->isolation;
    config.cuda_context = mode->is_given ? context : NULL;
    config.cuda_stream = mode->has_stream ? stream : NULL;
    config.on_error = on_error;

    before = current;
    CU(cuCtxSetCurrent, before);
    gpulua *g;
    DO(g, gpulua_new(&config));
    is_well = g && work(g, memory, &exchange);
    if (!is_well) {
        on_error(NULL, gpulua_last_error(g));
    }
    CU(cuCtxSetCurrent, context);
    if (CU(cuMemcpyDtoHAsync, result, memory, sizeof result, stream) &&
        CU(cuStreamSynchronize, stream)) {
        for (int i = 0; i < COUNT; i++) {
            if (result[i] != 2 + 0.5f * (float)i) {
                fprintf(stderr, "cuda-host: %s: x[%d] = %g\n", mode->name, i, result[i]);
                failures++;
                break;
            }
        }
    }
    CU(cuCtxSetCurrent, before);
    gpulua_close(g); /* before the memory goes that it was lent */
    look("gpulua_close");
    CU(cuCtxSetCurrent, context);
    CU(cuMemFree, memory);
    CU(cuStreamDestroy, stream); /* and the context is there */
}

int main(void) {
    static const struct mode modes[] = {
        {"the primary context", 0, 0, 0, GPULUA_ISOLATE_NONE},
        {"a context of cuCtxCreate", 1, 1, 0, GPULUA_ISOLATE_NONE},
        {"the host's stream there", 1, 1, 1, GPULUA_ISOLATE_NONE},
        {"a thread of gpulua's there", 1, 1, 0, GPULUA_ISOLATE_THREAD},
    };
    CUcontext primary, created = NULL, other = NULL;
    CUdevice device = 0;
    if (!load_driver() || driver.cuInit(0) != CUDA_SUCCESS ||
        driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) {
        puts("skipped: no GPU with a CUDA driver");
        return 77;
    }
    /* Each is pushed on what is current, and comes up again when that is taken away. */
    if (!CU(create_context, &created, 0, device) || !CU(cuCtxPopCurrent, &created) ||
        !CU(create_context, &other, 0, device) || !CU(cuCtxPopCurrent, &other)) {
        return 1;
    }
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        CUcontext context = modes[i].is_created ? created : primary;
        int failures_before = failures;
        run(&modes[i], context, context);
        run(&modes[i], context, other);
        run(&modes[i], context, NULL);
        printf("%s: %s\n", modes[i].name,
               failures == failures_before ? "all is as it should be" : "something is wrong");
    }
    CU(cuCtxDestroy, other);
    CU(cuCtxDestroy, created);
    CU(cuCtxSetCurrent, NULL);
    CU(cuDevicePrimaryCtxRelease, device);
    return failures > 0;
}
