/* What the tests of memory that hosts hold have in common. */
#ifndef SPEC_HOST_EXCHANGE_H
#define SPEC_HOST_EXCHANGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "backend/tap.h"
#include "gpulua.h"

static struct tap tap;
#define CHECK(good) tap_check(&tap, good, #good)

/* Did the call fail with that code, and say that? */
static inline bool failed(const gpulua *g, gpulua_status status, gpulua_status wanted,
                          const char *text) {
    const char *message = gpulua_last_error(g)->message;
    bool good =
        status == wanted && gpulua_last_error(g)->code == wanted && strstr(message, text) != NULL;
    if (!good) {
        printf("# wanted %s: %s\n# got    %s: %s\n", gpulua_status_name(wanted), text,
               gpulua_status_name(status), message);
    }
    return good;
}
#define FAILS(call, code, text) CHECK(failed(g, call, code, text))

static inline void print_error(void *user, const gpulua_error *error) {
    (void)user;
    printf("# %s\n", error->message);
}

/* The tests are about the CPU device: on it all memory is the host's. */
static inline gpulua *open_object(gpulua_isolation isolation) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cpu";
    config.isolation = isolation;
    config.on_error = print_error;
    return gpulua_new(&config);
}

static inline bool run(gpulua *g, const char *text) {
    lua_State *L = gpulua_state(g);
    bool is_loaded = luaL_loadstring(L, text) == LUA_OK;
    if (!is_loaded || gpulua_load_function(g, 0) != GPULUA_OK) {
        printf("# %s\n", is_loaded ? "not started" : lua_tostring(L, -1));
        lua_settop(L, 0);
        return false;
    }
    lua_pushnil(L);
    lua_setglobal(L, "ok");
    while (gpulua_tasks(g) > 0) {
        if (gpulua_step(g, -1) < 0) {
            return false;
        }
    }
    lua_getglobal(L, "ok");
    bool is_ok = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return is_ok;
}

/* The script's buffer in the global variable, as a host's. */
static inline gpulua_buffer *global_buffer(gpulua *g, const char *name) {
    gpulua_buffer *buffer = NULL;
    lua_State *L = gpulua_state(g);
    lua_getglobal(L, name);
    CHECK(gpulua_to_buffer(L, -1, &buffer) == GPULUA_OK);
    lua_pop(L, 1);
    return buffer;
}

static inline void set_global(gpulua *g, const char *name, gpulua_buffer *buffer) {
    CHECK(gpulua_push_buffer(gpulua_state(g), buffer) == GPULUA_OK);
    lua_setglobal(gpulua_state(g), name);
}

static const char prelude[] =
    "gpu = require 'gpulua'\n"
    "dev = gpu.device()\n"
    "mod = dev:compile [[\n"
    "  extern \"C\" __global__ void twice(const float *x, float *y, int n) {\n"
    "    for (int i = 0; i < n; i++) y[i] = 2 * x[i];\n"
    "  }\n"
    "  extern \"C\" __global__ void add(float *x, int n) { for (int i = 0; i < n; i++) x[i] += 1; "
    "}\n"
    "  extern \"C\" __global__ void spin(float *x, int n, long long ticks) {\n"
    "    long long start = clock64();\n"
    "    while (clock64() - start < ticks) { }\n"
    "    for (int i = 0; i < n; i++) x[i] += 1;\n"
    "  }\n"
    "]]\n"
    "one = { grid = 1, block = 1 }\n"
    "function code(f, ...) local good, e = pcall(f, ...) return not good and e.code, tostring(e) "
    "end\n"
    "ok = true\n";

#endif
