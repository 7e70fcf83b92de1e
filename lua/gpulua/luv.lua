--- libuv, by its Lua library luv, and gpulua in one loop: require "gpulua.luv".
--
-- libuv's loop is the guest of ours (src/binding/guest.c): whoever waits here runs its callbacks, too. It is the other
-- way round between luv.attach and the close of what that returns.

local core = require "gpulua.core"
local gpu = require "gpulua"
local is_callable <const> = require "gpulua.arguments".is_callable

local luv = {}

local uv
local attached  -- what luv.attach has returned; nil: we are the outer loop
local ends = {} -- set of held tasks, whose releases say that nothing in libuv is alive

local _, is_main_chunk = coroutine.running() -- of stock Lua

local function fail_loaded()
  core.raise("Unsupported", "luv was loaded by a task or a coroutine, and would call callbacks there",
    'require "gpulua.luv" before "luv"')
end

-- luv before 1.50 keeps the coroutine that loads it and calls callbacks there, also when a wait has suspended it or the
-- collector has taken it. So it is loaded here, on the main thread, where the loop calls its guest. What was loaded
-- before can be asked where it calls only while that coroutine lives, which is certain of the main thread alone.
local function load()
  if package.loaded.luv and not is_main_chunk then
    fail_loaded()
  end
  local is_there, found = pcall(require, "luv")
  if not is_there then
    local reason = string.match(tostring(found), "[^\n]*")
    core.raise("LibraryUnavailable", "luv, Lua's library for libuv, cannot be loaded: " .. reason,
      "install it: apt install lua-luv, or luarocks install luv")
  end
  local timer, is_main = found.new_timer(), false
  timer:start(0, 0, function()
    is_main = select(2, coroutine.running())
    timer:close()
  end)
  found.run "nowait"
  if not is_main then
    fail_loaded()
  end
  uv = found
end

-- The guest: runs what is due in libuv, and returns what there is to wait for.
local function look()
  if not uv then
    load()
  elseif uv.loop_mode() then
    return -- one of its callbacks waits for us
  end
  uv.run "nowait"
  if uv.loop_alive() then
    local timeout_ms = uv.backend_timeout()
    return uv.backend_fd(), timeout_ms >= 0 and timeout_ms / 1000 or nil
  end
  for over in pairs(ends) do
    ends[over] = nil
    core.release(over)
  end
end
core.guest(look)

local of_files <const> = { ENOENT = true, EACCES = true, EPERM = true, ENOSPC = true, EROFS = true, EISDIR = true,
  ENOTDIR = true, EEXIST = true }

local function fail_io(failure)
  local text = tostring(failure)
  core.raise("Io", "libuv: " .. text, not of_files[string.match(text, "^%w+")]
    and "libuv's manual says when a call gives that" or nil)
end

-- A wait for a callback, which releases the task `over`; `request` is what libuv has returned.
local wait = {}

function wait:__close()
  if not self.is_over then
    self.over:cancel()
    pcall(uv.cancel, self.request) -- not every request can be, and it may be none
  end
end

function wait:finish(is_over, failure, ...)
  self.is_over = true
  if not is_over then
    core.raise("Cancelled", "the callback can never come: nothing in libuv is alive, and nothing else could call it")
  elseif failure ~= nil then
    fail_io(failure)
  end
  return ...
end

--- luv.await(f, ...) -> results. Calls f(..., callback) and waits until callback(err, results...) was called; yields in
-- a task. Io: err, or f returned nil and a message. Cancelling the task cancels the request that f has returned, where
-- libuv can; a callback that comes afterwards does nothing.
function luv.await(f, ...)
  if not is_callable(f) then
    core.raise("InvalidArgument", string.format("argument 1 of await: a function expected, got %s",
      core.type(f) or type(f)))
  elseif attached and not uv.loop_mode() then
    core.raise("StreamMisuse", "await: libuv's loop is the outer one, and does not run",
      "wait in a task, and call uv.run(); or close what luv.attach() returned")
  end
  core.check_waits() -- before anything is begun
  local self <close> = setmetatable({ over = core.hold() }, wait)
  local over, arguments, count = self.over, { ... }, select("#", ...)
  arguments[count + 1] = function(...)
    core.release(over, ...)
  end
  local failure
  self.request, failure = f(table.unpack(arguments, 1, count + 1))
  if self.request == nil and failure ~= nil then
    fail_io(failure)
  end
  return wait.finish(self, over:join())
