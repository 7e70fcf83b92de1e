-- Known kernels that need every one of their barriers, for check_spec.lua. Each is run with `config`; `args` makes
-- its arguments on a device: numbers, and buffers, of which the last is what it computes.

local inputs = require "spec.check.inputs"

local ints, floats = inputs.ints, inputs.floats

local kernels = {}
local function kernel(name, config, args, source)
  kernels[#kernels + 1] = { name = name, config = config, args = args, source = source }
end

kernel("reduce", { grid = 3, block = 128 }, function(dev)
  return { ints(dev, 384), dev:buffer("i32", 3) }
end, [[
  extern "C" __global__ void reduce(const int *x, int *out) {
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 128 + t];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
      if (t < half) s[t] += s[t + half];
      __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
  }]])

kernel("scan", { grid = 2, block = 64 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 128) }
end, [[
  extern "C" __global__ void scan(const int *x, int *out) {
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
      int add = t >= step ? s[t - step] : 0;
      __syncthreads();
      s[t] += add;
      __syncthreads();
    }
    out[blockIdx.x * 64 + t] = s[t];
  }]])

kernel("blelloch", { grid = 1, block = 64, shared = 512 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 128) }
end, [[
  extern "C" __global__ void blelloch(const int *x, int *out) {
    extern __shared__ int s[];
    int t = threadIdx.x, offset = 1;
    s[2 * t] = x[2 * t];
    s[2 * t + 1] = x[2 * t + 1];
    for (int d = 64; d > 0; d /= 2, offset *= 2) {
      __syncthreads();
      if (t < d) s[offset * (2 * t + 2) - 1] += s[offset * (2 * t + 1) - 1];
    }
    if (t == 0) s[127] = 0;
    for (int d = 1; d < 128; d *= 2) {
      offset /= 2;
      __syncthreads();
      if (t < d) {
        int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1, old = s[a];
        s[a] = s[b];
        s[b] += old;
      }
    }
    __syncthreads();
    out[t] = s[t];
    out[t + 64] = s[t + 64];
  }]])

kernel("transpose", { grid = { 2, 2 }, block = { 16, 16 } }, function(dev)
  return { floats(dev, 1024), dev:buffer("f32", 1024) }
end, [[
  extern "C" __global__ void transpose(const float *x, float *y) {
    __shared__ float tile[16][17];
    int tx = threadIdx.x, ty = threadIdx.y;
    tile[ty][tx] = x[(blockIdx.y * 16 + ty) * 32 + blockIdx.x * 16 + tx];
    __syncthreads();
    y[(blockIdx.x * 16 + ty) * 32 + blockIdx.y * 16 + tx] = tile[tx][ty];
  }]])

kernel("histogram", { grid = 2, block = 128 }, function(dev)
  return { 500, ints(dev, 500), dev:buffer("i32", 32):fill(0) }
end, [[
  extern "C" __global__ void histogram(int n, const int *x, int *out) {
    __shared__ int bins[32];
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += 256) atomicAdd(&bins[x[i] % 32], 1);
    __syncthreads();
    if (threadIdx.x < 32) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
  }]])

kernel("bitonic", { grid = 1, block = 128 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 128) }
end, [[
  extern "C" __global__ void bitonic(const int *x, int *out) {
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int k = 2; k <= 128; k *= 2) {
      for (int j = k / 2; j > 0; j /= 2) {
        int other = t ^ j;
        if (other > t && ((t & k) == 0) == (s[t] > s[other])) {
          int old = s[t];
          s[t] = s[other];
          s[other] = old;
        }
        __syncthreads();
      }
    }
    out[t] = s[t];
  }]])

kernel("stencil", { grid = 4, block = 64 }, function(dev)
  return { 256, floats(dev, 256), dev:buffer("f32", 256) }
end, [[
  extern "C" __global__ void stencil(int n, const float *x, float *y) {
    __shared__ float s[66];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    s[t + 1] = x[i];
    if (t == 0) s[0] = i > 0 ? x[i - 1] : 0;
    if (t == 63) s[65] = i + 1 < n ? x[i + 1] : 0;
    __syncthreads();
    y[i] = s[t] + s[t + 1] + s[t + 2];
  }]])

kernel("matmul", { grid = { 2, 2 }, block = { 16, 16 } }, function(dev)
  return { 32, floats(dev, 1024), floats(dev, 1024), dev:buffer("f32", 1024) }
end, [[
  extern "C" __global__ void matmul(int n, const float *a, const float *b, float *c) {
    __shared__ float as[16][16], bs[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
      as[ty][tx] = a[row * n + k + tx];
      bs[ty][tx] = b[(k + ty) * n + col];
      __syncthreads();
      for (int i = 0; i < 16; i++) sum += as[ty][i] * bs[i][tx];
      __syncthreads();
    }
    c[row * n + col] = sum;
  }]])

kernel("dot", { grid = 2, block = 256 }, function(dev)
  return { ints(dev, 512), ints(dev, 512, 5), dev:buffer("i32", 2) }
end, [[
  extern "C" __global__ void dot(const int *x, const int *y, int *out) {
    __shared__ int sums[8];
    int t = threadIdx.x, i = blockIdx.x * 256 + t, v = x[i] * y[i];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    if (t % 32 == 0) sums[t / 32] = v;
    __syncthreads();
    if (t < 8) {
      v = sums[t];
      for (int d = 4; d > 0; d /= 2) v += __shfl_down_sync(0xff, v, d);
      if (t == 0) out[blockIdx.x] = v;
    }
  }]])

