-- Comparing arrays: buffers, host buffers, scalars, tables of numbers and numbers, by tolerance or bit by bit. What
-- gpulua.busted's assertions are made of; nothing in here knows busted.

local core = require "gpulua.core"

local compare = {}

local piece <const> = 1 << 16 -- elements that are in Lua at a time

-- By element type: how string.unpack reads one number of it, numbers in one element, and the tolerances: those of
-- torch.testing.assert_close, which has them by type.
local types <const> = {
  i8 = { "b", 1, 0, 0 }, u8 = { "B", 1, 0, 0 }, i16 = { "h", 1, 0, 0 }, u16 = { "H", 1, 0, 0 },
  i32 = { "i4", 1, 0, 0 }, u32 = { "I4", 1, 0, 0 }, i64 = { "i8", 1, 0, 0 }, u64 = { "i8", 1, 0, 0 },
  f16 = { "H", 1, 1e-3, 1e-5 }, bf16 = { "H", 1, 1.6e-2, 1e-5 }, f32 = { "f", 1, 1.3e-6, 1e-5 },
  f64 = { "d", 1, 1e-7, 1e-7 }, c64 = { "f", 2, 1.3e-6, 1e-5 }, c128 = { "d", 2, 1e-7, 1e-7 },
}
local of_numbers <const> = { integer = { 0, 0 }, float = { 1e-7, 1e-7 } } -- of Lua's own

-- ---- numbers ----

local function half(bits)
  local sign, exponent, fraction = bits >> 15, bits >> 10 & 31, bits & 1023
  if exponent == 31 then -- the payload of a NaN goes where a wider NaN has it
    return string.unpack("<d", string.pack("<i8", sign << 63 | 0x7ff << 52 | fraction << 42))
  end
  local value = exponent == 0 and fraction * 2.0 ^ -24 or (fraction | 1024) * 2.0 ^ (exponent - 25)
  return sign == 1 and -value or value
end

local function brain(bits)
  return (string.unpack("<f", string.pack("<I4", bits << 16)))
end

--- The numbers in `bytes` as a list; complex elements give two each.
local function decode(type_name, bytes)
  local format, list = types[type_name][1], {}
  local width = string.packsize("<" .. format)
  local count, block = #bytes // width, 200
  local many = "<" .. string.rep(format, block)
  local at, n = 1, 0
  while count - n >= block do
    table.move({ string.unpack(many, bytes, at) }, 1, block, n + 1, list)
    at, n = at + block * width, n + block
  end
  for i = n + 1, count do
    list[i], at = string.unpack("<" .. format, bytes, at)
  end
  local convert = type_name == "f16" and half or type_name == "bf16" and brain
  for i = 1, convert and count or 0 do
    list[i] = convert(list[i])
  end
  return list
end

--- An integer whose sign bit counts as 2^63.
local function unsigned_text(x)
  local tens = (x >> 1) // 5
  return x >= 0 and string.format("%d", x) or string.format("%d%d", tens, x - tens * 10)
end

--- The shortest text of a number that reads as the same number.
local function text_of(x, type_name)
  if math.type(x) == "integer" then
    return type_name == "u64" and unsigned_text(x) or string.format("%d", x)
  elseif x ~= x then
    return "nan"
  elseif x == math.floor(x) and math.abs(x) < 1e15 and 1 / x ~= -math.huge then
    return string.format("%.1f", x)
  end
  local single = type_name and types[type_name][1] ~= "d"
  for digits = 1, single and 9 or 17 do
    local text = string.format("%." .. digits .. "g", x)
    local read = tonumber(text) -- nil: inf
    if read == x or not read or single and string.pack("<f", read) == string.pack("<f", x) then
      return text
    end
  end
  return string.format("%.17g", x)
end

-- ---- what can be compared ----

