-- Fast Fourier transforms: dev:fft{...}, against direct transforms.

local gpu = require "gpulua"
local support = require "spec.support"

describe("fft", function()
  local dev

  setup(function() dev = support.open() end)
  teardown(support.close_all)

  local real_of <const> = { f32 = "f32", f64 = "f64" }
  local complex_of <const> = { f32 = "c64", f64 = "c128" }
  local bound_of <const> = { f32 = 1e-6, f64 = 1e-15 }

  -- ---- the direct transform ----

  -- Along one dimension of `n` numbers, `step` apart, for all others.
  local function direct_along(re, im, n, step, sign)
    local cosines, sines = {}, {}
    for k = 0, n - 1 do
      cosines[k], sines[k] = math.cos(2 * math.pi * k / n), sign * math.sin(2 * math.pi * k / n)
    end
    local out_re, out_im = {}, {}
    for first = 1, #re do
      if (first - 1) // step % n == 0 then
        for k = 0, n - 1 do
          local sum_re, sum_im, at = 0.0, 0.0, 0
          for j = 0, n - 1 do
            local r, i, c, s = re[first + j * step], im[first + j * step], cosines[at], sines[at]
            sum_re, sum_im, at = sum_re + r * c - i * s, sum_im + r * s + i * c, (at + k) % n
          end
          out_re[first + k * step], out_im[first + k * step] = sum_re, sum_im
        end
      end
    end
    return out_re, out_im
  end

  -- Of any number of transforms, one behind the other.
  local function direct(re, im, sizes, sign)
    local step = 1
    for d = #sizes, 1, -1 do
      re, im = direct_along(re, im, sizes[d], step, sign)
      step = step * sizes[d]
    end
    return re, im
  end

  local function product(sizes, batch)
    local total = batch or 1
    for _, size in ipairs(sizes) do
      total = total * size
    end
    return total
  end

  -- ---- data ----

  local random = support.random(11)
  local function numbers(count)
    local list = {}
    for i = 1, count do
      list[i] = random(-4096, 4096) / 1024 -- exact in f32
    end
    return list
  end

  -- The places of a side's elements from 1 on, row by row; with `sizes` of that side.
  local function places(sizes, batch, layout)
    local strides, list = {}, {}
    for d = #sizes, 1, -1 do
      strides[d] = layout and layout.strides and layout.strides[d] or d == #sizes and 1 or strides[d + 1] * sizes[d + 1]
    end
    local distance = layout and layout.distance or strides[1] * sizes[1]
    for i = 0, product(sizes, batch) - 1 do
      local at, left = 1, i
      for d = #sizes, 1, -1 do
        at, left = at + left % sizes[d] * strides[d], left // sizes[d]
      end
      list[i + 1] = at + left * distance
    end
    return list
  end

  local gap <const> = 77

  -- A buffer with these numbers in these places, and others between them. im nil: of real numbers.
  local function put(kind, re, im, where)
    local last, list = math.max(table.unpack(where, 1, math.min(#where, 200))), {}
    for _, at in ipairs(where) do
      last = math.max(last, at)
    end
    for i = 1, last do
      list[i] = im and { gap, gap } or gap
    end
    for i, at in ipairs(where) do
      list[at] = im and { re[i], im[i] } or re[i]
    end
    return dev:upload(kind, list)
  end

  local function get(buffer, where)
    local list, re, im = buffer:read(), {}, {}
    for i, at in ipairs(where) do
      local value = list[at]
      re[i], im[i] = type(value) == "table" and value[1] or value, type(value) == "table" and value[2] or 0
    end
    return re, im
  end

  -- The error against what is wanted, root mean square, relative.
  local function error_of(re, im, wanted_re, wanted_im)
    local wrong, right = 0.0, 0.0
    for i = 1, #wanted_re do
      wrong = wrong + (re[i] - wanted_re[i]) ^ 2 + (im[i] - wanted_im[i]) ^ 2
      right = right + wanted_re[i] ^ 2 + wanted_im[i] ^ 2
    end
    return math.sqrt(wrong / math.max(right, 1e-300))
  end

  local function near(kind, re, im, wanted_re, wanted_im, n, what)
    assert.equal(#wanted_re, #re)
    local got, bound = error_of(re, im, wanted_re, wanted_im), bound_of[kind] * math.max(1, math.log(n, 2))
    assert(got <= bound, ("%s: error %g, at most %g"):format(what, got, bound)) -- not so for NaN
  end

  -- What is between the elements stays what it was.
  local function gaps_are_left(buffer, where, what)
    local is_there = {}
    for _, at in ipairs(where) do
      is_there[at] = true
    end
    for i, value in ipairs(buffer:read()) do
      if not is_there[i] then
        assert.equal(gap, type(value) == "table" and value[1] or value, what)
      end
    end
  end

  -- Forward and back of a plan, each against the direct transform; what goes in stays.
  local function agrees(options)
    local sizes, batch, kind = options.shape, options.batch or 1, options.type or "f32"
    local is_real = options.kind == "r2c"
    local n, what = product(sizes), ("%s %s %s x %d"):format(kind, options.kind, table.concat(sizes, ","), batch)
    local re, im = numbers(n * batch), numbers(n * batch)
    local half = { table.unpack(sizes) }
    if is_real then
      half[#half] = half[#half] // 2 + 1
      for i = 1, #im do
        im[i] = 0
      end
    end
    local wanted_re, wanted_im = direct(re, im, sizes, -1)
    local f_re, f_im = {}, {} -- those that the plan has
    for i = 1, #re do
      local column = (i - 1) % sizes[#sizes]
      if column < half[#half] then
        f_re[#f_re + 1], f_im[#f_re + 1] = wanted_re[i], wanted_im[i]
      end
    end
    local x_places, f_places = places(sizes, batch, options.input), places(half, batch, options.output)
    local plan <close> = dev:fft(options)
    local x <close> = put(is_real and real_of[kind] or complex_of[kind], re, not is_real and im or nil, x_places)
    local zeros = {}
    for i = 1, #f_re do
      zeros[i] = 0
    end
    local X <close> = put(complex_of[kind], zeros, zeros, f_places)
    local before = x:bytes()
    plan:forward(x, X)
    local got_re, got_im = get(X, f_places)
    near(kind, got_re, got_im, f_re, f_im, n, "forward " .. what)
    assert.equal(before, x:bytes(), what)
    gaps_are_left(X, f_places, what)
    before = X:bytes()
    local y <close> = put(x.type, re, not is_real and im or nil, x_places)
    plan:inverse(X, y)
    got_re, got_im = get(y, x_places)
    for i = 1, #got_re do
      got_re[i], got_im[i] = got_re[i] / n, got_im[i] / n
    end
    near(kind, got_re, got_im, re, im, n, "inverse " .. what)
    gaps_are_left(y, x_places, what)
    assert.equal(before, X:bytes(), what)
  end

  -- ---- what it computes ----

  for _, kind in ipairs { "f32", "f64" } do
    for _, what in ipairs { "c2c", "r2c" } do
      it(("agrees with a direct transform: lengths, %s %s"):format(kind, what), function()
        for _, n in ipairs { 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 101, 127, 128, 129, 255,
          256, 257, 360 } do
          agrees { shape = { n }, type = kind, kind = what }
        end
      end)

      it(("agrees with a direct transform: dimensions and batches, %s %s"):format(kind, what), function()
        for _, shape in ipairs { { 1, 1, 1 }, { 1, 8 }, { 8, 1 }, { 3, 5 }, { 16, 16 }, { 7, 12 }, { 2, 3, 4 },
          { 5, 1, 6 }, { 8, 8, 8 }, { 3, 7, 11 } } do
          agrees { shape = shape, type = kind, kind = what }
          agrees { shape = shape, batch = random(2, 5), type = kind, kind = what }
        end
        agrees { shape = { 12 }, batch = 33, type = kind, kind = what }
      end)

      it(("agrees with a direct transform: random strides, %s %s"):format(kind, what), function()
        local function layout(sizes, batch)
          local strides, covered = {}, 1
          for d = #sizes, 1, -1 do
            strides[d] = covered * random(1, d == #sizes and 3 or 1)
            covered = strides[d] * (sizes[d] + random(0, 2))
          end
          return { strides = strides, distance = batch > 1 and covered + random(0, 3) or nil }
        end
        for _ = 1, 12 do
          local sizes, batch = {}, random(1, 4)
          for d = 1, random(1, 3) do
            sizes[d] = random(1, 7)
          end
          local half = { table.unpack(sizes) }
          half[#half] = what == "r2c" and half[#half] // 2 + 1 or half[#half]
          agrees { shape = sizes, batch = batch, type = kind, kind = what, input = layout(sizes, batch),
            output = layout(half, batch) }
        end
      end)
    end
  end

  it("knows Parseval, and comes back, for long ones", function()
    for _, n in ipairs { 1 << 14, (1 << 14) + 1, 10007 } do
      local x <close> = dev:upload("f64", numbers(n))
      local plan <close> = dev:fft { shape = n, kind = "r2c", type = "f64", scale = { inverse = 1 / n } }
      local X <close> = plan:forward(x)
      local energy, energy_there = 0.0, 0.0
      for _, value in ipairs(x:read()) do
        energy = energy + value * value
      end
      for i, value in ipairs(X:read()) do
        local is_single = i == 1 or n % 2 == 0 and i == n // 2 + 1
        energy_there = energy_there + (is_single and 1 or 2) * (value[1] ^ 2 + value[2] ^ 2)
      end
      assert(math.abs(energy_there / n / energy - 1) < 1e-13, n)
      local there, back = x:read(), plan:inverse(X):read()
      for i = 1, n do
        assert(math.abs(back[i] - there[i]) < 1e-12, n)
      end
    end
  end)

  it("has nothing but the sum at frequency 0 of what is constant, whole and long", function()
    local own = support.open() -- check mode looks at what was freed, too, with each launch
    local n = 1 << 20
    local x <close> = own:buffer("c64", n):fill { 1, -2 }
    local plan <close> = own:fft { shape = n }
    local X <close> = plan:forward(x)
    assert.are.same({ n, -2 * n }, X:read(1, 1)[1])
    local largest <close> = gpu.map("abs(x)", { x = X:slice(2, n):view("f32") })
    local most = 0
    for _, value in ipairs(largest:read(1, 4096)) do
      most = math.max(most, value)
    end
    assert(most < 1e-6 * 20 * n, most)
    plan:inverse(X, x, { scale = 1 / n })
    local last = x:read(n, n)[1]
    assert(math.abs(last[1] - 1) < 1e-5 and math.abs(last[2] + 2) < 1e-5)
    own:close()
  end)

  it("takes more than 2^31 bytes", function()
    if dev.kind ~= "cuda" or dev.memory_bytes < 16 << 30 then
      pending "wants a GPU with memory"
    end
    local own = support.open()
    local batch = (1 << 18) + 3
    local x, plan = own:buffer("c64", batch * 1024):fill { 1, 0 }, own:fft { shape = 1024, batch = batch }
    plan:forward(x, x, { scale = 0.5 })
    local last = x:read((batch - 1) * 1024 - 1, (batch - 1) * 1024 + 2)
    assert.are.same({ { 512, 0 }, { 0, 0 } }, { last[3], last[4] })
    assert.are.same({ 0, 0 }, last[2])
    own:close()
  end)

  it("transforms columns, and windows that overlap", function()
    local re = numbers(6 * 4)
    local x = dev:upload("f64", { 6, 4 }, function(i) return re[i] end)
    local columns <close> = dev:fft { shape = 6, batch = 4, kind = "r2c", type = "f64",
      input = { strides = { 4 }, distance = 1 }, output = { strides = { 4 }, distance = 1 } }
    local X = columns:forward(x):read()
    for column = 1, 4 do
      local one, zeros = {}, {}
      for row = 1, 6 do
        one[row], zeros[row] = re[(row - 1) * 4 + column], 0
      end
      local wanted_re, wanted_im = direct(one, zeros, { 6 }, -1)
      for row = 1, 4 do
        assert.near(wanted_re[row], X[(row - 1) * 4 + column][1], 1e-12)
        assert.near(wanted_im[row], X[(row - 1) * 4 + column][2], 1e-12)
      end
    end
    local windows <close> = dev:fft { shape = 8, batch = 5, kind = "r2c", type = "f64", input = { distance = 4 } }
    local W, op = windows:forward(x:view("f64", 24))
    assert.are.same({ { 5, 5 }, "op" }, { W.shape, gpu.type(op) })
    local list = W:read()
    for window = 0, 4 do
      local one, zeros = table.move(re, window * 4 + 1, window * 4 + 8, 1, {}), { 0, 0, 0, 0, 0, 0, 0, 0 }
      local wanted_re, wanted_im = direct(one, zeros, { 8 }, -1)
      for k = 1, 5 do
        assert.near(wanted_re[k], list[window * 5 + k][1], 1e-12)
        assert.near(wanted_im[k], list[window * 5 + k][2], 1e-12)
      end
    end
    support.raises("Unsupported", "inverse: the transforms of x overlap", windows.inverse, windows, W)
  end)

  -- Behind some calls a GPU launches what the library did then, without the library.
  it("does the same again and again with what is there then", function()
    local n <const> = 1000
    local plan <close> = dev:fft { shape = n, kind = "r2c" }
    local x, f = dev:buffer("f32", n), dev:buffer("c64", n // 2 + 1)
    for i = 1, 40 do
      x:fill(i)
      plan:forward(x, f)
      local found = f:read()
      assert.near(n * i, found[1][1], 1e-6 * n * i)
      assert.near(0, found[2][1], 1e-4 * i)
      if i % 3 == 0 then -- and another call between
        x:fill(0)
        plan:inverse(f, x)
        assert.near(n * i, x:read()[n], 1e-5 * n * i)
      end
    end
  end)

  it("works in place where both sides lie alike, and says so where they do not", function()
    local re, im = numbers(4 * 6), numbers(4 * 6)
    local wanted_re, wanted_im = direct(re, im, { 4, 6 }, -1)
    local function all(count)
      return places({ count }, 1)
    end
    local x = put("c128", re, im, all(24))
    local plan <close> = dev:fft { shape = { 4, 6 }, type = "f64" }
    plan:forward(x, x)
    local got_re, got_im = get(x, all(24))
    near("f64", got_re, got_im, wanted_re, wanted_im, 24, "in place")
    plan:inverse(x, x, { scale = 1 / 24 })
    got_re, got_im = get(x, all(24))
    near("f64", got_re, got_im, re, im, 24, "in place, back")
    -- Real rows as long as those of X; of several dimensions, the library destroys what it reads.
    for _, options in ipairs { { overwrite = false }, { overwrite = true } } do
      options.shape, options.kind, options.type = { 4, 6 }, "r2c", "f64"
      options.input = { strides = { 8, 1 } }
      local padded <close> = dev:fft(options)
      local X = dev:buffer("c128", 16):fill { gap, gap }
      local inside = X:view("f64")
      local list = inside:read()
      for i, at in ipairs(places({ 4, 6 }, 1, options.input)) do
        list[at] = re[i]
      end
      inside:write(list)
      padded:forward(inside, X)
      local zeros = {}
      for i = 1, 24 do
        zeros[i] = 0
      end
      local all_re, all_im = direct(re, zeros, { 4, 6 }, -1)
      local half = places({ 4, 4 }, 1, { strides = { 6, 1 } })
      local f_re, f_im = {}, {}
      for i, at in ipairs(half) do
        f_re[i], f_im[i] = all_re[at], all_im[at]
      end
      got_re, got_im = get(X, all(16))
      near("f64", got_re, got_im, f_re, f_im, 24, "real in place")
      padded:inverse(X, inside, { scale = 1 / 24 })
      got_re, got_im = get(inside, places({ 4, 6 }, 1, options.input))
      near("f64", got_re, got_im, re, zeros, 24, "real in place, back")
    end
    local packed <close> = dev:fft { shape = { 4, 6 }, kind = "r2c" }
    local X = dev:buffer("c64", { 4, 4 }):fill { 1, 1 }
    local shared = X:view("f32"):slice(1, 24)
    support.raises("InvalidArgument", "forward: x and X share memory: in place, both need the same strides",
      packed.forward, packed, shared, X)
    support.raises("InvalidArgument", "inverse: X and x share memory", packed.inverse, packed, X, shared)
    local long = dev:buffer("c64", 27):fill { 1, 1 }
    local c2c <close> = dev:fft { shape = 24 }
    support.raises("InvalidArgument", "forward: x and X share memory, and begin at different places", c2c.forward, c2c,
      long:slice(1, 24), long:slice(2, 25))
    local turned <close> = dev:fft { shape = { 4, 6 }, output = { strides = { 7, 1 } } }
    support.raises("InvalidArgument", "share memory", turned.forward, turned, long:slice(1, 24), long)
  end)

  it("scales what comes out, and nothing else", function()
    for _, kind in ipairs { "f32", "f64" } do
      for _, what in ipairs { "c2c", "r2c" } do
        local is_real = what == "r2c"
        local layout = { strides = { 12, 2 }, distance = 50 }
        local plan <close> = dev:fft { shape = { 3, 4 }, batch = 2, kind = what, type = kind, input = layout,
          output = layout, scale = { forward = 0.5, inverse = 2 / 12 } }
        local re = numbers(24)
        local x = put(is_real and kind or complex_of[kind], re, not is_real and re or nil, places({ 3, 4 }, 2, layout))
        local half = { 3, is_real and 3 or 4 }
        local f_places, zeros = places(half, 2, layout), {}
        for i = 1, product(half, 2) do
          zeros[i] = 0
        end
        local X, Y = put(complex_of[kind], zeros, zeros, f_places), put(complex_of[kind], zeros, zeros, f_places)
        plan:forward(x, X)
        plan:forward(x, Y, { scale = 1 })
        local half_re = get(X, f_places)
        for i, value in ipairs((get(Y, f_places))) do
          assert.equal(value, 2 * half_re[i])
        end
        gaps_are_left(X, f_places, what)
        local y = put(x.type, re, not is_real and re or nil, places({ 3, 4 }, 2, layout))
        y:fill(is_real and gap or { gap, gap })
        plan:inverse(X, y)
        local back = get(y, places({ 3, 4 }, 2, layout))
        for i, value in ipairs(re) do
          assert.near(value, back[i], 1e-5)
        end
        gaps_are_left(y, places({ 3, 4 }, 2, layout), what)
      end
    end
    local both <close> = dev:fft { shape = 4, scale = 0.5 } -- 1 / sqrt(n)
    local x = dev:upload("c64", { { 1, 2 }, { 3, 4 }, { 5, 6 }, { 7, 8 } })
    assert.are.same(x:read(), both:inverse((both:forward(x))):read())
  end)

  it("keeps what it reads, unless it may overwrite it", function()
    for _, options in ipairs { { shape = 12 }, { shape = { 4, 6 } }, { shape = { 3, 2, 4 }, batch = 2 } } do
      options.kind = "r2c"
      local count = product(type(options.shape) == "table" and options.shape or { options.shape }, options.batch)
      local x = dev:upload("f32", numbers(count))
      local plan <close> = dev:fft(options)
      local X = plan:forward(x)
      local bytes = X:bytes()
      local y = plan:inverse(X)
      assert.equal(bytes, X:bytes())
      options.overwrite = true
      local rough <close> = dev:fft(options)
      local z, op = rough:inverse(X)
      assert.equal("fft_inverse", op.label)
      local there, here = y:read(), z:read()
      for i = 1, count do
        assert.near(there[i], here[i], 1e-3)
      end
      assert.is_true(rough:stats().plans >= 2)
    end
  end)

  it("has kinds: c2r is the inverse alone", function()
    local plan <close> = dev:fft { shape = { 2, 5 }, kind = "c2r", type = "f64", input = { strides = { 4, 1 } } }
    local both <close> = dev:fft { shape = { 2, 5 }, kind = "r2c", type = "f64" }
    local x = dev:upload("f64", numbers(10))
    local X = both:forward(x):read()
    local wide = dev:buffer("c128", 7):fill { gap, gap }
    wide:write({ X[1], X[2], X[3] }, 1):write({ X[4], X[5], X[6] }, 5)
    local y = plan:inverse(wide, { scale = 1 / 10 })
    assert.are.same({ 2, 5 }, y.shape)
    for i, value in ipairs(x:read()) do
      assert.near(value, y:read(i, i)[1], 1e-13)
    end
    support.raises("Unsupported", "forward: a plan of kind 'c2r' has none", plan.forward, plan, y)
  end)

  it("takes slices, and on the CPU device odd ones", function()
    local x = dev:upload("f32", numbers(40))
    local plan <close> = dev:fft { shape = 16, kind = "r2c" }
    local even = plan:forward(x:slice(3, 18)):read()
    local copy = dev:buffer("f32", 16):copy(x:slice(3, 18))
    assert.are.same(plan:forward(copy):read(), even)
    local odd, op = plan:forward(x:slice(4, 19))
    if dev.kind == "cuda" then
      support.raises("Unsupported", "multiple of 8 bytes", op.await, op)
      return
    end
    local re, im = get(odd, places({ 9 }, 1))
    copy:copy(x:slice(4, 19))
    local wanted_re, wanted_im = get(plan:forward(copy), places({ 9 }, 1))
    near("f32", re, im, wanted_re, wanted_im, 16, "odd")
    plan:inverse(odd, x:slice(4, 19), { scale = 1 / 16 }) -- to an odd one
    local back = x:read(4, 19)
    for i, value in ipairs(copy:read()) do
      assert.near(value, back[i], 1e-5)
    end
    local list = dev:buffer("c64", 20):fill { 1, 0 }
    local c2c <close> = dev:fft { shape = 16 }
    c2c:forward(list:slice(2, 17), list:slice(2, 17)) -- in place, where no plan was made yet
    assert.are.same({ { 1, 0 }, { 16, 0 }, { 0, 0 }, { 0, 0 } }, list:read(1, 4))
  end)

  it("measures, if it is told to", function()
    local plan <close> = dev:fft { shape = 24, batch = 3, kind = "r2c", effort = "measure" }
    local plain <close> = dev:fft { shape = 24, batch = 3, kind = "r2c" }
    local x = dev:upload("f32", numbers(72))
    local a, b = plan:forward(x):read(), plain:forward(x):read()
    for i = 1, #a do
      assert.near(a[i][1], b[i][1], 1e-3)
    end
  end)

  -- ---- how it goes with everything else ----

  it("takes shapes that say the same, and makes buffers of its own", function()
    local plan <close> = dev:fft { shape = { 2, 3 }, batch = 4, kind = "r2c" }
    local X, op = plan:forward(dev:buffer("f32", { 4, 2, 3 }):fill(1), { label = "mine" })
    assert.are.same({ "c64", { 4, 2, 2 }, "mine" }, { X.type, X.shape, op.label })
    assert.are.same({ "f32", { 4, 2, 3 } }, { plan:inverse(X).type, plan:inverse(X).shape })
    plan:forward(dev:buffer("f32", 24):fill(1), X):await()
    plan:forward(dev:buffer("f32", { 2, 2, 2, 3 }):fill(1), X):await()
    local strided <close> = dev:fft { shape = 4, output = { strides = { 3 } } }
    assert.are.same({ 10 }, strided:forward(dev:buffer("c64", 4):fill { 1, 0 }).shape)
    local one <close> = dev:fft { shape = { 4, 1 } }
    assert.are.same({ 4, 1 }, one:forward(dev:buffer("c64", { 4, 1 }):fill { 1, 0 }).shape)
    local nested <close> = dev:fft { shape = { 8 }, kind = "r2c", type = "f64", scale = { inverse = 1 / 8 } }
    local there = dev:upload("f64", { 1, 2, 3, 4, 5, 6, 7, 8 })
    for i, value in ipairs(nested:inverse(nested:forward(there)):read()) do
      assert.near(i, value, 1e-12)
    end
  end)

  it("is captured: replays transform what is there then, plans may be closed", function()
    local x, y = dev:buffer("f64", { 4, 6 }), dev:buffer("f64", { 4, 6 })
    local plan = dev:fft { shape = { 4, 6 }, kind = "r2c", type = "f64", scale = { inverse = 1 / 24 } }
    local graph = dev:capture(function()
      plan:inverse((plan:forward(x)), y)
    end)
    plan:close()
    collectgarbage()
    for _ = 1, 5 do
      local list = numbers(24)
      x:write(list)
      graph:launch()
      for i, value in ipairs(y:read()) do
        assert.near(list[i], value, 1e-12)
      end
    end
    graph:close()
  end)

  it("is made in no capture, unless the device has it already", function()
    local x = dev:buffer("c64", 37):fill { 1, 0 }
    local known = dev:fft { shape = 37 }
    known:close()
    local graph <close> = dev:capture(function()
      support.raises("CaptureActive", "loading a library", dev.fft, dev, { shape = 38 })
      local again <close> = dev:fft { shape = 37 }
      again:forward(x, x)
    end)
    graph:launch():await()
    assert.near(37, x:read(1, 1)[1][1], 1e-3)
  end)

  it("is graphed, and bound to other buffers", function()
    local plan <close> = dev:fft { shape = 8, kind = "r2c", type = "f64" }
    local out = dev:buffer("c128", 5)
    local step = dev:graphed(function(x) plan:forward(x, out) end)
    for round = 1, 6 do
      local x <close> = dev:buffer("f64", 8):fill(round)
      step(x)
      assert.equal(8 * round, out:read(1, 1)[1][1])
    end
    step:close()
    local a = dev:buffer("f64", 8, { label = "a" }):fill(1)
    local b = dev:buffer("f64", 8):fill(3)
    local graph <close> = dev:capture(function() plan:forward(a, out) end)
    graph:bind { a = b }
    graph:launch()
    assert.equal(24, out:read(1, 1)[1][1])
    for place, value in pairs { ["fft_forward#1.work_bytes"] = 0, ["fft_forward#1.3"] = a, ["fft_forward#1.4"] = 0 } do
      support.raises("InvalidArgument", "has no '" .. place, graph.bind, graph, { [place] = value })
    end
    support.raises("InvalidArgument", "share memory", graph.bind, graph,
      { ["fft_forward#1.in"] = out:view("f64"):slice(1, 8) })
    local scaled <close> = dev:fft { shape = 8, kind = "r2c", type = "f64", output = { strides = { 1 } }, scale = 2 }
    assert.is_false((graph:update(function() scaled:forward(a, out) end)))
    graph:launch()
    assert.equal(16, out:read(1, 1)[1][1])
  end)

  it("serves two streams at once, each with a work area of its own", function()
    local plan <close> = dev:fft { shape = { 16, 16, 4 }, kind = "r2c", type = "f64", scale = { inverse = 1 / 1024 } }
    local streams, sides = { dev:stream(), dev:stream() }, {}
    for s = 1, 2 do
      sides[s] = { list = numbers(1024), buffers = {} }
      sides[s].x = dev:upload("f64", sides[s].list)
      sides[s].X = plan:forward(sides[s].x, { stream = streams[s] })
    end
    for round = 1, 20 do
      for s = 1, 2 do
        sides[s].buffers[round] = plan:inverse(sides[s].X, { stream = streams[s] })
      end
    end
    for s = 1, 2 do
      for _, buffer in ipairs(sides[s].buffers) do
        local got = buffer:read()
        for i = 1, 1024 do
          assert(math.abs(got[i] - sides[s].list[i]) < 1e-12)
        end
      end
      streams[s]:close()
    end
    local bytes = plan:stats().work_bytes
    for _ = 1, 40 do
      local stream <close> = dev:stream()
      local back <close> = plan:inverse(sides[1].X, { stream = stream })
      assert(math.abs(back:read(7, 7)[1] - sides[1].list[7]) < 1e-12)
      assert(plan:stats().work_bytes <= 32 * bytes)
    end
  end)

  it("serves tasks, which make one plan", function()
    local before = support.open()
    local made = {}
    for i = 1, 8 do
      made[i] = gpu.spawn(function()
        local plan <close> = before:fft { shape = 20, type = "f64" }
        local x = before:buffer("c128", 20):fill { i, 0 }
        local X, op = plan:forward(x)
        op:await()
        return X:read(1, 1)[1][1]
      end)
    end
    for i, value in ipairs { gpu.all(made) } do
      assert.near(20 * i, value, 1e-10)
    end
    local plan <close> = before:fft { shape = 20, type = "f64" }
    assert.equal(1, plan:stats().plans)
    before:close()
  end)

  -- ---- plans ----

  it("keeps the 64 plans that were used last", function()
    local own = support.open()
    local watch <close> = own:fft { shape = 1000 }
    for n = 1, 64 do -- the 64th pushes `watch` out, which works on
      own:fft({ shape = n }):close()
      assert.equal(math.min(n + 1, 64), watch:stats().plans)
    end
    assert.equal(65, watch:stats().made)
    assert.near(1000, watch:forward(own:buffer("c64", 1000):fill { 1, 0 }):read(1, 1)[1][1], 1e-2)
    own:fft({ shape = 1 }):close() -- is there, and newer than 2 now
    assert.are.same({ 1, 65 }, { watch:stats().hits, watch:stats().made })
    local x, plan = own:buffer("c64", 65):fill { 1, 0 }, own:fft { shape = 65 } -- pushes 2 out
    local X = plan:forward(x)
    plan:close()
    for n = 66, 130 do -- while that is in flight
      own:fft({ shape = n }):close()
    end
    assert.near(65, X:read(1, 1)[1][1], 1e-3)
    own:fft({ shape = 2 }):close()
    assert.equal(65 + 1 + 65 + 1, watch:stats().made)
    support.settle(own)
    assert.equal(65, own:stats().modules_live) -- and watch's
    own:close()
  end)

  it("tells plans apart by all that matters", function()
    local own = support.open()
    local all = { { shape = 12 }, { shape = 12, batch = 2 }, { shape = { 3, 4 } }, { shape = { 4, 3 } },
      { shape = 12, type = "f64" }, { shape = 12, kind = "r2c" }, { shape = 12, kind = "c2r" },
      { shape = 12, kind = "r2c", overwrite = true }, { shape = 12, input = { strides = { 2 } } },
      { shape = 12, output = { strides = { 2 } } }, { shape = 12, batch = 2, input = { distance = 13 } },
      { shape = 12, effort = "measure" }, { shape = 12, kind = "r2c", batch = 2, input = { distance = 6 } },
      { shape = 12, kind = "r2c", batch = 2, input = { distance = 14 } } }
    local plans = {}
    for i, options in ipairs(all) do
      plans[i] = own:fft(options)
      assert.equal(i, plans[i]:stats().made)
    end
    -- These say the same as others.
    for _, options in ipairs { { shape = { 12 }, kind = "c2c", type = "f32" }, { shape = 12, scale = 3 },
      { shape = 12, input = { strides = { 1 }, distance = 99 } }, { shape = 12, overwrite = true, batch = 1 } } do
      local plan <close> = own:fft(options)
      assert.equal(#all, plan:stats().made)
    end
    own:close()
  end)

  it("gives everything back: work areas with the last plan, nothing of what is refused", function()
    local own = support.open { budget = 64 * 1024 * 1024 }
    local options = { shape = { 8, 8, 8 }, kind = "r2c" }
    own:buffer("f32", 1):fill(0):await()
    own:fft(options):close()
    support.without_leak(own, function()
      local a, b = own:fft(options), own:fft(options)
      local X = a:forward(own:buffer("f32", 512):fill(1))
      a:inverse(X):close()
      assert(b:stats().work_bytes >= 8 * 8 * 5 * 8)
      assert.equal(2, a:stats().open)
      a:close()
      b:inverse(X):close()
      X:close()
      b:close()
      assert.equal(0, b:stats().work_bytes)
      for _ = 1, 50 do
        pcall(own.fft, own, { shape = { 0 } })
        pcall(b.forward, b, X)
      end
    end)
    own:close()
  end)

  it("whose work area is more than the budget is OutOfBudget, and leaves nothing", function()
    local own = support.open { budget = 40 * 1024 * 1024 }
    local n = 128 -- of f64: 16 MiB each side
    local plan = own:fft { shape = { n, n, n }, kind = "r2c", type = "f64" }
    local x, X = own:buffer("f64", n * n * n), own:buffer("c128", { n, n, n // 2 + 1 }):fill { 0, 0 }
    support.without_leak(own, function()
      support.raises("OutOfBudget", "fft work", plan.inverse, plan, X, x)
    end)
    x:close()
    X:close()
    plan:close()
    own:close()
  end)

  it("has a handle like all others", function()
    local plan = dev:fft { shape = { 4, 8 }, batch = 2, kind = "r2c" }
    assert.equal("gpulua.fft", debug.getmetatable(plan).__name)
    assert.truthy(tostring(plan):find("^gpulua%.fft r2c 2 x 4 x 8 on "))
    plan:close()
    plan:close()
    assert.truthy(tostring(plan):find "%(closed%)$")
    local x = dev:buffer("f32", 64):fill(0)
    support.raises("Closed", "attempt to use a closed fft", plan.forward, plan, x)
    support.raises("Closed", "attempt to use a closed fft", plan.inverse, plan, x)
    local kept
    do
      local again <close> = dev:fft { shape = { 4, 8 }, batch = 2, kind = "r2c" }
      kept = again
    end
    support.raises("Closed", "attempt to use a closed fft", kept.forward, kept, x)
    local open = kept:stats().open
    dev:fft { shape = { 4, 8 }, batch = 2, kind = "r2c" }
    collectgarbage()
    collectgarbage()
    assert.equal(open, kept:stats().open)
    local own = support.open()
    local orphan = own:fft { shape = 8 }
    local y = own:buffer("c64", 8)
    own:close()
    support.raises("Closed", "closed", orphan.forward, orphan, y)
    support.raises("Closed", "closed", own.fft, own, { shape = 8 })
    orphan:close()
  end)

  -- ---- errors ----

  it("says what is wrong with a plan", function()
    local function wrong(code, parts, options)
      support.raises(code, parts, dev.fft, dev, options)
    end
    wrong("InvalidArgument", "fft: a table expected, got number", 3)
    wrong("InvalidArgument", "fft: it has no option 'sizes'", { sizes = 3 })
    wrong("InvalidArgument", { "fft: shape: a whole number or a table of 1 to 3", "got nil" }, {})
    wrong("InvalidArgument", "got 4 of them", { shape = { 1, 2, 3, 4 } })
    wrong("InvalidArgument", "got 0 of them", { shape = {} })
    wrong("InvalidArgument", "fft: shape: a whole number from 1 on expected, got 0", { shape = { 8, 0 } })
    wrong("InvalidArgument", "got 2.5", { shape = { 2.5 } })
    wrong("InvalidArgument", "fft: batch: a whole number from 1 on expected, got 0", { shape = 8, batch = 0 })
    wrong("InvalidArgument", "fft: kind: 'c2c' or 'c2r' or 'r2c' expected, got r2r", { shape = 8, kind = "r2r" })
    wrong("InvalidArgument", "fft: type: 'f32' or 'f64' expected, got f16", { shape = 8, type = "f16" })
    wrong("InvalidArgument", "fft: effort: 'estimate' or 'measure' expected", { shape = 8, effort = 9 })
    wrong("InvalidArgument", "fft: overwrite: true or false expected", { shape = 8, overwrite = 1 })
    wrong("InvalidArgument", "fft: scale: a number or { forward =, inverse = } expected", { shape = 8, scale = "1" })
    wrong("InvalidArgument", "got back = 1", { shape = 8, scale = { back = 1 } })
    wrong("InvalidArgument", "fft: input: a table { strides =, distance = } expected", { shape = 8, input = 3 })
    wrong("InvalidArgument", "fft: output: it has no option 'stride'; there are: distance, strides",
      { shape = 8, output = { stride = 3 } })
    wrong("InvalidArgument", "fft: input: strides: a table of 2 expected, got 1 of them",
      { shape = { 8, 8 }, input = { strides = { 1 } } })
    wrong("InvalidArgument", "fft: input.strides: a whole number from 1 on expected, got 0",
      { shape = { 8, 8 }, input = { strides = { 8, 0 } } })
    wrong("InvalidArgument", "fft: input.distance: a whole number from 1 on expected",
      { shape = 8, batch = 2, input = { distance = 0 } })
    wrong("InvalidArgument", "fft: output: the transforms overlap: 8 elements each, distance 7",
      { shape = 8, batch = 2, output = { distance = 7 } })
    wrong("InvalidArgument", "fft: input: the transforms overlap: 5 elements each, distance 4",
      { shape = 8, batch = 2, kind = "c2r", input = { distance = 4 } })
    wrong("Unsupported", "fft: input: stride 1 is 9; a multiple of the next one, 2, is needed, from 8 on",
      { shape = { 4, 4 }, input = { strides = { 9, 2 } } })
    wrong("Unsupported", "from 8 on", { shape = { 4, 4 }, output = { strides = { 1, 2 } } })
    wrong("Unsupported", "fft: more than 2^48 elements", { shape = { 1 << 40, 1 << 40 } })
    wrong("OutOfMemory", "fft: x has 1099511627776 elements of c64, more than", { shape = 1 << 40 })
    wrong("OutOfMemory", "fft: X has 8796093022213 elements of c64", { shape = 8, kind = "r2c",
      batch = 2, output = { distance = 1 << 43 } })
    wrong("Unsupported", "fft: more than 2^48 elements", { shape = math.maxinteger, batch = math.maxinteger })
    wrong("Unsupported", "fft: more than 2^48 elements", { shape = 8, input = { strides = { math.maxinteger } } })
    wrong("Unsupported", "fft: more than 2^48 elements", { shape = 8, batch = 8, input = { distance = 1 << 60 } })
  end)

  it("says what is wrong with a call", function()
    local plan <close> = dev:fft { shape = 1024, batch = 8, kind = "r2c" }
    local x, X = dev:buffer("f32", { 8, 1024 }):fill(0), dev:buffer("c64", { 8, 513 })
    local function wrong(code, parts, ...)
      support.raises(code, parts, plan.forward, plan, ...)
    end
    wrong("InvalidArgument", "forward: x has 1000 elements, the plan takes 8 x 1024", dev:buffer("f32", 1000), X)
    wrong("InvalidArgument", "forward: x is 1024 x 8, the plan takes 8 x 1024", dev:buffer("f32", { 1024, 8 }), X)
    wrong("InvalidArgument", "forward: x is f64, f32 expected", dev:buffer("f64", 8192), X)
    wrong("InvalidArgument", "forward: X has 4096 elements, the plan takes 8 x 513", x, dev:buffer("c64", 4096))
    wrong("InvalidArgument", "forward: X is f32, c64 expected", x, x)
    wrong("InvalidArgument", "forward: x: a buffer expected, got nil")
    wrong("InvalidArgument", "forward: X: a buffer expected, got number", x, 3)
    wrong("InvalidArgument", "forward: it has no option 'scales'", x, X, { scales = 1 })
    wrong("InvalidArgument", "forward: it has no option 'scales'", x, { scales = 1 })
    wrong("InvalidArgument", "forward: scale: a number expected, got string", x, X, { scale = "yes" })
    wrong("InvalidArgument", "stream", x, X, { stream = 3 })
    wrong("Closed", "closed buffer", x, (function() local b <close> = dev:buffer("c64", 8); return b end)())
    support.raises("InvalidArgument", "inverse: X is f32, c64 expected", plan.inverse, plan, x)
    local other = support.open { label = "other" }
    wrong("InvalidArgument", "forward: X is on ", x, other:buffer("c64", { 8, 513 }))
    other:close()
    local strided <close> = dev:fft { shape = 4, batch = 2, input = { distance = 100 } }
    local err = support.raises("OutOfBounds", "forward: x has 103 elements, the plan reaches to 104", strided.forward,
      strided, dev:buffer("c64", 103))
    assert.are.same({ 0, 104, 103 }, { err.offset, err.length, err.size })
    plan:forward(x, X):await()
    for _, name in ipairs { "forward", "inverse", "stats", "close" } do
      support.raises("InvalidArgument", ("what %s is called on: gpulua.fft expected, got buffer"):format(name),
        plan[name], x)
    end
  end)

  it("depends on what it reads", function()
    if dev.kind ~= "cpu" then
      pending "a failed kernel ends a CUDA device"
    end
    local own = support.open()
    local mod = own:compile [[ extern "C" __global__ void fails(double2 *x) { assert(x == 0); } ]]
    local x = own:buffer("c128", 4):fill { 1, 0 }
    local plan <close> = own:fft { shape = 4, type = "f64" }
    local bad = mod.fails:launch(1, x)
    local _, op = plan:forward(x)
    assert.is_false((bad:join()))
    support.raises("DependencyFailed", {}, op.await, op)
    own:close()
  end)

  it("is lost with its device", function()
    if not support.is_isolated() then
      pending "the crash would be the script's"
    end
    local own = support.open()
    local mod = own:compile [[ extern "C" __global__ void crash(int *x) { __trap(); } ]]
    local x, plan = own:buffer("c64", 8):fill { 1, 0 }, own:fft { shape = 8 }
    local op = mod.crash:launch(1, own:buffer("i32", 1))
    assert.is_false((op:join()))
    support.raises("DeviceLost", {}, plan.forward, plan, x)
    support.raises("DeviceLost", {}, own.fft, own, { shape = 9 })
    plan:close()
    own:close()
    local again = support.open()
    local next_plan <close> = again:fft { shape = 8 }
    assert.equal(8, next_plan:forward(again:buffer("c64", 8):fill { 1, 0 }):read(1, 1)[1][1])
    again:close()
  end)

  it("finds in check mode what was never written", function()
    if dev.kind ~= "cpu" then
      pending "a GPU shows no reads"
    end
    local own = support.open { check = true }
    local plan <close> = own:fft { shape = 8, kind = "r2c" }
    local X, op = plan:forward(own:buffer("f32", 8, { label = "empty" }))
    support.raises("InvalidData", { "fft_forward", "empty", "never written" }, op.await, op)
    op = plan:forward(own:buffer("f32", 8):fill(1), X)
    op:await()
    assert.equal(8, plan:inverse(X, { scale = 1 }):read(1, 1)[1])
    own:close()
  end)

  it("names what is missing where there is no library", function()
    local code = [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      for _, kind in ipairs { "f32", "f64" } do
        local ok, err = pcall(dev.fft, dev, { shape = 8, type = kind })
        print(kind, ok, err.code, err.message)
      end
      print(dev:buffer("f32", 1):fill(3):read()[1])
      os.exit(0)]]
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(code)
    file:close()
    local cuda = support.is_gpu()
    local function run(environment)
      local pipe = assert(io.popen(("%s %s/gpulua %s 2>&1"):format(environment, os.getenv "GPULUA_BUILD" or "build",
        path)))
      local text = pipe:read "a"
      pipe:close()
      return text
    end
    local text = run(cuda and "GPULUA_LIBCUFFT=/nowhere/lib.so" or "GPULUA_LIBFFTW3=/nowhere/lib.so")
    assert.truthy(text:find("f64\tfalse\tLibraryUnavailable\t", 1, true), text)
    assert.truthy(text:find("/nowhere/lib.so", 1, true), text)
    assert.truthy(text:find(cuda and "cuFFT" or "libfftw3-double3", 1, true), text)
    assert.truthy(text:find("\n3.0\n", 1, true), text)
    if not cuda then
      assert.truthy(text:find("f32\ttrue", 1, true), text)
      text = run "GPULUA_LIBFFTW3F=/nowhere/lib.so"
      assert.truthy(text:find("f64\ttrue", 1, true), text)
      assert.truthy(text:find("libfftw3-single3", 1, true), text)
      text = run "GPULUA_LIBFFTW3=libm.so.6" -- a library, but not that one
      assert.truthy(text:find("f64\tfalse\tLibraryUnavailable\t", 1, true), text)
      assert.truthy(text:find("fftw_plan_guru64_dft", 1, true), text)
    end
    os.remove(path)
  end)
end)
