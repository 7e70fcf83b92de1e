-- Pictures: PNG and JPEG in, PNG out, and every way in which a file can be wrong.

local image = require "gpulua.image"
local support = require "spec.support"

describe("image", function()
  local dev, path

  setup(function()
    dev = support.open()
    path = support.path ".png"
  end)
  teardown(function()
    os.remove(path)
    support.close_all()
  end)

  local function put(bytes)
    support.write_file(path, bytes)
  end
  local function get(name)
    return support.read_file(name or path)
  end

  it("reads grey and colour with height, width and channels", function()
    local grey <close> = image.load(dev, "examples/data/ascent.png")
    assert.equal("u8", grey.type)
    assert.are.same({ 512, 512, 1 }, grey.shape)
    local colour <close> = image.load(dev, "examples/data/raccoon.png")
    assert.are.same({ 384, 512, 3 }, colour.shape)
    -- Upper left pixels, as other readers see them.
    assert.are.same({ 83, 83, 83 }, grey:read(1, 3))
    assert.equal(384 * 512 * 3, #colour)
  end)

  it("writes what it reads again, for 1 to 4 channels", function()
    for channels = 1, 4 do
      local b <close> = dev:upload("u8", 5 * 7 * channels, function(i) return i * 37 % 256 end)
        :view("u8", { 5, 7, channels })
      image.save(b, path)
      local again <close> = image.load(dev, path)
      assert.are.same({ 5, 7, channels }, again.shape)
      assert.equal(b:bytes(), again:bytes())
    end
  end)

  it("writes a buffer of two dimensions as grey", function()
    local b <close> = dev:upload("u8", { 1, 2, 3, 4, 5, 6 }):view("u8", { 2, 3 })
    image.save(b, path)
    local again <close> = image.load(dev, path)
    assert.are.same({ 2, 3, 1 }, again.shape)
    assert.are.same({ 1, 2, 3, 4, 5, 6 }, again:read())
  end)

  it("reads JPEG", function()
    put(support.grey_jpeg())
    local b <close> = image.load(dev, path)
    assert.are.same({ 8, 8, 1 }, b.shape)
    assert.equal(("\x80"):rep(64), b:bytes())
  end)

  it("waits for what writes the picture", function()
    local paint = dev:compile([[
      extern "C" __global__ void paint(int n, unsigned char *x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1;
      }]]).paint
    local b <close> = dev:buffer("u8", { 20, 30 }):fill(0)
    for _ = 1, 50 do
      paint:launch(600, 600, b)
    end
    image.save(b, path)
    local again <close> = image.load(dev, path)
    assert.equal(("\50"):rep(600), again:bytes())
  end)

  describe("refuses", function()
    local function refused(bytes, part)
      put(bytes)
      support.without_leak(dev, function()
        support.raises("InvalidData", { path, part }, image.load, dev, path)
      end)
    end

    it("what is no picture", function()
      refused("", "neither")
      refused("hello", "neither")
      refused(get("examples/data/ecg.npy"), "neither")
    end)

    it("a PNG cut off, anywhere", function()
      local b <close> = dev:buffer("u8", { 3, 3 }):fill(9)
      image.save(b, path)
      local whole = get()
      for length = 0, #whole - 1 do
        put(whole:sub(1, length))
        support.raises("InvalidData", path, image.load, dev, path)
      end
      support.works(dev)
    end)

    it("a PNG with one wrong bit, anywhere", function()
      local b <close> = dev:buffer("u8", { 3, 3 }):fill(9)
      image.save(b, path)
      local whole = get()
      for at = 1, #whole do
        put(whole:sub(1, at - 1) .. string.char(whole:byte(at) ~ 4) .. whole:sub(at + 1))
        support.raises("InvalidData", path, image.load, dev, path)
      end
    end)

    it("a JPEG cut off, anywhere", function()
      local whole = support.grey_jpeg()
      for length = 0, #whole - 1 do
        put(whole:sub(1, length))
        support.raises("InvalidData", path, image.load, dev, path)
      end
    end)

    it("a JPEG whose Huffman tables have more codes than there are", function()
      local whole = support.grey_jpeg()
      local at = assert(whole:find("\xff\xc4", 1, true))
      -- 255 codes of 8 bits, and some of 9.
      local function with(nines, codes_there)
        return whole:sub(1, at + 1) .. string.pack(">I2", 19 + codes_there) .. ("\0"):rep(8) .. "\xff"
          .. string.char(nines) .. ("\0"):rep(7 + codes_there) .. whole:sub(at + 22)
      end
      put(with(1, 256))
      local b <close> = image.load(dev, path)
      assert.are.same({ 8, 8, 1 }, b.shape)
      refused(with(2, 257), "Huffman")
      refused(with(255, 510), "Huffman")
      refused(with(1, 255), "Huffman")
      refused(with(1, 257), "Huffman")
    end)

    it("a JPEG of more pixels than its bytes can hold", function()
      local small = support.grey_jpeg():gsub("\x3f\xff\xd9$", ("\0"):rep(1024) .. "\xff\xd9")
      local function sized(height, width)
        return (small:gsub("\xff\xc0\0\11\8....", "\xff\xc0\0\11\8" .. string.pack(">I2I2", height, width), 1))
      end
      put(sized(512, 512))
      local b <close> = image.load(dev, path)
      assert.are.same({ 512, 512, 1 }, b.shape)
      refused(sized(4096, 4096), "shorter than its pixels")
      refused(sized(65535, 16), "shorter than its pixels")
    end)

    it("a PNG whose chunks are whole and whose pixels are not there", function()
      local b <close> = dev:buffer("u8", { 3, 3 }):fill(9)
      image.save(b, path)
      local whole = get()
      -- Signature and IHDR (33 bytes), then the end chunk (12 bytes).
      refused(whole:sub(1, 33) .. whole:sub(-12), path)
    end)

    it("files that are not there, folders, and places that cannot be written", function()
      support.raises("Io", "no/such.png", image.load, dev, "no/such.png")
      support.raises("Io", "spec", image.load, dev, "spec")
      local b <close> = dev:buffer("u8", { 2, 2 }):fill(0)
      support.raises("Io", "no/such.png", image.save, b, "no/such.png")
    end)

    it("buffers that are no pictures, other formats, wrong arguments", function()
      local flat <close> = dev:buffer("u8", 12):fill(0)
      support.raises("InvalidArgument", { "buffer", "{12}" }, image.save, flat, path)
      local five <close> = dev:buffer("u8", { 2, 2, 5 }):fill(0)
      support.raises("InvalidArgument", { "buffer", "{2, 2, 5}" }, image.save, five, path)
      local four <close> = dev:buffer("u8", { 2, 2, 2, 2 }):fill(0)
      support.raises("InvalidArgument", "buffer", image.save, four, path)
      local float <close> = dev:buffer("f32", { 2, 2 }):fill(0)
      support.raises("InvalidArgument", { "buffer", "f32" }, image.save, float, path)
      local good <close> = dev:buffer("u8", { 2, 2 }):fill(0)
      support.raises("InvalidArgument", { "path", "out.jpg" }, image.save, good, "out.jpg")
      support.raises("InvalidArgument", "path", image.save, good, nil)
      support.raises("InvalidArgument", "buffer", image.save, "pixels", path)
      support.raises("InvalidArgument", "device", image.load, "cpu", path)
      support.raises("InvalidArgument", "path", image.load, dev, {})
      support.works(dev)
    end)
  end)
end)
