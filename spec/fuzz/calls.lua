-- Makes a program of a string of bytes: calls of gpulua's functions and of methods of what they gave, with arguments of
-- every kind, some of them in tasks, captures and callbacks. Each call ends; what it refuses raises an error object;
-- afterwards nothing is left on the device, which works. Anything else is a finding, which is raised.

local gpu = require "gpulua"

local seconds_max <const> = 0.25 -- of a program: whatever it waits for
local calls_max <const> = 40
local depth_max <const> = 6
local kept_max <const> = 60

-- Files are another target's; nothing is to be written here.
io.open = function(path) -- luacheck: ignore 122
  return nil, tostring(path) .. ": there are no files here"
end

-- Whatever they get, they touch nothing that they do not have: on this device that would end the process.
local source <const> = [==[
  extern "C" __global__ void scale(int n, float f, float *x) {
    if (blockIdx.x + threadIdx.x == 0 && n > 0 && x) x[0] *= f;
  }
  extern "C" __global__ void add(int n, const float *x, const float *y, float *sum) {
    if (blockIdx.x + threadIdx.x == 0 && n > 0 && x && y && sum) sum[0] = x[0] + y[0];
  }
  extern "C" __global__ void fails(int *x) { assert(!x || x[0] != 1); }
  __constant__ float table[4];]==]

local thrown <const> = "thrown by the program"

-- What blocks for good by itself or needs minutes of a compiler, ends the process, or is there for other files of ours.
local left_out <const> = { compile = true, load = true, map = true, reduce = true, graphed = true, pollfd = true,
  device = true, flight = true, close_all = true }

-- ---- values ----

local constants <const> = { false, true, 0, 1, 2, 3, 4, 16, 17, 1000, 4096, -1, 0.5, -0.0, 1e300, 0 / 0, 1 / 0,
  -1 / 0, 1 << 40, 1 << 53, math.maxinteger, math.mininteger, "", "f32", "i32", "u8", "c64", "f16", "u64", "x", "scale",
  "add", "sum", "argmax", "in f32*, i32", "n: i32, f: f32, x: inout f32*", "\0", ("long"):rep(100), "10", "\xff\xfe",
  io.stdout, print, gpu, math.huge }

-- Tables are made anew: calls may keep or change them.
local tables <const> = {
  function() return {} end,
  function() return { 1 } end,
  function() return { 1, 2, 3, 4 } end,
  function() return { 4, 4 } end,
  function() return { 2, 2, 2 } end,
  function() return { 0 } end,
  function() return { 1 << 31, 1 << 31, 1 << 31 } end,
  function() return { grid = 1, block = 1 } end,
  function() return { grid = { 2, 2 }, block = { 4, 2, 2 }, shared = 16 } end,
  function() return { grid = 0, block = -1 } end,
  function() return { grid = 1 << 40, block = 4 } end,
  function() return { label = "x" } end,
  function() return { label = 5, name = {} } end,
  function() return { priority = 1 << 40 } end,
  function() return { oom = 1 } end,
  function() return { fault = 1 } end,
  function() return { from = "driver", budget = 1 << 16, statistics = true, log = 4 } end,
  function() return { from = "slab", guard = true } end,
  function() return { oom = "retry", timeout = 0.01 } end,
  function() return { shape = { 4, 4 }, kind = "c2c", type = "f32" } end,
  function() return { durable = true } end,
  function() return setmetatable({}, { __index = function() error(thrown, 0) end }) end,
  function() return setmetatable({}, { __index = function(_, k) return k end, __len = function() return -1 end }) end,
  function() return { nil, nil, 3, x = { y = {} } } end,
}

-- ---- a program ----

local program = {}
program.__index = program

-- The next number below n; nil at the end of the bytes.
function program:take(n)
  local byte = self.bytes:byte(self.at)
  self.at = self.at + 1
  return byte and byte % n
end

