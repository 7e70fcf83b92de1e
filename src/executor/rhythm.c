/* The next pause is guessed from those that were alike: their moving average, and by how much they
 * were off. */
#include "executor/rhythm.h"

#define ALIKE_MIN 3u
#define PAUSE_NS_MAX UINT64_C(250000000) /* behind a longer one nobody notices being woken */
#define EARLY_NS_MIN UINT64_C(100000)    /* what a timer may be late by */
#define EARLY_NS_MAX UINT64_C(1000000)   /* of pauses that are less alike, some are missed */

void gpu_executor_rhythm_note(struct executor_rhythm *rhythm, uint64_t now_ns) {
    uint64_t pause_ns = now_ns - rhythm->round_ns;
    uint64_t usual_ns = rhythm->pause_ns;
    rhythm->round_ns = now_ns;
    if (pause_ns < EXECUTOR_SPIN_NS) { /* it is the same round */
        return;
    }
    uint64_t off_ns = pause_ns > usual_ns ? pause_ns - usual_ns : usual_ns - pause_ns;
    if (off_ns > usual_ns / 4) {
        *rhythm = (struct executor_rhythm){.round_ns = now_ns, .pause_ns = pause_ns, .alike = 1};
        return;
    }
    rhythm->alike += rhythm->alike < ALIKE_MIN;
    rhythm->pause_ns = (3 * usual_ns + pause_ns) / 4;
    rhythm->spread_ns = (3 * rhythm->spread_ns + off_ns) / 4;
}

uint64_t gpu_executor_rhythm_expect(const struct executor_rhythm *rhythm, uint64_t *end_ns) {
    if (rhythm->alike < ALIKE_MIN || rhythm->pause_ns > PAUSE_NS_MAX) {
        *end_ns = 0;
        return 0;
    }
    uint64_t early_ns = EARLY_NS_MIN + 4 * rhythm->spread_ns;
    early_ns = early_ns < EARLY_NS_MAX ? early_ns : EARLY_NS_MAX;
    early_ns = early_ns < rhythm->pause_ns / 8 ? early_ns : rhythm->pause_ns / 8;
    *end_ns = rhythm->round_ns + rhythm->pause_ns + early_ns;
    return rhythm->round_ns + rhythm->pause_ns - early_ns;
}
