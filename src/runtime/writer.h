/* Text that is counted also where there is no room for it: written twice, once to know how long. */
#ifndef GPU_RUNTIME_WRITER_H
#define GPU_RUNTIME_WRITER_H

#include <stddef.h>

struct gpu_writer {
    char *text; /* NULL: it is only counted */
    size_t room, length;
};

void gpu_put(struct gpu_writer *writer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
