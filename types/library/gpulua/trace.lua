---@meta _
--[[
# Traces, reports, progress

A device that is opened with `trace = true`, or under `gpulua --trace`, `--timeline`, `--summary` or `GPULUA_TRACE=1`,
keeps what it is given and when it did it.

A device that several states share is traced if its host wants that (`trace_ops_max` of `gpulua_device_config`, or
`GPULUA_TRACE=1`). A state whose configuration asks for traces then sees what all of them give the device, from when it
opens it itself until it closes it; what was another's has that one's `seat` and no task. A state that does not ask, and
a sandbox, sees none of it.
]]

---What traced devices have done: `gpu.trace`.
---@class gpulua.trace
local trace = {}

---An iterator over events: the operations of each traced device in the order in which they were given, then what tasks
---did.
---
---```lua
---local traced <close> = gpu.device("cpu", { trace = true, isolate = "none" })
---traced:buffer("f32", 4, { label = "x" }):fill(1):await()
---for event in gpu.trace.events() do
---  if event.kind == "fill" then print(event.kind, event.device, event.outcome) end --> fill	cpu	succeeded
---end
---```
---
---Waits: blocks until the devices have told what they know.
---
---Errors: `StreamMisuse` (nothing is traced).
---@return fun(): gpulua.event?
function trace.events() end

---Writes what is traced so far for Perfetto (ui.perfetto.dev) and chrome://tracing.
---
---Waits: no; blocks for the file.
---
---Errors: `StreamMisuse`, `Io`, `InvalidArgument`.
---@param path string
function trace.json(path) end

---Writes what is traced so far as a page for any browser.
---
---Waits: no; blocks for the file.
---
---Errors: `StreamMisuse`, `Io`, `InvalidArgument`.
---@param path string
function trace.timeline(path) end

---Why an operation waits for an earlier one of the same log, as "RAW 'data'"; "order" where no memory says so.
---
---Waits: no.
---
---Errors: `StreamMisuse` (nothing is traced), `InvalidArgument` (a number that is in no log).
---@param log integer The device's log: `event.log`.
---@param earlier integer Its number there.
---@param later integer
---@return string reason
function trace.reason(log, earlier, later) end

---How far the logs go, times in nanoseconds. nil: nothing is traced.
---
---Waits: blocks until the devices have told what they know.
---
---Errors: none.
---@return gpulua.trace_info? info
function trace.info() end

---@private
---The same, and what tasks did up to now, for `gpulua.core`.
---@return gpulua.trace_info? info
---@return any spans
function trace.logs() end

---The arguments of a launch, in the order of the kernel's parameters; empty for what is no launch.
---
---```lua
---local traced <close> = gpu.device("cpu", { trace = true, isolate = "none" })
---local add = traced:compile([[extern "C" __global__ void add(float a, float *x) { x[threadIdx.x] += a; }]]).add
---add:launch({ grid = 1, block = 4 }, 0.5, traced:buffer("f32", 4, { label = "x" }):fill(1)):await()
---for event in gpu.trace.events() do
---  if event.kernel == "add" then
---    local a, x = table.unpack(gpu.trace.arguments(event.log, event.number))
---    print(a.name, a.type, a.value)         --> a	f32	0.5
---    print(x.name, x.type, x.value)         --> x	inout f32*	x
---  end
---end
---```
---
---Waits: no.
---
---Errors: `StreamMisuse` (nothing is traced), `InvalidArgument` (a number that is in no log).
---@param log integer The device's log: `event.log`.
---@param number integer Its number there.
---@return gpulua.traced_argument[] arguments
function trace.arguments(log, number) end

---@private
---The value of an argument as files show it: integers in full, others to 9 digits.
---@param value any
---@param kind? gpulua.element_type
---@return string text
function trace.argument_text(value, kind) end

---@private
---The memory that an operation uses, as files show it: of much of it the first, and how much more.
---@param log integer
---@param number integer
---@param has_bytes boolean Which bytes of it, too.
---@return string text
function trace.uses_text(log, number, has_bytes) end

---@private
---What `gpulua` calls at the end of a program.
---@param json_path? string
---@param timeline_path? string
---@param wants_summary? boolean
---@param was_interrupted? boolean
function trace.finish(json_path, timeline_path, wants_summary, was_interrupted) end

---What `gpu.trace.info` gives: a list of the traced devices, and of all of them:
---@class gpulua.trace_info
---@field [integer] gpulua.trace_log
---@field begun integer When tracing began.
---@field spans integer What tasks did: runs, waits, ranges.
---@field dropped integer Of those, how many had no room.

---The log of a device.
---@class gpulua.trace_log
---@field name string The device's; with a number where several have one name.
---@field seat? integer The state's own, where it shares the device with others: see `event`.
---@field ops integer
---@field dropped integer
---@field waits_issued integer
---@field waits_elided integer
---@field bytes_live_max integer
---@field compilations integer
---@field compile_ns integer
---@field cache_hits integer
---@field peaks table<string, integer> The most bytes for each label, or line.

