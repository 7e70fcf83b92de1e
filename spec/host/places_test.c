/* Where a kernel was, as a host is told of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "gpulua.h"

static struct tap tap;
#define CHECK(good) tap_check(&tap, good, #good)

static const char script[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device()\n"
    "local f = dev:compile([[\n"
    "__device__ void put(int *x, int i) { x[i] = i; }\n"
    "extern \"C\" __global__ void past(int *x) { if (threadIdx.x == 3) put(x, 4); }\n"
    "extern \"C\" __global__ void same(int *x) { x[0] = threadIdx.x; }]], { name = 'f.cu' })\n"
    "local x = dev:buffer('i32', 4, { label = 'x' }):fill(0)\n"
    "local what = ...\n"
    "if what == 'changed' then\n"
    "  local _, err = pcall(function() f.same:launch({ grid = 1, block = 4 }, x):await() end)\n"
    "  err.places = { { line = {}, block = 7, thread = { 'a' }, caller = false }, 8 }\n"
    "  error(err)\n"
    "end\n"
    "f[what]:launch({ grid = { 1, 2 }, block = 4 }, x):await()\n";

static const gpulua_error *error_of(gpulua *g, const char *what) {
    lua_State *L = gpulua_state(g);
    CHECK(luaL_loadbuffer(L, script, sizeof script - 1, "=script.lua") == LUA_OK);
    lua_pushstring(L, what);
    CHECK(gpulua_load_function(g, 1) == GPULUA_OK);
    while (gpulua_tasks(g) > 0 && gpulua_step(g, -1) >= 0) {}
    return gpulua_last_error(g);
}

int main(void) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cpu";
    config.check = 1;
    gpulua *g = gpulua_new(&config);
    CHECK(gpulua_last_error(g)->place == NULL && gpulua_last_error(NULL)->place == NULL);

    const gpulua_error *error = error_of(g, "past");
    const gpulua_place *place = error->place;
    CHECK(error->code == GPULUA_OUT_OF_BOUNDS && place != NULL && error->other_place == NULL);
    CHECK(place->struct_bytes == sizeof *place && place->thread[0] == 3 && place->thread[1] == 0);
    CHECK(place->block[0] == 0 && place->block[1] <= 1 && place->block[2] == 0);
    if (place->line != 0) { /* libdw is here */
        CHECK(strcmp(place->source, "f.cu") == 0 && place->line == 1);
        CHECK(strcmp(place->caller, "f.cu") == 0 && place->caller_line == 2);
    } else {
        CHECK(place->source[0] == '\0' && place->caller[0] == '\0');
    }

    error = error_of(g, "same");
    CHECK(error->code == GPULUA_RACE_FOUND && error->place != NULL && error->other_place != NULL);
    CHECK(error->other_place->line == error->place->line && error->place->caller_line == 0);
    CHECK(memcmp(error->place->thread, error->other_place->thread, sizeof place->thread) != 0 ||
          memcmp(error->place->block, error->other_place->block, sizeof place->block) != 0);

    error = error_of(g, "changed"); /* by the script: as far as it makes sense */
    CHECK(error->code == GPULUA_RACE_FOUND && error->place != NULL && error->place->line == 0);
    CHECK(error->place->source[0] == '\0' && error->other_place == NULL);

    error = error_of(g, "missing");
    CHECK(error->code == GPULUA_INVALID_ARGUMENT && error->place == NULL &&
          error->other_place == NULL);
    gpulua_close(g);
    return tap_finish(&tap);
}
