/* Scripts that are not trusted: whatever one of them tries, the host answers in time, keeps its
 * memory, and tells nothing. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "backend/tap.h"
#include "gpulua.h"
#include "told.h"

static struct tap tap;

#if TAP_IS_SANITIZED
#define STEP_MS 2000 /* everything takes longer there */
#define RUN_LIMIT_MS 1000
#define RAN_TOO_LONG "ran for more than 1000 ms"
#else
#define STEP_MS 100
#define RUN_LIMIT_MS 0 /* the default */
#define RAN_TOO_LONG "ran for more than 25 ms"
#endif
#if defined(__SANITIZE_THREAD__)
#define IS_THREAD_SANITIZED 1
#else
#define IS_THREAD_SANITIZED 0
#endif

#define STEPS_OF_HOSTILE 60

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static gpulua *open_sandbox(struct told *told, uint32_t run_limit_ms, gpulua_device *device) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.sandbox = 1;
    config.run_limit_ms = run_limit_ms;
    config.shared_device = device;
    config.on_error = note_error;
    config.on_log = note_line;
    config.user = told;
    memset(told, 0, sizeof *told);
    return gpulua_new(&config);
}

/* Steps to the end, or so often; the longest step in milliseconds. */
static double step(gpulua *g, int steps_max) {
    double longest_ms = 0;
    for (int i = 0; i < steps_max && gpulua_tasks(g) > 0; i++) {
        double begun_ms = now_ms();
        gpulua_step(g, steps_max > STEPS_OF_HOSTILE ? 10 : 0); /* honest ones wait */
        double took_ms = now_ms() - begun_ms;
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
    }
    return longest_ms;
}

/* Loads the text and steps like that. */
static double run(gpulua *g, const char *text, int steps_max) {
    lua_State *L = gpulua_state(g);
    if (luaL_loadbufferx(L, text, strlen(text), "=script", "t") != LUA_OK) {
        printf("# %s\n", lua_tostring(L, -1));
        lua_pop(L, 1);
        return 1e9;
    }
    if (gpulua_load_function(g, 0) != GPULUA_OK) {
        return 1e9;
    }
    return step(g, steps_max);
}

/* ---- what holds the host up ---- */

struct script {
    const char *name, *text;
};

/* What is in the errors of those that end by one, if not by having run for too long. */
static const struct {
    const char *name, *error;
    bool may_succeed; /* where nothing has to be waited for, or it takes longer than the steps */
} endings[] = {
    {.name = "recursion of patterns", .error = "too many captures"},
    {.name = "an error that takes for ever to show",
     .error = "(error object whose __tostring failed)"},
    {.name = "an error whose name is one", .error = "(error object is a table value)"},
    {.name = "strings that grow", .error = "not enough memory"},
    {.name = "a table of any length", .error = "table.insert takes no table with __len"},
    {.name = "a table that is moved for ever", .error = "table.move moves up to"},
    {.name = "a table of any length, joined", .error = "table.concat takes no table with __len"},
    {.name = "a flood of tasks", .error = "not enough memory"},
    {.name = "weak keys in a chain", .error = "a sandbox has no __mode"},
    {.name = "weak keys that come later", .error = "not enough memory"},
    {.name = "keys that hash alike", .error = "not enough memory"},
    {.name = "a wait in a callback of gsub", .error = "NotYieldable"},
    {.name = "a wait in __tostring", .error = "NotYieldable"},
    {.name = "a wait where an error is shown", .error = "(error object whose __tostring failed)"},
    {.name = "a wait for tasks in a coroutine", .error = "NotYieldable"},
    {.name = "many errors that take for ever to show",
     .error = "(error object whose __tostring failed)"},
    {.name = "a task that fails in a deep stack", .error = "script:1: x"},
    {.name = "waiting for one in a callback", .error = "NotYieldable", .may_succeed = true},
    {.name = "buffers without end", .error = "not enough memory", .may_succeed = true},
};

/* A script that ends before it does what it is for holds up nobody. */
static bool has_ended_well(const struct script *script, const char *message) {
    if (strstr(message, "ran for more than")) {
        return true;
    }
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (strcmp(endings[i].name, script->name) == 0) {
            return message[0] == '\0' ? endings[i].may_succeed
                                      : strstr(message, endings[i].error) != NULL;
        }
    }
    return message[0] == '\0';
}

