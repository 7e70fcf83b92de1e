/* Check mode: the order in which a device does its work, chosen by a seed.
 *
 * No thread serves the streams. Operations wait in their queues, as late as they may: nothing is
 * done until somebody asks. Then one operation after another of those that are ready (the first of
 * its stream, and all that it waits for is over) is chosen, until what was asked for is over; those
 * that nobody asked for may come first. All on the executor's thread.
 *
 * What is chosen follows from the seed and from what was put into the queues and asked for, in that
 * order, and from nothing else. */
#ifndef GPU_CPU_CHECK_SCHEDULE_H
#define GPU_CPU_CHECK_SCHEDULE_H

#include "backend/cpu/device.h"

/* In all queues of a device; one more, and one is done without being asked for. */
#define CPU_SCHEDULE_OPERATIONS_MAX 2048u

gpulua_status gpu_cpu_schedule_create(struct backend_device *device,
                                      const struct backend_open_info *info,
                                      struct backend_error *error);
void gpu_cpu_schedule_destroy(struct backend_device *device);
/* A stream that was just made. */
void gpu_cpu_schedule_join(struct backend_stream *stream);
/* An item has been put into its queue. */
void gpu_cpu_schedule_put(struct backend_stream *stream, const struct cpu_item *item);
/* A number below the limit, of the seed's; 0 where the order is given. */
uint32_t gpu_cpu_schedule_below(struct cpu_schedule *schedule, uint32_t limit);
/* As backend_ops.ask. */
void gpu_cpu_schedule_ask(struct backend_device *device, struct backend_stream *stream,
                          uint64_t seq);

#endif
