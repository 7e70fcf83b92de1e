/* Check mode on the script's side: tasks resumed in an order that the seed decides, launches of
 * different tasks that nothing but time orders, and what was done in which order.
 *
 * What one piece of the script knows to be before it is a vector clock: a strand is a task (or what
 * runs outside of tasks), its time counts the work that it has submitted, and spawning, awaiting
 * and joining hand knowledge on. Two submissions that conflict and of which neither knows the other
 * are a race, whichever came first this time: after Flanagan and Freund, FastTrack: Efficient and
 * Precise Dynamic Race Detection, PLDI 2009. Fences between streams are no knowledge: they only
 * make effects follow the order of the submissions, which is what is in question. */
#ifndef GPU_BINDING_CHECK_H
#define GPU_BINDING_CHECK_H

#include "binding/loop.h"

struct check;
struct strand;
struct gpu_observer;

/* Before a checked device is opened: the first of those that are open at a time decides the seed of
 * the tasks. Returns what to give to it; NULL: no memory. */
const struct gpu_observer *gpu_lua_check_start(struct gpulua *g, uint64_t seed);
void gpu_lua_check_opened(struct gpulua *g);
/* What it has done is forgotten; without any, tasks run in their turn again. */
void gpu_lua_check_closed(struct gpulua *g, const struct gpu_device *device);
void gpu_lua_check_finish(struct gpulua *g);

/* One of the ready tasks, from 0: the first unless something is checked. Those that are in a
 * capture take turns as always: what is captured has one order, by which its nodes are numbered. */
uint32_t gpu_lua_check_pick(struct gpulua *g);

/* core.task_seed(seed) -> the state of before, nil while nothing is checked: from here on tasks
 * are resumed in the order of this seed, or of a state that it has returned. */
int gpu_lua_check_task_seed(lua_State *L);
/* core.check_picks() -> whether a seed decides which task is next. */
int gpu_lua_check_picks_tasks(lua_State *L);

/* All of these do nothing unless something is checked. */
void gpu_lua_check_spawn(struct gpulua *g, struct task *task);
void gpu_lua_check_end(struct gpulua *g, struct task *task);
void gpu_lua_check_gone(struct gpulua *g, struct task *task);
/* What runs now knows that this is over, or that it was told by the code that runs. */
void gpu_lua_check_know_op(struct gpulua *g, const struct gpu_op *op);
void gpu_lua_check_know_task(struct gpulua *g, const struct task *task);
void gpu_lua_check_know_buffer(struct gpulua *g, const struct gpu_ref *ref);
void gpu_lua_check_know_all(struct gpulua *g);
/* core.check_meet(): what runs now knows all that was done, and everybody knows that. */
int gpu_lua_check_meet(lua_State *L);
/* The task is told by what runs now. */
void gpu_lua_check_tell(struct gpulua *g, struct task *task);
/* The script itself is about to read or write these bytes of a host buffer, by `what`, and has not
 * waited yet for who uses them. Raises RaceFound where only time decides whether another task's
 * work comes before or behind that. */
void gpu_lua_check_touch(struct gpulua *g, lua_State *L, const struct gpu_ref *ref,
                         uint64_t byte_offset, uint64_t byte_count, bool is_write,
                         const char *what);
/* Bytes that the script sees. */
void gpu_lua_check_read(struct gpulua *g, lua_State *L, const struct gpu_ref *ref,
                        const void *bytes, size_t byte_count);

/* dev:order() */
int gpu_lua_check_order(lua_State *L);

#endif