--- Of a table of numbers, nested as deep as it has dimensions: a flat list and the shape. Errors are texts.
local function flatten(list)
  local shape, level, seen = {}, list, {}
  while type(level) == "table" do
    if seen[level] then
      error("it holds itself, which cannot be compared", 0)
    end
    seen[level] = true
    shape[#shape + 1] = #level
    level = level[1]
  end
  local depth, flat, n = #shape, {}, 0
  local function place(path)
    return #path == 0 and "it" or "[" .. table.concat(path, "][") .. "]"
  end
  local function walk(t, dimension, path)
    local count = 0
    for key in next, t do
      count = count + 1
      if math.type(key) ~= "integer" or key < 1 or key > #t then
        error(string.format("%s has the key %s, and is no list of numbers", place(path), tostring(key)), 0)
      end
    end
    if count ~= #t then
      error(string.format("%s has holes", place(path)), 0)
    elseif count ~= shape[dimension] then
      error(string.format("%s has %d elements, where the first has %d", place(path), count, shape[dimension]), 0)
    end
    for i = 1, count do
      local value = t[i]
      if dimension < depth and type(value) == "table" then
        path[dimension] = i
        walk(value, dimension + 1, path)
        path[dimension] = nil
      elseif dimension == depth and type(value) == "number" then
        n = n + 1
        flat[n] = value
      else
        path[dimension] = i
        error(string.format("%s is a %s, where a %s is expected", place(path), core.type(value) or type(value),
          dimension < depth and "table" or "number"), 0)
      end
    end
  end
  walk(list, 1, {})
  return flat, shape
end

local function shape_text(shape)
  return "{" .. table.concat(shape, ", ") .. "}"
end

-- An array is { text = what it is, type = element type or nil for Lua's numbers, shape = list or nil, count = elements,
-- is_single = a number, that stands for any count, reals(i, j) = their numbers as a list, bytes(i, j) of those with a
-- type, rtol, atol }.

local function of_handle(value, kind)
  local shape = kind == "buffer" and value.shape or { #value }
  local kind_of = types[value.type]
  local array = { text = tostring(value), type = value.type, shape = shape, count = #value, device = value.device,
    rtol = kind_of[3], atol = kind_of[4] }
  function array.bytes(i, j)
    return value:bytes(i, j)
  end
  function array.reals(i, j)
    return kind_of[2] == 1 and value:read(i, j) or decode(value.type, value:bytes(i, j))
  end
  return array
end

local function of_list(list, shape)
  local kind, is_wide = "integer", false
  for i = 1, #list do
    local value = list[i]
    if math.type(value) == "float" then
      kind = "float"
    elseif value > 1 << 53 or value < -(1 << 53) then
      is_wide = true
    end
  end
  local tolerance = of_numbers[kind]
  return { text = #shape > 1 and string.format("a table of %s numbers", shape_text(shape)) or
    string.format("a table of %d number%s", #list, #list == 1 and "" or "s"),
    shape = shape, count = #list, is_wide = is_wide, rtol = tolerance[1], atol = tolerance[2], list = list,
    reals = function(i, j)
      return i == 1 and j == #list and list or table.move(list, i, j, 1, {})
    end }
end

--- Numbers as an element type has them, converted as an upload would: an array with bytes.
local function typed(array, like)
  local list, width = array.reals(1, array.count), types[like.type][2]
  local host <close> = like.device:host(width == 2 and (like.type == "c64" and "f32" or "f64") or like.type,
    math.max(#list, 1))
  local bytes = #list == 0 and "" or host:write(list):bytes()
  local size = types[like.type][1] and string.packsize("<" .. types[like.type][1]) * width
  local made = { text = array.text, type = like.type, shape = array.shape, count = array.count,
    is_single = array.is_single }
  function made.bytes(i, j)
    return array.is_single and string.rep(bytes, j - i + 1) or string.sub(bytes, (i - 1) * size + 1, j * size)
  end
  return made
end

local function of_scalar(value)
  local got, kind_of = value:get(), types[value.type]
  local list = type(got) == "table" and got or { got }
  local array = { text = tostring(value), type = value.type, shape = { 1 }, count = 1, is_single = true,
    device = value.device, rtol = kind_of[3], atol = kind_of[4] }
  function array.bytes(i, j)
    array.bytes = typed(array, array).bytes
    return array.bytes(i, j)
  end
  function array.reals()
    return list
  end
  return array
end

--- value -> array, or nil, what is wrong with it.
local function array_of(value)
  local kind = core.type(value)
  if kind == "buffer" or kind == "host buffer" then
    return of_handle(value, kind)
  elseif kind == "scalar" then
    return of_scalar(value)
  elseif type(value) == "number" then
    local array = of_list({ value }, { 1 })
    array.is_single, array.text = true, "the number " .. text_of(value)
    return array
  elseif type(value) == "table" then
    local ok, list, shape = pcall(flatten, value)
    if not ok then
      return nil, list
    end
    return of_list(list, shape)
  end
  return nil, string.format("a number, a table of numbers, a buffer, a host buffer or a scalar is expected, got %s",
    kind and "a " .. kind or value == nil and "nil" or "a " .. type(value))
end

local function is_complex(array)
  return array.type ~= nil and types[array.type][2] == 2
end

--- Beside complex elements: a table's pairs are one element each, and real numbers have no imaginary part.
local function as_complex(array)
  if is_complex(array) then
    return array
  end
  local rest = {}
  for name, value in pairs(array) do
    rest[name] = value
  end
  local shape = array.shape
  if not array.type and not array.is_single and #shape > 1 and shape[#shape] == 2 then
    rest.shape, rest.count = table.move(shape, 1, #shape - 1, 1, {}), array.count // 2
    rest.reals = function(i, j)
      return array.reals(2 * i - 1, 2 * j)
    end
    return rest
  end
  rest.reals = function(i, j)
    local pairs_of = {}
    for k, x in ipairs(array.reals(i, j)) do
      pairs_of[2 * k - 1], pairs_of[2 * k] = x, 0
    end
    return pairs_of
  end
  return rest
end

--- What keeps two arrays from being compared element by element; nil: nothing. A flat table has no shape of its own:
-- it is what `read` gives for every shape.
local function misfit(a, b)
  if a.is_single or b.is_single then
    return nil
  end
  local is_free = #a.shape == 1 and not a.type or #b.shape == 1 and not b.type
  if a.count ~= b.count and is_free then
    return string.format("the numbers of elements differ: %d and %d", a.count, b.count)
  elseif not is_free and shape_text(a.shape) ~= shape_text(b.shape) then
    return string.format("the shapes differ: %s and %s", shape_text(a.shape), shape_text(b.shape))
  end
  return nil
end

local function shape_of(a, b)
  local shape = a.is_single and b.shape or b.is_single and a.shape or #a.shape > #b.shape and a.shape or b.shape
  return shape
end

--- "index 4, [2][1]"
local function index_text(i, shape)
  local text = "index " .. i
  if #shape < 2 then
    return text
  end
  local path, rest = {}, i - 1
  for dimension = #shape, 1, -1 do
    path[dimension] = rest % shape[dimension] + 1
    rest = rest // shape[dimension]
  end
  return string.format("%s, [%s]", text, table.concat(path, "]["))
end

local function element_text(array, reals)
  local type_name = array.type
  if #reals == 1 then
    return text_of(reals[1], type_name)
  end
  local imaginary = text_of(reals[2], type_name)
  return text_of(reals[1], type_name) .. (string.find(imaginary, "^%-") and "" or "+") .. imaginary .. "i"
end

local function share_text(count, total)
  return string.format("%d of %d element%s differ%s (%.3g %%)", count, total, total == 1 and "" or "s",
    total == 1 and "s" or "", 100 * count / total)
end

-- ---- by tolerance ----

local function float_of(x, is_unsigned)
  return is_unsigned and math.type(x) == "integer" and x < 0 and x + 2.0 ^ 64 or x + 0.0
end

--- |x - y|, zero only if they are equal, also of integers that are no floats.
local function distance(x, y, x_unsigned, y_unsigned)
  x, y = math.tointeger(x) or x, math.tointeger(y) or y
  if math.type(x) ~= "integer" or math.type(y) ~= "integer" then
    return x == y and 0.0 or math.abs(float_of(x, x_unsigned) - float_of(y, y_unsigned))
  end
  local x_huge, y_huge = x_unsigned and x < 0, y_unsigned and y < 0
  if x_huge and y < 0 and not y_huge or y_huge and x < 0 and not x_huge then
    return math.abs(float_of(x, x_unsigned) - float_of(y, y_unsigned))
  elseif x_huge ~= y_huge and y_huge or x_huge == y_huge and x < y then
    x, y = y, x
  end
  return float_of(x - y, true)
end

--- Of one number or of two, without overflow.
local function modulus(first, second)
  local large, small = math.max(math.abs(first), math.abs(second)), math.min(math.abs(first), math.abs(second))
  return (large == 0 or large == math.huge) and large or large * math.sqrt(1 + (small / large) ^ 2)
end

--- How far two elements are apart, how large the larger one is, whether both are NaN; x2 and y2: their imaginary
-- parts, or 0.
local function apart(x, x2, y, y2, x_unsigned, y_unsigned)
  local x_nan, y_nan = x ~= x or x2 ~= x2, y ~= y or y2 ~= y2
  if x_nan or y_nan then
    return 0 / 0, 0 / 0, x_nan and y_nan
  end
  return modulus(distance(x, y, x_unsigned, y_unsigned), distance(x2, y2)),
    math.max(modulus(float_of(x, x_unsigned), x2), modulus(float_of(y, y_unsigned), y2)), false
end

local function is_close(difference, larger, both_nan, options)
  if difference == 0 or both_nan and options.equal_nan then
    return true
  end
  return difference < math.huge and difference <= options.atol + options.rtol * larger
end

--- All of one piece, quickly: numbers that floats hold exactly. True: one may not be close. Of a complex number the
-- parts are looked at one by one, which is enough where it says that they are close.
local function may_be_far(xs, ys, n, rtol, atol)
  local huge <const> = math.huge
  for k = 1, n do
    local x, y = xs[k], ys[k]
    local difference = x - y
    if difference < 0 then
      difference = -difference
    end
    if x < 0 then
      x = -x
    end
    if y < 0 then
      y = -y
    end
    if not (difference <= atol + rtol * (x > y and x or y) and difference < huge) then
      return true
    end
  end
  return nil
end

local function constant(array, n)
  local reals, list = array.reals(1, 1), {}
  for k = 1, n * #reals do
    list[k] = reals[(k - 1) % #reals + 1]
  end
  return list
end

--- Calls f(xs, ys, first, count) for each piece of both until it returns something, which is returned.
local function in_pieces(a, b, f)
  local count = a.is_single and b.count or a.count
  local kept_a, kept_b = a.is_single and constant(a, math.min(count, piece)), b.is_single and constant(b,
    math.min(count, piece))
  for first = 1, count, piece do
    local last = math.min(first + piece - 1, count)
    local result = f(kept_a or a.reals(first, last), kept_b or b.reals(first, last), first, last - first + 1)
    if result then
      return result
    end
  end
  return nil
end

local function is_unsigned(array, other)
  return array.type == "u64" or not array.type and other.type == "u64"
end

--- May it have integers that floats cannot hold?
local function is_wide(array)
  return array.is_wide or array.type == "i64" or array.type == "u64"
end

local function tell_far(a, b, options, width, shape, count)
  local a_unsigned, b_unsigned = a.is_unsigned, b.is_unsigned
  local is_exact = width == 1 and not is_wide(a) and not is_wide(b) -- floats hold all of it
  local first, first_text, far, nans = nil, nil, 0, 0
  local largest, relative = { 0 }, { 0 }
  in_pieces(a, b, function(xs, ys, start, n)
    for k = 1, n do
      local x, y, x2, y2 = xs[k], ys[k], 0, 0
      if width == 2 then
        x, y, x2, y2 = xs[2 * k - 1], ys[2 * k - 1], xs[2 * k], ys[2 * k]
      end
      if x ~= y or x2 ~= y2 or a_unsigned ~= b_unsigned then
        local difference, larger, both_nan = x - y, x, nil
        if is_exact then
          difference, x, y = difference < 0 and -difference or difference, x < 0 and -x or x, y < 0 and -y or y
          larger = x > y and x or y
        end
        if not is_exact or not (difference < math.huge) then
          difference, larger, both_nan = apart(xs[width * k - width + 1], x2, ys[width * k - width + 1], y2, a_unsigned,
            b_unsigned)
        end
        if not is_close(difference, larger, both_nan, options) then
          local i = start + k - 1
          far, nans = far + 1, nans + (both_nan and 1 or 0)
          if not first then
            first = i
            first_text = element_text(a, table.move(xs, width * k - width + 1, width * k, 1, {})) .. " and " ..
              element_text(b, table.move(ys, width * k - width + 1, width * k, 1, {}))
          end
          if difference > largest[1] then
            largest = { difference, i }
          end
          local of_larger = larger == math.huge and math.huge or difference / larger
          if difference > 0 and of_larger > relative[1] then
            relative = { of_larger, i }
          end
        end
      end
    end
  end)
  if not first then
    return nil
  end
  local lines = { string.format("first difference at %s: %s", index_text(first, shape), first_text),
    share_text(far, count) }
  for _, entry in ipairs { { "absolute", largest }, { "relative", relative } } do
    local found = entry[2]
    lines[#lines + 1] = found[2] and string.format("largest %s difference: %.4g, at %s", entry[1], found[1],
      index_text(found[2], shape))
  end
  if not largest[2] then
    lines[#lines + 1] = "all that differ are NaN on one side at least"
  end
  if nans > 0 then
    lines[#lines + 1] = string.format("NaN on both sides at %d of them: with equal_nan = true that is close", nans)
  end
  return table.concat(lines, "\n")
end

local function option_number(options, name)
  local value = options[name]
  if value ~= nil and (type(value) ~= "number" or not (value >= 0)) then
    return nil, string.format("%s: a number from 0 on expected, got %s", name, tostring(value))
  end
  return true
end

-- Both, or nil, what is wrong with one of them, its number.
local function arrays_of(first, second)
  local a, problem = array_of(first)
  if not a then
    return nil, problem, 1
  end
  local b, problem_of_b = array_of(second)
  if not b then
    return nil, problem_of_b, 2
  end
  return a, b
end

--- allclose(a, b[, { rtol =, atol =, equal_nan = }]) -> true or false, what there is to say; or nil, what is wrong
-- with argument number n, n. Close are x and y with |x - y| <= atol + rtol * max(|x|, |y|), whichever comes first;
-- infinities of one sign are, NaNs are with equal_nan.
function compare.allclose(first, second, given)
  if given ~= nil and type(given) ~= "table" then
    return nil, string.format("a table { rtol =, atol =, equal_nan = } is expected, got %s", type(given)), 3
  end
  for name, value in pairs(given or {}) do
    local ok, problem = true, nil
    if name == "rtol" or name == "atol" then
      ok, problem = option_number(given, name)
    elseif name ~= "equal_nan" then
      ok, problem = false, string.format("there is no option '%s'; there are: rtol, atol, equal_nan", tostring(name))
    elseif type(value) ~= "boolean" then
      ok, problem = false, string.format("equal_nan: true or false expected, got %s", tostring(value))
    end
    if not ok then
      return nil, problem, 3
    end
  end
  local a, b, number = arrays_of(first, second)
  if not a then
    return nil, b, number
  end
  local width = (is_complex(a) or is_complex(b)) and 2 or 1
  if width == 2 then
    a, b = as_complex(a), as_complex(b)
  end
  given = given or {}
  local options = { rtol = given.rtol or math.max(a.rtol, b.rtol), atol = given.atol or math.max(a.atol, b.atol),
    equal_nan = given.equal_nan }
  local what = string.format("a: %s\nb: %s", a.text, b.text)
  local head = string.format("rtol %.4g, atol %.4g", options.rtol, options.atol)
  local wrong = misfit(a, b)
  if wrong then
    return false, string.format("%s\n%s", what, wrong), head
  end
  local shape = shape_of(a, b)
  local count = a.is_single and b.count or a.count
  -- "u64 wraps": Lua's integers beside it are meant the same way.
  a.is_unsigned, b.is_unsigned = is_unsigned(a, b), is_unsigned(b, a)
  local doubtful = is_wide(a) or is_wide(b) or in_pieces(a, b, function(xs, ys, _, n)
    return may_be_far(xs, ys, n * width, options.rtol / width, options.atol / width)
  end)
  local text = doubtful and tell_far(a, b, options, width, shape, count)
  if text then
    return false, string.format("%s\n%s", what, text), head
  end
  return true, string.format("%s\nall %d elements are", what, count), head
end

-- ---- bit by bit ----

local function hex(bytes)
  return "0x" .. string.gsub(string.reverse(bytes), ".", function(c) return string.format("%02x", string.byte(c)) end)
end

local function bits_text(array, i)
  local width = types[array.type][2]
  local bytes = array.bytes(i, i)
  local half_length = #bytes // width
  local words = hex(string.sub(bytes, 1, half_length))
    .. (width == 2 and " " .. hex(string.sub(bytes, half_length + 1)) or "")
  return string.format("%s (%s)", element_text(array, decode(array.type, bytes)), words)
end

local function number_text(x)
  if math.type(x) == "integer" then
    return string.format("%d (an integer)", x)
  end
  return string.format("%s (%s)", text_of(x), hex(string.pack("<d", x)))
end

local function is_same_number(x, y)
  return math.type(x) == math.type(y) and (math.type(x) == "integer" and x == y or math.type(x) == "float" and
    string.pack("<d", x) == string.pack("<d", y))
end

local function differing(a, b, count, shape)
  local first, differ = nil, 0
  if a.type then
    local size = #a.bytes(1, 1)
    for start = 1, count, piece do
      local last = math.min(start + piece - 1, count)
      local xs, ys = a.bytes(start, last), b.bytes(start, last)
      for i = start, xs ~= ys and last or start - 1 do
        local from, to = (i - start) * size + 1, (i - start + 1) * size
        if string.sub(xs, from, to) ~= string.sub(ys, from, to) then
          first, differ = first or i, differ + 1
        end
      end
    end
  else
    in_pieces(a, b, function(xs, ys, start, n)
      for k = 1, n do
        if not is_same_number(xs[k], ys[k]) then
          first, differ = first or start + k - 1, differ + 1
        end
      end
    end)
  end
  if not first then
    return nil
  end
  local function text(array)
    local i = array.is_single and 1 or first
    return array.type and bits_text(array, i) or number_text(array.reals(i, i)[1])
  end
  return string.format("first difference at %s: %s and %s\n%s", index_text(first, shape), text(a), text(b),
    share_text(differ, count))
end

local function same_bits(a, b)
  if a.type and b.type and a.type ~= b.type then
    return false, string.format("the element types differ: %s and %s", a.type, b.type)
  elseif a.type or b.type then
    if is_complex(a) or is_complex(b) then
      a, b = as_complex(a), as_complex(b)
    end
  end
  local wrong = misfit(a, b)
  if wrong then
    return false, wrong
  end
  local count = a.is_single and b.count or a.count
  if count > 0 and a.type and not b.type then
    b = typed(b, a)
  elseif count > 0 and b.type and not a.type then
    a = typed(a, b)
  end
  local text = count > 0 and differing(a, b, count, shape_of(a, b)) or nil
  return text == nil, text or string.format("all %d elements are", count)
end

--- bitequal(a, b) -> true or false, what there is to say; or nil, what is wrong with argument number n, n. Of elements
-- with a type the bits are compared; numbers beside them are converted to that type first, as `upload` does it. Of two
-- tables the numbers are: a float is no integer, -0.0 is not 0.0, and NaNs differ by their payload.
function compare.bitequal(first, second)
  local a, b, number = arrays_of(first, second)
  if not a then
    return nil, b, number
  end
  local ok, text = same_bits(a, b)
  return ok, string.format("a: %s\nb: %s\n%s", a.text, b.text, text)
end

-- ---- results, kept and compared later ----

local function frozen_array(value, kind)
  local bytes = value:bytes()
  local size = #value > 0 and #bytes // #value or 1
  local array = { text = tostring(value), type = value.type, count = #value,
    shape = kind == "buffer" and table.move(value.shape, 1, #value.shape, 1, {}) or { #value } }
  function array.bytes(i, j)
    return string.sub(bytes, (i - 1) * size + 1, j * size)
  end
  return { array = array }
end

--- A copy of what a function has returned that outlives its device: numbers, strings, booleans, nil, buffers, host
-- buffers, scalars, and tables of these. Anything else: nil, and what it is. `above`: the tables that it is in.
function compare.freeze(value, path, above)
  path, above = path or "", above or {}
  local kind = core.type(value)
  if kind == "buffer" or kind == "host buffer" then
    return frozen_array(value, kind)
  elseif kind == "scalar" then
    return compare.freeze(value:get(), path)
  elseif kind == nil and type(value) == "table" then
    if above[value] then
      return nil, string.format("%s holds itself, which cannot be compared", path)
    end
    above[value] = true
    local fields = {}
    for key, field in pairs(value) do
      if type(key) ~= "string" and type(key) ~= "number" and type(key) ~= "boolean" then
        return nil, string.format("%s has a key that is a %s", path, type(key))
      end
      local at = math.type(key) == "integer" and string.format("%s[%d]", path, key)
        or string.format("%s.%s", path, tostring(key))
      local problem
      fields[key], problem = compare.freeze(field, at, above)
      if fields[key] == nil then
        return nil, problem
      end
    end
    above[value] = nil
    return { fields = fields }
  elseif kind == nil and (value == nil or type(value) == "number" or type(value) == "string" or
    type(value) == "boolean") then
    return { plain = value }
  end
  return nil, string.format("%s is a %s, which cannot be compared", path, kind or type(value))
end

local function plain_text(value)
  if type(value) == "number" then
    return number_text(value)
  end
  return type(value) == "string" and string.format("%q", #value > 60 and string.sub(value, 1, 57) .. "..." or value)
    or tostring(value)
end

--- What differs between two frozen values, bit by bit: nil, or a text that begins with the place.
function compare.difference(a, b, path)
  if a.array and b.array then
    local ok, text = same_bits(a.array, b.array)
    return not ok and string.format("%s: %s", path, text) or nil
  elseif a.fields and b.fields then
    local keys = {}
    for _, fields in ipairs { a.fields, b.fields } do
      for key in pairs(fields) do
        keys[tostring(key)] = key
      end
    end
    local names = {}
    for name in pairs(keys) do
      names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
      local key = keys[name]
      local at = math.type(key) == "integer" and string.format("%s[%d]", path, key)
        or string.format("%s.%s", path, name)
      local text = compare.difference(a.fields[key] or {}, b.fields[key] or {}, at)
      if text then
        return text
      end
    end
    return nil
  end
  local is_plain = not (a.array or b.array or a.fields or b.fields)
  local is_same = is_plain and (type(a.plain) == "number" and type(b.plain) == "number" and
    is_same_number(a.plain, b.plain) or a.plain == b.plain and type(a.plain) ~= "number")
  if is_same then
    return nil
  end
  local function text(x)
    return x.array and x.array.text or x.fields and "a table" or plain_text(x.plain)
  end
  return string.format("%s: %s and %s", path, text(a), text(b))
end



return compare
