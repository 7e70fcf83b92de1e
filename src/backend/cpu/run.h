/* Inside running blocks (run.c), for check mode, which decides about each block itself. */
#ifndef GPU_CPU_RUN_H
#define GPU_CPU_RUN_H

#include "backend/cpu/fibre.h"

struct check_run;

/* The launch is over and fails with this, if it is the first failure. From a thread of a kernel;
 * does not return. */
void gpu_cpu_launch_fail(struct cpu_context *context, const struct backend_failure *failure);
void gpu_cpu_launch_no_memory(struct cpu_launch *launch);
/* Notes the launch's first failure, from outside of its threads. */
void gpu_cpu_launch_note(struct cpu_launch *launch, const struct backend_failure *failure);
/* Does a library's call, which is what the launch is. */
void gpu_cpu_library_call(struct cpu_launch *launch);
bool gpu_cpu_launch_has_failed(const struct cpu_launch *launch);

/* Prepares this thread's region for the launch; NULL: no memory. */
struct cpu_region *gpu_cpu_launch_enter(struct cpu_launch *launch);
void gpu_cpu_launch_leave(struct cpu_region *region, struct cpu_launch *launch);
/* One block: its warps in an order that the run chooses, between barriers too. */
void gpu_cpu_block_run_checked(struct cpu_region *region, struct cpu_launch *launch,
                               struct check_run *run, uint64_t block);

#endif
