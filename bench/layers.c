/* What each layer adds to a launch, on one stream, in nanoseconds per launch, sustained (20,000
 * launches and the wait for them): the backend alone, with an event behind each launch as the
 * executor has it, the whole C runtime inline, and over the ring to another process (there also the
 * script thread's own share, in bursts that fit the ring).
 *
 *     build/bench/layers [DEVICE]      GPULUA_EXECUTOR names the executor if it is not
 * build/gpulua-exec */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "measure.h"
#include "runtime/work.h"

#define REPEATS 9
#define LAUNCHES 20000
#define BURST 500

static const char source[] =
    "extern \"C\" __global__ void saxpy(int n, float a, const float *x, float *y) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = a * x[i] + y[i]; }\n";

static void print_median(const char *name, double *values) {
    qsort(values, REPEATS, sizeof *values, by_value);
    printf("%-40s %8.0f ns\n", name, values[REPEATS / 2]);
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* ---- the backend alone ---- */

static void no_failure(void *user, uint32_t stream, uint64_t seq, uint32_t node,
                       const struct backend_failure *failure) {
    (void)user, (void)stream, (void)seq, (void)node;
    fail("launch", failure->text);
}
static void no_log(void *user, const char *line) {
    (void)user, (void)line;
}
static void no_move(void *user) {
    (void)user;
}

static void bench_backend(const char *kind) {
    const struct backend_ops *ops = gpu_backend_find(kind);
    struct backend_error error = {0};
    struct backend_open_info info = {
        .sink = {.failed = no_failure, .log = no_log, .moved = no_move}};
    struct backend_device *device;
    struct backend_stream *stream;
    struct backend_event *event;
    struct backend_slab *slab;
    struct backend_module *module;
    struct backend_kernel *kernel;
    struct wire_kernel_facts facts;
    uint64_t address;
    void *image;
    size_t image_bytes;
    char *description;
    bool prints;
    struct backend_source text = {.name = "layers.cu", .text = source, .options = ""};
    if (!ops || ops->device_open(&info, &device, &error) ||
        ops->stream_create(device, 0, 0, &stream, &error) ||
        ops->event_create(device, &event, &error) ||
        ops->slab_create(device, 1 << 21, &slab, &address, &error) ||
        ops->module_compile(device, &text, &image, &image_bytes, &description, &error) ||
        ops->module_load(device, image, image_bytes, true, &module, &error) ||
        ops->kernel_get(module, "saxpy", &kernel, &prints, &facts, &error)) {
        fail(kind, ops ? error.message : "not in this build");
    }
    struct {
        int n;
        float a;
        uint64_t x, y;
    } args = {1024, 2, address, address + 4096};
    struct backend_launch launch = {.kernel = kernel,
                                    .stream = stream,
                                    .grid = {4, 1, 1},
                                    .block = {256, 1, 1},
                                    .args = &args,
                                    .args_bytes = 24};
    for (int with_event = 0; with_event < 2; with_event++) {
        double values[REPEATS];
        for (int r = 0; r < REPEATS; r++) {
            double start = now_ns();
            for (int i = 0; i < LAUNCHES; i++) {
                launch.seq++;
                if (ops->launch(&launch, &error) ||
                    (with_event && ops->event_record(event, stream, &error))) {
                    fail("launch", error.message);
                }
            }
            (void)ops->event_record(event, stream, &error);
            while (ops->event_query(event, &error) == BACKEND_PENDING) {}
            values[r] = (now_ns() - start) / LAUNCHES;
        }
        print_median(with_event ? "backend, event behind each" : "backend", values);
    }
    free(image);
    free(description);
    ops->module_unload(device, module);
    ops->event_destroy(device, event);
    ops->stream_destroy(device, stream);
    ops->slab_destroy(device, slab);
    ops->device_close(device);
}

/* ---- the runtime ---- */

static struct gpu_error error;

static void launch_many(const struct gpu_launch *launch, int count) {
    for (int i = 0; i < count; i++) {
        struct gpu_op *op = NULL; /* as the binding has it: an op for each */
        if (gpu_work_launch(launch, &op, &error)) {
            fail("launch", error.message);
        }
        gpu_op_release(op);
    }
}

static struct gpu_ref make_buffer(struct gpu_device *device) {
    struct gpu_block_info info = {.byte_count = 4096};
    struct gpu_ref ref = {.byte_count = 4096, .type = GPU_TYPE_F32};
    if (gpu_block_create(device, &info, &ref.block, &error)) {
        fail("buffer", error.message);
    }
    return ref;
}

static void bench_runtime(const char *name, gpulua_isolation isolation) {
    struct gpu_device_info info = {.name = name, .isolation = isolation};
    struct gpu_device *device;
    struct gpu_module_info text = {.name = "layers.cu",
                                   .text = source,
                                   .text_bytes = sizeof source - 1,
                                   .kind = GPU_MODULE_SOURCE};
    struct gpu_module *module;
    struct gpu_kernel *kernel;
    struct gpu_stream *stream;
    struct gpu_op *op;
    if (gpu_device_open(&info, &device, &error) ||
        gpu_device_task_stream(device, 0, &stream, &error) ||
        gpu_module_create(device, &text, &module, &op, &error) || gpu_op_wait(op, -1, &error) ||
        gpu_module_kernel(module, "saxpy", NULL, &kernel, &error)) {
        fail(name, error.message);
    }
    gpu_op_release(op);
    struct gpu_ref x = make_buffer(device), y = make_buffer(device);
    struct gpu_arg args[4] = {{.scalar.i = 1024}, {.scalar.f32 = 2}, {.ref = &x}, {.ref = &y}};
    struct gpu_launch launch = {.submit = {.stream = stream},
                                .kernel = kernel,
                                .grid = {4, 1, 1},
                                .block = {256, 1, 1},
                                .args = args,
                                .arg_count = 4};
    double values[REPEATS];
    char row[80];
    const char *transport = isolation == GPULUA_ISOLATE_NONE ? "none" : "process";
    for (int r = 0; r < REPEATS; r++) {
        double start = now_ns();
        launch_many(&launch, LAUNCHES);
        (void)gpu_device_wait_idle(device, -1, &error);
        values[r] = (now_ns() - start) / LAUNCHES;
    }
    snprintf(row, sizeof row, "C runtime, %s, sustained", transport);
    print_median(row, values);
    for (int r = 0; r < REPEATS; r++) {
        (void)gpu_device_wait_idle(device, -1, &error);
        double start = now_ns();
        launch_many(&launch, BURST);
        values[r] = (now_ns() - start) / BURST;
    }
    snprintf(row, sizeof row, "C runtime, %s, bursts of %d", transport, BURST);
    print_median(row, values);
    gpu_kernel_release(kernel);
    gpu_module_release(module);
    gpu_block_release(x.block);
    gpu_block_release(y.block);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "cpu";
    bench_backend(strncmp(name, "cuda", 4) == 0 ? "cuda" : "cpu");
    bench_runtime(name, GPULUA_ISOLATE_NONE);
    bench_runtime(name, GPULUA_ISOLATE_PROCESS);
    return 0;
}
