-- A decode loop: a small transformer with random weights writes tokens one after the other, each of which is the next
-- one's input. The position is a scalar on the device, so the step is the same work every time: done eagerly, and as a
-- graph that was captured once. Both write the same tokens, and the script waits once, at the end.
-- gpulua examples/decode.lua [TOKENS]

local gpu = require "gpulua"
local dev = gpu.device()

local count <const> = math.tointeger(tonumber(arg[1] or 200)) or error "TOKENS: a whole number"
local layers <const>, width <const>, vocabulary <const> = 4, 64, 256
local context <const> = 1024
assert(count >= 1 and count <= context, "TOKENS: from 1 to " .. context)

local mod = dev:compile [=[
  enum { WIDTH = 64, HEADS = 4, SIZE = WIDTH / HEADS, VOCABULARY = 256 }; // as above
  extern "C" __global__ void embed(const int *token, const int *at, const float *words, const float *places, float *x) {
    int i = threadIdx.x;
    x[i] = words[token[0] * WIDTH + i] + places[at[0] * WIDTH + i];
  }
  extern "C" __global__ void normalize(const float *x, float *y) {
    float sum = 0;
    for (int k = 0; k < WIDTH; k++) sum += x[k] * x[k];
    y[threadIdx.x] = x[threadIdx.x] * rsqrtf(sum / WIDTH + 1e-5f);
  }
  extern "C" __global__ void multiply(const float *w, const float *x, float *y, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int k = 0; k < columns; k++) sum += w[k * rows + row] * x[k];
    y[row] = sum;
  }
  extern "C" __global__ void multiply_gelu(const float *w, const float *x, float *y, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int k = 0; k < columns; k++) sum += w[k * rows + row] * x[k];
    y[row] = 0.5f * sum * (1 + erff(sum * 0.70710678f));
  }
  extern "C" __global__ void multiply_add(const float *w, const float *x, float *y, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int k = 0; k < columns; k++) sum += w[k * rows + row] * x[k];
    y[row] += sum;
  }
  // What this position offers to later ones.
  extern "C" __global__ void keep(const int *at, const float *qkv, float *keys, float *values) {
    int i = threadIdx.x;
    keys[at[0] * WIDTH + i] = qkv[WIDTH + i];
    values[at[0] * WIDTH + i] = qkv[2 * WIDTH + i];
  }
  extern "C" __global__ void attend(const int *at, const float *qkv, const float *keys, const float *values, float *y) {
    int i = threadIdx.x, head = i / SIZE * SIZE;
    float most = -1e30f, sum = 0, result = 0;
    for (int t = 0; t <= at[0]; t++) { // softmax in one pass
      float score = 0;
      for (int k = 0; k < SIZE; k++) score += qkv[head + k] * keys[t * WIDTH + head + k];
      score *= rsqrtf((float)SIZE);
      float now = fmaxf(most, score), old = expf(most - now), own = expf(score - now);
      sum = sum * old + own;
      result = result * old + own * values[t * WIDTH + i];
      most = now;
    }
    y[i] = result / sum;
  }
  extern "C" __global__ void choose(const int *at, const float *scores, int *token, int *written) {
    int best = 0;
    for (int k = 1; k < VOCABULARY; k++) if (scores[k] > scores[best]) best = k;
    token[0] = best;
    written[at[0]] = best;
  }]=]

math.randomseed(42)
local function weights(rows, columns)
  local scale = (3 / columns) ^ 0.5
  return dev:upload("f32", rows * columns, function() return (2 * math.random() - 1) * scale end)
end
local function numbers(n) return dev:buffer("f32", n):fill(0) end

local words, places, last = weights(vocabulary * width, 1), weights(context * width, 1), weights(vocabulary, width)
local x, y, qkv, inner = numbers(width), numbers(width), numbers(3 * width), numbers(4 * width)
local scores = numbers(vocabulary)
local token, written = dev:buffer("i32", 1), dev:buffer("i32", context):fill(-1)
local at = dev:scalar("i32", 0, { label = "position" })
local layer = {}
for l = 1, layers do
  layer[l] = {
    qkv = weights(3 * width, width), out = weights(width, width),
    up = weights(4 * width, width), down = weights(width, 4 * width),
    keys = numbers(context * width), values = numbers(context * width),
  }
end

local one <const> = { grid = 1, block = width }
local function step()
  mod.embed:launch(one, token, at, words, places, x)
  for _, l in ipairs(layer) do
    mod.normalize:launch(one, x, y)
    mod.multiply:launch(3 * width, l.qkv, y, qkv, 3 * width, width)
    mod.keep:launch(one, at, qkv, l.keys, l.values)
    mod.attend:launch(one, at, qkv, l.keys, l.values, y)
    mod.multiply_add:launch(width, l.out, y, x, width, width)
    mod.normalize:launch(one, x, y)
    mod.multiply_gelu:launch(4 * width, l.up, y, inner, 4 * width, width)
    mod.multiply_add:launch(width, l.down, inner, x, width, 4 * width)
  end
  mod.normalize:launch(one, x, y)
  mod.multiply:launch(vocabulary, last, y, scores, vocabulary, width)
  mod.choose:launch({ grid = 1, block = 1 }, at, scores, token, written)
end

-- Lua's own clock on the wall has seconds only.
local has_luv, uv = pcall(require, "luv")
local now = has_luv and function() return uv.hrtime() / 1e9 end or os.time

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
  print(("%-8s %7.0f tokens/s"):format(name, count / (now() - start)))
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
