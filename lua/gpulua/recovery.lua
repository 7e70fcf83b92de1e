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
local arguments <const> = require "gpulua.arguments"
local fail <const> = arguments.fail
local file <const> = require "gpulua.file"

local hooks = setmetatable({}, { __mode = "k" }) -- by device: { lost = {}, restored = {} }
local rebuilding = setmetatable({}, { __mode = "k" }) -- by device: { task =, thread =, epoch =, is_told = }

-- Those buffers of the device that have to be built anew, in the order in which they were made. Handles of theirs may
-- have ended while graphs, slices and generators use them.
local function due(device)
  local found = {}
  for buffer, entry in pairs(core.rebuilds()) do
    if entry.device == device and entry.epoch ~= device.epoch and core.type(buffer) == "buffer" then
      found[#found + 1] = { buffer = buffer, entry = entry }
    end
  end
  for _, kept in ipairs(core.rebuilds_kept(device)) do
    if kept.entry.epoch ~= device.epoch then
      found[#found + 1] = kept
    end
  end
  table.sort(found, function(a, b) return a.entry.number < b.entry.number end)
  return found
end

-- By the script, in the middle: nothing is built any more, and that is nobody's failure.
local function is_closed(device)
  local ok, err = pcall(core.device_return, device, nil, true)
  return not ok and err.code == "Closed"
end

-- The task that builds them, and what is known of it; nil: there is nothing to build. Where the device is lost once
-- more meanwhile it waits, and builds them in the next life.
local function rebuild(device)
  local known, epoch = rebuilding[device], device.epoch
  if known and (not known.task:done() or known.epoch == epoch and known.task:status() == "failed") then
    return known.task, known
  elseif known then
    known.task:join() -- of an earlier life: what it failed with does not matter any more
  end
  if #due(device) == 0 then
    return nil
  end
  known = { epoch = epoch }
  -- Nobody's child: several may wait for it, and one that gives up is not to end it for the others.
  known.task = core.spawn_root(function()
    local failed
    known.thread = coroutine.running()
    if is_closed(device) then
      return
    end
    local found = due(device)
    while #found > 0 do -- once more where the device was lost, and up again, meanwhile
      known.epoch, failed = device.epoch, nil
      for _, one in ipairs(found) do
        -- No race with anybody: who reads too early has failed, and what is built is there for all.
        core.check_meet()
        local ok, err = pcall(one.entry.f, one.buffer)
        if is_closed(device) then
          return
        end
        local back = not ok and core.device_return(device, nil, true) -- lost in the middle: that is the next life's
        while back do
          back:join()
          if is_closed(device) then
            return
          end
          back = core.device_return(device, nil, true)
        end
        if device.epoch ~= known.epoch then
          break
        end
        one.entry.epoch = known.epoch
        core.check_meet()
        failed = failed or not ok and { err } or nil
      end
      found = due(device)
    end
    if failed then
      error(failed[1], 0)
    end
  end)
  rebuilding[device] = known
  return known.task, known
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
  local task, building = rebuild(device)
  if not task then
    call(known.restored, device) -- in its turn, whatever comes behind it
  elseif known.restored and not building.is_told then -- else it began in an earlier life, of which that was the end
    building.is_told = true
    core.spawn(function()
      task:join()
      local is_known, back = pcall(core.device_return, device, nil, true)
      if is_known and not back and device.epoch == building.epoch then
        call(known.restored, device)
      end
    end):detach()
  end
end)

local function add(device, what, f)
  local kind <const> = core.type(device) or type(device)
  if kind ~= "device" and kind ~= "closed device" then
    core.raise("InvalidArgument", string.format("what %s is called on: gpulua.device expected, got %s", what, kind),
      "methods are called with a colon: device:name(...)")
  end
  if device.epoch and not arguments.is_callable(f) then -- what is closed has no field
    fail(what, "a function expected, got %s", core.type(f) or type(f))
  end
  hooks[device] = hooks[device] or {}
  local name = string.sub(what, 4)
  hooks[device][name] = hooks[device][name] or {}
  table.insert(hooks[device][name], f)
  return device
end

local recovery = {}
local text_of = package.loaded["gpulua.device"].flight

--- device:flight([path]) -> text: the operations that it was given last, at most limit_flight_ops of them, with their
-- arguments, kernels and buffers, as `gpulua --replay` takes them; written into the file, too. Not what was in memory.
-- Does not wait. Also of a device that is lost. Io: it cannot be written; Closed.
function recovery.flight(device, path)
  local text = text_of(device)
  if path ~= nil then
    file.write(path, "flight", text)
  end
  return text
end

--- device:on_lost(f) -> device. Each time when the device is lost f(error) runs as a task: DeviceLost, or Unrecoverable
-- once it does not come up any more.
function recovery.on_lost(device, f)
  return add(device, "on_lost", f)
end

--- device:on_restored(f) -> device. Each time when it is up again, and what has to be built anew has been, f(device)
-- runs as a task. Where it is lost once more before that has been, the next life is the first of which f hears.
function recovery.on_restored(device, f)
  return add(device, "on_restored", f)
end

--- device:await([seconds]) -> device. Waits until it takes work: at once, unless it is lost and on its way to be up
-- again. Then also until what has to be built anew has been, whose error it raises. That work was lost, which nobody
-- has seen yet, is not raised any more: who waits here knows. Yields in a task. Timeout;
-- DeviceLost: in this process it cannot come up again, or it is not meant to (restarts = 0); Unrecoverable; Closed.
function recovery.await(device, seconds)
  local known = rebuilding[device]
  local is_building = known and known.thread == coroutine.running() -- then that is not waited for
  local over
  local function ended(what) -- waited for here, and not in a task of its own: that one would know of the loss
    what:join(over and math.max(0, over - core.seconds()))
    if not what:done() then
      core.raise("Timeout", string.format("device %s was not back after %s s", device.name, seconds))
    end
    return what
  end
  local op = core.device_return(device, seconds)
  over = seconds and core.seconds() + seconds
  while op do
    ended(op):await()
    op = core.device_return(device)
  end
  local task = not is_building and rebuild(device)
  if task then
    ended(task)
    if rebuilding[device] and rebuilding[device].task == task then
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
  local version, epoch = core.keep_version(buffer), buffer.device.epoch
  while version do
    local host <close> = buffer.device:host(buffer.type, #buffer)
    host:copy(buffer):await()
    if buffer.device.epoch == epoch and core.keep(buffer, host, version) then
      break
    end
    version, epoch = core.keep_version(buffer), buffer.device.epoch
  end
  return buffer
end

return recovery
