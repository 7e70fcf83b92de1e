-- Files, whole and in pieces, with error objects that name them. For the modules beside this one.
-- No call here yields: they block the thread as long as the disk takes.

local core = require "gpulua.core"
local instead <const> = require "gpulua.arguments".instead

local file = {}

local function check_path(path, what)
  if type(path) ~= "string" then
    core.raise("InvalidArgument", string.format("%s: path: a string expected, got %s", what, type(path)))
  end
  if string.find(path, "\0") then
    core.raise("InvalidArgument", string.format("%s: path: %q has a zero byte", what, path))
  end
end

local reader = {}
reader.__index = reader

-- Raises Unsupported in a sandbox.
function file.check_files(what)
  if core.is_sandbox then
    core.raise("Unsupported", string.format("%s: a sandbox has no files", what))
  end
end

-- A file to be read in pieces: `path`, `what`, and `size` in bytes, nil for what cannot be asked for it, as a pipe.
-- Raises Io, InvalidArgument for a path that is no string; its methods raise Io.
function file.open(path, what)
  check_path(path, what)
  file.check_files(what)
  local handle, failure = io.open(path, "rb")
  if not handle then
    core.raise("Io", string.format("%s: cannot be opened: %s", what, failure), "check the path and its permissions")
  end
  local size = handle:seek "end"
  if size then
    handle:seek "set"
  end
  return setmetatable({ handle = handle, path = path, what = what, size = size }, reader)
end

-- The next bytes: as many as asked for, fewer only at the end of the file; "a": all that are left. A folder opens and
-- then cannot be read.
function reader:read(byte_count)
  local bytes, failure = self.handle:read(byte_count)
  if failure then
    core.raise("Io", string.format("%s: %s: cannot be read: %s", self.what, self.path, failure),
      "give the path of a file")
  end
  return bytes or ""
end

-- Goes on at that byte, counted from 0.
function reader:seek(position)
  local ok, failure = self.handle:seek("set", position)
  if not ok then
    core.raise("Io", string.format("%s: %s: there is no going back in it: %s", self.what, self.path, failure),
      "write it to a file first")
  end
end

function reader:__close()
  self.handle:close()
end

local writer = {}
writer.__index = writer

-- A file to be written in pieces, which is left as far as it came if that fails. Raises as open does. `finish` has to
-- end it: what is closed without it says nothing of failures.
function file.create(path, what)
  check_path(path, what)
  file.check_files(what)
  local handle, failure = io.open(path, "wb")
  if not handle then
    core.raise("Io", string.format("%s: cannot be opened for writing: %s", what, failure),
      "check the path and its permissions")
  end
  return setmetatable({ handle = handle, path = path, what = what }, writer)
end

local function check_written(self, ok, failure)
  if not ok then
    core.raise("Io", string.format("%s: %s: cannot be written: %s", self.what, self.path, failure),
      "check the space left on the disk")
  end
end

function writer:write(...)
  check_written(self, self.handle:write(...))
end

-- Goes on at that byte, counted from 0. What is no file on a disk, as a pipe, cannot do that.
function writer:seek(position)
  check_written(self, self.handle:seek("set", position))
end

function writer:finish()
  local handle = self.handle
  self.handle = nil
  check_written(self, handle:close())
end

function writer:__close()
  if self.handle then
    self.handle:close()
  end
end

-- ---- as a whole ----

-- The bytes of a file. Raises as open does.
function file.read(path, what)
  local from <close> = file.open(path, what)
  return from:read "a"
end

-- Writes these bytes to a file. Raises as create does.
function file.write(path, what, bytes)
  local to <close> = file.create(path, what)
  to:write(bytes)
  to:finish()
end

-- ---- what the modules share ----

-- The bytes of a piece, in which large data goes: a multiple of every element's.
file.piece_bytes = 4 << 20

-- Closes the buffers of a table, unless `keep` is called first: for what may fail half-way.
local held = { __close = function(self)
  for _, buffer in pairs(self.buffers or {}) do
    buffer:close()
  end
end }
held.__index = held

function held:keep()
  self.buffers = nil
end

function file.hold(buffers)
  return setmetatable({ buffers = buffers }, held)
end

-- ---- arguments ----

-- Raises unless `options` is nil or a table with none but these names; returns it, or an empty one.
function file.check_options(options, names, what)
  if options ~= nil and type(options) ~= "table" then
    core.raise("InvalidArgument", string.format("%s: options: a table expected, got %s", what, type(options)))
  end
  for name in pairs(options or {}) do
    if not names[name] then
      core.raise("InvalidArgument", string.format("%s has no option '%s'%s", what, tostring(name), instead(names)))
    end
  end
  return options or {}
end

local function check_kind(value, what, kinds, article, hint)
  local kind = core.type(value)
  if not kind or not kinds[string.gsub(kind, "^closed ", "")] then
    core.raise("InvalidArgument", string.format("%s: %s expected, got %s", what, article, kind or type(value)), hint)
  end
end

-- Raises unless `dev` is a device, which may be closed: whoever uses it says so.
function file.check_device(dev, what)
  check_kind(dev, what .. ": device", { device = true }, "a device", "pass what gpu.device() returned")
end

-- Raises unless `buffer` is a buffer or a host buffer, which may be closed.
function file.check_buffer(buffer, what)
  check_kind(buffer, what .. ": buffer", { buffer = true, ["host buffer"] = true }, "a buffer",
    "pass what dev:buffer or dev:upload returned")
end

-- Waits for what writes the buffer and raises its failure: to be called before a file is opened for it, whose old
-- contents are lost then.
function file.check_contents(buffer)
  buffer:bytes(1, 1)
end

return file
