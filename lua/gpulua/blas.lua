-- Linear algebra: device:blas(). cuBLAS on GPUs, OpenBLAS on the CPU device; each call is an op like a launch.
--
-- Matrices are stored row by row. A buffer of two dimensions is a matrix; of three, so many of them (batch, rows,
-- columns). A matrix may also lie in a longer or flat buffer: then its sizes (m, n, k) are given, and the leading
-- dimension (lda and so on: elements from one row to the next), counted from the buffer's first element. Vectors are
-- buffers of any shape, with incx, incy from one element to the next. Indices count from 1.
--
-- Element types are f32, f64, c64, c128, and for gemm f16 and bf16, which are multiplied and summed as f32 and rounded
-- once. f32 is computed as f32: tf32 = true alone lets products be rounded to 10 bits.

local core = require "gpulua.core"
local arguments = require "gpulua.arguments"
local sealed = require "gpulua.sealed"
local workspace = require "gpulua.workspace"
local once <const> = require "gpulua.once"
local dims, overlap = core.dims, core.overlap
local fail, whole, flag, choice = arguments.fail, arguments.whole, arguments.flag, arguments.choice
local reach = arguments.reach

local blas = {}
blas.__index = blas
blas.__name = "gpulua.blas"

local codes <const> = { f16 = 0, bf16 = 1, f32 = 2, f64 = 3, c64 = 4, c128 = 5 }
local wide <const> = { f32 = true, f64 = true, c64 = true, c128 = true }
local real_of <const> = { f32 = "f32", f64 = "f64", c64 = "f32", c128 = "f64" }
local epilogues <const> = { relu = 1, gelu = 2 }

-- ---- what is given ----

local function check_options(self, call, given, options)
  arguments.check_self(call, self, blas, "gpulua.blas")
  if not self.module then
    core.raise("Closed", "attempt to use a closed blas")
  end
  arguments.check(call, given, options)
end

local transposes <const> = { [false] = 0, [true] = 1, n = 0, t = 1, c = 2 }

local function transpose(call, given, name)
  local value = given[name]
  local code = value == nil and 0 or transposes[value]
  return code or fail(call, "%s: true, false, 'n', 't' or 'c' expected, got %s", name, tostring(value))
end

-- alpha and beta: its real and imaginary part.
local function factor(call, given, name, default, kind)
  local value = given[name]
  if value == nil then
    return default, 0
  elseif type(value) == "number" then
    return value, 0
  elseif type(value) == "table" and string.sub(kind, 1, 1) == "c" and type(value[1]) == "number"
    and type(value[2]) == "number" then
    return value[1], value[2]
  end
  fail(call, "%s: a number%s expected, got %s", name, string.sub(kind, 1, 1) == "c" and " or a pair of numbers" or "",
    core.type(value) or type(value))
end

local function check_buffer(self, call, name, value, kind, types)
  if kind == nil then
    arguments.fail_buffer(call, name .. ": a buffer", value)
  elseif not types[kind] then
    core.raise("Unsupported", string.format("%s: %s is %s; it takes %s", call, name, kind,
      types == wide and "f32, f64, c64, c128" or "f16, bf16, f32, f64, c64, c128"))
  elseif value.device ~= self.device then
    fail(call, "%s is on %s, the blas on %s", name, value.device.name, self.device.name)
  end
end

local function of_type(call, name, kind, wanted)
  if kind ~= wanted then
    fail(call, "%s is %s, %s expected", name, kind, wanted)
  end
end

