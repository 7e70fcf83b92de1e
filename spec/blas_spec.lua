-- Linear algebra: dev:blas(). Results are held against sums in double precision of the numbers that the device has.

local gpu = require "gpulua"
local support = require "spec.support"

describe("blas", function()
  local dev, blas

  setup(function()
    dev = support.open()
    blas = dev:blas()
  end)
  teardown(function()
    blas:close()
    support.close_all()
  end)

  -- Half a unit in the last place of what is stored, and of what is summed.
  local stored <const> = { f16 = 2 ^ -11, bf16 = 2 ^ -8, f32 = 2 ^ -24, f64 = 2 ^ -53, c64 = 2 ^ -23, c128 = 2 ^ -52 }
  local summed <const> = { f16 = 2 ^ -24, bf16 = 2 ^ -24, f32 = 2 ^ -24, f64 = 2 ^ -53, c64 = 2 ^ -23, c128 = 2 ^ -52 }

  local function is_complex(kind) return kind:sub(1, 1) == "c" end

  local seed = 1
  local function random()
    seed = (seed * 1103515245 + 12345) & 0x7fffffff
    return seed / 0x7fffffff * 2 - 1
  end

  local function random_buffer(kind, shape)
    local b = dev:buffer(kind, shape)
    local values = {}
    for i = 1, #b do
      values[i] = is_complex(kind) and { random(), random() } or random()
    end
    return b:write(values)
  end

  -- Complex numbers as pairs, whatever the type.
  local function pair(value) return type(value) == "table" and value or { value, 0 } end
  local function times(a, b) return { a[1] * b[1] - a[2] * b[2], a[1] * b[2] + a[2] * b[1] } end
  local function plus(a, b) return { a[1] + b[1], a[2] + b[2] } end
  local function size(a) return math.abs(a[1]) + math.abs(a[2]) end
  local function pairs_of(b)
    local values = b:read()
    for i, value in ipairs(values) do
      values[i] = pair(value)
    end
    return values
  end

  -- op(m) as a function of row and column, from 0, where m is stored with `ld` from element `first`.
  local function matrix(values, ld, transpose, first)
    first = (first or 0) + 1
    return function(i, j)
      local value = values[first + (transpose and j * ld + i or i * ld + j)]
      return transpose == "c" and { value[1], -value[2] } or value
    end
  end

  local function near(want, got, bound, ...)
    got = pair(got)
    local off = math.max(math.abs(want[1] - got[1]), math.abs(want[2] - got[2]))
    if not (off <= bound) then
      error(("%s: got %g, %g, wanted %g, %g, off by %g, allowed is %g"):format(table.concat({ ... }, " "), got[1],
        got[2], want[1], want[2], off, bound), 2)
    end
  end

  -- Is c (before: `old`, nil where beta is 0) what it should be?
  local function check_product(kind, c, a, b, m, n, k, alpha, beta, old, ld, first)
    local values, out = c:read(), c.type
    ld, alpha, beta = ld or n, pair(alpha or 1), pair(beta or 0)
    for i = 0, m - 1 do
      for j = 0, n - 1 do
        local sum, sizes = { 0, 0 }, 0
        for l = 0, k - 1 do
          local x, y = a(i, l), b(l, j)
          sum, sizes = plus(sum, times(x, y)), sizes + size(x) * size(y)
        end
        local at = (first or 0) + i * ld + j + 1
        local want = times(alpha, sum)
        sizes = sizes * size(alpha)
        if old then
          want, sizes = plus(want, times(beta, old[at])), sizes + size(beta) * size(old[at])
        end
        near(want, values[at], (k + 4) * summed[kind] * sizes + 2 * stored[out] * size(want), kind, m, n, k, i, j)
      end
    end
  end

  local shapes <const> = { { 1, 1, 1 }, { 1, 7, 3 }, { 5, 1, 2 }, { 4, 4, 1 }, { 17, 31, 13 }, { 16, 8, 32 },
    { 33, 15, 65 } }

  for _, kind in ipairs { "f16", "bf16", "f32", "f64", "c64", "c128" } do
    it("multiplies matrices of " .. kind, function()
      for _, shape in ipairs(shapes) do
        local m, n, k = table.unpack(shape)
        for _, transa in ipairs { false, true, "c" } do
          for _, transb in ipairs { false, "t", "c" } do
            local a = random_buffer(kind, transa and { k, m } or { m, k })
            local b = random_buffer(kind, transb and { n, k } or { k, n })
            local c, op = blas:gemm { a = a, b = b, transa = transa, transb = transb }
            assert.equal("op", gpu.type(op))
            assert.are.same({ kind, m, n }, { c.type, c.shape[1], c.shape[2] })
            check_product(kind, c, matrix(pairs_of(a), transa and m or k, transa),
              matrix(pairs_of(b), transb and k or n, transb), m, n, k)
          end
        end
      end
    end)
  end

  it("scales the product and adds it to what is there", function()
    for _, kind in ipairs { "f16", "f32", "f64", "c64", "c128" } do
      local a, b = random_buffer(kind, { 9, 6 }), random_buffer(kind, { 6, 11 })
      local c = random_buffer(kind, { 9, 11 })
      local old = pairs_of(c)
      local alpha, beta = is_complex(kind) and { 0.5, -2 } or -1.5, is_complex(kind) and { 0, 1 } or 0.25
      blas:gemm { a = a, b = b, c = c, alpha = alpha, beta = beta }
      check_product(kind, c, matrix(pairs_of(a), 6), matrix(pairs_of(b), 11), 9, 11, 6, alpha, beta, old)
    end
    -- Where beta is 0 nothing of c is read.
    local ones = dev:buffer("f32", { 2, 2 }):fill(1)
    local c = dev:buffer("f32", { 2, 2 }):fill(0 / 0)
    blas:gemm { a = ones, b = ones, c = c }
    assert.are.same({ 2, 2, 2, 2 }, c:read())
  end)

  it("sums 16-bit numbers as f32, and rounds to f32 or once", function()
    for _, kind in ipairs { "f16", "bf16" } do
      local k = 3000 -- of ones: f16 counts to 2,048, bf16 to 256
      local a, b = dev:buffer(kind, { 1, k }):fill(1), dev:buffer(kind, { k, 1 }):fill(1)
      local c = dev:buffer("f32", { 1, 1 })
      blas:gemm { a = a, b = b, c = c }
      assert.are.same({ 3000 }, c:read())
      local narrow = blas:gemm { a = a, b = b }
      assert.are.same({ kind == "f16" and 3000 or 3008 }, narrow:read())
    end
  end)

  it("computes f32 as f32 unless it is asked to round", function()
    -- 1 + 2^-12 has one bit more than tf32.
    local a = dev:buffer("f32", { 64, 64 }):fill(1 + 2 ^ -12)
    local one = dev:buffer("f32", { 64, 64 }):fill(1)
    assert.equal(64 + 2 ^ -6, blas:gemm { a = a, b = one }:read(1, 1)[1])
    local rounding <close> = dev:blas { tf32 = true }
    assert.equal(64 + 2 ^ -6, rounding:gemm { a = a, b = one, tf32 = false }:read(1, 1)[1])
    local rounded = rounding:gemm { a = a, b = one }:read(1, 1)[1]
    assert.is_true(math.abs(rounded - 64) <= 2 ^ -5)
  end)

  it("takes matrices inside of others, and leaves what is around them", function()
    local a, b = random_buffer("f32", 10 * 20), random_buffer("f32", { 10, 20 })
    local c = random_buffer("f32", { 10, 20 })
    local old = pairs_of(c)
    blas:gemm { a = a:slice(6, 200), b = b, c = c, m = 3, n = 4, k = 5, lda = 20, ldb = 20, ldc = 20 }
    check_product("f32", c, matrix(pairs_of(a), 20, false, 5), matrix(pairs_of(b), 20), 3, 4, 5, nil, nil, nil, 20)
    local now = pairs_of(c)
    for i = 0, 9 do
      for j = 0, 19 do
        if i >= 3 or j >= 4 then
          assert.are.same(old[i * 20 + j + 1], now[i * 20 + j + 1])
        end
      end
    end
  end)

  it("multiplies batches", function()
    local m, n, k, batch = 5, 4, 7, 6
    local a, b = random_buffer("f64", { batch, m, k }), random_buffer("f64", { batch, k, n })
    local shared = random_buffer("f64", { k, n })
    local c = blas:gemm { a = a, b = b }
    assert.are.same({ batch, m, n }, c.shape)
    local with_shared = blas:gemm { a = a, b = shared }
    local flat = dev:buffer("f64", batch * 40):fill(9)
    blas:gemm { a = a, b = b, c = flat, m = m, n = n, k = k, batch = batch, ldc = 8, stride_c = 40 }
    local va, vb, vs = pairs_of(a), pairs_of(b), pairs_of(shared)
    for i = 0, batch - 1 do
      local left = matrix(va, k, false, i * m * k)
      check_product("f64", c, left, matrix(vb, n, false, i * k * n), m, n, k, nil, nil, nil, n, i * m * n)
      check_product("f64", with_shared, left, matrix(vs, n), m, n, k, nil, nil, nil, n, i * m * n)
      check_product("f64", flat, left, matrix(vb, n, false, i * k * n), m, n, k, nil, nil, nil, 8, i * 40)
    end
    assert.are.same({ 9, 9, 9, 9 }, flat:read(5, 8))
    local beside = dev:buffer("f64", { m, batch * n }) -- each in columns of its own
    blas:gemm { a = a, b = b, c = beside, m = m, n = n, ldc = batch * n, stride_c = n }
    for i = 0, batch - 1 do
      check_product("f64", beside, matrix(va, k, false, i * m * k), matrix(vb, n, false, i * k * n), m, n, k, nil, nil,
        nil, batch * n, i * n)
    end
  end)

  it("adds a bias and applies what comes behind the product", function()
    local m, n, k = 24, 40, 16
    local function gelu(x) return 0.5 * x * (1 + (function(t)
      local e = math.exp(2 * t)
      return (e - 1) / (e + 1)
    end)(0.7978845608028654 * (x + 0.044715 * x ^ 3))) end
    local behind = { none = function(x) return x end, relu = function(x) return math.max(x, 0) end, gelu = gelu }
    for _, kind in ipairs { "f16", "bf16", "f32" } do
      local a, b, bias = random_buffer(kind, { m, k }), random_buffer(kind, { k, n }), random_buffer(kind, n)
      local plain = dev:buffer("f32", { m, n })
      blas:gemm { a = a, b = b, c = plain }
      local sums, added = plain:read(), bias:read()
      for name, f in pairs(behind) do
        local c = blas:gemm { a = a, b = b, bias = bias, epilogue = name ~= "none" and name or nil }
        local got = c:read()
        for i = 1, m * n do
          local want = f(sums[i] + added[(i - 1) % n + 1])
          near({ want, 0 }, got[i], 2 * stored[kind] * math.abs(want) + 1e-5 + (name == "gelu" and 2e-3 or 0),
            kind, name, i)
        end
      end
      local c = blas:gemm { a = a, b = b, epilogue = "relu" }
      for i, value in ipairs(c:read()) do
        near({ math.max(sums[i], 0), 0 }, value, 2 * stored[kind] * math.abs(sums[i]) + 1e-5, kind, i)
      end
    end
    support.raises("Unsupported", "bias and epilogue are for f16, bf16 and f32, not for f64", blas.gemm, blas,
      { a = dev:buffer("f64", { 2, 2 }), b = dev:buffer("f64", { 2, 2 }), epilogue = "relu" })
  end)

  for _, kind in ipairs { "f32", "f64", "c64", "c128" } do
    it("multiplies with vectors of " .. kind, function()
      local m, n = 13, 6
      local a = random_buffer(kind, { m, n })
      local va = pairs_of(a)
      for _, transa in ipairs { false, true, "c" } do
        local long, short = transa and m or n, transa and n or m
        local x = random_buffer(kind, 2 * long)
        local vx = pairs_of(x)
        local function column(i) return vx[2 * i + 1] end
        local y = blas:gemv { a = a, x = x, incx = 2, transa = transa }
        check_product(kind, y, matrix(va, n, transa), column, short, 1, long, nil, nil, nil, 1)
        local into = random_buffer(kind, 3 * short)
        local old = pairs_of(into)
        blas:gemv { a = a, x = x, incx = 2, y = into, incy = 3, transa = transa, alpha = 2, beta = -1 }
        check_product(kind, into, matrix(va, n, transa), column, short, 1, long, 2, -1, old, 3)
        assert.are.same(old[2], pair(into:read(2, 2)[1]))
      end
      for _, conj in ipairs { false, true } do
        local x, y = random_buffer(kind, m), random_buffer(kind, n)
        local to = random_buffer(kind, { m, n })
        local old = pairs_of(to)
        blas:ger { x = x, y = y, a = to, alpha = 3, conj = conj }
        check_product(kind, to, matrix(pairs_of(x), 1), matrix(pairs_of(y), 1, conj and "c" or true), m, n, 1, 3, 1,
          old)
      end
    end)

    it("adds, transposes, and multiplies with itself: " .. kind, function()
      local a, b = random_buffer(kind, { 5, 9 }), random_buffer(kind, { 9, 5 })
      local va, vb = pairs_of(a), pairs_of(b)
      local c = blas:geam { a = a, b = b, transb = "c", alpha = 2, beta = -3 }
      local turned, as_it_is = blas:geam { a = a, transa = true }, blas:geam { a = a, b = a, beta = 1 }
      local vc, vt, vd = pairs_of(c), pairs_of(turned), pairs_of(as_it_is)
      for i = 0, 4 do
        for j = 0, 8 do
          local x, y = va[i * 9 + j + 1], vb[j * 5 + i + 1]
          near({ 2 * x[1] - 3 * y[1], 2 * x[2] + 3 * y[2] }, vc[i * 9 + j + 1],
            4 * stored[kind] * (2 * size(x) + 3 * size(y)))
          assert.are.same(x, vt[j * 5 + i + 1])
          assert.are.same({ 2 * x[1], 2 * x[2] }, vd[i * 9 + j + 1])
        end
      end
      blas:geam { a = a, c = a, alpha = 4 } -- in its place
      assert.are.same({ 4 * va[7][1], 4 * va[7][2] }, pair(a:read(7, 7)[1]))
      for _, uplo in ipairs { "lower", "upper" } do
        for _, transa in ipairs { false, true } do
          local s = random_buffer(kind, transa and { 4, 7 } or { 7, 4 })
          local to = random_buffer(kind, { 7, 7 })
          local old = pairs_of(to)
          local whole = dev:buffer(kind, { 7, 7 })
          whole:copy(to)
          blas:syrk { a = s, c = to, uplo = uplo, transa = transa, alpha = 2, beta = 0.5 }
          blas:gemm { a = s, b = s, c = whole, transa = transa, transb = not transa, alpha = 2, beta = 0.5 }
          local got, want = pairs_of(to), pairs_of(whole)
          for i = 0, 6 do
            for j = 0, 6 do
              local at = i * 7 + j + 1
              local is_inside = uplo == "lower" and j <= i or uplo == "upper" and j >= i
              near(is_inside and want[at] or old[at], got[at], is_inside and 100 * stored[kind] or 0, uplo, i, j)
            end
          end
        end
      end
    end)

    it("solves triangles of " .. kind, function()
      for _, side in ipairs { "left", "right" } do
        for _, uplo in ipairs { "lower", "upper" } do
          for _, transa in ipairs { false, true, "c" } do
            for _, unit in ipairs { false, true } do
              local m, n = 6, 4
              local order = side == "left" and m or n
              local a = random_buffer(kind, { order, order })
              local values = a:read()
              for i = 0, order - 1 do
                values[i * order + i + 1] = is_complex(kind) and { 3, 1 } or 3
              end
              a:write(values)
              local b = random_buffer(kind, { m, n })
              local old = pairs_of(b)
              blas:trsm { a = a, b = b, side = side, uplo = uplo, transa = transa, unit = unit, alpha = 2 }
              -- The triangle alone, with which the solution has to give 2 b again.
              local triangle = pairs_of(a)
              for i = 0, order - 1 do
                for j = 0, order - 1 do
                  local at = i * order + j + 1
                  if uplo == "lower" and j > i or uplo == "upper" and j < i then
                    triangle[at] = { 0, 0 }
                  elseif i == j and unit then
                    triangle[at] = { 1, 0 }
                  end
                end
              end
              local op, x = matrix(triangle, order, transa), matrix(pairs_of(b), n)
              for i = 0, m - 1 do
                for j = 0, n - 1 do
                  local sum, sizes = { 0, 0 }, 0
                  for l = 0, order - 1 do
                    local p, q = side == "left" and op(i, l) or x(i, l), side == "left" and x(l, j) or op(l, j)
                    sum, sizes = plus(sum, times(p, q)), sizes + size(p) * size(q)
                  end
                  near(times({ 2, 0 }, old[i * n + j + 1]), sum, 40 * stored[kind] * (sizes + 1), side, uplo, i, j)
                end
              end
            end
          end
        end
      end
    end)

    it("does what is done with vectors of " .. kind, function()
      local n = 57
      local x, y = random_buffer(kind, n), random_buffer(kind, 2 * n)
      local vx, vy = pairs_of(x), pairs_of(y)
      local bound = 4 * stored[kind]
      local alpha = is_complex(kind) and { 0.5, 2 } or 0.5
      blas:axpy { x = x, y = y, incy = 2, n = n, alpha = alpha }
      local got = pairs_of(y)
      for i = 1, n do
        local want = plus(vy[2 * i - 1], times(pair(alpha), vx[i]))
        near(want, got[2 * i - 1], bound * 4, "axpy", i)
        assert.are.same(vy[2 * i], got[2 * i])
      end
      blas:copy { x = x, y = y, incy = 2 }
      assert.are.same(vx[n], pairs_of(y)[2 * n - 1])
      y:write(y:read()) -- has x at odd places
      local z = random_buffer(kind, n)
      local vz = pairs_of(z)
      blas:swap { x = x, y = z }
      assert.are.same({ vz, vx }, { pairs_of(x), pairs_of(z) })
      blas:rot { x = x, y = z, c = 0.6, s = 0.8 }
      local rx, rz = pairs_of(x), pairs_of(z)
      for i = 1, n do
        near(plus(times({ 0.6, 0 }, vz[i]), times({ 0.8, 0 }, vx[i])), rx[i], bound * 2, "rot", i)
        near(plus(times({ 0.6, 0 }, vx[i]), times({ -0.8, 0 }, vz[i])), rz[i], bound * 2, "rot", i)
      end
      blas:scal { x = x, alpha = alpha }
      near(times(pair(alpha), rx[n]), x:read(n, n)[1], bound * 3, "scal")
    end)

    it("brings vectors of " .. kind .. " to one number, on the device", function()
      local n = 211
      local x, y = random_buffer(kind, 2 * n), random_buffer(kind, n)
      local vx, vy = pairs_of(x), pairs_of(y)
      for _, conj in ipairs { false, true } do
        local want, sizes = { 0, 0 }, 0
        for i = 1, n do
          local a = vx[2 * i - 1]
          want = plus(want, times(conj and is_complex(kind) and { a[1], -a[2] } or a, vy[i]))
          sizes = sizes + size(a) * size(vy[i])
        end
        local dot, op = blas:dot { x = x, y = y, incx = 2, conj = conj }
        assert.are.same({ "scalar", "op", kind }, { gpu.type(dot), gpu.type(op), dot.type })
        near(want, dot:get(), n * stored[kind] * sizes, "dot", tostring(conj))
      end
      local squares, sum, largest, at = 0, 0, -1, 0
      for i = 1, n do
        local a = vx[2 * i - 1]
        squares, sum = squares + a[1] ^ 2 + a[2] ^ 2, sum + size(a)
        if size(a) > largest then
          largest, at = size(a), i
        end
      end
      near({ squares ^ 0.5, 0 }, blas:nrm2 { x = x, incx = 2 }:get(), n * stored[kind] * squares, "nrm2")
      local out = dev:buffer(kind:find "6?4" and not kind:find "c64" and "f64" or kind == "c128" and "f64" or "f32", 1)
      assert.equal("op", gpu.type(blas:asum { x = x, incx = 2, out = out }))
      near({ sum, 0 }, out:read()[1], n * stored[kind] * sum, "asum")
      local index = blas:iamax { x = x, incx = 2 }
      assert.are.same({ "i64", at }, { index.type, index:get() })
    end)
  end

  it("is an op like any other: ordered, awaited, labelled", function()
    local ones = dev:buffer("f32", { 64, 64 }):fill(1)
    local streams, last = { dev:stream {}, dev:stream {} }, ones
    for i = 1, 20 do -- each needs the one before, on the other stream
      local op
      last, op = blas:gemm { a = ones, b = last, alpha = 1 / 64, stream = streams[i % 2 + 1], label = "power" }
      assert.equal("power", op.label)
    end
    assert.are.same({ 1, 1 }, last:read(1, 2))
    local op = blas:scal { x = last, alpha = 2 }
    assert.equal("scal", op.label)
    assert.equal("gemm", blas:gemm { a = ones, b = ones, c = last, beta = 1 }.label)
    blas:gemm { a = ones, b = ones, c = last, alpha = 1 / 64 }
    op = blas:scal { x = last, alpha = 2 }
    op:await()
    assert.is_true(op:done())
    assert.equal(2, last:read(5, 5)[1])
    streams[1]:close()
    streams[2]:close()
  end)

  -- Behind some calls a GPU launches what the library did then, without the library.
  it("does the same again and again with what is there then", function()
    local n <const>, rounds <const> = 8, 40
    local a, b, c = dev:buffer("f32", { n, n }), dev:buffer("f32", { n, n }):fill(2), dev:buffer("f32", { n, n })
    local x, y, one = dev:buffer("f32", n), dev:buffer("f32", n), dev:buffer("f32", { 1, 1 })
    local right = dev:buffer("f32", { 1, 1 })
    local bias, sum, index = dev:buffer("f32", n), dev:buffer("f32", 1), dev:buffer("i64", 1)
    local function given(value)
      a:fill(value); x:fill(value); y:fill(1); c:fill(1); bias:fill(value); one:fill(value)
      right:fill(1)
    end
    local calls = {
      gemm = { { a = a, b = b, c = c }, c, function(i) return n * i * 2 end },
      gemm_add = { { "gemm", a = a, b = b, c = c, beta = 3 }, c, function(i) return n * i * 2 + 3 end },
      gemm_bias = { { "gemm", a = a, b = b, c = c, bias = bias, epilogue = "relu" }, c,
        function(i) return n * i * 2 + i end },
      gemv = { { a = a, x = x, y = y }, y, function(i) return n * i * i end },
      ger = { { a = a, x = x, y = y }, a, function(i) return i + i end },
      geam = { { a = a, b = b, c = c, beta = 1 }, c, function(i) return i + 2 end },
      syrk = { { a = a, c = c }, c, function(i) return n * i * i end },
      trsm = { { a = one, b = right, alpha = 6 }, right, function(i) return 6 / i end },
      axpy = { { x = x, y = y, alpha = 2 }, y, function(i) return 1 + 2 * i end },
      scal = { { x = x, alpha = 3 }, x, function(i) return 3 * i end },
      copy = { { x = x, y = y }, y, function(i) return i end },
      swap = { { x = x, y = y }, x, function() return 1 end },
      rot = { { x = x, y = y, c = 0, s = 1 }, y, function(i) return -i end },
      dot = { { x = x, y = y, out = sum }, sum, function(i) return n * i end },
      nrm2 = { { x = y, out = sum }, sum, function() return math.sqrt(n) end },
      asum = { { x = x, out = sum }, sum, function(i) return n * i end },
      iamax = { { x = x, out = index }, index, function(i) return (i - 1) % n + 1 end },
    }
    for name, call in pairs(calls) do
      local what, out, wanted = call[1], call[2], call[3]
      local f = blas[table.remove(what, 1) or name]
      for i = 1, rounds do
        given(i)
        if name == "iamax" then
          x:write({ 1000 }, (i - 1) % n + 1)
        end
        f(blas, what)
        local found = out:read()
        for _, value in ipairs { found[1], found[#found] } do
          local is_right = math.abs(value - wanted(i)) <= 1e-6 * math.abs(wanted(i))
          assert.is_true(is_right, ("%s, %d: %s"):format(name, i, value))
        end
      end
    end
  end)

  it("takes more than 2^31 bytes, and more than 2^31 elements", function()
    if dev.kind ~= "cuda" or dev.memory_bytes < 40 << 30 then
      pending "wants a GPU with memory"
    end
    local own = support.open()
    local handle <close> = own:blas()
    local m <const>, k <const> = (1 << 20) + 3, 600
    local a <close> = own:buffer("f32", { m, k }):fill(1)
    local b <close> = own:buffer("f32", { k, 8 }):fill(2)
    local c = handle:gemm { a = a, b = b }
    assert.are.same({ 1200, 1200 }, c:read(#c - 1, #c))
    a:slice((m - 1) * k + 1, m * k):fill(3)
    local y = handle:gemv { a = a, x = b:slice(1, k) }
    assert.are.same({ 1200, 3600 }, y:read(m - 1, m))
    local product = handle:gemm { a = c, b = a, transa = true }:read(1, 1)[1] -- c is older than the last row of a
    assert.near(1200 * (m + 2), product, 1e-4 * product)
    a:close()
    local n <const> = (1 << 31) + 5
    local x <close> = own:buffer("f32", n):fill(1)
    x:slice(n, n):fill(-3)
    assert.equal(n, handle:iamax { x = x }:get())
    handle:scal { x = x, alpha = 2 }
    assert.are.same({ 2, -6 }, x:read(n - 1, n))
    local z <close> = own:buffer("f32", n):fill(1)
    handle:axpy { x = x, y = z, alpha = 10 }
    assert.are.same({ 21, -59 }, z:read(n - 1, n))
    own:close()
  end)

  it("runs from tasks at once, on their own streams", function()
    local sums = gpu.run(function()
      local tasks = {}
      for t = 1, 8 do
        tasks[t] = gpu.spawn(function()
          local a, b = dev:buffer("f64", { 30, 30 }):fill(t), dev:buffer("f64", { 30, 30 }):fill(1)
          for _ = 1, 5 do
            b = blas:gemm { a = a, b = b, alpha = 1 / 30 }
          end
          return blas:asum { x = b }:get()
        end)
      end
      return { gpu.all(tasks) }
    end)
    assert.equal(8, #sums)
    for t, sum in ipairs(sums) do
      near({ 900 * t ^ 5, 0 }, sum, 1e-9 * 900 * t ^ 5, "task", t)
    end
  end)

  describe("in graphs", function()
    it("is a node with its own edges and its own workspace", function()
      local x = random_buffer("f32", { 32, 32 })
      local left, right = dev:buffer("f32", { 32, 32 }), dev:buffer("f32", { 32, 32 })
      local sum = dev:buffer("f32", { 32, 32 })
      local norm = dev:scalar("f32", 0)
      local function program()
        blas:gemm { a = x, b = x, c = left }
        blas:gemm { a = x, b = x, c = right, transa = true }
        blas:geam { a = left, b = right, c = sum }
        blas:nrm2 { x = sum, out = norm }
      end
      program()
      local want, want_norm = sum:read(), norm:get()
      sum:fill(0)
      local graph <close> = dev:capture(program)
      local nodes, edges = graph:nodes()
      assert.are.same({ 4, 3 }, { nodes, edges }) -- the products need not wait for each other
      for _ = 1, 3 do
        graph:launch()
      end
      assert.are.same({ want, want_norm }, { sum:read(), norm:get() })
      x:fill(1)
      graph:launch()
      assert.are.same({ 64, 64 }, sum:read(1, 2))
    end)

    it("is bound and updated by making the graph anew", function()
      local a, b = dev:buffer("f32", { 4, 4 }, { label = "a" }):fill(1), dev:buffer("f32", { 4, 4 }):fill(2)
      local c, other = dev:buffer("f32", { 4, 4 }), dev:buffer("f32", { 4, 4 }):fill(10)
      local alpha = 1
      local function program() blas:gemm { a = a, b = b, c = c, alpha = alpha } end
      local graph <close> = dev:capture(program)
      graph:launch()
      assert.equal(8, c:read(1, 1)[1])
      graph:bind { a = other }
      graph:launch()
      assert.equal(80, c:read(1, 1)[1])
      alpha = 0.5
      a = other
      local is_patched, why = graph:update(program)
      assert.is_false(is_patched)
      assert.truthy(why:find("is a library call with other arguments", 1, true), why)
      graph:launch()
      assert.equal(40, c:read(1, 1)[1])
      support.raises("TopologyChanged", "is a library call with other arguments", function()
        alpha = 2
        graph:update({ rebuild = false }, program)
      end)
      graph:launch()
      assert.equal(40, c:read(1, 1)[1])
    end)

    it("has complex factors, which are bound as they are given: a pair, or a number", function()
      local x, y = dev:buffer("c64", 2):fill({ 1, 2 }), dev:buffer("f64", 1):fill(3)
      local graph <close> = dev:capture(function()
        blas:scal { x = x, alpha = { 0, 1 } }
        blas:scal { x = y, alpha = 1, label = "real" }
      end)
      local function gives(re, im)
        x:fill { 1, 2 }
        graph:launch()
        assert.are.same({ { re, im }, { re, im } }, x:read())
      end
      gives(-2, 1)
      graph:bind { ["scal#1.alpha"] = { 2, 0.5 } }
      gives(1, 4.5)
      graph:bind { ["scal#1.alpha"] = 3, ["real.alpha"] = 2 }
      gives(3, 6)
      assert.are.same({ 6 }, y:read()) -- twice as it was, once doubled
      for _, value in ipairs { { 1 }, { 1, "x" }, "1", {} } do
        support.raises("InvalidArgument", "'scal#1.alpha' of bind", graph.bind, graph, { ["scal#1.alpha"] = value })
      end
      support.raises("InvalidArgument", { "'real.alpha' of bind", "not a number" }, graph.bind, graph,
        { ["real.alpha"] = { 1, 2 } })
      support.raises("InvalidArgument", { "it has", "'scal#1.alpha', 'real#1.x', 'real#1.alpha'" }, graph.bind, graph,
        { ["scal#1.alpha_im"] = 1 })
      gives(3, 6)
    end)

    it("has places by the names of its arguments, and none that would reach other memory", function()
      local a, b = dev:buffer("f32", { 2, 3 }):fill(1), dev:buffer("f32", { 3, 4 }):fill(2)
      local c, sum = dev:buffer("f32", { 2, 4 }), dev:buffer("f32", { 2, 4 })
      local graph <close> = dev:capture(function()
        blas:gemm { a = a, b = b, c = c }
        blas:geam { a = c, c = sum }
      end)
      graph:launch()
      assert.equal(6, sum:read(1, 1)[1])
      graph:bind { ["gemm#1.a"] = dev:buffer("f32", { 2, 3 }):fill(10), ["gemm.alpha"] = 0.5 }
      graph:launch()
      assert.equal(30, sum:read(1, 1)[1])
      for _, name in ipairs { "geam.beta", "gemm.beta", "gemm.alpha_im" } do -- what they have not got
        support.raises("InvalidArgument", "the graph has no '" .. name, graph.bind, graph, { [name] = 5 })
      end
      local four = dev:buffer("f32", 4)
      for name, value in pairs { m = 1000000, ["6"] = 1000000, batch = 2, bias = four, workspace = four, ["4"] = four,
        type = 3 } do
        support.raises("InvalidArgument", ("the graph has no 'gemm#1.%s'"):format(name), graph.bind, graph,
          { ["gemm#1." .. name] = value })
      end
      support.raises("InvalidArgument", "24 bytes in the place of 48", graph.bind, graph,
        { ["gemm#1.b"] = dev:buffer("f32", { 2, 3 }) })
      support.raises("InvalidArgument", "a buffer of f64 in the place of one of f32", graph.bind, graph,
        { ["gemm#1.c"] = dev:buffer("f64", 4) })
    end)

    it("is followed by graphed functions", function()
      local a = dev:buffer("f32", { 8, 8 }):fill(1)
      local fast <close> = dev:graphed(function(alpha)
        local product = blas:gemm { a = a, b = a, alpha = alpha }
        return blas:gemm { a = product, b = a }
      end)
      for _, alpha in ipairs { 1, 1, 1, 2, 2, 1 } do
        local _, result = fast(alpha)
        assert.equal(64 * alpha, result:read(1, 1)[1])
      end
      local _, counts = fast:explain()
      assert.is_true(dev.check and true or counts.replays >= 1) -- (in check mode f runs each time)
    end)
  end)

  it("says what does not fit", function()
    local a, b = dev:buffer("f32", { 3, 4 }), dev:buffer("f32", { 4, 5 })
    local c, flat, wide = dev:buffer("f32", { 3, 5 }), dev:buffer("f32", 100), dev:buffer("f64", { 4, 5 })
    local x, y = dev:buffer("f32", 4), dev:buffer("f32", 3)
    local i = dev:buffer("i32", { 3, 4 })
    local other <close> = support.open()
    local foreign = other:buffer("f32", { 4, 5 })
    for _, case in ipairs {
      { "gemm", "InvalidArgument", "gemm: a table expected, got nil" },
      { "gemm", "InvalidArgument", "gemm: a table expected, got buffer", a },
      { "gemm", "InvalidArgument", "gemm: it has no option 'A'", { A = a, b = b } },
      { "gemm", "InvalidArgument", "gemm: b: a buffer expected, got nil", { a = a } },
      { "gemm", "InvalidArgument", "gemm: a: a buffer expected, got number", { a = 1, b = b } },
      { "gemm", "InvalidArgument", "gemm: b is 3 x 4, and would have to be 4 x 4", { a = a, b = a } },
      { "gemm", "InvalidArgument", "gemm: b is f64, f32 expected", { a = a, b = wide } },
      { "gemm", "Unsupported", "gemm: a is i32; it takes f16, bf16, f32, f64, c64, c128", { a = i, b = b } },
      { "gemm", "InvalidArgument", "gemm: c is 3 x 4, and would have to be 3 x 5",
        { a = a, b = b, c = dev:buffer("f32", { 3, 4 }) } },
      { "gemm", "InvalidArgument", "gemm: c and a share memory",
        { a = a, b = b, c = a:slice(1, 12), m = 3, n = 4, k = 4, ldb = 5 } },
      { "gemm", "InvalidArgument", "gemm: nothing says what m is", { a = flat, b = b } },
      { "gemm", "InvalidArgument", "gemm: ldb is 4, less than the 5 columns of b", { a = a, b = b, ldb = 4 } },
      { "gemm", "OutOfBounds", "gemm: a has 100 elements, the call reaches to 204",
        { a = flat, b = b, m = 3, k = 4, lda = 100 } },
      -- Beyond what an integer holds.
      { "gemm", "OutOfBounds", "gemm: a has 100 elements, the call reaches to 9223372036854775807",
        { a = flat, b = b, m = 3, k = 4, lda = 1 << 62 } },
      { "gemm", "OutOfBounds", "gemm: a has 100 elements, the call reaches to 9223372036854775807",
        { a = flat, b = b, m = math.maxinteger, k = 4, lda = math.maxinteger } },
      { "gemm", "OutOfBounds", "gemm: a has 100 elements, the call reaches to 9223372036854775807",
        { a = flat, b = b, m = 3, k = 4, batch = 3, stride_a = 1 << 62 } },
      { "gemm", "OutOfBounds", "gemm: a has 100 elements, the call reaches to 9223372036854775807",
        { a = flat, b = flat, c = c, m = 2, n = 2, k = 2, batch = (1 << 62) + 1, stride_a = 4, stride_b = 4 } },
      { "gemm", "OutOfBounds", "gemm: c has 15 elements, the call reaches to 9223372036854775807",
        { a = a, b = b, c = c, batch = 3, stride_c = 1 << 62 } },
      { "scal", "OutOfBounds", "scal: x has 4 elements, the call reaches to 9223372036854775807",
        { x = x, alpha = 2, n = 3, incx = 1 << 62 } },
      { "scal", "OutOfBounds", "scal: x has 4 elements, the call reaches to 9223372036854775807",
        { x = x, alpha = 2, n = 5, incx = (1 << 62) + 1 } },
      { "axpy", "InvalidArgument", "axpy: x has 1 elements, y 3", { x = x, y = y, incx = math.maxinteger } },
      { "gemm", "InvalidArgument", "gemm: a new buffer for what comes out would have no elements: 0 x 5",
        { a = flat, b = b, m = 0, k = 4 } },
      { "gemm", "InvalidArgument", "stream of launch: a stream expected, got number", { a = a, b = b, stream = 1 } },
      { "gemm", "InvalidArgument", "kernel 'gemm' is", { a = a, b = b, stream = other:stream() } },
      { "gemm", "InvalidArgument", "gemm: a: a buffer expected, got host buffer", { a = dev:host("f32", 12), b = b } },
      { "gemm", "InvalidArgument", "gemm: transa: true, false, 'n', 't' or 'c' expected, got x",
        { a = a, b = b, transa = "x" } },
      { "gemm", "InvalidArgument", "gemm: alpha: a number expected, got table", { a = a, b = b, alpha = { 1, 2 } } },
      { "gemm", "InvalidArgument", "gemm: alpha: a number expected, got string", { a = a, b = b, alpha = "2" } },
      { "gemm", "InvalidArgument", "gemm: beta is given, but no c", { a = a, b = b, beta = 1 } },
      { "gemm", "InvalidArgument", "gemm: ldc is given, but no c", { a = a, b = b, ldc = 5 } },
      { "gemm", "InvalidArgument", "gemm: stride_c is given, but no c", { a = a, b = b, stride_c = 15 } },
      { "gemv", "InvalidArgument", "gemv: incy is given, but no y", { a = a, x = x, incy = 1 } },
      { "geam", "InvalidArgument", "geam: ldc is given, but no c", { a = a, ldc = 4 } },
      { "syrk", "InvalidArgument", "syrk: ldc is given, but no c", { a = a, ldc = 3 } },
      { "gemm", "InvalidArgument", "gemm: bias has 3 elements, 5 expected", { a = a, b = b, bias = y } },
      { "gemm", "InvalidArgument", "gemm: epilogue: 'gelu' or 'relu' expected, got tanh",
        { a = a, b = b, epilogue = "tanh" } },
      { "gemm", "InvalidArgument", "gemm: m: a whole number from 0 on expected, got -1", { a = a, b = b, m = -1 } },
      { "gemm", "InvalidArgument", "gemm: tf32: true or false expected, got 1", { a = a, b = b, tf32 = 1 } },
      { "gemm", "InvalidArgument", "gemm: the matrices of c overlap: stride_c is 3",
        { a = flat, b = flat, c = dev:buffer("f32", 90),
        m = 3, n = 2, k = 4, batch = 3, stride_c = 3 } },
      { "gemm", "InvalidArgument", "gemm: b is 2 matrices, 3 are needed", { a = dev:buffer("f32", { 3, 2, 2 }),
        b = dev:buffer("f32", { 2, 2, 2 }) } },
      { "gemm", "InvalidArgument", "gemm: a has 4 dimensions, 3 are the most",
        { a = dev:buffer("f32", { 1, 1, 2, 2 }), b = b } },
      { "gemm", "InvalidArgument", "b is on", { a = a, b = foreign } },
      { "gemv", "OutOfBounds", "gemv: x has 3 elements, the call reaches to 4", { a = a, x = y } },
      { "gemv", "InvalidArgument", "gemv: y and x share memory", { a = a, x = flat, y = flat } },
      { "gemv", "InvalidArgument", "gemv: incx: a whole number from 1 on expected, got 0", { a = a, x = x, incx = 0 } },
      { "ger", "InvalidArgument", "ger: a and x share memory", { a = flat, x = flat, y = x, m = 3, n = 4 } },
      { "geam", "InvalidArgument", "geam: c and a share memory, but are not the same",
        { a = c, c = c, transa = true, m = 3, n = 3,
        lda = 5, ldc = 5 } },
      { "syrk", "InvalidArgument", "syrk: uplo: 'lower' or 'upper' expected, got left", { a = a, uplo = "left" } },
      { "trsm", "InvalidArgument", "trsm: a is 3 x 4, and would have to be 3 x 3", { a = a, b = c } },
      { "axpy", "InvalidArgument", "axpy: x and y share memory", { x = x, y = x } },
      { "axpy", "InvalidArgument", "axpy: x has 4 elements, y 3", { x = x, y = y } },
      { "scal", "InvalidArgument", "scal: alpha: a number expected, got nil", { x = x } },
      { "scal", "Unsupported", "scal: x is i32; it takes f32, f64, c64, c128", { x = i, alpha = 1 } },
      { "rot", "InvalidArgument", "rot: s: a number expected, got nil", { x = x, y = dev:buffer("f32", 4), c = 1 } },
      { "dot", "InvalidArgument", "dot: out has 3 elements, one expected", { x = x, y = x, out = y } },
      { "dot", "InvalidArgument", "dot: out is f64, f32 expected", { x = x, y = x, out = dev:scalar("f64", 0) } },
      { "dot", "InvalidArgument", "dot: out and x share memory", { x = x, y = flat:slice(1, 4), out = x:slice(1, 1) } },
      { "iamax", "InvalidArgument", "iamax: out is f32, i64 expected", { x = x, out = dev:scalar("f32", 0) } },
    } do
      local call, code, text, given = table.unpack(case, 1, 4)
      support.raises(code, text, blas[call], blas, given)
    end
    support.raises("InvalidArgument", "gemm is called on: gpulua.blas expected, got table", blas.gemm, { a = a, b = b })
    support.raises("InvalidArgument", "gemm is called on: gpulua.blas expected, got nil", blas.gemm, nil, {})
    support.raises("InvalidArgument", "what close is called on: gpulua.blas expected, got table", blas.close, {})
    support.raises("InvalidArgument", "what close is called on: gpulua.blas expected, got nil", blas.close)
    support.raises("InvalidArgument", "what a method is called on: gpulua.device expected, got nil", dev.blas)
    support.raises("InvalidArgument", "what a method is called on: gpulua.device expected, got table", dev.blas, {})
    local capture <close> = dev:capture() -- what the device has is there
    dev:blas():close()
    capture:close()
    support.raises("InvalidArgument", "blas has no option 'wrkspace'", dev.blas, dev, { wrkspace = 1 })
    support.raises("InvalidArgument", "workspace of blas: a whole number expected", dev.blas, dev, { workspace = "1" })
    support.raises("InvalidArgument", "tf32 of blas: a boolean expected, got string", dev.blas, dev,
      setmetatable({}, { __index = { tf32 = "tf32" } }))
    support.raises("Closed", "", blas.gemm, blas, { a = dev:buffer("f32", { 2, 2 }), b = (function()
      local closed = dev:buffer("f32", { 2, 2 })
      closed:close()
      return closed
    end)() })
  end)

  it("looks at what is given each time", function()
    local a, b = dev:buffer("f32", { 2, 2 }):fill(1), dev:buffer("f32", { 2, 2 }):fill(2)
    local c, other = dev:buffer("f32", { 2, 2 }), dev:buffer("f32", { 3, 2 }):fill(1)
    local given = { a = a, b = b, c = c }
    local function result(changes)
      for name, value in pairs(changes) do
        given[name] = value or nil
      end
      blas:gemm(given)
      return c:read()[2]
    end
    assert.equal(4, result {})
    assert.equal(4, result {})
    assert.equal(8, result { alpha = 2 })
    assert.equal(8, result { alpha = 2 })
    assert.equal(16, result { beta = 1 })
    assert.equal(24, result { beta = 1 })
    assert.equal(4, result { beta = false, alpha = false })
    assert.equal(2, result { b = a })
    assert.equal(2, result { transa = true })
    support.raises("InvalidArgument", "it has no option 'A'", result, { A = 1 })
    given.A = nil
    support.raises("InvalidArgument", "c is 2 x 2, and would have to be 3 x 2", result, { a = other, transa = false })
    given.a = a
    assert.equal(2, result {})
    local mine = dev:blas()
    mine:gemm(given)
    mine:gemm(given)
    mine:close()
    support.raises("Closed", "attempt to use a closed blas", mine.gemm, mine, given)
    a:close()
    support.raises("Closed", "closed buffer", blas.gemm, blas, given)
  end)

  it("takes a table with a metatable for what it answers, and one without for what it has", function()
    local a, b = dev:buffer("f32", { 2, 2 }):fill(1), dev:buffer("f32", { 2, 2 }):fill(2)
    local c = dev:buffer("f32", { 2, 2 })
    local function result(index)
      blas:gemm(index and setmetatable({ a = a, b = b, c = c }, { __index = index, __metatable = false })
        or { a = a, b = b, c = c })
      return c:read()[2]
    end
    for _ = 1, 2 do
      assert.equal(8, result { alpha = 2 })
      assert.equal(4, result())
    end
    assert.equal(5, result { bias = dev:buffer("f32", 2):fill(1) })
    assert.equal(4, result())
  end)

  it("takes sizes of nothing", function()
    local none = dev:buffer("f32", 4):fill(7)
    blas:gemm { a = none, b = none, c = dev:buffer("f32", 4), m = 0, n = 2, k = 2 }
    local c = dev:buffer("f32", { 2, 2 }):fill(3)
    local product = blas:gemm { a = dev:buffer("f32", 8):fill(1), b = dev:buffer("f32", 8):fill(1), c = c, m = 2, n = 2,
      k = 0, beta = 2 }
    assert.equal("op", gpu.type(product))
    assert.are.same({ 6, 6, 6, 6 }, c:read())
    local y = dev:buffer("f32", 3):fill(0 / 0)
    blas:gemv { a = none, x = none, y = y, m = 3, n = 0 }
    assert.are.same({ 0, 0, 0 }, y:read())
    blas:gemv { a = none, x = none, y = y:fill(2), m = 0, n = 3, transa = true, beta = 3 }
    assert.are.same({ 6, 6, 6 }, y:read())
    blas:scal { x = none, n = 0, alpha = 2 }
    assert.are.same({ 7, 7, 7, 7 }, none:read())
    assert.equal(0, blas:dot { x = none, y = none, n = 0 }:get())
    assert.equal(0, blas:iamax { x = none, n = 0 }:get())
  end)

  it("is closed like other handles, and leaves nothing", function()
    local a = dev:buffer("f32", { 16, 16 }):fill(1)
    support.without_leak(dev, function()
      local mine <close> = dev:blas()
      assert.equal(("gpulua.blas on %s"):format(dev.name), tostring(mine))
      local c, op = mine:gemm { a = a, b = a }
      op:await()
      c:close()
      mine:close()
      mine:close()
      assert.truthy(tostring(mine):find("closed", 1, true))
      support.raises("Closed", "attempt to use a closed blas", mine.gemm, mine, { a = a, b = a })
      for _ = 1, 50 do -- errors included
        pcall(blas.gemm, blas, { a = a, b = a, c = a })
        pcall(blas.gemm, blas, { a = a, b = a, ldb = 1 })
      end
      -- Each stream has a workspace; a handle keeps 32 of them, and all are given back in the end, also where work is
      -- under way and nobody closes the handle.
      local small, streams, products = dev:blas { workspace = 65536 }, {}, {}
      for i = 1, 40 do
        streams[i] = dev:stream()
        products[i] = small:gemm { a = a, b = a, stream = streams[i] }
      end
      for i = 1, 40 do
        assert.equal(16, products[i]:read(256, 256)[1])
        products[i]:close()
        streams[i]:close()
      end
    end)
  end)

  it("fails when its process is killed at work, and the script goes on", function()
    if not support.is_isolated() then
      pending "it is this process"
    end
    local victim, pid = support.open_with_pid { restarts = 0 }
    local doomed = victim:blas()
    local n = victim.kind == "cuda" and 8192 or 1500 -- so that it is at work for a while
    local a, product = victim:buffer("f64", { n, n }):fill(1), victim:buffer("f64", { n, n })
    local op
    for _ = 1, 40 do
      op = doomed:gemm { a = a, b = a, c = product }
    end
    os.execute("kill -KILL " .. pid)
    support.raises("DeviceLost", {}, op.await, op)
    support.raises("DeviceLost", {}, product.read, product)
    support.raises("DeviceLost", {}, doomed.gemm, doomed, { a = a, b = a })
    doomed:close()
    victim:close()
    support.works(dev)
  end)

  -- OpenBLAS stops its threads in front of a fork; with a call under way it waited for ever.
  it("goes on while its process forks", function()
    if not support.has_luv() then
      pending "no luv"
      return
    end
    local output, code = support.script([[
      local gpu, uv = require "gpulua", require "luv"
      local dev = gpu.device(os.getenv "GPULUA_DEVICE")
      local blas, ended = dev:blas(), 0
      local a = dev:buffer("f32", { 384, 384 }):fill(1)
      local c = dev:buffer("f32", { 384, 384 })
      for i = 1, 100 do
        for _ = 1, 4 do blas:gemm { a = a, b = a, c = c } end
        local child
        child = assert(uv.spawn("true", { args = {} }, function()
          ended = ended + 1
          child:close()
        end))
      end
      uv.run()
      print(ended, c:read(1, 1)[1])]], "timeout -s KILL 60 env")
    assert.equal(0, code, output)
    assert.equal("100\t384.0", output:match "^[^\n]*") -- behind it a busy GPU's end may be waited for, which is said
  end)

  it("is not loaded inside a capture", function()
    local fresh <close> = support.open()
    local capture <close> = fresh:capture()
    support.raises("CaptureActive", "loading a library", fresh.blas, fresh)
    assert.truthy(capture)
  end)

  it("says which package has the library where it is missing", function()
    local output, code = support.script([[
      local dev = require "gpulua".device(os.getenv "GPULUA_DEVICE")
      local ok, err = pcall(dev.blas, dev)
      print(ok, err.code, err.message)
      print(dev:buffer("i32", 2):fill(3):read()[2])]],
      "GPULUA_LIBOPENBLAS=/nowhere/blas.so GPULUA_LIBCUBLAS=/nowhere/blas.so")
    assert.equal(0, code, output)
    assert.truthy(output:find("false\tLibraryUnavailable\t.*/nowhere/blas.so"), output)
    assert.truthy(output:find(dev.kind == "cpu" and "libopenblas0" or "CUDA toolkit", 1, true), output)
    assert.truthy(output:find("\n3\n", 1, true), output) -- the device goes on
  end)
end)
