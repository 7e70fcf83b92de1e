-- gpu.why: what orders one operation behind another.

local gpu = require "gpulua"
local support = require "spec.support"

describe("gpu.why", function()
  local dev, mod

  setup(function()
    dev = support.open()
    mod = dev:compile [[
      __device__ int counter;
      extern "C" __global__ void bump(int *x) { x[0] = counter++; }
    ]]
  end)
  teardown(support.close_all)

  local function scene(f)
    local a <close> = dev:stream {}
    local b <close> = dev:stream {}
    local x <close> = dev:buffer("i32", 16, { label = "x" }):fill(1)
    local y <close> = dev:buffer("i32", 16, { label = "y" }):fill(2)
    local plain = dev:compile [[
      extern "C" __global__ void put(int *x, int n, int value) { for (int i = 0; i < n; i++) x[i] = value; }
      extern "C" __global__ void take(const int *x, int *y, int n) { for (int i = 0; i < n; i++) y[i] = x[i]; }
    ]]
    local function on(stream)
      return { grid = 1, block = 1, stream = stream }
    end
    f(x, y, on(a), on(b), plain:kernel("put", "out i32*, i32, i32"), plain:kernel("take", "in i32*, out i32*, i32"), a,
      b)
  end

  it("names a read after a write: buffer, bytes, streams", function()
    scene(function(x, y, a, b, put, take, stream_a, stream_b)
      local first = put:launch(a, x:slice(5, 12), 8, 7)
      local second = take:launch(b, x:slice(1, 8), y, 8)
      local why = gpu.why(second, first)
      assert.equal(1, #why)
      assert.equal("RAW", why[1].hazard)
      assert.equal("x", why[1].buffer)
      assert.equal(16, why[1].offset)
      assert.equal(16, why[1].length)
      assert.equal("fence", why.order)
      assert.equal(stream_a.id, why.from)
      assert.equal(stream_b.id, why.to)
      assert.equal(("stream %d waits for stream %d: RAW on buffer 'x' (allocation %d), bytes 16 to 31"):format(
        stream_b.id, stream_a.id, why[1].allocation), why.message)
    end)
  end)

  it("knows writes after reads and writes after writes, and all of several", function()
    scene(function(x, y, a, b, put, take)
      local read = take:launch(a, x, y, 16)
      assert.equal("WAR", gpu.why(put:launch(b, x, 16, 3), read)[1].hazard)
      assert.equal("WAW", gpu.why(put:launch(b, y, 16, 3), read)[1].hazard)
      local why = gpu.why(take:launch(b, y, x, 16), read)
      assert.equal(2, #why)
      assert.same({ "WAR x", "RAW y" },
        { why[1].hazard .. " " .. why[1].buffer, why[2].hazard .. " " .. why[2].buffer })
    end)
  end)

  it("says why nothing does", function()
    scene(function(x, y, a, b, put, take)
      local first = take:launch(a, x, y:slice(1, 8), 8)
      local second = take:launch(b, x, y:slice(9, 16), 8)
      assert.same({ nil, "they share no byte that either writes" }, { gpu.why(second, first) })
      assert.same({ nil, "it was launched first" }, { gpu.why(first, second) })
      assert.same({ nil, "it was launched first" }, { gpu.why(first, first) })
      local third = put:launch(a, x:slice(1, 4), 4, 1)
      local why = gpu.why(third, first)
      assert.equal("stream", why.order)
      assert.equal("WAR", why[1].hazard)
      why = gpu.why(put:launch(b, y:slice(1, 8), 8, 1), second)
      assert.same({ "stream", 0 }, { why.order, #why })
    end)
  end)

  it("knows the variables of modules, which kernels share without saying so", function()
    scene(function(x, y, a, b)
      local first = mod.bump:launch(a, x)
      local why = gpu.why(mod.bump:launch(b, y), first)
      assert.same({ 1, "RAW" }, { #why, why[1].hazard })
      assert.is_nil(why[1].buffer)
      assert.truthy(why.message:find("RAW on the variables of a module", 1, true))
    end)
  end)

  it("knows the memory of a pool, which its graphs use one after the other", function()
    scene(function(_, _, a, _, put, _, stream_a, stream_b)
      local pool <close> = dev:pool()
      local graphs = {}
      for i = 1, 2 do
        graphs[i] = dev:capture({ pool = pool }, function()
          put:launch(a, dev:buffer("i32", 16), 16, i)
        end)
      end
      local first, second = graphs[1]:launch { stream = stream_a }, graphs[2]:launch { stream = stream_b }
      local why = gpu.why(second, first)
      assert.truthy(why.message:find("on the memory of a pool", 1, true), why.message)
      assert.is_nil(why.message:find("module", 1, true), why.message)
      for i = 1, 2 do graphs[i]:close() end
    end)
  end)

  it("answers after the operations are over, until they are forgotten", function()
    scene(function(x, y, a, b, put, take)
      local first = put:launch(a, x, 16, 7)
      local second = take:launch(b, x, y, 16)
      dev:synchronize()
      assert.equal("RAW", gpu.why(second, first)[1].hazard)
      for _ = 1, dev:stats().limit_flight_ops do
        put:launch(a, x, 1, 7)
      end
      support.raises("InvalidArgument", "too long ago", gpu.why, second, first)
    end)
  end)

  it("answers for launches of a graph as long as for others, however much it uses", function()
    local all, own = {}, {}
    for i = 1, 70 do
      all[i], own[i] = dev:buffer("i32", 4):fill(0), dev:buffer("i32", 4):fill(0)
    end
    local graph <close> = dev:capture(function()
      for i = 1, 70 do mod.bump:launch({ grid = 1, block = 1 }, all[i]) end
    end)
    local other <close> = dev:capture(function()
      for i = 1, 70 do mod.bump:launch({ grid = 1, block = 1 }, own[i]) end
    end)
    local first <const> = graph:launch()
    for _ = 1, 2000 do graph:launch() end
    local last = graph:launch() -- 140,000 uses behind; at most 16 hazards are told
    assert.equal(16, #gpu.why(last, first))
    -- Others use up the ring between them.
    for _ = 1, 3 do
      local copies <const> = 3000
      for i = 1, copies do all[i % 2 + 1]:copy(all[i % 2 + 3]) end
      local again <const> = graph:launch()
      assert.equal(16, #gpu.why(again, last))
      last = again
    end
    for _ = 1, 3000 do other:launch() end
    assert.equal(16, #gpu.why(graph:launch(), last))
  end)

  it("says that what was captured is ordered by its graph", function()
    scene(function(x, _, a, _, put)
      local first, second
      dev:capture(function() first, second = put:launch(a, x, 16, 1), put:launch(a, x, 16, 2) end):close()
      support.raises("InvalidArgument", "this was captured: graph:dot() shows", gpu.why, second, first)
    end)
  end)

  it("refuses what has no order", function()
    scene(function(x, _, a, _, put)
      local op = put:launch(a, x, 16, 7)
      support.raises("InvalidArgument", "argument 2", gpu.why, op)
      support.raises("InvalidArgument", "argument 1", gpu.why, x, op)
    end)
  end)
end)
