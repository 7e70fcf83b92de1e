-- The module: the functions of the core, and those that are simplest said in Lua.

local core = ...

local gpu = {}
for name, value in pairs(core) do
  gpu[name] = value
end
-- What the interpreter and our own files need is in the core alone.
gpu.spawn_here, gpu.raise, gpu.shutdown, gpu.adopt_coroutines = nil, nil, nil, nil

--- Runs f(...) as a task and waits for it and its children; returns its results or raises its error.
-- Outside tasks this drives the loop.
function gpu.run(f, ...)
  return gpu.spawn(f, ...):await()
end

--- Runs f(...) as a task on the caller's stream, for at most `seconds`; returns its results or raises
-- its error. When the time is over it cancels f's waits and raises Timeout.
function gpu.timeout(seconds, f, ...)
  if type(seconds) ~= "number" or not (seconds >= 0) then
    core.raise("InvalidArgument", ("argument 1 of timeout: seconds from 0 on expected, got %s"):format(
      type(seconds) == "number" and seconds or type(seconds)))
  end
  local task <close> = core.spawn_here(f, ...)
  task:join(seconds)
  if task:done() then
    return task:await()
  end
  task:cancel()
  task:join(0) -- one turn, so that it cleans up before the caller goes on
  core.raise("Timeout", ("the time for the function is over (%s s)"):format(seconds))
end

return gpu
