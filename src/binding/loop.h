/* The loop: one for each gpulua object, which is one for each lua_State.
 *
 * A task is a userdata with a coroutine whose first function is a C function of ours (task.c), so
 * that what happens when its body ends is in one place, whoever resumed it last. Tasks that have
 * not ended are anchored in the registry; ended ones live as long as somebody has their handle.
 *
 * A task is in exactly one of these states:
 *
 *     HELD       made, but waits before it starts: for an op (op:on_done) or for core.release
 *     READY      in the ready queue
 *     RUNNING    its coroutine was resumed by the loop and has not yielded
 *     PARKED     its coroutine yielded from one of our waits; slots and timer say what wakes it
 *     ELSEWHERE  somebody other than the loop resumed it out of a wait
 *     ENDED      over; results or error are kept
 *
 * Only gpu_lua_wake moves PARKED to READY, and it first unlinks every slot and the timer: a wake
 * happens once for each park. Events (ops, tasks, timers) never run Lua code; they only fill the
 * ready queue, which gpu_lua_turn works off. */
#ifndef GPU_BINDING_LOOP_H
#define GPU_BINDING_LOOP_H

#include <signal.h>
#include <stdatomic.h>

#include "binding/binding.h"
#include "binding/caller.h"
#include "runtime/fork.h"

enum gpu_lua_state { TASK_HELD, TASK_READY, TASK_RUNNING, TASK_PARKED, TASK_ELSEWHERE, TASK_ENDED };
enum gpu_lua_outcome { OUTCOME_NONE, OUTCOME_DONE, OUTCOME_FAILED, OUTCOME_CANCELLED };
enum gpu_lua_wake {
    WAKE_NONE,
    WAKE_EVENT,
    WAKE_TIMEOUT,
    WAKE_CANCEL,
    WAKE_INTERRUPT,
    WAKE_STUCK,
    WAKE_FOREIGN /* resumed by something else than the loop */
};

struct task;
struct group;
struct descriptor;
struct check;
struct strand;
struct tracing;

/* A wait or a run that has begun (trace.h). */
struct gpu_lua_began {
    int64_t at_ns; /* 0: nothing is traced */
    uint64_t op;   /* in which log, and there */
    uint32_t device;
    uint32_t label;
};

struct timer {
    int64_t deadline_ns;
    uint32_t heap_position; /* from 1; 0: not set */
    struct task *task;      /* woken with WAKE_TIMEOUT */
};

/* One thing that a wait waits for: an op, a task or a descriptor. */
struct slot {
    struct gpu_waiter waiter; /* of op */
    struct gpulua *g;
    struct gpu_op *op;             /* retained while watched */
    struct slot *next;             /* among those of the object, the task or the descriptor */
    struct slot **link;            /* NULL: not linked */
    struct task *target;           /* whose joiner it is, while linked */
    struct descriptor *descriptor; /* the same */
    bool is_closed;                /* that was closed meanwhile */
    struct task *task;             /* who waits; NULL: a wait that blocks or drives the loop */
    struct group *group;
    uint32_t index; /* in the group, from 1 */
    uint32_t epoch; /* see struct item */
};

/* A wait for several things; a userdata on the stack of the wait. */
struct group {
    uint32_t count, open_count;
    uint32_t fired_index;  /* the first that was over; 0: none yet */
    uint32_t failed_index; /* the first that failed; 0: none has */
    bool wants_any;
    bool is_ready;
    struct slot slots[];
};

/* Which streams work goes to: the nested uses, innermost first, else the task's own stream. */
struct use {
    struct gpu_stream *stream; /* retained */
    struct use *outer;
    struct scope *scope; /* NULL: ended, or a copy */
};
struct scope {
    uint32_t stream_index;
    uint64_t capture; /* the number of the capture that it belongs to; 0: none (graph.c) */
    bool
        is_in_for_good; /* spawned into the capture: when that has ended it does no work any more */
    struct use *use;
};