static const struct script hostile[] = {
    {"a loop", "while true do end"},
    {"a loop that catches everything", "while true do pcall(function() while true do end end) end"},
    {"a loop behind layers of pcall",
     "local function f(n) while true do if n > 0 then pcall(f, n - 1) end end end f(150)"},
    {"handlers of errors that loop",
     "local function h() while true do end end "
     "while true do xpcall(function() while true do end end, h) end"},
    {"variables that are closed in a loop",
     "local function closer() return setmetatable({}, { __close = function() while true do end end "
     "}) end while true do pcall(function() local c <close> = closer(); error 'x' end) end"},
    {"a tower of short coroutines",
     "local function level(n) for i = 1, 20 do end "
     "while n > 0 do pcall(coroutine.wrap(function() level(n - 1) end)) end end level(40)"},
    {"a flood of coroutines",
     "local t = {} while true do t[#t + 1] = coroutine.wrap(function() coroutine.yield() end) "
     "pcall(t[#t]) if #t > 1000 then t = {} end end"},
    {"a coroutine that loops when it is closed",
     "local co = coroutine.create(function() local c <close> = setmetatable({}, { __close = "
     "function() while true do end end }) coroutine.yield() end) coroutine.resume(co) "
     "coroutine.close(co)"},
    {"a chain of tasks that is given up, each of which loops when it is closed",
     "local gpu = require 'gpulua' local threads = {} local function link(k) "
     "threads[k] = coroutine.running() local c <close> = setmetatable({}, { __close = function() "
     "while true do end end }) if k > 1 then gpu.spawn(link, k - 1) end pcall(gpu.sleep, 1000) "
     "coroutine.yield() end local root = gpu.spawn(link, 100) gpu.sleep(0.001) "
     "for k = 1, 100 do if threads[k] then coroutine.resume(threads[k]) end end root:join()"},
    {"a wrapped one that loops when it has failed",
     "pcall(coroutine.wrap(function() local c <close> = setmetatable({}, { __close = function() "
     "while true do end end }) error 'x' end))"},
    {"recursion", "local function f() return f() + 1 end while true do pcall(f) end"},
    {"recursion of patterns", "return (('('):rep(5000)):match((('('):rep(5000)))"},
    {"metamethods in a circle", "local t = setmetatable({}, {}) getmetatable(t).__index = "
                                "function(t, k) return t[k + 1] end while true do pcall(function() "
                                "return t[1] end) end"},
    {"an error that takes for ever to show",
     "error(setmetatable({}, { __tostring = function() while true do end end }))"},
    {"an error whose name is one",
     "error(setmetatable({}, { __name = ('x'):rep(1 << 20), __index = function() while true do end "
     "end }))"},
    {"a pattern that goes back again and again",
     "return (('a'):rep(40)):find(('a*'):rep(20) .. 'b')"},
    {"a pattern over a long text", "return (('a'):rep(1 << 20)):match('.-.-.-b')"},
    {"gsub with such a pattern",
     "return (('a'):rep(40)):gsub(('a?'):rep(40) .. ('a'):rep(40), '')"},
    {"gmatch with such a pattern", "for _ in (('a'):rep(60)):gmatch(('a-'):rep(20) .. 'b') do end"},
    {"brackets that are never balanced", "return (('('):rep(1 << 18)):find('%b()')"},
    {"a plain search that nearly finds",
     "local s = ('a'):rep(1 << 20) while true do s:find(('a'):rep(1 << 18) .. 'b', 1, true) end"},
    {"nothing, repeated", "return (''):rep(math.maxinteger)"},
    {"nothing with nothing between", "return (''):rep(math.maxinteger, '')"},
    {"strings that grow", "local s = 'x' while true do s = s .. s end"},
    {"strings that grow, and are caught",
     "local s = 'x' while true do if not pcall(function() s = s .. s end) then s = 'x' end end"},
    {"long strings that are compared", "local a, b = ('x'):rep(4 << 20) .. 'a', ('x'):rep(4 << 20) "
                                       ".. 'b' while true do local _ = a < "
                                       "b end"},
    {"a table that grows", "local t = {} while true do t[#t + 1] = {} end"},
    {"a task that another one resumes when its children are over",
     "local gpu = require 'gpulua' local co local x = gpu.spawn(function() gpu.sleep(0.01) end) "
     "local q = gpu.spawn(function() "
     "x:join() coroutine.resume(co) end) local p = gpu.spawn(function() co = coroutine.running() "
     "gpu.spawn(function() x:join() end) return 'one' end) assert(p:await() == 'one') q:join() "
     "assert(p:await() == 'one')"},
    {"a chain of tasks below one that can never end",
     "local gpu = require 'gpulua' local eco, rco, made local e = gpu.spawn(function() eco = "
     "coroutine.running() "
     "gpu.sleep(1000) coroutine.yield() end):detach() local function link(k) if k > 0 then "
     "gpu.spawn(link, k - 1) else made = true e:join() end end local root = "
     "gpu.spawn(function() rco = coroutine.running() gpu.spawn(link, 3000) gpu.sleep(1000) "
     "coroutine.yield() end):detach() while not made do gpu.sleep(0) end coroutine.resume(eco) "
     "coroutine.resume(rco) gpu.spawn(function() root:join() end):join()"},
    {"a task that can never end, whose closing never does",
     "local gpu = require 'gpulua' local co local t = gpu.spawn(function() co = "
     "coroutine.running() local x <close> = "
     "setmetatable({}, { __close = function() while true do end end }) pcall(gpu.sleep, 1000) "
     "coroutine.yield() end) gpu.sleep(0) coroutine.resume(co) t:join()"},
    {"tasks that end without memory for what they return",
     "local gpu = require 'gpulua' local keep = {} for i = 1, 30000 do keep[i] = false end for m = "
     "48, 1400, 96 do local k = 0 "
     "local t = gpu.spawn(function() local size = 1 << 20 while size > m do local ok, s = "
     "pcall(string.rep, 'x', size - 32) if ok then k = k + 1 keep[k] = s else size = "
     "math.min(size - 8, size * 7 // 8) end end return 1, 2 end) t:join() for i = 1, k do "
     "keep[i] = false end end"},
    {"a table of any length",
     "table.insert(setmetatable({}, { __len = function() return 1 << 60 end }), 1, 1)"},
    {"a table that is moved for ever", "table.move({}, 1, math.maxinteger - 1, 2)"},
    {"a table of any length, joined",
     "table.concat(setmetatable({}, { __index = function() return '' end }), '', 1, 1 << 60)"},
    {"a sort without order",
     "local t = {} for i = 1, 200000 do t[i] = i end while true do table.sort(t, function() return "
     "true end) end"},
    {"a sort of many", "local t = {} for i = 1, 400000 do t[i] = -i end while true do "
                       "table.sort(t) end"},
    {"a sort of strings that are alike",
     "local t, s = {}, ('x'):rep(1000) for i = 1, 5000 do t[i] = s .. i end while true do "
     "table.sort(t) end"},
    {"garbage without a collector",
     "pcall(collectgarbage, 'stop') pcall(collectgarbage, 'generational') while true do "
     "local t = {} end"},
    {"collections", "local t = {} for i = 1, 100000 do t[i] = {} end while true do "
                    "collectgarbage() end"},
    {"finalisers", "pcall(setmetatable, {}, { __gc = function() while true do end end }) "
                   "local m = {} setmetatable({}, m) m.__gc = function() while true do end end "
                   "collectgarbage()"},
    {"finalisers by way of ours",
     "local gpu = require 'gpulua' for _, v in pairs(gpu) do if type(v) == 'table' then pcall("
     "function() v.__gc = function() while true do end end end) end end "
     "collectgarbage() collectgarbage()"},
    {"source that is long", "return load(('x = 1 '):rep(1 << 17))"},
    {"source without end", "return load(function() return 'x = 1 ' end)"},
    {"source that is deep", "return load(('('):rep(1 << 19))"},
    {"a reader that loops", "return load(function() while true do end end)"},
    {"tasks that are all busy",
     "local gpu = require 'gpulua' for i = 1, 500 do gpu.spawn(function() while true do end end) "
     "end"},
    {"a flood of tasks",
     "local gpu = require 'gpulua' local function f() gpu.spawn(f) gpu.spawn(f) gpu.sleep(0) end "
     "f() gpu.sleep(1)"},
    {"a chain of tasks",
     "local gpu = require 'gpulua' local function f() gpu.spawn(f) gpu.sleep(100) end f()"},
    {"a wait where nothing yields",
     "local gpu = require 'gpulua' table.sort({ 3, 2, 1 }, function(a, b) gpu.sleep(10) return a < "
     "b end)"},
    {"numbers that are long", "while true do tonumber(('9'):rep(1 << 20)) end"},
    {"formats", "while true do ('%s'):format(('x'):rep(1 << 20)) end"},
    {"a chain of tables", "local t = {} for i = 1, 1900 do t = setmetatable({}, { __index = t }) "
                          "end while true do local "
                          "_ = t.x end"},
    {"goto", "::a:: goto a"},
    {"calls of C alone", "while true do pcall(pcall, pcall, pcall, error) end"},
    {"a closing hook of a task",
     "local gpu = require 'gpulua' gpu.spawn(function() local c <close> = setmetatable({}, { "
     "__close = function() while true do end end }) gpu.sleep(100) end) gpu.sleep(0.01) error 'x'"},
    {"a coroutine that has had its time, and closes in a loop",
     "pcall(coroutine.wrap(function() local c <close> = setmetatable({}, { __close = "
     "function() while true do end end }) while true do end end))"},
    {"one that another task closes",
     "local gpu = require 'gpulua' local co gpu.spawn(function() co = "
     "coroutine.create(function() local c <close> = setmetatable({}, { __close = "
     "function() while true do end end }) while true do end end) coroutine.resume(co) "
     "end):detach() gpu.sleep(0.05) coroutine.close(co)"},
    {"closing variables that close coroutines",
     "local function nest(n) local co = coroutine.create(function() local c <close> = "
     "setmetatable({}, { __close = function() if n > 0 then nest(n - 1) end while "
     "true do end end }) coroutine.yield() end) coroutine.resume(co) "
     "coroutine.close(co) end nest(30)"},
    {"errors in closing variables, one behind the other",
     "local function f(n) local c <close> = setmetatable({}, { __close = function() "
     "error(n) end }) if n > 0 then f(n - 1) else error 'x' end end while true do "
     "pcall(f, 150) end"},
    {"an iterator that is a coroutine",
     "for _ in coroutine.wrap(function() while true do coroutine.yield(1) end end) do "
     "end"},
    {"coroutines in coroutines, each in an iterator",
     "local function deep(n) for _ in coroutine.wrap(function() if n > 0 then deep(n "
     "- 1) end while true do coroutine.yield(1) end end) do end end deep(30)"},
    {"handlers that fail in handlers",
     "local function h() xpcall(error, h) error 'x' end while true do xpcall(error, "
     "h) end"},
    {"weak keys in a chain",
     "local t, keys = setmetatable({}, { __mode = 'k' }), {} for i = 1, 40000 do "
     "keys[i] = {} end for i = 40000, 2, -1 do local j = math.random(i) keys[i], "
     "keys[j] = keys[j], keys[i] end for i = 1, 39999 do t[keys[i]] = keys[i + 1] end "
     "keys = keys[1] collectgarbage()"},
    {"weak keys that come later",
     "local m = {} local t, keys = setmetatable({}, m), {} m.__mode = 'k' for i = 1, "
     "14000 do keys[i] = {} end for i = 14000, 2, -1 do local j = math.random(i) "
     "keys[i], keys[j] = keys[j], keys[i] end for i = 1, 13999 do t[keys[i]] = keys[i "
     "+ 1] end keys = keys[1] collectgarbage()"},
    {"finalisers that come later",
     "local m = { __index = {} } for i = 1, 100 do setmetatable({}, m) end m.__gc = "
     "function() while true do end end rawset(m, '__gc', m.__gc) for i = 1, 100 do "
     "pcall(setmetatable, {}, m) end collectgarbage() collectgarbage()"},
    {"keys that hash alike", "local t = {} for i = 1, 40000 do t[i * 65535] = true end"},
    {"keys that hash alike, caught",
     "local t = {} while true do for i = 1, 17000 do pcall(rawset, t, i * 16383, "
     "true) end end"},
    {"constants that hash alike",
     "local t = {} for i = 1, 40000 do t[i] = i * 65535 end return load('return { ' "
     ".. table.concat(t, ',') .. ' }')"},
    {"floods of labels",
     "local t = {} for i = 1, 32000 do t[i] = '::l' .. i .. ':: x = 1' end return "
     "load(table.concat(t, ' '))"},
    {"floods of jumps", "return load('do ' .. ('goto a '):rep(32000) .. '::a:: end')"},
    {"floods of breaks",
     "return load('while x do ' .. ('if x then break end '):rep(32000) .. 'end')"},
    {"conditions in a row", "return load('return ' .. ('a or '):rep(200000) .. 'a')"},
    {"conditions in a row, of two kinds",
     "return load('return ' .. ('a and b or '):rep(90000) .. 'a')"},
    {"clauses in a row",
     "return load('if a then b = 1 ' .. ('elseif a then b = 1 '):rep(50000) .. 'end')"},
    {"constants that are long",
     "while true do load('return \"' .. ('x'):rep(1 << 19) .. '\", ' .. ('9'):rep(1 "
     "<< 18)) end"},
    {"tables of tables in source",
     "while true do load('return ' .. ('{'):rep(190) .. ('}'):rep(190)) end"},
    {"a wait in a callback of gsub",
     "local gpu = require 'gpulua' string.gsub('x', 'x', function() gpu.sleep(1) end)"},
    {"a wait in __tostring",
     "local gpu = require 'gpulua' print(setmetatable({}, { __tostring = function() "
     "gpu.sleep(1) return 'x' end }))"},
    {"a wait where an error is shown",
     "local gpu = require 'gpulua' error(setmetatable({}, { __tostring = function() "
     "gpu.sleep(1) return 'x' end }))"},
    {"a wait in a handler", "local gpu = require 'gpulua' xpcall(error, function() gpu.sleep(0.01) "
                            "string.gsub('x', 'x', function() gpu.sleep(1) end) end)"},
    {"a wait in a closing variable",
     "local gpu = require 'gpulua' do local c <close> = setmetatable({}, { __close = "
     "function() gpu.sleep(0.01) ('x'):gsub('x', function() gpu.sleep(1) end) end }) "
     "end"},
    {"a wait for tasks in a coroutine",
     "local gpu = require 'gpulua' local task = gpu.spawn(gpu.sleep, 1) "
     "coroutine.wrap(function() pcall(gpu.all, task) pcall(gpu.any, task) "
     "pcall(task.join, task) task:await() end)()"},
    {"many errors that take for ever to show",
     "local gpu = require 'gpulua' for i = 1, 500 do gpu.spawn(function() "
     "error(setmetatable({}, { __tostring = function() while true do end end })) "
     "end):detach() end"},
    {"tasks that come again",
     "local gpu = require 'gpulua' local function f() gpu.spawn(f):detach() end for i "
     "= 1, 100 do f() end"},
    {"tasks that come again, and are busy",
     "local gpu = require 'gpulua' local function f() gpu.spawn(f):detach() while "
     "true do end end f()"},
    {"a flood of timers",
     "local gpu = require 'gpulua' for i = 1, 20000 do gpu.spawn(gpu.sleep, 0.0001) "
     "if i % 50 == 0 then gpu.sleep(0) end end"},
    {"timeouts of loops",
     "local gpu = require 'gpulua' while true do pcall(gpu.timeout, 0.001, function() "
     "while true do end end) end"},
    {"errors from a deep stack",
     "local function f(n) if n == 0 then error {} end return f(n - 1) + 1 end while "
     "true do pcall(f, 100000) end"},
    {"errors of ours from a deep stack",
     "local gpu = require 'gpulua' local function f(n) if n == 0 then gpu.spawn() end "
     "return f(n - 1) + 1 end while true do pcall(f, 70000) end"},
    {"a task that fails in a deep stack",
     "local gpu = require 'gpulua' local function f(n) if n == 0 then error 'x' end "
     "return f(n - 1) + 1 end for i = 1, 100 do gpu.spawn(f, 60000) end"},
    {"numbers of millions of digits",
     "local s = ('9'):rep(7 << 20) while true do local _ = s + 1 end"},
    {"lengths of long texts",
     "local s = ('x'):rep(4 << 20) s = s .. s while true do utf8.len(s) end"},
    {"offsets in long texts",
     "local s = ('\\u{80}'):rep(1 << 10):rep(1 << 11) s = s .. s while true do "
     "utf8.offset(s, -1 << 22) utf8.offset(s, 1 << 22) end"},
    {"formats that are long", "local t = {} for i = 1, 100000 do t[i] = 1e308 end while true do "
                              "pcall(string.format, ('%.99f'):rep(100000), table.unpack(t)) end"},
    {"packs that are long", "local f = ('x'):rep(1 << 22) while true do pcall(string.packsize, f) "
                            "pcall(string.pack, f) pcall(string.unpack, f, f) end"},
    {"lists by a metatable",
     "local t = setmetatable({}, { __index = rawlen }) while true do pcall(table.unpack, t, 1, "
     "900000) end"},
    {"dates that are long",
     "while true do pcall(os.date, ('%c'):rep(1 << 21)) pcall(os.date, '!' .. "
     "('%c'):rep(50)) end"},
    {"lists of a million", "while true do pcall(table.unpack, {}, 1, 900000) pcall(string.byte, "
                           "('x'):rep(900000), 1, -1) end"},
    {"callbacks of C", "return (('x'):rep(1 << 22)):gsub('x', os.date)"},
    {"a table in the place of what matches",
     "return (('x'):rep(1 << 22)):gsub('x', setmetatable({}, { __index = function() "
     "while true do end end }))"},
    {"joins of texts that are long",
     "local t = {} for i = 1, 100 do t[i] = ('x'):rep(50000) end while true do "
     "table.concat(t) end"},
    {"comparisons that fail",
     "local t = {} for i = 1, 50000 do t[i] = setmetatable({}, { __lt = function() "
     "error 'x' end }) end while true do pcall(table.sort, t) end"},
    {"metatables without end", "local m = {} while true do for i = 1, 20 do m['__index'] = {} end "
                               "setmetatable({}, m) end"},
    {"__index by functions, in a chain",
     "local t = { x = 1 } for i = 1, 150 do local inner = t t = setmetatable({}, { "
     "__index = function(_, k) return inner[k] end }) end while true do local _ = t.x "
     "end"},
    {"__eq, __concat and __call that go on",
     "local m = {} m.__call = function(t) return t() end m.__concat = function(a, b) "
     "return a .. b end m.__eq = function(a, b) return a == b end local t, u = "
     "setmetatable({}, m), setmetatable({}, m) while true do pcall(t) "
     "pcall(function() return t .. u end) pcall(function() return t == u end) end"},
    {"modules that are long, when an error is shown",
     "local gpu = require 'gpulua' for _, t in ipairs { gpu, gpu.graph, require 'gpulua.npy' } do "
     "for i = 1, 90000 do t[i] = i end end while true do pcall(gpu.spawn) end"},
    {"methods of strings",
     "string.format, string.rep = function() while true do end end, nil local m = "
     "getmetatable '' if m then m.__index = function() while true do end end end "
     "pcall(require 'gpulua'.spawn) assert(type(require 'gpulua'.version) == 'string')"},
};

