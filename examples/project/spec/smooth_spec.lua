local gpu = require "gpulua"
local kit = require "gpulua.busted"
local smooth = require "smooth"

--- What the kernel does, in Lua.
local function box(list, radius)
  local result = {}
  for i = 1, #list do
    local sum, count = 0, 0
    for k = math.max(i - radius, 1), math.min(i + radius, #list) do
      sum, count = sum + list[k], count + 1
    end
    result[i] = sum / count
  end
  return result
end

local function wave(n)
  local list = {}
  for i = 1, n do
    list[i] = math.sin(i / 10) + i % 7
  end
  return list
end

kit.describe_devices("smooth", function(device)
  it("is the mean of neighbours, twice", function()
    local list <const> = wave(1000)
    local x <close> = device():upload("f32", list)
    local y <close> = smooth.twice(x, 3)
    assert.allclose(box(box(list, 3), 3), y)
  end)

  it("leaves a constant as it is, also at the ends", function()
    local x <close> = device():buffer("f32", 100):fill(2.5)
    local y <close> = smooth.twice(x, 40)
    assert.allclose(y, 2.5)
    assert.bitequal(y, x)
  end)

  it("gives the same bits each time", function()
    assert.deterministic(function(dev)
      return smooth.twice(dev:upload("f32", wave(500)), 5)
    end, { device = device() })
  end)

  it("gives everything back, also when memory runs out", function()
    local x <close> = device():upload("f32", wave(100))
    assert.noleaks(function()
      smooth.twice(x, 2):close()
    end)
    for n = 1, 2 do -- it makes two buffers
      assert.noleaks(function()
        kit.inject.oom(n, device())
        local ok, err = pcall(smooth.twice, x, 2)
        assert.is_false(ok)
        assert.equal("OutOfMemory", err.code)
      end)
    end
  end)

  it("says so when the device is lost", function()
    local own = device { isolate = "process", label = "lost" } -- closed when the test is over
    local x <close> = own:upload("f32", wave(100))
    smooth.twice(x, 2):await()
    kit.inject.fault(1, own)
    local ok, err = pcall(function()
      return smooth.twice(x, 2):read()
    end)
    assert.is_false(ok)
    assert.equal("DeviceLost", err.code)
  end)
end)

describe("smooth in tasks", function()
  it("does the same whatever comes first", function()
    assert.racefree(function(dev)
      local x, tasks = dev:upload("f32", wave(200)), {}
      for radius = 1, 3 do
        tasks[radius] = gpu.spawn(smooth.twice, x, radius)
      end
      return { gpu.all(tasks) }
    end, { seeds = 50 })
  end)
end)
