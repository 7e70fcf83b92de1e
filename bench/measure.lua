-- What the benches in Lua have in common.
local uv = require "luv" -- for its clock: Lua's own has no monotonic one

local measure = {}

function measure.median(values)
  table.sort(values)
  return values[#values // 2 + 1]
end

--- Seconds of one f(), the median of `rounds` rounds of `runs`, which are enqueued one behind the other.
function measure.seconds(dev, rounds, runs, f)
  f()
  dev:synchronize()
  local times = {}
  for r = 1, rounds do
    local start = uv.hrtime()
    for _ = 1, runs do
      f()
    end
    dev:synchronize()
    times[r] = (uv.hrtime() - start) / runs / 1e9
  end
  return measure.median(times)
end

return measure
