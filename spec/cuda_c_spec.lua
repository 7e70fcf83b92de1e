-- The CUDA C that kernels may use, on whatever device is chosen, against results computed in Lua.
-- Functions on numbers are in cuda_c_math_spec.lua.

local support = require "spec.support"

describe("CUDA C", function()
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

  it("1-3D grids and blocks", function()
    local out <close> = zeros("u64", 3 * 2 * 2 * 4 * 3 * 2)
    launch([[
      extern "C" __global__ void ids(unsigned long long *out) {
        unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        unsigned long long v = 0;
        unsigned parts[12] = {blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
                              gridDim.x, gridDim.y, gridDim.z, blockDim.x, blockDim.y, blockDim.z};
        for (int i = 0; i < 12; i++) v = v * 16 + parts[i];
        out[block * blockDim.x * blockDim.y * blockDim.z + thread] = v;
      }]], { grid = { 3, 2, 2 }, block = { 4, 3, 2 } }, out)
    local got, at = out:read(), 1
    for bz = 0, 1 do for by = 0, 1 do for bx = 0, 2 do
      for tz = 0, 1 do for ty = 0, 2 do for tx = 0, 3 do
        local want = 0
        for _, part in ipairs { bx, by, bz, tx, ty, tz, 3, 2, 2, 4, 3, 2 } do
          want = want * 16 + part
        end
        assert.equal(want, got[at])
        at = at + 1
      end end end
    end end end
  end)

  it("blocks of 1,024 threads with a barrier", function()
    local out <close> = zeros("i32", 2048)
    local source = [[
      extern "C" __global__ void turn(int *out) {
        __shared__ int s[1024];
        int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        s[t] = t;
        __syncthreads();
        out[blockIdx.x * 1024 + t] = s[1023 - t];
      }]]
    for _, block in ipairs { 1024, { 32, 32 }, { 8, 2, 64 } } do
      out:fill(-1)
      launch(source, { grid = 2, block = block }, out)
      local got = out:read()
      for i = 0, 2047 do
        assert.equal(1023 - i % 1024, got[i + 1])
      end
    end
  end)

  it("dynamic shared memory", function()
    local out <close> = zeros("i32", 3)
    launch([[
      extern "C" __global__ void sum(int *out) {
        extern __shared__ int scratch[];
        int t = threadIdx.x, n = blockDim.x;
        scratch[t] = t + blockIdx.x;
        for (int half = n / 2; half > 0; half /= 2) {
          __syncthreads();
          if (t < half) scratch[t] += scratch[t + half];
        }
        if (t == 0) out[blockIdx.x] = scratch[0];
      }]], { grid = 3, block = 256, shared = 256 * 4 }, out)
    local base = 255 * 256 // 2
    assert.are.same({ base, base + 256, base + 512 }, out:read())
  end)

  it("static and dynamic shared memory side by side", function()
    local out <close> = zeros("f32", 64)
    launch([[
      extern __shared__ unsigned char raw[];
      extern "C" __global__ void both(float *out) {
        __shared__ float fixed[64];
        __shared__ int count;
        float *dynamic = (float *)raw;
        int t = threadIdx.x;
        if (t == 0) count = 3;
        fixed[t] = t;
        dynamic[t] = 100.0f * t;
        __syncthreads();
        out[t] = fixed[63 - t] + dynamic[63 - t] + count;
      }]], { grid = 1, block = 64, shared = 256 }, out)
    for i, v in ipairs(out:read()) do
      assert.equal((64 - i) * 101 + 3, v)
    end
  end)

  it("tiles in two-dimensional shared memory", function()
    local n = 48
    local x <close> = dev:upload("f32", n * n, function(i) return i end)
    local y <close> = zeros("f32", n * n)
    launch([[
      #define TILE 16
      extern "C" __global__ void transpose(int n, const float *x, float *y) {
        __shared__ float tile[TILE][TILE + 1];
        int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
        tile[threadIdx.y][threadIdx.x] = x[row * n + col];
        __syncthreads();
        col = blockIdx.y * TILE + threadIdx.x;
        row = blockIdx.x * TILE + threadIdx.y;
        y[row * n + col] = tile[threadIdx.x][threadIdx.y];
      }]], { grid = { 3, 3 }, block = { 16, 16 } }, n, x, y)
    local got = y:read()
    for row = 0, n - 1 do
      for col = 0, n - 1 do
        assert.equal(col * n + row + 1, got[row * n + col + 1])
      end
    end
  end)

  it("__syncthreads_count, _and, _or", function()
    local out <close> = zeros("i32", 100 * 5)
    launch([[
      extern "C" __global__ void vote(int *out) {
        int t = threadIdx.x, *mine = out + 5 * t;
        mine[0] = __syncthreads_count(t % 3 == 0);
        mine[1] = __syncthreads_and(t < 100) != 0;
        mine[2] = __syncthreads_and(t != 57) != 0;
        mine[3] = __syncthreads_or(t == 57) != 0;
        mine[4] = __syncthreads_or(t < 0) != 0;
      }]], { grid = 1, block = 100 }, out)
    local got = out:read()
    for t = 0, 99 do
      assert.are.same({ 34, 1, 0, 1, 0 }, table.move(got, 5 * t + 1, 5 * t + 5, 1, {}))
    end
  end)

  it("barriers in loops and branches that the whole block takes", function()
    local out <close> = zeros("i32", 96)
    launch([[
      extern "C" __global__ void rounds(int *out, int count) {
        __shared__ int s[96];
        int t = threadIdx.x;
        s[t] = t;
        for (int i = 0; i < count; i++) {
          __syncthreads();
          int next = s[(t + 1) % 96];
          if (i % 2 == 0) { __syncthreads(); s[t] = next; }
          else { __syncthreads(); s[t] = next + 1; }
        }
        out[t] = s[t];
      }]], { grid = 1, block = 96 }, out, 10)
    for i, v in ipairs(out:read()) do
      assert.equal((i - 1 + 10) % 96 + 5, v)
    end
  end)

  it("threads that return before a barrier", function()
    local out <close> = dev:buffer("i32", 128):fill(-1)
    launch([[
      extern "C" __global__ void early(int *out, int n) {
        __shared__ int s[128];
        int t = threadIdx.x;
        if (t >= n) return;
        s[t] = t * 2;
        __syncthreads();
        out[t] = s[n - 1 - t];
      }]], { grid = 1, block = 128 }, out, 70)
    local got = out:read()
    for i = 1, 128 do
      assert.equal(i <= 70 and (70 - i) * 2 or -1, got[i])
    end
  end)

  it("__syncwarp", function()
    local out <close> = zeros("i32", 64)
    launch([[
      extern "C" __global__ void warps(int *out) {
        __shared__ int s[64];
        int t = threadIdx.x, lane = t % warpSize, warp = t / warpSize;
        s[t] = t;
        __syncwarp();
        out[t] = s[warp * warpSize + (lane + 5) % warpSize] + 1000 * warpSize;
      }]], { grid = 1, block = 64 }, out)
    for i, v in ipairs(out:read()) do
      local t = i - 1
      assert.equal(t // 32 * 32 + (t % 32 + 5) % 32 + 32000, v)
    end
  end)

  it("__shfl_sync and its kin, with widths", function()
    local out <close> = zeros("i32", 64 * 8)
    launch([[
      extern "C" __global__ void shuffle(int *out) {
        int t = threadIdx.x, v = t * 10, *mine = out + t * 8;
        mine[0] = __shfl_sync(0xffffffffu, v, 7);
        mine[1] = __shfl_up_sync(0xffffffffu, v, 3);
        mine[2] = __shfl_down_sync(0xffffffffu, v, 3);
        mine[3] = __shfl_xor_sync(0xffffffffu, v, 5);
        mine[4] = __shfl_sync(0xffffffffu, v, 9, 8);
        mine[5] = __shfl_up_sync(0xffffffffu, v, 2, 8);
        mine[6] = __shfl_down_sync(0xffffffffu, v, 2, 8);
        mine[7] = __shfl_xor_sync(0xffffffffu, v, 16, 32);
      }]], { grid = 1, block = 64 }, out)
    local got = out:read()
    for t = 0, 63 do
      local warp, lane, part = t // 32 * 32, t % 32, t % 8
      assert.are.same({
        (warp + 7) * 10,
        (lane >= 3 and t - 3 or t) * 10,
        (lane + 3 < 32 and t + 3 or t) * 10,
        (warp + (lane ~ 5)) * 10,
        (t - part + 1) * 10,
        (part >= 2 and t - 2 or t) * 10,
        (part + 2 < 8 and t + 2 or t) * 10,
        (warp + (lane ~ 16)) * 10,
      }, table.move(got, t * 8 + 1, t * 8 + 8, 1, {}))
    end
  end)

  it("__shfl_sync of every type", function()
    local out <close> = zeros("f64", 6)
    launch([[
      extern "C" __global__ void types(double *out) {
        unsigned full = 0xffffffffu;
        int t = threadIdx.x;
        float f = __shfl_xor_sync(full, t + 0.5f, 1);
        double d = __shfl_down_sync(full, t + 0.25, 4);
        long long l = __shfl_sync(full, (1ll << 40) + t, 9);
        unsigned long long u = __shfl_up_sync(full, (1ull << 41) + t, 1);
        unsigned w = __shfl_sync(full, 4000000000u + t, 3);
        short h = (short)__shfl_sync(full, (int)-t, 2);
        if (t == 20) { out[0] = f; out[1] = d; out[2] = (double)l; out[3] = (double)u; out[4] = w; out[5] = h; }
      }]], { grid = 1, block = 32 }, out)
    assert.are.same({ 21.5, 24.25, 2.0 ^ 40 + 9, 2.0 ^ 41 + 19, 4000000003.0, -2.0 }, out:read())
  end)

  it("a warp reduction by shuffles", function()
    local out <close> = zeros("i32", 4)
    launch([[
      extern "C" __global__ void reduce(int *out) {
        int v = threadIdx.x;
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);
        if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = v;
      }]], { grid = 1, block = 128 }, out)
    assert.are.same({ 496, 496 + 1024, 496 + 2048, 496 + 3072 }, out:read())
  end)

  it("__ballot_sync, __any_sync, __all_sync", function()
    local out <close> = zeros("u32", 5)
    launch([[
      extern "C" __global__ void votes(unsigned *out) {
        int t = threadIdx.x;
        unsigned ballot = __ballot_sync(0xffffffffu, t % 5 == 0);
        int any = __any_sync(0xffffffffu, t == 31), none = __any_sync(0xffffffffu, t == 32);
        int all = __all_sync(0xffffffffu, t < 32), most = __all_sync(0xffffffffu, t < 31);
        if (t == 4) { out[0] = ballot; out[1] = any != 0; out[2] = none != 0; out[3] = all != 0; out[4] = most != 0; }
      }]], { grid = 1, block = 32 }, out)
    local ballot = 0
    for t = 0, 31, 5 do
      ballot = ballot | 1 << t
    end
    assert.are.same({ ballot, 1, 0, 1, 0 }, out:read())
  end)

  it("votes and shuffles among a part of the warp", function()
    local out <close> = dev:buffer("u32", 64):fill(0)
    launch([[
      extern "C" __global__ void part(unsigned *out) {
        int t = threadIdx.x;
        if (t % 2 == 0) {
          out[t * 2] = __ballot_sync(0x55555555u, t < 8);
          out[t * 2 + 1] = __shfl_sync(0x55555555u, t, 6);
        }
      }]], { grid = 1, block = 32 }, out)
    local got = out:read()
    for t = 0, 31 do
      assert.equal(t % 2 == 0 and 0x55 or 0, got[t * 2 + 1])
      assert.equal(t % 2 == 0 and 6 or 0, got[t * 2 + 2])
    end
  end)

  it("__match_any_sync and __match_all_sync", function()
    local out <close> = zeros("u32", 32 * 4)
    launch([[
      extern "C" __global__ void match(unsigned *out) {
        int t = threadIdx.x, same = 0, different = 0;
        out[t * 4] = __match_any_sync(0xffffffffu, t % 3);
        out[t * 4 + 1] = __match_all_sync(0xffffffffu, 7, &same) == 0xffffffffu && same;
        out[t * 4 + 2] = __match_all_sync(0xffffffffu, t / 31, &different) | different;
        out[t * 4 + 3] = __match_any_sync(0xffffffffu, (unsigned long long)(t / 16) << 40);
      }]], { grid = 1, block = 32 }, out)
    local masks, got = { [0] = 0, 0, 0 }, out:read()
    for t = 0, 31 do
      masks[t % 3] = masks[t % 3] | 1 << t
    end
    for t = 0, 31 do
      assert.are.same({ masks[t % 3], 1, 0, t < 16 and 0xFFFF or 0xFFFF0000 },
        table.move(got, t * 4 + 1, t * 4 + 4, 1, {}))
    end
  end)

  it("__activemask names at least the thread itself, and nobody outside", function()
    local out <close> = zeros("u32", 40)
    launch([[
      extern "C" __global__ void active(unsigned *out) { out[threadIdx.x] = __activemask(); }
    ]], { grid = 1, block = 40 }, out)
    for i, mask in ipairs(out:read()) do
      local lane = (i - 1) % 32
      assert.truthy(mask & 1 << lane ~= 0)
      assert.equal(0, i > 32 and mask & ~0xFF or 0)
    end
  end)

  describe("atomics", function()
    local blocks, threads = 16, 64
    local n = blocks * threads
    local config = { grid = blocks, block = threads }

    for _, t in ipairs { { "int", "i32" }, { "unsigned", "u32" }, { "unsigned long long", "u64" } } do
      local c, name = t[1], t[2]

      it("add, sub, min, max, and, or, xor, exch, CAS on " .. c, function()
        local out <close> = dev:upload(name, { 0, 5000000, 1000000, 0, 127, 0, 0, 0, 0 })
        local seen <close> = zeros(name, n)
        -- atomicSub has no 64-bit form.
        local sub = c == "unsigned long long" and "atomicAdd(&out[1], 0ull - i)" or "atomicSub(&out[1], i)"
        launch(([[
          typedef T number;
          extern "C" __global__ void all(number *out, number *seen) {
            number i = blockIdx.x * blockDim.x + threadIdx.x;
            atomicAdd(&out[0], i);
            SUB;
            atomicMin(&out[2], i + 3);
            atomicMax(&out[3], i + 3);
            atomicAnd(&out[4], ~(number)(i & 8));
            atomicOr(&out[5], (number)1 << (i % 20));
            atomicXor(&out[6], i);
            seen[atomicAdd(&out[7], (number)1)] = atomicExch(&out[8], i + 1);
          }]]):gsub("SUB", sub):gsub("T number", c .. " number"), config, out, seen)
        local got = out:read()
        local sum = n * (n - 1) // 2
        assert.are.same({ sum, 5000000 - sum, 3, n + 2, 127 & ~8, (1 << 20) - 1, 0, n },
          table.move(got, 1, 8, 1, {}))
        -- What was exchanged out, and what is left, is every value once.
        local values = seen:read()
        values[#values + 1] = got[9]
        table.sort(values)
        for i = 0, n do
          assert.equal(i, values[i + 1])
        end
      end)

      it("CAS loops on " .. c, function()
        local out <close> = dev:upload(name, { 1, 0 })
        launch(([[
          typedef T number;
          extern "C" __global__ void swap(number *out) {
            // Adds 3 by compare and swap, then counts who found what.
            number old = out[0], assumed;
            do {
              assumed = old;
              old = atomicCAS(&out[0], assumed, assumed + 3);
            } while (old != assumed);
            if (old % 3 == 1) atomicAdd(&out[1], (number)1);
          }]]):gsub("T number", c .. " number"), config, out)
        assert.are.same({ 1 + 3 * n, n }, out:read())
      end)
    end

    it("signed min and max, also of 64 bits", function()
      local a <close> = dev:upload("i32", { 5, 5 })
      local b <close> = dev:upload("i64", { 5, 5 })
      launch([[
        extern "C" __global__ void least(int *a, long long *b) {
          int i = blockIdx.x * blockDim.x + threadIdx.x - 500;
          atomicMin(&a[0], i);
          atomicMax(&a[1], i);
          atomicMin(&b[0], i * 10000000000ll);
          atomicMax(&b[1], i * 10000000000ll);
        }]], config, a, b)
      assert.are.same({ -500, n - 501 }, a:read())
      assert.are.same({ -500 * 10000000000, (n - 501) * 10000000000 }, b:read())
    end)

    it("inc and dec wrap at their bound", function()
      local out <close> = dev:upload("u32", { 0, 0, 7 })
      launch([[
        extern "C" __global__ void wrap(unsigned *out) {
          atomicInc(&out[0], 99);
          atomicDec(&out[1], 99);
          atomicDec(&out[2], 5);
        }]], config, out)
      -- 0 up to 99 and over to 0: a cycle of 100. The third starts above its bound: the first step takes it to 5.
      assert.are.same({ n % 100, (100 - n % 100) % 100, 5 - (n - 1) % 6 }, out:read())
    end)

    it("add and exch on float and double", function()
      local f <close> = zeros("f32", 2)
      local d <close> = zeros("f64", 1)
      launch([[
        extern "C" __global__ void sums(float *f, double *d) {
          atomicAdd(&f[0], 0.5f);
          atomicExch(&f[1], 3.25f);
          atomicAdd(&d[0], 0.125);
        }]], config, f, d)
      -- Every partial sum is representable, so the order does not matter.
      assert.are.same({ n * 0.5, 3.25 }, f:read())
      assert.are.same({ n * 0.125 }, d:read())
    end)

    it("return what was there before", function()
      local out <close> = dev:upload("i32", { 10, 10, 10, 10, 12, 12, 12, 10, 10 })
      local old <close> = zeros("i32", 9)
      launch([[
        extern "C" __global__ void before(int *x, int *old) {
          old[0] = atomicAdd(x, 1); old[1] = atomicSub(x + 1, 1); old[2] = atomicMin(x + 2, 3);
          old[3] = atomicMax(x + 3, 30); old[4] = atomicAnd(x + 4, 4); old[5] = atomicOr(x + 5, 1);
          old[6] = atomicXor(x + 6, 4); old[7] = atomicExch(x + 7, 0); old[8] = atomicCAS(x + 8, 11, 0);
        }]], support.one, out, old)
      assert.are.same({ 10, 10, 10, 10, 12, 12, 12, 10, 10 }, old:read())
      assert.are.same({ 11, 9, 3, 30, 4, 13, 8, 0, 10 }, out:read())
    end)

    it("in shared memory", function()
      local out <close> = zeros("u32", 16)
      launch([[
        extern "C" __global__ void histogram(unsigned *out) {
          __shared__ unsigned bins[16];
          int t = threadIdx.x;
          if (t < 16) bins[t] = 0;
          __syncthreads();
          atomicAdd(&bins[(t * 7 + blockIdx.x) % 16], 1u);
          __syncthreads();
          if (t < 16) atomicAdd(&out[t], bins[t]);
        }]], config, out)
      for _, v in ipairs(out:read()) do
        assert.equal(n // 16, v)
      end
    end)
  end)

  it("__threadfence and the last block's turn", function()
    local n = 1 << 14
    local x <close> = dev:upload("i32", n, function(i) return i % 17 end)
    local partial <close> = zeros("i32", 64)
    local out <close> = zeros("i32", 1)
    launch([[
      __device__ unsigned arrived = 0;
      extern "C" __global__ void sum(int n, const int *x, int *partial, int *out) {
        __shared__ int s[128];
        __shared__ bool is_last;
        int v = 0;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
        s[threadIdx.x] = v;
        for (int half = 64; half > 0; half /= 2) {
          __syncthreads();
          if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
        }
        if (threadIdx.x == 0) {
          partial[blockIdx.x] = s[0];
          __threadfence();
          is_last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
        }
        __syncthreads();
        if (is_last && threadIdx.x == 0) {
          int total = 0;
          for (int i = 0; i < gridDim.x; i++) total += ((volatile int *)partial)[i];
          out[0] = total;
        }
      }]], { grid = 64, block = 128 }, n, x, partial, out)
    local sum = 0
    for i = 1, n do
      sum = sum + i % 17
    end
    assert.are.same({ sum }, out:read())
  end)

  it("__ldg, __restrict__, #pragma unroll, what a compiler may take for granted", function()
    local x <close> = dev:upload("f32", 64, function(i) return i end)
    local out <close> = zeros("f32", 16)
    launch([[
      template <class A, class B> struct Same { static const bool value = true; };
      __device__ __nv_pure__ float same(float v) { return v; }
      extern "C" __global__ void __launch_bounds__(64) hints(const float *__restrict__ x, float *__restrict__ out) {
        int t = threadIdx.x;
        float v = same(0);
        __builtin_assume(t < 16 && Same<int, int>::value);
        #pragma unroll
        for (int i = 0; i < 4; i++) v += __ldg(x + t * 4 + i);
        #pragma unroll 2
        for (int i = 0; i < 3; i++) v += __ldg(&x[i]);
        out[t] = v;
      }]], { grid = 1, block = 16 }, x, out)
    for i, v in ipairs(out:read()) do
      assert.equal(16 * (i - 1) + 10 + 6, v)
    end
  end)

  it("templates, __device__ functions, recursion, lambdas, structs, constexpr", function()
    local out <close> = zeros("i64", 8)
    launch([[
      __device__ constexpr int square(int x) { return x * x; }
      template <typename T, int N> struct vec {
        T v[N];
        __device__ T dot(const vec &o) const { T s = 0; for (int i = 0; i < N; i++) s += v[i] * o.v[i]; return s; }
      };
      template <typename T> __device__ __forceinline__ T biggest(T a, T b) { return a > b ? a : b; }
      template <typename T, typename... Rest> __device__ T biggest(T a, T b, Rest... rest) {
        return biggest(biggest(a, b), rest...);
      }
      __device__ __noinline__ long long factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }
      static __device__ int helper(int *p) { return *p += 2; }
      struct base { int a; __device__ base(int x) : a(x) {} __device__ int twice() { return 2 * a; } };
      struct derived : base { __device__ derived() : base(21) {} };
      namespace inner { enum class kind : int { one = 1, two }; __device__ int f(kind k) { return (int)k; } }
      extern "C" __global__ void language(long long *out) {
        vec<int, 3> a = {{1, 2, 3}}, b = {{4, 5, 6}};
        int local = 5;
        auto add = [&](int x) { return x + local; };
        static_assert(square(7) == 49, "at compile time");
        out[0] = a.dot(b);
        out[1] = biggest(3, 9, 4, 7);
        out[2] = factorial(15);
        out[3] = helper(&local) * 100 + local;
        out[4] = add(10);
        out[5] = derived().twice();
        out[6] = inner::f(inner::kind::two);
        switch (square(2)) { case 4: out[7] = 44; break; default: out[7] = -1; }
      }]], support.one, out)
    assert.are.same({ 32, 9, 1307674368000, 707, 17, 42, 2, 44 }, out:read())
  end)

  it("__constant__ and __device__ variables", function()
    local out <close> = zeros("f32", 4)
    local mod = launch([[
      __constant__ float weights[4] = {0.5f, 1.5f, 2.5f, 3.5f};
      __device__ float state[4];
      __device__ int calls = 100;
      extern "C" __global__ void step(float *out) {
        int t = threadIdx.x;
        state[t] += weights[t];
        if (t == 0) calls++;
        out[t] = state[t];
      }]], { grid = 1, block = 4 }, out)
    assert.are.same({ 0.5, 1.5, 2.5, 3.5 }, out:read())
    mod.step:launch({ grid = 1, block = 4 }, out)
    assert.are.same({ 1.0, 3.0, 5.0, 7.0 }, out:read())
    assert.are.same({ 102 }, mod:global("calls"):read())
  end)

  it("vector types and their makers", function()
    local f <close> = zeros("f32", 16)
    local i <close> = zeros("i64", 24)
    launch([[
      extern "C" __global__ void vectors(float *f, long long *i) {
        float2 a = make_float2(1, 2);
        float3 b = make_float3(3, 4, 5);
        float4 c = make_float4(6, 7, 8, 9);
        double2 d = make_double2(10, 11);
        f[0] = a.x; f[1] = a.y; f[2] = b.x; f[3] = b.y; f[4] = b.z;
        f[5] = c.x; f[6] = c.y; f[7] = c.z; f[8] = c.w; f[9] = (float)d.x; f[10] = (float)d.y;
        *(float4 *)(f + 12) = make_float4(c.w, c.z, c.y, c.x);
        int2 e = make_int2(-1, -2); int3 g = make_int3(-3, -4, -5); int4 h = make_int4(-6, -7, -8, -9);
        uint2 j = make_uint2(4000000000u, 1); uint4 k = make_uint4(1, 2, 3, 4);
        uchar4 l = make_uchar4(255, 254, 253, 252); char2 m = make_char2(-128, 127);
        short2 n = make_short2(-32768, 32767); ushort4 o = make_ushort4(65535, 1, 2, 3);
        longlong2 p = make_longlong2(-(1ll << 40), 1ll << 41);
        ulonglong2 q = make_ulonglong2(1, 2);
        dim3 r(3, 2), s;
        i[0] = e.x + e.y; i[1] = g.x + g.y + g.z; i[2] = h.x + h.y + h.z + h.w; i[3] = (long long)j.x + j.y;
        i[4] = k.x + k.y * 10 + k.z * 100 + k.w * 1000; i[5] = l.x + l.y + l.z + l.w; i[6] = m.x * 1000 + m.y;
        i[7] = n.x; i[8] = n.y; i[9] = o.x + o.y + o.z + o.w; i[10] = p.x; i[11] = p.y; i[12] = q.x + q.y;
        i[13] = r.x * 100 + r.y * 10 + r.z; i[14] = s.x + s.y + s.z;
        i[15] = sizeof(float2); i[16] = sizeof(float3); i[17] = sizeof(float4); i[18] = sizeof(double2);
        i[19] = alignof(float2); i[20] = alignof(float3); i[21] = alignof(float4); i[22] = alignof(uchar4);
        i[23] = sizeof(short4) + sizeof(longlong2);
      }]], support.one, f, i)
    assert.are.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 9, 8, 7, 6 }, f:read())
    assert.are.same({ -3, -12, -30, 4000000001, 4321, 1014, -127873, -32768, 32767, 65541, -(1 << 40), 1 << 41, 3,
      321, 3, 8, 12, 16, 16, 8, 4, 16, 4, 24 }, i:read())
  end)

  it("clock64 goes forward", function()
    local out <close> = zeros("i64", 3)
    launch([[
      extern "C" __global__ void ticks(long long *out) {
        long long start = clock64(), c = clock();
        volatile long long *slow = out + 2; // memory, so that the compiler keeps the loop between the clocks
        for (int i = 0; i < 10000; i++) *slow = *slow + i;
        out[0] = clock64() - start;
        out[1] = c != 0 || start != 0;
      }]], support.one, out)
    local got = out:read()
    assert.truthy(got[1] > 1000, got[1])
    assert.are.same({ 1, 49995000 }, { got[2], got[3] })
  end)

  it("headers of the C library that kernels use", function()
    local out <close> = zeros("i64", 3)
    local f <close> = zeros("f32", 2)
    launch([[
      #include <stdint.h>
      #include <cstdint>
      #include <assert.h>
      #include <math.h>
      #include <cmath>
      extern "C" __global__ void headers(int64_t *out, float *f) {
        assert(sizeof(uint16_t) == 2);
        out[0] = INT64_MAX; out[1] = UINT32_MAX; out[2] = INT8_MIN;
        f[0] = -INFINITY; f[1] = NAN;
      }]], support.one, out, f)
    assert.are.same({ math.maxinteger, 4294967295, -128 }, out:read())
    local got = f:read()
    assert.equal(-math.huge, got[1])
    assert.truthy(got[2] ~= got[2])
  end)

  it("headers of the C library that say what is built in, and how large numbers are", function()
    local out <close> = zeros("i64", 5)
    local d <close> = zeros("f64", 5)
    launch([[
      #include <stdio.h>
      #include <cstdio>
      #include <stdlib.h>
      #include <cstdlib>
      #include <string.h>
      #include <cstring>
      #include <stddef.h>
      #include <cstddef>
      #include <limits.h>
      #include <climits>
      #include <float.h>
      #include <cfloat>
      struct Two { char a; double b; };
      extern "C" __global__ void headers(long long *out, double *d) {
        ptrdiff_t far = &d[4] - &d[1];
        size_t at = offsetof(Two, b);
        out[0] = far; out[1] = at; out[2] = LLONG_MIN + LONG_MAX + (ULLONG_MAX == ULONG_MAX);
        out[3] = (long long)INT_MIN - UINT_MAX;
        out[4] = SHRT_MIN + USHRT_MAX + CHAR_MIN + CHAR_BIT + SCHAR_MAX + UCHAR_MAX;
        float f[2]; memset(f, 0, sizeof f);
        d[0] = FLT_MAX; d[1] = FLT_MIN; d[2] = FLT_EPSILON + f[1]; d[3] = DBL_MAX; d[4] = DBL_EPSILON;
        if (d[4] == 0) printf("%p\\n", (void *)NULL);
      }]], support.one, out, d)
    assert.are.same({ 3, 8, 0, -2147483648 - 4294967295, -32768 + 65535 - 128 + 8 + 127 + 255 }, out:read())
    local values = d:read()
    assert.are.same({ 0x1.fffffep127, 0x1p-126, 0x1p-23, 0x1.fffffffffffffp1023, 0x1p-52 }, values)
  end)

  it("complex numbers under the toolkit's names", function()
    local given = { { 1, 10 }, { 2, 10 }, { 3, 10 }, { 4, 10 }, { 0, 0 }, { 6, 10 } }
    local x <close> = dev:upload("c64", given)
    given[7] = { 3e200, 4e200 }
    local y <close> = dev:upload("c128", given)
    launch([[
      #include <cuComplex.h>
      extern "C" __global__ void complex(cuFloatComplex *x, cuDoubleComplex *y, cuComplex by) {
        cuDoubleComplex d = cuComplexFloatToDouble(by), e;
        x[0] = cuCaddf(x[0], by), y[0] = cuCadd(y[0], d);
        x[1] = cuCmulf(x[1], by), y[1] = cuCmul(y[1], d);
        x[2] = cuCdivf(x[2], by), y[2] = cuCdiv(y[2], d);
        x[3] = cuConjf(cuCsubf(x[3], by)), y[3] = cuConj(cuCsub(y[3], d));
        x[4] = make_cuComplex(cuCabsf(by), cuCrealf(by) - cuCimagf(by));
        y[4] = make_cuDoubleComplex(cuCabs(d), cuCreal(d) - cuCimag(d));
        x[5] = cuCfmaf(x[5], make_cuFloatComplex(by.x, by.y), by), y[5] = cuCfma(y[5], d, d);
        e = cuCdiv(y[6], y[6]);
        x[0].x += cuComplexDoubleToFloat(e).x, y[6] = make_cuDoubleComplex(cuCabs(y[6]), cuCdivf(by, by).x);
      }]], support.one, x, y, { 3, 4 })
    local wanted = { { 4, 14 }, { -34, 38 }, { 1.96, 0.72 }, { 1, -6 }, { 5, -1 }, { -19, 58 } }
    local singles, doubles = x:read(), y:read()
    singles[1][1] = singles[1][1] - 1 -- the quotient of large numbers
    for i, z in ipairs(wanted) do
      for part = 1, 2 do
        assert.near(z[part], singles[i][part], 1e-6)
        assert.near(z[part], doubles[i][part], 1e-15)
      end
    end
    assert.near(5e200, doubles[7][1], 1e186)
    assert.near(1, doubles[7][2], 1e-6)
  end)

  it("an assert that holds", function()
    local out <close> = zeros("i32", 1)
    launch([[
      extern "C" __global__ void sure(int *out, int n) { assert(n == 5); out[0] = n; }
    ]], support.one, out, 5)
    assert.are.same({ 5 }, out:read())
  end)

  it("printf goes to standard output", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local mod = dev:compile [=[
        extern "C" __global__ void hello(int n, double x) {
          if (threadIdx.x == 2) printf("thread %d of %d: %s %.3f %c%%\n", threadIdx.x, n, "text", x, 'z');
        }]=]
      mod.hello:launch({ grid = 1, block = 4 }, 4, 2.5):await()
      io.write "awaited\n"
    ]]
    assert.equal("thread 2 of 4: text 2.500 z%\nawaited\n", output)
    assert.equal(0, code)
  end)

  it("volatile, goto, local arrays, unions, 64-bit and short arithmetic", function()
    local out <close> = zeros("i64", 8)
    launch([[
      extern "C" __global__ void plain(long long *out, int n) {
        int table[8];
        for (int i = 0; i < 8; i++) table[i] = i * i;
        int sum = 0, i = 0;
      again:
        sum += table[i];
        if (++i < n) goto again;
        union { float f; unsigned u; } pun; pun.f = 1.0f;
        volatile int v = 3; v = v + 1;
        unsigned char small = 250; small += 10;
        short wrapped = (short)(32767 + n);
        unsigned u = 0; u -= 1;
        out[0] = sum; out[1] = pun.u; out[2] = v; out[3] = small; out[4] = wrapped; out[5] = u;
        out[6] = (1ll << 40) / n % 1000; out[7] = -7 / 2 * 10 + -7 % 2;
      }]], support.one, out, 5)
    assert.are.same({ 30, 0x3F800000, 4, 4, -32764, 4294967295, (1 << 40) // 5 % 1000, -31 }, out:read())
  end)

  it("integer division by zero: some value, no fault", function()
    local out <close> = zeros("i32", 4)
    launch([[
      extern "C" __global__ void divide(int *out, int zero, int least) {
        out[0] = 7 / zero;
        out[1] = 7 % zero;
        out[2] = (int)(9ll / zero) + (int)(9u % (unsigned)zero);
        out[3] = least / (zero - 1) == 1 ? 1 : 2;
      }]], support.one, out, 0, math.mininteger >> 32 | ~0 << 31)
    assert.equal(4, #out:read())
    support.works(dev)
  end)

  it("a construct that is not supported is a compile error that names it", function()
    if dev.kind ~= "cpu" then
      pending "the device's own compiler takes all of CUDA C"
      return
    end
    for _, case in ipairs {
      { "asm", [[extern "C" __global__ void f(int *x) { asm volatile("mov.u32 %0, %laneid;" : "=r"(x[0])); }]] },
      { "tex2D", [[extern "C" __global__ void f(float *x, unsigned long long t) { x[0] = tex2D<float>(t, 0, 0); }]] },
    } do
      local err = support.raises("CompileFailed", {}, dev.compile, dev, case[2])
      assert.truthy(tostring(err):find(case[1], 1, true), tostring(err))
    end
  end)

  it("large saxpy over all blocks", function()
    local n = 1 << 20
    local x <close> = dev:buffer("f32", n):fill(1.5)
    local y <close> = dev:buffer("f32", n):fill(0.25)
    local mod = dev:compile [[
      extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
      }]]
    mod.saxpy:launch({ grid = 100, block = 256 }, n, 2.0, x, y)
    assert.is_true(y:bytes() == string.pack("<f", 3.25):rep(n))
  end)
end)
