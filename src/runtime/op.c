/* Operations: their life, their failures, requests to the executor. */
#include "runtime/op.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/hooks.h"
#include "runtime/report.h"
#include "runtime/state.h"

#define FAILED_AT_FIRST 64u

struct gpu_op *gpu_op_create(struct gpu_device *device, struct gpu_stream *stream,
                             const char *label, struct gpu_site site) {
    struct gpu_op *op = device->op_free;
    if (op) {
        device->op_free = op->next;
        device->op_free_count--;
    } else {
        op = calloc(1, sizeof *op);
        if (!op) {
            return NULL;
        }
    }
    op->refs = 1;
    op->state = GPU_OP_PENDING;
    op->is_given_up = op->is_repair = op->is_replay = false;
    op->device = gpu_device_keep(device);
    op->stream = stream ? gpu_stream_keep(stream) : NULL;
    op->stream_number = stream ? stream->number : 0;
    op->slot = stream ? stream->slot : 0;
    op->dep_count = 0;
    op->seq = op->number = 0;
    op->next = NULL;
    op->label = label;
    op->site = site;
    op->seat = gpu_seat_of(device);
    const struct gpu_tasks *tasks = gpu_tasks_of(device, op->seat);
    op->task = tasks ? tasks->running : 0;
    op->deps = op->deps_inline;
    return op;
}

static void put_free(struct gpu_device *device, struct gpu_op *op) {
    op->next = device->op_free;
    device->op_free = op;
    device->op_free_count++;
}

bool gpu_ops_reserve(struct gpu_device *device, uint32_t count) {
    while (device->op_free_count < count) {
        struct gpu_op *op = calloc(1, sizeof *op);
        if (!op) {
            return false;
        }
        put_free(device, op);
    }
    return true;
}

struct gpu_op *gpu_op_find_pending(const struct gpu_device *device, struct gpu_point point) {
    const struct gpu_stream *stream =
        point.slot < WIRE_STREAMS_MAX ? device->streams[point.slot] : NULL;
    struct gpu_op *op = stream ? stream->head : NULL;
    if (op && stream->tail->seq == point.seq) { /* what was submitted last */
        return stream->tail;
    }
    while (op && op->seq < point.seq) {
        op = op->next;
    }
    return op && op->seq == point.seq ? op : NULL;
}

bool gpu_ops_are_over(const struct gpu_device *device, uint64_t number) {
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_op *oldest = device->streams[slot] ? device->streams[slot]->head : NULL;
        if (oldest && oldest->number <= number) { /* 0: it is being given */
            return false;
        }
    }
    return true;
}

struct gpu_op *gpu_op_retain(struct gpu_op *op) {
    GPU_ENTER(op->device);
    op->refs++;
    return op;
}

bool gpu_op_is_captured(const struct gpu_op *op) {
    GPU_ENTER(op->device);
    return op->failure && op->failure->error.code == GPULUA_CAPTURE_ACTIVE;
}

static void let_stream_go(struct gpu_op *op) {
    struct gpu_stream *stream = op->stream;
    op->stream = NULL;
    if (stream) {
        gpu_stream_drop(stream);
    }
}

void gpu_op_release(struct gpu_op *op) {
    if (!op) {
        return;
    }
    GPU_ENTER_WHOLE(op->device);
    bool is_left = --op->refs == 1 && op->ref && op->state != GPU_OP_PENDING;
    if (op->refs > 0 && !(is_left && gpu_op_leave_ref(op))) {
        return;
    }
    assert(!op->waiters && !op->on_reply);
    struct gpu_device *device = op->device;
    if (op->deps != op->deps_inline) {
        free(op->deps);
    }
    if (op->shadow) {
        device->observer->op_gone(device->observer->user, op->shadow);
        op->shadow = NULL;
    }
    if (op->failure) {
        gpu_failure_release(op->failure);
        op->failure = NULL;
    }
    if (op->reply) {
        free(op->reply);
        op->reply = NULL;
    }
    if (op->has_extras) { /* it was never submitted */
        gpu_report_detach(op);
        op->has_extras = false;
    }
    op->is_replied = false;
    let_stream_go(op); /* one that was never submitted has it still */
    put_free(device, op);
    gpu_device_drop(device);
}

static void unlink_waiter(struct gpu_waiter *waiter) {
    *waiter->link = waiter->next;
    if (waiter->next) {
        waiter->next->link = waiter->link;
    }
    if (waiter->seat && waiter->seat->fired_end == &waiter->next) {
        waiter->seat->fired_end = waiter->link;
    }
    waiter->next = NULL;
    waiter->link = NULL;
}

