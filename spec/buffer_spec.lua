-- Buffers: making, filling, moving, views, bounds, life and death.

local gpu = require "gpulua"
local support = require "spec.support"

describe("buffer", function()
  local dev

  setup(function()
    dev = support.open()
  end)
  teardown(support.close_all)

  it("has type, shape, length and label", function()
    local b <close> = dev:buffer("f32", 1024, { label = "weights" })
    assert.equal("f32", b.type)
    assert.are.same({ 1024 }, b.shape)
    assert.equal(1024, #b)
    assert.equal("weights", b.label)
    local m <close> = dev:buffer("i16", { 3, 4, 5 })
    assert.are.same({ 3, 4, 5 }, m.shape)
    assert.equal(60, #m)
  end)

  it("takes options that metamethods make, and drop at once", function()
    local options = setmetatable({}, { __index = function(_, key)
      if key == "label" then
        return ("x"):rep(40) .. "-label"
      elseif key == "memory" then -- asked for behind the label
        collectgarbage()
        for i = 1, 100 do
          assert(#(("y"):rep(40) .. "-" .. i) > 40)
        end
        return dev:memory {}
      end
    end })
    for _ = 1, 5 do
      local b <close> = dev:buffer("u8", 8, options)
      assert.equal(("x"):rep(40) .. "-label", b.label)
    end
  end)

  it("prints itself with type, length, device and label", function()
    local b <close> = dev:buffer("f32", 1024, { label = "weights" })
    assert.equal(("gpulua.buffer f32[1024] on %s (weights)"):format(dev.name), tostring(b))
    local plain <close> = dev:buffer("u8", 7)
    assert.truthy(tostring(plain):find("gpulua.buffer u8[7] on " .. dev.name, 1, true))
    assert.equal("gpulua.buffer", debug.getmetatable(plain).__name)
    assert.equal("gpulua.buffer", getmetatable(plain)) -- and no script gets at the finaliser
  end)

  it("fills, and chains", function()
    local b <close> = dev:buffer("i32", 5)
    assert.equal(b, b:fill(7))
    assert.are.same({ 7, 7, 7, 7, 7 }, b:read())
    assert.are.same({ -1, -1, -1, -1, -1 }, b:fill(7):fill(-1):read())
  end)

  it("uploads tables, strings, generators and buffers", function()
    local t <close> = dev:upload("i32", { 3, 1, 2 })
    assert.are.same({ 3, 1, 2 }, t:read())
    local s <close> = dev:upload("i32", string.pack("<i4i4", -5, 6))
    assert.are.same({ -5, 6 }, s:read())
    local f <close> = dev:upload("f64", 4, function(i) return i * 0.5 end)
    assert.are.same({ 0.5, 1.0, 1.5, 2.0 }, f:read())
    local h <close> = dev:host("i32", 2)
    h[1], h[2] = 10, 20
    local m <close> = dev:upload("f32", { 2, 3 }, { 1, 2, 3, 4, 5, 6 })
    assert.are.same({ { 2, 3 }, { 1, 2, 3, 4, 5, 6 } }, { m.shape, m:read() })
    local k <close> = dev:upload("u8", { 2, 2 }, "abcd", { label = "letters" })
    assert.are.same({ { 2, 2 }, { 97, 98, 99, 100 }, "letters" }, { k.shape, k:read(), k.label })
    local w <close> = dev:upload("f32", { 3, 2 }, m)
    assert.are.same({ { 3, 2 }, m:read() }, { w.shape, w:read() })
    support.raises("InvalidArgument", "argument 3 of upload: a table of 5 elements, where the shape has 6", dev.upload,
      dev, "f32", { 2, 3 }, { 1, 2, 3, 4, 5 })
    support.raises("InvalidArgument", "argument 3 of upload: a string of 6 bytes, where the shape has 8", dev.upload,
      dev, "i16", 4, "abcdef")
    support.raises("InvalidArgument", "argument 3 of upload: a buffer of 6 elements, where the shape has 4", dev.upload,
      dev, "f32", { 2, 2 }, m)
    local u <close> = dev:upload("i32", h)
    assert.are.same({ 10, 20 }, u:read())
    local v <close> = dev:upload("i32", t)
    assert.are.same({ 3, 1, 2 }, v:read())
  end)

  it("copies strings and tables at the call", function()
    local t = { 1, 2, 3 }
    local b <close> = dev:upload("i32", t)
    b:write(t)
    t[1] = 99
    assert.are.same({ 1, 2, 3 }, b:read())
  end)

  it("writes from an index on and reads ranges, 1-based and inclusive", function()
    local b <close> = dev:buffer("i32", 6):fill(0)
    assert.equal(b, b:write({ 8, 9 }, 3))
    assert.are.same({ 0, 0, 8, 9, 0, 0 }, b:read())
    assert.are.same({ 8, 9 }, b:read(3, 4))
    assert.are.same({ 9 }, b:read(4, 4))
    assert.are.same({ 9, 0, 0 }, b:read(4))
    b:write(string.pack("<i4", 5), 6)
    assert.are.same({ 0, 5 }, b:read(5, 6))
  end)

  it("gives bytes", function()
    local b <close> = dev:upload("u16", { 0x0102, 0x0304, 0x0506 })
    assert.equal("\x02\x01\x04\x03\x06\x05", b:bytes())
    assert.equal("\x04\x03", b:bytes(2, 2))
  end)

  it("copies between buffers", function()
    local a <close> = dev:upload("f32", { 1, 2, 3 })
    local b <close> = dev:buffer("f32", 3):fill(0)
    assert.equal(b, b:copy(a))
    assert.are.same({ 1, 2, 3 }, b:read())
    support.raises("OutOfBounds", {}, b.copy, b, dev:buffer("f32", 4))
    support.raises("InvalidArgument", {}, b.copy, b, dev:buffer("i32", 3))
    support.raises("InvalidArgument", {}, b.copy, b, "abc")
  end)

  it("slices share memory", function()
    local b <close> = dev:buffer("i32", 10):fill(0)
    local s <close> = b:slice(4, 6)
    assert.equal(3, #s)
    s:fill(5)
    assert.are.same({ 0, 0, 0, 5, 5, 5, 0, 0, 0, 0 }, b:read())
    local t <close> = s:slice(2, 3)
    t:write { 8, 9 }
    assert.are.same({ 5, 8, 9 }, b:read(4, 6))
    b:fill(1)
    assert.are.same({ 1, 1 }, t:read())
  end)

  it("slices of one buffer copy into each other, unless they overlap", function()
    local b <close> = dev:upload("i32", { 1, 2, 3, 4, 5, 6 })
    b:slice(4, 6):copy(b:slice(1, 3))
    assert.are.same({ 1, 2, 3, 1, 2, 3 }, b:read())
    local left, right = b:slice(1, 4), b:slice(3, 6)
    support.raises("InvalidArgument", {}, left.copy, left, right)
    assert.are.same({ 1, 2, 3, 1, 2, 3 }, b:read())
  end)

  it("views reinterpret the whole", function()
    local b <close> = dev:upload("f32", { 1.0, -2.0 })
    local bits <close> = b:view("u32")
    assert.are.same({ 0x3F800000, 0xC0000000 }, bits:read())
    local bytes <close> = b:view("u8", { 2, 4 })
    assert.are.same({ 2, 4 }, bytes.shape)
    assert.equal(8, #bytes)
    bits:write({ 0x40000000 }, 1)
    assert.are.same({ 2.0, -2.0 }, b:read())
    support.raises("OutOfBounds", {}, b.view, b, "f32", { 3 })
    support.raises("OutOfBounds", {}, b.view, b, "c128")
  end)

  it("stays alive through a slice when the parent closes", function()
    local b = dev:upload("i32", { 1, 2, 3 })
    local s <close> = b:slice(2, 3)
    b:close()
    collectgarbage()
    assert.are.same({ 2, 3 }, s:read())
  end)

  describe("bounds", function()
    it("raise OutOfBounds, never clip", function()
      local b <close> = dev:upload("i32", { 1, 2, 3, 4 })
      for _, range in ipairs { { 0, 2 }, { 1, 5 }, { 5, 5 }, { -1, 2 }, { 3, 2 }, { 6, 7 },
        { math.mininteger, 1 }, { 1, math.maxinteger } } do
        support.raises("OutOfBounds", {}, b.read, b, range[1], range[2])
        support.raises("OutOfBounds", {}, b.bytes, b, range[1], range[2])
        support.raises("OutOfBounds", {}, b.slice, b, range[1], range[2])
      end
      support.raises("OutOfBounds", {}, b.write, b, { 1, 2 }, 4)
      support.raises("OutOfBounds", {}, b.write, b, { 1 }, 5)
      support.raises("OutOfBounds", {}, b.write, b, { 1 }, 0)
      assert.are.same({ 1, 2, 3, 4 }, b:read())
    end)

    it("are named in the error", function()
      local b <close> = dev:buffer("i32", 4)
      local err = support.raises("OutOfBounds", { "5", "4" }, b.read, b, 1, 5)
      assert.truthy(#err.hint > 0)
    end)
  end)

  it("awaits and tells whether all that touches it is over", function()
    local spin = dev:compile(support.spin_source).spin
    local x <close> = dev:buffer("i32", 1):fill(0)
    x:await()
    assert.is_true(x:done())
    support.under_way(0.2, function(seconds, seen)
      spin:launch(support.one, support.ticks(seconds), x, 5)
      local is_over = x:done()
      seen()
      assert.is_false(is_over)
      x:await()
      assert.is_true(x:done())
    end)
    assert.are.same({ 5 }, x:read())
  end)

  describe("life", function()
    it("ends with close, which may be repeated", function()
      support.without_leak(dev, function()
        local b = dev:buffer("f32", 100)
        assert.equal("buffer", gpu.type(b))
        b:close()
        b:close()
        assert.equal("closed buffer", gpu.type(b))
        local err = support.raises("Closed", "attempt to use a closed buffer", b.read, b)
        assert.truthy(#err.hint > 0)
        support.raises("Closed", "closed buffer", b.fill, b, 1)
        support.raises("Closed", "closed buffer", function() return #b end)
        assert.truthy(tostring(b):find "closed")
      end)
    end)

    it("ends with <close>", function()
      support.without_leak(dev, function()
        local kept
        do
          local b <close> = dev:buffer("f32", 100)
          kept = b
        end
        assert.equal("closed buffer", gpu.type(kept))
      end)
    end)

    it("ends when collected", function()
      support.without_leak(dev, function()
        for _ = 1, 100 do
          dev:buffer("f32", 1000):fill(1)
        end
      end)
    end)

    it("ends for every ref with free", function()
      local b = dev:upload("i32", { 1, 2, 3 })
      local s, v = b:slice(2, 3), b:view("u32")
      b:free()
      for _, ref in ipairs { b, s, v } do
        support.raises("UseAfterFree", {}, ref.read, ref)
        support.raises("UseAfterFree", {}, ref.fill, ref, 0)
        support.raises("UseAfterFree", {}, ref.free, ref)
        ref:close()
        support.raises("Closed", {}, ref.read, ref)
      end
    end)

    it("frees behind work in flight", function()
      local copy = dev:compile(support.spin_source).spin_copy
      local x = dev:upload("i32", { 4, 5, 6 })
      local y <close> = dev:buffer("i32", 3):fill(0)
      copy:launch(support.one, support.ticks(0.1), x, y, 3)
      x:free()
      support.raises("UseAfterFree", {}, x.read, x)
      assert.are.same({ 4, 5, 6 }, y:read())
    end)
  end)

  it("gpu.type tells our handles from everything else", function()
    assert.equal("device", gpu.type(dev))
    for _, v in ipairs { 1, "x", {}, io.stdout, print } do
      assert.is_nil(gpu.type(v))
    end
    assert.is_nil(gpu.type(nil))
  end)

  it("refuses an upload of a table whose __len is more than any memory has", function()
    for _, len in ipairs { (1 << 61) + 1, 1 << 60, math.maxinteger } do
      local asked = 0
      local data = setmetatable({ 1 }, { __len = function()
        asked = asked + 1
        return asked == 1 and len or 1
      end })
      support.raises("InvalidArgument", { "more elements than any memory has" }, dev.upload, dev, "f64", data)
    end
  end)

  it("takes what has a length, or what options follow, for data behind a shape", function()
    local plain <close> = dev:upload("f32", { 2, 2 }, {})
    assert.are.same({ 2 }, plain.shape)
    support.raises("InvalidArgument", { "a table of 0 elements" }, dev.upload, dev, "f32", { 2, 2 }, {},
      { label = "x" })
    support.raises("InvalidArgument", { "a table of 0 elements" }, dev.upload, dev, "f32", { 2, 2 },
      { label = "x" }, {})
    local data = setmetatable({}, { __len = function() return 4 end, __index = function(_, i) return i * 2 end })
    local b <close> = dev:upload("f32", { 2, 2 }, data)
    assert.are.same({ 2, 4, 6, 8 }, b:read())
    local c <close> = dev:upload("f32", { 2, 2 }, setmetatable({}, { __index = { label = "x" } }))
    assert.are.same({ 2, 2 }, c:read())
    assert.equal("x", c.label)
  end)

  it("moves more than fits in one piece of staging", function()
    local n = 5 * 1024 * 1024 + 3 -- 20 MiB and a bit; staging moves 16 MiB at once
    local chunk = {}
    for i = 1, 4096 do
      chunk[i] = string.pack("<i4", i * 2654435761 & 0x7FFFFFFF)
    end
    local unit = table.concat(chunk)
    local text = unit:rep(n * 4 // #unit) .. unit:sub(1, n * 4 % #unit)
    local b <close> = dev:upload("i32", text)
    assert.equal(n, #b)
    assert.is_true(b:bytes() == text)
    local c <close> = dev:buffer("i32", n):copy(b)
    assert.is_true(c:bytes() == text)
    assert.is_true(c:bytes(n - 4, n) == text:sub(-20))
  end)

  it("an unwritten part keeps its contents when a part is written", function()
    local b <close> = dev:buffer("u8", 1000):fill(1)
    for i = 1, 1000, 7 do
      b:write({ i % 256 }, i)
    end
    local got = b:read()
    for i = 1, 1000 do
      assert.equal((i - 1) % 7 == 0 and i % 256 or 1, got[i])
    end
  end)
end)
