/* A driver without a GPU, for cuda_test.c: libcuda's entry points over host memory, all work done
 * at once. It counts what lives, refuses what a driver refuses, and fails on demand. Built by the
 * test as a shared library; the symbols are those of the ABI versions that the backend asks for. */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef int result;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };

/* What the test sets and reads. */
API char fake_fail_name[64]; /* the call that fails ... */
API int fake_fail_code;      /* ... with this code; fatal ones then answer every call */
API int fake_fail_skip;      /* ... after so many that do not */
API int fake_fail_more;      /* and so many more of that name behind it */
API int fake_sticky;
API int fake_calls_after_loss;
API long fake_live; /* slabs, streams, events, modules, registrations, contexts */
API int fake_devices = 1;
API int fake_version = 13000;
API int fake_attribute_off;    /* an attribute that answers 0 */
API volatile int fake_pending; /* events and streams are not ready, and write no words */
API int fake_halts;            /* 1: what is begun from now on never ends; 2: but for one; ... */
API int fake_stops;            /* fills do, and who asks after events waits for a long time */
API volatile int fake_words;   /* written by streams */
API volatile int fake_runs;    /* of kernels */
API int fake_default_waits;    /* for the default stream */
API volatile int fake_queries; /* of events */
API int fake_records;          /* of events */
API volatile int
    fake_hidden_code; /* not 0: a fault that only who asks after the newest event is told of */
API volatile int fake_sleeps;     /* threads that wait for events */
API volatile int fake_sleep_code; /* not 0: what they are woken with */
API int fake_sleep_misuses;       /* while one waits for it, an event is recorded or destroyed */
API int fake_event_flags;         /* of the newest event */
API char fake_last_launch[64];
API unsigned fake_grid[3], fake_block[3], fake_shared;
API unsigned char fake_args[4096];
API size_t fake_args_bytes;
API int fake_priority;
API unsigned fake_register_flags;
API int fake_opted_in;
API int fake_handle_type;
API volatile int fake_load_waits; /* code is not loaded until then: something runs */
API int fake_loaded;              /* kernels, before anybody asks for them */
API size_t fake_memory_bytes = (size_t)1 << 34;
API volatile int fake_memory_us;   /* so long it takes to be had */
API uint64_t fake_pool_kept_bytes; /* its release threshold */
API int fake_pool_trims;
API int fake_context_waits;
/* Printed where a driver prints: when something is waited for that a kernel's assertion has ended.
 */
API const char *fake_assertions;
API const char *fake_says; /* into the log, in front of the call that fails on demand */
API int fake_has_dumps = 1;
API int fake_dump_flags;
API char fake_dump_path[1024];               /* "": no core dump has been asked for */
API void *fake_recorded_on, *fake_waited_on; /* streams, of the newest event record and wait */
API void *fake_recorded, *fake_waited_for;   /* their events */

/* Modules are kept here, so that what a lost device leaves behind is no leak of the test's. */
struct module;
static struct module *modules[256];
static void contexts_forget(void);
static bool contexts_are_retained(void);
static result check_current(void);

/* ---- the log: what comes behind 64 KiB is dropped ---- */

static char log_text[65536];
static void log_add(const char *message, const char *name, int code) {
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used,
             "[12:00:00.123][%d][CUDA][E] %s\n[12:00:00.124][%d][CUDA][E] Returning %d (NAME) from "
             "%s\n",
             (int)gettid(), message, (int)gettid(), code, name);
}
API result cuLogsCurrent(unsigned *at, unsigned flags) {
    return *at = (unsigned)strlen(log_text), flags == 0 ? OK : INVALID;
}
API result cuLogsDumpToMemory(unsigned *at, char *buffer, size_t *bytes, unsigned flags) {
    size_t left = strlen(log_text) - *at;
    if (flags != 0 || *bytes <= left) {
        return *bytes = 0, INVALID;
    }
    memset(buffer + *bytes, 0, 17); /* what driver 580.159 does at times, beside other threads */
    memcpy(buffer, log_text + *at, left + 1);
    *at += (unsigned)left;
    return *bytes = left, OK;
}

/* ---- core dumps ---- */

