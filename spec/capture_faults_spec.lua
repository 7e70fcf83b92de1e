-- Captures in which something goes wrong, at each of their operations: an error, a task that is cancelled, the
-- collector, the end of the program, of the device, of its process.

local gpu = require "gpulua"
local source = require "spec.graph_kernels"
local support = require "spec.support"

-- As text, because programs of their own run it, too. Calls step() before each operation, wherever that is: in bodies
-- of conditional nodes, in tasks, in a graph of another capture. Returns how to make it for a device.
local program <const> = [[
  local gpu, source = ...
  local n <const> = 64
  return function(dev)
    local mod = dev:compile(source)
    local x, y = dev:buffer("i32", n, { label = "x" }):fill(1), dev:buffer("i32", n, { label = "y" }):fill(0)
    local go, host = dev:buffer("i32", 1):fill(1), dev:host("i32", n):fill(2)
    local pool = dev:pool()
    local inner = dev:capture(function() mod.add:launch(n, x, dev:buffer("i32", n):fill(1), n, 1) end)
    local set = { x = x, y = y, go = go, host = host, inner = inner, pool = pool }

    function set.body(step)
      step() local t = dev:buffer("i32", n, { label = "t" })
      step() t:fill(3)
      step() mod.add:launch(n, x, t, n, 2)
      step() mod.add:launch(n, t:slice(1, 8), y:slice(1, 8), 8, 1)
      step() y:write({ 1, 2, 3 }, 4)
      step() y:copy(t)
      step() t:copy(host)
      step() host:copy(y)
      step() inner:launch()
      step() local task = gpu.spawn(function()
        step() local u = dev:upload("i32", { 4, 5, 6 })
        step() gpu.sleep(0)
        step() mod.add:launch(3, u, y:slice(1, 3), 3, 1)
      end)
      step() task:await()
      step() gpu.graph.if_(go, function()
        step() local u = dev:buffer("i32", n)
        step() u:copy(t)
        step() mod.add:launch(n, u, y, n, 1)
        step() gpu.graph.switch(go, {
          [0] = function() step() y:fill(9) end,
          function() step() mod.must:launch(n, y, n) end,
        })
      end, function()
        step() y:fill(8)
      end)
      step() local v = dev:buffer("i32", n)
      step() mod.put:launch(n, t, x, v, n)
      step() mod.add:launch(n, v, y, n, 1)
      step()
    end

    function set.close()
      inner:close()
      pool:close()
      for _, buffer in ipairs { x, y, go, host } do
        buffer:close()
      end
    end

    local steps = 0
    local graph = dev:capture({ pool = pool }, function()
      set.body(function() steps = steps + 1 end)
    end)
    set.graph, set.steps = graph, steps
    dev:synchronize()
    return set
  end
]]

