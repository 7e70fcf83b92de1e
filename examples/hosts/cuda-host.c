/* A host that uses CUDA itself: its own hold on the device's context, its own stream, its own
 * memory. A script works on that memory in place; who comes first is said by streams, and nobody
 * blocks.
 *
 *   the host fills its memory, on its stream
 *   the script's kernel reads and writes it: behind the fill
 *   the host copies it, on its stream: behind the kernel
 *
 * Ends with 77 where there is no GPU. */
#include <cuda.h>
#include <dlfcn.h>
#include <gpulua.h>
#include <lauxlib.h>
#include <lua.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT 4096

/* The driver is loaded at run time, as gpulua does it. */
#define DRIVER_TABLE(X)                                                                            \
    X(cuInit, "cuInit")                                                                            \
    X(cuGetErrorName, "cuGetErrorName")                                                            \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")                                   \
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

static const char script[] = "local x = ...\n"
                             "local dev = require 'gpulua'.device()\n"
                             "dev:compile[[\n"
                             "  extern \"C\" __global__ void shift(int n, float k, float *x) {\n"
                             "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                             "    if (i < n) x[i] = 2 * x[i] + k * i;\n"
                             "  }]].shift:launch(#x, #x, 0.5, x)\n";

/* Lends the memory at `memory` to the script and takes it back; `stream` is the host's. */
static int work(gpulua *g, CUdeviceptr memory, CUstream stream) {
    lua_State *L = gpulua_state(g);
    static int64_t shape[1] = {COUNT};
    static struct DLManagedTensor in; /* gpulua's until gpulua_close at the latest */
    struct DLManagedTensor *out = NULL;
    gpulua_exchange exchange;
    gpulua_buffer *x;
    in.tensor.data = (void *)(uintptr_t)memory;
    in.tensor.device_kind = in.tensor.type = 2;
    in.tensor.bits = 32;
    in.tensor.lanes = 1;
    in.tensor.dim_count = 1;
    in.tensor.shape = shape;
    gpulua_exchange_init(&exchange);
    exchange.order = GPULUA_ORDER_STREAM;
    exchange.stream = (uintptr_t)stream;
    exchange.label = "the host's";
    /* Work of the script's waits for what is on the stream now. */
    if (gpulua_dlpack_import_unversioned(L, 0, &in, &exchange, &x)) {
        return 0;
    }
    int is_well = luaL_loadstring(L, script) == LUA_OK && gpulua_push_buffer(L, x) == GPULUA_OK &&
                  gpulua_load_function(g, 1) == GPULUA_OK;
    while (gpulua_step(g, -1) > 0) {}
    /* What the host puts on the stream from here on waits for the script's kernel. */
    is_well = is_well && gpulua_dlpack_export_unversioned(L, x, &exchange, &out) == GPULUA_OK;
    if (is_well) {
        out->deleter(out);
    }
    gpulua_buffer_release(x);
    return is_well;
}

int main(void) {
    static float result[COUNT];
    CUcontext context;
    CUdevice device = 0;
    CUstream stream = NULL;
    CUdeviceptr memory = 0;
    unsigned one;
    if (!load_driver() || driver.cuInit(0) != CUDA_SUCCESS ||
        driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
        puts("skipped: no GPU with a CUDA driver");
        return 77;
    }
    memcpy(&one, &(float){1}, sizeof one);
    if (!CU(cuCtxSetCurrent, context) || !CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) ||
        !CU(cuMemAlloc, &memory, sizeof result) ||
        !CU(cuMemsetD32Async, memory, one, COUNT, stream)) {
        return 1;
    }

    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cuda:0";
    config.isolation = GPULUA_ISOLATE_NONE; /* in this process: streams and memory are shared */
    config.on_error = on_error;
    gpulua *g = gpulua_new(&config);
    if (!g || !work(g, memory, stream)) {
        on_error(NULL, gpulua_last_error(g));
    }
    if (CU(cuMemcpyDtoHAsync, result, memory, sizeof result, stream) &&
        CU(cuStreamSynchronize, stream)) {
        printf("x[0] = %g, x[1] = %g, x[%d] = %g\n", result[0], result[1], COUNT - 1,
               result[COUNT - 1]);
    }
    /* Before the memory goes that it was lent. It leaves this thread without a context. */
    gpulua_close(g);
    CU(cuCtxSetCurrent, context);
    CU(cuMemFree, memory);
    CU(cuStreamDestroy, stream);
    CU(cuDevicePrimaryCtxRelease, device);
    return failures > 0;
}
