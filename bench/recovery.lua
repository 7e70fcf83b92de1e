-- What a fault costs: from the fault's launch to its awaiter's error, and to the first good launch behind it, without
-- a spare and with one. A script has a device with kernels and a buffer that is durable; then it goes wrong. With a
-- number of modules: so many others, and the libraries for linear algebra, Fourier transforms and random numbers.
--
--   gpulua [--device D] bench/recovery.lua [rounds [modules]]

local gpu = require "gpulua"
local uv = require "luv"

local rounds <const> = tonumber(arg[1] or "") or 5
local others <const> = tonumber(arg[2] or "") or 0
local source <const> = [[
  extern "C" __global__ void add(int *x, int by) { x[threadIdx.x] += by; }
  extern "C" __global__ void wild(int *x, long long at) { ((volatile int *)at)[0] = x[0]; }
  extern "C" __global__ void odd(int *x) { ((volatile int *)((char *)x + 1))[0] = 1; }
  extern "C" __global__ void trap(int *x) { x[0] = 1; __trap(); }
  extern "C" __global__ void check(int *x) { assert(x == nullptr); }
  extern "C" __global__ void hang(volatile int *x) { x[0] = 0; while (x[0] == 0) { } }
]]
local one <const> = { grid = 1, block = 1 }
local hang_s <const> = 0.1

local function now()
  return uv.hrtime() / 1e6
end

local faults <const> = {
  { "wild address", function(_, mod, x) return mod.wild:launch(one, x, 16) end },
  { "misaligned address", function(dev, mod, x) return dev.kind == "cuda" and mod.odd:launch(one, x) end },
  { "__trap()", function(_, mod, x) return mod.trap:launch(one, x) end },
  { "failed assert", function(dev, mod, x) return dev.kind == "cuda" and mod.check:launch(one, x) end },
  { "kernel that hangs, deadline of 0.1 s (taken off)", function(_, mod, x)
    return mod.hang:launch(one, x):deadline(hang_s), hang_s * 1000
  end },
  { "child killed", function(dev, mod, x)
    local op = mod.hang:launch(one, x)
    os.execute("kill -9 " .. dev.pid)
    return op
  end },
}

local function summary(values)
  table.sort(values)
  return ("%8.1f %8.1f"):format(values[#values // 2 + 1], values[#values])
end

local function open_more(dev)
  local all = { dev:blas(), dev:fft { shape = 4096 }, dev:rng { seed = 1 } }
  for i = 1, others do
    local name = "other" .. i
    local text = ('extern "C" __global__ void %s(int *x) { x[threadIdx.x] *= %d; }'):format(name, i)
    all[#all + 1] = dev:compile(text)[name]
  end
  return all
end

for _, spare in ipairs { false, true } do
  local dev = gpu.device(nil, { isolate = "process", restarts = 1000, spare = spare })
  local mod = dev:compile(source)
  local more = others > 0 and open_more(dev) or {}
  local x = dev:upload("i32", { 1, 2, 3, 4 }, { durable = true })
  if not spare then
    print(("# %s; ms from the launch, median and most of %d; %d handles besides"):format(dev.name, rounds, #more))
    print "spare  fault                                               to the error       to a good launch's end"
  end
  for _, fault in ipairs(faults) do
    local to_error, to_launch = {}, {}
    for round = 1, rounds do
      mod.add:launch({ grid = 1, block = 4 }, x, 0):await()
      gpu.sleep(spare and 1.5 or 0.1) -- the spare is there again
      local y <close> = dev:buffer("i32", 1)
      local begun = now()
      local op, waited = fault[2](dev, mod, y)
      if not op then
        break
      end
      local ok = op:join()
      local failed = now()
      assert(not ok)
      dev:await()
      local good = mod.add:launch({ grid = 1, block = 4 }, x, 0)
      good:await()
      to_error[round], to_launch[round] = failed - begun - (waited or 0), now() - begun - (waited or 0)
      assert(x:read()[3] == 3)
    end
    if #to_error > 0 then
      print(("%-5s  %-48s  %s    %s"):format(spare and "yes" or "no", fault[1], summary(to_error), summary(to_launch)))
    end
  end
  dev:close()
end
