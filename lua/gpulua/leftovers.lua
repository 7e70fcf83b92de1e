-- What a piece of a script leaves behind: memory that is held, work in flight, failures that nobody has seen, tasks,
-- streams, captures, devices. For gpulua.busted; nothing in here knows busted.

local core = require "gpulua.core"
local memory_map = require "gpulua.memory_map"

local leftovers = {}

local said = {} -- of core.told(), by number: a look may lie within another one
local shown_max <const> = 5 -- entries of one kind that a message names

local function label_text(label)
  return label ~= "" and string.format(" '%s'", core.shown(label)) or ""
end

local function source_text(source)
  return source and " at " .. core.shown(source) or ""
end

--- Entries of the map that the script holds and that are not in `before`; then all of them, by kind and number.
local function new_memory(device, before)
  local found, keys = {}, {}
  for _, entry in ipairs(core.memory_map(device)) do
    if memory_map.is_held(entry) then
      local key = entry.kind .. "#" .. entry.number
      keys[key] = true
      found[#found + 1] = not before[key] and entry or nil
    end
  end
  return found, keys
end

local function new_streams(device, before)
  local found, numbers = {}, {}
  for number, stream in pairs(core.streams(device)) do
    numbers[number] = true
    if not before[number] then
      stream.number = number
      found[#found + 1] = stream
    end
  end
  table.sort(found, function(a, b) return a.number < b.number end)
  return found, numbers
end

--- Operations that are not over and that were not in flight before.
local function new_work(device, before)
  local found, keys = {}, {}
  for _, op in ipairs(core.in_flight(device)) do
    local key = op.stream .. "#" .. op.seq
    keys[key] = true
    if not before[key] then
      found[#found + 1] = op
    end
  end
  return found, keys
end

local function of_device(device)
  return { memory = select(2, new_memory(device, {})), streams = select(2, new_streams(device, {})),
    work = select(2, new_work(device, {})) }
end

local nothing <const> = { memory = {}, streams = {}, work = {} }

--- What there is now, for leftovers.since. Does not wait.
function leftovers.now()
  local now = { devices = {}, tasks = setmetatable({}, { __mode = "k" }), capture = core.captures_end(),
    told = #core.told() }
  for _, device in ipairs(core.devices()) do
    now.devices[device] = of_device(device)
  end
  for _, task in ipairs(core.tasks()) do
    now.tasks[task] = true
  end
  return now
end

local function new_tasks(before)
  local found = {}
  for _, task in ipairs(core.tasks()) do
    if not before.tasks[task] then
      found[#found + 1] = task
    end
  end
  return found
end

--- What was raised, in words.
function leftovers.error_text(err)
  if type(err) == "table" and core.type(err) ~= "error" and not (getmetatable(err) or {}).__tostring then
    return "an error that is a table"
  end
  return tostring(err)
end
local error_text <const> = leftovers.error_text

--- What work failed with; where that was noticed is nobody's line.
local function work_error(err)
  if core.type(err) ~= "error" then
    return error_text(err)
  end
  return string.format("%s: %s%s", err.code, err.message, err.op and err.op.source and
    string.format(" ('%s' at %s:%d)", core.shown(err.op.label), core.shown(err.op.source), err.op.line) or "")
end

local function spawned_at(task)
  return "spawned at " .. (string.match(tostring(task), "of (.*) %(") or "?")
end

local function is_busy(before, options)
  for _, task in ipairs(options.tasks ~= false and new_tasks(before) or {}) do
    if not task:done() then
      return true
    end
  end
  for _, device in ipairs(options.work ~= false and core.devices() or {}) do
    if #new_work(device, (before.devices[device] or nothing).work) > 0 then
      return true
    end
  end
  return false
end

--- Gives work and tasks some time to end by themselves. What failed with nobody looking is seen afterwards, and told.
local function settle(lines, before, options)
  local deadline, nap = core.seconds() + (options.settle or 0), 0
  while is_busy(before, options) and core.seconds() < deadline do
    for _, device in ipairs(core.devices()) do
      if device.check and #core.in_flight(device) > 0 then -- its work is done when somebody asks
        pcall(device.synchronize, device)
      end
    end
    core.sleep(nap)
    nap = math.min(nap == 0 and 1e-4 or nap * 2, 0.01)
  end
  for _, task in ipairs(new_tasks(before)) do
    if task:status() == "failed" then
      local _, err = task:join()
      lines[#lines + 1] = string.format("a task failed and nobody has seen it, %s: %s", spawned_at(task),
        error_text(err))
    end
  end
  for _, device in ipairs(core.unclosed_devices()) do
    for _ = 1, device:stats().errors_unobserved do
      local ok, err = pcall(core.raise_unseen, device)
      if not ok then
        lines[#lines + 1] = string.format("work of %s failed and nobody has seen it: %s", device.name, work_error(err))
      end
    end
  end
end

--- "2 operations of cpu are in flight still:", then the first of the list, each in words, and how many more.
local function tell(lines, what, of, state, list, text_of)
  if #list > 0 then
    local many = #list > 1
    lines[#lines + 1] = string.format("%d %s%s%s %s %s:", #list, what, many and "s" or "", of, many and "are" or "is",
      state)
    for i = 1, math.min(#list, shown_max) do
      lines[#lines + 1] = "  " .. text_of(list[i])
    end
    if #list > shown_max then
      lines[#lines + 1] = string.format("  and %d more", #list - shown_max)
    end
  end
end

local function work_text(op)
  return string.format("'%s'%s, stream %d", core.shown(op.label), source_text(op.source), op.stream)
end

local function stream_text(stream)
  return string.format("stream %d%s%s", stream.number, label_text(stream.label),
    stream.source and ", made at " .. core.shown(stream.source) or "")
end

local function task_text(task)
  local at = core.place(task)
  return string.format("%s, %s%s", spawned_at(task), task:status(), at and " at " .. core.shown(at) or "")
end

local function capture_text(capture)
  return string.format("on %s%s, begun%s", core.shown(capture.device), label_text(capture.label),
    source_text(capture.source))
end

local function tell_device(lines, device, old, options)
  if options.work ~= false then
    tell(lines, "operation", " of " .. device.name, "in flight still", new_work(device, old.work), work_text)
  end
  if options.memory ~= false then
    if #new_memory(device, old.memory) > 0 or #new_streams(device, old.streams) > 0 then
      collectgarbage()
      collectgarbage() -- what finalisers have let go
      device:stats()
    end
    local held = new_memory(device, old.memory)
    for _, line in ipairs(#held > 0 and memory_map.held_lines(device, held) or {}) do
      lines[#lines + 1] = line
    end
    tell(lines, "stream", " of " .. device.name, "held still", new_streams(device, old.streams), stream_text)
  end
end

--- leftovers.since(before[, options]) -> a list of lines, empty: nothing. `before` is leftovers.now() of then.
-- options: settle = seconds that work and tasks have to end by themselves (0); memory, work, tasks = false: these may
-- be left (not what failed); devices = true: also those that were opened; cancels = true: tasks that are left are
-- cancelled. Captures are ended. Garbage is collected if there is more than before. Waits, and yields in a task. Of
-- devices that are lost the failures are looked at, and no more.
function leftovers.since(before, options)
  local lines, running = {}, {}
  local _, captures = core.captures_end(before.capture) -- first: they would swallow the rest
  tell(lines, "capture", "", "open still", captures, capture_text)
  settle(lines, before, options)
  for i = before.told + 1, #core.told() do
    local text = string.gsub(core.told()[i], "\nstack traceback:.*", "")
    lines[#lines + 1] = not said[i] and "a failure was told of that nobody has seen: " .. text or nil
    said[i] = true
  end
  for _, device in ipairs(core.devices()) do
    tell_device(lines, device, before.devices[device] or nothing, options)
    if options.devices and not before.devices[device] then
      lines[#lines + 1] = string.format("%s was opened and is open still", tostring(device))
    end
  end
  for _, task in ipairs(new_tasks(before)) do
    running[#running + 1] = not task:done() and task or nil
  end
  if options.tasks ~= false then
    tell(lines, "task", "", "not over", running, task_text)
  end
  for _, task in ipairs(options.cancels and running or {}) do
    task:detach()
    task:cancel()
  end
  for _, task in ipairs(options.cancels and running or {}) do
    core.let_clean_up(task)
  end
  return lines
end

return leftovers
