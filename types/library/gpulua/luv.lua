---@meta gpulua.luv
--[[
# Event loops: gpulua.luv

What `require "gpulua.luv"` gives runs libuv (sockets, timers, files, processes) and gpulua in one loop. It needs luv,
Lua's library for libuv (Debian: `lua-luv`); without it `require` raises `LibraryUnavailable`. In scripts of the command
`gpulua`, and elsewhere in tasks and coroutines, it has to be required before `luv` itself, which before 1.50 keeps the
coroutine that loads it: `Unsupported` says so.

From then on whatever waits in gpulua runs the callbacks of libuv as well; `uv.run()` is not called. They run outside of
tasks, on Lua's main thread, and stop the loop while they run: they can spawn tasks, which belong to nobody, and cannot
wait. An error in a callback ends the program, because luv does that; `luv.wrap` makes callbacks that are tasks. When a
script has no tasks any more it ends, whatever is still open in libuv; `luv.run()` at its end waits for that.
]]

---@class gpulua.luv
local luv = {}

---Calls `f(..., callback)` and waits until libuv calls `callback(err, ...)`. When the waiting task is cancelled the
---request that f has returned is cancelled, where libuv can do that; a callback that comes later does nothing.
---
---```lua
---local luv = require "gpulua.luv"
---local uv = require "luv"
---print(luv.await(uv.fs_stat, "/tmp").type)  --> directory
---local ok, err = pcall(luv.await, uv.fs_stat, "/no/such/file")
---print(ok, err.code, err.message)           --> false	Io	libuv: ENOENT: no such file or directory: /no/such/file
---```
---
---Waits: yields until the callback was called.
---
---Errors: `InvalidArgument`; `NotYieldable`, `StreamMisuse` (between `luv.attach` and the close of its handle, outside
---of `uv.run`), before f is called; `Io` (err is not nil, or f returned nil and a message), what f raises; `Closed`,
---those of waits (`Cancelled` also: nothing is left that could call the callback).
---@param f function Of luv, or one that begins something and hands on the callback, which is its last argument.
---@param ... any Arguments of f.
---@return any ... What the callback was given after err.
function luv.await(f, ...) end

---A callback for libuv: each call spawns a detached task that runs `f(...)`. So f may wait, and an error in it is
---reported and ends that task alone. The tasks of several calls start in the order of the calls.
---
---Waits: no.
---
---Errors: `InvalidArgument`.
---@param f function
---@return function callback
function luv.wrap(f) end

---Waits until nothing in libuv is alive: no open connection, no timer that is set, no request.
---
---Waits: yields until then.
---
---Errors: `StreamMisuse` (between `luv.attach` and the close of its handle), `NotYieldable`, `Closed`, those of waits.
function luv.run() end

---For programs whose main loop is `uv.run()`: it runs gpulua's tasks too, and goes on while there are any, until the
---handle is closed; `uv.run` is wrapped until then. Warnings are on from then on, by which stock Lua tells of errors
---that nobody saw. Called twice, it gives the same handle.
---
---Waits: no.
---
---Errors: `StreamMisuse` (called from a task: gpulua's own loop is the outer one), `Interrupted`.
---@return gpulua.luv_attached handle
function luv.attach() end

---What `luv.attach` gives; it can be a `<close>` variable.
---@class gpulua.luv_attached
local luv_attached = {}

---From here on gpulua's loop is the outer one again.
---
---Waits: no.
---
---Errors: none.
function luv_attached:close() end

return luv
