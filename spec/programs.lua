-- Random programs: launches, fills, copies, writes, reads, frees and allocations on eight streams and 64 buffers with
-- overlapping views, on a device and, one operation after the other, in Lua tables: the sequential model knows no
-- streams and no recorder. For programs_spec.lua and bench/random.lua.

local support = require "spec.support"

local programs = {}

local source = support.clock_source .. [[
  __device__ void linger(int ticks) {
    long long start = now();
    while (now() - start < ticks) { }
  }
  extern "C" __global__ void blend(int ticks, int n, const unsigned *a, const unsigned *b, unsigned *c, unsigned k) {
    linger(ticks);
    for (int i = threadIdx.x; i < n; i += blockDim.x) c[i] = c[i] * 31 + a[i] * 7 + b[n - 1 - i] + k;
  }
  extern "C" __global__ void make(int ticks, int n, const unsigned *a, unsigned *c, unsigned k) {
    linger(ticks);
    for (int i = threadIdx.x; i < n; i += blockDim.x) c[i] = a[i] * 5 + k;
  }
  extern "C" __global__ void halves(int ticks, int n, const unsigned short *a, unsigned short *c, int k) {
    linger(ticks);
    for (int i = threadIdx.x; i < n; i += blockDim.x) c[i] = a[i] + k;
  }
]]

local stream_count, buffer_count, host_count = 8, 64, 4
local lengths = { 1, 4, 8, 16, 32 } -- of views, in elements
local views_each = 3 -- of each length, at random places of a buffer
local ticks_slow = 5e-6 -- seconds that one launch of sixteen lingers

--- What programs need on a device, made once for many of them.
function programs.open(dev)
  local mod = dev:compile(source)
  local where = {
    dev = dev,
    ticks = support.ticks(dev, ticks_slow),
    blend = mod:kernel("blend", "i32, i32, in u32*, in u32*, inout u32*, u32"),
    make = mod:kernel("make", "i32, i32, in u32*, out u32*, u32"),
    halves = mod:kernel("halves", "i32, i32, in u16*, out u16*, i32"),
    streams = {},
  }
  for i = 1, stream_count do
    where.streams[i] = dev:stream {}
  end
  return where
end

function programs.close(where)
  for _, stream in ipairs(where.streams) do
    stream:close()
  end
end

