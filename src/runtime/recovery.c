/* Coming up again after a loss, where the executor lives in a process of its own.
 *
 * When everything that was pending has failed, another executor takes the place of the lost one,
 * and is told what the scripts' handles stand for, under the numbers that they had: streams, slabs
 * that something survives in, modules with their kernels. Graphs are sent when they are next
 * launched. Blocks of the device go, but for those that are kept (enum gpu_keeping), for what lies
 * in the arena, which is memory of this process, and for those that are no memory at all. Only when
 * all of that is there is the device open again.
 *
 * Until the process of the former life has ended, it holds memory of the device, and what it was at
 * work on may yet be written into the arena. Its end is waited for where somebody could notice:
 * where it was to write what somebody has a handle to, and where memory of the device might be
 * short. Else the new life begins beside it, and of the arena what the former may write stays out
 * of use (memory/slab.c).
 *
 * Driven by gpu_device_poll, and never waits. */
#include "runtime/recovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/graph/state.h"
#include "runtime/memory/stack.h"
#include "runtime/watchdog.h"

/* Behind an attempt that led nowhere; twice as long each time. */
#define PAUSE_NS INT64_C(50000000)
#define PAUSE_DOUBLINGS_MAX 6u
/* A spare opens the device so long after it was started: drivers do one thing at a time, and what
 * the script does first is not to wait for that. */
#define SPARE_AFTER_NS INT64_C(500000000)
#define SETTLE_LOOK_NS INT64_C(10000000) /* that a process has ended is told; in case it is not */
#define SETTLE_PATIENCE_NS INT64_C(5000000000) /* of one that was killed: later it is told */
#define OUTWAIT_LATE_NS INT64_C(5000000000)    /* and so much later memory counts as short */

bool gpu_recovery_init(struct gpu_device *device, int32_t restarts_max, double window_s) {
    struct gpu_recovery *recovery = &device->recovery;
    recovery->restarts_max = restarts_max == 0  ? GPU_RESTARTS_MAX
                             : restarts_max < 0 ? 0
                                                : (uint32_t)restarts_max;
    recovery->window_ns = (int64_t)((window_s > 0 ? window_s : GPU_RESTARTS_WINDOW_S) * 1e9);
    if (device->isolation != GPULUA_ISOLATE_PROCESS) {
        recovery->restarts_max = 0;
    }
    if (!gpu_news_init(device)) {
        return false;
    }
    if (recovery->restarts_max > 0) {
        recovery->begun_ns = calloc(recovery->restarts_max, sizeof *recovery->begun_ns);
    }
    return recovery->restarts_max == 0 || recovery->begun_ns;
}

bool gpu_recovery_keep_open(struct gpu_device *device, const struct wire_record *record) {
    if (device->recovery.restarts_max > 0) {
        device->recovery.open = malloc(record->length_bytes);
        if (!device->recovery.open) {
            return false;
        }
        memcpy(device->recovery.open, record, record->length_bytes);
    }
    return true;
}

bool gpu_recovery_is_possible(const struct gpu_device *device) {
    return device->recovery.restarts_max > 0 && device->recovery.open && device->link &&
           device->link->can_restart && !device->is_closing && !device->recovery.is_given_up;
}

/* ---- what the former life may still do ---- */

void gpu_recovery_note_late_writers(struct gpu_device *device) {
    bool *is_seen = &device->recovery.has_late_writers;
    for (struct gpu_block *block = device->blocks; block; block = block->next) {
        *is_seen |= gpu_block_note_late_writer(block) && !block->is_staging;
    }
    for (struct gpu_block *block = device->retiring; block; block = block->next) {
        (void)gpu_block_note_late_writer(block);
    }
    *is_seen |= gpu_exports_note_late_writers(device); /* which may be in neither list */
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        struct gpu_stream *stream = device->streams[slot];
        for (struct gpu_op *op = stream ? stream->head : NULL; op; op = op->next) {
            *is_seen |= op->report != NULL;
        }
    }
}

static bool has_missing_module(const struct gpu_device *device) {
    const struct gpu_module *module = device->modules;
    while (module && !module->is_missing) {
        module = module->next;
    }
    return module != NULL;
}

