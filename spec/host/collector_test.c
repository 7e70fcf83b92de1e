/* The collector contract: a step of the collector between any two instructions of a script, in all
 * its tasks, in several threads at once, breaks nothing. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "gpulua.h"

#define THREADS 4

/* Handles of every type, most of them dropped at once; tasks, errors, work behind work. */
static const char script[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device(DEVICE, { isolate = ISOLATE })\n"
    "local source = [[\n"
    "extern \"C\" __global__ void add(int n, const int *x, int *y) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += x[i]; }]]\n"
    "local function round(k)\n"
    "  local mod = dev:compile(source)\n"
    "  local x, y = dev:upload('i32', { 1, 2, 3, 4 }), dev:buffer('i32', 4):fill(k)\n"
    "  local stream = dev:stream { label = 'a' .. k }\n"
    "  local op = mod.add:launch({ grid = 1, block = 4, stream = stream }, 4, x, y)\n"
    "  op:on_done(function() end)\n"
    "  mod:kernel('add', 'i32, in i32*, inout i32*'):launch(4, 4, x:slice(1, 4), y:view 'i32')\n"
    "  local recorder = dev:recorder { stream = stream }\n"
    "  recorder:read(y):preflight()\n"
    "  recorder:commit()\n"
    "  dev:memory { budget = 4096 }:buffer('u8', 64):fill(1)\n"
    "  local h = dev:host('i32', 4)\n"
    "  stream:use(h.copy, h, y)\n"
    "  local ok, err = pcall(y.read, y, 0, 9)\n"
    "  assert(not ok and err.code == 'OutOfBounds')\n"
    "  local tasks = {}\n"
    "  for i = 1, 3 do\n"
    "    tasks[i] = gpu.spawn(function()\n"
    "      local z = dev:upload('i32', { i, i, i, i })\n"
    "      mod.add:launch(4, 4, y, z):await()\n"
    "      return z:read()[i]\n"
    "    end)\n"
    "  end\n"
    "  local sum = h[1] + h[4]\n"
    "  for _, task in ipairs(tasks) do sum = sum + task:await() end\n"
    "  gpu.all(op, x)\n"
    "  return sum\n"
    "end\n"
    "result = 0\n"
    "for k = 1, 3 do\n"
    "  local want = 2 * k + 10 + 3 * k + 1 + 2 + 3 + 12\n"
    "  result = result + (round(k) == want and 1 or 0)\n"
    "end\n"
    "dev:close()\n";

struct seat {
    const char *isolation;
    uint64_t steps;
    int result, failures;
};

static __thread struct seat *own;

static void step_collector(lua_State *L, lua_Debug *debug) {
    (void)debug;
    own->steps++;
    lua_gc(L, LUA_GCSTEP, 0);
}

static void note_error(void *user, const gpulua_error *error) {
    struct seat *seat = user;
    seat->failures++;
    fprintf(stderr, "%s\n", error->message);
}

static void *run(void *user) {
    struct seat *seat = user;
    gpulua_config config;
    gpulua_config_init(&config);
    config.on_error = note_error;
    config.user = seat;
    own = seat;
    gpulua *g = gpulua_new(&config);
    if (!g) {
        return NULL;
    }
    const char *device = getenv("GPULUA_DEVICE");
    lua_State *L = gpulua_state(g);
    lua_pushstring(L, device ? device : "cpu");
    lua_setglobal(L, "DEVICE");
    lua_pushstring(L, seat->isolation);
    lua_setglobal(L, "ISOLATE");
    lua_sethook(L, step_collector, LUA_MASKCOUNT, 1); /* coroutines made from now on have it too */
    if (luaL_loadstring(L, script) == LUA_OK && gpulua_load_function(g, 0) == GPULUA_OK) {

        while (gpulua_step(g, -1) > 0) {}
    }
    lua_getglobal(L, "result");
    seat->result = (int)lua_tointeger(L, -1);
    lua_pop(L, 1);
    gpulua_close(g);
    return NULL;
}

int main(void) {
    struct tap tap = {0};
    static const char *const isolations[] = {"none", "process", "thread"};
    for (int i = 0; i < 3; i++) {
        struct seat seats[THREADS];
        pthread_t threads[THREADS];
        char name[120];
        for (int t = 0; t < THREADS; t++) {
            seats[t] = (struct seat){.isolation = isolations[i]};
            if (pthread_create(&threads[t], NULL, run, &seats[t]) != 0) {
                return 1;
            }
        }
        for (int t = 0; t < THREADS; t++) {
            pthread_join(threads[t], NULL);
            snprintf(name, sizeof name, "%s, thread %d: right with a step between any instructions",
                     isolations[i], t + 1);
            tap_check(&tap, seats[t].result == 3 && seats[t].failures == 0, name);
            snprintf(name, sizeof name, "%s, thread %d: there were steps", isolations[i], t + 1);
            tap_check(&tap, seats[t].steps > 500, name);
        }
    }
    return tap_finish(&tap);
}
