/* The CPU device: launches of saxpy, from one block to a large array, against the same loop in C
 * with OpenMP, and what a barrier costs each thread that crosses it. Prints `name value unit`
 * lines, medians; the two sides take turns. */
#include <dlfcn.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/kernel.h"

#define ELEMS (1u << 25)
#define ROUNDS 9

static const char saxpy_text[] =
    "extern \"C\" __global__ void saxpy(int n, float a, const float *x, float *y) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) y[i] = a * x[i] + y[i];\n"
    "}\n";

static const char barrier_text[] = "extern \"C\" __global__ void barriers(int rounds, int *out) {\n"
                                   "    __shared__ int turn[2][1024];\n"
                                   "    int sum = 0;\n"
                                   "    for (int i = 0; i < rounds; i++) {\n"
                                   "        turn[i & 1][threadIdx.x] = i;\n"
                                   "        __syncthreads();\n"
                                   "        sum += turn[i & 1][(threadIdx.x + 1) % blockDim.x];\n"
                                   "    }\n"
                                   "    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;\n"
                                   "}\n";

static const char openmp_text[] = "void saxpy(int n, float a, const float *x, float *y) {\n"
                                  "#pragma omp parallel for schedule(static)\n"
                                  "    for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];\n"
                                  "}\n";

struct loaded {
    struct cpu_module *module;
    struct cpu_kernel *kernel;
};

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool kernel_load(const char *text, const char *name, struct loaded *loaded) {
    struct backend_source source = {.name = "bench.cu", .text = text, .options = ""};
    struct backend_error error = {.log = NULL};
    struct wire_kernel_facts facts;
    void *image = NULL;
    size_t image_bytes = 0;
    char *description = NULL;
    bool ok =
        gpu_cpu_module_compile(NULL, false, &source, &image, &image_bytes, &description, &error) ==
            GPULUA_OK &&
        gpu_cpu_module_load(NULL, image, image_bytes, true, &loaded->module, &error) == GPULUA_OK &&
        gpu_cpu_kernel_get(loaded->module, name, &loaded->kernel, &facts, &error) == GPULUA_OK;
    if (!ok) {
        fprintf(stderr, "%s\n%s\n", error.message, error.log != NULL ? error.log : "");
    }
    free(error.log);
    free(image);
    free(description);
    return ok;
}

/* The C loop, built as a C programmer would: with the machine's compiler, for this processor. */
static void (*openmp_saxpy(void))(int, float, const float *, float *) {
    char folder[] = "/tmp/gpulua-bench-XXXXXX", source[64], object[64], command[512];
    if (mkdtemp(folder) == NULL) {
        return NULL;
    }
    snprintf(source, sizeof source, "%s/saxpy.c", folder);
    snprintf(object, sizeof object, "%s/saxpy.so", folder);
    FILE *file = fopen(source, "w");
    if (file == NULL) {
        return NULL;
    }
    fputs(openmp_text, file);
    fclose(file);
    snprintf(command, sizeof command,
             "${CC:-cc} -O3 -march=native -fopenmp -fPIC -shared -o %s %s 2>/dev/null", object,
             source);
    void *handle = system(command) == 0 ? dlopen(object, RTLD_NOW) : NULL;
    void (*function)(int, float, const float *, float *) = NULL;
    if (handle != NULL) {
        *(void **)&function = dlsym(handle, "saxpy");
    }
    unlink(source);
    unlink(object);
    rmdir(folder);
    return function;
}

static void barrier_bench(uint32_t thread_count) {
    struct loaded loaded;
    if (!kernel_load(barrier_text, "barriers", &loaded)) {
        return;
    }
    int *out = calloc(thread_count, sizeof *out);
    struct {
        int rounds;
        int *out;
    } args = {2000, out};
    struct cpu_launch launch = {
        .kernel = loaded.kernel, .grid = {1, 1, 1}, .block = {thread_count, 1, 1}, .args = &args};
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_s();
        gpu_cpu_blocks_run(&launch, 0, 1);
        double spent = now_s() - start;
        best = spent < best ? spent : best;
    }
    printf("barrier_%u_ns %.2f ns\n", thread_count,
           best * 1e9 / (double)args.rounds / thread_count);
    if (out[0] != args.rounds * (args.rounds - 1) / 2) {
        printf("barrier_%u is wrong\n", thread_count);
    }
    free(out);
    gpu_cpu_module_unload(loaded.module);
}

/* ---- the device: a stream, its queue, the workers ---- */

#define IN_A_ROW_MAX 32u
#define DEVICE_ROUNDS 41
#define OPENMP_SPIN_US 30000 /* its threads spin for a while behind a loop, in everybody's way */

struct waiter {
    sem_t moved;
    _Atomic uint64_t word, awaited;
    uint64_t launched;
};

static void on_moved(void *user) {
    struct waiter *waiter = user;
    if (atomic_load(&waiter->word) == atomic_load(&waiter->awaited)) {
        sem_post(&waiter->moved);
    }
}

static void on_failed(void *user, uint32_t stream, uint64_t seq, uint32_t node,
                      const struct backend_failure *failure) {
    (void)user, (void)stream, (void)seq, (void)node;
    fprintf(stderr, "%s\n", failure->text);
}

