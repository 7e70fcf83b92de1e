#include "binding/clock.h"

#include <stdlib.h>

struct clock *gpu_lua_clock_retain(struct clock *clock) {
    if (clock) {
        clock->refs++;
    }
    return clock;
}

void gpu_lua_clock_release(struct clock *clock) {
    if (clock && --clock->refs == 0) {
        free(clock);
    }
}

uint64_t gpu_lua_clock_time(const struct clock *clock, uint32_t strand) {
    return clock && strand < clock->count ? clock->times[strand] : 0;
}

static bool knows(const struct clock *clock, const struct clock *other) {
    for (uint32_t i = 0; other && i < other->count; i++) {
        if (gpu_lua_clock_time(clock, i) < other->times[i]) {
            return false;
        }
    }
    return true;
}

bool gpu_lua_clock_learn(struct clock **clock, const struct clock *other, uint32_t strand,
                         uint64_t time) {
    if (gpu_lua_clock_time(*clock, strand) >= time && knows(*clock, other)) {
        return true;
    }
    uint32_t count = *clock ? (*clock)->count : 0;
    count = other && other->count > count ? other->count : count;
    count = strand + 1 > count ? strand + 1 : count;
    struct clock *made = malloc(sizeof *made + count * sizeof made->times[0]);
    if (!made) {
        return false;
    }
    made->refs = 1;
    made->count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t own = gpu_lua_clock_time(*clock, i), theirs = gpu_lua_clock_time(other, i);
        made->times[i] = own > theirs ? own : theirs;
    }
    if (made->times[strand] < time) {
        made->times[strand] = time;
    }
    gpu_lua_clock_release(*clock);
    *clock = made;
    return true;
}
