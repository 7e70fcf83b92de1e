-- Heart beats in an electrocardiogram, found by the method of Pan and Tompkins ("A Real-Time QRS Detection Algorithm",
-- IEEE Transactions on Biomedical Engineering, 1985): gpulua examples/ecg.lua FILE.npy [OUT.png]
--
-- The file holds 16-bit samples (u16) at 360 Hz; millivolts = (value - 1024) / 200. Kernels band-pass the signal, take
-- its slope, square and integrate it, and look for peaks; which peak is a beat is decided here, from one to the next.

local gpu = require "gpulua"
local npy = require "gpulua.npy"

local RATE <const> = 360              -- samples a second
local LOW <const>, HIGH <const> = 5, 15 -- the band in which heart beats stand out, Hz
local TAPS <const> = 91               -- of the band-pass filter: half amplitude at 4.9 and 15.2 Hz
local WINDOW <const> = 54             -- of the integration: 150 ms, as long as a broad beat
local APART <const> = 72              -- no two beats within 200 ms
local SHOWN <const> = 20              -- seconds in the picture

local source <const> = [[
__device__ int clamped(int i, int n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

extern "C" __global__ void millivolts(int n, const unsigned short *raw, float *mv) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) mv[i] = ((float)raw[i] - 1024.0f) / 200.0f;
}

// A symmetric filter moves nothing in time; beyond its ends the signal goes on as it stood there.
extern "C" __global__ void band_pass(int n, int taps, const float *tap, const float *mv, float *band) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  for (int k = 0; k < taps; k++) sum += tap[k] * mv[clamped(i + k - taps / 2, n)];
  band[i] = sum;
}

extern "C" __global__ void slope(int n, const float *band, float *rise) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  rise[i] = (2.0f * band[clamped(i + 2, n)] + band[clamped(i + 1, n)] - band[clamped(i - 1, n)]
             - 2.0f * band[clamped(i - 2, n)]) / 8.0f;
}

extern "C" __global__ void integrate(int n, int window, const float *rise, float *energy) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  for (int k = 0; k < window; k++) {
    float s = rise[clamped(i + k - window / 2, n)];
    sum += s * s;
  }
  energy[i] = sum / window;
}

// height: the energy where it is the highest within `apart` samples on both sides, elsewhere 0. There, tall and steep
// are the greatest magnitudes of the filtered signal and of its slope, and at is where the signal is that tall.
extern "C" __global__ void peaks(int n, int apart, int window, const float *band, const float *rise,
                                 const float *energy, float *height, float *tall, float *steep, int *at) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float here = energy[i];
  height[i] = tall[i] = steep[i] = 0.0f;
  at[i] = i;
  for (int k = 1; k <= apart; k++) {
    if ((i - k >= 0 && energy[i - k] >= here) || (i + k < n && energy[i + k] > here)) return;
  }
  height[i] = here;
  for (int j = max(i - window / 2, 0); j <= min(i + window / 2, n - 1); j++) {
    if (fabsf(band[j]) > tall[i]) {
      tall[i] = fabsf(band[j]);
      at[i] = j;
    }
    steep[i] = fmaxf(steep[i], fabsf(rise[j]));
  }
}
]]