static bool dump_is_enabled;
API result cuCoredumpSetAttributeGlobal(int attribute, void *value, size_t *bytes) {
    if (!fake_has_dumps || contexts_are_retained()) {
        return 800; /* not permitted */
    }
    if (attribute == 5 && *bytes <= sizeof fake_dump_path) {
        memcpy(fake_dump_path, value, *bytes);
        return OK;
    }
    if (attribute == 7 && *bytes == sizeof(int)) {
        return memcpy(&fake_dump_flags, value, sizeof(int)), OK;
    }
    if (attribute == 1 && *bytes == 1) {
        return dump_is_enabled = *(const bool *)value, OK;
    }
    return INVALID;
}
static bool ends_late; /* after a dump work goes on for a moment, as if nothing had happened */
static bool
    dumps_late; /* also before it, until an end has been told: what is begun then has none */
static bool is_failing, is_halted;
static const void *endless[4096]; /* events */
static size_t endless_count;
static bool is_endless(const void *event) {
    size_t i = 0;
    while (i < endless_count && endless[i] != event) {
        i++;
    }
    return i < endless_count;
}
static void dump_write(void) {
    FILE *file = fopen(fake_dump_path, "w");
    if (file != NULL) {
        fputs("a dump", file);
        fclose(file);
    }
}
static void *end_soon(void *unused) {
    usleep(300000);
    if (dumps_late) {
        dump_write();
    }
    abort();
    return unused;
}
/* Then the process ends, as the driver has it; true: soon. */
static bool dump_begin(void) {
    pthread_t ending;
    if (!dump_is_enabled) {
        return false;
    }
    if (!dumps_late) {
        dump_write();
    }
    if ((!ends_late && !dumps_late) || pthread_create(&ending, NULL, end_soon, NULL) != 0) {
        abort();
    }
    return is_failing = true;
}

static result answer(const char *name) {
    if (fake_sticky != 0) {
        contexts_forget();
        fake_calls_after_loss++;
        return fake_sticky;
    }
    if (fake_fail_code != 0 && strcmp(name, fake_fail_name) == 0 && fake_fail_skip-- <= 0) {
        int code = fake_fail_code;
        fake_fail_code = fake_fail_more-- > 0 ? code : 0;
        fake_sticky = code >= 700 && code < 720 ? code : 0;
        if (fake_says != NULL) {
            log_add(fake_says, name, code);
        }
        if (fake_sticky != 0 && dump_begin()) {
            return fake_sticky = OK;
        }
        if (fake_sticky != 0) {
            contexts_forget();
        }
        return code;
    }
    return OK;
}

#define BEGIN                                                                                      \
    do {                                                                                           \
        result answered = answer(__func__);                                                        \
        if (answered != OK) {                                                                      \
            return answered;                                                                       \
        }                                                                                          \
    } while (0)
#define BEGIN_CURRENT                                                                              \
    do {                                                                                           \
        BEGIN;                                                                                     \
        result checked = check_current();                                                          \
        if (checked != OK) {                                                                       \
            return checked;                                                                        \
        }                                                                                          \
    } while (0)

/* Of a stream or an event. */
#define BEGIN_WITH(handle)                                                                         \
    do {                                                                                           \
        BEGIN_CURRENT;                                                                             \
        result found = check_handle(handle);                                                       \
        if (found != OK) {                                                                         \
            return found;                                                                          \
        }                                                                                          \
    } while (0)

#include "fake_context.h"

/* Virtual memory: copies to and from it are not made into others. */
static struct region {
    uint64_t address;
    size_t bytes;
} regions[256];
static void region_note(uint64_t address, size_t bytes) {
    struct region *at = regions;
    while (at < regions + 255 && (bytes == 0 ? at->address != address : at->bytes > 0)) {
        at++;
    }
    *at = (struct region){address, bytes};
}
static int is_virtual(uint64_t address) {
    for (const struct region *at = regions; at < regions + 256; at++) {
        if (address - at->address < at->bytes) {
            return 1;
        }
    }
    return 0;
}

#include "fake_graph.h"

#include "fake_capture.h"

/* For a driver in another process: "CALL CODE SKIP", and what it prints then. */
static void read_environment(void) {
    const char *failing = getenv("FAKE_CUDA_FAILS");
    if (failing != NULL) {
        (void)sscanf(failing, "%63s %d %d", fake_fail_name, &fake_fail_code, &fake_fail_skip);
    }
    fake_assertions = getenv("FAKE_CUDA_ASSERTIONS");
    fake_says = getenv("FAKE_CUDA_SAYS");
    fake_stops = getenv("FAKE_CUDA_STOPS") != NULL;
    ends_late = getenv("FAKE_CUDA_ENDS_LATE") != NULL;
    dumps_late = getenv("FAKE_CUDA_DUMPS_LATE") != NULL;
}

