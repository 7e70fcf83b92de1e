/* Kernels on the CPU device, from CUDA C to results: compiling, running, failing. Expected values
 * are computed here, in C. Every .cu file of this folder is also valid for NVRTC.
 *
 * One program of four files: this one has the helpers, main, and what concerns a thread by itself;
 * it includes kernel_block.c, kernel_error.c and kernel_arithmetic.c. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_test.h"

static unsigned passed, failed, skipped;
char scratch_folder[64];
static char here[512]; /* the folder of the .cu files */

/* ---- counting, compiling, launching ---- */

void check(bool ok, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("%s - ", ok ? "ok" : "not ok");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    passed += ok;
    failed += !ok;
}

void skip(const char *what, const char *why) {
    printf("ok - %s # SKIP %s\n", what, why);
    skipped++;
}

static char *file_text(const char *path) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return NULL;
    }
    char *text = calloc(1, 1 << 20);
    size_t length = text != NULL ? fread(text, 1, (1 << 20) - 1, file) : 0;
    fclose(file);
    if (length == 0) {
        free(text);
        return NULL;
    }
    return text;
}

static gpulua_status compile_text(const char *name, const char *text, const char *options,
                                  struct program *program, struct backend_error *error) {
    struct backend_source source = {.name = name, .text = text, .options = options};
    void *image = NULL;
    size_t image_bytes = 0;
    memset(program, 0, sizeof *program);
    memset(error, 0, sizeof *error);
    gpulua_status status = gpu_cpu_module_compile(NULL, false, &source, &image, &image_bytes,
                                                  &program->description, error);
    if (status == GPULUA_OK) {
        status = gpu_cpu_module_load(NULL, image, image_bytes, true, &program->module, error);
        free(image);
    }
    return status;
}

struct program program_open(const char *file, const char *options) {
    char path[1024];
    struct program program = {0};
    struct backend_error error;
    snprintf(path, sizeof path, "%s/%s", here, file);
    char *text = file_text(path);
    gpulua_status status =
        text != NULL ? compile_text(file, text, options, &program, &error) : GPULUA_IO;
    check(status == GPULUA_OK, "%s compiles", file);
    if (status != GPULUA_OK && text != NULL) {
        printf("# %s\n%s\n", error.message, error.log != NULL ? error.log : "");
        free(error.log);
    }
    free(text);
    return program;
}

void program_close(struct program *program) {
    gpu_cpu_module_unload(program->module);
    free(program->description);
    memset(program, 0, sizeof *program);
}

struct cpu_kernel *kernel_of(struct program *program, const char *name) {
    struct cpu_kernel *kernel = NULL;
    struct wire_kernel_facts facts;
    struct backend_error error;
    if (program->module == NULL ||
        gpu_cpu_kernel_get(program->module, name, &kernel, &facts, &error) != GPULUA_OK) {
        return NULL;
    }
    return kernel;
}

struct worker {
    struct cpu_launch *launch;
    _Atomic uint64_t *next;
    uint64_t block_count;
};

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    for (;;) {
        uint64_t first = atomic_fetch_add(worker->next, 3);
        if (first >= worker->block_count) {
            break;
        }
        uint64_t left = worker->block_count - first;
        gpu_cpu_blocks_run(worker->launch, first, left < 3 ? left : 3);
    }
    gpu_cpu_thread_finish();
    return NULL;
}

const char *launch(struct program *program, const char *name, struct shape shape, const void *args,
                   unsigned worker_count) {
    static _Thread_local char failure[sizeof((struct cpu_launch *)0)->failure];
    struct cpu_launch launch = {
        .kernel = kernel_of(program, name), .shared_bytes = shape.shared_bytes, .args = args};
    if (launch.kernel == NULL) {
        return "there is no such kernel";
    }
    memcpy(launch.grid, shape.grid, sizeof launch.grid);
    memcpy(launch.block, shape.block, sizeof launch.block);
    _Atomic uint64_t next = 0;
    struct worker worker = {&launch, &next,
                            (uint64_t)shape.grid[0] * shape.grid[1] * shape.grid[2]};
    if (worker_count <= 1) {
        gpu_cpu_blocks_run(&launch, 0, worker.block_count);
    } else {
        pthread_t threads[16];
        for (unsigned i = 0; i < worker_count; i++) {
            pthread_create(&threads[i], NULL, worker_main, &worker);
        }
        for (unsigned i = 0; i < worker_count; i++) {
            pthread_join(threads[i], NULL);
        }
    }
    snprintf(failure, sizeof failure, "%s", launch.failed ? launch.failure : "");
    return failure;
}

