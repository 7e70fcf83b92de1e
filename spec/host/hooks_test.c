/* Hooks: what a host is told of each operation, in which order, and of which it is told nothing. On
 * the device that GPULUA_DEVICE names, under all transports. */
#include "host/exchange.h"

#define EVENTS_MAX 4096

enum event_kind { BEFORE_ENQUEUE, AFTER_ENQUEUE, BEFORE_COMPLETE, AFTER_COMPLETE };

struct event {
    enum event_kind kind;
    char name[32], label[32], library[16], type[8], message[200];
    uint64_t stream, bytes, number;
    gpulua_status status;
    int64_t host_ns, device_ns;
};

struct events {
    struct event all[EVENTS_MAX];
    int count, lost;
};

static struct event *note(void *user, enum event_kind kind, const gpulua_hook_info *info) {
    struct events *events = user;
    if (events->count == EVENTS_MAX) {
        events->lost++;
        return &events->all[EVENTS_MAX - 1];
    }
    struct event *event = &events->all[events->count++];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    snprintf(event->name, sizeof event->name, "%s", info->name);
    snprintf(event->label, sizeof event->label, "%s", info->label);
    snprintf(event->library, sizeof event->library, "%s", info->library ? info->library : "-");
    snprintf(event->type, sizeof event->type, "%s", info->type ? info->type : "-");
    event->stream = info->stream;
    event->bytes = info->bytes;
    event->number = info->number;
    return event;
}

static void before_enqueue(void *user, const gpulua_hook_info *info) {
    note(user, BEFORE_ENQUEUE, info);
}

static void after_enqueue(void *user, const gpulua_hook_info *info, gpulua_status status,
                          const char *message) {
    struct event *event = note(user, AFTER_ENQUEUE, info);
    event->status = status;
    snprintf(event->message, sizeof event->message, "%s", message ? message : "-");
}

static void before_complete(void *user, const gpulua_hook_info *info) {
    note(user, BEFORE_COMPLETE, info);
}

static void after_complete(void *user, const gpulua_hook_info *info, gpulua_status status,
                           const char *message, int64_t host_ns, int64_t device_ns) {
    struct event *event = note(user, AFTER_COMPLETE, info);
    event->status = status;
    event->host_ns = host_ns;
    event->device_ns = device_ns;
    snprintf(event->message, sizeof event->message, "%s", message ? message : "-");
}

static void hooks_all(gpulua_hooks *hooks, struct events *events) {
    memset(events, 0, sizeof *events);
    gpulua_hooks_init(hooks);
    hooks->user = events;
    hooks->before_enqueue = before_enqueue;
    hooks->after_enqueue = after_enqueue;
    hooks->before_complete = before_complete;
    hooks->after_complete = after_complete;
}

static const struct event *find(const struct events *events, enum event_kind kind, const char *name,
                                int nth) {
    for (int i = 0; i < events->count; i++) {
        if (events->all[i].kind == kind && strcmp(events->all[i].name, name) == 0 && nth-- == 0) {
            return &events->all[i];
        }
    }
    return NULL;
}

/* Each operation that was accepted has all four, in their order; one that was refused the first
 * two, one after the other. */
static bool is_orderly(const struct events *events) {
    int ended = 0, accepted = 0;
    if (events->lost > 0) {
        return false;
    }
    for (int i = 0; i < events->count; i++) {
        const struct event *event = &events->all[i];
        if (event->kind == BEFORE_ENQUEUE) {
            const struct event *next = event + 1;
            if (i + 1 == events->count || next->kind != AFTER_ENQUEUE || event->number != 0 ||
                strcmp(next->label, event->label) != 0) {
                return false;
            }
            accepted += next->status == GPULUA_OK;
        } else if (event->kind == BEFORE_COMPLETE) {
            bool is_known = false;
            for (int k = 0; k < i; k++) {
                is_known |= events->all[k].kind == AFTER_ENQUEUE &&
                            events->all[k].number == event->number &&
                            strcmp(events->all[k].label, event->label) == 0;
            }
            const struct event *next = event + 1;
            if (!is_known || i + 1 == events->count || next->kind != AFTER_COMPLETE ||
                next->number != event->number || next->host_ns < 0 || next->device_ns != -1) {
                return false;
            }
            ended++;
        }
    }
    return ended == accepted;
}