API result cuInit(unsigned flags) {
    BEGIN;
    if (fake_fail_code == 0) {
        read_environment();
    }
    return flags == 0 ? (fake_devices > 0 ? OK : 100) : INVALID;
}
API result cuDriverGetVersion(int *version) {
    return *version = fake_version, OK;
}
API result cuGetErrorName(result code, const char **name) {
    *name = code == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : code == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == 100 ? "CUDA_ERROR_NO_DEVICE"
                          : "CUDA_ERROR_OTHER";
    return code == 12345 ? INVALID : OK;
}
API result cuGetErrorString(result code, const char **text) {
    *text = "text of the driver";
    return code == 12345 ? INVALID : OK;
}
API result cuDeviceGetCount(int *count) {
    BEGIN;
    return *count = fake_devices, OK;
}
API result cuDeviceGet(int *device, int ordinal) {
    BEGIN;
    return *device = ordinal, OK;
}
API result cuDeviceGetName(char *name, int bytes, int device) {
    BEGIN;
    return snprintf(name, (size_t)bytes, "Fake GPU %d", device), OK;
}
API result cuDeviceTotalMem_v2(size_t *bytes, int device) {
    BEGIN;
    return *bytes = fake_memory_bytes, device >= 0 ? OK : INVALID;
}
API result cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN;
    *value = attribute == 75    ? 9
             : attribute == 76  ? 0
             : attribute == 8   ? 49152
             : attribute == 97  ? 232448
             : attribute == 16  ? 132
             : attribute == 33  ? 0x21 /* PCI: bus, device, domain */
             : attribute == 34  ? 0x32
             : attribute == 50  ? 0x43
             : attribute == 10  ? 32
             : attribute < 12   ? 1024
             : attribute == 39  ? 2048
             : attribute == 81  ? 233472
             : attribute == 82  ? 65536
             : attribute == 106 ? 32
             : attribute == 111 ? 1024
             : attribute == 102 ? 1
                                : 1;
    *value = attribute == fake_attribute_off ? 0 : *value;
    return device >= 0 ? OK : INVALID;
}
API result cuCtxSynchronize(void) {
    if (fake_sticky != 0 && fake_assertions != NULL) {
        fprintf(stderr, "%s", fake_assertions);
        fake_assertions = NULL;
    }
    BEGIN_CURRENT;
    fake_context_waits++;
    return capture_invalidate(NULL) ? CAPTURE_UNSUPPORTED : OK;
}
API result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    BEGIN_CURRENT;
    return *least = 0, *greatest = -5, OK;
}
API result cuMemGetInfo_v2(size_t *left, size_t *total) {
    BEGIN_CURRENT;
    return *left = fake_memory_bytes / 2, *total = fake_memory_bytes, OK;
}
API result cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    BEGIN_UNSAFE;
    void *memory = bytes > fake_memory_bytes ? NULL : aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (memory == NULL) {
        return NO_MEMORY;
    }
    fake_live++;
    return *address = (uint64_t)(uintptr_t)memory, OK;
}
API result cuMemFree_v2(uint64_t address) {
    BEGIN_UNSAFE;
    fake_live--;
    free((void *)(uintptr_t)address);
    return OK;
}

/* ---- virtual memory: reserved, then made readable by mapping and access ---- */

