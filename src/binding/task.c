/* Tasks: coroutines that the loop runs, and who owns whom.
 *
 * The first function of a task's coroutine is task_main. It calls the body in protected mode, waits
 * for the children, decides the outcome, keeps results or the error for those who join, and ends.
 */
#include "binding/check.h"
#include "binding/limits.h"
#include "binding/trace.h"

#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

#define LATE_NS INT64_C(1000000000) /* for calls of a task that was told that its time is up */

static const char anchors_key; /* registry: handles of tasks, by references */

/* ---- lists ---- */

static void sibling_link(struct task **list, struct task *task) {
    task->sibling_next = *list;
    task->sibling_link = list;
    if (*list) {
        (*list)->sibling_link = &task->sibling_next;
    }
    *list = task;
}

static void sibling_unlink(struct task *task) {
    if (task->sibling_link) {
        *task->sibling_link = task->sibling_next;
        if (task->sibling_next) {
            task->sibling_next->sibling_link = task->sibling_link;
        }
        task->sibling_link = NULL;
        task->sibling_next = NULL;
    }
}

/* Its time is up, which is told: it has some more to clean up. */
static void give_more_time(struct task *task) {
    int64_t now_ns = gpu_lua_now_ns();
    if (task->until_ns != 0 && task->until_ns <= now_ns) {
        task->until_ns = now_ns + LATE_NS;
    }
}

bool gpu_lua_task_is_live(const struct gpu_tasks *tasks, uint64_t number) {
    const struct gpulua *g = (const void *)((const char *)tasks - offsetof(struct gpulua, tasks));
    const struct task *task = g->live;
    while (task && task->number != number) {
        task = task->live_next;
    }
    return task != NULL;
}

int64_t gpu_lua_task_until_ns(const struct gpu_tasks *tasks, bool is_told) {
    const struct gpulua *g = (const void *)((const char *)tasks - offsetof(struct gpulua, tasks));
    int64_t until_ns = INT64_MAX;
    for (struct task *task = g->running; task; task = task->parent) {
        if (task->until_ns != 0 && is_told) {
            give_more_time(task);
        }
        if (task->until_ns != 0 && task->until_ns < until_ns) {
            until_ns = task->until_ns;
        }
    }
    return until_ns;
}

static void live_link(struct gpulua *g, struct task *task) {
    task->live_next = g->live;
    task->live_link = &g->live;
    if (g->live) {
        g->live->live_link = &task->live_next;
    }
    g->live = task;
    g->task_count++;
}

static void live_unlink(struct gpulua *g, struct task *task) {
    if (task->live_link) {
        *task->live_link = task->live_next;
        if (task->live_next) {
            task->live_next->live_link = task->live_link;
        }
        task->live_link = NULL;
        g->task_count--;
    }
}

static void trace_drop(struct task *task) {
    struct trace *trace = task->trace;
    task->trace = NULL;
    if (trace) {
        *trace->link = trace->next;
        if (trace->next) {
            trace->next->link = trace->link;
        }
        free(trace);
    }
}

/* NULL: no memory, or no text. */
static struct trace *trace_keep(struct gpulua *g, const char *text) {
    size_t bytes = text ? strlen(text) + 1 : 0;
    struct trace *trace = text ? malloc(sizeof *trace + bytes) : NULL;
    if (trace) {
        memcpy(trace->text, text, bytes);
        trace->next = g->traces;
        trace->link = &g->traces;
        if (trace->next) {
            trace->next->link = &trace->next;
        }
        g->traces = trace;
    }
    return trace;
}

/* The handle is on top of the stack. */
static void anchor(lua_State *L, struct task *task) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    lua_pushvalue(L, -2);
    task->anchor = luaL_ref(L, -2);
    lua_pop(L, 1);
}

/* Pushes the handle, or nil, behind the table of all, which takes one place more. */
static void push_handle(lua_State *L, const struct task *task) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    lua_rawgeti(L, -1, task->anchor);
}

/* Allocates nothing, and does nothing the second time. */
static void unanchor(lua_State *L, struct task *task) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    luaL_unref(L, -1, task->anchor);
    lua_pop(L, 1);
    task->anchor = LUA_NOREF;
}

bool gpu_lua_task_is_ancestor(const struct task *ancestor, const struct task *task) {
    for (; task; task = task->parent) {
        if (task == ancestor) {
            return true;
        }
    }
    return false;
}

/* ---- ready, wake, cancel ---- */

