/* Tracing: the logs of the devices that a state has traced, and one of what its tasks did. */
#ifndef GPU_BINDING_TRACE_H
#define GPU_BINDING_TRACE_H

#include "binding/loop.h"

struct device_handle;

/* By $GPULUA_TRACE: not 0, false or off. */
bool gpu_lua_trace_is_wanted(void);

/* False: no memory. What is traced stays in the log when the device is gone. Of a shared device the
 * object sees what comes from here on until it leaves, if it wants traces (config.trace). */
bool gpu_lua_trace_device(struct gpulua *g, const struct device_handle *handle);
void gpu_lua_trace_leave(struct gpulua *g, struct gpu_device *device);
void gpu_lua_trace_finish(struct gpulua *g);

/* Each does nothing, and costs a branch, where nothing is traced. `op` and `what`: what is waited
 * for; one of them, and the other NULL. */
void gpu_lua_trace_wait_begins(struct gpulua *g, const struct gpu_op *op, const char *what,
                               struct gpu_lua_began *began);
void gpu_lua_trace_wait_ends(lua_State *L, struct gpulua *g, struct gpu_lua_began *began);
/* A task is resumed; it has yielded or ended. */
void gpu_lua_trace_run_begins(struct gpulua *g, struct gpu_lua_began *began);
void gpu_lua_trace_run_ends(struct gpulua *g, const struct task *task, struct gpu_lua_began *began);

/* Of an object's gpu_tasks. */
void gpu_lua_trace_blocked(const struct gpu_tasks *tasks, const char *what, int64_t begun_ns);

int gpu_lua_trace_info(lua_State *L);      /* core.trace_info */
int gpu_lua_trace_op(lua_State *L);        /* core.trace_op */
int gpu_lua_trace_waits(lua_State *L);     /* core.trace_waits */
int gpu_lua_trace_nodes(lua_State *L);     /* core.trace_nodes */
int gpu_lua_trace_uses(lua_State *L);      /* core.trace_uses */
int gpu_lua_trace_arguments(lua_State *L); /* core.trace_arguments */
int gpu_lua_trace_span(lua_State *L);      /* core.trace_span */
int gpu_lua_trace_range(lua_State *L);     /* core.trace_range */
int gpu_lua_trace_range_end(lua_State *L); /* core.trace_range_end */
int gpu_lua_trace_settle(lua_State *L);    /* core.trace_settle */

#endif