/* May memory come back beside it? What libraries and code had taken is in no count of ours. */
static bool is_out_of_the_way(struct gpu_device *device) {
    const struct gpu_recovery *recovery = &device->recovery;
    uint64_t gone_bytes = recovery->first_free_bytes > recovery->free_bytes
                              ? recovery->first_free_bytes - recovery->free_bytes
                              : 0;
    uint64_t former_bytes =
        gone_bytes > recovery->former_bytes ? gone_bytes : recovery->former_bytes;
    return gpu_wire_link_is_settled(device->link) ||
           (!recovery->has_late_writers && !has_missing_module(device) &&
            recovery->free_bytes / 2 >= former_bytes);
}

/* The executor is about to be killed. */
static void note_former(struct gpu_device *device) {
    int pid = gpu_wire_link_pid(device->link);
    if (pid > 0) {
        device->recovery.former_pid = pid;
        device->recovery.late_ns = gpu_clock_ns() + SETTLE_PATIENCE_NS;
        device->recovery.is_former_late = false;
    }
}

static bool waits_for_former(const struct gpu_device *device) {
    return (device->state == GPU_DEVICE_LOST || device->state == GPU_DEVICE_RETURNING) &&
           device->recovery.former_pid > 0 && !gpu_wire_link_is_settled(device->link);
}

/* Killed, and yet there, as what is in a call of a driver's may be. */
static void tell_of_former(struct gpu_device *device) {
    struct gpu_recovery *recovery = &device->recovery;
    if (recovery->is_former_late || !waits_for_former(device) ||
        gpu_clock_ns() < recovery->late_ns) {
        return;
    }
    recovery->is_former_late = true;
    if (device->on_log) {
        char line[256];
        snprintf(line, sizeof line,
                 "device %s: its former process %d was killed and has not ended for %d s: the "
                 "device comes up again when it has",
                 device->title, recovery->former_pid, (int)(SETTLE_PATIENCE_NS / 1000000000));
        device->on_log(device->log_user, line);
    }
}

int gpu_recovery_late_pid(const struct gpu_device *device) {
    return device->recovery.is_former_late && waits_for_former(device) ? device->recovery.former_pid
                                                                       : 0;
}

bool gpu_recovery_outwait(struct gpu_device *device, gpulua_status *status,
                          struct gpu_error *error) {
    struct gpu_recovery *recovery = &device->recovery;
    if (!recovery->has_former) {
        return false;
    }
    bool is_there = !gpu_wire_link_is_settled(device->link);
    int64_t begun_ns = is_there ? gpu_blocked_begin(device) : 0;
    while (device->state == GPU_DEVICE_OPEN && !gpu_wire_link_is_settled(device->link) &&
           !gpu_device_is_interrupted(device) && !gpu_time_is_up(device) &&
           gpu_clock_ns() - recovery->late_ns < OUTWAIT_LATE_NS) {
        gpu_device_nap(device, SETTLE_LOOK_NS);
        (void)gpu_device_poll(device);
    }
    if (is_there) {
        gpu_blocked_end(device, "memory of the device's former process", begun_ns);
    }
    bool has_ended = device->state != GPU_DEVICE_OPEN || gpu_wire_link_is_settled(device->link);
    recovery->has_former = !has_ended;
    if (!has_ended && gpu_time_is_up(device)) {
        gpu_error_finish(error);
        (void)gpu_time_is_told(device, "waiting for memory of the device's former process", error);
        *status = GPULUA_TIMEOUT;
    }
    return has_ended;
}

static void note_loss(struct gpu_device *device) {
    gpu_error_finish(&device->recovery.last);
    gpu_error_copy(&device->recovery.last, &device->lost);
    gpu_news_add(device, &device->lost);
}

/* "; core dump in FILE", where the process that is gone has left one. */
static void find_coredump(const struct gpu_device *device, char *text, size_t text_bytes) {
    int length = device->coredump_base && device->link
                     ? snprintf(text, text_bytes, "; core dump in %s-%d.core",
                                device->coredump_base, gpu_wire_link_pid(device->link))
                     : -1;
    bool is_there = length > 0 && (size_t)length < text_bytes &&
                    access(text + strlen("; core dump in "), F_OK) == 0;
    text[is_there ? length : 0] = '\0';
}

