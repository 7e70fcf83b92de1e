-- Edges of a picture by Canny's method: gpulua examples/edges.lua IN.png OUT.png
--
-- Grey, Gaussian blur, gradients (the two directions on streams of their own), thinning to one pixel, two thresholds,
-- and weak edges kept where they lead to a strong one. PNG or JPEG in, grey or colour; white edges on black out.

local gpu = require "gpulua"
local image = require "gpulua.image"

local SIGMA <const>, RADIUS <const> = 1.4, 4 -- of the blur, pixels
local WEAK <const>, STRONG <const> = 40, 100 -- gradient of grey values 0 to 255 under Sobel's kernels
local TILE <const> = 16                      -- pixels on a side of the block of threads

local source <const> = [[
#define TILE 16

__device__ int clamped(int i, int n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

extern "C" __global__ void grey(int width, int height, int channels, const unsigned char *pixels, float *out) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const unsigned char *p = pixels + (size_t)(y * width + x) * channels;
  out[y * width + x] = channels < 3 ? p[0] : 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
}

// One pass of a blur, along (dx, dy).
extern "C" __global__ void blur(int width, int height, int dx, int dy, int radius, const float *weight,
                                const float *in, float *out) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float sum = 0.0f;
  for (int k = -radius; k <= radius; k++) {
    sum += weight[k + radius] * in[clamped(y + k * dy, height) * width + clamped(x + k * dx, width)];
  }
  out[y * width + x] = sum;
}

// Sobel's gradient along (dx, dy), one of which is 1 and the other 0.
extern "C" __global__ void gradient(int width, int height, int dx, int dy, const float *in, float *out) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float sum = 0.0f;
  for (int side = -1; side <= 1; side++) {
    int after = clamped(y + dy + side * dx, height) * width + clamped(x + dx + side * dy, width);
    int before = clamped(y - dy + side * dx, height) * width + clamped(x - dx + side * dy, width);
    sum += (side == 0 ? 2.0f : 1.0f) * (in[after] - in[before]);
  }
  out[y * width + x] = sum;
}

__device__ float strength(int width, int x, int y, const float *gx, const float *gy) {
  int i = y * width + x;
  return sqrtf(gx[i] * gx[i] + gy[i] * gy[i]);
}

// 0 no edge, 1 weak, 2 strong: where the gradient is steeper than on both sides across the edge.
extern "C" __global__ void thin(int width, int height, float weak, float strong, const float *gx, const float *gy,
                                unsigned char *edge) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  unsigned char is = 0;
  if (x > 0 && y > 0 && x < width - 1 && y < height - 1) {
    float h = gx[y * width + x], v = gy[y * width + x];
    int dx = 1, dy = 0;
    if (fabsf(v) > 2.4142135f * fabsf(h)) {
      dx = 0;
      dy = 1;
    } else if (fabsf(v) > 0.41421357f * fabsf(h)) {
      dy = (h > 0) == (v > 0) ? 1 : -1;
    }
    float here = strength(width, x, y, gx, gy);
    // One side may be as steep: of two equal pixels, one stays.
    if (here >= weak && here > strength(width, x - dx, y - dy, gx, gy)
        && here >= strength(width, x + dx, y + dy, gx, gy)) {
      is = here >= strong ? 2 : 1;
    }
  }
  edge[y * width + x] = is;
}

