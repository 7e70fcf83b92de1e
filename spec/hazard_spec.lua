-- Order: work that conflicts runs in the order in which it was launched, on whatever streams.
--
-- Each test of a hazard has a twin that shows what happens without the fence: its kernel is given a
-- signature that hides the conflicting access (`in` for what it writes), or the address of its memory
-- as a number, so that the recorder cannot see the use. If the twin gave the right result too, the
-- test would prove nothing.

local gpu = require "gpulua"
local support = require "spec.support"

describe("hazards", function()
  local dev, mod, ticks, source

  setup(function()
    dev = support.open()
    source = support.spin_source .. [[
      extern "C" __global__ void put(int *x, int n, int value) { for (int i = 0; i < n; i++) x[i] = value; }
      extern "C" __global__ void take(const int *x, int *y, int n) { for (int i = 0; i < n; i++) y[i] = x[i]; }
      extern "C" __global__ void address(const int *x, long long *out) { out[0] = (long long)x; }
      extern "C" __global__ void spin_fill_at(long long ticks, long long at, int n, int value) {
        long long start = now();
        while (now() - start < ticks) { }
        int *x = (int *)at;
        for (int i = 0; i < n; i++) x[i] = value;
      }
      extern "C" __global__ void mix(int n, const int *a, const int *b, int *c, int k) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) c[i] = c[i] * 31 + a[i] * 7 + b[(i + k) % n] + k;
      }
      extern "C" __global__ void slow_mix(long long ticks, int n, const int *a, const int *b, int *c, int k) {
        long long start = now();
        while (now() - start < ticks) { }
        for (int i = 0; i < n; i++) c[i] = c[i] * 31 + a[i] * 7 + b[(i + k) % n] + k;
      }
    ]]
    mod = dev:compile(source)
    ticks = support.ticks(0.15)
  end)
  teardown(support.close_all)

  local n = 8

  --- Runs f with three streams and three buffers of n ones, twos and threes.
  local function scene(f)
    local a <close> = dev:stream {}
    local b <close> = dev:stream {}
    local c <close> = dev:stream {}
    local x <close> = dev:buffer("i32", n):fill(1)
    local y <close> = dev:buffer("i32", n):fill(2)
    local z <close> = dev:buffer("i32", n):fill(3)
    dev:synchronize()
    local function on(stream)
      return { grid = 1, block = 1, stream = stream }
    end
    return f(x, y, z, on(a), on(b), on(c))
  end

  local function is_all(buffer, value)
    for _, v in ipairs(buffer:read()) do
      if v ~= value then
        return false
      end
    end
    return true
  end

  --- A twin goes wrong. On a busy machine the unfenced work may still come in order by chance: a few attempts.
  local function goes_wrong(run, ...)
    support.wants_time(pending)
    for _ = 1, 5 do
      if not run(...) then
        return
      end
    end
    error("without the fence it ended as with it", 2)
  end

  local hidden
  setup(function()
    hidden = {
      -- Writes that the recorder takes for reads.
      spin_fill = mod:kernel("spin_fill", "i64, in i32*, i32, i32"),
      put = mod:kernel("put", "in i32*, i32, i32"),
    }
  end)

  describe("read after write", function()
    local function run(spin_fill)
      return scene(function(x, y, _, a, b)
        spin_fill:launch(a, ticks, x, n, 42)
        mod.take:launch(b, x, y, n)
        return is_all(y, 42)
      end)
    end
    it("waits on another stream", function() assert.is_true(run(mod.spin_fill)) end)
    it("twin: an unseen write is read too early", function() goes_wrong(run, hidden.spin_fill) end)
  end)

  describe("write after read", function()
    local function run(put)
      return scene(function(x, y, _, a, b)
        mod.spin_copy:launch(a, ticks, x, y, n)
        put:launch(b, x, n, 9)
        return is_all(y, 1)
      end)
    end
    it("waits on another stream", function() assert.is_true(run(mod.put)) end)
    it("twin: an unseen write is seen by the reader", function() goes_wrong(run, hidden.put) end)
  end)

  describe("write after write", function()
    local function run(spin_fill)
      return scene(function(x, _, _, a, b)
        local first = spin_fill:launch(a, ticks, x, n, 5)
        mod.put:launch(b, x, n, 6)
        first:await()
        return is_all(x, 6)
      end)
    end
    it("waits on another stream", function() assert.is_true(run(mod.spin_fill)) end)
    -- The later write does wait for a read; so both are hidden.
    it("twin: unseen writes end in the wrong order", function()
      goes_wrong(scene, function(x, _, _, a, b)
        local first = hidden.spin_fill:launch(a, ticks, x, n, 5)
        hidden.put:launch(b, x, n, 6)
        first:await()
        return is_all(x, 6)
      end)
    end)
  end)

  -- A buffer that remembered only its last reader would let the writer overtake the slow one.
  describe("slow reader, fast reader, writer", function()
    local function run(put)
      return scene(function(x, y, z, a, b, c)
        local slow = mod.spin_copy:launch(a, ticks, x, y, n)
        mod.take:launch(b, x, z, n):await()
        put:launch(c, x, n, 9)
        slow:await()
        return is_all(y, 1) and is_all(z, 1)
      end)
    end
    it("the writer waits for both", function() assert.is_true(run(mod.put)) end)
    it("twin: an unseen writer does not", function() goes_wrong(run, hidden.put) end)
  end)

  -- More readers than one record can name: none may be forgotten.
  describe("a writer behind readers on every stream that there is", function()
    local function run(put, seconds)
      seconds = seconds or 1
      local readers = dev:stats().limit_user_streams
      local x <close> = dev:buffer("i32", n):fill(1)
      local streams, seen = {}, {}
      for i = 1, readers do
        streams[i] = dev:stream {}
        seen[i] = dev:buffer("i32", 1):fill(0) -- each has its own: what they write orders none of them
      end
      dev:synchronize()
      local config = { grid = 1, block = 1, stream = streams[1] }
      -- All of them wait for this write, so all of them are pending when the last one is launched.
      local first = mod.spin_fill:launch(config, support.ticks(seconds), x, n, 5)
      for i = 1, readers do
        config.stream = streams[i]
        if i == readers // 3 then -- a slow one in the middle
          mod.spin_copy:launch(config, support.ticks(0.3), x, seen[i], 1)
        else
          mod.take:launch(config, x, seen[i], 1)
        end
      end
      local in_time = support.is_checked() or not first:done()
      put:launch(support.one, x, n, 9)
      first:await()
      local is_right = is_all(x, 9)
      for i = 1, readers do
        is_right = is_right and is_all(seen[i], 5)
        streams[i]:close()
        seen[i]:close()
      end
      dev:synchronize()
      if not in_time and seconds < 60 then -- too slow to show anything
        return run(put, 4 * seconds)
      end
      assert.is_true(in_time, "too slow to show anything")
      return is_right
    end
    it("waits for all of them", function() assert.is_true(run(mod.put)) end)
    it("twin: an unseen writer waits for none", function() goes_wrong(run, hidden.put) end)
  end)

  it("two readers do not wait for each other", function()
    support.wants_time(pending)
    scene(function(x, y, z, a, b)
      support.under_way(0.4, function(seconds, seen)
        local slow = mod.spin_copy:launch(a, support.ticks(seconds), x, y, n)
        mod.take:launch(b, x, z, n):await()
        local is_over = slow:done()
        seen()
        assert.is_false(is_over)
        slow:await()
      end)
    end)
  end)

  it("what shares nothing does not wait", function()
    support.wants_time(pending)
    scene(function(x, y, _, a, b)
      support.under_way(0.4, function(seconds, seen)
        local slow = mod.spin_fill:launch(a, support.ticks(seconds), x, n, 1)
        mod.put:launch(b, y, n, 2):await()
        local is_over = slow:done()
        seen()
        assert.is_false(is_over)
        slow:await()
      end)
    end)
  end)

  it("fill, write, copy and read wait as launches do", function()
    scene(function(x, y, _, a)
      mod.spin_fill:launch(a, ticks, x, n, 50)
      y:copy(x)
      assert.is_true(is_all(y, 50))
      mod.spin_fill:launch(a, ticks, x, n, 51)
      x:fill(60)
      assert.is_true(is_all(x, 60))
      mod.spin_fill:launch(a, ticks, x, n, 52)
      x:write({ 70 }, 1)
      assert.are.same({ 70, 52 }, x:read(1, 2))
      mod.spin_fill:launch(a, ticks, x, n, 53)
      assert.are.same({ 53 }, x:read(n, n))
      mod.spin_copy:launch(a, ticks, x, y, n)
      x:fill(0)
      assert.is_true(is_all(y, 53))
    end)
  end)

  it("host buffers wait as well", function()
    scene(function(x, _, _, a)
      local h <close> = dev:host("i32", n)
      for i = 1, n do
        h[i] = i
      end
      mod.spin_fill:launch(a, ticks, x, n, 54)
      h:copy(x)
      assert.equal(54, h[n])
      mod.spin_copy:launch(a, ticks, x, dev:buffer("i32", n), n)
      x:copy(h)
      h[1] = 99 -- waits for the copy out of it
      assert.equal(54, x:read(1, 1)[1])
    end)
  end)

  --- Tasks that put a kernel each on one buffer, the first a slow one. Does it end as if they had run in order?
  local function run_tasks(slow_mix)
    local x <close> = dev:buffer("i32", n):fill(0)
    dev:synchronize()
    local order = {}
    local tasks = {}
    for i = 1, 8 do
      tasks[i] = gpu.spawn(function()
        order[#order + 1] = i
        slow_mix:launch(support.one, i == 1 and ticks or 1, n, x, x, x, i):await()
      end)
    end
    gpu.all(tasks)
    local want = {}
    for k = 1, n do
      want[k] = 0
    end
    for _, i in ipairs(order) do
      for k = 1, n do
        local b = want[(k - 1 + i) % n + 1]
        want[k] = want[k] * 31 + want[k] * 7 + b + i
      end
    end
    for k = 1, n do
      want[k] = (want[k] + 0x80000000 & 0xFFFFFFFF) - 0x80000000
    end
    local got, is_same = x:read(), true
    for k = 1, n do
      is_same = is_same and want[k] == got[k]
    end
    return is_same
  end

  it("tasks on streams of their own are fenced in the order of their launches", function()
    if support.is_checked() then
      pending "only time orders these launches, which check mode reports"
    end
    assert.is_true(run_tasks(mod.slow_mix))
  end)

  it("twin: tasks whose writes are not seen end in another order", function()
    goes_wrong(run_tasks, mod:kernel("slow_mix", "i64, i32, in i32*, in i32*, in i32*, i32"))
  end)

  it("tasks overlap on the device", function()
    support.wants_time(pending)
    local x <close> = dev:buffer("i32", 1):fill(0)
    local y <close> = dev:buffer("i32", 1):fill(0)
    dev:synchronize()
    support.under_way(0.4, function(seconds, seen)
      local slow_op
      local slow = gpu.spawn(function()
        slow_op = mod.spin:launch(support.one, support.ticks(seconds), x, 1)
        slow_op:await()
      end)
      local fast = gpu.spawn(function()
        mod.spin:launch(support.one, 1, y, 1):await()
        return slow_op:done()
      end)
      local is_over = fast:await()
      seen()
      assert.is_false(is_over)
      slow:await()
    end)
  end)

  describe("freed memory", function()
    local small, kernels

    setup(function()
      -- So little that what is freed has to be used again at once.
      small = support.open { budget = 8 << 20 }
      kernels = small:compile(source)
    end)

    --- A slow kernel writes x; x is freed; a new buffer of the same size takes its place. What is in it
    --- at the end.
    local function run(launch_slow)
      local s <close> = small:stream {}
      local count = (5 << 20) // 4
      local x = small:buffer("i32", count):fill(1)
      local at <close> = small:buffer("i64", 1)
      kernels.address:launch(support.one, x, at)
      local address = at:read()[1]
      small:synchronize()
      local slow = launch_slow({ grid = 1, block = 1, stream = s }, x, address)
      x:free()
      local y <close> = small:buffer("i32", count):fill(7)
      kernels.address:launch(support.one, y, at)
      slow:await()
      assert.equal(address, at:read()[1])
      return y:read(1, 1)[1]
    end

    it("is not written by work that was launched before it was freed", function()
      for _ = 1, 3 do
        assert.equal(7, run(function(config, x)
          return kernels.spin_fill:launch(config, support.ticks(0.15), x, 4, 66)
        end))
      end
    end)

    it("twin: an unseen use of it writes into the new buffer", function()
      support.wants_time(pending)
      local found
      for _, seconds in ipairs { 0.15, 0.6, 2.4 } do -- on a busy machine it may be over before
        found = run(function(config, _, address)
          return kernels.spin_fill_at:launch(config, support.ticks(seconds), address, 4, 66)
        end)
        if found == 66 then
          break
        end
      end
      assert.equal(66, found)
    end)
  end)

  it("dropping and allocating anew under load never mixes contents", function()
    local streams = {}
    for i = 1, 4 do
      streams[i] = dev:stream {}
    end
    local random = support.random(11)
    local checks = {}
    for round = 1, 200 do
      local count = random(1, 4) * 1024
      local x = dev:buffer("i32", count)
      local y = dev:buffer("i32", count)
      local config = { grid = 1, block = 1, stream = streams[random(1, 4)] }
      mod.spin_fill:launch(config, support.ticks(0.0002), x, count, round)
      config.stream = streams[random(1, 4)]
      mod.take:launch(config, x, y, count)
      x:close()
      checks[#checks + 1] = { y, round, count }
      if #checks > 8 then
        local check = table.remove(checks, 1)
        assert.equal(string.pack("<i4", check[2]):rep(check[3]), check[1]:bytes())
        check[1]:close()
      end
    end
    for _, check in ipairs(checks) do
      assert.equal(string.pack("<i4", check[2]):rep(check[3]), check[1]:bytes())
    end
  end)

  local random_program

  describe("random programs on several streams", function()
    local count, stream_count, buffer_count = 16, 6, 5

    --- The same program, run by the device on many streams and by Lua in order.
    function random_program(seed, operations, where)
      local random = support.random(seed)
      local streams, buffers, model = {}, {}, {}
      for i = 1, stream_count do
        streams[i] = where.dev:stream {}
      end
      for b = 1, buffer_count do
        local start = {}
        for i = 1, count do
          start[i] = random(-100, 100)
        end
        buffers[b], model[b] = where.dev:upload("i32", start), start
      end
      local function wrap(v)
        return (v + 0x80000000 & 0xFFFFFFFF) - 0x80000000
      end
      for _ = 1, operations do
        local stream = streams[random(1, stream_count)]
        local a, b, c, k = random(1, buffer_count), random(1, buffer_count), random(1, buffer_count), random(0, 50)
        local kind = random(1, 10)
        if kind <= 7 then
          -- Distinct buffers: a kernel that reads what it writes elsewhere in the buffer races in itself.
          if c == b then
            b = b % buffer_count + 1
          end
          if kind == 7 then
            where.slow_mix:launch({ grid = 1, block = 1, stream = stream }, support.ticks(0.001), count,
              buffers[a], buffers[b], buffers[c], k)
          else
            where.mix:launch({ grid = 1, block = count, stream = stream }, count, buffers[a], buffers[b], buffers[c], k)
          end
          local before = table.move(model[c], 1, count, 1, {})
          local from_a = a == c and before or model[a]
          for i = 1, count do
            model[c][i] = wrap(before[i] * 31 + from_a[i] * 7 + model[b][(i - 1 + k) % count + 1] + k)
          end
        elseif kind == 8 then
          stream:use(buffers[a].fill, buffers[a], k)
          for i = 1, count do
            model[a][i] = k
          end
        elseif kind == 9 and a ~= b then
          stream:use(buffers[a].copy, buffers[a], buffers[b])
          table.move(model[b], 1, count, 1, model[a])
        else
          local at = random(1, count)
          stream:use(buffers[a].write, buffers[a], { k }, at)
          model[a][at] = k
        end
      end
      local is_right = true
      for b = 1, buffer_count do
        local got = buffers[b]:read()
        for i = 1, count do
          is_right = is_right and got[i] == model[b][i]
        end
        buffers[b]:close()
      end
      for i = 1, stream_count do
        streams[i]:close()
      end
      return is_right
    end

    local function fenced()
      return { dev = dev, mix = mod.mix, slow_mix = mod.slow_mix }
    end

    it("end as if they had run in order", function()
      for seed = 1, 12 do
        assert.is_true(random_program(seed, 200, fenced()), "seed " .. seed)
      end
    end)

    it("end as if they had run in order, 200 seeds of 1,000 operations #slow", function()
      if not os.getenv "GPULUA_SLOW" then
        pending "GPULUA_SLOW=1 runs it"
      end
      for seed = 1000, 1199 do
        assert.is_true(random_program(seed, 1000, fenced()), "seed " .. seed)
      end
    end)

    it("twin: with slow kernels whose writes are not seen they do not", function()
      support.wants_time(pending)
      local unseen = mod:kernel("slow_mix", "i64, i32, in i32*, in i32*, in i32*, i32")
      local wrong = 0
      for seed = 1, 12 do
        wrong = wrong + (random_program(seed, 200, { dev = dev, mix = mod.mix, slow_mix = unseen }) and 0 or 1)
      end
      assert.truthy(wrong > 0)
    end)
  end)

  describe("a device that was opened unfenced, for tests alone", function()
    it("twin: random programs end wrong", function()
      support.wants_time(pending)
      local is_there, unfenced = pcall(support.open, { unfenced = true })
      if not is_there then
        pending(unfenced.message)
      end
      local kernels = unfenced:compile(source)
      local where = { dev = unfenced, mix = kernels.mix, slow_mix = kernels.slow_mix }
      local wrong = 0
      for seed = 1, 12 do
        wrong = wrong + (random_program(seed, 200, where) and 0 or 1)
      end
      unfenced:close()
      assert.truthy(wrong > 0)
    end)
  end)

  describe("launches of a graph that nobody has a handle on, behind which there is no event yet,", function()
    --- Slow ones, one behind another; what another stream reads behind them.
    local function read_behind(own, spin_fill)
      local x <close> = support.zeros(own, "i32", 1)
      local y <close> = support.zeros(own, "i32", 1)
      local one <close> = own:stream {}
      local two <close> = own:stream {}
      local graph <close> = own:capture(function() spin_fill:launch(support.one, ticks, x, 1, 5) end)
      own:synchronize()
      for _ = 1, 3 do
        graph:launch { stream = one }
      end
      two:use(function() y:copy(x) end)
      return y:read()[1]
    end

    it("are waited for like any other", function()
      assert.equal(5, read_behind(dev, mod.spin_fill))
    end)

    it("twin: are not, without the event that is owed", function()
      support.wants_time(pending)
      local is_there, own = pcall(support.open, { unfenced = "owed", completion = "word" })
      if not is_there then
        pending(own.message)
      end
      local spin_fill = own:compile(source).spin_fill
      goes_wrong(function() return read_behind(own, spin_fill) == 5 end)
      own:close()
    end)
  end)

  it("waits for what hundreds of streams have under way, with a graph and with a launch", function()
    support.wants_time(pending)
    local other <close> = support.open() -- with no stream yet
    local count, kernels = 256, other:compile(support.clock_source .. [[
      extern "C" __global__ void slow(int *x, long long ticks) {
        long long end = now() + ticks;
        while (now() < end) { }
        *x += 1;
      }
      extern "C" __global__ void add(const int *x, int *y) { *y += *x; }
      extern "C" __global__ void all(const int *a, const int *b, const int *c, const int *d, int *y) {
        int s = 0;
        for (int i = 0; i < 64; i++) s += a[i] + b[i] + c[i] + d[i];
        *y = s;
      }]])
    local one, few, streams, parts = { grid = 1, block = 1 }, support.ticks(0.002), {}, {}
    local sum, rows = other:buffer("i32", 1):fill(0), {}
    for i = 1, 4 do rows[i] = other:buffer("i32", 64):fill(0) end
    for i = 1, count do
      streams[i] = other:stream()
      parts[i] = other:buffer("i32", 1):fill(0)
    end
    local graph <close> = other:capture(function()
      for i = 1, count do kernels.add:launch(one, parts[i], sum) end
    end)
    for _ = 1, 2 do
      other:synchronize()
      for i = 1, count do
        kernels.slow:launch({ grid = 1, block = 1, stream = streams[i] }, parts[i], few)
      end
      graph:launch()
    end
    assert.equal(3 * count, sum:read()[1])
    for i = 1, count do
      kernels.slow:launch({ grid = 1, block = 1, stream = streams[i] },
        rows[(i - 1) // 64 + 1]:slice((i - 1) % 64 + 1, (i - 1) % 64 + 1), few)
    end
    kernels.all:launch(one, rows[1], rows[2], rows[3], rows[4], sum)
    assert.equal(count, sum:read()[1])
  end)

  it("counts the waits it issues and those it leaves out", function()
    scene(function(x, y, _, a, b)
      support.under_way(0.15, function(seconds, seen)
        local before = dev:stats()
        mod.spin_fill:launch(a, support.ticks(seconds), x, n, 1)
        mod.take:launch(b, x, y, n) -- has to wait
        mod.take:launch(b, x, y, n) -- is behind that wait already
        local after = dev:stats()
        seen()
        dev:synchronize()
        assert.equal(before.waits_issued + 1, after.waits_issued)
        assert.truthy(after.waits_elided > before.waits_elided)
      end)
    end)
  end)
end)
