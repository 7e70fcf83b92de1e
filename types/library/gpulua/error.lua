---@meta _
--[[
# Errors

Everything that gpulua refuses raises an error object: misuse at the call, naming the argument; what the world refuses,
where it is found. What fails on the device fails the operation, and is raised by whoever waits for it. `op:join()` and
`task:join()` return `false, error` instead. A failure that nobody has seen is raised by the next read, or by the
next synchronise of a stream, of the task that launched the work (of any task, once that one is over), by the next
`dev:synchronize()` of whichever task, or reported when the script is over.

```lua
local ok, err = pcall(dev.buffer, dev, "f33", 4)
print(gpu.type(err), err.code)             --> error	InvalidArgument
print(err.hint)                            --> see what the function takes in docs/reference.md
```

`tostring(err)` gives all of it in readable lines: where, code, message, operation, root, suspects, log, hint,
traceback.

Short names stand for what many functions raise.

## Errors of work

**Those of work** come of whatever is given to a device: `InvalidArgument` (something of another device), `Closed` (the
device, the stream or what is used), `UseAfterFree` and `Stale` (memory that is used), `StreamMisuse` (memory whose
users nobody knows, or that a recorder holds), `Capacity` (all streams are in use), `OutOfMemory` (of the host),
`DeviceLost` and `Unrecoverable` (the device is lost; see `device:await`), `CaptureInvalidated` (the capture that the
task belongs to has ended or is broken), `CaptureActive` (a host captures the stream), `RaceFound` (check mode: another
task's work conflicts, and only time orders the two), `Timeout` (the call had to wait, and the time of `gpu.timeout` was
up) and `Interrupted`. Work is refused as a whole: what raises has given nothing to the device. Giving work never waits
for it; while `limit_ops_in_flight` operations are in flight it blocks until the oldest is over.

## Failures of work

**Failures of work** are what an operation fails with on the device, found by whoever waits for it or reads what it
wrote: `KernelFailed`, `DependencyFailed` (it read what another one had failed to write), `DeviceLost`, `Unrecoverable`,
`Driver`, `LibraryError`, `Unsupported` and `OutOfMemory`; in check mode also `UndeclaredAccess`, `OutOfBounds`,
`UseAfterFree`, `RaceFound`, `InvalidData` (a read of what was never written) and `InvalidArgument` (an access that is
not aligned, or a warp operation whose mask leaves out the caller). The message says kernel, block and thread, of a
failed `assert` and of what check mode of the CPU device finds also the line of the kernel's source: "at FILE:LINE", and
"called at FILE:LINE" where that is in a function. The source's name is its file there, as in a compiler's log. Lines
need libdw (Debian: `libdw1`). `places` has the same for programs. It is nil where nobody has seen the kernel do it:
check mode by hashes, a GPU's, compares memory before and behind a launch, so it knows the byte, but no block, thread or
line of the kernel; and of a fault, such as a trap, a GPU's driver tells that it was, and not where. The line of the
script that launched the kernel is known all the same: `op.source`, `op.line`.

```lua
local dev <close> = gpu.device("cpu", { check = true })
local f = dev:compile([=[
extern "C" __global__ void f(int *x) {
  if (threadIdx.x == 1) x[4] = 1;
}]=], { name = "f.cu" }).f
local ok, err = f:launch({ grid = 1, block = 2 }, dev:buffer("i32", 4):fill(0)):join()
local at = err.places[1]                   -- with libdw at.source is "f.cu" and at.line 2
print(err.code, at.block[1], at.thread[1]) --> OutOfBounds	0	1
```

## Errors of waits

**Those of waits**: `Cancelled` (the task was cancelled, or the wait could never end) and `Interrupted`.

## Errors of memory

**Those of memory** come of making a buffer: `OutOfBudget`, `OutOfMemory`, `Capacity`, `DeviceLost`, `Unrecoverable`,
`Closed`, `Timeout` (it had to wait, and the time of `gpu.timeout` was up), `Interrupted`, and in a capture
`PoolSealed` and `CaptureInvalidated`.
]]

