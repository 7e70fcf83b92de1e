/* Kernels that are not trusted: code of the CPU device that tries whatever native code can. Each
 * attempt that is refused on a confined device has a twin on one that is not, where it succeeds. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "gpulua.h"
#include "told.h"

static struct tap tap;

#define SECRET "/tmp/gpulua-secret-of-00000000"
#define SECRET_TEXT "open sesame"

/* This process's number in the names of secrets: another one may run this program, too. */
static void make_own(char *text) {
    static const char marker[] = "gpulua-secret-of-";
    while ((text = strstr(text, marker)) != NULL) {
        char number[16];
        text += sizeof marker - 1;
        snprintf(number, sizeof number, "%08d", (int)getpid());
        memcpy(text, number, 8);
    }
}

static gpulua_device *open_device(int confined) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.device = "cpu";
    config.isolation = GPULUA_ISOLATE_PROCESS;
    config.confined = confined;
    config.restarts = 100;
    config.window_s = 60;
    config.watchdog_s = 1;
    gpulua_device *device = gpulua_device_open(&config);
    if (device == NULL) {
        printf("# %s\n", gpulua_last_error(NULL)->message);
    }
    return device;
}

static gpulua *open_script(struct told *told, gpulua_device *device, bool is_sandbox) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.sandbox = is_sandbox;
    config.allow_compile = is_sandbox;
    config.run_limit_ms = is_sandbox ? 2000 : 0;
    config.shared_device = device;
    config.on_error = note_error;
    config.on_log = note_line;
    config.user = told;
    memset(told, 0, sizeof *told);
    return gpulua_new(&config);
}

static void run(gpulua *g, const char *text, const char *argument) {
    lua_State *L = gpulua_state(g);
    if (luaL_loadbufferx(L, text, strlen(text), "=script", "t") != LUA_OK) {
        printf("# %s\n", lua_tostring(L, -1));
        lua_pop(L, 1);
        return;
    }
    lua_pushstring(L, argument);
    if (gpulua_load_function(g, 1) == GPULUA_OK) {
        while (gpulua_tasks(g) > 0) {
            gpulua_step(g, 100);
        }
    }
}

/* ---- attempts ---- */

#define OF(declaration) "extern \"C\" __device__ " declaration ";\n"
#define PRELUDE                                                                                    \
    OF("int open(const char *, int, ...)")                                                         \
    OF("long read(int, void *, unsigned long)")                                                    \
    OF("int fork()")                                                                               \
    OF("int kill(int, int)")                                                                       \
    OF("int getppid()")                                                                            \
    OF("int socket(int, int, int)")                                                                \
    OF("int system(const char *)")                                                                 \
    OF("long syscall(long, ...)")                                                                  \
    OF("int unlink(const char *)")                                                                 \
    OF("int mkdir(const char *, unsigned)")                                                        \
    OF("char *getenv(const char *)")                                                               \
    OF("int execve(const char *, char *const *, char *const *)")                                   \
    OF("void _exit(int)")                                                                          \
    OF("int waitpid(int, int *, int)")                                                             \
    OF("int chdir(const char *)")                                                                  \
    OF("long readlink(const char *, char *, unsigned long)")

struct attempt {
    const char *name, *body; /* out[0] is to become 1 where it succeeds */
    bool is_for_few;         /* some machines refuse it to anybody */
};

