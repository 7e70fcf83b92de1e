-- WAV files: every kind of sample both ways, heads of all sorts, and every way in which a file can be wrong.

local riff = require "gpulua.riff"
local support = require "spec.support"
local wav = require "gpulua.wav"

local python = support.python()

local function chunk(id, text, size)
  return id .. string.pack("<I4", size or #text) .. text .. (#text % 2 == 1 and "\0" or "")
end

local function riff_file(chunks, kind, size)
  return (kind or "RIFF") .. string.pack("<I4", size or #chunks + 4) .. "WAVE" .. chunks
end

-- The chunk 'fmt ': tag, channels, bits, rate; bytes a sample where they are more than the bits need.
local function fmt(tag, channels, bits, rate, sample_bytes)
  sample_bytes = sample_bytes or bits // 8
  return chunk("fmt ", string.pack("<I2I2I4I4I2I2", tag, channels, rate or 8000,
    (rate or 8000) * channels * sample_bytes & 0xffffffff, channels * sample_bytes & 0xffff, bits))
end

local guid_end = "\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
local function extensible(tag, channels, bits, valid_bits, mask)
  return chunk("fmt ", string.pack("<I2I2I4I4I2I2I2I2I4I2", 0xfffe, channels, 8000, 8000 * channels * bits // 8,
    channels * bits // 8, bits, 22, valid_bits, mask, tag) .. guid_end)
end

local i24 = function(...)
  local parts = {}
  for i, value in ipairs { ... } do
    parts[i] = string.pack("<i3", value)
  end
  return table.concat(parts)
end

describe("wav", function()
  local dev, path

  setup(function()
    dev = support.open()
    path = os.tmpname()
  end)
  teardown(function()
    os.remove(path)
    support.close_all()
  end)

  local function load_text(bytes, options)
    support.write_file(path, bytes)
    return wav.load(dev, path, options)
  end
  -- Its numbers, its shape, its type and what load says of it.
  local function values_of(bytes, options)
    local b <close>, info = load_text(bytes, options)
    return b:read(), b.shape, b.type, info
  end

  local scale24, scale32 = 1 / (1 << 23), 1 / (1 << 31)
  -- Name, format, samples, what is read, and read raw, as what type.
  local kinds = {
    { "8 bits", fmt(1, 2, 8), "\0\x80\xff\x81", { -1, 0, 127 / 128, 1 / 128 }, { 0, 128, 255, 129 }, "u8" },
    { "16 bits", fmt(1, 2, 16), string.pack("<i2i2i2i2", -32768, 32767, 1, -1),
      { -1, 32767 / 32768, 1 / 32768, -1 / 32768 }, { -32768, 32767, 1, -1 }, "i16" },
    { "24 bits", fmt(1, 2, 24), i24(-8388608, 8388607, 1, -1), { -1, 8388607 * scale24, scale24, -scale24 },
      { -8388608, 8388607, 1, -1 }, "i32" },
    { "32 bits", fmt(1, 2, 32), string.pack("<i4i4i4i4", -2147483648, 1 << 30, 256, -256),
      { -1, 0.5, 256 * scale32, -256 * scale32 }, { -2147483648, 1 << 30, 256, -256 }, "i32" },
    { "f32", fmt(3, 2, 32), string.pack("<ffff", -1.5, 0.25, 1e30, 0), { -1.5, 0.25, support.f32(1e30), 0 },
      { -1.5, 0.25, support.f32(1e30), 0 }, "f32" },
    { "f64", fmt(3, 2, 64), string.pack("<dddd", -1.5, 0.25, 0.1, 0), { -1.5, 0.25, support.f32(0.1), 0 },
      { -1.5, 0.25, 0.1, 0 }, "f64" },
  }
  for _, kind in ipairs(kinds) do
    local name, format, data, wanted, wanted_raw, raw_type = table.unpack(kind)
    it("reads " .. name .. ", and raw", function()
      local bytes = riff_file(format .. chunk("data", data))
      local values, shape, type_name, info = values_of(bytes)
      assert.are.same(wanted, values)
      assert.are.same({ 2, 2 }, shape)
      assert.equal("f32", type_name)
      assert.are.same({ rate = 8000, channels = 2, frames = 2, bits = math.tointeger(name:match "%d+"),
        format = name:find "f" and "float" or "int" }, info)
      values, shape, type_name = values_of(bytes, { raw = true })
      assert.are.same(wanted_raw, values)
      assert.are.same({ 2, 2 }, shape)
      assert.equal(raw_type, type_name)
    end)
  end

  it("rounds 32 bits to nearest", function()
    local largest = string.pack("<i4i4", 2147483647, 2147483647 - 64)
    assert.are.same({ 1.0, 1 - 2.0 ^ -24 }, (values_of(riff_file(fmt(1, 1, 32) .. chunk("data", largest)))))
  end)

  it("reads the extensible format, with fewer bits than the bytes have, and its mask", function()
    local data = i24(16 << 4, -(16 << 4))
    local values, shape, _, info = values_of(riff_file(extensible(1, 1, 24, 20, 4) .. chunk("data", data)))
    assert.are.same({ 256 * scale24, -256 * scale24 }, values)
    assert.are.same({ 2, 1 }, shape)
    assert.are.same({ 20, 4 }, { info.bits, info.mask })
    assert.are.same({ 0.5 }, (values_of(riff_file(extensible(3, 1, 32, 32, 0)
      .. chunk("data", string.pack("<f", 0.5))))))
    -- Plain, 12 bits in two bytes and 24 in four, to the left.
    assert.are.same({ 0.5 }, (values_of(riff_file(fmt(1, 1, 12, 8000, 2) .. chunk("data", "\0\x40")))))
    assert.are.same({ 0.25 }, (values_of(riff_file(fmt(1, 1, 24, 8000, 4) .. chunk("data", "\0\0\0\x20")))))
  end)

  it("takes chunks in any order, of odd length, and such as it does not know", function()
    local format, data = fmt(1, 1, 16), string.pack("<i2i2", 1 << 14, -(1 << 14))
    for _, chunks in ipairs {
      chunk("data", data) .. format,
      chunk("LIST", "odd") .. format .. chunk("\1\2\3\4", "x") .. chunk("data", data) .. chunk("LIST", "even"),
      chunk("JUNK", "") .. format .. chunk("fact", "\2\0\0\0") .. chunk("data", data) .. "junk",
      chunk("data", data) .. chunk("abc ", "12345") .. format,
    } do
      assert.are.same({ 0.5, -0.5 }, (values_of(riff_file(chunks))))
    end
    -- An odd number of bytes of samples, and a format behind it.
    assert.are.same({ 0, 0, 0 }, (values_of(riff_file(chunk("data", "\x80\x80\x80") .. fmt(1, 1, 8)))))
  end)

  it("reads files that were written as streams, to their end", function()
    local format, data = fmt(1, 2, 16), string.pack("<i2i2i2i2", 1, 2, 3, 4)
    for _, sizes in ipairs { { 0xffffffff, 0xffffffff }, { 0, 0 }, { 0xffffffff, 0 }, { 0, 0xffffffff },
      { 0x7ffff024, 0x7ffff000 } } do
      local values, shape = values_of(riff_file(format .. chunk("data", data, sizes[2]), "RIFF", sizes[1]),
        { raw = true })
      assert.are.same({ 1, 2, 3, 4 }, values)
      assert.are.same({ 2, 2 }, shape)
    end
    -- Three bytes of samples and one behind them.
    assert.are.same({ 5 }, (values_of(riff_file(fmt(1, 1, 24) .. "data\xff\xff\xff\xff" .. i24(5) .. "\0"),
      { raw = true })))
  end)

  it("reads RF64 and BW64, also with sizes of other chunks", function()
    local data = string.pack("<i2i2", 7, -7)
    local function ds64(data_bytes, more)
      return chunk("ds64", string.pack("<I8I8I8I4", 1 << 33, data_bytes, 2, more and 1 or 0) .. (more or ""))
    end
    for _, kind in ipairs { "RF64", "BW64" } do
      for _, chunks in ipairs {
        ds64(#data) .. fmt(1, 1, 16) .. chunk("data", data, 0xffffffff),
        ds64(#data) .. fmt(1, 1, 16) .. chunk("data", data, 0xffffffff) .. "more that is behind",
        ds64(0) .. fmt(1, 1, 16) .. chunk("data", data),
        ds64(#data, "big " .. string.pack("<I8", 5)) .. fmt(1, 1, 16) .. chunk("big ", "12345", 0xffffffff)
          .. chunk("data", data, 0xffffffff),
      } do
        assert.are.same({ 7, -7 }, (values_of(riff_file(chunks, kind, 0xffffffff), { raw = true })))
      end
    end
  end)

  -- ---- out ----

  it("writes plain and extensible heads, and fills up to even", function()
    local mono <close> = dev:upload("i16", { 1, -1, 256 })
    assert.equal(0, wav.save(mono, path, { rate = 44100 }))
    assert.equal(riff_file(fmt(1, 1, 16, 44100) .. chunk("data", string.pack("<i2i2i2", 1, -1, 256))),
      support.read_file(path))
    local sound <close> = dev:upload("f32", { 0.5 })
    wav.save(sound, path, { rate = 8000, bits = 24 })
    assert.equal(riff_file(extensible(1, 1, 24, 24, 4) .. chunk("data", i24(1 << 22))), support.read_file(path))
    wav.save(sound, path, { rate = 8000 })
    local plain = fmt(3, 1, 32):sub(9) .. "\0\0"
    assert.equal(riff_file(chunk("fmt ", plain) .. chunk("fact", "\1\0\0\0") .. chunk("data", string.pack("<f", 0.5))),
      support.read_file(path))
    local six <close> = dev:buffer("i16", { 2, 6 }):fill(3)
    wav.save(six, path, { rate = 8000, mask = 0x3f })
    assert.equal(riff_file(extensible(1, 6, 16, 16, 0x3f) .. chunk("data", ("\3\0"):rep(12))), support.read_file(path))
    local again <close>, info = wav.load(dev, path, { raw = true })
    assert.are.same({ 2, 6 }, again.shape)
    assert.equal(0x3f, info.mask)
  end)

  it("writes RF64 where 32 bits do not hold the sizes", function()
    local format = { rate = 48000, channels = 2, bits = 16, sample_bytes = 2, format = "int", mask = 3, frames = 2 }
    local data = string.pack("<i2i2i2i2", 1, 2, 3, 4)
    local head, tail = riff.head(format, 0)
    assert.equal("RF64\xff\xff\xff\xffWAVEds64", head:sub(1, 16))
    local sizes = { string.unpack("<I8I8I8I4", head, 21) }
    assert.are.same({ #head + #data - 8, #data, 2, 0 }, { table.unpack(sizes, 1, 4) })
    assert.are.same({ 1, 2, 3, 4 }, (values_of(head .. data .. tail, { raw = true })))
    -- At the edge: the largest file of 32 bits, and the next.
    format.frames = (0xffffffff - 1 - 36) // 4
    assert.equal("RIFF", riff.head(format):sub(1, 4))
    format.frames = format.frames + 1
    head = riff.head(format)
    assert.equal("RF64", head:sub(1, 4))
    assert.equal(format.frames * 4, (string.unpack("<I8", head, 29)))
  end)

  it("rounds to nearest, even where two are, and keeps 1 within the largest number", function()
    local function written(values, bits)
      local b <close> = dev:upload("f32", values)
      wav.save(b, path, { rate = 1, bits = bits })
      return (values_of(assert(support.read_file(path)), { raw = true }))
    end
    local step = 1 / 32768
    assert.are.same({ 0, 2, 2, 0, -2, 32767, -32768, 32767, 1 },
      written({ 0.5 * step, 1.5 * step, 2.5 * step, -0.5 * step, -1.5 * step, 1, -1, 1 - 0.5 * step, 0.6 * step }, 16))
    step = 1 / 8388608
    assert.are.same({ 0, 2, -2, 8388607, -8388608, 4194304 },
      written({ 0.5 * step, 1.5 * step, -1.5 * step, 1, -1, 0.5 }, 24))
    assert.are.same({ 2147483647, -2147483648, 1, 0x40000000 }, written({ 1, -1, 2 ^ -31, 0.5 }, 32))
  end)

  it("gives back what it has read, bit for bit: 8, 16, 24 bits and floats as f32, all of them raw", function()
    local all16 = {}
    for i = 0, 65535 do
      all16[i + 1] = string.pack("<I2", i)
    end
    local some24 = {}
    for i = 1, 4000 do
      some24[i] = string.pack("<I3", i * 4194301 % (1 << 24))
    end
    local some32 = {}
    for i = 1, 4000 do
      some32[i] = string.pack("<I4", i * 2654435761 % (1 << 32))
    end
    for _, case in ipairs { { all16, fmt(1, 2, 16), 16 }, { some24, fmt(1, 2, 24), 24 }, { some32, fmt(1, 2, 32), 32 },
      { some32, fmt(3, 2, 32), "f32" } } do
      local data = table.concat(case[1])
      local bytes = riff_file(case[2] .. chunk("data", data))
      for _, raw in ipairs { true, false } do
        if raw or case[3] ~= 32 then
          local b <close> = load_text(bytes, { raw = raw })
          wav.save(b, path, { rate = 8000, bits = case[3] })
          assert.is_true(support.read_file(path):sub(-#data) == data, tostring(case[3]))
        end
      end
    end
  end)

  it("refuses what does not fit, and says where, before the file is touched", function()
    support.write_file(path, "old")
    local b <close> = dev:upload("f32", { 0, 0, 0, 1.25, -2, 0 }):view("f32", { 3, 2 })
    support.raises("InvalidData", { "2 samples lie outside of -1 to 1", "frame 2, channel 2" }, wav.save, b, path,
      { rate = 8000, bits = 16 })
    local nan <close> = dev:upload("f32", { 0, 0 / 0, 5 })
    support.raises("InvalidData", { "frame 2, channel 1", "not a number" }, wav.save, nan, path,
      { rate = 8000, bits = 24, clip = true })
    local wide <close> = dev:upload("i32", { 8388607, -8388608, 8388608 })
    support.raises("InvalidData", { "1 samples lie outside of 24 bits", "frame 3" }, wav.save, wide, path,
      { rate = 8000, bits = 24 })
    support.raises("CaptureActive", {}, dev.capture, dev, function() wav.save(b, path, { rate = 8000 }) end)
    assert.equal("old", support.read_file(path))
    assert.equal(2, wav.save(b, path, { rate = 8000, bits = 16, clip = true }))
    assert.are.same({ 0, 0, 0, 32767, -32768, 0 }, (values_of(support.read_file(path), { raw = true })))
    assert.equal(1, wav.save(wide, path, { rate = 8000, bits = 24, clip = true }))
    assert.are.same({ 8388607, -8388608, 8388607 }, (values_of(support.read_file(path), { raw = true })))
    -- What is written as it is may be anything.
    assert.equal(0, wav.save(nan, path, { rate = 8000 }))
    assert.equal(nan:bytes(), support.read_file(path):sub(-12))
  end)

  it("takes sound of several pieces, and finds there what does not fit", function()
    local n = (2 << 20) + 6 -- samples: more than two pieces of either way
    local b <close> = dev:upload("f32", n, function(i) return i % 1000 / 1000 end):view("f32", { n // 2, 2 })
    for _, bits in ipairs { 16, 24, "f32" } do
      wav.save(b, path, { rate = 48000, bits = bits })
      local again <close>, info = wav.load(dev, path)
      assert.equal(n // 2, info.frames)
      for _, i in ipairs { 1, 1 << 19, (1 << 19) + 1, 1 << 20, (1 << 20) + 1, n - 1, n } do
        assert.truthy(math.abs(again:read(i, i)[1] - i % 1000 / 1000) <= 1 / 65536)
      end
    end
    b:write({ 3 }, n)
    support.raises("InvalidData", { "1 samples", ("frame %d, channel 2"):format(n // 2) }, wav.save, b, path,
      { rate = 48000, bits = 16 })
  end)

  it("waits for what writes the sound", function()
    local add = dev:compile([[
      extern "C" __global__ void add(int n, float *x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 0.0078125f;
      }]]).add
    local b <close> = support.zeros(dev, "f32", 1000)
    for _ = 1, 64 do
      add:launch(1000, 1000, b)
    end
    wav.save(b, path, { rate = 8000, bits = 16 })
    local again <close> = wav.load(dev, path)
    assert.are.same({ 0.5, 0.5 }, again:read(999, 1000))
  end)

  it("is what Python reads and writes", function()
    if not python then
      pending "there is no Python"
    end
    local sound <close> = dev:upload("i16", { 1, -2, 3, -4, 5, -32768 }):view("i16", { 3, 2 })
    wav.save(sound, path, { rate = 22050 })
    local script = os.tmpname()
    support.write_file(script, [[
import struct, sys, wave
with wave.open(sys.argv[1]) as w:
    print(w.getparams()[:4], struct.unpack("<6h", w.readframes(3)))
for width, values in (3, (70000, -70000)), (1, (0, 255)):
    with wave.open(sys.argv[1] + str(width), "wb") as w:
        w.setparams((1, width, 11025, 0, "NONE", ""))
        w.writeframes(b"".join(v.to_bytes(width, "little", signed=width > 1) for v in values))
]])
    local pipe = assert(io.popen(("%s %s %s 2>&1"):format(python, script, path)))
    local output = pipe:read "a"
    pipe:close()
    os.remove(script)
    assert.equal("(2, 2, 22050, 3) (1, -2, 3, -4, 5, -32768)\n", output)
    for width, values in pairs { [3] = { 70000, -70000 }, [1] = { 0, 255 } } do
      local b <close>, info = wav.load(dev, path .. width, { raw = true })
      os.remove(path .. width)
      assert.are.same(values, b:read())
      assert.equal(11025, info.rate)
    end
  end)

  describe("refuses", function()
    local pcm, data = fmt(1, 2, 16), chunk("data", "\1\0\2\0")
    local wrong = {
      ["an empty file"] = { "InvalidData", "", "not a WAV file" },
      ["a text file"] = { "InvalidData", "RIFF and so on, and on", "not a WAV file" },
      ["another kind of RIFF"] = { "InvalidData", "RIFF\4\0\0\0AVI ", "not a WAV file" },
      ["big-endian numbers"] = { "Unsupported", riff_file(pcm .. data, "RIFX"), "RIFX" },
      ["no chunks"] = { "InvalidData", riff_file "", "no format" },
      ["no format"] = { "InvalidData", riff_file(data), "no format" },
      ["no samples"] = { "InvalidData", riff_file(pcm), "no samples" },
      ["no bytes of samples"] = { "InvalidData", riff_file(pcm .. chunk("data", "")), "holds no samples" },
      ["no bytes of samples, and more behind them"] = {
        "InvalidData", riff_file(pcm .. chunk("data", "") .. chunk("LIST", "abcd")), "holds no samples" },
      ["two formats"] = { "InvalidData", riff_file(pcm .. pcm .. data), "'fmt '" },
      ["samples twice"] = { "InvalidData", riff_file(data .. data .. pcm), "samples twice" },
      ["samples cut off"] = {
        "InvalidData", riff_file(pcm .. chunk("data", "\1\0\2\0", 8)), "4 bytes of samples of 8" },
      ["half a frame"] = { "InvalidData", riff_file(pcm .. chunk("data", "\1\0\2\0\3\0")), "no whole number" },
      ["half a frame of a stream"] = {
        "InvalidData", riff_file(pcm .. chunk("data", "\1\0\2\0\3\0", 0xffffffff)), "within a frame" },
      ["a chunk that is longer than the file"] = {
        "InvalidData", riff_file(chunk("LI\1T", "abc", 400) .. pcm .. data), "chunk 'LI?T'" },
      ["a short format"] = { "InvalidData", riff_file(chunk("fmt ", "\1\0\1\0") .. data), "format is short" },
      ["a short extensible format"] = { "InvalidData", riff_file(fmt(0xfffe, 2, 16) .. data), "format is short" },
      ["no channels"] = { "InvalidData", riff_file(fmt(1, 0, 16) .. data), "0 channels" },
      ["no rate"] = {
        "InvalidData", riff_file(chunk("fmt ", string.pack("<I2I2I4I4I2I2", 1, 1, 0, 0, 2, 16)) .. data), "0 frames" },
      ["frames of no bytes"] = { "InvalidData", riff_file(fmt(1, 2, 16, 8000, 0) .. data), "0 bytes a frame" },
      ["more bits than bytes hold"] = { "InvalidData", riff_file(fmt(1, 2, 24, 8000, 2) .. data), "24 bits in 2" },
      ["40 bits"] = { "Unsupported", riff_file(fmt(1, 1, 40) .. chunk("data", "12345")), "40 bits" },
      ["whole numbers of 64 bits"] = { "Unsupported", riff_file(fmt(1, 1, 64) .. chunk("data", "12345678")),
        "64 bits in 8 bytes" },
      ["72 bits in 8 bytes"] = { "InvalidData", riff_file(fmt(1, 1, 72, 8000, 8) .. chunk("data", "12345678")),
        "72 bits in 8" },
      ["floats of 16 bits"] = { "InvalidData", riff_file(fmt(3, 2, 16) .. data), "16 bits" },
      ["A-law"] = { "Unsupported", riff_file(fmt(6, 2, 8) .. data), "A-law" },
      ["MP3"] = { "Unsupported", riff_file(fmt(85, 2, 0, 8000, 1) .. data), "MP3" },
      ["a format with no name"] = { "Unsupported", riff_file(fmt(0x1234, 2, 16) .. data), "format 4660" },
      ["a format of another maker"] = { "Unsupported",
        riff_file(extensible(1, 2, 16, 16, 3):gsub("\x38\x9b\x71", "\x38\x9b\x72") .. data), "format of its own" },
      ["RF64 without its sizes"] = { "InvalidData", riff_file(pcm .. data, "RF64"), "ds64" },
      ["RF64 with short sizes"] = { "InvalidData", riff_file(chunk("ds64", "1234") .. pcm .. data, "RF64"), "ds64" },
      ["RF64 with samples cut off"] = { "InvalidData", riff_file(chunk("ds64", string.pack("<I8I8I8I4", 0, 1 << 40, 0,
        0)) .. pcm .. chunk("data", "\1\0\2\0", 0xffffffff), "RF64"), "4 bytes of samples of 1099511627776" },
      ["RF64 with negative sizes"] = { "InvalidData", riff_file(chunk("ds64", string.pack("<I8i8I8I4", 0, -4, 0, 0))
        .. pcm .. chunk("data", "\1\0\2\0", 0xffffffff), "RF64"), "too large" },
      ["f64 beyond f32"] = { "InvalidData",
        riff_file(fmt(3, 2, 64) .. chunk("data", string.pack("<dd", 1, 1e300))), "sample 1 of channel 2" },
    }
    for name, case in pairs(wrong) do
      it(name, function()
        support.write_file(path, case[2])
        support.without_leak(dev, function()
          local err = support.raises(case[1], { "wav.load: " .. path, case[3] }, wav.load, dev, path)
          assert.truthy(#err.hint > 0)
        end)
      end)
    end

    it("every cut of a good file", function()
      local whole = riff_file(chunk("LIST", "odd") .. pcm .. data)
      support.without_leak(dev, function()
        for length = 0, #whole - 1 do
          support.write_file(path, whole:sub(1, length))
          support.raises("InvalidData", path, wav.load, dev, path)
        end
      end)
      support.works(dev)
    end)

    it("files that are not there, folders, pipes, and places that cannot be written", function()
      support.raises("Io", "no/such.wav", wav.load, dev, "no/such.wav")
      support.raises("Io", "spec", wav.load, dev, "spec")
      local b <close> = dev:buffer("i16", 4):fill(0)
      support.raises("Io", "no/such.wav", wav.save, b, "no/such.wav", { rate = 1 })
      support.raises("Io", "/dev/full", wav.save, b, "/dev/full", { rate = 1 })
      local output = support.script([[
        local _, err = pcall(require "gpulua.wav".load, require "gpulua".device "cpu", "/dev/stdin")
        print(err.code)
      ]], "true |")
      assert.equal("Io\n", output)
    end)

    it("buffers that are no sound, wrong options, closed buffers", function()
      support.write_file(path, "old")
      local f32 <close> = dev:buffer("f32", { 2, 2 }):fill(0)
      local i32 <close> = dev:buffer("i32", 4):fill(0)
      local three <close> = dev:buffer("f32", { 2, 2, 2 }):fill(0)
      local f64 <close> = dev:buffer("f64", 4):fill(0)
      local broad <close> = dev:buffer("f32", { 1, 20000 }):fill(0)
      local closed = dev:buffer("f32", 4)
      closed:close()
      support.raises("InvalidArgument", { "buffer", "f64 {4}" }, wav.save, f64, path, { rate = 1 })
      support.raises("InvalidArgument", { "buffer", "{2, 2, 2}" }, wav.save, three, path, { rate = 1 })
      support.raises("InvalidArgument", { "20000 channels" }, wav.save, broad, path, { rate = 1 })
      support.raises("InvalidArgument", "rate", wav.save, f32, path)
      for _, rate in ipairs { 0, -1, 1.5, 1 << 32, "8000", 0x40000000 } do
        support.raises("InvalidArgument", "rate", wav.save, f32, path, { rate = rate })
      end
      for _, bits in ipairs { 8, 0, 16.5, "16", "f64", true } do
        support.raises("InvalidArgument", "bits", wav.save, f32, path, { rate = 1, bits = bits })
      end
      support.raises("InvalidArgument", { "bits", "i32" }, wav.save, i32, path, { rate = 1, bits = 16 })
      support.raises("InvalidArgument", { "bits", "i32" }, wav.save, i32, path, { rate = 1, bits = "f32" })
      support.raises("InvalidArgument", "clip", wav.save, f32, path, { rate = 1, clip = 1 })
      support.raises("InvalidArgument", "mask", wav.save, f32, path, { rate = 1, mask = -1 })
      support.raises("InvalidArgument", "'volume'", wav.save, f32, path, { rate = 1, volume = 2 })
      support.raises("InvalidArgument", "options", wav.save, f32, path, 8000)
      support.raises("InvalidArgument", "path", wav.save, f32, nil, { rate = 1 })
      support.raises("InvalidArgument", "buffer", wav.save, { 1 }, path, { rate = 1 })
      support.raises("InvalidArgument", "device", wav.load, nil, path)
      support.raises("InvalidArgument", "path", wav.load, dev, 5)
      support.raises("InvalidArgument", "raw", wav.load, dev, path, { raw = 1 })
      support.raises("InvalidArgument", "'bits'", wav.load, dev, path, { bits = 16 })
      assert.is_false(pcall(wav.save, closed, path, { rate = 1 }))
      assert.equal("old", support.read_file(path))
      support.works(dev)
    end)
  end)
end)
