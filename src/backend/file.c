/* Whole reads and writes (see file.h). */
#include "backend/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"

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

gpulua_status gpu_backend_keep(const char *prefix, const char *suffix, const void *bytes,
                               size_t byte_count, struct backend_error *error) {
    char *path = NULL;
    if (asprintf(&path, "%s%s", prefix, suffix) < 0) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory to keep code");
    }
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool is_written = file >= 0 && gpu_backend_write_all(file, bytes, byte_count);
    int why = errno;
    if (file >= 0 && close(file) != 0 && is_written) {
        is_written = false;
        why = errno;
    }
    gpulua_status status =
        is_written ? GPULUA_OK
                   : gpu_backend_fail(error, GPULUA_IO, why, "keep: cannot write '%s': %s", path,
                                      strerror(why));
    free(path);
    return status;
}
