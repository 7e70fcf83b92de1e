-- A small network learns to tell penguins by their bills: gpulua examples/mlp.lua TABLE.csv [OUT.png]
--
-- The table (examples/data/penguins.csv) has 342 penguins of three species, each with the length and depth of its bill.
-- Every fifth is held out; a network with 2 inputs, 16 hidden units and 3 scores sees the others, all of them in each
-- epoch. A step is eleven calls: matrix products, with bias and relu where they come out, one kernel of our own for
-- softmax and its gradient, sums, and the update of all weights. It is done eagerly and then as one graph; both give
-- the same bits.

local gpu = require "gpulua"
local image = require "gpulua.image"

local EPOCHS <const>, RATE <const>, MOMENTUM <const> = 200, 0.5, 0.9
local HIDDEN <const>, SPECIES <const> = 16, 3
local WIDTH <const>, HEIGHT <const> = 640, 440 -- of the picture

local source <const> = [[
// Of each row: what the network gets wrong (minus the logarithm of the probability of the right species), and the
// gradient of the mean of that by the scores.
extern "C" __global__ void cross_entropy(int rows, const int *species, const float *scores, float *loss,
                                         float *gradient) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  const float *score = scores + 3 * i;
  float most = fmaxf(score[0], fmaxf(score[1], score[2])), sum = 0;
  for (int k = 0; k < 3; k++) sum += expf(score[k] - most);
  for (int k = 0; k < 3; k++)
    gradient[3 * i + k] = (expf(score[k] - most) / sum - (k == species[i] - 1)) / rows;
  loss[i] = logf(sum) - (score[species[i] - 1] - most);
}

// The input that each pixel stands for: from -2.5 to 3.2 across, from 2.5 down to -2.5.
extern "C" __global__ void plane(int width, int height, float *inputs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= width * height) return;
  inputs[2 * i] = 5.7f * (i % width + 0.5f) / width - 2.5f;
  inputs[2 * i + 1] = 2.5f - 5 * (i / width + 0.5f) / height;
}

// The species that the network sees there, each in its colour.
__device__ const float colours[3][3] = {{245, 130, 30}, {150, 70, 190}, {20, 125, 125}};

extern "C" __global__ void paint(int count, const float *scores, unsigned char *pixels) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float *score = scores + 3 * i;
  float most = fmaxf(score[0], fmaxf(score[1], score[2])), sum = 0, weight[3];
  for (int k = 0; k < 3; k++) sum += weight[k] = expf(score[k] - most);
  for (int c = 0; c < 3; c++) {
    float value = 0;
    for (int k = 0; k < 3; k++) value += weight[k] / sum * (255 - 0.35f * (255 - colours[k][c]));
    pixels[3 * i + c] = (unsigned char)(value + 0.5f);
  }
}

// A penguin, as a dot with a rim: 11 x 11 pixels.
extern "C" __global__ void dot(int width, int height, float length, float depth, int species, int rim,
                               unsigned char *pixels) {
  float x = (length + 2.5f) / 5.7f * width, y = (2.5f - depth) / 5 * height;
  int px = (int)x - 5 + threadIdx.x, py = (int)y - 5 + threadIdx.y;
  if (px < 0 || py < 0 || px >= width || py >= height) return;
  float dx = px + 0.5f - x, dy = py + 0.5f - y, distance = sqrtf(dx * dx + dy * dy);
  float outer = fminf(fmaxf(5 - distance, 0.0f), 1.0f), inner = fminf(fmaxf(3.7f - distance, 0.0f), 1.0f);
  for (int c = 0; c < 3; c++) {
    unsigned char *pixel = pixels + 3 * (py * width + px) + c;
    float value = *pixel + outer * (rim - *pixel);
    *pixel = (unsigned char)(value + inner * (colours[species - 1][c] - value) + 0.5f);
  }
}
]]

-- ---- the table ----

local numbers <const> = { Adelie = 1, Chinstrap = 2, Gentoo = 3 }

local function new_rows() return { bills = {}, species = {}, count = 0 } end

