-- Tests of which most must fail: spec/busted_spec.lua runs them and looks at how. Lines are found by the marks at their
-- ends.

local gpu = require "gpulua"
local kit = require "gpulua.busted"

local source <const> = [[
  #include <assert.h>
  extern "C" __global__ void add(int n, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
  }
  extern "C" __global__ void put(int *x, int n, int value) { for (int i = 0; i < n; i++) x[i] = value; }
  extern "C" __global__ void positive(int *x) { assert(x[0] > 0); }
]]
local one <const> = { grid = 1, block = 1 }
local kept = {}

kit.describe_devices({ "cpu" }, "checks", function(device)
  local x, mod
  setup(function()
    mod = device():compile(source)
    kept.outside = device():buffer("f32", 7)
  end)
  before_each(function() x = device():buffer("f32", { 2, 2 }):write { 1, 2, 3, 4 } end)
  after_each(function() x:close() end)
  local function four() return x:view("f32", 4) end

  describe("pass", function()
    it("with nothing", function() end)
    it("with garbage", function()
      for _ = 1, 20 do device():buffer("f32", 100):fill(1) end
      device():stream {}
      gpu.spawn(function() device():buffer("f32", 5) end)
    end)
    it("with what finally closes", function()
      local y = device():buffer("f32", 9)
      kept.finally = y
      finally(function() y:close() end)
    end)
    it("with work that ends soon", function() mod.add:launch(4, 4, four(), x) end)
    it("with a device of its own", function() kept.own = device { label = "own" } end)
    it("and that is closed then", function()
      assert.equal("Closed", select(2, pcall(kept.own.buffer, kept.own, "f32", 1)).code)
    end)
    it("with what is allowed", function()
      kit.allow("memory", "tasks")
      kept.allowed = device():buffer("f32", 3)
      kept.task = gpu.spawn(function() gpu.sleep(30) end)
    end)
    it("but the task is cancelled", function() assert.equal("cancelled", kept.task:status()) end)
  end)

  describe("fail", function()
    it("with a buffer", function() kept.buffer = device():buffer("f32", 100, { label = "kept" }) end) -- buffer
    it("with a host buffer", function() kept.host = device():host("f64", 10) end) -- host
    it("with many", function()
      kept.many = {}
      for i = 1, 10 do kept.many[i] = device():buffer("u8", 64) end -- many
      for i = 1, 9 do
        kept.many[10 + i] = load("local d = ... local b = d:buffer('u8', 1) return b", "=line" .. i)(device())
      end
    end)
    it("with a graph", function()
      kept.graph = device():capture({ label = "step" }, function() mod.add:launch(4, 4, four(), x) end)
    end)
    it("with a stream", function() kept.stream = device():stream { label = "side" } end) -- stream
    it("with work", function()
      kit.inject.slow("add", 3)
      local y, side = device():buffer("f32", 4):fill(0), device():stream {} -- other tests do not come behind it
      mod.add:launch({ grid = 1, block = 4, stream = side }, 4, y, y:view("f32")) -- work
    end)
    it("with work that failed", function()
      mod.positive:launch(one, device():buffer("i32", 1):fill(0)) -- failed work
    end)
    it("with a task", function()
      kept.task = gpu.spawn(function() -- task
        gpu.sleep(30) -- sleep
      end)
    end)
    it("with a task that failed", function()
      gpu.spawn(function() error "mishap" end) -- failed task
    end)
    it("with a task that failed by itself", function()
      gpu.spawn(function() error "mishap" end):detach() -- detached
      gpu.sleep(0.01)
    end)
    it("with a failure of a device that it closes", function()
      local own = device { label = "own" }
      own:compile(source).positive:launch(one, own:buffer("i32", 1):fill(0)) -- closed
      own:close()
    end)
    it("with a device that is lost", function()
      kept.own = device { isolate = "process", label = "own" }
      local y = kept.own:buffer("f32", 4)
      kit.inject.lost(1, kept.own)
      y:fill(1)
    end)
    it("with a device that is lost for good", function()
      kept.own = device { isolate = "thread", label = "own" }
      local y = kept.own:buffer("f32", 4)
      kit.inject.fault(1, kept.own)
      y:fill(1)
    end)
    it("with a capture", function() kept.capture = device():capture { label = "step" } end) -- capture
    it("with a capture that it lets go of", function() device():capture() end)
    it("with neither of those before", function() assert.equal(1.0, four():read()[1]) end)
    it("not twice, where a look within it has told of it", function()
      assert.is_not.noleaks(function()
        gpu.spawn(function() error "mishap" end):detach()
        gpu.sleep(0.01)
      end)
    end)
    it("with a failure in front of a look within it", function()
      gpu.spawn(function() error "early" end):detach()
      gpu.sleep(0.01)
      assert.noleaks(function() end)
    end)
    it("by themselves, and what they leave goes", function()
      kept.task = gpu.spawn(function() gpu.sleep(30) end)
      kept.own = device { label = "own" }
      finally(function() kept.finally = "called" end)
      error "own mistake"
    end)
    it("not because of the one before", function()
      assert.equal("cancelled", kept.task:status())
      assert.equal("called", kept.finally)
      assert.is_false(pcall(kept.own.buffer, kept.own, "f32", 1))
    end)
    it("when finally does", function() finally(function() error "in finally" end) end)
  end)

  describe("injected", function()
    it("oom comes", function()
      kit.inject.oom(2)
      device():buffer("f32", 4):close()
      assert.equal("OutOfMemory", select(2, pcall(device().buffer, device(), "f32", 4)).code)
    end)
    it("oom is asked for", function() kit.inject.oom() end)
    it("oom is withdrawn", function() device():buffer("f32", 4):close() end)
    it("loss comes", function()
      local own, other = device { isolate = "process" }, device { isolate = "process", label = "other" }
      local y, z = own:buffer("f32", 4):fill(1), other:buffer("f32", 4)
      kit.inject.lost(1, own)
      assert.equal("DeviceLost", select(2, pcall(function() y:fill(2):read() end)).code)
      assert.equal(3.0, z:fill(3):read()[1])
      kit.inject.fault(1, other)
      assert.equal("DeviceLost", select(2, pcall(function() z:fill(2):read() end)).code)
    end)
    it("by a wrong name", function() kit.inject.oom(-1) end)
    it("allow of nothing", function() kit.allow("everything") end)
  end)

  describe("assert", function()
    it("allclose", function() assert.allclose(x, { { 1, 2 }, { 3, 5 } }) end)
    it("allclose of unlike shapes", function() assert.allclose(x, { { 1, 2, 3, 4 } }) end)
    it("not allclose", function() assert.is_not.allclose(x, x) end)
    it("allclose of text", function() assert.allclose(x, "1 2 3 4") end) -- text
    it("bitequal", function() assert.bitequal(x, { 1, 2, 3.0000005, 4 }) end)
    it("noleaks", function()
      assert.noleaks(function() kept.leak = device():buffer("i32", 8) end) -- leak
    end)
    it("noleaks of a device", function()
      assert.noleaks(function() kept.device = gpu.device("cpu", { label = "left" }) end)
    end)
    it("noleaks of no function", function() assert.noleaks(7) end)
    it("racefree of tasks", function()
      assert.racefree(function(dev)
        local y = dev:buffer("i32", 8, { label = "y" }):fill(0)
        local put = dev:compile(source).put
        gpu.spawn(function() put:launch(one, y, 8, 1) end) -- first task
        gpu.spawn(function() put:launch(one, y, 8, 2) end) -- second task
      end)
    end)
    it("racefree of a lost fence", function()
      assert.racefree(function(dev)
        local put = dev:compile(source).put
        local y = dev:buffer("i32", 8, { label = "y" }):fill(0)
        local a, b = dev:stream {}, dev:stream {}
        dev:synchronize()
        put:launch({ grid = 1, block = 1, stream = a }, y, 8, 1) -- first put
        put:launch({ grid = 1, block = 1, stream = b }, y, 8, 2) -- second put
        return { y = y }
      end, { seeds = 100, options = { unfenced = 1 } })
    end)
    it("racefree of what fails always", function()
      assert.is_not.racefree(function(dev) dev:synchronize() error "always" end, { seeds = 3 })
    end)
    it("racefree without work", function() assert.racefree(function() return 1 end) end)
    it("racefree with a wrong option", function() assert.racefree(function() end, { sedes = 3 }) end)
    it("deterministic", function()
      local n = 0
      assert.deterministic(function(dev)
        n = n + 1
        local y <close> = dev:buffer("i32", 4):fill(n)
        return y:read()
      end)
    end)
    it("deterministic of nothing", function()
      assert.deterministic(function(dev) dev:buffer("i32", 4):fill(1) end)
    end)
  end)
end)

kit.describe_devices({ "cuda:97", { "cpu", check = true, seed = 3 } }, "matrix", function(device, name)
  local dev, opened
  setup(function() dev = device { label = "of setup" } end)
  it("has this one", function()
    assert.equal("cpu", name)
    assert.equal("cpu", dev.kind)
    assert.is_true(device().check)
    opened = device()
    assert.equal(opened, device())
  end)
  describe("inside", function()
    test("as well", function()
      assert.equal("cpu", name)
      assert.equal(opened, device())
      opened:close()
      assert.are_not.equal(opened, device())
      opened = device()
    end)
    test("and behind one that was closed", function() assert.equal(opened, device()) end)
  end)
end)

do -- a build without a backend
  local open = gpu.device
  gpu.device = function(name, ...)
    if name == "cuda:96" then
      require "gpulua.core".raise("Unsupported", "this build has no backend 'cuda'")
    end
    return open(name, ...)
  end
  kit.describe_devices({ "cuda:96" }, "not built", function() it("is not run", function() error "it was" end) end)
end

if os.getenv "GPULUA_TEST_DEVICES" then
  kit.describe_devices("named", function(device) it("is there", function() assert.truthy(device()) end) end)
end
