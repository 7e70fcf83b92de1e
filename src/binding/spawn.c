/* Tasks as scripts have them. */
#include "binding/check.h"
#include "binding/graph.h"
#include "binding/loop.h"
#include "binding/stream.h"

static int spawn(lua_State *L, const char *what) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_check_function(L, 1, 1, what);
    struct task *task = gpu_lua_task_new(L, g, 1, false);
    gpu_lua_task_ready(g, task);
    return 1;
}

/* gpu.spawn(f, ...) -> task */
int gpu_lua_spawn(lua_State *L) {
    return spawn(L, "spawn");
}

/* core.spawn_typed(f, ...) -> task, for programs with a prompt: when f is over, the tasks that it
 * has spawned go on by themselves; while it is not, an interrupt is for it and for what it awaits.
 */
int gpu_lua_spawn_typed(lua_State *L) {
    (void)spawn(L, "spawn_typed");
    struct task *task = lua_touserdata(L, -1);
    task->is_typed = true;
    return 1;
}

/* core.spawn_root(f, ...) -> task that is nobody's child, whoever runs. */
int gpu_lua_spawn_root(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_task_ready(g, gpu_lua_task_new(L, g, 1, true));
    return 1;
}

/* core.spawn_run(f, ...) -> task: what gpu.run calls. NotYieldable: nobody could wait for it. */
int gpu_lua_spawn_run(lua_State *L) {
    gpu_lua_check_waits(L, GPU_LUA(L));
    return spawn(L, "run");
}

/* core.spawn_timed(seconds, f, ...) -> task that uses its spawner's stream. Checks the arguments of
 * gpu.timeout. */
int gpu_lua_spawn_timed(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    int64_t until_ns = gpu_lua_check_deadline(L, 1, 1, "timeout");
    gpu_lua_check_function(L, 2, 2, "timeout");
    gpu_lua_check_waits(L, g);
    struct task *task = gpu_lua_task_beside(L, g, 2, NULL);
    task->until_ns = until_ns;
    gpu_lua_task_ready(g, task);
    return 1;
}

/* Ends with what it was released with. */
static int held(lua_State *L) {
    return lua_gettop(L);
}

/* core.hold() -> task that does not start before it is released or cancelled: who joins it waits
 * for that. */
int gpu_lua_hold(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_settop(L, 0);
    lua_pushcfunction(L, held);
    gpu_lua_task_new(L, g, 1, false)->is_callback = true;
    return 1;
}

/* core.release(task, ...): it ends with these results. Does nothing the second time, or once it is
 * cancelled. */
int gpu_lua_release(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct task *task = gpu_lua_check(L, g, 1, GPU_LUA_KIND_TASK);
    int count = lua_gettop(L) - 1;
    if (task->state != TASK_HELD) {
        return 0;
    }
    if (!lua_checkstack(task->co, count)) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for the results of a task");
    }
    lua_xmove(L, task->co, count);
    if (g->running) { /* not the guest: time alone orders what it calls */
        gpu_lua_check_tell(g, task);
    }
    gpu_lua_task_ready(g, task);
    return 0;
}

/* core.place(function or task) -> "pipeline.lua:12", where it is defined or where it is now; nil:
 * in C, or in a file of ours */
