/* Every function of gpulua.h in every wrong state, first one by one, then in random order: each
 * call ends, says what was wrong, leaves the stack as it was, and harms nobody. */
#include <fcntl.h>
#include <unistd.h>

#include "host/misuse_calls.h"

#if defined(__SANITIZE_THREAD__)
#define IS_THREAD_SANITIZED 1
#else
#define IS_THREAD_SANITIZED 0
#endif

/* ---- one by one ---- */

/* What everything answers in a state: the usual name of a status, and " call=Name" for others. */
struct situation {
    const char *name;
    const char *script; /* run beforehand; NULL: none */
    const char *usual;
    const char *others;
};

static void wanted_of(const struct situation *situation, const char *call, char *wanted,
                      size_t wanted_bytes) {
    char pattern[64];
    snprintf(pattern, sizeof pattern, " %s=", call);
    const char *found = strstr(situation->others, pattern);
    const char *start = found ? found + strlen(pattern) : situation->usual;
    snprintf(wanted, wanted_bytes, "%.*s", (int)strcspn(start, " "), start);
}

/* The status has a name; a failure is kept in the object, with a message; nothing but what it gives
 * is on the stack. Device functions keep no message, nor has a state without an object one. */
static bool is_sound(const struct seat *seat, const struct call *call, gpulua_status status,
                     int pushed) {
    bool good = strcmp(gpulua_status_name(status), "Unknown") != 0;
    good = good && pushed == (status == GPULUA_OK ? call->pushes : 0);
    if (status && strncmp(call->name, "device_", 7) != 0) {
        const gpulua_error *error = gpulua_last_error(seat->g);
        good = good && error->code == status && error->message[0] != '\0' && error->hint != NULL;
    }
    return good;
}

static void judge_all(struct seat *seat, const struct situation *situation) {
    for (size_t i = 0; i < CALL_COUNT; i++) {
        char wanted[32], what[128];
        int top = lua_gettop(seat->L);
        gpulua_status status = calls[i].function(seat);
        int pushed = lua_gettop(seat->L) - top;
        wanted_of(situation, calls[i].name, wanted, sizeof wanted);
        snprintf(what, sizeof what, "%s: %s: %s", situation->name, calls[i].name, wanted);
        if (!tap_check(&tap,
                       strcmp(gpulua_status_name(status), wanted) == 0 &&
                           is_sound(seat, &calls[i], status, pushed),
                       what)) {
            printf("# %s, %d pushed: %s\n", gpulua_status_name(status), pushed,
                   gpulua_last_error(seat->g)->message);
        }
        lua_settop(seat->L, top);
    }
}

/* The CPU device has no streams for others. */
#define NO_STREAMS " recorder_stream=Unsupported stream_capture_begin=Unsupported"
#define OF_DEVICES " device_inject=OK device_set_hooks=OK"
#define TASKS " load_file=OK load_function=OK call=OK step=OK"

/* In this order: what a call does to the handles is what the next ones see. */
static const struct situation situations[] = {
    {"all is well", NULL, "OK", " recorder_over=Closed capture_finish=Closed" NO_STREAMS},
    {"values of other kinds",
     "x, h, mem, cap, graph, dev, stream = 1, 'h', {}, print, true, nil, 2", "OK",
     " to_buffer=InvalidArgument memory_describe=InvalidArgument recorder_over=Closed"
     " capture_describe=InvalidArgument capture_finish=InvalidArgument"
     " capture_cancel=InvalidArgument graph_upload=InvalidArgument"
     " graph_launch=InvalidArgument buffer_new=InvalidArgument push_memory=InvalidArgument"
     " recorder_new=InvalidArgument push_capture=InvalidArgument set_hooks=InvalidArgument"
     " inject_slow=InvalidArgument dlpack_import=InvalidArgument"
     " dlpack_import_unversioned=InvalidArgument recorder_stream=Unsupported"
     " stream_capture_begin=InvalidArgument"},
    {"a closed device", "dev:close()", "Closed",
     " memory_describe=OK recorder_uses=OK recorder_commit=StreamMisuse capture_describe=OK"
     " capture_cancel=OK answers=OK" TASKS OF_DEVICES},
    {"a capture under way", "cap = dev:capture()", "OK",
     " buffer_map=CaptureActive recorder_preflight=CaptureActive recorder_wait=CaptureActive"
     " recorder_commit=StreamMisuse recorder_over=Closed push_capture=CaptureActive"
     " capture_finish=EmptyCapture" NO_STREAMS},
    {"freed and closed handles",
     "x:free() h:close() mem:close() graph:close() stream:close() cap:close()", "OK",
     " to_buffer=UseAfterFree push_buffer=UseAfterFree memory_describe=Closed"
     " recorder_preflight=UseAfterFree recorder_commit=StreamMisuse recorder_over=Closed"
     " capture_finish=Closed graph_upload=Closed graph_launch=Closed" NO_STREAMS},
};