#define SHAPE(gx, bx) ((struct shape){{gx, 1, 1}, {bx, 1, 1}, 0})

static bool runs(const char *failure) {
    if (failure[0] != '\0') {
        printf("# %s\n", failure);
    }
    return failure[0] == '\0';
}

/* ---- indices, guards, functions, parameters ---- */

static void saxpy_tests(struct program *p) {
    enum { N = 10000 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = 1.0f;
    }
    struct {
        int n;
        float a;
        const float *x;
        float *y;
    } args = {N - 7, 2.0f, x, y};
    bool ok = runs(launch(p, "saxpy", SHAPE(40, 256), &args, 1));
    for (int i = 0; i < N; i++) {
        ok = ok && y[i] == (i < N - 7 ? 2.0f * (float)i + 1.0f : 1.0f);
    }
    check(ok, "saxpy writes what its guard lets through, and no more");
    args.n = 0;
    memcpy(y, x, N * sizeof *y);
    ok = runs(launch(p, "saxpy", SHAPE(39, 256), &args, 2)) && memcmp(x, y, N * sizeof *x) == 0;
    check(ok, "a guard that nobody passes");
    free(x);
    free(y);
}

static void index_tests(struct program *p) {
    static const struct shape shapes[] = {{{1, 1, 1}, {1, 1, 1}, 0},   {{3, 1, 1}, {1024, 1, 1}, 0},
                                          {{2, 3, 4}, {5, 6, 7}, 0},   {{1, 7, 1}, {1, 33, 2}, 0},
                                          {{1, 1, 5}, {16, 1, 64}, 0}, {{65, 2, 1}, {3, 1, 1}, 0}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const uint32_t *g = shapes[s].grid, *b = shapes[s].block;
        size_t per_block = (size_t)b[0] * b[1] * b[2], count = per_block * g[0] * g[1] * g[2];
        uint32_t *out = calloc(count * 2, sizeof *out);
        struct {
            uint32_t *out;
            uint32_t unused[3];
        } args = {out, {0}};
        bool ok = runs(launch(p, "indices", shapes[s], &args, 1 + (unsigned)s % 3));
        for (size_t i = 0; i < count; i++) {
            uint32_t t = (uint32_t)(i % per_block), k = (uint32_t)(i / per_block);
            uint32_t thread = t % b[0] | t / b[0] % b[1] << 10 | t / b[0] / b[1] << 20;
            uint32_t block = k % g[0] | k / g[0] % g[1] << 10 | k / g[0] / g[1] << 20;
            ok = ok && out[2 * i] == thread && out[2 * i + 1] == block;
        }
        check(ok, "indices of grid %ux%ux%u, block %ux%ux%u", g[0], g[1], g[2], b[0], b[1], b[2]);
        free(out);
    }
}

static void guard_tests(struct program *p) {
    enum { W = 37, H = 21 };
    int out[W * H + 64], memory[512], values[512];
    struct {
        int w, h;
        int *out;
    } args = {W, H, out};
    memset(out, -1, sizeof out);
    bool ok = runs(launch(p, "guard_return", (struct shape){{4, 4, 1}, {16, 8, 1}, 0}, &args, 2));
    for (int i = 0; i < W * H + 64; i++) {
        ok = ok && out[i] == (i < W * H ? i % W * 1000 + i / W : -1);
    }
    check(ok, "if (x >= w || y >= h) return");
    memset(out, -1, sizeof out);
    ok = runs(launch(p, "guard_returns", (struct shape){{2, 2, 1}, {32, 16, 1}, 0}, &args, 1));
    for (int i = 0; i < W * H + 64; i++) {
        ok = ok && out[i] == (i < W * H ? ((i % W + i / W) % 2 == 0 ? 11 : 12) : -1);
    }
    check(ok, "several guards that return");
    struct {
        int n;
        int *out;
    } one = {0, values};
    ok = runs(launch(p, "guard_else", SHAPE(2, 256), &one, 1));
    for (int i = 0; i < 512; i++) {
        ok = ok && values[i] == (i % 3 == 1 ? i : -i);
        memory[i] = i % 5 == 0;
    }
    check(ok, "a guard with an else");
    struct {
        const int *mask;
        int *out;
    } two = {memory, values};
    ok = runs(launch(p, "guard_memory", SHAPE(2, 256), &two, 1));
    for (int i = 0; i < 512; i++) {
        ok = ok && values[i] == (i % 3 == 1 ? i : -i) + (i % 5 == 0);
    }
    check(ok, "a condition on memory");
    memset(values, 0, sizeof values);
    int *effect = values;
    ok = runs(launch(p, "guard_effect", SHAPE(2, 256), &effect, 1));
    for (int i = 0; i < 512; i++) {
        ok = ok && values[i] == 11;
    }
    check(ok, "a condition behind an effect: the effect happens once");
}

