/* Buffers, views, slices and host buffers as scripts have them: typed ranges of blocks. */
#ifndef GPU_BINDING_BUFFER_H
#define GPU_BINDING_BUFFER_H

#include "binding/loop.h"

#define GPU_LUA_DIMS_MAX 8u
/* What the smallest one counts for with the collector. */
#define GPU_LUA_BUFFER_BYTES_MIN 512u

struct buffer {
    struct tagged tag;
    struct gpu_ref ref;  /* block retained; NULL: closed */
    uint64_t elem_count; /* in ref */
    uint32_t dim_count;
    uint32_t elem_bytes;
    bool is_owing; /* it made its block, and counts with the collector until it is closed */
    uint64_t shape[GPU_LUA_DIMS_MAX];
};

/* The buffer or host buffer at `index`, which may be closed. */
struct buffer *gpu_lua_buffer_at(lua_State *L, struct gpulua *g, int index);
/* Raises what makes it unusable: Closed, DeviceLost, Stale, UseAfterFree. */
void gpu_lua_buffer_check_open(lua_State *L, const struct buffer *buffer);
/* The buffer or host buffer at `index`, usable. */
struct buffer *gpu_lua_check_buffer(lua_State *L, struct gpulua *g, int index);

/* Type, shape and options as dev:buffer and dev:host take them. */
struct buffer_request {
    enum gpu_type type;
    uint32_t dim_count;
    uint64_t shape[GPU_LUA_DIMS_MAX];
    uint64_t elem_count, byte_count;
    const char *label;
    bool is_host;
    enum gpu_keeping keeping;
    int rebuild; /* where on the stack the table is whose field says how; 0: it is not built anew */
    struct memory_handle *memory; /* where it comes from; NULL: the device's default */
    struct gpu_memory *reserved;  /* borrowed: gpu_memory_reserve has made room for it there */
    uint32_t *drawn;              /* with that: counted when the room is used up, made or not */
};
enum gpu_type gpu_lua_check_type(lua_State *L, int index, const char *what);
/* `index`: a number of elements or a table of dimensions. */
void gpu_lua_check_shape(lua_State *L, int index, const char *what, struct buffer_request *request);
/* Pushes a new buffer. Collects garbage and waits for memory in flight before it gives up. */
struct buffer *gpu_lua_buffer_make(lua_State *L, struct gpulua *g, struct gpu_device *device,
                                   const struct buffer_request *request);
/* Have they bytes in common? */
static inline bool gpu_lua_refs_overlap(const struct gpu_ref *a, const struct gpu_ref *b) {
    return a->block == b->block && a->byte_offset < b->byte_offset + b->byte_count &&
           b->byte_offset < a->byte_offset + a->byte_count;
}
/* Ends one that the script has never had, without a look at what a guard finds. */
void gpu_lua_buffer_undo(struct gpulua *g, struct buffer *buffer);
/* The options of buffers at `index`, which stay there until it is made: label, memory, durable,
 * rebuild. Pushes what the request borrows of them, which stays as long. */
void gpu_lua_buffer_options(lua_State *L, struct gpulua *g, int index, const char *what,
                            struct gpu_device *device, struct buffer_request *request);
/* Elements from, to: optional 1-based inclusive indices at `index` and `index` + 1. */
void gpu_lua_check_range(lua_State *L, int index, const struct buffer *buffer, const char *what,
                         uint64_t *first, uint64_t *count);
/* The result of buffer's __tostring, __len, ... shared by both kinds. */
int gpu_lua_buffer_tostring(lua_State *L);
int gpu_lua_buffer_len(lua_State *L);
int gpu_lua_buffer_close(lua_State *L);
int gpu_lua_buffer_free(lua_State *L);
int gpu_lua_buffer_gc(lua_State *L);
/* Pushes type, shape, label, device; false: another field. */
bool gpu_lua_buffer_field(lua_State *L, struct gpulua *g, const struct buffer *buffer,
                          const char *field);
/* __index for a key at 2 that is no method: a field or nil. Raises Closed. */
int gpu_lua_buffer_index_field(lua_State *L, struct gpulua *g, struct buffer *buffer);
/* Returns once the host may read (write) the buffer's block; or yields, and k is called then. What
 * the caller has on the stack stays; above it, k finds one value to drop. Raises what makes the
 * buffer unusable by then. */
void gpu_lua_wait_idle(lua_State *L, struct gpulua *g, const struct buffer *buffer, bool for_write,
                       lua_KFunction k);
/* Raises the failure that left the contents undefined, else any of the device that nobody saw. */
void gpu_lua_check_contents(lua_State *L, struct buffer *buffer);
uint8_t *gpu_lua_host_bytes(const struct buffer *buffer);

/* Methods that host buffers share (transfer.c). */
int gpu_lua_buffer_copy(lua_State *L);
int gpu_lua_buffer_fill(lua_State *L);
int gpu_lua_buffer_write(lua_State *L);
int gpu_lua_buffer_read(lua_State *L);
int gpu_lua_buffer_bytes(lua_State *L);
/* Writes the data at stack index `data` into the whole of the buffer or from element `first`. */
void gpu_lua_buffer_put(lua_State *L, struct gpulua *g, struct buffer *buffer, uint64_t first,
                        int data);

#endif
