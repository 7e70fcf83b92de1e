/* A device that several objects have, each in a thread of its own.
 *
 * They share its executor, its ring, its memory and the histories of it, so that an order between
 * work of two of them is found like any other. Every call of the runtime holds the device's lock,
 * from the looks at what is in flight to the commit, and lets go of it only where it sleeps or
 * calls what may run a script. Each object has a seat: its own operations end on its own thread,
 * and what nobody has observed of them is raised there. Who calls is known from the seat that the
 * thread was last given. */
#ifndef GPU_RUNTIME_SHARE_H
#define GPU_RUNTIME_SHARE_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/device.h"
#include "runtime/error.h"

struct gpu_seat;

/* From here on several threads may have the device, which nobody else knows yet. Unsupported: a
 * device in check mode, whose order would be a matter of time. OutOfMemory. */
gpulua_status gpu_device_share(struct gpu_device *device, struct gpu_error *error);
/* Shared, and the caller has no seat there (any more). */
bool gpu_device_is_left(const struct gpu_device *device);
/* In a child by fork: another thread was at work on it, so no poll tells what was pending there.
 * Whoever asks after an operation hears that it is over. */
bool gpu_device_is_torn(const struct gpu_device *device);

/* A seat at a shared device. `interrupt` (borrowed) ends its blocking waits. Io: no file descriptor
 * is left; OutOfMemory. */
gpulua_status gpu_seat_take(struct gpu_device *device, const _Atomic int *interrupt,
                            struct gpu_seat **seat, struct gpu_error *error);
/* What it has in flight goes on and is nobody's. What it watches fires now, over or not; recorders
 * that it holds are committed. NULL is fine. */
void gpu_seat_leave(struct gpu_seat *seat);
/* This thread calls for it, until it calls for another. */
void gpu_seat_sit(struct gpu_seat *seat);
/* To be slept on beside gpu_device_poll_fd: readable when another thread's call has ended what this
 * seat sleeps for. */
int gpu_seat_event_fd(const struct gpu_seat *seat);
/* From 0, by the order in which they were taken: for spreading work over streams. */
uint32_t gpu_seat_number(const struct gpu_seat *seat);

#endif
