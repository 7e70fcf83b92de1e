-- dev:blas() on its own: products of matrices and a sum of vectors, as bench/blas_raw.c has OpenBLAS do them; products
-- beside kernels on another stream, which need the same cores. Prints `name value unit` lines (medians).
-- Usage: gpulua --device D --isolate T bench/blas.lua
local gpu = require "gpulua"
local measure = require "bench.measure"

local dev = gpu.device()
local blas = dev:blas()

local function seconds(runs, f) return measure.seconds(dev, 9, runs, f) end

for _, case in ipairs { { 64, 500 }, { 512, 10 }, { 2048, 1 } } do
  local n, runs = table.unpack(case)
  local a <close> = dev:buffer("f32", { n, n }):fill(1)
  local b <close> = dev:buffer("f32", { n, n }):fill(1)
  local c <close> = dev:buffer("f32", { n, n })
  print(("gemm_f32_%d %.1f GFLOP/s"):format(n, 2 * n ^ 3 / 1e9 / seconds(runs, function()
    blas:gemm { a = a, b = b, c = c }
  end)))
end

local count <const> = 1 << 20
local x, y = dev:buffer("f32", count):fill(1), dev:buffer("f32", count):fill(1)
print(("axpy_f32_%d %.1f us"):format(count, 1e6 * seconds(20, function() blas:axpy { x = x, y = y } end)))

-- A kernel right behind a product, and at the same time as one.
local z = dev:buffer("f32", count):fill(1)
local function map() gpu.map("sin(x) * 2", { x = z, out = z }) end
local n <const> = 1024
local a, c = dev:buffer("f32", { n, n }):fill(1), dev:buffer("f32", { n, n })
local function product() blas:gemm { a = a, b = a, c = c } end
local map_us, product_us = 1e6 * seconds(5, map), 1e6 * seconds(5, product)
local both_us = 1e6 * seconds(5, function() product() map() end)
local side = dev:stream()
local beside_us = 1e6 * seconds(5, function()
  blas:gemm { a = a, b = a, c = c, stream = side }
  map()
end)
print(("map_alone %.0f us"):format(map_us))
print(("gemm_1024_alone %.0f us"):format(product_us))
print(("gemm_then_map_of_sum %.3f ratio"):format(both_us / (map_us + product_us)))
print(("gemm_beside_map_of_sum %.3f ratio"):format(beside_us / (map_us + product_us)))
