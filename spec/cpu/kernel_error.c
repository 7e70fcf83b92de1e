/* The part of kernel_test for what fails, and for what surrounds compiling: asserts, refusals,
 * images, options, the environment, the cache. Included by kernel_test.c. */

/* ---- failing ---- */

static void assert_tests(struct program *p) {
    int x[512], out[512];
    for (int i = 0; i < 512; i++) {
        x[i] = i == 300 ? 99 : i;
    }
    struct {
        const int *x;
        int limit;
        int *out;
    } args = {x, 1000, out};
    check(runs(launch(p, "check", SHAPE(2, 256), &args, 1)), "an assert that holds");
    args.limit = 299;
    x[299] = 0;
    x[301] = 0;
    for (int i = 302; i < 512; i++) {
        x[i] = 0;
    }
    x[300] = 300;
    memset(out, 0, sizeof out);
    const char *text = launch(p, "check", SHAPE(2, 256), &args, 1);
    check(strcmp(text, "kernel 'check': assertion `x[i] < limit' failed at print.cu:5, block "
                       "(1,0,0), thread (44,0,0)") == 0,
          "an assert that fails: %s", text);
    check(out[299] == 1 && out[300] == 0, "the thread stops there");
    struct {
        const int *x;
        int *out;
    } barrier = {x, out};
    for (int i = 0; i < 512; i++) {
        x[i] = i < 256 || i == 400 ? 5 : -5;
    }
    text = launch(p, "check_barrier", SHAPE(2, 256), &barrier, 3);
    check(strstr(text, "`x > 0 && \"must be positive\"' failed at print.cu:2, block (1,0,0), "
                       "thread (") != NULL,
          "in a function, between barriers: %s", text);
    x[0] = 5;
    for (int i = 0; i < 512; i++) {
        x[i] = 1;
    }
    check(runs(launch(p, "check_barrier", SHAPE(2, 256), &barrier, 3)), "and the next launch runs");
}

#define TOO_LARGE(name, kb)                                                                        \
    "kernel '" name "': its local memory is larger than the CPU device's " kb " KB per thread, "   \
    "block (0,0,0)"

static void frames_tests(const char *file, const char *expected) {
    struct program p = program_open(file, "");
    int x[64], deep[64] = {0}, out[64];
    struct {
        const int *x, *deep;
        int *out;
    } args = {x, deep, out};
    for (int i = 0; i < 64; i++) {
        x[i] = i;
    }
    for (int round = 0; round < 2; round++) {
        bool ok = runs(launch(&p, "frames", SHAPE(2, 64), &args, 1));
        for (int i = 0; i < 64; i++) {
            ok = ok && out[i] == 1000 + i;
        }
        check(ok, "%s: a large frame, %s", file, round == 0 ? "alone" : "after two were too much");
        for (int i = 0; i < 64 && round == 0; i += 13) {
            deep[i] = 1;
            const char *text = launch(&p, "frames", SHAPE(2, 64), &args, 1);
            check(strcmp(text, expected) == 0, "%s: two in thread %d: %s", file, i, text);
            deep[i] = 0;
        }
    }
    program_close(&p);
}

static void levels_tests(void) {
    struct program p = program_open("deep.cu", "");
    int deep[64], out[64];
    struct {
        const int *deep;
        int *out;
    } args = {deep, out};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 64; i++) {
            deep[i] = 500 + i;
        }
        bool ok = runs(launch(&p, "levels", SHAPE(2, 64), &args, 1));
        for (int i = 0; i < 64; i++) {
            ok = ok && out[i] == deep[i];
        }
        check(ok, "563 levels of functions, %s",
              round == 0 ? "alone" : "after there were too many");
        for (int i = 0; i < 64 && round == 0; i += 21) {
            deep[i] = 1300;
            const char *text = launch(&p, "levels", SHAPE(2, 64), &args, 1);
            check(strcmp(text, TOO_LARGE("levels", "256")) == 0, "1300 levels in thread %d: %s", i,
                  text);
            deep[i] = 0;
        }
    }
    program_close(&p);
}