void gpu_device_lose(struct gpu_device *device, int32_t driver_code, const char *text) {
    if (device->state != GPU_DEVICE_OPEN && device->state != GPU_DEVICE_RETURNING) {
        return;
    }
    bool was_returning = device->state == GPU_DEVICE_RETURNING;
    device->recovery.has_late_writers = false;
    device->recovery.former_bytes = device->stats.bytes_reserved;
    char dump[640];
    find_coredump(device, dump, sizeof dump);
    device->recovery.was_returning = was_returning;
    device->state = GPU_DEVICE_LOST;
    device->backlog_bytes = device->backlog_sent_bytes = 0;
    gpu_error_finish(&device->lost);
    gpu_error_set(
        &device->lost, GPULUA_DEVICE_LOST, "device %s is lost: %s%s%s", device->title, text, dump,
        device->isolation == GPULUA_ISOLATE_PROCESS
            ? ""
            : "; only one in a process of its own (isolate = \"process\") comes up again");
    device->lost.driver_code = driver_code;
    if (!was_returning) {
        gpu_failure_release(device->recovery.loss);
        device->recovery.loss = NULL;
        device->stats.losses++;
        note_loss(device);
    }
}

void gpu_device_observe_loss(struct gpu_device *device) {
    GPU_ENTER_WHOLE(device);
    if (device->recovery.loss) {
        gpu_failures_observe_of(device, device->recovery.loss);
    }
}

void gpu_device_observe_losses(struct gpu_device *device) {
    GPU_ENTER_WHOLE(device);
    gpu_failures_observe_of(device, NULL);
}

static void end_op(struct gpu_device *device, const struct gpu_error *why) {
    struct gpu_op *op = device->recovery.op;
    device->recovery.op = NULL;
    if (!op) {
        return;
    }
    if (why) {
        op->failure = gpu_failure_create();
        if (op->failure) {
            gpu_error_copy(&op->failure->error, why);
            op->failure->is_observed = true; /* that the device was lost is told already */
        } else {
            op->failure = gpu_failure_without_memory(device);
        }
    }
    op->is_replied = true;
    device->stats.ops_in_flight++; /* where it was never counted */
    gpu_op_end(op);
}

void gpu_recovery_finish(struct gpu_device *device) {
    struct gpu_error why = {0};
    gpu_error_set(&why, GPULUA_CLOSED,
                  device->is_inherited ? "device %s is of the process that has forked this one"
                                       : "device %s was closed before it had come up again",
                  device->title);
    end_op(device, &why);
    gpu_error_finish(&why);
}

void gpu_recovery_free(struct gpu_device *device) {
    gpu_error_finish(&device->recovery.last);
    gpu_failure_release(device->recovery.loss);
    gpu_news_finish(device);
    free(device->recovery.begun_ns);
    free(device->recovery.open);
    device->recovery = (struct gpu_recovery){0};
}

/* ---- requests of the restoration ---- */

struct gpu_answer {
    void (*take)(struct gpu_device *device, void *user, const struct wire_reply *reply);
    void *user;
    bool is_vital;
};

static void on_answer(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    struct gpu_device *device = op->device;
    struct gpu_recovery *recovery = &device->recovery;
    struct gpu_answer *answer = user;
    recovery->pending_count--;
    if (op->failure) {
        gpu_failure_observe(device, op->failure);
    }
    /* No reply: it is lost once more, which says why, or there was no memory for one. */
    bool is_untold = !reply && op->failure && device->state == GPU_DEVICE_RETURNING;
    bool has_failed = is_untold || (reply && reply->status != GPULUA_OK);
    if (has_failed && answer->is_vital && !recovery->is_failed) {
        recovery->is_failed = true;
        gpu_error_finish(&device->lost);
        gpu_error_set(&device->lost, GPULUA_DEVICE_LOST, "device %s did not come up again: %s: %s",
                      device->title, op->label,
                      reply ? gpu_wire_reply_text(reply) : op->failure->error.message);
        device->lost.driver_code = reply ? reply->driver_code : 0;
    }
    if (answer->take) {
        answer->take(device, answer->user, reply && reply->status == GPULUA_OK ? reply : NULL);
    }
    free(answer);
}

