/* The files of kernel/, which kernels include on every device, embedded at build time:
 *
 *     lua5.4 tools/embed.lua gpu_kernel_headers OUT.c src/backend/kernel/...
 */
#ifndef GPU_KERNEL_HEADERS_H
#define GPU_KERNEL_HEADERS_H

#include <stddef.h>

struct gpu_kernel_headers_file {
    const char *name; /* without a folder */
    const unsigned char *bytes;
    size_t byte_count;
};
extern const struct gpu_kernel_headers_file gpu_kernel_headers_files[];
extern const size_t gpu_kernel_headers_file_count;

#endif
