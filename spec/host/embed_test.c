/* A host of its own: what gpulua.h promises. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "backend/tap.h"
#include "gpulua.h"

static struct tap tap;
#define CHECK(good) tap_check(&tap, good, #good)

/* What on_error was told. */
struct told {
    int count;
    gpulua_status code;
    char message[256], traceback[1024], source[64];
    int line;
};

static void note_error(void *user, const gpulua_error *error) {
    struct told *told = user;
    told->count++;
    told->code = error->code;
    told->line = error->line;
    snprintf(told->message, sizeof told->message, "%s", error->message);
    snprintf(told->traceback, sizeof told->traceback, "%s", error->traceback);
    snprintf(told->source, sizeof told->source, "%s", error->source);
}

static gpulua_config config_for(struct told *told) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = getenv("GPULUA_DEVICE") ? NULL : "cpu";
    config.on_error = note_error;
    config.user = told;
    memset(told, 0, sizeof *told);
    return config;
}

static gpulua_status start(gpulua *g, const char *text) {
    lua_State *L = gpulua_state(g);
    if (luaL_loadstring(L, text) != LUA_OK) {

        lua_pop(L, 1);
        return GPULUA_INVALID_DATA;
    }
    return gpulua_load_function(g, 0);
}

/* Steps until no task is left, polling as a host with a loop of its own does. */
static int run(gpulua *g) {
    while (gpulua_tasks(g) > 0) {
        struct pollfd wait = {.fd = gpulua_pollfd(g), .events = POLLIN};
        poll(&wait, 1, gpulua_timeout_ms(g));
        int left = gpulua_step(g, 0);
        if (left < 0) {
            return left;
        }
    }
    return 0;
}

static lua_Integer global_integer(gpulua *g, const char *name) {
    lua_State *L = gpulua_state(g);
    lua_getglobal(L, name);
    lua_Integer value = lua_tointeger(L, -1);
    lua_pop(L, 1);
    return value;
}

static int fd_count(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        count += lseek(fd, 0, SEEK_CUR) >= 0 || poll(&(struct pollfd){.fd = fd}, 1, 0) == 0;
    }
    return count;
}

/* ---- tests ---- */

/* As for lua: what a service makes for each request is mostly gone by the next young collection. */
static void test_collector(void) {
    gpulua *g = gpulua_new(NULL);
    CHECK(lua_gc(gpulua_state(g), LUA_GCINC, 0, 0, 0) == LUA_GCGEN);
    gpulua_close(g);
    gpulua_config config;
    gpulua_config_init(&config);
    config.run_limit_ms =
        100; /* a whole collection is one piece, and would count as the script's */
    g = gpulua_new(&config);
    CHECK(lua_gc(gpulua_state(g), LUA_GCGEN, 0, 0) == LUA_GCINC);
    gpulua_close(g);
    config.run_limit_ms = 0;
    config.sandbox = 1;
    g = gpulua_new(&config);
    CHECK(lua_gc(gpulua_state(g), LUA_GCGEN, 0, 0) == LUA_GCINC);
    gpulua_close(g);
    lua_State *L = luaL_newstate();
    g = gpulua_attach(L, NULL);
    CHECK(lua_gc(L, LUA_GCGEN, 0, 0) == LUA_GCINC); /* the host's is left alone */
    gpulua_close(g);
    lua_close(L);
}

static void test_config(void) {
    gpulua_config config;
    memset(&config, 0xff, sizeof config);
    gpulua_config_init(&config);
    CHECK(config.struct_bytes == sizeof config);
    CHECK(config.device == NULL && config.on_error == NULL && config.memory_limit_bytes == 0);
    CHECK(strcmp(gpulua_version(), "") != 0);
    config.struct_bytes = 1;
    CHECK(gpulua_new(&config) == NULL);
    CHECK(gpulua_last_error(NULL)->code == GPULUA_INVALID_ARGUMENT);
    CHECK(strstr(gpulua_last_error(NULL)->message, "gpulua_config_init") != NULL);
    gpulua_close(NULL);
}

static void test_tasks(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    gpulua *g = gpulua_new(&config);
    CHECK(g != NULL && gpulua_tasks(g) == 0);
    CHECK(gpulua_step(g, 0) == 0);
    CHECK(gpulua_timeout_ms(g) == -1);
    CHECK(start(g, "local gpu = require 'gpulua' x = 1 gpu.sleep(0.01) x = x + 1\n"
                   "gpu.spawn(function() gpu.sleep(0.005) x = x + 40 end)") == GPULUA_OK);
    CHECK(gpulua_tasks(g) == 1);
    CHECK(gpulua_timeout_ms(g) == 0);
    CHECK(global_integer(g, "x") == 0); /* loading does not run it */
    CHECK(gpulua_step(g, 0) == 1);
    CHECK(global_integer(g, "x") == 1);
    int timeout_ms = gpulua_timeout_ms(g);
    CHECK(timeout_ms >= 0 && timeout_ms <= 10);
    CHECK(run(g) == 0);
    CHECK(global_integer(g, "x") == 42);
    CHECK(told.count == 0);
    gpulua_close(g);
}

