/* The loop: ready tasks, timers, devices that finish work, and sleeping for all of them at once. */
#include "binding/loop.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "binding/check.h"
#include "binding/core.h"
#include "binding/device.h"
#include "binding/hooks.h"
#include "binding/limits.h"
#include "binding/recovery.h"
#include "binding/trace.h"
#include "ranges/ranges.h"
#include "runtime/flight.h"
#include "wire/descriptor.h"

static const char registry_key; /* its address names the gpulua object in the registry */

int64_t gpu_lua_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- timers: a binary heap of what is due first ---- */

static void heap_put(struct gpulua *g, uint32_t position, struct timer *timer) {
    g->heap[position - 1] = timer;
    timer->heap_position = position;
}

static void heap_up(struct gpulua *g, uint32_t position, struct timer *timer) {
    while (position > 1 && g->heap[position / 2 - 1]->deadline_ns > timer->deadline_ns) {
        heap_put(g, position, g->heap[position / 2 - 1]);
        position /= 2;
    }
    heap_put(g, position, timer);
}

static void heap_down(struct gpulua *g, uint32_t position, struct timer *timer) {
    for (;;) {
        uint32_t child = position * 2;
        if (child > g->timer_count) {
            break;
        }
        if (child < g->timer_count &&
            g->heap[child]->deadline_ns < g->heap[child - 1]->deadline_ns) {
            child++;
        }
        if (g->heap[child - 1]->deadline_ns >= timer->deadline_ns) {
            break;
        }
        heap_put(g, position, g->heap[child - 1]);
        position = child;
    }
    heap_put(g, position, timer);
}

bool gpu_lua_timer_set(struct gpulua *g, struct timer *timer, int64_t deadline_ns) {
    gpu_lua_timer_clear(g, timer);
    if (g->timer_count == g->timer_capacity) {
        uint32_t capacity = g->timer_capacity ? g->timer_capacity * 2 : 64;
        struct timer **heap = realloc(g->heap, capacity * sizeof *heap);
        if (!heap) {
            return false;
        }
        g->heap = heap;
        g->timer_capacity = capacity;
    }
    timer->deadline_ns = deadline_ns;
    heap_up(g, ++g->timer_count, timer);
    return true;
}

void gpu_lua_timer_clear(struct gpulua *g, struct timer *timer) {
    uint32_t position = timer->heap_position;
    if (position == 0) {
        return;
    }
    timer->heap_position = 0;
    struct timer *last = g->heap[--g->timer_count];
    if (last == timer) {
        return;
    }
    if (position > 1 && g->heap[position / 2 - 1]->deadline_ns > last->deadline_ns) {
        heap_up(g, position, last);
    } else {
        heap_down(g, position, last);
    }
}

int64_t gpu_lua_next_deadline_ns(const struct gpulua *g) {
    int64_t timer_ns = g->timer_count ? g->heap[0]->deadline_ns : INT64_MAX;
    return timer_ns < g->guest_deadline_ns ? timer_ns : g->guest_deadline_ns;
}

int64_t gpu_lua_alarm_ns(const struct gpulua *g) {
    int64_t first_ns = INT64_MAX;
    for (const struct device_handle *handle = g->devices; handle; handle = handle->next) {
        int64_t alarm_ns = gpu_device_alarm_ns(handle->device);
        first_ns = alarm_ns < first_ns ? alarm_ns : first_ns;
    }
    return first_ns;
}

/* ---- interrupts ---- */

static bool has_typed(const struct gpulua *g) {
    for (const struct task *task = g->live; task; task = task->live_next) {
        if (task->is_typed) {
            return true;
        }
    }
    return false;
}

/* What was typed is waited for, so the interrupt is for that, and another task that happens to run
 * is spared: until it waits, or somebody asks again. */
