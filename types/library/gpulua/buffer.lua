---@meta _
--[[
# Buffers

A buffer is memory of a device with a type and a shape. Views and slices share its memory, and what they do is ordered
as if they were the buffer. What two streams do with the same bytes is ordered by gpulua: nothing races.

Integers read as Lua's integers (u64 wraps into them), others as floats, complex numbers as pairs. What goes in must fit
the type: a number out of range, or with a fraction where the type has none, is an error that names the element.
]]

---A buffer of a device. Its fields stay when its memory is gone; `#` raises `Stale` or `UseAfterFree` then.
---@class gpulua.buffer
---@field type gpulua.element_type
---@field shape integer[] A new table each time.
---@field label string Or "".
---@field device gpulua.device
---@operator len: integer
local buffer = {}

---Fills the buffer with one value.
---
---Waits: no.
---
---Errors: `InvalidArgument`, those of work.
---@param value number|number[] A pair, if it is complex.
---@return gpulua.buffer buffer The same one.
function buffer:fill(value) end

---Writes data, from the i-th element on. Without i the data must be as long as the buffer. It is copied at the call.
---
---```lua
---local x = dev:buffer("i32", 5):fill(0)
---x:write({ 7, 8 }, 2)
---print(table.concat(x:read(), " "))         --> 0 7 8 0 0
---```
---
---Waits: no; it blocks while too much is in flight.
---
---Errors: `InvalidData` (a wrong count, or an element), `OutOfBounds` (it is too long), `InvalidArgument`, `Capacity`,
---what a function raises, those of work.
---@param data gpulua.data
---@param i? integer From 1.
---@return gpulua.buffer buffer The same one.
function buffer:write(data, i) end

