-- More known kernels that need their barriers (see kernels.lua), each with what it computes in Lua: `want` gets its
-- arguments, buffers as tables, and gives what the last of them holds afterwards. `redundant`: barriers that are not
-- needed, by their number in the source, and why not.

local inputs = require "spec.check.inputs"

local ints, floats = inputs.ints, inputs.floats

local kernels = {}
local function kernel(name, config, args, want, source, redundant)
  kernels[#kernels + 1] = { name = name, config = config, args = args, want = want, source = source,
    redundant = redundant or {} }
end

local function map(n, f)
  local list = {}
  for i = 1, n do
    list[i] = f(i)
  end
  return list
end
local function sum(list, from, to)
  local total = 0
  for i = from or 1, to or #list do
    total = total + list[i]
  end
  return total
end
local function wrap(v)
  return (v + 0x80000000 & 0xffffffff) - 0x80000000
end

kernel("reduce_interleaved", { grid = 2, block = 64 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 2) }
end, function(x)
  return { sum(x, 1, 64), sum(x, 65, 128) }
end, [[
  extern "C" __global__ void reduce_interleaved(const int *x, int *out) {
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 64 + t];
    for (int step = 1; step < 64; step *= 2) {
      __syncthreads();
      if (t % (2 * step) == 0) s[t] += s[t + step];
    }
    if (t == 0) out[blockIdx.x] = s[0];
  }]])

kernel("reduce_last_warp", { grid = 2, block = 128 }, function(dev)
  return { ints(dev, 256), dev:buffer("i32", 2) }
end, function(x)
  return { sum(x, 1, 128), sum(x, 129, 256) }
end, [[
  extern "C" __global__ void reduce_last_warp(const int *x, int *out) {
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 128 + t];
    __syncthreads();
    if (t < 64) s[t] += s[t + 64];
    __syncthreads();
    if (t < 32) {
      s[t] += s[t + 32];
      __syncwarp();
      for (int half = 16; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncwarp();
      }
      if (t == 0) out[blockIdx.x] = s[0];
    }
  }]])

kernel("last_block", { grid = 4, block = 64 }, function(dev)
  return { ints(dev, 256), dev:buffer("i32", 4), dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1) }
end, function(x)
  return { sum(x) }
end, [[
  extern "C" __global__ void last_block(const int *x, int *parts, int *arrived, int *out) {
    __shared__ int s[64];
    __shared__ int is_last;
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
      if (t < half) s[t] += s[t + half];
      __syncthreads();
    }
    if (t == 0) {
      parts[blockIdx.x] = s[0];
      __threadfence();
      is_last = atomicAdd(arrived, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && t == 40) {
      int all = 0;
      for (int i = 0; i < 4; i++) all += parts[i];
      out[0] = all;
    }
  }]])

kernel("argmax", { grid = 1, block = 128 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 2) }
end, function(x)
  local at = 1
  for i = 2, 128 do
    at = x[i] > x[at] and i or at
  end
  return { x[at], at - 1 }
end, [[
  extern "C" __global__ void argmax(const int *x, int *out) {
    __shared__ int best[128], where[128];
    int t = threadIdx.x;
    best[t] = x[t];
    where[t] = t;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
      if (t < half && best[t + half] > best[t]) {
        best[t] = best[t + half];
        where[t] = where[t + half];
      }
      __syncthreads();
    }
    if (t < 2) out[t] = t == 0 ? best[0] : where[0];
  }]])

kernel("segmented_scan", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 64), dev:buffer("i32", 64) }
end, function(x)
  local total = 0
  return map(64, function(i)
    total = x[i] % 5 == 0 and x[i] or total + x[i]
    return total
  end)
