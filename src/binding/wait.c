/* Waiting: for an op, a task, a buffer, some time.
 *
 * A wait in a task's own coroutine parks the task; anywhere else it blocks for ops and buffers; for
 * tasks it drives the loop outside tasks and raises NotYieldable inside. */
#include "binding/wait.h"
#include "binding/graph.h"

#include "binding/buffer.h"
#include "binding/check.h"
#include "binding/hooks.h"
#include "binding/stream.h"
#include "binding/trace.h"

/* ---- slots ---- */

/* The first failure ends a wait for all, and is raised. */
void gpu_lua_group_fail(struct group *group, uint32_t index) {
    group->is_ready = true;
    group->failed_index = group->failed_index ? group->failed_index : index;
}

void gpu_lua_slot_fire(struct slot *slot) {
    struct task *task = slot->task;
    struct group *group = slot->group;
    uint32_t index = slot->index;
    gpu_lua_slot_clear(slot);
    if (group) {
        group->open_count--;
        if (group->fired_index == 0) {
            group->fired_index = index;
        }
        group->is_ready = group->wants_any || group->is_ready || group->open_count == 0;
        if (!group->is_ready) {
            return;
        }
    }
    if (!task) {
        return;
    }
    if (task->state == TASK_HELD) {
        gpu_lua_task_ready(task->g, task);
    } else {
        gpu_lua_wake(task, WAKE_EVENT);
    }
}

static void op_fired(struct gpu_waiter *waiter, struct gpu_op *op) {
    struct slot *slot = (struct slot *)(void *)waiter;
    if (slot->group && gpu_op_error(op)) {
        gpu_lua_group_fail(slot->group, slot->index);
    }
    gpu_lua_slot_fire(slot);
}

void gpu_lua_slot_watch(struct slot *slot, struct gpulua *g, struct gpu_op *op) {
    slot->g = g;
    slot->op = gpu_op_retain(op);
    slot->waiter.fire = op_fired;
    g->watch_count++;
    gpu_lua_slot_link(slot, &g->watched);
    gpu_op_watch(op, &slot->waiter);
}

void gpu_lua_slot_link(struct slot *slot, struct slot **list) {
    slot->next = *list;
    slot->link = list;
    if (slot->next) {
        slot->next->link = &slot->next;
    }
    *list = slot;
}

void gpu_lua_slot_join(struct slot *slot, struct gpulua *g, struct task *target) {
    slot->g = g;
    slot->target = target;
    gpu_lua_slot_link(slot, &target->joiners);
}

void gpu_lua_slot_clear(struct slot *slot) {
    if (slot->op) {
        struct gpu_op *op = slot->op;
        slot->op = NULL;
        slot->g->watch_count--;
        gpu_op_unwatch(&slot->waiter);
        gpu_op_release(op);
    }
    if (slot->link) {
        *slot->link = slot->next;
        if (slot->next) {
            slot->next->link = slot->link;
        }
        slot->link = NULL;
        slot->next = NULL;
        slot->target = NULL;
    }
    if (slot->descriptor) {
        struct descriptor *descriptor = slot->descriptor;
        slot->descriptor = NULL;
        gpu_lua_descriptor_left(slot->g, descriptor);
    }
}

/* ---- parking ---- */

bool gpu_lua_may_park(struct gpulua *g, lua_State *L) {
    return g->running && g->running->co == L && lua_isyieldable(L);
}

/* What a wait for it is called in traces. */
static const char *text_of(const struct task *target) {
    return target->is_callback ? "a callback" : "a task";
}

int gpu_lua_park(lua_State *L, struct gpulua *g, lua_KFunction k) {
    struct task *task = g->running;
    if (task->waits.at_ns == 0) {
        const char *what = task->slot.target       ? text_of(task->slot.target)
                           : task->slot.descriptor ? "a descriptor"
                           : task->group           ? "a group"
                                                   : "sleep";
        gpu_lua_trace_wait_begins(g, task->slot.op, what, &task->waits);
    }
    task->state = TASK_PARKED;
    task->wake = WAKE_NONE;
    task->park_top = lua_gettop(L);
    return lua_yieldk(L, 0, (lua_KContext)task, k);
}

