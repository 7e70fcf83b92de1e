-- What check mode by hashes costs a launch, by the memory that it has to watch: gpulua [--device D] bench/hashes.lua
-- [MIB ...]. Each row: one thread that writes one element, awaited, without check mode and with it; and the rate at
-- which memory is hashed, from the difference to the row without memory.
local gpu = require "gpulua"

local sizes = { 0, 1, 16, 256 }
if #arg > 0 then
  sizes = { 0 }
  for i, text in ipairs(arg) do
    sizes[i + 1] = assert(math.tointeger(tonumber(text)), "a number of MiB expected")
  end
end

local source = [[extern "C" __global__ void put(int *x, int v) { x[0] = v; }]]
local name = gpu.device().name
local devices, put = {}, {}
for _, check in ipairs { false, name == "cpu" and "hashes" or true } do
  local dev = gpu.device(name, { check = check })
  devices[check and "hashed" or "plain"] = dev
  put[check and "hashed" or "plain"] = dev:compile(source).put
end

-- The median of 9 rounds, in microseconds.
local uv = require "luv" -- for its clock alone: Lua's own has no monotonic one
local function launch_us(kernel, x, count)
  local rounds = {}
  for round = 1, 9 do
    local start = uv.hrtime()
    for i = 1, count do
      kernel:launch({ grid = 1, block = 1 }, x, i):await()
    end
    rounds[round] = (uv.hrtime() - start) / count / 1e3
  end
  table.sort(rounds)
  return rounds[5]
end

print("| watched | plain, us | hashed, us | GB/s |\n|---|---|---|---|")
local base
for _, mib in ipairs(sizes) do
  local us = {}
  for which, dev in pairs(devices) do
    local x <close> = dev:buffer("i32", 1):fill(0)
    local big <close> = dev:buffer("u8", mib > 0 and mib << 20 or 1):fill(1)
    big:done() -- and stays as it is: hashed once, and looked at by each launch
    launch_us(put[which], x, 1)
    us[which] = launch_us(put[which], x, mib > 64 and 4 or 50)
  end
  base = base or us.hashed
  print(("| %d MiB | %.0f | %.0f | %s |"):format(mib, us.plain, us.hashed,
    mib > 0 and ("%.1f"):format((mib << 20) / (us.hashed - base) / 1e3) or "-"))
end
