/* Descriptors of our own. */
#ifndef GPU_WIRE_DESCRIPTOR_H
#define GPU_WIRE_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* What a call has just made, or -1: never one of the standard ones, which a host may have closed,
 * and into which others write text all the same. -1, errno: there are no more. */
static inline int gpu_wire_descriptor(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int other = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int saved = errno;
    close(fd);
    errno = saved;
    return other;
}

/* In a child by fork: `own` (or -1) takes over the number of what the parent has, too. */
static inline void gpu_wire_descriptor_replace(int *fd, int own) {
    int saved = errno;
    if (own < 0 || dup3(own, *fd, O_CLOEXEC) < 0) {
        close(*fd);
        *fd = -1;
    }
    if (own >= 0) {
        close(own);
    }
    errno = saved;
}

#endif
