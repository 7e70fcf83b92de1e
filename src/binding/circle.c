/* Circles: tasks that would wait for each other for ever.
 *
 * A task cannot end before its children have, nor before what it waits for without a limit of time.
 * A circle of such waits is always closed by one call, the last of them, and that call raises.
 * Those in the circle who join do not count as having seen its error: it is their own, and a result
 * that they never look at would hide it. */
#include "binding/limits.h"
#include "binding/wait.h"

#include <stdio.h>
#include <string.h>

/* ---- who cannot end before a task has ---- */

struct walk {
    uint64_t mark;
    struct task **tail;
};

/* `task` cannot end before `to` has. */
static void reach(struct walk *walk, struct task *task, struct task *to) {
    if (task->mark == walk->mark) {
        return;
    }
    task->mark = walk->mark;
    task->waits_for = to;
    task->walk_next = NULL;
    *walk->tail = task;
    walk->tail = &task->walk_next;
}

/* All that a wait for any of several still waits for is marked. */
static bool is_all_marked(const struct group *group, uint64_t mark) {
    for (uint32_t i = 0; i < group->count; i++) {
        const struct slot *slot = &group->slots[i];
        if (slot->op || (slot->target && slot->target->mark != mark)) {
            return false;
        }
    }
    return true;
}

/* Marks all that cannot end before `last` has; each knows the next one on the way to it. */
static uint64_t mark_waiting(struct gpulua *g, struct task *last) {
    struct task *first = NULL;
    struct walk walk = {.mark = ++g->walk_count, .tail = &first};
    reach(&walk, last, NULL);
    for (struct task *task = first; task; task = task->walk_next) {
        if (task->parent) {
            reach(&walk, task->parent, task);
        }
        for (struct slot *slot = task->joiners; slot; slot = slot->next) {
            bool is_bound =
                !slot->group || !slot->group->wants_any || is_all_marked(slot->group, walk.mark);
            if (slot->task && slot->task->timer.heap_position == 0 && is_bound) {
                reach(&walk, slot->task, task);
            }
        }
    }
    return walk.mark;
}

/* ---- the error ---- */

const char *gpu_lua_task_site(const struct task *task, char *text, size_t text_bytes) {
    if (task->line > 0) {
        snprintf(text, text_bytes, "%s:%d", task->source, task->line);
    } else {
        snprintf(text, text_bytes, "%s", task->parent ? "a C function" : "the main chunk");
    }
    return text;
}

/* "a.lua:4 (this task) -> a.lua:3 -> a.lua:4", and the table of the lines onto the stack. */
static void push_path(lua_State *L, struct task *own, struct task *other, char *text,
                      size_t text_bytes) {
    char site[LUA_IDSIZE + 16];
    lua_Integer count = 0;
    int used =
        snprintf(text, text_bytes, "%s (this task)", gpu_lua_task_site(own, site, sizeof site));
    lua_newtable(L);
    for (struct task *task = own; task && count < 100;
         task = task == own ? other : task->waits_for) {
        if (count > 0 && used > 0 && (size_t)used < text_bytes) {
            const char *next = count < 8    ? gpu_lua_task_site(task, site, sizeof site)
                               : count == 8 ? "..."
                                            : "";
            used += snprintf(text + used, text_bytes - (size_t)used, "%s%s", next[0] ? " -> " : "",
                             next);
        }
        lua_pushstring(L, gpu_lua_task_site(task, site, sizeof site));
        lua_rawseti(L, -2, ++count);
        if (task->waits_for == own || (task == own && other == own)) {
            break;
        }
    }
    if (used > 0 && (size_t)used < text_bytes) {
        snprintf(text + used, text_bytes - (size_t)used, " -> %s",
                 gpu_lua_task_site(own, site, sizeof site));
    }
}

static _Noreturn void raise_circle(lua_State *L, struct task *own, struct task *other) {
    struct gpu_error error;
    char path[600], site[LUA_IDSIZE + 16];
    luaL_checkstack(L, 8, NULL);
    push_path(L, own, other, path, sizeof path);
    for (struct task *task = other; task; task = task->waits_for) {
        task->circle = own->mark;
    }
    if (own == other) {
        gpu_error_set(&error, GPULUA_INVALID_ARGUMENT,
                      "a task cannot wait for itself (spawned at %s)",
                      gpu_lua_task_site(own, site, sizeof site));
    } else if (gpu_lua_task_is_ancestor(other, own)) {
        gpu_error_set(&error, GPULUA_INVALID_ARGUMENT,
                      "a task cannot wait for a task that waits for it to end; by where they were "
                      "spawned: %s",
                      path);
    } else {
        gpu_error_set(&error, GPULUA_INVALID_ARGUMENT,
                      "this wait would never end: tasks would wait for each other in a circle; by "
                      "where they were "
                      "spawned: %s",
                      path);
    }
    gpu_lua_error_push(L, &error);
    lua_insert(L, -2);
    lua_setfield(L, -2, "tasks");
    lua_pushliteral(
        L, "wait from a task that the other one does not wait for, or with a limit of time");
    lua_setfield(L, -2, "hint");
    lua_error(L);
    __builtin_unreachable();
}

