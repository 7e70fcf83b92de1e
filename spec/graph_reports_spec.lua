-- Kernels that report, as nodes of graphs: each launch has its own reports.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a node that reports", function()
  local source <const> = [[
    #include <gpulua_kernel.h>
    extern "C" __global__ void step(int *x, const int *from, int by, int at_most, gpulua_ctx ctx) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      x[i] = from[i] + by;
      gpulua_check(ctx, by <= at_most, "%d is more than %d", by, at_most);
    }
    extern "C" __global__ void limit(const int *x, int at_most, gpulua_ctx ctx) {
      gpulua_check(ctx, x[threadIdx.x] <= at_most, "x[%d] is %d", threadIdx.x, x[threadIdx.x]);
    }
    extern "C" __global__ void plain(int *x, const int *from, int by) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      x[i] = from[i] + by;
    }
    // Says how often it has run where nobody sees it: what it writes is declared to be read.
    extern "C" __global__ void mark(int *to, const int *from, int is_bad, const int *ran, gpulua_ctx ctx) {
      if (threadIdx.x == 0) *(volatile int *)ran += 1;
      to[threadIdx.x] = from[threadIdx.x];
      gpulua_check(ctx, !is_bad, "bad");
    }
    extern "C" __global__ void mark_plainly(int *to, const int *from, int is_bad, const int *ran) {
      if (threadIdx.x == 0) *(volatile int *)ran += 1;
      to[threadIdx.x] = from[threadIdx.x];
    }
    extern "C" __global__ void mark_both(int *to, const int *from, const int *also, int is_bad, const int *ran,
        gpulua_ctx ctx) {
      if (threadIdx.x == 0) *(volatile int *)ran += 1;
      to[threadIdx.x] = from[threadIdx.x] + also[threadIdx.x];
      gpulua_check(ctx, !is_bad, "bad");
    }
    extern "C" __global__ void both(int *to, const int *from, const int *also) {
      to[threadIdx.x] = from[threadIdx.x] + also[threadIdx.x];
    }
    extern "C" __global__ void less(int *at_most) { --*at_most; }
  ]]
  local dev, mod, kernels_of
  local four <const> = { grid = 1, block = 4 }

  setup(function()
    dev = support.open {}
    mod = kernels_of(dev)
  end)
  teardown(support.close_all)

  -- They read nothing of what they write.
  function kernels_of(device)
    local module = device:compile(source)
    return { limit = module.limit, less = module.less,
      step = module:kernel("step", "x: out i32*, from: in i32*, by: i32, at_most: i32, gpulua_ctx"),
      plain = module:kernel("plain", "x: out i32*, from: in i32*, by: i32"),
      mark = module:kernel("mark", "to: out i32*, from: in i32*, is_bad: i32, ran: in i32*, gpulua_ctx"),
      mark_both = module:kernel("mark_both",
        "to: out i32*, from: in i32*, also: in i32*, is_bad: i32, ran: in i32*, gpulua_ctx"),
      both = module:kernel("both", "to: out i32*, from: in i32*, also: in i32*"),
      mark_plainly = module:kernel("mark_plainly", "to: out i32*, from: in i32*, is_bad: i32, ran: in i32*") }
  end

  local function ints(value, label)
    return dev:buffer("i32", 4, { label = label }):fill(value)
  end

  --- What `mark` wants and check mode would not have.
  local function wants_marks()
    if support.is_checked() then
      pending "a kernel writes what it says that it reads"
    end
  end

  it("fails the launch with its name, place and message, and the next one is well", function()
    local x, y = ints(7, "x"), ints(0, "y")
    local line
    local graph <close> = dev:capture({ label = "frame" }, function()
      mod.plain:launch(four, y, x, 1)
      line = debug.getinfo(1, "l").currentline + 1
      mod.limit:launch({ grid = 1, block = 4, label = "guard" }, y, 10)
      mod.plain:launch(four, x, y, 0)
    end)
    graph:launch():await()
    assert.are.same({ 8, 8, 8, 8 }, x:read())
    x:write({ 9, 9, 11, 9 })
    local op = graph:launch()
    local err = support.raises("KernelFailed", { "kernel 'guard' of graph 'frame'", "graph_reports_spec.lua:" .. line,
      "line 8 of ", "block (0,0,0), thread (2,0,0): x[2] is 12" }, op.await, op)
    assert.equal("frame", err.op.label)
    support.raises("DependencyFailed", { "'frame'", "x[2] is 12" }, x.read, x)
    x:fill(2)
    graph:launch():await()
    assert.are.same({ 3, 3, 3, 3 }, x:read())
  end)

  it("fails those launches alone in which something is wrong, however many are in flight", function()
    local count, seen = ints(300), ints(0)
    local graph <close> = dev:capture(function()
      mod.limit:launch(support.one, seen, 0)
      mod.less:launch(support.one, count)
    end)
    local ops = {}
    for i = 1, 300 do
      seen:fill(i % 3 == 0 and i or 0)
      ops[i] = graph:launch()
      if i % 3 == 0 then
        count:fill(300 - i)
      end
    end
    for i = 1, 300 do
      local ok, err = ops[i]:join()
      assert.equal(i % 3 ~= 0, ok, i)
      if not ok then
        support.is_error(err, "KernelFailed", "x[0] is " .. i)
      end
    end
    assert.equal(0, count:read()[1])
  end)

  it("is told of in the order of the nodes, not in that of their failing", function()
    local x, y, z = ints(5), ints(6), ints(7)
    local graph <close> = dev:capture(function()
      mod.limit:launch({ grid = 1, block = 4, label = "first" }, x, 1)
      mod.limit:launch({ grid = 1, block = 4, label = "second" }, y, 1)
      mod.limit:launch({ grid = 1, block = 4, label = "third" }, z, 1)
    end)
    for _ = 1, 50 do
      local op = graph:launch()
      support.raises("KernelFailed", "'first'", op.await, op)
    end
  end)

  it("skips itself behind a node that has failed, and not beside it", function()
    wants_marks()
    local a, b, c, d, e, f = ints(1), ints(0), ints(0), ints(0), ints(0), ints(0)
    local ran = {}
    for i = 1, 6 do
      ran[i] = ints(0)
    end
    local graph <close> = dev:capture(function()
      mod.mark:launch(four, b, a, 0, ran[1])
      mod.mark:launch({ grid = 1, block = 4, label = "culprit" }, c, a, 1, ran[2])
      mod.plain:launch(four, d, c, 0)
      mod.mark:launch(four, e, d, 0, ran[3]) -- behind it, with one between them
      mod.mark:launch(four, f, b, 0, ran[4]) -- not behind it
      mod.mark_plainly:launch(four, f, c, 0, ran[5]) -- the twin: it does not ask
      c:fill(0)
      mod.mark:launch(four, d, c, 0, ran[6]) -- reads what has been written over
    end)
    local function counts()
      local got = {}
      for i = 1, 6 do
        got[i] = ran[i]:read()[1]
      end
      return got
    end
    local op = graph:launch()
    support.raises("KernelFailed", "'culprit'", op.await, op)
    assert.are.same({ 1, 1, 0, 1, 1, 1 }, counts())
    graph:bind { ["culprit.is_bad"] = 0 }
    a:fill(1)
    graph:launch():await()
    assert.are.same({ 2, 2, 1, 2, 2, 2 }, counts())
  end)

  it("skips itself behind what has failed before the graph, and the graph's readers behind it", function()
    wants_marks()
    local a, b, c, d = ints(0), ints(0), ints(0), ints(0)
    local inner, outer, beside = ints(0), ints(0), ints(0)
    local graph <close> = dev:capture(function()
      mod.mark:launch(four, b, a, 0, inner)
      mod.plain:launch(four, c, b, 0)
    end)
    local function both(by)
      local first = mod.step:launch(four, a, d, by, 5)
      local second = graph:launch()
      local third = mod.mark:launch(four, a, c, 0, outer)
      mod.mark:launch(four, c, d, 0, beside):await()
      return first, second, third
    end
    for round = 1, 3 do
      local first, second, third = both(9)
      support.raises("KernelFailed", "9 is more", first.await, first)
      support.raises("DependencyFailed", "9 is more", second.await, second)
      support.raises("DependencyFailed", "9 is more", third.await, third)
      assert.are.same({ round - 1, round - 1 }, { inner:read()[1], outer:read()[1] })
      a:fill(0)
      first, second, third = both(5)
      gpu.all { first, second, third }
      assert.are.same({ round, round }, { inner:read()[1], outer:read()[1] })
      a:fill(0)
    end
    assert.equal(6, beside:read()[1])
  end)

  it("fails every launch of a graph behind an input that has failed, or does while they are in flight", function()
    local a, b, d = ints(0), ints(0), ints(0)
    local graph <close> = dev:capture(function() mod.plain:launch(four, b, a, 1) end)
    for round = 1, 3 do
      local first <const> = mod.step:launch(four, a, d, 9, 5)
      if round > 1 then -- it is known before they are launched
        support.raises("KernelFailed", "9 is more", first.await, first)
      end
      local launches = {}
      for i = 1, 8 do
        launches[i] = graph:launch()
      end
      for i = 1, 8 do
        support.raises("DependencyFailed", "9 is more", launches[i].await, launches[i])
      end
      support.raises("DependencyFailed", "9 is more", b.read, b)
      if round == 1 then
        support.raises("KernelFailed", "9 is more", first.await, first)
      end
      a:fill(round)
      for i = 1, 8 do
        launches[i] = graph:launch()
      end
      gpu.all(launches)
      assert.equal(round + 1, b:read()[1])
    end
  end)

  it("does not skip itself behind what it only has a module's variables in common with", function()
    wants_marks()
    local module = dev:compile(source .. "\n__device__ int variable;\n"
      .. 'extern "C" __global__ void counts() { atomicAdd(&variable, 1); }')
    local mark = module:kernel("mark", "to: out i32*, from: in i32*, is_bad: i32, ran: in i32*, gpulua_ctx")
    local a, ran = ints(1), {}
    for i = 1, 6 do
      ran[i] = ints(0)
    end
    local graph <close> = dev:capture(function()
      for i = 1, 6 do
        mark:launch(four, ints(0), a, i == 1 and 1 or 0, ran[i])
        module.counts:launch(support.one)
      end
    end)
    local op = graph:launch()
    support.raises("KernelFailed", "bad", op.await, op)
    for i = 1, 6 do
      assert.equal(1, ran[i]:read()[1], i)
    end
  end)

  it("is looked at by what is behind the graph, however many of its nodes report", function()
    wants_marks()
    for _, n in ipairs { 1, 2, 6, 40 } do
      local a, to, ran, other = ints(1), ints(0), ints(0), ints(0)
      local outputs = {}
      for i = 1, n do
        outputs[i] = ints(0)
      end
      local graph <close> = dev:capture({ label = "many" }, function()
        for i = 1, n do
          mod.mark:launch({ grid = 1, block = 4, label = "node" .. i }, outputs[i], a, i == 1 and 1 or 0, other)
        end
      end)
      local op = graph:launch()
      local reader = mod.mark:launch(four, to, outputs[1], 0, ran)
      support.raises("KernelFailed", "'node1'", op.await, op)
      support.raises("DependencyFailed", "'node1'", reader.await, reader)
      assert.equal(0, ran:read()[1], n)
      graph:bind { ["node1.is_bad"] = 0 }
      graph:launch()
      mod.mark:launch(four, to, outputs[1], 0, ran):await()
      assert.equal(1, ran:read()[1], n)
    end
  end)

  it("is bound, updated, forked and captured once more like others", function()
    local x, y, other = ints(1, "x"), ints(0, "y"), ints(50)
    local function frame(at_most)
      return function()
        mod.step:launch({ grid = 1, block = 4, label = "step" }, y, x, 1, 5)
        mod.limit:launch({ grid = 1, block = 4, label = "guard" }, y, at_most)
      end
    end
    local graph <close> = dev:capture(frame(10))
    local function fails(g, ...)
      local op = g:launch()
      support.raises("KernelFailed", { ... }, op.await, op)
      y:fill(0)
    end
    graph:launch():await()
    graph:bind { x = other }
    fails(graph, "'guard'", "is 51")
    graph:bind { x = x, ["step.by"] = 9 }
    fails(graph, "'step'", "9 is more than 5")
    graph:bind { ["step.by"] = 1 }
    graph:launch():await()
    graph:update(frame(1))
    fails(graph, "'guard'", "is 2")
    graph:update(frame(2))
    graph:launch():await()
    graph:update(function()
      frame(2)()
      mod.limit:launch({ grid = 1, block = 4, label = "another" }, x, 0)
    end)
    fails(graph, "'another'", "is 1")
    local fork <close> = graph:fork()
    fails(fork, "'another'", "is 1")
    local whole <close> = dev:capture(function()
      x:fill(0)
      graph:launch()
    end)
    whole:launch():await()
    local graphed = dev:graphed(function(at_most)
      mod.limit:launch(four, x, at_most)
    end)
    for round = 1, 6 do
      local ok, err = pcall(function() graphed(round % 2 - 1):await() end)
      assert.equal(round % 2 == 1, ok, tostring(err))
      if not ok then
        support.is_error(err, "KernelFailed", "is 0")
      end
    end
  end)

  it("is no part of a conditional node's body", function()
    local x <close> = ints(1)
    local go <close> = dev:upload("i32", { 1 })
    support.raises("Unsupported", { "'limit'", "gpulua_ctx", "conditional" }, dev.capture, dev, function()
      gpu.graph.if_(go, function() mod.limit:launch(four, x, 5) end)
    end)
  end)

  it("leaves nothing behind, also of graphs with many of them", function()
    local x, y = ints(0), ints(1)
    local function round()
      local many <close> = dev:capture(function()
        for i = 1, 400 do
          mod.step:launch(four, x, y, i, 399)
        end
      end)
      for _ = 1, 3 do
        local op = many:launch()
        support.raises("KernelFailed", "400 is more", op.await, op)
        x:fill(0)
      end
      dev:synchronize()
    end
    round()
    support.without_leak(dev, round)
  end)

  -- Which nodes run, and how launches end, against a model.
  it("runs and fails as it has to, in random graphs", function()
    wants_marks()
    local rounds, most = support.keeps_freed_memory() and 10 or 40, 0
    for seed = 1, rounds do
      local random = support.random(seed)
      local buffers, ran, nodes = {}, {}, {}
      for i = 1, 6 do
        buffers[i] = ints(i)
      end
      for i = 1, 30 do
        local at = random(0, 5)
        local function buffer(k) return (at + k) % 6 + 1 end
        nodes[i] = { kind = random(1, 8), to = buffer(0), from = buffer(random(1, 2)), also = buffer(random(3, 5)),
          is_bad = random(1, 8) == 1 and 1 or 0 }
        ran[i] = ints(0)
      end
      local graph = dev:capture(function()
        for i, node in ipairs(nodes) do
          local to, from, also = buffers[node.to], buffers[node.from], buffers[node.also]
          local options = { grid = 1, block = 4, label = "node" .. i }
          if node.kind <= 2 then
            mod.mark:launch(options, to, from, node.is_bad, ran[i])
          elseif node.kind <= 4 then
            mod.mark_both:launch(options, to, from, also, node.is_bad, ran[i])
          elseif node.kind == 5 then
            mod.plain:launch(four, to, from, 1)
          elseif node.kind == 6 then
            mod.both:launch(four, to, from, also)
          elseif node.kind == 7 then
            to:copy(from)
          else
            to:fill(i)
          end
        end
      end)
      -- Of each buffer: is it bad, and the nodes that a reader would have to look at.
      local bad, behind, first, expected = {}, {}, nil, {}
      for i = 1, 6 do
        behind[i] = {}
      end
      for i, node in ipairs(nodes) do
        local reads = node.kind == 8 and {} or ("346"):find(node.kind) and { node.from, node.also } or { node.from }
        local is_behind, all, count = nil, {}, 0
        for _, from in ipairs(reads) do
          is_behind = is_behind or bad[from]
          for k in pairs(behind[from]) do
            count = count + (all[k] and 0 or 1)
            all[k] = true
          end
        end
        bad[node.to], behind[node.to] = is_behind, all
        if node.kind <= 4 then
          expected[i] = count <= 4 and (is_behind and 0 or 1) or nil -- of more than four, four are looked at
          most = math.max(most, count)
          first = first or (not is_behind and node.is_bad == 1 and i) or nil
          bad[node.to], behind[node.to] = is_behind or node.is_bad == 1, { [i] = true }
        end
      end
      for launch = 1, 2 do
        local ok, err = graph:launch():join()
        local text = ("seed %d, launch %d"):format(seed, launch)
        assert.equal(first == nil, ok, text)
        if first then
          support.is_error(err, "KernelFailed", ("'node%d'"):format(first))
        end
        for i = 1, 30 do
          if expected[i] then
            assert.equal(expected[i] * launch, ran[i]:read()[1], ("%s, node %d"):format(text, i))
          end
        end
        for i = 1, 6 do
          buffers[i]:fill(i)
        end
      end
      graph:close()
      for i = 1, 30 do
        ran[i]:close()
      end
    end
    assert.truthy(most >= 3, most)
  end)

  it("reports in the next life of the device, too", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local own <close> = support.open {}
    local kernels = kernels_of(own)
    local x = own:buffer("i32", 4, { durable = true }):fill(1)
    local y = own:buffer("i32", 4, { durable = true }):fill(0)
    local graph = own:capture(function()
      kernels.step:launch(four, y, x, 1, 5)
      kernels.limit:launch(four, y, 10)
    end)
    for _ = 1, 3 do
      x:fill(1)
      graph:launch():await()
      x:fill(20)
      local op = graph:launch()
      support.raises("KernelFailed", "is 21", op.await, op)
      y:fill(0)
      support.lose(own)
    end
  end)
end)