static bool spares_running(const struct gpulua *g) {
    if (!g->running || atomic_load(&g->interrupt) > 1) {
        return false;
    }
    for (const struct task *task = g->running; task; task = task->parent) {
        if (task->is_typed) {
            return false;
        }
    }
    return has_typed(g);
}

static bool is_called_by_lua(lua_State *L) {
    lua_Debug caller;
    return lua_getstack(L, 1, &caller) && lua_getinfo(L, "S", &caller) && *caller.what != 'C';
}

void gpu_lua_stop_hook(lua_State *L, lua_Debug *ar) {
    struct gpulua *g = gpu_lua_find(L);
    if (g && g->is_keeping) {
        return; /* what a task has ended with: the next one hears of it */
    }
    if (!g || !g->limits) {
        lua_sethook(L, NULL, 0, 0);
    }
    if (!g || !atomic_load(&g->interrupt) || spares_running(g)) {
        return; /* delivered elsewhere meanwhile, or a coroutine that inherited the hook */
    }
    if (g->limits && ar->event == LUA_HOOKCALL && !is_called_by_lua(L)) {
        return; /* what is ours goes on: it tells of the error, and it is short */
    }
    gpu_lua_raise_interrupt(L, g);
}

/* Which may end the program here. */
static void tell_interpreter(lua_State *L, struct gpulua *g) {
    if (!lua_checkstack(L, 1)) {
        return;
    }
    if (lua_getfield(L, LUA_REGISTRYINDEX, "gpulua.interrupted") != LUA_TFUNCTION) {
        lua_pop(L, 1);
        return;
    }
    int interrupt = atomic_exchange(&g->interrupt, 0); /* what it does is not interrupted */
    lua_call(L, 0, 0);
    atomic_fetch_add(&g->interrupt, interrupt);
}

void gpu_lua_raise_interrupt(lua_State *L, struct gpulua *g) {
    lua_Debug ar;
    tell_interpreter(L, g);
    if (atomic_load(&g->interrupt) >= GPU_LUA_TIME_IS_UP) {
        gpu_lua_limits_fail(L, g);
    }
    if (!g->running || !g->running->parent) {
        atomic_store(&g->interrupt, 0);
    } else if (gpu_lua_where(L, &ar)) {
        memcpy(g->interrupted.source, ar.short_src, sizeof g->interrupted.source);
        g->interrupted.line = ar.currentline;
    }
    gpu_lua_fail(L, GPULUA_INTERRUPTED, "interrupted!");
}

void gpu_lua_check_interrupt(lua_State *L, struct gpulua *g) {
    if (atomic_load(&g->interrupt) && !spares_running(g)) {
        gpu_lua_raise_interrupt(L, g);
    }
}

bool gpu_lua_wait_must_end(const struct gpulua *g) {
    return (atomic_load(&g->interrupt) && !spares_running(g)) ||
           gpu_lua_now_ns() >= gpu_lua_task_until_ns(&g->tasks, false);
}

int64_t gpu_lua_check_wait(lua_State *L, struct gpulua *g, const char *what, int64_t deadline_ns,
                           struct gpu_lua_began *began) {
    if (gpu_lua_wait_must_end(g)) {
        gpu_lua_trace_wait_ends(L, g, began);
        gpu_lua_check_interrupt(L, g);
        (void)gpu_lua_task_until_ns(&g->tasks, true);
        gpu_lua_fail(L, GPULUA_TIMEOUT, "%s was not over when the time of its task was", what);
    }
    int64_t until_ns = gpu_lua_task_until_ns(&g->tasks, false);
    return until_ns < deadline_ns ? until_ns : deadline_ns;
}

void gpu_lua_interrupt_error(struct gpulua *g, struct gpu_error *error) {
    if (g->interrupted.line > 0) {
        gpu_error_set(error, GPULUA_INTERRUPTED,
                      "interrupted! (while a task of this one was at %s:%d)", g->interrupted.source,
                      g->interrupted.line);
        g->interrupted.line = 0;
    } else {
        gpu_error_set(error, GPULUA_INTERRUPTED, "interrupted!");
    }
}