-- { type=, count=, batch=, rows=, columns= }; the last three nil for flat buffers.
local function matrix(self, call, given, name, types)
  local value = given[name]
  local kind, count, d1, d2, d3, d4 = dims(value)
  check_buffer(self, call, name, value, kind, types)
  if d4 then
    fail(call, "%s has %d dimensions, 3 are the most", name, #value.shape)
  elseif d3 then
    return { name = name, value = value, type = kind, count = count, batch = d1, rows = d2, columns = d3 }
  elseif d2 then
    return { name = name, value = value, type = kind, count = count, rows = d1, columns = d2 }
  end
  return { name = name, value = value, type = kind, count = count }
end

local function size(call, name, value)
  return value or fail(call, "nothing says what %s is: give it, or a buffer of two dimensions", name)
end

local function check_reach(call, name, count, span)
  if span > count then
    core.raise("OutOfBounds", string.format("%s: %s has %d elements, the call reaches to %d", call, name, count, span),
      nil, 0, span, count)
  end
end

-- Fits `of` to the sizes that it is to have as it is stored; sets ld, and with `batch` stride.
local function place(call, given, of, rows, columns, batch)
  local ld = whole(call, given, "ld" .. of.name, 1)
  if of.rows and not ld and (of.rows ~= rows or of.columns ~= columns) then
    fail(call, "%s is %d x %d, and would have to be %d x %d", of.name, of.rows, of.columns, rows, columns)
  elseif ld and ld < columns then
    fail(call, "ld%s is %d, less than the %d columns of %s", of.name, ld, columns, of.name)
  end
  of.ld = ld or columns > 0 and columns or 1
  local span = rows > 0 and columns > 0 and reach(rows, of.ld, columns) or 0
  if batch then
    local stride = whole(call, given, "stride_" .. of.name, 0)
    if of.batch and of.batch ~= batch and not stride then
      fail(call, "%s is %d matrices, %d are needed", of.name, of.batch, batch)
    end
    of.stride = stride or of.batch and of.rows * of.columns or of.rows and 0 or reach(rows + 1, of.ld, 0)
    -- One behind the other, or side by side in the same rows.
    of.is_distinct = batch < 2 or of.stride >= span
      or of.stride >= columns and reach(batch, of.stride, columns) <= of.ld
    span = span > 0 and batch > 0 and reach(batch, of.stride, span) or 0
  end
  check_reach(call, of.name, of.count, span)
end

-- A buffer for what comes out.
local function new(self, call, kind, shape)
  for _, dimension in ipairs(shape) do
    if dimension == 0 then
      fail(call, "a new buffer for what comes out would have no elements: %s", table.concat(shape, " x "))
    end
  end
  return self.device:buffer(kind, shape)
end

local function apart(call, name, value, other_name, other)
  if other and overlap(value, other) then
    fail(call, "%s and %s share memory", name, other_name)
  end
end

-- What says how a result lies that is not given is meant for one that is.
local function check_absent(call, given, name, ...)
  for _, option in ipairs { ... } do
    if given[option] ~= nil then
      fail(call, "%s is given, but no %s", option, name)
    end
  end
end

-- ---- launching ----

local plain <const> = setmetatable({}, {
  __index = function(known, name)
    known[name] = { grid = 1, block = 1, label = name }
    return known[name]
  end,
})

local function space_for(self, given)
  return self.workspaces:take(self.device, given.stream, self.workspace_bytes)
end

local function config_of(given, name)
  return (given.stream ~= nil or given.label ~= nil)
    and { grid = 1, block = 1, stream = given.stream, label = given.label or name } or plain[name]
end

-- `more`: fields beyond the usual ones.
local nothing <const> = {}
local function launch_matrix(self, name, given, a, b, c, m, n, k, lda, ldb, ldc, alpha, alpha_im, beta, beta_im, type,
    transpose_a, more)
  more = more or nothing
  local kernel = (beta ~= 0 or beta_im ~= 0) and self.kernels[name .. "_add"] or self.kernels[name]
  return kernel:launch(config_of(given, name), a, b, c, nil, space_for(self, given), m, n, k, lda, ldb, ldc, 0, 0, 0, 1,
    self.workspace_bytes, alpha, alpha_im, beta, beta_im, codes[type], codes[type], transpose_a, more.transpose_b or 0,
    more.triangle or 0, more.side or 0, more.unit or 0, 0, 0)
end

local function multiply(self, given, name, a, b, c, bias, m, n, k, batch, alpha, alpha_im, beta, beta_im, transpose_a,
    transpose_b, epilogue, may_round)
  local kernel = (beta ~= 0 or beta_im ~= 0) and self.kernels.gemm_add or self.kernels.gemm
  local numbers = { n, m, k, b.ld, a.ld, c.ld, b.stride or 0, a.stride or 0, c.stride or 0, batch, self.workspace_bytes,
    alpha, alpha_im, beta, beta_im, codes[a.type], codes[c.type], transpose_b, transpose_a, 0, 0, 0, epilogue,
    may_round }
  return kernel:launch(config_of(given, name), b.value, a.value, c.value, bias, space_for(self, given),
    table.unpack(numbers)), kernel, numbers
end

-- Products that were asked for before, by c: with the same arguments they are the same. Neither keeps buffers alive.
local weak_values <const> = { __mode = "v" }

local function remember(self, given, kernel, numbers)
  if getmetatable(given) ~= nil then
    return -- its fields are not all that it answers
  end
  local snapshot, count = setmetatable({}, weak_values), 0
  for name, value in next, given do
    if type(value) == "table" then
      return -- which may be changed
    end
    snapshot[name], count = value, count + 1
  end
  self.known[given.c] = { given = snapshot, count = count, kernel = kernel, numbers = numbers }
end

local function is_known(known, given)
  local snapshot, count = known.given, 0
  for name, value in next, given do
    if not rawequal(snapshot[name], value) then
      return false
    end
    count = count + 1
  end
  return count == known.count
end

-- ---- matrices ----

local gemm_options <const> = arguments.options [[a b c alpha beta transa transb m n k lda ldb ldc batch stride_a
  stride_b stride_c bias epilogue tf32]]

--- blas:gemm{ a=, b=, [c=, alpha = 1, beta = 0, transa = false, transb = false,] ... } -> op, or without c: a new
-- buffer, op. c = alpha op(a) op(b) + beta c; op(a) is m x k, op(b) k x n, c m x n. transa, transb: true or "t"
-- transposes, "c" conjugates as well. Sizes come from the shapes, else from m, n, k with lda, ldb, ldc. Buffers of
-- three dimensions, or batch and stride_a, stride_b, stride_c (elements from one matrix to the next), are a matrix
-- after another; a and b of two dimensions are then the same for each. c has a's type, or is f32 where a and b are f16
-- or bf16. bias: n elements of c's type, added to each row; epilogue: "relu" or "gelu" (with tanh) of what comes out;
-- both for f16, bf16 and f32. tf32: see above. c may share no memory with the others. Does not block. InvalidArgument
-- names what does not fit; OutOfBounds, Unsupported (a type), Closed, and those of kernel:launch.
function blas.gemm(self, given)
  local known = getmetatable(self) == blas and self.known and type(given) == "table" and getmetatable(given) == nil
    and self.known[given.c]
  if known and is_known(known, given) then
    return known.kernel:launch(config_of(given, "gemm"), given.b, given.a, given.c, given.bias, space_for(self, given),
      table.unpack(known.numbers))
  end
  check_options(self, "gemm", given, gemm_options)
  local a, b = matrix(self, "gemm", given, "a", codes), matrix(self, "gemm", given, "b", codes)
  local c = given.c ~= nil and matrix(self, "gemm", given, "c", codes)
  of_type("gemm", "b", b.type, a.type)
  local is_narrow = a.type == "f16" or a.type == "bf16"
  if c and not (is_narrow and c.type == "f32") then
    of_type("gemm", "c", c.type, a.type)
  end
  local transa, transb = transpose("gemm", given, "transa"), transpose("gemm", given, "transb")
  local m = size("gemm", "m", whole("gemm", given, "m", 0) or transa == 0 and a.rows or transa ~= 0 and a.columns
    or c and c.rows)
  local n = size("gemm", "n", whole("gemm", given, "n", 0) or transb == 0 and b.columns or transb ~= 0 and b.rows
    or c and c.columns)
  local k = size("gemm", "k", whole("gemm", given, "k", 0) or transa == 0 and a.columns or transa ~= 0 and a.rows
    or transb == 0 and b.rows or b.columns)
  local batch = whole("gemm", given, "batch", 0) or a.batch or b.batch or c and c.batch or 1
  place("gemm", given, a, transa == 0 and m or k, transa == 0 and k or m, batch)
  place("gemm", given, b, transb == 0 and k or n, transb == 0 and n or k, batch)
  local alpha, alpha_im = factor("gemm", given, "alpha", 1, a.type)
  local beta, beta_im = factor("gemm", given, "beta", 0, a.type)
  local bias, epilogue = given.bias, 0
  if given.epilogue ~= nil then
    epilogue = choice("gemm", given, "epilogue", epilogues)
  end
  local made
  if not c then
    if beta ~= 0 or beta_im ~= 0 then
      fail("gemm", "beta is given, but no c")
    end
    check_absent("gemm", given, "c", "ldc", "stride_c")
    made = new(self, "gemm", a.type,
      (a.batch or b.batch or given.batch) and { batch, m, n } or { m, n })
    c = { name = "c", value = made, type = a.type, count = #made, ld = n > 0 and n or 1, stride = m * n }
  else
    place("gemm", given, c, m, n, batch)
    if not c.is_distinct then
      fail("gemm", "the matrices of c overlap: stride_c is %d", c.stride)
    end
    apart("gemm", "c", c.value, "a", a.value)
    apart("gemm", "c", c.value, "b", b.value)
  end
  if bias ~= nil then
    local kind, count = dims(bias)
    check_buffer(self, "gemm", "bias", bias, kind, codes)
    of_type("gemm", "bias", kind, c.type)
    if count ~= n then
      fail("gemm", "bias has %d elements, %d expected", count, n)
    end
    apart("gemm", "c", c.value, "bias", bias)
  end
  if (bias or epilogue ~= 0) and not is_narrow and a.type ~= "f32" then
    core.raise("Unsupported", string.format("gemm: bias and epilogue are for f16, bf16 and f32, not for %s", a.type))
  end
  local may_round = flag("gemm", given, "tf32")
  may_round = (may_round == nil and self.tf32 or may_round) and 1 or 0
  local op, kernel, numbers = multiply(self, given, "gemm", a, b, c, bias, m, n, k, batch, alpha, alpha_im, beta,
    beta_im, transa, transb, epilogue, may_round)
  if made then
    return made, op
  end
  remember(self, given, kernel, numbers)
  return op
end

-- A vector of n elements: its buffer, the step from one to the next.
local function vector(self, call, given, name, n, wanted)
  local value = given[name]
  local kind, count = dims(value)
  check_buffer(self, call, name, value, kind, wide)
  local step = whole(call, given, "inc" .. name, 1) or 1
  if wanted then
    of_type(call, name, kind, wanted)
  end
  n = n or (count - 1) // step + 1
  check_reach(call, name, count, n > 0 and reach(n, step, 1) or 0)
  return value, step, kind, n
end

local gemv_options <const> = arguments.options "a x y alpha beta transa m n lda incx incy"

--- blas:gemv{ a=, x=, [y=, alpha = 1, beta = 0, transa = false, m=, n=, lda=, incx=, incy=] } -> op, or without y: a
-- new buffer, op. y = alpha op(a) x + beta y, where a is m x n as it is stored. y may share no memory with the others.
-- For the rest see gemm.
function blas.gemv(self, given)
  check_options(self, "gemv", given, gemv_options)
  local a = matrix(self, "gemv", given, "a", wide)
  local transa = transpose("gemv", given, "transa")
  local m = size("gemv", "m", whole("gemv", given, "m", 0) or a.rows)
  local n = size("gemv", "n", whole("gemv", given, "n", 0) or a.columns)
  if a.batch then
    fail("gemv", "a has three dimensions, two expected")
  end
  place("gemv", given, a, m, n)
  local alpha, alpha_im = factor("gemv", given, "alpha", 1, a.type)
  local beta, beta_im = factor("gemv", given, "beta", 0, a.type)
  local long, short = transa == 0 and n or m, transa == 0 and m or n
  local x, incx = vector(self, "gemv", given, "x", long, a.type)
  local made, y, incy
  if given.y == nil then
    if beta ~= 0 or beta_im ~= 0 then
      fail("gemv", "beta is given, but no y")
    end
    check_absent("gemv", given, "y", "incy")
    made = new(self, "gemv", a.type, { short })
    y, incy = made, 1
  else
    y, incy = vector(self, "gemv", given, "y", short, a.type)
    apart("gemv", "y", y, "a", a.value)
    apart("gemv", "y", y, "x", x)
  end
  local op
  -- Of columns, "c" is the conjugate alone; and with nothing to sum gemv leaves y as it is. gemm knows both.
  if transa == 2 and string.sub(a.type, 1, 1) == "c" or long == 0 then
    op = multiply(self, given, "gemv", a, { value = x, ld = incx, type = a.type },
      { value = y, ld = incy, type = a.type }, nil, short, 1, long, 1, alpha, alpha_im, beta, beta_im, transa, 0, 0, 0)
  else
    op = launch_matrix(self, "gemv", given, a.value, x, y, n, m, 0, a.ld, incx, incy, alpha, alpha_im, beta, beta_im,
      a.type, transa == 0 and 1 or 0)
  end
  if made then
    return made, op
  end
  return op
end

local ger_options <const> = arguments.options "x y a alpha conj m n lda incx incy"

--- blas:ger{ x=, y=, a=, [alpha = 1, conj = false, m=, n=, lda=, incx=, incy=] } -> op. a = alpha x y^T + a, where a is
-- m x n; conj: y is conjugated. a may share no memory with the others.
function blas.ger(self, given)
  check_options(self, "ger", given, ger_options)
  local a = matrix(self, "ger", given, "a", wide)
  local m = size("ger", "m", whole("ger", given, "m", 0) or a.rows)
  local n = size("ger", "n", whole("ger", given, "n", 0) or a.columns)
  if a.batch then
    fail("ger", "a has three dimensions, two expected")
  end
  place("ger", given, a, m, n)
  local x, incx = vector(self, "ger", given, "x", m, a.type)
  local y, incy = vector(self, "ger", given, "y", n, a.type)
  apart("ger", "a", a.value, "x", x)
  apart("ger", "a", a.value, "y", y)
  local alpha, alpha_im = factor("ger", given, "alpha", 1, a.type)
  if flag("ger", given, "conj") and string.sub(a.type, 1, 1) == "c" then
    return (multiply(self, given, "ger", { value = x, ld = incx, type = a.type },
      { value = y, ld = incy, type = a.type }, a, nil, m, n, 1, 1, alpha, alpha_im, 1, 0, 0, 2, 0, 0))
  end
  return launch_matrix(self, "ger", given, y, x, a.value, n, m, 0, incy, incx, a.ld, alpha, alpha_im, 0, 0, a.type, 0)
end

local geam_options <const> = arguments.options "a b c alpha beta transa transb m n lda ldb ldc"

--- blas:geam{ a=, [b=, c=, alpha = 1, beta = 1, transa=, transb=, m=, n=, lda=, ldb=, ldc=] } -> op, or without c: a
-- new buffer, op. c = alpha op(a) + beta op(b), without b: alpha op(a); so it adds and transposes. c is m x n. It may
-- be a or b itself where that is not transposed, and share no other memory.
function blas.geam(self, given)
  check_options(self, "geam", given, geam_options)
  local a = matrix(self, "geam", given, "a", wide)
  local b = given.b ~= nil and matrix(self, "geam", given, "b", wide)
  local c = given.c ~= nil and matrix(self, "geam", given, "c", wide)
  local transa, transb = transpose("geam", given, "transa"), transpose("geam", given, "transb")
  local m = size("geam", "m", whole("geam", given, "m", 0) or transa == 0 and a.rows or transa ~= 0 and a.columns)
  local n = size("geam", "n", whole("geam", given, "n", 0) or transa == 0 and a.columns or transa ~= 0 and a.rows)
  place("geam", given, a, transa == 0 and m or n, transa == 0 and n or m)
  if b then
    of_type("geam", "b", b.type, a.type)
    place("geam", given, b, transb == 0 and m or n, transb == 0 and n or m)
  end
  for _, of in ipairs { a, b or nil, c or nil } do
    if of.batch then
      fail("geam", "%s has three dimensions, two expected", of.name)
    end
  end
  local alpha, alpha_im = factor("geam", given, "alpha", 1, a.type)
  local beta, beta_im = factor("geam", given, "beta", b and 1 or 0, a.type)
  if not b and (beta ~= 0 or beta_im ~= 0) then
    fail("geam", "beta is given, but no b")
  end
  local made
  if c then
    of_type("geam", "c", c.type, a.type)
    place("geam", given, c, m, n)
    for of, turned in pairs { [a] = transa, [b or c] = transb } do
      local shared = of ~= c and overlap(of.value, c.value)
      if shared and (shared == "part" or turned ~= 0 or of.ld ~= c.ld) then
        fail("geam", "c and %s share memory, but are not the same", of.name)
      end
    end
  else
    check_absent("geam", given, "c", "ldc")
    made = new(self, "geam", a.type, { m, n })
    c = { value = made, ld = n > 0 and n or 1 }
  end
  -- beta is a factor of b here: what c held before is never read.
  local kernel = b and self.kernels.geam or self.kernels.geam_one
  local op = kernel:launch(config_of(given, "geam"), a.value, b and b.value or nil, c.value, nil, nil, n, m,
    0, a.ld, b and b.ld or c.ld, c.ld, 0, 0, 0, 1, 0, alpha, alpha_im, beta, beta_im, codes[a.type], codes[a.type],
    transa, b and transb or 0, 0, 0, 0, 0, 0)
  if made then
    return made, op
  end
  return op
end

local triangles <const> = { upper = 1, lower = 0 } -- by columns, as the library sees them: the other one
local sides <const> = { left = 1, right = 0 }      -- likewise

local syrk_options <const> = arguments.options "a c alpha beta transa uplo n k lda ldc"

--- blas:syrk{ a=, [c=, alpha = 1, beta = 0, transa = false, uplo = "lower", n=, k=, lda=, ldc=] } -> op, or without c:
-- a new buffer, op. c = alpha a a^T + beta c, or with transa alpha a^T a + beta c; c is n x n, a n x k or k x n. Of c
-- the triangle uplo ("lower" or "upper") is computed, and the rest is left as it is (of a new buffer: undefined). c
-- may share no memory with a.
function blas.syrk(self, given)
  check_options(self, "syrk", given, syrk_options)
  local a = matrix(self, "syrk", given, "a", wide)
  local c = given.c ~= nil and matrix(self, "syrk", given, "c", wide)
  local transa = transpose("syrk", given, "transa")
  if transa == 2 and string.sub(a.type, 1, 1) == "c" then
    core.raise("Unsupported", "syrk: transa = 'c' of complex numbers; gemm does it")
  end
  local n = size("syrk", "n", whole("syrk", given, "n", 0) or transa == 0 and a.rows or transa ~= 0 and a.columns)
  local k = size("syrk", "k", whole("syrk", given, "k", 0) or transa == 0 and a.columns or transa ~= 0 and a.rows)
  place("syrk", given, a, transa == 0 and n or k, transa == 0 and k or n)
  local alpha, alpha_im = factor("syrk", given, "alpha", 1, a.type)
  local beta, beta_im = factor("syrk", given, "beta", 0, a.type)
  local triangle = choice("syrk", given, "uplo", triangles, "lower")
  local made
  if c then
    of_type("syrk", "c", c.type, a.type)
    place("syrk", given, c, n, n)
    apart("syrk", "c", c.value, "a", a.value)
  elseif beta ~= 0 or beta_im ~= 0 then
    fail("syrk", "beta is given, but no c")
  else
    check_absent("syrk", given, "c", "ldc")
    made = new(self, "syrk", a.type, { n, n })
    c = { value = made, ld = n > 0 and n or 1 }
  end
  if a.batch or c.batch then
    fail("syrk", "%s has three dimensions, two expected", a.batch and "a" or "c")
  end
  local op = launch_matrix(self, "syrk", given, a.value, nil, c.value, n, n, k, a.ld, 1, c.ld, alpha, alpha_im, beta,
    beta_im, a.type, transa == 0 and 1 or 0, { triangle = triangle })
  if made then
    return made, op
  end
  return op
end

local trsm_options <const> = arguments.options "a b alpha side uplo transa unit m n lda ldb"

--- blas:trsm{ a=, b=, [alpha = 1, side = "left", uplo = "lower", transa = false, unit = false, m=, n=, lda=, ldb=] } ->
-- op. b = alpha op(a)^-1 b, or with side = "right" alpha b op(a)^-1: solves for the matrix that b (m x n) becomes. a
-- is a triangle, uplo "lower" or "upper", whose other half is not read; unit: its diagonal is taken for ones. Nothing
-- says when a has no inverse: b then holds infinities or no numbers. a and b may share no memory.
function blas.trsm(self, given)
  check_options(self, "trsm", given, trsm_options)
  local a, b = matrix(self, "trsm", given, "a", wide), matrix(self, "trsm", given, "b", wide)
  of_type("trsm", "b", b.type, a.type)
  local side = choice("trsm", given, "side", sides, "left")
  local triangle = choice("trsm", given, "uplo", triangles, "lower")
  local m = size("trsm", "m", whole("trsm", given, "m", 0) or b.rows)
  local n = size("trsm", "n", whole("trsm", given, "n", 0) or b.columns)
  local order = side == sides.left and m or n
  place("trsm", given, a, order, order)
  place("trsm", given, b, m, n)
  if a.batch or b.batch then
    fail("trsm", "%s has three dimensions, two expected", a.batch and "a" or "b")
  end
  apart("trsm", "b", b.value, "a", a.value)
  local alpha, alpha_im = factor("trsm", given, "alpha", 1, a.type)
  return launch_matrix(self, "trsm", given, a.value, nil, b.value, n, m, 0, a.ld, 1, b.ld, alpha, alpha_im, 0, 0,
    a.type, transpose("trsm", given, "transa"), { triangle = triangle, side = side,
      unit = flag("trsm", given, "unit") and 1 or 0 })
end

-- ---- vectors ----

local function launch_vector(self, name, given, x, y, result, n, incx, incy, alpha, alpha_im, beta, type, conj)
  local space = result and space_for(self, given)
  return self.kernels[name]:launch(config_of(given, name), x, y, result, space, n, incx, incy,
    space and self.workspace_bytes or 0, alpha, alpha_im, beta, codes[type], conj)
end

local axpy_options <const> = arguments.options "x y alpha n incx incy"
local scal_options <const> = arguments.options "x alpha n incx"
local pair_options <const> = arguments.options "x y n incx incy"
local rot_options <const> = arguments.options "x y c s n incx incy"

-- x and y of as many elements, which share no memory.
local function two(self, call, given, options)
  check_options(self, call, given, options)
  local x, incx, kind, n = vector(self, call, given, "x", whole(call, given, "n", 0))
  local y, incy, _, other = vector(self, call, given, "y", given.n, kind)
  if n ~= other then
    fail(call, "x has %d elements, y %d", n, other)
  end
  apart(call, "x", x, "y", y)
  return x, y, kind, n, incx, incy
end

--- blas:axpy{ x=, y=, [alpha = 1, n=, incx=, incy=] } -> op. y = alpha x + y. n: elements, by default all of them.
function blas.axpy(self, given)
  local x, y, kind, n, incx, incy = two(self, "axpy", given, axpy_options)
  local alpha, alpha_im = factor("axpy", given, "alpha", 1, kind)
  return launch_vector(self, "axpy", given, x, y, nil, n, incx, incy, alpha, alpha_im, 0, kind, 0)
end

--- blas:scal{ x=, alpha=, [n=, incx=] } -> op. x = alpha x.
function blas.scal(self, given)
  check_options(self, "scal", given, scal_options)
  local x, incx, kind, n = vector(self, "scal", given, "x", whole("scal", given, "n", 0))
  if given.alpha == nil then
    fail("scal", "alpha: a number expected, got nil")
  end
  local alpha, alpha_im = factor("scal", given, "alpha", 1, kind)
  return launch_vector(self, "scal", given, x, nil, nil, n, incx, 1, alpha, alpha_im, 0, kind, 0)
end

--- blas:copy{ x=, y=, [n=, incx=, incy=] } -> op. y = x.
function blas.copy(self, given)
  local x, y, kind, n, incx, incy = two(self, "copy", given, pair_options)
  return launch_vector(self, "copy", given, x, y, nil, n, incx, incy, 0, 0, 0, kind, 0)
end

--- blas:swap{ x=, y=, [n=, incx=, incy=] } -> op. x and y change places.
function blas.swap(self, given)
  local x, y, kind, n, incx, incy = two(self, "swap", given, pair_options)
  return launch_vector(self, "swap", given, x, y, nil, n, incx, incy, 0, 0, 0, kind, 0)
end

--- blas:rot{ x=, y=, c=, s=, [n=, incx=, incy=] } -> op. x = c x + s y, y = c y - s x, with the x from before; c and s
-- are numbers.
function blas.rot(self, given)
  local x, y, kind, n, incx, incy = two(self, "rot", given, rot_options)
  for _, name in ipairs { "c", "s" } do
    if type(given[name]) ~= "number" then
      fail("rot", "%s: a number expected, got %s", name, core.type(given[name]) or type(given[name]))
    end
  end
  return launch_vector(self, "rot", given, x, y, nil, n, incx, incy, given.c, 0, given.s, kind, 0)
end

-- ---- vectors to one number ----

-- Where the number goes: what is given, or a new scalar.
local function result_of(self, call, given, kind, x, y)
  local out = given.out
  if out == nil then
    return self.device:scalar(kind, string.sub(kind, 1, 1) == "c" and { 0, 0 } or 0), true
  end
  local type_of, count = dims(out)
  if not type_of then
    arguments.fail_buffer(call, "out: a scalar or a buffer", out)
  end
  of_type(call, "out", type_of, kind)
  if count ~= 1 then
    fail(call, "out has %d elements, one expected", count)
  end
  apart(call, "out", out, "x", x)
  apart(call, "out", out, "y", y)
  return out
end

local dot_options <const> = arguments.options "x y out conj n incx incy"
local one_options <const> = arguments.options "x out n incx"

--- blas:dot{ x=, y=, [out=, conj = false, n=, incx=, incy=] } -> op, or without out: a new scalar on the device, op.
-- The sum of x y; conj: of conjugated x. out: a scalar, or a buffer of one element, of x's type. In a capture it has
-- to be given. Does not block: scalar:get() does.
function blas.dot(self, given)
  check_options(self, "dot", given, dot_options)
  local x, incx, kind, n = vector(self, "dot", given, "x", whole("dot", given, "n", 0))
  local y, incy, _, other = vector(self, "dot", given, "y", given.n, kind) -- may be x
  if n ~= other then
    fail("dot", "x has %d elements, y %d", n, other)
  end
  local out, is_new = result_of(self, "dot", given, kind, x, y)
  local op = launch_vector(self, "dot", given, x, y, out, n, incx, incy, 0, 0, 0, kind,
    flag("dot", given, "conj") and 1 or 0)
  if is_new then
    return out, op
  end
  return op
end

local function reduction(name, kind_of)
  return function(self, given)
    check_options(self, name, given, one_options)
    local x, incx, kind, n = vector(self, name, given, "x", whole(name, given, "n", 0))
    local out, is_new = result_of(self, name, given, kind_of(kind), x)
    local op = launch_vector(self, name, given, x, nil, out, n, incx, 1, 0, 0, 0, kind, 0)
    if is_new then
      return out, op
    end
    return op
  end
end

--- blas:nrm2{ x=, [out=, n=, incx=] } -> op, or a new scalar, op. The Euclidean norm; of complex numbers it is real.
blas.nrm2 = reduction("nrm2", function(kind) return real_of[kind] end)
--- blas:asum{ x=, [out=, n=, incx=] } -> op, or a new scalar, op. The sum of magnitudes; of a complex number that is
-- the sum of those of its parts.
blas.asum = reduction("asum", function(kind) return real_of[kind] end)
--- blas:iamax{ x=, [out=, n=, incx=] } -> op, or a new scalar, op. The index, from 1, of the first element of the
-- largest magnitude (as in asum), an i64; 0: x has no elements.
blas.iamax = reduction("iamax", function() return "i64" end)

-- ---- the handle ----

local modules = setmetatable({}, { __mode = "k" }) -- by device: the library, and its calls as kernels

function blas.__gc(self)
  self.module, self.kernels, self.known = nil, nil, nil
  self.workspaces:drop()
end

--- blas:close(). Idempotent; what it has launched goes on.
function blas.close(self)
  arguments.check_self("close", self, blas, "gpulua.blas")
  blas.__gc(self)
end
blas.__close = blas.close

function blas.__tostring(self)
  return string.format("gpulua.blas on %s%s", self.device.name, self.module and "" or " (closed)")
end

require "gpulua.entries"(blas)

local option_types <const> = { workspace = "integer", tf32 = "boolean" }

--- device:blas([{workspace=, tf32 = false}]) -> blas. workspace: bytes of device memory for the library on each stream
-- that calls go to, made when first needed (by default 32 MiB on GPUs from compute capability 9.0 on, 8 MiB on others,
-- none on the CPU device); with 0 the library takes memory that nobody counts. tf32: what calls do by default.
-- Loads the library, the first time: waits, and yields in a task. LibraryUnavailable names what is missing.
return function(device, options)
  core.stream_number(device) -- raises, if it is closed
  options = arguments.typed("blas", options, option_types)
  local known = once(modules, device, device, function()
    local module = core.library(device, "blas")
    local made = { module = module, kernels = {} }
    for _, name in ipairs(module:kernels()) do
      made.kernels[name] = module:kernel(name)
    end
    return made, module
  end)
  local bytes = options.workspace
    or device.kind == "cuda" and (device.compute >= 9 and 32 or 8) * 1024 * 1024 or 0
  if bytes < 0 then
    fail("blas", "workspace of %d bytes", bytes)
  end
  return sealed(setmetatable({ device = device, module = known.module, kernels = known.kernels,
    workspace_bytes = bytes, tf32 = options.tf32, workspaces = workspace "blas workspace",
    known = setmetatable({}, { __mode = "k" }) }, blas), blas)
end
