/* The flight ring: the newest operations of a device and what they use, written once, in place.
 *
 * It outlives the operations themselves, so that questions can be asked about what is over. Older
 * entries are overwritten. */
#ifndef GPU_RUNTIME_FLIGHT_H
#define GPU_RUNTIME_FLIGHT_H

#include "runtime/op.h"

#define GPU_FLIGHT_OPS_MAX 4096u   /* a power of two */
#define GPU_FLIGHT_USES_MAX 16384u /* of all of them together; a power of two */

enum gpu_hazard_kind { GPU_HAZARD_RAW, GPU_HAZARD_WAW, GPU_HAZARD_WAR };

/* Two operations touch the same bytes, and one of them writes. */
struct gpu_hazard {
    enum gpu_hazard_kind kind;
    uint64_t block_number;
    char label[48];                /* of the block; "" if it has none or is gone */
    uint64_t byte_begin, byte_end; /* in the block */
    bool is_module;                /* not a buffer but the variables of a module */
};
#define GPU_HAZARDS_MAX 16u
struct gpu_why {
    bool is_later;       /* was `later` launched after `earlier`? If not, nothing else is set */
    bool is_same_stream; /* then it is behind it in any case */
    uint64_t stream_earlier, stream_later;
    uint32_t hazard_count; /* of all; the first GPU_HAZARDS_MAX are kept */
    struct gpu_hazard hazards[GPU_HAZARDS_MAX];
};
/* What orders `later` behind `earlier`. InvalidArgument: of different devices, no work of a stream,
 * or the flight ring has forgotten one. Does not block. */
gpulua_status gpu_op_why(const struct gpu_op *later, const struct gpu_op *earlier,
                         struct gpu_why *why, struct gpu_error *error);

#endif
