/* What the flight ring costs: nanoseconds to note one launch of three buffers and two numbers, on a
 * ring that has gone round before, and what there is to do in any case between two records (which
 * is taken off).
 *
 *     build/bench/flight */
#include <stdio.h>
#include <string.h>

#include "measure.h"
#include "runtime/flight.h"
#include "runtime/state.h"

#define REPEATS 101
#define BURST 4096

static struct gpu_device device;
static struct gpu_block blocks[3];
static struct gpu_form forms[4];
static struct gpu_envelope envelope;
static struct {
    struct wire_record record;
    uint8_t payload[256];
} built;

static double burst(struct gpu_op *op, bool notes) {
    double start = now_ns();
    for (int i = 0; i < BURST; i++) {
        op->number++;
        envelope.form = &forms[i & 3];
        built.record.seq = op->number;
        if (notes) {
            gpu_flight_note(&device.flight, op, &envelope, &built.record);
        }
        __asm__ volatile("" ::: "memory");
    }
    return (now_ns() - start) / BURST;
}

int main(void) {
    static const uint8_t access[3] = {GPU_READ, GPU_READ, GPU_READ_WRITE};
    struct gpu_op op = {.device = &device, .label = "saxpy", .site = {"pipeline.lua", 12}};
    if (!gpu_flight_init(&device.flight)) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    envelope.uses = envelope.room;
    for (uint32_t i = 0; i < 3; i++) {
        blocks[i].number = i + 1;
        blocks[i].byte_count = 4096;
        envelope.room[envelope.use_count++] =
            (struct gpu_use){.block = &blocks[i], .byte_end = 4096, .access = access[i]};
    }
    for (uint32_t i = 0; i < 4; i++) {
        forms[i].refs = 1;
    }
    built.record.opcode = WIRE_OP_LAUNCH;
    built.record.u.launch.args_bytes = 32;
    double with[REPEATS], without[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        with[i] = burst(&op, true);
        without[i] = burst(&op, false);
    }
    double noted = median(with, REPEATS), bare = median(without, REPEATS);
    printf("a record of the flight %.1f ns (%u kept, %zu bytes each, %zu for each buffer)\n",
           noted - bare, GPU_FLIGHT_OPS_MAX, sizeof(struct gpu_flight_op),
           sizeof(struct gpu_flight_use));
    return 0;
}
