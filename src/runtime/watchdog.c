/* Work that does not end: deadlines of operations, and how long nothing may come to an end. Whoever
 * is over it is lost, and the device with it: on a GPU nothing less ends a kernel. */
#include "runtime/watchdog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/recovery.h"

#define LOOKS_PER_TERM 8 /* so much later than allowed it may be found, at most: an eighth */
/* For the word of an operation that is over, which nobody had asked for before. */
#define WORD_NS INT64_C(2000000)
/* So long the executor may be busy, in a call of the driver's or without a core, and not hear. */
#define HEARD_NS INT64_C(200000000)
#define BACKLOG_NS INT64_C(5000000) /* between two tries to send what found no room */
/* A request is waited for so many terms, and no less than so long: drivers and slow machines. */
#define REQUEST_TERMS 10
#define REQUEST_NS INT64_C(20000000000)
#define CODE_PATIENCES 30 /* times that, where code is made: compiling takes minutes at most */

void gpu_watchdog_init(struct gpu_device *device, double seconds) {
    device->watchdog.term_ns = seconds > 0 ? (int64_t)(seconds * 1e9) : 0;
    device->watchdog.next_ns = INT64_MAX;
    int64_t terms_ns = device->watchdog.term_ns < INT64_MAX / (REQUEST_TERMS * CODE_PATIENCES)
                           ? device->watchdog.term_ns * REQUEST_TERMS
                           : INT64_MAX / CODE_PATIENCES;
    device->watchdog.patience_ns = terms_ns > REQUEST_NS ? terms_ns : REQUEST_NS;
}

static void drop(struct gpu_watchdog *watchdog, uint32_t place) {
    struct gpu_op *op = watchdog->deadlines[place].op;
    watchdog->deadlines[place] = watchdog->deadlines[--watchdog->count];
    op->has_deadline = false;
    gpu_op_release(op);
}

static void drop_ended(struct gpu_watchdog *watchdog) {
    for (uint32_t i = 0; i < watchdog->count;) {
        if (watchdog->deadlines[i].op->state != GPU_OP_PENDING) {
            drop(watchdog, i);
        } else {
            i++;
        }
    }
}

/* Room for one more: twice as much when most is still needed, so that many deadlines cost each no
 * more than few. False: no memory. */
static bool make_room(struct gpu_watchdog *watchdog) {
    if (watchdog->count < watchdog->capacity) {
        return true;
    }
    drop_ended(watchdog);
    if (watchdog->count >= watchdog->capacity / 2) {
        uint32_t capacity = watchdog->capacity ? watchdog->capacity * 2 : 16;
        struct gpu_deadline *grown =
            realloc(watchdog->deadlines, capacity * sizeof *watchdog->deadlines);
        if (grown) {
            watchdog->deadlines = grown;
            watchdog->capacity = capacity;
        }
    }
    return watchdog->count < watchdog->capacity;
}

void gpu_watchdog_finish(struct gpu_device *device) {
    while (device->watchdog.count > 0) {
        drop(&device->watchdog, device->watchdog.count - 1);
    }
    free(device->watchdog.deadlines);
    device->watchdog = (struct gpu_watchdog){.next_ns = INT64_MAX};
}

/* How long to wait while code is loaded, instead of `term_ns`. Only words tell what is over then,
 * and one may be of so many operations of a stream: as long as these may take together. With a
 * watchdog no launches of graphs count as one. */
static int64_t patient_ns(const struct gpu_device *device, int64_t term_ns) {
    int64_t count = 0, per_stream = device->watchdog.term_ns > 0 ? GPU_SUSPECTS_PER_STREAM_MAX
                                                                 : GPU_REPLAYS_SUSPECTED_MAX;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        bool is_busy = device->streams[slot] && device->streams[slot]->head;
        count += is_busy ? per_stream : 0;
    }
    count = count > 0 ? count : 1;
    return term_ns < INT64_MAX / 2 / count ? term_ns * count : INT64_MAX / 2;
}

static bool is_loading(const struct gpu_device *device) {
    return device->link &&
           atomic_load_explicit(&device->link->page->is_loading, memory_order_acquire) != 0;
}

gpulua_status gpu_op_set_deadline(struct gpu_op *op, double seconds, struct gpu_error *error) {
    struct gpu_device *device = op->device;
    GPU_ENTER(device);
    struct gpu_watchdog *watchdog = &device->watchdog;
    if (gpu_op_is_captured(op)) {
        gpu_error_copy(error, &op->failure->error);
        return error->code;
    }
    if (op->state != GPU_OP_PENDING) {
        return GPULUA_OK;
    }
    if (!op->has_deadline && !make_room(watchdog)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a deadline");
    }
    uint32_t place = 0;
    if (op->has_deadline) { /* another one instead */
        while (watchdog->deadlines[place].op != op) {
            place++;
        }
    } else {
        place = watchdog->count++;
        op->has_deadline = true;
        watchdog->deadlines[place].op = gpu_op_retain(op);
    }
    struct gpu_deadline *deadline = &watchdog->deadlines[place];
    deadline->seconds = seconds;
    int64_t now_ns = gpu_clock_ns(), term_ns = (int64_t)(seconds * 1e9);
    deadline->at_ns = now_ns + term_ns;
    deadline->over_ns = now_ns + patient_ns(device, term_ns);
    deadline->is_asked = false;
    if (deadline->at_ns < watchdog->next_ns) {
        watchdog->next_ns = deadline->at_ns;
    }
    return GPULUA_OK;
}

