-- How far long work has come, on a terminal. A message of the interpreter's ends the line in front of it; what the
-- script writes there meanwhile takes its place (interpreter/output.c), and the next step draws it again.

local core = require "gpulua.core"
local arguments <const> = require "gpulua.arguments"
local fail <const> = arguments.fail

local between_s <const> = 0.1 -- between two lines
local smooth_s <const> = 5 -- what the rate is a mean over

local progress = {}
progress.__index = progress
progress.__name = "gpulua.progress"

local function clock(seconds)
  seconds = math.floor(seconds + 0.5)
  local hours, minutes = seconds // 3600, seconds % 3600 // 60
  local text = string.format("%d:%02d", minutes, seconds % 60)
  return hours > 0 and string.format("%d:%s", hours, #text == 4 and "0" .. text or text) or text
end

local function rate_of(rate)
  for _, unit in ipairs { { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" } } do
    if rate >= unit[1] then
      return string.format("%.1f %s/s", rate / unit[1], unit[2])
    end
  end
  return rate >= 10 and string.format("%.0f/s", rate) or string.format("%.2g/s", rate)
end

local function count_of(value)
  return math.tointeger(value) and string.format("%d", value) or string.format("%.6g", value)
end

-- One line, no longer than the terminal is wide: longer ones could not be written over. First the label gives way.
local function write(self, parts, ending)
  local columns = core.terminal()
  if not columns then
    return -- it is none any more
  end
  local text = core.fitting(table.concat(parts, "  "), columns - 1)
  local label = core.fitting(core.shown(self.label), columns - 1 - #text - 2)
  core.line_is_open(false) -- else it would give way to itself
  io.stderr:write("\r", label, label ~= "" and "  " or "", text, "\27[K", ending or "")
  io.stderr:flush()
  core.line_is_open(not ending)
  self.is_written = true
end

local function describe(self)
  if not self.total then
    return { count_of(self.count) }
  end
  local share = self.total > 0 and self.count / self.total or 1
  return { string.format("%s/%s  %3.0f%%", count_of(self.count), count_of(self.total),
    math.max(0, math.min(1, share)) * 100) }
end

local function show(self, now)
  self.shown_at = now
  local parts = describe(self)
  if self.rate then
    parts[#parts + 1] = rate_of(self.rate)
    local left = self.total and self.total - self.count
    if left and left > 0 and self.rate > 0 and left / self.rate < 1e8 then
      parts[#parts + 1] = clock(left / self.rate) .. " left"
    end
  end
  write(self, parts)
end

local function count_to(self, count)
  if not self.is_open then
    core.raise("Closed", "attempt to use a closed progress")
  end
  self.count = count
  if not self.is_terminal then
    return self
  end
  local now = core.seconds()
  if now - self.shown_at < between_s then
    return self
  end
  local passed = now - self.seen_at
  local rate = (count - self.seen_count) / passed
  local weight = self.rate and 1 - math.exp(-passed / smooth_s) or 1
  self.rate = math.max(0, (self.rate or 0) + (rate - (self.rate or 0)) * weight)
  self.seen_at, self.seen_count = now, count
  show(self, now)
  return self
end

local function check(value, what)
  if type(value) ~= "number" or value ~= value or math.abs(value) == math.huge then
    fail("progress", "%s: a finite number expected, got %s", what, tostring(value))
  end
  return value
end

local function check_self(self, call)
  arguments.check_self(call, self, progress, "gpulua.progress")
end

--- progress:step([count]) -> progress: so much more is done; 1 if nothing is said.
function progress:step(count)
  check_self(self, "step")
  local more = count == nil and 1 or check(count, "step")
  local sum = self.count + more
  if math.type(sum) == "integer" and (sum < self.count) ~= (more < 0) then
    sum = math.huge -- it went round
  end
  return count_to(self, check(sum, "step, with what was done before"))
end

--- progress:set(count) -> progress: so much is done in all.
function progress:set(count)
  check_self(self, "set")
  return count_to(self, check(count, "set"))
end

--- progress:close(): a last line, with what it took. Once more: nothing. Also <close>.
function progress:close()
  check_self(self, "close")
  if not self.is_open then
    return
  end
  self.is_open = false
  if self.is_terminal and (self.is_written or self.count ~= 0) then
    local parts, took = describe(self), core.seconds() - self.begun
    parts[#parts + 1] = string.format("in %s, %s", took < 60 and string.format("%.1f s", took) or clock(took),
      rate_of(took > 0 and self.count / took or 0))
    write(self, parts, "\n")
  end
end
progress.__close = progress.close

--- gpu.progress{ [total =,] [label =] } -> progress: on a terminal (standard error) a line that says how far long work
-- has come, how fast it goes and, if `total` is known, how long it will take; written anew ten times a second at most.
-- Where standard error is no terminal it writes nothing. Neither blocks (but for the terminal) nor yields.
-- InvalidArgument.
return function(options)
  options = options == nil and {} or options
  arguments.check("progress", options, { total = true, label = true })
  if options.total ~= nil and check(options.total, "total") < 0 then
    fail("progress", "total: less than 0")
  end
  if options.label ~= nil and type(options.label) ~= "string" then
    fail("progress", "label: a string expected, got %s", tostring(options.label))
  end
  local now = core.seconds()
  return setmetatable({ total = options.total, label = options.label or "", count = 0, is_open = true,
    is_terminal = core.terminal() ~= nil, begun = now, seen_at = now, seen_count = 0, shown_at = now }, progress)
end
