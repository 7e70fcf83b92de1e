-- What specs of pipelines need, for busted (https://lunarmodules.github.io/busted): assertions about buffers, orders
-- and leaks, failures on demand, each device in its turn, and a look behind each test.
--
--     local kit = require "gpulua.busted"          -- in a spec: for that file
--     helper = "gpulua.busted"                     -- in the file .busted: for all of them
--
-- From then on a test fails that leaves something behind: buffers, streams or graphs that are held still, work in
-- flight, a failure of work or of a task that nobody has seen (also of a device that the test has closed), a task that
-- is not over, a capture that is open, which is ended. The message names the lines
-- that made them. Garbage is no leak. It is looked for behind the test and its `finally`, before after_each; what was
-- there before the test, made by setup and before_each, is not its own. Work and tasks have a second to end by
-- themselves.
--
--     assert.allclose(a, b[, { rtol =, atol =, equal_nan = }])
--         Buffers, host buffers, scalars, tables of numbers and numbers (which stand for any count): of the same shape,
--         and each |x - y| <= atol + rtol * max(|x|, |y|). Without numbers, the tolerances are those of torch.testing,
--         by element type: f32 1.3e-6 and 1e-5, f64 1e-7 and 1e-7, f16 1e-3 and 1e-5, integers none. Two NaNs are close
--         with equal_nan alone.
--     assert.bitequal(a, b)
--         The same, bit by bit; numbers are converted to the element type beside them.
--     assert.racefree(f[, { seeds =, options = }])
--         f(device, seed) gives the same results and raises nothing under each seed: an order of its work and of its
--         tasks on a CPU device of its own in check mode. seeds: how many (200), or a list of them; options: more for
--         gpu.device, but check and seed. f returns what is to be compared: numbers, strings, buffers, tables of these.
--     assert.deterministic(f[, { runs =, device =, seeds =, options = }])
--         f(device) returns the same bits in so many runs (3; 0: none) on that device (the default one), and under so
--         many seeds (20; 0: none).
--     assert.noleaks(f)
--         f() leaves nothing behind, and no device open.
--
-- Each has a negation (assert.is_not.allclose). All of them wait, and yield in a task.

local assert = require "luassert"
local busted = require "busted"
local gpu = require "gpulua"
local say = require "say"

local compare = require "gpulua.compare"
local core = require "gpulua.core"
local leftovers = require "gpulua.leftovers"
local orders = require "gpulua.orders"
local fail <const> = require "gpulua.arguments".fail
local is_callable <const> = require "gpulua.arguments".is_callable
local write <const> = require "gpulua.file".write
local getfenv <const> = require "busted.compatibility".getfenv

if not busted.subscribe then
  error("gpulua.busted is for specs: run them with busted", 3)
end

local kit = {}

local settle_s <const> = 1 -- that work and tasks have to end by themselves, behind a test

-- ---- assertions ----

--- look(state, ...) -> true or false, text; or nil, what is wrong with argument n, n. `head` says what was expected;
-- the %s in it is "not " or nothing.
local function register(name, head, look)
  local key = "gpulua." .. name
  say:set(key, "%s")
  assert:register("assertion", name, function(state, arguments, level)
    local result, text, more = look(state, table.unpack(arguments, 1, arguments.n))
    if result == nil then
      error(string.format("argument %d of %s: %s", more, name, text), level + 1)
    end
    local wanted = string.format(head, state.mod and "" or "not ")
    arguments[1] = string.format("Expected %s%s.\n%s", wanted, type(more) == "string" and ", " .. more or "", text)
    arguments.n, arguments.nofmt = 1, { true }
    return result
  end, key, key)
end

register("allclose", "a and b %sto be close", function(_, ...)
  return compare.allclose(...)
end)

register("bitequal", "a and b %sto be the same, bit by bit", function(_, ...)
  return compare.bitequal(...)
end)

--- Is it something that can be called? nil, what is wrong, 1: it is not.
local function callable(f)
  if is_callable(f) then
    return true
  end
  return nil, string.format("a function expected, got %s", core.type(f) or type(f)), 1
end

for _, name in ipairs { "racefree", "deterministic" } do
  register(name, name == "racefree" and "the function %sto do the same under all seeds" or
    "the function %sto return the same each time", function(state, f, options)
    local ok, problem, number = callable(f)
    if not ok then
      return nil, problem, number
    end
    return orders[name](f, options, not state.mod)
  end)
end

register("noleaks", "the function %sto leave nothing behind", function(_, f)
  local ok, problem, number = callable(f)
  if not ok then
    return nil, problem, number
  end
  local before = leftovers.now()
  f()
  local lines = leftovers.since(before, { settle = settle_s, devices = true })
  return #lines == 0, #lines > 0 and table.concat(lines, "\n") or "Nothing was left behind."
end)

-- ---- failures on demand ----

local injected = {} -- devices, since the last test

local function inject(device, given)
  local devices = device and { device } or core.devices()
  if #devices == 0 then
    devices = { gpu.device() }
  end
  for _, each in ipairs(devices) do
    each:inject(given)
    injected[each] = true
  end
end

kit.inject = {}

for _, name in ipairs { "oom", "fault", "lost" } do
  --- inject.oom([n[, device]]): the n-th buffer from now on, 1 unless said,
  --- inject.fault([n[, device]]): the n-th operation,
  --- inject.lost([n[, device]]): the device's process at the n-th operation goes wrong on the device; unless said, on
  -- each that is open. See device:inject. What has not come when the test is over is withdrawn. Does not block, but to
  -- open the default device if none is open. InvalidArgument, Closed.
  kit.inject[name] = function(n, device)
    inject(device, { [name] = n == nil and 1 or n })
  end
end

--- inject.slow(kernel[, seconds[, device]]): the next launch of the kernel of that name begins so many seconds later, 1
-- unless said. The same otherwise; the first on a device compiles, and yields in a task.
function kit.inject.slow(kernel, seconds, device)
  inject(device, { slow = kernel, seconds = seconds })
end

local function withdraw()
  for device in pairs(injected) do
    pcall(device.inject, device, { oom = 0, fault = 0, lost = 0, slow = false }) -- it may be closed, or lost
  end
  injected = {}
end

-- ---- behind each test ----

local current -- { element =, run =, before =, opened = devices, allowed = set }
local allowed = {} -- until the end of the next test
local kinds <const> = { memory = true, work = true, tasks = true }

--- kit.allow(...): the test that runs, or that comes next (before_each), may leave this behind: "memory"
-- (buffers, graphs, streams), "work", "tasks". What is left of tasks is cancelled all the same.
function kit.allow(...)
  for _, kind in ipairs { ... } do
    if not kinds[kind] then
      fail("allow", "'memory', 'work' or 'tasks' expected, got %s", tostring(kind))
    end
    allowed[kind] = true
  end
end

local function look(test)
  return leftovers.since(test.before, { settle = settle_s, cancels = true, memory = not allowed.memory,
    work = not allowed.work, tasks = not allowed.tasks })
end

--- Runs the test and what it gave to `finally`, then looks. If the test fails, busted runs that itself.
local function watched(test)
  local run, env, last = test.run, test.element.env, nil
  local give = env.finally
  local function finish()
    local f = last
    last = nil
    if f then
      f()
    end
  end
  function env.finally(f)
    last = f
    give(finish)
  end
  return function(...)
    run(...)
    finish()
    local lines = look(test)
    test.is_seen = true
    if #lines > 0 then
      local at = test.element.trace
      busted.fail(string.format("%s:%d: the test has left something behind.\n%s", at.short_src, at.currentline,
        table.concat(lines, "\n")), 0)
    end
  end
end

--- Was this file loaded by a helper, so that it is there for all specs? Otherwise for the file that is being run.
local function is_helper()
  for level = 3, math.huge do
    local info = debug.getinfo(level, "S")
    if not info then
      return false
    elseif string.find(info.source, "busted[/\\]modules[/\\]helper_loader%.lua$") then
      return true
    end
  end
end

local is_over = false -- the file that wanted it

local function subscribe(channel, f)
  busted.subscribe(channel, function(...)
    if not is_over then
      f(...)
    end
    return nil, true -- go on with who else listens
  end)
end

subscribe({ "test", "start" }, function(element)
  if element.descriptor == "it" and not element.gpulua_run then
    element.gpulua_run = element.run
    current = { element = element, run = element.run, opened = {}, before = leftovers.now() }
    element.run = watched(current)
  end
end)

subscribe({ "test", "end" }, function(element)
  local test = current
  if not test or test.element ~= element then
    return
  end
  current = nil
  element.run, element.gpulua_run = element.gpulua_run, nil
  withdraw()
  if not test.is_seen then
    look(test) -- it failed, or is pending; what it left goes, unsaid
  end
  allowed = {}
  for _, device in ipairs(test.opened) do
    device:close()
  end
end)

local is_global <const> = is_helper()

subscribe({ "file", "end" }, function()
  is_over = not is_global
end)

-- ---- each device in its turn ----

local why = {} -- by name: why there is no such device, or false
local absent <const> = { NoDevice = true, LibraryUnavailable = true, Unsupported = true } -- the last: not in this build

local function missing(name)
  if why[name] == nil then
    local ok, err = pcall(gpu.device, name)
    local code = not ok and core.type(err) == "error" and err.code
    why[name] = absent[code] and err.message
  end
  return why[name]
end

--- The devices of $GPULUA_TEST_DEVICES ("cpu,cuda:1"), or nil.
local function wanted()
  local list = {}
  for name in string.gmatch(os.getenv "GPULUA_TEST_DEVICES" or "", "[^,%s]+") do
    list[#list + 1] = name
  end
  return #list > 0 and list or nil
end

--- What a block of describe_devices is called with; `fixed`: options that its devices have.
local function opener(name, fixed)
  local own = {} -- opened outside of tests
  local shared   -- what device() is, where the block's devices have options
  local function open(options)
    if options == nil and next(fixed) ~= nil then
      if not shared or not pcall(shared.stats, shared) then -- a test has closed it
        shared = gpu.device(name, fixed)
      end
      return shared
    end
    local all = {}
    for _, set in ipairs { fixed, options or {} } do
      for key, value in pairs(set) do
        all[key] = value
      end
    end
    if next(all) == nil and options == nil then
      return gpu.device(name)
    end
    local device = gpu.device(name, all)
    table.insert(current and current.opened or own, device)
    return device
  end
  return open, function()
    for _, device in ipairs(own) do
      device:close()
    end
    own = {}
    if shared then
      shared:close()
      shared = nil
    end
  end
end

--- Instead of the block: its tests, each of which is pending.
local function all_pending(f, open, name, reason)
  local env = getfenv(f)
  local function skip() end
  for _, hook in ipairs { "setup", "teardown", "lazy_setup", "lazy_teardown", "strict_setup", "strict_teardown",
    "before_each", "after_each" } do
    env[hook] = skip
  end
  local it = env.it
  local function pending_test(test, body)
    if body == nil then
      return function(given) return pending_test(test, given) end
    end
    return it(test, function() -- a tail call: busted asks who called
      local at = current.element.trace
      env.pending(string.format("%s:%d: no device %s here: %s", at.short_src, at.currentline, name, reason))
    end)
  end
  for _, alias in ipairs { "it", "test", "spec" } do
    env[alias] = pending_test
  end
  f(open, name)
end

--- kit.describe_devices([devices,] name, f): describe(name .. " on " .. device, ...) for each device, with f(device,
-- its name) as the block. In tests and hooks, device() is the opened device, device(options) one of its own with these
-- options, which is closed when the test is over (in setup: when the block is). devices: names like "cpu" and "cuda:1",
-- or tables { "cpu", check = true, seed = 7 } with options for gpu.device; { "cpu", "cuda" } unless said, for which
-- $GPULUA_TEST_DEVICES ("cpu,cuda") may give others. Tests of a device that there is not are pending, and say why;
-- one that $GPULUA_TEST_DEVICES names has to be there.
function kit.describe_devices(devices, name, f)
  if f == nil then
    devices, name, f = nil, devices, name
  end
  if type(name) ~= "string" or type(f) ~= "function" or devices ~= nil and type(devices) ~= "table" then
    fail("describe_devices", "[a list of devices,] a name, a function expected, got %s, %s, %s", type(devices),
      type(name), type(f))
  end
  local forced = devices == nil and wanted()
  for _, entry in ipairs(forced or devices or { "cpu", "cuda" }) do
    local fixed = {}
    for key, value in pairs(type(entry) == "table" and entry or {}) do
      fixed[key] = key ~= 1 and value or nil
    end
    local kind = type(entry) == "table" and entry[1] or entry
    if type(kind) ~= "string" then
      fail("describe_devices", "the name of a device expected, got %s", type(kind))
    end
    local words = {}
    for key, value in pairs(fixed) do
      words[#words + 1] = string.format("%s=%s", key, tostring(value))
    end
    table.sort(words)
    local said = #words > 0 and " (" .. table.concat(words, " ") .. ")" or ""
    busted.describe(string.format("%s on %s%s", name, kind, said), function()
        local open, close = opener(kind, fixed)
        local reason = not forced and missing(kind)
        if reason then
          all_pending(f, open, kind, reason)
        else
          f(open, kind)
          busted.teardown(close)
        end
      end)
  end
end

-- ---- reports for CI ----

--- XML has no control characters, and UTF-8 not any bytes: U+FFFD stands for each.
local function mended(text)
  text = string.gsub(text, "[\0-\8\11\12\14-\31]", "\u{FFFD}")
  local parts, at = {}, 1
  while at do
    local _, bad = utf8.len(text, at)
    parts[#parts + 1] = string.sub(text, at, bad and bad - 1 or -1)
    at = bad and bad + 1
  end
  return table.concat(parts, "\u{FFFD}")
end

-- $GPULUA_TEST_JUNIT: busted's own JUnit report goes into that file, beside what is shown. With a helper alone, for it
-- begins with the suite.
local report <const> = os.getenv "GPULUA_TEST_JUNIT"
if is_global and report and report ~= "" then
  local ok, err = pcall(write, report, "GPULUA_TEST_JUNIT", "")
  if not ok then
    error(err.message, 0) -- busted takes texts from helpers
  end
  require "busted.outputHandlers.junit" { arguments = { report } }:subscribe { language = "en" }
  subscribe({ "exit" }, function()
    local file <close> = assert(io.open(report, "rb"))
    write(report, "GPULUA_TEST_JUNIT", mended(file:read "a"))
  end)
end

return kit
