/* What backend/cuda/alarm.c rests on: behind each fault, in ms from its launch, when NVML tells of
 * an Xid and the driver of the fault; how long the longest question after an event takes meanwhile;
 * and of words that another thread puts on another stream, how long that takes and whether they
 * come. The same of a context that is well, while kernels fill the GPU and another process traps.
 *
 *   build/bench/alarm */
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define DRIVER(X)                                                                                  \
    X(cuEventQuery, CUresult, (CUevent))                                                           \
    X(cuMemHostAlloc, CUresult, (void **, size_t, unsigned))                                       \
    X(cuStreamWriteValue64_v2, CUresult, (CUstream, CUdeviceptr, cuuint64_t, unsigned))
#include "driver.h"
#include "faults.h"

#define REPEATS 5
#define WORDS 8      /* one behind the other */
#define WORD_MS 12.0 /* apart */
#define BUSY_MS 40.0 /* of each block of a kernel that fills the GPU */
#define BUSY_BLOCKS 4096u
#define EVENT_XID 8u

/* Of one fault, by the processes that have to do with it. */
struct seen {
    double begun_ms, xid_ms, told_ms, longest_ms;
    unsigned long long xid;
    double call_ms[WORDS], word_ms[WORDS]; /* -1: it has not come */
    atomic_int is_over;
};
static struct seen *seen;

static void sleep_until_ms(double ms) {
    while (now_ms() < ms) {
        usleep(100);
    }
}

/* ---- the GPU's own words ---- */

struct nvml_event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static void *listen_main(void *user) {
    int (*init)(void), (*find)(unsigned, void **), (*make_set)(void **);
    int (*listen_to)(void *, unsigned long long, void *);
    int (*wait_for)(void *, struct nvml_event *, unsigned);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device, *set;
    *(void **)&init = library ? dlsym(library, "nvmlInit_v2") : NULL;
    *(void **)&find = library ? dlsym(library, "nvmlDeviceGetHandleByIndex_v2") : NULL;
    *(void **)&make_set = library ? dlsym(library, "nvmlEventSetCreate") : NULL;
    *(void **)&listen_to = library ? dlsym(library, "nvmlDeviceRegisterEvents") : NULL;
    *(void **)&wait_for = library ? dlsym(library, "nvmlEventSetWait_v2") : NULL;
    if (!init || !find || !make_set || !listen_to || !wait_for || init() != 0 ||
        find(0, &device) != 0 || make_set(&set) != 0 || listen_to(device, EVENT_XID, set) != 0) {
        puts("# NVML does not tell of the first GPU");
        return user;
    }
    for (;;) {
        struct nvml_event event = {.type = 0};
        if (wait_for(set, &event, 1000) == 0 && seen->xid_ms < 0) {
            seen->xid = event.data;
            seen->xid_ms = now_ms();
        }
    }
}

/* ---- a process with a context ---- */

struct context {
    CUcontext handle;
    CUstream work, words;
    CUevent probe;
    volatile unsigned long long *word;
    double begun_ms;
};

static void *words_main(void *user) {
    const struct context *context = user;
    CK(p_cuCtxSetCurrent(context->handle));
    for (int i = 0; i < WORDS; i++) {
        sleep_until_ms(context->begun_ms + WORD_MS * (i + 1));
        double asked_ms = now_ms();
        CUresult result = p_cuStreamWriteValue64_v2(
            context->words, (CUdeviceptr)(uintptr_t)context->word, (cuuint64_t)i + 1, 0);
        seen->call_ms[i] = now_ms() - asked_ms;
        seen->word_ms[i] = -1;
        while (result == CUDA_SUCCESS && seen->word_ms[i] < 0 && now_ms() - asked_ms < WORD_MS) {
            seen->word_ms[i] = *context->word == (unsigned)i + 1 ? now_ms() - asked_ms : -1;
        }
    }
    return user;
}

