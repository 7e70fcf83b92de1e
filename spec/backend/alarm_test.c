/* backend/cuda/alarm.c over fake_cuda.c and fake_nvml.c: whose work it is that a GPU says it has
 * stopped. */
#include <dirent.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "fake_driver.h"

static void *nvml;
#define NVML(type, name) (*(type *)dlsym(nvml, "fake_" #name))

static void check(bool good, const char *what) {
    tap_check(&tap, good, what);
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* What the device was told of, on another thread. */
static atomic_int lost_count, lost_code;
static char lost_text[256];

static void on_lost(void *user, int32_t driver_code, const char *text) {
    (void)user;
    lost_code = driver_code;
    snprintf(lost_text, sizeof lost_text, "%s", text);
    lost_count++;
}

static atomic_int is_alarmed, alarm_count;

static void on_alarmed(void *user, bool now) {
    (void)user;
    is_alarmed = now;
    alarm_count += now;
}

static struct backend_device *open_apart(bool is_apart, const char *coredump_base) {
    struct backend_error error = {0};
    struct backend_device *device = NULL;
    struct backend_open_info info = {.cache_path = folder,
                                     .is_apart = is_apart,
                                     .coredump_base = coredump_base,
                                     .sink = {.lost = on_lost, .alarmed = on_alarmed}};
    NVML(atomic_int, inits) = NVML(atomic_int, waits) = NVML(atomic_int, shutdowns) = 0;
    NVML(atomic_bool, has_told) = false;
    lost_count = lost_code = is_alarmed = alarm_count = 0;
    if (ops->device_open(&info, &device, &error) != GPULUA_OK) {
        printf("# %s\n", error.message);
        return NULL;
    }
    return device;
}

/* NVML listens. */
static bool listens(void) {
    int64_t end_ms = now_ms() + 5000;
    while (NVML(atomic_int, waits) == 0 && now_ms() < end_ms) {
        usleep(1000);
    }
    return NVML(atomic_int, waits) > 0;
}

/* It has asked who is there since. */
static bool looks_again(void) {
    int waits = NVML(atomic_int, waits);
    int64_t end_ms = now_ms() + 5000;
    while (NVML(atomic_int, waits) < waits + 2 && now_ms() < end_ms) {
        usleep(1000);
    }
    return NVML(atomic_int, waits) >= waits + 2;
}

/* Its thread has ended. */
static bool ends(void) {
    int64_t end_ms = now_ms() + 5000;
    while (NVML(atomic_int, shutdowns) == 0 && now_ms() < end_ms) {
        usleep(1000);
    }
    return NVML(atomic_int, shutdowns) == 1 && NVML(atomic_int, sets) == 0;
}

/* When the device was lost, in ms from now; -1: not within so long. */
static int64_t lost_within(int64_t for_ms) {
    int64_t begun_ns = now_ms();
    while (lost_count == 0 && now_ms() - begun_ns < for_ms) {
        usleep(500);
    }
    return lost_count == 0 ? -1 : now_ms() - begun_ns;
}

/* Says Xid 43, as soon as nothing of the last one is under way, and waits until it is looked into.
 */
static bool rings(void) {
    int64_t end_ms = now_ms() + 5000;
    while (is_alarmed && now_ms() < end_ms) {
        usleep(200);
    }
    int count = alarm_count;
    NVML(atomic_uint, xid) = 43;
    while (alarm_count == count && now_ms() < end_ms) {
        usleep(200);
    }
    return alarm_count > count;
}

static void test_rings(void) {
    struct backend_device *device = open_apart(true, NULL);
    check(device != NULL && listens() && NVML(atomic_ullong, bus_id) == 0x0043002100320000ull,
          "a device in a process of its own listens to its GPU");
    int words = FAKE(int, words);
    check(lost_within(150) == -1 && FAKE(int, words) == words,
          "nothing is asked for while nothing is said");
    NVML(atomic_uint, other) = 1;
    check(lost_within(150) == -1 && FAKE(int, words) == words,
          "nor for anything else that it says");
    NVML(atomic_uint, xid) = 31;
    check(lost_within(150) == -1 && FAKE(int, words) == words && alarm_count == 0,
          "nor for faults that the driver tells of soon");
    check(rings() && lost_within(400) == -1 && FAKE(int, words) > words + 1 &&
              FAKE(int, words) <= words + 41,
          "one whose words come is well, and is asked for some");
    words = FAKE(int, words);
    check(lost_within(50) == -1 && FAKE(int, words) == words && !is_alarmed, "and then no more");
    /* Words that do not come are no sign by themselves. */
    FAKE(int, pending) = 1;
    check(lost_within(150) == -1, "one that is busy is well");
    NVML(atomic_uint, processes) = 3;
    check(looks_again() && rings() && lost_within(300) == -1, "nor where others have the GPU, too");
    NVML(atomic_uint, processes) = 2;
    NVML(atomic_uint, graphics) = 1;
    check(looks_again() && rings() && lost_within(300) == -1, "nor where somebody draws with it");
    NVML(atomic_uint, graphics) = 0;
    (void)looks_again();
    FAKE(int, pending) = 0;
    bool is_heard = false, is_lost = false;
    int64_t lost_ms = 0;
    for (int i = 0; i < 5 && !is_lost; i++) { /* who is late finds that nothing is asked any more */
        FAKE(int, pending) = 0;
        words = FAKE(int, words);
        is_heard = rings() && lost_within(60) == -1 && FAKE(int, words) > words;
        int64_t begun_ms = now_ms();
        FAKE(int, pending) = 1; /* as soon as the last words have come */
        is_lost = lost_within(2000) >= 0;
        lost_ms = now_ms() - begun_ms;
    }
    check(is_heard, "each that is said is looked into");
    printf("# %lld ms: %s\n", (long long)lost_ms, lost_text);
    check(is_lost && lost_ms >= 35 && lost_ms < 1900 && lost_code == 719,
          "one whose words stay away is lost, when the driver has had its time");
    check(strstr(lost_text, "(719, ") != NULL && strstr(lost_text, "(Xid 43)") != NULL,
          "with what was said");
    FAKE(int, pending) = 0;
    check(ends() && lost_count == 1 && !is_alarmed, "once, and nobody listens any more");
    ops->device_close(device);
}

/* Behind a trap NVML takes its time to say who has the GPU. */
static void test_others(void) {
    struct backend_device *device = open_apart(true, NULL);
    bool is_there = device != NULL && listens();
    NVML(atomic_uint, slow_ms) = 3000;
    FAKE(int, pending) = 1;
    NVML(atomic_uint, xid) = 43;
    int64_t lost_ms = is_there ? lost_within(5000) : -1;
    printf("# %lld ms\n", (long long)lost_ms);
    check(lost_ms >= 35 && lost_ms < 2900, "that it is alone is known before");
    FAKE(int, pending) = 0;
    NVML(atomic_uint, slow_ms) = 0;
    ops->device_close(device);
    (void)ends();
    NVML(atomic_uint, processes) = 3;
    NVML(atomic_uint, left) = 2;
    device = open_apart(true, NULL);
    is_there = device != NULL && listens();
    FAKE(int, pending) = 1;
    NVML(atomic_uint, xid) = 43;
    check(is_there && lost_within(5000) >= 35, "those who were there may have gone");
    FAKE(int, pending) = 0;
    NVML(atomic_uint, processes) = 2;
    NVML(atomic_uint, left) = 0;
    ops->device_close(device);
    (void)ends();
}

/* Once more where this thread had no processor for so long that it looked as if nobody asked. */
static void test_answers(void) {
    struct backend_error error = {0};
    int64_t longest_ms = 1000;
    bool is_well = false;
    for (int i = 0; i < 10 && !is_well && longest_ms >= 20; i++) {
        struct backend_device *device = open_apart(true, NULL);
        is_well = device != NULL && listens();
        FAKE(int, pending) = 1;
        is_well = is_well && rings();
        int64_t begun_ms = now_ms(), last_ms = begun_ms;
        for (longest_ms = 0; last_ms < begun_ms + 300; usleep(2000)) {
            is_well = is_well && ops->device_status(device, &error) == GPULUA_OK;
            int64_t gap_ms = now_ms() - last_ms;
            longest_ms = gap_ms > longest_ms ? gap_ms : longest_ms;
            last_ms += gap_ms;
        }
        is_well = is_well && lost_count == 0;
        FAKE(int, pending) = 0;
        ops->device_close(device);
        (void)ends();
    }
    check(is_well, "nor one whose driver answers");
}

static int thread_count(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    while (tasks != NULL && readdir(tasks) != NULL) {
        count++;
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return count;
}

/* Waits until no more are there, or for some time: one that has ended stays in the list for a
 * moment. */
static int threads_until(int count, int64_t for_ms) {
    int64_t end_ms = now_ms() + for_ms;
    int least = thread_count();
    while (least > count && now_ms() < end_ms) {
        usleep(1000);
        int now = thread_count();
        least = now < least ? now : least;
    }
    return least;
}

/* A process that ends behind its device is not to meet a thread within the loader. Often, because
 * a thread that nobody waits for may be over by chance. */
static void test_waits(void) {
    int before = threads_until(0, 100), begun = 0, left = 0;
    for (int i = 0; i < 20; i++) {
        struct backend_device *device = open_apart(true, NULL);
        begun += device != NULL && thread_count() > before;
        ops->device_close(device);
        usleep(2000); /* the system takes a thread off its list behind who waits for it */
        left += thread_count() > before;
    }
    check(begun == 20 && left < 10, "a thread that does not listen yet ends with its device");
    (void)threads_until(before, 5000); /* one that did listen, because this thread was late */
}

static void test_ends(void) {
    struct backend_device *device = open_apart(true, NULL);
    bool is_there = device != NULL && listens();
    ops->device_close(device);
    check(is_there && ends(), "nobody listens behind the device's end");
    device = open_apart(true, NULL);
    is_there = device != NULL && listens();
    FAKE(int, pending) = 1;
    NVML(atomic_uint, xid) = 43;
    int words = FAKE(int, words);
    while (is_there && FAKE(int, words) == words) {
        usleep(200);
    }
    ops->device_close(device); /* a word is on its way */
    FAKE(int, pending) = 0;
    check(is_there && ends() && lost_count == 0, "which nobody is told is lost");
    device = open_apart(true, NULL);
    ops->device_close(device);
    usleep(300000);
    check(device != NULL && NVML(atomic_int, inits) == 0, "and one that ends soon never begins");
}

/* The driver has told already. */
static void test_driver_first(void) {
    struct backend_error error = {0};
    struct backend_device *device = open_apart(true, NULL);
    bool is_there = device != NULL && listens();
    fail_next("cuEventQuery", 716, 0);
    is_there = is_there && ops->device_status(device, &error) == GPULUA_DEVICE_LOST;
    FAKE(int, pending) = 1;
    is_there = is_there && rings();
    check(is_there && lost_within(250) == -1, "what the driver has told is not told again");
    FAKE(int, pending) = FAKE(int, sticky) = 0;
    ops->device_close(device);
    (void)ends();
}

/* Whatever NVML cannot, the device works without it. */
static void test_without(void) {
    static const char *const calls[] = {"init", "find", "make",         "listen",
                                        "wait", "list", "list graphics"}; /* from 5 on it listens */
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        char what[80];
        NVML(_Atomic(const char *), fails) = calls[i];
        struct backend_device *device = open_apart(true, NULL);
        int64_t end_ms = now_ms() + 5000;
        while (NVML(atomic_int, inits) == 0 && now_ms() < end_ms) {
            usleep(1000);
        }
        if (i < 5) {
            usleep(50000);
        } else {
            (void)listens();
        }
        NVML(atomic_uint, xid) = 43;
        FAKE(int, pending) = 1;
        snprintf(what, sizeof what, "it does without where NVML cannot '%s'", calls[i]);
        check(device != NULL && lost_within(120) == -1 && NVML(atomic_int, sets) == (i >= 5), what);
        FAKE(int, pending) = 0;
        NVML(atomic_uint, xid) = 0;
        ops->device_close(device);
    }
    NVML(_Atomic(const char *), fails) = NULL;
    setenv("GPULUA_LIBNVML", "/nowhere/libnvidia-ml.so.1", 1);
    struct backend_device *device = open_apart(true, NULL);
    usleep(300000);
    check(device != NULL && NVML(atomic_int, inits) == 0, "and where there is none");
    ops->device_close(device);
    setenv("GPULUA_LIBNVML", "libm.so.6", 1);
    device = open_apart(true, NULL);
    usleep(300000);
    check(device != NULL && NVML(atomic_int, inits) == 0, "or another library in its place");
    ops->device_close(device);
}

static void test_not(const char *library) {
    setenv("GPULUA_LIBNVML", library, 1);
    struct backend_device *device = open_apart(false, NULL);
    usleep(300000);
    check(device != NULL && NVML(atomic_int, inits) == 0,
          "a process of others' has no such thread");
    ops->device_close(device);
    setenv("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1", 1);
    device = open_apart(true, NULL);
    usleep(300000);
    check(device != NULL && NVML(atomic_int, inits) == 0,
          "nor one whose driver is told to keep what has faulted");
    ops->device_close(device);
    unsetenv("CUDA_ENABLE_COREDUMP_ON_EXCEPTION");
    device = open_apart(true, "/tmp/gpulua-alarm");
    usleep(300000);
    check(device != NULL && NVML(atomic_int, inits) == 0, "nor one that is to leave a core dump");
    ops->device_close(device);
    fail_next("cuMemHostRegister_v2", 801, 0);
    device = open_apart(true, NULL);
    usleep(300000);
    check(device != NULL && NVML(atomic_int, inits) == 0,
          "nor one that words cannot be written in");
    ops->device_close(device);
}

/* A debugger stops work, and nobody is to be told that it is lost. */
static void test_debugged(void) {
    struct backend_device *device = open_apart(true, NULL);
    bool is_there = device != NULL && listens();
    int told[2], status = 1;
    char byte = 0;
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t pid = pipe(told) == 0 ? fork() : -1;
    if (pid == 0) {
        pid_t parent = getppid();
        byte = ptrace(PTRACE_SEIZE, parent, NULL, NULL) == 0;
        (void)!write(told[1], &byte, 1);
        sleep(1);
        _exit(0);
    }
    if (pid < 0 || read(told[0], &byte, 1) != 1 || byte == 0) {
        tap_skip(&tap, "a process that a debugger has is left to it", "nothing may be traced here");
    } else {
        FAKE(int, pending) = 1;
        NVML(atomic_uint, xid) = 43;
        check(is_there && lost_within(300) == -1, "a process that a debugger has is left to it");
        FAKE(int, pending) = 0;
    }
    (void)waitpid(pid, &status, 0);
    ops->device_close(device);
    (void)ends();
}

/* All of the way, to a script. */
static void test_script(void) {
    char path[256], command[1024], output[2048] = "";
    snprintf(path, sizeof path, "%s/script.lua", folder);
    FILE *file = fopen(path, "w");
    if (file != NULL) {
        fputs("local gpu = require 'gpulua'\n"
              "local dev <close> = gpu.device('cuda', { isolate = 'process', restarts = 0 })\n"
              "gpu.sleep(0.5)\n"
              "local x = dev:buffer('i32', 100)\n"
              "print(pcall(function() x:fill(1):await() end))\n",
              file);
        fclose(file);
    }
    setenv("FAKE_CUDA_STOPS", "1", 1);
    setenv("FAKE_NVML_XID", "43", 1);
    snprintf(command, sizeof command, "%s/gpulua %s 2>&1", getenv("GPULUA_BUILD"), path);
    int64_t begun_ms = now_ms();
    FILE *pipe = popen(command, "r");
    size_t bytes = pipe != NULL ? fread(output, 1, sizeof output - 1, pipe) : 0;
    output[bytes] = '\0';
    if (pipe != NULL) {
        (void)pclose(pipe);
    }
    int64_t took_ms = now_ms() - begun_ms;
    unsetenv("FAKE_CUDA_STOPS");
    unsetenv("FAKE_NVML_XID");
    check(strstr(output, "DeviceLost") != NULL && strstr(output, "(Xid 43)") != NULL &&
              took_ms < 15000,
          "a script hears of it while the driver answers nobody");
    printf("# %lld ms: %s\n", (long long)took_ms, output);
}

int main(void) {
    char library[256];
    if (!build() || (nvml = build_fake("fake_nvml", library)) == NULL) {
        tap_skip(&tap, "everything", "no compiler for the fakes");
        return tap_finish(&tap);
    }
    setenv("GPULUA_LIBNVML", library, 1);
    test_rings();
    test_others();
    test_answers();
    test_waits();
    test_ends();
    test_driver_first();
    test_debugged();
    test_without();
    test_not(library);
    if (getenv("GPULUA_BUILD") == NULL) {
        tap_skip(&tap, "a script", "GPULUA_BUILD does not say where gpulua is");
    } else {
        test_script();
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