int64_t gpu_device_alarm_ns(const struct gpu_device *device) {
    GPU_ENTER(device);
    const struct gpu_watchdog *watchdog = &device->watchdog;
    if (device->backlog_bytes > 0) { /* nobody is told when there is room */
        return gpu_clock_ns() + BACKLOG_NS;
    }
    int64_t recovery_ns = gpu_recovery_alarm_ns(device);
    bool is_open = device->state == GPU_DEVICE_OPEN;
    if ((!is_open && device->state != GPU_DEVICE_RETURNING) || device->stats.ops_in_flight == 0) {
        return recovery_ns;
    }
    int64_t turn_ns =
        watchdog->term_ns > 0 ? gpu_clock_ns() + watchdog->term_ns / LOOKS_PER_TERM : INT64_MAX;
    int64_t look_ns = is_open && watchdog->next_ns < turn_ns ? watchdog->next_ns : turn_ns;
    return recovery_ns < look_ns ? recovery_ns : look_ns;
}

static void expire(struct gpu_op *op, double seconds, const char *since) {
    char text[256];
    struct gpu_op_info info;
    gpu_op_info(op, &info);
    snprintf(text, sizeof text, "'%.100s' had not ended %.6g s after %s", info.label, seconds,
             since);
    gpu_device_lose(op->device, 0, text);
}

static bool is_wanted(const struct gpu_op *op) {
    return !op->stream || (op->stream->wanted != 0 && op->stream->wanted <= op->seq);
}

/* The executor has looked for it, and would have told. */
static bool is_heard(const struct gpu_device *device, const struct gpu_deadline *deadline) {
    uint32_t heard = atomic_load_explicit(&device->link->page->wishes_heard, memory_order_acquire);
    return is_wanted(deadline->op) && (int32_t)(heard - deadline->wish) >= 0;
}

static void ask_for(struct gpu_deadline *deadline, int64_t now_ns) {
    const struct gpu_stream *stream = deadline->op->stream;
    struct wire_link *link = deadline->op->device->link;
    if (!deadline->is_asked || !is_wanted(deadline->op)) {
        gpu_op_want(deadline->op);
        if (stream) { /* also where it was wanted before: that it is looked for anew */
            gpu_wire_link_want(link, stream->slot, stream->wanted);
        }
        deadline->asked_ns = deadline->is_asked ? deadline->asked_ns : now_ns;
        deadline->is_asked = true;
        deadline->wish = atomic_load_explicit(&link->page->wishes, memory_order_relaxed);
    }
    deadline->at_ns = now_ns + WORD_NS;
}

/* One of them may be due. */
static void look_at_deadlines(struct gpu_device *device, int64_t now_ns) {
    struct gpu_watchdog *watchdog = &device->watchdog;
    bool loads = is_loading(device); /* first: when it ends, what is over has been told */
    drop_ended(watchdog);
    watchdog->next_ns = INT64_MAX;
    for (uint32_t i = 0; i < watchdog->count; i++) {
        struct gpu_deadline *deadline = &watchdog->deadlines[i];
        bool heard = is_heard(device, deadline); /* before the look at what was told */
        if (now_ns >= deadline->at_ns && !gpu_op_is_over(deadline->op)) {
            if (deadline->is_asked && (now_ns >= deadline->over_ns || !loads) &&
                (heard || now_ns - deadline->asked_ns >= HEARD_NS)) {
                expire(deadline->op, deadline->seconds, "its deadline was set");
                return;
            }
            ask_for(deadline, now_ns);
        }
        if (deadline->at_ns < watchdog->next_ns) {
            watchdog->next_ns = deadline->at_ns;
        }
    }
}

/* The one that was given to the device before all others that are pending: nothing is in front of
 * it any more, so it runs. One that is on its way there at the moment has no number yet. */
static struct gpu_op *oldest(const struct gpu_device *device) {
    struct gpu_op *found = NULL;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        struct gpu_op *op = device->streams[slot] ? device->streams[slot]->head : NULL;
        while (op && gpu_op_is_over(op)) { /* and no poll has ended it */
            op = op->next;
        }
        if (op && op->number > 0 && (!found || op->number < found->number)) {
            found = op;
        }
    }
    return found;
}

