/* When is an operation over, and who says so in the page.
 *
 * Backends with threads of their own get a word behind every operation. On the others the device
 * writes words, which cost it time: where somebody waits for the newest operation; under process
 * also when no record has come for a while, so that who looks later finds the end without waking
 * anybody; and else so rarely that it costs nothing: only for a script that never waits to see that
 * work ends. Whoever waits for an operation that has no word right behind it is served by looking
 * at its event and writing host_done, so that waiting for one never waits for the next. Behind an
 * operation that nobody has a handle on the event may be owed: until it is asked for, until another
 * operation comes, or for good, where that one says that it will do for this one, too.
 *
 * Where the device writes no words, because it cannot or is not to, events tell all: of what is
 * waited for; of the rest as often as there would be a word. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/executor.h"
#include "wire/sync.h"

void gpu_executor_host_done(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    _Atomic uint64_t *word = &executor->page->host_done[slot];
    uint64_t before = atomic_load_explicit(word, memory_order_relaxed);
    while (before < seq && !atomic_compare_exchange_weak_explicit(
                               word, &before, seq, memory_order_release, memory_order_relaxed)) {}
}

static void lose_with(struct wire_executor *executor, const char *what,
                      struct backend_error *error) {
    char text[1200];
    snprintf(text, sizeof text, "%s%s%s", what, what[0] != '\0' ? ": " : "", error->message);
    gpu_executor_lose(executor, error->driver_code, text);
    free(error->log);
    error->log = NULL;
}

/* ---- behind each operation ---- */

/* There is work without a word behind it, or that nobody knows the end of. */
static void note_dirty(struct wire_executor *executor, uint32_t slot,
                       struct executor_stream *stream) {
    if (!stream->is_dirty) {
        stream->is_dirty = true;
        executor->dirty[executor->dirty_count++] = slot;
    }
}

/* A word behind the newest operation. A device that cannot do it is polled from then on. */
static void put_word(struct wire_executor *executor, uint32_t slot,
                     struct executor_stream *stream) {
    if (!executor->page_is_writable || stream->print_seq != 0 || stream->stream == NULL ||
        stream->word_seq == stream->last_seq) {
        return;
    }
    struct backend_error error;
    gpu_backend_error_init(&error);
    gpulua_status status = executor->ops->stream_word(
        stream->stream, &executor->page->device_done[slot], stream->last_seq, &error);
    if (status == GPULUA_OK) {
        stream->word_seq = stream->last_seq;
        stream->since_word = 0;
        if (!stream->owes_event) {
            stream->events[(stream->event_count - 1) % stream->event_capacity].has_word = true;
        }
    } else if (status == GPULUA_DEVICE_LOST) {
        lose_with(executor, "", &error);
    } else if (status != GPULUA_CAPTURE_ACTIVE) { /* the host's: its event tells for as long */
        executor->page_is_writable = false;
        note_dirty(executor, slot, stream);
    }
    free(error.log);
}

/* Without words an operation that has lost its event is only known to be over when a later one is:
 * more events, as long as the oldest may be pending. */
static void make_room(struct wire_executor *executor, uint32_t slot,
                      struct executor_stream *stream) {
    uint32_t old = stream->event_capacity;
    if (executor->page_is_writable || stream->event_count < old || old >= EXECUTOR_EVENTS_MAX ||
        gpu_executor_is_over(executor, slot, stream->events[stream->event_count % old].seq)) {
        return;
    }
    struct executor_event *grown = calloc((size_t)old * 2, sizeof *grown);
    if (grown == NULL) {
        return;
    }
    for (uint64_t i = stream->event_count - old; i < stream->event_count; i++) {
        grown[i % (old * 2)] = stream->events[i % old];
    }
    free(stream->events);
    stream->events = grown;
    stream->event_capacity = old * 2;
}

/* Where there would be a word: how far the stream has come, also while nobody waits. Known is what
 * was over in front of what is pending now, so that each is asked for about once. */
