/* The flight ring: the newest operations of a device and what they use, written once, in place.
 *
 * It outlives the operations themselves, so that questions can be asked about what is over. Older
 * entries are overwritten. */
#ifndef GPU_RUNTIME_FLIGHT_H
#define GPU_RUNTIME_FLIGHT_H

#include "runtime/op.h"

#define GPU_FLIGHT_OPS_MAX 4096u                  /* a power of two */
#define GPU_FLIGHT_USES_MAX 16384u                /* of all of them together; a power of two */
#define GPU_FLIGHT_DATA_BYTES (UINT64_C(1) << 20) /* of their arguments */
#define GPU_FLIGHT_NAMES_MAX 1024u                /* of blocks that are gone */

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

/* What the ring has, as a Lua chunk that `gpulua --replay` runs again (lua/gpulua/flight.lua): each
 * operation with its arguments, the source of its kernel, the buffers and the graph that it used;
 * what was in memory is not in there. malloc'ed, with a NUL that is not counted. Also of a device
 * that is lost. Does not block. OutOfMemory. */
gpulua_status gpu_flight_text(struct gpu_device *device, char **text, size_t *byte_count,
                              struct gpu_error *error);
/* Of a loss that has been found out, into the device's flight_path, if it has one; the next one of
 * this program beside it, FILE.2. What came of it goes to the log. */
void gpu_flight_write(struct gpu_device *device);
/* The working folder, if the path begins there: for gpu_device_info. malloc'ed; NULL: it does not,
 * or there is none. */
char *gpu_flight_folder(const char *path);
/* How many losses of this program have been written, or could not be. */
uint32_t gpu_flight_files(void);

#endif