static void function_tests(struct program *p) {
    enum { N = 96 };
    float out[N];
    int ids[N];
    struct {
        float x, y;
        float *out;
        int *ids;
    } args = {1.5f, 2.0f, out, ids};
    bool ok = runs(launch(p, "functions", SHAPE(2, 48), &args, 1));
    for (int i = 0; i < N; i++) {
        ok = ok && out[i] == 6.25f + 0.25f + 10.0f + 1.0f + 3.0f &&
             ids[i] == i % 48 * 1000 + i % 48 % 32;
    }
    check(ok, "functions, methods, lambdas and templates that use threadIdx");

    double x[1000];
    struct {
        long long n;
        double *x;
    } stride = {1000, x};
    ok = runs(launch(p, "stride", SHAPE(3, 64), &stride, 2));
    for (int i = 0; i < 1000; i++) {
        ok = ok && x[i] == 0.5 * i;
    }
    check(ok, "a loop over the grid");

    float scaled[100];
    for (int i = 0; i < 100; i++) {
        scaled[i] = (float)i;
    }
    struct {
        float *x;
        float by;
        int n;
    } scale = {scaled, 3.0f, 90};
    ok = runs(launch(p, "outer::inner::scale<float>", SHAPE(2, 64), &scale, 1));
    for (int i = 0; i < 100; i++) {
        ok = ok && scaled[i] == (float)(i < 90 ? 3 * i : i);
    }
    check(ok, "an instance of a template in a namespace");

    int ints[5];
    struct {
        char a;
        double b;
        char c;
        _Alignas(16) float d[4];
        short e;
        int *out;
    } layout = {1, 2.0, 3, {0, 0, 0, 4.0f}, 5, ints};
    ok = runs(launch(p, "layout", SHAPE(1, 1), &layout, 1));
    check(ok && ints[0] == 1 && ints[1] == 2 && ints[2] == 3 && ints[3] == 4 && ints[4] == 5,
          "arguments lie as in a C struct");
    unsigned char odd[sizeof layout + 1];
    memcpy(odd + 1, &layout, sizeof layout);
    memset(ints, 0, sizeof ints);
    ok = runs(launch(p, "layout", SHAPE(1, 1), odd + 1, 1));
    check(ok && ints[3] == 4 && ints[4] == 5, "arguments at an odd address");
}

static void syntax_test(void) {
    struct program p = program_open("syntax.cu", "name k2<float>\nname k2<int, 32>");
    enum { N = 16 };
    float v[3 * N], f[3 * N];
    int out[N];
    struct {
        float *v, *f;
        int n;
        int *out;
    } args = {v, f, 5, out};
    for (int i = 0; i < N; i++) {
        out[i] = 7;
    }
    bool ok = runs(launch(&p, "k1", SHAPE(1, N), &args, 1));
    for (int i = 0; i < N && ok; i++) {
        ok = i >= 5 || (v[3 * i] == 1.0f / 5 && v[3 * i + 2] == 3.0f / 5 &&
                        fabsf(f[3 * i] - 2.0f) < 1e-6f && fabsf(f[3 * i + 1] - 4.0f) < 1e-6f);
        ok = ok && (i < 5 || out[i] == 7);
    }
    check(ok, "operators, classes and statements of C++ keep their meaning");
    float x[128];
    for (int i = 0; i < 128; i++) {
        x[i] = (float)i;
    }
    struct {
        float *x;
        const float *y;
    } reverse = {x, NULL};
    ok = runs(launch(&p, "k2<float>", SHAPE(1, 128), &reverse, 1));
    check(ok && x[0] == 127.0f && x[100] == 27.0f, "a template with defaults");
    int values[4] = {0}, from[1] = {9};
    struct {
        int *x;
        const int *y;
    } special = {values, from};
    ok = runs(launch(&p, "k2<int, 32>", SHAPE(1, 1), &special, 1));
    check(ok && values[0] == 9, "a specialisation of it");
    int *one = values;
    ok = runs(launch(&p, "virtuals", SHAPE(1, 4), &one, 1));
    check(ok && values[3] == 2, "a virtual function with a barrier");
    ok = runs(launch(&p, "v1::versioned", SHAPE(1, 1), &one, 1)) && values[0] == 4;
    ok = ok && runs(launch(&p, "hidden", SHAPE(1, 1), &one, 1)) && values[0] == 3;
    check(ok, "inline and nameless namespaces");
    unsigned char image[4 * 20 * 7];
    struct {
        int w, h;
        unsigned char *image;
    } logical = {20, 7, image};
    memset(image, 9, sizeof image);
    ok = runs(launch(&p, "logical", (struct shape){{2, 1, 1}, {16, 8, 1}, 0}, &logical, 1));
    for (int i = 0; i < 140; i++) {
        ok = ok && image[4 * i] == i % 20 && image[4 * i + 1] == i / 20 / 7 &&
             image[4 * i + 3] == 255;
    }
    check(ok, "a guard on members of a vector");
    program_close(&p);
}

