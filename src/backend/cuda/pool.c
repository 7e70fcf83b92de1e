/* Memory in the order of streams, from a pool of the device's own: the process may have another use
 * for the driver's default one. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device.h"

static gpulua_status pool_open(struct backend_device *device, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    if (cu->cuMemPoolCreate == NULL || cu->cuMemPoolDestroy == NULL ||
        cu->cuMemPoolSetAttribute == NULL || cu->cuMemPoolTrimTo == NULL ||
        cu->cuMemAllocFromPoolAsync == NULL || cu->cuMemFreeAsync == NULL) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "this CUDA driver is too old for memory in the order of streams");
    }
    CUmemPoolProps wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device->handle;
    CUmemoryPool pool = NULL;
    gpulua_status status = CU(device, error, cu->cuMemPoolCreate(&pool, &wanted));
    if (status != GPULUA_OK) {
        return status;
    }
    /* By default the pool gives everything back whenever the device is synchronised with. */
    cuuint64_t kept_bytes = UINT64_MAX;
    status = CU(device, error,
                cu->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept_bytes));
    if (status == GPULUA_OK) {
        status = CU(device, error,
                    cu->cuStreamCreateWithPriority(&device->pool_stream, CU_STREAM_NON_BLOCKING,
                                                   device->facts.priority_lowest));
    }
    if (status != GPULUA_OK) {
        (void)cu->cuMemPoolDestroy(pool);
        return status;
    }
    device->pool = pool;
    return GPULUA_OK;
}

gpulua_status gpu_cuda_pool_alloc(struct backend_stream *stream, uint64_t bytes,
                                  struct backend_slab **slab, uint64_t *address,
                                  struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK && bytes == 0) {
        status = gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "an allocation of 0 bytes");
    }
    if (status == GPULUA_OK && gpu_cuda_is_taken(stream)) { /* it would be the host's graph's */
        status = gpu_cuda_check_uncaptured(device, stream->handle, error);
    }
    if (status == GPULUA_OK && device->pool == NULL) {
        status = pool_open(device, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    struct backend_slab *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    status = CU(
        device, error,
        cu->cuMemAllocFromPoolAsync(&made->address, (size_t)bytes, device->pool, stream->handle));
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    made->is_pooled = true;
    gpu_cuda_link(&device->slabs, &made->link);
    *slab = made;
    *address = (uint64_t)made->address;
    return GPULUA_OK;
}

void gpu_cuda_pool_trim(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    if (device->pool != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)CU(device, NULL, cu->cuStreamSynchronize(device->pool_stream));
        (void)CU(device, NULL, cu->cuMemPoolTrimTo(device->pool, 0));
    }
}

void gpu_cuda_pool_close(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    if (device->pool != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)CU(device, NULL, cu->cuStreamDestroy(device->pool_stream));
        (void)CU(device, NULL, cu->cuMemPoolDestroy(device->pool));
    }
    device->pool = NULL;
    device->pool_stream = NULL;
}
