/* What the GPU itself says of work that it has stopped, for faults of which the driver tells late.
 *
 * Behind a trap the driver takes about 350 ms to tell of it. The GPU has stopped the work at once,
 * and says so (Xid 43, as the system's log has it) within 10 ms, to whoever listens through NVML;
 * but not whose work it was. So words are asked for then, one after the other, on a stream of its
 * own: a context that is well writes them within a millisecond, however busy kernels keep the GPU,
 * and one whose work was stopped soon writes none any more. And the executor asks the driver, also
 * where nobody waits for work: of a context that is well it hears that at once, of faults that the
 * driver tells of soon it hears which (a failed assertion 10 ms behind it), and behind a trap that
 * call does not come back before the driver tells (all measured: docs/results.md). Only where the
 * word stays away and the driver does not answer either is the device lost. It is left to the
 * driver where NVML says that others have the GPU, too, for whom all of that may have to wait: it
 * is asked now and then while nothing is wrong, as behind a trap it takes 40 to 120 ms to say so.
 *
 * A device whose process is its own alone has a thread for that, which sleeps in NVML. Without
 * NVML, or without its answers, the driver tells when it does. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cuda/device.h"
#include "wire/sync.h"

#define PATIENCE_NS UINT64_C(40000000) /* for a word */
#define ANSWER_NS UINT64_C(15000000)   /* by then a question is answered, or is not */
#define LOOKS_MIN 40u                  /* at it: time alone may pass while nothing runs */
#define GAP_NS UINT64_C(5000000)       /* between two */
#define LAST_NS UINT64_C(200000000)    /* behind an Xid none is asked for any more */
#define NAP_NS UINT64_C(500000)        /* between two looks */
#define BEGIN_NS UINT64_C(30000000)    /* what a script does first is not to wait for NVML */
#define XID_STOPPED 43u
#define PROCESSES_MAX 2u /* on the GPU: this one, and its spare */
#define WAIT_MS 1000u    /* between two looks: does anybody still want to know, who is there */
#define WORD_BYTES 4096u /* a page: what is registered is one */
#define EVENT_XID 8u     /* nvmlEventTypeXidCriticalError */
#define NVML_TIMEOUT 10  /* NVML_ERROR_TIMEOUT */
#define BUS_ID_BYTES 32u

/* ---- NVML, of which no header is wanted for so little ---- */

struct nvml_event {
    void *device;
    unsigned long long type, data; /* of EVENT_XID: its number */
    unsigned gpu_instance, compute_instance;
};

struct nvml_process {
    unsigned pid;
    unsigned long long memory_bytes;
    unsigned gpu_instance, compute_instance;
};

