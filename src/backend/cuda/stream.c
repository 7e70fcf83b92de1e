/* Streams, events, words. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/device.h"
#include "backend/cuda/say.h"

gpulua_status gpu_cuda_stream_create(struct backend_device *device, uint32_t slot, int priority,
                                     struct backend_stream **stream, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    (void)slot; /* nothing here fails later by (slot, seq): faults end the device */
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    /* Lower runs first: `highest` is the smallest number. */
    int highest = device->facts.priority_highest, lowest = device->facts.priority_lowest;
    priority = priority < highest ? highest : priority > lowest ? lowest : priority;
    struct backend_stream *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    made->device = device;
    status = CU(device, error,
                cu->cuStreamCreateWithPriority(&made->handle, CU_STREAM_NON_BLOCKING, priority));
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    gpu_cuda_link(&device->streams, &made->link);
    *stream = made;
    return GPULUA_OK;
}

/* As one whose handle the host has: it may be capturing it. */
gpulua_status gpu_cuda_stream_foreign(struct backend_device *device, uint32_t slot,
                                      struct backend_stream **stream, struct backend_error *error) {
    (void)slot;
    if (device->foreign_stream == NULL) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "the device was opened without a stream of the host's");
    }
    struct backend_stream *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    made->device = device;
    made->handle = device->foreign_stream;
    made->is_foreign = true;
    gpu_cuda_stream_given(made);
    gpu_cuda_link(&device->streams, &made->link);
    *stream = made;
    return GPULUA_OK;
}

void gpu_cuda_stream_destroy(struct backend_device *device, struct backend_stream *stream) {
    const struct cuda_driver *cu = &device->cu;
    if (stream == NULL) {
        return;
    }
    gpu_cuda_prepared_forget(stream, NULL);
    gpu_cuda_capture_leave(stream);
    if (!stream->is_foreign && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)CU(device, NULL, cu->cuStreamDestroy(stream->handle));
    }
    gpu_cuda_unlink(&stream->link);
    free(stream);
}

/* Nearly always it lies where the last one did, in the completion page. */
uint64_t gpu_cuda_host_address(struct backend_device *device, const void *word) {
    const char *at = word;
    for (size_t tries = 0; tries <= device->range_count; tries++) {
        size_t i = tries == 0 ? device->range_last : tries - 1;
        if (i < device->range_count) {
            const struct host_range *range = &device->ranges[i];
            uintptr_t offset = (uintptr_t)at - (uintptr_t)range->base;
            if ((uintptr_t)at >= (uintptr_t)range->base && range->bytes >= sizeof(uint64_t) &&
                offset <= range->bytes - sizeof(uint64_t)) {
                device->range_last = i;
                return range->address + offset;
            }
        }
    }
    return 0;
}

/* The device writes the word itself, behind a fence that makes all earlier writes of the stream
 * visible first. UNSUPPORTED: the caller must use events. */
gpulua_status gpu_cuda_stream_word(struct backend_stream *stream, _Atomic uint64_t *word,
                                   uint64_t value, struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    if (device->lost != CUDA_SUCCESS) {
        return gpu_cuda_lost(device, error);
    }
    if (gpu_cuda_is_taken(stream)) { /* each launch of the host's graph would write it again */
        return gpu_backend_fail(error, GPULUA_CAPTURE_ACTIVE, 0,
                                "the stream is being captured by the host");
    }
    CUdeviceptr address = device->has_words ? gpu_cuda_host_address(device, (const void *)word) : 0;
    if (address == 0) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                device->has_words ? "the word is not in registered memory"
                                                  : "streams of this device cannot write words");
    }
    CUresult result;
    CU_HOT(device, result,
           cu->cuStreamWriteValue64(stream->handle, address, value, CU_STREAM_WRITE_VALUE_DEFAULT));
    return gpu_cuda_result(device, result, "cuStreamWriteValue64", __FILE__, __LINE__, error);
}

gpulua_status gpu_cuda_stream_wait(struct backend_stream *stream, struct backend_event *event,
                                   struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    CUresult result;
    if (device->lost != CUDA_SUCCESS) {
        return gpu_cuda_lost(device, error);
    }
    gpulua_status status =
        __builtin_expect(stream->is_given, 0) ? gpu_cuda_reclaim(stream, error) : GPULUA_OK;
    if (__builtin_expect(status != GPULUA_OK, 0)) {
        return status;
    }
    CU_HOT(device, result, cu->cuStreamWaitEvent(stream->handle, event->handle, 0));
    return gpu_cuda_result(device, result, "cuStreamWaitEvent", __FILE__, __LINE__, error);
}

/* ---- events ---- */

gpulua_status gpu_cuda_event_create(struct backend_device *device, struct backend_event **event,
                                    struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    struct backend_event *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    made->device = device;
    /* With the second flag the driver has an interrupt behind each record, and who waits sleeps;
     * without it who waits spins. */
    unsigned int flags = (device->is_timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING) |
                         (device->sleeps ? CU_EVENT_BLOCKING_SYNC : 0u);
    status = CU(device, error, cu->cuEventCreate(&made->handle, flags));
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    gpu_cuda_link(&device->events, &made->link);
    *event = made;
    return GPULUA_OK;
}

void gpu_cuda_event_destroy(struct backend_device *device, struct backend_event *event) {
    const struct cuda_driver *cu = &device->cu;
    if (event == NULL) {
        return;
    }
    if (gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)CU(device, NULL, cu->cuEventDestroy(event->handle));
        if (event->proof != NULL) {
            (void)CU(device, NULL, cu->cuEventDestroy(event->proof));
        }
    }
    gpu_cuda_unlink(&event->link);
    free(event);
}

