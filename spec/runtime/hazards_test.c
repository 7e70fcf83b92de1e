/* What an operation waits for, against a model that knows of each byte who wrote it last and who
 * has read it since: random uses of random ranges, as many as make a history join its spans. */
#include <stdlib.h>
#include <string.h>

#include "backend/tap.h"
#include "runtime/state.h"

enum { STREAMS = 5, BLOCKS = 2, BYTES = 400, STEPS = 150, SEEDS = 200, USES_MAX = 40 };
#define FIRST_SEQ UINT64_C(1000000) /* behind all that the device does itself */

struct model_byte {
    int writer, readers[STREAMS]; /* operations; 0: nobody */
};

static struct tap tap;
static struct gpu_error error;
static struct gpu_device *device;
static struct gpu_stream *streams[STREAMS];
static struct gpu_block *blocks[BLOCKS];
static struct model_byte model[BLOCKS][BYTES];
static uint64_t seqs[STREAMS], over[STREAMS]; /* the newest, and the newest that is over */
static uint64_t random_state;

static uint32_t pick(uint32_t count) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % count;
}

static void need(gpulua_status status, const char *what) {
    if (status) {
        printf("# %s: %s\n", what, error.message);
        tap_check(&tap, false, what);
        exit(tap_finish(&tap));
    }
}

/* ---- random uses ---- */

static struct gpu_use a_use(bool is_small) {
    uint32_t begin = pick(BYTES), bytes = is_small ? 1 : 1 + pick(BYTES - begin);
    if (!is_small && pick(3) == 0) {
        begin = 0;
        bytes = BYTES;
    }
    static const uint8_t access[] = {GPU_READ, GPU_READ, GPU_WRITE, GPU_READ_WRITE};
    return (struct gpu_use){blocks[pick(BLOCKS)], begin, begin + bytes, access[pick(4)]};
}

/* Of one block and of one kind, as the elements that a kernel gets. */
static uint32_t many_uses(struct gpu_use *uses) {
    uint32_t count = USES_MAX - pick(10), step = 2 + pick(6), first = pick(20);
    struct gpu_use like = a_use(true);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t begin = (first + i * step) % BYTES;
        uses[i] = (struct gpu_use){like.block, begin, begin + 1, like.access};
    }
    return count;
}

static uint32_t some_uses(struct gpu_use *uses) {
    if (pick(4) == 0) {
        return many_uses(uses);
    }
    uint32_t count = 1 + pick(4);
    for (uint32_t i = 0; i < count; i++) {
        uses[i] = a_use(pick(2) == 0);
    }
    return count;
}

/* ---- the model ---- */

/* Operations of the run, by number from 1: what each is behind, and what it fails with. Both are
 * what it says itself and what those say: a history that is full says less, and more is behind. */
struct operation {
    int stream;
    uint64_t seq;
    bool is_behind[STEPS + 1], depends[STEPS + 1];
};

static struct operation operations[STEPS + 1];
static int newest;

static void take_over(bool *to, const bool *from, int number) {
    to[number] = true;
    for (int i = 1; i <= STEPS; i++) {
        to[i] |= from[i];
    }
}

static void note_operation(int stream, const struct gpu_waits *waits) {
    struct operation *made = &operations[++newest];
    *made = (struct operation){.stream = stream, .seq = seqs[stream]};
    for (int i = 1; i < newest; i++) {
        const struct operation *other = &operations[i];
        bool is_behind = other->stream == stream, depends = false;
        for (uint32_t k = 0; k < waits->count; k++) {
            const struct wire_wait *wait = &waits->items[k];
            if (wait->stream == streams[other->stream]->slot) {
                is_behind |= (wait->flags & WIRE_WAIT_ORDER) && wait->seq >= other->seq;
                depends |= (wait->flags & WIRE_WAIT_DEPENDS) && wait->seq == other->seq;
            }
        }
        if (is_behind) {
            take_over(made->is_behind, other->is_behind, i);
        }
        if (depends) {
            take_over(made->depends, other->depends, i);
        }
    }
}

static struct model_byte *bytes_of(const struct gpu_use *use) {
    return model[use->block == blocks[0] ? 0 : 1];
}

static bool is_over(int number) {
    return number == 0 || operations[number].seq <= over[operations[number].stream];
}

static bool waits_enough(const struct gpu_use *use) {
    const struct operation *made = &operations[newest];
    bool is_enough = true;
    for (uint64_t at = use->byte_begin; at < use->byte_end && is_enough; at++) {
        const struct model_byte *byte = &bytes_of(use)[at];
        is_enough = is_over(byte->writer) || made->is_behind[byte->writer];
        is_enough &=
            is_over(byte->writer) || !(use->access & GPU_READ) || made->depends[byte->writer];
        for (int other = 0; other < STREAMS && (use->access & GPU_WRITE); other++) {
            is_enough &= is_over(byte->readers[other]) || made->is_behind[byte->readers[other]];
        }
    }
    return is_enough;
}

