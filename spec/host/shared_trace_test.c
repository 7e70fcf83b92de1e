/* Traces of a device that several objects have: whose operations are whose, what each object sees
 * of the others', and reading while others give work. On the device that GPULUA_DEVICE names, under
 * all transports. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "gpulua.h"
#include "host/told.h"

#define THREADS 4

static struct tap tap;
static gpulua_isolation isolation;

static void check(bool condition, const char *name) {
    char text[200];
    snprintf(text, sizeof text, "%s: %s",
             isolation == GPULUA_ISOLATE_NONE     ? "none"
             : isolation == GPULUA_ISOLATE_THREAD ? "thread"
                                                  : "process",
             name);
    tap_check(&tap, condition, text);
}

static gpulua_device *open_device(uint32_t trace_ops_max, struct told *told) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.isolation = isolation;
    config.trace_ops_max = trace_ops_max;
    config.on_log = told ? note_line : NULL;
    config.user = told;
    gpulua_device *device = gpulua_device_open(&config);
    if (!device) {
        printf("# %s\n", gpulua_last_error(NULL)->message);
        exit(1);
    }
    return device;
}

/* What all scripts begin with. rows(): the operations of the newest log, but for marks. */
static const char prelude[] =
    "gpu = require 'gpulua'\n"
    "dev = gpu.device()\n"
    "mod = dev:compile [[\n"
    "  extern \"C\" __global__ void add(int n, int *y) { for (int i = 0; i < n; i++) y[i] += 1; }\n"
    "  extern \"C\" __global__ void spin(int n, int *y) {\n"
    "    long long start = clock64(); while (clock64() - start < 20000000) { }\n"
    "    for (int i = 0; i < n; i++) y[i] += 1; }]]\n"
    "add, spin = mod:kernel('add', 'i32, inout i32*'), mod:kernel('spin', 'i32, inout i32*')\n"
    "one = { grid = 1, block = 1 }\n"
    "function rows()\n"
    "  local log, list = #(gpu.trace.info() or ''), {}\n"
    "  for event in gpu.trace.events() do\n"
    "    if event.log == log and event.outcome and event.kind ~= 'mark' then\n"
    "      list[#list + 1] = event\n"
    "    end\n"
    "  end\n"
    "  return list\n"
    "end\n"
    "function labels()\n"
    "  local parts = {}\n"
    "  for i, row in ipairs(rows()) do parts[i] = row.label .. (row.seat or '') end\n"
    "  return table.concat(parts, ' ')\n"
    "end\n"
    "function give(label)\n"
    "  return add:launch({ grid = 1, block = 1, label = label }, 4, x)\n"
    "end\n"
    "function code_of(f, ...) local ok, err = pcall(f, ...) return not ok and err.code end\n";

/* Runs a chunk as a task to its end; false: an error came of it. */
static bool run(gpulua *g, struct told *told, const char *script) {
    lua_State *L = gpulua_state(g);
    told->error_count = 0;
    if (luaL_loadbuffer(L, script, strlen(script), "=script") != LUA_OK ||
        gpulua_load_function(g, 0)) {
        printf("# %s\n", lua_tostring(L, -1));
        return false;
    }
    while (gpulua_step(g, -1) > 0) {}
    if (told->error_count > 0) {
        printf("# %s\n", told->message);
    }
    return told->error_count == 0;
}

static void does(gpulua *g, struct told *told, const char *script, const char *name) {
    check(run(g, told, script), name);
}

static gpulua *open_object(gpulua_device *device, int trace, struct told *told) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.shared_device = device;
    config.trace = trace;
    config.on_error = note_error;
    config.on_log = note_line;
    config.user = told;
    memset(told, 0, sizeof *told);
    gpulua *g = gpulua_new(&config);
    if (!g || !run(g, told, prelude)) {
        printf("# %s\n", gpulua_last_error(g)->message);
        exit(1);
    }
    return g;
}

