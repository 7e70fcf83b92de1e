/* Captures of the host's: it has the driver turn what it puts on a stream, its own or one of ours,
 * into a graph of its own (cuStreamBeginCapture).
 *
 * While a stream is captured the driver forbids calls that it cannot record, "potentially unsafe"
 * ones: allocating, waiting, asking whether an event has come, loading code. Such a call fails, and
 * the capture is broken. Which threads are concerned is the capture's mode: that of the thread that
 * began it, all (CU_STREAM_CAPTURE_MODE_GLOBAL) or none (RELAXED); and a thread can say that its
 * calls are none of the capture's business (cuThreadExchangeStreamCaptureMode, whose documentation
 * all this is from). Ours are none: they are made in the relaxed mode, in which only what concerns
 * a captured stream itself is forbidden, and the host's mode is put back behind them.
 *
 * As that is about threads and not about devices, what decides is a count of the process. It is of
 * captures that were begun here, and of our streams whose handle the host has: these it may capture
 * without telling us. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/cuda/device.h"

struct cuda_capture {
    struct link link;
    CUstream handle;
    pthread_t thread; /* that has begun it, and alone can end it unless it is relaxed */
    bool is_relaxed;
};

static _Atomic uint32_t reasons; /* for making calls in the relaxed mode */
static _Atomic(PFN_cuThreadExchangeStreamCaptureMode_v10010) exchange;

/* ---- the mode of our calls ---- */

void gpu_cuda_captures_init(struct backend_device *device) {
    if (device->cu.cuThreadExchangeStreamCaptureMode != NULL) {
        atomic_store(&exchange, device->cu.cuThreadExchangeStreamCaptureMode);
    }
}

int gpu_cuda_calls_begin(bool for_good) {
    if (__builtin_expect(atomic_load_explicit(&reasons, memory_order_relaxed) == 0, 1) &&
        !for_good) {
        return -1;
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    PFN_cuThreadExchangeStreamCaptureMode_v10010 swap = atomic_load(&exchange);
    return swap != NULL && swap(&mode) == CUDA_SUCCESS ? (int)mode : -1;
}

void gpu_cuda_mode_put_back(int before) {
    if (__builtin_expect(before >= 0, 0)) {
        CUstreamCaptureMode mode = (CUstreamCaptureMode)before;
        (void)atomic_load (&exchange)(&mode);
    }
}

void gpu_cuda_calls_end(int before) {
    gpu_cuda_mode_put_back(before);
    gpu_cuda_context_restore();
}

bool gpu_cuda_may_be_captured(void) {
    return atomic_load_explicit(&reasons, memory_order_relaxed) != 0;
}

/* ---- which streams ---- */

static struct cuda_capture *find(const struct backend_device *device, CUstream handle) {
    for (struct link *at = device->captures.next; at != &device->captures; at = at->next) {
        struct cuda_capture *capture = (struct cuda_capture *)(void *)at;
        if (capture->handle == handle) {
            return capture;
        }
    }
    return NULL;
}

static void forget(struct backend_device *device, struct cuda_capture *capture) {
    gpu_cuda_unlink(&capture->link);
    free(capture);
    device->capture_count--;
    atomic_fetch_sub(&reasons, 1);
}

static gpulua_status look(struct backend_device *device, CUstream handle,
                          enum wire_capture_state *state, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    *state = WIRE_CAPTURE_NONE;
    if (cu->cuStreamIsCapturing == NULL) {
        return GPULUA_OK;
    }
    CUresult result;
    CU_HOT(device, result, cu->cuStreamIsCapturing(handle, &status));
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        /* The legacy stream, while one that it waits for is captured. That one stays well. */
        *state = WIRE_CAPTURE_ACTIVE;
        return GPULUA_OK;
    }
    *state = status == CU_STREAM_CAPTURE_STATUS_ACTIVE        ? WIRE_CAPTURE_ACTIVE
             : status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? WIRE_CAPTURE_INVALIDATED
                                                              : WIRE_CAPTURE_NONE;
    return gpu_cuda_result(device, result, "cuStreamIsCapturing", __FILE__, __LINE__, error);
}

