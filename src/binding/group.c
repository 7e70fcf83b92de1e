/* Waiting for several things at once: gpu.all and gpu.any.
 *
 * Every item that is not over gets a slot in a group; the group is ready when the last one, or for
 * any the first one, or one that failed, has fired. */
#include "binding/graph.h"
#include "binding/trace.h"
#include "binding/wait.h"

/* Stack: 1 = table of the items, 2 = the group. */
static int group_finish(lua_State *L, struct gpulua *g, struct group *group) {
    struct item item;
    lua_settop(L, 2);
    if (group->wants_any) {
        uint32_t index = group->fired_index;
        lua_rawgeti(L, 1, index);
        gpu_lua_item_again(L, g, 3, &group->slots[index - 1], &item);
        gpu_lua_item_know(g, &item);
        if (gpu_lua_item_has_failed(&item)) {
            gpu_lua_item_push_error(L, &item, false);
            return lua_error(L);
        }
        if (item.kind == GPU_LUA_KIND_OP) {
            gpu_op_observe(item.op);
        }
        lua_pushinteger(L, index);
        return 1 + gpu_lua_item_push_results(L, &item, 3, true);
    }
    uint32_t failed_index = 0; /* the others' failures are still nobody's */
    for (uint32_t i = 1; i <= group->count; i++) {
        lua_rawgeti(L, 1, i);
        gpu_lua_item_again(L, g, -1, &group->slots[i - 1], &item);
        lua_pop(L, 1);
        if (gpu_lua_item_is_over(&item)) {
            gpu_lua_item_know(g, &item);
            bool is_first = failed_index == 0 || i == group->failed_index;
            failed_index = is_first && gpu_lua_item_has_failed(&item) ? i : failed_index;
        }
    }
    if (failed_index != 0) {
        lua_rawgeti(L, 1, failed_index);
        gpu_lua_item_again(L, g, -1, &group->slots[failed_index - 1], &item);
        gpu_lua_item_push_error(L, &item, false);
        return lua_error(L);
    }
    uint32_t count = group->count;
    luaL_checkstack(L, (int)count + 8, "too many results");
    for (uint32_t i = 1; i <= count; i++) {
        lua_rawgeti(L, 1, i);
        int index = lua_gettop(L);
        gpu_lua_item_again(L, g, index, &group->slots[i - 1], &item);
        gpu_lua_item_push_results(L, &item, index, true);
        lua_replace(L, index);
    }
    return (int)count;
}

static void group_unlink(struct group *group) {
    for (uint32_t i = 0; i < group->count; i++) {
        gpu_lua_slot_clear(&group->slots[i]);
    }
}

static int64_t check_wait(lua_State *L, struct gpulua *g, struct group *group,
                          struct gpu_lua_began *began) {
    if (gpu_lua_wait_must_end(g)) {
        group_unlink(group);
        return gpu_lua_check_wait(L, g, group->wants_any ? "gpu.any" : "gpu.all", INT64_MAX, began);
    }
    return gpu_lua_task_until_ns(&g->tasks, false);
}

/* Links the slots of what is not over. */
static void group_link(lua_State *L, struct gpulua *g, struct group *group, struct task *task) {
    group->open_count = 0;
    for (uint32_t i = 1; i <= group->count; i++) {
        struct slot *slot = &group->slots[i - 1];
        struct item item;
        lua_rawgeti(L, 1, i);
        gpu_lua_item_again(L, g, -1, slot, &item);
        lua_pop(L, 1); /* the table keeps it */
        bool is_over = gpu_lua_item_is_over(&item);
        struct gpu_op *op = NULL;
        if (!is_over && item.kind != GPU_LUA_KIND_TASK) {
            op = item.op ? gpu_op_retain(item.op) : gpu_ref_pending(&item.ref, true);
            is_over = !op; /* by now */
        }
        if (is_over) {
            if (group->fired_index == 0) {
                group->fired_index = i;
            }
            group->is_ready |= group->wants_any || gpu_lua_item_has_failed(&item);
            continue;
        }
        slot->task = task;
        slot->group = group;
        slot->index = i;
        slot->epoch = slot->epoch ? slot->epoch : gpu_lua_item_epoch(&item);
        if (item.kind == GPU_LUA_KIND_TASK) {
            gpu_lua_slot_join(slot, g, item.task);
        } else {
            if (gpu_device_is_left(gpu_op_device(op))) { /* that would wake nobody */
                struct gpu_error ignored = {0};
                (void)gpu_op_wait(op, GPU_LUA_LEFT_LOOK_NS, &ignored);
                gpu_error_finish(&ignored);
                gpu_op_release(op);
                if (!gpu_lua_item_is_over(&item)) {
                    struct gpu_lua_began none = {0};
                    (void)check_wait(L, g, group, &none);
                }
                i--;
                continue;
            }
            gpu_lua_slot_watch(slot, g, op);
            gpu_op_release(op);
        }
        group->open_count++;
    }
    group->is_ready |= group->open_count == 0;
}

/* Ready, as far as its slots know; but a buffer may have further work to wait for, and a task that
 * failed among others must end a wait for all. */
static bool group_is_over(lua_State *L, struct gpulua *g, struct group *group) {
    if (!group->is_ready) {
        return false;
    }
    bool all_over = true;
    for (uint32_t i = group->wants_any ? group->fired_index : 1; i <= group->count; i++) {
        struct item item;
        lua_rawgeti(L, 1, i);
        gpu_lua_item_again(L, g, -1, &group->slots[i - 1], &item);
        lua_pop(L, 1);
        bool is_over = gpu_lua_item_is_over(&item);
        if (group->wants_any || (is_over && gpu_lua_item_has_failed(&item))) {
            return is_over;
        }
        all_over &= is_over;
    }
    return all_over;
}

