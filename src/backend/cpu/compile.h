/* The machine's C++ compiler, and the shim's files on disk. */
#ifndef GPU_CPU_COMPILE_H
#define GPU_CPU_COMPILE_H

#include "backend/backend.h"

#define CPU_PATH_BYTES 4096

struct cpu_compiler {
    char path[CPU_PATH_BYTES];         /* as found */
    char identity[2 * CPU_PATH_BYTES]; /* path behind all links, size and time of the file */
    bool is_clang;                     /* known once gpu_cpu_compiler_ask was called */
};

/* Looks for $GPULUA_CXX, or else c++, g++, clang++. LIBRARY_UNAVAILABLE names what was tried. */
gpulua_status gpu_cpu_compiler_find(struct cpu_compiler *compiler, struct backend_error *error);
void gpu_cpu_compiler_describe(struct text *text); /* the slot */
/* Runs it once to learn what it is. */
gpulua_status gpu_cpu_compiler_ask(struct cpu_compiler *compiler, struct backend_error *error);

/* What the processor is and can: code for one does not run on every other. */
void gpu_cpu_processor_identity(char *text, size_t text_bytes);

/* The folder that holds the shim's files, made when it is not there, and kept until `*hold` is
 * closed. `digest`: 16 hex digits of their contents. */
void gpu_cpu_shim_digest(char digest[17]);
gpulua_status gpu_cpu_shim_folder(const char *cache_folder, char *folder, size_t folder_bytes,
                                  int *hold, struct backend_error *error);

#endif
