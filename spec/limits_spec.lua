-- Limits: each is in stats(), holds at its edge, and is refused or waited for past it.

local gpu = require "gpulua"
local support = require "spec.support"

describe("limit of", function()
  local dev, limits

  setup(function()
    dev = support.open()
    limits = dev:stats()
  end)
  teardown(support.close_all)

  it("everything is a number in stats()", function()
    for name, least in pairs {
      limit_task_streams = 32, limit_user_streams = 64, limit_ops_in_flight = 1024, limit_staging_bytes = 16 << 20,
      limit_arena_bytes = 256 << 20, limit_block_bytes = 1 << 40, limit_slabs = 1024, limit_labels = 1024,
      limit_source_bytes = 1 << 20, limit_params = 128, limit_args_bytes = 4096, limit_spans = 64,
      limit_flight_ops = 4096, budget_bytes = 1 << 20, limit_quarantine_bytes = 1 << 20,
    } do
      assert.equal("integer", math.type(limits[name]), name)
      assert.truthy(limits[name] >= least, name)
    end
    assert.equal(32, limits.limit_task_streams)
  end)

  it("operations in flight: as many as the device was opened for, and no more", function()
    for _, most in ipairs { 1, 2, 50 } do
      local own <close> = support.open { in_flight = most }
      assert.equal(most, own:stats().limit_ops_in_flight)
      local add = own:compile([[
        extern "C" __global__ void add(int n, int *x, int by) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) x[i] += by;
        }]]).add
      local x = own:buffer("i32", 100):fill(0)
      for _ = 1, 200 do
        add:launch(100, 100, x, 1)
      end
      assert.are.same({ 200, 200 }, x:read(99, 100))
      local stats = own:stats()
      assert.truthy(stats.ops_in_flight_max <= most + 1, stats.ops_in_flight_max) -- a read asks beside operations
      local tasks = {}
      for i = 1, 20 do
        tasks[i] = gpu.spawn(function()
          add:launch(100, 100, x, 1):await()
        end)
      end
      gpu.all(tasks)
      assert.are.same({ 220 }, x:read(1, 1))
    end
    for _, wrong in ipairs { 0, -1, 16385, 1.5, "1" } do
      support.raises("InvalidArgument", "in_flight", support.open, { in_flight = wrong })
    end
  end)

  it("operations in flight: past it a launch waits, and never yields", function()
    local own <close> = support.open()
    local spin = own:compile(support.spin_source).spin
    local c <close> = own:buffer("i32", 1):fill(0)
    local stream = own:current()
    local n = limits.limit_ops_in_flight + limits.limit_ops_in_flight // 4
    local stats
    for _, seconds in ipairs { 0.5, 2, 8 } do -- until the marks are faster than the kernel that they wait for
      local has_run = false
      local other = gpu.spawn(function() has_run = true end)
      -- Nothing ends before the first one does.
      spin:launch(support.one, support.ticks(seconds), c, 42)
      local last
      for _ = 1, n do
        last = stream:mark()
      end
      assert.is_false(has_run)
      assert.equal(last, last:await())
      assert.are.same({ 42 }, c:read())
      other:await()
      stats = own:stats()
      if stats.ops_in_flight_max >= (support.is_isolated() and limits.limit_ops_in_flight or 1001) then
        break
      end
    end
    assert.truthy(stats.ops_in_flight_max <= limits.limit_ops_in_flight, stats.ops_in_flight_max)
    if support.is_isolated() then
      assert.equal(limits.limit_ops_in_flight, stats.ops_in_flight_max)
      assert.truthy(stats.throttles > 0)
    else -- the device's own queue is full before
      assert.truthy(stats.ops_in_flight_max > 1000, stats.ops_in_flight_max)
    end
  end)

  it("operations in flight: a call that waits for long counts once", function()
    support.wants_time(pending)
    local own <close> = support.open { in_flight = 1 }
    local spin = own:compile(support.spin_source).spin
    local c <close> = own:buffer("i32", 1):fill(0)
    local throttles
    for _, seconds in ipairs { 0.3, 1.2, 4.8 } do -- until the call is there before the kernel is over
      own:synchronize()
      local before = own:stats().throttles
      spin:launch(support.one, support.ticks(seconds), c, 42)
      own:current():mark()
      throttles = own:stats().throttles - before
      own:synchronize()
      if throttles > 0 then
        break
      end
    end
    assert.equal(1, throttles)
  end)

  it("operations in flight: a few on each of many streams, which nobody waits for", function()
    local own <close> = support.open()
    local streams = {}
    for i = 1, 60 do
      streams[i] = own:stream {}
    end
    local last
    for i = 1, 3 * limits.limit_ops_in_flight do
      last = streams[i % #streams + 1]:mark()
    end
    assert.equal(last, last:await())
    own:synchronize()
    local stats = own:stats()
    assert.truthy(stats.ops_in_flight_max <= limits.limit_ops_in_flight, stats.ops_in_flight_max)
    assert.equal(0, stats.ops_in_flight)
  end)

  it("staging memory: tasks that read more than it holds take turns", function()
    local own <close> = support.open()
    local piece <const> = 16 << 20
    local b <close> = own:buffer("u8", piece):fill(7)
    local tasks = {}
    local count = limits.limit_staging_bytes // piece + 4
    for i = 1, count do
      tasks[i] = gpu.spawn(function()
        local text = b:bytes()
        return #text, text:byte(i)
      end)
    end
    for i = 1, count do
      assert.are.same({ piece, 7 }, { tasks[i]:await() })
    end
    -- Whoever cannot wait for them finds room.
    assert.truthy(own:stats().staging_bytes_max <= limits.limit_staging_bytes - piece)
    support.settle(own)
    assert.equal(0, own:stats().staging_bytes)
  end)

  it("staging memory: what fails or is cancelled gives it back before the collector comes", function()
    local own <close> = support.open()
    local piece <const> = 16 << 20
    local count = limits.limit_staging_bytes // piece + 1
    local spin = own:compile(support.spin_source).spin
    local b <close> = own:buffer("u8", piece):fill(7)
    local x <close> = own:buffer("i32", 1)
    collectgarbage("stop")
    local _ <close> = setmetatable({}, { __close = function() collectgarbage("restart") end })
    for _ = 1, count do
      assert.are.same({ false, "mine" }, { pcall(b.write, b, function() error("mine", 0) end) })
    end
    local s <close> = own:stream {}
    local op = spin:launch({ grid = 1, block = 1, stream = s }, support.ticks(0.5), x, 1)
    own:current():wait(op)
    b:fill(8)
    local tasks = {}
    for i = 1, count do
      tasks[i] = gpu.spawn(function() return b:bytes() end)
    end
    gpu.sleep(0)
    for i = 1, count do
      tasks[i]:cancel()
      pcall(tasks[i].await, tasks[i])
    end
    op:await()
    assert.equal(piece, #gpu.spawn(function() return b:bytes() end):await(10))
    support.settle(own)
    assert.equal(0, own:stats().staging_bytes)
  end)

  it("staging memory: past it a write waits, and never yields", function()
    local own <close> = support.open()
    local spin = own:compile(support.spin_source).spin
    local piece <const> = 16 << 20
    local text = ("\1\2\3\4"):rep(piece // 4)
    local b <close> = own:buffer("i32", piece // 4)
    local has_run = false
    local other = gpu.spawn(function() has_run = true end)
    local writes = limits.limit_staging_bytes // piece + 3
    local stats
    for _, seconds in ipairs { 0.5, 2, 8 } do -- until the writes are faster than the kernel that they wait for
      spin:launch(support.one, support.ticks(seconds), b, 0)
      for _ = 1, writes do
        b:write(text)
      end
      stats = own:stats()
      if stats.throttles > 0 then
        break
      end
    end
    assert.is_false(has_run)
    assert.truthy(stats.throttles > 0, "it was never reached")
    assert.truthy(stats.throttles <= 3 * writes, stats.throttles) -- a write that waits counts once
    assert.truthy(stats.staging_bytes_max <= limits.limit_staging_bytes)
    assert.truthy(stats.staging_bytes_max > limits.limit_staging_bytes - 2 * piece)
    assert.is_true(b:bytes() == text)
    support.settle(own)
    assert.equal(0, own:stats().staging_bytes)
    other:await()
  end)

  it("dimensions", function()
    local b <close> = dev:buffer("u8", { 1, 1, 1, 1, 1, 1, 2, 3 })
    assert.equal(8, #b.shape)
    assert.equal(6, #b)
    support.raises("InvalidArgument", { "8", "9" }, dev.buffer, dev, "u8", { 1, 1, 1, 1, 1, 1, 1, 2, 3 })
    support.raises("InvalidArgument", { "8", "9" }, b.view, b, "u8", { 1, 1, 1, 1, 1, 1, 1, 2, 3 })
  end)

  it("parameters of a kernel", function()
    local function source(count)
      local list = {}
      for i = 1, count - 1 do
        list[i] = "int a" .. i
      end
      list[count] = "int *x"
      return ("extern \"C\" __global__ void many(%s) { x[0] = a1 + a%d; }"):format(table.concat(list, ", "), count - 1)
    end
    local values = {}
    for i = 1, limits.limit_params - 1 do
      values[i] = i
    end
    local x <close> = dev:buffer("i32", 1)
    values[limits.limit_params] = x
    local many = dev:compile(source(limits.limit_params)).many
    many:launch(support.one, table.unpack(values))
    assert.are.same({ 1 + limits.limit_params - 1 }, x:read())
    local beyond = dev:compile(source(limits.limit_params + 1))
    support.raises("InvalidArgument", tostring(limits.limit_params), function() return beyond.many end)
  end)

  it("device memory is the budget, and no number is too large to be refused", function()
    local budget = limits.budget_bytes
    local err = support.raises("OutOfBudget", {}, dev.buffer, dev, "u8", budget + 1)
    -- Rounded up to what an allocation takes.
    assert.truthy(err.requested > budget and err.requested <= budget + 1024, err.requested)
    assert.equal(budget, err.limit)
    for _, bytes in ipairs { limits.limit_block_bytes - 1, limits.limit_block_bytes, limits.limit_block_bytes + 1,
      math.maxinteger } do
      local ok, refused = pcall(dev.buffer, dev, "u8", bytes)
      assert.is_false(ok)
      assert.truthy(refused.code == "OutOfBudget" or refused.code == "InvalidArgument", tostring(refused))
    end
  end)

  it("host memory shared with the device", function()
    for _, bytes in ipairs { limits.limit_arena_bytes, limits.limit_arena_bytes + 1, math.maxinteger } do
      support.without_leak(dev, function()
        support.raises("OutOfMemory", {}, dev.host, dev, "u8", bytes)
      end)
    end
    local h <close> = dev:host("u8", 1)
    h[1] = 5
    assert.equal(5, h[1])
  end)

  it("streams: Capacity says how many", function()
    local streams = {}
    local err
    for i = 1, limits.limit_user_streams + 1 do
      local ok, made = pcall(dev.stream, dev, {})
      if ok then
        streams[i] = made
      else
        err = made
      end
    end
    assert.equal(limits.limit_user_streams, #streams)
    support.is_error(err, "Capacity", tostring(limits.limit_user_streams))
    assert.equal(limits.limit_user_streams, err.max)
    for _, stream in ipairs(streams) do
      stream:close()
    end
  end)

  it("labels that a device tells apart: past it they are no longer told apart, and say so", function()
    local own <close> = support.open()
    local touch = own:compile([[ extern "C" __global__ void touch(int *x) { x[0] = 1; } ]]).touch
    local x <close> = own:buffer("i32", 1)
    local config = { grid = 1, block = 1 }
    local seen, last = false, nil
    for i = 1, limits.limit_labels + 10 do
      config.label = "label " .. i
      last = touch:launch(config, x)
      seen = seen or (i < limits.limit_labels - 100 and last.label ~= config.label)
    end
    assert.is_false(seen)
    assert.equal("(too many labels)", last.label)
    assert.truthy(own:stats().overflows > 0)
    last:await()
    assert.are.same({ 1 }, x:read())
  end)

  it("labels that are too long: they show that they were cut, and no character is", function()
    local long <const> = "x" .. ("\u{e9}"):rep(60) -- of two bytes each
    local own <close> = support.open { label = long }
    local touch = own:compile([[ extern "C" __global__ void touch(int *x) { x[0] = 1; } ]]).touch
    local x <close> = own:buffer("i32", 1, { label = long })
    local stream <close> = own:stream { label = long }
    local memory <close> = own:memory { label = long }
    local op = touch:launch({ grid = 1, block = 1, label = long }, x):await()
    for what, bytes in pairs { [x] = 47, [memory] = 47, [stream] = 63, [own] = 63, [op] = 63 } do
      local beginning = what.label:match "^(.*)%.%.%.$"
      assert.truthy(beginning and utf8.len(beginning), what.label)
      assert.equal(long:sub(1, #beginning), beginning)
      assert.truthy(#what.label <= bytes and #what.label + 2 > bytes, #what.label)
    end
    assert.truthy(own:flight():find(long, 1, true))
    local whole <const> = ("y"):rep(47)
    assert.equal(whole, own:buffer("i32", 1, { label = whole }).label)
  end)

  it("calls: a number that is fixed is taken, and one more is refused, naming it", function()
    local op, items = dev:current():mark(), {}
    for i = 1, 900000 do
      items[i] = op
    end
    assert.equal(900000, select("#", gpu.all(items)))
    items[900001] = op
    support.raises("Capacity", "900001 items", gpu.all, items)
    local memory <close> = dev:memory {}
    local requests = {}
    for i = 1, 1024 do
      requests[i] = { "u8", 1 }
    end
    assert.equal(1024, select("#", memory:buffers(table.unpack(requests))))
    requests[1025] = requests[1]
    support.raises("InvalidArgument", "1 to 1024", memory.buffers, memory, table.unpack(requests))
    local x <close> = dev:buffer("f32", 4):fill(1)
    local function map_of(count)
      local names, arguments = {}, { out = x }
      for i = 1, count do
        names[i] = "a" .. i
        arguments[names[i]] = 1
      end
      return table.concat(names, "+"), arguments
    end
    gpu.map(map_of(126))
    assert.equal(126, x:read(1, 1)[1])
    support.raises("InvalidArgument", { "127", "126 are the most" }, gpu.map, map_of(127))
    gpu.map(("("):rep(99) .. "x" .. (")"):rep(99), { x = x, out = x })
    support.raises("InvalidArgument", "more than 100 levels deep", gpu.map, ("("):rep(101) .. "x" .. (")"):rep(101),
      { x = x, out = x })
    support.raises("Unsupported", "2^48", dev.fft, dev, { shape = { 1 << 24, 1 << 24, 2 } })
    dev:memory({ guard = { canary = 1 << 20 } }):close()
    support.raises("InvalidArgument", "1 to 1048576", dev.memory, dev, { guard = { canary = (1 << 20) + 1 } })
    dev:memory({ log = true, log_bytes = 1 << 24 }):close()
    support.raises("InvalidArgument", "192 to 16777216", dev.memory, dev, { log = true, log_bytes = (1 << 24) + 1 })
    support.raises("InvalidArgument", "1 to 2000000", gpu.device, "cpu", { trace = 2000001 })
    local wide <close> = dev:buffer("u8", { 1, (1 << 24) + 1 })
    support.raises("Capacity", "16777217", require "gpulua.image".save, wide, "wide.png")
  end)

  it("what is kept: the first hazards of gpu.why, the first operations of dev:order", function()
    local parameters, buffers = {}, {}
    for i = 1, 20 do
      parameters[i], buffers[i] = "int *x" .. i, dev:buffer("i32", 1)
    end
    local many = dev:compile(('extern "C" __global__ void many(%s) { }'):format(table.concat(parameters, ", "))).many
    local first = many:launch(support.one, table.unpack(buffers))
    local why = assert(gpu.why(many:launch(support.one, table.unpack(buffers)), first))
    assert.equal(16, #why)
    assert.truthy(why.message:find ", and 4 more$", why.message)
    local checked <close> = gpu.device("cpu", { check = true, isolate = "none" })
    local x = checked:buffer("i32", 1)
    for i = 1, 4100 do
      x:fill(i)
    end
    assert.are.same({ 4100 }, x:read())
    assert.equal(4096, #checked:order())
  end)

  it("sources and names", function()
    local kernel <const> = [[__device__ int a; extern "C" __global__ void f(int *x) { x[0] = a; }]]
    support.raises("InvalidArgument", tostring(limits.limit_source_bytes), dev.compile, dev,
      kernel .. (" "):rep(limits.limit_source_bytes))
    local mod = dev:compile(kernel)
    support.raises("InvalidArgument", "no variable", mod.global, mod, ("a"):rep(4095))
    support.raises("Capacity", "4095", mod.global, mod, ("a"):rep(4096))
  end)

  it("docs/limits.md has every limit of stats(), and the numbers that those are", function()
    local document = assert(support.read_file "docs/limits.md")
    local rows, count = {}, 0
    for name, value in document:gmatch "\n| `([%w_]+)` | ([^|]-) |" do
      rows[name], count = value, count + 1
    end
    for name, value in pairs(limits) do
      if name:find "^limit_" then
        local said = assert(rows[name], name)
        count = count - 1
        if math.tointeger((said:gsub(",", ""))) then
          assert.equal(value, math.tointeger((said:gsub(",", ""))), name)
        else
          assert.truthy(said:find "%a", name) -- where it depends on something
        end
      end
    end
    assert.equal(0, count)
  end)
end)