static const struct attempt attempts[] = {
    {"a file of the host's",
     "char b[64]; int f = open(\"" SECRET "\", 0);"
     "out[0] = f >= 0 && read(f, b, 64) > 5 && b[0] == 'o';",
     false},
    {"a system's file outside of libraries", "out[0] = open(\"/etc/passwd\", 0) >= 0;", false},
    {"the environment of the host", "out[0] = getenv(\"GPULUA_TEST_SECRET\") != 0;", false},
    {"its environment by /proc", "out[0] = open(\"/proc/self/environ\", 0) >= 0;", false},
    {"what the host has mapped",
     "char p[40] = \"/proc/\"; int n = getppid(), i = 6, d = 1;"
     "while (n / d > 9) d *= 10;"
     "for (; d > 0; d /= 10) p[i++] = '0' + n / d % 10;"
     "const char *m = \"/maps\"; while (*m) p[i++] = *m++; p[i] = 0;"
     "out[0] = open(p, 0) >= 0;",
     false},
    {"a new file",
     "int f = open(\"" SECRET ".new\", 0101, 0600); out[0] = f >= 0;"
     "unlink(\"" SECRET ".new\");",
     false},
    {"a folder", "out[0] = mkdir(\"" SECRET ".folder\", 0700) == 0;", false},
    {"a list of files", "out[0] = open(\"/tmp\", 0) >= 0;", false},
    {"a symbolic link", "char b[64]; out[0] = readlink(\"/proc/self/exe\", b, 64) > 0;", false},
    {"another folder to be in", "out[0] = chdir(\"/tmp\") == 0;", false},
    {"another process",
     "int p = fork(); if (p == 0) _exit(0); int s; if (p > 0) waitpid(p, &s, 0);"
     "out[0] = p > 0;",
     false},
    {"a program", "out[0] = system(\"exit 0\") == 0;", false},
    {"a program in its place",
     "const char *a[] = {\"true\", 0}; int p = fork();"
     "if (p == 0) { execve(\"/bin/true\", (char *const *)a, 0);"
     "_exit(1); } int s = 1; if (p > 0) waitpid(p, &s, 0);"
     "out[0] = p > 0 && s == 0;",
     false},
    {"a signal to the host", "out[0] = kill(getppid(), 0) == 0;", false},
    {"a socket", "out[0] = socket(2, 1, 0) >= 0;", false},
    {"a socket of the system's own", "out[0] = socket(1, 1, 0) >= 0;", false},
#if defined(__x86_64__) /* whose numbers these are */
    {"the host's memory by a call",
     "struct { void *at; unsigned long n; } a = {0, 0}, b = a; char c;"
     "a.at = &c; a.n = 1; b.at = (void *)0x400000; b.n = 0;"
     "out[0] = syscall(310, getppid(), &a, 1, &b, 1, 0) >= 0;",
     true},
    {"a ring of calls that no filter sees", "char p[120] = {0}; out[0] = syscall(425, 4, p) >= 0;",
     true},
    {"a limit of its own",
     "unsigned long l[2] = {100, 100}; out[0] = syscall(302, 0, 7, l, 0) == 0;", false},
    {"a namespace of users",
     "long p = syscall(56, 0x10000000 | 17, 0, 0, 0, 0); if (p == 0) _exit(0);"
     "int s; if (p > 0) waitpid((int)p, &s, 0); out[0] = p > 0;",
     true},
#endif
};

static const char attempt_script[] =
    "local gpu, source = require 'gpulua', ...\n"
    "local dev = gpu.device()\n"
    "local out = dev:buffer('i64', 1):fill(-7)\n"
    "dev:compile(source).attempt:launch({ grid = 1, block = 1 }, out):await()\n"
    "print(out:read()[1])\n";

/* "1": it has succeeded. */
static void attempt_on(gpulua_device *device, bool is_confined, const struct attempt *attempt,
                       char *result, size_t result_bytes) {
    struct told told;
    char source[4096];
    gpulua *g = open_script(&told, device, is_confined);
    snprintf(source, sizeof source,
             PRELUDE "extern \"C\" __global__ void attempt(long long *out) { %s }\n",
             attempt->body);
    make_own(source);
    snprintf(result, result_bytes, "no object");
    if (g != NULL) {
        lua_State *L = gpulua_state(g);
        if (!is_confined) { /* print as a sandbox does */
            (void)luaL_dostring(L, "print = function(x) out = tostring(x) end");
        }
        run(g, attempt_script, source);
        if (!is_confined) {
            lua_getglobal(L, "out");
            note_line(&told, lua_isstring(L, -1) ? lua_tostring(L, -1) : "");
            lua_pop(L, 1);
        }
        told.lines[strcspn(told.lines, "\n")] = '\0';
        snprintf(result, result_bytes, "%s", told.error_count > 0 ? told.message : told.lines);
        gpulua_close(g);
    }
}

