-- A kernel that says what is wrong with its input, and a script that goes on.
--
--   gpulua examples/checked.lua

local gpu = require "gpulua"

local dev = gpu.device()
local mod = dev:compile [[
#include <gpulua_kernel.h>

extern "C" __global__ void roots(int n, const float *x, float *y, gpulua_ctx ctx) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || !gpulua_check(ctx, x[i] >= 0, "x[%d] is %g", i, x[i])) return;
  y[i] = sqrtf(x[i]);
}

extern "C" __global__ void add(int n, const float *x, float *y, gpulua_ctx ctx) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}]]

local n <const> = 1000

-- One measurement: the sum of two series of roots.
local function measure(values, others)
  local x <close> = dev:upload("f32", values)
  local z <close> = dev:upload("f32", others)
  local y <close> = dev:buffer("f32", n)
  local sum <close> = dev:buffer("f32", n):fill(0)
  mod.roots:launch(n, n, x, y)
  mod.add:launch(n, n, y, sum) -- does nothing where y has failed
  mod.roots:launch(n, n, z, y)
  mod.add:launch(n, n, y, sum)
  return sum:read(1, 3)
end

local good, bad = {}, {}
for i = 1, n do
  good[i] = i * i
  bad[i] = i == 778 and -4 or i * i
end

print("good:", table.concat(measure(good, good), " "))
local ok, err = pcall(measure, good, bad)
assert(not ok)
print("bad:", err.code)
print("root:", err.root.label, (err.message:match "which failed: (.*)"))
print("good:", table.concat(measure(good, good), " "))