/* Whether it may be in a circle at all: the usual child is not, and costs no walk. */
static bool may_wait(const struct task *task) {
    return task->children || task->slot.target || task->group;
}

void gpu_lua_check_circle(lua_State *L, struct gpulua *g, struct task *task, bool has_limit) {
    struct task *own = g->running;
    if (!own || task->state == TASK_ENDED) {
        return;
    }
    bool is_ancestor = gpu_lua_task_is_ancestor(task, own);
    if (!is_ancestor && (has_limit || !may_wait(task))) {
        return;
    }
    if (mark_waiting(g, own) == task->mark) {
        raise_circle(L, own, task);
    }
}

void gpu_lua_check_circle_any(lua_State *L, struct gpulua *g, int items) {
    struct task *first = NULL;
    uint64_t mark = 0;
    lua_Integer count = (lua_Integer)lua_rawlen(L, items);
    for (lua_Integer i = 1; i <= count && g->running; i++) {
        struct item item;
        lua_rawgeti(L, items, i);
        gpu_lua_item_get(L, g, -1, &item);
        lua_pop(L, 1); /* the table keeps it */
        if (item.kind != GPU_LUA_KIND_TASK || item.task->state == TASK_ENDED ||
            !may_wait(item.task)) {
            return;
        }
        if (!first) {
            first = item.task;
            mark = mark_waiting(g, g->running);
        }
        if (item.task->mark != mark) {
            return;
        }
    }
    if (first) {
        raise_circle(L, g->running, first);
    }
}

bool gpu_lua_circle_hides(const struct task *task, const struct task *waiter) {
    if (!waiter || task->circle == 0 || waiter->circle != task->circle ||
        task->outcome != OUTCOME_FAILED || !task->co || lua_gettop(task->co) == 0 ||
        !lua_checkstack(task->co, 3)) {
        return false;
    }
    lua_State *co = task->co;
    if (gpu_lua_error_code(co, task->g, -1) != GPULUA_INVALID_ARGUMENT) {
        return false; /* it went on, and failed of something else */
    }
    lua_pushliteral(co, "tasks");
    bool hides = lua_rawget(co, -2) == LUA_TTABLE;
    lua_pop(co, 1);
    return hides;
}

/* ---- the rest: who was taken from the loop and left suspended ---- */

/* The task that a parked one waits for; NULL: none. */
static struct task *waits_for(const struct task *task) {
    if (task->awaits_children) {
        return task->children;
    }
    if (task->slot.target) {
        return task->slot.target;
    }
    for (uint32_t i = 0; task->group && i < task->group->count; i++) {
        if (task->group->slots[i].target) {
            return task->group->slots[i].target;
        }
    }
    return NULL;
}

void gpu_lua_unstick(struct gpulua *g) {
    struct task *task = g->live;
    /* After as many steps as there are tasks, the walk is at its end or inside a circle. */
    for (uint32_t i = 0; task && i < g->task_count && waits_for(task); i++) {
        task = waits_for(task);
    }
    /* In a circle at least one waits for something else than its children. */
    for (uint32_t i = 0; task && i < g->task_count && task->awaits_children && task->children;
         i++) {
        task = task->children;
    }
    if (!task) {
        return;
    }
    if (task->state == TASK_HELD) {
        gpu_lua_task_cancel(task); /* nobody is left to release it */
    } else if (task->state == TASK_PARKED) {
        gpu_lua_wake(task, WAKE_STUCK);
    } else if (task->state == TASK_ELSEWHERE && !gpu_lua_coroutine_is_active(task->co)) {
        struct gpu_error error;
        char site[LUA_IDSIZE + 16];
        gpu_error_set(&error, GPULUA_CANCELLED,
                      "the task spawned at %s can never end: something else than the loop resumed "
                      "its coroutine, which %s",
                      gpu_lua_task_site(task, site, sizeof site),
                      lua_status(task->co) == LUA_YIELD ? "yielded to it and is left suspended"
                                                        : "is dead");
        int64_t outer_ns;
        gpu_lua_limits_begin(g, &outer_ns);
        gpu_lua_task_drop(g, task, &error);
        gpu_lua_limits_end(g, outer_ns);
    }
}