end, [[
  extern "C" __global__ void segmented_scan(const int *x, int *out) {
    __shared__ int s[64], head[64];
    int t = threadIdx.x;
    s[t] = x[t];
    head[t] = x[t] % 5 == 0;
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
      int add = 0, flag = 1;
      if (t >= step) {
        add = head[t] ? 0 : s[t - step];
        flag = head[t] | head[t - step];
      }
      __syncthreads();
      s[t] += add;
      head[t] = flag;
      __syncthreads();
    }
    out[t] = s[t];
  }]])

kernel("scan_two_buffers", { grid = 1, block = 64, shared = 512 }, function(dev)
  return { ints(dev, 64), dev:buffer("i32", 64) }
end, function(x)
  local total = 0
  return map(64, function(i)
    total = total + x[i]
    return total
  end)
end, [[
  extern "C" __global__ void scan_two_buffers(const int *x, int *out) {
    extern __shared__ int s[];
    int t = threadIdx.x, from = 0;
    s[t] = x[t];
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
      int to = 64 - from;
      s[to + t] = s[from + t] + (t >= step ? s[from + t - step] : 0);
      from = to;
      __syncthreads();
    }
    out[t] = s[from + t];
  }]])

kernel("stencil2d", { grid = { 2, 2 }, block = { 8, 8 } }, function(dev)
  return { floats(dev, 256), dev:buffer("f32", 256) }
end, function(x)
  local function at(row, col)
    return row >= 0 and row < 16 and col >= 0 and col < 16 and x[row * 16 + col + 1] or 0
  end
  return map(256, function(i)
    local row, col = (i - 1) // 16, (i - 1) % 16
    return 4 * at(row, col) - at(row - 1, col) - at(row + 1, col) - at(row, col - 1) - at(row, col + 1)
  end)
end, [[
  extern "C" __global__ void stencil2d(const float *x, float *y) {
    __shared__ float s[10][10];
    int row0 = blockIdx.y * 8 - 1, col0 = blockIdx.x * 8 - 1;
    for (int i = threadIdx.y * 8 + threadIdx.x; i < 100; i += 64) {
      int row = row0 + i / 10, col = col0 + i % 10;
      s[i / 10][i % 10] = row >= 0 && row < 16 && col >= 0 && col < 16 ? x[row * 16 + col] : 0;
    }
    __syncthreads();
    int r = threadIdx.y + 1, c = threadIdx.x + 1;
    y[(row0 + r) * 16 + col0 + c] = 4 * s[r][c] - s[r - 1][c] - s[r + 1][c] - s[r][c - 1] - s[r][c + 1];
  }]])

kernel("convolution", { grid = 2, block = 64 }, function(dev)
  return { floats(dev, 136), floats(dev, 9), dev:buffer("f32", 128) }
end, function(x, mask)
  return map(128, function(i)
    local total = 0
    for k = 1, 9 do
      total = total + x[i + k - 1] * mask[k]
    end
    return total
  end)
end, [[
  extern "C" __global__ void convolution(const float *x, const float *mask, float *y) {
    __shared__ float s[72], m[9];
    int t = threadIdx.x, start = blockIdx.x * 64;
    s[t] = x[start + t];
    if (t < 8) s[t + 64] = x[start + t + 64];
    if (t >= 32 && t < 41) m[t - 32] = mask[t - 32];
    __syncthreads();
    float total = 0;
    for (int k = 0; k < 9; k++) total += s[t + k] * m[k];
    y[start + t] = total;
  }]])

kernel("radix_sort", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 64), dev:buffer("i32", 64) }
end, function(x)
  local sorted = table.move(x, 1, 64, 1, {})
  table.sort(sorted)
  return sorted
end, [[
  extern "C" __global__ void radix_sort(const int *x, int *out) {
    __shared__ int s[64], zeros[64];
    int t = threadIdx.x;
    s[t] = x[t];
    for (int bit = 0; bit < 10; bit++) {
      __syncthreads();
      int v = s[t], is_zero = !(v >> bit & 1);
      zeros[t] = is_zero;
      __syncthreads();
      for (int step = 1; step < 64; step *= 2) {
        int add = t >= step ? zeros[t - step] : 0;
        __syncthreads();
        zeros[t] += add;
        __syncthreads();
      }
      s[is_zero ? zeros[t] - 1 : zeros[63] + t - zeros[t] ] = v;
    }
    __syncthreads();
    out[t] = s[t];
  }]])