/* The op is over, perhaps in another thread's poll than that of who watches. */
static void fire(struct gpu_op *op, struct gpu_waiter *waiter) {
    unlink_waiter(waiter);
    if (waiter->seat) {
        gpu_seat_fire(waiter, op);
    } else {
        waiter->fire(waiter, op);
    }
}

/* In the order in which they began to watch. */
static void fire_all(struct gpu_op *op) {
    struct gpu_waiter *first = NULL;
    for (struct gpu_waiter *waiter = op->waiters, *next; waiter; waiter = next) {
        next = waiter->next;
        waiter->next = first;
        if (first) {
            first->link = &waiter->next;
        }
        first = waiter;
    }
    if (first) {
        first->link = &op->waiters;
    }
    op->waiters = first;
    while (op->waiters) {
        fire(op, op->waiters);
    }
}

void gpu_op_end(struct gpu_op *op) {
    struct gpu_device *device = op->device;
    assert(op->state == GPU_OP_PENDING);
    op->state = op->failure ? GPU_OP_FAILED : GPU_OP_SUCCEEDED;
    device->stats.ops_in_flight--;
    if (op->failure) {
        device->stats.ops_failed++;
        if (!op->failure->root && !op->is_given_up) {
            op->failure->seat = op->seat;
            op->failure->task = op->task;
            gpu_unobserved_add(device, op->failure);
        }
    } else {
        device->stats.ops_completed++;
    }
    if (__builtin_expect(device->trace != NULL, 0)) {
        gpu_trace_note_end(device->trace, op);
    }
    if (__builtin_expect(op->has_extras, 0)) {
        gpu_report_detach(op);
        gpu_hooks_before_complete(op);
        fire_all(op);
        gpu_hooks_after_complete(op);
        op->has_extras = false;
    } else {
        fire_all(op);
    }
    /* Whoever has a handle of what is over keeps no stream's slot from being used again. */
    let_stream_go(op);
    if (op->ref && op->refs == 2 && gpu_op_leave_ref(op)) {
        op->refs--;
    }
    if (op->refs > 1) {
        op->refs--;
    } else {
        gpu_op_release(op);
    }
}

/* By itself, and for nobody who waits: it stays in its lists. */
static void fail_torn(struct gpu_op *op) {
    static struct gpu_failure torn = {.refs = 1, .is_observed = true};
    if (torn.error.code == GPULUA_OK) {
        (void)gpu_device_check_open(op->device, &torn.error);
    }
    torn.refs++;
    op->failure = &torn;
    op->state = GPU_OP_FAILED;
}

bool gpu_op_is_over(struct gpu_op *op) {
    GPU_ENTER(op->device);
    if (op->state != GPU_OP_PENDING) {
        return true;
    }
    if (__builtin_expect(op->device->is_torn, 0)) {
        fail_torn(op);
        return true;
    }
    if (!op->stream) {
        if (!op->is_replied && op->device->link) {
            (void)gpu_wire_link_drain(op->device->link);
            gpu_share_touched(op->device);
        }
        return op->is_replied;
    }
    if (!op->device->link) {
        return false;
    }
    return gpu_wire_page_done(op->device->link->page, op->stream->slot) >= op->seq;
}

gpulua_status gpu_op_status(struct gpu_op *op) {
    GPU_ENTER(op->device);
    if (op->state == GPU_OP_PENDING && gpu_op_is_over(op)) {
        (void)gpu_device_poll(op->device);
    }
    if (op->state != GPU_OP_FAILED) {
        return GPULUA_OK;
    }
    return op->failure->error.code;
}

const struct gpu_error *gpu_op_error(struct gpu_op *op) {
    GPU_ENTER(op->device);
    if (gpu_op_status(op) == GPULUA_OK) {
        return NULL;
    }
    return gpu_failure_error(op->failure);
}

void gpu_op_observe(struct gpu_op *op) {
    GPU_ENTER_WHOLE(op->device);
    if (op->state != GPU_OP_FAILED) {
        return;
    }
    gpu_failure_observe(op->device, op->failure);
}