struct task {
    struct gpulua *g;
    int anchor; /* of its handle, among those that are kept (task.c); LUA_NOREF: it is not */
    lua_State
        *co; /* user value 1 owns it; ended: its results lie there, or NULL: user value 1 is */
    enum gpu_lua_state state;
    enum gpu_lua_outcome outcome;
    enum gpu_lua_wake wake;    /* why it was made ready */
    enum gpu_lua_wake pending; /* WAKE_CANCEL, WAKE_INTERRUPT: raised at its next wait */
    bool is_started;
    bool is_ending;          /* what it leaves is being kept: it gets no children any more */
    bool is_resumed_by_loop; /* the token: true only between lua_resume of the loop and the wait's
                                continuation */
    bool is_observed;        /* somebody has been given its error */
    bool is_callback;        /* made by core.hold: a callback of libuv's ends it */
    bool is_owed;            /* of on_done, to whoever asked, whatever becomes of them */
    bool is_detached;
    bool is_host_started; /* nobody can have its handle */
    gpulua_on_end on_end; /* hears what came of it; NULL: nobody does */
    void *on_end_user;
    bool is_typed;     /* at a prompt: see gpu_lua_spawn_typed */
    bool is_cancelled; /* was asked to stop */
    bool is_stuck;     /* ended because nobody would have resumed it: that is told, joined or not */
    bool awaits_children;
    bool is_adopted;     /* in a list of failed tasks, and therefore anchored */
    bool wants_join;     /* of the wait in progress: join, not await */
    int64_t deadline_ns; /* of the wait in progress */
    int64_t until_ns;    /* of gpu.timeout: calls may wait until then; 0: as long as it takes */
    int park_top;
    int result_count;
    struct task *ready_next;
    struct task *live_next, **live_link; /* tasks that have not ended */
    struct task *parent;
    struct task *children, *failed;            /* not ended; ended with an error */
    struct task *sibling_next, **sibling_link; /* in one of those two */
    struct slot *joiners;
    struct slot slot;
    struct group *group;
    struct timer timer;
    struct scope scope;
    struct trace *trace;        /* owned; where its error was raised; NULL: nowhere */
    char source[LUA_IDSIZE];    /* where it was spawned */
    int line;                   /* 0: not by a line of a script */
    struct strand *strand;      /* owned; of check.c; NULL: nothing is checked */
    uint64_t number;            /* in the order of spawning, from 1 */
    struct gpu_lua_began waits; /* since then it has been parked */
    /* Of circle.c: */
    uint64_t mark;          /* of the walk that found it last */
    struct task *walk_next; /* in that walk */
    struct task *waits_for; /* there; the next one on the way to where it began */
    uint64_t circle;        /* the walk that found it in a circle; 0: none has */
};

#define GPU_LUA_FAILED_MAX 64u /* errors of parentless tasks that are kept for a late join */

/* How gpulua_last_error keeps its strings. */
struct kept_error {
    struct gpulua_error view;
    char *message, *source, *traceback, *hint; /* owned */
    struct kept_place {
        gpulua_place view;
        char *source, *caller; /* owned; NULL: not known */
    } places[2];
};

#define GPU_LUA_LAUNCH_OPTIONS 5u

struct device_handle;

/* What the host holds of a state (gpulua_buffer, gpulua_recorder) is emptied when the state ends.
 */
struct host_handle {
    struct host_handle *next, **link; /* link NULL: emptied, or about to be */
    atomic_uint refs;                 /* the host's, and one of the object */
    void (*empty)(struct host_handle *handle);
    void (*destroy)(struct host_handle *handle); /* the last one is gone */
};

/* A traceback. In a list of the object's, because Lua has not always the memory that it takes to
 * run a finaliser, and then none is run. */
struct trace {
    struct trace *next, **link;
    char text[];
};