#define GRANULARITY ((size_t)2 << 20)
API result cuMemGetAllocationGranularity(size_t *bytes, const void *wanted, int option) {
    BEGIN_CURRENT;
    return *bytes = GRANULARITY, wanted != NULL && option == 1 ? OK : INVALID;
}
API result cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t where,
                               unsigned long long flags) {
    BEGIN_CURRENT;
    if (bytes % GRANULARITY != 0 || alignment != 0 || where != 0 || flags != 0) {
        return INVALID;
    }
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return NO_MEMORY;
    }
    fake_live++;
    region_note((uint64_t)(uintptr_t)memory, bytes);
    return *address = (uint64_t)(uintptr_t)memory, OK;
}
API result cuMemAddressFree(uint64_t address, size_t bytes) {
    BEGIN_CURRENT;
    fake_live--;
    region_note(address, 0);
    return munmap((void *)(uintptr_t)address, bytes) == 0 ? OK : INVALID;
}
struct properties {
    int type, handle_type;
};
API result cuMemCreate(unsigned long long *handle, size_t bytes, const struct properties *wanted,
                       unsigned long long flags) {
    BEGIN_UNSAFE;
    usleep((unsigned)fake_memory_us);
    fake_handle_type = wanted->handle_type;
    if (bytes > fake_memory_bytes) {
        return NO_MEMORY;
    }
    fake_live++;
    return *handle = 7, wanted->type == 1 && flags == 0 ? OK : INVALID;
}
API result cuMemRelease(unsigned long long handle) {
    BEGIN_CURRENT;
    fake_live--;
    return handle == 7 ? OK : INVALID;
}
API result cuMemMap(uint64_t address, size_t bytes, size_t offset, unsigned long long handle,
                    unsigned long long flags) {
    BEGIN_CURRENT;
    fake_live++;
    return address != 0 && bytes > 0 && offset == 0 && handle == 7 && flags == 0 ? OK : INVALID;
}
API result cuMemUnmap(uint64_t address, size_t bytes) {
    BEGIN_CURRENT;
    fake_live--;
    return mprotect((void *)(uintptr_t)address, bytes, PROT_NONE) == 0 ? OK : INVALID;
}
API result cuMemSetAccess(uint64_t address, size_t bytes, const int *access, size_t count) {
    BEGIN_CURRENT;
    if (count != 1 || access[2] != 3) { /* location, then PROT_READWRITE */
        return INVALID;
    }
    return mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE) == 0 ? OK : INVALID;
}

/* ---- pools: in the order of streams, never the legacy one ---- */

#define POOL ((void *)(uintptr_t)0x9001)
API result cuMemPoolCreate(void **pool, const int *props) {
    BEGIN_CURRENT;
    if (props[0] != 1 || props[2] != 1) { /* pinned, on a device */
        return INVALID;
    }
    fake_live++;
    return *pool = POOL, OK;
}
API result cuMemPoolDestroy(void *pool) {
    BEGIN_CURRENT;
    fake_live--;
    return pool == POOL ? OK : INVALID;
}
API result cuMemPoolSetAttribute(void *pool, int attribute, const uint64_t *value) {
    BEGIN_UNSAFE;
    fake_pool_kept_bytes = *value;
    return pool == POOL && attribute == 4 ? OK : INVALID;
}
API result cuMemPoolTrimTo(void *pool, size_t bytes) {
    BEGIN_UNSAFE;
    fake_pool_trims++;
    return pool == POOL && bytes == 0 ? OK : INVALID;
}
API result cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, void *pool, void *stream) {
    BEGIN_CURRENT;
    if (pool != POOL || stream == NULL) {
        return INVALID;
    }
    void *memory = bytes > fake_memory_bytes ? NULL : aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (memory == NULL) {
        return NO_MEMORY;
    }
    fake_live++;
    if (capture_of(stream) != NULL) {
        struct node node = {.kind = EMPTY};
        (void)capture_add(capture_of(stream), &node);
    }
    return *address = (uint64_t)(uintptr_t)memory, OK;
}
API result cuMemFreeAsync(uint64_t address, void *stream) {
    BEGIN_CURRENT;
    if (stream == NULL) {
        return INVALID;
    }
    fake_live--;
    free((void *)(uintptr_t)address);
    return OK;
}

/* ---- host memory: the device sees it elsewhere ---- */

#define DEVICE_SIDE ((uint64_t)1 << 52)
API result cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags) {
    BEGIN_UNSAFE;
    fake_register_flags = flags;
    fake_live++;
    return base != NULL && bytes > 0 ? OK : INVALID;
}
API result cuMemHostUnregister(void *base) {
    BEGIN_UNSAFE;
    fake_live--;
    return base != NULL ? OK : INVALID;
}
API result cuMemHostGetDevicePointer_v2(uint64_t *address, void *base, unsigned flags) {
    BEGIN_CURRENT;
    return *address = (uint64_t)(uintptr_t)base + DEVICE_SIDE, flags == 0 ? OK : INVALID;
}

/* ---- streams and events ---- */

