/* Which context is current, ours or the host's.
 *
 * Current is a context on a thread, and the thread may be the host's. So whoever makes ours current
 * there notes which one was, and it is put back behind the calls (calls_end), or behind the last of
 * several that are held together (calls_hold). Where ours was current already, there is nothing to
 * be put back, and where it comes in the way of every launch nothing is asked: see CU_HOT. */
#include <stdatomic.h>

#include "backend/cuda/say.h"

_Thread_local struct cuda_thread gpu_cuda_thread;

/* Of the driver, as the thread's state outlives devices. */
static _Atomic(PFN_cuCtxGetCurrent_v4000) get_current;
static _Atomic(PFN_cuCtxSetCurrent_v4000) set_current;

/* ---- making it current ---- */

gpulua_status gpu_cuda_make_current(struct backend_device *device, CUcontext current,
                                    struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    struct cuda_thread *thread = &gpu_cuda_thread;
    CUresult result = cu->cuCtxSetCurrent(device->context);
    if (device->has_foreign_context &&
        (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED)) {
        /* Without it there is nothing left of what we had in it. */
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    gpulua_status status = gpu_cuda_result(device, result, "cuCtxSetCurrent(device->context)",
                                           __FILE__, __LINE__, error);
    if (status == GPULUA_OK) {
        /* What is there but has not been put there by us, the host has. */
        if (!thread->is_switched || current != thread->ours) {
            thread->before = current;
        }
        thread->ours = device->context;
        thread->is_switched = true;
        thread->is_away = false;
    }
    return status;
}

CUresult gpu_cuda_come_back(struct backend_device *device) {
    if (gpu_cuda_enter(device, NULL) != GPULUA_OK) {
        return device->lost != CUDA_SUCCESS ? device->lost : CUDA_ERROR_INVALID_CONTEXT;
    }
    gpu_cuda_thread.is_away = false;
    return CUDA_SUCCESS;
}

bool gpu_cuda_was_elsewhere(struct backend_device *device, CUresult result) {
    const struct cuda_driver *cu = &device->cu;
    CUcontext current = NULL;
    if (result != CUDA_ERROR_INVALID_CONTEXT && result != CUDA_ERROR_INVALID_HANDLE &&
        result != CUDA_ERROR_CONTEXT_IS_DESTROYED && result != CUDA_ERROR_INVALID_VALUE) {
        return false;
    }
    if (cu->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == device->context) {
        return false;
    }
    gpu_cuda_log_skip(device);
    return gpu_cuda_make_current(device, current, NULL) == GPULUA_OK;
}

/* ---- putting back what was ---- */

static void put_back(struct cuda_thread *thread) {
    CUcontext current = NULL;
    thread->is_switched = false;
    thread->is_away = true;
    /* Another one than ours the host has made current since, in a function that a script called. */
    if (atomic_load(&get_current)(&current) == CUDA_SUCCESS && current == thread->ours &&
        atomic_load(&set_current)(thread->before) != CUDA_SUCCESS) {
        (void)atomic_load (&set_current)(NULL); /* it was destroyed there */
    }
}

void gpu_cuda_context_restore(void) {
    struct cuda_thread *thread = &gpu_cuda_thread;
    if (__builtin_expect(thread->is_switched, 0) && thread->hold_count == 0) {
        put_back(thread);
    }
}

void gpu_cuda_calls_hold(bool is_held) {
    if (is_held) {
        gpu_cuda_thread.hold_count++;
    } else {
        gpu_cuda_thread.hold_count--;
        gpu_cuda_context_restore();
    }
}

/* ---- opening and closing ---- */

/* Of a context of the host's its device is found out. */
static gpulua_status enter_foreign(struct backend_device *device,
                                   const struct backend_open_info *info, int count,
                                   struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    CUdevice handle = 0;
    device->has_foreign_context = true;
    device->context = info->context;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuCtxGetDevice(&device->handle));
    }
    for (int i = 0; i < count && status == GPULUA_OK; i++) {
        status = CU(device, error, cu->cuDeviceGet(&handle, i));
        if (status == GPULUA_OK && handle == device->handle) {
            device->facts.ordinal = i;
            break;
        }
    }
    if (status == GPULUA_OK && info->ordinal >= 0 && info->ordinal != device->facts.ordinal) {
        status = gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                  "the context is one of cuda:%d, not of cuda:%d",
                                  device->facts.ordinal, info->ordinal);
    }
    return status;
}

static gpulua_status enter_primary(struct backend_device *device, int ordinal, int count,
                                   struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    unsigned flags = 0;
    int is_active = 0;
    if (ordinal < 0 || ordinal >= count) {
        return gpu_backend_fail(error, GPULUA_NO_DEVICE, 0,
                                "cuda:%d: the CUDA driver sees %d GPU%s", ordinal, count,
                                count == 1 ? "" : "s");
    }
    device->facts.ordinal = ordinal;
    gpulua_status status = CU(device, error, cu->cuDeviceGet(&device->handle, ordinal));
    if (status != GPULUA_OK) {
        return status;
    }
    device->warmth.is_off =
        cu->cuDevicePrimaryCtxGetState == NULL ||
        CU(device, NULL, cu->cuDevicePrimaryCtxGetState(device->handle, &flags, &is_active)) !=
            GPULUA_OK ||
        is_active != 0;
    status = CU(device, error, cu->cuDevicePrimaryCtxRetain(&device->context, device->handle));
    return status == GPULUA_OK ? gpu_cuda_enter(device, error) : status;
}

/* The host's stream has to be one of the context. */
static gpulua_status check_stream(struct backend_device *device, CUstream stream,
                                  struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    CUcontext context = NULL;
    if (stream == NULL || cu->cuStreamGetCtx == NULL) {
        return GPULUA_OK;
    }
    gpulua_status status = CU(device, error, cu->cuStreamGetCtx(stream, &context));
    if (status == GPULUA_OK && context != device->context) {
        status = gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                  "cuda_stream is a stream of another context than the device's");
    }
    return status;
}

gpulua_status gpu_cuda_context_open(struct backend_device *device,
                                    const struct backend_open_info *info, int count,
                                    struct backend_error *error) {
    atomic_store(&get_current, device->cu.cuCtxGetCurrent);
    atomic_store(&set_current, device->cu.cuCtxSetCurrent);
    gpulua_status status = info->context != NULL
                               ? enter_foreign(device, info, count, error)
                               : enter_primary(device, info->ordinal, count, error);
    device->warmth.is_off |= device->has_foreign_context;
    device->foreign_stream = info->stream;
    return status == GPULUA_OK ? check_stream(device, info->stream, error) : status;
}

/* One that may be gone now is not left current: neither by us, nor by a host that relies on us to
 * keep it. */
void gpu_cuda_context_close(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    struct cuda_thread *thread = &gpu_cuda_thread;
    CUcontext current = NULL;
    unsigned flags = 0;
    int is_active = 0;
    if (device->context == NULL) {
        return;
    }
    if (thread->is_switched && thread->ours == device->context) {
        put_back(thread);
    }
    if (device->has_foreign_context) {
        return;
    }
    (void)cu->cuDevicePrimaryCtxRelease(device->handle);
    if (cu->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == device->context &&
        (cu->cuDevicePrimaryCtxGetState == NULL ||
         cu->cuDevicePrimaryCtxGetState(device->handle, &flags, &is_active) != CUDA_SUCCESS ||
         !is_active)) {
        (void)cu->cuCtxSetCurrent(NULL);
    }
}
