-- Random pipelines: kernels, copies and fills on several streams and buffers with slices, and what happens to
-- their results when one fence is lost. For seeds_spec.lua, check/declarations.lua and bench/mutations.lua.

local gpu = require "gpulua"
local seeds = require "gpulua.seeds"
local support = require "spec.support"

local pipelines = {}

local source = [[
  extern "C" __global__ void blend(int n, const int *a, int *c, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = c[i] * 31 + a[i] * 7 + k;
  }
  extern "C" __global__ void join2(int n, const int *a, const int *b, int *c, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] * 13 + b[n - 1 - i] * 5 + k;
  }
]]

local part, parts = 16, 4 -- a buffer has four parts of sixteen elements
pipelines.source, pipelines.part, pipelines.elem_count = source, part, part * parts

--- A pipeline as a list of { kind =, stream =, target, source, ... with { buffer, first part, last part } }.
function pipelines.make(number, operation_count)
  local random = support.random(number)
  local stream_count, buffer_count = random(2, 4), random(3, 5)
  local steps = {}
  local function slice(count)
    local first = random(1, parts - count + 1)
    return { random(1, buffer_count), first, first + count - 1 }
  end
  for i = 1, operation_count do
    local kind = random(1, 10)
    local count = random(1, parts)
    local step = { stream = random(1, stream_count), k = random(1, 1000) * 100 + i, to = slice(count) }
    step.kind = kind <= 4 and "blend" or kind <= 7 and "join" or kind <= 9 and "copy" or "fill"
    step.a, step.b = slice(count), slice(count)
    -- A kernel that reads what it writes elsewhere races in itself, and a copy may not overlap itself.
    local other = step.to[1] % buffer_count + 1
    step.a[1] = step.a[1] == step.to[1] and other or step.a[1]
    step.b[1] = step.b[1] == step.to[1] and other or step.b[1]
    steps[i] = step
  end
  return { steps = steps, stream_count = stream_count, buffer_count = buffer_count }
end

--- Holds a stream for so long that all of a pipeline is there before any of it begins.
local hold_source = support.clock_source .. [[
  extern "C" __global__ void hold(long long ticks, int *x) {
    long long start = now();
    while (now() - start < ticks) { }
    x[0] = 1;
  }
]]

local function hold(dev, stream)
  dev:compile(hold_source).hold:launch({ grid = 1, block = 1, stream = stream }, 8000000, dev:buffer("i32", 1))
end

--- Runs it on a device of its own with these options: in check mode of the CPU device, or on the device `name` as it
--- comes.
--- Returns what all buffers held at the end, what the device did (dev:order(), in check mode), and how many fences
--- the recorder made.
function pipelines.run(pipeline, opts, name)
  local is_checked = not name
  opts.check = is_checked
  local dev <close> = gpu.device(name or "cpu", opts)
  local mod = dev:compile(source)
  local streams, buffers, hosts = {}, {}, {}
  for i = 1, pipeline.stream_count do
    streams[i] = dev:stream {}
    if not is_checked then
      hold(dev, streams[i])
    end
  end
  if not is_checked then
    hold(dev, dev:current())
  end
  for i = 1, pipeline.buffer_count do
    buffers[i] = dev:buffer("i32", part * parts, { label = "b" .. i })
    buffers[i]:write(function(k)
      return k * 17 + i * 1001
    end)
  end
  local function slice(of)
    return buffers[of[1]]:slice((of[2] - 1) * part + 1, of[3] * part)
  end
  for _, step in ipairs(pipeline.steps) do
    local stream, to = streams[step.stream], slice(step.to)
    local n = #to
    local config = { grid = 1, block = n, stream = stream }
    if step.kind == "blend" then
      mod.blend:launch(config, n, slice(step.a), to, step.k)
    elseif step.kind == "join" then
      mod.join2:launch(config, n, slice(step.a), slice(step.b), to, step.k)
    elseif step.kind == "copy" then
      stream:use(to.copy, to, slice(step.a))
    else
      stream:use(to.fill, to, step.k)
    end
  end
  for i, buffer in ipairs(buffers) do
    hosts[i] = dev:host("i32", #buffer)
    hosts[i]:copy(buffer)
  end
  local waits = dev:stats().waits_issued
  -- A lost fence may also show as a finding of check mode: what is read has not been written yet.
  local ok, err = pcall(dev.synchronize, dev)
  local is_quiet = ok
  while not is_quiet do -- one failure each time: none may be left for the close to raise
    is_quiet = pcall(dev.synchronize, dev)
  end
  local contents = {}
  for i, host in ipairs(hosts) do
    contents[i] = ok and host:bytes() or err.code
    host:close() -- it keeps memory of a device that is closed
  end
  return table.concat(contents), is_checked and dev:order() or nil, waits
end

--- Is each two operations that conflict by what they declare still in order, by streams and fences?
local function is_ordered(order)
  local at, before = {}, {}
  table.sort(order, function(a, b) -- as they were submitted: "1#12"
    return math.tointeger(a.name:match "%d+$") < math.tointeger(b.name:match "%d+$")
  end)
  for i, op in ipairs(order) do
    at[op.stream] = at[op.stream] or {}
    table.insert(at[op.stream], i)
    before[i] = {}
    local function take(k)
      before[i][k] = true
      for other in pairs(before[k]) do
        before[i][other] = true
      end
    end
    local own = at[op.stream]
    if #own > 1 then
      take(own[#own - 1])
    end
    for _, wait in ipairs(op.waits) do
      for _, k in ipairs(at[wait[1]] or {}) do
        if order[k].seq <= wait[2] then
          take(k)
        end
      end
    end
  end
  for i, op in ipairs(order) do
    for k = 1, i - 1 do
      if not before[i][k] and seeds.conflict(op, order[k]) then
        return false
      end
    end
  end
  return true
end

--- Loses fence `n` of a pipeline. Returns "unneeded" if all that conflicts is still in order, "caught" and the first
--- seed of at most `seed_count` that gives another result, or, when none does, "masked" (no order does) or
--- "missed"; and for "unneeded", whether a seed gave another result all the same.
function pipelines.mutate(pipeline, n, expected, seed_count)
  local is_needed = nil
  for seed = 1, seed_count do
    local contents, order = pipelines.run(pipeline, { seed = seed, unfenced = n })
    if is_needed == nil then
      is_needed = not is_ordered(order)
    end
    if contents ~= expected then
      return is_needed and "caught" or "unneeded", seed
    end
  end
  if not is_needed then
    return "unneeded", nil
  end
  local differs = false
  local result = seeds.explore(function(choices)
    choices = choices == "" and "0" or choices
    local contents, order = pipelines.run(pipeline, { seed = 1, unfenced = n, order = choices })
    differs = differs or contents ~= expected
    return order
  end, 2000)
  return (differs or not result.is_complete) and "missed" or "masked", nil
end

return pipelines
