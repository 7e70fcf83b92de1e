-- Random pipelines with one fault each: every await comes back, the errors name the culprit, and the device goes on.

local gpu = require "gpulua"
local support = require "spec.support"

describe("random pipelines with a fault", function()
  local is_isolated = support.is_isolated()
  local source = [[
    extern "C" __global__ void add(int n, int *to, const int *from, int by) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) to[i] += from[i] + by;
    }
    extern "C" __global__ void far(int *x, long long at) { ((volatile int *)x)[at] = 1; }
    extern "C" __global__ void near(int *x, long long at) { ((volatile int *)at)[0] = x[0]; }
    extern "C" __global__ void trap(int *x) { x[0] = 1; __trap(); }
    extern "C" __global__ void check(int *x) { assert(x == nullptr); }
    extern "C" __global__ void hang(volatile int *x) { x[0] = 0; while (x[0] == 0) { } }
  ]]
  local one = { grid = 1, block = 1, label = "culprit" }

  local may_come = { DeviceLost = true, DependencyFailed = true, Stale = true }

  -- Each makes its fault at a random place of the pipeline, and returns the culprit, if it is an operation.
  local faults = {
    ["out of bounds"] = function(_, mod, x) return mod.far:launch(one, x, 1 << 44) end,
    ["a wild address"] = function(_, mod, x) return mod.near:launch(one, x, 16) end,
    trap = function(_, mod, x) return mod.trap:launch(one, x) end,
    -- The CPU device goes on behind a failed assertion; a GPU is lost with it.
    assert = function(_, mod, x) return mod.check:launch(one, x) end,
    hang = function(_, mod, x) return mod.hang:launch(one, x):deadline(0.03) end,
    killed = function(dev)
      os.execute("kill -9 " .. dev.pid)
    end,
    injected = function(dev, mod, x)
      dev:inject { fault = 1 }
      return mod.add:launch(one, 1, x, x, 1)
    end,
    memory = function(dev)
      dev:inject { oom = 1 }
      support.raises("OutOfMemory", {}, dev.buffer, dev, "i32", 10)
    end,
  }
  local names = {}
  for name in pairs(faults) do
    names[#names + 1] = name
  end
  table.sort(names)

  teardown(support.close_all)

  --- Runs one pipeline; returns whether the culprit was named (nil: there was none to name).
  local function run(dev, mod, seed)
    local random = support.random(seed)
    local name = names[random(1, #names)]
    local buffers, streams, tasks, awaited, resumed, named = {}, { nil }, {}, 0, 0, nil
    for i = 1, 1 + random(1, 4) do
      buffers[i] = dev:buffer("i32", 64, { durable = random(1, 2) == 1, label = "b" .. i }):fill(i)
    end
    for i = 1, random(1, 4) do
      streams[i] = dev:stream {}
    end
    local culprit
    local function note(ok, err)
      resumed = resumed + 1
      if ok then
        return
      end
      assert(type(err) == "table" or type(err) == "userdata", tostring(err))
      assert(may_come[err.code] or err.code == "KernelFailed" and name == "assert", tostring(err))
      for _, suspect in ipairs(err.suspects or {}) do
        named = named or suspect.label == "culprit"
      end
      named = named or err.op and err.op.label == "culprit"
    end
    local count = 3 + random(1, 25)
    local at = random(1, count)
    for i = 1, count do
      local function step()
        if i == at then
          culprit = faults[name](dev, mod, buffers[random(1, #buffers)])
          return culprit
        end
        local to, from = buffers[random(1, #buffers)], buffers[random(1, #buffers)]
        local kind = random(1, 4)
        if kind == 1 and to ~= from then
          to:copy(from)
        elseif kind == 2 then
          to:fill(i)
        else
          return mod.add:launch({ grid = 1, block = 64, stream = streams[random(1, #streams)] }, 64, to, from, 1)
        end
      end
      local ok, op = pcall(step)
      if ok and op then
        for _ = 1, random(1, 2) do
          awaited = awaited + 1
          tasks[awaited] = gpu.spawn(function() note(op:join()) end)
        end
      elseif not ok then -- the device was lost before it was all there
        awaited = awaited + 1
        note(false, op)
      end
      if random(1, 5) == 1 then
        gpu.sleep(0)
      end
    end
    for _, buffer in ipairs(buffers) do
      awaited = awaited + 1
      tasks[awaited] = gpu.spawn(function() note(pcall(buffer.read, buffer)) end)
    end
    for i = 1, awaited do
      if tasks[i] then
        support.comes_back(20, tasks[i], dev, ("seed %d (%s), await %d of %d"):format(seed, name, i, awaited))
      end
    end
    assert.equal(awaited, resumed, name)
    if name == "killed" then -- it may be a moment until it is dead
      support.eventually(10, function()
        dev:await()
        return dev.epoch > 1
      end)
    end
    dev:await()
    -- The first good launch.
    local x = dev:buffer("i32", 64):fill(3)
    mod.add:launch({ grid = 1, block = 64 }, 64, x, dev:buffer("i32", 64):fill(4), 5):await()
    assert.are.same({ 12, 12 }, x:read(63, 64), name)
    if culprit then
      return named == true
    end
  end

  it("come back, name the culprit and go on, 1,000 of them", function()
    support.wants_time(pending)
    if not is_isolated then
      pending "the device lives in this process"
    end
    local rounds = os.getenv "GPULUA_FAULTS" and tonumber(os.getenv "GPULUA_FAULTS")
      or (support.is_gpu() and 150 or support.keeps_freed_memory() and 100 or 1000)
    local with_culprit, named_count = 0, 0
    local dev = support.open { restarts = 1000000 }
    local mod = dev:compile(source)
    local _, children = support.children()
    local files
    for seed = 1, rounds do
      local named = run(dev, mod, seed)
      if named ~= nil then
        with_culprit = with_culprit + 1
        named_count = named_count + (named and 1 or 0)
      end
      if seed % 100 == 0 then
        collectgarbage()
        collectgarbage()
        dev:synchronize()
        -- The process before this one may not have ended yet.
        assert.is_true(support.eventually(10, function() return select(2, support.children()) == children end))
        files = files or support.descriptors()
        assert.is_true(support.eventually(10, function() return support.descriptors() == files end))
      end
    end
    assert.truthy(named_count >= with_culprit * 0.99, ("%d of %d"):format(named_count, with_culprit))
    assert.truthy(with_culprit > rounds / 3)
    dev:close()
  end)
end)
