-- NumPy's files: .npy, one array, and .npz, several with names.
--
--   npy.load(device, path) -> buffer                npy.save(buffer, path)
--   npy.load_all(device, path) -> name -> buffer    npy.save_all(buffers, path, {compress = true})
--
-- Format versions 1 to 3; shape and type are kept. Either byte order is read, and Fortran order is brought to C order;
-- what is written is little-endian and in C order. Booleans become u8; bf16 has no NumPy type. Archives are zip files
-- with entries stored or deflated, also beyond 4 GiB; each checksum is checked.
--
-- The calls raise Io for a file that cannot be read or written, InvalidData for one that is short, damaged or of
-- another kind, Unsupported for what is whole and cannot be had; all name the file, and the entry. A load that fails
-- leaves no buffer behind; a save that fails leaves the file as far as it came.
--
-- Files go through the host in pieces of 4 MiB, but for arrays in Fortran order, which it holds as a whole. Reading,
-- writing and compressing block the thread. Saves wait for everything that writes the buffer, and loads for room on the
-- way to the device; both yield in a task.

local core = require "gpulua.core"
local file = require "gpulua.file"
local samples = require "gpulua.samples_core"
local zip = require "gpulua.zip"

local npy = {}

local MAGIC <const> = "\x93NUMPY"
local HEADER_ALIGNMENT <const> = 64
local HEADER_BYTES_MAX <const> = 1 << 20 -- of what is read; the longest that is written has 300
local DIMENSIONS_MAX <const> = 8 -- as buffers have
local NAME_BYTES_MAX <const> = 0xffff - #".npy"

-- NumPy's type, without its byte order: ours, the bytes of an element, and of the numbers that it consists of.
local from_numpy = {
  b1 = { "u8", 1, 1 }, i1 = { "i8", 1, 1 }, u1 = { "u8", 1, 1 }, i2 = { "i16", 2, 2 }, u2 = { "u16", 2, 2 },
  i4 = { "i32", 4, 4 }, u4 = { "u32", 4, 4 }, i8 = { "i64", 8, 8 }, u8 = { "u64", 8, 8 }, f2 = { "f16", 2, 2 },
  f4 = { "f32", 4, 4 }, f8 = { "f64", 8, 8 }, c8 = { "c64", 8, 4 }, c16 = { "c128", 16, 8 },
}
local to_numpy = {
  i8 = "|i1", u8 = "|u1", i16 = "<i2", u16 = "<u2", i32 = "<i4", u32 = "<u4", i64 = "<i8", u64 = "<u8",
  f16 = "<f2", f32 = "<f4", f64 = "<f8", c64 = "<c8", c128 = "<c16",
}

-- `where` names the call, the file and the entry.
local function damaged(where, message, ...)
  core.raise("InvalidData", string.format("%s: ", where) .. string.format(message, ...),
    "write the file again with NumPy")
end