static void refuses(gpulua_device *confined, gpulua_device *open) {
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        char what[160], there[2048], here[2048];
        attempt_on(confined, true, &attempts[i], there, sizeof there);
        attempt_on(open, false, &attempts[i], here, sizeof here);
        snprintf(what, sizeof what, "confined: %s is refused", attempts[i].name);
        if (!tap_check(&tap, strcmp(there, "0") == 0, what)) {
            printf("# %s\n", there);
        }
        snprintf(what, sizeof what, "elsewhere: %s", attempts[i].name);
        if (attempts[i].is_for_few && strcmp(here, "1") != 0) {
            tap_skip(&tap, what, "this machine refuses it to anybody");
        } else if (!tap_check(&tap, strcmp(here, "1") == 0, what)) {
            printf("# %s\n", here);
        }
    }
}

/* ---- what compiling and loading could be used for ---- */

/* Runs the script with an argument in a sandbox of its own: what it prints, or its error. */
static const char *answer_of(gpulua_device *device, const char *script, const char *argument,
                             struct told *told) {
    gpulua *g = open_script(told, device, true);
    if (g == NULL) {
        return gpulua_last_error(NULL)->message;
    }
    run(g, script, argument);
    gpulua_close(g);
    told->lines[strcspn(told->lines, "\n")] = '\0';
    return told->error_count > 0 ? told->message : told->lines;
}

static const char compile_script[] =
    "local gpu, source = require 'gpulua', ...\n"
    "local dev = gpu.device()\n"
    "local ok, result = pcall(dev.compile, dev, source)\n"
    "print(ok and 'compiled' or result.code .. ' ' .. result.message:gsub('\\n', ' '))\n";

#define KERNEL "extern \"C\" __global__ void f(int *x) { *x = 1; }"

static const struct {
    const char *name, *source, *wanted;
} sources[] = {
    {"a file of the host's cannot be included", "#include \"" SECRET "\"\n" KERNEL,
     "CompileFailed"},
    {"nor taken in by the assembler",
     "asm(\".section .rodata\\nhost: .incbin \\\"" SECRET "\\\"\\n.text\");\n" KERNEL,
     "CompileFailed"},
    {"nor asked for", "#if __has_include(\"" SECRET "\")\n#endif\n" KERNEL, "CompileFailed"},
    {"what is initialised can do no more than kernels",
     PRELUDE "struct s { __device__ s() { int f = open(\"" SECRET "\", 0); int n = open(\"" SECRET
             ".new\", 0101, 0600); if (f >= 0 || n >= 0 || fork() >= 0) *(volatile int *)8 = 1; } "
             "};\n__device__ s at_start;\n" KERNEL,
     "compiled"},
    {"an initialisation that ends the process is that of the source",
     PRELUDE "struct s { __device__ s() { _exit(3); } };\n__device__ s at_start;\n" KERNEL,
     "cannot be loaded: what it does at that"},
    {"so is one that crashes",
     "struct s { __device__ s() { *(volatile int *)8 = 1; } };\n__device__ s at_start;\n" KERNEL,
     "cannot be loaded: what it does at that"},
    {"and one that never ends",
     "struct s { __device__ s() { for (volatile int i = 0;; i++) {} } };\n__device__ s "
     "at_start;\n" KERNEL,
     "cannot be loaded: what it does at that"},
    {"what does not compile says where", "extern \"C\" __global__ void f(int *x) { *x = nothing; }",
     "nothing"},
};

