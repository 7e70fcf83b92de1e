/* A script in a gpulua of its own that has the driver do the same between what it does: what
 * machines that change their speed from one second to the next say of both is of the same moment
 * then. GPULUA_ISOLATE chooses the transport. */
#ifndef BENCH_BETWEEN_H
#define BENCH_BETWEEN_H

#include <lauxlib.h>
#include <lua.h>
#include <stdio.h>

#include "gpulua.h"

static inline void between_say(void *user, const gpulua_error *error) {
    fprintf(stderr, "%s\n%s\n", error->message, error->traceback);
    *(int *)user = 1;
}

/* With `functions` as the global table raw. The exit status. */
static inline int run_between(const char *script, const luaL_Reg *functions) {
    int result = 0;
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cuda";
    config.on_error = between_say;
    config.user = &result;
    gpulua *g = gpulua_new(&config);
    if (!g) {
        fprintf(stderr, "%s\n", gpulua_last_error(NULL)->message);
        return 1;
    }
    lua_newtable(gpulua_state(g));
    luaL_setfuncs(gpulua_state(g), functions, 0);
    lua_setglobal(gpulua_state(g), "raw");
    if (gpulua_load_file(g, script)) {
        fprintf(stderr, "%s\n", gpulua_last_error(g)->message);
        result = 1;
    }
    while (gpulua_tasks(g) > 0) {
        (void)gpulua_step(g, -1);
    }
    gpulua_close(g);
    return result;
}

#endif