/* Where it does not come up again, and where it does. */
static const struct situation lost = {
    "a lost device", "dev:inject { fault = 1 } pcall(function() x:fill(1):await() end)",
    "DeviceLost",
    " memory_describe=OK recorder_uses=OK recorder_commit=StreamMisuse recorder_over=Closed"
    " capture_describe=OK capture_finish=Closed capture_cancel=OK set_hooks=OK inject_slow=OK"
    " answers=OK" TASKS OF_DEVICES};
static const struct situation restored = {
    "a device that came up again",
    "dev:inject { fault = 1 } pcall(function() x:fill(1):await() end) dev:await()", "OK",
    " to_buffer=Stale push_buffer=Stale recorder_preflight=Stale recorder_commit=StreamMisuse"
    " recorder_over=Closed capture_finish=Closed graph_upload=Stale graph_launch=Stale" NO_STREAMS};

static void test_situation(const struct situation *situation, gpulua_isolation isolation) {
    struct seat seat;
    if (CHECK(seat_open(&seat, isolation, false)) &&
        CHECK(situation->script == NULL || run_text(&seat, situation->script))) {
        seat_values(&seat);
        judge_all(&seat, situation);
    }
    CHECK(seat_close(&seat, false));
}

/* From a function that a script calls, in gpulua_step. */
static const struct situation inside = {"inside of gpulua_step", NULL, "OK",
                                        " step=StreamMisuse recorder_over=Closed"
                                        " capture_finish=Closed" NO_STREAMS};

static int judge_inside(lua_State *L) {
    struct seat *seat = lua_touserdata(L, lua_upvalueindex(1));
    lua_State *main_state = seat->L;
    seat->L = L; /* a coroutine of the state */
    seat_values(seat);
    judge_all(seat, &inside);
    seat->L = main_state;
    return 0;
}

static void test_inside(void) {
    struct seat seat;
    CHECK(seat_open(&seat, GPULUA_ISOLATE_NONE, false));
    lua_pushlightuserdata(seat.L, &seat);
    lua_pushcclosure(seat.L, judge_inside, 1);
    CHECK(gpulua_load_function(seat.g, 0) == GPULUA_OK);
    CHECK(gpulua_step(seat.g, -1) >= 0);
    CHECK(seat_close(&seat, true));
}

/* The object is closed; its state lives on, with all handles. */
static const struct situation closed_object = {"a closed object", NULL, "Closed",
                                               " recorder_uses=OK answers=OK" OF_DEVICES};

