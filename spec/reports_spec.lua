-- Kernels that report what is wrong: gpulua_check and gpulua_ctx.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a kernel that reports", function()
  local source <const> = support.clock_source .. [[
    #include <gpulua_kernel.h>
    extern "C" __global__ void roots(int n, const float *x, float *y, gpulua_ctx ctx) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n || !gpulua_check(ctx, x[i] >= 0, "x[%d] is %g", i, x[i])) return;
      y[i] = sqrtf(x[i]);
    }
    extern "C" __global__ void step(int *x, const int *from, int by, int at_most, gpulua_ctx ctx) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      x[i] = from[i] + by;
      gpulua_check(ctx, by <= at_most, "%d is more than %d", by, at_most);
    }
    extern "C" __global__ void plain(int *x, const int *from, int by) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      x[i] = from[i] + by;
    }
    extern "C" __global__ void all(gpulua_ctx ctx) {
      gpulua_check(ctx, threadIdx.x != 5, "%d|%5u|%-4d|%lld|%x|%.3f|%c|100%%|%p", -7, 42u, 9, -5000000000ll, 255u,
                   1.5f, 'c', (const void *)4096);
    }
    extern "C" __global__ void odd(gpulua_ctx ctx) {
      gpulua_check(ctx, false, "%s and %d of %f, %q, %d %", 3, 2.5, 7);
    }
    extern "C" __global__ void late(volatile int *x, long long ticks, int by, gpulua_ctx ctx) {
      long long start = now();
      while (now() - start < ticks) { }
      gpulua_check(ctx, by == 0, "late");
      x[0] = 1;
    }
    // Says that it has run where nobody sees it: what it writes is declared to be read.
    extern "C" __global__ void mark(const int *from, int *to, const int *ran, gpulua_ctx ctx) {
      to[0] = from[0];
      *(volatile int *)ran = 1;
    }
    #define THE_CONTEXT gpulua_ctx ctx
    extern "C" __global__ void unasked(int *x, const int *from, THE_CONTEXT) { x[threadIdx.x] = from[threadIdx.x]; }
    struct other { long long a[3]; };
    extern "C" __global__ void of_other(int *x, other o) { x[0] = (int)o.a[0]; }
    extern "C" __global__ void mark_plainly(const int *from, int *to, const int *ran) {
      to[0] = from[0];
      *(volatile int *)ran = 1;
    }
  ]]
  local dev, mod
  local four <const> = { grid = 1, block = 4 }

  setup(function()
    dev = support.open {}
    mod = dev:compile(source)
  end)
  teardown(support.close_all)

  local function ints(value)
    return dev:buffer("i32", 4):fill(value)
  end

  it("fails its operation with place and message, and the device stays up", function()
    local x <close> = dev:upload("f32", 100, function(i) return i == 71 and -2.5 or i end)
    local y <close> = dev:buffer("f32", 100):fill(0)
    assert.equal("n: i32, x: in f32*, y: inout f32*", mod.roots:signature())
    local op = mod.roots:launch({ grid = 4, block = 32 }, 100, x, y)
    local err = support.raises("KernelFailed", { "kernel 'roots'", "line 4 of ",
      "block (2,0,0), thread (6,0,0): x[70] is -2.5" }, op.await, op)
    assert.equal("roots", err.op.label)
    assert.truthy(err.op.source:find("reports_spec.lua", 1, true))
    assert.truthy(err.hint)
    support.raises("DependencyFailed", { "'roots'", "x[70] is -2.5" }, y.read, y)
    y:fill(0)
    x:fill(16)
    mod.roots:launch({ grid = 4, block = 32 }, 100, x, y):await()
    assert.are.same({ 4, 4 }, y:read(99, 100))
  end)

  it("prints up to eight values as printf does", function()
    local op = mod.all:launch({ grid = { 3, 2 }, block = { 8, 1, 1 } })
    support.raises("KernelFailed", { "thread (5,0,0): -7|   42|9   |-5000000000|ff|1.500|c|100%|0x1000" }, op.await, op)
    op = mod.odd:launch(support.one)
    support.raises("KernelFailed", "? and 2.5 of 7.000000, %q, %d %", op.await, op)
    support.raises("CompileFailed", "at most 8", dev.compile, dev, [[
      #include <gpulua_kernel.h>
      extern "C" __global__ void k(gpulua_ctx c) { gpulua_check(c, false, "%d", 1, 2, 3, 4, 5, 6, 7, 8, 9); }]])
    local cases = {
      { '""', "): (no message)" },
      { '"%x %u %o", -1, -1, (short)-1', "ffffffff 4294967295 37777777777" },
      { '"%hhd %hd %llx", 300, 70000, -1ll', "44 4464 ffffffffffffffff" },
      { '"%s: %d", "text", 5', "?: 5" },
      { '"%*d %.*f", 5, 7, 2, 1.25', "    7 1.25" },
      { '"[%5c][%-6p][%6d]", 65, (void *)0, 1.5', "[    A][0x0   ][   1.5]" },
      { '"%c%c", (char)-61, 10', "??" },
      { '"%d %d", 1', "1 %d" },
      { '"%n%hhn %d", 5', "%n%hhn 5" },
      -- What the device asks for takes no longer than what anybody would.
      { '"%999999999d|%.999999999f|%d", 5, 0.5, 6', (" "):rep(98) .. "5|0.5" .. ("0"):rep(98) .. "|6" },
    }
    for _, case in ipairs(cases) do
      local one = dev:compile(('#include <gpulua_kernel.h>\nextern "C" __global__ void k(gpulua_ctx) { }\n'
        .. 'extern "C" __global__ void f(gpulua_ctx c) { gpulua_check(c, false, %s); }'):format(case[1]))
      op = one.f:launch(support.one)
      support.raises("KernelFailed", case[2], op.await, op)
      one.k:launch(support.one):await()
    end
    local long = ("m"):rep(300)
    local kernel = dev:compile(('#include <gpulua_kernel.h>\nextern "C" __global__ void k(gpulua_ctx c) '
      .. '{ gpulua_check(c, false, "%s"); }'):format(long)).k
    op = kernel:launch(support.one)
    local err = support.raises("KernelFailed", ("m"):rep(143), op.await, op)
    assert.is_nil(err.message:find(("m"):rep(144), 1, true))
  end)

  it("tells of one failure, however many threads fail", function()
    local n <const> = 100000
    local x <close> = dev:buffer("f32", n):fill(-1)
    local y <close> = dev:buffer("f32", n):fill(0)
    for _ = 1, 20 do
      local op = mod.roots:launch(n, n, x, y)
      local err = support.raises("KernelFailed", "is -1", op.await, op)
      local block, thread, at = err.message:match "block %((%d+),0,0%), thread %((%d+),0,0%): x%[(%d+)%]"
      assert.equal(tonumber(at), block * 256 + thread)
      y:fill(0)
    end
  end)

  it("has the line right, also behind lines that go on", function()
    local kernel = dev:compile('#include <gpulua_kernel.h>\n#define A 1 + \\\n  2\nextern "C" __global__ void\n'
      .. '__launch_bounds__(64) k(int n, \\\n  gpulua_ctx that)\n{ int a = A; // {\n\n'
      .. '  gpulua_check(that, n < a, "no: %d", n);\n}\n').k
    kernel:launch(support.one, 2):await()
    local op = kernel:launch(support.one, 3)
    support.raises("KernelFailed", { "line 9 of", "no: 3" }, op.await, op)
  end)

  it("fails what reads its output, whenever that is asked for, and nothing else", function()
    local a <close> = ints(1)
    local b <close> = ints(2)
    local c <close> = ints(3)
    local d <close> = ints(4)
    local bad = mod.step:launch(four, a, d, 9, 5)
    local second = mod.step:launch(four, b, a, 1, 5)
    local third = mod.plain:launch(four, c, b, 1)
    local other = mod.step:launch(four, d, d, 1, 5)
    support.raises("KernelFailed", "9 is more than 5", bad.await, bad)
    support.raises("DependencyFailed", "9 is more than 5", second.await, second)
    support.raises("DependencyFailed", "9 is more than 5", third.await, third)
    other:await()
    local fourth = mod.plain:launch(four, c, a, 1)
    local err = support.raises("DependencyFailed", "9 is more than 5", fourth.await, fourth)
    assert.are.same({ "step", "KernelFailed" }, { err.root.label, err.root.code })
    assert.are.same({ 5, 5, 5, 5 }, d:read())
    a:fill(0)
    mod.plain:launch(four, c:fill(0), a, 1):await()
    assert.are.same({ 1, 1, 1, 1 }, c:read())
  end)

  -- All is there before the first of it fails.
  local function behind_a_failure(kernel, way, by, seconds, seen)
    local x <close> = ints(0)
    local y <close> = ints(0)
    local to <close> = ints(0)
    local ran <close> = ints(0)
    local s1 <close> = dev:stream {}
    local s2 <close> = dev:stream {}
    local late = mod.late:launch({ grid = 1, block = 1, stream = s1 }, x, support.ticks(seconds), by)
    local from = x
    if way == "a copy" then
      s2:use(y.copy, y, x)
      from = y
    elseif way == "a plain kernel" then
      mod.plain:launch({ grid = 1, block = 4, stream = s2 }, y, x, 1)
      from = y
    elseif way == "a kernel that does not ask" then
      mod.unasked:launch({ grid = 1, block = 4, stream = s2 }, y, x)
      from = y
    end
    local op = kernel:launch({ grid = 1, block = 1, stream = s2 }, from, to, ran)
    seen()
    local is_well = late:join()
    assert.equal(by == 0, is_well)
    local ok, err = op:join()
    assert.equal(is_well, ok)
    if not ok then
      support.is_error(err, "DependencyFailed", "late")
    end
    return ran:read()[1]
  end

  for _, way in ipairs { "nothing", "a copy", "a plain kernel", "a kernel that does not ask" } do
    it("skips itself behind a failure, with " .. way .. " between them", function()
      support.wants_time(pending)
      for _, case in ipairs { { mod.mark, 1, 0 }, { mod.mark, 0, 1 },
        { mod.mark_plainly, 1, 1 } } do -- the twin: it was submitted already
        support.under_way(0.05, function(seconds, seen)
          assert.equal(case[3], behind_a_failure(case[1], way, case[2], seconds, seen))
        end)
      end
    end)
  end

  it("may report from functions, and leave alone what it does not use", function()
    local m = dev:compile [[
      #include <gpulua_kernel.h>
      __device__ int checked(gpulua_ctx ctx, int v) { return gpulua_check(ctx, v != 2, "two") ? v : -1; }
      namespace a { template <int N> __global__ void k(int *x, gpulua_ctx) { x[0] = N; } }
      extern "C" __global__ void k(int *x, gpulua_ctx ctx) { x[threadIdx.x] = checked(ctx, threadIdx.x); }]]
    local x <close> = ints(0)
    local op = m.k:launch(four, x)
    support.raises("KernelFailed", { "line 2 of", "thread (2,0,0): two" }, op.await, op)
  end)

  it("has a type of its own in signatures, at their end", function()
    local kernel = mod:kernel("step", "out i32*, in i32*, i32, i32, gpulua_ctx")
    assert.equal("out i32*, in i32*, i32, i32", kernel:signature())
    local x <close> = ints(0)
    local y <close> = ints(1)
    kernel:launch(four, x, y, 1, 5):await()
    support.raises("InvalidArgument", "4 arguments", kernel.launch, kernel, four, x, y, 1, 5, 6)
    support.raises("InvalidArgument", "the last parameter", mod.kernel, mod, "step", "gpulua_ctx, i32")
    support.raises("InvalidArgument", "'gpulua_ctx' is 104 bytes at offset 8", mod.kernel, mod, "of_other",
      "out i32*, gpulua_ctx")
    support.raises("InvalidArgument", "4 parameters, the compiled kernel has 5", mod.kernel, mod, "step",
      "out i32*, in i32*, i32, i32")
  end)

  it("leaves nothing behind, also when many are in flight and fail", function()
    local x <close> = ints(0)
    local y <close> = ints(1)
    local z <close> = ints(1)
    local function round()
      local ops = {}
      if not support.is_checked() then -- all of them at a time
        mod.late:launch(support.one, z, support.ticks(0.1), 0)
      end
      for i = 1, 700 do
        ops[i] = mod.step:launch(four, x, y, i, 690)
        if i > 690 then
          x:fill(0)
        end
      end
      for i = 1, 700 do
        local ok, err = ops[i]:join()
        assert.equal(i <= 690, ok)
        assert.equal(i <= 690 and true or "KernelFailed", ok or err.code)
      end
      x:fill(0):await()
    end
    round()
    support.without_leak(dev, round)
  end)

  it("fails what needs an output that has been written over since, behind many other failures", function()
    support.wants_time(pending)
    local x, y, z, other, ops = ints(0), ints(0), ints(0), ints(0), {}
    local late = mod.late:launch(support.one, x, support.ticks(0.02), 1)
    local first = mod.plain:launch(four, y, x, 1)
    for i = 1, 300 do
      ops[i] = mod.plain:launch(four, other, x, 1)
      other:fill(0)
    end
    local last = mod.plain:launch(four, z, y, 1)
    y:fill(0)
    require("system").sleep(0.2) -- all of it is over when somebody looks
    support.raises("KernelFailed", "late", late.await, late)
    for _, op in ipairs { first, last, table.unpack(ops) } do
      support.raises("DependencyFailed", "late", op.await, op)
    end
    support.raises("DependencyFailed", "late", z.read, z)
  end)

  -- What each operation ends as, against a model: an operation fails by its own check, or by what it reads.
  it("fails exactly what it has to, in random programs", function()
    local rounds = support.keeps_freed_memory() and 10 or 60
    for seed = 1, rounds do
      local random = support.random(seed)
      local buffers, bad, streams, ops, expected = {}, {}, { nil }, {}, {}
      for i = 1, 5 do
        buffers[i] = ints(i)
      end
      for i = 1, 3 do
        streams[i] = dev:stream {}
      end
      for i = 1, 40 do
        local to, from = random(1, 5), random(1, 5)
        from = from == to and to % 5 + 1 or from
        local kind, stream = random(1, 8), streams[random(1, 3)]
        if kind <= 5 then
          local by = random(1, 12)
          ops[i] = mod.step:launch({ grid = 1, block = 4, stream = stream }, buffers[to], buffers[from], by, 10)
          -- `step` may read what it writes, as its signature says.
          expected[i] = (bad[to] or bad[from]) and "DependencyFailed" or by > 10 and "KernelFailed" or nil
          bad[to] = expected[i] ~= nil or nil
        elseif kind == 6 then
          ops[i] = mod.plain:launch({ grid = 1, block = 4, stream = stream }, buffers[to], buffers[from], 1)
          expected[i] = (bad[to] or bad[from]) and "DependencyFailed" or nil
          bad[to] = expected[i] ~= nil or nil
        elseif kind == 7 then
          stream:use(buffers[to].copy, buffers[to], buffers[from])
          bad[to] = bad[from]
        else
          stream:use(buffers[to].fill, buffers[to], i)
          bad[to] = nil
        end
        if random(1, 10) == 1 then
          gpu.sleep(0)
        end
      end
      for i = 1, 40 do
        if ops[i] then
          local ok, err = ops[i]:join()
          assert.equal(expected[i] or true, ok or err.code, ("seed %d, operation %d"):format(seed, i))
        end
      end
      for i = 1, 5 do
        local ok = pcall(buffers[i].read, buffers[i])
        assert.equal(not bad[i], ok, ("seed %d, buffer %d"):format(seed, i))
        buffers[i]:close()
      end
      for i = 1, 3 do
        streams[i]:close()
      end
    end
  end)

  local function add(x, by)
    return mod.step:launch(four, x, x, by, 5)
  end

  it("unseen, is left to the task that launched it while that lives", function()
    local x <close> = ints(0)
    local mine <close> = ints(1)
    local goes_on = false
    local task = gpu.spawn(function()
      add(x, 9)
      while not goes_on do gpu.sleep(0.001) end
      local ok, err = pcall(x.read, x)
      return not ok and (err.root and "root " .. err.root.label or err.code)
    end)
    gpu.sleep(0.001)
    dev:current():mark():await()
    for _ = 1, 3 do
      assert.equal(1, mine:read()[1])
      dev:current():synchronize()
    end
    goes_on = true
    assert.equal("root step", task:await())
    dev:synchronize()
  end)

  it("unseen by its task, is raised by the next read of another one", function()
    local x <close> = ints(0)
    local mine <close> = ints(1)
    local task = gpu.spawn(function()
      add(x, 9)
      dev:current():mark():await()
    end)
    task:await()
    support.raises("KernelFailed", { "9 is more than 5" }, mine.read, mine)
    assert.equal(1, mine:read()[1])
  end)

  it("unseen, is raised where a task waits for the whole device", function()
    local x <close> = ints(0)
    local task = gpu.spawn(function()
      add(x, 9)
      gpu.sleep(10)
    end)
    gpu.sleep(0.001)
    support.raises("KernelFailed", { "9 is more than 5" }, dev.synchronize, dev)
    dev:synchronize()
    task:cancel()
    task:join()
  end)

  it("is told of in the tasks that it concerns alone, of many at once", function()
    local next_number, wrong, failed = 0, {}, 0
    local function work()
      while next_number < 200 do
        next_number = next_number + 1
        local number = next_number
        local x <close> = ints(0)
        local is_bad = number % 10 == 3
        if is_bad then add(x, 9) else add(x, 1) end
        local ok, err = pcall(x.read, x)
        failed = failed + (ok and 0 or 1)
        if ok == is_bad then
          wrong[#wrong + 1] = ("%d: %s"):format(number, tostring(err))
        end
      end
    end
    local tasks = {}
    for i = 1, 8 do tasks[i] = gpu.spawn(work) end
    gpu.all(tasks)
    assert.are.same({}, wrong)
    assert.equal(20, failed)
    assert.equal(0, dev:stats().errors_unobserved)
  end)

  it("is the root also of what failed because of it, before it was known", function()
    if dev.kind ~= "cpu" then
      pending "a failed assertion ends this device: see lost_spec"
    end
    local later = dev:compile [[
      #include <assert.h>
      extern "C" __global__ void later(const int *x, int *y) { assert(x[0] < 5); y[0] = 1; }
    ]].later
    for round = 1, 200 do
      local x <close> = ints(0)
      local y <close> = ints(0)
      local z <close> = ints(0)
      local other <close> = dev:stream()
      add(x, 9)
      other:use(function()
        later:launch({ grid = 1, block = 1 }, x, y)
        if round % 2 == 0 then gpu.sleep(0.0002) end
      end)
      mod.plain:launch(four, z, y, 1)
      local err = support.raises("DependencyFailed", { "'step'" }, z.read, z)
      assert.equal("step", err.root.label)
    end
    dev:synchronize() -- nothing is left that nobody has seen
    assert.equal(0, dev:stats().errors_unobserved)
  end)

  it("reports in the next life of the device, too", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local own <close> = support.open {}
    local step = own:compile(source).step
    local x, y = own:buffer("i32", 4, { durable = true }):fill(0), own:buffer("i32", 4, { durable = true }):fill(1)
    for round = 1, 3 do
      local op = step:launch(four, x, y, 9, 5)
      support.raises("KernelFailed", "9 is more than 5", op.await, op)
      x:fill(0)
      step:launch(four, x, y, round, 5):await()
      assert.equal(1 + round, x:read()[1])
      support.lose(own)
    end
  end)
end)
