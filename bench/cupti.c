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

#define DRIVER(X)                                                                                  \
    X(cuGraphCreate, CUresult, (CUgraph *, unsigned))                                              \
    X(cuGraphAddKernelNode_v2, CUresult,                                                           \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS_v2 *))   \
    X(cuGraphInstantiateWithFlags, CUresult, (CUgraphExec *, CUgraph, unsigned long long))         \
    X(cuGraphExecKernelNodeSetParams_v2, CUresult,                                                 \
      (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2 *))                              \
    X(cuGraphLaunch, CUresult, (CUgraphExec, CUstream))

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

static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry nothing(.param .u64 p) { ret; }\n";

static CUstream stream;
static CUevent event;
static CUfunction nothing;
static CUgraphExec exec;
static CUgraphNode node;
static CUdeviceptr memory;
static void *args[] = {&memory};
static uint64_t record_count, call_count;

static void launch(bool is_prepared) {
    if (is_prepared) {
        CUDA_KERNEL_NODE_PARAMS_v2 params = driver_node(nothing, args);
        CK(p_cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
        CK(p_cuGraphLaunch(exec, stream));
    } else {
        CK(p_cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, stream, args, NULL));
    }
    CK(p_cuEventRecord(event, stream));
}

static void measure(const char *name) {
    for (int is_prepared = 0; is_prepared < 2; is_prepared++) {
        double values[RUNS];
        record_count = call_count = 0;
        for (int run = 0; run < RUNS; run++) {
            double start = now_ns();
            for (int i = 0; i < LAUNCHES; i++) {
                launch(is_prepared != 0);
            }
            CK(p_cuStreamSynchronize(stream));
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
static void CUPTIAPI on_completed(CUcontext context, uint32_t number, uint8_t *buffer,
                                  size_t byte_count, size_t valid_bytes) {
    CUpti_Activity *record = NULL;
    (void)context, (void)number, (void)byte_count;
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
    CUgraph graph;
    CUDA_KERNEL_NODE_PARAMS_v2 params;
    CK(p_cuModuleLoadData(&module, ptx));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuMemAlloc_v2(&memory, 64));
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    params = driver_node(nothing, args);
    CK(p_cuGraphCreate(&graph, 0));
    CK(p_cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
    CK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
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
