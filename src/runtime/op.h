/* Operations: one piece of work on a stream, or one request to the executor (compile), and waiting
 * for it.
 *
 * An op is pending, then over: succeeded or failed. It becomes over only inside gpu_device_poll,
 * gpu_op_wait and gpu_device_wait_idle (owner thread), never in the middle of anything else. Errors
 * are observed by whoever calls gpu_op_observe; an op that failed unobserved is reported by
 * gpu_device_take_unobserved. */
#ifndef GPU_RUNTIME_OP_H
#define GPU_RUNTIME_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/device.h"
#include "runtime/error.h"

/* Of work that became a node, and will never be over by itself? */
bool gpu_op_is_captured(const struct gpu_op *op);
struct gpu_op *gpu_op_retain(struct gpu_op *op);
void gpu_op_release(struct gpu_op *op);

/* Is it over? Looks at the page (a few ns); does not fire waiters. */
bool gpu_op_is_over(struct gpu_op *op);
/* After it is over (is_over said so): GPULUA_OK or its error's code. Polls the device when that is
 * needed to know. */
gpulua_status gpu_op_status(struct gpu_op *op);
/* The error of a failed op; NULL if it succeeded or is pending. Lives as long as the op. */
const struct gpu_error *gpu_op_error(struct gpu_op *op);
/* Its failure has been seen by somebody: it and its root are no longer reported elsewhere. */
void gpu_op_observe(struct gpu_op *op);

/* The device is lost if it is not over within so many seconds from now: DeviceLost names it. With
 * isolation `process` the kernel ends with the device's process. Of one that is over: nothing. */
gpulua_status gpu_op_set_deadline(struct gpu_op *op, double seconds, struct gpu_error *error);

/* Blocks the thread until it is over: spins up to GPU_SPIN_NS, then sleeps. Ok when over (however
 * it ended); Timeout after timeout_ns (-1: for ever); Interrupted. Other ops that end meanwhile
 * fire their waiters. */
#define GPU_SPIN_NS 50000
gpulua_status gpu_op_wait(struct gpu_op *op, int64_t timeout_ns, struct gpu_error *error);
/* Spins for at most spin_ns, and GPU_WAKE_NS more where the executor had to be woken for it: two
 * sleepers woken one after the other cost more than that. True once it is over. For a loop that has
 * nothing else to run. */
#define GPU_WAKE_NS 200000
bool gpu_op_spin(struct gpu_op *op, int64_t spin_ns);

/* A waiter is embedded in something of the caller's (zeroed, which holds the op while it is
 * linked), and fires once, from the caller's gpu_device_poll, after it has been unlinked. */
struct gpu_waiter {
    struct gpu_waiter *next;
    struct gpu_waiter **link; /* NULL: not linked */
    struct gpu_seat *seat;    /* while it is watched, on a shared device: who does */
    struct gpu_op *op;        /* on a shared device, once the op is over: which one */
    void (*fire)(struct gpu_waiter *waiter, struct gpu_op *op);
};
/* The op must not be over in the sense of having fired: if it is over already, fires at the next
 * poll. */
void gpu_op_watch(struct gpu_op *op, struct gpu_waiter *waiter);
void gpu_op_unwatch(struct gpu_waiter *waiter); /* not linked: nothing */

/* Of work, in the order in which the device was given it, from 1; 0: a request, or a node. */
uint64_t gpu_op_number(const struct gpu_op *op);
/* Seconds that it took on the device; negative: it is not over, its device is not traced, or does
 * not know. May block for an answer of the device. */
double gpu_op_elapsed_s(struct gpu_op *op);
void gpu_op_info(const struct gpu_op *op, struct gpu_op_info *info);
struct gpu_device *gpu_op_device(const struct gpu_op *op);
void *gpu_op_shadow(const struct gpu_op *op); /* see struct gpu_observer; NULL: none */

#endif