/* Both are called from signal handlers and other threads: only what is safe there. Setting a hook
 * on a running state is what Lua's own interpreter does in its handler. */
void gpu_lua_poke(struct gpulua *g) {
    uint64_t one = 1;
    int saved = errno;
    if (write(g->wake_fd, &one, sizeof one) < 0) {
        /* Full: it is readable already. */
    }
    errno = saved;
}

void gpulua_wake(gpulua *g) {
    gpu_lua_poke(g);
}

/* While somebody sets a hook on the innermost coroutine, `innermost` says so: the owner waits
 * before it goes on to another one, so that the hooked one cannot end and be collected meanwhile.
 */
#define HOOKING ((lua_State *)(uintptr_t)&registry_key)

lua_State *gpu_lua_set_innermost(struct gpulua *g, lua_State *L) {
    lua_State *seen = atomic_load(&g->innermost);
    do {
        while (seen == HOOKING) {
            sched_yield();
            seen = atomic_load(&g->innermost);
        }
    } while (!atomic_compare_exchange_weak(&g->innermost, &seen, L));
    return seen;
}

lua_State *gpu_lua_innermost(const struct gpulua *g) {
    lua_State *seen = atomic_load(&g->innermost);
    while (seen == HOOKING) {
        sched_yield();
        seen = atomic_load(&g->innermost);
    }
    return seen ? seen : g->L;
}

