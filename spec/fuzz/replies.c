/* Replies as the script's side finds them in the ring that the device's process writes: kernels of
 * the CPU device run there, and may write over anything. Whatever is there, it is told of or ends
 * the device, and nothing outside of a reply is read.
 *
 * They are heard by a device that waits: for a fill, for a module. Where a reply has 1 for
 * its number, it is the one that is waited for. */
#include "binding/device.h"
#include "fuzz/ring.h"
#include "runtime/state.h"
#include "wire/transport.h"

/* Called with nothing: the device, with work under way. Called with it, which may have been told
 * anything: is it well? */
static const char replies_script[] =
    "local dev = require 'gpulua'.device('cpu', { trace = 1000 })\n"
    "local buffer = dev:buffer('f32', 16)\n"
    "return function(told)\n"
    "  if not told then\n"
    "    buffer:fill(1)\n"
    "    return dev\n"
    "  end\n"
    "  for _ = 1, 100 do\n" /* each tells of one failure */
    "    if pcall(dev.synchronize, dev) then\n"
    "      return true\n"
    "    end\n"
    "  end\n"
    "end\n";

struct told {
    struct gpu_device *device;
    uint64_t request, work;
    uint64_t heard;
};

/* What is there can be read, as whoever hears it does. */
static void hear(void *user, const struct wire_reply *reply) {
    struct told *told = user;
    struct wire_reply *own = (struct wire_reply *)(uintptr_t)reply; /* a copy, ours */
    const uint8_t *body = gpu_wire_reply_body(reply);
    told->heard += strlen(gpu_wire_reply_text(reply));
    for (uint32_t i = 0; i < reply->body_bytes; i++) {
        told->heard += body[i];
    }
    if (reply->seq == 1) {
        own->seq = reply->kind == WIRE_REPLY_RESULT ? told->request : told->work;
    }
    gpu_device_on_reply(told->device, reply);
}

static uint64_t newest_work(const struct gpu_device *device) {
    uint64_t newest = 0;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        newest = device->slot_seq[slot] > newest ? device->slot_seq[slot] : newest;
    }
    return newest;
}

/* Of the module that the answer described. */
static void look_at(struct gpu_module *module) {
    uint64_t value;
    for (uint32_t i = 0; i < gpu_module_kernel_count(module); i++) {
        FUZZ_CHECK(strlen(gpu_module_kernel_name(module, i)) < FUZZ_RING_BYTES);
    }
    (void)gpu_module_value(module, "value", &value);
}

FUZZ_TARGET(replies) {
    static gpulua *g;
    struct fuzz_input input = {bytes, byte_count};
    struct fuzz_ring ring;
    struct gpu_module *module = NULL;
    struct gpu_op *op = NULL;
    struct gpu_error error = {0};
    if (!g) {
        g = fuzz_object();
        FUZZ_CHECK(luaL_dostring(gpulua_state(g), replies_script) == 0);
    }
    lua_State *L = gpulua_state(g);
    lua_pushvalue(L, 1);
    FUZZ_CHECK(lua_pcall(L, 0, 1, 0) == LUA_OK);
    struct gpu_device *device = gpu_lua_check_device(L, gpu_lua_find(L), -1, NULL);
    /* A request whose answer is there, and is not heard before those of the input. */
    struct gpu_module_info info = {.name = "none", .kind = GPU_MODULE_LIBRARY};
    FUZZ_CHECK(gpu_module_create(device, &info, &module, &op, &error) == GPULUA_OK);
    struct told told = {
        .device = device, .request = device->request_number_next, .work = newest_work(device)};
    struct wire_link_info link = {.on_reply = hear, .user = &told};
    struct link_core core = {.link.page = device->link->page, .event_fd = -1};
    fuzz_ring_fill(&ring, &input);
    gpu_wire_core_init(&core, &link);
    core.replies = ring.ring;
    bool corrupt = false;
    gpu_wire_core_drain(&core, &corrupt);
    while (!gpu_op_is_over(op)) {
        gpu_device_poll(device);
    }
    look_at(module);
    gpu_op_release(op);
    gpu_module_release(module);
    fuzz_ring_free(&ring);
    lua_settop(L, 1);
    lua_pushvalue(L, 1);
    lua_pushboolean(L, 1);
    FUZZ_CHECK(lua_pcall(L, 1, 1, 0) == LUA_OK);
    bool is_well = lua_toboolean(L, -1);
    lua_settop(L, 1);
    if (!is_well) {
        gpulua_close(g);
        g = NULL;
    }
    return 0;
}
