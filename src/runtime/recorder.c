/* Recorders for work that a host enqueues itself (see recorder.h). */
#include "runtime/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/native_capture.h"
#include "runtime/state.h"
#include "runtime/uses.h"
#include "runtime/work.h"

enum recorder_state { RECORDING, HOLDING, ENDED };

struct gpu_recorder {
    struct gpu_stream *stream; /* retained */
    enum gpu_recorder_mode mode;
    enum recorder_state state;
    uint32_t count; /* uses, before they are joined */
    struct gpu_error
        rejected; /* code 0: none. While RECORDING raised by preflight, then by commit */
    bool is_rejected;
    struct gpu_recorder *next;   /* in the device's list, while HOLDING */
    bool was_lost;               /* with the device, while HOLDING */
    const struct gpu_seat *seat; /* of a shared device: who holds it. Compared alone */
    struct gpu_deferred abandoned;
    uint32_t held_count;          /* of the uses: their blocks' memory stays, while HOLDING */
    struct gpu_envelope envelope; /* its uses; each block retained */
};

gpulua_status gpu_recorder_create(const struct gpu_submit *submit, enum gpu_recorder_mode mode,
                                  struct gpu_recorder **recorder, struct gpu_error *error) {
    GPU_ENTER(submit->stream->device);
    struct gpu_recorder *made = calloc(1, sizeof *made);
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a recorder");
    }
    gpulua_status status = gpu_envelope_begin(&made->envelope, submit, "recorder", error);
    if (status) {
        free(made);
        return status;
    }
    made->stream = gpu_stream_retain(submit->stream);
    made->mode = mode;
    *recorder = made;
    return GPULUA_OK;
}

/* ---- uses ---- */

/* The first one counts. */
static void reject(struct gpu_recorder *recorder, gpulua_status code, const char *what,
                   const char *cause) {
    if (!recorder->is_rejected) {
        recorder->is_rejected = true;
        gpu_error_set(&recorder->rejected, code, "%s: %s", what, cause);
    }
}

static bool is_accepted(struct gpu_recorder *recorder, const struct gpu_ref *ref, uint8_t access,
                        const char *what) {
    bool is_strict = recorder->mode == GPU_RECORDER_STRICT;
    if (!ref) {
        if (is_strict) {
            reject(recorder, GPULUA_STREAM_MISUSE, what,
                   "untracked: not a buffer, so nobody knows what else uses it");
        }
        return false;
    }
    if (ref->block && !gpu_block_is_trackable(ref->block) && !ref->block->is_lone) {
        if (is_strict) {
            reject(recorder, GPULUA_STREAM_MISUSE, what,
                   gpu_block_is_foreign(ref->block)
                       ? "external memory that was given without an ordering"
                       : "its memory resource cannot track what uses it");
        }
        return false;
    }
    struct gpu_error error = {0};
    if (gpu_ref_check(ref, recorder->stream->device, what, &error)) {
        if (!recorder->is_rejected) {
            recorder->is_rejected = true;
            recorder->rejected = error;
        } else {
            gpu_error_finish(&error);
        }
        return false;
    }
    if (ref->block->is_lone) { /* an ordinary one from here on */
        (void)gpu_temporary_use(ref->block, NULL, what, &error);
    }
    if (gpu_block_is_read_only(ref->block) && (access & GPU_WRITE)) {
        reject(recorder, GPULUA_INVALID_ARGUMENT, what,
               "external memory that its owner gave to be read only");
        return false;
    }
    return true;
}

void gpu_recorder_use(struct gpu_recorder *recorder, const struct gpu_ref *ref, uint8_t access,
                      const char *what) {
    GPU_ENTER(recorder->stream->device);
    struct gpu_envelope *envelope = &recorder->envelope;
    if (recorder->state == ENDED) {
        return;
    }
    if (recorder->state == HOLDING) {
        reject(recorder, GPULUA_STREAM_MISUSE, what,
               "used after preflight: the stream has not waited for it");
    }
    recorder->count++;
    if (!is_accepted(recorder, ref, access, what)) {
        return;
    }
    if (envelope->use_count + 2 > GPU_USES_MAX) {
        char cause[80];
        snprintf(cause, sizeof cause, "a recorder takes at most %u ranges", GPU_USES_MAX - 1);
        reject(recorder, GPULUA_CAPACITY, what, cause);
        return;
    }
    uint32_t before = envelope->use_count;
    gpu_envelope_use_ref(envelope, ref, access);
    for (uint32_t i = before; i < envelope->use_count; i++) {
        gpu_block_retain(envelope->uses[i].block);
    }
}

