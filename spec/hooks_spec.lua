-- dev:hooks: what scripts see of each operation, when, and what they cannot do meanwhile.

local gpu = require "gpulua"
local support = require "spec.support"

local build = os.getenv "GPULUA_BUILD" or "build"

describe("hooks", function()
  local source <const> = [[
    extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
    extern "C" __global__ void spin(int *x, long long n) { for (long long i = 0; i < n; i++) { x[0] += 1; } }
  ]]
  local config <const> = { grid = 1, block = 4, label = "adding" }
  local events, dev, mod

  local function note(kind)
    return function(info, ...)
      events[#events + 1] = table.pack(kind, info, ...)
    end
  end

  local function all(device)
    events = {}
    return device:hooks { before_enqueue = note "asked", after_enqueue = note "given", before_complete = note "over",
      after_complete = note "told" }
  end

  local function kinds()
    local list = {}
    for i, event in ipairs(events) do
      list[i] = ("%s %s"):format(event[1], event[2].label)
    end
    return table.concat(list, ", ")
  end

  -- A file with that text, and what the interpreter makes of it.
  local function script(text)
    local path = os.tmpname()
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
    return path
  end
  local function run(path)
    local pipe = assert(io.popen(("%s/gpulua %s 2>&1"):format(build, path)))
    local output = pipe:read "a"
    local _, _, code = pipe:close()
    os.remove(path)
    return output, code
  end

  before_each(function()
    dev = support.open { restarts = 0 }
    mod = dev:compile(source)
  end)
  after_each(function()
    dev:close()
  end)
  teardown(support.close_all)

  it("see each operation four times, with what it is", function()
    local x <close> = dev:buffer("i32", 4, { label = "x" })
    assert.equal(dev, all(dev))
    x:fill(1)
    mod.add:launch(config, x, 2):await()
    local line = debug.getinfo(1, "l").currentline - 1
    assert.same({ 3, 3, 3, 3 }, x:read())
    dev:hooks(nil)
    local launch = {}
    for _, event in ipairs(events) do
      if event[2].label == "adding" then
        launch[#launch + 1] = event
      end
    end
    assert.same({ "asked", "given", "over", "told" }, { launch[1][1], launch[2][1], launch[3][1], launch[4][1] })
    local info = launch[1][2]
    for i = 2, 4 do
      assert.equal(info, launch[i][2]) -- one table for all of them
    end
    assert.equal(dev, info.device)
    assert.equal("add", info.name)
    assert.equal("i32", info.type)
    assert.equal(16, info.bytes)
    assert.is_nil(info.library)
    assert.equal("integer", math.type(info.stream))
    assert.equal("integer", math.type(info.number))
    assert.truthy(info.where:find("hooks_spec.lua:" .. line, 1, true), info.where)
    assert.is_nil(launch[4][3]) -- no error
    assert.truthy(launch[4][4] > 0 and launch[4][4] < 60) -- seconds
    assert.equal("asked fill, given fill", kinds():match "^asked fill, given fill")
    assert.truthy(kinds():find("told fill.*told adding.*told read"), kinds())
  end)

  it("see libraries, graphs, marks and waits", function()
    local x <close> = dev:buffer("f32", 4):fill(1)
    local other <close> = dev:stream {}
    gpu.map("x + 1", { x = x, out = x }) -- compiled before it is captured
    local blas, a = dev:blas(), dev:buffer("f32", { 4, 4 }):fill(1)
    blas:gemm { a = a, b = a }:close()
    local graph <close> = dev:capture(function()
      gpu.map("x + 1", { x = x, out = x })
    end)
    dev:synchronize()
    all(dev)
    other:wait(dev:current():mark())
    graph:launch()
    blas:gemm { a = a, b = a }:close()
    dev:synchronize()
    dev:hooks(nil)
    local seen = {}
    for _, event in ipairs(events) do
      seen[event[2].name] = event[2]
    end
    assert.truthy(seen.mark and seen.wait and seen.graph, kinds())
    local library
    for _, info in pairs(seen) do
      library = library or info.library
    end
    assert.equal("blas", library)
  end)

  it("see of what is refused the first two, with the error", function()
    local x <close> = dev:buffer("f32", 4):fill(0)
    dev:synchronize()
    all(dev)
    local ok, err = pcall(mod.add.launch, mod.add, config, x, 1) -- of another type
    assert.is_false(ok)
    dev:synchronize()
    dev:hooks(nil)
    assert.equal("asked adding, given adding", kinds())
    assert.equal(err.code, events[2][3].code)
    assert.equal("InvalidArgument", err.code)
    assert.is_nil(events[2][2].number)
    assert.truthy(err.message:find(events[2][3].message, 1, true), events[2][3].message)
  end)

  it("see how what has failed ended", function()
    if support.isolation() == "none" and support.is_gpu() then
      pending "a fault would end this process"
      return
    end
    local x <close> = dev:buffer("i32", 4):fill(0)
    dev:synchronize()
    all(dev)
    dev:inject { fault = 1 }
    local ok = mod.add:launch(config, x, 1):join()
    assert.is_false(ok)
    local last = events[#events]
    assert.equal("told adding", last[1] .. " " .. last[2].label)
    assert.equal("error", gpu.type(last[3]))
    assert.equal("DeviceLost", last[3].code)
    assert.is_nil(last[5]) -- nobody knows how long it took
  end)

  it("tell device seconds where the device is traced", function()
    if support.is_checked() then
      pending "in check mode there are no device times"
      return
    end
    local traced <close> = support.open { trace = true }
    local spin = traced:compile(source).spin
    local x <close> = traced:buffer("i32", 4):fill(0)
    local took
    traced:hooks { after_complete = function(info, _, host_s, device_s)
      if info.name == "spin" then
        took = { host_s, device_s }
      end
    end }
    spin:launch(support.one, x, 1000000):await()
    assert.truthy(took and took[1] > 0, "not told")
    if took[2] then -- with CUPTI that comes later
      assert.truthy(took[2] > 0 and took[2] <= took[1])
    end
    if not support.is_gpu() then
      assert.truthy(took[2])
    end
  end)

  it("tell device seconds also of what ran and failed", function()
    if support.is_gpu() or support.is_checked() then
      pending "with CUPTI they come later, in check mode there are none"
      return
    end
    local traced <close> = support.open { trace = true }
    local wrong = traced:compile [[
      #include <gpulua_kernel.h>
      extern "C" __global__ void wrong(const int *x, gpulua_ctx ctx) { gpulua_check(ctx, x[0] > 0, "wrong"); }
    ]].wrong
    local x <close> = traced:buffer("i32", 4):fill(0)
    local code, took
    traced:hooks { after_complete = function(info, err, _, device_s)
      if info.name == "wrong" then
        code, took = err.code, device_s
      end
    end }
    local op = wrong:launch(support.one, x)
    assert.is_false((op:join()))
    assert.same({ "KernelFailed", op:elapsed() }, { code, took })
  end)

  it("are told before those who wait go on, in the order in which work ended", function()
    local x <close> = dev:buffer("i32", 4):fill(0)
    dev:synchronize()
    local order = {}
    dev:hooks { after_complete = function(info)
      order[#order + 1] = info.label
    end }
    for i = 1, 20 do
      mod.add:launch({ grid = 1, block = 4, label = "op" .. i }, x, 1)
    end
    dev:synchronize()
    for i = 1, 20 do
      assert.equal("op" .. i, order[i])
    end
    order = {}
    gpu.run(function()
      local tasks, own = {}, {}
      for i = 1, 20 do
        own[i] = dev:buffer("i32", 4)
        tasks[i] = gpu.spawn(function()
          own[i]:fill(i)
          mod.add:launch({ grid = 1, block = 4, label = "op" .. i }, own[i], 1):await()
          order[#order + 1] = "task" .. i
        end)
      end
      gpu.all(tasks)
    end)
    local at = {}
    for i, what in ipairs(order) do
      at[what] = i
    end
    for i = 1, 20 do
      assert.truthy(at["op" .. i] < at["task" .. i], table.concat(order, " "))
    end
  end)

  it("may be a part of the four, are withdrawn, and operations keep those that they began with", function()
    local x <close> = dev:buffer("i32", 4):fill(0)
    dev:synchronize()
    local first, second, begun = 0, 0, 0
    dev:hooks { after_complete = function() first = first + 1 end }
    mod.add:launch(config, x, 1)
    dev:hooks { after_complete = function() second = second + 1 end }
    mod.add:launch(config, x, 1)
    dev:hooks { before_enqueue = function() begun = begun + 1 end }
    mod.add:launch(config, x, 1)
    dev:hooks(nil)
    mod.add:launch(config, x, 1)
    dev:synchronize()
    assert.same({ 1, 1, 1 }, { first, second, begun })
    dev:hooks {}
    mod.add:launch(config, x, 1):await()
    assert.same({ 1, 1, 1 }, { first, second, begun })
  end)

  it("can neither call gpulua nor wait, and what they raise harms nothing", function()
    local x = dev:buffer("i32", 4):fill(0)
    dev:synchronize()
    local codes
    local calls = {
      function() x:close() end, function() x:free() end, function() return x.label end,
      function() dev:close() end, function() dev:hooks(nil) end, function() gpu.sleep(0) end,
      function() mod.add:launch(config, x, 1) end, function() gpu.spawn(print) end, function() return tostring(x) end,
    }
    local function try()
      for i, call in ipairs(calls) do
        local ok, err = pcall(call)
        codes[i] = ok and "went through" or type(err) == "table" and err.code or gpu.type(err) == "error" and err.code
          or err
      end
      local ok, err = pcall(coroutine.yield)
      codes.yield = ok or tostring(err)
    end
    for _, name in ipairs { "before_enqueue", "after_enqueue", "before_complete", "after_complete" } do
      codes = {}
      dev:hooks { [name] = try }
      mod.add:launch(config, x, 1):await()
      dev:hooks(nil)
      for i = 1, #calls do
        assert.equal("StreamMisuse", codes[i], name .. " " .. i)
      end
      assert.truthy(codes.yield:find "yield", codes.yield)
    end
    assert.same({ 4, 4, 4, 4 }, x:read())
    x:close()
  end)

  it("that raise are told like errors that nobody saw, each time", function()
    local output, code = run(script [[
      local gpu = require "gpulua"
      local dev = gpu.device(os.getenv "GPULUA_DEVICE", {})
      local x = dev:buffer("i32", 4):fill(0)
      dev:synchronize()
      dev:hooks { before_enqueue = function() error "first" end, after_complete = function() error { 1 } end }
      x:fill(1):fill(2)
      assert(x:read(1, 1)[1] == 2)
      dev:hooks(nil)
      print "went on"
    ]])
    assert.equal(1, code) -- as with the errors of tasks
    assert.truthy(output:find("went on", 1, true), output)
    local _, firsts = output:gsub(": first", "")
    local _, others = output:gsub("error object is a table value", "")
    assert.same({ 3, 3 }, { firsts, others }) -- fill, fill, read
  end)

  it("see nothing of what is only captured", function()
    local x <close> = dev:buffer("i32", 4):fill(0)
    dev:synchronize()
    all(dev)
    local graph <close> = dev:capture(function()
      mod.add:launch(config, x, 1)
    end)
    assert.equal("", kinds())
    graph:launch():await()
    assert.equal("graph", events[1][2].name)
  end)

  it("show a graph under the label that its errors show: its own, or that of the launch", function()
    local x <close> = dev:buffer("i32", 4):fill(0)
    local graph <close> = dev:capture({ label = "step" }, function() mod.add:launch(config, x, 1) end)
    dev:synchronize()
    all(dev)
    graph:launch():await()
    graph:launch { label = "last" }:await()
    dev:synchronize()
    local labels = {}
    for _, event in ipairs(events) do
      assert.equal("graph", event[2].name)
      labels[#labels + 1] = event[2].label
    end
    assert.equal("step step step step last last last last", table.concat(labels, " "))
  end)

  it("are told of what is in flight when the device closes, and of all by the end of a script", function()
    local x = dev:buffer("i32", 4):fill(0)
    dev:synchronize()
    local given, told = 0, 0
    dev:hooks { after_enqueue = function() given = given + 1 end, after_complete = function() told = told + 1 end }
    for _ = 1, 50 do
      mod.add:launch(config, x, 1)
    end
    dev:close()
    assert.same({ 50, 50 }, { given, told })
    local output, code = run(script [[
      local gpu = require "gpulua"
      local dev, count = gpu.device(os.getenv "GPULUA_DEVICE", {}), 0
      dev:hooks { after_complete = function() count = count + 1 print(count) end }
      local x = dev:buffer("i32", 4):fill(1):fill(2)
    ]])
    assert.same({ "1\n2\n", 0 }, { output, code })
  end)

  it("keep working when the device was lost and is up again", function()
    if not support.is_isolated() then
      pending "one process"
      return
    end
    local lasting <close> = support.open {}
    local add = lasting:compile(source).add
    local codes = {}
    lasting:hooks { after_complete = function(info, err)
      if info.name == "add" then
        codes[#codes + 1] = err and err.code or "done"
      end
    end }
    local x <close> = lasting:buffer("i32", 4, { durable = true }):fill(0)
    lasting:inject { lost = 1 }
    add:launch(config, x, 1):join()
    lasting:await()
    add:launch(config, x, 1):await()
    assert.same({ "DeviceLost", "done" }, codes)
  end)

  it("that go on for ever are interrupted, and so is who called", function()
    local output, code = run(script [[
      local gpu = require "gpulua"
      local dev = gpu.device(os.getenv "GPULUA_DEVICE", {})
      local x = dev:buffer("i32", 4):fill(1)
      dev:hooks { before_enqueue = function()
        os.execute "(sleep 0.2; kill -INT $PPID) &"
        print "in it"
        while true do end
      end }
      x:fill(2)
      print "not reached"
    ]])
    assert.equal(1, code, output)
    assert.truthy(output:find("in it", 1, true), output)
    assert.truthy(output:find("interrupted!", 1, true), output)
    assert.is_nil(output:find("not reached", 1, true), output)
  end)

  it("are checked when they are given", function()
    support.raises("InvalidArgument", "no such hook: on_launch", dev.hooks, dev, { on_launch = print })
    support.raises("InvalidArgument", "after_complete: a function expected, got number", dev.hooks, dev,
      { after_complete = 1 })
    support.raises("InvalidArgument", "a table of functions expected, got function", dev.hooks, dev, print)
    local closed = support.open {}
    closed:close()
    support.raises("Closed", "closed device", closed.hooks, closed, { after_complete = print })
  end)
end)
