/* executor/loop.c, binding/loop.c and backend/cuda/warm.c over fake_cuda.c: before the next round
 * of a script that pauses alike, or at the end of its sleep, the way of a launch is gone once; and
 * nowhere else. */
#include "wire/client.h"

#ifdef GPULUA_CUDA

#include <lauxlib.h>
#include <lua.h>

#include "backend/fake_driver.h"
#include "gpulua.h"

#define ROUNDS 40
#define PAUSE_US 4000u

static struct tap tap;

static struct client *open_fake(enum wire_transport transport, const char *options) {
    struct wire_error error = {.status = GPULUA_OK};
    client_options = options;
    struct client *client = client_create(transport, &error);
    if (client != NULL && client_open_device(client) != GPULUA_OK) {
        printf("# %s\n", client_text(client));
        client_destroy(client);
        client = NULL;
    }
    return client;
}

/* Rounds of a fill, which launches no kernel; how many were launched. The pauses are alike, or each
 * twice the one before, up to eight times. */
static int warmed_in(struct client *client, bool are_alike, unsigned pause_us) {
    int before = FAKE(volatile int, runs);
    for (int i = 0; i < ROUNDS; i++) {
        client_wait(client, 0, client_fill(client, 0, 0, 4, i));
        usleep(are_alike ? pause_us : pause_us << (i % 4) >> 1);
    }
    return FAKE(volatile int, runs) - before;
}

static int warmed_in_rounds(struct client *client, bool are_alike) {
    return warmed_in(client, are_alike, PAUSE_US);
}

/* On a busy machine few pauses are alike: more of those that are longer. */
static int warmed_at_last(struct client *client) {
    int warmed = 0;
    for (int tries = 0; tries < 20 && warmed < ROUNDS / 4; tries++) {
        warmed = warmed_in(client, true, PAUSE_US << tries / 5);
    }
    return warmed;
}

static void test_rounds(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, "backend cuda\n");
    tap_check(&tap, client != NULL, "opens");
    if (client == NULL) {
        return;
    }
    int irregular = ROUNDS; /* a busy machine makes some alike */
    for (int tries = 0; tries < 5 && irregular > ROUNDS / 4; tries++) {
        int now = warmed_in_rounds(client, false);
        irregular = now < irregular ? now : irregular;
    }
    int warmed = warmed_at_last(client);
    printf("# warmed up %d times in %d rounds, irregular ones %d\n", warmed, ROUNDS, irregular);
    tap_check(&tap, irregular <= ROUNDS / 4, "pauses that are not alike tell nothing");
    tap_check(&tap, warmed >= ROUNDS / 4, "it is warmed up before rounds");
    tap_check(&tap, warmed <= ROUNDS + 1, "once before each");
    usleep(50 * PAUSE_US); /* the next one was expected by then */
    int before = FAKE(volatile int, runs);
    usleep(100000);
    tap_check(&tap, FAKE(volatile int, runs) == before, "and not when there are no more rounds");
    client_close(client);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing of it");
}

/* To prepare for it may wait for the device, as long as something runs there, and the executor with
 * it: nobody would be told of what is over, nor get at the device, and a watchdog would bite. */
static void test_busy(void) {
    bool was_soon = false, was_idle = false;
    for (int tries = 0; tries < 20 && !(was_soon && was_idle); tries++) {
        FAKE(volatile int, pending) = 1;
        int begun = FAKE(volatile int, runs);
        struct client *client = open_fake(WIRE_TRANSPORT_THREAD, "backend cuda\n");
        if (client == NULL) {
            break;
        }
        if (tries % 2 != 0) {
            usleep(20 * PAUSE_US);
        }
        client_fill(client, 0, 0, 4, 0);
        usleep(PAUSE_US);
        int before = FAKE(volatile int, runs);
        was_soon |= before == begun;
        was_idle |= before == begun + 1;
        for (int i = 0; i < 2 * ROUNDS; i++) {
            client_fill(client, 0, 0, 4, i);
            usleep(PAUSE_US);
        }
        int runs = FAKE(volatile int, runs);
        FAKE(volatile int, pending) = 0;
        client_wait(client, 0, client_fill(client, 0, 0, 4, 0));
        if (before == begun && tap_check(&tap, runs == before, "nothing is prepared at work")) {
            tap_check(&tap, warmed_at_last(client) >= ROUNDS / 4, "later it is");
        }
        client_close(client);
        tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
    }
    tap_check(&tap, was_soon, "work may come before it is prepared");
    tap_check(&tap, was_idle, "it is prepared as soon as nothing runs");
}