/* One that is behind others ends behind them. */
static void some_end(void) {
    int left = (int)pick(20);
    for (int i = 1; i <= newest && left > 0; i++) {
        const struct operation *next = &operations[i];
        bool can_end = !is_over(i);
        for (int other = 1; other < i && can_end; other++) {
            can_end = !next->is_behind[other] || is_over(other);
        }
        if (can_end) {
            over[next->stream] = next->seq;
            device->done[streams[next->stream]->slot] = next->seq;
            left--;
        }
    }
}

static void note(const struct gpu_use *use) {
    for (uint64_t at = use->byte_begin; at < use->byte_end; at++) {
        struct model_byte *byte = &bytes_of(use)[at];
        if (use->access & GPU_WRITE) {
            *byte = (struct model_byte){.writer = newest};
        } else {
            byte->readers[operations[newest].stream] = newest;
        }
    }
}

/* ---- the history ---- */

static bool is_sound(const struct gpu_history *history) {
    const struct gpu_span *spans = gpu_history_spans(history);
    bool is_well = history->count >= 1 && history->count <= GPU_SPANS_MAX &&
                   spans[history->count - 1].byte_end == BYTES;
    for (uint32_t i = 0; i < history->count && is_well; i++) {
        uint32_t room = spans[i].read_capacity ? spans[i].read_capacity : GPU_SPAN_READS;
        is_well =
            spans[i].read_count <= room && (i == 0 || spans[i - 1].byte_end < spans[i].byte_end);
    }
    return is_well;
}

static void forget(void) {
    for (int i = 0; i < BLOCKS; i++) {
        gpu_history_finish(&blocks[i]->history);
        gpu_history_init(&blocks[i]->history, BYTES);
    }
    memset(model, 0, sizeof model);
    newest = 0;
}

static void run(uint64_t seed, bool *is_enough, bool *is_well, uint32_t *full_count) {
    random_state = seed;
    forget();
    for (int step = 0; step < STEPS && *is_enough && *is_well; step++) {
        struct gpu_use uses[USES_MAX];
        struct gpu_waits waits;
        int stream = (int)pick(STREAMS);
        uint32_t count = some_uses(uses);
        need(gpu_hazards_find(streams[stream], uses, count, &waits) ? GPULUA_OK
                                                                    : GPULUA_OUT_OF_MEMORY,
             "memory");
        *full_count += waits.is_full;
        seqs[stream]++;
        note_operation(stream, &waits);
        for (uint32_t i = 0; i < count && !waits.is_full; i++) {
            *is_enough = *is_enough && waits_enough(&uses[i]);
        }
        if (!*is_enough) {
            printf("# seed %llu, step %d\n", (unsigned long long)seed, step);
        }
        gpu_hazards_commit((struct gpu_point){streams[stream]->slot, seqs[stream]}, uses, count);
        for (uint32_t i = 0; i < count; i++) {
            note(&uses[i]);
        }
        *is_well = is_sound(&blocks[0]->history) && is_sound(&blocks[1]->history);
        if (pick(10) == 0) {
            some_end();
        }
    }
    forget();
}

int main(void) {
    struct gpu_device_info info = {.name = "cpu", .isolation = GPULUA_ISOLATE_NONE};
    need(gpu_device_open(&info, &device, &error), "the CPU device opens");
    for (int i = 0; i < STREAMS; i++) {
        need(gpu_stream_create(device, &(struct gpu_stream_info){0}, &streams[i], &error),
             "a stream");
        seqs[i] = over[i] = FIRST_SEQ;
        device->done[streams[i]->slot] = FIRST_SEQ;
    }
    for (int i = 0; i < BLOCKS; i++) {
        const struct gpu_block_info block = {.byte_count = BYTES};
        need(gpu_block_create(device, &block, &blocks[i], &error), "a block");
    }
    bool is_enough = true, is_well = true;
    uint32_t full_count = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run(seed, &is_enough, &is_well, &full_count);
    }
    printf("# %u of %d had more waits than one record has, %llu cuts were refused\n", full_count,
           SEEDS * STEPS, (unsigned long long)device->stats.hazards_widened);
    tap_check(&tap, is_enough && full_count < SEEDS * STEPS / 10,
              "each operation waits for all that its bytes have to do with");
    tap_check(&tap, is_well, "histories stay sound");
    for (int i = 0; i < STREAMS; i++) {
        device->done[streams[i]->slot] = device->slot_seq[streams[i]->slot];
    }
    for (int i = 0; i < BLOCKS; i++) {
        gpu_block_release(blocks[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        gpu_stream_release(streams[i]);
    }
    gpu_device_close(device, 1000);
    gpu_device_release(device);
    return tap_finish(&tap);
}