kernel("merge_sort", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 64), dev:buffer("i32", 64) }
end, function(x)
  local sorted = table.move(x, 1, 64, 1, {})
  table.sort(sorted)
  return sorted
end, [[
  extern "C" __global__ void merge_sort(const int *x, int *out) {
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int half = 1; half < 64; half *= 2) {
      int v = s[t], start = t / (2 * half) * 2 * half, other = (t - start < half ? start + half : start), rank = 0;
      for (int i = 0; i < half; i++) rank += s[other + i] < v || (s[other + i] == v && other < t);
      __syncthreads();
      s[start + (t - start) % half + rank] = v;
      __syncthreads();
    }
    out[t] = s[t];
  }]])

kernel("fft", { grid = 1, block = 32 }, function(dev)
  return { floats(dev, 64), dev:buffer("f32", 128) }
end, function(x)
  return map(128, function(i)
    local bin, total = (i - 1) // 2, 0
    local part = i % 2 == 1 and math.cos or math.sin
    for k = 0, 63 do
      total = total + x[k + 1] * part(-2 * math.pi * bin * k / 64)
    end
    return total
  end)
end, [[
  extern "C" __global__ void fft(const float *x, float *out) {
    __shared__ float re[64], im[64];
    int t = threadIdx.x;
    for (int i = t; i < 64; i += 32) {
      int at = __brev(i) >> 26;
      re[at] = x[i];
      im[at] = 0;
    }
    for (int half = 1; half < 64; half *= 2) {
      __syncthreads();
      int k = t % half, a = t / half * 2 * half + k, b = a + half;
      float angle = -3.14159265358979f * k / half, c = cosf(angle), s = sinf(angle);
      float br = re[b] * c - im[b] * s, bi = re[b] * s + im[b] * c, ar = re[a], ai = im[a];
      re[a] = ar + br;
      im[a] = ai + bi;
      re[b] = ar - br;
      im[b] = ai - bi;
    }
    __syncthreads();
    for (int i = t; i < 64; i += 32) {
      out[2 * i] = re[i];
      out[2 * i + 1] = im[i];
    }
  }]], { [2] = "each thread writes out what it has computed itself" })

kernel("lu_panel", { grid = 1, block = { 8, 8 } }, function(dev)
  return { dev:upload("f32", 64, function(i) return (i - 1) % 9 == 0 and 40 + i or i * 37 % 11 end),
    dev:buffer("f32", 64) }
end, function(x)
  local a = table.move(x, 1, 64, 1, {})
  for k = 0, 6 do
    for row = k + 1, 7 do
      a[row * 8 + k + 1] = a[row * 8 + k + 1] / a[k * 9 + 1]
      for col = k + 1, 7 do
        a[row * 8 + col + 1] = a[row * 8 + col + 1] - a[row * 8 + k + 1] * a[k * 8 + col + 1]
      end
    end
  end
  return a
end, [[
  extern "C" __global__ void lu_panel(const float *x, float *out) {
    __shared__ float a[8][8];
    int col = threadIdx.x, row = threadIdx.y;
    a[row][col] = x[row * 8 + col];
    __syncthreads();
    for (int k = 0; k < 7; k++) {
      if (row > k && col == k) a[row][k] /= a[k][k];
      __syncthreads();
      if (row > k && col > k) a[row][col] -= a[row][k] * a[k][col];
      __syncthreads();
    }
    out[row * 8 + col] = a[row][col];
  }]])