void gpu_lua_interrupt_again(struct gpulua *g) {
    if (g->limits) {
        gpu_lua_poke(g); /* everything has its hook already */
        return;
    }
    lua_State *running = atomic_exchange(&g->innermost, HOOKING);
    if (running && running != HOOKING) {
        lua_sethook(running, gpu_lua_stop_hook,
                    LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
    }
    if (running != HOOKING) {
        atomic_store(&g->innermost, running);
    }
    gpu_lua_poke(g);
}

void gpulua_interrupt(gpulua *g) {
    atomic_fetch_add(&g->interrupt, 1);
    gpu_lua_interrupt_again(g);
}

/* Between tasks: those that nobody spawned hear of it; what they spawned hears from them. */
static void deliver_interrupt(struct gpulua *g) {
    int interrupt = atomic_load(&g->interrupt);
    if (interrupt == 0 || interrupt >= GPU_LUA_TIME_IS_UP) {
        return; /* none, or for what runs alone */
    }
    if (g->running || g->turn_depth > 1) {
        return; /* the code that blocks here takes it */
    }
    atomic_store(&g->interrupt, 0);
    bool is_for_typed = has_typed(g);
    for (struct task *task = g->live, *next; task; task = next) {
        next = task->live_next;
        if (task->parent || (is_for_typed && !task->is_typed)) {
            continue;
        }
        if (task->state == TASK_PARKED) {
            gpu_lua_wake(task, WAKE_INTERRUPT);
        } else if (task->state == TASK_READY && task->is_started) {
            task->wake =
                WAKE_INTERRUPT; /* whatever woke it, perhaps the end of who was interrupted */
        } else {
            task->pending = WAKE_INTERRUPT;
        }
    }
}

/* ---- turns ---- */

static void drain_wake(struct gpulua *g) {
    uint64_t count;
    if (read(g->wake_fd, &count, sizeof count) < 0) {
        /* Nothing there: it does not block. */
    }
}

static void disarm(struct gpulua *g) {
    if (!g->is_armed) {
        return;
    }
    g->is_armed = false;
    for (struct device_handle *device = g->devices; device; device = device->next) {
        gpu_device_disarm(device->device);
    }
    drain_wake(g);
    g->was_poked = false;
}

/* True: something is there already. Not longer than until then, also where a checked device is
 * asked for work. */
static bool arm(struct gpulua *g, int64_t until_ns) {
    gpu_lua_sit(g);
    g->is_armed = true;
    bool is_there = gpu_lua_descriptors_check(g);
    if (g->check && (g->ready_count > 0 || gpu_lua_next_deadline_ns(g) <= gpu_lua_now_ns())) {
        return true; /* arming a checked device asks for work: not before nothing else can be done
                      */
    }
    for (struct device_handle *device = g->devices; device; device = device->next) {
        is_there |= gpu_device_arm(device->device, until_ns);
    }
    return is_there;
}

void gpu_lua_arm(struct gpulua *g) {
    /* Also if it is armed: a wait of the host's may have disarmed its device since. Of checked
     * devices each look asks for work. */
    int64_t timer_ns = gpu_lua_next_deadline_ns(g);
    int64_t look_ns = g->check ? gpu_lua_now_ns() + GPU_LOOK_NS : INT64_MAX; /* nobody sleeps */
    if ((!g->is_armed || !g->check) && arm(g, timer_ns < look_ns ? timer_ns : look_ns)) {
        g->was_poked = true;
        gpu_lua_poke(g);
    }
}

int64_t gpu_lua_hint_ns(struct gpulua *g) {
    gpu_lua_arm(g);
    if (g->ready_count || g->was_poked || g->guest_is_due || g->reports) {
        return 0;
    }
    int64_t deadline_ns = gpu_lua_next_deadline_ns(g), alarm_ns = gpu_lua_alarm_ns(g);
    int64_t now_ns = gpu_lua_now_ns();
    deadline_ns = alarm_ns < deadline_ns ? alarm_ns : deadline_ns;
    if (g->watch_count > 0 && deadline_ns > now_ns + GPU_LUA_HEARTBEAT_NS) {
        return GPU_LUA_HEARTBEAT_NS;
    }
    if (deadline_ns == INT64_MAX) {
        return -1;
    }
    return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

/* Of what is torn no poll tells anybody. */
static void fire_torn(struct gpulua *g) {
    for (struct slot *slot = g->watched; slot;) {
        if (gpu_device_is_torn(gpu_op_device(slot->op))) {
            slot->waiter.fire(&slot->waiter,
                              slot->op); /* which takes it out, and may take others */
            slot = g->watched;
        } else {
            slot = slot->next;
        }
    }
}

static void poll_devices(struct gpulua *g) {
    if (__builtin_expect(g->is_forked, 0)) {
        fire_torn(g);
    }
    for (struct device_handle *device = g->devices; device; device = device->next) {
        if (g->ready_count > 0) { /* perhaps nobody ever sleeps */
            gpu_device_ask(device->device, gpu_lua_next_deadline_ns(g));
        }
        gpu_device_poll(device->device);
    }
}

static void fire_timers(struct gpulua *g) {
    if (g->timer_count == 0) {
        return;
    }
    int64_t now = gpu_lua_now_ns();
    while (g->timer_count && g->heap[0]->deadline_ns <= now) {
        struct timer *timer = g->heap[0];
        gpu_lua_timer_clear(g, timer);
        gpu_lua_wake(timer->task, WAKE_TIMEOUT);
    }
}

void gpu_lua_pump(struct gpulua *g) {
    gpu_lua_sit(g);
    disarm(g);
    deliver_interrupt(g);
    poll_devices(g);
    gpu_lua_descriptors_look(g);
    fire_timers(g);
}

/* Those that are ready now; what they make ready runs in the next turn. */
static bool run_ready(struct gpulua *g, lua_State *L) {
    uint32_t count = g->ready_count;
    bool has_run = count > 0;
    int64_t begun_ns = g->limits ? gpu_lua_now_ns() : 0;
    while (count-- && g->ready_head && !gpu_lua_limits_turn_is_over(g, begun_ns)) {
        struct task **at = &g->ready_head;
        for (uint32_t skip = gpu_lua_check_pick(g); skip > 0; skip--) {
            at = &(*at)->ready_next;
        }
        struct task *task = *at;
        *at = task->ready_next;
        if (!*at) {
            g->ready_tail = at;
        }
        g->ready_count--;
        if (task->state == TASK_READY) {
            gpu_lua_task_run(g, L, task);
        }
        gpu_lua_report(g, L);
        deliver_interrupt(g); /* before the next one, which may be who it is for */
    }
    g->guest_is_due = g->has_guest && (has_run || g->guest_is_due);
    return has_run;
}

static bool spin(struct gpulua *g, int64_t limit_ns) {
    bool is_worth_it = false;
    for (struct device_handle *device = g->devices; device; device = device->next) {
        is_worth_it |= gpu_device_spins(device->device);
    }
    if (!is_worth_it) {
        return false;
    }
    int64_t end_ns = gpu_lua_now_ns() + (limit_ns < GPU_SPIN_NS ? limit_ns : GPU_SPIN_NS);
    do {
        for (struct device_handle *device = g->devices; device; device = device->next) {
            if (gpu_device_poll(device->device) > 0) {
                return true;
            }
        }
    } while (gpu_lua_now_ns() < end_ns && !atomic_load(&g->interrupt));
    return false;
}

/* Nobody has ended the sleep. Was there something to wake for, that nobody is about to tell of? Of
 * what is not watched nobody tells, as when the work before it is over. */
static void note_missed(struct gpulua *g, struct pollfd *wait) {
    const struct timespec grace = {.tv_nsec = 100000000};
    uint32_t watched = g->watch_count;
    for (struct device_handle *device = g->devices; device; device = device->next) {
        (void)gpu_device_poll(device->device);
    }
    g->missed_count += g->watch_count < watched && ppoll(wait, 1, &grace, NULL) == 0;
}

/* Whose work this thread gives to the driver itself is warmed up at the end of a sleep, so that
 * what comes next costs no more than right behind another one. The sleep ends so much earlier, and
 * what is left of it is not worth another one. */
#define WARM_NS 120000
#define WARM_SLEEP_NS                                                                              \
    INT64_C(5000000) /* of shorter ones little gets cold, and it would cost more */

static bool wants_warmth(struct gpulua *g, int64_t deadline_ns) {
    bool wants = false;
    if (deadline_ns == INT64_MAX || deadline_ns - gpu_lua_now_ns() < WARM_SLEEP_NS) {
        return false;
    }
    for (struct device_handle *device = g->devices; device; device = device->next) {
        wants |= gpu_device_wants_warmth(device->device);
    }
    return wants;
}

static void warm_until(struct gpulua *g, int64_t deadline_ns) {
    for (struct device_handle *device = g->devices; device; device = device->next) {
        gpu_device_warm(device->device);
    }
    while (gpu_lua_now_ns() < deadline_ns && !atomic_load(&g->interrupt)) {}
}

static void sleep_until(struct gpulua *g, int64_t deadline_ns) {
    int64_t left_ns = INT64_MAX;
    bool warms = wants_warmth(g, deadline_ns);
    if (deadline_ns != INT64_MAX) {
        left_ns = deadline_ns - gpu_lua_now_ns();
        if (left_ns <= 0) {
            return;
        }
    }
    if (g->watch_count && !g->spin_is_spent && spin(g, left_ns)) {
        return;
    }
    g->spin_is_spent = false;
    if (!arm(g, deadline_ns) && !atomic_load(&g->interrupt)) {
        struct pollfd wait = {.fd = g->epoll_fd, .events = POLLIN};
        bool is_heartbeat = g->watch_count > 0 && left_ns > GPU_LUA_HEARTBEAT_NS;
        warms = warms && !is_heartbeat && left_ns > WARM_NS;
        left_ns = is_heartbeat ? GPU_LUA_HEARTBEAT_NS : left_ns - (warms ? WARM_NS : 0);
        struct timespec limit = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
        bool is_told = gpu_range_push(GPU_RANGE_SLEEP, NULL, 0);
        /* A signal is as good as an event. */
        int count = ppoll(&wait, 1, left_ns == INT64_MAX ? NULL : &limit, NULL);
        gpu_range_pop(is_told);
        if (count == 0 && is_heartbeat) {
            note_missed(g, &wait);
        }
        warms = warms && count == 0;
    } else {
        warms = false;
    }
    disarm(g);
    if (warms) {
        warm_until(g, deadline_ns);
    }
}

/* What has happened; what scripts want to hear of makes tasks. */
static void look(struct gpulua *g, lua_State *L, bool run_tasks) {
    gpu_lua_pump(g);
    gpu_lua_hooks_tell(g);
    if (run_tasks) {
        gpu_lua_tell_lives(g, L);
        gpu_lua_guest_run(g);
    }
}

bool gpu_lua_turn(struct gpulua *g, lua_State *L, int64_t deadline_ns, bool run_tasks) {
    int64_t outer_ns;
    gpu_lua_limits_begin(g, &outer_ns); /* for what the loop itself calls of the script's */
    gpu_device_hold_calls(true);
    g->turn_depth++;
    look(g, L, run_tasks);
    bool is_alive = true;
    if (!run_tasks || !run_ready(g, L)) {
        bool has_ready = run_tasks && g->ready_count > 0;
        int64_t timer_ns = gpu_lua_next_deadline_ns(g), alarm_ns = gpu_lua_alarm_ns(g);
        if (!has_ready && deadline_ns == INT64_MAX && timer_ns == INT64_MAX &&
            g->watch_count == 0 && !g->descriptors) {
            is_alive = false;
        } else if (!has_ready) {
            int64_t until_ns = timer_ns < deadline_ns ? timer_ns : deadline_ns;
            gpu_lua_limits_end(g, outer_ns);
            sleep_until(g, alarm_ns < until_ns ? alarm_ns : until_ns);
            gpu_lua_limits_begin(g, &outer_ns);
            look(g, L, run_tasks);
            if (run_tasks) {
                run_ready(g, L);
            }
        }
    }
    gpu_lua_report(g, L);
    g->turn_depth--;
    gpu_device_hold_calls(false);
    gpu_lua_limits_end(g, outer_ns);
    return is_alive;
}

/* core.missed_wakes() -> how often the loop slept on though a wait was over: for specs */
int gpu_lua_missed_wakes(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)GPU_LUA(L)->missed_count);
    return 1;
}

