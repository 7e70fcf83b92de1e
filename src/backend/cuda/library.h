/* Opening the libraries that the backend needs: never linked, always looked for. */
#ifndef GPU_CUDA_LIBRARY_H
#define GPU_CUDA_LIBRARY_H

#include <nvrtc.h>
#include <stdbool.h>

/* Function pointer types with the versions of their ABIs, the same in toolkits 12 and 13. */
#include <cudaTypedefs.h>

#include "backend/backend.h"

#if CUDA_VERSION < 12090 /* headers before the driver's log */
typedef unsigned int CUlogIterator;
typedef CUresult(CUDAAPI *PFN_cuLogsCurrent_v12090)(CUlogIterator *iterator, unsigned int flags);
typedef CUresult(CUDAAPI *PFN_cuLogsDumpToMemory_v12090)(CUlogIterator *iterator, char *buffer,
                                                         size_t *size, unsigned int flags);
#endif

/* clang-format off */
/* Entry points of libcuda: X(is it required, name, version of the ABI, the symbol with that ABI). The name and version
 * are asked of cuGetProcAddress; a driver without that is asked for the symbol. */
#define CUDA_DRIVER_TABLE(X)                                                                                \
    X(true, cuInit, 2000, "cuInit")                                                                         \
    X(true, cuDriverGetVersion, 2020, "cuDriverGetVersion")                                                 \
    X(true, cuGetErrorName, 6000, "cuGetErrorName")                                                         \
    X(true, cuGetErrorString, 6000, "cuGetErrorString")                                                     \
    X(true, cuDeviceGetCount, 2000, "cuDeviceGetCount")                                                     \
    X(true, cuDeviceGet, 2000, "cuDeviceGet")                                                               \
    X(true, cuDeviceGetName, 2000, "cuDeviceGetName")                                                       \
    X(true, cuDeviceTotalMem, 3020, "cuDeviceTotalMem_v2")                                                  \
    X(true, cuDeviceGetAttribute, 2000, "cuDeviceGetAttribute")                                             \
    X(true, cuDevicePrimaryCtxRetain, 7000, "cuDevicePrimaryCtxRetain")                                     \
    X(true, cuDevicePrimaryCtxRelease, 11000, "cuDevicePrimaryCtxRelease_v2")                               \
    X(false, cuDevicePrimaryCtxGetState, 7000, "cuDevicePrimaryCtxGetState")                                \
    X(true, cuCtxGetCurrent, 4000, "cuCtxGetCurrent")                                                       \
    X(true, cuCtxSetCurrent, 4000, "cuCtxSetCurrent")                                                       \
    X(true, cuCtxGetDevice, 2000, "cuCtxGetDevice")                                                         \
    X(true, cuCtxSynchronize, 2000, "cuCtxSynchronize")                                                     \
    X(true, cuCtxGetStreamPriorityRange, 5050, "cuCtxGetStreamPriorityRange")                               \
    X(true, cuMemGetInfo, 3020, "cuMemGetInfo_v2")                                                          \
    X(true, cuMemAlloc, 3020, "cuMemAlloc_v2")                                                              \
    X(true, cuMemFree, 3020, "cuMemFree_v2")                                                                \
    X(false, cuMemGetAllocationGranularity, 10020, "cuMemGetAllocationGranularity")                         \
    X(false, cuMemAddressReserve, 10020, "cuMemAddressReserve")                                             \
    X(false, cuMemAddressFree, 10020, "cuMemAddressFree")                                                   \
    X(false, cuMemCreate, 10020, "cuMemCreate")                                                             \
    X(false, cuMemRelease, 10020, "cuMemRelease")                                                           \
    X(false, cuMemMap, 10020, "cuMemMap")                                                                   \
    X(false, cuMemUnmap, 10020, "cuMemUnmap")                                                               \
    X(false, cuMemSetAccess, 10020, "cuMemSetAccess")                                                       \
    X(false, cuMemPoolCreate, 11020, "cuMemPoolCreate")                                                     \
    X(false, cuMemPoolDestroy, 11020, "cuMemPoolDestroy")                                                   \
    X(false, cuMemPoolSetAttribute, 11020, "cuMemPoolSetAttribute")                                         \
    X(false, cuMemPoolTrimTo, 11020, "cuMemPoolTrimTo")                                                     \
    X(false, cuMemAllocFromPoolAsync, 11020, "cuMemAllocFromPoolAsync")                                     \
    X(false, cuMemFreeAsync, 11020, "cuMemFreeAsync")                                                       \
    X(true, cuMemHostRegister, 6050, "cuMemHostRegister_v2")                                                \
    X(true, cuMemHostUnregister, 4000, "cuMemHostUnregister")                                               \
    X(true, cuMemHostGetDevicePointer, 3020, "cuMemHostGetDevicePointer_v2")                                \
    X(true, cuStreamCreateWithPriority, 5050, "cuStreamCreateWithPriority")                                 \
    X(true, cuStreamDestroy, 4000, "cuStreamDestroy_v2")                                                    \
    X(false, cuStreamGetCtx, 9020, "cuStreamGetCtx")                                                        \
    X(true, cuStreamQuery, 2000, "cuStreamQuery")                                                           \
    X(true, cuStreamSynchronize, 2000, "cuStreamSynchronize")                                               \
    X(true, cuStreamWaitEvent, 3020, "cuStreamWaitEvent")                                                   \
    X(false, cuStreamWriteValue64, 11070, "cuStreamWriteValue64_v2")                                        \
    X(true, cuEventCreate, 2000, "cuEventCreate")                                                           \
    X(true, cuEventDestroy, 4000, "cuEventDestroy_v2")                                                      \
    X(true, cuEventRecord, 2000, "cuEventRecord")                                                           \
    X(true, cuEventQuery, 2000, "cuEventQuery")                                                             \
    X(true, cuEventSynchronize, 2000, "cuEventSynchronize")                                                 \
    X(true, cuEventElapsedTime, 2000, "cuEventElapsedTime")                                                 \
    X(true, cuMemcpyDtoDAsync, 3020, "cuMemcpyDtoDAsync_v2")                                                \
    X(true, cuMemcpyHtoDAsync, 3020, "cuMemcpyHtoDAsync_v2")                                                \
    X(true, cuMemcpyDtoHAsync, 3020, "cuMemcpyDtoHAsync_v2")                                                \
    X(true, cuMemsetD8Async, 3020, "cuMemsetD8Async")                                                       \
    X(true, cuMemsetD16Async, 3020, "cuMemsetD16Async")                                                     \
    X(true, cuMemsetD32Async, 3020, "cuMemsetD32Async")                                                     \
    X(true, cuLaunchKernel, 4000, "cuLaunchKernel")                                                         \
    X(false, cuGraphCreate, 10000, "cuGraphCreate")                                                         \
    X(false, cuGraphDestroy, 10000, "cuGraphDestroy")                                                       \
    X(false, cuGraphAddKernelNode, 12000, "cuGraphAddKernelNode_v2")                                        \
    X(false, cuGraphInstantiateWithFlags, 11040, "cuGraphInstantiateWithFlags")                             \
    X(false, cuGraphExecKernelNodeSetParams, 12000, "cuGraphExecKernelNodeSetParams_v2")                    \
    X(false, cuGraphKernelNodeGetParams, 12000, "cuGraphKernelNodeGetParams_v2")                            \
    X(false, cuGraphMemcpyNodeGetParams, 10000, "cuGraphMemcpyNodeGetParams")                               \
    X(false, cuGraphExecMemcpyNodeSetParams, 10020, "cuGraphExecMemcpyNodeSetParams")                       \
    X(false, cuGraphMemsetNodeGetParams, 10000, "cuGraphMemsetNodeGetParams")                               \
    X(false, cuGraphExecMemsetNodeSetParams, 10020, "cuGraphExecMemsetNodeSetParams")                       \
    X(false, cuGraphGetNodes, 10000, "cuGraphGetNodes")                                                     \
    X(false, cuGraphNodeGetType, 10000, "cuGraphNodeGetType")                                               \
    X(false, cuGraphExecDestroy, 10000, "cuGraphExecDestroy")                                               \
    X(false, cuGraphLaunch, 10000, "cuGraphLaunch")                                                         \
    X(false, cuGraphUpload, 11010, "cuGraphUpload")                                                         \
    X(false, cuGraphAddEmptyNode, 10000, "cuGraphAddEmptyNode")                                             \
    X(false, cuStreamBeginCapture, 10010, "cuStreamBeginCapture_v2")                                        \
    X(false, cuStreamEndCapture, 10000, "cuStreamEndCapture")                                               \
    X(false, cuStreamIsCapturing, 10000, "cuStreamIsCapturing")                                             \
    X(false, cuThreadExchangeStreamCaptureMode, 10010, "cuThreadExchangeStreamCaptureMode")                 \
    X(false, cuStreamGetCaptureInfo, 12030, "cuStreamGetCaptureInfo_v3")                                    \
    X(false, cuStreamUpdateCaptureDependencies, 12030, "cuStreamUpdateCaptureDependencies_v2")              \
    X(false, cuStreamBeginCaptureToGraph, 12030, "cuStreamBeginCaptureToGraph")                             \
    X(false, cuGraphConditionalHandleCreate, 12030, "cuGraphConditionalHandleCreate")                       \
    X(false, cuGraphAddNode, 12030, "cuGraphAddNode_v2")                                                    \
    X(true, cuModuleLoadDataEx, 2010, "cuModuleLoadDataEx")                                                 \
    X(true, cuModuleUnload, 2000, "cuModuleUnload")                                                         \
    X(true, cuModuleGetFunction, 2000, "cuModuleGetFunction")                                               \
    X(true, cuModuleGetGlobal, 3020, "cuModuleGetGlobal_v2")                                                \
    X(true, cuFuncGetAttribute, 2020, "cuFuncGetAttribute")                                                 \
    X(true, cuFuncSetAttribute, 9000, "cuFuncSetAttribute")                                                 \
    X(false, cuModuleGetFunctionCount, 12040, "cuModuleGetFunctionCount")                                   \
    X(false, cuModuleEnumerateFunctions, 12040, "cuModuleEnumerateFunctions")                               \
    X(false, cuFuncLoad, 12040, "cuFuncLoad")                                                               \
    X(false, cuFuncGetParamInfo, 12040, "cuFuncGetParamInfo")                                               \
    X(false, cuLogsCurrent, 12090, "cuLogsCurrent")                                                         \
    X(false, cuLogsDumpToMemory, 12090, "cuLogsDumpToMemory")                                               \
    X(false, cuCoredumpSetAttributeGlobal, 12010, "cuCoredumpSetAttributeGlobal")                           \
    X(true, cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, "cuOccupancyMaxActiveBlocksPerMultiprocessor")

