-- Host buffers: memory shared with the executor, used from the script like an array.

local gpu = require "gpulua"
local support = require "spec.support"

describe("host buffer", function()
  local dev

  setup(function()
    dev = support.open()
  end)
  teardown(support.close_all)

  it("has type, length and its own name", function()
    local h <close> = dev:host("f32", 16)
    assert.equal("f32", h.type)
    assert.equal(16, #h)
    assert.equal("host buffer", gpu.type(h))
    assert.truthy(tostring(h):find("f32[16]", 1, true), tostring(h))
  end)

  it("is an array: elements go in and out, 1-based", function()
    local h <close> = dev:host("i32", 4)
    for i = 1, 4 do
      h[i] = i * 10
    end
    assert.are.same({ 10, 20, 30, 40 }, { h[1], h[2], h[3], h[4] })
    h[2] = -5
    assert.equal(-5, h[2])
    assert.equal("integer", math.type(h[2]))
  end)

  it("refuses elements outside and values that do not fit", function()
    local h <close> = dev:host("u8", 4)
    h[1] = 7
    for _, i in ipairs { 0, 5, -1, math.maxinteger } do
      support.raises("OutOfBounds", {}, function() return h[i] end)
      support.raises("OutOfBounds", {}, function() h[i] = 1 end)
    end
    support.raises("InvalidData", {}, function() h[1] = 256 end)
    support.raises("InvalidData", {}, function() h[1] = 1.5 end)
    support.raises("InvalidData", {}, function() h[1] = "7" end)
    assert.equal(7, h[1])
  end)

  it("of every type keeps what its type can hold", function()
    for name, v in pairs { i8 = -128, u8 = 255, i16 = -32768, u16 = 65535, i32 = -1 << 31, u32 = (1 << 32) - 1,
      i64 = math.mininteger, u64 = -1, f16 = 0.5, bf16 = 1.5, f32 = 0.25, f64 = 0.1 } do
      local h <close> = dev:host(name, 3)
      h[2] = v
      assert.equal(v, h[2], name)
    end
    local c <close> = dev:host("c64", 2)
    c[1] = { 1.5, -2 }
    assert.are.same({ 1.5, -2.0 }, c[1])
  end)

  it("reads and writes in bulk with no device work", function()
    local h <close> = dev:host("f32", 6)
    local before = dev:stats()
    h:write { 1, 2, 3, 4, 5, 6 }
    h:write({ 9 }, 6)
    assert.are.same({ 1, 2, 3, 4, 5, 9 }, h:read())
    assert.are.same({ 2, 3 }, h:read(2, 3))
    assert.equal(string.pack("<ff", 1, 2), h:bytes(1, 2))
    h:write(string.pack("<f", 0.5), 1)
    assert.equal(0.5, h[1])
    local after = dev:stats()
    for _, field in ipairs { "uploads", "downloads", "copies", "fills", "launches", "records" } do
      assert.equal(before[field], after[field], field)
    end
  end)

  it("fills, prints itself, and has a shape", function()
    local h <close> = dev:host("i32", { 2, 3 }, { label = "pinned" })
    assert.are.same({ 2, 3 }, h.shape)
    assert.equal("pinned", h.label)
    assert.equal(("gpulua.host buffer i32[2,3] on %s (pinned)"):format(dev.name), tostring(h))
    assert.are.same({ 0, 0, 0, 0, 0, 0 }, h:read()) -- never what was there before
    assert.equal(h, h:fill(7))
    assert.are.same({ 7, 7, 7, 7, 7, 7 }, h:read())
    support.raises("InvalidArgument", "fill", h.fill, h, 0.5)
    support.raises("InvalidArgument", "index", function() return h[1.5] end)
    support.raises("InvalidArgument", "index", function() h.name = 1 end)
    h:free()
    support.raises("UseAfterFree", "pinned", function() return h[1] end)
  end)

  it("copies to and from buffers", function()
    local h <close> = dev:host("i32", 1000)
    local g <close> = dev:host("i32", 1000)
    local b <close> = dev:buffer("i32", 1000)
    for i = 1, 1000 do
      h[i] = i * i
    end
    b:copy(h)
    g:copy(b)
    assert.equal(1000000, g[1000]) -- reading waits for the copy
    for i = 1, 1000 do
      assert.equal(i * i, g[i])
    end
    assert.are.same(h:read(), b:read())
  end)

  it("an element read behind a copy sees the copy, one written behind it does not change it", function()
    local copy = dev:compile(support.spin_source).spin_copy
    local a <close> = dev:upload("i32", { 1, 2 })
    local b <close> = dev:buffer("i32", 2):fill(0)
    local h <close> = dev:host("i32", 2)
    h[1] = 100
    copy:launch(support.one, support.ticks(0.1), a, b, 2)
    h:copy(b)
    assert.equal(1, h[1])
    h[1] = 55
    b:copy(h)
    h[1] = 66
    assert.are.same({ 55, 2 }, b:read())
  end)

  it("an element cannot be read in a capture, which does nothing yet", function()
    local b <close> = dev:buffer("i32", 2):fill(1)
    local h <close> = dev:host("i32", 2)
    h[1] = 3
    dev:synchronize()
    local graph <close> = dev:capture(function()
      h:copy(b)
      for _, f in ipairs { function() return h[1] end, function() h[1] = 4 end, function() return h:read() end } do
        support.raises("CaptureActive", "cannot be captured", f)
      end
    end)
    assert.equal(3, h[1])
    graph:launch()
    assert.equal(1, h[1])
  end)

  it("copies from another host buffer, behind what the device does with both", function()
    local copy = dev:compile(support.spin_source).spin_copy
    local a <close> = dev:upload("i32", { 1, 2 })
    local b <close> = dev:buffer("i32", 2):fill(0)
    local old <close> = dev:buffer("i32", 2):fill(0)
    local h <close> = dev:host("i32", 2):fill(7)
    local g <close> = dev:host("i32", 2):fill(8)
    copy:launch(support.one, support.ticks(0.1), a, b, 2)
    h:copy(b)
    old:copy(g)
    assert.equal(g, g:copy(h)) -- h is being written, g was to be read
    assert.are.same({ 1, 2 }, g:read())
    assert.are.same({ 8, 8 }, old:read())
    local half <close> = dev:host("i32", 1):fill(5)
    g:write(half, 2)
    assert.are.same({ 1, 5 }, g:read())
    support.raises("InvalidArgument", "overlapping", g.copy, g, g)
    support.raises("OutOfBounds", "argument 1 of copy", g.copy, g, half)
    support.raises("CaptureActive", "host buffer", dev.capture, dev, function()
      b:fill(1)
      g:copy(h)
    end)
  end)

  it("awaits and tells whether it is in use", function()
    local copy = dev:compile(support.spin_source).spin_copy
    local a <close> = dev:upload("i32", { 1, 2 })
    local b <close> = dev:buffer("i32", 2):fill(0)
    local h <close> = dev:host("i32", 2)
    assert.is_true(h:done())
    support.under_way(0.1, function(seconds, seen)
      copy:launch(support.one, support.ticks(seconds), a, b, 2)
      h:copy(b)
      local is_over = h:done()
      seen()
      assert.is_false(is_over)
      h:await()
      assert.is_true(h:done())
    end)
    assert.are.same({ 1, 2 }, h:read())
  end)

  it("closes, and its memory is used again", function()
    support.without_leak(dev, function()
      local h = dev:host("u8", 1 << 20)
      h:close()
      h:close()
      assert.equal("closed host buffer", gpu.type(h))
      support.raises("Closed", "attempt to use a closed", function() return h[1] end)
      support.raises("Closed", "attempt to use a closed", h.read, h)
      for _ = 1, 200 do
        dev:host("u8", 1 << 20)[1] = 1
      end
    end)
  end)

  it("closed behind a copy in flight leaves the copy right", function()
    local copy = dev:compile(support.spin_source).spin_copy
    local a <close> = dev:upload("i32", { 1, 2 })
    local b <close> = dev:buffer("i32", 2):fill(0)
    local h = dev:host("i32", 2)
    h[1], h[2] = 8, 9
    copy:launch(support.one, support.ticks(0.05), a, b, 2)
    b:copy(h) -- behind the kernel
    h:close()
    local other <close> = dev:host("i32", 2)
    other[1], other[2] = 0, 0
    assert.are.same({ 8, 9 }, b:read())
  end)

  it("keeps a million elements", function()
    local n = 1000000
    local h <close> = dev:host("f32", n)
    local t = {}
    for i = 1, n do
      t[i] = i * 0.5
    end
    h:write(t)
    local b <close> = dev:upload("f32", h)
    local g <close> = dev:host("f32", n)
    g:copy(b)
    g:await()
    for i = 1, n, 331 do
      assert.equal(i * 0.5, g[i])
    end
  end)

  it("is not written beside work that whoever gives the elements has begun, which is waited for as ever", function()
    support.wants_time(pending)
    local mod = dev:compile(support.spin_source .. [[
      #include <gpulua_kernel.h>
      extern "C" __global__ void fail(int *x, gpulua_ctx ctx) { gpulua_check(ctx, x[0] == 1, "no"); }
    ]])
    local n <const> = 1024
    local x, failed = dev:buffer("i32", n):fill(0), dev:buffer("i32", 1):fill(0)
    support.raises("KernelFailed", {}, function() mod.fail:launch(support.one, failed):await() end) -- and is remembered
    local host = dev:host("i32", n):fill(0)
    mod.spin_fill:launch(support.one, support.ticks(0.3), x, n, -1)
    support.raises("InvalidArgument", "begun work with the buffer itself", host.write, host, function(i)
      if i == 1 then
        host:copy(x)
      end
      return i
    end)
    host:close()
    local others = {}
    for i = 1, 8 do
      others[i] = dev:host("i32", n):fill(i) -- none of them is where the copy ends
    end
    dev:synchronize()
    for i, other in ipairs(others) do
      assert.are.same({ i, i }, { other[1], other[n] })
      other:close()
    end
  end)

  it("is good again once the script has written what failed to be written there", function()
    if dev.kind ~= "cpu" then
      pending "a failed assertion ends a GPU"
    end
    local mod = dev:compile [[extern "C" __global__ void bad(int *x) { x[0] = 1; assert(x[0] == 3); }]]
    local x, host = dev:buffer("i32", 4):fill(0), dev:host("i32", 4):fill(7)
    mod.bad:launch(support.one, x):join()
    host:copy(x)
    support.raises("DependencyFailed", {}, host.read, host)
    host:write({ 1, 2 }, 1)
    support.raises("DependencyFailed", {}, host.read, host)
    host:write({ 3, 4 }, 3)
    assert.are.same({ 1, 2, 3, 4 }, host:read())
    assert.are.same({ 5, 5, 5, 5 }, host:fill(5):read())
  end)
end)
