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
    local count = 0
    for block in text:gmatch "```lua\n(.-)```" do
      count = count + 1
      local output, code = support.script(block)
      assert.equal(0, code, output)
      assert.equal(block:match "print.*%-%- ([%d.]+)" .. "\n", output)
    end
    assert.equal(6, count)
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
        local count, residual, largest = output:match "graph +(%d+) iterations, residual (%S+), largest error (%S+),"
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
end)