kernel("odd_even", { grid = 1, block = 32 }, function(dev)
  return { ints(dev, 64), dev:buffer("i32", 64) }
end, [[
  extern "C" __global__ void odd_even(const int *x, int *out) {
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    s[t + 32] = x[t + 32];
    __syncthreads();
    for (int round = 0; round < 64; round++) {
      int i = 2 * t + round % 2;
      if (i + 1 < 64 && s[i] > s[i + 1]) {
        int old = s[i];
        s[i] = s[i + 1];
        s[i + 1] = old;
      }
      __syncthreads();
    }
    out[t] = s[t];
    out[t + 32] = s[t + 32];
  }]])

kernel("warp_reduce", { grid = 2, block = 64 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 4) }
end, [[
  extern "C" __global__ void warp_reduce(const int *x, int *out) {
    __shared__ int s[64];
    int t = threadIdx.x, lane = t % 32;
    s[t] = x[blockIdx.x * 64 + t];
    __syncwarp();
    for (int half = 16; half > 0; half /= 2) {
      if (lane < half) s[t] += s[t + half];
      __syncwarp();
    }
    if (lane == 0) out[blockIdx.x * 2 + t / 32] = s[t];
  }]])

kernel("compact", { grid = 1, block = 128 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 128):fill(-1) }
end, [[
  extern "C" __global__ void compact(const int *x, int *out) {
    __shared__ int counts[4], starts[4];
    int t = threadIdx.x, w = t / 32, keep = x[t] % 3 == 0;
    unsigned votes = __ballot_sync(0xffffffff, keep);
    if (t % 32 == 0) counts[w] = __popc(votes);
    __syncthreads();
    if (t == 0) {
      int sum = 0;
      for (int i = 0; i < 4; i++) {
        starts[i] = sum;
        sum += counts[i];
      }
    }
    __syncthreads();
    if (keep) out[starts[w] + __popc(votes & ((1u << t % 32) - 1))] = x[t];
  }]])

kernel("softmax", { grid = 2, block = 64 }, function(dev)
  return { floats(dev, 128), dev:buffer("f32", 128) }
end, [[
  extern "C" __global__ void softmax(const float *x, float *y) {
    __shared__ float s[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    float v = x[i];
    s[t] = v;
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
      if (t < half) s[t] = fmaxf(s[t], s[t + half]);
      __syncthreads();
    }
    float e = expf(v - s[0]);
    __syncthreads();
    s[t] = e;
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
      if (t < half) s[t] += s[t + half];
      __syncthreads();
    }
    y[i] = e / s[0];
  }]])

kernel("life", { grid = 1, block = { 16, 16 } }, function(dev)
  return { ints(dev, 256), dev:buffer("i32", 256) }
end, [[
  extern "C" __global__ void life(const int *x, int *out) {
    __shared__ unsigned char now[16][16];
    int tx = threadIdx.x, ty = threadIdx.y;
    now[ty][tx] = x[ty * 16 + tx] & 1;
    __syncthreads();
    for (int round = 0; round < 3; round++) {
      int count = 0;
      for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
          if (dx != 0 || dy != 0) count += now[(ty + dy) & 15][(tx + dx) & 15];
      int alive = count == 3 || (count == 2 && now[ty][tx]);
      __syncthreads();
      now[ty][tx] = alive;
      __syncthreads();
    }
    out[ty * 16 + tx] = now[ty][tx];
  }]])

kernel("in_place_reverse", { grid = 2, block = 64 }, function(dev)
  return { ints(dev, 128) }
end, [[
  extern "C" __global__ void in_place_reverse(int *x) {
    int t = threadIdx.x, base = blockIdx.x * 64, v = x[base + 63 - t];
    __syncthreads();
    x[base + t] = v;
  }]])

kernel("relax", { grid = 1, block = 64 }, function(dev)
  return { floats(dev, 66), dev:buffer("f32", 64) }
end, [[
  extern "C" __global__ void relax(const float *x, float *out) {
    __shared__ float a[66], b[66];
    int t = threadIdx.x;
    a[t + 1] = x[t + 1];
    if (t < 2) a[t * 65] = b[t * 65] = x[t * 65];
    __syncthreads();
    for (int round = 0; round < 4; round++) {
      b[t + 1] = 0.5f * (a[t] + a[t + 2]);
      __syncthreads();
      a[t + 1] = 0.5f * (b[t] + b[t + 2]);
      __syncthreads();
    }
    out[t] = a[t + 1];
  }]])

kernel("broadcast", { grid = 2, block = 96 }, function(dev)
  return { ints(dev, 192), dev:buffer("i32", 192) }
end, [[
  struct best { int value, at; };
  extern "C" __global__ void broadcast(const int *x, int *out) {
    __shared__ best found;
    __shared__ int s[96];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 96 + t];
    __syncthreads();
    if (t == 40) {
      best b = {s[0], 0};
      for (int i = 1; i < 96; i++)
        if (s[i] > b.value) b = {s[i], i};
      found = b;
    }
    __syncthreads();
    out[blockIdx.x * 96 + t] = found.value * 1000 + found.at;
  }]])

return kernels