local function add(rows, length, depth, species)
  rows.count = rows.count + 1
  rows.bills[2 * rows.count - 1], rows.bills[2 * rows.count], rows.species[rows.count] = length, depth, species
end

-- Brings each column to mean 0 and deviation 1 over the rows to learn from, and changes the others likewise.
local function standardise(learn, test)
  for column = 1, 2 do
    local sum, squares = 0, 0
    for i = column, #learn.bills, 2 do
      sum, squares = sum + learn.bills[i], squares + learn.bills[i] ^ 2
    end
    local mean = sum / learn.count
    local deviation = (squares / learn.count - mean * mean) ^ 0.5
    for _, rows in ipairs { learn, test } do
      for i = column, #rows.bills, 2 do
        rows.bills[i] = (rows.bills[i] - mean) / deviation
      end
    end
  end
end

local function load_penguins(path)
  local learn, test = new_rows(), new_rows()
  for line in io.lines(path) do
    local name, length, depth = line:match "^(%a+),%a+,([%d.]+),([%d.]+),"
    if name then -- not the heading, nor the two that nobody has measured
      local is_test = (learn.count + test.count) % 5 == 4
      add(is_test and test or learn, tonumber(length), tonumber(depth), numbers[name] or error(path .. ": " .. line))
    end
  end
  assert(test.count > 0, path .. " has no five penguins")
  standardise(learn, test)
  return learn, test
end

-- ---- the network ----

-- Weights, gradients or velocities: one buffer, with its parts.
local function parameters(dev, label)
  local all = dev:buffer("f32", 2 * HIDDEN + HIDDEN + HIDDEN * SPECIES + SPECIES, { label = label }):fill(0)
  local at = 1
  local function part(shape, count)
    at = at + count
    return all:slice(at - count, at - 1):view("f32", shape)
  end
  return { all = all, w1 = part({ 2, HIDDEN }, 2 * HIDDEN), b1 = part({ HIDDEN }, HIDDEN),
    w2 = part({ HIDDEN, SPECIES }, HIDDEN * SPECIES), b2 = part({ SPECIES }, SPECIES) }
end

-- Small numbers, the same ones each time.
local function start(weights)
  weights.all:fill(0)
  math.randomseed(1)
  for _, w in ipairs { weights.w1, weights.w2 } do
    local values, bound = {}, (6 / w.shape[1]) ^ 0.5
    for i = 1, #w do
      values[i] = bound * (2 * math.random() - 1)
    end
    w:write(values)
  end
end

local function new_network(dev)
  local blas, k = dev:blas(), dev:compile(source)
  local net = { k = k, weights = parameters(dev, "weights") }
  local weights <const> = net.weights

  -- What it says about `inputs` (rows x 2): hidden (rows x 16) and scores (rows x 3), which are written.
  function net.forward(inputs, hidden, scores)
    blas:gemm{ a = inputs, b = weights.w1, bias = weights.b1, epilogue = "relu", c = hidden }
    blas:gemm{ a = hidden, b = weights.w2, bias = weights.b2, c = scores }
  end

  -- Returns a function that does one step of gradient descent, and the buffer of each row's loss.
  function net.trainer(inputs, species)
    local rows = inputs.shape[1]
    local hidden, by_hidden = dev:buffer("f32", { rows, HIDDEN }), dev:buffer("f32", { rows, HIDDEN })
    local scores, by_scores = dev:buffer("f32", { rows, SPECIES }), dev:buffer("f32", { rows, SPECIES })
    local loss = dev:buffer("f32", rows)
    local gradient, velocity = parameters(dev, "gradient"), parameters(dev, "velocity")
    return function()
      net.forward(inputs, hidden, scores)
      k.cross_entropy:launch(rows, rows, species, scores, loss, by_scores)
      blas:gemm{ a = hidden, transa = true, b = by_scores, c = gradient.w2 }
      gpu.reduce("sum", by_scores, { axis = 1, out = gradient.b2 })
      blas:gemm{ a = by_scores, b = weights.w2, transb = true, c = by_hidden }
      gpu.map("where(h > 0, g, 0)", { h = hidden, g = by_hidden, out = by_hidden })
      blas:gemm{ a = inputs, transa = true, b = by_hidden, c = gradient.w1 }
      gpu.reduce("sum", by_hidden, { axis = 1, out = gradient.b1 })
      gpu.map("m * v - r * g", { m = MOMENTUM, v = velocity.all, r = RATE, g = gradient.all, out = velocity.all })
      gpu.map("w + v", { w = weights.all, v = velocity.all, out = weights.all })
    end, loss
  end

  -- How many rows it gives the right species.
  function net.count_right(inputs, species)
    local rows = inputs.shape[1]
    local hidden, scores = dev:buffer("f32", { rows, HIDDEN }), dev:buffer("f32", { rows, SPECIES })
    net.forward(inputs, hidden, scores)
    local right = gpu.map("a == b", { a = gpu.reduce("argmax", scores, 2), b = species })
    return gpu.reduce("sum", right):get()
  end

  return net
