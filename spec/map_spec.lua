-- Element-wise work from expressions: gpu.map.

local gpu = require "gpulua"
local support = require "spec.support"

describe("map", function()
  local dev

  setup(function() dev = support.open() end)
  teardown(support.close_all)

  -- What the expression gives for lists of values: { type, ... } each; the type of the result, its values.
  local function map(expression, inputs, out)
    local arguments = {}
    for name, input in pairs(inputs) do
      arguments[name] = type(input) == "table" and dev:upload(input[1], table.move(input, 2, #input, 1, {})) or input
    end
    arguments.out = out and dev:buffer(out, 3):fill(0)
    local made = gpu.map(expression, arguments)
    made = arguments.out or made
    return made.type, made:read()
  end

  local function gives(expression, inputs, wanted_type, wanted, out)
    local got_type, got = map(expression, inputs, out)
    assert.equal(wanted_type, got_type, expression)
    assert.are.same(wanted, got, expression)
  end

  it("does what the expression says for each element", function()
    local x, y = dev:upload("f32", { 1, 2, 3 }), dev:upload("f32", { 10, 20, 30 })
    local z = dev:buffer("f32", 3)
    local op = gpu.map("a * x + y", { a = 2, x = x, y = y, out = z })
    assert.equal("op", gpu.type(op))
    assert.equal("map", op.label)
    op:await()
    assert.are.same({ 12, 24, 36 }, z:read())
    local made, done = gpu.map("x - y", { x = x, y = y })
    assert.are.same({ "f32", 3, "op" }, { made.type, #made, gpu.type(done) })
    assert.are.same({ -9, -18, -27 }, made:read())
    gpu.map("x * x", { x = x, out = x }) -- in its place
    assert.are.same({ 1, 4, 9 }, x:read())
  end)

  it("puts the result into a scalar", function()
    local count, sum, y = dev:scalar("i32", 3), dev:scalar("f64", 0), dev:upload("f64", { 2.5 })
    for i = 1, 3 do -- from the second call on it takes the short way
      assert.equal("op", gpu.type(gpu.map("count - 1", { count = count, out = count })))
      gpu.map("sum + y * count", { sum = sum, y = y, count = count, out = sum })
      assert.equal(3 - i, count:get())
    end
    assert.equal(2.5 * 3, sum:get())
    gpu.map("i32(sum > 7)", { sum = sum, out = count })
    assert.equal(1, count:get())
    gpu.map("a * b", { a = 6, b = 7, out = count })
    assert.equal(42, count:get())
    local one = dev:buffer("i32", 1)
    for _, out in ipairs { count, one, count, one } do -- the same text and types
      gpu.map("c + 1", { c = count, out = out })
    end
    assert.are.same({ 44, 45 }, { count:get(), one:read()[1] })
    local graph <close> = dev:capture(function() gpu.map("count - 1", { count = count, out = count }) end)
    graph:launch()
    assert.equal(43, count:get())
    local x = dev:upload("f64", { 1, 2, 3 })
    support.raises("InvalidArgument", { "'x' has the shape 3, 'out' 1" }, gpu.map, "x", { x = x, out = sum })
    support.raises("InvalidArgument", { "the result, f64, does not fit out, which is i32" }, gpu.map, "sum",
      { sum = sum, out = count })
    sum:close()
    support.raises("Closed", { "map: out: attempt to use a closed scalar" }, gpu.map, "y", { y = y, out = sum })
  end)

  it("has Lua's operators and priorities", function()
    local x = { "i32", 7, -7, 12 }
    gives("-x ^ 2 + 1", { x = x }, "f64", { -48.0, -48.0, -143.0 })
    gives("2 ^ 3 ^ 2 + 0 * x", { x = x }, "f64", { 512.0, 512.0, 512.0 })
    gives("x - 1 - 1", { x = x }, "i32", { 5, -9, 10 })
    gives("1 + x * 2 // 4 % 3", { x = x }, "i32", { 1 + 7 * 2 // 4 % 3, 1 + -7 * 2 // 4 % 3, 1 + 12 * 2 // 4 % 3 })
    gives("x // 2", { x = x }, "i32", { 3, -4, 6 })
    gives("x % 5", { x = x }, "i32", { 2, 3, 2 })
    gives("x % -5", { x = x }, "i32", { -3, -2, -3 })
    gives("x / 2", { x = x }, "f64", { 3.5, -3.5, 6.0 })
    gives("x & 5 | 8 ~ 3 << 1", { x = x }, "i32", { 7 & 5 | 8 ~ 3 << 1, -7 & 5 | 8 ~ 3 << 1, 12 & 5 | 8 ~ 3 << 1 })
    gives("~x", { x = x }, "i32", { -8, 6, -13 })
    gives("where(not (x > 0) or x == 7 and true, x, -(x))", { x = x }, "i32", { 7, -7, -12 })
    gives("x >= 7 ", { x = x }, "u8", { 1, 0, 1 })
    gives("(x ~= 7) == (x < 0)", { x = x }, "u8", { 1, 1, 0 })
    gives("x*0x10+1e1", { x = x }, "f64", { 122.0, -102.0, 202.0 })
    gives("x + .5", { x = x }, "f64", { 7.5, -6.5, 12.5 })
  end)

  it("computes integers and f64 as Lua does, in random expressions", function()
    local random = support.random(7)
    local function pick(list) return list[random(1, #list)] end
    local names = { i64 = { "x", "y", "k" }, f64 = { "u", "v", "r" } }
    local function term(t, depth)
      if depth == 0 then
        return random(1, 4) == 1 and (t == "i64" and tostring(random(1, 9)) or random(1, 9) .. ".5") or pick(names[t])
      elseif t == "i64" then
        local op = pick { "+", "-", "*", "//", "%", "&", "|", "~", "<<", ">>", "neg", "not" }
        if op == "//" or op == "%" then
          return ("(%s %s (%s | 1))"):format(term(t, depth - 1), op, term(t, depth - 1))
        elseif op == "neg" or op == "not" then
          return ("%s%s"):format(op == "neg" and "- " or "~", term(t, depth - 1))
        end
        return ("(%s %s %s)"):format(term(t, depth - 1), op, op:find "[<>]" and tostring(random(-70, 70))
          or term(t, depth - 1))
      end
      local op = pick { "+", "-", "*", "/", "//", "%", "^", "mixed" }
      if op == "mixed" then
        return ("(%s + (%s & 255))"):format(term(t, depth - 1), term("i64", depth - 1))
      end
      return ("(%s %s %s)"):format(term(t, depth - 1), op, op == "^" and "2" or term(t, depth - 1))
    end
    local values = { x = {}, y = {}, u = {}, v = {} }
    for i = 1, 64 do
      values.x[i], values.y[i] = random(-1000, 1000), random(0, 0) and random(-5, 5) << random(0, 60)
      values.u[i], values.v[i] = random(-1000, 1000) / 8, random(1, 100) / 4
    end
    local k, r = 3, 0.75
    local buffers = { x = dev:upload("i64", values.x), y = dev:upload("i64", values.y), u = dev:upload("f64", values.u),
      v = dev:upload("f64", values.v) }
    for seed = 1, 16 do
      local t = seed % 2 == 0 and "i64" or "f64"
      local text = term(t, 3)
      local given = { out = dev:buffer(t, 64) }
      for name, b in pairs(buffers) do
        given[name] = text:find("%f[%w]" .. name .. "%f[%W]") and b or nil
      end
      given.k, given.r = text:find "%f[%w]k%f[%W]" and k or nil, text:find "%f[%w]r%f[%W]" and r or nil
      gpu.map(text, given)
      local f = assert(load("local x, y, u, v, k, r = ... return " .. text))
      for i, got in ipairs(given.out:read()) do
        local wanted = f(values.x[i], values.y[i], values.u[i], values.v[i], k, r)
        if t == "i64" and math.type(wanted) == "integer" then
          assert.equal(wanted, got, text)
        else -- products and sums may be fused
          wanted = wanted + 0.0
          local is_near = wanted == got or wanted ~= wanted and got ~= got
            or math.abs(wanted - got) <= 1e-9 * math.max(1, math.abs(wanted), math.abs(got)) or text:find "[/%%]"
          assert.truthy(is_near, ("%s: %s, not %s"):format(text, got, wanted))
        end
      end
    end
  end)

  it("has one type for each pair of types", function()
    local function both(t, u, wanted)
      local got_type, got = map("x + y", { x = { t, 1, 2, 3 }, y = { u, 4, 5, 6 } })
      assert.equal(wanted, got_type, t .. " and " .. u)
      assert.are.same({ 5, 7, 9 }, got)
    end
    both("i16", "i8", "i16")
    both("i8", "u16", "i32")
    both("f64", "f16", "f64")
    both("i8", "i8", "i8")
    both("i8", "i32", "i32")
    both("u8", "u16", "u16")
    both("u8", "i8", "i16")
    both("u8", "i32", "i32")
    both("u32", "i32", "i64")
    both("u64", "u8", "u64")
    both("f16", "bf16", "f32")
    both("f16", "f16", "f16")
    both("f16", "f32", "f32")
    both("f32", "f64", "f64")
    both("f32", "i64", "f32")
    both("bf16", "u8", "bf16")
    support.raises("InvalidArgument", { "no integer holds i8 and u64", "at 5" }, map, "x + y",
      { x = { "i8", 1, 2, 3 }, y = { "u64", 1, 2, 3 } })
  end)

  it("gives numbers the type of what they meet", function()
    gives("x + 1", { x = { "u8", 1, 2, 255 } }, "u8", { 2, 3, 0 })
    gives("x * a", { x = { "i16", 1, 2, 3 }, a = -300 }, "i16", { -300, -600, -900 })
    gives("x * a", { x = { "f32", 1, 2, 3 }, a = 2 }, "f32", { 2.0, 4.0, 6.0 })
    gives("x * 0.5", { x = { "i16", 1, 2, 3 } }, "f32", { 0.5, 1.0, 1.5 })
    gives("x * 0.5", { x = { "i32", 1, 2, 3 } }, "f64", { 0.5, 1.0, 1.5 })
    gives("x * 2 ^ 0.5 * 2 ^ 0.5", { x = { "f16", 1, 2, 3 } }, "f16", { 2.0, 4.0, 6.0 })
    gives("sqrt(x)", { x = { "u8", 4, 9, 16 } }, "f32", { 2.0, 3.0, 4.0 })
    gives("sqrt(x)", { x = { "i64", 4, 9, 16 } }, "f64", { 2.0, 3.0, 4.0 })
    gives("floor(x)", { x = { "i32", 4, 9, 16 } }, "i32", { 4, 9, 16 })
    gives("0 * x + a // 2", { x = { "i32", 1, 2, 3 }, a = 7 }, "i32", { 3, 3, 3 })
    support.raises("InvalidArgument", { "300 does not fit u8", "at 5" }, map, "x + 300", { x = { "u8", 1, 2, 3 } })
    support.raises("InvalidArgument", { "-1 does not fit u32" }, map, "x + -1", { x = { "u32", 1, 2, 3 } })
    support.raises("InvalidArgument", { "'a': 256 does not fit u8" }, map, "x + a", { x = { "u8", 1, 2, 3 }, a = 256 })
    gives("x + a", { x = { "u8", 1, 2, 3 }, a = 255 }, "u8", { 0, 1, 2 }) -- the same kernel
  end)

  it("converts as it says", function()
    local x = { "f32", -1e30, 2.9, 1e30 }
    gives("i32(x)", { x = x }, "i32", { -2147483648, 2, 2147483647 })
    gives("u8(x)", { x = x }, "u8", { 0, 2, 255 })
    gives("i64(x)", { x = x }, "i64", { math.mininteger, 2, math.maxinteger })
    gives("u32(x / 0)", { x = { "f32", 0, 1, -1 } }, "u32", { 0, 4294967295, 0 })
    gives("i8(x)", { x = { "i32", 300, -129, 5 } }, "i8", { 44, 127, 5 })
    gives("f64(x) / 3 * 3", { x = { "f32", 1, 2, 3 } }, "f64", { 1.0, 2.0, 3.0 })
    gives("u8(x > 1) * 10", { x = { "f32", 1, 2, 3 } }, "u8", { 0, 10, 10 })
    gives("x", { x = { "i16", 1, 2, 3 } }, "f32", { 1.0, 2.0, 3.0 }, "f32")
    gives("x", { x = { "f64", 1, 2, 3 } }, "f16", { 1.0, 2.0, 3.0 }, "f16")
    gives("x", { x = { "u8", 1, 2, 255 } }, "i32", { 1, 2, 255 }, "i32")
    gives("x < 2", { x = { "u8", 1, 2, 3 } }, "u8", { 1, 0, 0 }, "u8")
    for out, t in pairs { i32 = "f32", u8 = "i8", i16 = "i32", u32 = "i64" } do
      support.raises("InvalidArgument", { "does not fit out", t, out .. "(...) converts" }, map, "x",
        { x = { t, 1, 2, 3 } }, out)
    end
    support.raises("InvalidArgument", { "a condition does not fit out" }, map, "x > 1", { x = { "f32", 1, 2, 3 } },
      "f32")
  end)

  it("has functions", function()
    local references = { sqrt = math.sqrt, exp = math.exp, log = math.log, sin = math.sin, cos = math.cos,
      tan = math.tan, asin = math.asin, acos = math.acos, atan = math.atan, floor = math.floor, ceil = math.ceil,
      abs = math.abs, rsqrt = function(v) return 1 / math.sqrt(v) end, exp2 = function(v) return 2 ^ v end,
      exp10 = function(v) return 10 ^ v end, log2 = function(v) return math.log(v, 2) end,
      log10 = function(v) return math.log(v, 10) end, cbrt = function(v) return v ^ (1 / 3) end,
      expm1 = function(v) return math.exp(v) - 1 end, log1p = function(v) return math.log(1 + v) end,
      sinh = function(v) return (math.exp(v) - math.exp(-v)) / 2 end,
      cosh = function(v) return (math.exp(v) + math.exp(-v)) / 2 end,
      tanh = function(v) return 1 - 2 / (math.exp(2 * v) + 1) end,
      asinh = function(v) return math.log(v + math.sqrt(v * v + 1)) end,
      atanh = function(v) return 0.5 * math.log((1 + v) / (1 - v)) end,
      acosh = function() return 0 / 0 end, sign = function() return 1 end,
      round = function(v) return v < 0.5 and 0 or 1 end, trunc = function() return 0 end }
    local names, text = {}, "nan"
    for name in pairs(references) do
      names[#names + 1] = name
      text = ("where(k == %d, %s(x), %s)"):format(#names, name, text) -- all in one kernel
    end
    local values <const> = { 0.25, 0.5, 0.75 }
    local x = dev:upload("f64", values)
    for k, name in ipairs(names) do
      local got = gpu.map(text, { x = x, k = k }):read()
      for i, value in ipairs(values) do
        local wanted = references[name](value)
        assert.truthy(wanted ~= wanted and got[i] ~= got[i] or math.abs(wanted - got[i]) < 1e-12, name)
      end
    end
    gives("atan2(x, 0 * x) * 2 / pi", { x = { "f64", 1, 2, 3 } }, "f64", { 1.0, 1.0, 1.0 })
    gives("hypot(x, 4)", { x = { "f32", 3, 3, 3 } }, "f32", { 5.0, 5.0, 5.0 })
    gives("fma(x, x, 1)", { x = { "f32", 1, 2, 3 } }, "f32", { 2.0, 5.0, 10.0 })
    gives("pow(x, 2) - copysign(x, -1) + fmod(x, 2)", { x = { "f32", 1, 2, 3 } }, "f32", { 3.0, 6.0, 13.0 })
    gives("min(x, 2, y) + max(x, y)", { x = { "i32", 1, 2, 3 }, y = { "i32", 5, 1, 2 } }, "i32", { 6, 3, 5 })
    gives("min(x, 2)", { x = { "f32", 1, 2, 3 } }, "f32", { 1.0, 2.0, 2.0 })
    gives("clamp(x, -1, 1)", { x = { "f32", -5, 0.5, 5 } }, "f32", { -1.0, 0.5, 1.0 })
    gives("clamp(x, 0, 9)", { x = { "i8", -5, 5, 50 } }, "i8", { 0, 5, 9 })
    gives("abs(x) + sign(x)", { x = { "i8", -128, 0, 5 } }, "i8", { 127, 0, 6 })
    gives("abs(x)", { x = { "u8", 128, 0, 5 } }, "u8", { 128, 0, 5 })
    gives("isnan(x) or isinf(x) and not isfinite(x)", { x = { "f32", 0 / 0, 1 / 0, 5 } }, "u8", { 1, 1, 0 })
    gives("where(isfinite(x), 1, 0)", { x = { "i32", 1, 2, 3 } }, "i64", { 1, 1, 1 })
    gives("where(x == inf, -inf, x)", { x = { "f32", 1, 1 / 0, 3 } }, "f32", { 1.0, -1 / 0, 3.0 })
    gives("round(tgamma(x)) + round(exp(lgamma(x)))", { x = { "f64", 1, 3, 5 } }, "f64", { 2.0, 4.0, 48.0 })
    gives("where(erf(x) > 0.84 and erf(x) < 0.85, round((erf(x) + erfc(x)) * 1e6), 0)", { x = { "f64", 0.5, 1, 2 } },
      "f64", { 0.0, 1e6, 0.0 })
  end)

  it("divides integers by 0 and by -1 without harm", function()
    for _, t in ipairs { "i8", "i16", "i32", "i64" } do
      local low = -(1 << (({ i8 = 8, i16 = 16, i32 = 32, i64 = 64 })[t] - 1))
      gives("x // y", { x = { t, low, 5, low }, y = { t, -1, 0, 0 } }, t, { low, 0, 0 })
      gives("x % y", { x = { t, low, 5, low }, y = { t, -1, 0, 0 } }, t, { 0, 0, 0 })
    end
    gives("x // y + x % y", { x = { "u32", 7, 5, 1 }, y = { "u32", 2, 0, 3 } }, "u32", { 4, 0, 1 })
  end)

  it("takes scalars and buffers of one element for all elements", function()
    local x, s, b = dev:upload("f32", { 1, 2, 3 }), dev:scalar("f32", 2), dev:upload("f32", { 10 })
    local z = gpu.map("s * x + b", { s = s, x = x, b = b })
    assert.are.same({ 12, 14, 16 }, z:read())
    s:set(3)
    gpu.map("s * x + b", { s = s, x = x, b = b, out = z })
    assert.are.same({ 13, 16, 19 }, z:read())
    local one = gpu.map("b + s", { b = b, s = s })
    assert.are.same({ 13 }, one:read())
    assert.are.same({ "f32", dev, nil }, { s.type, s.device, s.shape })
  end)

  it("counts elements from 1, and keeps shapes", function()
    local z = dev:buffer("f32", { 2, 3 })
    gpu.map("10 * index", { out = z })
    assert.are.same({ 10, 20, 30, 40, 50, 60 }, z:read())
    local w = gpu.map("z + index", { z = z })
    assert.are.same({ 2, 3 }, w.shape)
    gives("index * x", { x = { "i64", 5, 5, 5 }, index = 2 }, "i64", { 10, 10, 10 }) -- who has one of that name
    gives("pi * x", { x = { "i64", 5, 5, 5 }, pi = 3 }, "i64", { 15, 15, 15 })
  end)

  it("goes to the stream and has the label that is wanted", function()
    local x, own <close> = dev:upload("f32", { 1, 2, 3 }), dev:stream {}
    local first = gpu.map("x + 1", { x = x, out = x })
    local op = gpu.map("x + 1", { x = x, out = x, stream = own, label = "one more" })
    assert.equal("one more", op.label)
    assert.is_false(op.stream == first.stream)
    assert.are.same({ 3, 4, 5 }, x:read())
  end)

  it("is compiled once for each set of types", function()
    local x, y = dev:upload("f32", { 1, 2, 3 }), dev:upload("f64", { 1, 2, 3 })
    gpu.map("x * 5 - 1", { x = x })
    gpu.map("x * 5 - 1", { x = y })
    local before = dev:stats().requests
    for _ = 1, 20 do
      gpu.map("x * 5 - 1", { x = x, out = x })
      gpu.map("x * 5 - 1", { x = y, out = y })
    end
    dev:synchronize()
    assert.truthy(dev:stats().requests - before < 5)
  end)

  it("looks at its arguments each time", function()
    local x, y, z = dev:upload("f32", { 1, 2, 3 }), dev:upload("f32", { 4, 5, 6 }), dev:buffer("f32", 3)
    local text <const> = "x + a * y"
    local function call(change)
      local arguments = { x = x, y = y, a = 2, out = z }
      for name, value in pairs(change) do
        arguments[name] = value or nil
      end
      return gpu.map(text, arguments)
    end
    local function results(change)
      call(change)
      return (change.out or z):read()
    end
    assert.are.same({ 9, 12, 15 }, results {})
    assert.are.same({ 9, 12, 15 }, results { label = "again" })
    assert.are.same({ 3, 4.5, 6 }, results { a = 0.5 })
    assert.are.same({ 9, 12, 15 }, results { out = dev:buffer("f64", 3) })
    assert.are.same({ 9, 12, 15 }, results { x = dev:upload("i8", { 1, 2, 3 }) })
    assert.are.same({ 11, 13, 15 }, results { x = dev:scalar("f32", 3) })
    assert.are.same({ 11, 13, 15 }, results { x = dev:upload("f32", { 3 }) })
    assert.are.same({ 9 }, results { x = x:slice(1, 1), y = y:slice(1, 1), out = z:slice(1, 1) })
    assert.are.same({ 9, 12, 15 }, results {})
    support.raises("InvalidArgument", { "'y' has the shape 2" }, call, { y = y:slice(1, 2) })
    support.raises("InvalidArgument", { "'x' has the shape 3, 'out' 1 x 3" }, call,
      { out = dev:buffer("f32", { 1, 3 }) })
    support.raises("InvalidArgument", { "'b' is given, but not in" }, call, { b = 1 })
    support.raises("InvalidArgument", { "there is no 'a'" }, call, { a = false })
    support.raises("InvalidArgument", { "got string" }, call, { a = "2" })
    support.raises("InvalidArgument", { "does not fit out" }, call, { out = dev:buffer("i32", 3) })
    local whole = dev:buffer("f32", 4):fill(0)
    support.raises("InvalidArgument", { "share memory" }, call, { x = whole:slice(1, 3), out = whole:slice(2, 4) })
    local other <close> = support.open()
    support.raises("InvalidArgument", { "(x) of kernel 'map'" }, call, { x = other:upload("f32", { 1, 2, 3 }) })
    local theirs = { x = other:upload("f32", { 1, 2, 3 }), y = other:upload("f32", { 4, 5, 6 }), a = 2 }
    assert.are.same({ 9, 12, 15 }, gpu.map(text, theirs):read())
    assert.are.same({ 9, 12, 15 }, results {})
    local closed = dev:upload("f32", { 1, 2, 3 })
    closed:close()
    support.raises("Closed", { "map: x: attempt to use a closed buffer" }, call, { x = closed })
    assert.are.same({ 9, 12, 15 }, results {})
  end)

  it("lets the kernel go that was used longest ago", function()
    local find, made = require "gpulua.generated".cache "map", {}
    local own <close> = support.open()
    local function use(key)
      return (find(own, key, function()
        made[key] = (made[key] or 0) + 1
        return { key }
      end))
    end
    for i = 1, 300 do
      assert.are.same({ "often" }, use "often")
      assert.are.same({ "key " .. i }, use("key " .. i))
    end
    for i = 46, 300 do
      use("key " .. i)
    end
    use "often"
    for key, times in pairs(made) do
      assert.equal(1, times, key)
    end
    use "key 45"
    assert.equal(2, made["key 45"])
    use "key 47"
    assert.equal(1, made["key 47"])
  end)

  it("keeps 256 kernels at most #slow", function()
    if not os.getenv "GPULUA_SLOW" then
      pending "GPULUA_SLOW=1 runs it"
    end
    local own <close> = support.open()
    local x = own:upload("f32", { 1, 2, 3 })
    for i = 1, 600 do
      gpu.map(("x + %d"):format(i), { x = x, out = x })
    end
    support.settle(own)
    assert.truthy(own:stats().modules_live <= 256, own:stats().modules_live)
    for i = 601, 900 do
      gpu.map("x + 600", { x = x, out = x })
      gpu.map(("x + %d"):format(i), { x = x, out = own:buffer("f32", 3) })
    end
    gpu.map("x + 600 * -300", { x = x, out = x })
    support.settle(own)
    local graph <close> = own:capture(function()
      gpu.map("x + 600", { x = x, out = x })
      gpu.map("x + 700", { x = x, out = x })
      support.raises("CaptureActive", "compile", gpu.map, "x + 1", { x = x, out = x })
    end)
    assert.equal(2, (graph:nodes()))
    assert.equal(1 + 600 * 601 // 2, x:read(1, 1)[1])
  end)

  it("keeps one kernel where tasks that began together have each compiled it", function()
    local own <close> = support.open()
    local x = own:upload("f32", { 1, 2, 3 })
    local tasks, outs = {}, {}
    for i = 1, 20 do
      outs[i] = own:buffer("f32", 3)
      tasks[i] = gpu.spawn(function() gpu.map("x * 7 + 11", { x = x, out = outs[i] }) end)
    end
    collectgarbage "stop" -- which would hide the others
    gpu.all(tasks)
    own:synchronize()
    local modules = own:stats().modules_live
    collectgarbage "restart"
    assert.equal(1, modules)
    for i = 1, 20 do
      assert.are.same({ 18, 25, 32 }, outs[i]:read())
    end
  end)

  it("becomes a node of a capture", function()
    local x, y = dev:upload("f32", { 1, 2, 3 }), dev:buffer("f32", 3):fill(0)
    gpu.map("x + y", { x = x, y = y, out = y })
    local graph <close> = dev:capture(function()
      local t = gpu.map("x + y", { x = x, y = y })
      gpu.map("x + y", { x = t, y = y, out = y })
      support.raises("CaptureActive", { "compile" }, gpu.map, "x + y - 17", { x = x, y = y })
    end)
    assert.are.same({ 2, 1 }, { graph:nodes() })
    graph:launch()
    assert.are.same({ 3, 6, 9 }, y:read())
  end)

  it("says what is wrong, and where", function()
    local x, y = dev:upload("f32", { 1, 2, 3 }), dev:upload("f32", { 1, 2, 3, 4 })
    for text, parts in pairs {
      ["x +"] = { "a value expected, got 'the end'", "at 4 of 'x +'" },
      ["(x"] = { "')' expected", "at 3" },
      ["x )"] = { "an operator expected, got ')'", "at 3" },
      ["x x"] = { "an operator expected, got 'x'", "at 3" },
      ["x + q"] = { "there is no 'q'", "at 5" },
      ["x + sin"] = { "'sin' is a function", "at 5" },
      ["foo(x)"] = { "no function 'foo'", "at 1" },
      ["sin(x, x)"] = { "sin takes 1 argument, got 2" },
      ["atan2(x)"] = { "atan2 takes 2 arguments, got 1" },
      ["min(x)"] = { "min takes at least 2 arguments, got 1" },
      ["max(x" .. (", x"):rep(16) .. ")"] = { "max takes at most 16 arguments, got 17" },
      ["x ? 1 : 0"] = { "got '?': where(c, x, y) chooses", "at 3" },
      ["x != 2"] = { "got '!': it is 'not' and '~=' here" },
      ["x > 1 && x"] = { "got '&': 'and' joins conditions" },
      ["x ** 2"] = { "got '*': '^' is the power", "at 4" },
      ["x[1]"] = { "got '[': a name is the element at this place, index the place", "at 2" },
      ["x > 2 and 1 or 0"] = { "a comparison, say; where(c, x, y) chooses" },
      ["x and x"] = { "a condition expected", "at 1" },
      ["not x"] = { "a condition expected", "at 5" },
      ["1 + (x < 2)"] = { "a condition is no number", "at 5" },
      ["x & 1"] = { "'&' wants integers, got f32" },
      ["~x"] = { "'~' wants an integer, got f32" },
      ["x << 1"] = { "'<<' wants integers" },
      ["where(x, x, x)"] = { "a condition expected", "at 7" },
      ["x @ 2"] = { "got '@'", "at 3" },
      ["2x"] = { "a value expected, got '2'" },
      ["x * 1e999"] = { "1e999 is too large", "at 5" },
      [("("):rep(200) .. "x" .. (")"):rep(200)] = { "levels deep" },
      [""] = { "a value expected, got 'the end'" },
    } do
      support.raises("InvalidArgument", parts, gpu.map, text, { x = x })
    end
    local raises = support.raises
    local hint = raises("InvalidArgument", { "no function 'relu'" }, gpu.map, "relu(x)", { x = x }).hint
    assert.truthy(hint:find("there are: abs, acos, .*, log, .*, where$"), hint)
    hint = raises("InvalidArgument", { "there is no 'math'" }, gpu.map, "math.sqrt(x)", { x = x }).hint
    assert.truthy(hint:find("no library in front", 1, true), hint)
    raises("InvalidArgument", { "a condition does not fit out, which is i32: i32(...) converts" }, gpu.map, "x > 1",
      { x = x, out = dev:buffer("i32", 3) })
    raises("InvalidArgument", { "'y' is given, but not in 'x'" }, gpu.map, "x", { x = x, y = x })
    raises("InvalidArgument", { "'y' has the shape 4, 'x' 3" }, gpu.map, "x + y", { x = x, y = y })
    raises("InvalidArgument", { "'x' has the shape 3, 'out' 4" }, gpu.map, "x", { x = x, out = y })
    raises("InvalidArgument", { "'x': a buffer, a scalar or a number expected, got string" }, gpu.map, "x", { x = "1" })
    raises("InvalidArgument", { "'x'", "got host buffer" }, gpu.map, "x", { x = dev:host("f32", 3) })
    raises("InvalidArgument", { "'out': a buffer or a scalar expected, got number" }, gpu.map, "x", { x = x, out = 5 })
    raises("InvalidArgument", { "a name expected, got 1" }, gpu.map, "x", { x })
    raises("InvalidArgument", { "nothing says for how many" }, gpu.map, "1 + 2", {})
    raises("InvalidArgument", { "nothing says for how many" }, gpu.map, "s", { s = dev:scalar("f32", 1) })
    raises("InvalidArgument", { "expression and a table expected" }, gpu.map, "x")
    raises("InvalidArgument", { "expression and a table expected" }, gpu.map, 5, {})
    raises("InvalidArgument", { "share memory" }, gpu.map, "x", { x = y:slice(1, 3), out = y:slice(2, 4) })
    raises("Unsupported", { "'x' is c64" }, gpu.map, "x", { x = dev:buffer("c64", 3) })
    local closed = dev:buffer("f32", 3)
    closed:close()
    raises("Closed", { "map: x: attempt to use a closed buffer" }, gpu.map, "x", { x = closed })
    raises("Closed", { "map: out: attempt to use a closed buffer" }, gpu.map, "x", { x = x, out = closed })
    support.works(dev)
  end)

  it("checks integers of the script also where they were computed, or chosen", function()
    local x, u = { "i8", 1, 100, -100 }, { "u64", 1, 2, 3 }
    support.raises("InvalidArgument", { "200 does not fit i8", "at 5" }, map, "x < 100 + 100", { x = x })
    support.raises("InvalidArgument", { "300 does not fit i8", "at 17" }, map, "where(x > 0, 1, 300) + x", { x = x })
    gives("where(x > 0, 1, -1) * x", { x = x }, "i8", { 1, 100, 100 })
    gives("u8(x > -a % 256 // b)", { x = x, a = 200, b = 2 }, "u8", { 0, 1, 0 })
    for text, value in pairs { ["u8(x > a * b)"] = 400, ["u8(x > -a - b * 0)"] = -200, ["u8(x > (a << b))"] = 800,
      ["u8(x > min(a, 150) + b * 0)"] = 150, ["u8(x > abs(-a) + sign(-b))"] = 199,
      ["u8(x > (a | b ~ 3 & 1))"] = 203 } do
      gives(text .. " * 0", { x = x, a = 1, b = 2 }, "u8", { 0, 0, 0 })
      support.raises("InvalidArgument", { ("map: %d does not fit i8, at "):format(value) }, map, text .. " * 0",
        { x = x, a = 200, b = 2 })
    end
    support.raises("InvalidArgument", { "-1 does not fit u64" }, map, "x > -a", { x = u, a = 1 })
    for text, what in pairs { ["x + where(x > 1, 200, 1)"] = "200 does not fit i8, at 18",
      ["x + (where(x > 1, 200, 1) + 0)"] = "200 does not fit i8, at 5",
      ["x + -where(x > 1, 200, 1)"] = "-200 does not fit i8, at 5",
      ["x + where(x > 1, 100, 1) * where(x > 2, 2, 1)"] = "200 does not fit i8, at 5",
      ["x + max(where(x > 1, 1, where(x > 2, 3, 4)) * 60, 1)"] = "180 does not fit i8, at 5",
      ["x + (where(x > 1, ~1, 100) + a)"] = "map: 200 does not fit i8, at 5" } do
      support.raises("InvalidArgument", what, map, text, { x = x, a = text:find "a%)" and 100 or nil })
    end
    gives("x + (where(x > 1, 100, 1) - where(x > 2, 100, 1))", { x = x }, "i8", { 1, 100, -100 })
    gives("x + -where(x > 1, 1, a)", { x = x, a = 2 }, "i8", { -1, 99, -102 })
    gives("x - (" .. ("where(x > 1, 1, 0) + "):rep(20) .. "0)", { x = x }, "i8", { 1, 80, -100 })
    local many = "0"
    for i = 0, 6 do
      many = ("where(x > 1, %d, 0) + %s"):format(1 << i, many)
    end
    support.raises("InvalidArgument", { "more than 64 numbers are chosen from to say whether they fit i8, at 5" }, map,
      ("x + (%s)"):format(many), { x = x })
    gives(many, { x = x }, "i64", { 0, 127, 0 })
    gives(("x - (%s)"):format((many:gsub("0%)", "i8(0))"))), { x = x }, "i8", { 1, -27, -100 })
    gives("(x ~ 0xcbf29ce484222325) - 0xcbf29ce484222320", { x = u }, "u64", { 4, 7, 6 })
    gives("x & ~1", { x = { "u8", 1, 2, 255 } }, "u8", { 0, 2, 254 })
  end)

  it("shifts by what only u64 holds as by any other number of bits", function()
    local by = { "u64", 1, -1, math.mininteger }
    gives("(x << by) | (x >> by)", { x = { "i16", 5, 5, 5 }, by = by }, "i16", { 10 | 2, 0, 0 })
  end)

  it("takes names that are reserved or macros in C", function()
    local given, terms = {}, {}
    for i, name in ipairs { "__LINE_", "__CUDACC_", "__shared_", "_p1__LINE", "int", "class", "template",
      "threadIdx", "n", "i", "out_", "v1", "v1_", "t1", "map", "sqrt", "NULL", "x", "x_", "x__", "_x", "__x" } do
      given[name] = dev:upload("f32", { 1 << i, 0 })
      terms[i] = name
    end
    assert.are.same({ (1 << #terms + 1) - 2, 0 }, gpu.map(table.concat(terms, " + "), given):read())
  end)

  it("takes long expressions", function()
    gives(("x + "):rep(1500) .. "x", { x = { "f32", 1, 2, 3 } }, "f32", { 1501, 3002, 4503 })
    gives(("sign("):rep(60) .. "x" .. (")"):rep(60), { x = { "f32", 1, 0, -3 } }, "f32", { 1, 0, -1 })
  end)

  it("takes 126 names", function()
    local given, names = {}, {}
    for i = 1, 125 do
      names[i] = "a" .. i
      given[names[i]] = i
    end
    given.x, given.out = dev:upload("i64", { 1, 2 }), dev:buffer("i64", 2)
    local text = "x + " .. table.concat(names, " + ")
    gpu.map(text, given)
    assert.are.same({ 7876, 7877 }, given.out:read())
    given.y = 1
    support.raises("InvalidArgument", { "map: 127 buffers, scalars and numbers are given, 126 are the most" }, gpu.map,
      text .. " + y", given)
  end)

  it("refuses memory that is shared with what is the same for all elements, and complex numbers for out", function()
    local z = dev:upload("f32", { 1, 2 })
    support.raises("InvalidArgument", { "'v' and out share memory" }, gpu.map, "f32(v)", { v = z:view("f64"), out = z })
    for _, text in ipairs { "1", "1.5", "true" } do
      support.raises("Unsupported", { "out is c64" }, gpu.map, text, { out = dev:buffer("c64", 3) })
    end
    support.raises("InvalidArgument", { "a value expected, got ')'", "at 10" }, gpu.map, "max(x, 2,)", { x = z })
    support.raises("InvalidArgument", { "got 'é'", "at 5" }, gpu.map, "x + é", { x = z })
    support.raises("InvalidArgument", { "got '\\0', at 5 of 'x + \\0 1'" }, gpu.map, "x + \0 1", { x = z })
  end)

  it("takes its arguments at the call, whatever others do while it compiles", function()
    local given = { x = dev:upload("f32", { 1, 2, 3 }), a = 1 }
    local made
    gpu.run(function()
      gpu.spawn(function() given.x, given.a = dev:buffer("f32", 1), "none" end) -- runs when this one waits
      made = gpu.map("x * 3 + a - 0.375", given)
    end)
    assert.are.same({ 3.625, 6.625, 9.625 }, made:read())
  end)

  it("works on large buffers of odd lengths, with a launch for each", function()
    local n <const> = 1000003
    local x = dev:buffer("f32", n)
    gpu.map("index % 7 * 0.5", { out = x })
    local y = gpu.map("x * 2 + 1", { x = x })
    for _, i in ipairs { 1, 2, 999999, n } do
      assert.equal(i % 7 + 1, y:read(i, i)[1])
    end
  end)

  -- A GPU's kernels load 16 bytes at once where they can. Here they run beside those that do not, on any device.
  it("does the same where a thread has several elements", function()
    local elementwise = require "gpulua.elementwise"
    local function run(text, is_wide, n, x, y, out)
      local what = { buffer = x, type = x.type }
      local made = elementwise(text, { x = what, y = { buffer = y, type = y.type }, a = { type = "int" } }, out.type,
        is_wide)
      local kernel = dev:compile(made.source):kernel("map", made.signature)
      local values = { x = x, y = y, a = 3 }
      local list = {}
      for i, param in ipairs(made.params) do
        list[i] = values[param.name]
      end
      list[#list + 1] = out
      kernel:launch((n + made.per_thread - 1) // made.per_thread, n, table.unpack(list))
      return made.per_thread
    end
    for t, per_thread in pairs { f32 = 4, f64 = 2, i8 = 16, f16 = 8 } do
      for _, text in ipairs { "x * a + y - index", "where(x > y, x, y) + a" } do
        local whole = { dev:buffer(t, 200), dev:buffer(t, 200), dev:buffer(t, 200) }
        for k = 1, 2 do
          gpu.map(t == "i8" and "i8(index * 7 % 31 + k)" or "index * 7 % 31 + k", { k = k, out = whole[k] })
        end
        text = t == "i8" and ("i8(%s)"):format(text) or text
        for _, place in ipairs { { 1, 1, 1, 64 }, { 1, 1, 1, 67 }, { 1, 1, 1, 1 }, { 2, 1, 1, 65 }, { 1, 1, 2, 33 },
          { 17, 33, 65, 15 } } do
          local n = place[4]
          local x, y, z = whole[1]:slice(place[1], place[1] + n - 1), whole[2]:slice(place[2], place[2] + n - 1),
            whole[3]:slice(place[3], place[3] + n - 1)
          assert.equal(1, run(text, false, n, x, y, z))
          local wanted = z:bytes()
          whole[3]:fill(99)
          assert.equal(per_thread, run(text, true, n, x, y, z))
          assert.equal(wanted, z:bytes(), text)
          assert.equal(99, whole[3]:read(place[3] + n, place[3] + n)[1])
        end
        run(text, true, 64, whole[1]:slice(1, 64), whole[2]:slice(1, 64), whole[3]:slice(1, 64))
        run(text, true, 64, whole[1]:slice(1, 64), whole[2]:slice(1, 64), whole[1]:slice(1, 64)) -- in its place
        assert.equal(whole[3]:slice(1, 64):bytes(), whole[1]:slice(1, 64):bytes())
      end
    end
    assert.equal(1, run("x + y", true, 3, dev:buffer("f32", 3):fill(1), dev:buffer("f64", 3):fill(1),
      dev:buffer("f64", 3)))
  end)
end)