static int group_resumed(lua_State *L, int status, lua_KContext context);

static int group_wait(lua_State *L, struct gpulua *g, struct group *group) {
    bool parks = gpu_lua_may_park(g, L);
    group->is_ready = false;
    group->fired_index = group->failed_index = 0;
    for (uint32_t i = 1; i <= group->count; i++) {
        struct item item; /* closed meanwhile: raises here, before anything is linked */
        lua_rawgeti(L, 1, i);
        gpu_lua_item_again(L, g, -1, &group->slots[i - 1], &item);
        lua_pop(L, 1);
    }
    group_link(L, g, group, parks ? g->running : NULL);
    if (group_is_over(L, g, group)) {
        group_unlink(group);
        return group_finish(L, g, group);
    }
    if (parks) {
        g->running->group = group;
        return gpu_lua_park(L, g, group_resumed);
    }
    if (!gpu_lua_may_block(g)) {
        group_unlink(group);
        gpu_lua_fail_to_block(L);
    }
    bool runs_tasks = !g->running && g->turn_depth == 0;
    struct gpu_lua_began began;
    gpu_lua_trace_wait_begins(g, NULL, "a group", &began);
    while (!group_is_over(L, g, group)) {
        int64_t until_ns = check_wait(L, g, group, &began);
        if (group->is_ready) {
            group_unlink(group);
            gpu_lua_trace_wait_ends(L, g, &began);
            return group_wait(L, g, group);
        }
        if (!gpu_lua_turn(g, L, until_ns, runs_tasks)) {
            gpu_lua_unstick(g);
        }
    }
    gpu_lua_trace_wait_ends(L, g, &began);
    group_unlink(group);
    return group_finish(L, g, group);
}

static int group_resumed(lua_State *L, int status, lua_KContext context) {
    (void)status;
    struct task *task = gpu_lua_task_from(context);
    if (gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    struct group *group = lua_touserdata(L, 2);
    if (group_is_over(L, task->g, group)) {
        return group_finish(L, task->g, group);
    }
    gpu_lua_check_pending(L, task->g); /* cancelled when it was woken already */
    return group_wait(L, task->g, group);
}

static int group_start(lua_State *L, bool wants_any) {
    struct gpulua *g = GPU_LUA(L);
    const char *what = wants_any ? "any" : "all";
    int given = -1;
    struct item item;
    if (lua_gettop(L) != 1 || lua_type(L, 1) != LUA_TTABLE) {
        given = lua_gettop(L); /* also of nils, which a table does not count */
        lua_createtable(L, given, 0);
        for (int i = 1; i <= given; i++) {
            lua_pushvalue(L, i);
            lua_rawseti(L, -2, i);
        }
        lua_insert(L, 1);
        lua_settop(L, 1);
    } else {
        /* A copy: the script may change its own table during the wait. */
        lua_Integer count = (lua_Integer)lua_rawlen(L, 1);
        lua_createtable(L, count > INT32_MAX ? 0 : (int)count, 0);
        for (lua_Integer i = 1; i <= count; i++) {
            lua_rawgeti(L, 1, i);
            lua_rawseti(L, 2, i);
        }
        lua_remove(L, 1);
    }
    lua_Unsigned count = given >= 0 ? (lua_Unsigned)given : lua_rawlen(L, 1);
    if (wants_any && count == 0) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "any: at least one op, task or buffer expected");
    }
    if (count > 900000) {
        gpu_lua_fail(L, GPULUA_CAPACITY, "%s: %llu items are more than Lua's stack can return",
                     what, (unsigned long long)count);
    }
    bool has_task = false;
    for (lua_Unsigned i = 1; i <= count; i++) {
        lua_rawgeti(L, 1, (lua_Integer)i);
        if (!gpu_lua_item_get(L, g, -1, &item)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "item %llu of %s: an op, a task or a buffer expected, got %s",
                         (unsigned long long)i, what, gpu_lua_describe(L, -1));
        }
        if (item.kind == GPU_LUA_KIND_TASK) {
            gpu_lua_check_circle(L, g, item.task, wants_any);
            has_task |= item.task->state != TASK_ENDED;
        } else {
            gpu_lua_check_eager(L, g, gpu_lua_item_device(&item), what);
        }
        lua_pop(L, 1);
    }
    if (wants_any) {
        gpu_lua_check_circle_any(L, g, 1);
    }
    gpu_lua_check_pending(L, g);
    if (has_task && (g->running || g->turn_depth > 0) && !gpu_lua_may_park(g, L)) {
        gpu_lua_fail(L, GPULUA_NOT_YIELDABLE,
                     "%s: tasks can only be awaited from the body of a task", what);
    }
    struct group *group = gpu_lua_new(L, g, GPU_LUA_KIND_GROUP,
                                      sizeof *group + (size_t)count * sizeof(struct slot), 0);
    group->count = (uint32_t)count;
    group->wants_any = wants_any;
    return group_wait(L, g, group);
}

/* gpu.all(...) -> the result of each op, task or buffer, given one by one or as one table. Raises
 * the first failure; waits, yielding in a task. */
int gpu_lua_all(lua_State *L) {
    return group_start(L, false);
}

/* gpu.any(...) -> which of them was over first, from 1, and its result; raises its
 * failure. Waits as all. */
int gpu_lua_any(lua_State *L) {
    return group_start(L, true);
}

static int group_gc(lua_State *L) {
    group_unlink(lua_touserdata(L, 1));
    return 0;
}

void gpu_lua_group_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg metamethods[] = {{"__gc", group_gc}, {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_GROUP, NULL, metamethods);
}
