-- Sound: wav.load(device, path, {raw = true}) -> buffer, info; wav.save(buffer, path, {rate = 48000, bits = 16}).
--
-- WAV files: whole numbers of 8 bits (unsigned), 16, 24 and 32, floating-point numbers of 32 and 64, plain and
-- WAVE_FORMAT_EXTENSIBLE, chunks in any order, files written as streams, and RF64 beyond 4 GiB. Sound is a buffer of
-- shape {frames, channels}. Read and written here and not by libsndfile, which would be 700 KB of codecs for this.
--
-- Full scale is 1: whole numbers of b bits are divided by 2^(b-1) and lie in [-1, 1) (rounding to f32 makes 1 of the
-- largest 64 numbers of 32 bits). The way out multiplies by it and rounds to nearest, even where two are; 1 becomes the
-- largest number, half a step below. There is no dither. What lies outside of [-1, 1] is an error that says where,
-- found before anything is written, or clipped with `clip = true`; NaN is an error always. So what was read from 8, 16
-- and 24 bits comes out as it was.
--
-- The calls raise Io for a file that cannot be read or written, InvalidData for one that is short, damaged or of
-- another kind, Unsupported for what is whole and cannot be had; all name the file. Sound goes through the host in
-- pieces of 4 MiB. Reading and writing block the thread. Save waits for everything that writes the buffer, and load for
-- room on the way to the device; both yield in a task.

local core = require "gpulua.core"
local file = require "gpulua.file"
local riff = require "gpulua.riff"
local samples = require "gpulua.samples_core"

local wav = {}

local MAX16 <const>, MAX32 <const> = 0xffff, 0xffffffff

-- ---- in ----

local from_bytes <const> = { int = { "u8", "i16", "i24", "i32" }, float = { [4] = "f32", [8] = "f64" } }
local raw_types <const> = { i24 = "i32" } -- others are what they are in the file

local load_options <const> = { raw = true }