struct gpulua {
    lua_State *L; /* the main thread */
    bool is_closed;
    bool is_closing; /* gpulua_close has begun, which frees it in the end */
    bool is_keeping; /* task.c: the results of a task */
    bool owns_state;
    bool is_armed;
    bool was_poked; /* arming found something: the next step has work */
    bool spin_is_spent;
    bool is_in_hook;   /* a hook of the script's runs, which can call nothing of this (hooks.h) */
    bool ends_in_hook; /* one ends the program: it is the last */
    uint32_t turn_depth;
    uint32_t attach_count;
    int epoll_fd, wake_fd;
    struct gpu_fork fork;
    bool is_forked;                 /* into this process, from another one */
    int descriptors_fd;             /* of descriptor.c, in epoll_fd; -1: none yet */
    struct descriptor *descriptors; /* that are waited for */
    bool has_guest;
    bool guest_is_due; /* tasks have run since it did */
    struct slot guest; /* while it waits for its descriptor */
    int64_t guest_deadline_ns;
    atomic_int interrupt; /* so often has somebody asked for it; GPU_LUA_TIME_IS_UP: see limits.h */
    _Atomic(lua_State *) innermost; /* the coroutine that runs, for the hook of an interrupt */
    struct task *running;
    /* While it runs: so many values of ours are on L's stack, in that frame of it. */
    int own_count;
    const void *own_frame;
    struct gpu_tasks tasks; /* as devices see them */
    struct task *ready_head, **ready_tail;
    uint32_t ready_count;
    struct task *live;
    uint32_t task_count;
    struct slot *watched;               /* slots on ops */
    uint32_t watch_count;               /* so many */
    uint32_t missed_count;              /* sleeps that nobody ended, though something was over */
    struct task *failed, **failed_tail; /* parentless, ended, unobserved */
    uint32_t failed_count;
    struct task *reports; /* to be told to the host; linked by ready_next */
    struct trace *traces; /* owned: of all tasks */
    uint64_t walk_count;
    struct {
        char source[LUA_IDSIZE];
        int line;
    } interrupted; /* where an interrupt met a task that has a parent; line 0: nowhere */
    struct timer **heap;
    uint32_t timer_count, timer_capacity;
    struct device_handle *devices;
    struct gpu_seat *seat; /* at config.shared_device, while it is open here */
    uint32_t next_stream;
    struct scope scope;              /* outside tasks */
    struct capture_handle *captures; /* that have not ended */
    uint64_t capture_number;
    uint64_t gc_debt_bytes; /* of handles since the last step of the collector, less the closed */
    struct memory_handle *pressed;    /* whose listeners are still to be told */
    uint32_t guard_count;             /* made, ever */
    const struct gpu_op *captured_op; /* that of the handle in the registry; NULL: none yet */
    const char *launch_options[GPU_LUA_LAUNCH_OPTIONS]; /* their names, in the registry */
    const void *metatables[GPU_LUA_KIND_COUNT];
    int metatable_refs[GPU_LUA_KIND_COUNT];     /* the same, in the registry */
    uint16_t outside_bytes[GPU_LUA_KIND_COUNT]; /* see gpu_lua_count_outside */
    const void *closed_buffers;                 /* the metatable of buffers that are closed */
    int closed_buffers_ref;
    struct caller caller;
    struct gpulua_config config;  /* strings owned */
    char *flight_folder;          /* owned; where config.flight_path begins; NULL: at the root */
    char *isolation_text;         /* owned; $GPULUA_ISOLATE where the configuration says nothing */
    char *check_text;             /* owned; $GPULUA_CHECK where it is no seed */
    lua_State *hooks_thread;      /* anchored (hooks.c); NULL: no device ever had hooks */
    uint32_t hooks_untold;        /* operations that are over; 0: there is nothing to tell */
    struct check *check;          /* owned; NULL: no device was ever checked */
    struct tracing *tracing;      /* owned; NULL: no device was ever traced */
    struct limits *limits;        /* owned; NULL: scripts run for as long as they like */
    uint64_t task_number;         /* of the newest task */
    struct gpu_observer observer; /* of checked devices, which may live longer than `check` */
    struct kept_error last_error;
    struct host_handle *host_handles;
    struct heap *memory; /* owned, of a state of our own (host/heap.h); NULL: the host's */
    void (*memory_lift)(struct heap *memory); /* takes its limit away */
};

/* What this thread does next is for this object. */
static inline void gpu_lua_sit(const struct gpulua *g) {
    if (g->config.shared_device) {
        gpu_seat_sit(g->seat);
    }
}
/* Raises StreamMisuse. */
_Noreturn void gpu_lua_fail_in_hook(lua_State *L);
/* In a sandbox raises Unsupported: `what` is not for scripts that are not trusted. */
void gpu_lua_refuse_in_sandbox(lua_State *L, const struct gpulua *g, const char *what);

