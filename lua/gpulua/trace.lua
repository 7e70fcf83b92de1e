-- What traced devices have done (gpu.device{ trace = true }, GPULUA_TRACE=1, gpulua --trace): as events and in files.
-- Of a device that several states share, what all of them have given it while this one had it.

local core = require "gpulua.core"

local trace = {}

local function fail_untraced()
  core.raise("StreamMisuse", "nothing is traced: no device was opened with trace = true",
    "gpu.device{ trace = true }, GPULUA_TRACE=1 or gpulua --trace FILE.json")
end

--- gpu.trace.logs() -> how far each log goes, and what was counted, and the spans: see core.trace_info; devices of one
-- name are told apart by a number. Nil where nothing is traced.
function trace.logs()
  local info, spans = core.trace_info()
  local counts, seen = {}, {}
  for _, device in ipairs(info or {}) do
    counts[device.name] = (counts[device.name] or 0) + 1
  end
  for _, device in ipairs(info or {}) do
    local name = device.name
    if counts[name] > 1 then
      seen[name] = (seen[name] or 0) + 1
      device.name = string.format("%s (%d)", name, seen[name])
    end
  end
  return info, spans
end

--- gpu.trace.info() -> the first of these.
function trace.info()
  return (trace.logs())
end

-- Of two uses of the same bytes, in which order of launching; nil: they do not conflict.
local function hazard(earlier_reads, earlier_writes, later_reads, later_writes)
  return earlier_writes and later_reads and "RAW" or earlier_writes and later_writes and "WAW"
    or earlier_reads and later_writes and "WAR" or nil
end

--- gpu.trace.reason(log, earlier, later) -> why one operation of a log waits for another: a text like "RAW 'data'",
-- from the first two uses that conflict; "order" where no memory says so (stream:wait, an allocation).
function trace.reason(log, earlier, later)
  local a, b = core.trace_uses(log, earlier), core.trace_uses(log, later)
  for i = 1, #a, 6 do
    for k = 1, #b, 6 do
      local is_same = a[i] == b[k] and (a[i + 3] == 0 or a[i + 2] < b[k + 3] and b[k + 2] < a[i + 3])
      local kind = is_same and hazard(a[i + 4], a[i + 5], b[k + 4], b[k + 5])
      if kind then
        return string.format("%s %s", kind, a[i + 1] ~= "" and "'" .. a[i + 1] .. "'" or "buffer " .. a[i])
      end
    end
  end
  return "order"
end

--- trace.arguments(log, number) -> a list with { name, type, is_pointer, value } for each argument of a launch; the
-- value of a pointer is the name of its buffer, with the byte where it is not the first; nil for NULL. Empty for what
-- is no launch.
function trace.arguments(log, number)
  local flat, list = table.pack(core.trace_arguments(log, number)), {}
  for i = 1, flat.n, 4 do
    list[#list + 1] = { name = flat[i] ~= "" and flat[i] or nil, type = flat[i + 1], is_pointer = flat[i + 2],
      value = flat[i + 3] }
  end
  return list
end

--- trace.argument_text(value[, kind]) -> as it is shown: integers in full, others to 9 digits.
function trace.argument_text(value, kind)
  if kind == "u64" and math.type(value) == "integer" and value < 0 then -- Lua's are signed
    local tens = (value >> 1) // 5
    return string.format("%d%d", tens, value - tens * 10)
  elseif math.type(value) == "float" then
    return string.format("%.9g", value)
  elseif type(value) == "table" then -- a complex number
    return string.format("{%.9g, %.9g}", value[1], value[2])
  end
  return tostring(value)
end

local uses_max <const> = 32 -- that are shown; a graph may have thousands, at each launch

