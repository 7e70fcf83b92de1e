/* Labels of operations for the executor, which tells profilers of them where it calls the driver:
 * each is sent once in a life of the device, and records carry its number. */
#include <string.h>

#include "ranges/ranges.h"
#include "runtime/state.h"

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
    if (device->labels_epoch != device->epoch) { /* another executor, which knows none of them */
        gpu_index_finish(&device->labels);
        device->labels_epoch = device->epoch;
    }
    uint32_t *number = gpu_index_make(&device->labels, label);
    if (!number) {
        return 0;
    }
    if (*number == GPU_INDEX_NONE) {
        *number = device->labels.count;
        if (!send(device, label, *number)) {
            gpu_index_finish(&device->labels);
            return 0;
        }
    }
    return *number;
}
