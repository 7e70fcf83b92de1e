-- Sums, extremes and their like: gpu.reduce("sum", x), gpu.reduce("max", x, 2). What is computed is in reduction.lua,
-- this is the way of a call.
--
-- Types of results. sum, prod: i64 of signed integers and u64 of others (they wrap around); f64 of f64, f32 of other
-- floats; sum of complex numbers: theirs. mean: f64 of integers, else as sum. norm (the root of the sum of all |x|^2):
-- f64 of integers, f64 and c128, else f32. max, min: that of x. argmax, argmin: i64, counted from 1 along the axis.
-- What is stored must fit the type of `out`, as in gpu.map.
--
-- An element that is not a number makes the result of sum, prod, mean, norm, max and min none; argmax and argmin
-- give the first of these. Of equals argmax and argmin give the first; whether max of 0 and -0 is 0 or -0 is not said.
--
-- Accuracy. Which additions are done follows from type, shape and axis alone, so the same elements give the same bits
-- each time and on every device. An element takes part in at most 27 in one launch, which joins 64 KiB along the last
-- axis, or 4 to 16,384 elements along another one, to one value, and in L launches until one is left. So sum and mean
-- lose at most (27 L + 1) u of the sum of all |x|, where u is 2^-53 for f64, c128 and the mean of integers, which are
-- added up in f64, and 2^-24 for f16, bf16, f32 and c64, in f32: 3.3e-6 for 1e8 floats (L = 2). prod is multiplied in
-- the same order. norm adds up in f64; squares of f64 overflow from 1.4e154 on, those of other types do not.

local core = require "gpulua.core"
local arguments <const> = require "gpulua.arguments"
local instead <const> = arguments.instead
local expression = require "gpulua.expression"
local generated = require "gpulua.generated"
local reduction = require "gpulua.reduction"

local block <const> = reduction.block
local names <const> = "'sum', 'prod', 'mean', 'norm', 'max', 'min', 'argmax' or 'argmin'"

local function fail(message, ...)
  core.raise("InvalidArgument", "reduce: " .. string.format(message, ...))
end

local function kind_of(value) return core.type(value) or type(value) end
local function shape_text(shape) return #shape > 0 and table.concat(shape, " x ") or "one element" end

-- ---- kernels ----

local find = generated.cache "reduce"
local check_open <const> = generated.check_open

local signatures <const> = {
  pieces = "x: in %s*, from: in i64*, length: i64, pieces: i64, count: i64, part: out %s*, places: out i64*, "
    .. "out: out %s*",
  rows = "x: in %s*, length: i64, rows: i64, out: out %s*",
  columns = "x: in %s*, from: in i64*, length: i64, segments: i64, segment: i64, inner: i64, total: i64, count: i64, "
    .. "part: out %s*, places: out i64*, out: out %s*",
}

-- Of a block: on the CPU device one thread does the work of all.
local function threads_on(device) return device.kind == "cpu" and 1 or block end

-- `call`: device, op, type, wanted, form, what (reduction.describe), target, sizes, options of launches.
local function kernel_for(call, is_rest, lanes, at_once, per_thread)
  local threads, form, value = threads_on(call.device), call.form, call.what.value
  local key = string.format("%s %s %s %s %d %d %d %s", call.op, call.type, call.wanted, form, lanes or 0, at_once or 0,
    per_thread or 0, is_rest)
  return find(call.device, key, function(compile)
    local source = reduction.source(call.op, call.type, call.wanted, form, lanes, at_once, threads, is_rest,
      per_thread)
    local from = is_rest and value or call.type
    return compile(source, "reduce", form == "rows" and string.format(signatures.rows, from, call.wanted)
      or string.format(signatures[form], from, value, call.wanted))
  end)
end

-- ---- calls ----

local function launch(call, kernel, blocks, threads, ...)
  local config = { grid = blocks, block = threads, stream = call.stream, label = call.label }
  return kernel:launch(config, ...)
end

local function reduce_rows(call, kernel, rows, x, length)
  local blocks = (call.outer + rows - 1) // rows
  return launch(call, kernel, blocks, threads_on(call.device), x, length, call.outer, call.target)
end

-- What a launch after another does, until each row has one value: { kernel =, length =, parts =, step =, threads = and
-- columns = of a block }. All kernels are there before anything is launched.
local function stages_of(call, length)
  local stages, is_rest = {}, false
  repeat
    local t = is_rest and call.what.value or call.type
    local threads, columns = threads_on(call.device), block
    local lanes, at_once, step, per_thread
    if call.form == "columns" then
      local side
      lanes, at_once, step, per_thread, side = reduction.columns_of(t, call.outer, length, call.inner)
      if threads > 1 then
        threads, columns = side * lanes, side * per_thread
      end
    else
      step = reduction.step(t)
    end
    local parts = (length + step - 1) // step
    stages[#stages + 1] = { kernel = kernel_for(call, is_rest, lanes, at_once, per_thread), length = length,
      parts = parts, step = step, threads = threads, columns = columns }
    length, is_rest = parts, true
  until parts == 1
  return stages
end

