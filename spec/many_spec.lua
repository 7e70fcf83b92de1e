-- Many tasks that await launches of their own: all end, and memory does not grow from round to round.

local gpu = require "gpulua"
local support = require "spec.support"

describe("many tasks", function()
  local dev, add

  setup(function()
    dev = support.open()
    add = dev:compile([[
      extern "C" __global__ void add(int *x, int i, int v) { x[i] += v; }
    ]]).add
  end)
  teardown(support.close_all)

  local function round(tasks_count, x, value)
    -- Garbage of the round before would make the process larger by chance: it is about what stays.
    collectgarbage()
    local ended = 0
    for i = 1, tasks_count do
      gpu.spawn(function()
        add:launch(support.one, x, i - 1, value):await()
        ended = ended + 1
      end)
    end
    while ended < tasks_count do
      gpu.sleep(0.001)
    end
  end

  --- Lua heap in KiB, resident bytes of the process, blocks on the device: when all is quiet.
  local function measure()
    support.settle(dev)
    return collectgarbage "count", support.resident_bytes(), dev:stats().blocks_live
  end

  -- How many wait at once differs from round to round, and so does what they take at most: growth that does not go on
  -- is none. What leaks grows each time.
  local function run(tasks_count, rounds)
    local x <close> = dev:buffer("i32", tasks_count):fill(0)
    round(tasks_count, x, 1)
    round(tasks_count, x, 1)
    local heap, resident, blocks = measure()
    local heap_after, resident_after, blocks_after
    local done, is_flat = 2, false
    for _ = 1, 3 do
      for _ = 3, rounds do
        round(tasks_count, x, 1)
        done = done + 1
      end
      heap_after, resident_after, blocks_after = measure()
      is_flat = support.keeps_freed_memory() or resident_after <= resident * 1.05 + (2 << 20)
      if is_flat then
        break
      end
      resident = resident_after
    end
    assert.equal(string.pack("<i4", done):rep(tasks_count), x:bytes())
    assert.equal(blocks, blocks_after)
    assert.truthy(heap_after <= heap * 1.02 + 16, ("Lua heap: %.0f KiB, then %.0f"):format(heap, heap_after))
    assert.truthy(is_flat, ("resident: grew three times, at last to %d bytes"):format(resident_after))
  end

  it("10,000 of them end, and memory is flat from round 2 to round 5", function()
    run(10000, 5)
  end)

  it("10,000 of them end, and memory is flat from round 2 to round 100 #slow", function()
    if not os.getenv "GPULUA_SLOW" then
      pending "GPULUA_SLOW=1 runs it"
    end
    run(10000, 100)
  end)

  it("each gets its own result", function()
    local results = {}
    local tasks = {}
    for i = 1, 2000 do
      tasks[i] = gpu.spawn(function()
        local x <close> = dev:upload("i32", { i })
        add:launch(support.one, x, 0, 5)
        results[i] = x:read()[1]
        return i
      end)
    end
    local returned = table.pack(gpu.all(tasks))
    for i = 1, 2000 do
      assert.equal(i + 5, results[i])
      assert.equal(i, returned[i])
    end
  end)
end)