static void compiles(gpulua_device *device) {
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct told told;
        char source[4096];
        snprintf(source, sizeof source, "%s", sources[i].source);
        make_own(source);
        const char *answer = answer_of(device, compile_script, source, &told);
        /* "compiled" is all of the answer, and not a part of "cannot be compiled". */
        bool is_whole = strcmp(sources[i].wanted, "compiled") == 0;
        bool good = is_whole ? strcmp(answer, sources[i].wanted) == 0
                             : strstr(answer, sources[i].wanted) != NULL &&
                                   strstr(answer, "sesame") == NULL;
        if (!tap_check(&tap, good, sources[i].name)) {
            printf("# %s\n", answer);
        }
    }
}

/* ---- what works, and what goes wrong ---- */

static void check_answer(gpulua_device *device, const char *script, const char *wanted,
                         const char *what) {
    struct told told;
    const char *answer = answer_of(device, script, "", &told);
    if (!tap_check(&tap, strstr(answer, wanted) != NULL, what)) {
        printf("# %s\n", answer);
    }
}

#define DEVICE "local gpu = require 'gpulua' local dev = gpu.device()\n"
#define CODES(call)                                                                                \
    DEVICE "local ok, e = pcall(function() " call " end) print(ok and 'done' or e.code .. ' ' .. " \
           "e.message)"

static void serves(gpulua_device *device) {
    check_answer(device,
                 DEVICE "local x = dev:buffer('f32', 1000):fill(2)\n"
                        "local y = gpu.map('x * x', { x = x })\n"
                        "print(gpu.reduce('sum', y):get() == 4000)",
                 "true", "gpu.map and gpu.reduce are there");
    check_answer(device,
                 DEVICE "local a = dev:buffer('f32', { 2, 2 }):fill(1)\n"
                        "local c = dev:blas():gemm { a = a, b = a } print(c:read()[1])",
                 "2.0", "and BLAS");
    check_answer(device,
                 DEVICE "local x, y = dev:buffer('u32', 1000), dev:buffer('u32', 10)\n"
                        "dev:rng():bits(x)\n"
                        "local rng = dev:rng { offset = 990 } rng:bits(y)\n"
                        "print(y:read()[10] == x:read()[1000], rng:state().offset)",
                 "true\t1000", "and dev:rng");
    check_answer(device, CODES("dev:compile('x', { include = '/tmp' })"), "Unsupported include",
                 "no folders for headers");
    check_answer(device, CODES("dev:compile('x', { flags = '-fplugin=x' })"), "Unsupported flags",
                 "no flags");
    check_answer(device, CODES("dev:compile('x', { keep = '/tmp/x' })"), "Unsupported keep",
                 "no files left");
    check_answer(device, CODES("dev:load('.version 8.0')"), "Unsupported", "nothing is loaded");
    check_answer(device,
                 CODES("local k = dev:compile [[extern \"C\" __global__ void f(int *x) { "
                       "for (volatile int i = 0; *x == 0; i++) {} }]] "
                       "k.f:launch(1, dev:buffer('i32', 1):fill(0)):await()"),
                 "DeviceLost", "a kernel that never ends loses the device");
    check_answer(device,
                 CODES("dev:await() local k = dev:compile [[extern \"C\" __global__ void f(int *x) "
                       "{ *(volatile int *)8 = 1; }]] k.f:launch(1, dev:buffer('i32', 1)):await()"),
                 "DeviceLost", "so does one that crashes");
    check_answer(device, DEVICE "dev:await() print(dev:buffer('i32', 1):fill(5):read()[1])", "5",
                 "and it comes up again");
    char result[2048];
    attempt_on(device, true, &attempts[0], result, sizeof result);
    tap_equal(&tap, result, "0", "confined as before");
}

/* ---- what holds the host up ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEP_MS 2000 /* everything takes longer there */
#else
#define STEP_MS 100
#endif

#define FOREVER                                                                                    \
    "extern \"C\" __global__ void forever(int *x) { for (volatile int i = 0; *x == 0; i++) {} }"
#define TEN_NUMBERS                                                                                \
    "long long a, long long b, long long c, long long d, long long e, long long f, long long g, "  \
    "long long h, long long i, long long j, "

