/* Several objects, a thread each, on one device. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "gpulua.h"

#define THREADS 4
#define ROUNDS 60

static struct tap tap;
static gpulua_isolation isolation;

static gpulua_completion completion; /* of devices that are opened */

static void check(bool condition, const char *name) {
    static const char *const completions[] = {"", "word: ", "event: ", "block: "};
    char text[200];
    snprintf(text, sizeof text, "%s: %s%s",
             isolation == GPULUA_ISOLATE_NONE     ? "none"
             : isolation == GPULUA_ISOLATE_THREAD ? "thread"
                                                  : "process",
             completions[completion], name);
    tap_check(&tap, condition, text);
}

/* There a failed assert fails its launch; on a GPU it ends the device. */
static bool is_cpu(void) {
    const char *device = getenv("GPULUA_DEVICE");
    return !device || strncmp(device, "cuda", 4) != 0;
}

struct seat {
    gpulua_device *device;
    gpulua_buffer *sums;
    const char *script;
    int number;
    lua_Number result;
    int failures;
    char message[300];
    pthread_t thread;
};

static atomic_uint begun; /* scripts; one that has failed is not waited for */

static void note_error(void *user, const gpulua_error *error) {
    struct seat *seat = user;
    seat->failures++;
    begun++;
    snprintf(seat->message, sizeof seat->message, "%s", error->message);
}

static atomic_uint missed; /* sleeps that nobody ended, though something was over */

static gpulua_device *open_device(void) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.isolation = isolation;
    config.completion = completion;
    gpulua_device *device = gpulua_device_open(&config);
    if (!device) {
        printf("# %s\n", gpulua_last_error(NULL)->message);
        exit(1);
    }
    return device;
}

/* For scripts: begin() says that one of them has begun, have_begun() whether all have. */
static int begin(lua_State *L) {
    (void)L;
    begun++;
    return 0;
}

static int have_begun(lua_State *L) {
    lua_pushboolean(L, begun >= THREADS);
    return 1;
}

static gpulua *open_object(struct seat *seat) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.shared_device = seat->device;
    config.on_error = note_error;
    config.user = seat;
    gpulua *g = gpulua_new(&config);
    if (g != NULL) {
        lua_register(gpulua_state(g), "begin", begin);
        lua_register(gpulua_state(g), "have_begun", have_begun);
    }
    return g;
}

static lua_Number global_number(lua_State *L, const char *name) {
    lua_getglobal(L, name);
    lua_Number value = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return value;
}

/* Runs a chunk as a task to its end. */
static bool run_chunk(gpulua *g, const char *script) {
    lua_State *L = gpulua_state(g);
    if (luaL_loadstring(L, script) != LUA_OK) {
        printf("# %s\n", lua_tostring(L, -1));
        return false;
    }
    if (gpulua_load_function(g, 0)) {
        return false;
    }
    while (gpulua_step(g, -1) > 0) {}
    lua_getglobal(L, "require"); /* none slept on though what it waited for was over */
    lua_pushliteral(L, "gpulua.core");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "missed_wakes");
    lua_call(L, 0, 1);
    missed += (unsigned)lua_tointeger(L, -1);
    lua_pop(L, 2);
    return true;
}

static void *run(void *user) {
    struct seat *seat = user;
    gpulua *g = open_object(seat);
    if (!g) {
        seat->failures++;
        return NULL;
    }
    lua_State *L = gpulua_state(g);
    if (seat->sums) {
        if (gpulua_push_buffer(L, seat->sums)) {
            snprintf(seat->message, sizeof seat->message, "%s", gpulua_last_error(g)->message);
            seat->failures++;
        }
        lua_setglobal(L, "sums");
    }
    lua_pushinteger(L, seat->number);
    lua_setglobal(L, "number");
    lua_pushinteger(L, ROUNDS);
    lua_setglobal(L, "ROUNDS");
    seat->failures += !run_chunk(g, seat->script);
    seat->result = global_number(L, "result");
    gpulua_close(g);
    return NULL;
}

/* All of them at the same time, to the end. */
static void run_all(struct seat *seats, void *(*work)(void *)) {
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&seats[i].thread, NULL, work, &seats[i]) != 0) {
            exit(1);
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(seats[i].thread, NULL);
    }
}

/* Sums that all threads add to, random programs of their own, tasks that wait, garbage. */
static const char mixed[] =
    "package.path = './?.lua;' .. package.path\n"
    "local gpu = require 'gpulua'\n"
    "local programs = require 'spec.programs'\n"
    "local dev = gpu.device()\n"
    "local add = dev:compile([[\n"
    "extern \"C\" __global__ void add(int n, int k, int *y) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += k; }]])\n"
    "  :kernel('add', 'i32, i32, inout i32*')\n"
    "local where = programs.open(dev)\n"
    "local differences = 0\n"
    "local function worker(w)\n"
    "  local own = dev:buffer('i32', 64):fill(0)\n"
    "  for k = 1, ROUNDS do\n"
    "    add:launch(#sums, #sums, number + 1, sums)\n"
    "    local op = add:launch(64, 64, k, own)\n"
    "    if k % 3 == w % 3 then op:await() end\n"
    "    if k % 20 == w then sums:slice(1, 8):read() end\n"
    "    dev:upload('i32', { k, w })\n"
    "  end\n"
    "  return own:read()[64]\n"
    "end\n"
    "local tasks = {}\n"
    "for w = 1, 4 do tasks[w] = gpu.spawn(worker, w) end\n"
    "for seed = 1, 3 do\n"
    "  if programs.run(where, number * 100 + seed, 400) then differences = differences + 1 end\n"
    "end\n"
    "for w = 1, 4 do\n"
    "  if tasks[w]:await() ~= ROUNDS * (ROUNDS + 1) // 2 then differences = differences + 1 end\n"
    "end\n"
    "programs.close(where)\n"
    "result = differences\n";

