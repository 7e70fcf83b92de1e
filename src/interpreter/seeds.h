/* gpulua --seeds: the script again and again, each time in a process of its own, in an order of its
 * own. What is compared and said is in lua/gpulua/seeds.lua. */
#ifndef GPU_INTERPRETER_SEEDS_H
#define GPU_INTERPRETER_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

#include <lua.h>

/* `count` as given: a number or "all". argv without the options that are about seeds is what each
 * run gets. Returns the exit code; false in *ok: an error has been pushed. */
int seeds_run(lua_State *L, int argc, char **argv, const char *count, uint64_t first, bool *ok);

#endif
