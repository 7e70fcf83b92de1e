-- Streams: making, using, waiting, marking, closing.

local gpu = require "gpulua"
local support = require "spec.support"

describe("stream", function()
  local dev, mod

  setup(function()
    dev = support.open()
    mod = dev:compile(support.spin_source)
  end)
  teardown(support.close_all)

  it("has an id that is never used again, priority and label", function()
    local a = dev:stream { label = "uploads" }
    local id = a.id
    assert.equal("integer", math.type(id))
    assert.truthy(tostring(a):find("uploads", 1, true))
    assert.equal("stream", gpu.type(a))
    a:close()
    for _ = 1, 5 do
      local b = dev:stream { priority = -1 }
      assert.truthy(b.id > id)
      id = b.id
      b:close()
    end
  end)

  it("has its priority within what the device has", function()
    local low <close> = dev:stream { priority = 1000 }
    local usual <close> = dev:stream {}
    local high <close> = dev:stream { priority = -1000 }
    assert.equal(0, usual.priority)
    assert.truthy(low.priority >= 0)
    assert.truthy(high.priority < 0 and high.priority > -1000)
    local between <close> = dev:stream { priority = -1 }
    assert.equal(-1, between.priority)
  end)

  it("of a higher priority goes first", function()
    support.wants_time(pending)
    if dev.kind ~= "cpu" then
      pending "what a GPU makes of priorities shows under full load only"
    end
    local gate <close> = dev:buffer("i32", 1):fill(0)
    local order <close> = dev:buffer("i32", 64):fill(0)
    local turn <close> = dev:buffer("i32", 1):fill(0)
    -- What they share is hidden: it would order them.
    local take = dev:compile(support.clock_source .. [[
      extern "C" __global__ void take(const int *gate, int *turn, int *order, int who, long long ticks) {
        long long start = now();
        while (now() - start < ticks) { }
        order[who] = atomicAdd(turn, 1) + gate[0];
      }]]):kernel("take", "in i32*, in i32*, in i32*, i32, i64")
    local config = { grid = 1, block = 1 }
    local low, high = {}, {}
    for i = 1, 16 do
      low[i], high[i] = dev:stream {}, dev:stream { priority = -5 }
    end
    for _, launches in ipairs { { low, high }, { high, low } } do
      for _, seconds in ipairs { 0.2, 0.8, 3.2 } do -- until the gate is the last that is there
        dev:synchronize()
        config.stream = low[1]
        local opens = mod.spin:launch(config, support.ticks(seconds), gate, 0)
        -- All wait for the gate, in whichever order they came.
        for _, streams in ipairs(launches) do
          for i, stream in ipairs(streams) do
            config.stream = stream
            take:launch(config, gate, turn, order, (streams == high and 16 or 0) + i - 1, support.ticks(0.002))
          end
        end
        local is_late = opens:done()
        dev:synchronize()
        if not is_late then
          break
        end
      end
      local turns = order:read()
      local sum_low, sum_high = 0, 0
      for i = 1, 16 do
        sum_low, sum_high = sum_low + turns[i], sum_high + turns[16 + i]
      end
      assert.truthy(sum_high < sum_low, ("%d, %d"):format(sum_high, sum_low))
    end
    for i = 1, 16 do
      low[i]:close()
      high[i]:close()
    end
  end)

  it("of a higher priority goes before what waits on others, and clamps what no device has", function()
    support.wants_time(pending)
    local low, ops = {}, {}
    local x <close> = dev:buffer("i32", 64):fill(0)
    local y <close> = dev:buffer("i32", 1):fill(0)
    for i = 1, 64 do
      low[i] = dev:stream { priority = 0 }
    end
    local high <close> = dev:stream { priority = -1000 }
    assert.truthy(high.priority < 0 and high.priority > -1000)
    assert.equal(0, low[1].priority)
    local over
    for _, seconds in ipairs { 0.01, 0.04, 0.16 } do -- on a busy machine most may be over before it comes
      dev:synchronize()
      for i = 1, 64 do
        local config = { grid = 1, block = 1, stream = low[i] }
        ops[i] = mod.spin:launch(config, support.ticks(seconds), x:slice(i, i), 1)
      end
      mod.spin:launch({ grid = 1, block = 1, stream = high }, 1, y, 1):await()
      over = 0
      for i = 1, 64 do
        over = over + (ops[i]:done() and 1 or 0)
      end
      if over < 56 then
        break
      end
    end
    -- On a GPU they all run at once. On the CPU it did not wait for those that were there before.
    assert.truthy(over < 56 or dev.kind ~= "cpu", over)
    for i = 1, 64 do
      low[i]:close()
    end
  end)

  it("is part of what launches on it say", function()
    local s <close> = dev:stream { label = "mine" }
    local x <close> = dev:buffer("i32", 1)
    local op = mod.spin:launch({ grid = 1, block = 1, stream = s }, 1, x, 1)
    assert.equal(s.id, type(op.stream) == "number" and op.stream or op.stream.id)
    op:await()
  end)

  it("runs its work in order", function()
    local s <close> = dev:stream {}
    local x <close> = dev:buffer("i32", 1):fill(0)
    local config = { grid = 1, block = 1, stream = s }
    local ops = {}
    for i = 1, 20 do
      ops[i] = mod.spin:launch(config, i == 1 and support.ticks(0.05) or 1, x, i)
    end
    for i = 2, 20 do
      assert.equal(ops[i - 1].seq + 1, ops[i].seq)
    end
    ops[20]:await()
    for i = 1, 20 do
      assert.is_true(ops[i]:done())
    end
    assert.are.same({ 20 }, x:read())
  end)

  it("runs beside other streams", function()
    support.wants_time(pending)
    local a <close> = dev:stream {}
    local b <close> = dev:stream {}
    local x <close> = dev:buffer("i32", 1):fill(0)
    local y <close> = dev:buffer("i32", 1):fill(0)
    dev:synchronize()
    support.under_way(0.5, function(seconds, seen)
      local slow = mod.spin:launch({ grid = 1, block = 1, stream = a }, support.ticks(seconds), x, 1)
      local fast = mod.spin:launch({ grid = 1, block = 1, stream = b }, 1, y, 2)
      fast:await()
      local is_over = slow:done()
      seen()
      assert.is_false(is_over)
      slow:await()
      assert.are.same({ 1, 2 }, { x:read()[1], y:read()[1] })
    end)
  end)

  describe("use", function()
    it("makes a stream the current one for a function", function()
      local s <close> = dev:stream { label = "inner" }
      local outside = dev:current().id
      local a, b = s:use(function(p, q)
        assert.equal(s.id, dev:current().id)
        return p + q, "second"
      end, 1, 2)
      assert.are.same({ 3, "second" }, { a, b })
      assert.equal(outside, dev:current().id)
    end)

    it("ends when the function raises", function()
      local s <close> = dev:stream {}
      local outside = dev:current().id
      local ok, err = pcall(s.use, s, function()
        error { mine = true }
      end)
      assert.is_false(ok)
      assert.is_true(err.mine)
      assert.equal(outside, dev:current().id)
    end)

    it("nests, and lasts over waits", function()
      local a <close> = dev:stream {}
      local b <close> = dev:stream {}
      local x <close> = dev:buffer("i32", 1)
      a:use(function()
        b:use(function()
          mod.spin:launch(support.one, support.ticks(0.01), x, 1):await()
          assert.equal(b.id, dev:current().id)
        end)
        assert.equal(a.id, dev:current().id)
      end)
    end)

    it("ends in a coroutine of the script's behind its task, too", function()
      local s <close> = dev:stream {}
      for _ = 1, 10 do
        local co
        gpu.spawn(function()
          co = coroutine.create(function()
            return s:use(coroutine.yield)
          end)
          coroutine.resume(co)
        end):await()
        collectgarbage()
        collectgarbage()
        local texts = {}
        for i = 1, 2000 do
          texts[i] = ("\xff"):rep(i // 2 + 40) -- where the task was
        end
        assert.are.same({ true, 7 }, { coroutine.resume(co, 7) })
        assert.are_not.equal(s.id, dev:current().id)
        assert.equal(2000, #texts)
      end
    end)

    it("is the task's own: another task is not touched", function()
      local s <close> = dev:stream {}
      local seen
      s:use(function()
        local task = gpu.spawn(function()
          seen = dev:current().id
        end)
        task:await()
        assert.equal(s.id, dev:current().id)
      end)
      assert.truthy(seen and seen ~= s.id)
    end)
  end)

  describe("wait", function()
    -- Kernels on one buffer would be ordered by the recorder; these two share nothing.
    local function order(wait)
      local a <close> = dev:stream {}
      local b <close> = dev:stream {}
      local x <close> = dev:buffer("i32", 1):fill(0)
      local y <close> = dev:buffer("i32", 1):fill(0)
      dev:synchronize()
      local seconds <const> = 0.4
      local begun = support.now()
      local slow = mod.spin:launch({ grid = 1, block = 1, stream = a }, support.ticks(seconds), x, 1)
      wait(a, b, slow)
      local fast = mod.spin:launch({ grid = 1, block = 1, stream = b }, 1, y, 1)
      fast:await()
      -- By the clock, because the two streams report their ends each for itself.
      local is_ordered = support.now() - begun >= 0.9 * seconds
      slow:await()
      return is_ordered
    end

    it("orders a stream behind an op", function()
      assert.is_true(order(function(_, b, slow) b:wait(slow) end))
    end)

    it("orders a stream behind another stream", function()
      assert.is_true(order(function(a, b) b:wait(a) end))
    end)

    it("orders behind a mark", function()
      assert.is_true(order(function(a, b) b:wait(a:mark()) end))
    end)

    it("is what orders them: without it they are not ordered", function()
      support.wants_time(pending)
      local is_ordered
      for _ = 1, 5 do -- a busy machine may be as late
        is_ordered = order(function() end)
        if not is_ordered then
          break
        end
      end
      assert.is_false(is_ordered)
    end)

    it("for what is over, or for itself, changes nothing", function()
      local s <close> = dev:stream {}
      local x <close> = dev:buffer("i32", 1)
      local op = mod.spin:launch(support.one, 1, x, 1)
      op:await()
      s:wait(op)
      s:wait(s)
      mod.spin:launch({ grid = 1, block = 1, stream = s }, 1, x, 2):await()
      assert.are.same({ 2 }, x:read())
    end)

    it("refuses what is neither op nor stream of this device", function()
      local s <close> = dev:stream {}
      support.raises("InvalidArgument", {}, s.wait, s, 5)
      support.raises("InvalidArgument", {}, s.wait, s)
      local other = support.open()
      support.raises("InvalidArgument", {}, s.wait, s, other:current())
      other:close()
    end)
  end)

  it("mark is over when all before it is", function()
    support.wants_time(pending)
    local s <close> = dev:stream {}
    local x <close> = dev:buffer("i32", 1):fill(0)
    support.under_way(0.1, function(seconds, seen)
      local slow = mod.spin:launch({ grid = 1, block = 1, stream = s }, support.ticks(seconds), x, 1)
      local mark = s:mark()
      local is_over = mark:done()
      seen()
      assert.is_false(is_over)
      mark:await()
      assert.is_true(slow:done())
    end)
    local empty <close> = dev:stream {}
    empty:mark():await()
  end)

  it("synchronize waits for the stream", function()
    local s <close> = dev:stream {}
    local x <close> = dev:buffer("i32", 1):fill(0)
    local op = mod.spin:launch({ grid = 1, block = 1, stream = s }, support.ticks(0.1), x, 1)
    s:synchronize()
    assert.is_true(op:done())
    s:synchronize()
  end)

  it("synchronize of the device waits for all streams", function()
    local a <close> = dev:stream {}
    local b <close> = dev:stream {}
    local x <close> = dev:buffer("i32", 1)
    local y <close> = dev:buffer("i32", 1)
    local ticks = support.ticks(0.05)
    local p = mod.spin:launch({ grid = 1, block = 1, stream = a }, ticks, x, 1)
    local q = mod.spin:launch({ grid = 1, block = 1, stream = b }, ticks, y, 1)
    dev:synchronize()
    assert.is_true(p:done() and q:done())
  end)

  describe("close", function()
    it("lets what is on it finish and refuses further work", function()
      local x <close> = dev:buffer("i32", 1):fill(0)
      support.without_leak(dev, function()
        local s = dev:stream {}
        local op = mod.spin:launch({ grid = 1, block = 1, stream = s }, support.ticks(0.05), x, 6)
        s:close()
        s:close()
        assert.equal("closed stream", gpu.type(s))
        support.raises("Closed", "closed stream", mod.spin.launch, mod.spin, { grid = 1, block = 1, stream = s },
          1, x, 7)
        support.raises("Closed", "closed stream", s.mark, s)
        op:await()
        assert.are.same({ 6 }, x:read())
      end)
    end)

    it("by the collector leaves its work alone", function()
      local x <close> = dev:buffer("i32", 1):fill(0)
      mod.spin:launch({ grid = 1, block = 1, stream = dev:stream {} }, support.ticks(0.05), x, 8)
      collectgarbage()
      collectgarbage()
      assert.are.same({ 8 }, x:read())
    end)
  end)

  it("that is closed with work on it gives its place back when that is over", function()
    local limit = dev:stats().limit_user_streams
    local x <close> = dev:buffer("f32", 1000)
    for i = 1, 3 * limit do -- nobody waits for any of it
      local s <close> = dev:stream {}
      s:use(function() x:fill(i) end)
    end
    assert.equal(3 * limit, x:read(1, 1)[1])
  end)

  it("is limited in number: Capacity beyond, and closing one makes room", function()
    support.without_leak(dev, function()
      local limit = dev:stats().limit_user_streams
      assert.equal("integer", math.type(limit))
      local streams = {}
      for i = 1, limit do
        streams[i] = dev:stream {}
      end
      local before = dev:stats().streams_live
      local collected = false
      setmetatable({}, { __gc = function() collected = true end })
      local err = support.raises("Capacity", tostring(limit), dev.stream, dev, {})
      assert.equal(limit, err.max)
      -- After a full collection, and with no other stream in its place.
      assert.is_true(collected)
      assert.equal(before, dev:stats().streams_live)
      streams[1]:close()
      dev:synchronize()
      streams[1] = dev:stream {}
      local x <close> = dev:buffer("i32", limit):fill(0)
      for i = 1, limit do
        mod.spin:launch({ grid = 1, block = 1, stream = streams[i] }, 1, x:slice(i, i), i)
      end
      local got = x:read()
      for i = 1, limit do
        assert.equal(i, got[i])
        streams[i]:close()
      end
    end)
  end)

  it("that nobody holds makes room for another", function()
    local limit = dev:stats().limit_user_streams
    for _ = 1, 3 * limit do
      dev:stream {}
    end
    dev:stream({}):close()
  end)

  it("tasks get streams of a fixed set, in turn", function()
    local limit = dev:stats().limit_task_streams
    local ids, count = {}, 0
    local tasks = {}
    for i = 1, 3 * limit do
      tasks[i] = gpu.spawn(function()
        local id = dev:current().id
        if not ids[id] then
          ids[id] = true
          count = count + 1
        end
      end)
    end
    gpu.all(tasks)
    assert.equal(limit, count)
  end)

  it("refuses bad options", function()
    support.raises("InvalidArgument", "priority", dev.stream, dev, { priority = "high" })
    support.raises("InvalidArgument", "label", dev.stream, dev, { label = 5 })
    support.raises("InvalidArgument", "lable", dev.stream, dev, { lable = "x" })
  end)
end)
