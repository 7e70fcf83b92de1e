-- .npy files: every type both ways, shapes, and every way in which a file can be wrong.

local gpu = require "gpulua"
local npy = require "gpulua.npy"
local support = require "spec.support"

local function header(text, version)
  version = version or 1
  local format = version == 1 and "<I2" or "<I4"
  return "\x93NUMPY" .. string.char(version, 0) .. string.pack(format, #text) .. text
end

local function dictionary(descr, shape, order)
  return ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }"):format(descr, order or "False", shape)
end

describe("npy", function()
  local dev, path

  setup(function()
    dev = support.open()
    path = os.tmpname()
  end)
  teardown(function()
    os.remove(path)
    support.close_all()
  end)

  local function put(bytes)
    support.write_file(path, bytes)
  end
  local function get()
    return support.read_file(path)
  end
  local function load_text(bytes)
    put(bytes)
    return npy.load(dev, path)
  end

  local samples = {
    { "i8", "|i1", "<i1", { -128, 0, 127 } }, { "u8", "|u1", "<I1", { 0, 1, 255 } },
    { "i16", "<i2", "<i2", { -32768, 5, 32767 } }, { "u16", "<u2", "<I2", { 0, 1024, 65535 } },
    { "i32", "<i4", "<i4", { -2147483648, 7, 2147483647 } }, { "u32", "<u4", "<I4", { 0, 9, 4294967295 } },
    { "i64", "<i8", "<i8", { math.mininteger, 0, math.maxinteger } }, { "u64", "<u8", "<i8", { 0, 1, -1 } },
    { "f32", "<f4", "<f", { -1.5, 0.25, 3e38 // 1 } }, { "f64", "<f8", "<d", { -1.5, 0.1, 1e300 } },
  }
  for _, sample in ipairs(samples) do
    local kind, descr, format, values = table.unpack(sample)
    it("keeps " .. kind, function()
      local data = {}
      for i, value in ipairs(values) do
        data[i] = string.pack(format, value)
      end
      local bytes = table.concat(data)
      local b <close> = load_text(header(dictionary(descr, "(3,)")) .. bytes)
      assert.equal(kind, b.type)
      assert.are.same({ 3 }, b.shape)
      assert.equal(bytes, b:bytes())
      if kind ~= "f32" then
        assert.are.same(values, b:read())
      end
      os.remove(path)
      npy.save(b, path)
      local again <close> = npy.load(dev, path)
      assert.equal(kind, again.type)
      assert.equal(bytes, again:bytes())
      assert.truthy(get():find("'descr': '" .. descr .. "'", 1, true))
    end)
  end

  it("keeps half and complex numbers", function()
    for _, case in ipairs { { "f16", "<f2", 2 }, { "c64", "<c8", 8 }, { "c128", "<c16", 16 } } do
      local bytes = ("\1\2\3\4\5\6\7\8\9\10\11\12\13\14\15\16"):sub(1, case[3]):rep(4)
      local b <close> = load_text(header(dictionary(case[2], "(2, 2)")) .. bytes)
      assert.equal(case[1], b.type)
      assert.are.same({ 2, 2 }, b.shape)
      npy.save(b, path)
      local again <close> = npy.load(dev, path)
      assert.equal(case[1], again.type)
      assert.are.same({ 2, 2 }, again.shape)
      assert.equal(bytes, again:bytes())
    end
  end)

  it("reads booleans as u8", function()
    local b <close> = load_text(header(dictionary("|b1", "(4,)")) .. "\0\1\1\0")
    assert.equal("u8", b.type)
    assert.are.same({ 0, 1, 1, 0 }, b:read())
  end)

  it("reads the versions 1, 2 and 3, keys in any order, both quotes, and whole numbers of Python 2", function()
    for version = 1, 3 do
      local b <close> = load_text(header(dictionary("<i4", "(2,)"), version) .. string.pack("<i4i4", 8, -8))
      assert.are.same({ 8, -8 }, b:read())
    end
    local b <close> = load_text(header('{"shape": (2 ,1), "fortran_order":False, "descr":"<i2"}   \n') .. "\1\0\2\0")
    assert.are.same({ 2, 1 }, b.shape)
    assert.are.same({ 1, 2 }, b:read())
    local old <close> = load_text(header("{'descr': '<i2', 'fortran_order': False, 'shape': (1L, 2L), }") .. "\1\0\2\0")
    assert.are.same({ 1, 2 }, old.shape) -- of Python 2
  end)

  it("makes one element of an array without dimensions, and takes one dimension in either order", function()
    local zero <close> = load_text(header(dictionary("<i4", "()")) .. string.pack("<i4", 42))
    assert.are.same({ 42 }, zero:read())
    local one <close> = load_text(header(dictionary("<i4", "(1,)", "True")) .. string.pack("<i4", 43))
    assert.are.same({ 43 }, one:read())
  end)

  it("reads big-endian numbers of every type", function()
    local formats = { i2 = "i2", u2 = "I2", i4 = "i4", u4 = "I4", i8 = "i8", u8 = "i8", f4 = "f", f8 = "d" }
    for descr, format in pairs(formats) do
      local big = string.pack((">" .. format):rep(4), 1, 2, 300, 4)
      local b <close> = load_text(header(dictionary(">" .. descr, "(2, 2)")) .. big)
      assert.equal(string.pack(("<" .. format):rep(4), 1, 2, 300, 4), b:bytes())
      assert.are.same({ 2, 2 }, b.shape)
    end
    local half <close> = load_text(header(dictionary(">f2", "(2,)")) .. "\x3c\x00\xc0\x00")
    assert.are.same({ 1.0, -2.0 }, half:read())
    for descr, format in pairs { c8 = "f", c16 = "d" } do
      local bytes = string.pack((">" .. format):rep(2), 1, -2)
      local b <close> = load_text(header(dictionary(">" .. descr, "(1,)")) .. bytes)
      assert.are.same({ { 1.0, -2.0 } }, b:read())
    end
    local byte <close> = load_text(header(dictionary(">i1", "(2,)")) .. "\1\xff")
    assert.are.same({ 1, -1 }, byte:read())
  end)

  it("brings Fortran order to C order, for every width and up to 8 dimensions", function()
    for _, case in ipairs { { "|u1", 1 }, { "<i2", 2 }, { "<f4", 4 }, { "<i8", 8 }, { "<c16", 16 } } do
      for _, shape in ipairs { { 3, 4 }, { 1, 5 }, { 5, 1 }, { 2, 3, 4 }, { 2, 1, 3, 2, 1, 2, 3, 2 } } do
        local elements, wanted, count, at = {}, {}, 1, {}
        for d, n in ipairs(shape) do
          count, at[d] = count * n, 0
        end
        -- Element i of C order, and where it lies in Fortran order.
        for i = 1, count do
          local place, stride = 0, 1
          for d, n in ipairs(shape) do
            place, stride = place + at[d] * stride, stride * n
          end
          wanted[i] = string.pack("<I2", i):rep(8):sub(1, case[2])
          elements[place + 1] = wanted[i]
          for d = #shape, 1, -1 do
            at[d] = (at[d] + 1) % shape[d]
            if at[d] > 0 then
              break
            end
          end
        end
        local b <close> = load_text(header(dictionary(case[1], "(" .. table.concat(shape, ", ") .. ")", "True"))
          .. table.concat(elements))
        assert.are.same(shape, b.shape)
        assert.equal(table.concat(wanted), b:bytes())
      end
    end
  end)

  it("takes arrays of several pieces in either order", function()
    local rows, columns = 3, 3 << 20 -- 9 MiB
    local row = ("0123456789abcdef"):rep(columns // 16)
    local bytes = row .. row:upper() .. row:reverse()
    local b <close> = load_text(header(dictionary("|u1", ("(%d, %d)"):format(rows, columns))) .. bytes)
    assert.is_true(b:bytes() == bytes)
    npy.save(b, path)
    local again <close> = npy.load(dev, path)
    assert.is_true(again:bytes() == bytes)
    local turned <close> = load_text(header(dictionary("|u1", ("(%d, %d)"):format(columns, rows), "True")) .. bytes)
    assert.equal("0" .. "0" .. "f" .. "1" .. "1" .. "e", turned:bytes(1, 6))
    assert.equal("fF0", turned:bytes(#turned - 2, #turned))
  end)

  it("reads from a pipe, which has no size", function()
    local bytes = header(dictionary("<i4", "(3,)")) .. string.pack("<i4i4i4", 5, 6, 7)
    put(bytes)
    local command = ([[cat '%s' | '%s/gpulua' -e 'local b = require "gpulua.npy".load(require "gpulua".device("cpu"), ]]
      .. [["/dev/stdin") print(table.concat(b:read(), " "))' 2>&1]]):format(path, os.getenv "GPULUA_BUILD")
    local pipe <close> = assert(io.popen(command))
    assert.equal("5 6 7\n", pipe:read "a")
  end)

  it("keeps the shape and pads its header to 64 bytes", function()
    local b <close> = dev:buffer("u16", { 2, 3, 4 }):fill(7)
    npy.save(b, path)
    local bytes = get()
    local header_bytes = string.unpack("<I2", bytes, 9)
    assert.equal(0, (10 + header_bytes) % 64)
    assert.equal("\n", bytes:sub(10 + header_bytes, 10 + header_bytes))
    assert.truthy(bytes:find("(2, 3, 4)", 1, true))
    local again <close> = npy.load(dev, path)
    assert.are.same({ 2, 3, 4 }, again.shape)
    assert.equal(24, #again)
  end)

  it("writes host buffers too", function()
    local b <close> = dev:host("f32", 3):write { 1, 2, 3 }
    npy.save(b, path)
    local again <close> = npy.load(dev, path)
    assert.are.same({ 1.0, 2.0, 3.0 }, again:read())
  end)

  it("is loaded and saved by many tasks at once", function()
    local b <close> = dev:upload("f32", 2000000, function(i) return i end)
    npy.save(b, path)
    local tasks = {}
    for i = 1, 8 do
      tasks[i] = gpu.spawn(function()
        local own <const> = path .. i
        local again <close> = npy.load(dev, path)
        npy.save(again, own)
        local same = support.read_file(own) == support.read_file(path)
        os.remove(own)
        return same
      end)
    end
    for _, task in ipairs(tasks) do
      assert.is_true(task:await())
    end
  end)

  it("loaded in a captured function is uploaded again with each launch", function()
    put(header(dictionary("<i4", "(2,)")) .. string.pack("<i4i4", 3, 4))
    local out <close> = dev:buffer("i32", 2):fill(0)
    local step <close> = dev:capture(function()
      local b <close> = npy.load(dev, path)
      out:copy(b)
    end)
    for _ = 1, 2 do
      out:fill(0)
      step:launch()
      assert.are.same({ 3, 4 }, out:read())
    end
  end)

  it("waits for what writes the buffer", function()
    local add = dev:compile([[
      extern "C" __global__ void add(int n, float *x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1.0f;
      }]]).add
    local b <close> = dev:buffer("f32", 1000):fill(0)
    for _ = 1, 50 do
      add:launch(1000, 1000, b)
    end
    npy.save(b, path)
    local again <close> = npy.load(dev, path)
    assert.are.same({ 50.0, 50.0 }, again:read(999, 1000))
  end)

  it("leaves the file as it was where the buffer cannot be had", function()
    local b <close> = dev:upload("u8", { 1, 2 })
    put "old"
    -- The script cannot read in a capture.
    support.raises("CaptureActive", {}, dev.capture, dev, function() npy.save(b, path) end)
    assert.equal("old", get())
    support.raises("CaptureActive", {}, dev.capture, dev, function() npy.save_all({ b = b }, path) end)
    assert.equal("old", get())
  end)

  it("reads the electrocardiogram", function()
    local b <close> = npy.load(dev, "examples/data/ecg.npy")
    assert.equal("u16", b.type)
    assert.are.same({ 108000 }, b.shape)
    local file <close> = assert(io.open("examples/data/ecg.npy", "rb"))
    assert.equal(file:read("a"):sub(-216000), b:bytes())
  end)

  describe("refuses", function()
    local good_data = string.pack("<i4i4", 1, 2)
    local good = dictionary("<i4", "(2,)")
    local wrong = {
      ["an empty file"] = { "", "not an .npy file" },
      ["a text file"] = { "1 2 3\n", "not an .npy file" },
      ["a file that is its magic alone"] = { "\x93NUMPY\1\0", "short" },
      ["version 4"] = { header(good, 4) .. good_data, "version 4" },
      ["version 0"] = { header(good, 0) .. good_data, "version 0" },
      ["a header cut off"] = { header(good):sub(1, -5), "short" },
      ["data cut off"] = { header(good) .. good_data:sub(1, -2), "short" },
      ["data too long"] = { header(good) .. good_data .. "x", "9 bytes of data" },
      ["no data"] = { header(good), "short" },
      ["a shape that no file could hold"] = { header(dictionary("<i4", "(4294967296, 4294967296)")), "short" },
      ["a dimension beyond integers"] = {
        header(dictionary("<i4", "(99999999999999999999,)")) .. good_data, "too large" },
      ["no elements"] = { header(dictionary("<i4", "(0,)")), "no elements" },
      ["Fortran order that is short"] = { header(dictionary("<i4", "(2, 2)", "True")) .. good_data, "short" },
      ["big-endian numbers that are short"] = { header(dictionary(">i8", "(2,)")) .. good_data, "short" },
      ["extended floating-point numbers"] = { header(dictionary("<f16", "(1,)")) .. good_data, "'<f16'" },
      ["bfloat16 as other libraries save it"] = { header(dictionary("<V2", "(4,)")) .. good_data, "'<V2'" },
      ["an archive"] = { "PK\3\4" .. good_data, "not an .npy file" },
      ["a header that is too long"] = { header((" "):rep(1 << 20) .. good, 2) .. good_data, "claims" },
      ["text elements"] = { header(dictionary("<U4", "(2,)")) .. good_data, "'<U4'" },
      ["objects"] = { header(dictionary("|O", "(2,)")) .. good_data, "'|O'" },
      ["dates"] = { header(dictionary("<M8[ns]", "(1,)")) .. good_data, "'<M8[ns]'" },
      ["structures"] = {
        header("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,), }") .. good_data, "structures" },
      ["structures whose fields have brackets in their names"] = { header(
        "{'descr': [('a]', '<i4'), ('[', '<f4')], 'fortran_order': False, 'shape': (1,), }") .. good_data,
        "structures" },
      ["a header that is code"] = { header("os.exit(7)") .. good_data, "damaged" },
      ["a header that ends in code"] = { header(good .. "; import os") .. good_data, "damaged" },
      ["a key twice"] = { header(good:sub(1, -2) .. "'descr': '<i4'}") .. good_data, "twice" },
      ["an unknown key"] = { header(good:sub(1, -2) .. "'more': 1}") .. good_data, "unknown key 'more'" },
      ["a missing key"] = { header("{'descr': '<i4', 'shape': (2,)}") .. good_data, "no 'fortran_order'" },
      ["a shape that is a number"] = { header(dictionary("<i4", "(2)")) .. good_data, "no tuple" },
      ["a negative dimension"] = { header(dictionary("<i4", "(-2,)")) .. good_data, "whole number" },
      ["a shape without commas"] = { header(dictionary("<i4", "(2 1)")) .. good_data, "damaged" },
      ["a truth that is none"] = { header(dictionary("<i4", "(2,)", "0")) .. good_data, "True or False" },
      ["keys without a comma"] = { header("{'descr': '<i4' 'shape': (2,)}") .. good_data, "damaged" },
      ["9 dimensions"] = { header(dictionary("<i4", "(" .. ("1, "):rep(8) .. "2)")) .. good_data, "9 dimensions" },
    }
    for name, case in pairs(wrong) do
      it(name, function()
        put(case[1])
        support.without_leak(dev, function()
          local err = support.raises("InvalidData", { path, case[2] }, npy.load, dev, path)
          assert.truthy(#err.hint > 0)
        end)
      end)
    end

    it("every cut of a good file, and no such cut ends the device", function()
      local whole = header(good) .. good_data
      for length = 0, #whole - 1 do
        put(whole:sub(1, length))
        support.raises("InvalidData", path, npy.load, dev, path)
      end
      support.works(dev)
    end)

    it("files that are not there, folders, and places that cannot be written", function()
      support.raises("Io", "no/such/file.npy", npy.load, dev, "no/such/file.npy")
      support.raises("Io", "spec", npy.load, dev, "spec")
      local b <close> = dev:buffer("u8", 4):fill(0)
      support.raises("Io", "no/such/file.npy", npy.save, b, "no/such/file.npy")
      support.raises("Io", "/dev/full", npy.save, b, "/dev/full")
    end)

    it("bf16, wrong arguments and closed buffers", function()
      local b <close> = dev:buffer("bf16", 4):fill(0)
      support.raises("Unsupported", "bf16", npy.save, b, path)
      support.raises("InvalidArgument", "device", npy.load, nil, path)
      support.raises("InvalidArgument", { "device", "got buffer" }, npy.load, b, path)
      support.raises("InvalidArgument", { "device", "userdata" }, npy.load, io.stdout, path)
      support.raises("InvalidArgument", { "buffer", "got device" }, npy.save, dev, path)
      support.raises("InvalidArgument", { "path", "zero byte" }, npy.load, dev, path .. "\0")
      support.raises("InvalidArgument", "path", npy.load, dev, nil)
      support.raises("InvalidArgument", "path", npy.load, dev, 5)
      support.raises("InvalidArgument", "buffer", npy.save, { 1, 2 }, path)
      local c <close> = dev:buffer("u8", 4):fill(0)
      support.raises("InvalidArgument", "path", npy.save, c, nil)
      local closed = dev:buffer("u8", 4)
      closed:close()
      assert.is_false(pcall(npy.save, closed, path))
      support.works(dev)
    end)
  end)
end)
