-- Losing a device, and its coming up again, where it is in a process of its own.
--
-- What was in flight fails with DeviceLost, and so does new work until the device is up again, which takes about as
-- long as opening it did. Then streams, modules, kernels, scalars, plans and generators are what they were; graphs are
-- made anew when they are next launched; host buffers have what they had. Buffers are stale (Stale), but for those that
-- were made with one of these options:
--
--   durable = true      what the script wrote last (write, fill, upload) or kept with checkpoint() is restored; never
--                       what a kernel left there. Costs as much pinned host memory.
--   durable = "space"   the memory is there again, and what is in it is undefined: for scratch memory.
--   rebuild = f         f(buffer) is called when the device is up again. Until it has written the buffer, reading it
--                       raises DependencyFailed.

local core = require "gpulua.core"
local fail <const> = require "gpulua.arguments".fail

local hooks = setmetatable({}, { __mode = "k" }) -- by device: { lost = {}, restored = {} }
local rebuilding = setmetatable({}, { __mode = "k" }) -- by device: the task that does

-- Those buffers of the device that have to be built anew, in the order in which they were made.
local function due(device)
  local found = {}
  for buffer, entry in pairs(core.rebuilds()) do
    if entry.device == device and entry.epoch ~= device.epoch and core.type(buffer) == "buffer" then
      found[#found + 1] = { buffer = buffer, entry = entry }
    end
  end
  table.sort(found, function(a, b) return a.entry.number < b.entry.number end)
  return found
end

-- The task that builds them; nil: there is nothing to build. One that was cancelled, or lost the device once more, has
-- left the rest for the next.
local function rebuild(device)
  local task = rebuilding[device]
  if task and (not task:done() or task:status() == "failed") then
    return task
  end
  local found = due(device)
  if #found == 0 then
    return nil
  end
  local epoch = device.epoch
  task = core.spawn(function()
    local failed
    for _, one in ipairs(found) do
      local ok, err = pcall(one.entry.f, one.buffer)
      one.entry.epoch = epoch
      failed = failed or not ok and { err } or nil
    end
    if failed then
      error(failed[1], 0)
    end
  end)
  rebuilding[device] = task
  return task
end

local function call(functions, ...)
  for _, f in ipairs(functions or {}) do
    core.spawn(f, ...):detach()
  end
end

core.device_events(function(device, what, err)
  local known = hooks[device] or {}
  if what == "lost" then
    return call(known.lost, err)
  end
  local task = rebuild(device)
  if known.restored then
    core.spawn(function()
      if task then
        task:join()
      end
      call(known.restored, device)
    end):detach()
  end
end)

local function add(device, what, f)
  if device.epoch and type(f) ~= "function" then -- what is closed has no field
    fail(what, "a function expected, got %s", core.type(f) or type(f))
  end
  hooks[device] = hooks[device] or {}
  local name = what:sub(4)
  hooks[device][name] = hooks[device][name] or {}
  table.insert(hooks[device][name], f)
  return device
end

local recovery = {}

--- device:on_lost(f) -> device. Each time when the device is lost f(error) runs as a task: DeviceLost, or Unrecoverable
-- once it does not come up any more.
function recovery.on_lost(device, f)
  return add(device, "on_lost", f)
end

--- device:on_restored(f) -> device. Each time when it is up again, and what has to be built anew has been, f(device)
-- runs as a task.
function recovery.on_restored(device, f)
  return add(device, "on_restored", f)
end

--- device:await([seconds]) -> device. Waits until it takes work: at once, unless it is lost and on its way to be up
-- again. Then also until what has to be built anew has been, whose error it raises. That work was lost, which nobody
-- has seen yet, is not raised any more: who waits here knows. Yields in a task. Timeout;
-- DeviceLost: in this process it cannot come up again, or it is not meant to (restarts = 0); Unrecoverable; Closed.
function recovery.await(device, seconds)
  if seconds then
    return require "gpulua".timeout(seconds, recovery.await, device)
  end
  local op = core.device_return(device)
  while op do
    op:await()
    op = core.device_return(device)
  end
  local task = rebuild(device)
  if task then
    task:join()
    if rebuilding[device] == task then
      rebuilding[device] = nil
    end
    task:await()
  end
  return device
end

--- buffer:checkpoint() -> buffer. What a durable buffer, or that part of it, has now, behind the work that was given to
-- the device so far, is what is restored from now on. Waits for it; yields in a task. InvalidArgument: it is not
-- durable; CaptureActive.
function recovery.checkpoint(buffer)
  local version = core.keep_version(buffer)
  while version do
    local host <close> = buffer.device:host(buffer.type, #buffer)
    host:copy(buffer):await()
    if core.keep(buffer, host, version) then
      break
    end
    version = core.keep_version(buffer)
  end
  return buffer
end

return recovery