static void ask_behind(struct wire_executor *executor, uint32_t slot,
                       struct executor_stream *stream) {
    uint64_t count = stream->event_count, capacity = stream->event_capacity;
    if (stream->asked_count + capacity < count) {
        stream->asked_count = count - capacity;
    }
    uint32_t step = executor->ops_per_word;
    while (stream->asked_count + step <= count &&
           gpu_executor_is_over(executor, slot,
                                stream->events[(stream->asked_count + step - 1) % capacity].seq)) {
        stream->asked_count += step;
    }
}

/* The same to the last operation, when there is time for it. */
static void ask_how_far(struct wire_executor *executor, uint32_t slot,
                        struct executor_stream *stream) {
    uint64_t count = stream->event_count, capacity = stream->event_capacity;
    uint64_t low = stream->asked_count + capacity < count ? count - capacity : stream->asked_count;
    uint64_t high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (gpu_executor_is_over(executor, slot, stream->events[middle % capacity].seq)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    stream->asked_count = low;
}

gpulua_status gpu_executor_event_make(struct wire_executor *executor, struct backend_event **event,
                                      struct backend_error *error) {
    gpulua_status status = executor->ops->event_create(executor->device, event, error);
    if (status == GPULUA_OK) {
        atomic_fetch_add_explicit(&executor->page->events_made, 1, memory_order_relaxed);
    }
    return status;
}

void gpu_executor_event_end(struct wire_executor *executor, struct backend_event *event) {
    executor->ops->event_destroy(executor->device, event);
    atomic_fetch_add_explicit(&executor->page->events_ended, 1, memory_order_relaxed);
}

struct executor_event *gpu_executor_event_next(struct wire_executor *executor, uint32_t slot) {
    struct executor_stream *stream = executor->streams[slot];
    make_room(executor, slot, stream);
    return &stream->events[stream->event_count % stream->event_capacity];
}

bool gpu_executor_is_captured(gpulua_status status) {
    return status == GPULUA_STREAM_MISUSE || status == GPULUA_CAPTURE_ACTIVE ||
           status == GPULUA_CAPTURE_INVALIDATED;
}

/* Now, too, or again: another try would end what the host captures now, or break it. */
static bool is_still_taken(const struct wire_executor *executor,
                           const struct executor_stream *stream) {
    const struct backend_ops *ops = executor->ops;
    enum wire_capture_state state = WIRE_CAPTURE_NONE;
    struct backend_error error;
    if (ops->capture_look == NULL) {
        return false;
    }
    gpu_backend_error_init(&error);
    gpulua_status status =
        ops->capture_look(executor->device, ops->stream_native(stream->stream), &state, &error);
    free(error.log);
    return status == GPULUA_OK && state != WIRE_CAPTURE_NONE;
}

/* An event behind the newest operation. False: it is owed for as long as the host captures the
 * stream, or until there is memory for it; or the device is lost, for nobody could ever tell when
 * the operation is over. */
static bool put_event(struct wire_executor *executor, uint32_t slot) {
    struct executor_stream *stream = executor->streams[slot];
    /* What is tried late may come into a capture that has begun since. */
    bool may_be_taken =
        stream->is_taken || (stream->is_short && executor->info.place == WIRE_EXECUTOR_INLINE);
    if (__builtin_expect(may_be_taken, 0) && is_still_taken(executor, stream)) {
        stream->owes_event = stream->is_taken = true;
        return false;
    }
    struct executor_event *event = gpu_executor_event_next(executor, slot);
    if (event->event != NULL && gpu_executor_sleepers_keep(executor, event->event)) {
        event->event = NULL;
        event->is_timed = false;
    }
    struct backend_error error;
    gpu_backend_error_init(&error);
    gpulua_status status = GPULUA_OK;
    if (event->event == NULL) {
        status = gpu_executor_event_make(executor, &event->event, &error);
        if (status != GPULUA_OK) {
            event->event = NULL;
        }
    }
    if (status == GPULUA_OK) {
        status = executor->ops->event_record(event->event, stream->stream, &error);
    }
    if (status != GPULUA_OK) {
        stream->is_taken = gpu_executor_is_captured(status);
        stream->is_short = status == GPULUA_OUT_OF_MEMORY;
        stream->owes_event = stream->is_taken || stream->is_short;
        if (!stream->owes_event) {
            lose_with(executor, "cannot record an event", &error);
        }
        free(error.log);
        return false;
    }
    event->seq = stream->last_seq;
    event->has_word = stream->word_seq == stream->last_seq;
    stream->event_count++;
    stream->owes_event = stream->is_taken = stream->is_short = false;
    return true;
}

void gpu_executor_settle(struct wire_executor *executor, uint32_t slot) {
    if (executor->streams[slot]->owes_event) {
        (void)put_event(executor, slot);
    }
}

void gpu_executor_settle_taken(struct wire_executor *executor) {
    for (uint32_t slot = 0; slot < executor->stream_limit; slot++) {
        if (executor->streams[slot] != NULL && executor->streams[slot]->is_taken) {
            (void)put_event(executor, slot);
        }
    }
}

void gpu_executor_submitted(struct wire_executor *executor, uint32_t slot, uint64_t seq,
                            bool prints, unsigned flags) {
    struct executor_stream *stream = executor->streams[slot];
    stream->last_seq = seq;
    bool owes_event = (flags & WIRE_FLAG_UNHELD) != 0 && !prints && !executor->is_traced &&
                      executor->page_is_writable && !stream->is_foreign;
    stream->owes_event = owes_event && !executor->is_unsettled;
    stream->since_word += !owes_event || (flags & WIRE_FLAG_COVERS) == 0;
    if (!owes_event && !put_event(executor, slot) && !stream->owes_event) {
        return;
    }
    if (prints) {
        executor->printing_count += stream->print_seq == 0;
        stream->print_seq = seq;
    }
    if (!executor->page_is_writable) {
        if (stream->event_count % executor->ops_per_word == 0) {
            ask_behind(executor, slot, stream);
        }
    } else if (executor->ops->moves_by_threads) {
        put_word(executor, slot, stream);
        return;
    } else if (stream->since_word >= executor->ops_per_word ||
               stream->last_seq - stream->word_seq >= EXECUTOR_REPLAYS_PER_WORD) {
        put_word(executor, slot, stream);
        return;
    }
    bool is_looked_after = executor->info.place != WIRE_EXECUTOR_INLINE;
    if (is_looked_after || !executor->page_is_writable) {
        note_dirty(executor, slot, stream);
    }
}

void gpu_executor_words(struct wire_executor *executor) {
    if (__builtin_expect(executor->tells_times, 0)) {
        gpu_executor_trace_rest(executor);
    }
    uint32_t count = executor->dirty_count;
    executor->dirty_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = executor->dirty[i];
        struct executor_stream *stream = executor->streams[slot];
        stream->is_dirty =
            !executor->page_is_writable && !gpu_executor_is_over(executor, slot, stream->last_seq);
        if (stream->is_dirty) {
            executor->dirty[executor->dirty_count++] = slot;
            ask_how_far(executor, slot, stream);
        } else if (!atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
            put_word(executor, slot, stream);
        }
    }
}

