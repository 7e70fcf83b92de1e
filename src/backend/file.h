/* Whole reads and writes, whatever interrupts them. */
#ifndef GPU_BACKEND_FILE_H
#define GPU_BACKEND_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* False: an error, or the file's end before `byte_count` bytes. */
bool gpu_backend_read_all(int file, void *to, size_t byte_count);
bool gpu_backend_write_all(int file, const void *from, size_t byte_count);

#endif