/* Of a script: its argument, a function, is started with an argument of its own. */
static int start_within(lua_State *L) {
    gpulua *g = lua_touserdata(L, lua_upvalueindex(1));
    lua_State *main_state = gpulua_state(g);
    int top = lua_gettop(main_state);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, 5);
    CHECK(gpulua_load_function(g, 1) ==
          GPULUA_INVALID_ARGUMENT); /* it is on the coroutine's stack */
    CHECK(strstr(gpulua_last_error(g)->message, "has fewer, 0 values") != NULL);
    CHECK(lua_gettop(main_state) == top);
    lua_xmove(L, main_state, 2);
    CHECK(gpulua_load_function(g, 1) == GPULUA_OK && lua_gettop(main_state) == top);
    return 0;
}

/* Also in a frame of the main thread that is not the loop's. */
static int start_in_frame(lua_State *L) {
    gpulua *g = lua_touserdata(L, lua_upvalueindex(1));
    lua_State *main_state = gpulua_state(g);
    if (L == main_state) {
        CHECK(gpulua_load_function(g, 0) == GPULUA_OK && lua_gettop(L) == 0);
    } else {
        lua_pushvalue(L, lua_upvalueindex(1));
        lua_pushcclosure(L, start_in_frame, 1);
        lua_pushvalue(L, 1);
        lua_xmove(L, main_state, 2);
        lua_call(main_state, 1, 0);
    }
    return 0;
}

static void test_arguments(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    luaL_loadstring(L, "sum = 0 for i = 1, select('#', ...) do sum = sum + select(i, ...) end");
    lua_pushinteger(L, 20);
    lua_pushinteger(L, 22);
    int top = lua_gettop(L);
    CHECK(gpulua_load_function(g, 2) == GPULUA_OK);
    CHECK(lua_gettop(L) == top - 3);
    CHECK(run(g) == 0);
    CHECK(global_integer(g, "sum") == 42);
    lua_pushinteger(L, 1);
    CHECK(gpulua_load_function(g, 0) == GPULUA_INVALID_ARGUMENT);
    CHECK(gpulua_last_error(g)->code == GPULUA_INVALID_ARGUMENT);
    CHECK(strstr(gpulua_last_error(g)->message, "got number") != NULL);
    CHECK(lua_gettop(L) == top - 3);
    lua_pushnil(L); /* a global that is not there */
    CHECK(gpulua_load_function(g, 0) == GPULUA_INVALID_ARGUMENT);
    CHECK(strstr(gpulua_last_error(g)->message, "got nil") != NULL);
    for (int count = 0; count < 3; count++) { /* what is on another stack is not on this one */
        lua_settop(L, count);
        CHECK(gpulua_load_function(g, count) == GPULUA_INVALID_ARGUMENT && lua_gettop(L) == 0);
        CHECK(strstr(gpulua_last_error(g)->message, "on the stack of gpulua_state") != NULL);
    }
    lua_settop(L, 2);
    CHECK(gpulua_load_function(g, -1) == GPULUA_INVALID_ARGUMENT && lua_gettop(L) == 2);
    lua_pushlightuserdata(L, g);
    lua_pushcclosure(L, start_within, 1);
    lua_setglobal(L, "within");
    lua_pushlightuserdata(L, g);
    lua_pushcclosure(L, start_in_frame, 1);
    lua_setglobal(L, "in_frame");
    luaL_loadstring(L, "within(function(x) five = x end) in_frame(function() done = 1 end)");
    CHECK(gpulua_load_function(g, 0) == GPULUA_OK && run(g) == 0 && told.count == 0);
    CHECK(global_integer(g, "five") == 5 && global_integer(g, "done") == 1);
    gpulua_close(g);
}

static void test_files(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    gpulua *g = gpulua_new(&config);
    char path[] = "/tmp/gpulua-embed-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fputs("loaded = 7\nlocal gpu = require 'gpulua'\ngpu.sleep(0.001)\nerror('in the file')\n",
          file);
    fclose(file);
    CHECK(gpulua_load_file(g, path) == GPULUA_OK);
    CHECK(run(g) == 0);
    CHECK(global_integer(g, "loaded") == 7);
    CHECK(told.count == 1 && strstr(told.message, ":4: in the file") != NULL);
    CHECK(strstr(told.traceback, "in main chunk") != NULL);
    CHECK(strstr(gpulua_last_error(g)->message, "in the file") != NULL);
    CHECK(gpulua_load_file(g, "/nowhere/at/all.lua") == GPULUA_IO);
    CHECK(strstr(gpulua_last_error(g)->message, "/nowhere/at/all.lua") != NULL);
    CHECK(truncate(path, 0) == 0);
    file = fopen(path, "w");
    fputs("x x\n", file);
    fclose(file);
    CHECK(gpulua_load_file(g, path) == GPULUA_INVALID_DATA);
    CHECK(strstr(gpulua_last_error(g)->message, "syntax error") != NULL);
    CHECK(gpulua_last_error(g)->hint[0] != '\0');
    CHECK(gpulua_tasks(g) == 0);
    unlink(path);
    gpulua_close(g);
}