/* The same with a device, which `gpu` and `dev` are there for. */
static const struct script hostile_on_device[] = {
    {"fills without end", "local x = dev:buffer('u8', 1 << 20) while true do x:fill(1) end"},
    {"fills without end, caught",
     "local x = dev:buffer('u8', 1 << 20) while true do pcall(x.fill, x, 1) end"},
    {"products that take long",
     "local b, m = dev:blas(), dev:buffer('f64', { 1000, 1000 }):fill(1) while true "
     "do pcall(b.gemm, b, { a = m, b = m }) end"},
    {"waiting for one in a callback",
     "local b, m = dev:blas(), dev:buffer('f64', { 700, 700 }):fill(1) local c = "
     "b:gemm{ a = m, b = m } string.gsub('x', 'x', function() c:bytes(1, 1) end)"},
    {"numbers by a function of C", "dev:upload('f32', 15 << 20, math.random)"},
    {"numbers by a loop", "dev:upload('f32', 100, function() while true do end end)"},
    {"numbers by a metatable",
     "dev:buffer('f32', 15 << 20):write(setmetatable({}, { __index = rawlen, __len = "
     "function() return 15 << 20 end }))"},
    {"reading what is large",
     "local x = dev:buffer('f32', 15 << 20):fill(1) pcall(x.read, x) pcall(x.bytes, "
     "x) while true do x:read(1, 100000) end"},
    {"buffers without end", "local t = {} while true do t[#t + 1] = dev:buffer('u8', 1) end"},
    {"more than there is",
     "while true do pcall(dev.buffer, dev, 'u8', 1 << 40) pcall(dev.buffer, dev, "
     "'u8', 60 << 20) end"},
    {"labels without end",
     "for i = 1, 1 << 40 do dev:buffer('u8', 1, { label = ('x'):rep(1000) .. i }) end"},
    {"scalars, pools and streams without end",
     "local t = {} while true do t[#t + 1] = dev:scalar('i32', 1) t[#t + 1] = "
     "dev:pool() t[#t + 1] = select(2, pcall(dev.stream, dev)) end"},
    {"marks without end", "local s, t = dev:stream(), {} while true do t[#t + 1] = s:mark() end"},
    {"ranges without end", "for i = 1, 1 << 40 do gpu.range(('x'):rep(1000) .. i) end"},
    {"plans without end",
     "for i = 20, 1 << 20 do pcall(dev.fft, dev, { shape = (1 << 16) - i }) end"},
    {"callbacks that loop",
     "for i = 1, 100 do dev:current():mark():on_done(function() while true do end "
     "end) end gpu.sleep(0.2)"},
    {"pressure that loops",
     "pcall(function() dev:memory():on_pressure(function() while true do end end) "
     "end) while true do pcall(dev.buffer, dev, 'u8', 60 << 20) end"},
};

