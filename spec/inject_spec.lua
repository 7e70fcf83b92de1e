-- Injected failures: dev:inject{ oom=, fault=, lost= }. What comes of them is what comes of real ones.

local gpu = require "gpulua"
local support = require "spec.support"

describe("an injected failure", function()
  local source <const> = [[extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }]]
  local config <const> = { grid = 1, block = 4, label = "adding" }
  local devices = {}

  local function open()
    local dev = support.open { restarts = 0 } -- what is lost stays so
    devices[#devices + 1] = dev
    return dev, dev:compile(source):kernel("add", "inout i32*, i32")
  end

  after_each(function()
    for _, dev in ipairs(devices) do
      dev:close()
    end
    devices = {}
  end)
  teardown(support.close_all)

  it("of memory is the n-th new buffer's, once", function()
    local dev = open()
    local before = dev:stats().bytes_live
    assert.equal(dev, dev:inject { oom = 3 })
    local a, b <close> = dev:buffer("i32", 10), dev:host("i32", 10)
    support.raises("OutOfMemory", { "injected", "'third'", "40 bytes" }, dev.buffer, dev, "i32", 10,
      { label = "third" })
    local c <close> = dev:buffer("i32", 10)
    a:close()
    assert.is_true(b and c and true)
    c:close()
    b:close()
    assert.equal(before, dev:stats().bytes_live)
    support.works(dev)
  end)

  it("of memory is what its policy and its hooks are asked about", function()
    local dev = open()
    local asked = 0
    local mem = dev:memory { oom = "free" }
    dev:inject { oom = 1 }
    support.raises("OutOfMemory", { "injected", "'x'", "40 bytes" }, mem.buffer, mem, "i32", 10, { label = "x" })
    mem:on_oom(function(bytes)
      asked = asked + bytes
      return true
    end)
    dev:inject { oom = 1 }
    mem:buffer("i32", 10):close()
    assert.truthy(asked >= 40 and asked <= 1024, asked)
    local patient = dev:memory { oom = "wait", timeout = 5 }
    dev:inject { oom = 1 }
    patient:buffer("i32", 10):close()
    local hasty = dev:memory { oom = "wait", timeout = 0 }
    dev:inject { oom = 1 }
    support.raises("OutOfMemory", "injected", hasty.buffer, hasty, "i32", 10)
    local stubborn = dev:memory { oom = "fail" }
    dev:inject { oom = 1 }
    support.raises("OutOfMemory", "injected", stubborn.buffer, stubborn, "i32", 10)
    mem:buffer("i32", 10):close()
    support.works(dev)
  end)

  it("of memory is the same for a part of a group, which gives all back where nothing helps", function()
    local dev = open()
    local whole = dev:memory():stats().remaining_bytes
    for _, oom in ipairs { "free", "wait", "fail" } do
      local below = dev:memory { budget = 1 << 20 }
      local mem = dev:memory { from = below, oom = oom, timeout = oom == "wait" and 0 or nil, budget = 1 << 20 }
      dev:inject { oom = 2 }
      support.raises("OutOfMemory", "injected", mem.buffers, mem, { "i32", 10 }, { "i32", 10 }, { "i32", 10 })
      collectgarbage()
      dev:synchronize()
      assert.equal(1 << 20, mem:stats().remaining_bytes)
      assert.equal(1 << 20, below:stats().remaining_bytes)
      assert.equal(whole, dev:memory():stats().remaining_bytes)
    end
    local patient = dev:memory { oom = "wait", timeout = 5 }
    dev:inject { oom = 2 }
    local a, b = patient:buffers({ "i32", 10 }, { "i32", 10 })
    a:close()
    b:close()
    assert.equal(whole, dev:memory():stats().remaining_bytes)
  end)

  it("of memory is withdrawn by 0", function()
    local dev = open()
    dev:inject { oom = 1 }:inject { oom = 0 }
    dev:buffer("i32", 10):close()
  end)

  for _, what in ipairs { "fault", "lost" } do
    it(what .. " loses the device at the n-th operation, and its error names that", function()
      local dev, add = open()
      local x = dev:buffer("i32", 4):fill(1)
      dev:synchronize()
      dev:inject { [what] = 3 }
      add:launch(config, x, 1):await()
      add:launch(config, x, 1):await()
      local op = add:launch(config, x, 1)
      local ok, err = pcall(op.await, op)
      assert.is_false(ok)
      assert.equal("DeviceLost", err.code)
      assert.truthy(err.message:find("'adding' may have been running", 1, true), err.message)
      assert.truthy(err.message:find(what == "lost" and support.is_isolated() and "signal 9" or "an injected fault", 1,
        true), err.message)
      assert.truthy(err.op and err.op.source:find "inject_spec", tostring(err.op and err.op.source))
      support.raises("DeviceLost", {}, add.launch, add, config, x, 1)
      support.raises("DeviceLost", {}, dev.buffer, dev, "i32", 4)
      support.works((open()))
    end)

    it(what .. " at any of 12 operations of four tasks: each task resumes, and no result is wrong", function()
      for n = 1, 12 do
        local dev, add = open()
        local done, lost = 0, 0
        dev:synchronize()
        dev:inject { [what] = n }
        local tasks = {}
        for t = 1, 4 do
          tasks[t] = gpu.spawn(function()
            local good, err = pcall(function()
              local x = dev:buffer("i32", 4):fill(t)
              add:launch(config, x, 10):await()
              assert.are.same({ 10 + t, 10 + t, 10 + t, 10 + t }, x:read())
            end)
            done, lost = done + (good and 1 or 0), lost + (not good and err.code == "DeviceLost" and 1 or 0)
          end)
        end
        for t = 1, 4 do
          tasks[t]:join()
        end
        assert.equal(4, done + lost, n)
        assert.is_true(lost > 0, n)
        dev:close()
      end
    end)
  end

  it("of an operation counts a graph's launch as one, and nothing that is captured", function()
    local dev, add = open()
    local x = dev:buffer("i32", 4):fill(0)
    dev:synchronize()
    dev:inject { fault = 2 }
    local graph = dev:capture(function()
      for _ = 1, 5 do
        add:launch(config, x, 1)
      end
    end)
    graph:launch():await()
    local op = graph:launch()
    support.raises("DeviceLost", {}, op.await, op)
  end)

  it("is asked for by name and number", function()
    local dev = open()
    support.raises("InvalidArgument", { "argument 1 of inject",
      "a table {oom=, fault=, lost=, slow=} expected, got number" }, dev.inject, dev, 3)
    support.raises("InvalidArgument", "slow", dev.inject, dev, { slow = 1 })
    support.raises("InvalidArgument", { "fault of inject", "-1" }, dev.inject, dev, { fault = -1 })
    support.raises("InvalidArgument", { "oom of inject", "1.5" }, dev.inject, dev, { oom = 1.5 })
    dev:close()
    support.raises("Closed", {}, dev.inject, dev, { oom = 1 })
  end)

  it("makes the next launch of a kernel slow, once, and nothing else", function()
    support.wants_time(pending)
    local dev, add = open()
    local x, other = dev:buffer("i32", 4):fill(1), dev:buffer("i32", 4):fill(1)
    local mod = dev:compile [[extern "C" __global__ void other(int *x) { x[threadIdx.x] += 1; }]]
    add:launch(config, x, 1):await()
    mod.other:launch(config, other):await()
    support.under_way(0.3, function(seconds, seen)
      x:fill(2)
      assert.equal(dev, dev:inject { slow = "add", seconds = seconds })
      local begun = support.now()
      mod.other:launch(config, other):await()
      local others_took = support.now() - begun
      local op = add:launch(config, x, 1)
      local ok, err = op:join(0.1)
      seen()
      assert.truthy(others_took < seconds * 0.8, others_took)
      assert.is_false(ok)
      support.is_error(err, "Timeout")
      op:await()
      assert.truthy(support.now() - begun >= seconds)
      assert.are.same({ 3, 3, 3, 3 }, x:read())
    end)
    support.under_way(0.3, function(seconds)
      local begun = support.now()
      add:launch(config, x, 1):await()
      assert.truthy(support.now() - begun < seconds * 0.8)
    end)
    -- With what ends what is slow.
    dev:inject { slow = "add", seconds = 30 }:inject { slow = false }
    add:launch(config, x, 1):await()
    support.raises("InvalidArgument", "oom", dev.inject, dev, { slow = "add", seconds = 1000, oom = -1 })
    add:launch(config, x, 1):await(100) -- is not slow
    if support.is_isolated() then
      dev:inject { slow = "add", seconds = 30 }
      local stuck = add:launch(config, x, 1):deadline(0.1)
      support.raises("DeviceLost", "'adding' had not ended", stuck.await, stuck)
    end
    for _, case in ipairs { { { slow = 1 }, "slow" }, { { slow = "x", seconds = -1 }, "seconds" },
      { { slow = "x", seconds = math.huge }, "seconds: a number from 0 to 1e9 expected, got inf" },
      { { slow = "x", seconds = "long" }, "seconds" }, { { seconds = 1 }, "slow" },
      { { slow = "x", fst = 1 }, "fst" } } do
      support.raises("InvalidArgument", case[2], dev.inject, dev, case[1])
    end
    dev:inject { slow = "add" } -- and never comes
  end)
end)