static void *global_of(struct program *p, const char *name, uint64_t bytes) {
    struct backend_error error;
    uint64_t address = 0, found = 0;
    if (p->module == NULL ||
        gpu_cpu_global_get(p->module, name, &address, &found, &error) != GPULUA_OK ||
        found != bytes) {
        return NULL;
    }
    return (void *)(uintptr_t)address;
}

static void variable_tests(struct program *p) {
    float(*weights)[3] = global_of(p, "outer::inner::weights", 24);
    int *counter = global_of(p, "outer::inner::counter", 4);
    check(weights != NULL && counter != NULL && *counter == 5,
          "variables have addresses and values");
    if (weights == NULL || counter == NULL) {
        return;
    }
    for (int i = 0; i < 6; i++) {
        weights[i / 3][i % 3] = (float)i;
    }
    float out[6];
    float *args = out;
    bool ok = runs(launch(p, "outer::inner::weigh", SHAPE(1, 6), &args, 1));
    for (int i = 0; i < 6; i++) {
        ok = ok && (out[i] == 2.0f * (float)i + 5.0f || out[i] == 2.0f * (float)i + 7.0f);
    }
    check(ok && *counter == 7, "kernels read what the host wrote, and the other way");
    int values[4];
    int *values_args = values;
    float *quads = global_of(p, "quads", 48);
    ok = runs(launch(p, "variables", SHAPE(1, 4), &values_args, 1));
    check(ok && values[0] == 2 + 1 + 3 && values[3] == 7 + 1 + 3 && quads != NULL &&
              quads[5] == 4.5f,
          "variables of vectors, structs and several declarators");
    struct program other = program_open("basics.cu", "");
    int *theirs = global_of(&other, "outer::inner::counter", 4);
    check(theirs != NULL && theirs != counter && *theirs == 5 && *counter == 7,
          "two modules of one source have variables of their own");
    program_close(&other);
    struct backend_error error;
    uint64_t address, bytes;
    check(gpu_cpu_global_get(p->module, "nobody", &address, &bytes, &error) ==
                  GPULUA_INVALID_ARGUMENT &&
              strstr(error.message, "nobody") != NULL,
          "an unknown variable is an error that names it");
}

static void description_tests(struct program *p) {
    static const char *const lines[] = {
        "kernel saxpy n: i32, a: f32, x: in f32*, y: inout f32*\n",
        "kernel parameters a: i8, b: i8, c: u8, d: i16, e: u16, f: u32, g: i64, h: u64, i: i64, "
        "j: u64, k: f32, l: f64, m: u8, n: in f32x4*, o: inout i32x2*, p: inout void*, q: in "
        "void*, "
        "r: ?Point/8/4, s: ?float**/8/8, t: inout i32*, u: u8x4\n",
        "kernel indices out: inout u32*, unused: u32x3\n",
        "kernel nameless p1: i32, p2: inout f32*\n",
        "kernel nothing\n",
        "kernel outer::inner::scale<float> x: inout f32*, by: f32, n: i32\n",
        "global outer::inner::weights f32 6 const\n",
        "global outer::inner::counter i32 1 mutable\n",
        "global quads f32x4 3 mutable\n",
        "global primes i32 4 const\n",
        "global pair_of ?Pair/16/8 2 mutable\n",
        "global second_of_two i32 2 mutable\n",
    };
    char squeezed[8192] = "";
    size_t used = 0;
    /* Compilers put blanks around * in their own ways. */
    for (const char *c = p->description; c != NULL && *c != '\0' && used < sizeof squeezed - 1;
         c++) {
        if (!(*c == ' ' && c[1] == '*')) {
            squeezed[used++] = *c;
        }
    }
    squeezed[used] = '\0';
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        bool found = strstr(squeezed, lines[i]) != NULL;
        check(found, "the description has: %.*s", (int)strlen(lines[i]) - 1, lines[i]);
        if (!found) {
            printf("# %s", squeezed);
        }
    }
}

