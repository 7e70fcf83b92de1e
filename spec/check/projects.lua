-- Kernels as projects have them, each right and with one mistake, for check_projects_spec.lua. Lines of a source end
-- with marks: "//@here". A mistake is what is put in the place of what, another launch or another signature.
--
--   run(dev, kernel, wrong)  launches it; returns the operation that may fail, and what it computed as a table
--   want()                   what that should be
--   mistake                  { name =, from =, to =, code =, says = { .. }, at = "mark", other = "mark" }

local projects = {}

local function project(own)
  projects[#projects + 1] = own
end

local function rows(n, f)
  local list = {}
  for i = 1, n do
    list[i] = f(i - 1)
  end
  return list
end

--- Small whole numbers, which floats add up without rounding.
local function value(i)
  return (i * 7 + 3) % 11 - 5
end

local function sum_of(list)
  local sum = 0
  for _, v in ipairs(list) do
    sum = sum + v
  end
  return sum
end

project {
  name = "reduction with warp shuffles",
  source = [[
__device__ float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
  return v;
}
extern "C" __global__ void kernel(int n, const float *x, float *total) {
  __shared__ float partial[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  v = warp_sum(v);
  if (lane == 0) partial[warp] = v; //@put
  __syncthreads();
  if (warp == 0) {
    v = lane < blockDim.x / 32 ? partial[lane] : 0; //@get
    v = warp_sum(v);
    if (lane == 0) atomicAdd(total, v);
  }
}]],
  run = function(dev, kernel)
    local x, total = dev:upload("f32", 1000, value), dev:buffer("f32", 1, { label = "total" }):fill(0)
    return kernel:launch({ grid = 2, block = 128 }, 1000, x, total), total
  end,
  want = function() return { sum_of(rows(1000, function(i) return value(i + 1) end)) } end,
  mistake = { name = "a barrier is missing", from = "__syncthreads%(%);", to = "",
    code = { "RaceFound", "InvalidData" }, says = { "static shared memory" }, at = { "put", "get" } },
}

project {
  name = "tiled matrix product",
  source = [[
#define TILE 8
extern "C" __global__ void kernel(int m, int n, int k, const float *a, const float *b, float *c) {
  __shared__ float as[TILE][TILE], bs[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < (k + TILE - 1) / TILE; t++) {
    int ax = t * TILE + threadIdx.x, by = t * TILE + threadIdx.y;
    as[threadIdx.y][threadIdx.x] = row < m && ax < k ? a[row * k + ax] : 0;
    bs[threadIdx.y][threadIdx.x] = by < k && col < n ? b[by * n + col] : 0;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < TILE; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = sum; //@store
}]],
  run = function(dev, kernel)
    local a, b = dev:upload("f32", 20 * 10, value), dev:upload("f32", 10 * 17, value)
    local c = dev:buffer("f32", 20 * 17, { label = "c" })
    return kernel:launch({ grid = { 3, 3 }, block = { 8, 8 } }, 20, 17, 10, a, b, c), c
  end,
  want = function()
    return rows(20 * 17, function(i)
      local row, col = i // 17, i % 17
      return sum_of(rows(10, function(k) return value(row * 10 + k + 1) * value(k * 17 + col + 1) end))
    end)
  end,
  mistake = { name = "a guard is off by one", from = "if %(row < m &&", to = "if (row <= m &&", code = "OutOfBounds",
    says = { "wrote 4 bytes outside of every buffer", "argument 6 ('c')" }, at = "store" },
}

project {
  name = "histogram with shared atomics",
  source = [[
extern "C" __global__ void kernel(int n, const unsigned char *x, int *bins) {
  __shared__ int own[16];
  if (threadIdx.x < 16) own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i] / 16], 1);
  __syncthreads();
  if (threadIdx.x < 16)
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]); //@merge
}]],
  run = function(dev, kernel)
    local x = dev:upload("u8", 2000, function(i) return i * 37 % 256 end)
    local bins = dev:buffer("i32", 16, { label = "bins" }):fill(0)
    return kernel:launch({ grid = 3, block = 64 }, 2000, x, bins), bins
  end,
  want = function()
    local bins = rows(16, function() return 0 end)
    for i = 1, 2000 do
      local bin = i * 37 % 256 // 16 + 1
      bins[bin] = bins[bin] + 1
    end
    return bins
  end,
  mistake = { name = "blocks race", from = "atomicAdd%(&bins%[threadIdx.x%], own%[threadIdx.x%]%);",
    to = "bins[threadIdx.x] += own[threadIdx.x];", code = "RaceFound",
    says = { "buffer 'bins'", "nothing orders the blocks of a launch" }, at = "merge", other = "merge" },
}

