-- Functions that become graphs: device:graphed(f).
--
-- The first calls run f as it is. Then f is captured once, and calls replay the graph. f is run again, and the graph
-- patched, when an argument or one of f's upvalues is another value than it was when f ran last (0.0 and -0.0 are two,
-- 1 and 1.0 as well; what another task sets while f waits is seen as f left it). An argument that is a table of plain
-- values, such as a vector or a structure by value, is another one when it holds something else; what f reads behind
-- other tables or in other functions is not seen (graphed:refresh() says that it has changed). Upvalues are not looked
-- into: they are f's own more often than not, and each table takes its time at every call. A device in check mode
-- looks: there f runs at each call, and it is an error if it does something else with the same values.
--
-- A buffer that f makes is one as any other if somebody holds it when f has been captured (f returns it, say), and is
-- then the same one whenever f makes it again. Where it is gone, freed or lost with the device, the next call runs f,
-- which makes it. Else it is the graph's own: if f hands it out in a later run, nothing but the graph can use it
-- (UseAfterFree), unless the graph is made anew for that run.

local core = require "gpulua.core"
local sealed = require "gpulua.sealed"
local arguments <const> = require "gpulua.arguments"
local is_captured <const>, difference <const> = core.capture_active, core.graphed_difference
local results_of <const>, give_out <const> = core.graphed_results, core.graphed_give_out

-- What a replay looks at is kept by number, as in src/binding/graphed.c, and false until it is there. While there is no
-- graph there, no call is a replay.
local GRAPH <const>, KNOWN <const>, FUNCTION <const>, RESULTS <const>, GIVEN <const> = 1, 2, 3, 4, 5

local graphed = {}
graphed.__index = graphed
graphed.__name = "gpulua.graphed"

local reasons_kept <const> = 32
local option_types <const> = { warmup = "integer", label = "string", pool = "pool" }

-- ---- what has been done, and why ----

-- A ring of the latest, each by number: the call, a kind; then what its words say, of which the last are, of the first
-- node that was patched, what core.node_text wants. Put into words when somebody asks: most calls are not asked about.
local CALL <const>, KIND <const>, WHY <const>, NOW <const>, WAS <const>, WHAT <const> = 1, 2, 3, 4, 5, 6
local NODE <const>, LABEL <const>, FILE <const>, LINE <const> = 7, 8, 9, 10

-- For what comes of the call, which has failed until then.
local function note(self, call)
  local noted <const> = self.noted + 1
  local reasons <const>, at <const> = self.reasons, noted % reasons_kept
  local reason = reasons[at]
  if not reason then
    reason = { call, "failed", false, false, false, false, false, false, false, false }
    reasons[at] = reason
  else
    reason[CALL], reason[KIND] = call, "failed"
  end
  self.noted = noted
  return reason
end

-- A value for later; what would be kept alive by that is put into words at once.
local function later(value)
  local kind = type(value)
  if kind == "number" or kind == "boolean" or kind == "nil" then
    return value
  elseif kind == "string" then
    return string.format("%q", value)
  end
  local is_well, text = pcall(tostring, value)
  return is_well and text or string.format("a %s", kind)
end

local entries_kept <const> = 32 -- each takes its time at every call

