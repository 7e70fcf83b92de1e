-- The heads of WAV files, for wav.lua: what stands before the samples (RIFF/WAVE as Microsoft and IBM defined it,
-- WAVE_FORMAT_EXTENSIBLE, and RF64 of EBU Tech 3306, which is for more than 4 GiB).

local core = require "gpulua.core"

local riff = {}

local MAX32 <const> = 0xffffffff
local PCM <const>, FLOAT <const>, EXTENSIBLE <const> = 1, 3, 0xfffe
-- Behind the format's number in the GUID of an extensible format.
local GUID_END <const> = "\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
local SOX_UNKNOWN <const> = 0x7ffff000 -- what SoX writes, down to whole frames, where it cannot know the length
local DS64_BYTES <const>, FMT_BYTES_MAX <const> = 28, 1 << 16

local function damaged(where, message, ...)
  core.raise("InvalidData", string.format("%s: ", where) .. string.format(message, ...), "write the file again")
end

local function read_exactly(reader, where, byte_count)
  local bytes = reader:read(byte_count)
  if #bytes < byte_count then
    damaged(where, "it is short: it ends within its head")
  end
  return bytes
end

-- A chunk's name, as a message can have it.
local function shown(id)
  return (string.gsub(id, "[^\x20-\x7e]", "?"))
end

-- ---- in ----

local tags <const> = { [2] = "ADPCM", [6] = "A-law", [7] = "mu-law", [17] = "IMA ADPCM", [49] = "GSM 6.10",
  [80] = "MPEG", [85] = "MP3" }

-- What the chunk 'fmt ' says.
local function read_format(where, text)
  if #text < 16 then
    damaged(where, "its format is short")
  end
  local tag, channels, rate, _, frame_bytes, bits = string.unpack("<I2I2I4I4I2I2", text)
  local valid_bits, mask = bits, nil
  if tag == EXTENSIBLE then
    if #text < 40 then
      damaged(where, "its format is short")
    end
    local guid_end
    valid_bits, mask, tag, guid_end = string.unpack("<I2I4I2c14", text, 19)
    valid_bits = valid_bits == 0 and bits or valid_bits
    tag = guid_end == GUID_END and tag or -1
  end
  if tag ~= PCM and tag ~= FLOAT then
    core.raise("Unsupported", string.format("%s: its samples are of %s", where,
      tag < 0 and "a format of its own" or tags[tag] or string.format("format %d", tag)),
      "convert it to linear samples, of whole or of floating-point numbers")
  end
  if channels == 0 or rate == 0 or frame_bytes == 0 or frame_bytes % channels ~= 0 then
    damaged(where, "its format cannot be: %d channels, %d frames a second, %d bytes a frame", channels, rate,
      frame_bytes)
  end
  local sample_bytes = frame_bytes // channels
  local fits
  if tag == PCM then
    fits = bits >= 1 and bits <= 8 * sample_bytes and sample_bytes <= 4
  else
    fits = (bits == 32 or bits == 64) and bits == 8 * sample_bytes
  end
  if tag == PCM and sample_bytes > 4 and bits <= 8 * sample_bytes then
    core.raise("Unsupported", string.format("%s: its samples are whole numbers of %d bits in %d bytes", where, bits,
      sample_bytes), "convert it to whole numbers of 32 bits, or to floating-point numbers")
  end
  if not fits or valid_bits > bits then
    damaged(where, "its format cannot be: samples of %d bits in %d bytes", bits, sample_bytes)
  end
  return { rate = rate, channels = channels, bits = valid_bits, mask = mask, format = tag == PCM and "int" or "float",
    sample_bytes = sample_bytes }
end