-- From elements, or from what is left of them and their places.
local function reduce_on(call, stages, at, values, places)
  local stage = stages[at]
  local length, parts, is_last = stage.length, stage.parts, at == #stages
  local total = call.outer * parts * call.inner
  local part <close> = not is_last and call.device:buffer(call.what.value, total) or nil
  local part_places <close> = not is_last and call.what.before and call.device:buffer("i64", total) or nil
  local out = is_last and call.target or nil
  local op
  if call.form == "columns" then
    local blocks = (total + stage.columns - 1) // stage.columns
    op = launch(call, stage.kernel, blocks, stage.threads, values, places, length, parts, stage.step,
      call.inner, total, call.count, part, part_places, out)
  else
    op = launch(call, stage.kernel, total, stage.threads, values, places, length, parts, call.count, part, part_places,
      out)
  end
  return is_last and op or reduce_on(call, stages, at + 1, part, part_places)
end

local options_known <const> = { axis = true, out = true, stream = true, label = true }

local function check_options(options)
  if type(options) == "number" then
    return { axis = options }
  elseif core.type(options) == "op" then -- of gpu.reduce("sum", gpu.map(...)): map returns one behind its result
    return {}
  elseif options ~= nil and type(options) ~= "table" then
    fail("an axis or a table {axis=, out=, stream=, label=} expected, got %s", kind_of(options))
  end
  for name in pairs(options or {}) do
    if not options_known[name] then
      fail("it has no option '%s'%s", tostring(name), instead(options_known))
    end
  end
  return options or {}
end

-- Returns the shape of what comes of it, and how many elements are before the axis, along it, and behind it.
local function shape_of(x, axis)
  local shape, count = x.shape, #x
  if axis == nil then
    return {}, 1, count, 1
  end
  local at = math.type(axis) and math.tointeger(axis)
  if not at or at < 1 or at > #shape then
    fail("axis: 1 to %d expected, got %s (the shape is %s)", #shape, math.type(axis) and axis or kind_of(axis),
      shape_text(shape))
  end
  local outer, length = 1, table.remove(shape, at)
  for i = 1, at - 1 do
    outer = outer * shape[i]
  end
  return shape, outer, length, count // outer // length
end

local function check_out(x, out, shape, result)
  local kind = kind_of(out)
  if kind ~= "buffer" and kind ~= "scalar" then
    check_open("reduce", "out", out)
    arguments.fail_buffer("reduce", "out: a buffer or a scalar", out)
  elseif core.overlap(x, out) then
    fail("x and out share memory")
  elseif out.device ~= x.device then
    fail("x is on %s, out on another device", x.device.name)
  elseif not expression.is_storable(result, out.type) then
    fail("the result, %s, does not fit out, which is %s", result, out.type)
  end
  local count = 1
  for _, dim in ipairs(shape) do
    count = count * dim
  end
  local fits = count == 1 and (kind == "scalar" or #out == 1)
    or count > 1 and kind == "buffer" and shape_text(out.shape) == shape_text(shape)
  if not fits then
    fail("out has the shape %s, that of the result is %s", shape_text(out.shape or {}), shape_text(shape))
  end
end

--- gpu.reduce(op, x[, options]) -> scalar or buffer, op; with out: op. options: an axis, or {axis=, out=, stream=,
-- label=}. `op`: "sum", "prod", "mean", "norm", "max", "min", "argmax" or "argmin"; `x`: a buffer. Without an axis, or
-- along the only one, a scalar on the device comes of it (scalar:get() waits for its value); along one of several,
-- counted from 1, a buffer without that axis. `out`, a buffer of that shape or, for one element, also a scalar, gets
-- the result; it shares no memory with x. Calls nest: an op where options would be is passed over. Does not block, but
-- for the first time, when kernels are compiled (which yields in a task, and cannot be captured). Long axes take
-- several launches, with temporary memory between; the op is the last of them. InvalidArgument: no such reduction or
-- axis; complex numbers have no order; wrong type, shape, memory or device of out. Unsupported: prod of complex
-- numbers. Closed, CaptureActive, CompileFailed; dev:buffer's and kernel:launch's.
return function(op, x, options, ...)
  if select("#", ...) > 0 then
    fail("a name, a buffer and an axis or a table expected, got %d arguments", 3 + select("#", ...))
  elseif type(op) ~= "string" or not reduction.ops[op] then
    fail("%s expected, got %s", names, type(op) == "string" and "'" .. op .. "'" or kind_of(op))
  elseif core.type(x) ~= "buffer" then
    check_open("reduce", op, x)
    arguments.fail_buffer("reduce", string.format("'%s': a buffer", op), x)
  end
  options = check_options(options)
  local t, device, out, stream, label = x.type, x.device, options.out, options.stream, options.label
  local what = reduction.describe(op, t)
  local shape, outer, length, inner = shape_of(x, options.axis)
  if out ~= nil then
    check_out(x, out, shape, what.result)
  end
  local wanted = out and out.type or what.result
  local lanes, rows
  if inner == 1 and outer > 1 then
    lanes, rows = reduction.lanes(t, length)
  end
  local call = { device = device, op = op, type = t, wanted = wanted, what = what, outer = outer, inner = inner,
    form = inner > 1 and "columns" or lanes and "rows" or "pieces", count = length, stream = stream,
    label = label or "reduce" }
  local kernel, stages = lanes and kernel_for(call, false, lanes), not lanes and stages_of(call, length)
  call.target = out or device:buffer(wanted, #shape > 0 and shape or 1)
  local done = lanes and reduce_rows(call, kernel, rows, x, length) or reduce_on(call, stages, 1, x, nil)
  if out then
    return done
  end
  return #shape > 0 and call.target or core.scalar_of(call.target), done
end