/* ---- who is told first ---- */

/* Polls the device while the other one does not. */
static void *keep_polling(void *user) {
    struct seat *seat = user;
    gpulua *g = open_object(seat);
    if (g) {
        run_chunk(g, "local b = require('gpulua').device():buffer('i32', 4)\n"
                     "for i = 1, 40 do b:fill(i):read() require('gpulua').sleep(0.005) end\n");
        gpulua_close(g);
    }
    return NULL;
}

static void test_order(void) {
    struct seat keeper = {.device = open_device()};
    struct seat other = {.device = keeper.device};
    gpulua *g = open_object(&keeper);
    run_chunk(g, "gpu = require 'gpulua'\n"
                 "slow = gpu.device():compile([[\n"
                 "extern \"C\" __global__ void slow(int *y) {\n"
                 "  long long start = clock64(); while (clock64() - start < 1000000) { }\n"
                 "  y[0] = 1; }]]).slow\n"
                 "x = gpu.device():buffer('i32', 4):fill(0)\n"
                 "slow:launch({ grid = 1, block = 1 }, x):await()\n");
    if (pthread_create(&other.thread, NULL, keep_polling, &other) != 0) {
        exit(1);
    }
    run_chunk(g, "local told = ''\n"
                 "local function tells(name) return function() told = told .. name end end\n"
                 "local first = slow:launch({ grid = 1, block = 1 }, x)\n"
                 "local second = slow:launch({ grid = 1, block = 1 }, x)\n"
                 "first:on_done(tells 'a'):on_done(tells 'b')\n"
                 "second:on_done(tells 'c')\n"
                 "local till = os.clock() + 0.1\n"
                 "while os.clock() < till do end\n" /* the other one finds out that they are over */
                 "first:on_done(tells 'd')\n"
                 "second:on_done(tells 'e')\n"
                 "for _ = 1, 5000 do if #told < 5 then gpu.sleep(0.01) end end\n"
                 "result = told == 'abcde' and 1 or 0\n");
    pthread_join(other.thread, NULL);
    check(global_number(gpulua_state(g), "result") == 1,
          "what has ended long ago is told of behind what was waited for before");
    gpulua_close(g);
    gpulua_device_close(keeper.device);
}

static void test_threads(void) {
    struct seat seats[THREADS], keeper = {.device = open_device()};
    gpulua *g = open_object(&keeper);
    lua_State *L = gpulua_state(g);
    gpulua_buffer *sums = NULL;
    bool is_well = run_chunk(g, "local gpu = require 'gpulua'\n"
                                "sums = gpu.device():buffer('i32', 5000):fill(0)\n");
    lua_getglobal(L, "sums");
    is_well = is_well && gpulua_to_buffer(L, -1, &sums) == GPULUA_OK;
    lua_pop(L, 1);
    check(is_well, "a buffer for all");
    for (int i = 0; i < THREADS; i++) {
        seats[i] = (struct seat){
            .device = keeper.device, .sums = sums, .script = mixed, .number = i, .result = -1};
    }
    run_all(seats, run);
    bool all_right = true;
    for (int i = 0; i < THREADS; i++) {
        all_right &= seats[i].result == 0 && seats[i].failures == 0;
        if (seats[i].failures || seats[i].result != 0) {
            printf("# thread %d: %g differences, %s\n", i, seats[i].result, seats[i].message);
        }
    }
    check(all_right, "4 threads: random programs end as if they had run in order");
    run_chunk(g, "local least, most = math.huge, -math.huge\n"
                 "for _, v in ipairs(sums:read()) do\n"
                 "  least, most = math.min(least, v), math.max(most, v)\n"
                 "end\n"
                 "result = least == most and least or -1\n"
                 "left = sums.device and sums.device:stats().ops_in_flight or 0\n");
    check(global_number(L, "result") == 4 * ROUNDS * (1 + 2 + 3 + 4),
          "nothing is lost of what all of them add to one buffer");
    check(keeper.failures == 0, "and nobody else's failure is told here");
    run_chunk(
        g,
        "local slow = require('gpulua').device():compile([[\n"
        "extern \"C\" __global__ void slow(int *y) {\n"
        "  long long start = clock64(); while (clock64() - start < 1000000) { }\n"
        "  y[0] = 1; }]]).slow\n"
        "local told = ''\n"
        "local function tells(name) return function() told = told .. name end end\n"
        "for name in ('abc'):gmatch '.' do\n"
        "  slow:launch({ grid = 1, block = 1 }, sums):on_done(tells(name)):on_done(tells(name))\n"
        "end\n"
        "local till = os.clock() + 0.02\n"
        "while os.clock() < till do end\n" /* all end, and nobody looks */
        "for _ = 1, 5000 do if #told < 6 then require('gpulua').sleep(0.01) end end\n"
        "result = told == 'aabbcc' and 1 or 0\n");
    check(global_number(L, "result") == 1, "what ends is told of in order");
    gpulua_buffer_release(sums);
    gpulua_close(g);
    gpulua_device_close(keeper.device);
}

