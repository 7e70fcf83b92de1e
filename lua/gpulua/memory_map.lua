-- Who holds the memory of a device.

local core = require "gpulua.core"

local function size(bytes)
  for _, unit in ipairs { { 30, "GiB" }, { 20, "MiB" }, { 10, "KiB" } } do
    if bytes >= 1 << unit[1] then
      return string.format("%.1f %s", bytes / 2 ^ unit[1], unit[2])
    end
  end
  return string.format("%d B", bytes)
end

local function seconds(age)
  return not age and "" or age < 60 and string.format("%.1f s", age)
    or age < 3600 and string.format("%.0f min", age / 60) or string.format("%.1f h", age / 3600)
end

local lines_max <const> = 30

-- Those of the same label, line and fate together, the largest first: a list of { entry =, count =, bytes =, asked =,
-- oldest =, number = }.
local function grouped(map)
  local groups, by_key = {}, {}
  for _, entry in ipairs(map) do
    local key = table.concat({ entry.kind, entry.label, entry.source or "", entry.where, tostring(entry.freed) }, "\0")
    local group = by_key[key]
    if not group then
      group = { entry = entry, count = 0, bytes = 0, asked = 0, oldest = 0, number = #groups }
      by_key[key] = group
      groups[#groups + 1] = group
    end
    group.count = group.count + 1
    group.bytes, group.asked = group.bytes + entry.memory_bytes, group.asked + entry.bytes
    group.oldest = math.max(group.oldest, entry.age or 0)
  end
  table.sort(groups, function(a, b)
    return a.bytes > b.bytes or a.bytes == b.bytes and a.number < b.number
  end)
  return groups
end

-- As lines; the rest of many as one.
local function text_of(map)
  local lines = { string.format(
    "memory of %s: %s in use, %s freed that work in flight uses, %s reserved; %s of the host",
    map.device, size(map.live_bytes), size(map.freed_bytes), size(map.reserved_bytes), size(map.host_bytes)) }
  local rest = { count = 0, bytes = 0 }
  for i, group in ipairs(grouped(map)) do
    local entry = group.entry
    if i <= lines_max then
      local name = entry.label ~= "" and "'" .. core.shown(entry.label) .. "'" or ""
      local count = group.count > 1 and "x" .. group.count or ""
      local line = string.format("%10s  %5s  %-9s  %-6s  %8s  %s %s%s", size(group.bytes), count, entry.kind,
        entry.where, seconds(group.oldest), name, core.shown(entry.source or ""),
        entry.freed and " (freed, in use)" or "")
      lines[#lines + 1] = string.gsub(line, "%s+$", "")
    else
      rest.count, rest.bytes = rest.count + group.count, rest.bytes + group.bytes
    end
  end
  if rest.count > 0 then
    lines[#lines + 1] = string.format("%10s  %5s  and others", size(rest.bytes), "x" .. rest.count)
  end
  return table.concat(lines, "\n")
end

local map_methods = { __name = "gpulua.memory_map", __tostring = text_of }

--- device:memory_map() -> map: a list of what the device has given out and not got back, the largest first; tostring
-- makes a table of it for people. Each entry has
--   kind          "buffer"; "host": pinned memory of the host; "pool": what temporaries of graphs lie in;
--                 "temporary": in a pool, so that it has no memory of its own; "variable": of a module; "import":
--                 another library's;
--                 "graph": the nodes of a graph, estimated; "gpulua": staging, images, copies to restore from, reports
--   number        the buffer's, which messages call its allocation; of a graph, among the device's graphs; never reused
--   label         or ""
--   source        "file:line" of the script that asked for it, where that is known
--   bytes         asked for
--   memory_bytes  what it takes, with its alignment; 0: it lies in something else
--   age           seconds, to some milliseconds; nil for graphs
--   where         "device" or "host"
--   freed         nobody holds it any more, but work in flight uses it
-- Buffers that were lost with the device have no memory, and are not in it.
-- The map has live_bytes and freed_bytes of the device, host_bytes, reserved_bytes (what the driver has given in all)
-- and device, its name. Does not wait and does not yield. Closed.
local function memory_map(device)
  local map = core.memory_map(device)
  table.sort(map, function(a, b)
    if a.memory_bytes ~= b.memory_bytes then
      return a.memory_bytes > b.memory_bytes
    end
    return (a.age or 0) > (b.age or 0)
  end)
  map.live_bytes, map.freed_bytes, map.host_bytes = 0, 0, 0
  for _, entry in ipairs(map) do
    local field = entry.where == "host" and "host_bytes" or entry.freed and "freed_bytes" or "live_bytes"
    map[field] = map[field] + entry.memory_bytes
  end
  map.reserved_bytes, map.device = device:stats().bytes_reserved, device.name
  return setmetatable(map, map_methods)
end

local leaks_max <const> = 5

local workspaces <const> = { ["blas workspace"] = true, ["fft work"] = true } -- which libraries keep (workspace.lua)

--- Is it something that the script holds by a handle? The rest goes with that, or is gpulua's own.
local function is_held(entry)
  local kind = entry.kind
  if entry.freed or workspaces[entry.label] then
    return false
  end
  return kind == "graph" or (kind == "buffer" or kind == "host" or kind == "import") and entry.source ~= nil
end

--- Entries that are held still (one at least), as lines for people, the largest first.
local function held_lines(device, held)
  local bytes, graphs = 0, 0
  for _, entry in ipairs(held) do
    bytes, graphs = bytes + entry.bytes, graphs + (entry.kind == "graph" and 1 or 0)
  end
  local lines = { string.format("%d %s%s of %s %s held still, %s:", #held, graphs == #held and "graph" or "buffer",
    #held > 1 and "s" or "", device.name, #held > 1 and "are" or "is", size(bytes)) }
  local groups = grouped(held)
  for i = 1, math.min(#groups, leaks_max) do
    local entry, count = groups[i].entry, groups[i].count
    lines[#lines + 1] = string.format("  %s%s%s%s%s", size(groups[i].asked), count > 1 and " in " .. count or "",
      entry.kind == "graph" and graphs < #held and " (graph)" or "",
      entry.label ~= "" and " '" .. core.shown(entry.label) .. "'" or "",
      entry.source and ", made at " .. core.shown(entry.source) or "")
  end
  if #groups > leaks_max then
    lines[#lines + 1] = string.format("  and those of %d other lines; device:memory_map() has them all",
      #groups - leaks_max)
  end
  return lines
end

--- In check mode, when the script is over: what of its buffers is held still, for the log. They go with the device, but
-- in a program that goes on they would have stayed.
local function report_leaks()
  collectgarbage()
  collectgarbage() -- what finalisers have let go
  for _, device in ipairs(core.devices()) do
    local held = {}
    for _, entry in ipairs(device.check and memory_map(device) or {}) do
      held[#held + 1] = is_held(entry) and entry.kind ~= "graph" and entry.kind ~= "import" and entry or nil
    end
    for i, line in ipairs(#held > 0 and held_lines(device, held) or {}) do
      core.log((i == 1 and "check: at the end of the script " or "") .. line)
    end
  end
end

return { of = memory_map, is_held = is_held, held_lines = held_lines, report_leaks = report_leaks }