_Noreturn static void raise_wake(lua_State *L, struct gpulua *g, enum gpu_lua_wake reason) {
    if (reason == WAKE_INTERRUPT) {
        struct gpu_error error;
        gpu_lua_interrupt_error(g, &error);
        gpu_lua_throw(L, &error);
    }
    if (reason == WAKE_STUCK) {
        gpu_lua_fail(L, GPULUA_CANCELLED,
                     "this wait can never end: nothing is in flight, no timer is set, and no other "
                     "task can run");
    }
    gpu_lua_fail(L, GPULUA_CANCELLED, "the task was cancelled");
}

enum gpu_lua_wake gpu_lua_resumed(lua_State *L, lua_KContext context) {
    struct task *task = gpu_lua_task_from(context);
    gpu_lua_trace_wait_ends(L, task->g, &task->waits);
    if (!task->is_resumed_by_loop) {
        if (task->state == TASK_PARKED) {
            gpu_lua_wake(task, WAKE_FOREIGN); /* unlinks what it waited for */
        }
        gpu_lua_task_unready(task);
        task->state = TASK_ELSEWHERE;
        return WAKE_FOREIGN;
    }
    task->is_resumed_by_loop = false;
    if (task->wake == WAKE_CANCEL || task->wake == WAKE_INTERRUPT || task->wake == WAKE_STUCK) {
        raise_wake(L, task->g, task->wake);
    }
    return task->wake;
}

int gpu_lua_foreign_results(lua_State *L, lua_KContext context) {
    return lua_gettop(L) - gpu_lua_task_from(context)->park_top;
}

void gpu_lua_check_pending(lua_State *L, struct gpulua *g) {
    struct task *task = g->running;
    if (task && task->pending != WAKE_NONE && task->co == L) {
        enum gpu_lua_wake reason = task->pending;
        task->pending = WAKE_NONE;
        raise_wake(L, g, reason);
    }
}

/* ---- items ---- */

static bool item_at(lua_State *L, struct gpulua *g, int index, bool is_again, struct item *item) {
    void *handle;
    *item = (struct item){.kind = GPU_LUA_KIND_OP};
    if ((handle = gpu_lua_test(L, g, index, GPU_LUA_KIND_OP))) {
        item->op = gpu_lua_op_at(L, index);
        if (!item->op) {
            gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed op");
        }
        return true;
    }
    if ((handle = gpu_lua_test(L, g, index, GPU_LUA_KIND_TASK))) {
        item->kind = GPU_LUA_KIND_TASK;
        item->task = handle;
        return true;
    }
    if ((handle = gpu_lua_test(L, g, index, GPU_LUA_KIND_BUFFER)) ||
        (handle = gpu_lua_test(L, g, index, GPU_LUA_KIND_HOST))) {
        struct buffer *buffer = handle;
        item->kind = GPU_LUA_KIND_BUFFER;
        if (!is_again || !buffer->ref.block) {
            gpu_lua_buffer_check_open(L, buffer);
        }
        item->ref = buffer->ref;
        return true;
    }
    return false;
}

bool gpu_lua_item_get(lua_State *L, struct gpulua *g, int index, struct item *item) {
    return item_at(L, g, index, false, item);
}

void gpu_lua_item_again(lua_State *L, struct gpulua *g, int index, const struct slot *slot,
                        struct item *item) {
    (void)item_at(L, g, index, true, item);
    item->epoch = slot->epoch;
}

uint32_t gpu_lua_item_epoch(const struct item *item) {
    return item->kind == GPU_LUA_KIND_BUFFER ? (uint32_t)gpu_device_epoch(gpu_lua_item_device(item))
                                             : 0;
}

struct gpu_device *gpu_lua_item_device(const struct item *item) {
    return item->kind == GPU_LUA_KIND_OP ? gpu_op_device(item->op)
                                         : gpu_block_device(item->ref.block);
}

bool gpu_lua_item_is_over(const struct item *item) {
    switch (item->kind) {
    case GPU_LUA_KIND_OP:
        return gpu_op_is_over(item->op);
    case GPU_LUA_KIND_TASK:
        return item->task->state == TASK_ENDED;
    default:
        return gpu_ref_is_idle(&item->ref, true);
    }
}