static void look_at_oldest(struct gpu_device *device, int64_t now_ns) {
    struct gpu_watchdog *watchdog = &device->watchdog;
    bool loads = is_loading(device); /* first, as above */
    struct gpu_op *op = oldest(device);
    if (!op) {
        watchdog->watched_number = 0;
    } else if (op->number != watchdog->watched_number) {
        watchdog->watched_number = op->number;
        watchdog->watched_ns = now_ns;
        watchdog->is_again = false;
    } else if (watchdog->was_loading && !loads && !watchdog->is_again) {
        watchdog->watched_ns = now_ns; /* perhaps it was given to the device just now */
        watchdog->is_again = true;
    } else if (now_ns - watchdog->watched_ns >=
               (loads ? patient_ns(device, watchdog->term_ns) : watchdog->term_ns)) {
        expire(op, (double)watchdog->term_ns / 1e9, "what was in front of it");
    }
    watchdog->was_loading = loads;
    if (op && device->state == GPU_DEVICE_OPEN) {
        /* That its end is seen, also when somebody else does not want it any more. */
        gpu_op_want(op);
    }
}

/* What is asked of the executor is answered at once, but for what code takes to be made, and what
 * may have to wait behind that. */
static const struct gpu_op *unanswered(const struct gpu_device *device, bool *takes_long) {
    const struct gpu_op *first = NULL;
    *takes_long = false;
    for (const struct gpu_op *op = device->requests; op; op = op->next) {
        if (!op->is_replied) {
            first = first ? first : op;
            *takes_long |= op->takes_long;
        }
    }
    return first;
}

/* A driver, or a process, that hangs while nothing runs. What runs is looked at above: the driver
 * may make whoever asks wait for it. */
static void look_at_requests(struct gpu_device *device, int64_t now_ns) {
    struct gpu_watchdog *watchdog = &device->watchdog;
    bool takes_long;
    const struct gpu_op *op = unanswered(device, &takes_long);
    op = op && oldest(device) ? NULL : op;
    if (!op || op->seq != watchdog->asked_number || takes_long != watchdog->asks_for_code) {
        watchdog->asked_number = op ? op->seq : 0;
        watchdog->asks_for_code = takes_long; /* what waited behind code begins anew, too */
        watchdog->asked_ns = now_ns;
        return;
    }
    int64_t patience_ns = watchdog->patience_ns * (takes_long ? CODE_PATIENCES : 1);
    if (now_ns - watchdog->asked_ns >= patience_ns) {
        char text[160];
        snprintf(text, sizeof text, "it had not answered '%.60s' after %.6g s", op->label,
                 (double)patience_ns / 1e9);
        gpu_device_lose(device, 0, text);
    }
}

/* In check mode work is done while somebody asks for it, and the clock runs only then, from when
 * something has come to an end last. */
void gpu_watchdog_settle(struct gpu_device *device, bool is_first) {
    struct gpu_watchdog *watchdog = &device->watchdog;
    int64_t now_ns = gpu_clock_ns();
    uint64_t progress = 0;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        progress += gpu_wire_page_done(device->link->page, slot);
    }
    if (is_first || progress != watchdog->watched_number) {
        watchdog->watched_number = progress;
        watchdog->watched_ns = now_ns;
        return;
    }
    double seconds = (double)(now_ns - watchdog->watched_ns) / 1e9;
    for (uint32_t i = 0; i < watchdog->count; i++) {
        const struct gpu_deadline *deadline = &watchdog->deadlines[i];
        if (seconds >= deadline->seconds && !gpu_op_is_over(deadline->op)) {
            expire(deadline->op, deadline->seconds, "its deadline was set");
            return;
        }
    }
    struct gpu_op *op = watchdog->term_ns > 0 ? oldest(device) : NULL;
    if (op && seconds >= (double)watchdog->term_ns / 1e9) {
        expire(op, (double)watchdog->term_ns / 1e9, "what was in front of it");
    }
}

void gpu_watchdog_look(struct gpu_device *device) {
    int64_t now_ns = gpu_clock_ns();
    if (device->is_ordered && !device->is_behind) {
        return; /* see above */
    }
    if (now_ns >= device->watchdog.next_ns && device->state == GPU_DEVICE_OPEN) {
        look_at_deadlines(device, now_ns);
    }
    if (device->watchdog.term_ns > 0 && device->state == GPU_DEVICE_OPEN) {
        look_at_oldest(device, now_ns);
    }
    if (device->watchdog.term_ns > 0) { /* also on its way to the next life */
        look_at_requests(device, now_ns);
    }
}

/* ---- tasks that have only so long ---- */

static int64_t until_ns(const struct gpu_device *device, bool is_told) {
    const struct gpu_tasks *tasks = gpu_tasks_of(device, gpu_seat_of(device));
    return tasks && tasks->until_ns && !device->is_closing ? tasks->until_ns(tasks, is_told)
                                                           : INT64_MAX;
}

bool gpu_time_is_up(const struct gpu_device *device) {
    int64_t end_ns = until_ns(device, false);
    return end_ns != INT64_MAX && gpu_clock_ns() >= end_ns;
}

bool gpu_time_is_told(const struct gpu_device *device, const char *what, struct gpu_error *error) {
    if (!gpu_time_is_up(device)) {
        return false;
    }
    (void)until_ns(device, true);
    gpu_error_set(error, GPULUA_TIMEOUT, "%s was not over when the time of its task was", what);
    return true;
}
