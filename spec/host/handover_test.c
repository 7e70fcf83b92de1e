/* What a script has seen finished needs no wait: the memory may be used at once on another stream,
 * by another worker, while the first is busy with later work. Under ThreadSanitizer this is where
 * an order that only the script's own process knows of would be reported. */
#include <stdio.h>
#include <stdlib.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "gpulua.h"

#define ROUNDS 100

static const char script[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device(DEVICE, { isolate = ISOLATE })\n"
    "local slow = dev:compile([[\n"
    "extern \"C\" __global__ void slow(int n, int *y) {\n"
    "  int s = 0;\n"
    "  for (int i = 0; i < n; i++) { s += i * 7 % 5; __threadfence(); }\n"
    "  y[0] = s; }]]).slow\n"
    "local a, b = dev:stream(), dev:stream()\n"
    "local x, y = dev:buffer('i32', 4), dev:buffer('i32', 1)\n"
    "local first, second = dev:upload('i32', { 1, 2, 3, 4 }), dev:upload('i32', { 5, 6, 7, 8 })\n"
    "result = 0\n"
    "for k = 1, ROUNDS do\n"
    "  local op = a:use(x.copy, x, first)\n"
    "  slow:launch({ grid = 1, block = 1, stream = a }, 20000, y)\n"
    "  op:await()\n"
    "  b:use(x.copy, x, second):await()\n"
    "  result = result + (x:read()[4] == 8 and 1 or 0)\n"
    "end\n"
    "dev:close()\n";

static void note_error(void *user, const gpulua_error *error) {
    ++*(int *)user;
    fprintf(stderr, "%s\n", error->message);
}

int main(void) {
    struct tap tap = {0};
    static const char *const isolations[] = {"none", "process", "thread"};
    for (int i = 0; i < 3; i++) {
        int failures = 0;
        gpulua_config config;
        gpulua_config_init(&config);
        config.on_error = note_error;
        config.user = &failures;
        gpulua *g = gpulua_new(&config);
        if (!g) {
            return 1;
        }
        lua_State *L = gpulua_state(g);
        const char *device = getenv("GPULUA_DEVICE");
        lua_pushstring(L, device ? device : "cpu");
        lua_setglobal(L, "DEVICE");
        lua_pushstring(L, isolations[i]);
        lua_setglobal(L, "ISOLATE");
        lua_pushinteger(L, ROUNDS);
        lua_setglobal(L, "ROUNDS");
        if (luaL_loadstring(L, script) == LUA_OK && gpulua_load_function(g, 0) == GPULUA_OK) {
            while (gpulua_step(g, -1) > 0) {}
        }
        lua_getglobal(L, "result");
        int right = (int)lua_tointeger(L, -1);
        lua_pop(L, 1);
        gpulua_close(g);
        char name[120];
        snprintf(name, sizeof name, "%s: what was seen finished is before what comes next",
                 isolations[i]);
        tap_check(&tap, right == ROUNDS && failures == 0, name);
    }
    return tap_finish(&tap);
}
