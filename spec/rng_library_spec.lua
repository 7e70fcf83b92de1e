-- Random numbers of cuRAND's generators: dev:rng with xorwow, mrg32k3a and Sobol's. Where the CPU device finds no
-- cuRAND they are refused, which the last test sees everywhere.

local support = require "spec.support"
local reference = require "spec.random"

describe("rng of cuRAND's", function()
  local dev, missing

  setup(function()
    dev = support.open()
    local ok, err = pcall(dev.rng, dev, { generator = "xorwow" })
    missing = not ok and err or nil
    assert(ok or err.code == "LibraryUnavailable", err)
  end)
  teardown(support.close_all)

  -- A test that needs the library.
  local function where_it_is(name, f)
    it(name, function()
      if missing then
        pending(missing.message)
        return
      end
      f()
    end)
  end

  local function draw(rng, what, kind, n, ...)
    local x <close> = dev:buffer(kind, n)
    rng[what](rng, x, ...)
    return x:read()
  end

  local pseudo <const> = { "xorwow", "mrg32k3a" }
  local quasi <const> = { "sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64" }

  local function width_of(name) return name:find "64$" and "64" or "32" end

  local function open(name, options)
    options = options or {}
    options.generator = name
    return dev:rng(options)
  end

  -- Words of cuRAND in its legacy order, which is the same in all its releases; of seed 42, of two dimensions.
  local first_words <const> = {
    xorwow = { 0x11ece47f, 0x28ff4cc2, 0x6ba5a19e, 0x938d0a4a, 0x285f317e, 0x66e4a310 },
    mrg32k3a = { 0x3b3f724d, 0x1c3bfde7, 0xf789b814, 0x894c2884, 0x0ebfbedf, 0x58037e89 },
    sobol32 = { 0, 0x80000000, 0xc0000000, 0, 0x80000000, 0x40000000 },
    scrambled_sobol32 = { 0xe20866fe, 0x0c04e445, 0x5527f5cb, 0xe63d901f, 0x2524bff9, 0xa29d0050 },
    sobol64 = { 0, 1 << 63, 3 << 62, 0, 1 << 63, 1 << 62 },
    scrambled_sobol64 = { 0xe20866fe27bec92a, 0x0c04e445976cff16, 0x5527f5cbaaaf4d2a, 0xe63d901f849e81db,
      0x2524bff958465322, 0xa29d0050d756deb5 },
  }

  where_it_is("give its words", function()
    for name, wanted in pairs(first_words) do
      local rng <close> = open(name, name:find "sobol" and { dimensions = 2 } or { seed = 42 })
      assert.are.same(wanted, draw(rng, "bits", "u" .. width_of(name), 6))
      assert.equal(("gpulua.rng %s on %s"):format(name, dev.name), tostring(rng))
    end
  end)

  where_it_is("in pieces give what one large draw gives, whatever is drawn", function()
    local random = support.random(3)
    for _, name in ipairs(pseudo) do
      for what, kinds in pairs { bits = { "u32", "i64" }, uniform = { "f32", "f64" }, normal = { "f32", "f64" },
        log_normal = { "f32", "f64" }, poisson = { "i32", "u64" } } do
        for _, kind in ipairs(kinds) do
          local wanted = draw(open(name, { seed = 7, offset = 2 }), what, kind, 3001, what == "poisson" and 9 or nil)
          local rng <close> = open(name, { seed = 7, offset = 2 })
          local x, at = dev:buffer(kind, 3001), 1
          while at <= 3001 do
            local last = math.min(3001, at + random(0, 900))
            local piece <close> = x:slice(at, last)
            rng[what](rng, piece, what == "poisson" and 9 or nil)
            at = last + 1
          end
          assert.are.same(wanted, x:read())
          assert.equal(2 + 3001 * (kind:find "64" and 2 or 1), rng:state().offset)
        end
      end
    end
  end)

  where_it_is("make numbers of the words as is described", function()
    for _, name in ipairs(pseudo) do
      local words = draw(open(name, { seed = 5 }), "bits", "u32", 4000)
      local uniform = draw(open(name, { seed = 5 }), "uniform", "f32", 4000)
      local normal = draw(open(name, { seed = 5 }), "normal", "f32", 4000)
      local grown = draw(open(name, { seed = 5 }), "log_normal", "f32", 4000, 0.5, 0.25)
      local counts = draw(open(name, { seed = 5 }), "poisson", "u32", 4000, 30)
      local wide = draw(open(name, { seed = 5 }), "uniform", "f64", 2000)
      local normal64 = draw(open(name, { seed = 5 }), "normal", "f64", 2000)
      for i, word in ipairs(words) do
        local u = (word + 0.5) * 2 ^ -32
        assert.equal(reference.uniform32(word), uniform[i])
        assert.is_true(math.abs(reference.normal_below(normal[i]) - u) < 5e-7)
        assert.is_true(math.abs(grown[i] / math.exp(0.5 + 0.25 * normal[i]) - 1) < 4e-6)
        assert.equal(reference.poisson(30, u), counts[i])
      end
      for i = 1, 2000 do
        local both = words[2 * i] << 32 | words[2 * i - 1]
        assert.equal(reference.uniform64(both), wide[i])
        assert.is_true(math.abs(reference.normal_below(normal64[i]) - wide[i]) < 5e-7)
      end
    end
  end)

  where_it_is("are normal by the inverse of the distribution", function()
    local wanted <const> = { 0, 0.6744897501960817, -0.6744897501960817, -0.3186393639643752, 1.150349380376008 }
    local got = draw(open("sobol64", { offset = 1 }), "normal", "f64", 5) -- of 0.5, 0.75, 0.25, 0.375, 0.875
    local narrow = draw(open("sobol32", { offset = 1 }), "normal", "f32", 5)
    for i = 1, 5 do
      assert.is_true(math.abs(got[i] - wanted[i]) <= 1e-14, i)
      assert.is_true(math.abs(narrow[i] - wanted[i]) <= 4e-6, i)
    end
    -- The ends: half of the first and the last part.
    assert.is_true(math.abs(draw(open("sobol64"), "normal", "f64", 1)[1] - -8.209536151601387) <= 1e-14)
    assert.is_true(math.abs(draw(open("sobol32"), "normal", "f32", 1)[1] - -6.337957754553789) <= 4e-6)
  end)

  where_it_is("are spread as they should be", function()
    local n <const> = 50000
    for _, name in ipairs(pseudo) do
      local m = reference.moments(draw(open(name), "normal", "f32", n))
      assert.is_true(math.abs(m.mean) < 5 / math.sqrt(n))
      assert.is_true(math.abs(m.variance - 1) < 5 * math.sqrt(2 / n))
      assert.is_true(math.abs(m.skew) < 5 * math.sqrt(6 / n))
      assert.is_true(reference.distance(draw(open(name), "uniform", "f64", n), function(x) return x end)
        < 1.95 / math.sqrt(n))
    end
    -- Of 2^k points of Sobol's, one coordinate is in each of 2^k equal parts.
    for _, name in ipairs(quasi) do
      local bits = tonumber(width_of(name))
      local got = draw(open(name, { dimensions = 5 }), "bits", "u" .. bits, 5 * 4096)
      for d = 0, 4 do
        local seen, count = {}, 0
        for i = 1, 4096 do
          local part = got[d * 4096 + i] >> bits - 12
          count = count + (seen[part] and 0 or 1)
          seen[part] = true
        end
        assert.equal(4096, count)
      end
      local kind = "f" .. bits
      local m = reference.moments(draw(open(name), "normal", kind, 4096)) -- closer than by chance
      assert.is_true(math.abs(m.mean) < 0.005 and math.abs(m.variance - 1) < 0.03, name)
    end
  end)

  where_it_is("of Sobol's, count points", function()
    for _, name in ipairs(quasi) do
      local kind = "u" .. width_of(name)
      local all = draw(open(name, { dimensions = 3 }), "bits", kind, 3 * 1000)
      local rng <close> = open(name, { dimensions = 3, offset = 10 })
      for _, points in ipairs { 1, 2, 100, 7 } do
        local at = rng:state().offset
        local x <close> = dev:buffer(kind, { 3, points })
        rng:bits(x)
        local got = x:view(kind, 3 * points):read()
        for d = 0, 2 do
          for i = 1, points do
            assert.equal(all[d * 1000 + at + i], got[d * points + i])
          end
        end
      end
      assert.are.same({ generator = name, ordering = "legacy", seed = 0, offset = 120, dimensions = 3 }, rng:state())
    end
  end)

  where_it_is("go on from a state, and from places far away", function()
    for _, name in ipairs(pseudo) do
      local rng <close> = open(name, { seed = -1 })
      draw(rng, "normal", "f64", 33)
      local state = rng:state()
      assert.are.same({ generator = name, ordering = "legacy", seed = -1, offset = 66 }, state)
      local wanted = draw(rng, "uniform", "f32", 100)
      assert.are.same(wanted, draw(dev:rng { state = state }, "uniform", "f32", 100))
      assert.are.same(wanted, draw(rng:restore(state), "uniform", "f32", 100))
      local far = draw(rng:restore { generator = name, seed = 3, offset = 1 << 40 }, "bits", "u32", 5)
      local near = draw(rng:restore { generator = name, seed = 3, offset = (1 << 40) - 2 }, "bits", "u32", 7)
      assert.are.same(far, table.move(near, 3, 7, 1, {}))
    end
  end)

  where_it_is("end with place 2^64 - 1", function()
    local rng <close> = open("xorwow", { offset = -4 })
    local x, y = dev:buffer("u32", 3), dev:buffer("f64", 1)
    rng:bits(x)
    assert.equal(-1, rng:state().offset)
    support.raises("OutOfBounds", "the sequence of xorwow ends with place 2^64 - 1", rng.bits, rng, x)
    support.raises("OutOfBounds", "uniform", rng.uniform, open("xorwow", { offset = -2 }), y)
    assert.equal(-1, rng:state().offset)
  end)

  where_it_is("keep apart, also many of one seed, on any streams", function()
    local wanted = draw(open("xorwow", { seed = 2 }), "bits", "u32", 400)
    local all, x, streams = {}, {}, { dev:stream {}, dev:stream {} }
    for i = 1, 40 do
      all[i], x[i] = open("xorwow", { seed = 2 }), dev:buffer("u32", 400)
    end
    for piece = 0, 3 do
      for i = 1, 40 do
        all[i]:bits(x[i]:slice(100 * piece + 1, 100 * piece + 100), { stream = streams[(i + piece) % 2 + 1] })
      end
    end
    for i = 1, 40 do
      assert.are.same(wanted, x[i]:read())
    end
  end)

  where_it_is("have orderings of cuRAND's", function()
    local rng <close> = open("xorwow", { seed = 1, ordering = "seeded" })
    draw(rng, "uniform", "f32", 10)
    assert.equal("seeded", rng:state().ordering)
    draw(open("xorwow", { ordering = "best" }), "bits", "u32", 10)
    draw(open("mrg32k3a", { ordering = "best" }), "bits", "u32", 10)
  end)

  where_it_is("cannot be captured, and say what can", function()
    local rng <close> = open("xorwow")
    local x = dev:buffer("f32", 8)
    support.raises("Unsupported", { "uniform: draws of xorwow cannot be captured", "philox" }, function()
      dev:capture(function()
        x:fill(0)
        rng:uniform(x)
      end)
    end)
    assert.equal(0, rng:state().offset)
  end)

  where_it_is("refuse what does not fit, naming it", function()
    local rng <close> = open("sobol32", { dimensions = 3 })
    local wide <close> = open("scrambled_sobol64", { dimensions = 3 })
    support.raises("InvalidArgument", { "bits: 4 elements are no whole number of points with 3 dimensions" }, rng.bits,
      rng, dev:buffer("u32", 4))
    support.raises("Unsupported", { "uniform: the buffer is f64; sobol32 makes numbers of 32 bits" }, rng.uniform, rng,
      dev:buffer("f64", 3))
    support.raises("Unsupported", { "poisson: the buffer is i32; scrambled_sobol64 makes numbers of 64 bits" },
      wide.poisson, wide, dev:buffer("i32", 3), 4)
    support.raises("InvalidArgument", { "seed: sobol32 has none" }, open, "sobol32", { seed = 1 })
    support.raises("InvalidArgument", { "dimensions: 1 to 20000 expected, got 0" }, open, "sobol32", { dimensions = 0 })
    support.raises("InvalidArgument", { "dimensions: 1 to 20000 expected, got 20001" }, open, "sobol64",
      { dimensions = 20001 })
    support.raises("InvalidArgument", { "dimensions: xorwow has none" }, open, "xorwow", { dimensions = 2 })
    support.raises("InvalidArgument", { "ordering: mrg32k3a has no 'seeded'" }, open, "mrg32k3a",
      { ordering = "seeded" })
    support.raises("InvalidArgument", { "restore: dimensions: this rng's is 3, the state's 2" }, rng.restore, rng,
      { generator = "sobol32", dimensions = 2 })
    rng:close()
    support.raises("Closed", "attempt to use a closed rng", rng.bits, rng, dev:buffer("u32", 3))
    assert.equal("gpulua.rng sobol32 on " .. dev.name .. " (closed)", tostring(rng))
  end)

  where_it_is("leave nothing behind", function()
    support.without_leak(dev, function()
      for _ = 1, 5 do
        local rng = open("mrg32k3a")
        draw(rng, "normal", "f32", 1000)
      end
    end)
  end)

  it("are LibraryUnavailable where there is no such library, and philox is there", function()
    local output, code = support.script([[
      local gpu = require "gpulua"
            local dev = gpu.device(os.getenv "GPULUA_DEVICE")
      local ok, err = pcall(dev.rng, dev, { generator = "xorwow" })
      print(ok, err.code, err.message)
      local x = dev:buffer("u32", 1)
      dev:rng{}:bits(x)
      print(("%x"):format(x:read()[1]))
    ]], "GPULUA_LIBCURAND=/nowhere/libcurand.so")
    assert.equal(0, code, output)
    assert.truthy(output:find("false\tLibraryUnavailable\tcuRAND (libcurand, part of the CUDA toolkit)", 1, true),
      output)
    assert.truthy(output:find("/nowhere/libcurand.so", 1, true), output)
    assert.truthy(output:find("6627e8d5", 1, true), output)
  end)
end)