/* Where a check fails: everything that was seen. */
static bool told(const struct events *events, bool is_good) {
    static const char *const kinds[] = {"before enqueue", "after enqueue", "before complete",
                                        "after complete"};
    for (int i = 0; !is_good && i < events->count; i++) {
        const struct event *event = &events->all[i];
        printf("# %s: %s '%s', number %llu, status %d\n", kinds[event->kind], event->name,
               event->label, (unsigned long long)event->number, event->status);
    }
    return is_good;
}

static bool set_hooks(gpulua *g, const gpulua_hooks *hooks) {
    lua_State *L = gpulua_state(g);
    int top = lua_gettop(L);
    lua_getglobal(L, "dev");
    bool good = gpulua_set_hooks(L, -1, hooks) == GPULUA_OK && lua_gettop(L) == top + 1;
    lua_settop(L, top);
    return good;
}

static void test_operations(gpulua *g) {
    static struct events events;
    gpulua_hooks hooks;
    hooks_all(&hooks, &events);
    CHECK(set_hooks(g, &hooks));
    CHECK(run(g, "x, y = dev:buffer('f32', 8, {label = 'x'}), dev:buffer('f32', 8)\n"
                 "s = dev:stream {}\n"
                 "x:fill(3) y:copy(x)\n"
                 "mod.twice:launch({grid = 1, block = 1, stream = s, label = 'double'}, x, y, 8)\n"
                 "s:mark() ok = y:read()[8] == 6 dev:synchronize()"));
    const struct event *fill = find(&events, AFTER_ENQUEUE, "fill", 0);
    const struct event *copy = find(&events, AFTER_ENQUEUE, "copy", 0);
    const struct event *launch = find(&events, AFTER_ENQUEUE, "twice", 0);
    const struct event *mark = find(&events, AFTER_ENQUEUE, "mark", 0);
    CHECK(fill && fill->bytes == 32 && strcmp(fill->type, "f32") == 0 && fill->number > 0);
    CHECK(copy && copy->bytes == 64 && copy->number == fill->number + 1);
    CHECK(launch && launch->bytes == 64 && strcmp(launch->label, "double") == 0 &&
          launch->stream != fill->stream && strcmp(launch->library, "-") == 0 &&
          strcmp(launch->message, "-") == 0);
    CHECK(mark && mark->stream == launch->stream && mark->bytes == 0 &&
          strcmp(mark->type, "-") == 0);
    const struct event *ended = find(&events, AFTER_COMPLETE, "twice", 0);
    CHECK(told(&events,
               find(&events, BEFORE_COMPLETE, "twice", 0) && ended && ended->status == GPULUA_OK));
    CHECK(run(g, "dev:synchronize() ok = true") && is_orderly(&events));
    /* A read is a copy with its own label. */
    const struct event *read = find(&events, AFTER_ENQUEUE, "copy", 1);
    CHECK(read && strcmp(read->label, "read") == 0);
    /* Of a library's calls it says which. */
    CHECK(run(g, "local blas = dev:blas() local a = dev:buffer('f32', {2, 2}):fill(1)\n"
                 "local c = dev:buffer('f32', {2, 2}) blas:gemm { a = a, b = a, c = c }\n"
                 "ok = c:read(1)[1] ~= nil dev:synchronize()"));
    bool is_there = false;
    for (int i = 0; i < events.count; i++) {
        is_there |= strcmp(events.all[i].library, "blas") == 0;
    }
    CHECK(is_there && is_orderly(&events));
}

