-- Where the time and the memory of a program went: tables from what its traced devices have done.

local core = require "gpulua.core"
local trace = require "gpulua.trace"
local trace_rows <const> = require "gpulua.trace_rows"

local report = {}

local rows_max <const> = 20 -- of a table that is shown; the report itself has all

local function at_part(sorted, part)
  return sorted[math.max(1, math.ceil(#sorted * part))]
end

local function by_total(a, b)
  return a.total > b.total or a.total == b.total and a.name < b.name
end

-- Rows by name, made when first asked for: a list whose rows are also found by what they are of.
local function table_of(make)
  local rows, by_name = {}, {}
  return rows, function(name)
    local row = by_name[name]
    if not row then
      row = make(name)
      by_name[name] = row
      rows[#rows + 1] = row
    end
    return row
  end
end

local is_transfer <const> = { copy = true, upload = true, download = true }

-- What the nodes of a launched graph took, each as if it had been given alone; false: nobody has told.
local function add_nodes(log, number, label, add, other)
  local nodes, rest = core.trace_nodes(log, number)
  for _, node in ipairs(nodes) do
    add(node.kind, trace_rows.of_node(node), node.ended - node.begun, node.bytes, other)
  end
  if rest > 0 then
    add("graph", label .. ": conditional nodes", rest, 0, other)
  end
  return #nodes > 0
end

local function device_of(info, log)
  local device = info[log]
  local kernels, kernel_of = table_of(function(name) return { name = name, count = 0, total = 0, times = {} } end)
  local copies, copy_of = table_of(function(name) return { name = name, count = 0, total = 0, bytes = 0 } end)
  local others, other_of = table_of(function(seat) return { seat = seat, operations = 0, total = 0 } end)
  local first, last, busy, busy_until, operations, untimed, failed = nil, nil, 0, 0, 0, 0, 0
  local spans, begun_of, ended_of = {}, {}, {}
  local function add(kind, name, took, bytes, other)
    if other then
      other.total = other.total + took
      return
    end
    local row = is_transfer[kind] and copy_of(kind) or kernel_of(name)
    row.count, row.total = row.count + 1, row.total + took
    if row.times then
      row.times[#row.times + 1] = took
    else
      row.bytes = row.bytes + bytes
    end
  end
  for number = 1, device.ops do
    local kind, label, kernel, source, line, _, _, _, _, _, begun, ended, _, bytes, _, outcome, _, seat, _, is_shared =
      core.trace_op(log, number)
    local other = seat and other_of(seat)
    if other then
      other.operations = other.operations + 1
    else
      operations = operations + 1
      failed = failed + (outcome == "failed" and 1 or 0)
    end
    if ended ~= 0 and kind ~= "mark" then
      first, last = math.min(first or begun, begun), math.max(last or ended, ended)
      spans[#spans + 1], begun_of[number], ended_of[number] = number, begun, ended
      if kind ~= "graph" or not add_nodes(log, number, label, add, other) then
        add(kind, trace_rows.of(label, kernel, is_shared, source, line), ended - begun, bytes, other)
      end
    elseif not other and kind ~= "mark" then
      untimed = untimed + 1
    end
  end
  -- Any work under way: operations in the order of their beginnings, which on several streams is not that of the log.
  table.sort(spans, function(a, b) return begun_of[a] < begun_of[b] or begun_of[a] == begun_of[b] and a < b end)
  for _, number in ipairs(spans) do
    busy = busy + math.max(0, ended_of[number] - math.max(begun_of[number], busy_until))
    busy_until = math.max(busy_until, ended_of[number])
  end
  local work = 0
  for _, row in ipairs(kernels) do work = work + row.total end
  for _, row in ipairs(copies) do work = work + row.total end
  for _, row in ipairs(others) do work = work + row.total end
  for _, row in ipairs(kernels) do
    table.sort(row.times)
    row.median, row.p99, row.longest = at_part(row.times, 0.5) / 1e9, at_part(row.times, 0.99) / 1e9,
      row.times[#row.times] / 1e9
    row.share, row.total, row.times = work > 0 and row.total / work or 0, row.total / 1e9, nil
  end
  for _, row in ipairs(copies) do
    row.share, row.total = work > 0 and row.total / work or 0, row.total / 1e9
    row.rate = row.total > 0 and row.bytes / row.total or nil
  end
  for _, row in ipairs(others) do
    row.share, row.total = work > 0 and row.total / work or 0, row.total / 1e9
  end
  table.sort(kernels, by_total)
  table.sort(copies, by_total)
  table.sort(others, function(a, b) return a.total > b.total or a.total == b.total and a.seat < b.seat end)
  local peaks = {}
  for name, bytes in pairs(device.peaks) do
    peaks[#peaks + 1] = { name = name, bytes = bytes }
  end
  table.sort(peaks, function(a, b) return a.bytes > b.bytes or a.bytes == b.bytes and a.name < b.name end)
  return { name = device.name, operations = operations, dropped = device.dropped, untimed = untimed, failed = failed,
    kernels = kernels,
    copies = copies, others = others, elapsed = first and (last - first) / 1e9 or 0, busy = busy / 1e9,
    compiled = { count = device.compilations, total = device.compile_ns / 1e9, from_cache = device.cache_hits },
    fences = { issued = device.waits_issued, left_out = device.waits_elided }, peak_bytes = device.bytes_live_max,
    peaks = peaks }
end

local function by_begin(a, b)
  return a.begun < b.begun
end

-- Of waits, in the order of their beginnings, the time in which no other task ran; where they overlap, once. Runs do
-- not, as one task runs at a time.
local function stalled_by(waits, runs)
  local stalled, till, first = 0, 0, 1
  for _, wait in ipairs(waits) do
    local from <const> = math.max(wait.begun, till)
    till = math.max(wait.ended, till)
    stalled = stalled + (till - from)
    while runs[first] and runs[first].ended <= from do
      first = first + 1
    end
    local at = first
    while runs[at] and runs[at].begun < till do
      local run = runs[at]
      local is_other = run.task ~= wait.task
      stalled = stalled - (is_other and math.max(0, math.min(run.ended, till) - math.max(run.begun, from)) or 0)
      at = at + 1
    end
  end
  return stalled
end

local function by_stall(a, b)
  return a.stalled > b.stalled or a.stalled == b.stalled and by_total(a, b)
end

local function waits_of(info, spans)
  local runs = {}
  local waits, wait_of = table_of(function(name)
    return { name = name, count = 0, total = 0, longest = 0, each = {} }
  end)
  for number = 1, info.spans do
    local kind, label, source, line, task, begun, ended = core.trace_span(spans, number)
    if kind == "wait" then
      local row = wait_of(string.format("%s\0%s", source and string.format("%s:%d", source, line) or "", label))
      row.count, row.total = row.count + 1, row.total + (ended - begun) / 1e9
      row.longest = math.max(row.longest, (ended - begun) / 1e9)
      row.each[row.count] = { task = task, begun = begun, ended = ended }
    elseif kind == "run" then
      runs[#runs + 1] = { task = task, begun = begun, ended = ended }
    end
  end
  table.sort(runs, by_begin)
  for _, row in ipairs(waits) do
    local where, label = string.match(row.name, "^(.-)%z(.*)$")
    row.where, row.label = where ~= "" and where or nil, label
    table.sort(row.each, by_begin)
    row.stalled, row.each = stalled_by(row.each, runs) / 1e9, nil
  end
  table.sort(waits, by_stall)
  for _, row in ipairs(waits) do row.name = nil end
  return waits
end

-- ---- for people ----

local function time(seconds)
  for _, unit in ipairs { { 1, "s " }, { 1e-3, "ms" }, { 1e-6, "us" } } do
    if seconds >= unit[1] then
      return string.format(seconds >= 1000 and "%.0f %s" or "%.4g %s", seconds / unit[1], unit[2])
    end
  end
  return seconds == 0 and "0" or string.format("%.0f ns", seconds * 1e9)
end

-- In a sentence, which has no columns.
local function spoken(seconds)
  return (string.gsub(time(seconds), " $", ""))
end

local function size(bytes)
  for _, unit in ipairs { { 30, "GiB" }, { 20, "MiB" }, { 10, "KiB" } } do
    if bytes >= 1 << unit[1] then
      return string.format("%.1f %s", bytes / 2 ^ unit[1], unit[2])
    end
  end
  return string.format("%d B", bytes)
end

-- Adds a table: what each column is called and, for each row, what is in it; the last column is text.
local function add_table(lines, heads, rows, cells)
  if #rows == 0 then
    return
  end
  local format = string.rep("%10s ", #heads - 1) .. " %s"
  lines[#lines + 1] = string.format(format, table.unpack(heads))
  for i = 1, math.min(#rows, rows_max) do
    lines[#lines + 1] = string.format(format, cells(rows[i]))
  end
  if #rows > rows_max then
    lines[#lines + 1] = string.format("%10s  and %d other%s", "", #rows - rows_max, #rows - rows_max > 1 and "s" or "")
  end
  lines[#lines + 1] = ""
end

local function add_device(lines, device)
  local idle = device.elapsed > 0 and 100 * (1 - device.busy / device.elapsed) or 0
  lines[#lines + 1] = string.format("device %s: %d operation%s%s%s", device.name, device.operations,
    device.operations == 1 and "" or "s",
    #device.others > 0
      and string.format(" beside those of %d other%s", #device.others, #device.others > 1 and "s" or "") or "",
    device.elapsed > 0 and string.format(" in %s, idle %.0f %% of that", spoken(device.elapsed), idle) or "")
  if device.failed > 0 then
    lines[#lines + 1] = string.format("%d of them failed, by themselves, with what they needed, or with the device",
      device.failed)
  end
  if device.untimed > 0 then
    lines[#lines + 1] = string.format("%d of them without a time: failed, not over yet, or in check mode",
      device.untimed)
  end
  if device.dropped > 0 then
    lines[#lines + 1] = string.format("and %d more for which there was no room; nodes of graphs count, too",
      device.dropped)
  end
  lines[#lines + 1] = ""
  add_table(lines, { "share", "total", "count", "median", "p99", "longest", "kernel" }, device.kernels, function(row)
    return string.format("%.1f %%", 100 * row.share), time(row.total), row.count, time(row.median), time(row.p99),
      time(row.longest), core.shown(row.name)
  end)
  add_table(lines, { "share", "total", "count", "bytes", "per second", "transfer" }, device.copies, function(row)
    return string.format("%.1f %%", 100 * row.share), time(row.total), row.count, size(row.bytes),
      row.rate and size(row.rate // 1) or "", row.name
  end)
  add_table(lines, { "share", "total", "count", "of other states, by their seats" }, device.others, function(row)
    return string.format("%.1f %%", 100 * row.share), time(row.total), row.operations,
      string.format("seat %d", row.seat)
  end)
  add_table(lines, { "at most", "memory of buffers labelled, or made at" }, device.peaks, function(row)
    return size(row.bytes), row.name ~= "" and core.shown(row.name) or "(no label)"
  end)
  lines[#lines + 1] = string.format(
    "buffers took %s at most; %d fence%s between streams, %d left out because others implied them",
    size(device.peak_bytes), device.fences.issued, device.fences.issued == 1 and "" or "s", device.fences.left_out)
  local compiled = device.compiled
  if compiled.count + compiled.from_cache > 0 then
    lines[#lines + 1] = string.format("%d compilation%s%s, %d more from the cache", compiled.count,
      compiled.count == 1 and "" or "s", compiled.count > 0 and " took " .. spoken(compiled.total) or "",
      compiled.from_cache)
  end
  lines[#lines + 1] = ""
end

local methods = { __name = "gpulua.report" }

function methods.__tostring(self)
  local lines = {}
  for _, device in ipairs(self.devices) do
    add_device(lines, device)
  end
  local heads <const> = { "stalled", "waited", "times", "longest", "line of the script, and for what" }
  add_table(lines, heads, self.waits, function(row)
    return time(row.stalled), time(row.total), row.count, time(row.longest),
      string.format("%s  %s", core.shown(row.where or "?"), core.shown(row.label))
  end)
  if self.dropped > 0 then
    lines[#lines + 1] = string.format("and %d more waits, runs and ranges for which there was no room", self.dropped)
  end
  return table.concat(lines, "\n")
end

--- gpu.report() -> report of what is traced so far; tostring makes tables for people of it (`gpulua --summary`).
--   devices  a list, with an entry for each:
--     name, operations, dropped, untimed   operations that are in the log, that had no room there
--                     (nodes of graphs count, too), that have no time (marks aside)
--     elapsed, busy   seconds from the first to the last, and of those with work under way
--     kernels         a list, the dearest first: { name, count, total, median, p99, longest (s), share }; what graphs,
--                     fills and library calls took is in it, too; of kernels that share a name, as those of
--                     gpu.map do, each label or line is one: "map (frames.lua:8)"; what a launch's bodies of
--                     conditional nodes did and no node has, for lack of room, is a row of its own
--     copies          likewise: { name, count, total (s), bytes, rate (bytes per second), share }
--     others          of a shared device, what other states gave it meanwhile, likewise: { seat, operations, total (s),
--                     share }; of them all come shares, elapsed and busy, and what follows is the device's, too
--     compiled        { count, total (s), from_cache }: runs of the compiler, and what the disk cache had instead
--     fences          { issued, left_out }
--     peak_bytes      the most that buffers took
--     peaks           a list of { name, bytes }: the same for each label, or for each line where there is none
--   dropped  waits, runs of tasks and ranges that had no room
--   waits    a list of { where, label, count, total, longest, stalled (s) }: which line waited for what; stalled is the
--            time of it in which no other task ran, the most first
-- Blocks until the devices have told what they know, but waits for no work. StreamMisuse: nothing is traced.
function report.get()
  local info, spans = trace.logs()
  if not info then
    trace.events() -- raises
  end
  local devices = {}
  for log = 1, #info do
    devices[log] = device_of(info, log)
  end
  return setmetatable({ devices = devices, waits = waits_of(info, spans), dropped = info.dropped }, methods)
end

return report
