---@meta _
--[[
# Operations, tasks, streams

What a launch, a library call, a replay or `stream:mark` returns is an **op**: a piece of work that one can wait for. A
**task** is a function that runs as a coroutine, whose waits let others run. A **stream** is an order: what is put on
one is done one after another. Each task has one of 32 streams by itself, so what tasks do overlaps on the device. Where
work on two streams uses the same bytes, and one of them writes, the later one's stream waits on the device for the
earlier one, in the order in which they were launched: a **fence**.

An op that a capture has recorded stands for no work: what waits for it raises `CaptureActive`, and `op:done` is true.
]]

---What one can wait for.
---@alias gpulua.waitable gpulua.op|gpulua.task|gpulua.buffer|gpulua.host_buffer

---A piece of work.
---@class gpulua.op
---@field label string
---@field stream integer The number of its stream.
---@field seq integer Its place there, from 1.
local op = {}

---Waits until it is over. A time limit ends the wait and not the work.
---
---Waits: yields.
---
---Errors: `Timeout`, `InvalidArgument`, `CaptureActive`, `Closed`, failures of work, those of waits.
---@param seconds? number At most.
---@return gpulua.op op The same one.
function op:await(seconds) end

---Like `op:await`, with the error as a result.
---
---```lua
---local ok, result = dev:current():mark():join(10)
---print(ok, gpu.type(result))                --> true	op
---```
---
---Waits: yields.
---
---Errors: `InvalidArgument`, `CaptureActive`, `Closed`, those of waits.
---@param seconds? number At most.
---@return boolean ok
---@return gpulua.op|gpulua.error result
function op:join(seconds) end

---Is it over? It may have failed.
---
---Waits: no.
---
---Errors: `Closed`.
---@return boolean done
function op:done() end

---Calls `f(ok, error)` as a task once it is over. Those of one stream are called in the order of its operations. The
---task is a child of the caller's, which ends no sooner; a caller that fails or is cancelled takes no call along, and
---what f raises is reported as of any detached task then.
---
---```lua
---dev:current():mark():on_done(function(ok)
---  print(ok)                                --> true
---end):await()
---```
---
---Waits: no.
---
---Errors: `InvalidArgument`, `CaptureActive`, `Closed`, `OutOfMemory`.
---@param f fun(ok: boolean, error?: gpulua.error)
---@return gpulua.op op The same one.
function op:on_done(f) end

---How long it took on the device. nil: it is not over, or the device is not traced (`trace = true` of `gpu.device`).
---
---Waits: no; of a traced GPU it blocks until the device has told.
---
---Errors: `Closed`.
---@return number? seconds
function op:elapsed() end

---If it is not over in so many seconds the device is lost, and `DeviceLost` names it: a kernel that does not end cannot
---be stopped by less. In a process of its own the device comes up again. Called once more, it counts from then on.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `CaptureActive`, `OutOfMemory`, `Closed`.
---@param seconds number From 0 to 1e9.
---@return gpulua.op op The same one.
function op:deadline(seconds) end

---Ends the handle; the work goes on. A failure that nobody has seen is still told.
---
---Waits: no.
---
---Errors: none.
function op:close() end

---A function that runs, made by `gpu.spawn`.
---@class gpulua.task
local task = {}

---Waits until it is over, its children included, and gives what it returned.
---
---Waits: yields; outside of tasks it drives the loop.
---
---Errors: what the task raised; `Timeout`, `InvalidArgument` (a wait that would never end), `NotYieldable`, `Closed`,
---those of waits.
---@param seconds? number At most.
---@return any ... What its function returned.
function task:await(seconds) end

---Like `task:await`, with the error as a result.
---
---```lua
---print(gpu.spawn(error, "no", 0):join())    --> false	no
---print(gpu.spawn(math.max, 1, 2):join())    --> true	2
---```
---
---Waits: yields; outside of tasks it drives the loop.
---
---Errors: `InvalidArgument`, `NotYieldable`, `Closed`, those of waits.
---@param seconds? number At most.
---@return boolean ok
---@return any ... What its function returned, or the error.
function task:join(seconds) end

---Is it over?
---
---Waits: no.
---
---Errors: none.
---@return boolean done
function task:done() end

---Cancels it and its children: their waits raise `Cancelled`, and work that they have given goes on. It is over when it
---has cleaned up.
---
---```lua
---local task = gpu.spawn(gpu.sleep, 60)
---task:cancel():join()
---print(task:status())                       --> cancelled
---```
---
---Waits: no.
---
---Errors: none.
---@return gpulua.task task The same one.
function task:cancel() end

---What it is at.
---
---Waits: no.
---
---Errors: none.
---@return "queued"|"running"|"waiting"|"done"|"failed"|"cancelled" status
function task:status() end

