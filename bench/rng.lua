-- Random numbers into one buffer: gpulua --device D bench/rng.lua [COUNT, by default 100 million]. Prints
-- `name value unit` lines, medians of repeats: microseconds of a draw, and bytes written in a second.
local gpu = require "gpulua"
local seconds = require "bench.measure".seconds

local count <const> = math.tointeger(tonumber(... or 100000000)) or error "COUNT: a whole number"
local dev = gpu.device()
local runs <const> = dev.kind == "cuda" and 100 or 10 -- so many that waiting for their end does not count
local x = dev:buffer("f32", count)
local bits, wide = x:view("u32", count), x:view("f64", count // 2)

local function show(name, draw)
  local spent = seconds(dev, 9, runs, draw)
  print(("%s %.1f us"):format(name, spent * 1e6))
  print(("%s_rate %.1f GB/s"):format(name, 4 * count / spent / 1e9))
end

show("fill", function() x:fill(0) end) -- what the memory takes
local generators = { "philox", "xorwow", "mrg32k3a", "sobol32" }
for _, generator in ipairs(generators) do
  local ok, rng = pcall(dev.rng, dev, { generator = generator })
  if ok then
    show(generator .. "_bits", function() rng:bits(bits) end)
    show(generator .. "_uniform", function() rng:uniform(x) end)
    show(generator .. "_normal", function() rng:normal(x) end)
    if generator == "philox" then
      show("philox_uniform_f64", function() rng:uniform(wide) end)
      show("philox_normal_f64", function() rng:normal(wide) end)
      show("philox_poisson_4", function() rng:poisson(bits, 4) end)
      show("philox_poisson_1000", function() rng:poisson(bits, 1000) end)
    end
    rng:close()
  else
    print(("# %s: %s"):format(generator, rng.message))
  end
end
