-- Sums, extremes and their like: gpu.reduce.

local gpu = require "gpulua"
local reduction = require "gpulua.reduction"
local support = require "spec.support"

local ops <const> = { "sum", "prod", "mean", "norm", "max", "min", "argmax", "argmin" }
local types <const> = { "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "c64",
  "c128" }

local function is_float(t) return t:find "f" ~= nil end
local function is_complex(t) return t:sub(1, 1) == "c" end
local function is_place(op) return op:sub(1, 3) == "arg" end
local function is_defined(op, t)
  return not is_complex(t) or op == "sum" or op == "mean" or op == "norm"
end

local function result_type(op, t)
  if is_place(op) then
    return "i64"
  elseif op == "max" or op == "min" then
    return t
  elseif is_float(t) or is_complex(t) then
    local narrow = (t == "f16" or t == "bf16") and "f32" or t
    return op == "norm" and (t == "c128" and "f64" or t == "c64" and "f32") or narrow
  end
  return (op == "mean" or op == "norm") and "f64" or t:sub(1, 1) == "u" and "u64" or "i64"
end

-- ---- references ----

local function less(t)
  return t == "u64" and math.ult or function(a, b) return a < b end
end

-- Of a list of values, in f64 or in integers that wrap around, and the sum of all magnitudes.
local reference = {}

function reference.sum(list)
  local total, magnitude = 0, 0.0
  for _, value in ipairs(list) do
    total, magnitude = total + value, magnitude + math.abs(value + 0.0)
  end
  return total, magnitude
end

function reference.prod(list)
  local total = 1
  for _, value in ipairs(list) do
    total = total * value
  end
  return total, math.abs(total)
end

function reference.mean(list, t)
  local total, magnitude = 0.0, 0.0
  for _, value in ipairs(list) do
    local v = value + (t == "u64" and value < 0 and 2.0 ^ 64 or 0.0)
    total, magnitude = total + v, magnitude + math.abs(v)
  end
  return total / #list, magnitude / #list
end

function reference.norm(list, t)
  local total = 0.0
  for _, value in ipairs(list) do
    total = total + (value + (t == "u64" and value < 0 and 2.0 ^ 64 or 0.0)) ^ 2
  end
  return math.sqrt(total), math.sqrt(total)
end

local function place(list, is_before)
  local at = 1
  for i, value in ipairs(list) do
    if is_before(value, list[at]) or (value ~= value and list[at] == list[at]) then
      at = i
    end
  end
  return at
end
function reference.argmin(list, t) return place(list, less(t)) end
function reference.argmax(list, t)
  local before = less(t)
  return place(list, function(a, b) return before(b, a) end)
end
function reference.min(list, t) return list[reference.argmin(list, t)] end
function reference.max(list, t) return list[reference.argmax(list, t)] end

local function parts_of(list, part)
  local values = {}
  for i, pair in ipairs(list) do
    values[i] = pair[part]
  end
  return values
end

