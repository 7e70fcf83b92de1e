/* Whole reads and writes (see file.h). */
#include "backend/file.h"

#include <errno.h>
#include <unistd.h>

bool gpu_backend_read_all(int file, void *to, size_t byte_count) {
    char *at = to;
    while (byte_count > 0) {
        ssize_t got = read(file, at, byte_count);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += got;
        byte_count -= (size_t)got;
    }
    return true;
}

bool gpu_backend_write_all(int file, const void *from, size_t byte_count) {
    const char *at = from;
    while (byte_count > 0) {
        ssize_t put = write(file, at, byte_count);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        at += put;
        byte_count -= (size_t)put;
    }
    return true;
}