/* ---- two objects in one thread ---- */

static const char opening[] =
    "gpu = require 'gpulua'\n"
    "dev = gpu.device()\n"
    "same = dev == gpu.device() and dev == gpu.device(dev.name) and 1 or 0\n"
    "slow = dev:compile([[\n"
    "extern \"C\" __global__ void slow(int n, int k, int *y) {\n"
    "  long long start = clock64(); while (clock64() - start < 2000000) { }\n"
    "  for (int i = 0; i < n; i++) y[i] = k; }]]):kernel('slow', 'i32, i32, out i32*')\n"
    "bad = dev:compile([[\n"
    "extern \"C\" __global__ void bad(int *y, int n) { assert(n > 0); y[0] = n; }]]).bad\n"
    "x = dev:buffer('i32', 4, { label = 'x' }):fill(1)\n"
    "h = dev:host('i32', 4)\n"
    "child = dev.pid or 0\n";

static gpulua_buffer *take_buffer(gpulua *g, const char *name) {
    gpulua_buffer *buffer = NULL;
    lua_getglobal(gpulua_state(g), name);
    if (gpulua_to_buffer(gpulua_state(g), -1, &buffer)) {
        printf("# %s\n", gpulua_last_error(g)->message);
    }
    lua_pop(gpulua_state(g), 1);
    return buffer;
}

static bool pushes(gpulua *g, gpulua_buffer *buffer, const char *name) {
    if (gpulua_push_buffer(gpulua_state(g), buffer)) {
        return false;
    }
    lua_setglobal(gpulua_state(g), name);
    return true;
}

static void test_two(void) {
    struct seat of_a = {.device = open_device()}, of_b = {.device = of_a.device}, of_c = {0};
    gpulua *a = open_object(&of_a), *b = open_object(&of_b), *c = open_object(&of_c);
    check(run_chunk(a, opening) && of_a.failures == 0, "a script on a shared device");
    check(global_number(gpulua_state(a), "same") == 1, "gpu.device is the shared one, by name too");
    gpulua_buffer *x = take_buffer(a, "x"), *h = take_buffer(a, "h");
    check(pushes(b, x, "x"), "a buffer goes from one object to another that shares the device");
    check(!pushes(b, h, "h") && gpulua_last_error(b)->code == GPULUA_UNSUPPORTED,
          "a host buffer does not");
    check(!pushes(c, x, "x") && gpulua_last_error(c)->code == GPULUA_INVALID_ARGUMENT,
          "nor one to an object that does not share it");
    void *bytes;
    check(gpulua_buffer_map(b, x, GPULUA_READ, &bytes) == GPULUA_INVALID_ARGUMENT,
          "a buffer is mapped by its own object alone");

    check(run_chunk(b, opening) && pushes(b, x, "x"), "a second script");
    run_chunk(a, "slow:launch({ grid = 1, block = 1 }, 4, 7, x)\n");
    run_chunk(b, "y = x:read() result = y[1] * 10 + y[4]\n");
    check(global_number(gpulua_state(b), "result") == 77,
          "the reader waits for the other's writer");
    run_chunk(b, "op = slow:launch({ grid = 1, block = 1 }, 4, 9, x)\n");
    run_chunk(a, "x:fill(3)\n");
    run_chunk(b, "op:await() result = x:read()[2]\n");
    check(global_number(gpulua_state(b), "result") == 3, "and the later of two writers wins");
    check(of_a.failures + of_b.failures == 0, "without errors");

    /* Failures belong to whoever launched. */
    if (is_cpu()) {
        run_chunk(a, "z = dev:buffer('i32', 1) bad:launch({ grid = 1, block = 1 }, z, 0)\n");
        run_chunk(b, "x:fill(5) result = x:read()[1] dev:synchronize()\n");
        check(of_b.failures == 0 && global_number(gpulua_state(b), "result") == 5,
              "what fails is not raised in another object");
        run_chunk(a, "ok, err = pcall(function() dev:synchronize() end)\n"
                     "result = not ok and err.code == 'KernelFailed' and 1 or 0\n");
        check(global_number(gpulua_state(a), "result") == 1, "but in its own");
    }
    run_chunk(b,
              "ok, err = pcall(function() w = gpu.device('cpu', { check = true }) w:close() end)\n"
              "result = ok and 1 or 0\n");
    check(global_number(gpulua_state(b), "result") == 1,
          "devices of one's own can be had beside it");

    /* Closing in one leaves it to the other. */
    run_chunk(a, "dev:close()\n"
                 "ok, err = pcall(function() x:fill(1) end)\n"
                 "result = not ok and err.code == 'Closed' and 1 or 0\n");
    check(global_number(gpulua_state(a), "result") == 1, "dev:close() closes it for the script");
    run_chunk(b, "result = x:fill(6):read()[1]\n");
    check(of_b.failures == 0 && global_number(gpulua_state(b), "result") == 6, "and for no other");
    run_chunk(a, "dev = gpu.device() x = dev:buffer('i32', 4):fill(2) result = x:read()[1]\n");
    check(of_a.failures == 0 && global_number(gpulua_state(a), "result") == 2,
          "it can be asked for again");
    pid_t child = (pid_t)global_number(gpulua_state(b), "child");
    gpulua_close(a);
    check(gpulua_push_buffer(gpulua_state(b), x) == GPULUA_CLOSED,
          "the host's hold on a buffer ends with its object");
    gpulua_device_close(of_a.device);
    run_chunk(b, "result = x:fill(8):read()[1]\n");
    check(of_b.failures == 0 && global_number(gpulua_state(b), "result") == 8,
          "the device stays for the last object, and the buffer");
    gpulua_close(b);
    check(child == 0 || kill(child, 0) != 0, "and closes with it");
    gpulua_close(c);
    gpulua_buffer_release(x);
    gpulua_buffer_release(h);
}