-- A reader of one header: the text of a Python dictionary with exactly the keys 'descr', 'fortran_order' and 'shape'.
-- Nothing is evaluated. Returns descr, fortran_order, shape. Structures are refused.
local function parse_header(where, text)
  local at = 1
  local function take(pattern)
    local first, last, capture = string.find(text, "^%s*" .. pattern, at)
    if first then
      at = last + 1
    end
    return first and (capture or true)
  end
  local function expect(pattern, what)
    return take(pattern) or damaged(where, "its header is damaged: %s expected at byte %d of it", what, at)
  end

  local function shape()
    local dimensions = {}
    expect("%(", "a shape")
    local comma = true
    while not take("%)") do
      if not comma then
        damaged(where, "its header is damaged: ',' or ')' expected at byte %d of it", at)
      end
      local digits = expect("(%d+)L?", "a whole number") -- Python 2 has an L behind large ones
      dimensions[#dimensions + 1] = math.tointeger(tonumber(digits))
        or damaged(where, "dimension %d, %s, is too large", #dimensions + 1, digits)
      comma = take(",")
    end
    -- In Python (3) is a number, (3,) a tuple.
    if #dimensions == 1 and not comma then
      damaged(where, "its header is damaged: the shape is no tuple")
    end
    return dimensions
  end

  local values = {}
  expect("{", "'{'")
  local comma = true
  while not take("}") do
    if not comma then
      damaged(where, "its header is damaged: ',' or '}' expected at byte %d of it", at)
    end
    local key = take("'([%w_]*)'") or expect('"([%w_]*)"', "a key")
    if values[key] ~= nil then
      damaged(where, "its header is damaged: '%s' stands there twice", key)
    end
    expect(":", "':'")
    if key == "descr" then
      if string.find(text, "^%s*%[", at) then
        core.raise("InvalidData", string.format("%s: its elements are structures", where), "save each field by itself")
      end
      values.descr = take("'([^']*)'") or expect('"([^"]*)"', "a type")
    elseif key == "fortran_order" then
      values.fortran_order = not take("False")
      if values.fortran_order then
        expect("True", "True or False")
      end
    elseif key == "shape" then
      values.shape = shape()
    else
      damaged(where, "its header is damaged: unknown key '%s'", key)
    end
    comma = take(",")
  end
  if not string.find(text, "^[ \n]*$", at) then
    damaged(where, "its header is damaged: more stands behind the dictionary")
  end
  for _, key in ipairs { "descr", "fortran_order", "shape" } do
    if values[key] == nil then
      damaged(where, "its header is damaged: it has no '%s'", key)
    end
  end
  return values.descr, values.fortran_order, values.shape
end

-- Our type for NumPy's, as from_numpy has it, and whether its bytes have to be swapped.
local function element_type(where, descr)
  local order, name = string.match(descr, "^([<>|=]?)([%a]%d+)$")
  local known = from_numpy[name]
  if not known then
    core.raise("InvalidData", string.format("%s: no element type for NumPy's '%s'", where, descr),
      name == "V2" and "if it is bfloat16, save it as float32: a.astype('f4')"
      or "convert it to numbers first, say with numpy's astype('f4')")
  end
  return known, order == ">" and known[3] > 1
end

-- The number of elements, no more than the file can hold: what is larger cannot be right.
local function count_elements(where, shape, available)
  if #shape > DIMENSIONS_MAX then
    damaged(where, "it has %d dimensions, buffers have at most %d", #shape, DIMENSIONS_MAX)
  end
  for i, dimension in ipairs(shape) do
    if dimension == 0 then
      core.raise("InvalidData", string.format("%s: dimension %d is 0: it holds no elements", where, i),
        "a buffer has at least one element")
    end
  end
  local count = 1
  for _, dimension in ipairs(shape) do
    if dimension > available // count then
      damaged(where, "it is short: its shape needs more than the %d elements that are there", available)
    end
    count = count * dimension
  end
  return count
end

-- ---- one array ----

-- Arrays come from a source: `where`, for messages; `left`, how many bytes there are, math.maxinteger where nobody
-- knows; read(byte_count), which gives fewer bytes only at the end; finish(), when all is read.

local function read_exactly(source, byte_count)
  local bytes = source:read(byte_count)
  if #bytes < byte_count then
    damaged(source.where, "it is short: %d bytes are missing", byte_count - #bytes)
  end
  return bytes
end

-- Returns descr, fortran_order and shape, as parse_header does. The source stands at the data then.
local function read_header(source)
  local where = source.where
  local start = source:read(#MAGIC + 4)
  if string.sub(start, 1, #MAGIC) ~= MAGIC then
    core.raise("InvalidData", string.format("%s: not an .npy file", where), string.find(start, "^PK")
      and "it looks like an .npz archive, which npy.load_all reads" or "numpy.save writes such files")
  end
  if #start < #MAGIC + 4 then
    damaged(where, "it is short: it ends within its header")
  end
  local major = string.byte(start, #MAGIC + 1)
  if major < 1 or major > 3 then
    core.raise("InvalidData", string.format("%s: format version %d is not known", where, major),
      "versions 1, 2 and 3 are")
  end
  local header_bytes
  if major == 1 then
    header_bytes = string.unpack("<I2", start, #MAGIC + 3)
  else
    header_bytes = string.unpack("<I4", string.sub(start, -2) .. read_exactly(source, 2))
  end
  if header_bytes > source.left then
    damaged(where, "it is short: it ends within its header")
  end
  if header_bytes > HEADER_BYTES_MAX then
    damaged(where, "its header claims %d bytes", header_bytes)
  end
  return parse_header(where, read_exactly(source, header_bytes))
end

-- All of `byte_count` bytes, which a damaged file may only claim: taken as they come.
local function read_whole(source, byte_count)
  local pieces = {}
  while byte_count > 0 do
    pieces[#pieces + 1] = read_exactly(source, math.min(byte_count, file.piece_bytes))
    byte_count = byte_count - #pieces[#pieces]
  end
  return table.concat(pieces)
end

local function read_array(dev, source)
  local where = source.where
  local descr, fortran_order, shape = read_header(source)
  local known, is_swapped = element_type(where, descr)
  local elem_type, elem_bytes, number_bytes = table.unpack(known)
  local data_bytes = source.left
  local count = count_elements(where, shape, data_bytes // elem_bytes)
  if data_bytes ~= math.maxinteger and count * elem_bytes ~= data_bytes then
    damaged(where, "%d bytes of data where its shape and type need %d", data_bytes, count * elem_bytes)
  end

  -- With one dimension, or none, both orders are the same.
  local whole = fortran_order and #shape > 1 and read_whole(source, count * elem_bytes)
  local buffer = dev:buffer(elem_type, #shape > 1 and shape or count)
  local held <close> = file.hold { buffer }
  local piece = file.piece_bytes // elem_bytes
  for first = 1, count, piece do
    local elements = math.min(piece, count - first + 1)
    local bytes = whole and samples.c_order(whole, elem_bytes, shape, first - 1, elements)
      or read_exactly(source, elements * elem_bytes)
    buffer:write(is_swapped and samples.swap(bytes, number_bytes) or bytes, first)
  end
  source:finish()
  held:keep()
  return buffer
end

-- The type's name in NumPy. Raises Unsupported.
local function numpy_type(buffer, what)
  return to_numpy[buffer.type] or core.raise("Unsupported",
    string.format("%s: NumPy has no type for %s", what, buffer.type),
    "convert it to f32 first: gpu.map(\"x\", {x = b, out = dev:buffer(\"f32\", #b)})")
end

-- What stands before the elements.
local function array_head(buffer, what)
  local shape = buffer.shape
  local header = string.format("{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }", numpy_type(buffer, what),
    table.concat(shape, ", "), #shape == 1 and "," or "")
  -- Magic, version and length, header, newline: a multiple of the alignment, as NumPy writes it.
  local unpadded = #MAGIC + 4 + #header + 1
  header = header .. string.rep(" ", -unpadded % HEADER_ALIGNMENT) .. "\n"
  return MAGIC .. "\1\0" .. string.pack("<I2", #header) .. header
end

local function element_bytes(buffer)
  return from_numpy[string.sub(to_numpy[buffer.type], 2)][2]
end

-- The elements, in pieces, to sink:write(bytes).
local function write_elements(buffer, sink)
  local piece = file.piece_bytes // element_bytes(buffer)
  for first = 1, #buffer, piece do
    sink:write(buffer:bytes(first, math.min(first + piece - 1, #buffer)))
  end
end

-- A file as a source.
local plain = {}
plain.__index = plain

function plain:read(byte_count)
  local bytes = self.reader:read(byte_count)
  self.left = self.reader.size and self.left - #bytes or self.left
  return bytes
end

function plain:finish()
  if self.reader:read(1) ~= "" then
    damaged(self.where, "more stands behind its data")
  end
end

--- npy.load(device, path) -> a buffer with the type and the shape of the array in the .npy file. An array without
-- dimensions becomes one element. Raises Io, InvalidData, and what dev:buffer raises. Blocks while it reads; yields in
-- a task where there is no room on the way to the device.
function npy.load(dev, path)
  file.check_device(dev, "npy.load")
  local reader <close> = file.open(path, "npy.load")
  return read_array(dev, setmetatable({ reader = reader, where = string.format("npy.load: %s", path),
    left = reader.size or math.maxinteger }, plain))
end

--- npy.save(buffer, path): writes the elements, shape and type to an .npy file. Raises Io, Unsupported for bf16, and
-- the failure of what writes the buffer. Waits for that, yielding in a task, and blocks while it writes.
function npy.save(buffer, path)
  file.check_buffer(buffer, "npy.save")
  local head = array_head(buffer, "npy.save: buffer")
  file.check_contents(buffer)
  local writer <close> = file.create(path, "npy.save")
  writer:write(head)
  write_elements(buffer, writer)
  writer:finish()
end

-- ---- archives ----

--- npy.load_all(device, path) -> the arrays of the .npz archive as new buffers: a table name -> buffer, where NumPy's
-- name 'a' stands for the entry 'a.npy'. Raises as load does, naming the entry, and Unsupported for entries that are
-- encrypted or compressed by something else than deflate. Blocks and yields as load does.
function npy.load_all(dev, path)
  file.check_device(dev, "npy.load_all")
  local reader <close> = file.open(path, "npy.load_all")
  local buffers = {}
  local held <close> = file.hold(buffers)
  for _, entry in ipairs(zip.entries(reader)) do
    local is_folder = entry.size == 0 and string.find(entry.name, "/$")
    local name = string.match(entry.name, "^(.*)%.npy$")
    if not name and not is_folder then
      core.raise("InvalidData", string.format("%s: it is no .npy file", entry.where),
        "numpy.savez writes such archives")
    end
    if name and buffers[name] then
      damaged(entry.where, "it is there twice")
    end
    if name then
      local source <close> = zip.open(reader, entry)
      buffers[name] = read_array(dev, source)
    end
  end
  held:keep()
  return buffers
end

local save_all_options <const> = { compress = true }

-- The names in order, each of them checked.
local function check_names(buffers)
  if type(buffers) ~= "table" then
    core.raise("InvalidArgument", string.format("npy.save_all: buffers: a table of names and buffers expected, got %s",
      type(buffers)))
  end
  local names = {}
  for name, buffer in pairs(buffers) do
    if type(name) ~= "string" or #name > NAME_BYTES_MAX or string.find(name, "\0") or not utf8.len(name) then
      core.raise("InvalidArgument", string.format("npy.save_all: buffers: %s cannot be a name",
        type(name) == "string" and string.format("%q", string.sub(name, 1, 40))
        or string.format("the %s %s", type(name), tostring(name))),
        "a name is a string in UTF-8 without zero bytes, as in { a = x, b = y }")
    end
    local what = string.format("npy.save_all: buffers: '%s'", name)
    file.check_buffer(buffer, what)
    numpy_type(buffer, what)
    file.check_contents(buffer)
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

--- npy.save_all(buffers, path[, options]): writes the buffers of a table name -> buffer to an .npz archive, in the
-- order of their names. Options: `compress`, true to deflate them. Equal buffers make equal files. Raises Io (also
-- where there is no going back, as in a pipe), InvalidArgument, Unsupported for bf16, and the failure of what writes a
-- buffer. Waits and blocks as save does.
function npy.save_all(buffers, path, options)
  options = file.check_options(options, save_all_options, "npy.save_all")
  if options.compress ~= nil and type(options.compress) ~= "boolean" then
    core.raise("InvalidArgument", string.format("npy.save_all: compress: a boolean expected, got %s",
      type(options.compress)))
  end
  local names = check_names(buffers)
  local writer <close> = file.create(path, "npy.save_all")
  local archive <close> = zip.create(writer)
  for _, name in ipairs(names) do
    local buffer = buffers[name]
    local head = array_head(buffer, string.format("npy.save_all: buffers: '%s'", name))
    archive:begin_entry(name .. ".npy", #head + #buffer * element_bytes(buffer), options.compress)
    archive:write(head)
    write_elements(buffer, archive)
    archive:end_entry()
  end
  archive:finish()
  writer:finish()
end

return require "gpulua.entries"(npy)
