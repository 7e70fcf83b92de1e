/* Work that does not end: what the files of runtime/ need of it. */
#ifndef GPU_RUNTIME_WATCHDOG_H
#define GPU_RUNTIME_WATCHDOG_H

#include "runtime/state.h"

void gpu_watchdog_init(struct gpu_device *device, double seconds);
void gpu_watchdog_finish(struct gpu_device *device);
static inline bool gpu_watchdog_is_set(const struct gpu_device *device) {
    return device->watchdog.count > 0 || device->watchdog.term_ns > 0;
}
/* In each poll, if it is set: loses the device for what does not end. */
void gpu_watchdog_look(struct gpu_device *device);
/* The same in check mode, while the executor does what somebody has asked for. `is_first`: it has
 * just been asked. */
void gpu_watchdog_settle(struct gpu_device *device, bool is_first);

/* Is the time of the task that runs up, within which its calls may wait? */
bool gpu_time_is_up(const struct gpu_device *device);
/* If it is, the call fails: Timeout, and true. */
bool gpu_time_is_told(const struct gpu_device *device, const char *what, struct gpu_error *error);

#endif
