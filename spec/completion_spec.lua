-- How the end of work is found out: completion = "word", "event" and "block" of a device. What the driver is asked and
-- answers is in executor/completion_test.c, what waiting takes also in wire/link_test.c.

local gpu = require "gpulua"
local support = require "spec.support"

local is_isolated = support.is_isolated()
local is_cuda = support.is_gpu()
local one = support.one

local source = support.clock_source .. [[
  #include <gpulua_kernel.h>
  extern "C" __global__ void forever(volatile int *flag, long long ticks) {
    long long end = now() + ticks;
    while (flag[0] == 0 && (ticks == 0 || now() < end)) { }
  }
  extern "C" __global__ void bad(int *x, gpulua_ctx ctx) { gpulua_check(ctx, x == 0, "there is one"); }
  extern "C" __global__ void add(int *x, int v) { x[0] += v; }
]] .. support.spin_source

--- Takes time, and of the CPU device no processor.
local nap_source = is_cuda and support.spin_source or [[
  #if defined(__GPULUA_CPU__)
  extern "C" __device__ int usleep(unsigned);
  #else
  __device__ int usleep(unsigned) { return 0; } // NVRTC sees it, too; a GPU does not
  #endif
  extern "C" __global__ void spin(long long us, int *x, int value) { usleep(us); x[0] = value; }
]]

