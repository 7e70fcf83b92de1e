-- What frequencies a signal has, and when: gpulua examples/spectrogram.lua FILE.wav|FILE.npy [OUT.png [RATE]]
--
-- The signal is cut into overlapping windows, each without its mean and under a Hann window; their Fourier transforms'
-- power, on a scale of 60 decibels, becomes a picture: time from left to right, frequencies from the bottom up. Of a
-- .npy file (one dimension, any type of numbers) RATE says how many samples a second has, 360 by default, as the
-- electrocardiogram of these examples.

local gpu = require "gpulua"
local image = require "gpulua.image"
local npy = require "gpulua.npy"
local wav = require "gpulua.wav"

local SIZE <const> = 1024      -- samples of a window
local WIDTH <const> = 1000     -- of the picture, at most: so many windows
local RANGE <const> = 60       -- decibels from black to white
local HIGHEST <const> = 1 / 8  -- part of the frequencies of a .npy file that is shown: hearts beat slowly
local HEIGHT <const> = 256     -- of the picture, at least

local path, out = arg[1], arg[2]
if not path or arg[3] and not tonumber(arg[3]) then
  io.stderr:write("usage: gpulua examples/spectrogram.lua FILE.wav|FILE.npy [OUT.png [RATE]]\n")
  os.exit(2)
end

local dev = gpu.device()
local signal, rate, shown
if path:find "%.wav$" then
  local sound, info = wav.load(dev, path)
  local channels = sound.shape[2]
  signal = channels == 1 and sound:view("f32", #sound) or gpu.reduce("mean", sound, 2)
  rate, shown = info.rate, SIZE // 2 + 1
else
  signal = gpu.map("x + 0.0", { x = npy.load(dev, path) })
  rate, shown = tonumber(arg[3] or 360), math.floor((SIZE // 2 + 1) * HIGHEST)
end
if #signal < SIZE then
  io.stderr:write(("%s: %d samples, %d are needed\n"):format(path, #signal, SIZE))
  os.exit(1)
end
if signal.type ~= "f32" then
  local narrow = dev:buffer("f32", #signal)
  gpu.map("x", { x = signal, out = narrow })
  signal = narrow
end
local hop = math.max(64, (#signal - SIZE) // WIDTH + 1)
local windows, bins <const> = (#signal - SIZE) // hop + 1, SIZE // 2 + 1

local mod = dev:compile [[
  extern "C" __global__ void cut(int size, int hop, const float *signal, const float *mean, float *windows) {
    const float *from = signal + (long long)blockIdx.x * hop;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
      float hann = 0.5f - 0.5f * cospif(2.0f * i / size);
      windows[(long long)blockIdx.x * size + i] = hann * (from[i] - mean[blockIdx.x]);
    }
  }
  // Means of the windows, a thread each.
  extern "C" __global__ void means(int count, int size, int hop, const float *signal, float *mean) {
    int w = blockIdx.x * blockDim.x + threadIdx.x;
    if (w >= count) return;
    float sum = 0.0f;
    for (int i = 0; i < size; i++) sum += signal[(long long)w * hop + i];
    mean[w] = sum / size;
  }
  extern "C" __global__ void power(int n, const float2 *bins, float *power) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) power[i] = bins[i].x * bins[i].x + bins[i].y * bins[i].y;
  }
  // Black, violet, orange, pale yellow, white: as bright as it is strong.
  extern "C" __global__ void paint(int width, int height, int bins, int tall, float range, const float *power,
                                   const float *most, unsigned char *picture) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    const float stops[5][3] = {{0, 0, 4}, {87, 16, 110}, {228, 90, 49}, {249, 201, 50}, {252, 255, 240}};
    if (x >= width || y >= height) return;
    float here = power[(long long)x * bins + (height - 1 - y) / tall] / *most;
    float level = 1.0f + 10.0f * log10f(fmaxf(here, 1e-30f)) / range;
    float at = 4.0f * fminf(fmaxf(level, 0.0f), 1.0f);
    int stop = at >= 3.0f ? 3 : (int)at;
    for (int c = 0; c < 3; c++)
      picture[(y * width + x) * 3 + c] =
          (unsigned char)(stops[stop][c] + (at - stop) * (stops[stop + 1][c] - stops[stop][c]) + 0.5f);
  }]]

local mean = dev:buffer("f32", windows)
mod.means:launch(windows, windows, SIZE, hop, signal, mean)
local cut = dev:buffer("f32", { windows, SIZE })
mod.cut:launch({ grid = windows, block = 256 }, SIZE, hop, signal, mean, cut)
local plan = dev:fft { shape = { SIZE }, batch = windows, kind = "r2c", type = "f32" }
local spectrum = plan:forward(cut)
local power = dev:buffer("f32", { windows, bins })
mod.power:launch(#power, #power, spectrum, power)

local most = gpu.reduce("max", power)
local whole = gpu.reduce("mean", power, 1) -- over time
-- What goes round less than three times in a window cannot be told from a drift.
local strongest = 3 + gpu.reduce("argmax", whole:slice(4, bins)):get()
print(("%s: %d samples, %.1f s, %d windows of %.2f s"):format(path, #signal, #signal / rate, windows, SIZE / rate))
print(("strongest: %.2f Hz"):format((strongest - 1) * rate / SIZE))

if out then
  local tall = (HEIGHT + shown - 1) // shown -- of a frequency
  local height = shown * tall
  local picture = dev:buffer("u8", { height, windows, 3 })
  local grid <const> = { (windows + 15) // 16, (height + 15) // 16 }
  mod.paint:launch({ grid = grid, block = { 16, 16 } }, windows, height, bins, tall, RANGE, power, most, picture)
  image.save(picture, out)
end