gpulua_status gpu_cuda_check_uncaptured(struct backend_device *device, CUstream handle,
                                        struct backend_error *error) {
    enum wire_capture_state state;
    gpulua_status status = look(device, handle, &state, error);
    if (status == GPULUA_OK && state == WIRE_CAPTURE_ACTIVE) {
        status = gpu_backend_fail(error, GPULUA_CAPTURE_ACTIVE, 0,
                                  "the stream is being captured by the host");
    } else if (status == GPULUA_OK && state == WIRE_CAPTURE_INVALIDATED) {
        status = gpu_backend_fail(error, GPULUA_CAPTURE_INVALIDATED, 0,
                                  "the host's capture of the stream is broken, and has not ended");
    }
    return status;
}

void gpu_cuda_stream_given(struct backend_stream *stream) {
    if (!stream->is_given) {
        stream->is_given = true;
        atomic_fetch_add(&reasons, 1);
    }
}

bool gpu_cuda_is_taken(const struct backend_stream *stream) {
    return __builtin_expect(stream->is_given, 0) &&
           gpu_cuda_check_uncaptured(stream->device, stream->handle, NULL) != GPULUA_OK;
}

/* Work that gets here was not refused before, because nobody could be told: it comes from a
 * recorder that was dropped. Rather than becoming part of the host's graph it ends the capture. */
gpulua_status gpu_cuda_reclaim(struct backend_stream *stream, struct backend_error *error) {
    return gpu_cuda_is_taken(stream)
               ? gpu_cuda_capture_close(stream->device, (uint64_t)(uintptr_t)stream->handle, NULL,
                                        error)
               : GPULUA_OK;
}

/* ---- begin, look, end ---- */

gpulua_status gpu_cuda_capture_open(struct backend_device *device, uint64_t foreign,
                                    enum wire_capture_mode mode, struct backend_error *error) {
    static const CUstreamCaptureMode modes[] = {
        [WIRE_CAPTURE_GLOBAL] = CU_STREAM_CAPTURE_MODE_GLOBAL,
        [WIRE_CAPTURE_THREAD_LOCAL] = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        [WIRE_CAPTURE_RELAXED] = CU_STREAM_CAPTURE_MODE_RELAXED};
    const struct cuda_driver *cu = &device->cu;
    CUstream handle = (CUstream)(uintptr_t)foreign;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    if (cu->cuStreamBeginCapture == NULL || cu->cuStreamEndCapture == NULL ||
        cu->cuStreamIsCapturing == NULL || cu->cuGraphDestroy == NULL ||
        cu->cuThreadExchangeStreamCaptureMode == NULL) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "this CUDA driver is too old to capture streams");
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "the legacy default stream cannot be captured");
    }
    status = gpu_cuda_check_uncaptured(device, handle, error);
    if (status != GPULUA_OK) {
        return status;
    }
    struct cuda_capture *made = find(device, handle); /* one that the host has ended by itself */
    if (made != NULL) {
        forget(device, made);
    }
    made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    /* First, so that no thread is in between: from here on calls are relaxed. */
    atomic_fetch_add(&reasons, 1);
    device->capture_count++;
    made->handle = handle;
    made->thread = pthread_self();
    made->is_relaxed = mode == WIRE_CAPTURE_RELAXED;
    gpu_cuda_link(&device->captures, &made->link);
    status = CU(device, error, cu->cuStreamBeginCapture(handle, modes[mode]));
    if (status != GPULUA_OK) {
        forget(device, made);
    }
    return status;
}

gpulua_status gpu_cuda_capture_look(struct backend_device *device, uint64_t foreign,
                                    enum wire_capture_state *state, struct backend_error *error) {
    gpulua_status status = gpu_cuda_enter(device, error);
    *state = WIRE_CAPTURE_NONE;
    return status != GPULUA_OK ? status : look(device, (CUstream)(uintptr_t)foreign, state, error);
}

