-- Three programs on several streams, and how many waits their order needs: fork and join, a stencil in parts, a
-- random graph. For edges_spec.lua and bench/edges.lua.

local gpu = require "gpulua"
local seeds = require "gpulua.seeds"

local edges = {}

local source = [[
  extern "C" __global__ void map(int n, const int *x, int *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 3 + 1;
  }
  extern "C" __global__ void add(int n, const int *x, int *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
  }
  extern "C" __global__ void stencil(int n, const int *left, const int *x, const int *right, int *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (i > 0 ? x[i - 1] : left[0]) + x[i] + (i + 1 < n ? x[i + 1] : right[0]);
  }
  extern "C" __global__ void join3(int n, const int *a, const int *b, const int *c, int *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a[i] + b[i] - c[i];
  }]]

local n = 32

local function on(stream)
  return { grid = 1, block = n, stream = stream }
end

local function streams_of(dev, count)
  local streams = {}
  for i = 1, count do
    streams[i] = dev:stream {}
  end
  return streams
end

--- One source, a chain on each of eight streams, and all of them added up, three times over.
function edges.fork_join(dev, mod)
  local streams = streams_of(dev, 8)
  local x, sum = dev:buffer("i32", n):fill(1), dev:buffer("i32", n):fill(0)
  local parts = {}
  for i = 1, #streams do
    parts[i] = dev:buffer("i32", n)
  end
  for _ = 1, 3 do
    for i, stream in ipairs(streams) do
      mod.map:launch(on(stream), n, x, parts[i])
      mod.add:launch(on(stream), n, x, parts[i])
    end
    for i = 1, #streams do
      mod.add:launch(on(streams[1]), n, parts[i], sum)
    end
    mod.map:launch(on(streams[1]), n, sum, x)
  end
  return { x, sum }
end

--- A line in eight parts, each on a stream of its own, that reads the ends of its neighbours; ten steps between two
--- buffers.
function edges.stencil(dev, mod)
  local part_count = 8
  local streams = streams_of(dev, part_count)
  local from, to = dev:buffer("i32", n * part_count):fill(1), dev:buffer("i32", n * part_count):fill(0)
  for _ = 1, 10 do
    for p = 1, part_count do
      local first, last = (p - 1) * n + 1, p * n
      local left, right = math.max(first - 1, 1), math.min(last + 1, n * part_count)
      mod.stencil:launch(on(streams[p]), n, from:slice(left, left), from:slice(first, last), from:slice(right, right),
        to:slice(first, last))
    end
    from, to = to, from
  end
  return { from, to }
end

--- 200 operations on eight streams (or `stream_count`), each of three of twelve buffers into a fourth.
function edges.random(dev, mod, seed, stream_count)
  local state = seed or 1
  local function random(count)
    state = state * 6364136223846793005 + 1442695040888963407
    return (state >> 33) % count + 1
  end
  local streams, buffers = streams_of(dev, stream_count or 8), {}
  for i = 1, 12 do
    buffers[i] = dev:buffer("i32", n):fill(i)
  end
  for _ = 1, 200 do
    local chosen, taken = {}, {}
    while #chosen < 4 do
      local i = random(#buffers)
      if not taken[i] then
        taken[i] = true
        chosen[#chosen + 1] = buffers[i]
      end
    end
    mod.join3:launch(on(streams[random(#streams)]), n, table.unpack(chosen))
  end
  return buffers
end

edges.programs = { "fork_join", "stencil", "random" }

--- Runs a program on a checked device, with these arguments behind the module. Returns its operations as they were
--- submitted (dev:order()'s entries) and the bytes of all that it made, "" if any of it failed.
function edges.run(name, opts, ...)
  opts.check = true
  local dev <close> = gpu.device("cpu", opts)
  local contents = {}
  for i, buffer in ipairs(edges[name](dev, dev:compile(source), ...)) do
    local ok, bytes = pcall(buffer.bytes, buffer)
    contents[i] = ok and bytes or ""
  end
  while not pcall(dev.synchronize, dev) do -- each failure wants to be seen
    contents = {}
  end
  local order = dev:order()
  table.sort(order, function(a, b)
    return math.tointeger(a.name:match "%d+$") < math.tointeger(b.name:match "%d+$")
  end)
  return order, table.concat(contents)
end

local function overlap(a, b)
  return a[1] == b[1] and a[2] < b[3] and b[2] < a[3]
end

--- Edges between streams that the order needs: those of the transitive reduction of "on one stream, or in conflict".
function edges.needed(order)
  local behind, count = {}, 0 -- of each operation, those that it comes after
  for i, op in ipairs(order) do
    behind[i] = {}
    for k = i - 1, 1, -1 do -- the nearest first: what they are behind is no edge of its own
      if not behind[i][k] and (op.stream == order[k].stream or seeds.conflict(op, order[k])) then
        count = count + (op.stream ~= order[k].stream and 1 or 0)
        behind[i][k] = true
        for other in pairs(behind[k]) do
          behind[i][other] = true
        end
      end
    end
  end
  return count
end

--- Waits of a scheme that looks at each argument alone, remembers each buffer's last write and the reads since, and
--- nothing else.
function edges.naive(order)
  local count = 0
  for i, op in ipairs(order) do
    for _, use in ipairs(op.uses) do
      local seen = {}
      for k = i - 1, 1, -1 do
        local is_written = false
        for _, other in ipairs(order[k].uses) do
          if overlap(use, other) then
            local writes = other[4] & 2 ~= 0
            if (writes or use[4] & 2 ~= 0) and order[k].stream ~= op.stream and not seen[order[k].stream] then
              seen[order[k].stream] = true
              count = count + 1
            end
            is_written = is_written or writes
          end
        end
        if is_written then
          break
        end
      end
    end
  end
  return count
end

--- Waits that the runtime has made.
function edges.issued(order)
  local count = 0
  for _, op in ipairs(order) do
    count = count + #op.waits
  end
  return count
end

return edges