void gpu_lua_task_ready(struct gpulua *g, struct task *task) {
    task->state = TASK_READY;
    task->ready_next = NULL;
    *g->ready_tail = task;
    g->ready_tail = &task->ready_next;
    g->ready_count++;
}

void gpu_lua_task_unready(struct task *task) {
    struct gpulua *g = task->g;
    if (task->state != TASK_READY) {
        return;
    }
    for (struct task **at = &g->ready_head; *at; at = &(*at)->ready_next) {
        if (*at == task) {
            *at = task->ready_next;
            if (!*at) {
                g->ready_tail = at;
            }
            g->ready_count--;
            break;
        }
    }
}

static void forget_wait(struct task *task) {
    gpu_lua_slot_clear(&task->slot);
    gpu_lua_timer_clear(task->g, &task->timer);
    if (task->group) {
        for (uint32_t i = 0; i < task->group->count; i++) {
            gpu_lua_slot_clear(&task->group->slots[i]);
        }
        task->group = NULL;
    }
}

void gpu_lua_wake(struct task *task, enum gpu_lua_wake reason) {
    if (task->state != TASK_PARKED) {
        return;
    }
    forget_wait(task);
    task->wake = reason;
    gpu_lua_task_ready(task->g, task);
}

static void cancel_one(struct task *task) {
    task->is_cancelled = true;
    gpu_lua_check_tell(task->g, task);
    switch (task->state) {
    case TASK_HELD:
        gpu_lua_slot_clear(&task->slot);
        task->pending = WAKE_CANCEL;
        gpu_lua_task_ready(task->g, task);
        break;
    case TASK_PARKED:
        if (!task->awaits_children) {
            gpu_lua_wake(task, WAKE_CANCEL);
        }
        break;
    case TASK_READY:
        /* New, or woken already. What it has waited for is its to see: a failure would be lost
         * else. Then it hears of this at its next wait. */
        if (task->is_started && task->wake != WAKE_EVENT) {
            task->wake = WAKE_CANCEL;
        } else {
            task->pending = WAKE_CANCEL;
        }
        break;
    default:
        task->pending = WAKE_CANCEL;
        break;
    }
}

/* What on_done has promised is not cancelled, nor what that has spawned. */
static bool goes_on(const struct task *task) {
    return task->is_owed && !task->is_detached;
}

static struct task *deepest(struct task *task) {
    while (task->children && !goes_on(task)) {
        task = task->children;
    }
    return task;
}

/* Children first; a chain of them may be longer than C has stack. */
void gpu_lua_task_cancel(struct task *task) {
    if (task->state == TASK_ENDED) {
        return;
    }
    give_more_time(task);
    for (struct task *each = deepest(task), *next; each; each = next) {
        next = each == task         ? NULL
               : each->sibling_next ? deepest(each->sibling_next)
                                    : each->parent;
        if (goes_on(each)) {
            gpu_lua_task_detach(each);
        } else {
            cancel_one(each);
        }
    }
}

void gpu_lua_observe_task(lua_State *L, struct task *task) {
    task->is_observed = true;
    if (task->is_adopted) {
        task->is_adopted = false;
        if (!task->parent) {
            task->g->failed_count--;
        }
        sibling_unlink(task);
        unanchor(L, task);
    }
}

bool gpu_lua_task_has_results(const struct task *task) {
    return !task->co ||
           (lua_status(task->co) == LUA_OK && lua_gettop(task->co) >= task->result_count);
}

void gpu_lua_task_push_error(lua_State *L, struct task *task) {
    if (task->outcome != OUTCOME_DONE && task->co && gpu_lua_task_has_results(task) &&
        lua_gettop(task->co) > 0 && lua_checkstack(task->co, 1)) {
        lua_pushvalue(task->co, -1);
        lua_xmove(task->co, L, 1);
        return;
    }
    struct gpu_error error;
    char site[LUA_IDSIZE + 16];
    gpu_error_set(&error, GPULUA_OUT_OF_MEMORY,
                  "not enough memory to keep what the task spawned at %s ended with",
                  gpu_lua_task_site(task, site, sizeof site));
    gpu_lua_error_push_owned(L, &error);
}

/* ---- the end of a task ---- */

static void report_later(struct gpulua *g, struct task *task) {
    task->is_observed = true;
    task->ready_next = NULL;
    struct task **tail = &g->reports;
    while (*tail) {
        tail = &(*tail)->ready_next;
    }
    *tail = task;
}

