/* Compiling CUDA C where there is no GPU. */
#ifndef GPU_CUDA_CHECK_H
#define GPU_CUDA_CHECK_H

#include "backend/backend.h"

/* Compiles for compute capability 9.0, without the disk cache. `keep` as in backend_source.
 * `*description` (malloc'ed) as from module_compile; errors likewise, the compiler's log in
 * error->log. LIBRARY_UNAVAILABLE: no NVRTC. */
gpulua_status gpu_cuda_compile_check(const char *name, const char *text, const char *options,
                                     const char *keep, char **description,
                                     struct backend_error *error);

#endif
