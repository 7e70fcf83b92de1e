/* Structs of gpulua.h as hosts have them, of whatever release, and as they are here. */
#ifndef GPU_HOST_STRUCTS_H
#define GPU_HOST_STRUCTS_H

#include "gpulua.h"
#include "runtime/error.h"

struct gpu_host_struct {
    const char *name;   /* "config": gpulua_config, gpulua_config_init */
    size_t bytes;       /* here */
    size_t first_bytes; /* in release 0.1.0 */
};

/* Makes of what the host gives (NULL: nothing) the struct as it is here: what is not there is 0,
 * the default. InvalidArgument: a size that no release has; one that is larger than here, with
 * something in what is not known here. */
gpulua_status gpu_host_take(const struct gpu_host_struct *kind, const void *given, void *taken,
                            struct gpu_error *error);

/* Fills the host's struct with as much of the answer as there is room for, zeros behind it;
 * struct_bytes is what the answer has of it. */
void gpu_host_answer(const void *answer, size_t answer_bytes, void *into, size_t into_bytes);

/* Every struct that calls take, and its last member in release 0.1.0. Later members come behind
 * the last one, without padding in between or at the end. */
#define GPU_HOST_STRUCTS(X)                                                                        \
    X(config, cuda_stream)                                                                         \
    X(device_config, cuda_context)                                                                 \
    X(buffer_info, is_usable)                                                                      \
    X(memory_info, label)                                                                          \
    X(recorder_info, label)                                                                        \
    X(capture_info, label)                                                                         \
    X(launch_info, label)                                                                          \
    X(hooks, after_complete)                                                                       \
    X(stream_capture_info, stream)                                                                 \
    X(exchange, label)

/* gpu_host_take_config(given, &config, &error) and so on. */
#define GPU_HOST_TAKE(name, last)                                                                  \
    gpulua_status gpu_host_take_##name(const gpulua_##name *given, gpulua_##name *taken,           \
                                       struct gpu_error *error);
GPU_HOST_STRUCTS(GPU_HOST_TAKE)
#undef GPU_HOST_TAKE

#endif
