/* Losing a device, and its coming up again, as scripts see it. What is to happen then is decided in
 * lua/gpulua/recovery.lua; here is what it cannot do itself. */
#include "binding/recovery.h"

#include "binding/core.h"
#include "binding/graph.h"
#include "binding/stream.h"

static const char events_key;   /* registry: the function for what has happened to devices */
static const char rebuilds_key; /* registry: buffer -> { f =, device =, epoch =, number = } */
/* registry: device -> a list of such, and handle =, of buffers whose handles have ended */
static const char kept_key;
#define KEPT_FEW 16u

/* core.device_events(f): f(device, "lost", error) and f(device, "restored") from the loop. */
int gpu_lua_device_events(lua_State *L) {
    lua_settop(L, 1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &events_key);
    return 0;
}

static void tell(struct gpulua *g, lua_State *L, struct gpu_device *device, const char *what,
                 struct gpu_error *error) {
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &events_key) != LUA_TFUNCTION) {
        lua_pop(L, 1);
        gpu_error_finish(error);
        return;
    }
    gpu_lua_push_device(L, g, device);
    lua_pushstring(L, what);
    if (error->code) {
        gpu_lua_error_push_owned(L, error);
    } else {
        lua_pushnil(L);
    }
    if (lua_pcall(L, 3, 0, 0)) {
        gpu_lua_tell(g, L, NULL);
    }
}

/* The first device of which something has not been told. */
static struct device_handle *find_news(struct gpulua *g) {
    for (struct device_handle *handle = g->devices; handle; handle = handle->next) {
        if (gpu_device_has_news(handle->device, handle->news)) {
            return handle;
        }
    }
    return NULL;
}

static int tell_all(lua_State *L) {
    struct gpulua *g = lua_touserdata(L, 1);
    struct device_handle *handle;
    while ((handle = find_news(g))) { /* what is told may close devices */
        struct gpu_device *device = handle->device;
        struct gpu_error loss = {0};
        bool is_loss = gpu_device_next_news(device, &handle->news, &loss);
        tell(g, L, device, is_loss ? "lost" : "restored", &loss);
    }
    return 0;
}

void gpu_lua_tell_lives(struct gpulua *g, lua_State *L) {
    if (!find_news(g) || !lua_checkstack(L, 8)) {
        return;
    }
    lua_pushcfunction(L, tell_all);
    lua_pushlightuserdata(L, g);
    if (lua_pcall(L, 1, 0, 0)) {
        gpu_lua_tell(g, L, NULL);
    }
}

/* core.device_return(dev[, seconds[, is_ours]]) -> an op that is over when the device is up again;
 * nil: it is up. Raises what keeps it from coming up. The seconds, those of dev:await, are only
 * checked. Who asks knows of the losses so far then, unless it is gpulua itself. */
int gpu_lua_device_return(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    struct gpu_error error;
    bool is_ours = lua_toboolean(L, 3);
    (void)gpu_lua_opt_deadline(L, 2, 1, "await");
    struct gpu_op **op = gpu_lua_op_new(L, g);
    *op = gpu_device_return(device);
    if (!is_ours) {
        gpu_device_observe_losses(device);
    }
    if (*op) {
        return 1;
    }
    if (gpu_device_check(device, &error)) {
        gpu_lua_throw(L, &error);
    }
    lua_pushnil(L);
    return 1;
}

/* core.rebuilds() -> the table, whose keys are weak */
int gpu_lua_rebuilds(lua_State *L) {
    gpu_lua_push_weak(L, &rebuilds_key, "k");
    return 1;
}