-- Taps of a band-pass filter: the difference of two low-pass ones under a Hamming window, passing nothing constant
-- and the middle of the band unchanged.
local function band_pass_taps()
  local taps, window, sum, window_sum = {}, {}, 0, 0
  for k = 1, TAPS do
    local t = k - (TAPS + 1) // 2
    local function low_pass(hz)
      local w = 2 * math.pi * hz / RATE
      return t == 0 and w / math.pi or math.sin(w * t) / (math.pi * t)
    end
    window[k] = 0.54 + 0.46 * math.cos(2 * math.pi * t / (TAPS - 1))
    taps[k] = (low_pass(HIGH) - low_pass(LOW)) * window[k]
    sum, window_sum = sum + taps[k], window_sum + window[k]
  end
  local gain, middle = 0, 2 * math.pi * (LOW + HIGH) / 2 / RATE
  for k = 1, TAPS do
    taps[k] = taps[k] - sum / window_sum * window[k]
    gain = gain + taps[k] * math.cos(middle * (k - (TAPS + 1) // 2))
  end
  for k = 1, TAPS do
    taps[k] = taps[k] / gain
  end
  return taps
end

-- Everything that the kernels find in `raw`: a list of peaks {index =, height =, tall =, steep =, at =}, and the signal
-- in millivolts.
local function find_peaks(dev, raw)
  local n = #raw
  local k = dev:compile(source)
  local tap <close> = dev:upload("f32", band_pass_taps())
  local mv <close> = dev:buffer("f32", n)
  local band <close> = dev:buffer("f32", n)
  local rise <close> = dev:buffer("f32", n)
  local energy <close> = dev:buffer("f32", n)
  local height <close> = dev:buffer("f32", n)
  local tall <close> = dev:buffer("f32", n)
  local steep <close> = dev:buffer("f32", n)
  local at <close> = dev:buffer("i32", n)

  k.millivolts:launch(n, n, raw, mv)
  k.band_pass:launch(n, n, TAPS, tap, mv, band)
  k.slope:launch(n, n, band, rise)
  k.integrate:launch(n, n, WINDOW, rise, energy)
  k.peaks:launch(n, n, APART // 2, WINDOW, band, rise, energy, height, tall, steep, at):await()

  local heights, talls, steeps, ats = height:read(), tall:read(), steep:read(), at:read()
  local peaks = {}
  for i = 1, n do
    if heights[i] > 0 then
      peaks[#peaks + 1] = { index = i, height = heights[i], tall = talls[i], steep = steeps[i], at = ats[i] + 1 }
    end
  end
  return peaks, mv:read(1, math.min(n, SHOWN * RATE))
end

-- Where beats and noise stand at first in one feature: the middle one of the highest peaks of each two seconds, over
-- the first ten, so that one disturbance there does no harm.
local function first_levels(peaks, feature)
  local highest = { 0, 0, 0, 0, 0 }
  local parts = 1
  for _, peak in ipairs(peaks) do
    local part = (peak.index - 1) // (2 * RATE) + 1
    if part <= #highest then
      highest[part] = math.max(highest[part], peak[feature])
      parts = part
    end
  end
  local seen = table.move(highest, 1, parts, 1, {})
  table.sort(seen)
  local level = seen[(parts + 1) // 2]
  return { beat = level / 2, noise = level / 16 }
end

-- The peaks that are beats.
local function find_beats(peaks)
  local energy, tall = first_levels(peaks, "height"), first_levels(peaks, "tall")
  local beats, intervals = {}, {}
  local last = 0 -- the last beat's place in peaks

  local function move(level, which, value, share)
    level[which] = level[which] + share * (value - level[which])
  end
  local function threshold(level)
    return level.noise + 0.25 * (level.beat - level.noise)
  end
  local function stands_out(peak, share)
    return peak.height > share * threshold(energy) and peak.tall > share * threshold(tall)
  end
  local function accept(k, share)
    move(energy, "beat", peaks[k].height, share)
    move(tall, "beat", peaks[k].tall, share)
    if last > 0 then
      table.insert(intervals, peaks[k].index - peaks[last].index)
      if #intervals > 8 then
        table.remove(intervals, 1)
      end
    end
    beats[#beats + 1], last = peaks[k], k
  end
  -- Too long without a beat: the highest peak since that passes half the thresholds was one.
  local function search_back(k)
    local sum = 0
    for _, interval in ipairs(intervals) do
      sum = sum + interval
    end
    if #intervals == 0 or peaks[k].index - peaks[last].index < 1.66 * sum / #intervals then
      return false
    end
    local best
    for j = last + 1, k - 1 do
      if peaks[j].index - peaks[last].index > 0.36 * RATE and stands_out(peaks[j], 0.5)
        and (not best or peaks[j].height > peaks[best].height) then
        best = j
      end
    end
    if best then
      accept(best, 0.25)
    end
    return best ~= nil
  end

  for k, peak in ipairs(peaks) do
    while search_back(k) do end
    local is_beat = stands_out(peak, 1)
    if is_beat and last > 0 and peak.index - peaks[last].index < 0.36 * RATE then
      -- So soon after a beat, a wave that is not steep is that beat's end (its T wave).
      is_beat = peak.steep > 0.5 * peaks[last].steep
    end
    if is_beat then
      accept(k, 0.125)
    else
      move(energy, "noise", peak.height, 0.125)
      move(tall, "noise", peak.tall, 0.125)
    end
  end
  return beats
end

-- The first seconds on the paper that cardiographs use: a small square is 40 ms by 0.1 mV, a large one five of them.
local function draw(signal, beats, title)
  local canvas = require "canvas"
  local SQUARE <const>, LEFT <const>, TOP <const> = 5, 74, 58
  local ROW_SECONDS <const> = 10
  local paper, fine, coarse = { 255, 252, 249 }, { 251, 228, 226 }, { 240, 186, 184 }
  local ink, trace, mark = { 70, 60, 66 }, { 24, 32, 74 }, { 206, 32, 44 }

  local low, high = math.huge, -math.huge
  for _, value in ipairs(signal) do
    low, high = math.min(low, value), math.max(high, value)
  end
  -- Room for the marks above; whole large squares.
  low, high = math.floor(low * 2 - 0.3) / 2, math.ceil(high * 2 + 0.8) / 2
  local seconds = math.ceil(#signal / RATE)
  local rows = math.ceil(seconds / ROW_SECONDS)
  local width, height = ROW_SECONDS * 25 * SQUARE, math.floor((high - low) * 10 + 0.5) * SQUARE
  local picture = canvas.new(LEFT + width + 24, TOP + rows * (height + 52), { 255, 255, 255 })
  picture:text(LEFT, 20, title, 2, ink)

  for row = 0, rows - 1 do
    local top, start = TOP + row * (height + 52), row * ROW_SECONDS
    local function y_of(value)
      return top + (high - value) * 10 * SQUARE
    end
    picture:rectangle(LEFT, top, width, height, paper)
    for _, step in ipairs { 1, 5 } do
      local colour = step == 1 and fine or coarse
      for x = 0, width, SQUARE * step do
        picture:rectangle(LEFT + x, top, 1, height + 1, colour)
      end
      for y = 0, height, SQUARE * step do
        picture:rectangle(LEFT, top + y, width + 1, 1, colour)
      end
    end
    for second = 0, ROW_SECONDS do
      local x = LEFT + second * 25 * SQUARE
      picture:rectangle(x, top + height, 1, 7, ink)
      picture:text(x, top + height + 12, ("%d s"):format(start + second), 2, ink, "center")
    end
    for value = math.ceil(low), math.floor(high) do
      picture:rectangle(LEFT - 6, math.floor(y_of(value)), 7, 1, ink)
      picture:text(LEFT - 12, math.floor(y_of(value)) - 6, ("%d mV"):format(value), 2, ink, "right")
    end

    local first, points = start * RATE + 1, {}
    local function x_of(i)
      return LEFT + (i - first) / RATE * 25 * SQUARE
    end
    for i = first, math.min(first + ROW_SECONDS * RATE, #signal) do
      points[#points + 1], points[#points + 2] = x_of(i), y_of(signal[i])
    end
    picture:line(points, 1.7, trace)
    for _, beat in ipairs(beats) do
      if beat.at >= first and beat.at < first + ROW_SECONDS * RATE and beat.at <= #signal then
        -- The mark stands above the highest sample around the beat.
        local peak = signal[beat.at]
        for i = math.max(beat.at - WINDOW // 2, 1), math.min(beat.at + WINDOW // 2, #signal) do
          peak = math.max(peak, signal[i])
        end
        picture:marker(math.floor(x_of(beat.at) + 0.5), math.floor(y_of(peak)) - 8, 11, mark)
      end
    end
  end
  return picture
end

local function main(path, picture_path)
  if not path then
    io.stderr:write("usage: gpulua examples/ecg.lua FILE.npy [OUT.png]\n")
    os.exit(2)
  end
  local dev = gpu.device()
  local raw <close> = npy.load(dev, path)
  if raw.type ~= "u16" or #raw.shape ~= 1 then
    error(path .. ": not a list of u16 samples", 0)
  end
  local peaks, signal = find_peaks(dev, raw)
  local beats = find_beats(peaks)

  print("beats: " .. #beats)
  if #beats > 1 then
    local seconds = (beats[#beats].index - beats[1].index) / RATE
    print(("heart rate: %.1f bpm"):format(60 * (#beats - 1) / seconds))
  else
    print("heart rate: unknown, fewer than two beats")
  end

  if picture_path then
    local image = require "gpulua.image"
    package.path = (arg[0]:match("^.*/") or "./") .. "?.lua;" .. package.path
    local title = ("first %d s of %s: beats marked"):format(math.ceil(#signal / RATE), path:match("[^/]*$"))
    local picture = draw(signal, beats, title)
    local pixels <close> = dev:upload("u8", picture:bytes()):view("u8", { picture.height, picture.width, 3 })
    image.save(pixels, picture_path)
  end
end

main(...)
