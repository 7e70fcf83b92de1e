/* Exchange of device memory by DLPack, on backend/cuda over backend/fake_cuda.c: where tensors are,
 * which streams wait for which, and that the driver gets all back. With real memory and real
 * libraries: exchange.py, where there is a GPU. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "host/dlpack.h"
#include "host/exchange.h"

#ifdef GPULUA_CUDA

#include "backend/fake.h"

static void *fake;
static char library[256];
#define FAKE(type, name) (*(type *)dlsym(fake, "fake_" #name))

static bool build(void) {
    fake = mkdtemp(folder) != NULL ? build_fake("fake_cuda", library) : NULL;
    return fake != NULL && setenv("GPULUA_LIBCUDA", library, 1) == 0;
}

static gpulua *open_cuda(void) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cuda:0";
    config.isolation = GPULUA_ISOLATE_NONE;
    config.on_error = print_error;
    return gpulua_new(&config);
}

static int deleted;
static void deleter(struct DLManagedTensorVersioned *self) {
    (void)self;
    deleted++;
}

static int64_t shape[1];
static struct DLManagedTensorVersioned tensor_over(void *data, int32_t kind, int32_t ordinal) {
    shape[0] = 8;
    return (struct DLManagedTensorVersioned){.version = {1, 1},
                                             .deleter = deleter,
                                             .tensor = {.data = data,
                                                        .device = {kind, ordinal},
                                                        .dim_count = 1,
                                                        .type = {DLPACK_FLOAT, 32, 1},
                                                        .shape = shape}};
}

static const char open_script[] = "gpu = require 'gpulua' dev = gpu.device()\n"
                                  "s = dev:stream {} ok = true\n"
                                  "function code(f, ...)\n"
                                  "  local good, e = pcall(f, ...) return not good and e.code\n"
                                  "end";

static void test_export(gpulua *g) {
    lua_State *L = gpulua_state(g);
    struct DLManagedTensorVersioned *out = NULL;
    struct DLManagedTensor *plain = NULL;
    gpulua_exchange exchange;
    uintptr_t native = 0;
    void *bytes;
    gpulua_recorder *r;
    gpulua_recorder_info info;
    CHECK(run(g, "x = dev:upload('f32', {1, 2, 3, 4, 5, 6, 7, 8}) ok = true"));
    gpulua_buffer *x = global_buffer(g, "x");
    FAILS(gpulua_buffer_map(g, x, GPULUA_READ, &bytes), GPULUA_UNSUPPORTED, "copy it into a host");
    CHECK(gpulua_dlpack_export(L, x, NULL, &out) == GPULUA_OK);
    CHECK(out->tensor.device.kind == DLPACK_CUDA && out->tensor.device.ordinal == 0);
    CHECK(((float *)out->tensor.data)[7] == 8); /* it has waited; the driver's memory is ours */
    out->deleter(out);
    /* The consumer's stream waits for an event behind our work, on the stream that was named. */
    gpulua_recorder_info_init(&info);
    lua_getglobal(L, "s");
    info.stream_index = 1;
    CHECK(gpulua_recorder_new(L, &info, &r) == GPULUA_OK);
    CHECK(gpulua_recorder_stream(g, r, &native) == GPULUA_OK && native != 0);
    gpulua_recorder_release(r);
    gpulua_exchange_init(&exchange);
    exchange.order = GPULUA_ORDER_STREAM;
    exchange.stream = 2;
    exchange.stream_index = 1;
    FAKE(int, pending) = 1;
    CHECK(gpulua_dlpack_export_unversioned(L, x, &exchange, &plain) == GPULUA_OK);
    FAKE(int, pending) = 0;
    CHECK(FAKE(void *, waited_on) == (void *)2);
    CHECK(FAKE(void *, waited_for) == FAKE(void *, recorded) &&
          FAKE(void *, recorded_on) == (void *)native);
    plain->deleter(plain);
    lua_settop(L, 0);
    gpulua_buffer_release(x);
}