/* Its error is kept for its parent, or for a late join where there is none. */
static void adopt_failure(struct gpulua *g, struct task *task, bool is_raised) {
    bool is_nobodys = task->is_host_started || task->is_detached;
    if ((is_nobodys && !is_raised) || task->is_stuck) {
        report_later(g, task);
        return;
    }
    task->is_adopted = true;
    sibling_link(task->parent ? &task->parent->failed : &g->failed, task);
    if (!task->parent && ++g->failed_count > GPU_LUA_FAILED_MAX) {
        struct task *oldest = g->failed;
        while (oldest->sibling_next) {
            oldest = oldest->sibling_next;
        }
        g->failed_count--;
        oldest->is_adopted = false;
        sibling_unlink(oldest);
        report_later(g, oldest);
    }
}

/* Results or the error are the last `result_count` values of the stack of task->co. */
static void task_end(lua_State *L, struct task *task, enum gpu_lua_outcome outcome,
                     int result_count) {
    struct gpulua *g = task->g;
    struct task *parent = task->parent;
    forget_wait(task);
    gpu_lua_check_end(g, task);
    gpu_lua_uses_leave(&task->scope);
    task->state = TASK_ENDED;
    task->outcome = outcome;
    task->result_count = result_count;
    live_unlink(g, task);
    sibling_unlink(task);
    bool is_raised = false; /* by a wait for several, which raises one failure */
    while (task->joiners) {
        struct slot *slot = task->joiners;
        bool is_join = slot->task && slot->task->wants_join;
        task->is_observed |=
            !slot->group && !task->is_stuck && !(is_join && gpu_lua_circle_hides(task, slot->task));
        if (slot->group && outcome != OUTCOME_DONE) {
            gpu_lua_group_fail(slot->group, slot->index);
        }
        const struct group *group = slot->group;
        is_raised |= group && (group->wants_any ? group->fired_index == 0
                                                : group->failed_index == slot->index);
        gpu_lua_slot_fire(slot);
    }
    if (task->on_end) {
        report_later(g, task);
    } else if (outcome == OUTCOME_FAILED && !task->is_observed) {
        adopt_failure(g, task, is_raised);
    } else {
        task->is_observed = true;
        unanchor(L, task);
    }
    if (parent && parent->awaits_children && (!parent->children || task->is_adopted)) {
        gpu_lua_wake(parent, WAKE_EVENT);
    }
    if (!task->is_adopted) {
        task->parent = NULL;
    }
}

/* The first error of its children that nobody has seen becomes its own; others are reported. */
static bool take_failure(lua_State *L, struct task *task, bool has_failed) {
    struct gpulua *g = task->g;
    while (task->failed) {
        struct task *child = task->failed; /* the newest first */
        struct task *first = child;
        while (first->sibling_next) {
            first = first->sibling_next;
        }
        first->is_adopted = false;
        sibling_unlink(first);
        first->parent = NULL;
        if (has_failed) {
            report_later(g, first);
            continue;
        }
        has_failed = true;
        first->is_observed = true;
        luaL_checkstack(L, 4, NULL);
        gpu_lua_task_push_error(L, first);
        trace_drop(task);
        task->trace = first->trace;
        first->trace = NULL;
        unanchor(L, first);
    }
    return has_failed;
}

static void cancel_children(struct task *task) {
    for (struct task *child = task->children, *next; child; child = next) {
        next = child->sibling_next;
        gpu_lua_task_cancel(child);
    }
}

/* Nobody is left to wait for them. */
static void abandon_children(struct task *task) {
    cancel_children(task);
    for (struct task *child = task->children; child; child = task->children) {
        sibling_unlink(child);
        child->parent = NULL;
        child->is_detached = true;
    }
}

static int new_thread(lua_State *L) {
    lua_newthread(L);
    return 1;
}

/* Pushes a new stack with so much room; false: no memory. Ctrl-C comes behind it. */
static bool push_stack(lua_State *L, struct gpulua *g, int room) {
    lua_pushcfunction(L, new_thread);
    g->is_keeping = true;
    int status = lua_pcall(L, 0, 1, 0);
    g->is_keeping = false;
    if (status != LUA_OK || !lua_checkstack(lua_tothread(L, -1), room + LUA_MINSTACK)) {
        lua_pop(L, 1);
        return false;
    }
    return true;
}

/* The last `count` values of L, which are the results or the error: to where no script can resume
 * or close what they lie on. One result alone becomes a user value of the handle; more, or an
 * error, get a stack of their own. Whoever else than the loop has resumed the coroutine takes them
 * off L as well. The coroutine is its resumer's from here on. False: for want of memory they are
 * only where they are. Does not raise. */
