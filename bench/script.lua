-- The small work of raw_driver.c as a script does it. Prints `name value unit` lines (medians of repeats).
-- Usage: [GPULUA_COMPLETION=word|event|block] gpulua --device D --isolate T bench/script.lua
-- `GPULUA_ISOLATE=T build/bench/raw_driver bench/script.lua` makes round trips by turns with the driver's, too.
local gpu = require "gpulua"
local uv = require "luv" -- for its clock alone: Lua's own has no monotonic one
local median = require "bench.measure".median
---@type { round_trips: fun(count: integer): number }? the driver's: nanoseconds of each
local raw = rawget(_G, "raw")

local dev = gpu.device()
local mod = dev:compile [[
  extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
  }]]
local saxpy = mod.saxpy
local x, y = dev:buffer("f32", 1024):fill(0), dev:buffer("f32", 1024):fill(0)
local on_cuda = dev.kind == "cuda"

local function show(name, values, unit)
  table.sort(values)
  print(("%s %.1f %s"):format(name, values[#values // 2 + 1], unit))
end

local function repeated(times, count, before, body)
  local values = {}
  for r = 1, times do
    before()
    local start = uv.hrtime()
    body(count)
    values[r] = (uv.hrtime() - start) / count
  end
  return values
end

local function idle() dev:synchronize() end

local function launches(count)
  for _ = 1, count do saxpy:launch(1024, 1024, 2.0, x, y) end
end

local function sustained(count)
  launches(count)
  dev:synchronize()
end

-- Each behind the one before it, which is on the other stream.
local one = { grid = 4, block = 256, stream = dev:stream {} }
local other = { grid = 4, block = 256, stream = dev:stream {} }
local function alternating(count)
  for _ = 1, count // 2 do
    saxpy:launch(one, 1024, 2.0, x, y)
    saxpy:launch(other, 1024, 2.0, y, x)
  end
  dev:synchronize()
end

-- Four streams that have nothing to do with each other: what bench/lanes.c does with the driver alone.
local apart = {}
for i = 1, 4 do
  apart[i] = { config = { grid = 4, block = 256, stream = dev:stream {} }, x = dev:buffer("f32", 1024):fill(0),
    y = dev:buffer("f32", 1024):fill(0) }
end
local function four_streams(count)
  for _ = 1, count // 4 do
    for i = 1, 4 do
      local own = apart[i]
      saxpy:launch(own.config, 1024, 2.0, own.x, own.y)
    end
  end
  dev:synchronize()
end

local function round_trips(count)
  for _ = 1, count do saxpy:launch(1024, 1024, 2.0, x, y):await() end
end

launches(20000) -- rings have come round, and so has the collector
show("launch_burst", repeated(21, 500, idle, launches), "ns")
show("launch_sustained", repeated(7, on_cuda and 20000 or 2000, idle, sustained), "ns")
show("two_streams", repeated(7, on_cuda and 20000 or 2000, idle, alternating), "ns")
show("four_streams", repeated(7, on_cuda and 20000 or 2000, idle, four_streams), "ns")
show("round_trip", repeated(21, 200, idle, round_trips), "ns")
show("round_trip_idle", repeated(21, 1, function() uv.sleep(10) end, round_trips), "ns")
show("round_trip_slept", repeated(21, 1, function() gpu.sleep(0.01) end, round_trips), "ns")

-- By turns with the driver's, each behind a pause of its own: the driver's thread sleeps in one way only.
local function round_trips_of_raw(name, count, pause)
  local ratios, ours, theirs = {}, {}, {}
  local function raw_one()
    if pause then uv.sleep(10) end
    return raw.round_trips(count)
  end
  local before = raw_one()
  for r = 1, 101 do
    if pause then pause() end
    local start = uv.hrtime()
    round_trips(count)
    ours[r] = (uv.hrtime() - start) / count
    theirs[r] = raw_one()
    ratios[r], before = 2 * ours[r] / (before + theirs[r]), theirs[r]
  end
  table.sort(ratios)
  print(("%s_of_raw %.2f times"):format(name, median(ours) / median(theirs)))
  print(("%s_of_raw_by_turns %.2f, %.2f to %.2f of %.0f ns"):format(name, ratios[51], ratios[26], ratios[76],
    median(theirs)))
end
if raw then
  round_trips_of_raw("round_trip", 50)
  round_trips_of_raw("round_trip_idle", 1, function() uv.sleep(10) end)
  round_trips_of_raw("round_trip_slept", 1, function() gpu.sleep(0.01) end)
end

show("allocate_close", repeated(21, 500, idle, function(count)
  for _ = 1, count do dev:buffer("f32", 1 << 18):close() end
end), "ns")

local million = {}
for i = 1, 1000000 do million[i] = i * 0.5 end
local big = dev:buffer("f32", 1000000)
show("table_in", repeated(9, 1, idle, function()
  big:write(million)
  dev:synchronize()
end), "ns")
show("table_out", repeated(9, 1, idle, function()
  assert(big:read(1, 1000000)[1000000] == 500000.0)
end), "ns")

for line in io.lines("/proc/self/status") do
  local kib = line:match("^VmHWM:%s*(%d+)")
  if kib then print(("peak %s KiB"):format(kib)) end
end
dev:close()
