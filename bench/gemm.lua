-- Products by dev:blas(), against bench/cublas.c, which calls cuBLAS alone. Prints `name value unit` lines (medians).
-- Usage: gpulua --device cuda --isolate T bench/gemm.lua
local gpu = require "gpulua"
local uv = require "luv" -- for its clock
local median = require "bench.measure".median

local dev = gpu.device()
local blas = dev:blas()
local repeats <const> = 15

local function measure(name, n, batch, kind, count, tf32)
  local shape = batch > 1 and { batch, n, n } or { n, n }
  -- The numbers of bench/cublas.c: how fast a GPU multiplies depends on how many bits change.
  local a <close> = dev:buffer(kind, shape):fill(2 ^ -7)
  local b <close> = dev:buffer(kind, shape):fill(2 ^ -7)
  local c <close> = dev:buffer(kind, shape):fill(0)
  local given = { a = a, b = b, c = c, tf32 = tf32 }
  local enqueue, whole = {}, {}
  local last = blas:gemm(given)
  for r = 1, repeats do
    while not last:done() do end -- awake, as the driver's own wait leaves its caller
    local start = uv.hrtime()
    for _ = 1, 20 do blas:gemm(given) end
    enqueue[r] = (uv.hrtime() - start) / 20
    dev:synchronize()
    start = uv.hrtime()
    for _ = 1, count do blas:gemm(given) end
    dev:synchronize()
    whole[r] = (uv.hrtime() - start) / count
    last = blas:gemm(given)
  end
  print(("%s_enqueue %.0f ns"):format(name, median(enqueue)))
  print(("%s %.2f us"):format(name, median(whole) / 1000))
end

measure("gemm_64_f32", 64, 1, "f32", 2000)
measure("gemm_512_f32_x64", 512, 64, "f32", 100)
measure("gemm_8192_f32", 8192, 1, "f32", 3)
measure("gemm_8192_tf32", 8192, 1, "f32", 10, true)
measure("gemm_8192_bf16", 8192, 1, "bf16", 10)