/* ---- devices ---- */

bool gpu_lua_watch_device(struct gpulua *g, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    return fd < 0 || epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void gpu_lua_unwatch_device(struct gpulua *g, int fd) {
    if (fd >= 0) {
        epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    }
}

/* ---- life ---- */

void gpu_lua_refuse_in_sandbox(lua_State *L, const struct gpulua *g, const char *what) {
    if (g->config.sandbox) {
        gpu_lua_fail(L, GPULUA_UNSUPPORTED, "a sandbox has no %s", what);
    }
}

struct gpulua *gpu_lua_find(lua_State *L) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &registry_key);
    struct gpulua *g = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (g) {
        gpu_lua_sit(g);
    }
    return g;
}

void gpu_lua_push_object(lua_State *L) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &registry_key);
}

static char *copy_text(const char *text) {
    return text ? strdup(text) : NULL;
}

const char *gpu_lua_setting(const char *given, const char *variable) {
    if (given && given[0]) {
        return given;
    }
    const char *value = getenv(variable);
    return value && value[0] ? value : NULL;
}

static void config_set(struct gpulua *g, const gpulua_config *config) {
    static const gpulua_config none;
    const gpulua_config *from = config ? config : &none;
    g->config = *from;
    g->config.device = copy_text(gpu_lua_setting(from->device, "GPULUA_DEVICE"));
    g->config.shared_device = gpu_lua_shared_retain(from->shared_device);
    g->config.executor_path = copy_text(from->executor_path);
    g->config.cache_path = copy_text(from->cache_path);
    g->config.flight_path = copy_text(gpu_lua_setting(from->flight_path, "GPULUA_FLIGHT"));
    g->flight_folder = gpu_flight_folder(g->config.flight_path);
    if (g->config.isolation == GPULUA_ISOLATE_DEFAULT) {
        g->isolation_text = copy_text(gpu_lua_setting(NULL, "GPULUA_ISOLATE"));
    }
    g->config.trace = g->config.trace || gpu_lua_trace_is_wanted();
    const char *seed = g->config.check ? NULL : gpu_lua_setting(NULL, "GPULUA_CHECK");
    if (seed) {
        char *end = NULL;
        errno = 0;
        g->config.check_seed = strtoull(seed, &end, 10);
        g->config.check = 1;
        bool is_seed = seed[0] >= '0' && seed[0] <= '9' && *end == '\0' && errno == 0 &&
                       g->config.check_seed <= INT64_MAX;
        if (strcmp(seed, "hashes") == 0) {
            g->config.check = 2;
            g->config.check_seed = 1;
            is_seed = true;
        }
        g->check_text = is_seed ? NULL : copy_text(seed);
    }
}

