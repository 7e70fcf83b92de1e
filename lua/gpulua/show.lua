-- What the prompt of `gpulua` shows of values, on a terminal.

local core = require "gpulua.core"

-- More elements than these are not read as a whole, but in so many pieces, evenly spread.
local whole_max <const> = 1 << 20
local pieces <const> = 64
-- What is shown of each end of a list that is longer than twice that, and of the rows of matrices.
local edge <const> = 4
local rows_edge <const> = 3
-- So long work in flight is waited for.
local seconds_max <const> = 1
-- Of a table: elements, fields, the bytes of a text in it; and keys that are looked at to find the fields.
local elements_max <const> = 8
local fields_max <const> = 8
local text_max <const> = 40
local keys_max <const> = 1000000

local is_integer <const> = { i8 = true, u8 = true, i16 = true, u16 = true, i32 = true, u32 = true, i64 = true,
  u64 = true }
local is_complex <const> = { c64 = true, c128 = true }

-- As Lua would, but with so many digits as matter when one looks at many.
local function real_text(x)
  if x ~= x then
    return "nan" -- whose sign means nothing
  end
  local text = string.format("%.6g", x)
  return string.find(text, "^-?%d+$") and text .. ".0" or text
end

local function element_text(x, kind)
  if is_complex[kind] then
    local imaginary = real_text(x[2])
    return real_text(x[1]) .. (string.find(imaginary, "^%-") and "" or "+") .. imaginary .. "i"
  elseif kind == "u64" then
    return string.format("%s", x >= 0 and x or string.format("%d%d", (x >> 1) // 5, x - (x >> 1) // 5 * 10))
  end
  return is_integer[kind] and tostring(x) or real_text(x)
end

-- ---- figures ----

-- Sums of whole numbers are exact as long as they fit, so that their mean is.
local function add_integers(found, values, is_unsigned)
  local below = is_unsigned and math.ult or function(a, b) return a < b end
  local min, max, sum = found.min or values[1], found.max or values[1], found.sum
  for _, x in ipairs(values) do
    if below(x, min) then min = x end
    if below(max, x) then max = x end
    sum = sum + (is_unsigned and x < 0 and x + 2.0 ^ 64 or x + 0.0)
  end
  found.min, found.max, found.sum, found.count = min, max, sum, found.count + #values
end

local function add_reals(found, values)
  local min, max, sum, nans = found.min or math.huge, found.max or -math.huge, found.sum, 0
  for i = 1, #values do
    local x = values[i]
    if x ~= x then
      nans = nans + 1
    else
      if x < min then min = x end
      if x > max then max = x end
      sum = sum + x
    end
  end
  found.min, found.max, found.sum = min, max, sum
  found.nans, found.count = found.nans + nans, found.count + #values - nans
end

-- Of complex numbers the smallest and the largest magnitude.
local function add_complex(found, values)
  local sizes = {}
  for i, z in ipairs(values) do
    local re, im = z[1], z[2]
    local scale = math.max(math.abs(re), math.abs(im))
    sizes[i] = (re ~= re or im ~= im) and 0 / 0 or (scale == 0 or scale == math.huge) and scale
      or scale * ((re / scale) ^ 2 + (im / scale) ^ 2) ^ 0.5
    if sizes[i] == sizes[i] then
      found.re, found.im = found.re + re, found.im + im
    end
  end
  add_reals(found, sizes)
end

local function add(found, values, kind)
  if is_complex[kind] then
    add_complex(found, values)
  elseif is_integer[kind] then
    add_integers(found, values, kind == "u64")
  else
    add_reals(found, values)
  end
end

local function figures_text(found, kind)
  if found.count == 0 then
    return "all of them NaN"
  end
  local mean, bar = real_text(found.sum / found.count), ""
  local kind_shown = kind
  if is_complex[kind] then
    mean, bar, kind_shown = element_text({ found.re / found.count, found.im / found.count }, kind), "|z| ", "f64"
  end
  return string.format("min %s%s, max %s%s, mean %s%s", bar, element_text(found.min, kind_shown), bar,
    element_text(found.max, kind_shown), mean, is_integer[kind] and "" or string.format(", %d NaN", found.nans))
end

-- ---- buffers ----

-- Elements i to j: of what has been read already, or read for this.
local function window(seen, i, j)
  if seen.whole then
    return table.move(seen.whole, i, j, 1, {})
  end
  return seen.buffer:read(i, j)
end

-- A list of texts for n elements that follow i, without its middle.
local function ends_of(seen, i, n, kind)
  local texts = {}
  local function put(first, last)
    for _, x in ipairs(window(seen, first, last)) do texts[#texts + 1] = element_text(x, kind) end
  end
  if n <= 2 * edge + 2 then
    put(i, i + n - 1)
  else
    put(i, i + edge - 1)
    texts[#texts + 1] = "..."
    put(i + n - edge, i + n - 1)
  end
  return texts
end

-- The last two dimensions, of the first of all others, in columns of one width.
local function matrix_lines(seen, shape, kind)
  local rows, columns = shape[#shape - 1], shape[#shape]
  local lines, width = {}, 0
  local function put(row)
    local texts = ends_of(seen, (row - 1) * columns + 1, columns, kind)
    for _, text in ipairs(texts) do width = math.max(width, #text) end
    lines[#lines + 1] = texts
  end
  if rows <= 2 * rows_edge + 1 then
    for row = 1, rows do put(row) end
  else
    for row = 1, rows_edge do put(row) end
    lines[#lines + 1] = {}
    for row = rows - rows_edge + 1, rows do put(row) end
  end
  for i, texts in ipairs(lines) do
    for k, text in ipairs(texts) do texts[k] = string.rep(" ", width - #text) .. text end
    lines[i] = #texts == 0 and "..." or table.concat(texts, "  ")
  end
  return lines
end

-- What is in a buffer, as lines. Waits for what writes it, and raises what reading it raises.
local function contents(buffer)
  local kind, shape, count = buffer.type, buffer.shape, #buffer
  local seen = { buffer = buffer }
  local found = { sum = 0.0, re = 0.0, im = 0.0, nans = 0, count = 0 }
  local sampled = ""
  if count <= whole_max then
    seen.whole = buffer:read()
    add(found, seen.whole, kind)
  else
    local length = whole_max // pieces
    for piece = 0, pieces - 1 do
      local first = (count - length) * piece // (pieces - 1) + 1 -- (the last piece ends with the buffer)
      add(found, buffer:read(first, first + length - 1), kind)
    end
    sampled = string.format("of %d elements %d looked at, in %d pieces: ", count, pieces * length, pieces)
  end
  local lines
  if #shape < 2 then
    lines = { table.concat(ends_of(seen, 1, count, kind), "  ") }
  else
    lines = matrix_lines(seen, shape, kind)
    if #shape > 2 then
      table.insert(lines, 1, string.format("[%s...]:", string.rep("1,", #shape - 2)))
    end
  end
  lines[#lines + 1] = sampled .. figures_text(found, kind)
  return lines
end

-- The first line of what an error says.
local function reason(err)
  local message = type(err) == "table" and err.message or tostring(err)
  return string.match(message, "^[^\n]*")
end

-- f(value), or why it cannot be had, as { text }. Interrupts are raised.
local function try(f, value)
  local ok, result = pcall(require "gpulua".timeout, seconds_max, f, value)
  if ok then
    return result
  elseif core.type(result) == "error" and result.code == "Interrupted" then
    error(result, 0)
  elseif core.type(result) == "error" and result.code == "Timeout" then
    return { string.format("work on it is not over after %g s", seconds_max) }
  end
  return { reason(result) }
end

local function buffer_text(buffer)
  local text = tostring(buffer)
  if string.find(text, "%] %(freed%) on ") then
    return text
  end
  return text .. "\n  " .. table.concat(try(contents, buffer), "\n  ")
end

-- ---- tables ----

local words <const> = {}
for word in string.gmatch([[and break do else elseif end false for function goto if in local nil not or repeat return
    then true until while]], "%a+") do
  words[word] = true
end

-- A value within others, in one line.
local function brief(value)
  local kind = type(value)
  if kind == "string" then
    local text = #value > text_max and string.sub(value, 1, text_max) .. "..." or value
    return '"' .. string.gsub(text, '[%c"\\]', function(c)
      return c == "\n" and "\\n" or string.find(c, "%c") and string.format("\\%d", string.byte(c)) or "\\" .. c
    end) .. '"'
  elseif kind == "table" and not getmetatable(value) then
    return next(value) == nil and "{}" or "{...}"
  elseif kind == "function" or kind == "thread" then
    return kind
  end
  return (string.match(tostring(value), "^[^\n]*"))
end

local function key_text(key)
  if type(key) == "string" and string.find(key, "^[%a_][%w_]*$") and not words[key] then
    return key
  end
  return "[" .. brief(key) .. "]"
end

-- Numbers by size, then texts by letters, then the rest.
local ranks <const> = { number = 1, string = 2 }
local function comes_before(a, b)
  local rank_a, rank_b = ranks[type(a)] or 3, ranks[type(b)] or 3
  if rank_a == rank_b and rank_a < 3 then
    return a < b
  end
  return rank_a < rank_b
end

-- The first elements and fields, in one line. No metamethod is called for that.
local function table_text(value)
  local metatable = getmetatable(value)
  if metatable and (type(metatable) ~= "table" or rawget(metatable, "__tostring")) then
    return tostring(value)
  end
  local count, texts, keys = rawlen(value), {}, {}
  for i = 1, math.min(count, elements_max) do texts[i] = brief(rawget(value, i)) end
  if count > elements_max then
    texts[#texts + 1] = string.format("... %d more", count - elements_max)
  end
  local looked_at, key = 0, next(value)
  while key ~= nil and looked_at < keys_max do
    if math.type(key) ~= "integer" or key < 1 or key > count then
      keys[#keys + 1] = key
    end
    looked_at, key = looked_at + 1, next(value, key)
  end
  table.sort(keys, comes_before)
  for i = 1, math.min(#keys, fields_max) do
    texts[#texts + 1] = key_text(keys[i]) .. " = " .. brief(rawget(value, keys[i]))
  end
  if key ~= nil then
    texts[#texts + 1] = string.format("... (its first %d keys were looked at)", keys_max)
  elseif #keys > fields_max then
    texts[#texts + 1] = string.format("... %d more fields", #keys - fields_max)
  end
  local name = metatable and rawget(metatable, "__name")
  return (type(name) == "string" and name .. " " or "") ..
    (#texts == 0 and "{}" or "{ " .. table.concat(texts, ", ") .. " }")
end

-- ---- other handles ----

local function scalar_text(scalar)
  local lines = try(function() return { element_text(scalar:get(), scalar.type) } end, scalar)
  return tostring(scalar) .. ": " .. lines[1]
end

local function op_text(op)
  if not op:done() then
    return tostring(op) .. ": not over"
  end
  local ok, err = op:join()
  if not ok then
    return tostring(op) .. ": " .. tostring(err)
  end
  local took = op:elapsed()
  return tostring(op) .. ": done" .. (took and string.format(", %.1f us on the device", took * 1e6) or "")
end

local function task_text(task)
  if not task:done() then
    return tostring(task)
  end
  local results = table.pack(task:join())
  local shown = {}
  for i = 2, results.n do shown[i - 1] = brief(results[i], text_max) end
  return tostring(task) .. (results[1] and #shown == 0 and "" or ": ") .. table.concat(shown, ", ")
end

local texts <const> = { buffer = buffer_text, ["host buffer"] = buffer_text, scalar = scalar_text, op = op_text,
  task = task_text,
  kernel = function(kernel) return string.format("%s (%s)", tostring(kernel), kernel:signature()) end }

local function text_of(value)
  local of_kind = texts[core.type(value)]
  return of_kind and of_kind(value) or type(value) == "table" and table_text(value) or tostring(value)
end

--- show(...) -> the values as the prompt shows them, without a newline behind them: as `print` does, but more of what
-- is not plain. Of a buffer type, shape, label, and a look inside, which are its ends, the smallest, the largest and
-- the mean number, and how many are NaN (of complex numbers the magnitudes); of more than 1,048,576 elements figures of
-- 64 pieces, which it says. Of a scalar its value; of an op and a task whether it is over, and what came of it; of a
-- table its first elements and fields. Waits for work on each value for 1 s at most, and yields in a task; what cannot
-- be read (stale, lost) is said instead. What has failed has then been seen to fail. Raises Interrupted, and what
-- __tostring raises.
local function show(...)
  local values, separator = table.pack(...), "\t"
  for i = 1, values.n do
    values[i] = text_of(values[i])
    if string.find(values[i], "\n", 1, true) then separator = "\n" end
  end
  return table.concat(values, separator)
end

return { show = show }