API result cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    BEGIN_CURRENT;
    fake_priority = priority;
    fake_live++;
    return *stream = handle_make(), flags == 1 ? OK : INVALID;
}
API result cuStreamDestroy_v2(void *stream) {
    BEGIN_WITH(stream);
    fake_live--;
    struct capture *capture = capture_of(stream);
    if (capture != NULL && capture->stream == stream) {
        capture_over(capture, false);
    }
    return stream != NULL ? OK : INVALID;
}
API result cuStreamQuery(void *stream) {
    BEGIN_WITH(stream);
    BEGIN_UNSAFE;
    if (stream != NULL && capture_invalidate(stream)) {
        return CAPTURE_UNSUPPORTED;
    }
    return stream == NULL ? INVALID : fake_pending ? NOT_READY : OK;
}
API result cuStreamSynchronize(void *stream) {
    BEGIN_WITH(stream);
    BEGIN_UNSAFE;
    if (stream == (void *)1) {
        fake_default_waits++;
        return OK;
    }
    if (stream != NULL && capture_invalidate(stream)) {
        return CAPTURE_UNSUPPORTED;
    }
    return stream == NULL || fake_pending ? INVALID : OK; /* would block */
}
API result cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    BEGIN_WITH(stream);
    fake_waited_on = stream;
    fake_waited_for = event;
    return stream != NULL && event != NULL && flags == 0 ? stream_wait(stream, event) : INVALID;
}
API result cuStreamWriteValue64_v2(void *stream, uint64_t address, uint64_t value, unsigned flags) {
    BEGIN_WITH(stream);
    if (stream == NULL || address < DEVICE_SIDE || flags != 0) {
        return INVALID;
    }
    if (capture_of(stream) != NULL) {
        struct node node = {.kind = EMPTY};
        return capture_add(capture_of(stream), &node);
    }
    fake_words++;
    static uint64_t owed[64][2]; /* address, value: of what was pending */
    size_t count = 0;
    for (; count < 64 && owed[count][0] != 0 && owed[count][0] != address; count++) {}
    if (count < 64) {
        owed[count][0] = address;
        owed[count][1] = value;
    }
    for (size_t i = 0; i < 64 && owed[i][0] != 0 && !fake_pending; i++) {
        *(volatile uint64_t *)(uintptr_t)(owed[i][0] - DEVICE_SIDE) = owed[i][1];
        owed[i][0] = 0;
    }
    return OK;
}
API result cuEventCreate(void **event, unsigned flags) {
    BEGIN_CURRENT;
    fake_live++;
    fake_event_flags = (int)flags;
    return *event = handle_make(), flags <= 3 ? OK : INVALID;
}
/* Those that threads wait for. */
static void *volatile slept_for[64];
static void look_for_sleepers(const void *event) {
    for (size_t i = 0; i < sizeof slept_for / sizeof slept_for[0]; i++) {
        fake_sleep_misuses += slept_for[i] == event;
    }
}
API result cuEventDestroy_v2(void *event) {
    BEGIN_WITH(event);
    look_for_sleepers(event);
    fake_live--;
    return event != NULL ? OK : INVALID;
}
API result cuEventRecord(void *event, void *stream) {
    BEGIN_WITH(stream);
    look_for_sleepers(event);
    fake_records++;
    fake_recorded_on = stream;
    fake_recorded = event;
    bool halts = fake_halts == 1;
    fake_halts -= fake_halts > 1 && !is_halted;
    if ((is_halted || halts) && endless_count < sizeof endless / sizeof endless[0]) {
        endless[endless_count++] = event;
    }
    return event != NULL && stream != NULL ? event_record(event, stream) : INVALID;
}
API result cuEventQuery(void *event) {
    BEGIN_WITH(event);
    fake_queries++;
    if (fake_stops && fake_pending) {
        sleep(20);
    }
    if (fake_hidden_code != 0 && event == fake_recorded) {
        return fake_sticky = fake_hidden_code;
    }
    result queried = event == NULL ? INVALID : event_query(event);
    bool is_pending = fake_pending || is_endless(event);
    is_halted = is_failing && dumps_late && queried == OK && !is_pending ? true : is_halted;
    return queried != OK ? queried : is_pending ? NOT_READY : OK;
}
/* A millisecond for each event that was made between the two. */
API result cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    BEGIN_CURRENT;
    *milliseconds = (float)(((intptr_t)to >> 4) - ((intptr_t)from >> 4));
    return from != NULL && to != NULL ? OK : INVALID;
}
/* Like the driver's, it holds up nobody else, and is refused while another context is current. */
API result cuEventSynchronize(void *event) {
    if (check_current() != OK || check_handle(event) != OK) {
        return NO_CONTEXT;
    }
    result queried = event == NULL ? INVALID : is_forbidden() ? CAPTURE_UNSUPPORTED : OK;
    slept_for[__atomic_fetch_add(&fake_sleeps, 1, __ATOMIC_RELAXED)] = event;
    while (queried == OK && fake_pending != 0 && fake_sleep_code == 0) {
        usleep(100);
    }
    slept_for[__atomic_sub_fetch(&fake_sleeps, 1, __ATOMIC_RELAXED)] = NULL;
    return fake_sleep_code != 0 ? fake_sleep_code : queried;
}

