/* Waits of several objects on one device that come to no end by themselves: for work of a device
 * that the script has closed, for another object's recorder. They end when somebody interrupts
 * them, and with the time of gpu.timeout. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "gpulua.h"
#include "host/told.h"

static struct tap tap;
static gpulua_isolation isolation;
static _Atomic int is_released; /* what hangs is to end */

static void check(bool condition, const char *name) {
    char text[200];
    snprintf(text, sizeof text, "%s: %s",
             isolation == GPULUA_ISOLATE_NONE     ? "none"
             : isolation == GPULUA_ISOLATE_THREAD ? "thread"
                                                  : "process",
             name);
    tap_check(&tap, condition, text);
}

/* All is about who waits, and the CPU device shows it as well as any. */
static gpulua_device *open_device(void) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.device = "cpu";
    config.isolation = isolation;
    config.close_timeout_ms = 50;
    gpulua_device *device = gpulua_device_open(&config);
    if (!device) {
        printf("# %s\n", gpulua_last_error(NULL)->message);
        exit(1);
    }
    return device;
}

/* What hangs ends by itself after 20 s, so that a wait that nothing ends fails a test and not the
 * whole program; else with its process, or when it is released. */
static const char opening[] =
    "gpu = require 'gpulua'\n"
    "dev = gpu.device()\n"
    "hang = dev:compile([[extern \"C\" __global__ void hang(int *x, long long at, long long n) {\n"
    "  long long start = clock64();\n"
    "  while (clock64() - start < n && (at == 0 || *(volatile int *)at == 0)) { }\n"
    "  x[0] = 1; }]]).hang\n"
    "x = dev:buffer('i32', 4, { label = 'x' }):fill(0)\n"
    "dev:synchronize()\n"
    "function begin() return hang:launch({ grid = 1, block = 1 }, x, at, 20000000000) end\n"
    /* What f ends with, where it has so long. */
    "function timed(f, ...)\n"
    "  local ok, err = pcall(gpu.timeout, 0.05, f, ...)\n"
    "  code = ok and 'OK' or err.code\n"
    "end\n";

static bool run(gpulua *g, const char *script) {
    lua_State *L = gpulua_state(g);
    if (luaL_loadstring(L, script) != LUA_OK) {
        printf("# %s\n", lua_tostring(L, -1));
        exit(1);
    }
    bool is_loaded = gpulua_load_function(g, 0) == GPULUA_OK;
    while (is_loaded && gpulua_step(g, -1) > 0) {}
    return is_loaded;
}

static gpulua *open_object(gpulua_device *device, struct told *told) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.shared_device = device;
    config.on_error = note_error;
    config.on_log = note_line;
    config.user = told;
    config.close_timeout_ms = 50;
    *told = (struct told){0};
    gpulua *g = gpulua_new(&config);
    lua_State *L = g ? gpulua_state(g) : NULL;
    if (!g) {
        exit(1);
    }
    lua_pushinteger(L, isolation == GPULUA_ISOLATE_PROCESS ? 0 : (lua_Integer)&is_released);
    lua_setglobal(L, "at");
    check(run(g, opening) && told->error_count == 0, "an object on a shared device");
    return g;
}

static bool ends_with(gpulua *g, const char *script, const char *code) {
    bool is_right = run(g, script);
    lua_State *L = gpulua_state(g);
    lua_getglobal(L, "code");
    const char *got = lua_tostring(L, -1);
    is_right = is_right && got && strcmp(got, code) == 0;
    if (!is_right) {
        printf("# %s: %s\n", script, got ? got : "nothing");
    }
    lua_pop(L, 1);
    lua_pushnil(L);
    lua_setglobal(L, "code");
    return is_right;
}

/* Interrupts an object, after some time in which nobody else does. */
struct interrupter {
    gpulua *g;
    int wait_ms;
    atomic_bool is_over;
    pthread_t thread;
};

