-- Element types: what goes in, what comes out, what is refused.

local support = require "spec.support"

describe("element types", function()
  local dev

  setup(function()
    dev = support.open()
  end)
  teardown(support.close_all)

  local integers = {
    { "i8", -128, 127, 1 }, { "u8", 0, 255, 1 },
    { "i16", -32768, 32767, 2 }, { "u16", 0, 65535, 2 },
    { "i32", -2147483648, 2147483647, 4 }, { "u32", 0, 4294967295, 4 },
    { "i64", math.mininteger, math.maxinteger, 8 },
  }

  for _, case in ipairs(integers) do
    local name, low, high, bytes = table.unpack(case)

    it(name .. " keeps its whole range and reads as integers", function()
      local b <close> = dev:upload(name, { low, high, 0, 1, low + 1, high - 1 })
      local got = b:read()
      assert.are.same({ low, high, 0, 1, low + 1, high - 1 }, got)
      for _, v in ipairs(got) do
        assert.equal("integer", math.type(v))
      end
      assert.equal(6 * bytes, #b:bytes())
    end)

    it(name .. " takes floats with integral values only", function()
      local b <close> = dev:upload(name, { 1.0, 2.0 })
      assert.are.same({ 1, 2 }, b:read())
      support.raises("InvalidData", "element 2", dev.upload, dev, name, { 1, 2.5 })
      support.raises("InvalidData", "element 1", dev.upload, dev, name, { 0 / 0 })
      support.raises("InvalidData", "element 1", dev.upload, dev, name, { math.huge })
    end)

    if name ~= "i64" then
      it(name .. " refuses numbers past its range, naming the index", function()
        support.raises("InvalidData", "element 3", dev.upload, dev, name, { 0, 0, high + 1 })
        support.raises("InvalidData", "element 2", dev.upload, dev, name, { 0, low - 1 })
        local b <close> = dev:buffer(name, 2)
        support.raises("InvalidArgument", "fill", b.fill, b, high + 1)
        support.raises("InvalidArgument", "fill", b.fill, b, 0.5)
      end)
    end
  end

  it("i64 refuses floats past its range", function()
    support.raises("InvalidData", "element 1", dev.upload, dev, "i64", { 2.0 ^ 63 })
    local b <close> = dev:upload("i64", { -2.0 ^ 63 })
    assert.are.same({ math.mininteger }, b:read())
  end)

  it("u64 wraps: the upper half reads as negative integers", function()
    local b <close> = dev:upload("u64", { 0, math.maxinteger, -1, math.mininteger })
    assert.are.same({ 0, math.maxinteger, -1, math.mininteger }, b:read())
    assert.equal(("\xFF"):rep(8), b:bytes(3, 3))
  end)

  it("u64 takes floats with integral values up to its end, not negative ones", function()
    local b <close> = dev:upload("u64", { 2.0 ^ 63, 2.0 ^ 64 - 2048, 5.0 })
    assert.are.same({ math.mininteger, -2048, 5 }, b:read())
    support.raises("InvalidData", "element 1", dev.upload, dev, "u64", { 2.0 ^ 64 })
    support.raises("InvalidData", "element 1", dev.upload, dev, "u64", { -1.0 })
    support.raises("InvalidData", "element 1", dev.upload, dev, "u64", { 0.5 })
  end)

  local function same_number(a, b)
    return a == b and 1 / a == 1 / b or (a ~= a and b ~= b)
  end

  for _, case in ipairs {
    { "f64", { 0.0, -0.0, 1.5, -2.25, 0.1, 1e308, 5e-324, math.huge, -math.huge, 0 / 0, math.pi } },
    { "f32", { 0.0, -0.0, 1.5, -2.25, 3.4028234663852886e38, 1.401298464324817e-45, math.huge, -math.huge, 0 / 0 } },
    { "f16", { 0.0, -0.0, 1.5, -2.25, 65504.0, 2.0 ^ -24, 2.0 ^ -14, math.huge, -math.huge, 0 / 0 } },
    { "bf16", { 0.0, -0.0, 1.5, -2.25, 3.3895313892515355e38, 2.0 ^ -133, math.huge, -math.huge, 0 / 0 } },
  } do
    local name, values = case[1], case[2]
    it(name .. " keeps every number that it can represent and reads as floats", function()
      local b <close> = dev:upload(name, values)
      for i, got in ipairs(b:read()) do
        assert.equal("float", math.type(got))
        assert.is_true(same_number(values[i], got), ("%s: %s became %s"):format(name, values[i], got))
      end
    end)
    it(name .. " takes integers", function()
      local b <close> = dev:upload(name, { 1, -2, 3 })
      assert.are.same({ 1.0, -2.0, 3.0 }, b:read())
    end)
  end

  it("rounds to the nearest number, ties to even, in one step", function()
    local f32 <close> = dev:upload("f32", { 0.1, 16777217.0, 16777219.0 })
    assert.are.same({ support.f32(0.1), 16777216.0, 16777220.0 }, f32:read())
    -- Halfway between two binary16 numbers, and beside it by less than a binary32 can tell.
    local tie = 1 + 2.0 ^ -11
    local f16 <close> = dev:upload("f16",
      { tie, tie + 2.0 ^ -50, tie - 2.0 ^ -50, 1 + 3 * 2.0 ^ -11, 65519.9 })
    assert.are.same({ 1.0, 1 + 2.0 ^ -10, 1.0, 1 + 2.0 ^ -9, 65504.0 }, f16:read())
    tie = 1 + 2.0 ^ -8
    local bf16 <close> = dev:upload("bf16", { tie, tie + 2.0 ^ -50, tie - 2.0 ^ -50, 1 + 3 * 2.0 ^ -8 })
    assert.are.same({ 1.0, 1 + 2.0 ^ -7, 1.0, 1 + 2.0 ^ -6 }, bf16:read())
  end)

  it("rounds integers that no double holds in one step, too", function()
    -- 2^n + half a step of the type + 1: the double in between is the tie, and would go to even, down.
    local bits = { f32 = 24, bf16 = 8, c64 = 24 }
    local kernel = dev:compile('extern "C" __global__ void set(float *y, float x) { y[0] = x; }').set
    for _, name in ipairs { "f32", "bf16", "c64" } do
      for n = 54, 62 do
        local step = 1 << (n - bits[name] + 1)
        local base, half = 1 << n, step // 2
        for _, case in ipairs {
          { base + half + 1, base + step }, { base + half - 1, base }, { base + half, base },
          { base + step + half, base + 2 * step }, { base + step + half - 1, base + step },
        } do
          for _, sign in ipairs { 1, -1 } do
            local value, expected = sign * case[1], sign * (case[2] + 0.0)
            local b <close> = dev:upload(name, { value, value })
            local got = b:read()[2]
            assert.equal(expected, name == "c64" and got[1] or got, name .. " of " .. value)
            if name == "f32" then
              kernel:launch(1, b, value)
              assert.equal(expected, b:read()[1], "an argument of " .. value)
            end
          end
        end
      end
    end
    for _, value in ipairs { math.mininteger, math.maxinteger, -1, 0, 1 } do
      local b <close> = dev:upload("f32", { value })
      assert.equal(value + 0.0, b:read()[1])
    end
  end)

  it("finite numbers that would become infinite are out of range", function()
    for name, v in pairs { f16 = 65520.0, bf16 = 3.4e38, f32 = 3.5e38 } do
      support.raises("InvalidData", "element 2", dev.upload, dev, name, { 1.0, v })
      support.raises("InvalidData", "element 1", dev.upload, dev, name, { -v })
    end
  end)

  for _, name in ipairs { "c64", "c128" } do
    it(name .. " takes and gives pairs", function()
      local b <close> = dev:upload(name, { { 1, -2 }, { 0.5, 0.25 } })
      assert.equal(2, #b)
      assert.are.same({ { 1.0, -2.0 }, { 0.5, 0.25 } }, b:read())
      b:fill { 3, 4 }
      assert.are.same({ { 3.0, 4.0 } }, b:read(2, 2))
      assert.equal(name == "c64" and 16 or 32, #b:bytes())
      support.raises("InvalidData", "element 2", dev.upload, dev, name, { { 1, 2 }, { 1 } })
      support.raises("InvalidData", "element 1", dev.upload, dev, name, { { 1, 2, 3 } })
      support.raises("InvalidData", "element 1", dev.upload, dev, name, { { 1, "x" } })
      support.raises("InvalidData", "element 2", dev.upload, dev, name, { { 1, 2 }, nil, { 3, 4 } })
      support.raises("InvalidData", "element 1", dev.upload, dev, name, { "x" })
      local real <close> = dev:upload(name, { 2.5 }) -- a number is one without an imaginary part
      assert.are.same({ { 2.5, 0.0 } }, real:read())
    end)
  end

  it("fills every type with its own element", function()
    for _, name in ipairs { "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64" } do
      local b <close> = dev:buffer(name, 33):fill(3)
      local got = b:read()
      assert.equal(33, #got)
      for i = 1, 33 do
        assert.equal(3, got[i])
      end
    end
  end)

  it("is a known name", function()
    for _, name in ipairs { "float", "f31", "", "F32", "f32 " } do
      support.raises("InvalidArgument", { "type" }, dev.buffer, dev, name, 4)
      support.raises("InvalidArgument", { "type" }, dev.upload, dev, name, { 1 })
      support.raises("InvalidArgument", { "type" }, dev.host, dev, name, 4)
    end
    support.raises("InvalidArgument", { "type" }, dev.buffer, dev, nil, 4)
    support.raises("InvalidArgument", { "type" }, dev.buffer, dev, 32, 4)
  end)

  describe("tables", function()
    it("with holes, text or nothing are refused, naming the index", function()
      support.raises("InvalidData", "element 2", dev.upload, dev, "f32", { 1, nil, 3 })
      support.raises("InvalidData", "element 3", dev.upload, dev, "f32", { 1, 2, "three" })
      support.raises("InvalidData", "element 1", dev.upload, dev, "f32", { {} })
      support.raises("InvalidData", "element 2", dev.upload, dev, "i32", { 1, true })
      support.raises("InvalidData", "no elements", dev.upload, dev, "f32", {})
      support.raises("InvalidData", "no elements", dev.upload, dev, "f32", "")
    end)

    it("of a wrong count are refused", function()
      local b <close> = dev:buffer("f32", 3):fill(0)
      support.raises("InvalidData", { "4", "3" }, b.write, b, { 1, 2, 3, 4 })
      support.raises("InvalidData", { "2", "3" }, b.write, b, { 1, 2 })
      assert.are.same({ 0, 0, 0 }, b:read())
    end)

    it("text of digits is not a number", function()
      support.raises("InvalidData", "element 1", dev.upload, dev, "f32", { "1" })
    end)
  end)

  it("strings must be whole elements", function()
    support.raises("InvalidData", {}, dev.upload, dev, "i32", "abcde")
    local b <close> = dev:buffer("i32", 2):fill(1)
    support.raises("InvalidData", {}, b.write, b, "abc")
    assert.are.same({ 1, 1 }, b:read())
  end)

  it("generators must give a number for every index, and their errors pass", function()
    support.raises("InvalidData", "element 3", dev.upload, dev, "f32", 5, function(i)
      return i < 3 and i or nil
    end)
    support.raises("InvalidData", "element 2", dev.upload, dev, "i32", 3, function(i)
      return i == 2 and 1.5 or i
    end)
    local ok, err = pcall(dev.upload, dev, "f32", 5, function(i)
      if i == 4 then
        error("mine", 0)
      end
      return i
    end)
    assert.is_false(ok)
    assert.truthy(tostring(err):find "mine")
  end)

  it("a buffer of another type is refused as data", function()
    local b <close> = dev:upload("i32", { 1, 2 })
    support.raises("InvalidArgument", {}, dev.upload, dev, "f32", b)
  end)

  it("converts a million floats both ways", function()
    local t = {}
    for i = 1, 1000000 do
      t[i] = i * 0.25
    end
    local b <close> = dev:upload("f32", t)
    local got = b:read()
    assert.equal(1000000, #got)
    for i = 1, 1000000, 997 do
      assert.equal(i * 0.25, got[i])
    end
    assert.equal(250000.0, got[1000000])
  end)

  it("refuses counts of 0, negative, fractional and astronomically many", function()
    support.without_leak(dev, function()
      for _, make in ipairs { dev.buffer, dev.host } do
        for _, n in ipairs { 0, -1, 1.5, math.mininteger, math.maxinteger, 2.0 ^ 80, 0 / 0 } do
          local ok, err = pcall(make, dev, "f64", n)
          assert.is_false(ok, tostring(n))
          assert.truthy(err.code == "InvalidArgument" or err.code == "OutOfBudget" or err.code == "OutOfMemory",
            tostring(err))
        end
        support.raises("InvalidArgument", {}, make, dev, "f32", "many")
        support.raises("InvalidArgument", {}, make, dev, "f32")
      end
      for _, n in ipairs { 0, -1, 1.5 } do
        support.raises("InvalidArgument", {}, dev.buffer, dev, "f32", n)
      end
      for _, shape in ipairs { {}, { 0 }, { 3, -1 }, { 2, 1.5 }, { 1 << 40, 1 << 40 }, { "a" }, { 2, nil, 3 } } do
        local ok, err = pcall(dev.buffer, dev, "f32", shape)
        -- A list with a hole may be seen as shorter than it looks; then it is what came before the hole.
        if ok then
          assert.are.same({ 2 }, err.shape)
          err:close()
        else
          assert.truthy(err.code == "InvalidArgument" or err.code == "OutOfBudget", tostring(err))
        end
      end
    end)
  end)
end)