kernel("triangular_solve", { grid = 1, block = 32 }, function(dev)
  return { dev:upload("f32", 1024, function(i) return (i - 1) % 33 == 0 and 64 or i * 37 % 7 end), floats(dev, 32),
    dev:buffer("f32", 32) }
end, function(l, b)
  local x = {}
  for row = 0, 31 do
    local rest = b[row + 1]
    for col = 0, row - 1 do
      rest = rest - l[row * 32 + col + 1] * x[col + 1]
    end
    x[row + 1] = rest / l[row * 33 + 1]
  end
  return x
end, [[
  extern "C" __global__ void triangular_solve(const float *l, const float *b, float *x) {
    __shared__ float solved;
    int row = threadIdx.x;
    float rest = b[row];
    for (int col = 0; col < 32; col++) {
      if (row == col) solved = rest / l[row * 33];
      __syncthreads();
      if (row > col) rest -= l[row * 32 + col] * solved;
      if (row == col) x[row] = solved;
      __syncthreads();
    }
  }]])

kernel("nbody", { grid = 2, block = 32 }, function(dev)
  return { floats(dev, 64), dev:buffer("f32", 64) }
end, function(x)
  return map(64, function(i)
    local force = 0
    for k = 1, 64 do
      local d = x[k] - x[i]
      force = force + d / (d * d + 1)
    end
    return force
  end)
end, [[
  extern "C" __global__ void nbody(const float *x, float *out) {
    __shared__ float tile[32];
    int t = threadIdx.x, i = blockIdx.x * 32 + t;
    float own = x[i], force = 0;
    for (int start = 0; start < 64; start += 32) {
      tile[t] = x[start + t];
      __syncthreads();
      for (int k = 0; k < 32; k++) {
        float d = tile[k] - own;
        force += d / (d * d + 1);
      }
      __syncthreads();
    }
    out[i] = force;
  }]])

kernel("layer_norm", { grid = 2, block = 64 }, function(dev)
  return { floats(dev, 128), dev:buffer("f32", 128) }
end, function(x)
  return map(128, function(i)
    local from = (i - 1) // 64 * 64 + 1
    local mean, variance = sum(x, from, from + 63) / 64, 0
    for k = from, from + 63 do
      variance = variance + (x[k] - mean) ^ 2 / 64
    end
    return (x[i] - mean) / math.sqrt(variance + 1)
  end)
end, [[
  extern "C" __global__ void layer_norm(const float *x, float *y) {
    __shared__ float parts[2], mean, scale;
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    float v = x[i], all = v;
    for (int d = 16; d > 0; d /= 2) all += __shfl_xor_sync(0xffffffff, all, d);
    if (t % 32 == 0) parts[t / 32] = all;
    __syncthreads();
    if (t == 0) mean = (parts[0] + parts[1]) / 64;
    __syncthreads();
    float own = v - mean;
    all = own * own;
    for (int d = 16; d > 0; d /= 2) all += __shfl_xor_sync(0xffffffff, all, d);
    if (t % 32 == 0) parts[t / 32] = all;
    __syncthreads();
    if (t == 0) scale = 1 / sqrtf((parts[0] + parts[1]) / 64 + 1);
    __syncthreads();
    y[i] = own * scale;
  }]])

kernel("kmeans", { grid = 2, block = 64 }, function(dev)
  return { ints(dev, 128), ints(dev, 8, 3), dev:buffer("i32", 8):fill(0) }
end, function(x, centres)
  local sums = map(8, function() return 0 end)
  for _, v in ipairs(x) do
    local best = 1
    for k = 2, 8 do
      best = math.abs(v - centres[k]) < math.abs(v - centres[best]) and k or best
    end
    sums[best] = sums[best] + v
  end
  return sums
end, [[
  extern "C" __global__ void kmeans(const int *x, const int *centres, int *out) {
    __shared__ int near[8], sums[8];
    int t = threadIdx.x, v = x[blockIdx.x * 64 + t], best = 0;
    if (t < 8) {
      near[t] = centres[t];
      sums[t] = 0;
    }
    __syncthreads();
    for (int k = 1; k < 8; k++)
      if (abs(v - near[k]) < abs(v - near[best])) best = k;
    atomicAdd(&sums[best], v);
    __syncthreads();
    if (t < 8) atomicAdd(&out[t], sums[t]);
  }]])

