/* Losing a device, and its coming up again, as scripts see it. */
#ifndef GPU_BINDING_RECOVERY_H
#define GPU_BINDING_RECOVERY_H

#include <string.h>

#include "binding/buffer.h"
#include "binding/device.h"

/* Tells the script's functions what has happened to devices since. Never raises. */
void gpu_lua_tell_lives(struct gpulua *g, lua_State *L);

/* The options durable and rebuild at `index`, a table. Raises. */
enum gpu_keeping gpu_lua_keeping(lua_State *L, int index, const char *what);
/* The buffer on top of the stack is built anew by the option rebuild of the table at `options`. */
void gpu_lua_note_rebuild(lua_State *L, struct gpulua *g, int options, struct gpu_block *block);
/* The buffer at `index`, whose handle ends, may be needed by graphs, slices and others: how it is
 * built anew is kept as long as these. Never raises; without memory it is forgotten. */
void gpu_lua_keep_rebuild(lua_State *L, int index, const struct buffer *buffer);

int gpu_lua_device_events(lua_State *L); /* core.device_events */
int gpu_lua_device_return(lua_State *L); /* core.device_return */
int gpu_lua_rebuilds(lua_State *L);      /* core.rebuilds */
int gpu_lua_rebuilds_kept(lua_State *L); /* core.rebuilds_kept */
int gpu_lua_keep_version(lua_State *L);  /* core.keep_version */
int gpu_lua_keep(lua_State *L);          /* core.keep */

#endif