--- A buffer with its views by length, and its model: `words`, from 1 on.
local function allocate(where, random, stream)
  local count = random(32, 160)
  local whole = where.dev:buffer("u32", count)
  local made = { whole = whole, count = count, words = {}, views = {} }
  local start = random(0, 0xffff)
  stream:use(whole.write, whole, function(i) return start + i end)
  for i = 1, count do
    made.words[i] = start + i
  end
  local halves = whole:view("u16", count * 2)
  made.refs = { whole, halves }
  for _, length in ipairs(lengths) do
    local list = {}
    for i = 1, views_each do
      local at = random(1, count - length + 1)
      local half = random(1, (count - length) * 2 + 1) -- also between two words
      list[i] = { of = made, at = at, slice = whole:slice(at, at + length - 1), half = half,
        half_slice = halves:slice(half, half + length - 1) }
      table.move({ list[i].slice, list[i].half_slice }, 1, 2, #made.refs + 1, made.refs)
    end
    made.views[length] = list
  end
  return made
end

local function get_half(words, half)
  return words[(half + 1) // 2] >> (half - 1) % 2 * 16 & 0xffff
end
local function set_half(words, half, value)
  local at, shift = (half + 1) // 2, (half - 1) % 2 * 16
  words[at] = words[at] & ~(0xffff << shift) | (value & 0xffff) << shift
end

local function differ(what, at, words, got)
  for i = 1, #got do
    if got[i] ~= words[at + i - 1] then
      return ("%s, element %d: %d, in order %d"):format(what, at + i - 1, got[i], words[at + i - 1])
    end
  end
end

--- Runs the program of that seed. Returns nil, or what differs.
function programs.run(where, seed, operation_count)
  local random, dev, streams = support.random(seed), where.dev, where.streams
  local buffers, hosts, difference = {}, {}, nil
  local config, ticks = { grid = 1, block = 1 }, 0
  for b = 1, buffer_count do
    buffers[b] = allocate(where, random, streams[b % stream_count + 1])
  end
  for h = 1, host_count do
    hosts[h] = { buffer = dev:host("u32", lengths[#lengths]), words = {} }
    hosts[h].buffer:write(function() return 0 end)
    for i = 1, lengths[#lengths] do
      hosts[h].words[i] = 0
    end
  end
  local function view(length)
    return buffers[random(1, buffer_count)].views[length][random(1, views_each)]
  end
  --- Another one that shares no byte with what is written: a kernel that reads that elsewhere races in itself.
  local function source_of(length, to, field)
    local from
    repeat
      from = view(length)
    until from.of ~= to.of or math.abs(from[field] - to[field]) >= length
    return from
  end

  local operations = {
    blend = function(_, length, k)
      local c = view(length)
      local a, b = source_of(length, c, "at"), source_of(length, c, "at")
      where.blend:launch(config, ticks, length, a.slice, b.slice, c.slice, k)
      local x, y, z = a.of.words, b.of.words, c.of.words
      local i, j, l = a.at, b.at + length - 1, c.at
      for _ = 1, length do
        z[l] = z[l] * 31 + x[i] * 7 + y[j] + k & 0xffffffff
        i, j, l = i + 1, j - 1, l + 1
      end
    end,
    make = function(_, length, k)
      local c = view(length)
      local a = source_of(length, c, "at")
      where.make:launch(config, ticks, length, a.slice, c.slice, k)
      local x, z, i = a.of.words, c.of.words, a.at
      for l = c.at, c.at + length - 1 do
        z[l] = x[i] * 5 + k & 0xffffffff
        i = i + 1
      end
    end,
    halves = function(_, length, k)
      local c = view(length)
      local a = source_of(length, c, "half")
      where.halves:launch(config, ticks, length, a.half_slice, c.half_slice, k)
      for i = 0, length - 1 do
        set_half(c.of.words, c.half + i, get_half(a.of.words, a.half + i) + k)
      end
    end,
    fill = function(stream, length, k)
      local c = view(length)
      stream:use(c.slice.fill, c.slice, k)
      for l = c.at, c.at + length - 1 do
        c.of.words[l] = k
      end
    end,
    copy = function(stream, length)
      local c = view(length)
      local a = source_of(length, c, "half")
      stream:use(c.half_slice.copy, c.half_slice, a.half_slice)
      for i = 0, length - 1 do
        set_half(c.of.words, c.half + i, get_half(a.of.words, a.half + i))
      end
    end,
    write = function(stream, length, k)
      local c, list = view(length), {}
      for i = 1, length do
        list[i] = k + i * 3
      end
      stream:use(c.slice.write, c.slice, list)
      table.move(list, 1, length, c.at, c.of.words)
    end,
    read = function(stream, length)
      local c = view(length)
      return differ("a read", c.at, c.of.words, stream:use(c.slice.read, c.slice))
    end,
    to_host = function(stream)
      local length, host = lengths[#lengths], hosts[random(1, host_count)]
      local a = view(length)
      stream:use(host.buffer.copy, host.buffer, a.slice)
      table.move(a.of.words, a.at, a.at + length - 1, 1, host.words)
    end,
    from_host = function(stream)
      local length, host = lengths[#lengths], hosts[random(1, host_count)]
      local c = view(length)
      stream:use(c.slice.copy, c.slice, host.buffer)
      table.move(host.words, 1, length, c.at, c.of.words)
    end,
    look = function()
      local host = hosts[random(1, host_count)]
      return differ("a host buffer", 1, host.words, host.buffer:read())
    end,
    free = function(stream)
      local b = random(1, buffer_count)
      if random(1, 2) == 1 then
        buffers[b].whole:free()
      end
      for _, ref in ipairs(buffers[b].refs) do
        ref:close()
      end
      buffers[b] = allocate(where, random, stream)
    end,
  }
  local shares = { blend = 34, make = 16, halves = 12, fill = 8, copy = 10, write = 6, to_host = 5, from_host = 5,
    read = 1, look = 1, free = 2 }
  local lot = {}
  for _, kind in ipairs { "blend", "make", "halves", "fill", "copy", "write", "to_host", "from_host", "read", "look",
    "free" } do
    for _ = 1, shares[kind] do
      lot[#lot + 1] = operations[kind]
    end
  end

  for number = 1, operation_count do
    local stream = streams[random(1, stream_count)]
    config.stream, config.block = stream, random(1, 32)
    ticks = random(1, 16) == 1 and where.ticks or 0
    local found = lot[random(1, #lot)](stream, lengths[random(1, #lengths)], random(0, 0xffff))
    difference = difference or found and ("operation %d: %s"):format(number, found)
  end
  for b, buffer in ipairs(buffers) do
    difference = difference or differ("buffer " .. b, 1, buffer.words, buffer.whole:read())
    for _, ref in ipairs(buffer.refs) do
      ref:close()
    end
  end
  for h, host in ipairs(hosts) do
    difference = difference or differ("host buffer " .. h, 1, host.words, host.buffer:read())
    host.buffer:close()
  end
  return difference
end

return programs
