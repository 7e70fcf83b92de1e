-- The examples as a user runs them, against references made by other programs (spec/reference).

local image = require "gpulua.image"
local npy = require "gpulua.npy"
local support = require "spec.support"

local build = os.getenv "GPULUA_BUILD" or "build"

-- What `gpulua ARGUMENTS` writes, and its exit code.
local function run(arguments)
  local pipe = assert(io.popen(("%s/gpulua %s 2>&1"):format(build, arguments)))
  local output = pipe:read("a")
  local _, _, code = pipe:close()
  return output, code
end

describe("example", function()
  local dev, folder

  setup(function()
    dev = support.open()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
  end)
  teardown(function()
    os.execute("rm -r " .. folder)
    support.close_all()
  end)

  it("of the README runs as it stands there", function()
    local file <close> = assert(io.open "README.md")
    local text = file:read "a"
    -- What parts of scripts take for granted.
    local around = [[
      local gpu, frames, seen = require "gpulua", { "one", "two" }, 0
      local function process() seen = seen + 1 end
      do %s end
      print(seen)]]
    local wholes, parts = 0, ""
    for block in text:gmatch "```lua\n(.-)```" do
      local is_whole = block:find 'require "gpulua"'
      local output, code = support.script(is_whole and block or around:format(block))
      assert.equal(0, code, output)
      if is_whole then
        wholes = wholes + 1
        assert.equal(block:match "print.*%-%- ([%d.]+)" .. "\n", output)
      else
        parts = parts .. output
      end
    end
    assert.equal(7, wholes)
    assert.equal("2\n0\n", parts)
    -- Kernels: this one says what is wrong.
    local kernels = 0
    for block in text:gmatch "```cuda\n(.-)```" do
      kernels = kernels + 1
      local x, y = dev:upload("f32", { 4, 9, -1 }), dev:buffer("f32", 3):fill(0)
      local op = dev:compile(block).roots:launch(3, 3, x, y)
      support.raises("KernelFailed", { "'roots' failed in line 4", "x[2] is -1" }, op.await, op)
    end
    assert.equal(1, kernels)
  end)

  -- The pipeline of the manual, with everything that it shows in passing.
  it("of a pipeline: kernels from prototypes, data from functions, tables and strings", function()
    local output, code = support.script [==[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local mod = dev:compile [[
        extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) y[i] = a * x[i] + y[i];
        }]]
      local saxpy = mod.saxpy
      local n = 1 << 20
      local x <close> = dev:buffer("f32", n):fill(1)
      local y <close> = dev:upload("f32", n, function(i) return i end)
      local op = saxpy:launch(n, n, 2.0, x, y)
      op:await()
      print(y:read(1, 4)[1], y:read(n, n)[1])
      local t <close> = dev:upload("f32", {1, 2, 3})
      local s <close> = dev:upload("f32", string.pack("<fff", 1, 2, 3))
      print(t:bytes() == s:bytes())
    ]==]
    assert.equal(0, code, output)
    assert.equal("3.0\t1048578.0\ntrue\n", output)
  end)

  it("is short where the idea is", function()
    for _, name in ipairs { "saxpy", "tasks" } do
      local count = 0
      for _ in io.lines(("examples/%s.lua"):format(name)) do
        count = count + 1
      end
      assert.truthy(count < 40, name .. ": " .. count)
    end
  end)

  it("saxpy", function()
    local output, code = run("examples/saxpy.lua")
    assert.equal(0, code, output)
    assert.equal(dev.name .. ": y[1048576] = 1048578\n", output)
  end)

  it("tasks", function()
    local output, code = run("examples/tasks.lua")
    assert.equal(0, code, output)
    assert.equal(dev.name .. ": 100 tasks, sum 5650\n", output)
  end)

  it("luv", function()
    if not support.has_luv() then
      pending "no luv"
    end
    local output, code = run("examples/luv.lua")
    assert.equal(0, code, output)
    assert.equal(dev.name .. ": 1 + 4 + 9 = 14, 400 + 441 + 484 = 1325\nthe file begins with: -- One loop\n"
      .. "the timer is over\n", output)
  end)

  describe("ecg", function()
    local function check(name, path, beats, bpm)
      local output, code = run("examples/ecg.lua " .. path)
      assert.equal(0, code, output)
      local found = tonumber(output:match "beats: (%d+)\n")
      local rate = tonumber(output:match "heart rate: ([%d.]+) bpm\n")
      assert.truthy(found and rate, output)
      assert.truthy(math.abs(found - beats) <= 0.03 * beats, ("%s: %d beats, not %d"):format(name, found, beats))
      assert.truthy(math.abs(rate - bpm) <= 0.03 * bpm, ("%s: %.1f bpm, not %.1f"):format(name, rate, bpm))
    end

    local rows = 0
    for line in io.lines("spec/reference/ecg_reference.tsv") do
      local name, beats, bpm = line:match "^(%S+)\t(%d+)\t([%d.]+)$"
      if name then
        rows = rows + 1
        it("finds the beats of " .. name, function()
          local path = folder .. "/part.npy"
          local whole <close> = npy.load(dev, "examples/data/ecg.npy")
          local first, last = name:match "^(%d+)%-(%d+)$"
          if first then
            local part <close> = dev:upload("u16", whole:bytes(tonumber(first), tonumber(last)))
            npy.save(part, path)
          elseif name == "reversed" then
            local values, reversed = whole:read(), {}
            for i = #values, 1, -1 do
              reversed[#reversed + 1] = values[i]
            end
            local turned <close> = dev:upload("u16", reversed)
            npy.save(turned, path)
          else
            path = "examples/data/ecg.npy"
          end
          check(name, path, tonumber(beats), tonumber(bpm))
        end)
      end
    end
    it("has a reference for the whole, five parts and the reverse", function()
      assert.equal(7, rows)
    end)

    it("draws the first 20 s with every beat marked", function()
      local path = folder .. "/ecg.png"
      local output, code = run("examples/ecg.lua examples/data/ecg.npy " .. path)
      assert.equal(0, code, output)
      local picture <close> = image.load(dev, path)
      assert.equal(3, picture.shape[3])
      local height, width = picture.shape[1], picture.shape[2]
      assert.truthy(width > 1000 and height > 400)
      -- A mark is a triangle in this red; its topmost row is a run of at least 8 of them with none above.
      local bytes = picture:bytes()
      local function is_mark(x, y)
        return bytes:sub((y * width + x) * 3 + 1, (y * width + x) * 3 + 3) == "\206\32\44"
      end
      local marks = 0
      local at = 1
      while true do
        at = bytes:find("\206\32\44", at, true)
        if not at then
          break
        end
        local pixel = (at - 1) // 3
        local x, y = pixel % width, pixel // width
        if (at - 1) % 3 == 0 and not is_mark(x - 1, y) and not is_mark(x, y - 1) and is_mark(x + 7, y) then
          marks = marks + 1
        end
        at = at + 1
      end
      -- The reference sees 40 beats in these 20 s.
      assert.truthy(math.abs(marks - 40) <= 1, marks .. " marks")
    end)

    it("says what is wrong with its input", function()
      local output, code = run("examples/ecg.lua")
      assert.equal(2, code)
      assert.truthy(output:find "^usage: ")
      output, code = run("examples/ecg.lua no-such-file.npy")
      assert.equal(1, code)
      assert.truthy(output:find("no-such-file.npy", 1, true), output)
      local b <close> = dev:buffer("f32", 1000):fill(0)
      npy.save(b, folder .. "/f32.npy")
      output, code = run("examples/ecg.lua " .. folder .. "/f32.npy")
      assert.equal(1, code)
      assert.truthy(output:find("u16", 1, true), output)
    end)

    it("finds no beat where there is none", function()
      local b <close> = dev:buffer("u16", 5000):fill(1024)
      npy.save(b, folder .. "/flat.npy")
      local output, code = run("examples/ecg.lua " .. folder .. "/flat.npy " .. folder .. "/flat.png")
      assert.equal(0, code, output)
      assert.truthy(output:find("beats: 0\n", 1, true), output)
    end)
  end)

  describe("edges", function()
    for _, name in ipairs { "ascent", "raccoon" } do
      it("finds the edges of " .. name, function()
        local path = ("%s/%s.png"):format(folder, name)
        local output, code = run(("examples/edges.lua examples/data/%s.png %s"):format(name, path))
        assert.equal(0, code, output)
        local found <close> = image.load(dev, path)
        local wanted <close> = image.load(dev, ("spec/reference/%s-edges.png"):format(name))
        assert.are.same(wanted.shape, found.shape)
        local a, b = found:read(), wanted:read()
        local different = 0
        for i = 1, #a do
          different = different + (a[i] == b[i] and 0 or 1)
        end
        assert.truthy(different <= 0.001 * #a, different .. " pixels differ")
      end)
    end

    it("takes pictures smaller than a tile", function()
      local b <close> = dev:buffer("u8", { 1, 1 }):fill(200)
      image.save(b, folder .. "/one.png")
      local output, code = run(("examples/edges.lua %s/one.png %s/out.png"):format(folder, folder))
      assert.equal(0, code, output)
      local found <close> = image.load(dev, folder .. "/out.png")
      assert.are.same({ 0 }, found:read())
    end)

    it("says what is wrong with its input", function()
      local output, code = run("examples/edges.lua examples/data/ecg.npy " .. folder .. "/x.png")
      assert.equal(1, code)
      assert.truthy(output:find("examples/data/ecg.npy", 1, true), output)
      assert.equal(2, select(2, run("examples/edges.lua")))
    end)
  end)

  describe("cg", function()
    -- Conjugate gradients in Lua's own floats: iterations, and how far the solution is from the known one.
    local function reference(side, tolerance)
      local n = side * side
      local function apply(x)
        local y = {}
        for i = 1, n do
          local column, row = (i - 1) % side, (i - 1) // side
          y[i] = 4 * x[i] - (column > 0 and x[i - 1] or 0) - (column < side - 1 and x[i + 1] or 0)
            - (row > 0 and x[i - side] or 0) - (row < side - 1 and x[i + side] or 0)
        end
        return y
      end
      local function product(a, b)
        local sum = 0
        for i = 1, n do
          sum = sum + a[i] * b[i]
        end
        return sum
      end
      local known, x, count = {}, {}, 0
      for i = 1, n do
        local u, v = ((i - 1) % side + 1) / (side + 1), ((i - 1) // side + 1) / (side + 1)
        known[i], x[i] = 16 * u * (1 - u) * v * (1 - v) * math.exp(u - v), 0
      end
      local r = apply(known)
      local p, rr = { table.unpack(r) }, product(r, r)
      local limit = tolerance * tolerance * rr
      while rr > limit do
        local q = apply(p)
        local alpha = rr / product(p, q)
        for i = 1, n do
          x[i], r[i] = x[i] + alpha * p[i], r[i] - alpha * q[i]
        end
        local before = rr
        rr, count = product(r, r), count + 1
        for i = 1, n do
          p[i] = r[i] + rr / before * p[i]
        end
      end
      local largest = 0
      for i = 1, n do
        largest = math.max(largest, math.abs(x[i] - known[i]))
      end
      return count, largest
    end

    it("converges on the device to the known solution, in as many iterations as in Lua", function()
      for _, side in ipairs { 1, 24 } do
        local output, code = run("examples/cg.lua " .. side)
        assert.equal(0, code, output)
        local count, residual, largest = output:match "graph +(%d+) iterations, residual (%S+), largest error ([^,%s]+)"
        assert.truthy(count, output)
        local wanted, wanted_largest = reference(side, 1e-10)
        assert.truthy(math.abs(wanted - count) <= 1, output)
        assert.truthy(tonumber(residual) < 1e-9 and tonumber(largest) < 2 * wanted_largest + 1e-12, output)
        assert.are.same({ count, residual }, { output:match "eager +(%d+) iterations, residual (%S+)," })
        assert.truthy(output:find("the same bits", 1, true), output)
      end
    end)

    it("says what is wrong with its argument", function()
      for _, bad in ipairs { "0", "1.5", "many" } do
        local output, code = run("examples/cg.lua " .. bad)
        assert.equal(1, code)
        assert.truthy(output:find("SIDE", 1, true), output)
      end
    end)
  end)

  describe("heat", function()
    -- The same plate in Lua's own floats: steps, and the mean temperature.
    local function reference(side)
      local t, kept = {}, {}
      for y = 0, side - 1 do
        for x = 0, side - 1 do
          local i, u, v = y * side + x, (x + 0.5) / side, (y + 0.5) / side
          local value
          if x == 0 or y == 0 or x == side - 1 or y == side - 1 then
            value = y == side - 1 and 0.5 + 0.5 * math.cos(6.2831853 * u) or 0
          elseif (u - 0.3) ^ 2 + (v - 0.35) ^ 2 < 0.01 then
            value = 1
          elseif u > 0.62 and u < 0.66 and v > 0.15 and v < 0.7 then
            value = 0.6
          elseif v > 0.6 and v < 0.64 and u > 0.15 and u < 0.5 then
            value = 0
          end
          t[i], kept[i] = value or 0, value ~= nil
        end
      end
      local steps, largest = 0
      repeat
        local new = {}
        largest = 0
        for i = 0, side * side - 1 do
          new[i] = kept[i] and t[i] or 0.25 * (t[i - 1] + t[i + 1] + t[i - side] + t[i + side])
          largest = math.max(largest, math.abs(new[i] - t[i]))
        end
        t, steps = new, steps + 1
      until steps % 64 == 0 and largest <= 2e-6
      local sum = 0
      for i = 0, side * side - 1 do
        sum = sum + t[i]
      end
      return steps, sum / (side * side)
    end

    it("goes on until nothing changes, and draws it", function()
      local path = folder .. "/heat.png"
      local output, code = run(("examples/heat.lua %s 32"):format(path))
      assert.equal(0, code, output)
      local steps, mean = output:match ": (%d+) steps, mean temperature (%S+)\n$"
      assert.truthy(steps, output)
      local wanted_steps, wanted_mean = reference(32)
      assert.truthy(math.abs(wanted_steps - steps) <= 64 and wanted_steps > 128, output .. wanted_steps)
      assert.truthy(math.abs(wanted_mean - mean) < 1e-3, output .. wanted_mean)
      local picture <close> = image.load(dev, path)
      assert.are.same({ 32, 32, 3 }, picture.shape)
      local pixels = picture:read()
      local function at(x, y) return table.concat(pixels, " ", 3 * (32 * y + x) + 1, 3 * (32 * y + x) + 3) end
      assert.truthy(at(9, 11):find "^255 255 2[45]%d$", at(9, 11)) -- in the disc
      assert.equal("20 0 45", at(8, 19)) -- in the slab
    end)

    it("says what is wrong with its arguments", function()
      for _, bad in ipairs { "", folder .. "/x.png 8", folder .. "/x.png many" } do
        local output, code = run("examples/heat.lua " .. bad)
        assert.equal(2, code)
        assert.truthy(output:find "^usage: ", output)
      end
      local output, code = run("examples/heat.lua " .. folder .. "/none/x.png 16")
      assert.equal(1, code)
      assert.truthy(output:find("none/x.png", 1, true), output)
    end)
  end)

  describe("decode", function()
    it("writes the same tokens eagerly and as a graph, and other ones when the position stays", function()
      local output, code = run "examples/decode.lua 40"
      assert.equal(0, code, output)
      assert.truthy(output:find "27 nodes, 26 edges; the same 40 tokens: %d+ %d+", output)
      local wrong <close> = assert(io.open(folder .. "/wrong.lua", "w"))
      local text = support.read_file "examples/decode.lua"
      local broken, count = text:gsub("    at:set%(i%)\n    f%(%)", "    at:set(name == \"graph\" and 0 or i)\n    f()")
      assert.equal(1, count)
      wrong:write(broken)
      wrong:flush()
      output, code = run(folder .. "/wrong.lua 40")
      assert.equal(1, code, output)
      assert.truthy(output:find("the graph wrote another token", 1, true), output)
    end)

    it("says what is wrong with its arguments", function()
      for _, bad in ipairs { "0", "1025", "1.5", "many" } do
        local output, code = run("examples/decode.lua " .. bad)
        assert.equal(1, code)
        assert.truthy(output:find("TOKENS", 1, true), output)
      end
    end)
  end)

  describe("mlp", function()
    -- The same network in Lua's own floats: its loss, and how many of the rows it gets right.
    local function reference(epochs)
      local species = { Adelie = 1, Chinstrap = 2, Gentoo = 3 }
      local learn, test, count = {}, {}, 0
      for line in io.lines "examples/data/penguins.csv" do
        local name, length, depth = line:match "^(%a+),%a+,([%d.]+),([%d.]+),"
        if name then
          count = count + 1
          table.insert(count % 5 == 0 and test or learn, { tonumber(length), tonumber(depth), species[name] })
        end
      end
      for column = 1, 2 do
        local sum, squares = 0, 0
        for _, row in ipairs(learn) do
          sum = sum + row[column]
        end
        for _, row in ipairs(learn) do
          squares = squares + (row[column] - sum / #learn) ^ 2
        end
        for _, rows in ipairs { learn, test } do
          for _, row in ipairs(rows) do
            row[column] = (row[column] - sum / #learn) / (squares / #learn) ^ 0.5
          end
        end
      end
      -- w: of each layer and output its bias, and weights behind it.
      math.randomseed(1)
      local sizes, w, v = { 2, 16, 3 }, {}, {}
      for layer = 1, 2 do
        w[layer], v[layer] = {}, {}
        for output = 1, sizes[layer + 1] do
          w[layer][output], v[layer][output] = { [0] = 0 }, {}
        end
        for input = 1, sizes[layer] do
          for output = 1, sizes[layer + 1] do
            w[layer][output][input] = (6 / sizes[layer]) ^ 0.5 * (2 * math.random() - 1)
          end
        end
      end
      local hidden, p = {}, {}
      local function forward(row)
        for j = 1, 16 do
          local u = w[1][j]
          hidden[j] = math.max(0, u[0] + u[1] * row[1] + u[2] * row[2])
        end
        local sum = 0
        for k = 1, 3 do
          local u, score = w[2][k], w[2][k][0]
          for j = 1, 16 do
            score = score + u[j] * hidden[j]
          end
          p[k] = math.exp(score)
          sum = sum + p[k]
        end
        for k = 1, 3 do
          p[k] = p[k] / sum
        end
      end
      local loss
      for _ = 1, epochs do
        local g = { {}, {} }
        for layer = 1, 2 do
          for output = 1, sizes[layer + 1] do
            g[layer][output] = {}
            for input = 0, sizes[layer] do
              g[layer][output][input] = 0
            end
          end
        end
        loss = 0
        for _, row in ipairs(learn) do
          forward(row)
          loss = loss - math.log(p[row[3]]) / #learn
          for k = 1, 3 do
            p[k] = (p[k] - (k == row[3] and 1 or 0)) / #learn
            local of = g[2][k]
            of[0] = of[0] + p[k]
            for j = 1, 16 do
              of[j] = of[j] + p[k] * hidden[j]
            end
          end
          for j = 1, 16 do
            if hidden[j] > 0 then
              local d, of = p[1] * w[2][1][j] + p[2] * w[2][2][j] + p[3] * w[2][3][j], g[1][j]
              of[0], of[1], of[2] = of[0] + d, of[1] + d * row[1], of[2] + d * row[2]
            end
          end
        end
        for layer = 1, 2 do
          for output = 1, sizes[layer + 1] do
            for input = 0, sizes[layer] do
              local changed = 0.9 * (v[layer][output][input] or 0) - 0.5 * g[layer][output][input]
              v[layer][output][input] = changed
              w[layer][output][input] = w[layer][output][input] + changed
            end
          end
        end
      end
      local right = { [learn] = 0, [test] = 0 }
      for rows in pairs(right) do
        for _, row in ipairs(rows) do
          forward(row)
          right[rows] = right[rows] + (p[row[3]] == math.max(table.unpack(p)) and 1 or 0)
        end
      end
      return loss, right[learn], right[test]
    end

    local table_path <const> = "examples/data/penguins.csv"

    it("learns what the same network learns in Lua, eagerly and as a graph, and draws it", function()
      local path = folder .. "/mlp.png"
      local output, code = run(("examples/mlp.lua %s %s"):format(table_path, path))
      assert.equal(0, code, output)
      assert.truthy(output:find(dev.name .. ": 274 penguins to learn from, 68 held out\n", 1, true), output)
      local loss, learnt, right = reference(200)
      for _, name in ipairs { "eager", "graph" } do
        local found = output:match(name .. ": 200 epochs, loss ([%d.]+)[^\n]*\n")
        assert.truthy(found and math.abs(found - loss) < 1e-3 * loss + 1e-4, output .. loss)
      end
      local found_learnt = output:match "learnt from: [%d.]+ %% %((%d+) of 274%)\n"
      local percent, found = output:match "test accuracy: ([%d.]+) %% %((%d+) of 68%); the same bits"
      assert.truthy(found_learnt and math.abs(found_learnt - learnt) <= 1, output .. learnt)
      assert.truthy(found and math.abs(found - right) <= 1 and found / 68 > 0.92, output .. right)
      assert.equal(("%.1f"):format(100 * found / 68), percent)

      local picture <close> = image.load(dev, path)
      assert.are.same({ 440, 640, 3 }, picture.shape)
      local pixels = picture:read()
      for _, wanted in ipairs { { 5, 5, 251, 211, 176 }, { 635, 5, 218, 190, 232 }, { 400, 435, 173, 210, 210 } } do
        for c = 1, 3 do
          local value = pixels[3 * (640 * wanted[2] + wanted[1]) + c]
          assert.truthy(math.abs(value - wanted[2 + c]) <= 4, ("%d at %d, %d"):format(value, wanted[1], wanted[2]))
        end
      end
    end)

    it("notices when the graph learns something else", function()
      local wrong <close> = assert(io.open(folder .. "/wrong-mlp.lua", "w"))
      local short, once = support.read_file "examples/mlp.lua":gsub("<const> = 200,", "<const> = 20,")
      local broken, again = short:gsub("function%(step%) return dev:graphed",
        "function(step) step() return dev:graphed")
      assert.are.same({ 1, 1 }, { once, again })
      wrong:write(broken)
      wrong:flush()
      local output, code = run(("%s/wrong-mlp.lua %s"):format(folder, table_path))
      assert.equal(1, code, output)
      assert.truthy(output:find("the graph has learnt something else", 1, true), output)
    end)

    it("says what is wrong with its table", function()
      local output, code = run "examples/mlp.lua"
      assert.equal(2, code)
      assert.truthy(output:find "^usage: ", output)
      local other <close> = assert(io.open(folder .. "/other.csv", "w"))
      other:write "Rockhopper,Torgersen,39.1,18.7,181\n"
      other:flush()
      for path, said in pairs { ["none.csv"] = "none.csv", ["README.md"] = "README.md has no five penguins",
        [folder .. "/other.csv"] = "Rockhopper" } do
        output, code = run("examples/mlp.lua " .. path)
        assert.equal(1, code)
        assert.truthy(output:find(said, 1, true), output)
      end
    end)
  end)

  describe("nbody", function()
    -- What it says of the energy: at first, in the end, and how much of it goes astray.
    local function energies(output, code)
      assert.equal(0, code, output)
      local first, last, astray = output:match "energy: (%S+) at first, (%S+) in the end; at most (%S+) of it"
      assert.truthy(first, output)
      return tonumber(first), tonumber(last), tonumber(astray)
    end

    it("keeps its energy, and draws four moments", function()
      local path = folder .. "/nbody.png"
      local first, last, astray = energies(run(("examples/nbody.lua %s 100"):format(path)))
      assert.truthy(astray < 2e-3 and math.abs(last / first - 1) < 2e-4, first .. " " .. last .. " " .. astray)
      local picture <close> = image.load(dev, path)
      assert.are.same({ 300, 1200, 3 }, picture.shape)
      local pixels = picture:read()
      -- How red and how blue a part of the first moment is: the blue galaxy is left of the orange one.
      local function light(from, to)
        local red, blue = 0, 0
        for y = 0, 299 do
          for x = from, to do
            red, blue = red + pixels[3 * (1200 * y + x) + 1], blue + pixels[3 * (1200 * y + x) + 3]
          end
        end
        return red, blue
      end
      local red, blue = light(0, 149)
      assert.truthy(blue > 1.2 * red and red > 10000, red .. " " .. blue)
      red, blue = light(150, 299)
      assert.truthy(red > 1.2 * blue and blue > 10000, red .. " " .. blue)
      for x = 300, 900, 300 do
        assert.truthy(select(2, light(x, x + 299)) > 10000, "nothing is at " .. x)
      end
    end)

    -- Two bodies: the energy follows from where they begin. The error of a leapfrog falls with the square of the step.
    it("loses a quarter as much of its energy in steps half as long", function()
      local _, _, astray = energies(run(("examples/nbody.lua %s/two.png 2"):format(folder)))
      local text, count = support.read_file "examples/nbody.lua":gsub("STEP <const> = 0.01 ", "STEP <const> = 0.005 ")
      local halved, again = text:gsub("STEPS <const> = 17, 40", "STEPS <const> = 17, 80")
      assert.are.same({ 1, 1 }, { count, again })
      local file <close> = assert(io.open(folder .. "/halved.lua", "w"))
      file:write(halved)
      file:flush()
      local first, _, less = energies(run(("%s/halved.lua %s/two.png 2"):format(folder, folder)))
      assert.equal(("%.6f"):format(0.36 ^ 2 + 0.1 ^ 2 - 1 / (4.4 ^ 2 + 1 + 0.2 ^ 2) ^ 0.5), ("%.6f"):format(first))
      assert.truthy(astray / less > 3 and astray / less < 5.5, astray .. " " .. less)
    end)

    it("says what is wrong with its arguments", function()
      for _, bad in ipairs { "", folder .. "/x.png 1", folder .. "/x.png 65537", folder .. "/x.png many" } do
        local output, code = run("examples/nbody.lua " .. bad)
        assert.equal(2, code)
        assert.truthy(output:find "^usage: ", output)
      end
    end)
  end)

  it("checked", function()
    local output, code = run("examples/checked.lua")
    assert.equal(0, code, output)
    assert.equal("good:\t2.0 4.0 6.0\nbad:\tDependencyFailed\nroot:\troots\tkernel 'roots' failed in line 5 of "
      .. "examples/checked.lua:8, block (3,0,0), thread (9,0,0): x[777] is -4\ngood:\t2.0 4.0 6.0\n", output)
  end)

  it("survive", function()
    local output, code = run("examples/survive.lua")
    assert.equal(0, code, output)
    output = "\n" .. output -- which of them resumes first is not promised
    for _, line in ipairs { "\nastray:   false, DeviceLost, suspect astray", "\nother:    ", "\nlost:     device ",
      "\nrestored: epoch 2", "\nweights:  1.0 2.0 3.0 4.0 5.0 ...", "\nsquares:  1.0 4.0 9.0 16.0 25.0 ...",
      "\nscratch:  Stale", "\nweights:  2.0 4.0 6.0 8.0 10.0 ... doubled" } do
      assert.truthy(output:find(line, 1, true), line .. " is not in " .. output)
    end
  end)

  describe("mistakes", function()
    it("are noticed by nobody", function()
      local output, code = run "--device cpu examples/mistakes.lua"
      assert.equal(0, code, output)
      assert.equal(4, select(2, output:gsub("nobody noticed", "")), output)
    end)

    it("are all found in check mode", function()
      local output, code = run "--device cpu --check examples/mistakes.lua"
      assert.equal(0, code, output)
      for code_wanted, text in pairs { UndeclaredAccess = "wrote buffer 'x', declared in", OutOfBounds = "read 4 bytes",
        RaceFound = "no barrier is between" } do
        assert.truthy(output:find("  " .. code_wanted .. ": [^\n]*" .. text), output)
      end
      assert.truthy(output:find "RaceFound: 'fill' [^\n]* of another task writes", output)
    end)
  end)

  describe("spectrogram", function()
    it("finds what goes round in a recording, and paints it", function()
      local path = folder .. "/spectrogram.png"
      local output, code = run("examples/spectrogram.lua examples/data/ecg.npy " .. path)
      assert.equal(0, code, output)
      assert.truthy(output:find("108000 samples, 300.0 s, 1000 windows of 2.84 s", 1, true), output)
      assert.truthy(output:find("strongest: 3.52 Hz", 1, true), output) -- as the other programs find: results.md
      local picture <close> = image.load(dev, path)
      assert.are.same({ 256, 1000, 3 }, picture.shape)
    end)

    it("finds a tone in a sound, where it is", function()
      local wav = require "gpulua.wav"
      local path, out = folder .. "/tone.wav", folder .. "/tone.png"
      local n <const>, rate <const>, hertz <const> = 16000, 16000, 2000
      local tone <close> = dev:upload("f32", 2 * n, function(i)
        local frame = (i - 1) // 2
        return frame < n // 2 and 0.5 * math.sin(2 * math.pi * hertz * frame / rate) or 0
      end)
      wav.save(tone:view("f32", { n, 2 }), path, { rate = rate, bits = 16 })
      local output, code = run(("examples/spectrogram.lua %s %s"):format(path, out))
      assert.equal(0, code, output)
      assert.truthy(output:find("strongest: 2000.00 Hz", 1, true), output)
      local picture <close> = image.load(dev, out)
      local height, width = picture.shape[1], picture.shape[2]
      local function bright(x, y) -- from the bottom
        local at = ((height - 1 - y) * width + x) * 3 + 1
        local pixel = picture:read(at, at + 2)
        return pixel[1] + pixel[2] + pixel[3]
      end
      assert.equal(513, height)
      assert.truthy(bright(10, 128) > 600) -- 2,000 Hz of 8,000 at row 512
      assert.truthy(bright(10, 300) < 100)
      assert.truthy(bright(width - 1, 128) < 100) -- it is over by then
    end)

    it("says what is wrong with its file", function()
      local output, code = run "examples/spectrogram.lua"
      assert.equal(2, code)
      assert.truthy(output:find("usage:", 1, true), output)
      npy.save(dev:buffer("f32", 100):fill(0), folder .. "/short.npy")
      output, code = run("examples/spectrogram.lua " .. folder .. "/short.npy")
      assert.equal(1, code)
      assert.truthy(output:find("short.npy: 100 samples, 1024 are needed", 1, true), output)
    end)
  end)

  describe("denoise", function()
    it("takes noise out of both pictures", function()
      for _, name in ipairs { "ascent", "raccoon" } do
        local out = folder .. "/" .. name .. "-clean.png"
        local output, code = run(("examples/denoise.lua examples/data/%s.png %s"):format(name, out))
        assert.equal(0, code, output)
        local noisy, filtered = output:match ": ([%d.]+) dB, filtered: ([%d.]+) dB"
        assert.equal("20.2", noisy, output) -- 20 log10(255 / 25)
        assert.truthy(tonumber(filtered) > 22.8, output)
        local both <close> = image.load(dev, out)
        local whole <close> = image.load(dev, ("examples/data/%s.png"):format(name))
        assert.are.same({ whole.shape[1], 2 * whole.shape[2], 1 }, both.shape)
      end
    end)

    it("says what is wrong with its file", function()
      local output, code = run "examples/denoise.lua"
      assert.equal(2, code)
      assert.truthy(output:find("usage:", 1, true), output)
      output, code = run "examples/denoise.lua examples/data/ecg.npy"
      assert.equal(1, code)
      assert.truthy(output:find("examples/data/ecg.npy", 1, true), output)
    end)
  end)

  describe("option", function()
    it("prices a call within its standard error of the closed form", function()
      -- The mean of what it pays, by the trapezoidal rule: neither by chance nor in closed form.
      local share, strike, rate, volatility, years = 100, 105, 0.02, 0.25, 1.5
      local sum, step = 0, 1e-4
      for i = -80000, 80000 do
        local z = i * step
        local final = share * math.exp((rate - volatility ^ 2 / 2) * years + volatility * math.sqrt(years) * z)
        sum = sum + math.max(final - strike, 0) * math.exp(-z * z / 2)
      end
      local exact = math.exp(-rate * years) * sum * step / math.sqrt(2 * math.pi)
      for _, paths in ipairs { 10000, 1 << 20 } do
        local output, code = run("examples/option.lua " .. paths)
        assert.equal(0, code, output)
        local price, off = output:match "paths: ([%d.]+), standard error ([%d.]+)"
        local closed = output:match "closed form: ([%d.]+)"
        assert.truthy(math.abs(closed - exact) < 1e-4, output)
        assert.truthy(math.abs(price - exact) < 4 * off, output)
        assert.truthy(math.abs(off * math.sqrt(paths) - 20.9) < 1, output) -- what one path is off by
      end
    end)

    it("says how it is called", function()
      local output, code = run "examples/option.lua many"
      assert.equal(2, code)
      assert.truthy(output:find("usage:", 1, true), output)
    end)
  end)
end)