static void test_errors(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    gpulua *g = gpulua_new(&config);
    start(g, "error({})");
    CHECK(run(g) == 0);
    CHECK(told.count == 1 && strcmp(told.message, "(error object is a table value)") == 0);
    start(g, "error(setmetatable({}, {__tostring = function() return 'as text' end}))");
    CHECK(run(g) == 0);
    CHECK(told.count == 2 && strcmp(told.message, "as text") == 0 && told.traceback[0] == '\0');
    start(g, "error(setmetatable({}, {__tostring = function() error('worse') end}))");
    CHECK(run(g) == 0);
    CHECK(told.count == 3 && told.message[0] != '\0');
    start(g, "\nrequire 'gpulua'.sleep(-1)");
    CHECK(run(g) == 0);
    CHECK(told.count == 4 && told.code == GPULUA_INVALID_ARGUMENT && told.line == 2);
    CHECK(strstr(told.message, "InvalidArgument") != NULL && told.source[0] != '\0');
    CHECK(strstr(told.message, "stack traceback:") == NULL); /* which has a place of its own */
    CHECK(strncmp(told.traceback, "stack traceback:", 16) == 0);
    /* Errors of Lua's own have their place in front of the message, and others may look so. */
    static const struct {
        const char *script, *source;
        int line;
    } places[] = {
        {"\n\nlocal x = nil + 1", "[string \"...\"]", 3},
        {"local function f()\nerror('10:30: late') end\nf()", "[string \"local function f()...\"]",
         2},
        {"local function f()\nerror('x', 2) end\nf()", "[string \"local function f()...\"]", 3},
        {"error('10:30: late', 0)", "", 0},
        {"error(':1:1:1', 0)", "", 0},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        start(g, places[i].script);
        CHECK(run(g) == 0 && told.line == places[i].line);
        tap_equal(&tap, told.source, places[i].source, "the place of an error");
    }
    told.count = 4;
    /* Detached, and never joined. */
    start(g, "require 'gpulua'.spawn(error, 'alone', 0):detach()");
    CHECK(run(g) == 0);
    CHECK(told.count == 5 && strcmp(told.message, "alone") == 0);
    gpulua_close(g);
    CHECK(told.count == 5);
}

static void test_close(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    int before = fd_count();
    for (int i = 0; i < 3; i++) {
        gpulua *g = gpulua_new(&config);
        start(g, "local gpu = require 'gpulua'\n"
                 "gpu.spawn(function() gpu.sleep(60) end)\n"
                 "gpu.device():buffer('f32', 1000):fill(1)\n"
                 "gpu.sleep(60)");
        gpulua_step(g, 0);
        gpulua_step(g, 0);
        CHECK(gpulua_tasks(g) == 2);
        gpulua_close(g);
    }
    CHECK(fd_count() == before);
    CHECK(told.count == 0);
}

/* Tasks that wait, one that has not begun, a detached one, and the one that calls. */
static int cancel_all(lua_State *L) {
    gpulua_cancel_all(lua_touserdata(L, lua_upvalueindex(1)));
    return 0;
}

static void test_cancel_all(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    gpulua *g = gpulua_new(&config);
    static const char waits[] = "local gpu = require 'gpulua'\n"
                                "ended = {}\n"
                                "local function wait(name)\n"
                                "  local c <close> = setmetatable({}, { __close = function() "
                                "ended[#ended + 1] = name end })\n"
                                "  gpu.sleep(60)\n"
                                "end\n"
                                "gpu.spawn(wait, 'child')\n"
                                "gpu.spawn(wait, 'detached'):detach()\n"
                                "local ok, err = pcall(wait, 'main')\n"
                                "caught = err.code\n"
                                "error(err)";
    start(g, waits);
    gpulua_step(g, 0);
    gpulua_step(g, 0);
    CHECK(gpulua_tasks(g) == 3);
    start(g, "begun = true");
    gpulua_cancel_all(g);
    CHECK(gpulua_timeout_ms(g) == 0);
    CHECK(run(g) == 0);
    CHECK(told.count == 0);
    lua_State *L = gpulua_state(g);
    CHECK(luaL_dostring(L, "table.sort(ended) return caught .. ' ' .. table.concat(ended, ' ') .. "
                           "tostring(begun)") == LUA_OK);
    tap_equal(&tap, lua_tostring(L, -1), "Cancelled child detached mainnil", "all have ended");
    lua_pop(L, 1);
    lua_pushlightuserdata(L, g);
    lua_pushcclosure(L, cancel_all, 1);
    lua_setglobal(L, "cancel_all");
    start(g, "cancel_all() went_on = true require 'gpulua'.sleep(60) slept = true");
    CHECK(run(g) == 0 && told.count == 0);
    CHECK(luaL_dostring(L, "return went_on and not slept") == LUA_OK && lua_toboolean(L, -1));
    lua_pop(L, 1);
    start(g, "again = 1");
    CHECK(run(g) == 0 && told.count == 0 && global_integer(g, "again") == 1);
    gpulua_close(g);
}

/* What came of calls, one behind the other. */
struct ends {
    gpulua *g;
    char text[1024];
    int calls_left; /* that the end of a call makes */
};

static gpulua_status call(struct ends *ends, const char *text);

