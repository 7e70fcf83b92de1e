/* Shared devices: the lock, who sleeps, and how those are woken. */
#include "runtime/share.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/memory/stack.h"
#include "runtime/watchdog.h"
#include "wire/descriptor.h"

#define GUEST_NAP_NS 1000000 /* of threads without a seat, whom nobody wakes */

/* Who this thread calls for. Another thread may have ended that seat, or the whole device, so it is
 * known by numbers that are given out once. Its address also names the thread. */
static _Thread_local struct {
    uint64_t share_number; /* 0: nobody */
    uint32_t seat_number;
    struct gpu_seat *seat; /* looked at while the numbers are right */
} here;

static uintptr_t this_thread(void) {
    return (uintptr_t)&here;
}

/* ---- the lock ---- */

static bool is_ours(const struct gpu_share *share) {
    return atomic_load_explicit(&share->owner, memory_order_relaxed) == this_thread();
}

void gpu_share_lock(struct gpu_share *share) {
    if (is_ours(share)) {
        share->depth++;
        return;
    }
    pthread_mutex_lock(&share->mutex);
    atomic_store_explicit(&share->owner, this_thread(), memory_order_relaxed);
    share->depth = 1;
}

static void wake(struct gpu_seat *seat) {
    uint64_t one = 1;
    if (!seat->is_woken && write(seat->event_fd, &one, sizeof one) == sizeof one) {
        seat->is_woken = true;
    }
}

static void wake_all(struct gpu_share *share) {
    for (struct gpu_seat *seat = share->seats; seat; seat = seat->next) {
        if (seat->is_asleep) {
            wake(seat);
        }
    }
}

/* The flag that wakes sleepers is one for all of them: whoever takes it away, or makes an inline
 * executor look elsewhere, sets it again for the others. */
static void arm_for_others(struct gpu_share *share) {
    struct gpu_device *device = share->device;
    share->wants_arming = false;
    if (share->asleep_count > 0 && device && device->link && device->link->ops->arm(device->link)) {
        wake_all(share);
    }
}

static void let_go(struct gpu_share *share) {
    if (share->wants_arming) {
        arm_for_others(share);
    }
    bool is_over = share->device == NULL;
    struct gpu_import *returned = NULL;
    while (share->returned) {
        gpu_import_leave(share->returned, &returned);
    }
    atomic_store_explicit(&share->owner, 0, memory_order_relaxed);
    pthread_mutex_unlock(&share->mutex);
    if (is_over) { /* the device's last reference is gone: nobody else can have it but a fork */
        gpu_fork_remove(&share->fork);
        pthread_mutex_destroy(&share->mutex);
        while (share->spare) {
            struct gpu_seat *seat = share->spare;
            share->spare = seat->next;
            free(seat);
        }
        free(share);
    }
    gpu_imports_end(&returned);
}

void gpu_share_unlock(struct gpu_share *share) {
    if (--share->depth == 0) {
        let_go(share);
    }
}

uint32_t gpu_share_pause(struct gpu_device *device) {
    struct gpu_share *share = device->share;
    if (!share || device->is_polling) {
        return 0;
    }
    uint32_t depth = share->depth;
    share->depth = 0;
    device->interludes++;
    let_go(share);
    return depth;
}

void gpu_share_resume(struct gpu_device *device, uint32_t depth) {
    if (depth > 0) {
        gpu_share_lock(device->share);
        device->share->depth = depth;
    }
}

void gpu_share_lost(struct gpu_device *device) {
    if (device->share) {
        wake_all(device->share);
    }
}

/* ---- forks ---- */

static struct gpu_share *share_of(struct gpu_fork *fork) {
    return (struct gpu_share *)(void *)((char *)fork - offsetof(struct gpu_share, fork));
}

static bool hold(struct gpu_fork *fork) {
    struct gpu_share *share = share_of(fork);
    if (!is_ours(share)) {
        if (pthread_mutex_trylock(&share->mutex) != 0) {
            return false;
        }
        atomic_store_explicit(&share->owner, this_thread(), memory_order_relaxed);
        share->depth = 0;
    }
    share->depth++;
    return true;
}

/* Nothing has happened meanwhile. */
static void give_back(struct gpu_fork *fork) {
    struct gpu_share *share = share_of(fork);
    if (--share->depth == 0) {
        atomic_store_explicit(&share->owner, 0, memory_order_relaxed);
        pthread_mutex_unlock(&share->mutex);
    }
}

/* Its lists may be half changed. Who begins at the device finds none of them any more, and who
 * begins at what is in them turns back (GPU_ENTER_WHOLE): it stays as it is until the child ends.
 */
static void tear(struct gpu_device *device) {
    device->is_torn = true;
    device->is_polling = false;
    device->refs++; /* it is never destroyed */
    device->slot_count = 0;
    device->blocks = device->retiring = NULL;
    device->requests = NULL;
    device->deferred = device->later = NULL;
    device->memories = NULL;
    device->memory = device->pinned = device->external = NULL;
    device->imports = NULL;
    device->exports = NULL;
    device->pools = NULL;
    device->graphs = NULL;
    device->holding = NULL;
    device->unobserved_count = device->failed_count = 0;
    device->recovery.op = NULL;
}

