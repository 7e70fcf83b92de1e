/* Captures of the host's: it has the driver turn what it puts on a stream, one of its own or one of
 * ours whose handle it has asked for, into a graph of its own. What is submitted here is no part of
 * it, and goes on; but nothing is put on a stream that is being captured, because it would not be
 * done. Streams are the driver's handles. Owner thread only.
 *
 * All are Unsupported where other libraries do not know the device's streams, and Closed or
 * DeviceLost when it is. None blocks. */
#ifndef GPU_RUNTIME_NATIVE_CAPTURE_H
#define GPU_RUNTIME_NATIVE_CAPTURE_H

#include "runtime/device.h"
#include "wire/record.h"

/* CaptureActive: the stream is being captured; InvalidArgument: it cannot be. */
gpulua_status gpu_native_capture_begin(struct gpu_device *device, uint64_t stream,
                                       enum wire_capture_mode mode, struct gpu_error *error);
gpulua_status gpu_native_capture_look(struct gpu_device *device, uint64_t stream,
                                      enum wire_capture_state *state, struct gpu_error *error);
/* Ends it, and gives its graph. CaptureInvalidated: nothing has come of it; StreamMisuse: it is
 * another thread's, and goes on; Closed: it was over. */
gpulua_status gpu_native_capture_end(struct gpu_device *device, uint64_t stream, uint64_t *graph,
                                     struct gpu_error *error);
/* Ends it and drops the graph, if it is under way; also for who has left the device. */
gpulua_status gpu_native_capture_drop(struct gpu_device *device, uint64_t stream,
                                      struct gpu_error *error);

/* CaptureActive, CaptureInvalidated: it is being captured. */
gpulua_status gpu_native_check_uncaptured(struct gpu_device *device, uint64_t stream,
                                          struct gpu_error *error);
/* That of ours which the driver knows so, retained for the caller; NULL: it is somebody else's. */
struct gpu_stream *gpu_stream_of_native(struct gpu_device *device, uint64_t native);

/* CaptureActive, CaptureInvalidated: the host is capturing this stream of ours, so nothing can be
 * put on it. */
gpulua_status gpu_stream_check_uncaptured(struct gpu_stream *stream, struct gpu_error *error);

/* The newest operation of the stream was put there without that check. */
void gpu_stream_note_unchecked(struct gpu_stream *stream);
/* CaptureActive: one of them cannot be waited for, because a host's capture holds up the event
 * behind it. To be known before anything is enqueued: who has failed counts as being behind it. */
gpulua_status gpu_waits_check(struct gpu_device *device, const struct wire_wait *waits,
                              uint32_t count, struct gpu_error *error);

#endif
