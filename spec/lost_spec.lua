-- A device that dies, hangs or is closed under work, and does not come up again (recovery_spec.lua): never a hang, a
-- zombie or a leak in the script's process. Most of this needs the device in a process of its own.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a lost device", function()
  local is_isolated = support.is_isolated()
  local kind

  setup(function()
    local dev = support.open()
    kind = dev.kind
    dev:close()
  end)
  teardown(support.close_all)

  local forever = [[
    extern "C" __global__ void forever(int *flag) {
      volatile int *f = flag;
      while (f[0] == 0) { }
    }
  ]]
  local crash = support.clock_source .. [[
    extern "C" __global__ void crash(int *x, long long at) { ((volatile int *)at)[0] = x[0]; }
    extern "C" __global__ void look(int *y, const int *x, long long ticks) {
      long long end = now() + ticks;
      while (now() < end) { }
      y[0] = x[0];
    }
  ]]

  --- Runs f; afterwards this process has the descriptors and children that it had before.
  local function without_remains(f)
    collectgarbage()
    local descriptors, open = support.descriptors()
    local before, children = support.children()
    f()
    collectgarbage()
    collectgarbage()
    local is_clean = support.eventually(5, function()
      local _, count = support.children()
      return count == children
    end)
    if not is_clean then
      for pid, state in pairs((support.children())) do
        if not before[pid] then
          error(("child %d is left, state %s"):format(pid, state), 2)
        end
      end
    end
    local count, now = support.descriptors()
    if count ~= descriptors then
      for number, what in pairs(now) do
        if not open[number] then
          error(("descriptor %d is left: %s"):format(number, what), 2)
        end
      end
      error(("%d descriptors were open, now %d"):format(descriptors, count), 2)
    end
  end

  it("open and close leave no child and no descriptor", function()
    without_remains(function()
      for _ = 1, kind == "cpu" and 20 or 3 do
        local dev, pid = support.open_with_pid { restarts = 0 }
        assert.equal(is_isolated, pid ~= nil)
        local x = dev:upload("i32", { 1, 2, 3 })
        assert.are.same({ 1, 2, 3 }, x:read())
        dev:close()
      end
    end)
  end)

  it("open says so where there are too few descriptors, however few", function()
    for limit = 12, 21, 3 do -- a shell needs ten
      local output = support.script([[
        local gpu = require "gpulua"
        local ok, err = pcall(gpu.device, "cpu", { isolate = "process" })
        print(ok or err.code .. " " .. err.message)
      ]], ("ulimit -n %d;"):format(limit))
      assert.truthy(output:find "^true\n$" or output:find "^Io [^\n]*: Too many open files\n$", limit .. ": " .. output)
    end
  end)

  it("close ends work in flight and what waits for it", function()
    without_remains(function()
      local dev = support.open()
      local mod = dev:compile(support.spin_source)
      local x = dev:buffer("i32", 1)
      mod.spin:launch(support.one, support.ticks(0.2), x, 1)
      local op = mod.spin:launch(support.one, 1, x, 2)
      dev:close()
      -- It was given time to end.
      local ok, err = op:join(5)
      if not ok then
        assert.truthy(err.code == "Closed" or err.code == "DeviceLost", tostring(err))
      end
      support.raises("Closed", {}, x.read, x)
    end)
  end)

  it("close while a task waits wakes the task", function()
    local dev = support.open()
    local mod = dev:compile(support.spin_source)
    local x = dev:buffer("i32", 1)
    local op = mod.spin:launch(support.one, support.ticks(0.3), x, 1)
    local result
    local task = gpu.spawn(function()
      result = table.pack(op:join())
    end)
    gpu.sleep(0.02)
    dev:close()
    task:await()
    assert.truthy(result[1] or result[2].code == "Closed" or result[2].code == "DeviceLost")
  end)

  it("is told of with its cause and suspects also where a graph is made", function()
    for _ = 1, 5 do
      local dev <close> = support.open { restarts = 5 }
      local x = dev:buffer("i32", 1):fill(1)
      x:await()
      dev:inject { fault = 1 }
      x:fill(2)
      local ok, err = pcall(dev.capture, dev, function() x:fill(3) end)
      if ok then -- it was made before anybody knew
        ok, err = x:join()
      end
      assert.is_false(ok)
      support.is_error(err, "DeviceLost", { ("device %s is lost: an injected fault"):format(dev.name) })
      assert.equal("fill", err.suspects[1].label)
      pcall(dev.await, dev) -- who knows of the loss then
    end
  end)

  it("is waited for within a limit that is a number from 0 on", function()
    local dev <close> = support.open()
    for _, bad in ipairs { -1, 0 / 0, "soon" } do
      support.raises("InvalidArgument", "argument 1 of await: seconds, a number from 0 on, expected, got", dev.await,
        dev, bad)
    end
    for _, good in ipairs { 0, 1, math.huge } do
      assert.equal(dev, dev:await(good))
    end
  end)

  it("keeps a graph, or a module, that is closed while it may still run", function()
    support.wants_time(pending)
    local script = os.tmpname()
    support.write_file(script, [[
      local gpu, support = require "gpulua", require "spec.support"
      local dev = gpu.device()
      local mod = dev:compile(support.spin_source)
      local other = dev:compile(support.spin_source .. "// another")
      local x, y, side = dev:buffer("i32", 64):fill(0), dev:buffer("i32", 64):fill(0), dev:stream()
      local graph = dev:capture(function() y:fill(3) other.spin:launch(support.one, 1, y, 1) end)
      dev:synchronize()
      mod.spin:launch({ grid = 1, block = 1, stream = side }, support.ticks(0.3), x, 1)
      side:use(function() graph:launch() end)
      dev:inject { fault = 1 }
      dev:stream():mark()
      graph:close()
      other:close()
      mod:close()
      gpu.sleep(0.6)
      print "went on"
    ]])
    for _ = 1, 3 do
      local pipe = assert(io.popen(("GPULUA_ISOLATE=%s %s/gpulua %s 2>&1"):format(support.isolation(),
        os.getenv "GPULUA_BUILD" or "build", script)))
      local output = pipe:read "a"
      local _, how, code = pipe:close()
      assert.truthy(output:find("went on\n", 1, true), output)
      assert.are.same({ "exit", 1 }, { how, code }, output) -- for a failure that nobody has seen
    end
    os.remove(script)
  end)

  if not is_isolated then
    it("with a process of its own #process", function()
      pending "the device lives in the script's process"
    end)
    return
  end

  it("is told of with its suspects also to who asks while it comes up again", function()
    local dev <close> = support.open { restarts = 5 }
    local x = dev:buffer("i32", 1):fill(1)
    x:await()
    dev:inject { fault = 1 }
    x:fill(2):join()
    local err = support.raises("DeviceLost", "coming up again", dev.compile, dev, "not looked at")
    assert.are.same({ "fill" }, { err.suspects[1].label })
    dev:await()
  end)

  describe("whose process is killed", function()
    it("ends loops that do nothing but look whether work is over", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local flag = dev:buffer("i32", 1):fill(0)
        local running = dev:compile(forever).forever:launch({ grid = 1, block = 1 }, flag)
        support.raises("Timeout", {}, running.await, running, 0.05)
        os.execute("kill -9 " .. pid)
        local limit = support.now() + 10
        while not running:done() and support.now() < limit do end
        assert.is_true(running:done())
        support.raises("DeviceLost", {}, running.await, running)
        dev:close()
      end)
    end)

    it("fails what is in flight with DeviceLost, and everything after", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local mod = dev:compile(forever)
        local flag = dev:buffer("i32", 1):fill(0)
        local other, stream = dev:upload("i32", { 5 }), dev:stream {}
        gpu.all(other, flag) -- what is over is no suspect
        local running = mod.forever:launch({ grid = 1, block = 1, label = "runs" }, flag)
        local queued = mod.forever:launch({ grid = 1, block = 1, label = "waits" }, flag)
        support.raises("Timeout", {}, running.await, running, 0.05)
        os.execute("kill -9 " .. pid)
        local start = support.now()
        local err = support.raises("DeviceLost", {}, running.await, running)
        assert.truthy(support.now() - start < 5)
        support.raises("DeviceLost", {}, queued.await, queued)
        assert.truthy(#err.suspects >= 1)
        assert.equal("runs", err.suspects[1].label)
        for _, f in ipairs {
          function() other:read() end, function() other:fill(1) end, function() dev:buffer("i32", 1) end,
          function() dev:compile "__global__ void f() {}" end, function() dev:synchronize() end,
          function() mod.forever:launch(support.one, flag) end, function() stream:synchronize() end,
        } do
          support.raises("DeviceLost", {}, f)
        end
        assert.is_true(support.eventually(5, function() return support.process_is_gone(pid) end))
        dev:close()
      end)
    end)

    it("leaves well what was over, and says of the rest what may have run and what had not started", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0, completion = "word" }
        local mod = dev:compile(forever)
        local flag, other = dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1):fill(0)
        local stream = dev:stream {}
        local over = stream:mark():await()
        dev:synchronize()
        local config = { grid = 1, block = 1 }
        local ops = {}
        for i = 1, 20 do
          config.label = "first " .. i
          ops[i] = mod.forever:launch(config, flag)
        end
        local second = mod.forever:launch({ grid = 1, block = 1, stream = stream, label = "second" }, other)
        support.raises("Timeout", {}, ops[1].await, ops[1], 0.05)
        os.execute("kill -9 " .. pid)
        assert.is_true((over:join()))
        support.raises("DeviceLost", "'first 1' may have been running", ops[1].await, ops[1])
        local err = support.raises("DeviceLost", "'second' may have been running", second.await, second)
        support.raises("DeviceLost", "'first 20' had not started", ops[20].await, ops[20])
        assert.equal("first 20", ops[20].label)
        local before = {}
        for _, suspect in ipairs(err.suspects) do -- oldest first per stream
          assert.truthy(suspect.seq > (before[suspect.stream] or 0))
          before[suspect.stream] = suspect.seq
          assert.truthy(suspect.source:find("lost_spec.lua", 1, true))
        end
        assert.equal("first 1", err.suspects[1].label)
        assert.truthy(tostring(err):find("suspect: first 1 ", 1, true), tostring(err))
        dev:close()
      end)
    end)

    --- A graph 'step' that never ends is launched by f(graph, kernel, flag) until the device's process is killed; then
    --- g(dev, what f has returned).
    local function with_replays(f, g)
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0, completion = "word" }
        local flag = dev:buffer("i32", 1):fill(0)
        local kernel = dev:compile(forever).forever
        flag:await()
        local op = f(dev:capture({ label = "step" }, function()
          kernel:launch({ grid = 1, block = 1 }, flag)
        end), kernel, flag)
        support.raises("Timeout", {}, op.await, op, 0.05)
        os.execute("kill -9 " .. pid)
        g(dev, op)
        dev:close()
      end)
    end

    it("counts launches of one graph as one suspect, to a bound, and names them in one line", function()
      with_replays(function(graph, kernel, flag)
        local first = graph:launch()
        for _ = 1, 40 do graph:launch() end
        for i = 1, 20 do kernel:launch({ grid = 1, block = 1, label = "behind " .. i }, flag) end
        for _ = 1, 100 do graph:launch() end
        return first
      end, function(_, first)
        local err = support.raises("DeviceLost", {}, first.await, first)
        local seq, count = err.op.seq, {}
        for i, suspect in ipairs(err.suspects) do
          assert.equal(seq + i - 1, suspect.seq)
          count[suspect.label] = (count[suspect.label] or 0) + 1
        end
        assert.equal(41, count.step) -- the first, whose handle somebody has, the next one, and those like it
        assert.equal(6, #err.suspects - 41)
        local text = tostring(err)
        assert.truthy(text:find(("suspect: step (stream %d, seq %d to %d)"):format(err.op.stream, seq + 1, seq + 40),
          1, true), text)
        assert.truthy(text:find(("suspect: behind 6 (stream %d, seq %d), asked"):format(err.op.stream, seq + 46), 1,
          true), text)
      end)
    end)

    it("names no more of many launches of one graph than there may be without a word", function()
      with_replays(function(graph)
        for _ = 1, 100 do graph:launch() end
        return graph:launch()
      end, function(dev, last)
        local news = {}
        dev:on_lost(function(err) news[#news + 1] = #err.suspects end)
        support.raises("DeviceLost", "had not started", last.await, last)
        assert.is_truthy(support.eventually(5, function() return news[1] end))
        assert.equal(64, news[1])
      end)
    end)

    it("with attribution = \"exact\" names one of each stream", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0, attribution = "exact", completion = "word" }
        local mod = dev:compile(forever)
        local flag, open_flag = dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1):fill(1)
        local other = dev:stream {}
        flag:await()
        for _ = 1, 30 do
          mod.forever:launch({ grid = 1, block = 1, label = "over" }, open_flag)
        end
        local op = mod.forever:launch({ grid = 1, block = 1, label = "culprit" }, flag)
        for _ = 1, 5 do
          mod.forever:launch({ grid = 1, block = 1, label = "behind" }, flag)
          mod.forever:launch({ grid = 1, block = 1, label = "beside", stream = other }, flag)
        end
        open_flag:await()
        support.raises("Timeout", {}, op.await, op, 0.1)
        os.execute("kill -9 " .. pid)
        local err = support.raises("DeviceLost", {}, op.await, op)
        local labels = {}
        for i, suspect in ipairs(err.suspects) do
          labels[i] = suspect.label
        end
        assert.are.same({ "culprit", "beside" }, labels)
        support.raises("InvalidArgument", "attribution", support.open, { attribution = "guess" })
        dev:close()
      end)
    end)

    it("wakes every waiting task", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local mod = dev:compile(forever)
        local flag = dev:buffer("i32", 1):fill(0)
        local op = mod.forever:launch(support.one, flag)
        local tasks = {}
        for i = 1, 50 do
          tasks[i] = gpu.spawn(function()
            local ok, err
            if i % 3 == 0 then
              ok, err = pcall(flag.read, flag)
            elseif i % 3 == 1 then
              ok, err = op:join()
            else
              ok, err = pcall(dev.synchronize, dev)
            end
            return ok == false and err.code
          end)
        end
        gpu.sleep(0.05)
        os.execute("kill -9 " .. pid)
        for _, task in ipairs(tasks) do
          assert.equal("DeviceLost", task:await())
        end
        dev:close()
      end)
    end)

    it("while it is idle: guarded memory is not well because nobody could look", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local mem = dev:memory { guard = true }
        local b = mem:buffer("u8", 1000):fill(1)
        assert.equal(mem, mem:check())
        os.execute("kill -9 " .. pid)
        support.raises("DeviceLost", {}, mem.check, mem)
        b:close()
        dev:close()
      end)
    end)

    it("while it is idle: the next use says so", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local x = dev:upload("i32", { 1 })
        x:await()
        os.execute("kill -9 " .. pid)
        assert.is_true(support.eventually(5, function()
          local ok, err = pcall(x.read, x)
          return not ok and err.code == "DeviceLost"
        end))
        dev:close()
      end)
    end)

    it("says what that died of also to who only launches, and never waits", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local x = dev:upload("i32", { 1 })
        local add = dev:compile("extern \"C\" __global__ void add(int *x) { x[0]++; }").add
        x:await()
        os.execute("kill -9 " .. pid)
        local over = os.clock() + 5
        repeat until support.children()[pid] == "Z" or os.clock() > over -- and nothing looks at the device
        local err = support.raises("DeviceLost", ("process %d was killed by signal 9"):format(pid), function()
          for _ = 1, 20000 do
            add:launch({ grid = 1, block = 1 }, x)
          end
        end)
        assert.is_nil(err.message:find("executor", 1, true))
        pcall(dev.await, dev) -- who waits knows
        dev:close()
      end)
    end)

    it("while it compiles", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local task = gpu.spawn(function()
          dev:compile(("extern \"C\" __global__ void fresh%d(int *x) { x[0] = 1; }"):format(support.fresh()))
        end)
        gpu.sleep(0.002)
        os.execute("kill -9 " .. pid)
        local ok, err = task:join()
        -- It may have been quick enough.
        assert.truthy(ok or err.code == "DeviceLost", tostring(err))
        dev:close()
      end)
    end)

    it("leaves other devices alone, and a newly opened one works", function()
      without_remains(function()
        local well = support.open()
        local dev, pid = support.open_with_pid { restarts = 0 }
        os.execute("kill -9 " .. pid)
        assert.is_true(support.eventually(5, function()
          local ok, err = pcall(dev.buffer, dev, "i32", 1)
          return not ok and err.code == "DeviceLost"
        end))
        support.works(well)
        local anew = support.open()
        support.works(anew)
        dev:close()
        well:close()
        anew:close()
      end)
    end)

    it("again and again leaves nothing behind", function()
      without_remains(function()
        for _ = 1, kind == "cpu" and 20 or 3 do
          local dev, pid = support.open_with_pid { restarts = 0 }
          local x = dev:buffer("i32", 1000):fill(3)
          os.execute("kill -9 " .. pid)
          support.eventually(5, function() return not pcall(x.read, x) end)
          support.raises("DeviceLost", {}, x.read, x)
          dev:close()
        end
      end)
    end)
  end)

  it("by a kernel that crashes: DeviceLost that names it, and a newly opened one works", function()
    without_remains(function()
      local dev = support.open()
      local mod = dev:compile(crash)
      local x = dev:buffer("i32", 1):fill(1)
      local op = mod.crash:launch({ grid = 1, block = 1, label = "crashes" }, x, 16)
      local err = support.raises("DeviceLost", {}, op.await, op)
      local names = {}
      for _, suspect in ipairs(err.suspects) do
        names[suspect.label] = true
      end
      assert.is_true(names.crashes, tostring(err))
      support.raises("DeviceLost", {}, x.read, x)
      dev:close()
      local anew = support.open()
      support.works(anew)
      anew:close()
    end)
  end)

  describe("is told of by each way to wait for a buffer", function()
    -- Expressions of x, a buffer that the kernel writes which crashes; blocks() calls a function where nothing can
    -- yield.
    local ways = { "x:await()", "blocks(x.await, x)", "gpu.all(x, y)", "gpu.all { x }", "gpu.any(x)",
      "blocks(gpu.all, x, y)", "gpu.spawn(x.await, x):await()", "gpu.timeout(9, x.await, x)", "x:join()",
      "blocks(x.join, x)", "gpu.spawn(x.join, x):await()", "x:read()" }
    local script = [==[
      local gpu = require "gpulua"
      local function blocks(f, ...)
        local args, results = table.pack(...), nil
        string.gsub("x", "x", function() results = table.pack(f(table.unpack(args))) end)
        return table.unpack(results)
      end
      for _, make in ipairs { "buffer", "host" } do
        local dev = gpu.device(nil, { isolate = "process", restarts = %d })
        local crash = dev:compile [[
          extern "C" __global__ void crash(int *x, long long at) {
            long long begun = clock64();
            while (clock64() - begun < 30000000) { }
            ((volatile int *)at)[0] = x[0];
            x[0] = 5;
          }]].crash
        local written, y = dev:buffer("i32", 4):fill(0), dev:buffer("i32", 4):fill(0)
        local x = make == "host" and dev:host("i32", 4):fill(0) or written
        gpu.all(x, y, written)
        crash:launch({ grid = 1, block = 1 }, written, 16)
        if make == "host" then
          x:copy(written)
        end
        local ok, e, more = pcall(function() return %s end)
        if ok and e == false then
          ok, e = "join", more
        end
        print(make, ok, type(e) == "table" and e.code or e)
        pcall(dev.close, dev)
      end
    ]==]
    for _, way in ipairs(ways) do
      it(way, function()
        local verdict = way:find "join" and "join" or "false"
        local wanted = ("buffer\t%s\tDeviceLost\nhost\t%s\tDeviceLost\n"):format(verdict, verdict)
        for _, restarts in ipairs { 0, 5 } do
          for _, runs in ipairs { support.script, support.stock_script } do
            local output = runs(script:format(restarts, way))
            assert.equal(wanted, output)
          end
        end
      end)
    end

    it("also where it is up again by then, with what the buffer had before", function()
      support.under_way(0.2, function(seconds, seen, begins)
        local dev <close> = support.open { restarts = 5 }
        local mod = dev:compile(crash)
        local x = dev:buffer("i32", 1, { durable = true }):fill(7)
        local y = dev:buffer("i32", 1, { durable = true }):fill(8)
        local z, look = dev:buffer("i32", 1):fill(9), mod.look -- z is gone then
        local before, read = dev:buffer("i32", 1):fill(1), dev:buffer("i32", 1):fill(1)
        local ticks = support.ticks(seconds)
        dev:synchronize()
        begins()
        look:launch(support.one, before, read, ticks) -- until all wait
        local op = mod.crash:launch({ grid = 1, block = 1, label = "crashes" }, x, 16)
        look:launch(support.one, z, read, 1)
        local first = gpu.spawn(function()
          op:join()
          string.gsub("x", "x", function() dev:await() end) -- blocks: whoever waits, too, has to go on waiting
          return dev.epoch
        end)
        local results = {}
        for i, wait in ipairs { x.await, x.join, gpu.all, gpu.any } do
          gpu.spawn(function() results[i] = table.pack(pcall(wait, x)) end)
        end
        local gone = gpu.spawn(function() return pcall(z.await, z) end)
        local untouched = gpu.spawn(function()
          seen() -- the others wait by now
          return y:await()
        end)
        assert.equal(2, first:await())
        assert.is_true(support.eventually(5, function()
          return results[1] and results[2] and results[3] and results[4]
        end))
        assert.is_false(results[1][1])
        assert.equal("DeviceLost", results[1][2].code)
        assert.truthy(results[1][2].message:find("work on the buffer was lost: device .- is lost: .*; it is up again"),
          tostring(results[1][2]))
        local suspects = results[1][2].suspects
        assert.truthy(suspects[1].label == "crashes" or suspects[2].label == "crashes")
        assert.are.same({ true, false, "DeviceLost" }, { results[2][1], results[2][2], results[2][3].code })
        for i = 3, 4 do
          assert.are.same({ false, "DeviceLost" }, { results[i][1], results[i][2].code })
        end
        assert.are.same({ false, "DeviceLost" }, (function(ok, err) return { ok, err.code } end)(gone:await()))
        assert.equal(y, untouched:await())
        assert.are.same({ 7 }, x:await():read())
        support.works(dev)
      end)
    end)
  end)

  it("is told of to who waits, where it was written only since", function()
    support.under_way(0.1, function(seconds, seen, begins)
      local dev <close> = support.open { restarts = 5 }
      local mod = dev:compile(crash)
      local x = dev:buffer("i32", 1, { durable = true }):fill(7)
      local y = dev:buffer("i32", 1):fill(0)
      dev:synchronize()
      local ticks = support.ticks(seconds)
      begins()
      mod.look:launch(support.one, y, x, ticks) -- what is waited for at first
      local waits = gpu.spawn(function()
        seen()
        return pcall(x.await, x)
      end)
      local op = mod.crash:launch(support.one, x, 16)
      op:join()
      string.gsub("x", "x", function() dev:await() end)
      local ok, err = waits:await()
      assert.are.same({ false, "DeviceLost" }, { ok, ok or err.code })
      assert.are.same({ 7 }, x:read())
    end)
  end)

  it("is told of each time and in its turn, also where all of it happened before the loop went on", function()
    if not is_isolated then
      pending "the device lives in this process"
    end
    support.wants_time(pending) -- where tasks run in any order
    local dev <close> = support.open { restarts = 3 }
    local heard = {}
    dev:on_lost(function(err) heard[#heard + 1] = { err.code, err.suspects[1].label } end)
    dev:on_restored(function() heard[#heard + 1] = "restored" end)
    local x = dev:buffer("i32", 1, { durable = "space" }):fill(0)
    x:await()
    local function lose(f)
      local epoch = dev.epoch
      dev:inject { fault = 1 }
      assert.is_false((pcall(function() f():await() end)))
      while dev.epoch == epoch and pcall(dev.await, dev) do end
    end
    string.gsub("x", "x", function() -- blocks
      lose(function() return x:fill(1) end)
      lose(function() return dev:current():mark() end)
    end)
    local wanted = { { "DeviceLost", "fill" }, "restored", { "DeviceLost", "mark" }, "restored" }
    assert.is_true(support.eventually(10, function() return #heard >= #wanted end))
    assert.are.same(wanted, heard)
    string.gsub("x", "x", function()
      lose(function() return x:fill(1) end)
      lose(function() return x:fill(1) end)
    end)
    wanted = { "DeviceLost", "restored", "DeviceLost", "Unrecoverable" }
    assert.is_true(support.eventually(10, function() return #heard >= 4 + #wanted end))
    for i, what in ipairs(wanted) do
      assert.equal(what, type(heard[4 + i]) == "table" and heard[4 + i][1] or heard[4 + i])
    end
  end)

  it("is known to whoever waits for the device, with a limit as without", function()
    if not is_isolated then
      pending "the device lives in this process"
    end
    for _, seconds in ipairs { false, 10 } do
      local dev <close> = support.open { restarts = 5 }
      local x = dev:buffer("i32", 1, { durable = true }):fill(1)
      x:await()
      gpu.run(function()
        local epoch = dev.epoch
        dev:inject { fault = 1 }
        x:fill(2)
        while dev.epoch == epoch do gpu.sleep(0.001) end
        assert.equal(dev, dev:await(seconds or nil))
        assert.are.same({ 2 }, x:read())
      end)
    end
  end)

  it("again, before anybody of a task has looked, is known to who waits for the device all the same", function()
    if not is_isolated then
      pending "the device lives in this process"
    end
    local dev <close> = support.open { restarts = 5 }
    local x = dev:buffer("i32", 1, { durable = true }):fill(1)
    x:await()
    gpu.run(function()
      dev:inject { fault = 1 }
      x:fill(2)
      gpu.spawn(function()
        while dev.epoch == 1 do gpu.sleep(0.001) end
        dev:inject { fault = 1 }
        assert.is_false((dev:current():mark():join()))
        dev:await()
      end):await()
      assert.equal(3, dev.epoch)
      dev:await()
      assert.are.same({ 2 }, x:read())
    end)
  end)

  it("while what is durable is restored took no work of the script's: nobody is told", function()
    if not is_isolated then
      pending "the device lives in this process"
    end
    local output, code = support.script [==[
      local gpu = require "gpulua"
      local dev = gpu.device(nil, { isolate = "process", restarts = 5 })
      local kept = {}
      for i = 1, 9 do
        kept[i] = dev:buffer("i32", 1, { durable = true }):fill(i)
      end
      dev:synchronize()
      dev:inject { lost = 1 } -- what comes first in the next life, which is the script's no more
      os.execute("kill -9 " .. dev.pid)
      while dev.epoch < 3 do
        gpu.sleep(0.001)
      end
      print(kept[9]:read()[1])
      dev:close()
    ]==]
    assert.are.same({ "9\n", 0 }, { output, code })
  end)

  it("for good is heard of by whoever waits for a buffer", function()
    local output, code = support.script([==[
      local gpu = require "gpulua"
      local dev = gpu.device(nil, { isolate = "process", restarts = 1 })
      for i = 1, 2 do
        local crash = dev:compile [[extern "C" __global__ void crash(int *x, long long at) {
          ((volatile int *)at)[0] = x[0];
          x[0] = 5;
        }]].crash
        local x = dev:buffer("i32", 4):fill(0)
        x:await()
        crash:launch({ grid = 1, block = 1, label = "crashes" }, x, 16)
        local ok, err = pcall(x.await, x)
        pcall(dev.await, dev)
        local again, later = pcall(x.await, x)
        print(ok, err.code, again, later.code, #(later.suspects or {}))
      end
    ]==])
    assert.truthy(output:find "^false\tDeviceLost\tfalse\tStale\t0\nfalse\t%a+\tfalse\tUnrecoverable\t1\n$", output)
    assert.truthy(code == nil or code == 0 or code == true, code)
  end)

  it("by a kernel that writes far outside its buffer", function()
    without_remains(function()
      local dev = support.open()
      local mod = dev:compile [[
        extern "C" __global__ void astray(int *x, long long far) { x[far] = 1; }
      ]]
      local x = dev:buffer("i32", 1)
      local op = mod.astray:launch(support.one, x, 1 << 44)
      support.raises("DeviceLost", {}, op.await, op)
      dev:close()
    end)
  end)

  describe("with a kernel that never ends", function()
    it("await(s) raises Timeout and close kills the child", function()
      without_remains(function()
        local dev, pid = support.open_with_pid { restarts = 0 }
        local mod = dev:compile(forever)
        local flag = dev:buffer("i32", 1):fill(0)
        local op = mod.forever:launch(support.one, flag)
        support.raises("Timeout", {}, op.await, op, 0.1)
        assert.is_false(op:done())
        local start = support.now()
        dev:close()
        assert.truthy(support.now() - start < 10)
        assert.is_true(support.eventually(5, function() return support.process_is_gone(pid) end))
        local ok, err = op:join(1)
        assert.is_false(ok)
        assert.truthy(err.code == "DeviceLost" or err.code == "Closed", tostring(err))
      end)
    end)

    it("limits of time end waits in check mode, too, where the device works while somebody waits", function()
      if support.is_gpu() then
        pending "check mode of the CPU device"
      end
      local dev = gpu.device(nil, { isolate = "process", check = true, restarts = 10 })
      local mod = dev:compile(forever .. [[ extern "C" __global__ void inc(int *x) { x[0] += 1; } ]])
      local hang, inc = mod.forever, mod.inc
      local flag, x = dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1):fill(1)
      dev:synchronize()
      local start = support.now()
      local op = hang:launch(support.one, flag)
      support.raises("Timeout", "'forever' was not over", op.await, op, 0.1)
      support.is_error(select(2, op:join(0.1)), "Timeout")
      support.raises("Timeout", {}, gpu.timeout, 0.1, function() op:await() end)
      support.raises("Timeout", {}, gpu.timeout, 0.1, function() while true do gpu.sleep(0) end end)
      local behind = inc:launch(support.one, x) -- is put there, and done when there is time for it
      support.is_error(select(2, behind:join(0.1)), "Timeout")
      assert.are.same({ false, false }, { op:done(), behind:done() })
      assert.truthy(support.now() - start < 5)
      op:deadline(0.1)
      support.raises("DeviceLost", "forever", op.await, op)
      dev:await()
      local y = dev:buffer("i32", 1):fill(4)
      inc:launch(support.one, y):await()
      assert.are.same({ 5 }, y:read())
      hang:launch(support.one, y:fill(0))
      start = support.now()
      dev:close()
      assert.truthy(support.now() - start < 10)
      start = support.now()
      local output, code = support.script([[
        local dev = require "gpulua".device(nil, { isolate = "process", check = true })
        local mod = dev:compile 'extern "C" __global__ void f(int *p) { volatile int *q = p; while (!q[0]) {} }'
        mod.f:launch({ grid = 1, block = 1 }, dev:buffer("i32", 1):fill(0))
      ]])
      assert.truthy(output:find("had not ended 5 s after the script", 1, true), output)
      assert.equal(1, code)
      assert.truthy(support.now() - start < 20)
    end)

    it("a script that ends does not wait for it for ever", function()
      local start = support.now()
      local output, code = support.script([[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local mod = dev:compile 'extern "C" __global__ void f(int *p) { volatile int *q = p; while (!q[0]) {} }'
        local flag = dev:buffer("i32", 1):fill(0)
        print(mod.f:launch({ grid = 1, block = 1 }, flag):join(0.05))
        os.exit(3, true)
      ]])
      assert.equal(3, code, output)
      assert.truthy(output:find("^false"), output)
      assert.truthy(support.now() - start < 30)
    end)
  end)

  it("is heard of by each task that has lost work, whoever else knows, and by no other", function()
    if not is_isolated then
      pending "the device lives in this process"
    end
    for _, way in ipairs { "another's operation", "await", "a hook", "another's read" } do
      local dev <close> = support.open { restarts = 5 }
      local mod = dev:compile(support.clock_source .. [[
        extern "C" __global__ void add(int *x, int by, long long ticks) {
          long long end = now() + ticks;
          while (now() < end) { }
          x[0] += by;
        }
        extern "C" __global__ void crash(int *x, long long at, long long ticks) {
          long long end = now() + ticks;
          while (now() < end) { }
          ((volatile int *)at)[0] = x[0];
        }]])
      local add, kernel, ticks = mod.add, mod.crash, support.ticks(0.05)
      local victim = dev:buffer("i32", 1):fill(1)
      local x = dev:buffer("i32", 1, { durable = true }):fill(0)
      local y = dev:buffer("i32", 1, { durable = true }):fill(7)
      gpu.all(x, y, victim)
      if way == "a hook" then
        dev:on_lost(function() dev:await() end)
      end
      local guilty = gpu.spawn(function()
        local op = kernel:launch({ grid = 1, block = 1 }, victim, 16, ticks)
        if way == "another's read" then
          pcall(y.read, y)
        else
          gpu.sleep(way == "another's operation" and 0 or 0.4)
          op:join()
        end
      end)
      local epoch = dev.epoch
      local loser = gpu.spawn(function()
        add:launch(support.one, x, 1, 40 * ticks) -- lost with the device
        assert.equal(epoch, dev.epoch)
        while dev.epoch == epoch do gpu.sleep(0.001) end
        gpu.sleep(0.02)
        add:launch(support.one, x, 2, 1)
        return x:read()[1]
      end)
      local other = gpu.spawn(function()
        while dev.epoch == epoch do gpu.sleep(0.001) end
        gpu.sleep(0.01)
        return y:read()[1]
      end)
      if way == "await" then
        gpu.sleep(0.2) -- it is lost meanwhile, and perhaps up again
        dev:await()
      end
      local went_well, seven = other:join()
      assert.are.same({ true, 7 }, { went_well, seven }, way)
      local ok, err = loser:join()
      assert.is_false(ok, way)
      assert.equal("DeviceLost", err.code, way)
      guilty:join()
      assert.are.same({ 2 }, x:read(), way)
    end
  end)

  it("is not told once more of tasks that have ended, or where the device stays lost, when somebody knows", function()
    for _, restarts in ipairs { 0, 5 } do
      local output, code = support.script(([[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = gpu.device(os.getenv "GPULUA_DEVICE", { restarts = %d })
        local spin, ticks = dev:compile(support.spin_source).spin, support.ticks(1)
        local x, y = dev:buffer("i32", 1, { durable = true }), dev:buffer("i32", 1, { durable = true })
        gpu.all(x:fill(1), y:fill(1))
        spin:launch(support.one, ticks, y, 2) -- runs when the device is lost
        gpu.spawn(function()
          dev:inject { fault = 1 }
          for _ = 1, 3 do pcall(spin.launch, spin, support.one, 0, x, 1) end -- and ends
        end)
        local ok, err = pcall(y.read, y)
        print(ok, err.code)
        pcall(dev.await, dev, 5)
        print "over"]]):format(restarts))
      assert.equal("false\tDeviceLost\nover\n", output, restarts)
      assert.equal(0, code, restarts)
    end
  end)

  it("leaves a graph that is being changed as it is to be, and not half of it", function()
    if not is_isolated then
      pending "the device lives in this process"
    end
    local dev <close> = support.open { restarts = 1000, window = 1 }
    local mod = dev:compile(support.spin_source .. [[
      extern "C" __global__ void add(const int *x, int *y, int a) { *y += a * *x; }]])
    local add, count, ticks = mod.add, 20000, support.ticks(0.3)
    local one = dev:buffer("i32", 1, { durable = true }):fill(1)
    local sum, s = dev:buffer("i32", 1, { durable = true }):fill(0), dev:buffer("i32", 1, { durable = true }):fill(0)
    local function body(a) for _ = 1, count do add:launch(support.one, one, sum, a) end end
    local fast <close> = dev:graphed(body)
    fast(1)
    fast(1)
    local graph <close> = dev:capture(function() body(1) end)
    local by_number = {}
    for i = 1, count do by_number[("add#%d.a"):format(i)] = 2 end
    local function change()
      pcall(graph.update, graph, function() body(2) end)
    end
    for _, what in ipairs { function() fast(2) end, change, function() graph:bind(by_number) end } do
      for _ = 1, 3 do
        local epoch = dev.epoch
        mod.spin:launch(support.one, ticks, s, 1)
        dev:inject { lost = 1 }
        pcall(mod.spin.launch, mod.spin, support.one, ticks, s, 1)
        pcall(what) -- in which the device is lost
        while dev.epoch == epoch do gpu.sleep(0.001) end
        dev:await()
        pcall(s.read, s)
        sum:fill(0)
        fast(1):await()
        assert.equal(count, sum:read()[1])
        sum:fill(0)
        graph:launch()
        assert.truthy(({ [count] = true, [2 * count] = true })[sum:read()[1]])
        graph:update(function() body(1) end)
      end
    end
  end)

  it("a script that is killed takes its device's process with it", function()
    local pid_path, script = os.tmpname(), os.tmpname()
    local build = os.getenv "GPULUA_BUILD" or "build"
    local file = assert(io.open(script, "w"))
    file:write(([[
      local support = require "spec.support"
      local dev, pid = support.open_with_pid { restarts = 0 }
      dev:upload("i32", { 1 }):await()
      local f = io.open(%q, "w")
      f:write(support.pid(), " ", pid)
      f:close()
      require "gpulua".sleep(60)
    ]]):format(pid_path))
    file:close()
    os.execute(("%s/gpulua %s >/dev/null 2>&1 &"):format(build, script))
    local parent, child
    assert.is_true(support.eventually(20, function()
      local f = io.open(pid_path)
      local text = f and f:read "a" or ""
      if f then
        f:close()
      end
      parent, child = text:match "^(%d+) (%d+)"
      return parent ~= nil
    end))
    assert.is_false(support.process_is_gone(child))
    os.execute("kill -9 " .. parent)
    assert.is_true(support.eventually(10, function() return support.process_is_gone(child) end))
    os.remove(script)
    os.remove(pid_path)
  end)
end)
