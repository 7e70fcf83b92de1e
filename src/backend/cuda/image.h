/* Compiled modules as bytes: what module_compile makes, and what users bring along. */
#ifndef GPU_CUDA_IMAGE_H
#define GPU_CUDA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"

/* What module_compile makes: a header, the description, the symbols (lines of "k NAME\tSYMBOL" for
 * kernels, "g NAME\tSYMBOL" for variables), the code. */
struct cuda_image {
    const char *description; /* all borrowed from the bytes; texts are NUL-terminated */
    const char *symbols;
    const void *code; /* cubin, or PTX with its NUL */
    size_t code_bytes;
    bool prints; /* kernels call printf */
};

/* NULL: no memory. malloc'ed. */
void *gpu_cuda_image_make(const struct cuda_image *image, size_t *byte_count);
/* False: not such an image, or damaged. */
bool gpu_cuda_image_read(const void *bytes, size_t byte_count, struct cuda_image *image);
/* The symbol of a kernel ('k') or variable ('g'), malloc'ed; NULL: not there, or no memory. */
char *gpu_cuda_image_symbol(const struct cuda_image *image, char kind, const char *name);

enum cuda_code { CUDA_CODE_NONE, CUDA_CODE_PTX, CUDA_CODE_CUBIN, CUDA_CODE_FATBIN };

/* What a user's bytes are. The driver takes a pointer without a length and believes what it reads:
 * bytes whose own lengths go past the end are CUDA_CODE_NONE, with `why`. */
enum cuda_code gpu_cuda_code_kind(const void *bytes, size_t byte_count, const char **why);
/* Do kernels of it call printf, as far as symbols tell? */
bool gpu_cuda_code_prints(const void *bytes, size_t byte_count);

#endif
