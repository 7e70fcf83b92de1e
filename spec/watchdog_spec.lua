-- Work that does not end: deadlines of operations, and the watchdog of a device.

local gpu = require "gpulua"
local support = require "spec.support"

describe("work that does not end", function()
  local is_isolated = support.is_isolated()
  local forever = support.clock_source .. [[
    extern "C" __global__ void forever(volatile int *flag, long long ticks) {
      long long end = now() + ticks;
      while (flag[0] == 0 && (ticks == 0 || now() < end)) { }
    }
  ]]
  local one, once = { grid = 1, block = 1 }, support.once

  teardown(support.close_all)

  --- A device, its kernel, and ticks that are for ever where the kernel ends with its process, else a second.
  local function open(opts)
    opts.restarts = 100
    local dev = support.open(opts)
    return dev, dev:compile(forever).forever, is_isolated and 0 or support.ticks(1)
  end

  before_each(function() support.wants_time(pending) end)

  it("is ended by its deadline, which names it", function()
    local dev, kernel, ticks = open {}
    local flag = dev:buffer("i32", 1, { durable = true }):fill(0)
    flag:await()
    local begun = support.now()
    local op = kernel:launch({ grid = 1, block = 1, label = "stuck" }, flag, ticks):deadline(0.1)
    local behind = kernel:launch({ grid = 1, block = 1, label = "behind" }, flag, ticks)
    local err = support.raises("DeviceLost", { "'stuck' had not ended 0.1 s after its deadline was set" }, op.await, op)
    local taken = support.now() - begun
    assert.truthy(taken >= 0.1 and taken < (ticks == 0 and 10 or 0.9), taken) -- 0: else it never ends
    assert.equal("stuck", err.op.label)
    assert.equal("stuck", err.suspects[1].label)
    support.raises("DeviceLost", {}, behind.await, behind)
    if is_isolated then
      dev:await()
      assert.equal(2, dev.epoch)
      assert.are.same({ 0 }, flag:read())
    else
      support.raises("DeviceLost", {}, flag.read, flag)
    end
    dev:close()
  end)

  it("is ended by its deadline while nobody waits for that operation", function()
    local dev, kernel, ticks = open {}
    local flag = dev:buffer("i32", 1):fill(0)
    local lost
    local sleeper = gpu.spawn(gpu.sleep, 60)
    dev:on_lost(function(err)
      lost = err
      sleeper:cancel()
    end)
    local op = kernel:launch(one, flag, ticks):deadline(0.05)
    sleeper:join()
    assert.truthy(lost and lost.message:find("'forever' had not ended 0.05 s", 1, true), tostring(lost))
    assert.is_true(op:done())
    op:join()
    dev:close()
  end)

  it("is ended with its process also where the device does not come up again", function()
    if not is_isolated then
      pending "there is no process"
    end
    local dev, pid = support.open_with_pid { restarts = 0 }
    local flag = dev:buffer("i32", 1):fill(0)
    local op = dev:compile(forever).forever:launch(one, flag, 0):deadline(0.1)
    support.raises("DeviceLost", {}, op.await, op)
    assert.is_true(support.eventually(30, function()
      local status = support.read_file(("/proc/%d/stat"):format(pid))
      return not status or status:find(") Z ", 1, true) ~= nil -- it stays so until the device is closed
    end))
    dev:close()
  end)

  it("wakes tasks, and a wait outside of them", function()
    local dev, kernel, ticks = open {}
    local flag = dev:buffer("i32", 1):fill(0)
    local op = kernel:launch(one, flag, ticks):deadline(0.05)
    local tasks = {}
    for i = 1, 5 do
      tasks[i] = gpu.spawn(function() return select(2, op:join()).code end)
    end
    support.raises("DeviceLost", {}, op.await, op)
    for i = 1, 5 do
      assert.equal("DeviceLost", tasks[i]:await())
    end
    dev:close()
  end)

  it("leaves alone what ends in time, and what is over", function()
    local dev, kernel = open {}
    local flag = dev:buffer("i32", 1):fill(1)
    for _ = 1, 50 do
      local op = kernel:launch(one, flag, 0):deadline(5)
      assert.equal(op, op:await())
      assert.equal(op, op:deadline(0))
    end
    local op = kernel:launch(one, flag, 0):deadline(5)
    op:deadline(10) -- instead
    op:await()
    gpu.sleep(0.02)
    assert.equal(1, dev.epoch)
    assert.equal(0, dev:stats().losses)
    for _, seconds in ipairs { -1, 0 / 0, "soon", 1e10 } do
      support.raises("InvalidArgument", "deadline", op.deadline, op, seconds)
    end
    support.raises("InvalidArgument", "deadline", op.deadline, op)
    support.raises("CaptureActive", {}, dev.capture, dev, function() kernel:launch(one, flag, 0):deadline(1) end)
    support.raises("InvalidArgument", "seconds, a number from 0 to 1e9, expected, got inf", op.deadline, op, math.huge)
    dev:close()
  end)

  it("has many deadlines at once, and one again and again", function()
    local dev, kernel, ticks = open {}
    local flag, shut = dev:buffer("i32", 1):fill(1), dev:buffer("i32", 1):fill(0)
    local begun = support.now()
    for _ = 1, 3 do
      local ops = {}
      for i = 1, 5000 do
        ops[i] = kernel:launch(one, flag, 0):deadline(60)
        ops[(i - 1) % 7 + 1]:deadline(60 + i)
      end
      dev:synchronize()
    end
    assert.truthy(support.now() - begun < 20)
    assert.equal(0, dev:stats().losses)
    local op = kernel:launch({ grid = 1, block = 1, label = "stuck" }, shut, ticks):deadline(60):deadline(0.05)
    support.raises("DeviceLost", "'stuck' had not ended 0.05 s", op.await, op)
    dev:close()
  end)

  it("is found by the watchdog, wherever it is", function()
    local dev, kernel, ticks = open { watchdog = 0.4 }
    local flag, done = dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1):fill(1)
    local op = kernel:launch({ grid = 1, block = 1, label = "stuck" }, flag, ticks)
    local other = dev:stream {}
    local begun = support.now()
    while not op:done() do -- other work goes on meanwhile
      pcall(kernel.launch, kernel, { grid = 1, block = 1, stream = other }, done, 0)
      gpu.sleep(0.005)
      assert.truthy(support.now() - begun < 10)
    end
    support.raises("DeviceLost", "'stuck' had not ended 0.4 s after what was in front of it", op.await, op)
    assert.truthy(support.now() - begun >= 0.4)
    dev:close()
  end)

  -- More arguments than the executor's ring holds behind a kernel that does not end.
  local many = "extern \"C\" __global__ void many(" ..
    ("long long, "):rep(11) .. "int *x) { x[0] += 1; }"
  local numbers = {}
  for i = 1, 11 do numbers[i] = i end

  it("is ended also where the script waits for room to launch more, by the watchdog and by a deadline", function()
    if not is_isolated then
      pending "the work would end first"
    end
    for _, way in ipairs { "watchdog", "deadline" } do
      local dev, kernel = open { watchdog = way == "watchdog" and 0.3 or nil }
      local flag, x <close> = dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1):fill(0)
      local add = dev:compile(many).many
      numbers[12] = x
      local stuck = kernel:launch({ grid = 1, block = 1, label = "stuck" }, flag, 0)
      if way == "deadline" then
        stuck:deadline(0.3)
      end
      local begun, launched = support.now(), 0
      local ok, err = pcall(function()
        while launched < 60000 do
          add:launch({ grid = 1, block = 1 }, table.unpack(numbers))
          launched = launched + 1
        end
      end)
      local taken = support.now() - begun
      assert.is_false(ok)
      assert.equal("DeviceLost", err.code)
      assert.truthy(err.message:find("'stuck' had not ended 0.3 s", 1, true), err.message)
      assert.truthy(launched > 100 and taken > 0.2 and taken < 8, launched .. " in " .. taken)
      stuck:join()
      dev:await()
      assert.equal(2, dev.epoch)
      numbers[12] = dev:buffer("i32", 1):fill(0)
      assert.are.same({ 1 }, (function()
        add:launch({ grid = 1, block = 1 }, table.unpack(numbers))
        return numbers[12]:read()
      end)())
      support.works(dev)
      dev:close()
    end
  end)

  it("is not what takes its turn, for the watchdog", function()
    local dev, kernel = open { watchdog = 0.5 }
    local flag = dev:buffer("i32", 1):fill(0)
    local other = dev:stream {}
    local ticks = support.ticks(0.1)
    local op
    for i = 1, 12 do -- longer together than the watchdog allows one
      op = kernel:launch({ grid = 1, block = 1, stream = i % 2 == 0 and other or nil }, flag, ticks)
    end
    local last = dev:stream {}
    last:wait(op)
    last:mark():await()
    gpu.sleep(0.7) -- nothing is in flight: nothing is too long
    assert.equal(0, dev:stats().losses)
    support.works(dev)
    dev:close()
  end)

  it("is not what was over while the device loaded code", function()
    local dev, kernel = open { watchdog = 0.5 }
    if dev.kind == "cpu" then
      pending "loading code waits for nothing there"
    end
    local flag, ticks = dev:buffer("i32", 1):fill(0), support.ticks(0.1)
    local streams, loads = { dev:stream {}, dev:stream {} }, {}
    local function load()
      local ptx = (".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry set(.param .u64 p) {\n"
        .. ".reg .u64 %%p; ld.param.u64 %%p, [p]; st.global.u32 [%%p], %d; ret; }\n"):format(#loads)
      loads[#loads + 1] = gpu.spawn(function() return dev:load(ptx):kernel("set", "out i32*") end)
      gpu.sleep(0)
    end
    kernel:launch(one, flag, 3 * ticks)
    load() -- which waits for that, and so does what comes now, to be given to the device at once
    for i = 1, 12 do
      kernel:launch({ grid = 1, block = 1, stream = streams[i % 2 + 1] }, flag, ticks)
    end
    load() -- which waits for all of it
    local x = dev:buffer("i32", 1)
    for i = 1, 2 do
      loads[i]:await():launch(one, x)
      assert.are.same({ i - 1 }, x:read())
    end
    assert.equal(0, dev:stats().losses)
    support.works(dev)
    dev:close()
  end)

  it("is ended also while the device loads code, which waits for it", function()
    local dev, kernel = open { watchdog = 0.1 }
    if dev.kind == "cpu" or not is_isolated then
      pending "loading code waits for nothing there, or the script with it"
    end
    local flag = dev:buffer("i32", 1):fill(0)
    flag:await()
    local op = kernel:launch({ grid = 1, block = 1, label = "stuck" }, flag, 0)
    local begun = support.now()
    local ptx = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry f() { ret; }\n"
    local load = gpu.spawn(dev.load, dev, ptx)
    support.raises("DeviceLost", { "'stuck' had not ended 0.1 s" }, op.await, op)
    local taken = support.now() - begun
    assert.truthy(taken >= 0.1 and taken < 3, taken)
    support.raises("DeviceLost", {}, load.await, load)
    dev:await()
    support.works(dev)
    dev:close()
  end)

  it("is ended in check mode, too, where the device works while the script waits for it to take a record", function()
    for _, way in ipairs { "watchdog", "deadline" } do
      local dev <close> = gpu.device("cpu", { check = true, isolate = "process", restarts = 9,
        watchdog = way == "watchdog" and 0.3 or nil })
      local kernel = dev:compile(forever).forever
      local flag = dev:buffer("i32", 1):fill(0)
      local op = kernel:launch({ grid = 1, block = 1, label = "stuck" }, flag, 0)
      if way == "deadline" then
        op:deadline(0.3)
      end
      support.raises("DeviceLost", { "'stuck' had not ended 0.3 s" }, op.await, op)
      dev:await()
      assert.are.same({ 3 }, dev:buffer("i32", 1):fill(3):read())
    end
  end)

  once(it, "is ended in check mode also where something else is asked of the device meanwhile", function()
    local asks = {
      function(dev) return dev:compile "__global__ void g() { }" end,
      function(dev) return dev:buffer("u8", 1 << 30) end,
      function(dev, x) return dev:capture(function() x:fill(3) end) end,
    }
    for i, way in ipairs { "watchdog", "deadline", "watchdog" } do
      local dev <close> = gpu.device("cpu", { check = true, isolate = "process", restarts = 9,
        watchdog = way == "watchdog" and 0.3 or nil })
      local flag = dev:buffer("i32", 1):fill(0)
      local op = dev:compile(forever).forever:launch({ grid = 1, block = 1, label = "stuck" }, flag, 0)
      if way == "deadline" then
        op:deadline(0.3)
      end
      op:join(0.1) -- then it runs
      local task = gpu.spawn(asks[i], dev, flag)
      local ok, err = support.comes_back(60, gpu.spawn(pcall, task.await, task), dev, "request " .. i)
      assert.is_false(ok)
      support.is_error(err, "DeviceLost", "'stuck' had not ended 0.3 s")
      dev:await()
      assert.are.same({ 3 }, dev:buffer("i32", 1):fill(3):read())
    end
  end)

  once(it,
    "does not keep calls of gpu.timeout in check mode that wait within themselves, nor what cleans up behind them",
    function()
      local asks = {
        function(dev) return dev:buffer("u8", 1 << 30) end,
        function(_, _, mod) return mod.other end,
        function(dev, x) return dev:capture(function() x:fill(3) end) end,
        function(dev, x, mod)
          local ok, err = pcall(function() return mod.other end)
          support.is_error(err, "Timeout")
          assert.is_false(ok)
          return dev:buffer("u8", 1 << 30, { label = tostring(x) })
        end,
      }
      for i, ask in ipairs(asks) do
        local dev <close> = gpu.device("cpu", { check = true, isolate = "process", restarts = 9 })
        local flag = dev:buffer("i32", 1):fill(0)
        local mod = dev:compile(forever .. ' extern "C" __global__ void other() { }')
        local op = mod.forever:launch({ grid = 1, block = 1, label = "stuck" }, flag, 0)
        local ok, err = pcall(gpu.timeout, 0.3, function()
          op:join(0.1) -- then it runs
          return ask(dev, flag, mod)
        end)
        assert.is_false(ok, i)
        support.is_error(err, "Timeout")
        local _, lost = op:deadline(0.01):join()
        support.is_error(lost, "DeviceLost", "'stuck' had not ended")
        dev:await()
        assert.are.same({ 3 }, dev:buffer("i32", 1):fill(3):read())
      end
    end)

  once(it, "is not ended in check mode by Ctrl-C and limits of time, which end what waits for it, each time", function()
    local output, code = support.script(([=[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { check = true, isolate = "process" })
      local x = dev:buffer("i32", 1):fill(0)
      local op = dev:compile [[%s]].forever:launch({ grid = 1, block = 1 }, x, 0)
      local function code_of(ok, err)
        return ok or err.code
      end
      print(code_of(pcall(function()
        os.execute "(sleep 0.3; kill -INT $PPID) > /dev/null 2>&1 &"
        op:await()
      end)))
      print(code_of(pcall(gpu.timeout, 0.2, dev.compile, dev, "__global__ void g() { }")))
      print(code_of(pcall(gpu.timeout, 0.2, dev.blas, dev)))
      print(code_of(op:join(0.2)))
      dev:close()
      print(code_of(op:join()))
    ]=]):format(forever), "timeout 60")
    assert.equal(0, code, output)
    assert.truthy(output:find("^Interrupted\nTimeout\nTimeout\nTimeout\n"), output)
  end)

  once(it, "is not what nobody has asked for yet, in check mode", function()
    for seed = 1, 8 do
      local dev <close> = gpu.device("cpu", { check = true, seed = seed, isolate = "process", watchdog = 0.25 })
      local kernel = dev:compile [[extern "C" __global__ void two(float *x) { x[0] = 2; }]].two
      local x = dev:buffer("f32", 4):fill(1)
      local op = kernel:launch(one, x)
      op:done()
      local till = support.now() + 0.4
      while support.now() < till do end
      op:done()
      op:await()
      assert.equal(2, x:read()[1])
    end
  end)

  it("comes and goes: each life has its watchdog", function()
    if not is_isolated then
      pending "the device lives in this process"
    end
    local dev, kernel = open { watchdog = 0.3 } -- longer than a slow machine takes for a fill
    for life = 1, 5 do
      local flag <close> = dev:buffer("i32", 1):fill(0)
      local op = kernel:launch(one, flag, 0)
      support.raises("DeviceLost", {}, op.await, op)
      dev:await()
      assert.equal(life + 1, dev.epoch)
    end
    dev:close()
  end)

  it("is ended by its deadline in the loop of a host, which is told when to look", function()
    local dev, kernel, ticks = open {}
    local flag = dev:buffer("i32", 1):fill(0)
    flag:await()
    local op = kernel:launch(one, flag, ticks):deadline(0.2)
    local hint = gpu.timeout_hint()
    assert.truthy(hint and hint > 0 and hint <= 0.2, hint)
    op:join()
    dev:close()
  end)
end)
