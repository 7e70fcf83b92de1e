/* What can be waited for, and waiting for it: shared by wait.c (one thing) and group.c (several).
 */
#ifndef GPU_BINDING_WAIT_H
#define GPU_BINDING_WAIT_H

#include "binding/loop.h"

/* What is left in flight on a shared device that the script has closed wakes nobody, and the device
 * knows no more who is interrupted and whose time is up: who waits looks that often. */
#define GPU_LUA_LEFT_LOOK_NS INT64_C(10000000)

struct item {
    enum gpu_lua_kind kind;
    struct gpu_op *op;  /* borrowed from its handle */
    struct task *task;  /* borrowed */
    struct gpu_ref ref; /* its block borrowed from its handle */
    uint32_t epoch;     /* of its device when a wait for work on it began; 0: there was none */
};

/* False: the value at `index` is nothing to wait for. Raises if it is closed, freed or lost. */
bool gpu_lua_item_get(lua_State *L, struct gpulua *g, int index, struct item *item);
/* What the slot waits for, or has waited for, whose handle is at `index`. Raises if that was closed
 * meanwhile; a buffer that was freed or lost has failed. */
void gpu_lua_item_again(lua_State *L, struct gpulua *g, int index, const struct slot *slot,
                        struct item *item);
/* For a wait for it that begins, if it is not over: see struct item. */
uint32_t gpu_lua_item_epoch(const struct item *item);
/* Not of a task. */
struct gpu_device *gpu_lua_item_device(const struct item *item);
bool gpu_lua_item_is_over(const struct item *item);
/* Check mode: what runs now knows that it is over. */
void gpu_lua_item_know(struct gpulua *g, const struct item *item);
/* Of one that is over. */
bool gpu_lua_item_has_failed(const struct item *item);
/* Pushes the error; whoever calls this has seen it, unless it is a join inside the circle that the
 * error is about. */
void gpu_lua_item_push_error(lua_State *L, const struct item *item, bool is_join);
/* Pushes the results of an item that is over and did not fail, whose handle is at `index`: how
 * many. With `only_first`, exactly one. */
int gpu_lua_item_push_results(lua_State *L, const struct item *item, int index, bool only_first);

static inline struct task *gpu_lua_task_from(lua_KContext context) {
    return (struct task *)context; /* NOLINT(performance-no-int-to-ptr) */
}

#endif