---Copies all of another buffer or host buffer of the same type, device and length. Ranges of one buffer must not
---overlap.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds` (another length), those of work.
---@param from gpulua.buffer|gpulua.host_buffer
---@return gpulua.buffer buffer The same one.
function buffer:copy(from) end

---Elements i to j, as a table.
---
---```lua
---local x = dev:upload("f32", { 1, 2, 3, 4 })
---print(table.concat(x:read(2, 3), " "))     --> 2.0 3.0
---print(#x:read())                           --> 4
---```
---
---Waits: yields until what writes the buffer is over.
---
---Errors: `OutOfBounds`, `InvalidArgument`, `Capacity` (more elements than a table holds; staging memory is held),
---`CaptureActive`, failures of work, those of work, those of waits.
---@param i? integer 1 by default.
---@param j? integer The last, by default.
---@return any[] elements
function buffer:read(i, j) end

---Elements i to j, as a string of bytes as they lie in memory.
---
---```lua
---print(string.unpack("<f", dev:upload("f32", { 1.5 }):bytes())) --> 1.5	5
---```
---
---Waits: yields until what writes the buffer is over.
---
---Errors: `OutOfBounds`, `InvalidArgument`, `Capacity` (staging memory is held), `CaptureActive`, failures of work,
---those of work, those of waits.
---@param i? integer 1 by default.
---@param j? integer The last, by default.
---@return string bytes
function buffer:bytes(i, j) end

---The same bytes with another type or shape. Without a shape it has one dimension.
---
---```lua
---local x = dev:upload("f32", { 1, 2, 3, 4, 5, 6 })
---print(x:view(nil, { 2, 3 }))               --> gpulua.buffer f32[2,3] on cpu
---```
---
---Waits: no.
---
---Errors: `OutOfBounds` (another number of bytes), `InvalidArgument` (a slice that is not aligned for the type),
---`Closed`, `UseAfterFree`, `Stale`, `DeviceLost`, `Unrecoverable`.
---@param type? gpulua.element_type The same, by default.
---@param shape? gpulua.shape
---@return gpulua.buffer view
function buffer:view(type, shape) end

---Elements i to j of it, as a buffer of one dimension over the same memory.
---
---```lua
---local x = dev:upload("i32", { 1, 2, 3 })
---x:slice(2, 3):fill(0)
---print(table.concat(x:read(), " "))         --> 1 0 0
---```
---
---Waits: no.
---
---Errors: `OutOfBounds`, `InvalidArgument`, `Closed`, `UseAfterFree`, `Stale`, `DeviceLost`, `Unrecoverable`.
---@param i? integer 1 by default.
---@param j? integer The last, by default.
---@return gpulua.buffer slice
function buffer:slice(i, j) end

---What a durable buffer has after the work that was given to the device so far is what a loss restores from now on.
---
---Waits: yields until it is copied.
---
---Errors: `InvalidArgument` (it is not durable), `CaptureActive`, those of memory, failures of work, those of work,
---those of waits.
---@return gpulua.buffer buffer The same one.
function buffer:checkpoint() end

---Waits for all work that touches the buffer, also what is given meanwhile. Where the device is lost before that is
---over, the wait raises `DeviceLost`, also if the device is up again by then, with what a durable buffer had before.
---
---Waits: yields.
---
---Errors: `Timeout`, `InvalidArgument`, `CaptureActive`, `Closed`, `UseAfterFree`, `Stale`, failures of work, those of
---waits.
---@param seconds? number At most.
---@return gpulua.buffer buffer The same one.
function buffer:await(seconds) end

---Like `buffer:await`, with the error as a result.
---
---Waits: yields.
---
---Errors: `InvalidArgument`, `CaptureActive`, `Closed`, `UseAfterFree`, `Stale`, `DeviceLost`,
---`Unrecoverable`, those of waits.
---@param seconds? number At most.
---@return boolean ok
---@return gpulua.buffer|gpulua.error result
function buffer:join(seconds) end

---Is all work that touches the buffer over?
---
---Waits: no.
---
---Errors: `Closed`, `UseAfterFree`, `Stale`, `DeviceLost`, `Unrecoverable`.
---@return boolean done
function buffer:done() end

---Ends the memory for every handle, view and slice of it, now; later uses are `UseAfterFree`. Work in flight goes on.
---
---```lua
---local x = dev:buffer("f32", 4)
---local part = x:slice(1, 2)
---x:free()
---print(select(2, pcall(part.fill, part, 0)).code) --> UseAfterFree
---```
---
---Waits: no.
---
---Errors: `Closed`, `UseAfterFree`, `Stale`, `CaptureActive`, `DeviceLost`, `Unrecoverable`; of memory with a guard its
---findings: `OutOfBounds`, `UseAfterFree`.
function buffer:free() end

---Ends the handle. The memory goes with the last handle of it.
---
---Waits: no.
---
---Errors: of memory with a guard its findings: `OutOfBounds`, `UseAfterFree`.
function buffer:close() end

---Memory of the host that script and device both reach. Its elements are read and written like those of a table:
---`host[i]`, which waits for work in flight that touches it (as `read` does), and raises `OutOfBounds` outside of 1 to
---`#host`.
---
---```lua
---local host = dev:host("f32", 4)
---host[1] = 2.5
---print(host[1], host[2], #host)             --> 2.5	0.0	4
---```
---@class gpulua.host_buffer
---@field [integer] number|number[]
---@field type gpulua.element_type
---@field shape integer[] A new table each time.
---@field label string Or "".
---@field device gpulua.device
---@operator len: integer
local host_buffer = {}

---Fills it with one value.
---
---Waits: yields until nothing in flight touches it.
---
---Errors: `InvalidArgument`, `CaptureActive`, `Closed`, `UseAfterFree`, `DeviceLost`, `Unrecoverable`, `RaceFound`
---(check mode: another task's work conflicts, and only time orders the two), those of waits.
---@param value number|number[]
---@return gpulua.host_buffer buffer The same one.
function host_buffer:fill(value) end

---Writes data, from the i-th element on. Without i the data must be as long as it is.
---
---Waits: yields until nothing in flight touches it, nor writes the host buffer that it gets; for a buffer: no.
---
---Errors: `InvalidData`, `OutOfBounds`, `InvalidArgument`, `Capacity`, `CaptureActive`, what a function raises, those
---of work, those of waits.
---@param data gpulua.data
---@param i? integer From 1.
---@return gpulua.host_buffer buffer The same one.
function host_buffer:write(data, i) end

---Copies all of a buffer of the same type, device and length: a download, which is work of the device. From another
---host buffer it copies at the call. Ranges of one buffer must not overlap.
---
---```lua
---local x = dev:upload("i32", { 1, 2, 3 })
---local host = dev:host("i32", 3):copy(x)
---print(host[3])                             --> 3
---```
---
---Waits: of a buffer, no; of a host buffer, yields until nothing in flight touches it, nor writes the other one.
---
---Errors: `InvalidArgument`, `OutOfBounds` (another length), `CaptureActive` (of a host buffer), those of work, those
---of waits.
---@param from gpulua.buffer|gpulua.host_buffer
---@return gpulua.host_buffer buffer The same one.
function host_buffer:copy(from) end

---Elements i to j, as a table.
---
---Waits: yields until what writes it is over.
---
---Errors: `OutOfBounds`, `InvalidArgument`, `Capacity`, `CaptureActive`, `Closed`, `UseAfterFree`, `RaceFound` (check
---mode: another task's work conflicts, and only time orders the two), failures of work, those of waits.
---@param i? integer 1 by default.
---@param j? integer The last, by default.
---@return any[] elements
function host_buffer:read(i, j) end

---Elements i to j, as a string of bytes.
---
---Waits: yields until what writes it is over.
---
---Errors: `OutOfBounds`, `InvalidArgument`, `CaptureActive`, `Closed`, `UseAfterFree`, `RaceFound` (check mode: another
---task's work conflicts, and only time orders the two), failures of work, those of waits.
---@param i? integer 1 by default.
---@param j? integer The last, by default.
---@return string bytes
function host_buffer:bytes(i, j) end

---Waits for all work that touches it.
---
---Waits: yields.
---
---Errors: `Timeout`, `InvalidArgument`, `CaptureActive`, `Closed`, `UseAfterFree`, failures of work, those of waits.
---@param seconds? number At most.
---@return gpulua.host_buffer buffer The same one.
function host_buffer:await(seconds) end

---Like `host_buffer:await`, with the error as a result.
---
---Waits: yields.
---
---Errors: `InvalidArgument`, `CaptureActive`, `Closed`, `UseAfterFree`, `DeviceLost`, `Unrecoverable`, those of waits.
---@param seconds? number At most.
---@return boolean ok
---@return gpulua.host_buffer|gpulua.error result
function host_buffer:join(seconds) end

---Is all work that touches it over?
---
---Waits: no.
---
---Errors: `Closed`, `UseAfterFree`, `DeviceLost`, `Unrecoverable`.
---@return boolean done
function host_buffer:done() end

---Ends the memory for every handle of it.
---
---Waits: no.
---
---Errors: `Closed`, `UseAfterFree`, `CaptureActive`, `DeviceLost`, `Unrecoverable`.
function host_buffer:free() end

---Ends the handle.
---
---Waits: no.
---
---Errors: none.
function host_buffer:close() end

---One element on the device that the script sets between launches. A kernel takes it where it takes a pointer, so
---graphs see the new value.
---
---```lua
---local factor = dev:scalar("f32", 2)
---local x = dev:buffer("f32", 4):fill(3)
---local y = gpu.map("x * factor", { x = x, factor = factor })
---print(y:read(1)[1], factor:get())          --> 6.0	2.0
---```
---@class gpulua.scalar
---@field type gpulua.element_type
---@field label string Or "".
---@field device gpulua.device
local scalar = {}

---Sets the value, after everything that reads the one before. A graph that reads it finds the new one at its next
---launch.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `CaptureActive`, those of work.
---@param value number|number[] A pair, if it is complex.
---@return gpulua.scalar scalar The same one.
function scalar:set(value) end

---Its value.
---
---Waits: yields until what writes it is over.
---
---Errors: `CaptureActive`, failures of work, those of work, those of waits.
---@return any value
function scalar:get() end

---Ends it.
---
---Waits: no.
---
---Errors: none.
function scalar:close() end
