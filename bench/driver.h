/* The CUDA driver, opened with dlopen, for benches that call it alone: they build anywhere, and say
 * so where there is no GPU. DRIVER(X), defined before this is included, names what a bench needs
 * beyond the functions here: X(name, result, (parameters)) makes p_name. DRIVER_PREPARES, defined
 * too, gives launches as our backend makes them. Wants <cuda.h>. */
#ifndef BENCH_DRIVER_H
#define BENCH_DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define DRIVER_OF_ALL(X)                                                                           \
    X(cuInit, CUresult, (unsigned))                                                                \
    X(cuDeviceGet, CUresult, (CUdevice *, int))                                                    \
    X(cuDevicePrimaryCtxRetain, CUresult, (CUcontext *, CUdevice))                                 \
    X(cuCtxSetCurrent, CUresult, (CUcontext))                                                      \
    X(cuModuleLoadData, CUresult, (CUmodule *, const void *))                                      \
    X(cuModuleGetFunction, CUresult, (CUfunction *, CUmodule, const char *))                       \
    X(cuMemAlloc_v2, CUresult, (CUdeviceptr *, size_t))                                            \
    X(cuStreamCreate, CUresult, (CUstream *, unsigned))                                            \
    X(cuStreamSynchronize, CUresult, (CUstream))                                                   \
    X(cuEventCreate, CUresult, (CUevent *, unsigned))                                              \
    X(cuEventRecord, CUresult, (CUevent, CUstream))                                                \
    X(cuLaunchKernel, CUresult,                                                                    \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **, void **))

#ifdef DRIVER_PREPARES
#define DRIVER_OF_PREPARED(X)                                                                      \
    X(cuGraphCreate, CUresult, (CUgraph *, unsigned))                                              \
    X(cuGraphAddKernelNode_v2, CUresult,                                                           \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS_v2 *))   \
    X(cuGraphInstantiateWithFlags, CUresult, (CUgraphExec *, CUgraph, unsigned long long))         \
    X(cuGraphExecKernelNodeSetParams_v2, CUresult,                                                 \
      (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2 *))                              \
    X(cuGraphLaunch, CUresult, (CUgraphExec, CUstream))
#else
#define DRIVER_OF_PREPARED(X)
#endif

#define X(name, result, parameters) static result(*p_##name) parameters;
DRIVER_OF_ALL(X)
DRIVER_OF_PREPARED(X)
DRIVER(X)
#undef X

#define CK(call)                                                                                   \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        if (result_ != CUDA_SUCCESS) {                                                             \
            fprintf(stderr, "%s: error %d\n", #call, (int)result_);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Of one small block with these arguments, as nodes of graphs have it. */
static inline CUDA_KERNEL_NODE_PARAMS_v2 driver_node(CUfunction function, void **args) {
    return (CUDA_KERNEL_NODE_PARAMS_v2){.func = function,
                                        .gridDimX = 1,
                                        .gridDimY = 1,
                                        .gridDimZ = 1,
                                        .blockDimX = 32,
                                        .blockDimY = 1,
                                        .blockDimZ = 1,
                                        .kernelParams = args};
}

#ifdef DRIVER_PREPARES
/* A kernel that does nothing with its arguments. */
static const char nothing_ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 p, .param .u32 n) { ret; }\n";

/* A stream with what a launch needs: an executable graph of one kernel, whose parameters are set
 * anew for each, and the event behind it. */
struct driver_lane {
    CUstream stream;
    CUevent event;
    CUgraphExec exec;
    CUgraphNode node;
};

static inline void driver_lane_open(struct driver_lane *lane, CUfunction function, void **args) {
    CUgraph graph;
    CUDA_KERNEL_NODE_PARAMS_v2 params = driver_node(function, args);
    CK(p_cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuEventCreate(&lane->event, CU_EVENT_DISABLE_TIMING));
    CK(p_cuGraphCreate(&graph, 0));
    CK(p_cuGraphAddKernelNode_v2(&lane->node, graph, NULL, 0, &params));
    CK(p_cuGraphInstantiateWithFlags(&lane->exec, graph, 0));
}

static inline void driver_launch_alone(struct driver_lane *lane, CUfunction function, void **args,
                                       bool is_prepared) {
    if (is_prepared) {
        CUDA_KERNEL_NODE_PARAMS_v2 params = driver_node(function, args);
        CK(p_cuGraphExecKernelNodeSetParams_v2(lane->exec, lane->node, &params));
        CK(p_cuGraphLaunch(lane->exec, lane->stream));
    } else {
        CK(p_cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, lane->stream, args, NULL));
    }
}

static inline void driver_launch(struct driver_lane *lane, CUfunction function, void **args,
                                 bool is_prepared) {
    driver_launch_alone(lane, function, args, is_prepared);
    CK(p_cuEventRecord(lane->event, lane->stream));
}
#endif

/* The first GPU's primary context is current then. False: there is none, which has been said. */
static inline bool driver_open(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        puts("# no libcuda.so.1 here");
        return false;
    }
#define X(name, result, parameters)                                                                \
    *(void **)&p_##name = dlsym(driver, #name);                                                    \
    if (!p_##name) {                                                                               \
        puts("# libcuda.so.1 lacks " #name);                                                       \
        return false;                                                                              \
    }
    DRIVER_OF_ALL(X)
    DRIVER_OF_PREPARED(X)
    DRIVER(X)
#undef X
    if (p_cuInit(0) != CUDA_SUCCESS) {
        puts("# no GPU here");
        return false;
    }
    CUdevice device;
    CUcontext context;
    CK(p_cuDeviceGet(&device, 0));
    CK(p_cuDevicePrimaryCtxRetain(&context, device));
    CK(p_cuCtxSetCurrent(context));
    return true;
}

#endif
