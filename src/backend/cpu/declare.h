/* Declarations of a source, found by their brackets: functions and their bodies, kernels, variables
 * in device memory. Positions are indices into cpu_tokens.code. */
#ifndef GPU_CPU_DECLARE_H
#define GPU_CPU_DECLARE_H

#include "backend/cpu/tokens.h"

struct cpu_function {
    char *qualified; /* owned: "ns::f" */
    size_t begin;    /* first token, `template` included */
    size_t name;
    size_t params_open, params_close;
    size_t body_open, body_close; /* without a body: both params_close. The value of a variable,
                                     which may be a lambda, counts as a body from its = on */
    size_t *param_names;          /* owned; 0: no name */
    size_t param_count;
    size_t bounds_from, bounds_to;   /* rewrite.c's: argument of __launch_bounds__ */
    size_t cluster_from, cluster_to; /* and those of __cluster_dims__ */
    unsigned flags;                  /* rewrite.c's: CPU_KERNEL_* */
    bool is_kernel;
    bool is_template;      /* or a specialisation */
    bool is_operator;      /* called without being named */
    bool is_instantiation; /* template void f<int>(..); */
    bool is_for_device;    /* __device__ or __global__ */
    bool is_trivial;       /* = default, = delete, a variable's value, ns::f: nothing to annotate */
};

struct cpu_variable {
    char *qualified; /* owned */
    size_t name;
    bool is_constant;
    bool is_for_device; /* else it is a variable of the host */
};

struct cpu_declarations {
    struct cpu_function *functions; /* owned */
    size_t function_count;
    struct cpu_variable
        *variables; /* owned; at namespace scope, that have addresses of their own */
    size_t variable_count;
};

/* False: no memory. Text that no compiler would take gives some result or other. */
bool gpu_cpu_declarations_find(struct cpu_tokens *tokens, struct cpu_declarations *found);
void gpu_cpu_declarations_free(struct cpu_declarations *found);

/* The function in whose body a token is; SIZE_MAX: none. */
size_t gpu_cpu_declarations_function(const struct cpu_declarations *found, size_t at);

#endif
