---@meta gpulua.wav
--[[
# Sound: gpulua.wav

What `require "gpulua.wav"` gives reads and writes WAV files: whole numbers of 8 to 32 bits, floating-point numbers of
32 and 64, and RF64 beyond 4 GiB. Sound is a buffer of shape {frames, channels}. Full scale is 1: whole numbers of b
bits are divided by 2^(b-1). The way out multiplies by it and rounds to nearest; 1 becomes the largest number. There is
no dither.
]]

---@class gpulua.wav
local wav = {}

---The sound in a WAV file, as f32; with `raw` as the numbers of the file: u8, i16, i32 (24 bits too), f32, f64.
---
---Waits: blocks while it reads; yields for room on the way to the device.
---
---Errors: `Io`, `InvalidData` (short, damaged, of another kind, or too large for f32), `Unsupported` (a coding),
---`InvalidArgument`, those of memory, those of work.
---@param device gpulua.device
---@param path string
---@param options? gpulua.wav_load_options
---@return gpulua.buffer sound {frames, channels}
---@return gpulua.wav_info info
function wav.load(device, path, options) end

---Writes sound, a buffer of f32, i16 or i32 with the shape {frames, channels} or {frames}.
---
---```lua
---local wav = require "gpulua.wav"
---local path = os.tmpname()
---local tone = dev:upload("f32", 480, function(i) return 0.5 * math.sin(i / 10) end)
---wav.save(tone, path, { rate = 48000, bits = 16 })
---local sound, info = wav.load(dev, path)
---print(info.frames, info.channels, info.rate, info.bits) --> 480	1	48000	16
---os.remove(path)
---```
---
---Waits: yields until what writes the buffer is over; blocks while it writes.
---
---Errors: `Io`, `InvalidData` (samples that do not fit, and where), `InvalidArgument`, `CaptureActive`, failures of
---work, those of work, those of waits.
---@param buffer gpulua.buffer|gpulua.host_buffer
---@param path string
---@param options gpulua.wav_save_options
---@return integer clipped How many samples were.
function wav.save(buffer, path, options) end

---Options of `wav.load`.
---@class gpulua.wav_load_options
---@field raw? boolean Keep the numbers of the file; false by default.

---Options of `wav.save`.
---@class gpulua.wav_save_options
---@field rate integer Frames a second.
---@field bits? 16|24|32|"f32" From f32 any of them, from i16 16, from i32 24 or 32; by default the buffer's.
---@field clip? boolean Clip what lies outside of -1 to 1, instead of raising; false by default.
---@field mask? integer Of speakers; by default front centre for one channel, left and right for two, else 0.

---What `wav.load` says of a file.
---@class gpulua.wav_info
---@field rate integer Frames a second.
---@field channels integer
---@field frames integer
---@field bits integer Of a sample.
---@field format "int"|"float"
---@field mask? integer Of speakers; nil in plain files.

return wav
