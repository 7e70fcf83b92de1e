-- Fast Fourier transforms: device:fft{...}. cuFFT on GPUs, FFTW on the CPU device; each transform is an op like a
-- launch.
--
-- A plan goes between two sides: forward from x to X, with exp(-2 pi i jk / n), inverse back, with exp(+2 pi i jk / n).
-- Neither divides by anything, so inverse after forward gives n times what there was, n being the product of the
-- shape; `scale` says otherwise. Indices count from 1 in Lua, frequencies from 0: X[1] is the sum.
--
-- Elements lie row by row, one transform after another, unless strides and distances say otherwise. The relative error
-- (root mean square) is below 1e-6 for f32 and 1e-15 for f64, times the logarithm of n to the base 2 (at least 1).

local core = require "gpulua.core"
local arguments = require "gpulua.arguments"
local sealed = require "gpulua.sealed"
local workspace = require "gpulua.workspace"
local once <const> = require "gpulua.once"
local dims, overlap = core.dims, core.overlap
local fail = arguments.fail

local plans_max <const> = 64   -- of a device
local elements_max <const> = 1 << 48

local methods = {}
local metatable <const> = { __index = methods, __name = "gpulua.fft" }

local function check_self(self, call)
  arguments.check_self(call, self, metatable, "gpulua.fft")
end

-- ---- what a device has: plans and work areas ----

local function new_device()
  return {
    entries = {}, -- by options: { module =, kernels =, bytes =, open =, used =, is_kept = }
    count = 0, open = 0, clock = 0, hits = 0, made = 0,
    work = workspace "fft work", -- which all plans share
  }
end
local devices = setmetatable({}, { __mode = "k" })

local function drop_entry(entry)
  for _, kernel in pairs(entry.kernels) do
    kernel:close()
  end
  entry.module:close()
end

-- The plan that was used longest ago goes; whoever has it still keeps it.
local function evict(known)
  local oldest, oldest_key
  for key, entry in pairs(known.entries) do
    if not oldest or entry.used < oldest.used then
      oldest, oldest_key = entry, key
    end
  end
  known.entries[oldest_key], known.count = nil, known.count - 1
  oldest.is_kept = false
  if oldest.open == 0 then
    drop_entry(oldest)
  end
end

-- The plan for these options, made unless it is there. Waits, if it is made.
local function open_entry(device, known, key)
  local entry = known.entries[key]
  if entry then
    known.hits = known.hits + 1
  else
    local is_new
    entry, is_new = once(known.entries, key, device, function()
      local module = core.library(device, "fft", key)
      local made = { module = module, kernels = {}, bytes = {}, open = 0, is_kept = true, used = math.huge }
      for _, name in ipairs(module:kernels()) do
        made.kernels[name] = module:kernel(name)
      end
      made.bytes.forward = core.library_value(module, "forward_bytes")
      made.bytes.inverse = core.library_value(module, "inverse_bytes")
      return made, module
    end)
    if is_new then
      known.made, known.count = known.made + 1, known.count + 1
      if known.count > plans_max then
        evict(known)
      end
    end
  end
  known.clock = known.clock + 1
  entry.used = known.clock
  entry.open, known.open = entry.open + 1, known.open + 1
  return entry
end

-- ---- transforms ----