void gpu_op_watch(struct gpu_op *op, struct gpu_waiter *waiter) {
    GPU_ENTER(op->device);
    waiter->seat = gpu_seat_of(op->device);
    waiter->next = op->waiters;
    waiter->link = &op->waiters;
    if (op->waiters) {
        op->waiters->link = &waiter->next;
    }
    op->waiters = waiter;
    struct gpu_stream *stream = op->stream;
    if (op->state != GPU_OP_PENDING) {
        /* Over and gone from every list: nothing would fire it. The caller has checked that
         * beforehand; another thread may have been quicker. */
        fire(op, waiter);
        return;
    }
    if (stream && (stream->wanted == 0 || op->seq < stream->wanted) && op->device->link) {
        stream->wanted = op->seq;
        gpu_wire_link_want(op->device->link, stream->slot, op->seq);
    }
}

void gpu_op_unwatch(struct gpu_waiter *waiter) {
    /* Another thread may be moving it, and leaves `seat` as it is. */
    __attribute__((cleanup(gpu_leave), unused)) struct gpu_share *const entered =
        waiter->seat ? gpu_enter(waiter->seat->device) : NULL;
    if (waiter->link && !(waiter->seat && waiter->seat->device->is_torn)) {
        unlink_waiter(waiter);
    }
    waiter->link = NULL;
    waiter->seat = NULL;
}

void gpu_op_dismiss(struct gpu_op *op, const struct gpu_seat *seat) {
    struct gpu_waiter *waiter = op->waiters;
    while (waiter) {
        struct gpu_waiter *next = waiter->next;
        if (waiter->seat == seat) {
            fire(op, waiter);
        }
        waiter = next;
    }
}

static void copy_text(char *to, size_t to_bytes, const char *from) {
    size_t length = from ? strlen(from) : 0;
    if (length >= to_bytes) {
        length = to_bytes - 1;
    }
    if (length > 0) {
        memcpy(to, from, length);
    }
    to[length] = '\0';
}

void gpu_op_info(const struct gpu_op *op, struct gpu_op_info *info) {
    memset(info, 0, sizeof *info);
    info->is_known = true;
    (void)gpu_label_copy(info->label, sizeof info->label, op->label);
    copy_text(info->source, sizeof info->source, op->site.source);
    info->line = op->site.line;
    info->stream = op->stream_number;
    info->seq = op->seq;
}

uint64_t gpu_op_number(const struct gpu_op *op) {
    return op->number;
}

double gpu_op_elapsed_s(struct gpu_op *op) {
    GPU_ENTER(op->device);
    struct gpu_trace *trace = op->device->trace;
    int64_t took_ns = trace ? gpu_trace_device_ns(trace, op->number) : -1;
    if (took_ns < 0 && trace && op->state == GPU_OP_SUCCEEDED) { /* it is on its way */
        gpu_device_trace_flush(op->device);
        took_ns = gpu_trace_device_ns(trace, op->number);
    }
    return took_ns < 0 ? -1.0 : (double)took_ns / 1e9;
}

struct gpu_device *gpu_op_device(const struct gpu_op *op) {
    return op->device;
}

void *gpu_op_shadow(const struct gpu_op *op) {
    return op->shadow;
}

/* ---- failures ---- */

bool gpu_failures_init(struct gpu_device *device) {
    device->failed = malloc(FAILED_AT_FIRST * sizeof *device->failed);
    device->failed_capacity = device->failed ? FAILED_AT_FIRST : 0;
    device->failure_spare = gpu_failure_create();
    if (!device->failed || !device->failure_spare) {
        return false;
    }
    gpu_error_set(&device->failure_spare->error, GPULUA_OUT_OF_MEMORY,
                  "an operation failed, and there was no host memory to keep which and why");
    return true;
}

struct gpu_failure *gpu_failure_without_memory(struct gpu_device *device) {
    device->failure_spare->is_observed = false;
    return gpu_failure_retain(device->failure_spare);
}

struct gpu_failure *gpu_failure_create(void) {
    struct gpu_failure *failure = calloc(1, sizeof *failure);
    if (failure) {
        failure->refs = 1;
    }
    return failure;
}

/* Not what is another seat's to see. */
static void observe_one(const struct gpu_device *device, struct gpu_failure *failure) {
    if (!failure->seat || failure->seat == gpu_seat_of(device)) {
        failure->is_observed = true;
    }
}

/* One seat's: somebody knows of the loss, see is_known. */
static void note_known(const struct gpu_failure *failure) {
    if (failure->root && !failure->seat && failure->is_observed) {
        failure->root->is_observed = true;
    }
}

