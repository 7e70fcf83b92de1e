/* The token pass: what CUDA C says that macros cannot.
 *
 * Works on preprocessed text, so macros and included headers are seen as the compiler sees them. It
 * does not parse C++; it finds declarations at namespace and class scope by their brackets, and
 * inside functions it changes single tokens:
 *
 *   __global__ f(T x)          becomes an inline function with hidden first parameters, named
 *                              threadIdx, blockIdx, ... (shim/gpulua_entry.h)
 *   threadIdx, ... elsewhere   calls that read the context
 *   __shared__ T x;            static thread_local T x; a block runs on one thread of the processor
 *   extern __shared__ T x[];   a reference to the block's dynamic shared memory
 *   a / b, a % b               a / gpulua_d / b, unless a literal says that it cannot fault
 *   if (i < n) at the head     a guard that can be tested once for a row of threads
 *
 * It also tells which kernels need fibres: those from which a barrier or a warp operation can be
 * reached, by the names of the functions that are mentioned. */
#ifndef GPU_CPU_REWRITE_H
#define GPU_CPU_REWRITE_H

#include <stdbool.h>
#include <stddef.h>

#include "gpulua.h"

/* As in shim/gpulua_entry.h. */
enum {
    CPU_KERNEL_FIBRES = 1,
    CPU_KERNEL_CONTEXT = 2,
    CPU_KERNEL_GUARD = 4,
    CPU_KERNEL_MONOTONE = 8
};

struct cpu_source_kernel {
    char *name;         /* owned: "ns::f" */
    char *bounds;       /* owned: the first argument of __launch_bounds__, or NULL */
    char *cluster;      /* owned: the arguments of __cluster_dims__, or NULL */
    char **param_names; /* owned, with their strings; "" where there is none */
    size_t param_count;
    unsigned number; /* gpulua_type_N is a typedef of its type, in its namespace */
    unsigned flags;
    bool is_template; /* it, or what it specialises: no typedef */
    bool is_definition;
};

struct cpu_source_global {
    char *name; /* owned: "ns::x" */
    bool is_constant;
};

struct cpu_source {
    char *text;                        /* owned: what to compile */
    struct cpu_source_kernel *kernels; /* owned */
    size_t kernel_count;
    struct cpu_source_global *globals; /* owned */
    size_t global_count;
    char *refusals; /* owned: "file:line: error: ...\n" for each construct that is not supported, or
                       NULL */
    bool has_fibres;    /* some kernel has */
    bool is_unbalanced; /* a bracket is missing: nothing here is reliable */
};

struct cpu_rewrite_info {
    const char *text;
    const char *shim_folder; /* begins the names of files to leave alone */
    bool keeps_unroll;       /* the compiler knows #pragma unroll */
    bool is_device_default;  /* functions and variables without __device__ are taken too, as NVRTC
                                does with -default-device */
    bool divides_plainly;    /* divisions stay as they are */
};
/* OUT_OF_MEMORY or OK. */
gpulua_status gpu_cpu_source_rewrite(const struct cpu_rewrite_info *info,
                                     struct cpu_source *source);
void gpu_cpu_source_free(struct cpu_source *source);

#endif
