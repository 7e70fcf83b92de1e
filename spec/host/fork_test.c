/* A child by fork of a host that works: what it does with its parent's objects, ends or not, the
 * parent hears nothing of, and it comes to its end at once. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "binding/device.h"
#include "gpulua.h"
#include "runtime/state.h"
#include "told.h"

static struct tap tap;

#define PATIENCE_S 120 /* of a child that hangs, on slow machines, too */

/* Work in flight, a sleeper, a descriptor that is waited for, and memory of several kinds. The line
 * comes behind the end of the child, which might read it, had it time for that. */
static const char begin[] =
    "gpu = require 'gpulua'\n"
    "dev = gpu.device()\n"
    "x = dev:buffer('i32', 4):fill(1)\n"
    "large = dev:buffer('u8', 1 << 26)\n"
    "h = dev:host('i32', 4)\n"
    "add = dev:compile [[extern \"C\" __global__ void add(int *x) { x[threadIdx.x] += 1; }]].add\n"
    "graph = dev:capture(function() add:launch(4, x) end)\n"
    "x:await()\n"
    "lines = io.popen('cat /dev/fd/' .. gate .. '; sleep 0.3; echo line')\n"
    "waiter = gpu.spawn(function() heard = gpu.readable(lines, 120) and lines:read() end)\n"
    "sleeper = gpu.spawn(function() gpu.sleep(0.3) slept = true end)\n"
    "gpu.sleep(0)\n"
    "for i = 1, 100 do add:launch(4, x) end\n"
    "pending = graph:launch()\n"
    "function launch() graph:launch() end\n"
    "for i = 1, 8 do launch() end\n"; /* of the newest all but the number is owed */

/* GCC's AddressSanitizer does not hold its allocator's locks over a fork (LLVM's does, since pull
 * request 75290): with one that a thread of the device has right then, as it begins or frees, the
 * child would wait for ever. There it forks at rest: when all other threads sleep. */
#ifdef __SANITIZE_ADDRESS__
static const bool forks_at_rest = true;
#else
static const bool forks_at_rest = false;
#endif

static bool others_sleep(void) {
    bool do_sleep = true;
    DIR *folder = opendir("/proc/self/task");
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], state = 'S';
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
        FILE *file =
            atoi(entry->d_name) > 0 && atoi(entry->d_name) != getpid() ? fopen(path, "r") : NULL;
        if (file) {
            do_sleep &= fscanf(file, "%*d (%*[^)]) %c", &state) == 1 && state == 'S';
            fclose(file);
        }
    }
    if (folder) {
        closedir(folder);
    }
    return do_sleep;
}

static bool come_to_rest(lua_State *L) {
    bool is_well = luaL_dostring(L, "dev:synchronize()") == LUA_OK;
    while (!others_sleep()) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return is_well;
}

static const char go_on[] = "gpu.all(waiter, sleeper)\n"
                            "pending:await()\n"
                            "for i = 1, 100 do add:launch(4, x) end\n"
                            "dev:buffer('u8', 1 << 26):fill(1):close()\n"
                            "h:copy(x)\n"
                            "h:await()\n"
                            "assert(h[4] == 210 and heard == 'line' and slept)\n"
                            "assert(require 'gpulua.core'.missed_wakes() == 0)\n"
                            "is_well = true\n";

/* What wakes the parent is the parent's. */
static const char stop[] = "dev:close()\n"
                           "waiter:cancel()\n"
                           "waiter:join()\n";

/* With what the child has of its parent's. */
static const char misuse[] =
    "for _, f in ipairs { launch, function() x:fill(1) end, function() x:read() end,\n"
    "    function() add:launch(4, x) end, function() graph:launch() end,\n"
    "    function() dev:buffer('i32', 4) end, function() dev:synchronize() end } do\n"
    "  local ok, problem = pcall(f)\n"
    "  assert(not ok and problem.code == 'Closed', problem)\n"
    "  assert(tostring(problem):find('forked', 1, true), problem)\n"
    "end\n"
    "local function lost(f)\n"
    "  local ok, problem = gpu.spawn(f):join(60)\n"
    "  assert(not ok and tostring(problem):find('forked', 1, true), problem)\n"
    "end\n"
    "lost(function() pending:await() end) lost(function() gpu.all(pending) end)\n"
    "assert(not pcall(pending.await, pending))\n"
    "x:close() large:close() collectgarbage()\n";

