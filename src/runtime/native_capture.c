/* Captures of the host's, by the driver (see native_capture.h). */
#include "runtime/native_capture.h"

#include <stdio.h>
#include <string.h>

#include "runtime/exchange.h"
#include "runtime/state.h"

static void on_facts(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    if (reply && reply->status == GPULUA_OK &&
        reply->body_bytes >= sizeof(struct wire_capture_facts)) {
        memcpy(user, gpu_wire_reply_body(reply), sizeof(struct wire_capture_facts));
    }
}

static gpulua_status request(struct gpu_device *device, struct wire_record *record,
                             struct wire_capture_facts *facts, struct gpu_error *error) {
    *facts = (struct wire_capture_facts){0};
    record->length_bytes = sizeof *record;
    gpulua_status status = gpu_device_check_open(device, error);
    if (status == GPULUA_OK) {
        status = gpu_streams_are_shared(device, error);
    }
    return status ? status
                  : gpu_request_wait(device, record, "stream capture", on_facts, facts, error);
}

gpulua_status gpu_native_capture_begin(struct gpu_device *device, uint64_t stream,
                                       enum wire_capture_mode mode, struct gpu_error *error) {
    GPU_ENTER(device);
    struct wire_capture_facts facts;
    struct wire_record record = {.opcode = WIRE_OP_CAPTURE_BEGIN};
    record.u.capture.stream = stream;
    record.u.capture.mode = mode;
    gpulua_status status = gpu_device_check(device, error);
    return status ? status : request(device, &record, &facts, error);
}

gpulua_status gpu_native_capture_look(struct gpu_device *device, uint64_t stream,
                                      enum wire_capture_state *state, struct gpu_error *error) {
    GPU_ENTER(device);
    struct wire_capture_facts facts = {0};
    struct wire_record record = {.opcode = WIRE_OP_CAPTURE_LOOK};
    record.u.capture.stream = stream;
    gpulua_status status = gpu_device_check(device, error);
    if (status == GPULUA_OK) {
        status = request(device, &record, &facts, error);
    }
    *state = (enum wire_capture_state)facts.state;
    return status;
}

static gpulua_status end(struct gpu_device *device, uint64_t stream, uint64_t *graph,
                         struct gpu_error *error) {
    struct wire_capture_facts facts;
    struct wire_record record = {.opcode = WIRE_OP_CAPTURE_END};
    record.u.capture.stream = stream;
    record.u.capture.is_dropped = !graph;
    gpulua_status status = request(device, &record, &facts, error);
    if (graph) {
        *graph = facts.graph;
    }
    return status;
}

gpulua_status gpu_native_capture_end(struct gpu_device *device, uint64_t stream, uint64_t *graph,
                                     struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    return status ? status : end(device, stream, graph, error);
}

gpulua_status gpu_native_capture_drop(struct gpu_device *device, uint64_t stream,
                                      struct gpu_error *error) {
    GPU_ENTER(device);
    return end(device, stream, NULL, error);
}

/* `name`: which stream that is, for messages. */
static gpulua_status check(struct gpu_device *device, uint64_t stream, const char *name,
                           struct gpu_error *error) {
    struct wire_capture_facts facts;
    struct wire_record record = {.opcode = WIRE_OP_CAPTURE_LOOK};
    record.u.capture.stream = stream;
    if (device->is_polling) { /* deferred work, whose answer would not come here; nobody can refuse
                                 it anyway, and the backend ends the capture for it */
        return GPULUA_OK;
    }
    gpulua_status status = request(device, &record, &facts, error);
    if (status == GPULUA_OK && facts.state == WIRE_CAPTURE_ACTIVE) {
        return gpu_error_set(error, GPULUA_CAPTURE_ACTIVE,
                             "the host is capturing %s: what is put on it would not be done, but "
                             "become part of the host's graph",
                             name);
    }
    if (status == GPULUA_OK && facts.state == WIRE_CAPTURE_INVALIDATED) {
        return gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                             "the host's capture of %s is broken, and the stream takes nothing "
                             "before that has ended",
                             name);
    }
    return status;
}

gpulua_status gpu_native_check_uncaptured(struct gpu_device *device, uint64_t stream,
                                          struct gpu_error *error) {
    GPU_ENTER(device);
    return check(device, stream, "its own stream", error);
}

gpulua_status gpu_stream_check_uncaptured(struct gpu_stream *stream, struct gpu_error *error) {
    char name[48];
    if (stream->native == 0) {
        return GPULUA_OK;
    }
    snprintf(name, sizeof name, "stream %llu", (unsigned long long)stream->number);
    return check(stream->device, stream->native, name, error);
}

/* ---- what was put there all the same ---- */

void gpu_stream_note_unchecked(struct gpu_stream *stream) {
    struct gpu_device *device = stream->device;
    if (stream->native != 0) {
        stream->owed_to = device->slot_seq[stream->slot];
        stream->owed_from = stream->owed_from ? stream->owed_from : stream->owed_to;
        device->may_owe = true;
    }
}

static gpulua_status check_owed(struct gpu_stream *stream, uint64_t seq, struct gpu_error *error) {
    struct wire_capture_facts facts;
    struct wire_record record = {.opcode = WIRE_OP_CAPTURE_LOOK, .stream = stream->slot};
    record.u.capture.stream = stream->native;
    record.u.capture.seq = seq;
    gpulua_status status = request(stream->device, &record, &facts, error);
    if (status) {
        return status;
    }
    if (facts.is_owed) {
        return gpu_error_set(error, GPULUA_CAPTURE_ACTIVE,
                             "what is to be waited for is on stream %llu, which the host captures, "
                             "on another thread: it is not known to be over before that ends",
                             (unsigned long long)stream->number);
    }
    bool is_all = seq >= stream->owed_to;
    stream->owed_from = is_all ? 0 : seq + 1;
    stream->owed_to = is_all ? 0 : stream->owed_to;
    return GPULUA_OK;
}

static void look_whether_any_owes(struct gpu_device *device) {
    device->may_owe = false;
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_stream *stream = device->streams[slot];
        device->may_owe |= stream && stream->owed_from != 0;
    }
}

gpulua_status gpu_waits_check(struct gpu_device *device, const struct wire_wait *waits,
                              uint32_t count, struct gpu_error *error) {
    gpulua_status status = GPULUA_OK;
    if (device->is_polling) {
        return status; /* as in check; what is put then has waited before */
    }
    for (uint32_t i = 0; i < count && status == GPULUA_OK; i++) {
        struct gpu_stream *stream = device->streams[waits[i].stream];
        const struct gpu_point point = {.slot = waits[i].stream, .seq = waits[i].seq};
        if ((waits[i].flags & WIRE_WAIT_ORDER) && stream && stream->owed_from != 0 &&
            point.seq >= stream->owed_from && !gpu_point_is_over(device, point)) {
            status = check_owed(stream, point.seq, error);
        }
    }
    look_whether_any_owes(device);
    return status;
}

/* ---- */

struct gpu_stream *gpu_stream_of_native(struct gpu_device *device, uint64_t native) {
    GPU_ENTER(device);
    for (uint32_t slot = 0; native != 0 && slot < device->slot_count; slot++) {
        struct gpu_stream *stream = device->streams[slot];
        if (stream && stream->native == native) {
            return gpu_stream_retain(stream);
        }
    }
    return NULL;
}
