-- What a script closes in the middle of a call that uses it: in a metamethod of an argument, or in a finaliser that
-- runs because the call allocates.

local gpu = require "gpulua"
local support = require "spec.support"

local source = [[
  extern "C" __global__ void put(float2 *y, float2 a, int n) { y[0] = a; }
  extern "C" __global__ void put_last(float2 *y, float2 a) { y[0] = a; }
]]

--- {1, 2}, whose length is asked for with `f`.
local function pair(f)
  return setmetatable({ 1, 2 }, {
    __len = function()
      f()
      collectgarbage()
      collectgarbage()
      return 2
    end,
  })
end

--- Options whose fields are asked for with `f`.
local function options(f)
  return setmetatable({}, {
    __index = function(_, key)
      return f(key)
    end,
  })
end

describe("closed in the middle of a call by a metamethod:", function()
  local dev, mod

  setup(function()
    dev = support.open()
    mod = dev:compile(source)
  end)
  teardown(support.close_all)

  local function put()
    return mod:kernel("put", "y: inout c64*, a: c64, n: i32")
  end
  local function put_last()
    return mod:kernel("put_last", "y: inout c64*, a: c64")
  end

  -- Each gets a buffer of one c64 and returns what to call, and with what. The name, the code that it raises or
  -- "works", the call.
  local calls = {
    { "the kernel, before its last argument", "Closed", function(y)
      local k = put()
      return k.launch, k, 1, y, pair(function() k:close() end), 1
    end },
    { "the kernel, in its last argument", "Closed", function(y)
      local k = put_last()
      return k.launch, k, 1, y, pair(function() k:close() end)
    end },
    { "a buffer of an argument before", "Closed", function(y)
      local k = put()
      local z = dev:buffer("c64", 1)
      return k.launch, k, 1, z, pair(function() z:close() end), y and 1
    end },
    { "the stream of a launch", "Closed", function(y)
      local k, s = put(), dev:stream {}
      return k.launch, k, { grid = 1, stream = s }, y, pair(function() s:close() end), 1
    end },
    { "a graph that is bound", "Closed", function(y)
      local k = put()
      local g = dev:capture(function() k:launch(1, y, { 1, 2 }, 1) end)
      dev:synchronize()
      return g.bind, g, { ["put#1.n"] = 2, ["put#1.y"] = dev:buffer("c64", 1),
        ["put#1.a"] = pair(function() g:close() dev:synchronize() dev:trim() end) }
    end },
    { "a buffer that is bound", "Closed", function(y)
      local k, z = put(), dev:buffer("c64", 1)
      local g = dev:capture(function() k:launch(1, y, { 1, 2 }, 1) end)
      return g.bind, g, { ["put#1.y"] = z, ["put#1.a"] = pair(function() z:close() end) }
    end },
    { "the table of a bind, cleared and filled", "works", function(y)
      local k = put()
      local g = dev:capture(function() k:launch(1, y, { 1, 2 }, 1) end)
      local names = { ["put#1.n"] = 2 }
      names["put#1.a"] = pair(function()
        for name in pairs(names) do
          names[name] = nil
        end
        for i = 1, 100 do
          names["name " .. i] = 1
        end
      end)
      return g.bind, g, names
    end },
    { "the memory that another is to stand on", "Closed", function()
      local below = dev:memory {}
      return dev.memory, dev, options(function(key)
        if key == "from" then
          return below
        elseif key == "budget" then
          below:close()
        end
      end)
    end },
    { "the memory that another is to stand on, which nothing else keeps", "works", function()
      return dev.memory, dev, options(function(key)
        if key == "from" then
          return dev:memory {}
        end
        collectgarbage()
        collectgarbage()
      end)
    end },
    { "the memory that another is to stand on, asked for once", "works", function()
      local asked = {}
      return dev.memory, dev, options(function(key)
        asked[key] = (asked[key] or 0) + 1
        if asked[key] == 1 and (key == "from" or key == "log") then
          return key == "from" and dev:memory {} or function() end
        end
      end)
    end },
    { "the memory whose log line is told", "works", function()
      local mem
      mem = dev:memory { log = function() mem:close() end }
      return mem.buffer, mem, "f32", 4
    end },
    { "the memory whose log line is told, by a sink that fails", "works", function()
      local mem
      mem = dev:memory { log = function() mem:close() error "no" end }
      return mem.buffer, mem, "f32", 4
    end },
    { "the device of a capture", "Closed", function()
      local other = support.open {}
      return other.capture, other, options(function(key)
        if key == "label" then
          other:close()
        end
      end), function() end
    end },
    { "the pool of a capture", "Closed", function()
      local pool = dev:pool()
      return dev.capture, dev, options(function(key)
        if key == "pool" then
          return pool
        end
        pool:close()
      end), function() end
    end },
    { "the stream of a graph's launch", "Closed", function(y)
      local k, s = put(), dev:stream {}
      local g = dev:capture(function() k:launch(1, y, { 1, 2 }, 1) end)
      return g.launch, g, options(function(key)
        if key == "stream" then
          g:close()
          s:close()
          return s
        end
      end)
    end },
    { "the stream of a recorder, which nothing else keeps", "works", function()
      return dev.recorder, dev, options(function(key)
        if key == "stream" then
          return dev:stream {}
        end
        collectgarbage()
      end)
    end },
  }
  for _, call in ipairs(calls) do
    local name, code, make = table.unpack(call)
    it(name, function()
      local y = dev:buffer("c64", 1):fill(0)
      if code == "works" then
        local results = table.pack(pcall(make(y)))
        assert.truthy(results[1], tostring(results[2]))
      else
        support.raises(code, nil, make(y))
      end
      dev:synchronize()
      support.works(dev)
    end)
  end

  it("the label of a launch, taken out of its table, stays that of the launch", function()
    local k, y = put(), dev:buffer("c64", 1)
    local config = { grid = 1, label = ("label "):rep(5) .. 1 }
    local others = {}
    local op = k:launch(config, y, pair(function()
      config.label = nil
      collectgarbage()
      for i = 1, 1000 do
        others[i] = ("other "):rep(5) .. i % 10
        others[-i] = others[i] .. i
      end
    end), 1)
    assert.truthy(op.label == "put" or op.label == ("label "):rep(5) .. 1, op.label)
    op:await()
    local hooked = support.open()
    local seen = {}
    hooked:hooks { before_enqueue = function(info)
      config.label = nil
      collectgarbage()
      for i = 1, 1000 do
        others[i] = ("third "):rep(5) .. i
      end
      seen[#seen + 1] = info.label
    end }
    config.label = ("label "):rep(5) .. 2
    op = hooked:compile(source):kernel("put", "y: inout c64*, a: c64, n: i32")
      :launch(config, hooked:buffer("c64", 1), 1, 1)
    assert.equal(("label "):rep(5) .. 2, op.label)
    op:await()
    assert.equal(op.label, seen[#seen])
    hooked:close()
  end)

  it("the device of a capture, whose memory is overwritten at once", function()
    local output = support.script([[
      local support = require "spec.support"
      local other = support.open()
      local ok, err = pcall(other.capture, other, setmetatable({}, { __index = function(_, key)
        if key == "label" then
          other:close()
        end
      end }), function() end)
      print(ok, err.code)
    ]], "MALLOC_PERTURB_=165")
    assert.equal("false\tClosed\n", output)
  end)

  it("the list of suspects of an error, while it is made to text", function()
    for _, other in ipairs { 5, "text", false } do
      local _, err = pcall(gpu.device, "no such")
      err.suspects = { setmetatable({}, { __index = function() err.suspects = other end }), {}, 7 }
      assert.truthy(tostring(err):find("suspect", 1, true))
    end
    local _, err = pcall(gpu.device, "no such")
    err.suspects = { 1, "text", { label = "real" } }
    assert.truthy(tostring(err):find("suspect: real", 1, true))
  end)

  it("errors whose __tostring waits, so that others are told meanwhile, are told each once and in whole", function()
    local output = support.script [[
      local gpu = require "gpulua"
      gpu.spawn(function()
        for i = 1, 4 do
          gpu.spawn(function()
            error(setmetatable({}, { __tostring = function()
              gpu.sleep(0.001)
              return "failure number " .. i
            end }))
          end)
        end
      end):detach()
      gpu.sleep(0.1)
    ]]
    for i = 1, 4 do
      local _, times = output:gsub("failure number " .. i, "")
      assert.equal(1, times, output)
    end
  end)
end)

-- In a program of its own: each allocation is a whole collection there, and busted has much.
describe("closed in the middle of a call by a finaliser:", function()
  local program = [==[
    local gpu, support = require "gpulua", require "spec.support"
    local kind, find = ..., string.find
    local dev = support.open()
    local source = [=[
      #include <gpulua_kernel.h>
      extern "C" __global__ void add(const float *x, float *y, int n, float a) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] += a * x[i];
      }
      extern "C" __global__ void fail(int *x, int n, gpulua_ctx ctx) {
        if (gpulua_check(ctx, n > 0, "n is %d", n)) x[0] = n;
      }
      __device__ float global[4];
    ]=]
    local signature = "x: in f32*, y: inout f32*, n: i32, a: f32"
    local mod = dev:compile(source)
    local add, fail = mod.add, mod.fail
    local x, y = dev:upload("f32", { 1, 2, 3, 4 }), dev:buffer("f32", 4):fill(0)
    local cases = {}

    local function stream() return dev:stream { label = "one" } end
    local function streams()
      return { stream(), stream(), stream(), close = function(all)
        for _, s in ipairs(all) do
          s:close()
        end
        dev:stream {}:close() -- drops them
      end }
    end
    cases.stream = {
      { stream, function(s) return s:wait(dev:current()) end },
      { stream, function(s) return dev:current():wait(s) end },
      { stream, function(s) return s:mark() end },
      { stream, function(s) return s:synchronize() end },
      { stream, function(s) return s:use(function() return (add:launch(4, x, y, 4, 1)) end) end },
      { stream, function(s) return (add:launch({ grid = 1, stream = s, label = "two" }, x, y, 4, 1)) end },
      { stream, function(s) return dev:recorder { stream = s, label = "three" } end },
      { streams, function() return require("gpulua.core").streams(dev) end },
      { streams, function() return dev:synchronize() end },
    }
    local function op() return (add:launch(4, x, y, 4, 1)) end
    local function failed()
      local o = fail:launch(1, dev:buffer("i32", 1):fill(0), 0)
      repeat gpu.sleep(0.001) until o:done()
      return o
    end
    cases.op = {
      { op, function(o) return stream():wait(o) end },
      { op, function(o) return o:on_done(function() end) end },
      { op, function(o) return o:await() end },
      { failed, function(o) return o:await() end, "KernelFailed" },
      { failed, function(o) return o:join() end },
      { failed, function(o) return gpu.all(o, o) end, "KernelFailed" },
      { failed, function(o) return gpu.any(o, o) end, "KernelFailed" },
    }
    local function module() return dev:compile(source) end
    cases.module = {
      { module, function(m) return m:global "global" end },
      { module, function(m) return m:kernel "add" end },
      { module, function(m) return m:kernel("add", signature) end },
      { module, function(m) return m.add end },
      { module, function(m) return m:kernels() end },
    }
    local function kernel() return dev:compile(source):kernel("add", signature) end
    cases.kernel = {
      { kernel, function(k) return (k:launch(4, x, y, 4, 1)) end },
      { kernel, function(k) return (k:launch(4, x)) end, "InvalidArgument" },
      { kernel, function(k) return (k:launch(4, 4, y, 4, 1)) end, "InvalidArgument" },
      { kernel, function(k) return (k:launch(4, x, y, 4, {})) end, "InvalidArgument" },
      { kernel, function(k) return (k:launch(1.5, x, y, 4, 1)) end, "InvalidArgument" },
      { kernel, function(k) return k:signature() end },
      { kernel, function(k) return k:attributes() end },
      { kernel, function(k) return tostring(k) end },
    }
    local function memory()
      return dev:memory { statistics = true, log = true, guard = true, budget = 1 << 20, label = "one" }
    end
    local function told() -- closed by the finaliser while the sink or a listener is told
      local t = {}
      t.mem = dev:memory { log = function() end, budget = 1 << 20 }
      for _ = 1, 4 do
        t.mem:on_pressure(function() end)
      end
      t.buffer = t.mem:buffer("u8", 600000)
      function t.close()
        t.mem:close()
        t.mem = nil
      end
      return t
    end
    cases.memory = {
      { memory, function(m) return m:stats() end },
      { memory, function(m) m:buffer("f32", 4) return m:log() end },
      { memory, function(m) return dev:memory { from = m, statistics = true, log = true } end },
      { memory, function(m) return m:buffer("f32", 4) end },
      { memory, function(m) return m:on_pressure(function() end) end },
      { function() return dev:memory { oom = "free" } end, function(m) return m:on_oom(function() end) end },
      { told, function(t) return t.mem:buffer("u8", 300000) end },
      { told, function(t) t.buffer:close() end },
      { told, function(t) t.buffer:free() end },
    }
    local function graph()
      return dev:capture({ label = "one" }, function() add:launch(4, x, y, 4, 2) end)
    end
    cases.graph = {
      { graph, function(v) return (v:launch()) end },
      { graph, function(v) return (v:launch { label = "two" }) end },
      { graph, function(v) return v:upload() end },
      { graph, function(v) return v:fork() end },
      { graph, function(v) return v:pool() end },
      { graph, function(v) return v:bind { ["add#1.a"] = 3, ["add#1.x"] = y } end },
      { graph, function(v) return v:update(function() add:launch(4, x, y, 4, 7) end) end },
      { graph, function(v) return tostring(v) end },
      { function() return dev:pool() end, function(p)
        return dev:capture({ pool = p }, function() add:launch(4, x, y, 4, 1) end)
      end },
    }
    local function device() return support.open { label = "other" } end
    cases.device = {
      { device, function(d) return d:current() end },
      { device, function(d) return d:recorder {} end },
      { device, function(d) return d:stream { label = "one" } end },
      { device, function(d) return d:pool() end },
      { device, function(d) return d:memory { log = true } end },
      { device, function(d) return d:capture({}, function() d:buffer("f32", 4):fill(1) end) end,
        "CaptureInvalidated", "EmptyCapture" },
      { device, function(d) return d:synchronize() end },
    }
    local kept
    local function hooked()
      local d = device()
      d:hooks { before_enqueue = function() end, after_enqueue = function() end }
      kept = d:buffer("f32", 4)
      return d
    end
    cases["device with hooks"] = {
      { hooked, function() return kept:fill(1) end },
      { hooked, function(d)
        kept:fill(1)
        return d:current():mark()
      end },
    }
    local core = require "gpulua.core"
    local function log() -- whose neighbour comes meanwhile
      return { close = function() support.open { trace = true }:close() end }
    end
    if kind == "log" then
      local traced = support.open { trace = true }
      local s = traced:stream()
      local b = traced:buffer("f32", 4):fill(1)
      s:use(function() b:fill(2) end)
      traced:synchronize()
    end
    cases.log = {
      { log, function() return core.trace_info() end },
      { log, function() return core.trace_op(1, 2) end },
      { log, function() return core.trace_waits(1, 2) end },
      { log, function() return core.trace_uses(1, 2) end },
    }
    cases.recorder = {
      { function() return dev:recorder() end, function(r) return r:commit() end },
    }
    local spin = dev:compile(support.spin_source).spin
    cases.buffer = {
      { function() return dev:buffer("i32", 1) end, function(b) -- where a task cannot yield
        spin:launch(1, support.ticks(0.002), b, 1)
        table.sort({ 1, 2 }, function()
          b:await()
          return false
        end)
      end },
    }

    -- Runs finalisers that close `value` in the collection that is the n-th from here.
    local function arm(value, n, state)
      setmetatable({}, { __gc = function()
        if n == 0 then
          pcall(value.close, value)
          state.is_closed = true
        else
          arm(value, n - 1, state)
        end
      end })
    end
    local most = 40
    local codes = { Closed = true, UseAfterFree = true, DeviceLost = find(kind, "device") ~= nil }
    local closed = 0
    for number, case in ipairs(cases[kind]) do
      for n = 0, most do
        local value, state = case[1](), {}
        pcall(dev.synchronize, dev) -- of failures whose op was closed
        collectgarbage()
        collectgarbage()
        collectgarbage "stop"
        arm(value, n, state)
        collectgarbage("incremental", 0, 1000, 30) -- whole collections,
        collectgarbage("setpause", 0) -- one after the other
        collectgarbage "restart"
        local ok, err = pcall(case[2], value)
        local is_closed = state.is_closed
        collectgarbage("incremental", 200, 100, 13)
        local code = not ok and type(err) == "table" and err.code
        if not ok and not codes[code] and code ~= case[3] and code ~= case[4] then
          print(("%s %d, collection %d: %s"):format(kind, number, n, tostring(err)))
        end
        pcall(value.close, value)
        if not is_closed then
          break
        end
        closed = closed + 1
      end
    end
    assert(closed >= #cases[kind], "hardly a finaliser ran")
    pcall(dev.synchronize, dev)
    support.works(dev)
    print "works"
  ]==]

  for _, kind in ipairs { "stream", "op", "module", "kernel", "memory", "graph", "device", "recorder", "buffer",
    "device with hooks", "log" } do
    it("what a call on a " .. kind .. " uses", function()
      local text = ("local program = load(%q, '=program')\nprogram(%q)"):format(program, kind)
      local output, code = support.script(text, "MALLOC_PERTURB_=165")
      assert.equal("works\n", output)
      assert.equal(0, code)
    end)
  end

  it("a device while its failures are told", function()
    local told = [==[
      local gpu, support = require "gpulua", require "spec.support"
      local way, n = %q, %d
      local function arm(d, left)
        setmetatable({}, { __gc = function()
          if left == 0 then
            d:close()
          else
            arm(d, left - 1)
          end
        end })
      end
      local d = support.open()
      local fail = d:compile [[
        #include <gpulua_kernel.h>
        extern "C" __global__ void fail(gpulua_ctx ctx) { gpulua_check(ctx, false, "told"); }
      ]].fail
      for _ = 1, 10 do
        fail:launch(1)
      end
      repeat gpu.sleep(0.001) until d:stats().ops_in_flight == 0
      collectgarbage()
      collectgarbage()
      collectgarbage "stop"
      arm(d, n)
      collectgarbage("incremental", 0, 1000, 30) -- whole collections,
      collectgarbage("setpause", 0) -- one after the other
      collectgarbage "restart"
      if way == "close" then
        d:close()
        collectgarbage("incremental", 200, 100, 13)
      end
      d = nil
      print "works"
    ]==]
    for _, way in ipairs { "close", "end" } do
      for n = 0, 3 do
        local output, code = support.script(told:format(way, n), "MALLOC_PERTURB_=165")
        assert.truthy(output:find("works\n", 1, true), output)
        assert.truthy(code < 2, output)
      end
    end
  end)
end)