/* What is read from the parent's descriptors the parent loses. */
static void in_child(struct gpu_fork *fork) {
    struct gpu_share *share = share_of(fork);
    for (struct gpu_seat *seat = share->seats; seat; seat = seat->next) {
        gpu_wire_descriptor_replace(&seat->event_fd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        seat->is_woken = false;
    }
    if (!fork->is_held) { /* the thread that has the lock, and may be in a poll, is not here */
        pthread_mutex_init(&share->mutex, NULL);
        atomic_store_explicit(&share->owner, 0, memory_order_relaxed);
        share->depth = 0;
        share->returned = NULL;
        if (share->device) {
            tear(share->device);
        }
    }
}

/* ---- sharing ---- */

gpulua_status gpu_device_share(struct gpu_device *device, struct gpu_error *error) {
    GPU_ENTER(device);
    if (device->is_checked) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "a device in check mode cannot be shared: in which order threads "
                             "come would be a matter of time");
    }
    struct gpu_share *share = calloc(1, sizeof *share);
    if (!share || (device->trace && !gpu_trace_share(device->trace))) {
        free(share);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a shared device");
    }
    static _Atomic uint64_t last_number;
    share->number = atomic_fetch_add(&last_number, 1) + 1;
    pthread_mutex_init(&share->mutex, NULL);
    share->device = device;
    device->share = share;
    share->fork = (struct gpu_fork){.in_child = in_child, .hold = hold, .let_go = give_back};
    gpu_fork_add(&share->fork);
    return GPULUA_OK;
}

bool gpu_device_is_left(const struct gpu_device *device) {
    GPU_ENTER(device);
    return device->share && !gpu_seat_of(device);
}

bool gpu_device_is_torn(const struct gpu_device *device) {
    GPU_ENTER(device);
    return device->is_torn;
}

struct gpu_seat *gpu_share_seat(const struct gpu_share *share) {
    return here.share_number == share->number && here.seat->number == here.seat_number ? here.seat
                                                                                       : NULL;
}

void gpu_seat_sit(struct gpu_seat *seat) {
    here.share_number = seat ? seat->share_number : 0;
    here.seat_number = seat ? seat->number : 0;
    here.seat = seat;
}

int gpu_seat_event_fd(const struct gpu_seat *seat) {
    return seat->event_fd;
}

uint32_t gpu_seat_number(const struct gpu_seat *seat) {
    return seat->number;
}

/* ---- seats ---- */

/* Threads may remember it: it stays a seat, of nobody, for the next who comes. */
static void end(struct gpu_share *share, struct gpu_seat *seat) {
    if (seat->event_fd >= 0) {
        close(seat->event_fd);
    }
    *seat = (struct gpu_seat){.number = UINT32_MAX, .next = share->spare};
    share->spare = seat;
}

gpulua_status gpu_seat_take(struct gpu_device *device, const _Atomic int *interrupt,
                            struct gpu_seat **seat, struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check_open(device, error);
    if (status && !gpu_device_is_returning(device)) {
        return status;
    }
    if (status) { /* it comes up again, and can be waited for */
        gpu_error_finish(error);
    }
    struct gpu_share *share = device->share;
    struct gpu_seat *made = share->spare;
    if (made) {
        share->spare = made->next;
    } else if (!(made = malloc(sizeof *made))) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a shared device");
    }
    *made = (struct gpu_seat){.number = UINT32_MAX, .share_number = share->number};
    made->interrupt = interrupt;
    made->event_fd = gpu_wire_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (made->event_fd < 0) {
        gpu_error_set(error, GPULUA_IO, "device %s cannot be shared once more: %s", device->title,
                      strerror(errno));
        end(share, made);
        return GPULUA_IO;
    }
    made->device = gpu_device_retain(device);
    made->number = share->seat_number_next++;
    made->next = share->seats;
    share->seats = made;
    *seat = made;
    return GPULUA_OK;
}

/* Another seat's tasks have the same numbers. */
static void disown_failure(struct gpu_failure *failure, const struct gpu_seat *seat) {
    if (failure->seat == seat) {
        failure->seat = NULL;
        failure->task = 0;
    }
}

static void disown(struct gpu_op *op, const struct gpu_seat *seat) {
    for (; op; op = op->next) {
        if (op->seat == seat) {
            op->seat = NULL;
            op->task = 0;
        }
        if (op->failure) {
            disown_failure(op->failure, seat);
        }
        gpu_op_dismiss(op, seat);
    }
}

