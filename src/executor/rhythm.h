/* How long the script pauses between two rounds of records, such as those of frames. */
#ifndef GPU_EXECUTOR_RHYTHM_H
#define GPU_EXECUTOR_RHYTHM_H

#include <stdint.h>

#define EXECUTOR_SPIN_NS UINT64_C(200000) /* behind the last record, for the next one */

/* All 0 but for round_ns, the time now, at the beginning. Times are of the monotonic clock. */
struct executor_rhythm {
    uint64_t round_ns;            /* when the last record came */
    uint64_t pause_ns, spread_ns; /* moving averages, of pauses that are alike */
    uint32_t alike;               /* pauses in a row */
};

/* Records have come. */
void gpu_executor_rhythm_note(struct executor_rhythm *rhythm, uint64_t now_ns);

/* When to be awake for the next ones, and `*end_ns`, when it is no use any more. 0: nobody knows.
 */
uint64_t gpu_executor_rhythm_expect(const struct executor_rhythm *rhythm, uint64_t *end_ns);

#endif