kernel("double_buffer", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 256), dev:buffer("i32", 64) }
end, function(x)
  return map(64, function(i)
    local total = 0
    for tile = 0, 3 do
      total = total + x[tile * 64 + (63 - (i - 1) + tile) % 64 + 1]
    end
    return total
  end)
end, [[
  extern "C" __global__ void double_buffer(const int *x, int *out) {
    __shared__ int s[2][64];
    int t = threadIdx.x, total = 0;
    s[0][t] = x[t];
    for (int tile = 0; tile < 4; tile++) {
      __syncthreads();
      if (tile + 1 < 4) s[(tile + 1) % 2][t] = x[(tile + 1) * 64 + t];
      total += s[tile % 2][(63 - t + tile) % 64];
    }
    out[t] = total;
  }]])

kernel("block_queue", { grid = 2, block = 64 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 1):fill(0), dev:buffer("i32", 2) }
end, function(x)
  return map(2, function(block)
    local total = 0
    for i = block * 64 - 63, block * 64 do
      total = total + (x[i] % 3 == 0 and x[i] or 0)
    end
    return total
  end)
end, [[
  extern "C" __global__ void block_queue(const int *x, int *all, int *out) {
    __shared__ int queue[64], count;
    int t = threadIdx.x, v = x[blockIdx.x * 64 + t];
    if (t == 0) count = 0;
    __syncthreads();
    if (v % 3 == 0) queue[atomicAdd(&count, 1)] = v;
    __syncthreads();
    if (t == 0) {
      int total = 0;
      for (int i = 0; i < count; i++) total += queue[i];
      out[blockIdx.x] = total;
      atomicAdd(all, count);
    }
  }]])

kernel("string_match", { grid = 2, block = 64 }, function(dev)
  return { dev:upload("u8", 136, function(i) return 97 + i * i % 3 end), dev:upload("u8", { 98, 98, 97, 98 }),
    dev:buffer("i32", 128) }
end, function(text, word)
  return map(128, function(i)
    for k = 1, 4 do
      if text[i + k - 1] ~= word[k] then
        return 0
      end
    end
    return 1
  end)
end, [[
  extern "C" __global__ void string_match(const unsigned char *text, const unsigned char *word, int *out) {
    __shared__ unsigned char s[67], w[4];
    int t = threadIdx.x, start = blockIdx.x * 64;
    s[t] = text[start + t];
    if (t < 3) s[t + 64] = text[start + t + 64];
    if (t >= 60) w[t - 60] = word[t - 60];
    __syncthreads();
    int equal = 1;
    for (int k = 0; k < 4; k++) equal &= s[t + k] == w[k];
    out[start + t] = equal;
  }]])

kernel("jacobi", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 66), dev:buffer("i32", 64) }
end, function(x)
  local a = table.move(x, 1, 66, 1, {})
  for _ = 1, 20 do
    local b, changed = { a[1], [66] = a[66] }, false
    for i = 2, 65 do
      b[i] = (a[i - 1] + a[i + 1]) // 2
      changed = changed or b[i] ~= a[i]
    end
    a = b
    if not changed then
      break
    end
  end
  return table.move(a, 2, 65, 1, {})
end, [[
  extern "C" __global__ void jacobi(const int *x, int *out) {
    __shared__ int a[66], changed;
    int t = threadIdx.x;
    a[t + 1] = x[t + 1];
    if (t < 2) a[t * 65] = x[t * 65];
    for (int round = 0; round < 20; round++) {
      if (t == 0) changed = 0;
      __syncthreads();
      int old = a[t + 1], v = (a[t] + a[t + 2]) / 2;
      if (v != old) atomicExch(&changed, 1);
      __syncthreads();
      a[t + 1] = v;
      int go_on = changed;
      __syncthreads();
      if (!go_on) break;
    }
    out[t] = a[t + 1];
  }]])

