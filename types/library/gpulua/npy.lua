---@meta gpulua.npy
--[[
# NumPy's files: gpulua.npy

What `require "gpulua.npy"` gives reads and writes `.npy`, one array, and `.npz`, several with names. Shape and type are
kept. Either byte order is read, and Fortran order is brought to C order; what is written is little-endian and in C
order. Booleans become u8; bf16 has no NumPy type. A load that fails leaves no buffer behind; a save that fails leaves
the file as far as it came.
]]

---@class gpulua.npy
local npy = {}

---The array of an .npy file. One without dimensions becomes one element.
---
---```lua
---local npy = require "gpulua.npy"
---local path = os.tmpname()
---npy.save(dev:upload("i32", { 2, 3 }, { 1, 2, 3, 4, 5, 6 }), path)
---print(npy.load(dev, path))                 --> gpulua.buffer i32[2,3] on cpu
---os.remove(path)
---```
---
---Waits: blocks while it reads; yields for room on the way to the device.
---
---Errors: `Io`, `InvalidData` (short, damaged or of another kind), `InvalidArgument`, those of memory, those of work.
---@param device gpulua.device
---@param path string
---@return gpulua.buffer array
function npy.load(device, path) end

---Writes a buffer to an .npy file.
---
---Waits: yields until what writes the buffer is over; blocks while it writes.
---
---Errors: `Io`, `Unsupported` (bf16), `InvalidArgument`, `CaptureActive`, failures of work, those of work, those of
---waits.
---@param buffer gpulua.buffer|gpulua.host_buffer
---@param path string
function npy.save(buffer, path) end

---The arrays of an .npz archive, by name.
---
---Waits: blocks while it reads; yields for room on the way to the device.
---
---Errors: `Io`, `InvalidData`, `Unsupported` (entries that are encrypted, or compressed by something else than
---deflate), `LibraryUnavailable` (zlib), `InvalidArgument`, those of memory, those of work.
---@param device gpulua.device
---@param path string
---@return table<string, gpulua.buffer> arrays
function npy.load_all(device, path) end

---Writes buffers to an .npz archive, in the order of their names. Equal buffers make equal files.
---
---```lua
---local npy = require "gpulua.npy"
---local path = os.tmpname()
---npy.save_all({ a = dev:buffer("f32", 4):fill(1), b = dev:buffer("u8", 2):fill(7) }, path, { compress = true })
---print(npy.load_all(dev, path).b:read(2)[1]) --> 7
---os.remove(path)
---```
---
---Waits: yields until what writes the buffers is over; blocks while it writes.
---
---Errors: `Io` (also where there is no going back, as in a pipe), `Unsupported` (bf16), `LibraryUnavailable` (zlib, to
---compress), `InvalidArgument`, `CaptureActive`, failures of work, those of work, those of waits.
---@param buffers table<string, gpulua.buffer|gpulua.host_buffer>
---@param path string
---@param options? gpulua.save_all_options
function npy.save_all(buffers, path, options) end

---Options of `npy.save_all`.
---@class gpulua.save_all_options
---@field compress? boolean Deflate the entries; false by default.

return npy
