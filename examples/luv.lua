-- One loop for sockets, timers, files and the device: gpulua examples/luv.lua
-- A server adds up the squares of what its clients send; each connection is a task.

local gpu = require "gpulua"
local luv = require "gpulua.luv" -- before luv
local uv = require "luv"         -- Debian: lua-luv

local dev = gpu.device()
local square = dev:compile([[
  extern "C" __global__ void square(int n, float *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= x[i];
  }]]).square

local sigpipe = uv.new_signal()
sigpipe:start("sigpipe", function() end) -- clients may go at any time: then writing is an error
sigpipe:unref()                          -- and this is nothing to wait for

-- Closes it when the variable goes out of scope, whatever ends the task.
local function closing(handle)
  return setmetatable({}, { __close = function()
    if not handle:is_closing() then
      handle:close()
    end
  end })
end

local function read_line(socket)
  local line = ""
  luv.await(function(callback)
    socket:read_start(function(err, data)
      line = line .. (data or "\n")
      if err or line:find "\n" then
        socket:read_stop()
        callback(err)
      end
    end)
  end)
  return line
end

local server = uv.new_tcp()
server:bind("127.0.0.1", 0)
server:listen(128, luv.wrap(function()
  local socket, numbers = uv.new_tcp(), {}
  local _ <close> = closing(socket)
  server:accept(socket)
  for number in read_line(socket):gmatch "%d+" do
    numbers[#numbers + 1] = tonumber(number)
  end
  if #numbers == 0 then
    luv.await(uv.write, socket, "numbers expected\n")
    return
  end
  local x <close> = dev:upload("f32", numbers)
  square:launch(#numbers, #numbers, x):await() -- other connections go on meanwhile
  luv.await(uv.write, socket, ("%d\n"):format(gpu.reduce("sum", x):get()))
end))

local function ask(numbers)
  local socket = uv.new_tcp()
  local _ <close> = closing(socket)
  luv.await(uv.tcp_connect, socket, "127.0.0.1", server:getsockname().port)
  luv.await(uv.write, socket, table.concat(numbers, " ") .. "\n")
  return read_line(socket):match "%d+"
end

local file = gpu.spawn(function()
  local fd = luv.await(uv.fs_open, arg[0], "r", 0)
  local first = luv.await(uv.fs_read, fd, 11, 0)
  luv.await(uv.fs_close, fd)
  return first
end)

local clients = {}
for i = 1, 20 do
  clients[i] = gpu.spawn(ask, { i, i + 1, i + 2 })
end
local answers = { gpu.all(clients) }
print(("%s: 1 + 4 + 9 = %s, 400 + 441 + 484 = %s"):format(dev.name, answers[1], answers[20]))
print("the file begins with: " .. file:await())
luv.await(uv.timer_start, uv.new_timer(), 1, 0)
print "the timer is over"
server:close()
luv.run() -- until nothing in libuv is alive