/* `record` NULL: the executor has it already, under the number `seq`. */
static void request(struct gpu_device *device, struct wire_record *record, uint64_t seq,
                    const char *label, const struct gpu_answer *wanted) {
    struct gpu_error error = {0};
    struct gpu_op *op = NULL;
    struct gpu_answer *answer = malloc(sizeof *answer);
    gpulua_status status = GPULUA_OUT_OF_MEMORY;
    device->recovery.pending_count++;
    if (answer) {
        *answer = *wanted;
        if (record) {
            status = gpu_request_unchecked(device, record, label, on_answer, answer, &op, &error);
        } else if (gpu_request_expect(device, seq, label, on_answer, answer)) {
            status = GPULUA_OK;
        }
    }
    gpu_op_release(op);
    gpu_error_finish(&error);
    if (status != GPULUA_OUT_OF_MEMORY) { /* where the link is dead, the next poll ends it */
        return;
    }
    free(answer);
    device->recovery.pending_count--;
    device->recovery.is_failed |= wanted->is_vital;
    if (wanted->take) {
        wanted->take(device, wanted->user, NULL);
    }
}

void gpu_recovery_request(struct gpu_device *device, struct wire_record *record, const char *label,
                          bool is_vital,
                          void (*take)(struct gpu_device *device, void *user,
                                       const struct wire_reply *reply),
                          void *user) {
    request(device, record, 0, label,
            &(struct gpu_answer){.take = take, .user = user, .is_vital = is_vital});
}

/* ---- what goes ---- */

static bool survives(const struct gpu_block *block) {
    if (block->is_host) {
        return true;
    }
    if (block->is_external) { /* order alone, or in memory of a graph's; a variable is neither */
        return !block->module;
    }
    return !block->is_foreign &&
           (block->is_scratch || block->is_lone || block->keeping != GPU_KEEP_NOTHING);
}

/* All that was pending has failed. */
static void let_go(struct gpu_device *device) {
    gpu_recorders_lose(device); /* before what they hold goes */
    for (uint32_t slot = 0; slot < WIRE_STREAMS_MAX; slot++) {
        struct gpu_stream *stream = device->streams[slot];
        if (stream) {
            stream->wanted = 0;
        }
    }
    struct gpu_recovery *recovery = &device->recovery;
    recovery->unbuilt = (struct gpu_point){.slot = 0, .seq = ++device->slot_seq[0]};
    memcpy(device->done, device->slot_seq, sizeof device->done);
    for (struct gpu_graph *graph = device->graphs; graph; graph = graph->next) {
        gpu_graph_unsend(graph);
    }
    for (struct gpu_block *block = device->blocks, *next; block; block = next) {
        next = block->next;
        if (!survives(block)) {
            gpu_block_free(block);
        }
    }
    (void)gpu_device_reap(device);
    gpu_memories_lose(device);
}

/* ---- what comes back ---- */

static void on_memory(struct gpu_device *device, void *user, const struct wire_reply *reply) {
    (void)user;
    struct wire_memory_facts facts = {0};
    if (reply && reply->body_bytes >= sizeof facts) {
        memcpy(&facts, gpu_wire_reply_body(reply), sizeof facts);
    }
    device->recovery.free_bytes = facts.bytes_free;
}

/* What works on memory, before there is any: the former life may still hold all of it. */
static void restore_objects(struct gpu_device *device) {
    struct gpu_error ignored = {0};
    device->recovery.is_restoring = true;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        if (device->streams[slot] && gpu_stream_send(device->streams[slot], &ignored)) {
            gpu_error_finish(&ignored); /* the link is dead: that is noticed */
            return;
        }
    }
    for (struct gpu_module *module = device->modules; module; module = module->next) {
        gpu_module_restore(module);
    }
    struct wire_record ask = {.length_bytes = sizeof ask, .opcode = WIRE_OP_MEMORY_INFO};
    gpu_recovery_request(device, &ask, "memory", false, on_memory, NULL);
}