static const struct {
    const char *name, *text;
} holdups[] = {
    {"more launches than there is room for, behind one that never ends", DEVICE
     "local k = dev:compile [[" FOREVER " extern \"C\" __global__ void many(" TEN_NUMBERS
     "int *x) { *x = 1; }]] local x, y = dev:buffer('i32', 1):fill(0), dev:buffer('i32', 1)\n"
     "gpu.sleep(0.01) k.forever:launch(1, x) while true do "
     "k.many:launch(1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, y) end"},
    {"the same, caught, with streams and buffers that are closed", DEVICE
     "local k = dev:compile [[" FOREVER " extern \"C\" __global__ void many(" TEN_NUMBERS
     "int *x) { *x = 1; }]] local x, y = dev:buffer('i32', 1):fill(0), dev:buffer('i32', 1)\n"
     "local s = dev:stream {} gpu.sleep(0.01) k.forever:launch(1, x) while true do "
     "pcall(function() while true do k.many:launch(1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, y) end "
     "end) pcall(s.close, s) dev:buffer('f32', 1000):close() end"},
    {"many definitions",
     DEVICE "local t = {} for i = 1, 8000 do t['NAME' .. (i * 7919) % 8009] = i end gpu.sleep(0) "
            "for i = 1, 100 do gpu.spawn(dev.compile, dev, [[" FOREVER "]], { defines = t }) "
            "gpu.sleep(0) end"},
    {"many compilations at once",
     DEVICE "for i = 1, 300 do gpu.spawn(dev.compile, dev, [[" FOREVER "]] .. i) end"},
    {"a source of megabytes",
     DEVICE "local s = (' '):rep(1 << 20) gpu.sleep(0) while true do gpu.spawn(dev.compile, dev, s "
            ".. [[" FOREVER "]]) gpu.sleep(0) end"},
    {"a kernel that never ends on each of many streams",
     DEVICE "local k = dev:compile [[" FOREVER "]] for i = 1, 100 do k.forever:launch({ grid = 1, "
            "block = 1, stream = dev:stream {} }, dev:buffer('i32', 1):fill(0)) end"},
};

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* The longest step in milliseconds, of as many as fit into a second or two, or the close if that
 * takes longer. */
static double longest_step(const char *text) {
    struct told told;
    gpulua_device_config device_config;
    gpulua_device_config_init(&device_config);
    device_config.device = "cpu";
    device_config.isolation = GPULUA_ISOLATE_PROCESS;
    device_config.confined = 1;
    device_config.close_timeout_ms = 10;
    gpulua_device *device = gpulua_device_open(&device_config);
    gpulua_config config;
    gpulua_config_init(&config);
    config.sandbox = config.allow_compile = 1;
    config.shared_device = device;
    config.on_error = note_error;
    config.user = &told;
    memset(&told, 0, sizeof told);
    gpulua *g = device != NULL ? gpulua_new(&config) : NULL;
    double longest_ms = g != NULL ? 0 : 1e9;
    if (g != NULL && luaL_loadstring(gpulua_state(g), text) == LUA_OK &&
        gpulua_load_function(g, 0) == GPULUA_OK) {
        double end_ms = now_ms() + 2000;
        while (gpulua_tasks(g) > 0 && now_ms() < end_ms) {
            double begun_ms = now_ms();
            gpulua_step(g, 1);
            double took_ms = now_ms() - begun_ms;
            longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
        }
    }
    if (told.error_count > 0) {
        printf("# %.120s\n", told.message);
    }
    double begun_ms = now_ms();
    gpulua_close(g);
    gpulua_device_close(device);
    double took_ms = now_ms() - begun_ms;
    return took_ms > longest_ms ? took_ms : longest_ms;
}

