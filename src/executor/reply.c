/* Replies to the script side, from any thread.
 *
 * A full ring: in a process of our own we wait until the script side has drained it, which it does
 * whenever it waits for anything, even for room in the command ring. On the script's own thread
 * nobody would drain it, so replies then wait in a list, in order, and move over when polled. A
 * failure is in one of the two before its word moves; the script side's drain looks at both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/assertions.h"
#include "executor/executor.h"
#include "wire/sync.h"

#define REPLY_BYTES_MAX (WIRE_REPLY_TEXT_BYTES_MAX + 8192u)
#define NAP_NS_MAX 1000000u
#define SPIN_ROUNDS 64u

static const char cut_note[] = "\n[cut here: too long]";

gpulua_status gpu_executor_reply_init(struct wire_executor *executor) {
    executor->reply_scratch = aligned_alloc(16, REPLY_BYTES_MAX);
    if (executor->reply_scratch == NULL) {
        return GPULUA_OUT_OF_MEMORY;
    }
    gpu_wire_ring_reply(&executor->replies, executor->page);
    return GPULUA_OK;
}

void gpu_executor_reply_finish(struct wire_executor *executor) {
    while (executor->late_head != NULL) {
        struct executor_late_reply *late = executor->late_head;
        executor->late_head = late->next;
        free(late);
    }
    executor->late_tail = NULL;
    free(executor->reply_scratch);
    executor->reply_scratch = NULL;
}

void gpu_executor_wake(struct wire_executor *executor) {
    if (atomic_exchange_explicit(&executor->page->script_sleeps, 0, memory_order_acq_rel) != 0) {
        const uint64_t one = 1;
        ssize_t rc = write(executor->info.event_fd, &one, sizeof one);
        (void)rc; /* the counter cannot overflow: one write for each sleep */
    }
}

void gpu_executor_wake_if_wanted(struct wire_executor *executor) {
    struct wire_page *page = executor->page;
    /* A read-modify-write, see gpu_wire_flag_wake: what moved before it is seen by a script that
     * goes to sleep after it. */
    if (atomic_fetch_or_explicit(&page->script_sleeps, 0, memory_order_acq_rel) == 0) {
        return;
    }
    uint32_t limit = atomic_load_explicit(&executor->wanted_limit, memory_order_relaxed);
    for (uint32_t slot = 0; slot < limit; slot++) {
        uint64_t wanted = atomic_load_explicit(&page->wanted[slot], memory_order_acquire);
        if (wanted != 0 && gpu_wire_page_done(page, slot) >= wanted) {
            gpu_executor_wake(executor);
            return;
        }
    }
}

/* Locked. Moves as much of the list as finds room. */
static void flush_late(struct wire_executor *executor) {
    while (executor->late_head != NULL) {
        struct executor_late_reply *late = executor->late_head;
        if (!gpu_wire_ring_push(&executor->replies, &late->reply, late->reply.length_bytes)) {
            return;
        }
        executor->late_head = late->next;
        if (late->next == NULL) {
            executor->late_tail = NULL;
        }
        free(late);
        atomic_fetch_sub_explicit(&executor->late_count, 1, memory_order_relaxed);
    }
}

void gpu_executor_replies_flush(struct wire_executor *executor) {
    if (atomic_load_explicit(&executor->late_count, memory_order_relaxed) != 0) {
        pthread_mutex_lock(&executor->reply_lock);
        flush_late(executor);
        pthread_mutex_unlock(&executor->reply_lock);
    }
}

/* Locked. */
static void push_late(struct wire_executor *executor, const struct wire_reply *reply) {
    struct executor_late_reply *late;
    while ((late = malloc(offsetof(struct executor_late_reply, reply) + reply->length_bytes)) ==
           NULL) {
        gpu_wire_nap_ns(NAP_NS_MAX); /* a reply may not be dropped: wait for memory */
    }
    late->next = NULL;
    memcpy(&late->reply, reply, reply->length_bytes);
    if (executor->late_tail != NULL) {
        executor->late_tail->next = late;
    } else {
        executor->late_head = late;
    }
    executor->late_tail = late;
    atomic_fetch_add_explicit(&executor->late_count, 1, memory_order_relaxed);
}

