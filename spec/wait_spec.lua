-- Waits of every kind: for device work, in tasks and where nothing can yield; and how they end otherwise.

local gpu = require "gpulua"
local support = require "spec.support"

describe("wait", function()
  local dev, mod, x, h, stream

  setup(function()
    dev = support.open()
    mod = dev:compile(support.spin_source)
    x = dev:buffer("i32", 4):fill(0)
    h = dev:host("i32", 4)
    stream = dev:stream {}
    for _ = 1, dev:stats().limit_task_streams do
      gpu.spawn(dev.current, dev):await() -- makes the stream of the task, which stays
    end
    dev:synchronize()
  end)
  teardown(support.close_all)

  --- A kernel that writes `value` into x at the end of its time; h is in use behind it.
  local function slow(seconds, value)
    local op = mod.spin:launch({ grid = 1, block = 1, stream = stream }, support.ticks(seconds), x, value)
    stream:use(h.copy, h, x)
    return op
  end

  local fresh = support.fresh()
  --- A source that no cache has.
  local function fresh_source()
    fresh = fresh + 1
    local kernels = {}
    for i = 1, 8 do -- so that it takes a while
      kernels[i] = ("extern \"C\" __global__ void fresh%d(int *x) { x[0] = %d; }"):format(i, fresh)
    end
    return table.concat(kernels, "\n")
  end

  -- Each waits for the slow kernel.
  local waits = {
    ["op:await"] = function(op) return op:await() end,
    ["op:join"] = function(op) return op:join() end,
    ["op:await with a time"] = function(op) return op:await(30) end,
    ["buffer:await"] = function() return x:await() end,
    ["buffer:read"] = function() return x:read() end,
    ["buffer:bytes"] = function() return x:bytes(1, 2) end,
    ["host buffer:await"] = function() return h:await() end,
    ["host buffer:read"] = function() return h:read() end,
    ["host buffer:write"] = function() return h:write { 1, 2, 3, 4 } end,
    ["host buffer:fill"] = function() return h:fill(0) end,
    ["device:synchronize"] = function() return dev:synchronize() end,
    ["stream:synchronize"] = function() return stream:synchronize() end,
    ["gpu.all"] = function(op) return gpu.all(op, x) end,
    ["gpu.any"] = function(op) return gpu.any(op) end,
  }
  -- A compilation takes its own time.
  local waits_and_compile = { ["device:compile"] = function() return dev:compile(fresh_source()) end }
  for name, wait in pairs(waits) do
    waits_and_compile[name] = wait
  end

  for name, wait in pairs(waits_and_compile) do
    it(name .. " lets other tasks run", function()
      local turns = support.turns_beside(3, function(times) wait(slow(0.05 * times, 1)) end)
      assert.truthy(turns >= 3, turns)
      dev:synchronize()
    end)

    it(name .. " is abandoned cleanly when something else resumes its coroutine", function()
      support.under_way(0.05, function(seconds, seen)
        local thread, got
        local op = slow(seconds, 2)
        local task = gpu.spawn(function()
          thread = coroutine.running()
          got = table.pack(wait(op))
          gpu.sleep(0.001) -- it goes on as a task
          return "end"
        end)
        gpu.sleep(0)
        local status = coroutine.status(thread)
        local went_on = coroutine.resume(thread, "a", nil, "b")
        seen()
        assert.equal("suspended", status)
        assert.is_true(went_on)
        assert.are.same({ n = 3, "a", nil, "b" }, got)
        assert.equal("end", task:await(10))
        op:await()
        assert.are.same({ 2 }, x:read(1, 1))
        dev:synchronize()
      end)
    end)

    it(name .. " ends with Cancelled when its task is cancelled", function()
      support.under_way(0.05, function(seconds, seen)
        local op = slow(seconds, 3)
        local code
        local task = gpu.spawn(function()
          local ok, err = pcall(wait, op)
          code = not ok and err.code
          error(err, 0)
        end)
        gpu.sleep(0)
        task:cancel()
        seen()
        local ok, err = task:join(10)
        assert.is_false(ok)
        support.is_error(err, "Cancelled")
        assert.equal("Cancelled", code)
        op:await()
        assert.are.same({ 3 }, x:read(1, 1))
        dev:synchronize()
      end)
    end)
  end

  for name, wait in pairs {
    ["a buffer"] = function(b) return b:await() end,
    ["several"] = function(b) return gpu.all(b, b) end,
  } do
    it("for " .. name .. " ends with Cancelled when its task is cancelled where it has more to wait for", function()
      local y, other = dev:buffer("i32", 4):fill(0), dev:stream {}
      dev:synchronize()
      support.under_way(0.5, function(seconds, seen)
        local first = mod.spin:launch({ grid = 1, block = 1, stream = other }, support.ticks(0.01), y, 1)
        local task = gpu.spawn(wait, y)
        gpu.sleep(0)
        coroutine.wrap(function() first:await() end)() -- runs no task: that one is woken, and has not run
        local op = mod.spin:launch({ grid = 1, block = 1, stream = other }, support.ticks(seconds), y, 2)
        task:cancel()
        local ok, err = task:join(60)
        seen()
        assert.is_false(op:done())
        assert.is_false(ok)
        support.is_error(err, "Cancelled")
        op:await()
      end)
      y:close()
      other:close()
    end)
  end

  it("abandoned and cancelled ones leave nothing behind", function()
    local function is_quiet()
      return dev:stats().ops_in_flight == 0
    end
    -- A compilation that nobody waits for takes its time all the same.
    support.eventually(30, is_quiet)
    support.without_leak(dev, function()
      for _, wait in pairs(waits_and_compile) do
        local thread
        local op = slow(0.01, 4)
        local task = gpu.spawn(function()
          thread = coroutine.running()
          wait(op)
        end)
        local other = gpu.spawn(wait, op)
        gpu.sleep(0)
        coroutine.resume(thread)
        other:cancel()
        task:join()
        other:join()
      end
      support.eventually(30, is_quiet)
    end)
  end)

  it("an element of a host buffer: abandoned, or waited for", function()
    local thread, got
    local op = slow(0.05, 5)
    local reader = gpu.spawn(function()
      thread = coroutine.running()
      got = h[1] -- a metamethod: it may not yield, so it blocks
    end)
    reader:await()
    assert.equal(5, got)
    assert.equal("dead", coroutine.status(thread))
    assert.is_true(op:done())
    slow(0.05, 6)
    h[1] = 60
    assert.are.same({ 6 }, x:read(1, 1))
    assert.equal(60, h[1])
  end)

  -- Stock Lua's main chunk is such a place as well: interpreter_spec.
  describe("where nothing can yield", function()
    local function in_generator(f)
      local results
      coroutine.wrap(function() results = table.pack(pcall(f)) end)()
      assert.truthy(results, "it yielded to the loop")
      return table.unpack(results, 1, results.n)
    end

    for name, wait in pairs(waits_and_compile) do
      it(name .. " blocks for that and runs no other task", function()
        local has_run = false
        local other = gpu.spawn(function() has_run = true end)
        local start = support.now() -- before the launch, behind which anything may take long
        local op = slow(0.03, 7)
        local ok, err = in_generator(function() return wait(op) end)
        assert.is_true(ok, tostring(err))
        assert.is_false(has_run)
        assert.truthy(name == "device:compile" or support.now() - start > 0.015)
        other:await()
        dev:synchronize()
      end)
    end

    it("times out as elsewhere", function()
      support.under_way(0.2, function(seconds, seen)
        local op = slow(seconds, 8)
        for _, wait in ipairs {
          function() return op:await(0.01) end, function() return x:await(0.01) end,
          function() return h:await(0.01) end,
        } do
          local ok, err = in_generator(wait)
          assert.is_false(ok)
          support.is_error(err, "Timeout")
        end
        local _, ok, err = in_generator(function() return op:join(0.01) end)
        seen()
        assert.is_false(ok)
        support.is_error(err, "Timeout")
        op:await()
        assert.are.same({ 8 }, x:read(1, 1))
      end)
    end)

    local waits_and_more = {
      ["op:join with a time"] = function(op) return op:join(30) end,
      ["buffer:await with a time"] = function() return x:await(30) end,
    }
    for name, wait in pairs(waits) do
      waits_and_more[name] = wait
    end
    for name, wait in pairs(waits_and_more) do
      it(name .. " ends with the time of gpu.timeout", function()
        support.wants_time(pending)
        support.under_way(0.3, function(seconds, seen)
          local op = slow(seconds, 12)
          local ok, err = pcall(gpu.timeout, 0.02, function()
            coroutine.wrap(wait)(op)
          end)
          local is_over = op:done()
          seen()
          assert.is_false(ok)
          support.is_error(err, "Timeout")
          assert.is_false(is_over)
          dev:synchronize()
        end)
      end)
    end

    it("a sleep ends with the time of gpu.timeout, also in a comparator", function()
      support.raises("Timeout", "gpu.sleep", gpu.timeout, 0.01, function()
        coroutine.wrap(gpu.sleep)(60)
      end)
      support.raises("Timeout", "gpu.sleep", gpu.timeout, 0.01, function()
        table.sort({ 1, 2 }, function() gpu.sleep(60) end)
      end)
    end)
  end)

  it("for a buffer that further work touches meanwhile goes on", function()
    local task
    slow(0.03, 9)
    task = gpu.spawn(function()
      x:await()
      return x:done()
    end)
    gpu.sleep(0)
    slow(0.03, 10)
    assert.is_true(task:await())
    assert.are.same({ 10 }, x:read(1, 1))
  end)

  it("of gpu.timeout ends, the work and the memory do not", function()
    support.without_leak(dev, function()
      support.under_way(0.3, function(seconds, seen)
        local y <close> = dev:buffer("i32", 1):fill(0):await()
        local start = support.now()
        support.raises("Timeout", "0.02", gpu.timeout, 0.02, function()
          mod.spin:launch(support.one, support.ticks(seconds), y, 11):await()
        end)
        local spent, is_over = support.now() - start, y:done()
        seen()
        assert.truthy(spent < seconds * 0.8, spent)
        assert.is_false(is_over)
        assert.are.same({ 11 }, y:read())
      end)
    end)
  end)

  it("a callback of an op that is closed in between still comes", function()
    local got
    local op = slow(0.02, 12)
    op:on_done(function(ok) got = ok end)
    op:close()
    assert.is_true(support.eventually(5, function() return got ~= nil end))
  end)

  -- A driver without a GPU (backend/fake_cuda.c): such devices have to be looked at.
  it("is noted before the executor has heard of the stream", function()
    local library = os.tmpname()
    local flags = "-std=gnu11 -D_GNU_SOURCE -w -shared -fPIC"
    if not os.execute(("cc %s -o %s spec/backend/fake_cuda.c"):format(flags, library)) then
      pending "no C compiler"
    end
    local output, code = support.script([[
      local gpu = require "gpulua"
      local support = require "spec.support"
      local is_there, dev = pcall(gpu.device, "cuda", { isolate = "process" })
      if not is_there then
        print "no such backend"
        os.exit(0, true)
      end
      local pid = next((support.children()))
      local x, y = dev:buffer("i32", 16):fill(0), dev:buffer("i32", 16)
      dev:synchronize()
      os.execute("kill -STOP " .. pid)
      for i = 1, 40 do -- more than the executor takes before it looks who waits
        x:fill(i)
      end
      local stream = dev:stream {}
      stream:use(y.fill, y, 7)
      local waiter = gpu.spawn(function() y:await() return true end)
      local alarm <close> = io.popen("sleep 0.3; kill -CONT " .. pid)
      local start = support.now()
      assert(waiter:join(20))
      print(support.now() - start < 10 and "in time" or "forgotten")
    ]], "GPULUA_LIBCUDA=" .. library)
    os.remove(library)
    assert.equal(0, code, output)
    if output:find "no such backend" then
      pending "this build has no CUDA backend"
    end
    assert.equal("in time\n", output)
  end)

  it("is not said to have missed the end of what nobody waits for", function()
    local missed_wakes = require("gpulua.core").missed_wakes
    local missed = missed_wakes()
    -- Behind a second the loop looks by itself: at that the first is over, and the other not for long.
    mod.spin:launch({ grid = 1, block = 1, stream = stream }, support.ticks(0.2), x, 1)
    local op = mod.spin:launch({ grid = 1, block = 1, stream = stream }, support.ticks(1.3), x, 2)
    gpu.spawn(op.await, op):await()
    assert.equal(missed, missed_wakes())
  end)

  it("for any of some sees what ends just then", function()
    -- Between the two looks at a buffer: a matter of luck, some thousand rounds of it.
    local y = dev:buffer("i32", 64):fill(0)
    y:await()
    local till, rounds = support.now() + 2, 0
    gpu.spawn(function()
      while support.now() < till do
        for i = 1, 200 do
          y:fill(i)
          for _ = 1, i * 7 % 150 do end
          local never = gpu.spawn(gpu.sleep, 5)
          local which = gpu.any(y, never)
          never:cancel()
          never:join()
          assert.equal(1, which)
          rounds = rounds + 1
        end
      end
    end):await()
    assert.truthy(rounds > 100, rounds)
  end)

  it("of no time lets tasks run where they wait outside of tasks, as it does in one", function()
    local text = [[
      local gpu = require "gpulua"
      local task, looks = gpu.spawn(function() gpu.sleep(0.01) return 7 end), 0
      local ok, result
      repeat
        ok, result = task:join(0)
        looks = looks + 1
      until ok or looks == 10000000
      print(ok, result, looks > 1, gpu.timeout(0, function() return "over" end))
    ]]
    for _, run in ipairs { support.script, support.stock_script } do
      local output, code = run(text)
      assert.equal(0, code, output)
      assert.equal("true\t7\ttrue\tover\n", output)
    end
  end)

  it("of no time looks: who asks again and again, in check mode as well, sees it over", function()
    local text = [[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { check = true })
      local x = dev:buffer("f32", 4)
      for _, what in ipairs { "op", "buffer" } do
        local op, looks = x:fill(1) and gpu.map("x + 1", { x = x, out = x }), 0
        local item = what == "op" and op or x
        while not item:join(0) and looks < 10000 do looks = looks + 1 end
        print(looks < 10000, item:await(0) == item)
      end
    ]]
    for _, run in ipairs { support.script, support.stock_script } do
      local output, code = run(text)
      assert.equal(0, code, output)
      assert.equal("true\ttrue\ntrue\ttrue\n", output)
    end
  end)
end)