/* ---- copies and fills ---- */

static result move(uint64_t dst, uint64_t src, size_t bytes) {
    memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
    return OK;
}
static result copy(uint64_t dst, uint64_t src, size_t bytes, void *stream) {
    struct node node = {.kind = COPY, .dst = dst, .src = src, .bytes = bytes};
    struct capture *capture = capture_of(stream);
    return capture != NULL ? capture_add(capture, &node) : move(dst, src, bytes);
}
API result cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t bytes, void *stream) {
    BEGIN_WORK(stream);
    return copy(dst, src, bytes, stream);
}
API result cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t bytes, void *stream) {
    BEGIN_WORK(stream);
    return copy(dst, (uint64_t)(uintptr_t)src, bytes, stream);
}
API result cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t bytes, void *stream) {
    BEGIN_WORK(stream);
    return copy((uint64_t)(uintptr_t)dst, src, bytes, stream);
}
static result set(uint64_t dst, const void *element, size_t elem_bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        memcpy((char *)(uintptr_t)dst + i * elem_bytes, element, elem_bytes);
    }
    return OK;
}
static result fill_with(uint64_t dst, const void *element, size_t elem_bytes, size_t count,
                        void *stream) {
    struct node node = {
        .kind = SET, .dst = dst, .bytes = elem_bytes * count, .elem_bytes = elem_bytes};
    struct capture *capture = capture_of(stream);
    if (dst % elem_bytes != 0) {
        return INVALID;
    }
    memcpy(&node.element, element, elem_bytes);
    return capture != NULL ? capture_add(capture, &node) : set(dst, element, elem_bytes, count);
}
API result cuMemsetD8Async(uint64_t dst, unsigned char value, size_t count, void *stream) {
    BEGIN_WORK(stream);
    return fill_with(dst, &value, 1, count, stream);
}
API result cuMemsetD16Async(uint64_t dst, unsigned short value, size_t count, void *stream) {
    BEGIN_WORK(stream);
    return fill_with(dst, &value, 2, count, stream);
}
API result cuMemsetD32Async(uint64_t dst, unsigned value, size_t count, void *stream) {
    fake_pending |= fake_stops;
    BEGIN_WORK(stream);
    return fill_with(dst, &value, 4, count, stream);
}

/* ---- modules: code is kept, a symbol is there when its name is in it ---- */

struct module {
    char *code;
    size_t bytes;
    char names[16][64]; /* functions handed out */
    int count;
};