end

--- luv.wrap(f) -> function, a callback for libuv. Each call runs f(...) as a task of its own, which may wait, and whose
-- error is told as that of a detached task.
function luv.wrap(f)
  if type(f) ~= "function" then
    core.raise("InvalidArgument", string.format("argument 1 of wrap: a function expected, got %s", type(f)))
  end
  return function(...)
    local is_spawned, task = pcall(gpu.spawn, f, ...)
    if is_spawned then
      task:detach()
    elseif task.code ~= "Closed" then -- libuv's last callbacks come when the state closes
      error(task, 0)
    end
  end
end

--- luv.run(): waits until nothing in libuv is alive; yields in a task. StreamMisuse: between luv.attach and its close.
function luv.run()
  if attached then
    core.raise("StreamMisuse", "run: libuv's loop is the outer one",
      "call uv.run(), or close what luv.attach() returned")
  end
  if uv.loop_alive() then
    local over <close> = core.hold()
    ends[over] = true
    over:await()
  end
end

local attachment = {}
attachment.__index = attachment

--- handle:close(): from here on our loop is the outer one again.
function attachment:close()
  if attached == self then
    attached = nil
    for _, handle in ipairs(self.handles) do
      if not handle:is_closing() then
        handle:close()
      end
    end
    uv.run = self.run
    core.guest(look)
  end
end
attachment.__close = attachment.close

local function nothing() end

-- Do tasks keep libuv's loop going?
local function hold_loop(poll)
  if not poll:is_closing() then
    poll[core.task_count() > 0 and "ref" or "unref"](poll)
  end
end

-- uv.run, which does not see by itself what was spawned since it was over, nor by its last callbacks.
local function run_attached(self, mode)
  local poll = self.handles[1]
  if attached ~= self then
    return self.run(mode)
  end
  hold_loop(poll)
  local is_alive = self.run(mode)
  while (mode == nil or mode == "default") and not is_alive and attached == self and core.task_count() > 0
    and not poll:is_closing() do
    poll:ref()
    is_alive = self.run()
  end
  return is_alive
end

--- luv.attach() -> handle. From here on uv.run() runs gpulua's tasks, too, and goes on while there are any, until
-- handle:close(). Warnings are on from then on: by them stock Lua tells of errors of tasks. StreamMisuse: in a task,
-- where our loop is the outer one.
function luv.attach()
  if attached then
    return attached
  elseif not select(2, coroutine.running()) then
    core.raise("StreamMisuse", "attach: called from a task or a coroutine, where gpulua's loop is the outer one",
      "wait with luv.run() there; luv.attach() is for the main chunk of stock Lua")
  end
  gpu.step()
  warn "@on"
  core.guest()
  local poll, timer, prepare, check = uv.new_poll(gpu.pollfd()), uv.new_timer(), uv.new_prepare(), uv.new_check()
  poll:start("r", nothing)
  prepare:start(function() -- before libuv sleeps
    local seconds = gpu.timeout_hint()
    if seconds then
      timer:start(math.ceil(seconds * 1000), 0, nothing)
    else
      timer:stop()
    end
  end)
  check:start(function() -- behind that
    gpu.step()
    hold_loop(poll)
  end)
  for _, handle in ipairs { timer, prepare, check } do
    handle:unref()
  end
  local handle = setmetatable({ handles = { poll, timer, prepare, check }, run = uv.run }, attachment)
  uv.run = function(mode)
    return run_attached(handle, mode)
  end
  attached = handle
  return handle
end

return require "gpulua.entries"(luv)
