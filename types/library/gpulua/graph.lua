---@meta _
--[[
# Graphs

`device:capture` records what is launched and makes a graph of it: one operation for the device, however much is in it.
Its nodes are ordered by what they read and write, and by nothing else: streams, `stream:wait` and `stream:mark` order
nothing in a capture. A graph can be changed: `graph:bind` puts other buffers and numbers into it, `graph:update` what a
function launches now, and `device:graphed` sees by itself what has changed. What kernels read through a pointer, such
as a scalar, changes without that.

Nothing can be compiled or loaded in a capture (`CaptureActive`). So what compiles at its first call, as `gpu.map`,
`gpu.reduce` and the calls of libraries do, has to be called once before.

## Control flow

`gpu.graph.if_`, `while_` and `switch` choose and repeat on the device, by a number that is read there when it is
needed. In a capture each is one node: its functions are called once, and what they launch becomes a body of it. Outside
of captures each waits for the condition, reads it, and calls the function that it chooses. Both do the same to every
buffer. A condition is a scalar, or a buffer of one element, of an integer type.
]]

---Control flow on the device: `gpu.graph`.
---@class gpulua.control
local control = {}

---Does f unless the condition is 0, else g, if there is one.
---
---Waits: in a capture, yields for the tasks of its functions; else yields until the condition is known.
---
---Errors: `InvalidArgument`, `EmptyCapture` (a function launches nothing in a capture), `Capacity`
---(`limit_body_depth`), `Unsupported` (a kernel that reports, in a capture), `CaptureInvalidated`,
---`NotYieldable`, `Closed`, `UseAfterFree`, what a function raises, failures of work, those of work, those of waits.
---@param condition gpulua.scalar|gpulua.buffer
---@param f fun()
---@param g? fun()
function control.if_(condition, f, g) end

---Does f again and again, as long as the condition is not 0 before it.
---
---```lua
---local left, sum = dev:scalar("i32", 4), dev:buffer("i32", 1):fill(0)
---local step = dev:compile([[
---  extern "C" __global__ void step(int *left, int *sum) { *sum += *left; *left -= 1; }]]).step
---local graph = dev:capture(function()
---  gpu.graph.while_(left, function() step:launch({ grid = 1, block = 1 }, left, sum) end)
---end)
---graph:launch()
---print(sum:read()[1])                       --> 10
---```
---
---Waits: in a capture, yields for the tasks of its function; else yields each time until the condition is known.
---
---Errors: `InvalidArgument` (also: nothing in the loop writes the condition, in a capture), `EmptyCapture`, `Capacity`,
---`Unsupported`, `CaptureInvalidated`, `NotYieldable`, `Closed`, `UseAfterFree`, what f raises, failures of work, those
---of work, those of waits.
---@param condition gpulua.scalar|gpulua.buffer
---@param f fun()
function control.while_(condition, f) end

---The n-th of the functions if the condition is n, none if there is no such one.
---
---Waits: in a capture, yields for the tasks of its functions; else yields until the condition is known.
---
---Errors: `InvalidArgument`, `EmptyCapture`, `Capacity`, `Unsupported`, `CaptureInvalidated`, `NotYieldable`, `Closed`,
---`UseAfterFree`, what a function raises, failures of work, those of work, those of waits.
---@param condition gpulua.scalar|gpulua.buffer
---@param functions (fun())[] 1 to 64.
function control.switch(condition, functions) end

---A capture under way, from `device:capture` without a function.
---
---```lua
---local x = dev:buffer("f32", 4):fill(1)
---local capture = dev:capture { label = "by hand" }
---x:fill(2)
---print(capture:count())                     --> 1
---local graph = capture:finish()
---print(x:read(1, 1)[1])                     --> 1.0
---graph:launch()
---print(x:read(1, 1)[1])                     --> 2.0
---```
---@class gpulua.capture
local capture = {}

---Ends the capture and makes the graph.
---
---Waits: blocks until the device has the graph.
---
---Errors: `EmptyCapture`, `CaptureInvalidated`, `Unsupported`, `Driver`, `OutOfMemory`, `OutOfBudget`, `DeviceLost`,
---`Unrecoverable`, `Closed`, `Timeout`, `Interrupted`.
---@return gpulua.graph graph
function capture:finish() end

---How many nodes it has so far.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer count
function capture:count() end

---Ends the capture; nothing comes of it.
---
---Waits: no.
---
---Errors: none.
function capture:close() end

---Work that was recorded, to be launched as one operation.
---@class gpulua.graph
local graph = {}

---All of its nodes as one operation, after what conflicts. Inside a capture its nodes become that capture's.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBudget`, `Driver`, `Unsupported`, those of work.
---@param options? gpulua.replay_options
---@return gpulua.op op
function graph:launch(options) end

---Does what the first launch would do beside launching. Only the first call does something.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `CaptureActive`, `OutOfBudget`, `Driver`, those of work.
---@param options? gpulua.replay_options
---@return gpulua.graph graph The same one.
function graph:upload(options) end

