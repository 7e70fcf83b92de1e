-- Random numbers: dev:rng, philox. The generators of cuRAND are in rng_library_spec.lua.

local core = require "gpulua.core"
local gpu = require "gpulua"
local support = require "spec.support"
local reference = require "spec.random"

describe("rng", function()
  local dev

  setup(function() dev = support.open() end)
  teardown(support.close_all)

  local types = { bits = { "u32", "i32", "u64", "i64" }, uniform = { "f32", "f64" }, normal = { "f32", "f64" },
    log_normal = { "f32", "f64" }, poisson = { "u32", "i32", "u64", "i64" } }

  -- A draw of n numbers as a list. `...`: as the method takes it.
  local function draw(rng, what, kind, n, ...)
    local x <close> = dev:buffer(kind, n)
    rng[what](rng, x, ...)
    return x:read()
  end

  local function rng_of(seed, offset)
    return dev:rng { generator = "philox", seed = seed, offset = offset }
  end

  describe("philox", function()
    it("gives the published numbers of Philox4x32-10", function()
      -- kat_vectors of Random123: counter, key, words.
      local words = { reference.philox(0, 0, 0, 0, 0, 0) }
      assert.are.same({ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }, words)
      local ones <const> = 0xffffffff
      assert.are.same({ 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { reference.philox(ones, ones, ones, ones, ones, ones) })
      assert.are.same({ 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 },
        { reference.philox(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0) })
      assert.are.same(words, draw(rng_of(0, 0), "bits", "u32", 4))
    end)

    it("is the sequence that is described, at any seed and place", function()
      for _, seed in ipairs { 0, 42, -1, math.mininteger, 0x123456789abcdef } do
        for _, offset in ipairs { 0, 1, 3, 262143, 1 << 34 | 3, 0x7ffffffffffffffd, -3, -1 } do
          local rng <close> = rng_of(seed, offset)
          local got = draw(rng, "bits", "u32", 9)
          for i = 1, 9 do
            assert.equal(reference.word(seed, offset + i - 1), got[i])
          end
          assert.equal(offset + 9, rng:state().offset) -- which wraps around
        end
      end
    end)

    it("is that of cuRAND, where it is installed", function()
      local ok, library = pcall(core.library, dev, "rng")
      if not ok then
        assert.equal("LibraryUnavailable", library.code)
        pending(library.message)
        return
      end
      local n <const> = 600001
      local wanted, order = dev:buffer("u32", n), dev:buffer("u8", 1):fill(0)
      for _, seed in ipairs { 42, 0x123456789abcdef } do
        library:kernel "words":launch(support.one, wanted, order, n, seed, 0, 161, 103, 0)
        local rng <close> = rng_of(seed)
        local got = dev:buffer("u32", n)
        rng:bits(got)
        assert.equal(wanted:bytes(), got:bytes())
      end
    end)

    it("makes wider numbers of two words, from an even place on", function()
      for _, offset in ipairs { 0, 1, 2, 3, 5, -1 } do
        local rng <close> = rng_of(7, offset)
        local first = offset + 1 & ~1
        local got = draw(rng, "bits", "u64", 5)
        for i = 0, 4 do
          local low, high = reference.word(7, first + 2 * i), reference.word(7, first + 2 * i + 1)
          assert.equal(high << 32 | low, got[i + 1])
        end
        assert.equal(first + 10, rng:state().offset)
      end
    end)

    it("makes uniform numbers of the bits", function()
      local rng <close> = rng_of(11, 5)
      local got = draw(rng, "uniform", "f32", 1001)
      for i, value in ipairs(got) do
        assert.equal(reference.uniform32(reference.word(11, 4 + i)), value)
      end
      got = draw(rng, "uniform", "f64", 1001) -- from 1006 on
      for i, value in ipairs(got) do
        assert.equal(reference.uniform64(reference.wide(11, 1006 + 2 * (i - 1))), value)
      end
    end)

    it("makes normal and log-normal numbers of uniform ones, within bounds", function()
      for _, how in ipairs { { "f32", 4e-6, 1 }, { "f64", 1e-14, 2 } } do
        local kind, bound, width = table.unpack(how)
        local n <const> = 20001
        local rng <close> = rng_of(3, 4)
        local got = draw(rng, "normal", kind, n)
        local shaped = draw(rng_of(3, 4), "normal", kind, n, -1.5, 0.25)
        local grown = draw(rng_of(3, 4), "log_normal", kind, n, -1.5, 0.25)
        for i = 1, n do
          local wanted = reference.normal(3, 4 + (i - 1) * width, kind)
          assert.is_true(math.abs(got[i] - wanted) <= bound, i)
          assert.is_true(math.abs(shaped[i] - (-1.5 + 0.25 * wanted)) <= bound, i)
          assert.is_true(math.abs(grown[i] / math.exp(-1.5 + 0.25 * wanted) - 1) <= bound, i)
        end
      end
    end)

    it("makes of each word the least number of Poisson's whose probability reaches it", function()
      for _, mean in ipairs { 0, 1e-9, 0.25, 1, 9.5, 100, 650 } do
        local rng <close> = rng_of(5)
        local narrow = draw(rng, "poisson", "u32", 2000, mean)
        local wide = draw(rng, "poisson", "i64", 2000, mean)
        for i = 1, 2000 do
          assert.equal(reference.poisson(mean, (reference.word(5, i - 1) + 0.5) * 2 ^ -32), narrow[i])
          local u = ((reference.wide(5, 2000 + 2 * (i - 1)) >> 12) + 0.5) * 2 ^ -52
          assert.equal(reference.poisson(mean, u), wide[i])
        end
      end
      for _, value in ipairs(draw(rng_of(1), "poisson", "i32", 1000, 1048576)) do
        assert.is_true(math.abs(value - 1048576) < 6 * 1024)
      end
    end)
  end)

  describe("numbers", function()
    local n <const> = 100000

    it("are evenly spread: bits, uniform", function()
      for _, kind in ipairs { "f32", "f64" } do
        local got = draw(rng_of(42), "uniform", kind, n)
        local m = reference.moments(got)
        assert.is_true(math.abs(m.mean - 0.5) < 5 * math.sqrt(1 / 12 / n))
        assert.is_true(math.abs(m.variance - 1 / 12) < 5 * math.sqrt(1 / 180 / n))
        assert.is_true(math.abs(m.skew) < 0.02)
        assert.is_true(reference.distance(got, function(x) return x end) < 1.95 / math.sqrt(n)) -- Kolmogorov: 0.1 %
        local sum = 0.0
        for i = 2, n do
          sum = sum + (got[i] - 0.5) * (got[i - 1] - 0.5)
        end
        assert.is_true(math.abs(sum / n) < 5 / 12 / math.sqrt(n)) -- neighbours know nothing of each other
      end
      for _, kind in ipairs(types.bits) do
        local ones, width = {}, kind:find "64" and 64 or 32
        for _, value in ipairs(draw(rng_of(9), "bits", kind, 10000)) do
          for bit = 0, width - 1 do
            ones[bit] = (ones[bit] or 0) + (value >> bit & 1)
          end
        end
        for bit = 0, width - 1 do
          assert.is_true(math.abs(ones[bit] - 5000) < 5 * 50, bit)
        end
      end
    end)

    it("are normal, and their logarithms", function()
      for _, kind in ipairs { "f32", "f64" } do
        local got = draw(rng_of(42), "normal", kind, n, 3, 2)
        local logs = draw(rng_of(43), "log_normal", kind, n, 3, 2)
        for i = 1, n do
          logs[i] = math.log(logs[i])
        end
        for _, list in ipairs { got, logs } do
          local m = reference.moments(list)
          assert.is_true(math.abs(m.mean - 3) < 5 * 2 / math.sqrt(n))
          assert.is_true(math.abs(m.variance - 4) < 5 * 4 * math.sqrt(2 / n))
          assert.is_true(math.abs(m.skew) < 5 * math.sqrt(6 / n))
          assert.is_true(math.abs(m.kurtosis - 3) < 5 * math.sqrt(24 / n))
          assert.is_true(reference.distance(list, function(x) return reference.normal_below((x - 3) / 2) end)
            < 1.95 / math.sqrt(n))
        end
      end
    end)

    it("are Poisson's, for small and large means", function()
      for _, mean in ipairs { 0.3, 4, 30, 5000, 1e6 } do
        for _, kind in ipairs { "u32", "u64" } do
          local got = draw(rng_of(42), "poisson", kind, n, mean)
          local m = reference.moments(got)
          assert.is_true(math.abs(m.mean - mean) < 5 * math.sqrt(mean / n), mean)
          assert.is_true(math.abs(m.variance - mean) < 5 * mean * math.sqrt((2 + 1 / mean) / n), mean)
          local statistic, freedom = reference.chi_square(got, mean)
          assert.is_true(statistic < freedom + 4 * math.sqrt(2 * freedom), mean)
        end
      end
    end)

    it("are others for another seed", function()
      local a, b = draw(rng_of(1), "bits", "u32", 1000), draw(rng_of(2), "bits", "u32", 1000)
      local c = draw(rng_of(1 << 32 | 1), "bits", "u32", 1000)
      local same = 0
      for i = 1, 1000 do
        same = same + (a[i] == b[i] and 1 or 0) + (a[i] == c[i] and 1 or 0)
      end
      assert.equal(0, same)
    end)
  end)

  describe("draws", function()
    it("in pieces give what one large draw gives", function()
      local random = support.random(1)
      for what, kinds in pairs(types) do
        for _, kind in ipairs(kinds) do
          local wanted = draw(rng_of(1, 2), what, kind, 5000, what == "poisson" and 12 or nil)
          local rng <close> = rng_of(1, 2)
          local x = dev:buffer(kind, 5000)
          local at = 1
          while at <= 5000 do
            local last = math.min(5000, at + random(0, 700))
            local piece <close> = x:slice(at, last) -- unaligned, most of them
            rng[what](rng, piece, what == "poisson" and 12 or nil)
            at = last + 1
          end
          assert.are.same(wanted, x:read(), what)
        end
      end
    end)

    it("of odd sizes, into slices and views, change nothing beside them", function()
      for _, size in ipairs { 1, 2, 3, 4, 5, 31, 1023, 1025, 270001 } do
        local x <close> = dev:buffer("u32", size + 8):fill(7)
        local part <close> = x:slice(4, size + 3)
        local rng <close> = rng_of(2, size)
        rng:bits(part)
        assert.are.same({ 7, 7, 7 }, x:read(1, 3))
        assert.are.same({ 7, 7, 7, 7, 7 }, x:read(size + 4, size + 8))
        assert.equal(reference.word(2, size), part:read(1, 1)[1])
        assert.equal(reference.word(2, size + size - 1), part:read(size, size)[1])
      end
      local flat, shaped = draw(rng_of(2), "uniform", "f32", 15), dev:buffer("f32", { 3, 5 })
      rng_of(2):uniform(shaped)
      assert.are.same(flat, shaped:view("f32", 15):read())
      rng_of(2):bits(shaped:view("u32", { 5, 3 }))
      assert.equal(reference.word(2, 14), shaped:view("u32", 15):read(15, 15)[1])
    end)

    it("are ops, with a label and on a stream", function()
      local rng <close> = rng_of(1)
      local x, side <close> = dev:buffer("f32", 8), dev:stream {}
      local op = rng:uniform(x)
      assert.are.same({ "op", "rng uniform" }, { gpu.type(op), op.label })
      op:await()
      op = rng:normal(x, 0, 1, { stream = side, label = "noise" })
      assert.are.same({ side.id, "noise" }, { op.stream, op.label })
      op:await()
    end)

    it("of one generator follow each other, on any streams", function()
      local wanted = draw(rng_of(6), "bits", "u32", 40000)
      local rng <close> = rng_of(6)
      local x, streams = dev:buffer("u32", 40000), { dev:stream {}, dev:stream {}, dev:stream {} }
      for i = 0, 39 do
        rng:bits(x:slice(1000 * i + 1, 1000 * i + 1000), { stream = streams[i % 3 + 1] })
      end
      assert.are.same(wanted, x:read())
    end)

    it("in tasks that wait for each other, too", function()
      local wanted = draw(rng_of(6), "bits", "u32", 4000)
      local rng <close> = rng_of(6)
      local x, before = dev:buffer("u32", 4000), nil
      gpu.run(function()
        for i = 0, 3 do
          local last = before
          before = gpu.spawn(function()
            if last then
              last:await()
            end
            rng:bits(x:slice(1000 * i + 1, 1000 * i + 1000)):await()
          end)
        end
        before:await()
      end)
      assert.are.same(wanted, x:read())
    end)
  end)

  it("finds tasks that draw from one generator in an order of time's, in check mode", function()
    if dev.kind ~= "cpu" then
      pending "CUDA"
      return
    end
    local checked <close> = gpu.device("cpu", { check = true, seed = 1 })
    local rng <close> = checked:rng()
    local x, y = checked:buffer("f32", 8), checked:buffer("f32", 8)
    support.raises("RaceFound", "rng state", gpu.run, function()
      local first = gpu.spawn(function() rng:uniform(x) end)
      local second = gpu.spawn(function() rng:uniform(y) end)
      gpu.all { first, second }
    end)
    rng:close()
  end)

  describe("in graphs", function()
    it("each launch draws the numbers that come next", function()
      local wanted, rng <close> = rng_of(8), rng_of(8)
      local x, y = dev:buffer("f32", 1001), dev:buffer("i64", 333)
      local graph <close> = dev:capture(function()
        rng:uniform(x)
        rng:poisson(y, 4)
      end)
      assert.equal(0, rng:state().offset) -- nothing is drawn yet
      local seen = {}
      for i = 1, 5 do
        graph:launch()
        assert.are.same(draw(wanted, "uniform", "f32", 1001), x:read())
        assert.are.same(draw(wanted, "poisson", "i64", 333, 4), y:read())
        assert.is_nil(seen[x:bytes()])
        seen[x:bytes()] = true
        if i == 3 then -- and so does what is drawn in between
          assert.are.same(draw(wanted, "normal", "f64", 5), draw(rng, "normal", "f64", 5))
        end
      end
      assert.are.same(wanted:state(), rng:state())
    end)

    it("two graphs of one generator, on two streams, draw different numbers", function()
      local rng <close> = rng_of(8)
      local x, y, side <close> = dev:buffer("u32", 100), dev:buffer("u32", 100), dev:stream {}
      local first <close> = dev:capture(function() rng:bits(x) end)
      local second <close> = dev:capture(function() rng:bits(y) end)
      for launch = 0, 3 do
        first:launch()
        side:use(function() second:launch() end)
        assert.equal(reference.word(8, 200 * launch), x:read(1, 1)[1])
        assert.equal(reference.word(8, 200 * launch + 100), y:read(1, 1)[1])
      end
    end)

    it("go on where a state says, with its seed", function()
      local rng <close> = rng_of(8)
      local x = dev:buffer("u32", 10)
      local graph <close> = dev:capture(function() rng:bits(x) end)
      graph:launch()
      rng:restore { seed = 9, offset = 77 }
      graph:launch()
      assert.equal(reference.word(9, 77), x:read(1, 1)[1])
      assert.are.same({ generator = "philox", ordering = "legacy", seed = 9, offset = 87 }, rng:state())
    end)

    it("outlive the rng's handle", function()
      local x = dev:buffer("u32", 10)
      local graph
      do
        local rng <close> = rng_of(8)
        graph = dev:capture(function() rng:bits(x) end)
      end
      collectgarbage()
      graph:launch()
      graph:launch()
      assert.equal(reference.word(8, 10), x:read(1, 1)[1])
      graph:close()
    end)

    it("of functions draw what the functions would", function()
      local wanted, rng <close> = rng_of(8), rng_of(8)
      local x = dev:buffer("f32", 100)
      local fast <close> = dev:graphed(function() rng:normal(x) end)
      for _ = 1, 6 do
        fast()
        assert.are.same(draw(wanted, "normal", "f32", 100), x:read())
      end
    end)

    it("of loops draw new numbers in each pass", function()
      local count = dev:compile [[
        extern "C" __global__ void count(int *left, int *go, unsigned n, const unsigned *x, unsigned *all) {
          for (unsigned i = 0; i < n; i++) all[(3 - *left) * n + i] = x[i];
          *left -= 1;
          *go = *left > 0;
        }]]:kernel("count", "inout i32*, out i32*, u32, in u32*, inout u32*")
      local rng <close> = rng_of(8)
      local x, all = dev:buffer("u32", 5), dev:buffer("u32", 15):fill(0)
      local left, go = dev:scalar("i32", 3), dev:scalar("i32", 1)
      local ok, graph = pcall(dev.capture, dev, function()
        gpu.graph.while_(go, function()
          rng:bits(x)
          count:launch(support.one, left, go, 5, x, all)
        end)
      end)
      if not ok then
        support.is_error(graph, "Unsupported") -- an old driver
        pending(graph.message)
        return
      end
      graph:launch()
      for i, word in ipairs(all:read()) do
        assert.equal(reference.word(8, i - 1), word)
      end
      assert.equal(15, rng:state().offset)
      graph:close()
    end)

    it("neither rngs nor their states can be made", function()
      local rng <close> = rng_of(8)
      local state = rng:state()
      local x = dev:buffer("f32", 4)
      for what, f in pairs {
        ["an rng cannot be made in a capture"] = function() rng_of(1) end,
        ["an rng's state cannot be captured"] = function() rng:state() end,
        ["restoring an rng cannot be captured"] = function() rng:restore(state) end,
      } do
        support.raises("CaptureActive", what, function()
          dev:capture(function()
            rng:uniform(x)
            f()
          end)
        end)
      end
      assert.are.same(state, rng:state())
    end)
  end)

  describe("state", function()
    it("is a table of numbers and strings, from which draws go on", function()
      local rng <close> = dev:rng { seed = 5 }
      draw(rng, "normal", "f32", 101)
      local state = rng:state()
      assert.are.same({ generator = "philox", ordering = "legacy", seed = 5, offset = 101 }, state)
      local wanted = draw(rng, "uniform", "f64", 50)
      local again <close> = dev:rng { state = state }
      assert.are.same(wanted, draw(again, "uniform", "f64", 50))
      assert.equal(rng, rng:restore(state))
      assert.are.same(wanted, draw(rng, "uniform", "f64", 50))
      assert.are.same(wanted, draw(dev:rng(state), "uniform", "f64", 50))
      assert.equal(101, state.offset) -- nobody has written into it
    end)

    it("is that behind the draws before, not those after", function()
      local rng <close> = rng_of(5)
      local x = dev:buffer("f32", 100000)
      rng:uniform(x)
      rng:restore { seed = 5, offset = 3 }
      rng:uniform(x)
      assert.equal(100003, rng:state().offset)
      assert.equal(reference.uniform32(reference.word(5, 3)), x:read(1, 1)[1])
    end)

    it("by default is seed 0, from the beginning", function()
      assert.are.same({ generator = "philox", ordering = "legacy", seed = 0, offset = 0 }, dev:rng():state())
      assert.are.same({ generator = "philox", ordering = "legacy", seed = 0, offset = 0 }, dev:rng {}:state())
    end)

    it("in a task yields", function()
      local rng <close> = rng_of(5)
      local turns = 0
      gpu.run(function()
        gpu.spawn(function() turns = turns + 1 end)
        rng:uniform(dev:buffer("f32", 100000))
        assert.equal(100000, rng:state().offset)
      end)
      assert.equal(1, turns)
    end)
  end)

  it("closes, and says so", function()
    local rng = rng_of(1)
    local x = dev:buffer("f32", 4)
    assert.equal("gpulua.rng", getmetatable(rng).__name)
    assert.equal("gpulua.rng philox on " .. dev.name, tostring(rng))
    rng:close()
    rng:close()
    assert.equal("gpulua.rng philox on " .. dev.name .. " (closed)", tostring(rng))
    for _, name in ipairs { "bits", "uniform", "normal", "log_normal", "poisson", "state", "restore" } do
      support.raises("Closed", "attempt to use a closed rng", rng[name], rng, x)
    end
  end)

  it("leaves nothing behind", function()
    rng_of(1):close() -- its kernels are kept
    support.without_leak(dev, function()
      for seed = 1, 50 do
        local rng = rng_of(seed)
        draw(rng, "uniform", "f32", 1000)
      end
    end)
  end)

  describe("bad input", function()
    local function refused(code, parts, f, ...) support.raises(code, parts, f, ...) end

    it("of draws is refused, naming it", function()
      local rng <close> = rng_of(1)
      local f32, u32 = dev:buffer("f32", 4), dev:buffer("u32", 4)
      refused("Unsupported", { "uniform: the buffer is u32; it takes f32, f64" }, rng.uniform, rng, u32)
      refused("Unsupported", { "bits: the buffer is f32; it takes u32, i32, u64, i64" }, rng.bits, rng, f32)
      refused("Unsupported", { "poisson: the buffer is f32" }, rng.poisson, rng, f32, 1)
      for _, kind in ipairs { "i8", "u16", "f16", "bf16", "c64", "c128" } do
        refused("Unsupported", { "normal: the buffer is " .. kind }, rng.normal, rng, dev:buffer(kind, 4))
      end
      refused("InvalidArgument", { "uniform: a buffer expected, got nil" }, rng.uniform, rng)
      refused("InvalidArgument", { "uniform: a buffer expected, got number" }, rng.uniform, rng, 4)
      refused("InvalidArgument", { "uniform: a table expected, got number" }, rng.uniform, rng, f32, 4)
      refused("InvalidArgument", { "uniform: it has no option 'size'" }, rng.uniform, rng, f32, { size = 4 })
      refused("InvalidArgument", { "normal: mean: a finite number expected, got string" }, rng.normal, rng, f32, "x")
      refused("InvalidArgument", { "normal: mean: a finite number expected, got inf" }, rng.normal, rng, f32, 1 / 0)
      refused("InvalidArgument", { "normal: mean: a finite number expected, got -inf" }, rng.normal, rng, f32, -1 / 0)
      refused("InvalidArgument", { "log_normal: deviation: a finite number from 0 on expected, got -1" },
        rng.log_normal, rng, f32, 0, -1)
      refused("InvalidArgument", { "deviation: a finite number from 0 on expected, got" }, rng.normal, rng, f32, 0,
        0 / 0)
      refused("InvalidArgument", { "poisson: mean: a finite number from 0 on expected, got nil" }, rng.poisson, rng,
        u32)
      refused("InvalidArgument", { "poisson: mean: a finite number from 0 on expected, got -0.5" }, rng.poisson, rng,
        u32, -0.5)
      refused("InvalidArgument", { "poisson: mean: 1048576 is the most, got 1048577" }, rng.poisson, rng, u32, 1048577)
      u32:close()
      refused("Closed", {}, rng.bits, rng, u32)
      local freed = dev:buffer("f32", 4)
      freed:free()
      refused("UseAfterFree", {}, rng.uniform, rng, freed)
      local other = support.open()
      refused("InvalidArgument", { "the buffer is on" }, rng.uniform, rng, other:buffer("f32", 4))
      assert.equal(0, rng:state().offset) -- what was refused has taken no numbers
    end)

    it("of rngs is refused, naming it", function()
      refused("InvalidArgument", { "rng: a table expected, got number" }, dev.rng, dev, 42)
      refused("InvalidArgument", { "rng: it has no option 'sed'" }, dev.rng, dev, { sed = 42 })
      refused("InvalidArgument", { "generator: philox, xorwow", "expected, got mt19937" }, dev.rng, dev,
        { generator = "mt19937" })
      refused("InvalidArgument", { "generator:", "got 7" }, dev.rng, dev, { generator = 7 })
      refused("InvalidArgument", { "seed: a whole number expected, got 1.5" }, dev.rng, dev, { seed = 1.5 })
      refused("InvalidArgument", { "seed: a whole number expected, got string" }, dev.rng, dev, { seed = "7" })
      refused("InvalidArgument", { "offset: a whole number expected, got" }, dev.rng, dev, { offset = 0 / 0 })
      refused("InvalidArgument", { "ordering: philox has no 'best'" }, dev.rng, dev, { ordering = "best" })
      refused("InvalidArgument", { "dimensions: philox has none" }, dev.rng, dev, { dimensions = 2 })
      local seventh <close> = dev:rng { seed = 7 }
      refused("InvalidArgument", { "restore: a state", "it has no seed" }, seventh.restore, seventh, {})
      refused("InvalidArgument", { "restore: a state", "it has no offset" }, seventh.restore, seventh, { seed = 3 })
      refused("InvalidArgument", { "restore: it has no option 'sed'" }, seventh.restore, seventh,
        { seed = 3, offset = 1, sed = 1 })
      refused("InvalidArgument", { "restore: a table expected, got number" }, seventh.restore, seventh, 4)
      assert.equal(7, seventh:state().seed)
      refused("InvalidArgument", { "with a state there is no option 'seed'" }, dev.rng, dev, { state = {}, seed = 1 })
      refused("InvalidArgument", { "rng: a table expected, got boolean" }, dev.rng, dev, { state = true })
      local rng <close> = rng_of(1)
      refused("InvalidArgument", { "restore: generator: this rng's is philox, the state's xorwow" }, rng.restore, rng,
        { generator = "xorwow" })
      refused("InvalidArgument", { "a table expected, got nil" }, rng.restore, rng)
    end)
  end)
end)
