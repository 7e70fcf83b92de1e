/* Confinement: what this process, all of its threads to come and all that it starts may do from
 * here on. For devices of scripts that nobody trusts, whose kernels the CPU device runs as they
 * are.
 *
 * Landlock says which files there are, a filter of system calls (seccomp) what else. Neither can be
 * taken back, nor left by starting a program. */
#ifndef GPU_EXECUTOR_CONFINE_H
#define GPU_EXECUTOR_CONFINE_H

#include "wire/link.h"

enum confine_role {
    /* Runs code of kernels: reads the system's libraries and what it has open, has threads, memory
     * and clocks. No program, no process, no socket, nothing written. */
    CONFINE_KERNELS,
    /* Runs compilers: reads the system's programs and libraries, writes into `folder`. */
    CONFINE_COMPILER
};

/* To be called while there is one thread. UNSUPPORTED says what the kernel of this machine lacks;
 * the process is not to be used then. */
gpulua_status gpu_confine(enum confine_role role, const char *folder, struct wire_error *error);

/* From here on neither this process nor what it starts can leave its group of processes, by which
 * all of them are ended. Behind gpu_confine. False: refused. */
bool gpu_confine_group(void);

#endif