---It becomes what `f` launches now, for launches that come later. Nodes that have other arguments are patched. Where
---the work is another, or follows other work, the graph is made anew, unless `rebuild = false` forbids it. Buffers that
---f makes are those that were made at their places before, where size and label are the same. `graph:bind` goes by the
---buffers that `f` used, from then on.
---
---```lua
---local x = dev:buffer("f32", 4)
---local graph = dev:capture(function() x:fill(1) end)
---print(graph:update(function() x:fill(2) end) == true) --> true
---graph:launch()
---print(x:read(1, 1)[1])                     --> 2.0
---```
---
---Waits: yields until f and its tasks are over; where it is made anew, then blocks until the device has it.
---
---Errors: `TopologyChanged` (with `rebuild = false`), `EmptyCapture`, `CaptureActive`, `CaptureInvalidated`,
---`InvalidArgument`, `NotYieldable`, `PoolSealed`, `Driver`, `OutOfMemory`, `OutOfBudget`, `DeviceLost`,
---`Unrecoverable`, `Closed`, what f raises, those of waits. Then it stays as it was.
---@param options? gpulua.update_options
---@param f fun()
---@return boolean is_patched
---@return integer|string what How many nodes have other arguments; false: the first difference, in words.
---@return string? first The first of these nodes; "": there is none.
---@return integer? restaged How many of them are writes whose data alone is another.
---@overload fun(self: gpulua.graph, f: fun()): boolean, integer|string, string?, integer?
function graph:update(options, f) end

---Puts buffers and numbers in the place of others, for launches that come later. A key is a buffer's label, or
---"kernel#n.parameter": the n-th launch of that kernel, in the order in which they were captured, tasks taking turns.
---Where there is one alone "#n" may be left out, a launch's label stands for the kernel, too, and a parameter without a
---name has its number: "first.2". Of fills, copies and writes it is "fill#n.dst", "copy#n.src" and so on.
---false for a pointer is NULL. Vectors and structures by value are tables, as for a launch, of which only what is
---there changes; their parts are parameters of their own, "kernel#n.v.x". Of library calls it is what they were given
---as buffers and factors ("gemm#1.alpha", "fft_forward#1.in", "fft_forward#1.scale"; a complex one is a pair or a
---number), and no sizes. Two names of one place are an error; that of an unknown name lists those that there are.
---
---```lua
---local a, b = dev:buffer("f32", 4, { label = "a" }):fill(1), dev:buffer("f32", 4):fill(5)
---local sum = dev:scalar("f32", 0)
---local function add() gpu.reduce("sum", a, { out = sum }) end
---add()                                      -- its kernels are compiled here: that cannot be captured
---local graph = dev:capture(add)
---graph:bind { a = b }
---graph:launch()
---print(sum:get())                           --> 20.0
---```
---
---Waits: no; where the graph is made anew it blocks until the device has it.
---
---Errors: `InvalidArgument` (no such name, or several; another type or size; what is in the body of a conditional node
---has no name), `Unsupported` (a node of control flow uses the buffer), `CaptureActive`, `UseAfterFree`, `Stale`,
---`PoolSealed`, `Driver`, `OutOfMemory`, `OutOfBudget`, `DeviceLost`, `Unrecoverable`, `Closed`.
---@param places table<string, gpulua.buffer|gpulua.host_buffer|gpulua.scalar|number|table|boolean>
---@return boolean is_patched
---@return integer|string what How many nodes have changed; false, where it was made anew: why.
---@return string? first The first of these nodes; "": there is none.
function graph:bind(places) end

---A second graph of the same nodes, with temporaries and a pool of its own: both can run at once.
---
---Waits: blocks until the device has it.
---
---Errors: `Unsupported` (it has nodes of control flow), `UseAfterFree`, `Stale`, `CaptureActive`, `Driver`,
---`OutOfMemory`, `OutOfBudget`, `DeviceLost`, `Unrecoverable`, `Closed`.
---@return gpulua.graph fork
function graph:fork() end

---How large it is, with what is in bodies of control flow.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer nodes
---@return integer edges
function graph:nodes() end

---How often it was launched.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer replays
function graph:replays() end

---The graph as text for Graphviz, each edge with its reason; written into the file, too. On a traced device each node
---has the time that it took in the newest launch that is over, and when it began after that launch's beginning; a
---conditional node that of all that its bodies did, whose nodes have none. On CUDA where CUPTI is.
---
---Waits: no; blocks for the file, and on a traced device until it has told what it knows.
---
---Errors: `Io`, `InvalidArgument` (the path), `Closed`.
---@param path? string
---@return string text
function graph:dot(path) end

---The pool that keeps its buffers.
---
---Waits: no.
---
---Errors: `Closed`.
---@return gpulua.pool pool
function graph:pool() end