/* The object of the function that runs. Raises in a hook. */
static inline struct gpulua *GPU_LUA(lua_State *L) {
    struct gpulua *g = lua_touserdata(L, lua_upvalueindex(1));
    if (__builtin_expect(g->is_in_hook, 0)) {
        gpu_lua_fail_in_hook(L);
    }
    gpu_lua_sit(g);
    return g;
}

/* gpu_lua_test for a kind that is tagged, where it is nearly always one. */
static inline void *gpu_lua_test_tagged(lua_State *L, const struct gpulua *g, int index,
                                        enum gpu_lua_kind kind) {
    const struct tagged *handle = lua_touserdata(L, index);
    return handle && lua_rawlen(L, index) >= sizeof *handle && /* 0: a light one */
                   handle->metatable == g->metatables[kind]
               ? (void *)(uintptr_t)handle
               : gpu_lua_test(L, g, index, kind);
}
/* The same of the argument number `at`. `value`: how Lua keeps it, or NULL. */
static inline void *gpu_lua_test_argument(lua_State *L, const struct gpulua *g, int at,
                                          const struct lua_value *value, enum gpu_lua_kind kind) {
    struct tagged *handle = gpu_lua_memory_of(value, sizeof *handle);
    return handle && handle->metatable == g->metatables[kind] ? handle
                                                              : gpu_lua_test(L, g, at, kind);
}

/* ---- loop.c ---- */

/* The gpulua object of the state, made when missing (`config` may be NULL). Raises Lua errors. */
struct gpulua *gpu_lua_open(lua_State *L, const gpulua_config *config);
/* The same, or NULL if there is none. */
struct gpulua *gpu_lua_find(lua_State *L);
/* Ends tasks and devices, frees what is outside Lua. Nothing of it can be used afterwards except
 * by gpu_lua_open. `L` may be a coroutine: it is reset too. The guest has a last turn with
 * `runs_guest`: not while the state closes, for its library may have been closed before. `report`
 * is where a function lies that is called when the tasks are over and the devices still open; or 0.
 */
void gpu_lua_shut(struct gpulua *g, lua_State *L, bool runs_guest, int report);

/* Who waits for a device looks at it this often, whatever happens: an await that comes back late
 * because a wake-up was lost is better than one that does not. */
#define GPU_LUA_HEARTBEAT_NS INT64_C(1000000000)

/* One turn, driven by `L`: what is over, due timers, then ready tasks (only with `run_tasks`); if
 * there was nothing to run, sleeps until `deadline_ns` at most. False: nothing can ever happen and
 * there is no deadline. */
bool gpu_lua_turn(struct gpulua *g, lua_State *L, int64_t deadline_ns, bool run_tasks);
int gpu_lua_missed_wakes(lua_State *L);
/* Looks at the devices and the timers; runs nothing. */
void gpu_lua_pump(struct gpulua *g);
void gpu_lua_arm(struct gpulua *g);
/* Arms, and says how long a host may wait for the descriptor: at most the heartbeat while tasks
 * wait for a device. 0: not at all; -1: until it is readable. */
int64_t gpu_lua_hint_ns(struct gpulua *g);
void gpu_lua_poke(struct gpulua *g); /* any thread */
/* From here on `L` runs; returns what ran before. */
lua_State *gpu_lua_set_innermost(struct gpulua *g, lua_State *L);
/* What runs, or the state itself: for its line. */
lua_State *gpu_lua_innermost(const struct gpulua *g);
/* What was given, or else the environment's variable; NULL: neither, or empty. */
const char *gpu_lua_setting(const char *given, const char *variable);
int64_t gpu_lua_next_deadline_ns(const struct gpulua *g);
/* When a device wants to be looked at. */
int64_t gpu_lua_alarm_ns(const struct gpulua *g);

/* False: no memory. */
bool gpu_lua_timer_set(struct gpulua *g, struct timer *timer, int64_t deadline_ns);
void gpu_lua_timer_clear(struct gpulua *g, struct timer *timer);

/* ---- descriptor.c ---- */