bool gpu_lua_item_has_failed(const struct item *item) {
    switch (item->kind) {
    case GPU_LUA_KIND_OP:
        return gpu_op_status(item->op) != GPULUA_OK;
    case GPU_LUA_KIND_TASK:
        /* Or its results are gone. */
        return item->task->outcome != OUTCOME_DONE || !gpu_lua_task_has_results(item->task);
    default: {
        struct gpu_error error;
        if (gpu_ref_failure(&item->ref, NULL)) {
            return true;
        }
        bool is_lost = gpu_ref_check_since(&item->ref, item->epoch, "the buffer", &error) != 0;
        if (is_lost) {
            gpu_error_finish(&error);
        }
        return is_lost;
    }
    }
}

void gpu_lua_item_push_error(lua_State *L, const struct item *item, bool is_join) {
    struct gpu_error error;
    luaL_checkstack(L, 4, NULL);
    if (item->kind == GPU_LUA_KIND_TASK) {
        struct task *task = item->task;
        gpu_lua_task_push_error(L, task);
        if (!is_join || !gpu_lua_circle_hides(task, task->g->running)) {
            gpu_lua_observe_task(L, task);
        }
        return;
    }
    if (item->kind == GPU_LUA_KIND_OP) {
        /* First: a finaliser may close the op while the error is made. */
        gpu_op_observe(item->op);
        gpu_error_copy(&error, gpu_op_error(item->op));
        gpu_lua_error_push_owned(L, &error);
        return;
    }
    if (!gpu_ref_failure(&item->ref, &error) &&
        !gpu_ref_check_since(&item->ref, item->epoch, "the buffer",
                             &error)) { /* another thread has overwritten it since */
        gpu_error_set(&error, GPULUA_DEPENDENCY_FAILED,
                      "what wrote the buffer had failed when this wait ended");
    }
    gpu_lua_error_push_owned(L, &error);
}

int gpu_lua_item_push_results(lua_State *L, const struct item *item, int index, bool only_first) {
    if (item->kind != GPU_LUA_KIND_TASK) {
        lua_pushvalue(L, index);
        return 1;
    }
    struct task *task = item->task;
    int count = task->result_count;
    if (only_first && count == 0) {
        lua_pushnil(L);
        return 1;
    }
    int wanted = only_first ? 1 : count;
    luaL_checkstack(L, wanted, "too many results");
    if (!task->co) {
        lua_getiuservalue(L, index, 1);
        return 1;
    }
    enum { AT_ONCE = 64 }; /* a stack has an end, and they may take more than half of it */
    if (!lua_checkstack(task->co, AT_ONCE)) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for the results of a task");
    }
    int first = lua_gettop(task->co) - count + 1;
    for (int done = 0, chunk; done < wanted; done += chunk) {
        chunk = wanted - done < AT_ONCE ? wanted - done : AT_ONCE;
        for (int i = 0; i < chunk; i++) {
            lua_pushvalue(task->co, first + done + i);
        }
        lua_xmove(task->co, L, chunk);
    }
    return wanted;
}

/* ---- one item ---- */

static int fail_or_return(lua_State *L, bool is_join) {
    if (!is_join) {
        return lua_error(L);
    }
    lua_pushboolean(L, 0);
    lua_insert(L, -2);
    return 2;
}

/* The seconds are argument 2. Of an operation the line is in what the error says of it. */
static int time_is_over(lua_State *L, const struct item *item, bool is_join) {
    struct gpu_error error;
    double seconds = lua_tonumber(L, 2);
    if (item->kind == GPU_LUA_KIND_TASK) {
        const struct task *task = item->task;
        char from[LUA_IDSIZE + 20] = "", at[LUA_IDSIZE + 40] = "";
        lua_Debug ar;
        if (task->line > 0) {
            snprintf(from, sizeof from, " from %s:%d", task->source, task->line);
        }
        if (gpu_lua_where(task->co, &ar)) {
            snprintf(at, sizeof at, "; it is at %s:%d", ar.short_src, ar.currentline);
        }
        gpu_error_set(&error, GPULUA_TIMEOUT, "the %s%s was not over after %.6g s%s",
                      task->is_callback ? "callback" : "task", from, seconds, at);
    } else if (item->kind == GPU_LUA_KIND_OP) {
        struct gpu_op_info info;
        gpu_op_info(item->op, &info);
        gpu_error_set(&error, GPULUA_TIMEOUT, "'%s' was not over after %.6g s", info.label,
                      seconds);
        error.op = info;
    } else {
        const char *label = gpu_block_label(item->ref.block);
        struct gpu_op *op = gpu_ref_pending(&item->ref, true);
        gpu_error_set(&error, GPULUA_TIMEOUT, "what uses %s%s%s was not over after %.6g s",
                      label[0] ? "'" : "the buffer", label, label[0] ? "'" : "", seconds);
        if (op) {
            gpu_op_info(op, &error.op);
            gpu_op_release(op);
        }
    }
    gpu_lua_error_push(L, &error);
    return fail_or_return(L, is_join);
}

