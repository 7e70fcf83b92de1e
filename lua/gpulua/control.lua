-- Control flow on the device: gpu.graph.if_, while_ and switch.
--
-- In a capture each is one node, which decides on the device when it is reached: its functions are called once, at the
-- call, and what they and the tasks that they spawn launch becomes a body of the node. Outside of captures each waits
-- for the condition, reads it, and calls the function that it chooses. Both do the same to every buffer.
--
-- A condition is a scalar, or a buffer of one element, of an integer type. None of them returns anything, and an error
-- in a function is raised with nothing recorded.

local core = require "gpulua.core"

local control = {}

local bodies_max <const> = 64

local function kind_of(v) return core.type(v) or type(v) end

local closing <const> = {
  __close = function(captures)
    for _, capture in ipairs(captures) do
      capture:close()
    end
  end,
}

local function record(name, condition, functions)
  local captures <close> = setmetatable({}, closing)
  for i, f in ipairs(functions) do
    captures[i] = core.control_begin(name)
    core.capture_spawn(captures[i], f):await()
  end
  core.control_add(name, condition, table.unpack(captures))
end

local function value(condition)
  return condition.get and condition:get() or condition:read(1, 1)[1]
end

local function check(name, number, f)
  if type(f) ~= "function" then
    core.raise("InvalidArgument", string.format("argument %d of %s: a function expected, got %s", number, name,
      kind_of(f)))
  end
end

--- gpu.graph.if_(condition, f[, g]): f unless the condition is 0, else g. EmptyCapture: one launches nothing in a
-- capture.
function control.if_(condition, f, g)
  local is_captured = core.control_check("if_", condition)
  check("if_", 2, f)
  if g ~= nil then
    check("if_", 3, g)
  end
  if is_captured then
    return record("if_", condition, { f, g })
  end
  local chosen = value(condition) ~= 0 and f or g
  if chosen then
    chosen()
  end
end

--- gpu.graph.while_(condition, f): f again and again, until the condition is 0 in front of it. InvalidArgument: f
-- launches nothing in a capture that writes the condition.
function control.while_(condition, f)
  local is_captured = core.control_check("while_", condition)
  check("while_", 2, f)
  if is_captured then
    return record("while_", condition, { f })
  end
  while value(condition) ~= 0 do
    f()
  end
end

--- gpu.graph.switch(condition, functions): the n-th function if the condition is n, none if there is no such one.
function control.switch(condition, functions)
  local is_captured = core.control_check("switch", condition)
  if type(functions) ~= "table" then
    core.raise("InvalidArgument", "argument 2 of switch: a table of functions expected, got " .. kind_of(functions))
  end
  local count = #functions
  if count == 0 or count > bodies_max then
    core.raise("InvalidArgument", string.format("argument 2 of switch: from 1 to %d functions expected, got %d",
      bodies_max, count))
  end
  local list = table.move(functions, 1, count, 1, {}) -- what else the table has is no one's
  for i = 1, count do
    if type(list[i]) ~= "function" then
      core.raise("InvalidArgument", string.format("argument 2 of switch: a function expected at %d, got %s", i,
        kind_of(list[i])))
    end
  end
  if is_captured then
    return record("switch", condition, list)
  end
  local chosen = list[value(condition)]
  if chosen then
    chosen()
  end
end

return require "gpulua.entries"(control)