/* False: could not, and errno says why. */
bool gpu_lua_slot_watch_descriptor(struct slot *slot, struct gpulua *g, int fd);
void gpu_lua_descriptor_left(struct gpulua *g, struct descriptor *descriptor); /* by a slot */
/* Wakes who waits for one that is readable. */
void gpu_lua_descriptors_look(struct gpulua *g);
/* Wakes who waits for one that was closed meanwhile. True: there was one. */
bool gpu_lua_descriptors_check(struct gpulua *g);
void gpu_lua_descriptors_end(struct gpulua *g);
/* In a child by fork: a descriptor of its own for those that are waited for. */
void gpu_lua_descriptors_in_child(struct gpulua *g);
int gpu_lua_readable(lua_State *L);

/* ---- guest.c ---- */

/* Also before a state closes: luv 1.44 does not survive handles that are still closing then. */
void gpu_lua_guest_run(struct gpulua *g);
void gpu_lua_guest_end(struct gpulua *g);
int gpu_lua_guest(lua_State *L);

/* False: could not (file descriptors). */
bool gpu_lua_watch_device(struct gpulua *g, int fd);
void gpu_lua_unwatch_device(struct gpulua *g, int fd);

/* The interrupt that there is goes to who runs now, at its next instruction or call. Any thread,
 * and signal handlers. */
void gpu_lua_interrupt_again(struct gpulua *g);
/* The hook that an interrupt comes by. */
void gpu_lua_stop_hook(lua_State *L, lua_Debug *ar);
/* The interrupt as an error in `L`, if there is one and this is the place for it. */
void gpu_lua_check_interrupt(lua_State *L, struct gpulua *g);
/* Has a wait to end here, with an interrupt or because the time of the task is up? */
bool gpu_lua_wait_must_end(const struct gpulua *g);
/* Where it has, raises that, and the wait ends for traces: `what` is what it was for. Returns until
 * when it may go on. */
int64_t gpu_lua_check_wait(lua_State *L, struct gpulua *g, const char *what, int64_t deadline_ns,
                           struct gpu_lua_began *began);
/* Raises it: the interrupt was delivered to the code that `L` runs now; parents of its task still
 * get it. */
_Noreturn void gpu_lua_raise_interrupt(lua_State *L, struct gpulua *g);
/* For a task that hears of it from the loop. */
void gpu_lua_interrupt_error(struct gpulua *g, struct gpu_error *error);

/* ---- held.c ---- */

/* The host has one reference from here on. */
void gpu_lua_host_handle_add(struct gpulua *g, struct host_handle *handle,
                             void (*empty)(struct host_handle *handle),
                             void (*destroy)(struct host_handle *handle));
void gpu_lua_host_handle_retain(struct host_handle *handle);  /* any thread; so below */
void gpu_lua_host_handle_release(struct host_handle *handle); /* empties it with the last */
void gpu_lua_host_handles_end(struct gpulua *g);              /* empties all */

/* ---- shared.c: devices of several objects; NULL is fine ---- */
struct gpulua_device *gpu_lua_shared_retain(struct gpulua_device *shared);
void gpu_lua_shared_release(struct gpulua_device *shared);

/* ---- task.c ---- */

void gpu_lua_task_anchors(lua_State *L); /* once for a state */
/* Makes a task of the function and arguments from `first` to the top; pops them, pushes its
 * handle. The caller makes it ready or holds it. */
struct task *gpu_lua_task_new(lua_State *L, struct gpulua *g, int first, bool is_root);
void gpu_lua_task_ready(struct gpulua *g, struct task *task);
/* Of an object's gpu_tasks. */
int64_t gpu_lua_task_until_ns(const struct gpu_tasks *tasks, bool is_told);
/* Has it not ended? Of an object's gpu_tasks. */
bool gpu_lua_task_is_live(const struct gpu_tasks *tasks, uint64_t number);
void gpu_lua_task_cancel(struct task *task);
void gpu_lua_task_detach(struct task *task);
void gpu_lua_task_finish(lua_State *L, struct task *task); /* its handle is garbage */
void gpu_lua_task_run(struct gpulua *g, lua_State *L, struct task *task);
/* How many values on the stack of the state's main thread are the host's, and not ours. */
int gpu_lua_host_values(const struct gpulua *g);
/* Drops a task that has not ended, running what it left to be closed. With `why` it has failed with
 * that, which is reported; without, it was cancelled. */