--- Processor seconds so far, of this process and of the device's.
local function processor_seconds(dev)
  local seconds = os.clock()
  if dev.pid then
    local stat = support.read_file("/proc/" .. dev.pid .. "/stat"):match "%) (.*)"
    local fields = {}
    for field in stat:gmatch "%S+" do
      fields[#fields + 1] = field
    end
    seconds = seconds + (fields[12] + fields[13]) / 100
  end
  return seconds
end

describe("completion", function()
  teardown(support.close_all)

  it("is one of three, and no other", function()
    for _, wrong in ipairs { "", "words", "Block", "spin" } do
      support.raises("InvalidArgument", { "completion of device", '"word"', '"event"', '"block"', wrong }, support.open,
        { completion = wrong })
    end
    support.raises("InvalidArgument", "completion", support.open, { completion = 1 })
    for _, completion in ipairs { "event", "block" } do
      support.raises("InvalidArgument", { "attribution", '"word"' }, support.open,
        { completion = completion, attribution = "exact" })
    end
  end)

  it("is what GPULUA_COMPLETION says where the script does not", function()
    local text = [[
      local gpu = require "gpulua"
      local ok, err = pcall(gpu.device, nil, { attribution = "exact" })
      print(ok or err.code)
      print((pcall(gpu.device, nil, { completion = "word", attribution = "exact" })))
    ]]
    assert.equal("true\ntrue\n", (support.script(text, "GPULUA_COMPLETION=")))
    assert.equal("InvalidArgument\ntrue\n", (support.script(text, "GPULUA_COMPLETION=event")))
    local output = support.script("require 'gpulua'.device()", "GPULUA_COMPLETION=teapot")
    assert.truthy(output:find('GPULUA_COMPLETION: "word", "event" or "block" expected, got "teapot"', 1, true), output)
  end)

  it("changes nothing in check mode", function()
    for _, check in ipairs { is_cuda and "hashes" or true, "hashes" } do
      for _, completion in ipairs { "word", "event", "block" } do
        local dev = support.open { completion = completion, check = check }
        local add = dev:compile(source):kernel("add", "inout i32*, i32")
        local tasks = {}
        for i = 1, 10 do
          tasks[i] = gpu.spawn(function()
            local x <close> = dev:buffer("i32", 1):fill(0)
            for _ = 1, 3 do
              add:launch(one, x, i):await()
            end
            return x:read()[1]
          end)
        end
        for i, sum in ipairs { gpu.all(tasks) } do
          assert.equal(3 * i, sum)
        end
        dev:close()
      end
    end
  end)

  if support.is_checked() then
    return -- there nothing is under way that could be waited for
  end

  for _, completion in ipairs { "word", "event", "block" } do
    describe(completion, function()
      local dev, mod
      local function open(opts)
        opts = opts or {}
        opts.completion = completion
        dev = support.open(opts)
        mod = dev:compile(source)
        return dev
      end

      after_each(function()
        if dev then
          dev:close()
          dev = nil
        end
      end)

      it("ends awaits, joins and reads, in tasks and outside", function()
        open()
        local x = dev:buffer("i32", 1):fill(0)
        local function work()
          for i = 1, 50 do
            mod.add:launch(one, x, 1):await()
            assert.is_true(mod.add:launch(one, x, 1):join())
            if i % 10 == 0 then
              mod.add:launch(one, x, 0)
              assert.truthy(x:read()[1] >= 2 * i)
            end
          end
        end
        work()
        gpu.all { gpu.spawn(work), gpu.spawn(work), gpu.spawn(work) }
        dev:synchronize()
        assert.equal(400, x:read()[1])
      end)

      it("ends waits for more streams than there are threads that sleep", function()
        open()
        local flag = dev:buffer("i32", 1):fill(0)
        flag:await()
        local tasks, sum = {}, 0
        for i = 1, 48 do
          tasks[i] = gpu.spawn(function()
            local stream <close> = dev:stream {}
            local x <close> = dev:buffer("i32", 1):fill(0)
            for _ = 1, 3 do
              mod.spin:launch({ grid = 1, block = 1, stream = stream }, support.ticks(0.002), x, i):await()
            end
            local value = x:read()[1]
            sum = sum + value
          end)
        end
        gpu.all(tasks)
        assert.equal(48 * 49 // 2, sum)
      end)

      it("waits for no more than it is asked to, and keeps time limits", function()
        open()
        local flag, open_flag = dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1):fill(1)
        local other = dev:stream {}
        support.under_way(0.5, function(seconds, seen)
          local ticks = support.ticks(seconds)
          local short = mod.forever:launch(one, open_flag, ticks)
          local long = mod.forever:launch(one, flag, ticks)
          for _ = 1, 20 do
            mod.add:launch(one, open_flag, 0)
          end
          short:await()
          local is_over = long:done()
          local begun = support.now()
          support.raises("Timeout", {}, long.await, long, 0.02)
          local task = gpu.spawn(function() return long:await(0.02) end)
          local ok, err = task:join()
          local took = support.now() - begun
          seen()
          assert.is_false(is_over)
          assert.is_false(ok)
          assert.equal("Timeout", err.code)
          assert.truthy(took < seconds * 0.8, took)
          mod.add:launch({ grid = 1, block = 1, stream = other }, dev:buffer("i32", 1):fill(0), 1):await()
          long:await()
          dev:synchronize()
        end)
        other:close()
      end)

      it("ends what a task waits for when the task is cancelled, for others alone", function()
        open()
        local flag = dev:buffer("i32", 1):fill(0)
        support.under_way(0.2, function(seconds, seen)
          local op = mod.forever:launch(one, flag, support.ticks(seconds))
          local cancelled = gpu.spawn(function() op:await() end)
          local waits = gpu.spawn(function() op:await() return "seen" end)
          gpu.sleep(0.02)
          cancelled:cancel()
          local ok = cancelled:join()
          seen()
          assert.is_false(ok)
          assert.equal("seen", waits:await())
        end)
      end)

      it("tells of ends and failures without being waited for", function()
        open()
        local x = dev:buffer("i32", 1):fill(0)
        local told = {}
        mod.add:launch(one, x, 1):on_done(function(ok) told[#told + 1] = ok end)
        local op = mod.bad:launch(one, x)
        op:on_done(function(ok, err) told[#told + 1] = ok or err.code end)
        assert.is_true(support.eventually(10, function() return #told == 2 end))
        assert.are.same({ true, "KernelFailed" }, told)
        local after = mod.add:launch(one, x, 1)
        assert.is_true(support.eventually(10, function() return after:done() end))
        support.raises("DependencyFailed", {}, after.await, after)
        x:fill(0):await()
      end)

      it("gives memory back and lets work end that nobody waits for", function()
        open()
        for _ = 1, 40 do
          for _ = 1, 50 do
            dev:buffer("i32", 1 << 10):fill(1):close()
          end
          gpu.sleep(0.001)
        end
        assert.is_true(support.eventually(20, function() return dev:stats().ops_in_flight <= 8 end))
        dev:synchronize()
        assert.equal(0, dev:stats().ops_in_flight)
      end)

      it("prints what kernels print before their end is told", function()
        local output = support.script([[
          local gpu = require "gpulua"
          local dev = gpu.device()
          local hello = dev:compile([=[
            extern "C" __global__ void hello(int n) { printf("hello %d\n", n); }]=]).hello
          for i = 1, 3 do
            hello:launch(1, i):await()
            io.write("awaited ", i, "\n")
            io.flush()
          end
        ]], "GPULUA_COMPLETION=" .. completion)
        assert.equal("hello 1\nawaited 1\nhello 2\nawaited 2\nhello 3\nawaited 3\n", output)
      end)

      it("ends work that does not end by its deadline, and by the watchdog", function()
        local ticks = is_isolated and 0 or support.ticks(1.5)
        for _, watchdog in ipairs { false, true } do
          local err, taken
          for _ = 1, 3 do -- the machine itself may stand still for a while
            open { restarts = 100, watchdog = watchdog and 0.3 or nil }
            local flag = dev:buffer("i32", 1):fill(0)
            flag:await()
            local begun = support.now()
            local op = mod.forever:launch({ grid = 1, block = 1, label = "stuck" }, flag, ticks)
            if not watchdog then
              op:deadline(0.3)
            end
            err = support.raises("DeviceLost", "'stuck' had not ended 0.3 s", op.await, op)
            taken = support.now() - begun
            if taken < 0.7 then
              break
            end
            dev:close()
          end
          assert.truthy(taken < 0.7, taken)
          assert.equal("stuck", err.suspects[1].label)
          if is_isolated then
            dev:await()
            support.works(dev)
          end
          dev:close()
        end
      end)

      it("ends all waits when the device is lost", function()
        open { restarts = 0 }
        local flag = dev:buffer("i32", 1):fill(0)
        local ticks = is_isolated and 0 or support.ticks(1)
        local tasks, launched = {}, 0
        for i = 1, 8 do
          tasks[i] = gpu.spawn(function()
            local stream = dev:stream {}
            local op = mod.forever:launch({ grid = 1, block = 1, stream = stream }, flag, ticks)
            launched = launched + 1
            return op:join()
          end)
        end
        while launched < 8 do
          gpu.sleep(0.001)
        end
        if is_isolated then
          os.execute("kill -9 " .. dev.pid)
        else
          dev:inject { fault = 1 }
          mod.add:launch(one, dev:buffer("i32", 1), 1)
        end
        for _, task in ipairs(tasks) do
          local ok, err = select(2, task:join())
          assert.is_false(ok)
          assert.equal("DeviceLost", err.code)
        end
        support.raises("DeviceLost", {}, dev.buffer, dev, "i32", 1)
      end)

      it("of lost work names as suspect what may have been running", function()
        if not is_isolated then
          pending "the device lives in the script's process"
        end
        open { restarts = 0 }
        local flag = dev:buffer("i32", 1):fill(0)
        flag:await() -- the fill is none of those that may have been running
        local op = mod.forever:launch({ grid = 1, block = 1, label = "culprit" }, flag, 0)
        for i = 1, 30 do
          mod.add:launch({ grid = 1, block = 1, label = "behind " .. i }, flag, 1)
        end
        support.raises("Timeout", {}, op.await, op, 0.2)
        os.execute("kill -9 " .. dev.pid)
        local err = support.raises("DeviceLost", "'culprit' may have been running", op.await, op)
        assert.equal(completion == "word" and 8 or 31, #err.suspects)
        assert.equal("culprit", err.suspects[1].label)
        assert.equal("behind 7", err.suspects[8].label)
      end)

      it("is the same in the next life of the device", function()
        if not is_isolated then
          pending "the device lives in the script's process"
        end
        open { restarts = 10, spare = true }
        local x = dev:buffer("i32", 1, { durable = true }):fill(1)
        for _ = 1, 2 do
          support.lose(dev)
          mod.add:launch(one, x, 1):await()
          assert.equal(2, x:read()[1])
        end
        local flag = dev:buffer("i32", 1):fill(0)
        flag:await() -- the fill is none of those that may have been running
        local op = mod.forever:launch({ grid = 1, block = 1, label = "culprit" }, flag, 0)
        for _ = 1, 30 do
          mod.add:launch(one, flag, 1)
        end
        support.raises("Timeout", {}, op.await, op, 0.2)
        os.execute("kill -9 " .. dev.pid)
        local err = support.raises("DeviceLost", {}, op.await, op)
        assert.equal(completion == "word" and 8 or 31, #err.suspects)
        dev:await()
      end)
    end)
  end

  describe("block", function()
    --- Processor time per second of waiting, for kernels of so many seconds.
    local function share(completion, seconds, rounds)
      local dev = support.open { completion = completion }
      local spin = dev:compile(nap_source).spin
      local x <close> = dev:buffer("i32", 1)
      local ticks = is_cuda and support.ticks(seconds) or math.floor(seconds * 1e6)
      spin:launch(one, 1, x, 1):await()
      collectgarbage()
      local begun, spent = support.now(), processor_seconds(dev)
      for _ = 1, rounds do
        spin:launch(one, ticks, x, 1):await()
      end
      spent = processor_seconds(dev) - spent
      local taken = support.now() - begun
      dev:close()
      return spent / taken
    end

    it("takes next to no processor time while a kernel runs", function()
      local least = math.huge
      for _ = 1, 3 do -- what else the process has to do differs
        least = math.min(least, share("block", 1, 1))
        if least <= 0.025 then
          break
        end
      end
      assert.truthy(least <= 0.025, least)
    end)

    it("takes less than half of what asking takes where kernels are short", function()
      if support.keeps_freed_memory() then
        pending "a sanitizer takes more than both"
      end
      local block, event
      for _ = 1, 3 do -- what others leave of the processors differs from one to the other
        block, event = share("block", 0.002, 200), share("event", 0.002, 200)
        if block * 2 < event then
          break
        end
      end
      assert.truthy(block * 2 < event, ("%.3f and %.3f"):format(block, event))
    end)
  end)
end)
