-- Whole files, with error objects that name them. For the modules beside this one.

local core = require "gpulua.core"

local file = {}

local function check_path(path, what)
  if type(path) ~= "string" then
    core.raise("InvalidArgument", ("%s: path: a string expected, got %s"):format(what, type(path)))
  end
end

-- The bytes of a file. Raises Io, InvalidArgument for a path that is no string.
function file.read(path, what)
  check_path(path, what)
  local handle <close>, open_error = io.open(path, "rb")
  if not handle then
    core.raise("Io", ("%s: cannot be opened: %s"):format(what, open_error), "check the path and its permissions")
  end
  -- A folder opens and then cannot be read.
  local bytes, read_error = handle:read("a")
  if not bytes then
    core.raise("Io", ("%s: %s: cannot be read: %s"):format(what, path, read_error), "give the path of a file")
  end
  return bytes
end

-- Writes all parts to a file, which is left as far as it came if that fails. Raises as read does.
function file.write(path, what, ...)
  check_path(path, what)
  local handle, failure = io.open(path, "wb")
  if not handle then
    core.raise("Io", ("%s: cannot be opened for writing: %s"):format(what, failure),
      "check the path and its permissions")
  end
  local ok
  ok, failure = handle:write(...)
  local closed, close_failure = handle:close()
  if not ok or not closed then
    core.raise("Io", ("%s: %s: cannot be written: %s"):format(what, path, failure or close_failure),
      "check the space left on the disk")
  end
end

-- Raises unless `dev` can be a device.
function file.check_device(dev, what)
  if type(dev) ~= "userdata" then
    core.raise("InvalidArgument", ("%s: device: a device expected, got %s"):format(what, type(dev)),
      "pass what gpu.device() returned")
  end
end

-- Raises unless `buffer` can be a buffer.
function file.check_buffer(buffer, what)
  if type(buffer) ~= "userdata" then
    core.raise("InvalidArgument", ("%s: buffer: a buffer expected, got %s"):format(what, type(buffer)),
      "pass what dev:buffer or dev:upload returned")
  end
end

return file
