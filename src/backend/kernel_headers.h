/* The files of kernel/, which kernels include on every device, embedded at build time:
 *
 *     lua5.4 tools/embed.lua gpu_kernel_headers OUT.c src/backend/kernel/...
 */
#ifndef GPU_KERNEL_HEADERS_H
#define GPU_KERNEL_HEADERS_H

#include "embedded.h"

extern const struct gpu_embedded_file gpu_kernel_headers_files[];
extern const size_t gpu_kernel_headers_file_count;

#endif