void gpu_lua_item_know(struct gpulua *g, const struct item *item) {
    gpu_lua_hooks_catch_up(g, item->kind == GPU_LUA_KIND_TASK ? NULL : gpu_lua_item_device(item));
    if (item->kind == GPU_LUA_KIND_OP) {
        gpu_lua_check_know_op(g, item->op);
    } else if (item->kind == GPU_LUA_KIND_TASK) {
        gpu_lua_check_know_task(g, item->task);
    } else {
        gpu_lua_check_know_buffer(g, &item->ref);
    }
}

static int item_finish(lua_State *L, struct gpulua *g, const struct item *item, bool is_join) {
    gpu_lua_item_know(g, item);
    if (gpu_lua_item_has_failed(item)) {
        gpu_lua_item_push_error(L, item, is_join);
        return fail_or_return(L, is_join);
    }
    if (item->kind == GPU_LUA_KIND_OP) {
        gpu_op_observe(item->op);
    }
    if (is_join) {
        luaL_checkstack(L, 2, NULL);
        lua_pushboolean(L, 1);
        return 1 + gpu_lua_item_push_results(L, item, 1, false);
    }
    return gpu_lua_item_push_results(L, item, 1, false);
}

static int wait_resumed(lua_State *L, int status, lua_KContext context);
static int item_block(lua_State *L, struct gpulua *g, struct item *item, bool is_join,
                      int64_t deadline_ns);
static bool wakes(const struct item *item);

static int item_park(lua_State *L, struct gpulua *g, const struct item *item) {
    struct task *task = g->running;
    task->slot.task = task;
    if (task->deadline_ns != INT64_MAX && !gpu_lua_timer_set(g, &task->timer, task->deadline_ns)) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for a timer");
    }
    if (item->kind == GPU_LUA_KIND_OP) {
        gpu_lua_slot_watch(&task->slot, g, item->op);
    } else if (item->kind == GPU_LUA_KIND_TASK) {
        gpu_lua_slot_join(&task->slot, g, item->task);
    } else {
        struct gpu_op *op = gpu_ref_pending(&item->ref, true);
        if (!op) {
            gpu_lua_timer_clear(g, &task->timer);
            return item_finish(L, g, item, task->wants_join);
        }
        gpu_lua_slot_watch(&task->slot, g, op);
        gpu_op_release(op);
    }
    return gpu_lua_park(L, g, wait_resumed);
}

