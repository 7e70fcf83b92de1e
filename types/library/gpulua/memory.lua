---@meta _
--[[
# Memory

`device:memory` makes a resource that buffers come from. What its options ask for lies on each other in this order:
`from`, `oom`, `guard`, `budget`, `statistics`, `log`; for another order one memory stands on another (`from`).
]]

---Where buffers come from.
---
---```lua
---local small = dev:memory { budget = 1 << 20, label = "small" }
---local x <close> = small:buffer("f32", 1024)
---print(small:stats().remaining_bytes)       --> 1044480
---print(select(2, pcall(small.buffer, small, "f32", 1 << 20)).code) --> OutOfBudget
---```
---@class gpulua.memory
---@field kind "slab"|"driver"|"direct"|"policy"|"guard"|"budget"|"statistics"|"logging" What is on top.
---@field label string Or "".
---@field device gpulua.device
---@field trackable boolean May launches and strict recorders use its buffers? Not those of "direct".
---@field pressure "none"|"low"|"medium"|"high"|"critical" The level of the nearest budget.
local memory = {}

---Options of `device:memory`.
---@class gpulua.memory_options
---@field from? "slab"|"driver"|"direct"|gpulua.memory What it stands on; "slab", the device's own, by default.
---@field oom? "fail"|"free"|"wait" With none left: raise, ask `memory:on_oom`, or wait.
---@field timeout? number Seconds for `oom = "wait"`, from 0 on; 1 by default.
---@field guard? boolean|gpulua.guard_options Find writes outside of buffers, and after their end.
---@field budget? integer Bytes that may be in use at once.
---@field statistics? boolean Count for `memory:stats`.
---@field log? boolean|fun(line: string) Lines for `memory:log`, or a function that gets them.
---@field log_bytes? integer Of lines that are kept, 192 to 16777216; 65536 by default. Further lines are counted.
---@field label? string In its text; errors of its budget name it.

---Options of `guard`.
---@class gpulua.guard_options
---@field canary? integer Bytes before and after each buffer, 1 to 1048576; 512 by default.
---@field quarantine? integer Bytes of freed buffers that are kept to be looked at; 16777216 by default.

---A buffer made of it; see `device:buffer`.
---
---Waits: no; where memory is short it blocks to get some back.
---
---Errors: `InvalidArgument`, `Unsupported`, `CaptureActive`, what the functions of `memory:on_oom` raise, those of
---memory.
---@param type gpulua.element_type
---@param shape gpulua.shape
---@param options? gpulua.buffer_options `memory` is refused: it is what the method is called on.
---@return gpulua.buffer buffer
function memory:buffer(type, shape, options) end

---Several buffers, or none: room for all of them is reserved in one step. Each argument is { type, shape, options }.
---
---```lua
---local mem = dev:memory { budget = 1 << 20 }
---local x, y = mem:buffers({ "f32", 16 }, { "i32", { 4, 4 }, { label = "y" } })
---print(x.type, y.label)                     --> f32	y
---```
---
---Waits: no; where memory is short it blocks to get some back.
---
---Errors: `OutOfBudget` (of their sum), `InvalidArgument` (also more than 1,024), `Unsupported`, `CaptureActive`, what
---the functions of `memory:on_oom` raise, those of memory (`DeviceLost` also where the device was lost while they were
---made, and is there again).
---@param ... any[]
---@return gpulua.buffer ... As many as arguments.
function memory:buffers(...) end

---Counters.
---
---Waits: no.
---
---Errors: `Closed`.
---@return gpulua.memory_stats stats
function memory:stats() end

---The lines of its log that nobody has had yet, as "12 allocate 1024 bytes for allocation 7 'x' at pipeline.lua:3". A
---number that is missing is of a line for which there was no room.
---
---Waits: no.
---
---Errors: `InvalidArgument` (it was made without a log), `Closed`.
---@return string[] lines
function memory:log() end

---Looks at the neighbourhood of each buffer and at all that is in quarantine.
---
---Waits: blocks until the device is idle.
---
---Errors: `OutOfBounds` and `UseAfterFree` (findings, with the buffer's name), `InvalidArgument` (it was made without
---`guard`), failures of work, `Closed`, `Timeout`, `Interrupted`.
---@return gpulua.memory memory The same one.
function memory:check() end

---Gives back what is freed and no longer used, and what is in quarantine.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer bytes How many came free.
function memory:reap() end

---Calls `f(level, remaining_bytes)` as a task when the level of the nearest budget changes: "low" from 50 % on,
---"medium" 70 %, "high" 85 %, "critical" 95 %, else "none".
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfMemory`, `Closed`.
---@param f fun(level: string, remaining_bytes: integer)
---@return gpulua.memory memory The same one.
function memory:on_pressure(f) end

---Calls `f(bytes)` in the middle of an allocation when the device has no memory left: it frees what it can, and returns
---whether it has. Higher priorities come first. For memory that was made with `oom = "free"`. Where a budget is short,
---the device's or a memory's, nobody is asked: that is `OutOfBudget`.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Capacity` (`limit_oom_hooks`), `OutOfMemory`, `Closed`.
---@param f fun(bytes: integer): boolean
---@param priority? integer 0 by default.
---@return gpulua.memory memory The same one.
function memory:on_oom(f, priority) end

---Ends the handle. Its buffers stay, and what it stands on.
---
---Waits: no.
---
---Errors: none.
function memory:close() end

---What `memory:stats` gives. Those up to `blocks_live_max` count with `statistics = true`, and are 0 else.
---@class gpulua.memory_stats
---@field allocs integer
---@field frees integer
---@field failures integer
---@field bytes_live integer
---@field bytes_live_max integer
---@field bytes_total integer
---@field largest_bytes integer
---@field blocks_live integer
---@field blocks_live_max integer
---@field remaining_bytes integer Of the nearest budget.
---@field limit_bytes integer Of the nearest budget.
---@field outstanding_bytes integer In buffers.
---@field outstanding_count integer Buffers.
---@field log_events integer Lines, in all.
---@field log_drops integer Lines for which there was no room.

---What `device:memory_map` gives: a list, the largest first.
---@class gpulua.memory_map
---@field [integer] gpulua.memory_entry
---@field device string The device's name.
---@field live_bytes integer
---@field freed_bytes integer Freed, but used by work in flight.
---@field host_bytes integer Pinned memory of the host.
---@field reserved_bytes integer What the driver has given in all.

---An entry of `device:memory_map`.
---@class gpulua.memory_entry
---@field kind gpulua.holding
---@field number integer The buffer's, which messages call its allocation; a graph's; never given to another one.
---@field label string Or "".
---@field source? string "file:line" of the script that asked for it, where that is known.
---@field bytes integer Asked for.
---@field memory_bytes integer What it takes; 0: it lies in something else.
---@field age? number Seconds; nil for graphs.
---@field where "device"|"host"
---@field freed boolean Nobody holds it any more, but work in flight uses it.

---Who holds memory.
---@alias gpulua.holding
---| "buffer"
---| "host" # A host buffer.
---| "pool" # What temporaries of graphs lie in.
---| "temporary" # In a pool.
---| "variable" # Of a module.
---| "import" # Another library's.
---| "graph" # The nodes of a graph, estimated.
---| "gpulua" # Staging, images, copies to restore from, reports.
