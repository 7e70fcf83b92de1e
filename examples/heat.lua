-- Heat in a plate until it hardly changes any more: gpulua examples/heat.lua OUT.png [SIDE]
--
-- The equation of heat in two dimensions, in explicit steps: each point becomes the mean of its four neighbours. The
-- border and some bodies in the plate keep their temperatures. The steps are a loop on the device (gpu.graph.while_),
-- which ends when no point changes in a step by more than BOUND; the script launches one graph, and waits once.

local gpu = require "gpulua"
local image = require "gpulua.image"

local BOUND <const> = 2e-6 -- of the largest change in a step; temperatures are from 0 to 1
local STEPS <const> = 64   -- between two looks at the change
local TILE <const> = 16    -- points on a side of the block of threads

local source <const> = [[
// Temperatures that stay, and 0 for where none does: a hot disc, a bar that is half as warm, a cold slab; the border.
__device__ bool stays(int side, int x, int y, float *t) {
  float u = (x + 0.5f) / side, v = (y + 0.5f) / side;
  if (x == 0 || y == 0 || x == side - 1 || y == side - 1) {
    *t = y == side - 1 ? 0.5f + 0.5f * cosf(6.2831853f * u) : 0;
    return true;
  }
  float du = u - 0.3f, dv = v - 0.35f;
  if (du * du + dv * dv < 0.01f) { *t = 1; return true; }
  if (u > 0.62f && u < 0.66f && v > 0.15f && v < 0.7f) { *t = 0.6f; return true; }
  if (v > 0.6f && v < 0.64f && u > 0.15f && u < 0.5f) { *t = 0; return true; }
  return false;
}

extern "C" __global__ void start(int side, float *t) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= side || y >= side) return;
  float kept = 0;
  (void)stays(side, x, y, &kept);
  t[y * side + x] = kept;
}

extern "C" __global__ void relax(int side, const float *from, float *to) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= side || y >= side) return;
  int i = y * side + x;
  float kept;
  to[i] = stays(side, x, y, &kept) ? from[i]
        : 0.25f * ((from[i - 1] + from[i + 1]) + (from[i - side] + from[i + side]));
}

// As `relax`, with the largest change: what is not negative is ordered as its bits are.
extern "C" __global__ void relax_and_look(int side, const float *from, float *to, int *largest) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= side || y >= side) return;
  int i = y * side + x;
  float kept;
  if (stays(side, x, y, &kept)) { to[i] = from[i]; return; }
  to[i] = 0.25f * ((from[i - 1] + from[i + 1]) + (from[i - side] + from[i + side]));
  atomicMax(largest, __float_as_int(fabsf(to[i] - from[i])));
}

extern "C" __global__ void look(float bound, int steps, const int *largest, int *goes_on, int *count) {
  goes_on[0] = __int_as_float(largest[0]) > bound;
  count[0] += steps;
}

// Black, red, yellow, white, and a thin line at every tenth.
extern "C" __global__ void paint(int side, const float *t, unsigned char *pixels) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= side || y >= side) return;
  int i = y * side + x;
  float here = t[i], shade = 1;
  if (x + 1 < side && y + 1 < side) {
    int level = (int)(10 * here);
    if (level != (int)(10 * t[i + 1]) || level != (int)(10 * t[i + side])) shade = 0.6f;
  }
  float red = 0.08f + 2.6f * here, green = 2.6f * here - 0.9f, blue = 3.4f * here - 2.42f;
  if (here < 0.25f) blue = 0.18f + 0.5f * here;
  else if (here < 0.75f) blue = fmaxf(blue, 0.305f - 0.6f * (here - 0.25f));
  pixels[3 * i] = (unsigned char)(255 * shade * fminf(fmaxf(red, 0.0f), 1.0f));
  pixels[3 * i + 1] = (unsigned char)(255 * shade * fminf(fmaxf(green, 0.0f), 1.0f));
  pixels[3 * i + 2] = (unsigned char)(255 * shade * fminf(fmaxf(blue, 0.0f), 1.0f));
}
]]

local function main(path, side)
  side = math.tointeger(tonumber(side or 256))
  if not path or not side or side < 16 or side > 2048 then
    io.stderr:write("usage: gpulua examples/heat.lua OUT.png [SIDE, from 16 to 2048]\n")
    os.exit(2)
  end
  local dev = gpu.device()
  local k = dev:compile(source)
  local count <const> = (side + TILE - 1) // TILE
  local plate <const>, one <const> = { grid = { count, count }, block = { TILE, TILE } }, { grid = 1, block = 1 }

  local here, there = dev:buffer("f32", side * side), dev:buffer("f32", side * side)
  local largest, steps = dev:buffer("i32", 1), dev:buffer("i32", 1)
  local goes_on = dev:scalar("i32", 1, { label = "goes on" })
  local pixels = dev:buffer("u8", { side, side, 3 })

  local graph <close> = dev:capture({ label = "heat" }, function()
    steps:fill(0)
    k.start:launch(plate, side, here)
    gpu.graph.while_(goes_on, function()
      for i = 1, STEPS - 1 do
        local from, to = here, there
        if i % 2 == 0 then
          from, to = there, here
        end
        k.relax:launch(plate, side, from, to)
      end
      largest:fill(0)
      k.relax_and_look:launch(plate, side, there, here, largest)
      k.look:launch(one, BOUND, STEPS, largest, goes_on, steps)
    end)
    k.paint:launch(plate, side, here, pixels)
  end)
  graph:launch()
  image.save(pixels, path) -- waits

  local sum = 0
  for _, t in ipairs(here:read()) do
    sum = sum + t
  end
  print(("%s: %d steps, mean temperature %.4f"):format(path, steps:read()[1], sum / (side * side)))
end

main(...)