--- trace.uses_text(log, number, has_bytes) -> what memory it uses and how, for people: "inout x, in y"; with which
-- bytes of it, if they want them; of many the first, and how many others.
function trace.uses_text(log, number, has_bytes)
  local uses, texts, others = core.trace_uses(log, number), {}, 0
  for i = 1, #uses, 6 do
    local block, label, from, to, is_read, is_written = table.unpack(uses, i, i + 5)
    if to > 0 and #texts == uses_max then
      others = others + 1
    elseif to > 0 then -- else a module's variables
      texts[#texts + 1] = string.format("%s %s%s", is_read and is_written and "inout" or is_written and "out" or "in",
        label ~= "" and label or "buffer " .. block, has_bytes and string.format("[%d..%d]", from, to) or "")
    end
  end
  texts[#texts + 1] = others > 0 and string.format("and %d other%s", others, others > 1 and "s" or "") or nil
  return table.concat(texts, ", ")
end

local function place(source, line)
  return source and string.format("%s:%d", source, line) or nil
end

local function seconds(ns, base)
  return ns ~= 0 and (ns - base) / 1e9 or nil
end

local function nodes_of(log, number, base)
  local nodes = core.trace_nodes(log, number)
  for _, node in ipairs(nodes) do
    node.begun, node.ended = seconds(node.begun, base), seconds(node.ended, base)
    node.where = place(node.source, node.line)
    node.source, node.line, node.is_shared = nil, nil, nil
  end
  return nodes
end

local function operation(log, name, number, base)
  local kind, label, kernel, source, line, task, stream, seq, asked, given, begun, ended, over, bytes, held, outcome,
    _, seat, stream_label, _, grid_x, grid_y, grid_z, block_x, block_y, block_z = core.trace_op(log, number)
  return { kind = kind, device = name, log = log, number = number, label = label, kernel = kernel,
    where = place(source, line), task = task ~= 0 and task or nil, seat = seat, stream = stream,
    stream_label = stream_label, seq = seq, asked = seconds(asked, base), given = seconds(given, base),
    begun = seconds(begun, base), ended = seconds(ended, base), over = seconds(over, base),
    bytes = bytes, held_bytes = held, outcome = outcome,
    grid = grid_x and { grid_x, grid_y, grid_z }, block = block_x and { block_x, block_y, block_z },
    arguments = grid_x and trace.arguments(log, number), nodes = kind == "graph" and nodes_of(log, number, base) or nil,
    waits = { core.trace_waits(log, number) } }
end

--- gpu.trace.events() -> iterator over events: each operation of each traced device in the order in which it was given
-- work, then what tasks did, with what they are at. An event is a table; times are seconds since tracing began.
--   kind        "launch", "library", "copy", "upload", "download", "fill", "mark", "graph": operations
--               "run": a task, or a main chunk that is none, ran; "wait": it waited, for `label`; "range": gpu.range,
--               where it is still open as far as it has come, in no certain place among the others
--   label       or ""
--   where       "file:line" of the call; of "run" where the task was spawned; nil where that is not known
--   task        its number; nil outside tasks
--   begun, ended  on the device, or of the span; nil where that is not known (it is not over, was skipped, check mode)
-- and of operations
--   device, stream, seq   which device, which of its streams, which place on it
--   stream_label          nil where the stream has none
--   seat                  of a shared device, where it was another state's: which one's, counted from 1 in the order
--                         in which they opened the device
--   log, number           its place in the logs, for gpu.trace.reason
--   asked, given, over    when the call began, when the device had it, and when the script's side knew that it was over
--   kernel, grid, block   of launches
--   arguments             of launches: a list of { name =, type =, is_pointer =, value = }, of pointers the buffer's
--                         name; "?" where it cannot be told
--   nodes                 of graphs: a list of { node =, kind =, label =, kernel =, where =, begun =, ended =, bytes =,
--                         in_body = } in the order of their beginnings; node counts from 1, and is the conditional
--                         node's of what is in a body (in_body is true), which is there each time that it was done; on
--                         CUDA by CUPTI alone
--   bytes, held_bytes     that it moves or uses; that buffers of the device took then
--   waits                 a list of the numbers in this log that it started behind; 0: one that is not in it
--   outcome               "succeeded", "failed", or "pending"
-- Raises StreamMisuse where nothing is traced. Blocks until the devices have told what they know.
function trace.events()
  local info, spans = trace.logs()
  if not info then
    fail_untraced()
  end
  local base, log, number = info.begun, 1, 0
  return function()
    while log <= #info do
      number = number + 1
      if number <= info[log].ops then
        return operation(log, info[log].name, number, base)
      end
      log, number = log + 1, 0
    end
    number = number + 1
    if number <= info.spans then
      local kind, label, source, line, task, begun, ended, of_log, of = core.trace_span(spans, number)
      return { kind = kind, label = label, where = place(source, line), task = task ~= 0 and task or nil,
        begun = seconds(begun, base), ended = seconds(ended, base), log = of ~= 0 and of_log or nil,
        number = of ~= 0 and of or nil }
    end
  end
end

--- gpu.trace.json(path): writes what is traced so far as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing:
-- see chrome_trace.lua. Blocks for the file, does not wait for work. StreamMisuse, Io, InvalidArgument.
function trace.json(path)
  if not core.trace_info() then
    fail_untraced()
  end
  require "gpulua.chrome_trace".write(path)
end

--- gpu.trace.timeline(path): writes what is traced so far as a page for any browser, which needs nothing else: lanes
-- for tasks and streams, fences, memory, what limited it, and waits that could be left out. Blocks for the file, does
-- not wait for work. StreamMisuse, Io, InvalidArgument.
function trace.timeline(path)
  if not core.trace_info() then
    fail_untraced()
  end
  require "gpulua.timeline".write(path)
end

local finish_s <const> = 5 -- for work that is in flight when the script has ended

local function message_of(err)
  return core.type(err) == "error" and err.message or tostring(err)
end

--- gpu.trace.finish(json_path, timeline_path, wants_summary, was_interrupted): at the end of a program. Waits a moment
-- for what is in flight, unless it was interrupted, then writes what it was asked for, each whatever comes of the
-- others. Raises the first error.
function trace.finish(json_path, timeline_path, wants_summary, was_interrupted)
  if not core.trace_info() then
    core.log "nothing is traced: no device was opened, but for those with trace = false"
    return
  end
  local till <const> = core.seconds() + finish_s -- for all of them
  for _, device in ipairs(was_interrupted and {} or core.devices()) do
    core.trace_settle(device, math.max(0, till - core.seconds()))
  end
  local failure
  local function try(f, ...)
    local ok, err = pcall(f, ...)
    if not ok and failure then
      core.log(message_of(err))
    end
    failure = failure or not ok and err or nil
  end
  if json_path then
    try(trace.json, json_path)
  end
  if timeline_path then
    try(trace.timeline, timeline_path)
  end
  if wants_summary then
    try(function() assert(io.stderr:write(tostring(require "gpulua.report".get()), "\n")) end)
  end
  if failure then
    error(message_of(failure), 0)
  end
end

return require "gpulua.entries"(trace)