/* ---- who is told, who is woken, who waits ---- */

/* Nobody has woken a loop that has slept this long. Less may be the work itself, beside others' on
 * one device. */
enum { unwoken_ms = 20000 };

/* A loop of the host's own: whenever it has something to do, its descriptor says so. */
static void *run_polling(void *user) {
    struct seat *seat = user;
    gpulua *g = open_object(seat);
    lua_State *L = gpulua_state(g);
    lua_pushinteger(L, seat->number);
    lua_setglobal(L, "number");
    if (luaL_loadstring(L, seat->script) != LUA_OK || gpulua_load_function(g, 0)) {
        exit(1);
    }
    while (gpulua_step(g, 0) > 0) {
        struct pollfd event = {.fd = gpulua_pollfd(g), .events = POLLIN};
        int limit_ms = gpulua_timeout_ms(g);
        /* 1000: a device is waited for */
        limit_ms = limit_ms < 0 || limit_ms >= 999 ? unwoken_ms : limit_ms;
        if (poll(&event, 1, limit_ms) == 0 && limit_ms == unwoken_ms) {
            snprintf(seat->message, sizeof seat->message, "nobody has woken it");
            seat->failures++;
        }
    }
    gpulua_close(g);
    return NULL;
}

static const char awaiting[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device()\n"
    "local slow = dev:compile([[extern \"C\" __global__ void slow(int n, int *y) {\n"
    "  long long start = clock64(); while (clock64() - start < n) { } y[0] += 1; }]]).slow\n"
    "local x = dev:buffer('i32', 1):fill(0)\n"
    "for w = 1, 3 do\n"
    "  gpu.spawn(function()\n"
    "    for k = 1, 60 do\n"
    "      local op = slow:launch({ grid = 1, block = 1 }, (k + w) % 7 * (number + 1) * 10000, x)\n"
    "      op:join(k % 3 * 0.00005)\n"
    "      if k % 4 == 0 then gpu.all(op, x) end\n"
    "    end\n"
    "  end)\n"
    "end\n";

static void test_waking(void) {
    struct seat seats[THREADS];
    gpulua_device *device = open_device();
    int failures = 0;
    for (int i = 0; i < THREADS; i++) {
        seats[i] = (struct seat){.device = device, .script = awaiting, .number = i};
    }
    run_all(seats, run_polling);
    for (int i = 0; i < THREADS; i++) {
        failures += seats[i].failures;
    }
    check(failures == 0, "every loop is woken for what is its own");
    gpulua_device_close(device);
}

/* A call of the host's that blocks between two steps leaves the loop to be woken. */
static void test_blocking(bool is_shared) {
    struct seat of_a = {.device = is_shared ? open_device() : NULL};
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cpu";
    config.isolation = isolation;
    gpulua *g = is_shared ? open_object(&of_a) : gpulua_new(&config);
    run_chunk(g, opening);
    run_chunk(g, "dev:synchronize() s = dev:stream() z = dev:buffer('i32', 4):fill(0)\n"
                 "y = slow:launch({ grid = 1, block = 1 }, 4, 1, x):await()\n");
    gpulua_buffer *h = take_buffer(g, "h");
    void *bytes;
    if (luaL_loadstring(gpulua_state(g), "for k = 1, 20 do\n"
                                         "  slow:launch({ grid = 1, block = 1 }, 4, 1, x) end\n"
                                         "s:use(function()\n"
                                         "  slow:launch({ grid = 1, block = 1 }, 4, 2, z)\n"
                                         "  h:copy(z) end)\n"
                                         "x:await()\n") != LUA_OK ||
        gpulua_load_function(g, 0)) {
        exit(1);
    }
    int first = gpulua_step(g, 0), second = gpulua_step(g, 0), unwoken = 0;
    gpulua_status mapped = gpulua_buffer_map(g, h, GPULUA_READ, &bytes);
    do {
        /* The script has no timers: whatever the time left says, somebody is to wake this. */
        struct pollfd event = {.fd = gpulua_pollfd(g), .events = POLLIN};
        unwoken += gpulua_timeout_ms(g) != 0 && poll(&event, 1, unwoken_ms) != 1;
    } while (gpulua_step(g, 0) > 0);
    /* The second step may find the work over, where the system gave this thread no time between. */
    bool is_woken = first == 1 && second >= 0 && mapped == GPULUA_OK && unwoken == 0;
    check(is_woken, "a host that has blocked between two steps is woken all the same");
    if (!is_woken) {
        printf("# steps: %d, %d; mapped: %d; not woken: %d\n", first, second, (int)mapped, unwoken);
    }
    gpulua_buffer_release(h);
    gpulua_close(g);
    gpulua_device_close(of_a.device);
}

struct moved {
    gpulua *g;
    gpulua_recorder *recorder;
    gpulua_buffer *buffer;
    gpulua_status status[3];
    gpulua_buffer_info info;
};

static void *use_moved(void *user) {
    struct moved *moved = user;
    void *bytes;
    gpulua_buffer_describe(moved->buffer, &moved->info);
    gpulua_recorder_read(moved->recorder, moved->buffer, "x");
    moved->status[0] = gpulua_recorder_preflight(moved->g, moved->recorder);
    moved->status[1] = gpulua_recorder_commit(moved->g, moved->recorder);
    moved->status[2] = gpulua_buffer_map(moved->g, moved->buffer, GPULUA_READ, &bytes);
    return NULL;
}

static void test_moving(void) {
    struct seat of_a = {.device = open_device()}, of_b = {.device = open_device()};
    gpulua *a = open_object(&of_a), *b = open_object(&of_b);
    run_chunk(
        a, "gpu = require 'gpulua'\n"
           "local name = (os.getenv 'GPULUA_DEVICE' or 'cpu'):find '^cuda' and 'cuda:0' or 'cpu'\n"
           "dev = gpu.device(name) x = dev:host('i32', 4)\n"
           "result = dev == gpu.device() and dev == gpu.device(name) and 1 or 0\n");
    check(global_number(gpulua_state(a), "result") == 1,
          "a shared device is the same with and without its name");
    struct moved moved = {.g = a, .buffer = take_buffer(a, "x")};
    check(gpulua_recorder_new(gpulua_state(a), NULL, &moved.recorder) == GPULUA_OK, "a recorder");
    run_chunk(b, "require('gpulua').device():buffer('i32', 4):fill(0)\n");
    pthread_t thread;
    if (pthread_create(&thread, NULL, use_moved, &moved) != 0) {
        exit(1);
    }
    pthread_join(thread, NULL);
    check(moved.info.is_usable && !moved.status[0] && !moved.status[1] && !moved.status[2],
          "an object goes to another thread, whatever that calls first");
    gpulua_recorder_release(moved.recorder);
    gpulua_buffer_release(moved.buffer);
    gpulua_close(a);
    gpulua_close(b);
    gpulua_device_close(of_a.device);
    gpulua_device_close(of_b.device);
}

static void test_failures(void) {
    if (!is_cpu()) {
        tap_skip(&tap, "whose failure it is", "a failed assert ends this device");
        return;
    }
    struct seat of_a = {.device = open_device()}, of_b = {.device = of_a.device};
    gpulua *a = open_object(&of_a), *b = open_object(&of_b);
    static const char sync[] = "ok, err = pcall(function() dev:synchronize() end)\n"
                               "result = not ok and err.code == code and 1 or 0\n";
    run_chunk(a, opening);
    run_chunk(b, opening);
    gpulua_buffer *x = take_buffer(a, "x");
    pushes(b, x, "x");
    run_chunk(a, "code = 'KernelFailed' bad:launch({ grid = 1, block = 1 }, x, 0)\n");
    run_chunk(b, "code = 'KernelFailed' z = dev:buffer('i32', 4):copy(x)\n"
                 "bad:launch({ grid = 1, block = 1 }, dev:buffer('i32', 1), 0)\n"
                 "ok, err = pcall(function() x:read() end)\n"
                 "result = not ok and err.code == 'DependencyFailed' and 1 or 0\n");
    check(global_number(gpulua_state(b), "result") == 1,
          "what another object's failure has left cannot be read");
    run_chunk(b, "ok, err = pcall(function() z:await() end)\n"
                 "result = not ok and err.code == 'DependencyFailed' and err.root and 1 or 0\n");
    check(global_number(gpulua_state(b), "result") == 1, "nor what came of it");
    run_chunk(b, sync);
    check(global_number(gpulua_state(b), "result") == 1, "its own failure is still told");
    run_chunk(a, sync);
    check(global_number(gpulua_state(a), "result") == 1, "and so is the other's, where it failed");
    check(of_a.failures + of_b.failures == 0, "all of them once");
    gpulua_buffer_release(x);

    /* A task waits for the other's work when its script closes the device. */
    run_chunk(a, "y = dev:buffer('i32', 4):fill(0)\n");
    x = take_buffer(a, "y");
    pushes(b, x, "y");
    run_chunk(a, "for k = 1, 20 do slow:launch({ grid = 1, block = 1 }, 4, k, y) end\n");
    run_chunk(b, "local task = gpu.spawn(function() y:await() end)\n"
                 "gpu.sleep(0.001) dev:close()\n"
                 "local ok, err = task:join()\n"
                 "result = (ok or err.code == 'Closed') and 1 or 0\n");
    check(global_number(gpulua_state(b), "result") == 1,
          "the end of a device wakes who waits there for another object's work");
    run_chunk(a, "result = y:read()[1]\n");
    check(global_number(gpulua_state(a), "result") == 20, "which goes on");
    gpulua_buffer_release(x);
    gpulua_close(b);
    gpulua_close(a);
    gpulua_device_close(of_a.device);
}

/* One is short of memory, and looks at what the other's guard has kept. */
static void test_guard(void) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.isolation = isolation;
    config.budget_bytes = 1 << 20;
    struct seat of_a = {.device = gpulua_device_open(&config)}, of_b = {.device = of_a.device};
    gpulua *a = open_object(&of_a), *b = open_object(&of_b);
    run_chunk(a, "gpu = require 'gpulua' dev = gpu.device() mem = dev:memory({ guard = true })\n"
                 "local past = dev:compile([[extern \"C\" __global__ void past(int n, int *y) {\n"
                 "  y[n] = 7; }]]).past\n"
                 "do local y = mem:buffer('i32', 100000):fill(0)\n"
                 "past:launch({ grid = 1, block = 1 }, 100000, y):await() end\n"
                 "collectgarbage() collectgarbage()\n");
    run_chunk(b, "gpu = require 'gpulua' dev = gpu.device()\n"
                 "x = dev:buffer('i32', 200000):fill(1) dev:synchronize() result = x:read()[1]\n");
    check(of_b.failures == 0 && global_number(gpulua_state(b), "result") == 1,
          "who is short of memory gets what another's guard keeps, and not what it finds");
    run_chunk(a, "ok, err = pcall(function() dev:synchronize() end)\n"
                 "result = not ok and err.code == 'OutOfBounds' and 1 or 0\n");
    check(global_number(gpulua_state(a), "result") == 1, "which is told to whose guard it is");
    gpulua_close(a);
    gpulua_close(b);
    gpulua_device_close(of_a.device);
}