function program:keep(...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if type(value) == "userdata" or gpu.type(value) or type(value) == "table" and getmetatable(value) then
      if #self.kept < kept_max then
        self.kept[#self.kept + 1] = value
      end
    end
  end
end

function program:value()
  local kind = self:take(16)
  if not kind or kind == 0 then
    return nil
  elseif kind <= 6 then
    return self:pick()
  elseif kind <= 10 then
    return constants[(self:take(#constants) or 0) + 1]
  elseif kind <= 13 then
    return tables[(self:take(#tables) or 0) + 1]()
  elseif kind == 14 then -- goes on with the program in there
    return self:function_of_program()
  end
  return function() error(thrown, 0) end
end

-- Arguments as they are meant, by the method's name; all others are of any kind.
local meant <const> = {
  buffer = function() return "f32", 16 end,
  host = function() return "f32", 16 end,
  upload = function() return "f32", { 1, 2, 3, 4 } end,
  scalar = function() return "i32", 1 end,
  slice = function() return 2, 3 end,
  view = function() return "i32", 16 end,
  read = function() return 1, 2 end,
  bytes = function() return 1, 2 end,
  fill = function() return 2 end,
  set = function() return 3 end,
  write = function() return { 1, 2 }, 2 end,
  copy = function(self) return self:pick() end,
  kernel = function() return "scale" end,
  global = function() return "table" end,
  launch = function(self)
    return { grid = 1, block = 4, stream = self:pick_of "stream" }, 4, 2.0, self:pick_of "buffer"
  end,
  use = function(self) return self:function_of_program() end,
  wait = function(self) return self:pick_of "op" or self:pick_of "stream" end,
  await = function() return 0.01 end,
  join = function() return 0.01 end,
  sleep = function() return 0 end,
  spawn = function(self) return self:function_of_program() end,
  run = function(self) return self:function_of_program() end,
  timeout = function(self) return 0.05, self:function_of_program() end,
  on_done = function(self) return self:function_of_program() end,
  on_lost = function(self) return self:function_of_program() end,
  on_pressure = function(self) return self:function_of_program() end,
  on_oom = function(self) return self:function_of_program() end,
  hooks = function(self) return { before_enqueue = self:function_of_program(), after_complete = function() end } end,
  capture = function(self) return self:function_of_program() end,
  update = function(self) return self:function_of_program() end,
  stream = function() return { label = "s" } end,
  recorder = function() return { mode = "permissive" } end,
  record = function(self) return self:pick() end,
  memory = function() return { budget = 1 << 16, guard = true } end,
  all = function(self) return self:pick(), self:pick() end,
  any = function(self) return self:pick(), self:pick() end,
  why = function(self) return self:pick_of "op", self:pick_of "op" end,
  read_write = function(self) return self:pick() end,
  bind = function(self) return { x = self:pick(), ["scale.f"] = 4.0 } end,
  check = function() end,
  synchronize = function() end,
}

function program:pick()
  return self.kept[(self:take(#self.kept) or 0) + 1]
end

function program:pick_of(kind)
  for i = #self.kept, 1, -1 do
    if gpu.type(self.kept[i]) == kind then
      return self.kept[i]
    end
  end
end

function program:function_of_program()
  return function(...)
    self:keep(...)
    self:run(self:take(4) or 0)
    return ...
  end
end

local function sorted_functions(from)
  local names = {}
  for name, value in pairs(from) do
    if type(name) == "string" and not left_out[name] and type(value) == "function" then
      names[#names + 1] = name
    end
  end
  table.sort(names)
  return names
end

local names_of = {}

-- The methods of a handle, or gpulua's own functions.
local function methods_of(value)
  local from = value
  if value ~= gpu then
    local metatable = debug.getmetatable(value) or {}
    local index = metatable.methods or metatable.__index
    from = type(index) == "table" and index or type(value) == "table" and value or {}
  end
  names_of[from] = names_of[from] or sorted_functions(from)
  return from, names_of[from]
end

local function check(self, what, ok, err, ...)
  if ok then
    self:keep(err, ...)
    return
  end
  local is_ours = err == thrown
  if not is_ours and (type(err) == "string" or type(err) == "nil" or type(err) == "number") then
    error(("%s raised no error object: %s"):format(what, tostring(err)), 0)
  elseif not is_ours and (type(err.code) ~= "string" or type(err.message) ~= "string" or #err.message == 0) then
    error(("%s raised something else: %s"):format(what, tostring(err)), 0)
  end
end

local function finding(self, err)
  self.finding = self.finding or err
end

function program:call()
  local on = self:take(4)
  local receiver = gpu
  if on and on > 0 then
    receiver = self:pick() or gpu
  end
  local from, names = methods_of(receiver)
  if #names == 0 then
    return
  end
  local name = names[(self:take(#names) or 0) + 1]
  if name == "close" and self:take(4) ~= 0 then
    name = names[1]
  end
  local kind = self:take(9) or 0
  local arguments
  if kind >= 4 and meant[name] then
    arguments = table.pack(meant[name](self))
  else
    arguments = { n = kind }
    for i = 1, kind do
      arguments[i] = self:value()
    end
  end
  if receiver ~= gpu then
    table.move(arguments, 1, arguments.n, 2)
    arguments[1] = receiver
    arguments.n = arguments.n + 1
  end
  self.trail[#self.trail + 1] = name
  self.is_injected = self.is_injected or name == "inject"
  local ok, err = pcall(check, self, name, pcall(from[name], table.unpack(arguments, 1, arguments.n)))
  if not ok then
    finding(self, err)
  end
end


function program:run(count)
  if self.depth >= depth_max then
    return
  end
  self.depth = self.depth + 1
  for _ = 1, count do
    self.calls = self.calls + 1
    if self.at > #self.bytes or self.calls > calls_max or self.is_over then
      break
    end
    self:call()
  end
  self.depth = self.depth - 1
end

-- ---- before and behind ----

local function is_task(value)
  return gpu.type(value) == "task"
end

local function finish(self)
  self.is_over = true
  for _, value in ipairs(self.kept) do
    if is_task(value) then
      pcall(value.cancel, value)
    end
  end
  for i = #self.kept, 1, -1 do
    local value = self.kept[i]
    local metatable = debug.getmetatable(value)
    if value ~= self.dev and metatable and metatable.__close then
      pcall(metatable.__close, value)
    end
  end
  self.kept = {}
  collectgarbage()
  for _ = 1, 3 do
    pcall(gpu.step, 0)
  end
end

-- What was made is gone, and the device works.
local function check_device(dev, is_injected)
  if gpu.type(dev) ~= "device" then
    return -- the program closed it
  end
  pcall(dev.hooks, dev, nil)
  for _ = 1, 100 do -- each tells of one failure that nobody saw
    if pcall(dev.synchronize, dev) then
      break
    end
  end
  collectgarbage()
  collectgarbage()
  if not pcall(dev.synchronize, dev) then
    return -- lost, by an injected fault
  end
  for _ = 1, 3000 do -- a compilation goes on when nobody waits for it any more
    if dev:stats().ops_in_flight == 0 then
      break
    end
    gpu.sleep(0.01)
  end
  local stats = dev:stats()
  if stats.bytes_live ~= 0 or stats.ops_in_flight ~= 0 or stats.graphs_live ~= 0 or stats.staging_bytes ~= 0 then
    error(("left behind: %d bytes, %d ops, %d graphs, %d bytes of staging"):format(stats.bytes_live,
      stats.ops_in_flight, stats.graphs_live, stats.staging_bytes), 0)
  end
  if not is_injected then -- what is left of it would meet this
    local x <close> = dev:buffer("i32", 4):fill(7)
    assert(x:read()[4] == 7, "the device does not work")
  end
end

return function(bytes)
  local dev = gpu.device("cpu", { budget = 1 << 22 })
  local self = setmetatable({ bytes = bytes, at = 1, depth = 0, calls = 0, dev = dev, trail = {} }, program)
  do
    local module = dev:compile(source)
    local x, closed = dev:buffer("f32", 16):fill(1), dev:buffer("f32", 16)
    closed:close()
    self.kept = { dev, x, dev:buffer("f32", { 4, 4 }):fill(2), dev:buffer("i32", 4):fill(3), dev:host("f32", 16),
      closed, module, module.scale, module.add, module.fails, module:global "table", dev:stream {},
      dev:scalar("i32", 1), dev:memory {}, x:slice(2, 5) }
  end
  local ok, err = pcall(gpu.timeout, seconds_max, self.run, self, calls_max)
  if not ok and err ~= thrown and (type(err) == "string" or type(err) == "nil") then
    finding(self, err)
  end
  finish(self)
  ok, err = pcall(check_device, dev, self.is_injected)
  if not ok then
    finding(self, err)
  end
  pcall(dev.close, dev)
  if self.finding then
    error(table.concat(self.trail, " ") .. ": " .. tostring(self.finding), 0)
  end
end
