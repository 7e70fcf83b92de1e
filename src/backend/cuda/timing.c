/* When events were over, on the host's clock.
 *
 * The driver tells the time between two events, as a float of milliseconds. So there is an event
 * that was over at a known time of the host's, and all others are told from that. It is recorded on
 * an idle stream of its own between two looks at the host's clock, and anew before the device's
 * clock has gone away from the host's, or the float has lost its nanoseconds. */
#include <time.h>

#include "backend/cuda/device.h"

#define ALIGN_AFTER_NS INT64_C(100000000)
#define ALIGN_ROUNDS 4
#define ALIGN_WAIT_NS INT64_C(200000) /* of a round; then the device has no time for it */
/* Until there is something to tell from: what work took is right however far off that is, and where
 * other processes have the device, one may have to wait for its turn. */
#define ALIGN_WAIT_FIRST_NS INT64_C(50000000)
#define DRIFT_PER_NS 50e-6 /* that two clocks may have */

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* The stream and the two events, one of which is the one that all is told from. */
static gpulua_status make(struct backend_device *device, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    struct cuda_clock *clock = &device->clock;
    gpulua_status status = CU(
        device, error, cu->cuStreamCreateWithPriority(&clock->stream, CU_STREAM_NON_BLOCKING, 0));
    for (int i = 0; i < 2 && status == GPULUA_OK; i++) {
        status = CU(device, error, cu->cuEventCreate(&clock->events[i], CU_EVENT_DEFAULT));
    }
    if (status != GPULUA_OK && device->lost == CUDA_SUCCESS) {
        gpu_cuda_clock_close(device); /* to be made as a whole another time */
    }
    return status;
}

void gpu_cuda_clock_close(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    struct cuda_clock *clock = &device->clock;
    for (int i = 0; i < 2; i++) {
        if (clock->events[i] != NULL) {
            (void)cu->cuEventDestroy(clock->events[i]);
        }
    }
    if (clock->stream != NULL) {
        (void)cu->cuStreamDestroy(clock->stream);
    }
    *clock = (struct cuda_clock){0};
}

/* How far apart the two looks were, between which `event` was over; -1: it was not in time. */
static int64_t try_align(struct backend_device *device, CUevent event, int64_t *at_ns) {
    const struct cuda_driver *cu = &device->cu;
    int64_t before_ns = clock_ns();
    if (CU(device, NULL, cu->cuEventRecord(event, device->clock.stream)) != GPULUA_OK) {
        return -1;
    }
    for (;;) {
        CUresult result = cu->cuEventQuery(event);
        int64_t after_ns = clock_ns();
        if (result == CUDA_SUCCESS) {
            *at_ns = before_ns + (after_ns - before_ns) / 2;
            return after_ns - before_ns;
        }
        if (result != CUDA_ERROR_NOT_READY ||
            after_ns - before_ns >
                (device->clock.base_ns == 0 ? ALIGN_WAIT_FIRST_NS : ALIGN_WAIT_NS)) {
            return -1;
        }
    }
}

/* Fails only if there was never anything to tell times from. */
static gpulua_status align(struct backend_device *device, struct backend_error *error) {
    struct cuda_clock *clock = &device->clock;
    if (clock->base_ns != 0 && clock_ns() - clock->tried_ns < ALIGN_AFTER_NS) {
        return GPULUA_OK;
    }
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK && clock->stream == NULL) {
        status = make(device, error);
    }
    /* As good as what there is by now: where other processes have the device, a look can take long.
     */
    double age_ns = (double)(clock_ns() - clock->base_ns);
    int64_t best_ns =
        clock->base_ns == 0 ? INT64_MAX : clock->apart_ns + (int64_t)(age_ns * DRIFT_PER_NS * 2);
    for (int i = 0; i < ALIGN_ROUNDS && status == GPULUA_OK; i++) {
        CUevent other = clock->events[clock->base ^ 1u];
        int64_t at_ns = 0;
        int64_t apart_ns = try_align(device, other, &at_ns);
        if (apart_ns >= 0 && apart_ns < best_ns) {
            best_ns = clock->apart_ns = apart_ns;
            clock->base ^= 1u;
            clock->base_ns = at_ns;
        }
    }
    clock->tried_ns = clock_ns();
    return status == GPULUA_OK && clock->base_ns == 0
               ? gpu_backend_fail(error, GPULUA_TIMEOUT, 0,
                                  "the device's clock could not be held against the host's")
               : status;
}

gpulua_status gpu_cuda_event_times(struct backend_event *begin, struct backend_event *end,
                                   int64_t *begin_ns, int64_t *end_ns,
                                   struct backend_error *error) {
    struct backend_device *device = begin->device;
    const struct cuda_driver *cu = &device->cu;
    CUresult result;
    float to_begin = 0, to_end = 0;
    if (device->lost != CUDA_SUCCESS) {
        return gpu_cuda_lost(device, error);
    }
    gpulua_status status = align(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    CUevent base = device->clock.events[device->clock.base];
    CU_HOT(device, result, cu->cuEventElapsedTime(&to_begin, base, begin->handle));
    if (result == CUDA_SUCCESS) {
        result = cu->cuEventElapsedTime(&to_end, base, end->handle);
    }
    *begin_ns = device->clock.base_ns + (int64_t)((double)to_begin * 1e6);
    *end_ns = device->clock.base_ns + (int64_t)((double)to_end * 1e6);
    return gpu_cuda_result(device, result, "cuEventElapsedTime", __FILE__, __LINE__, error);
}
