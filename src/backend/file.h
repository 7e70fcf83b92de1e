/* Whole reads and writes, whatever interrupts them. */
#ifndef GPU_BACKEND_FILE_H
#define GPU_BACKEND_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "gpulua.h"

/* False: an error, or the file's end before `byte_count` bytes. */
bool gpu_backend_read_all(int file, void *to, size_t byte_count);
bool gpu_backend_write_all(int file, const void *from, size_t byte_count);

/* Makes, or writes over, the file PREFIX and SUFFIX. IO. */
struct backend_error;
gpulua_status gpu_backend_keep(const char *prefix, const char *suffix, const void *bytes,
                               size_t byte_count, struct backend_error *error);

#endif