/* Whatever the driver says of it, the stream is captured no more, unless it is another thread's
 * (STREAM_MISUSE). */
static gpulua_status end(struct backend_device *device, CUstream handle, CUgraph *graph,
                         struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    enum wire_capture_state left;
    CUgraph rest = NULL;
    *graph = NULL;
    gpulua_status status = CU(device, error, cu->cuStreamEndCapture(handle, graph));
    if (status == GPULUA_OK && *graph == NULL) {
        status = gpu_backend_fail(error, GPULUA_CAPTURE_INVALIDATED, 0,
                                  "cuStreamEndCapture gave no graph");
    }
    if (status != GPULUA_OK && status != GPULUA_STREAM_MISUSE && device->lost == CUDA_SUCCESS &&
        look(device, handle, &left, NULL) == GPULUA_OK && left != WIRE_CAPTURE_NONE) {
        (void)cu->cuStreamEndCapture(handle, &rest);
    }
    if (rest != NULL) {
        (void)cu->cuGraphDestroy(rest);
    }
    return status;
}

/* Of a capture that has been begun by somebody else, only to drop it. */
gpulua_status gpu_cuda_capture_close(struct backend_device *device, uint64_t foreign,
                                     uint64_t *graph, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    CUstream handle = (CUstream)(uintptr_t)foreign;
    CUgraph made = NULL;
    enum wire_capture_state state = WIRE_CAPTURE_NONE;
    struct cuda_capture *capture = find(device, handle);
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK && graph != NULL && capture == NULL) {
        return gpu_backend_fail(error, GPULUA_CLOSED, 0,
                                "the capture was ended by the end of what used the stream");
    }
    if (status == GPULUA_OK) {
        status = look(device, handle, &state, error);
    }
    if (status == GPULUA_OK && state != WIRE_CAPTURE_NONE && capture != NULL &&
        !capture->is_relaxed && !pthread_equal(capture->thread, pthread_self())) {
        /* The driver would refuse, too, and break the capture. */
        status = gpu_backend_fail(error, GPULUA_STREAM_MISUSE, 0,
                                  "cuStreamEndCapture: another thread has begun the capture, and "
                                  "is to end it");
    } else if (status == GPULUA_OK && state != WIRE_CAPTURE_NONE) {
        status = end(device, handle, &made, error);
    } else if (status == GPULUA_OK && graph != NULL) {
        status = gpu_backend_fail(error, GPULUA_CLOSED, 0,
                                  "the capture has been ended by somebody else");
    }
    if (capture != NULL && status != GPULUA_STREAM_MISUSE) {
        forget(device, capture);
    }
    if (graph != NULL) {
        *graph = (uint64_t)(uintptr_t)made;
        return status;
    }
    if (made != NULL) {
        (void)cu->cuGraphDestroy(made);
    }
    return status == GPULUA_CAPTURE_INVALIDATED ? gpu_cuda_check_uncaptured(device, handle, error)
                                                : status;
}

void gpu_cuda_capture_leave(struct backend_stream *stream) {
    struct backend_device *device = stream->device;
    if (stream->is_given) {
        if (!stream->is_foreign) {
            (void)gpu_cuda_capture_close(device, (uint64_t)(uintptr_t)stream->handle, NULL, NULL);
        }
        struct cuda_capture *left = find(device, stream->handle); /* of another thread */
        if (left != NULL) {
            forget(device, left);
        }
        atomic_fetch_sub(&reasons, 1);
    }
}

void gpu_cuda_captures_close(struct backend_device *device) {
    while (device->captures.next != &device->captures) {
        struct cuda_capture *capture = (struct cuda_capture *)(void *)device->captures.next;
        gpulua_status status =
            gpu_cuda_capture_close(device, (uint64_t)(uintptr_t)capture->handle, NULL, NULL);
        if (status == GPULUA_STREAM_MISUSE) { /* another thread's: its host is left with it */
            forget(device, capture);
        }
    }
}