API result cuModuleLoadDataEx(struct module **module, const void *code, unsigned count,
                              const int *names, void **values) {
    BEGIN_UNSAFE;
    while (fake_load_waits) {
        usleep(1000);
    }
    size_t bytes = strlen(code);
    uint64_t sections;
    if (memcmp(code, "\177ELF", 4) == 0) { /* up to its last table */
        uint16_t entries;
        memcpy(&sections, (const char *)code + 40, sizeof sections);
        memcpy(&entries, (const char *)code + 60, sizeof entries);
        bytes = (size_t)sections + entries * 64u;
    } else if (strstr(code, "bad instruction") != NULL) {
        if (count > 0 && names[0] == 5) { /* CU_JIT_ERROR_LOG_BUFFER */
            strcpy(values[0], "ptxas application ptx input, line 3; fatal   : Parsing error");
        }
        return 218;
    }
    size_t slot = 0;
    while (modules[slot] != NULL) {
        slot++;
    }
    struct module *made = modules[slot] = calloc(1, sizeof *made);
    made->code = malloc(bytes + 1);
    memcpy(made->code, code, bytes);
    made->bytes = bytes;
    fake_live++;
    return *module = made, OK;
}
API result cuModuleUnload(struct module *module) {
    BEGIN_UNSAFE;
    fake_live--;
    for (size_t slot = 0; slot < sizeof modules / sizeof modules[0]; slot++) {
        modules[slot] = modules[slot] == module ? NULL : modules[slot];
    }
    free(module->code);
    free(module);
    return OK;
}
API result cuModuleGetFunction(char **function, struct module *module, const char *name) {
    BEGIN_CURRENT;
    if (memmem(module->code, module->bytes, name, strlen(name)) == NULL || module->count == 16) {
        return NOT_FOUND;
    }
    snprintf(module->names[module->count], sizeof module->names[0], "%s", name);
    return *function = module->names[module->count++], OK;
}
API result cuModuleGetGlobal_v2(uint64_t *address, size_t *bytes, struct module *module,
                                const char *name) {
    BEGIN_CURRENT;
    const char *found = memmem(module->code, module->bytes, name, strlen(name));
    return *address = (uint64_t)(uintptr_t)found, *bytes = 8, found != NULL ? OK : NOT_FOUND;
}
API result cuFuncGetAttribute(int *value, int attribute, void *function) {
    BEGIN_CURRENT;
    *value = attribute == 0 ? 1024 : attribute == 1 ? 1000 : 40;
    return function != NULL ? OK : INVALID;
}
API result cuFuncSetAttribute(void *function, int attribute, int value) {
    BEGIN_CURRENT;
    return function != NULL && attribute == 8 ? (fake_opted_in = value, OK) : INVALID;
}
API result cuModuleGetFunctionCount(unsigned *count, struct module *module) {
    BEGIN_CURRENT;
    return *count = 2, module != NULL ? OK : INVALID;
}
API result cuModuleEnumerateFunctions(char **functions, unsigned count, struct module *module) {
    BEGIN_CURRENT;
    for (unsigned i = 0; i < count; i++) {
        functions[i] = module->names[i];
    }
    return OK;
}
API result cuFuncLoad(void *function) {
    BEGIN_UNSAFE;
    fake_loaded++;
    return function != NULL ? OK : INVALID;
}
API result cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *bytes) {
    BEGIN_CURRENT;
    bool is_hash = function != NULL &&
                   (strcmp(function, "gpulua_take") == 0 || strcmp(function, "gpulua_look") == 0);
    if (function == NULL || index > (is_hash ? 3 : 1)) {
        return INVALID;
    }
    return *offset = index * 8, *bytes = index == (is_hash ? 2 : 0) ? 4 : 8, OK;
}
API result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads,
                                                       size_t shared) {
    BEGIN_CURRENT;
    return *blocks = 8, function != NULL && threads == 256 && shared == 0 ? OK : INVALID;
}

/* The backend's own fill kernel is carried out, with as many threads as were launched. */
struct fill_args {
    uint64_t base, vector_count;
    uint32_t head_count, tail_count, words[4];
};
static void fill(const struct fill_args *args) {
    uint64_t threads = (uint64_t)fake_grid[0] * fake_block[0];
    uint32_t *base = (uint32_t *)(uintptr_t)args->base;
    for (uint64_t thread = 0; thread < threads; thread++) {
        for (uint64_t v = thread; v < args->vector_count; v += threads) {
            memcpy(base + 4 * v, args->words, 16);
        }
        if (thread < args->head_count) {
            int64_t word = (int64_t)thread - args->head_count;
            base[word] = args->words[word & 3];
        }
        if (thread < args->tail_count) {
            base[4 * args->vector_count + thread] = args->words[thread];
        }
    }
}
/* So are the executor's kernels for check mode, with another hash, one bit of which shows each bit:
 * what the executor makes of it is not to the byte. */
struct hash_args {
    uint64_t spans, chunks;
    uint32_t count, reserved;
    uint64_t found;
};
static void hash(const struct hash_args *args, bool is_look) {
    const uint64_t *span = (const uint64_t *)(uintptr_t)args->spans;
    uint64_t *found = (uint64_t *)(uintptr_t)args->found;
    uint64_t threads = (uint64_t)fake_grid[0] * fake_block[0];
    for (uint64_t number = 0; number < args->chunks && number < threads; number++) {
        while (span + 4 < (const uint64_t *)(uintptr_t)args->spans + 4 * args->count &&
               span[7] <= number) {
            span += 4;
        }
        uint64_t chunk = (span[0] & ~63ull) + 64 * (number - span[3]), sum = 0;
        for (uint64_t at = chunk; at < chunk + 64; at++) {
            if (at >= span[0] && at < span[1]) {
                sum = sum * 31 + *(const unsigned char *)(uintptr_t)at;
            }
        }
        uint64_t *entry = (uint64_t *)(uintptr_t)span[2] + (number - span[3]);
        if (!is_look) {
            *entry = sum;
        } else if (*entry != sum && number < *found) {
            *found = number;
        }
    }
}
/* And kernels of tests': poke(int n, int *x) { x[n] = 7; } and
 * weigh(int *out, const int *a, const int *b) { *out = 2 * *a + 3 * *b; } */