#define NVML(X)                                                                                    \
    X(init, "nvmlInit_v2", (void))                                                                 \
    X(find, "nvmlDeviceGetHandleByPciBusId_v2", (const char *, void **))                           \
    X(make_set, "nvmlEventSetCreate", (void **))                                                   \
    X(listen, "nvmlDeviceRegisterEvents", (void *, unsigned long long, void *))                    \
    X(wait, "nvmlEventSetWait_v2", (void *, struct nvml_event *, unsigned))                        \
    X(list, "nvmlDeviceGetComputeRunningProcesses_v3",                                             \
      (void *, unsigned *, struct nvml_process *))                                                 \
    X(list_graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3",                                   \
      (void *, unsigned *, struct nvml_process *))                                                 \
    X(free_set, "nvmlEventSetFree", (void *))                                                      \
    X(shutdown, "nvmlShutdown", (void))

struct nvml {
#define X(name, symbol, parameters) int(*name) parameters;
    NVML(X)
#undef X
};

static bool nvml_open(struct nvml *nvml) {
    static const char *const names[] = {"libnvidia-ml.so.1", NULL};
    struct backend_error unused = {0};
    void *library = NULL, *found;
    if (gpu_cuda_toolkit_load("NVML", "GPULUA_LIBNVML", names, &library, &unused) != GPULUA_OK) {
        free(unused.log);
        return false;
    }
#define X(name, symbol, parameters)                                                                \
    found = dlsym(library, symbol);                                                                \
    memcpy(&nvml->name, &found, sizeof found);                                                     \
    if (found == NULL) {                                                                           \
        return false;                                                                              \
    }
    NVML(X)
#undef X
    return true;
}

/* ---- whose work it was ---- */

/* Shared with the thread, which may be in NVML when the device ends. */
struct cuda_alarm {
    atomic_uint refs;
    char bus_id[BUS_ID_BYTES];
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;          /* the device has */
    struct backend_device *device; /* borrowed, under the lock; NULL: it has ended */
    bool is_in_nvml;               /* under the lock: the thread, where nothing wakes it */
    CUstream stream;               /* borrowed */
    CUdeviceptr address;           /* of the word */
    _Atomic uint64_t *word;        /* in a page of its own, which is registered */
    uint64_t asked, asked_ns;      /* the thread's: the newest value, and since when */
    atomic_uint answers;           /* of the driver, to the executor: that all is well */
};

static void let_go(struct cuda_alarm *alarm) {
    if (atomic_fetch_sub_explicit(&alarm->refs, 1, memory_order_acq_rel) == 1) {
        (void)munmap((void *)alarm->word, WORD_BYTES);
        pthread_cond_destroy(&alarm->ended);
        pthread_mutex_destroy(&alarm->lock);
        free(alarm);
    }
}

static bool is_wanted(struct cuda_alarm *alarm) {
    return atomic_load_explicit(&alarm->refs, memory_order_acquire) > 1;
}

/* The context is the thread's for good, while all is well: later the driver might not come back
 * from that. False: the device has ended before, or the driver refuses. */
static bool begin(struct cuda_alarm *alarm) {
    uint64_t at_ns = gpu_wire_now_ns() + BEGIN_NS;
    struct timespec at = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
    pthread_mutex_lock(&alarm->lock);
    while (alarm->device != NULL && pthread_cond_timedwait(&alarm->ended, &alarm->lock, &at) == 0) {
    }
    const struct backend_device *device = alarm->device;
    if (device != NULL) {
        (void)gpu_cuda_calls_begin(true); /* for good, as the context */
    }
    bool is_begun = device != NULL && device->cu.cuCtxSetCurrent(device->context) == CUDA_SUCCESS;
    pthread_mutex_unlock(&alarm->lock);
    return is_begun;
}

/* False: the device has ended before. */
static bool enter_nvml(struct cuda_alarm *alarm) {
    pthread_mutex_lock(&alarm->lock);
    alarm->is_in_nvml = alarm->device != NULL;
    bool is_in_nvml = alarm->is_in_nvml;
    pthread_mutex_unlock(&alarm->lock);
    return is_in_nvml;
}

static void leave_nvml(struct cuda_alarm *alarm) {
    pthread_mutex_lock(&alarm->lock);
    alarm->is_in_nvml = false;
    pthread_mutex_unlock(&alarm->lock);
}

/* False: the device has ended, or the driver has told. */
static bool ask_for_word(struct cuda_alarm *alarm) {
    pthread_mutex_lock(&alarm->lock);
    const struct backend_device *device = alarm->device;
    bool is_asked = device != NULL &&
                    device->cu.cuStreamWriteValue64(alarm->stream, alarm->address, ++alarm->asked,
                                                    CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
    pthread_mutex_unlock(&alarm->lock);
    alarm->asked_ns = gpu_wire_now_ns(); /* the call may have taken its time */
    return is_asked;
}

/* Or the driver answers. */
static bool word_comes(struct cuda_alarm *alarm) {
    unsigned answers = 0, looks = 0;
    bool is_late = false;
    for (;;) {
        uint64_t past_ns = gpu_wire_now_ns() - alarm->asked_ns; /* before the look */
        unsigned answered = atomic_load_explicit(&alarm->answers, memory_order_acquire);
        if (atomic_load_explicit(alarm->word, memory_order_acquire) == alarm->asked) {
            return true;
        }
        if (past_ns >= ANSWER_NS && !is_late) {
            is_late = true;
            answers = answered;
        }
        if (++looks >= LOOKS_MIN && past_ns >= PATIENCE_NS) {
            return answered != answers;
        }
        gpu_wire_nap_ns(NAP_NS);
    }
}

/* As far as NVML knows: in a container it may not. The rows have room for those of drivers that
 * write larger ones (535). */
static bool is_alone(const struct nvml *nvml, void *device) {
    struct nvml_process processes[2 * PROCESSES_MAX];
    unsigned count = PROCESSES_MAX, graphics_count = 0;
    return nvml->list(device, &count, processes) == 0 && /* else there are more */
           nvml->list_graphics(device, &graphics_count, NULL) == 0;
}

static void let_executor_ask(struct cuda_alarm *alarm, bool asks) {
    pthread_mutex_lock(&alarm->lock);
    if (alarm->device != NULL) {
        const struct backend_sink *sink = &alarm->device->sink;
        sink->alarmed(sink->user, asks);
    }
    pthread_mutex_unlock(&alarm->lock);
}

/* Something of somebody's has been stopped. */
static bool is_ours(struct cuda_alarm *alarm, const struct nvml *nvml, void *device,
                    bool was_alone) {
    uint64_t heard_ns = gpu_wire_now_ns();
    bool is_ours = false, may_be = ask_for_word(alarm);
    let_executor_ask(alarm, true);
    may_be = may_be && (was_alone || is_alone(nvml, device)); /* others may have gone */
    while (may_be && is_wanted(alarm) && gpu_wire_now_ns() - heard_ns < LAST_NS) {
        is_ours = !word_comes(alarm);
        if (!is_ours) {
            gpu_wire_nap_ns(GAP_NS);
        }
        may_be = !is_ours && ask_for_word(alarm);
    }
    let_executor_ask(alarm, false);
    return is_ours;
}

static void tell(struct cuda_alarm *alarm, unsigned long long xid) {
    char text[256];
    snprintf(text, sizeof text,
             "CUDA_ERROR_LAUNCH_FAILED (%d, unspecified launch failure): the GPU says that it has "
             "stopped work (Xid %llu), and does no more of this process's; the driver had not told "
             "of it %u ms later",
             CUDA_ERROR_LAUNCH_FAILED, xid, (unsigned)(PATIENCE_NS / 1000000u));
    pthread_mutex_lock(&alarm->lock);
    if (alarm->device != NULL) {
        const struct backend_sink *sink = &alarm->device->sink;
        sink->lost(sink->user, CUDA_ERROR_LAUNCH_FAILED, text);
    }
    pthread_mutex_unlock(&alarm->lock);
}

/* A debugger holds work up, too. */
static bool is_debugged(void) {
    char line[128];
    int tracer = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && tracer == 0 && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "TracerPid: %d", &tracer);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return tracer != 0;
}

/* ---- listening ---- */

static void listen_to(struct cuda_alarm *alarm, const struct nvml *nvml) {
    void *device, *set = NULL;
    if (nvml->find(alarm->bus_id, &device) != 0 || nvml->make_set(&set) != 0) {
        return;
    }
    bool is_told = nvml->listen(device, EVENT_XID, set) != 0; /* nothing else is to come */
    bool was_alone = !is_told && is_alone(nvml, device);      /* when all was well */
    while (!is_told && is_wanted(alarm)) {
        struct nvml_event event = {.type = 0};
        int result = nvml->wait(set, &event, WAIT_MS);
        is_told = result != 0 && result != NVML_TIMEOUT; /* the GPU is gone, or NVML gives up */
        was_alone = result == NVML_TIMEOUT ? is_alone(nvml, device) : was_alone;
        if (result == 0 && (event.type & EVENT_XID) != 0 && event.data == XID_STOPPED &&
            !is_debugged() && is_ours(alarm, nvml, device, was_alone)) {
            tell(alarm, event.data);
            is_told = true;
        }
    }
    (void)nvml->free_set(set);
}

static void *alarm_main(void *user) {
    struct cuda_alarm *alarm = user;
    struct nvml nvml;
    if (begin(alarm) && nvml_open(&nvml) && enter_nvml(alarm)) {
        if (nvml.init() == 0) {
            listen_to(alarm, &nvml);
            (void)nvml.shutdown();
        }
        leave_nvml(alarm);
    }
    let_go(alarm);
    return NULL;
}

/* 0000:65:00.0 */
static bool find_bus_id(const struct backend_device *device, char bus_id[BUS_ID_BYTES]) {
    static const CUdevice_attribute attributes[] = {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
                                                    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
                                                    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID};
    int numbers[3];
    for (int i = 0; i < 3; i++) {
        if (device->cu.cuDeviceGetAttribute(&numbers[i], attributes[i], device->handle) !=
            CUDA_SUCCESS) {
            return false;
        }
    }
    snprintf(bus_id, BUS_ID_BYTES, "%08x:%02x:%02x.0", (unsigned)numbers[0], (unsigned)numbers[1],
             (unsigned)numbers[2]);
    return true;
}

/* The stream and the range are the device's, and end with it. */
static bool prepare(struct backend_device *device, struct cuda_alarm *alarm) {
    struct backend_error unused;
    struct backend_stream *stream = NULL;
    gpu_backend_error_init(&unused);
    void *page = (void *)alarm->word;
    bool is_ready = device->has_words && find_bus_id(device, alarm->bus_id) &&
                    gpu_cuda_host_register(device, page, WORD_BYTES, &unused) == GPULUA_OK &&
                    gpu_cuda_stream_create(device, 0, device->facts.priority_highest, &stream,
                                           &unused) == GPULUA_OK;
    free(unused.log);
    if (is_ready) {
        alarm->device = device;
        alarm->stream = stream->handle;
        alarm->address = gpu_cuda_host_address(device, page);
    }
    return is_ready;
}

/* The driver has its own plans with a process whose kernel has faulted. */
static bool is_kept_for_debugging(void) {
    static const char *const names[] = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
                                        "CUDA_DEVICE_WAITS_ON_EXCEPTION"};
    bool is_kept = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        is_kept = is_kept || (value != NULL && value[0] != '\0' && strcmp(value, "0") != 0);
    }
    return is_kept;
}

