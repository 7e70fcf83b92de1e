---@meta _
--[[
# Devices

A device is a GPU, or the CPU device, which compiles the same CUDA C for the processor's cores. `gpu.device` opens one.
By default a GPU is driven by a process of its own, so that a kernel that faults ends that process and not the script;
the device comes up again then (see `device:await`), and the CPU device is driven on the script's thread.
]]

---@alias gpulua.device_name
---| "cpu"
---| "cuda"
---| "cuda:0"
---| "cuda:1"
---| string # "cuda:N", with the driver's number.

---A device.
---@class gpulua.device
---@field name string "cpu", "cuda:0" and so on.
---@field kind "cpu"|"cuda"
---@field label string That of the options, or "".
---@field epoch integer Which life this is, from 1: one more after each loss.
---@field memory_bytes integer What it has in all.
---@field compute number Its compute capability, as 9.0; 0 on the CPU device.
---@field multiprocessors integer Of the CPU device: worker threads.
---@field model string Its name, as the driver or the system has it.
---@field isolation "process"|"thread"|"none"
---@field driver_version integer As the driver has it; 0 on the CPU device.
---@field check boolean Is it in check mode?
---@field pid? integer Of the process that drives it; nil: this one.
local device = {}

---Options of `gpu.device`.
---@class gpulua.device_options
---@field isolate? "process"|"thread"|"none" What drives it; "process" for GPUs, "none" for the CPU device.
---@field label? string For messages, traces and reports: "device cpu 'scorer' is lost".
---@field budget? integer Bytes of device memory that may be in use; by default what the device has.
---@field check? boolean|"hashes" Check mode; "hashes": as on a GPU, also on the CPU device.
---@field seed? integer Of check mode, from 0 on: it decides the order of work and tasks.
---@field order? string Of check mode: the choices to make, as `--seeds` writes them.
---@field restarts? integer How often within `window` it may come up again after a loss; 3 by default, 0: never.
---@field window? number Seconds; 60 by default. As long it is tried where no process can be started.
---@field spare? boolean Keep a second process with the device open and modules loaded, so that it is up again sooner.
---@field watchdog? number Seconds that work may run before the device is lost; only its own process then ends it.
---@field attribution? "exact" A loss names the one operation of a stream that ran; costs a word after each operation.
---@field coredump? string Folder for core dumps of faults, of a GPU in its own process; each end takes a kernel more.
---@field completion? "word"|"event"|"block" How ends of work are found out; "word" by default.
---@field in_flight? integer Operations at a time: a further one blocks until the oldest is over; 16,384, the most.
---@field trace? boolean|integer Keep what is done, for `gpu.trace` and `op:elapsed`; a number: of so many operations.
---@field unfenced? boolean|integer|"owed" For tests of gpulua alone: leaves out what orders work; results may be wrong.

---Types of elements. `c64` and `c128` are complex numbers of two `f32` or `f64`, pairs in tables.
---@alias gpulua.element_type
---| "i8"
---| "u8"
---| "i16"
---| "u16"
---| "i32"
---| "u32"
---| "i64"
---| "u64"
---| "f16"
---| "bf16"
---| "f32"
---| "f64"
---| "c64"
---| "c128"

---A number of elements, or 1 to 8 dimensions, the last of which lies together.
---@alias gpulua.shape integer|integer[]

---Elements: numbers (pairs of numbers where they are complex), bytes as they lie in memory, a buffer of the same type,
---or a function that gives the element at an index.
---@alias gpulua.data number[]|number[][]|string|gpulua.buffer|gpulua.host_buffer|(fun(index: integer): number|number[])

---A new buffer in the device's memory. What is in it is undefined. Inside a capture it is the graph's own, if nobody
---holds it when the capture ends.
---
---```lua
---local x = dev:buffer("f32", { 2, 3 }, { label = "x" })
---print(#x, x.type, table.concat(x.shape, " x "), x.label) --> 6	f32	2 x 3	x
---```
---
---Waits: no; it blocks for the device's answer where that has to get memory from the driver, and to get some back where
---memory is short.
---
---Errors: `InvalidArgument`, `Unsupported` (durable memory with a guard), `CaptureActive` (durable in a capture), those
---of memory.
---@param type gpulua.element_type
---@param shape gpulua.shape
---@param options? gpulua.buffer_options
---@return gpulua.buffer buffer
function device:buffer(type, shape, options) end

