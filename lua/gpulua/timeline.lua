-- A trace as one page that any browser shows without a network: timeline_page.html with the data in it.
--
-- The page's data are columns of small numbers: texts by their number, times in ns as differences to what stands before
-- them, so that a million operations are some tens of megabytes, which a browser reads in parts of a second.

local core = require "gpulua.core"
local file = require "gpulua.file"
local trace = require "gpulua.trace"
local trace_rows <const> = require "gpulua.trace_rows"

local timeline = {}

local piece_rows <const> = 4096 -- of a column, between two concatenations
local kinds <const> = { launch = 0, library = 1, copy = 2, upload = 3, download = 4, fill = 5, mark = 6, graph = 7 }
local span_kinds <const> = { run = 0, wait = 1, range = 2 }

-- ---- columns ----

local column = {}
column.__index = column

function column:add(value)
  local count = self.count + 1
  self.count, self[count] = count, value
  if count == piece_rows then
    self.pieces[#self.pieces + 1] = table.concat(self, ",")
    self.count = 0
  end
end

function column:text()
  if self.count > 0 then
    self.pieces[#self.pieces + 1] = table.concat(self, ",", 1, self.count)
    self.count = 0
  end
  return "[" .. table.concat(self.pieces, ",") .. "]"
end

local function columns(names)
  local made = {}
  for name in string.gmatch(names, "%w+") do
    made[name] = setmetatable({ count = 0, pieces = {} }, column)
  end
  return made
end

local function write_columns(to, made, names)
  local is_first = true
  for name in string.gmatch(names, "%w+") do
    to:write(is_first and "" or ",", string.format('"%s":', name), made[name]:text())
    is_first = false
  end
end

-- ---- texts ----

local escapes <const> = { ['"'] = '\\"', ["\\"] = "\\\\", ["<"] = "\\u003c", [">"] = "\\u003e", ["&"] = "\\u0026" }

-- As JSON that does no harm inside of a script element either, in full: some are lists.
local function quoted(text)
  return '"' .. string.gsub(core.shown(text, math.maxinteger), '["\\<>&]', escapes) .. '"'
end

-- numbers(text) -> its number from 0, the same for the same text; 0: "" or nil.
local function texts()
  local list, number_of = { "" }, { [""] = 0 }
  return function(text)
    if not text then
      return 0
    end
    local number = number_of[text]
    if not number then
      number = #list
      list[number + 1], number_of[text] = text, number
    end
    return number
  end, list
end

-- ---- the data ----

local op_columns <const> = "kind label kernel where task stream asked given begun ended over bytes held shape uses "
  .. "arguments numbers values failed home seat"
local node_columns <const> = "op kind label kernel node begin took bytes" -- of graphs that were launched
local span_columns <const> = "kind label where task begin took log op"

-- Adds the arguments of a launch: a text with %d for each number, how many those are, and the numbers in a column of
-- their own. So that a kernel that is launched a million times with as many numbers takes one text.
local function add_arguments(made, log, number, number_of)
  local parts, count = {}, 0
  for i, argument in ipairs(trace.arguments(log, number)) do
    local text = trace.argument_text(argument.value, argument.type)
    if math.type(argument.value) then
      local whole = math.tointeger(argument.value)
      local is_exact = whole and whole < 1 << 53 and whole > -(1 << 53) and text == string.format("%d", whole)
      made.values:add(is_exact and text or quoted(text))
      count, text = count + 1, "%d"
    else
      text = string.gsub(text, "%%", "%%%%")
    end
    parts[i] = string.format("%s = %s", string.gsub(argument.name or "argument " .. i, "%%", "%%%%"), text)
  end
  made.arguments:add(number_of(table.concat(parts, ", ")))
  made.numbers:add(count)
end

-- Adds what the nodes of a launched graph took, and what bodies of conditional ones did that no node has, together;
-- begins are differences over all of the column.
local function add_nodes(nodes, bodies, log, number, before, number_of)
  local list, rest = core.trace_nodes(log, number)
  if rest > 0 then
    bodies:add(number - 1)
    bodies:add(rest)
  end
  for _, node in ipairs(list) do
    nodes.op:add(number - 1)
    nodes.kind:add(kinds[node.kind])
    nodes.label:add(number_of(node.label))
    local row = trace_rows.of_node(node)
    nodes.kernel:add(row ~= node.label and number_of(row) or 0)
    nodes.node:add(node.node)
    nodes.begin:add(node.begun - before)
    nodes.took:add(node.ended - node.begun)
    nodes.bytes:add(node.bytes)
    before = node.begun
  end
  return before
end

local function write_device(to, info, log, base, number_of)
  local made, nodes, node_before = columns(op_columns), columns(node_columns), base
  local waits = setmetatable({ count = 0, pieces = {} }, column)
  local bodies = setmetatable({ count = 0, pieces = {} }, column)
  local named, is_named = setmetatable({ count = 0, pieces = {} }, column), {} -- streams with a label, and that
  local given_before, held_before = base, 0
  for number = 1, info[log].ops do
    local kind, label, kernel, source, line, task, stream, _, asked, given, begun, ended, over, bytes, held, outcome,
      is_host, seat, stream_label, is_shared, grid_x, grid_y, grid_z, block_x, block_y, block_z =
      core.trace_op(log, number)
    local is_timed = ended ~= 0
    made.kind:add(kinds[kind])
    made.label:add(number_of(label))
    made.kernel:add(number_of(kernel and trace_rows.of(label, kernel, is_shared, source, line)))
    made.where:add(number_of(source and source .. ":" .. line))
    made.task:add(task)
    made.stream:add(stream)
    if stream_label and not is_named[stream] then
      is_named[stream] = true
      named:add(stream)
      named:add(number_of(stream_label))
    end
    made.asked:add(asked - given_before)
    made.given:add(given - asked)
    made.begun:add(is_timed and begun - given or "null")
    made.ended:add(is_timed and ended - begun or "null")
    made.over:add(over ~= 0 and over - (is_timed and ended or given) or "null")
    made.bytes:add(bytes)
    made.held:add(held - held_before)
    made.shape:add(number_of(grid_x and string.format("grid %d x %d x %d, block %d x %d x %d", grid_x, grid_y, grid_z,
      block_x, block_y, block_z)))
    made.uses:add(number_of(trace.uses_text(log, number, false)))
    if grid_x then
      add_arguments(made, log, number, number_of)
    else
      made.arguments:add(0)
      made.numbers:add(0)
    end
    if kind == "graph" then
      node_before = add_nodes(nodes, bodies, log, number, node_before, number_of)
    end
    made.failed:add(outcome == "failed" and 1 or 0)
    made.home:add(is_host and 1 or 0)
    made.seat:add(seat or 0)
    given_before, held_before = given, held
    for _, awaited in ipairs { core.trace_waits(log, number) } do
      if awaited ~= 0 then
        waits:add(number - 1)
        waits:add(awaited - 1)
        waits:add(number_of(trace.reason(log, awaited, number)))
      end
    end
  end
  to:write('{"name":', quoted(info[log].name), ',"streams":', named:text(), ',"waits":', waits:text(), ',"bodies":',
    bodies:text(), ',"nodes":{')
  write_columns(to, nodes, node_columns)
  to:write "},"
  write_columns(to, made, op_columns)
  to:write "}"
end

local function write_spans(to, info, spans, base, number_of)
  local made, before = columns(span_columns), base
  for number = 1, info.spans do
    local kind, label, source, line, task, begun, ended, log, of = core.trace_span(spans, number)
    made.kind:add(span_kinds[kind])
    made.label:add(number_of(label))
    made.where:add(number_of(source and source .. ":" .. line))
    made.task:add(task)
    made.begin:add(begun - before)
    made.took:add(ended - begun)
    made.log:add(log)
    made.op:add(of)
    before = begun
  end
  write_columns(to, made, span_columns)
end

local function write_texts(to, list)
  for i = 1, #list, piece_rows do
    local parts = {}
    for k = i, math.min(i + piece_rows - 1, #list) do
      parts[#parts + 1] = quoted(list[k])
    end
    to:write(i > 1 and "," or "", table.concat(parts, ","))
  end
end

--- Writes what is traced so far into the file, as a page. Io, InvalidArgument.
function timeline.write(path)
  local info, spans = trace.logs()
  local page = require "gpulua.timeline_page"
  local before, behind = string.match(page, "^(.-)@DATA@(.*)$")
  local to <close> = file.create(path, "timeline")
  local base, dropped = info.begun, info.dropped
  local number_of, list = texts()
  to:write(before, '{"devices":[')
  for log, device in ipairs(info) do
    dropped = dropped + device.dropped
    to:write(log > 1 and "," or "")
    write_device(to, info, log, base, number_of)
  end
  to:write '],"spans":{'
  write_spans(to, info, spans, base, number_of)
  to:write('},"dropped":', dropped, ',"texts":[')
  write_texts(to, list)
  to:write("]}", behind)
  to:finish()
end

return timeline
