/* Memory resources as scripts have them. */
#ifndef GPU_BINDING_MEMORY_H
#define GPU_BINDING_MEMORY_H

#include "binding/buffer.h"
#include "binding/loop.h"
#include "runtime/resource.h"

struct oom_hook;

/* Its user value is a table: the functions of the script, by number, and the handle below. */
struct memory_handle {
    struct gpu_memory *memory;   /* retained; NULL: closed */
    struct gpu_device *device;   /* retained; NULL: closed */
    struct gpulua *g;            /* borrowed */
    struct memory_handle *below; /* borrowed: the user value keeps it; NULL: none */
    struct oom_hook *hooks;      /* owned */
    struct memory_handle *next_pressed, **pressed_link;
    int sink;      /* of log lines, in the user value; 0: none */
    uint8_t level; /* enum gpu_pressure, as last seen */
    bool is_logging, is_guarded, is_listening, is_draining;
    char label[48];
};

/* The state in which a call of the runtime runs that may call back: what `caller` points to. */
struct gpu_lua_call {
    lua_State *L;
    struct gpulua *g;
    int error_ref; /* in the registry: what a function of the script raised; LUA_NOREF */
};

/* What the options of dev:memory ask for. */
struct memory_wishes {
    enum gpu_memory_kind bottom;
    struct gpu_memory_info layers[GPU_MEMORY_KIND_COUNT]; /* from the bottom up */
    int layer_count;
    char label[48];
    int below, sink; /* where on the stack the memory instead of bottom and the function are; 0 */
};
/* Stack: 2 = the options or nil. Leaves behind it what `below` and `sink` are about. */
void gpu_lua_memory_wishes(lua_State *L, struct gpulua *g, struct memory_wishes *wishes);

struct memory_handle *gpu_lua_check_memory(lua_State *L, struct gpulua *g, int index);
int gpu_lua_memory_buffer(lua_State *L);  /* memory_buffers.c */
int gpu_lua_memory_buffers(lua_State *L); /* memory_buffers.c */
void gpu_lua_memory_room_open(lua_State *L, struct gpulua *g);
/* Behind a call that may have changed what is used: tells listeners, passes log lines on, and
 * raises what a function of the script has raised meanwhile; `error`, if not NULL, is freed then.
 */
void gpu_lua_memory_after(lua_State *L, struct memory_handle *handle, struct gpu_lua_call *call,
                          struct gpu_error *error);
/* Listeners of all memories whose pressure has changed get tasks of their own. */
void gpu_lua_memory_tell(lua_State *L, struct gpulua *g);
/* Behind the end of a block: if its memory is guarded, raises what is wrong with it. Takes the
 * caller's reference. */
void gpu_lua_memory_freed(lua_State *L, struct gpu_memory *memory);

#endif