void gpu_failure_observe(const struct gpu_device *device, struct gpu_failure *failure) {
    observe_one(device, failure);
    if (failure->root) {
        observe_one(device, failure->root);
        note_known(failure->root);
    }
}

const struct gpu_error *gpu_failure_error(struct gpu_failure *failure) {
    struct gpu_error *error = &failure->error;
    if (error->suspects_number != 0 && !error->suspects && failure->root) {
        gpu_error_copy_suspects(error, gpu_failure_error(failure->root));
    }
    return error;
}

struct gpu_failure *gpu_failure_retain(struct gpu_failure *failure) {
    failure->refs++;
    return failure;
}

void gpu_failure_release(struct gpu_failure *failure) {
    if (!failure || --failure->refs > 0) {
        return;
    }
    gpu_failure_release(failure->root);
    gpu_error_finish(&failure->error);
    free(failure);
}

struct gpu_failure *gpu_failed_find(const struct gpu_device *device, struct gpu_point point) {
    for (uint32_t i = 0; i < device->failed_count; i++) {
        if (device->failed[i].point.slot == point.slot &&
            device->failed[i].point.seq == point.seq) {
            return device->failed[i].failure;
        }
    }
    return NULL;
}

static void need_failed(struct gpu_device *device, struct gpu_point point) {
    for (uint32_t i = 0; i < device->failed_count; i++) {
        struct gpu_failed_point *failed = &device->failed[i];
        failed->is_needed |= failed->point.slot == point.slot && failed->point.seq == point.seq;
    }
}

/* Failures stay findable for as long as some block's newest write is the failed op, and for what is
 * pending and has read an output of it that has been written over since. */
static void sweep_failed(struct gpu_device *device) {
    gpu_repeat_settle(device);
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_stream *stream = device->streams[slot];
        for (const struct gpu_op *op = stream ? stream->head : NULL; op; op = op->next) {
            bool may_inherit = !op->failure || !op->failure->root; /* also one of its own */
            for (uint32_t i = 0; i < op->dep_count && may_inherit; i++) {
                need_failed(device, op->deps[i]);
            }
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < device->failed_count; i++) {
        struct gpu_failed_point *failed = &device->failed[i];
        bool is_needed = failed->is_needed || !gpu_point_is_over(device, failed->point);
        failed->is_needed = false;
        for (struct gpu_block *block = device->blocks; block && !is_needed; block = block->next) {
            is_needed = gpu_history_has_write(&block->history, failed->point);
        }
        if (is_needed) {
            device->failed[kept++] = *failed;
        } else {
            gpu_failure_release(failed->failure);
        }
    }
    device->failed_count = kept;
}

void gpu_failed_add(struct gpu_device *device, struct gpu_point point,
                    struct gpu_failure *failure) {
    if (device->failed_count == device->failed_capacity) {
        sweep_failed(device);
        /* Grown only if most of it is still needed, so that a sweep always makes room for many. */
        if (device->failed_count >= device->failed_capacity / 2) {
            uint32_t capacity = device->failed_capacity * 2;
            struct gpu_failed_point *grown = realloc(device->failed, capacity * sizeof *grown);
            if (grown) {
                device->failed = grown;
                device->failed_capacity = capacity;
            } else if (device->failed_count == device->failed_capacity) {
                /* Nothing of it can be kept for its readers: better no device than wrong results.
                 */
                gpu_device_lose(device, 0, "no host memory to keep what has failed");
                return;
            }
        }
    }
    device->failed[device->failed_count++] =
        (struct gpu_failed_point){.point = point, .failure = gpu_failure_retain(failure)};
}

bool gpu_failed_replace(struct gpu_device *device, const struct gpu_failure *before,
                        struct gpu_failure *failure) {
    bool is_found = false;
    for (uint32_t i = 0; i < device->failed_count; i++) {
        if (device->failed[i].failure == before) {
            gpu_failure_release(device->failed[i].failure);
            device->failed[i].failure = gpu_failure_retain(failure);
            is_found = true;
        }
    }
    return is_found;
}

