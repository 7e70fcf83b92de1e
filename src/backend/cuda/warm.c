/* Warming up: the driver's way of a launch, gone once just before it is needed.
 *
 * After some milliseconds of other things the code and the tables of the driver are no longer in
 * the core's caches, and a launch, its event and its word cost the host 20 to 30 us more than one
 * right behind another (measured: docs/results.md). Who is awake before the next round of a script,
 * be it the executor or the loop of a script that sleeps, has the time to fetch them: a fill of
 * nothing, on a stream of its own, goes the same way, plain or prepared as the newest launch. Only
 * on the thread that launches is that of use. */
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/cuda/device.h"

static bool prepare(struct backend_device *device, _Atomic uint64_t *word,
                    struct backend_error *error) {
    if (device->warmth.stream != NULL) {
        return true;
    }
    atomic_store_explicit(word, 0, memory_order_relaxed);
    struct backend_kernel *kernel = device->warmth.kernel;
    if (kernel == NULL && (kernel = calloc(1, sizeof *kernel)) == NULL) {
        return false;
    }
    device->warmth.kernel = kernel;
    if (gpu_cuda_fill_prepare(device, error) != GPULUA_OK ||
        gpu_cuda_event_create(device, &device->warmth.event, error) != GPULUA_OK ||
        gpu_cuda_stream_create(device, 0, device->facts.priority_lowest, &device->warmth.stream,
                               error) != GPULUA_OK) {
        return false;
    }
    *kernel = (struct backend_kernel){.device = device,
                                      .function = device->fill_function,
                                      .args_bytes = sizeof(struct cuda_fill_args)};
    return true;
}

bool gpu_cuda_warm(struct backend_device *device, _Atomic uint64_t *word) {
    struct backend_error error;
    if (device->warmth.is_off || gpu_cuda_enter(device, NULL) != GPULUA_OK) {
        return false;
    }
    gpu_backend_error_init(&error);
    bool works = prepare(device, word, &error);
    if (works && atomic_load_explicit(word, memory_order_relaxed) != device->warmth.count) {
        return true; /* the device has no room for the last one yet, and is not to be given more */
    }
    if (works) {
        static const struct cuda_fill_args nothing;
        struct backend_stream *stream = device->warmth.stream;
        const struct backend_launch launch = {.kernel = device->warmth.kernel,
                                              .stream = stream,
                                              .grid = {1, 1, 1},
                                              .block = {32, 1, 1},
                                              .args = &nothing,
                                              .args_bytes = sizeof nothing};
        bool is_prepared = device->launches_prepared;
        gpu_cuda_prepared_choose(stream, device->warmth.kernel, is_prepared);
        works = gpu_cuda_launch(&launch, &error) == GPULUA_OK &&
                gpu_cuda_event_record(device->warmth.event, stream, &error) == GPULUA_OK &&
                gpu_cuda_stream_word(stream, word, ++device->warmth.count, &error) == GPULUA_OK;
        device->launches_prepared = is_prepared;
    }
    device->warmth.is_off = !works;
    free(error.log);
    return works;
}