struct poke_args {
    int32_t n, reserved;
    uint64_t x;
};
struct weigh_args {
    uint64_t out, a, b;
};
static bool is_function(const char *function) {
    for (size_t slot = 0; slot < sizeof modules / sizeof modules[0]; slot++) {
        struct module *module = modules[slot];
        if (module != NULL && function >= module->names[0] && function < module->names[16]) {
            return true;
        }
    }
    return false;
}
/* The kernel of backend/cuda/control.c. */
static result choose(void) {
    struct {
        uint64_t handle, address;
        uint32_t elem_bytes, mode, first, count;
    } args;
    uint64_t value = 0;
    memcpy(&args, fake_args, sizeof args);
    memcpy(&value, (const void *)(uintptr_t)args.address, args.elem_bytes);
    uint64_t index = value - args.first;
    return condition_set(args.handle, args.mode == 0       ? value != 0
                                      : args.mode == 1     ? index == 0
                                      : index < args.count ? (unsigned)index
                                                           : args.count);
}
static result run(const char *function, const unsigned grid[3], const unsigned block[3],
                  unsigned shared, void **extra) {
    fake_args_bytes = 0;
    fake_runs++;
    if (extra != NULL) {
        fake_args_bytes = *(size_t *)extra[3];
        memcpy(fake_args, extra[1], fake_args_bytes);
    }
    memcpy(fake_grid, grid, sizeof fake_grid);
    memcpy(fake_block, block, sizeof fake_block);
    fake_shared = shared;
    snprintf(fake_last_launch, sizeof fake_last_launch, "%s", function);
    if (strcmp(function, "gpulua_fill") == 0) {
        struct fill_args args;
        memcpy(&args, fake_args, sizeof args);
        fill(&args);
    } else if (strcmp(function, "gpulua_choose") == 0) {
        return choose();
    } else if (strcmp(function, "gpulua_take") == 0 || strcmp(function, "gpulua_look") == 0) {
        struct hash_args args;
        memcpy(&args, fake_args, sizeof args);
        hash(&args, strcmp(function, "gpulua_look") == 0);
    } else if (strcmp(function, "poke") == 0) {
        struct poke_args args;
        memcpy(&args, fake_args, sizeof args);
        ((int *)(uintptr_t)args.x)[args.n] = 7;
    } else if (strcmp(function, "weigh") == 0) {
        struct weigh_args args;
        memcpy(&args, fake_args, sizeof args);
        *(uint32_t *)(uintptr_t)args.out =
            2 * *(uint32_t *)(uintptr_t)args.a + 3 * *(uint32_t *)(uintptr_t)args.b;
    }
    return OK;
}
API result cuLaunchKernel(const char *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream, void **params,
                          void **extra) {
    BEGIN_WORK(stream);
    struct capture *capture = capture_of(stream);
    unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    bool good = params == NULL && gx > 0 && bx > 0 && bx * by * bz <= 1024 &&
                (shared <= 48152 || (int)shared <= fake_opted_in);
    if (good && extra != NULL) { /* 1: buffer, 2: its size, 0: the end */
        good = extra[0] == (void *)1 && extra[2] == (void *)2 && extra[4] == NULL;
    }
    if (good && capture != NULL) {
        struct node node = {.kind = KERNEL};
        struct node_params wanted = {.function = function, .shared = shared, .extra = extra};
        memcpy(wanted.grid, grid, sizeof grid);
        memcpy(wanted.block, block, sizeof block);
        good = put(&node, &wanted) == OK && capture_add(capture, &node) == OK;
    } else if (good) {
        return run(function, grid, block, shared, extra);
    }
    if (!good && capture != NULL) {
        (void)capture_invalidate(stream);
    }
    return good ? OK : INVALID;
}
