-- One call, again and again, on the CPU device, in bursts that the device is waited for behind: gpulua
-- bench/instructions.lua WHAT BURSTS. For bench/instructions.sh, which counts what a call costs.

local gpu = require "gpulua"
local dev = gpu.device "cpu"
local is_x86 = io.popen "uname -m":read "l" == "x86_64" -- whose widest vectors valgrind does not know
local add = dev:compile("extern \"C\" __global__ void add(int n, float *x) { if (n > 1) x[0] += 1; }",
  { flags = is_x86 and "-march=x86-64-v2" or nil }).add
local x = dev:upload("f32", { 0, 0, 0, 0 })
local small = dev:capture(function() add:launch(1, 1, x) end)
local large = dev:capture(function() for _ = 1, 100 do add:launch(1, 1, x) end end)
local buffers = {}
for i = 1, 64 do buffers[i] = dev:upload("f32", { 0 }) end
local broad = dev:capture(function() for i = 1, 64 do add:launch(1, 1, buffers[i]) end end)
local graphed = dev:graphed(function() add:launch(1, 1, x) end)
local options = { grid = 1, block = 1 }
local function changing(launches) -- each with another number at each call
  local number = 0
  local f = dev:graphed(function(n) for _ = 1, launches do add:launch(options, n, x) end end)
  return function()
    number = number ~ 1
    f(number)
  end
end
local empty = function() end

local calls = {
  nothing = function() empty() end,
  launch = function() add:launch(1, 1, x) end,
  ["launch with options"] = function() add:launch(options, 1, x) end,
  ["launch of a graph"] = function() small:launch() end,
  ["launch of 100 nodes"] = function() large:launch() end,
  ["launch of 64 buffers"] = function() broad:launch() end,
  ["launch of 64 buffers and another"] = function()
    broad:launch()
    add:launch(1, 1, x)
  end,
  ["graphed function"] = function() graphed() end,
  ["graphed function, a number changed"] = changing(1),
  ["graphed function, 100 numbers changed"] = changing(100),
  ["launch and await"] = function() add:launch(1, 1, x):await() end,
}
local what, bursts = arg[1], tonumber(arg[2])
if not what then
  local names = {}
  for name in pairs(calls) do names[#names + 1] = name end
  table.sort(names)
  print(table.concat(names, "\n"))
  return
end

local call = calls[what]
for _ = 1, 20 do call() end
dev:synchronize()
collectgarbage()
collectgarbage "stop"
for _ = 1, bursts do
  for _ = 1, 20 do call() end
  dev:synchronize()
end
