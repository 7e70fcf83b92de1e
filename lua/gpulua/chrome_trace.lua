-- A trace as JSON, in the format of Chrome's trace viewer, which Perfetto reads.
--
-- One process for the script with a lane for each task: what it ran, what it waited for (category "wait") and the calls
-- that gave work, one in the other; ranges on lanes of their own, and so the calls of other states that share a device.
-- One process for each device with a lane for each
-- stream, arrows for fences with their reason, lanes for the nodes of the graphs that a stream launched, and counters
-- for its memory and for the operations in flight.
-- Source: "Trace Event Format", the Chrome project's document of it; times are microseconds.

local core = require "gpulua.core"
local file = require "gpulua.file"
local trace = require "gpulua.trace"

local chrome_trace = {}

local script_pid <const> = 1
local device_pid <const> = 10 -- of the first device
local task_lanes_max <const> = 256 -- more tasks share lanes, one behind the other
local range_lane <const> = 2000000000 -- the first lane of ranges: behind those of tasks
local seat_lane <const> = 1500000000 -- those of other states, by their seats
local node_lane <const> = 1000000000 -- the first lane of nodes: behind those of streams
local node_lanes_max <const> = 1000 -- of a stream; nothing has that many side by side
local pieces_max <const> = 4096 -- between two writes

local escapes <const> = { ['"'] = '\\"', ["\\"] = "\\\\" }

-- Any bytes as a JSON string that does no harm where it is shown, cut to at most so many bytes, as core.shown has it.
local function json(text, bytes)
  return '"' .. string.gsub(core.shown(text, bytes), '["\\]', escapes) .. '"'
end

local quoted_texts = {} -- of what is being written
-- The same, for texts that come again and again.
local function quoted(text)
  local known = quoted_texts[text]
  if not known then
    known = json(text)
    quoted_texts[text] = known
  end
  return known
end