static void config_finish(struct gpulua *g) {
    free((char *)(uintptr_t)g->config.device);
    free((char *)(uintptr_t)g->config.executor_path);
    free((char *)(uintptr_t)g->config.cache_path);
    free((char *)(uintptr_t)g->config.flight_path);
    gpu_lua_shared_release(g->config.shared_device);
    memset(&g->config, 0, sizeof g->config);
    free(g->flight_folder);
    g->flight_folder = NULL;
    free(g->isolation_text);
    g->isolation_text = NULL;
    free(g->check_text);
    g->check_text = NULL;
}

void gpu_lua_shut(struct gpulua *g, lua_State *L, bool runs_guest, int report) {
    if (g->is_closed) {
        return;
    }
    g->is_closed = true;
    gpu_lua_sit(g);
    int64_t outer_ns;
    gpu_lua_limits_begin(g, &outer_ns);
    gpu_lua_set_innermost(g, NULL);
    gpu_lua_host_handles_end(g);
    /* Nobody runs any more: each would be looked for in it when it is dropped. */
    g->ready_head = NULL;
    g->ready_tail = &g->ready_head;
    g->ready_count = 0;
    while (g->live) {
        if (g->memory && atomic_load(&g->interrupt) >= GPU_LUA_TIME_IS_UP) {
            /* Nothing of the script's runs any more. At its limit each task would be a collection.
             */
            g->memory_lift(g->memory);
        }
        gpu_lua_task_drop(g, g->live, NULL);
    }
    if (runs_guest) {
        gpu_lua_guest_run(g); /* what ended tasks have closed in it is to be closed */
    }
    gpu_lua_guest_end(g);
    gpu_lua_descriptors_end(g);
    gpu_lua_report_rest(g, L);
    if (report && lua_checkstack(L, 4)) {
        lua_pushvalue(L, report);
        if (lua_pcall(L, 0, 0, 0) != LUA_OK) {
            gpu_lua_tell(g, L, NULL);
        }
    }
    int64_t timeout_ms =
        g->config.close_timeout_ms > 0 ? g->config.close_timeout_ms : GPU_LUA_EXIT_TIMEOUT_MS;
    while (g->devices) {
        struct device_handle *device = g->devices;
        struct gpu_error error = {0};
        int top = lua_gettop(L);
        if (lua_checkstack(L, 6)) {
            gpu_lua_push_device(L, g, device->device); /* a finaliser may close it meanwhile */
        }
        if (!gpu_lua_device_settle(g, device, timeout_ms, &error) && lua_checkstack(L, 4)) {
            gpu_lua_error_push_owned(L, &error);
            gpu_lua_tell(g, L, NULL);
        }
        gpu_lua_device_report(g, L, device);
        gpu_lua_device_close(g, device);
        lua_settop(L, top);
    }
    gpu_lua_limits_stop(g);
    gpu_lua_check_finish(g);
    gpu_lua_trace_finish(g);
    free(g->heap);
    g->heap = NULL;
    g->timer_count = g->timer_capacity = 0;
    gpu_fork_remove(&g->fork);
    close(g->epoll_fd);
    close(g->wake_fd);
    g->epoll_fd = g->wake_fd = -1; /* others may have these numbers now: nothing goes there */
    config_finish(g);
}

