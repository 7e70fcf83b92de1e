/* Running a compiler: found in $PATH, spawned without a shell, its messages captured whole. */
#ifndef GPU_CPU_PROCESS_H
#define GPU_CPU_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

/* The path of a program: `name` itself if it holds a slash, else the first of $PATH that can be
 * run. False: there is none. */
bool gpu_cpu_process_find(const char *name, char *path, size_t path_bytes);

struct cpu_process {
    char *output; /* owned; NUL-terminated */
    size_t output_bytes;
    char *log;     /* owned; what it wrote to its standard error, NUL-terminated */
    int exit_code; /* 128 + signal if one ended it; -1: unknown, because the host ignores or reaps
                      its children itself */
};

/* Runs argv[0] with `input` on its standard input, and waits. False: it could not be started;
 * errno says why. */
bool gpu_cpu_process_run(char *const *argv, const void *input, size_t input_bytes,
                         struct cpu_process *process);
void gpu_cpu_process_free(struct cpu_process *process);

#endif
