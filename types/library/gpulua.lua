---@meta gpulua
--[[
# The module gpulua

What is here is what `require "gpulua"` gives. In the examples `gpu` is that, and `dev` is `gpu.device()`; what follows
`-->` is what a line prints.

Arguments in brackets, and what is optional, may be left out. Options are fields of a table; one that a call does not
know is an error (`InvalidArgument`), so a misspelt name does not go unnoticed. Indices count from 1, and ranges include
their last element. Sizes are in elements, unless the name says bytes; times are in seconds.

## Waits

Work is given to a device and done there later. Nothing waits for it but what says so here. A wait **yields** in the
body of a task: the task goes on when the wait is over, and other tasks run meanwhile. Elsewhere it blocks: in stock
Lua's main chunk (`gpulua` runs a script as a task), in a coroutine of the script's own, inside `require`, `__tostring`
or the function of `table.sort` (what C calls; other metamethods yield). What is said to **block** stops the thread in
any case.

## Handles

Devices, buffers, kernels and so on are handles. Each has `close()`, which may be called more than once, so each can be
a `<close>` variable; what is not closed is closed by the collector. Work that was given to the device keeps what it
uses. `tostring` says what a handle is; `gpu.type` tells them apart.
]]

---@class gpulua
---@field version string The version, as "0.1.0".
---@field graph gpulua.control Control flow on the device.
---@field trace gpulua.trace What traced devices have done; also `require "gpulua.trace"`.
local gpulua = {}

---Opens a device, or gives the one that is open already: without options there is one of each name. With a table of
---options alone, they are for the default device.
---
---```lua
---local cpu = gpu.device("cpu", { isolate = "none", label = "reference" })
---print(cpu.kind, cpu.label)                 --> cpu	reference
---cpu:close()
---```
---
---Waits: blocks until the device is up.
---
---Errors: `InvalidArgument` (a name, an option or a variable of the environment), `NoDevice` (there is none of that
---name), `LibraryUnavailable` (the driver), `Driver`, `Unsupported` (an option that this device cannot have), `Io` (its
---process, or the folder for core dumps), `DeviceLost` (its process ended at once), `OutOfMemory`, `Interrupted`,
---`Closed` (the state is closing).
---@param name? gpulua.device_name Nothing: `--device` or `GPULUA_DEVICE`, else the first GPU, else the CPU device.
---@param options? gpulua.device_options
---@return gpulua.device device
---@overload fun(options: gpulua.device_options): gpulua.device
function gpulua.device(name, options) end

---The devices that are open.
---
---Waits: no.
---
---Errors: none.
---@return gpulua.device[] devices
function gpulua.devices() end

---What kind of handle a value is: "device", "buffer", "host buffer", "module", "kernel", "stream", "recorder",
---"capture", "graph", "pool", "scalar", "memory", "op" or "task", with "closed " in front once it is closed; "error"
---for an error object. Like `io.type`. Nothing else has a kind: of a `blas`, `fft`, `rng` or graphed function, tables
---with metatables, it is nil.
---
---```lua
---local x = dev:buffer("f32", 8)
---print(gpu.type(x), gpu.type(8))            --> buffer	nil
---x:close()
---print(gpu.type(x))                         --> closed buffer
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (no argument at all).
---@param value any
---@return string? kind
function gpulua.type(value) end

---Starts `f(...)` as a task, which first runs at the caller's next wait. It belongs to the task that spawned it: that
---one waits for it when its own body ends, and cancelling goes down. When the parent's body ends, an error that nobody
---joined cancels the siblings that still run, and is raised in the parent; of a task without parent it is reported, and
---the exit code is 1.
---
---```lua
---local task = gpu.spawn(function(a, b) return a + b end, 1, 2)
---print(task:await())                        --> 3
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (no function), `Closed` (the state is closing), `OutOfMemory`.
---@param f function
---@param ... any Arguments of f.
---@return gpulua.task task
function gpulua.spawn(f, ...) end

---Runs `f(...)` as a task and waits for it and its children. Outside of tasks it drives the loop: what a host, or stock
---Lua's main chunk, begins with.
---
---```lua
---print(gpu.run(function(x) gpu.sleep(0.001) return x end, "done")) --> done
---```
---
---Waits: yields until f and its children are over.
---
---Errors: what f raises; `InvalidArgument`, `NotYieldable` (where a task cannot be waited for), `Closed`, those of
---waits.
---@param f function
---@param ... any Arguments of f.
---@return any ... What f returns.
function gpulua.run(f, ...) end

