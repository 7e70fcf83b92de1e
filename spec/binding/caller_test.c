/* Who calls: the line is the script's and right whatever was there before, and results are made
 * where they are used; also where nothing is known of how Lua lays out its calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "backend/tap.h"
#include "binding/binding.h"
#include "binding/caller.h"
#include "binding/device.h"
#include "binding/loop.h"
#include "gpulua.h"

/* where(device) -> line, "file" */
static int where(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_site site;
    gpu_lua_site(L, g, gpu_lua_check_device(L, g, 1, NULL), &site);
    lua_pushinteger(L, site.line);
    lua_pushstring(L, site.source);
    return 2;
}

static int is_wanted;

/* wanted(...) -> 1, 2; notes whether anybody wants them. */
static int wanted(lua_State *L) {
    is_wanted = gpu_lua_is_result_wanted(gpu_lua_call(L, &GPU_LUA(L)->caller));
    lua_pushinteger(L, 1);
    lua_pushinteger(L, 2);
    return 2;
}

static int was_wanted(lua_State *L) {
    lua_pushboolean(L, is_wanted);
    return 1;
}

/* Each returns nothing, or what is wrong. */
static const char preface[] =
    "local gpu, where, wanted, was_wanted, is_known, is_slow = ...\n"
    "local dev, other = gpu.device('cpu', { label = 'a' }), gpu.device('cpu', { label = 'b' })\n"
    "local function expect(got, want, what)\n"
    "  if got ~= want then error(what .. ': ' .. tostring(got) .. ', not ' .. tostring(want), 2) "
    "end\n"
    "end\n";

