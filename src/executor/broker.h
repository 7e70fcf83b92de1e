/* Compiling for a confined executor (confine.h), which can start no programs.
 *
 * The broker is a process of its own, forked while there is one thread and confined to what
 * compilers need. It runs nothing of the script's: where code has to be loaded to see what is in
 * it, a process confined like the executor does that. It ends when the executor does. Of
 * gpulua-exec alone: the library forks nothing. */
#ifndef GPU_EXECUTOR_BROKER_H
#define GPU_EXECUTOR_BROKER_H

#include "backend/backend.h"
#include "wire/link.h"

struct executor_broker {
    int fd; /* to ask it by; owned */
    /* As the slot source_compile of that backend; sources that want files or flags are refused. One
     * thread at a time; blocks. IO: the broker is gone. */
    gpulua_status (*compile)(const struct executor_broker *broker, const char *backend,
                             const struct backend_source *source, void **image, size_t *image_bytes,
                             char **description, struct backend_error *error);
};

/* False: `error` says why there is none. */
bool gpu_broker_start(struct executor_broker *broker, struct wire_error *error);

#endif
