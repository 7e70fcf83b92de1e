/* Buffers made of a memory: one, or several of which all fit or none. */
#include "binding/device.h"
#include "binding/memory.h"

#define GROUP_MAX 1024

/* Type, shape and options at `index` and behind it. */
static void get_request(lua_State *L, struct memory_handle *handle, int index,
                        struct buffer_request *request) {
    request->type = gpu_lua_check_type(L, index, "buffer");
    gpu_lua_check_shape(L, index + 1, "buffer", request);
    gpu_lua_buffer_options(L, handle->g, index + 2, "buffer", handle->device, request);
    if (request->memory) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "memory of buffer: it is what the method is called on");
    }
    request->memory = handle;
}

/* mem:buffer(type, shape[, options]) -> buffer, as of dev:buffer. OutOfBudget,
 * OutOfMemory; what the functions of on_oom raise. */
int gpu_lua_memory_buffer(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct memory_handle *handle = gpu_lua_check_memory(L, g, 1);
    struct buffer_request request = {0};
    lua_settop(L, 4);
    get_request(L, handle, 2, &request);
    gpu_lua_buffer_make(L, g, gpu_lua_check_memory(L, g, 1)->device, &request);
    return 1;
}

/* The requests of buffers, and whose room is still reserved. Its user value is a list of those that
 * are made. */
struct group_room {
    struct gpu_memory *memory; /* retained; NULL: nothing is reserved */
    uint32_t count, done;
    bool is_given; /* all of them are the script's */
    uint64_t byte_counts[];
};

static int group_gc(lua_State *L) {
    struct group_room *group = lua_touserdata(L, 1);
    for (; group->memory && group->done < group->count; group->done++) {
        gpu_memory_unreserve(group->memory, group->byte_counts[group->done]);
    }
    gpu_memory_release(group->memory);
    group->memory = NULL;
    lua_getiuservalue(L, 1, 1);
    for (lua_Integer i = 1; !group->is_given && lua_rawgeti(L, -1, i) != LUA_TNIL; i++) {
        gpu_lua_buffer_undo(GPU_LUA(L), lua_touserdata(L, -1));
        lua_pop(L, 1);
    }
    group->is_given = true; /* or nobody's */
    return 0;
}

/* The device may have been lost between two of them and be there again. */
static void check_lives(lua_State *L, int first, int last) {
    for (int i = first; i <= last; i++) {
        const struct gpu_block *block = ((struct buffer *)lua_touserdata(L, i))->ref.block;
        if (block && gpu_block_is_stale(block)) { /* none: closed by who looks at our stack */
            gpu_lua_fail(L, GPULUA_DEVICE_LOST,
                         "buffers: device %s was lost while they were made, and with it buffer %d",
                         gpu_device_title(gpu_block_device(block)), i - first + 1);
        }
    }
}

static void full_collection(void *caller) {
    lua_gc(((struct gpu_lua_call *)caller)->L, LUA_GCCOLLECT);
}

/* mem:buffers(...) -> as many buffers as tables {type, shape[, options]}, or none: room for all of
 * them is reserved in one step before the first is made. OutOfBudget names their sum; DeviceLost,
 * also where the device is there again by then; else as mem:buffer. */
int gpu_lua_memory_buffers(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct memory_handle *handle = gpu_lua_check_memory(L, g, 1);
    int count = lua_gettop(L) - 1;
    if (count < 1 || count > GROUP_MAX) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "buffers: 1 to %d of {type, shape}, got %d",
                     GROUP_MAX, count);
    }
    luaL_checkstack(L, count + 12, NULL);
    int room = lua_gettop(L) + 1;
    lua_createtable(L, count, 0); /* first: no group is without its list, however it ends */
    struct group_room *group =
        gpu_lua_new(L, g, GPU_LUA_KIND_GROUP_ROOM,
                    sizeof *group + (size_t)count * sizeof group->byte_counts[0], 1);
    lua_insert(L, room);
    lua_setiuservalue(L, room, 1);
    lua_toclose(L, room);
    for (int i = 0; i < count; i++) {
        struct buffer_request request = {0};
        if (!lua_istable(L, i + 2)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "argument %d of buffers: a table {type, shape} expected, got %s", i + 1,
                         gpu_lua_describe(L, i + 2));
        }
        lua_rawgeti(L, i + 2, 1);
        lua_rawgeti(L, i + 2, 2);
        lua_rawgeti(L, i + 2, 3);
        get_request(L, handle, room + 1, &request);
        group->byte_counts[i] = request.byte_count;
        lua_settop(L, room);
    }
    struct gpu_error error;
    struct gpu_lua_call call = {.L = L, .g = g, .error_ref = LUA_NOREF};
    struct gpu_block_info caller = {.collect = full_collection, .caller = &call};
    group->memory = gpu_memory_retain(gpu_lua_check_memory(L, g, 1)->memory);
    if (gpu_memory_reserve(group->memory, group->byte_counts, (uint32_t)count, &caller, &error)) {
        gpu_lua_throw(L, &error);
    }
    group->count = (uint32_t)count;
    for (int i = 0; i < count; i++) {
        struct buffer_request request = {.reserved = group->memory, .drawn = &group->done};
        lua_rawgeti(L, i + 2, 1);
        lua_rawgeti(L, i + 2, 2);
        lua_rawgeti(L, i + 2, 3);
        get_request(L, handle, room + i + 1, &request);
        if (request.byte_count != group->byte_counts[i]) { /* a metamethod has changed it */
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "buffers: the size of buffer %d changed while it was made", i + 1);
        }
        gpu_lua_buffer_make(L, g, gpu_lua_check_memory(L, g, 1)->device, &request);
        lua_replace(L, room + i + 1);
        lua_settop(L, room + i + 1);
        lua_getiuservalue(L, room, 1);
        lua_pushvalue(L, room + i + 1);
        lua_rawseti(L, -2, i + 1);
        lua_pop(L, 1);
    }
    check_lives(L, room + 1, room + count);
    group->is_given = true;
    return count;
}

void gpu_lua_memory_room_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg room[] = {{"__gc", group_gc}, {"__close", group_gc}, {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_GROUP_ROOM, NULL, room);
}