static const struct {
    const char *what, *script;
} cases[] = {
    {"each line of a function, again and again",
     "for _ = 1, 3 do\n" /* line 6 */
     "  expect(where(dev), 7, 'the first')\n"
     "  expect(where(dev), 8, 'the second') expect(where(dev), 8, 'beside it')\n"
     "  expect(select(2, where(dev)), '[string \"caller\"]', 'the file')\n"
     "end\n"},
    {"two devices, each with names of its own",
     "for _ = 1, 3 do\n"
     "  for _, one in ipairs { dev, other } do expect(where(one), 7, 'the line') end\n"
     "end\n"
     "local third = gpu.device('cpu', { label = 'c' })\n"
     "for k = 1, 20 do\n" /* often where the one before was */
     "  expect(select(2, where(third)), '[string \"caller\"]', 'the file')\n"
     "  third:close() third = nil collectgarbage()\n"
     "  third = gpu.device('cpu', { label = 'c' })\n"
     "end\n"},
    {"whoever called before and is gone, its memory another's",
     "for k = 1, 3000 do\n"
     "  local chunk = ('\\n'):rep(k % 97) .. 'local where, dev = ... return where(dev)'\n"
     "  local name = '=' .. (k % 13)\n"
     "  for _ = 1, 2 do\n"
     "    local line, source = load(chunk, name)(where, dev)\n" /* not a tail call of ours */
     "    expect(line, k % 97 + 1, 'the line')\n"
     "    expect(source, name:sub(2), 'the file')\n"
     "  end\n"
     "end\n"},
    {"the same with a collector that is never done",
     "collectgarbage('incremental', 100, 1)\n"
     "for k = 1, 3000 do\n"
     "  local chunk = ('\\n'):rep(k % 97) .. 'local where, dev = ... return (where(dev))'\n"
     "  expect(load(chunk)(where, dev), k % 97 + 1, 'the line')\n"
     "  if k % 7 == 0 then collectgarbage('step') end\n"
     "end\n"
     "collectgarbage('generational')\n"},
    {"closures of one function, of which only some are left",
     "local function make() return function()\n" /* 6 */
     "  return (where(dev)) end end\n"
     "local kept = make() expect(kept(), 7, 'kept')\n"
     "for _ = 1, 200 do expect(make()(), 7, 'made') collectgarbage('step') end\n"
     "expect(kept(), 7, 'kept')\n"},
    {"through pcall, metamethods, sort, coroutines and hooks",
     "expect(select(2, pcall(where, dev)), 6, 'pcall')\n"
     "local object = setmetatable({}, { __index = function() return (where(dev)) end,\n"
     "  __add = function() return (where(dev)) end })\n"
     "for _ = 1, 2 do expect(object.x, 7, 'index') expect(object + 1, 8, 'add') end\n"
     "expect(coroutine.wrap(function() return (where(dev)) end)(), 10, 'wrap')\n"
     "table.sort({ 2, 1 }, function(a, b) expect(where(dev), 11, 'sort') return a < b end)\n"
     "debug.sethook(function() end, 'crl', 1)\n"
     "for _ = 1, 3 do expect(where(dev), 13, 'hooked') end\n"
     "debug.sethook()\n"},
    {"a tail call, and a chunk without lines",
     "local function tail() return where(dev) end\n"
     "for _ = 1, 2 do expect(tail(), 6, 'tail') end\n"
     "local bare = load(string.dump(load 'local where, dev = ... return (where(dev))', true))\n"
     "for _ = 1, 2 do expect(bare(where, dev), 9, 'who called it') end\n"},
    {"files of ours are passed over",
     "local ours = load('local where, dev = ... return (where(dev))', '=gpulua/x.lua')\n"
     "for _ = 1, 2 do expect(ours(where, dev), 7, 'the line') end\n"
     "for _ = 1, 2 do expect(ours(where, dev), 8, 'the line') end\n"},
    {"results are made where something is done with them",
     "local function expect_wanted(what) expect(was_wanted(), true, what) end\n"
     "local a = wanted() expect_wanted 'a local'\n"
     "local t = { wanted() } expect_wanted 'a table' expect(#t, 2, 'how many')\n"
     "local function f() return wanted() end\n"
     "f() expect_wanted 'a tail call'\n"
     "print = print or expect expect(select('#', wanted()), 2, 'how many') expect_wanted 'an "
     "argument'\n"
     "if wanted() then expect_wanted 'a test' end\n"
     "pcall(wanted) expect_wanted 'pcall'\n"
     "coroutine.wrap(wanted)() expect_wanted 'a coroutine'\n"
     "for _ in wanted, 1 do expect_wanted 'a loop' break end\n"
     "local u = (wanted()) .. 'x' expect_wanted 'an operand' expect(u, '1x', 'the operand')\n"
     "expect(a, 1, 'the local')\n"},
    {"and nowhere else",
     "for _ = 1, 2 do wanted() expect(was_wanted(), not is_known, 'a statement') end\n"
     "wanted(wanted()) expect(was_wanted(), not is_known, 'a statement with a call in it')\n"
     "local object = setmetatable({}, { __index = { wanted = wanted }, __newindex = wanted })\n"
     "object:wanted() expect(was_wanted(), not is_known, 'a method')\n"
     "object.x = 1 expect(was_wanted(), not is_known, 'an assignment')\n"},
    {"arguments of launches are what Lua says they are, right and wrong",
     "local k = dev:compile [[extern \"C\" __global__ void k(int n, float a, double b, long long "
     "big,\n"
     "    float *x) { x[0] = n; x[1] = a; x[2] = b; x[3] = big / 3; }]].k\n"
     "local x, other = dev:buffer('f32', 4), dev:buffer('i32', 4)\n"
     "local function gives(want, ...)\n"
     "  for _ = 1, 2 do k:launch(...) end\n"
     "  expect(table.concat(x:read(), ' '), want, 'what the kernel got')\n"
     "end\n"
     "gives('5.0 0.5 0.25 7.0', 1, 5, 0.5, 0.25, 21, x)\n"
     "gives('5.0 2.0 3.0 7.0', 1, 5.0, 2, 3, 21.0, x)\n"
     "gives('-2147483648.0 0.0 -1.0 -7.0', 1.0, -2147483648, -0.0 + 0, -1, -21, x)\n"
     "gives('1.0 1.0 1.0 7.0', { grid = 1, block = 1 }, 1, 1.0, 1.0, 21, x)\n"
     "local function fails(what, ...)\n"
     "  for _ = 1, 2 do\n"
     "    local ok, problem = pcall(k.launch, ...)\n"
     "    if ok or not tostring(problem):find(what, 1, true) then\n"
     "      error(what .. ': ' .. tostring(problem), 2)\n"
     "    end\n"
     "  end\n"
     "end\n"
     "fails('argument 1 (n)', k, 1, 2147483648, 0, 0, 0, x)\n"
     "fails('argument 1 (n)', k, 1, 0.5, 0, 0, 0, x)\n"
     "fails('argument 1 (n)', k, 1, true, 0, 0, 0, x)\n"
     "fails('argument 2 (a)', k, 1, 1, 'text', 0, 0, x)\n"
     "fails('argument 5 (x)', k, 1, 1, 0, 0, 0, io.stdout)\n"
     "fails('argument 5 (x)', k, 1, 1, 0, 0, 0, k)\n"
     "fails('argument 5 (x)', k, 1, 1, 0, 0, 0, 17)\n"
     "fails('argument 5 (x)', k, 1, 1, 0, 0, 0, other)\n"
     "fails('takes 5 arguments, got 4', k, 1, 1, 0, 0, 0)\n"
     "fails('the number of threads expected', k)\n"
     "fails('kernel')\n"
     "fails('kernel', io.stdout, 1, 1, 0, 0, 0, x)\n"
     "fails('kernel', x, 1, 1, 0, 0, 0, x)\n"
     "fails('number of threads', k, 0, 1, 0, 0, 0, x)\n"
     "fails('number of threads', k, 1.5, 1, 0, 0, 0, x)\n"
     "fails('number of threads', k, x, 1, 0, 0, 0, x)\n"
     "other:close() fails('closed', k, 1, 1, 0, 0, 0, other)\n"
     "k:close() fails('closed', k, 1, 1, 0, 0, 0, x)\n"},
    {"tables of numbers are what Lua says they are, and the first that is none is named",
     "for _, type in ipairs { 'f32', 'f64' } do\n"
     "  for _, count in ipairs { 1, 31, 32, 33, 64, 2048, 2049 } do\n"
     "    local list = {}\n"
     "    for i = 1, count do list[i] = i % 3 == 0 and i or i + 0.5 end\n"
     "    local x = dev:upload(type, list)\n"
     "    for i, value in ipairs(x:read()) do expect(value, list[i] + 0.0, 'element ' .. i) end\n"
     "    for _, bad in ipairs { 'text', true, x } do\n"
     "      list[count] = bad\n"
     "      local ok, problem = pcall(dev.upload, dev, type, list)\n"
     "      expect(not ok and tostring(problem):match('element %d+'), 'element ' .. count, "
     "'names')\n"
     "    end\n"
     "    x:close()\n"
     "  end\n"
     "end\n"
     "local ok, problem = pcall(dev.upload, dev, 'f32', { 1, 1e300 })\n"
     "expect(not ok and tostring(problem):match 'element 2.*range' ~= nil, true, 'too large')\n"},
    {"graphed functions run again where an argument or upvalue has changed, and nowhere else",
     "local x, runs, long = dev:buffer('i32', 1), { count = 0 }, ('long'):rep(20)\n"
     "local values = { false, true, 0, 1, 1.0, 0.0, -0.0, 0 / 0, 1 << 62, 'short', 'other', long,\n"
     "  ('long'):rep(20), long .. 's', {}, { 1 }, print, function() end, x, dev,\n"
     "  coroutine.create(print), io.stdout }\n"
     "values.n = #values + 1\n" /* the last is nil */
     "local function is_same(a, b)\n"
     "  if math.type(a) ~= math.type(b) then return false end\n"
     "  if a ~= a then return b ~= b end\n"
     "  return rawequal(a, b) and (a ~= 0 or 1 / a == 1 / b)\n"
     "end\n"
     "local function check(what, fast, set)\n"
     "  for i = 1, values.n do\n" /* where it is slow each with itself and every fifth */
     "    for j = is_slow and (i - 1) % 5 + 1 or 1, values.n, is_slow and 5 or 1 do\n"
     "      fast(set(values[i]))\n"
     "      fast(set(values[i]))\n"
     "      local before = runs.count\n"
     "      fast(set(values[j]))\n"
     "      local same = is_same(values[i], values[j])\n"
     "      expect(runs.count - before, same and 0 or 1, what .. i .. ', ' .. j)\n"
     "    end\n"
     "  end\n"
     "end\n"
     "local options = { warmup = 0 }\n"
     "check('an argument ', dev:graphed(options, function(v)\n"
     "  runs.count = runs.count + 1\n"
     "  x:fill(0)\n"
     "  return v\n"
     "end), function(v) return v end)\n"
     "local up\n"
     "check('a variable of what runs ', dev:graphed(options, function()\n"
     "  runs.count = runs.count + 1\n"
     "  x:fill(0)\n"
     "  return up\n"
     "end), function(v) up = v end)\n"
     "local function make(first, last)\n"
     "  return function()\n"
     "    last.count = last.count + 1\n"
     "    x:fill(0)\n"
     "    return first\n"
     "  end, function(v) first = v end\n"
     "end\n"
     "local f, set = make(nil, runs)\n"
     "check('a variable of what has ended ', dev:graphed(options, f), set)\n"
     "local function number_of(f, name)\n"
     "  for i = 1, 9 do if debug.getupvalue(f, i) == name then return i end end\n"
     "end\n"
     "local fast, other = dev:graphed(options, f), make(9, runs)\n"
     "set(8) fast() fast()\n"
     "local before = runs.count\n"
     "expect(select(2, fast()), 8, 'joined to nothing')\n"
     "debug.upvaluejoin(f, number_of(f, 'first'), other, number_of(other, 'first'))\n"
     "expect(select(2, fast()), 9, 'joined to another')\n"
     "expect(runs.count - before, 1, 'runs behind a join')\n"
     "local fill = dev:graphed(options, x.fill)\n"
     "for _, value in ipairs { 5, 5, 6, 5 } do\n"
     "  fill(x, value)\n"
     "  expect(x:read()[1], value, 'a function of C')\n"
     "end\n"},
};