enum gpu_keeping gpu_lua_keeping(lua_State *L, int index, const char *what) {
    enum gpu_keeping keeping = GPU_KEEP_NOTHING;
    int type = lua_getfield(L, index, "durable");
    if (type == LUA_TBOOLEAN) {
        keeping = lua_toboolean(L, -1) ? GPU_KEEP_CONTENT : GPU_KEEP_NOTHING;
    } else if (type == LUA_TSTRING && strcmp(gpu_lua_text(L, -1, "durable", what), "space") == 0) {
        keeping = GPU_KEEP_SPACE;
    } else if (type != LUA_TNIL) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "durable of %s: true, false or \"space\" expected, got %s", what,
                     gpu_lua_describe(L, lua_gettop(L)));
    }
    type = lua_getfield(L, index, "rebuild");
    if (type != LUA_TNIL && type != LUA_TFUNCTION) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "rebuild of %s: a function expected, got %s", what,
                     gpu_lua_describe(L, lua_gettop(L)));
    }
    if (type == LUA_TFUNCTION) { /* a table with weak keys: see lua/gpulua/sandbox.lua */
        gpu_lua_refuse_in_sandbox(L, gpu_lua_find(L), "rebuild");
    }
    if (type == LUA_TFUNCTION && keeping != GPU_KEEP_NOTHING) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "%s: durable or rebuild: what is restored is not built anew", what);
    }
    keeping = type == LUA_TFUNCTION ? GPU_KEEP_PLACE : keeping;
    lua_pop(L, 2);
    return keeping;
}

void gpu_lua_note_rebuild(lua_State *L, struct gpulua *g, int options, struct gpu_block *block) {
    struct gpu_device *device = gpu_block_device(block);
    lua_pushcfunction(L, gpu_lua_rebuilds);
    lua_call(L, 0, 1);
    lua_pushvalue(L, -2);
    lua_createtable(L, 0, 4);
    lua_getfield(L, options, "rebuild");
    lua_setfield(L, -2, "f");
    gpu_lua_push_device(L, g, device);
    lua_setfield(L, -2, "device");
    lua_pushinteger(L, (lua_Integer)gpu_device_epoch(device));
    lua_setfield(L, -2, "epoch");
    lua_pushinteger(L, (lua_Integer)gpu_block_number(block));
    lua_setfield(L, -2, "number");
    lua_rawset(L, -3);
    lua_pop(L, 1);
}

/* The buffer of the entry at `index`, as its handle had it; false: nobody has it any more. */
static bool push_kept(lua_State *L, struct gpulua *g, struct gpu_device *device, int index) {
    (void)lua_getfield(L, index, "number");
    uint64_t number = (uint64_t)lua_tointeger(L, -1);
    lua_pop(L, 1);
    struct buffer *made = gpu_lua_new(L, g, GPU_LUA_KIND_BUFFER, sizeof *made, 0);
    struct tagged tag = made->tag;
    lua_getfield(L, index, "handle");
    memcpy(made, lua_tostring(L, -1), sizeof *made);
    lua_pop(L, 1);
    made->tag = tag;
    made->is_owing = false;
    made->ref.block = gpu_device_find_block(device, number);
    if (!made->ref.block) {
        lua_pop(L, 1);
    }
    return made->ref.block != NULL;
}

/* core.rebuilds_kept(device) -> { { buffer =, entry = }, ... } of those whose handles have ended
 * and that others have: buffer is a new one. */
int gpu_lua_rebuilds_kept(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    lua_settop(L, 1);
    lua_newtable(L); /* 2: the result */
    lua_newtable(L); /* 3: the list without what is gone */
    gpu_lua_push_weak(L, &kept_key, "k");
    lua_pushvalue(L, 1);
    bool has_some = lua_rawget(L, 4) == LUA_TTABLE; /* 5 */
    for (lua_Integer i = 1; has_some && lua_rawgeti(L, 5, i) == LUA_TTABLE; i++) {
        if (push_kept(L, g, device, 6)) {
            lua_createtable(L, 0, 2);
            lua_insert(L, -2);
            lua_setfield(L, -2, "buffer");
            lua_pushvalue(L, 6);
            lua_setfield(L, -2, "entry");
            lua_rawseti(L, 2, (lua_Integer)lua_rawlen(L, 2) + 1);
            lua_pushvalue(L, 6);
            lua_rawseti(L, 3, (lua_Integer)lua_rawlen(L, 3) + 1);
        }
        lua_settop(L, 5);
    }
    if (has_some) {
        lua_pushvalue(L, 1);
        lua_pushvalue(L, 3);
        lua_rawset(L, 4);
    }
    lua_settop(L, 2);
    return 1;
}