void gpu_unobserved_add(struct gpu_device *device, struct gpu_failure *failure) {
    if (failure->is_observed) {
        return;
    }
    for (uint32_t i = 0; i < device->unobserved_count && failure->refs > 1; i++) {
        if (device->unobserved[i] == failure) {
            return;
        }
    }
    if (device->unobserved_count == device->unobserved_capacity) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < device->unobserved_count; i++) {
            if (device->unobserved[i]->is_observed) {
                gpu_failure_release(device->unobserved[i]);
            } else {
                device->unobserved[kept++] = device->unobserved[i];
            }
        }
        device->unobserved_count = kept;
    }
    if (device->unobserved_count == device->unobserved_capacity) {
        uint32_t capacity = device->unobserved_capacity ? device->unobserved_capacity * 2 : 16;
        struct gpu_failure **grown =
            realloc(device->unobserved, capacity * sizeof(struct gpu_failure *));
        if (!grown) {
            return;
        }
        device->unobserved = grown;
        device->unobserved_capacity = capacity;
    }
    device->unobserved[device->unobserved_count++] = gpu_failure_retain(failure);
}

void gpu_failure_keep(struct gpu_device *device, const struct gpu_seat *seat,
                      struct gpu_error *error) {
    struct gpu_failure *failure = gpu_failure_create();
    if (!failure) {
        gpu_error_finish(error); /* no memory is left to tell anybody */
        return;
    }
    failure->error = *error;
    failure->seat = seat;
    gpu_unobserved_add(device, failure);
    gpu_failure_release(failure);
}

/* Of a task that has not ended, and is not the one that asks. */
static bool is_of_another(struct gpu_failure *failure, const struct gpu_tasks *tasks) {
    if (failure->task == 0 || failure->task == tasks->running) {
        return false;
    }
    if (!tasks->is_live(tasks, failure->task)) {
        failure->task = 0;
    }
    return failure->task != 0;
}

/* A loss that somebody knows of, where nobody goes on as if nothing had happened: the task has
 * ended, or the device does not come up again. */
static bool is_known(const struct gpu_device *device, struct gpu_failure *failure,
                     const struct gpu_tasks *tasks) {
    bool is_over = failure->task == 0 || !tasks || !tasks->is_live(tasks, failure->task);
    bool is_up_again = device->recovery.restarts_max > 0 && !device->recovery.is_given_up;
    return failure->root && failure->root->is_observed && (is_over || !is_up_again);
}

/* Is it for whoever sits there and runs to see? */
static bool is_for(const struct gpu_device *device, struct gpu_failure *failure,
                   const struct gpu_tasks *tasks, bool is_own) {
    const struct gpu_seat *seat = gpu_seat_of(device);
    if (failure->is_observed || (failure->seat && seat && failure->seat != seat)) {
        return false;
    }
    if (is_known(device, failure, tasks)) {
        failure->is_observed = true;
        return false;
    }
    return !is_own || !tasks || !is_of_another(failure, tasks);
}

bool gpu_device_take_unobserved(struct gpu_device *device, bool is_own, struct gpu_error *error) {
    GPU_ENTER(device);
    const struct gpu_seat *seat = gpu_seat_of(device);
    const struct gpu_tasks *tasks = gpu_tasks_of(device, seat);
    const struct gpu_failure *root = NULL;
    bool is_found = false;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < device->unobserved_count; k++) {
        struct gpu_failure *failure = device->unobserved[k];
        if (!is_found && is_for(device, failure, tasks, is_own)) {
            gpu_error_copy(error, gpu_failure_error(failure));
            failure->is_observed = is_found = true;
            root = failure->root;
            note_known(failure);
        } else if (root && failure->root == root && is_for(device, failure, tasks, true)) {
            failure->is_observed = true; /* the same loss, of tasks that have ended */
        }
        if (failure->is_observed) {
            gpu_failure_release(failure);
        } else {
            device->unobserved[kept++] = failure;
        }
    }
    device->unobserved_count = kept;
    return is_found;
}

/* What depends on something lost has a code of its own, and may be a new failure. */
static bool is_of(const struct gpu_failure *failure, const struct gpu_failure *root) {
    return root ? failure == root || failure->root == root
                : failure->error.code == GPULUA_DEVICE_LOST;
}

void gpu_failures_observe_of(struct gpu_device *device, const struct gpu_failure *root) {
    const struct gpu_seat *seat = gpu_seat_of(device);
    const struct gpu_tasks *tasks = gpu_tasks_of(device, seat);
    for (uint32_t i = 0; i < device->unobserved_count; i++) {
        struct gpu_failure *failure = device->unobserved[i];
        if (is_of(failure, root) && is_for(device, failure, tasks, true)) {
            failure->is_observed = true;
            note_known(failure);
        }
    }
}