/* What cannot be warmed up once is left alone, and works as before. */
static void test_refused(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, "backend cuda\n");
    if (client == NULL) {
        return;
    }
    fail_next("cuLaunchKernel", 1, 0);
    int warmed = 0;
    for (int tries = 0; tries < 20 && FAKE(int, fail_code) != 0; tries++) {
        warmed = warmed_in_rounds(client, true);
    }
    tap_check(&tap, FAKE(int, fail_code) == 0, "a driver that refuses was asked");
    warmed += warmed_in_rounds(client, true);
    tap_check(&tap, warmed == 0, "once");
    tap_check(&tap,
              client_wait(client, 0, client_fill(client, 0, 0, 4, 1)) && client->lost_count == 0,
              "and the device works on");
    client_close(client);
    FAKE(int, fail_code) = 0;
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
}

static void test_never(const char *what, enum wire_transport transport, const char *options) {
    struct client *client = open_fake(transport, options);
    int warmed = client != NULL ? warmed_in_rounds(client, true) : -1;
    tap_check(&tap, warmed == 0, what);
    if (client != NULL) {
        client_close(client);
    }
}

/* While a kernel leaves no room for one more block, no more are put behind it. */
static void test_no_room(void) {
    static _Alignas(4096) _Atomic uint64_t page[8];
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    page[1] = 77; /* of another life */
    ops->host_register(device, page, sizeof page, &error);
    int before = FAKE(volatile int, runs);
    ops->warm(device, &page[1]);
    tap_check(&tap, FAKE(volatile int, runs) == before + 1 && page[1] == 1,
              "it says when it is over");
    page[1] = 0;
    ops->warm(device, &page[1]);
    ops->warm(device, &page[1]);
    tap_check(&tap, FAKE(volatile int, runs) == before + 1, "until then there is no other one");
    page[1] = 1;
    ops->warm(device, &page[1]);
    tap_check(&tap, FAKE(volatile int, runs) == before + 2 && page[1] == 2, "then there is");
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
}

/* Where others have the context, too, preparing might wait for work of theirs. */
static void test_others(void) {
    static _Alignas(4096) _Atomic uint64_t page[8];
    struct backend_error error = {0};
    struct backend_device *other = open_device(), *device = open_device();
    ops->host_register(device, page, sizeof page, &error);
    int before = FAKE(volatile int, runs);
    bool works = ops->warm(device, &page[1]);
    tap_check(&tap, !works && FAKE(volatile int, runs) == before,
              "it is left alone where others have had the context before");
    ops->device_close(device);
    ops->device_close(other);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
}

/* Whatever the driver refuses on the way: no second try, and nothing lost or left. */
static void test_fails(const char *call) {
    static _Alignas(4096) _Atomic uint64_t page[8];
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    char what[120];
    ops->host_register(device, page, sizeof page, &error);
    fail_next(call, 1, 0);
    ops->warm(device, &page[1]);
    int code = FAKE(int, fail_code), after = FAKE(volatile int, runs);
    FAKE(int, fail_code) = 0;
    ops->warm(device, &page[1]);
    snprintf(what, sizeof what, "%s that fails was called, and nothing is tried again", call);
    tap_check(&tap, code == 0 && FAKE(volatile int, runs) == after, what);
    snprintf(what, sizeof what, "%s that fails: the device is well, closing leaves nothing", call);
    bool is_well = ops->device_status(device, &error) == GPULUA_OK;
    ops->device_close(device);
    tap_check(&tap, is_well && FAKE(long, live) == 0, what);
}

static void on_error(void *user, const gpulua_error *error) {
    (void)user;
    printf("# %s\n", error->message);
}

