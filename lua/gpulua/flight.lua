-- The flight of a device: the operations that it was given last, with their arguments, as text that is Lua. It is
-- written when a device is lost, if somebody has said where (--flight FILE, GPULUA_FLIGHT, flight_path of the C API),
-- and by device:flight(). Here it is written, read, and done again: on the CPU device in check mode, which sees every
-- access of a kernel, so that what a GPU could only call an illegal address gets a name, a line and an index.
--
-- What was in memory is not in it: buffers that are older than the flight begin as zeros, and so does what was written
-- from the script. Faults that hang on data may therefore not show, or others show instead, which is said of them;
-- those that hang on arguments do. What is in a file is compiled and run: only files that one trusts are replayed.

local core = require "gpulua.core"

local file <const> = require "gpulua.file"
local sizes <const> = require "gpulua.generated".bytes -- of elements

local flight = {}

local function message_of(err)
  return core.type(err) == "error" and err.code .. ": " .. err.message or tostring(err)
end

-- ---- writing ----

--- The program ends: if no device was lost, what those were given last that are open. Raises what could not be written.
function flight.finish()
  local path, folder = core.flight_path()
  local count, failures = 0, {}
  for _, device in ipairs(path and core.flight_files() == 0 and core.devices() or {}) do
    count = count + 1
    local name = count > 1 and path .. "." .. count or path
    local whole = folder and folder .. "/" .. name or name
    local ok, err = pcall(function() file.write(whole, "flight", device:flight()) end)
    local line = string.format("device %s: what it was given last %s", device.name,
      ok and "is in " .. name or "could not be written: " .. message_of(err))
    if ok then
      core.log(line)
    else
      failures[#failures + 1] = line
    end
  end
  if #failures > 0 then
    error(table.concat(failures, "\n"), 0)
  elseif path and count == 0 and core.flight_files() == 0 then
    core.log(string.format("nothing was written to %s: no device was lost, and none was open at the end", path))
  end
end

-- ---- reading ----

local function bad(path, text)
  core.raise("InvalidArgument", string.format("replay: %s: %s", path, text), "give a file that --flight has written")
end

local kinds <const> = { launch = true, fill = true, copy = true, mark = true, graph = true, upload = true,
  control = true }

-- What is done with it relies on this.
local function check(got, path)
  local function wants(is_good, what)
    if not is_good then
      bad(path, "is damaged: " .. what)
    end
  end
  local function whole(...)
    for i = 1, select("#", ...) do -- which may be nil
      local value = select(i, ...)
      if math.type(value) ~= "integer" or value < 0 then
        return false
      end
    end
    return true
  end
  local function range(at)
    local buffer = type(at) == "table" and got.buffers[at.range]
    return buffer and whole(at.first, at.past) and at.first < at.past and at.past <= buffer.bytes
  end
  local function operation(op)
    wants(type(op) == "table" and whole(op[1]) and kinds[op[2]], "an operation")
    wants(op[2] ~= "launch" or got.kernels[op.kernel], "the kernel of an operation")
    for _, use in ipairs(op.uses or {}) do
      wants(type(use) == "table" and range(use[1]) and type(use[2]) == "string", "what an operation uses")
    end
    for _, arg in pairs(op.args or {}) do
      wants(type(arg) ~= "table" or not arg.range or range(arg), "an argument")
    end
  end
  wants(whole(got.head.ops, got.head.of, got.head.buffers) and type(got.head.device) == "string", "the head")
  for _, module in pairs(got.modules) do
    wants(type(module.name) == "string" and (module[2] ~= "source" or type(module.text) == "string"), "a module")
  end
  for _, kernel in pairs(got.kernels) do
    wants(type(kernel.name) == "string" and got.modules[kernel.module], "a kernel")
  end
  for _, buffer in pairs(got.buffers) do
    wants(whole(buffer.bytes) and buffer.bytes > 0 and (not buffer.type or sizes[buffer.type]), "a buffer")
    wants(not buffer.module or got.modules[buffer.module], "a variable")
  end
  for _, graph in pairs(got.graphs) do
    for _, node in ipairs(graph.nodes) do
      operation(node)
    end
  end
  for _, op in ipairs(got.ops) do
    operation(op)
    wants(whole(op.stream), "the stream of an operation")
  end
end

--- The flight in a file: head, and modules, kernels, buffers, graphs by number, ops in order. Io; InvalidArgument.
function flight.read(path)
  local text = file.read(path, "replay")
  if not string.find(text, "^%-%-[^\n]*\n[^\n]*\nflight {") then
    bad(path, "is not the flight of a device")
  end
  local got = { path = path, modules = {}, kernels = {}, buffers = {}, graphs = {}, ops = {} }
  local function by_number(name)
    return function(entry)
      got[name][entry[1]] = entry
    end
  end
  local words = {
    flight = function(head) got.head = head end,
    module = by_number "modules", kernel = by_number "kernels", buffer = by_number "buffers",
    graph = by_number "graphs",
    op = function(op) got.ops[#got.ops + 1] = op end,
    at = function(number, first, past) return { range = number, first = first, past = past } end,
    null = { is_null = true }, lost = { is_lost = true },
    nan = 0 / 0, inf = 1 / 0, math = { mininteger = math.mininteger },
  }
  local chunk, failure = load(text, "=" .. path, "t", words)
  local ok = chunk
  if chunk then
    ok, failure = pcall(chunk)
  end
  if not ok or not got.head then
    bad(path, string.format("cannot be read: %s", tostring(failure)))
  elseif got.head.format ~= 1 then
    bad(path, string.format("format %s is not known to this version", tostring(got.head.format)))
  end
  check(got, path)
  return got
end

-- ---- doing it again ----

local hang_s <const> = 60 -- for one operation: what was a hang is one again
local silent_s <const> = 2 -- behind that people are told what is waited for

local replay = {}
replay.__index = replay

-- "#12 'saxpy' at pipeline.lua:7, which may have been running"
local function name_of(op)
  return string.format("#%d '%s'%s%s", op[1], op.label or op[2], op.at and " at " .. op.at or "",
    op.fate and (op.fate == "pending" and ", which was pending" or ", which " .. op.fate) or "")
end

-- Does it read what zeros stand in for?
function replay:reads_made_up(op)
  for _, use in ipairs(op.uses or {}) do
    if string.find(use[2], "r") and self.made_up[use[1].range] then
      return true
    end
  end
  return false
end

function replay:note(op, err)
  local code = core.type(err) == "error" and err.code
  if code == "DependencyFailed" or code == "CaptureInvalidated" then
    return -- of one that is noted itself
  elseif code == "Interrupted" then
    error(err, 0)
  elseif code == "OutOfMemory" or code == "OutOfBudget" then
    return self:leave_out("operations", message_of(err))
  end
  local is_made_up = self:reads_made_up(op)
  local text = name_of(op) .. ": " .. message_of(err)
    .. (is_made_up and " (zeros stood in for data that it read)" or "")
  if not self.seen[text] then
    self.seen[text] = true
    self.found[#self.found + 1] = { op = op, error = err, text = text, is_made_up = is_made_up }
  end
end

-- What it writes follows from what it reads: data that nobody knows leads to more of it.
function replay:spread(op)
  for _, use in ipairs(self:reads_made_up(op) and op.uses or {}) do
    self.made_up[use[1].range] = self.made_up[use[1].range] or string.find(use[2], "w") ~= nil
  end
end

-- Once for each reason.
function replay:leave_out(what, why)
  local text = string.format("%s: %s", what, why)
  if not self.left_out[text] then
    self.left_out[text] = 0
    table.insert(self.left_out, text)
  end
  self.left_out[text] = self.left_out[text] + 1
  self.out_count = self.out_count + 1
end

-- Lines of the compiler's options, as device:compile takes them.
local function compile_options(module)
  local options = { name = module.name, names = {}, defines = {}, include = {}, flags = {} }
  local lists = { name = options.names, include = options.include, flag = options.flags }
  for line in string.gmatch(module.options or "", "[^\n]+") do
    local word, rest = string.match(line, "^(%S+) (.*)$")
    if word == "define" then
      local name, value = string.match(rest, "^([%w_$\x80-\xff]+%b()) ?(.*)$")
      if not name then
        name, value = string.match(rest, "^(%S+) ?(.*)$")
      end
      options.defines[name] = value
    elseif lists[word] then
      table.insert(lists[word], rest)
    end
  end
  return options
end

function replay:module(number)
  local known = self.modules[number]
  if known == nil then
    local from = self.flight.modules[number]
    local ok, made = false, "is compiled code"
    if from[2] == "source" then
      ok, made = pcall(self.device.compile, self.device, from.text, compile_options(from))
    elseif from[2] == "library" then
      ok, made = pcall(core.library, self.device, from.name, from.options)
    end
    known = ok and made or { why = string.format("module %s: %s", from.name, message_of(made)) }
    self.modules[number] = known
  end
  return known
end

function replay:kernel(number)
  local known = self.kernels[number]
  if known == nil then
    local from = self.flight.kernels[number]
    local module = self:module(from.module)
    known = module
    if core.type(module) == "module" then
      local ok, made = pcall(module.kernel, module, from.name, from.signature)
      known = ok and made or { why = string.format("kernel %s: %s", from.name, message_of(made)) }
    end
    self.kernels[number] = known
  end
  return known
end

-- The whole buffer; one that is older than the flight, or came from somewhere else, has something in it.
function replay:buffer(number)
  local known = self.buffers[number]
  if not known then
    local from = self.flight.buffers[number]
    local module = from.module and self:module(from.module)
    local kind = from.type and from.bytes % sizes[from.type] == 0 and from.type or "u8"
    if core.type(module) == "module" then
      known = module:global(from.variable)
    elseif from.host then
      known = self.device:host("u8", from.bytes)
      known:fill(0)
      self.made_up[number] = true
    else
      known = self.device:buffer(kind, from.bytes // sizes[kind], { label = from.label })
      if from.filled or self.is_again or number <= self.flight.head.buffers then
        known:fill(string.find(kind, "^c") and { 0, 0 } or 0)
        self.made_up[number] = true
      end
    end
    self.buffers[number] = known
  end
  return known
end

-- That part of a buffer, as elements of the type; nil: of its own.
function replay:range(range, kind)
  local whole = self:buffer(range.range)
  local from = self.flight.buffers[range.range]
  if from.host then -- which has no parts
    local bytes = range.past - range.first
    return bytes == from.bytes and whole or self.device:host("u8", bytes):fill(0)
  end
  kind = kind or from.type or "u8"
  if range.first == 0 and range.past == from.bytes and kind == whole.type then
    return whole
  end
  local bytes = whole:view "u8":slice(range.first + 1, range.past)
  if (range.past - range.first) % sizes[kind] ~= 0 or range.first % sizes[kind] ~= 0 then
    return bytes
  end
  return bytes:view(kind)
end

function replay:stream(number)
  if not self.streams[number] then
    self.streams[number] = self.stream_count < 200 and self.device:stream {} or self.device:stream()
    self.stream_count = self.stream_count + 1
  end
  return self.streams[number]
end

-- What is known of it is only what it uses: what it writes has been written.
function replay:stand_in(op)
  for _, use in ipairs(op.uses or {}) do
    local target = string.find(use[2], "w") and self:range(use[1], "u8")
    if target and not self.flight.buffers[use[1].range].host then
      target:fill(0)
      self.made_up[use[1].range] = true
    end
  end
end

function replay:arguments(op, kernel)
  local args = { n = #op.args }
  for i, kind in ipairs(core.kernel_arguments(kernel)) do
    local given = op.args[i]
    if type(given) == "table" and given.range then
      args[i] = self:range(given, kind or nil)
    elseif type(given) == "table" and given.is_null then
      args[i] = nil
    elseif type(given) == "table" and given.is_lost then
      return nil
    else
      args[i] = given
    end
  end
  return args
end

local does = {}

function does.launch(self, op, options)
  local kernel = self:kernel(op.kernel)
  local args = op.args and not kernel.why and self:arguments(op, kernel)
  if not args then
    self:leave_out(string.format("launches of '%s'", self.flight.kernels[op.kernel].name),
      kernel.why or "their arguments are not known any more")
    return self:stand_in(op)
  end
  return kernel:launch({ grid = op.grid, block = op.block, shared = op.shared, stream = options.stream,
    label = options.label }, table.unpack(args, 1, args.n))
end

function does.fill(self, op)
  local use = op.uses and op.uses[1]
  if not use or not op.element then
    return self:leave_out("fills", "what they write is not known any more")
  end
  local by_size <const> = { [1] = "i8", [2] = "i16", [4] = "i32", [8] = "i64", [16] = "c128" }
  local bytes = string.gsub(op.element, "%x%x", function(pair) return string.char(tonumber(pair, 16)) end)
  local target = self:range(use[1], by_size[#bytes])
  local value = #bytes == 16 and { (string.unpack("<d", bytes)), (string.unpack("<d", bytes, 9)) }
    or (string.unpack("<i" .. #bytes, bytes))
  if use[1].first == 0 and use[1].past == self.flight.buffers[use[1].range].bytes then
    self.made_up[use[1].range] = nil -- all of it is known from here on
  end
  return target:fill(value)
end

-- From the script (nothing but the target is known), to it, or between two buffers.
function does.copy(self, op)
  local from, to
  for _, use in ipairs(op.uses or {}) do
    if use[2] == "r" then
      from = use[1]
    else
      to = use[1]
    end
  end
  if from and to then
    return self:range(to, "u8"):copy(self:range(from, "u8"))
  elseif to then
    return self:stand_in(op)
  elseif from then
    local host <close> = self.device:host("u8", from.past - from.first)
    return host:copy(self:range(from, "u8"))
  end
end

function does.mark(self, op)
  if op.label ~= "allocation" then -- which writes nothing
    self:stand_in(op)
  end
end

function does.upload() end

does.control = does.mark

function does.graph(self, op, options)
  local from = op.graph and self.flight.graphs[op.graph]
  if not from then
    self:leave_out(string.format("launches of the graph '%s'", op.label or "graph"),
      "it has conditional nodes, has been changed since, or is gone")
    return self:stand_in(op)
  end
  local graph = self.graphs[op.graph]
  if not graph then
    for _, node in ipairs(from.nodes) do -- what capturing would not let it do
      for _, use in ipairs(node.uses or {}) do
        self:buffer(use[1].range)
      end
      if node.kernel then
        self:kernel(node.kernel)
      end
    end
    graph = self.device:capture({ label = from.label }, function()
      for _, node in ipairs(from.nodes) do
        local name = node.label or node[2]
        does[node[2]](self, node, { label = node.at and string.format("%s at %s", name, node.at) or name })
      end
    end)
    self.graphs[op.graph] = graph
  end
  return graph:launch { stream = options.stream, label = options.label }
end

-- Where each buffer is used last, by index; those of graphs are kept.
local function last_uses(flown)
  local last, kept, by_index = {}, {}, {}
  for _, graph in pairs(flown.graphs) do
    for _, node in ipairs(graph.nodes) do
      for _, use in ipairs(node.uses or {}) do
        kept[use[1].range] = true
      end
    end
  end
  for i, op in ipairs(flown.ops) do
    for _, use in ipairs(op.uses or {}) do
      last[use[1].range] = i
    end
  end
  for number, i in pairs(last) do
    if not kept[number] and not flown.buffers[number].module then
      by_index[i] = by_index[i] or {}
      table.insert(by_index[i], number)
    end
  end
  return by_index
end

-- true, or false and why it failed.
local function ended(done, op, seconds)
  local ok, err = pcall(done.await, done, silent_s)
  if ok or done:done() or err.code ~= "Timeout" then
    return ok, err
  end
  io.stderr:write(string.format("waiting for %s, %g s at most\n", name_of(op), seconds))
  return done:join()
end

--- Does a flight again, one operation after the other; `seed`: of check mode; `seconds`: for one operation, before it
-- counts as a hang. Returns { ops = how many, done = how many of them, found = list of { op =, error =, text =,
-- is_made_up = }, left_out = list of texts and how often by text }. Yields in a task, or blocks.
function flight.replay(flown, seed, seconds)
  require "gpulua" -- devices have all their methods then
  -- In a process of its own: whatever a kernel does, there is an answer, and a next one.
  local device <close> = core.device("cpu", { check = true, seed = seed or 1, isolate = "process",
    restarts = 1000, window = 1, watchdog = seconds or hang_s })
  -- Behind an interrupt closing the device would wait for what hangs.
  local ender <close> = setmetatable({}, { __close = function(_, err) -- luacheck: ignore
    if err ~= nil and device.pid then
      os.execute(string.format("kill -9 %d 2> /dev/null", device.pid))
    end
  end })
  local self = setmetatable({ flight = flown, device = device, modules = {}, kernels = {}, buffers = {}, graphs = {},
    streams = {}, stream_count = 0, seen = {}, found = {}, left_out = {}, made_up = {}, out_count = 0 }, replay)
  local last = last_uses(flown)
  for i, op in ipairs(flown.ops) do
    if not op.skipped then
      local ok, done = pcall(does[op[2]], self, op, { stream = self:stream(op.stream), label = op.label })
      if ok and core.type(done) == "op" then
        ok, done = ended(done, op, seconds or hang_s)
      end
      if not ok then
        self:note(op, done)
        if core.type(done) == "error" and done.code == "DeviceLost" then
          device:await()
          self.buffers, self.graphs, self.is_again = {}, {}, true -- which have nothing of before
        end
      end
      self:spread(op)
    end
    for _, number in ipairs(last[i] or {}) do
      if self.buffers[number] then
        self.buffers[number]:free() -- also where views of it wait for the collector
        self.buffers[number] = nil
      end
    end
  end
  local ok, err = pcall(device.synchronize, device)
  if not ok and #self.found == 0 then
    self:note({ 0, "synchronize" }, err)
  end
  return { ops = #flown.ops, done = #flown.ops - self.out_count, found = self.found, left_out = self.left_out }
end

-- Labels and places are anybody's, and are not to look like lines of their own.
local function harmless(value)
  for key, held in pairs(value) do
    if type(held) == "table" then
      harmless(held)
    elseif (key == "label" or key == "at") and type(held) == "string" then
      value[key] = core.shown(held)
    end
  end
  return value
end

--- What `gpulua --replay FILE` shows. Returns whether nothing was found.
function flight.show(path, seed)
  local ok, flown = pcall(flight.read, path)
  if not ok then
    io.stderr:write(string.format("gpulua: %s\n", message_of(flown)))
    return false
  end
  local head = flown.head
  local function say(format, ...) -- names are anybody's, and may have what a terminal takes for commands
    print((string.gsub(string.format(format, ...), "[^\n\32-\126][\128-\191]*", core.shown)))
  end
  say("the last %d of %d operations of %s (%s)%s", head.ops, head.of, head.device, head.model,
    head.lost and ", which was lost: " .. head.lost or "")
  local report = flight.replay(harmless(flown), seed)
  for _, text in ipairs(report.left_out) do
    say("left out, %d times: %s", report.left_out[text], text)
  end
  for _, one in ipairs(report.found) do
    say("%s", one.text)
  end
  local share = report.done == report.ops and "" or string.format(" of %d", report.ops)
  print(string.format("%d%s operations done again in check mode: %s found", report.done, share,
    #report.found == 0 and "nothing" or #report.found))
  return #report.found == 0
end

return flight
