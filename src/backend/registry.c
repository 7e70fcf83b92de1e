/* The backends of this build. GPULUA_CUDA is defined where the toolkit's headers were found. */
#include <string.h>

#include "backend/backend.h"

const struct backend_ops *const gpu_backend_table[] = {
#ifdef GPULUA_CUDA
    &gpu_backend_cuda,
#endif
    &gpu_backend_cpu,
    NULL,
};

const struct backend_ops *gpu_backend_find(const char *name) {
    for (size_t i = 0; gpu_backend_table[i] != NULL; i++) {
        if (strcmp(gpu_backend_table[i]->name, name) == 0) {
            return gpu_backend_table[i];
        }
    }
    return NULL;
}
