-- Check mode: tasks that use variables of a module, where nothing but time orders their work.

local gpu = require "gpulua"
local support = require "spec.support"

local source = [[
  __device__ int table[20000];
  __device__ unsigned count;
  __device__ unsigned char letters[64];
  __constant__ int scale = 2;
  extern "C" __global__ void put(int at, int value) { table[at] = value; }
  extern "C" __global__ void get(int at, int *out) { out[0] = table[at] * scale; }
  extern "C" __global__ void every(int first, int step, int n) {
    for (int i = first; i < n; i += step) table[i] = i;
  }
  extern "C" __global__ void letter(int at) { letters[at] = 'x'; }
  extern "C" __global__ void tick(unsigned *seen) { seen[0] = atomicAdd(&count, 1u); }
  extern "C" __global__ void tick_twice() { atomicAdd(&count, 1u); __syncthreads(); count += 1; }
  extern "C" __global__ void reset() { count = 0; }
  extern "C" __global__ void fill(int *x, int n) { for (int i = 0; i < n; i++) x[i] = i; }
]]
local one <const> = { grid = 1, block = 1 }

describe("check mode: tasks and variables of modules", function()
  if support.is_gpu() then
    it("are seen by the CPU device alone", function() pending "the CPU device's check mode" end)
    return
  end

  local dev, mod
  before_each(function()
    dev = gpu.device("cpu", { check = true, seed = 1 })
    mod = dev:compile(source)
  end)
  after_each(function()
    dev:close()
  end)

  --- Has a task do it, of which the caller hears nothing but that it is over; the task.
  local function done_unheard(f)
    local is_over = false
    local task = gpu.spawn(function()
      local result = f()
      is_over = true -- a variable, which check mode knows nothing of
      return result
    end)
    while not is_over do
      gpu.sleep(0.001)
    end
    return task
  end

  --- Both as tasks of which neither knows the other; false and the error of the one that was found, or true.
  local function outcome(first, second)
    local result = table.pack(gpu.spawn(function()
      gpu.all { gpu.spawn(first), gpu.spawn(second) }
      dev:synchronize()
    end):join())
    return result[1], result[2]
  end

  --- The same in either order, each on a device of its own.
  local function either(first, second)
    local results = {}
    for i, pair in ipairs { { first, second }, { second, first } } do
      results[i] = table.pack(outcome(table.unpack(pair)))
      dev:close()
      dev = gpu.device("cpu", { check = true, seed = i })
      mod = dev:compile(source)
    end
    return results
  end

  local function assert_race(results, parts)
    for _, result in ipairs(results) do
      assert.is_false(result[1])
      support.is_error(result[2], "RaceFound", parts)
    end
  end

  local function assert_none(results)
    for _, result in ipairs(results) do
      assert.is_true(result[1], tostring(result[2]))
    end
  end

  it("that both write are a race, with both launches, the variable and its bytes", function()
    local ok, err = outcome(function() mod.put:launch(one, 3, 1) end, function() mod.put:launch(one, 3, 2) end)
    assert.is_false(ok)
    support.is_error(err, "RaceFound", { "'put' (", "writes variable 'table' of its module, bytes 12 to 15,",
      "of another task writes", "variables_spec.lua:" })
    assert.equal("put", err.op.label)
    assert.equal(2, select(2, err.message:gsub("variables_spec%.lua:%d+", "")))
  end)

  it("that one reads and the other writes are one, that both read are none", function()
    local x = dev:buffer("i32", 2):fill(0)
    assert_none { table.pack(outcome(function() mod.get:launch(one, 5, x:slice(1, 1)) end,
      function() mod.get:launch(one, 5, x:slice(2, 2)) end)) }
    assert_race(either(function() mod.get:launch(one, 5, dev:buffer("i32", 1)) end,
      function() mod.put:launch(one, 5, 1) end), { "variable 'table'", "bytes 20 to 23", "reads" })
  end)

  it("other bytes are none, also of one variable, and narrower than a word", function()
    assert_none(either(function() mod.put:launch(one, 3, 1) end, function() mod.put:launch(one, 4, 2) end))
    assert_none(either(function() mod.letter:launch(one, 8) end, function() mod.letter:launch(one, 9) end))
    assert_race(either(function() mod.letter:launch(one, 8) end, function() mod.letter:launch(one, 8) end),
      "variable 'letters' of its module, bytes 8 to 8,")
    assert_none(either(function() mod.put:launch(one, 3, 1) end, function() mod.reset:launch(one) end))
  end)

  it("every other element of many are none, and one in common is found", function()
    local n <const> = 20000
    assert_none(either(function() mod.every:launch(one, 0, 2, n) end, function() mod.every:launch(one, 1, 2, n) end))
    assert_race(either(function() mod.every:launch(one, 0, 2, n) end,
      function() mod.put:launch(one, n - 2, 1) end), ("bytes %d to %d,"):format(4 * n - 8, 4 * n - 5))
  end)

  it("atomic operations beside each other are none, beside others they are a race", function()
    local function tick() mod.tick:launch(one, dev:buffer("u32", 1)) end
    local function reset() mod.reset:launch(one) end
    assert_none(either(tick, tick))
    assert_race(either(tick, reset), "variable 'count'")
    assert_race(either(tick, function() mod.tick_twice:launch(one) end), "variable 'count'")
  end)

  it("of many that add, who reads one alone has not heard of the others", function()
    local heard
    local result = table.pack(gpu.spawn(function()
      for _ = 1, 3 do
        gpu.spawn(function() mod.tick:launch(one, dev:buffer("u32", 1)) end)
      end
      heard = gpu.spawn(function() mod.tick:launch(one, dev:buffer("u32", 1)):await() end)
      heard:await()
      mod.reset:launch(one):await()
    end):join())
    assert.is_false(result[1])
    support.is_error(result[2], "RaceFound", "variable 'count'")
  end)

  it("work that one has heard of is none", function()
    local x = dev:buffer("i32", 4):fill(0)
    mod.put:launch(one, 1, 1) -- before both
    assert_none { table.pack(gpu.spawn(function()
      local writes = gpu.spawn(function() return mod.put:launch(one, 1, 2) end)
      local op = writes:await()
      gpu.spawn(function() mod.put:launch(one, 1, 3):await() end):await()
      op:await()
      gpu.spawn(function() mod.get:launch(one, 1, x:slice(1, 1)) end):join()
      mod.put:launch(one, 1, 4)
      dev:synchronize()
      assert.equal(6, x:read()[1])
    end):join()) }
    done_unheard(function() mod.put:launch(one, 7, 9) end)
    dev:synchronize()
    mod.put:launch(one, 7, 10)
    assert.equal(10, mod:global "table":read()[8])
    done_unheard(function() mod.put:launch(one, 7, 11) end)
    local at = mod:global("table"):slice(8, 8)
    at:await()
    assert.equal(11, at:read()[1])
  end)

  for name, touch in pairs {
    fill = function() mod:global "scale":fill(5) end,
    write = function() mod:global "scale":write { 5 } end,
    copy = function() mod:global "scale":copy(dev:upload("i32", { 5 })) end,
  } do
    it("what a task does to a variable is held against kernels of others: " .. name, function()
      assert_race(either(touch, function() mod.get:launch(one, 0, dev:buffer("i32", 1)) end),
        { "variable 'scale' of its module, bytes 0 to 3," })
      assert_none(either(touch, function() mod.put:launch(one, 0, 1) end))
    end)
  end

  it("what the task itself has done since to a part of it hides nothing of the rest", function()
    for at, is_race in pairs { [1] = true, [0] = true, [9] = true, [10] = false } do
      local mine = dev:compile(source .. "// " .. at)
      done_unheard(function()
        mine.every:launch(one, 0, 1, 10)
        mine:global "table":slice(1, 1):fill(5) -- known before it is seen what the kernel has done
      end)
      local result = table.pack(gpu.spawn(function() mine.put:launch(one, at, 1):await() end):join())
      assert.equal(not is_race, result[1], at)
    end
  end)

  it("what the task itself has read since does not hide that it was written, nor is hidden by that", function()
    done_unheard(function()
      mod.put:launch(one, 3, 1)
      dev:buffer("i32", 1):copy(mod:global "table":slice(4, 4))
    end)
    local ok, err = gpu.spawn(function() mod.get:launch(one, 3, dev:buffer("i32", 1)):await() end):join()
    assert.is_false(ok)
    support.is_error(err, "RaceFound", "of another task writes")
    local other = dev:compile(source .. "// other")
    local writer = done_unheard(function()
      local op = other.put:launch(one, 3, 1)
      dev:buffer("i32", 1):copy(other:global "table":slice(4, 4))
      return op
    end)
    ok, err = gpu.spawn(function()
      local op = writer:await()
      op:await()
      other.put:launch(one, 3, 2):await()
    end):join()
    assert.is_true(ok, tostring(err)) -- who awaits the task knows of both
  end)

  it("a variable as an argument is one as well, in part", function()
    local function with(first, last)
      return function() mod.fill:launch(one, mod:global "table":slice(first, last), last - first + 1) end
    end
    assert_race(either(with(1, 4), with(4, 6)), "variable 'table' of its module, bytes 12 to 15,")
    assert_race(either(with(1, 4), function() mod.put:launch(one, 3, 1) end), "bytes 12 to 15,")
    assert_none(either(with(1, 4), with(5, 6)))
    assert_none(either(with(1, 4), function() mod.put:launch(one, 4, 1) end))
  end)

  it("a variable as an argument of another module's kernel is memory like any other", function()
    local user = dev:compile [[
      extern "C" __global__ void fill(int *x, int n) { for (int i = 0; i < n; i++) x[i] = i; }
      extern "C" __global__ void sum(const int *x, int n, int *out) { for (int i = 0; i < n; i++) out[0] += x[i]; }
      extern "C" __global__ void all_at_once(int *x) { x[0] = threadIdx.x; }
      extern "C" __global__ void bytes(unsigned char *x, const int *scale) { x[3] = scale[0]; }]]
    local at, letters, out = mod:global "table", mod:global "letters", dev:buffer("i32", 1):fill(0)
    user.fill:launch(one, at, 20000)
    user.sum:launch(one, at:slice(1, 10), 10, out)
    assert.are.same({ 45 }, out:read())
    user.bytes:launch(one, letters, mod:global "scale")
    assert.are.same({ 2 }, letters:read(4, 4))
    mod.get:launch(one, 7, out)
    assert.are.same({ 14 }, out:read())
    mod.put:launch(one, 3, 5)
    assert.are.same({ 5 }, at:read(4, 4))
    local function another()
      return dev:compile(source):global "table"
    end
    support.raises("OutOfBounds", { "fill", "wrote 4 bytes", "argument 1 ('x')" }, function()
      user.fill:launch(one, another():slice(5, 8), 5):await()
    end)
    support.raises("UndeclaredAccess", { "fill", "argument 1 ('x')", "declared in" }, function()
      user:kernel("fill", "x: in i32*, n: i32"):launch(one, another(), 5):await()
    end)
    support.raises("RaceFound", { "all_at_once" }, function()
      user.all_at_once:launch({ grid = 1, block = 2 }, another()):await()
    end)
    support.raises("RaceFound", { "two" }, function() -- through two arguments, by two blocks
      local x = another()
      dev:compile [[extern "C" __global__ void two(int *x, int *y) { (blockIdx.x ? x : y)[1 - blockIdx.x] = 1; }]]
        .two:launch({ grid = 2, block = 1 }, x:slice(2, 4), x:slice(1, 4)):await()
    end)
  end)

  it("variables of many modules as arguments stay what they are while kernels have memory of their own", function()
    local kept, out = {}, dev:buffer("i32", 1)
    for i = 1, 40 do
      kept[i] = dev:compile [[__device__ int v; extern "C" __global__ void set(int *x) { v = x[0] = 1; }]]
      kept[i].set:launch(one, out)
      local user <const> = dev:compile [[extern "C" __global__ void around(int *p) {
        __shared__ int s;
        p[0] = 1;
        s = 2;
        p[0] += s; }]]
      local v = kept[i]:global "v"
      user.around:launch(one, v)
      assert.are.same({ 3 }, v:read())
    end
  end)

  it("graphs that two tasks launch are held against each other, by all of their nodes", function()
    local x = dev:buffer("i32", 2):fill(0)
    local other = dev:compile(source)
    local function of(module, at)
      return dev:capture(function()
        module.put:launch(one, at, 1)
        module.get:launch(one, at, x:slice(1, 1))
      end)
    end
    local y = dev:buffer("i32", 1):fill(0)
    local a, b, c = of(mod, 3), dev:capture(function() mod.put:launch(one, 3, 2) end),
      dev:capture(function() other.put:launch(one, 3, 2) other.get:launch(one, 3, y) end)
    assert_none { table.pack(outcome(function() a:launch() end, function() c:launch() end)) }
    local ok, err = outcome(function() b:launch() end, function() a:launch() end)
    assert.is_false(ok)
    support.is_error(err, "RaceFound", "variable 'table' of its module, bytes 12 to 15,")
  end)

  it("the operation fails, what depends on it, too, and the device goes on", function()
    local x = dev:buffer("i32", 1):fill(0)
    done_unheard(function() mod.put:launch(one, 1, 1) end)
    local op, later
    gpu.spawn(function()
      op = mod.get:launch(one, 1, x)
      later = mod.fill:launch(one, x, 1)
      assert.is_false((op:join()))
      assert.is_false((later:join()))
    end):await()
    support.raises("RaceFound", "variable 'table'", op.await, op)
    support.raises("DependencyFailed", "", later.await, later)
    x:fill(7)
    assert.equal(7, x:read()[1])
  end)

  it("a module has nothing to do with one that was there before, at the same place", function()
    for i = 1, 8 do
      local made = dev:compile(source .. "// " .. i)
      done_unheard(function() made.put:launch(one, 1, i) end)
      made:close()
      collectgarbage()
    end
  end)

  it("what a life of the device has done is none with what the next one does", function()
    if support.isolation() ~= "process" then
      pending "the device lives in this process"
      return
    end
    local lost <close> = gpu.device("cpu", { check = true, seed = 1, isolate = "process" })
    local kept = lost:compile(source)
    done_unheard(function() kept.put:launch(one, 1, 1) end)
    lost:synchronize()
    lost:inject { lost = 1 }
    gpu.spawn(function() pcall(kept.put.launch, kept.put, one, 1, 2) end):join()
    lost:await()
    gpu.spawn(function() kept.put:launch(one, 1, 3) end):join()
    lost:synchronize()
    assert.equal(3, kept:global "table":read()[2])
  end)
end)
