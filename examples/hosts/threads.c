/* Four states in four threads on one device. All of them add to the same buffer; the device orders
 * what they do, so that no addition is lost. */
#include <gpulua.h>
#include <lauxlib.h>
#include <lua.h>
#include <pthread.h>
#include <stdio.h>

#define THREADS 4

static const char script[] =
    "local total, number = ...\n"
    "local dev = require 'gpulua'.device()\n"
    "local add = dev:compile[[\n"
    "  extern \"C\" __global__ void add(int k, int n, int *total) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) total[i] += k;\n"
    "  }]].add\n"
    "local op\n"
    "for _ = 1, 100 do op = add:launch(#total, number, #total, total) end\n"
    "op:await()\n";

struct worker {
    int number; /* from 1 */
    gpulua_device *device;
    gpulua_buffer *total; /* of the first object */
    int failures;
};

static void on_error(void *user, const gpulua_error *error) {
    struct worker *worker = user;
    worker->failures++;
    fprintf(stderr, "thread %d: %s\n", worker->number, error->message);
}

/* An object for each thread: nobody else calls it. */
static gpulua *open_object(struct worker *worker) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.shared_device = worker->device;
    config.on_error = on_error;
    config.user = worker;
    gpulua *g = gpulua_new(&config);
    if (!g) {
        on_error(worker, gpulua_last_error(NULL));
    }
    return g;
}

static void *work(void *user) {
    struct worker *worker = user;
    gpulua *g = open_object(worker);
    if (!g) {
        return NULL;
    }
    lua_State *L = gpulua_state(g);
    if (luaL_loadstring(L, script) == LUA_OK && gpulua_push_buffer(L, worker->total) == GPULUA_OK) {
        lua_pushinteger(L, worker->number);
        (void)gpulua_load_function(g, 2);
    } else {
        on_error(worker, gpulua_last_error(g));
    }
    while (gpulua_step(g, -1) > 0) {}
    gpulua_close(g);
    return NULL;
}

int main(void) {
    struct worker workers[THREADS] = {{0}}, first = {0};
    pthread_t threads[THREADS];
    gpulua_buffer_info info;
    first.device = gpulua_device_open(NULL); /* as GPULUA_DEVICE and GPULUA_ISOLATE say */
    if (!first.device) {
        on_error(&first, gpulua_last_error(NULL));
        return 1;
    }
    gpulua *g = open_object(&first);
    if (!g) {
        return 1;
    }
    lua_State *L = gpulua_state(g);
    gpulua_buffer_info_init(&info);
    info.type = "i32";
    info.dim_count = 1;
    info.shape[0] = 1000;
    info.label = "total";
    if (gpulua_buffer_new(L, 0, &info, &first.total) || gpulua_push_buffer(L, first.total)) {
        on_error(&first, gpulua_last_error(g));
        return 1;
    }
    lua_setglobal(L, "total");
    (void)luaL_dostring(L, "total:fill(0)");

    for (int i = 0; i < THREADS; i++) {
        workers[i] = first;
        workers[i].number = i + 1;
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        first.failures += workers[i].failures;
    }
    if (luaL_dostring(L, "local t = total:read() return t[1], t[1000]") == LUA_OK) {
        printf("%d threads, 100 additions each: %d %d\n", THREADS, (int)lua_tointeger(L, -2),
               (int)lua_tointeger(L, -1));
    } else {
        fprintf(stderr, "threads: %s\n", luaL_tolstring(L, -1, NULL));
        first.failures++;
    }
    gpulua_buffer_release(first.total);
    gpulua_close(g);
    gpulua_device_close(first.device);
    return first.failures > 0;
}
