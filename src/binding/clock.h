/* Vector clocks: how far each strand's work is known to somebody. Immutable and shared: copies are
 * made where something is learned. */
#ifndef GPU_BINDING_CLOCK_H
#define GPU_BINDING_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct clock {
    uint32_t refs;
    uint32_t count;
    uint64_t times[]; /* by the strand's number */
};

struct clock *gpu_lua_clock_retain(struct clock *clock); /* NULL is the empty one */
void gpu_lua_clock_release(struct clock *clock);
uint64_t gpu_lua_clock_time(const struct clock *clock, uint32_t strand);
/* Replaces *clock by one that knows also what `other` knows, and `time` of `strand`. False: no
 * memory; it is as it was. */
bool gpu_lua_clock_learn(struct clock **clock, const struct clock *other, uint32_t strand,
                         uint64_t time);

#endif
