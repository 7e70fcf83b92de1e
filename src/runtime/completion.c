/* Completion: reading the page and the replies, ending what is over, waiting.
 *
 * The order in gpu_device_poll is what makes failures reliable: first the words are read (acquire),
 * then the replies are drained, then operations up to those words end. The executor publishes a
 * failure before it lets the word move, so an operation never ends as succeeded while its failure
 * is still on the way. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ranges/ranges.h"
#include "runtime/flight.h"
#include "runtime/graph.h"
#include "runtime/recovery.h"
#include "runtime/report.h"
#include "runtime/watchdog.h"

#define REAP_AT_POLL 64u /* blocks given back at most: a poll stays short */
/* Looks at interrupts and dead children at least this often. */
#define NAP_NS_MAX INT64_C(10000000)

int64_t gpu_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t gpu_clock_coarse_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool gpu_device_is_interrupted(const struct gpu_device *device) {
    const struct gpu_seat *seat = gpu_seat_of(device);
    const atomic_int *interrupt = seat ? seat->interrupt : device->interrupt;
    return interrupt && atomic_load_explicit(interrupt, memory_order_relaxed) != 0;
}

bool gpu_point_is_over(const struct gpu_device *device, struct gpu_point point) {
    if (point.seq <= device->done[point.slot] || !device->link) {
        return true;
    }
    return gpu_wire_page_done(device->link->page, point.slot) >= point.seq;
}

/* ---- replies ---- */

void gpu_op_fail(struct gpu_op *op, gpulua_status status, int32_t driver_code, const char *text) {
    struct gpu_failure *failure = gpu_failure_create();
    if (failure) {
        gpu_error_set(&failure->error, status, "%s", text);
        failure->error.driver_code = driver_code;
        gpu_op_info(op, &failure->error.op);
        failure->seat = op->seat;
    } else { /* that it failed is not lost; why is */
        failure = gpu_failure_without_memory(op->device);
    }
    op->failure = failure;
    if (op->stream) {
        gpu_failed_add(op->device, (struct gpu_point){op->stream->slot, op->seq}, failure);
    }
}

static void on_result(struct gpu_device *device, const struct wire_reply *reply) {
    if (reply->status == GPULUA_DEVICE_LOST && device->state == GPU_DEVICE_LOST) {
        return; /* it ends with the rest, and says what the loss said, which came before */
    }
    for (struct gpu_op *op = device->requests; op; op = op->next) {
        if (op->seq != reply->seq || op->is_replied) {
            continue;
        }
        op->is_replied = true;
        op->reply = malloc(reply->length_bytes);
        if (op->reply) {
            memcpy(op->reply, reply, reply->length_bytes);
        } else {
            gpu_op_fail(op, GPULUA_OUT_OF_MEMORY, 0, "no host memory for an answer of the device");
        }
        return;
    }
}

static void place_copy(struct gpu_kernel_place *to, const struct wire_place *from) {
    *to = (struct gpu_kernel_place){.line = from->line, .caller_line = from->caller_line};
    memcpy(to->block, from->block, sizeof to->block);
    memcpy(to->thread, from->thread, sizeof to->thread);
    memcpy(to->source, from->source, sizeof to->source - 1); /* a NUL stays behind them */
    memcpy(to->caller, from->caller, sizeof to->caller - 1);
}

static void note_places(struct gpu_error *error, const struct wire_failed *failed,
                        uint32_t body_bytes) {
    const struct wire_place *places = (const void *)(failed + 1);
    uint32_t count = body_bytes >= sizeof *failed ? failed->place_count : 0;
    if (count > 0 && count <= WIRE_PLACES_MAX &&
        (body_bytes - sizeof *failed) / sizeof *places >= count) {
        error->places = calloc(count, sizeof *error->places);
        error->place_count = error->places ? count : 0;
    }
    for (uint32_t i = 0; i < error->place_count; i++) {
        place_copy(&error->places[i], &places[i]);
    }
}

static void on_failure(struct gpu_device *device, const struct wire_reply *reply) {
    device->failures_seen++;
    struct gpu_op *op =
        gpu_op_find_pending(device, (struct gpu_point){.slot = reply->stream, .seq = reply->seq});
    if (op && !op->failure) {
        const struct wire_failed *failed = gpu_wire_reply_body(reply);
        uint32_t node = reply->body_bytes >= sizeof *failed ? failed->node : 0;
        const char *text = gpu_wire_reply_text(reply);
        struct gpu_site site;
        char named[2048];
        if (gpu_graph_node_site(op, node, &site)) {
            snprintf(named, sizeof named, "%.1900s; captured at %.80s:%d", text, site.source,
                     site.line);
            text = named;
        }
        gpu_op_fail(op, (gpulua_status)reply->status, reply->driver_code, text);
        if (op->failure != device->failure_spare) {
            note_places(&op->failure->error, failed, reply->body_bytes);
        }
        device->has_new_failures = true;
        device->submits_since_poll = GPU_POLL_EVERY_SUBMITS; /* it is spread before the next one */
    }
}