describe("a capture in which something goes wrong", function()
  local make = assert(load(program))(gpu, source)

  -- step() for the body, which does `what` before operation `at`.
  local function at_step(at, what)
    local steps = 0
    return function()
      steps = steps + 1
      if steps == at then
        what()
      end
    end
  end

  -- What y is behind one launch of the whole.
  local function launched(set, graph)
    for name, value in pairs { x = 1, y = 0, go = 1, host = 2 } do
      set[name]:fill(value)
    end
    graph:launch()
    return set.y:bytes()
  end

  -- A test on a device of its own: f(device, what make gives, what y is behind a launch of its graph).
  local function test(name, f)
    it(name, function()
      local dev <close> = support.open()
      local set = make(dev)
      f(dev, set, launched(set, set.graph))
      set.graph:close()
      set.close()
    end)
  end

  test("is whole without that", function(dev, set, wanted)
    assert.equal(25, set.steps)
    assert.equal(wanted, launched(set, { launch = function() set.body(function() end) end })) -- eagerly
    local again <close> = dev:capture(function() set.body(function() end) end)
    assert.equal(wanted, launched(set, again))
  end)

  -- A quarter each: captured, captured into a pool with a graph (which would keep what a good one has used), as an
  -- update, as a guard.
  local function captures(dev, set, count)
    for i = 1, count do
      local at = i % (set.steps + 1) + 1 -- the last one lets it be
      local body = function() set.body(at_step(at, function() error({ at = at }, 0) end)) end
      local ok, err
      if i % 4 == 0 then
        ok, err = pcall(dev.capture, dev, body)
      elseif i % 4 == 1 and at <= set.steps then
        ok, err = pcall(dev.capture, dev, { pool = set.pool }, body)
      elseif i % 4 == 2 then
        ok, err = pcall(set.graph.update, set.graph, body)
      else
        ok, err = pcall(function()
          local capture <close> = dev:capture()
          body()
          return capture:finish()
        end)
      end
      assert.equal(at > set.steps, ok)
      if not ok then
        assert.equal(at, type(err) == "table" and err.at, tostring(err))
      elseif gpu.type(err) == "graph" then
        err:launch()
        err:close()
      end
    end
  end

  test("by an error at each operation, 10,000 times, leaves nothing", function(dev, set, wanted)
    captures(dev, set, 2 * (set.steps + 1) * 4)
    local bytes
    local count <const> = dev.check and 1000 or 10000
    support.without_leak(dev, function()
      bytes = support.resident_bytes()
      captures(dev, set, count)
    end)
    if not support.keeps_freed_memory() then
      local grown = support.resident_bytes() - bytes
      assert.truthy(grown < 4 << 20, grown)
    end
    assert.equal(wanted, launched(set, set.graph))
    support.works(dev)
  end)

  test("because its task is cancelled at each operation, leaves nothing", function(dev, set, wanted)
    local function cancelled(at)
      local task
      local is_reached
      task = gpu.spawn(function()
        return dev:capture(function()
          set.body(at_step(at, function()
            is_reached = true
            task:cancel()
            gpu.sleep(60)
          end))
        end)
      end)
      local ok, err = pcall(task.await, task)
      assert.is_false(ok)
      assert.equal("Cancelled", err.code)
      assert.is_true(is_reached)
    end
    for i = 1, 100 do -- the streams that tasks share are there
      cancelled(i % set.steps + 1)
    end
    support.without_leak(dev, function()
      for at = 1, set.steps do
        cancelled(at)
      end
    end)
    assert.equal(wanted, launched(set, set.graph))
  end)

  test("by a collector step at each operation, is whole", function(dev, set, wanted)
    local graph <close> = dev:capture(function() set.body(function() collectgarbage() end) end)
    assert.equal(wanted, launched(set, graph))
    graph:update(function() set.body(function() collectgarbage() end) end)
    assert.equal(wanted, launched(set, graph))
  end)

  test("by finalisers that work, close and capture at each operation, is whole", function(dev, set, wanted)
    local ran = 0
    local function garbage()
      setmetatable({ dev:buffer("i32", 16) }, { __gc = function(self)
        ran = ran + 1
        pcall(self[1].fill, self[1], 1)
        pcall(dev.capture, dev)
        self[1]:close()
      end })
      collectgarbage()
    end
    local graph <close> = dev:capture(function() set.body(garbage) end)
    assert.truthy(ran >= set.steps - 1)
    assert.equal(wanted, launched(set, graph))
  end)

  it("by the end of the device at each operation, says so", function()
    for at = 1, 25 do
      local dev = support.open()
      local set = make(dev)
      local ok, err = pcall(dev.capture, dev, function()
        set.body(at_step(at, function() dev:close() end))
      end)
      assert.is_false(ok)
      assert.truthy(err.code == "Closed" or err.code == "CaptureInvalidated", tostring(err))
      set.graph:close()
      set.close()
    end
  end)

  it("by the end of the program at each operation, ends as it wants", function()
    local script = ([[
      local gpu = require "gpulua"
      local at = tonumber(os.getenv "AT")
      local dev = gpu.device(os.getenv "GPULUA_DEVICE", { isolate = os.getenv "GPULUA_ISOLATE" })
      local make = assert(load(%q))(gpu, %q)
      local set, steps = make(dev), 0
      dev:capture(function()
        set.body(function()
          steps = steps + 1
          if steps == at then
            io.write "so far"
            os.exit(at %% 7 + 3, at %% 2 == 0)
          end
        end)
      end)
    ]]):format(program, source)
    local environment = ("AT=%%d GPULUA_DEVICE=%s GPULUA_ISOLATE=%s"):format(os.getenv "GPULUA_DEVICE" or "cpu",
      support.isolation())
    for at = 1, 25, 3 do
      local output, code = support.script(script, environment:format(at))
      assert.are.same({ "so far", at % 7 + 3 }, { output, code })
    end
  end)

  it("by the end of the device's process at each operation, comes back and leaves no file open", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local before
    for at = 1, 25 do
      local dev, pid = support.open_with_pid { restarts = 0 }
      local set = make(dev)
      local err = support.raises("DeviceLost", {}, function()
        local kill = at_step(at, function()
          os.execute("kill -KILL " .. math.tointeger(pid))
          support.eventually(5, function() return not pcall(dev.synchronize, dev) or dev:stats() == nil end)
        end)
        local graph = dev:capture(function() set.body(kill) end)
        graph:launch():await(5)
      end)
      assert.truthy(err.message ~= "")
      for _, name in ipairs { "x", "y", "go", "host" } do
        pcall(set[name].await, set[name]) -- what nobody has awaited has failed, too
      end
      set.graph:close()
      set.close()
      dev:close()
      collectgarbage()
      before = before or support.descriptors()
      assert.equal(before, (support.descriptors()))
    end
  end)
end)