struct attempt {
    const struct script *script;
    gpulua_device *device;
    struct told told;
    double longest_ms, closing_ms;
};

/* The longest step and how long the close took; what was told. */
static void *attempt(void *user) {
    struct attempt *attempt = user;
    gpulua *g = open_sandbox(&attempt->told, 0, attempt->device);
    char text[4096];
    snprintf(text, sizeof text, "%s%s",
             attempt->device ? "local gpu = require 'gpulua' local dev = gpu.device() " : "",
             attempt->script->text);
    attempt->longest_ms = run(g, text, STEPS_OF_HOSTILE);
    /* With sanitizers a slow machine is not through in that many steps. */
    for (int i = 0;
         i < 4 && TAP_IS_SANITIZED && !has_ended_well(attempt->script, attempt->told.message);
         i++) {
        double longest_ms = step(g, STEPS_OF_HOSTILE);
        attempt->longest_ms = longest_ms > attempt->longest_ms ? longest_ms : attempt->longest_ms;
    }
    double begun_ms = now_ms();
    gpulua_close(g);
    attempt->closing_ms = now_ms() - begun_ms;
    return NULL;
}

/* On a busy machine a step is long now and then: a script that holds the host up does so always.
 * Each in a thread, for what is thrown leaves the thread sanitizer's own stack as it was. */
