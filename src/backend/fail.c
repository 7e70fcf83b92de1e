/* Errors of backends: one way to fill struct backend_error. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

/* `log` is left alone: a compiler's log is attached before or after, and stays with its owner. */
gpulua_status gpu_backend_fail(struct backend_error *error, gpulua_status status,
                               int32_t driver_code, const char *format, ...) {
    if (error == NULL) {
        return status;
    }
    error->status = status;
    error->driver_code = driver_code;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    if (length < 0) {
        error->message[0] = '\0';
    } else if ((size_t)length >= sizeof error->message) {
        /* A cut message says so. */
        memcpy(error->message + sizeof error->message - 4, "...", 4);
    }
    return status;
}
