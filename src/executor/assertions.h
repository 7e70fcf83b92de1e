/* What a driver prints when kernels' assertions fail, kept for the text of the loss that follows.
 *
 * The CUDA driver says on standard error what failed, a line for each thread, and answers the
 * program with a number alone. gpulua-exec listens to its own standard error (main.c); in a process
 * that is the host's nobody does. */
#ifndef GPU_EXECUTOR_ASSERTIONS_H
#define GPU_EXECUTOR_ASSERTIONS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXECUTOR_ASSERTION_BYTES 512u /* of an assertion, as it is said */

struct executor_assertions {
    pthread_mutex_t lock;
    char line[2048]; /* what has come of one that has not ended; what is longer is cut */
    size_t line_bytes;
    char first[EXECUTOR_ASSERTION_BYTES]; /* the first assertion that failed; "": none has */
    uint64_t count;                       /* of those that were told of */
};

void gpu_executor_assertions_init(struct executor_assertions *assertions);
/* The next bytes of the stream, cut anywhere. Any thread. */
void gpu_executor_assertions_hear(struct executor_assertions *assertions, const char *bytes,
                                  size_t count);
/* "assertion `i < n' failed at kernels.cu:7, block (0,0,0), thread (3,0,0), in void k(int), and 31
 * more"; false: no assertion has failed. Any thread. */
bool gpu_executor_assertions_say(struct executor_assertions *assertions, char *text,
                                 size_t text_bytes);

#endif
