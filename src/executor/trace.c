/* Traced devices: when each operation was done.
 *
 * A device that tells that by itself does so at some time, and by the end of a flush. Else there is
 * an event in front of each operation, behind its waits, and the one behind it that marks its end.
 * What these say goes to the script's side before the word does that lets the operation end, so
 * completion works as with "event". */
#include <stdlib.h>

#include "executor/executor.h"
#include "wire/sync.h"

#define TIMES_AT_ONCE 64u
#define FLUSH_AFTER_NS UINT64_C(100000000)
#define TIMES_KEPT_MAX (1u << 20) /* while nobody sends them on */
#define TIMES_MISSING_MAX 64u     /* behind them: operations that more was told of */
#define TIMES_SENT_AT 4096u       /* while more work comes all the time */

/* ---- by the device; of nodes of graphs, any device ---- */

/* Locked. There is no room for it: all of these of an operation become one, while there is room for
 * that. */
static void note_missing(struct wire_executor *executor, const struct wire_times *times) {
    struct wire_times *at = &executor->times[executor->time_capacity];
    struct wire_times *end = &executor->times[executor->time_count];
    while (at < end && (at->stream != times->stream || at->seq != times->seq)) {
        at++;
    }
    if (at == end && executor->time_count == executor->time_capacity + TIMES_MISSING_MAX) {
        return;
    }
    if (at == end) {
        *at = *times;
        at->node = WIRE_NODES_MISSING;
        executor->time_count++;
    }
    bool is_first = at->end_ns == 0;
    if (times->end_ns != 0) {
        at->begin_ns = is_first || times->begin_ns < at->begin_ns ? times->begin_ns : at->begin_ns;
        at->end_ns = times->end_ns > at->end_ns ? times->end_ns : at->end_ns;
    }
    bool is_missing = (times->node & WIRE_NODES_MISSING) != 0;
    uint32_t count = is_missing ? times->node & ~WIRE_NODES_MISSING : times->node != 0;
    at->node = at->node + count >= WIRE_NODES_MISSING ? at->node + count : UINT32_MAX;
}

void gpu_executor_timed(struct wire_executor *executor, uint32_t slot, uint64_t seq, uint32_t node,
                        int64_t begin_ns, int64_t end_ns) {
    pthread_mutex_lock(&executor->times_lock);
    if (executor->time_count == executor->time_capacity &&
        executor->time_capacity < TIMES_KEPT_MAX) {
        uint32_t capacity = executor->time_capacity != 0 ? executor->time_capacity * 2 : 1024;
        struct wire_times *grown =
            realloc(executor->times, (capacity + (size_t)TIMES_MISSING_MAX) * sizeof *grown);
        if (grown != NULL) {
            executor->times = grown;
            executor->time_capacity = capacity;
        }
    }
    struct wire_times made = {
        .stream = slot, .node = node, .seq = seq, .begin_ns = begin_ns, .end_ns = end_ns};
    if (executor->time_count < executor->time_capacity) {
        executor->times[executor->time_count++] = made;
    } else if (executor->time_capacity != 0) {
        note_missing(executor, &made);
    }
    pthread_mutex_unlock(&executor->times_lock);
}

/* What the device has told. Not locked while it goes out, which may have to wait. */
static void send_times(struct wire_executor *executor) {
    pthread_mutex_lock(&executor->times_lock);
    struct wire_times *times = executor->times;
    uint32_t count = executor->time_count;
    executor->times = NULL;
    executor->time_count = executor->time_capacity = 0;
    pthread_mutex_unlock(&executor->times_lock);
    for (uint32_t at = 0; at < count; at += TIMES_AT_ONCE) {
        uint32_t some = count - at < TIMES_AT_ONCE ? count - at : TIMES_AT_ONCE;
        gpu_executor_tell_times(executor, times + at, some);
    }
    free(times);
}

/* ---- by events ---- */

static void begin_by_event(struct wire_executor *executor, uint32_t slot) {
    struct executor_event *row = gpu_executor_event_next(executor, slot);
    struct backend_error error;
    gpu_backend_error_init(&error);
    if (row->begin == NULL && gpu_executor_event_make(executor, &row->begin, &error) != GPULUA_OK) {
        row->begin = NULL;
    }
    row->is_timed = row->begin != NULL &&
                    executor->ops->event_record(row->begin, executor->streams[slot]->stream,
                                                &error) == GPULUA_OK;
    free(error.log);
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
            at->stream = slot;
            at->node = 0;
            count++;
        }
        free(error.log);
        if (count == TIMES_AT_ONCE) {
            gpu_executor_tell_times(executor, times, count);
            count = 0;
        }
    }
    if (count > 0) {
        gpu_executor_tell_times(executor, times, count);
    }
    if (atomic_load_explicit(&executor->time_count, memory_order_relaxed) > 0) {
        send_times(executor); /* of nodes */
    }
}

/* ---- on demand ---- */

void gpu_executor_trace_flush(struct wire_executor *executor) {
    if (!executor->tells_times) {
        for (uint32_t slot = 0; executor->is_traced && slot < executor->stream_limit; slot++) {
            const struct executor_stream *stream = executor->streams[slot];
            if (stream != NULL) {
                (void)gpu_executor_is_over(executor, slot, stream->last_seq);
            }
        }
        return;
    }
    executor->has_untold = false;
    executor->flushed_ns = gpu_wire_now_ns();
    if (executor->device != NULL &&
        !atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        executor->ops->trace_flush(executor->device);
    }
    send_times(executor);
}

void gpu_executor_trace_rest(struct wire_executor *executor) {
    if (executor->has_untold && gpu_wire_now_ns() - executor->flushed_ns >= FLUSH_AFTER_NS) {
        gpu_executor_trace_flush(executor);
    }
}

void gpu_executor_trace_poll(struct wire_executor *executor) {
    if (atomic_load_explicit(&executor->time_count, memory_order_relaxed) >= TIMES_SENT_AT) {
        send_times(executor);
    }
}

/* ---- around operations ---- */

void gpu_executor_trace_begin(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    if (executor->tells_times) {
        executor->ops->trace_begin(executor->device, slot, seq);
    } else {
        begin_by_event(executor, slot);
    }
}

void gpu_executor_trace_end(struct wire_executor *executor) {
    if (!executor->tells_times) {
        return;
    }
    executor->ops->trace_end(executor->device);
    executor->has_untold = true;
    gpu_executor_trace_poll(executor);
}

void gpu_executor_trace_note(struct wire_executor *executor, uint32_t slot, bool is_done) {
    if (!executor->tells_times && !is_done) {
        gpu_executor_event_next(executor, slot)->is_timed = false;
    }
}