static void restore_memory(struct gpu_device *device) {
    device->recovery.has_memory = true;
    gpu_memories_restore(device);
    for (struct gpu_block *block = device->blocks; block; block = block->next) {
        gpu_block_restore(block);
    }
    for (struct gpu_module *module = device->modules; module; module = module->next) {
        if (module->is_missing) {
            gpu_module_restore(module);
        }
    }
}

/* What lies in kept blocks. Ordinary work, that whatever uses them comes behind. False: the device
 * is lost once more, and the next life sees to the rest. */
static bool restore_content(struct gpu_device *device, struct gpu_block *block) {
    struct gpu_stream *stream;
    struct gpu_op *op;
    struct gpu_error error = {0};
    struct gpu_ref to = {.block = block, .byte_count = block->byte_count};
    struct gpu_ref from = {.block = block->copy, .byte_count = block->byte_count};
    if (gpu_device_task_stream(device, 0, &stream, &error) == GPULUA_OK &&
        gpu_work_copy(&(struct gpu_submit){.stream = stream, .label = "restore"}, &to, &from, &op,
                      &error) == GPULUA_OK) {
        op->is_repair = true;
        gpu_op_release(op);
        return true;
    }
    if (device->state != GPU_DEVICE_OPEN) {
        gpu_error_finish(&error);
        return false;
    }
    gpu_failure_keep(device, NULL, &error);
    block->epoch--; /* it stays stale */
    return true;
}

/* Nobody reads it before it is written: what wrote it last has failed. */
static void mark_unbuilt(struct gpu_device *device, struct gpu_block *block,
                         struct gpu_failure **unbuilt) {
    struct gpu_use use = {.block = block, .byte_end = block->byte_count, .access = GPU_WRITE};
    if (!*unbuilt && (*unbuilt = gpu_failure_create())) {
        gpu_error_set(&(*unbuilt)->error, GPULUA_DEVICE_LOST,
                      "it was lost with device %s, and has not been built anew", device->title);
        (*unbuilt)->error.op.is_known = true; /* on no stream: nothing was launched */
        snprintf((*unbuilt)->error.op.label, sizeof(*unbuilt)->error.op.label, "rebuild");
        (*unbuilt)->is_observed = true;
        gpu_failed_add(device, device->recovery.unbuilt, *unbuilt);
    }
    if (*unbuilt && gpu_history_cut(&use)) {
        gpu_history_commit(&use, device->recovery.unbuilt);
    } else {
        block->epoch--; /* no memory to say so: it stays stale */
    }
}

static bool has_content(const struct gpu_block *block) {
    return !block->is_external && block->keeping == GPU_KEEP_CONTENT && block->copy;
}

static void restore_contents(struct gpu_device *device) {
    struct gpu_failure *unbuilt = NULL;
    uint32_t count = 0;
    for (struct gpu_block *block = device->blocks; block; block = block->next) {
        count += has_content(block);
        if (!block->is_external && block->keeping == GPU_KEEP_PLACE) {
            mark_unbuilt(device, block, &unbuilt);
        }
    }
    gpu_failure_release(unbuilt);
    /* Much in flight makes the rest wait, and blocks may come and go meanwhile. */
    struct gpu_block **kept = count > 0 ? calloc(count, sizeof(struct gpu_block *)) : NULL;
    uint32_t kept_count = 0;
    for (struct gpu_block *block = device->blocks; block && kept_count < count;
         block = block->next) {
        if (has_content(block) && kept) {
            kept[kept_count++] = gpu_block_retain(block);
        } else if (has_content(block)) {
            block->epoch--; /* no memory to keep it for so long: it stays stale */
        }
    }
    bool is_open = true;
    for (uint32_t i = 0; i < kept_count; i++) {
        is_open = is_open && (kept[i]->is_freed || restore_content(device, kept[i]));
        gpu_block_release(kept[i]);
    }
    free(kept);
}

