/* 1,000 objects made and closed with work in flight leave nothing: no memory, no descriptor, no
 * mapping, no thread, no process. */
#include <dirent.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/exchange.h"

/* Of all rounds one in so many: with sanitizers they take longer, and with that of threads each
 * process sleeps for a second when it ends. */
#if defined(__SANITIZE_THREAD__)
#define ONE_IN 50
#elif defined(__SANITIZE_ADDRESS__)
#define ONE_IN 5
#else
#define ONE_IN 1
#endif

/* Tasks that wait, work behind work, a graph; ended is none of it when the host closes. */
static const char work[] =
    "local x = dev:buffer('f32', 1024):fill(0)\n"
    "local h = dev:host('f32', 1024)\n"
    "local graph = dev:capture(function() mod.add:launch(one, x, 1024) end)\n"
    "local stream = dev:stream {}\n"
    "for i = 1, 3 do gpu.spawn(function() mod.add:launch(one, x, 1024):await() gpu.sleep(9) end) "
    "end\n"
    "mod.spin:launch({ grid = 1, block = 1, stream = stream }, x, 1, ticks)\n"
    "graph:launch() h:copy(x)\n"
    "in_flight = dev:stats().ops_in_flight\n"
    "gpu.all(x, h)\n";

/* What a process has. */
struct belongings {
    size_t heap_bytes;
    int fds, threads, mappings;
};

static int entries_of(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        closedir(folder);
    }
    return count;
}

static struct belongings belongings(void) {
    struct belongings found = {.heap_bytes = mallinfo2().uordblks};
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; maps && (c = getc(maps)) != EOF;) {
        found.mappings += c == '\n';
    }
    if (maps) {
        fclose(maps);
    }
    found.fds = entries_of("/proc/self/fd");
    /* One that was joined may be in the list for a moment. */
    for (int i = 0; i < 100 && (found.threads = entries_of("/proc/self/task")) > 3; i++) {
        usleep(1000);
    }
    return found;
}

/* The ways to have an object. */
enum way { OWN, ATTACHED, SHARED };

static int busy_count; /* rounds that were closed with work in flight */

static bool round_of(enum way way, gpulua_isolation isolation, int number) {
    gpulua_config config;
    gpulua_device_config device_config;
    lua_State *L = NULL;
    gpulua_buffer *buffer = NULL;
    gpulua_recorder *recorder = NULL;
    gpulua_config_init(&config);
    config.device = "cpu";
    config.isolation = isolation;
    if (way == SHARED) {
        gpulua_device_config_init(&device_config);
        device_config.device = "cpu";
        device_config.isolation = isolation;
        config.shared_device = gpulua_device_open(&device_config);
    } else if (way == ATTACHED) {
        L = luaL_newstate();
        luaL_openlibs(L);
    }
    gpulua *g = L ? gpulua_attach(L, &config) : gpulua_new(&config);
    bool good = g && run(g, prelude) && luaL_loadstring(gpulua_state(g), work) == LUA_OK;
    if (good) {
        lua_pushinteger(gpulua_state(g), 3000000);
        lua_setglobal(gpulua_state(g), "ticks");
        good = gpulua_load_function(g, 0) == GPULUA_OK;
        while (lua_getglobal(gpulua_state(g), "in_flight") == LUA_TNIL && gpulua_step(g, 0) > 0) {
            lua_pop(gpulua_state(g), 1);
        }
        good = good && gpulua_tasks(g) > 0;
        busy_count += lua_tointeger(gpulua_state(g), -1) > 0;
        good = good && gpulua_recorder_new(gpulua_state(g), NULL, &recorder) == GPULUA_OK;
        lua_getglobal(gpulua_state(g), "mod");
        good = good && gpulua_to_buffer(gpulua_state(g), -1, &buffer) == GPULUA_INVALID_ARGUMENT;
    }
    if (number % 8 == 1) {
        gpulua_interrupt(g);
    }
    if (number % 2) {
        gpulua_recorder_release(recorder);
    }
    gpulua_close(g);
    if (number % 2 == 0) {
        gpulua_recorder_release(recorder);
    }
    if (L) {
        lua_close(L);
    }
    gpulua_device_close(config.shared_device);
    return good;
}

static void test_rounds(const char *name, enum way way, gpulua_isolation isolation, int rounds) {
    rounds /= ONE_IN;
    struct belongings before = {0}, after;
    int good = 0;
    busy_count = 0;
    char what[96];
    for (int i = 0; i < rounds; i++) {
        if (i == rounds / 5) { /* by then everything has been made that is made once */
            before = belongings();
        }
        good += round_of(way, isolation, i);
    }
    after = belongings();
    for (int i = 0; i < 5000 && after.threads > before.threads; i++) {
        usleep(1000);
        after = belongings();
    }
    bool has_child = waitpid(-1, NULL, WNOHANG) != -1;
    printf("# %s: heap %zu to %zu, descriptors %d to %d, threads %d to %d, mappings %d to %d\n",
           name, before.heap_bytes, after.heap_bytes, before.fds, after.fds, before.threads,
           after.threads, before.mappings, after.mappings);
    snprintf(what, sizeof what, "%s: %d rounds with work in flight", name, rounds);
    /* The system may take this thread's processor for as long as the work takes. */
    tap_check(&tap, good == rounds && busy_count >= rounds - rounds / 10 - 1, what);
    snprintf(what, sizeof what, "%s: leave no descriptor, thread, or process", name);
    tap_check(&tap, after.fds == before.fds && after.threads <= before.threads && !has_child, what);
    snprintf(what, sizeof what, "%s: leave no memory", name);
    if (ONE_IN > 1) {
        tap_skip(&tap, what, "the sanitizer looks for leaks, and has memory of its own");
        return;
    }
    /* A leak of 100 bytes a round would be seen, and one mapping in ten. */
    tap_check(&tap,
              after.heap_bytes <= before.heap_bytes + (size_t)rounds * 80 &&
                  after.mappings <= before.mappings + rounds / 12,
              what);
}

int main(void) {
    for (int i = 0; i < 9; i++) { /* what is made once */
        round_of((enum way)(i % 3), (gpulua_isolation)(1 + i / 3 % 3), i);
    }
    test_rounds("none", OWN, GPULUA_ISOLATE_NONE, 250);
    test_rounds("none, attached", ATTACHED, GPULUA_ISOLATE_NONE, 150);
    test_rounds("none, shared", SHARED, GPULUA_ISOLATE_NONE, 100);
    test_rounds("thread", OWN, GPULUA_ISOLATE_THREAD, 150);
    test_rounds("thread, shared", SHARED, GPULUA_ISOLATE_THREAD, 50);
    test_rounds("process", OWN, GPULUA_ISOLATE_PROCESS, 150);
    test_rounds("process, attached", ATTACHED, GPULUA_ISOLATE_PROCESS, 100);
    test_rounds("process, shared", SHARED, GPULUA_ISOLATE_PROCESS, 50);
    return tap_finish(&tap);
}
