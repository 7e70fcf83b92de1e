/* Check mode: what the script waits for is asked for in records, so that the order in which the
 * device works follows from what was submitted and asked for, and not from when.
 *
 * Nobody asks as long as the script has something else to do: only where it would sleep. Every
 * record is taken before the call that published it returns, on both transports. */
#include "runtime/state.h"
#include "runtime/watchdog.h"
#include "wire/sync.h"

#define GLANCE_ONE_IN 2u      /* looks at whether something is over that ask for it */
#define TURN_ONE_IN 8u        /* turns of a loop that has other things to do */
#define ANSWER_NAP_NS 200000u /* between two looks for an answer */

/* splitmix64, as in the backend: see there. */
static uint64_t next_random(struct gpu_device *device) {
    uint64_t z = device->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void ask(struct gpu_device *device, uint32_t slot, uint64_t seq) {
    struct gpu_error ignored = {0};
    const struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_ASK, .stream = slot, .seq = seq};
    (void)gpu_device_publish(device, &record, &ignored);
    gpu_error_finish(&ignored);
}

/* What is still at work on what it was asked hears nothing new. */
static bool can_ask(struct gpu_device *device) {
    if (device->is_behind) {
        gpu_ask_settle(device);
    }
    return device->is_ordered && !device->is_behind && device->link &&
           device->state == GPU_DEVICE_OPEN;
}

/* Streams with something that is waited for; those that are closed are waited for only so that
 * their slots can be used again, which has time. */
static uint32_t find_wanted(const struct gpu_device *device, bool closed, uint32_t *slots) {
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_stream *stream = device->streams[slot];
        if (stream && stream->wanted != 0 && stream->is_closed == closed &&
            gpu_wire_page_done(device->link->page, slot) < stream->wanted) {
            slots[count++] = slot;
        }
    }
    return count;
}

static uint32_t any_slot(const struct gpu_device *device) {
    uint32_t slot = 0;
    while (slot < device->slot_count && !(device->streams[slot] && device->streams[slot]->tail)) {
        slot++;
    }
    return slot;
}

/* Nobody waits longer than until then; what held before. */
static int64_t be_patient(struct gpu_device *device, int64_t until_ns) {
    int64_t before_ns = device->patient_until_ns;
    device->patient_until_ns = until_ns < before_ns ? until_ns : before_ns;
    return before_ns;
}

void gpu_ask_before_sleep(struct gpu_device *device, bool for_any, int64_t until_ns) {
    if (!can_ask(device)) {
        return;
    }
    int64_t before_ns = be_patient(device, until_ns);
    uint32_t slots[WIRE_STREAMS_MAX];
    uint32_t count = find_wanted(device, false, slots);
    count = count == 0 ? find_wanted(device, true, slots) : count;
    if (count > 0) {
        uint32_t slot = slots[next_random(device) % count];
        ask(device, slot, device->streams[slot]->wanted);
    } else if (for_any && any_slot(device) < device->slot_count) {
        ask(device, any_slot(device), 0);
    }
    device->patient_until_ns = before_ns;
}

void gpu_device_ask(struct gpu_device *device, int64_t until_ns) {
    if (can_ask(device) && next_random(device) % TURN_ONE_IN == 0) {
        int64_t look_ns = gpu_clock_ns() + GPU_LOOK_NS;
        gpu_ask_before_sleep(device, false, until_ns < look_ns ? until_ns : look_ns);
    }
}

/* A loop that does nothing but look has to come to an end, too: check mode is asked, and where
 * nobody else does it the device is looked at. */
void gpu_op_look(struct gpu_op *op) {
    GPU_ENTER(op->device);
    if (gpu_op_is_over(op)) {
        return;
    }
    if (can_ask(op->device) && op->stream && next_random(op->device) % GLANCE_ONE_IN == 0) {
        int64_t before_ns = be_patient(op->device, gpu_clock_ns() + GPU_LOOK_NS);
        ask(op->device, op->stream->slot, op->seq);
        op->device->patient_until_ns = before_ns;
    }
    gpu_op_want(op); /* without that inline work tells of its end when it costs nothing */
    (void)gpu_device_poll(op->device);
}

static bool is_patient(const struct gpu_device *device) {
    return !device->is_behind && !gpu_device_is_interrupted(device) &&
           gpu_clock_ns() < device->patient_until_ns && !gpu_time_is_up(device);
}

void gpu_ask_settle(struct gpu_device *device) {
    bool is_first = true;
    while (device->link && !device->link->ops->settle(device->link)) {
        if (!is_patient(device)) {
            device->is_behind = true;
            return;
        }
        if (gpu_watchdog_is_set(device) && device->state == GPU_DEVICE_OPEN) {
            gpu_watchdog_settle(device, is_first); /* what was asked for may not end */
            is_first = false;
            if (device->state != GPU_DEVICE_OPEN) {
                return;
            }
        }
    }
    device->is_behind = false;
}

/* Where it is behind, time matters in any case, and it may be so for ever. */
void gpu_ask_answer(struct gpu_op *request) {
    struct gpu_device *device = request->device;
    while (!gpu_op_is_over(request) && device->link && device->state == GPU_DEVICE_OPEN &&
           is_patient(device)) {
        device->link->ops->poll(device->link);
        gpu_wire_nap_ns(ANSWER_NAP_NS);
    }
}