static void complete(struct gpu_device *device) {
    gpu_repeat_forget(device);
    device->state = GPU_DEVICE_OPEN;
    device->epoch++;
    device->interludes++;
    device->block_ends++;
    device->stats.returns++;
    gpu_news_add(device, NULL);
    device->recovery.failed_count = 0;
    device->recovery.next_ns = 0;
    gpu_error_finish(&device->lost);
    device->lost = (struct gpu_error){0};
    const struct gpu_observer *observer = device->observer;
    for (struct gpu_block *block = device->blocks; block; block = block->next) {
        if (!block->is_lone) { /* to all but its graph it is gone */
            block->epoch = device->epoch;
        }
        if (block->shadow) { /* nothing of what was done before races with what comes */
            observer->block_gone(observer->user, block->shadow);
            block->shadow = NULL;
        }
    }
    device->observer = NULL; /* this is nobody's work */
    restore_contents(device);
    device->observer = observer;
    if (device->state == GPU_DEVICE_OPEN) {
        end_op(device, NULL);
        gpu_recovery_keep_spare(device);
    }
}

/* ---- the way there ---- */

static void on_open(struct gpu_device *device, void *user, const struct wire_reply *reply) {
    (void)user;
    device->recovery.is_open = reply != NULL; /* it says of the device what it said before */
}

static int64_t *oldest_turn(struct gpu_recovery *recovery) {
    return &recovery->begun_ns[recovery->begun_count % recovery->restarts_max];
}

/* May it, once more? */
static bool has_turn(struct gpu_recovery *recovery) {
    return recovery->begun_count < recovery->restarts_max ||
           gpu_clock_ns() - *oldest_turn(recovery) >= recovery->window_ns;
}

/* An attempt in which no process could be started, as where there are no descriptors left, is none
 * of those that are counted: it is made again for as long as they are. False: it was. */
static bool note_turn(struct gpu_recovery *recovery, bool has_begun) {
    int64_t now_ns = gpu_clock_ns();
    if (has_begun) {
        *oldest_turn(recovery) = now_ns;
        recovery->begun_count++;
        recovery->idle_since_ns = 0;
        return true;
    }
    recovery->idle_since_ns = recovery->idle_since_ns ? recovery->idle_since_ns : now_ns;
    return now_ns - recovery->idle_since_ns < recovery->window_ns;
}

static void give_up(struct gpu_device *device) {
    struct gpu_recovery *recovery = &device->recovery;
    struct gpu_error last = device->lost;
    double window_s = (double)recovery->window_ns / 1e9;
    device->lost = (struct gpu_error){0};
    if (recovery->idle_since_ns) {
        gpu_error_set(&device->lost, GPULUA_UNRECOVERABLE,
                      "device %s could not be restarted for %.6g s: %s", device->title, window_s,
                      last.message);
    } else {
        gpu_error_set(&device->lost, GPULUA_UNRECOVERABLE,
                      "device %s was restarted %u times within %.6g s, and is lost again: %s",
                      device->title, recovery->restarts_max, window_s, last.message);
    }
    device->lost.driver_code = last.driver_code;
    gpu_error_finish(&last);
    recovery->is_given_up = true;
    note_loss(device);
    gpu_news_add_failure(device);
    end_op(device, &device->lost);
}

/* This attempt has led nowhere: what stands in the way may pass. */
static void pause_first(struct gpu_recovery *recovery) {
    uint32_t doublings =
        recovery->failed_count < PAUSE_DOUBLINGS_MAX ? recovery->failed_count : PAUSE_DOUBLINGS_MAX;
    recovery->next_ns = gpu_clock_ns() + (PAUSE_NS << doublings);
    recovery->failed_count++;
}

