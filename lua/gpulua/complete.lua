-- What TAB completes at the prompt of `gpulua`: names of globals, fields and methods.

local core = require "gpulua.core"

-- So many names are listed, so many keys of a table are looked at, and so many tables that it inherits from.
local names_max <const> = 200
local keys_max <const> = 100000
local parents_max <const> = 100

local words <const> = { "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
  "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while" }

-- Handles find these by a function, which cannot be asked for their names. Those of a kind that are nil are left out.
local fields <const> = { "check", "compute", "device", "driver_version", "epoch", "id", "isolation", "kind", "label",
  "memory_bytes", "model", "multiprocessors", "name", "pid", "pressure", "priority", "seq", "shape", "stream",
  "trackable", "type" }

-- Is the end of the text in a comment, or in quotes?
local function is_quoted(text)
  local at = 0
  while at do
    local first = string.find(text, "[%-\"'%[]", at + 1)
    if not first then
      return false
    end
    local mark = string.sub(text, first, first)
    local equals = string.match(text, "^%[(=*)%[", first) or string.match(text, "^%-%-%[(=*)%[", first)
    at = first
    if equals then
      at = select(2, string.find(text, "]" .. equals .. "]", first, true))
    elseif string.find(text, "^%-%-", first) then
      at = string.find(text, "\n", first, true)
    elseif mark == '"' or mark == "'" then
      repeat
        at = string.find(text, mark, at + 1, true)
      until not at or #string.match(string.sub(text, 1, at - 1), "\\*$") % 2 == 0
    end
  end
  return true
end

local function kind_of(value)
  return type(value) == "userdata" and core.type(value)
end

-- Where Lua looks on, if that is a table.
local function parent_of(value)
  local metatable = getmetatable(value)
  local parent = type(metatable) == "table" and rawget(metatable, "__index")
  return type(parent) == "table" and parent or nil
end

-- A field, without calling anything of a script's: of tables and what they inherit from in tables, of handles of ours.
local function field_of(value, key)
  if kind_of(value) then
    local ok, found = pcall(function() return value[key] end)
    return ok and found or nil
  end
  for _ = 1, parents_max do
    local found = type(value) == "table" and rawget(value, key) or nil
    if found ~= nil or value == nil then
      return found
    end
    value = parent_of(value)
  end
end

-- Calls take(name, value) with all names that begin so.
local function each_field(value, prefix, take)
  local function take_all(of)
    local looked_at, key, found = 0, next(of)
    while key ~= nil and looked_at < keys_max do
      if type(key) == "string" and string.sub(key, 1, #prefix) == prefix and string.find(key, "^[%a_][%w_]*$") then
        take(key, found)
      end
      looked_at, key, found = looked_at + 1, next(of, key)
    end
  end
  local kind = kind_of(value)
  if kind then
    local methods = require("gpulua." .. string.gsub(kind, "^closed ", ""))
    take_all(methods)
    for _, name in ipairs(kind == "module" and value:kernels() or fields) do
      local found = string.sub(name, 1, #prefix) == prefix and not methods[name] and field_of(value, name)
      if found then
        take(name, found)
      end
    end
    return
  end
  for _ = 1, parents_max do
    if type(value) == "table" then
      take_all(value)
    end
    value = parent_of(value)
    if value == nil then
      return
    end
  end
end

-- The value of 'a.b[1]["c"]'; nil: there is none, or something would have to be called.
local function value_of(expression)
  local name, rest = string.match(expression, "^([%a_][%w_]*)(.*)$")
  local value = name and field_of(_G, name)
  while value ~= nil and rest ~= "" do
    local key, after = string.match(rest, "^[.:]([%a_][%w_]*)(.*)$")
    if not key then
      key, after = string.match(rest, '^%["([^"\\]*)"%](.*)$')
    end
    if not key then
      local number
      number, after = string.match(rest, "^%[(%d+)%](.*)$")
      key = math.tointeger(number)
    end
    value, rest = key and field_of(value, key), after
  end
  return value
end

-- What the text ends with, as far as it can be looked up; "": a call or the like is in it.
local function expression_before(text)
  local from = #text + 1
  while true do
    local head = string.sub(text, 1, from - 1)
    local start = string.match(head, "()%[%d+%]$") or string.match(head, '()%["[^"\\]*"%]$')
    if start then
      from = start
    else
      from = string.match(head, "()[%a_][%w_]*$")
      local front = string.sub(text, 1, (from or 1) - 1)
      if not from or not string.find(front, "[.:]$") or string.find(front, "%.%.$") then
        return string.sub(text, from or #text + 1)
      end
      from = from - 1
    end
  end
end

local function shared_prefix(names)
  local shared = names[1]
  for _, name in ipairs(names) do
    while string.sub(name, 1, #shared) ~= shared do shared = string.sub(shared, 1, -2) end
  end
  return shared
end

-- Names in columns, in order from top to bottom.
local function list(names, columns)
  local count, width = math.min(#names, names_max), 0
  for i = 1, count do width = math.max(width, #names[i] + 2) end
  local per_line = math.max(1, columns // width)
  local line_count = (count + per_line - 1) // per_line
  local lines = {}
  for line = 1, line_count do
    lines[line] = names[line]
    for i = line + line_count, count, line_count do
      local before = names[i - line_count]
      lines[line] = lines[line] .. string.rep(" ", width - #before) .. names[i]
    end
  end
  if #names > count then
    lines[#lines + 1] = string.format("... and %d more", #names - count)
  end
  return table.concat(lines, "\n") .. "\n"
end

--- complete(before, columns) -> what is to be inserted behind the text in front of the cursor, and what the choice is
-- where there is one, as lines for a terminal of so many columns. Either may be nil. Only looks: it calls no
-- metamethod of a script's, neither waits nor yields.
return function(before, columns)
  if is_quoted(before) then
    return nil
  end
  local head, prefix = string.match(before, "^(.-)([%w_]*)$")
  local access = not string.find(head, "%.%.$") and not string.find(head, "::$") and string.match(head, "[.:]$")
  local found, names = {}, {}
  local function take(name, value)
    if found[name] == nil and (access ~= ":" or type(value) == "function") then
      found[name] = value
      names[#names + 1] = name
    end
  end
  if access then
    each_field(value_of(expression_before(string.sub(head, 1, -2))), prefix, take)
  else
    each_field(_G, prefix, take)
    for _, word in ipairs(words) do
      if string.sub(word, 1, #prefix) == prefix then
        take(word, true)
      end
    end
  end
  if #names == 0 then
    return nil
  elseif #names == 1 then
    return string.sub(names[1], #prefix + 1) .. (type(found[names[1]]) == "function" and "(" or "")
  end
  local added = string.sub(shared_prefix(names), #prefix + 1)
  if added ~= "" then
    return added
  end
  table.sort(names)
  return nil, list(names, columns)
end
