/* The flight ring (see flight.h). */
#include "runtime/flight.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/state.h"

bool gpu_flight_init(struct gpu_flight *flight) {
    flight->ops = calloc(GPU_FLIGHT_OPS_MAX, sizeof *flight->ops);
    flight->uses = calloc(GPU_FLIGHT_USES_MAX, sizeof *flight->uses);
    return flight->ops && flight->uses;
}

void gpu_flight_finish(struct gpu_flight *flight) {
    free(flight->ops);
    free(flight->uses);
    *flight = (struct gpu_flight){0};
}

void gpu_flight_note(struct gpu_flight *flight, struct gpu_point point, const struct gpu_use *uses,
                     uint32_t use_count) {
    struct gpu_flight_use *ring = flight->uses;
    uint64_t number = flight->use_count;
    flight->ops[flight->op_count++ % GPU_FLIGHT_OPS_MAX] =
        (struct gpu_flight_op){.point = point, .use_first = number, .use_count = use_count};
    flight->use_count = number + use_count;
    for (uint32_t i = 0; i < use_count; i++) {
        ring[number++ % GPU_FLIGHT_USES_MAX] = (struct gpu_flight_use){
            .block_number = uses[i].block->number,
            .byte_begin = uses[i].byte_begin,
            .byte_end = uses[i].byte_end,
            .access = uses[i].access,
            .is_module = uses[i].block->byte_count == 0,
        };
    }
}

/* ---- asking ---- */

/* Its number in the order of launching, from 1; 0: forgotten. */
static uint64_t find(const struct gpu_flight *flight, struct gpu_point point) {
    uint64_t oldest =
        flight->op_count > GPU_FLIGHT_OPS_MAX ? flight->op_count - GPU_FLIGHT_OPS_MAX : 0;
    for (uint64_t number = flight->op_count; number > oldest; number--) {
        const struct gpu_flight_op *op = &flight->ops[(number - 1) % GPU_FLIGHT_OPS_MAX];
        if (op->point.slot == point.slot && op->point.seq == point.seq) {
            return op->use_first + GPU_FLIGHT_USES_MAX >= flight->use_count ? number : 0;
        }
    }
    return 0;
}

static bool find_kind(uint8_t earlier, uint8_t later, enum gpu_hazard_kind *kind) {
    if ((earlier & GPU_WRITE) && (later & GPU_READ)) {
        *kind = GPU_HAZARD_RAW;
    } else if ((earlier & GPU_WRITE) && (later & GPU_WRITE)) {
        *kind = GPU_HAZARD_WAW;
    } else if ((earlier & GPU_READ) && (later & GPU_WRITE)) {
        *kind = GPU_HAZARD_WAR;
    } else {
        return false;
    }
    return true;
}

static void copy_label(const struct gpu_device *device, struct gpu_hazard *hazard) {
    for (const struct gpu_block *block = device->blocks; block; block = block->next) {
        if (block->number == hazard->block_number) {
            memcpy(hazard->label, block->label, sizeof hazard->label);
            return;
        }
    }
}

static void add_hazard(const struct gpu_device *device, const struct gpu_flight_use *a,
                       const struct gpu_flight_use *b, struct gpu_why *why) {
    struct gpu_hazard hazard = {.block_number = a->block_number, .is_module = a->is_module};
    hazard.byte_begin = a->byte_begin > b->byte_begin ? a->byte_begin : b->byte_begin;
    hazard.byte_end = a->byte_end < b->byte_end ? a->byte_end : b->byte_end;
    if (a->block_number != b->block_number || hazard.byte_begin >= hazard.byte_end ||
        !find_kind(a->access, b->access, &hazard.kind)) {
        return;
    }
    if (why->hazard_count < GPU_HAZARDS_MAX) {
        copy_label(device, &hazard);
        why->hazards[why->hazard_count] = hazard;
    }
    why->hazard_count++;
}

gpulua_status gpu_op_why(const struct gpu_op *later, const struct gpu_op *earlier,
                         struct gpu_why *why, struct gpu_error *error) {
    GPU_ENTER(later->device);
    memset(why, 0, sizeof *why);
    const struct gpu_device *device = later->device;
    if (later->stream_number == 0 || earlier->stream_number == 0 || earlier->device != device) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "only work on streams of one device is ordered");
    }
    const struct gpu_flight *flight = &device->flight;
    uint64_t a = find(flight, (struct gpu_point){earlier->slot, earlier->seq});
    uint64_t b = find(flight, (struct gpu_point){later->slot, later->seq});
    if (a == 0 || b == 0) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "'%s' is too long ago: the flight ring holds the newest %u operations",
                             a == 0 ? earlier->label : later->label, GPU_FLIGHT_OPS_MAX);
    }
    if (b <= a) {
        return GPULUA_OK;
    }
    why->is_later = true;
    why->is_same_stream = earlier->stream_number == later->stream_number;
    why->stream_earlier = earlier->stream_number;
    why->stream_later = later->stream_number;
    const struct gpu_flight_op *of_a = &flight->ops[(a - 1) % GPU_FLIGHT_OPS_MAX];
    const struct gpu_flight_op *of_b = &flight->ops[(b - 1) % GPU_FLIGHT_OPS_MAX];
    for (uint32_t i = 0; i < of_a->use_count; i++) {
        for (uint32_t k = 0; k < of_b->use_count; k++) {
            add_hazard(device, &flight->uses[(of_a->use_first + i) % GPU_FLIGHT_USES_MAX],
                       &flight->uses[(of_b->use_first + k) % GPU_FLIGHT_USES_MAX], why);
        }
    }
    return GPULUA_OK;
}
