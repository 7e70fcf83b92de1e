/* Where the executor program is. */
#ifndef GPU_RUNTIME_LOCATE_H
#define GPU_RUNTIME_LOCATE_H

#include <stddef.h>

#include "runtime/error.h"

/* `configured`, then $GPULUA_EXECUTOR (these two are taken at their word), then beside this library
 * or module, one folder up, and in ../libexec of either; then beside the running program and its
 * ../libexec. Io: names every path tried. */
gpulua_status gpu_locate_executor(const char *configured, char *path, size_t path_bytes,
                                  struct gpu_error *error);

#endif