/* lua_close came before gpulua_close, or the state is the host's. */
static int object_gc(lua_State *L) {
    struct gpulua *g = lua_touserdata(L, 1);
    gpu_lua_shut(g, L, false, 0);
    while (g->traces) { /* of tasks whose finalisers were not run; all others are done before */
        struct trace *trace = g->traces;
        g->traces = trace->next;
        free(trace);
    }
    gpu_lua_kept_error_clear(&g->last_error);
    return 0;
}

/* What is taken out of the parent's descriptors, or read from them, the parent loses. */
static void in_child(struct gpu_fork *fork) {
    struct gpulua *g = (struct gpulua *)(void *)((char *)fork - offsetof(struct gpulua, fork));
    gpu_wire_descriptor_replace(&g->epoll_fd, epoll_create1(EPOLL_CLOEXEC));
    gpu_wire_descriptor_replace(&g->wake_fd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    (void)gpu_lua_watch_device(g, g->wake_fd);
    gpu_lua_descriptors_in_child(g);
    g->limits = NULL; /* whose thread is not here */
    g->is_forked = true;
}

static const char *start(struct gpulua *g, const gpulua_config *config) {
    memset(&g->scope, 0, sizeof g->scope);
    g->ready_head = NULL;
    g->ready_tail = &g->ready_head;
    g->failed_tail = &g->failed;
    g->tasks.is_live = gpu_lua_task_is_live;
    g->tasks.blocked = gpu_lua_trace_blocked;
    g->tasks.until_ns = gpu_lua_task_until_ns;
    g->descriptors_fd = -1;
    g->guest_deadline_ns = INT64_MAX;
    g->epoll_fd = gpu_wire_descriptor(epoll_create1(EPOLL_CLOEXEC));
    g->wake_fd = gpu_wire_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (g->epoll_fd < 0 || g->wake_fd < 0 || !gpu_lua_watch_device(g, g->wake_fd)) {
        const char *reason = strerror(errno);
        if (g->epoll_fd >= 0) {
            close(g->epoll_fd);
        }
        if (g->wake_fd >= 0) {
            close(g->wake_fd);
        }
        return reason;
    }
    g->fork.in_child = in_child;
    gpu_fork_add(&g->fork);
    config_set(g, config);
    gpu_lua_ranges_begin(g);
    g->is_closed = false;
    return NULL;
}

struct gpulua *gpu_lua_open(lua_State *L, const gpulua_config *config) {
    struct gpulua *g = gpu_lua_find(L);
    if (g && !g->is_closed) {
        return g;
    }
    if (!g) {
        g = lua_newuserdatauv(L, sizeof *g, 0);
        memset(g, 0, sizeof *g);
        g->is_closed = true;
        lua_createtable(L, 0, 2);
        lua_pushcfunction(L, object_gc);
        lua_setfield(L, -2, "__gc");
        lua_pushliteral(L, "gpulua");
        lua_setfield(L, -2, "__name");
        lua_setmetatable(L, -2);
        lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
        g->L = lua_tothread(L, -1);
        lua_pop(L, 1);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &registry_key);
    }
    const char *reason = start(g, config);
    if (reason) {
        luaL_error(L, "gpulua cannot start: %s", reason);
    }
    return g;
}