local function check_value(op, t, list, got, what)
  if is_complex(t) and op == "norm" then
    local all = table.move(parts_of(list, 2), 1, #list, #list + 1, parts_of(list, 1))
    return check_value(op, t == "c64" and "f32" or "f64", all, got, what)
  elseif is_complex(t) then
    for part = 1, 2 do
      check_value(op, t == "c64" and "f32" or "f64", parts_of(list, part), got[part], what)
    end
    return
  end
  local wanted, magnitude = reference[op](list, t)
  if wanted == got or wanted ~= wanted and got ~= got then
    return
  end
  local result = result_type(op, t)
  local is_exact = op == "max" or op == "min" or is_place(op) or math.type(wanted) == "integer"
  local u = op ~= "norm" and result == "f32" and 2.0 ^ -24 or 2.0 ^ -53
  local bound = op == "prod" and #list * u * magnitude or (27 * 3 + 1) * u * magnitude
  bound = bound + (result == "f32" and 2.0 ^ -24 or 2.0 ^ -52) * math.abs(wanted) + #list * 2.0 ^ -53 * magnitude
  if is_exact or math.abs(wanted - got) > bound then
    error(("%s: %s, not %s (%s)"):format(what, got, wanted, is_exact and "exact" or bound), 0)
  end
end

-- ---- values ----

local bits <const> = { i8 = 8, u8 = 8, i16 = 16, u16 = 16, i32 = 32, u32 = 32, i64 = 64, u64 = 64 }

local function values_for(op, t, count, random)
  local values = {}
  local function number()
    if op == "prod" and not bits[t] then
      return ({ 0.5, 1.0, -1.0, 2.0, 1.0 })[random(1, 5)]
    elseif not bits[t] then
      return random(-1000, 1000) / 8
    elseif bits[t] == 64 then
      return random(-1 << 40, 1 << 40) * random(1, 1 << 20)
    end
    local low = t:sub(1, 1) == "i" and -(1 << bits[t] - 1) or 0
    return random(low, low + (1 << bits[t]) - 1)
  end
  for i = 1, count do
    values[i] = is_complex(t) and { number(), number() } or number()
  end
  return values
end

describe("reduce", function()
  local dev

  setup(function() dev = support.open() end)
  teardown(support.close_all)

  -- Against the reference for each element of the result.
  local function check(op, t, shape, axis, random)
    local count = 1
    for _, dim in ipairs(shape) do
      count = count * dim
    end
    local x <close> = dev:upload(t, values_for(op, t, count, random)):view(t, shape)
    local values, what = x:read(), ("%s of %s[%s], axis %s"):format(op, t, table.concat(shape, "x"), axis)
    local made, done = gpu.reduce(op, x, axis)
    assert.equal("op", gpu.type(done), what)
    assert.equal(result_type(op, t), made.type, what)
    local length, inner, outer, left = count, 1, 1, {}
    if axis then
      length = shape[axis]
      for i, dim in ipairs(shape) do
        outer, inner = i < axis and outer * dim or outer, i > axis and inner * dim or inner
        left[#left + 1] = i ~= axis and dim or nil
      end
    end
    local results
    if #left == 0 then
      assert.equal("scalar", gpu.type(made), what)
      results = { made:get() }
    else
      assert.are.same(left, made.shape, what)
      results = made:read()
    end
    for o = 0, outer - 1 do
      for i = 0, inner - 1 do
        local list = {}
        for j = 0, length - 1 do
          list[j + 1] = values[(o * length + j) * inner + i + 1]
        end
        check_value(op, t, list, results[o * inner + i + 1], what)
      end
    end
    made:close()
  end

  -- Kernels compile beside each other.
  local function check_all(list)
    local tasks, next_of = {}, 1
    for i = 1, 4 do
      tasks[i] = gpu.spawn(function()
        while list[next_of] do
          local one = list[next_of]
          next_of = next_of + 1
          local random = support.random(next_of)
          for _, case in ipairs(one.cases) do
            check(one.op, one.t, case[1], case[2], random)
          end
        end
      end)
    end
    gpu.all(tasks)
  end

  local function forms_of(t)
    local long = reduction.step(t)
    return {
      { { { 1 } }, { { 2 } }, { { 127 } }, { { 4096 } }, { { 4099 }, 1 }, { { long + 1 } }, { { 3, 37 } } },
      { { { 5, 3 }, 2 }, { { 9, 2, 4 }, 3 } },
      { { { 130, 5 }, 1 }, { { 2, 9, 3 }, 2 }, { { 1, 2 }, 1 }, { { 8, 257 }, 1 }, { { 3, 7, 1 }, 2 } },
    }
  end

  it("gives what the reference gives, along all axes of f32", function()
    local list = {}
    for _, op in ipairs(ops) do
      for _, cases in ipairs(forms_of "f32") do
        list[#list + 1] = { op = op, t = "f32", cases = cases }
      end
    end
    check_all(list)
  end)

  it("gives what the reference gives for all types", function()
    local list, at = {}, 0
    for _, t in ipairs(types) do
      local forms = forms_of(t)
      for _ = 1, 2 do
        repeat
          at = at + 1
        until is_defined(ops[at % #ops + 1], t)
        list[#list + 1] = { op = ops[at % #ops + 1], t = t, cases = forms[at % 3 + 1] }
      end
    end
    check_all(list)
  end)

  it("gives what the reference gives for each type, reduction and axis #slow", function()
    if not os.getenv "GPULUA_SLOW" then
      pending "GPULUA_SLOW=1 runs it"
    end
    local list = {}
    for _, t in ipairs(types) do
      for _, op in ipairs(ops) do
        for _, cases in ipairs(is_defined(op, t) and forms_of(t) or {}) do
          list[#list + 1] = { op = op, t = t, cases = cases }
        end
      end
    end
    check_all(list)
  end)

  it("takes rows and columns of all lengths", function()
    local list = {}
    for _, length in ipairs { 1, 15, 16, 17, 31, 32, 33, 64, 65, 127, 129, 255, 256, 257, 511, 513, 2047, 2048, 2049,
      4099, 16385 } do
      list[#list + 1] = { op = "sum", t = "f32", cases = { { { 3, length }, 2 }, { { 11, length }, 2 } } }
      list[#list + 1] = { op = "argmin", t = "i16", cases = { { { 3, length }, 2 } } }
    end
    for _, length in ipairs { 1, 7, 8, 9, 127, 128, 129, 300, 16385 } do
      list[#list + 1] = { op = "sum", t = "f32", cases = { { { length, 3 }, 1 }, { { 2, length, 2 }, 2 } } }
      list[#list + 1] = { op = "argmax", t = "f32", cases = { { { length, 3 }, 1 }, { { 2, length, 2 }, 2 } } }
    end
    list[#list + 1] = { op = "argmin", t = "f32", cases = { { { 3, 40000 }, 2 } } }
    check_all(list)
  end)

  local nan <const>, inf <const> = 0 / 0, 1 / 0

  local function value_of(op, t, values, ...)
    local x <close> = dev:upload(t, values)
    return (gpu.reduce(op, x, ...):get())
  end

  it("passes on what is not a number, and finds the first one", function()
    local values = {}
    for i = 1, 5000 do
      values[i] = -i
    end
    values[4321], values[4800] = nan, nan
    for _, t in ipairs { "f32", "f16", "f64" } do
      for _, op in ipairs { "sum", "max", "min" } do
        local got = value_of(op, t, values)
        assert.truthy(got ~= got, op)
      end
      assert.equal(4321, value_of("argmax", t, values))
    end
    assert.equal(4321, value_of("argmin", "f32", values))
    local x = dev:upload("f32", { 1, nan, 3, nan, inf, 6 }):view("f32", { 2, 3 })
    for _, op in ipairs { "max", "min", "norm", "prod" } do
      local columns = gpu.reduce(op, x, 1):read()
      assert.are.same({ true, true, false }, { columns[1] ~= columns[1], columns[2] ~= columns[2],
        columns[3] ~= columns[3] }, op)
    end
    assert.are.same({ 2, 1 }, gpu.reduce("argmax", x, 2):read())
    assert.are.same({ 2, 1, 2 }, gpu.reduce("argmax", x, 1):read())
  end)

  it("has infinities and the ends of each type as any other value", function()
    assert.are.same({ -inf, -inf, 1, 1 }, { value_of("max", "f32", { -inf, -inf }), value_of("min", "f32", { -inf, 0 }),
      value_of("argmax", "f32", { -inf, -inf, -inf }), value_of("argmin", "f32", { inf, inf }) })
    assert.equal(inf, value_of("sum", "f32", { inf, 1 }))
    for t, ends in pairs { i8 = { -128, 127 }, u16 = { 0, 65535 }, i64 = { math.mininteger, math.maxinteger },
      u64 = { 0, -1 } } do
      local low, high = ends[1], ends[2]
      assert.are.same({ low, high, 1, 1 }, { value_of("max", t, { low, low, low }), value_of("min", t, { high, high }),
        value_of("argmax", t, { low, low }), value_of("argmin", t, { high, high, high }) }, t)
      assert.equal(3, value_of("argmax", t, { low, low, high, high }))
    end
  end)

  it("gives -0 for a sum of -0 alone", function()
    for _, n in ipairs { 1, 3, 4097, 16385 } do
      local x <close> = dev:buffer("f32", n):fill(-0.0)
      assert.equal(-inf, 1 / gpu.reduce("sum", x):get())
    end
  end)

  it("gives the first of equals, wherever they are", function()
    local random = support.random(3)
    for _, n in ipairs { 300, 5000, 40000 } do
      local x <close> = dev:buffer("f32", n):fill(0)
      for _ = 1, 5 do
        local first = random(1, n)
        local values = { first, random(first, n), random(first, n) }
        for _, at in ipairs(values) do
          x:slice(at, at):fill(7)
        end
        assert.equal(first, gpu.reduce("argmax", x):get())
        x:fill(0)
      end
    end
  end)

  it("wraps integers around, and does not lose what 32 bits lose", function()
    assert.equal(math.mininteger, value_of("sum", "i64", { math.maxinteger, 1 }))
    assert.equal(4 * (2 ^ 31 - 1) // 1 | 0, value_of("sum", "i32", { 2147483647, 2147483647, 2147483647, 2147483647 }))
    assert.equal(2.0 ^ 63, value_of("mean", "u64", { math.mininteger, math.mininteger }))
    assert.equal(5e30 // 1, value_of("norm", "f64", { 3e30, 4e30 }) // 1)
    local got = value_of("norm", "f32", { 3e30, 4e30 })
    assert.truthy(math.abs(got - 5e30) < 1e24)
    assert.equal(65504.0 * 3, value_of("sum", "f16", { 65504, 65504, 65504 }))
  end)

  it("stays accurate for many elements", function()
    local n <const> = support.is_checked() and 200001 or 3000001
    local x <close> = dev:buffer("f32", n):fill(0.1)
    local wanted = n * support.f32(0.1)
    assert.truthy(math.abs(gpu.reduce("sum", x):get() - wanted) < 55 * 2.0 ^ -24 * wanted)
    assert.truthy(math.abs(gpu.reduce("mean", x):get() - 0.1) < 55 * 2.0 ^ -24 * 0.1)
    assert.truthy(math.abs(gpu.reduce("norm", x):get() - math.sqrt(n) * support.f32(0.1)) < 1e-7 * math.sqrt(n))
  end)

  -- One thread for a block does what 256 do: on the CPU device it is what runs, on a GPU it is what is compared with.
  it("gives the same bits whoever does the work, wherever memory lies", function()
    local random = support.random(11)
    local function run(op, t, form, threads, x, outer, length, inner)
      local what = reduction.describe(op, t)
      local value, result = what.value, what.result
      local lanes, rows = reduction.lanes(t, length)
      local step, at_once, per_thread, side = reduction.step(t), nil, nil, nil
      if form == "columns" then
        lanes, at_once, step, per_thread, side = reduction.columns_of(t, outer, length, inner)
      end
      local source = reduction.source(op, t, result, form, lanes, at_once, threads, false, per_thread)
      local signature = form == "rows" and ("x: in %s*, i64, i64, out: out %s*"):format(t, result)
        or ("x: in %s*, from: in i64*, i64, i64, %si64, part: out %s*, places: out i64*, out: out %s*"):format(t,
          form == "columns" and "i64, i64, i64, " or "", value, result)
      local kernel = dev:compile(source):kernel("reduce", signature)
      if form == "rows" then
        local out = dev:buffer(result, outer)
        kernel:launch({ grid = (outer + rows - 1) // rows, block = threads }, x, length, outer, out)
        return out:bytes()
      end
      local parts = (length + step - 1) // step
      local total = outer * parts * inner
      local part, places = dev:buffer(value, total), dev:buffer("i64", total)
      if form == "pieces" then
        kernel:launch({ grid = total, block = threads }, x, nil, length, parts, length, part, places, nil)
      else
        local mine = threads > 1 and side * per_thread or 256
        local config = { grid = (total + mine - 1) // mine, block = threads > 1 and side * lanes or 1 }
        kernel:launch(config, x, nil, length, parts, step, inner, total,
          length, part, places, nil)
      end
      return part:bytes() .. (what.before and places:bytes() or "")
    end
    for _, case in ipairs { { "sum", "f32", "pieces", 1, 16384 + 4099, 1 },
      { "argmax", "f16", "pieces", 2, 32768 + 9, 1 }, { "norm", "c128", "pieces", 1, 4097, 1 },
      { "sum", "f64", "rows", 37, 63, 1 }, { "argmin", "f32", "rows", 9, 2047, 1 },
      { "mean", "f32", "rows", 300, 3, 1 }, { "sum", "f16", "rows", 300, 7, 1 }, { "max", "i8", "rows", 300, 40, 1 },
      { "mean", "f32", "columns", 3, 300, 7 }, { "sum", "f16", "columns", 2, 3000, 2 },
      { "norm", "c128", "columns", 1, 1100, 5 }, { "sum", "f32", "columns", 1, 2, 700 },
      { "argmax", "f16", "columns", 300, 6, 3 }, { "sum", "i8", "columns", 1, 77, 129 },
      { "argmin", "f32", "columns", 1, 129, 300 }, { "argmax", "f32", "columns", 2, 700, 12 },
      { "sum", "f64", "columns", 3, 1100, 6 }, { "max", "f16", "columns", 2, 300, 136 },
      { "sum", "f32", "columns", 3, 700, 100 }, { "argmax", "f32", "columns", 2, 800, 101 },
      { "max", "f64", "columns", 2, 90, 65 }, { "mean", "c64", "columns", 2, 90, 34 },
      { "sum", "u8", "columns", 1, 3000, 4 } } do
      local op, t, form, outer, length, inner = table.unpack(case)
      local count = outer * length * inner
      local values = values_for(op, t, count, random)
      if is_float(t) then
        for i = 1, count do
          values[i] = values[i] / 7
        end
      end
      local whole <close> = dev:buffer(t, count + 1)
      local x = whole:slice(1, count)
      x:write(values)
      local wanted = run(op, t, form, 1, x, outer, length, inner)
      assert.equal(wanted, run(op, t, form, 256, x, outer, length, inner), op .. form)
      local unaligned = whole:slice(2, count + 1)
      unaligned:write(values)
      assert.equal(wanted, run(op, t, form, 256, unaligned, outer, length, inner), op .. form .. " unaligned")
    end
  end)

  it("gives the same bits each time", function()
    local random = support.random(5)
    local x <close> = dev:upload("f32", values_for("sum", "f32", 40001, random))
    gpu.map("x / 7", { x = x, out = x })
    for _, op in ipairs { "sum", "norm", "mean" } do
      local wanted = gpu.reduce(op, x):get()
      for _ = 1, 5 do
        assert.equal(wanted, gpu.reduce(op, x):get())
      end
    end
  end)

  it("takes slices and views", function()
    local x = dev:upload("f32", 1000, function(i) return i end)
    assert.equal(7 + 8 + 9, gpu.reduce("sum", x:slice(7, 9)):get())
    assert.equal(3, gpu.reduce("argmax", x:slice(7, 9)):get())
    local v = x:slice(2, 13):view("f32", { 3, 4 })
    assert.are.same({ 14, 30, 46 }, gpu.map("x", { x = gpu.reduce("sum", v, 2) }):read())
    assert.are.same({ 18, 21, 24, 27 }, gpu.reduce("sum", v, 1):read())
    assert.are.same({ 1, 3, 4 }, gpu.reduce("max", x:slice(1, 24):view("f32", { 1, 2, 3, 4 }), 2).shape)
  end)

  it("writes into what is given, goes to the stream and has the label that is wanted", function()
    local x, own <close> = dev:upload("i16", 6, function(i) return i end):view("i16", { 2, 3 }), dev:stream {}
    local s, y, wide = dev:scalar("i64", 5), dev:buffer("i64", 3), dev:buffer("f64", { 2 })
    local op = gpu.reduce("sum", x, { out = s })
    assert.are.same({ "op", "reduce", 21 }, { gpu.type(op), op.label, s:get() })
    op = gpu.reduce("sum", x, { axis = 1, out = y, stream = own, label = "all of it" })
    assert.are.same({ "all of it", true, 5, 7, 9 }, { op.label, op.stream == own.id, table.unpack(y:read()) })
    gpu.reduce("max", x, { axis = 2, out = wide })
    assert.are.same({ 3, 6 }, wide:read())
    local one = dev:buffer("f32", { 1, 1 })
    gpu.reduce("max", x, { out = one })
    assert.are.same({ 6 }, one:read())
    local c = dev:buffer("c128", 1)
    gpu.reduce("sum", dev:upload("c64", { { 1, 2 }, { 3, 4 } }), { out = c })
    assert.are.same({ { 4, 6 } }, c:read())
    for t, wanted in pairs { bf16 = 21, f16 = 21 } do
      local half = dev:buffer(t, 1)
      gpu.reduce("sum", x, { out = half })
      assert.are.same({ wanted }, half:read())
    end
  end)

  it("gives scalars that are scalars of the device", function()
    local x = dev:upload("f32", 20000, function(i) return i end)
    local total = gpu.reduce("sum", x)
    assert.are.same({ "scalar", "f32", dev }, { gpu.type(total), total.type, total.device })
    gpu.map("x / s", { x = x, s = total, out = x }) -- without a look at it
    assert.truthy(math.abs(gpu.reduce("sum", x):get() - 1) < 1e-5)
    total:set(4)
    assert.equal(4, total:get())
    total:close()
    support.raises("Closed", { "closed scalar" }, total.get, total)
  end)

  it("becomes nodes of a capture, and runs with each replay", function()
    local x, y = dev:buffer("f32", 40000):fill(1), dev:buffer("f32", { 200, 200 }):fill(1)
    local s, rows = dev:scalar("f64", 0), dev:buffer("f32", 200)
    local function work()
      gpu.reduce("sum", x, { out = s })
      local most = gpu.reduce("max", x)
      local sums = gpu.reduce("sum", y, 2)
      gpu.map("s * most", { s = sums, most = most, out = rows })
    end
    work()
    assert.equal(40000, s:get())
    local graph <close> = dev:capture(work)
    assert.are.same({ 6, 4 }, { graph:nodes() })
    for i = 2, 4 do
      x:fill(i)
      y:fill(10 * i)
      graph:launch()
      assert.are.same({ 40000 * i, 200 * 10 * i * i }, { s:get(), rows:read(200, 200)[1] })
    end
    local kept
    local second <close> = dev:capture(function()
      kept = gpu.reduce("sum", x)
      support.raises("CaptureActive", {}, kept.get, kept)
      support.raises("CaptureActive", { "compile" }, gpu.reduce, "argmin", dev:buffer("u16", 5),
        { out = dev:buffer("f64", 1) })
    end)
    second:launch()
    assert.equal(40000 * 4, kept:get())
  end)

  it("decides on the device", function()
    local x, left = dev:upload("i32", { 3, 7, 5 }), dev:scalar("i32", 1)
    local function work()
      gpu.graph.while_(left, function()
        gpu.map("max(x - 1, 0)", { x = x, out = x })
        gpu.reduce("max", x, { out = left })
      end)
    end
    work()
    assert.are.same({ 0, 0, 0, 0 }, { left:get(), table.unpack(x:read()) })
    local graph <close> = dev:capture(work)
    x:write { 3, 7, 5 }
    left:set(1)
    graph:launch()
    assert.are.same({ 0, 0, 0, 0 }, { left:get(), table.unpack(x:read()) })
  end)

  it("works in graphed functions, and in tasks side by side", function()
    local x, s = dev:upload("f32", 20000, function(i) return i % 5 end), dev:scalar("f32", 0)
    local fast <close> = dev:graphed(function(from)
      gpu.map("x + 1", { x = from, out = from })
      gpu.reduce("sum", from, { out = s })
    end)
    for i = 1, 6 do
      fast(x)
      assert.equal(20000 * (2 + i), s:get())
    end
    local tasks = {}
    for i = 1, 8 do
      tasks[i] = gpu.spawn(function()
        local mine <close> = dev:buffer("i32", 20000 + i):fill(i)
        return gpu.reduce("sum", mine):get()
      end)
    end
    for i = 1, 8 do
      assert.equal(i * (20000 + i), tasks[i]:await())
    end
  end)

  it("leaves nothing behind", function()
    local x <close> = dev:buffer("f32", 300000):fill(1)
    gpu.reduce("argmax", x):close()
    gpu.reduce("sum", x):close()
    support.without_leak(dev, function()
      for _ = 1, 20 do
        gpu.reduce("argmax", x):close()
        gpu.reduce("sum", x):close()
        support.raises("InvalidArgument", {}, gpu.reduce, "sum", x, { out = x })
      end
    end)
  end)

  it("takes what a call returns, with the op behind it", function()
    local x = dev:buffer("f32", { 2, 3 }):fill(2)
    assert.equal(24.0, gpu.reduce("sum", gpu.map("x * x", { x = x })):get())
    local result, op = gpu.reduce("max", gpu.reduce("sum", x, 1))
    assert.equal(4.0, result:get())
    assert.equal("op", gpu.type(op))
  end)

  it("says what is wrong", function()
    local x, c = dev:buffer("f32", { 4, 3 }):fill(1), dev:buffer("c64", 3)
    local s, raises = dev:scalar("f32", 0), support.raises
    raises("InvalidArgument", { "reduce: 'sum', 'prod'", "expected, got 'average'" }, gpu.reduce, "average", x)
    raises("InvalidArgument", { "expected, got nil" }, gpu.reduce)
    raises("InvalidArgument", { "'sum': a buffer expected, got table" }, gpu.reduce, "sum", { x })
    raises("InvalidArgument", { "'sum': a buffer expected, got scalar" }, gpu.reduce, "sum", s)
    raises("InvalidArgument", { "got host buffer" }, gpu.reduce, "sum", dev:host("f32", 3))
    for _, axis in ipairs { 0, 3, -1, math.maxinteger } do
      raises("InvalidArgument", { ("axis: 1 to 2 expected, got %d (the shape is 4 x 3)"):format(axis) }, gpu.reduce,
        "sum", x, axis)
    end
    raises("InvalidArgument", { "axis: 1 to 2 expected, got 1.5" }, gpu.reduce, "sum", x, { axis = 1.5 })
    raises("InvalidArgument", { "axis: 1 to 2 expected, got nan" }, gpu.reduce, "sum", x, math.abs(nan))
    raises("InvalidArgument", { "axis: 1 to 2 expected, got string" }, gpu.reduce, "sum", x, { axis = "1" })
    assert.are.same({ 4, 4, 4 }, gpu.reduce("sum", x, 1.0):read())
    raises("InvalidArgument", { "a name, a buffer and an axis or a table expected, got 4 arguments" }, gpu.reduce,
      "sum", x, 1, { out = s })
    raises("InvalidArgument", { "an axis or a table", "got buffer" }, gpu.reduce, "sum", x, x)
    raises("InvalidArgument", { "it has no option 'axes'; there are: axis, label, out, stream" },
      gpu.reduce, "sum", x, { axes = 1 })
    raises("InvalidArgument", { "out: a buffer or a scalar expected, got number" }, gpu.reduce, "sum", x, { out = 1 })
    raises("InvalidArgument", { "out has the shape 4, that of the result is 3" }, gpu.reduce, "sum", x,
      { axis = 1, out = dev:buffer("f32", 4) })
    raises("InvalidArgument", { "out has the shape 3 x 1, that of the result is 3" }, gpu.reduce, "sum", x,
      { axis = 1, out = dev:buffer("f32", { 3, 1 }) })
    raises("InvalidArgument", { "out has the shape one element, that of the result is 3" }, gpu.reduce, "sum", x,
      { axis = 1, out = s })
    raises("InvalidArgument", { "out has the shape 2, that of the result is one element" }, gpu.reduce, "sum", x,
      { out = dev:buffer("f32", 2) })
    raises("InvalidArgument", { "the result, f32, does not fit out, which is i32" }, gpu.reduce, "sum", x,
      { out = dev:buffer("i32", 1) })
    raises("InvalidArgument", { "the result, i64, does not fit out, which is i32" }, gpu.reduce, "argmax", x,
      { out = dev:buffer("i32", 1) })
    raises("InvalidArgument", { "the result, c64, does not fit out, which is f32" }, gpu.reduce, "sum", c, { out = s })
    raises("InvalidArgument", { "the result, f32, does not fit out, which is c64" }, gpu.reduce, "sum", x,
      { out = c:slice(1, 1) })
    raises("InvalidArgument", { "x and out share memory" }, gpu.reduce, "sum", x,
      { out = x:view("f32", 12):slice(12, 12) })
    for _, op in ipairs { "max", "min", "argmax", "argmin" } do
      raises("InvalidArgument", { "complex numbers (c64) have no order" }, gpu.reduce, op, c)
    end
    raises("Unsupported", { "'prod' of complex numbers (c64)" }, gpu.reduce, "prod", c)
    raises("InvalidArgument", { "stream of launch" }, gpu.reduce, "sum", x, { stream = 5 })
    local other <close> = support.open()
    raises("InvalidArgument", { "out on another device" }, gpu.reduce, "sum", x, { out = other:buffer("f32", 1) })
    local closed = dev:buffer("f32", 3)
    closed:close()
    raises("Closed", { "reduce: sum: attempt to use a closed buffer" }, gpu.reduce, "sum", closed)
    raises("Closed", { "reduce: out: attempt to use a closed buffer" }, gpu.reduce, "sum", x, { out = closed })
    local freed = dev:buffer("f32", 3):fill(1)
    freed:slice(1, 3):free()
    raises("UseAfterFree", {}, gpu.reduce, "sum", freed)
    support.works(dev)
  end)

  it("captures nothing of itself where a kernel of it is not there yet", function()
    local step <const> = reduction.step "i16"
    local short <close> = dev:buffer("i16", 10):fill(1)
    local long <close> = dev:buffer("i16", step + 1):fill(1)
    local out, other = dev:scalar("i64", 0), dev:scalar("i64", 0)
    local wide <close> = dev:buffer("i16", { 4097, 64 }):fill(1)
    local sums = dev:buffer("i64", 64)
    gpu.reduce("sum", short, { out = out }) -- the first of two kernels that the long one needs
    gpu.reduce("sum", wide:slice(1, 128 * 64):view("i16", { 128, 64 }), { axis = 1, out = sums })
    local capture <close> = dev:capture()
    support.raises("CaptureActive", {}, gpu.reduce, "sum", long, { out = other })
    support.raises("CaptureActive", {}, gpu.reduce, "sum", wide, { axis = 1, out = sums })
    assert.equal("0 nodes", tostring(capture):match "%d+ nodes")
  end)

  it("takes more than 2^31 elements", function()
    local is_quick = dev.kind == "cuda" and dev.memory_bytes > 16 << 30
    if not (is_quick or os.getenv "GPULUA_SLOW") or support.is_checked() then
      pending "wants a GPU with memory, or GPULUA_SLOW=1"
    end
    local n <const> = (1 << 31) + 12345
    local x <close> = dev:buffer("u8", n):fill(1)
    x:slice(n - 5, n - 5):fill(9)
    assert.equal(n + 8, gpu.reduce("sum", x):get())
    assert.equal(n - 5, gpu.reduce("argmax", x):get())
    local rest = n - n % 4
    local sums = gpu.reduce("sum", x:slice(1, rest):view("u8", { rest // 4, 4 }), 1):read()
    assert.equal(rest + (n - 5 <= rest and 8 or 0), sums[1] + sums[2] + sums[3] + sums[4])
    assert.equal(1, gpu.reduce("max", x:slice(1, rest):view("u8", { rest // 4, 4 }), 2):read(1, 1)[1])
  end)
end)