struct gpu_failure *gpu_failure_of_dependency(const struct gpu_op *op, struct gpu_failure *cause) {
    struct gpu_failure *failure = gpu_failure_create();
    if (!failure) {
        return gpu_failure_retain(cause);
    }
    struct gpu_failure *root = cause->root ? cause->root : cause;
    struct gpu_op_info info;
    gpu_op_info(op, &info);
    gpu_error_set(&failure->error, GPULUA_DEPENDENCY_FAILED,
                  "'%s' needs the output of '%s', which failed: %s", info.label,
                  root->error.op.label, root->error.message);
    failure->error.op = info;
    gpu_error_copy_places(&failure->error, &root->error);
    bool is_passed_on = root->error.root.is_known;
    failure->error.root = is_passed_on ? root->error.root : root->error.op;
    failure->error.root_code = is_passed_on ? root->error.root_code : root->error.code;
    failure->seat = op->seat;
    /* What another seat has failed to do is told there; what followed from it here, here. */
    if (!root->seat || root->seat == op->seat) {
        failure->root = gpu_failure_retain(root);
    }
    return failure;
}

/* ---- requests ---- */

gpulua_status gpu_request(struct gpu_device *device, struct wire_record *record, const char *label,
                          void (*on_reply)(struct gpu_op *op, void *user,
                                           const struct wire_reply *reply),
                          void *user, struct gpu_op **op, struct gpu_error *error) {
    gpulua_status status = gpu_device_check_open(device, error);
    return status ? status
                  : gpu_request_unchecked(device, record, label, on_reply, user, op, error);
}

struct gpu_op *gpu_request_expect(struct gpu_device *device, uint64_t seq, const char *label,
                                  void (*on_reply)(struct gpu_op *op, void *user,
                                                   const struct wire_reply *reply),
                                  void *user) {
    struct gpu_op *request = gpu_op_create(device, NULL, label, (struct gpu_site){0});
    if (request) {
        request->seq = seq;
        request->on_reply = on_reply;
        request->on_reply_user = user;
        *device->requests_tail = request;
        device->requests_tail = &request->next;
        device->stats.ops_in_flight++;
    }
    return request;
}

gpulua_status gpu_request_unchecked(struct gpu_device *device, struct wire_record *record,
                                    const char *label,
                                    void (*on_reply)(struct gpu_op *op, void *user,
                                                     const struct wire_reply *reply),
                                    void *user, struct gpu_op **op, struct gpu_error *error) {
    /* On the list before the record is out: inline answers come from within publish. */
    struct gpu_op *request =
        gpu_request_expect(device, ++device->request_number_next, label, on_reply, user);
    if (!request) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a request");
    }
    record->seq = request->seq;
    request->takes_long =
        record->opcode == WIRE_OP_MODULE_COMPILE || record->opcode == WIRE_OP_MODULE_LOAD;
    gpu_op_retain(request);
    gpulua_status status = gpu_device_publish(device, record, error);
    if (status) {
        /* The device is lost and has failed everything pending, this request among it. */
        gpu_op_release(request);
        return status;
    }
    device->stats.requests++;
    if (device->is_ordered) {
        int64_t begun_ns = request->takes_long ? gpu_blocked_begin(device) : 0;
        gpu_ask_answer(request);
        gpu_blocked_end(device, label, begun_ns);
    }
    *op = request;
    return GPULUA_OK;
}

gpulua_status
gpu_request_wait(struct gpu_device *device, struct wire_record *record, const char *label,
                 void (*on_reply)(struct gpu_op *op, void *user, const struct wire_reply *reply),
                 void *user, struct gpu_error *error) {
    struct gpu_op *op = NULL;
    record->seq = 0; /* no request's, until it is listed */
    gpulua_status status = gpu_request(device, record, label, on_reply, user, &op, error);
    if (status == GPULUA_OK) {
        return gpu_request_end(op, error);
    }
    for (op = device->requests; op; op = op->next) { /* its end is still to come: as there */
        op->on_reply = op->seq == record->seq ? NULL : op->on_reply;
    }
    return status;
}

gpulua_status gpu_request_end(struct gpu_op *op, struct gpu_error *error) {
    gpulua_status status = gpu_op_wait(op, -1, error);
    if (status) {
        /* Interrupted: `user` is the caller's frame, so the answer must not be handed to it any
         * more, and its failure nobody's news. */
        op->on_reply = NULL;
        op->is_given_up = true;
    } else if (op->state == GPU_OP_FAILED) {
        gpu_op_observe(op);
        gpu_error_copy(error, gpu_failure_error(op->failure));
        status = error->code;
    }
    gpu_op_release(op);
    return status;
}