static void on_lost(struct gpu_device *device, const struct wire_reply *reply) {
    gpu_device_lose(device, reply->driver_code, gpu_wire_reply_text(reply));
}

static void *shadow_of(struct gpu_device *device, uint32_t slot, uint64_t seq) {
    const struct gpu_op *op =
        gpu_op_find_pending(device, (struct gpu_point){.slot = slot, .seq = seq});
    return op ? op->shadow : NULL;
}

static void on_ran(struct gpu_device *device, const struct wire_reply *reply) {
    const struct wire_point *points = gpu_wire_reply_body(reply);
    uint32_t count = reply->body_bytes / (uint32_t)sizeof *points;
    void *ready[WIRE_STREAMS_MAX];
    count = count < WIRE_STREAMS_MAX ? count : WIRE_STREAMS_MAX;
    for (uint32_t i = 0; i < count; i++) {
        ready[i] = shadow_of(device, points[i].stream, points[i].seq);
    }
    device->observer->ran(device->observer->user, device,
                          shadow_of(device, reply->stream, reply->seq), ready, count);
}

/* By number; NULL: there is none. */
static struct gpu_module *module_of(const struct gpu_device *device, uint32_t id) {
    struct gpu_module *module = device->modules;
    while (module && module->id != id) {
        module = module->next;
    }
    return module;
}

static void on_touched(struct gpu_device *device, const struct wire_reply *reply) {
    struct gpu_op *op =
        gpu_op_find_pending(device, (struct gpu_point){.slot = reply->stream, .seq = reply->seq});
    const struct wire_touched *touched = gpu_wire_reply_body(reply);
    const struct wire_touch *touches = (const void *)(touched + 1);
    struct gpu_module *module =
        reply->body_bytes >= sizeof *touched ? module_of(device, touched->module) : NULL;
    if (!op || op->failure || !op->shadow || !module) {
        return;
    }
    size_t count = (reply->body_bytes - sizeof *touched) / sizeof *touches;
    for (size_t i = 0; i < count; i++) {
        const struct gpu_seen_use use = {
            .shadow = &module->hazards->shadow,
            .label = gpu_wire_reply_text(reply),
            .byte_begin = touched->address + touches[i].begin,
            .byte_end = touched->address + touches[i].end,
            .base = touched->address,
            .is_variable = true,
            .is_atomic = (touches[i].access & WIRE_USE_ATOMIC) != 0,
            .access = touches[i].access & GPU_READ_WRITE,
        };
        struct gpu_error error = {0};
        if (device->observer->touched(device->observer->user, op->shadow, &use, &error)) {
            gpu_op_fail(op, error.code, 0, error.message);
            device->has_new_failures = true;
            gpu_error_finish(&error);
            return;
        }
    }
}

void gpu_device_on_reply(void *user, const struct wire_reply *reply) {
    struct gpu_device *device = user;
    gpu_repeat_end(device); /* it may be of a launch that is owed: publishing hears, too */
    switch (reply->kind) {
    case WIRE_REPLY_RESULT:
        on_result(device, reply);
        break;
    case WIRE_REPLY_FAILURE:
        on_failure(device, reply);
        break;
    case WIRE_REPLY_TOUCHED:
        on_touched(device, reply);
        break;
    case WIRE_REPLY_LOST:
        on_lost(device, reply);
        break;
    case WIRE_REPLY_LOG:
        if (device->on_log) {
            device->on_log(device->log_user, gpu_wire_reply_text(reply));
        }
        break;
    case WIRE_REPLY_RAN:
        if (device->observer) {
            on_ran(device, reply);
        }
        break;
    case WIRE_REPLY_TIMES:
        if (device->trace) {
            gpu_trace_note_times(device->trace, gpu_wire_reply_body(reply),
                                 reply->body_bytes / (uint32_t)sizeof(struct wire_times));
        }
        break;
    default:
        break;
    }
}

/* ---- failures spread along dependencies ---- */

