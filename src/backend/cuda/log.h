/* Lines of the driver's log (see say.h); needs nothing of CUDA. */
#ifndef GPU_CUDA_LOG_H
#define GPU_CUDA_LOG_H

#include <stddef.h>

#define CUDA_LOG_TEXT_BYTES 256u

/* What a log says of `call`, "cuMemAlloc(&address, bytes)", which has failed on this thread, as the
 * log names threads: without the time and the like, lines joined by "; ". "": nothing. */
void gpu_cuda_log_pick(const char *log, long thread, const char *call, char *text,
                       size_t text_bytes);

#endif
