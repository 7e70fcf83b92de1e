-- Operations: waiting for them, and how they fail.

local gpu = require "gpulua"
local support = require "spec.support"

describe("op", function()
  local dev, mod, x

  setup(function()
    dev = support.open()
    mod = dev:compile(support.spin_source)
    x = dev:buffer("i32", 4):fill(0)
  end)
  teardown(support.close_all)

  local function slow(seconds, value)
    return mod.spin:launch(support.one, support.ticks(seconds), x, value or 1)
  end

  it("is seen to be over by a loop that does nothing but look", function()
    local op = slow(0.002, 7)
    local until_when = support.now() + 20
    while not op:done() and support.now() < until_when do end
    assert.is_true(op:done())
    slow(0.002, 7)
    while not x:done() and support.now() < until_when do end
    assert.is_true(x:done())
  end)

  it("is one's own, however many there are: closing one ends no other", function()
    local ops = {}
    for i = 1, 200 do
      ops[i] = dev:current():mark()
      if i % 3 == 0 then
        ops[i]:close()
        ops[i]:close()
      end
    end
    collectgarbage()
    collectgarbage()
    for i = 1, 200 do
      if i % 3 == 0 then
        support.raises("Closed", { "closed op" }, ops[i].await, ops[i])
        assert.equal("closed op", gpu.type(ops[i]))
      else
        assert.equal(ops[i], ops[i]:await())
        assert.truthy(i % 3 == 1 or ops[i].seq > ops[i - 1].seq)
      end
    end
  end)

  -- The runtime keeps nothing of these but a number, and puts them together again.
  it("is what it was, long after its end and without a look before it", function()
    local own <close> = dev:stream {}
    local ops, seqs = {}, {}
    for i = 1, 300 do
      local config = { grid = 1, block = 1, stream = i % 2 == 0 and own or nil, label = "step " .. i % 7 }
      ops[i] = mod.spin:launch(config, 1, x, 1)
    end
    dev:synchronize()
    for _ = 1, 300 do -- others have what they had
      mod.spin:launch(support.one, 1, x, 1)
    end
    dev:synchronize()
    for i, op in ipairs(ops) do
      seqs[i] = op.seq
      assert.are.same({ "step " .. i % 7, i % 2 == 0, true, "op" },
        { op.label, op.stream == own.id, op:done(), gpu.type(op) })
      assert.truthy(i <= 2 or op.seq > seqs[i - 2], i)
      assert.truthy(tostring(op):find(("gpulua.op step %d on %s (stream %d, seq %d)"):format(i % 7, dev.name, op.stream,
        op.seq), 1, true), tostring(op))
      assert.is_nil(op:elapsed())
      assert.equal(op, op:await())
      assert.equal(op, op:deadline(0))
    end
    assert.equal("stream", gpu.why(ops[3], ops[1]).order)
    assert.is_nil(gpu.why(ops[1], ops[3]))
    assert.equal(ops[5], (gpu.all { ops[5] }))
    own:wait(ops[1])
    local called = false
    ops[7]:on_done(function(ok) called = ok end)
    assert.is_true(support.eventually(5, function() return called end))
    ops[9]:close()
    support.raises("Closed", { "closed op" }, ops[9].done, ops[9])
  end)

  it("is over or closed to finalisers that have it still", function()
    local ended, wrong = 0, nil
    for _ = 1, 100 do
      setmetatable({ slow(0) }, { __gc = function(self)
        ended = ended + 1
        local ok, err = pcall(self[1].done, self[1])
        if not ok and err.code ~= "Closed" then
          wrong = err
        end
        self[1]:close()
      end })
    end
    collectgarbage()
    collectgarbage()
    assert.equal(100, ended)
    assert.is_nil(wrong)
    support.works(dev)
  end)

  it("await returns when the work is over", function()
    support.wants_time(pending)
    support.under_way(0.3, function(seconds, seen)
      local start = support.now()
      local op = slow(seconds, 41)
      local is_over = op:done()
      seen()
      assert.is_false(is_over)
      assert.equal(op, op:await())
      assert.truthy(support.now() - start > 0.1)
      assert.is_true(op:done())
      assert.equal(op, op:await())
      assert.are.same({ 41 }, x:read(1, 1))
    end)
  end)

  it("join returns true and the result", function()
    local op = slow(0.02)
    local ok, result = op:join()
    assert.is_true(ok)
    assert.equal(op, result)
  end)

  it("lets other tasks run while one awaits", function()
    support.wants_time(pending)
    local turns = support.turns_beside(6, function(times) slow(0.1 * times):await() end)
    assert.truthy(turns >= 6, turns)
  end)

  it("may be awaited by many tasks", function()
    local op = slow(0.05)
    local count, tasks = 0, {}
    for i = 1, 50 do
      tasks[i] = gpu.spawn(function()
        op:await()
        count = count + 1
      end)
    end
    gpu.all(tasks)
    assert.equal(50, count)
  end)

  it("blocks where the running coroutine is a generator of the script", function()
    local op = slow(0.05, 17)
    local generator = coroutine.wrap(function()
      op:await()
      coroutine.yield(op:done())
    end)
    assert.is_true(generator())
    assert.are.same({ 17 }, x:read(1, 1))
  end)

  it("blocks in comparators, metamethods and gsub", function()
    local list = { 3, 1, 2 }
    table.sort(list, function(a, b)
      slow(0.002):await()
      return a < b
    end)
    assert.are.same({ 1, 2, 3 }, list)
    local got = ("ab"):gsub(".", function(c)
      slow(0.002):await()
      return c:upper()
    end)
    assert.equal("AB", got)
  end)

  describe("with a time", function()
    it("await raises Timeout, and the work goes on", function()
      support.wants_time(pending)
      support.under_way(0.3, function(seconds, seen)
        local op = slow(seconds, 23)
        local start = support.now()
        support.raises("Timeout", {}, op.await, op, 0.02)
        local spent, is_over = support.now() - start, op:done()
        seen()
        assert.truthy(spent >= 0.019 and spent < seconds * 0.8, spent)
        assert.is_false(is_over)
        op:await(10)
        assert.are.same({ 23 }, x:read(1, 1))
      end)
    end)

    it("join returns false and the Timeout", function()
      support.wants_time(pending)
      support.under_way(0.2, function(seconds, seen)
        local op = slow(seconds)
        local ok, err = op:join(0.01)
        seen()
        assert.is_false(ok)
        support.is_error(err, "Timeout")
        op:await()
      end)
    end)

    it("of 0 only looks", function()
      support.wants_time(pending)
      support.under_way(0.1, function(seconds, seen)
        local op = slow(seconds)
        support.raises("Timeout", {}, op.await, op, 0)
        seen()
        op:await()
        assert.equal(op, op:await(0))
      end)
    end)

    it("must be a number that is not negative", function()
      local op = slow(0.02)
      support.raises("InvalidArgument", {}, op.await, op, "soon")
      support.raises("InvalidArgument", {}, op.await, op, -1)
      support.raises("InvalidArgument", {}, op.await, op, 0 / 0)
      op:await(math.huge)
    end)
  end)

  it("a cancelled wait leaves the work and the memory alone", function()
    support.wants_time(pending)
    support.under_way(0.1, function(seconds, seen)
      local b <close> = dev:buffer("i32", 1):fill(0)
      local op = mod.spin:launch(support.one, support.ticks(seconds), b, 31)
      local task = gpu.spawn(function()
        op:await()
      end)
      gpu.sleep(0.01)
      task:cancel()
      local ok, err = task:join()
      local is_over = op:done()
      seen()
      assert.is_false(ok)
      support.is_error(err, "Cancelled")
      assert.is_false(is_over)
      assert.are.same({ 31 }, b:read())
    end)
  end)

  it("on_done calls back in the order of the stream, and of the calls for one operation", function()
    support.wants_time(pending) -- and there any task that is ready is the next
    for _ = 1, 20 do
      local told = {}
      local function tells(name) return function() told[#told + 1] = name end end
      slow(0.001):on_done(tells "first"):on_done(tells "again")
      local second = slow(0.001)
      local till = support.now() + 0.02
      while support.now() < till do end -- both end, and nobody looks
      second:on_done(tells "second")
      assert.is_true(support.eventually(5, function() return #told == 3 end))
      assert.are.same({ "first", "again", "second" }, told)
    end
  end)

  it("on_done calls back with ok, in a task of its own", function()
    local op = slow(0.05)
    local got
    op:on_done(function(ok, err)
      gpu.sleep(0.001) -- may wait
      got = { ok, err }
    end)
    assert.is_nil(got)
    op:await()
    assert.is_true(support.eventually(5, function() return got ~= nil end))
    assert.are.same({ true }, got)
    got = nil
    op:on_done(function(ok) got = ok end)
    assert.is_true(support.eventually(5, function() return got ~= nil end))
    assert.is_true(got)
    support.raises("InvalidArgument", {}, op.on_done, op)
    support.raises("InvalidArgument", {}, op.on_done, op, 5)
  end)

  it("on_done calls back whatever becomes of who asked: it fails, is cancelled, is over", function()
    local told, asked = {}, {}
    local function long()
      return mod.spin:launch(support.one, support.ticks(0.03), dev:buffer("i32", 4), 1)
    end
    local function ask(name, then_do)
      return gpu.spawn(function()
        long():on_done(function(ok)
          gpu.sleep(0)
          told[name] = ok
        end)
        gpu.spawn(function() -- also deeper down
          long():on_done(function(ok) told[name .. " below"] = ok end)
          asked[name] = true
          if then_do == "sleep" then gpu.sleep(100) end
        end)
        while not asked[name] do gpu.sleep(0) end
        if then_do == "fail" then error("failed", 0) end
        if then_do == "sleep" then gpu.sleep(100) end
      end)
    end
    local failed, over, cancelled = ask("failed", "fail"), ask("over"), ask("cancelled", "sleep")
    while not asked.cancelled do gpu.sleep(0.001) end
    cancelled:cancel()
    support.is_error(select(2, cancelled:join()), "Cancelled")
    assert.are.same({ false, "failed" }, { failed:join() })
    over:await() -- its children are
    assert.are.same({ true, true }, { told.over, told["over below"] })
    local is_over, err
    for _ = 1, 20 do -- where the machine stood still it had not asked by then, or its work was over
      asked.limited = false
      is_over, err = gpu.spawn(gpu.timeout, 0.005, function()
        local op = long():on_done(function(ok) told.limited = ok end)
        asked.limited = true
        op:await()
      end):join()
      if asked.limited and not is_over then
        break
      end
    end
    support.is_error(err, "Timeout")
    local want <const> = { failed = true, ["failed below"] = true, over = true, ["over below"] = true,
      cancelled = true, ["cancelled below"] = true, limited = true }
    support.eventually(5, function() -- in whatever order the tasks that tell are resumed
      for name in pairs(want) do
        if told[name] == nil then return false end
      end
      return true
    end)
    assert.are.same(want, told)
  end)

  it("all waits for all of them, in order", function()
    local a, b, c = slow(0.03), slow(0.01), dev:current():mark()
    local p, q, r = gpu.all(a, b, c)
    assert.are.same({ a, b, c }, { p, q, r })
    assert.is_true(a:done() and b:done() and c:done())
    assert.equal(1, select("#", gpu.all { a }))
  end)

  it("any gives the index of the first", function()
    support.wants_time(pending)
    local s <close> = dev:stream {}
    local t <close> = dev:stream {}
    local y <close> = dev:buffer("i32", 1)
    support.under_way(0.4, function(seconds, seen)
      local late = mod.spin:launch({ grid = 1, block = 1, stream = s }, support.ticks(seconds), x, 1)
      local early = mod.spin:launch({ grid = 1, block = 1, stream = t }, support.ticks(0.01), y, 1)
      local index, result = gpu.any(late, early)
      local is_over = late:done()
      seen()
      assert.equal(2, index)
      assert.equal(early, result)
      assert.is_false(is_over)
      late:await()
    end)
  end)

  it("all and any take a buffer", function()
    local op = slow(0.03)
    gpu.all { x, op }
    assert.is_true(op:done())
    assert.equal(1, (gpu.any(x)))
  end)

  it("elapsed is nil when nothing is traced", function()
    local op = slow(0.01)
    op:await()
    assert.is_nil(op:elapsed())
  end)

  it("names its line in the script", function()
    local op = slow(0.01)
    assert.equal("spin", op.label)
    assert.truthy(tostring(op):find("spin", 1, true))
    op:await()
  end)

  describe("that fails", function()
    local failing

    setup(function()
      if dev.kind == "cpu" then
        failing = dev:compile [[
          extern "C" __global__ void check(int *x, int n) { assert(n > 0); x[0] = n; }
          extern "C" __global__ void copy(const int *x, int *y) { y[0] = x[0]; }
          extern "C" __global__ void set(int *x) { x[0] = 77; x[1] = 78; }
        ]]
      end
    end)

    --- What fails an op and leaves the device well is a failed assert on the CPU device only.
    local function needs_failing()
      if not failing then
        pending "a failed assert ends this device: see lost_spec"
      end
    end

    local function fail(buffer)
      return failing.check:launch({ grid = 1, block = 1, label = "culprit" }, buffer, 0)
    end

    it("thousands of times leaves neither memory nor slowness behind", function()
      needs_failing()
      if support.keeps_freed_memory() then
        return pending "a sanitizer keeps freed memory"
      end
      local y <close> = dev:buffer("i32", 2):fill(1)
      local function rounds(count)
        for i = 1, count do
          assert.is_false(fail(y):join())
          assert.is_false(pcall(y.read, y))
          if i % 200 == 0 then -- how much garbage may lie about depends on all that the specs before have left
            collectgarbage()
          end
        end
        collectgarbage()
      end
      rounds(2000)
      local before = support.resident_bytes()
      rounds(6000)
      assert.truthy(support.resident_bytes() - before < 2 << 20, support.resident_bytes() - before)
    end)

    it("raises KernelFailed that names launch, line, block and thread", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      local err = support.raises("KernelFailed", {}, function() fail(y):await() end)
      assert.truthy(tostring(err):find("n > 0", 1, true), tostring(err))
      assert.equal("culprit", err.op.label)
      assert.truthy(tostring(err):find("op_spec.lua", 1, true), tostring(err))
      support.works(dev)
    end)

    it("join gives false and the error, again and again", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      local op = fail(y)
      for _ = 1, 2 do
        local ok, err = op:join()
        assert.is_false(ok)
        support.is_error(err, "KernelFailed")
      end
      support.raises("KernelFailed", {}, op.await, op)
      assert.is_true(op:done())
    end)

    it("on_done gets the error", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      local got
      fail(y):on_done(function(ok, err) got = { ok, err } end)
      assert.is_true(support.eventually(5, function() return got ~= nil end))
      assert.is_false(got[1])
      support.is_error(got[2], "KernelFailed")
      dev:synchronize() -- it has been observed
    end)

    it("fails what reads its output, on any stream, with its root", function()
      needs_failing()
      local s <close> = dev:stream {}
      local y <close> = dev:buffer("i32", 2):fill(1)
      local z <close> = dev:buffer("i32", 1):fill(5)
      local w <close> = dev:buffer("i32", 1):fill(6)
      fail(y)
      local second = failing.copy:launch({ grid = 1, block = 1, stream = s }, y, z)
      local third = failing.copy:launch(support.one, z, w)
      for _, op in ipairs { second, third } do
        local err = support.raises("DependencyFailed", {}, op.await, op)
        assert.are.same({ "culprit", "KernelFailed" }, { err.root.label, err.root.code })
        assert.is_nil(err.op.code)
      end
      support.raises("DependencyFailed", {}, w.read, w)
      support.raises("DependencyFailed", {}, z.bytes, z)
      dev:synchronize()
      support.works(dev)
    end)

    it("is the root of hundreds that fail by themselves on what it left", function()
      needs_failing()
      local left <close> = dev:buffer("i32", 1):fill(0)
      local must = dev:compile "extern \"C\" __global__ void must(int *x) { assert(x[0] == 0); x[0] = -1; }".must
      dev:compile(support.spin_source).spin:launch(support.one, support.ticks(0.1), left, -1) -- they are behind it
      local first = must:launch(support.one, left)
      for _ = 1, 300 do must:launch(support.one, left) end
      local err = support.raises("DependencyFailed", {}, left.read, left)
      assert.equal(first.seq, err.root.seq)
      dev:synchronize() -- it has been seen, and there is no other
    end)

    it("leaves alone what does not read its output", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      local z <close> = dev:buffer("i32", 2):fill(9)
      local op = fail(y)
      failing.check:launch(support.one, z, 4):await()
      assert.is_false((op:join()))
      assert.are.same({ 4, 9 }, z:read())
    end)

    it("raises where a buffer that it should have written is read", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      fail(y)
      support.raises("KernelFailed", {}, y.await, y)
      -- Having seen the error does not make the contents defined.
      local ok, err = pcall(y.read, y)
      assert.is_false(ok)
      assert.truthy(err.code == "KernelFailed" or err.code == "DependencyFailed", tostring(err))
    end)

    it("raises there also when its end is visible and nobody has looked yet", function()
      needs_failing()
      for _ = 1, 200 do
        local y <close> = dev:buffer("i32", 2):fill(1)
        local op = fail(y)
        while not op:done() do end -- may look at the completion word alone
        support.raises("KernelFailed", {}, y.await, y)
      end
    end)

    for _, clear in ipairs {
      { "fill", function(y) y:fill(3) end, { 3, 3 } },
      { "write", function(y) y:write { 5, 6 } end, { 5, 6 } },
      { "copy", function(y) y:copy(dev:upload("i32", { 7, 8 })) end, { 7, 8 } },
      { "an out launch", function(y)
        failing:kernel("set", "out i32*"):launch(support.one, y)
      end, { 77, 78 } },
    } do
      it("is cleared by " .. clear[1] .. " over the whole", function()
        needs_failing()
        local y <close> = dev:buffer("i32", 2):fill(1)
        fail(y):join()
        clear[2](y)
        assert.are.same(clear[3], y:read())
      end)
    end

    it("is not cleared by a launch that may read", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      fail(y):join()
      support.raises("DependencyFailed", {}, function() failing.set:launch(support.one, y):await() end)
      y:fill(0)
      failing.set:launch(support.one, y):await()
    end)

    it("is seen by gpu.all where it is the one that is raised, and else goes on being nobody's", function()
      needs_failing()
      local w <close> = dev:buffer("i32", 2):fill(1)
      local y <close> = dev:buffer("i32", 2):fill(1)
      local first, second = fail(w), fail(y)
      dev:current():mark():await() -- both are over
      local err = support.raises("KernelFailed", {}, gpu.all, first, second)
      assert.equal(1, dev:stats().errors_unobserved)
      assert.equal(err.op.seq, select(2, first:join()).op.seq)
      local other = support.raises("KernelFailed", {}, dev.synchronize, dev)
      assert.equal(select(2, second:join()).op.seq, other.op.seq)
      dev:synchronize()
    end)

    it("unobserved, raises at the next synchronise, once", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      fail(y)
      support.raises("KernelFailed", {}, dev.synchronize, dev)
      dev:synchronize()
      assert.equal(0, dev:stats().errors_unobserved)
    end)

    it("unobserved, raises at the next read of that device", function()
      needs_failing()
      local y <close> = dev:buffer("i32", 2):fill(1)
      local other <close> = dev:upload("i32", { 4 })
      fail(y)
      dev:current():mark():await() -- the failure is known now, and nobody has asked
      support.raises("KernelFailed", {}, other.read, other)
      assert.are.same({ 4 }, other:read())
      dev:synchronize()
    end)

    it("many of them that nobody has seen are counted at exit", function()
      needs_failing()
      local output, code = support.script [[
        local dev = require "gpulua".device()
        local mod = dev:compile 'extern "C" __global__ void check(int *x, int n) { assert(n > 0); x[0] = n; }'
        for _ = 1, 100 do mod.check:launch({ grid = 1, block = 1 }, dev:buffer("i32", 1), 0) end
      ]]
      assert.equal(1, code)
      assert.equal(16, select(2, output:gsub("assertion", "")))
      assert.truthy(output:find("KernelFailed: 84 more failures that nobody has seen", 1, true), output)
    end)

    it("unobserved to the end, is reported and the exit code is 1", function()
      needs_failing()
      local output, code = support.script [[
        local dev = require "gpulua".device()
        local mod = dev:compile 'extern "C" __global__ void check(int *x, int n) { assert(n > 0); x[0] = n; }'
        local x = dev:buffer("i32", 1)
        mod.check:launch({ grid = 1, block = 1, label = "culprit" }, x, 0)
        io.write "end of script\n"
      ]]
      assert.equal(1, code)
      assert.truthy(output:find("end of script\n", 1, true), output)
      assert.truthy(output:find("KernelFailed", 1, true), output)
      assert.truthy(output:find("culprit", 1, true), output)
    end)

    it("observed, lets the exit code be 0", function()
      needs_failing()
      local output, code = support.script [[
        local dev = require "gpulua".device()
        local mod = dev:compile 'extern "C" __global__ void check(int *x, int n) { assert(n > 0); x[0] = n; }'
        local x = dev:buffer("i32", 1)
        print((mod.check:launch({ grid = 1, block = 1 }, x, 0):join()))
      ]]
      assert.equal("false\n", output)
      assert.equal(0, code)
    end)
  end)

  it("keeps nothing alive once it is over and dropped", function()
    support.without_leak(dev, function()
      for _ = 1, 1000 do
        mod.spin:launch(support.one, 1, x, 1)
      end
    end)
  end)

  it("are counted no more once they are over, also where nobody waits for them", function()
    for _ = 1, 10 do
      mod.spin:launch(support.one, 1, x, 1)
    end
    assert.is_true(support.eventually(10, function() return dev:stats().ops_in_flight == 0 end))
  end)

  it("more may be in flight than are kept: the limit only slows down", function()
    local limit = dev:stats().limit_ops_in_flight
    local n = limit + limit // 4
    local count = dev:compile([[ extern "C" __global__ void count(int *x) { x[0]++; } ]]).count
    local c <close> = dev:buffer("i32", 1):fill(0)
    for _ = 1, n do
      count:launch(support.one, c)
    end
    assert.are.same({ n }, c:read())
    local stats = dev:stats()
    assert.truthy(stats.ops_in_flight_max <= limit, stats.ops_in_flight_max)
  end)
end)
