-- Graphs that are changed: graph:bind and graph:update.

local gpu = require "gpulua"
local source = require "spec.graph_kernels"
local support = require "spec.support"
local first = support.first

describe("a graph", function()
  local dev, mod, add, put
  local n <const> = 64

  setup(function()
    dev = support.open()
    mod = dev:compile(source)
    add = mod.add
    put = mod:kernel("put", "in i32*, in i32*, out i32*, i32")
  end)
  teardown(support.close_all)

  local function buffer(...) return support.filled(dev, n, ...) end

  describe("that is bound", function()
    it("to another buffer by label uses that, in all places, and by the old label", function()
      local x, y, z, w = buffer(2, "x"), buffer(0, "y"), buffer(5), buffer(7)
      local graph <close> = dev:capture(function()
        add:launch(n, x, y, n, 1)
        add:launch(n, x, y, n, 10)
      end)
      graph:launch()
      assert.equal(22, first(y))
      assert.is_true((graph:bind { x = z }))
      graph:launch()
      assert.equal(22 + 55, first(y))
      graph:bind { x = w }
      graph:launch()
      assert.equal(22 + 55 + 77, first(y))
      assert.equal(2, first(x))
      support.raises("InvalidArgument", { "has no 'z'", "'x'", "'add#1.a'" }, graph.bind, graph, { z = x })
    end)

    it("of a label that is too long to be kept the beginning names the buffer", function()
      local long = ("layers.0.attention."):rep(4)
      local x, y, z = buffer(2, long .. "x"), buffer(0), buffer(5)
      assert.equal(long:sub(1, 44) .. "...", x.label)
      local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
      for _, name in ipairs { long .. "x", x.label } do
        assert.equal(1, (select(2, graph:bind { [name] = z })))
        graph:launch()
        assert.equal(1, (select(2, graph:bind { [name] = x })))
      end
      assert.equal(10, first(y))
      support.raises("InvalidArgument", "has no", graph.bind, graph, { [long:sub(1, 46)] = z })
      local whole = buffer(1, long:sub(1, 47)) -- is not the beginning of anything
      local other <close> = dev:capture(function() add:launch(n, whole, y, n, 1) end)
      support.raises("InvalidArgument", "has no", other.bind, other, { [long] = z })
      assert.equal(1, (select(2, other:bind { [long:sub(1, 47)] = z })))
      local function again(from) -- temporaries, too, also behind an update
        return function()
          local t = dev:buffer("i32", n, { label = "t." .. long })
          t:copy(from)
          y:copy(t)
        end
      end
      local third <close> = dev:capture(again(x))
      local function number()
        local label <const> = ("t." .. long):sub(1, 44) .. "..."
        for _, entry in ipairs(dev:memory_map()) do
          if entry.kind == "temporary" and entry.label == label then return entry.number end
        end
      end
      local before = number()
      for i = 1, 4 do
        assert.is_true((third:update(again(i % 2 == 0 and x or z))))
        assert.equal(before, number())
      end
      local into = buffer(0)
      assert.equal(2, (select(2, third:bind { ["t." .. long] = into })))
    end)

    it("says how many nodes have changed, and the first of them", function()
      local x, y, z = buffer(2, "x"), buffer(0, "y"), buffer(5)
      local graph <close> = dev:capture(function()
        y:fill(1)
        add:launch(n, x, y, n, 1)
        add:launch(n, x, y, n, 10)
      end)
      local patched, count, which = graph:bind { x = z }
      assert.are.same({ true, 2 }, { patched, count })
      assert.truthy(which:find("node 2, 'add' %(.*update_spec.lua:%d+%)"), which)
      assert.are.same({ true, 0, "" }, { graph:bind { x = z } })
      patched, count = graph:bind { ["add#1.a"] = 4, ["add#1.n"] = n - 1 } -- one node
      assert.are.same({ true, 1 }, { patched, count })
      assert.are.same({ true, 0, "" }, { graph:bind {} })
      for i = 1, 8 do -- whatever order the table has
        patched, count, which = graph:bind { ["add#2.a"] = i, ["fill#1.dst"] = y, ["add#1.a"] = i, ["add#1.n"] = n - i }
        assert.are.same({ true, 2 }, { patched, count })
        assert.truthy(which:find "node 2", which)
        which = select(3, graph:bind { ["add#2.a"] = 20 + i, ["add#1.a"] = 20 + i })
        assert.truthy(which:find "node 2", which)
      end
    end)

    it("keeps what launches before were given", function()
      local x, y, ticks = buffer(1, "x"), buffer(0, "y"), support.ticks(2e-3)
      local spin = dev:compile(support.spin_source).spin
      local graph <close> = dev:capture(function()
        add:launch(n, x, y, n, 1)
      end)
      local wanted = 0
      spin:launch(1, ticks, buffer(0), 0)
      for i = 1, 200 do
        graph:bind { ["add.a"] = i }
        graph:launch()
        wanted = wanted + i
      end
      assert.equal(wanted, first(y))
    end)

    it("takes numbers and buffers by kernel, occurrence and parameter", function()
      local x, y, z, w = buffer(1), buffer(0), buffer(3), buffer(0)
      local graph <close> = dev:capture(function()
        add:launch(n, x, y, n, 1)
        add:launch({ grid = 1, block = n, label = "second" }, x, y, n, 1)
        put:launch(n, x, y, z, n)
        y:fill(0)
        w:copy(x)
      end)
      graph:bind { ["add#1.a"] = 5, ["add#2.a"] = 6, ["put.3"] = z }
      graph:launch()
      assert.equal(1 * 3 + 11, first(z))
      x:fill(1)
      graph:bind { ["second.a"] = 0 } -- by its own label, too
      graph:bind { ["add#1.x"] = z } -- and not in the others
      z:fill(10)
      graph:launch()
      assert.equal(1 * 3 + 50, first(z))
      assert.equal(1, first(w))
      y:fill(4)
      graph:bind { ["fill.dst"] = x, ["copy.src"] = y }
      graph:launch()
      assert.equal(0, first(x))
      assert.equal(first(y), first(w))
    end)

    it("has thousands of nodes", function()
      local x, y = buffer(1), buffer(0)
      local graph <close> = dev:capture(function()
        for _ = 1, 1500 do
          add:launch(n, x, y, n, 1)
        end
      end)
      graph:bind { ["add#1500.a"] = 11, ["add#600.a"] = 101 }
      graph:launch()
      assert.equal(1500 + 10 + 100, first(y))
    end)

    it("by many names at once takes each as it takes it alone, or refuses it in the same words", function()
      local count <const> = 30
      local long = ("layers.0.attention."):rep(4)
      local xs, ys = {}, {}
      for i = 1, count do
        xs[i] = buffer(i, i % 3 == 0 and "x" .. i or i % 3 == 1 and "twice" .. i // 2 or long:sub(1, i))
        ys[i] = buffer(0, i % 5 == 0 and long .. i or "y#" .. i)
      end
      local function body()
        for i = 1, count do
          local launch = { grid = 1, block = n, label = i % 4 == 0 and "step" or i % 4 == 1 and "other#" or nil }
          if i % 7 == 0 then ys[i]:fill(i) end
          add:launch(launch, xs[i], ys[i], n, i)
        end
      end
      local alone <close> = dev:capture(body)
      local at_once <close> = dev:capture(body)
      local function outcome(graph)
        for i = 1, count do ys[i]:fill(0) end
        graph:launch()
        local sums = {}
        for i = 1, count do sums[i] = first(ys[i]) end
        return sums
      end
      for round = 1, 5 do
        math.randomseed(round)
        local binds = {}
        for i = 1, count do
          local by_kernel = ("add#%d."):format(i)
          if math.random() < 0.7 then binds[by_kernel .. "a"] = math.random(1000) end
          if math.random() < 0.5 then binds[by_kernel .. "x"] = xs[math.random(count)] end
        end
        for i = 1, count // 4 do
          if math.random() < 0.5 then binds[("step#%d.y"):format(i)] = ys[math.random(count)] end
        end
        if round == 1 then
          for i = 3, count, 3 do binds["x" .. i] = xs[count + 1 - i] end
          binds["y#1"], binds["fill#2.dst"] = ys[2], ys[3]
        end
        local names = {}
        for name in pairs(binds) do names[#names + 1] = name end
        assert.truthy(#names > 20, #names)
        table.sort(names, function(a, b) -- buffers first: one place goes before all of a buffer
          local of_a, of_b = not a:find "%.", not b:find "%."
          if of_a ~= of_b then return of_a end
          return a < b
        end)
        for _, name in ipairs(names) do alone:bind { [name] = binds[name] } end
        at_once:bind(binds)
        assert.are.same(outcome(alone), outcome(at_once))
        for _, name in ipairs { "z", "add.a", "step.a", "add#0.a", "add#31.a", "other#.a", "other##99.a", "add#1.q", "",
          "fill.value", long, long:sub(1, 46), "y#", "x30", "twice1", ".a", "#1.a", "add#1.", "add#01.a" } do
          local value = name:find "a$" and 1 or xs[1]
          local all = { [name] = value }
          for i = 1, count do all[("add#%d.n"):format(i)] = n end
          local ok, err = pcall(alone.bind, alone, { [name] = value })
          if ok then
            at_once:bind(all)
          else
            support.raises(err.code, err.message:match "^(.-); it has" or err.message, at_once.bind, at_once, all)
          end
        end
        assert.are.same(outcome(alone), outcome(at_once))
      end
    end)

    it("by many names takes a time that grows with them", function()
      local function fastest(count)
        local graph <close> = dev:capture(function()
          local x, y = buffer(1), buffer(0)
          for _ = 1, count do add:launch(n, x, y, n, 1) end
        end)
        local least = math.huge
        for round = 1, 3 do
          local binds = {}
          for i = 1, count do binds[("add#%d.a"):format(i)] = i + round end
          local begun = os.clock()
          assert.equal(count, (select(2, graph:bind(binds))))
          least = math.min(least, os.clock() - begun)
        end
        return least
      end
      local few, many = fastest(2000), fastest(16000)
      assert.truthy(many < 24 * few, ("%.4f s for 2,000 and %.4f s for 16,000"):format(few, many))
    end)

    it("keeps no buffer that it uses no more", function()
      local x, y = buffer(1, "x"), buffer(0, "y")
      local kept = buffer(7)
      local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
      graph:pool():record(kept)
      collectgarbage()
      dev:synchronize()
      local count, bytes = graph:pool():count(), dev:stats().bytes_live
      for i = 1, 50 do
        local other <close> = buffer(i)
        graph:bind { x = other }
        graph:launch()
      end
      assert.equal(1275, first(y))
      graph:bind { x = x }
      collectgarbage()
      dev:synchronize()
      assert.equal(count, graph:pool():count()) -- with what was recorded by hand
      assert.equal(bytes, dev:stats().bytes_live)
    end)

    it("goes by its names when nobody has the buffers any more that had them", function()
      local y = buffer(0, "y")
      local graph <close> = (function()
        local x <close> = buffer(1, "the first one of them")
        return dev:capture(function() add:launch(n, x, y, n, 1) end)
      end)()
      for i = 1, 50 do
        graph:bind { ["the first one of them"] = buffer(i, "number " .. i) }
        graph:launch():await()
        collectgarbage()
      end
      assert.equal(1275, first(y))
    end)

    it("again and again needs no more memory before the next launch", function()
      if support.keeps_freed_memory() then
        pending "a sanitizer keeps freed memory"
      end
      local x, y = buffer(1, "x"), buffer(0, "y")
      local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
      graph:bind { ["add.a"] = 2 }
      local before = support.resident_bytes()
      for i = 1, 50000 do
        graph:bind { ["add.a"] = i }
      end
      dev:synchronize()
      assert.truthy(support.resident_bytes() - before < 8 << 20)
      graph:launch()
      assert.equal(50000, first(y))
    end)

    it("moves slices along", function()
      local big, other, y = dev:buffer("i32", 2 * n, { label = "big" }):fill(1), dev:buffer("i32", 3 * n), buffer(0)
      other:write((function()
        local values = {}
        for i = 1, 3 * n do values[i] = i end
        return values
      end)())
      local graph <close> = dev:capture(function()
        add:launch(n, big:slice(n + 1, 2 * n), y, n, 1)
      end)
      graph:bind { big = other:slice(1, 2 * n) }
      graph:launch()
      assert.equal(n + 1, first(y))
      graph:bind { big = other:slice(n + 1, 3 * n) } -- from where it is now
      graph:launch()
      assert.equal(n + 1 + 2 * n + 1, first(y))
    end)

    it("takes buffers of the type that the buffer has, however the nodes view it", function()
      local x = dev:buffer("f32", n, { label = "x" }):fill(1)
      local mixed, y = dev:buffer("u32", n, { label = "mixed" }):fill(1), buffer(0)
      local keep = dev:compile([[
        extern "C" __global__ void keep(const unsigned *x, unsigned *y) { y[0] = x[0]; }
      ]]).keep
      local out = dev:buffer("u32", 1)
      local graph <close> = dev:capture(function()
        keep:launch(1, x:view("u32"), out)
        keep:launch(1, mixed, out)
        add:launch(n, mixed:view("i32"), y, n, 1)
      end)
      graph:bind { x = dev:buffer("f32", n):fill(2), mixed = dev:buffer("u32", n):fill(7) }
      graph:launch()
      assert.are.same({ 7, 7 }, { first(out), first(y) })
      support.raises("InvalidArgument", { "'x'", "u32", "f32" }, graph.bind, graph, { x = dev:buffer("u32", n) })
      support.raises("InvalidArgument", { "'mixed'", "i32", "u32" }, graph.bind, graph, { mixed = buffer(0) })
      graph:bind { ["keep#2.x"] = dev:buffer("u32", n):fill(9) } -- one place: as the kernel sees it
      graph:launch()
      assert.equal(9, first(out))
    end)

    it("to a scalar reads that", function()
      local pos, next_pos, y = dev:scalar("i32", 3, { label = "pos" }), dev:scalar("i32", 4), buffer(0)
      local k = dev:compile [[extern "C" __global__ void at(const int *pos, int *y) { y[0] += *pos; }]].at
      local graph <close> = dev:capture(function() k:launch(1, pos, y) end)
      graph:launch()
      graph:bind { pos = next_pos }
      graph:launch()
      assert.equal(7, first(y))
    end)

    it("so that other nodes depend on each other is made anew", function()
      local x, y, u = buffer(1, "x"), buffer(0, "y"), buffer(0, "u")
      local graph <close> = dev:capture(function()
        add:launch(n, x, y, n, 1)
        add:launch(n, x, u, n, 2)
      end)
      assert.are.same({ 2, 0 }, { graph:nodes() })
      local before = dev:stats().fallbacks
      assert.is_true((graph:bind { u = u })) -- that is patched
      assert.equal(before, dev:stats().fallbacks)
      local patched, why = graph:bind { u = y }
      assert.is_false(patched)
      assert.equal(before + 1, dev:stats().fallbacks)
      assert.truthy(why:find("node 2, 'add'.* has now to wait for node 1"), why)
      assert.are.same({ 2, 1 }, { graph:nodes() })
      graph:launch()
      assert.equal(3, first(y))
      patched, why = graph:bind { u = u } -- they are two names still
      assert.is_false(patched)
      assert.truthy(why:find "needs no longer wait for")
      graph:launch()
      assert.are.same({ 4, 2 }, { first(y), first(u) })
      assert.equal(2, graph:replays())
    end)

    it("to what does not fit stays what it was", function()
      local x, y = buffer(1, "x"), buffer(0, "y")
      local same1, same2 = buffer(0, "same"), buffer(0, "same")
      local graph <close> = dev:capture({ label = "step" }, function()
        add:launch(n, x, y, n, 1)
        add:launch(n, same1, same2, n, 1)
      end)
      local function refuses(binds, parts)
        support.raises("InvalidArgument", parts, graph.bind, graph, binds)
      end
      refuses({ x = dev:buffer("i32", n - 1) }, { "'x'", "252 bytes", "256" })
      refuses({ x = dev:buffer("f32", n) }, { "'x'", "f32", "i32" })
      refuses({ ["add#1.x"] = dev:buffer("f32", n) }, { "'add#1.x'", "f32", "i32" })
      refuses({ x = 5 }, { "'x'", "a buffer expected, got number" })
      refuses({ x = "x" }, { "'x'", "a buffer expected, got string" })
      refuses({ x = dev:host("i32", n) }, { "host buffer is not device memory" })
      refuses({ ["add#1.a"] = 1.5 }, { "'add#1.a'", "i32 expected" })
      refuses({ ["add#1.a"] = 1 << 40 }, { "'add#1.a'", "i32 expected" })
      refuses({ ["add#1.a"] = 1e300 }, { "'add#1.a'", "i32 expected" })
      refuses({ ["add#1.a"] = x }, { "'add#1.a'", "i32 expected" })
      refuses({ [1] = x }, { "a buffer's label", "got number" })
      refuses({ ["add.a"] = 2 }, { "'add.a' is ambiguous in the graph step", "'add#1.a', 'add#2.a'" })
      refuses({ same = x }, { "'same' is ambiguous", "allocation" })
      local again <close> = dev:capture(function()
        for _ = 1, 3 do
          add:launch(n, same1, same2, n, 1)
        end
      end)
      local ok, err = pcall(again.bind, again, { same = x })
      assert.is_false(ok)
      assert.equal(2, select(2, err.message:gsub("allocation", ""))) -- each once
      refuses({ ["add#3.a"] = 2 }, { "has no 'add#3.a'" })
      refuses({ ["add#0.a"] = 2 }, { "has no 'add#0.a'" })
      refuses({ ["add#1.q"] = 2 }, { "has no 'add#1.q'" })
      refuses({ ["add#x.a"] = 2 }, { "has no 'add#x.a'" })
      refuses({ [""] = x }, { "has no ''" })
      support.raises("InvalidArgument", { "argument 1 of bind: a table" }, graph.bind, graph, x)
      local closed, freed = buffer(0), buffer(0)
      closed:close()
      freed:free()
      support.raises("Closed", { "closed buffer" }, graph.bind, graph, { x = closed })
      support.raises("UseAfterFree", {}, graph.bind, graph, { x = freed })
      local scalar = dev:scalar("i32", 1)
      scalar:close()
      support.raises("Closed", { "closed scalar" }, graph.bind, graph, { x = scalar })
      -- All or nothing, whatever the order.
      refuses({ ["add#1.a"] = 50, y = dev:buffer("i32", 1) }, { "'y'" })
      graph:launch()
      assert.equal(1, first(y))
      local other = gpu.device(dev.kind, { isolate = dev.isolation, label = "other" })
      local foreign = other:buffer("i32", n)
      support.raises("InvalidArgument", { "bind of 'x'", "'other'" }, graph.bind, graph, { x = foreign })
      other:close()
      graph:close()
      support.raises("Closed", { "closed graph" }, graph.bind, graph, { x = y })
    end)

    it("to what a call of its own would refuse is refused, too, and stays what it was", function()
      local x, host, other = dev:buffer("f32", n, { label = "x" }), dev:host("f32", n), dev:host("f32", n)
      local function refuses(f, binds, parts)
        local graph <close> = dev:capture(f)
        support.raises("InvalidArgument", parts, graph.bind, graph, binds)
        graph:launch():await()
      end
      refuses(function() x:fill(2) end, { x = host }, "fill: a host buffer")
      refuses(function() x:fill(2) end, { ["fill.dst"] = host }, "fill: a host buffer")
      refuses(function() x:copy(other) end, { x = host }, "between two host buffers")
      refuses(function() host:copy(x) end, { x = other }, "between two host buffers")
      local blas = dev:blas()
      local function matrix(label) return dev:buffer("f32", { 8, 8 }, { label = label }):fill(1) end
      local a, b, c, d = matrix "A", matrix "B", matrix "C", matrix "D"
      local function product() blas:gemm { a = a, b = b, c = c } end
      product()
      refuses(product, { ["gemm#1.a"] = false }, { "'gemm'", "no NULL in the place of 'a'" })
      refuses(product, { C = a }, { "'gemm'", "'a' and 'c' share memory" })
      local graph <close> = dev:capture(product)
      graph:bind { A = d, B = d } -- which nobody writes
      graph:launch()
      assert.equal(8, c:read(1, 1)[1])
    end)

    it("by a label with a # of its own is found by its number behind the last", function()
      local x, y = buffer(1), buffer(0)
      local graph <close> = dev:capture(function()
        for _ = 1, 2 do
          add:launch({ grid = 1, block = n, label = "layer#1" }, x, y, n, 1)
        end
      end)
      graph:bind { ["layer#1#2.a"] = 9 }
      graph:launch()
      assert.equal(10, first(y))
    end)

    it("to a NULL pointer passes that", function()
      local k = dev:compile [[
        extern "C" __global__ void maybe(const int *x, int *y) { y[0] += x != 0 ? *x : 100; }
      ]].maybe
      local x, y = buffer(1, "x"), buffer(0)
      local graph <close> = dev:capture(function() k:launch(1, x, y) end)
      graph:bind { ["maybe.x"] = false }
      graph:launch()
      graph:bind { ["maybe.x"] = x }
      graph:launch()
      assert.equal(101, first(y))
    end)

    it("with a sealed pool takes what the pool has", function()
      local x, y, z, w = buffer(2, "x"), buffer(0, "y"), buffer(5), buffer(6)
      local pool = dev:pool():record(z)
      local graph <close> = dev:capture({ pool = pool }, function() add:launch(n, x, y, n, 1) end)
      pool:seal()
      graph:bind { x = z }
      graph:launch()
      assert.equal(5, first(y))
      support.raises("PoolSealed", {}, graph.bind, graph, { x = w })
      graph:launch()
      assert.equal(10, first(y))
    end)

    it("inside a capture is an error", function()
      local x, y = buffer(2, "x"), buffer(0, "y")
      local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
      local guard <close> = dev:capture {}
      support.raises("CaptureActive", { "a bind cannot be captured" }, graph.bind, graph, { x = y })
      support.raises("CaptureActive", { "an update of a graph" }, graph.update, graph, function() end)
      guard:close()
    end)
  end)

  describe("that is updated", function()
    it("with the same work and other arguments is patched", function()
      local x, y, z, u = buffer(2), buffer(0), buffer(5), buffer(0)
      local graph <close> = dev:capture(function()
        add:launch(n, x, y, n, 1)
        y:write({ 0 }, n)
        u:fill(0x01020304)
      end)
      local patched, count = graph:update(function()
        add:launch(n, z, y, n, 3)
        y:write({ 70 }, n)
        u:fill(0x01020305)
      end)
      assert.are.same({ true, 3 }, { patched, count })
      graph:launch()
      assert.equal(15, first(y))
      assert.equal(70, y:read(n, n)[1])
      assert.equal(0x01020305, first(u))
    end)

    local cases = {
      { "with another kernel is made anew, and says why",
        "node 1, was 'add'.*, now 'put'.*, is another kernel",
        function(x, y) put:launch(n, x, x, y, n) y:fill(1) end },
      { "with another kind of work is made anew, and says why",
        "node 2, was 'fill'.*, now 'add'.*, is another kind of work",
        function(x, y) add:launch(n, x, y, n, 1) add:launch(n, x, y, n, 1) end },
      { "with one more is made anew, and says why", "3 nodes, were 2: node 3, 'fill'.*, is new",
        function(x, y) add:launch(n, x, y, n, 1) y:fill(1) x:fill(1) end },
      { "with one less is made anew, and says why", "1 nodes, were 2: node 2, 'fill'.*, is gone",
        function(x, y) add:launch(n, x, y, n, 1) end },
      { "with other edges is made anew, and says why",
        "node 2, 'fill'.* needs no longer wait for node 1",
        function(x, y, z) add:launch(n, x, y, n, 1) z:fill(1) end },
      { "with a value that repeats otherwise is made anew, and says why",
        "node 2, .* fills with a value that repeats otherwise",
        function(x, y) add:launch(n, x, y, n, 1) y:fill(0) end },
    }
    for _, case in ipairs(cases) do
      it(case[1], function()
        local x, y, z = buffer(2), buffer(0), buffer(0)
        local graph <close> = dev:capture({ label = "step" }, function()
          add:launch(n, x, y, n, 1)
          y:fill(1)
        end)
        local live = dev:stats().graphs_live
        local err = support.raises("TopologyChanged", { "the graph step has changed", "node" }, graph.update, graph,
          { rebuild = false }, function() case[3](x, y, z) end)
        assert.truthy(tostring(err):find(case[2]), tostring(err))
        graph:launch()
        assert.equal(1, first(y)) -- it stayed as it was
        y:fill(0)
        local patched, why = graph:update(function() case[3](x, y, z) end)
        assert.is_false(patched)
        assert.truthy(why:find(case[2]), why)
        local eager = { buffer(2), buffer(0), buffer(0) }
        graph:launch()
        case[3](table.unpack(eager))
        for i, b in ipairs { x, y, z } do
          assert.are.same(eager[i]:read(), b:read())
        end
        assert.equal(live, dev:stats().graphs_live)
      end)
    end

    it("from one copy to another says which, where both are called the same", function()
      local x, y, host = buffer(1), buffer(2), dev:host("i32", n)
      local graph <close> = dev:capture(function() x:copy(y) end)
      local function why(f)
        local patched, reason = graph:update(f)
        assert.is_false(patched)
        return reason
      end
      assert.truthy(why(function() x:copy(host) end):find "was 'copy'.* now 'copy'.*, a copy from the host$")
      assert.truthy(why(function() host:copy(x) end):find "was 'copy'.* now 'copy'.*, a copy to the host$")
      assert.truthy(why(function() x:copy(y) end):find "was 'copy'.* now 'copy'.*, a copy within the device$")
    end)

    it("copies from and to other kinds of memory", function()
      local module = dev:compile [[
        __device__ int table[64];
        extern "C" __global__ void fill_table(int value) { table[threadIdx.x] = value; }
      ]]
      module.fill_table:launch({ grid = 1, block = n }, 3)
      local table = module:global "table"
      local pool <const> = dev:memory { from = "driver" }
      local direct <const> = dev:memory { from = "direct" }
      local x, y = buffer(1), buffer(0)
      local w, v = pool:buffer("i32", n):fill(5), direct:buffer("i32", n):fill(6)
      local host = dev:host("i32", n)
      local graph <close> = dev:capture(function() y:copy(x) end)
      graph:launch()
      assert.equal(1, first(y))
      for value, from in pairs { [3] = table, [5] = w, [6] = v, [1] = x } do
        for _ = 1, 2 do -- what it is already is no change
          graph:update(function() y:copy(from) end)
          graph:launch()
          assert.equal(value, first(y))
        end
      end
      local into <close> = dev:capture(function() x:copy(y) end)
      for _, to in ipairs { table, w, v, x, w } do
        into:update(function() to:copy(y) end)
        to:fill(0)
        into:launch()
        assert.equal(first(y), first(to))
      end
      local out <close> = dev:capture(function() host:copy(x) end)
      local write <close> = dev:capture(function() x:write({ 9 }, 1) end)
      for _, memory in ipairs { table, w, v, x } do
        memory:fill(4)
        out:update(function() host:copy(memory) end)
        out:launch():await()
        assert.equal(4, host:read()[1])
        write:update(function() memory:write({ 9 }, 1) end)
        write:launch()
        assert.equal(9, first(memory))
      end
    end)

    it("uses buffers again that were made at the same place", function()
      local x, y = buffer(2), buffer(0)
      local function body(value, more)
        return function()
          local t = dev:buffer("i32", n, { label = "t" }):fill(value)
          local u = more and dev:buffer("i32", n, { label = "u" }):fill(1)
          add:launch(n, x, t, n, 1)
          add:launch(n, t, y, n, 1)
          if u then
            add:launch(n, u, y, n, 1)
          end
        end
      end
      local graph <close> = dev:capture(body(1))
      collectgarbage()
      dev:synchronize()
      local count, bytes = graph:pool():count(), dev:stats().bytes_live
      for i = 2, 20 do
        local patched, nodes = graph:update(body(i))
        assert.are.same({ true, 1 }, { patched, nodes })
      end
      collectgarbage()
      assert.are.same({ count, bytes }, { graph:pool():count(), dev:stats().bytes_live })
      graph:launch()
      assert.equal(22, first(y))
      assert.is_false((graph:update(body(1, true))))
      assert.equal(count, graph:pool():count()) -- the memory for one has gone, that for both has come
      graph:launch()
      assert.equal(22 + 3 + 1, first(y))
    end)

    it("gives no buffer of a graph that it launches, nor one of the script's to such a graph", function()
      local t, u
      local inner <close> = dev:capture(function() t = dev:buffer("i32", 4) t:fill(5) end)
      local outer <close> = dev:capture(function() inner:launch() end)
      outer:update(function() u = dev:buffer("i32", 4) u:fill(7) end)
      inner:launch()
      outer:launch()
      assert.are.same({ 5, 7 }, { first(t), first(u) })
      -- The other way round: what stands for the inner graph's temporary is not what the script has made.
      local x = dev:buffer("i32", 4):fill(0)
      local passes <close> = dev:capture(function()
        local own = dev:buffer("i32", 4)
        own:fill(6)
        x:copy(own)
      end)
      outer:update(function() passes:launch() end)
      outer:launch()
      assert.are.same({ 7, 6 }, { first(u), first(x) })
      -- Nor is what a conditional node of the inner graph uses.
      local one, y = dev:scalar("i32", 1), dev:buffer("i32", 4):fill(0)
      local decides <close> = dev:capture(function()
        local own = dev:buffer("i32", 4):fill(5)
        gpu.graph.if_(one, function() x:copy(own) end)
      end)
      local is_first = true
      local function f()
        if is_first then decides:launch() end
        local b = dev:buffer("i32", 4):fill(200)
        decides:launch()
        y:copy(b)
      end
      local graph <close> = dev:capture(f)
      is_first = false
      graph:update(f)
      graph:launch()
      assert.are.same({ 5, 200 }, { first(x), first(y) })
      -- What was made for a launch is used again for that.
      local function g(a)
        passes:launch()
        local b = dev:buffer("i32", 4):fill(a)
        y:copy(b)
      end
      local again <close> = dev:capture(function() g(1) end)
      assert.is_true(again:update(function() g(2) end))
      again:launch()
      assert.are.same({ 6, 2 }, { first(x), first(y) })
    end)

    it("takes new labels, too", function()
      local x, y = buffer(2), buffer(0)
      local graph <close> = dev:capture(function()
        add:launch({ grid = 1, block = n, label = "old" }, x, y, n, 1)
      end)
      graph:update(function() add:launch({ grid = 1, block = n, label = "new" }, x, y, n, 1) end)
      graph:bind { ["new.a"] = 4 }
      graph:launch()
      assert.equal(8, first(y))
    end)

    it("uses buffers again that are made in conditional nodes", function()
      local go, y = dev:buffer("i32", 1):fill(1), buffer(0)
      local x = buffer(3)
      local function body(a)
        return function()
          gpu.graph.if_(go, function()
            local t = dev:buffer("i32", n):fill(1)
            add:launch(n, x, t, n, a)
            add:launch(n, t, y, n, 1)
          end)
        end
      end
      local graph <close> = dev:capture(body(1))
      local patched, nodes = graph:update({ rebuild = false }, body(1)) -- the same
      assert.are.same({ true, 0 }, { patched, nodes })
      local count = graph:pool():count()
      for i = 2, 10 do
        assert.is_false((graph:update(body(i))))
      end
      assert.equal(count, graph:pool():count())
      graph:launch()
      assert.equal(31, first(y))
    end)

    it("by what fails or records nothing stays as it was", function()
      local x, y = buffer(2), buffer(0)
      local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
      assert.has_error(function()
        graph:update(function()
          add:launch(n, x, y, n, 5)
          error("oh", 0)
        end)
      end, "oh")
      support.raises("EmptyCapture", { "recorded nothing" }, graph.update, graph, function() end)
      support.raises("InvalidArgument", { "a function expected" }, graph.update, graph)
      support.raises("InvalidArgument", { "a function expected" }, graph.update, graph, 5, print)
      support.raises("InvalidArgument", { "rebuild" }, graph.update, graph, { rebuild = 1 }, function() end)
      support.raises("InvalidArgument", { "rebuild" }, graph.update, graph, { label = true }, function() end)
      graph:launch()
      assert.equal(2, first(y))
    end)

    it("by two at once is told that the other was first", function()
      local x, y = buffer(1), buffer(0)
      local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
      local has_begun, is_changed = false, false
      local slow = gpu.spawn(function()
        graph:update(function()
          has_begun = true
          repeat gpu.sleep(0) until is_changed
          add:launch(n, x, y, n, 3)
        end)
      end)
      repeat gpu.sleep(0) until has_begun
      graph:update(function() add:launch(n, x, y, n, 2) end)
      is_changed = true
      support.raises("CaptureInvalidated", { "changed meanwhile" }, slow.await, slow)
      graph:launch()
      assert.equal(2, first(y))
    end)

    it("while its launches are in flight is right for each of them", function()
      local x, y = buffer(1), buffer(0)
      local graph <close> = dev:capture(function() add:launch(n, x, y, n, 1) end)
      local wanted = 1
      graph:launch()
      for i = 2, 60 do
        graph:update(function()
          add:launch(n, x, y, n, i)
          if i % 7 == 0 then
            add:launch(n, x, y, n, 1000)
          end
        end)
        wanted = wanted + i + (i % 7 == 0 and 1000 or 0)
        graph:launch()
      end
      assert.equal(wanted, first(y))
    end)

    it("with conditional nodes is bound beside them, and made anew with them", function()
      local x, y, left = buffer(1, "x"), buffer(0, "y"), dev:scalar("i32", 3, { label = "left" })
      local z, sum = buffer(2, "z"), buffer(0, "sum")
      local down = dev:compile [[extern "C" __global__ void down(int *left) { left[0] -= 1; }]].down
      local function body(a)
        return function()
          add:launch(n, z, sum, n, 10)
          gpu.graph.while_(left, function()
            add:launch(n, x, y, n, a)
            down:launch(1, left)
          end)
          add:launch(n, z, sum, n, 100)
        end
      end
      local graph <close> = dev:capture(body(1))
      local function launched(first_y, first_sum)
        left:set(3)
        graph:launch()
        assert.are.same({ first_y, first_sum }, { first(y), first(sum) })
      end
      launched(3, 220)
      assert.is_true((graph:bind { ["add#2.a"] = 200 })) -- behind the loop on the wire
      launched(6, 220 + 420)
      assert.is_true((graph:bind { z = buffer(3) }))
      launched(9, 640 + 630)
      local other = dev:scalar("i32", 1)
      support.raises("Unsupported", { "'left'", "conditional node" }, graph.bind, graph, { left = other })
      local patched, why = graph:update(body(5))
      assert.is_false(patched)
      assert.truthy(why:find("node 2, .*is another conditional node"), why)
      launched(9 + 15, 1270 + 220)
    end)

    it("keeps the edges of nodes that wait for many", function()
      local count <const> = 450 -- more edges than fit one record
      local all, sum = dev:buffer("i32", count):fill(0), dev:buffer("i32", count):fill(0)
      local function body(value)
        return function()
          for i = 1, count do
            all:slice(i, i):fill(value)
          end
          sum:copy(all)
        end
      end
      local graph <close> = dev:capture(body(0x01020304))
      local patched, nodes = graph:update(body(0x01020305))
      assert.are.same({ true, count }, { patched, nodes })
      graph:launch()
      assert.equal(0x01020305, sum:read(count, count)[1])
      assert.equal(0x01020305, sum:read(1, 1)[1])
    end)
  end)
end)