static void note_end(void *user, lua_State *L, int result_count, const gpulua_error *error) {
    struct ends *ends = user;
    size_t used = strlen(ends->text);
    char *to = ends->text + used;
    size_t room = sizeof ends->text - used;
    if (error) {
        snprintf(to, room, "%s %s;", gpulua_status_name(error->code), error->message);
    } else {
        snprintf(to, room, "%d %s;", result_count,
                 result_count > 0 ? luaL_tolstring(L, -1, NULL) : "");
    }
    if (ends->calls_left-- > 0) {
        CHECK(call(ends, "return 'next'") == GPULUA_OK);
    }
}

static gpulua_status call(struct ends *ends, const char *text) {
    CHECK(luaL_loadstring(gpulua_state(ends->g), text) == LUA_OK);
    lua_pushinteger(gpulua_state(ends->g), 7);
    return gpulua_call(ends->g, 1, note_end, ends);
}

static void test_call(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    struct ends ends = {gpulua_new(&config), "", 0};
    static const struct {
        const char *script, *end;
    } calls[] = {
        {"local gpu = require 'gpulua' gpu.sleep(0.01) return 1, 2, ... + 1", "3 8;"},
        {"", "0 ;"},
        {"local gpu = require 'gpulua' gpu.spawn(function() gpu.sleep(0.01) a = 5 end) "
         "return gpu.device():upload('f32', { 3 }):read()[1]",
         "1 3.0;"},
        {"error({}, 0)", "InvalidData (error object is a table value);"},
        {"error('told', 0)", "InvalidData told;"},
        {"require 'gpulua'.spawn(error, 'of a child', 0)", "InvalidData of a child;"},
        {"require 'gpulua'.sleep(-1)", "InvalidArgument "},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        ends.text[0] = '\0';
        CHECK(call(&ends, calls[i].script) == GPULUA_OK && ends.text[0] == '\0');
        CHECK(run(ends.g) == 0);
        ends.text[strlen(calls[i].end)] = '\0';
        tap_equal(&tap, ends.text, calls[i].end, calls[i].script);
    }
    CHECK(global_integer(ends.g, "a") == 5);
    ends.text[0] = '\0';
    ends.calls_left = 2;
    CHECK(call(&ends, "return 'first'") == GPULUA_OK && run(ends.g) == 0);
    tap_equal(&tap, ends.text, "1 first;1 next;1 next;", "calls that the end of a call makes");
    ends.text[0] = '\0';
    ends.calls_left = 0;
    CHECK(call(&ends, "require 'gpulua'.sleep(60)") == GPULUA_OK && gpulua_step(ends.g, 0) == 1);
    CHECK(call(&ends, "never = 1") == GPULUA_OK);
    gpulua_cancel_all(ends.g);
    CHECK(run(ends.g) == 0 && strstr(ends.text, "Cancelled") == ends.text &&
          strstr(ends.text, ";Cancelled") != NULL);
    lua_pushinteger(gpulua_state(ends.g), 1);
    CHECK(gpulua_call(ends.g, 0, note_end, &ends) == GPULUA_INVALID_ARGUMENT);
    CHECK(gpulua_call(ends.g, 0, note_end, &ends) == GPULUA_INVALID_ARGUMENT); /* an empty stack */
    lua_pushinteger(gpulua_state(ends.g), 1);
    CHECK(gpulua_call(ends.g, 1, note_end, &ends) == GPULUA_INVALID_ARGUMENT &&
          lua_gettop(gpulua_state(ends.g)) == 0);
    lua_pushinteger(gpulua_state(ends.g), 1);
    CHECK(gpulua_call(ends.g, -1, note_end, &ends) == GPULUA_INVALID_ARGUMENT &&
          strstr(gpulua_last_error(ends.g)->message, "the stack has fewer") != NULL);
    lua_pop(gpulua_state(ends.g), 1);
    ends.text[0] = '\0';
    CHECK(call(&ends, "require 'gpulua'.sleep(60)") == GPULUA_OK && gpulua_step(ends.g, 0) == 1);
    CHECK(call(&ends, "return 1") == GPULUA_OK && ends.text[0] == '\0');
    gpulua_close(ends.g);
    CHECK(strstr(ends.text, "Cancelled") == ends.text && strstr(ends.text, ";Cancelled") != NULL);
    CHECK(told.count == 0);
    gpulua *other = gpulua_new(&config); /* the errors of others are told as ever */
    start(other, "error 'x'");
    CHECK(run(other) == 0 && told.count == 1);
    gpulua_close(other);
}

/* Work that never ends holds a close up for as long as the host says, and is told. */
static void test_close_timeout(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    config.device = "cpu";
    config.isolation = GPULUA_ISOLATE_PROCESS;
    config.close_timeout_ms = 100;
    gpulua *g = gpulua_new(&config);
    start(g, "local dev = require 'gpulua'.device()\n"
             "local x = dev:buffer('i32', 1):fill(0):await()\n"
             "dev:compile([[extern \"C\" __global__ void forever(volatile int *x) {"
             "  while (x[0] == 0) { } }]]).forever:launch(1, x)");
    CHECK(run(g) == 0);
    struct timespec begun, end;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    gpulua_close(g);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double took_s =
        (double)(end.tv_sec - begun.tv_sec) + (double)(end.tv_nsec - begun.tv_nsec) / 1e9;
    CHECK(took_s > 0.09 && took_s < 3);
    CHECK(told.count == 1 && told.code == GPULUA_TIMEOUT);
    CHECK(strstr(told.message, "'forever' had not ended 0.1 s after the script") != NULL);
}

