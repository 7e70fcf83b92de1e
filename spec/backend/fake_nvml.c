/* NVML without a GPU, as far as backend/cuda/alarm.c calls it: it says what a test makes it say. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define NVML_ERROR_TIMEOUT 10
#define NVML_ERROR_UNKNOWN 999
#define NVML_ERROR_INSUFFICIENT_SIZE 7
#define XID_EVENTS 8ull

struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* Atomic, all of it: the thread that calls is another one. */
API atomic_ullong fake_bus_id;        /* domain, bus, device, function, of 16 bits each */
API _Atomic(const char *) fake_fails; /* this call; NULL: none */
API atomic_int fake_inits, fake_shutdowns, fake_waits, fake_sets;
API atomic_uint fake_processes = 2; /* on the GPU */
API atomic_uint fake_graphics;
API atomic_uint fake_left;     /* of the processes, behind an Xid; 0: all of them */
API atomic_uint fake_slow_ms;  /* what a list takes behind an Xid */
API atomic_bool fake_has_told; /* an Xid */
API atomic_uint fake_xid;      /* is told once, and is 0 then */
API atomic_uint fake_other;    /* the same, of an event of another kind */

static int result(const char *call) {
    const char *fails = fake_fails;
    return fails != NULL && strcmp(fails, call) == 0 ? NVML_ERROR_UNKNOWN : 0;
}

API int nvmlInit_v2(void) {
    fake_inits++;
    return result("init");
}
API int nvmlShutdown(void) {
    fake_shutdowns++;
    return 0;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    unsigned domain = 0, bus = 0, number = 0, function = 0;
    int count = sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &number, &function);
    fake_bus_id = count != 4 ? 0
                             : (unsigned long long)domain << 48 | (unsigned long long)bus << 32 |
                                   (unsigned long long)number << 16 | function;
    *device = &fake_bus_id;
    return result("find");
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    unsigned there = fake_has_told && fake_left != 0 ? fake_left : fake_processes;
    bool has_room = *count >= there && device == &fake_bus_id && processes != NULL;
    usleep(fake_has_told ? 1000 * fake_slow_ms : 0);
    *count = there;
    return has_room ? result("list") : NVML_ERROR_INSUFFICIENT_SIZE;
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    bool has_room = *count >= fake_graphics && device == &fake_bus_id;
    (void)processes;
    *count = fake_graphics;
    return has_room ? result("list graphics") : NVML_ERROR_INSUFFICIENT_SIZE;
}
API int nvmlEventSetCreate(void **set) {
    *set = &fake_sets;
    fake_sets += result("make") == 0;
    return result("make");
}
API int nvmlEventSetFree(void *set) {
    fake_sets--;
    return set != &fake_sets;
}
API int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    return device != &fake_bus_id || types != XID_EVENTS || set != &fake_sets ? NVML_ERROR_UNKNOWN
                                                                              : result("listen");
}
API int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    fake_waits++;
    if (set != &fake_sets || result("wait") != 0) {
        return NVML_ERROR_UNKNOWN;
    }
    if (getenv("FAKE_NVML_XID") != NULL) { /* all the time, in another process */
        fake_xid = (unsigned)atoi(getenv("FAKE_NVML_XID"));
    }
    for (unsigned i = 0; i < timeout_ms && i < 20; i++) { /* so that its thread soon ends */
        unsigned xid = atomic_exchange(&fake_xid, 0), other = atomic_exchange(&fake_other, 0);
        if (xid != 0 || other != 0) {
            *event = (struct event){&fake_bus_id, xid != 0 ? XID_EVENTS : 1, xid, ~0u, ~0u};
            fake_has_told = fake_has_told || xid != 0;
            return 0;
        }
        usleep(1000);
    }
    return NVML_ERROR_TIMEOUT;
}