kernel("floyd", { grid = 1, block = { 8, 8 } }, function(dev)
  return { ints(dev, 64), dev:buffer("i32", 64) }
end, function(x)
  local d = table.move(x, 1, 64, 1, {})
  for k = 0, 7 do
    for i = 0, 7 do
      for j = 0, 7 do
        d[i * 8 + j + 1] = math.min(d[i * 8 + j + 1], d[i * 8 + k + 1] + d[k * 8 + j + 1])
      end
    end
  end
  return d
end, [[
  extern "C" __global__ void floyd(const int *x, int *out) {
    __shared__ int d[8][8];
    int i = threadIdx.y, j = threadIdx.x;
    d[i][j] = x[i * 8 + j];
    __syncthreads();
    for (int k = 0; k < 8; k++) {
      int v = min(d[i][j], d[i][k] + d[k][j]);
      __syncthreads();
      d[i][j] = v;
      __syncthreads();
    }
    out[i * 8 + j] = d[i][j];
  }]])

kernel("edit_distance", { grid = 1, block = 32 }, function(dev)
  return { dev:upload("u8", 32, function(i) return i * i % 4 end),
    dev:upload("u8", 32, function(i) return i * 5 % 4 end), dev:buffer("i32", 1) }
end, function(a, b)
  local row = {}
  for j = 0, 32 do
    row[j] = j
  end
  for i = 1, 32 do
    local new = { [0] = i }
    for j = 1, 32 do
      new[j] = math.min(row[j] + 1, new[j - 1] + 1, row[j - 1] + (a[i] == b[j] and 0 or 1))
    end
    row = new
  end
  return { row[32] }
end, [[
  extern "C" __global__ void edit_distance(const unsigned char *a, const unsigned char *b, int *out) {
    __shared__ int d[33][33];
    int t = threadIdx.x;
    d[t + 1][0] = d[0][t + 1] = t + 1;
    if (t == 0) d[0][0] = 0;
    for (int diagonal = 0; diagonal < 63; diagonal++) {
      __syncthreads();
      int i = t + 1, j = diagonal - t + 1;
      if (j >= 1 && j <= 32) d[i][j] = min(min(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
    }
    if (t == 31) out[0] = d[32][32];
  }]])

kernel("warp_transpose", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 256), dev:buffer("i32", 256) }
end, function(x)
  return map(256, function(i)
    local warp, k, lane = (i - 1) // 128, (i - 1) % 128 // 32, (i - 1) % 32
    return x[warp * 128 + lane * 4 + k + 1]
  end)
end, [[
  extern "C" __global__ void warp_transpose(const int *x, int *out) {
    __shared__ int s[2][128];
    int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = 0; k < 4; k++) s[w][k * 32 + lane] = x[w * 128 + k * 32 + lane];
    __syncwarp();
    for (int k = 0; k < 4; k++) out[w * 128 + k * 32 + lane] = s[w][lane * 4 + k];
  }]])

kernel("warp_aggregate", { grid = 2, block = 64 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 1):fill(0), dev:buffer("i32", 2):fill(0) }
end, function(x)
  local counts, total = 0, 0
  for _, v in ipairs(x) do
    if v % 4 == 0 then
      counts, total = counts + 1, total + v
    end
  end
  return { counts, total }
