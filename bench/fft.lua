-- Fourier transforms, against bench/fft_raw.c, which calls the same libraries alone. Prints `name value unit` lines
-- (medians). Usage: gpulua --device D --isolate T bench/fft.lua
local gpu = require "gpulua"
local uv = require "luv" -- for its clock
local median = require "bench.measure".median

local dev = gpu.device()
local repeats <const> = 15
local calls <const> = dev.kind == "cuda" and 1000 or 5

local function measure(name, options)
  local plan <close> = dev:fft(options)
  local count = options.shape * (options.batch or 1)
  local x = dev:buffer(options.kind == "r2c" and "f32" or "c64", count)
  x:fill(options.kind == "r2c" and 0 or { 0, 0 })
  local X, op = plan:forward(x)
  local values = {}
  for r = 1, repeats do
    while not op:done() do end
    local start = uv.hrtime()
    for _ = 1, calls do op = plan:forward(x, X) end
    dev:synchronize()
    values[r] = (uv.hrtime() - start) / calls
  end
  print(("%s %.2f us"):format(name, median(values) / 1000))
end

measure("c2c_1024", { shape = 1024 })
measure("c2c_2^20", { shape = 1 << 20 })
measure("r2c_2^20", { shape = 1 << 20, kind = "r2c" })
measure("c2c_4096x1024", { shape = 1024, batch = 4096 })
