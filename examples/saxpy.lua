-- y = a * x + y for a million numbers: gpulua examples/saxpy.lua

local gpu = require "gpulua"
local dev = gpu.device()

local saxpy = dev:compile([[
  extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
  }]]).saxpy

local n <const> = 1 << 20
local x <close> = dev:buffer("f32", n):fill(1)
local y <close> = dev:upload("f32", n, function(i) return i end)

saxpy:launch(n, n, 2.0, x, y):await()

local last = y:read(n, n)[1]
assert(last == n + 2, "the last number is wrong")
print(("%s: y[%d] = %.0f"):format(dev.name, n, last))
