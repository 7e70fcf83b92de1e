/* Who calls: at which line of the script, and whether what we return is used.
 *
 * lua.h says the line, at a cost that grows with the length of the script's function, and nothing
 * of the results. Both are in what Lua keeps of a call, which lua_Debug points to. We read it where
 * a few calls, made when the module is opened, show that it is laid out as in the Lua 5.4 that we
 * know; elsewhere lua.h is all, and results are always made. */
#ifndef GPU_BINDING_CALLER_H
#define GPU_BINDING_CALLER_H

#include <lua.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/error.h"

#define CALLER_PLACES 64u /* a power of two */

struct gpulua;
struct gpu_device;

/* A place in a script that has called before. It holds as long as its function is there, which the
 * table of functions knows. */
struct caller_place {
    const void *at;                  /* the instruction behind the call */
    const struct gpu_device *device; /* compared, never followed */
    struct gpu_site site;            /* line 0: none of the script's */
};

struct caller {
    bool is_known;     /* how Lua lays out its calls */
    int functions_ref; /* in the registry: a weak table of the places' functions, from 1 */
    struct caller_place places[CALLER_PLACES];
};

void gpu_lua_caller_open(lua_State *L, struct gpulua *g);
/* A device was opened: it may have the address of one that is gone. */
void gpu_lua_caller_forget(struct gpulua *g);
/* False: the function of ours that runs was called as a statement, so what it returns is dropped.
 */
bool gpu_lua_is_result_wanted(lua_State *L, const struct gpulua *g);

#endif