/* On a busy machine a step is long now and then: what holds the host up does so always. */
static void answers(void) {
    for (size_t i = 0; i < sizeof holdups / sizeof *holdups; i++) {
        double longest_ms = 1e9;
        for (int tries = 0; tries < 10 && longest_ms >= STEP_MS; tries++) {
            longest_ms = longest_step(holdups[i].text);
        }
        char text[160];
        snprintf(text, sizeof text, "%s: steps and a close of up to %.1f ms", holdups[i].name,
                 longest_ms);
        tap_check(&tap, longest_ms < STEP_MS, text);
    }
}

/* As if kernels had taken the process over: it does nothing any more, also not what closing asks.
 */
static void does_not_answer(void) {
    double took_ms = 1e9;
    for (int tries = 0; tries < 10 && took_ms >= STEP_MS; tries++) {
        struct told told;
        gpulua_device_config device_config;
        gpulua_device_config_init(&device_config);
        device_config.device = "cpu";
        device_config.confined = 1;
        device_config.close_timeout_ms = 10;
        gpulua_device *device = gpulua_device_open(&device_config);
        gpulua_config config;
        gpulua_config_init(&config);
        config.shared_device = device;
        config.on_error = note_error;
        config.user = &told;
        memset(&told, 0, sizeof told);
        gpulua *g = gpulua_new(&config);
        lua_State *L = gpulua_state(g);
        (void)luaL_dostring(L, "return require 'gpulua'.device().pid");
        pid_t pid = (pid_t)lua_tointeger(L, -1);
        bool is_stopped = pid > 0 && kill(pid, SIGSTOP) == 0;
        double begun_ms = now_ms();
        gpulua_close(g);
        gpulua_device_close(device);
        took_ms = is_stopped ? now_ms() - begun_ms : 1e9;
        tap_check(&tap, is_stopped && kill(pid, 0) != 0, "a process that does not answer is ended");
    }
    char text[120];
    snprintf(text, sizeof text, "closing its device took %.1f ms", took_ms);
    tap_check(&tap, took_ms < STEP_MS, text);
}

static void configurations(gpulua_device *open) {
    gpulua_device_config device;
    gpulua_config config;
    gpulua_device_config_init(&device);
    device.device = "cpu";
    device.confined = 1;
    device.isolation = GPULUA_ISOLATE_NONE;
    bool ok = gpulua_device_open(&device) == NULL;
    tap_check(&tap, ok && gpulua_last_error(NULL)->code == GPULUA_UNSUPPORTED,
              "without a process of its own nothing is confined");
    gpulua_config_init(&config);
    config.allow_compile = 1;
    config.sandbox = 1;
    config.shared_device = open;
    ok = gpulua_new(&config) == NULL;
    tap_check(&tap, ok && strstr(gpulua_last_error(NULL)->message, "confined") != NULL,
              "a sandbox does not compile for a device that is not");
    config.shared_device = NULL;
    tap_check(&tap, gpulua_new(&config) == NULL, "nor for none");
    gpulua_config_init(&config);
    config.allow_compile = 1;
    tap_check(&tap, gpulua_new(&config) == NULL, "what is no sandbox need not be allowed");
}

/* A process's name and its parent. */
static bool describe_process(pid_t pid, char name[32], pid_t *parent) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    bool is_there = file != NULL && fscanf(file, "%*d (%31[^)]) %*c %d", name, parent) == 2;
    if (file != NULL) {
        fclose(file);
    }
    return is_there;
}

struct processes {
    int count;
    pid_t pids[64];
};

/* Processes of that name that this one has started, or one of those; other programs have some, too.
 */
