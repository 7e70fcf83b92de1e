/* Opening the kinds, and the module table. */
#ifndef GPU_BINDING_CORE_H
#define GPU_BINDING_CORE_H

#include "binding/binding.h"

/* Pushes the module table of the state; the same every time. */
void gpu_lua_core_push(lua_State *L, struct gpulua *g);

void gpu_lua_op_open(lua_State *L, struct gpulua *g);
void gpu_lua_stream_open(lua_State *L, struct gpulua *g);
void gpu_lua_device_open(lua_State *L, struct gpulua *g);
void gpu_lua_buffer_open(lua_State *L, struct gpulua *g);
void gpu_lua_memory_open(lua_State *L, struct gpulua *g);
void gpu_lua_host_open(lua_State *L, struct gpulua *g);
void gpu_lua_transfer_open(lua_State *L, struct gpulua *g);
void gpu_lua_module_open(lua_State *L, struct gpulua *g);
void gpu_lua_kernel_open(lua_State *L, struct gpulua *g);
void gpu_lua_recorder_open(lua_State *L, struct gpulua *g);
bool gpu_lua_recorder_is_closed(const void *handle);
void gpu_lua_graph_open(lua_State *L, struct gpulua *g);
void gpu_lua_scalar_open(lua_State *L, struct gpulua *g);
bool gpu_lua_scalar_is_closed(const void *handle);
bool gpu_lua_graph_is_closed(enum gpu_lua_kind kind, const void *handle);

/* core.adopt_coroutines(): replaces coroutine.resume, wrap and yield so that an interrupt finds the
 * coroutine that runs, and a yield in the body of a task is the error it is in Lua's interpreter.
 * For programs that own their state. */
int gpu_lua_adopt_coroutines(lua_State *L);

bool gpu_lua_handle_is_closed(enum gpu_lua_kind kind, const void *handle);

int gpu_lua_flight_path(lua_State *L); /* core.flight_path, flight.c */
int gpu_lua_flight_files(lua_State *L);
int gpu_lua_log(lua_State *L); /* core.log, flight.c */

/* ---- terminal.c ---- */
int gpu_lua_terminal(lua_State *L); /* core.terminal */
int gpu_lua_line_is_open(lua_State *L);
int gpu_lua_seconds(lua_State *L); /* core.seconds */
int gpu_lua_shown(lua_State *L);   /* core.shown */
int gpu_lua_fitting(lua_State *L); /* core.fitting */
int gpu_lua_kernel_arguments(lua_State *L);

/* ---- ranges.c ---- */
/* Are there to be ranges? As GPULUA_NVTX says; once they are on they stay. */
void gpu_lua_ranges_begin(struct gpulua *g);
int gpu_lua_ranges_are_on(lua_State *L); /* core.ranges_are_on */
int gpu_lua_range_start(lua_State *L);
int gpu_lua_range_end(lua_State *L);

#endif
