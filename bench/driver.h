/* The CUDA driver, opened with dlopen, for benches that call it alone: they build anywhere, and say
 * so where there is no GPU. DRIVER(X), defined before this is included, names what a bench needs
 * beyond the functions here: X(name, result, (parameters)) makes p_name. Wants <cuda.h>. */
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

#define X(name, result, parameters) static result(*p_##name) parameters;
DRIVER_OF_ALL(X)
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
