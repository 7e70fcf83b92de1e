-- A decode loop: a small transformer with random weights writes tokens one after the other, each of which is the next
-- one's input. The position is a scalar on the device, so the step is the same work every time: done eagerly, and as a
-- graph that was captured once. Both write the same tokens, and the script waits once, at the end.
-- gpulua examples/decode.lua [TOKENS [FOLDER]], where the weights are written into FOLDER for bench/peers/decode.py.

local gpu = require "gpulua"
local dev = gpu.device()

local count <const> = math.tointeger(tonumber(arg[1] or 200)) or error "TOKENS: a whole number"
local layers <const>, width <const>, vocabulary <const> = 4, 64, 256
local context <const> = 1024
assert(count >= 1 and count <= context, "TOKENS: from 1 to " .. context)

local mod = dev:compile [=[
  enum { WIDTH = 64, HEADS = 4, SIZE = WIDTH / HEADS, VOCABULARY = 256, LANES = 8 }; // as above
  __device__ float sum_of_lanes(float x) {
    for (int k = LANES / 2; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffff, x, k);
    return x;
  }
  extern "C" __global__ void embed(const int *token, const int *at, const float *words, const float *places, float *x) {
    int i = threadIdx.x;
    x[i] = words[token[0] * WIDTH + i] + places[at[0] * WIDTH + i];
  }
  // Some lanes of a warp for each row: w . x, of x normalized if that is asked for.
  __device__ float row_times(const float *w, const float *x, int row, int columns, bool is_normalized) {
    float sum = 0, squares = 0;
    for (int k = threadIdx.x; k < columns; k += LANES) {
      sum += w[row * columns + k] * x[k];
      squares += x[k] * x[k];
    }
    sum = sum_of_lanes(sum);
    return is_normalized ? sum * rsqrtf(sum_of_lanes(squares) / columns + 1e-5f) : sum;
  }
  extern "C" __global__ void multiply(const float *w, const float *x, float *y, int columns) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    float sum = row_times(w, x, row, columns, true);
    if (threadIdx.x == 0) y[row] = sum;
  }
  extern "C" __global__ void multiply_gelu(const float *w, const float *x, float *y, int columns) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    float sum = row_times(w, x, row, columns, true);
    if (threadIdx.x == 0) y[row] = 0.5f * sum * (1 + erff(sum * 0.70710678f));
  }
  extern "C" __global__ void multiply_add(const float *w, const float *x, float *y, int columns) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    float sum = row_times(w, x, row, columns, false);
    if (threadIdx.x == 0) y[row] += sum;
  }
  // What this position offers to later ones.
  extern "C" __global__ void keep(const int *at, const float *qkv, float *keys, float *values) {
    int i = threadIdx.x;
    keys[at[0] * WIDTH + i] = qkv[WIDTH + i];
    values[at[0] * WIDTH + i] = qkv[2 * WIDTH + i];
  }
  // A block for each head: a thread for each part of the past, softmax in one pass, and then all of them together.
  extern "C" __global__ void attend(const int *at, const float *qkv, const float *keys, const float *values, float *y) {
    enum { PARTS = 256 };
    __shared__ float most_of[PARTS], sum_of[PARTS], result_of[PARTS][SIZE + 1];
    int head = blockIdx.x * SIZE, part = threadIdx.x;
    float most = -1e30f, sum = 0, result[SIZE];
    for (int k = 0; k < SIZE; k++) result[k] = 0;
    for (int t = part; t <= at[0]; t += PARTS) {
      float score = 0;
      for (int k = 0; k < SIZE; k++) score += qkv[head + k] * keys[t * WIDTH + head + k];
      score *= rsqrtf((float)SIZE);
      float now = fmaxf(most, score), old = expf(most - now), own = expf(score - now);
      sum = sum * old + own;
      for (int k = 0; k < SIZE; k++) result[k] = result[k] * old + own * values[t * WIDTH + head + k];
      most = now;
    }
    most_of[part] = most;
    sum_of[part] = sum;
    for (int k = 0; k < SIZE; k++) result_of[part][k] = result[k];
    for (int half = PARTS / 2; half > 0; half /= 2) {
      __syncthreads();
      if (part >= half) continue;
      float now = fmaxf(most_of[part], most_of[part + half]);
      float own = expf(most_of[part] - now), other = expf(most_of[part + half] - now);
      most_of[part] = now;
      sum_of[part] = sum_of[part] * own + sum_of[part + half] * other;
      for (int k = 0; k < SIZE; k++)
        result_of[part][k] = result_of[part][k] * own + result_of[part + half][k] * other;
    }
    __syncthreads();
    if (part < SIZE) y[head + part] = result_of[0][part] / sum_of[0];
  }
  extern "C" __global__ void choose(const int *at, const float *scores, int *token, int *written) {
    __shared__ int best[VOCABULARY];
    int i = threadIdx.x;
    best[i] = i;
    for (int half = VOCABULARY / 2; half > 0; half /= 2) {
      __syncthreads();
      if (i < half && scores[best[i + half]] > scores[best[i]]) best[i] = best[i + half];
    }
    if (i == 0) {
      token[0] = best[0];
      written[at[0]] = best[0];
    }
  }]=]