static const char anew[] = "local gpu = require 'gpulua'\n"
                           "local dev = gpu.device()\n"
                           "assert(dev:buffer('i32', 4):fill(7):read()[4] == 7)\n";

static bool runs(gpulua *g, const char *script) {
    lua_State *L = gpulua_state(g);
    if (luaL_loadstring(L, script) != LUA_OK || gpulua_load_function(g, 0) != GPULUA_OK) {
        return false;
    }
    while (gpulua_step(g, -1) > 0) {}
    return true;
}

/* What the child does; its exit code. */
enum deed { ENDS, CLOSES, MISUSES, STOPS, MAKES };
static int child(gpulua *g, gpulua *other, enum deed deed, struct told *told) {
    alarm(PATIENCE_S);
    memset(told, 0, sizeof *told);
    if (deed == MISUSES && (luaL_dostring(gpulua_state(g), misuse) != LUA_OK)) {
        printf("# %s\n", lua_tostring(gpulua_state(g), -1));
        fflush(stdout);
        return 1;
    }
    if (deed == STOPS && luaL_dostring(gpulua_state(g), stop) != LUA_OK) {
        printf("# %s\n", lua_tostring(gpulua_state(g), -1));
        fflush(stdout);
        return 1;
    }
    if (deed != ENDS) {
        gpulua_close(other);
        gpulua_close(g);
    }
    if (deed == MAKES) {
        gpulua_config config;
        gpulua_config_init(&config);
        config.device = "cpu";
        config.isolation = GPULUA_ISOLATE_PROCESS;
        config.on_error = note_error;
        config.user = told;
        gpulua *own = gpulua_new(&config);
        bool is_well = own && runs(own, anew) && told->error_count == 0;
        gpulua_close(own);
        return is_well ? 0 : 2;
    }
    return 0;
}

/* What both kinds of children begin with; the device that is shared, or NULL. */
static gpulua_device *configure(gpulua_config *config, gpulua_isolation isolation, bool is_shared,
                                struct told *told) {
    memset(told, 0, sizeof *told);
    gpulua_config_init(config);
    config->device = "cpu";
    config->isolation = isolation;
    config->on_error = note_error;
    config->user = told;
    if (is_shared) {
        gpulua_device_config shared;
        gpulua_device_config_init(&shared);
        shared.device = "cpu";
        shared.isolation = isolation;
        config->shared_device = gpulua_device_open(&shared);
    }
    return config->shared_device;
}