static void set_failure(struct gpu_op *op, struct gpu_failure *failure) {
    struct gpu_device *device = op->device;
    struct gpu_failure *before = op->failure;
    op->failure = failure;
    if (!before || !gpu_failed_replace(device, before, failure)) {
        gpu_failed_add(device, (struct gpu_point){op->stream->slot, op->seq}, failure);
    }
    gpu_failure_release(before);
}

/* What the device has said of the operation itself: it may have failed because it read what one
 * before it, which is known to have failed only now, should have written. */
static bool has_own_failure(const struct gpu_op *op) {
    const struct gpu_failure *failure = op->failure;
    return failure && !failure->root && failure->error.code == GPULUA_KERNEL_FAILED &&
           failure->error.op.stream == op->stream_number && failure->error.op.seq == op->seq;
}

/* Those that have inherited it inherit what it was a consequence of. */
static void pass_on(struct gpu_device *device, const struct gpu_failure *before,
                    struct gpu_failure *now) {
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_stream *stream = device->streams[slot];
        for (struct gpu_op *op = stream ? stream->head : NULL; op; op = op->next) {
            if (op->failure && op->failure->root == before) {
                set_failure(op, gpu_failure_of_dependency(op, now));
            }
        }
    }
}

static bool inherit_failure(struct gpu_op *op) {
    for (uint32_t i = 0; i < op->dep_count; i++) {
        struct gpu_failure *cause = gpu_failed_find(op->device, op->deps[i]);
        if (cause && cause != op->failure) {
            struct gpu_failure *before = op->failure ? gpu_failure_retain(op->failure) : NULL;
            set_failure(op, gpu_failure_of_dependency(op, cause));
            if (before) {
                pass_on(op->device, before, op->failure);
                gpu_failure_release(before);
            }
            return true;
        }
    }
    return false;
}

void gpu_failures_spread(struct gpu_device *device) {
    bool is_changed = true;
    while (is_changed) {
        is_changed = false;
        for (uint32_t slot = 0; slot < device->slot_count; slot++) {
            struct gpu_stream *stream = device->streams[slot];
            for (struct gpu_op *op = stream ? stream->head : NULL; op; op = op->next) {
                if ((!op->failure || has_own_failure(op)) && inherit_failure(op)) {
                    is_changed = true;
                }
            }
        }
    }
}

/* ---- ending what is over ---- */

static void want_next(struct gpu_stream *stream) {
    struct gpu_op *op = stream->head;
    while (op && !op->waiters && !(op->has_extras && op->hooked)) {
        op = op->next;
    }
    if (!op && stream->is_closed) {
        op = stream->tail; /* gives the slot back */
    }
    uint64_t wanted = op ? op->seq : 0;
    if (wanted != stream->wanted) {
        stream->wanted = wanted;
        gpu_wire_link_want(stream->device->link, stream->slot, wanted);
    }
}

static uint32_t end_stream(struct gpu_device *device, struct gpu_stream *stream) {
    uint32_t ended = 0;
    uint64_t done = device->done[stream->slot];
    gpu_stream_keep(stream);
    device->seen_ns = __builtin_expect(device->trace != NULL, 0) ? gpu_clock_ns() : 0;
    while (stream->head && stream->head->seq <= done) {
        struct gpu_op *op = stream->head;
        stream->head = op->next;
        if (!stream->head) {
            stream->tail = NULL;
        }
        op->next = NULL;
        gpu_op_end(op);
        ended++;
    }
    device->seen_ns = 0;
    if (ended > 0 && stream->wanted != 0 && stream->wanted <= done && device->link) {
        want_next(stream);
    }
    gpu_stream_drop(stream);
    return ended;
}

static void end_request(struct gpu_op *op) {
    const struct wire_reply *reply = op->reply;
    if (reply && reply->status != GPULUA_OK && !op->failure) {
        gpu_op_fail(op, (gpulua_status)reply->status, reply->driver_code,
                    gpu_wire_reply_text(reply));
    }
    if (op->on_reply) {
        op->on_reply(op, op->on_reply_user, reply);
        op->on_reply = NULL;
    }
    free(op->reply);
    op->reply = NULL;
    gpu_op_end(op);
}

static uint32_t end_requests(struct gpu_device *device, bool all) {
    uint32_t ended = 0;
    struct gpu_op **link = &device->requests;
    while (*link) {
        struct gpu_op *op = *link;
        if (!op->is_replied && !all) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        if (!op->next) {
            device->requests_tail = link;
        }
        op->next = NULL;
        end_request(op);
        ended++;
        link = &device->requests; /* the end may have started or ended others */
    }
    return ended;
}

