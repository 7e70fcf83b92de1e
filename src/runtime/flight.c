/* The flight ring (see flight.h). */
#include "runtime/flight.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

bool gpu_flight_init(struct gpu_flight *flight) {
    flight->ops = aligned_alloc(64, GPU_FLIGHT_OPS_MAX * sizeof *flight->ops);
    if (flight->ops) {
        memset(flight->ops, 0, GPU_FLIGHT_OPS_MAX * sizeof *flight->ops);
    }
    flight->uses = calloc(GPU_FLIGHT_USES_MAX, sizeof *flight->uses);
    flight->names = calloc(GPU_FLIGHT_NAMES_MAX, sizeof *flight->names);
    flight->data = malloc(GPU_FLIGHT_DATA_BYTES);
    return flight->ops && flight->uses && flight->names && flight->data;
}

void gpu_flight_finish(struct gpu_flight *flight) {
    for (uint32_t i = 0; flight->ops && i < GPU_FLIGHT_OPS_MAX; i++) {
        gpu_form_release(flight->ops[i].form);
    }
    free(flight->ops);
    free(flight->uses);
    free(flight->names);
    free(flight->data);
    *flight = (struct gpu_flight){0};
}

/* ---- noting ---- */

/* In one piece; what is overwritten with it is told by how far the ring has come. */
static void put_data(struct gpu_flight *flight, struct gpu_flight_op *entry, const void *bytes,
                     uint32_t byte_count) {
    uint64_t at = flight->data_count % GPU_FLIGHT_DATA_BYTES;
    if (at + byte_count > GPU_FLIGHT_DATA_BYTES) {
        flight->data_count += GPU_FLIGHT_DATA_BYTES - at;
        at = 0;
    }
    memcpy(flight->data + at, bytes, byte_count);
    entry->data_first = flight->data_count;
    entry->data_bytes = (uint16_t)byte_count;
    flight->data_count += (byte_count + 7u) & ~7u;
}

static inline void put_uses(struct gpu_flight *flight, struct gpu_flight_op *entry,
                            const struct gpu_use *uses, uint32_t count) {
    uint64_t number = flight->use_count;
    entry->use_first = number;
    entry->use_count = count;
    flight->use_count = number + count;
    for (uint32_t i = 0; i < count; i++) {
        flight->uses[number++ % GPU_FLIGHT_USES_MAX] =
            gpu_flight_use_of(uses[i].block, uses[i].byte_begin, uses[i].byte_end, uses[i].access);
    }
}

/* All launches of a graph use the same, which is noted once, and again when it has come to lie in
 * the older half of the ring: so each keeps its uses for as long as half of the ring lasts. */
static void put_graph_uses(struct gpu_flight *flight, struct gpu_flight_op *entry,
                           struct graph_uses *uses) {
    bool is_near =
        uses->noted > 0 && uses->noted - 1 + GPU_FLIGHT_USES_MAX / 2 >= flight->use_count;
    if (is_near) {
        entry->use_first = uses->noted - 1;
        entry->use_count = uses->count;
        return;
    }
    put_uses(flight, entry, uses->list, uses->count);
    uses->noted = entry->use_first + 1;
}

void gpu_flight_note(struct gpu_flight *flight, const struct gpu_op *op,
                     const struct gpu_envelope *envelope, const struct wire_record *record) {
    struct gpu_flight_op *entry = &flight->ops[flight->op_count++ % GPU_FLIGHT_OPS_MAX];
    struct gpu_form *before = entry->form;
    flight->block_last = entry->block_last;
    entry->point = (struct gpu_point){record->stream, record->seq};
    entry->number = op->number;
    entry->stream_number = op->stream_number;
    entry->block_last = op->device->block_number_next;
    entry->label = op->label;
    entry->site = op->site;
    entry->opcode = record->opcode;
    entry->flags = record->flags;
    entry->fate = GPU_FLIGHT_UNTOLD;
    entry->data_bytes = 0;
    entry->form = envelope->form;
    if (before != entry->form) {
        if (entry->form) {
            entry->form->refs++;
        }
        gpu_form_release(before);
    }
    if (record->opcode == WIRE_OP_LAUNCH) {
        memcpy(entry->launch.grid, record->u.launch.grid, sizeof entry->launch.grid);
        memcpy(entry->launch.block, record->u.launch.block, sizeof entry->launch.block);
        entry->shared_bytes = record->u.launch.shared_bytes;
        put_data(flight, entry,
                 (const uint8_t *)(record + 1) + record->wait_count * sizeof(struct wire_wait),
                 record->u.launch.args_bytes);
    } else if (record->opcode == WIRE_OP_FILL) {
        put_data(flight, entry, record->u.fill.pattern, record->u.fill.elem_bytes);
    } else if (envelope->graph) {
        entry->graph.number = envelope->graph->number;
        entry->graph.version = envelope->graph->version;
    }
    if (__builtin_expect(envelope->graph != NULL, 0) &&
        envelope->uses == envelope->graph->uses.list) {
        put_graph_uses(flight, entry, &envelope->graph->uses);
    } else {
        put_uses(flight, entry, envelope->uses, envelope->use_count);
    }
}

void gpu_flight_note_fate(struct gpu_flight *flight, const struct gpu_op *op,
                          enum gpu_flight_fate fate) {
    struct gpu_flight_op *entry = gpu_flight_entry(flight, op);
    if (entry) {
        entry->fate = (uint8_t)fate;
    }
}

void gpu_flight_note_gone(struct gpu_flight *flight, const struct gpu_block *block) {
    if (block->label[0] == '\0' && !block->site.source) {
        return;
    }
    struct gpu_flight_name *name = &flight->names[flight->name_count++ % GPU_FLIGHT_NAMES_MAX];
    name->block_number = block->number;
    name->site = block->site;
    memcpy(name->label, block->label, sizeof name->label);
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
        !find_kind((uint8_t)a->access, (uint8_t)b->access, &hazard.kind)) {
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
        bool is_captured = gpu_op_is_captured(later) || gpu_op_is_captured(earlier);
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             is_captured
                                 ? "only work on streams of one device is ordered, and this "
                                   "was captured: graph:dot() shows what orders its nodes"
                                 : "only work on streams of one device is ordered");
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