static void print_test(struct program *p) {
    char path[128], text[4096] = "";
    snprintf(path, sizeof path, "%s/output", scratch_folder);
    fflush(stdout);
    int kept = dup(1), file = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    dup2(file, 1);
    int n = 3;
    const char *failure = launch(p, "print", SHAPE(4, 8), &n, 4);
    dup2(kept, 1);
    close(kept);
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    close(file);
    unsigned lines = 0;
    bool ok = failure[0] == '\0' && length > 0;
    for (int block = 0; block < 4; block++) {
        for (int thread = 0; thread < 3; thread++) {
            char line[128];
            snprintf(line, sizeof line, "block %d thread %d of 3: text 1.50 1099511627776\n", block,
                     thread);
            ok = ok && strstr(text, line) != NULL;
        }
    }
    for (const char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    check(ok && lines == 12, "printf, whole lines, out when the blocks are done");
}

struct refusal {
    const char *what, *text, *options, *expected;
    gpulua_status status;
};

static void refusal_tests(void) {
    static const struct refusal refusals[] = {
        {"a syntax error", "__global__ void k(int *x) {\n  x[0] = ;\n}", "", "bad.lua:7:2",
         GPULUA_COMPILE_FAILED},
        {"an unknown name, behind a guard and a division",
         "__global__ void k(int *x, int n) {\n  int i = threadIdx.x / n;\n  if (i < n)\n"
         "    x[i] = y[i];\n}",
         "", "bad.lua:7:4", GPULUA_COMPILE_FAILED},
        {"a type error in a template",
         "template <class T> __global__ void k(T *x) {\n\n *x = \"a\";\n}", "name k<int>",
         "bad.lua:7:3", GPULUA_COMPILE_FAILED},
        {"an error in a macro",
         "#define BAD(x) x +* 2\n__global__ void k(int *x) {\n *x = BAD(1);\n}", "", "bad.lua:7:3",
         GPULUA_COMPILE_FAILED},
        {"#error", "\n#error not today\n", "", "not today", GPULUA_COMPILE_FAILED},
        {"a missing header", "#include <vector>\n__global__ void k() {}", "", "vector",
         GPULUA_COMPILE_FAILED},
        {"a function that is not there",
         "__device__ int f(int);\n__global__ void k(int *x) { *x = f(1); }", "", "f(int)",
         GPULUA_COMPILE_FAILED},
        {"a name that is not there", "__global__ void k(int *x) {}", "name other<int>", "other",
         GPULUA_COMPILE_FAILED},
        {"inline PTX", "__global__ void k(int *x) {\n  asm(\"membar.gl;\");\n}", "",
         "bad.lua:7:2: error: 'asm': inline PTX", GPULUA_COMPILE_FAILED},
        {"a texture", "__global__ void k(cudaTextureObject_t t, float *x) {\n  x[0] = 0;\n}", "",
         "bad.lua:7:1: error: 'cudaTextureObject_t': a texture", GPULUA_COMPILE_FAILED},
        {"dynamic parallelism",
         "__global__ void j() {}\n__global__ void k() {\n  j<<<1, 1>>>();\n}", "",
         "bad.lua:7:3: error: '<<<': dynamic parallelism", GPULUA_COMPILE_FAILED},
        {"cooperative groups", "#include <cooperative_groups.h>\n__global__ void k() {}", "",
         "cooperative groups are not supported on the CPU device", GPULUA_COMPILE_FAILED},
        {"a stack frame that is too large",
         "__global__ void k(int *x) { volatile int a[100000]; a[x[0]] = 1; __syncthreads(); "
         "x[1] = a[x[2]]; }",
         "", "frame", GPULUA_COMPILE_FAILED},
        {"a function of the host",
         "int f(int x) { return x; }\n__global__ void k(int *x) { *x = f(1); }", "",
         "bad.lua:7:1: error: 'f': a function without __device__", GPULUA_COMPILE_FAILED},
        {"a variable of the host", "\nstatic int g = 3;\n__global__ void k(int *x) { *x = g; }", "",
         "bad.lua:7:2: error: 'g': a variable without __device__", GPULUA_COMPILE_FAILED},
        {"a reference for a parameter",
         "struct S { int a; };\n__global__ void k(int *x,\n  const S &s) { *x = s.a; }", "",
         "bad.lua:7:3: error: 'k': a kernel's parameter cannot be a reference",
         GPULUA_COMPILE_FAILED},
        {"a kernel with a result", "__global__\nint k(int *x) { return *x; }", "",
         "bad.lua:7:2: error: 'k': a kernel returns nothing, it is void", GPULUA_COMPILE_FAILED},
        {"too much static shared memory",
         "__global__ void k(float *x) {\n  __shared__ float s[12289];\n  s[threadIdx.x] = x[0];\n"
         "  __syncthreads();\n  x[threadIdx.x] = s[threadIdx.x / 2];\n}",
         "", "kernel 'k' has 49156 bytes of static shared memory", GPULUA_COMPILE_FAILED},
        {"no kernel at all", "__device__ int f() { return 1; }", "", "bad.lua:7",
         GPULUA_INVALID_ARGUMENT},
        {"no text at all", "", "", "bad.lua:7", GPULUA_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        struct program p;
        struct backend_error error;
        gpulua_status status = compile_text("bad.lua:7", r->text, r->options, &p, &error);
        const char *text = error.log != NULL ? error.log : error.message;
        bool ok = status == r->status && strstr(text, r->expected) != NULL;
        check(ok, "%s is refused, with %s", r->what, r->expected);
        if (!ok) {
            printf("# status %d: %s\n%s\n", status, error.message, text);
        }
        free(error.log);
        if (status == GPULUA_OK) {
            program_close(&p);
        }
    }
}

/* Messages are about the source as it was written, with nothing of ours around it. */
static void message_tests(void) {
    static const struct {
        const char *text, *options, *expected;
    } messages[] = {
        {"__global__ void k(int *x, what y) { x[0] = y; }", "", "k.cu:1:27: error: "},
        {"__global__ void k(int *x) { x[0] = absent; }", "", "k.cu:1:36: error: "},
        {"__global__ void k(int *x, int n) {\n  if (x[0] / n) x[blockIdx.x] = absent;\n}", "",
         "k.cu:2:33: error: "},
        {"__device__ int f() {\n  return threadIdx.x + absent; }\n"
         "__global__ void k(int *x) { extern __shared__ int s[]; *x = f() + s[0]; }",
         "", "k.cu:2:24: error: "},
        {"#define TWICE(x) (x + x)\n__global__ void k(int *x) { x[0] = TWICE(absent); }", "",
         "k.cu:2:42: error: "},
        {"template <class T> __global__ void k(T *x) { *x = absent; }", "name k<int>",
         "k.cu:1:51: error: "},
        {"template <class T> __global__ void k(T *x) { *x = 1; }", "name k<absent>",
         "k.cu: name 'k<absent>': error: "},
        {"__global__ void k(T *x) { *x = absent + N + M(1); }",
         "define T float\nflag -DM(x)=x\nflag -DN", "k.cu:1:32: error: "},
        {"__global__ void k(float *x) { sinf(x, x); }", "", "k.cu:1:3"},
        {"__global__ void k(int *x) {\n  if (*x) { *x = 1;\n}\n", "", "expected '}'"},
        {"__global__ void k( {", "", "k.cu:1:"},
        {"__device__ int f(int);\n__global__ void k(int *x) { *x = f(1); }", "",
         "k.cu: error: undefined reference"},
        {"#include <vector>\n", "", "k.cu:1:10: fatal error: "},
    };
    static const char *const ours[] = {"gpulua", "shim", "uint3", "/tmp/", "<stdin>", ".o:"};
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        struct program p;
        struct backend_error error = {0};
        gpulua_status status =
            compile_text("k.cu", messages[i].text, messages[i].options, &p, &error);
        const char *log = error.log != NULL ? error.log : "";
        bool ok = status == GPULUA_COMPILE_FAILED && strstr(log, messages[i].expected) != NULL &&
                  strstr(log, error.message) != NULL;
        for (size_t k = 0; k < sizeof ours / sizeof *ours; k++) {
            ok = ok && strstr(log, ours[k]) == NULL;
        }
        check(ok, "the user's place and nothing of ours: %s", messages[i].expected);
        if (!ok) {
            printf("# %s\n# %s\n", error.message, log);
        }
        free(error.log);
        if (status == GPULUA_OK) {
            program_close(&p);
        }
    }
}

static void image_tests(void) {
    struct backend_error error;
    struct cpu_module *module = NULL;
    char garbage[8192];
    memset(garbage, 'x', sizeof garbage);
    check(gpu_cpu_module_load(NULL, ".version 8.0", 13, false, &module, &error) ==
                  GPULUA_UNSUPPORTED &&
              strstr(error.message, "PTX") != NULL,
          "PTX is refused");
    check(gpu_cpu_module_load(NULL, garbage, sizeof garbage, true, &module, &error) ==
              GPULUA_INVALID_DATA,
          "an image that is none is refused");
    struct backend_source source = {
        .name = "image.cu", .text = "__global__ void k() {}", .options = ""};
    void *image = NULL;
    size_t bytes = 0;
    char *description = NULL;
    gpulua_status status =
        gpu_cpu_module_compile(NULL, false, &source, &image, &bytes, &description, &error);
    bool ok = status == GPULUA_OK;
    for (size_t cut = 0; ok && cut < bytes; cut += bytes / 7 + 1) {
        ok = gpu_cpu_module_load(NULL, image, cut, true, &module, &error) != GPULUA_OK;
    }
    check(ok, "so is a part of one");
    free(image);
    free(description);
}

/* ---- options, environment, cache ---- */

static void option_tests(void) {
    struct program p;
    struct backend_error error;
    char options[256], path[128];
    snprintf(path, sizeof path, "%s/part.cuh", scratch_folder);
    FILE *file = fopen(path, "we");
    fputs("__device__ int part(int x) {\n  __syncthreads();\n  return x / VALUE;\n}\n", file);
    fclose(file);
    snprintf(options, sizeof options,
             "define VALUE 4\ndefine EMPTY\ninclude %s\nflag --use_fast_math\nflag -DOTHER=3\n"
             "name k<float>\nname k< int >",
             scratch_folder);
    const char *text = "#include \"part.cuh\"\n"
                       "template <class T> __global__ void k(T *x) EMPTY {\n"
                       "  x[threadIdx.x] = (T)(part(100) + OTHER);\n}\n";
    gpulua_status status = compile_text("options.cu", text, options, &p, &error);
    int x[2] = {0, 0};
    int *args = x;
    bool ok = status == GPULUA_OK && runs(launch(&p, "k< int >", SHAPE(1, 2), &args, 1));
    check(ok && x[0] == 28 && x[1] == 28 && kernel_of(&p, "k<float>") != NULL,
          "define, include, flag, name; a barrier in an included file");
    if (status != GPULUA_OK) {
        printf("# %s\n%s\n", error.message, error.log ? error.log : "");
        free(error.log);
    }
    program_close(&p);
    /* The included file is part of the cache's key. */
    file = fopen(path, "we");
    fputs("__device__ int part(int x) { return x; }\n", file);
    fclose(file);
    status = compile_text("options.cu", text, options, &p, &error);
    ok = status == GPULUA_OK && runs(launch(&p, "k< int >", SHAPE(1, 2), &args, 1));
    check(ok && x[0] == 103, "a header that changed is compiled again");
    program_close(&p);
    unlink(path);
}

static const char tiny_text[] = "__global__ void tiny(int *x) { x[threadIdx.x] = VALUE + 1; }\n";

static bool tiny_compiles(int value) {
    struct program p;
    struct backend_error error;
    char options[64];
    snprintf(options, sizeof options, "define VALUE %d", value);
    gpulua_status status = compile_text("tiny.cu", tiny_text, options, &p, &error);
    int x = 0;
    int *args = &x;
    bool ok = status == GPULUA_OK && runs(launch(&p, "tiny", SHAPE(1, 1), &args, 1));
    if (status != GPULUA_OK) {
        printf("# %s\n", error.message);
        free(error.log);
    }
    program_close(&p);
    return ok && x == value + 1;
}

/* Beside the precompiled one, a header that is not what it was. */
static void damaged_shim_test(void) {
    char command[512];
    snprintf(command, sizeof command,
             "set -e; cd '%s'; test -n \"$(ls shim-*/gpulua_cuda.h.*/*)\"; "
             "for folder in shim-*; do echo > $folder/gpulua_math.h; done",
             getenv("GPULUA_CACHE"));
    check(system(command) == 0 && tiny_compiles(77), "damaged headers are written again");
}

static void environment_tests(void) {
    struct program p;
    struct backend_error error;
    check(tiny_compiles(1), "a source compiles");
    damaged_shim_test();
    signal(SIGCHLD, SIG_IGN);
    bool ok = tiny_compiles(2);
    gpulua_status status =
        compile_text("ignored.cu", "__global__ void k() { nonsense }", "", &p, &error);
    signal(SIGCHLD, SIG_DFL);
    check(ok && status == GPULUA_COMPILE_FAILED && strstr(error.log, "ignored.cu:1") != NULL,
          "also when the host ignores SIGCHLD, and so does an error");
    free(error.log);

    char *before = getenv("GPULUA_CXX") != NULL ? strdup(getenv("GPULUA_CXX")) : NULL;
    setenv("GPULUA_CXX", "/no/such/compiler", 1);
    status = compile_text("none.cu", "__global__ void k() { }", "", &p, &error);
    check(status == GPULUA_LIBRARY_UNAVAILABLE && strstr(error.message, "/no/such/compiler"),
          "a compiler that is not there: %s", error.message);
    unsetenv("GPULUA_CXX");
    char *path = strdup(getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    status = compile_text("none.cu", "__global__ void k() { }", "", &p, &error);
    check(status == GPULUA_LIBRARY_UNAVAILABLE && strstr(error.message, "c++, g++, clang++"),
          "no compiler at all: %s", error.message);
    setenv("PATH", path, 1);
    free(path);
    static const char *const others[] = {"g++", "clang++"};
    for (int i = 0; i < 2; i++) {
        setenv("GPULUA_CXX", others[i], 1);
        status =
            compile_text("other.cu", "__global__ void k(int *x) { x[0] = 1; }", "", &p, &error);
        if (status == GPULUA_LIBRARY_UNAVAILABLE) {
            skip(others[i], "not installed");
        } else {
            check(status == GPULUA_OK, "%s compiles a kernel", others[i]);
            message_tests();
        }
        program_close(&p);
    }
    if (before != NULL) {
        setenv("GPULUA_CXX", before, 1);
    } else {
        unsetenv("GPULUA_CXX");
    }
    free(before);
}

static void *compile_main(void *argument) {
    int base = *(int *)argument;
    bool *ok = calloc(1, sizeof *ok);
    *ok = true;
    for (int i = 0; i < 3; i++) {
        *ok = tiny_compiles(base + i) && *ok;
    }
    gpu_cpu_thread_finish();
    return ok;
}

static void concurrency_tests(void) {
    pthread_t threads[2];
    int bases[2] = {100, 101}; /* two of the sources are the same */
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, compile_main, &bases[i]);
    }
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ok = ok && *(bool *)result;
        free(result);
    }
    check(ok, "two threads compile, load and run at once");
}

static int descriptors_open(void) {
    int count = 0;
    for (int i = 0; i < 1024; i++) {
        count += fcntl(i, F_GETFD) >= 0;
    }
    return count;
}

static void leak_tests(void) {
    int before = descriptors_open();
    bool ok = tiny_compiles(500) && tiny_compiles(500);
    struct program p;
    struct backend_error error;
    compile_text("leak.cu", "__global__ void k() { nonsense }", "", &p, &error);
    free(error.log);
    check(ok && descriptors_open() == before, "no descriptor is left open");
    check(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "no child is left");
}