--- wav.load(device, path[, options]) -> the sound of the file as a new buffer {frames, channels} of f32. Options:
-- `raw`, true to keep the numbers of the file: u8 (0 to 255), i16, i32 (24 bits too), f32, f64. Returns the buffer and
-- a table: rate (frames a second), channels, frames, bits (of a sample, as the file says), format ("int" or "float"),
-- mask (of speakers; nil in plain files). Raises Io, InvalidData, Unsupported, InvalidArgument, and what dev:buffer
-- raises. Blocks while it reads; yields in a task where there is no room on the way to the device.
function wav.load(dev, path, options)
  file.check_device(dev, "wav.load")
  options = file.check_options(options, load_options, "wav.load")
  if options.raw ~= nil and type(options.raw) ~= "boolean" then
    core.raise("InvalidArgument", string.format("wav.load: raw: a boolean expected, got %s", type(options.raw)))
  end
  local reader <close> = file.open(path, "wav.load")
  local where = string.format("wav.load: %s", path)
  local info = riff.read_head(reader, where)
  local sample_bytes = info.sample_bytes
  info.sample_bytes = nil

  local from = from_bytes[info.format][sample_bytes]
  local to = options.raw and (raw_types[from] or from) or "f32"
  local buffer = dev:buffer(to, { info.frames, info.channels })
  local held <close> = file.hold { buffer }
  local count, piece = info.frames * info.channels, file.piece_bytes // 8
  for first = 1, count, piece do
    local wanted = math.min(piece, count - first + 1) * sample_bytes
    local bytes = reader:read(wanted)
    if #bytes < wanted then
      core.raise("InvalidData", string.format("%s: it became shorter while it was read", where))
    end
    if from ~= to then
      local misfits, at
      bytes, misfits, at = samples.convert(bytes, from, to)
      if misfits > 0 then
        core.raise("InvalidData", string.format("%s: sample %d of channel %d is too large for f32", where,
          (first + at - 2) // info.channels + 1, (first + at - 2) % info.channels + 1), "read it with raw = true")
      end
    end
    buffer:write(bytes, first)
  end
  held:keep()
  return buffer, info
end

-- ---- out ----

-- The types of buffers, and what their samples can become: the type in the file.
local to_bits <const> = {
  f32 = { [16] = "i16", [24] = "i24", [32] = "i32", f32 = "f32" },
  i16 = { [16] = "i16" },
  i32 = { [24] = "i24", [32] = "i32" },
}
local default_bits <const> = { f32 = "f32", i16 = 16, i32 = 32 }
local sample_bytes_of <const> = { i16 = 2, i24 = 3, i32 = 4, f32 = 4 }
local save_options <const> = { rate = true, bits = true, clip = true, mask = true }

local function check_number(value, name, least, most)
  local number = math.type(value) and math.tointeger(value)
  if not number or number < least or number > most then
    core.raise("InvalidArgument", string.format("wav.save: %s: a whole number from %d to %d expected, got %s", name,
      least, most, tostring(value)))
  end
  return number
end

-- What the file is to say of its samples, and their type in it.
local function check_format(buffer, options)
  local shape = buffer.shape
  if not to_bits[buffer.type] or #shape > 2 then
    core.raise("InvalidArgument",
      string.format("wav.save: buffer: sound is f32, i16 or i32 {frames, channels}, not %s {%s}", buffer.type,
        table.concat(shape, ", ")), "convert it, or give its shape with buffer:view")
  end
  local bits = options.bits == nil and default_bits[buffer.type] or options.bits
  local to = to_bits[buffer.type][math.type(bits) and math.tointeger(bits) or bits]
  if not to then
    core.raise("InvalidArgument", string.format("wav.save: bits: %s cannot be had from %s", tostring(bits),
      buffer.type), 'f32 becomes 16, 24, 32 or "f32", i16 16, i32 24 or 32')
  end
  local sample_bytes, channels = sample_bytes_of[to], shape[2] or 1
  if channels * sample_bytes > MAX16 then
    core.raise("InvalidArgument",
      string.format("wav.save: buffer: %d channels of %d bytes are more than a WAV file can have", channels,
        sample_bytes), "the shape is {frames, channels}")
  end
  if options.clip ~= nil and type(options.clip) ~= "boolean" then
    core.raise("InvalidArgument", string.format("wav.save: clip: a boolean expected, got %s", type(options.clip)))
  end
  return {
    rate = check_number(options.rate, "rate", 1, MAX32 // (channels * sample_bytes)),
    -- Front centre; front left and right; no places in particular.
    mask = check_number(options.mask or (channels == 1 and 4 or channels == 2 and 3 or 0), "mask", 0, MAX32),
    channels = channels, frames = shape[1], bits = sample_bytes * 8, sample_bytes = sample_bytes,
    format = to == "f32" and "float" or "int",
  }, to
end

-- Calls f(bytes) for each piece of the samples as they are to be in the file. Returns how many do not fit. Raises for
-- the first that is no number, and, unless `clips`, for what does not fit.
local function each_piece(buffer, to, channels, clips, f)
  local misfits, first_misfit, first_nan = 0, 0, 0
  local piece = file.piece_bytes // 4
  for first = 1, #buffer, piece do
    local bytes = buffer:bytes(first, math.min(first + piece - 1, #buffer))
    if to ~= buffer.type then
      local count, at, nan_at
      bytes, count, at, nan_at = samples.convert(bytes, buffer.type, to)
      first_misfit = first_misfit == 0 and at > 0 and first + at - 1 or first_misfit
      first_nan = first_nan == 0 and nan_at > 0 and first + nan_at - 1 or first_nan
      misfits = misfits + count
    end
    f(bytes)
  end
  local function place(number)
    return string.format("frame %d, channel %d", (number - 1) // channels + 1, (number - 1) % channels + 1)
  end
  if first_nan > 0 then
    core.raise("InvalidData", string.format("wav.save: buffer: %s is not a number", place(first_nan)),
      'bits = "f32" writes what is there')
  end
  if misfits > 0 and not clips then
    core.raise("InvalidData", string.format("wav.save: buffer: %d samples lie outside of %s, the first in %s", misfits,
      buffer.type == "f32" and "-1 to 1" or "24 bits", place(first_misfit)),
      "scale them, or clip them with clip = true")
  end
  return misfits
end

--- wav.save(buffer, path[, options]) -> how many samples were clipped. Writes sound, a buffer {frames, channels} or
-- {frames} of f32, i16 or i32. Options: `rate`, frames a second, which has to be given; `bits`, 16, 24, 32 or "f32",
-- by default those of the buffer's type (whole numbers can become 16 bits from i16, 24 and 32 from i32, and are
-- written as they are); `clip`, true to clip what does not fit; `mask`, of speakers. Raises Io, InvalidData for
-- samples that do not fit, InvalidArgument, and the failure of what writes the buffer. Waits for that, yielding in a
-- task, and blocks while it writes; what is converted is read twice, so that nothing is written if it does not fit.
function wav.save(buffer, path, options)
  file.check_buffer(buffer, "wav.save")
  options = file.check_options(options, save_options, "wav.save")
  local format, to = check_format(buffer, options)
  local clips = options.clip or false
  if to == buffer.type then
    file.check_contents(buffer)
  else
    each_piece(buffer, to, format.channels, clips, function() end)
  end
  local head, tail = riff.head(format)
  local writer <close> = file.create(path, "wav.save")
  writer:write(head)
  local clipped = each_piece(buffer, to, format.channels, clips, function(bytes) writer:write(bytes) end)
  writer:write(tail)
  writer:finish()
  return clipped
end

return require "gpulua.entries"(wav)