/* Of a stream's pending operations, from the oldest on. */
struct suspicion {
    uint32_t count, all;
};

/* As far as the next word: the executor puts one behind so many, where launches of one graph count
 * as one. */
static bool is_suspected(const struct gpu_device *device, const struct gpu_op *op,
                         struct suspicion *seen) {
    bool is_it = device->suspects_max == UINT32_MAX ||
                 (seen->count < device->suspects_max && seen->all < GPU_REPLAYS_SUSPECTED_MAX);
    seen->count += !op->is_replay;
    seen->all++;
    return is_it;
}

/* What may have been running when the device went, oldest first per stream. */
static void collect_suspects(struct gpu_device *device, struct gpu_error *error) {
    static atomic_uint_fast64_t number;
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_op *op = device->streams[slot] ? device->streams[slot]->head : NULL;
        for (struct suspicion seen = {0}; op && is_suspected(device, op, &seen); op = op->next) {
            count++;
        }
    }
    error->suspects = count ? calloc(count, sizeof *error->suspects) : NULL;
    if (!error->suspects) {
        return;
    }
    error->suspects_number = atomic_fetch_add_explicit(&number, 1, memory_order_relaxed) + 1;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_op *op = device->streams[slot] ? device->streams[slot]->head : NULL;
        for (struct suspicion seen = {0}; op && is_suspected(device, op, &seen); op = op->next) {
            gpu_op_info(op, &error->suspects[error->suspect_count++]);
        }
    }
}

/* Of why the device was lost, so that there is room for what became of the operation. */
#define WHY_BYTES 900u

static void lose_op(struct gpu_op *op, const struct gpu_error *why, struct gpu_failure *shared,
                    bool is_suspect) {
    struct gpu_failure *failure = gpu_failure_create();
    if (!failure) {
        op->failure = shared ? gpu_failure_retain(shared) : gpu_failure_without_memory(op->device);
        return;
    }
    struct gpu_op_info info;
    gpu_op_info(op, &info);
    const char *fate = !op->stream  ? "was not answered"
                       : is_suspect ? "may have been running"
                                    : "had not started";
    bool is_long = strlen(why->message) > WHY_BYTES;
    gpu_error_set(&failure->error, why->code, "%.*s%s; '%s' %s", (int)WHY_BYTES, why->message,
                  is_long ? "..." : "", info.label, fate);
    failure->error.op = info;
    failure->error.driver_code = why->driver_code;
    failure->root = shared ? gpu_failure_retain(shared) : NULL;
    bool has_suspects =
        shared && (is_suspect || !op->stream); /* no operation: it has no own part */
    failure->error.suspects_number = has_suspects ? shared->error.suspects_number : 0;
    op->failure = failure;
    gpu_flight_note_fate(&op->device->flight, op,
                         is_suspect ? GPU_FLIGHT_SUSPECT : GPU_FLIGHT_NOT_STARTED);
}

/* A loss counts as unobserved once for each task that has lost work, however many operations: who
 * sees its own has not seen what others have lost. What all of them share is the root. */
struct losses {
    struct gpu_failure *shared;
    struct gpu_failure **table; /* owned, and each of them; NULL: one for all */
    uint64_t mask;
};

static void losses_begin(struct losses *losses, const struct gpu_device *device) {
    uint64_t size = 4;
    while (size < 2 * device->stats.ops_in_flight) {
        size *= 2;
    }
    bool is_wanted = losses->shared && !losses->shared->is_observed;
    losses->table = is_wanted ? calloc(size, sizeof(struct gpu_failure *)) : NULL;
    losses->mask = size - 1;
}

static struct gpu_failure *loss_of(struct losses *losses, const struct gpu_op *op) {
    struct gpu_failure *shared = losses->shared;
    if (!losses->table) {
        if (shared && !shared->is_observed) {
            gpu_unobserved_add(op->device, shared);
        }
        return shared;
    }
    uint64_t at = (op->task * UINT64_C(0x9e3779b97f4a7c15) >> 20) & losses->mask;
    struct gpu_failure *found;
    while ((found = losses->table[at]) && (found->task != op->task || found->seat != op->seat)) {
        at = (at + 1) & losses->mask;
    }
    if (found) {
        return found;
    }
    found = gpu_failure_create();
    if (!found) {
        gpu_unobserved_add(op->device, shared);
        return shared;
    }
    found->error = shared->error;
    found->error.suspects = NULL; /* which are the root's, until somebody wants them */
    found->error.suspect_count = 0;
    found->root = gpu_failure_retain(shared);
    found->seat = op->seat;
    found->task = op->task;
    gpu_unobserved_add(op->device, found);
    losses->table[at] = found;
    return found;
}