/* `count` launches and a word behind each. Returns seconds until the last word is seen; the waiter
 * sleeps, as a script does. */
static double device_run(const struct backend_launch *launch, struct waiter *waiter,
                         unsigned count) {
    struct backend_error error = {.log = NULL};
    atomic_store(&waiter->awaited, waiter->launched + count);
    double start = now_s();
    for (unsigned i = 0; i < count; i++) {
        struct backend_launch next = *launch;
        next.seq = ++waiter->launched;
        if (gpu_backend_cpu.launch(&next, &error) != GPULUA_OK ||
            gpu_backend_cpu.stream_word(next.stream, &waiter->word, next.seq, &error) !=
                GPULUA_OK) {
            fprintf(stderr, "%s\n", error.message);
            exit(1);
        }
    }
    while (atomic_load_explicit(&waiter->word, memory_order_acquire) < waiter->launched) {
        sem_wait(&waiter->moved);
    }
    return now_s() - start;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_us(double *seconds, size_t count) {
    qsort(seconds, count, sizeof *seconds, compare_doubles);
    return seconds[count / 2] * 1e6;
}

static void device_bench(struct backend_device *device, struct waiter *waiter,
                         unsigned elem_count) {
    struct loaded loaded;
    struct backend_stream *stream = NULL;
    struct backend_error error = {.log = NULL};
    if (!kernel_load(saxpy_text, "saxpy", &loaded) ||
        gpu_backend_cpu.stream_create(device, 0, 0, &stream, &error) != GPULUA_OK) {
        return;
    }
    float *x = aligned_alloc(4096, (size_t)elem_count * sizeof *x);
    float *y = aligned_alloc(4096, (size_t)elem_count * sizeof *y);
    memset(x, 0, (size_t)elem_count * sizeof *x);
    memset(y, 0, (size_t)elem_count * sizeof *y);
    struct {
        int n;
        float a;
        const float *x;
        float *y;
    } args = {(int)elem_count, 1e-9f, x, y};
    struct backend_launch launch = {.kernel = (struct backend_kernel *)loaded.kernel,
                                    .stream = stream,
                                    .grid = {(elem_count + 255) / 256, 1, 1},
                                    .block = {256, 1, 1},
                                    .args = &args,
                                    .args_bytes = sizeof args};
    void (*openmp)(int, float, const float *, float *) = openmp_saxpy();
    unsigned in_row = elem_count < ELEMS ? IN_A_ROW_MAX : 4u;
    static double alone[DEVICE_ROUNDS], in_a_row[DEVICE_ROUNDS], theirs[DEVICE_ROUNDS];
    for (int round = 0; round < DEVICE_ROUNDS; round++) {
        alone[round] = device_run(&launch, waiter, 1);
        in_a_row[round] = device_run(&launch, waiter, in_row) / in_row;
        double start = now_s();
        for (unsigned i = 0; openmp != NULL && i < in_row; i++) {
            openmp((int)elem_count, args.a, x, y);
        }
        theirs[round] = (now_s() - start) / in_row;
        usleep(OPENMP_SPIN_US);
        (void)device_run(&launch, waiter, 1); /* and ours wake up again */
    }
    double one = median_us(alone, DEVICE_ROUNDS), many = median_us(in_a_row, DEVICE_ROUNDS);
    printf("launch_%u_awaited_us %.2f us\n", elem_count, one);
    printf("launch_%u_in_a_row_us %.2f us\n", elem_count, many);
    if (openmp != NULL) {
        double loop = median_us(theirs, DEVICE_ROUNDS);
        printf("launch_%u_openmp_us %.2f us\n", elem_count, loop);
        printf("launch_%u_awaited_ratio %.2f x\n", elem_count, one / loop);
        printf("launch_%u_in_a_row_ratio %.2f x\n", elem_count, many / loop);
    }
    gpu_backend_cpu.stream_destroy(device, stream);
    free(x);
    free(y);
    gpu_cpu_module_unload(loaded.module);
}

static void device_benches(void) {
    struct waiter waiter = {.launched = 0};
    sem_init(&waiter.moved, 0, 0);
    struct backend_open_info info = {
        .sink = {.user = &waiter, .failed = on_failed, .moved = on_moved}};
    struct backend_device *device = NULL;
    struct backend_error error = {.log = NULL};
    if (gpu_backend_cpu.device_open(&info, &device, &error) != GPULUA_OK) {
        fprintf(stderr, "%s\n", error.message);
        return;
    }
    device_bench(device, &waiter, 1u << 8);
    device_bench(device, &waiter, 1u << 12);
    device_bench(device, &waiter, 1u << 16);
    device_bench(device, &waiter, 1u << 20);
    device_bench(device, &waiter, ELEMS);
    gpu_backend_cpu.device_close(device);
    sem_destroy(&waiter.moved);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    device_benches();
    for (uint32_t count = 32; count <= CPU_BLOCK_THREADS_MAX; count *= 2) {
        barrier_bench(count);
    }
    gpu_cpu_thread_finish();
    return 0;
}