static bool keep_results(lua_State *L, struct task *task, int count) {
    bool is_copied = task->g->running != task;
    if (!lua_checkstack(L, (is_copied ? count : 0) + 8)) {
        return false;
    }
    push_handle(L, task);
    lua_replace(L, -2);
    if (count == 1 && task->outcome == OUTCOME_DONE && !task->on_end) {
        lua_pushvalue(L, -2);
        lua_setiuservalue(L, -2, 1);
        lua_pop(L, 1);
        task->co = NULL;
        return true;
    }
    if (!push_stack(L, task->g, count)) {
        lua_pop(L, 1);
        return false;
    }
    lua_State *keeper = lua_tothread(L, -1);
    lua_setiuservalue(L, -2, 1);
    lua_pop(L, 1);
    for (int i = 0; is_copied && i < count; i++) {
        lua_pushvalue(L, -count);
    }
    lua_xmove(L, keeper, count);
    task->co = keeper;
    return true;
}

/* The same of an error that is all that the coroutine has, which is over. The handle is on top of
 * L. Without memory it stays there. Does not raise. */
static void keep_error(lua_State *L, struct task *task) {
    lua_State *co = task->co;
    if (!lua_checkstack(L, 3)) {
        return;
    }
    lua_xmove(co, L, 1); /* first: what comes may collect, and a finaliser find the coroutine */
    if (!push_stack(L, task->g, 1)) {
        lua_xmove(L, co, 1);
        return;
    }
    task->co = lua_tothread(L, -1);
    lua_insert(L, -2);
    lua_xmove(L, task->co, 1);
    lua_setiuservalue(L, -2, 1);
}

static int push_error(lua_State *L) {
    gpu_lua_error_push(L, lua_touserdata(L, 1));
    return 1;
}

/* Or that there is no memory for it. */
static void push_error_or_none(lua_State *L, struct gpu_error *error) {
    lua_pushcfunction(L, push_error);
    lua_pushlightuserdata(L, error);
    (void)lua_pcall(L, 1, 1, 0);
}

/* Stack: handle, handler, results or the error. */
static int wait_for_children(lua_State *L, int status, lua_KContext context) {
    struct task *task = (struct task *)context; /* NOLINT(performance-no-int-to-ptr) */
    luaL_checkstack(L, 8, NULL);                /* the body may have left any number of results */
    if (status == LUA_YIELD) {
        bool is_by_loop = task->is_resumed_by_loop;
        task->awaits_children = false;
        if (!is_by_loop) {
            lua_settop(L, task->park_top); /* what the resumer passed means nothing here */
            gpu_lua_task_unready(task);
        }
        task->state = is_by_loop ? TASK_RUNNING : TASK_ELSEWHERE;
        task->is_resumed_by_loop = false;
        if (task->wake == WAKE_INTERRUPT && task->outcome == OUTCOME_DONE) {
            struct gpu_error error;
            gpu_lua_interrupt_error(task->g, &error);
            task->outcome = OUTCOME_FAILED;
            gpu_lua_error_push(L, &error);
        }
    }
    if (task->outcome != OUTCOME_DONE || task->failed) {
        cancel_children(task);
    }
    if (task->children) {
        task->awaits_children = true;
        task->state = TASK_PARKED;
        task->wake = WAKE_NONE;
        task->park_top = lua_gettop(L);
        return lua_yieldk(L, 0, context, wait_for_children);
    }
    /* What comes may collect, and a finaliser spawn: no child of this one. */
    task->is_ending = true;
    bool had_failed = task->outcome != OUTCOME_DONE;
    bool has_failed = take_failure(L, task, had_failed);
    if (has_failed && !had_failed) {
        task->outcome = OUTCOME_FAILED;
    }
    int count = has_failed ? 1 : lua_gettop(L) - 2;
    bool is_kept = count == 0 || keep_results(L, task, count);
    task_end(L, task, task->outcome, count);
    return is_kept && task->g->running == task ? 0 : count;
}

/* They go on by themselves; those that have failed are told of. */
static void let_children_go(struct task *task) {
    while (task->failed) {
        struct task *oldest = task->failed;
        while (oldest->sibling_next) {
            oldest = oldest->sibling_next;
        }
        gpu_lua_task_detach(oldest);
    }
    while (task->children) {
        gpu_lua_task_detach(task->children);
    }
}