gpulua_status gpu_cuda_event_record(struct backend_event *event, struct backend_stream *stream,
                                    struct backend_error *error) {
    struct backend_device *device = event->device;
    const struct cuda_driver *cu = &device->cu;
    CUresult result;
    if (device->lost != CUDA_SUCCESS) {
        return gpu_cuda_lost(device, error);
    }
    gpulua_status status =
        __builtin_expect(stream->is_given, 0) ? gpu_cuda_reclaim(stream, error) : GPULUA_OK;
    if (__builtin_expect(status != GPULUA_OK, 0)) {
        return status;
    }
    event->proof_ns = 0;
    CU_HOT(device, result, cu->cuEventRecord(event->handle, stream->handle));
    return gpu_cuda_result(device, result, "cuEventRecord", __FILE__, __LINE__, error);
}

enum backend_query gpu_cuda_event_query(struct backend_event *event, struct backend_error *error) {
    struct backend_device *device = event->device;
    const struct cuda_driver *cu = &device->cu;
    CUresult result;
    if (device->lost != CUDA_SUCCESS) {
        (void)gpu_cuda_lost(device, error);
        return BACKEND_FAILED;
    }
    CU_HOT(device, result, cu->cuEventQuery(event->handle));
    if (__builtin_expect(result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 0)) {
        /* Broken is a capture of the host's that nobody has told us of; the device is well. */
        int before = gpu_cuda_calls_begin(true);
        result = cu->cuEventQuery(event->handle);
        gpu_cuda_mode_put_back(before);
    }
    if (result == CUDA_SUCCESS) {
        return device->dump == NULL ? BACKEND_DONE : gpu_cuda_dump_prove(event, error);
    }
    if (result == CUDA_ERROR_NOT_READY) {
        return BACKEND_PENDING;
    }
    (void)gpu_cuda_failed(device, result, "cuEventQuery(event)", __FILE__, __LINE__, error);
    return BACKEND_FAILED;
}

/* Where the driver leaves core dumps its answer alone proves nothing (dump.c). */
enum backend_query gpu_cuda_stream_query(struct backend_stream *stream,
                                         struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    CUresult result;
    if (device->lost != CUDA_SUCCESS) {
        (void)gpu_cuda_lost(device, error);
        return BACKEND_FAILED;
    }
    CU_HOT(device, result, cu->cuStreamQuery(stream->handle));
    if (result == CUDA_ERROR_NOT_READY || (result == CUDA_SUCCESS && device->dump != NULL)) {
        return BACKEND_PENDING;
    }
    if (result == CUDA_SUCCESS) {
        return BACKEND_DONE;
    }
    gpulua_status status =
        gpu_cuda_failed(device, result, "cuStreamQuery", __FILE__, __LINE__, error);
    /* What is no loss, as a capture of the host's, tells nothing. */
    return status == GPULUA_DEVICE_LOST ? BACKEND_FAILED : BACKEND_PENDING;
}

/* Beside the executor's thread: what ended the device is for event_query to find and to note. */
enum backend_query gpu_cuda_event_wait(struct backend_event *event) {
    struct backend_device *device = event->device;
    const struct cuda_driver *cu = &device->cu;
    CUresult result;
    if (!device->sleeps) {
        return BACKEND_PENDING;
    }
    CU_HOT(device, result, cu->cuEventSynchronize(event->handle));
    return result == CUDA_SUCCESS ? BACKEND_DONE : BACKEND_FAILED;
}

/* ---- streams of other libraries ---- */

static CUstream foreign_stream(uint64_t foreign) {
    return (CUstream)(uintptr_t)foreign;
}

uint64_t gpu_cuda_stream_native(struct backend_stream *stream) {
    gpu_cuda_stream_given(stream);
    return (uint64_t)(uintptr_t)stream->handle;
}

/* The driver finds the context of a stream by itself, but for the default ones: theirs is ours. */
gpulua_status gpu_cuda_stream_give(struct backend_event *event, uint64_t foreign,
                                   struct backend_error *error) {
    struct backend_device *device = event->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    return CU(device, error, cu->cuStreamWaitEvent(foreign_stream(foreign), event->handle, 0));
}

gpulua_status gpu_cuda_stream_take(struct backend_stream *stream, uint64_t foreign,
                                   struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    CUevent event;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    }
    if (status != GPULUA_OK) {
        return status;
    }
    status = CU(device, error, cu->cuEventRecord(event, foreign_stream(foreign)));
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuStreamWaitEvent(stream->handle, event, 0));
    }
    (void)cu->cuEventDestroy(event); /* the driver keeps it for as long as it is waited for */
    return status;
}

/* ---- output ---- */

/* The driver hands out what kernels have printed whenever something is waited for. Only streams
 * that are idle are waited for, so that this returns at once whatever else runs. */
void gpu_cuda_flush_output(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    bool all_idle = device->capture_count == 0 && !gpu_cuda_may_be_captured() &&
                    !device->has_foreign_context; /* else its host's work would be waited for */
    if (gpu_cuda_enter(device, NULL) != GPULUA_OK) {
        return;
    }
    for (struct link *at = device->streams.next; at != &device->streams; at = at->next) {
        const struct backend_stream *stream = (const struct backend_stream *)(const void *)at;
        if (!gpu_cuda_is_taken(stream) && cu->cuStreamQuery(stream->handle) == CUDA_SUCCESS) {
            (void)CU(device, NULL, cu->cuStreamSynchronize(stream->handle));
        } else {
            all_idle = false;
        }
    }
    if (all_idle) {
        (void)CU(device, NULL, cu->cuCtxSynchronize());
    }
    (void)fflush(stdout); /* the driver writes through the C library */
}
