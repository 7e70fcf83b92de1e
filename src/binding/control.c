/* Conditional nodes: what lua/gpulua/control.lua is built on. */
#include "runtime/graph.h"

#include "binding/buffer.h"
#include "binding/core.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/loop.h"
#include "binding/scalar.h"

/* The condition at `index`: of a scalar, or a buffer. Borrowed from there. */
static struct buffer *check_value(lua_State *L, struct gpulua *g, int index, const char *name) {
    struct buffer *buffer = gpu_lua_scalar_test(L, g, index);
    if (gpu_lua_test(L, g, index, GPU_LUA_KIND_SCALAR)) {
        if (!buffer || !buffer->ref.block) {
            gpu_lua_fail(L, GPULUA_CLOSED, "condition of %s: attempt to use a closed scalar", name);
        }
    } else if (gpu_lua_test(L, g, index, GPU_LUA_KIND_BUFFER)) {
        buffer = gpu_lua_check_buffer(L, g, index);
    } else {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "condition of %s: a scalar or a buffer of one element expected, got %s", name,
                     gpu_lua_describe(L, index));
    }
    return buffer;
}

/* core.control_check(name, condition) -> is the caller's task in a capture? What name ("if_", ...)
 * is given can decide. InvalidArgument, Closed, UseAfterFree. */
int gpu_lua_control_check(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const char *name = luaL_checkstring(L, 1);
    const struct buffer *value = check_value(L, g, 2, name);
    const char *what = lua_pushfstring(L, "condition of %s", name);
    struct gpu_capture *capture = gpu_lua_capture_running(g);
    struct gpu_error error;
    if (!capture) { /* in a task whose capture is over that is an error */
        (void)gpu_lua_capture_find(L, g, gpu_block_device(value->ref.block));
    }
    if (gpu_control_check(&value->ref, capture ? gpu_capture_device(capture) : NULL, what,
                          &error)) {
        gpu_lua_throw(L, &error);
    }
    lua_pushboolean(L, capture != NULL);
    return 1;
}

/* core.control_begin(name) -> capture: a body inside of the caller's, for capture_spawn. */
int gpu_lua_control_begin(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const char *name = luaL_checkstring(L, 1);
    struct gpu_capture **body = gpu_lua_capture_new(L, g);
    struct gpu_capture *capture = gpu_lua_capture_running(g); /* a finaliser may have ended it */
    struct gpu_error error;
    if (!capture) {
        gpu_lua_fail(L, GPULUA_CAPTURE_INVALIDATED, "%s: the capture has ended", name);
    }
    if (gpu_control_begin(capture, name, body, &error)) {
        *body = NULL;
        gpu_lua_throw(L, &error);
    }
    return 1;
}

/* core.control_add(name, condition, capture, ...): the bodies have ended, and are one node of the
 * caller's capture. */
int gpu_lua_control_add(lua_State *L) {
    static const char *const names[] = {"if_", "while_", "switch", NULL};
    struct gpulua *g = GPU_LUA(L);
    struct gpu_capture *bodies[GPU_CONTROL_BODIES_MAX];
    int count = lua_gettop(L) - 2;
    struct gpu_control control = {.kind =
                                      (enum gpu_control_kind)luaL_checkoption(L, 1, NULL, names),
                                  .bodies = bodies,
                                  .body_count = (uint32_t)count};
    const char *name = names[control.kind];
    const struct buffer *value = check_value(L, g, 2, name);
    struct gpu_device *device = gpu_block_device(value->ref.block);
    struct gpu_submit submit = {.stream = gpu_lua_current_stream(L, g, device)};
    gpu_lua_site(L, g, device, &submit.site);
    for (int i = 0; i < count; i++) {
        bodies[i] = gpu_lua_capture_at(L, g, 3 + i);
    }
    submit.capture = gpu_lua_capture_find(L, g, device);
    control.value = &check_value(L, g, 2, name)->ref; /* a finaliser may have closed it */
    struct gpu_error error;
    if (!submit.capture) {
        gpu_lua_fail(L, GPULUA_CAPTURE_INVALIDATED, "%s: the capture has ended", name);
    }
    if (gpu_control_add(&submit, &control, NULL, &error)) {
        gpu_lua_throw(L, &error);
    }
    return 0;
}
