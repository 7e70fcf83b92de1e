-- What generated kernels have in common: how elements lie in memory, and which kernels there are already.

local core = require "gpulua.core"
local expression = require "gpulua.expression"
local once <const> = require "gpulua.once"

local generated = {}

-- Of an element in memory; where it is computed with, f16 and bf16 are float (expression.c_type).
generated.stored = setmetatable({ f16 = "__half", bf16 = "__nv_bfloat16", c64 = "float2", c128 = "double2" },
  { __index = expression.c_type })

generated.bytes = { i8 = 1, u8 = 1, i16 = 2, u16 = 2, f16 = 2, bf16 = 2, i32 = 4, u32 = 4, f32 = 4, i64 = 8, u64 = 8,
  f64 = 8, c64 = 8, c128 = 16 }

local loads <const> = { f16 = "__half2float(%s)", bf16 = "__bfloat162float(%s)" }
local stores <const> = { f16 = "__float2half(%s)", bf16 = "__float2bfloat16(%s)" }

--- The code that makes what is computed with of an element in memory, and the other way round.
function generated.load(t, code) return string.format(loads[t] or "%s", code) end
function generated.store(t, code) return string.format(stores[t] or "%s", code) end

--- The source with the headers that its types need.
function generated.with_headers(source)
  for name, header in pairs { __half = "fp16", __nv_bfloat16 = "bf16" } do
    if string.find(source, name, 1, true) then
      source = string.format("#include <cuda_%s.h>\n", header) .. source
    end
  end
  return source
end

--- What to do about a buffer of complex numbers where those are not taken; `name` is its name for who reads it.
function generated.parts_hint(t, name)
  return string.format('%s:view("%s", { #%s, 2 }) sees the parts as pairs of numbers', name,
    t == "c64" and "f32" or "f64", name)
end

--- Raises Closed for a handle that is; `name` is that of the argument of `what`.
function generated.check_open(what, name, value)
  local kind = core.type(value)
  if kind and string.find(kind, "^closed ") then
    core.raise("Closed", string.format("%s: %s: attempt to use a %s", what, name, kind))
  end
end

local kept_max <const> = 256
local clock = 0

--- The entry of a cache is used: it goes later than those that were used before.
function generated.use(entry)
  clock = clock + 1
  entry.used = clock
end

-- What was used longest ago goes, and has no `used` then; whoever has it still keeps it.
local function evict(known)
  local oldest, oldest_key
  for key, entry in pairs(known.by_key) do
    if not oldest or entry.used < oldest.used then
      oldest, oldest_key = entry, key
    end
  end
  known.by_key[oldest_key], known.count, oldest.used = nil, known.count - 1, nil
end

local weak_values <const> = { __mode = "v" }

--- A cache -> find(device, key, make) -> what make(compile) returned for that device and key, now or before, and its
-- entry, for generated.use. compile(source, name, signature) -> that kernel, which is compiled once for each source;
-- what make returns is to have it. The 256 used last are kept for a device. `what` has it: "map" or "reduce".
function generated.cache(what)
  local by_device = setmetatable({}, { __mode = "k" })
  return function(device, key, make)
    local known = by_device[device]
    local entry = known and known.by_key[key]
    if entry then
      generated.use(entry)
      return entry.made, entry
    elseif not known then
      known = { count = 0, by_source = setmetatable({}, weak_values), by_key = {} }
      by_device[device] = known
    end
    local made = make(function(source, name, signature)
      local text <const> = name .. "\0" .. signature .. "\0" .. source
      if not known.by_source[text] and core.capture_active(device) then
        core.raise("CaptureActive", what
          .. "'s kernel for this is not compiled yet, and compiling cannot be captured",
          string.format("call gpu.%s once before the capture", what))
      end
      return once(known.by_source, text, device, function()
        local module = device:compile(source, { name = what .. ".cu" })
        return module:kernel(name, signature), module
      end)
    end)
    entry = known.by_key[key] -- of a task that made it meanwhile
    if not entry then
      entry = { made = made }
      known.by_key[key], known.count = entry, known.count + 1
    end
    generated.use(entry)
    if known.count > kept_max then
      evict(known)
    end
    return entry.made, entry
  end
end

return generated
