-- Four mistakes that give wrong results now and then, and that nobody sees: gpulua examples/mistakes.lua
-- Check mode finds each of them, on a machine without a GPU: gpulua --check examples/mistakes.lua
local gpu = require "gpulua"

local dev = gpu.device()
local mod = dev:compile [==[
  extern "C" __global__ void scale(int n, float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] *= 2;              // the signature below says that x is only read
  }
  extern "C" __global__ void total(const float *x, float *sum) {
    __shared__ float part[64];
    part[threadIdx.x] = x[threadIdx.x];
    for (int half = 32; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    sum[threadIdx.x] = part[0];               // a barrier is missing in front of this
  }
  extern "C" __global__ void smooth(int n, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (x[i] + x[i + 1]) / 2;  // the last one reads behind the end
  }]==]
local scale = mod:kernel("scale", "i32, in f32*, out f32*")

local n = 64
local mistakes = {
  { "a write that is not declared", function(x, y) scale:launch(n, n, x, y):await() end },
  { "a missing barrier", function(x, y) mod.total:launch(n, x, y):await() end },
  { "a read past the end", function(x, y) mod.smooth:launch(n, n, x, y):await() end },
  { "two tasks that only time orders", function(x)
    local a = gpu.spawn(function() x:fill(1):await() end)
    local b = gpu.spawn(function() x:fill(2):await() end)
    gpu.all(a, b)
  end },
}
for _, mistake in ipairs(mistakes) do
  local x, y = dev:buffer("f32", n, { label = "x" }):fill(1), dev:buffer("f32", n, { label = "y" }):fill(0)
  local ok, err = pcall(mistake[2], x, y)
  print(mistake[1] .. ":\n  " .. (ok and "nobody noticed" or err.code .. ": " .. err.message))
end