/* Runs the script to its end; what was told of it, in `told`. */
static void run_with(gpulua_config *config, const char *script) {
    gpulua *g = gpulua_new(config);
    CHECK(g != NULL && start(g, script) == GPULUA_OK && run(g) == 0);
    gpulua_close(g);
}

static bool has_text(const char *path, const char *wanted) {
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = '\0';
    return file && fclose(file) == 0 && strstr(text, wanted) != NULL;
}

static void test_device_config(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    config.device_budget_bytes = 4u << 20;
    run_with(&config, "require 'gpulua'.device():buffer('u8', 5 << 20)");
    CHECK(told.count == 1 && told.code == GPULUA_OUT_OF_BUDGET);
    CHECK(strstr(told.message, "4194304") != NULL);

    config = config_for(&told);
    config.isolation = GPULUA_ISOLATE_PROCESS;
    run_with(&config, "assert(require 'gpulua'.device().isolation == 'process')");
    CHECK(told.count == 0);
    config.executor_path = "/nowhere/gpulua-exec";
    run_with(&config, "require 'gpulua'.device()");
    CHECK(told.count == 1 && told.code == GPULUA_IO);
    CHECK(strstr(told.message, "/nowhere/gpulua-exec") != NULL);

    for (int i = GPULUA_ISOLATE_NONE; i <= GPULUA_ISOLATE_THREAD; i++) {
        char folder[] = "/tmp/gpulua-embed-XXXXXX", command[128];
        CHECK(mkdtemp(folder) != NULL);
        config = config_for(&told);
        config.isolation = (gpulua_isolation)i;
        config.cache_path = folder;
        run_with(&config,
                 "require 'gpulua'.device():compile('__global__ void f(int *x) { x[0] = 1; }')");
        CHECK(told.count == 0);
        CHECK(rmdir(folder) != 0); /* something is in it */
        snprintf(command, sizeof command, "rm -r %s", folder);
        CHECK(system(command) == 0);
    }
    /* Whether a loss is told in the file that the host has named; its next one beside it. */
    char flight[] = "/tmp/gpulua-embed-XXXXXX", second[64];
    int file = mkstemp(flight);
    CHECK(file >= 0 && close(file) == 0);
    config = config_for(&told);
    config.isolation = GPULUA_ISOLATE_PROCESS;
    config.flight_path = flight;
    run_with(&config, "local dev = require 'gpulua'.device()\n"
                      "for _ = 1, 2 do\n"
                      "  dev:inject { fault = 1 }\n"
                      "  pcall(function() dev:buffer('u8', 8):fill(1):await() end)\n"
                      "  require 'gpulua'.sleep(0)\n"
                      "  dev:await()\n"
                      "end");
    CHECK(told.count == 0);
    snprintf(second, sizeof second, "%s.2", flight);
    CHECK(has_text(flight, "may have been running") && has_text(second, "\"fill\""));
    CHECK(unlink(flight) == 0 && unlink(second) == 0);

    config = config_for(&told);
    config.device = "abacus"; /* a copy is kept, not the pointer */
    char name[] = "cpu";
    config.device = name;
    gpulua *g = gpulua_new(&config);
    memset(name, 'x', 3);
    CHECK(start(g, "assert(require 'gpulua'.device().kind == 'cpu')") == GPULUA_OK && run(g) == 0);
    CHECK(told.count == 0);
    gpulua_close(g);
}

/* The descriptor is readable when work on the device has ended, so a host that only polls gets on.
 */
static void test_pollfd(const char *completion) {
    struct told told;
    char script[600];
    snprintf(script, sizeof script,
             "local gpu = require 'gpulua'\n"
             "local d = gpu.device(nil, { completion = '%s' })\n"
             "local f = d:compile([[__global__ void f(long long n, int *x) {\n"
             "  long long t = clock64(); while (clock64() - t < n) { } x[0] = 7; }]]).f\n"
             "local x = d:buffer('i32', 1)\n"
             "local n = d.kind == 'cpu' and 20000000 or 2000000\n"
             "for i = 1, 20 do f:launch(1, n, x):await() turns = i end\n"
             "y = x:read()[1]",
             completion);
    for (int i = GPULUA_ISOLATE_NONE; i <= GPULUA_ISOLATE_THREAD; i++) {
        gpulua_config config = config_for(&told);
        config.isolation = (gpulua_isolation)i;
        gpulua *g = gpulua_new(&config);
        start(g, script);
        bool is_woken = true;
        time_t begun = time(NULL);
        while (gpulua_tasks(g) > 0 && time(NULL) - begun < 60) {
            struct pollfd wait = {.fd = gpulua_pollfd(g), .events = POLLIN};
            int limit_ms = gpulua_timeout_ms(g);
            if ((limit_ms < 0 || limit_ms >= 999) && poll(&wait, 1, 20000) == 0) {
                is_woken = false;
                break;
            }
            gpulua_step(g, 0);
        }
        printf("# %s, isolation %d: %ld s, %d turns%s\n", completion, i, (long)(time(NULL) - begun),
               (int)global_integer(g, "turns"), is_woken ? "" : ", not woken");
        CHECK(gpulua_tasks(g) == 0 && told.count == 0);
        CHECK(global_integer(g, "turns") == 20 && global_integer(g, "y") == 7);
        gpulua_close(g);
    }
}

