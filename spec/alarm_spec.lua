-- What the GPU itself says of work that it has stopped, before the driver tells of it (backend/cuda/alarm.c).

local gpu = require "gpulua"
local support = require "spec.support"

describe("a trap", function()
  if not support.is_gpu() or not support.is_isolated() then
    it("is heard of from the GPU", function() pending "this is of GPUs whose device has a process of its own" end)
    return
  end

  local source <const> = support.clock_source .. [[
    extern "C" __global__ void trap(int *x) { x[0] = 1; __trap(); }
    extern "C" __global__ void fill_all(int *x, long long ticks) {
      for (long long end = now() + ticks; now() < end;) { }
      atomicAdd(x, 1);
    }
  ]]
  local nvml_is_there <const> = package.loadlib("libnvidia-ml.so.1", "*") ~= nil
  local open_s <const> = 1 -- by then a device listens

  teardown(support.close_all)

  -- Unless others have the GPU: then it is left to the driver.
  it("is told before the driver tells of it", function()
    local dev <close> = support.open { restarts = 10 }
    local trap = dev:compile(source).trap
    local x = dev:buffer("i32", 1, { durable = true }):fill(0)
    for _ = 1, 3 do
      gpu.sleep(open_s)
      local begun <const> = support.now()
      local op = trap:launch(support.one, x)
      local err = support.raises("DeviceLost", "(719, ", op.await, op)
      local took_s <const> = support.now() - begun
      local is_early <const> = err.message:find("(Xid ", 1, true) ~= nil
      assert.is_true(is_early and nvml_is_there and took_s > 0.04 or not is_early and took_s > 0.2,
        ("%.3f s: %s"):format(took_s, err.message))
      assert.equal("trap", err.suspects[1].label)
      dev:await()
      assert.are.same({ 0 }, x:read())
    end
  end)

  -- Its own words come, though no kernel could: that is how it knows.
  it("of another device's does nothing to one that is busy", function()
    local dev <close> = support.open { restarts = 10 }
    local other <close> = support.open { restarts = 10 }
    local busy, trap = dev:compile(source).fill_all, other:compile(source).trap
    local y = other:buffer("i32", 1, { durable = true }):fill(0)
    local ticks <const> = support.ticks(0.03)
    gpu.sleep(open_s)
    local grid <const>, block <const> = 4 * dev.multiprocessors, 1024
    local ops, counts = {}, {}
    for i = 1, 48 do -- more than the GPU has queues for, side by side
      counts[i] = dev:buffer("i32", 1):fill(0)
      ops[i] = busy:launch({ grid = grid, block = block, stream = dev:stream {} }, counts[i], ticks)
    end
    local trapped = trap:launch(support.one, y)
    support.raises("DeviceLost", {}, trapped.await, trapped)
    assert.is_false(ops[#ops]:done()) -- it was busy all the while
    other:await()
    for i, op in ipairs(ops) do
      op:await()
      assert.are.same({ grid * block }, counts[i]:read())
    end
    assert.equal(0, dev:stats().losses)
  end)
end)