int gpu_lua_place(lua_State *L) {
    const struct task *task = gpu_lua_test(L, GPU_LUA(L), 1, GPU_LUA_KIND_TASK);
    lua_Debug ar;
    int line = 0;
    if (task) {
        line = task->state != TASK_ENDED && gpu_lua_where(task->co, &ar) ? ar.currentline : 0;
    } else if (lua_isfunction(L, 1)) {
        lua_settop(L, 1);
        lua_getinfo(L, ">S", &ar);
        line = gpu_lua_is_ours(&ar) ? 0 : ar.linedefined;
    }
    if (line > 0) {
        lua_pushfstring(L, "%s:%d", ar.short_src, line);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static int call_back_ended(lua_State *L, int status, lua_KContext context) {
    (void)L;
    (void)status;
    (void)context;
    return 0;
}

/* The body of a callback: f, op. Calls f(ok, error). */
static int call_back(lua_State *L) {
    lua_getfield(L, 2, "join");
    lua_insert(L, 2);
    lua_call(L, 1, 2); /* f, ok, op or error: it is over, so that this does not wait */
    if (lua_toboolean(L, 2)) {
        lua_settop(L, 2);
    }
    lua_callk(L, lua_gettop(L) - 1, 0, 0, call_back_ended);
    return 0;
}

/* op:on_done(f) -> op. f(ok, error) runs as a task of its own once the op is over; those of one
 * stream are called in the order of its operations and of the calls of on_done; also where who
 * asked has failed or was cancelled: as nobody's child. CaptureActive: in a capture, to which that
 * task would belong. */
int gpu_lua_on_done(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_op *op = gpu_lua_check_op(L, g, 1);
    gpu_lua_check_function(L, 2, 1, "on_done");
    gpu_lua_check_eager(L, g, gpu_op_device(op), "on_done");
    lua_settop(L, 2);
    lua_pushcfunction(L, call_back);
    lua_pushvalue(L, 2);
    struct gpu_op **own = gpu_lua_op_new(L, g); /* the script may close its handle */
    op = *own = gpu_op_retain(gpu_lua_check_op(L, g, 1));
    struct task *task = gpu_lua_task_new(L, g, 3, false);
    task->is_owed = true;
    if (gpu_op_is_over(op)) {
        (void)gpu_device_poll(gpu_op_device(op)); /* who watches what was over before comes first */
        gpu_lua_task_ready(g, task);
    } else {
        task->slot.task = task;
        gpu_lua_slot_watch(&task->slot, g, op);
    }
    lua_settop(L, 1);
    return 1;
}

/* task:cancel() -> task, whose next wait raises Cancelled, as those of its children. Does not wait.
 */
static int task_cancel(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_task_cancel(gpu_lua_check(L, g, 1, GPU_LUA_KIND_TASK));
    lua_settop(L, 1);
    return 1;
}

/* task:close(): cancels it, unless it is over. Also of the task's own coroutine (task_main). Called
 * from nowhere, on that coroutine: somebody closes it. */
static int task_close(lua_State *L) {
    struct task *task = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_TASK);
    lua_Debug ar;
    if (task->co == L && !lua_getstack(L, 1, &ar)) {
        lua_settop(L, 2);
        gpu_lua_task_closed(L, task);
    } else {
        gpu_lua_task_cancel(task);
    }
    return 0;
}

static const char *status_text(const struct task *task) {
    static const char *const states[] = {"queued",  "queued",  "running",
                                         "waiting", "running", "ended"};
    static const char *const outcomes[] = {"ended", "done", "failed", "cancelled"};
    if (task->state == TASK_ENDED) {
        return outcomes[task->outcome];
    }
    if (task->is_started && task->state == TASK_READY) {
        return "waiting";
    }
    return states[task->state];
}

/* task:status() -> "queued", "running", "waiting", "done", "failed" or "cancelled" */
static int task_status(lua_State *L) {
    struct task *task = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_TASK);
    lua_pushstring(L, status_text(task));
    return 1;
}

/* task:detach() -> task. Nobody waits for it any more; a failure is told to the host. */
static int task_detach(lua_State *L) {
    gpu_lua_task_detach(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_TASK));
    lua_settop(L, 1);
    return 1;
}

/* core.is_within(task) -> whether it runs, or one that it, or one of these, has spawned */
int gpu_lua_is_within(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const struct task *wanted = gpu_lua_check(L, g, 1, GPU_LUA_KIND_TASK);
    const struct task *task = g->running;
    while (task && task != wanted) {
        task = task->parent;
    }
    lua_pushboolean(L, task != NULL);
    return 1;
}

/* task:traceback() -> where its error was raised, or nil */
static int task_traceback(lua_State *L) {
    struct task *task = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_TASK);
    if (task->outcome == OUTCOME_FAILED && task->trace) {
        lua_pushstring(L, task->trace->text);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static int task_tostring(lua_State *L) {
    struct task *task = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_TASK);
    char site[LUA_IDSIZE + 16];
    lua_pushfstring(L, "gpulua.task %p of %s (%s)", (void *)task,
                    gpu_lua_task_site(task, site, sizeof site), status_text(task));
    return 1;
}

static int task_gc(lua_State *L) {
    gpu_lua_task_finish(L, lua_touserdata(L, 1));
    return 0;
}

void gpu_lua_task_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {
        {"await", gpu_lua_await}, {"join", gpu_lua_join},        {"done", gpu_lua_done},
        {"cancel", task_cancel},  {"close", task_close},         {"status", task_status},
        {"detach", task_detach},  {"traceback", task_traceback}, {NULL, NULL}};
    static const luaL_Reg metamethods[] = {
        {"__gc", task_gc}, {"__close", task_close}, {"__tostring", task_tostring}, {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_TASK, methods, metamethods);
    gpu_lua_task_anchors(L);
}