// Weak pixels beside strong ones become strong, as far as that leads within a tile and from the pixels around it.
extern "C" __global__ void grow(int width, int height, const unsigned char *in, unsigned char *out, int *changed) {
  __shared__ unsigned char tile[TILE + 2][TILE + 2];
  int left = blockIdx.x * TILE - 1, top = blockIdx.y * TILE - 1;
  for (int i = threadIdx.y * TILE + threadIdx.x; i < (TILE + 2) * (TILE + 2); i += TILE * TILE) {
    int x = left + i % (TILE + 2), y = top + i / (TILE + 2);
    tile[i / (TILE + 2)][i % (TILE + 2)] = x >= 0 && y >= 0 && x < width && y < height ? in[y * width + x] : 0;
  }
  __syncthreads();
  int column = threadIdx.x + 1, row = threadIdx.y + 1;
  bool has_grown = false;
  for (;;) {
    bool grows = false;
    if (tile[row][column] == 1) {
      for (int k = 0; k < 9; k++) grows |= tile[row + k / 3 - 1][column + k % 3 - 1] == 2;
    }
    // All have read when any writes, and all have written when any reads again.
    if (!__syncthreads_or(grows)) break;
    if (grows) tile[row][column] = 2;
    has_grown |= grows;
    __syncthreads();
  }
  int x = left + column, y = top + row;
  if (x < width && y < height) out[y * width + x] = tile[row][column];
  if (has_grown) atomicOr(changed, 1);
}

extern "C" __global__ void show(int n, const unsigned char *edge, unsigned char *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = edge[i] == 2 ? 255 : 0;
}
]]

local function gaussian()
  local weights, sum = {}, 0
  for k = -RADIUS, RADIUS do
    weights[#weights + 1] = math.exp(-k * k / (2 * SIGMA * SIGMA))
    sum = sum + weights[#weights]
  end
  for i = 1, #weights do
    weights[i] = weights[i] / sum
  end
  return weights
end

-- A picture {height, width, channels} to its edges {height, width, 1}.
local function edges(dev, picture)
  local height, width, channels = table.unpack(picture.shape)
  local n = height * width
  local k = dev:compile(source)
  local across <close> = dev:stream { label = "across" }
  local down <close> = dev:stream { label = "down" }
  local function on(stream, label)
    return {
      grid = { (width + TILE - 1) // TILE, (height + TILE - 1) // TILE }, block = { TILE, TILE },
      stream = stream, label = label,
    }
  end

  local weights <close> = dev:upload("f32", gaussian())
  local light <close> = dev:buffer("f32", n)
  local half <close> = dev:buffer("f32", n)
  local smooth <close> = dev:buffer("f32", n)
  local gx <close> = dev:buffer("f32", n)
  local gy <close> = dev:buffer("f32", n)
  local before <close> = dev:buffer("u8", n)
  local after <close> = dev:buffer("u8", n)
  local changed <close> = dev:buffer("i32", 1)
  local out = dev:buffer("u8", { height, width, 1 })

  k.grey:launch(on(across), width, height, channels, picture, light)
  k.blur:launch(on(across, "blur across"), width, height, 1, 0, RADIUS, weights, light, half)
  k.blur:launch(on(across, "blur down"), width, height, 0, 1, RADIUS, weights, half, smooth)
  -- Side by side: both wait for the blur, and what reads them waits for both, without a word here.
  k.gradient:launch(on(across, "gradient across"), width, height, 1, 0, smooth, gx)
  k.gradient:launch(on(down, "gradient down"), width, height, 0, 1, smooth, gy)
  k.thin:launch(on(across), width, height, WEAK, STRONG, gx, gy, before)

  -- An edge may lead from tile to tile: again until nothing changes.
  local from, to = before, after
  repeat
    changed:fill(0)
    k.grow:launch(on(across), width, height, from, to, changed):await()
    from, to = to, from
  until changed:read(1, 1)[1] == 0

  k.show:launch(n, n, from, out):await()
  return out
end

local function main(in_path, out_path)
  if not in_path or not out_path then
    io.stderr:write("usage: gpulua examples/edges.lua IN.png OUT.png\n")
    os.exit(2)
  end
  local dev = gpu.device()
  local picture <close> = image.load(dev, in_path)
  local found <close> = edges(dev, picture)
  image.save(found, out_path)

  local count = 0
  for _, value in ipairs(found:read()) do
    count = count + value // 255
  end
  print(("%s: %d of %d pixels are edges"):format(in_path, count, #found))
end

main(...)