---It belongs to nobody any more, nor to a capture: nobody waits for it, what it launches from here on is done, and a
---failure is reported.
---
---Waits: no.
---
---Errors: none.
---@return gpulua.task task The same one.
function task:detach() end

---Where its error was raised. nil: it has not failed.
---
---Waits: no.
---
---Errors: none.
---@return string? traceback
function task:traceback() end

---Cancels it, if it is not over.
---
---Waits: no.
---
---Errors: none.
function task:close() end

---An order of work on a device. Two handles of one stream are equal.
---@class gpulua.stream
---@field id integer Its number.
---@field label string Or "".
---@field priority integer
local stream = {}

---Calls `f(...)` with this as the current stream of the task.
---
---```lua
---local stream = dev:stream()
---print(stream:use(function() return dev:current() == stream end)) --> true
---```
---
---Waits: no, but what f does.
---
---Errors: `InvalidArgument`, `Closed`, what f raises.
---@param f function
---@param ... any Arguments of f.
---@return any ... What f returns.
function stream:use(f, ...) end

---What is put on this stream from here on starts after the op, or after all that is on the other stream now. In a
---capture it orders nothing: nodes are ordered by what they read and write.
---
---Waits: no.
---
---Errors: `InvalidArgument` (of another device), those of work.
---@param after gpulua.op|gpulua.stream
---@return gpulua.stream stream The same one.
function stream:wait(after) end

---An op that is over when all is that is on the stream now.
---
---Waits: no.
---
---Errors: those of work.
---@return gpulua.op op
function stream:mark() end

---Waits for all that is on the stream now, and raises a failure that nobody has seen of work that this task has
---launched, or one that is over.
---
---Waits: yields.
---
---Errors: failures of work, `CaptureActive`, `Closed`, those of waits.
---@return gpulua.stream stream The same one.
function stream:synchronize() end

---Refuses further work. What is on it is done.
---
---Waits: no.
---
---Errors: none.
function stream:close() end

---Declares what a host's own work uses, so that gpulua orders it as it does its own: `read`, `write` and `read_write`
---say what it uses, `preflight` lets the stream wait for what conflicts, then the host puts its work on the stream, and
---`commit` ends it. Scripts that use gpulua's operations need none.
---
---```lua
---local x = dev:buffer("f32", 4):fill(0)
---local recorder = dev:recorder():write(x):preflight()
---recorder:commit():await()
---```
---@class gpulua.recorder
local recorder = {}

---The work reads these.
---
---Waits: no.
---
---Errors: `InvalidArgument` (nothing is given), `Closed`. What else is wrong is raised by `recorder:preflight`.
---@param ... gpulua.buffer|gpulua.host_buffer
---@return gpulua.recorder recorder The same one.
function recorder:read(...) end

---The work writes these, and does not look at what was there.
---
---Waits: no.
---
---Errors: `InvalidArgument` (nothing is given), `Closed`. What else is wrong is raised by `recorder:preflight`.
---@param ... gpulua.buffer|gpulua.host_buffer
---@return gpulua.recorder recorder The same one.
function recorder:write(...) end

---The work reads and writes these.
---
---Waits: no.
---
---Errors: `InvalidArgument` (nothing is given), `Closed`. What else is wrong is raised by `recorder:preflight`.
---@param ... gpulua.buffer|gpulua.host_buffer
---@return gpulua.recorder recorder The same one.
function recorder:read_write(...) end

---Lets the stream wait for all that conflicts, and raises the first thing that was refused.
---
---Waits: no; it blocks while too much is in flight.
---
---Errors: `StreamMisuse` (what cannot be tracked; a second time), `DependencyFailed` (what it reads was not written),
---`UseAfterFree` and `Stale` (freed or lost since), `CaptureActive`, those of work.
---@return gpulua.recorder recorder The same one.
function recorder:preflight() end

---Ends the recorder: its uses are those of what is on the stream now.
---
---Waits: no.
---
---Errors: `StreamMisuse` (without preflight, or with a use after it), those of work. After `Timeout`, `Interrupted` and
---`OutOfMemory` nothing is noted yet, and it can be called again.
---@return gpulua.op op It is over when all is that is on the stream now.
function recorder:commit() end

---How many uses it has so far.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer count
function recorder:count() end

---Nothing was enqueued: forgets the uses.
---
---Waits: no.
---
---Errors: `Closed`.
function recorder:cancel() end

---Ends it: before `preflight` like cancel; after it the uses are committed, as the host may have enqueued the
---work, and counted as `recorders_abandoned`.
---
---Waits: no.
---
---Errors: none.
function recorder:close() end
