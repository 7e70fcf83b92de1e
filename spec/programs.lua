-- Random programs: launches, fills, copies, writes, reads, frees and allocations on eight streams and 64 buffers with
-- overlapping views; graphs of them, launched with and without a handle, from tasks too, bound, updated, forked and
-- closed; waits and hooks now and then. On a device and, one operation after the other, in Lua tables: the sequential
-- model knows no streams, no recorder and no graphs. For programs_spec.lua and bench/random.lua.

local gpu = require "gpulua"
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
local graphs_max, nodes_max, tasks_max = 6, 4, 4

--- What programs need on a device, made once for many of them.
function programs.open(dev)
  local mod = dev:compile(source)
  local where = {
    dev = dev,
    ticks = support.ticks(ticks_slow),
    blend = mod:kernel("blend", "i32, i32, in u32*, in u32*, inout u32*, k: u32"),
    make = mod:kernel("make", "i32, i32, in u32*, out u32*, k: u32"),
    halves = mod:kernel("halves", "i32, i32, in u16*, out u16*, k: i32"),
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

--- What can be put on a stream, and into a graph: each makes a function that does it with a launch's configuration,
-- ticks and a number, and its model, which takes the number.
local function plans_of(where, random, buffers)
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
  return {
    blend = function(length)
      local c = view(length)
      local a, b = source_of(length, c, "at"), source_of(length, c, "at")
      return { kernel = "blend", views = { a, b, c }, work = function(config, ticks, k)
        where.blend:launch(config, ticks, length, a.slice, b.slice, c.slice, k)
      end, model = function(k)
        local x, y, z = a.of.words, b.of.words, c.of.words
        local i, j, l = a.at, b.at + length - 1, c.at
        for _ = 1, length do
          z[l] = z[l] * 31 + x[i] * 7 + y[j] + k & 0xffffffff
          i, j, l = i + 1, j - 1, l + 1
        end
      end }
    end,
    make = function(length)
      local c = view(length)
      local a = source_of(length, c, "at")
      return { kernel = "make", views = { a, c }, work = function(config, ticks, k)
        where.make:launch(config, ticks, length, a.slice, c.slice, k)
      end, model = function(k)
        local x, z, i = a.of.words, c.of.words, a.at
        for l = c.at, c.at + length - 1 do
          z[l] = x[i] * 5 + k & 0xffffffff
          i = i + 1
        end
      end }
    end,
    halves = function(length)
      local c = view(length)
      local a = source_of(length, c, "half")
      return { kernel = "halves", views = { a, c }, work = function(config, ticks, k)
        where.halves:launch(config, ticks, length, a.half_slice, c.half_slice, k)
      end, model = function(k)
        for i = 0, length - 1 do
          set_half(c.of.words, c.half + i, get_half(a.of.words, a.half + i) + k)
        end
      end }
    end,
    fill = function(length)
      local c = view(length)
      return { views = { c }, work = function(_, _, k) c.slice:fill(k) end, model = function(k)
        for l = c.at, c.at + length - 1 do
          c.of.words[l] = k
        end
      end }
    end,
    copy = function(length)
      local c = view(length)
      local a = source_of(length, c, "half")
      return { views = { a, c }, work = function() c.half_slice:copy(a.half_slice) end, model = function()
        for i = 0, length - 1 do
          set_half(c.of.words, c.half + i, get_half(a.of.words, a.half + i))
        end
      end }
    end,
    write = function(length)
      local c = view(length)
      local function list(k)
        local made = {}
        for i = 1, length do
          made[i] = k + i * 3
        end
        return made
      end
      return { views = { c }, work = function(_, _, k) c.slice:write(list(k)) end, model = function(k)
        table.move(list(k), 1, length, c.at, c.of.words)
      end }
    end,
  }
end

local planned = { "blend", "make", "halves", "fill", "copy", "write" }

--- Moves with graphs: functions of a stream. `finish` ends what they have begun: nil, or what is wrong.
local function graph_moves(where, random, plans)
  local dev, streams, graphs, tasks, held = where.dev, where.streams, {}, {}, {}
  local moves = {}

  local function new_nodes()
    local nodes, counts = {}, {}
    for i = 1, random(1, nodes_max) do
      local node = plans[planned[random(1, #planned)]](lengths[random(1, #lengths)])
      node.k, node.config = random(0, 0xffff), { grid = 1, block = random(1, 32) }
      node.ticks = random(1, 16) == 1 and where.ticks or 0
      if node.kernel then
        counts[node.kernel] = (counts[node.kernel] or 0) + 1
        node.place = ("%s#%d.k"):format(node.kernel, counts[node.kernel])
      end
      nodes[i] = node
    end
    return nodes
  end
  local function work_of(nodes)
    return function()
      for _, node in ipairs(nodes) do
        node.work(node.config, node.ticks, node.k)
      end
    end
  end
  local function uses_freed(graph)
    for _, node in ipairs(graph.nodes) do
      for _, v in ipairs(node.views) do
        if v.of.is_freed then return true end
      end
    end
    return false
  end
  local function close(graph)
    graph.graph:close()
    graph.is_closed = true
    for i, other in ipairs(graphs) do
      if other == graph then table.remove(graphs, i) end
    end
  end
  --- One that can be launched; what uses freed memory says so, and goes.
  local function any()
    local graph = graphs[1] and graphs[random(1, #graphs)]
    if graph and uses_freed(graph) then
      support.raises("UseAfterFree", {}, graph.graph.launch, graph.graph)
      close(graph)
      return nil
    end
    return graph
  end
  local function replay(graph, config, wants_handle)
    local op
    if wants_handle then
      op = graph.graph:launch(config)
    else
      graph.graph:launch(config) -- nobody has a handle on it
    end
    for _, node in ipairs(graph.nodes) do
      node.model(node.k)
    end
    return op
  end

  function moves.capture()
    if #graphs == graphs_max then
      close(graphs[random(1, #graphs)]) -- launches under way go on
    end
    local nodes = new_nodes()
    graphs[#graphs + 1] = { nodes = nodes, graph = dev:capture(work_of(nodes)) }
  end
  function moves.replay(stream)
    local graph, config = any(), { stream = stream }
    for _ = 1, graph and (random(1, 12) == 1 and random(20, 150) or random(1, 4)) or 0 do
      replay(graph, config)
    end
  end
  --- Two graphs by turns, on one stream or on two.
  function moves.turns(stream)
    local a, b = any(), any()
    local other = random(1, 2) == 1 and stream or streams[random(1, stream_count)]
    for _ = 1, a and b and random(1, 8) or 0 do
      replay(a, { stream = stream })
      replay(b, { stream = other })
    end
  end
  function moves.hold(stream)
    local graph, what = any(), random(1, 6)
    local op = graph and replay(graph, { stream = stream }, true)
    if not op then
      return
    elseif what == 1 then
      op:await()
    elseif what == 2 then
      held.asked = (held.asked or 0) + 1
      op:on_done(function(ok) held.told = (held.told or 0) + (ok and 1 or 0) end)
    elseif what == 3 then
      op:deadline(600)
    elseif what == 4 then
      held[#held + 1] = op
    elseif what == 5 and held[1] then
      assert(table.remove(held, random(1, #held)):join(600))
    end
  end
  function moves.bind()
    local graph, places = any(), {}
    for _, node in ipairs(graph and graph.nodes or {}) do
      if node.place and random(1, 2) == 1 then
        node.k = random(0, 0xffff)
        places[node.place] = node.k
      end
    end
    if next(places) then
      graph.graph:bind(places)
    end
  end
  function moves.update()
    local graph, nodes = any(), new_nodes()
    if graph then
      graph.graph:update(work_of(nodes))
      graph.nodes = nodes
    end
  end
  function moves.fork()
    local graph = #graphs < graphs_max and any()
    if graph then
      local nodes = {}
      for i, node in ipairs(graph.nodes) do
        nodes[i] = setmetatable({}, { __index = node }) -- with a number of its own
        nodes[i].k = node.k
      end
      graphs[#graphs + 1] = { nodes = nodes, graph = graph.graph:fork() }
    end
  end
  function moves.wait(stream)
    local what = random(1, 6)
    if what <= 2 then
      stream:wait(streams[random(1, stream_count)])
    elseif what == 3 then
      stream:mark()
    elseif what == 4 then
      stream:mark():await()
    elseif what == 5 then
      stream:synchronize()
    else
      dev:synchronize()
    end
  end
  function moves.stream()
    local i = random(1, stream_count)
    streams[i]:close() -- what is on it goes on
    streams[i] = dev:stream {}
  end
  local may_hook <const> = pcall(dev.hooks, dev, nil) -- not where other threads work on it, too
  function moves.hooks()
    if not may_hook then
      return
    end
    moves.is_hooked = not moves.is_hooked
    dev:hooks(moves.is_hooked and { after_complete = function() end } or nil)
  end
  --- A task that launches, and may be cancelled. What it does comes when somebody waits.
  function moves.task()
    if support.is_checked() then
      return -- which would find that only time decides
    end
    local graph, count, at = any(), random(1, 20), random(1, stream_count)
    if #tasks == tasks_max then
      local task = table.remove(tasks, random(1, #tasks))
      if random(1, 2) == 1 then
        task:cancel()
      end
      task:join()
    end
    tasks[#tasks + 1] = graph and gpu.spawn(function()
      for i = 1, count do
        if graph.is_closed or uses_freed(graph) then
          return
        end
        local op = replay(graph, { stream = i % 4 > 0 and streams[at] or nil }, i % 5 == 0)
        if op and i % 2 == 0 then
          op:await()
        else
          gpu.sleep(0)
        end
      end
    end)
  end

  function moves.finish()
    for i, task in ipairs(tasks) do
      if i % 2 == 0 then
        task:cancel()
      end
      task:join()
    end
    while graphs[1] do
      close(graphs[1])
    end
    if may_hook then
      dev:hooks(nil)
    end
    for _, op in ipairs(held) do
      assert(op:join(600))
    end
    if not support.eventually(60, function() return held.asked == held.told end) then
      return ("%d of %d were told of"):format(held.told or 0, held.asked)
    end
  end
  return moves
end

local shares = { "blend", 34, "make", 16, "halves", 12, "fill", 8, "copy", 10, "write", 6, "to_host", 5, "from_host", 5,
  "read", 1, "look", 1, "free", 2, "capture", 1, "replay", 10, "turns", 3, "hold", 4, "bind", 2, "update", 1, "fork", 1,
  "wait", 3, "stream", 1, "hooks", 1, "task", 1 }

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
  local plans = plans_of(where, random, buffers)
  local moves = graph_moves(where, random, plans)

  local operations = setmetatable({
    read = function(stream, length)
      local c = view(length)
      local words = table.move(c.of.words, c.at, c.at + length - 1, c.at, {}) -- tasks go on meanwhile
      return differ("a read", c.at, words, stream:use(c.slice.read, c.slice))
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
        buffers[b].is_freed = true
      end
      for _, ref in ipairs(buffers[b].refs) do
        ref:close()
      end
      buffers[b] = allocate(where, random, stream)
    end,
  }, { __index = moves })
  for name, plan in pairs(plans) do
    operations[name] = function(stream, length, k)
      local made = plan(length)
      stream:use(made.work, config, ticks, k)
      made.model(k)
    end
  end
  local lot = {}
  for i = 1, #shares, 2 do
    for _ = 1, shares[i + 1] do
      lot[#lot + 1] = operations[shares[i]]
    end
  end

  for number = 1, operation_count do
    local stream = streams[random(1, stream_count)]
    config.stream, config.block = stream, random(1, 32)
    ticks = random(1, 16) == 1 and where.ticks or 0
    local found = lot[random(1, #lot)](stream, lengths[random(1, #lengths)], random(0, 0xffff))
    difference = difference or found and ("operation %d: %s"):format(number, found)
  end
  difference = moves.finish() or difference
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