static void losses_end(struct losses *losses) {
    for (uint64_t i = 0; losses->table && i <= losses->mask; i++) {
        gpu_failure_release(losses->table[i]);
    }
    free(losses->table);
    gpu_failure_release(losses->shared);
}

/* All that was pending, by streams and places on them. */
struct lost {
    struct gpu_op **ops; /* owned; NULL: no memory for it */
    size_t count;
};

static void lost_find(struct lost *lost, const struct gpu_device *device) {
    lost->ops = calloc(device->stats.ops_in_flight, sizeof(struct gpu_op *));
    for (uint32_t slot = 0; slot < device->slot_count && lost->ops; slot++) {
        struct gpu_stream *stream = device->streams[slot];
        for (struct gpu_op *op = stream ? stream->head : NULL; op; op = op->next) {
            lost->ops[lost->count++] = op;
        }
    }
}

static int compare_lost(const void *key, const void *item) {
    const struct gpu_point *point = key;
    const struct gpu_op *op = *(struct gpu_op *const *)item;
    uint64_t a = point->slot, b = op->slot;
    if (a == b) {
        a = point->seq;
        b = op->seq;
    }
    return a < b ? -1 : a > b;
}

static const struct gpu_op *lost_at(const struct lost *lost, const struct gpu_device *device,
                                    struct gpu_point point) {
    if (!lost->ops) {
        return gpu_op_find_pending(device, point); /* by a longer way */
    }
    struct gpu_op *const *found =
        bsearch(&point, lost->ops, lost->count, sizeof *lost->ops, compare_lost);
    return found ? *found : NULL;
}

/* Host memory outlives the device: what was to be written there, and was not, or in part, is not to
 * be read as if it had been. Of the others who waits for one sees what became of its work. */
static void note_lost_writes(struct gpu_block *block, const struct lost *lost) {
    struct gpu_device *device = block->device;
    const struct gpu_span *spans = gpu_history_spans(&block->history);
    for (uint32_t i = 0; i < block->history.count; i++) {
        struct gpu_point point = spans[i].write;
        const struct gpu_op *op = point.seq ? lost_at(lost, device, point) : NULL;
        struct gpu_failure *failure = op ? op->failure : NULL;
        if (failure && !block->is_host) {
            gpu_failure_release(block->lost);
            block->lost = gpu_failure_retain(failure);
        } else if (failure && !gpu_failed_find(device, point)) {
            gpu_failed_add(device, point, failure);
        }
    }
}

void gpu_device_fail_all(struct gpu_device *device, const char *text, int32_t driver_code,
                         bool by_close) {
    gpu_repeat_forget(device);
    if (device->stats.ops_in_flight == 0) {
        return;
    }
    struct gpu_error why = {0};
    gpu_error_set(&why, GPULUA_DEVICE_LOST, "%s", text);
    why.driver_code = driver_code;
    struct losses losses = {.shared = gpu_failure_create()};
    if (losses.shared) {
        gpu_error_copy(&losses.shared->error, &why);
        collect_suspects(device, &losses.shared->error);
        losses.shared->is_observed = by_close || device->recovery.was_returning;
        if (!losses.shared->is_observed) {
            gpu_failure_release(device->recovery.loss);
            device->recovery.loss = gpu_failure_retain(losses.shared);
            gpu_news_add_failure(device);
        }
    }
    losses_begin(&losses, device);
    /* First every failure, then every end: suspects are what was pending when it happened. */
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        struct suspicion seen = {0};
        struct gpu_stream *stream = device->streams[slot];
        for (struct gpu_op *op = stream ? stream->head : NULL; op; op = op->next) {
            bool is_suspect = is_suspected(device, op, &seen);
            if (!op->failure) { /* a repair is done again by the next life */
                struct gpu_failure *loss = op->is_repair ? losses.shared : loss_of(&losses, op);
                lose_op(op, &why, loss, is_suspect);
            }
        }
    }
    for (struct gpu_op *op = device->requests; op; op = op->next) {
        if (!op->is_replied && !op->failure) {
            lose_op(op, &why, losses.shared, false); /* whoever asked is told */
        }
    }
    struct lost lost = {.ops = NULL};
    if (!by_close) {
        lost_find(&lost, device);
        gpu_recovery_note_late_writers(device);
    }
    for (struct gpu_block *block = device->blocks; block && !by_close; block = block->next) {
        note_lost_writes(block, &lost);
    }
    free(lost.ops);
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        if (device->streams[slot]) {
            device->done[slot] = device->slot_seq[slot];
            (void)end_stream(device, device->streams[slot]);
        }
    }
    (void)end_requests(device, true);
    losses_end(&losses);
    gpu_error_finish(&why);
}

