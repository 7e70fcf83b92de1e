/* Compiling CUDA C where there is no GPU (see check.h). */
#include "backend/cuda/check.h"

#include <stdlib.h>

#include "backend/cuda/compile.h"

#define CHECK_COMPUTE 90u

gpulua_status gpu_cuda_compile_check(const char *name, const char *text, const char *options,
                                     const char *keep, char **description,
                                     struct backend_error *error) {
    struct cuda_nvrtc nvrtc;
    *description = NULL;
    gpulua_status status = gpu_cuda_nvrtc_open(&nvrtc, error);
    if (status == GPULUA_OK) {
        struct backend_source source = {
            .name = name, .text = text, .options = options, .keep = keep};
        void *image = NULL;
        size_t image_bytes = 0;
        /* A folder that cannot be: a check must compile, not remember. */
        status = gpu_cuda_compile(&nvrtc, CHECK_COMPUTE, "/dev/null/no-cache", &source, &image,
                                  &image_bytes, description, error);
        free(image);
    }
    return status;
}