-- Times are microseconds. Perfetto cuts them to whole nanoseconds (4.035 is 4034.999... of them), others add them up in
-- floating point: so that what ends where something else begins is not taken for something that crosses it, times lie
-- half a nanosecond behind, and lengths end 0.2 ns before, their own.
local function stamp(ns)
  return string.format("%d.%03d5", ns // 1000, ns % 1000)
end

local function length(ns)
  return ns > 0 and string.format("%d.%03d8", (ns - 1) // 1000, (ns - 1) % 1000) or "0"
end

local function place(source, line)
  return source and string.format(',"line":%s', quoted(string.format("%s:%d", source, line))) or ""
end

-- A binary heap: push(item), pop() of the first, and the items, of which [1] is the first.
local function heap(is_before)
  local items = {}
  local function push(item)
    local at = #items + 1
    while at > 1 and is_before(item, items[at // 2]) do
      items[at] = items[at // 2]
      at = at // 2
    end
    items[at] = item
  end
  local function pop()
    local first, last = items[1], table.remove(items)
    local at = 1
    while #items > 0 do
      local child = 2 * at
      if child < #items and is_before(items[child + 1], items[child]) then
        child = child + 1
      end
      if child > #items or not is_before(items[child], last) then
        items[at] = last
        break
      end
      items[at] = items[child]
      at = child
    end
    return first
  end
  return push, pop, items
end

-- Lanes on which nothing overlaps, maybe thousands: take(begun) gives the first that is free then, until `ended`.
local function lanes(first)
  local ends, count = {}, 0
  local push_busy, pop_busy, busy = heap(function(a, b) return ends[a] < ends[b] end)
  local push_free, pop_free, free = heap(function(a, b) return a < b end)
  return function(begun, ended)
    while busy[1] and ends[busy[1]] <= begun do
      push_free(pop_busy())
    end
    local is_new = not free[1] or ends[free[1]] > begun -- of what came in another order
    count = is_new and count + 1 or count
    local lane = is_new and count or pop_free()
    ends[lane] = ended
    push_busy(lane)
    return first + lane - 1, is_new
  end
end

-- Of each task the lane: its own, or where there are many one that it has from its first event to its last.
local function lanes_of_tasks(info, spans)
  local first, last, order, count = {}, {}, {}, 0
  local function see(task, begun, ended)
    if task ~= 0 then
      if not first[task] then
        count = count + 1
        order[count] = task
        first[task], last[task] = begun, ended
      else
        first[task], last[task] = math.min(first[task], begun), math.max(last[task], ended)
      end
    end
  end
  for number = 1, info.spans do
    local _, _, _, _, task, begun, ended = core.trace_span(spans, number)
    see(task, begun, ended)
  end
  for log, device in ipairs(info) do
    for number = 1, device.ops do
      local _, _, _, _, _, task, _, _, asked, given = core.trace_op(log, number)
      see(task, asked, given)
    end
  end
  local lane_of, take = { [0] = 0 }, lanes(1)
  table.sort(order, function(a, b) return first[a] < first[b] or first[a] == first[b] and a < b end)
  for _, task in ipairs(order) do
    lane_of[task] = count <= task_lanes_max and task or take(first[task], last[task])
  end
  return lane_of, count > task_lanes_max
end

local writer = {}
writer.__index = writer

function writer:add(...)
  self.count = self.count + 1
  self[self.count] = (self.is_empty and "" or ",\n") .. string.format(...)
  self.is_empty = false
  if self.count == pieces_max then
    self:flush()
  end
end

function writer:flush()
  self.to:write(table.concat(self, "", 1, self.count))
  self.count = 0
end

local function name_lane(out, pid, lane, name, order)
  out:add('{"ph":"M","pid":%d,"tid":%d,"name":"thread_name","args":{"name":%s}}', pid, lane, quoted(name))
  out:add('{"ph":"M","pid":%d,"tid":%d,"name":"thread_sort_index","args":{"sort_index":%d}}', pid, lane, order or lane)
end

-- ---- the script ----

local function write_spans(out, info, spans, base, lane_of)
  local range_lanes, ranges = lanes(range_lane), {}
  for number = 1, info.spans do
    local kind, label, source, line, task, begun, ended, log, of = core.trace_span(spans, number)
    if kind == "range" then
      ranges[#ranges + 1] = number -- in the order of their beginnings, below
    else
      local is_wait = kind == "wait"
      local name = is_wait and "wait: " .. label or source and string.format("task %d, %s:%d", task, source, line)
        or "main chunk"
      out:add('{"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,"cat":"%s","name":%s%s,"args":{"task":%d%s%s}}', script_pid,
        lane_of[task], stamp(begun - base), length(ended - begun), kind, quoted(name),
        is_wait and ',"cname":"bad"' or "",
        task,
        is_wait and place(source, line) or "",
        of ~= 0 and string.format(',"operation":"%d of %s"', of, info[log].name) or "")
    end
  end
  table.sort(ranges, function(a, b)
    local begun_a, begun_b = select(6, core.trace_span(spans, a)), select(6, core.trace_span(spans, b))
    return begun_a < begun_b or begun_a == begun_b and a < b
  end)
  for _, number in ipairs(ranges) do
    local _, label, source, line, task, begun, ended = core.trace_span(spans, number)
    local lane, is_new = range_lanes(begun, ended)
    if is_new then
      name_lane(out, script_pid, lane, "ranges")
    end
    out:add('{"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,"cat":"range","name":%s,"args":{"task":%d%s}}', script_pid,
      lane, stamp(begun - base), length(ended - begun), quoted(label), task, place(source, line))
  end
end

-- ---- devices ----

local function used_text(log, number)
  local text = trace.uses_text(log, number, true)
  return text ~= "" and string.format(',"uses":%s', json(text, math.maxinteger)) or ""
end

local function arguments_text(log, number)
  local texts = {}
  for i, argument in ipairs(trace.arguments(log, number)) do
    texts[i] = string.format("%s = %s", argument.name or "argument " .. i,
      trace.argument_text(argument.value, argument.type))
  end
  return #texts > 0 and string.format(',"arguments":%s', json(table.concat(texts, ", "), math.maxinteger)) or ""
end

-- `undrawn`: operations that had no times when it was their turn.
local function write_waits(out, log, pid, number, stream, begun, base, next_id, undrawn)
  for _, awaited in ipairs { core.trace_waits(log, number) } do
    if awaited ~= 0 and not undrawn[awaited] then
      local _, _, _, _, _, _, from_stream, _, _, _, from_begun, from_ended = core.trace_op(log, awaited)
      if from_ended ~= 0 then
        local reason = quoted(trace.reason(log, awaited, number))
        -- In the slices that it joins: both ends belong to those.
        out:add('{"ph":"s","pid":%d,"tid":%d,"ts":%s,"id":%d,"cat":"fence","name":%s}', pid, from_stream,
          stamp(math.max(from_begun, from_ended - 2) - base), next_id, reason)
        out:add('{"ph":"f","bp":"e","pid":%d,"tid":%d,"ts":%s,"id":%d,"cat":"fence","name":%s}', pid, stream,
          stamp(math.max(begun, from_ended) - base), next_id, reason)
        next_id = next_id + 1
      end
    end
  end
  return next_id
end

-- How many operations the device had and had not done, whenever that changes. Both lists are sorted, by streams.
local function write_in_flight(out, pid, given, ended_by_stream, base)
  local heads, count, at = {}, 0, 1
  for stream, ends in pairs(ended_by_stream) do
    table.sort(ends)
    heads[#heads + 1] = { ends = ends, at = 1, stream = stream }
  end
  table.sort(given)
  while true do
    local first
    for _, head in ipairs(heads) do
      local time = head.ends[head.at]
      if time and (not first or time < first.ends[first.at]) then
        first = head
      end
    end
    local begins, ends = given[at], first and first.ends[first.at]
    if not begins and not ends then
      return
    elseif begins and (not ends or begins <= ends) then
      count, at = count + 1, at + 1
    else
      count, first.at = count - 1, first.at + 1
    end
    local time = begins and (not ends or begins <= ends) and begins or ends
    out:add('{"ph":"C","pid":%d,"tid":0,"ts":%s,"name":"operations in flight","args":{"operations":%d}}', pid,
      stamp(time - base), count)
  end
end

local function stream_name(number, label)
  return label and string.format("stream %d (%s)", number, label) or "stream " .. number
end

-- `take`: the stream's lanes for nodes; `name`: the stream's.
local function write_nodes(out, log, pid, number, stream, name, take, base)
  for _, node in ipairs(core.trace_nodes(log, number)) do
    local lane, is_new = take(node.begun, node.ended)
    if is_new then
      local order = stream * node_lanes_max + lane % node_lanes_max + 1
      name_lane(out, pid, lane, name .. ", nodes", order)
    end
    out:add('{"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,"cat":%s,"name":%s,"args":{"number":%d,"node":%d,'
      .. '"bytes":%d%s%s}}', pid, lane, stamp(node.begun - base), length(node.ended - node.begun), quoted(node.kind),
      quoted(node.label), number, node.node, node.bytes,
      node.kernel and string.format(',"kernel":%s', quoted(node.kernel)) or "", place(node.source, node.line))
  end
end

local function write_device(out, info, log, base, lane_of, next_id)
  local device, pid = info[log], device_pid + log - 1
  local streams, given_times, ended_by_stream, held_before = {}, {}, {}, -1
  local node_lanes, undrawn, is_named = {}, {}, {}
  out:add('{"ph":"M","pid":%d,"name":"process_name","args":{"name":%s}}', pid, quoted("device " .. device.name))
  out:add('{"ph":"M","pid":%d,"name":"process_sort_index","args":{"sort_index":%d}}', pid, pid)
  for number = 1, device.ops do
    local kind, label, kernel, source, line, task, stream, seq, asked, given, begun, ended, over, bytes, held, outcome,
      _, seat, stream_label, _, grid_x, grid_y, grid_z, block_x, block_y, block_z =
      core.trace_op(log, number)
    if seat and not is_named[seat] then
      is_named[seat] = true
      name_lane(out, script_pid, seat_lane + seat, string.format("calls of seat %d", seat))
    end
    out:add('{"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,"cat":"call","name":%s,"args":{"number":%d%s%s}}', script_pid,
      seat and seat_lane + seat or lane_of[task], stamp(asked - base), length(given - asked), quoted(label), number,
      place(source, line), outcome == "failed" and ',"failed":true' or "")
    if held ~= held_before then
      held_before = held
      out:add('{"ph":"C","pid":%d,"tid":0,"ts":%s,"name":"bytes in buffers","args":{"bytes":%d}}', pid,
        stamp(given - base), held)
    end
    -- What has no times of the device is in flight until it is known to be over.
    local is_timed = ended ~= 0
    given_times[#given_times + 1] = is_timed and math.min(given, begun) or given
    if is_timed or over ~= 0 then
      local ends = ended_by_stream[stream] or {}
      ended_by_stream[stream] = ends
      ends[#ends + 1] = is_timed and ended or math.max(over, given)
    end
    if is_timed then
      if not streams[stream] then
        streams[stream] = true
        name_lane(out, pid, stream, stream_name(stream, stream_label), stream * node_lanes_max)
        node_lanes[stream] = lanes(node_lane + stream * node_lanes_max)
      end
      local shape = grid_x and string.format(',"grid":"%d x %d x %d","block":"%d x %d x %d"', grid_x, grid_y, grid_z,
        block_x, block_y, block_z) or ""
      out:add('{"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,"cat":%s,"name":%s,"args":{"number":%d,"seq":%d,"task":%d,'
        .. '"bytes":%d,"queued_us":%s%s%s%s%s%s%s%s}}', pid, stream, stamp(begun - base), length(ended - begun),
        quoted(kind), quoted(label), number, seq, task, bytes, length(begun - given),
        kernel and string.format(',"kernel":%s', quoted(kernel)) or "", shape, place(source, line),
        used_text(log, number), grid_x and arguments_text(log, number) or "",
        outcome == "failed" and ',"failed":true' or "",
        seat and string.format(',"seat":%d', seat) or "")
      if kind == "graph" then
        write_nodes(out, log, pid, number, stream, stream_name(stream, stream_label), node_lanes[stream], base)
      end
      next_id = write_waits(out, log, pid, number, stream, begun, base, next_id, undrawn)
    else
      undrawn[number] = true
    end
  end
  write_in_flight(out, pid, given_times, ended_by_stream, base)
  return next_id
end

-- What could not be kept, for whoever reads the trace.
local function dropped_text(info)
  local dropped = info.dropped
  for _, device in ipairs(info) do
    dropped = dropped + device.dropped
  end
  return dropped
end

--- Writes all that is traced to the file. Io, InvalidArgument.
function chrome_trace.write(path)
  local info, spans = trace.logs()
  local to <close> = file.create(path, "trace")
  local out = setmetatable({ to = to, count = 0, is_empty = true }, writer)
  local base, next_id = info.begun, 1
  local lane_of, are_shared = lanes_of_tasks(info, spans)
  to:write '{"displayTimeUnit":"ns","traceEvents":[\n'
  out:add('{"ph":"M","pid":%d,"name":"process_name","args":{"name":"script"}}', script_pid)
  local is_named = {}
  for task, lane in pairs(lane_of) do
    if not is_named[lane] then
      is_named[lane] = true
      name_lane(out, script_pid, lane,
        task == 0 and "outside tasks" or are_shared and "tasks" or "task " .. task)
    end
  end
  write_spans(out, info, spans, base, lane_of)
  for log = 1, #info do
    next_id = write_device(out, info, log, base, lane_of, next_id)
  end
  quoted_texts = {}
  out:flush()
  to:write(string.format('\n],"otherData":{"program":"gpulua %s","monotonic_begin_ns":"%d","dropped":"%d"}}\n',
    core.version, base, dropped_text(info)))
  to:finish()
end

return chrome_trace
