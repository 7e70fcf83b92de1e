-- Pools: what keeps the buffers of graphs, and for how long.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a pool", function()
  local dev, add, spin
  local n <const> = 64

  setup(function()
    dev = support.open()
    add = dev:compile([[
      extern "C" __global__ void add(const int *x, int *y, int n, int a) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] += a * x[i];
      }]]).add
    spin = dev:compile(support.spin_source)
  end)
  teardown(support.close_all)

  local function buffer(value)
    return dev:buffer("i32", n):fill(value)
  end

  it("keeps what its captures use and make, once each, and what is recorded by hand", function()
    local pool <close> = dev:pool()
    assert.equal(0, pool:count())
    local x, y, z = buffer(1), buffer(0), buffer(0)
    local graph <close> = dev:capture({ pool = pool }, function()
      local own = dev:buffer("i32", n):fill(3)
      dev:buffer("i32", n)
      add:launch(n, x, y, n, 1)
      add:launch(n, own, y, n, 1)
      add:launch(n, x:slice(1, 8), y:slice(1, 8), 8, 0)
    end)
    -- What nobody holds any more lies together; in check mode, each by itself, and not in the pool.
    local count = dev.check and 2 or 3
    assert.equal(count, pool:count())
    assert.equal(pool, pool:record(z, x, dev:host("i32", 4)))
    assert.equal(count + 2, pool:count())
    assert.equal(pool:handle(), graph:pool():handle())
    graph:launch()
    assert.equal(4, y:read(1, 1)[1])
    assert.equal("pool", gpu.type(pool))
    assert.truthy(tostring(pool):find(count + 2 .. " buffers", 1, true))
  end)

  it("keeps buffers alive as long as a graph holds it, and no longer", function()
    support.settle(dev)
    collectgarbage()
    support.settle(dev)
    local before = dev:stats()
    local y = buffer(0)
    local graph = dev:capture(function()
      add:launch(n, buffer(2), y, n, 1)
    end)
    local pool = graph:pool()
    collectgarbage()
    collectgarbage()
    graph:launch()
    assert.equal(2, y:read(1, 1)[1])
    local count = dev.check and 1 or 2
    assert.equal(count, pool:count())
    graph:close()
    y:close()
    assert.equal(count, pool:count())
    pool:close()
    support.settle(dev)
    local after = dev:stats()
    assert.equal(before.bytes_live, after.bytes_live)
    assert.equal(before.blocks_live, after.blocks_live)
  end)

  it("sealed takes nothing new, and what it has can be captured", function()
    local pool <close> = dev:pool()
    local x, y, z = buffer(1), buffer(0), buffer(0)
    pool:record(x, y)
    assert.is_false(pool:sealed())
    assert.equal(pool, pool:seal())
    assert.is_true(pool:sealed())
    support.raises("PoolSealed", { "allocation" }, pool.record, pool, z)
    pool:record(x)
    local graph <close> = dev:capture({ pool = pool }, function()
      add:launch(n, x, y, n, 1)
      support.raises("PoolSealed", { "sealed" }, add.launch, add, n, x, z, n, 1)
      support.raises("PoolSealed", { "new buffer" }, dev.buffer, dev, "i32", n)
      support.raises("PoolSealed", { "new buffer" }, dev.upload, dev, "i32", { 1 })
      add:launch(n, x, y, n, 2)
    end)
    assert.are.same({ 2, 1 }, { graph:nodes() })
    assert.equal(2, pool:count())
    graph:launch()
    assert.equal(3, y:read(1, 1)[1])
    assert.equal(pool, pool:unseal())
    pool:record(z)
    assert.equal(3, pool:count())
    assert.truthy(tostring(pool:seal()):find("sealed", 1, true))
  end)

  it("is not cleared while a graph or a capture uses it", function()
    local pool <close> = dev:pool()
    local x, y = buffer(1), buffer(0)
    local graph = dev:capture({ pool = pool }, function()
      add:launch(n, x, y, n, 1)
      support.raises("PoolInUse", { "1 graphs or captures" }, pool.clear, pool)
    end)
    support.raises("PoolInUse", { tostring(pool:handle()) }, pool.clear, pool)
    graph:launch()
    graph:close()
    assert.equal(pool, pool:clear())
    assert.equal(0, pool:count())
    assert.equal(1, y:read(1, 1)[1])
    pcall(dev.capture, dev, { pool = pool }, function() error "x" end)
    pool:clear()
  end)

  it("is found by its number, from any handle, until the last holder goes", function()
    local pool = dev:pool()
    local number = pool:handle()
    assert.truthy(number >= 1)
    local other = gpu.pool(number)
    assert.equal(number, other:handle())
    pool:close()
    pool:close()
    assert.equal("closed pool", gpu.type(pool))
    assert.equal("gpulua.pool (closed)", tostring(pool))
    support.raises("Closed", { "pool" }, pool.count, pool)
    assert.equal(0, other:count())
    local x = buffer(1)
    local graph = dev:capture({ pool = other }, function() x:fill(2) end)
    other:close()
    gpu.pool(number):close()
    assert.equal(1, gpu.pool(number):count())
    collectgarbage() -- the handles above
    graph:close()
    assert.equal(nil, gpu.pool(number))
    assert.equal(nil, gpu.pool(0))
    assert.equal(nil, gpu.pool(-1))
    assert.equal(nil, gpu.pool(math.maxinteger))
    support.raises("InvalidArgument", { "pool" }, gpu.pool, "1")
    support.raises("InvalidArgument", { "pool" }, gpu.pool, 1.5)
    assert.truthy(dev:pool():handle() > number)
  end)

  it("fences the graphs that share it: they never run beside each other", function()
    support.wants_time(pending)
    local ticks = support.ticks(0.05)
    local one <close> = dev:stream {}
    local two <close> = dev:stream {}
    local function pair(pool)
      local graphs = {}
      for i = 1, 2 do
        local x = support.zeros(dev, "i32", 1)
        graphs[i] = dev:capture({ pool = pool }, function() spin.spin:launch(support.one, ticks, x, 1) end)
        graphs[i]:launch():await()
      end
      return graphs
    end
    local shared, apart = pair(dev:pool()), pair()
    local function seconds(graphs)
      local start = support.now()
      gpu.all(graphs[1]:launch { stream = one }, graphs[2]:launch { stream = two })
      return support.now() - start
    end
    local best = math.huge
    for _ = 1, 8 do -- the machine may be busy with something else
      best = math.min(best, seconds(apart) / seconds(shared))
    end
    assert.truthy(best < 0.8, best)
  end)

  it("is of one device, and takes buffers alone", function()
    local other <close> = support.open()
    local pool <close> = dev:pool()
    local theirs <close> = other:buffer("i32", n)
    support.raises("InvalidArgument", { "record" }, pool.record, pool, theirs)
    support.raises("InvalidArgument", { "record", "number" }, pool.record, pool, 1)
    support.raises("InvalidArgument", { "pool" }, other.capture, other, { pool = pool }, function() end)
    support.raises("InvalidArgument", { "pool of capture" }, dev.capture, dev, { pool = 1 }, function() end)
    local freed = buffer(1)
    freed:free()
    support.raises("UseAfterFree", {}, pool.record, pool, freed)
    assert.equal(0, pool:count())
  end)
end)
