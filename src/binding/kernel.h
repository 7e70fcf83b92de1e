/* Modules and kernels as scripts have them. */
#ifndef GPU_BINDING_KERNEL_H
#define GPU_BINDING_KERNEL_H

#include "binding/loop.h"

struct module_handle {
    struct gpu_module *module; /* retained; NULL: closed */
    bool is_source;
};
struct kernel_handle {
    struct tagged tag;
    struct gpu_kernel *kernel;             /* retained; NULL: closed */
    const struct gpu_signature *signature; /* borrowed from the kernel */
    struct gpu_device *device;             /* borrowed from the kernel's module */
};

/* Pushes a kernel's handle with nothing in it. */
struct kernel_handle *gpu_lua_kernel_new(lua_State *L, struct gpulua *g);
void gpu_lua_kernel_set(struct kernel_handle *handle, struct gpu_kernel *kernel);

/* Pushes a new module when it can be used; waits, or yields, until then. Of what is on the stack
 * four values stay. */
int gpu_lua_module_create(lua_State *L, struct gpulua *g, struct gpu_device *device,
                          struct gpu_module_info *info);

#endif