static void test_coredump(void) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.device = "cpu";
    config.isolation = isolation;
    config.coredump_path = "/tmp";
    gpulua_device *device = gpulua_device_open(&config);
    check(device == NULL && gpulua_last_error(NULL)->code == GPULUA_UNSUPPORTED &&
              strstr(gpulua_last_error(NULL)->message, "coredump: only a GPU") != NULL,
          "core dumps are for GPUs in processes of their own, and refused elsewhere");
    gpulua_device_close(device);
}

/* ---- from thread to thread ---- */

static void *close_object(void *user) {
    gpulua_close(user);
    return NULL;
}

/* An object belongs to one thread at a time, and may be closed by another than ran it. */
static void test_closing(void) {
    struct seat seat = {.device = open_device()};
    struct seat elsewhere = {.device = open_device()};
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        gpulua *g = open_object(&seat);
        run_chunk(g, "local gpu = require 'gpulua'\n"
                     "result = gpu.device():buffer('i32', 4):fill(5):read()[1]\n");
        check(seat.failures == 0 && global_number(gpulua_state(g), "result") == 5,
              "an object that is to move");
        if (pthread_create(&thread, NULL, close_object, g) != 0) {
            exit(1);
        }
        pthread_join(thread, NULL);
    }
    gpulua_device_close(seat.device);
    /* This thread called for them last. */
    gpulua *g = open_object(&elsewhere);
    run_chunk(g, "result = require('gpulua').device():buffer('i32', 4):fill(6):read()[1]\n");
    check(elsewhere.failures == 0 && global_number(gpulua_state(g), "result") == 6,
          "objects may be closed by another thread than ran them");
    gpulua_close(g);
    gpulua_device_close(elsewhere.device);
}