/* Did it come to its end? */
static bool run_script(const char *script, gpulua_isolation isolation) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cuda";
    config.isolation = isolation;
    config.on_error = on_error;
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    if (luaL_loadstring(L, script) != LUA_OK || gpulua_load_function(g, 0) != GPULUA_OK) {
        printf("# the script: %s\n", lua_tostring(L, -1));
    }
    while (gpulua_step(g, -1) > 0) {}
    lua_getglobal(L, "is_done");
    bool is_done = lua_toboolean(L, -1);
    gpulua_close(g);
    return is_done;
}

/* Under none the script's thread launches, and so it warms itself up, in the loop that sleeps for
 * it. */
static void test_sleeps(void) {
    static const char preface[] = "local gpu = require 'gpulua'\n"
                                  "local uv = require 'luv'\n"
                                  "local dev = gpu.device()\n"
                                  "local x = dev:buffer('i32', 4)\n"
                                  "local function rounds(count, seconds, works)\n"
                                  "  for i = 1, count do\n"
                                  "    if works then x:fill(i) x:await() end\n"
                                  "    local start = uv.hrtime()\n"
                                  "    gpu.sleep(seconds)\n"
                                  "    local took = (uv.hrtime() - start) / 1e9\n"
                                  "    if took < seconds then error 'it was too short' end\n"
                                  "  end\n"
                                  "end\n";
    static const struct {
        const char *what, *script;
        int least, most;
    } cases[] = {
        {"sleeps behind work", "rounds(10, 0.02, true)", 10, 10},
        {"sleeps with nothing between them", "rounds(1, 0.02, true) rounds(10, 0.02, false)", 1, 2},
        {"short sleeps", "rounds(10, 0.002, true)", 0, 0},
        {"a sleep while others wait",
         "local s = dev:stream {} rounds(3, 0.02, true)\n"
         "local t = gpu.spawn(function() gpu.sleep(0.07) end) rounds(2, 0.02, true) t:await()",
         5, 6},
        {"a traced device",
         "dev:close() dev = gpu.device('cuda', { trace = true })\n"
         "x = dev:buffer('i32', 4) rounds(5, 0.02, true)",
         0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char script[2048], what[160];
        snprintf(script, sizeof script, "%s%s\nis_done = true", preface, cases[i].script);
        bool is_done = true;
        int runs = -1;
        /* On a busy machine a sleep that begins late is a short one. */
        for (int tries = 0; tries < 5 && is_done && (runs < cases[i].least || runs > cases[i].most);
             tries++) {
            int before = FAKE(volatile int, runs);
            is_done = run_script(script, GPULUA_ISOLATE_NONE);
            runs = FAKE(volatile int, runs) - before;
        }
        snprintf(what, sizeof what, "a script's own thread, %s: %d to %d times, and %d were",
                 cases[i].what, cases[i].least, cases[i].most, runs);
        tap_check(&tap, is_done && runs >= cases[i].least && runs <= cases[i].most, what);
    }
}

int main(void) {
    static const char *const calls[] = {
        "cuModuleLoadDataEx", "cuEventCreate", "cuStreamCreateWithPriority",
        "cuLaunchKernel",     "cuEventRecord", "cuStreamWriteValue64_v2"};
    if (!build()) {
        tap_skip(&tap, "a driver without a GPU", "no C compiler");
        return tap_finish(&tap);
    }
    test_rounds();
    test_busy();
    test_refused();
    test_no_room();
    test_others();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        test_fails(calls[i]);
    }
    test_sleeps();
    test_never("inline nobody is awake to do it", WIRE_TRANSPORT_INLINE, "backend cuda\n");
    test_never("nor where the executor sleeps", WIRE_TRANSPORT_THREAD,
               "backend cuda\ncompletion block\n");
    test_never("nor is it shown in traces", WIRE_TRANSPORT_THREAD, "backend cuda\ntraced\n");
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    static struct tap tap;
    tap_skip(&tap, "warming up a driver without a GPU", "this build has no CUDA backend");
    return tap_finish(&tap);
}

#endif