struct gpu_device *gpu_recorder_device(const struct gpu_recorder *recorder) {
    return recorder->stream->device;
}

bool gpu_recorder_has_ended(const struct gpu_recorder *recorder) {
    GPU_ENTER(recorder->stream->device);
    return recorder->state == ENDED;
}

uint32_t gpu_recorder_count(const struct gpu_recorder *recorder) {
    return recorder->count;
}

static void drop_uses(struct gpu_recorder *recorder) {
    for (uint32_t i = 0; i < recorder->envelope.use_count; i++) {
        struct gpu_block *block = recorder->envelope.uses[i].block;
        if (i < recorder->held_count) {
            gpu_block_export_end(block);
        } else {
            gpu_block_release(block);
        }
    }
    recorder->envelope.use_count = recorder->held_count = 0;
}

/* ---- holding ---- */

static bool conflicts(const struct gpu_use *a, const struct gpu_use *b) {
    return a->block == b->block && a->byte_begin < b->byte_end && b->byte_begin < a->byte_end &&
           ((a->access | b->access) & GPU_WRITE);
}

/* Whether it is worth waiting for. Who holds something does not wait for others that do: two of
 * them would wait for each other. */
static bool will_end(const struct gpu_recorder *held) {
    struct gpu_device *device = held->stream->device;
    const struct gpu_seat *seat = gpu_seat_of(device);
    if (!device->share || held->seat == seat) {
        return false;
    }
    for (const struct gpu_recorder *own = device->holding; own; own = own->next) {
        if (own->seat == seat) {
            return false;
        }
    }
    return true;
}

/* Are those its uses, or some of them? */
static bool is_of(const struct gpu_recorder *recorder, const struct gpu_envelope *envelope) {
    uintptr_t first = (uintptr_t)recorder->envelope.room, at = (uintptr_t)envelope->uses;
    return at >= first && at < first + sizeof recorder->envelope.room;
}

gpulua_status gpu_recorder_check(const struct gpu_envelope *envelope, struct gpu_error *error) {
    for (const struct gpu_recorder *own = envelope->stream->device->holding; own; own = own->next) {
        if (is_of(own, envelope)) {
            return GPULUA_OK; /* at its commit: the work may be on the stream already */
        }
    }
    for (const struct gpu_recorder *held = envelope->stream->device->holding; held;
         held = held->next) {
        if (held->stream == envelope->stream) {
            continue; /* the stream orders them */
        }
        for (uint32_t i = 0; i < held->envelope.use_count; i++) {
            for (uint32_t k = 0; k < envelope->use_count; k++) {
                const struct gpu_use *use = &held->envelope.uses[i];
                if (conflicts(use, &envelope->uses[k])) {
                    const char *label = use->block->label;
                    if (will_end(held)) {
                        held->stream->device->share->is_blocked = true;
                    }
                    return gpu_error_set(
                        error, GPULUA_STREAM_MISUSE,
                        "'%s': buffer %s%s%s(allocation %llu) is frozen: a recorder on stream %llu "
                        "is between preflight and commit",
                        envelope->label, label[0] ? "'" : "", label, label[0] ? "' " : "",
                        (unsigned long long)use->block->number,
                        (unsigned long long)held->stream->number);
                }
            }
        }
    }
    return GPULUA_OK;
}

/* Memory that is freed meanwhile is the host's work's until that is noted. */
static void hold(struct gpu_recorder *recorder) {
    struct gpu_device *device = recorder->stream->device;
    for (uint32_t i = 0; i < recorder->envelope.use_count; i++) {
        recorder->envelope.uses[i].block->export_count++;
    }
    recorder->held_count = recorder->envelope.use_count;
    recorder->state = HOLDING;
    recorder->seat = gpu_seat_of(device);
    recorder->next = device->holding;
    device->holding = recorder;
}

static void end(struct gpu_recorder *recorder) {
    struct gpu_device *device = recorder->stream->device;
    for (struct gpu_recorder **at = &device->holding; *at; at = &(*at)->next) {
        if (*at == recorder) {
            *at = recorder->next;
            break;
        }
    }
    recorder->state = ENDED;
    if (device->share) { /* nobody is refused for it any more */
        device->share->is_blocked = false;
        gpu_share_tell(device);
    }
    drop_uses(recorder);
    gpu_error_finish(&recorder->rejected);
    recorder->is_rejected = false;
}

static gpulua_status raise_rejected(struct gpu_recorder *recorder, struct gpu_error *error) {
    gpu_error_copy(error, &recorder->rejected);
    return error->code;
}

