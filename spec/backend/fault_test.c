/* What is said of a lost GPU, on fake_cuda.c: the assertions that the driver prints, its log, and
 * core dumps. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "backend/cuda/log.h"
#include "fake_driver.h"

/* Fills a buffer on a device of this isolation, which the driver is told to fail at; then once
 * more, when the device has come up again. */
static const char script[] =
    "local gpu = require 'gpulua'\n"
    "local isolate, coredump, again = arg[1], arg[2], arg[3]\n"
    "coredump = coredump ~= '' and coredump or nil\n"
    "local good, dev = pcall(gpu.device, 'cuda', { isolate = isolate, coredump = coredump })\n"
    "if not good then print('open', dev.code, dev.message) return end\n"
    "for life = 1, again and 2 or 1 do\n"
    "  local good, err = pcall(function() dev:buffer('i32', 100):fill(1):read() end)\n"
    "  io.stdout:write(tostring(good), ' ', tostring(err and err.code), ' ',\n"
    "    tostring(err and err.message), '\\n')\n"
    "  if again then dev:await() end\n"
    "end\n"
    "dev:close()\n";

/* Behind ten fills that nobody has asked after, one of another kind, which the driver is told to
 * fail at: is it among the suspects? */
static const char behind[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device('cuda', { isolate = arg[1], coredump = arg[2], attribution = arg[3] "
    "})\n"
    "local x, y = dev:buffer('i32', 100), dev:buffer('u8', 100)\n"
    "for i = 1, 9 do x:fill(i):await() end\n"
    "for i = 1, 10 do x:fill(i) end\n"
    "y:fill(1) for i = 1, 3 do x:fill(i) end\n"
    "local good, err = pcall(function() gpu.all(x, y) end)\n"
    "local is_named = false\n"
    "for _, s in ipairs(err.suspects) do is_named = is_named or s.line == 6 end\n"
    "io.stdout:write(err.code, ' ', tostring(is_named), '\\n')\n"
    "dev:close()\n";

static char output[8192], errors[8192];

static void read_file(const char *path, char *text, size_t text_bytes) {
    FILE *file = fopen(path, "r");
    size_t bytes = file != NULL ? fread(text, 1, text_bytes - 1, file) : 0;
    text[bytes] = '\0';
    if (file != NULL) {
        fclose(file);
    }
}

static int good_calls; /* of `call`, before the one that fails */

/* Runs `source`; what it printed is in `output` and `errors`. `call` fails with `code`, where the
 * driver then has `printed` to print. */
static bool run_script(const char *source, const char *isolation, const char *call, int code,
                       const char *printed) {
    char path[256], command[1024], fails[128];
    snprintf(path, sizeof path, "%s/script.lua", folder);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return false;
    }
    fputs(source, file);
    fclose(file);
    snprintf(fails, sizeof fails, "%s %d %d", call, code, good_calls);
    setenv("FAKE_CUDA_FAILS", fails, 1);
    setenv("FAKE_CUDA_ASSERTIONS", printed, 1);
    snprintf(command, sizeof command, "cd %s && %s/gpulua %s %s > out 2> err", folder,
             getenv("GPULUA_BUILD"), path, isolation);
    int status = system(command);
    unsetenv("FAKE_CUDA_FAILS");
    unsetenv("FAKE_CUDA_ASSERTIONS");
    snprintf(path, sizeof path, "%s/out", folder);
    read_file(path, output, sizeof output);
    snprintf(path, sizeof path, "%s/err", folder);
    read_file(path, errors, sizeof errors);
    return status == 0;
}

static bool run(const char *isolation, const char *call, int code, const char *printed) {
    return run_script(script, isolation, call, code, printed);
}

static void check(bool good, const char *what) {
    if (!tap_check(&tap, good, what)) {
        printf("# out: %s\n# err: %s\n", output, errors);
    }
}

/* Does the script print that, in this process and with one for the device? `call` fails with `code`
 * after so many that do not. */
static void on_both(const char *source, const char *call, int code, int good_before,
                    const char *wanted, const char *text) {
    for (int i = 0; i < 2; i++) {
        const char *isolation = i == 0 ? "none" : "process";
        char what[100];
        good_calls = good_before;
        bool good = run_script(source, isolation, call, code, "");
        good_calls = 0;
        snprintf(what, sizeof what, "%s: %s", isolation, text);
        check(good && strcmp(output, wanted) == 0, what);
    }
}

/* Reckoned memory of graphs is one thing, what the driver takes another. */
static void graphs(void) {
    static const char source[] =
        "local gpu = require 'gpulua'\n"
        "local dev <close> = gpu.device('cuda', { isolate = ... })\n"
        "local x = dev:buffer('u8', 100)\n"
        "local function made() return dev:capture(function() x:fill(1) end) end\n"
        "local a, b = made(), made()\n"
        "a:launch() b:launch() a:launch()\n"
        "dev:synchronize()\n"
        "print(dev:stats().graph_evictions)\n";
    on_both(source, "cuGraphInstantiateWithFlags", 2, 1, "1\n",
            "a graph for which the driver has no memory takes another's");
}

/* The driver refuses to make a copy to or from one kind of memory one of another. */
static void copies(void) {
    static const char source[] =
        "local gpu = require 'gpulua'\n"
        "local dev <close> = gpu.device('cuda', { isolate = ... })\n"
        "local pool = dev:memory { from = 'driver' }\n"
        "local x, y = dev:buffer('u8', 4):fill(1), dev:buffer('u8', 4)\n"
        "local z, w = dev:buffer('u8', 4):fill(3), pool:buffer('u8', 4):fill(2)\n"
        "local graph = dev:capture(function() y:copy(x) end)\n"
        "local seen = {}\n"
        "local function launch()\n"
        "  graph:launch()\n"
        "  seen[#seen + 1] = y:read()[1]\n"
        "end\n"
        "launch()\n"
        "graph:update(function() y:copy(w) end) launch()\n"
        "graph:update(function() y:copy(w) end) launch()\n"
        "graph:update(function() y:copy(z) end) launch()\n"
        "graph:update(function() y:copy(x) end) launch()\n"
        "print(table.concat(seen, ' '))\n";
    on_both(source, "nothing", 0, 0, "1 2 2 3 1\n",
            "a copy in a graph becomes one of another kind of memory");
}

static void assertions(void) {
    static const char printed[] =
        "fill.cu:7: void fill(int *, int): block: [1,0,0], thread: [3,0,0] Assertion `i < n` "
        "failed.\n"
        "fill.cu:7: void fill(int *, int): block: [1,0,0], thread: [4,0,0] Assertion `i < n` "
        "failed.\n";
    static const char said[] =
        "false DeviceLost device cuda:0 is lost: assertion `i < n' failed at "
        "fill.cu:7, block (1,0,0), thread (3,0,0), in void fill(int *, int), "
        "and 1 more: ";
    bool good = run("process", "cuMemsetD32Async", 710, printed);
    check(good && strstr(output, said) == output && strstr(output, "(710, text of the driver)"),
          "a failed assertion is in the text of the loss, with its place");
    check(good && strcmp(errors, printed) == 0, "and printed as ever, once");
    good = run("process", "cuMemsetD32Async", 700, printed);
    check(good && strstr(output, "false DeviceLost") == output &&
              strstr(output, "(700, text of the driver)") && strstr(output, "ssertion") == NULL &&
              errors[0] == '\0',
          "nothing is waited for behind other faults, and nothing is made up");
    for (int i = 0; i < 2; i++) {
        good = run(i == 0 ? "none" : "thread", "cuMemsetD32Async", 710, printed);
        check(good && strstr(output, "(710, text of the driver)") &&
                  strstr(output, "ssertion") == NULL && strcmp(errors, printed) == 0,
              "in this process it is printed, and nobody listens to what is the host's");
    }
}

/* Each line of these is of thread 7, or of nobody. */
static void log_lines(void) {
#define E "[22:21:32.099][7][CUDA][E]"
    static const struct {
        const char *log, *wanted, *what;
    } cases[] = {
        {E "[cuMemAlloc] bytes cannot be 0\n", "bytes cannot be 0", "a line that names its call"},
        {E "[cuMemAlloc_v2] bytes cannot be 0\n" E "[cuMemAlloc_v2] or more\n",
         "bytes cannot be 0; or more", "two lines, and the name of an ABI"},
        {E "[cuMemAllocAsync] no\n" E "[cuMemFree] nor this\n", "", "lines that name other calls"},
        {E " bytes cannot be 0\n" E " Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc\n",
         "bytes cannot be 0", "a line that says next of which call it was"},
        {E " of another\n" E " Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemFree\n" E
           " bytes cannot be 0\n" E " Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2\n",
         "bytes cannot be 0", "behind what is of another call"},
        {E " of another\n" E " Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemFree\n", "",
         "nothing but another call's"},
        {E " Returning 2 (CUDA_ERROR_OUT_OF_MEMORY) from cuMemAlloc\n", "",
         "nothing but what is known already"},
        {E " bytes cannot be 0\n", "bytes cannot be 0", "the newest, of which no call is said"},
        {"[22:21:32.099][8][CUDA][E][cuMemAlloc] no\n[22:21:32.099][7][CUDA][W][cuMemAlloc] no\n",
         "", "other threads, and warnings"},
        {"[some logs were dropped]\n\n[22:21\n" E "\n" E "[cuMemAlloc] bytes\tcannot\x01 be 0",
         "bytes cannot  be 0", "lines of other forms, and one without end"},
        {E " [0] is no device\n", "[0] is no device", "a message that begins with a bracket"},
        {"", "", "an empty log"},
    };
    char text[CUDA_LOG_TEXT_BYTES], long_log[2000];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpu_cuda_log_pick(cases[i].log, 7, "cuMemAlloc(&address, bytes)", text, sizeof text);
        tap_equal(&tap, text, cases[i].wanted, cases[i].what);
    }
    memset(long_log, 'x', sizeof long_log);
    memcpy(long_log, E "[cuMemAlloc] ", strlen(E "[cuMemAlloc] "));
    long_log[sizeof long_log - 1] = '\0';
    gpu_cuda_log_pick(long_log, 7, "cuMemAlloc(1)", text, sizeof text);
    tap_check(&tap,
              strlen(text) == sizeof text - 1 && strcmp(text + sizeof text - 7, "xxx...") == 0,
              "a long one is cut and says so");
#undef E
}

static void logs(void) {
    setenv("FAKE_CUDA_SAYS", "the pitch must be 0", 1);
    bool good = run("none", "cuMemsetD32Async", 1, "");
    check(good && strstr(output, "which failed: CUDA_ERROR_OTHER (1, ") != NULL &&
              strstr(output, "; the driver says: the pitch must be 0") != NULL,
          "what the driver's log has of a call that failed");
    good = run("process", "cuMemsetD32Async", 700, "");
    const char *said = strstr(output, "; the driver says: the pitch must be 0; '");
    check(good && strstr(output, "false DeviceLost ") == output && said != NULL &&
              strstr(said + 10, "the driver says") == NULL && strstr(output, "][") == NULL,
          "and of a loss, once, without the log's brackets");
    unsetenv("FAKE_CUDA_SAYS");
}

static int count_dumps(const char *path) {
    int count = 0;
    DIR *opened = opendir(path);
    for (struct dirent *entry; opened != NULL && (entry = readdir(opened)) != NULL;) {
        count += strstr(entry->d_name, ".core") != NULL;
    }
    if (opened != NULL) {
        closedir(opened);
    }
    return count;
}

/* Is the file there that the output names, whole? */
static bool has_dump(const char *path) {
    char name[600] = "", text[200] = "";
    const char *at = strstr(output, "; core dump in ");
    bool good = at != NULL && sscanf(at, "; core dump in %599[^;]", name) == 1 &&
                strncmp(name, path, strlen(path)) == 0;
    read_file(name, text, sizeof text);
    return good && strcmp(text, "a dump") == 0;
}

/* Does a fill that the driver ends the process for fail, and leave one more dump, with which there
 * are so many? */
static bool leaves_dump(const char *given, const char *path, int count) {
    return run(given, "cuMemsetD32Async", 700, "") && has_dump(path) &&
           count_dumps(path) == count && strstr(output, "false DeviceLost") == output;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void dumps(void) {
    char path[256], given[600];
    snprintf(path, sizeof path, "%s/dumps", folder);
    mkdir(path, 0700);
    snprintf(given, sizeof given, "process %s", path);
    bool good = run(given, "cuMemsetD32Async", 700, "");
    check(good && has_dump(path) && count_dumps(path) == 1 &&
              strstr(output, "killed by signal 6") != NULL,
          "a fault leaves a core dump where it was asked for, and the error says where");
    setenv("FAKE_CUDA_ENDS_LATE", "1", 1);
    check(leaves_dump(given, path, 2), "work that the driver calls over behind a dump is not");
    unsetenv("FAKE_CUDA_ENDS_LATE");
    setenv("FAKE_CUDA_DUMPS_LATE", "1", 1);
    check(leaves_dump(given, path, 3), "nor what it calls over before it knows of the fault");
    setenv("GPULUA_COMPLETION", "block", 1);
    check(leaves_dump(given, path, 4), "also where threads would sleep for its end");
    unsetenv("GPULUA_COMPLETION");
    good = run_script(behind, given, "cuMemsetD8Async", 700, "");
    check(good && strcmp(output, "DeviceLost true\n") == 0,
          "what ended the device is among the suspects, though nobody asked");
    unsetenv("FAKE_CUDA_DUMPS_LATE");
    snprintf(given, sizeof given, "process %s exact", path);
    good = run_script(behind, given, "cuMemsetD8Async", 700, "");
    check(
        good && strcmp(output, "DeviceLost true\n") == 0 &&
            strstr(errors, "attribution = \"exact\" does nothing while the device writes no words"),
        "also where exactly it was to be known, which is told");
    snprintf(given, sizeof given, "process %s again", path);
    good = run(given, "cuMemsetD32Async", 710, "");
    check(good && has_dump(path) && count_dumps(path) == 8,
          "each life has a file of its own, and none is written over");
    good = run("process", "cuMemsetD32Async", 700, "");
    check(good && strstr(output, "core dump") == NULL && count_dumps(path) == 8,
          "nobody who has not asked gets one");
    setenv("GPULUA_COREDUMP", path, 1);
    good = run("process", "cuMemsetD32Async", 700, "");
    check(good && has_dump(path) && count_dumps(path) == 9, "$GPULUA_COREDUMP asks, too");
    good = run("none", "cuMemsetD32Async", 700, "");
    check(good && strstr(output, "false DeviceLost") == output &&
              strstr(output, "core dump") == NULL && count_dumps(path) == 9,
          "but not for a device in this process");
    unsetenv("GPULUA_COREDUMP");
    good = run("process dumps again", "cuMemsetD32Async", 700, "");
    check(good && has_dump(path) && count_dumps(path) == 11,
          "a folder that is named from here is named from the root");
    static const struct {
        const char *given, *wanted, *what;
    } refused[] = {
        {"none /tmp", "open\tUnsupported\tcoredump: only a GPU in a process of its own",
         "in this process it is refused"},
        {"process /nowhere", "open\tIo\tcoredump: no file can be made in '/nowhere': No such file",
         "a folder that is not there"},
        {"process /etc/passwd", "'/etc/passwd': it is not a folder", "a file"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        good = run(refused[i].given, "cuMemsetD32Async", 700, "");
        check(good && strstr(output, refused[i].wanted) != NULL, refused[i].what);
    }
    struct backend_error error = {0};
    struct backend_device *device = NULL;
    struct backend_open_info info = {.cache_path = folder, .coredump_base = path};
    FAKE(int, has_dumps) = 0;
    tap_check(&tap,
              ops->device_open(&info, &device, &error) == GPULUA_DRIVER && device == NULL &&
                  strstr(error.message, "cuCoredumpSetAttributeGlobal(file)") != NULL,
              "a driver that does not permit it: the device is not opened without");
    FAKE(int, has_dumps) = 1;
    fail_next("cuModuleLoadDataEx", 2, 0);
    tap_check(&tap,
              ops->device_open(&info, &device, &error) == GPULUA_OUT_OF_MEMORY && device == NULL &&
                  FAKE(long, live) == 0,
              "nor one that has no memory for what proves an end, of which nothing is left");
    int loaded = FAKE(int, loaded);
    tap_check(&tap,
              ops->device_open(&info, &device, &error) == GPULUA_OK &&
                  FAKE(int, dump_flags) == (1 | 2 | 4 | 8 | 32) &&
                  strncmp((char *)dlsym(fake, "fake_dump_path"), path, strlen(path)) == 0,
              "small");
    struct backend_stream *stream = NULL;
    struct backend_event *event = NULL;
    bool is_over = ops->stream_create(device, 0, 0, &stream, &error) == GPULUA_OK &&
                   ops->event_create(device, &event, &error) == GPULUA_OK &&
                   ops->event_record(event, stream, &error) == GPULUA_OK;
    int loaded_by_open = FAKE(int, loaded) - loaded;
    for (enum backend_query query = BACKEND_PENDING; is_over && query == BACKEND_PENDING;) {
        query = ops->event_query(event, &error);
        is_over = query != BACKEND_FAILED;
    }
    tap_check(&tap, is_over && loaded_by_open == 1 && FAKE(int, loaded) == loaded + 1,
              "what proves an end is loaded before there is work that it would wait for");
    bool is_made = ops->event_create(device, &event, &error) == GPULUA_OK &&
                   ops->event_record(event, stream, &error) == GPULUA_OK;
    fail_next("cuEventCreate", 2, 0);
    tap_check(&tap,
              is_made && ops->event_query(event, &error) == BACKEND_DONE &&
                  FAKE(int, fail_code) == 0 && error.log == NULL,
              "an end that there is no memory to prove is taken as told");
    is_made = ops->event_create(device, &event, &error) == GPULUA_OK &&
              ops->event_record(event, stream, &error) == GPULUA_OK;
    FAKE(int, halts) = 1;
    int64_t begun_ns = now_ns(), waited_ns = 0;
    enum backend_query query = BACKEND_PENDING;
    for (int i = 0; is_made && query == BACKEND_PENDING && i < 20000; i++) {
        query = ops->event_query(event, &error);
        waited_ns = now_ns() - begun_ns;
        usleep(query == BACKEND_PENDING ? 1000 : 0);
    }
    FAKE(int, halts) = 0;
    tap_check(&tap, query == BACKEND_DONE && waited_ns >= INT64_C(1000000000),
              "an end whose proof does not come is taken as told after a second, not before");
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
}

int main(void) {
    if (!build()) {
        tap_skip(&tap, "everything", "no compiler for the fake driver");
        return tap_finish(&tap);
    }
    log_lines();
    if (getenv("GPULUA_BUILD") == NULL) {
        tap_skip(&tap, "the rest", "GPULUA_BUILD does not say where gpulua is");
    } else {
        graphs();
        copies();
        assertions();
        logs();
        dumps();
    }
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "everything", "this build has no cuda backend");
    return tap_finish(&tap);
}

#endif
