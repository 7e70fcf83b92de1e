/* What has to be done in a child by fork before anything else runs there: it has its parent's
 * memory, and of what that names much is still the parent's. */
#ifndef GPU_RUNTIME_FORK_H
#define GPU_RUNTIME_FORK_H

struct gpu_fork {
    /* Of the only thread that is there: only what a signal handler may do. */
    void (*in_child)(struct gpu_fork *fork);
    struct gpu_fork *next, **link; /* of the process */
};

/* From here on until it is removed. From any thread. */
void gpu_fork_add(struct gpu_fork *fork, void (*in_child)(struct gpu_fork *fork));
void gpu_fork_remove(struct gpu_fork *fork);

#endif
