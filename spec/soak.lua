-- A soak: 100 tasks serve requests on a device that has a fault every second. Only requests in flight may be lost, and
-- nothing may be left behind.
--
--   gpulua spec/soak.lua [seconds]
--
-- Prints what it has seen; exits with 1 when something was wrong.

local gpu = require "gpulua"
local support = require "spec.support"

local seconds <const> = tonumber(arg[1] or "") or 60
local tasks_max <const> = 100
local n <const> = 256

local dev = gpu.device(os.getenv "GPULUA_DEVICE", { isolate = "process", restarts = 1000000, window = 1 })
local source <const> = [[
  extern "C" __global__ void serve(int n, int *to, const int *from, const int *model) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] * model[i % 4] + 1;
  }
  extern "C" __global__ void wild(int *x, long long at) { ((volatile int *)at)[0] = x[0]; }
  extern "C" __global__ void trap(int *x) { x[0] = 1; __trap(); }
  extern "C" __global__ void hang(volatile int *x) { x[0] = 0; while (x[0] == 0) { } }
]]
local mod = dev:compile(source)
local model = dev:upload("i32", { 2, 3, 5, 7 }, { durable = true })
local one <const> = { grid = 1, block = 1 }
local config <const> = { grid = 1, block = n }

local deadline = support.now() + seconds
local served, lost, faults, is_fault, wrong = 0, 0, 0, false, {}

local function complain(text, ...)
  wrong[#wrong + 1] = text:format(...)
end

-- One request: its answer, or the error that it ended with.
local function request(number)
  local from <close> = dev:upload("i32", n, function(i) return number + i end)
  local to <close> = dev:buffer("i32", n)
  mod.serve:launch(config, n, to, from, model)
  local got = to:read()
  for i = 1, n, 17 do
    local factor = ({ 2, 3, 5, 7 })[(i - 1) % 4 + 1]
    if got[i] ~= (number + i) * factor + 1 then
      complain("request %d: element %d is %d", number, i, got[i])
      return
    end
  end
end

local function serve(id)
  local number = id
  while support.now() < deadline do
    dev:await()
    local faults_before, began_in_fault = faults, is_fault
    local ok, err = pcall(request, number)
    if ok then
      served = served + 1
    else
      lost = lost + 1
      local code = type(err) == "table" and err.code or type(err) == "userdata" and err.code
      if code ~= "DeviceLost" and code ~= "Stale" and code ~= "DependencyFailed" then
        complain("request %d: %s", number, tostring(err))
      elseif faults == faults_before and not began_in_fault then
        complain("request %d was lost, and there was no fault meanwhile: %s", number, err.message)
      end
    end
    number = (number + tasks_max) % 1000000
    gpu.sleep(0.05)
  end
end

local kinds <const> = {
  function(x) mod.wild:launch(one, x, 16):join() end,
  function(x) mod.trap:launch(one, x):join() end,
  function(x) mod.hang:launch(one, x):deadline(0.05):join() end,
  function() os.execute("kill -9 " .. dev.pid) end,
  function(x)
    dev:inject { fault = 1 }
    mod.serve:launch(one, 1, x, x, x):join()
  end,
}

local pauses = {}

local function fault()
  local ticks = 0
  while support.now() < deadline - 1 do
    gpu.sleep(1)
    dev:await()
    local epoch = dev.epoch
    faults, is_fault = faults + 1, true
    ticks = ticks + 1
    local x <close> = dev:buffer("i32", 1)
    local begun = support.now()
    pcall(kinds[ticks % #kinds + 1], x)
    while dev.epoch == epoch and support.now() < begun + 20 do
      pcall(dev.await, dev)
      gpu.sleep(0.001)
    end
    pauses[#pauses + 1] = support.now() - begun
    if dev.epoch ~= epoch + 1 then
      complain("fault %d: epoch %d followed %d", faults, dev.epoch, epoch)
    end
    is_fault = false
  end
end

-- What may not grow, some time after the beginning, and at the end.
local function remains()
  collectgarbage()
  collectgarbage()
  local _, children = support.children()
  return { files = support.descriptors(), children = children, kib = support.resident_bytes() // 1024,
    blocks = dev:stats().blocks_live }
end

local before, after
gpu.run(function()
  for id = 1, tasks_max do
    gpu.spawn(serve, id)
  end
  gpu.spawn(fault)
  gpu.spawn(function()
    gpu.sleep(seconds / 2)
    dev:await()
    before = remains()
    for _ = 1, 20 do -- the process before this one may not have ended yet
      gpu.sleep(0.02)
      dev:await()
      before.children = math.min(before.children, (select(2, support.children())))
    end
  end)
end)
dev:await()
after = remains()

if after.files > before.files or after.children ~= before.children then
  complain("%d descriptors became %d, %d children %d", before.files, after.files, before.children, after.children)
end
-- A list of labels, a cache, a heap with holes: some of it stays. On a GPU, where much is in flight when it is lost, it
-- takes a minute until the heap has its size; then it grows no more. A leak for each fault or request does not end.
local grown = after.kib - before.kib
if grown > (seconds >= 240 and 4096 or 16384) + faults * 4 then
  complain("%d KiB became %d", before.kib, after.kib)
end
if #pauses == 0 or served == 0 then
  complain("nothing happened")
end
table.sort(pauses)
print(("%d requests served, %d lost with %d faults; up again after %.1f ms (median), %.1f ms (most); %+d KiB"):format(
  served, lost, #pauses, 1000 * (pauses[#pauses // 2 + 1] or 0), 1000 * (pauses[#pauses] or 0), grown))
for i = 1, math.min(#wrong, 20) do
  print("wrong: " .. wrong[i]:sub(1, 300))
end
dev:close()
os.exit(#wrong == 0 and 0 or 1)
