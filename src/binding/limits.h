/* For how long scripts that are not trusted may run. */
#ifndef GPU_BINDING_LIMITS_H
#define GPU_BINDING_LIMITS_H

#include "binding/loop.h"

/* In struct gpulua's `interrupt`, above what counts those of the host: the code that runs has had
 * its time, and gets to do nothing more. Unlike an interrupt it is not over once it was raised. */
#define GPU_LUA_TIME_IS_UP (1 << 20)

/* From now on each task may run for `run_ns` between two waits; in a state that has no coroutine
 * yet. False: no thread, and errno. */
bool gpu_lua_limits_start(struct gpulua *g, int64_t run_ns);
/* Without limits: nothing. */
void gpu_lua_limits_stop(struct gpulua *g);

void gpu_lua_limits_begin_run(struct gpulua *g, int64_t *outer_ns);
void gpu_lua_limits_end_run(struct gpulua *g, int64_t outer_ns);
/* A turn that began then has taken as long as a task may. */
bool gpu_lua_limits_turn_is_over(const struct gpulua *g, int64_t begun_ns);
_Noreturn void gpu_lua_limits_fail(lua_State *L, const struct gpulua *g);

/* What runs from here to the end has a time of its own; `outer_ns` is for the end. */
static inline void gpu_lua_limits_begin(struct gpulua *g, int64_t *outer_ns) {
    *outer_ns = 0;
    if (g->limits) {
        gpu_lua_limits_begin_run(g, outer_ns);
    }
}
static inline void gpu_lua_limits_end(struct gpulua *g, int64_t outer_ns) {
    if (g->limits) {
        gpu_lua_limits_end_run(g, outer_ns);
    }
}

#endif