---Ends it. Launches under way go on.
---
---Waits: no.
---
---Errors: none.
function graph:close() end

---Keeps the buffers of graphs. Graphs of one pool share the memory of their temporaries.
---@class gpulua.pool
local pool = {}

---Keeps these, all of them or, if one is refused, none, until the pool is cleared or gone.
---
---Waits: no.
---
---Errors: `PoolSealed`, `InvalidArgument`, `Closed`, `UseAfterFree`, `Stale`, `OutOfMemory`, `DeviceLost`,
---`Unrecoverable`.
---@param ... gpulua.buffer|gpulua.host_buffer
---@return gpulua.pool pool The same one.
function pool:record(...) end

---From here on it takes no buffer that it does not have.
---
---Waits: no.
---
---Errors: `Closed`.
---@return gpulua.pool pool The same one.
function pool:seal() end

---It takes buffers again.
---
---Waits: no.
---
---Errors: `Closed`.
---@return gpulua.pool pool The same one.
function pool:unseal() end

---Is it sealed?
---
---Waits: no.
---
---Errors: `Closed`.
---@return boolean sealed
function pool:sealed() end

---How many buffers it keeps.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer count
function pool:count() end

---It keeps nothing any more.
---
---Waits: no.
---
---Errors: `PoolInUse` (a graph or a capture uses it), `Closed`.
---@return gpulua.pool pool The same one.
function pool:clear() end

---Its number, for `gpu.pool`.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer number
function pool:handle() end

---Ends the handle. It stays while graphs use it.
---
---Waits: no.
---
---Errors: none.
function pool:close() end

---A function that becomes a graph, from `device:graphed`. Called like the function, it returns an op and what the
---function returned when it ran last. The first calls run the function as it is, the next one captures it, and others
---replay the graph. When an argument or an upvalue is another value than it was, the function runs again, and the graph
---is patched or made anew. An argument that is a table is another one, too, when what it holds is: up to 32 numbers,
---strings, booleans, handles and tables of such, as vectors and settings are. What the function reads in other tables
---and through upvalues is not seen, nor is an upvalue that changed while the function ran, by itself or by another task
---while it waited: `graphed:refresh` says that it has. In check mode it runs at each call, and doing something else
---with the same values is an error. What it would have to compile in a run that is captured (a `gpu.map` with numbers
---of another type, 0.5 after 2) raises `CaptureActive`: call that once as it is. What the function itself calls or
---spawns may call it again: that is part of the same run. In a capture of its device the function is run, and becomes
---part of that; in one of another device it is run as it is where it would have to be captured; conditional nodes raise
---`InvalidArgument` there, as that capture cannot have them.
---
---A replay returns the same handles as the run before: who closes one of them has it closed for later calls, too. The
---memory of what was returned is the graph's, also where a later run returns another handle of it: each call writes it
---anew, so copy or read what is to be kept. Where it was freed, or lost with the device, the function runs again at the
---next call, and makes it anew. A buffer that nobody held when the function was captured is the graph's own; if a later
---run hands it out, using it raises `UseAfterFree`. What the function puts on another device is no part of the graph:
---it is done when the function runs, and in no replay.
---
---```lua
---local x = dev:buffer("f32", 4):fill(1)
---local scale <close> = dev:graphed(function(factor) gpu.map("x * f", { x = x, f = factor, out = x }) end)
---for _ = 1, 5 do scale(2.0) end
---scale(0.5)
---print(x:read(1, 1)[1], select(2, scale:explain()).calls) --> 16.0	6
---```
---@class gpulua.graphed
---@overload fun(...: any): gpulua.op, any
local graphed = {}

---The next call runs the function again, whether or not a change can be seen.
---
---Waits: no.
---
---Errors: none.
---@return gpulua.graphed graphed The same one.
function graphed:refresh() end

---Its graph; nil: it has not been captured yet. Where you close it, the next call captures anew.
---
---Waits: no.
---
---Errors: none.
---@return gpulua.graph? graph
function graphed:graph() end

---What its calls have done and why, the latest last, and counters of that.
---
---Waits: no.
---
---Errors: none.
---@return string text
---@return { calls: integer, eager: integer, captures: integer, patches: integer, replays: integer } counters
function graphed:explain() end

---Ends its graph, and lets go of what the function returned.
---
---Waits: no.
---
---Errors: none.
function graphed:close() end

---Options of `device:graphed`.
---@class gpulua.graphed_options
---@field warmup? integer How many calls run the function as it is, from 0 on; 1 by default.
---@field label? string The graph's.
---@field pool? gpulua.pool What keeps its buffers; nothing: a new one.

---Options of `graph:launch` and `graph:upload`.
---@class gpulua.replay_options
---@field stream? gpulua.stream The one to work on; nothing: the current one.
---@field label? string For errors and traces.

---Options of `graph:update`.
---@class gpulua.update_options
---@field rebuild? boolean May it be made anew? true by default.