void gpu_lua_task_drop(struct gpulua *g, struct task *task, const struct gpu_error *why);
/* Does it run, or has it resumed the one that does? */
bool gpu_lua_coroutine_is_active(lua_State *co);
/* Its coroutine is being closed by somebody else than the loop; L is that coroutine, with the error
 * of what it closed before, or nil, at 2. */
void gpu_lua_task_closed(lua_State *L, struct task *task);
void gpu_lua_task_unready(struct task *task); /* out of the ready queue, if it is there */
bool gpu_lua_task_is_ancestor(const struct task *ancestor, const struct task *task);
void gpu_lua_wake(struct task *task, enum gpu_lua_wake reason);
/* Tells the host of failures that nobody will observe. */
void gpu_lua_report(struct gpulua *g, lua_State *L);
/* All that are left, at the end. Returns how many were reported. */
void gpu_lua_report_rest(struct gpulua *g, lua_State *L);
void gpu_lua_observe_task(lua_State *L, struct task *task);
/* Pushes the error of one that has ended; needs four free slots. Closing its coroutine even then
 * loses what was kept there: another error says so. */
void gpu_lua_task_push_error(lua_State *L, struct task *task);
/* Are they, or its error, where they were kept? */
bool gpu_lua_task_has_results(const struct task *task);

/* ---- traceback.c ---- */

/* Pushes the stack of `L` from `level` on, as luaL_traceback does. */
void gpu_lua_push_traceback(lua_State *L, int level);

/* ---- circle.c ---- */

/* Raises if the code that runs would wait for itself by waiting for `task`. `has_limit`: this wait
 * ends by itself, so that only waiting for a task that it is part of is wrong. */
void gpu_lua_check_circle(lua_State *L, struct gpulua *g, struct task *task, bool has_limit);
/* The same for a wait for any item of the table at `items` (absolute). */
void gpu_lua_check_circle_any(lua_State *L, struct gpulua *g, int items);
/* Whether `waiter` has not seen the error of `task`, which has ended, by joining it: both are in
 * the circle that it is about. */
bool gpu_lua_circle_hides(const struct task *task, const struct task *waiter);
/* "pipeline.lua:12", where it was spawned. Returns `text`. */
const char *gpu_lua_task_site(const struct task *task, char *text, size_t text_bytes);
/* Pushes the traceback of `L`, and behind it who spawned the task that it is the coroutine of. */
void gpu_lua_task_traceback(lua_State *L, struct gpulua *g, int level);
/* Nothing can ever happen: ends a task that was left suspended, or a wait. */
void gpu_lua_unstick(struct gpulua *g);

/* ---- report.c ---- */

/* Fills what gpulua_last_error answers from the value on top of the stack (popped) and tells
 * on_error. Never raises. */
void gpu_lua_tell(struct gpulua *g, lua_State *L, const char *traceback);
int gpu_lua_told(lua_State *L); /* core.told */
/* Keeps it as gpulua_last_error instead, as a host is told of it. */
const gpulua_error *gpu_lua_keep_told(struct gpulua *g, lua_State *L, const char *traceback);
/* The same from a status and a message, and tells nobody. Returns `code`. */
gpulua_status gpu_lua_keep_error(struct gpulua *g, gpulua_status code, const char *message);
/* From the value on top of the stack, which is popped. Needs four free slots. */
gpulua_status gpu_lua_keep_raised(struct gpulua *g, lua_State *L);
/* From an error of the runtime, and frees what it owns. */
gpulua_status gpu_lua_keep_failure(struct gpulua *g, struct gpu_error *error);
void gpu_lua_kept_error_clear(struct kept_error *kept);

/* ---- spawn.c ---- */

