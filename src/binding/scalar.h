/* Scalars as the rest of the binding sees them. */
#ifndef GPU_BINDING_SCALAR_H
#define GPU_BINDING_SCALAR_H

#include "binding/buffer.h"

/* The buffer of the scalar at `index`, which may be closed; NULL: it is no scalar. */
struct buffer *gpu_lua_scalar_test(lua_State *L, struct gpulua *g, int index);
int gpu_lua_device_scalar(lua_State *L);

#endif
