-- A device that is lost and comes up again: what is what it was, what is stale, what is restored, and how often.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a device that was lost", function()
  local is_isolated = support.is_isolated()
  local add = [[
    extern "C" __global__ void add(int n, int *x, int by) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) x[i] += by;
    }
  ]]
  local many <const> = { restarts = 1000 }

  teardown(support.close_all)

  local function open(opts)
    return support.open_with_pid(opts or many)
  end

  local lose <const> = support.lose

  if not is_isolated then
    it("in this process says that it stays so, and how it would not", function()
      local dev = support.open { restarts = 5 }
      local lost
      dev:on_lost(function(err) lost = err end)
      dev:on_restored(function() error "it cannot" end)
      local x = dev:buffer("i32", 4, { durable = true }):fill(1)
      assert.equal(x, x:checkpoint()) -- nothing needs to be kept
      dev:inject { fault = 1 }
      support.raises("DeviceLost", {}, function() dev:current():mark():await() end)
      support.raises("DeviceLost", "only one in a process of its own", dev.await, dev)
      support.raises("DeviceLost", {}, x.read, x)
      assert.is_true(support.eventually(5, function() return lost ~= nil end))
      assert.equal("DeviceLost", lost.code)
      assert.equal(1, dev.epoch)
      assert.equal(1, dev:stats().losses)
      assert.equal(0, dev:stats().returns)
      dev:close()
    end)
    return
  end

  it("comes up again: a later epoch, another process, and the script's handles are what they were", function()
    local dev <close> = open()
    local mod = dev:compile(add)
    local stream, other = dev:stream { label = "mine", priority = 0 }, dev:stream {}
    other:close()
    local scalar = dev:scalar("i32", 42)
    local host = dev:host("i32", 4):fill(7)
    local blas, plan = dev:blas(), dev:fft { shape = 8 }
    local signal = { 1, 0, 0, 0, 3, 0, 0, 0 }
    local spectrum = plan:forward(dev:upload("c64", signal)):read()
    for life = 1, 3 do
      lose(dev)
      assert.equal(life + 1, dev.epoch)
      assert.are.same({ 7, 7, 7, 7 }, host:read())
      assert.equal(42, scalar:get())
      local x = dev:buffer("i32", 1000):fill(1)
      mod.add:launch({ grid = 4, block = 256, stream = stream }, 1000, x, 5):await()
      assert.are.same({ 6, 6 }, x:read(999, 1000))
      assert.equal("mine", stream.label)
      local a = dev:upload("f32", { 1, 2, 3, 4 }):view("f32", { 2, 2 })
      assert.are.same({ 7, 10, 15, 22 }, (function()
        local c = dev:buffer("f32", { 2, 2 })
        blas:gemm { a = a, b = a, c = c }
        return c:read()
      end)())
      assert.are.same(spectrum, plan:forward(dev:upload("c64", signal)):read())
      assert.are.same({ 3, 4 }, gpu.map("x + 1", { x = dev:upload("i32", { 2, 3 }) }):read())
      scalar:set(42)
    end
    assert.equal(3, dev:stats().losses)
    assert.equal(3, dev:stats().returns)
  end)

  it("has stale buffers, which hold no memory any more", function()
    local dev <close> = open()
    local x = dev:buffer("u8", 1 << 20, { label = "mine" }):fill(1)
    local part = x:slice(1, 10)
    x:await()
    assert.truthy(dev:stats().bytes_live >= 1 << 20)
    lose(dev)
    for _, f in ipairs { x.read, x.fill, x.await, part.read } do
      support.raises("Stale", { "'mine'", "epoch 1" }, f, f == x.fill and x or f == part.read and part or x, 1)
    end
    local mod = dev:compile(add)
    support.raises("Stale", {}, function() mod.add:launch(support.one, 1, x, 1) end)
    assert.equal(0, dev:stats().bytes_live)
    assert.equal(0, dev:stats().bytes_reserved)
    x:close()
    x:close()
    support.works(dev)
  end)

  it("restores what is durable to what the script wrote last, never to what a kernel left", function()
    local dev <close> = open()
    local mod = dev:compile(add)
    local filled = dev:buffer("i32", 6, { durable = true }):fill(1)
    local fresh = dev:buffer("i32", 2, { durable = true })
    local written = dev:upload("i32", { 1, 2, 3, 4, 5, 6 }, { durable = true })
    written:write({ 30, 40 }, 3)
    written:slice(6, 6):fill(60)
    local kept = dev:buffer("i32", 6, { durable = true }):fill(1)
    local twin = dev:buffer("i32", 6):fill(1)
    mod.add:launch(6, 6, kept, 10)
    kept:checkpoint()
    for _, x in ipairs { filled, written, kept, twin } do
      mod.add:launch(6, 6, x, 100)
    end
    dev:synchronize()
    for _ = 1, 2 do
      lose(dev)
      assert.are.same({ 1, 1, 1, 1, 1, 1 }, filled:read())
      assert.are.same({ 0, 0 }, fresh:read())
      assert.are.same({ 1, 2, 30, 40, 5, 60 }, written:read())
      assert.are.same({ 11, 11, 11, 11, 11, 11 }, kept:read())
      support.raises("Stale", {}, twin.read, twin)
      mod.add:launch(6, 6, kept, 100):await()
    end
    local x = dev:buffer("i32", 1)
    support.raises("InvalidArgument", "not durable", x.checkpoint, x)
  end)

  it("restores a part of a durable buffer that was kept as it was then", function()
    local dev <close> = open()
    local x = dev:buffer("i32", 4, { durable = true }):fill(1)
    local mod = dev:compile(add)
    mod.add:launch(4, 4, x, 1)
    x:slice(2, 3):checkpoint()
    lose(dev)
    assert.are.same({ 1, 2, 2, 1 }, x:read())
  end)

  it("restores large durable buffers, and many", function()
    local dev <close> = open()
    local n = (1 << 20) + 7 -- longer than one transfer
    local large = dev:upload("f32", n, function(i) return i % 1000 end, { durable = true })
    local small = {}
    for i = 1, 300 do
      small[i] = dev:upload("i32", { i }, { durable = true })
    end
    lose(dev)
    assert.are.same({ 1, 2, (n - 1) % 1000, n % 1000 },
      { large:read(1)[1], large:read(2, 2)[1], large:read(n - 1, n - 1)[1], large:read(n, n)[1] })
    for i = 1, 300 do
      assert.equal(i, small[i]:read()[1])
    end
  end)

  it("has again the memory of what is durable = \"space\"", function()
    local dev <close> = open()
    local x = dev:buffer("i32", 1000, { durable = "space" }):fill(1)
    x:await()
    lose(dev)
    assert.are.same({ 9, 9 }, x:fill(9):read(1, 2))
    assert.equal(x.device, dev)
  end)

  it("calls rebuild once in each life, in the order in which buffers were made", function()
    local dev <close> = open()
    local calls, buffers = {}, {}
    for i = 1, 5 do
      buffers[i] = dev:buffer("i32", 2, { label = "b" .. i, rebuild = function(buffer)
        calls[#calls + 1] = i
        assert(buffer == buffers[i])
        gpu.sleep(0.001)
        buffer:fill(i)
      end }):fill(0)
    end
    buffers[2]:close()
    assert.are.same({}, calls)
    for life = 1, 2 do
      lose(dev)
      assert.are.same(life == 1 and { 1, 3, 4, 5 } or { 1, 3, 4, 5, 1, 3, 4, 5 }, calls)
      assert.are.same({ 5, 5 }, buffers[5]:read())
      assert.are.same({ 1, 1 }, buffers[1]:read())
    end
    -- What nobody has is not built.
    buffers, calls = {}, {}
    collectgarbage()
    collectgarbage()
    lose(dev)
    assert.are.same({}, calls)
  end)

  it("calls rebuild of buffers however they were made", function()
    local dev <close> = open()
    local mem = dev:memory { statistics = true }
    local function rebuild(buffer) buffer:fill(#buffer) end
    local uploaded = dev:upload("i32", { 1, 2, 3 }, { rebuild = rebuild })
    local sized = dev:upload("i32", 4, function(i) return i end, { rebuild = rebuild })
    local placed = mem:buffer("i32", 5, { rebuild = rebuild }):fill(0)
    local grouped, other = mem:buffers({ "i32", 6, { rebuild = rebuild } }, { "i32", 7, { durable = true } })
    grouped:fill(0)
    other:fill(9)
    dev:synchronize()
    lose(dev)
    for n, buffer in pairs { [3] = uploaded, [4] = sized, [5] = placed, [6] = grouped } do
      assert.are.same({ n, n }, buffer:read(n - 1, n))
    end
    assert.are.same({ 9, 9 }, other:read(6, 7))
  end)

  it("refuses to read what has not been built anew", function()
    support.wants_time(pending) -- it races with the rebuild, which check mode finds
    local dev <close> = open()
    local gate = true
    local x = dev:buffer("i32", 2, { label = "mine", rebuild = function(buffer)
      while gate do
        gpu.sleep(0.001)
      end
      buffer:fill(3)
    end }):fill(0)
    x:await()
    os.execute("kill -9 " .. dev.pid)
    local task = gpu.spawn(function()
      while dev.epoch == 1 do
        dev:await()
      end
    end)
    while dev.epoch == 1 do
      gpu.sleep(0.001)
    end
    local err = support.raises("DependencyFailed", "has not been built anew", x.read, x)
    assert.are.same({ "rebuild", "DeviceLost", 0 }, { err.root.label, err.root.code, err.root.stream })
    local mod = dev:compile(add)
    support.raises("DependencyFailed", {}, function() mod.add:launch(2, 2, x, 1):await() end)
    gate = false
    task:await()
    assert.are.same({ 3, 3 }, x:read())
    dev:synchronize()
  end)

  it("raises from await what rebuild has raised, and goes on with the others", function()
    local dev <close> = open()
    local bad = dev:buffer("i32", 2, { rebuild = function() error "no way" end }):fill(0)
    local good = dev:buffer("i32", 2, { rebuild = function(x) x:fill(4) end }):fill(0)
    os.execute("kill -9 " .. dev.pid)
    local ok, err
    assert.is_true(support.eventually(10, function()
      ok, err = pcall(dev.await, dev)
      return not ok
    end))
    assert.truthy(tostring(err):find("no way", 1, true))
    assert.are.same({ 4, 4 }, good:read())
    support.raises("DependencyFailed", {}, bad.read, bad)
    dev:await() -- it was said once
  end)

  it("goes on with a generator where it was", function()
    local dev <close> = open()
    local whole = dev:rng { seed = 5 }
    local words = dev:buffer("u32", 24)
    whole:bits(words)
    local wanted = words:read()
    local rng = dev:rng { seed = 5 }
    local got = {}
    for life = 1, 3 do
      local part, wide = dev:buffer("u32", 3), dev:buffer("u64", 2)
      rng:bits(part)
      rng:bits(wide) -- from an even place on
      table.move(part:read(), 1, 3, #got + 1, got)
      got[#got + 1] = false
      for _, value in ipairs(wide:read()) do
        got[#got + 1], got[#got + 2] = value & 0xffffffff, value >> 32
      end
      if life < 3 then
        lose(dev)
      end
    end
    for i, value in ipairs(got) do
      assert.equal(value and wanted[i] or false, value)
    end
    assert.equal(24, rng:state().offset)
  end)

  it("draws no number twice where graphs have drawn", function()
    local dev <close> = open()
    local rng = dev:rng { seed = 5 }
    local x = dev:buffer("u32", 64, { durable = "space" })
    local graph = dev:capture(function() rng:bits(x) end)
    local seen = {}
    for _ = 1, 3 do
      for _ = 1, 3 do
        graph:launch()
        for _, value in ipairs(x:read()) do
          assert.is_nil(seen[value])
          seen[value] = true
        end
      end
      lose(dev)
    end
  end)

  it("makes graphs anew when they are next launched, if what they use is there", function()
    local dev <close> = open()
    local mod = dev:compile(add)
    local x = dev:buffer("i32", 100, { durable = true }):fill(0)
    local y = dev:buffer("i32", 100):fill(0)
    local host = dev:host("i32", 100)
    local good = dev:capture(function()
      local temporary = dev:buffer("i32", 100):copy(x)
      mod.add:launch(100, 100, temporary, 5)
      host:copy(temporary)
    end)
    local stale = dev:capture(function() mod.add:launch(100, 100, y, 1) end)
    good:launch():await()
    stale:launch():await()
    for life = 1, 3 do
      lose(dev)
      x:fill(life)
      good:launch()
      assert.are.same({ life + 5, life + 5 }, host:read(99, 100))
      support.raises("Stale", {}, stale.launch, stale)
    end
  end)

  it("ends a capture that was under way", function()
    local dev <close> = open()
    local mod = dev:compile(add)
    local x = dev:buffer("i32", 1, { durable = true }):fill(0)
    x:await()
    local err = support.raises("CaptureInvalidated", "lost in the middle", function()
      dev:capture(function()
        mod.add:launch(support.one, 1, x, 1)
        os.execute("kill -9 " .. dev.pid)
        support.raises("CaptureActive", {}, function()
          while dev.epoch == 1 do
            dev:await() -- until it is noticed
          end
        end)
        while dev.epoch == 1 do
          gpu.sleep(0.001)
        end
        mod.add:launch(support.one, 1, x, 1)
      end)
    end)
    assert.truthy(err)
    local graph = dev:capture(function() mod.add:launch(support.one, 1, x, 1) end)
    graph:launch():await()
    assert.are.same({ 1 }, x:read())
  end)

  it("has no variables of modules but new ones", function()
    local dev <close> = open()
    local mod = dev:compile [[
      __device__ int total = 3;
      extern "C" __global__ void count(int *x) { total += 1; x[0] = total; }
    ]]
    local x = dev:buffer("i32", 1, { durable = "space" })
    local total = mod:global "total"
    mod.count:launch(support.one, x)
    assert.are.same({ 4 }, x:read())
    assert.are.same({ 4 }, total:read())
    lose(dev)
    support.raises("Stale", {}, total.read, total)
    mod.count:launch(support.one, x)
    assert.are.same({ 4 }, x:read())
    assert.are.same({ 4 }, mod:global "total":read())
  end)

  it("restores what is durable in other memory, and not with guards", function()
    local dev <close> = open()
    for _, opts in ipairs { { from = "driver" }, { from = "direct" }, { budget = 1 << 20 }, { statistics = true } } do
      local mem = dev:memory(opts)
      local x = dev:buffer("i32", 100, { memory = mem, durable = true }):fill(6)
      x:await()
      local stale = dev:buffer("i32", 100, { memory = mem }):fill(1)
      stale:await()
      lose(dev)
      if opts.from ~= "direct" then
        assert.are.same({ 6, 6 }, x:read(99, 100))
      end
      support.raises("Stale", {}, stale.read, stale)
      local after = dev:buffer("i32", 100, { memory = mem })
      after:close()
      x:close()
    end
    support.raises("Unsupported", "guard", dev.buffer, dev, "i32", 1,
      { memory = dev:memory { guard = true }, durable = true })
    local guarded = dev:memory { guard = true }
    local b = guarded:buffer("i32", 100):fill(1)
    b:await()
    lose(dev)
    support.raises("Stale", {}, b.read, b)
    b:close()
    assert.equal(guarded, guarded:check())
    local c = guarded:buffer("i32", 100):fill(1)
    c:close()
    assert.equal(guarded, guarded:check())
  end)

  it("raises from new work until it is up, and says that it is coming", function()
    local dev <close> = open()
    local mod = dev:compile(add)
    local x = dev:buffer("i32", 1, { durable = true }):fill(0)
    local stream = dev:stream {}
    x:await()
    os.execute("kill -9 " .. dev.pid)
    support.raises("DeviceLost", {}, function()
      while true do
        mod.add:launch(support.one, 1, x, 1):await()
      end
    end)
    for _, f in ipairs {
      function() x:read() end, function() x:fill(1) end, function() dev:buffer("i32", 1) end,
      function() dev:compile "__global__ void f() {}" end, function() dev:synchronize() end,
      function() mod.add:launch(support.one, 1, x, 1) end, function() stream:mark() end,
      function() dev:stream {} end, function() dev:host("i32", 1) end, function() dev:capture() end,
    } do
      support.raises("DeviceLost", "it is coming up again", f)
    end
    assert.truthy(tostring(dev):find("coming up again", 1, true))
    assert.equal(1, dev.epoch)
    support.raises("Timeout", ("device %s was not back after 0 s"):format(dev.name), dev.await, dev, 0)
    dev:await(10)
    assert.are.same({ 0 }, x:read())
    stream:mark():await()
    assert.equal(dev, dev:await())
  end)

  it("calls on_lost and on_restored each time", function()
    local dev <close> = open()
    local heard = {}
    dev:on_lost(function(err) heard[#heard + 1] = err.code end)
    assert.equal(dev, dev:on_restored(function(device)
      assert(device == dev)
      device:buffer("i32", 1):fill(1):await()
      heard[#heard + 1] = device.epoch
    end))
    for i = 1, 2 do
      lose(dev)
      gpu.timeout(30, function()
        while #heard < 2 * i do gpu.sleep(0.01) end
      end)
    end
    gpu.sleep(0.05) -- and no more
    assert.are.same({ "DeviceLost", 2, "DeviceLost", 3 }, heard)
    support.raises("InvalidArgument", "on_lost", dev.on_lost, dev, 1)
    support.raises("InvalidArgument", "on_restored", dev.on_restored, dev)
    support.raises("InvalidArgument", { "what on_lost is called on", "got nil" }, dev.on_lost, nil, print)
    support.raises("InvalidArgument", { "what on_restored is called on", "got table" }, dev.on_restored, {}, print)
  end)

  it("calls on_lost with the suspects that the failed work has", function()
    local dev <close> = open()
    local heard
    dev:on_lost(function(err) heard = err end)
    local x = dev:buffer("i32", 1):fill(0)
    x:await()
    dev:inject { fault = 1 }
    x:fill(1)
    local _, failed = dev:current():mark():join()
    assert.is_true(support.eventually(10, function() return heard ~= nil end))
    support.is_error(heard, "DeviceLost")
    assert.are.same(failed.suspects, heard.suspects)
    assert.equal("fill", heard.suspects[1].label)
    dev:await()
  end)

  it("comes up so often within the window, then it is Unrecoverable", function()
    local dev <close> = open { restarts = 2, window = 60 }
    local heard = {}
    dev:on_lost(function(err) heard[#heard + 1] = err.code end)
    local x = dev:buffer("i32", 1, { durable = true }):fill(1)
    x:await()
    lose(dev)
    gpu.sleep(0.02)
    lose(dev)
    gpu.sleep(0.02)
    os.execute("kill -9 " .. dev.pid)
    local err
    support.eventually(10, function()
      local ok, why = pcall(dev.await, dev)
      err = why
      return not ok
    end)
    support.is_error(err, "Unrecoverable", "2 times within 60 s")
    assert.truthy(err.hint)
    support.raises("Unrecoverable", {}, x.read, x)
    support.raises("Unrecoverable", {}, dev.buffer, dev, "i32", 1)
    assert.is_true(support.eventually(5, function() return heard[#heard] == "Unrecoverable" end))
    local stats = dev:stats()
    assert.are.same({ 2, 3, 2 }, { stats.limit_restarts, stats.losses, stats.returns })
  end)

  it("comes up again once the window has moved on", function()
    local window -- s; longer than a return takes, whatever else the machine does
    do
      local dev <close> = open()
      local begun = support.now()
      lose(dev)
      window = math.max(0.3, 4 * (support.now() - begun))
    end
    local dev <close> = open { restarts = 1, window = window }
    for _ = 1, 3 do
      lose(dev)
      gpu.sleep(window + 0.1)
    end
    lose(dev)
    local ok, err
    for _ = 1, 8 do -- the next one within the window, unless the machine stands still before it
      local epoch = dev.epoch
      os.execute("kill -9 " .. dev.pid)
      assert.is_true(support.eventually(10, function()
        ok, err = pcall(dev.await, dev)
        return not ok or dev.epoch > epoch
      end))
      if not ok then
        break
      end
    end
    assert.is_false(ok)
    support.is_error(err, "Unrecoverable")
  end)

  it("stays lost where it is not to come up", function()
    local dev <close> = open { restarts = 0 }
    local x = dev:buffer("i32", 1, { durable = true }):fill(1)
    x:await()
    os.execute("kill -9 " .. dev.pid)
    assert.is_true(support.eventually(10, function()
      local ok, err = pcall(dev.await, dev)
      return not ok and err.code == "DeviceLost"
    end))
    support.raises("DeviceLost", {}, x.read, x)
    assert.equal(1, dev.epoch)
    assert.equal(0, dev:stats().returns)
  end)

  it("refuses what makes no sense of its options", function()
    for _, case in ipairs { { { restarts = -1 }, "restarts" }, { { restarts = "often" }, "restarts" },
      { { window = 0 }, "window" }, { { window = "long" }, "window" }, { { window = 0 / 0 }, "window" } } do
      support.raises("InvalidArgument", case[2], support.open, case[1])
    end
    local dev <close> = open()
    for _, case in ipairs { { { durable = 1 }, "durable" }, { { durable = "yes" }, "durable" },
      { { rebuild = 1 }, "rebuild" }, { { durable = true, rebuild = print }, "durable or rebuild" } } do
      support.raises("InvalidArgument", case[2], dev.buffer, dev, "i32", 1, case[1])
    end
    support.raises("CaptureActive", {}, dev.capture, dev, function() dev:buffer("i32", 1, { durable = true }) end)
  end)

  it("loses what was in flight alone, and wakes every task", function()
    support.wants_time(pending)
    local dev <close> = open()
    local mod = dev:compile(support.spin_source)
    local x = dev:buffer("i32", 1, { durable = "space" })
    local over = dev:stream {}:mark():await()
    local op = mod.spin:launch(support.one, support.ticks(30), x, 1)
    local tasks = {}
    for i = 1, 20 do
      tasks[i] = gpu.spawn(function()
        local ok, err = op:join()
        local code = not ok and err.code
        dev:await()
        dev:buffer("i32", 1):fill(1):await()
        return code
      end)
    end
    gpu.sleep(0.02)
    os.execute("kill -9 " .. dev.pid)
    for _, task in ipairs(tasks) do
      assert.equal("DeviceLost", task:await())
    end
    assert.is_true((over:join()))
    assert.equal(2, dev.epoch)
  end)

  it("lets timers and other devices go on meanwhile", function()
    local dev <close> = open()
    local well <close> = support.open()
    local x = well:buffer("i32", 1000):fill(1)
    local longest, least, count, is_over = 0, math.huge, 0, false
    local ticker = gpu.spawn(function()
      local before = support.now()
      while not is_over do
        gpu.sleep(0.001)
        x:fill(count):await()
        local now = support.now()
        longest, before, count = math.max(longest, now - before), now, count + 1
      end
    end)
    for _ = 1, 3 do
      longest = 0
      lose(dev)
      gpu.sleep(0.002)
      least = math.min(least, longest)
    end
    is_over = true
    ticker:await()
    assert.truthy(count > 0, count)
    -- What blocks is the start of a process; a busy machine may take a while for it, but not each time.
    assert.truthy(least < 0.5, least)
    assert.equal(1, well.epoch)
  end)

  it("can be closed on its way, which wakes who waits for it", function()
    for round = 1, 10 do
      local dev = open()
      local x = dev:buffer("i32", 1000):fill(1)
      x:await()
      os.execute("kill -9 " .. dev.pid)
      pcall(x.read, x)
      local task = gpu.spawn(function() dev:await() end)
      gpu.sleep(round * 0.0005)
      dev:close()
      local ok, err = task:join()
      assert.truthy(ok or err.code == "Closed", tostring(err))
      support.raises("Closed", {}, dev.await, dev)
    end
  end)

  it("is lost again at any time on its way, and comes up nevertheless", function()
    local dev <close> = open()
    local mod = dev:compile(add)
    local x = dev:upload("i32", { 1, 2, 3 }, { durable = true })
    local built = dev:buffer("i32", 3, { rebuild = function(b) b:fill(8) end }):fill(8)
    local stream = dev:stream {}
    for round = 1, 40 do
      os.execute("kill -9 " .. dev.pid)
      pcall(x.read, x)
      gpu.sleep((round - 1) % 20 * 0.0004)
      local next_pid = dev.pid
      if next_pid then
        os.execute("kill -9 " .. next_pid)
        support.eventually(10, function()
          pcall(dev.synchronize, dev)
          return support.process_is_gone(next_pid)
        end)
      end
      while true do
        local ok, err = pcall(dev.await, dev)
        if ok then
          break
        end
        assert.equal("DeviceLost", err.code, tostring(err))
      end
      assert.are.same({ 1, 2, 3 }, x:read())
      assert.are.same({ 8, 8, 8 }, built:read())
      local y = dev:buffer("i32", 3):fill(0)
      mod.add:launch({ grid = 1, block = 3, stream = stream }, 3, y, 4)
      assert.are.same({ 4, 4, 4 }, y:read())
    end
  end)

  it("leaves nothing behind, however often", function()
    collectgarbage()
    collectgarbage()
    local _, children_before = support.children()
    local files_before = support.descriptors()
    do
      local dev <close> = open()
      local mod = dev:compile(add)
      local x = dev:buffer("i32", 1000, { durable = true }):fill(1)
      local graph = dev:capture(function() mod.add:launch(1000, 1000, x, 1) end)
      local blocks, live, reserved, files, children
      for round = 1, 30 do
        local y = dev:buffer("i32", 100000):fill(1)
        mod.add:launch(1000, 1000, y, 1)
        graph:launch():await()
        lose(dev)
        y:close()
        collectgarbage()
        collectgarbage()
        dev:synchronize()
        local stats = dev:stats()
        local _, child_count = support.children()
        if round == 5 then
          blocks, live, reserved = stats.blocks_live, stats.bytes_live, stats.bytes_reserved
          files, children = support.descriptors(), child_count
        elseif round > 5 then
          assert.are.same({ blocks, live, reserved, files, children },
            { stats.blocks_live, stats.bytes_live, stats.bytes_reserved, (support.descriptors()), child_count })
        end
      end
      assert.are.same({ 2 }, (function() graph:launch() return x:read(1, 1) end)())
    end
    collectgarbage()
    local _, children_after = support.children()
    assert.equal(children_before, children_after)
    assert.equal(files_before, (support.descriptors()))
  end)

  it("is lost while memory is asked for, with every kind of memory", function()
    support.wants_time(pending)
    for _, opts in ipairs { {}, { guard = true }, { from = "driver", statistics = true }, { from = "direct" },
      { budget = 1 << 33 } } do
      local dev <close> = open()
      local mem = dev:memory(opts)
      local first = mem:buffer("i32", 100)
      local blocks = dev:stats().blocks_live
      for _ = 1, 3 do
        os.execute("kill -9 " .. dev.pid)
        local ok, made = pcall(mem.buffer, mem, "u8", 300 << 20) -- has to be asked for
        if ok then -- it was quick enough
          made:close()
        end
        support.eventually(10, function()
          dev:await()
          return support.process_is_gone(dev.pid) == false and dev.epoch > 1
        end)
        local x <close> = mem:buffer("i32", 100)
        x:fill(3)
        if opts.from ~= "direct" then
          assert.are.same({ 3, 3 }, x:read(99, 100))
        end
      end
      first:close()
      collectgarbage()
      dev:synchronize()
      assert.truthy(dev:stats().blocks_live <= blocks, blocks)
    end
  end)

  it("is lost and up again while garbage is collected for a buffer", function()
    support.wants_time(pending)
    local dev <close> = support.open_with_pid { restarts = 1000, budget = 64 << 20 }
    local held = dev:buffer("u8", 40 << 20)
    held:fill(1):await()
    local collected
    setmetatable({}, { __gc = function()
      collected = true
      os.execute("kill -9 " .. dev.pid)
      local epoch = dev.epoch
      while dev.epoch == epoch do
        pcall(dev.await, dev)
      end
    end })
    assert.is_nil((function() held = nil return held end)())
    for _, durable in ipairs { false, true } do
      local ok, x = pcall(dev.buffer, dev, "u8", 40 << 20, { durable = durable })
      assert.is_true(collected)
      dev:await()
      if ok then
        x:fill(7)
        assert.are.same({ 7 }, x:read(1, 1))
        x:close()
      else
        support.is_error(x, x.code == "OutOfBudget" and "OutOfBudget" or "DeviceLost")
      end
      collectgarbage()
      dev:synchronize()
      assert.equal(0, dev:stats().bytes_live)
    end
  end)

  it("is lost while a guard looks at its memory", function()
    local dev <close> = open()
    local mem = dev:memory { guard = true }
    for _ = 1, 5 do
      local buffers = {}
      for i = 1, 5 do
        buffers[i] = mem:buffer("i32", 100):fill(1)
      end
      for i = 1, 5, 2 do
        buffers[i]:close()
      end
      dev:synchronize()
      local epoch = dev.epoch
      os.execute("kill -9 " .. dev.pid)
      pcall(mem.check, mem)
      assert.is_true(support.eventually(10, function() return dev:await().epoch > epoch end))
      assert.is_nil((function() buffers = nil return buffers end)())
      collectgarbage()
      assert.equal(mem, mem:check())
    end
  end)

  it("builds anew in each life, also behind a rebuild that failed or that a loss ended", function()
    local dev <close> = open()
    local calls, restored = 0, 0
    local x = dev:buffer("i32", 2, { rebuild = function(b)
      calls = calls + 1
      if calls == 1 then
        error "not the first time"
      elseif calls == 3 then
        os.execute("kill -9 " .. dev.pid)
        local epoch = dev.epoch
        while dev.epoch == epoch do
          gpu.sleep(0.001)
        end
      end
      assert(dev:await() == dev and dev:await(5) == dev) -- in the middle of it
      b:fill(calls)
    end }):fill(0)
    dev:on_restored(function() restored = restored + 1 end)
    x:await()
    local function lose_unawaited()
      local epoch = dev.epoch
      os.execute("kill -9 " .. dev.pid)
      while dev.epoch == epoch do
        pcall(x.read, x)
        gpu.sleep(0.001)
      end
    end
    lose_unawaited()
    assert.is_true(support.eventually(5, function() return calls == 1 and restored == 1 end))
    support.raises("DependencyFailed", {}, x.read, x)
    lose_unawaited()
    assert.is_true(support.eventually(5, function() return calls == 2 and restored == 2 end))
    assert.are.same({ 2, 2 }, x:read())
    lose_unawaited() -- which is lost again in the middle of the rebuild
    assert.is_true(support.eventually(5, function() return calls == 4 end))
    dev:await()
    assert.are.same({ 4, 4 }, x:read())
  end)

  it("is lost while thousands of durable buffers are restored, and tells of that once", function()
    local dev <close> = open()
    local kept = {}
    for i = 1, 3000 do
      kept[i] = dev:buffer("i32", 1, { durable = true }):fill(i)
    end
    dev:synchronize()
    for _ = 1, 8 do
      os.execute("kill -9 " .. dev.pid)
      pcall(dev.synchronize, dev)
      gpu.sleep(0.004)
      local pid = dev.pid
      if pid then
        os.execute("kill -9 " .. pid)
      end
    end
    dev:await() -- else it may be the life before the last one that is over
    lose(dev)
    for i = 1, 3000, 7 do
      assert.are.same({ i }, kept[i]:read())
    end
  end)

  it("refuses to read host memory that a lost operation was to write", function()
    support.wants_time(pending)
    local dev <close> = open()
    local mod = dev:compile(support.spin_source)
    local host, other, x = dev:host("i32", 4):fill(77), dev:host("i32", 4):fill(78), dev:buffer("i32", 4):fill(1)
    x:await()
    mod.spin:launch(support.one, support.ticks(30), x, 1)
    host:copy(x)
    lose(dev)
    support.raises("DeviceLost", "'copy' may have been running", host.read, host)
    assert.are.same({ 78, 78, 78, 78 }, other:read())
    assert.are.same({ 5, 5, 5, 5 }, host:fill(5):read())
  end)

  it("takes no work between two lives", function()
    local dev <close> = open()
    local mod = dev:compile [[extern "C" __global__ void nothing(int n) { }]]
    local codes = {}
    for _ = 1, 6 do
      dev:inject { fault = 100 }
      local ops = {}
      for i = 1, 15000 do
        local ok, op = pcall(mod.nothing.launch, mod.nothing, support.one, i)
        if not ok then
          codes[op.code] = true
          break
        end
        ops[i] = op
      end
      for _, op in ipairs(ops) do
        local ok, err = op:join()
        codes[ok or err.code] = true
      end
      dev:await()
    end
    codes[true] = nil
    assert.are.same({ DeviceLost = true }, codes)
  end)

  it("unloads what is let go of while it comes up", function()
    local dev <close> = open()
    -- So deep as compilers go (NVRTC: 200), and eight of them.
    local slow = dev:compile("template <int N, int M> struct f { static const int v = f<N - 1, M>::v + 1; };\n"
      .. "template <int M> struct f<0, M> { static const int v = 0; };\n"
      .. 'extern "C" __global__ void a(int *x) { x[0] = f<100, 1>::v + f<100, 2>::v + f<100, 3>::v + f<100, 4>::v\n'
      .. "  + f<100, 5>::v + f<100, 6>::v + f<100, 7>::v + f<100, 8>::v; }")
    for round = 1, 5 do
      local quick = dev:compile(('extern "C" __global__ void b(int *x) { x[0] = %d; }'):format(round))
      os.execute("kill -9 " .. dev.pid)
      pcall(dev.synchronize, dev)
      gpu.sleep(round * 0.001)
      quick:close()
      assert.is_nil((function() quick = nil return quick end)())
      collectgarbage()
      dev:await() -- which is lost in the middle of that could be up before its death is seen
      lose(dev)
      local x = dev:buffer("i32", 1)
      dev:compile(('extern "C" __global__ void c(int *x) { x[0] = %d; }'):format(round + 100)).c:launch(support.one, x)
      assert.are.same({ round + 100 }, x:read())
      slow.a:launch(support.one, x)
      assert.are.same({ 800 }, x:read())
    end
  end)

  it("knows where a generator is that others drew from while its state was read", function()
    local dev <close> = open()
    local rng, x = dev:rng { seed = 3 }, dev:buffer("u32", 64, { durable = "space" })
    rng:bits(x)
    local task = gpu.spawn(function() return rng:state() end)
    gpu.sleep(0)
    rng:bits(x)
    local before = x:read()
    task:await()
    lose(dev)
    support.raises("InvalidArgument", {}, rng.bits, rng)
    rng:bits(x)
    assert.are_not.same(before, x:read())
    assert.equal(192, rng:state().offset)
  end)

  it("tries again where its process cannot be started, for a while", function()
    local folder = os.tmpname()
    os.remove(folder)
    os.execute(("mkdir %s && cp %s %s/exec"):format(folder, os.getenv "GPULUA_EXECUTOR"
      or os.getenv "GPULUA_BUILD" .. "/gpulua-exec", folder))
    for _, is_back in ipairs { true, false } do
      local output, code = support.script(([[
        local gpu = require "gpulua"
        local dev = gpu.device(os.getenv "GPULUA_DEVICE",
          { isolate = "process", restarts = 1, window = IS_BACK and 60 or 0.3 })
        dev:on_lost(function(err) print(err.code) end)
        local x = dev:buffer("i32", 4, { durable = true }):fill(6)
        x:await()
        os.rename("FOLDER/exec", "FOLDER/away")
        os.execute("kill -9 " .. dev.pid)
        gpu.spawn(function()
          gpu.sleep(0.12)
          if IS_BACK then os.rename("FOLDER/away", "FOLDER/exec") end
        end)
        while dev.epoch == 1 do
          local ok, err = pcall(dev.await, dev)
          if not ok then print(err.message) break end
        end
        if dev.epoch == 2 then print(x:read(1, 1)[1]) end
      ]]):gsub("FOLDER", folder):gsub("IS_BACK", tostring(is_back)), "GPULUA_EXECUTOR=" .. folder .. "/exec")
      if is_back then
        assert.equal("DeviceLost\n6\n", output)
      else
        assert.truthy(output:find("did not come up again: cannot start the executor", 1, true), output)
        assert.truthy(output:find("could not be restarted for 0.3 s", 1, true), output)
      end
      assert.equal(0, code, output)
      os.rename(folder .. "/away", folder .. "/exec")
    end
    os.execute("rm -r " .. folder)
  end)

  it("counts the events of all its lives", function()
    local dev <close> = open()
    for _ = 1, 5 do dev:stream():use(function() dev:buffer("i32", 4):fill(1) end) end
    dev:synchronize()
    local before = dev:stats().events_created
    lose(dev)
    assert.truthy(before > 0)
    assert.truthy(dev:stats().events_created >= before)
  end)

  it("restores what a recorder held, which ends with the device", function()
    local dev <close> = open()
    local x = dev:buffer("i32", 4, { durable = true }):fill(100)
    x:await()
    local recorder <close> = dev:recorder { stream = dev:stream() }
    recorder:write(x):preflight()
    lose(dev)
    assert.are.same({ 100, 100, 100, 100 }, x:read())
    support.raises("DeviceLost", "between preflight and commit", recorder.commit, recorder)
    x:fill(3)
    assert.are.same({ 3, 3, 3, 3 }, x:read())
  end)

  it("comes up again from injected faults and from kernels that crash", function()
    local dev <close> = open()
    local mod = dev:compile [[
      extern "C" __global__ void crash(int *x, long long at) { ((volatile int *)at)[0] = x[0]; }
    ]]
    local x = dev:buffer("i32", 1, { durable = true }):fill(5)
    for _, what in ipairs { "fault", "lost" } do
      dev:inject { [what] = 1 }
      support.raises("DeviceLost", {}, function() dev:current():mark():await() end)
      dev:await()
      assert.are.same({ 5 }, x:read())
    end
    local op = mod.crash:launch({ grid = 1, block = 1, label = "crashes" }, x, 16)
    local err = support.raises("DeviceLost", {}, op.await, op)
    assert.equal("crashes", err.suspects[1].label)
    dev:await()
    assert.are.same({ 5 }, x:read())
    assert.equal(4, dev.epoch)
  end)
end)