end

-- ---- what is shown ----

-- The penguins in front of what the network says about each length and depth; those held out have a dark rim.
local function draw(dev, net, learn, test, path)
  local count <const> = WIDTH * HEIGHT
  local inputs, pixels = dev:buffer("f32", { count, 2 }), dev:buffer("u8", { HEIGHT, WIDTH, 3 })
  local hidden, scores = dev:buffer("f32", { count, HIDDEN }), dev:buffer("f32", { count, SPECIES })
  net.k.plane:launch(count, WIDTH, HEIGHT, inputs)
  net.forward(inputs, hidden, scores)
  net.k.paint:launch(count, count, scores, pixels)
  for _, rows in ipairs { learn, test } do
    for i = 1, rows.count do
      net.k.dot:launch({ grid = 1, block = { 11, 11 } }, WIDTH, HEIGHT, rows.bills[2 * i - 1], rows.bills[2 * i],
        rows.species[i], rows == test and 20 or 255, pixels)
    end
  end
  image.save(pixels, path)
end

-- Lua's own clock on the wall has seconds only: without luv no times are told.
local has_luv, uv = pcall(require, "luv")
local now = has_luv and function() return uv.hrtime() / 1e9 end or function() return 0 end

local function main(path, picture)
  if not path then
    io.stderr:write("usage: gpulua examples/mlp.lua TABLE.csv [OUT.png]\n")
    os.exit(2)
  end
  local learn, test = load_penguins(path)
  local dev = gpu.device()
  print(("%s: %d penguins to learn from, %d held out"):format(dev.name, learn.count, test.count))
  local inputs = dev:upload("f32", learn.bills):view("f32", { learn.count, 2 })
  local species = dev:upload("i32", learn.species)
  local net = new_network(dev)

  -- Trains a network from the start, and returns its weights.
  local function train(name, wrap)
    start(net.weights)
    local step, loss = net.trainer(inputs, species)
    step = wrap(step)
    step()
    step() -- these two compile and capture
    dev:synchronize()
    local begun = now()
    for _ = 3, EPOCHS do
      step()
    end
    dev:synchronize()
    local us = (now() - begun) / (EPOCHS - 2) * 1e6
    print(("%s: %d epochs, loss %.4f"):format(name, EPOCHS, gpu.reduce("mean", loss):get())
      .. (has_luv and (", %.1f us a step"):format(us) or ""))
    return net.weights.all:bytes()
  end
  local eager = train("eager", function(step) return step end)
  local graphed = train("graph", function(step) return dev:graphed({ label = "step" }, step) end)
  assert(eager == graphed, "the graph has learnt something else")

  local right = net.count_right(inputs, species)
  print(("accuracy on what it has learnt from: %.1f %% (%d of %d)"):format(100 * right / learn.count, right,
    learn.count))
  right = net.count_right(dev:upload("f32", test.bills):view("f32", { test.count, 2 }), dev:upload("i32", test.species))
  print(("test accuracy: %.1f %% (%d of %d); the same bits eagerly and as a graph"):format(100 * right / test.count,
    right, test.count))
  if picture then
    draw(dev, net, learn, test, picture)
  end
end

main(...)
