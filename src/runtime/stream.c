/* Streams: queues of work on the device. The runtime's task streams and the script's own. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/recovery.h"

/* For work on closed streams to end, before Capacity is raised. */
#define CLOSED_WAIT_NS INT64_C(250000000)

static gpulua_status take_slot(struct gpu_device *device, uint32_t *slot, struct gpu_error *error) {
    for (uint32_t i = 0; i < WIRE_STREAMS_MAX; i++) {
        if (!device->streams[i]) {
            *slot = i;
            if (i >= device->slot_count) {
                device->slot_count = i + 1;
            }
            return GPULUA_OK;
        }
    }
    gpu_error_set(error, GPULUA_CAPACITY, "all %u stream slots are in use", WIRE_STREAMS_MAX);
    error->capacity_max = WIRE_STREAMS_MAX;
    return GPULUA_CAPACITY;
}

static struct wire_record build(const struct gpu_stream *stream) {
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_STREAM_CREATE, .stream = stream->slot};
    record.u.stream.priority = stream->priority;
    record.u.stream.number = stream->number;
    record.u.stream.is_foreign = stream->is_foreign;
    return record;
}

gpulua_status gpu_stream_send(struct gpu_stream *stream, struct gpu_error *error) {
    struct wire_record record = build(stream);
    return gpu_device_publish(stream->device, &record, error);
}

void gpu_stream_tell(struct gpu_stream *stream) {
    struct wire_record record = build(stream);
    (void)gpu_recovery_tell(stream->device, &record, &stream->told);
}

enum owner { USER, OWN, HOST };

static gpulua_status create(struct gpu_device *device, const struct gpu_stream_info *info,
                            enum owner owner, struct gpu_stream **stream, struct gpu_error *error) {
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        return status;
    }
    gpu_device_run_deferred(device);
    uint32_t slot = 0;
    status = take_slot(device, &slot, error);
    if (status) {
        return status;
    }
    struct gpu_stream *made = calloc(1, sizeof *made);
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a stream");
    }
    made->refs = 1;
    made->slot = slot;
    made->number = ++device->stream_number_next;
    made->priority = info->priority;
    if (made->priority <
        device->facts.priority_highest) { /* CUDA: the highest priority is the lowest number */
        made->priority = device->facts.priority_highest;
    }
    if (made->priority > device->facts.priority_lowest) {
        made->priority = device->facts.priority_lowest;
    }
    made->is_user = owner == USER;
    made->is_foreign = owner == HOST;
    made->native = owner == HOST ? device->cuda_stream : 0;
    (void)gpu_label_copy(made->label, sizeof made->label, info->label);
    made->device = device;
    status = gpu_stream_send(made, error);
    if (status) {
        free(made);
        return status;
    }
    (void)gpu_device_retain(device);
    device->streams[slot] = made;
    device->done[slot] = device->slot_seq[slot];
    device->user_stream_count += made->is_user;
    device->stats.streams_live++;
    gpu_stream_tell(made);
    *stream = made;
    return GPULUA_OK;
}

/* Streams that are closed already and go when their work is over. */
static bool has_closed(const struct gpu_device *device) {
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        const struct gpu_stream *stream = device->streams[slot];
        if (stream && stream->is_user && stream->is_closed && stream->tail) {
            return true;
        }
    }
    return false;
}

gpulua_status gpu_stream_create(struct gpu_device *device, const struct gpu_stream_info *info,
                                struct gpu_stream **stream, struct gpu_error *error) {
    GPU_ENTER(device);
    int64_t end_ns = 0;
    while (device->user_stream_count >= GPU_USER_STREAMS_MAX) {
        (void)gpu_device_poll(device);
        gpu_device_run_deferred(device);
        end_ns = end_ns ? end_ns : gpu_clock_ns() + CLOSED_WAIT_NS;
        if (device->user_stream_count < GPU_USER_STREAMS_MAX || !has_closed(device) ||
            gpu_clock_ns() >= end_ns) {
            break;
        }
        gpu_device_nap(device, end_ns - gpu_clock_ns());
    }
    if (device->user_stream_count >= GPU_USER_STREAMS_MAX) {
        gpu_error_set(error, GPULUA_CAPACITY, "a device has at most %u streams made by the script",
                      GPU_USER_STREAMS_MAX);
        error->capacity_max = GPU_USER_STREAMS_MAX;
        return GPULUA_CAPACITY;
    }
    return create(device, info, USER, stream, error);
}