static void test_closed_object(void) {
    struct seat seat;
    int ends[2];
    char byte;
    CHECK(seat_open(&seat, GPULUA_ISOLATE_NONE, true));
    seat_values(&seat);
    int fd = gpulua_pollfd(seat.g);
    gpulua_close(seat.g);
    CHECK(gpulua_tasks(seat.g) == 0 && gpulua_pollfd(seat.g) == -1);
    CHECK(gpulua_timeout_ms(seat.g) == -1 && gpulua_state(seat.g) == seat.L);
    /* Others have the object's descriptors now. */
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
    for (int other = fd; other < fd + 4; other++) {
        if (other != ends[0] && other != ends[1]) {
            dup2(ends[1], other);
        }
    }
    gpulua_wake(seat.g);
    gpulua_interrupt(seat.g);
    gpulua_cancel_all(seat.g);
    CHECK(read(ends[0], &byte, 1) < 0);
    for (int other = fd; other < fd + 4; other++) {
        close(other);
    }
    close(ends[0]);
    close(ends[1]);
    judge_all(&seat, &closed_object);
    CHECK(seat_close(&seat, false));
}

/* A state that gpulua has never been in. */
static void test_no_object(void) {
    struct seat seat = {.L = luaL_newstate()};
    static const char *const names[] = {
        "to_buffer",           "buffer_new",     "push_memory",
        "memory_describe",     "recorder_new",   "push_capture",
        "capture_finish",      "capture_cancel", "capture_describe",
        "graph_upload",        "graph_launch",   "set_hooks",
        "inject_slow",         "dlpack_import",  "dlpack_import_unversioned",
        "stream_capture_begin"};
    for (size_t i = 0; i < CALL_COUNT; i++) {
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) {
            if (strcmp(calls[i].name, names[j]) == 0) {
                char what[64];
                snprintf(what, sizeof what, "a state without an object: %s", names[j]);
                lua_pushinteger(seat.L, 1);
                tap_check(&tap,
                          calls[i].function(&seat) == GPULUA_INVALID_ARGUMENT &&
                              lua_gettop(seat.L) == 1,
                          what);
                lua_settop(seat.L, 0);
            }
        }
    }
    lua_close(seat.L);
}

/* A recorder of another object. */
static void test_other_object(void) {
    struct seat seat, other;
    CHECK(seat_open(&seat, GPULUA_ISOLATE_NONE, false));
    CHECK(seat_open(&other, GPULUA_ISOLATE_NONE, true));
    gpulua *g = seat.g;
    uintptr_t stream;
    gpulua_recorder *recorder = other.recorders[0];
    FAILS(gpulua_recorder_preflight(g, recorder), GPULUA_INVALID_ARGUMENT, "another gpulua object");
    FAILS(gpulua_recorder_wait(g, recorder), GPULUA_INVALID_ARGUMENT, "another gpulua object");
    FAILS(gpulua_recorder_stream(g, recorder, &stream), GPULUA_INVALID_ARGUMENT, "another gpulua");
    FAILS(gpulua_recorder_commit(g, recorder), GPULUA_INVALID_ARGUMENT, "another gpulua object");
    CHECK(gpulua_recorder_preflight(other.g, recorder) == GPULUA_OK);
    CHECK(gpulua_recorder_commit(other.g, recorder) == GPULUA_OK);
    CHECK(seat_close(&seat, false));
    CHECK(seat_close(&other, true));
}

/* An object for scripts that are not trusted, on a device in a process: it has no host buffers and
 * captures. */
static bool sandbox_open(struct seat *seat) {
    gpulua_device_config device_config;
    gpulua_config config;
    memset(seat, 0, sizeof *seat);
    gpulua_device_config_init(&device_config);
    device_config.device = "cpu";
    device_config.isolation = GPULUA_ISOLATE_PROCESS;
    seat->device = gpulua_device_open(&device_config);
    gpulua_config_init(&config);
    config.sandbox = 1;
    config.shared_device = seat->device;
    seat->g = gpulua_new(&config);
    seat->L = seat->g ? gpulua_state(seat->g) : NULL;
    bool good = seat->device && seat->g &&
                run_text(seat, "gpu = require 'gpulua' dev = gpu.device() stream = dev:stream {}\n"
                               "x = dev:buffer('f32', 4):fill(1) h = x\n"
                               "mem = dev:memory { statistics = true }\n");
    if (good) {
        seat_values(seat);
        for (int i = 0; i < 2; i++) {
            good = good && gpulua_to_buffer(seat->L, AT_BUFFER, &seat->buffers[i]) == GPULUA_OK &&
                   gpulua_recorder_new(seat->L, NULL, &seat->recorders[i]) == GPULUA_OK;
        }
    }
    return good;
}