static int body_ended(lua_State *L, int status, lua_KContext context) {
    struct task *task = (struct task *)context; /* NOLINT(performance-no-int-to-ptr) */
    if (status == LUA_OK || status == LUA_YIELD) {
        task->outcome = OUTCOME_DONE;
        if (task->is_typed) {
            let_children_go(task);
        }
    } else {
        /* An interrupt is raised in the parents, too, and told there. */
        gpulua_status code = gpu_lua_error_code(L, task->g, -1);
        bool is_cancelled = (task->is_cancelled && code == GPULUA_CANCELLED) ||
                            (task->parent && code == GPULUA_INTERRUPTED);
        task->outcome = is_cancelled ? OUTCOME_CANCELLED : OUTCOME_FAILED;
    }
    return wait_for_children(L, LUA_OK, context);
}

#define LEVELS_MAX 1000 /* of stacks that are shown where time is limited */

void gpu_lua_task_traceback(lua_State *L, struct gpulua *g, int level) {
    lua_Debug ar;
    if (g && g->limits &&
        (atomic_load(&g->interrupt) >= GPU_LUA_TIME_IS_UP || lua_getstack(L, LEVELS_MAX, &ar))) {
        lua_pushliteral(L, ""); /* to walk a stack of 100,000 levels, 30 times, takes too long */
        return;
    }
    gpu_lua_push_traceback(L, level);
    const struct task *task = g && g->running && g->running->co == L ? g->running : NULL;
    for (int i = 0; task && task->line > 0 && i < 8; task = task->parent, i++) {
        lua_pushfstring(L, "\n\t%s a task spawned at %s:%d", i ? "by" : "in", task->source,
                        task->line);
        lua_concat(L, 2);
    }
}

/* The error stays what it is; where it happened is noted beside it. */
static int message_handler(lua_State *L) {
    struct task *task = lua_touserdata(L, lua_upvalueindex(1));
    gpu_lua_task_traceback(L, task->g, 1);
    trace_drop(task);
    task->trace = trace_keep(task->g, lua_tostring(L, -1));
    lua_settop(L, 1);
    return 1;
}

/* Stack: handle, body, arguments. The handle is to be closed, so that the task hears of it when
 * somebody closes its coroutine. */
static int task_main(lua_State *L) {
    struct task *task = lua_touserdata(L, 1);
    task->is_resumed_by_loop = false;
    lua_toclose(L, 1);
    lua_pushlightuserdata(L, task);
    lua_pushcclosure(L, message_handler, 1);
    lua_insert(L, 2);
    if (task->pending == WAKE_CANCEL) {
        struct gpu_error error;
        gpu_error_set(&error, GPULUA_CANCELLED, "the task was cancelled before it ran");
        task->outcome = OUTCOME_CANCELLED;
        gpu_lua_error_push(L, &error);
        return wait_for_children(L, LUA_OK, (lua_KContext)task);
    }
    int status = lua_pcallk(L, lua_gettop(L) - 3, LUA_MULTRET, 2, (lua_KContext)task, body_ended);
    return body_ended(L, status, (lua_KContext)task);
}

/* ---- running ---- */

/* The coroutine died without getting to task_end: no memory, or a yield that was none of ours. */
static void end_broken(lua_State *L, struct task *task, const char *message) {
    task->state = TASK_RUNNING; /* who closes it is the loop */
    lua_resetthread(task->co);
    if (message || lua_gettop(task->co) == 0) {
        lua_settop(task->co, 0);
        lua_pushstring(task->co, message ? message : "the coroutine of the task was over");
    }
    abandon_children(task);
    (void)take_failure(task->co, task, true);
    keep_error(L, task);
    task_end(L, task, OUTCOME_FAILED, 1);
}

void gpu_lua_task_closed(lua_State *L, struct task *task) {
    if (task->state == TASK_RUNNING || task->state == TASK_ENDED) {
        return; /* by the loop */
    }
    forget_wait(task);
    gpu_lua_task_unready(task);
    task->outcome = OUTCOME_FAILED;
    if (lua_isnil(L, 2)) {
        struct gpu_error error;
        char site[LUA_IDSIZE + 16];
        gpu_error_set(&error, GPULUA_CANCELLED,
                      "the coroutine of the task spawned at %s was closed",
                      gpu_lua_task_site(task, site, sizeof site));
        task->outcome = OUTCOME_CANCELLED;
        push_error_or_none(L, &error);
    }
    task->is_ending = true;
    abandon_children(task);
    (void)take_failure(L, task, true);
    (void)keep_results(L, task, 1);
    task_end(L, task, task->outcome, 1);
}

static void set_running(struct gpulua *g, struct task *task) {
    g->running = task;
    g->tasks.running = task ? task->number : 0;
}