---A new buffer with data in it. The data is copied at the call. It is flat, row by row. With a shape, it has as many
---elements as that; a function needs one. An empty table behind a table is options, if none
---follow.
---
---```lua
---print(dev:upload("i32", { 1, 2, 3 }):read(3)[1])                        --> 3
---print(dev:upload("f32", { 2, 2 }, function(i) return i * i end):read(4)[1]) --> 16.0
---print(#dev:upload("u8", "bytes"))                                       --> 5
---```
---
---Waits: no; it blocks while too much is in flight.
---
---Errors: `InvalidArgument`, `InvalidData` (an element that is no number, does not fit the type or is missing; no
---elements), `Unsupported`, `CaptureActive`, what a function raises, those of memory, those of work.
---@param type gpulua.element_type
---@param shape gpulua.shape May be left out, but for a function.
---@param data gpulua.data
---@param options? gpulua.buffer_options
---@return gpulua.buffer buffer
---@overload fun(self, type: gpulua.element_type, data: gpulua.data, options?: gpulua.buffer_options): gpulua.buffer
function device:upload(type, shape, data, options) end

---A new host buffer: pinned memory of the host, all zeros, which script and device both reach. Copies between it and
---buffers are as fast as the bus.
---
---Waits: no.
---
---Errors: `InvalidArgument`, those of memory.
---@param type gpulua.element_type
---@param shape gpulua.shape
---@param options? gpulua.host_options
---@return gpulua.host_buffer buffer
function device:host(type, shape, options) end

---A new scalar: one element on the device, for kernels that take a pointer to it. It survives a loss of the device.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `CaptureActive`, those of memory, those of work.
---@param type gpulua.element_type
---@param value number|number[] A pair, if it is complex.
---@param options? gpulua.scalar_options
---@return gpulua.scalar scalar
function device:scalar(type, value, options) end