static void test_sandbox(void) {
    static const struct {
        const char *name, *script;
    } states[] = {
        {"all is well", ""},
        {"a task whose time will be up", "gpu.spawn(function() while true do end end)"},
        {"an error that takes for ever to show",
         "gpu.spawn(function() error(setmetatable({}, { __tostring = function() while true do end "
         "end })) end)"},
        {"a freed buffer", "x:free()"},
        {"values of other kinds", "x, h, mem, graph, dev, stream = 1, 'h', {}, print, true, 2"},
        {"a closed device", "dev:close()"},
    };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        struct seat seat;
        if (!tap_check(&tap, sandbox_open(&seat), "a sandbox")) {
            CHECK(seat_close(&seat, true));
            continue;
        }
        CHECK(run_text(&seat, states[i].script));
        seat_values(&seat);
        for (size_t j = 0; j < CALL_COUNT; j++) {
            int top = lua_gettop(seat.L);
            gpulua_status status = calls[j].function(&seat);
            int pushed = lua_gettop(seat.L) - top;
            char what[128];
            snprintf(what, sizeof what, "sandbox: %s: %s: sound", states[i].name, calls[j].name);
            if (!tap_check(&tap, is_sound(&seat, &calls[j], status, pushed), what)) {
                printf("# %s, %d pushed: %s\n", gpulua_status_name(status), pushed,
                       gpulua_last_error(seat.g)->message);
            }
            lua_settop(seat.L, top);
        }
        CHECK(seat_close(&seat, i % 2 == 0));
    }
}

/* ---- in random order ---- */

/* What scripts do meanwhile. All of it may fail. */
static const char *const deeds[] = {
    "x = dev:buffer('f32', 4):fill(1)",
    "h = dev:host('f32', 4)",
    "big = dev:buffer('f32', 1 << 18) for i = 1, 20 do big:fill(i) end", /* in flight for a while */
    "x:free()",
    "x:close()",
    "mem = dev:memory { guard = true } m = mem:buffer('f32', 4):fill(2)",
    "stream = dev:stream {}",
    "stream:close()",
    "cap = dev:capture() x:fill(3)",
    "cap:cancel()",
    "graph = cap:finish()",
    "graph:close()",
    "gpu.spawn(function() gpu.sleep(0.001) x:fill(4):await() end)",
    "collectgarbage()",
    "dev:synchronize()",
    "dev:inject { oom = 1 }",
    "dev:inject { fault = 2 }",
    "dev:close()",
    "x:fill(1)",
    "error 'on purpose'",
};

static void do_deed(struct seat *seat) {
    const char *deed = deeds[random_below(sizeof deeds / sizeof deeds[0])];
    int top = lua_gettop(seat->L);
    if (luaL_dostring(seat->L, deed) != LUA_OK) {
        gpulua_device_inject(seat->device, GPULUA_INJECT_OOM, 0);
    }
    lua_settop(seat->L, top);
}

/* What has been pushed takes the place of another value. */
static void keep_values(struct seat *seat) {
    while (lua_gettop(seat->L) > PLACES) {
        lua_replace(seat->L, 1 + (int)random_below(PLACES));
    }
}

/* A device that is lost or closed has had its day; so have the handles. */
static bool begin_again(struct seat *seat) {
    int top = lua_gettop(seat->L);
    static const char check[] = "return pcall(function() local b = dev:buffer('f32', 1) "
                                "assert(b:fill(7):read()[1] == 7) end)";
    bool works = luaL_dostring(seat->L, check) == LUA_OK && lua_toboolean(seat->L, top + 1);
    lua_settop(seat->L, top);
    if (works) {
        return true;
    }
    lua_settop(seat->L, 0); /* a capture that nobody has any more ends when it is collected */
    (void)luaL_dostring(seat->L,
                        "cap = nil collectgarbage() collectgarbage() pcall(dev.close, dev)");
    lua_settop(seat->L, 0);
    seat_drop_handles(seat);
    if (!seat_fill(seat)) {
        return false;
    }
    seat_values(seat);
    return true;
}