---Waits for all of the ops, tasks and buffers, given one by one or as one table. Gives the result of each, in their
---order: of an op or a buffer itself, of a task its first result. The first that fails ends the wait, and is raised;
---the failures of others are still nobody's: they are for whoever waits for those, or for the task whose children they
---are, which fails with them in the end.
---
---```lua
---local a = gpu.spawn(function() return "a" end)
---local b = dev:buffer("f32", 4):fill(0)
---print(gpu.all(a, b) == "a")                --> true
---```
---
---Waits: yields until all are over.
---
---Errors: `InvalidArgument` (another value; a wait that would never end), `Capacity` (more than 900,000 items),
---`NotYieldable`, `Closed`, `UseAfterFree`, `Stale`, `CaptureActive`, what a task raised, failures of work, those of
---waits.
---@param ... gpulua.waitable|gpulua.waitable[]
---@return any ... One result for each.
function gpulua.all(...) end

---Waits for the first of the ops, tasks and buffers, given one by one or as one table. The others go on.
---
---```lua
---local slow = gpu.spawn(gpu.sleep, 10)
---local fast = gpu.spawn(function() return "fast" end)
---print(gpu.any { slow, fast })              --> 2	fast
---slow:cancel()
---```
---
---Waits: yields until one is over.
---
---Errors: those of `gpu.all`: `InvalidArgument` (also: nothing to wait for), `Capacity`, `NotYieldable`, `Closed`,
---`UseAfterFree`, `Stale`, `CaptureActive`, what the task raised, failures of work, those of waits.
---@param ... gpulua.waitable|gpulua.waitable[]
---@return integer index Which of them, from 1.
---@return any result Its first result.
function gpulua.any(...) end

---Waits for so many seconds. Outside of tasks, tasks run meanwhile.
---
---Waits: yields.
---
---Errors: `InvalidArgument`, those of waits.
---@param seconds number From 0 on.
function gpulua.sleep(seconds) end

---Waits until a descriptor is readable: there is something to read, its other end was closed, or somebody has
---connected. A file on disk always is. All that wait for it go on; who reads first has what is there. Outside of tasks,
---tasks run meanwhile.
---
---```lua
---local pipe = io.popen "sleep 0.05; echo done"
---print(gpu.readable(pipe, 0.001))           --> false
---print(gpu.readable(pipe), pipe:read())     --> true	done
---pipe:close()
---```
---
---Waits: yields until it is readable, or the time is over.
---
---Errors: `InvalidArgument` (no open descriptor; it was closed meanwhile), `OutOfMemory`, `Unsupported` (in a sandbox),
---those of waits.
---@param descriptor any A number, or a file of `io`, of which this does not know what it has read ahead.
---@param seconds? number From 0 on; without end by default.
---@return boolean is_readable False when the time is over.
function gpulua.readable(descriptor, seconds) end