static void on_error(void *user, const gpulua_error *error) {
    (void)user;
    printf("# %s\n", error->message);
}

/* `is_known` false: as where Lua lays out its calls in another way. */
static void run(struct tap *tap, size_t number, bool is_known) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.on_error = on_error;
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    char text[8192], name[200];
    snprintf(text, sizeof text, "%s%s done = true", preface, cases[number].script);
    snprintf(name, sizeof name, "%s%s", cases[number].what,
             is_known ? "" : ", with nothing known of Lua's calls");
    lua_getglobal(L, "require");
    lua_pushstring(L, "gpulua");
    lua_call(L, 1, 1);
    int module = lua_gettop(L);
    bool was_known = g->caller.is_known;
    g->caller.is_known = is_known;
    luaL_loadbuffer(L, text, strlen(text), "caller");
    lua_pushvalue(L, module);
    gpu_lua_push_function(L, where);
    gpu_lua_push_function(L, wanted);
    lua_pushcfunction(L, was_wanted);
    lua_pushboolean(L, is_known);
    /* What is thrown or yields leaves the thread sanitizer's own stack longer, and all slower. */
    lua_pushboolean(L, TAP_IS_SANITIZED);
    if (gpulua_load_function(g, 6) == GPULUA_OK) {
        while (gpulua_step(g, -1) > 0) {}
    }
    lua_getglobal(L, "done");
    tap_check(tap, was_known && lua_toboolean(L, -1), name);
    gpulua_close(g);
}

