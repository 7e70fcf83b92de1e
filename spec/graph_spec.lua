-- Graphs: what is captured, what orders its nodes, what a launch of it is to everything else.

local gpu = require "gpulua"
local support = require "spec.support"

local source = require "spec.graph_kernels"
local counter = [[
  __device__ int counter;
  extern "C" __global__ void count(int *x) { x[0] = atomicAdd(&counter, 1); }
]]

describe("a capture", function()
  local dev, add, put, must
  local n <const> = 64

  setup(function()
    dev = support.open()
    local mod = dev:compile(source)
    add, must = mod.add, mod.must
    put = mod:kernel("put", "in i32*, in i32*, out i32*, i32")
  end)
  teardown(support.close_all)

  local function buffer(value, label)
    return dev:buffer("i32", n, { label = label }):fill(value)
  end

  it("records instead of doing, and its graph does it as often as it is launched", function()
    local x, y = buffer(2), buffer(0)
    local before = dev:stats().launches
    local graph <close> = dev:capture(function()
      add:launch(n, x, y, n, 10)
    end)
    assert.equal(before, dev:stats().launches)
    assert.equal(0, y:read(1, 1)[1])
    assert.are.same({ 1, 0 }, { graph:nodes() })
    assert.equal(0, graph:replays())
    for _ = 1, 5 do
      graph:launch()
    end
    assert.equal(100, y:read(n, n)[1])
    assert.equal(5, graph:replays())
    assert.equal("graph", gpu.type(graph))
    assert.truthy(tostring(graph):find("1 nodes, 0 edges", 1, true))
  end)

  it("of a linear script has the true edges alone", function()
    local x, y, u, v = buffer(1), buffer(0, "y"), buffer(0, "u"), buffer(0, "v")
    local graph <close> = dev:capture({ label = "step" }, function()
      add:launch(n, x, y, n, 1) -- 0
      add:launch(n, x, u, n, 1) -- 1: beside 0
      add:launch(n, x, y, n, 1) -- 2: behind 0
      put:launch(n, y, u, v, n) -- 3: behind 2 and 1, and not behind 0 once more
      u:fill(7) -- 4: behind 3, which reads it, and not behind 1 once more
      v:fill(8) -- 5: behind 3
    end)
    assert.are.same({ 6, 5 }, { graph:nodes() })
    local dot = graph:dot()
    local edges = {}
    for from, to, label in dot:gmatch 'n(%d+) %-> n(%d+) %[label="([^"]*)"%]' do
      edges[#edges + 1] = ("%s-%s %s"):format(from, to, label)
    end
    table.sort(edges)
    assert.are.same({ "0-2 RAW WAW y", "1-3 RAW u", "2-3 RAW y", "3-4 WAR u", "3-5 WAW v" }, edges)
    assert.truthy(dot:find('digraph "step"', 1, true))
    assert.truthy(dot:find("add\\ngraph_spec.lua", 1, true) or dot:find("graph_spec.lua:", 1, true))
    graph:launch():await()
    assert.are.same({ 2, 7, 8 }, { y:read(1, 1)[1], u:read(1, 1)[1], v:read(1, 1)[1] })
  end)

  it("has labels in its dot as any tool may show them", function()
    local y = buffer(0, "y\27[2J")
    local graph <close> = dev:capture({ label = "g\"\n\xff" }, function()
      add:launch({ grid = 1, block = 1, label = "a\r\xc3" }, y, y, 1, 1)
      y:fill(1)
    end)
    local dot = graph:dot()
    for _, text in ipairs { 'digraph "g\\"\u{FFFD}\u{FFFD}"', 'label="a\u{FFFD}\u{FFFD}\\n', "y\u{FFFD}[2J" } do
      assert.truthy(dot:find(text, 1, true), dot)
    end
  end)

  it("orders ranges of a buffer, not buffers", function()
    local x, y = buffer(1), buffer(0)
    local low, high, middle = y:slice(1, 32), y:slice(33, 64), y:slice(17, 48)
    local graph <close> = dev:capture(function()
      add:launch(32, x, low, 32, 1) -- 0
      add:launch(32, x, high, 32, 2) -- 1: beside 0
      add:launch(32, x, middle, 32, 4) -- 2: behind both
      low:fill(9) -- 3: behind 2
      add:launch(32, x, high, 32, 8) -- 4: behind 2
    end)
    assert.are.same({ 5, 4 }, { graph:nodes() })
    graph:launch():await()
    local values = y:read()
    assert.are.same({ 9, 9, 14, 10 }, { values[1], values[32], values[33], values[64] })
  end)

  it("has fills, copies, and writes of what the data was", function()
    local x, y, z = buffer(0), buffer(0), buffer(0)
    local host <close> = dev:host("i32", n)
    host:fill(5)
    local data = {}
    for i = 1, n do
      data[i] = i
    end
    local graph <close> = dev:capture(function()
      x:write(data)
      y:copy(x)
      z:copy(host)
      add:launch(n, y, z, n, 2)
      host:copy(z)
    end)
    data[1] = 1000
    collectgarbage()
    for _ = 1, 3 do
      graph:launch()
    end
    local op = graph:launch()
    op:await()
    assert.are.same({ 1, n }, { x:read(1, 1)[1], x:read(n, n)[1] })
    assert.are.same({ 5 + 2 * 4, 5 + 2 * 4 * n }, { host:read(1, 1)[1], host:read(n, n)[1] })
  end)

  it("takes the work of the tasks that it spawns, on any stream, and of no other", function()
    local x, y, z = buffer(1), buffer(0), buffer(0)
    local stream <close> = dev:stream {}
    local go = false
    local other = gpu.spawn(function()
      while not go do
        gpu.sleep(0.001)
      end
      add:launch(n, x, z, n, 1):await()
      return z:read(1, 1)[1]
    end)
    local graph <close> = dev:capture(function()
      local children = {}
      for i = 1, 4 do
        children[i] = gpu.spawn(function()
          gpu.sleep(0.001)
          if i > 1 then children[i - 1]:await() end
          add:launch({ grid = 1, block = n, stream = i % 2 == 0 and stream or nil }, x, y, n, i)
        end)
      end
      gpu.all(children)
      go = true
      assert.equal(1, other:await())
      gpu.spawn(function() -- which nobody awaits
        gpu.sleep(0.001)
        stream:use(function() y:fill(100) end)
      end)
    end)
    assert.are.same({ 5, 4 }, { graph:nodes() })
    assert.equal(0, y:read(1, 1)[1])
    graph:launch()
    assert.equal(100, y:read(1, 1)[1])
  end)

  it("ignores marks and waits: nothing but data orders its nodes", function()
    local x, y, z = buffer(1), buffer(0), buffer(0)
    local stream <close> = dev:stream {}
    local graph <close> = dev:capture(function()
      local op = add:launch(n, x, y, n, 1)
      stream:wait(op)
      stream:mark()
      add:launch({ grid = 1, block = n, stream = stream }, x, z, n, 1)
    end)
    assert.are.same({ 2, 0 }, { graph:nodes() })
  end)

  it("gives ops that nobody can wait for", function()
    local x, y = buffer(1), buffer(0)
    local op
    local graph <close> = dev:capture(function() op = add:launch(n, x, y, n, 1) end)
    support.raises("CaptureActive", { "graph's launch" }, op.await, op)
    local ok, err = op:join()
    assert.is_false(ok)
    assert.equal("CaptureActive", err.code)
    support.raises("CaptureActive", { "graph's launch" }, function() dev:current():wait(op) end)
    graph:launch():await()
    -- Those of one line are the same; ending one ends none.
    local ops, others = {}, {}
    local again <close> = dev:capture(function()
      for i = 1, 40 do
        ops[i] = add:launch(n, x, y, n, i)
        others[i] = add:launch({ grid = 1, block = n, label = "other" }, x, y, n, i)
        ops[i]:close()
        collectgarbage()
      end
    end)
    assert.are.same({ "add", "other" }, { ops[40].label, others[40].label })
    for i = 1, 40 do
      support.raises("CaptureActive", { "graph's launch" }, ops[i].await, ops[i])
      support.raises("CaptureActive", { "graph's launch" }, others[i].await, others[i])
    end
    assert.equal("op", gpu.type(ops[1]))
    local eager = add:launch(n, x, y, n, 1)
    assert.equal(eager, eager:await())
    assert.equal(80, again:nodes())
  end)

  it("refuses what has to be done at once, and goes on", function()
    local x, y = buffer(1), buffer(0)
    local host <close> = dev:host("i32", n)
    local op = add:launch(n, x, y, n, 1)
    local stream = dev:current()
    local graph <close> = dev:capture(function()
      for what, f in pairs {
        read = function() y:read() end, bytes = function() y:bytes() end, await = function() op:await() end,
        join = function() op:join() end, all = function() gpu.all(op, y) end, any = function() gpu.any(op) end,
        synchronize = function() dev:synchronize() end, compile = function() dev:compile(source) end,
        load = function() dev:load("no PTX") end, free = function() y:free() end,
        ["host buffer"] = function() host:write({ 1 }, 1) end, upload = function()
          local other <close> = dev:buffer("i32", 1)
          other:await()
        end, ["second capture"] = function() dev:capture(function() end) end,
      } do
        local wanted = what == "upload" and "await" or what
        support.raises("CaptureActive", { wanted, "cannot be captured" }, f)
      end
      support.raises("CaptureActive", { "synchronize" }, stream.synchronize, stream)
      support.raises("CaptureActive", { "second capture" }, dev.capture, dev)
      add:launch(n, x, y, n, 1)
    end)
    assert.are.same({ 1, 0 }, { graph:nodes() })
    graph:launch()
    assert.equal(2, y:read(1, 1)[1])
  end)

  it("that records nothing is an error", function()
    support.raises("EmptyCapture", { "nothing" }, dev.capture, dev, function() end)
    support.raises("EmptyCapture", { "'step'" }, dev.capture, dev, { label = "step" }, function()
      dev:current():mark()
    end)
    support.raises("InvalidArgument", { "lable" }, dev.capture, dev, { lable = "x" }, function() end)
  end)

  it("ends with an error of its body, leaves the streams usable and keeps nothing", function()
    local x, y = buffer(1), buffer(0)
    support.settle(dev)
    local before = dev:stats()
    for at = 1, 20 do
      local ok, err = pcall(dev.capture, dev, function()
        for i = 1, 20 do
          if i == at then
            error { at = i }
          end
          add:launch(n, x, y, n, 1)
          y:write({ i }, 1)
        end
      end)
      assert.is_false(ok)
      assert.equal(at, err.at)
    end
    collectgarbage()
    add:launch(n, x, y, n, 3)
    assert.equal(3, y:read(1, 1)[1])
    support.settle(dev)
    local after = dev:stats()
    for _, name in ipairs { "blocks_live", "bytes_live", "graphs_live", "staging_bytes" } do
      assert.equal(before[name], after[name], name)
    end
  end)

  it("takes whatever can be called, as gpu.spawn does", function()
    local x = dev:buffer("i32", 1):fill(0)
    local function callable(value) return setmetatable({}, { __call = function() x:fill(value) end }) end
    local graph <close> = dev:capture(callable(3))
    local labelled <close> = dev:capture({ label = "by a table" }, callable(4))
    graph:launch():await()
    assert.are.same({ 3 }, x:read())
    labelled:launch():await()
    assert.are.same({ 4 }, x:read())
    assert.is_true(graph:update(callable(5)))
    graph:launch():await()
    assert.are.same({ 5 }, x:read())
    -- What a graphed function depends on is looked for in a function.
    support.raises("InvalidArgument", "a function expected, got table", dev.graphed, dev, callable(1))
    dev:on_lost(callable(6))
  end)

  it("without a function is a guard: finished, closed or forgotten", function()
    local x, y = buffer(1), buffer(0)
    local graph
    do
      local capture <close> = dev:capture { label = "by hand" }
      add:launch(n, x, y, n, 1)
      assert.equal(1, capture:count())
      graph = capture:finish()
      support.raises("Closed", { "capture" }, capture.count, capture)
    end
    add:launch(n, x, y, n, 10)
    graph:launch()
    assert.equal(11, y:read(1, 1)[1])
    graph:close()
    support.raises("Closed", { "graph" }, graph.launch, graph)
    assert.equal("closed graph", gpu.type(graph))
    do
      local capture <close> = dev:capture()
      add:launch(n, x, y, n, 100)
      assert.equal(1, capture:count())
    end
    assert.equal(11, y:read(1, 1)[1])
    dev:capture()
    add:launch(n, x, y, n, 100)
    collectgarbage()
    collectgarbage()
    assert.equal(11, y:read(1, 1)[1])
  end)

  it("survives a collector step at each operation", function()
    local x, y = buffer(1), buffer(0)
    collectgarbage "stop"
    local graph <close> = dev:capture(function()
      for i = 1, 50 do
        add:launch(n, dev:buffer("i32", n):fill(i), y, n, 1)
        collectgarbage()
        add:launch(n, x, y, n, 1)
      end
    end)
    collectgarbage "restart"
    collectgarbage()
    graph:launch()
    graph:launch()
    assert.equal(2 * (50 * 51 // 2 + 50), y:read(1, 1)[1])
  end)

  it("of a graph's launch has that graph's nodes", function()
    local x, y = buffer(1), buffer(0)
    local inner <close> = dev:capture(function()
      add:launch(n, x, y, n, 1)
      add:launch(n, x, y, n, 2)
    end)
    local outer <close> = dev:capture(function()
      inner:launch()
      add:launch(n, y, x, n, 1)
      inner:launch()
    end)
    inner:close()
    assert.are.same({ 5, 4 }, { outer:nodes() })
    outer:launch()
    -- y: 3, x: 4, y: 3 + 12
    assert.are.same({ 15, 4 }, { y:read(1, 1)[1], x:read(1, 1)[1] })
  end)

  it("takes 20,000 nodes, and a node behind 1,000", function()
    local x, y = buffer(1), buffer(0)
    local big <close> = dev:buffer("i32", 1000):fill(0)
    local graph <close> = dev:capture(function()
      for _ = 1, 9500 do
        add:launch(1, x, y, 1, 1)
        add:launch(1, y, x, 1, 0)
      end
      for i = 1, 1000 do
        local one <close> = big:slice(i, i)
        add:launch(1, x, one, 1, i)
      end
      big:write({ 7 }, 500)
      add:launch(1000, big, big, 1000, 1)
    end)
    local nodes, edges = graph:nodes()
    assert.equal(20002, nodes)
    assert.equal(2 * 9500 - 1 + 1000 + 1 + 1000, edges)
    graph:launch():await()
    assert.are.same({ 9500, 1 }, { y:read(1, 1)[1], x:read(1, 1)[1] })
    assert.are.same({ 2, 14, 2000 }, { big:read(1, 1)[1], big:read(500, 500)[1], big:read(1000, 1000)[1] })
  end)

  it("of a long chain costs no more for what the chain reads beside", function()
    local x, y = buffer(1), buffer(0)
    local function cost(first)
      local start = os.clock()
      local graph <close> = dev:capture(function()
        first:fill(1)
        for _ = 1, 20000 do
          add:launch(1, x, y, 1, 1)
        end
      end)
      assert.equal(20001, (graph:nodes()))
      return os.clock() - start
    end
    local other = buffer(0)
    local alone = math.min(cost(other), cost(other))
    local beside = math.min(cost(x), cost(x))
    assert.truthy(beside < 6 * alone, beside / alone)
  end)

  it("has a module's variables as what all its kernels may change", function()
    local own <close> = support.open()
    local count = own:compile(counter).count
    local a, b = own:buffer("i32", 1):fill(-1), own:buffer("i32", 1):fill(-1)
    local graph <close> = own:capture(function()
      count:launch(support.one, a)
      count:launch(support.one, b)
    end)
    assert.are.same({ 2, 1 }, { graph:nodes() })
    graph:launch()
    graph:launch()
    assert.are.same({ 2, 3 }, { a:read()[1], b:read()[1] })
  end)

  it("must fail where an input fails, and say so", function()
    if dev.kind == "cuda" then
      pending "a failed assert ends the device there"
    end
    local own <close> = support.open()
    local fail = own:compile(source).must
    local x, y = own:buffer("i32", n):fill(1), own:buffer("i32", n):fill(1)
    local graph <close> = own:capture({ label = "step" }, function()
      fail:launch(n, x, n)
      fail:launch(n, y, n)
    end)
    graph:launch():await()
    x:fill(-1)
    local op = graph:launch()
    local err = support.raises("KernelFailed", { "must" }, op.await, op)
    assert.equal("step", err.op.label)
    support.raises("DependencyFailed", { "step" }, x.read, x)
    x:fill(1)
    y:fill(1)
    graph:launch():await()
    assert.are.same({ 2, 2 }, { x:read(1, 1)[1], y:read(1, 1)[1] })
    assert.truthy(must)
  end)
end)

describe("tasks and a capture", function()
  local dev, add, must
  local n <const> = 64

  setup(function()
    dev = support.open()
    local mod = dev:compile(source)
    add, must = mod.add, mod.must
  end)
  teardown(support.close_all)

  local function buffer(value, label)
    return dev:buffer("i32", n, { label = label }):fill(value)
  end

  it("that has ended do no work that was meant for it", function()
    local x, y = buffer(1), buffer(0)
    local codes = {}
    local before = dev:stats().launches
    support.raises("Timeout", {}, gpu.timeout, 0.05, function()
      dev:capture(function()
        for _ = 1, 8 do -- it takes no notice of being cancelled
          pcall(gpu.sleep, 0.01)
          local ok, err = pcall(add.launch, add, n, x, y, n, 1)
          codes[#codes + 1] = ok and "recorded" or err.code
        end
      end)
    end)
    assert.is_true(support.eventually(5, function() return #codes == 8 end))
    assert.equal("recorded", codes[1])
    assert.equal("CaptureInvalidated", codes[8])
    assert.equal(before, dev:stats().launches)
    assert.equal(0, y:read(1, 1)[1])
  end)

  it("as a guard: a child is told that it has ended, a detached task goes on by itself", function()
    local x, y, z = buffer(1), buffer(0), buffer(0)
    local capture <close> = dev:capture()
    local child = gpu.spawn(function()
      gpu.sleep(0.01)
      add:launch(n, x, y, n, 1)
    end)
    local detached = gpu.spawn(function()
      gpu.sleep(0.01)
      gpu.spawn(function() add:launch(n, x, z, n, 10) end):await()
    end):detach()
    add:launch(n, x, y, n, 100)
    gpu.timeout(1, function() -- who ends it goes on, too
      local graph <close> = capture:finish()
      assert.equal(1, (graph:nodes()))
      add:launch(n, x, y, n, 1000)
    end)
    local ok, err = child:join()
    assert.is_false(ok)
    support.is_error(err, "CaptureInvalidated", { "has ended" })
    detached:await()
    assert.are.same({ 1000, 10 }, { y:read(1, 1)[1], z:read(1, 1)[1] })
  end)

  it("that is ended by who looks behind a test may have outlived its device", function()
    local core = require "gpulua.core"
    local before = core.captures_end()
    local own = gpu.device(dev.name, { label = "own" })
    local capture = own:capture { label = "a label that is the device's own" }
    own:close()
    own = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    local _, ended = core.captures_end(before)
    assert.equal(1, #ended)
    assert.equal("a label that is the device's own", ended[1].label)
    assert.equal(dev.name, ended[1].device)
    assert.equal(0, #select(2, core.captures_end(before)))
    capture:close()
  end)

  it("on a stream that its spawner has left keep it, also those of gpu.timeout", function()
    local x = buffer(0)
    local stream <close> = dev:stream {}
    for _, in_capture in ipairs { false, true } do
      local outcome
      local function body()
        pcall(gpu.sleep, 10)
        pcall(gpu.sleep, 0)
        local id = dev:current().id
        local ok, err = pcall(x.fill, x, 1)
        outcome = { id, ok or err.code }
      end
      stream:use(function()
        support.raises("Timeout", {}, gpu.timeout, 0.01, function()
          stream:use(in_capture and function() dev:capture(body) end or body)
        end)
      end)
      collectgarbage()
      collectgarbage()
      assert.is_true(support.eventually(5, function() return outcome ~= nil end))
      assert.are.same({ stream.id, not in_capture or "CaptureInvalidated" }, outcome)
    end
  end)

  it("hinder nobody beside it, nor work of another device", function()
    local other <close> = support.open()
    local far = other:buffer("i32", n):fill(3)
    local x, y, z = buffer(1), buffer(0), buffer(0)
    local host <close> = dev:host("i32", n)
    local rounds = 0
    local is_over = false
    local beside = gpu.spawn(function()
      repeat
        local op = add:launch(n, x, z, n, 1)
        op:on_done(function() rounds = rounds + 1 end)
        op:await()
        gpu.all(op, z)
        gpu.any(op, z)
        host:copy(z)
        assert.equal(host:read(1, 1)[1], z:read(1, 1)[1])
        host:write({ 1 }, 1)
        dev:synchronize()
        dev:current():synchronize()
        dev:recorder():write(z):preflight():commit():await()
        dev:buffer("i32", 1):free()
      until is_over
    end)
    local graph <close> = dev:capture(function()
      for i = 1, 10 do
        add:launch(n, x, y, n, 1)
        gpu.sleep(0.001)
        assert.equal(2 + i, far:read(1, 1)[1])
        far:fill(3 + i):await()
        other:synchronize()
        other:current():synchronize()
        support.raises("CaptureActive", { "second capture" }, other.capture, other, function() end)
      end
    end)
    is_over = true
    beside:await()
    assert.truthy(rounds > 0)
    assert.are.same({ 10, 9 }, { graph:nodes() })
    assert.equal(0, y:read(1, 1)[1])
  end)

  it("refuse what would come back to a capture's body later, or bypass it", function()
    local x, y = buffer(1), buffer(0)
    local seen
    local op
    local graph <close> = dev:capture(function()
      op = add:launch(n, x, y, n, 1)
      support.raises("CaptureActive", { "on_done" }, op.on_done, op, function() end)
      local recorder <close> = dev:recorder():write(y)
      support.raises("CaptureActive", { "host's own work" }, recorder.preflight, recorder)
      recorder:cancel()
    end)
    assert.are.same({ 1, 0 }, { graph:nodes() })
    op:on_done(function(ok, err) seen = ok or err.code end)
    assert.is_true(support.eventually(5, function() return seen end))
    assert.equal("CaptureActive", seen)
  end)

  it("in another graph: freed memory is refused there already, and its label is known", function()
    local x, y = buffer(1, "weights"), buffer(0)
    local graph <close> = dev:capture({ label = "step" }, function() add:launch(n, x, y, n, 1) end)
    local outer <close> = dev:capture(function()
      assert.equal("step", graph:launch().label)
      assert.equal("again", graph:launch { label = "again" }.label)
      y:fill(0)
    end)
    assert.equal(3, (outer:nodes()))
    x:free()
    support.raises("EmptyCapture", {}, dev.capture, dev, function()
      support.raises("UseAfterFree", { "launch of graph 'step'", "weights" }, graph.launch, graph)
    end)
    support.raises("UseAfterFree", { "upload of graph 'step'", "weights" }, graph.upload, graph)
    local own = support.open()
    local z = own:buffer("i32", n)
    local inner = own:capture(function() z:fill(1) end)
    local capture <close> = own:capture()
    own:close()
    support.raises("Closed", {}, inner.launch, inner)
    assert.equal(0, capture:count())
  end)

  -- In a program of its own: each collection goes over all that there is, and busted has much.
  it("survive finalisers that close what a call is using", function()
    local output, code = support.script [==[
      local support = require "spec.support"
      local n <const>, source = 64, require "spec.graph_kernels"
      local dev = support.open()
      local add = dev:compile(source).add
      local function buffer(value)
        return dev:buffer("i32", n):fill(value)
      end
      local x, y = buffer(1), buffer(0)
      local target
      local hostile = {
        __gc = function()
          if target then
            target:close()
            dev:stats()
            dev:buffer("i32", 4):close()
          end
        end,
      }
      local function graph()
        return dev:capture(function()
          add:launch(n, x, y, n, 1)
          y:fill(3)
        end)
      end
      local function in_capture(call)
        return function()
          local capture = dev:capture()
          return capture, call
        end
      end
      local inner = graph()
      local mod
      local cases = {
        launch = function()
          local g = graph()
          return g, function() g:launch { label = "x" } end
        end,
        dot = function()
          local g = graph()
          return g, g.dot, g
        end,
        upload = function()
          local g = graph()
          return g, g.upload, g
        end,
        finish = function()
          local capture = dev:capture()
          y:fill(1)
          return capture, capture.finish, capture
        end,
        ["captured launch"] = in_capture(function() add:launch(n, x, y, n, 1) end),
        ["captured write"] = in_capture(function() y:write({ 1 }, 1) end),
        ["captured mark"] = in_capture(function() dev:current():mark() end),
        ["captured graph"] = in_capture(function() inner:launch() end),
        kernel = function()
          mod = dev:compile(source)
          local kernel = mod.add
          mod:close()
          mod = nil
          return kernel, kernel.launch, kernel, n, x, y, n, 1
        end,
        buffer = function()
          local b = buffer(1)
          return b, add.launch, add, n, b, y, n, 1
        end,
        stream = function()
          local stream = dev:stream {}
          return stream, stream.mark, stream
        end,
      }
      local closed = {}
      for name, case in pairs(cases) do
        for _ = 1, 8 do
          local call = table.pack(case())
          collectgarbage("incremental", 1, 1000, 24) -- a cycle with each allocation
          collectgarbage()
          target = call[1]
          local ok, err = pcall(function()
            setmetatable({}, hostile)
            call[2](table.unpack(call, 3, call.n))
          end)
          target = nil
          support.collect_as_usual()
          call[1]:close()
          if not ok then
            assert(type(err) ~= "string", name .. ": " .. tostring(err))
            closed[name] = err.code
          end
        end
      end
      dev:synchronize()
      assert(next(closed), "no finaliser ran inside a call")
      for name, code in pairs(closed) do
        assert(code == "Closed", name .. ": " .. code)
      end
      dev:close()
      print "survived"
    ]==]
    assert.equal("survived\n", output)
    assert.equal(0, code)
  end)

  it("has of what it writes itself no failure from before", function()
    if dev.kind == "cuda" then
      pending "a failed assert ends the device there"
    end
    local own <close> = support.open()
    local mod = own:compile(source)
    local x, y = own:buffer("i32", n):fill(1), own:buffer("i32", n):fill(0)
    local low, high = x:slice(1, n // 2), x:slice(n // 2 + 1, n)
    local put = mod:kernel("put", "in i32*, in i32*, out i32*, i32")
    local whole <close> = own:capture(function()
      low:fill(1)
      high:fill(1)
      mod.add:launch(n, x, y, n, 1)
    end)
    local reads <close> = own:capture(function() put:launch(n // 2, low, y, x, n // 2) end)
    local function fail()
      x:fill(-1)
      local op = mod.must:launch(n, x, n)
      support.raises("KernelFailed", {}, op.await, op)
    end
    fail()
    whole:launch():await()
    assert.equal(1, y:read(1, 1)[1])
    fail()
    local op = reads:launch() -- which reads what it then writes
    support.raises("DependencyFailed", { "must" }, op.await, op)
    assert.truthy(must)
  end)
end)

describe("a launch of a graph", function()
  local dev, add, spin
  local n <const> = 64

  setup(function()
    dev = support.open()
    add = dev:compile(source).add
    spin = dev:compile(support.spin_source)
  end)
  teardown(support.close_all)

  it("waits for what its nodes use, on any stream, and is waited for", function()
    local x, y, z = support.zeros(dev, "i32", 1), support.zeros(dev, "i32", 1), dev:buffer("i32", 1)
    local one, two = dev:stream {}, dev:stream {}
    local ticks = support.ticks(0.02)
    local graph <close> = dev:capture(function()
      spin.spin_copy:launch(support.one, ticks, x, y, 1)
    end)
    for i = 1, 3 do
      spin.spin:launch({ grid = 1, block = 1, stream = one }, ticks, x, i)
      graph:launch { stream = two }
      one:use(function() z:copy(y) end)
      assert.equal(i, z:read()[1])
    end
  end)

  it("twin: without fences it reads what is not there yet, and is read before it has written", function()
    support.wants_time(pending)
    local is_there, unfenced = pcall(support.open, { unfenced = true })
    if not is_there then
      pending(unfenced.message)
    end
    local kernels = unfenced:compile(support.spin_source)
    local x, y = support.zeros(unfenced, "i32", 1), support.zeros(unfenced, "i32", 1)
    local early, late = unfenced:buffer("i32", 1), unfenced:buffer("i32", 1)
    local one, two = unfenced:stream {}, unfenced:stream {}
    local read <close> = unfenced:capture(function() early:copy(x) end)
    read:launch():await()
    support.under_way(0.2, function(seconds, seen)
      x:fill(0)
      unfenced:synchronize()
      kernels.spin_fill:launch({ grid = 1, block = 1, stream = one }, support.ticks(seconds), x, 1, 5)
      read:launch { stream = two }:await()
      seen()
      unfenced:synchronize()
      assert.are.same({ 0, 5 }, { early:read()[1], x:read()[1] })
    end)
    support.under_way(0.2, function(seconds, seen, begins)
      local write <close> = unfenced:capture(function()
        kernels.spin_fill:launch(support.one, support.ticks(seconds), y, 1, 5)
      end)
      write:launch():await()
      y:fill(0)
      unfenced:synchronize()
      begins()
      write:launch { stream = one }
      two:use(function() return late:copy(y) end):await()
      seen()
      unfenced:synchronize()
      assert.are.same({ 0, 5 }, { late:read()[1], y:read()[1] })
    end)
    unfenced:close()
  end)

  it("is one operation: it fails, is awaited, and is labelled as one", function()
    local x, y = dev:buffer("i32", n):fill(1), dev:buffer("i32", n):fill(0)
    local graph <close> = dev:capture({ label = "step" }, function()
      add:launch(n, x, y, n, 1)
      add:launch(n, x, y, n, 1)
    end)
    local op = graph:launch()
    assert.equal("step", op.label)
    assert.equal("again", graph:launch { label = "again" }.label)
    assert.equal(op, op:await())
    assert.is_true(op:done())
    assert.equal(4, y:read(1, 1)[1])
  end)

  it("runs what is independent side by side", function()
    support.wants_time(pending)
    local a, b, c, d = support.zeros(dev, "i32", 1), support.zeros(dev, "i32", 1), support.zeros(dev, "i32", 1),
      support.zeros(dev, "i32", 1)
    local ticks = support.ticks(0.2)
    local function chain(first, second)
      return function()
        spin.spin:launch(support.one, ticks, first, 1)
        spin.spin:launch(support.one, ticks, second, 1)
      end
    end
    local wide <close> = dev:capture(chain(a, b))
    local long <close> = dev:capture(chain(c, c))
    assert.are.same({ 2, 0 }, { wide:nodes() })
    assert.are.same({ 2, 1 }, { long:nodes() })
    d:fill(0):await()
    local best = math.huge
    for _ = 1, 5 do -- the machine may be busy with something else
      local start = support.now()
      wide:launch():await()
      local beside = support.now() - start
      start = support.now()
      long:launch():await()
      best = math.min(best, beside / (support.now() - start))
    end
    assert.truthy(best < 0.8, best)
  end)

  it("of one graph waits for the one before it", function()
    local x <close> = dev:buffer("i32", 1):fill(0)
    local one, two = dev:stream {}, dev:stream {}
    local y <close> = dev:buffer("i32", 1):fill(1)
    local graph <close> = dev:capture(function() add:launch(1, y, x, 1, 1) end)
    for _ = 1, 100 do
      graph:launch { stream = one }
      graph:launch { stream = two }
    end
    assert.equal(200, x:read()[1])
  end)

  it("needs no handles: closed buffers, kernels and modules live on in it", function()
    local own <close> = support.open()
    local graph, y
    do
      local mod <close> = own:compile(source)
      local x <close> = own:buffer("i32", n):fill(3)
      y = own:buffer("i32", n):fill(0)
      local kernel <close> = mod.add
      graph = own:capture(function() kernel:launch(n, x, y, n, 1) end)
    end
    collectgarbage()
    collectgarbage()
    local other <close> = own:buffer("i32", n):fill(1000)
    graph:launch()
    graph:launch()
    assert.equal(6, y:read(1, 1)[1])
    assert.equal(1000, other:read(1, 1)[1])
    local during = own:stats()
    y:close()
    graph:launch()
    graph:close() -- with its launch under way
    support.settle(own)
    local after = own:stats()
    assert.equal(during.graphs_live - 1, after.graphs_live)
    assert.equal(1, after.blocks_live) -- the other one
  end)

  it("of freed memory raises, naming it", function()
    local x, y = dev:buffer("i32", n, { label = "weights" }):fill(1), dev:buffer("i32", n):fill(0)
    local graph <close> = dev:capture({ label = "step" }, function() add:launch(n, x, y, n, 1) end)
    graph:launch():await()
    x:free()
    support.raises("UseAfterFree", { "launch of graph 'step'", "weights" }, graph.launch, graph)
    assert.equal(1, graph:replays())
    assert.equal(1, y:read(1, 1)[1])
  end)

  it("takes options, and refuses what it does not know", function()
    local x, y = dev:buffer("i32", n):fill(1), dev:buffer("i32", n):fill(0)
    local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
    support.raises("InvalidArgument", { "steam" }, graph.launch, graph, { steam = 1 })
    support.raises("InvalidArgument", { "stream" }, graph.launch, graph, { stream = 1 })
    support.raises("InvalidArgument", { "dot" }, graph.dot, graph, 1)
    support.raises("Io", { "/nowhere/graph.dot" }, graph.dot, graph, "/nowhere/graph.dot")
    local other <close> = support.open()
    local stream <close> = other:stream {}
    support.raises("InvalidArgument", { "stream" }, graph.launch, graph, { stream = stream })
    local name = os.tmpname()
    local text = graph:dot(name)
    assert.equal(text, support.read_file(name))
    os.remove(name)
  end)

  it("needs no upload, and one is enough", function()
    local x, y = dev:buffer("i32", n):fill(1), dev:buffer("i32", n):fill(0)
    local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
    local before = dev:stats().records
    assert.equal(graph, graph:upload())
    local once = dev:stats().records - before
    graph:upload()
    assert.equal(once, dev:stats().records - before)
    graph:launch()
    assert.equal(1, y:read(1, 1)[1])
  end)

  it("after the device's end raises, and the graph can be closed", function()
    local own = support.open()
    local x = own:buffer("i32", n):fill(1)
    local kernel = own:compile(source).add
    local graph = own:capture(function() kernel:launch(n, x, x, n, 1) end)
    local capture = own:capture()
    own:close()
    support.raises("Closed", {}, graph.launch, graph)
    capture:close()
    graph:close()
    local another = support.open()
    assert.equal("device", gpu.type(another))
    another:close()
  end)

  it("on a device that is lost fails, and nothing hangs", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local own <close>, pid = support.open_with_pid { restarts = 0 }
    local x = own:buffer("i32", n):fill(1)
    local kernel = own:compile(source).add
    local graph <close> = own:capture(function() kernel:launch(n, x, x, n, 1) end)
    graph:launch():await()
    os.execute("kill -KILL " .. math.tointeger(pid))
    assert.is_true(support.eventually(5, function()
      local ok, err = pcall(function() graph:launch():await(1) end)
      return not ok and err.code == "DeviceLost"
    end))
    support.raises("DeviceLost", {}, own.capture, own, function() end)
  end)

  it("on a device that is lost at any time fails with that, and leaves no file open", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local function files()
      local count = 0
      for _ in require "lfs".dir "/proc/self/fd" do
        count = count + 1
      end
      return count
    end
    collectgarbage()
    collectgarbage()
    local before = files()
    for round = 1, 20 do
      local own <close>, pid = support.open_with_pid { restarts = 0 }
      local x = own:buffer("i32", n):fill(1)
      local kernel = own:compile(source).add
      x:await()
      os.execute(("(sleep %.4f; kill -KILL %d) &"):format(round * 0.0008, pid))
      local err = support.raises("DeviceLost", {}, function()
        for _ = 1, 10000 do
          local graph <close> = own:capture(function()
            for _ = 1, 30 do
              kernel:launch(n, x, x, n, 1)
            end
          end)
          graph:upload()
          graph:launch()
          graph:launch():await()
        end
      end)
      assert.truthy(err.message ~= "")
    end
    collectgarbage()
    collectgarbage()
    assert.equal(before, files())
  end)
end)