static void answers(const struct script *scripts, size_t count, gpulua_device *device) {
    for (size_t i = 0; i < count; i++) {
        struct attempt one = {.script = &scripts[i], .device = device};
        bool is_good = false;
        for (int tries = 0; tries < 10 && !is_good; tries++) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, attempt, &one) != 0) {
                break;
            }
            pthread_join(thread, NULL);
            is_good = one.longest_ms < STEP_MS && one.closing_ms < STEP_MS &&
                      has_ended_well(&scripts[i], one.told.message);
        }
        char text[160];
        snprintf(text, sizeof text, "%s: steps of up to %.1f ms, the close %.1f ms",
                 scripts[i].name, one.longest_ms, one.closing_ms);
        if (!tap_check(&tap, is_good, text)) {
            printf("# %s\n", one.told.message);
        }
    }
}

static gpulua_device *open_device(void) {
    gpulua_device_config config;
    gpulua_device_config_init(&config);
    config.isolation = GPULUA_ISOLATE_PROCESS;
    config.device = getenv("GPULUA_DEVICE") ? getenv("GPULUA_DEVICE") : "cpu";
    config.budget_bytes = 64 << 20;
    config.watchdog_s = 10;
    config.ops_in_flight_max = 500;
    return gpulua_device_open(&config);
}

/* ---- what a script must not reach ---- */