/* What the page and the replies say, in the order that makes failures reliable; see above. */
static uint32_t look(struct gpu_device *device) {
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        if (device->streams[slot] && device->streams[slot]->head) {
            device->done[slot] = gpu_wire_page_done(device->link->page, slot);
        }
    }
    (void)gpu_wire_link_drain(device->link);
    if (__builtin_expect(device->report_count > 0, 0)) {
        gpu_reports_look(device);
    }
    if (device->has_new_failures) {
        device->has_new_failures = false;
        gpu_failures_spread(device);
    }
    uint32_t ended = 0;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        struct gpu_stream *stream = device->streams[slot];
        if (stream && stream->head && stream->head->seq <= device->done[slot]) {
            ended += end_stream(device, stream);
        }
    }
    if (device->requests) {
        ended += end_requests(device, false);
    }
    return ended;
}

/* Publishing may have drained answers, which nobody would wake us for. */
static uint32_t recover(struct gpu_device *device) {
    uint32_t ended = 0, now;
    do {
        gpu_recovery_step(device);
        device->is_polling = true;
        now = end_requests(device, false);
        device->is_polling = false;
        ended += now;
    } while (now > 0);
    return ended;
}

/* In a child by fork: of what was under way only the parent hears. */
static uint32_t end_inherited(struct gpu_device *device) {
    uint32_t ended = (uint32_t)device->stats.ops_in_flight + (device->recovery.op != NULL);
    char text[160];
    snprintf(text, sizeof text, "device %.100s is of the process that has forked this one",
             device->title);
    device->is_polling = true;
    gpu_device_keep(device);
    gpu_device_fail_all(device, text, 0, true);
    gpu_recovery_finish(device);
    device->is_polling = false;
    gpu_device_drop(device);
    return ended;
}

uint32_t gpu_device_poll(struct gpu_device *device) {
    GPU_ENTER_WHOLE(device, 0);
    if (device->is_polling) {
        return 0;
    }
    if (!device->link) {
        return device->is_inherited ? end_inherited(device) : 0;
    }
    device->is_polling = true;
    device->submits_since_poll = 0;
    gpu_device_keep(device);
    if (__builtin_expect(device->backlog_bytes > 0, 0)) {
        gpu_device_send_backlog(device);
    }
    device->link->ops->poll(device->link);
    gpu_share_touched(device);
    uint32_t ended = look(device);
    if (gpu_watchdog_is_set(device)) {
        gpu_watchdog_look(device);
    }
    if (device->state == GPU_DEVICE_LOST && device->stats.ops_in_flight > 0) {
        ended += look(device); /* at what was over before the loss was told */
        ended += (uint32_t)device->stats.ops_in_flight;
        gpu_device_fail_all(device, device->lost.message, device->lost.driver_code, false);
    }
    if (__builtin_expect(device->state == GPU_DEVICE_LOST, 0)) {
        gpu_flight_write(device);
    }
    if (ended > 0 && device->later) {
        gpu_device_retry_later(device);
    }
    if (__builtin_expect(device->recovery.unread != NULL, 0)) {
        gpu_recovery_drop_unread(device, false);
    }
    gpu_device_run_deferred(device);
    gpu_device_reap_some(device, REAP_AT_POLL);
    device->is_polling = false;
    if (__builtin_expect(device->state != GPU_DEVICE_OPEN, 0)) {
        ended += recover(device);
    }
    if (device->share) {
        gpu_share_tell(device);
        ended += gpu_seat_hear(device);
    }
    gpu_device_drop(device);
    return ended;
}

/* ---- waiting ---- */

bool gpu_device_arm(struct gpu_device *device, int64_t until_ns) {
    GPU_ENTER(device);
    if (!device->link) {
        return false;
    }
    if (device->share) {
        return gpu_seat_arm(device);
    }
    if (device->is_ordered) {
        gpu_ask_before_sleep(device, false, until_ns);
    }
    return device->link && device->link->ops->arm(device->link);
}

void gpu_device_disarm(struct gpu_device *device) {
    GPU_ENTER(device);
    if (device->share) {
        gpu_seat_disarm(device);
    } else if (device->link) {
        device->link->ops->disarm(device->link);
    }
}

