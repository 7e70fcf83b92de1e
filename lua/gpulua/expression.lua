-- Expressions of gpu.map as CUDA C: reading them, the types of what they compute, and the code.
--
-- An expression has Lua's operators and precedence: + - * / // % ^, unary -, == ~= < <= > >=, and or not, & | ~ << >>;
-- functions are below.
--
-- Types. Buffers and scalars of the device have theirs, numbers of the script have none: they take that of what they
-- meet. Of two floats the wider one counts (f16 with bf16: f32), of a float and an integer the float; of two integers
-- the wider one, and of a signed and an unsigned one a signed one that holds both (u64 with a signed one: an error).
-- Integers wrap around, also where the sign of an unsigned one is turned. Where integers meet a number with a fraction,
-- / or a function of real numbers, they become f32 (8 and 16 bits) or f64. f16 and bf16 are computed in f32, and
-- rounded when they are stored. Conditions are no numbers: where(c, x, y) chooses; a new buffer of them is u8, of 1 and
-- 0. What is stored must fit the type of `out`: floats into floats, integers into floats and into integers that hold
-- them all; i32(x), f32(x), u8(x) and so on convert (floats to integers: the nearest one that there is, towards zero;
-- not a number: 0). An integer divided by 0 with // or % is 0.

local core = require "gpulua.core"

local c_type <const> = {
  i8 = "signed char", u8 = "unsigned char", i16 = "short", u16 = "unsigned short", i32 = "int", u32 = "unsigned",
  i64 = "long long", u64 = "unsigned long long", f16 = "float", bf16 = "float", f32 = "float", f64 = "double",
  bool = "bool", int = "long long", real = "double",
}
local bits <const> = { i8 = 8, u8 = 8, i16 = 16, u16 = 16, i32 = 32, u32 = 32, i64 = 64, u64 = 64 }
local float_rank <const> = { f16 = 1, bf16 = 1, f32 = 2, f64 = 3 }

local function is_signed(t) return string.sub(t, 1, 1) == "i" end
-- Numbers of the script.
local function is_weak(t) return t == "int" or t == "real" end

-- ---- reading ----

local symbols <const> = { "//", "<<", ">>", "==", "~=", "<=", ">=" }

