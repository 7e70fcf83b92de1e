-- Checking tables of named arguments, as the calls of libraries take them. `call` is the name that messages begin with.

local core = require "gpulua.core"

local arguments = {}

function arguments.fail(call, format, ...)
  core.raise("InvalidArgument", string.format(call .. ": " .. format, ...))
end
local fail <const> = arguments.fail

local buffer_hints <const> = { table = "dev:upload(type, table) makes a buffer of it",
  ["host buffer"] = "buffer:copy(host) brings it to the device" }

--- Raises what is wrong with a value that is not what was `expected`: "x: a buffer".
function arguments.fail_buffer(call, expected, value)
  local kind <const> = core.type(value) or type(value)
  core.raise("InvalidArgument", string.format("%s: %s expected, got %s", call, expected, kind), buffer_hints[kind])
end

--- Is `self` what this method is called on: a table of that metatable? `kind`: as tostring begins, "gpulua.blas".
function arguments.check_self(call, self, metatable, kind)
  if getmetatable(self) ~= metatable then
    local got <const> = core.type(self) or type(self)
    core.raise("InvalidArgument", string.format("what %s is called on: %s expected, got %s", call, kind, got),
      string.format("methods are called with a colon: %s:%s(...)", string.match(kind, "%w+$"), call))
  end
end

--- Can it be called? Functions, and what has __call.
function arguments.is_callable(value)
  local meta = getmetatable(value)
  return type(value) == "function" or type(meta) == "table" and meta.__call ~= nil
end

--- options("a b c") -> set of these names, and of what every call takes: stream, label.
function arguments.options(text)
  local set = { stream = true, label = true }
  for name in string.gmatch(text, "%S+") do
    set[name] = true
  end
  return set
end

--- What messages about an option that there is not end with: "; there are: a, b".
function arguments.instead(options)
  local names = {}
  for name in pairs(options) do
    names[#names + 1] = name
  end
  table.sort(names)
  return "; there are: " .. table.concat(names, ", ")
end

--- In a sandbox: a table whose metatable could answer something else each time that it is asked is refused, with those
-- in it. What was checked is what the library gets.
function arguments.check_plain(call, given)
  if not core.is_sandbox then
    return
  end
  local is_plain = getmetatable(given) == nil
  for _, value in next, given do
    is_plain = is_plain and (type(value) ~= "table" or getmetatable(value) == nil)
  end
  if not is_plain then
    fail(call, "in a sandbox tables of arguments have no metatables")
  end
end

function arguments.check(call, given, options)
  if type(given) ~= "table" then
    core.raise("InvalidArgument", string.format("%s: a table expected, got %s", call, core.type(given) or type(given)),
      "arguments go by name: { name = value, ... }" .. arguments.instead(options))
  end
  arguments.check_plain(call, given)
  for name in pairs(given) do
    if math.type(name) and not options[name] then
      core.raise("InvalidArgument", string.format("%s: arguments go by name, got a list", call),
        string.format("%s { name = value, ... }%s", call, arguments.instead(options)))
    elseif not options[name] then
      fail(call, "it has no option '%s'%s", tostring(name), arguments.instead(options))
    end
  end
end

--- A copy of `options`, a table or nil, of a call that takes those of `types`: of each what math.type, core.type or
-- type says. Each is read once, for a metatable may have others than pairs tells of, or another each time.
function arguments.typed(call, options, types)
  if options ~= nil and type(options) ~= "table" then
    core.raise("InvalidArgument", string.format("options of %s: a table expected, got %s", call,
      core.type(options) or type(options)))
  end
  for name in pairs(options or {}) do
    if not types[name] then
      core.raise("InvalidArgument", string.format("%s has no option '%s'%s", call, tostring(name),
        arguments.instead(types)))
    end
  end
  local copy = {}
  for name, wanted in pairs(types) do
    local value = options and options[name]
    local kind = math.type(value) or core.type(value) or type(value)
    if value ~= nil and kind ~= wanted then
      core.raise("InvalidArgument", string.format("%s of %s: a %s expected, got %s", name, call,
        wanted == "integer" and "whole number" or wanted, wanted == "integer" and kind == "float" and tostring(value)
          or core.type(value) or type(value)))
    end
    copy[name] = value
  end
  return copy
end

--- The integer given.name from `least` on, or nil.
function arguments.whole(call, given, name, least)
  local value = given[name]
  if value == nil then
    return nil
  elseif math.type(value) ~= "integer" or value < least then
    fail(call, "%s: a whole number from %d on expected, got %s", name, least, tostring(value))
  end
  return value
end

--- Elements from the first to the last of `count` (1 or more) pieces of `length`, `step` apart. math.maxinteger stands
-- for everything that is no smaller: no buffer has as many.
function arguments.reach(count, step, length)
  if step > 0 and count - 1 > (math.maxinteger - length) // step then
    return math.maxinteger
  end
  return (count - 1) * step + length
end

--- The boolean given.name, or nil.
function arguments.flag(call, given, name)
  local value = given[name]
  if value ~= nil and type(value) ~= "boolean" then
    fail(call, "%s: true or false expected, got %s", name, tostring(value))
  end
  return value
end

--- What `choices` has for the word given.name, or for `default`.
function arguments.choice(call, given, name, choices, default)
  local value = given[name]
  local code = choices[value == nil and default or value]
  if code == nil then
    local words = {}
    for word in pairs(choices) do
      words[#words + 1] = string.format("'%s'", word)
    end
    table.sort(words)
    fail(call, "%s: %s expected, got %s", name, table.concat(words, " or "), tostring(value))
  end
  return code
end

return arguments