void gpu_executor_loads(struct wire_executor *executor) {
    gpu_executor_words(executor);
    atomic_store_explicit(&executor->page->is_loading, 1, memory_order_release);
}

void gpu_executor_loaded(struct wire_executor *executor) {
    if (atomic_load_explicit(&executor->page->is_loading, memory_order_relaxed) != 0) {
        atomic_store_explicit(&executor->page->is_loading, 0, memory_order_release);
    }
}

/* ---- looking ---- */

struct executor_event *gpu_executor_event_of(struct wire_executor *executor, uint32_t slot,
                                             uint64_t seq) {
    struct executor_stream *stream = slot < WIRE_STREAMS_MAX ? executor->streams[slot] : NULL;
    if (stream == NULL || stream->stream == NULL || seq > stream->last_seq) {
        return NULL;
    }
    if (stream->owes_event &&
        (stream->event_count == 0 ||
         stream->events[(stream->event_count - 1) % stream->event_capacity].seq < seq) &&
        !put_event(executor, slot)) {
        return NULL;
    }
    if (stream->event_count == 0) {
        return NULL;
    }
    /* Sequence numbers rise along the ring, mostly by one: guess, then search. */
    uint64_t newest = stream->event_count - 1;
    uint32_t capacity = stream->event_capacity;
    uint64_t oldest = stream->event_count > capacity ? stream->event_count - capacity : 0;
    oldest += stream->events[oldest % capacity].event == NULL; /* a sleeper has it, put_event */
    uint64_t back = stream->last_seq - seq;
    if (back <= newest - oldest) {
        struct executor_event *event = &stream->events[(newest - back) % capacity];
        if (event->seq == seq) {
            return event;
        }
    }
    uint64_t low = oldest;
    uint64_t high = newest; /* the answer lies in low .. high: newest's seq >= seq */
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (stream->events[middle % capacity].seq < seq) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return &stream->events[low % capacity];
}

