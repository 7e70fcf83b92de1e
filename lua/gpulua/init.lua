-- The module: the functions of the core, and those that are simplest said in Lua.

local core = ...

local gpu = {}
for name, value in pairs(core) do
  gpu[name] = value
end
-- What the interpreter and our own files need is in the core alone.
for _, name in ipairs { "spawn_run", "spawn_root", "spawn_typed", "spawn_timed", "hold", "release", "guest",
  "check_waits", "place", "raise", "entry", "end_hook", "shutdown", "adopt_coroutines", "hold_calls", "describe",
  "capture_begin", "capture_enter", "capture_spawn", "capture_again", "capture_update",
  "capture_active", "graphed_keep", "graphed_replays", "graphed_difference", "graphed_body", "graphed_results",
  "graphed_give_out", "graphed_caller", "graphed_state", "graphed_update", "node_text",
  "overlap", "map_kind", "map_fits", "scalar_of",
  "tasks", "task_count", "task_seed", "check_picks", "is_within", "in_flight", "raise_unseen", "streams",
  "unclosed_devices", "told", "captures_end",
  "inject_slow", "device_events", "device_return", "check_meet", "rebuilds", "rebuilds_kept",
  "keep_version", "keep", "flight_path", "flight_files",
  "hooks_handler", "hooks_set", "trace_info", "trace_op", "trace_waits", "trace_uses", "trace_span", "trace_range",
  "trace_range_end", "trace_arguments", "trace_nodes", "missed_wakes", "trace_settle", "log", "memory_map",
  "terminal", "line_is_open", "seconds", "shown", "fitting", "kernel_arguments",
  "ranges_are_on", "range_start", "range_end",
  "is_sandbox", "library", "library_value", "dims", "stream_number", "control_check",
  "control_begin", "control_add" } do
  gpu[name] = nil
end

-- What our own files require: an empty table that leads there. Lua names the functions in tracebacks by the first
-- loaded module in which it finds them, in the order of a hash, and they are to be those of gpulua.
package.loaded["gpulua.core"] = setmetatable({}, { __index = core })

local arguments = require "gpulua.arguments"
local entries <const> = require "gpulua.entries"

--- gpu.run(f, ...): runs f(...) as a task and waits for it and its children; returns its results or raises its error.
-- Outside tasks this drives the loop.
function gpu.run(f, ...)
  return core.spawn_run(f, ...):await()
end

local loaded <const> = package.loaded

-- "the function from pipeline.lua:12"; one of a library by its name, such as "gpulua.sleep".
local function describe(f)
  local place, name = core.place(f), nil
  if place then
    return "the function from " .. place
  end
  for library, fields in next, loaded do
    local has_names = type(library) == "string" and library ~= "gpulua.core" and type(fields) == "table"
    for field, value in next, has_names and fields or {} do
      local known = rawequal(value, f) and type(field) == "string" and library .. "." .. field
      name = known and (not name or known < name) and known or name
    end
  end
  return name or "the function"
end

local turns_most <const> = 200

-- One turn, so that a task that was cancelled cleans up before the caller goes on. Where a seed decides whose turn it
-- is, as many as that takes, within reason.
function core.let_clean_up(task)
  core.sleep(0)
  local turns = core.check_picks() and turns_most or 0
  while turns > 0 and not task:done() do
    core.sleep(0)
    turns = turns - 1
  end
  return task:done() -- and if it is, what it has done is known
end

-- What gpu.timeout does; say(place) gives the message of its Timeout, from where f was.
function core.run_timed(say, seconds, f, ...)
  local task <close> = core.spawn_timed(seconds, f, ...)
  task:join(seconds)
  if task:done() then
    return task:await()
  end
  local now = core.place(task)
  task:cancel()
  core.let_clean_up(task) -- how that fails is for whoever looks
  core.raise("Timeout", say(now))
end

--- gpu.timeout(seconds, f, ...): runs f(...) as a task on the caller's stream, for at most so long; returns its results
-- or raises its error. When the time is over it cancels f's waits and raises Timeout.
function gpu.timeout(seconds, f, ...)
  return core.run_timed(function(now)
    return string.format("%s was not over after %s s%s", describe(f), seconds, now and "; it was at " .. now or "")
  end, seconds, f, ...)
end

--- gpu.progress{ [total =,] [label =] } -> progress: see progress.lua.
function gpu.progress(...)
  return require "gpulua.progress"(...)
end

--- gpu.report() -> report: see report.lua.
function gpu.report()
  return require "gpulua.report".get()
end

--- gpu.trace.events(), gpu.trace.json(path), gpu.trace.timeline(path): see trace.lua.
gpu.trace = setmetatable({}, { __index = function(_, name)
  return require "gpulua.trace"[name]
end })

--- gpu.range(name[, payload]) -> range: see ranges.lua.
function gpu.range(...)
  return require "gpulua.ranges".range(...)