/* What L runs now; NULL: nothing. */
static const void *frame_of(lua_State *L) {
    lua_Debug ar;
    return lua_getstack(L, 0, &ar) ? (const void *)ar.i_ci : NULL;
}

int gpu_lua_host_values(const struct gpulua *g) {
    int count = lua_gettop(g->L);
    return g->own_count > 0 && frame_of(g->L) == g->own_frame ? count - g->own_count : count;
}

/* Stack of `from` is left as it was. */
void gpu_lua_task_run(struct gpulua *g, lua_State *from, struct task *task) {
    lua_State *co = task->co;
    if (!lua_checkstack(from, 8) || !lua_checkstack(co, 1)) {
        gpu_lua_task_ready(g, task); /* no memory even for that: later */
        return;
    }
    lua_pushthread(co); /* the coroutine, whose handle lets go of it in the end, and that: */
    lua_xmove(co, from, 1);
    push_handle(from, task); /* they live until we are done here */
    struct task *outer = g->running;
    int outer_count = g->own_count;
    const void *outer_frame = g->own_frame;
    if (from == g->L) {
        g->own_count = lua_gettop(from);
        g->own_frame = frame_of(from);
    }
    int arg_count = task->is_started ? 0 : lua_gettop(co) - 1; /* of task_main */
    int result_count;
    set_running(g, task);
    task->state = TASK_RUNNING;
    task->is_started = true;
    task->is_resumed_by_loop = true;
    lua_State *outer_innermost = gpu_lua_set_innermost(g, co);
    int64_t outer_ns;
    gpu_lua_limits_begin(g, &outer_ns);
    struct gpu_lua_began began;
    gpu_lua_trace_run_begins(g, &began);
    int status = lua_resume(co, from, arg_count, &result_count);
    gpu_lua_trace_run_ends(g, task, &began);
    gpu_lua_limits_end(g, outer_ns);
    gpu_lua_set_innermost(g, outer_innermost);
    set_running(g, outer);
    g->own_count = outer_count;
    g->own_frame = outer_frame;
    if (status == LUA_YIELD) {
        lua_pop(co, result_count);
        if (task->state == TASK_RUNNING) {
            end_broken(from, task, "attempt to yield from outside a coroutine");
        }
    } else if (task->state != TASK_ENDED) {
        end_broken(from, task, status == LUA_OK ? "the coroutine of the task was over" : NULL);
    }
    lua_pop(from, 3);
}

bool gpu_lua_coroutine_is_active(lua_State *co) {
    lua_Debug ar;
    return lua_status(co) == LUA_OK && lua_getstack(co, 0, &ar);
}

/* Runs unprotected only what cannot raise: errors of __close come back as a status. Returns the
 * parent that it had in the end, or NULL. */
static struct task *drop_one(struct gpulua *g, struct task *task, const struct gpu_error *why) {
    lua_State *co = task->co;
    if (!g->is_closed && task->state != TASK_ENDED && gpu_lua_coroutine_is_active(co)) {
        struct task *parent = task->parent;
        sibling_unlink(task); /* whoever runs it may still bring it to its end */
        task->parent = NULL;
        task->is_detached = task->is_cancelled = true;
        task->pending = WAKE_CANCEL;
        return parent;
    }
    forget_wait(task);
    while (task->failed) {
        struct task *child = task->failed;
        child->is_adopted = false;
        sibling_unlink(child);
        child->parent = NULL;
        report_later(g, child);
    }
    if (task->state == TASK_ENDED) {
        return NULL;
    }
    gpu_lua_task_unready(task);
    task->is_cancelled = true;
    task->is_observed = !why;
    task->is_stuck = why;
    task->state = TASK_RUNNING; /* who closes it is the loop */
    struct task *outer = g->running;
    set_running(g, NULL); /* what it closes may neither yield nor run tasks */
    g->turn_depth++;
    lua_State *outer_innermost = gpu_lua_set_innermost(g, co);
    if (atomic_load(&g->interrupt) >= GPU_LUA_TIME_IS_UP) {
        gpu_lua_interrupt_again(g);
    }
    if (task->is_started) { /* else there is nothing to close */
        lua_resetthread(co);
    }
    gpu_lua_set_innermost(g, outer_innermost);
    g->turn_depth--;
    set_running(g, outer);
    struct gpu_error error;
    if (!why) {
        gpu_error_set(&error, GPULUA_CANCELLED, "the task was ended, as no task can run any more");
    }
    lua_settop(co, 0);
    if ((!g->is_closed || task->on_end) && lua_checkstack(co, 4)) { /* closed: nobody can ask */
        struct gpu_error copy;
        gpu_error_copy(&copy, why ? why : &error);
        gpu_lua_error_push_owned(co, &copy);
    } else {
        lua_pushnil(co);
    }
    bool goes_on = !g->is_closed && lua_checkstack(g->L, 6);
    if (goes_on) { /* and with that whoever has the coroutine */
        push_handle(g->L, task);
        keep_error(g->L, task);
        lua_pop(g->L, 2);
    }
    struct task *parent = task->parent; /* nothing of the script's runs from here on */
    task_end(goes_on ? g->L : co, task, why ? OUTCOME_FAILED : OUTCOME_CANCELLED, 1);
    return parent;
}