/* Calls of all objects from `seed` on. The number of calls that were not sound. */
static int fuzz(uint64_t seed, gpulua_isolation isolation, int rounds) {
    struct seat seats[3];
    int unsound = 0, count = 0;
    for (int i = 0; i < 3; i++) {
        unsound += !seat_open(&seats[i], isolation, i == 1);
        seat_values(&seats[i]);
    }
    chaos.state = seed;
    chaos.seats = seats;
    chaos.seat_count = 3;
    for (int i = 0; i < rounds && unsound == 0; i++) {
        struct seat *seat = &seats[random_below(3)];
        const struct call *call = &calls[random_below(CALL_COUNT)];
        int top = lua_gettop(seat->L);
        gpulua_status status = call->function(seat);
        if (!is_sound(seat, call, status, lua_gettop(seat->L) - top)) {
            printf("# seed %llu, call %d, %s: %s, %d pushed: %s\n", (unsigned long long)seed, i,
                   call->name, gpulua_status_name(status), lua_gettop(seat->L) - top,
                   gpulua_last_error(seat->g)->message);
            unsound++;
        }
        keep_values(seat);
        count += status != GPULUA_OK;
        if (happens(3)) {
            do_deed(seat);
        }
        if (happens(100) && !begin_again(seat)) {
            printf("# seed %llu, call %d: the object does not work\n", (unsigned long long)seed, i);
            unsound++;
        }
    }
    for (int i = 0; i < 3; i++) {
        bool handles_first = happens(2);
        unsound += !seat_close(&seats[i], handles_first);
    }
    printf("# seed %llu: %d calls, %d refused\n", (unsigned long long)seed, rounds, count);
    chaos.state = 0;
    return unsound;
}

/* `times`: so many times the usual number of seeds. */
static void test_random(int times) {
    static const struct {
        const char *name;
        gpulua_isolation isolation;
        int seeds, rounds;
    } ways[] = {{"none", GPULUA_ISOLATE_NONE, 10, 3000},
                {"thread", GPULUA_ISOLATE_THREAD, 4, 2000},
                {"process", GPULUA_ISOLATE_PROCESS, 2, 1000}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        int unsound = 0;
        char what[96];
        if (IS_THREAD_SANITIZED) {
            tap_skip(&tap, ways[i].name, "one thread calls, and the sanitizer takes 20 GiB for it");
            continue;
        }
        for (int seed = 1; seed <= times * ways[i].seeds; seed++) {
            unsound += fuzz((uint64_t)seed, ways[i].isolation, ways[i].rounds);
        }
        snprintf(what, sizeof what, "%s: %d calls in random order, in random states", ways[i].name,
                 times * ways[i].seeds * ways[i].rounds);
        tap_check(&tap, unsound == 0, what);
    }
}

int main(int argc, char **argv) {
    static const gpulua_isolation isolations[] = {GPULUA_ISOLATE_NONE, GPULUA_ISOLATE_THREAD,
                                                  GPULUA_ISOLATE_PROCESS};
    for (size_t i = 0; i < sizeof isolations / sizeof isolations[0]; i++) {
        for (size_t j = 0; j < sizeof situations / sizeof situations[0]; j++) {
            test_situation(&situations[j], isolations[i]);
        }
        test_situation(isolations[i] == GPULUA_ISOLATE_PROCESS ? &restored : &lost, isolations[i]);
    }
    test_inside();
    test_closed_object();
    test_no_object();
    test_other_object();
    test_sandbox();
    test_random(argc > 1 ? atoi(argv[1]) : 1);
    return tap_finish(&tap);
}