/* A statement leaves nothing for the collector. */
static void test_garbage(struct tap *tap) {
    static const char script[] =
        "local gpu = require 'gpulua'\n"
        "local dev = gpu.device 'cpu'\n"
        "local add = dev:compile [[extern \"C\" __global__ void add(int *x) { x[0] += 1; }]].add\n"
        "local x = dev:upload('i32', { 0 })\n"
        "local graph = dev:capture(function() add:launch(1, x) end)\n"
        "local function launch(kept)\n"
        "  for _ = 1, 500 do add:launch(1, x) graph:launch() end\n"
        "end\n"
        "launch() dev:synchronize() collectgarbage() collectgarbage 'stop'\n"
        "local before = collectgarbage 'count'\n"
        "launch()\n"
        "made = collectgarbage 'count' - before\n"
        "collectgarbage 'restart'\n"
        "dev:synchronize()\n"
        "sum = x:read()[1]\n";
    gpulua_config config;
    gpulua_config_init(&config);
    config.on_error = on_error;
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    if (luaL_loadstring(L, script) == LUA_OK && gpulua_load_function(g, 0) == GPULUA_OK) {
        while (gpulua_step(g, -1) > 0) {}
    }
    lua_getglobal(L, "sum");
    tap_check(tap, lua_tointeger(L, -1) == 2000, "launches whose results nobody wants are made");
    lua_getglobal(L, "made");
    tap_check(tap, lua_isnumber(L, -1) && lua_tonumber(L, -1) < 1,
              "a thousand of them leave less than 1 KiB to the collector");
    gpulua_close(g);
}

int main(void) {
    struct tap tap = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run(&tap, i, true);
        run(&tap, i, false);
    }
    test_garbage(&tap);
    return tap_finish(&tap);
}