static gpulua_status check_open(const struct gpu_recorder *recorder, const char *call,
                                struct gpu_error *error) {
    if (recorder->state != ENDED) {
        return GPULUA_OK;
    }
    if (recorder->was_lost) {
        return gpu_error_set(error, GPULUA_DEVICE_LOST,
                             "%s: the device was lost between preflight and commit", call);
    }
    return gpu_error_set(error, GPULUA_CLOSED, "%s of a recorder that has ended", call);
}

/* ---- preflight and commit ---- */

/* What was accepted when it was noted may be gone by now. */
static gpulua_status check_uses(const struct gpu_envelope *envelope, struct gpu_error *error) {
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < envelope->use_count && status == GPULUA_OK; i++) {
        const struct gpu_use *use = &envelope->uses[i];
        const struct gpu_ref ref = {.block = use->block,
                                    .byte_offset = use->byte_begin,
                                    .byte_count = use->byte_end - use->byte_begin};
        status = gpu_ref_check(&ref, envelope->stream->device, "what the recorder uses", error);
    }
    return status;
}

/* A mark with the waits of the uses. */
static gpulua_status wait_on_stream(struct gpu_recorder *recorder, struct gpu_error *error) {
    struct gpu_envelope *envelope = &recorder->envelope;
    struct wire_record *record;
    envelope->interludes = recorder->stream->device->interludes;
    gpulua_status status = check_uses(envelope, error);
    if (status == GPULUA_OK) {
        status = gpu_recorder_check(envelope, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_envelope_record(envelope, WIRE_OP_MARK, &record, error);
    }
    if (status) {
        return status;
    }
    if (envelope->waits.failure) {
        struct gpu_error *cause = &envelope->waits.failure->error;
        gpu_failure_observe(recorder->stream->device, envelope->waits.failure);
        gpu_error_set(error, GPULUA_DEPENDENCY_FAILED,
                      "what the recorder reads is undefined: '%s' failed: %s", cause->op.label,
                      cause->message);
        error->root = cause->op;
        return GPULUA_DEPENDENCY_FAILED;
    }
    if (envelope->waits.count == 0) {
        return GPULUA_OK;
    }
    uint32_t use_count = envelope->use_count;
    envelope->use_count = 0; /* the uses come behind the host's work */
    status = gpu_envelope_submit(envelope, record, 0, NULL, error);
    envelope->use_count = use_count;
    return status;
}

gpulua_status gpu_recorder_preflight(struct gpu_recorder *recorder, struct gpu_error *error) {
    GPU_ENTER(recorder->stream->device);
    gpulua_status status = check_open(recorder, "preflight", error);
    if (status == GPULUA_OK && recorder->state == HOLDING) {
        status = gpu_error_set(error, GPULUA_STREAM_MISUSE, "a second preflight of a recorder");
    }
    if (status == GPULUA_OK && recorder->is_rejected) {
        status = raise_rejected(recorder, error);
    }
    if (status) {
        return status;
    }
    do {
        status = gpu_device_check(recorder->stream->device, error);
        if (status == GPULUA_OK) {
            status = gpu_stream_check_uncaptured(recorder->stream, error);
        }
        if (status == GPULUA_OK) {
            status = wait_on_stream(recorder, error);
        }
    } while (status && gpu_share_wait(recorder->stream->device, &status, error));
    if (status == GPULUA_OK) {
        hold(recorder);
    }
    return status;
}

/* Work may be on the stream already. The envelope is the recorder's, or has some of its uses. */
static gpulua_status note_uses(const struct gpu_recorder *recorder, struct gpu_envelope *envelope,
                               struct gpu_op **op, struct gpu_error *error) {
    struct gpu_device *device = recorder->stream->device;
    struct wire_record *record;
    gpulua_status status;
    do {
        envelope->interludes = device->interludes;
        status = check_open(recorder, "commit", error); /* a loss ends it, also in between */
        if (status == GPULUA_OK) {
            status = gpu_device_check_open(device, error); /* else nothing runs there any more */
        }
        if (status == GPULUA_OK) {
            status = gpu_envelope_record(envelope, WIRE_OP_MARK, &record, error);
        }
    } while (status && gpu_share_wait(device, &status, error));
    return status ? status : gpu_envelope_submit(envelope, record, 0, op, error);
}

/* Of how many operations at most it may read what they wrote. */
static uint32_t writers_max(const struct gpu_use *use) {
    const struct gpu_history *history = &use->block->history;
    bool is_whole =
        history->capacity == 0 && use->byte_begin == 0 && use->byte_end == history->first.byte_end;
    return is_whole ? 1 : GPU_SPANS_MAX;
}

/* Of one that nobody commits any more, whatever the host does with the stream, for nothing else
 * says what its work uses: only as many uses at a time as one record has room for, so that nothing
 * is waited for (make_room). In a poll, where this may be, that would have no end, and elsewhere
 * one could end the recorder meanwhile. */
static void note_abandoned(struct gpu_recorder *recorder) {
    struct gpu_envelope part = recorder->envelope;
    uint32_t left = part.use_count;
    gpulua_status status = GPULUA_OK;
    recorder->stream->device->stats.recorders_abandoned++;
    part.uses = recorder->envelope.room;
    part.is_done_already = true;
    do {
        struct gpu_error ignored = {0};
        uint32_t room = WIRE_WAITS_MAX - 1u, needed;
        part.use_count = 0;
        while (part.use_count < left &&
               (needed = writers_max(part.uses + part.use_count)) <= room) {
            room -= needed;
            part.use_count++;
        }
        status = note_uses(recorder, &part, NULL, &ignored);
        if (status) {
            gpu_error_finish(&ignored);
        } else {
            gpu_stream_note_unchecked(recorder->stream);
        }
        part.uses += part.use_count;
        left -= part.use_count;
    } while (left > 0 && status == GPULUA_OK);
}

gpulua_status gpu_recorder_commit(struct gpu_recorder *recorder, struct gpu_op **op,
                                  struct gpu_error *error) {
    GPU_ENTER(recorder->stream->device);
    gpulua_status status = check_open(recorder, "commit", error);
    if (status) {
        return status;
    }
    if (recorder->state == RECORDING && recorder->count > 0) {
        return gpu_error_set(error, GPULUA_STREAM_MISUSE,
                             "commit without preflight: the stream has waited for nothing");
    }
    status = gpu_device_check_open(recorder->stream->device, error);
    if (status == GPULUA_OK) {
        status = gpu_stream_check_uncaptured(recorder->stream, error);
        if (status == GPULUA_CAPTURE_ACTIVE || status == GPULUA_CAPTURE_INVALIDATED) {
            return status; /* it can be committed when the capture has ended */
        }
    }
    if (status == GPULUA_OK) {
        status = note_uses(recorder, &recorder->envelope, op, error);
    }
    if (status == GPULUA_INTERRUPTED || status == GPULUA_TIMEOUT ||
        status == GPULUA_OUT_OF_MEMORY) {
        return status; /* nothing is noted yet, and it can be committed again */
    }
    if (status == GPULUA_OK && recorder->is_rejected) {
        status = raise_rejected(recorder, error);
        if (op) {
            gpu_op_release(*op);
            *op = NULL;
        }
    }
    gpu_recorder_cancel(recorder);
    return status;
}

void gpu_recorder_cancel(struct gpu_recorder *recorder) {
    GPU_ENTER_WHOLE(recorder->stream->device);
    if (recorder->state != ENDED) {
        end(recorder);
    }
}

static void destroy(struct gpu_recorder *recorder) {
    if (recorder->state != ENDED) {
        end(recorder);
    }
    gpu_stream_release(recorder->stream);
    free(recorder);
}

static void run_abandoned(struct gpu_device *device, struct gpu_deferred *deferred) {
    struct gpu_recorder *recorder =
        (struct gpu_recorder *)(void *)((char *)deferred -
                                        offsetof(struct gpu_recorder, abandoned));
    (void)device;
    if (recorder->state == HOLDING) {
        note_abandoned(recorder);
    }
    destroy(recorder);
}

void gpu_recorders_leave(struct gpu_device *device, const struct gpu_seat *seat) {
    struct gpu_recorder *held = device->holding;
    while (held) {
        if (held->seat != seat) {
            held = held->next;
            continue;
        }
        note_abandoned(held);
        gpu_recorder_cancel(held);
        held = device->holding; /* others may have gone meanwhile */
    }
}

void gpu_recorders_lose(struct gpu_device *device) {
    while (device->holding) {
        device->holding->was_lost = true;
        end(device->holding);
    }
}

void gpu_recorder_release(struct gpu_recorder *recorder) {
    if (!recorder) {
        return;
    }
    GPU_ENTER_WHOLE(recorder->stream->device);
    if (recorder->state == HOLDING) {
        gpu_device_defer(recorder->stream->device, &recorder->abandoned, run_abandoned);
    } else {
        destroy(recorder);
    }
}
