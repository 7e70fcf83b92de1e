-- Modules and kernels: compiling, signatures, launches, arguments, limits.

local support = require "spec.support"

local saxpy_source = [[
  extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
  }]]

describe("kernel", function()
  local dev

  setup(function()
    dev = support.open()
  end)
  teardown(support.close_all)

  describe("signature", function()
    it("is read from the prototype", function()
      local saxpy = dev:compile(saxpy_source).saxpy
      assert.equal("n: i32, a: f32, x: in f32*, y: inout f32*", saxpy:signature())
    end)

    it("knows every scalar type", function()
      local mod = dev:compile [[
        extern "C" __global__ void all(char a, signed char b, unsigned char c, short d, unsigned short e, int f,
            unsigned g, long h, unsigned long i, long long j, unsigned long long k, size_t l, float m, double n,
            bool *out) { out[0] = true; }
      ]]
      assert.equal("a: i8, b: i8, c: u8, d: i16, e: u16, f: i32, g: u32, h: i64, i: u64, j: i64, k: u64, l: u64, " ..
        "m: f32, n: f64, out: inout u8*", mod.all:signature())
    end)

    it("sees through typedefs, macros and vector types", function()
      local mod = dev:compile [[
        typedef const float *input;
        #define OUTPUT double *
        typedef unsigned int word;
        extern "C" __global__ void odd(input x, OUTPUT y, word w, float4 *v, const double2 *z, void *any,
                                       const void *some) { y[0] = x[0] + w; }
      ]]
      assert.equal("x: in f32*, y: inout f64*, w: u32, v: inout f32x4*, z: in f64x2*, any: inout void*, " ..
        "some: in void*", mod.odd:signature())
    end)

    it("by hand narrows, and may name", function()
      local mod = dev:compile(saxpy_source)
      local k = mod:kernel("saxpy", "i32, f32, in f32*, out f32*")
      assert.equal("i32, f32, in f32*, out f32*", k:signature():gsub("%w+: ", ""))
      local named = mod:kernel("saxpy", "count: i32, f32, in f32*, inout f32*")
      assert.truthy(named:signature():find "count: i32")
    end)

    it("by hand must fit the kernel", function()
      local mod = dev:compile(saxpy_source)
      support.raises("InvalidArgument", {}, mod.kernel, mod, "saxpy", "i32, f32, in f32*")
      support.raises("InvalidArgument", {}, mod.kernel, mod, "saxpy", "i32, f32, in f32*, out f32*, i32")
      support.raises("InvalidArgument", {}, mod.kernel, mod, "saxpy", "i64, f32, in f32*, out f32*")
      support.raises("InvalidArgument", { "position 11", "f31" }, mod.kernel, mod, "saxpy", "i32, f32, f31*, f32*")
      support.raises("InvalidArgument", { "saxpi", "saxpy" }, mod.kernel, mod, "saxpi")
    end)

    it("takes enumerations as the numbers that they are kept as", function()
      local mod = dev:compile [[
        enum way { forth, back };
        enum class wide : unsigned char { none, some = 200 };
        enum exact : unsigned { zero };
        extern "C" __global__ void go(way w, wide v, const wide *in, way *out, exact e, const exact *f) {
          out[0] = w == back ? forth : back;
          out[1] = v == wide::some && in[0] == wide::some ? back : forth;
        }
      ]]
      assert.equal("w: i32, v: u8, in: in u8*, out: inout i32*, e: u32, f: in u32*", mod.go:signature())
      local x <close> = dev:upload("u8", { 200 })
      local y <close> = dev:buffer("i32", 2)
      mod.go:launch(support.one, 0, 200, x, y, 0, nil)
      assert.are.same({ 1, 1 }, y:read())
    end)

    it("is needed by hand for structs by value and pointers to pointers", function()
      local mod = dev:compile [[
        struct pair { int *p; int n; __device__ int twice() const { return 2 * n; } };
        extern "C" __global__ void by_struct(pair p) { p.p[0] = p.twice(); }
        extern "C" __global__ void by_table(int **t) { t[0][0] = 1; }
      ]]
      local x <close> = dev:buffer("i32", 1)
      for _, name in ipairs { "by_struct", "by_table" } do
        local k = mod[name]
        support.raises("InvalidArgument", { name, "signature by hand" }, k.launch, k, support.one, x)
      end
    end)
  end)

  describe("module", function()
    it("lists its kernels in the order of the source", function()
      local mod = dev:compile [[
        extern "C" __global__ void zeta(int *x) { x[0] = 1; }
        extern "C" __global__ void alpha(int *x) {
          const char *text = "__global__ void nor_this() {}";
          x[0] = text[0];
        }
        // __global__ void not_this(int *x) { }
        /* __global__ void neither(int *x) { } */
      ]]
      assert.are.same({ "zeta", "alpha" }, mod:kernels())
    end)

    it("has kernels without extern \"C\" under their plain names", function()
      local mod = dev:compile [[ __global__ void plain(int *x) { x[0] = 42; } ]]
      local x <close> = dev:buffer("i32", 1)
      mod.plain:launch(support.one, x)
      assert.are.same({ 42 }, x:read())
    end)

    it("instantiates templates that opts.names asks for", function()
      local mod = dev:compile([[
        template <typename T> __global__ void twice(int n, T *x) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) x[i] = x[i] + x[i];
        }]], { names = { "twice<float>", "twice<long long>" } })
      local f = mod:kernel("twice<float>", "i32, inout f32*")
      local i = mod:kernel("twice<long long>", "i32, inout i64*")
      local x <close> = dev:upload("f32", { 0.5, 1.5 })
      local y <close> = dev:upload("i64", { 1 << 40, -3 })
      f:launch(2, 2, x)
      i:launch(2, 2, y)
      assert.are.same({ 1.0, 3.0 }, x:read())
      assert.are.same({ 1 << 41, -6 }, y:read())
    end)

    it("has its variables as buffers", function()
      local mod = dev:compile [[
        __device__ int counts[4] = {1, 2, 3, 4};
        __constant__ float scale = 2.5f;
        extern "C" __global__ void bump(float *out) {
          counts[threadIdx.x] += 10;
          if (threadIdx.x == 0) out[0] = scale;
        }]]
      local counts <close> = mod:global "counts"
      assert.equal("i32", counts.type)
      assert.equal(4, #counts)
      assert.are.same({ 1, 2, 3, 4 }, counts:read())
      local out <close> = dev:buffer("f32", 1)
      mod.bump:launch({ grid = 1, block = 4 }, out)
      assert.are.same({ 11, 12, 13, 14 }, counts:read())
      assert.are.same({ 2.5 }, out:read())
      counts:write({ 0, 0 }, 2)
      mod.bump:launch({ grid = 1, block = 4 }, out)
      assert.are.same({ 21, 10, 10, 24 }, counts:read())
      local scale <close> = mod:global "scale"
      scale:write { 7 }
      mod.bump:launch({ grid = 1, block = 4 }, out)
      assert.are.same({ 7.0 }, out:read())
      support.raises("InvalidArgument", "nothing_like_it", mod.global, mod, "nothing_like_it")
    end)

    it("has variables of vectors as buffers of their elements", function()
      local mod = dev:compile [[
        __constant__ float4 light;
        __device__ uchar3 colors[2] = {{1, 2, 3}, {4, 5, 6}};
        __device__ double2 pairs[2][2];
        extern "C" __global__ void look(float *out) {
          out[0] = light.y; out[1] = colors[1].z; out[2] = pairs[1][0].y;
        }]]
      local light, colors, pairs = mod:global "light", mod:global "colors", mod:global "pairs"
      assert.are.same({ "f32", 4, "u8", 6, "f64", 8 }, { light.type, #light, colors.type, #colors, pairs.type, #pairs })
      assert.are.same({ 1, 2, 3, 4, 5, 6 }, colors:read())
      light:write { 1.5, 2.5, 3.5, 4.5 }
      colors:write({ 9 }, 6)
      pairs:fill(7)
      local out <close> = dev:buffer("f32", 3)
      mod.look:launch(support.one, out)
      assert.are.same({ 2.5, 9, 7 }, out:read())
    end)

    it("has one buffer for a variable, however often it is asked for", function()
      local mod = dev:compile "__device__ int list[4];"
      local a, b = mod:global "list", mod:global "list"
      a:write { 1, 2, 3, 4 }
      support.raises("InvalidArgument", "overlapping", b.copy, b, a)
      b:slice(1, 2):copy(a:slice(3, 4))
      assert.are.same({ 3, 4, 3, 4 }, b:read())
      a:close()
      assert.are.same({ 3, 4, 3, 4 }, b:read())
      a = mod:global "list"
      a:free()
      support.raises("UseAfterFree", "list", b.read, b)
      assert.are.same({ 3, 4, 3, 4 }, mod:global "list":read())
      local name <const> = ("n"):rep(47) -- as much as a label keeps
      local long = dev:compile(("__device__ int %s; __device__ int %sx[4];"):format(name, name))
      assert.are.same({ 4, 1 }, { #long:global(name .. "x"), #long:global(name) })
      assert.are.same({ 4, 1 }, { #long:global(name .. "x"), #long:global(name) })
    end)

    it("with only variables is a module", function()
      local mod = dev:compile "__device__ unsigned long long alone = 5;"
      local alone <close> = mod:global "alone"
      assert.are.same({ 5 }, alone:read())
    end)

    it("orders kernels that share a variable across streams", function()
      local mod = dev:compile(support.spin_source .. [[
        __device__ int last;
        extern "C" __global__ void slow_set(long long ticks, int v) {
          long long start = now();
          while (now() - start < ticks) { }
          last = v;
        }
        extern "C" __global__ void get(int *out) { out[0] = last; }
      ]])
      local a, b = dev:stream {}, dev:stream {}
      local out <close> = dev:buffer("i32", 1):fill(-1)
      mod.slow_set:launch({ grid = 1, block = 1, stream = a }, support.ticks(0.1), 77)
      mod.get:launch({ grid = 1, block = 1, stream = b }, out)
      assert.are.same({ 77 }, out:read())
      a:close()
      b:close()
    end)

    it("waits for kernels that may use a variable, of all its module's variables", function()
      support.wants_time(pending)
      local mod = dev:compile(support.spin_source .. [[
        __device__ int last, other;
        extern "C" __global__ void slow_set(long long ticks, int v) {
          long long start = now();
          while (now() - start < ticks) { }
          last = v;
        }
      ]])
      local last = mod:global "last"
      for _, wait in ipairs { last.await, last.join } do
        support.under_way(0.1, function(seconds, seen)
          local op = mod.slow_set:launch(support.one, support.ticks(seconds), 7)
          local is_over = last:done()
          seen()
          assert.is_false(is_over)
          wait(last)
          assert.is_true(op:done())
          assert.is_true(last:done())
        end)
      end
      mod.spin:launch(support.one, 1, mod:global "other", 3)
      mod:global "other":await()
      assert.are.same({ 3, 7 }, { mod:global "other":read()[1], last:read()[1] })
    end)

    it("takes variables of as many modules as a kernel has parameters", function()
      local n <const> = 128
      local parameters, body, variables = {}, {}, {}
      for i = 1, n do
        parameters[i], body[i] = "int *p" .. i, ("p%d[0] = %d;"):format(i, i)
        variables[i] = dev:compile "__device__ int v;":global "v"
      end
      local many = dev:compile(('extern "C" __global__ void many(%s) { %s }'):format(
        table.concat(parameters, ", "), table.concat(body, " "))).many
      many:launch(support.one, table.unpack(variables))
      for i = 1, n do
        assert.equal(i, variables[i]:read()[1])
      end
    end)

    it("has the macros of opts.defines and the headers of opts.include", function()
      local folder = os.tmpname()
      os.remove(folder)
      assert(os.execute("mkdir " .. folder))
      local file = assert(io.open(folder .. "/depth.h", "w"))
      file:write "#define DEPTH 2\n"
      file:close()
      local mod = dev:compile([[
        #include "depth.h"
        extern "C" __global__ void defined(int *x) { x[0] = WIDTH + DEPTH; }
      ]], { defines = { WIDTH = 40 }, include = { folder } })
      os.remove(folder .. "/depth.h")
      os.remove(folder)
      local x <close> = dev:buffer("i32", 1)
      mod.defined:launch(support.one, x)
      assert.are.same({ 42 }, x:read())
      support.raises("InvalidArgument", "defined", dev.compile, dev, "", { defined = {} })
    end)

    it("goes, and takes nothing with it that is in flight", function()
      local x <close> = dev:buffer("i32", 1):fill(0)
      local ticks = support.ticks(0.05)
      support.without_leak(dev, function()
        local mod = dev:compile(support.spin_source .. "// of its own")
        mod.spin:launch(support.one, ticks, x, 9)
        mod:close()
        mod:close()
        assert.are.same({ 9 }, x:read())
        support.raises("Closed", "closed module", function() return mod:kernels() end)
      end)
    end)
  end)

  describe("compile errors", function()
    it("carry the compiler's log with file and line", function()
      local err = support.raises("CompileFailed", {}, dev.compile, dev, [[
        extern "C" __global__ void f(int *x) {
          x[0] = undeclared_thing;
        }]], { name = "broken.cu" })
      local text = tostring(err)
      assert.truthy(text:find("undeclared_thing", 1, true), text)
      assert.truthy(text:find("broken.cu", 1, true), text)
      assert.truthy(text:find "broken.cu[:(]2", text)
      support.works(dev)
    end)

    it("print the log once, with the lines and columns of the source", function()
      local source = "__global__ void f(int *x, int n) {\n  if (n > 0) x[blockIdx.x] = undeclared_thing / n;\n}"
      local err = support.raises("CompileFailed", "broken.cu does not compile", dev.compile, dev, source,
        { name = "broken.cu" })
      local text = tostring(err)
      local _, times = text:gsub("[^\n]*error[^\n]*undeclared_thing", "")
      assert.equal(1, times, text)
      assert.truthy(err.log:find "broken.cu[:(]2", err.log)
      assert.truthy(err.message:find("undeclared_thing", 1, true), err.message)
      if dev.kind == "cpu" then
        assert.truthy(err.log:find("broken.cu:2:30: error: ", 1, true), err.log)
      end
      for _, ours in ipairs { "gpulua", "uint3", "/tmp/", "shim" } do
        assert.is_nil(err.log:find(ours, 1, true), err.log)
      end
    end)

    it("name the script and line where the source has no name", function()
      local err = support.raises("CompileFailed", {}, dev.compile, dev, "__global__ void f( {")
      assert.truthy(tostring(err):find("kernel_spec.lua", 1, true), tostring(err))
    end)

    it("leave nothing behind", function()
      support.without_leak(dev, function()
        for _ = 1, 3 do
          support.raises("CompileFailed", {}, dev.compile, dev, "__global__ void f() { syntax error }")
        end
      end)
      support.works(dev)
    end)

    it("a source with no kernel and no global is refused", function()
      support.raises("InvalidArgument", "kernel", dev.compile, dev, "__device__ int f(int x) { return x; }")
      support.raises("InvalidArgument", {}, dev.compile, dev, "")
      support.raises("InvalidArgument", {}, dev.compile, dev)
      support.raises("InvalidArgument", {}, dev.compile, dev, 42)
    end)

    it("a name that is no template of the source is refused", function()
      support.raises("CompileFailed", "missing", dev.compile, dev, saxpy_source, { names = { "missing<int>" } })
    end)
  end)

  describe("launch", function()
    local saxpy, x, y

    setup(function()
      saxpy = dev:compile(saxpy_source).saxpy
      x = dev:upload("f32", { 1, 2, 3, 4 })
      y = dev:buffer("f32", 4):fill(0)
    end)

    it("takes the number of threads", function()
      local n = 100003
      local big <close> = dev:buffer("f32", n):fill(1)
      local sum <close> = dev:upload("f32", n, function(i) return i end)
      local op = saxpy:launch(n, n, 2.0, big, sum)
      op:await()
      local got = sum:read()
      for i = 1, n, 101 do
        assert.equal(i + 2.0, got[i])
      end
      assert.equal(n + 2.0, got[n])
    end)

    it("takes grid and block as numbers or tables", function()
      local where = dev:compile([[
        extern "C" __global__ void where(int *out) {
          int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
          int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
          out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = block * 1000 + thread;
        }]]).where
      for _, case in ipairs {
        { 3, 4, 3, 4 }, { { 3 }, { 4 }, 3, 4 }, { { 2, 3 }, { 2, 2 }, 6, 4 },
        { { 2, 3, 4 }, { 5, 3, 2 }, 24, 30 }, { { 1, 1, 3 }, 64, 3, 64 },
      } do
        local grid, block, blocks, threads = table.unpack(case)
        local out <close> = dev:buffer("i32", blocks * threads):fill(-1)
        where:launch({ grid = grid, block = block }, out)
        local got = out:read()
        for b = 0, blocks - 1 do
          for t = 0, threads - 1 do
            assert.equal(b * 1000 + t, got[b * threads + t + 1])
          end
        end
      end
    end)

    it("returns an op with label, stream and seq", function()
      local a = saxpy:launch(4, 4, 0.0, x, y)
      assert.equal("saxpy", a.label)
      local b = saxpy:launch({ grid = 1, block = 4, label = "mine" }, 4, 0.0, x, y)
      assert.equal("mine", b.label)
      assert.truthy(b.seq > a.seq)
      assert.truthy(a.stream)
      b:await()
    end)

    it("passes NULL for nil", function()
      local is_null = dev:compile([[
        extern "C" __global__ void is_null(const float *p, int *out, int n) { out[0] = p == nullptr ? n : -1; }
      ]]).is_null
      local out <close> = dev:buffer("i32", 1)
      is_null:launch(support.one, nil, out, 5)
      assert.are.same({ 5 }, out:read())
      is_null:launch(support.one, x, out, 5)
      assert.are.same({ -1 }, out:read())
    end)

    it("passes infinities and whole numbers as f32, and NULL where there was a buffer", function()
      local k = dev:compile([[
        extern "C" __global__ void keep(const int *p, char c, float a, float *y) { *y = p ? *p : a; }]]).keep
      local p <close> = dev:upload("i32", { 7 })
      local out <close> = dev:buffer("f32", 1)
      for _, a in ipairs { math.huge, -math.huge, 3, -0.5, 1 << 24, 3.4028234663852886e38 } do
        k:launch(support.one, p, -1, 1e30, out)
        assert.are.same({ 7 }, out:read())
        k:launch(support.one, nil, -1, a, out)
        assert.are.same({ a }, out:read())
      end
    end)

    it("passes scalars of every type with their whole range", function()
      local echo = dev:compile([[
        extern "C" __global__ void echo(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f,
            long long g, unsigned long long h, float i, double j, long long *ints, double *floats) {
          ints[0] = a; ints[1] = b; ints[2] = c; ints[3] = d; ints[4] = e; ints[5] = f; ints[6] = g;
          ints[7] = (long long)h;
          floats[0] = i; floats[1] = j;
        }]]).echo
      local ints <close> = dev:buffer("i64", 8)
      local floats <close> = dev:buffer("f64", 2)
      echo:launch(support.one, -128, 255, -32768, 65535, -2147483648, 4294967295, math.mininteger, -1, 0.1, 0.1,
        ints, floats)
      assert.are.same({ -128, 255, -32768, 65535, -2147483648, 4294967295, math.mininteger, -1 }, ints:read())
      assert.are.same({ support.f32(0.1), 0.1 }, floats:read())
      echo:launch(support.one, 1, 2, 3, 4, 5.0, 6, 7, 8, 9, -10, ints, floats)
      assert.are.same({ 1, 2, 3, 4, 5, 6, 7, 8 }, ints:read())
      assert.are.same({ 9.0, -10.0 }, floats:read())
    end)

    it("takes slices and views as pointers", function()
      local b <close> = dev:upload("f32", { 0, 0, 0, 0, 0, 0 })
      local one <close> = dev:buffer("f32", 6):fill(1)
      saxpy:launch(2, 2, 3.0, one, b:slice(3, 4))
      assert.are.same({ 0, 0, 3, 3, 0, 0 }, b:read())
      local raw <close> = dev:buffer("u32", 6):fill(0)
      saxpy:launch(6, 6, 1.0, one, raw:view "f32")
      assert.are.same({ 0x3F800000 }, raw:read(6, 6))
    end)

    it("takes buffers of the scalar type for vector pointers", function()
      local mod = dev:compile [[
        extern "C" __global__ void swap(float4 *v) {
          float4 t = v[threadIdx.x];
          v[threadIdx.x] = make_float4(t.w, t.z, t.y, t.x);
        }
        extern "C" __global__ void conj(float2 *v) { v[threadIdx.x].y = -v[threadIdx.x].y; }
      ]]
      local v <close> = dev:upload("f32", { 1, 2, 3, 4, 5, 6, 7, 8 })
      mod.swap:launch({ grid = 1, block = 2 }, v)
      assert.are.same({ 4, 3, 2, 1, 8, 7, 6, 5 }, v:read())
      support.raises("InvalidArgument", { "argument 1 (v)", 'a buffer of i32 (buffer:view("f32") has the same bytes)' },
        mod.swap.launch, mod.swap, support.one, dev:buffer("i32", 4))
      support.raises("InvalidArgument", { "argument 1 (v)", "memory of the host", "buffer:copy(host)" },
        mod.swap.launch, mod.swap, support.one, dev:host("f32", 4))
      local odd <close> = dev:buffer("f32", 6)
      support.raises("InvalidArgument", { "v", "swap" }, mod.swap.launch, mod.swap, { grid = 1, block = 1 }, odd)
      local z <close> = dev:upload("c64", { { 1, 2 }, { 3, 4 } })
      mod.conj:launch({ grid = 1, block = 2 }, z)
      assert.are.same({ { 1, -2 }, { 3, -4 } }, z:read())
    end)

    it("takes memory from anywhere for vectors of three, of which it has whole ones", function()
      local mod = dev:compile [[
        extern "C" __global__ void turn(float3 *v, const uchar3 *by) {
          float3 *a = &v[threadIdx.x];
          *a = make_float3(a->y * by[threadIdx.x].z, a->z, a->x);
        }
      ]]
      local kept <const> = {}
      for i = 1, 5 do -- at addresses that are no multiples of 12
        local v = dev:upload("f32", { 1, 2, 3, 4, 5, 6 })
        local by = dev:upload("u8", { 0, 0, 2, 0, 0, 3, 9 })
        mod.turn:launch({ grid = 1, block = 2 }, v, by:slice(1, 6))
        assert.are.same({ 4, 3, 1, 15, 6, 4 }, v:read())
        kept[i] = { v, by }
      end
      local v, by = table.unpack(kept[1])
      mod.turn:launch({ grid = 1, block = 1 }, v:slice(3, 5), by:slice(1, 3)) -- a float3 may begin at any float
      assert.are.same({ 4, 3, 30, 6, 1, 4 }, { table.unpack(v:read(), 1, 6) })
      support.raises("InvalidArgument", { "argument 1 (v)", "f32x3", "length must be a multiple of 3 elements" },
        mod.turn.launch, mod.turn, { grid = 1, block = 1 }, v:slice(1, 5), by:slice(1, 3))
    end)

    it("takes c128 for double2, and vectors in a signature by hand", function()
      local mod = dev:compile [[
        extern "C" __global__ void conj(double2 *v) { v[threadIdx.x].y = -v[threadIdx.x].y; }
      ]]
      local z <close> = dev:upload("c128", { { 1, 2 }, { 3, 4 } })
      mod.conj:launch({ grid = 1, block = 2 }, z)
      assert.are.same({ { 1, -2 }, { 3, -4 } }, z:read())
      local by_hand = mod:kernel("conj", "inout f64x2*")
      assert.equal("inout f64x2*", by_hand:signature())
      local d <close> = dev:upload("f64", { 1, 2, 3, 4, 5 })
      by_hand:launch({ grid = 1, block = 2 }, d:slice(1, 4))
      assert.are.same({ 1, -2, 3, -4, 5 }, d:read())
      for _, wrong in ipairs { { 2, 5 }, { 1, 5 }, { 1, 3 } } do
        support.raises("InvalidArgument", "multiples of 2", by_hand.launch, by_hand, support.one,
          d:slice(table.unpack(wrong)))
      end
      local f <close> = dev:upload("c64", { { 1, 2 } })
      support.raises("InvalidArgument", "c64", by_hand.launch, by_hand, support.one, f)
    end)

    it("takes booleans for one-byte scalars, and dynamic shared memory", function()
      local choose = dev:compile([[
        extern "C" __global__ void choose(bool which, int *x) {
          extern __shared__ int room[];
          room[threadIdx.x] = which ? 5 : 6;
          __syncthreads();
          x[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x] * 10 + threadIdx.x;
        }]]).choose
      local out <close> = dev:buffer("i32", 3)
      choose:launch({ grid = 1, block = 3, shared = 12 }, true, out)
      assert.are.same({ 50, 51, 52 }, out:read())
      choose:launch({ grid = 1, block = 3, shared = 12 }, false, out)
      assert.are.same({ 60, 61, 62 }, out:read())
    end)

    it("takes any buffer for void pointers", function()
      local k = dev:compile([[
        extern "C" __global__ void zero(void *p, int bytes) {
          for (int i = 0; i < bytes; i++) ((char *)p)[i] = 0;
        }]]).zero
      for _, name in ipairs { "u8", "f64", "c128", "bf16" } do
        local b <close> = dev:buffer(name, 3):fill(name == "c128" and { 1, 1 } or 1)
        k:launch(support.one, b, #b:bytes())
        assert.equal(("\0"):rep(#b:bytes()), b:bytes())
      end
    end)

    it("an out parameter keeps the bytes that the kernel leaves alone", function()
      local mod = dev:compile [[ extern "C" __global__ void one(float *y) { y[1] = 5; } ]]
      local k = mod:kernel("one", "out f32*")
      local b <close> = dev:upload("f32", { 1, 2, 3 })
      k:launch(support.one, b)
      assert.are.same({ 1, 5, 3 }, b:read())
    end)

    describe("refuses", function()
      local function refused(parts, ...)
        return support.raises("InvalidArgument", parts, saxpy.launch, saxpy, ...)
      end

      after_each(function()
        assert.are.same({ 0, 0, 0, 0 }, y:read())
      end)

      it("a wrong number of arguments", function()
        refused({ "saxpy", "4", "3" }, 4, 4, 1.0, x)
        refused({ "saxpy", "4", "5" }, 4, 4, 1.0, x, y, 1)
        refused({ "saxpy" }, 4)
      end)

      it("arguments of a wrong type, naming them", function()
        refused({ "n", "saxpy" }, 4, "4", 1.0, x, y)
        refused({ "n", "saxpy" }, 4, 4.5, 1.0, x, y)
        refused({ "n", "saxpy" }, 4, nil, 1.0, x, y)
        refused({ "n", "saxpy" }, 4, x, 1.0, x, y)
        refused({ "a", "saxpy" }, 4, 4, "1", x, y)
        refused({ "x", "saxpy" }, 4, 4, 1.0, 12345, y)
        refused({ "x", "saxpy" }, 4, 4, 1.0, "x", y)
        refused({ "y", "saxpy" }, 4, 4, 1.0, x, { 1, 2 })
      end)

      it("scalars out of range", function()
        refused({ "n" }, 4, 1 << 31, 1.0, x, y)
        refused({ "n" }, 4, math.huge, 1.0, x, y)
        refused({ "n" }, 4, 0 / 0, 1.0, x, y)
        refused({ "a", "out of range" }, 4, 4, 1e300, x, y)
        refused({ "a", "out of range" }, 4, 4, -math.maxinteger * 1e30, x, y)
      end)

      it("another element type", function()
        local i <close> = dev:buffer("i32", 4)
        refused({ "x", "i32", "f32" }, 4, 4, 1.0, i, y)
      end)

      it("no threads at all, a negative number, a fraction", function()
        for _, n in ipairs { 0, -1, 1.5, math.mininteger, 0 / 0 } do
          refused({ "thread" }, n, 4, 1.0, x, y)
        end
        refused({}, "4", 4, 1.0, x, y)
        refused({}, nil, 4, 1.0, x, y)
      end)

      it("grid and block of 0, negative, fractional, too large", function()
        for _, v in ipairs { 0, -1, 1.5, 1 << 40, { 0 }, { 1, 0 }, { 1, 1, -1 }, { 1, 1, 1, 1 }, {}, { "1" }, "1" } do
          refused({ "grid" }, { grid = v, block = 1 }, 4, 1.0, x, y)
          refused({ "block" }, { grid = 1, block = v }, 4, 1.0, x, y)
        end
        refused({ "block", "1024" }, { grid = 1, block = 1025 }, 4, 1.0, x, y)
        refused({ "block", "1024" }, { grid = 1, block = { 32, 33 } }, 4, 1.0, x, y)
        refused({ "block" }, { grid = 1, block = { 1, 1, 65 } }, 4, 1.0, x, y)
        refused({ "grid" }, { grid = { 1, 65536 }, block = 1 }, 4, 1.0, x, y)
        refused({ "grid" }, { grid = { 1, 1, 65536 }, block = 1 }, 4, 1.0, x, y)
        refused({ "grid" }, { grid = 1 << 31, block = 1 }, 4, 1.0, x, y)
      end)

      it("shared memory that the device does not have", function()
        refused({ "shared" }, { grid = 1, block = 1, shared = 1 << 20 }, 4, 1.0, x, y)
        refused({ "shared" }, { grid = 1, block = 1, shared = -1 }, 4, 1.0, x, y)
        refused({ "shared" }, { grid = 1, block = 1, shared = 0.5 }, 4, 1.0, x, y)
      end)

      it("more threads than there are blocks for, and a configuration without a grid", function()
        refused({ "saxpy", "threads" }, 1 << 50, 4, 1.0, x, y)
        refused({ "grid" }, { block = 4 }, 4, 1.0, x, y)
        refused({ "label" }, { grid = 1, block = 4, label = 5 }, 4, 1.0, x, y)
      end)

      it("host buffers, which are no device memory", function()
        local h <close> = dev:host("f32", 4)
        refused({ "x", "saxpy", "host buffer" }, 4, 4, 1.0, h, y)
      end)

      it("unknown fields of its configuration", function()
        refused({ "gird" }, { gird = 1, block = 1 }, 4, 1.0, x, y)
        refused({ "stream" }, { grid = 1, block = 1, stream = 5 }, 4, 1.0, x, y)
      end)

      it("closed and freed buffers", function()
        local b = dev:buffer("f32", 4)
        b:close()
        support.raises("Closed", { "x", "saxpy" }, saxpy.launch, saxpy, 4, 4, 1.0, b, y)
        b = dev:buffer("f32", 4)
        b:free()
        support.raises("UseAfterFree", { "x", "saxpy" }, saxpy.launch, saxpy, 4, 4, 1.0, b, y)
      end)

      it("buffers of another device", function()
        local other = support.open()
        local b <close> = other:buffer("f32", 4)
        refused({ "x", "saxpy" }, 4, 4, 1.0, b, y)
        other:close()
      end)
    end)

    it("reaches its limits", function()
      local n = dev:compile([[
        extern "C" __global__ void count(unsigned long long *n) { atomicAdd(n, 1ull); }
      ]]).count
      local c <close> = dev:buffer("u64", 1):fill(0)
      n:launch({ grid = 1, block = 1024 }, c)
      n:launch({ grid = 1, block = { 16, 64 } }, c)
      n:launch({ grid = 1, block = { 1, 16, 64 } }, c)
      n:launch({ grid = { 1, 65535 }, block = 1 }, c)
      n:launch({ grid = { 1, 1, 65535 }, block = 1 }, c)
      n:launch({ grid = 200000, block = 1 }, c)
      assert.are.same({ 3 * 1024 + 2 * 65535 + 200000 }, c:read())
    end)
  end)

  it("tells its attributes and occupancy", function()
    local saxpy = dev:compile(saxpy_source).saxpy
    local attributes = saxpy:attributes()
    assert.truthy(attributes.block_threads_max >= 1024)
    assert.equal("number", type(saxpy:occupancy()))
  end)

  it("tells what its launches may be, and occupancy falls with shared memory", function()
    local mod = dev:compile [[
      extern "C" __global__ void small(int *x) { x[0] = 1; }
      extern "C" __global__ void large(int *x) {
        __shared__ int room[8192];
        room[threadIdx.x] = x[0];
        __syncthreads();
        x[0] = room[0];
      }]]
    local small, large = mod.small:attributes(), mod.large:attributes()
    assert.equal("small", small.name)
    assert.equal(0, small.shared_bytes)
    assert.equal(32768, large.shared_bytes)
    assert.equal(8, small.args_bytes)
    assert.truthy(mod.small:occupancy() >= 1)
    assert.truthy(mod.large:occupancy() <= mod.small:occupancy())
  end)

  it("tells for each size of block how many a multiprocessor holds, and what limits it", function()
    local mod = dev:compile [[
      extern "C" __global__ void plain(int *x) { x[0] = 1; }
      extern "C" __global__ void large(int *x) {
        __shared__ int room[8192];
        room[threadIdx.x] = x[0];
        __syncthreads();
        x[0] = room[0];
      }]]
    for _, kernel in ipairs { mod.plain, mod.large } do
      local blocks, occupancy = kernel:occupancy()
      assert.equal(blocks, (kernel:occupancy(256)), "the driver says the same")
      assert.equal(blocks, (kernel:occupancy(256.0)))
      assert.equal(blocks * 8, occupancy.warps)
      assert.truthy(math.abs(occupancy.share - occupancy.warps / occupancy.warps_max) < 1e-9 and occupancy.share <= 1)
      local known = { registers = true, ["shared memory"] = true, threads = true, blocks = true }
      assert.truthy(known[occupancy.limiter])
    end
    assert.equal(0, (mod.plain:occupancy(4096)))
    assert.equal(0, (mod.plain:occupancy(64, 1 << 30)))
    assert.truthy((mod.plain:occupancy(32)) >= 1)
    for _, bad in ipairs { 0, -1, 1.5, "many" } do
      support.raises("InvalidArgument", "argument 1 of occupancy", mod.plain.occupancy, mod.plain, bad)
    end
    support.raises("InvalidArgument", "argument 2 of occupancy", mod.plain.occupancy, mod.plain, 32, -1)
  end)

  it("finds compiled code in the cache", function()
    local source = ("extern \"C\" __global__ void cached(int *x) { x[0] = %d; }"):format(support.fresh())
    local x <close> = dev:buffer("i32", 1)
    local function time()
      local start = support.now()
      local mod = dev:compile(source)
      local spent = support.now() - start
      mod.cached:launch(support.one, x)
      x:await()
      mod:close()
      return spent
    end
    local first, second = time(), time()
    second = math.min(second, time(), time())
    assert.truthy(second < first, ("%.1f ms, then %.1f ms"):format(first * 1e3, second * 1e3))
  end)

  it("loads PTX where the device takes it", function()
    local ptx = [[
.version 6.3
.target sm_75
.address_size 64
.visible .entry store(.param .u64 p, .param .u32 v) {
  .reg .b32 %r<2>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [v];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
]]
    if dev.kind == "cpu" then
      support.raises("Unsupported", {}, dev.load, dev, ptx)
      return
    end
    local mod = dev:load(ptx)
    local store = mod:kernel("store", "out u32*, u32")
    local x <close> = dev:buffer("u32", 1)
    store:launch(support.one, x, 123)
    assert.are.same({ 123 }, x:read())
    support.raises("InvalidArgument", {}, mod.kernel, mod, "store", "out u32*")
    support.raises("InvalidArgument", {}, mod.kernel, mod, "store")
    support.raises("InvalidArgument", "missing", mod.kernel, mod, "missing", "i32")
  end)

  it("refuses what is no PTX and no cubin", function()
    assert.has_error(function() dev:load "this is neither" end)
    assert.has_error(function() dev:load "/no/such/file.ptx" end)
    assert.has_error(function() dev:load() end)
    support.works(dev)
  end)
end)
