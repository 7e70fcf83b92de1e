---@meta gpulua.image
--[[
# Pictures: gpulua.image

What `require "gpulua.image"` gives reads PNG and JPEG, and writes PNG. A picture is a u8 buffer of shape {height,
width, channels}: 1 grey, 2 grey and alpha, 3 red, green, blue, 4 with alpha. Samples of 16 bits are brought to 8.
]]

---@class gpulua.image
local image = {}

---The picture in a file.
---
---```lua
---local image = require "gpulua.image"
---print(image.load(dev, "examples/data/ascent.png")) --> gpulua.buffer u8[512,512,1] on cpu
---```
---
---Waits: blocks while it reads; no for the device.
---
---Errors: `Io`, `InvalidData` (no picture, short or damaged), `InvalidArgument`, `OutOfMemory`, those of memory, those
---of work.
---@param device gpulua.device
---@param path string
---@return gpulua.buffer picture
function image.load(device, path) end

---Writes a picture, u8 of shape {height, width} or {height, width, channels}, to a file that ends in .png.
---
---Waits: yields until what writes the buffer is over; blocks while it writes.
---
---Errors: `InvalidArgument` (type, shape or path), `Capacity` (it is too large for a PNG), `Io`, `OutOfMemory`,
---`CaptureActive`, failures of work, those of work, those of waits.
---@param buffer gpulua.buffer|gpulua.host_buffer
---@param path string
function image.save(buffer, path) end

return image
