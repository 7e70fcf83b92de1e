-- The order of check mode: what a seed decides, that it finds lost fences, and what differs from run to run.

local gpu = require "gpulua"
local support = require "spec.support"
local pipelines = require "spec.pipelines"
local seeds = require "gpulua.seeds"

local is_cuda = support.is_gpu()

local source = [[
  extern "C" __global__ void put(int *x, int n, int value) { for (int i = 0; i < n; i++) x[i] = value; }
  extern "C" __global__ void take(const int *x, int *y, int n) { for (int i = 0; i < n; i++) y[i] = x[i]; }
]]

local n = 8

describe("check mode", function()
  local function checked(opts)
    opts.check = true
    return gpu.device("cpu", opts)
  end

  if is_cuda then
    it("decides no order on CUDA, and says so", function()
      support.raises("Unsupported", "order of work", gpu.device, os.getenv "GPULUA_DEVICE",
        { check = true, order = "0" })
    end)
    return
  end

  --- A write on one stream and a read of it on another, whose fence is kept or lost. What was read, and the order.
  local function two_streams(opts)
    local dev <close> = checked(opts)
    local mod = dev:compile(source)
    local a, b = dev:stream {}, dev:stream {}
    local x = dev:buffer("i32", n, { label = "x" }):fill(1)
    local y = dev:buffer("i32", n, { label = "y" }):fill(2)
    dev:synchronize()
    mod.put:launch({ grid = 1, block = 1, stream = a }, x, n, 42)
    mod.take:launch({ grid = 1, block = 1, stream = b }, x, y, n)
    local read = y:read()[1]
    return read, dev:order()
  end

  local function names(order)
    local list = {}
    for i, op in ipairs(order) do
      list[i] = op.label .. op.stream .. "." .. op.seq
    end
    return table.concat(list, " ")
  end

  describe("options", function()
    it("are refused where they mean nothing", function()
      support.raises("InvalidArgument", "check of device", gpu.device, "cpu", { check = 7 })
      support.raises("InvalidArgument", "seed of device", gpu.device, "cpu", { check = false, seed = 7 })
      support.raises("InvalidArgument", "order of device", gpu.device, "cpu", { check = false, order = "0" })
      support.raises("InvalidArgument", "seed of device", gpu.device, "cpu", { check = true, seed = -1 })
      support.raises("InvalidArgument", "an order is numbers", gpu.device, "cpu", { check = true, order = "0.x" })
    end)
  end)

  describe("work", function()
    it("is done when it is asked for, and not before", function()
      local dev <close> = checked { seed = 1 }
      local mod = dev:compile(source)
      local x = dev:buffer("i32", n):fill(1)
      local op = mod.put:launch(1, x, n, 2)
      gpu.sleep(0.02)
      assert.equal(0, #dev:order())
      op:await()
      assert.are.same({ "fill", "put" }, { dev:order()[1].label, dev:order()[2].label })
      assert.equal(2, x:read()[1])
    end)

    it("is over at some time for who only looks", function()
      local dev <close> = checked { seed = 5 }
      local x = dev:buffer("i32", n):fill(1)
      local op = dev:compile(source).put:launch(1, x, n, 2)
      local looks = 0
      while not op:done() do
        looks = looks + 1
      end
      assert.truthy(looks < 1000)
      x:fill(3)
      while not x:done() do
        looks = looks + 1
      end
      assert.equal(3, x:read()[1])
    end)

    it("of which there is much is done without being asked for, and in order", function()
      local dev <close> = checked { seed = 2 }
      local add = dev:compile [[extern "C" __global__ void add(int *x, int k) { x[0] = x[0] * 3 + k; }]].add
      local x = dev:buffer("i32", 1):fill(0)
      local want = 0
      for i = 1, 6000 do
        add:launch({ grid = 1, block = 1 }, x, i)
        want = (want * 3 + i) & 0xffffffff
      end
      for _ = 1, 6000 do
        dev:current():mark()
      end
      assert.equal(want, x:read()[1] & 0xffffffff)
    end)

    it("that fails, fails what needs it", function()
      local dev <close> = checked { seed = 3 }
      local mod = dev:compile [[
        #include <assert.h>
        extern "C" __global__ void bad(int *x) { assert(x[0] == 5); }
        extern "C" __global__ void take(const int *x, int *y) { y[0] = x[0]; }]]
      local x, y = dev:buffer("i32", 1):fill(1), dev:buffer("i32", 1):fill(1)
      local first = mod.bad:launch(1, x)
      local second = mod.take:launch(1, x, y)
      support.is_error(select(2, second:join()), "DependencyFailed")
      support.is_error(select(2, first:join()), "KernelFailed")
    end)
  end)

  describe("a seed", function()
    it("decides the order, the same in every run", function()
      local different = {}
      for seed = 1, 20 do
        local pipeline = pipelines.make(seed, 10)
        local first, order = pipelines.run(pipeline, { seed = seed })
        local second, again = pipelines.run(pipeline, { seed = seed })
        assert.equal(first, second)
        assert.equal(names(order), names(again))
        local _, other = pipelines.run(pipeline, { seed = seed + 100 })
        different[#different + 1] = names(other) ~= names(order) or nil
      end
      assert.truthy(#different > 10)
    end)

    it("decides the same on both transports", function()
      for seed = 1, 10 do
        local pipeline = pipelines.make(seed, 10)
        local first, order = pipelines.run(pipeline, { seed = seed, isolate = "none" })
        local second, again = pipelines.run(pipeline, { seed = seed, isolate = "process" })
        assert.equal(first, second)
        assert.equal(names(order), names(again))
      end
    end)

    it("decides which of the tasks that are ready runs", function()
      local function order_of(seed)
        local _, text = support.script([[
          local gpu = require "gpulua"
          local list, tasks = {}, {}
          gpu.device("cpu")
          for i = 1, 6 do
            tasks[i] = gpu.spawn(function() list[#list + 1] = i end)
          end
          gpu.all(tasks)
          print(table.concat(list, " "))]], "GPULUA_CHECK=" .. seed)
        assert.equal(0, text)
        return _
      end
      local seen, count = {}, 0
      for seed = 1, 5 do
        local order = order_of(seed)
        assert.equal(order, order_of(seed))
        count = count + (seen[order] and 0 or 1)
        seen[order] = true
      end
      assert.truthy(count > 2)
    end)
  end)

  describe("a lost fence", function()
    local function wrong_results(unfenced)
      local wrong = 0
      for seed = 1, 60 do
        wrong = wrong + (two_streams { seed = seed, unfenced = unfenced } ~= 42 and 1 or 0)
      end
      return wrong
    end

    it("twin: with it, no order of 60 gives another result", function()
      assert.equal(0, wrong_results(nil))
    end)

    it("is found", function()
      assert.truthy(wrong_results(true) > 20)
    end)

    it("is found in random pipelines, and there is none that is not needed", function()
      local counts = { caught = 0, missed = 0, masked = 0, unneeded = 0 }
      for number = 1, 4 do
        local pipeline = pipelines.make(number, 6)
        local expected, _, waits = pipelines.run(pipeline, { seed = 0 })
        for fence = 1, waits do
          local kind, seed = pipelines.mutate(pipeline, fence, expected, 100)
          counts[kind] = counts[kind] + 1
          assert.truthy(kind ~= "unneeded" or not seed)
        end
      end
      assert.equal(0, counts.missed)
      assert.truthy(counts.caught > 10)
      assert.equal(0, counts.unneeded)
    end)
  end)

  describe("all orders", function()
    it("of two operations in conflict are two, of others one", function()
      local results = {}
      local explored = seeds.explore(function(order)
        local read, done = two_streams { unfenced = true, order = order == "" and "0" or order }
        results[read] = true
        return done
      end)
      assert.is_true(explored.is_complete)
      assert.are.same({ [1] = true, [2] = true, [42] = true }, results)
      explored = seeds.explore(function(order)
        local read, done = two_streams { order = order == "" and "0" or order }
        assert.equal(42, read)
        return done
      end)
      assert.equal(1, explored.orders)
    end)

    it("of eight operations that share nothing are one", function()
      local explored = seeds.explore(function(order)
        local dev <close> = checked { order = order == "" and "0" or order }
        local buffers = {}
        for i = 1, 8 do -- of 40,320 orders, more than are tried
          buffers[i] = dev:buffer("i32", n)
          dev:stream({}):use(buffers[i].fill, buffers[i], i)
        end
        dev:synchronize()
        return dev:order()
      end)
      assert.equal(1, explored.orders)
      assert.is_true(explored.is_complete)
    end)
  end)

  describe("what is captured is the same for each seed", function()
    for seed = 1, 8 do
      it(("and each time: %d"):format(seed), function()
        local dev <close> = checked { seed = seed }
        local x, y, z = dev:buffer("i32", 4):fill(0), dev:buffer("i32", 4):fill(0), dev:buffer("i32", 4):fill(3)
        local source_of_y = dev:buffer("i32", 4):fill(7)
        local function work()
          gpu.all { gpu.spawn(function() x:fill(1) end), gpu.spawn(function() y:copy(source_of_y) end),
            gpu.spawn(function() gpu.map("v + 1", { v = z, out = z }) end) }
        end
        gpu.map("v + 1", { v = z, out = z })
        local fast = dev:graphed(work)
        for _ = 1, 4 do
          fast()
        end
        assert.are.same({ 1, 7, 8 }, { x:read()[1], y:read()[1], z:read()[1] })
        local graph = dev:capture(work)
        for _ = 1, 4 do
          assert.is_true(graph:update({ rebuild = false }, work))
        end
        local mod = dev:compile(source)
        local by_name = dev:capture(function()
          for i, buffer in ipairs { x, y, z } do
            gpu.spawn(function() mod.put:launch({ grid = 1, block = 1 }, buffer, 4, i) end)
          end
        end)
        by_name:bind { ["put#2.value"] = 20 }
        by_name:launch():await()
        assert.are.same({ 1, 20, 3 }, { x:read()[1], y:read()[1], z:read()[1] })
      end)
    end
  end)

  it("lets a function that had its time clean up first, and knows of it, for each seed", function()
    for seed = 1, 8 do
      local dev <close> = checked { seed = seed }
      local x, has_begun, is_clean = dev:buffer("i32", 4), false, false
      for _ = 1, 20 do -- where the machine stood still its time was over before it began
        support.raises("Timeout", "", gpu.timeout, 0.001, function()
          local _ <close> = setmetatable({}, { __close = function() x:fill(3) is_clean = true end })
          has_begun = true
          x:fill(1)
          gpu.sleep(10)
        end)
        if has_begun then
          break
        end
      end
      assert.is_true(is_clean)
      x:fill(2)
      assert.equal(2, x:read()[1])
    end
  end)

  describe("tasks", function()
    local dev, mod
    setup(function()
      dev = checked { seed = 1 }
      mod = dev:compile(source)
    end)
    teardown(function()
      dev:close()
    end)

    local function put(x, value)
      return mod.put:launch({ grid = 1, block = 1 }, x, n, value)
    end

    --- Runs f(x) as a task; the first error of the tasks that it spawned.
    local function outcome(f)
      local x = dev:buffer("i32", n, { label = "x" }):fill(0)
      local result = table.pack(gpu.spawn(f, x):join())
      dev:synchronize()
      return result[1], result[2]
    end

    it("that only time orders are a race, with both launches and the buffer", function()
      local ok, err = outcome(function(x)
        gpu.spawn(put, x, 1)
        gpu.spawn(function() put(x, 2) end)
      end)
      assert.is_false(ok)
      support.is_error(err, "RaceFound", { "'put' (", "seeds_spec.lua:", "writes buffer 'x'", "bytes 0 to 31" })
      assert.equal("put", err.op.label)
      local _, count = err.message:gsub("seeds_spec%.lua:%d+", "")
      assert.equal(2, count)
    end)

    it("a reader and a writer are one as well, two readers are none", function()
      local ok, err = outcome(function(x)
        gpu.spawn(function() put(x, 1) end)
        gpu.spawn(function() x:read() end)
      end)
      assert.is_false(ok)
      support.is_error(err, "RaceFound", "buffer 'x'")
      assert.is_true(outcome(function(x)
        gpu.spawn(function() x:read() end)
        gpu.spawn(function() x:read() end)
      end))
    end)

    it("parts that share no byte are none", function()
      assert.is_true(outcome(function(x)
        gpu.spawn(function() mod.put:launch(1, x:slice(1, 4), 4, 1) end)
        gpu.spawn(function() mod.put:launch(1, x:slice(5, 8), 4, 2) end)
      end))
      assert.is_false(outcome(function(x)
        gpu.spawn(function() mod.put:launch(1, x:slice(1, 5), 5, 1) end)
        gpu.spawn(function() mod.put:launch(1, x:slice(5, 8), 4, 2) end)
      end))
    end)

    describe("and host memory", function()
      local h, other
      setup(function()
        h, other = dev:host("i32", n, { label = "h" }), dev:host("i32", n)
        for _, host in ipairs { h, other } do
          host:fill(0)
        end
      end)

      local writes = {
        ["host_buffer[i]"] = function() h[n] = 1 end,
        ["host_buffer:fill"] = function() h:fill(1) end,
        ["host_buffer:write"] = function() h:write({ 1, 2 }, n - 1) end,
        ["host_buffer:copy"] = function() h:copy(other) end,
      }
      local reads = {
        ["host_buffer[i]"] = function() return h[n] end,
        ["host_buffer:read"] = function() return h:read(n, n) end,
        ["host_buffer:bytes"] = function() return h:bytes(1, 1) end,
        ["host_buffer:copy"] = function() return other:copy(h) end,
      }
      local function into(x) return h:copy(x) end
      local function out_of(x) return x:copy(h) end

      --- Both, as tasks of which neither knows the other, in either order.
      local function both(work, touch)
        local results = {}
        for _, is_first in ipairs { true, false } do
          results[#results + 1] = table.pack(outcome(function(x)
            local function touches() touch() end
            gpu.spawn(is_first and touches or work, x)
            gpu.sleep(0)
            gpu.spawn(is_first and work or touches, x)
          end))
        end
        return results
      end

      for name, touch in pairs(writes) do
        it(name .. " in one is a race with work of another that reads or writes there", function()
          for _, work in ipairs { into, out_of } do
            local results = both(work, touch)
            for i, result in ipairs(results) do
              assert.is_false(result[1])
              support.is_error(result[2], "RaceFound", { i == 1 and "'copy' (" or "'" .. name .. "' (", "buffer 'h'",
                i == 1 and "'" .. name .. "' (" or "'copy' (", "of another task" })
            end
          end
        end)
      end
      for name, touch in pairs(reads) do
        it(name .. " that is read in one is a race with work of another that writes there, and none with what reads",
          function()
            for i, result in ipairs(both(into, touch)) do
              assert.is_false(result[1])
              support.is_error(result[2], "RaceFound", { i == 1 and "'copy' (" or "'" .. name .. "' (", "buffer 'h'" })
            end
            for _, result in ipairs(both(out_of, touch)) do
              assert.is_true(result[1], tostring(result[2]))
            end
          end)
      end

      it("are none where something orders them", function()
        assert.is_true(outcome(function(x)
          writes["host_buffer:fill"]()
          gpu.spawn(into, x):await() -- what was before it was spawned
          assert.equal(0, h[1]) -- it is over
          local op = mod.put:launch(1, x, n, 3)
          gpu.spawn(function()
            op:await()
            into(x)
            h:await()
            h[1] = 4
          end):await()
          for _, touch in pairs(writes) do
            touch()
          end
          out_of(x)
        end))
      end)

      it("are none between what scripts do themselves, which their variables may order", function()
        assert.is_true(outcome(function()
          for _, list in ipairs { writes, reads, writes } do
            for _, touch in pairs(list) do
              gpu.spawn(function() touch() end)
            end
          end
        end))
      end)

      it("are one also where a line of a loop goes on behind what is known of it", function()
        local function set(i, value) h[i] = value end
        local ok, err = outcome(function(x)
          set(1, 1)
          gpu.spawn(function()
            gpu.sleep(0)
            out_of(x)
          end)
          set(1, 2) -- the same line, and who has been spawned does not know of it
        end)
        assert.is_false(ok)
        support.is_error(err, "RaceFound", { "'copy' (", "buffer 'h'", "bytes 0 to 3", "'host_buffer[i]' (" })
        assert.is_true(outcome(function(x)
          set(1, 1)
          set(1, 2)
          gpu.spawn(function()
            gpu.sleep(0)
            out_of(x)
          end):await()
        end))
        ok, err = outcome(function(x)
          local op
          gpu.spawn(function()
            gpu.sleep(0)
            op:await() -- who knows of this knows of what was before it
            out_of(x)
          end)
          set(2, 1)
          op = mod.put:launch(1, x, n, 3)
          set(2, 2)
        end)
        assert.is_false(ok)
        support.is_error(err, "RaceFound", { "'copy' (", "buffer 'h'", "bytes 4 to 7", "'host_buffer[i]' (" })
      end)

      it("take no more time and memory for each element the more there are", function()
        local count = 100000
        local long <close> = dev:host("i32", count, { label = "long" })
        local start = support.now()
        for i = count, 1, -1 do -- each in front of all that were before
          long[i] = i
        end
        for i = 1, count do
          long[i] = long[i] + 1
        end
        assert.truthy(support.now() - start < 10, support.now() - start)
        local x <close> = dev:buffer("i32", count)
        local ok, err = gpu.spawn(function()
          gpu.spawn(function() x:copy(long) end)
          gpu.sleep(0)
          long[count] = 1
        end):join()
        assert.is_false(ok)
        support.is_error(err, "RaceFound", { "buffer 'long'", ("bytes %d to %d"):format(4 * count - 4, 4 * count - 1) })
        dev:synchronize()
        assert.equal(2, long[1])
      end)
    end)

    it("that are captured are one too, also by bodies of conditional nodes and when it is captured again", function()
      local function capture(f)
        return function(x)
          return dev:capture(function() f(x) end)
        end
      end
      local function fill(x, value)
        return function() x:fill(value) end
      end
      local is_on <const> = dev:buffer("i32", 1):fill(1)
      local function if_(f)
        return function() gpu.graph.if_(is_on, f) end
      end
      for _, f in ipairs {
        function(x) gpu.all(gpu.spawn(fill(x, 1)), gpu.spawn(fill(x, 2))) end,
        function(x) gpu.all(gpu.spawn(fill(x, 1)), gpu.spawn(if_(fill(x, 2)))) end,
        function(x) if_(function() gpu.all(gpu.spawn(fill(x, 1)), gpu.spawn(fill(x, 2))) end)() end,
        function(x) gpu.all(gpu.spawn(fill(x, 1)), gpu.spawn(function() dev:buffer("i32", n):copy(x) end)) end,
      } do
        local ok, err = outcome(capture(f))
        assert.is_false(ok)
        support.is_error(err, "RaceFound", { "'fill' (", "seeds_spec.lua:", "buffer 'x'", "of another task" })
        assert.is_nil(err.op)
        assert.is_nil(err.other) -- what is captured is no operation
      end
      for _, f in ipairs {
        function(x) gpu.spawn(fill(x, 1)):await() gpu.spawn(fill(x, 2)):await() end,
        function(x) x:fill(1) dev:stream():use(fill(x, 2)) end,
        function(x) gpu.all(gpu.spawn(fill(x:slice(1, 2), 1)), gpu.spawn(fill(x:slice(3, 4), 2))) end,
      } do
        assert.is_true(outcome(capture(f)))
      end
      local is_wild = false
      local again <close> = dev:graphed({ warmup = 0 }, function(x)
        local first = gpu.spawn(fill(x, 1))
        if not is_wild then first:await() end
        gpu.spawn(fill(x, 2)):await()
      end)
      local x = dev:buffer("i32", n, { label = "x" })
      again(x)
      again(x)
      is_wild = true
      support.raises("RaceFound", { "buffer 'x'", "of another task" }, again, x)
    end)

    it("on a graph's own temporaries is none, for each launch writes them first", function()
      local a, b = dev:buffer("i32", n):fill(0), dev:buffer("i32", n):fill(0)
      local scale <close> = dev:graphed({ warmup = 0 }, function(value, to)
        local t = dev:buffer("i32", n):fill(value)
        to:copy(t)
      end)
      gpu.all(gpu.spawn(function() scale(1, a) end), gpu.spawn(function() scale(2, b) end))
      local is_on <const> = dev:buffer("i32", 1):fill(1)
      local lone <close> = dev:capture(function()
        local t = dev:buffer("i32", n):fill(3)
        gpu.graph.if_(is_on, function() t:fill(4) end)
      end)
      gpu.all(gpu.spawn(function() lone:launch() end), gpu.spawn(function() lone:launch() end))
      assert.equal(1, a:read()[1])
      assert.equal(2, b:read()[1])
    end)

    it("the spawner that goes on is one, unless it was before", function()
      assert.is_false(outcome(function(x)
        gpu.spawn(function() put(x, 1) end)
        gpu.sleep(0)
        put(x, 2)
      end))
      assert.is_true(outcome(function(x)
        put(x, 2)
        gpu.spawn(function() put(x, 1) end)
      end))
    end)

    for name, order in pairs {
      await = function(x) gpu.spawn(put, x, 1):await() put(x, 2) end,
      join = function(x) gpu.spawn(put, x, 1):join() put(x, 2) end,
      ["await of the op"] = function(x)
        local op
        gpu.spawn(function() op = put(x, 1) end)
        while not op do gpu.sleep(0.001) end
        op:await()
        put(x, 2)
      end,
      ["gpu.all"] = function(x)
        gpu.all(gpu.spawn(put, x:slice(1, 8), 1), gpu.spawn(function() end))
        put(x, 2)
      end,
      ["gpu.any"] = function(x)
        gpu.any(gpu.spawn(put, x, 1))
        put(x, 2)
      end,
      on_done = function(x)
        local op = put(x, 1)
        op:on_done(function() put(x, 2) end)
      end,
      ["the end of a grandchild"] = function(x)
        gpu.spawn(function() gpu.spawn(put, x, 1) end):await()
        put(x, 2)
      end,
      ["synchronize"] = function(x)
        local is_put = false
        gpu.spawn(function()
          put(x, 1)
          is_put = true
        end)
        while not is_put do gpu.sleep(0.001) end
        dev:synchronize()
        put(x, 2)
      end,
    } do
      it("ordered by " .. name .. " are none", function()
        local ok, err = outcome(order)
        assert.is_true(ok, tostring(err))
      end)
    end

    it("by the thousand, one after the other, need no more memory", function()
      assert.is_true(outcome(function(x)
        for i = 1, 3000 do
          gpu.spawn(put, x, i):await()
        end
      end))
    end)
  end)

  describe("the command line", function()
    local script = [[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { unfenced = arg[1] == "lost" and 1 or nil })
      local mod = dev:compile [=[]] .. source .. [[]=]
      local a, b = dev:stream {}, dev:stream {}
      local x = dev:buffer("i32", 8, { label = "x" }):fill(1)
      local y = dev:buffer("i32", 8, { label = "y" }):fill(2)
      dev:synchronize()
      mod.put:launch({ grid = 1, block = 1, stream = a }, x, 8, 42)
      mod.take:launch({ grid = 1, block = 1, stream = b }, x, y, 8)
      if arg[2] then print(y:read()[1]) else y:read() end]]

    local function run(options, arguments, behind)
      local path = os.tmpname()
      support.write_file(path, script .. "\n" .. (behind or ""))
      local pipe = io.popen(("%s/gpulua %s %s %s 2>&1"):format(os.getenv "GPULUA_BUILD" or "build", options, path,
        arguments or ""))
      local output = pipe:read "a"
      local _, _, code = pipe:close()
      os.remove(path)
      return output, code
    end

    it("--check takes a seed, and nothing else", function()
      assert.equal("42\n", (run("--check", "kept print")))
      assert.equal("42\n", (run("--check=7", "kept print")))
      local output, code = run("--check=x", "kept")
      assert.truthy(output:find("a whole number from 0 on, expected, got 'x'", 1, true), output)
      assert.equal(1, code)
      output = support.script("require 'gpulua'.device('cpu')", "GPULUA_CHECK=x")
      assert.truthy(output:find("GPULUA_CHECK: a seed", 1, true), output)
    end)

    it("--seeds finds what differs, with the operations and the missing edge", function()
      local output, code = run("--seeds 30", "lost")
      assert.equal(1, code)
      for _, part in ipairs { "differs from seed 1: what it read differs", "from buffer 'y'", "'put' (", "'take' (",
        "missing edge: between them, for bytes 0 to 31 of buffer 'x'", "again: --check=" } do
        assert.truthy(output:find(part, 1, true), part .. " is not in: " .. output)
      end
      local seed = output:match "seed (%d+) differs"
      local wrong = run("--check=" .. seed, "lost print")
      assert.equal(wrong, (run("--check=" .. seed, "lost print")))
      assert.not_equal(wrong, (run("--check=1", "lost print")))
      output, code = run("--seeds 30", "lost print")
      assert.truthy(output:find("its output differs", 1, true), output)
      assert.equal(1, code)
      seed = output:match "seed (%d+) differs"
      for _, one in ipairs { "1", seed } do
        local said = ("  line 1 of the output of seed %s: %s"):format(one, (run("--check=" .. one, "lost print")))
        assert.truthy(output:find(said, 1, true), output)
      end
    end)

    it("--seeds shows the first line of the output that differs, also where one run says less", function()
      local told <const> = [[
        print "same"
        local seed = tonumber(table.concat(arg, " ", -2, -1):match "%-%-check=(%d+)")
        if seed > 1 then print(("x"):rep(300) .. "\t") end]]
      local output, code = run("--seeds 2", "kept", told)
      assert.equal(1, code)
      local line <const> = "  line 2 of the output of seed "
      assert.truthy(output:find(("%s1: nothing\n%s2: %s ...\n"):format(line, line, ("x"):rep(200)), 1, true), output)
    end)

    it("--seeds shows tabs of the output as they are, and no other control character", function()
      local output = run("--seeds 2", "kept", [[print("a\tb\27[1m\r", arg[-1], arg[-2])]])
      assert.truthy(output:find("  line 1 of the output of seed 2: a\tb?[1m?\t--check=2\t", 1, true), output)
    end)

    it("--seeds says when nothing differs, and runs the first seed as if it were alone", function()
      local output, code = run("--check=5 --seeds 20", "kept print")
      assert.equal(0, code)
      assert.truthy(output:find("42\n", 1, true) and output:find("20 seeds, no difference\n", 1, true), output)
    end)

    it("--seeds says that each run failed when they fail alike", function()
      for count, said in pairs { ["3"] = "3 seeds, no difference: each ended with exit code 1\n",
        all = "all there are, no difference: each ended with exit code 1\n" } do
        local output, code = run("--seeds " .. count, "kept 'print' always", [[error(arg[3])]])
        assert.equal(1, code)
        assert.truthy(output:find(said, 1, true) and output:find("always", 1, true), output)
      end
    end)

    it("--seeds all runs every order once", function()
      local output, code = run("--seeds all", "kept")
      assert.equal(0, code)
      assert.truthy(output:find("1 order, all there are, no difference\n", 1, true), output)
      output, code = run("--seeds=all", "lost")
      assert.equal(1, code)
      assert.truthy(output:find("missing edge", 1, true), output)
    end)

    it("--seeds says on a terminal how far it is", function()
      local path = os.tmpname()
      support.write_file(path, script)
      local command <const> = ("%s/gpulua --seeds %%s %s kept"):format(os.getenv "GPULUA_BUILD" or "build", path)
      for count, shown in pairs { ["10"] = "seeds  10/10  100%", all = "orders  1  in " } do
        local pipe = io.popen(("script -qec 'stty cols 80; %s' /dev/null < /dev/null"):format(command:format(count)))
        local output = pipe:read "a"
        pipe:close()
        assert.truthy(output:find(shown, 1, true), output)
        assert.is_nil((run("--seeds " .. count, "kept")):find(shown, 1, true))
      end
      os.remove(path)
    end)

    it("--seeds wants a number and a script", function()
      local output, code = run("--seeds none")
      assert.equal(1, code)
      assert.truthy(output:find("a number from 1 on or 'all' expected", 1, true), output)
      output, code = run("--check=hashes --seeds 2")
      assert.equal(1, code)
      assert.truthy(output:find("not with --check=hashes", 1, true), output)
      output = support.script("os.exit(0)", ""):gsub("%s", "")
      assert.equal("", output)
    end)

    it("a race of tasks ends a run, and is told", function()
      local output, code = support.script([[
        local gpu = require "gpulua"
        local x = gpu.device("cpu"):buffer("i32", 4):fill(0)
        gpu.spawn(function() x:fill(1) end)
        gpu.spawn(function() x:fill(2) end)]], "GPULUA_CHECK=1")
      assert.equal(1, code)
      assert.truthy(output:find("RaceFound", 1, true), output)
    end)
  end)
end)