void gpu_lua_task_drop(struct gpulua *g, struct task *task, const struct gpu_error *why) {
    int top = lua_gettop(g->L);
    if (lua_checkstack(g->L, 2)) { /* what is closed may end it, and collect */
        push_handle(g->L, task);
    }
    /* The deepest first, by no stack; what is closed may detach and end tasks. */
    for (struct task *each = deepest(task); each != task && task->state != TASK_ENDED;) {
        struct task *parent = drop_one(g, each, NULL);
        each = deepest(parent ? parent : task);
    }
    (void)drop_one(g, task, why);
    lua_settop(g->L, top);
}

/* ---- reports ---- */

static void report(struct gpulua *g, lua_State *L, struct task *task) {
    int top = lua_gettop(L);
    if (task->on_end && task->outcome == OUTCOME_DONE && gpu_lua_task_has_results(task)) {
        (void)lua_checkstack(task->co, LUA_MINSTACK); /* there is, where results were kept */
        task->on_end(task->on_end_user, task->co, task->result_count, NULL);
    } else if (lua_checkstack(L, 8 + LUA_MINSTACK)) { /* hosts are given it, too */
        const char *traceback = task->trace ? task->trace->text : NULL;
        push_handle(L, task);
        gpu_lua_task_push_error(L, task);
        if (task->on_end) {
            task->on_end(task->on_end_user, L, 0, gpu_lua_keep_told(g, L, traceback));
        } else {
            gpu_lua_tell(g, L, traceback);
        }
    } else if (task->on_end) {
        gpu_lua_keep_error(g, GPULUA_OUT_OF_MEMORY, "no memory for the stack");
        task->on_end(task->on_end_user, L, 0, &g->last_error.view);
    }
    lua_settop(L, top);
    unanchor(L, task);
}

void gpu_lua_report(struct gpulua *g, lua_State *L) {
    while (g->reports) {
        struct task *task = g->reports;
        g->reports = task->ready_next;
        report(g, L, task);
    }
}

void gpu_lua_report_rest(struct gpulua *g, lua_State *L) {
    while (g->failed) {
        struct task *task = g->failed;
        while (task->sibling_next) {
            task = task->sibling_next;
        }
        task->is_adopted = false;
        sibling_unlink(task);
        report_later(g, task);
    }
    g->failed_count = 0;
    gpu_lua_report(g, L);
}

/* ---- making and ending ---- */

void gpu_lua_task_anchors(lua_State *L) {
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key) != LUA_TTABLE) {
        lua_createtable(L, 0, 8);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &anchors_key);
    }
    lua_pop(L, 1);
}

/* The line that spawns it; where C does, as from a callback of libuv's, that where its body begins.
 * The body lies above task_main and the task. Does not raise. `known`: that line; NULL, or no line:
 * it is to be found out. */
static void note_site(lua_State *L, struct task *task, const struct gpu_site *known) {
    lua_Debug ar;
    if (known && known->line > 0) {
        task->line = known->line;
        memcpy(task->source, known->source, strnlen(known->source, sizeof task->source - 1));
        return;
    }
    if (gpu_lua_where(L, &ar)) {
        task->line = ar.currentline;
    } else if (lua_isfunction(task->co, 3)) { /* and no table that can be called */
        lua_pushvalue(task->co, 3);
        lua_getinfo(task->co, ">S", &ar);
        task->line = gpu_lua_is_ours(&ar) || ar.linedefined < 0 ? 0 : ar.linedefined;
    }
    if (task->line > 0) {
        memcpy(task->source, ar.short_src, sizeof task->source);
    }
}

