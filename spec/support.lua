-- What several specs need: devices, errors, counts of what is alive, time, programs of their own.

local assert = require "luassert"
local gpu = require "gpulua"
local lfs = require "lfs"
local system = require "system"

local support = {}

-- The configuration of a launch of one thread: launch(1, ...) means at least one.
support.one = { grid = 1, block = 1 }

local opened = setmetatable({}, { __mode = "k" })

--- The device that GPULUA_DEVICE and GPULUA_ISOLATE choose, made anew: without options gpu.device
--- gives the one that is open already.
function support.open(opts)
  local dev = gpu.device(os.getenv "GPULUA_DEVICE", opts or {})
  opened[dev] = true
  return dev
end

function support.is_gpu()
  return (os.getenv "GPULUA_DEVICE" or ""):find "^cuda" ~= nil
end

function support.isolation()
  local isolation = os.getenv "GPULUA_ISOLATE"
  if isolation and isolation ~= "" then
    return isolation
  end
  return support.is_gpu() and "process" or "none"
end

function support.is_isolated()
  return support.isolation() == "process"
end

--- Is the CPU device in check mode (GPULUA_CHECK)? Work is done there when somebody asks, in an order of the
--- seed's.
function support.is_checked()
  local seed = os.getenv "GPULUA_CHECK"
  return seed ~= nil and seed ~= ""
end

--- For tests that see work under way, or whose kernels hide an access, which check mode refuses. Calls `pending`
--- there.
function support.wants_time(pending)
  if support.is_checked() then
    pending "in check mode nothing is under way"
  end
end

--- Closes what `open` made, for a spec's teardown.
function support.close_all()
  for dev in pairs(opened) do
    dev:close()
    opened[dev] = nil
  end
  collectgarbage()
end

--- Seconds on the wall, monotonic.
support.now = system.monotime

--- Runs f(...), which must raise an error object of that code; every text of `parts` (a string or a
--- list, plain) must be in its message. Returns the error.
function support.raises(code, parts, f, ...)
  local result = table.pack(pcall(f, ...))
  if result[1] then
    error(("no error was raised where %s was wanted"):format(code), 2)
  end
  local err = result[2]
  if type(err) == "string" or type(err) == "nil" then
    error(("%s was wanted, this is no error object: %s"):format(code, err), 2)
  end
  support.is_error(err, code, parts)
  return err
end

--- `err` must be an error object of that code with these parts in its message.
function support.is_error(err, code, parts)
  if type(err) ~= "table" and type(err) ~= "userdata" then
    error(("%s was wanted, this is no error object: %s"):format(code, tostring(err)), 2)
  end
  if err.code ~= code then
    error(("%s was wanted, not %s"):format(code, tostring(err)), 2)
  end
  if type(parts) == "string" then
    parts = { parts }
  end
  for _, part in ipairs(parts or {}) do
    if not err.message:find(part, 1, true) then
      error(("%q is not in the message of %s"):format(part, tostring(err)), 2)
    end
  end
  return err
end

--- The launch must fail with that code and these parts in its message, and with itself, asked for in `file`, as the
--- error's op. Returns the error.
function support.finds(file, code, parts, op)
  local err = support.raises(code, parts, op.await, op)
  assert.equal(op.label, err.op.label)
  assert.truthy(err.op.source:find(file, 1, true))
  assert.truthy(err.hint ~= "")
  return err
end

--- Waits for everything and collects everything: Lua's garbage, and on the device what was freed.
function support.settle(dev)
  collectgarbage()
  collectgarbage()
  dev:synchronize()
  collectgarbage()
  dev:synchronize()
  dev:trim()
end

local alive_fields = { "bytes_live", "bytes_pending", "blocks_live", "ops_in_flight", "streams_live", "modules_live",
  "kernels_live", "graphs_live", "staging_bytes", "errors_unobserved" }

--- What is alive on the device once it is quiet.
function support.alive(dev)
  support.settle(dev)
  local stats = dev:stats()
  local alive = {}
  for _, field in ipairs(alive_fields) do
    alive[field] = assert(stats[field], "stats() has no " .. field)
  end
  return alive
end

--- Runs f; afterwards exactly as much must be alive on the device as before. Streams that tasks
--- share are made at first use and stay: they are made beforehand.
function support.without_leak(dev, f)
  local before = support.alive(dev)
  f()
  local after = support.alive(dev)
  for _, field in ipairs(alive_fields) do
    if after[field] ~= before[field] then
      error(("%s was %d and is %d"):format(field, before[field], after[field]), 2)
    end
  end