static void *interrupt_later(void *user) {
    struct interrupter *self = user;
    for (int i = 0; i < self->wait_ms && !self->is_over; i++) {
        usleep(1000);
    }
    if (!self->is_over) {
        gpulua_interrupt(self->g);
    }
    return NULL;
}

static void begin_interrupt(struct interrupter *self, gpulua *g, int wait_ms) {
    self->g = g;
    self->wait_ms = wait_ms;
    self->is_over = false;
    if (pthread_create(&self->thread, NULL, interrupt_later, self) != 0) {
        exit(1);
    }
}

static void end_interrupt(struct interrupter *self) {
    self->is_over = true;
    pthread_join(self->thread, NULL);
}

/* ---- a device that the script has closed ---- */

static void test_left(void) {
    struct told told;
    gpulua_device *device = open_device();
    gpulua *g = open_object(device, &told);
    struct interrupter interrupter;
    static const char *const waits[] = {"op.await, op",     "op.await, op, 60", "op.join, op",
                                        "op.join, op, 60",  "gpu.all, op",      "gpu.any, op",
                                        "gpu.all, op, op2", "gpu.any, op2, op"};
    run(g, "op, op2 = begin(), begin() dev:close()");
    check(told.error_count == 0, "a script closes its device, which is at work");
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        char script[100];
        snprintf(script, sizeof script, "timed(%s)", waits[i]);
        check(ends_with(g, script, "Timeout"),
              "waits for work that it left end with the time of gpu.timeout");
        told.code = GPULUA_OK;
        begin_interrupt(&interrupter, g, 20);
        snprintf(script, sizeof script, "(function(f, ...) f(...) end)(%s)", waits[i]);
        run(g, script);
        check(told.code == GPULUA_INTERRUPTED, "and when they are interrupted");
        pthread_join(interrupter.thread, NULL);
    }
    check(ends_with(g, "code = select(2, op:join(0.02)).code", "Timeout"),
          "and those with a limit of their own at that");
    is_released = 1;
    gpulua_close(g);
    gpulua_device_close(device);
    is_released = 0;
}

/* ---- two objects ---- */

static void test_recorder(void) {
    struct told of_a, of_b;
    gpulua_device *device = open_device();
    gpulua *a = open_object(device, &of_a), *b = open_object(device, &of_b);
    struct interrupter interrupter;
    gpulua_buffer *x = NULL;
    run(a, "rec = dev:recorder() rec:write(x):preflight()");
    lua_getglobal(gpulua_state(a), "x");
    bool is_moved = gpulua_to_buffer(gpulua_state(a), -1, &x) == GPULUA_OK &&
                    gpulua_push_buffer(gpulua_state(b), x) == GPULUA_OK;
    lua_pop(gpulua_state(a), 1);
    lua_setglobal(gpulua_state(b), "x");
    check(is_moved && of_a.error_count == 0, "one object is between preflight and commit");
    begin_interrupt(&interrupter, b, 20000);
    check(ends_with(b, "timed(x.fill, x, 3)", "Timeout"),
          "another one waits for that until the time of gpu.timeout is up");
    end_interrupt(&interrupter);
    run(a, "rec:commit():await()");
    check(ends_with(b, "x:fill(4) code = tostring(x:read(1, 1)[1])", "4") &&
              of_a.error_count + of_b.error_count == 0,
          "and goes on behind it");
    gpulua_buffer_release(x);
    gpulua_close(b);
    gpulua_close(a);
    gpulua_device_close(device);
}

int main(void) {
    static const gpulua_isolation isolations[] = {GPULUA_ISOLATE_NONE, GPULUA_ISOLATE_PROCESS,
                                                  GPULUA_ISOLATE_THREAD};
    for (int i = 0; i < 3; i++) {
        isolation = isolations[i];
        test_left();
        test_recorder();
    }
    return tap_finish(&tap);
}