static struct task *make_task(lua_State *L, struct gpulua *g, int first, bool is_root,
                              const struct gpu_site *site) {
    int count = lua_gettop(L) - first + 1;
    if (g->is_closed) {
        gpu_lua_fail(L, GPULUA_CLOSED, "gpulua is closed: no task can run any more");
    }
    luaL_checkstack(L, count + 4, "too many arguments");
    struct task *task = gpu_lua_new(L, g, GPU_LUA_KIND_TASK, sizeof *task, 2);
    task->g = g;
    task->number = ++g->task_number;
    task->state = TASK_ENDED;
    task->is_observed = true;
    task->timer.task = task;
    task->anchor = LUA_NOREF;
    lua_State *co = lua_newthread(L);
    lua_setiuservalue(L, -2, 1);
    task->co = co;
    if (!lua_checkstack(co, count + 8)) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for the arguments of a task");
    }
    lua_pushcfunction(co, task_main);
    lua_pushvalue(L, -1);
    lua_xmove(L, co, 1);
    anchor(L, task);
    /* From here on nothing raises. */
    lua_insert(L, first);
    lua_xmove(L, co, count);
    task->state = TASK_HELD;
    task->is_observed = false;
    task->scope.stream_index = g->next_stream++ % GPU_TASK_STREAMS;
    task->scope.capture = is_root ? 0 : gpu_lua_scope(g)->capture;
    task->scope.is_in_for_good = task->scope.capture != 0;
    bool has_parent = !is_root && g->running && !g->running->is_ending;
    task->parent = has_parent ? g->running : NULL;
    note_site(L, task, site);
    if (task->parent) {
        sibling_link(&task->parent->children, task);
    }
    gpu_lua_check_spawn(g, task);
    live_link(g, task);
    return task;
}

struct task *gpu_lua_task_new(lua_State *L, struct gpulua *g, int first, bool is_root) {
    return make_task(L, g, first, is_root, NULL);
}

struct task *gpu_lua_task_beside(lua_State *L, struct gpulua *g, int first,
                                 const struct gpu_site *site) {
    struct use *use = gpu_lua_uses_copy(L, g); /* all that may raise comes before the task */
    lua_insert(L, first);
    struct task *task = make_task(L, g, first + 1, false, site); /* stack: uses, task */
    task->scope.stream_index = gpu_lua_scope(g)->stream_index;
    task->scope.use = use;
    lua_insert(L, first);
    lua_setiuservalue(L, first, 2);
    return task;
}

void gpu_lua_task_detach(struct task *task) {
    struct task *parent = task->parent;
    task->is_detached = true;
    if (task->state != TASK_ENDED) {
        sibling_unlink(task);
        task->parent = NULL;
        if (parent && parent->awaits_children && !parent->children) {
            gpu_lua_wake(parent, WAKE_EVENT);
        }
    } else if (task->is_adopted) {
        /* It has failed already: nobody is asked to see it any more, so it is told now. */
        task->is_adopted = false;
        if (!parent) {
            task->g->failed_count--;
        }
        sibling_unlink(task);
        task->parent = NULL;
        report_later(task->g, task);
    }
}

static void append_tasks(lua_State *L, struct task *task, bool is_failed) {
    for (; task; task = is_failed ? task->sibling_next : task->live_next) {
        if (lua_rawgeti(L, 1, task->anchor) == LUA_TUSERDATA) {
            lua_rawseti(L, 2, (lua_Integer)lua_rawlen(L, 2) + 1);
        } else {
            lua_pop(L, 1);
        }
    }
}

/* core.tasks() -> those that have not ended, and those that failed and nobody has seen it */
int gpu_lua_tasks(lua_State *L) {
    const struct gpulua *g = GPU_LUA(L);
    lua_settop(L, 0);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &anchors_key);
    lua_newtable(L);
    append_tasks(L, g->live, false);
    append_tasks(L, g->failed, true);
    for (const struct task *task = g->live; task; task = task->live_next) {
        append_tasks(L, task->failed, true);
    }
    return 1;
}

/* The state closes, and nobody has asked. */
static void tell_late(lua_State *L, struct task *task) {
    task->is_adopted = false;
    sibling_unlink(task);
    if (lua_checkstack(L, 8)) {
        gpu_lua_task_push_error(L, task);
        gpu_lua_tell(task->g, L, task->trace ? task->trace->text : NULL);
    }
}

void gpu_lua_task_finish(lua_State *L, struct task *task) {
    if (task->state != TASK_ENDED) {
        gpu_lua_task_drop(task->g, task, NULL); /* the state closes */
    }
    if (task->is_adopted) {
        tell_late(L, task);
    }
    sibling_unlink(task);
    gpu_lua_check_gone(task->g, task);
    trace_drop(task);
}
