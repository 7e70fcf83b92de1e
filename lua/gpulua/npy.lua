-- NumPy's .npy files: npy.load(device, path) -> buffer, npy.save(buffer, path).
--
-- Format versions 1 to 3, C order, little-endian; shape and type are kept. Booleans become u8; bf16 has no NumPy type.
-- Load raises Io for a file that cannot be read, InvalidData for one that is short, damaged or of another kind; both
-- name it. Both wait: load for the copy in, save for everything that writes the buffer.

local core = require "gpulua.core"
local file = require "gpulua.file"

local npy = {}

local MAGIC <const> = "\x93NUMPY"
local HEADER_ALIGNMENT <const> = 64
local DIMENSIONS_MAX <const> = 32 -- as NumPy's

-- NumPy's type, without its byte order: ours and the bytes of an element.
local from_numpy = {
  b1 = { "u8", 1 }, i1 = { "i8", 1 }, u1 = { "u8", 1 }, i2 = { "i16", 2 }, u2 = { "u16", 2 }, i4 = { "i32", 4 },
  u4 = { "u32", 4 }, i8 = { "i64", 8 }, u8 = { "u64", 8 }, f2 = { "f16", 2 }, f4 = { "f32", 4 }, f8 = { "f64", 8 },
  c8 = { "c64", 8 }, c16 = { "c128", 16 },
}
local to_numpy = {
  i8 = "|i1", u8 = "|u1", i16 = "<i2", u16 = "<u2", i32 = "<i4", u32 = "<u4", i64 = "<i8", u64 = "<u8",
  f16 = "<f2", f32 = "<f4", f64 = "<f8", c64 = "<c8", c128 = "<c16",
}

local function damaged(path, message, ...)
  core.raise("InvalidData", ("npy.load: %s: "):format(path) .. message:format(...),
    "write the file again with numpy.save")
end