---Compiles CUDA C. What was compiled before is found again in a cache on disk, by source, options and compiler; where
---that cannot be written the interpreter says once why, and a host hears it in on_log. What a kernel reads and writes
---follows from its prototype: `const T *` is read, `T *` is read and written. The headers of CUDA are found where the
---toolkit is installed; the CPU device brings its own. A GPU loads code when nothing runs on it: after a long kernel
---that is late, and so is the work that is given meanwhile.
---
---```lua
---local mod = dev:compile([[
---  extern "C" __global__ void scale(int n, float *x) {
---    int i = blockIdx.x * blockDim.x + threadIdx.x;
---    if (i < n) x[i] *= FACTOR;
---  }]], { defines = { FACTOR = 3 } })
---local x = dev:upload("f32", { 1, 2, 3 })
---mod.scale:launch(#x, #x, x)
---print(x:read(3)[1])                        --> 9.0
---```
---
---Waits: yields until it is compiled.
---
---Errors: `CompileFailed` (with the compiler's `log`), `InvalidArgument`, `CaptureActive`, `LibraryUnavailable`
---(NVRTC), `Unsupported` (no C++ compiler, or what the CPU device does not do), `OutOfMemory`, `Driver`, `DeviceLost`,
---`Unrecoverable`, `Closed`, `Io`, those of waits.
---@param source string
---@param options? gpulua.compile_options
---@return gpulua.module module
function device:compile(source, options) end

---Loads compiled code: PTX or a cubin, as bytes or as the name of a file with it. Its kernels need a signature
---(`module:kernel`). For GPUs.
---
---Waits: yields until it is loaded.
---
---Errors: `Io` (no such file), `InvalidData` (it holds neither), `InvalidArgument`, `CaptureActive`, `Unsupported` (the
---CPU device), `Driver`, `OutOfMemory`, `DeviceLost`, `Unrecoverable`, `Closed`, those of waits.
---@param code string
---@param options? gpulua.load_options
---@return gpulua.module module
function device:load(code, options) end

---A new stream. Tasks have streams of their own already; one more is for work that is to be apart, or urgent.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Capacity` (`limit_user_streams`), `OutOfMemory`, `DeviceLost`, `Unrecoverable`, `Closed`.
---@param options? gpulua.stream_options
---@return gpulua.stream stream
function device:stream(options) end

---The stream that work goes to here: that of the innermost `stream:use`, else the task's own.
---
---Waits: no.
---
---Errors: `Closed`, `Capacity`, `DeviceLost`, `Unrecoverable`, `OutOfMemory`, `CaptureInvalidated`.
---@return gpulua.stream stream
function device:current() end

---Records what `f` and the tasks that it spawns launch on the device, instead of doing it, and makes a graph of that.
---An error in f ends the capture, and is raised. Buffers that f makes and nobody holds afterwards are the graph's own,
---and share memory; a collection of garbage finds out which those are. Those of a `memory` are not: they stay
---as they were made. Without f, the caller's task belongs to the capture until `capture:finish()`, which gives the
---graph, or `capture:close()`.
---
---```lua
---local x = dev:buffer("f32", 4):fill(1)
---local function double() gpu.map("x * 2", { x = x, out = x }) end
---double()                                   -- its kernel is compiled here: that cannot be captured
---local graph = dev:capture({ label = "double" }, double)
---graph:launch()
---print(x:read(1, 1)[1])                     --> 4.0
---```
---
---Waits: with f: yields until f and its tasks are over; then blocks until the device has the graph.
---
---Errors: `EmptyCapture` (f launched nothing), `CaptureActive` (the task is in one already), `CaptureInvalidated`,
---`PoolSealed`, `InvalidArgument`, `NotYieldable`, `Unsupported` (the driver), `Driver`, `OutOfMemory`, `OutOfBudget`,
---`DeviceLost`, `Unrecoverable`, `Closed`, what f raises, those of waits.
---@param options? gpulua.capture_options
---@param f fun()
---@return gpulua.graph graph
---@overload fun(self: gpulua.device, f: fun()): gpulua.graph
---@overload fun(self: gpulua.device, options?: gpulua.capture_options): gpulua.capture
function device:capture(options, f) end

---A function that becomes a graph: the first calls run `f` as it is, then f is captured once, and calls replay the
---graph. See `graphed`.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`.
---@param options? gpulua.graphed_options
---@param f function
---@return gpulua.graphed graphed
---@overload fun(self: gpulua.device, f: function): gpulua.graphed
function device:graphed(options, f) end

---A pool, for buffers that graphs are to keep.
---
---Waits: no.
---
---Errors: `OutOfMemory`, `Closed`, `DeviceLost`, `Unrecoverable`.
---@return gpulua.pool pool
function device:pool() end

---A recorder, for work that a host puts on a stream by itself.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`, `Capacity`, `OutOfMemory`, `DeviceLost`, `Unrecoverable`, `CaptureInvalidated`.
---@param options? gpulua.recorder_options
---@return gpulua.recorder recorder
function device:recorder(options) end

---A memory resource: a budget, a guard, statistics, a log, or another way to get memory. Buffers are made of it with
---`memory:buffer`, or the option `memory`.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Unsupported` (the driver has no pool), `Capacity` (`limit_memory_depth`), `OutOfMemory`,
---`Closed`, `DeviceLost`, `Unrecoverable`.
---@param options? gpulua.memory_options
---@return gpulua.memory memory
function device:memory(options) end

---Linear algebra: cuBLAS on GPUs, OpenBLAS on the CPU device.
---
---Waits: the first time, when the library is loaded: yields.
---
---Errors: `LibraryUnavailable`, `InvalidArgument`, `CaptureActive` (the first time), `LibraryError`, `OutOfMemory`,
---`Driver`, `DeviceLost`, `Unrecoverable`, `Closed`, those of waits.
---@param options? gpulua.blas_options
---@return gpulua.blas blas
function device:blas(options) end

---A plan for Fourier transforms: cuFFT on GPUs, FFTW on the CPU device. The device keeps the 64 plans used last, so
---that another one like it is there at once, in captures too.
---
---Waits: if the plan has to be made: yields.
---
---Errors: `InvalidArgument` (what does not fit), `Unsupported` (sizes or strides that the library cannot do),
---`LibraryUnavailable`, `LibraryError`, `OutOfMemory`, `CaptureActive` (it would have to be made in a capture),
---`Driver`, `DeviceLost`, `Unrecoverable`, `Closed`, those of waits.
---@param options gpulua.fft_options
---@return gpulua.fft plan
function device:fft(options) end

---A generator of random numbers.
---
---Waits: the first time, when kernels are compiled: yields.
---
---Errors: `InvalidArgument`, `LibraryUnavailable` (cuRAND, which all but philox need), `CaptureActive`,
---`CompileFailed`, `LibraryError`, `Driver`, those of memory, those of work, those of waits.
---@param options? gpulua.rng_options|{ state: gpulua.rng_state }
---@return gpulua.rng rng
function device:rng(options) end

---Waits for all work that was given to the device so far, and raises a failure that nobody has seen.
---
---Waits: yields.
---
---Errors: failures of work, `CaptureActive`, `Closed`, those of waits.
---@return gpulua.device device
function device:synchronize() end

---Waits until the device takes work: at once, unless it is lost and on its way up again. Then also until the buffers
---with a `rebuild` have been built anew, where the device is lost meanwhile in its next life. That work of this task
---was lost is not raised any more: who waits here knows.
---
---Waits: yields.
---
---Errors: `Timeout`, `DeviceLost` (in this process it cannot come up again, or it is not meant to), `Unrecoverable`,
---`Closed`, what a `rebuild` raised, `InvalidArgument`, `NotYieldable`, those of waits.
---@param seconds? number At most.
---@return gpulua.device device
function device:await(seconds) end

---Calls `f(error)` as a task each time when the device is lost: with `DeviceLost`, and once more with `Unrecoverable`
---when that was more often than `restarts` allows. Losses and returns are reported in their turn, also where several
---happened before tasks could run.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`.
---@param f fun(error: gpulua.error)
---@return gpulua.device device
function device:on_lost(f) end

---Calls `f(device)` as a task each time when the device is up again, and what has to be built anew has been: once for
---two losses where the second came before that had been.
---`device:await` does not wait for these tasks: what others need is built by the `rebuild` of a buffer.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`.
---@param f fun(device: gpulua.device)
---@return gpulua.device device
function device:on_restored(f) end

---Makes something go wrong, for specs: the n-th of its kind from now on, counted from 1, once; 0 withdraws it. What
---comes of it is as if it had gone wrong by itself: `OutOfMemory`, `DeviceLost`.
---
---```lua
---dev:inject { oom = 1 }
---print(select(2, pcall(dev.buffer, dev, "f32", 4)).code) --> OutOfMemory
---```
---
---Waits: no; the first `slow` compiles a kernel, and yields.
---
---Errors: `InvalidArgument`, `Closed`; of the first `slow`, those of `device:compile`: `CompileFailed`,
---`CaptureActive`.
---@param options gpulua.inject_options
---@return gpulua.device device
function device:inject(options) end

---Functions that see each operation of the device from now on: launches, copies, fills, marks, waits of one stream for
---another, graphs; not what is only captured. An operation keeps the hooks that it began with. nil: none any more. A
---host's own hooks stay.
---
---Hooks cannot wait, and nothing of gpulua's can be called in them (`StreamMisuse`); a task can, with what they put
---down. What a hook raises is reported like the error of a task that nobody joins, and changes nothing for the work.
---
---```lua
---local count, bytes = 0, 0
---dev:hooks { after_enqueue = function(info, err)
---  if not err then count, bytes = count + 1, bytes + info.bytes end
---end }
---local x = dev:buffer("f32", 256):fill(1):fill(2)
---dev:hooks(nil)
---print(count, bytes)                        --> 2	2048
---```
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`, `Unsupported` (a device that a host shares between objects).
---@param set gpulua.hooks?
---@return gpulua.device device
function device:hooks(set) end

---What a device in check mode has done, oldest first: the first 4,096 operations of all devices. nil: it is not
---checked.
---
---Waits: no.
---
---Errors: `Closed`.
---@return gpulua.ordered[]? order
function device:order() end

---The operations that the device was given last (`limit_flight_ops` at most), with arguments, kernels and buffers, as
---text for `gpulua --replay`; written into the file, too. What was in memory is not in it. Also of a device that is
---lost.
---
---Waits: no; blocks for the file.
---
---Errors: `Io`, `InvalidArgument` (the path), `OutOfMemory`, `Closed`.
---@param path? string
---@return string text
function device:flight(path) end

---What the device has given out and not got back, the largest first. `tostring` makes a table for people of it.
---
---Waits: no.
---
---Errors: `Closed`, `OutOfMemory`.
---@return gpulua.memory_map map
function device:memory_map() end

---Counters and limits, all of them integers.
---
---```lua
---local x <close> = dev:buffer("f32", 256)
---print(dev:stats().bytes_live >= 1024)      --> true
---```
---
---Waits: no.
---
---Errors: `Closed`.
---@return gpulua.stats stats
function device:stats() end

---Collects garbage, and gives memory that nobody uses back to the driver.
---
---Waits: no.
---
---Errors: `Closed`.
---@return integer bytes How many went back.
function device:trim() end

---Waits a moment for work in flight, reports failures that nobody has seen, and ends the device with all that is on it.
---
---Waits: blocks for work in flight, a few seconds at most in a process of its own, else until it has ended.
---
---Errors: none.
function device:close() end

---Options of `device:buffer`, `device:upload` and `memory:buffer`.
---@class gpulua.buffer_options
---@field label? string For errors, traces and `graph:bind`.
---@field memory? gpulua.memory What it is made of; nothing: the device's own. Not for `memory:buffer`.
---@field durable? boolean|"space" After a loss it has what the script wrote, graphs apart; "space": it is there.
---@field rebuild? fun(buffer: gpulua.buffer) Called after a loss, to write it anew. Not together with `durable`.

---Options of `device:host`.
---@class gpulua.host_options
---@field label? string For errors and traces.

---Options of `device:scalar`.
---@class gpulua.scalar_options
---@field label? string For errors, traces and `graph:bind`.

---Options of `device:compile`.
---@class gpulua.compile_options
---@field name? string For messages, instead of the script's file and line.
---@field names? string|string[] More kernels: "scale<float>" of a template, "(void (*)(float *))f" of several f.
---@field defines? table<string, string|number|boolean> Macros, "NAME" or "NAME(x)"; true is 1, false leaves it out.
---@field include? string|string[] Folders for headers.
---@field flags? string|string[] Further options of the compiler, each with its value: "-DN=1", not "-D", "N=1".
---@field keep? string Leaves KEEP.ptx and KEEP.cubin, or the CPU device's KEEP.cpp and KEEP.so; cached or not.

---Options of `device:load`.
---@class gpulua.load_options
---@field name? string For messages, instead of the file's.

---Options of `device:stream`.
---@class gpulua.stream_options
---@field priority? integer Lower is more urgent, -1000 to 1000; brought into what the device has. 0 by default.
---@field label? string For messages and traces.

---Options of `device:capture`.
---@class gpulua.capture_options
---@field label? string The graph's.
---@field pool? gpulua.pool What keeps its buffers; nothing: a new one.

---Options of `device:recorder`.
---@class gpulua.recorder_options
---@field stream? gpulua.stream What the work is put on; nothing: the current one.
---@field mode? "strict"|"permissive" strict, the default, refuses what cannot be tracked; permissive passes it over.
---@field label? string For messages.

---Options of `device:inject`.
---@class gpulua.inject_options
---@field oom? integer That buffer, module or staging finds no memory: `OutOfMemory`, unless a policy or hook helps.
---@field fault? integer That operation faults (a graph's launch is one): the device is lost, and errors name it.
---@field lost? integer The device's process is killed at that operation; without one, the same as `fault`.
---@field slow? string|false A kernel of this name begins so much later when it is next launched by itself; false: none.
---@field seconds? number For `slow`, from 0 to 1e9; 1 by default.

---The functions of `device:hooks`. All of an operation get the same table. The first two are called in the middle of
---the call that asks for it, the others from the loop or at the end of a wait: ends on one stream in their order, ends
---on several in any. `after_complete` is given what it has failed with (nil: it has not), the seconds since
---`before_enqueue`, and those on the device, where that is known (`trace = true`).
---@class gpulua.hooks
---@field before_enqueue? fun(info: gpulua.hook_info) The call asks for it.
---@field after_enqueue? fun(info: gpulua.hook_info, err: gpulua.error?) The device has it, or it was refused with err.
---@field before_complete? fun(info: gpulua.hook_info) It is over; no task that waits for it has gone on.
---@field after_complete? fun(info: gpulua.hook_info, err: gpulua.error?, host_s: number, device_s: number?) See above.

---What hooks are told of an operation. They may add to it.
---@class gpulua.hook_info
---@field device gpulua.device
---@field name string Of the kernel; "copy", "fill", "mark", "wait", "graph".
---@field label string
---@field library? string As "blas"; nil: of no library.
---@field type? gpulua.element_type Of all elements that it uses; nil where they differ, or there are none.
---@field stream integer The number of its stream.
---@field bytes integer That it declares to use; 0 of a graph.
---@field where? string "file:line" of the call.
---@field number? integer Which operation of the device; from `after_enqueue` on, unless it was refused.

---One operation of `device:order`.
---@class gpulua.ordered
---@field name string Which operation of which task: the same in every run.
---@field label string
---@field site string "file:line".
---@field stream integer The number of its stream.
---@field seq integer Its place there.
---@field waits integer[][] Pairs of stream and seq that it waited for.
---@field uses any[][] { allocation, first byte, byte after the last, 1 reads or 2 writes or 3 both, label }.
---@field ready string[] Names of what could have been done then.

---What `device:stats` gives. Counters are since the device was opened.
---@class gpulua.stats
---@field launches integer Launches of kernels, and calls of libraries.
---@field captures integer Captures that became graphs.
---@field replays integer Launches of graphs.
---@field fallbacks integer Graphs that were made anew because they could not be patched.
---@field compilations integer Modules for which a compiler ran.
---@field compile_ns integer Nanoseconds that it took, of all of them.
---@field cache_hits integer Modules that the disk cache had.
---@field overflows integer Tables of a fixed size that were full, so that something coarser was kept.
---@field copies integer
---@field fills integer
---@field uploads integer
---@field downloads integer
---@field marks integer
---@field waits_issued integer Fences between streams.
---@field waits_elided integer Fences that others implied.
---@field hazards_widened integer Uses taken for wider than they are, of buffers with more than `limit_spans` ranges.
---@field recorders_abandoned integer Recorders that ended between preflight and commit.
---@field events_created integer Events of the driver, in all.
---@field events_live integer Events of the driver, now.
---@field drops integer Operations, and nodes of graphs, for which the trace had no room.
---@field ops_completed integer
---@field ops_failed integer
---@field ops_in_flight integer
---@field ops_in_flight_max integer
---@field allocs integer Blocks made.
---@field frees integer Blocks given back.
---@field bytes_live integer In buffers.
---@field bytes_live_max integer
---@field bytes_pending integer Freed, but used by work in flight.
---@field bytes_reserved integer What the driver has given in all.
---@field bytes_quarantined integer Freed, and kept to find accesses after the end.
---@field budget_bytes integer
---@field staging_bytes integer Host memory of transfers in flight.
---@field staging_bytes_max integer
---@field blocks_live integer
---@field streams_live integer
---@field modules_live integer
---@field kernels_live integer
---@field graphs_live integer
---@field graph_bytes integer Of the nodes of graphs, estimated.
---@field graph_evictions integer Graphs that were put away because memory was short; their temporaries stay.
---@field imports_live integer Memory of other libraries.
---@field exports_live integer Memory lent to other libraries.
---@field losses integer How often it was lost.
---@field returns integer How often it came up again.
---@field oom_retries integer Allocations that were tried once more.
---@field recoveries integer Allocations for which that helped.
---@field collections integer Collections of garbage for the sake of memory.
---@field guard_checks integer Looks of guards.
---@field guard_findings integer
---@field requests integer Such as compilations, which are on no stream.
---@field records integer Records that the executor was sent.
---@field record_bytes integer
---@field throttles integer How often a call had to wait for room.
---@field errors_unobserved integer Failures that nobody has seen yet.
---@field limit_task_streams integer Streams that tasks share in turn.
---@field limit_user_streams integer Streams of `device:stream`.
---@field limit_ops_in_flight integer A further one blocks until the oldest is over.
---@field limit_staging_bytes integer Of transfers in flight; a further one waits.
---@field limit_arena_bytes integer Of host buffers and staging.
---@field limit_block_bytes integer Of one buffer.
---@field limit_slabs integer Pieces of memory from the driver.
---@field limit_labels integer Different labels and script files that are kept; further ones are not.
---@field limit_source_bytes integer Of a module's source or code.
---@field limit_params integer Of a kernel; of vectors and structures by value each part is one.
---@field limit_args_bytes integer Of a launch.
---@field limit_spans integer Ranges of a buffer whose users are told apart.
---@field limit_flight_ops integer Operations that `device:flight` keeps.
---@field limit_memory_depth integer Memories on each other.
---@field limit_oom_hooks integer Functions of `memory:on_oom`.
---@field limit_quarantine_bytes integer
---@field limit_bodies integer Functions of one node of control flow.
---@field limit_body_depth integer Nodes of control flow within each other.
---@field limit_restarts integer As in the options.
