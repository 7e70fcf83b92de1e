-- Element-wise work from an expression: gpu.map("a * x + y", { a = 2, x = x, y = y, out = z }).
-- The expression (its language is told in expression.lua) becomes one kernel, which is compiled once for each
-- expression and set of types.

local core = require "gpulua.core"
local expression = require "gpulua.expression"
local elementwise = require "gpulua.elementwise"
local generated = require "gpulua.generated"
local fail_buffer <const> = require "gpulua.arguments".fail_buffer
local use <const> = generated.use

-- ---- calls ----

local find = generated.cache "map" -- what elementwise has made of an expression and types, with its kernel

local function kernel_for(device, text, given, wanted)
  local names = {}
  for name, what in pairs(given) do
    names[#names + 1] = string.format("%s:%s%s%s", name, what.type, what.buffer and "*" or "",
      what.is_one and "1" or "")
  end
  table.sort(names)
  return find(device, table.concat({ text, wanted or "", table.unpack(names) }, "\0"), function(compile)
    local made = elementwise(text, given, wanted, device.kind ~= "cpu")
    for name, what in pairs(given) do
      if not what.number then
        core.raise("InvalidArgument", string.format("map: '%s' is given, but not in '%s'", name, text))
      end
    end
    made.kernel = compile(made.source, "map", made.signature)
    made.source, made.lets, made.code = nil, nil, nil
    for i, param in ipairs(made.params) do
      made.params[i] = param.name -- and not the buffer itself
    end
    return made
  end)
end

local options <const> = { out = true, stream = true, label = true }