static gpulua_buffer *take(gpulua *g, const char *name) {
    gpulua_buffer *buffer = NULL;
    lua_getglobal(gpulua_state(g), name);
    (void)gpulua_to_buffer(gpulua_state(g), -1, &buffer);
    lua_pop(gpulua_state(g), 1);
    return buffer;
}

static void give(gpulua *g, gpulua_buffer *buffer, const char *name) {
    if (gpulua_push_buffer(gpulua_state(g), buffer) == GPULUA_OK) {
        lua_setglobal(gpulua_state(g), name);
    }
}

/* ---- whose is what ---- */

static void test_whose(void) {
    gpulua_device *device = open_device(100000, NULL);
    struct told of_a, of_b, of_c;
    gpulua *a = open_object(device, 1, &of_a), *b = open_object(device, 1, &of_b);
    gpulua *c = open_object(device, 0, &of_c);
    run(a, &of_a, "x = dev:buffer('i32', 4, { label = 'data' }):fill(0):await()\n");
    gpulua_buffer *x = take(a, "x");
    give(b, x, "x");
    give(c, x, "x");
    run(a, &of_a,
        "gpu.spawn(function()\n"
        "  mine = spin:launch({ grid = 1, block = 1, label = 'of a' }, 4, x)\n"
        "end):await()\n");
    does(b, &of_b,
         "local task = gpu.spawn(function()\n"
         "  x:await()\n"                                                         /* line 2 */
         "  add:launch({ grid = 1, block = 1, label = 'of b' }, 4, x):await()\n" /* line 3 */
         "end)\n"
         "task:await()\n"
         "local list, waited = rows(), nil\n"
         "local first, second = list[#list - 1], list[#list]\n"
         "assert(first.label == 'of a' and second.label == 'of b', labels())\n"
         "assert(first.seat == 1 and first.task == nil and first.kernel == 'spin')\n"
         "assert(first.where == 'script:2' and first.arguments[2].value == 'data')\n"
         "assert(second.seat == nil and second.task and second.where == 'script:3', second.where)\n"
         "assert(#first.waits == 0)\n"
         "for event in gpu.trace.events() do\n"
         "  if event.kind == 'wait' and event.where == 'script:2' then waited = event end\n"
         "end\n"
         "assert(waited.number == first.number and waited.log == first.log, waited.number)\n"
         "assert(waited.task == second.task)\n",
         "operations of others say whose they were, one's own which task; waits name both");
    does(a, &of_a,
         "local list = rows()\n"
         "local first, second = list[#list - 1], list[#list]\n"
         "assert(first.label == 'of a' and first.seat == nil and first.task)\n"
         "assert(second.label == 'of b' and second.seat == 2 and second.task == nil)\n"
         "assert(gpu.trace.info()[1].seat == 1)\n"
         "assert(first.outcome == 'succeeded' and first.over >= first.ended)\n"
         "assert(math.abs(mine:elapsed() - (first.ended - first.begun)) < 1e-9)\n"
         "assert(mine:elapsed() > 0.001)\n",
         "the other one sees the same the other way round, and op:elapsed() is there");
    run(a, &of_a,
        "stream = dev:stream()\n"
        "stream:use(function() spin:launch({ grid = 1, block = 1, label = 'long' }, 4, x) end)\n");
    does(b, &of_b,
         "dev:stream():use(function() give('behind') end) x:await()\n"
         "local list = rows()\n"
         "local first, second = list[#list - 1], list[#list]\n"
         "assert(first.label == 'long' and second.label == 'behind')\n"
         "assert(second.waits[1] == first.number, second.waits[1])\n"
         "assert(gpu.trace.reason(1, first.number, second.number) == \"RAW 'data'\")\n"
         "assert(second.begun >= first.ended)\n",
         "a fence between two objects' work is one in the trace, with its reason");
    does(c, &of_c,
         "local op = give('of c'):await()\n"
         "assert(code_of(gpu.report) == 'StreamMisuse')\n"
         "assert(code_of(gpu.trace.events) == 'StreamMisuse')\n"
         "assert(op:elapsed() > 0)\n",
         "who does not ask for traces has none, but for op:elapsed()");
    does(a, &of_a,
         "local list = rows()\n"
         "assert(list[#list].label == 'of c' and list[#list].seat == 3)\n"
         "local report = gpu.report().devices[1]\n"
         "local count, share = 0, 0\n"
         "for _, row in ipairs(report.kernels) do\n"
         "  assert(row.name ~= 'add')\n" /* nobody here */
         "  count, share = count + row.count, share + row.share\n"
         "end\n"
         "for _, row in ipairs(report.copies) do share = share + row.share end\n"
         "for _, row in ipairs(report.others) do share = share + row.share end\n"
         "assert(count == 3 and math.abs(share - 1) < 1e-6, count)\n"
         "table.sort(report.others, function(p, q) return p.seat < q.seat end)\n"
         "local two, three = report.others[1], report.others[2]\n"
         "assert(#report.others == 2 and two.seat == 2 and three.seat == 3)\n"
         "assert(two.total > 0 and three.total > 0)\n"
         "local text = tostring(gpu.report())\n"
         "assert(text:find('beside those of 2 others', 1, true) and text:find 'seat 3')\n",
         "a report adds up what is one's own, and for each of the others how much that took");
    gpulua_close(c);
    gpulua_close(b);
    does(a, &of_a, "assert(labels():find 'of a .*of b2 .*of c3', labels())\n",
         "of those who have gone their operations stay, with their labels");
    gpulua_buffer_release(x);
    gpulua_close(a);
    gpulua_device_close(device);
}