gpulua_status gpu_executor_event_awaited(struct wire_executor *executor, uint32_t slot,
                                         uint64_t seq, struct executor_event **event,
                                         struct backend_error *error) {
    *event = gpu_executor_event_of(executor, slot, seq);
    const struct executor_stream *stream = executor->streams[slot];
    if (*event != NULL || stream == NULL || !stream->owes_event) {
        return GPULUA_OK;
    }
    return !stream->is_taken
               ? gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                  "no memory for an event behind what is to be waited for")
               : gpu_backend_fail(
                     error, GPULUA_CAPTURE_ACTIVE, 0,
                     "what is to be waited for is on a stream that the host captures, "
                     "on another thread, and is not known to be over before that ends");
}

/* The stream's work up to there is. */
static void tell_over(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    struct executor_stream *stream = executor->streams[slot];
    if (stream->print_seq != 0) {
        if (executor->ops->flush_output != NULL) {
            executor->ops->flush_output(executor->device);
        }
        if (stream->print_seq <= seq) {
            stream->print_seq = 0;
            executor->printing_count--;
        }
    }
    if (__builtin_expect(executor->is_traced && !executor->tells_times, 0)) {
        gpu_executor_trace_tell(executor, slot, seq);
    }
    gpu_executor_host_done(executor, slot, seq);
}

/* Without an event, for want of memory: is all of the stream's work over? */
static bool is_idle(struct wire_executor *executor, uint32_t slot) {
    const struct executor_stream *stream = executor->streams[slot];
    if (stream->stream == NULL || !stream->owes_event || stream->is_taken ||
        executor->ops->stream_query == NULL) {
        return false;
    }
    struct backend_error error;
    gpu_backend_error_init(&error);
    enum backend_query query = executor->ops->stream_query(stream->stream, &error);
    if (query == BACKEND_FAILED) {
        lose_with(executor, "", &error);
    } else if (query == BACKEND_DONE) {
        tell_over(executor, slot, stream->last_seq);
    }
    free(error.log);
    return query != BACKEND_PENDING;
}

bool gpu_executor_is_over(struct wire_executor *executor, uint32_t slot, uint64_t seq) {
    if (gpu_wire_page_done(executor->page, slot) >= seq ||
        atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        return true;
    }
    struct executor_event *event = gpu_executor_event_of(executor, slot, seq);
    const struct executor_stream *stream = executor->streams[slot];
    if (event == NULL) { /* not submitted yet; or its stream is gone; or it is owed */
        return stream == NULL || (seq <= stream->last_seq && is_idle(executor, slot));
    }
    if (event->seq == seq && event->has_word && !executor->asks_driver) {
        return false; /* the word is on its way */
    }
    struct backend_error error;
    gpu_backend_error_init(&error);
    switch (executor->ops->event_query(event->event, &error)) {
    case BACKEND_PENDING:
        break;
    case BACKEND_FAILED:
        lose_with(executor, "", &error);
        return true;
    case BACKEND_DONE:
        tell_over(executor, slot, event->seq);
        return true;
    }
    return false;
}

