/* Shared by the parts of kernel_test: compiling a .cu file beside it, launching, counting. */
#ifndef SPEC_CPU_KERNEL_TEST_H
#define SPEC_CPU_KERNEL_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/kernel.h"

void check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
void skip(const char *what, const char *why);

struct program {
    struct cpu_module *module; /* NULL: it did not compile, and that was counted */
    char *description;
};
/* A file of this folder. */
struct program program_open(const char *file, const char *options);
void program_close(struct program *program);
struct cpu_kernel *kernel_of(struct program *program, const char *name);

struct shape {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
};
/* Runs a launch on `worker_count` threads and waits. The failure text, "" if there is none; in
 * static storage. */
const char *launch(struct program *program, const char *name, struct shape shape, const void *args,
                   unsigned worker_count);

/* A folder for the test's own use, removed at its end. */
extern char scratch_folder[];
#endif
