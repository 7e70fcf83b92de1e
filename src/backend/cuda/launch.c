/* Launches.
 *
 * A kernel that is launched again and again on one stream is launched through a prepared launch: an
 * executable graph of one kernel node, whose parameters are set anew for each launch. To the device
 * that is the same work in the same order, and it costs the host half of cuLaunchKernel (measured:
 * docs/results.md). What has been enqueued keeps the parameters that it had. Each stream has its
 * own, because one executable graph runs once at a time.
 *
 * Nothing depends on them: where the driver refuses one, the plain launch decides what is wrong. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/toolkit.h"

static_assert(CUDA_PREPARED_STALE > CUDA_PREPARED_PER_STREAM,
              "a round of that many kernels keeps all");

/* A launch asks for more dynamic shared memory than kernels get by default: the kernel opts in to
 * all that the device has, once. */
static gpulua_status shared_raise(struct backend_kernel *kernel, uint32_t shared_bytes,
                                  struct backend_error *error) {
    struct backend_device *device = kernel->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status entered = gpu_cuda_enter(device, error);
    if (entered != GPULUA_OK) {
        return entered;
    }
    if (shared_bytes > kernel->shared_bytes_max) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "%" PRIu32 " bytes of dynamic shared memory: this kernel can have "
                                "%" PRIu32,
                                shared_bytes, kernel->shared_bytes_max);
    }
    gpulua_status status =
        CU(device, error,
           cu->cuFuncSetAttribute(kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  (int)kernel->shared_bytes_max));
    if (status == GPULUA_OK) {
        kernel->shared_bytes_ready = kernel->shared_bytes_max;
    }
    return status;
}

/* ---- prepared launches ---- */

static bool prepared_is_off(void) {
    const char *text = getenv("GPULUA_PREPARED");
    return text != NULL &&
           (strcmp(text, "0") == 0 || strcmp(text, "off") == 0 || strcmp(text, "false") == 0);
}

void gpu_cuda_prepared_init(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    device->has_prepared = cu->cuGraphCreate != NULL && cu->cuGraphAddKernelNode != NULL &&
                           cu->cuGraphInstantiateWithFlags != NULL &&
                           cu->cuGraphExecKernelNodeSetParams != NULL &&
                           cu->cuGraphLaunch != NULL && cu->cuGraphExecDestroy != NULL &&
                           cu->cuGraphDestroy != NULL && !prepared_is_off();
}

/* The driver's half: nothing of it may be in flight. */
static void prepared_drop(struct backend_device *device, struct cuda_prepared *prepared) {
    const struct cuda_driver *cu = &device->cu;
    if (prepared->exec != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)CU(device, NULL, cu->cuGraphExecDestroy(prepared->exec));
        (void)CU(device, NULL, cu->cuGraphDestroy(prepared->graph));
    }
    device->prepared_count -= prepared->exec != NULL;
    *prepared = (struct cuda_prepared){0};
}

void gpu_cuda_prepared_forget(struct backend_stream *stream, const struct backend_kernel *kernel) {
    for (size_t i = 0; i < CUDA_PREPARED_PER_STREAM; i++) {
        struct cuda_prepared *prepared = &stream->prepared[i];
        if (kernel == NULL || prepared->bound == kernel) {
            prepared_drop(stream->device, prepared);
            stream->prepared_kernels[i] = NULL;
        } else if (stream->prepared_kernels[i] == kernel) {
            stream->prepared_kernels[i] =
                NULL; /* it stands for the kernel before, perhaps at work */
        }
    }
}

static bool prepared_make(struct backend_device *device, struct cuda_prepared *prepared,
                          const CUDA_KERNEL_NODE_PARAMS_v2 *params) {
    const struct cuda_driver *cu = &device->cu;
    if (device->prepared_count >= CUDA_PREPARED_MAX || gpu_cuda_enter(device, NULL) != GPULUA_OK ||
        cu->cuGraphCreate(&prepared->graph, 0) != CUDA_SUCCESS) {
        return false;
    }
    if (cu->cuGraphAddKernelNode(&prepared->node, prepared->graph, NULL, 0, params) !=
            CUDA_SUCCESS ||
        cu->cuGraphInstantiateWithFlags(&prepared->exec, prepared->graph, 0) != CUDA_SUCCESS) {
        prepared->exec = NULL;
        (void)cu->cuGraphDestroy(prepared->graph);
        return false;
    }
    device->prepared_count++;
    return true;
}

/* The kernel's place on the stream; one that is free or stale becomes its own. NULL: all are in
 * use. */
static struct cuda_prepared *prepared_find(struct backend_stream *stream,
                                           struct backend_kernel *kernel) {
    uint64_t now = ++stream->launch_count;
    size_t oldest = 0;
    for (size_t i = 0; i < CUDA_PREPARED_PER_STREAM; i++) {
        if (stream->prepared_kernels[i] == kernel) {
            stream->prepared[i].used = now;
            return &stream->prepared[i];
        }
        if (stream->prepared[i].used < stream->prepared[oldest].used) {
            oldest = i;
        }
    }
    struct cuda_prepared *prepared = &stream->prepared[oldest];
    if (stream->prepared_kernels[oldest] != NULL && now - prepared->used < CUDA_PREPARED_STALE) {
        return NULL;
    }
    stream->prepared_kernels[oldest] = kernel;
    prepared->used = now;
    prepared->heat = 0;
    return prepared;
}

