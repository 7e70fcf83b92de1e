/* Choosing what a checked device does next.
 *
 * Half of the seeds choose evenly among what is ready. The other half give each stream a rank and
 * do what is ready on the highest, so that one stream stays behind all others for as long as the
 * edges allow; now and then a stream that was served gets a new rank. After: Burckhardt, Kothari,
 * Musuvathi, Nagarakatte: A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs,
 * ASPLOS 2010. If an operation can be overtaken by another, the ranks that put its stream last make
 * that happen, and one seed in as many as there are streams has them.
 *
 * Random numbers: splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
 * OOPSLA 2014). */
#include "backend/cpu/check/schedule.h"

#include <stdlib.h>
#include <string.h>

#define RERANK_ONE_IN 16u /* operations after which the stream gets another rank */

struct cpu_schedule {
    uint64_t random; /* the generator's state */
    bool is_ranked;
    uint32_t operations; /* queued */
    uint32_t *choices;   /* owned: which to take of those that are ready, NULL: the seed says */
    uint32_t choice_count, choice_next;
    struct backend_stream *ready[WIRE_STREAMS_MAX]; /* by slot */
    struct wire_point points[WIRE_STREAMS_MAX];     /* the same */
    uint32_t ready_count;
};

static uint64_t next_random(struct cpu_schedule *schedule) {
    uint64_t z = schedule->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint32_t below(struct cpu_schedule *schedule, uint32_t limit) {
    return (uint32_t)(next_random(schedule) % limit); /* the bias is of no interest here */
}

static bool is_operation(const struct cpu_item *item) {
    return item->kind == CPU_ITEM_LAUNCH || item->kind == CPU_ITEM_COPY ||
           item->kind == CPU_ITEM_FILL || item->kind == CPU_ITEM_GRAPH;
}

uint32_t gpu_cpu_schedule_below(struct cpu_schedule *schedule, uint32_t limit) {
    return schedule->choices == NULL ? below(schedule, limit) : 0;
}

/* "2.0.1" */
static gpulua_status read_order(struct cpu_schedule *schedule, const char *order,
                                struct backend_error *error) {
    schedule->choices = calloc(strlen(order) / 2 + 1, sizeof *schedule->choices);
    if (schedule->choices == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    while (*order != '\0') {
        char *end = NULL;
        unsigned long choice = strtoul(order, &end, 10);
        if (end == order || choice >= WIRE_STREAMS_MAX || (*end != '.' && *end != '\0')) {
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                    "an order is numbers with dots between them, not '%.40s'",
                                    order);
        }
        schedule->choices[schedule->choice_count++] = (uint32_t)choice;
        order = *end == '.' ? end + 1 : end;
    }
    return GPULUA_OK;
}

gpulua_status gpu_cpu_schedule_create(struct backend_device *device,
                                      const struct backend_open_info *info,
                                      struct backend_error *error) {
    struct cpu_schedule *schedule = calloc(1, sizeof *schedule);
    if (schedule == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    schedule->random = info->seed;
    schedule->is_ranked = (next_random(schedule) & 1) != 0;
    device->schedule = schedule;
    gpulua_status status =
        info->order != NULL ? read_order(schedule, info->order, error) : GPULUA_OK;
    if (status != GPULUA_OK) {
        gpu_cpu_schedule_destroy(device);
    }
    return status;
}

void gpu_cpu_schedule_destroy(struct backend_device *device) {
    if (device->schedule != NULL) {
        free(device->schedule->choices);
        free(device->schedule);
        device->schedule = NULL;
        gpu_cpu_thread_finish();
    }
}

void gpu_cpu_schedule_join(struct backend_stream *stream) {
    stream->rank = next_random(stream->device->schedule);
}

/* ---- what is ready ---- */

static struct cpu_item *pop(struct backend_stream *stream) {
    struct cpu_item *item = stream->head;
    stream->head = item->next;
    if (stream->head == NULL) {
        stream->tail = NULL;
    }
    return item;
}

/* Does what takes no time, up to the next operation or a wait for what is not over. True: a word or
 * an event has moved. */
static bool settle_stream(struct backend_stream *stream) {
    bool has_moved = false;
    while (stream->head != NULL && !is_operation(stream->head)) {
        struct cpu_item *item = stream->head;
        if (item->kind == CPU_ITEM_WAIT && !gpu_cpu_ticket_has_fired(item->u.ticket)) {
            break;
        }
        if (item->kind == CPU_ITEM_WORD) {
            stream->word_value = item->u.word.value;
            atomic_store_explicit(item->u.word.word, item->u.word.value, memory_order_release);
        } else {
            if (item->kind == CPU_ITEM_EVENT) {
                gpu_cpu_ticket_fire(item->u.ticket);
            }
            gpu_cpu_ticket_release(item->u.ticket);
        }
        has_moved = has_moved || item->kind != CPU_ITEM_WAIT;
        gpu_cpu_item_recycle(stream, pop(stream));
    }
    return has_moved;
}

/* Until nothing moves: an event may let another stream go on. */
static void settle(struct backend_device *device) {
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        for (struct backend_stream *stream = device->streams; stream != NULL;
             stream = stream->next) {
            has_moved = settle_stream(stream) || has_moved;
        }
    }
}

static void find_ready(struct backend_device *device) {
    struct cpu_schedule *schedule = device->schedule;
    uint32_t count = 0;
    for (struct backend_stream *stream = device->streams; stream != NULL; stream = stream->next) {
        if (stream->head == NULL || !is_operation(stream->head)) {
            continue;
        }
        uint32_t at = count++;
        for (; at > 0 && schedule->ready[at - 1]->slot > stream->slot; at--) {
            schedule->ready[at] = schedule->ready[at - 1];
        }
        schedule->ready[at] = stream;
    }
    for (uint32_t i = 0; i < count; i++) {
        schedule->points[i] = (struct wire_point){.stream = schedule->ready[i]->slot,
                                                  .seq = schedule->ready[i]->head->seq};
    }
    schedule->ready_count = count;
}

static struct backend_stream *choose(struct cpu_schedule *schedule) {
    uint32_t chosen = 0;
    if (schedule->choices != NULL) {
        uint32_t choice = schedule->choice_next < schedule->choice_count
                              ? schedule->choices[schedule->choice_next++]
                              : 0;
        return schedule->ready[choice < schedule->ready_count ? choice : 0];
    }
    if (!schedule->is_ranked) {
        return schedule->ready[below(schedule, schedule->ready_count)];
    }
    for (uint32_t i = 1; i < schedule->ready_count; i++) {
        if (schedule->ready[i]->rank > schedule->ready[chosen]->rank) {
            chosen = i;
        }
    }
    return schedule->ready[chosen];
}

/* ---- doing it ---- */

/* The next operation of one of the streams. False: none is ready. */
static bool step(struct backend_device *device) {
    struct cpu_schedule *schedule = device->schedule;
    find_ready(device);
    if (schedule->ready_count == 0) {
        return false;
    }
    struct backend_stream *stream = choose(schedule);
    struct cpu_item *item = pop(stream);
    (void)gpu_cpu_item_do(stream, item); /* without workers it is always finished */
    device->sink.ran(device->sink.user, stream->slot, item->seq, schedule->points,
                     schedule->ready_count);
    gpu_cpu_item_report(stream, item);
    gpu_cpu_item_recycle(stream, item);
    schedule->operations--;
    if (schedule->is_ranked && below(schedule, RERANK_ONE_IN) == 0) {
        stream->rank = next_random(schedule);
    }
    return true;
}

void gpu_cpu_schedule_put(struct backend_stream *stream, const struct cpu_item *item) {
    struct backend_device *device = stream->device;
    if (is_operation(item) && ++device->schedule->operations > CPU_SCHEDULE_OPERATIONS_MAX) {
        gpu_cpu_schedule_ask(device, stream, 0);
    } else if (stream->item_count >= CPU_ITEMS_LOW) { /* of marks: nobody else makes room */
        gpu_cpu_schedule_ask(device, NULL, 0);
    }
}

static bool is_answered(const struct backend_stream *stream, uint64_t seq, bool has_stepped) {
    if (stream == NULL) {
        return false;
    }
    return seq == 0 ? has_stepped : stream->word_value >= seq;
}

void gpu_cpu_schedule_ask(struct backend_device *device, struct backend_stream *stream,
                          uint64_t seq) {
    bool has_stepped = false;
    if (device->schedule == NULL) {
        return; /* workers do it by themselves */
    }
    for (;;) {
        settle(device);
        if (is_answered(stream, seq, has_stepped) || !step(device)) {
            break;
        }
        has_stepped = true;
    }
    device->sink.moved(device->sink.user);
}
