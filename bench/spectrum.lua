-- The spectrum of an ECG: windows of 1,024 samples every 64, without their mean and under a Hann window, transformed,
-- their power added up, and the strongest bin brought to the script. The same steps in C: bench/peers/ecg_raw.c of the
-- measurements of others. Prints `name value unit` lines (medians): eager, and as a graph.
-- Usage: gpulua --device D --isolate T bench/spectrum.lua
local gpu = require "gpulua"
local npy = require "gpulua.npy"
local uv = require "luv" -- for its clock
local median = require "bench.measure".median

local dev = gpu.device()
local size <const>, hop <const>, bins <const> = 1024, 64, 513
local x = gpu.map("(raw - 1024.0) / 200", { raw = npy.load(dev, "examples/data/ecg.npy") })
local frames = (#x - size) // hop + 1

local mod = dev:compile [[
  extern "C" __global__ void frame(const float *x, float *y) {
    __shared__ float part[8];
    float v[4], sum = 0;
    for (int i = 0; i < 4; i++) { v[i] = x[blockIdx.x * 64 + threadIdx.x + i * 256]; sum += v[i]; }
    for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++) sum += part[i];
    sum /= 1024;
    for (int i = 0; i < 4; i++) {
      int t = threadIdx.x + i * 256;
      y[blockIdx.x * 1024 + t] = (v[i] - sum) * (0.5f - 0.5f * cospif(2.f * t / 1024));
    }
  }
  extern "C" __global__ void power(const float2 *X, float *P, int frames) {
    __shared__ float part[8][32];
    int k = blockIdx.x * 32 + threadIdx.x;
    float a = 0;
    if (k < 513)
      for (int f = blockIdx.y * 8 + threadIdx.y; f < frames; f += 8 * gridDim.y) {
        float2 c = X[f * 513 + k];
        a += c.x * c.x + c.y * c.y;
      }
    part[threadIdx.y][threadIdx.x] = a;
    __syncthreads();
    if (threadIdx.y == 0 && k < 513) {
      for (int i = 1; i < 8; i++) a += part[i][threadIdx.x];
      atomicAdd(&P[k], a);
    }
  }
  extern "C" __global__ void strongest(const float *P, int *best) {
    int b = 3;
    for (int i = 4; i < 60; i++) if (P[i] > P[b]) b = i;
    *best = b;
  }]]
local frame = mod:kernel("frame", "x: in f32*, y: out f32*")
local power = mod:kernel("power", "X: in f32x2*, P: inout f32*, frames: i32")
local strongest = mod:kernel("strongest", "P: in f32*, best: out i32*")

local plan = dev:fft { shape = { size }, batch = frames, kind = "r2c", type = "f32" }
local y, X = dev:buffer("f32", { frames, size }), dev:buffer("c64", { frames, bins })
local P, best = dev:buffer("f32", bins), dev:buffer("i32", 1)
local framing <const> = { grid = frames, block = 256 }
local adding <const> = { grid = { 17, 16 }, block = { 32, 8 } }
local single <const> = { grid = 1, block = 1 }

local function spectrum()
  frame:launch(framing, x, y)
  plan:forward(y, X)
  P:fill(0)
  power:launch(adding, X, P, frames)
  return strongest:launch(single, P, best)
end

local function measure(name, work)
  local times, bin = {}, nil
  for _ = 1, 50 do
    work()
    bin = best:read()[1]
  end
  for r = 1, 21 do
    local start = uv.hrtime()
    for _ = 1, 50 do
      work()
      bin = best:read()[1]
    end
    times[r] = (uv.hrtime() - start) / 50
  end
  print(("%s %.1f us"):format(name, median(times) / 1000))
  return bin
end

local eager = measure("spectrum", spectrum)
local graph <close> = dev:capture(spectrum)
local graphed = measure("spectrum_graph", function() graph:launch() end)
assert(eager == graphed)
print(("spectrum_bin %d bin"):format(eager))
