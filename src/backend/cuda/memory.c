/* Device memory, registered host memory, copies. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device.h"

gpulua_status gpu_cuda_memory_info(struct backend_device *device, struct wire_memory_facts *facts,
                                   struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    size_t bytes_free = 0, bytes_total = 0;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuMemGetInfo(&bytes_free, &bytes_total));
    }
    facts->bytes_free = bytes_free;
    facts->bytes_total = bytes_total;
    return status;
}

/* ---- slabs ---- */

/* Address space, memory, mapping, access: unwound in reverse order. The memory's handle is released
 * at once, the mapping keeps the memory; whoever wants to export it can retain the handle again. */
static gpulua_status virtual_create(struct backend_device *device, uint64_t bytes, bool exportable,
                                    struct backend_slab *slab, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    CUmemGenericAllocationHandle memory;
    CUdeviceptr address = 0;
    size_t granularity = 0, mapped = 0;
    CUmemAllocationProp wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device->handle;
    wanted.requestedHandleTypes =
        exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location = wanted.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

    gpulua_status status = CU(device, error,
                              cu->cuMemGetAllocationGranularity(
                                  &granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    if (status != GPULUA_OK) {
        return status;
    }
    granularity = granularity > 0 ? granularity : 1;
    if (bytes > SIZE_MAX - granularity) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                "%" PRIu64 " bytes are more than there can be", bytes);
    }
    mapped = ((size_t)bytes + granularity - 1) / granularity * granularity;
    status = CU(device, error, cu->cuMemAddressReserve(&address, mapped, 0, 0, 0));
    if (status != GPULUA_OK) {
        return status;
    }
    status = CU(device, error, cu->cuMemCreate(&memory, mapped, &wanted, 0));
    if (status != GPULUA_OK) {
        goto fail_address;
    }
    status = CU(device, error, cu->cuMemMap(address, mapped, 0, memory, 0));
    (void)cu->cuMemRelease(memory);
    if (status != GPULUA_OK) {
        goto fail_address;
    }
    status = CU(device, error, cu->cuMemSetAccess(address, mapped, &access, 1));
    if (status != GPULUA_OK) {
        goto fail_map;
    }
    slab->address = address;
    slab->mapped_bytes = mapped;
    return GPULUA_OK;

fail_map:
    (void)cu->cuMemUnmap(address, mapped);
fail_address:
    (void)cu->cuMemAddressFree(address, mapped);
    return status;
}

/* Falls back step by step where the machine does not let us (containers forbid exportable handles,
 * for one), and does not try again. Being out of memory is no reason to, nor is a capture that
 * nobody has told us of. Copies in graphs are changed from one slab to another, which the driver
 * refuses between two kinds of memory: what the first slab is, exportable or not, the others are.
 */
static gpulua_status slab_allocate(struct backend_device *device, uint64_t bytes,
                                   struct backend_slab *slab, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    while (device->has_virtual) {
        gpulua_status status = virtual_create(device, bytes, device->has_export, slab, error);
        bool is_refused = status == GPULUA_CAPTURE_ACTIVE || status == GPULUA_CAPTURE_INVALIDATED;
        device->has_virtual_slabs |= status == GPULUA_OK;
        if (status == GPULUA_OK || status == GPULUA_OUT_OF_MEMORY || status == GPULUA_DEVICE_LOST ||
            is_refused) {
            return status;
        }
        if (device->has_export) {
            device->has_export = false;
        } else if (device->has_virtual_slabs) {
            return status;
        } else {
            device->has_virtual = false;
        }
    }
    slab->mapped_bytes = 0;
    return CU(device, error, cu->cuMemAlloc(&slab->address, (size_t)bytes));
}

gpulua_status gpu_cuda_slab_create(struct backend_device *device, uint64_t bytes,
                                   struct backend_slab **slab, uint64_t *address,
                                   struct backend_error *error) {
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    if (bytes == 0) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "a slab of 0 bytes");
    }
    struct backend_slab *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    status = slab_allocate(device, bytes, made, error);
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    gpu_cuda_link(&device->slabs, &made->link);
    *slab = made;
    *address = (uint64_t)made->address;
    return GPULUA_OK;
}

void gpu_cuda_slab_destroy(struct backend_device *device, struct backend_slab *slab) {
    const struct cuda_driver *cu = &device->cu;
    if (slab == NULL) {
        return;
    }
    if (gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        if (slab->is_pooled) {
            (void)CU(device, NULL, cu->cuMemFreeAsync(slab->address, device->pool_stream));
        } else if (slab->mapped_bytes > 0) {
            (void)CU(device, NULL, cu->cuMemUnmap(slab->address, slab->mapped_bytes));
            (void)CU(device, NULL, cu->cuMemAddressFree(slab->address, slab->mapped_bytes));
        } else {
            (void)CU(device, NULL, cu->cuMemFree(slab->address));
        }
    }
    gpu_cuda_unlink(&slab->link);
    free(slab);
}

/* ---- host memory ---- */

gpulua_status gpu_cuda_host_register(struct backend_device *device, void *base, uint64_t bytes,
                                     struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    struct host_range range = {.base = base, .bytes = bytes};
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    struct host_range *grown =
        realloc(device->ranges, (device->range_count + 1) * sizeof *device->ranges);
    if (grown == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    device->ranges = grown;
    status = CU(device, error,
                cu->cuMemHostRegister(base, (size_t)bytes,
                                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    if (status != GPULUA_OK) {
        return status;
    }
    status = CU(device, error, cu->cuMemHostGetDevicePointer(&range.address, base, 0));
    if (status != GPULUA_OK) {
        (void)cu->cuMemHostUnregister(base);
        return status;
    }
    device->ranges[device->range_count++] = range;
    return GPULUA_OK;
}

void gpu_cuda_host_unregister(struct backend_device *device, void *base) {
    const struct cuda_driver *cu = &device->cu;
    for (size_t i = 0; i < device->range_count; i++) {
        if (device->ranges[i].base == base) {
            if (gpu_cuda_enter(device, NULL) == GPULUA_OK) {
                (void)CU(device, NULL, cu->cuMemHostUnregister(base));
            }
            device->ranges[i] = device->ranges[--device->range_count];
            device->range_last = 0;
            return;
        }
    }
}

/* ---- copies ---- */

gpulua_status gpu_cuda_copy(struct backend_stream *stream, uint64_t seq, uint64_t dst, uint64_t src,
                            uint64_t bytes, struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    (void)seq; /* faults end the device, and are seen there */
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK || bytes == 0) {
        return status;
    }
    return CU(device, error, cu->cuMemcpyDtoDAsync(dst, src, (size_t)bytes, stream->handle));
}

gpulua_status gpu_cuda_upload(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                              const void *src, uint64_t bytes, struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    (void)seq;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK || bytes == 0) {
        return status;
    }
    return CU(device, error, cu->cuMemcpyHtoDAsync(dst, src, (size_t)bytes, stream->handle));
}

gpulua_status gpu_cuda_download(struct backend_stream *stream, uint64_t seq, void *dst,
                                uint64_t src, uint64_t bytes, struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    (void)seq;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK || bytes == 0) {
        return status;
    }
    return CU(device, error, cu->cuMemcpyDtoHAsync(dst, src, (size_t)bytes, stream->handle));
}