static struct processes find_processes(const char *name) {
    struct processes found = {0};
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        pid_t pid = (pid_t)atoi(entry->d_name), at = pid, parent;
        char its_name[32];
        if (pid <= 0 || !describe_process(pid, its_name, &parent) ||
            strncmp(its_name, name, strlen(name)) != 0) {
            continue;
        }
        while (at > 1 && at != getpid() && describe_process(at, its_name, &parent)) {
            at = parent;
        }
        if (at == getpid() && found.count < 64) {
            found.pids[found.count++] = pid;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return found;
}

/* Waits until none of them is there, nor another: whoever started them may be gone. */
static bool are_gone(const struct processes *processes, const char *name) {
    int left = 1;
    for (int round = 0; round < 100 && left > 0; round++) {
        left = find_processes(name).count;
        for (int i = 0; i < processes->count; i++) {
            char its_name[32];
            pid_t parent;
            left += describe_process(processes->pids[i], its_name, &parent) &&
                    strncmp(its_name, name, strlen(name)) == 0;
        }
        if (left > 0) {
            usleep(50000);
        }
    }
    return left == 0;
}

#define BROKER "gpulua-compile"

static void ends(gpulua_device *device) {
    struct processes brokers = find_processes(BROKER);
    tap_check(&tap, brokers.count > 0, "the compiler's process is there");
    gpulua_device_close(device);
    tap_check(&tap, are_gone(&brokers, BROKER), "and gone with its device");
}

/* Half a minute of a compiler's. Each of these calls is within what it computes for one. */
static const char endless_script[] =
    "local dev = require 'gpulua'.device()\n"
    "local source = { [[__device__ constexpr int count(int n) { int s = 0; for (int i = 0; i < n; "
    "i++) s += i "
    "& 1; return s; }]] }\n"
    "for i = 1, 60 do source[#source + 1] = ('__device__ constexpr int c%d = "
    "count(%d);'):format(i, 5000000 + "
    "i) end\n"
    "source[#source + 1] = 'extern \"C\" __global__ void f(int *x) { *x = c1; }'\n"
    "dev:compile(table.concat(source, '\\n'))\n";

static void leaves_no_compiler(void) {
    const char *compiler = "cc1plus";
    gpulua_device *device = open_device(1);
    struct told told;
    gpulua *g = open_script(&told, device, false);
    lua_State *L = gpulua_state(g);
    struct processes compilers = {0};
    bool is_there =
        luaL_loadstring(L, endless_script) == LUA_OK && gpulua_load_function(g, 0) == GPULUA_OK;
    for (int round = 0; is_there && round < 200 && compilers.count == 0; round++) {
        gpulua_step(g, 50);
        compilers = find_processes(compiler);
    }
    is_there = is_there && compilers.count > 0 && gpulua_tasks(g) > 0;
    if (!tap_check(&tap, is_there, "a compiler that is at work for long")) {
        printf("# %s %s\n", told.message, told.lines);
    }
    gpulua_close(g);
    gpulua_device_close(device);
    tap_check(&tap, are_gone(&compilers, compiler), "ends with its device");
}

/* No other device takes for its own what the compilers of this one may have written. */
static void keeps_apart(void) {
    const char *cache = getenv("GPULUA_CACHE");
    char path[4096];
    snprintf(path, sizeof path, "%s/confined", cache != NULL ? cache : "");
    tap_check(&tap, cache == NULL || access(path, X_OK) == 0,
              "compiled code of confined devices lies in a folder of its own");
}

int main(void) {
    char secret[] = SECRET, made[] = SECRET ".folder";
    make_own(secret);
    make_own(made);
    setenv("GPULUA_TEST_SECRET", SECRET_TEXT, 1);
    FILE *file = fopen(secret, "w");
    if (file != NULL) {
        fputs(SECRET_TEXT, file);
        fclose(file);
    }
    gpulua_device *confined = open_device(1), *open = open_device(0);
    if (confined == NULL) {
        const gpulua_error *error = gpulua_last_error(NULL);
        if (error->code == GPULUA_UNSUPPORTED) {
            tap_skip(&tap, "confined devices", error->message);
        } else {
            tap_check(&tap, false, "a confined device is opened");
        }
    } else {
        refuses(confined, open);
        compiles(confined);
        serves(confined);
        answers();
        does_not_answer();
        configurations(open);
        ends(confined);
        leaves_no_compiler();
        keeps_apart();
    }
    gpulua_device_close(open);
    remove(secret);
    rmdir(made);
    return tap_finish(&tap);
}
