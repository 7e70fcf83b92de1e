--- libuv, by its Lua library luv, and gpulua in one loop: require "gpulua.luv".
--
-- libuv's loop is the guest of ours (src/binding/guest.c): whoever waits here runs its callbacks, too. It is the other
-- way round between luv.attach and the close of what that returns.

local core = require "gpulua.core"
local gpu = require "gpulua"

local luv = {}

local uv
local attached  -- what luv.attach has returned; nil: we are the outer loop
local ends = {} -- set of held tasks, whose releases say that nothing in libuv is alive

-- luv before 1.50 keeps the coroutine that loads it and calls callbacks there, also when a wait has suspended it or the
-- collector has taken it. So it is loaded here, on the main thread, where the loop calls its guest.
local function load()
  local is_there, found = pcall(require, "luv")
  if not is_there then
    local reason = tostring(found):match "[^\n]*"
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
    core.raise("Unsupported", "luv was loaded by a task, and would call callbacks on its coroutine",
      'require "gpulua.luv" before "luv"')
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
    core.raise("Io", "libuv: " .. tostring(failure))
  end
  return ...
end

--- luv.await(f, ...) -> results. Calls f(..., callback) and waits until callback(err, results...) was called; yields in
-- a task. Io: err, or f returned nil and a message. Cancelling the task cancels the request that f has returned, where
-- libuv can; a callback that comes afterwards does nothing.
function luv.await(f, ...)
  local self <close> = setmetatable({ over = core.hold() }, wait)
  local over, arguments, count = self.over, { ... }, select("#", ...)
  arguments[count + 1] = function(...)
    core.release(over, ...)
  end
  local failure
  self.request, failure = f(table.unpack(arguments, 1, count + 1))
  if self.request == nil and failure ~= nil then
    core.raise("Io", "libuv: " .. tostring(failure))
  end
  return wait.finish(self, over:join())
end

--- luv.wrap(f) -> function, a callback for libuv. Each call runs f(...) as a task of its own, which may wait, and whose
-- error is told as that of a detached task.
function luv.wrap(f)
  if type(f) ~= "function" then
    core.raise("InvalidArgument", ("argument 1 of wrap: a function expected, got %s"):format(type(f)))
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
      handle:close()
    end
    core.guest(look)
  end
end
attachment.__close = attachment.close

local function nothing() end

--- luv.attach() -> handle. From here on uv.run() runs gpulua's tasks, too, and goes on while there are any, until
-- handle:close(). StreamMisuse: in a task, where our loop is the outer one.
function luv.attach()
  if attached then
    return attached
  end
  gpu.step()
  core.guest()
  local poll, timer, prepare, check = uv.new_poll(gpu.pollfd()), uv.new_timer(), uv.new_prepare(), uv.new_check()
  poll:start("r", nothing)
  prepare:start(function() -- before libuv sleeps
    gpu.pollfd()
    local seconds = gpu.timeout_hint()
    if seconds then
      timer:start(math.ceil(seconds * 1000), 0, nothing)
    else
      timer:stop()
    end
  end)
  check:start(function() -- behind that
    if gpu.step() > 0 then
      poll:ref()
    else
      poll:unref()
    end
  end)
  for _, handle in ipairs { timer, prepare, check } do
    handle:unref()
  end
  attached = setmetatable({ handles = { poll, timer, prepare, check } }, attachment)
  return attached
end

return luv
