-- Many tasks that wait for work of the device: what a waiter costs in memory and in time, and what waiting costs.
--
--   [GPULUA_COMPLETION=word|event|block] gpulua [--device D] [--isolate I] bench/waiters.lua [tasks]
--
-- A kernel on each of 8 streams runs for a while and says when it ended; behind it lie marks, which the tasks await.
-- The device's clock is compared with the host's in front of it, to what a round trip takes.

local gpu = require "gpulua"
local uv = require "luv"

local most <const> = tonumber(arg[1] or "") or 100000
local stream_count <const>, marks_max <const> = 8, 1000 -- marks of each stream
local dev = gpu.device(nil, {})
local is_cuda <const> = dev.kind == "cuda"
local mod = dev:compile(([[
  __device__ long long now() {
    long long time;
    %s
    return time;
  }
  extern "C" __global__ void spin(long long ns, long long *ended) {
    long long end = now() + ns;
    do { ended[0] = now(); } while (ended[0] < end);
  }
]]):format(is_cuda and 'asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));' or "time = clock64();"))
local streams, ended = {}, {}
for i = 1, stream_count do
  streams[i], ended[i] = dev:stream {}, dev:buffer("i64", 1):fill(0)
end

local function launch(i, ns)
  return mod.spin:launch({ grid = 1, block = 1, stream = streams[i] }, ns, ended[i])
end

-- What to add to the device's time for the host's: from the quickest of some round trips.
local function clock_offset()
  local best, offset
  for _ = 1, 200 do
    local before = uv.hrtime()
    launch(1, 0):await()
    local after = uv.hrtime()
    if not best or after - before < best then
      best, offset = after - before, (before + after) // 2 - ended[1]:read()[1]
    end
  end
  return offset, best
end

local function resident_bytes()
  for line in io.lines "/proc/self/status" do
    local kib = line:match "^VmRSS:%s+(%d+)"
    if kib then
      return tonumber(kib) * 1024
    end
  end
end

-- Seconds of processor time that a process has used.
local function used(pid)
  local file = io.open(("/proc/%s/stat"):format(pid))
  local text = file and file:read "a"
  if not text then
    return 0
  end
  file:close()
  local user, system = text:match "^%d+ %b() %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (%d+)"
  return (user + system) / 100
end

local function quantile(sorted, q)
  return sorted[math.max(1, math.ceil(#sorted * q))] / 1000
end

local function wait_with(count, offset)
  local ns = 200000000 + count * 10000 -- they are all there before it ends
  local op_streams, ops, times = {}, {}, {}
  for i = 1, stream_count do
    launch(i, ns)
  end
  for k = 1, math.min(count, stream_count * marks_max) do
    op_streams[k] = (k - 1) % stream_count + 1
    ops[k] = streams[op_streams[k]]:mark()
  end
  collectgarbage()
  collectgarbage()
  local tasks, resident, begun = {}, resident_bytes(), uv.hrtime()
  for i = 1, count do
    local op = ops[(i - 1) % #ops + 1]
    tasks[i] = gpu.spawn(function()
      op:await()
      times[i] = uv.hrtime()
    end)
  end
  gpu.sleep(0)
  local made = uv.hrtime() - begun
  local grown = resident_bytes() - resident
  for i = 1, count do
    tasks[i]:await()
  end
  -- Streams end one after the other where there are fewer cores than streams: each is looked at by itself.
  local first, last, ends, spread = {}, {}, {}, 0
  for i = 1, count do
    local stream = op_streams[(i - 1) % #ops + 1]
    first[stream] = math.min(first[stream] or math.huge, times[i])
    last[stream] = math.max(last[stream] or 0, times[i])
  end
  for i = 1, stream_count do
    ends[i] = ended[i]:read()[1] + offset
    spread = spread + (first[i] and last[i] - first[i] or 0)
  end
  for i = 1, count do
    times[i] = times[i] - ends[op_streams[(i - 1) % #ops + 1]]
  end
  table.sort(times)
  return grown / count, made / count, spread / count, times
end

local offset, trip = clock_offset()
print(("# %s, isolation %s; clocks compared within %.1f us"):format(dev.name, dev.isolation, trip / 2000))
print "waiters   bytes each   made, ns each   resumed, ns each   done to resumed, us: p50       p99     p99.9"
for _, count in ipairs { 1, 1000, most } do
  local bytes = wait_with(count, offset) -- the first time: later ones find memory that is there
  local _, made, resumed, times = wait_with(count, offset)
  print(("%7d   %10.0f   %13.0f   %16.0f   %24.1f %9.1f %9.1f"):format(count, bytes, made, resumed,
    quantile(times, 0.5), quantile(times, 0.99), quantile(times, 0.999)))
end

-- What it takes to wait for a long time.
local seconds <const> = 10
local own, other = used "self", dev.pid and used(dev.pid) or 0
local op = launch(1, seconds * 1000000000)
gpu.spawn(function() op:await() end):await()
own, other = used "self" - own, (dev.pid and used(dev.pid) or 0) - other
print(("a kernel of %d s awaited: this process used %.2f %% of a processor, the device's %.2f %%%s"):format(seconds,
  own / seconds * 100, other / seconds * 100, is_cuda and "" or " (the CPU device runs the kernel itself)"))
