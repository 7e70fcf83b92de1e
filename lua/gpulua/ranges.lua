-- Ranges of scripts for profilers; see src/ranges/ranges.h.

local core = require "gpulua.core"
local check_self <const> = require "gpulua.arguments".check_self
local sealed = require "gpulua.sealed"

local range = {}
range.__index = range
range.__name = "gpulua.range"

local silent -- nobody is told: one for all, and nothing to be done with it

--- range:close(): the range ends here. Once more: nothing. Also <close>, and the collector.
function range.close(self)
  if not rawequal(self, silent) then
    check_self("close", self, range, "gpulua.range")
  end
  local id, traced = self.id, self.traced
  self.id, self.traced = nil, nil
  if id then
    core.range_end(id)
  end
  if traced then
    core.trace_range_end(traced)
  end
end
range.__close = range.close
range.__gc = range.close

silent = setmetatable({}, { __index = { close = range.close }, __close = range.close, __name = range.__name })

local ranges = {}

--- gpu.range(name[, payload]) -> range: what the script does from here to range:close(), for traces and, if GPULUA_NVTX
-- asks for ranges, for a profiler's timeline. It may go across waits, and those of different tasks may overlap. Names
-- are shown up to 255 bytes, with U+FFFD for control characters and for bytes that are no UTF-8; `payload` is an
-- integer. Neither blocks nor yields. InvalidArgument.
-- Source: NVTX 3, nvtxDomainRangeStartEx.
function ranges.range(name, payload)
  if type(name) ~= "string" then
    core.raise("InvalidArgument", string.format("argument 1 of range: a string expected, not %s",
      name == nil and "nothing" or core.type(name) or type(name)))
  end
  if payload ~= nil and math.type(payload) ~= "integer" then
    core.raise("InvalidArgument", string.format("argument 2 of range: an integer expected, not %s",
      core.type(payload) or math.type(payload) or type(payload)))
  end
  local traced, is_on = core.trace_range(name), core.ranges_are_on()
  if not traced and not is_on then
    return silent
  end
  return sealed(setmetatable({ id = is_on and core.range_start(name, payload or 0) or nil, traced = traced }, range),
    range)
end

return ranges