/* Entry points of libnvrtc. Its ABI has no versions but that of the library's name. */
#define CUDA_NVRTC_TABLE(X)       \
    X(nvrtcVersion)               \
    X(nvrtcGetErrorString)        \
    X(nvrtcGetNumSupportedArchs)  \
    X(nvrtcGetSupportedArchs)     \
    X(nvrtcCreateProgram)         \
    X(nvrtcDestroyProgram)        \
    X(nvrtcAddNameExpression)     \
    X(nvrtcCompileProgram)        \
    X(nvrtcGetLoweredName)        \
    X(nvrtcGetPTXSize)            \
    X(nvrtcGetPTX)                \
    X(nvrtcGetCUBINSize)          \
    X(nvrtcGetCUBIN)              \
    X(nvrtcGetProgramLogSize)     \
    X(nvrtcGetProgramLog)
/* clang-format on */

/* cuda.h renames functions to their newest versions by macros, which differ between toolkits. Here
 * names are plain, and the table says which version is meant. */
#undef cuDeviceTotalMem
#undef cuDevicePrimaryCtxRelease
#undef cuMemGetInfo
#undef cuMemAlloc
#undef cuMemFree
#undef cuMemHostRegister
#undef cuMemHostGetDevicePointer
#undef cuStreamDestroy
#undef cuStreamWriteValue64
#undef cuEventDestroy
#undef cuEventElapsedTime
#undef cuMemcpyDtoDAsync
#undef cuMemcpyHtoDAsync
#undef cuMemcpyDtoHAsync
#undef cuModuleGetGlobal
#undef cuCtxSynchronize
#undef cuCtxGetDevice
#undef cuStreamGetCtx
#undef cuStreamWaitEvent
#undef cuEventRecord
#undef cuLaunchKernel
#undef cuGraphAddKernelNode
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphKernelNodeGetParams
#undef cuGraphLaunch
#undef cuGraphUpload
#undef cuStreamBeginCapture
#undef cuStreamEndCapture
#undef cuStreamIsCapturing
#undef cuStreamGetCaptureInfo
#undef cuStreamUpdateCaptureDependencies
#undef cuStreamBeginCaptureToGraph
#undef cuGraphAddNode

#define CUDA_MEMBER(required, name, version, symbol) PFN_##name##_v##version name;
struct cuda_driver {
    void *library;
    int version; /* 13000 for 13.0 */
    CUDA_DRIVER_TABLE(CUDA_MEMBER)
};
#undef CUDA_MEMBER

struct cuda_nvrtc {
    void *library;
    int major, minor;
    char include[4096]; /* the toolkit's headers; "": not found */
#define X(name) __typeof__(name) *name;
    CUDA_NVRTC_TABLE(X)
#undef X
};

/* A library of the CUDA toolkit: the file that the environment variable names, else one of `names`,
 * where the system looks, then where toolkits are. */
gpulua_status gpu_cuda_toolkit_load(const char *what, const char *variable,
                                    const char *const *names, void **library,
                                    struct backend_error *error);

/* $GPULUA_LIBCUDA and $GPULUA_LIBNVRTC name a file to be tried instead of the usual ones. */
gpulua_status gpu_cuda_driver_open(struct cuda_driver *driver, struct backend_error *error);
void gpu_cuda_describe(struct text *text); /* the slot */
gpulua_status gpu_cuda_nvrtc_open(struct cuda_nvrtc *nvrtc, struct backend_error *error);

#endif
