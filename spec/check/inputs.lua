-- Input buffers of the known kernels.

local inputs = {}

function inputs.ints(dev, n, k)
  return dev:upload("i32", n, function(i) return (i * 7919 + (k or 0)) % 1009 end)
end

function inputs.floats(dev, n)
  return dev:upload("f32", n, function(i) return i * 37 % 101 end)
end

return inputs
