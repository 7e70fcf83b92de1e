-- The globals of a script that is not trusted: Lua's libraries without files, programs, bytecode and finalisers, and
-- without functions that run for ever where nobody can stop them. Chunk arguments: the pattern functions that can be
-- stopped (host/pattern.c), what prints a line, what opens gpulua's modules by name.

local patterns, print_line, open_module = ...

local debug_metatable <const> = debug.getmetatable
local type <const>, error <const>, rawget <const>, rawequal <const> = type, error, rawget, rawequal
local select <const>, ipairs <const> = select, ipairs

local source_bytes_max <const> = 1 << 20
local moved_max <const> = 1 << 24

local function fields_of(library)
  local fields = {}
  for name, value in pairs(library) do
    fields[name] = value
  end
  return fields
end

local globals = { _VERSION = _VERSION }
for _, name in ipairs { "assert", "error", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget",
  "rawlen", "rawset", "select", "tonumber", "tostring", "type" } do
  globals[name] = _G[name]
end
globals._G = globals

-- ---- base ----

-- A table gets a copy of its metatable, which nobody can change: the collector runs finalisers where no hook stops
-- them, and may need the square of the number of entries for tables with weak keys. Of others' metatables nothing is
-- told.
local setmetatable <const> = setmetatable
local original <const> = {} -- a field of the copy: the script's table
local events <const> = { "__index", "__newindex", "__call", "__close", "__tostring", "__name", "__pairs", "__metatable",
  "__len", "__eq", "__lt", "__le", "__concat", "__add", "__sub", "__mul", "__div", "__mod", "__pow", "__unm", "__idiv",
  "__band", "__bor", "__bxor", "__shl", "__shr", "__bnot" }
local newest -- of the copies; objects of one kind are often made one after the other

local function is_copy_of(copy, metatable)
  for i = 1, #events do
    if not rawequal(copy[events[i]], rawget(metatable, events[i])) then
      return false
    end
  end
  return copy[original] == metatable
end

local function copy_of(metatable)
  local copy = { [original] = metatable }
  for i = 1, #events do
    copy[events[i]] = rawget(metatable, events[i])
  end
  return copy
end

function globals.setmetatable(t, metatable)
  if type(t) ~= "table" or type(metatable) ~= "table" then
    return setmetatable(t, metatable)
  end
  for _, event in ipairs { "__gc", "__mode" } do
    if rawget(metatable, event) ~= nil then
      error(string.format("a sandbox has no %s", event), 2)
    end
  end
  local present = debug_metatable(t)
  if present and rawget(present, original) == nil then
    error("cannot change a protected metatable", 2)
  end
  if not newest or not is_copy_of(newest, metatable) then
    newest = copy_of(metatable)
  end
  return setmetatable(t, newest)
end

function globals.getmetatable(value)
  local metatable = debug_metatable(value)
  if metatable and rawget(metatable, "__metatable") ~= nil then
    return metatable.__metatable
  end
  return metatable and rawget(metatable, original)
end

-- Lua calls a handler where the error is raised; in a hook, such as the one that says that the time is up, no hook
-- stops what it does. Here it is called behind the error.
local pcall <const> = pcall
local function handled(handler, ok, ...)
  if ok then
    return true, ...
  end
  return false, select(2, pcall(handler, ...))
end
function globals.xpcall(f, handler, ...)
  return handled(handler, pcall(f, ...))
end

local load <const> = load
-- Text alone, in pieces, between which it can be stopped: the time that Lua takes grows with the square of how many
-- conditions are in a row. So it does for the labels of a function and for the jumps to one of them, some of which it
-- does all at once.
local piece_bytes <const> = 256
local words <const> = { ["goto"] = 1000, ["break"] = 1000, ["::"] = 2000 }
local function check_words(text)
  for word, count_max in pairs(words) do
    local _, at, count = nil, 0, -1
    repeat
      _, at = patterns.find(text, word, at + 1, true)
      count = count + 1
      if count > count_max then
        return string.format("a sandbox compiles chunks with up to %d times '%s'", count_max, word)
      end
    until not at
  end
end

