/* Traced devices: when each operation was done. An event with a time in front of it, behind its
 * waits, and the one behind it that marks its end. What they say goes to the script's side before
 * the word does that lets the operation end, so completion works as with "event". */
#include <stdlib.h>

#include "executor/executor.h"

#define TIMES_AT_ONCE 64u

void gpu_executor_trace_begin(struct wire_executor *executor, uint32_t slot) {
    struct executor_event *row = gpu_executor_event_next(executor, slot);
    struct backend_error error;
    gpu_backend_error_init(&error);
    if (row->begin == NULL &&
        executor->ops->event_create(executor->device, &row->begin, &error) != GPULUA_OK) {
        row->begin = NULL;
    }
    row->is_timed = row->begin != NULL &&
                    executor->ops->event_record(row->begin, executor->streams[slot]->stream,
                                                &error) == GPULUA_OK;
    free(error.log);
}

void gpu_executor_trace_drop(struct wire_executor *executor, uint32_t slot) {
    gpu_executor_event_next(executor, slot)->is_timed = false;
}

void gpu_executor_trace_tell(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    struct executor_stream *stream = executor->streams[slot];
    struct wire_times times[TIMES_AT_ONCE];
    uint32_t count = 0;
    uint64_t capacity = stream->event_capacity;
    if (stream->told_count + capacity < stream->event_count) {
        stream->told_count = stream->event_count - capacity;
    }
    for (; stream->told_count < stream->event_count; stream->told_count++) {
        const struct executor_event *row = &stream->events[stream->told_count % capacity];
        struct wire_times *at = &times[count];
        if (row->seq > seq) {
            break;
        }
        struct backend_error error;
        gpu_backend_error_init(&error);
        if (row->is_timed && executor->ops->event_times(row->begin, row->event, &at->begin_ns,
                                                        &at->end_ns, &error) == GPULUA_OK) {
            /* In order, as work of a stream is, whatever the clocks make of it. */
            int64_t took_ns = at->end_ns > at->begin_ns ? at->end_ns - at->begin_ns : 0;
            at->begin_ns = at->begin_ns > stream->told_ns ? at->begin_ns : stream->told_ns;
            stream->told_ns = at->end_ns = at->begin_ns + took_ns;
            at->seq = row->seq;
            count++;
        }
        free(error.log);
        if (count == TIMES_AT_ONCE) {
            gpu_executor_tell_times(executor, slot, times, count);
            count = 0;
        }
    }
    if (count > 0) {
        gpu_executor_tell_times(executor, slot, times, count);
    }
}