math.randomseed(42)
local function weights(name, rows, columns)
  local scale = (3 / columns) ^ 0.5
  local made = dev:upload("f32", rows * columns, function() return (2 * math.random() - 1) * scale end)
  if arg[2] then
    require "gpulua.npy".save(made, ("%s/%s.npy"):format(arg[2], name))
  end
  return made
end
local function numbers(n) return dev:buffer("f32", n):fill(0) end

local words, places = weights("words", vocabulary * width, 1), weights("places", context * width, 1)
local last = weights("last", vocabulary, width)
local x, y, qkv, inner = numbers(width), numbers(width), numbers(3 * width), numbers(4 * width)
local scores = numbers(vocabulary)
local token, written = dev:buffer("i32", 1), dev:buffer("i32", context):fill(-1)
local at = dev:scalar("i32", 0, { label = "position" })
local layer = {}
for l = 1, layers do
  layer[l] = {
    qkv = weights("qkv" .. l, 3 * width, width), out = weights("out" .. l, width, width),
    up = weights("up" .. l, 4 * width, width), down = weights("down" .. l, width, 4 * width),
    keys = numbers(context * width), values = numbers(context * width),
  }
end

local one <const> = { grid = 1, block = width }
local function rows(n) return { grid = n // 16, block = { 8, 16 } } end
local rows_qkv, rows_width, rows_inner, rows_words = rows(3 * width), rows(width), rows(4 * width), rows(vocabulary)
local heads <const>, whole <const> = { grid = 4, block = 256 }, { grid = 1, block = vocabulary }
local function step()
  mod.embed:launch(one, token, at, words, places, x)
  for _, l in ipairs(layer) do
    mod.multiply:launch(rows_qkv, l.qkv, x, qkv, width)
    mod.keep:launch(one, at, qkv, l.keys, l.values)
    mod.attend:launch(heads, at, qkv, l.keys, l.values, y)
    mod.multiply_add:launch(rows_width, l.out, y, x, width)
    mod.multiply_gelu:launch(rows_inner, l.up, x, inner, width)
    mod.multiply_add:launch(rows_width, l.down, inner, x, 4 * width)
  end
  mod.multiply:launch(rows_words, last, x, scores, width)
  mod.choose:launch(whole, at, scores, token, written)
end

-- Lua's own clock on the wall has seconds only: without luv no speeds are told.
local has_luv, uv = pcall(require, "luv")
local now = has_luv and function() return uv.hrtime() / 1e9 end or function() return 0 end

local function decode(name, f)
  token:fill(1)
  f() -- once to warm up
  token:fill(1)
  dev:synchronize()
  local start = now()
  for i = 0, count - 1 do
    at:set(i)
    f()
  end
  local tokens = written:read(1, count)
  print(name .. (has_luv and (": %.0f tokens/s"):format(count / (now() - start)) or ""))
  return tokens
end

local eager = decode("eager", step)
local graph = dev:capture({ label = "step" }, step)
local replayed = decode("graph", function() graph:launch() end)
for i = 1, count do
  assert(eager[i] == replayed[i], "the graph wrote another token")
end
local nodes, edges = graph:nodes()
print(("%s: %d nodes, %d edges; the same %d tokens: %s ..."):format(dev.name, nodes, edges, count,
  table.concat(eager, " ", 1, math.min(count, 12))))