/* ---- from when, until when ---- */

static void test_leaving(void) {
    gpulua_device *device = open_device(100000, NULL);
    struct told of_a, of_b, of_c;
    gpulua *a = open_object(device, 1, &of_a), *b = open_object(device, 1, &of_b);
    run(a, &of_a, "x = dev:buffer('i32', 4) x:fill(0) give('first'):await()\n");
    run(b, &of_b, "x = dev:buffer('i32', 4) x:fill(0) give('second'):await()\n");
    gpulua *c = open_object(device, 1, &of_c);
    does(c, &of_c,
         "assert(labels() == '', labels())\n"
         "x = dev:buffer('i32', 4) x:fill(0):await() assert(labels() == 'fill')\n",
         "an object sees what comes from its opening of the device on");
    run(a, &of_a, "dev:close()\n");
    run(b, &of_b, "x:fill(1) give('third'):await()\n");
    does(a, &of_a,
         "assert(labels() == 'fill first fill2 second2 fill3', labels())\n"
         "assert(rows()[2].ended and rows()[2].outcome == 'succeeded')\n"
         "dev = gpu.device() dev:buffer('i32', 4):fill(1):await()\n"
         "assert(labels() == 'fill', labels())\n"
         "local info = gpu.trace.info()\n"
         "assert(#info == 2 and info[1].seat == 1 and info[2].seat == 4)\n"
         "assert(info[1].ops == 5 and info[2].ops == 1, info[1].ops)\n"
         "assert(info[1].name:find ' %(1%)$' and info[2].name:find ' %(2%)$')\n"
         "assert(tostring(gpu.report()):find 'beside those of 2 others')\n",
         "until it closes it; opened again, the device has another log");
    gpulua_close(a);
    does(b, &of_b,
         "give('last'):await()\n"
         "assert(labels() == 'fill1 first1 fill second fill3 fill third fill4 last', labels())\n",
         "what others have given while they were there stays");
    gpulua_close(c);
    gpulua_device_close(device);
    does(b, &of_b,
         "dev:close()\n"
         "assert(labels() == 'fill1 first1 fill second fill3 fill third fill4 last', labels())\n"
         "local report = gpu.report()\n"
         "assert(#report.devices[1].others == 3 and tostring(report):find 'seat 4')\n"
         "for _, row in ipairs(rows()) do assert(row.ended and row.outcome == 'succeeded') end\n",
         "a trace outlives the device");
    gpulua_close(b);
}

