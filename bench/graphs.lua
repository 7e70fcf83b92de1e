-- Graphs captured from a linear script, against bench/graphs.c, which puts the same together with the driver alone.
-- Prints `name value unit` lines (medians). Usage: gpulua --device D --isolate T bench/graphs.lua
-- `build/bench/graphs bench/graphs.lua` runs it beside the driver's own graphs, and prints what launching takes of what
-- the driver's launches took immediately before and behind, too.
local gpu = require "gpulua"
local uv = require "luv" -- for its clock
local median = require "bench.measure".median

local dev = gpu.device()
local on_cuda = dev.kind == "cuda"
local tick = on_cuda
  and dev:load("bench/tick.ptx"):kernel("tick", "inout i32*, u64") -- the same kernel, and not only the same source
  or dev:compile([[
  extern "C" __global__ void tick(int *x, unsigned long long ticks) {
    long long start = clock64();
    while (clock64() - start < (long long)ticks) { }
    x[threadIdx.x] += 1;
  }]]).tick
local repeats <const> = 15

local buffers = {}
for i = 1, 64 do
  buffers[i] = dev:buffer("i32", 1024):fill(0)
end

local config <const> = { grid = 1, block = 32 }

local function record(nodes, chains, ticks, first)
  local capture = dev:capture()
  for i = 0, nodes - 1 do
    tick:launch(config, buffers[i % chains + (first or 1)], ticks)
  end
  return capture
end

local function captured(...)
  local capture <close> = record(...)
  return capture:finish()
end

-- Calls burst() again and again, which gives the nanoseconds of one of its launches, between bursts of the driver's.
---@type { use: fun(nodes: integer, chains: integer, buffer: any?), patch: (fun(nodes: integer): number),
---   burst: fun(launches: integer): number, number }?
local raw = rawget(_G, "raw")
local function beside_raw(name, nodes, chains, burst)
  if not raw then return end
  raw.use(nodes, chains)
  local ratios, theirs, before = {}, {}, raw.burst(20)
  for r = 1, 101 do
    local ours <const> = burst()
    local behind <const> = raw.burst(20)
    ratios[r], theirs[r], before = 2 * ours / (before + behind), behind, behind
  end
  print(("%s_of_raw %.2f times"):format(name, median(ratios))) -- sorted now
  print(("%s_of_raw_quarters %.2f to %.2f of %.0f ns"):format(name, ratios[26], ratios[76], median(theirs)))
end

-- What each of 20 calls takes, which launch20 makes: a function for each would be part of it. All are over before and
-- behind.
local function burst_of(launch20)
  return function()
    local start = uv.hrtime()
    launch20()
    local ns <const> = (uv.hrtime() - start) / 20
    dev:synchronize()
    return ns
  end
end

local function measure(name, graph, replays)
  local enqueue, replay = {}, {}
  local last = graph:launch()
  for r = 1, repeats do
    while not last:done() do end -- awake, as the driver's own wait leaves its caller
    local start = uv.hrtime()
    for _ = 1, 20 do graph:launch() end
    enqueue[r] = (uv.hrtime() - start) / 20
    dev:synchronize()
    local count <const> = on_cuda and replays or 20
    start = uv.hrtime()
    for _ = 1, count do graph:launch() end
    dev:synchronize()
    replay[r] = (uv.hrtime() - start) / count
    last = graph:launch()
  end
  print(("%s_enqueue %.0f ns"):format(name, median(enqueue)))
  local shape <const>, nodes <const> = name:match "^(%l+)_(%d+)$"
  if nodes then
    beside_raw(name .. "_enqueue", tonumber(nodes), shape == "chain" and 1 or tonumber(nodes),
      burst_of(function()
        for _ = 1, 20 do graph:launch() end
      end))
  end
  print(("%s_replay %.2f us"):format(name, median(replay) / 1000))
  graph:close()
end

-- A kernel takes as long as its memory lies far from where it runs, so each of some buffers, as in bench/graphs.c.
local function measure_places()
  local least, most = math.huge, 0
  for first = 1, 16 do
    local graph <close> = captured(10, 1, 0, first)
    local replay = {}
    for r = 1, repeats do
      dev:synchronize()
      local start = uv.hrtime()
      for _ = 1, 200 do graph:launch() end
      dev:synchronize()
      replay[r] = (uv.hrtime() - start) / 200
    end
    least, most = math.min(least, median(replay)), math.max(most, median(replay))
  end
  print(("chain_10_replay_least %.2f us\nchain_10_replay_most %.2f us"):format(least / 1000, most / 1000))
end

-- Replays of kernels that wait for each other, by turns with the driver's of the same on the same memory, which
-- nobody but us sees under process.
local function replays_beside_raw(nodes, replays)
  if not raw or dev.isolation ~= "none" then return end
  local graph <close> = captured(nodes, 1, 0)
  raw.use(nodes, 1, buffers[1])
  local ratios, theirs = {}, {}
  for r = -3, 41 do
    local _, before <const> = raw.burst(replays)
    local start = uv.hrtime()
    for _ = 2, replays do graph:launch() end
    local last <const> = graph:launch()
    while not last:done() do end -- awake, as the driver waits
    local ours <const> = (uv.hrtime() - start) / replays
    local _, behind <const> = raw.burst(replays)
    if r > 0 then ratios[r], theirs[r] = 2 * ours / (before + behind), behind end
  end
  print(("chain_%d_replay_of_raw %.3f times"):format(nodes, median(ratios))) -- sorted now
  print(("chain_%d_replay_of_raw_quarters %.3f to %.3f of %.2f us"):format(nodes, ratios[11], ratios[31],
    median(theirs) / 1000))
