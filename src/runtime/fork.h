/* What has to be done in a child by fork before anything else runs there: it has its parent's
 * memory, and of what that names much is still the parent's. */
#ifndef GPU_RUNTIME_FORK_H
#define GPU_RUNTIME_FORK_H

#include <stdbool.h>

struct gpu_fork {
    /* Of the only thread that is there: only what a signal handler may do. */
    void (*in_child)(struct gpu_fork *fork);
    /* So that a fork finds no other thread in the middle of anything: takes a lock if it can be had
     * at once, and gives it back, in the parent and, before in_child, in the child. NULL: nothing.
     */
    bool (*hold)(struct gpu_fork *fork);
    void (*let_go)(struct gpu_fork *fork);
    bool is_held;                  /* over the fork: false in in_child, it could not be had */
    struct gpu_fork *next, **link; /* of the process */
};

/* From here on until it is removed. From any thread. The functions are set. */
void gpu_fork_add(struct gpu_fork *fork);
void gpu_fork_remove(struct gpu_fork *fork);

#endif