static void forks(const char *what, gpulua_isolation isolation, bool is_shared, enum deed deed) {
    struct told told;
    char text[160];
    gpulua_config config;
    gpulua_device *device = configure(&config, isolation, is_shared, &told);
    config.run_limit_ms = is_shared ? 0 : 600000;
    gpulua *g = gpulua_new(&config), *other = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    int gate[2]; /* closed: the line may come */
    bool is_well = pipe(gate) == 0 && fcntl(gate[1], F_SETFD, FD_CLOEXEC) == 0;
    lua_pushinteger(L, gate[0]);
    lua_setglobal(L, "gate");
    is_well &= luaL_dostring(L, begin) == LUA_OK;
    if (!is_well) {
        printf("# %s\n", lua_tostring(L, -1));
    }
    (void)luaL_dostring(gpulua_state(other), "dev = require 'gpulua'.device()");
    if (forks_at_rest && isolation != GPULUA_ISOLATE_PROCESS) {
        is_well &= come_to_rest(L);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(child(g, other, deed, &told));
    }
    int status = -1;
    is_well &= waitpid(pid, &status, 0) == pid;
    close(gate[0]);
    close(gate[1]);
    snprintf(text, sizeof text, "%s: the child comes to a good end (%d, signal %d)", what,
             WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    tap_check(&tap, is_well && WIFEXITED(status) && WEXITSTATUS(status) == 0, text);
    is_well = runs(g, go_on) && told.error_count == 0;
    lua_getglobal(L, "is_well");
    is_well &= lua_toboolean(L, -1) != 0;
    if (!is_well) {
        printf("# %s\n", told.message);
    }
    snprintf(text, sizeof text, "%s: the parent goes on", what);
    tap_check(&tap, is_well, text);
    gpulua_close(other);
    gpulua_close(g);
    gpulua_device_close(device);
}

/* Tasks that wait for work when another thread is at work on the device, for longer than a fork
 * waits: in the child nobody tells them of its end. */
static const char wait_for_work[] =
    "gpu = require 'gpulua'\n"
    "dev = gpu.device()\n"
    "x = dev:buffer('i32', 4):fill(1)\n"
    "x:await()\n"
    "add = dev:compile [[extern \"C\" __global__ void add(int *x) { x[threadIdx.x] += 1; }]].add\n"
    "assert(os.execute('kill -STOP ' .. dev.pid))\n"
    "op = add:launch(4, x)\n"
    "waiters = { gpu.spawn(function() op:await() end), gpu.spawn(function() x:await() end),\n"
    "  gpu.spawn(function() gpu.all(op, gpu.spawn(gpu.sleep, 0)) end) }\n"
    "gpu.sleep(0)\n";
static const char end_waiting[] =
    "for i, waiter in ipairs(waiters) do\n"
    "  local ok, problem = waiter:join(20)\n"
    "  assert(not ok and tostring(problem):find('forked', 1, true), i .. tostring(problem))\n"
    "end\n";

static atomic_bool is_held, may_let_go;

static void *hold(void *share) {
    gpu_share_lock(share);
    is_held = true;
    while (!may_let_go) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    gpu_share_unlock(share);
    return NULL;
}

static void forks_torn(void) {
    struct told told;
    gpulua_config config;
    gpulua_device *device = configure(&config, GPULUA_ISOLATE_PROCESS, true, &told);
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    pthread_t holder;
    int status = -1;
    bool is_well = luaL_dostring(L, wait_for_work) == LUA_OK &&
                   pthread_create(&holder, NULL, hold, device->device->share) == 0;
    if (!is_well) {
        printf("# %s\n", lua_tostring(L, -1));
        exit(1);
    }
    while (!is_held) {}
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(PATIENCE_S);
        is_well = luaL_dostring(L, end_waiting) == LUA_OK;
        if (!is_well) {
            printf("# %s\n", lua_tostring(L, -1));
            fflush(stdout);
        }
        syscall(SYS_exit_group, is_well ? 0 : 1); /* a sanitizer would miss the holder's end */
    }
    is_well = waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    tap_check(&tap, is_well,
              "in a child that finds its device half changed tasks that wait for it end");
    may_let_go = true;
    pthread_join(holder, NULL);
    is_well = luaL_dostring(L, "assert(os.execute('kill -CONT ' .. dev.pid))\n"
                               "for _, waiter in ipairs(waiters) do waiter:await() end\n"
                               "assert(x:read()[4] == 2)") == LUA_OK;
    tap_check(&tap, is_well && told.error_count == 0, "in the parent they go on");
    gpulua_close(g);
    gpulua_device_close(device);
}

/* A device that is lost, and cannot come up again while its program is not there. */
static const char lose[] = "gpu = require 'gpulua'\n"
                           "dev = gpu.device { window = 1e6 }\n"
                           "dev:buffer('i32', 4):fill(1):await()\n"
                           "assert(os.remove(program))\n"
                           "assert(os.execute('kill -KILL ' .. dev.pid))\n"
                           "while dev:stats().losses == 0 do gpu.sleep(0.001) end\n"
                           "waiter = gpu.spawn(function() dev:await() is_well = true end)\n"
                           "gpu.sleep(0)\n";
static const char await_lost[] =
    "local ok, problem = waiter:join()\n"
    "assert(not ok and tostring(problem):find('forked', 1, true), problem)\n";

static void forks_lost(void) {
    struct told told;
    gpulua_config config;
    char folder[] = "/tmp/gpulua-fork-XXXXXX", program[64];
    const char *executor = getenv("GPULUA_EXECUTOR");
    if (!executor || !mkdtemp(folder)) {
        tap_check(&tap, false, "a folder for a program, which GPULUA_EXECUTOR names");
        return;
    }
    snprintf(program, sizeof program, "%s/gpulua-exec", folder);
    bool is_well = symlink(executor, program) == 0;
    (void)configure(&config, GPULUA_ISOLATE_PROCESS, false, &told);
    config.executor_path = program;
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    lua_pushstring(L, program);
    lua_setglobal(L, "program");
    is_well &= luaL_dostring(L, lose) == LUA_OK;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(PATIENCE_S);
        is_well = is_well && luaL_dostring(L, await_lost) == LUA_OK;
        if (!is_well) {
            printf("# %s\n", lua_tostring(L, -1));
            fflush(stdout);
        }
        gpulua_close(g);
        _exit(is_well ? 0 : 1);
    }
    int status = -1;
    is_well &= waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    tap_check(&tap, is_well, "a child of one whose device is lost does not wait for its return");
    is_well = symlink(executor, program) == 0 && luaL_dostring(L, "waiter:join()") == LUA_OK;
    lua_getglobal(L, "is_well");
    tap_check(&tap, is_well && lua_toboolean(L, -1), "the parent does, and it comes");
    gpulua_close(g);
    unlink(program);
    rmdir(folder);
}

