-- Element-wise work from an expression: gpu.map("a * x + y", { a = 2, x = x, y = y, out = z }).
-- The expression (its language is told in expression.lua) becomes one kernel, which is compiled once for each
-- expression and set of types.

local core = require "gpulua.core"
local expression = require "gpulua.expression"

local c_type <const> = expression.c_type
local stored <const> = setmetatable({ f16 = "__half", bf16 = "__nv_bfloat16" }, { __index = c_type })

-- ---- kernels ----

local loads <const> = { f16 = "__half2float(%s)", bf16 = "__bfloat162float(%s)" }
local stores <const> = { f16 = "__float2half(%s)", bf16 = "__float2bfloat16(%s)" }

local names_max <const> = 126 -- with the number of elements and out, as many parameters as kernels have

local function generate(text, given, wanted)
  local made = expression.compile(text, given, wanted)
  if #made.params > names_max then
    core.raise("InvalidArgument", ("map: %d buffers, scalars and numbers are given, %d are the most"):format(
      #made.params, names_max))
  end
  local t, code = made.type, made.code
  local takes, signature, lets = {}, {}, {}
  for i, param in ipairs(made.params) do
    local is_memory = param.buffer ~= nil
    -- Check mode names it. No macro is named like it: those that end with _ begin with _.
    local own = param.name:find "^_" and ("p%d%s0"):format(i, param.name) or param.name .. "_"
    takes[i] = (is_memory and "const %s *%s" or "%s %s"):format((is_memory and stored or c_type)[param.type], own)
    signature[i] = ("%s: %s"):format(param.name, is_memory and ("in %s*"):format(param.type)
      or param.type == "real" and "f64" or "i64")
    local value = is_memory and ("%s[%s]"):format(own, param.is_one and "0" or "i") or own
    lets[i] = ("  %s v%d = %s;\n"):format(c_type[param.type], i, (loads[param.type] or "%s"):format(value))
  end
  takes[#takes + 1] = ("%s *out"):format(stored[t])
  signature[#signature + 1] = ("out: out %s*"):format(t)
  local source = ([[
%sextern "C" __global__ void map(long long n, %s) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
%s%s  out[i] = %s;
}
]]):format(expression.helpers, table.concat(takes, ", "), table.concat(lets), made.lets,
    (stores[t] or "%s"):format(code))
  for _, name in ipairs { "f16", "bf16" } do
    if source:find(stored[name], 1, true) then
      source = ("#include <cuda_%s.h>\n"):format(name == "f16" and "fp16" or "bf16") .. source
    end
  end
  local count = "n"
  while given[count] do
    count = count .. "_"
  end
  made.source, made.signature = source, ("%s: i64, %s"):format(count, table.concat(signature, ", "))
  return made
end

-- ---- calls ----

local kernels_kept <const> = 256
-- By device: what generate has made of an expression and types, how many of these there are, kernels by source.
local kernels = setmetatable({}, { __mode = "k" })

local function kernel_for(device, text, given, wanted)
  local names = {}
  for name, what in pairs(given) do
    names[#names + 1] = ("%s:%s%s%s"):format(name, what.type, what.buffer and "*" or "", what.is_one and "1" or "")
  end
  table.sort(names)
  local key = table.concat({ text, wanted or "", table.unpack(names) }, "\0")
  local known = kernels[device]
  if not known or known.count >= kernels_kept then
    known = { count = 0, by_source = {}, by_key = {} }
    kernels[device] = known
  end
  local made = known.by_key[key]
  if not made then
    made = generate(text, given, wanted)
    for name, what in pairs(given) do
      if not what.number then
        core.raise("InvalidArgument", ("map: '%s' is given, but not in '%s'"):format(name, text))
      end
    end
    local source = made.signature .. "\0" .. made.source
    if not known.by_source[source] then
      known.by_source[source] = device:compile(made.source, { name = "map.cu" }):kernel("map", made.signature)
    end
    made.kernel, made.source, made.lets, made.code = known.by_source[source], nil, nil, nil
    for i, param in ipairs(made.params) do
      made.params[i] = param.name -- and not the buffer itself
    end
    known.by_key[key], known.count = made, known.count + 1
  end
  return made
end

local options <const> = { out = true, stream = true, label = true }

local function describe(name, value)
  local kind = core.type(value) or type(value)
  if kind == "buffer" or kind == "scalar" then
    return { buffer = value, type = value.type, is_scalar = kind == "scalar", is_one = kind == "scalar" or #value == 1 }
  elseif kind == "number" then
    return { type = math.type(value) == "integer" and "int" or "real" }
  end
  core.raise("InvalidArgument", ("map: '%s': a buffer, a scalar or a number expected, got %s"):format(name, kind))
end

local function shape_text(buffer) return table.concat(buffer.shape, " x ") end

-- All have the shape of out, or of the first, but those of one element. Returns what has it.
local function check_shapes(given, out)
  local names, like, like_name = {}, out, "out"
  if out and (out.type == "c64" or out.type == "c128") then
    core.raise("Unsupported", ("map: out is %s: complex numbers are not supported"):format(out.type))
  end
  for name, what in pairs(given) do
    names[#names + 1] = what.buffer and name or nil
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local what = given[name]
    if what.type == "c64" or what.type == "c128" then
      core.raise("Unsupported", ("map: '%s' is %s: complex numbers are not supported"):format(name, what.type))
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
      core.raise("InvalidArgument", ("map: '%s' has the shape %s, '%s' %s"):format(name, shape_text(what.buffer),
        like_name, shape_text(like)))
    end
    local shared = out and core.overlap(what.buffer, out)
    if shared == "part" or shared and what.is_one and #out > 1 then -- (also views of one type as another)
      core.raise("InvalidArgument", ("map: '%s' and out share memory, but are not the same"):format(name))
    end
  end
  return like
end

-- The call before with the same expression: what generate has made of it, and of which kinds its arguments were. Most
-- calls are like that.
local latest, latest_count = {}, 0

local function remember(text, made, values, out)
  local kinds = {}
  for i, name in ipairs(made.params) do
    kinds[i] = core.map_kind(values[name])
  end
  kinds[#kinds + 1] = core.map_kind(out)
  if not latest[text] then
    latest_count = latest_count + 1
    if latest_count > kernels_kept then
      latest, latest_count = {}, 1
    end
  end
  latest[text] = { made = made, kinds = kinds }
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
        and ("map: '%s': %d does not fit %s"):format(check.name, value, check.type)
        or ("map: %d does not fit %s, at %d of '%s'"):format(value, check.type, check.at, text))
    end
  end
end

-- `values`: by name.
local function launch(text, made, values, target, stream, label)
  if #made.checks > 0 then
    check_integers(text, made, values)
  end
  local n, count, config = #target, #made.params, #target
  if stream ~= nil or label ~= nil then
    config = { grid = (n + 255) // 256, block = 256, stream = stream, label = label }
  end
  local list = {}
  for i = 1, count do
    list[i] = values[made.params[i]]
  end
  list[count + 1] = target
  return made.kernel:launch(config, n, table.unpack(list, 1, count + 1))
end

--- gpu.map(expression, { name = buffer, scalar or number, ..., [out = buffer, stream=, label=] }) -> op, or without
-- out: a new buffer of the result's type and the shape of the others, op. Each element of out becomes what the
-- expression gives for the elements at the same place; buffers of one element, and scalars, are the same for all. Names
-- that nobody gives: index (from 1), pi, inf, nan. Does not block, but for the first time, when a kernel is compiled
-- (which yields in a task, and cannot be captured). InvalidArgument: what is wrong with the expression, and where;
-- shapes; memory that is shared in part; CompileFailed; kernel:launch's.
return function(text, arguments)
  if type(text) ~= "string" or type(arguments) ~= "table" then
    core.raise("InvalidArgument", ("map: an expression and a table expected, got %s and %s"):format(type(text),
      type(arguments)))
  end
  local known = latest[text]
  if known and core.map_fits(arguments, known.made.params, known.kinds, known.made.kernel) then
    return launch(text, known.made, arguments, arguments.out, arguments.stream, arguments.label)
  end
  local given, values = {}, {} -- (`arguments` may be another when a kernel has been compiled)
  local out, stream, label = arguments.out, arguments.stream, arguments.label
  if out ~= nil and core.type(out) ~= "buffer" then
    core.raise("InvalidArgument", ("map: 'out': a buffer expected, got %s"):format(core.type(out) or type(out)))
  end
  for name, value in pairs(arguments) do
    if type(name) ~= "string" or not name:find "^[%a_][%w_]*$" then
      core.raise("InvalidArgument", ("map: a name expected, got %s"):format(tostring(name)))
    elseif not options[name] then
      given[name], values[name] = describe(name, value), value
    end
  end
  local like = check_shapes(given, out)
  if not like then
    core.raise("InvalidArgument", "map: nothing says for how many elements, or where: give a buffer")
  end
  local device = like.device
  local made = kernel_for(device, text, given, out and out.type)
  if out then
    remember(text, made, values, out)
    return launch(text, made, values, out, stream, label)
  end
  local target = device:buffer(made.type, like.shape)
  return target, launch(text, made, values, target, stream, label)
end