gpulua_status gpu_stream_create_own(struct gpu_device *device, const char *label,
                                    struct gpu_stream **stream, struct gpu_error *error) {
    struct gpu_stream_info info = {.label = label};
    return create(device, &info, OWN, stream, error);
}

gpulua_status gpu_device_task_stream(struct gpu_device *device, uint32_t index,
                                     struct gpu_stream **stream, struct gpu_error *error) {
    GPU_ENTER(device);
    assert(index < GPU_TASK_STREAMS);
    index = device->cuda_stream ? 0 : index;
    if (!device->task_streams[index]) {
        struct gpu_stream_info info = {0};
        gpulua_status status = create(device, &info, device->cuda_stream ? HOST : OWN,
                                      &device->task_streams[index], error);
        if (status) {
            return status;
        }
    }
    *stream = device->task_streams[index];
    return GPULUA_OK;
}

struct gpu_stream *gpu_stream_retain(struct gpu_stream *stream) {
    GPU_ENTER(stream->device);
    stream->refs++;
    return stream;
}

static void destroy(struct gpu_device *device, struct gpu_stream *stream) {
    if (device->streams[stream->slot] == stream) {
        device->streams[stream->slot] = NULL;
        device->user_stream_count -= stream->is_user;
        device->stats.streams_live--;
        struct wire_record record = {.length_bytes = sizeof record,
                                     .opcode = WIRE_OP_STREAM_DESTROY,
                                     .stream = stream->slot};
        if (device->state == GPU_DEVICE_OPEN && device->link) {
            struct gpu_error ignored = {0};
            (void)gpu_device_publish(device, &record, &ignored);
            gpu_error_finish(&ignored);
        }
        if (gpu_recovery_is_told(device, &stream->told)) {
            (void)gpu_recovery_tell(device, &record, &stream->told);
        }
    }
    free(stream);
    gpu_device_release(device);
}

static void run_release(struct gpu_device *device, struct gpu_deferred *deferred) {
    struct gpu_stream *stream =
        (struct gpu_stream *)(void *)((char *)deferred - offsetof(struct gpu_stream, release));
    /* Pending operations hold references, so with none left nothing is pending. */
    stream->is_deferred = false;
    if (stream->refs == 0) {
        destroy(device, stream);
    }
}

void gpu_stream_release(struct gpu_stream *stream) {
    if (!stream) {
        return;
    }
    GPU_ENTER_WHOLE(stream->device);
    if (--stream->refs > 0 || stream->is_deferred) {
        return;
    }
    stream->is_deferred = true;
    gpu_device_defer(stream->device, &stream->release, run_release);
}

void gpu_stream_close(struct gpu_stream *stream) {
    GPU_ENTER(stream->device);
    stream->is_closed = true;
    if (stream->tail) {
        gpu_op_want(stream->tail); /* its end is what gives the slot back */
    }
}

bool gpu_stream_is_closed(const struct gpu_stream *stream) {
    GPU_ENTER(stream->device);
    return stream->is_closed;
}

uint64_t gpu_stream_number(const struct gpu_stream *stream) {
    return stream->number;
}

int gpu_stream_priority(const struct gpu_stream *stream) {
    return stream->priority;
}

const char *gpu_stream_label(const struct gpu_stream *stream) {
    return stream->label;
}

struct gpu_device *gpu_stream_device(const struct gpu_stream *stream) {
    return stream->device;
}

struct gpu_op *gpu_stream_tail(struct gpu_stream *stream) {
    GPU_ENTER(stream->device);
    if (stream->tail && gpu_op_is_over(stream->tail)) {
        (void)gpu_device_poll(stream->device);
    }
    return stream->tail ? gpu_op_retain(stream->tail) : NULL;
}

void gpu_streams_finish(struct gpu_device *device) {
    for (uint32_t i = 0; i < GPU_TASK_STREAMS; i++) {
        struct gpu_stream *stream = device->task_streams[i];
        device->task_streams[i] = NULL;
        if (stream) {
            stream->is_closed = true;
            gpu_stream_release(stream);
        }
    }
}