local function describe(name, value)
  local kind = core.type(value) or type(value)
  if kind == "buffer" or kind == "scalar" then
    return { buffer = value, type = value.type, is_scalar = kind == "scalar", is_one = kind == "scalar" or #value == 1 }
  elseif kind == "number" then
    return { type = math.type(value) == "integer" and "int" or "real" }
  end
  generated.check_open("map", name, value)
  fail_buffer("map", string.format("'%s': a buffer, a scalar or a number", name), value)
end

local function is_scalar(value) return core.type(value) == "scalar" end
local function count_of(value) return is_scalar(value) and 1 or #value end
local function shape_text(value) return is_scalar(value) and "1" or table.concat(value.shape, " x ") end

-- All have the shape of out, or of the first, but those of one element. Returns what has it.
local function check_shapes(given, out)
  local names, like, like_name = {}, out, "out"
  if out and (out.type == "c64" or out.type == "c128") then
    core.raise("Unsupported", string.format("map: out is %s: complex numbers are not supported", out.type),
      generated.parts_hint(out.type, "out"))
  end
  for name, what in pairs(given) do
    names[#names + 1] = what.buffer and name or nil
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local what = given[name]
    if what.type == "c64" or what.type == "c128" then
      core.raise("Unsupported", string.format("map: '%s' is %s: complex numbers are not supported", name, what.type),
        not what.is_scalar and generated.parts_hint(what.type, name) or nil)
    elseif not like and not what.is_one then
      like, like_name = what.buffer, name
    end
  end
  for i = 1, like and 0 or #names do -- of one element each
    like = like or not given[names[i]].is_scalar and given[names[i]].buffer or nil
  end
  for _, name in ipairs(names) do
    local what = given[name]
    if like and not what.is_one and shape_text(what.buffer) ~= shape_text(like) then
      core.raise("InvalidArgument", string.format("map: '%s' has the shape %s, '%s' %s", name, shape_text(what.buffer),
        like_name, shape_text(like)))
    end
    local shared = out and core.overlap(what.buffer, out)
    if shared == "part" or shared and what.is_one and count_of(out) > 1 then -- (also views of one type as another)
      core.raise("InvalidArgument", string.format("map: '%s' and out share memory, but are not the same", name))
    end
  end
  return like
end

-- The call before with the same expression: what elementwise has made of it, and of which kinds its arguments were.
-- Most calls are like that. The cache's entry keeps it.
local latest = setmetatable({}, { __mode = "v" })

local function remember(text, made, entry, values, out)
  local kinds = {}
  for i, name in ipairs(made.params) do
    kinds[i] = core.map_kind(values[name])
  end
  kinds[#kinds + 1] = core.map_kind(out)
  entry.latest = { made = made, entry = entry, kinds = kinds, is_scalar = is_scalar(out) }
  latest[text] = entry.latest
end

local function check_integers(text, made, values)
  local given = {}
  for _, name in ipairs(made.params) do
    given[name] = { value = values[name] }
  end
  for _, check in ipairs(made.checks) do
    local value = check.value_of(given)
    if not expression.fits(value, check.type) then
      core.raise("InvalidArgument", check.name
        and string.format("map: '%s': %d does not fit %s", check.name, value, check.type)
        or string.format("map: %d does not fit %s, at %d of '%s'", value, check.type, check.at, text))
    end
  end
end

-- `values`: by name. `n`: how many elements the target has.
local function launch(text, made, values, target, n, stream, label)
  if #made.checks > 0 then
    check_integers(text, made, values)
  end
  local count = #made.params
  local config = (n + made.per_thread - 1) // made.per_thread
  if stream ~= nil or label ~= nil then
    config = { grid = (config + 255) // 256, block = 256, stream = stream, label = label }
  end
  local list = {}
  for i = 1, count do
    list[i] = values[made.params[i]]
  end
  list[count + 1] = target
  return made.kernel:launch(config, n, table.unpack(list, 1, count + 1))
end

--- gpu.map(expression, { name = buffer, scalar or number, ..., [out = buffer or scalar, stream=, label=] }) -> op, or
-- without out: a new buffer of the result's type and the shape of the others, op. Each element of out becomes what the
-- expression gives for the elements at the same place; buffers of one element, and scalars, are the same for all. Names
-- that nobody gives: index (from 1), pi, inf, nan. Does not block, but for the first time, when a kernel is compiled
-- (which yields in a task, and cannot be captured). InvalidArgument: what is wrong with the expression, and where;
-- shapes; memory that is shared in part; Closed; CompileFailed; kernel:launch's.
return function(text, arguments)
  if type(text) ~= "string" or type(arguments) ~= "table" then
    local function named(value) return core.type(value) or type(value) end
    core.raise("InvalidArgument", string.format("map: an expression and a table expected, got %s and %s", named(text),
      named(arguments)), 'as in gpu.map("a * x", { a = 2, x = buffer })')
  end
  local known = latest[text]
  if known and known.entry.used and core.map_fits(arguments, known.made.params, known.kinds, known.made.kernel) then
    use(known.entry)
    local out <const> = arguments.out
    return launch(text, known.made, arguments, out, known.is_scalar and 1 or #out, arguments.stream, arguments.label)
  end
  local given, values = {}, {} -- (`arguments` may be another when a kernel has been compiled)
  local out, stream, label = arguments.out, arguments.stream, arguments.label
  if out ~= nil and core.type(out) ~= "buffer" and not is_scalar(out) then
    generated.check_open("map", "out", out)
    fail_buffer("map", "'out': a buffer or a scalar", out)
  end
  for name, value in pairs(arguments) do
    if type(name) ~= "string" or not string.find(name, "^[%a_][%w_]*$") then
      core.raise("InvalidArgument", string.format("map: a name expected, got %s", tostring(name)))
    elseif not options[name] then
      given[name], values[name] = describe(name, value), value
    end
  end
  local like = check_shapes(given, out)
  if not like then
    core.raise("InvalidArgument", "map: nothing says for how many elements, or where: give a buffer")
  end
  local device = like.device
  local made, entry = kernel_for(device, text, given, out and out.type)
  if out then
    remember(text, made, entry, values, out)
    return launch(text, made, values, out, count_of(out), stream, label)
  end
  local target = device:buffer(made.type, like.shape)
  return target, launch(text, made, values, target, #target, stream, label)
end
