-- Hooks of scripts: functions that see each operation of a device, for traces and accounting.

local core = require "gpulua.core"
local arguments = require "gpulua.arguments"
local fail <const> = arguments.fail

local names <const> = { before_enqueue = true, after_enqueue = true, before_complete = true, after_complete = true }
local sets = setmetatable({}, { __mode = "k" }) -- by device: those that new operations begin with
-- By device: what is not over, { info =, set = } by its number, so that it keeps what it began with.
local pending = setmetatable({}, { __mode = "k" })
local asked -- the operation between its first two hooks

local handlers = {}

function handlers.before_enqueue(device, name, label, library, type, stream, bytes, where)
  local set = sets[device]
  asked = set and { set = set, info = { device = device, name = name, label = label, library = library, type = type,
    stream = stream, bytes = bytes, where = where } }
  if set and set.before_enqueue then
    set.before_enqueue(asked.info)
  end
end

function handlers.after_enqueue(device, number, err)
  local op = asked
  asked = nil
  if not op then
    return -- for want of memory the first hook did not come
  end
  if not err then
    op.info.number = number
    if op.set.before_complete or op.set.after_complete then
      pending[device] = pending[device] or {}
      pending[device][number] = op
    end
  end
  if op.set.after_enqueue then
    op.set.after_enqueue(op.info, err)
  end
end

function handlers.before_complete(device, number)
  local op = pending[device] and pending[device][number]
  if op and op.set.before_complete then
    op.set.before_complete(op.info)
  end
end

function handlers.after_complete(device, number, ...)
  local op = pending[device] and pending[device][number]
  if op then
    pending[device][number] = nil
    if op.set.after_complete then
      op.set.after_complete(op.info, ...)
    end
  end
end

local is_installed = false

--- device:hooks{before_enqueue =, after_enqueue =, before_complete =, after_complete =} -> device. Functions, each of
-- which may be left out, that see every operation of the device from now on (launches, copies, fills, marks, waits of
-- one stream for another, graphs; not what is only captured); nil instead of the table: none any more. An operation
-- keeps those that it began with. A host's own hooks (gpulua_set_hooks) stay.
--
--   before_enqueue(info)      the call asks for it
--   after_enqueue(info, err)  the device has it, or it was refused (err, an error object), and nothing more comes of it
--   before_complete(info)     it is over; no task that waits for it has gone on
--   after_complete(info, err, host_s, device_s)   err: with what it has failed, or nil; seconds since before_enqueue,
--                             and on the device where that is known (it is traced: gpu.device{ trace = true })
--
-- `info` is one table for all four of an operation, which hooks may add to: device, name (of the kernel; "copy",
-- "fill", "mark", "wait", "graph"), label, library ("blas") or nil, type of all elements ("f32") or nil, stream (its
-- number), bytes that it declares to use (0 of a graph), where ("file:line" of the call) or nil, and, once the device
-- has it, number.
--
-- The first two are called in the middle of the call, the others from the loop or at the end of a wait, in the order in
-- which work ended. Hooks cannot wait, nor call gpulua (StreamMisuse): a task can, with what they put down. What a hook
-- raises is told like the errors of tasks that nobody joins, and changes nothing for the work. Does not block.
-- InvalidArgument; Closed; Unsupported: a device that a host shares between objects.
return function(device, set)
  if set ~= nil and type(set) ~= "table" then
    fail("hooks", "a table of functions expected, got %s", core.type(set) or type(set))
  end
  local kept = {}
  for name, f in pairs(set or kept) do
    if not names[name] then
      fail("hooks", "no such hook: %s (before_enqueue, after_enqueue, before_complete, after_complete)", tostring(name))
    elseif type(f) ~= "function" then
      fail("hooks", "%s: a function expected, got %s", name, core.type(f) or type(f))
    end
    kept[name] = f
  end
  if not is_installed then
    core.hooks_handler(function(event, ...)
      return handlers[event](...)
    end)
    is_installed = true
  end
  core.hooks_set(device, next(kept) ~= nil)
  sets[device] = next(kept) and kept or nil
  return device
end
