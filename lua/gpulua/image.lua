-- Pictures: image.load(device, path) -> buffer, image.save(buffer, path).
--
-- PNG and JPEG in, PNG out. A picture is a u8 buffer of shape {height, width, channels}: 1 grey, 2 grey and alpha,
-- 3 red, green, blue, 4 with alpha; samples of 16 bits are brought to 8. Load raises Io for a file that cannot be read
-- and InvalidData for one that is no picture, short or damaged; both name it. Both wait for what they copy.

local codec = require "gpulua.image_core"
local core = require "gpulua.core"
local file = require "gpulua.file"

local image = {}

local CHANNELS_MAX <const> = 4
local SIDE_MAX <const> = 1 << 24
local BYTES_MAX <const> = (1 << 30) - 1 -- of pixels that the encoder takes

--- image.load(device, path) -> a new buffer with the picture's pixels.
function image.load(dev, path)
  file.check_device(dev, "image.load")
  local pixels, width, height, channels = codec.decode(file.read(path, "image.load"))
  if not pixels then
    core.raise("InvalidData", string.format("image.load: %s: %s", path, width), "give a whole PNG or JPEG file")
  end
  return dev:upload("u8", pixels):view("u8", { height, width, channels })
end

--- image.save(buffer, path): writes a picture as PNG. The buffer is u8 of shape {height, width} or {height, width,
-- channels}.
function image.save(buffer, path)
  file.check_files "image.save"
  file.check_buffer(buffer, "image.save")
  local shape = buffer.shape
  local height, width, channels = shape[1], shape[2], shape[3] or 1
  if buffer.type ~= "u8" or #shape < 2 or #shape > 3 or channels > CHANNELS_MAX then
    core.raise("InvalidArgument",
      string.format("image.save: buffer: a picture is u8 {height, width, 1 to 4 channels}, not %s {%s}", buffer.type,
        table.concat(shape, ", ")), "convert it, or give its shape with buffer:view")
  end
  if width > SIDE_MAX or height > SIDE_MAX or width * height * channels > BYTES_MAX then
    core.raise("Capacity", string.format("image.save: buffer: a PNG of %d by %d pixels is too large", width, height),
      string.format("at most %d bytes, no side over %d", BYTES_MAX, SIDE_MAX))
  end
  if type(path) == "string" and not string.find(string.lower(path), "%.png$") then
    core.raise("InvalidArgument", string.format("image.save: path: '%s' does not end in .png", path),
      "PNG is what is written")
  end
  local bytes, failure = codec.encode_png(buffer:bytes(), width, height, channels)
  if not bytes then
    core.raise("OutOfMemory", string.format("image.save: %s: %s", path, failure))
  end
  file.write(path, "image.save", bytes)
end

return require "gpulua.entries"(image)