/* The device is lost, and nothing is pending. */
static void begin(struct gpu_device *device) {
    struct gpu_recovery *recovery = &device->recovery;
    struct wire_error failed = {0};
    let_go(device);
    if (!has_turn(recovery)) {
        give_up(device);
        return;
    }
    recovery->is_open = recovery->is_restoring = recovery->has_memory = recovery->is_failed = false;
    device->failures_seen = device->failures_forgotten = 0;
    device->backlog_bytes = device->backlog_sent_bytes = 0; /* of a life that did not begin */
    struct wire_restart restart;
    uint64_t events_made =
        atomic_load_explicit(&device->link->page->events_made, memory_order_relaxed);
    note_former(device);
    gpulua_status status = gpu_wire_link_restart(device->link, device->done, &restart, &failed);
    /* Interrupted: that says nothing of the device. */
    bool has_hope = status == GPULUA_INTERRUPTED || note_turn(recovery, restart.has_begun);
    if (status) {
        gpu_error_finish(&device->lost);
        gpu_error_set(&device->lost, GPULUA_DEVICE_LOST, "device %s did not come up again: %s",
                      device->title, failed.message);
        pause_first(recovery);
        if (!has_hope) {
            give_up(device);
        }
        return;
    }
    device->stats.events_created += events_made;
    if (!restart.is_spare && failed.status != GPULUA_OK && device->on_log) {
        char line[384];
        snprintf(line, sizeof line,
                 "the spare of device %s could not take over, another process does: %.180s",
                 device->title, failed.message);
        device->on_log(device->log_user, line);
    }
    device->state = GPU_DEVICE_RETURNING;
    recovery->has_former = true;
    recovery->open->u.open.after_ns = 0;
    request(device, restart.is_spare ? NULL : recovery->open, recovery->spare_seq, "open",
            &(struct gpu_answer){.take = on_open, .is_vital = true});
}

void gpu_recovery_keep_spare(struct gpu_device *device) {
    struct gpu_recovery *recovery = &device->recovery;
    struct wire_error failed = {0};
    if (!recovery->has_spare || !gpu_recovery_is_possible(device)) {
        return;
    }
    recovery->spare_seq = ++device->request_number_next;
    recovery->open->seq = recovery->spare_seq;
    recovery->open->u.open.after_ns = (uint64_t)(gpu_clock_ns() + SPARE_AFTER_NS);
    if (gpu_wire_link_keep_spare(device->link, recovery->open, &failed) && device->on_log) {
        char line[384];
        snprintf(line, sizeof line, "device %s has no spare: %.200s", device->title,
                 failed.message);
        device->on_log(device->log_user, line);
    }
    recovery->told_arena_bytes = 0;
    if (device->pinned) {
        gpu_memory_pinned_tell(device->pinned);
    }
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        if (device->streams[slot]) {
            gpu_stream_tell(device->streams[slot]);
        }
    }
    for (struct gpu_module *module = device->modules; module; module = module->next) {
        gpu_module_tell(module);
    }
}

/* Not in check mode: what that knows of modules it learns when they are loaded. */
bool gpu_recovery_tell(struct gpu_device *device, struct wire_record *record,
                       struct gpu_told *told) {
    record->flags |= WIRE_FLAG_AHEAD;
    gpu_recovery_drop_unread(device, false);
    if (!device->recovery.has_spare || device->is_checked || !device->link ||
        !gpu_wire_link_tell_spare(device->link, record, &told->position)) {
        return false;
    }
    told->spare_seq = device->recovery.spare_seq;
    return true;
}

void gpu_recovery_tell_arena(struct gpu_device *device, uint64_t byte_count) {
    struct gpu_recovery *recovery = &device->recovery;
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_ARENA_REGISTER};
    struct gpu_told told;
    record.u.arena.byte_offset = recovery->told_arena_bytes;
    record.u.arena.bytes = byte_count - recovery->told_arena_bytes;
    if (record.u.arena.bytes > 0 && gpu_recovery_tell(device, &record, &told)) {
        recovery->told_arena_bytes = byte_count;
    }
}

bool gpu_recovery_is_told(const struct gpu_device *device, const struct gpu_told *told) {
    return told->spare_seq != 0 && told->spare_seq == device->recovery.spare_seq;
}

struct gpu_unread {
    struct gpu_unread *next;
    struct gpu_block *text; /* retained */
    struct gpu_told told;
};