/* Locked, the whole reply in reply_scratch. */
static void push_quietly(struct wire_executor *executor) {
    const struct wire_reply *reply = (const struct wire_reply *)executor->reply_scratch;
    if (executor->info.place == WIRE_EXECUTOR_INLINE) {
        flush_late(executor);
        if (executor->late_head != NULL ||
            !gpu_wire_ring_push(&executor->replies, reply, reply->length_bytes)) {
            push_late(executor, reply);
        }
    } else {
        uint64_t nap_ns = 20000;
        for (uint32_t round = 0;
             !gpu_wire_ring_push(&executor->replies, reply, reply->length_bytes); round++) {
            if (atomic_load_explicit(&executor->is_stopped, memory_order_acquire)) {
                return; /* nobody drains any more: the device is closed */
            }
            gpu_executor_wake(executor);
            if (round < SPIN_ROUNDS) {
                gpu_wire_relax();
                continue;
            }
            gpu_wire_nap_ns(nap_ns);
            nap_ns = nap_ns * 2 < NAP_NS_MAX ? nap_ns * 2 : NAP_NS_MAX;
        }
    }
}

static void push(struct wire_executor *executor) {
    push_quietly(executor);
    gpu_executor_wake(executor);
}

/* Locked. Lays a reply out in the scratch. */
static void build(struct wire_executor *executor, const struct wire_reply *header, const char *text,
                  const void *body, uint32_t body_bytes) {
    struct wire_reply *reply = (struct wire_reply *)executor->reply_scratch;
    size_t text_bytes = text != NULL ? strlen(text) : 0;
    bool is_cut = text_bytes > WIRE_REPLY_TEXT_BYTES_MAX;
    if (is_cut) {
        text_bytes = WIRE_REPLY_TEXT_BYTES_MAX;
    }
    size_t text_span = text_bytes != 0 ? (text_bytes + 1 + 15) & ~(size_t)15 : 0;
    size_t length = (sizeof *reply + text_span + body_bytes + 15) & ~(size_t)15;
    memset(executor->reply_scratch, 0, length);
    *reply = *header;
    reply->length_bytes = (uint32_t)length;
    reply->text_bytes = (uint32_t)text_bytes;
    reply->body_bytes = body_bytes;
    char *out = (char *)(reply + 1);
    if (text_bytes != 0) {
        snprintf(out, text_bytes + 1, "%s", text);
    }
    if (is_cut) {
        memcpy(out + text_bytes - (sizeof cut_note - 1), cut_note, sizeof cut_note - 1);
    }
    if (body_bytes != 0) {
        memcpy(out + text_span, body, body_bytes);
    }
}

void gpu_executor_answer(struct wire_executor *executor, uint64_t request, gpulua_status status,
                         int32_t driver_code, const char *text, const void *body,
                         uint32_t body_bytes) {
    const struct wire_reply header = {.kind = WIRE_REPLY_RESULT,
                                      .status = (uint16_t)status,
                                      .driver_code = driver_code,
                                      .seq = request};
    pthread_mutex_lock(&executor->reply_lock);
    build(executor, &header, text, body, body_bytes);
    push(executor);
    pthread_mutex_unlock(&executor->reply_lock);
}

void gpu_executor_answer_error(struct wire_executor *executor, uint64_t request,
                               const struct backend_error *error) {
    gpu_executor_answer(executor, request, error->status, error->driver_code,
                        error->log != NULL && error->log[0] != '\0' ? error->log : error->message,
                        NULL, 0);
}