static void test_import(gpulua *g) {
    lua_State *L = gpulua_state(g);
    void *memory = aligned_alloc(512, 4096); /* what the driver gave to another library */
    struct DLManagedTensorVersioned in = tensor_over(memory, DLPACK_CUDA, 0);
    gpulua_exchange exchange;
    gpulua_buffer *x = NULL;
    gpulua_buffer_info info;
    deleted = 0;
    CHECK(gpulua_dlpack_import(L, 0, &in, NULL, &x) == GPULUA_OK);
    gpulua_buffer_describe(x, &info);
    CHECK(info.is_external && strcmp(info.device_kind, "cuda") == 0);
    set_global(g, "x", x);
    CHECK(run(g, "ok = code(x.read, x) == 'StreamMisuse'")); /* nobody has said when it is ready */
    /* With the producer's stream: ours goes on behind an event on theirs. */
    struct DLManagedTensorVersioned again = in;
    gpulua_buffer *second;
    gpulua_exchange_init(&exchange);
    exchange.order = GPULUA_ORDER_STREAM;
    exchange.stream = 1;
    CHECK(gpulua_dlpack_import(L, 0, &again, &exchange, &second) == GPULUA_OK && deleted == 1);
    CHECK(FAKE(void *, waited_on) != (void *)1 && FAKE(void *, waited_for) != NULL);
    ((float *)memory)[3] = 30;
    CHECK(run(g, "ok = x:read()[4] == 30"));
    gpulua_buffer_release(second);
    gpulua_buffer_release(x);
    CHECK(run(g,
              "x:close() x = nil collectgarbage() dev:synchronize() ok = dev:stats().imports_live "
              "== 0"));
    CHECK(deleted == 2);
    in = tensor_over(memory, DLPACK_CUDA, 1);
    FAILS(gpulua_dlpack_import(L, 0, &in, &exchange, &x), GPULUA_INVALID_ARGUMENT,
          "on cuda:1, the device to import it for is cuda:0");
    in = tensor_over(memory, DLPACK_CPU, 0);
    FAILS(gpulua_dlpack_import(L, 0, &in, NULL, &x), GPULUA_UNSUPPORTED, "memory of the host");
    exchange.may_copy = 1; /* a copy would not be behind the stream */
    FAILS(gpulua_dlpack_import(L, 0, &in, &exchange, &x), GPULUA_UNSUPPORTED, "memory of the host");
    exchange.order = GPULUA_ORDER_READY;
    CHECK(gpulua_dlpack_import(L, 0, &in, &exchange, &x) == GPULUA_OK && deleted == 3);
    gpulua_buffer_describe(x, &info);
    CHECK(info.is_host && !info.is_external);
    gpulua_buffer_release(x);
    for (int i = 0; i < 2; i++) { /* the GPU reaches these by their address */
        in = tensor_over(memory, i ? DLPACK_CUDA_MANAGED : DLPACK_CUDA_HOST, 0);
        CHECK(gpulua_dlpack_import(L, 0, &in, &exchange, &x) == GPULUA_OK);
        gpulua_buffer_describe(x, &info);
        CHECK(!info.is_host && info.is_external);
        set_global(g, "x", x);
        CHECK(run(g, "ok = x:read()[4] == 30 x:close()"));
        gpulua_buffer_release(x);
    }
    run(g, "dev:synchronize() ok = true");
    CHECK(deleted == 5);
    /* A driver that fails: the tensor stays the caller's. */
    in = tensor_over(memory, DLPACK_CUDA, 0);
    exchange.order = GPULUA_ORDER_STREAM;
    exchange.stream = 0;
    FAILS(gpulua_dlpack_import(L, 0, &in, &exchange, &x), GPULUA_INVALID_ARGUMENT, "stream 0");
    CHECK(deleted == 5 && x == NULL);
    free(memory);
}

static void *end_tensor(void *user) {
    struct DLManagedTensorVersioned *out = user;
    out->deleter(out);
    return NULL;
}

int main(void) {
    struct DLManagedTensorVersioned *out = NULL;
    pthread_t thread;
    if (!tap_check(&tap, build(), "the fake driver is built")) {
        return tap_finish(&tap);
    }
    gpulua *g = open_cuda();
    if (CHECK(run(g, open_script))) {
        test_export(g);
        test_import(g);
        /* The last tensor comes back by a thread that the driver has never seen, after the end. */
        CHECK(run(g, "x = dev:upload('f32', {1, 2, 3}) ok = true"));
        gpulua_buffer *x = global_buffer(g, "x");
        CHECK(gpulua_dlpack_export(gpulua_state(g), x, NULL, &out) == GPULUA_OK);
        gpulua_buffer_release(x);
        gpulua_close(g);
        CHECK(FAKE(long, live) > 0 && ((float *)out->tensor.data)[2] == 3);
        pthread_create(&thread, NULL, end_tensor, out);
        pthread_join(thread, NULL);
        CHECK(FAKE(long, live) == 0);
    } else {
        gpulua_close(g);
    }
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "exchange of device memory", "built without the cuda backend");
    return tap_finish(&tap);
}

#endif