---An event of `gpu.trace.events`. Times are seconds since tracing began.
---@class gpulua.event
---@field kind gpulua.event_kind
---@field label string Or ""; of a wait, what for.
---@field where? string "file:line" of the call; of a run, where the task was spawned.
---@field task? integer Its number; nil outside of tasks, and of what other states gave.
---@field begun? number On the device, or of the span; nil where that is not known.
---@field ended? number
---@field device? string Of operations, as all that follows.
---@field seat? integer Of what another state gave a shared device: which one, from 1, in the order of opening it.
---@field stream? integer
---@field stream_label? string nil where the stream has none.
---@field seq? integer
---@field log? integer Its place in the logs; of a wait, that of what it waited for.
---@field number? integer
---@field asked? number When the call began.
---@field given? number When the device had it.
---@field over? number When the script's side knew that it was over.
---@field kernel? string Of launches.
---@field grid? integer[]
---@field block? integer[]
---@field arguments? gpulua.traced_argument[] Of launches, as `gpu.trace.arguments` gives them.
---@field nodes? gpulua.traced_node[] Of graphs, in the order of their beginnings; on CUDA where CUPTI is.
---@field bytes? integer That it moves or uses.
---@field held_bytes? integer That buffers of the device took then.
---@field waits? integer[] Numbers in this log that it started after; 0: one that is not in it.
---@field outcome? "succeeded"|"failed"|"pending"

---What a node of a launched graph took. One that is several pieces of work is there as many times; what is in a body of
---a conditional node each time that it was done.
---@class gpulua.traced_node
---@field node integer Counted from 1; of what is in a body, the graph's node that it is in.
---@field kernel? string Of a launch.
---@field where? string "file:line" of the call that made it a node.
---@field in_body? boolean True of what is in a body.
---@field kind gpulua.event_kind
---@field label string
---@field begun number Seconds since tracing began.
---@field ended number
---@field bytes integer That a copy or a fill moved.

---One argument of a launch.
---@class gpulua.traced_argument
---@field name? string Of the parameter; nil where the signature has none.
---@field type string As the signature has it: "f32", "inout f32*".
---@field is_pointer boolean
---@field value? number|number[]|string Of a pointer: its buffer's name, with the byte if not the first; "?": unknown.

---What an event is.
---@alias gpulua.event_kind
---| "launch"
---| "library"
---| "copy"
---| "upload"
---| "download"
---| "fill"
---| "mark"
---| "graph"
---| "run" # A task ran, or a main chunk that is none, as under `lua`.
---| "wait" # A task waited.
---| "range" # `gpu.range`.

---What `gpu.report` gives.
---@class gpulua.report
---@field devices gpulua.device_report[]
---@field waits gpulua.wait_report[] What stalled the script longest first.
---@field dropped integer Waits, runs of tasks and ranges that had no room.

---Of one device. Compilations, fences and memory are those of all states that share it, since it was opened.
---@class gpulua.device_report
---@field name string
---@field operations integer In the log; of a device that several states share, the state's own.
---@field dropped integer Operations that had no room there.
---@field untimed integer Operations without a time: failed, not over yet, or in check mode; marks do not count.
---@field failed integer Operations that failed, by themselves, with what they needed, or with the device.
---@field elapsed number Seconds from the first to the last, whoever gave them.
---@field busy number Seconds with work under way.
---@field kernels gpulua.kernel_report[] The dearest first; also graphs, fills and library calls.
---@field copies gpulua.copy_report[] The dearest first.
---@field others gpulua.other_report[] What other states gave a device that they share, the dearest first.
---@field compiled { count: integer, total: number, from_cache: integer } Runs of a compiler, and what the cache had.
---@field fences { issued: integer, left_out: integer }
---@field peak_bytes integer The most that buffers took.
---@field peaks { name: string, bytes: integer }[] The same for each label, or line where there is none.

---Of one kernel.
---@class gpulua.kernel_report
---@field name string Of several kernels that share one: the label or, where there is none, with the line behind it.
---@field count integer
---@field total number Seconds, as all that follows but `share`.
---@field median number
---@field p99 number
---@field longest number
---@field share number Of the device's time.

---Of one kind of transfer.
---@class gpulua.copy_report
---@field name string
---@field count integer
---@field total number Seconds.
---@field bytes integer
---@field rate? number Bytes per second.
---@field share number Of the device's time.

---Of one of the other states that share a device.
---@class gpulua.other_report
---@field seat integer As in `event`.
---@field operations integer
---@field total number Seconds.
---@field share number Of the device's time.

---Of one line of the script that waited.
---@class gpulua.wait_report
---@field where? string "file:line".
---@field label string For what.
---@field count integer
---@field total number Seconds, of all of them, also while other tasks ran.
---@field longest number Seconds.
---@field stalled number Seconds of it in which no other task ran, once where waits of the line overlap.

---A range of the script, from `gpu.range`.
---@class gpulua.range
local range = {}

---The range ends here.
---
---Waits: no.
---
---Errors: none.
function range:close() end

---How far long work has come, from `gpu.progress`.
---@class gpulua.progress
local progress = {}

---So much more is done.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`.
---@param count? number 1 by default.
---@return gpulua.progress progress The same one.
function progress:step(count) end

---So much is done in all.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`.
---@param count number
---@return gpulua.progress progress The same one.
function progress:set(count) end

---Writes a last line, with what it took.
---
---Waits: no.
---
---Errors: none.
function progress:close() end