static void test_full(void) {
    struct told of_device = {0}, of_a, of_b, of_c;
    gpulua_device *device = open_device(10, &of_device);
    gpulua *a = open_object(device, 1, &of_a), *b = open_object(device, 1, &of_b);
    static const char fills[] =
        "x = dev:buffer('i32', 4) for i = 1, 8 do x:fill(i) end x:await()\n";
    run(a, &of_a, fills);
    run(b, &of_b, fills);
    static const char is_full[] = "local info = gpu.trace.info()[1]\n"
                                  "assert(info.ops == 10 and info.dropped == 6, info.dropped)\n"
                                  "assert(dev:stats().drops == 6)\n"
                                  "local report = gpu.report().devices[1]\n"
                                  "assert(report.operations == own and report.dropped == 6)\n";
    run(a, &of_a, "own = 8\n");
    run(b, &of_b, "own = 2\n");
    does(a, &of_a, is_full, "a log that is full is so for all, and counts the rest");
    does(b, &of_b, is_full, "whoever it was that filled it");
    check(strcmp(of_device.lines,
                 "the trace is full: later operations are counted and not kept\n") == 0,
          "and its host is told once");
    gpulua *c = open_object(device, 1, &of_c);
    does(c, &of_c,
         "x = dev:buffer('i32', 4) x:fill(1) x:fill(2):await()\n"
         "local info = gpu.trace.info()[1]\n"
         "assert(info.ops == 0 and info.dropped == 2)\n",
         "who comes later hears what was not kept of its own time");
    gpulua_close(a);
    gpulua_close(b);
    gpulua_close(c);
    gpulua_device_close(device);
}

/* ---- who asks, and who may ---- */

static void test_asking(void) {
    struct told of_a, of_b;
    gpulua_device *device = open_device(0, NULL);
    gpulua *a = open_object(device, 1, &of_a);
    does(a, &of_a,
         "x = dev:buffer('i32', 4):fill(1):await()\n"
         "assert(code_of(gpu.trace.events) == 'StreamMisuse' and not gpu.trace.info())\n"
         "assert(dev:buffer('i32', 4):fill(1):await() and not give('x'):await():elapsed())\n",
         "a device that its host does not want traced is not");
    check(strstr(of_a.lines, "the shared device is not traced") != NULL,
          "which is said where traces are wanted");
    gpulua_close(a);
    gpulua_device_close(device);

    setenv("GPULUA_TRACE", "1", 1);
    device = open_device(0, NULL);
    a = open_object(device, 0, &of_a);
    gpulua *b = open_object(device, 0, &of_b);
    setenv("GPULUA_TRACE", "0", 1);
    run(b, &of_b, "x = dev:buffer('i32', 4):fill(1):await()\n");
    does(a, &of_a, "assert(labels() == 'fill2', labels())\n",
         "GPULUA_TRACE traces shared devices as others");
    gpulua_close(a);
    gpulua_close(b);
    gpulua_device_close(device);

    if (isolation == GPULUA_ISOLATE_PROCESS) {
        device = open_device(UINT32_MAX, NULL);
        a = open_object(device, 1, &of_a);
        gpulua_config config;
        gpulua_config_init(&config);
        config.sandbox = 1;
        config.run_limit_ms = 5000;
        config.trace = 1;
        config.shared_device = device;
        config.on_error = note_error;
        config.on_log = note_line;
        config.user = &of_b;
        memset(&of_b, 0, sizeof of_b);
        b = gpulua_new(&config);
        run(a, &of_a, "x = dev:buffer('i32', 4):fill(1):await()\n");
        does(b, &of_b,
             "local gpu = require 'gpulua'\n"
             "x = gpu.device():buffer('i32', 4, { label = 'guest' }):fill(2):await()\n"
             "local ok, err = pcall(gpu.trace.events)\n"
             "assert(not ok and err.code == 'StreamMisuse' and not gpu.trace.info())\n",
             "a sandbox sees nothing of what others do");
        does(a, &of_a, "assert(labels() == 'fill fill2', labels())\n",
             "though others see what it does");
        gpulua_close(b);
        gpulua_close(a);
        gpulua_device_close(device);
    }
}

/* ---- graphs, files ---- */

