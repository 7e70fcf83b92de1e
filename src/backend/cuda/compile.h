/* CUDA C to an image, with NVRTC. Needs no device: the architecture is an argument. */
#ifndef GPU_CUDA_COMPILE_H
#define GPU_CUDA_COMPILE_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cuda/library.h"

/* As module_compile of backend.h, for compute capability `compute` (90 for 9.0). A source for which
 * NVRTC is too old becomes PTX, for the driver to translate. */
gpulua_status gpu_cuda_compile(const struct cuda_nvrtc *nvrtc, uint32_t compute,
                               const char *cache_path, const struct backend_source *source,
                               void **image, size_t *image_bytes, char **description,
                               struct backend_error *error);

#endif