end

local ten_us <const> = on_cuda and 18000 or 30000
replays_beside_raw(1, 2000)
replays_beside_raw(10, 1000)
replays_beside_raw(100, 300)
measure_places()
measure("chain_1", captured(1, 1, 0), 5000) -- as many as in bench/graphs.c
measure("chain_10", captured(10, 1, 0), 2000)
measure("chain_100", captured(100, 1, 0), 300)
measure("small_4x24", captured(96, 4, 0), 1000)
measure("broad_64", captured(64, 64, 0), 1000) -- each kernel has memory of its own
measure("10us_8x12", captured(96, 8, ten_us), 200)
local recording, whole = {}, {}
for r = 1, repeats do -- capturing alone, like bench/graphs.c
  local start = uv.hrtime()
  local capture <close> = record(100, 1, 0)
  recording[r] = uv.hrtime() - start
  assert(capture)
end
for r = 1, repeats do -- and making it a graph
  local start = uv.hrtime()
  local graph <close> = captured(100, 1, 0)
  whole[r] = uv.hrtime() - start
  assert(graph)
end
print(("capture_100 %.1f us"):format(median(recording) / 1000))
print(("capture_100_whole %.1f us"):format(median(whole) / 1000))

-- A graphed function: with nothing changed, with an op for each call and (unasked) with none, as graph:launch() is
-- measured above; and with a number that each launch is given anew. Against the driver's chain_N_enqueue, and replays.
local function graphed(nodes, changes)
  local fast <close> = dev:graphed({ warmup = 0 }, function(ticks)
    for i = 1, nodes do
      tick:launch(config, buffers[1], i <= changes and ticks or 0)
    end
  end)
  local last, times, unasked = fast(0), {}, {}
  for r = 1, repeats do
    while not last:done() do end
    local start = uv.hrtime()
    for i = 1, 20 do last = fast(changes > 0 and i % 2 or 0) end
    times[r] = (uv.hrtime() - start) / 20
    if changes == 0 then
      while not last:done() do end
      start = uv.hrtime()
      for _ = 1, 20 do fast(0) end
      unasked[r] = (uv.hrtime() - start) / 20
      last = fast(0)
    end
  end
  dev:synchronize()
  print(("graphed_%d_changed_%d %.0f ns"):format(nodes, changes, median(times)))
  if changes == 0 then
    beside_raw(("graphed_%d"):format(nodes), nodes, 1, burst_of(function()
      for _ = 1, 20 do fast(0) end
    end))
    print(("graphed_%d_unasked %.0f ns"):format(nodes, median(unasked)))
  end
end
for _, nodes in ipairs { 1, 10, 100 } do
  graphed(nodes, 0)
  graphed(nodes, 1)
  if nodes > 1 then
    graphed(nodes, nodes)
  end
end
-- What each number more costs that changes: of a graphed function and, by turns with it, of the driver.
local function number_more(nodes)
  local function calls_of(changes)
    local fast = dev:graphed({ warmup = 0 }, function(ticks)
      for i = 1, nodes do
        tick:launch(config, buffers[1], i <= changes and ticks or 0)
      end
    end)
    return burst_of(function()
      for i = 1, 20 do fast(i % 2) end
    end), fast
  end
  local one <const>, of_one <close> = calls_of(1)
  local all <const>, of_all <close> = calls_of(nodes)
  local ours, theirs = {}, {}
  assert(of_one and of_all)
  if raw then raw.use(nodes, 1) end
  for r = -3, 51 do
    local of_us <const>, of_driver <const> = all() - one(), raw and raw.patch(nodes) - raw.patch(1) or 0
    if r > 0 then ours[r], theirs[r] = of_us / (nodes - 1), of_driver / (nodes - 1) end
  end
  print(("number_more_%d %.0f ns"):format(nodes, median(ours))) -- sorted now
  print(("number_more_%d_quarters %.0f to %.0f ns"):format(nodes, ours[13], ours[38]))
  if raw then print(("number_more_%d_raw %.0f ns"):format(nodes, median(theirs))) end
end
number_more(10)
number_more(100)
-- The same by name: one number of one node.
for _, nodes in ipairs { 1, 10, 100 } do
  local graph <close> = captured(nodes, 1, 0)
  local times, last = {}, graph:launch()
  for r = 1, repeats do
    while not last:done() do end
    local start = uv.hrtime()
    for i = 1, 20 do
      graph:bind { ["tick#1.2"] = i % 2 }
      last = graph:launch()
    end
    times[r] = (uv.hrtime() - start) / 20
  end
  dev:synchronize()
  print(("bind_%d_changed_1 %.0f ns"):format(nodes, median(times)))
end
-- A sequence with 32 temporaries of 1 MiB, each read by the next only: what the graph needs for them.
do
  local n <const> = 262144
  local next_of = dev:compile([[
    extern "C" __global__ void next(const float *x, float *y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = x[i] + 1;
    }]]):kernel("next", "in f32*, out f32*, i32")
  local x <close> = dev:buffer("f32", n):fill(0)
  dev:synchronize()
  collectgarbage()
  local before = dev:stats().bytes_live
  local graph <close> = dev:capture(function()
    local t = x
    for _ = 1, 32 do
      local u = dev:buffer("f32", n)
      next_of:launch(n, t, u, n)
      t = u
    end
    x:copy(t)
  end)
  graph:launch():await()
  print(("bytes_temporaries %d bytes"):format(dev:stats().bytes_live - before))
end
