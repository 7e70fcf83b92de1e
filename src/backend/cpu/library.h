/* Libraries whose calls are launched like kernels, on the CPU device (library_open of backend.h).
 * library.c makes modules of them; library/ has one file for each, which loads it at run time. */
#ifndef GPU_CPU_LIBRARY_H
#define GPU_CPU_LIBRARY_H

#include "backend/backend.h"

/* Does a call; `made` is its module's. A failure leaves its outputs undefined; `error` has no log.
 */
typedef gpulua_status cpu_library_run(void *made, const void *args, struct backend_error *error);

struct cpu_library_call {
    const char *name;
    cpu_library_run *run;
    uint32_t args_bytes;
};

struct cpu_library {
    const char *name;
    /* Loads it, the first time. Any thread, one at a time, as the two below. */
    gpulua_status (*open)(struct backend_error *error);
    const struct cpu_library_call *calls;
    size_t call_count;
    const char *description;
    /* Instead of open and description, where each module has something of its own, made from
     * options; drop gives it back. */
    gpulua_status (*make)(const char *options, void **made, char **description,
                          struct backend_error *error);
    void (*drop)(void *made);
};

extern const struct cpu_library gpu_cpu_blas;
extern const struct cpu_library gpu_cpu_rng;
extern const struct cpu_library gpu_cpu_fft;

struct cpu_module;
/* `options` is a library's own; `*description` malloc'ed. */
gpulua_status gpu_cpu_library_open(const char *name, const char *options,
                                   struct cpu_module **module, char **description,
                                   struct backend_error *error);

/* Its module is unloaded. */
void gpu_cpu_library_close(struct cpu_module *module);

/* Opens the first of `names` (NULL-terminated), or what the environment variable says; its threads
 * get none of the process's signals. LIBRARY_UNAVAILABLE names all that was tried, and `package`.
 */
gpulua_status gpu_cpu_library_load(const char *variable, const char *const *names,
                                   const char *package, void **library,
                                   struct backend_error *error);

/* Around each call. A library with threads of its own may stop them in front of a fork, and wait
 * for ever if they are at work (OpenBLAS does): so a fork of this process waits until the calls
 * under way are over, and calls wait until the fork is. */
void gpu_cpu_library_enter(void);
void gpu_cpu_library_leave(void);

#endif
