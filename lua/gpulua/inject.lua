-- Injected failures: what the core counts, and slow kernels.

local core = require "gpulua.core"
local arguments = require "gpulua.arguments"
local fail <const> = arguments.fail

local source <const> = [[
  __device__ long long now_ns() {
    long long time;
    %s
    return time;
  }
  extern "C" __global__ void injected_delay(long long ns) {
    for (long long end = now_ns() + ns; now_ns() < end;) { }
  }
]]
local clocks <const> = { cpu = "time = clock64();",
  cuda = [[asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));]] }
local kernels = setmetatable({}, { __mode = "k" }) -- by device

local options <const> = { oom = true, fault = true, lost = true, slow = true, seconds = true }
local plain = package.loaded["gpulua.device"].inject

--- device:inject{oom=, fault=, lost=, slow=, seconds=} -> device. The n-th from now on, counted from 1, goes wrong,
-- once; 0 withdraws it. oom: of new buffers, which raises OutOfMemory where neither the policy nor a hook of its memory
-- helps. fault: of operations (a graph's launch is one), as if that one had faulted: the device is lost, and the errors
-- name it. lost: the device's process is killed at that operation; without one, the same as fault. slow: the name of a
-- kernel, whose next launch (not in a capture) begins so many seconds later, 1 unless said: a kernel that waits is in
-- front of it; false withdraws it. Does not block, but that the first `slow` compiles that kernel, and yields in a
-- task. InvalidArgument.
return function(device, given)
  if type(given) == "table" then
    arguments.check("inject", given, options)
  end
  if type(given) ~= "table" or given.slow == nil and given.seconds == nil then
    return plain(device, given)
  end
  local rest = {}
  for name, value in pairs(given) do
    rest[name] = value
  end
  rest.slow, rest.seconds = nil, nil
  local seconds = given.seconds == nil and 1 or given.seconds
  if given.slow == false then
    plain(device, rest)
    core.inject_slow(device)
  elseif type(given.slow) ~= "string" then
    fail("inject", "slow: the name of a kernel expected, got %s", core.type(given.slow) or type(given.slow))
  elseif type(seconds) ~= "number" or not (seconds >= 0 and seconds <= 1e9) then
    fail("inject", "seconds: a number from 0 to 1e9 expected, got %s", tostring(seconds))
  else
    kernels[device] = kernels[device] or device:compile(string.format(source, clocks[device.kind]))
      :kernel "injected_delay"
    plain(device, rest) -- which may refuse the rest
    core.inject_slow(device, kernels[device], given.slow, math.floor(seconds * 1e9))
  end
  return device
end