void gpu_lua_task_open(lua_State *L, struct gpulua *g);
int gpu_lua_spawn(lua_State *L);
int gpu_lua_spawn_run(lua_State *L);
int gpu_lua_spawn_typed(lua_State *L);
int gpu_lua_spawn_timed(lua_State *L);
int gpu_lua_spawn_root(lua_State *L);
int gpu_lua_is_within(lua_State *L);
int gpu_lua_hold(lua_State *L);
int gpu_lua_release(lua_State *L);
int gpu_lua_place(lua_State *L);
int gpu_lua_tasks(lua_State *L);   /* task.c: core.tasks() */
int gpu_lua_on_done(lua_State *L); /* op:on_done(f) */

/* ---- wait.c ----
 *
 * A function that waits: checks what it is given; if gpu_lua_may_park, links its slots, may set
 * the timer, and returns gpu_lua_park(L, g, k); its continuation k calls gpu_lua_resumed first. */

/* Does the code that runs now belong to a task, and may it yield to the loop? */
bool gpu_lua_may_park(struct gpulua *g, lua_State *L);
/* Can the caller wait for a task here? NotYieldable: not even by driving the loop. Who spawns one
 * to wait for it asks first. */
void gpu_lua_check_waits(lua_State *L, struct gpulua *g);
int gpu_lua_check_waits_here(lua_State *L);
/* False: a script that is not trusted would hold the host up. */
bool gpu_lua_may_block(const struct gpulua *g);
_Noreturn void gpu_lua_fail_to_block(lua_State *L); /* with NotYieldable */
int gpu_lua_park(lua_State *L, struct gpulua *g, lua_KFunction k);
/* Raises what has to be raised (Cancelled, Interrupted). WAKE_EVENT, WAKE_TIMEOUT, or
 * WAKE_FOREIGN: return gpu_lua_foreign_results(L, context). */
enum gpu_lua_wake gpu_lua_resumed(lua_State *L, lua_KContext context);
int gpu_lua_foreign_results(lua_State *L, lua_KContext context);
/* A cancellation that came while the task ran. */
void gpu_lua_check_pending(lua_State *L, struct gpulua *g);

void gpu_lua_slot_watch(struct slot *slot, struct gpulua *g, struct gpu_op *op);
void gpu_lua_slot_join(struct slot *slot, struct gpulua *g, struct task *target);
void gpu_lua_slot_link(struct slot *slot, struct slot **list);
void gpu_lua_slot_clear(struct slot *slot);
void gpu_lua_slot_fire(struct slot *slot);
void gpu_lua_group_fail(struct group *group, uint32_t index);

/* item:await([seconds]), item:join([seconds]) for ops, tasks and buffers; item:done(). */
int gpu_lua_await(lua_State *L);
int gpu_lua_join(lua_State *L);
int gpu_lua_done(lua_State *L);
int gpu_lua_sleep(lua_State *L);
int gpu_lua_why(lua_State *L); /* op.c: gpu.why(b, a) */
/* Waits for an op of our own in the middle of a function: returns once it is over, or yields, and k
 * is called then. */
void gpu_lua_wait_op(lua_State *L, struct gpulua *g, struct gpu_op *op, lua_KFunction k);

/* ---- group.c ---- */

int gpu_lua_all(lua_State *L);
int gpu_lua_any(lua_State *L);
void gpu_lua_group_open(lua_State *L, struct gpulua *g);

/* ---- the current stream (stream.c) ---- */

static inline struct scope *gpu_lua_scope(struct gpulua *g) {
    return g->running ? &g->running->scope : &g->scope;
}
/* Copies the nested uses for a task that is to be spawned, and pushes the innermost copy, which
 * keeps the others, or nil: a task may go on when its spawner's uses have ended. */
struct use *gpu_lua_uses_copy(lua_State *L, struct gpulua *g);
/* The task ends: uses that coroutines of the script's are still in are nobody's from here on. */
void gpu_lua_uses_leave(struct scope *scope);
/* A task with function and arguments from `first` on the stack that works on the caller's stream.
 * Its membership in a capture is the caller's. `site`: where it is spawned, or NULL. */
struct task *gpu_lua_task_beside(lua_State *L, struct gpulua *g, int first,
                                 const struct gpu_site *site);
/* Borrowed. Raises. */
struct gpu_stream *gpu_lua_current_stream(lua_State *L, struct gpulua *g,
                                          struct gpu_device *device);

#endif
