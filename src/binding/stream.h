/* Streams as scripts have them. */
#ifndef GPU_BINDING_STREAM_H
#define GPU_BINDING_STREAM_H

#include "binding/loop.h"

struct stream_handle {
    struct gpu_stream *stream;          /* retained; NULL: closed */
    bool is_own;                        /* made by dev:stream: close ends it */
    struct stream_handle *next, **link; /* among those of its device */
};

struct gpu_stream *gpu_lua_check_stream(lua_State *L, struct gpulua *g, int index);
/* Pushes an op's handle, which takes over the reference. `op` comes from *source, which is set to
 * NULL; the handle is made before the work is submitted: see gpu_lua_op_new. */
struct gpu_op **gpu_lua_op_new(lua_State *L, struct gpulua *g);
struct gpu_op *gpu_lua_check_op(lua_State *L, struct gpulua *g, int index);

#endif