-- The next token behind `at`: kind ("number", "name", "end" or the symbol itself), text, where it begins and ends.
local function token(text, at)
  at = string.find(text, "%S", at) or #text + 1
  if at > #text then
    return "end", "the end", at, at
  end
  local number = string.match(text, "^0[xX]%x+", at) or string.match(text, "^%d+%.?%d*[eE][+-]?%d+", at)
    or string.match(text, "^%.%d+[eE][+-]?%d+", at) or string.match(text, "^%d+%.?%d*", at)
    or string.match(text, "^%.%d+", at)
  if number and not string.find(text, "^[%w_.]", at + #number) then
    return "number", number, at, at + #number
  end
  local name = string.match(text, "^[%a_][%w_]*", at)
  if name then
    return "name", name, at, at + #name
  end
  for _, symbol in ipairs(symbols) do
    if string.sub(text, at, at + 1) == symbol then
      return symbol, symbol, at, at + 2
    end
  end
  local symbol = string.match(text, "^" .. utf8.charpattern, at) or string.sub(text, at, at)
  return symbol, symbol, at, at + #symbol
end

-- What other languages write, and how it is said here.
local instead <const> = { ["?"] = "where(c, x, y) chooses", ["!"] = "it is 'not' and '~=' here",
  ["&"] = "'and' joins conditions, one & bits", ["|"] = "'or' joins conditions, one | bits", ["="] = "it is '==' here",
  ["*"] = "'^' is the power", ["["] = "a name is the element at this place, index the place" }
local function instead_of(symbol)
  return instead[symbol] and ": " .. instead[symbol] or ""
end

local function fail(self, message, at, hint)
  local said = string.format("map: %s, at %d of '%s'", message, at or self.at, self.text)
  core.raise("InvalidArgument", string.gsub(said, "\0", "\\0"), hint)
end

local function advance(self)
  self.kind, self.token, self.at, self.next = token(self.text, self.next)
end

local function expect(self, kind)
  if self.kind ~= kind then
    fail(self, string.format("'%s' expected, got '%s'", kind, self.token))
  end
  advance(self)
end

-- ---- types of what is computed ----

local function node(code, t, more)
  more = more or {}
  more.code, more.type = code, t
  return more
end

local function fits(value, t)
  if t == "u64" then
    return value >= 0
  end
  local low = is_signed(t) and -(1 << (bits[t] - 1)) or 0
  local high = is_signed(t) and (1 << (bits[t] - 1)) - 1 or (1 << bits[t]) - 1
  return t == "i64" or value >= low and value <= high
end

local choices_max <const> = 64

-- What x may be, each value once: itself, or what conditions choose from.
local function alternatives(x, list, seen)
  for _, choice in ipairs(x.choices or {}) do
    alternatives(choice, list, seen)
  end
  if not x.choices and not (x.value and seen[x.value]) then
    list[#list + 1] = x
    seen[x.value or x] = true
  end
  return list
end

local computed

-- What comes of all that conditions choose from: choices, or is_many, where they are more than choices_max. (Two nodes
-- at most: functions of more are made of such.)
local function computed_choices(f, x, y)
  local xs, ys = alternatives(x, {}, {}), y and alternatives(y, {}, {}) or { false }
  local choices, seen = {}, {}
  for _, first in ipairs(xs) do
    for _, second in ipairs(ys) do
      local made = computed(f, first, second or nil)
      if made and not (made.value and seen[made.value]) then
        made.type = "int"
        choices[#choices + 1] = made
        seen[made.value or made] = true
      end
      if #choices > choices_max or #xs * #ys > choices_max ^ 2 then
        return { is_many = true }
      end
    end
  end
  return { choices = choices }
end

-- Also what is computed of integers of the script alone is known, at the call at the latest. What a node has then: its
-- value, or value_of(arguments), or what a condition chooses of such; nil where one of the nodes has neither.
function computed(f, ...)
  local nodes, is_known = { ... }, true
  for _, x in ipairs(nodes) do
    if x.type == "int" and x.is_many then
      return { is_many = true }
    elseif x.choices and nodes[1].type == "int" and (not nodes[2] or nodes[2].type == "int") then
      return computed_choices(f, ...)
    end
  end
  for _, x in ipairs(nodes) do
    if x.type ~= "int" or not x.value and not x.value_of then
      return nil
    end
    is_known = is_known and x.value
  end
  local function value_of(arguments)
    local values = {}
    for i, x in ipairs(nodes) do
      values[i] = x.value or x.value_of(arguments)
    end
    return f(table.unpack(values))
  end
  return is_known and { value = value_of() } or { value_of = value_of }
end

-- Numbers of the script, or what a condition chooses of them, have to fit an integer type.
local function check_fits(self, x, t, at)
  at = x.at or at
  if x.value and not fits(x.value, t) and not (t == "u64" and x.is_hex) then
    fail(self, string.format("%d does not fit %s", x.value, t), at)
  elseif x.value_of then
    self.checks[#self.checks + 1] = { name = x.name, at = at, value_of = x.value_of, type = t }
  elseif x.is_many and t ~= "i64" then
    fail(self, string.format("more than %d numbers are chosen from to say whether they fit %s", choices_max, t), at,
      string.format("give them their type where they are chosen: where(c, %s(1), 2)", t))
  end
  for _, choice in ipairs(x.choices or {}) do
    check_fits(self, choice, t, at)
  end
end

-- The same value in type t.
local function convert(self, x, t)
  if x.type == t then
    return x.code
  elseif x.type == "bool" then
    fail(self, "a condition is no number: where(c, x, y) chooses", x.at)
  elseif bits[t] and x.type == "int" then
    check_fits(self, x, t)
  end
  return string.format("(%s)%s", c_type[t], x.code)
end

-- What integers become where a real number is wanted.
local function real_of(t)
  return t == "int" and "real" or bits[t] and (bits[t] <= 16 and "f32" or "f64") or t
end

local function common(self, a, b)
  local t, u = a.type, b.type
  if t == u then
    return t
  elseif t == "bool" or u == "bool" then
    fail(self, "a condition is no number: where(c, x, y) chooses", t == "bool" and a.at or b.at)
  elseif is_weak(t) and is_weak(u) then
    return "real"
  elseif is_weak(t) then
    return t == "real" and real_of(u) or u
  elseif is_weak(u) then
    return u == "real" and real_of(t) or t
  elseif float_rank[t] and float_rank[u] then
    return float_rank[t] > float_rank[u] and t or float_rank[t] < float_rank[u] and u or "f32"
  elseif float_rank[t] or float_rank[u] then
    return float_rank[t] and t or u
  elseif is_signed(t) == is_signed(u) then
    return bits[t] > bits[u] and t or u
  end
  local signed, other = is_signed(t) and t or u, is_signed(t) and u or t
  if bits[signed] > bits[other] then
    return signed
  elseif other == "u64" then
    fail(self, string.format("no integer holds %s and u64: convert one", signed), b.at)
  end
  return "i" .. 2 * bits[other]
end

local function check_number(self, x)
  if x.type == "bool" then
    fail(self, "a condition is no number: where(c, x, y) chooses", x.at)
  end
  return x
end

local function check_condition(self, x)
  if x.type ~= "bool" then
    fail(self, "a condition expected: a comparison, say; where(c, x, y) chooses", x.at)
  end
  return x.code
end

local function is_integer(t) return bits[t] ~= nil or t == "int" end
local function unsigned(t) return t == "int" and "unsigned long long" or c_type["u" .. bits[t]] end

-- ---- operators ----

local function both(self, a, b, t)
  return convert(self, a, t), convert(self, b, t)
end

local on_integers <const> = {
  ["+"] = function(a, b) return a + b end, ["-"] = function(a, b) return a - b end,
  ["*"] = function(a, b) return a * b end, ["//"] = function(a, b) return b == 0 and 0 or a // b end,
  ["%"] = function(a, b) return b == 0 and 0 or a % b end, ["&"] = function(a, b) return a & b end,
  ["|"] = function(a, b) return a | b end, ["~"] = function(a, b) return a ~ b end,
  ["<<"] = function(a, b) return a << b end, [">>"] = function(a, b) return a >> b end,
}

-- (Of 8 and 16 bits as unsigned: C would compute them in int, which does not wrap around.)
local function wrapping(self, a, op, b)
  local t = common(self, check_number(self, a), check_number(self, b))
  local x, y = both(self, a, b, t)
  if is_integer(t) then
    local u = bits[t] and bits[t] < 32 and "unsigned" or unsigned(t)
    return node(string.format("(%s)((%s)%s %s (%s)%s)", c_type[t], u, x, op, u, y), t, computed(on_integers[op], a, b))
  end
  return node(string.format("(%s %s %s)", x, op, y), t)
end

local function divided(self, a, _, b)
  local t = real_of(common(self, check_number(self, a), check_number(self, b)))
  local x, y = both(self, a, b, t)
  return node(string.format("(%s / %s)", x, y), t)
end

local function floored(self, a, op, b)
  local t = common(self, check_number(self, a), check_number(self, b))
  local x, y = both(self, a, b, t)
  return node(string.format("%s<%s>(%s, %s)", op == "%" and "gpulua_mod" or "gpulua_floordiv", c_type[t], x, y), t,
    computed(on_integers[op], a, b))
end

local function power(self, a, _, b)
  local t = real_of(common(self, check_number(self, a), check_number(self, b)))
  local x, y = both(self, a, b, t)
  return node(string.format("pow(%s, %s)", x, y), t)
end

local function compared(self, a, op, b)
  if a.type == "bool" and b.type == "bool" and (op == "==" or op == "~=") then
    return node(string.format("(%s %s %s)", a.code, op == "~=" and "!=" or op, b.code), "bool")
  end
  local x, y = both(self, a, b, common(self, check_number(self, a), check_number(self, b)))
  return node(string.format("(%s %s %s)", x, op == "~=" and "!=" or op, y), "bool")
end

local function logical(self, a, op, b)
  return node(string.format("(%s %s %s)", check_condition(self, a), op == "and" and "&&" or "||",
    check_condition(self, b)), "bool")
end

local function bitwise(self, a, op, b)
  local t = common(self, check_number(self, a), check_number(self, b))
  if not is_integer(t) then
    fail(self, string.format("'%s' wants integers, got %s", op, t), a.at)
  end
  local x, y = both(self, a, b, t)
  return node(string.format("(%s)(%s %s %s)", c_type[t], x, op == "~" and "^" or op, y), t,
    computed(on_integers[op], a, b))
end

-- As in Lua, what is shifted out is gone, also the sign: by as many bits as the left side has, 0.
local function shifted(self, a, op, b)
  local t, count = check_number(self, a).type, check_number(self, b)
  if not is_integer(t) or not is_integer(count.type) then
    fail(self, string.format("'%s' wants integers, got %s and %s", op, t, count.type), a.at)
  end
  local by = count.type == "u64" and string.format("gpulua_min<unsigned long long>(%s, 64)", count.code) or count.code
  return node(string.format("(%s)gpulua_shift<%s>(%s, %s%s)", c_type[t], unsigned(t), a.code,
    op == ">>" and "(long long)(0 - (unsigned long long)" or "(long long)(", by .. ")"), t,
    computed(on_integers[op], a, b))
end

-- Lua's: priority on the left, on the right, and what it does.
local binary <const> = {
  ["or"] = { 1, 1, logical }, ["and"] = { 2, 2, logical },
  ["<"] = { 3, 3, compared }, [">"] = { 3, 3, compared }, ["<="] = { 3, 3, compared }, [">="] = { 3, 3, compared },
  ["=="] = { 3, 3, compared }, ["~="] = { 3, 3, compared },
  ["|"] = { 4, 4, bitwise }, ["~"] = { 5, 5, bitwise }, ["&"] = { 6, 6, bitwise },
  ["<<"] = { 7, 7, shifted }, [">>"] = { 7, 7, shifted },
  ["+"] = { 10, 10, wrapping }, ["-"] = { 10, 10, wrapping }, ["*"] = { 11, 11, wrapping },
  ["/"] = { 11, 11, divided }, ["//"] = { 11, 11, floored }, ["%"] = { 11, 11, floored }, ["^"] = { 14, 13, power },
}
local unary_priority <const> = 12

local unary <const> = {
  ["-"] = function(self, x)
    local t = check_number(self, x).type
    if not is_integer(t) then
      return node(string.format("(-%s)", x.code), t)
    end
    return node(string.format("(%s)(0 - (%s)%s)", c_type[t], unsigned(t), x.code), t,
      computed(function(value) return -value end, x))
  end,
  ["not"] = function(self, x) return node(string.format("(!%s)", check_condition(self, x)), "bool") end,
  ["~"] = function(self, x) -- (a mask is one in any type)
    if not is_integer(x.type) then
      fail(self, string.format("'~' wants an integer, got %s", x.type), x.at)
    end
    return node(string.format("(%s)(~%s)", c_type[x.type], x.code), x.type)
  end,
}

-- ---- functions ----

-- In real numbers: the name in C, of one, two or three arguments.
local real_functions <const> = {
  { "sqrt", "rsqrt", "cbrt", "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "tgamma" },
  { "pow", "atan2", "hypot", "copysign", "fmod" },
  { "fma" },
}
local rounding <const> = { "floor", "ceil", "round", "trunc" }
local asking <const> = { "isnan", "isinf", "isfinite" }

local functions = {} -- name -> { arguments (at least), at most, f(self, arguments) -> node }

for count, names in ipairs(real_functions) do
  for _, name in ipairs(names) do
    functions[name] = { count, count, function(self, args)
      local t = check_number(self, args[1]).type
      for i = 2, count do
        t = common(self, node("", t), check_number(self, args[i]))
      end
      t = real_of(t)
      local codes = {}
      for i = 1, count do
        codes[i] = convert(self, args[i], t)
      end
      return node(string.format("%s(%s)", name, table.concat(codes, ", ")), t)
    end }
  end
end
for _, name in ipairs(rounding) do
  functions[name] = { 1, 1, function(self, args)
    local t = check_number(self, args[1]).type
    return is_integer(t) and args[1] or node(string.format("%s(%s)", name, args[1].code), t)
  end }
end
for _, name in ipairs(asking) do
  functions[name] = { 1, 1, function(self, args)
    local t = check_number(self, args[1]).type
    if is_integer(t) then
      return node(name == "isfinite" and "true" or "false", "bool")
    end
    return node(string.format("(bool)%s(%s)", name, args[1].code), "bool")
  end }
end
functions.abs = { 1, 1, function(self, args)
  local x, t = args[1].code, check_number(self, args[1]).type
  if not is_integer(t) then
    return node(string.format("fabs(%s)", x), t)
  end
  return node(string.sub(t, 1, 1) == "u" and x or string.format("gpulua_abs<%s, %s>(%s)", c_type[t], unsigned(t), x), t,
    computed(function(value) return value < 0 and -value or value end, args[1]))
end }
functions.sign = { 1, 1, function(self, args)
  local x, t = args[1].code, check_number(self, args[1]).type
  return node(string.format("(%s)((%s > 0) - (%s < 0))", c_type[t], x, x), t,
    computed(function(value) return value > 0 and 1 or value < 0 and -1 or 0 end, args[1]))
end }
for _, name in ipairs { "min", "max" } do
  functions[name] = { 2, 16, function(self, args)
    local found = args[1]
    for i = 2, #args do
      local t = common(self, check_number(self, found), check_number(self, args[i]))
      local x, y = both(self, found, args[i], t)
      local f = is_integer(t) and string.format("gpulua_%s<%s>", name, c_type[t]) or "f" .. name
      local made = node(string.format("%s(%s, %s)", f, x, y), t, computed(math[name], found, args[i]))
      made.at = found.at
      found = made
    end
    return found
  end }
end
functions.clamp = { 3, 3, function(self, args)
  local low = functions.max[3](self, { args[1], args[2] })
  return functions.min[3](self, { low, args[3] })
end }
functions.where = { 3, 3, function(self, args)
  local c, t = check_condition(self, args[1]), common(self, args[2], args[3])
  local x, y = both(self, args[2], args[3], t)
  return node(string.format("(%s ? %s : %s)", c, x, y), t, { choices = t == "int" and { args[2], args[3] } or nil })
end }
for _, t in ipairs { "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64" } do
  functions[t] = { 1, 1, function(self, args)
    local x = args[1]
    if x.type == "bool" then
      return node(string.format("(%s)(%s ? 1 : 0)", c_type[t], x.code), t)
    elseif bits[t] and not is_integer(x.type) then
      return node(string.format("gpulua_to<%s>((double)%s, %s, %s)", c_type[t], x.code,
        is_signed(t) and string.format("-%.0f.0", 2.0 ^ (bits[t] - 1)) or "0.0",
        string.format("%.0f.0", 2.0 ^ (is_signed(t) and bits[t] - 1 or bits[t]))), t)
    end
    return node(is_weak(x.type) and convert(self, x, t) or string.format("(%s)%s", c_type[t], x.code), t)
  end }
end

local constants <const> = { pi = "3.14159265358979323846", inf = "__longlong_as_double(0x7ff0000000000000LL)",
  nan = "__longlong_as_double(0x7ff8000000000000LL)" }

-- ---- expressions ----

local expression

local function call(self, name, at)
  local known = functions[name]
  if not known then
    local names = {}
    for known_name in pairs(functions) do
      names[#names + 1] = known_name
    end
    table.sort(names)
    fail(self, string.format("there is no function '%s'", name), at, "there are: " .. table.concat(names, ", "))
  end
  advance(self)
  local args = {}
  if self.kind ~= ")" then
    args[1] = expression(self, 0)
  end
  while self.kind == "," and #args > 0 do
    advance(self)
    args[#args + 1] = expression(self, 0)
  end
  expect(self, ")")
  if #args < known[1] or #args > known[2] then
    local is_more = #args > known[2]
    local limit = is_more and known[2] or known[1]
    local kind = known[1] == known[2] and "" or is_more and "at most " or "at least "
    fail(self, string.format("%s takes %s%d argument%s, got %d", name, kind, limit, limit == 1 and "" or "s",
      #args), at)
  end
  return known[3](self, args)
end

local function variable(self, name, at)
  if name == "index" and self.given.index == nil then
    return node("(i + 1)", "i64")
  elseif constants[name] and self.given[name] == nil then
    return node(constants[name], "real")
  end
  local given = self.given[name]
  if not given then
    fail(self, string.format(functions[name] and "'%s' is a function" or "there is no '%s'", name), at,
      self.kind == "." and "functions have no library in front: sqrt(x), and not math.sqrt(x)" or nil)
  end
  if not given.number then
    self.params[#self.params + 1] = given
    given.number = #self.params
    given.name = name
  end
  return node("v" .. given.number, given.type, given.type == "int"
    and { name = name, value_of = function(arguments) return arguments[name].value end } or nil)
end

local function simple(self)
  local kind, text, at = self.kind, self.token, self.at
  local found
  if kind == "number" then
    local value = tonumber(text)
    advance(self)
    if math.type(value) == "integer" then
      found = node(value == math.mininteger and "(-9223372036854775807LL - 1)" or string.format("%dLL", value), "int",
        { value = value, is_hex = string.find(text, "^0[xX]") ~= nil }) -- u64 takes all of these
    else
      local digits = value < math.huge and string.gsub(string.format("%.17g", value), ",", ".")
        or fail(self, string.format("%s is too large", text), at)
      found = node(string.find(digits, "[.e]") and digits or digits .. ".0", "real")
    end
  elseif kind == "name" and (text == "true" or text == "false") then
    advance(self)
    found = node(text, "bool")
  elseif kind == "name" and text ~= "and" and text ~= "or" and text ~= "not" then
    advance(self)
    found = self.kind == "(" and call(self, text, at) or variable(self, text, at)
  elseif kind == "(" then
    advance(self)
    found = expression(self, 0)
    expect(self, ")")
  else
    fail(self, string.format("a value expected, got '%s'%s", text, instead_of(text)), at)
  end
  found.at = at
  return found
end

local depth_max <const> = 100
local code_max <const> = 400

-- Long code becomes a variable: what is made of it grows neither in length nor in depth with it.
local function settled(self, x)
  if #x.code > code_max then
    local name = "t" .. #self.lets + 1
    self.lets[#self.lets + 1] = string.format("  %s %s = %s;\n", c_type[x.type], name, x.code)
    x.code = name
  end
  return x
end

function expression(self, limit)
  self.depth = self.depth + 1
  if self.depth > depth_max then
    fail(self, string.format("more than %d levels deep", depth_max))
  end
  local left
  local at, op = self.at, self.token
  if unary[op] and (self.kind == op or self.kind == "name") then
    advance(self)
    local operand = expression(self, unary_priority)
    left = settled(self, unary[op](self, operand))
    left.at = at
  else
    left = settled(self, simple(self))
  end
  while binary[self.token] and (self.kind == self.token or self.kind == "name") and binary[self.token][1] > limit do
    op = self.token
    advance(self)
    local right = expression(self, binary[op][2])
    left = settled(self, binary[op][3](self, left, op, right))
    left.at = at
  end
  self.depth = self.depth - 1
  return left
end

-- ---- code ----

local helpers <const> = [[
template <class T> static __device__ __forceinline__ T gpulua_floordiv(T a, T b) {
  if (b == 0) return 0;
  if ((T)-1 < (T)0 && b == (T)-1) return (T)(0ull - (unsigned long long)a);
  T q = (T)(a / b);
  return (T)(a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q);
}
template <> __device__ __forceinline__ float gpulua_floordiv<float>(float a, float b) { return floorf(a / b); }
template <> __device__ __forceinline__ double gpulua_floordiv<double>(double a, double b) { return floor(a / b); }
template <class T> static __device__ __forceinline__ T gpulua_mod(T a, T b) {
  if (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) return 0;
  T r = (T)(a % b);
  return (T)(r != 0 && (r < 0) != (b < 0) ? r + b : r);
}
template <> __device__ __forceinline__ float gpulua_mod<float>(float a, float b) {
  float r = fmodf(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <> __device__ __forceinline__ double gpulua_mod<double>(double a, double b) {
  double r = fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class U> static __device__ __forceinline__ U gpulua_shift(U a, long long by) {
  long long bits = (long long)sizeof(U) * 8;
  return by <= -bits || by >= bits ? (U)0 : by < 0 ? (U)(a >> -by) : (U)(a << by);
}
template <class T> static __device__ __forceinline__ T gpulua_min(T a, T b) { return b < a ? b : a; }
template <class T> static __device__ __forceinline__ T gpulua_max(T a, T b) { return b > a ? b : a; }
template <class T, class U> static __device__ __forceinline__ T gpulua_abs(T a) { return a < 0 ? (T)(0 - (U)a) : a; }
template <class T> static __device__ __forceinline__ T gpulua_to(double x, double low, double high) {
  if (!(x == x)) return 0;
  if (x >= high) return (T)~((T)-1 < (T)0 ? (unsigned long long)1 << (sizeof(T) * 8 - 1) : 0ull);
  return x <= low ? (T)((T)-1 < (T)0 ? (unsigned long long)1 << (sizeof(T) * 8 - 1) : 0ull) : (T)x;
}
]]

-- Can what has the type t be stored as `wanted`? Floats as floats, integers as floats and as integers that hold them
-- all, complex numbers as complex numbers.
local function is_storable(t, wanted)
  if t == wanted then
    return true
  elseif not bits[t] then
    return float_rank[t] ~= nil and float_rank[wanted] ~= nil or string.sub(t, 1, 1) == "c"
      and string.sub(wanted, 1, 1) == "c"
  end
  return float_rank[wanted] ~= nil
    or bits[wanted] ~= nil and bits[t] < bits[wanted] and (is_signed(wanted) or not is_signed(t))
end

-- What a new `out` has, or whether one of that type takes it.
local function result_type(self, result, wanted)
  local t = result.type
  if not wanted then
    return t == "bool" and "u8" or t == "int" and "i64" or t == "real" and "f64" or t
  elseif t == "bool" then
    return wanted == "u8" and wanted
      or fail(self, string.format("a condition does not fit out, which is %s: %s(...) converts", wanted, wanted))
  elseif t == "int" or t == "real" and float_rank[wanted] or is_storable(t, wanted) then
    return wanted
  end
  fail(self, string.format("the result, %s, does not fit out, which is %s: %s(...) converts", t, wanted, wanted))
end

--- compile(text, given, wanted) -> what is to be computed. `given`: by name, { type = an element type, "int" or
-- "real" }. `wanted`: the type that the result is to have, or nil. Returns { type, lets, code (for one element, i: what
-- goes before, and the result), params (those of `given` that it uses, as v1, v2, ...; each with its name), checks
-- ({ type, value_of(given), at, name }: integers of the script that have to fit) }. InvalidArgument: what is wrong, and
-- where.
local function compile(text, given, wanted)
  local self = { text = text, given = given, params = {}, checks = {}, lets = {}, next = 1, depth = 0 }
  advance(self)
  local result = expression(self, 0)
  if self.kind ~= "end" then
    fail(self, string.format("an operator expected, got '%s'%s", self.token, instead_of(self.token)))
  end
  local t = result_type(self, result, wanted)
  local code = (t == result.type or result.type == "bool") and result.code or convert(self, result, t)
  return { type = t, lets = table.concat(self.lets), code = code, params = self.params, checks = self.checks }
end

return { compile = compile, fits = fits, is_storable = is_storable, c_type = c_type, helpers = helpers }