static void test_files(void) {
    gpulua_device *device = open_device(100000, NULL);
    struct told of_a, of_b;
    gpulua *a = open_object(device, 1, &of_a), *b = open_object(device, 1, &of_b);
    bool is_cpu = run(a, &of_a, "assert(dev.kind == 'cpu')\n");
    if (is_cpu) {
        does(a, &of_a,
             "x = dev:buffer('i32', 4, { label = 'x' })\n"
             "graph = dev:capture({ label = 'step' }, function() x:fill(1) give('node') end)\n"
             "assert(not graph:dot():find ' us, from')\n"
             "graph:launch():await()\n"
             "assert(graph:dot():find ' us, from')\n",
             "graph:dot() has times of what was replayed on a traced device");
        does(b, &of_b,
             "local list = rows()\n"
             "local launch = list[#list]\n"
             "assert(launch.kind == 'graph' and launch.seat == 1 and #launch.nodes == 2)\n"
             "assert(launch.nodes[2].label == 'node')\n"
             "for _, row in ipairs(gpu.report().devices[1].kernels) do\n"
             "  assert(row.name ~= 'node')\n"
             "end\n",
             "nodes of others' graphs are theirs");
    }
    run(b, &of_b, "x = dev:buffer('i32', 4):fill(0) give('of b'):await()\n");
    does(a, &of_a,
         "x = dev:buffer('i32', 4):fill(0) give('of a'):await()\n"
         "local path = os.tmpname()\n"
         "local function text_of(write)\n"
         "  write(path)\n"
         "  local file <close> = assert(io.open(path)) return file:read 'a'\n"
         "end\n"
         "local json = text_of(gpu.trace.json)\n"
         "local lane = json:match "
         "'\"tid\":(%d+),\"name\":\"thread_name\",\"args\":{\"name\":\"calls "
         "of seat 2\"}'\n"
         "assert(json:find('\"tid\":' .. lane .. ',[^}]*\"cat\":\"call\",\"name\":\"of b\"'))\n"
         "assert(json:find '\"cat\":\"launch\",\"name\":\"of b\",[^}]*\"seat\":2}')\n"
         "assert(not json:find '\"name\":\"of a\",[^}]*\"seat\"')\n"
         "local page = text_of(gpu.trace.timeline)\n"
         "assert(page:match '\"seat\":%[([%d,]+)%]':find '2')\n"
         "os.remove(path)\n",
         "files show the calls of others on lanes of their own");
    gpulua_close(a);
    gpulua_close(b);
    gpulua_device_close(device);
}

/* ---- reading while others give work ---- */

struct worker {
    gpulua_device *device;
    gpulua_buffer *sum;
    int number;
    bool is_good;
    pthread_t thread;
};

/* Each round gives work from tasks, and reads what all have given. Every other thread comes and
 * goes meanwhile. */
static const char giving[] =
    "local label = 'thread ' .. number\n"
    "local given = 0\n"
    "local own <const> = dev:buffer('i32', 4):fill(0)\n"
    "local function work(count)\n"
    "  for k = 1, count do\n"
    "    add:launch({ grid = 1, block = 1, label = label }, 4, k % 5 == 0 and sum or own)\n"
    "    given = given + 1\n"
    "  end\n"
    "  own:await()\n"
    "end\n"
    "local function look()\n"
    "  local count, last = 0, 0\n"
    "  for event in gpu.trace.events() do\n"
    "    if event.kernel then\n"
    "      local is_own = event.label == label\n"
    "      assert(is_own == (event.seat == nil), event.label)\n"
    "      assert(is_own or event.task == nil)\n"
    "      assert(event.label:find '^thread %d$' and event.kernel == 'add', event.label)\n"
    "      assert(not event.ended or event.begun and event.begun <= event.ended)\n"
    "      assert(event.asked >= 0 and event.asked <= event.given)\n"
    "      assert(event.arguments[1].value == 4 and event.where)\n"
    "      for _, number in ipairs(event.waits) do assert(number < event.number) end\n"
    "      if is_own then\n"
    "        assert(tasks[event.task], event.task)\n"
    "        count = count + 1\n"
    "      end\n"
    "    end\n"
    "  end\n"
    "  return count\n"
    "end\n"
    "tasks = {}\n"
    "for round = 1, 3 do\n"
    "  for w = 1, 3 do gpu.spawn(work, 20 * w) end\n"
    "  gpu.sleep(0.001)\n"
    "  for event in gpu.trace.events() do\n"
    "    if event.kernel and event.task then tasks[event.task] = true end\n"
    "  end\n"
    "  look()\n"
    "  local report = gpu.report().devices[1]\n"
    "  assert(report.busy <= report.elapsed + 1e-9 and #tostring(gpu.report()) > 0)\n"
    "end\n"
    "dev:synchronize()\n"
    "sum:await()\n"
    "result = given\n";