-- A reader of one header: the text of a Python dictionary with exactly the keys 'descr', 'fortran_order' and 'shape'.
-- Nothing is evaluated. Returns descr (nil when it is no plain string), fortran_order, shape.
local function parse_header(path, text)
  local at = 1
  local function take(pattern)
    local first, last, capture = text:find("^%s*" .. pattern, at)
    if first then
      at = last + 1
    end
    return first and (capture or true)
  end
  local function expect(pattern, what)
    return take(pattern) or damaged(path, "its header is damaged: %s expected at byte %d of it", what, at)
  end

  local function shape()
    local dimensions = {}
    expect("%(", "a shape")
    local comma = true
    while not take("%)") do
      if not comma then
        damaged(path, "its header is damaged: ',' or ')' expected at byte %d of it", at)
      end
      local digits = expect("(%d+)", "a whole number")
      dimensions[#dimensions + 1] = math.tointeger(tonumber(digits))
        or damaged(path, "dimension %d, %s, is too large", #dimensions + 1, digits)
      comma = take(",")
    end
    -- In Python (3) is a number, (3,) a tuple.
    if #dimensions == 1 and not comma then
      damaged(path, "its header is damaged: the shape is no tuple")
    end
    return dimensions
  end

  local values, types_of_fields = {}, false
  expect("{", "'{'")
  local comma = true
  while not take("}") do
    if not comma then
      damaged(path, "its header is damaged: ',' or '}' expected at byte %d of it", at)
    end
    local key = take("'([%w_]*)'") or expect('"([%w_]*)"', "a key")
    if values[key] ~= nil then
      damaged(path, "its header is damaged: '%s' stands there twice", key)
    end
    expect(":", "':'")
    if key == "descr" then
      if text:find("^%s*%[", at) then
        types_of_fields = true
        expect("(%b[])", "a list of fields")
        values.descr = ""
      else
        values.descr = take("'([^']*)'") or expect('"([^"]*)"', "a type")
      end
    elseif key == "fortran_order" then
      values.fortran_order = not take("False")
      if values.fortran_order then
        expect("True", "True or False")
      end
    elseif key == "shape" then
      values.shape = shape()
    else
      damaged(path, "its header is damaged: unknown key '%s'", key)
    end
    comma = take(",")
  end
  if not text:find("^[ \n]*$", at) then
    damaged(path, "its header is damaged: more stands behind the dictionary")
  end
  for _, key in ipairs { "descr", "fortran_order", "shape" } do
    if values[key] == nil then
      damaged(path, "its header is damaged: it has no '%s'", key)
    end
  end
  return not types_of_fields and values.descr or nil, values.fortran_order, values.shape
end

-- Our type and its bytes for NumPy's.
local function element_type(path, descr)
  if not descr then
    core.raise("InvalidData", ("npy.load: %s: its elements are structures"):format(path), "save each field by itself")
  end
  local order, name = descr:match("^([<>|=]?)([%a]%d+)$")
  local known = from_numpy[name]
  if not known then
    core.raise("InvalidData", ("npy.load: %s: no element type for NumPy's '%s'"):format(path, descr),
      "convert it to numbers first, say with numpy's astype('f4')")
  end
  if order == ">" and known[2] > 1 then
    core.raise("InvalidData", ("npy.load: %s: its numbers are big-endian ('%s')"):format(path, descr),
      "save it little-endian: a.astype(a.dtype.newbyteorder('<'))")
  end
  return known[1], known[2]
end

-- The number of elements, no more than the file can hold: what is larger cannot be right.
local function count_elements(path, shape, available)
  if #shape > DIMENSIONS_MAX then
    damaged(path, "it has %d dimensions, at most %d are possible", #shape, DIMENSIONS_MAX)
  end
  for i, dimension in ipairs(shape) do
    if dimension == 0 then
      core.raise("InvalidData", ("npy.load: %s: dimension %d is 0: it holds no elements"):format(path, i),
        "a buffer has at least one element")
    end
  end
  local count = 1
  for _, dimension in ipairs(shape) do
    if dimension > available // count then
      damaged(path, "it is short: its shape needs more than the %d elements that are there", available)
    end
    count = count * dimension
  end
  return count
end

-- A buffer with the array's type and shape; an array without dimensions becomes one element.
function npy.load(dev, path)
  file.check_device(dev, "npy.load")
  local bytes = file.read(path, "npy.load")
  if bytes:sub(1, #MAGIC) ~= MAGIC then
    core.raise("InvalidData", ("npy.load: %s: not an .npy file"):format(path), "numpy.save writes such files")
  end
  local major = bytes:byte(#MAGIC + 1)
  if #bytes < #MAGIC + 6 then
    damaged(path, "it is short: it ends within its header")
  end
  if major < 1 or major > 3 then
    core.raise("InvalidData", ("npy.load: %s: format version %d is not known"):format(path, major),
      "versions 1, 2 and 3 are")
  end
  local header_bytes, header_at = string.unpack(major == 1 and "<I2" or "<I4", bytes, #MAGIC + 3)
  local data_at = header_at + header_bytes
  if data_at - 1 > #bytes then
    damaged(path, "it is short: it ends within its header")
  end

  local descr, fortran_order, shape = parse_header(path, bytes:sub(header_at, data_at - 1))
  local elem_type, elem_bytes = element_type(path, descr)
  if fortran_order and #shape > 1 then
    core.raise("InvalidData", ("npy.load: %s: it is in Fortran order"):format(path),
      "save it in C order: numpy.ascontiguousarray(a)")
  end
  local data_bytes = #bytes - data_at + 1
  local elem_count = count_elements(path, shape, data_bytes // elem_bytes)
  if elem_count * elem_bytes ~= data_bytes then
    damaged(path, "%d bytes of data where its shape and type need %d", data_bytes, elem_count * elem_bytes)
  end

  local buffer = dev:upload(elem_type, bytes:sub(data_at))
  return #shape > 1 and buffer:view(elem_type, shape) or buffer
end

-- Writes the buffer's elements, shape and type.
function npy.save(buffer, path)
  file.check_buffer(buffer, "npy.save")
  local descr = to_numpy[buffer.type]
  if not descr then
    core.raise("Unsupported", ("npy.save: buffer: NumPy has no type for %s"):format(buffer.type),
      "convert it to f32 first")
  end
  local shape = buffer.shape
  local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }"):format(descr,
    table.concat(shape, ", "), #shape == 1 and "," or "")
  -- Magic, version and length, header, newline: a multiple of the alignment, as NumPy writes it.
  local unpadded = #MAGIC + 4 + #header + 1
  header = header .. (" "):rep(-unpadded % HEADER_ALIGNMENT) .. "\n"
  file.write(path, "npy.save", MAGIC, "\1\0", string.pack("<I2", #header), header, buffer:bytes())
end

return npy