/* Descriptors wake a host's loop too, also when they are closed. */
static void test_descriptors(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    gpulua *g = gpulua_new(&config);
    start(g,
          "local gpu = require 'gpulua'\n"
          "local pipe, path = io.popen 'sleep 0.05; echo 7', os.tmpname()\n"
          "os.execute('rm ' .. path .. '; mkfifo ' .. path)\n"
          "local other = io.open(path, 'r+') os.remove(path)\n" /* where nothing ever comes */
          "local waits = gpu.spawn(gpu.readable, other)\n"
          "gpu.spawn(function() gpu.readable(pipe) y = tonumber(pipe:read()) other:close() end)\n"
          "closed = waits:join() and 0 or 1");
    int rounds = 0;
    bool is_woken = true;
    while (gpulua_tasks(g) > 0 && is_woken && rounds++ < 100) {
        struct pollfd wait = {.fd = gpulua_pollfd(g), .events = POLLIN};
        is_woken = gpulua_timeout_ms(g) == 0 || poll(&wait, 1, 20000) > 0;
        gpulua_step(g, 0);
    }
    CHECK(is_woken && rounds < 20 && gpulua_tasks(g) == 0 && told.count == 0);
    CHECK(global_integer(g, "y") == 7 && global_integer(g, "closed") == 1);
    gpulua_close(g);
}

/* Everything that goes wrong in a script is told, and nothing is printed; signals are the host's.
 */
static void test_manners(void) {
    static const char script[] = "local gpu = require 'gpulua'\n"
                                 "local d = gpu.device()\n"
                                 "pcall(d.compile, d, '__global__ void f( {')\n"
                                 "pcall(d.buffer, d, 'f31', 5)\n"
                                 "pcall(gpu.device, 'cuda:99')\n"
                                 "if d.kind == 'cpu' then\n"
                                 "  local k = d:compile('#include <assert.h>\\n__global__ void "
                                 "f(int *x) { assert(x[0]); }').f\n"
                                 "  k:launch(1, d:buffer('i32', 1):fill(0))\n"
                                 "end\n"
                                 "gpu.spawn(error, 'a task fails'):detach()\n"
                                 "gpu.spawn(function() error {} end):join()\n"
                                 "gpu.sleep(0.001)\n"
                                 "warn('quiet')\n"
                                 "error('main fails')";
    struct told told;
    char path[] = "/tmp/gpulua-embed-XXXXXX";
    int file = mkstemp(path), out = dup(1), err = dup(2);
    fflush(stdout);
    dup2(file, 1);
    dup2(file, 2);
    struct sigaction before[32], after;
    sigset_t mask_before, mask_after;
    bool same = true;
    for (int number = 1; number < 32; number++) {
        sigaction(number, NULL, &before[number]);
    }
    pthread_sigmask(SIG_BLOCK, NULL, &mask_before);
    for (int i = GPULUA_ISOLATE_NONE; i <= GPULUA_ISOLATE_THREAD; i++) {
        gpulua_config config = config_for(&told);
        config.isolation = (gpulua_isolation)i;
        gpulua *g = gpulua_new(&config);
        start(g, script);
        for (int turn = 0; turn < 2; turn++) { /* while it is up, and after its end */
            while (turn == 0 && gpulua_tasks(g) > 0) {
                gpulua_step(g, 10);
            }
            for (int number = 1; number < 32; number++) {
                sigaction(number, NULL, &after);
                same = same && after.sa_handler == before[number].sa_handler;
            }
            if (turn == 0) {
                gpulua_close(g);
            }
        }
    }
    pthread_sigmask(SIG_BLOCK, NULL, &mask_after);
    for (int number = 1; number < 32; number++) {
        same = same && sigismember(&mask_before, number) == sigismember(&mask_after, number);
    }
    fflush(stdout);
    fflush(stderr);
    off_t printed = lseek(file, 0, SEEK_END);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    close(file);
    unlink(path);
    CHECK(printed == 0);
    CHECK(same);
    CHECK(told.count >= 2); /* on_error was told instead */
}

static gpulua *current;
static int inner_step;
static int call_step(lua_State *L) {
    (void)L;
    inner_step = gpulua_step(current, 0);
    return 0;
}

static gpulua_status inner_close;
static int call_close(lua_State *L) {
    (void)L;
    gpulua_close(current);
    inner_close = gpulua_last_error(current)->code;
    return 0;
}

static gpulua_status close_in_end;

/* What is called has room on the stack, and cannot free what has called it. */
static void close_at_end(void *user, lua_State *L, int result_count, const gpulua_error *error) {
    int top = lua_gettop(L);
    (void)error;
    for (int i = 0; i < LUA_MINSTACK - 1; i++) {
        lua_pushinteger(L, result_count);
    }
    lua_settop(L, top);
    gpulua_close(current);
    close_in_end = gpulua_last_error(current)->code;
    ++*(int *)user;
}

