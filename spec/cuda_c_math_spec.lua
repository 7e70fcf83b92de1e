-- Math functions, intrinsics and the 16-bit formats of CUDA C, on whatever device is chosen, against
-- results computed in Lua. Tolerances are CUDA's own bounds, in units of the last place (ulp).

local support = require "spec.support"

describe("CUDA C math", function()
  local dev

  setup(function()
    dev = support.open()
  end)
  teardown(support.close_all)

  local function launch(...)
    return support.launch(dev, ...)
  end
  local function zeros(...)
    return support.zeros(dev, ...)
  end

  -- name in C, reference, arguments, bound in ulp (single, double). CUDA's documented bounds, and
  -- one more because the reference is itself rounded.
  local functions = {
    { "sin", math.sin, { -3, -0.5, 0.1, 1, 2, 100 }, 3, 3 },
    { "cos", math.cos, { -3, -0.5, 0.1, 1, 2, 100 }, 3, 3 },
    { "tan", math.tan, { -1.2, -0.5, 0.1, 1, 3 }, 5, 3 },
    { "asin", math.asin, { -1, -0.5, 0.1, 0.9 }, 3, 3 },
    { "acos", math.acos, { -1, -0.5, 0.1, 0.9 }, 3, 3 },
    { "atan", function(x) return math.atan(x) end, { -10, -0.5, 0.1, 3 }, 3, 3 },
    { "sinh", function(x) return (math.exp(x) - math.exp(-x)) / 2 end, { -3, 1, 2, 5 }, 4, 4 },
    { "cosh", function(x) return (math.exp(x) + math.exp(-x)) / 2 end, { -3, 0.1, 2, 5 }, 3, 3 },
    { "tanh", function(x)
      local e = math.exp(2 * x)
      return (e - 1) / (e + 1)
    end, { -3, 0.5, 1, 2 }, 3, 4 },
    { "exp", math.exp, { -5, -0.5, 0, 1, 10 }, 3, 2 },
    { "exp2", function(x) return 2.0 ^ x end, { -5, -0.5, 0, 1, 10.5 }, 3, 2 },
    { "exp10", function(x) return 10.0 ^ x end, { -5, -0.5, 0, 1, 10.5 }, 4, 3 },
    { "log", function(x) return math.log(x) end, { 0.001, 0.5, 1, 2, 1e10 }, 2, 2 },
    { "log2", function(x) return math.log(x, 2) end, { 0.001, 0.5, 1, 2, 1e10 }, 2, 2 },
    { "log10", function(x) return math.log(x, 10) end, { 0.001, 0.5, 1, 2, 1e10 }, 3, 2 },
    { "log1p", function(x) return math.log(1 + x) end, { 0.5, 1, 2, 1000 }, 2, 2 },
    { "sqrt", math.sqrt, { 0, 0.25, 2, 1e10 }, 0, 0 },
    { "rsqrt", function(x) return 1 / math.sqrt(x) end, { 0.25, 2, 1e10 }, 3, 2 },
    { "cbrt", function(x) return x < 0 and -(-x) ^ (1 / 3) or x ^ (1 / 3) end, { -8, 0.1, 2, 1000 }, 3, 3 },
    { "fabs", math.abs, { -1.5, 0, 3 }, 0, 0 },
    { "floor", math.floor, { -1.5, -1, 0.5, 2.7 }, 0, 0 },
    { "ceil", math.ceil, { -1.5, -1, 0.5, 2.7 }, 0, 0 },
    { "trunc", function(x) return x < 0 and math.ceil(x) or math.floor(x) end, { -1.5, 0.5, 2.7 }, 0, 0 },
    { "round", function(x) return x < 0 and -math.floor(0.5 - x) or math.floor(x + 0.5) end,
      { -2.5, -1.4, 0.5, 2.5 }, 0, 0 },
    { "rint", function(x)
      local low = math.floor(x)
      local rest = x - low
      return rest > 0.5 and low + 1 or rest < 0.5 and low or low % 2 == 0 and low or low + 1
    end, { -2.5, -1.4, 0.5, 1.5, 2.5 }, 0, 0 },
    { "erf", function(x) return ({ [0.5] = 0.52049987781304654, [1] = 0.84270079294971487 })[x] end, { 0.5, 1 }, 3, 3 },
    { "erfc", function(x) return ({ [0.5] = 0.47950012218695346, [1] = 0.15729920705028513 })[x] end,
      { 0.5, 1 }, 5, 6 },
    { "tgamma", function(x) return ({ [5] = 24, [0.5] = 1.7724538509055161 })[x] end, { 5, 0.5 }, 8, 11 },
    { "lgamma", function(x) return ({ [10] = 12.801827480081469, [0.5] = 0.57236494292470008 })[x] end,
      { 10, 0.5 }, 7, 5 },
  }
  local functions2 = {
    { "pow", function(a, b) return a ^ b end, { { 2, 10 }, { 0.5, -3.5 }, { 3, 0.1 }, { -2, 3 } }, 9, 3 },
    { "atan2", math.atan, { { 1, 2 }, { -1, 2 }, { 1, -2 }, { -1, -2 }, { 0, -1 } }, 4, 3 },
    { "fmod", math.fmod, { { 5.5, 2 }, { -5.5, 2 }, { 5.5, -2 } }, 0, 0 },
    { "hypot", function(a, b) return math.sqrt(a * a + b * b) end, { { 3, 4 }, { 1, 1 } }, 4, 3 },
    { "fmin", math.min, { { 1, 2 }, { -1, -2 } }, 0, 0 },
    { "fmax", math.max, { { 1, 2 }, { -1, -2 } }, 0, 0 },
    { "fdim", function(a, b) return math.max(a - b, 0) end, { { 3, 1 }, { 1, 3 } }, 0, 0 },
    { "copysign", function(a, b) return b < 0 and -math.abs(a) or math.abs(a) end, { { 1, -2 }, { -1, 2 } }, 0, 0 },
  }

  for _, form in ipairs { { "single", "float", "f32", 32, 4, "f" }, { "double", "double", "f64", 64, 5, "" } } do
    local what, c, name, width, bound, suffix = table.unpack(form)

    it(what .. "-precision math functions", function()
      local body, inputs, cases = {}, {}, {}
      for _, f in ipairs(functions) do
        for _, x in ipairs(f[3]) do
          cases[#cases + 1] = { f[1], f[2], x, nil, f[bound] }
          body[#body + 1] = ("out[%d] = %s%s(in[%d]);"):format(#cases - 1, f[1], suffix, 2 * #cases - 2)
          inputs[2 * #cases - 1], inputs[2 * #cases] = x, 0
        end
      end
      for _, f in ipairs(functions2) do
        for _, x in ipairs(f[3]) do
          cases[#cases + 1] = { f[1], f[2], x[1], x[2], f[bound] }
          body[#body + 1] = ("out[%d] = %s%s(in[%d], in[%d]);")
            :format(#cases - 1, f[1], suffix, 2 * #cases - 2, 2 * #cases - 1)
          inputs[2 * #cases - 1], inputs[2 * #cases] = x[1], x[2]
        end
      end
      local x <close> = dev:upload(name, inputs)
      local y <close> = zeros(name, #cases)
      launch(("extern \"C\" __global__ void f(const %s *in, %s *out) {\n%s\n}"):format(c, c,
        table.concat(body, "\n")), 1, x, y)
      local rounded, got = x:read(), y:read()
      for i, case in ipairs(cases) do
        -- Of what the device was given, which is the number rounded.
        local want = case[2](rounded[2 * i - 1], rounded[2 * i]) + 0.0
        local off = support.ulps(got[i], width == 32 and support.f32(want) or want, width)
        assert.truthy(off <= case[5] + 1, ("%s%s(%s, %s) = %.17g, wanted %.17g: %.1f ulp"):format(case[1], suffix,
          case[3], case[4], got[i], want, off))
      end
    end)
  end

  it("functions with other results", function()
    local f <close> = zeros("f64", 16)
    local i <close> = zeros("i32", 16)
    launch([[
      extern "C" __global__ void others(double *f, int *i) {
        float s, c; double ds, dc; int e; float whole; double q;
        const float none = nanf(""), infinite = __int_as_float(0x7f800000);
        sincosf(1.0f, &s, &c); f[0] = s; f[1] = c;
        sincos(1.0, &ds, &dc); f[2] = ds; f[3] = dc;
        f[4] = frexp(48.0, &e); i[0] = e;
        f[5] = ldexp(0.75, 4);
        f[6] = modff(3.25f, &whole); f[7] = whole;
        f[8] = fma(2.0, 3.0, 4.0); f[9] = fmaf(2.0f, 3.0f, 5.0f);
        f[10] = fmin((double)none, 3.0); f[11] = fmaxf(2.0f, none);
        f[12] = min(3.5f, 2.5f); f[13] = max(-1.0, 7.0);
        f[14] = nextafter(1.0, 2.0); f[15] = modf(-2.5, &q);
        i[1] = isnan(none) ? 1 : 0; i[2] = isinf(infinite) ? 1 : 0; i[3] = isfinite(1.0) ? 1 : 0;
        i[4] = signbit(-0.0) ? 1 : 0; i[5] = min(3, -4); i[6] = max(3u, 4u); i[7] = abs(-9);
        i[8] = (int)lrint(2.5); i[9] = (int)llround(2.5); i[10] = ilogb(9.0); i[11] = (int)q;
        i[12] = (int)labs(-5l); i[13] = isnan(1.0f) ? 1 : 0; i[14] = (int)roundf(-2.5f); i[15] = (int)llabs(-6ll);
      }]], support.one, f, i)
    local got = f:read()
    local near = { math.sin(1), math.cos(1), math.sin(1), math.cos(1) }
    for k = 1, 4 do
      assert.truthy(math.abs(got[k] - near[k]) < (k < 3 and 1e-6 or 1e-15))
    end
    assert.are.same({ 0.75, 12, 0.25, 3, 10, 11, 3, 2, 2.5, 7, 1 + 2.0 ^ -52, -0.5 }, table.move(got, 5, 16, 1, {}))
    assert.are.same({ 6, 1, 1, 1, 1, -4, 4, 9, 2, 3, 3, -2, 5, 0, -3, 6 }, i:read())
  end)

  it("fast intrinsics", function()
    local f <close> = zeros("f32", 20)
    launch([[
      extern "C" __global__ void fast(float *f) {
        f[0] = __sinf(1.0f); f[1] = __cosf(1.0f); f[2] = __tanf(0.5f); f[3] = __expf(2.0f); f[4] = __logf(10.0f);
        f[5] = __log2f(10.0f); f[6] = __log10f(50.0f); f[7] = __powf(2.5f, 3.0f); f[8] = __fdividef(7.0f, 3.0f);
        f[9] = __frcp_rn(3.0f); f[10] = __fsqrt_rn(2.0f); f[11] = __frsqrt_rn(2.0f); f[12] = __fmaf_rn(2, 3, 4);
        f[13] = __fadd_rn(0.1f, 0.2f); f[14] = __fmul_rn(0.1f, 0.3f); f[15] = __fdiv_rn(1.0f, 3.0f);
        f[16] = __saturatef(1.5f); f[17] = __saturatef(-0.5f); f[18] = __exp10f(1.5f); f[19] = __fsub_rn(0.1f, 0.3f);
      }]], support.one, f)
    local got = f:read()
    local f32 = support.f32
    for i, want in ipairs { math.sin(1), math.cos(1), math.tan(0.5), math.exp(2), math.log(10), math.log(10, 2),
      math.log(50, 10), 2.5 ^ 3, 7 / 3 } do
      assert.truthy(math.abs(got[i] - want) <= 4e-6 * math.max(1, math.abs(want)), ("%d: %.9g"):format(i, got[i]))
    end
    assert.truthy(math.abs(got[19] - 10 ^ 1.5) < 1e-4)
    -- These round correctly.
    local exact = { f32(1 / 3), f32(math.sqrt(2)), f32(1 / math.sqrt(2)), 10, f32(f32(0.1) + f32(0.2)),
      f32(f32(0.1) * f32(0.3)), f32(1 / 3), 1, 0 }
    for i, want in ipairs(exact) do
      assert.equal(want, got[9 + i])
    end
    assert.equal(f32(f32(0.1) - f32(0.3)), got[20])
  end)

  it("conversion intrinsics", function()
    local i <close> = zeros("i64", 16)
    local f <close> = zeros("f64", 8)
    launch([[
      extern "C" __global__ void convert(long long *i, double *f) {
        i[0] = __float2int_rn(2.5f); i[1] = __float2int_rz(-2.7f); i[2] = __float2int_ru(2.1f);
        i[3] = __float2int_rd(-2.1f); i[4] = __float2uint_rn(3.5f); i[5] = __double2int_rn(-3.5);
        i[6] = __double2ll_rn(1e15 + 0.5); i[7] = __float_as_int(1.0f); i[8] = __float_as_uint(-2.0f);
        i[9] = __double_as_longlong(1.0); i[10] = __double2hiint(1.0); i[11] = __double2loint(1.0);
        i[12] = __float2ll_rz(-1e10f); i[13] = __double2uint_rz(4e9); i[14] = __float2int_rn(3.5f); i[15] = (int)2.9f;
        f[0] = __int_as_float(0x40490fdb); f[1] = __longlong_as_double(0x4000000000000000ll);
        f[2] = __int2float_rn(16777217); f[3] = __uint2float_rn(7u); f[4] = __ll2double_rn(1ll << 53);
        f[5] = __hiloint2double(0x3ff00000, 0); f[6] = __double2float_rn(0.1); f[7] = __uint_as_float(0x3f800000u);
      }]], support.one, i, f)
    assert.are.same({ 2, -2, 3, -3, 4, -4, 1000000000000000, 0x3F800000, 0xC0000000, 0x3FF0000000000000, 0x3FF00000,
      0, -10000000000, 4000000000, 4, 2 }, i:read())
    assert.are.same({ support.f32(math.pi), 2, 16777216, 7, 2.0 ^ 53, 1, support.f32(0.1), 1 }, f:read())
  end)

  it("bit intrinsics", function()
    local i <close> = zeros("i64", 30)
    launch([[
      extern "C" __global__ void bits(long long *i, unsigned one) {
        unsigned a = 0x12345678u * one;
        unsigned long long b = 0x123456789abcdef0ull * one;
        i[0] = __popc(a); i[1] = __popcll(b); i[2] = __clz(a); i[3] = __clzll(b); i[4] = __clz(0); i[5] = __clzll(0);
        i[6] = __ffs(a); i[7] = __ffsll(b); i[8] = __ffs(0); i[9] = __brev(a); i[10] = (long long)__brevll(b);
        i[11] = __byte_perm(a, 0xaabbccdd, 0x7205); i[12] = __mulhi(-5, 1 << 30); i[13] = __umulhi(a, a);
        i[14] = __mul64hi(-3, 1ll << 62); i[15] = (long long)__umul64hi(b, b); i[16] = __sad(3, -4, 10);
        i[17] = __usad(3u, 9u, 1u); i[18] = __hadd(7, 10); i[19] = __rhadd(7, 10); i[20] = __uhadd(7u, 8u);
        i[21] = __funnelshift_l(a, 0xaabbccdd, 8); i[22] = __funnelshift_r(a, 0xaabbccdd, 8); i[23] = __mul24(-3, 5);
        i[24] = __umul24(0x1000003u, 5u); i[25] = __ffsll(0); i[26] = __clz((int)one); i[27] = __clzll((long long)one);
        i[28] = __hadd(-7, -10); i[29] = __popcll(~0ull);
      }]], support.one, i, 1)
    local function popcount(x)
      local n = 0
      while x ~= 0 do
        x, n = x & x - 1, n + 1
      end
      return n
    end
    local function reverse(x, width)
      local r = 0
      for k = 0, width - 1 do
        r = r | (x >> k & 1) << width - 1 - k
      end
      return r
    end
    local a, b = 0x12345678, 0x123456789ABCDEF0
    -- The upper half of b * b, by 32-bit parts.
    local low, high = b & 0xFFFFFFFF, b >> 32
    local middle = (low * low >> 32) + (high * low & 0xFFFFFFFF) * 2
    local b_high = high * high + (high * low >> 32) * 2 + (middle >> 32)
    assert.are.same({ popcount(a), popcount(b), 3, 3, 32, 64, 4, 5, 0, reverse(a, 32), reverse(b, 64),
      -- Selectors 7, 2, 0, 5 from the highest byte down; bytes 4 to 7 are the second operand's.
      0xAA3478CC, (-5 << 30) >> 32 | ~0 << 32, a * a >> 32, -1, b_high, 17, 7, 8, 9, 7,
      0xBBCCDD12, 0xDD123456, -15, 15, 0, 31, 63, -9, 64 }, i:read())
  end)

  it("sums and extremes of three at once (DPX)", function()
    local i <close> = zeros("i64", 24)
    launch([[
      extern "C" __global__ void dpx(long long *i, int one) {
        int a = -7 * one, most = 0x7fffffff * one;
        unsigned u = 0xfffffff0u * one, p = 0xfffe0005u * one, q = 0x00030004u * one, r = 0x7fff8000u * one;
        i[0] = __viaddmax_s32(a, 3, -5); i[1] = __viaddmax_s32(most, one, 9); i[2] = __viaddmax_s32_relu(a, 3, -5);
        i[3] = __viaddmin_s32(a, 3, -3); i[4] = __viaddmin_s32_relu(9, 3, a); i[5] = __viaddmax_u32(u, 32, 5);
        i[6] = __viaddmin_u32(u, 2, 7); i[7] = __vimax3_s32(a, -9, -8); i[8] = __vimin3_s32(a, -9, -8);
        i[9] = __vimax3_u32(u, 1, 2); i[10] = __vimin3_u32(u, 1, 2); i[11] = __vimax3_s32_relu(a, -9, -8);
        i[12] = __vimin3_s32_relu(7, 5, 6); i[13] = __vimax_s32_relu(a, -9); i[14] = __vimin_s32_relu(3, a);
        i[15] = __viaddmax_s16x2(p, q, 0); i[16] = __viaddmax_u16x2(p, q, 0x00070007); i[17] = __vimax3_s16x2(p, q, r);
        i[18] = __vimin3_u16x2(p, q, r); i[19] = __viaddmin_s16x2_relu(p, q, r); i[20] = __vimin_s16x2_relu(p, q);
        bool first, high, low;
        i[21] = __vibmax_s32(a, 3, &first) * 10 + first; i[22] = __vibmin_u32(5, 5, &first) * 10 + first;
        i[23] = __vibmax_s16x2(p, q, &high, &low); i[23] = i[23] * 100 + high * 10 + low;
      }]], support.one, i, 1)
    assert.are.same({ -4, 9, 0, -4, 0, 16, 7, -7, -9, 0xFFFFFFF0, 1, 0, 5, 0, 0,
      0x00010009, 0x00070009, 0x7FFF0005, 0x00030004, 0x00010000, 0x00000004,
      30, 51, 0x00030005 * 100 + 1 }, i:read())
  end)

  it("half arithmetic", function()
    local x <close> = dev:upload("f16", { 1.5, -2.25, 0.1, 1000.0 })
    local y <close> = dev:upload("f16", { 0.5, 3.0, 0.2, 7.0 })
    local out <close> = zeros("f16", 4 * 8)
    local i <close> = zeros("i32", 8)
    launch([[
      #include <cuda_fp16.h>
      extern "C" __global__ void halves(const __half *x, const __half *y, __half *out, int *i) {
        int t = threadIdx.x;
        __half a = x[t], b = y[t], *mine = out + t * 8;
        mine[0] = __hadd(a, b); mine[1] = a - b; mine[2] = a * b; mine[3] = a / b;
        mine[4] = __hfma(a, b, a); mine[5] = -a; mine[6] = __float2half(__half2float(a) * 2.0f);
        mine[7] = hsqrt(__habs(a));
        if (t == 0) {
          __half2 v = __halves2half2(a, b), w = __hmul2(v, v);
          i[0] = __half2int_rn(__low2half(w) * __float2half(4.0f)); i[1] = (int)(__high2float(w) * 4);
          i[2] = __hgt(a, b); i[3] = a < b; i[4] = __hisnan(a); i[5] = __half_as_ushort(a);
          i[6] = (int)__half2float(__ushort_as_half(0x4200)); i[7] = sizeof(__half2);
        }
      }]], { grid = 1, block = 4 }, x, y, out, i)
    local a, b, got = x:read(), y:read(), out:read()
    local rounded = zeros("f16", 1)
    local function f16(v)
      return rounded:write({ v }):read()[1]
    end
    for t = 1, 4 do
      local mine = table.move(got, t * 8 - 7, t * 8, 1, {})
      assert.equal(f16(a[t] + b[t]), mine[1])
      assert.equal(f16(a[t] - b[t]), mine[2])
      assert.equal(f16(a[t] * b[t]), mine[3])
      assert.truthy(math.abs(f16(a[t] / b[t]) - mine[4]) <= 2.0 ^ -10 * math.abs(mine[4]))
      assert.equal(f16(a[t] * b[t] + a[t]), mine[5])
      assert.equal(-a[t], mine[6])
      assert.equal(f16(a[t] * 2), mine[7])
      assert.truthy(math.abs(math.sqrt(math.abs(a[t])) - mine[8]) <= 2.0 ^ -10 * mine[8])
    end
    assert.are.same({ 9, 1, 1, 0, 0, 0x3E00, 3, 4 }, i:read())
  end)

  it("bfloat16 arithmetic", function()
    local x <close> = dev:upload("bf16", { 1.5, -2.25, 0.1, 1000.0 })
    local y <close> = dev:upload("bf16", { 0.5, 3.0, 0.2, 7.0 })
    local out <close> = zeros("bf16", 4 * 6)
    local i <close> = zeros("i32", 4)
    launch([[
      #include <cuda_bf16.h>
      extern "C" __global__ void brains(const __nv_bfloat16 *x, const __nv_bfloat16 *y, __nv_bfloat16 *out, int *i) {
        int t = threadIdx.x;
        __nv_bfloat16 a = x[t], b = y[t], *mine = out + t * 6;
        mine[0] = __hadd(a, b); mine[1] = a - b; mine[2] = a * b; mine[3] = __hfma(a, b, a); mine[4] = -a;
        mine[5] = __float2bfloat16(__bfloat162float(a) * 2.0f);
        if (t == 0) {
          __nv_bfloat162 v = __halves2bfloat162(a, b);
          i[0] = (int)(__low2float(v) * 4); i[1] = (int)(__high2float(v) * 4); i[2] = a > b;
          i[3] = __bfloat16_as_ushort(a);
        }
      }]], { grid = 1, block = 4 }, x, y, out, i)
    local a, b, got = x:read(), y:read(), out:read()
    local rounded = zeros("bf16", 1)
    local function bf16(v)
      return rounded:write({ v }):read()[1]
    end
    for t = 1, 4 do
      assert.are.same({ bf16(a[t] + b[t]), bf16(a[t] - b[t]), bf16(a[t] * b[t]), bf16(a[t] * b[t] + a[t]), -a[t],
        bf16(a[t] * 2) }, table.move(got, t * 6 - 5, t * 6, 1, {}))
    end
    assert.are.same({ 6, 2, 1, 0x3FC0 }, i:read())
  end)
end)