end

--- The device still works: a copy there and back through a kernel.
function support.works(dev)
  local mod = dev:compile [[
    extern "C" __global__ void support_works(int n, int *x) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) x[i] = x[i] * 3 + 1;
    }]]
  local x <close> = dev:upload("i32", { 1, 2, 3, 4, 5 })
  mod.support_works:launch(5, 5, x):await()
  assert.are.same({ 4, 7, 10, 13, 16 }, x:read())
end

--- Compiles `source` and launches its first kernel; `...` are the arguments.
function support.launch(dev, source, config, ...)
  local mod = dev:compile(source)
  mod:kernel(mod:kernels()[1]):launch(config, ...)
  return mod
end

--- A buffer of n zeros.
function support.zeros(dev, element_type, n)
  return dev:buffer(element_type, n):fill(0)
end

--- `now()` for kernels that let time pass. On a GPU that others share, its clock64 was seen to stand nearly still
--- while they have it: not a fortieth of 100 s. What stands behind it is numbered from line 1 on.
support.clock_source = "\n" .. [[
  #ifndef HAS_NOW
  #define HAS_NOW
  #ifdef __GPULUA_CPU__
  static __device__ long long now() { return clock64(); }
  #else
  static __device__ long long now() {
    long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
  #endif
  #endif
  #line 1
]]

support.spin_source = support.clock_source .. [[
  extern "C" __global__ void spin(long long ticks, int *x, int value) {
    long long start = now();
    while (now() - start < ticks) { }
    if (threadIdx.x == 0) x[0] = value;
  }
  // Reads at the end of its time.
  extern "C" __global__ void spin_copy(long long ticks, const int *x, int *y, int n) {
    long long start = now();
    while (now() - start < ticks) { }
    for (int i = 0; i < n; i++) y[i] = x[i];
  }
  // Writes at the end of its time.
  extern "C" __global__ void spin_fill(long long ticks, int *x, int n, int value) {
    long long start = now();
    while (now() - start < ticks) { }
    for (int i = 0; i < n; i++) x[i] = value;
  }
]]

--- `seconds` for kernels that look at now(): both devices count nanoseconds.
function support.ticks(seconds)
  return math.max(1, math.floor(1e9 * seconds))
end

--- Lua's collector as gpulua starts it: for the end of a spec that has set it, or all that follow are slow.
function support.collect_as_usual()
  collectgarbage("incremental", 200, 100, 13)
  collectgarbage("generational", 20, 100)
  collectgarbage "restart"
end

-- ---- numbers ----

--- The nearest binary32 number.
function support.f32(x)
  return (string.unpack("<f", string.pack("<f", x)))
end

--- Distance of two numbers in units of the last place of `width` 32 or 64 at `b`.
function support.ulps(a, b, width)
  if a == b or (a ~= a and b ~= b) then
    return 0
  end
  if a ~= a or b ~= b or a == math.huge or b == math.huge or a == -math.huge or b == -math.huge then
    return math.huge
  end
  local digits, exponent_min = width == 32 and 24 or 53, width == 32 and -149 or -1074
  local exponent = exponent_min
  if b ~= 0 then
    local magnitude, e = math.abs(b), 0
    while magnitude >= 1 do
      magnitude, e = magnitude / 2, e + 1
    end
    while magnitude < 0.5 do
      magnitude, e = magnitude * 2, e - 1
    end
    exponent = math.max(e - digits, exponent_min)
  end
  return math.abs(a - b) / 2.0 ^ exponent
end

--- A small generator with a state of its own, the same everywhere: xorshift64*.
function support.random(seed)
  local state = seed * 0x9E3779B97F4A7C15 | 1
  return function(low, high)
    state = state ~ (state >> 12)
    state = state ~ (state << 25)
    state = state ~ (state >> 27)
    local value = (state * 0x2545F4914F6CDD1D) >> 11
    return low + value % (high - low + 1)
  end
end

--- A buffer of n elements of i32, each of them `value`.
function support.filled(dev, n, value, label)
  return dev:buffer("i32", n, { label = label }):fill(value)
end

--- The first element of a buffer.
function support.first(b)
  return b:read(1, 1)[1]
end

--- An 8 by 8 baseline JPEG, all of it one grey (128), put together by hand: quantisers of 1, and Huffman tables with
-- one code, for "difference 0" and "end of block".
function support.grey_jpeg()
  local function segment(marker, body)
    return "\xff" .. marker .. string.pack(">I2", #body + 2) .. body
  end
  local function one_code(class_and_id)
    return class_and_id .. "\1" .. ("\0"):rep(15) .. "\0"
  end
  return "\xff\xd8" .. segment("\xdb", "\0" .. ("\1"):rep(64))
    .. segment("\xc0", "\8" .. string.pack(">I2I2", 8, 8) .. "\1\1\x11\0")
    .. segment("\xc4", one_code("\0")) .. segment("\xc4", one_code("\x10"))
    .. segment("\xda", "\1\1\0\0\x3f\0") .. "\x3f" .. "\xff\xd9"
end

-- ---- the process ----

--- Descriptors that this process has open: number -> what it is.
function support.descriptors()
  local open, count = {}, 0
  for name in lfs.dir "/proc/self/fd" do
    local number = math.tointeger(name)
    local target = number and lfs.symlinkattributes("/proc/self/fd/" .. name, "target")
    -- The listing's own descriptor shows as a folder and is gone by now.
    if target and not target:find "^/proc/%d+/fd$" then
      open[number] = target
      count = count + 1
    end
  end
  return count, open
end

--- The bytes of a file; nil: there is none.
function support.read_file(path)
  local file = io.open(path, "rb")
  if not file then
    return nil
  end
  local text = file:read "a"
  file:close()
  return text
end
local read_all = support.read_file

function support.write_file(path, bytes)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(bytes))
end

--- A name for a file that is not there, in the folder for such files. It ends with `ending`.
function support.path(ending)
  local path = os.tmpname()
  os.remove(path)
  return path .. ending
end

--- The first Python that has NumPy, as distributions put it beside their own; without one any Python, or nothing.
-- The second result says whether it has.
function support.python()
  for _, python in ipairs { "python3", "/usr/bin/python3" } do
    if os.execute(python .. " -c 'import numpy' > /dev/null 2>&1") then
      return python, true
    end
  end
  return os.execute "python3 -c '' > /dev/null 2>&1" and "python3" or nil, false
end

--- A number that no other program of these days has, for sources that no cache has.
function support.fresh()
  return os.time() % 100000 * 4096 + support.pid() % 4096
end

function support.pid()
  return math.tointeger(read_all("/proc/self/stat"):match "^(%d+)")
end

--- Children of this process, zombies included: pid -> state letter.
function support.children()
  local own = support.pid()
  local found, count = {}, 0
  for name in lfs.dir "/proc" do
    if name:find "^%d+$" then
      local stat = read_all("/proc/" .. name .. "/stat")
      -- The program's name stands in parentheses and may hold anything.
      local state, parent = (stat or ""):match "^%d+ %(.*%) (%a) (%d+)"
      if parent and math.tointeger(parent) == own then
        found[math.tointeger(name)] = state
        count = count + 1
      end
    end
  end
  return found, count
end

--- The child that a device lives in: the one that is there after open and was not before.
function support.open_with_pid(opts)
  local before = support.children()
  local dev = support.open(opts)
  for pid in pairs((support.children())) do
    if not before[pid] then
      return dev, pid
    end
  end
  return dev, nil
end

--- What each thread of this process and of its children is at, a line each, with how often it went to sleep within a
--- second (one that looks now and then does hundreds of times), and what the device counts.
local function what_goes_on(dev)
  local pids, lines = { support.pid() }, {}
  for pid in pairs((support.children())) do
    pids[#pids + 1] = pid
  end
  local function sleeps(pid, thread)
    local status = read_all(("/proc/%d/task/%s/status"):format(pid, thread)) or ""
    return tonumber(status:match "voluntary_ctxt_switches:%s+(%d+)") or 0
  end
  local before = {}
  for _, pid in ipairs(pids) do
    for thread in lfs.dir("/proc/" .. pid .. "/task") do
      before[thread] = thread:find "^%d+$" and sleeps(pid, thread)
    end
  end
  gpu.sleep(1)
  for _, pid in ipairs(pids) do
    for thread in lfs.dir("/proc/" .. pid .. "/task") do
      local function look(file)
        return (read_all(("/proc/%d/task/%s/%s"):format(pid, thread, file)) or "?"):gsub("%s+$", "")
      end
      if thread:find "^%d+$" then
        lines[#lines + 1] = ("%d/%s %s %s at %s, %d times in 1 s: %s"):format(pid, thread, look "comm",
          look "status":match "State:%s+(%a)" or "?", look "wchan", sleeps(pid, thread) - (before[thread] or 0),
          look "syscall")
      end
    end
  end
  for name, value in pairs(dev:stats()) do
    if value ~= 0 and not name:find "^limit_" then
      lines[#lines + 1] = name .. " " .. tostring(value)
    end
  end
  return table.concat(lines, "\n  ")
end

--- Whether a GPU does anything for others meanwhile, and for another stream of this device, which specs the others are,
--- what the device was given last, and whether the task comes back later: one that waits for its turn does, one that is
--- forgotten does not.
local function what_comes_later(task, dev)
  local lines = {}
  local other <const>, limit_s <const> = dev:buffer("i32", 1), 5
  local filled <const> = gpu.spawn(function() dev:stream {}:use(function() other:fill(0):await() end) end)
  local is_filled, why = pcall(filled.await, filled, limit_s)
  lines[1] = ("another stream: %s"):format(is_filled and "back" or why)
  local begun <const> = support.now()
  local another = ("timeout 60 %s/gpulua --device %s --isolate none -e %q"):format(
    os.getenv "GPULUA_BUILD" or "build", dev.kind, [[require "gpulua".device():buffer("i32", 1):fill(0):await()]])
  local ok, _, code = os.execute(another)
  lines[2] = ("another process: %s %s, %.1f s"):format(ok, code, support.now() - begun)
  local folder = (os.getenv "GPULUA_TEST_CURRENT" or ""):match "^(.*)/" or "."
  for name in lfs.dir(folder) do
    local text = name:find "%.current$" and read_all(folder .. "/" .. name)
    if text and text ~= "" then
      lines[#lines + 1] = name .. ": " .. text:gsub("\n.*", "")
    end
  end
  local late <const>, more_s <const> = support.now(), 60
  local is_well, err = pcall(task.await, task, more_s)
  lines[#lines + 1] = ("%s %.1f s later: %s"):format(task:done() and "back" or "not back", support.now() - late,
    is_well or err)
  if not task:done() and dev.pid ~= support.pid() then -- of what is lost the flight says what may have been running
    os.execute("kill -9 " .. dev.pid)
    pcall(task.await, task, 10)
  end
  local flight = {}
  for line in dev:flight():gmatch "[^\n]+" do
    flight[#flight + 1] = line
  end
  table.move(flight, math.max(1, #flight - 80), #flight, #lines + 1, lines)
  return table.concat(lines, "\n  ")
end

--- Waits for a task of `what`; where it is not over in time, the error says what everybody is at.
function support.comes_back(seconds, task, dev, what)
  local results = table.pack(pcall(task.await, task, seconds))
  if not results[1] and not task:done() then
    local now = what_goes_on(dev)
    error(("%s: not back within %g s (%s)\n  %s\n  %s"):format(what, seconds, results[2].message, now,
      what_comes_later(task, dev)), 2)
  elseif not results[1] then
    error(results[2], 0)
  end
  return table.unpack(results, 2, results.n)
end

function support.process_is_gone(pid)
  return read_all("/proc/" .. pid .. "/stat") == nil
end

--- Polls until f() is true; false after that many seconds, and not before 30: on a slow machine much is late, and what
--- never comes is none the sooner known for it.
function support.eventually(seconds, f)
  local deadline = support.now() + math.max(seconds, 30)
  while not f() do
    if support.now() > deadline then
      return false
    end
    gpu.sleep(0.01)
  end
  return true
end

--- Is this process watched by a sanitizer that keeps freed memory? Then it grows in any case.
function support.keeps_freed_memory()
  return read_all("/proc/self/maps"):find "libasan" ~= nil or os.getenv "ASAN_OPTIONS" ~= nil
end

--- it(name, f) in one of the suite's runs, for what takes seconds and says by itself where its device is, or has
--- nothing to do with that: in that of none; where sanitizers watch, who have no such run, in that of thread.
function support.once(it, name, f)
  if support.isolation() == (support.keeps_freed_memory() and "thread" or "none") then
    return it(name, f)
  end
end

--- Runs f(seconds, seen), which begins work of so many seconds, finds what is so only while that is under way, and
--- calls seen() then. What f raises is raised, unless half of the time had passed by then: a script that was as late
--- has found nothing out, and f runs again with four times as much, twice. Where work begins later than f, f calls its
--- third argument just before.
function support.under_way(seconds, f)
  for _ = 1, 2 do
    local begun, seen_at = support.now(), nil
    local ok, err = pcall(f, seconds, function() seen_at = support.now() end, function() begun = support.now() end)
    if ok then
      return
    elseif (seen_at or support.now()) - begun < seconds / 2 then
      error(err, 0)
    end
    seconds = seconds * 4
  end
  f(seconds, function() end, function() end)
end

--- How often another task, which sleeps for 1 ms each time, goes on while f(1) runs. If that is less than `wanted`, f
--- runs again, with 4 and with 16, for so many times as long: the machine may have been busy.
function support.turns_beside(wanted, f)
  local turns
  for round = 0, 2 do
    local is_over = false
    turns = 0
    local counter = gpu.spawn(function()
      while not is_over do
        turns = turns + 1
        gpu.sleep(0.001)
      end
    end)
    f(4 ^ round)
    is_over = true
    counter:await()
    if turns >= wanted then
      break
    end
  end
  return turns
end

--- Resident bytes of this process.
function support.resident_bytes()
  local pages = read_all("/proc/self/statm"):match "^%d+ (%d+)"
  return math.tointeger(pages) * 4096
end

--- Loses the device with a fill of b, and waits until it is back.
function support.lose_with(dev, b)
  dev:inject { lost = 1 }
  pcall(function() b:fill(1):await() end)
  dev:await()
end

--- The device's process dies, and the device is up again.
function support.lose(dev)
  local pid, epoch = dev.pid, dev.epoch
  os.execute("kill -9 " .. pid)
  assert.is_true(support.eventually(10, function() -- it may be a moment until it is dead
    dev:await()
    return dev.epoch > epoch
  end))
  assert.equal(epoch + 1, dev.epoch)
  assert.not_equal(pid, dev.pid)
  assert.is_true(support.eventually(5, function() return support.process_is_gone(pid) end))
end

--- Runs a shell's command. Returns what it wrote (both streams) and its exit code.
function support.command(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local output = pipe:read "a"
  local _, _, code = pipe:close()
  return output, code
end

local function run_text(text, environment, program)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  local output, code = support.command(("%s %s %s"):format(environment or "", program, path))
  os.remove(path)
  return output, code
end

--- Runs a Lua text as a script of its own under build/gpulua. Returns what it wrote (both streams)
--- and its exit code. `environment`: assignments as in a shell.
function support.script(text, environment)
  return run_text(text, environment, (os.getenv "GPULUA_BUILD" or "build") .. "/gpulua")
end

--- The same under Lua's own interpreter, which finds gpulua.
function support.stock_script(text)
  local build = os.getenv "GPULUA_BUILD" or "build"
  return run_text(text, ("LUA_CPATH='%s/lua/?.so;;'"):format(build), os.getenv "GPULUA_LUA" or "lua5.4")
end

--- Is there libuv's Lua library? Asked of another program, for loading it here would begin a loop.
function support.has_luv()
  local _, code = support.stock_script "require 'luv'"
  return code == 0
end

--- Is there libdw, by which findings of check mode have lines?
function support.has_libdw()
  return package.loadlib(os.getenv "GPULUA_LIBDW" or "libdw.so.1", "*") ~= nil
end

local browser -- its command; false: there is none

--- What a page has become when its scripts have run, and what the browser said, which must not be of errors. `folder`
-- is for what it leaves; no name but those of files leads anywhere. Pending without a browser.
function support.browse(pending, folder, path)
  if browser == nil then
    for _, name in ipairs { "chromium", "chromium-browser", "google-chrome" } do
      browser = browser or os.execute("command -v " .. name .. " > /dev/null 2>&1") and name or false
    end
  end
  if not browser then
    pending "no Chromium"
  end
  local command = ("timeout -s KILL 120 %s --headless=new --no-sandbox --disable-gpu --user-data-dir=%s/profile "
    .. "--window-size=1400,900 --host-resolver-rules='MAP * ~NOTFOUND' --enable-logging=stderr --dump-dom 'file://%s' "
    .. "2> %s/said"):format(browser, folder, path, folder)
  local pipe = assert(io.popen(command))
  local dom = pipe:read "a"
  pipe:close()
  local said = support.read_file(folder .. "/said")
  assert.falsy(said:find "CONSOLE", said)
  return dom, said
end

return support
