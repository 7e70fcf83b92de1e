/* What CUPTI takes of each launch, with the CUDA driver alone: nanoseconds a launch with an event
 * behind it, sustained, median and least of some runs; by cuLaunchKernel, and prepared, as our
 * backend makes launches (an executable graph of one kernel whose parameters are set anew).
 *
 *     build/bench/cupti */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<cuda.h>) && __has_include(<cupti.h>)
#include <cuda.h>
#include <cupti.h>

#define RUNS 9
#define LAUNCHES 5000
#define BUFFER_BYTES ((size_t)1 << 20)

#define DRIVER_PREPARES
#define DRIVER(X)

#include "driver.h"

#define CUPTI(X)                                                                                   \
    X(cuptiSubscribe)                                                                              \
    X(cuptiEnableCallback)                                                                         \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityFlushAll)                                                                       \
    X(cuptiActivityGetNextRecord)
#define X(name) static __typeof__(name) *p_##name;
CUPTI(X)
#undef X

static struct driver_lane lane;
static CUfunction nothing;
static CUdeviceptr memory;
static uint32_t number;
static void *args[] = {&memory, &number};
static uint64_t record_count, call_count;

static void measure(const char *name) {
    for (int is_prepared = 0; is_prepared < 2; is_prepared++) {
        double values[RUNS];
        record_count = call_count = 0;
        for (int run = 0; run < RUNS; run++) {
            double start = now_ns();
            for (int i = 0; i < LAUNCHES; i++) {
                driver_launch(&lane, nothing, args, is_prepared != 0);
            }
            CK(p_cuStreamSynchronize(lane.stream));
            values[run] = (now_ns() - start) / LAUNCHES;
        }
        if (p_cuptiActivityFlushAll) {
            (void)p_cuptiActivityFlushAll(0);
        }
        double middle = median(values, RUNS);
        printf("%-40s %-8s %6.0f ns, least %6.0f; %llu records, %llu calls\n", name,
               is_prepared ? "prepared" : "plain", middle, values[0],
               (unsigned long long)record_count, (unsigned long long)call_count);
    }
}

/* ---- what CUPTI calls ---- */

static void CUPTIAPI on_request(uint8_t **buffer, size_t *byte_count, size_t *record_max) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *byte_count = BUFFER_BYTES;
    *record_max = 0;
}
static void CUPTIAPI on_completed(CUcontext context, uint32_t stream, uint8_t *buffer,
                                  size_t byte_count, size_t valid_bytes) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)byte_count;
    while (p_cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
        record_count++;
    }
    free(buffer);
}
static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *info) {
    (void)user, (void)domain, (void)id, (void)info;
    call_count++;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        CUptiResult result_ = (call);                                                              \
        if (result_ != CUPTI_SUCCESS) {                                                            \
            fprintf(stderr, "%s: error %d\n", #call, (int)result_);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static bool cupti_open(void) {
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so",
                                        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) {
        library = dlopen(names[i], RTLD_NOW);
    }
    if (!library) {
        puts("# no libcupti here");
        return false;
    }
#define X(name) *(void **)&p_##name = dlsym(library, #name);
    CUPTI(X)
#undef X
    return p_cuptiSubscribe && p_cuptiEnableCallback && p_cuptiActivityRegisterCallbacks &&
           p_cuptiActivityEnable && p_cuptiActivityFlushAll && p_cuptiActivityGetNextRecord;
}

int main(void) {
    if (!driver_open()) {
        return 0;
    }
    CUmodule module;
    CK(p_cuModuleLoadData(&module, nothing_ptx));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuMemAlloc_v2(&memory, 64));
    driver_lane_open(&lane, nothing, args);
    measure("without CUPTI");
    if (!cupti_open()) {
        return 0;
    }
    CUpti_SubscriberHandle subscriber;
    OK(p_cuptiSubscribe(&subscriber, on_call, NULL));
    measure("subscribed");
    OK(p_cuptiActivityRegisterCallbacks(on_request, on_completed));
    OK(p_cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
    measure("records of kernels");
    OK(p_cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API,
                             CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch));
    OK(p_cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API,
                             CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
    measure("records of kernels, calls of launches");
    return 0;
}

#else

int main(void) {
    puts("# built without cuda.h or cupti.h");
    return 0;
}

#endif
