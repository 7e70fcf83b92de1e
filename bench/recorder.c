/* What recording a launch costs by itself: four buffers' uses are joined, their waits found, room
 * made and the uses noted, without the record, the transport and the driver. In nanoseconds per
 * launch, medians; by how many buffers are alive and how many reads of them have gone before on
 * eight other streams.
 *
 *     build/bench/recorder      on the CPU device: no GPU takes part in it */
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"
#include "runtime/uses.h"
#include "runtime/work.h"

#define REPEATS 9
#define LAUNCHES 20000
#define READERS 8
#define BUFFERS 4

static struct gpu_error error;

static void check(gpulua_status status) {
    if (status) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

static uint32_t random_below(uint32_t limit) {
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % limit);
}

static struct gpu_use whole(struct gpu_block *block, uint8_t access) {
    return (struct gpu_use){.block = block, .byte_end = block->byte_count, .access = access};
}

/* Notes that the stream's next operation reads the block. */
static void read_on(struct gpu_stream *stream, struct gpu_block *block) {
    struct gpu_use use = whole(block, GPU_READ);
    struct gpu_waits waits;
    if (!gpu_hazards_find(stream, &use, 1, &waits)) {
        exit(1);
    }
    gpu_hazards_commit((struct gpu_point){stream->slot, stream->device->slot_seq[stream->slot] + 1},
                       &use, 1);
}

/* One launch: two buffers read, one written, one both. */
static void record(struct gpu_envelope *envelope, struct gpu_block *const *blocks) {
    static const uint8_t accesses[BUFFERS] = {GPU_READ, GPU_READ, GPU_WRITE, GPU_READ | GPU_WRITE};
    struct gpu_stream *stream = envelope->stream;
    envelope->use_count = 0;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        struct gpu_use use = whole(blocks[i], accesses[i]);
        gpu_envelope_use(envelope, &use);
    }
    if (!gpu_hazards_find(stream, envelope->uses, envelope->use_count, &envelope->waits)) {
        exit(1);
    }
    gpu_hazards_commit((struct gpu_point){stream->slot, stream->device->slot_seq[stream->slot] + 1},
                       envelope->uses, envelope->use_count);
}

/* What was noted stands for operations to come: they are made now, so that all is over in the
 * end. */
static void make_true(struct gpu_stream *stream) {
    struct gpu_submit submit = {.stream = stream};
    check(gpu_work_mark(&submit, NULL, NULL, &error));
}

/* Of launches on the same four of them, or on any four in turn. */
static double measure(uint32_t live, uint32_t reads, bool any) {
    struct gpu_device_info info = {.name = "cpu", .isolation = GPULUA_ISOLATE_NONE};
    struct gpu_device *device;
    struct gpu_stream *stream, *readers[READERS];
    check(gpu_device_open(&info, &device, &error));
    check(gpu_device_task_stream(device, READERS, &stream, &error));
    struct gpu_block **blocks = malloc(live * sizeof *blocks);
    static struct gpu_block *chosen[BUFFERS * LAUNCHES];
    struct gpu_envelope *envelope = malloc(sizeof *envelope);
    if (!blocks || !envelope) {
        exit(1);
    }
    for (uint32_t i = 0; i < READERS; i++) {
        check(gpu_device_task_stream(device, i, &readers[i], &error));
    }
    for (uint32_t i = 0; i < live; i++) {
        struct gpu_block_info block = {.byte_count = 256};
        check(gpu_block_create(device, &block, &blocks[i], &error));
    }
    for (uint32_t i = 0; i < reads; i++) {
        read_on(readers[i / live % READERS], blocks[i % live]);
    }
    for (uint32_t i = 0; i < BUFFERS * LAUNCHES; i++) {
        uint32_t k = random_below(live);
        chosen[i] = blocks[any ? k : i % BUFFERS];
    }
    envelope->stream = stream;
    envelope->uses = envelope->room;
    double values[REPEATS];
    for (int r = 0; r < REPEATS; r++) {
        double start = now_ns();
        for (int i = 0; i < LAUNCHES; i++) {
            record(envelope, chosen + BUFFERS * i);
        }
        values[r] = (now_ns() - start) / LAUNCHES;
    }
    qsort(values, REPEATS, sizeof *values, by_value);
    for (uint32_t i = 0; i < READERS; i++) {
        make_true(readers[i]);
    }
    make_true(stream);
    check(gpu_device_wait_idle(device, -1, &error));
    for (uint32_t i = 0; i < live; i++) {
        gpu_block_release(blocks[i]);
    }
    free(blocks);
    free(envelope);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
    return values[REPEATS / 2];
}

int main(void) {
    static const uint32_t counts[] = {4, 1000, 100000};
    for (int any = 0; any < 2; any++) {
        printf("%s four of the buffers\n\n", any ? "any" : "the same");
        puts("| buffers alive | no reads | 1,000 reads | 100,000 reads |\n|---|---|---|---|");
        for (int i = 0; i < 3; i++) {
            printf("| %u | %.0f | %.0f | %.0f |\n", counts[i], measure(counts[i], 0, any),
                   measure(counts[i], 1000, any), measure(counts[i], 100000, any));
        }
    }
    return 0;
}
