-- Kernels launched again and again. A backend may take another way for what is launched often
-- (src/backend/cuda/launch.c): each launch must still have its own arguments, shape and place in the order.

local gpu = require "gpulua"
local support = require "spec.support"

-- y = y * 3 + v, modulo 2^32: any launch that is lost, doubled, late, or has another's arguments shows.
local step_source = [[
  extern "C" __global__ void step(unsigned v, unsigned *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = y[i] * 3u + v;
  }]]

local function stepped(y, v)
  return (y * 3 + v) & 0xffffffff
end

describe("repeated launches", function()
  local dev

  setup(function()
    dev = support.open()
  end)
  teardown(support.close_all)

  it("each have their own arguments", function()
    local step = dev:compile(step_source).step
    local y <close> = dev:buffer("u32", 64):fill(1)
    local want = 1
    for i = 1, 500 do
      step:launch({ grid = 2, block = 32 }, i * 7919, y)
      want = stepped(want, i * 7919)
    end
    assert.equal(want, y:read(1, 1)[1])
    assert.equal(want, y:read(64, 64)[1])
  end)

  it("each have their own shape", function()
    local step = dev:compile(step_source).step
    local y <close> = dev:buffer("u32", 256):fill(0)
    local want = {}
    for i = 1, 256 do want[i] = 0 end
    for i = 1, 300 do
      local grid, block = 1 + i % 8, 1 + i % 32
      step:launch({ grid = grid, block = block }, i, y)
      for k = 1, grid * block do want[k] = stepped(want[k], i) end
    end
    assert.same(want, y:read())
  end)

  it("each have their own shared memory", function()
    local mod = dev:compile [[
      extern __shared__ unsigned words[];
      extern "C" __global__ void last(int count, unsigned v, unsigned *y) {
        words[count - 1] = v;
        y[0] = y[0] * 3u + words[count - 1];
      }]]
    local y <close> = dev:buffer("u32", 1):fill(5)
    local want = 5
    for i = 1, 120 do
      local count = i % 40 == 0 and 15000 or i -- more than 48 KiB, which a kernel must ask for
      mod.last:launch({ grid = 1, block = 1, shared = count * 4 }, count, i, y)
      want = stepped(want, i)
    end
    assert.equal(want, y:read(1, 1)[1])
  end)

  it("of many kernels in turn stay in order", function()
    local text = {}
    for k = 1, 20 do
      text[k] = step_source:gsub("step", "step" .. k):gsub("3u", (2 * k + 1) .. "u")
    end
    local mod = dev:compile(table.concat(text, "\n"))
    local kernels = {}
    for k = 1, 20 do kernels[k] = mod["step" .. k] end
    local y <close> = dev:buffer("u32", 1):fill(1)
    local want = 1
    -- All twenty in turn, then the first three for long, then the last three: places change hands.
    for i = 1, 3000 do
      local k = i <= 1000 and i % 20 + 1 or i <= 2000 and i % 3 + 1 or 20 - i % 3
      kernels[k]:launch({ grid = 1, block = 1 }, i, y)
      want = (want * (2 * k + 1) + i) & 0xffffffff
    end
    assert.equal(want, y:read(1, 1)[1])
  end)

  it("on several streams keep their hazards", function()
    local step = dev:compile(step_source).step
    local streams = {}
    for s = 1, 4 do streams[s] = dev:stream() end
    local y <close> = dev:buffer("u32", 1):fill(1)
    local want = 1
    for i = 1, 800 do
      step:launch({ grid = 1, block = 1, stream = streams[(i * i) % 4 + 1] }, i, y)
      want = stepped(want, i)
    end
    assert.equal(want, y:read(1, 1)[1])
    for s = 1, 4 do streams[s]:close() end
  end)

  it("from many tasks overlap and end", function()
    local step = dev:compile(step_source).step
    local got = {}
    local tasks = {}
    for t = 1, 40 do
      tasks[t] = gpu.spawn(function()
        local y <close> = dev:buffer("u32", 1):fill(t)
        for i = 1, 60 do
          local op = step:launch({ grid = 1, block = 1 }, i * t, y)
          if i % 20 == 0 then op:await() end
        end
        got[t] = y:read(1, 1)[1]
      end)
    end
    gpu.all(tasks)
    for t = 1, 40 do
      local want = t
      for i = 1, 60 do want = stepped(want, i * t) end
      assert.equal(want, got[t])
    end
  end)

  it("outlive their modules, one after the other", function()
    local y <close> = dev:buffer("u32", 1):fill(1)
    local want = 1
    for round = 1, 12 do
      local mod = dev:compile((step_source:gsub("3u", (2 * round + 1) .. "u")))
      for i = 1, 10 + 3 * round do
        mod.step:launch({ grid = 1, block = 1 }, i, y)
        want = (want * (2 * round + 1) + i) & 0xffffffff
      end
      mod:close()
      collectgarbage()
    end
    assert.equal(want, y:read(1, 1)[1])
  end)

  it("go on after a launch that was refused", function()
    local step = dev:compile(step_source).step
    local y <close> = dev:buffer("u32", 1):fill(1)
    local want = 1
    for i = 1, 200 do
      if i % 50 == 0 then
        support.raises("InvalidArgument", "block", step.launch, step, { grid = 1, block = 2048 }, i, y)
      end
      step:launch({ grid = 1, block = 1 }, i, y)
      want = stepped(want, i)
    end
    assert.equal(want, y:read(1, 1)[1])
  end)
end)