/* ---- loss, and what is refused ---- */

static const char until_lost[] =
    "local gpu = require 'gpulua'\n"
    "result = 0\n"
    "local dev, x\n"
    "local ok, err\n"
    "local round = 0\n"
    "repeat\n"
    "  ok, err = pcall(function()\n" /* who begins late finds it lost already */
    "    dev = dev or gpu.device()\n"
    "    x = x or dev:buffer('i32', 1024)\n"
    "    for k = 1, 20 do x:fill(k) end x:await()\n"
    "  end)\n"
    "  round = round + 1\n"
    "  if round == 20 and number == 0 then os.execute('kill -9 ' .. dev.pid) end\n"
    "until not ok\n"
    "result = err.code == 'DeviceLost' and 1 or 0\n";

/* Kernels that report, on one device for all: each script hears of its own failures, and all of
 * them. */
static const char reporting[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device()\n"
    "local mod = dev:compile([[\n"
    "  #include <gpulua_kernel.h>\n"
    "  extern \"C\" __global__ void step(int *x, const int *from, int by, int number, gpulua_ctx "
    "c) "
    "{\n"
    "    x[threadIdx.x] = from[threadIdx.x] + by;\n"
    "    gpulua_check(c, by % 3 != 0, \"%d of %d\", by, number);\n"
    "  }]])\n"
    "local one = { grid = 1, block = 4 }\n"
    "local x, y = dev:buffer('i32', 4):fill(0), dev:buffer('i32', 4):fill(0)\n"
    "local good = true\n"
    "for round = 1, 20 do\n"
    "  local ops = {}\n"
    "  for by = 1, 30 do\n"
    "    x:fill(0)\n"
    "    ops[by] = mod.step:launch(one, x, y, by, number)\n"
    "  end\n"
    "  for by = 1, 30 do\n"
    "    local ok, err = ops[by]:join()\n"
    "    local is_right = ok == (by % 3 ~= 0)\n"
    "    if not ok then is_right = is_right and err.code == 'KernelFailed'\n"
    "      and err.message:find((': %d of %d'):format(by, number), 1, true) end\n"
    "    good = good and is_right\n"
    "  end\n"
    "end\n"
    "result = good and 1 or 0\n";

/* In how many of the objects, each in a thread, does the script end with a result of 1? */
static int successes(gpulua_device_config *config, const char *script) {
    struct seat seats[THREADS];
    config->isolation = isolation;
    gpulua_device *device = gpulua_device_open(config);
    int good = 0;
    for (int i = 0; i < THREADS; i++) {
        seats[i] = (struct seat){.device = device, .script = script, .number = i};
    }
    run_all(seats, run);
    for (int i = 0; i < THREADS; i++) {
        good += seats[i].result == 1;
    }
    gpulua_device_close(device);
    return good;
}

static void test_reports(void) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    check(successes(&config, reporting) == THREADS,
          "each script hears of what its own kernels report");
}

