-- A kernel that writes where nothing is, and a script that goes on.
--
--   gpulua --isolate process examples/survive.lua

local gpu = require "gpulua"

local dev = gpu.device(nil, { isolate = "process" })
local mod = dev:compile [[
  extern "C" __global__ void scale(int n, float a, float *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= a;
  }
  extern "C" __global__ void astray(float *x, long long far) { x[far] = 1; }
]]

local n = 1000000
local weights = dev:upload("f32", n, function(i) return i % 10 end, { label = "weights", durable = true })
local scratch = dev:buffer("f32", n, { label = "scratch" }):fill(1)
scratch:await()
local table_of_squares = dev:buffer("f32", 10, { label = "squares", rebuild = function(squares)
  squares:write(function(i) return i * i end)
end })
table_of_squares:write(function(i) return i * i end):await()

dev:on_lost(function(err) print("lost:     " .. err.message) end)
dev:on_restored(function() print("restored: epoch " .. dev.epoch) end)

gpu.run(function()
  -- Work that has nothing to do with the fault is in flight, too.
  local is_over = false
  local other = gpu.spawn(function()
    local ok, err = pcall(function()
      repeat mod.scale:launch(n, n, 1.0, scratch):await() until is_over
    end)
    print("other:    " .. (ok and "goes on" or err.code))
  end)
  local ok, err = mod.astray:launch(1, weights, 1 << 44):join()
  is_over = true
  print("astray:   " .. tostring(ok) .. ", " .. err.code
    .. (err.suspects and ", suspect " .. err.suspects[1].label or "")) -- with --check it is the culprit itself
  other:await()

  dev:await() -- until it is up again
  print("weights:  " .. table.concat(weights:read(1, 5), " ") .. " ...")
  print("squares:  " .. table.concat(table_of_squares:read(1, 5), " ") .. " ...")
  print("scratch:  " .. select(2, pcall(scratch.read, scratch, 1, 1)).code)
  mod.scale:launch(n, n, 2.0, weights)
  print("weights:  " .. table.concat(weights:read(1, 5), " ") .. " ... doubled, by the kernel of before")
end)