---The object that everything refused is raised with. It is a table; its fields may be read, and more be added.
---@class gpulua.error
---@field code gpulua.error_code
---@field message string What is wrong, in one line; that of `CompileFailed` has the log after it.
---@field hint string What to do about it, or "".
---@field source? string The script file of the line that raised; nil where there is none.
---@field line? integer In that file.
---@field traceback string Or "", where nothing runs.
---@field op? gpulua.op_info The operation that failed.
---@field root? gpulua.op_info Of `DependencyFailed`: the operation whose failure was the first.
---@field other? gpulua.op_info Of `RaceFound` between two tasks: the operation of the other one.
---@field suspects? gpulua.op_info[] Of `DeviceLost`: the oldest in flight, up to eight of a stream (replays as one).
---@field places? gpulua.place[] Of a kernel's failure: where it was, if that is known; then what a race is with.
---@field log? string The compiler's log, or what the driver's log has of the call.
---@field driver_code? integer The number that the driver or the library gave.
---@field requested? integer Of `OutOfBudget`: bytes asked for.
---@field current? integer Of `OutOfBudget`: bytes in use.
---@field remaining? integer Of `OutOfBudget`: bytes left.
---@field limit? integer Of `OutOfBudget`: bytes in all.
---@field offset? integer Of `OutOfBounds` of a range: where it begins, from 0, in the unit of the message.
---@field length? integer Of `OutOfBounds` of a range: how long it is.
---@field size? integer Of `OutOfBounds` of a range: how much there is.
---@field max? integer Of `Capacity`: the limit.
---@field tasks? string[] Of a wait in a circle: where the tasks in it were spawned.


---Where a kernel has done something: a finding of check mode, a failed `assert`. Of a race, of barriers that diverge
---and of a warp operation that some lanes do not come to there are two.
---@class gpulua.place
---@field block integer[] blockIdx, three numbers.
---@field thread integer[] threadIdx, three numbers.
---@field source? string The source's name, as `dev:compile` has it; nil where the line is not known.
---@field line? integer In that source, from 1.
---@field caller? gpulua.place_caller Where that is in a function: the kernel's line.

---The line of a kernel that leads to a place in a function.
---@class gpulua.place_caller
---@field source string
---@field line integer

---An operation, as errors name it.
---@class gpulua.op_info
---@field label string
---@field stream integer The number of its stream; 0: on none.
---@field seq integer Its place on the stream, from 1.
---@field source? string The script file that asked for it.
---@field line? integer In that file.
---@field code? gpulua.error_code Of a `root`: what it failed with.

---What can be wrong.
---@alias gpulua.error_code
---| "InvalidArgument" # A value of a wrong type, range or combination; the message names the argument or option.
---| "InvalidData" # Data of a buffer or a file, with the place in it; in check mode a read of what was never written.
---| "OutOfBounds" # Indices are never clipped. `offset`, `length` and `size` say where a range would have gone.
---| "Closed" # Of a device it also ends everything on it.
---| "Stale" # The device was lost and is up again, and the buffer was neither durable nor built anew.
---| "UseAfterFree" # `buffer:free` ends memory for every handle; a graph's temporaries are the graph's alone.
---| "OutOfBudget" # Of the device or of a memory; `requested`, `current`, `remaining` and `limit` say how far.
---| "OutOfMemory" # Of the device, when nothing could be given back, or of the host.
---| "Capacity" # The message names the limit, `max` has it where it is one number; [limits.md](limits.md) has all.
---| "StreamMisuse" # Also: memory whose users nobody knows, tracing that is off, the loop called from a task.
---| "CaptureActive" # What waits for the device or looks at its memory has no place in a graph.
---| "CaptureInvalidated" # The capture has ended or failed, or its device was lost; or the task outlives its capture.
---| "EmptyCapture" # A graph, or a branch of one, with nothing in it.
---| "PoolSealed" # A buffer was made or recorded in a capture whose pool takes no more.
---| "PoolInUse" # Its buffers would go while replays need them.
---| "TopologyChanged" # With `rebuild = false`, `graph:update` patches nodes and makes no graph anew.
---| "CompileFailed" # The log is in `log`, with file and line.
---| "KernelFailed" # A `gpulua_check` or an `assert` that did not hold, or a fault that the device survives.
---| "DependencyFailed" # Work that reads what failed work was to write is skipped, and fails with this.
---| "UndeclaredAccess" # Check mode: an access outside of what the signature says.
---| "RaceFound" # Check mode: inside of a kernel, or between tasks that only time orders.
---| "LibraryUnavailable" # The message names every file that was looked for.
---| "LibraryError" # Of cuBLAS, cuFFT, cuRAND, OpenBLAS or FFTW.
---| "Driver" # `driver_code` has its number.
---| "DeviceLost" # A kernel has faulted, hung or killed its process. `suspects` has the oldest that were in flight.
---| "Unrecoverable" # It was lost more often than `restarts` within `window`.
---| "Timeout" # Of a wait with a limit, or of `gpu.timeout`.
---| "Cancelled" # By `task:cancel`, by the failure of a sibling, or because a wait could never end.
---| "Interrupted" # Ctrl-C, or the host's `gpulua_interrupt`.
---| "NotYieldable" # Inside of `require`, a comparator, `__tostring`, or a coroutine of the script's own.
---| "NoDevice" # The message says which there are.
---| "Unsupported" # The message says by what, and often what can be had instead.
---| "Io" # The message names the file and has the system's words.
