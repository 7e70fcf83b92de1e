-- The work that a profiled build learns from (make PROFILE=1): what scripts do again and again, on every transport.
-- Usage: gpulua --device D --isolate T tools/train.lua
local gpu = require "gpulua"

local dev = gpu.device()
local saxpy = dev:compile([[
  extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
  }]]).saxpy
local n <const> = 1024
local x, y = dev:buffer("f32", n):fill(1), dev:buffer("f32", n):fill(0)
local host = dev:host("f32", n)
local streams = { dev:stream {}, dev:stream {} }

for _ = 1, 20 do -- launches that nobody asks about
  for _ = 1, 500 do
    saxpy:launch(n, n, 2.0, x, y)
  end
  dev:synchronize()
end
for _ = 1, 2000 do -- and each awaited
  saxpy:launch(n, n, 2.0, x, y):await()
end
for i = 1, 4000 do -- streams that wait for each other
  local stream = streams[i % 2 + 1]
  saxpy:launch({ grid = 4, block = 256, stream = stream }, n, 2.0, i % 2 == 0 and x or y, i % 2 == 0 and y or x)
end
dev:synchronize()
for i = 1, 500 do -- memory, copies, and what comes back
  local z <close> = dev:upload("f32", { i, i + 1, i + 2, i + 3 })
  local part <close> = dev:buffer("f32", 4)
  part:copy(z)
  part:fill(i)
  x:slice(1, 4):copy(part)
  assert(z:read()[4] == i + 3)
  host:copy(x)
end

local graph = dev:capture(function()
  for _ = 1, 10 do
    saxpy:launch(n, n, 0.5, x, y)
  end
end)
for i = 1, 2000 do
  graph:launch()
  if i % 10 == 0 then
    graph:bind { ["saxpy#1.2"] = i % 7 }
    graph:launch():await()
  end
end
local fast <close> = dev:graphed(function(a)
  saxpy:launch(n, n, a, x, y)
  saxpy:launch(n, n, a, y, x)
end)
for i = 1, 500 do
  fast(i % 100 == 0 and 0.25 or 0.5)
end
dev:synchronize()

local tasks = {}
for i = 1, 50 do
  tasks[i] = gpu.spawn(function()
    for _ = 1, 40 do
      saxpy:launch(n, n, 0.5, x, y):await()
      gpu.sleep(0)
    end
  end)
end
gpu.all(tasks)
dev:close()