/* In a child: a host without standard descriptors, and what lies in their places then, in whatever
 * it does. */
static int without_standard(gpulua_isolation isolation, bool is_shared) {
    struct told told;
    static const char all[] =
        "local gpu = require 'gpulua'\n"
        "local dev = gpu.device()\n"
        "local say = dev:compile [[extern \"C\" __global__ void say(int *x) {\n"
        "  x[0] = 3; printf(\"%d\\n\", x[0]); }]].say\n"
        "local x, ends = dev:buffer('i32', 1):fill(1), io.popen('sleep 0.1; echo 1')\n"
        "local waiter = gpu.spawn(function() gpu.readable(ends) end)\n"
        "say:launch({ grid = 1, block = 1 }, x)\n"
        "waiter:await()\n"
        "is_well = x:read()[1] == 3\n";
    gpulua_config config;
    close(0);
    close(1);
    close(2);
    gpulua_device *device = configure(&config, isolation, is_shared, &told);
    gpulua *g = gpulua_new(&config);
    bool is_well = g != NULL && runs(g, all) && told.error_count == 0;
    if (is_well) {
        lua_getglobal(gpulua_state(g), "is_well");
        is_well = lua_toboolean(gpulua_state(g), -1) != 0;
    }
    int taken = 0;
    for (int fd = 0; fd <= 2; fd++) {
        struct stat file;
        taken += fstat(fd, &file) == 0 && !S_ISFIFO(file.st_mode); /* popen's is the script's */
    }
    gpulua_close(g);
    gpulua_device_close(device);
    return !is_well ? 10 : taken;
}

static void standard(const char *what, gpulua_isolation isolation, bool is_shared) {
    char text[160];
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(without_standard(isolation, is_shared));
    }
    int status = -1;
    bool is_well = waitpid(pid, &status, 0) == pid && WIFEXITED(status);
    snprintf(text, sizeof text, "%s: nothing of ours is where standard descriptors were (%d)", what,
             is_well ? WEXITSTATUS(status) : -1);
    tap_check(&tap, is_well && WEXITSTATUS(status) == 0, text);
}

int main(void) {
    standard("a device on the script's thread", GPULUA_ISOLATE_NONE, false);
    standard("one with a thread", GPULUA_ISOLATE_THREAD, false);
    standard("one in a process", GPULUA_ISOLATE_PROCESS, false);
    standard("a shared one", GPULUA_ISOLATE_PROCESS, true);
    forks("a child that ends", GPULUA_ISOLATE_PROCESS, false, ENDS);
    forks("one that closes its parent's objects, whose device is a process", GPULUA_ISOLATE_PROCESS,
          false, CLOSES);
    forks("one that closes them, on the script's thread", GPULUA_ISOLATE_NONE, false, CLOSES);
    forks("one that closes them, with a thread for the device", GPULUA_ISOLATE_THREAD, false,
          CLOSES);
    forks("one that closes them, with a shared device", GPULUA_ISOLATE_PROCESS, true, CLOSES);
    forks("one that uses them", GPULUA_ISOLATE_PROCESS, false, MISUSES);
    forks("one that uses a shared one", GPULUA_ISOLATE_PROCESS, true, MISUSES);
    forks("one that closes the device", GPULUA_ISOLATE_PROCESS, false, STOPS);
    forks("one that closes a shared one", GPULUA_ISOLATE_PROCESS, true, STOPS);
    forks("one that closes it on a thread", GPULUA_ISOLATE_THREAD, false, STOPS);
    forks("one that makes its own", GPULUA_ISOLATE_PROCESS, false, MAKES);
    forks_torn();
    forks_lost();
    return tap_finish(&tap);
}
