/* What gpu.map asks of its arguments, at each call. */
#include <string.h>

#include "binding/buffer.h"
#include "binding/core.h"
#include "binding/device.h"
#include "binding/kernel.h"
#include "binding/scalar.h"

/* Kinds of arguments: an element type, and */
enum { IS_ONE = 1 << 8, IS_SCALAR = 1 << 9, IS_INTEGER = 1 << 10, IS_FLOAT = 1 << 11 };

static bool is_same(const struct gpu_ref *a, const struct gpu_ref *b) {
    return a->block == b->block && a->byte_offset == b->byte_offset &&
           a->byte_count == b->byte_count;
}

/* core.overlap(a, b) -> "same" or "part": buffers or scalars with the same bytes, or with some that
 * both have; then, whether they begin at the same one. nil: with none. */
int gpu_lua_overlap(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const struct buffer *found[2];
    for (int i = 0; i < 2; i++) {
        found[i] = gpu_lua_scalar_test(L, g, i + 1);
        found[i] = found[i] ? found[i] : gpu_lua_check_buffer(L, g, i + 1);
    }
    if (gpu_lua_refs_overlap(&found[0]->ref, &found[1]->ref)) {
        lua_pushstring(L, is_same(&found[0]->ref, &found[1]->ref) ? "same" : "part");
        lua_pushboolean(L, found[0]->ref.byte_offset == found[1]->ref.byte_offset);
        return 2;
    }
    lua_pushnil(L);
    return 1;
}

/* 0: none that there can be. */
static int kind_of(lua_State *L, struct gpulua *g, int index, const struct buffer **buffer) {
    *buffer = NULL;
    if (lua_type(L, index) == LUA_TNUMBER) {
        return lua_isinteger(L, index) ? IS_INTEGER : IS_FLOAT;
    }
    *buffer = gpu_lua_test_tagged(L, g, index, GPU_LUA_KIND_BUFFER);
    int kind = *buffer && (*buffer)->elem_count == 1 ? IS_ONE : 0;
    if (!*buffer && (*buffer = gpu_lua_scalar_test(L, g, index))) {
        kind = IS_SCALAR;
    }
    return *buffer && (*buffer)->ref.block ? kind | ((int)(*buffer)->ref.type + 1) : 0;
}

/* core.map_kind(value) -> what kind of argument it is, for map_fits. */
int gpu_lua_map_kind(lua_State *L) {
    const struct buffer *buffer;
    lua_pushinteger(L, kind_of(L, GPU_LUA(L), 1, &buffer));
    return 1;
}

static int count_keys(lua_State *L, int table) {
    int count = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        count++;
    }
    return count;
}

static bool has_option(lua_State *L, int table, const char *name) {
    bool has = lua_getfield(L, table, name) != LUA_TNIL;
    lua_pop(L, 1);
    return has;
}

static bool argument_fits(lua_State *L, struct gpulua *g, const struct kernel_handle *kernel,
                          const struct buffer *out, int index, int kind) {
    const struct buffer *buffer;
    if (kind == 0 || kind_of(L, g, index, &buffer) != kind) {
        return false;
    }
    if (!buffer) {
        return true;
    }
    bool is_alike =
        kind & (IS_ONE | IS_SCALAR) ||
        (buffer->dim_count == out->dim_count &&
         memcmp(buffer->shape, out->shape, buffer->dim_count * sizeof buffer->shape[0]) == 0);
    bool is_shared_well = is_same(&buffer->ref, &out->ref) && buffer->elem_count == out->elem_count;
    return is_alike && gpu_block_device(buffer->ref.block) == kernel->device &&
           (is_shared_well || !gpu_lua_refs_overlap(&buffer->ref, &out->ref));
}

/* core.map_fits(arguments, names, kinds, kernel) -> are the arguments those names and `out`, of
 * these kinds (that of out behind the others), on the kernel's device, and of one shape? */
int gpu_lua_map_fits(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const struct kernel_handle *kernel = gpu_lua_test(L, g, 4, GPU_LUA_KIND_KERNEL);
    int count = (int)lua_rawlen(L, 2);
    lua_settop(L, 4);
    if (!kernel || !kernel->kernel || lua_getmetatable(L, 1)) {
        lua_pushboolean(L, false);
        return 1;
    }
    const struct buffer *out;
    lua_getfield(L, 1, "out");
    lua_rawgeti(L, 3, count + 1);
    bool fits = kind_of(L, g, 5, &out) != 0 && out &&
                argument_fits(L, g, kernel, out, 5, (int)lua_tointeger(L, 6));
    for (int i = 1; i <= count && fits; i++) {
        lua_rawgeti(L, 2, i);
        lua_rawget(L, 1);
        lua_rawgeti(L, 3, i);
        fits = argument_fits(L, g, kernel, out, 7, (int)lua_tointeger(L, 8));
        lua_settop(L, 6);
    }
    fits = fits &&
           count_keys(L, 1) == count + 1 + has_option(L, 1, "stream") + has_option(L, 1, "label");
    lua_pushboolean(L, fits);
    return 1;
}
