-- .npz archives: to and from NumPy, stored, deflated and zip64, and every way in which an archive can be wrong.

local deflate = require "gpulua.deflate_core"
local file = require "gpulua.file"
local npy = require "gpulua.npy"
local support = require "spec.support"
local zip = require "gpulua.zip"

local python, has_numpy = support.python()

-- An .npy file of whole numbers.
local function array(...)
  local text = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }"):format(select("#", ...))
  return "\x93NUMPY\1\0" .. string.pack("<I2", #text) .. text .. string.pack(("<i4"):rep(select("#", ...)), ...)
end

local function deflated(bytes)
  local deflater <close> = deflate.deflater()
  return deflater:press(bytes, true)
end

-- An archive put together by hand, by a table for each entry: name, data, and anything that is to be wrong about it.
local function archive(entries, changes)
  changes = changes or {}
  local parts, directory, at = {}, {}, 0
  for _, e in ipairs(entries) do
    local method = e.method or 0
    local packed = e.packed or (method == 8 and deflated(e.data) or e.data)
    local crc = e.crc or deflate.crc32(e.data, 0)
    local flags, size = e.flags or 0, e.size or #e.data
    local late = flags & 8 ~= 0
    local head = string.pack("<I4I2I2I2I2I2I4I4I4I2I2", e.signature or 0x04034b50, 20, flags, e.head_method or method,
      0, 33, late and 0 or e.head_crc or crc, late and 0 or #packed, late and 0 or size, #(e.head_name or e.name),
      #(e.head_extra or "")) .. (e.head_name or e.name) .. (e.head_extra or "") .. packed
      .. (late and string.pack("<I4I4I4I4", 0x08074b50, crc, #packed, size) or "")
    directory[#directory + 1] = string.pack("<I4I2I2I2I2I2I2I4I4I4I2I2I2I2I2I4I4", 0x02014b50, 20, 20, flags, method, 0,
      33, crc, e.packed_size or #packed, size, #e.name, #(e.extra or ""), #(e.comment or ""), 0, 0, 0, e.offset or at)
      .. e.name .. (e.extra or "") .. (e.comment or "")
    parts[#parts + 1] = head
    at = at + #head
  end
  local text = table.concat(directory) .. (changes.behind or "")
  local count = changes.count or #entries
  return table.concat(parts) .. text .. string.pack("<I4I2I2I2I2I4I4I2", 0x06054b50, changes.disk or 0, 0, count, count,
    changes.directory_bytes or #text, changes.directory_at or at, #(changes.comment or "")) .. (changes.comment or "")
end

describe("npz", function()
  local dev, path

  setup(function()
    dev = support.open()
    path = support.path ".npz" -- which NumPy would add
  end)
  teardown(function()
    os.remove(path)
    support.close_all()
  end)

  local function close_all(buffers)
    for _, buffer in pairs(buffers) do
      buffer:close()
    end
  end
  -- What an archive with these bytes holds: name -> its numbers.
  local function load_text(bytes)
    support.write_file(path, bytes)
    local buffers, values = npy.load_all(dev, path), {}
    for name, buffer in pairs(buffers) do
      values[name] = buffer:read()
    end
    close_all(buffers)
    return values
  end

  local types = { "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "c64", "c128" }
  -- A buffer of each type, named by it, with bytes of all kinds.
  local function one_of_each()
    local buffers = {}
    for i, name in ipairs(types) do
      local bytes = {}
      for k = 1, 24 * 16 do
        bytes[k] = string.char((k * 7 + i * 13) % 256)
      end
      local buffer = dev:buffer(name, { 2, 3, 4 })
      local flat = table.concat(bytes)
      buffer:write(flat:sub(1, 24 * math.tointeger(name:match "%d+") // 8), 1)
      buffers[name] = buffer
    end
    return buffers
  end

  for _, compress in ipairs { false, true } do
    it("keeps names, types, shapes and every bit, " .. (compress and "deflated" or "stored"), function()
      local buffers = one_of_each()
      npy.save_all(buffers, path, { compress = compress })
      local again = npy.load_all(dev, path)
      for name, buffer in pairs(buffers) do
        assert.equal(name, again[name].type)
        assert.are.same({ 2, 3, 4 }, again[name].shape)
        assert.equal(buffer:bytes(), again[name]:bytes())
        again[name]:close()
        again[name] = nil
      end
      assert.is_nil(next(again))
      close_all(buffers)
    end)
  end

  it("takes arrays of several pieces, and makes zeros small", function()
    local n = (9 << 20) + 5
    local zeros <close> = support.zeros(dev, "u8", n)
    local mixed <close> = dev:upload("u8", ("one two three "):rep(n // 14))
    npy.save_all({ zeros = zeros, mixed = mixed }, path, { compress = true })
    assert.truthy(#support.read_file(path) < n // 100)
    local again = npy.load_all(dev, path)
    assert.equal(n, #again.zeros)
    assert.is_true(again.zeros:bytes() == zeros:bytes())
    assert.is_true(again.mixed:bytes() == mixed:bytes())
    close_all(again)
  end)

  it("writes equal buffers to equal files, in the order of names, which may be any in UTF-8", function()
    local a <close> = dev:upload("i32", { 1, 2 })
    local names = { ["b"] = a, ["a"] = a, ["größe/1"] = a, [""] = a }
    npy.save_all(names, path)
    local first = support.read_file(path)
    npy.save_all(names, path)
    assert.equal(first, support.read_file(path))
    local again = npy.load_all(dev, path)
    assert.are.same({ 1, 2 }, again["größe/1"]:read())
    assert.are.same({ 1, 2 }, again[""]:read())
    close_all(again)
    assert.truthy(first:find("a.npy", 1, true) < first:find("b.npy", 1, true))
  end)

  it("of no arrays is one too", function()
    npy.save_all({}, path)
    assert.equal(22, #support.read_file(path))
    assert.are.same({}, npy.load_all(dev, path))
  end)

  it("waits for what writes the buffers", function()
    local add = dev:compile([[
      extern "C" __global__ void add(int n, float *x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1.0f;
      }]]).add
    local b <close> = support.zeros(dev, "f32", 1000)
    for _ = 1, 50 do
      add:launch(1000, 1000, b)
    end
    npy.save_all({ b = b }, path)
    local again = npy.load_all(dev, path)
    assert.are.same({ 50.0 }, again.b:read(1000, 1000))
    close_all(again)
  end)

  describe("is what NumPy", function()
    -- Runs Python with `path` as its argument.
    local function run(text)
      if not has_numpy then
        pending "there is no NumPy"
      end
      local script = os.tmpname()
      support.write_file(script, "import sys, zipfile, numpy as np\npath = sys.argv[1]\n" .. text)
      local pipe = assert(io.popen(("%s %s %s 2>&1"):format(python, script, path)))
      local output = pipe:read "a"
      pipe:close()
      os.remove(script)
      return output
    end

    for _, compress in ipairs { false, true } do
      it("reads, " .. (compress and "deflated" or "stored"), function()
        local buffers = one_of_each()
        npy.save_all(buffers, path, { compress = compress })
        local wanted = {}
        for name, buffer in pairs(buffers) do
          wanted[#wanted + 1] = ("%s (2, 3, 4) %d"):format(name, deflate.crc32(buffer:bytes(), 0))
        end
        table.sort(wanted)
        close_all(buffers)
        local output = run [[
import zlib
ours = dict(i='i', u='u', f='f', c='c')
z = np.load(path)
assert zipfile.ZipFile(path).testzip() is None
for line in sorted("%s%d %s %d" % (z[k].dtype.kind, z[k].dtype.itemsize * 8, z[k].shape, zlib.crc32(z[k].tobytes()))
                   for k in z):
    print(line)
]]
        assert.equal(table.concat(wanted, "\n") .. "\n", output)
      end)
    end

    it("writes, of every type, in either byte order and order of dimensions", function()
      local output = run [[
values = {}
for kind in "i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 c8 c16".split():
    a = np.arange(24).astype(kind).reshape(2, 3, 4)
    values[kind] = a
    values[kind + "_big"] = a.astype(">" + kind)
    values[kind + "_fortran"] = np.asfortranarray(a)
    values[kind + "_turned"] = a.T
values["bool"] = np.array([True, False])
values["zero_d"] = np.array(7, "i4")
np.savez_compressed(path, **values)
print("done")
]]
      assert.equal("done\n", output)
      local again = npy.load_all(dev, path)
      local count = 0
      for name, buffer in pairs(again) do
        count = count + 1
        if name ~= "bool" and name ~= "zero_d" then
          local is_turned = name:find "turned"
          assert.are.same(is_turned and { 4, 3, 2 } or { 2, 3, 4 }, buffer.shape)
          local wanted = {}
          for i = 0, 23 do
            -- Element i of the transposed one, in C order.
            local k, j, l = i // 6, i // 2 % 3, i % 2
            local value = is_turned and l * 12 + j * 4 + k or i
            wanted[i + 1] = name:find "^c" and { value, 0 } or value
          end
          assert.are.same(wanted, buffer:read(), name)
        end
      end
      assert.equal(13 * 4 + 2, count)
      assert.are.same({ 1, 0 }, again.bool:read())
      assert.are.same({ 7 }, again.zero_d:read())
      close_all(again)
    end)

    it("reads with zip64 everywhere", function()
      local a <close> = dev:upload("i32", { 4, 5, 6 })
      local head = array(4, 5, 6)
      for _, compress in ipairs { false, true } do
        do
          local writer <close> = file.create(path, "spec")
          local made <close> = zip.create(writer, 0)
          made:begin_entry("a.npy", #head, compress)
          made:write(head)
          made:end_entry()
          made:finish()
          writer:finish()
        end
        assert.equal("[4 5 6] None\n", run "print(np.load(path)['a'], zipfile.ZipFile(path).testzip())")
      end
      local again = npy.load_all(dev, path)
      assert.equal(a:bytes(), again.a:bytes())
      close_all(again)
    end)
  end)

  it("reads entries with what other programs add: descriptors, extra fields, comments, folders", function()
    for _, method in ipairs { 0, 8 } do
      local values = load_text(archive({
        { name = "f/", data = "" },
        { name = "f/a.npy", data = array(1, 2), method = method, flags = 8 },
        { name = "b.npy", data = array(3), method = method, head_extra = "\x55\x54\1\0x", extra = "\x55\x54\2\0xy\1",
          comment = "its comment" },
      }, { comment = "PK\5\6 is in here" }))
      assert.are.same({ ["f/a"] = { 1, 2 }, b = { 3 } }, values)
    end
  end)

  it("reads sizes of 64 bits where they need not be", function()
    local data = array(8, 9)
    local all = string.pack("<I2I2I8I8I8", 1, 24, #data, #data, 0)
    local bytes = archive { { name = "a.npy", data = data, size = 0xffffffff, packed_size = 0xffffffff,
      offset = 0xffffffff, extra = all, head_extra = string.pack("<I2I2I8I8", 1, 16, #data, #data) } }
    -- In the head too, as NumPy writes it.
    bytes = bytes:sub(1, 18) .. ("\xff"):rep(8) .. bytes:sub(27)
    assert.are.same({ a = { 8, 9 } }, load_text(bytes))
  end)

  describe("refuses", function()
    local good = { name = "good.npy", data = array(1, 2, 3) }
    local function with(changes)
      local entry = { name = "bad.npy", data = array(7, 8) }
      for key, value in pairs(changes) do
        entry[key] = value
      end
      return archive { good, entry }
    end
    local data = array(7, 8)
    local zeros = ("\0"):rep(1 << 20)
    local bomb = ("{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }"):format(1 << 30)
    bomb = "\x93NUMPY\1\0" .. string.pack("<I2", #bomb) .. bomb
    -- Code, bytes, and what the message has.
    local wrong = {
      ["an empty file"] = { "InvalidData", "", "no zip archive" },
      ["a text file"] = { "InvalidData", "hello", "no zip archive" },
      ["an .npy file"] = { "InvalidData", data, "no zip archive" },
      ["bytes behind the end"] = { "InvalidData", archive { good } .. "x", "no zip archive" },
      ["a directory elsewhere"] = { "InvalidData", archive({ good }, { directory_at = 1 }), "directory is damaged" },
      ["more entries than the directory has"] = { "InvalidData", archive({ good }, { count = 2 }), "no room" },
      ["fewer entries than the directory has"] = {
        "InvalidData", archive({ good, good }, { count = 1 }), "more stands behind" },
      ["a part of several"] = { "Unsupported", archive({ good }, { disk = 1 }), "several parts" },
      ["an entry that is no array"] = { "InvalidData", with { name = "bad.txt" }, "'bad.txt': it is no .npy" },
      ["an array without its magic"] = { "InvalidData", with { data = "text" }, "'bad.npy': not an .npy" },
      ["an array that is short"] = { "InvalidData", with { data = data:sub(1, -2) }, "'bad.npy': it is short" },
      ["an array that is long"] = { "InvalidData", with { data = data .. "x" }, "'bad.npy': 9 bytes of data" },
      ["an entry twice"] = { "InvalidData", with { name = "good.npy" }, "'good.npy': it is there twice" },
      ["an encrypted entry"] = { "Unsupported", with { flags = 1 }, "'bad.npy': it is encrypted" },
      ["a method that is not known"] = {
        "Unsupported", with { method = 12 }, "'bad.npy': it is compressed by method 12" },
      ["a wrong checksum, stored"] = { "InvalidData", with { crc = 1 }, "'bad.npy': its checksum" },
      ["a wrong checksum, deflated"] = { "InvalidData", with { crc = 1, method = 8 }, "'bad.npy': its checksum" },
      ["a head of another entry"] = { "InvalidData", with { head_name = "lad.npy" }, "'bad.npy': its head" },
      ["a head of another method"] = { "InvalidData", with { head_method = 8 }, "'bad.npy': its head" },
      ["a head with another checksum"] = { "InvalidData", with { head_crc = 5 }, "'bad.npy': its head" },
      ["no head"] = { "InvalidData", with { signature = 0 }, "'bad.npy': its head" },
      ["an entry that lies in another"] = { "InvalidData", with { offset = 10 }, "'good.npy': it shares bytes" },
      ["an entry with another's head"] = { "InvalidData", with { offset = 0 }, "it shares bytes" },
      ["an entry behind the end"] = { "InvalidData", with { offset = 1 << 20 }, "'bad.npy': it lies outside" },
      ["an entry that is longer than the file"] = {
        "InvalidData", with { packed_size = 1 << 20, size = 1 << 20 }, "'bad.npy': it lies outside" },
      ["two sizes of what is stored"] = { "InvalidData", with { size = 3 }, "'bad.npy': it is stored" },
      ["data that is not deflated"] = { "InvalidData", with { method = 8, packed = data }, "'bad.npy': its data" },
      ["deflated data that is cut off"] = {
        "InvalidData", with { method = 8, packed = deflated(data):sub(1, -3) }, "'bad.npy': its data" },
      ["deflated data with more behind it"] = {
        "InvalidData", with { method = 8, packed = deflated(data) .. "more" }, "'bad.npy': its data" },
      ["deflated data that unfolds to more than it says"] = {
        "InvalidData", with { method = 8, packed = deflated(data .. zeros), size = #data }, "'bad.npy': its data" },
      ["deflated data that unfolds to less than it says"] = {
        "InvalidData", with { method = 8, size = #data + 1 }, "'bad.npy'" },
      ["a size that nothing unfolds to"] = {
        "InvalidData", with { method = 8, data = bomb, size = #bomb + (1 << 30) }, "cannot unfold" },
      ["a bomb: an array larger than its entry"] = {
        "InvalidData", with { method = 8, data = bomb .. zeros }, "'bad.npy': it is short" },
      ["a bomb: an entry larger than its array"] = {
        "InvalidData", with { method = 8, data = data .. zeros }, "'bad.npy': 1048584 bytes of data" },
      ["sizes of 64 bits that are not there"] = {
        "InvalidData", with { size = 0xffffffff, packed_size = 0xffffffff }, "'bad.npy'" },
      ["sizes of 64 bits that are short"] = {
        "InvalidData", with { size = 0xffffffff, extra = "\1\0\4\0\1\2\3\4" }, "'bad.npy': its zip64 sizes" },
      ["sizes of 64 bits that are negative"] = {
        "InvalidData", with { size = 0xffffffff, extra = string.pack("<I2I2i8", 1, 8, -5) }, "'bad.npy': it lies" },
    }
    for name, case in pairs(wrong) do
      it(name, function()
        support.write_file(path, case[2])
        support.without_leak(dev, function()
          local err = support.raises(case[1], { "npy.load_all: " .. path, case[3] }, npy.load_all, dev, path)
          assert.truthy(#err.hint > 0)
        end)
      end)
    end

    it("every cut of a good archive", function()
      local whole = archive { good, { name = "b.npy", data = data, method = 8 } }
      support.without_leak(dev, function()
        for length = 0, #whole - 1 do
          support.write_file(path, whole:sub(1, length))
          support.raises("InvalidData", path, npy.load_all, dev, path)
        end
      end)
      support.works(dev)
    end)

    it("files that are not there, folders, pipes, and places that cannot be written", function()
      support.raises("Io", "no/such.npz", npy.load_all, dev, "no/such.npz")
      support.raises("Io", "spec", npy.load_all, dev, "spec")
      local b <close> = dev:buffer("u8", 4):fill(0)
      support.raises("Io", "no/such.npz", npy.save_all, { b = b }, "no/such.npz")
      support.raises("Io", "/dev/full", npy.save_all, { b = b }, "/dev/full")
      local output = support.script([[
        local dev, npy = require "gpulua".device "cpu", require "gpulua.npy"
        local _, err = pcall(npy.load_all, dev, "/dev/stdin")
        io.stderr:write(err.code, " ")
        _, err = pcall(npy.save_all, { b = dev:buffer("u8", 4):fill(0) }, "/dev/stdout")
        io.stderr:write("and ", err.code, "\n")
      ]], "true |")
      assert.truthy(output:find "^Io " and output:find "and Io\n", output)
    end)

    it("bf16, wrong arguments and closed buffers, before the file is touched", function()
      support.write_file(path, "old")
      local b <close> = dev:buffer("u8", 4):fill(0)
      local half <close> = dev:buffer("bf16", 4):fill(0)
      local closed = dev:buffer("u8", 4)
      closed:close()
      support.raises("Unsupported", { "'half'", "bf16" }, npy.save_all, { b = b, half = half }, path)
      support.raises("InvalidArgument", "buffers", npy.save_all, b, path)
      support.raises("InvalidArgument", "'x'", npy.save_all, { x = { 1, 2 } }, path)
      support.raises("InvalidArgument", "number 1", npy.save_all, { b }, path)
      support.raises("InvalidArgument", "name", npy.save_all, { ["a\0b"] = b }, path)
      support.raises("InvalidArgument", "name", npy.save_all, { ["\xff"] = b }, path)
      support.raises("InvalidArgument", "name", npy.save_all, { [("x"):rep(65532)] = b }, path)
      support.raises("InvalidArgument", "path", npy.save_all, { b = b }, nil)
      support.raises("InvalidArgument", "options", npy.save_all, { b = b }, path, true)
      support.raises("InvalidArgument", "'level'", npy.save_all, { b = b }, path, { level = 9 })
      support.raises("InvalidArgument", "compress", npy.save_all, { b = b }, path, { compress = 1 })
      support.raises("InvalidArgument", "device", npy.load_all, nil, path)
      support.raises("InvalidArgument", "path", npy.load_all, dev, nil)
      assert.is_false(pcall(npy.save_all, { closed = closed }, path))
      assert.equal("old", support.read_file(path))
      support.works(dev)
    end)

    it("to go on without zlib, and names the package", function()
      local output, code = support.script([[
        local npy = require "gpulua.npy"
        local dev = require "gpulua".device(os.getenv "GPULUA_DEVICE")
        local b = dev:buffer("u8", 4):fill(0)
        local ok, err = pcall(npy.save_all, { b = b }, "/dev/null", { compress = true })
        print(ok, err.code, err.message)
        print(b:read()[4])]], "GPULUA_LIBZ=/nowhere/libz.so")
      assert.equal(0, code, output)
      assert.truthy(output:find("false\tLibraryUnavailable\t.*zlib1g.*/nowhere/libz.so"), output)
      assert.truthy(output:find("\n0\n", 1, true), output)
    end)
  end)
end)