/* Each is a chunk that raises unless it holds. `gpu` and `dev` are there. */
static const struct {
    const char *name, *text;
} kept[] = {
    {"libraries of files, programs and Lua's inside",
     "for _, name in ipairs { 'io', 'package', 'debug', 'dofile', 'loadfile', 'warn' } do "
     "assert(_G[name] == nil, name) end "
     "for _, name in ipairs { 'execute', 'exit', 'getenv', 'remove', 'rename', 'tmpname', "
     "'setlocale' } do assert(os[name] == nil, name) end assert(string.dump == nil)"},
    {"modules but gpulua's public ones",
     "for _, name in ipairs { 'io', 'os', 'debug', 'package', '_G', 'gpulua.core', 'gpulua.file', "
     "'gpulua.sandbox', 'gpulua.recovery', 'ffi', '../x' } do local ok, message = pcall(require, "
     "name) assert(not ok and tostring(message):find('a sandbox has no module', 1, true), name) "
     "end "
     "assert(require 'gpulua' == gpu and require 'gpulua.npy'.load and require 'gpulua.wav' and "
     "require 'gpulua.image')"},
    {"bytecode", "local f, message = load('\\27Lua', 'x', 'b') assert(not f and "
                 "message:find 'binary') f, message = load('\\27Lua') assert(not f)"},
    {"finalisers", "assert(not pcall(setmetatable, {}, { __gc = print }))"},
    {"other globals by load",
     "assert(load 'return _G == ...'(_G)) assert(load('return _ENV', 'x', 't', { 1 })()[1] == 1) "
     "assert(load('return io') () == nil)"},
    {"files by way of gpulua",
     "local function refused(f, ...) local ok, err = pcall(f, ...) assert(not ok and "
     "err.code == 'Unsupported', tostring(err)) return err end local npy, wav, image "
     "= require 'gpulua.npy', require 'gpulua.wav', require 'gpulua.image' local x, u "
     "= dev:buffer('f32', 4):fill(1), dev:buffer('u8', { 2, 2 }):fill(1) "
     "refused(npy.load, dev, '/etc/passwd') refused(npy.save, x, "
     "'/tmp/gpulua-sandbox.npy') refused(npy.load_all, dev, '/etc/passwd') "
     "refused(npy.save_all, { x = x }, '/tmp/gpulua-sandbox.npz') refused(wav.load, "
     "dev, '/etc/passwd') refused(wav.save, x, '/tmp/gpulua-sandbox.wav', { rate = "
     "8000 }) refused(image.load, dev, '/etc/passwd') refused(image.save, u, "
     "'/tmp/gpulua-sandbox.png') refused(dev.flight, dev) refused(dev.flight, dev, "
     "'/tmp/gpulua-sandbox.txt')"},
    {"the paths of files in messages",
     "local _, err = pcall(require 'gpulua.npy'.load, dev, '/etc/shadow') "
     "assert(not err.message:find 'No such' and not err.message:find 'denied')"},
    {"more operations in flight than the device is for",
     "local x = dev:buffer('f32', 4) for i = 1, 2000 do x:fill(i) end local stats = dev:stats() "
     "assert(stats.limit_ops_in_flight == 500 and stats.ops_in_flight_max <= 500, "
     "stats.ops_in_flight_max) assert(x:read(1, 1)[1] == 2000)"},
    {"the compiler, and code that was compiled",
     "local function refused(f, ...) local ok, err = pcall(f, ...) assert(not ok and "
     "err.code == 'Unsupported', tostring(err)) return err end local x = "
     "dev:buffer('f32', 4):fill(1) local function compiles(f, ...) local err = "
     "refused(f, ...) assert(err.message:find('compiles and loads no kernels', 1, "
     "true) and err.hint:find('let the host launch it', 1, true) and not "
     "tostring(err):find 'root:', tostring(err)) end local source = '#include "
     "\"/etc/passwd\"\\nextern \"C\" __global__ void k(int *x) {}' "
     "compiles(dev.compile, dev, source) compiles(dev.compile, dev, source, { include "
     "= { '/etc' } }) compiles(dev.compile, dev, 1) compiles(dev.load, dev, "
     "'/etc/passwd') compiles(dev.load, dev, '.version 8.0\\n.target sm_80') "
     "compiles(dev.load, dev, '\\127ELF') compiles(gpu.map, 'x + 1', { x = x }) "
     "compiles(gpu.reduce, 'sum', x) compiles(dev.rng, dev) compiles(dev.rng, dev, { "
     "generator = 'mrg32k3a', seed = 1 }) compiles(dev.inject, dev, { slow = 'k' }) "
     "dev:blas():scal{ x = x, alpha = 2 } dev:fft{ shape = 4, kind = 'r2c' "
     "}:forward(x) assert(x:read()[1] == 2)"},
    {"kernels of libraries, and upvalues of ours",
     "local function is_shut(t) assert(next(t) == nil and t.__index == nil and t.__gc "
     "== nil and getmetatable(t) == nil and t.kernels == nil and t.upvalues == nil "
     "and not pcall(setmetatable, t, {})) end local b, plan, range, fast = "
     "dev:blas(), dev:fft{ shape = 4 }, gpu.range 'x', dev:graphed(gpu.run) "
     "is_shut(b) is_shut(plan) is_shut(range) fast(function() end) is_shut(fast) for "
     "_, f in ipairs { b.gemm, b.close, plan.forward, plan.close, fast.explain } do "
     "assert(not pcall(f, {}, {}) and not pcall(f)) end b:close() plan:close() "
     "range:close() fast:close() assert(tostring(b):find 'closed')"},
    {"libraries by arguments that change",
     "local b, m = dev:blas(), dev:buffer('f32', { 2, 2 }):fill(1) local function "
     "plain(f, ...) local ok, err = pcall(f, ...) assert(not ok and err.code == "
     "'InvalidArgument' and err.message:find 'metatables', tostring(err)) end "
     "plain(b.gemm, b, setmetatable({ a = m, b = m }, { __index = { batch = 5 } })) "
     "plain(b.gemm, b, setmetatable({ a = m, b = m }, { __metatable = false })) "
     "plain(b.gemm, b, { a = m, b = m, alpha = setmetatable({ 1, 0 }, {}) }) "
     "plain(b.dot, b, setmetatable({ x = m, y = m }, {})) plain(dev.fft, dev, { shape "
     "= setmetatable({ 4 }, {}) }) plain(dev.fft, dev, setmetatable({ shape = 4 }, "
     "{})) assert(b:gemm{ a = m, b = m }:read()[1] == 2)"},
    {"descriptors of the host, and a loop inside of its",
     "for fd = 0, 20 do local ok, err = pcall(gpu.readable, fd, 0) assert(not ok and err.code == "
     "'Unsupported' and err.message == 'a sandbox has no gpu.readable') end "
     "assert(not pcall(require, 'gpulua.luv') and not pcall(require, 'luv'))"},
    {"devices that the host has not given",
     "for _, name in ipairs { 'cpu', 'cuda', 'cuda:0', 'cuda:7' } do local ok, other = "
     "pcall(gpu.device, name) assert(ok and other == dev or not ok and other.code == 'NoDevice', "
     "name) end "
     "local ok, err = pcall(gpu.device, { isolate = 'none' }) assert(not ok and err.code == "
     "'NoDevice') ok, err = pcall(gpu.device, { coredump = '/tmp' }) assert(not ok)"},
    {"what others have on the device, and memory that nobody counts",
     "local function refused(f, ...) local ok, err = pcall(f, ...) assert(not ok and "
     "err.code == 'Unsupported', tostring(err)) return err end "
     "refused(dev.memory_map, dev) refused(dev.inject, dev, { lost = 1 }) "
     "refused(dev.inject, dev, { slow = false }) refused(dev.host, dev, 'f32', 4) "
     "refused(dev.recorder, dev) refused(dev.memory, dev, { log = true }) "
     "refused(dev.capture, dev, function() end) "
     "refused(dev.buffer, dev, 'f32', 4, { rebuild = function() end }) local fast = "
     "dev:graphed(function() dev:buffer('f32', 4):fill(1) end) fast() refused(fast)"},
    {"our own metatables, and methods of strings",
     "local ok, err = pcall(dev.buffer, dev, 'f32', -1) assert(not ok and err.code == "
     "'InvalidArgument') local x = dev:buffer('f32', 4) for _, v in ipairs { 'x', 1, "
     "print, err, x, dev, gpu.spawn(type, 1), coroutine.create(print) } do "
     "assert(type(getmetatable(v)) ~= 'table') assert(not pcall(setmetatable, v, {})) "
     "end string.format, string.rep, string.find = function() error 'mine' end, nil, "
     "print assert(('%d'):format(1) == '1' and ('x').dump == nil) ok, err = "
     "pcall(dev.buffer, dev, 'f32', -1) assert(not ok and err.code == "
     "'InvalidArgument')"},
    {"metatables that others change later",
     "local m = { __index = { a = 1 } } local t = setmetatable({}, m) "
     "assert(getmetatable(t) == m and t.a == 1) m.__index = { a = 2 } assert(t.a == "
     "1) setmetatable(t, m) assert(t.a == 2) assert(setmetatable(t, nil) == t and "
     "getmetatable(t) == nil and t.a == nil) for _, event in ipairs { '__gc', "
     "'__mode' } do assert(not pcall(setmetatable, {}, { [event] = 'k' })) end "
     "assert(getmetatable(setmetatable({}, { __metatable = 5 })) == 5 and not "
     "pcall(setmetatable, setmetatable({}, { __metatable = 5 }), {})) local v = "
     "setmetatable({}, { __add = function() return 'sum' end, __eq = function() "
     "return true end, __call = function(_, a) return a end, __len = function() "
     "return 7 end, __close = function() end, __tostring = function() return 'me' "
     "end, __pairs = function() return next, { 1 } end }) assert(v + 1 == 'sum' and v "
     "== setmetatable({}, getmetatable(v)) and v(3) == 3 and #v == 7 and tostring(v) "
     "== 'me' and pairs(v) == next)"},
    {"more keys, longer formats and longer sources than there are",
     "local t = {} for i = 1, 8192 do t['k' .. i] = i end for i = 1, 100000 do t[i] = "
     "i end assert(not pcall(function() for i = 1, 20000 do t['l' .. i] = i end end)) "
     "for _, n in ipairs { 393216, 786432, 1572864 } do local s = ('x'):rep(n) "
     "assert(#s == n and #s:upper() == n and #table.concat { s } == n and "
     "#string.format('%s', s) == n and #s:gsub('y', '') == n and #string.pack('z', s) "
     "== n + 1) end assert(#dev:buffer('u8', { 512, 768 }):fill(1):bytes() == 393216) "
     "assert(not pcall(string.format, ('%d'):rep(1001), table.unpack({}, 1, 1001)) "
     "and not pcall(string.packsize, ('x'):rep(10001)) and not pcall(os.date, (' "
     "'):rep(10001))) for _, word in ipairs { 'goto a ', 'break ', '::a:: ' } do "
     "local f, message = load(('x = 1 ' .. word):rep(1001)) assert(not f and "
     "message:find 'up to %d+ times', message) end assert(load 'for i = 1, 3 do if i "
     "> 1 then goto a end ::a:: end return 1'() == 1)"},
    {"what only a host may do by name",
     "for _, name in ipairs { 'core', 'library', 'shutdown', 'adopt_coroutines', "
     "'in_flight', 'tasks', 'log', 'inject_slow', 'rebuilds' } do assert(gpu[name] == "
     "nil, name) end local ok, err = pcall(gpu.step, 1) assert(not ok and err.code == "
     "'StreamMisuse')"},
};

static void keeps(gpulua_device *device) {
    if (!tap_check(&tap, device != NULL, "a device in a process of its own")) {
        printf("# %s\n", gpulua_last_error(NULL)->message);
        return;
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        struct told told = {0};
        gpulua_config config;
        gpulua_config_init(&config);
        config.sandbox = 1;
        config.run_limit_ms = 5000; /* what is asked here is not how long it takes */
        config.shared_device = device;
        config.on_error = note_error;
        config.on_log = note_line;
        config.user = &told;
        gpulua *g = gpulua_new(&config);
        char text[4096], name[160];
        snprintf(text, sizeof text,
                 "local gpu = require 'gpulua' local dev = gpu.device() %s print('kept')",
                 kept[i].text);
        run(g, text, 10000);
        gpulua_close(g);
        snprintf(name, sizeof name, "cannot reach %s", kept[i].name);
        if (!tap_check(&tap, strstr(told.lines, "kept\n") != NULL && told.error_count == 0, name)) {
            printf("# %s\n%s", told.message, told.lines);
        }
    }
}