static void test_refused(gpulua *g) {
    static struct events events;
    gpulua_hooks hooks;
    hooks_all(&hooks, &events);
    CHECK(set_hooks(g, &hooks));
    CHECK(run(g, "local z = dev:buffer('i32', 8)\n"
                 "ok = code(mod.twice.launch, mod.twice, one, z, z, 8) == 'InvalidArgument'"));
    CHECK(events.count == 2 && events.all[0].kind == BEFORE_ENQUEUE &&
          events.all[1].kind == AFTER_ENQUEUE && events.all[1].number == 0 &&
          events.all[1].status == GPULUA_INVALID_ARGUMENT &&
          strstr(events.all[1].message, "twice") != NULL);
    CHECK(run(g, "x:close() ok = code(mod.add.launch, mod.add, one, x, 8) ~= nil\n"
                 "x = dev:buffer('f32', 8):fill(0)\n"
                 "ok = ok and code(function() y:copy(y) end) ~= nil dev:synchronize()"));
    CHECK(is_orderly(&events));
}

static void test_graphs(gpulua *g) {
    static struct events events;
    gpulua_hooks hooks;
    CHECK(set_hooks(g, NULL));
    CHECK(run(g, "x:fill(1) dev:synchronize() ok = true"));
    hooks_all(&hooks, &events);
    CHECK(set_hooks(g, &hooks));
    CHECK(run(g, "graph = dev:capture(function() mod.add:launch(one, x, 8) x:fill(2) end)\n"
                 "ok = true"));
    CHECK(find(&events, BEFORE_ENQUEUE, "add", 0) == NULL &&
          find(&events, BEFORE_ENQUEUE, "fill", 0) == NULL);
    CHECK(run(g, "graph:launch():await() ok = x:read()[1] == 2 dev:synchronize()"));
    CHECK(find(&events, AFTER_COMPLETE, "graph", 0) != NULL && is_orderly(&events));
}

static void test_changes(gpulua *g) {
    static struct events first, second;
    gpulua_hooks hooks;
    hooks_all(&hooks, &first);
    CHECK(set_hooks(g, &hooks));
    CHECK(run(g, "dev:synchronize() mod.spin:launch(one, x, 8, 1000000) ok = true"));
    hooks_all(&hooks, &second);
    hooks.before_enqueue = NULL;
    hooks.before_complete = NULL;
    CHECK(set_hooks(g, &hooks));
    /* Of operations on two streams the later one's end may be seen before the earlier one's. */
    CHECK(run(g, "mod.add:launch(one, x, 8):await() dev:synchronize() ok = true"));
    CHECK(told(&first,
               find(&first, AFTER_COMPLETE, "spin", 0) && !find(&first, BEFORE_ENQUEUE, "add", 0)));
    CHECK(second.count == 2 && find(&second, AFTER_ENQUEUE, "add", 0) &&
          find(&second, AFTER_COMPLETE, "add", 0)->host_ns > 0);
    gpulua_hooks none;
    memset(&none, 0, sizeof none);
    lua_State *L = gpulua_state(g);
    lua_getglobal(L, "dev");
    FAILS(gpulua_set_hooks(L, -1, &none), GPULUA_INVALID_ARGUMENT, "gpulua_hooks_init");
    lua_pushinteger(L, 1);
    FAILS(gpulua_set_hooks(L, -1, NULL), GPULUA_INVALID_ARGUMENT, "device");
    lua_settop(L, 0);
    CHECK(set_hooks(g, NULL));
    CHECK(run(g, "mod.add:launch(one, x, 8):await() ok = true") && second.count == 2);
}