static const char counting[] =
    "for event in gpu.trace.events() do\n"
    "  if event.kernel and event.task then tasks[event.task] = true end\n"
    "end\n"
    "local count = 0\n"
    "for event in gpu.trace.events() do\n"
    "  if event.kernel and not event.seat then\n"
    "    assert(event.outcome == 'succeeded' and event.ended)\n"
    "    count = count + 1\n"
    "  end\n"
    "end\n"
    "assert(count == result and count == 360, count)\n"
    "local path = os.tmpname()\n"
    "gpu.trace.json(path) gpu.trace.timeline(path) os.remove(path)\n";

static void *give_and_read(void *user) {
    struct worker *worker = user;
    worker->is_good = true;
    for (int i = 0; i < (worker->number % 2 == 0 ? 1 : 2); i++) {
        struct told told;
        gpulua *g = open_object(worker->device, 1, &told);
        give(g, worker->sum, "sum");
        lua_pushinteger(gpulua_state(g), worker->number);
        lua_setglobal(gpulua_state(g), "number");
        worker->is_good &= run(g, &told, giving) && run(g, &told, counting);
        gpulua_close(g);
    }
    return NULL;
}

static void test_threads(void) {
    struct worker workers[THREADS];
    struct told of_keeper;
    gpulua_device *device = open_device(100000, NULL);
    gpulua *keeper = open_object(device, 1, &of_keeper);
    run(keeper, &of_keeper, "x = dev:buffer('i32', 4, { label = 'sum' }):fill(0):await()\n");
    gpulua_buffer *sum = take(keeper, "x");
    bool is_good = true;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.device = device, .sum = sum, .number = i};
        if (pthread_create(&workers[i].thread, NULL, give_and_read, &workers[i]) != 0) {
            exit(1);
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        is_good &= workers[i].is_good;
    }
    check(is_good, "4 threads read what all of them have given while they go on giving");
    does(keeper, &of_keeper,
         "local seats, count, total = {}, 0, 0\n"
         "for _, row in ipairs(rows()) do\n"
         "  if row.kernel then\n"
         "    assert(row.seat and row.outcome == 'succeeded')\n"
         "    seats[row.seat] = seats[row.seat] or row.label\n"
         "    assert(seats[row.seat] == row.label)\n"
         "    total = total + 1\n"
         "  end\n"
         "end\n"
         "for _ in pairs(seats) do count = count + 1 end\n"
         "assert(count == 6 and total == 6 * 360, total)\n"
         "assert(#gpu.report().devices[1].others == 6)\n",
         "and who looks on sees all of it, each by its seat");
    gpulua_buffer_release(sum);
    gpulua_close(keeper);
    gpulua_device_close(device);
}

int main(void) {
    static const gpulua_isolation isolations[] = {GPULUA_ISOLATE_NONE, GPULUA_ISOLATE_PROCESS,
                                                  GPULUA_ISOLATE_THREAD};
    setenv("GPULUA_TRACE", "0", 1); /* each test says what it wants */
    for (int i = 0; i < 3; i++) {
        isolation = isolations[i];
        test_whose();
        test_leaving();
        test_full();
        test_asking();
        test_files();
        test_threads();
    }
    return tap_finish(&tap);
}