void gpu_cuda_alarm_open(struct backend_device *device) {
    if (is_kept_for_debugging()) {
        return;
    }
    struct cuda_alarm *alarm = calloc(1, sizeof *alarm);
    void *page = alarm == NULL ? MAP_FAILED
                               : mmap(NULL, WORD_BYTES, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        free(alarm);
        return;
    }
    alarm->word = page;
    pthread_mutex_init(&alarm->lock, NULL);
    pthread_condattr_t by_clock;
    pthread_condattr_init(&by_clock);
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&alarm->ended, &by_clock);
    pthread_condattr_destroy(&by_clock);
    atomic_store_explicit(&alarm->refs, 2, memory_order_relaxed);
    device->alarm = alarm;
    alarm->has_thread =
        prepare(device, alarm) && gpu_wire_thread_start(&alarm->thread, alarm_main, alarm) == 0;
    if (!alarm->has_thread) {
        let_go(alarm); /* the thread's */
    }
}

void gpu_cuda_alarm_answered(struct backend_device *device) {
    if (device->alarm != NULL) {
        atomic_fetch_add_explicit(&device->alarm->answers, 1, memory_order_release);
    }
}

void gpu_cuda_alarm_stop(struct backend_device *device) {
    if (device->alarm != NULL) {
        pthread_mutex_lock(&device->alarm->lock);
        device->alarm->device = NULL;
        pthread_cond_signal(&device->alarm->ended);
        pthread_mutex_unlock(&device->alarm->lock);
    }
}

/* A process that ends behind its device is not to meet the thread within the loader. */
void gpu_cuda_alarm_close(struct backend_device *device) {
    struct cuda_alarm *alarm = device->alarm;
    if (alarm == NULL) {
        return;
    }
    gpu_cuda_alarm_stop(device);
    pthread_mutex_lock(&alarm->lock);
    bool is_in_nvml = alarm->is_in_nvml;
    pthread_mutex_unlock(&alarm->lock);
    if (alarm->has_thread && is_in_nvml) {
        (void)pthread_detach(alarm->thread);
    } else if (alarm->has_thread) {
        (void)pthread_join(alarm->thread, NULL);
    }
    device->alarm = NULL;
    let_go(alarm);
}