function globals.load(chunk, name, mode, ...)
  if type(chunk) == "function" then
    local parts, bytes = {}, 0
    while true do
      local part = chunk()
      if part == nil or part == "" then
        break
      elseif type(part) ~= "string" then
        return nil, "reader function must return a string"
      end
      parts[#parts + 1], bytes = part, bytes + #part
      if bytes > source_bytes_max then
        break
      end
    end
    chunk = table.concat(parts)
    name = name or "=(load)"
  end
  if type(chunk) == "string" and #chunk > source_bytes_max then
    return nil, string.format("a sandbox compiles chunks of up to %d bytes", source_bytes_max)
  elseif type(mode) == "string" and not string.find(mode, "t", 1, true) then
    return nil, "a sandbox has no binary chunks"
  end
  if type(chunk) ~= "string" then
    return load(chunk) -- which says what is wrong
  end
  local failure = check_words(chunk)
  if failure then
    return nil, failure
  end
  local from = 1
  local function next_piece()
    local piece = string.sub(chunk, from, from + piece_bytes - 1)
    from = from + piece_bytes
    return piece
  end
  local env = globals
  if select("#", ...) > 0 then
    env = ...
  end
  return load(next_piece, name or chunk, "t", env)
end

local collectgarbage <const> = collectgarbage
local collector <const> = { count = true, collect = true, step = true }
function globals.collectgarbage(option, argument)
  option = option or "collect"
  if not collector[option] then
    error(string.format("a sandbox has no collectgarbage %s", tostring(option)), 2)
  end
  return collectgarbage(option, argument)
end

function globals.print(...)
  local texts = {}
  for i = 1, select("#", ...) do
    texts[i] = tostring((select(i, ...)))
  end
  print_line(table.concat(texts, "\t"))
end

-- A module is a copy, for tracebacks look for the names of functions in all modules that there are: in long ones, for
-- long.
local modules = {}
function globals.require(name)
  if modules[name] == nil then
    local module = fields_of(open_module(name))
    module.graph = module.graph and fields_of(module.graph)
    modules[name] = module
  end
  return modules[name]
end

-- ---- string ----

globals.string = {}
for _, name in ipairs { "byte", "char", "len", "lower", "reverse", "sub", "upper" } do
  globals.string[name] = string[name]
end
for name, f in pairs(patterns) do
  globals.string[name] = f
end
-- Each value and each item of a format takes a microsecond or two.
local values_max <const>, items_max <const> = 1000, 10000
local function bounded(name, f)
  return function(format, ...)
    if type(format) == "string" and #format > items_max or select("#", ...) > values_max then
      error(string.format("a sandbox's %s takes formats of up to %d bytes and %d values", name, items_max,
        values_max), 2)
    end
    return f(format, ...)
  end
end
for _, name in ipairs { "pack", "packsize", "unpack" } do
  globals.string[name] = bounded("string." .. name, string[name])
end
local format <const> = string.format
function globals.string.format(text, ...)
  if select("#", ...) > values_max then
    error(string.format("a sandbox's string.format takes up to %d values", values_max), 2)
  end
  return format(text, ...)
end
local rep <const> = string.rep
function globals.string.rep(s, n, separator)
  -- Nothing, however often, takes Lua's function as long as it takes to count so far.
  if s == "" and (separator == nil or separator == "") and math.type(n) == "integer" then
    return ""
  end
  return rep(s, n, separator)
end

-- ---- table ----

globals.table = { pack = table.pack }

-- Of tables whose length is what is in them: others make loops of any length without an instruction.
local function check(t, name)
  local metatable = type(t) == "table" and debug_metatable(t)
  if metatable and (rawget(metatable, "__len") ~= nil or rawget(metatable, "__index") ~= nil
    or rawget(metatable, "__newindex") ~= nil) then
    error(string.format("a sandbox's table.%s takes no table with __len, __index or __newindex", name), 3)
  end
end
for _, name in ipairs { "insert", "remove", "concat", "unpack" } do
  local f <const> = table[name]
  globals.table[name] = function(t, ...)
    check(t, name)
    return f(t, ...)
  end
end

local move <const> = table.move
function globals.table.move(from, first, last, at, to)
  check(from, "move")
  check(to, "move")
  if math.type(first) == "integer" and math.type(last) == "integer" and last >= first
    and (last - first < 0 or last - first >= moved_max) then
    error(string.format("a sandbox's table.move moves up to %d elements", moved_max), 2)
  end
  return move(from, first, last, at, to or from)
end

-- Heapsort in Lua, which stops where Lua stops. Source: J. W. J. Williams, Algorithm 232, 1964.
local function sift(t, root, count, is_less)
  local value = t[root]
  while true do
    local child = 2 * root
    if child > count then
      break
    end
    if child < count and is_less(t[child], t[child + 1]) then
      child = child + 1
    end
    if not is_less(value, t[child]) then
      break
    end
    t[root] = t[child]
    root = child
  end
  t[root] = value
end
local function natural(a, b)
  return a < b
end
function globals.table.sort(t, is_less)
  if type(t) ~= "table" then
    error(string.format("bad argument #1 to 'sort' (table expected, got %s)", type(t)), 2)
  elseif is_less ~= nil and type(is_less) ~= "function" then
    error(string.format("bad argument #2 to 'sort' (function expected, got %s)", type(is_less)), 2)
  end
  check(t, "sort")
  is_less = is_less or natural
  local count = #t
  for root = count // 2, 1, -1 do
    sift(t, root, count, is_less)
  end
  for last = count, 2, -1 do
    t[1], t[last] = t[last], t[1]
    sift(t, 1, last - 1, is_less)
  end
end

-- ---- the rest ----

-- Methods of strings stay what they are, for functions of the host's, too, so the script's table is another one.
debug_metatable("").__index = fields_of(globals.string)
globals.math, globals.utf8, globals.coroutine = fields_of(math), fields_of(utf8), fields_of(coroutine)
globals.os = { clock = os.clock, date = bounded("os.date", os.date), difftime = os.difftime, time = os.time }

-- What is ours runs with the other table of globals, which has no files and no programs either, and whose patterns can
-- be stopped, too.
for name, f in pairs(patterns) do
  rawset(string, name, f)
end
_G.io, _G.os, _G.dofile, _G.loadfile, _G.load = nil, nil, nil, nil, nil
return globals