end, [[
  extern "C" __global__ void warp_aggregate(const int *x, int *next, int *out) {
    __shared__ int start[2], values[2][32];
    int t = threadIdx.x, w = t / 32, lane = t % 32, v = x[blockIdx.x * 64 + t];
    unsigned votes = __ballot_sync(0xffffffff, v % 4 == 0);
    int rank = __popc(votes & ((1u << lane) - 1)), count = __popc(votes);
    if (v % 4 == 0) values[w][rank] = v;
    if (lane == 0) start[w] = atomicAdd(next, count);
    __syncwarp();
    if (lane == 31 && start[w] >= 0) {
      int total = 0;
      for (int i = 0; i < count; i++) total += values[w][i];
      atomicAdd(&out[0], count);
      atomicAdd(&out[1], total);
    }
  }]])

kernel("sparse_rows", { grid = 2, block = 64 }, function(dev)
  return { dev:upload("i32", { 0, 40, 41, 100, 128 }), floats(dev, 128), floats(dev, 128), dev:buffer("f32", 4) }
end, function(starts, values, x)
  return map(4, function(row)
    local total = 0
    for i = starts[row] + 1, starts[row + 1] do
      total = total + values[i] * x[i]
    end
    return total
  end)
end, [[
  extern "C" __global__ void sparse_rows(const int *starts, const float *values, const float *x, float *y) {
    __shared__ volatile float s[64];
    int t = threadIdx.x, lane = t % 32, row = blockIdx.x * 2 + t / 32;
    float total = 0;
    for (int i = starts[row] + lane; i < starts[row + 1]; i += 32) total += values[i] * x[i];
    s[t] = total;
    __syncwarp();
    for (int half = 16; half > 0; half /= 2) {
      float other = lane < half ? s[t + half] : 0;
      __syncwarp();
      if (lane < half) s[t] = s[t] + other;
      __syncwarp();
    }
    if (lane == 0) y[row] = s[t];
  }]], { [2] = "what is read before it and what is written behind it are other halves" })

kernel("frontier", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 128), dev:buffer("i32", 64) }
end, function(x)
  local level, front, depth = { [0] = 0 }, { 0 }, 0
  while #front > 0 do
    local found = {}
    depth = depth + 1
    for _, node in ipairs(front) do
      for k = 1, 2 do
        local to = x[node * 2 + k] % 64
        if not level[to] then
          level[to] = depth
          found[#found + 1] = to
        end
      end
    end
    front = found
  end
  return map(64, function(i) return level[i - 1] or -1 end)
end, [[
  extern "C" __global__ void frontier(const int *x, int *out) {
    __shared__ int level[64], found;
    int t = threadIdx.x;
    level[t] = t == 0 ? 0 : -1;
    for (int depth = 1;; depth++) {
      if (t == 0) found = 0;
      __syncthreads();
      int is_front = level[t] == depth - 1;
      __syncthreads();
      if (is_front)
        for (int k = 0; k < 2; k++)
          if (atomicCAS(&level[x[t * 2 + k] % 64], -1, depth) == -1) atomicAdd(&found, 1);
      __syncthreads();
      int go_on = found;
      __syncthreads();
      if (go_on == 0) break;
    }
    out[t] = level[t];
  }]], { [1] = "before it each thread touches what is its own, and the next barrier is in time for `found`" })

kernel("polynomial_hash", { grid = 1, block = 64 }, function(dev)
  return { ints(dev, 64), dev:buffer("i32", 1) }
end, function(x)
  local hash = 0
  for _, v in ipairs(x) do
    hash = wrap(hash * 31 + v)
  end
  return { hash }
end, [[
  extern "C" __global__ void polynomial_hash(const int *x, int *out) {
    __shared__ int hash[64], power[64];
    int t = threadIdx.x;
    hash[t] = x[t];
    power[t] = 31;
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
      if (t % (2 * step) == 0) {
        hash[t] = (int)((unsigned)hash[t] * (unsigned)power[t + step] + (unsigned)hash[t + step]);
        power[t] = (int)((unsigned)power[t] * (unsigned)power[t + step]);
      }
      __syncthreads();
    }
    if (t == 0) out[0] = hash[0];
  }]])

return kernels
