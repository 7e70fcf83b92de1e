/* Events of the CPU device. Each record of an event makes a ticket, shared by the event, the item
 * that fires it and those that wait for it: so a wait keeps the record that it was issued for, even
 * when the event has been recorded again. */
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/device.h"

/* A stream address that no stream has: the record has fired. */
static char fired_mark;
#define TICKET_FIRED ((struct backend_stream *)(void *)&fired_mark)

static gpulua_status fail_memory(struct backend_error *error) {
    return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
}

int64_t gpu_cpu_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- tickets ---- */

struct cpu_ticket *gpu_cpu_ticket_create(void) {
    struct cpu_ticket *ticket = malloc(sizeof *ticket);
    if (ticket != NULL) {
        atomic_init(&ticket->ref_count, 1);
        atomic_init(&ticket->parked, NULL);
        atomic_init(&ticket->sleeps, 0);
        ticket->is_timed = false;
    }
    return ticket;
}

void gpu_cpu_ticket_retain(struct cpu_ticket *ticket) {
    atomic_fetch_add_explicit(&ticket->ref_count, 1, memory_order_relaxed);
}

void gpu_cpu_ticket_release(struct cpu_ticket *ticket) {
    if (ticket != NULL &&
        atomic_fetch_sub_explicit(&ticket->ref_count, 1, memory_order_acq_rel) == 1) {
        free(ticket);
    }
}

bool gpu_cpu_ticket_has_fired(const struct cpu_ticket *ticket) {
    return atomic_load_explicit(&ticket->parked, memory_order_acquire) == TICKET_FIRED;
}

void gpu_cpu_ticket_fire(struct cpu_ticket *ticket) {
    if (__builtin_expect(ticket->is_timed, 0)) {
        ticket->fired_ns = gpu_cpu_clock_ns();
    }
    struct backend_stream *parked = atomic_exchange(&ticket->parked, TICKET_FIRED);
    while (parked != NULL) {
        struct backend_stream *next = parked->next_parked; /* before it runs on */
        gpu_cpu_pool_ready(parked);
        parked = next;
    }
}

/* Sequentially consistent, as are the mark and what the sleeper does: it sees the mark, or is seen.
 */
void gpu_cpu_ticket_wake(struct cpu_ticket *ticket) {
    if (__builtin_expect(atomic_load(&ticket->sleeps) != 0, 0)) {
        atomic_store(&ticket->sleeps, 0);
        syscall(SYS_futex, &ticket->sleeps, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

bool gpu_cpu_ticket_park(struct cpu_ticket *ticket, struct backend_stream *stream) {
    struct backend_stream *parked = atomic_load_explicit(&ticket->parked, memory_order_acquire);
    do {
        if (parked == TICKET_FIRED) {
            return false;
        }
        stream->next_parked = parked;
    } while (!atomic_compare_exchange_weak_explicit(&ticket->parked, &parked, stream,
                                                    memory_order_acq_rel, memory_order_acquire));
    return true;
}

/* ---- the slots of the backend ---- */

gpulua_status gpu_cpu_stream_wait(struct backend_stream *stream, struct backend_event *event,
                                  struct backend_error *error) {
    if (event->ticket == NULL || gpu_cpu_ticket_has_fired(event->ticket)) {
        return GPULUA_OK;
    }
    struct cpu_item *item = gpu_cpu_item_make(stream, CPU_ITEM_WAIT, 0, 0);
    if (item == NULL) {
        return fail_memory(error);
    }
    gpu_cpu_ticket_retain(event->ticket);
    item->u.ticket = event->ticket;
    gpu_cpu_item_put(stream, item);
    return GPULUA_OK;
}

gpulua_status gpu_cpu_event_create(struct backend_device *device, struct backend_event **event,
                                   struct backend_error *error) {
    (void)device;
    *event = calloc(1, sizeof **event);
    return *event != NULL ? GPULUA_OK : fail_memory(error);
}

void gpu_cpu_event_destroy(struct backend_device *device, struct backend_event *event) {
    (void)device;
    gpu_cpu_ticket_release(event->ticket);
    free(event);
}

gpulua_status gpu_cpu_event_record(struct backend_event *event, struct backend_stream *stream,
                                   struct backend_error *error) {
    struct cpu_ticket *ticket = gpu_cpu_ticket_create();
    struct cpu_item *item = ticket != NULL ? gpu_cpu_item_make(stream, CPU_ITEM_EVENT, 0, 0) : NULL;
    if (item == NULL) {
        gpu_cpu_ticket_release(ticket);
        return fail_memory(error);
    }
    ticket->is_timed = stream->device->is_timed;
    gpu_cpu_ticket_retain(ticket);
    gpu_cpu_ticket_release(event->ticket);
    event->ticket = ticket;
    item->u.ticket = ticket;
    gpu_cpu_item_put(stream, item);
    return GPULUA_OK;
}

enum backend_query gpu_cpu_event_query(struct backend_event *event, struct backend_error *error) {
    (void)error;
    return event->ticket == NULL || gpu_cpu_ticket_has_fired(event->ticket) ? BACKEND_DONE
                                                                            : BACKEND_PENDING;
}

/* The ticket stays: the event keeps it for as long as somebody waits. */
enum backend_query gpu_cpu_event_wait(struct backend_event *event) {
    struct cpu_ticket *ticket = event->ticket;
    if (ticket == NULL) {
        return BACKEND_DONE;
    }
    atomic_store(&ticket->sleeps, 1);
    while (atomic_load(&ticket->parked) != TICKET_FIRED) {
        syscall(SYS_futex, &ticket->sleeps, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    }
    return BACKEND_DONE;
}

gpulua_status gpu_cpu_event_times(struct backend_event *begin, struct backend_event *end,
                                  int64_t *begin_ns, int64_t *end_ns, struct backend_error *error) {
    const struct cpu_ticket *first = begin->ticket, *last = end->ticket;
    if (first == NULL || last == NULL || !first->is_timed || !last->is_timed) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "an event without a time");
    }
    *begin_ns = first->fired_ns;
    *end_ns = last->fired_ns;
    return GPULUA_OK;
}
