/* Launches of one to four threads, each with an object of its own: on devices of their own, and on
 * one that they share. Launches a second of all of them together, median of the rounds, in turn.
 *
 *     build/bench/shared [DEVICE [ISOLATION]]
 *     GPULUA_EXECUTOR names the executor if it is not found */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "gpulua.h"
#include "measure.h"

#define THREADS_MAX 4
#define ROUNDS 7
#define LAUNCHES 5000

static const char *device_name = "cpu";
static gpulua_isolation isolation = GPULUA_ISOLATE_PROCESS;
static pthread_barrier_t barrier;

static const char opening[] =
    "local gpu = require 'gpulua'\n"
    "local dev = gpu.device()\n"
    "local saxpy = dev:compile([[\n"
    "extern \"C\" __global__ void saxpy(int n, float a, const float *x, float *y) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = a * x[i] + y[i]; "
    "}]]).saxpy\n"
    "local x, y = dev:buffer('f32', 1024):fill(1), dev:buffer('f32', 1024):fill(2)\n"
    "function launches(count)\n"
    "  for _ = 1, count do saxpy:launch(1024, 1024, 2.0, x, y) end\n"
    "  dev:synchronize()\n"
    "end\n"
    "launches(1000)\n";

struct worker {
    gpulua_device *device; /* NULL: one of its own */
    pthread_t thread;
};

static void fail(const char *what) {
    fprintf(stderr, "shared: %s\n", what);
    exit(1);
}

static void run(gpulua *g, const char *chunk) {
    if (luaL_loadstring(gpulua_state(g), chunk) != LUA_OK || gpulua_load_function(g, 0)) {
        fail("a script does not start");
    }
    while (gpulua_step(g, -1) > 0) {}
}

static void on_error(void *user, const gpulua_error *error) {
    (void)user;
    fail(error->message);
}

static void *work(void *user) {
    struct worker *worker = user;
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = device_name;
    config.isolation = isolation;
    config.shared_device = worker->device;
    config.on_error = on_error;
    gpulua *g = gpulua_new(&config);
    if (!g) {
        fail(gpulua_last_error(NULL)->message);
    }
    char chunk[64];
    snprintf(chunk, sizeof chunk, "launches(%d)", LAUNCHES);
    run(g, opening);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        run(g, chunk);
        pthread_barrier_wait(&barrier);
    }
    gpulua_close(g);
    return NULL;
}

/* Launches a second. */
static double measure(unsigned threads, bool is_shared) {
    struct worker workers[THREADS_MAX];
    double rates[ROUNDS];
    gpulua_device *device = NULL;
    if (is_shared) {
        gpulua_device_config config;
        gpulua_device_config_init(&config);
        config.device = device_name;
        config.isolation = isolation;
        device = gpulua_device_open(&config);
        if (!device) {
            fail(gpulua_last_error(NULL)->message);
        }
    }
    pthread_barrier_init(&barrier, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++) {
        workers[i].device = device;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            fail("no thread");
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        double start_ns = now_ns();
        pthread_barrier_wait(&barrier);
        rates[round] = threads * LAUNCHES / ((now_ns() - start_ns) / 1e9);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    pthread_barrier_destroy(&barrier);
    gpulua_device_close(device);
    qsort(rates, ROUNDS, sizeof *rates, by_value);
    return rates[ROUNDS / 2];
}

int main(int argc, char **argv) {
    device_name = argc > 1 ? argv[1] : device_name;
    if (argc > 2 && strcmp(argv[2], "none") == 0) {
        isolation = GPULUA_ISOLATE_NONE;
    }
    printf("launches a second, %s, isolation %s\n", device_name,
           isolation == GPULUA_ISOLATE_NONE ? "none" : "process");
    for (unsigned threads = 1; threads <= THREADS_MAX; threads *= 2) {
        double own = measure(threads, false), shared = measure(threads, true);
        printf("%u threads: own devices %.0f, one shared %.0f (%.2f)\n", threads, own, shared,
               shared / own);
    }
    return 0;
}