/* Stack: the item, seconds, ... */
static int wait_resumed(lua_State *L, int status, lua_KContext context) {
    (void)status;
    struct task *task = gpu_lua_task_from(context);
    enum gpu_lua_wake wake = gpu_lua_resumed(L, context);
    if (wake == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    struct item item;
    gpu_lua_item_again(L, task->g, 1, &task->slot, &item);
    if (gpu_lua_item_is_over(&item)) {
        return item_finish(L, task->g, &item, task->wants_join);
    }
    if (wake == WAKE_TIMEOUT) {
        return time_is_over(L, &item, task->wants_join);
    }
    gpu_lua_check_pending(L, task->g); /* cancelled when it was woken already */
    if (!wakes(&item)) {               /* the device was closed meanwhile */
        return item_block(L, task->g, &item, task->wants_join, task->deadline_ns);
    }
    return item_park(L, task->g, &item); /* a buffer that further work touches */
}

static int64_t left_ns(int64_t deadline_ns) {
    if (deadline_ns == INT64_MAX) {
        return -1;
    }
    int64_t left = deadline_ns - gpu_lua_now_ns();
    return left > 0 ? left : 0;
}

bool gpu_lua_may_block(const struct gpulua *g) {
    return !g->config.sandbox || (!g->running && g->turn_depth == 0);
}

void gpu_lua_fail_to_block(lua_State *L) {
    gpu_lua_fail(L, GPULUA_NOT_YIELDABLE,
                 "a script in a sandbox can only wait in the body of a task: not inside a "
                 "comparator, __tostring, a callback or a coroutine of its own");
}

/* Blocks for an op; runs no task. */
static void op_block(lua_State *L, struct gpulua *g, struct gpu_op *op, int64_t deadline_ns,
                     gpulua_status *status) {
    struct gpu_error error;
    struct gpu_lua_began began;
    if (!gpu_lua_may_block(g)) {
        gpu_lua_fail_to_block(L);
    }
    bool is_left = gpu_device_is_left(gpu_op_device(op));
    /* Or else the time of the task is up first, and gpu_op_wait raises that. */
    bool is_own = is_left || deadline_ns <= gpu_lua_task_until_ns(&g->tasks, false);
    gpu_lua_trace_wait_begins(g, op, NULL, &began);
    do {
        int64_t wait_ns = is_own ? left_ns(deadline_ns) : -1;
        bool is_part = is_left && (wait_ns < 0 || wait_ns > GPU_LUA_LEFT_LOOK_NS);
        *status = gpu_op_wait(op, is_part ? GPU_LUA_LEFT_LOOK_NS : wait_ns, &error);
        if (is_left && *status == GPULUA_TIMEOUT) {
            (void)gpu_lua_check_wait(L, g, "work of a closed device", deadline_ns, &began);
        }
    } while (is_left && *status == GPULUA_TIMEOUT && gpu_lua_now_ns() < deadline_ns);
    gpu_lua_trace_wait_ends(L, g, &began);
    if (*status == GPULUA_OK) {
        gpu_lua_hooks_tell(g);
        return;
    }
    if (*status == GPULUA_TIMEOUT && is_own) {
        gpu_error_finish(&error);
        return;
    }
    if (*status == GPULUA_INTERRUPTED) {
        gpu_error_finish(&error);
        gpu_lua_raise_interrupt(L, g);
    }
    gpu_lua_throw(L, &error);
}

/* The item is at index 1. It is looked at again after all that may run finalisers, which close
 * buffers. */
static void block_for_buffer(lua_State *L, struct gpulua *g, struct item *item, int64_t deadline_ns,
                             gpulua_status *status) {
    bool is_idle = false;
    uint32_t epoch = item->epoch;
    for (*status = GPULUA_OK; *status == GPULUA_OK && !is_idle; lua_pop(L, 1)) {
        /* The handle first, so that an error leaves nothing behind. */
        struct gpu_op **at = gpu_lua_op_new(L, g);
        (void)item_at(L, g, 1, true, item);
        *at = gpu_ref_pending(&item->ref, true);
        is_idle = !*at;
        if (!is_idle) {
            op_block(L, g, *at, deadline_ns, status);
            (void)item_at(L, g, 1, true, item);
        }
    }
    item->epoch = epoch;
}

void gpu_lua_check_waits(lua_State *L, struct gpulua *g) {
    if (!gpu_lua_may_park(g, L) && (g->running || g->turn_depth > 0)) {
        gpu_lua_fail(L, GPULUA_NOT_YIELDABLE,
                     "a task can only be awaited from the body of a task: not inside require, a "
                     "comparator, __tostring or a coroutine of the script's own");
    }
}

/* core.check_waits(): raises where a task cannot be awaited */
int gpu_lua_check_waits_here(lua_State *L) {
    gpu_lua_check_waits(L, GPU_LUA(L));
    return 0;
}

/* Outside tasks: runs the loop until the task has ended. */
static gpulua_status drive_to_end(lua_State *L, struct gpulua *g, struct task *task,
                                  int64_t deadline_ns) {
    gpu_lua_check_waits(L, g);
    if (g->is_closed) {
        gpu_lua_fail(L, GPULUA_CLOSED, "gpulua is closed: no task can run any more");
    }
    struct gpu_lua_began began;
    gpu_lua_trace_wait_begins(g, NULL, text_of(task), &began);
    gpulua_status status = GPULUA_OK;
    while (status == GPULUA_OK && task->state != TASK_ENDED) {
        (void)gpu_lua_check_wait(L, g, "a task", deadline_ns, &began);
        if (!gpu_lua_turn(g, L, deadline_ns, true)) {
            gpu_lua_unstick(g);
        }
        if (deadline_ns != INT64_MAX && gpu_lua_now_ns() >= deadline_ns) {
            status = GPULUA_TIMEOUT; /* behind a turn: who looks again and again lets it run */
        }
    }
    gpu_lua_trace_wait_ends(L, g, &began);
    return status;
}

/* What is left in flight on a shared device that the script has closed wakes nobody. */
static bool wakes(const struct item *item) {
    return item->kind == GPU_LUA_KIND_TASK || !gpu_device_is_left(gpu_lua_item_device(item));
}

static int item_block(lua_State *L, struct gpulua *g, struct item *item, bool is_join,
                      int64_t deadline_ns) {
    gpulua_status status = GPULUA_OK;
    if (item->kind == GPU_LUA_KIND_OP) {
        op_block(L, g, item->op, deadline_ns, &status);
    } else if (item->kind == GPU_LUA_KIND_TASK) {
        status = drive_to_end(L, g, item->task, deadline_ns);
    } else {
        block_for_buffer(L, g, item, deadline_ns, &status);
    }
    return status == GPULUA_TIMEOUT && !gpu_lua_item_is_over(item)
               ? time_is_over(L, item, is_join)
               : item_finish(L, g, item, is_join);
}

/* Some devices do nothing, or tell nothing, before somebody looks. */
static bool item_is_over_now(const struct item *item) {
    if (item->kind == GPU_LUA_KIND_OP) {
        gpu_op_look(item->op);
    } else if (item->kind == GPU_LUA_KIND_BUFFER) {
        struct gpu_op *op = gpu_ref_pending(&item->ref, true);
        if (op) {
            gpu_op_look(op);
            gpu_op_release(op);
        }
    }
    return gpu_lua_item_is_over(item);
}

static int item_wait(lua_State *L, bool is_join) {
    struct gpulua *g = GPU_LUA(L);
    struct item item;
    if (!gpu_lua_item_get(L, g, 1, &item)) {
        gpu_lua_bad_self(L, "op", "an op, a task or a buffer");
    }
    int64_t deadline_ns = gpu_lua_opt_deadline(L, 2, 1, is_join ? "join" : "await");
    if (item.kind != GPU_LUA_KIND_TASK) {
        gpu_lua_check_eager(L, g, gpu_lua_item_device(&item), is_join ? "join" : "await");
    }
    gpu_lua_check_pending(L, g);
    if (gpu_lua_item_is_over(&item) ||
        (deadline_ns != INT64_MAX && deadline_ns <= gpu_lua_now_ns() && /* a wait of no time */
         item_is_over_now(&item))) {
        return item_finish(L, g, &item, is_join);
    }
    if (item.kind == GPU_LUA_KIND_TASK) {
        gpu_lua_check_circle(L, g, item.task, deadline_ns != INT64_MAX);
    }
    bool parks = gpu_lua_may_park(g, L) && wakes(&item);
    item.epoch = gpu_lua_item_is_over(&item) ? 0 : gpu_lua_item_epoch(&item);
    if (parks) {
        g->running->slot.epoch = item.epoch;
    }
    if (!parks) {
        return item_block(L, g, &item, is_join, deadline_ns);
    }
    if (item.kind == GPU_LUA_KIND_OP && !g->ready_head) {
        int64_t spin_ns = left_ns(deadline_ns);
        gpu_lua_trace_wait_begins(g, item.op, NULL, &g->running->waits);
        if (gpu_op_spin(item.op, spin_ns < 0 || spin_ns > GPU_SPIN_NS ? GPU_SPIN_NS : spin_ns)) {
            gpu_lua_trace_wait_ends(L, g, &g->running->waits);
            return item_finish(L, g, &item, is_join);
        }
        g->spin_is_spent = true;
    }
    struct task *task = g->running;
    lua_settop(L, 2);
    task->deadline_ns = deadline_ns;
    task->wants_join = is_join;
    return item_park(L, g, &item);
}

/* op:await([seconds]) -> op
 * task:await([seconds]) -> results
 * buffer:await([seconds]) -> buffer
 * Waits until it is over, of a buffer until nothing in flight uses it, and raises what it has
 * failed with; yields in a task. Timeout: it was not over by then; Cancelled, Interrupted. */
int gpu_lua_await(lua_State *L) {
    return item_wait(L, false);
}

/* op:join([seconds]) -> true, op or false, error
 * task:join([seconds]) -> true, results or false, error
 * buffer:join([seconds]) -> true, buffer or false, error
 * Waits as await does, and raises nothing but misuse and what ends the waiting task itself. */
int gpu_lua_join(lua_State *L) {
    return item_wait(L, true);
}

/* op:done() -> whether it is over, with whatever result
 * task:done() -> the same
 * buffer:done() -> whether nothing in flight uses it
 * Do not wait. */
int gpu_lua_done(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct item item;
    if (!gpu_lua_item_get(L, g, 1, &item)) {
        gpu_lua_bad_self(L, "op", "an op, a task or a buffer");
    }
    bool is_over = gpu_lua_item_is_over(&item) || item_is_over_now(&item);
    if (is_over) {
        gpu_lua_item_know(g, &item);
    }
    lua_pushboolean(L, is_over);
    return 1;
}

void gpu_lua_wait_op(lua_State *L, struct gpulua *g, struct gpu_op *op, lua_KFunction k) {
    gpu_lua_check_pending(L, g);
    if (gpu_op_is_over(op)) {
        gpu_lua_hooks_catch_up(g, gpu_op_device(op));
        return;
    }
    if (!gpu_lua_may_park(g, L) || gpu_device_is_left(gpu_op_device(op))) {
        gpulua_status status;
        op_block(L, g, op, INT64_MAX, &status);
        return;
    }
    if (!g->ready_head) {
        gpu_lua_trace_wait_begins(g, op, NULL, &g->running->waits);
        if (gpu_op_spin(op, GPU_SPIN_NS)) {
            gpu_lua_trace_wait_ends(L, g, &g->running->waits);
            gpu_lua_hooks_catch_up(g, gpu_op_device(op));
            return;
        }
        g->spin_is_spent = true;
    }
    g->running->slot.task = g->running;
    gpu_lua_slot_watch(&g->running->slot, g, op);
    gpu_lua_park(L, g, k);
}

/* ---- time ---- */

static int sleep_resumed(lua_State *L, int status, lua_KContext context) {
    (void)status;
    return gpu_lua_resumed(L, context) == WAKE_FOREIGN ? gpu_lua_foreign_results(L, context) : 0;
}

/* gpu.sleep(seconds) */
int gpu_lua_sleep(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int64_t deadline_ns = gpu_lua_check_deadline(L, 1, 1, "sleep");
    if (deadline_ns == INT64_MAX) {
        deadline_ns--; /* a time that never comes, but a timer all the same */
    }
    gpu_lua_check_pending(L, g);
    if (gpu_lua_may_park(g, L)) {
        if (!gpu_lua_timer_set(g, &g->running->timer, deadline_ns)) {
            gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for a timer");
        }
        return gpu_lua_park(L, g, sleep_resumed);
    }
    if (!gpu_lua_may_block(g)) {
        gpu_lua_fail_to_block(L);
    }
    bool runs_tasks = !g->running && g->turn_depth == 0;
    struct gpu_lua_began began;
    gpu_lua_trace_wait_begins(g, NULL, "sleep", &began);
    do {
        int64_t until_ns = gpu_lua_check_wait(L, g, "gpu.sleep", deadline_ns, &began);
        gpu_lua_turn(g, L, until_ns, runs_tasks);
    } while (gpu_lua_now_ns() < deadline_ns);
    gpu_lua_trace_wait_ends(L, g, &began);
    return 0;
}