project {
  name = "prefix scan",
  source = [[
extern "C" __global__ void kernel(int n, const int *x, int *y) {
  extern __shared__ int s[];
  int t = threadIdx.x;
  s[t] = t < n ? x[t] : 0; //@load
  __syncthreads();
  for (int step = 1; step < blockDim.x; step *= 2) {
    int before = t >= step ? s[t - step] : 0; //@take
    __syncthreads();
    s[t] += before;
    __syncthreads();
  }
  if (t < n) y[t] = s[t];
}]],
  run = function(dev, kernel)
    local x, y = dev:upload("i32", 100, value), dev:buffer("i32", 100)
    return kernel:launch({ grid = 1, block = 128, shared = 512 }, 100, x, y), y
  end,
  want = function()
    local sum = 0
    return rows(100, function(i)
      sum = sum + value(i + 1)
      return sum
    end)
  end,
  mistake = { name = "shared memory is not set", from = "s%[t%] = t < n %? x%[t%] : 0;", to = "if (t < n) s[t] = x[t];",
    code = "InvalidData", says = { "read dynamic shared memory at byte ", "which its block has not written yet" } },
}

project {
  name = "softmax",
  source = [[
extern "C" __global__ void kernel(int cols, const float *x, float *y) {
  __shared__ float s[64];
  const float *row = x + blockIdx.x * cols;
  float *out = y + blockIdx.x * cols;
  int t = threadIdx.x;
  float most = -3e38f;
  for (int i = t; i < cols; i += blockDim.x) most = fmaxf(most, row[i]);
  s[t] = most;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) s[t] = fmaxf(s[t], s[t + half]);
    __syncthreads();
  }
  most = s[0];
  __syncthreads();
  float sum = 0;
  for (int i = t; i < cols; i += blockDim.x) {
    float e = expf(row[i] - most);
    out[i] = e; //@store
    sum += e;
  }
  s[t] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();
  }
  for (int i = t; i < cols; i += blockDim.x) out[i] /= s[0];
}]],
  run = function(dev, kernel)
    local x, y = dev:upload("f32", 3 * 100, value), dev:buffer("f32", 3 * 100, { label = "y" })
    return kernel:launch({ grid = 3, block = 64 }, 100, x, y), y
  end,
  want = function()
    return rows(300, function(i)
      local first = i // 100 * 100
      return math.exp(value(i + 1)) / sum_of(rows(100, function(k) return math.exp(value(first + k + 1)) end))
    end)
  end,
  mistake = { name = "the declaration has the wrong directions", signature = "i32, x: in f32*, y: in f32*",
    code = "UndeclaredAccess", says = { "wrote buffer 'y', declared in, at byte" }, at = "store" },
}