end

--- device:capture([{label=, pool=},] f) -> graph: what f and the tasks that it spawns launch on the device is recorded
-- instead of being done. An error in f ends the capture, and is raised. Waits for the tasks of f, so that it
-- yields in a task. Buffers that f makes and that nobody holds afterwards are the graph's own, and share memory; a
-- collection of garbage finds out which those are. EmptyCapture: f launched nothing. CaptureActive: the task is in a
-- capture already.
-- device:capture{label=} -> capture, to which the caller's task belongs until capture:finish() -> graph, or until it is
-- closed: then nothing comes of it.
package.loaded["gpulua.device"].capture = function(device, options, f)
  if f == nil and arguments.is_callable(options) then
    options, f = nil, options
  end
  if f == nil then
    local capture = core.capture_begin(device, options)
    core.capture_enter(capture)
    return capture
  end
  local capture <close> = core.capture_begin(device, options)
  core.capture_spawn(capture, f):await()
  return capture:finish()
end

--- device:graphed([{warmup=, label=, pool=},] f) -> graphed: see graphed.lua.
package.loaded["gpulua.device"].graphed = function(...)
  return require "gpulua.graphed"(...)
end

-- device:inject{oom=, fault=, lost=, slow=, seconds=}: see inject.lua.
package.loaded["gpulua.device"].inject = require "gpulua.inject"

-- device:on_lost(f), device:on_restored(f), device:await([seconds]), device:flight([file]), buffer:checkpoint(): see
-- recovery.lua.
local recovery = require "gpulua.recovery"
for _, name in ipairs { "on_lost", "on_restored", "await", "flight" } do
  package.loaded["gpulua.device"][name] = recovery[name]
end
package.loaded["gpulua.buffer"].checkpoint = recovery.checkpoint

--- device:hooks{before_enqueue=, after_enqueue=, before_complete=, after_complete=} -> device: see hooks.lua.
package.loaded["gpulua.device"].hooks = function(...)
  return require "gpulua.hooks"(...)
end

--- device:memory_map() -> map: see memory_map.lua.
package.loaded["gpulua.device"].memory_map = function(...)
  return require "gpulua.memory_map".of(...)
end

--- device:blas([{workspace=, tf32=}]) -> blas: see blas.lua.
package.loaded["gpulua.device"].blas = function(...)
  return require "gpulua.blas"(...)
end

--- device:rng([{generator=, seed=, offset=, ordering=, dimensions=} or {state=}]) -> rng: see rng.lua.
package.loaded["gpulua.device"].rng = function(...)
  return require "gpulua.rng"(...)
end

--- device:fft{ shape =, ... } -> plan: see fft.lua.
package.loaded["gpulua.device"].fft = function(...)
  return require "gpulua.fft"(...)
end

local scalar = package.loaded["gpulua.scalar"]
local values_of = scalar.get

--- scalar:get() -> its value. Waits for what writes it; yields in a task.
function scalar.get(self)
  return values_of(self)[1]
end

local graph = package.loaded["gpulua.graph"]
local text_of = graph.dot

--- graph:update([{rebuild=},] f) -> true, nodes that have other arguments now[, the first of them], or false, the first
-- difference: other work, or work that follows other work, for which the graph was made anew. It becomes what f
-- launches, for launches that come later. Waits for the tasks of f, so that it yields in a task. Buffers that f makes
-- are those that were made at their places before, where size and label are the same. TopologyChanged, where it would
-- have to be made anew and rebuild is false; EmptyCapture; then, and with an error in f, it stays as it was.
function graph.update(self, options, f)
  if f == nil and arguments.is_callable(options) then
    options, f = nil, options
  end
  local rebuild = true
  if options ~= nil and type(options) ~= "table" or not arguments.is_callable(f) then
    core.capture_again(self):close() -- raises, if it is closed
    core.raise("InvalidArgument", string.format("update: [options,] a function expected, got %s, %s", type(options),
      type(f)))
  end
  if options then
    arguments.check("update", options, { rebuild = true })
    rebuild = arguments.flag("update", options, "rebuild") ~= false
  end
  local capture <close> = core.capture_again(self)
  core.capture_spawn(capture, f):await()
  return core.capture_update(capture, self, rebuild)
end

--- graph:dot([path]) -> the graph as text for Graphviz, which is written into the file, too. Io: it cannot be.
function graph.dot(self, path)
  local text = text_of(self)
  if path ~= nil then
    require "gpulua.file".write(path, "dot", text)
  end
  return text
end

gpu.graph = require "gpulua.control"
gpu.map = require "gpulua.map"
gpu.reduce = require "gpulua.reduce"

for _, kind in ipairs { "device", "buffer", "scalar", "graph" } do
  entries(package.loaded["gpulua." .. kind])
end
return entries(gpu)