static bool can_be_warmer(const struct gpu_device *device) {
    return device->link && device->link->ops->warm && !device->share && !device->stays_cold &&
           device->op_number_next != device->warmed_number;
}

bool gpu_device_wants_warmth(struct gpu_device *device) {
    GPU_ENTER(device);
    if (device->warmed_number == 0 && can_be_warmer(device)) {
        if (device->stats.ops_in_flight == 0) {
            gpu_device_warm(device);
        }
        return false;
    }
    return can_be_warmer(device);
}

void gpu_device_warm(struct gpu_device *device) {
    GPU_ENTER(device);
    if (can_be_warmer(device)) {
        device->warmed_number = device->op_number_next;
        device->stays_cold = !device->link->ops->warm(device->link);
    }
}

int gpu_device_poll_fd(const struct gpu_device *device) {
    GPU_ENTER(device);
    return device->link ? device->link->poll_fd : -1;
}

void gpu_device_nap(struct gpu_device *device, int64_t timeout_ns) {
    if (!device->link) {
        return;
    }
    if (timeout_ns < 0 || timeout_ns > NAP_NS_MAX) {
        timeout_ns = NAP_NS_MAX;
    }
    if (device->share) {
        gpu_seat_nap(device, timeout_ns);
        return;
    }
    if (device->is_ordered) {
        gpu_ask_before_sleep(device, true, INT64_MAX);
    }
    if (!device->link) {
        return;
    }
    if (!device->link->ops->arm(device->link)) {
        struct pollfd event = {.fd = device->link->poll_fd, .events = POLLIN};
        struct timespec limit = {.tv_sec = 0, .tv_nsec = (long)timeout_ns};
        (void)ppoll(&event, 1, &limit, NULL);
    }
    gpu_device_disarm(device);
}

void gpu_op_want(struct gpu_op *op) {
    struct gpu_stream *stream = op->stream;
    if (stream && op->device->link && (stream->wanted == 0 || op->seq < stream->wanted)) {
        stream->wanted = op->seq;
        gpu_wire_link_want(op->device->link, stream->slot, op->seq);
    }
}

void gpu_device_want_any(struct gpu_device *device) {
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        if (device->streams[slot] && device->streams[slot]->head) {
            gpu_op_want(device->streams[slot]->head);
        }
    }
}

bool gpu_device_spins(const struct gpu_device *device) {
    GPU_ENTER(device);
    return device->completion != GPULUA_COMPLETION_BLOCK;
}

bool gpu_op_spin(struct gpu_op *op, int64_t spin_ns) {
    GPU_ENTER(op->device);
    if (gpu_op_is_over(op)) {
        return true;
    }
    if (!op->device->link) {
        return false;
    }
    gpu_op_want(op);
    if (op->device->is_ordered && op->stream) {
        return false; /* nothing is done before somebody sleeps */
    }
    if (!gpu_device_spins(op->device)) {
        return false;
    }
    struct wire_link *link = op->device->link;
    int64_t end_ns = gpu_clock_ns() + spin_ns;
    int64_t patient_end_ns =
        end_ns + (link->executor_slept && spin_ns >= GPU_SPIN_NS ? GPU_WAKE_NS : 0);
    link->executor_slept = false;
    for (uint32_t round = 0;; round++) {
        link->ops->poll(link);
        gpu_share_touched(op->device);
        if (gpu_op_is_over(op)) {
            return true;
        }
        if (op->device->state != GPU_DEVICE_OPEN) {
            return false;
        }
        uint32_t depth = gpu_share_pause(op->device);
        relax();
        gpu_share_resume(op->device, depth);
        if (!op->device->link) {
            return false;
        }
        if ((round & 15u) != 15u) {
            continue;
        }
        int64_t now_ns = gpu_clock_ns();
        if (now_ns >= patient_end_ns) {
            return false;
        }
        if (now_ns >= end_ns) {
            sched_yield(); /* the executor may need this core */
        }
    }
}

/* Nobody watches and nobody waits any more: the executor need not look out for it. */
static void unwant(struct gpu_op *op) {
    if (op->stream && op->stream->wanted == op->seq && op->device->link) {
        want_next(op->stream);
    }
}