project {
  name = "layer normalisation",
  source = [[
__device__ float all_sum(float v) {
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o); //@shuffle
  return v;
}
extern "C" __global__ void kernel(int cols, float eps, const float *x, const float *gamma, const float *beta,
                                  float *y) {
  int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
  const float *in = x + row * cols;
  float sum = 0, squares = 0;
  for (int i = lane; i < cols; i += 32) sum += in[i];
  float mean = all_sum(sum) / cols; //@mean
  for (int i = lane; i < cols; i += 32) squares += (in[i] - mean) * (in[i] - mean);
  float scale = rsqrtf(all_sum(squares) / cols + eps);
  for (int i = lane; i < cols; i += 32) y[row * cols + i] = (in[i] - mean) * scale * gamma[i] + beta[i];
}]],
  run = function(dev, kernel)
    local x, y = dev:upload("f32", 4 * 40, value), dev:buffer("f32", 4 * 40)
    local gamma, beta = dev:buffer("f32", 40):fill(2), dev:buffer("f32", 40):fill(1)
    return kernel:launch({ grid = 2, block = { 32, 2 } }, 40, 1e-5, x, gamma, beta, y), y
  end,
  want = function()
    return rows(160, function(i)
      local first = i // 40 * 40
      local row = rows(40, function(k) return value(first + k + 1) end)
      local mean, squares = sum_of(row) / 40, 0
      for _, v in ipairs(row) do
        squares = squares + (v - mean) ^ 2
      end
      return (value(i + 1) - mean) / math.sqrt(squares / 40 + 1e-5) * 2 + 1
    end)
  end,
  mistake = { name = "the mask of a shuffle leaves lanes out", from = "0xffffffffu", to = "0xffffu",
    code = "InvalidArgument", says = { "mask 0x0000ffff, of which it is none: its lane is " }, at = "shuffle",
    caller = "mean" },
}

project {
  name = "stencil with halos",
  source = [[
#define R 3
extern "C" __global__ void kernel(int n, const float *x, float *y) {
  extern __shared__ float s[];
  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x + R;
  s[t] = i < n ? x[i] : 0; //@centre
  if (threadIdx.x < R) {
    s[t - R] = i >= R ? x[i - R] : 0;
    int right = i + blockDim.x;
    s[t + blockDim.x] = right < n ? x[right] : 0; //@right
  }
  __syncthreads();
  float sum = 0;
  for (int k = -R; k <= R; k++) sum += s[t + k];
  if (i < n) y[i] = sum;
}]],
  run = function(dev, kernel, is_wrong)
    local x, y = dev:upload("f32", 200, value), dev:buffer("f32", 200)
    local shared = 4 * (is_wrong and 64 or 64 + 6)
    return kernel:launch({ grid = 4, block = 64, shared = shared }, 200, x, y), y
  end,
  want = function()
    return rows(200, function(i)
      return sum_of(rows(7, function(k)
        local at = i + k - 3
        return at >= 0 and at < 200 and value(at + 1) or 0
      end))
    end)
  end,
  mistake = { name = "the launch has too little shared memory", code = "OutOfBounds",
    says = { "wrote 4 bytes at byte 2", "of dynamic shared memory, of which the launch asked for 256 bytes" } },
}

project {
  name = "sparse matrix by vector",
  source = [=[
extern "C" __global__ void kernel(int count, const int *first, const int *cols, const float *values, const float *x,
                                  float *y) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= count) return;
  float sum = 0;
  for (int k = first[row]; k < first[row + 1]; k++)
    sum += values[k] * x[cols[k]]; //@gather
  y[row] = sum;
}]=],
  run = function(dev, kernel)
    local first = dev:upload("i32", 51, function(i) return (i - 1) * 3 end)
    local cols = dev:upload("i32", 150, function(i) return i * 13 % 50 end)
    local values, x = dev:upload("f32", 150, value), dev:upload("f32", 50, value)
    local y = dev:buffer("f32", 50)
    return kernel:launch(50, 50, first, cols, values, x, y), y
  end,
  want = function()
    return rows(50, function(i)
      return sum_of(rows(3, function(k)
        local at = i * 3 + k + 1
        return value(at) * value(at * 13 % 50 + 1)
      end))
    end)
  end,
  mistake = { name = "an index overflows", from = "x%[cols%[k%]%]", to = "x[cols[k] * 48271003 %% 50]",
    code = "OutOfBounds", says = { "read 4 bytes outside of every buffer",
      "before the nearest range declared, argument 5 ('x')" }, at = "gather" },
}

