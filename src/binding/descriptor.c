/* Waiting for descriptors: gpu.readable.
 *
 * Those that somebody waits for are in an epoll descriptor of their own, which is in the loop's, so
 * that whoever sleeps on that, a host too, is woken. Each is there once, with a list of slots. A
 * descriptor that a script closes meanwhile is found before the next sleep: what cannot be modified
 * there is no longer what was added. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <lauxlib.h>

#include "binding/loop.h"
#include "binding/trace.h"
#include "binding/wait.h"
#include "wire/descriptor.h"

struct descriptor {
    int fd;
    struct slot *slots;
    struct descriptor *next, **link; /* of all */
};

static int control(const struct gpulua *g, int operation, struct descriptor *descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = descriptor}};
    return epoll_ctl(g->descriptors_fd, operation, descriptor->fd, &event);
}

static bool begin(struct gpulua *g) {
    g->descriptors_fd = gpu_wire_descriptor(epoll_create1(EPOLL_CLOEXEC));
    return g->descriptors_fd >= 0 && gpu_lua_watch_device(g, g->descriptors_fd);
}

static void end(struct gpulua *g) {
    if (g->descriptors_fd >= 0) {
        int saved = errno;
        close(g->descriptors_fd);
        errno = saved;
        g->descriptors_fd = -1;
    }
}

void gpu_lua_descriptors_in_child(struct gpulua *g) {
    if (g->descriptors_fd >= 0) {
        gpu_wire_descriptor_replace(&g->descriptors_fd, epoll_create1(EPOLL_CLOEXEC));
        (void)gpu_lua_watch_device(g, g->descriptors_fd);
    }
    for (struct descriptor *each = g->descriptors; each; each = each->next) {
        (void)control(g, EPOLL_CTL_ADD, each);
    }
}

/* Its slots are gone. */
static void destroy(struct gpulua *g, struct descriptor *descriptor) {
    *descriptor->link = descriptor->next;
    if (descriptor->next) {
        descriptor->next->link = descriptor->link;
    }
    if (control(g, EPOLL_CTL_DEL, descriptor) != 0) {
        /* It was closed. A copy of it, in a child perhaps, would keep it in there for ever. */
        end(g);
        (void)begin(g); /* the others count as closed, if this fails */
        for (struct descriptor *other = g->descriptors; other; other = other->next) {
            (void)control(g, EPOLL_CTL_ADD, other);
        }
    }
    free(descriptor);
}

/* NULL: could not, and errno says why. */
static struct descriptor *create(struct gpulua *g, int fd) {
    if (g->descriptors_fd < 0 && !begin(g)) {
        end(g);
        return NULL;
    }
    struct descriptor *descriptor = calloc(1, sizeof *descriptor);
    if (!descriptor) {
        return NULL;
    }
    descriptor->fd = fd;
    if (control(g, EPOLL_CTL_ADD, descriptor) != 0) {
        free(descriptor);
        return NULL;
    }
    descriptor->next = g->descriptors;
    descriptor->link = &g->descriptors;
    if (descriptor->next) {
        descriptor->next->link = &descriptor->next;
    }
    g->descriptors = descriptor;
    return descriptor;
}

/* All who wait for it go on; it is gone afterwards. */
static void fire(struct descriptor *descriptor, bool is_closed) {
    for (struct slot *slot = descriptor->slots, *next; slot; slot = next) {
        next = slot->next;
        slot->is_closed = is_closed;
        gpu_lua_slot_fire(slot);
    }
}

bool gpu_lua_slot_watch_descriptor(struct slot *slot, struct gpulua *g, int fd) {
    struct descriptor *descriptor = g->descriptors;
    while (descriptor && descriptor->fd != fd) {
        descriptor = descriptor->next;
    }
    if (descriptor && control(g, EPOLL_CTL_MOD, descriptor) != 0) {
        fire(descriptor, true); /* it was closed, and the number is another's now */
        descriptor = NULL;
    }
    descriptor = descriptor ? descriptor : create(g, fd);
    if (!descriptor) {
        return false;
    }
    slot->g = g;
    slot->descriptor = descriptor;
    slot->is_closed = false;
    gpu_lua_slot_link(slot, &descriptor->slots);
    return true;
}

void gpu_lua_descriptor_left(struct gpulua *g, struct descriptor *descriptor) {
    if (!descriptor->slots) {
        destroy(g, descriptor);
    }
}

void gpu_lua_descriptors_look(struct gpulua *g) {
    struct epoll_event events[64];
    int count = g->descriptors ? epoll_wait(g->descriptors_fd, events, 64, 0) : 0;
    for (int i = 0; i < count; i++) {
        fire(events[i].data.ptr, false);
    }
}

bool gpu_lua_descriptors_check(struct gpulua *g) {
    bool has_closed = false;
    for (struct descriptor *descriptor = g->descriptors, *next; descriptor; descriptor = next) {
        next = descriptor->next;
        if (control(g, EPOLL_CTL_MOD, descriptor) != 0) {
            fire(descriptor, true);
            has_closed = true;
        }
    }
    return has_closed;
}