void gpu_seat_leave(struct gpu_seat *seat) {
    if (!seat) {
        return;
    }
    struct gpu_device *device = seat->device;
    gpu_seat_sit(NULL);
    GPU_ENTER_WHOLE(device);
    gpu_seat_sit(seat);
    gpu_device_disarm(device);
    gpu_recorders_leave(device, seat);
    for (struct gpu_seat **at = &device->share->seats; *at; at = &(*at)->next) {
        if (*at == seat) {
            *at = seat->next;
            break;
        }
    }
    for (uint32_t slot = 0; slot < device->slot_count; slot++) {
        if (device->streams[slot]) {
            disown(device->streams[slot]->head, seat);
        }
    }
    disown(device->requests, seat);
    for (uint32_t i = 0; i < device->unobserved_count; i++) {
        disown_failure(device->unobserved[i], seat);
    }
    for (uint32_t i = 0; i < device->failed_count; i++) {
        disown_failure(device->failed[i].failure, seat);
    }
    for (struct gpu_memory *memory = device->memories; memory; memory = memory->next) {
        memory->seat = memory->seat == seat ? NULL : memory->seat;
    }
    (void)gpu_seat_hear(device);
    gpu_accounts_tell(device, seat, true);
    gpu_seat_sit(NULL);
    end(device->share, seat);
    gpu_device_release(device);
}

/* ---- what a seat is told ---- */

void gpu_seat_fire(struct gpu_waiter *waiter, struct gpu_op *op) {
    struct gpu_seat *seat = waiter->seat;
    waiter->op = op;
    waiter->link = seat->fired ? seat->fired_end : &seat->fired;
    *waiter->link = waiter;
    seat->fired_end = &waiter->next;
}

uint32_t gpu_seat_hear(struct gpu_device *device) {
    struct gpu_seat *seat = gpu_seat_of(device);
    uint32_t count = 0;
    while (seat && seat->fired) {
        struct gpu_waiter *waiter = seat->fired;
        gpu_op_unwatch(waiter);
        waiter->fire(waiter, waiter->op);
        count++;
    }
    if (seat && seat->is_pressed) {
        seat->is_pressed = false;
        gpu_accounts_tell(device, seat, false);
    }
    return count;
}

void gpu_share_tell(struct gpu_device *device) {
    struct gpu_share *share = device->share;
    for (struct gpu_seat *seat = share ? share->seats : NULL; seat; seat = seat->next) {
        if (seat->is_asleep && (seat->fired || seat->is_napping)) {
            wake(seat);
        }
    }
}

/* ---- sleeping ---- */

bool gpu_share_wait(struct gpu_device *device, gpulua_status *status, struct gpu_error *error) {
    if (device->is_overtaken) {
        device->is_overtaken = false;
        gpu_error_finish(error);
        return true;
    }
    if (!device->share || !device->share->is_blocked) {
        return false;
    }
    device->share->is_blocked = false;
    if (gpu_device_is_interrupted(device)) {
        gpu_error_finish(error);
        *status = gpu_error_set(error, GPULUA_INTERRUPTED,
                                "interrupted while another thread is between preflight and commit");
        return false;
    }
    gpu_error_finish(error);
    if (gpu_time_is_told(device, "waiting for another thread's recorder", error)) {
        *status = GPULUA_TIMEOUT;
        return false;
    }
    gpu_device_nap(device, -1);
    return true;
}

bool gpu_seat_arm(struct gpu_device *device) {
    struct gpu_seat *seat = gpu_seat_of(device);
    if (!seat) {
        return false;
    }
    if (!seat->is_asleep) {
        seat->is_asleep = true;
        device->share->asleep_count++;
    }
    bool is_there = device->link->ops->arm(device->link);
    if (is_there) { /* which has disarmed the link, and what is there may be for others */
        wake_all(device->share);
    }
    return is_there || seat->fired != NULL;
}

void gpu_seat_disarm(struct gpu_device *device) {
    struct gpu_seat *seat = gpu_seat_of(device);
    if (!seat || !seat->is_asleep) {
        return;
    }
    uint64_t count;
    if (seat->is_woken && read(seat->event_fd, &count, sizeof count) < 0) {
        /* Somebody else has read it. */
    }
    seat->is_woken = false;
    seat->is_asleep = false;
    device->share->asleep_count--;
    if (device->link) {
        device->link->ops->disarm(device->link);
        (void)gpu_device_poll(device); /* what others sleep for, too */
        device->share->wants_arming = device->share->asleep_count > 0;
    }
}

void gpu_seat_nap(struct gpu_device *device, int64_t timeout_ns) {
    struct gpu_seat *seat = gpu_seat_of(device);
    if (!seat) { /* whoever closes the device at last */
        struct timespec limit = {
            .tv_sec = 0, .tv_nsec = timeout_ns < GUEST_NAP_NS ? (long)timeout_ns : GUEST_NAP_NS};
        uint32_t depth = gpu_share_pause(device);
        nanosleep(&limit, NULL);
        gpu_share_resume(device, depth);
        return;
    }
    seat->is_napping = true;
    if (!gpu_seat_arm(device)) {
        struct pollfd events[] = {{.fd = device->link->poll_fd, .events = POLLIN},
                                  {.fd = seat->event_fd, .events = POLLIN}};
        struct timespec limit = {.tv_sec = 0, .tv_nsec = (long)timeout_ns};
        uint32_t depth = gpu_share_pause(device);
        (void)ppoll(events, 2, &limit, NULL);
        gpu_share_resume(device, depth);
    }
    seat->is_napping = false;
    gpu_seat_disarm(device);
}
