-- Zip archives with stored and deflated entries, zip64 too (PKWARE's APPNOTE 6.3), for npy.lua. Entries are read and
-- written in pieces; no call yields.
--
-- What an archive says of its entries is taken from its directory, at its end; the head before each entry has to say
-- the same. No two entries may share bytes, and none may claim more than deflate can pack into what is there.

local core = require "gpulua.core"
local deflate = require "gpulua.deflate_core"

local zip = {}

local MAX16 <const>, MAX32 <const> = 0xffff, 0xffffffff
local LOCAL <const>, DIRECTORY <const>, END <const> = 0x04034b50, 0x02014b50, 0x06054b50
local END64 <const>, LOCATOR <const> = 0x06064b50, 0x07064b50
local LOCAL_FORMAT <const>, LOCAL_BYTES <const> = "<I4I2I2I2I2I2I4I4I4I2I2", 30
local DIRECTORY_FORMAT <const>, DIRECTORY_BYTES <const> = "<I4I2I2I2I2I2I2I4I4I4I2I2I2I2I2I4I4", 46
local END_FORMAT <const>, END_BYTES <const> = "<I4I2I2I2I2I4I4I2", 22
local END64_FORMAT <const>, END64_BYTES <const> = "<I4I8I2I2I4I4I8I8I8I8", 56
local LOCATOR_FORMAT <const>, LOCATOR_BYTES <const> = "<I4I4I8I4", 20
local EXTRA64 <const> = 1
local ENCRYPTED <const>, WITH_DESCRIPTOR <const>, UTF8 <const> = 1, 8, 0x800
local STORED <const>, DEFLATED <const> = 0, 8
local RATIO_MAX <const> = 1032 -- of deflate: 258 bytes for two bits
local INPUT_BYTES <const>, OUTPUT_BYTES <const> = 64 << 10, 256 << 10

local function damaged(where, message, ...)
  core.raise("InvalidData", string.format("%s: ", where) .. string.format(message, ...), "write the archive again")
end

-- ---- in ----

local function read_exactly(reader, where, byte_count)
  local bytes = reader:read(byte_count)
  if #bytes < byte_count then
    damaged(where, "it is short")
  end
  return bytes
end

-- Where the directory lies, its bytes and its entries.
local function find_directory(reader, where)
  local size = reader.size
  local tail_at = math.max(0, size - END_BYTES - MAX16)
  reader:seek(tail_at)
  local tail = read_exactly(reader, where, size - tail_at)
  local at
  for i = #tail - END_BYTES + 1, 1, -1 do
    if string.unpack("<I4", tail, i) == END and string.unpack("<I2", tail, i + 20) == #tail - i - END_BYTES + 1 then
      at = i
      break
    end
  end
  if not at then
    damaged(where, "no zip archive, or a short one: its directory is not there")
  end
  local _, disk, first_disk, count_here, count, byte_count, offset = string.unpack(END_FORMAT, tail, at)
  local end_at = tail_at + at - 1
  if count == MAX16 or byte_count == MAX32 or offset == MAX32 then
    local has_locator = end_at >= LOCATOR_BYTES + END64_BYTES
    if has_locator then
      reader:seek(end_at - LOCATOR_BYTES)
      local signature, _, end64_at = string.unpack(LOCATOR_FORMAT, read_exactly(reader, where, LOCATOR_BYTES))
      has_locator = signature == LOCATOR
      if has_locator then
        if end64_at < 0 or end64_at > end_at - LOCATOR_BYTES - END64_BYTES then
          damaged(where, "its directory is damaged: the zip64 end lies outside of it")
        end
        reader:seek(end64_at)
        local _
        signature, _, _, _, disk, first_disk, count_here, count, byte_count, offset =
          string.unpack(END64_FORMAT, read_exactly(reader, where, END64_BYTES))
        if signature ~= END64 then
          damaged(where, "its directory is damaged: there is no zip64 end where it should be")
        end
        end_at = end64_at
      end
    end
  end
  if disk ~= 0 or first_disk ~= 0 or count_here ~= count then
    core.raise("Unsupported", string.format("%s: it is one of several parts", where), "join them to one archive")
  end
  if offset < 0 or byte_count < 0 or offset > end_at or byte_count ~= end_at - offset then
    damaged(where, "its directory is damaged: %d bytes of it from byte %d on cannot be", byte_count, offset)
  end
  if count < 0 or count > byte_count // DIRECTORY_BYTES then
    damaged(where, "its directory is damaged: it has no room for %d entries", count)
  end
  return offset, byte_count, count
end

-- The sizes and the offset in 64 bits, where the 32 bits say that they stand there.
local function read_extra64(where, extra, entry)
  local at = 1
  while at + 3 <= #extra do
    local id, byte_count = string.unpack("<I2I2", extra, at)
    at = at + 4
    if byte_count > #extra - at + 1 then
      break
    end
    if id == EXTRA64 then
      local last = at + byte_count
      for _, field in ipairs { "size", "packed", "offset" } do
        if entry[field] == MAX32 then
          if at + 8 > last then
            damaged(where, "its zip64 sizes are missing")
          end
          entry[field] = string.unpack("<I8", extra, at)
          at = at + 8
        end
      end
      return
    end
    at = at + byte_count
  end
end

local function check_entry(where, entry, flags, directory_at)
  if flags & ENCRYPTED ~= 0 then
    core.raise("Unsupported", string.format("%s: it is encrypted", where), "write it without a password")
  end
  if entry.method ~= STORED and entry.method ~= DEFLATED then
    core.raise("Unsupported", string.format("%s: it is compressed by method %d", where, entry.method),
      "methods 0 (stored) and 8 (deflated) are read")
  end
  local room = directory_at - entry.offset - LOCAL_BYTES - #entry.name
  if entry.size < 0 or entry.packed < 0 or entry.offset < 0 or room < 0 or entry.packed > room then
    damaged(where, "it lies outside of the archive")
  end
  if entry.method == STORED and entry.packed ~= entry.size then
    damaged(where, "it is stored, and its two sizes differ")
  end
  -- Packed bytes are fewer than the file's, so nothing overflows.
  if entry.method == DEFLATED and entry.size > entry.packed * RATIO_MAX then
    damaged(where, "%d bytes cannot unfold to the %d that it claims", entry.packed, entry.size)
  end
end

-- Reads the directory of the archive that `reader` has open. Returns its entries in the order of their bytes, each
-- { name, where (for messages), size and packed (bytes, unpacked and not), method, crc, offset, limit }. Raises Io,
-- InvalidData, Unsupported.
function zip.entries(reader)
  local where = string.format("%s: %s", reader.what, reader.path)
  if not reader.size then
    core.raise("Io", string.format("%s: there is no going back in it", where), "write it to a file first")
  end
  local directory_at, byte_count, count = find_directory(reader, where)
  local entries, left = {}, byte_count
  reader:seek(directory_at)
  for i = 1, count do
    if left < DIRECTORY_BYTES then
      damaged(where, "its directory is damaged: it ends within entry %d", i)
    end
    local signature, _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes, comment_bytes, _, _, _,
      offset = string.unpack(DIRECTORY_FORMAT, read_exactly(reader, where, DIRECTORY_BYTES))
    left = left - DIRECTORY_BYTES - name_bytes - extra_bytes - comment_bytes
    if signature ~= DIRECTORY or left < 0 then
      damaged(where, "its directory is damaged at entry %d", i)
    end
    local name = read_exactly(reader, where, name_bytes)
    local extra = read_exactly(reader, where, extra_bytes)
    read_exactly(reader, where, comment_bytes)
    local entry = { name = name, where = string.format("%s: entry '%s'", where, name), size = size, packed = packed,
      method = method, crc = crc, offset = offset }
    read_extra64(entry.where, extra, entry)
    check_entry(entry.where, entry, flags, directory_at)
    entries[i] = entry
  end
  if left ~= 0 then
    damaged(where, "its directory is damaged: more stands behind its entries")
  end
  table.sort(entries, function(a, b) return a.offset < b.offset end)
  for i, entry in ipairs(entries) do
    entry.limit = entries[i + 1] and entries[i + 1].offset or directory_at
  end
  return entries
end

local source = {}
source.__index = source

-- The contents of an entry, as a source for npy.lua: `left`, the bytes not yet read; read, finish, <close>. One
-- source at a time may be in use. Raises Io, InvalidData.
function zip.open(reader, entry)
  local where = entry.where
  reader:seek(entry.offset)
  local signature, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes =
    string.unpack(LOCAL_FORMAT, read_exactly(reader, where, LOCAL_BYTES))
  if signature ~= LOCAL or method ~= entry.method or flags & ENCRYPTED ~= 0
    or read_exactly(reader, where, name_bytes) ~= entry.name then
    damaged(where, "its head is damaged")
  end
  local head = { size = size, packed = packed }
  read_extra64(where, read_exactly(reader, where, extra_bytes), head)
  -- With a descriptor behind the data the head was written before they were known.
  if flags & WITH_DESCRIPTOR == 0 and (crc ~= entry.crc or head.size ~= entry.size or head.packed ~= entry.packed) then
    damaged(where, "its head and the directory differ")
  end
  if entry.offset + LOCAL_BYTES + name_bytes + extra_bytes + entry.packed > entry.limit then
    damaged(where, "it shares bytes with another")
  end
  return setmetatable({ reader = reader, where = where, entry = entry, left = entry.size, packed_left = entry.packed,
    crc = 0, inflater = entry.method == DEFLATED and deflate.inflater() or nil }, source)
end

local function inflate(self, byte_count)
  local parts, ended = {}, false
  while byte_count > 0 and not ended do
    local part, unused
    part, ended, unused = self.inflater:take(math.min(byte_count, OUTPUT_BYTES))
    if not part then
      damaged(self.where, "its data is damaged: %s", ended)
    end
    parts[#parts + 1] = part
    byte_count = byte_count - #part
    if part == "" and not ended and unused == 0 then
      if self.packed_left == 0 then
        damaged(self.where, "its data is damaged: it ends too early")
      end
      local piece = read_exactly(self.reader, self.where, math.min(self.packed_left, INPUT_BYTES))
      self.packed_left = self.packed_left - #piece
      self.inflater:give(piece)
    end
  end
  return table.concat(parts)
end

-- The next bytes, fewer than asked for only at the end.
function source:read(byte_count)
  byte_count = math.min(byte_count, self.left)
  local bytes
  if self.inflater then
    bytes = inflate(self, byte_count)
  else
    bytes = self.reader:read(byte_count)
  end
  if #bytes < byte_count then
    damaged(self.where, "its data is short")
  end
  self.left = self.left - byte_count
  self.crc = deflate.crc32(bytes, self.crc)
  return bytes
end

-- To be called when all is read: is it what was written?
function source:finish()
  if self.inflater then
    -- One byte more would be one too many; none, and the end, is what should come.
    local extra, ended, unused = self.inflater:take(1)
    while extra == "" and not ended and unused == 0 and self.packed_left > 0 do
      local piece = read_exactly(self.reader, self.where, math.min(self.packed_left, INPUT_BYTES))
      self.packed_left = self.packed_left - #piece
      self.inflater:give(piece)
      extra, ended, unused = self.inflater:take(1)
    end
    if extra ~= "" or not ended or unused > 0 or self.packed_left > 0 then
      damaged(self.where, "its data is damaged: it does not end where it should")
    end
  end
  if self.left > 0 or self.crc ~= self.entry.crc then
    damaged(self.where, "its checksum is wrong")
  end
end

function source:__close()
  if self.inflater then
    self.inflater:close()
  end
end

-- ---- out ----

local archive = {}
archive.__index = archive

-- An archive to be written into what file.create gave. Sizes from `zip64_from` bytes on are written as zip64; left
-- out, those that 32 bits do not hold.
function zip.create(writer, zip64_from)
  return setmetatable({ writer = writer, at = 0, directory = {}, zip64_from = zip64_from or MAX32 }, archive)
end

local DOS_DATE <const> = 1 << 5 | 1 -- 1 January 1980, so that equal arrays make equal files

-- Begins an entry of `size` bytes. Then `write` takes its bytes, `end_entry` ends it.
function archive:begin_entry(name, size, compress)
  -- What deflate cannot pack grows by 5 bytes for each 16 KiB at most, and a few.
  local is_large = size + size // 1024 + 64 >= self.zip64_from
  local entry = { name = name, size = size, offset = self.at, packed = 0, crc = 0, is_large = is_large,
    method = compress and DEFLATED or STORED, flags = string.find(name, "[\x80-\xff]") and UTF8 or 0,
    needs = is_large and 45 or 20 }
  self.entry = entry
  self.deflater = compress and deflate.deflater() or nil
  local extra = is_large and string.pack("<I2I2I8I8", EXTRA64, 16, 0, 0) or ""
  self.writer:write(string.pack(LOCAL_FORMAT, LOCAL, entry.needs, entry.flags, entry.method, 0, DOS_DATE, 0, 0, 0,
    #name, #extra), name, extra)
  self.at = self.at + LOCAL_BYTES + #name + #extra
end

local function put(self, bytes)
  self.writer:write(bytes)
  self.entry.packed = self.entry.packed + #bytes
end

function archive:write(bytes)
  local entry = self.entry
  entry.crc = deflate.crc32(bytes, entry.crc)
  put(self, self.deflater and assert(self.deflater:press(bytes, false)) or bytes)
end

function archive:end_entry()
  local entry, writer = self.entry, self.writer
  if self.deflater then
    put(self, assert(self.deflater:press("", true)))
    self.deflater:close()
    self.deflater = nil
  end
  self.at = self.at + entry.packed
  -- Checksum and sizes go into its head, where readers that do not look at the directory want them.
  writer:seek(entry.offset + 14)
  if entry.is_large then
    writer:write(string.pack("<I4I4I4", entry.crc, MAX32, MAX32))
    writer:seek(entry.offset + LOCAL_BYTES + #entry.name + 4)
    writer:write(string.pack("<I8I8", entry.size, entry.packed))
  else
    writer:write(string.pack("<I4I4I4", entry.crc, entry.packed, entry.size))
  end
  writer:seek(self.at)
  self.directory[#self.directory + 1] = entry
  self.entry = nil
end

-- Writes the directory. The file has to be finished then.
function archive:finish()
  local writer, first = self.writer, self.at
  for _, entry in ipairs(self.directory) do
    local is_large = entry.is_large or entry.offset >= self.zip64_from
    local extra = is_large and string.pack("<I2I2I8I8I8", EXTRA64, 24, entry.size, entry.packed, entry.offset) or ""
    writer:write(string.pack(DIRECTORY_FORMAT, DIRECTORY, is_large and 45 or 20, is_large and 45 or 20, entry.flags,
      entry.method, 0, DOS_DATE, entry.crc, is_large and MAX32 or entry.packed, is_large and MAX32 or entry.size,
      #entry.name, #extra, 0, 0, 0, 0, is_large and MAX32 or entry.offset), entry.name, extra)
    self.at = self.at + DIRECTORY_BYTES + #entry.name + #extra
  end
  local count, byte_count = #self.directory, self.at - first
  if count >= MAX16 or byte_count >= self.zip64_from or first >= self.zip64_from then
    writer:write(string.pack(END64_FORMAT, END64, END64_BYTES - 12, 45, 45, 0, 0, count, count, byte_count, first),
      string.pack(LOCATOR_FORMAT, LOCATOR, 0, self.at, 1))
    count, byte_count, first = MAX16, MAX32, MAX32
  end
  writer:write(string.pack(END_FORMAT, END, 0, 0, count, count, byte_count, first, 0))
end

-- Frees what is held in the middle of an entry.
function archive:__close()
  if self.deflater then
    self.deflater:close()
  end
end

return zip