static void test_loss(void) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.restarts = -1; /* so that who begins late hears of it, too */
    check(successes(&config, until_lost) == THREADS,
          "one fate: all scripts hear that the device is lost");
}

static const char through_losses[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device()\n"
    "local x\n"
    "while not pcall(function()\n" /* another may have ended its process already */
    "  x = dev:buffer('i32', 256, { durable = true }):fill(number)\n"
    "end) do dev:await() end\n"
    "local lost, restored = 0, 0\n"
    "dev:on_lost(function() lost = lost + 1 end)\n"
    "dev:on_restored(function() restored = restored + 1 end)\n"
    "local served = 0\n"
    "gpu.run(function()\n"
    "  while dev.epoch < 6 do\n"
    "    local ok, err = pcall(function()\n"
    "      local y <close> = dev:buffer('i32', 256):fill(served)\n"
    "      assert(y:read(1, 1)[1] == served and x:read(256)[1] == number)\n"
    "    end)\n"
    "    if ok then\n"
    "      served = served + 1\n"
    "      if not is_counted then begin() is_counted = true end\n"
    "    else\n"
    "      assert(err.code == 'DeviceLost' or err.code == 'Stale' or err.code == "
    "'DependencyFailed',\n"
    "        tostring(err))\n"
    "      dev:await()\n"
    "    end\n"
    "    if number == 0 and served % 20 == 19 and have_begun() then\n"
    "      served = served + 1\n"
    "      os.execute('kill -9 ' .. (dev.pid or 0))\n"
    "    end\n"
    "  end\n"
    "  dev:await()\n"
    "  gpu.sleep(0.01)\n"
    "end)\n"
    "result = served > 0 and lost > 0 and restored > 0 and x:read(256)[1] == number and 1 or 0\n";

static void test_return(bool has_spare) {
    struct seat seats[THREADS];
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.isolation = isolation;
    config.restarts = 1000;
    config.spare = has_spare;
    gpulua_device *device = gpulua_device_open(&config);
    int good = 0;
    begun = 0;
    for (int i = 0; i < THREADS; i++) {
        seats[i] = (struct seat){.device = device, .script = through_losses, .number = i};
    }
    run_all(seats, run);
    for (int i = 0; i < THREADS; i++) {
        good += seats[i].result == 1 && seats[i].failures == 0;
        if (seats[i].failures > 0) {
            printf("# %s\n", seats[i].message);
        }
    }
    check(good == THREADS && gpulua_device_epoch(device) >= 6 && gpulua_device_epoch(NULL) == 0,
          has_spare ? "all scripts go on behind losses, with a spare"
                    : "all scripts go on behind losses of a device that comes up again");
    gpulua_device_close(device);
}

/* What a host injects comes to whichever object is there first. */
static void test_injection(void) {
    struct seat seat = {.device = open_device()};
    gpulua_config config;
    gpulua_config_init(&config);
    config.shared_device = seat.device;
    gpulua *g = gpulua_new(&config);
    check(gpulua_device_inject(seat.device, GPULUA_INJECT_OOM, 2) == GPULUA_OK &&
              gpulua_device_inject(seat.device, (gpulua_injection)7, 1) ==
                  GPULUA_INVALID_ARGUMENT &&
              gpulua_device_inject(NULL, GPULUA_INJECT_OOM, 1) == GPULUA_INVALID_ARGUMENT,
          "a failure is injected, one that there is not refused");
    run_chunk(
        g, "local dev = require 'gpulua'.device()\n"
           "local a = dev:buffer('i32', 4)\n"
           "local ok, err = pcall(dev.buffer, dev, 'i32', 4)\n"
           "a:fill(1):read()\n"
           "result = not ok and err.code == 'OutOfMemory' and dev:buffer('i32', 4) and 1 or 0\n");
    check(global_number(gpulua_state(g), "result") == 1, "the second buffer has no memory");
    gpulua_device_inject(seat.device, GPULUA_INJECT_FAULT, 1);
    gpulua_device_inject(seat.device, GPULUA_INJECT_FAULT, 0);
    run_chunk(g, "local dev = require 'gpulua'.device()\n"
                 "result = dev:buffer('i32', 4):fill(5):read(4, 4)[1]\n");
    check(global_number(gpulua_state(g), "result") == 5, "what is withdrawn does not come");
    gpulua_device_inject(seat.device, GPULUA_INJECT_LOST, 1);
    run_chunk(g, "local dev = require 'gpulua'.device()\n"
                 "local ok, err = pcall(function() dev:buffer('i32', 4):fill(5):read() end)\n"
                 "result = not ok and err.code == 'DeviceLost' and 1 or 0\n");
    check(global_number(gpulua_state(g), "result") == 1, "the device is lost");
    gpulua_close(g);
    gpulua_device_close(seat.device);
}

static void test_refusals(void) {
    gpulua_device_config config = {0};
    check(!gpulua_device_open(&config) && gpulua_last_error(NULL)->code == GPULUA_INVALID_ARGUMENT,
          "a configuration that was not set up");
    gpulua_device_config_init(&config);
    char kept[32] = "";
    const char *before = getenv("GPULUA_ISOLATE");
    snprintf(kept, sizeof kept, "%s", before ? before : "");
    setenv("GPULUA_ISOLATE", "teapot", 1);
    check(!gpulua_device_open(&config) &&
              gpulua_last_error(NULL)->code == GPULUA_INVALID_ARGUMENT &&
              strstr(gpulua_last_error(NULL)->message, "GPULUA_ISOLATE") != NULL,
          "an isolation that there is not");
    setenv("GPULUA_ISOLATE", kept, 1); /* empty counts as none */
    config.completion = (gpulua_completion)4;
    check(!gpulua_device_open(&config) &&
              strstr(gpulua_last_error(NULL)->message, "completion") != NULL,
          "a completion that there is not");
    config.completion = GPULUA_COMPLETION_DEFAULT;
    before = getenv("GPULUA_COMPLETION");
    snprintf(kept, sizeof kept, "%s", before ? before : "");
    setenv("GPULUA_COMPLETION", "teapot", 1);
    check(!gpulua_device_open(&config) &&
              strstr(gpulua_last_error(NULL)->message, "GPULUA_COMPLETION") != NULL,
          "nor by its variable");
    setenv("GPULUA_COMPLETION", kept, 1);
    config.device = "teapot";
    check(!gpulua_device_open(&config) &&
              strstr(gpulua_last_error(NULL)->message, "teapot") != NULL,
          "a device that there is not");
    gpulua_device_close(NULL);

    struct seat seat = {.device = open_device()};
    gpulua_config checked;
    gpulua_config_init(&checked);
    checked.shared_device = seat.device;
    checked.check = 1;
    gpulua *g = gpulua_new(&checked);
    run_chunk(g, "local gpu = require 'gpulua'\n"
                 "local ok, err = pcall(gpu.device)\n"
                 "result = not ok and err.code == 'Unsupported' and 1 or 0\n");
    check(global_number(gpulua_state(g), "result") == 1, "check mode does not share");
    gpulua_close(g);
    gpulua_device_close(seat.device);
}

/* Takes what others are woken by, if it is quicker. */
static void *steal(void *user) {
    atomic_bool *is_over = user;
    int fds[64];
    int count = 0;
    for (int fd = 3; fd < 256 && count < 64; fd++) {
        char path[32], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        bool is_event = readlink(path, target, sizeof target - 1) > 0 && strstr(target, "eventfd");
        if (is_event && (fcntl(fd, F_GETFL) & O_NONBLOCK)) {
            fds[count++] = fd;
        }
    }
    while (!atomic_load(is_over)) {
        uint64_t value;
        for (int i = 0; i < count; i++) {
            if (read(fds[i], &value, sizeof value) < 0) {
                /* Nothing there. */
            }
        }
    }
    return NULL;
}

/* Wake-ups that are lost make awaits late, but they come back. */
static void test_lost_wakes(void) {
    struct seat seat = {.device = open_device()};
    gpulua *g = open_object(&seat);
    check(g && run_chunk(g, opening), "an object whose wake-ups get lost");
    unsigned before = missed;
    bool is_right = true;
    for (int round = 0; round < 1000 && missed == before; round++) {
        atomic_bool is_over = false;
        pthread_t thief;
        if (pthread_create(&thief, NULL, steal, &is_over) != 0) {
            break;
        }
        is_right &= run_chunk(g, "slow:launch({ grid = 1, block = 1 }, 4, 7, x):await()\n"
                                 "result = x:read()[1]\n");
        atomic_store(&is_over, true);
        pthread_join(thief, NULL);
    }
    printf("# %u of them were\n", missed - before);
    check(is_right && global_number(gpulua_state(g), "result") == 7 && seat.failures == 0,
          "awaits come back though their wake-ups are lost");
    if (missed == before) {
        tap_skip(&tap, "a wake-up is lost", "nobody was quick enough to take one");
    }
    missed = before;
    gpulua_close(g);
    gpulua_device_close(seat.device);
}

int main(void) {
    static const gpulua_isolation isolations[] = {GPULUA_ISOLATE_NONE, GPULUA_ISOLATE_PROCESS,
                                                  GPULUA_ISOLATE_THREAD};
    for (int i = 0; i < 3; i++) {
        isolation = isolations[i];
        test_threads();
        test_two();
        test_waking();
        test_blocking(false);
        test_blocking(true);
        test_order();
        test_moving();
        test_failures();
        test_guard();
        test_coredump();
        test_closing();
        test_refusals();
        test_injection();
        test_reports();
        test_lost_wakes();
        for (completion = GPULUA_COMPLETION_EVENT; completion <= GPULUA_COMPLETION_BLOCK;
             completion++) {
            test_threads();
            test_waking();
            test_blocking(true);
        }
        completion = GPULUA_COMPLETION_DEFAULT;
    }
    isolation = GPULUA_ISOLATE_PROCESS; /* what is lost without us */
    test_loss();
    test_return(false);
    test_return(true);
    printf("# missed wake-ups: %u\n", missed);
    tap_check(&tap, missed == 0, "no wake-up was lost by itself");
    return tap_finish(&tap);
}