void gpu_recovery_leave_unread(struct gpu_device *device, struct gpu_block *text,
                               const struct gpu_told *told) {
    bool is_read = !text || !device->link || !gpu_recovery_is_told(device, told) ||
                   gpu_wire_link_has_taken(device->link, told->position);
    struct gpu_unread *unread = is_read ? NULL : malloc(sizeof *unread);
    if (unread) {
        *unread = (struct gpu_unread){device->recovery.unread, text, *told};
        device->recovery.unread = unread;
    } else if (is_read) {
        gpu_block_release(text);
    } /* else it is kept for good: there is no memory to know until when */
}

void gpu_recovery_drop_unread(struct gpu_device *device, bool all) {
    struct gpu_unread **link = &device->recovery.unread;
    while (*link) {
        struct gpu_unread *unread = *link;
        if (all || !device->link || !gpu_recovery_is_told(device, &unread->told) ||
            gpu_wire_link_has_taken(device->link, unread->told.position)) {
            *link = unread->next;
            gpu_block_release(unread->text);
            free(unread);
        } else {
            link = &unread->next;
        }
    }
}

static int64_t next_ns(const struct gpu_device *device) {
    return gpu_wire_link_is_settled(device->link) ? device->recovery.next_ns
                                                  : gpu_clock_ns() + SETTLE_LOOK_NS;
}

int64_t gpu_recovery_alarm_ns(const struct gpu_device *device) {
    if (device->state == GPU_DEVICE_LOST && gpu_recovery_is_possible(device)) {
        return next_ns(device);
    }
    return device->state == GPU_DEVICE_RETURNING && !device->recovery.is_former_late &&
                   waits_for_former(device)
               ? device->recovery.late_ns
               : INT64_MAX;
}

void gpu_recovery_step(struct gpu_device *device) {
    struct gpu_recovery *recovery = &device->recovery;
    if (recovery->is_stepping) {
        return;
    }
    recovery->is_stepping = true;
    if (device->state == GPU_DEVICE_LOST && device->link && !device->is_closing) {
        gpu_wire_link_abandon(device->link); /* whoever was lost is not to work on meanwhile */
    }
    while (device->state == GPU_DEVICE_LOST && device->stats.ops_in_flight == 0 &&
           gpu_recovery_is_possible(device) && gpu_clock_ns() >= next_ns(device)) {
        begin(device); /* so often at most */
    }
    if (device->state == GPU_DEVICE_RETURNING) {
        if (recovery->is_failed) {
            device->state = GPU_DEVICE_LOST;
            recovery->was_returning = true;
            pause_first(recovery);
        } else if (recovery->is_open && !recovery->is_restoring) {
            restore_objects(device);
        }
        if (recovery->is_restoring && !recovery->has_memory && !recovery->is_failed &&
            recovery->pending_count == 0 && is_out_of_the_way(device)) {
            restore_memory(device);
        }
        if (device->state == GPU_DEVICE_RETURNING && recovery->has_memory &&
            recovery->pending_count == 0 && !recovery->is_failed) {
            complete(device);
        }
    }
    tell_of_former(device);
    recovery->is_stepping = false;
}

struct gpu_op *gpu_device_return(struct gpu_device *device) {
    GPU_ENTER(device);
    if (!device->share && device->link && !device->link->ops->arm(device->link)) {
        device->link->ops->disarm(device->link); /* it has looked whether the executor lives */
    }
    (void)gpu_device_poll(device);
    struct gpu_recovery *recovery = &device->recovery;
    bool is_on_its_way = device->state == GPU_DEVICE_RETURNING ||
                         (device->state == GPU_DEVICE_LOST && gpu_recovery_is_possible(device));
    if (is_on_its_way && !recovery->op) {
        recovery->op = gpu_op_create(device, NULL, "restart", (struct gpu_site){0});
        if (recovery->op) {
            recovery->op->seat = NULL; /* anybody may wait for it */
        }
    }
    return is_on_its_way && recovery->op ? gpu_op_retain(recovery->op) : NULL;
}

bool gpu_device_is_returning(const struct gpu_device *device) {
    GPU_ENTER(device);
    return device->state == GPU_DEVICE_RETURNING ||
           (device->state == GPU_DEVICE_LOST && gpu_recovery_is_possible(device));
}