void gpu_lua_descriptors_end(struct gpulua *g) {
    while (g->descriptors) {
        fire(g->descriptors, true);
    }
    end(g);
}

/* ---- gpu.readable ---- */

static int check_descriptor(lua_State *L) {
    const luaL_Stream *file = luaL_testudata(L, 1, LUA_FILEHANDLE);
    int is_integer = lua_type(L, 1) == LUA_TNUMBER;
    lua_Integer fd = is_integer ? lua_tointegerx(L, 1, &is_integer) : -1;
    if (file && !file->closef) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "argument 1 of readable: the file is closed");
    }
    if (file) {
        return fileno(file->f);
    }
    if (!is_integer) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of readable: a descriptor or a file expected, got %s",
                     gpu_lua_describe(L, 1));
    }
    if (fd < 0 || fd > INT_MAX) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "argument 1 of readable: %lld is no descriptor",
                     (long long)fd);
    }
    return (int)fd;
}

static _Noreturn void fail_to_watch(lua_State *L, int fd, int reason) {
    bool is_short = reason == ENOMEM || reason == ENOSPC || reason == EMFILE || reason == ENFILE;
    gpu_lua_fail(L, is_short ? GPULUA_OUT_OF_MEMORY : GPULUA_INVALID_ARGUMENT,
                 "argument 1 of readable: descriptor %d cannot be waited for: %s", fd,
                 strerror(reason));
}

static int finish(lua_State *L, const struct slot *slot, bool is_in_time) {
    if (is_in_time && slot->is_closed) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "readable: the descriptor was closed while it was waited for");
    }
    lua_pushboolean(L, is_in_time);
    return 1;
}

static int readable_resumed(lua_State *L, int status, lua_KContext context) {
    (void)status;
    enum gpu_lua_wake wake = gpu_lua_resumed(L, context);
    return wake == WAKE_FOREIGN ? gpu_lua_foreign_results(L, context)
                                : finish(L, &gpu_lua_task_from(context)->slot, wake == WAKE_EVENT);
}

static int block(lua_State *L, struct gpulua *g, int fd, int64_t deadline_ns) {
    struct group *group =
        gpu_lua_new(L, g, GPU_LUA_KIND_GROUP, sizeof *group + sizeof(struct slot), 0);
    group->count = 1;
    struct slot *slot = group->slots;
    if (!gpu_lua_slot_watch_descriptor(slot, g, fd)) {
        fail_to_watch(L, fd, errno);
    }
    bool runs_tasks = !g->running && g->turn_depth == 0, is_in_time = true;
    struct gpu_lua_began began;
    gpu_lua_trace_wait_begins(g, NULL, "a descriptor", &began);
    while (slot->descriptor && is_in_time) {
        int64_t until_ns = gpu_lua_check_wait(L, g, "gpu.readable", deadline_ns, &began);
        gpu_lua_turn(g, L, until_ns, runs_tasks);
        is_in_time = !slot->descriptor || gpu_lua_now_ns() < deadline_ns;
    }
    gpu_lua_trace_wait_ends(L, g, &began);
    gpu_lua_slot_clear(slot);
    return finish(L, slot, is_in_time);
}

/* gpu.readable(descriptor[, seconds]) -> true, or false when the time is over. Also of a file of
 * io. Waits, yielding in a task. */
int gpu_lua_readable(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    gpu_lua_refuse_in_sandbox(L, g, "gpu.readable");
    int fd = check_descriptor(L);
    int64_t deadline_ns = gpu_lua_opt_deadline(L, 2, 2, "readable");
    gpu_lua_check_pending(L, g);
    struct pollfd now = {.fd = fd, .events = POLLIN};
    if (poll(&now, 1, 0) > 0) {
        if (now.revents & POLLNVAL) {
            fail_to_watch(L, fd, EBADF);
        }
        lua_pushboolean(L, 1); /* also what epoll refuses: files on disk */
        return 1;
    }
    if (g->is_closed) {
        gpu_lua_fail(L, GPULUA_CLOSED, "gpulua is closed: nothing can be waited for any more");
    }
    if (!gpu_lua_may_park(g, L)) {
        return block(L, g, fd, deadline_ns);
    }
    struct task *task = g->running;
    if (deadline_ns != INT64_MAX && !gpu_lua_timer_set(g, &task->timer, deadline_ns)) {
        gpu_lua_fail(L, GPULUA_OUT_OF_MEMORY, "no memory for a timer");
    }
    task->slot.task = task;
    if (!gpu_lua_slot_watch_descriptor(&task->slot, g, fd)) {
        gpu_lua_timer_clear(g, &task->timer);
        fail_to_watch(L, fd, errno);
    }
    return gpu_lua_park(L, g, readable_resumed);
}
