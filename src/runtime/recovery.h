/* Coming up again after a loss: what the files of runtime/ need of it. */
#ifndef GPU_RUNTIME_RECOVERY_H
#define GPU_RUNTIME_RECOVERY_H

#include "runtime/state.h"

/* False: no memory. The device's isolation is known. */
bool gpu_recovery_init(struct gpu_device *device, int32_t restarts_max, double window_s);
/* The record that opens the device. False: no memory. */
bool gpu_recovery_keep_open(struct gpu_device *device, const struct wire_record *record);
/* ---- news.c: a loss, that it does not come up any more, or (NULL) that it is up again ---- */
bool gpu_news_init(struct gpu_device *device); /* false: no memory */
void gpu_news_add(struct gpu_device *device, const struct gpu_error *loss);
/* What was pending has failed with the loss that was added last. */
void gpu_news_add_failure(struct gpu_device *device);
void gpu_news_finish(struct gpu_device *device);

/* Starts the executor that takes over with the next loss, if there is to be one. It is not waited
 * for. */
void gpu_recovery_keep_spare(struct gpu_device *device);
/* Tells the spare, if there is one, before its turn. False: it does not know it. */
bool gpu_recovery_tell(struct gpu_device *device, struct wire_record *record,
                       struct gpu_told *told);
/* The arena has grown so far. */
void gpu_recovery_tell_arena(struct gpu_device *device, uint64_t byte_count);
/* Does the spare that there is, or the executor that it has become, know it? */
bool gpu_recovery_is_told(const struct gpu_device *device, const struct gpu_told *told);
/* A module's text is given up, which the spare may yet look at: until then it stays. Takes the
 * reference; NULL is fine. */
void gpu_recovery_leave_unread(struct gpu_device *device, struct gpu_block *text,
                               const struct gpu_told *told);
/* Texts that it has looked at, or all. */
void gpu_recovery_drop_unread(struct gpu_device *device, bool all);
/* Will it come up again, once it is lost? */
bool gpu_recovery_is_possible(const struct gpu_device *device);
/* All that is pending is about to fail with the device. */
void gpu_recovery_note_late_writers(struct gpu_device *device);
/* Of a device that is to come up again, when it has to be polled; INT64_MAX: it need not be. A
 * former life is let end first, of which there is one at a time. */
int64_t gpu_recovery_alarm_ns(const struct gpu_device *device);
/* The process of the former life, where it should have ended long ago and is waited for; or 0. */
int gpu_recovery_late_pid(const struct gpu_device *device);
/* At the end of each poll of a device that is not open. */
void gpu_recovery_step(struct gpu_device *device);
/* There is no memory, and the former life may have had some when that was found out: blocks until
 * it has none, true. False: there is none, somebody interrupts, it takes very long; or the time of
 * the task is up, which `status` and `error` then say. */
bool gpu_recovery_outwait(struct gpu_device *device, gpulua_status *status,
                          struct gpu_error *error);
/* The device is closed: who waits for it hears of that. */
void gpu_recovery_finish(struct gpu_device *device);
void gpu_recovery_free(struct gpu_device *device);

/* A request of the restoration. `take` gets the answer; NULL instead: it failed. `is_vital`: then
 * the device does not come up this time. */
void gpu_recovery_request(struct gpu_device *device, struct wire_record *record, const char *label,
                          bool is_vital,
                          void (*take)(struct gpu_device *device, void *user,
                                       const struct wire_reply *reply),
                          void *user);

/* ---- what it needs of others ---- */

/* The device has come up again: it is loaded anew, with the kernels that scripts have of it. */
void gpu_module_restore(struct gpu_module *module);
/* Tells the spare of it, and of its kernels, as far as it does not know. */
void gpu_module_tell(struct gpu_module *module);
/* The executor makes it. */
gpulua_status gpu_stream_send(struct gpu_stream *stream, struct gpu_error *error);
void gpu_stream_tell(struct gpu_stream *stream); /* the spare, too */
/* One that survives: the new executor is told what it has to know of it. */
void gpu_block_restore(struct gpu_block *block);

#endif
