/* What the driver has to say of a failure, beside its number: its log, and a core dump of the GPU.
 */
#ifndef GPU_CUDA_SAY_H
#define GPU_CUDA_SAY_H

#include <stddef.h>

#include "backend/cuda/device.h"
#include "backend/cuda/log.h"

/* The driver's log is read from here on. */
void gpu_cuda_log_begin(struct backend_device *device);
/* What it has got since it was read last is nobody's: a call that was to be made again. */
void gpu_cuda_log_skip(struct backend_device *device);
/* What it says of `call`, which has just failed on this thread; "": nothing, or there is none. */
void gpu_cuda_log_read(struct backend_device *device, const char *call, char *text,
                       size_t text_bytes);
/* Before there is a context: a kernel's fault writes a core dump into the file `base`-PID.core, and
 * ends this process. UNSUPPORTED: the driver cannot. */
gpulua_status gpu_cuda_dump_begin(struct backend_device *device, const char *base,
                                  struct backend_error *error);
/* When the device is open but for that. */
gpulua_status gpu_cuda_dump_prepare(struct backend_device *device, struct backend_error *error);
void gpu_cuda_dump_close(struct backend_device *device); /* what the driver has of it */
void gpu_cuda_dump_free(struct backend_device *device);  /* and the rest */
/* The driver says that what is in front of the event is over: is it, and well? */
enum backend_query gpu_cuda_dump_prove(struct backend_event *event, struct backend_error *error);

#endif