static void facts_tests(struct program *basics, struct program *shared) {
    struct cpu_kernel *kernel;
    struct wire_kernel_facts facts;
    struct backend_error error;
    if (basics->module == NULL || shared->module == NULL) {
        return;
    }
    bool ok = gpu_cpu_kernel_get(basics->module, "variables", &kernel, &facts, &error) == GPULUA_OK;
    check(ok && facts.block_threads_max == 128 && facts.param_count == 1,
          "__launch_bounds__ is in the facts");
    ok = gpu_cpu_kernel_get(basics->module, "layout", &kernel, &facts, &error) == GPULUA_OK;
    check(ok && facts.param_count == 6 && facts.param_offset[3] == 32 &&
              facts.param_bytes[3] == 16 && facts.param_offset[4] == 48 &&
              facts.param_offset[5] == 56 && facts.block_threads_max == 1024,
          "offsets and sizes of parameters are in the facts");
    ok = gpu_cpu_kernel_get(shared->module, "reverse", &kernel, &facts, &error) == GPULUA_OK;
    check(ok && facts.shared_bytes_static == 4096, "so is static shared memory (%u)",
          facts.shared_bytes_static);
    ok = gpu_cpu_kernel_get(shared->module, "transpose<16>", &kernel, &facts, &error) == GPULUA_OK;
    check(ok && facts.shared_bytes_static == 16 * 17 * 4, "also of a template (%u)",
          facts.shared_bytes_static);
    check(gpu_cpu_kernel_get(basics->module, "nobody", &kernel, &facts, &error) ==
                  GPULUA_INVALID_ARGUMENT &&
              strstr(error.message, "nobody") != NULL,
          "an unknown kernel is an error that names it");
}

/* ---- division ---- */

static void division_values_test(struct program *p) {
    static const int ints[] = {0, 1, -1, 2, -7, 100, INT32_MAX, INT32_MIN};
    enum { V = sizeof ints / sizeof *ints, N = V * V };
    int a[N], b[N], out[4 * N];
    unsigned ua[N], ub[N], uout[4 * N];
    long long la[N], lb[N], lout[4 * N];
    signed char ca[N], cb[N], cout[4 * N];
    for (int i = 0; i < N; i++) {
        a[i] = ints[i / V];
        b[i] = ints[i % V];
        ua[i] = (unsigned)a[i];
        ub[i] = (unsigned)b[i];
        la[i] = a[i] == INT32_MIN ? INT64_MIN : a[i] * 1000003ll;
        lb[i] = b[i] == INT32_MIN ? INT64_MIN : b[i];
        ca[i] = (signed char)(a[i] == INT32_MIN ? -128 : a[i]);
        cb[i] = (signed char)b[i];
    }
    struct {
        const int *a, *b;
        int *out;
        const unsigned *ua, *ub;
        unsigned *uout;
        const long long *la, *lb;
        long long *lout;
        const signed char *ca, *cb;
        signed char *cout;
        int n;
    } args = {a, b, out, ua, ub, uout, la, lb, lout, ca, cb, cout, N};
    bool ok = runs(launch(p, "divide", SHAPE(1, 128), &args, 1));
    check(ok, "division by zero does not fault");
    for (int i = 0; i < N; i++) {
        if (b[i] != 0 && !(a[i] == INT32_MIN && b[i] == -1)) {
            ok = ok && out[4 * i] == a[i] / b[i] && out[4 * i + 1] == a[i] % b[i] &&
                 out[4 * i + 2] == out[4 * i] && out[4 * i + 3] == out[4 * i + 1];
        } else if (b[i] == -1) {
            ok = ok && out[4 * i] == INT32_MIN && out[4 * i + 1] == 0;
        }
        if (ub[i] != 0) {
            ok = ok && uout[4 * i] == ua[i] / ub[i] && uout[4 * i + 3] == ua[i] % ub[i];
        }
        if (lb[i] != 0 && !(la[i] == INT64_MIN && lb[i] == -1)) {
            ok = ok && lout[4 * i] == la[i] / lb[i] && lout[4 * i + 3] == la[i] % lb[i];
        } else if (lb[i] == -1) {
            ok = ok && lout[4 * i] == INT64_MIN && lout[4 * i + 3] == 0;
        }
        if (cb[i] != 0) {
            ok = ok && cout[4 * i] == (signed char)(ca[i] / cb[i]) &&
                 cout[4 * i + 3] == (signed char)(ca[i] % cb[i]);
        }
    }
    check(ok, "quotients and remainders of four types, plain and compound");
}