project {
  name = "one pass of a radix sort",
  source = [[
extern "C" __global__ void kernel(int n, int shift, const unsigned *keys, unsigned *sorted) {
  __shared__ unsigned count[16];
  int t = threadIdx.x;
  if (t < 16) count[t] = 0;
  __syncthreads();
  for (int i = 2 * t; i < n; i += 2 * blockDim.x) {
    uint2 pair = *(const uint2 *)(keys + i); //@load
    atomicAdd(&count[pair.x >> shift & 15], 1);
    atomicAdd(&count[pair.y >> shift & 15], 1);
  }
  __syncthreads();
  if (t < 16) {
    unsigned own = t, at = 0;
    for (unsigned digit = 0; digit < own; digit++) at += count[digit];
    for (int i = 0; i < n; i++)
      if ((keys[i] >> shift & 15) == own) sorted[at++] = keys[i];
  }
}]],
  run = function(dev, kernel)
    local keys, sorted = dev:upload("u32", 101, function(i) return i * 7919 % 4096 end), dev:buffer("u32", 100)
    return kernel:launch({ grid = 1, block = 32 }, 100, 4, keys:slice(1, 100), sorted), sorted
  end,
  want = function()
    local keys = rows(100, function(i) return (i + 1) * 7919 % 4096 end)
    local sorted = {}
    for digit = 0, 15 do
      for _, key in ipairs(keys) do
        if key >> 4 & 15 == digit then
          sorted[#sorted + 1] = key
        end
      end
    end
    return sorted
  end,
  mistake = { name = "a vector is loaded from an odd place", from = "%(keys %+ i%)",
    to = "(keys + i + 1 - (i + 1) %% n / n)", code = "InvalidArgument",
    says = { "which is no multiple of 8" }, at = "load" },
}

project {
  name = "attention with an online softmax",
  source = [[
__device__ const float *cache;
extern "C" __global__ void keep(const float *k) {
  if (threadIdx.x == 0) cache = k;
}
extern "C" __global__ void kernel(int length, int width, float scale, const float *q, const float *k, const float *v,
                                  float *out) {
  int t = threadIdx.x, row = blockIdx.x;
  float most = -3e38f, sum = 0, own = 0;
  for (int j = 0; j < length; j++) {
    float dot = 0;
    for (int i = t; i < width; i += 32)
      dot += q[row * width + i] * k[j * width + i]; //@dot
    for (int o = 16; o > 0; o /= 2) dot += __shfl_xor_sync(0xffffffff, dot, o);
    dot *= scale;
    float next = fmaxf(most, dot), shrink = expf(most - next), e = expf(dot - next);
    sum = sum * shrink + e;
    own = own * shrink + e * (t < width ? v[j * width + t] : 0);
    most = next;
  }
  if (t < width) out[row * width + t] = own / sum;
}]],
  run = function(dev, kernel, is_wrong, mod)
    local function part(seed) return dev:upload("f32", 12 * 8, function(i) return value(i + seed) / 4 end) end
    local q, v, out = part(0), part(2), dev:buffer("f32", 12 * 8)
    local k = dev:upload("f32", 12 * 8, function(i) return value(i + 1) / 4 end, { label = "cache of keys" })
    mod.keep:launch({ grid = 1, block = 1 }, k):await()
    local given = k
    if is_wrong then
      given = part(1)
      k:free()
    end
    return kernel:launch({ grid = 12, block = 32 }, 12, 8, 0.5, q, given, v, out), out
  end,
  want = function()
    local function part(seed, i) return value(i + 1 + seed) / 4 end
    return rows(96, function(i)
      local row, col, sum, total = i // 8, i % 8, 0, 0
      for j = 0, 11 do
        local e = math.exp(0.5 * sum_of(rows(8, function(c) return part(0, row * 8 + c) * part(1, j * 8 + c) end)))
        sum, total = sum + e, total + e * part(2, j * 8 + col)
      end
      return total / sum
    end)
  end,
  mistake = { name = "freed memory is used", from = "k%[j %* width %+ i%]", to = "cache[j * width + i]",
    code = "UseAfterFree",
    says = { "read buffer 'cache of keys', allocation ", "which was freed", "(freed at " }, at = "dot" },
}

return projects