static void test_reentrancy(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    current = gpulua_new(&config);
    lua_register(gpulua_state(current), "step", call_step);
    lua_register(gpulua_state(current), "close", call_close);
    start(current, "step()");
    CHECK(run(current) == 0);
    CHECK(inner_step == -GPULUA_STREAM_MISUSE);
    start(current, "close() close() went_on = true");
    CHECK(run(current) == 0);
    CHECK(inner_close == GPULUA_STREAM_MISUSE);
    lua_getglobal(gpulua_state(current), "went_on");
    CHECK(lua_toboolean(gpulua_state(current), -1));
    lua_settop(gpulua_state(current), 0);
    int ended = 0;
    CHECK(luaL_loadstring(gpulua_state(current), "local t = {} for i = 1, 100 do t[i] = i end "
                                                 "return table.unpack(t)") == LUA_OK);
    CHECK(gpulua_call(current, 0, close_at_end, &ended) == GPULUA_OK && run(current) == 0);
    CHECK(ended == 1);
    CHECK(luaL_loadstring(gpulua_state(current), "require 'gpulua'.sleep(60)") == LUA_OK);
    CHECK(gpulua_call(current, 0, close_at_end, &ended) == GPULUA_OK);
    CHECK(gpulua_step(current, 0) == 1);
    gpulua_close(current); /* which ends the call, whose end would close once more */
    CHECK(ended == 2 && close_in_end == GPULUA_STREAM_MISUSE);
}

/* ---- other threads ---- */

static void *wake_later(void *user) {
    usleep(20000);
    gpulua_wake(user);
    return NULL;
}

static void *interrupt_later(void *user) {
    usleep(20000);
    gpulua_interrupt(user);
    return NULL;
}

static void test_threads(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    gpulua *g = gpulua_new(&config);
    pthread_t thread;
    start(g, "require 'gpulua'.sleep(60)");
    gpulua_step(g, 0);
    pthread_create(&thread, NULL, wake_later, g);
    CHECK(gpulua_step(g, 30000) == 1); /* ends long before */
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, interrupt_later, g);
    CHECK(run(g) == 0); /* the sleep was ended */
    pthread_join(thread, NULL);
    CHECK(told.count == 1 && told.code == GPULUA_INTERRUPTED);
    start(g, "while true do end");
    pthread_create(&thread, NULL, interrupt_later, g);
    CHECK(run(g) == 0); /* the loop was ended */
    pthread_join(thread, NULL);
    CHECK(told.count == 2 && told.code == GPULUA_INTERRUPTED &&
          strstr(told.message, "Interrupted: interrupted!") != NULL);
    start(g, "after = 5");
    CHECK(run(g) == 0);
    CHECK(global_integer(g, "after") == 5);
    gpulua_close(g);
}

static void *whole_life(void *user) {
    struct told told;
    gpulua_config config = config_for(&told);
    lua_Integer *result = user;
    gpulua *g = gpulua_new(&config);
    if (g) {
        start(
            g,
            "local gpu = require 'gpulua'\n"
            "local d = gpu.device()\n"
            "x = d:upload('i32', 100, function(i) return i end):fill(3):read()[100]\n"
            "local t = {} for i = 1, 50 do t[i] = gpu.spawn(function() gpu.sleep(0.001) end) end\n"
            "gpu.all(t)");
        run(g);
        *result = told.count == 0 ? global_integer(g, "x") : -1;
        gpulua_close(g);
    }
    return NULL;
}