/* keep_rebuild(buffer, its handle as text) */
static int keep_rebuild(lua_State *L) {
    gpu_lua_push_weak(L, &rebuilds_key, "k"); /* 3 */
    lua_pushvalue(L, 1);
    if (lua_rawget(L, 3) != LUA_TTABLE) { /* 4: the entry */
        return 0;
    }
    lua_pushvalue(L, 2);
    lua_setfield(L, 4, "handle");
    gpu_lua_push_weak(L, &kept_key, "k"); /* 5 */
    lua_getfield(L, 4, "device");
    if (lua_rawget(L, 5) != LUA_TTABLE) { /* 6: the list */
        lua_pop(L, 1);
        lua_newtable(L);
        lua_getfield(L, 4, "device");
        lua_pushvalue(L, 6);
        lua_rawset(L, 5);
    }
    size_t count = lua_rawlen(L, 6) + 1;
    lua_pushvalue(L, 4);
    lua_rawseti(L, 6, (lua_Integer)count);
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    lua_rawset(L, 3);
    if (count >= KEPT_FEW && (count & (count - 1)) == 0) { /* what is gone meanwhile goes */
        gpu_lua_push_function(L, gpu_lua_rebuilds_kept);
        lua_getfield(L, 4, "device");
        lua_call(L, 1, 0);
    }
    return 0;
}

void gpu_lua_keep_rebuild(lua_State *L, int index, const struct buffer *buffer) {
    struct gpu_block *block = buffer->ref.block;
    if (!block || !gpu_block_is_rebuilt_for_others(block) || !lua_checkstack(L, 8)) {
        return;
    }
    struct buffer handle = *buffer;
    handle.ref.block = NULL;
    lua_pushvalue(L, index);
    lua_pushcfunction(L, keep_rebuild);
    lua_insert(L, -2);
    lua_pushlstring(L, (const char *)&handle, sizeof handle);
    if (lua_pcall(L, 2, 0, 0)) {
        lua_pop(L, 1);
    }
}

/* core.keep_version(buffer) -> how often the script has written what is kept of it; nil: nothing
 * needs to be, because the device does not come up again. InvalidArgument: it is not durable. */
int gpu_lua_keep_version(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *buffer = gpu_lua_check_buffer(L, g, 1);
    gpu_lua_check_eager(L, g, gpu_block_device(buffer->ref.block), "checkpoint");
    if (!gpu_ref_is_durable(&buffer->ref)) {
        gpu_lua_fail_hint(L, GPULUA_INVALID_ARGUMENT,
                          "dev:buffer(type, n, { durable = true }) makes one that is",
                          "checkpoint: the buffer is not durable");
    }
    if (gpu_ref_has_copy(&buffer->ref)) {
        lua_pushinteger(L, (lua_Integer)gpu_ref_copy_version(&buffer->ref));
    } else {
        lua_pushnil(L);
    }
    return 1;
}

/* core.keep(buffer, host, version) -> whether what the host buffer has is what is kept from now on;
 * not if the script has written the buffer since that version. */
int gpu_lua_keep(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct buffer *buffer = gpu_lua_check_buffer(L, g, 1);
    struct buffer *host = gpu_lua_check_buffer(L, g, 2);
    gpu_lua_check_contents(L, host);
    bool is_same = (uint64_t)lua_tointeger(L, 3) == gpu_ref_copy_version(&buffer->ref);
    if (is_same) {
        gpu_ref_keep(&buffer->ref, gpu_lua_host_bytes(host));
    }
    lua_pushboolean(L, is_same);
    return 1;
}
