-- The device memory that graphs take by themselves counts towards the budget; who was launched longest ago goes first,
-- and comes back when it is launched.

local gpu = require "gpulua"
local source = require "spec.graph_kernels"
local support = require "spec.support"
local first = support.first

describe("graphs and the budget", function()
  local n <const> = 64
  local budget <const> = 16 << 20

  -- A device with that budget, its kernel, two buffers, and a function that captures `count` launches.
  local function open()
    local dev = support.open { budget = budget }
    local add = dev:compile(source).add
    local x, y = dev:buffer("i32", n):fill(1), dev:buffer("i32", n):fill(0)
    local function graph(count, label)
      return dev:capture({ label = label }, function()
        for i = 1, count do
          add:launch(n, x, y, n, i == 1 and count or 0)
        end
      end)
    end
    return dev, graph, x, y, add
  end
  teardown(support.close_all)

  -- How many nodes fit beside the buffers.
  local function room(dev, graph)
    local before = dev:stats().graph_bytes
    local one = graph(1)
    local node_bytes = dev:stats().graph_bytes - before
    one:close()
    return (budget - 2 * dev:stats().bytes_live) // node_bytes, node_bytes
  end

  it("are counted by their nodes, and no more when they are closed", function()
    local dev <close>, graph = open()
    assert.equal(0, dev:stats().graph_bytes)
    local one, two = graph(10), graph(20)
    local bytes = dev:stats().graph_bytes
    assert.truthy(bytes > 0)
    two:close()
    dev:synchronize()
    assert.equal(bytes // 3, dev:stats().graph_bytes)
    one:update(function() dev:buffer("i32", n):fill(1) end)
    dev:synchronize()
    assert.equal(bytes // 30, dev:stats().graph_bytes)
    local fork <close> = one:fork()
    assert.equal(bytes // 15, dev:stats().graph_bytes)
    assert.equal(1, fork:nodes())
    one:close()
    fork:close()
    dev:synchronize()
    assert.are.same({ 0, 0, 0 }, { dev:stats().graph_bytes, dev:stats().graphs_live, dev:stats().graph_evictions })
  end)

  it("go when the budget is used up, the one that was launched longest ago first, and come back", function()
    local dev <close>, graph, _, y = open()
    local nodes = room(dev, graph) // 4 -- four fit
    local graphs = {}
    for i = 1, 4 do
      graphs[i] = graph(nodes)
      graphs[i]:launch()
    end
    assert.equal(0, dev:stats().graph_evictions)
    graphs[1]:launch()
    local launched = 5
    graphs[5] = graph(nodes) -- the second goes
    assert.equal(1, dev:stats().graph_evictions)
    assert.equal(5, dev:stats().graphs_live)
    for _, i in ipairs { 1, 3, 4, 5 } do
      graphs[i]:launch()
      launched = launched + 1
    end
    assert.equal(1, dev:stats().graph_evictions)
    graphs[2]:launch() -- for which the first goes
    assert.equal(2, dev:stats().graph_evictions)
    for _ = 1, 3 do
      for i = 1, 5 do
        graphs[i]:launch()
        launched = launched + 1
      end
    end
    assert.equal(nodes * (launched + 1), first(y))
    assert.truthy(dev:stats().graph_bytes <= budget)
    assert.equal(5, graphs[2]:replays())
    for i = 1, 5 do
      graphs[i]:close()
    end
    dev:synchronize()
    assert.are.same({ 0, 0 }, { dev:stats().graph_bytes, dev:stats().graphs_live })
  end)

  it("are what they were changed to be while they were gone", function()
    local dev <close>, graph, _, y, add = open()
    local nodes = room(dev, graph)
    local one = graph(nodes // 2, "one")
    one:launch()
    y:fill(0)
    local two = graph(nodes // 3 * 2, "two")
    assert.equal(1, dev:stats().graph_evictions)
    assert.are.same({ true, 1 }, table.move({ one:bind { ["add#1.a"] = 5 } }, 1, 2, 1, {}))
    assert.equal(1, dev:stats().graph_evictions)
    local z = dev:buffer("i32", n):fill(0)
    assert.is_false((one:bind { ["add#2.y"] = z, ["add#2.a"] = 7 })) -- anew
    assert.equal(2, dev:stats().graph_evictions)
    one:upload()
    one:launch()
    assert.are.same({ 5, 7 }, { first(y), first(z) })
    two:upload()
    one:update(function() add:launch(n, z, y, n, 1) end) -- anew
    one:launch()
    two:launch()
    assert.equal(5 + 7 + nodes // 3 * 2, first(y))
    one:close()
    two:close()
  end)

  it("go for buffers, too", function()
    local dev <close>, graph, _, y = open()
    local nodes = room(dev, graph)
    local one, two = graph(nodes // 3), graph(nodes // 3)
    one:launch()
    two:launch()
    local large = dev:buffer("u8", budget // 2)
    assert.equal(1, dev:stats().graph_evictions)
    two:launch() -- it is there still
    assert.equal(1, dev:stats().graph_evictions)
    support.raises("OutOfBudget", { "the nodes of graph" }, graph, nodes // 3 * 2)
    large:close()
    one:launch()
    assert.equal(nodes // 3 * 4, first(y))
    support.raises("OutOfBudget", {}, dev.buffer, dev, "u8", budget + 1)
    one:close()
    two:close()
  end)

  it("go when the device has no memory left, before that is an error", function()
    if os.getenv "GPULUA_DEVICE" and os.getenv "GPULUA_DEVICE":find "^cuda" then
      pending "a budget beyond the device's memory is for devices whose memory is the host's"
    end
    local dev <close> = support.open { budget = 1 << 46 }
    local add = dev:compile(source).add
    local x, y = dev:buffer("i32", n):fill(1), dev:buffer("i32", n):fill(0)
    local graph <close> = dev:capture(function() add:launch(n, x, y, n, 3) end)
    graph:launch():await()
    support.raises("OutOfMemory", {}, dev.buffer, dev, "u8", 1 << 43)
    assert.are.same({ 1, 0 }, { dev:stats().graph_evictions, dev:stats().graph_bytes })
    graph:launch()
    assert.equal(6, first(y))
    support.works(dev)
  end)

  it("go while they are launched again and again, and each launch is whole", function()
    local dev <close>, graph, _, y = open()
    local nodes = room(dev, graph) // 2
    local graphs = { graph(nodes), graph(nodes), graph(nodes) }
    for i = 1, 30 do
      graphs[i % 3 + 1]:launch() -- nobody waits for any
    end
    assert.truthy(dev:stats().graph_evictions >= 28)
    assert.equal(30 * nodes, first(y))
    for i = 1, 3 do
      graphs[i]:close()
    end
  end)

  it("go when their launches are over, which is waited for as long as gpu.timeout lets", function()
    support.wants_time(pending)
    local dev <close>, graph, x, y, add = open()
    local spin = dev:compile(support.spin_source).spin
    local nodes = room(dev, graph)
    support.under_way(0.3, function(seconds, seen)
      local before = dev:stats().graph_evictions
      local z <close> = dev:buffer("i32", 1):fill(0)
      y:fill(0)
      local slow <close> = dev:capture(function()
        spin:launch(support.one, support.ticks(seconds), z, 1)
        for _ = 1, nodes // 2 do add:launch(n, x, y, n, 1) end
      end)
      local op = slow:launch()
      local function large() return dev:buffer("u8", budget - dev:stats().bytes_live - (1 << 20)) end
      support.raises("Timeout", { "waiting for memory" }, gpu.timeout, 0.02, large)
      local evictions, is_over = dev:stats().graph_evictions - before, op:done()
      seen()
      assert.are.same({ 0, false }, { evictions, is_over })
      large():close()
      assert.are.same({ true, 1 }, { op:done(), dev:stats().graph_evictions - before })
      assert.equal(nodes // 2, first(y))
    end)
  end)

  it("find room that garbage holds, whenever they need some", function()
    local dev <close>, graph, x, y, add = open()
    local nodes <const> = 100
    local one <close> = graph(nodes)
    one:launch()
    local function fill_with_garbage()
      local kept = {}
      for bytes = 20, 8, -1 do
        repeat
          kept[#kept + 1] = { pcall(dev.buffer, dev, "u8", 1 << bytes) }
        until not kept[#kept][1]
      end
    end
    local function body() for i = 1, nodes + 1 do add:launch(n, x, y, n, i) end end
    for _, use in ipairs {
      function() one:launch() end,
      function() one:upload() end,
      function() graph(nodes):close() end,
      function() dev:capture(function() one:launch() one:launch() end):close() end,
      function() dev:capture(function() body(dev:buffer("u8", budget // 2):fill(0):close()) end):close() end,
      function() one:update(body) end,
      function() one:fork():close() end,
      function() one:bind { ["add#1.y"] = dev:buffer("i32", n):fill(0) } end,
    } do
      fill_with_garbage()
      assert.equal(0, dev:stats().graph_bytes)
      use()
    end
  end)

  it("of which one alone is too large are an error, and leave nothing", function()
    local dev <close>, graph, _, y = open()
    local nodes, bytes = room(dev, graph)
    local small <close> = graph(10)
    support.without_leak(dev, function()
      local err = support.raises("OutOfBudget", { "the nodes of graph 'large'" }, graph, budget // bytes + 1, "large")
      assert.equal((budget // bytes + 1) * bytes, err.requested)
    end)
    assert.equal(10 * bytes, dev:stats().graph_bytes)
    small:launch()
    assert.equal(10, first(y))
    local whole <close> = graph(nodes) -- for which the small one goes
    whole:launch()
    small:launch()
    assert.equal(20 + nodes, first(y))
  end)

  it("are waited for by who finds no memory, and a loss of the device meanwhile is told as one", function()
    if not support.is_isolated() then
      pending "the script's own process has the device"
      return
    end
    local dev <close> = support.open { budget = 1 << 46 }
    local mod = dev:compile 'extern "C" __global__ void forever(volatile int *x) { while (*x == 0) { } }'
    local x = dev:buffer("i32", 1):fill(0)
    local graph <close> = dev:capture(function() mod.forever:launch(1, x) end)
    local op = graph:launch()
    os.execute("(sleep 0.3; kill -9 " .. dev.pid .. ") > /dev/null 2>&1 &")
    support.raises("DeviceLost", "signal 9", dev.buffer, dev, "u8", (1 << 40) - (1 << 20))
    support.raises("DeviceLost", "signal 9", op.await, op)
  end)
end)
