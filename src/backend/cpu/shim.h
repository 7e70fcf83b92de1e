/* The files of shim/, embedded at build time: all of them turned into byte arrays by
 *
 *     lua5.4 tools/embed.lua gpu_cpu_shim OUT.c src/backend/cpu/shim/...
 */
#ifndef GPU_CPU_SHIM_H
#define GPU_CPU_SHIM_H

#include "embedded.h"

extern const struct gpu_embedded_file gpu_cpu_shim_files[];
extern const size_t gpu_cpu_shim_file_count;

#endif
