/* Streams as scripts have them. */
#ifndef GPU_BINDING_STREAM_H
#define GPU_BINDING_STREAM_H

#include "binding/loop.h"

struct stream_handle {
    struct gpu_stream *stream;  /* retained; NULL: closed */
    struct stream_record *made; /* by dev:stream: close ends it; NULL: one that tasks share */
};

/* A stream that dev:stream made, in its device's list until its handle is gone and its work over:
 * dev:synchronize waits for that work, too. */
struct stream_record {
    struct gpu_stream *stream; /* retained */
    struct stream_record *next;
    struct gpu_site site; /* of dev:stream */
    bool is_left;         /* by its handle */
};
/* Drops those that are over; with `all`, every one. */
void gpu_lua_streams_prune(struct stream_record **records, bool all);
/* The newest stream of the device's list that is older than that number, or NULL: looked for again
 * each time, for finalisers may close them. `also_left`: those that handles have left, too. */
const struct stream_record *gpu_lua_streams_older(const struct device_handle *handle,
                                                  uint64_t number, bool also_left);

struct gpu_stream *gpu_lua_check_stream(lua_State *L, struct gpulua *g, int index);
/* Pushes an op's handle with nothing in it: made before the work is submitted, which puts the
 * reference there. */
struct gpu_op **gpu_lua_op_new(lua_State *L, struct gpulua *g);
/* What was put there need not be kept once it is over; see runtime/op_ref.h. The last thing that is
 * done with it before the script has it. */
void gpu_lua_op_loosen(struct gpu_op **op);
/* gpu_lua_op_new but for the metatable: who calls sets it. */
struct gpu_op_ref *gpu_lua_op_place(lua_State *L, const struct gpulua *g);
/* Pushes a handle of an op, whose reference it takes: of captured work, which nobody can wait for,
 * the same one as before, if that is the same op. */
void gpu_lua_op_captured(lua_State *L, struct gpulua *g, struct gpu_op *op);
/* The op of the handle at `index`, which is one; NULL: closed. */
struct gpu_op *gpu_lua_op_at(lua_State *L, int index);
bool gpu_lua_op_is_closed(const void *handle);
struct gpu_op *gpu_lua_check_op(lua_State *L, struct gpulua *g, int index);

#endif
