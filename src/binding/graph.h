/* Captures as the rest of the binding sees them. */
#ifndef GPU_BINDING_GRAPH_H
#define GPU_BINDING_GRAPH_H

#include "binding/binding.h"
#include "binding/caller.h"
#include "runtime/graph.h"

/* The capture that the running task's work on the device belongs to; NULL: it is done. Borrowed,
 * and good until Lua's collector runs, which may end it. Raises CaptureInvalidated in a task that
 * was spawned into a capture that has ended. */
struct gpu_capture *gpu_lua_capture_find(lua_State *L, struct gpulua *g, struct gpu_device *device);
/* Does what the running task launches on the device (NULL: any) become a node? */
bool gpu_lua_is_captured(struct gpulua *g, const struct gpu_device *device);
/* Raises CaptureActive if the running task belongs to a capture of the device (NULL: of any). */
void gpu_lua_check_eager(lua_State *L, struct gpulua *g, const struct gpu_device *device,
                         const char *what);

struct graph_handle {
    struct tagged tag;
    struct gpu_graph *graph; /* owned; NULL: closed */
    /* Of a graphed function (graphed.c): how many of its calls were replays, and what the next is
     * compared with, owned; NULL: nothing is known. */
    uint64_t replays;
    struct graphed_last *last;
};

/* The handle at `index`, which may be closed (`call`: that of the function that runs, or NULL); the
 * same, and its graph; those raise Closed. */
struct graph_handle *gpu_lua_graph_handle(lua_State *L, struct gpulua *g,
                                          const struct lua_call *call, int index);
struct graph_handle *gpu_lua_check_graph_handle(lua_State *L, struct gpulua *g, int index);
struct gpu_graph *gpu_lua_check_graph(lua_State *L, struct gpulua *g, int index);
/* Takes the capture out of the handle at index 1: the caller's task belongs to it no more. Raises
 * Closed. */
struct gpu_capture *gpu_lua_capture_take(lua_State *L, struct gpulua *g);
/* A handle without a capture, on top of the stack: where it is to be put. */
struct gpu_capture **gpu_lua_capture_new(lua_State *L, struct gpulua *g);
/* It began there: that handle is on top of the stack. */
void gpu_lua_capture_note(lua_State *L, const struct gpu_site *site);
/* What is garbage may hold temporaries of the capture, which is about to end. May run finalisers.
 */
void gpu_lua_capture_collect(lua_State *L, struct gpu_capture *capture);
/* What has failed so may do better now: memory was short, and garbage, which may hold some, has
 * been collected; the error is finished. May run finalisers. */
bool gpu_lua_graph_collect(lua_State *L, struct gpu_error *error);
/* Of any device, as gpu_lua_capture_find, or NULL. */
struct gpu_capture *gpu_lua_capture_running(struct gpulua *g);
/* That of the handle there. Raises Closed. */
struct gpu_capture *gpu_lua_capture_at(lua_State *L, struct gpulua *g, int index);
/* The same; NULL: it has ended. */
struct gpu_capture *gpu_lua_capture_look(lua_State *L, struct gpulua *g, int index);

enum gpu_lua_submitted { GPU_LUA_NOTHING_PUSHED, GPU_LUA_OP_PUSHED, GPU_LUA_NOT_SUBMITTED };
/* How a graph is launched: by which call of Lua (NULL: not known), its handle, which lies on the
 * stack, and where options lie there (0: nowhere). */
struct gpu_lua_graph_call {
    const struct lua_call *call;
    const struct graph_handle *handle;
    int options;
};
/* Launches it and, if whoever called wants a result, pushes the op. `may_be_gone`: it does nothing
 * where memory is gone that the graph was captured with, which is an error else. */
enum gpu_lua_submitted gpu_lua_graph_submit(lua_State *L, struct gpulua *g,
                                            const struct gpu_lua_graph_call *call,
                                            bool may_be_gone);

/* control.c */
int gpu_lua_control_check(lua_State *L);
int gpu_lua_control_begin(lua_State *L);
int gpu_lua_control_add(lua_State *L);

int gpu_lua_device_pool(lua_State *L);
int gpu_lua_pool_find(lua_State *L);
int gpu_lua_capture_begin(lua_State *L);
int gpu_lua_capture_enter(lua_State *L);
int gpu_lua_capture_spawn(lua_State *L);
int gpu_lua_capture_finish(lua_State *L);
int gpu_lua_capture_close(lua_State *L);
int gpu_lua_captures_end(lua_State *L); /* core.captures_end */
/* graph:launch and graph:upload, whose one upvalue is the gpulua object. */
int gpu_lua_graph_launch(lua_State *L);
int gpu_lua_graph_upload(lua_State *L);

/* ---- rebind.c ---- */
int gpu_lua_capture_again(lua_State *L);
int gpu_lua_capture_update(lua_State *L);
int gpu_lua_graphed_update(lua_State *L);
int gpu_lua_node_text(lua_State *L);
int gpu_lua_capture_active(lua_State *L);
int gpu_lua_graph_bind(lua_State *L);

/* ---- graphed.c ---- */
int gpu_lua_graphed_caller(lua_State *L);
int gpu_lua_graphed_state(lua_State *L);
int gpu_lua_graphed_keep(lua_State *L);
int gpu_lua_graphed_replays(lua_State *L);
int gpu_lua_graphed_body(lua_State *L);
int gpu_lua_graphed_difference(lua_State *L);
int gpu_lua_graphed_results(lua_State *L);
int gpu_lua_graphed_give_out(lua_State *L);

#endif