/* A kernel that is made slow, from C: what the hooks say of it took so long, once. */
static void test_slow(gpulua *g) {
    static struct events events;
    gpulua_hooks hooks;
    lua_State *L = gpulua_state(g);
    lua_getglobal(L, "dev");
    CHECK(gpulua_inject_slow(L, -1, "add", 0.3) == GPULUA_OK && lua_gettop(L) == 1);
    hooks_all(&hooks, &events);
    CHECK(set_hooks(g, &hooks));
    CHECK(run(g, "mod.add:launch(one, x, 8):await() mod.add:launch(one, x, 8):await() ok = true"));
    const struct event *slow = find(&events, AFTER_COMPLETE, "add", 0);
    const struct event *quick = find(&events, AFTER_COMPLETE, "add", 1);
    CHECK(slow && slow->host_ns >= 40000000 && quick && quick->host_ns < slow->host_ns);
    CHECK(gpulua_inject_slow(L, -1, "add", 3600) == GPULUA_OK);
    CHECK(gpulua_inject_slow(L, -1, NULL, 0) == GPULUA_OK);
    CHECK(run(g, "mod.add:launch(one, x, 8):await() ok = true"));
    FAILS(gpulua_inject_slow(L, -1, "add", -1), GPULUA_INVALID_ARGUMENT, "seconds");
    lua_pushinteger(L, 1);
    FAILS(gpulua_inject_slow(L, -1, "add", 1), GPULUA_INVALID_ARGUMENT, "device");
    lua_settop(L, 0);
    CHECK(is_orderly(&events) && set_hooks(g, NULL));
}

/* The device is lost with work under way: each operation ends all the same. */
static void test_loss(gpulua *g) {
    static struct events events;
    gpulua_hooks hooks;
    hooks_all(&hooks, &events);
    CHECK(set_hooks(g, &hooks));
    CHECK(run(g, "dev:inject { fault = 3 }\n"
                 "for i = 1, 6 do pcall(mod.add.launch, mod.add, one, x, 8) end\n"
                 "pcall(dev.synchronize, dev) pcall(dev.synchronize, dev) ok = true"));
    int lost = 0;
    for (int i = 0; i < events.count; i++) {
        lost += events.all[i].kind == AFTER_COMPLETE && events.all[i].status == GPULUA_DEVICE_LOST;
    }
    CHECK(lost > 0 && is_orderly(&events));
    CHECK(set_hooks(g, NULL)); /* also of a device that is lost */
}

/* On a traced device the last hook says what the operation took there, where events tell. */
static void test_traced(const gpulua_config *config) {
    static struct events events;
    gpulua_config traced = *config;
    gpulua_hooks hooks;
    traced.trace = 1;
    gpulua *g = gpulua_new(&traced);
    hooks_all(&hooks, &events);
    if (CHECK(g != NULL && run(g, prelude) && set_hooks(g, &hooks))) {
        CHECK(run(g, "local x = dev:buffer('f32', 1 << 22) x:fill(1) x:fill(2) "
                     "ok = x:read(1)[1] == 2 dev:synchronize()"));
        const struct event *fill = find(&events, AFTER_COMPLETE, "fill", 1);
        if (!CHECK(fill && fill->status == GPULUA_OK && fill->device_ns > 1000 &&
                   fill->device_ns < fill->host_ns) &&
            fill) {
            printf("# status %d, device %lld ns, host %lld ns\n", fill->status,
                   (long long)fill->device_ns, (long long)fill->host_ns);
        }
        CHECK(run(g, "dev:inject { fault = 1 } pcall(function() x:fill(1) end) "
                     "pcall(dev.synchronize, dev) pcall(dev.synchronize, dev) ok = true"));
    }
    gpulua_close(g);
}

int main(void) {
    setenv("GPULUA_CUPTI", "0", 1); /* which tells later */
    static const gpulua_isolation isolations[] = {GPULUA_ISOLATE_NONE, GPULUA_ISOLATE_PROCESS,
                                                  GPULUA_ISOLATE_THREAD};
    for (int i = 0; i < 3; i++) {
        const char *device = getenv("GPULUA_DEVICE");
        gpulua_config config;
        gpulua_config_init(&config);
        config.device = device != NULL && device[0] != '\0' ? device : "cpu";
        config.isolation = isolations[i];
        gpulua *g = gpulua_new(&config);
        if (CHECK(g != NULL && run(g, prelude))) {
            test_operations(g);
            test_refused(g);
            test_graphs(g);
            test_changes(g);
            test_slow(g);
            test_loss(g);
        }
        gpulua_close(g);
        test_traced(&config);
    }
    return tap_finish(&tap);
}