-- The sizes beyond 32 bits: of the data, and of other chunks by their names.
local function read_ds64(where, text)
  if #text < DS64_BYTES then
    damaged(where, "its sizes (ds64) are short")
  end
  local _, data, _, count = string.unpack("<I8I8I8I4", text)
  local sizes = { data = data }
  if count > (#text - DS64_BYTES) // 12 then
    damaged(where, "its sizes (ds64) are short")
  end
  for i = 1, count do
    local id, size = string.unpack("<c4I8", text, DS64_BYTES + 12 * i - 11)
    sizes[id] = sizes[id] or size
  end
  return sizes
end

-- How many bytes of samples there are, where the chunk claims `claimed` and the file has `rest`.
local function count_bytes(where, claimed, rest, frame_bytes, riff_is_open)
  local is_open = claimed == MAX32 or claimed == 0 and riff_is_open
    or claimed > rest and claimed == SOX_UNKNOWN // frame_bytes * frame_bytes
  if not is_open then
    if claimed > rest then
      damaged(where, "it is short: %d bytes of samples of %d are there", rest, claimed)
    end
    if claimed % frame_bytes ~= 0 then
      damaged(where, "%d bytes of samples are no whole number of frames of %d bytes", claimed, frame_bytes)
    end
    return claimed
  end
  -- Written as a stream: all that follows. Behind an odd number of bytes one more may stand.
  local left_over = rest % frame_bytes
  if left_over > (frame_bytes & 1) then
    damaged(where, "it is short: it ends within a frame")
  end
  return rest - left_over
end

-- The head of the file that `reader` has open, which stands at the first sample then: { rate (frames a second),
-- channels, bits, format ("int" or "float"), mask (of speakers, or nil), sample_bytes, frames }. Raises Io,
-- InvalidData, Unsupported. `where` is for messages.
function riff.read_head(reader, where)
  if not reader.size then
    core.raise("Io", string.format("%s: there is no going back in it", where), "write it to a file first")
  end
  local start = reader:read(12)
  local kind, form = string.sub(start, 1, 4), string.sub(start, 9)
  if kind == "RIFX" then
    core.raise("Unsupported", string.format("%s: its numbers are big-endian (RIFX)", where), "convert it to RIFF")
  end
  if kind ~= "RIFF" and kind ~= "RF64" and kind ~= "BW64" or form ~= "WAVE" then
    core.raise("InvalidData", string.format("%s: not a WAV file", where),
      "give a RIFF, RF64 or BW64 file with WAVE in it")
  end
  local riff_bytes = string.unpack("<I4", start, 5)
  local at, sizes, format, data_at, data_bytes = 12, nil, nil, nil, nil
  while not (format and data_at) do
    if reader.size - at < 8 then
      damaged(where, "it is short: it has no %s", format and "samples" or "format")
    end
    reader:seek(at)
    local id, byte_count = string.unpack("<c4I4", read_exactly(reader, where, 8))
    at = at + 8
    if byte_count == MAX32 and sizes and sizes[id] then
      byte_count = sizes[id]
      if byte_count < 0 then
        damaged(where, "its chunk '%s' is too large", shown(id))
      end
    end
    if id == "data" then
      if data_at or kind ~= "RIFF" and not sizes then
        damaged(where, data_at and "it has samples twice" or "it has no sizes (ds64) before its samples")
      end
      data_at, data_bytes = at, byte_count
    elseif byte_count > reader.size - at then
      damaged(where, "it is short: it ends within its chunk '%s'", shown(id))
    elseif id == "fmt " or id == "ds64" then
      if byte_count > FMT_BYTES_MAX or (id == "fmt " and format or id == "ds64" and sizes) then
        damaged(where, "its chunk '%s' cannot be", id)
      end
      local text = read_exactly(reader, where, byte_count)
      if id == "fmt " then
        format = read_format(where, text)
      elseif kind ~= "RIFF" then
        sizes = read_ds64(where, text)
      end
    end
    -- Past what lies behind the end nothing is looked for: the next turn says that it is short.
    at = at + math.min(byte_count + (byte_count & 1), reader.size - at)
  end
  local frame_bytes = format.channels * format.sample_bytes
  local rest = reader.size - data_at
  local riff_is_open = rest > 0 and riff_bytes + 8 ~= reader.size and not sizes
  format.frames = count_bytes(where, data_bytes, rest, frame_bytes, riff_is_open) // frame_bytes
  if format.frames == 0 then
    core.raise("InvalidData", string.format("%s: it holds no samples", where), "a buffer has at least one element")
  end
  reader:seek(data_at)
  return format
end

-- ---- out ----

local function chunk(id, text)
  return string.pack("<c4I4", id, #text) .. text .. (#text & 1 == 1 and "\0" or "")
end

-- What stands before and behind the samples of a file with that format, as read_head gives it. More bytes than
-- `rf64_from` (left out: than 32 bits hold) make it RF64.
function riff.head(format, rf64_from)
  local frame_bytes = format.channels * format.sample_bytes
  local data_bytes = format.frames * frame_bytes
  local tag = format.format == "int" and PCM or FLOAT
  -- Microsoft's rule for when the plain format does not do.
  local is_extensible = format.channels > 2 or tag == PCM and format.bits > 16
  local fmt = string.pack("<I2I2I4I4I2I2", is_extensible and EXTENSIBLE or tag, format.channels, format.rate,
    format.rate * frame_bytes, frame_bytes, format.sample_bytes * 8)
  if is_extensible then
    fmt = fmt .. string.pack("<I2I2I4I2", 22, format.bits, format.mask, tag) .. GUID_END
  elseif tag ~= PCM then
    fmt = fmt .. "\0\0"
  end
  local chunks = chunk("fmt ", fmt)
  if tag ~= PCM then
    chunks = chunks .. chunk("fact", string.pack("<I4", math.min(format.frames, MAX32)))
  end
  local pad = (data_bytes & 1 == 1) and "\0" or ""
  local riff_bytes = 4 + #chunks + 8 + data_bytes + #pad
  if riff_bytes > (rf64_from or MAX32 - 1) then
    riff_bytes = riff_bytes + 8 + DS64_BYTES
    chunks = chunk("ds64", string.pack("<I8I8I8I4", riff_bytes, data_bytes, format.frames, 0)) .. chunks
    return string.pack("<c4I4c4", "RF64", MAX32, "WAVE") .. chunks .. string.pack("<c4I4", "data", MAX32), pad
  end
  return string.pack("<c4I4c4", "RIFF", riff_bytes, "WAVE") .. chunks .. string.pack("<c4I4", "data", data_bytes), pad
end

return riff
