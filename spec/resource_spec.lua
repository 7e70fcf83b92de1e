-- Memory resources: what dev:memory stacks, each sentence of the design on both transports.

local gpu = require "gpulua"
local support = require "spec.support"

describe("memory resources", function()
  teardown(support.close_all)

  local mib <const> = 1 << 20

  local poke_source <const> = [[
    extern "C" __global__ void poke(int *x, long long i, int value) { x[i] = value; }
  ]]

  local dev
  before_each(function()
    dev = support.open { budget = 256 * mib }
  end)
  after_each(function()
    dev:close()
  end)

  it("have one interface, whatever they stand on", function()
    support.works(dev)
    for _, from in ipairs { "slab", "driver", "direct" } do
      support.without_leak(dev, function()
        local mem <close> = dev:memory { from = from, statistics = true, label = from }
        local b = mem:buffer("i32", 1000, { label = "x" })
        assert.equal("statistics", mem.kind)
        assert.equal(from, mem.label)
        assert.equal(dev, mem.device)
        assert.equal(from ~= "direct", mem.trackable)
        b:fill(7)
        assert.equal(7, b:read(1000, 1000)[1])
        local stats = mem:stats()
        assert.equal(4096, stats.outstanding_bytes)
        assert.equal(1, stats.outstanding_count)
        assert.equal(256 * mib, stats.limit_bytes)
        assert.equal(256 * mib - 4096, stats.remaining_bytes)
        b:close()
        dev:synchronize()
        mem:reap()
        assert.equal(0, mem:stats().outstanding_bytes)
        assert.equal(256 * mib, mem:stats().remaining_bytes)
      end)
    end
  end)

  it("make buffers by the option of dev:buffer and dev:upload, too", function()
    local mem = dev:memory { statistics = true }
    local a = dev:buffer("u8", 10, { memory = mem })
    local b = dev:upload("i32", { 1, 2, 3 }, { memory = mem, label = "b" })
    local c = dev:upload("i32", 4, function(i) return i end, { memory = mem })
    assert.are.same({ 1, 2, 3 }, b:read())
    assert.are.same({ 1, 2, 3, 4 }, c:read())
    assert.equal(3, mem:stats().allocs)
    a:close()
    assert.equal(1, mem:stats().frees)
  end)

  it("print themselves, are told by gpu.type, close, and say so", function()
    local mem = dev:memory { from = "driver", budget = mib, log = true, label = "pool" }
    assert.equal("gpulua.memory logging on budget on driver on " .. dev.name .. " (pool)", tostring(mem))
    assert.equal("memory", gpu.type(mem))
    local b = mem:buffer("i32", 4):fill(3)
    mem:close()
    mem:close()
    assert.equal("closed memory", gpu.type(mem))
    assert.equal("gpulua.memory (closed)", tostring(mem))
    support.raises("Closed", "closed memory", mem.buffer, mem, "i32", 1)
    support.raises("Closed", "closed memory", dev.buffer, dev, "i32", 1, { memory = mem })
    assert.equal(3, b:read()[4])
    b:close()
  end)

  it("outlive neither their device nor its close badly", function()
    local other = support.open { budget = 64 * mib }
    local mem = other:memory { guard = true, budget = mib, log = true, statistics = true }
    local b = mem:buffer("i32", 4):fill(1)
    mem:buffer("i32", 4):close()
    other:close()
    support.raises("Closed", {}, mem.buffer, mem, "i32", 4)
    b:close()
    mem:close()
    b, mem = nil, nil
    collectgarbage()
    assert.is_nil(b or mem)
  end)

  it("stand on each other in any order, up to a limit", function()
    local inner = dev:memory { budget = 2 * mib, statistics = true }
    local outer = dev:memory { from = inner, budget = mib, log = true }
    outer:buffer("u8", mib):close()
    assert.equal(1, inner:stats().allocs)
    local err = support.raises("OutOfBudget", {}, outer.buffer, outer, "u8", mib + 1)
    assert.equal(mib, err.limit)
    local mem = dev:memory()
    local limit = dev:stats().limit_memory_depth
    for _ = 2, limit do
      mem = dev:memory { from = mem, statistics = true }
    end
    local full = support.raises("Capacity", tostring(limit), dev.memory, dev, { from = mem, statistics = true })
    assert.equal(limit, full.max)
    mem:buffer("u8", 1):close()
  end)

  it("refuse options that make no sense, naming them", function()
    local other = support.open()
    support.raises("InvalidArgument", "no option 'limit'", dev.memory, dev, { limit = 1 })
    support.raises("InvalidArgument", "from of memory", dev.memory, dev, { from = "heap" })
    support.raises("InvalidArgument", "from of memory", dev.memory, dev, { from = 5 })
    support.raises("InvalidArgument", "budget of memory", dev.memory, dev, { budget = 0 })
    support.raises("InvalidArgument", "guard of memory", dev.memory, dev, { guard = 5 })
    support.raises("InvalidArgument", "canary of guard", dev.memory, dev, { guard = { canary = 0 } })
    support.raises("InvalidArgument", "oom of memory", dev.memory, dev, { oom = "panic" })
    support.raises("InvalidArgument", "timeout of memory", dev.memory, dev, { timeout = 1 })
    support.raises("InvalidArgument", "log of memory", dev.memory, dev, { log = 5 })
    support.raises("InvalidArgument", "log_bytes of memory", dev.memory, dev, { log = true, log_bytes = 1 })
    support.raises("InvalidArgument", "log_bytes of memory", dev.memory, dev, { log_bytes = 1000 })
    support.raises("InvalidArgument", "cannot stand on memory of", dev.memory, dev,
      { from = other:memory { statistics = true }, budget = 1 })
    support.raises("InvalidArgument", "memory of buffer", dev.buffer, dev, "i32", 1, { memory = "slab" })
    support.raises("InvalidArgument", "memory of buffer", dev.buffer, dev, "i32", 1, { memory = other:memory() })
    support.raises("InvalidArgument", "log = true", function() dev:memory():log() end)
    support.raises("InvalidArgument", "guard", function() dev:memory():check() end)
    support.raises("InvalidArgument", "oom = \"free\"", function() dev:memory():on_oom(print) end)
    other:close()
  end)

  describe("driver", function()
    it("memory is in the order of the stream that asked: its allocation counts as a write there", function()
      local mod = dev:compile(support.spin_source)
      local mem = dev:memory { from = "driver" }
      local s, other = dev:stream {}, dev:stream {}
      local busy = dev:buffer("i32", 1)
      support.under_way(0.05, function(seconds, seen, begins)
        support.settle(dev)
        local before = dev:stats().waits_issued
        local b, slow
        begins()
        s:use(function()
          slow = mod.spin:launch(support.one, support.ticks(seconds), busy, 1)
          b = mem:buffer("i32", 4)
        end)
        local is_over = b:done()
        other:use(function()
          b:fill(9)
        end)
        seen()
        assert.is_false(is_over)
        assert.equal(before + 1, dev:stats().waits_issued)
        assert.equal(9, b:read()[1])
        slow:await()
        b:close()
      end)
      busy:close()
      s:close()
      other:close()
    end)

    it("memory never mixes contents, however often it comes and goes", function()
      local mem = dev:memory { from = "driver" }
      local random = support.random(11)
      local live = {}
      for i = 1, 400 do
        local k = random(1, 20)
        if live[k] then
          local b, n, v = table.unpack(live[k])
          assert.equal(string.char(v):rep(n), b:bytes())
          b:close()
        end
        local n, v = random(1, 100000), i % 251
        live[k] = { mem:buffer("u8", n):fill(v), n, v }
      end
      for _, entry in pairs(live) do
        assert.equal(string.char(entry[3]):rep(entry[2]), entry[1]:bytes())
        entry[1]:close()
      end
    end)

    it("counts against the device's budget", function()
      local small = support.open { budget = 2 * mib }
      local mem = small:memory { from = "driver" }
      local kept = mem:buffer("u8", mib)
      local err = support.raises("OutOfBudget", {}, mem.buffer, mem, "u8", 3 * mib)
      assert.equal(3 * mib, err.requested)
      assert.equal(2 * mib, err.limit)
      support.raises("OutOfBudget", {}, small.buffer, small, "u8", mib + 1)
      kept:close()
      small:close()
    end)
  end)

  describe("direct", function()
    it("is refused by launches with StreamMisuse, and nothing is enqueued", function()
      local poke = dev:compile(poke_source).poke
      local mem = dev:memory { from = "direct" }
      local b = mem:buffer("i32", 4, { label = "raw" }):fill(1)
      dev:synchronize()
      local before = dev:stats().launches
      support.raises("StreamMisuse", { "argument 1 (x) of kernel 'poke'", "raw" }, poke.launch, poke, support.one, b, 0,
        7)
      assert.equal(before, dev:stats().launches)
      assert.are.same({ 1, 1, 1, 1 }, b:read())
      b:close()
    end)

    it("takes its memory with each allocation and gives it back with each end", function()
      local mem = dev:memory { from = "direct" }
      support.settle(dev)
      local before = dev:stats().bytes_reserved
      local b = mem:buffer("u8", 3 * mib)
      assert.equal(before + 3 * mib, dev:stats().bytes_reserved)
      b:close()
      assert.equal(before, dev:stats().bytes_reserved)
    end)
  end)

  describe("budget", function()
    it("refuses at once what is more than all of it, with figures and without a collection", function()
      local mem = dev:memory { budget = 8 * mib }
      local kept = mem:buffer("u8", mib)
      local before = dev:stats()
      local err = support.raises("OutOfBudget", {}, mem.buffer, mem, "u8", 9 * mib)
      assert.equal(9 * mib, err.requested)
      assert.equal(mib, err.current)
      assert.equal(7 * mib, err.remaining)
      assert.equal(8 * mib, err.limit)
      local after = dev:stats()
      assert.equal(before.collections, after.collections)
      assert.equal(before.requests, after.requests)
      assert.equal(before.bytes_live, after.bytes_live)
      kept:close()
    end)

    it("is called by its label where it is exceeded", function()
      local cache = dev:memory { budget = mib, label = "cache" }
      local mem = dev:memory { from = cache, budget = 8 * mib }
      local function of(whose, limit)
        return { ("asked of %s on "):format(whose), (" 0 of %d in use"):format(limit) }
      end
      support.raises("OutOfBudget", of("memory 'cache'", mib), mem.buffer, mem, "u8", 2 * mib)
      support.raises("OutOfBudget", of("memory 'cache'", mib), cache.buffer, cache, "u8", 1 << 50)
      support.raises("OutOfBudget", of("a memory with a budget of its own", 8 * mib), mem.buffer, mem, "u8", 1 << 50)
    end)

    it("collects, reaps and tries once more what does not fit now, and counts what worked", function()
      local mem = dev:memory { budget = 8 * mib }
      collectgarbage "stop"
      mem:buffer("u8", 6 * mib)
      local before = dev:stats()
      mem:buffer("u8", 6 * mib):close()
      local after = dev:stats()
      collectgarbage "restart"
      assert.equal(before.collections + 1, after.collections)
      assert.equal(before.oom_retries + 1, after.oom_retries)
      assert.equal(before.recoveries + 1, after.recoveries)
      local kept = mem:buffer("u8", 6 * mib)
      before = dev:stats()
      local err = support.raises("OutOfBudget", {}, mem.buffer, mem, "u8", 6 * mib)
      after = dev:stats()
      assert.equal(6 * mib, err.current)
      assert.equal(2 * mib, err.remaining)
      assert.equal(before.collections + 1, after.collections)
      assert.equal(before.oom_retries + 1, after.oom_retries)
      assert.equal(before.recoveries, after.recoveries)
      kept:close()
    end)

    it("gets what comes out of use into a quarantine, also where another budget was too small before", function()
      local small = support.open { budget = 800 << 10 }
      local mod = small:compile(support.spin_source)
      local ticks = support.ticks(1)
      collectgarbage()
      small:synchronize()
      collectgarbage "stop"
      local guarded = small:memory { guard = { quarantine = mib } }
      local mem = small:memory { budget = 300 << 10 }
      local x = guarded:buffer("i32", 600 << 8)
      local op = mod.spin:launch(support.one, ticks, x, 1)
      x = nil
      collectgarbage() -- closing it would wait and look
      collectgarbage()
      mem:buffer("u8", 150 << 10) -- garbage, which the smaller budget needs
      local before = small:stats()
      local b = mem:buffer("u8", 250 << 10)
      collectgarbage "restart"
      local after = small:stats()
      assert.is_true(op:done())
      assert.is_nil(x)
      assert.equal(before.collections + 1, after.collections)
      assert.equal(before.recoveries + 2, after.recoveries)
      b:close()
      small:close()
    end)

    it("may be used to its last byte, and not one further", function()
      local mem = dev:memory { budget = mib }
      local a, b = mem:buffer("u8", mib - 512), mem:buffer("u8", 512)
      assert.equal(0, mem:stats().remaining_bytes)
      support.raises("OutOfBudget", {}, mem.buffer, mem, "u8", 1)
      a:close()
      b:close()
    end)

    it("is given back when what lies below fails", function()
      local mem = dev:memory { from = dev:memory { budget = mib }, budget = 8 * mib }
      support.raises("OutOfBudget", {}, mem.buffer, mem, "u8", 2 * mib)
      assert.equal(mib, mem:stats().remaining_bytes)
      mem:buffer("u8", mib):close()
    end)

    it("reserves for a group all or nothing, in one step", function()
      local mem = dev:memory { budget = mib, statistics = true }
      local err = support.raises("OutOfBudget", {}, mem.buffers, mem, { "u8", mib // 2 }, { "u8", mib // 2 },
        { "u8", 1 })
      assert.equal(mib + 512, err.requested)
      assert.equal(0, mem:stats().allocs)
      assert.equal(mib, mem:stats().remaining_bytes)
      local a, b = mem:buffers({ "u8", mib // 2, { label = "a" } }, { "f32", { 2, mib // 16 } })
      assert.equal("a", a.label)
      assert.are.same({ 2, mib // 16 }, b.shape)
      assert.equal(0, mem:stats().remaining_bytes)
      a:close()
      b:close()
      assert.equal(mib, mem:stats().remaining_bytes)
      support.raises("InvalidArgument", {}, mem.buffers, mem)
      support.raises("InvalidArgument", {}, mem.buffers, mem, { "u8", 1 }, { "u9", 1 })
      assert.equal(mib, mem:stats().remaining_bytes)
      assert.equal(256 * mib, dev:memory():stats().remaining_bytes)
    end)

    it("is Closed when a finaliser or a metamethod closes the memory on the way", function()
      local mem = dev:memory { budget = 4096 }
      mem:buffer("u8", 4096) -- garbage, which the group needs
      setmetatable({}, { __gc = function() mem:close() end })
      support.raises("Closed", {}, mem.buffers, mem, { "u8", 2048 }, { "u8", 1024 })
      for _, make in ipairs { "buffer", "buffers" } do
        mem = dev:memory { budget = 4096 }
        local options = setmetatable({}, { __index = function(_, key)
          if key == "label" then mem:close() end
        end })
        if make == "buffer" then
          support.raises("Closed", {}, mem.buffer, mem, "u8", 10, options)
        else
          support.raises("Closed", {}, mem.buffers, mem, { "u8", 10 }, { "u8", 10, options })
        end
      end
      collectgarbage()
      dev:synchronize()
      assert.equal(0, dev:stats().bytes_live)
      assert.equal(256 * mib, dev:memory():stats().remaining_bytes)
    end)

    it("of a group that changes while it is made is given back", function()
      local mem = dev:memory { budget = mib }
      local sneaky = { "u8", 512 }
      sneaky[3] = setmetatable({}, { __index = function()
        sneaky[2] = mib
      end })
      support.raises("InvalidArgument", "buffer 1 changed", mem.buffers, mem, sneaky, { "u8", 512 })
      assert.equal(mib, mem:stats().remaining_bytes)
    end)

    it("of a group is given back when the capture that a part is made in refuses it", function()
      local mem = dev:memory { budget = mib, statistics = true }
      local pool = dev:pool():seal()
      support.raises("PoolSealed", {}, dev.capture, dev, { pool = pool }, function()
        mem:buffers({ "u8", mib // 2 }, { "u8", mib // 2 })
      end)
      assert.equal(mib, mem:stats().remaining_bytes)
    end)

    -- A group of three whose second part is asked for its options when the device has been lost, and then
    -- `again(lost, epoch)` is called.
    local function lose_between(again)
      local lost = support.open_with_pid { restarts = 1000, budget = 4 * mib }
      local mem = lost:memory { budget = mib }
      local looks, left = 0, nil
      local options = setmetatable({}, { __index = function(_, key)
        looks = looks + (key == "label" and 1 or 0)
        if looks == 2 and not left then -- its part is made; room for it is reserved
          left = mem:stats().remaining_bytes
          local epoch = lost.epoch
          os.execute("kill -9 " .. lost.pid)
          again(lost, epoch)
        end
      end })
      local ok, err = pcall(mem.buffers, mem, { "u8", mib // 4 }, { "u8", mib // 4, options }, { "u8", mib // 4 })
      assert.is_false(ok)
      assert.equal("DeviceLost", err.code)
      assert.equal(mib // 4, left)
      lost:await()
      assert.equal(mib, mem:stats().remaining_bytes)
      assert.equal(4 * mib, lost:memory():stats().remaining_bytes)
      lost:close()
    end

    it("of a group is given back when the device is lost between its parts", function()
      if not support.is_isolated() then
        return -- it does not come up again
      end
      lose_between(function(lost, epoch)
        support.eventually(10, function()
          return not pcall(lost.buffer, lost, "u8", 1) or lost.epoch > epoch
        end)
      end)
    end)

    it("of a group is given back when the device is lost between its parts, and there again by then", function()
      if not support.is_isolated() then
        return
      end
      lose_between(function(lost, epoch)
        support.eventually(30, function()
          return pcall(lost.buffer, lost, "u8", 1) and lost.epoch > epoch
        end)
      end)
    end)

    it("of a group whose last part fails is given back, and that of those made before it", function()
      local mem = dev:memory { budget = mib }
      local looks = 0
      local options = setmetatable({}, { __index = function(_, key)
        looks = looks + (key == "label" and 1 or 0)
        if looks == 2 then error "no more" end
      end })
      collectgarbage "stop"
      assert.is_false(pcall(mem.buffers, mem, { "u8", 512 }, { "u8", 512 }, { "u8", 512, options }))
      local left = mem:stats().remaining_bytes
      collectgarbage "restart"
      assert.equal(mib, left)
    end)

    it("reserves for a group through guards, and gives all back when a part fails", function()
      local mem = dev:memory { from = dev:memory { budget = mib }, guard = { quarantine = 0 } }
      -- With canaries on both sides: 1,536 bytes each.
      local some = { mem:buffers({ "u8", 1 }, { "u8", 512 }) }
      assert.equal(mib - 3072, mem:stats().remaining_bytes)
      support.raises("OutOfBudget", {}, mem.buffers, mem, { "u8", mib // 2 }, { "u8", mib // 2 })
      assert.equal(mib - 3072, mem:stats().remaining_bytes)
      for _, b in ipairs(some) do
        b:close()
      end
      assert.equal(mib, mem:stats().remaining_bytes)
    end)
  end)

  describe("pressure", function()
    it("has five levels, whose changes listeners are told in tasks of their own", function()
      local mem = dev:memory { budget = 100 * 512 }
      local seen, held = {}, {}
      mem:on_pressure(function(level, remaining)
        seen[#seen + 1] = level .. " " .. remaining // 512
      end)
      local function step(count)
        while #held < count do
          held[#held + 1] = mem:buffer("u8", 1)
        end
        while #held > count do
          table.remove(held):close()
        end
        gpu.sleep(0)
        return mem.pressure
      end
      assert.equal("none", step(49))
      assert.equal("low", step(50))
      assert.equal("low", step(69))
      assert.equal("medium", step(70))
      assert.equal("high", step(85))
      assert.equal("critical", step(95))
      assert.equal("critical", step(100))
      assert.equal("high", step(94))
      assert.equal("none", step(0))
      assert.are.same({ "low 50", "medium 30", "high 15", "critical 5", "high 6" }, table.move(seen, 1, 5, 1, {}))
      assert.equal("none 51", seen[#seen])
    end)

    it("listeners are nobody's children, and no part of a capture", function()
      local mem = dev:memory { budget = mib }
      local x <close> = dev:buffer("i32", 1):fill(0)
      local has_ended, held
      mem:on_pressure(function()
        gpu.sleep(0.1)
        if not has_ended then
          x:fill(7)
          has_ended = true
        end
      end)
      gpu.spawn(function() held = mem:buffer("u8", mib) end):await()
      assert.is_nil(has_ended)
      gpu.sleep(0.2)
      held:close()
      gpu.sleep(0.2)
      x:fill(0)
      has_ended = nil
      local y <close> = dev:buffer("i32", 1)
      local graph <close> = dev:capture({}, function()
        held = mem:buffer("u8", mib)
        y:fill(1)
      end)
      assert.equal(1, graph:nodes())
      assert.is_true(support.eventually(5, function() return has_ended end))
      assert.are.same({ 7 }, x:read())
      held:close()
    end)

    it("listeners of the device's own budget are those of memory without one", function()
      local small = support.open { budget = 4 * mib }
      local seen = {}
      local mem = small:memory():on_pressure(function(level)
        seen[#seen + 1] = level
      end)
      local b = small:buffer("u8", 3 * mib)
      gpu.sleep(0)
      assert.are.same({ "medium" }, seen)
      assert.equal("medium", mem.pressure)
      b:close()
      mem:close()
      small:close()
    end)
  end)

  describe("out of device memory", function()
    -- More than the device has, so that it is the device that refuses. Pages of the CPU device that
    -- nobody touches cost nothing.
    local function open_full()
      local full = support.open { budget = 1 << 50 }
      local most = full.memory_bytes // 10 * 6 // mib * mib
      return full, most
    end

    it("fails by default, when garbage has been collected and that did not help", function()
      local full, most = open_full()
      local kept = full:buffer("u8", most)
      local before = full:stats()
      support.raises("OutOfMemory", {}, full.buffer, full, "u8", most)
      local after = full:stats()
      assert.equal(before.collections + 1, after.collections)
      assert.equal(before.recoveries, after.recoveries)
      assert.truthy(after.oom_retries > before.oom_retries)
      kept:close()
      full:buffer("u8", most):close()
      full:close()
    end)

    it("is helped by a collection, which counts as a recovery", function()
      local full, most = open_full()
      collectgarbage "stop"
      full:buffer("u8", most)
      local before = full:stats()
      full:buffer("u8", most):close()
      collectgarbage "restart"
      assert.equal(before.recoveries + 1, full:stats().recoveries)
      full:close()
    end)

    it("is helped by what the slabs keep and nobody uses, whoever asks", function()
      for _, from in ipairs { "driver", "direct" } do
        local full, most = open_full()
        full:buffer("u8", most):close()
        assert.truthy(full:stats().bytes_reserved >= most)
        local mem = full:memory { from = from }
        local group = table.pack(mem:buffers({ "u8", most // 2 }, { "u8", most // 2 }))
        for _, b in ipairs(group) do b:close() end
        full:synchronize()
        full:buffer("u8", most):close()
        full:close()
      end
    end)

    -- A buffer of so many bytes that work in flight uses for a while.
    local function busy(full, bytes)
      local poke = full:compile(poke_source).poke
      local b = full:buffer("u8", bytes)
      full:inject { slow = "poke", seconds = 0.3 }
      poke:launch(support.one, b:view("i32"), 0, 1)
      return b
    end

    it("waits for what is freed but in use, also where a budget had garbage collected before", function()
      local full, most = open_full()
      local mem = full:memory { budget = most }
      collectgarbage "stop"
      mem:buffer("u8", 1)
      busy(full, most):close()
      local before = full:stats().collections
      mem:buffer("u8", most):close()
      collectgarbage "restart"
      assert.equal(before + 1, full:stats().collections)
      full:close()
    end)

    it("waits for what is freed but in use before it asks hooks, and behind each that has freed", function()
      local full, most = open_full()
      local mem = full:memory { oom = "free" }
      local calls, kept = 0, nil
      mem:on_oom(function()
        calls = calls + 1
        kept:close()
        return true
      end)
      busy(full, most):close()
      mem:buffer("u8", most):close()
      assert.equal(0, calls)
      kept = busy(full, most)
      mem:buffer("u8", most):close()
      assert.equal(1, calls)
      full:close()
    end)

    it("asks hooks in the order of their priorities until one has helped", function()
      local full, most = open_full()
      local mem = full:memory { oom = "free", statistics = true }
      local kept = full:buffer("u8", most)
      local order = {}
      mem:on_oom(function()
        order[#order + 1] = "second"
        return true -- has not freed anything: the try fails
      end)
      mem:on_oom(function(bytes)
        order[#order + 1] = "first"
        assert.equal(most, bytes)
      end, 5)
      mem:on_oom(function()
        order[#order + 1] = "third"
        kept:close()
        return true
      end)
      mem:on_oom(function()
        order[#order + 1] = "never"
      end, -1)
      local before = full:stats().recoveries
      mem:buffer("u8", most):close()
      assert.are.same({ "first", "second", "third" }, order)
      assert.equal(before + 1, full:stats().recoveries)
      assert.equal(1, mem:stats().allocs)
      full:close()
    end)

    it("raises what a hook raises, and what it has allocated itself is refused plainly", function()
      local full, most = open_full()
      local mem = full:memory { oom = "free" }
      local kept = full:buffer("u8", most)
      mem:on_oom(function()
        mem:buffer("u8", most)
      end)
      support.raises("OutOfMemory", {}, mem.buffer, mem, "u8", most)
      mem:on_oom(function()
        error("no cache to drop", 0)
      end, 1)
      local ok, err = pcall(mem.buffer, mem, "u8", most)
      assert.is_false(ok)
      assert.equal("no cache to drop", err)
      kept:close()
      support.works(full)
      full:close()
    end)

    it("asks each hook once, and what hooks add the next time", function()
      local full, most = open_full()
      local mem = full:memory { oom = "free" }
      local kept = full:buffer("u8", most)
      local order = {}
      local function add(name, priority)
        mem:on_oom(function()
          order[#order + 1] = name
          if name == "b" and #order < 10 then
            add("new", 9)
          end
        end, priority)
      end
      add("a", 3)
      add("b", 2)
      add("c", 1)
      support.raises("OutOfMemory", {}, mem.buffer, mem, "u8", most)
      assert.are.same({ "a", "b", "c" }, order)
      order = {}
      support.raises("OutOfMemory", {}, mem.buffer, mem, "u8", most)
      assert.are.same({ "new", "a", "b", "c" }, order)
      kept:close()
      full:close()
    end)

    it("a hook that closes the device ends the call", function()
      local full, most = open_full()
      local mem = full:memory { oom = "free" }
      local kept = full:buffer("u8", most)
      mem:on_oom(function()
        kept:close()
        full:close()
        return true
      end)
      support.raises("Closed", {}, mem.buffer, mem, "u8", most)
    end)

    it("hooks go with their memory", function()
      local full, most = open_full()
      local calls = 0
      local inner = full:memory { oom = "free" }
      local mem = full:memory { from = inner, statistics = true }
      inner:on_oom(function()
        calls = calls + 1
      end)
      local kept = full:buffer("u8", most)
      support.raises("OutOfMemory", {}, mem.buffer, mem, "u8", most)
      assert.equal(1, calls)
      inner:close()
      support.raises("OutOfMemory", {}, mem.buffer, mem, "u8", most)
      assert.equal(1, calls)
      kept:close()
      full:close()
    end)

    it("is of a part of a group as it is of a single buffer", function()
      for _, from in ipairs { "slab", "driver", "direct" } do
        local full, most = open_full()
        local whole = full:memory():stats().remaining_bytes
        -- Of the second part, with what takes its memory when room for all is reserved already.
        local function group(mem, before)
          local looks = 0
          local options = setmetatable({}, { __index = function(_, key)
            if key == "label" then looks = looks + 1 end
            if key == "label" and looks == 2 then before() end
          end })
          local got = table.pack(pcall(mem.buffers, mem, { "u8", mib }, { "u8", most, options }))
          if got[1] then
            got[2]:close()
            got[3]:close()
            full:synchronize() -- the pool's memory is free in the order of its stream
          end
          return got[1], got[2]
        end
        -- Garbage.
        collectgarbage "stop"
        local mem = full:memory { from = from, budget = 1 << 49 }
        local before = full:stats().recoveries
        local ok, err = group(mem, function() full:buffer("u8", most) end)
        collectgarbage "restart"
        assert.is_true(ok, tostring(err))
        assert.equal(before + 1, full:stats().recoveries)
        -- What is freed but in use.
        ok, err = group(mem, function() busy(full, most):close() end)
        assert.is_true(ok, tostring(err))
        -- Hooks.
        local kept
        local asking = full:memory { from = mem, oom = "free" }
        asking:on_oom(function()
          if kept then kept:close() end
          return true
        end)
        ok, err = group(asking, function() kept = full:buffer("u8", most) end)
        assert.is_true(ok, tostring(err))
        -- And if nothing helps, all is given back.
        kept = nil
        local held
        ok, err = group(asking, function() held = full:buffer("u8", most) end)
        assert.is_false(ok)
        assert.equal("OutOfMemory", err.code)
        held:close()
        full:synchronize()
        assert.equal(1 << 49, mem:stats().remaining_bytes)
        assert.equal(whole, full:memory():stats().remaining_bytes)
        full:close()
      end
    end)

    it("waits at most as long as it is told", function()
      local full, most = open_full()
      local mem = full:memory { oom = "wait", timeout = 0.2 }
      local kept = full:buffer("u8", most)
      local start = support.now()
      support.raises("OutOfMemory", {}, mem.buffer, mem, "u8", most)
      assert.truthy(support.now() - start >= 0.2)
      kept:close()
      mem:buffer("u8", most):close()
      full:close()
    end)

    it("does not wait on when the time of gpu.timeout is up, and tells of no failure that came behind it", function()
      local full, most = open_full()
      local mem = full:memory { oom = "wait", timeout = 30 }
      local kept = full:buffer("u8", most)
      support.raises("Timeout", {}, gpu.timeout, 0.1, mem.buffer, mem, "u8", most)
      for _ = 1, 20 do -- given up before the device has answered
        support.raises("Timeout", {}, gpu.timeout, 0, mem.buffer, mem, "u8", most)
      end
      full:synchronize()
      kept:close()
      mem:buffer("u8", most):close()
      full:close()
    end)
  end)

  describe("statistics", function()
    it("count what passes", function()
      local mem = dev:memory { budget = mib, statistics = true }
      local a, b = mem:buffer("u8", 1), mem:buffer("u8", 5000)
      support.raises("OutOfBudget", {}, mem.buffer, mem, "u8", mib)
      a:close()
      local stats = mem:stats()
      assert.equal(2, stats.allocs)
      assert.equal(1, stats.frees)
      assert.equal(1, stats.failures)
      assert.equal(5120, stats.bytes_live)
      assert.equal(5632, stats.bytes_live_max)
      assert.equal(5632, stats.bytes_total)
      assert.equal(5120, stats.largest_bytes)
      assert.equal(1, stats.blocks_live)
      assert.equal(2, stats.blocks_live_max)
      b:close()
    end)
  end)

  describe("logging", function()
    it("numbers every event and names size, allocation, label and line", function()
      local mem = dev:memory { budget = mib, log = true }
      local b = mem:buffer("u8", 100, { label = "x" })
      support.raises("OutOfBudget", {}, mem.buffer, mem, "u8", 2 * mib)
      b:close()
      local lines = mem:log()
      assert.equal(3, #lines)
      assert.truthy(lines[1]:find "^1 allocate 512 bytes for allocation %d+ 'x' at spec/resource_spec.lua:%d+$")
      assert.truthy(lines[2]:find "^2 refuse 2097152 bytes for allocation %d+", lines[2])
      assert.truthy(lines[3]:find "^3 free 512 bytes for allocation %d+ 'x'$", lines[3])
      assert.are.same({}, mem:log())
      assert.equal(3, mem:stats().log_events)
      assert.equal(0, mem:stats().log_drops)
    end)

    it("keeps a bounded text: what has no room is counted", function()
      local mem = dev:memory { log = true, log_bytes = 1000 }
      for _ = 1, 100 do
        mem:buffer("u8", 1, { label = ("l"):rep(200) }):close()
      end
      local stats = mem:stats()
      local lines = mem:log()
      assert.equal(200, stats.log_events)
      assert.equal(200, stats.log_drops + #lines)
      assert.truthy(#lines >= 5 and #table.concat(lines, "\n") <= 1000)
      mem:buffer("u8", 1):close()
      assert.truthy(mem:log()[1]:find "^201 ")
    end)

    it("a failing sink only counts drops", function()
      local lines = {}
      local mem = dev:memory { log = function(line)
        lines[#lines + 1] = line
        if #lines == 2 then
          error "the disk is full"
        end
      end }
      for _ = 1, 3 do
        mem:buffer("u8", 1):close()
      end
      mem:reap()
      assert.equal(6, #lines)
      assert.equal(1, mem:stats().log_drops)
    end)
  end)

  describe("guard", function()
    local poke
    before_each(function()
      poke = dev:compile(poke_source).poke
    end)

    for _, from in ipairs { "slab", "driver" } do
      it("finds writes before and behind a buffer of " .. from .. " when it is freed, naming it", function()
        local mem = dev:memory { from = from, guard = true }
        for index, place in pairs { [-1] = "byte -4", [100] = "byte 400", [127] = "byte 508" } do
          local b = mem:buffer("i32", 100, { label = "victim" }):fill(1)
          poke:launch(support.one, b, index, 0):await()
          support.raises("OutOfBounds", { "buffer 'victim'", "400 bytes", "spec/resource_spec.lua:", place }, b.close,
            b)
          assert.equal("closed buffer", gpu.type(b))
        end
        local good = mem:buffer("i32", 100):fill(1)
        poke:launch(support.one, good, 99, 5):await()
        assert.equal(5, good:read(100, 100)[1])
        good:close()
        mem:check()
      end)
    end

    it("finds them on demand, once each", function()
      local mem = dev:memory { guard = true }
      local b, c = mem:buffer("i32", 100, { label = "b" }), mem:buffer("i32", 100, { label = "c" })
      poke:launch(support.one, c, 100, 0)
      support.raises("OutOfBounds", "buffer 'c'", mem.check, mem)
      mem:check()
      b:close()
      c:close()
    end)

    it("keeps freed memory in quarantine and finds what writes there", function()
      local mem = dev:memory { guard = { quarantine = mib } }
      local whole <close> = mem:buffer("i32", 4096)
      local b = mem:buffer("i32", 1024, { label = "gone" })
      -- A pointer that outlives its buffer: found from a neighbour's.
      local distance
      do
        local probe = dev:compile [[
          extern "C" __global__ void tell(const int *a, const int *b, long long *out) { out[0] = b - a; }
        ]]
        local out = dev:buffer("i64", 1)
        probe.tell:launch(support.one, whole, b, out):await()
        distance = out:read()[1]
      end
      b:close()
      mem:check()
      poke:launch(support.one, whole, distance + 3, 1)
      support.raises("UseAfterFree", { "buffer 'gone'", "byte 12" }, mem.check, mem)
      mem:check()
      assert.truthy(mem:reap() >= 4096)
    end)

    it("gives the oldest of its quarantine back past its bound, and all when memory is short", function()
      local small = support.open { budget = 2 * mib }
      local mem = small:memory { guard = { quarantine = mib } }
      for _ = 1, 20 do
        mem:buffer("u8", mib // 4):close()
        assert.truthy(small:memory():stats().remaining_bytes >= mib // 2)
      end
      -- Fits only without the quarantine.
      mem:buffer("u8", 2 * mib - 1024):close()
      small:close()
    end)

    it("tells of what the collector freed as a failure that nobody has observed", function()
      local mem = dev:memory { guard = true }
      do
        local b = mem:buffer("i32", 100, { label = "forgotten" })
        poke:launch(support.one, b, 100, 0):await()
      end
      collectgarbage()
      collectgarbage()
      mem:reap()
      support.raises("OutOfBounds", "buffer 'forgotten'", dev.synchronize, dev)
      dev:synchronize()
    end)

    it("leaves nothing behind", function()
      support.works(dev)
      support.without_leak(dev, function()
        local mem <close> = dev:memory { guard = true, budget = mib, log = true, statistics = true }
        local b = mem:buffer("i32", 100):fill(1)
        mem:buffer("i32", 100):close()
        b:close()
        mem:reap()
      end)
    end)
  end)

  it("a loop that allocates and forgets 1 MiB 100,000 times runs under 256 MiB", function()
    for _ = 1, 100000 do
      dev:buffer("u8", mib)
    end
    local stats = dev:stats()
    assert.truthy(stats.bytes_live_max <= 256 * mib)
    -- The collector was driven in proportion: nothing had to be stopped for a full collection.
    assert.equal(0, stats.collections)
  end)

  it("twin: without the collector the same loop lives on full collections alone", function()
    collectgarbage "stop"
    for _ = 1, 1000 do
      dev:buffer("u8", mib)
    end
    collectgarbage "restart"
    local stats = dev:stats()
    assert.truthy(stats.collections >= 3, stats.collections)
    assert.equal(stats.collections, stats.recoveries)
  end)

  it("closed buffers owe the collector nothing", function()
    local cycles = 0
    local function arm()
      setmetatable({}, { __gc = function()
        cycles = cycles + 1
        arm()
      end })
    end
    arm()
    for _ = 1, 1000 do
      dev:buffer("u8", 64 * mib):close()
    end
    assert.truthy(cycles < 100, cycles)
    cycles = 0
    for _ = 1, 100 do
      dev:buffer("u8", 64 * mib)
    end
    assert.truthy(cycles > 20, cycles) -- forgotten ones do
    assert.equal(0, dev:stats().collections)
  end)
end)
