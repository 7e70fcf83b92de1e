/* Labels of operations for the executor, which tells profilers of them where it calls the driver:
 * each is sent once in a life of the device, and records carry its number. */
#include <stdlib.h>
#include <string.h>

#include "ranges/ranges.h"
#include "runtime/state.h"

#define LABELS_FIRST 64u

static uint32_t place_of(const struct gpu_labels *labels, const char *label) {
    uint64_t hash = (uint64_t)(uintptr_t)label * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t at = (uint32_t)(hash >> 32) & (labels->capacity - 1);
    while (labels->places[at].label && labels->places[at].label != label) {
        at = (at + 1) & (labels->capacity - 1);
    }
    return at;
}

static bool grow(struct gpu_labels *labels) {
    struct gpu_labels grown = {.capacity = labels->capacity ? labels->capacity * 2 : LABELS_FIRST,
                               .count = labels->count};
    grown.places = calloc(grown.capacity, sizeof *grown.places);
    if (!grown.places) {
        return false;
    }
    for (uint32_t i = 0; i < labels->capacity; i++) {
        if (labels->places[i].label) {
            grown.places[place_of(&grown, labels->places[i].label)] = labels->places[i];
        }
    }
    free(labels->places);
    labels->places = grown.places;
    labels->capacity = grown.capacity;
    return true;
}

static bool send(struct gpu_device *device, const char *label, uint32_t number) {
    _Alignas(16) uint8_t bytes[sizeof(struct wire_record) + WIRE_LABEL_BYTES] = {0};
    struct wire_record *record = (struct wire_record *)(void *)bytes;
    size_t length =
        gpu_range_text(gpu_wire_record_payload(record), WIRE_LABEL_BYTES, label, strlen(label));
    record->opcode = WIRE_OP_LABEL;
    record->object = number;
    record->length_bytes = ((uint32_t)(sizeof *record + length + 1) + 15u) & ~15u;
    struct gpu_error ignored = {0};
    bool is_sent = gpu_device_publish(device, record, &ignored) == GPULUA_OK;
    gpu_error_finish(&ignored);
    return is_sent;
}

uint32_t gpu_label_number(struct gpu_device *device, const char *label) {
    struct gpu_labels *labels = &device->labels;
    if (labels->epoch != device->epoch) { /* another executor, which knows none of them */
        gpu_labels_finish(labels);
        labels->epoch = device->epoch;
    }
    if (labels->count * 2 >= labels->capacity && !grow(labels)) {
        return 0;
    }
    struct gpu_label_place *place = &labels->places[place_of(labels, label)];
    if (!place->label) {
        if (!send(device, label, labels->count + 1)) {
            return 0;
        }
        *place = (struct gpu_label_place){.label = label, .number = ++labels->count};
    }
    return place->number;
}

void gpu_labels_finish(struct gpu_labels *labels) {
    free(labels->places);
    *labels = (struct gpu_labels){0};
}
