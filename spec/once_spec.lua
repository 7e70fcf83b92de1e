-- What tasks want at once is made once: kernels of gpu.map and gpu.reduce, generators' kernels, plans, libraries.

local gpu = require "gpulua"
local support = require "spec.support"

describe("what tasks want at once", function()
  local dev
  before_each(function() dev = support.open() end)
  after_each(support.close_all)

  local count <const> = 8

  --- How many modules have come to be since f began; f runs as a task.
  local function modules_of(f)
    local function made()
      local stats = dev:stats()
      return stats.compilations + stats.cache_hits
    end
    local before = made()
    gpu.run(f)
    return made() - before
  end

  local function checked(expected, found)
    if not support.is_checked() then -- there nobody waits for another
      assert.equal(expected, found)
    end
  end

  --- An expression that no cache has.
  local function fresh() return ("x + %d.0"):format(support.fresh()) end

  it("is compiled and loaded once", function()
    local x = dev:buffer("f64", 4):fill(0)
    local text = fresh()
    local value = tonumber(text:match "[%d.]+")
    checked(1, modules_of(function()
      local tasks = {}
      for i = 1, count do
        tasks[i] = gpu.spawn(function() return (gpu.map(text, { x = x })):read()[4] end)
      end
      for i = 1, count do
        assert.equal(value, tasks[i]:await())
      end
    end))
    assert.equal(0, modules_of(function() gpu.map(text, { x = x }) end))
  end)

  it("is made by the next one where the first is cancelled", function()
    local x = dev:buffer("f64", 4):fill(0)
    local text = fresh()
    gpu.run(function()
      local tasks = {}
      for i = 1, count do
        tasks[i] = gpu.spawn(function() return (gpu.map(text, { x = x })):read()[4] end)
      end
      gpu.sleep(0)
      tasks[1]:cancel()
      assert.equal("Cancelled", (select(2, pcall(tasks[1].await, tasks[1]))).code)
      tasks[3]:cancel() -- one that waits
      for i = 2, count do
        if i ~= 3 then
          assert.equal(tonumber(text:match "[%d.]+"), tasks[i]:await())
        end
      end
      pcall(tasks[3].await, tasks[3])
    end)
  end)

  it("is made by the next one where the first fails", function()
    local x = dev:buffer("f64", 4):fill(0)
    local text = fresh()
    dev:synchronize()
    dev:inject { oom = 1 }
    local failed, found = 0, 0
    gpu.run(function()
      local tasks = {}
      for i = 1, count do
        tasks[i] = gpu.spawn(function()
          local ok, y = pcall(gpu.map, text, { x = x })
          if ok then
            assert.equal(tonumber(text:match "[%d.]+"), y:read()[1])
            found = found + 1
          else
            assert.equal("OutOfMemory", y.code)
            failed = failed + 1
          end
        end)
      end
      gpu.all(tasks)
    end)
    assert.equal(1, failed)
    assert.equal(count - 1, found)
  end)

  it("is made where nobody can wait for tasks, too", function()
    local x = dev:buffer("f64", 4):fill(0)
    local text = fresh()
    gpu.run(function()
      local first = gpu.spawn(function() gpu.map(text, { x = x }) end)
      gpu.sleep(0)
      local list = { 2, 1 }
      table.sort(list, function(a, b) -- no coroutine can yield across it
        gpu.map(text, { x = x })
        return a < b
      end)
      first:await()
    end)
  end)

  it("are kernels of generators, too", function()
    local sums = {}
    checked(1, modules_of(function()
      local tasks = {}
      for i = 1, count do
        tasks[i] = gpu.spawn(function()
          local x = dev:buffer("f32", 64)
          dev:rng({ seed = 7 }):uniform(x)
          sums[i] = x:read()[64]
        end)
      end
      gpu.all(tasks)
    end))
    for i = 2, count do
      assert.equal(sums[1], sums[i])
    end
  end)

  it("are plans, too", function()
    gpu.run(function()
      local tasks = {}
      for i = 1, count do
        tasks[i] = gpu.spawn(function() return dev:fft { shape = { 1 << 12 }, type = "f32" } end)
      end
      local stats
      for i = 1, count do
        stats = tasks[i]:await():stats()
      end
      assert.are.same({ 1, count }, { stats.plans, stats.open })
      checked(1, stats.made)
      for i = 1, count do
        tasks[i]:await():close()
      end
    end)
  end)
end)