void gpu_executor_fail(struct wire_executor *executor, uint32_t stream, uint64_t seq, uint32_t node,
                       int32_t driver_code, const struct backend_failure *failure) {
    struct {
        struct wire_failed failed;
        struct wire_place places[WIRE_PLACES_MAX];
    } body;
    const struct wire_reply header = {.kind = WIRE_REPLY_FAILURE,
                                      .status = (uint16_t)failure->status,
                                      .stream = stream,
                                      .driver_code = driver_code,
                                      .seq = seq};
    uint32_t places_bytes = failure->place_count * (uint32_t)sizeof *failure->places;
    uint32_t body_bytes = (uint32_t)sizeof body.failed + places_bytes;
    bool is_known = node != 0 || failure->place_count > 0;
    body.failed = (struct wire_failed){.node = node, .place_count = failure->place_count};
    if (places_bytes != 0) {
        memcpy(body.places, failure->places, places_bytes);
    }
    pthread_mutex_lock(&executor->reply_lock);
    /* Into the set first: a FORGET_FAILURES that counts this one can come as soon as it is out. */
    gpu_executor_failed_add(executor, stream, seq, ++executor->failure_number);
    build(executor, &header, failure->text, &body, is_known ? body_bytes : 0);
    push(executor);
    pthread_mutex_unlock(&executor->reply_lock);
}

void gpu_executor_ran(struct wire_executor *executor, uint32_t stream, uint64_t seq,
                      const struct wire_point *ready, uint32_t ready_count) {
    const struct wire_reply header = {.kind = WIRE_REPLY_RAN, .stream = stream, .seq = seq};
    pthread_mutex_lock(&executor->reply_lock);
    build(executor, &header, NULL, ready, ready_count * (uint32_t)sizeof *ready);
    push(executor);
    pthread_mutex_unlock(&executor->reply_lock);
}

/* On the executor's thread: a checked device has no other. */
void gpu_executor_touched(struct wire_executor *executor, uint32_t stream, uint64_t seq,
                          const struct backend_touched *touched) {
    const struct wire_reply header = {.kind = WIRE_REPLY_TOUCHED, .stream = stream, .seq = seq};
    struct {
        struct wire_touched touched;
        struct wire_touch touches[WIRE_TOUCHES_MAX];
    } body;
    const struct executor_module *modules = executor->modules.rows;
    body.touched = (struct wire_touched){.address = touched->address};
    for (uint32_t i = 0; i < executor->modules.count; i++) {
        if (modules[i].module == touched->module) {
            body.touched.module = i;
        }
    }
    uint32_t touches_bytes = touched->count * (uint32_t)sizeof *touched->touches;
    memcpy(body.touches, touched->touches, touches_bytes);
    pthread_mutex_lock(&executor->reply_lock);
    build(executor, &header, touched->name, &body, (uint32_t)sizeof body.touched + touches_bytes);
    push(executor);
    pthread_mutex_unlock(&executor->reply_lock);
}

void gpu_executor_tell_times(struct wire_executor *executor, const struct wire_times *times,
                             uint32_t count) {
    const struct wire_reply header = {.kind = WIRE_REPLY_TIMES};
    pthread_mutex_lock(&executor->reply_lock);
    build(executor, &header, NULL, times, count * (uint32_t)sizeof *times);
    push_quietly(executor);
    pthread_mutex_unlock(&executor->reply_lock);
}

void gpu_executor_log(struct wire_executor *executor, const char *line) {
    const struct wire_reply header = {.kind = WIRE_REPLY_LOG};
    pthread_mutex_lock(&executor->reply_lock);
    build(executor, &header, line, NULL, 0);
    push(executor);
    pthread_mutex_unlock(&executor->reply_lock);
}

void gpu_executor_lose(struct wire_executor *executor, int32_t driver_code, const char *text) {
    const struct wire_reply header = {
        .kind = WIRE_REPLY_LOST, .status = GPULUA_DEVICE_LOST, .driver_code = driver_code};
    char said[EXECUTOR_ASSERTION_BYTES + 32], whole[2048];
    pthread_mutex_lock(&executor->reply_lock);
    if (!executor->lost_told) {
        executor->lost_told = true;
        if (executor->info.assertions != NULL &&
            gpu_executor_assertions_say(executor->info.assertions, said, sizeof said)) {
            snprintf(whole, sizeof whole, "%s: %s", said, text); /* what it was, then the code */
            text = whole;
        }
        atomic_store_explicit(&executor->is_lost, true, memory_order_release);
        atomic_store_explicit(&executor->page->state, WIRE_STATE_LOST, memory_order_release);
        build(executor, &header, text, NULL, 0);
        push(executor);
    }
    pthread_mutex_unlock(&executor->reply_lock);
}