/* In a child: launches `kernel` and looks on. */
static void run(const char *kernel, unsigned blocks, double argument) {
    struct context context;
    CUdevice device;
    CUdeviceptr memory;
    CUmodule module;
    CUfunction function, nothing;
    pthread_t words;
    if (!driver_open()) {
        _exit(1);
    }
    CK(p_cuDeviceGet(&device, 0));
    CK(p_cuDevicePrimaryCtxRetain(&context.handle, device));
    CK(p_cuStreamCreate(&context.work, CU_STREAM_NON_BLOCKING));
    CK(p_cuStreamCreate(&context.words, CU_STREAM_NON_BLOCKING));
    CK(p_cuEventCreate(&context.probe, CU_EVENT_DISABLE_TIMING));
    CK(p_cuMemAlloc_v2(&memory, 4096));
    CK(p_cuMemHostAlloc((void **)&context.word, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CK(p_cuModuleLoadData(&module, faults_ptx));
    CK(p_cuModuleGetFunction(&function, module, kernel));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    *context.word = 0;
    cuuint64_t value = argument > 0 ? (cuuint64_t)(argument * 1e6) : memory;
    void *args[] = {&value};
    CK(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, context.work, args, NULL));
    CK(p_cuStreamSynchronize(context.work));
    context.begun_ms = seen->begun_ms = now_ms();
    CK(p_cuLaunchKernel(function, blocks, 1, 1, blocks > 1 ? 1024 : 1, 1, 1, 0, context.work, args,
                        NULL));
    CK(p_cuEventRecord(context.probe, context.work));
    (void)pthread_create(&words, NULL, words_main, &context);
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY) {
        double asked_ms = now_ms();
        result = p_cuEventQuery(context.probe);
        double took_ms = now_ms() - asked_ms;
        seen->longest_ms = took_ms > seen->longest_ms ? took_ms : seen->longest_ms;
        usleep(100);
    }
    seen->told_ms = now_ms();
    (void)pthread_join(words, NULL);
    seen->is_over = 1;
    pause();
}

static pid_t start(const char *kernel, unsigned blocks, double argument) {
    *seen = (struct seen){.xid_ms = -1};
    pid_t pid = fork();
    if (pid == 0) {
        run(kernel, blocks, argument);
    }
    return pid;
}

static bool end(pid_t pid) {
    double limit_ms = now_ms() + 10000;
    int status = 0;
    while (!seen->is_over && now_ms() < limit_ms && waitpid(pid, &status, WNOHANG) == 0) {
        usleep(1000);
    }
    usleep(20000); /* for an Xid that comes last */
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return seen->is_over;
}

static void show(const char *what) {
    int came = 0;
    double longest_call_ms = 0, longest_word_ms = 0;
    for (int i = 0; i < WORDS; i++) {
        came += seen->word_ms[i] >= 0;
        longest_call_ms = seen->call_ms[i] > longest_call_ms ? seen->call_ms[i] : longest_call_ms;
        longest_word_ms = seen->word_ms[i] > longest_word_ms ? seen->word_ms[i] : longest_word_ms;
    }
    printf("%-6s xid %llu at %.1f, driver at %.1f ms, longest query %.1f ms; of %d words %d came, "
           "at most %.2f ms; longest call %.2f ms\n",
           what, seen->xid, seen->xid_ms < 0 ? -1.0 : seen->xid_ms - seen->begun_ms,
           seen->told_ms - seen->begun_ms, seen->longest_ms, WORDS, came, longest_word_ms,
           longest_call_ms);
    fflush(stdout);
}

int main(void) {
    static const char *const kernels[] = {"wild", "odd", "stop"};
    seen = mmap(NULL, 2 * sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) {
        return 1;
    }
    pid_t listener = fork();
    if (listener == 0) {
        (void)listen_main(NULL);
        pause();
    }
    sleep(1);
    bool works = true;
    for (size_t k = 0; works && k < sizeof kernels / sizeof kernels[0]; k++) {
        for (int r = 0; works && r < REPEATS; r++) {
            works = end(start(kernels[k], 1, 0));
            if (works) {
                show(kernels[k]);
            }
        }
    }
    for (int r = 0; works && r < REPEATS; r++) {
        struct seen *busy = seen;
        pid_t pid = start("busy", BUSY_BLOCKS, BUSY_MS);
        while (busy->begun_ms == 0 && waitpid(pid, NULL, WNOHANG) == 0) {
            usleep(1000);
        }
        seen = busy + 1; /* whose words go elsewhere */
        pid_t other = start("stop", 1, 0);
        usleep(500000);
        kill(other, SIGKILL);
        waitpid(other, NULL, 0);
        seen = busy;
        works = end(pid);
        if (works) {
            show("busy");
        }
    }
    kill(listener, SIGKILL);
    waitpid(listener, NULL, 0);
    return works ? 0 : 1;
}