local function check_side(self, call, side, value)
  local kind, count, _, second = dims(value)
  if kind == nil then
    arguments.fail_buffer(call, side.name .. ": a buffer", value)
  elseif kind ~= side.type then
    fail(call, "%s is %s, %s expected", side.name, kind, side.type)
  elseif value.device ~= self.device then
    fail(call, "%s is on %s, the plan on %s", side.name, value.device.name, self.device.name)
  elseif not side.is_plain then
    if count < side.span then
      core.raise("OutOfBounds", string.format("%s: %s has %d elements, the plan reaches to %d", call, side.name, count,
        side.span), nil, 0, side.span, count)
    end
    return
  elseif count ~= side.span then
    fail(call, "%s has %d elements, the plan takes %s", side.name, count, side.text)
  end
  if second then
    local shape, sizes = value.shape, side.sizes
    for i = 0, #sizes - 1 do
      if shape[#shape - i] ~= sizes[#sizes - i] then
        fail(call, "%s is %s, the plan takes %s", side.name, table.concat(shape, " x "), side.text)
      end
    end
  end
end

local call_options <const> = arguments.options "scale"
local plain <const> = { grid = 1, block = 1 }

local function transform(self, call, from, to, input, output, options)
  local entry = self.entry
  if not entry then
    core.raise("Closed", "attempt to use a closed fft")
  end
  if core.type(output) == "op" then -- of plan:inverse(plan:forward(x)): forward returns one behind its result
    output = nil
  end
  if options == nil and type(output) == "table" and not core.type(output) then
    output, options = nil, output
  end
  local config, scale = plain, self.scale[call]
  if options ~= nil then
    arguments.check(call, options, call_options)
    if options.scale ~= nil then
      scale = options.scale
      if type(scale) ~= "number" then
        fail(call, "scale: a number expected, got %s", core.type(scale) or type(scale))
      end
    end
    if options.stream ~= nil or options.label ~= nil then
      config = { grid = 1, block = 1, stream = options.stream, label = options.label }
    end
  end
  local kernel = entry.kernels["fft_" .. call]
  if not kernel then
    core.raise("Unsupported", string.format("%s: %s", call, self.why_not))
  end
  check_side(self, call, from, input)
  if output ~= nil then
    check_side(self, call, to, output)
    local how, is_same_place = overlap(input, output)
    if how then
      if not is_same_place then
        fail(call, "%s and %s share memory, and begin at different places", from.name, to.name)
      elseif not self.may_be_in_place then
        fail(call, "%s and %s share memory: in place, both need the same strides and distance%s", from.name, to.name,
          self.is_real and ", in bytes" or "")
      end
      kernel = entry.kernels["fft_" .. call .. "_in_place"] or kernel
    end
  end
  local bytes = entry.bytes[call]
  local work = self.known.work:take(self.device, options and options.stream, bytes)
  local made
  if output == nil then
    made = self.device:buffer(to.type, to.is_plain and to.shape or to.span)
    output = made
  end
  local op = kernel:launch(config, input, output, work, bytes, scale)
  if made then
    return made, op
  end
  return op
end

--- plan:forward(x[, X][, {scale=, stream=, label=}]) -> op, or without X: a new buffer, op. X becomes the transforms of
-- x, which keeps its contents. x and X are buffers of the plan's types; where no strides are given they are flat, or
-- of its shape behind any dimensions whose product is `batch`, and else reach at least as far. They may be one and the
-- same memory where both sides lie alike: then x is lost. scale: instead of the plan's. On GPUs both have to begin at
-- a multiple of a complex number's bytes, as all but odd slices do; the op fails if they do not (Unsupported). Calls
-- nest: an op where X would be is passed over. Does not block. InvalidArgument names what does not fit; OutOfBounds,
-- OutOfBudget (the work area), Unsupported (a plan of kind "c2r"), Closed, and those of kernel:launch.
function methods.forward(self, x, X, options)
  check_self(self, "forward")
  return transform(self, "forward", self.x, self.f, x, X, options)
end

--- plan:inverse(X[, x][, {scale=, stream=, label=}]) -> op, or without x: a new buffer, op. Back again; of a real plan,
-- what X would have to be for x to be real is assumed. X keeps its contents unless the plan may `overwrite` them. For
-- the rest see forward.
function methods.inverse(self, X, x, options)
  check_self(self, "inverse")
  return transform(self, "inverse", self.f, self.x, X, x, options)
end

--- plan:stats() -> about all plans of the device: plans (kept), plans_max, open (handles), hits and made (calls of
-- device:fft), work_bytes (of all streams).
function methods.stats(self)
  check_self(self, "stats")
  local known = self.known
  return { plans = known.count, plans_max = plans_max, open = known.open, hits = known.hits, made = known.made,
    work_bytes = known.work:bytes() }
end

--- plan:close(). Idempotent; what it has launched goes on. The device keeps the library's plan for the next one like
-- it; with the last open one the work areas go.
function methods.close(self)
  check_self(self, "close")
  local entry, known = self.entry, self.known
  if entry then
    self.entry = nil
    entry.open, known.open = entry.open - 1, known.open - 1
    if entry.open == 0 and not entry.is_kept then
      drop_entry(entry)
    end
    if known.open == 0 then
      known.work:drop()
    end
  end
end

metatable.__close = methods.close
metatable.__gc = methods.close

function metatable.__tostring(self)
  return string.format("gpulua.fft %s %s on %s%s", self.kind, self.x.text, self.device.name,
    self.entry and "" or " (closed)")
end

require "gpulua.entries"(methods)

-- ---- making plans ----

local types <const> = { f32 = { real = "f32", complex = "c64" }, f64 = { real = "f64", complex = "c128" } }
local element_bytes <const> = require "gpulua.generated".bytes
local kinds <const> = { c2c = "c2c", r2c = "r2c", c2r = "c2r" }
local efforts <const> = { estimate = 0, measure = 1 }
local plan_options <const> = { shape = true, batch = true, kind = true, type = true, input = true, output = true,
  scale = true, overwrite = true, effort = true }

local function sizes_of(given)
  local shape = given.shape
  if math.type(shape) == "integer" then
    shape = { shape }
  end
  if type(shape) ~= "table" or #shape < 1 or #shape > 3 then
    fail("fft", "shape: a whole number or a table of 1 to 3 expected, got %s",
      type(shape) == "table" and #shape .. " of them" or tostring(shape))
  end
  local sizes = {}
  for i = 1, #shape do
    sizes[i] = arguments.whole("fft", { shape = shape[i] }, "shape", 1)
  end
  return sizes
end

-- Do two elements lie at one place? Said of layouts that sort by stride into ever longer pieces.
local function has_overlap(sizes, strides, batch, distance)
  local loops = { { batch, distance } }
  for i, size in ipairs(sizes) do
    loops[#loops + 1] = { size, strides[i] }
  end
  table.sort(loops, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[1] < b[1] end)
  local reach = 0
  for _, loop in ipairs(loops) do
    if loop[1] > 1 then
      if loop[2] <= reach then
        return true
      end
      reach = reach + (loop[1] - 1) * loop[2]
    end
  end
  return false
end

local function too_many()
  core.raise("Unsupported", "fft: more than 2^48 elements")
end

local layout_options <const> = { strides = true, distance = true }

-- One side: its sizes, where its elements lie, and how far they reach. `option`: input or output.
local function side_of(given, option, name, kind, sizes, batch)
  local layout, rank = given[option], #sizes
  if layout ~= nil and type(layout) ~= "table" then
    fail("fft", "%s: a table { strides =, distance = } expected, got %s", option, tostring(layout))
  end
  layout = layout or {}
  for key in pairs(layout) do
    if not layout_options[key] then
      fail("fft", "%s: it has no option '%s'%s", option, tostring(key), arguments.instead(layout_options))
    end
  end
  local wanted, strides, span = layout.strides, {}, 1
  if wanted ~= nil and (type(wanted) ~= "table" or #wanted ~= rank) then
    fail("fft", "%s: strides: a table of %d expected, got %s", option, rank,
      type(wanted) == "table" and #wanted .. " of them" or tostring(wanted))
  end
  -- `covered` by the dimensions further in, whose outermost stride is `unit`. What has one index alone has no stride:
  -- it is given one that fits.
  local unit, covered, packed, is_plain = 1, 1, 1, true
  for i = rank, 1, -1 do
    local stride = wanted and arguments.whole("fft", { [option .. ".strides"] = wanted[i] or "nothing" },
      option .. ".strides", 1)
    strides[i] = (not stride or sizes[i] == 1) and covered or stride
    if strides[i] < covered or strides[i] % unit ~= 0 then
      core.raise("Unsupported",
        string.format("fft: %s: stride %d is %d; a multiple of the next one, %d, is needed, from %d on", option, i,
          strides[i], unit, covered))
    elseif strides[i] > elements_max // sizes[i] then
      too_many()
    elseif sizes[i] > 1 then
      is_plain = is_plain and strides[i] == packed
      unit, covered, packed = strides[i], strides[i] * sizes[i], packed * sizes[i]
      span = span + (sizes[i] - 1) * strides[i]
    end
  end
  for i = 2, rank do
    strides[i] = sizes[i] > 1 and strides[i] or strides[i - 1]
  end
  local distance = arguments.whole("fft", { [option .. ".distance"] = layout.distance }, option .. ".distance", 1)
  distance = (not distance or batch == 1) and covered or distance
  if distance > elements_max // batch then
    too_many()
  end
  local shape = { table.unpack(sizes) }
  if batch > 1 or given.batch then
    table.insert(shape, 1, batch)
  end
  return {
    name = name, type = kind, sizes = sizes, shape = shape, text = table.concat(shape, " x "),
    strides = strides, distance = distance, span = span + (batch - 1) * distance,
    is_plain = is_plain and distance == covered,
    has_overlap = has_overlap(sizes, strides, batch, distance),
  }
end

-- Whether both sides are the same bytes, row by row.
local function lie_alike(x, f, batch, is_real)
  local factor, rank = is_real and 2 or 1, #x.sizes
  local result = batch == 1 or x.distance == factor * f.distance
  for i = 1, rank do
    if i == rank and is_real then
      result = result and x.strides[i] == 1 and f.strides[i] == 1
    else
      result = result and (x.sizes[i] == 1 or x.strides[i] == factor * f.strides[i])
    end
  end
  return result
end

local function scales_of(given)
  local scale = given.scale
  if type(scale) == "number" then
    return { forward = scale, inverse = scale }
  elseif scale ~= nil and type(scale) ~= "table" then
    fail("fft", "scale: a number or { forward =, inverse = } expected, got %s", tostring(scale))
  end
  for name, value in pairs(scale or {}) do
    if name ~= "forward" and name ~= "inverse" or type(value) ~= "number" then
      fail("fft", "scale: a number or { forward =, inverse = } expected, got %s = %s", tostring(name), tostring(value))
    end
  end
  return { forward = scale and scale.forward or 1, inverse = scale and scale.inverse or 1 }
end

-- The numbers of struct fft_plan (backend/fft.h), in its order.
local function options_of(is_real, kind, has_inverse, may_be_in_place, given, effort, sizes, batch, x, f)
  local numbers = { is_real and 1 or 0, given.type == "f64" and 1 or 0, kind ~= "c2r" and 1 or 0,
    has_inverse and 1 or 0, may_be_in_place and 1 or 0, is_real and given.overwrite and 1 or 0, effort, #sizes, batch }
  for _, of in ipairs { sizes, x.strides } do
    for i = 1, 3 do
      numbers[#numbers + 1] = of[i] or 1
    end
  end
  numbers[#numbers + 1] = x.distance
  for i = 1, 3 do
    numbers[#numbers + 1] = f.strides[i] or 1
  end
  numbers[#numbers + 1] = f.distance
  return table.concat(numbers, " ")
end

--- device:fft{ shape=, [batch = 1, kind = "c2c", type = "f32", input=, output=, scale = 1, overwrite = false, effort =
-- "estimate"] } -> plan. shape: n, or { n1[, n2[, n3]] }: the last lies together; batch: that many transforms with each
-- call. kind: "c2c" has x and X complex; "r2c" has x real and, of the last dimension of X, the n // 2 + 1 frequencies
-- that say all, in both directions; "c2r" likewise, the inverse alone. type: "f32" (complex: c64) or "f64" (c128).
-- input, output: { strides =, distance = }, in elements: from one index to the next in each dimension, each a multiple
-- of the next one and no shorter than what that covers, and from one transform to the next; input is what goes in
-- (x, or X of "c2r"), output the other side. Without them a side is packed. Transforms of x may overlap, for windows:
-- then there is no inverse. So columns of {n, m} are shape = n, batch = m, with strides = { m }, distance = 1; an x
-- that is to become X in place has rows of 2 * (n // 2 + 1). scale: a factor for what comes out, or { forward =,
-- inverse = }. overwrite: the inverse may destroy X of a real plan, where it would otherwise have to be copied
-- (shapes of several dimensions; on GPUs all). effort: "measure" tries out ways on the CPU device, which takes
-- seconds, and memory for both sides that nobody counts; cuFFT decides by itself.
-- A device keeps the 64 plans used last, so that another one like it is there at once, in captures too. Otherwise the
-- plan is made: waits, and yields in a task. The library's own tables are in no budget; its work area is a buffer, for
-- each stream, made when first needed. InvalidArgument names what does not fit; Unsupported: sizes or strides that the
-- library cannot do; LibraryUnavailable names what is missing; LibraryError; OutOfMemory; CaptureActive: it would have
-- to be made in a capture.
return function(device, given)
  core.stream_number(device) -- raises, if it is closed
  arguments.check("fft", given, plan_options)
  local sizes, batch = sizes_of(given), arguments.whole("fft", given, "batch", 1) or 1
  local kind = arguments.choice("fft", given, "kind", kinds, "c2c")
  local elements = arguments.choice("fft", given, "type", types, "f32")
  local effort = arguments.choice("fft", given, "effort", efforts, "estimate")
  arguments.flag("fft", given, "overwrite")
  local is_real, total = kind ~= "c2c", batch
  for _, size in ipairs(sizes) do
    if total > elements_max // size then
      too_many()
    end
    total = total * size
  end
  local half = { table.unpack(sizes) }
  half[#half] = is_real and half[#half] // 2 + 1 or half[#half]
  local x_option, f_option = kind ~= "c2r" and "input" or "output", kind ~= "c2r" and "output" or "input"
  local x = side_of(given, x_option, "x", is_real and elements.real or elements.complex, sizes, batch)
  local f = side_of(given, f_option, "X", elements.complex, half, batch)
  -- Libraries may end the process when they find no memory for the tables of such a plan.
  for _, side in ipairs { x, f } do
    if side.span > device.memory_bytes // element_bytes[side.type] then
      core.raise("OutOfMemory", string.format("fft: %s has %d elements of %s, more than %s has memory for", side.name,
        side.span, side.type, device.name))
    end
  end
  if f.has_overlap or x.has_overlap and kind == "c2r" then
    fail("fft", "%s: the transforms overlap: %d elements each, distance %d", f.has_overlap and f_option or x_option,
      (f.has_overlap and f or x).span - (batch - 1) * (f.has_overlap and f or x).distance,
      (f.has_overlap and f or x).distance)
  end
  local may_be_in_place = not x.has_overlap and lie_alike(x, f, batch, is_real)
  local key = options_of(is_real, kind, not x.has_overlap, may_be_in_place, given, effort, sizes, batch, x, f)
  local scale = scales_of(given)
  local known = devices[device] or new_device()
  devices[device] = known
  local entry = open_entry(device, known, key)
  return sealed(setmetatable({ device = device, known = known, entry = entry, kind = kind, is_real = is_real,
    x = x, f = f, scale = scale, may_be_in_place = may_be_in_place,
    why_not = kind == "c2r" and "a plan of kind 'c2r' has none; 'r2c' has both" or "the transforms of x overlap",
  }, metatable), methods)
end
