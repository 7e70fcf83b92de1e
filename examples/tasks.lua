-- A hundred tasks, each awaiting kernels of its own at the same time: gpulua examples/tasks.lua

local gpu = require "gpulua"
local dev = gpu.device()

local grow = dev:compile([[
  extern "C" __global__ void grow(int n, int by, int *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
  }]]).grow

local n <const> = 10000

local tasks = {}
for id = 1, 100 do
  tasks[id] = gpu.spawn(function()
    local x <close> = dev:buffer("i32", n):fill(id)
    for step = 1, 3 do
      grow:launch(n, n, step, x):await() -- other tasks run meanwhile
    end
    return x:read(n, n)[1]
  end)
end

local sum = 0
for id, value in ipairs({ gpu.all(tasks) }) do
  assert(value == id + 6, "task " .. id .. " has a wrong result")
  sum = sum + value
end
print(("%s: %d tasks, sum %d"):format(dev.name, #tasks, sum))