/* ---- memory ---- */

/* What a script makes until there is no memory for more; `gpu`, `dev` and `stream` are there. */
static const struct script kinds_of_handles[] = {
    {"buffers", "return dev:buffer('u8', 1)"},
    {"buffers with many users",
     "local b = dev:buffer('u8', 64) for k = 1, 64, 2 do b:slice(k, k):fill(1) "
     "end return b"},
    {"scalars", "return dev:scalar('i32', 1)"},
    {"pools", "return dev:pool()"},
    {"marks", "return stream:mark()"},
    {"tasks", "return gpu.spawn(print)"},
    {"memories", "return dev:memory{ budget = 1 << 20 }"},
    {"labels", "n = (n or 0) + 1 return dev:buffer('u8', 1, { label = ('x'):rep(200) .. n })"},
};

static size_t allocated_bytes(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* What is allocated when the device has freed what others left: it does so when it is looked at. */
static size_t settled_bytes(gpulua_device *device) {
    size_t bytes = allocated_bytes(), before_bytes = SIZE_MAX;
    for (int i = 0; i < 200 && bytes < before_bytes; i++) {
        struct told told = {0};
        gpulua *g = open_sandbox(&told, 60000, device);
        before_bytes = bytes;
        run(g, "require 'gpulua'.device():buffer('u8', 1):fill(1):await()", 10000);
        gpulua_close(g);
        bytes = allocated_bytes();
    }
    return bytes;
}

/* Lua's heap is bounded, and with it what handles have outside of it: no more than once again. */
static void bounds_memory(gpulua_device *device) {
    for (size_t i = 0; i < sizeof kinds_of_handles / sizeof *kinds_of_handles; i++) {
        size_t before_bytes = settled_bytes(device);
        struct told told = {0};
        gpulua *g = open_sandbox(&told, 60000, device);
        char text[1024], name[160];
        snprintf(text, sizeof text,
                 "gpu = require 'gpulua' dev = gpu.device() "
                 "stream = dev:current() t = {} local function make() %s end "
                 "local ok, err = pcall(function() while true do t[#t + 1] = make() end end) "
                 "print(#t, err)",
                 kinds_of_handles[i].text);
        (void)run(g, text, 0);
        /* Tasks that it leaves would each look for memory everywhere. */
        for (int k = 0; k < 10000 && gpulua_tasks(g) > 0 && told.lines[0] == '\0'; k++) {
            (void)gpulua_step(g, 10);
        }
        double grown_mb = ((double)allocated_bytes() - (double)before_bytes) / (1 << 20);
        printf("# %.1f MiB: %s", grown_mb, told.lines);
        snprintf(name, sizeof name, "%s until nothing fits into 16 MiB any more: %.1f MiB",
                 kinds_of_handles[i].name, grown_mb);
        if (TAP_IS_SANITIZED) {
            tap_skip(&tap, name, "a sanitizer's allocator is not asked");
        } else {
            tap_check(&tap, strstr(told.lines, "memory") && grown_mb > 4 && grown_mb < 32, name);
        }
        gpulua_close(g);
    }
}

/* ---- patterns ---- */

/* Random patterns over random texts; a number for each hundred says what came of them. Short ones,
 * so that Lua's own functions come to an end. */
static const char patterns[] =
    "local seed = 1 local function random(n) seed = (seed * 6364136223846793005 + "
    "1442695040888963407) return (seed >> 33) % n + 1 end "
    "local items = { 'a', 'b', '.', '%a', '%A', '%d', '%s', '%w', '%W', '%x', '%p', '%P', '%g', "
    "'%c', '%u', '%l', '[ab]', '[^ab]', '[a-c%d]', '[]a]', '[^]a]', '[%a-]', '[a-]', '[^%s]', "
    "'%%', '%.', '%[', '%b()', '%bab', '%f[%a]', '%f[^%a]', '%f[%z]', '(', ')', '()', '%1', '%2', "
    "'$', '^', '-', '*', '+', '?', '[', ']', '%', '%f', '%b', '%ba', '\\0', 'ab', '()a', '(a)', "
    "'(.-)', '(%w*)' } "
    "local repeats = { '', '', '', '*', '+', '-', '?' } "
    "local characters = { 'a', 'b', 'a', 'b', 'c', 'A', '1', ' ', '(', ')', '.', '%', '\\0', "
    "'\\xff', '-', ']' } "
    "local function pattern() local t = { random(6) == 1 and '^' or '' } for i = 1, random(5) do "
    "t[#t + 1] = items[random(#items)] .. repeats[random(#repeats)] end "
    "return table.concat(t) end "
    "local function text() local t = {} for i = 1, random(12) - 1 do t[i] = "
    "characters[random(#characters)] end return table.concat(t) end "
    "local function show(...) local t = table.pack(...) for i = 1, t.n do t[i] = "
    "type(t[i]) .. ':' .. tostring(t[i]) end return table.concat(t, '|') end "
    "local function sum(h, s) for i = 1, #s do h = (h * 31 + s:byte(i)) & 0xffffffff end return h "
    "end "
    "local function all(s, p, i) local t = {} for a, b, c in s:gmatch(p, i) do t[#t + 1] = "
    "show(a, b, c) if #t > 40 then break end end return table.concat(t, ';') end "
    "local with = { 'x', '%0', '%1', '<%1%2>', '%%', '%', '%9', '', function(a, b) return b or "
    "a end, function() end, function() return 5 end, { a = 'A', ab = false, b = 1 }, 7, "
    "function() return {} end } "
    "local h, errors = 0, 0 "
    "for i = 1, 30000 do local s, p, init = text(), pattern(), random(9) - 5 "
    "local w = with[random(#with)] "
    "for _, got in ipairs { show(pcall(string.find, s, p, init)), show(pcall(string.match, s, p)), "
    "show(pcall(string.match, s, p, init)), show(pcall(all, s, p, random(3) - 1)), "
    "show(pcall(string.gsub, s, p, w)), show(pcall(string.gsub, s, p, w, random(3) - 1)), "
    "show(pcall(string.find, s, p, init, true)) } do "
    "if got:sub(1, 13) == 'boolean:false' then errors = errors + 1 got = 'error' end "
    "h = sum(h, got) end "
    "if i % 1000 == 0 then print(i, h, errors) end end";

struct lines {
    char text[4096];
};

static int collect_line(lua_State *L) {
    struct lines *lines = lua_touserdata(L, lua_upvalueindex(1));
    for (int i = 1; i <= lua_gettop(L); i++) {
        size_t used = strlen(lines->text);
        snprintf(lines->text + used, sizeof lines->text - used, "%s%s", i > 1 ? "\t" : "",
                 luaL_tolstring(L, i, NULL));
        lua_pop(L, 1);
    }
    size_t used = strlen(lines->text);
    snprintf(lines->text + used, sizeof lines->text - used, "\n");
    return 0;
}

static void matches_as_lua_does(void) {
    if (IS_THREAD_SANITIZED) {
        tap_skip(&tap, "210,000 calls of patterns",
                 "one thread calls, and the sanitizer ends the program after so many errors");
        return;
    }
    struct lines lines = {""};
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    lua_pushlightuserdata(L, &lines);
    lua_pushcclosure(L, collect_line, 1);
    lua_setglobal(L, "print");
    bool is_done = luaL_dostring(L, patterns) == LUA_OK;
    tap_check(&tap, is_done, "Lua's own functions come to an end");
    if (!is_done) {
        printf("# %s\n", lua_tostring(L, -1));
    }
    lua_close(L);
    struct told told;
    gpulua *g = open_sandbox(&told, 600000, NULL);
    run(g, patterns, 1000);
    gpulua_close(g);
    tap_equal(&tap, told.message, "", "so do those of a sandbox");
    tap_equal(&tap, told.lines, lines.text, "and answer the same to 210,000 calls");
}

/* ---- what works as ever ---- */

static const char useful[] =
    "local gpu = require 'gpulua' local dev = gpu.device() "
    "local x, y = dev:upload('f32', { 1, 2, 3 }), dev:buffer('f32', 3):fill(1) "
    "dev:blas():axpy{ x = x, y = y, alpha = 2 } local t = y:read() assert(t[1] == 3 and t[3] == 7) "
    "local task = gpu.spawn(function() gpu.sleep(0.001) return ('%d'):format(5) end) "
    "assert(task:await() == '5') "
    "local list = { 3, 1, 2 } table.sort(list) assert(table.concat(list, ' ') == '1 2 3') "
    "table.sort(list, function(a, b) return a > b end) assert(list[1] == 3) "
    "table.insert(list, 4) assert(table.remove(list) == 4 and #table.move(list, 1, 3, 2) == 4) "
    "assert(select('#', table.unpack({ 1, nil, 3 }, 1, 3)) == 3 and ('ab'):rep(2, '-') == 'ab-ab') "
    "assert(xpcall(function(a) return a end, print, 1)) "
    "local ok, handled = xpcall(error, function(e) return e .. '!' end, 'x') "
    "assert(not ok and handled == 'x!') "
    "assert(load('local a = ... return a + 1')(1) == 2 and math.max(1, 2) == 2 and utf8.char(65) "
    "== "
    "'A' and os.time() > 0 and type(os.date()) == 'string') "
    "local f = coroutine.wrap(function() coroutine.yield(1) end) assert(f() == 1) "
    "local co = coroutine.create(error) coroutine.resume(co, 'x') "
    "local closed, message = coroutine.close(co) assert(not closed and message == 'x') "
    "assert(coroutine.close(co) and coroutine.status(co) == 'dead') "
    "local was_closed co = coroutine.create(function() local c <close> = setmetatable({}, { "
    "__close = function() was_closed = true end }) coroutine.yield() end) coroutine.resume(co) "
    "assert(coroutine.close(co) and was_closed and not pcall(coroutine.close, "
    "coroutine.running())) "
    "co = coroutine.create(function(...) return pcall(coroutine.yield, ...) end) "
    "assert(select(3, coroutine.resume(co, 1, 2)) == 2) "
    "assert(select(3, coroutine.resume(co, 3)) == 3) "
    "collectgarbage() assert(collectgarbage 'count' > 0) print('a', 1, nil, true)";

static void serves(gpulua_device *device) {
    struct told told;
    gpulua *g = open_sandbox(&told, 5000, device); /* libraries are loaded, on a busy machine */
    run(g, useful, 100000);
    tap_equal(&tap, told.lines, "a\t1\tnil\ttrue\n", "an honest script does its work");
    tap_equal(&tap, told.message, "", "without an error");
    gpulua_close(g);
    /* The one whose time is up leaves the others alone, and the object as it was. */
    g = open_sandbox(&told, RUN_LIMIT_MS, device);
    run(g,
        "local gpu = require 'gpulua' gpu.spawn(function() gpu.sleep(0.1) print 'other' "
        "end):detach() while true do end",
        100000);
    tap_equal(&tap, told.lines, "other\n", "the others go on");
    tap_check(&tap,
              told.error_count == 1 && told.code == GPULUA_CAPACITY &&
                  strstr(told.message, RAN_TOO_LONG) != NULL,
              "and what went on for too long is named");
    run(g, "print 'again'", 100);
    tap_check(&tap, strstr(told.lines, "again") != NULL, "and so does the object");
    gpulua_close(g);
}

/* The limit without a sandbox, and a device that is no sandbox's. */
static void limits_alone(void) {
    struct told told = {0};
    gpulua_device_config device_config;
    gpulua_config config;
    gpulua_config_init(&config);
    config.run_limit_ms = 20;
    config.on_error = note_error;
    config.user = &told;
    gpulua *g = gpulua_new(&config);
    run(g, "assert(io and debug) while true do end", 100);
    tap_check(&tap, told.code == GPULUA_CAPACITY, "run_limit_ms without a sandbox");
    for (int tries = 0; tries < 10; tries++) { /* the machine may take the 20 ms for itself */
        run(g, "error(setmetatable({}, { __tostring = function() error 'x' end }))", 100);
        if (told.code != GPULUA_CAPACITY) {
            break;
        }
    }
    tap_equal(&tap, told.message, "(error object whose __tostring failed)",
              "an error that cannot be shown says so");
    gpulua_close(g);
    gpulua_device_config_init(&device_config);
    device_config.device = "cpu";
    device_config.isolation = GPULUA_ISOLATE_NONE;
    gpulua_device *device = gpulua_device_open(&device_config);
    gpulua_config_init(&config);
    config.sandbox = 1;
    config.shared_device = device;
    tap_check(&tap,
              gpulua_new(&config) == NULL &&
                  gpulua_last_error(NULL)->code == GPULUA_INVALID_ARGUMENT,
              "a device in the host's process is refused");
    lua_State *L = luaL_newstate();
    config.shared_device = NULL;
    tap_check(&tap,
              gpulua_attach(L, &config) == NULL &&
                  strstr(gpulua_last_error(NULL)->message, "are for gpulua_new") != NULL,
              "a state of the host's is no sandbox, and that is said");
    lua_close(L);
    gpulua_device_close(device);
}

int main(int argc, char **argv) {
    size_t count = sizeof hostile / sizeof *hostile;
    size_t device_count = sizeof hostile_on_device / sizeof *hostile_on_device;
    size_t one = argc > 1 ? (size_t)atoi(argv[1]) : 0; /* by hand: that one alone, from 1 */
    gpulua_device *device = open_device();
    if (one > 0 && one <= count) {
        answers(&hostile[one - 1], 1, NULL);
    } else if (one > 0 && one <= count + device_count) {
        answers(&hostile_on_device[one - 1 - count], 1, device);
    } else {
        answers(hostile, count, NULL);
        answers(hostile_on_device, device_count, device);
        matches_as_lua_does();
        keeps(device);
        bounds_memory(device);
        serves(device);
        limits_alone();
    }
    gpulua_device_close(device);
    return tap_finish(&tap);
}
