/* What the host holds of a state: buffers, recorders, and how they are called. */
#ifndef GPU_HOST_HANDLE_H
#define GPU_HOST_HANDLE_H

#include "binding/buffer.h"

struct gpulua_buffer {
    struct host_handle handle; /* first */
    const struct gpulua *g;    /* whose it is; compared alone */
    struct gpu_device *device; /* retained */
    struct gpu_ref ref;        /* block retained; NULL: emptied */
    uint64_t elem_count;
    uint32_t dim_count;
    uint64_t shape[GPU_LUA_DIMS_MAX];
    bool is_host, is_foreign;
    char device_kind[8];
    int device_ordinal;
    char label[48];
};

/* A handle of that range; retains the block. NULL: no memory. */
struct gpulua_buffer *gpu_host_buffer_create(struct gpulua *g, const struct gpu_ref *ref,
                                             uint32_t dim_count, const uint64_t *shape);
/* The same of a buffer of a script's. */
struct gpulua_buffer *gpu_host_buffer_of(struct gpulua *g, const struct buffer *buffer);

/* May anybody's kernels run on it? */
bool gpu_host_is_confined(const struct gpulua_device *device);

/* Is it in a process of its own? */
bool gpu_host_is_isolated(const struct gpulua_device *device);

/* Pushes one of our own files (lua/gpulua/) as a function. Raises. */
void gpu_host_load_file(lua_State *L, const char *name);

/* What gpulua_last_error(NULL) answers on this thread. */
void gpu_host_keep_creation_error(gpulua_status code, const char *message);

/* Is the buffer of this object, and usable? Keeps the error. */
gpulua_status gpu_host_check(struct gpulua *g, const struct gpulua_buffer *buffer,
                             const char *what);
/* The object of the state; NULL: it has none, or it is closed, and `*status` says so. Makes room on
 * the stack for GPU_HOST_STACK values. */
#define GPU_HOST_STACK 16
struct gpulua *gpu_host_find(lua_State *L, gpulua_status *status);
/* Pushes a copy of the value at `index` (absolute), with 0 what gpu_host_is_given knows. */
void gpu_host_push(lua_State *L, int index);
/* Is there at `index` what was pushed of one that is not 0? Raises where that was nil: it is no
 * default, but a handle that the host has not found. */
bool gpu_host_is_given(lua_State *L, int index);
/* Calls function(L) in protected mode with light userdata of `request` at 1 and gpu_host_push of
 * `index` at 2. What it raises is kept. */
gpulua_status gpu_host_call(struct gpulua *g, lua_State *L, lua_CFunction function, void *request,
                            int index);
/* In such a function: the device at `index`, or if none was given the default device, whose handle
 * is put there. */
struct gpu_device *gpu_host_device(lua_State *L, struct gpulua *g, int index);

#endif
