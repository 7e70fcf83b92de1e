-- gpu.map and gpu.reduce over many elements, beside a copy on the device: all are bound by memory, so what counts is
-- the bytes that they read and write in a second. Prints `name value unit` lines (medians): GB/s, and for each also its
-- share of the copy's. Usage: gpulua --device D --isolate T bench/reduce.lua [elements]
local gpu = require "gpulua"
local seconds = require "bench.measure".seconds

local dev = gpu.device()
local runs <const> = dev.kind == "cuda" and 50 or 5 -- so many that waiting for their end does not count
local n <const> = tonumber(arg[1]) or 100000000

local copy_rate

local function measure(name, bytes, f)
  local rate = bytes / seconds(dev, 7, runs, f)
  copy_rate = copy_rate or rate
  print(("%s %.1f GB/s"):format(name, rate / 1e9))
  print(("%s_of_copy %.3f ratio"):format(name, rate / copy_rate))
end

local x, y = dev:buffer("f32", n), dev:buffer("f32", n)
gpu.map("index % 1000 * 0.001", { out = x })
measure("copy", 8 * n, function() y:copy(x) end)
measure("map_1", 8 * n, function() gpu.map("x * 2 + 1", { x = x, out = y }) end)
do
  local u <close> = dev:buffer("f32", n):fill(1)
  local w <close> = dev:buffer("f32", n):fill(2)
  local z <close> = dev:buffer("f32", n):fill(3)
  measure("map_5", 24 * n, function()
    gpu.map("a * u + w * z - x / y", { a = 2, u = u, w = w, x = x, y = y, z = z, out = z })
  end)
  measure("map_5_unaligned", 24 * (n - 1), function()
    gpu.map("a * u + w * z - x / y", { a = 2, u = u:slice(2, n), w = w:slice(2, n), x = x:slice(2, n),
      y = y:slice(2, n), z = z:slice(2, n), out = z:slice(2, n) })
  end)
end
y:close()

local one, place = dev:scalar("f64", 0), dev:scalar("i64", 0)
for _, op in ipairs { "sum", "norm", "max", "argmax" } do
  local out = op == "argmax" and place or one
  measure("reduce_" .. op, 4 * n, function() gpu.reduce(op, x, { out = out }) end)
end
measure("reduce_sum_unaligned", 4 * (n - 1), function() gpu.reduce("sum", x:slice(2, n), { out = one }) end)
for _, length in ipairs { 16, 100, 1000, 10000 } do
  local rows <const> = n // length
  local whole = x:slice(1, rows * length)
  local across <close>, shape = dev:buffer("f32", rows), whole:view("f32", { rows, length })
  measure("reduce_rows_" .. length, 4 * rows * length, function()
    gpu.reduce("sum", shape, { axis = 2, out = across })
  end)
  local down <close> = dev:buffer("f32", length)
  measure("reduce_columns_" .. length, 4 * rows * length, function()
    gpu.reduce("sum", shape, { axis = 1, out = down })
  end)
end
for _, t in ipairs { "f16", "f64", "i8", "c64" } do
  local bytes = ({ f16 = 2, f64 = 8, i8 = 1, c64 = 8 })[t]
  local v = x:slice(1, n // 2 * 2):view(t)
  local out <close> = dev:buffer(t == "c64" and "c64" or t == "i8" and "i64" or "f64", 1)
  measure("reduce_sum_" .. t, bytes * #v, function() gpu.reduce("sum", v, { out = out }) end)
end
