-- Device memory: budget, reuse, the collector.

local gpu = require "gpulua"
local support = require "spec.support"

describe("memory", function()
  teardown(support.close_all)

  local mib <const> = 1 << 20

  it("is accounted exactly and given back", function()
    local dev = support.open()
    support.settle(dev)
    local before = dev:stats()
    local a = dev:buffer("u8", 1000)
    local b = dev:buffer("f64", 1000)
    local during = dev:stats()
    assert.equal(before.blocks_live + 2, during.blocks_live)
    -- Rounded up to 512 bytes each.
    assert.equal(before.bytes_live + 1024 + 8192, during.bytes_live)
    assert.equal(before.allocs + 2, during.allocs)
    a:close()
    b:close()
    support.settle(dev)
    local after = dev:stats()
    assert.equal(before.bytes_live, after.bytes_live)
    assert.equal(before.blocks_live, after.blocks_live)
    assert.equal(before.frees + 2, after.frees)
    assert.truthy(after.bytes_live_max >= during.bytes_live)
    dev:close()
  end)

  describe("budget", function()
    it("refuses at once what is more than all of it, with figures", function()
      local dev = support.open { budget = 8 * mib }
      assert.equal(8 * mib, dev:stats().budget_bytes)
      local kept = dev:buffer("u8", mib)
      local err = support.raises("OutOfBudget", {}, dev.buffer, dev, "u8", 9 * mib)
      assert.equal(9 * mib, err.requested)
      assert.equal(mib, err.current)
      assert.equal(7 * mib, err.remaining)
      assert.equal(8 * mib, err.limit)
      support.works(dev)
      kept:close()
      dev:close()
    end)

    it("may be used to its last byte, and not one further", function()
      local dev = support.open { budget = 4 * mib }
      local held = {}
      for i = 1, 4 do
        held[i] = dev:buffer("u8", mib)
      end
      support.raises("OutOfBudget", {}, dev.buffer, dev, "u8", 1)
      held[2]:close()
      held[2] = dev:buffer("u8", mib)
      support.raises("OutOfBudget", {}, dev.buffer, dev, "u8", 1)
      held[2]:close()
      held[2] = dev:buffer("u8", 512)
      for _, b in ipairs(held) do
        b:close()
      end
      dev:buffer("u8", 4 * mib):close()
      dev:close()
    end)

    it("counts a freed buffer until the work on it is over, and waits for that", function()
      local dev = support.open { budget = 4 * mib }
      local mod = dev:compile(support.spin_source)
      local ticks = support.ticks(0.1)
      collectgarbage()
      dev:synchronize()
      local x = dev:buffer("i32", mib // 2)
      local op = mod.spin:launch(support.one, ticks, x, 1)
      x:close()
      -- Does not fit while the kernel runs; memory that comes free soon is worth waiting for.
      local y = dev:buffer("i32", mib * 3 // 4)
      assert.is_true(op:done())
      y:close()
      dev:close()
    end)

    it("is helped by the collector", function()
      local dev = support.open { budget = 8 * mib }
      for _ = 1, 100 do
        dev:buffer("u8", 3 * mib)
      end
      dev:close()
    end)
  end)

  it("a loop that allocates and forgets runs for ever", function()
    local dev = support.open { budget = 64 * mib }
    for i = 1, 2000 do
      dev:buffer("u8", 4 * mib):fill(i % 256)
    end
    local stats = dev:stats()
    assert.truthy(stats.bytes_live_max <= 64 * mib)
    dev:close()
  end)

  it("the collector does not wait for the device", function()
    local dev = support.open()
    local mod = dev:compile(support.spin_source)
    support.under_way(1.5, function(seconds, seen)
      local stream = dev:stream {}
      local x, h = dev:buffer("i32", 1000), dev:host("i32", 1000)
      local slow = mod.spin:launch({ grid = 1, block = 1, stream = stream }, support.ticks(seconds), x, 1)
      stream:use(h.copy, h, x)
      local weak = setmetatable({ x, h, stream }, { __mode = "v" })
      x, h, stream = nil, nil, nil -- luacheck: ignore
      local start = support.now()
      for _ = 1, 3 do
        collectgarbage()
      end
      dev:buffer("i32", 1000):close() -- works off what the collector has left
      local spent, is_over = support.now() - start, slow:done()
      seen()
      assert.is_nil(next(weak))
      assert.is_false(is_over)
      assert.truthy(spent < seconds * 0.7, spent)
      slow:await()
    end)
    dev:close()
  end)

  it("the collector gives the executor nothing to do, whatever it finds", function()
    local dev = support.open()
    local mod = dev:compile(support.spin_source)
    local one = { grid = 1, block = 1 }
    local function litter()
      for i = 1, 20 do
        local x, h = dev:buffer("i32", 64):fill(i), dev:host("i32", 64)
        local stream = dev:stream {}
        stream:use(h.copy, h, x)
        local recorder = dev:recorder { stream = stream }
        recorder:write(x:slice(1, 8))
        one.stream = stream
        mod.spin:launch(one, 1, x:view "u32":view "i32", i):on_done(function() end)
        dev:compile(support.spin_source):kernel "spin_fill"
        dev:memory { from = "driver", budget = 1 << 20 }:buffer("u8", 100)
        stream:mark()
      end
    end
    litter()
    dev:synchronize()
    local before = dev:stats()
    local count = collectgarbage "count"
    for _ = 1, 3 do
      collectgarbage()
    end
    local after = dev:stats()
    assert.truthy(collectgarbage "count" < count)
    assert.equal(before.records, after.records)
    assert.equal(before.requests, after.requests)
    -- What the collector has noted is worked off by the next calls.
    support.settle(dev)
    assert.truthy(dev:stats().records > after.records)
    assert.truthy(dev:stats().streams_live < before.streams_live)
    dev:close()
  end)

  -- In a program of its own: each collection goes over all that there is, and busted has much.
  it("a collection between any two instructions of a script changes nothing", function()
    local output, code = support.script [==[
      local gpu, support = require "gpulua", require "spec.support"
      local function same(list, other)
        for i = 1, math.max(#list, #other) do
          if list[i] ~= other[i] then
            return false
          end
        end
        return true
      end
      local dev = support.open()
      local source = [=[
        extern "C" __global__ void add(int n, const int *x, int *y) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) y[i] += x[i];
        }
      ]=]
      local function pipeline()
        local mod = dev:compile(source)
        local x, y = dev:upload("i32", { 1, 2, 3, 4 }), dev:buffer("i32", 4):fill(10)
        local stream = dev:stream {}
        mod.add:launch({ grid = 1, block = 4, stream = stream, label = "one" }, 4, x, y)
        local op = mod:kernel("add", "i32, in i32*, inout i32*"):launch(4, 4, x:slice(1, 4), y:view "i32")
        op:on_done(function() end)
        stream:wait(op)
        local h = dev:host("i32", 4)
        stream:use(h.copy, h, y)
        local sum = h[1] + y:read(2, 2)[1] + string.unpack("<i4", y:bytes(3, 3))
        local ok, err = pcall(y.read, y, 0, 9)
        gpu.all(op, x, gpu.spawn(function() return h:read()[4] end))
        local task = gpu.spawn(function() return dev:upload("i32", h):read(4)[1] end)
        return sum, ok, err.code, select(2, gpu.any { task })
      end
      for _ = 1, dev:stats().limit_task_streams do
        gpu.spawn(dev.current, dev):await() -- makes the stream of the task, which stays
      end
      local wanted = { pipeline() }
      assert(same({ 12 + 14 + 16, false, "OutOfBounds", 18 }, wanted))
      support.without_leak(dev, function()
        local instructions = 0
        local function hooked(f, ...)
          debug.sethook(function()
            instructions = instructions + 1
            collectgarbage()
          end, "", 1)
          local results = table.pack(pcall(f, ...))
          debug.sethook()
          assert(results[1], results[2])
          return table.unpack(results, 2, results.n)
        end
        local spawn = gpu.spawn
        gpu.spawn = function(f, ...) return spawn(hooked, f, ...) end -- hooks are the coroutine's own
        local got = table.pack(pcall(hooked, pipeline))
        gpu.spawn = spawn
        assert(same({ true, table.unpack(wanted) }, { table.unpack(got, 1, got.n) }), tostring(got[2]))
        assert(instructions > 150, instructions)
      end)
      dev:close()
      print "same"
    ]==]
    assert.equal("same\n", output)
    assert.equal(0, code)
  end)

  it("small handles forgotten in a loop stay few", function()
    local dev = support.open()
    support.settle(dev)
    local most = 0
    for _ = 1, 20000 do
      dev:buffer("u8", 64 * 1024)
      most = math.max(most, dev:stats().blocks_live)
    end
    -- 64 KiB each: without device bytes driving the collector thousands would be alive.
    assert.truthy(most < 2000, most)
    dev:close()
  end)

  it("host memory of the script stays flat over allocations and launches", function()
    local dev = support.open()
    local count = dev:compile([[ extern "C" __global__ void count(int *x) { x[0]++; } ]]).count
    local function round()
      for _ = 1, 300 do
        local x <close> = dev:buffer("i32", 1000):fill(1)
        count:launch(support.one, x)
        count:launch(support.one, x):await()
        x:slice(2, 3):read()
      end
      collectgarbage()
      collectgarbage()
      return collectgarbage "count"
    end
    round()
    local before, resident = round(), support.resident_bytes()
    for _ = 1, 10 do
      round()
    end
    assert.truthy(round() < before + 64, "Lua heap grew")
    if not support.keeps_freed_memory() then
      assert.truthy(support.resident_bytes() < resident + 4 * mib, "the process grew")
    end
    dev:close()
  end)

  it("trim gives unused slabs back", function()
    local dev = support.open()
    dev:buffer("u8", 64 * mib):close()
    dev:synchronize()
    local before = dev:stats().bytes_reserved
    assert.truthy(before >= 64 * mib)
    local freed = dev:trim()
    assert.truthy(freed >= 64 * mib)
    assert.equal(before - freed, dev:stats().bytes_reserved)
    support.works(dev)
    dev:close()
  end)

  it("is found again by buffers of the same size: nothing is reserved twice", function()
    local dev = support.open()
    dev:buffer("u8", 8 * mib):close()
    dev:synchronize()
    local reserved = dev:stats().bytes_reserved
    for i = 1, 100 do
      local b <close> = dev:buffer("u8", 8 * mib):fill(i)
      assert.equal(i, b:read(8 * mib, 8 * mib)[1])
    end
    assert.equal(reserved, dev:stats().bytes_reserved)
    dev:close()
  end)

  it("staging is bounded and given back", function()
    local dev = support.open()
    local text = ("x"):rep(24 * mib)
    local b = dev:buffer("u8", 24 * mib)
    for _ = 1, 8 do
      b:write(text)
    end
    assert.is_true(b:bytes() == text)
    support.settle(dev)
    local stats = dev:stats()
    assert.equal(0, stats.staging_bytes)
    assert.truthy(stats.staging_bytes_max > 0)
    assert.truthy(stats.staging_bytes_max <= stats.limit_staging_bytes)
    b:close()
    dev:close()
  end)

  it("staging is rolled back when a transfer fails on its way", function()
    local dev = support.open()
    support.works(dev)
    local b = dev:buffer("f32", 1 << 20)
    support.without_leak(dev, function()
      local s = dev:stream {}
      local function failing(i)
        if i == 700000 then
          error("no more", 0)
        end
        return i
      end
      assert.is_false(pcall(dev.upload, dev, "f32", 1 << 20, failing))
      assert.is_false(pcall(b.write, b, { 1, 2, "x" }))
      support.raises("Closed", {}, function()
        s:use(function()
          b:write({ 1 }, 1)
          s:close()
          b:write(("x"):rep(4 << 20))
        end)
      end)
      local gone = dev:buffer("f32", 1 << 20)
      support.raises("UseAfterFree", {}, dev.upload, dev, "f32", 1 << 20, function(i)
        if i == 5 then
          gone:free()
          gone:write({ 1 }, 1)
        end
        return i
      end)
      gone:close()
    end)
    assert.equal(0, dev:stats().staging_bytes)
    b:write({ 5 }, 1)
    assert.equal(5, b:read(1, 1)[1])
    dev:close()
  end)

  it("many small buffers of many sizes hold what was put there", function()
    local dev = support.open()
    local random = support.random(5)
    local live = {}
    for i = 1, 3000 do
      local k = random(1, 200)
      if live[k] then
        local b, n, v = table.unpack(live[k])
        assert.equal(string.char(v):rep(n), b:bytes())
        b:close()
      end
      local n, v = random(1, 3000), i % 251
      live[k] = { dev:buffer("u8", n):fill(v), n, v }
    end
    for _, entry in pairs(live) do
      assert.equal(string.char(entry[3]):rep(entry[2]), entry[1]:bytes())
    end
    dev:close()
  end)

  it("every limit is in stats()", function()
    local dev = support.open()
    local stats = dev:stats()
    for _, name in ipairs { "limit_task_streams", "limit_user_streams", "limit_ops_in_flight", "limit_staging_bytes",
      "limit_memory_depth", "limit_oom_hooks", "budget_bytes" } do
      assert.equal("integer", math.type(stats[name]), name)
      assert.truthy(stats[name] > 0, name)
    end
    assert.truthy(stats.budget_bytes <= dev.memory_bytes)
    dev:close()
  end)

  it("closing the device with buffers alive frees everything and later use is Closed", function()
    local dev = support.open()
    local b = dev:upload("i32", { 1, 2 })
    dev:close()
    support.raises("Closed", {}, b.read, b)
    b:close()
    assert.equal("closed buffer", gpu.type(b))
  end)
end)
