-- Files of every kind that is read, damaged at random: each gives a value, or an error that names the file.

local file = require "gpulua.file"
local image = require "gpulua.image"
local npy = require "gpulua.npy"
local support = require "spec.support"
local wav = require "gpulua.wav"
local zip = require "gpulua.zip"

local variants <const> = 300 -- of each file

describe("data", function()
  local dev, path

  setup(function()
    dev = support.open()
    path = support.path ".png"
  end)
  teardown(function()
    os.remove(path)
    support.close_all()
  end)

  -- ---- files that are right ----

  local function saved(save, ...)
    save(...)
    return assert(support.read_file(path))
  end

  local function zip64()
    do
      local array <close> = dev:upload("i16", { 1, 2, 3 })
      local bytes = saved(npy.save, array, path)
      local writer <close> = file.create(path, "spec")
      local archive <close> = zip.create(writer, 0)
      archive:begin_entry("a.npy", #bytes, true)
      archive:write(bytes)
      archive:end_entry()
      archive:finish()
      writer:finish()
    end
    return assert(support.read_file(path))
  end

  -- Name, a file that is right, how it is read.
  local function good_files()
    local b <close> = dev:upload("f32", 24, function(i) return i / 32 end):view("f32", { 6, 4 })
    local whole <close> = dev:upload("i32", 8, function(i) return i end)
    local picture <close> = dev:upload("u8", 48, function(i) return i * 5 end):view("u8", { 4, 4, 3 })
    local fortran = saved(npy.save, b, path):gsub("False", " True")
    return {
      { "an array", saved(npy.save, b, path), npy.load },
      { "an array in Fortran order", fortran, npy.load },
      { "a stored archive", saved(npy.save_all, { a = b, b = whole }, path), npy.load_all },
      { "a deflated archive", saved(npy.save_all, { a = b, b = whole }, path, { compress = true }), npy.load_all },
      { "an archive of 64 bits", zip64(), npy.load_all },
      { "sound of 16 bits", saved(wav.save, b, path, { rate = 8000, bits = 16 }), wav.load },
      { "sound of 24 bits", saved(wav.save, b, path, { rate = 8000, bits = 24 }), wav.load },
      { "sound of floats", saved(wav.save, b, path, { rate = 8000 }), wav.load },
      { "a PNG", saved(image.save, picture, path), image.load },
      { "a JPEG", support.grey_jpeg(), image.load },
    }
  end

  -- ---- what goes wrong with them ----

  local extremes <const> = { "\0\0\0\0", "\xff\xff\xff\xff", "\xff\xff\xff\x7f", "\0\0\0\x80", "\1\0\0\0", "\xfe\xff" }

  local function damage(bytes, random)
    local at = random(1, #bytes)
    local kind = random(1, 7)
    if kind <= 2 then -- one bit
      return bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ (1 << random(0, 7))) .. bytes:sub(at + 1)
    elseif kind == 3 then -- one byte
      return bytes:sub(1, at - 1) .. string.char(random(0, 255)) .. bytes:sub(at + 1)
    elseif kind == 4 then -- a number
      local number = extremes[random(1, #extremes)]
      return bytes:sub(1, at - 1) .. number .. bytes:sub(at + #number)
    elseif kind == 5 then -- something is missing
      return bytes:sub(1, at - 1) .. bytes:sub(at + random(1, 8))
    elseif kind == 6 then -- something is there twice
      return bytes:sub(1, at) .. bytes:sub(math.max(1, at - random(0, 40)))
    end
    return bytes:sub(1, at) -- the rest is missing
  end

  local function close(result)
    for _, buffer in pairs(type(result) == "table" and result or { result }) do
      buffer:close()
    end
  end

  it("damaged at random is read, or refused by an error that names the file, and leaves nothing behind", function()
    support.works(dev)
    support.settle(dev)
    local before = support.descriptors()
    support.without_leak(dev, function()
      for number, case in ipairs(good_files()) do
        local name, bytes, load = table.unpack(case)
        local random = support.random(number)
        support.write_file(path, bytes)
        close(load(dev, path))
        local refused = 0
        for i = 1, variants do
          local text = damage(bytes, random)
          if i % 3 == 0 then
            text = damage(text, random)
          end
          support.write_file(path, text)
          local ok, result = pcall(load, dev, path)
          if ok then
            close(result)
          else
            refused = refused + 1
            local is_typed = type(result) ~= "string" and (result.code == "InvalidData" or result.code == "Unsupported")
            if not is_typed or not result.message:find(path, 1, true) then
              error(("%s, variant %d: %s"):format(name, i, tostring(result)))
            end
          end
        end
        -- Neither everything nor nothing is wrong with them.
        assert.truthy(refused > variants // 4, name)
      end
    end)
    assert.truthy(support.descriptors() <= before)
    support.works(dev)
  end)
end)