void gpu_cuda_prepared_choose(struct backend_stream *stream, struct backend_kernel *kernel,
                              bool is_prepared) {
    struct cuda_prepared *prepared = prepared_find(stream, kernel);
    if (prepared != NULL) {
        prepared->heat = is_prepared ? CUDA_PREPARED_AFTER : 0;
    }
}

static CUDA_KERNEL_NODE_PARAMS_v2 params_of(const struct backend_launch *launch, void **extra) {
    return (CUDA_KERNEL_NODE_PARAMS_v2){.func = launch->kernel->function,
                                        .gridDimX = launch->grid[0],
                                        .gridDimY = launch->grid[1],
                                        .gridDimZ = launch->grid[2],
                                        .blockDimX = launch->block[0],
                                        .blockDimY = launch->block[1],
                                        .blockDimZ = launch->block[2],
                                        .sharedMemBytes = launch->shared_bytes,
                                        .extra = extra};
}

/* False: nothing has been launched. */
static bool prepared_launch(const struct backend_launch *launch, void **extra) {
    struct backend_kernel *kernel = launch->kernel;
    struct backend_device *device = kernel->device;
    const struct cuda_driver *cu = &device->cu;
    struct cuda_prepared *prepared = prepared_find(launch->stream, kernel);
    if (prepared == NULL || prepared->heat < CUDA_PREPARED_AFTER) {
        if (prepared != NULL) {
            prepared->heat++;
        }
        return false;
    }
    const CUDA_KERNEL_NODE_PARAMS_v2 params = params_of(launch, extra);
    CUresult result = CUDA_SUCCESS;
    if (prepared->exec == NULL) {
        if (!prepared_make(device, prepared, &params)) {
            prepared->heat = 0; /* perhaps later */
            return false;
        }
    } else {
        CU_HOT(device, result,
               cu->cuGraphExecKernelNodeSetParams(prepared->exec, prepared->node, &params));
    }
    if (result == CUDA_SUCCESS) {
        prepared->bound = kernel;
        CU_HOT(device, result, cu->cuGraphLaunch(prepared->exec, launch->stream->handle));
    }
    if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
        prepared->heat = 0;
        return false;
    }
    return true;
}

/* ---- */

gpulua_status gpu_cuda_launch(const struct backend_launch *launch, struct backend_error *error) {
    struct backend_kernel *kernel = launch->kernel;
    struct backend_device *device = kernel->device;
    const struct cuda_driver *cu = &device->cu;
    if (kernel->call != NULL) {
        return gpu_cuda_toolkit_launch(launch, error);
    }
    gpulua_status status = device->lost == CUDA_SUCCESS ? GPULUA_OK : gpu_cuda_lost(device, error);
    if (status == GPULUA_OK && __builtin_expect(launch->stream->is_captured, 0) &&
        launch->stream->patched == NULL) {
        /* A call that the driver refuses, if only for its context, would end the capture. */
        status = gpu_cuda_enter(device, error);
    }
    if (status == GPULUA_OK &&
        __builtin_expect(launch->shared_bytes > kernel->shared_bytes_ready, 0)) {
        status = shared_raise(kernel, launch->shared_bytes, error);
    }
    if (__builtin_expect(status != GPULUA_OK, 0)) {
        return status;
    }
    if (__builtin_expect(launch->args_bytes < kernel->args_bytes, 0)) {
        /* The driver would read past the end. */
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "%" PRIu32 " bytes of arguments: the kernel takes %" PRIu32,
                                launch->args_bytes, kernel->args_bytes);
    }
    size_t args_bytes = launch->args_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)launch->args,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &args_bytes, CU_LAUNCH_PARAM_END};
    void **params = args_bytes > 0 ? extra : NULL;
    if (device->has_prepared && !launch->stream->is_captured) {
        device->launches_prepared = prepared_launch(launch, params);
        if (device->launches_prepared) {
            return GPULUA_OK;
        }
    }
    if (__builtin_expect(launch->stream->patched != NULL, 0)) {
        const CUDA_KERNEL_NODE_PARAMS_v2 node = params_of(launch, params);
        return gpu_cuda_graph_patch_launch(launch->stream->patched, &node, error);
    }
    CUresult result;
    CU_HOT(device, result,
           cu->cuLaunchKernel(kernel->function, launch->grid[0], launch->grid[1], launch->grid[2],
                              launch->block[0], launch->block[1], launch->block[2],
                              launch->shared_bytes, launch->stream->handle, NULL, params));
    return gpu_cuda_result(device, result, "cuLaunchKernel", __FILE__, __LINE__, error);
}