gpulua_status gpu_op_wait(struct gpu_op *op, int64_t timeout_ns, struct gpu_error *error) {
    struct gpu_device *device = op->device;
    GPU_ENTER(device);
    gpulua_status status = GPULUA_OK;
    gpu_op_retain(op);
    int64_t start_ns = gpu_clock_ns();
    int64_t patience_ns = device->patient_until_ns;
    if (timeout_ns >= 0 && patience_ns - start_ns > timeout_ns) {
        device->patient_until_ns = start_ns + timeout_ns;
    }
    bool is_told = gpu_range_push(GPU_RANGE_WAIT, op->label, op->seq);
    bool is_over =
        gpu_op_spin(op, timeout_ns >= 0 && timeout_ns < GPU_SPIN_NS ? timeout_ns : GPU_SPIN_NS);
    while (!is_over || op->state == GPU_OP_PENDING) {
        (void)gpu_device_poll(device);
        if (op->state != GPU_OP_PENDING) {
            break;
        }
        if (device->is_polling) {
            /* From inside a waiter: the op is over by its word and ends when the outer poll goes
             * on. */
            break;
        }
        if (gpu_device_is_interrupted(device)) {
            status = gpu_error_set(error, GPULUA_INTERRUPTED, "interrupted while waiting for '%s'",
                                   op->label);
            break;
        }
        if (timeout_ns < 0 && gpu_time_is_up(device)) {
            char what[80];
            snprintf(what, sizeof what, "'%.70s'", op->label);
            (void)gpu_time_is_told(device, what, error);
            status = GPULUA_TIMEOUT;
            gpu_op_info(op, &error->op);
            break;
        }
        int64_t waited_ns = gpu_clock_ns() - start_ns;
        if (timeout_ns >= 0 && waited_ns >= timeout_ns) {
            status = gpu_error_set(error, GPULUA_TIMEOUT, "'%s' was not over after %.6g s",
                                   op->label, (double)timeout_ns / 1e9);
            gpu_op_info(op, &error->op);
            break;
        }
        gpu_op_want(op);
        gpu_device_nap(device, timeout_ns < 0 ? -1 : timeout_ns - waited_ns);
        is_over = gpu_op_is_over(op);
    }
    if (op->state == GPU_OP_PENDING) {
        unwant(op);
    }
    device->patient_until_ns = patience_ns;
    gpu_range_pop(is_told);
    gpu_op_release(op);
    return status;
}

uint32_t gpu_device_ops_in_flight(const struct gpu_device *device) {
    GPU_ENTER(device);
    return (uint32_t)device->stats.ops_in_flight;
}

uint32_t gpu_device_in_flight(struct gpu_device *device, struct gpu_op_info *infos, uint32_t max) {
    GPU_ENTER(device);
    const struct gpu_seat *seat = gpu_seat_of(device);
    uint32_t count = 0;
    gpu_device_want_any(device); /* or an end that nobody waits for may stay unknown */
    (void)gpu_device_poll(device);
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_stream *stream = device->streams[slot];
        for (const struct gpu_op *op = stream ? stream->head : NULL; op; op = op->next) {
            if (seat && op->seat != seat) {
                continue;
            }
            if (count < max) {
                gpu_op_info(op, &infos[count]);
            }
            count++;
        }
    }
    return count;
}

/* The last one in the list that is of that seat; NULL: there is none. */
static struct gpu_op *last_of(struct gpu_op *op, const struct gpu_seat *seat) {
    struct gpu_op *found = NULL;
    for (; op; op = op->next) {
        found = op->seat == seat ? op : found;
    }
    return found;
}

/* An operation that has to be over before nothing is in flight: with a seat, nothing of its own. */
static struct gpu_op *any_pending(struct gpu_device *device) {
    const struct gpu_seat *seat = gpu_seat_of(device);
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_stream *stream = device->streams[slot];
        struct gpu_op *op = !stream ? NULL : seat ? last_of(stream->head, seat) : stream->tail;
        if (op) {
            return op;
        }
    }
    return seat ? last_of(device->requests, seat) : device->requests;
}

gpulua_status gpu_device_wait_idle(struct gpu_device *device, int64_t timeout_ns,
                                   struct gpu_error *error) {
    GPU_ENTER(device);
    int64_t start_ns = gpu_clock_ns();
    (void)gpu_device_poll(device);
    struct gpu_op *op;
    while ((op = any_pending(device))) {
        int64_t waited_ns = gpu_clock_ns() - start_ns;
        int64_t left_ns = timeout_ns < 0 ? -1 : timeout_ns > waited_ns ? timeout_ns - waited_ns : 0;
        gpulua_status status = gpu_op_wait(op, left_ns, error);
        if (status) {
            return status;
        }
    }
    return device->state == GPU_DEVICE_LOST ? gpu_device_check(device, error) : GPULUA_OK;
}
