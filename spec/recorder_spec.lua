-- Recorders: what a host's own work uses is declared, waited for, and noted behind it.

local gpu = require "gpulua"
local support = require "spec.support"

describe("recorder", function()
  local dev, mod, ticks

  setup(function()
    dev = support.open()
    mod = dev:compile(support.spin_source .. [[
      extern "C" __global__ void put(int *x, int n, int value) { for (int i = 0; i < n; i++) x[i] = value; }
      extern "C" __global__ void take(const int *x, int *y, int n) { for (int i = 0; i < n; i++) y[i] = x[i]; }
    ]])
    ticks = support.ticks(0.15)
  end)
  teardown(support.close_all)

  local function scene(f)
    local a <close> = dev:stream {}
    local b <close> = dev:stream {}
    local x <close> = dev:buffer("i32", 16, { label = "x" }):fill(1)
    local y <close> = dev:buffer("i32", 16, { label = "y" }):fill(2)
    dev:synchronize()
    local function on(stream)
      return { grid = 1, block = 1, stream = stream }
    end
    return f(x, y, on(a), on(b), a, b)
  end

  --- "Raw" work: a launch whose buffer x the recorder of typed operations takes for nothing: its address goes as
  --- a number.
  local function raw()
    local at = dev:compile(support.clock_source .. [[
      extern "C" __global__ void address(const int *x, long long *out) { out[0] = (long long)x; }
      extern "C" __global__ void put_at(long long at, int n, int value) {
        for (int i = 0; i < n; i++) ((int *)at)[i] = value;
      }
      extern "C" __global__ void slow_put_at(long long ticks, long long at, int n, int value) {
        long long start = now();
        while (now() - start < ticks) { }
        for (int i = 0; i < n; i++) ((int *)at)[i] = value;
      }
      extern "C" __global__ void take_at(long long at, int *y, int n) {
        for (int i = 0; i < n; i++) y[i] = ((const int *)at)[i];
      }
    ]])
    local function address(x)
      local out <close> = dev:buffer("i64", 1)
      at.address:launch(support.one, x, out)
      return out:read()[1]
    end
    return at, address
  end

  describe("fences raw work", function()
    local at, address
    setup(function() at, address = raw() end)

    it("behind earlier writes", function()
      scene(function(x, y, a, b, _, stream_b)
        local where = address(x)
        mod.spin_fill:launch(a, ticks, x, 16, 5)
        local rec = dev:recorder { stream = stream_b }
        rec:read(x):write(y):preflight()
        at.take_at:launch(b, where, y, 16)
        rec:commit():await()
        assert.equal(5, y:read(16, 16)[1])
      end)
    end)
    it("behind earlier kernels that may write a variable", function()
      scene(function(_, y, a, b, _, stream_b)
        local setter = dev:compile(support.clock_source .. [[
          __device__ int last = 1;
          extern "C" __global__ void slow_set(long long ticks, int v) {
            long long start = now();
            while (now() - start < ticks) { }
            last = v;
          }
        ]])
        local last = setter:global "last"
        local where = address(last)
        setter.slow_set:launch(a, ticks, 5)
        local rec = dev:recorder { stream = stream_b }
        rec:read(last):write(y):preflight()
        at.take_at:launch(b, where, y, 1)
        rec:commit():await()
        assert.equal(5, y:read(1, 1)[1])
      end)
    end)
    it("twin: without a recorder it is too early", function()
      scene(function(x, y, a, b)
        local where = address(x)
        mod.spin_fill:launch(a, ticks, x, 16, 5)
        at.take_at:launch(b, where, y, 16):await()
        assert.equal(1, y:read(16, 16)[1])
      end)
    end)

    it("before later work", function()
      scene(function(x, y, a, b, stream_a)
        local where = address(x)
        local rec = dev:recorder { stream = stream_a }
        rec:write(x):preflight()
        at.slow_put_at:launch(a, ticks, where, 16, 7)
        rec:commit()
        mod.take:launch(b, x, y, 16)
        assert.equal(7, y:read(1, 1)[1])
      end)
    end)
    it("twin: without a recorder later work does not wait", function()
      scene(function(x, y, a, b)
        local where = address(x)
        at.slow_put_at:launch(a, ticks, where, 16, 7)
        mod.take:launch(b, x, y, 16)
        assert.equal(1, y:read(1, 1)[1])
        dev:synchronize()
      end)
    end)

    it("and memory outlives it", function()
      scene(function(_, _, a, _, stream_a)
        local x = dev:buffer("i32", 16):fill(1)
        local where = address(x)
        dev:synchronize()
        local rec = dev:recorder { stream = stream_a }
        rec:write(x):preflight()
        at.slow_put_at:launch(a, ticks, where, 16, 7)
        local op = rec:commit()
        x:close()
        local z <close> = dev:buffer("i32", 16):fill(3)
        op:await()
        assert.equal(3, z:read(1, 1)[1])
      end)
    end)
  end)

  it("joins uses and counts them before that", function()
    scene(function(x, y, _, _, a)
      local rec <close> = dev:recorder { stream = a }
      assert.equal(0, rec:count())
      rec:read(x, y):write(x)
      assert.equal(3, rec:count())
      assert.equal("gpulua.recorder (3 uses)", tostring(rec))
      rec:cancel()
    end)
  end)

  it("that is empty passes both, in both modes, and may leave preflight out", function()
    for _, mode in ipairs { "strict", "permissive" } do
      local rec = dev:recorder { mode = mode }
      assert.equal(rec, rec:preflight())
      rec:commit():await()
      dev:recorder({ mode = mode }):commit():await()
    end
  end)

  describe("in strict mode raises at preflight", function()
    it("the first rejection, naming argument and cause", function()
      scene(function(x, y)
        local rec = dev:recorder()
        rec:read(x, 4096):write("text"):read(y)
        support.raises("StreamMisuse", { "argument 2 of read", "untracked" }, rec.preflight, rec)
      end)
    end)

    it("closed and freed buffers with their own codes", function()
      local x = dev:buffer("i32", 16)
      x:close()
      local rec = dev:recorder()
      rec:read(x)
      support.raises("Closed", "argument 1 of read", rec.preflight, rec)
      local y = dev:buffer("i32", 16)
      y:free()
      rec = dev:recorder()
      rec:write(y)
      support.raises("UseAfterFree", "argument 1 of write", rec.preflight, rec)
    end)

    it("memory that cannot be tracked", function()
      local direct <close> = dev:memory { from = "direct" }
      local x <close> = direct:buffer("i32", 16)
      local rec = dev:recorder()
      rec:write(x)
      support.raises("StreamMisuse", { "argument 1 of write", "cannot track" }, rec.preflight, rec)
      rec = dev:recorder { mode = "permissive" }
      rec:write(x):preflight()
      rec:commit()
    end)

    it("buffers of another device", function()
      local other = support.open { label = "other" }
      local x <close> = other:buffer("i32", 16)
      local rec = dev:recorder()
      rec:read_write(x)
      support.raises("InvalidArgument", { "argument 1 of read_write", "the work is for" }, rec.preflight, rec)
      other:close()
    end)

    it("and enqueues nothing", function()
      scene(function(x, _, a, _, _, b)
        mod.spin_fill:launch(a, ticks, x, 16, 5)
        local before = dev:stats()
        local rec = dev:recorder { stream = b }
        rec:read(x, false)
        support.raises("StreamMisuse", "argument 2", rec.preflight, rec)
        local after = dev:stats()
        assert.equal(before.records, after.records)
        assert.equal(before.waits_issued, after.waits_issued)
        dev:synchronize()
      end)
    end)
  end)

  it("in permissive mode leaves out what has no identity, and only that", function()
    scene(function(x)
      local rec = dev:recorder { mode = "permissive" }
      rec:read(4096, x, {}):preflight()
      assert.equal(3, rec:count())
      rec:commit()
      local y = dev:buffer("i32", 16)
      y:close()
      rec = dev:recorder { mode = "permissive" }
      rec:read(y)
      support.raises("Closed", "argument 1", rec.preflight, rec)
    end)
  end)

  describe("refuses", function()
    it("commit without preflight", function()
      scene(function(x)
        local rec = dev:recorder()
        rec:read(x)
        support.raises("StreamMisuse", "without preflight", rec.commit, rec)
      end)
    end)

    it("a second preflight, and anything after the end", function()
      scene(function(x)
        local rec = dev:recorder()
        rec:read(x):preflight()
        support.raises("StreamMisuse", "second preflight", rec.preflight, rec)
        rec:commit()
        support.raises("Closed", "commit", rec.commit, rec)
        support.raises("Closed", "preflight", rec.preflight, rec)
        for _, use in ipairs { "read", "write", "read_write" } do
          support.raises("Closed", use .. " of a recorder that has ended", rec[use], rec, x)
        end
        rec:close()
        support.raises("Closed", "closed recorder", rec.read, rec, x)
      end)
    end)

    it("at commit a use after preflight, but notes it", function()
      scene(function(x, y, a, b, stream_a)
        support.under_way(0.15, function(seconds, seen)
          local rec = dev:recorder { stream = stream_a }
          rec:read(x):preflight():write(y)
          mod.spin:launch(a, support.ticks(seconds), x, 5)
          support.raises("StreamMisuse", { "argument 1 of write", "after preflight" }, rec.commit, rec)
          local op = mod.put:launch(b, y, 16, 3)
          local is_over = op:done()
          seen()
          op:await()
          assert.is_false(is_over)
        end)
      end)
    end)

    it("conflicting work on other streams between preflight and commit", function()
      scene(function(x, y, a, b, stream_a, stream_b)
        local rec = dev:recorder { stream = stream_a }
        rec:write(x:slice(1, 8)):read(y):preflight()
        support.raises("StreamMisuse", { "'take'", "buffer 'x'", "frozen" }, mod.take.launch, mod.take, b, x, y, 16)
        support.raises("StreamMisuse", { "'fill'", "frozen" }, stream_b.use, stream_b, y.fill, y, 1)
        local second = dev:recorder { stream = stream_b }
        second:read(x)
        support.raises("StreamMisuse", "frozen", second.preflight, second)
        second:cancel()
        -- What does not conflict, and the same stream, go on.
        mod.put:launch(b, x:slice(9, 16), 8, 4):await()
        local reader = dev:recorder { stream = stream_b }
        reader:read(y):preflight()
        reader:commit()
        mod.put:launch(a, x, 8, 4)
        rec:commit()
        mod.take:launch(b, x, y, 16):await()
        assert.equal(4, y:read(16, 16)[1])
      end)
    end)

    it("wrong options", function()
      support.raises("InvalidArgument", { "mode", "lax" }, dev.recorder, dev, { mode = "lax" })
      support.raises("InvalidArgument", "stream", dev.recorder, dev, { stream = 1 })
      local rec = dev:recorder()
      support.raises("InvalidArgument", "nothing", rec.read, rec)
    end)
  end)

  describe("memory that is freed", function()
    it("before preflight is refused there, and what was lost with the device as well", function()
      scene(function(x)
        local rec = dev:recorder()
        rec:write(x)
        x:free()
        support.raises("UseAfterFree", {}, rec.preflight, rec)
        rec:close()
      end)
      if support.is_isolated() then
        local own <close> = support.open { isolate = "process" }
        local x = own:buffer("i32", 16):fill(1)
        local rec = own:recorder()
        rec:write(x)
        support.lose(own)
        support.raises("Stale", {}, rec.preflight, rec)
        rec:close()
      end
    end)

    it("between preflight and commit stays the work's of the host until that is over", function()
      scene(function(x, _, a, _, stream_a)
        x:await()
        support.settle(dev)
        local before <const> = dev:stats().bytes_live
        local rec = dev:recorder { stream = stream_a }
        rec:write(x):preflight()
        x:free()
        assert.equal(before, dev:stats().bytes_live)
        rec:commit():await()
        support.settle(dev)
        assert.truthy(dev:stats().bytes_live < before)
        mod.put:launch(a, dev:buffer("i32", 16), 16, 3):await()
      end)
    end)
  end)

  it("whose commit comes to no end can be committed again", function()
    if support.isolation() ~= "process" then
      pending "nothing stops the device"
    end
    local own <close>, pid = support.open_with_pid {}
    local x, other = own:buffer("i32", 16):fill(0), own:buffer("i32", 16)
    local rec = own:recorder { stream = own:stream() }
    rec:write(x):preflight()
    own:await()
    os.execute("kill -STOP " .. pid)
    local ok = pcall(gpu.timeout, 1, function()
      for i = 1, 1000000 do other:fill(i) end
    end)
    local is_committed, err = pcall(gpu.timeout, 0.2, rec.commit, rec)
    os.execute("kill -CONT " .. pid)
    assert.are.same({ false, false }, { ok, is_committed })
    support.is_error(err, "Timeout")
    rec:commit():await()
    assert.equal(0, x:read(1, 1)[1])
  end)

  it("abandoned before preflight is cancelled", function()
    scene(function(x, y, _, b)
      local before = dev:stats().recorders_abandoned
      local rec = dev:recorder()
      rec:write(x)
      rec:close()
      mod.take:launch(b, x, y, 16):await()
      assert.equal(before, dev:stats().recorders_abandoned)
    end)
  end)

  it("abandoned after it is committed and counted", function()
    scene(function(x, y, a, b, stream_a)
      local before
      support.under_way(0.15, function(seconds, seen, begins)
        before = dev:stats().recorders_abandoned
        do
          local rec = dev:recorder { stream = stream_a }
          rec:write(x):preflight()
          begins()
          mod.spin:launch(a, support.ticks(seconds), x, 5)
        end
        collectgarbage()
        local op = mod.take:launch(b, x, y, 16)
        local is_over, abandoned = op:done(), dev:stats().recorders_abandoned
        seen()
        op:await()
        assert.is_false(is_over)
        assert.equal(before + 1, abandoned)
      end)
      local rec = dev:recorder { stream = stream_a }
      rec:write(x):preflight()
      rec:close()
      mod.take:launch(b, x, y, 16):await()
      assert.equal(before + 2, dev:stats().recorders_abandoned)
    end)
  end)

  it("knows that an input has failed", function()
    if dev.kind == "cuda" then
      pending "a failed assert ends the device there"
    end
    local bad = dev:compile([[
      #include <cassert>
      extern "C" __global__ void bad(int *x) { assert(x == 0); }
    ]]).bad
    scene(function(x, y, a, b)
      bad:launch(a, x):join()
      local rec = dev:recorder()
      rec:read(x)
      local err = support.raises("DependencyFailed", "'bad'", rec.preflight, rec)
      assert.equal("bad", err.root.label)
      rec:cancel()
      rec = dev:recorder()
      rec:write(x):preflight()
      rec:commit()
      mod.take:launch(b, x, y, 16):await()
    end)
  end)
end)
