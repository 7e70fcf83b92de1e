-- Bad input: an error object with code, message and hint, nothing leaked, the device usable afterwards.

local gpu = require "gpulua"
local support = require "spec.support"

describe("bad input", function()
  local dev, mod

  setup(function()
    dev = support.open()
    mod = dev:compile [[
      extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
      }]]
    assert(mod.saxpy) -- made at first use, and kept
    support.works(dev)
  end)
  teardown(support.close_all)

  --- The error, its hint, no leak, and a device that works.
  local function refused(code, parts, f)
    local err
    support.without_leak(dev, function()
      err = support.raises(code, parts, f)
      assert.equal("error", gpu.type(err))
      assert.equal("string", type(err.message))
      assert.truthy(err.message ~= "")
      assert.truthy(err.hint and err.hint ~= "", "no hint")
      assert.truthy(tostring(err):find(err.code, 1, true))
      assert.truthy(tostring(err):find(err.message, 1, true))
    end)
    support.works(dev)
    return err
  end

  -- Scripts run inside some calls: generators, metamethods, finalisers. They may close what the call is about.
  describe("a device that is closed in the middle of a call on it", function()
    local function closing(f)
      local other = gpu.device(dev.name, { isolate = dev.isolation })
      local x, h = other:buffer("f32", 8), other:host("f32", 8)
      local function close(i)
        other:close()
        return i
      end
      support.raises("Closed", {}, f, other, close, x, h)
      support.works(dev)
    end

    it("by the function of an upload", function()
      closing(function(other, close) other:upload("f32", 8, close) end)
    end)
    it("by the function of a write", function()
      closing(function(_, close, x) x:write(close) end)
    end)
    it("by the function of a write to a host buffer", function()
      closing(function(other, close, _, h)
        h:write(close)
        other:buffer("f32", 1)
      end)
    end)
    it("by the elements of a table", function()
      closing(function(other, close)
        other:upload("f32", setmetatable({}, {
          __len = function() return 4 end,
          __index = function(_, i) return close(i) end,
        }))
      end)
    end)
    it("by the options of a stream", function()
      closing(function(other, close)
        other:stream(setmetatable({}, { __index = function() close() end }))
      end)
    end)
  end)

  it("scripts do not get at the metatables of handles", function()
    local x <close> = dev:buffer("f32", 4)
    for _, handle in ipairs { dev, mod, mod.saxpy, x, dev:current() } do
      assert.equal("string", type(getmetatable(handle)))
    end
  end)

  describe("error objects", function()
    it("have code, message, hint, traceback and a readable text", function()
      local err = refused("InvalidArgument", "type", function() dev:buffer("f31", 4) end)
      local text = tostring(err)
      assert.truthy(text:find("InvalidArgument", 1, true))
      assert.truthy(text:find(err.hint, 1, true))
      assert.equal("string", type(err.traceback))
      assert.truthy(err.traceback:find("errors_spec.lua", 1, true), err.traceback)
    end)

    it("have the traceback that Lua itself writes, of whatever is on the stack", function()
      -- A script of its own: some of its functions are global, and modules come in it.
      local output, code = support.script [==[
        local gpu, support = require "gpulua", require "spec.support"
        local x = support.open():buffer("f32", 1)
        x:close()
        local compared = 0
        local function compare()
          local _, err = pcall(x.read, x) local _, wanted = pcall(debug.traceback, nil, 0)
          wanted = wanted:gsub("'debug.traceback'", "'gpulua.buffer.read'", 1)
          compared = compared + 1
          local levels = 2 -- with those of the calls
          while debug.getinfo(levels - 1, "l") do
            levels = levels + 1
          end
          local skipped = tonumber(err.traceback:match "skipping (%d+) levels" or 0)
          local _, lines = err.traceback:gsub("\n\t%(%.%.%.tail calls%.%.%.%)", ""):gsub("\n\t", "")
          if skipped + lines - (skipped > 0 and 1 or 0) ~= levels then
            print(err.traceback, skipped, lines, levels)
          end
          if err.traceback:gsub("skipping %d+", "skipping") ~= wanted:gsub("skipping %d+", "skipping") then
            print(err.traceback, "instead of", wanted)
          end
        end
        function in_globals(f, ...) f(...) return 1 end
        local function deep(n) if n > 0 then deep(n - 1) else compare() end return 1 end
        local function tail() return compare() end
        local object = setmetatable({ method = function() compare() return 1 end }, {
          __index = function() compare() return 1 end,
          __add = function() compare() return 1 end,
          __close = function() compare() end,
          __lt = function() compare() return true end,
        })
        compare()
        tail()
        in_globals(compare)
        in_globals(in_globals, compare)
        for n = 1, 40 do
          deep(n)
        end
        object:method()
        local _ = object.nothing, object + 1, object < object
        do local _ <close> = object end
        for _ in function() compare() end do end
        table.sort({ 1, 2 }, function(a, b) compare() return a < b end)
        string.gsub("a", "a", function() compare() end)
        load("local f = ... f()", "=(a text)")(compare)
        load("local f = ... return f()", "another\ntext")(compare)
        coroutine.wrap(function() compare() coroutine.yield() end)()
        package.loaded.late = { helper = function() compare() return 1 end }
        package.loaded.late.helper()
        in_globals(package.loaded.late.helper)
        package.loaded[1], package.loaded.odd = { compare }, { [1] = compare, [{}] = compare, text = "text" }
        compare()
        print(compared)
      ]==]
      assert.equal("58\n", output)
      assert.equal(0, code)
    end)

    it("have a traceback also where the stack is full", function()
      local task = gpu.spawn(function()
        local function deeper() return 1 + deeper() end
        return deeper()
      end)
      local ok, err = task:join()
      assert.is_false(ok)
      assert.truthy(tostring(err):find("stack overflow", 1, true), tostring(err))
      local text = task:traceback()
      assert.truthy(text:find "skipping %d%d%d%d%d+ levels", text)
      assert.truthy(text:find("in a task spawned at", 1, true), text)
    end)

    it("cost as little where many modules are loaded, and keep none of their functions", function()
      local output, code = support.script [==[
        local support = require "spec.support"
        local x = support.open():buffer("f32", 1)
        x:close()
        local function deep(n)
          if n > 0 then
            deep(n - 1)
          else
            pcall(x.read, x)
          end
          return 1
        end
        local function least()
          local least = math.huge
          for _ = 1, 20 do
            local start = os.clock()
            for _ = 1, 20 do
              deep(10)
            end
            least = math.min(least, os.clock() - start)
          end
          return least
        end
        local before = least()
        local function of_module() return x end
        local weak = setmetatable({ of_module }, { __mode = "v" })
        for m = 1, 100 do
          local module = { [m == 1 and "kept" or "other"] = of_module }
          for f = 1, 200 do
            module["f" .. f] = function() return f end
          end
          package.loaded["module" .. m] = module
        end
        local after = least()
        assert(after < 5 * before, after / before)
        for m = 1, 100 do
          package.loaded["module" .. m] = nil
        end
        of_module = nil
        collectgarbage()
        collectgarbage()
        assert(weak[1] == nil, "the function is kept")
        print "cheap"
      ]==]
      assert.equal("cheap\n", output)
      assert.equal(0, code)
    end)

    it("pass through pcall, error and tasks unchanged", function()
      local ok, err = pcall(function()
        local inner_ok, inner = pcall(dev.buffer, dev, "f31", 4)
        assert.is_false(inner_ok)
        error(inner, 0)
      end)
      assert.is_false(ok)
      support.is_error(err, "InvalidArgument")
      local task = gpu.spawn(function() dev:buffer("f31", 4) end)
      local joined, same = task:join()
      assert.is_false(joined)
      support.is_error(same, "InvalidArgument")
    end)

    it("name the script and line of the culprit", function()
      local err = refused("InvalidArgument", "type", function() dev:buffer("f31", 4) end)
      assert.truthy(err.source:find("errors_spec.lua", 1, true))
      assert.equal(debug.getinfo(1, "l").currentline - 2, err.line)
    end)

    it("of ranges say what was asked for and of how much", function()
      local x <close> = dev:buffer("f32", 8)
      local h <close> = dev:host("f32", 8)
      for _, case in ipairs {
        { function() x:read(3, 9) end, 2, 7, 8 }, { function() x:bytes(0, 1) end, -1, 2, 8 },
        { function() x:slice(9, 9) end, 8, 1, 8 }, { function() x:slice(3, 6):slice(2, 5) end, 1, 4, 4 },
        { function() x:write({ 1, 2, 3 }, 7) end, 6, 3, 8 }, { function() return h[9] end, 8, 1, 8 },
        { function() h[0] = 1 end, -1, 1, 8 }, { function() x:view("f64", { 5 }) end, 0, 40, 32 },
        { function() x:copy(dev:buffer("f32", 9)) end, 0, 9, 8 },
      } do
        local err = refused("OutOfBounds", {}, case[1])
        assert.are.same({ case[2], case[3], case[4] }, { err.offset, err.length, err.size })
      end
      local y <close> = dev:buffer("f32", 4)
      local blas <close> = dev:blas()
      for _, case in ipairs {
        { function() blas:gemv { a = y, x = x, m = 4, n = 4 } end, 16, 4 },
        { function() blas:dot { x = x, y = y, n = 3, incy = 2 } end, 5, 4 },
      } do
        local err = refused("OutOfBounds", "the call reaches to", case[1])
        assert.are.same({ 0, case[2], case[3] }, { err.offset, err.length, err.size })
      end
      local err = refused("OutOfBounds", "comes after", function() x:read(5, 4) end)
      assert.is_nil(err.offset or err.length or err.size)
    end)

    it("of freed memory name the allocation, whose number is never used again", function()
      local last = 0
      for _ = 1, 5 do
        local b = dev:buffer("f32", 4)
        b:free()
        local number = math.tointeger(tonumber(refused("UseAfterFree", "allocation", function()
          b:read()
        end).message:match "allocation (%d+)"))
        assert.truthy(number > last)
        last = number
      end
    end)

    it("of memory say where it was made, for it need not have a label", function()
      local line = debug.getinfo(1, "l").currentline
      local x, y = dev:buffer("f32", 4):fill(1), dev:buffer("f32", 4)
      local made = ("%%(allocation %%d+, made at [^,]*errors_spec.lua:%d%%)"):format(line + 1)
      local labelled = dev:buffer("f32", 4, { label = "weights" })
      local graph <close> = dev:capture(function() y:copy(x) end)
      local pool <close> = dev:pool():seal()
      assert.truthy(refused("PoolSealed", {}, function() pool:record(x) end).message:find(made))
      x:free()
      labelled:free()
      for _, use in ipairs { function() graph:launch() end, function() x:read() end, function() y:copy(x) end } do
        local err = refused("UseAfterFree", {}, use)
        assert.truthy(err.message:find(made), err.message)
      end
      local err = refused("UseAfterFree", {}, function() labelled:read() end)
      assert.truthy(err.message:find("%(allocation %d+ 'weights', made at [^,]*errors_spec.lua:%d+%) was freed"))
    end)

    it("cannot be changed by accident into something without a code", function()
      local err = support.raises("InvalidArgument", {}, dev.buffer, dev, "f31", 4)
      assert.is_nil(err.no_such_field)
      assert.equal("InvalidArgument", err.code)
    end)
  end)

  describe("kernels", function()
    it("of a graph that fail say where they were captured, in bodies and behind an update, too", function()
      if support.is_gpu() then
        pending "a failed assert ends the device there"
      end
      local must = dev:compile((require "spec.graph_kernels")).must
      local good <close> = dev:buffer("i32", 4)
      local bad <close> = dev:buffer("i32", 4)
      local cond <close> = dev:buffer("i32", 1)
      local line = debug.getinfo(1, "l").currentline
      local function pair()
        must:launch(4, good, 4)
        must:launch(4, bad, 4) -- line + 3
      end
      local function two_in_a_body()
        good:fill(5)
        gpu.graph.if_(cond, function()
          must:launch(4, bad, 4) -- line + 8
        end, function()
          must:launch(4, good, 4)
        end)
        must:launch(4, bad, 4) -- line + 12
      end
      local function fails_at(graph, of_line, condition)
        good:fill(1)
        bad:fill(-1)
        cond:fill(condition or 0)
        dev:synchronize()
        local err = support.raises("KernelFailed", { "kernel 'must'" }, function() graph:launch():await() end)
        local place = ("; captured at [^\n]*errors_spec.lua:%d$"):format(line + of_line)
        assert.truthy(err.message:find(place), err.message)
      end
      local graph <close> = dev:capture(pair)
      fails_at(graph, 3)
      local bodies <close> = dev:capture(two_in_a_body)
      fails_at(bodies, 8, 1)
      fails_at(bodies, 12, 0)
      local turned = debug.getinfo(1, "l").currentline - line
      graph:update(function()
        must:launch(4, bad, 4) -- turned + 2
        must:launch(4, good, 4)
      end)
      fails_at(graph, turned + 2)
      good:fill(1)
      bad:fill(-1)
      local op = graph:launch()
      graph:close() -- then nobody knows any more
      support.raises("KernelFailed", { "kernel 'must'" }, op.await, op)
      support.works(dev)
    end)

    it("that do not compile", function()
      local err = refused("CompileFailed", {}, function()
        dev:compile("__global__ void f(int *x) {\n  x[0] = nothing_such;\n}", { name = "bad.cu" })
      end)
      local text = tostring(err)
      assert.truthy(text:find("nothing_such", 1, true), text)
      assert.truthy(text:find("bad.cu", 1, true), text)
    end)

    it("with a wrong number of arguments", function()
      local x <close> = dev:buffer("f32", 4)
      refused("InvalidArgument", "saxpy", function() mod.saxpy:launch(4, 4, 1.0, x) end)
      refused("InvalidArgument", "saxpy", function() mod.saxpy:launch(4, 4, 1.0, x, x, x) end)
    end)

    it("with arguments of a wrong type or range", function()
      local x <close> = dev:buffer("f32", 4)
      refused("InvalidArgument", { "n", "saxpy" }, function() mod.saxpy:launch(4, "four", 1.0, x, x) end)
      refused("InvalidArgument", { "n", "saxpy" }, function() mod.saxpy:launch(4, 1 << 40, 1.0, x, x) end)
      refused("InvalidArgument", { "a", "saxpy" }, function() mod.saxpy:launch(4, 4, {}, x, x) end)
      refused("InvalidArgument", { "x", "saxpy" }, function() mod.saxpy:launch(4, 4, 1.0, 4096, x) end)
    end)

    it("with nil for a scalar", function()
      local x <close> = dev:buffer("f32", 4)
      refused("InvalidArgument", { "n", "saxpy" }, function() mod.saxpy:launch(4, nil, 1.0, x, x) end)
    end)

    it("with a closed, freed or foreign buffer", function()
      local x <close> = dev:buffer("f32", 4)
      refused("Closed", { "x", "saxpy" }, function()
        local b = dev:buffer("f32", 4)
        b:close()
        mod.saxpy:launch(4, 4, 1.0, b, x)
      end)
      refused("UseAfterFree", { "y", "saxpy" }, function()
        local b = dev:buffer("f32", 4)
        b:free()
        mod.saxpy:launch(4, 4, 1.0, x, b)
      end)
      local other = support.open()
      local foreign = other:buffer("f32", 4)
      refused("InvalidArgument", { "x", "saxpy" }, function() mod.saxpy:launch(4, 4, 1.0, foreign, x) end)
      refused("InvalidArgument", {}, function() x:copy(foreign) end)
      other:close()
      refused("Closed", {}, function() mod.saxpy:launch(4, 4, 1.0, foreign, x) end)
    end)

    it("with a grid or block of 0, negative, too large", function()
      local x <close> = dev:buffer("f32", 4)
      for _, v in ipairs { 0, -1, 1 << 33 } do
        refused("InvalidArgument", "grid", function()
          mod.saxpy:launch({ grid = v, block = 1 }, 4, 1.0, x, x)
        end)
        refused("InvalidArgument", "block", function()
          mod.saxpy:launch({ grid = 1, block = v }, 4, 1.0, x, x)
        end)
      end
      refused("InvalidArgument", "block", function()
        mod.saxpy:launch({ grid = 1, block = 1025 }, 4, 1.0, x, x)
      end)
    end)

    it("that a module does not have", function()
      refused("InvalidArgument", { "saxpi", "saxpy" }, function() return mod.saxpi end)
      refused("InvalidArgument", { "saxpi", "saxpy" }, function() return mod:kernel "saxpi" end)
    end)
  end)

  describe("buffers", function()
    it("of 0, negative, fractional, astronomically many elements", function()
      for _, n in ipairs { 0, -1, 1.5, "12" } do
        refused("InvalidArgument", {}, function() dev:buffer("f32", n) end)
        refused("InvalidArgument", {}, function() dev:host("f32", n) end)
      end
      for _, n in ipairs { math.maxinteger, 1 << 60, 1e30 } do
        local err
        support.without_leak(dev, function()
          local ok
          ok, err = pcall(dev.buffer, dev, "f32", n)
          assert.is_false(ok)
          assert.truthy(err.code == "InvalidArgument" or err.code == "OutOfBudget", tostring(err))
          ok, err = pcall(dev.host, dev, "f32", n)
          assert.is_false(ok)
          assert.truthy(err.code == "InvalidArgument" or err.code == "OutOfMemory", tostring(err))
        end)
      end
    end)

    it("from tables with holes or text", function()
      refused("InvalidData", "element 2", function() dev:upload("f32", { 1, nil, 3 }) end)
      refused("InvalidData", "element 2", function() dev:upload("f32", { 1, "two", 3 }) end)
      refused("InvalidData", "element 3", function() dev:upload("i32", { 1, 2, 3.5 }) end)
      refused("InvalidData", "element 1", function() dev:upload("u8", { 256 }) end)
    end)

    it("from something that is no data", function()
      for _, data in ipairs { 5, true, print, dev } do
        refused("InvalidArgument", {}, function() dev:upload("f32", data) end)
      end
      refused("InvalidArgument", {}, function() dev:upload("f32", nil) end)
    end)

    it("asked for what lies outside", function()
      local x <close> = dev:buffer("f32", 4)
      refused("OutOfBounds", {}, function() x:read(1, 5) end)
      refused("OutOfBounds", {}, function() x:write({ 1, 2 }, 4) end)
      refused("OutOfBounds", {}, function() x:slice(0, 1) end)
    end)

    it("with options that do not exist", function()
      refused("InvalidArgument", "lable", function() dev:buffer("f32", 4, { lable = "x" }) end)
    end)
  end)

  describe("devices", function()
    it("of an unknown name", function()
      for _, name in ipairs { "gpu", "cuda:x", "cuda:-1", "cpu:7x" } do
        local ok, err = pcall(gpu.device, name)
        assert.is_false(ok, name)
        assert.truthy(err.code == "InvalidArgument" or err.code == "NoDevice", tostring(err))
        assert.truthy(err.message:find(name, 1, true), tostring(err))
      end
      support.raises("InvalidArgument", {}, gpu.device, 5)
    end)

    it("that are not there say what was looked for", function()
      local ok, err = pcall(gpu.device, "cuda:99")
      assert.is_false(ok)
      local wanted = { NoDevice = "cuda:99", LibraryUnavailable = "libcuda", Unsupported = "cuda.h" }
      assert.truthy(wanted[err.code], tostring(err))
      assert.truthy(err.message:find(wanted[err.code], 1, true), err.message)
      support.works(dev)
    end)

    it("with bad options", function()
      support.raises("InvalidArgument", "isolate", support.open, { isolate = "somehow" })
      support.raises("InvalidArgument", "budget", support.open, { budget = -1 })
      support.raises("InvalidArgument", "isolation", support.open, { isolation = "none" })
    end)

    it("that are closed", function()
      local other = support.open()
      local b = other:buffer("f32", 4)
      local k = other:compile([[ extern "C" __global__ void k(float *x) { x[0] = 1; } ]]).k
      other:close()
      other:close()
      assert.equal("closed device", gpu.type(other))
      for _, f in ipairs {
        function() other:buffer("f32", 4) end, function() other:host("f32", 4) end,
        function() other:compile "__global__ void f() {}" end, function() other:stream {} end,
        function() other:synchronize() end, function() b:read() end, function() b:fill(1) end,
        function() k:launch(support.one, b) end, function() b:slice(1, 2):read() end,
      } do
        support.raises("Closed", {}, f)
      end
      b:close()
    end)

    it("whose executor cannot be found, naming what was tried", function()
      local output = support.script([[
        local gpu = require "gpulua"
        local ok, err = pcall(gpu.device, "cpu", { isolate = "process" })
        print(ok, not ok and err.code)
        print(not ok and err.message)
      ]], "GPULUA_EXECUTOR=/no/such/gpulua-exec")
      assert.truthy(output:find "^false\tIo\n", output)
      assert.truthy(output:find("/no/such/gpulua-exec", 1, true), output)
    end)
  end)

  describe("waiting for a task where nothing can yield", function()
    local function not_yieldable(wait)
      local task = gpu.spawn(function() gpu.sleep(0.01) end)
      local ok, err = wait(task)
      assert.is_false(ok)
      support.is_error(err, "NotYieldable")
      task:await()
    end

    it("in a comparator", function()
      not_yieldable(function(task)
        return pcall(table.sort, { 2, 1 }, function(a, b)
          task:await()
          return a < b
        end)
      end)
    end)

    it("in a generator", function()
      not_yieldable(function(task)
        return pcall(coroutine.wrap(function()
          task:await()
        end))
      end)
    end)

    it("in require", function()
      package.preload["spec.awaits"] = function()
        package.loaded["spec.awaits.task"]:await()
      end
      not_yieldable(function(task)
        package.loaded["spec.awaits.task"] = task
        local ok, err = pcall(require, "spec.awaits")
        package.loaded["spec.awaits.task"] = nil
        return ok, err
      end)
      package.preload["spec.awaits"] = nil
    end)

    it("nothing is begun that would have to be waited for", function()
      local ran = 0
      local x <close> = dev:buffer("f32", 4):fill(1)
      local function f()
        ran = ran + 1
        x:fill(2)
      end
      local graph <close> = dev:capture(function() x:fill(2) end)
      local fast <close> = dev:graphed({ warmup = 0 }, f)
      for _, begin in ipairs {
        function() gpu.run(f) end, function() gpu.timeout(1, f) end, function() dev:capture(f) end,
        function() graph:update(f) end, fast,
      } do
        gpu.run(function()
          local ok, err = pcall(string.gsub, "a", "a", function() begin() end)
          assert.is_false(ok)
          support.is_error(err, "NotYieldable")
        end)
      end
      gpu.sleep(0.01)
      assert.equal(0, ran)
      fast() -- and the function is as good as before
      assert.equal(1, ran)
    end)

    it("while an op blocks there", function()
      local x <close> = dev:buffer("f32", 4):fill(1)
      local ok = pcall(table.sort, { 2, 1 }, function(a, b)
        mod.saxpy:launch(4, 4, 1.0, x, x):await()
        return a < b
      end)
      assert.is_true(ok)
    end)
  end)

  it("an error inside a task is raised where it is awaited", function()
    refused("OutOfBounds", {}, function()
      local x <close> = dev:buffer("f32", 4)
      gpu.spawn(function() x:read(9, 9) end):await()
    end)
    local task = gpu.spawn(function() error("plain text", 0) end)
    local ok, err = task:join()
    assert.is_false(ok)
    assert.equal("plain text", err)
  end)

  it("methods on something else", function()
    support.raises("InvalidArgument", {}, dev.buffer, {}, "f32", 4)
    support.raises("InvalidArgument", {}, mod.saxpy.launch, dev, 4)
    local b <close> = dev:buffer("f32", 4)
    support.raises("InvalidArgument", {}, b.read, dev)
    support.raises("InvalidArgument", {}, b.fill, b)
    support.raises("InvalidArgument", {}, b.fill, b, "x")
    support.raises("InvalidArgument", "argument 1 of copy", b.copy, b)
    support.raises("InvalidArgument", "argument 1 of write", b.write, b)
    support.raises("InvalidArgument", "argument 1 of use", dev:current().use, dev:current(), 5)
    support.raises("InvalidArgument", "argument 1 of wait", dev:current().wait, dev:current(), {})
    support.raises("InvalidArgument", "argument 1 of read", b.read, b, "1")
    support.raises("InvalidArgument", "argument 2 of read", b.read, b, 1, 1.5)
  end)

  it("a refused launch puts nothing on the device", function()
    local x <close> = dev:buffer("f32", 4):fill(0)
    dev:synchronize()
    local before = dev:stats()
    for _, f in ipairs {
      function() mod.saxpy:launch(4, 4, 1.0, x) end, function() mod.saxpy:launch(4, 4, 1.0, x, 5) end,
      function() mod.saxpy:launch({ grid = 1, block = 2000 }, 4, 1.0, x, x) end, function() x:fill "x" end,
      function() x:read(1, 5) end, function() x:copy(x) end,
    } do
      assert.is_false(pcall(f))
    end
    local after = dev:stats()
    for _, field in ipairs { "launches", "fills", "copies", "downloads", "records", "requests", "ops_in_flight" } do
      assert.equal(before[field], after[field], field)
    end
  end)

  it("a failed assert fails the op, never the script's process", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local mod = dev:compile 'extern "C" __global__ void check(int *x, int n) { assert(n > 0); x[0] = n; }'
      local x = dev:buffer("i32", 1)
      local ok, err = mod.check:launch({ grid = 1, block = 1 }, x, 0):join()
      print(ok, err.code)
      if dev.kind == "cpu" then
        x:fill(0)
        mod.check:launch({ grid = 1, block = 1 }, x, 5):await()
      end
    ]]
    local code_wanted = dev.kind == "cpu" and "KernelFailed" or "DeviceLost"
    -- A device may say what its assert said on the way.
    assert.truthy(output:find("false\t" .. code_wanted, 1, true), output)
    assert.equal(0, code)
  end)

  it("hundreds of refusals leak nothing", function()
    local x <close> = dev:buffer("f32", 4):fill(0)
    support.without_leak(dev, function()
      for i = 1, 300 do
        support.raises("InvalidArgument", {}, mod.saxpy.launch, mod.saxpy, { grid = 0, block = 1 }, 4, 1.0, x, x)
        support.raises("InvalidData", {}, dev.upload, dev, "f32", { i, "x" })
        support.raises("OutOfBounds", {}, x.read, x, 1, 4 + i)
      end
    end)
  end)
end)