static void division_expressions_test(struct program *p) {
    int out[32] = {0};
    float fout[8];
    struct {
        int a, b, c;
        float f;
        float *fout;
        int *out;
    } args = {1000, 30, 7, 2.5f, fout, out};
    bool ok = runs(launch(p, "expressions", SHAPE(1, 1), &args, 1));
    const int a = 1000, b = 30, c = 7;
    int x = 100, y = 100;
    x /= b / c;
    y %= b + (x /= 2);
    const int expected[] = {a * b / c,
                            a / b / c,
                            a / (b / c),
                            a - b / c + a % b * c,
                            -a / b,
                            a / -b,
                            (a + b) / c % b,
                            a / b * c,
                            b / c,
                            12 + 3,
                            12 + 5 + 0,
                            a % 7 == 3 ? 100 : 200,
                            x,
                            y,
                            b * c,
                            a + b,
                            200 / b,
                            a / 6,
                            (int)((((long long)a << 33) / b) >> 20),
                            90 / c};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        if (out[i] != expected[i]) {
            printf("# expression %zu: %d, expected %d\n", i, out[i], expected[i]);
            ok = false;
        }
    }
    check(ok, "division in expressions: precedence, constants, classes, compound, volatile");
    float g = 2.5f;
    g /= 30;
    check(fout[0] == 2.5f / 3 && fout[1] == 1 / 2.5f && fout[2] == 2.5f / 30.0f && fout[3] == g &&
              fout[4] == (float)(1.0 / 2.5f / 1000) && isinf(fout[5]) && isinf(fout[6]),
          "floating-point division is untouched");
}

#include "kernel_arithmetic.c"
#include "kernel_block.c"
#include "kernel_error.c"

static void folder_remove(const char *folder) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) {
        printf("# %s could not be removed\n", folder);
    }
}

int main(void) {
    snprintf(here, sizeof here, "%s", __FILE__);
    *strrchr(here, '/') = '\0';
    snprintf(scratch_folder, 64, "/tmp/gpulua-kernel-test-XXXXXX");
    if (mkdtemp(scratch_folder) == NULL) {
        perror("mkdtemp");
        return 1;
    }
    /* A cache of its own: everything is really compiled. */
    setenv("GPULUA_CACHE", scratch_folder, 1);
    struct program basics = program_open("basics.cu", "name outer::inner::scale<float>");
    struct program shared = program_open("shared.cu", "name transpose<16>");
    saxpy_tests(&basics);
    index_tests(&basics);
    guard_tests(&basics);
    function_tests(&basics);
    syntax_test();
    variable_tests(&basics);
    description_tests(&basics);
    facts_tests(&basics, &shared);
    shared_tests(&shared);
    transpose_test(&shared);
    barrier_tests(&shared);
    program_close(&basics);
    program_close(&shared);
    struct program divide = program_open("divide.cu", "");
    division_values_test(&divide);
    division_expressions_test(&divide);
    program_close(&divide);
    warp_tests();
    atomic_tests();
    memory_tests();
    struct program print = program_open("print.cu", "");
    assert_tests(&print);
    print_test(&print);
    program_close(&print);
    frames_tests("stack.cu", TOO_LARGE("frames", "256"));
    frames_tests("stack_serial.cu", TOO_LARGE("frames", "4096"));
    levels_tests();
    arithmetic_tests();
    refusal_tests();
    image_tests();
    option_tests();
    environment_tests();
    concurrency_tests();
    leak_tests();
    gpu_cpu_thread_finish();
    folder_remove(scratch_folder);
    printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    return failed != 0;
}
