/* The library "rng" on CUDA: cuRAND. */
#include "backend/rng.h"

#include <stdlib.h>

#include "backend/cuda/toolkit.h"

static gpulua_status open_rng(struct backend_device *device, struct backend_error *error) {
    static const char *const names[] = {"libcurand.so.10", NULL};
    void *library = NULL;
    if (device->rng != NULL) {
        return GPULUA_OK;
    }
    gpulua_status status = gpu_cuda_toolkit_load("cuRAND (libcurand, part of the CUDA toolkit)",
                                                 "GPULUA_LIBCURAND", names, &library, error);
    if (status != GPULUA_OK) {
        return status;
    }
    struct rng_library *made = malloc(sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    status = gpu_rng_init(made, library, false, error);
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    device->rng = made;
    return GPULUA_OK;
}

/* Of a lost device only our own memory is freed. */
void gpu_cuda_rng_close(struct backend_device *device) {
    if (device->rng != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        gpu_rng_finish(device->rng);
    }
    free(device->rng);
    device->rng = NULL;
}

static gpulua_status words(struct backend_device *device, void *made, struct backend_stream *stream,
                           const void *args, struct backend_error *error) {
    (void)made;
    return gpu_rng_words(device->rng, stream->handle, args, error);
}

static const struct cuda_toolkit_call calls[] = {{"words", words, sizeof(struct rng_words_call)}};

const struct cuda_toolkit gpu_cuda_rng = {
    .name = "rng",
    .open = open_rng,
    .calls = calls,
    .call_count = 1,
    .description = RNG_DESCRIPTION,
};
