-- Noise taken out of a photograph: gpulua examples/denoise.lua IN.png [OUT.png]
--
-- Normal noise is added to the picture, whose grey values are then Fourier transformed. White noise is as strong at
-- each frequency, a picture is not: what is about as strong as the noise is left out, in proportion (a Wiener filter,
-- with the picture's own power for what it should be). Printed: the peak signal-to-noise ratio before and after.
-- OUT.png has both side by side.

local gpu = require "gpulua"
local image = require "gpulua.image"

local SIGMA <const> = 25  -- of the noise, of 255
local CAUTION <const> = 2 -- times the noise's power: so much of the power counts as noise

if not arg[1] then
  io.stderr:write("usage: gpulua examples/denoise.lua IN.png [OUT.png]\n")
  os.exit(2)
end
local dev = gpu.device()
local picture = image.load(dev, arg[1])
local height, width, channels = table.unpack(picture.shape)

local mod = dev:compile [[
  // The mean of the channels, but for one that says how opaque the picture is.
  extern "C" __global__ void grey(int n, int channels, const unsigned char *in, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int colours = channels < 3 ? 1 : 3;
    float sum = 0.0f;
    for (int c = 0; c < colours; c++) sum += in[i * channels + c];
    out[i] = sum / colours;
  }
  // Beside each other, as a picture of one channel.
  extern "C" __global__ void beside(int width, int height, const float *left, const float *right, unsigned char *out) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= 2 * width || y >= height) return;
    float value = x < width ? left[y * width + x] : right[y * width + x - width];
    out[y * 2 * width + x] = (unsigned char)fminf(fmaxf(value + 0.5f, 0.0f), 255.0f);
  }
  extern "C" __global__ void wiener(int n, float noise, float2 *bins) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float power = bins[i].x * bins[i].x + bins[i].y * bins[i].y;
    float kept = power > noise ? 1.0f - noise / power : 0.0f;
    bins[i].x *= kept;
    bins[i].y *= kept;
  }]]

local n <const> = height * width
local clean = dev:buffer("f32", { height, width })
mod.grey:launch(n, n, channels, picture, clean)

local noise = dev:buffer("f32", { height, width })
dev:rng { seed = 25 }:normal(noise, 0, SIGMA)
local noisy = gpu.map("clean + noise", { clean = clean, noise = noise })

-- A transform that is not scaled adds up the power of all n values: n sigma^2 is the noise's at each frequency.
local plan = dev:fft { shape = { height, width }, kind = "r2c", type = "f32", scale = { inverse = 1 / n } }
local bins = plan:forward(noisy)
mod.wiener:launch(#bins, #bins, CAUTION * n * SIGMA ^ 2, bins)
local filtered = plan:inverse(bins)

local function ratio(of) -- in decibels
  local off = gpu.map("of - clean", { of = of, clean = clean })
  return 20 * math.log(255 / (gpu.reduce("norm", off):get() / math.sqrt(n)), 10)
end
print(("%s: %d x %d, noise of %g: %.1f dB, filtered: %.1f dB"):format(arg[1], width, height, SIGMA, ratio(noisy),
  ratio(filtered)))

if arg[2] then
  local both = dev:buffer("u8", { height, 2 * width, 1 })
  local grid <const> = { (2 * width + 15) // 16, (height + 15) // 16 }
  mod.beside:launch({ grid = grid, block = { 16, 16 } }, width, height, noisy, filtered, both)
  image.save(both, arg[2])
end
