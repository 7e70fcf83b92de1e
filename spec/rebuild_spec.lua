-- Building buffers anew when the device is up again: several wait for it, and one that gives up leaves it to the rest.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a rebuild", function()
  if support.isolation() ~= "process" or support.is_checked() then
    it("is of a device that comes up again", function()
      pending "the device lives in this process, or the time of waits is not that of work"
    end)
    return
  end

  local dev
  before_each(function()
    dev = gpu.device(nil, { isolate = "process", restarts = 100 })
  end)
  after_each(function()
    dev:close()
  end)

  --- Loses the device, and waits in the way of a script that is no task, so that nobody has seen it come up again.
  local function lose_and_block(seconds)
    dev:inject { lost = 1 }
    pcall(function() dev:current():mark():await() end)
    coroutine.wrap(function() gpu.sleep(seconds) end)()
  end

  it("goes on when who waited first has no more time, or is cancelled, or fails", function()
    local ways = {
      function() dev:await(0.05) end,
      function() gpu.timeout(0.05, dev.await, dev) end,
      function()
        gpu.spawn(function() dev:await() end)
        gpu.sleep(0.05)
        error "of its own"
      end,
    }
    for i, way in ipairs(ways) do
      local built = 0
      local x <close> = dev:buffer("i32", 2, { rebuild = function(b)
        gpu.sleep(0.2)
        b:fill(i)
        built = built + 1
      end }):fill(0)
      dev:synchronize()
      local is_back = false
      local first = gpu.spawn(function()
        lose_and_block(support.is_gpu() and 1 or 0.1)
        is_back = true
        way()
      end)
      local second = gpu.spawn(function()
        while not is_back do
          gpu.sleep(0.005)
        end
        return dev:await()
      end)
      assert.is_true((second:join()), i)
      assert.is_false((first:join()))
      assert.are.same({ i, i }, x:read())
      assert.equal(1, built)
    end
  end)

  it("that raises Cancelled is one that fails, and the others are built", function()
    local dead = gpu.spawn(gpu.sleep, 100)
    dead:cancel()
    assert.is_false((dead:join()))
    local restored = false
    local a <close> = dev:buffer("i32", 2, { rebuild = function() dead:await() end }):fill(1)
    local b <close> = dev:buffer("i32", 2, { rebuild = function(x) x:fill(2) end }):fill(2)
    dev:on_restored(function() restored = true end)
    dev:synchronize()
    dev:inject { lost = 1 }
    pcall(function() dev:current():mark():await() end)
    support.raises("Cancelled", "", dev.await, dev)
    assert.are.same({ 2, 2 }, b:read())
    support.raises("DependencyFailed", "has not been built anew", a.read, a)
    assert.is_true(support.eventually(5, function() return restored end))
  end)
end)
