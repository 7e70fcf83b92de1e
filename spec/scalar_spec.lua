-- Scalars: set between launches, in the order of launches, and never in a capture.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a scalar", function()
  local dev, mod, spin

  setup(function()
    dev = support.open()
    mod = dev:compile [=[
      extern "C" __global__ void take(const int *at, int *x) { x[at[0]] = at[0]; }
      extern "C" __global__ void scale(const double *a, double *x) { x[0] = x[0] * a[0]; }
      extern "C" __global__ void bump(int *at) { at[0] += 1; }
    ]=]
    spin = dev:compile(support.spin_source)
  end)
  teardown(support.close_all)

  it("is what it was set to, in every element type", function()
    for element_type, value in pairs {
      i8 = -5, u8 = 200, i16 = -300, u16 = 60000, i32 = -70000, u32 = 4000000000, i64 = math.mininteger + 5, u64 = -2,
      f16 = 0.5, bf16 = -2.0, f32 = 0.25, f64 = math.pi,
    } do
      local s <close> = dev:scalar(element_type, value)
      assert.equal(value, s:get(), element_type)
      assert.equal(s, s:set(0))
      assert.equal(0, s:get())
      s:set(value)
      assert.equal(value, s:get(), element_type)
    end
    local c <close> = dev:scalar("c64", { 1.5, -2 })
    assert.are.same({ 1.5, -2 }, c:get())
  end)

  it("goes where a kernel takes a pointer, and a kernel may write it", function()
    local x <close> = support.zeros(dev, "i32", 10)
    local at <close> = dev:scalar("i32", 3, { label = "position" })
    mod.take:launch(support.one, at, x)
    mod.bump:launch(support.one, at)
    mod.take:launch(support.one, at, x)
    assert.are.same({ 0, 0, 0, 3, 4, 0, 0, 0, 0, 0 }, x:read())
    assert.equal(4, at:get())
    assert.equal("scalar", gpu.type(at))
    assert.truthy(tostring(at):find("gpulua.scalar i32 on ", 1, true))
    assert.truthy(tostring(at):find("(position)", 1, true))
    local a <close> = dev:scalar("f64", 2.5)
    local y <close> = dev:upload("f64", { 4 })
    mod.scale:launch(support.one, a, y)
    assert.equal(10.0, y:read()[1])
    support.raises("InvalidArgument", { "f64" }, mod.take.launch, mod.take, support.one, a, x)
  end)

  it("set between launches is seen by those behind it and by no other, on any stream", function()
    local x <close> = support.zeros(dev, "i32", 64)
    local other <close> = dev:stream {}
    local at <close> = dev:scalar("i32", 0)
    local ticks = support.ticks(0.02)
    local slow <close> = support.zeros(dev, "i32", 1)
    other:use(function() spin.spin_copy:launch(support.one, ticks, at, slow, 1) end)
    for i = 1, 63 do
      at:set(i)
      other:use(function() mod.take:launch(support.one, at, x) end)
    end
    local values = x:read()
    for i = 1, 63 do
      assert.equal(i, values[i + 1])
    end
    assert.equal(0, slow:read()[1])
  end)

  it("twin: without fences a launch may see what was set behind it", function()
    support.wants_time(pending)
    local is_there, unfenced = pcall(support.open, { unfenced = true })
    if not is_there then
      pending(unfenced.message)
    end
    local copy = unfenced:compile(support.spin_source).spin_copy
    local ticks = support.ticks(0.05)
    local at, slow = unfenced:scalar("i32", 0), support.zeros(unfenced, "i32", 1)
    unfenced:synchronize()
    local other <close> = unfenced:stream {}
    other:use(function() copy:launch(support.one, ticks, at, slow, 1) end)
    at:set(7)
    unfenced:synchronize()
    assert.equal(7, slow:read()[1])
    unfenced:close()
  end)

  it("drives replays of a graph, 1,000 in a row without a wait", function()
    local x <close> = support.zeros(dev, "i32", 1001)
    local at <close> = dev:scalar("i32", 0)
    local graph <close> = dev:capture(function() mod.take:launch(support.one, at, x) end)
    for i = 1, 1000 do
      at:set(i)
      graph:launch()
    end
    local values = x:read()
    for i = 1, 1000 do
      assert.equal(i, values[i + 1])
    end
  end)

  it("cannot be made or set in a capture", function()
    local x <close> = support.zeros(dev, "i32", 10)
    local at <close> = dev:scalar("i32", 1)
    local graph <close> = dev:capture(function()
      support.raises("CaptureActive", { "set of a scalar" }, at.set, at, 5)
      support.raises("CaptureActive", { "read" }, at.get, at)
      support.raises("CaptureActive", { "scalar" }, dev.scalar, dev, "i32", 1)
      mod.take:launch(support.one, at, x)
    end)
    assert.equal(1, at:get())
    graph:launch():await()
  end)

  it("is not set by a task whose capture is over", function()
    local at <close> = dev:scalar("i32", 1)
    local capture = dev:capture {}
    local task = gpu.spawn(function()
      gpu.sleep(0.01)
      at:set(5)
    end)
    gpu.sleep(0)
    capture:close()
    support.is_error(select(2, task:join()), "CaptureInvalidated", {})
    assert.equal(1, at:get())
  end)

  it("refuses what it cannot be, and is unchanged", function()
    local at <close> = dev:scalar("i32", 1)
    for _, bad in ipairs { 1.5, 1 << 40, "text", {}, true } do
      support.raises("InvalidArgument", { "set" }, at.set, at, bad)
    end
    support.raises("InvalidArgument", { "set" }, at.set, at)
    support.raises("InvalidArgument", { "scalar" }, dev.scalar, dev, "i32")
    support.raises("InvalidArgument", { "i33" }, dev.scalar, dev, "i33", 1)
    support.raises("InvalidArgument", { "lable" }, dev.scalar, dev, "i32", 1, { lable = "x" })
    assert.equal(1, at:get())
  end)

  it("closed is refused by name, and lives on in graphs", function()
    local x <close> = support.zeros(dev, "i32", 10)
    local graph
    do
      local at <close> = dev:scalar("i32", 4)
      graph = dev:capture(function() mod.take:launch(support.one, at, x) end)
    end
    collectgarbage()
    graph:launch()
    assert.equal(4, x:read()[5])
    graph:close()
    local at = dev:scalar("i32", 4)
    at:close()
    at:close()
    support.raises("Closed", { "scalar" }, at.set, at, 1)
    support.raises("Closed", { "scalar" }, at.get, at)
    support.raises("Closed", {}, mod.take.launch, mod.take, support.one, at, x)
    assert.equal("closed scalar", gpu.type(at))
    assert.equal("gpulua.scalar (closed)", tostring(at))
  end)

  it("leaks nothing", function()
    support.without_leak(dev, function()
      for i = 1, 50 do
        dev:scalar("i32", i):set(i + 1)
      end
    end)
  end)
end)