---Runs `f(...)` as a task on the caller's stream, for at most so many seconds. When they are over the waits of f are
---cancelled and `Timeout` is raised, which says where f was; a call that waits within itself (for new memory, the first
---look at a kernel) raises it in f, and so does a wait that cannot yield (in a comparator, in a coroutine of the
---script's own). What f has given to the device goes on.
---
---```lua
---local ok, err = pcall(gpu.timeout, 0.01, gpu.sleep, 60)
---print(ok, err.code)                        --> false	Timeout
---```
---
---Waits: yields until f is over, or the time is.
---
---Errors: `Timeout`, what f raises; `InvalidArgument`, `NotYieldable`, `Closed`, those of waits.
---@param seconds number From 0 on.
---@param f function
---@param ... any Arguments of f.
---@return any ... What f returns.
function gpulua.timeout(seconds, f, ...) end

---One turn of the loop, for hosts that have a loop of their own: runs every task that can run, then waits until
---something happens, for so many seconds at most.
---
---Waits: blocks for `seconds` at most; without them not at all.
---
---Errors: `InvalidArgument`, `StreamMisuse` (called from a task), `Interrupted`.
---@param seconds? number From 0 on; 0 by default.
---@return integer tasks How many are left.
function gpulua.step(seconds) end

---A descriptor that is readable when `gpu.step` has something to do. It stays the same.
---
---Waits: no.
---
---Errors: none.
---@return integer descriptor
function gpulua.pollfd() end

---How long a host may wait for the descriptor before it calls `gpu.step` all the same: 0 now, nil until the descriptor
---is readable; at most 1 while tasks wait for a device. To be asked before each wait: calls that block take the
---descriptor's wakes away, and this one brings them back.
---
---Waits: no.
---
---Errors: none.
---@return number? seconds
function gpulua.timeout_hint() end

---What orders the second op of a pair after the first: the hazards between what both use. nil and a reason where
---nothing does.
---
---```lua
---local x = dev:buffer("f32", 4, { label = "x" })
---local scale = dev:compile([[extern "C" __global__ void scale(float *x) { x[threadIdx.x] *= 2; }]]).scale
---local one, other = dev:stream(), dev:stream()
---local a = scale:launch({ grid = 1, block = 4, stream = one }, x:fill(1))
---local b = scale:launch({ grid = 1, block = 4, stream = other }, x)
---print(gpu.why(b, a).order)                 --> fence
---print(gpu.why(b, a)[1].hazard)             --> RAW
---print(gpu.why(a, b))                       --> nil	it was launched first
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (no ops, of different devices, or too long ago), `Closed`.
---@param later gpulua.op
---@param earlier gpulua.op
---@return gpulua.why? why
---@return string? reason
function gpulua.why(later, earlier) end

---Work on each element, from an expression in Lua's syntax. Each element of `out` becomes what the expression gives for
---the elements at the same place of the buffers that are given by name; all of them have one shape. Buffers of one
---element, scalars and numbers are the same for all. The expression becomes one kernel, compiled once for each
---expression and set of types.
---
---**Language.** Lua's operators with Lua's precedence: `+ - * / // % ^`, `== ~= < <= > >=`, `and or not`,
---`& | ~ << >>`. `where(c, x, y)` chooses. Functions of real numbers: `sqrt rsqrt cbrt exp exp2 exp10 expm1 log log2
---log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma tgamma`, of two arguments
---`pow atan2 hypot copysign fmod`, of three `fma`. Of any numbers: `abs sign floor ceil round trunc isnan isinf
---isfinite`, `min` and `max` of 2 to 16, `clamp(x, low, high)`, and the name of a type to convert: `f32(x)`. Names that
---nobody gives: `index` (from 1), `pi`, `inf`, `nan`.
---
---**Types.** Buffers and scalars have theirs, Lua's numbers take that of what they meet. Of two floats the wider one
---counts (f16 with bf16: f32), of a float and an integer the float, of two integers the wider one, of a signed and an
---unsigned one a signed one that holds both. Integers wrap around; division by 0 with `//` or `%` is 0. With a
---fraction, `/` or a function of real numbers integers become f32 (8 and 16 bits) or f64. f16 and bf16 are computed in
---f32. A condition is no number, but `i32(x > 0)` is; a new buffer of conditions is u8, of 1 and 0. What is stored must
---fit the type of `out`.
---
---```lua
---local x = dev:upload("f32", { 3, -4, 5 })
---local y = gpu.map("where(x > 0, sqrt(x * x + c), 0)", { x = x, c = 16 })
---print(table.concat(y:read(), " "))         --> 5.0 0.0 6.403124332428
---gpu.map("x + y", { x = x, y = y, out = x })
---print(x:read(1, 1)[1])                     --> 8.0
---```
---
---Waits: no, but the first time, when the kernel is compiled: then it yields.
---
---Errors: `InvalidArgument` (the expression, and where in it; names, shapes, numbers that do not fit; memory shared in
---part), `Unsupported` (complex numbers), `CompileFailed`, `CaptureActive` (the kernel would have to be compiled in a
---capture), those of memory, those of work.
---@param expression string
---@param arguments gpulua.map_arguments The names of the expression, and options.
---@return gpulua.buffer result A new buffer of the expression's type; with `out` the op is the only result.
---@return gpulua.op op
---@overload fun(expression: string, arguments: { out: gpulua.buffer|gpulua.scalar }): gpulua.op
function gpulua.map(expression, arguments) end

---Joins elements to one value: all of them, or along one axis, counted from 1. Without an axis, or along the only one,
---a scalar on the device comes of it; along one of several, a buffer without that axis. Long axes take several launches
---with memory of their own between them; the op is the last. Calls nest: an op where options would be is passed over.
---
---**Types.** sum and prod: i64 of signed integers and u64 of unsigned ones, which wrap around, f64 of f64, f32 of other
---floats; the sum of complex numbers is theirs. mean: f64 of integers, else as sum. norm, the root of the sum of
---squared magnitudes: f64 of integers, f64 and c128, else f32. max and min: that of x. argmax and argmin: i64, the
---first place from 1. The same elements give the same bits each time and on every device, and sums have a bound that
---hardly grows with their length.
---
---```lua
---local x = dev:upload("f32", { 2, 3 }, { 1, 2, 3, 4, 5, 6 })
---print(gpu.reduce("sum", x):get())          --> 21.0
---print(table.concat(gpu.reduce("max", x, 1):read(), " ")) --> 4.0 5.0 6.0
---print(gpu.reduce("argmin", x):get())       --> 1
---```
---
---Waits: no, but the first time, when kernels are compiled: then it yields.
---
---Errors: `InvalidArgument` (no such reduction, axis or option; complex numbers have no order; type, shape, memory or
---device of `out`), `Unsupported` (prod of complex numbers), `CompileFailed`, `CaptureActive` (kernels would have to be
---compiled in a capture), those of memory, those of work.
---@param op gpulua.reduction
---@param x gpulua.buffer
---@param options? integer|gpulua.reduce_options An axis, or a table.
---@return gpulua.scalar|gpulua.buffer|any result With `out` the op is the only result.
---@return gpulua.op op
---@overload fun(op: gpulua.reduction, x: gpulua.buffer): gpulua.scalar, gpulua.op
---@overload fun(op: gpulua.reduction, x: gpulua.buffer, options: { out: gpulua.buffer|gpulua.scalar }): gpulua.op
function gpulua.reduce(op, x, options) end

---The pool that `pool:handle()` gave the number of; nil: it is gone.
---
---Waits: no.
---
---Errors: `InvalidArgument`.
---@param number integer
---@return gpulua.pool? pool
function gpulua.pool(number) end

---A line on the terminal that says how far long work has come, how fast it goes and, if `total` is given, how long it
---will take. Where standard error is no terminal it writes nothing. In the program
---gpulua it gives way to what the script writes there by print, io.write or file:write, and comes again with the next
---step.
---
---```lua
---local progress <close> = gpu.progress { total = 3, label = "frames" }
---for _ = 1, 3 do progress:step() end
---```
---
---Waits: no.
---
---Errors: `InvalidArgument`.
---@param options? gpulua.progress_options
---@return gpulua.progress progress
function gpulua.progress(options) end

---A range of the script, from here to `range:close()`, for traces and, with `GPULUA_NVTX=1`, for profilers that know
---NVTX. It may go across waits, and ranges of different tasks may overlap. Where nobody listens it costs next to
---nothing.
---
---```lua
---local range <close> = gpu.range("frame", 7)
---```
---
---Waits: no.
---
---Errors: `InvalidArgument`.
---@param name string Shown up to 255 bytes.
---@param payload? integer
---@return gpulua.range range
function gpulua.range(name, payload) end

---Where the time and the memory went, of traced devices. `tostring` makes tables for people of it, as `gpulua
-----summary` shows them.
---
---Waits: blocks until the devices have told what they know; for no work.
---
---Errors: `StreamMisuse` (nothing is traced).
---@return gpulua.report report
function gpulua.report() end

---What orders one op after another: a list of hazards, the first 16 of them.
---@class gpulua.why
---@field [integer] gpulua.hazard
---@field order "stream"|"fence" "stream": both are on one; "fence": the later one's stream waits.
---@field from integer The number of the earlier one's stream.
---@field to integer The number of the later one's stream.
---@field message string All of it in words.

---One reason for an order.
---@class gpulua.hazard
---@field hazard "RAW"|"WAR"|"WAW" The later one reads what the earlier one writes, writes what it reads, or both write.
---@field message string
---@field buffer? string The buffer's label, or ""; nil where it is a module's variables or a pool's memory.
---@field allocation? integer Its number.
---@field offset? integer The first byte in the allocation that both use, from 0.
---@field length? integer How many bytes.

---Arguments of `gpu.map`: every other field is a name of the expression. A name that the expression lacks is an error.
---@class gpulua.map_arguments
---@field [string] gpulua.buffer|gpulua.scalar|number
---@field out? gpulua.buffer|gpulua.scalar What gets the result: of the same shape; it may be one of the arguments.
---@field stream? gpulua.stream The one to work on; nothing: the current one.
---@field label? string For errors and traces.

---@alias gpulua.reduction
---| "sum"
---| "prod"
---| "mean"
---| "norm"
---| "max"
---| "min"
---| "argmax"
---| "argmin"

---Options of `gpu.reduce`.
---@class gpulua.reduce_options
---@field axis? integer The dimension that goes, from 1; nothing: all of them.
---@field out? gpulua.buffer|gpulua.scalar What gets the result; it shares no memory with x.
---@field stream? gpulua.stream The one to work on; nothing: the current one.
---@field label? string For errors and traces; "reduce".

---Options of `gpu.progress`.
---@class gpulua.progress_options
---@field total? number How much there is to do, from 0 on.
---@field label? string What stands in front.

return gpulua