static void test_several(void) {
    pthread_t threads[3];
    lua_Integer results[3] = {0};
    for (int i = 0; i < 3; i++) {
        pthread_create(&threads[i], NULL, whole_life, &results[i]);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(results[0] == 3 && results[1] == 3 && results[2] == 3);
}

/* ---- memory ---- */

static void test_memory_limit(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    config.memory_limit_bytes = 4u << 20;
    gpulua *g = gpulua_new(&config);
    CHECK(g != NULL);
    start(g, "local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(1000) .. i end");
    CHECK(run(g) == 0);
    CHECK(told.count == 1 && strstr(told.message, "not enough memory") != NULL);
    start(g, "collectgarbage() ok = 1 for i = 1, 1e5 do local s = ('x'):rep(100) .. i end ok = 2");
    CHECK(run(g) == 0);
    CHECK(told.count == 1 && global_integer(g, "ok") == 2);
    gpulua_close(g);
    config.memory_limit_bytes = 1000;
    CHECK(gpulua_new(&config) == NULL);
    CHECK(gpulua_last_error(NULL)->code == GPULUA_OUT_OF_MEMORY);
}

/* An allocator that fails at the n-th call from when it is told to. */
struct failing {
    long left;
    bool has_failed;
};
static void *failing_alloc(void *user, void *block, size_t old_bytes, size_t new_bytes) {
    struct failing *failing = user;
    (void)old_bytes;
    if (new_bytes == 0) {
        free(block);
        return NULL;
    }
    if (failing->left > 0 && --failing->left == 0) {
        failing->has_failed = true;
        failing->left = 1; /* and from there on, until it is reset */
        return NULL;
    }
    return realloc(block, new_bytes);
}

static int prepare(lua_State *L) {
    lua_pushcfunction(L, luaopen_gpulua);
    lua_call(L, 0, 1);
    lua_setglobal(L, "gpu");
    return 0;
}

/* Whatever allocation fails, nothing crashes, every task ends, and the object works on. */
static void test_allocation_failures(void) {
    static const char script[] =
        "local t = {}\n"
        "for i = 1, 3 do t[i] = gpu.spawn(function(x) gpu.sleep(0) return x end, i) end\n"
        "pcall(gpu.all, t)\n"
        "pcall(gpu.any, t[1], t[2])\n"
        "gpu.spawn(function() error('e') end):join()\n"
        "pcall(gpu.timeout, 0, gpu.sleep, 1)\n"
        "local d = gpu.device('cpu')\n"
        "local b <close> = d:upload('f32', {1, 2, 3})\n"
        "local r = b:read()\n"
        "b:slice(1, 2):bytes()\n"
        "d:memory():buffers({'u8', 1}, {'u8', 1})\n";
    struct told told;
    long n = 0;
    bool went_through = false;
    int broken = 0;
    for (n = 1; n < 4000 && !went_through; n++) {
        struct failing failing = {0};
        lua_State *L = lua_newstate(failing_alloc, &failing);
        luaL_openlibs(L);
        gpulua_config config = config_for(&told);
        gpulua *g = gpulua_attach(L, &config);
        lua_pushcfunction(L, prepare);
        if (!g || lua_pcall(L, 0, 0, 0) != LUA_OK || start(g, "gpu.device('cpu')") || run(g)) {
            broken++;
        }
        failing.left = n;
        gpulua_status status = start(g, script);
        int left = status ? 0 : run(g);
        went_through = !failing.has_failed;
        failing.left = 0;
        start(g, "after = gpu.spawn(function() gpu.sleep(0) return 9 end):await()");
        if (left != 0 || run(g) != 0 || global_integer(g, "after") != 9) {
            printf("# broken when allocation %ld fails\n", n);
            broken++;
        }
        gpulua_close(g);
        lua_close(L);
    }
    CHECK(broken == 0);
    CHECK(went_through && n > 100);
}

/* ---- attaching ---- */

static int panic_count;
static int panic(lua_State *L) {
    (void)L;
    panic_count++;
    return 0;
}

static void test_attach(void) {
    struct told told;
    gpulua_config config = config_for(&told);
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    lua_atpanic(L, panic);
    void *user;
    lua_Alloc alloc = lua_getallocf(L, &user);
    *(void **)lua_getextraspace(L) = &told;
    config.memory_limit_bytes = 1 << 20; /* the allocator is the host's */
    CHECK(gpulua_attach(L, &config) == NULL);
    CHECK(strstr(gpulua_last_error(NULL)->message, "memory_limit_bytes are for gpulua_new") !=
          NULL);
    config.memory_limit_bytes = 0;
    gpulua *g = gpulua_attach(L, &config);
    CHECK(g != NULL && gpulua_state(g) == L);
    CHECK(gpulua_attach(L, NULL) == g);
    void *user_after;
    CHECK(lua_getallocf(L, &user_after) == alloc && user_after == user);
    CHECK(*(void **)lua_getextraspace(L) == &told);
    CHECK(lua_atpanic(L, panic) == panic);
    CHECK(lua_gettop(L) == 0);
    start(g,
          "gpu = require 'gpulua' v = gpu.spawn(function() gpu.sleep(0.001) return 5 end):await()");
    CHECK(run(g) == 0);
    CHECK(global_integer(g, "v") == 5);
    gpulua_close(g); /* the first of two attachments */
    start(g, "v = gpu.spawn(function() return 6 end):await()");
    CHECK(run(g) == 0);
    CHECK(global_integer(g, "v") == 6);
    gpulua_close(g);
    CHECK(luaL_dostring(L, "return pcall(gpu.spawn, print)") ==
          LUA_OK); /* the state is still open */
    CHECK(!lua_toboolean(L, -2));
    lua_settop(L, 0);
    g = gpulua_attach(L, &config);
    CHECK(g != NULL);
    start(g, "v = gpu.spawn(function() return 7 end):await()");
    CHECK(run(g) == 0);
    CHECK(global_integer(g, "v") == 7);
    lua_close(L); /* without gpulua_close */
    CHECK(told.count == 0 && panic_count == 0);
}

static void test_open(void) {
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    luaL_requiref(L, "gpulua", luaopen_gpulua, 0);
    lua_pushcfunction(L, luaopen_gpulua);
    lua_call(L, 0, 1); /* as a test runner that forgets what is loaded does */
    CHECK(lua_rawequal(L, -1, -2));
    lua_settop(L, 0);
    lua_pushcfunction(L, luaopen_gpulua_core);
    lua_call(L, 0, 1);
    lua_pushcfunction(L, luaopen_gpulua_core);
    lua_call(L, 0, 1);
    CHECK(lua_rawequal(L, -1, -2));
    lua_close(L);
}

int main(void) {
    test_config();
    test_collector();
    test_tasks();
    test_arguments();
    test_files();
    test_errors();
    test_close();
    test_cancel_all();
    test_call();
    test_close_timeout();
    test_device_config();
    test_pollfd("word");
    test_pollfd("event");
    test_pollfd("block");
    test_descriptors();
    test_manners();
    test_reentrancy();
    test_threads();
    test_several();
    test_memory_limit();
    test_attach();
    test_open();
    test_allocation_failures();
    return tap_finish(&tap);
}