bool gpu_executor_is_idle(struct wire_executor *executor) {
    for (uint32_t slot = 0; slot < executor->stream_limit; slot++) {
        const struct executor_stream *stream = executor->streams[slot];
        if (stream != NULL && !gpu_executor_is_over(executor, slot, stream->last_seq)) {
            return false;
        }
    }
    return true;
}

/* ---- polling ---- */

static void read_wants(struct wire_executor *executor) {
    uint32_t wishes = atomic_load_explicit(&executor->page->wishes, memory_order_acquire);
    if (wishes == executor->wishes_seen) {
        return;
    }
    executor->wishes_seen = wishes;
    executor->want_count = 0;
    for (uint32_t slot = 0; slot < executor->stream_limit; slot++) {
        if (atomic_load_explicit(&executor->page->wanted[slot], memory_order_acquire) != 0) {
            executor->wants[executor->want_count++] = slot;
        }
    }
}

static bool looks_after(const struct wire_executor *executor) {
    return !executor->ops->moves_by_threads || !executor->page_is_writable;
}

/* Now and then, also where words are on their way: of a fault the driver may tell who asks after
 * what is pending, and nobody who asks after something else. */
static bool is_time_to_ask(struct wire_executor *executor) {
    return executor->poll_count++ % EXECUTOR_POLLS_PER_STATUS == EXECUTOR_POLLS_PER_STATUS - 1;
}

static void look_at_status(struct wire_executor *executor) {
    struct backend_error error;
    gpu_backend_error_init(&error);
    if (executor->ops->device_status(executor->device, &error) != GPULUA_OK) {
        lose_with(executor, "", &error);
    }
}

void gpu_executor_completion_poll(struct wire_executor *executor) {
    bool has_moved = false;
    gpu_executor_sleepers_collect(executor);
    read_wants(executor);
    if (executor->graves != NULL) {
        gpu_executor_graves_look(executor, false);
    }
    if (!looks_after(executor)) {
        executor->want_count = 0;
        return;
    }
    executor->asks_driver = gpu_executor_must_poll(executor) && is_time_to_ask(executor);
    for (uint32_t i = 0; i < executor->want_count;) {
        uint32_t slot = executor->wants[i];
        uint64_t wanted = atomic_load_explicit(&executor->page->wanted[slot], memory_order_acquire);
        struct executor_stream *stream = executor->streams[slot];
        if (stream != NULL && stream->last_seq == wanted) {
            put_word(executor, slot, stream);
        }
        if (wanted == 0 || gpu_executor_is_over(executor, slot, wanted)) {
            has_moved = true;
            executor->wants[i] = executor->wants[--executor->want_count];
            if (wanted != 0 && stream != NULL && !executor->page_is_writable) {
                ask_how_far(executor, slot, stream); /* not one by one: others may be over, too */
            }
        } else {
            i++;
        }
    }
    for (uint32_t slot = 0; executor->printing_count != 0 && slot < executor->stream_limit;
         slot++) {
        struct executor_stream *stream = executor->streams[slot];
        if (stream != NULL && stream->print_seq != 0) {
            has_moved |= gpu_executor_is_over(executor, slot, stream->last_seq);
        }
    }
    if (executor->asks_driver && gpu_executor_must_poll(executor)) {
        look_at_status(executor);
    }
    executor->asks_driver = false;
    if (has_moved) {
        gpu_executor_wake_if_wanted(executor);
    }
}

void gpu_executor_alarm(struct wire_executor *executor, bool is_alarmed) {
    atomic_store_explicit(&executor->is_alarmed, is_alarmed, memory_order_release);
    if (is_alarmed) {
        gpu_wire_flag_wake(&executor->page->executor_sleeps);
    }
}

bool gpu_executor_must_poll(const struct wire_executor *executor) {
    return executor->device != NULL &&
           !atomic_load_explicit(&executor->is_lost, memory_order_relaxed) &&
           (executor->want_count != 0 || executor->printing_count != 0 ||
            atomic_load_explicit(&executor->is_alarmed, memory_order_relaxed) ||
            (executor->dirty_count != 0 && !executor->page_is_writable));
}