-- {table, how many entries, key, value, ...} for it and those in it; nil where it holds anything but numbers, strings,
-- booleans, handles and tables of such, or too much.
local function copy_of(value)
  local copy, tables, entries = {}, { value }, 0
  local at = 1
  while tables[at] do
    local from, count_at, count = tables[at], #copy + 2, 0
    if getmetatable(from) ~= nil then
      return nil
    end
    copy[count_at - 1], copy[count_at] = from, 0
    for key, held in next, from do
      count, entries = count + 1, entries + 1
      local kind = type(held)
      if kind == "function" or kind == "thread" or entries > entries_kept then
        return nil
      elseif kind == "table" then
        tables[#tables + 1] = held
      end
      copy[#copy + 1] = key
      copy[#copy + 1] = held
    end
    copy[count_at] = count
    at = at + 1
  end
  return copy
end

-- The copies of those of the arguments that are tables of plain values; which one it is of is at 0 of each.
local function copies_of(...)
  local copies
  for i = 1, select("#", ...) do
    local value = (select(i, ...))
    local copy = type(value) == "table" and copy_of(value) or nil
    if copy then
      copy[0] = i
      copies = copies or {}
      copies[#copies + 1] = copy
    end
  end
  return copies
end

local kinds = {
  failed = "has failed, or is not over",
  checked = "run to see that it does the same",
  eager = "run as it is, warm-up %d of %d",
  first = "captured: %d nodes, %d edges",
  closed = "captured, because its graph was closed: %d nodes, %d edges",
  anew = "captured anew, because %s: %s",
  patched = "%d nodes patched, because %s: first %s",
  same = "nothing to patch, though %s",
}

-- Of a reason that is a change: in words what is another thing than when f ran last.
local function change_in_words(self, reason)
  local why, now <const>, was <const> = reason[WHY], reason[NOW], reason[WAS]
  if math.type(why) then
    why = why > 0 and "argument " .. why or "upvalue '" .. debug.getupvalue(self[FUNCTION], -why) .. "'"
  end
  return now == nil and was == nil and why or string.format("%s is %s, was %s", why, tostring(now), tostring(was))
end

local function in_words(self, reason)
  local kind <const>, what <const> = reason[KIND], reason[WHAT]
  local words <const> = kinds[kind]
  if kind == "patched" then
    return string.format(words, what, change_in_words(self, reason),
      core.node_text(reason[NODE], reason[LABEL], reason[FILE], reason[LINE]))
  elseif kind == "anew" or kind == "same" then
    return string.format(words, change_in_words(self, reason), what)
  end
  return string.format(words, reason[WHY], what) -- whichever of them it has
end

local function remember(self)
  local known <const>, made <const> = self[GIVEN], self.made
  self[KNOWN], self[GIVEN] = known, false
  self[GRAPH], self.gone, self.broken = not self.is_strict and made, false, false
  core.graphed_keep(made, known)
end

local function forget(self)
  self[KNOWN], self[GRAPH] = false, false
  self.forgotten = self.forgotten + 1
end

-- How many calls were replays, `more` of which nobody has counted yet.
local function replays_of(self, more)
  return self.made and core.graphed_replays(self.made, more or 0) or self.replays
end

-- ---- calls ----

local function behind(op, results)
  if not results then
    return op
  end
  return op, table.unpack(results, 1, results.n)
end

-- For nobody but who calls; the op is behind what f has put on the device.
local function run_as_it_is(self, ...)
  local results <const> = results_of(self[FUNCTION](...))
  return behind(self.device:current():mark(), results)
end

local running_of = { __close = function(running) running.of.task = false end }

-- What f, which runs as `task`, returns; nobody else runs it meanwhile.
local function results_from(self, task)
  local running <close> = self.running
  self.task = running and task
  return results_of(task:await())
end

local body <const> = core.graphed_body(copies_of)

local refresh_hint <const> = "call refresh() when what it reads elsewhere has changed"

local function check_self(self, call)
  arguments.check_self(call, self, graphed, "gpulua.graphed")
end

local function raise_closed()
  core.raise("Closed", "attempt to use a closed graphed function")
end

local function warm_up(self, ...)
  local results = results_from(self, core.spawn_run(self[FUNCTION], ...))
  self[RESULTS] = results
  self.eager = self.eager + 1
  local number = math.min(self.eager, self.warmup) -- of several at once
  self.device:synchronize() -- on whichever streams f has put its work
  return number, results
end

local function capture_first(self, ...)
  local capture <close> = core.capture_begin(self.device, { label = self.label, pool = self.pool })
  self[RESULTS] = results_from(self, core.capture_spawn(capture, body, self, self[FUNCTION], ...))
  if self.is_closed then
    raise_closed()
  end
  self.made = capture:finish()
  give_out(self[RESULTS])
  replays_of(self, self.replays) -- of the graph before it
  self.captures = self.captures + 1
  return self.made:nodes()
end

-- `has_changed`: false in check mode, when f has to do the same as before.
local function capture_again(self, reason, has_changed, ...)
  local made <const> = self.made
  local capture <close> = core.capture_again(made)
  local results = results_from(self, core.capture_spawn(capture, body, self, self[FUNCTION], ...))
  if self.is_closed then
    raise_closed()
  end
  local anew <const>, count <const>, restaged <const>, node <const>, label <const>, file <const>, line <const> =
    core.graphed_update(capture, made)
  self[RESULTS] = results
  give_out(results)
  if not has_changed and (anew or count > restaged) then
    self.broken = string.format("a graphed function did something else with the same arguments and upvalues: %s",
      anew or core.node_text(node, label, file, line))
    core.raise("InvalidArgument", self.broken, refresh_hint)
  elseif anew then
    self.captures = self.captures + 1
    reason[KIND], reason[WHAT] = "anew", anew
  elseif count > 0 then
    self.patches = self.patches + count
    reason[KIND], reason[WHAT] = has_changed and "patched" or "checked", count
    reason[NODE], reason[LABEL], reason[FILE], reason[LINE] = node, label, file, line
  else
    reason[KIND] = has_changed and "same" or "checked"
  end
end

--- graphed(...) -> op, what f returned when it ran last. The op is the graph's launch; in the first calls, which run
-- f as it is and wait for all that the device does, one that is over. Inside a capture f is run, and becomes part of
-- that. Runs f, as a task, and then yields in a task, when an argument or upvalue has changed; else it does not block.
graphed.__call = core.graphed_caller(function(self, ...) -- what is no replay; -> the graph, if it is to be launched
  if self.is_closed then
    raise_closed()
  end
  local calls_itself <const> = self.task and core.is_within(self.task) -- however far down, as it is run as it is
  if calls_itself or is_captured(self.device) then
    return run_as_it_is(self, ...)
  end
  while self.task do -- f is running, in another task
    self.task:join()
    core.sleep(0) -- whoever waits for it goes on first
    if self.is_closed then
      raise_closed()
    end
  end
  -- What f returned belongs to who called, who may have freed it; and a device that came up again has it no more.
  local replays = self.replays
  if self.made then
    local gone <const>, is_closed <const>, counted <const> = core.graphed_state(self.made)
    replays = counted
    if gone then
      forget(self)
      self.gone = gone
    end
    if is_closed then -- by who asked for it
      self.made, self.replays = nil, replays
    end
  end
  local why, now, was, is_plain = self.gone or "refresh() was called or f has failed before", nil, nil, true
  if self[KNOWN] then
    why, now, was, is_plain = difference(self[KNOWN], self[FUNCTION], ...)
  end
  if not why and self.broken then
    core.raise("InvalidArgument", self.broken, refresh_hint)
  elseif not why and self[GRAPH] then -- since who was waited for has run f
    replays_of(self, 1)
    return self.made
  elseif is_captured() then -- of another device: there is no second capture within it
    return run_as_it_is(self, ...)
  end
  self.runs = self.runs + 1
  local forgotten <const> = self.forgotten
  local call <const> = self.runs + replays
  local reason <const> = note(self, call)
  if self.eager < self.warmup then
    local number <const>, results <const> = warm_up(self, ...)
    if reason[CALL] == call then -- and many others have not been noted since
      reason[KIND], reason[WHY], reason[WHAT] = "eager", number, self.warmup
    end
    return behind(self.device:current():mark(), results)
  elseif not self.made then
    local kind <const> = self.captures == 0 and "first" or "closed"
    reason[WHY], reason[WHAT] = capture_first(self, ...)
    reason[KIND] = kind
  else
    if why and not is_plain then
      now, was = later(now), later(was)
      if self.is_closed then -- by a __tostring
        raise_closed()
      end
    end
    reason[WHY], reason[NOW], reason[WAS] = why, now, was
    capture_again(self, reason, why ~= nil, ...)
  end
  if self.forgotten == forgotten then -- else what f has read may be what refresh() was called for
    remember(self)
  end
  return self.made
end)

--- graphed:refresh() -> graphed: the next call runs f again, whether or not a change can be seen.
function graphed.refresh(self)
  check_self(self, "refresh")
  forget(self)
  self.broken = false
  return self
end

--- graphed:graph() -> its graph, or nil: it has not been captured yet.
function graphed.graph(self)
  check_self(self, "graph")
  return self.made
end

--- graphed:explain() -> text: what its calls have done and why, the latest last; and counters of that: calls, eager,
-- captures (also anew), patches (nodes), replays.
function graphed.explain(self)
  check_self(self, "explain")
  local lines, past = {}, 1
  local function replayed(first, last)
    if first <= last then
      lines[#lines + 1] = string.format("call%s: replayed, nothing had changed", first == last and " " .. first
        or string.format("s %d to %d", first, last))
    end
  end
  local oldest = math.max(1, self.noted - reasons_kept + 1)
  if oldest > 1 then
    lines[1] = string.format("(%d earlier lines are left out)", oldest - 1)
    past = self.reasons[oldest % reasons_kept][CALL]
  end
  for i = oldest, self.noted do
    local reason = self.reasons[i % reasons_kept]
    replayed(past, reason[CALL] - 1)
    lines[#lines + 1] = string.format("call %d: %s", reason[CALL], in_words(self, reason))
    past = reason[CALL] + 1
  end
  local replays <const> = replays_of(self)
  local calls <const> = self.runs + replays
  replayed(past, calls)
  lines[#lines + 1] = string.format(
    "%d calls: %d eager, %d captures, %d nodes patched, %d replays with nothing to patch", calls,
    self.eager, self.captures, self.patches, replays)
  return table.concat(lines, "\n"), { calls = calls, eager = self.eager, captures = self.captures,
    patches = self.patches, replays = replays }
end

--- graphed:close(): ends its graph, and lets go of what f returned. Idempotent.
function graphed.close(self)
  check_self(self, "close")
  self.is_closed = true
  self[RESULTS] = false
  forget(self)
  if self.made then
    self.replays = replays_of(self)
    self.made:close()
    self.made = nil
  end
end
graphed.__close = graphed.close

function graphed.__tostring(self)
  return string.format("gpulua.graphed on %s (%s)", self.device_name, self.is_closed and "closed"
    or self.made and tostring(self.made) or "not captured yet")
end

--- device:graphed([{warmup = 1, label=, pool=},] f) -> graphed, see above.
return function(device, options, f)
  if f == nil and type(options) == "function" then
    options, f = nil, options
  end
  is_captured(device) -- raises, if it is closed
  if type(f) ~= "function" then
    local is_alone = f == nil and (type(options) ~= "table" or arguments.is_callable(options))
    local got = is_alone and options or f
    core.raise("InvalidArgument", string.format("graphed: [options,] a function expected, got %s",
      core.type(got) or type(got)))
  end
  options = arguments.typed("graphed", options, option_types)
  local warmup = options.warmup or 1
  if warmup < 0 then
    core.raise("InvalidArgument", string.format("warmup of graphed: a whole number from 0 on expected, got %s", warmup))
  end
  local self <const> = setmetatable({ false, false, f, false, false, device = device, device_name = device.name,
    warmup = warmup, label = options.label, pool = options.pool, is_strict = device.check and true or false,
    runs = 0, eager = 0, captures = 0, patches = 0, replays = 0, forgotten = 0,
    reasons = {}, noted = 0, is_closed = false, task = false, gone = false, broken = false }, graphed)
  self.running = setmetatable({ of = self }, running_of)
  return sealed(self, graphed)
end
