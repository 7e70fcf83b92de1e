-- Structures and vectors by value: what a signature says of them, and what a launch is given.

local support = require "spec.support"
local one <const> = support.one

describe("a structure by value", function()
  local dev, mod, by_pair, all, x, out

  local source <const> = [[
    struct Pair { int *p; int n; };
    struct Params { float dt; double k; signed char n; float m[3]; Pair pair; float4 v; uchar4 c[2]; };
    struct Lone { int *p; };
    struct Odd { int *p; __device__ int *get() const { return p; } };
    extern "C" __global__ void odd(Odd s) { s.get()[0] = 1; }
    extern "C" __global__ void lone(Lone s, int n) { if (n > 5) s.p[0] = n; }
    extern "C" __global__ void by_pair(Pair pair, int by) {
      for (int i = 0; i < pair.n; i++) pair.p[i] += by;
    }
    extern "C" __global__ void all(char c, Params q, float *out, int last) {
      out[0] = c; out[1] = q.dt; out[2] = q.k; out[3] = q.n; out[4] = q.m[0]; out[5] = q.m[2];
      out[6] = q.pair.n; out[7] = q.v.x; out[8] = q.v.w; out[9] = q.c[0].y; out[10] = q.c[1].w; out[11] = last;
      q.pair.p[0] = 77;
    }
    extern "C" __global__ void vectors(float4 a, char z, float3 b, int2 c, uchar4 d, double2 e, float *out) {
      out[0] = a.x; out[1] = a.w; out[2] = z; out[3] = b.x; out[4] = b.z; out[5] = c.y; out[6] = d.w; out[7] = e.y;
    }
  ]]
  local params <const> = "q: {dt: f32, k: f64, n: i8, m: f32[3], pair: {p: inout i32*, n: i32}, v: f32x4, c: u8x4[2]}"

  setup(function()
    dev = support.open()
    mod = dev:compile(source)
    by_pair = mod:kernel("by_pair", "pair: { p: inout i32*, n: i32 }, by: i32")
    all = mod:kernel("all", "c: i8, " .. params .. ", out: out f32*, last: i32")
  end)
  before_each(function()
    x, out = dev:buffer("i32", 4):fill(1), dev:buffer("f32", 12):fill(0)
  end)
  teardown(support.close_all)

  --- What is said of a replay of all that the device has done.
  local function replayed(device)
    local file = support.path ".flight"
    device:flight(file)
    local program <const> = (os.getenv "GPULUA_BUILD" or "build") .. "/gpulua"
    local pipe <close> = assert(io.popen(("%s --replay %s 2>&1"):format(program, file)))
    local output = pipe:read "a"
    os.remove(file)
    return output
  end

  local function whole()
    return { dt = 0.5, k = 1.5, n = -3, m = { 4, 5, 6 }, pair = { p = x, n = 9 }, v = { x = 1, y = 2, z = 3, w = 4 },
      c = { { 1, 2, 3, 4 }, { 5, 6, 7, 250 } } }
  end

  it("is a table, by name or in order, or its parts one after the other", function()
    by_pair:launch(one, { p = x, n = 2 }, 10)
    assert.are.same({ 11, 11, 1, 1 }, x:read())
    by_pair:launch(one, { x, 3 }, 10)
    assert.are.same({ 21, 21, 11, 1 }, x:read())
    by_pair:launch(one, { x, n = 1 }, 10)
    assert.are.same({ 31, 21, 11, 1 }, x:read())
    by_pair:launch(one, x, 4, 10)
    assert.are.same({ 41, 31, 21, 11 }, x:read())
  end)

  it("lies as the compiler lays it out, with what is in it", function()
    all:launch(one, 5, whole(), out, 99)
    assert.are.same({ 5, 0.5, 1.5, -3, 4, 6, 9, 1, 4, 2, 250, 99 }, out:read())
    assert.are.same({ 77, 1 }, x:read(1, 2))
    assert.equal("c: i8, " .. params .. ", out: out f32*, last: i32", all:signature())
    assert.equal("pair: {p: inout i32*, n: i32}, by: i32", by_pair:signature())
    assert.equal("{in i32*, n: i32}, i32", mod:kernel("by_pair", "{ in i32*, n: i32 }, i32"):signature())
  end)

  it("has buffers like any other argument: waited for, refused when they are closed, NULL", function()
    local slow, late = dev:stream {}, dev:stream {}
    for by = 1, 20 do
      by_pair:launch({ grid = 1, block = 1, stream = by % 2 == 0 and slow or late }, { p = x, n = 4 }, by)
    end
    assert.are.same({ 211, 211, 211, 211 }, x:read())
    by_pair:launch(one, { n = 0 }, 1):await()
    local gone = dev:buffer("i32", 4)
    gone:close()
    support.raises("Closed", { "argument 1 (pair.p)", "by_pair" }, by_pair.launch, by_pair, one, { p = gone, n = 1 }, 1)
    support.raises("InvalidArgument", { "argument 1 (pair.p)", "i32" }, by_pair.launch, by_pair, one,
      { p = dev:buffer("f32", 4), n = 1 }, 1)
  end)

  it("refuses what does not fit, and says where", function()
    local function refused(part, change)
      local given = whole()
      change(given)
      support.raises("InvalidArgument", part, all.launch, all, one, 5, given, out, 99)
    end
    refused({ "argument 2 (q)", "'k' is missing" }, function(q) q.k = nil end)
    refused({ "argument 2 (q)", "no part 'kk'" }, function(q) q.kk = 1 end)
    refused({ "argument 2 (q)", "no part '8'" }, function(q) q[8] = 1 end)
    refused({ "argument 2 (q)", "no part 'boolean'" }, function(q) q[true] = 1 end)
    refused({ "argument 2 (q)", "'dt' is there twice" }, function(q) q[1] = 1 end)
    refused({ "argument 2 (q.m)", "'3' is missing" }, function(q) q.m[3] = nil end)
    refused({ "argument 2 (q.m)", "no part '4'" }, function(q) q.m[4] = 1 end)
    refused({ "argument 2 (q.m)", "a table expected for an array of 3, got number" }, function(q) q.m = 1 end)
    refused({ "argument 2 (q.c.2)", "'w' is missing" }, function(q) q.c[2][4] = nil end)
    refused({ "argument 2 (q.c.2.x)", "256", "u8 expected" }, function(q) q.c[2][1] = 256 end)
    refused({ "argument 2 (q.pair.p)", "inout i32* expected" }, function(q) q.pair.p = 1 end)
    refused({ "argument 2 (q.pair)", "structure" }, function(q) q.pair = x end)
    local mixed = support.raises("InvalidArgument", { "argument 1 (pair.p)", "table", "inout i32* expected" },
      by_pair.launch, by_pair, one, { x, 2 }, 10, 1)
    assert.truthy(mixed.hint:find("by the count these are parts", 1, true), mixed.hint)
    local any = mod:kernel("by_pair", "pair: { p: inout void*, n: i32 }, by: i32")
    for _, given in ipairs { { { x }, 4, 1 }, { { p = { x }, n = 4 }, 1 } } do -- of no type that a table could be of
      support.raises("InvalidArgument", { "argument 1 (pair.p)", "inout void* expected" }, any.launch, any, one,
        table.unpack(given))
    end
    local lone = mod:kernel("lone", "s: { p: inout void* }, n: i32")
    support.raises("InvalidArgument", { "argument 1 (s)", "no part '2'" }, lone.launch, lone, one, { x, x }, 1)
    for _, key in ipairs { "p\0", "p\0z", "1\0" } do -- a zero byte ends no name
      support.raises("InvalidArgument", { "argument 1 (pair)", "no part" }, by_pair.launch, by_pair, one,
        { [key] = x, n = 1 }, 1)
    end
    support.raises("InvalidArgument", { "takes 4 arguments, got 2", params }, all.launch, all, one, 5, whole())
    assert.are.same({ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, out:read())
    support.raises("InvalidArgument", { "parameter 1", "a structure or vector is 8 bytes", "16 bytes" }, mod.kernel,
      mod, "by_pair", "pair: { n: i32, m: i32 }, by: i32")
    support.raises("InvalidArgument", { "1 parameters", "has 2" }, mod.kernel, mod, "by_pair",
      "pair: { p: inout i32*, n: i32, by: i32 }")
    support.raises("InvalidArgument", { "signature by hand", "Odd" }, mod.odd.launch, mod.odd, one, x)
  end)

  it("needs no signature where its definition is in the source, with plain members alone", function()
    assert.equal("pair: {p: inout i32*, n: i32}, by: i32", mod.by_pair:signature())
    assert.equal("c: i8, " .. params .. ", out: inout f32*, last: i32", mod.all:signature())
    mod.by_pair:launch(one, { p = x, n = 2 }, 10)
    assert.are.same({ 11, 11, 1, 1 }, x:read())
    mod.all:launch(one, 5, whole(), out, 8)
    assert.are.same({ 5, 0.5, 1.5, -3, 4, 6, 9, 1, 4, 2, 250, 8 }, out:read())
    local graph <close> = dev:capture(function() mod.by_pair:launch(one, { p = x, n = 1 }, 1) end)
    graph:bind { ["by_pair.pair.n"] = 4 }
    x:fill(1)
    graph:launch():await()
    assert.are.same({ 2, 2, 2, 2 }, x:read())
    local written = dev:compile [==[
      #include <cuda_fp16.h>
      // struct A { int wrong; };
      namespace ns { typedef struct { const float *x, *const y; unsigned long long n[2][3]; } A; }
      typedef struct B_ { /* "struct B {" */ volatile short int a; bool b; struct ns_ { char c; } ; } Left;
      struct B { ns::A *left; };
      typedef struct C { struct { unsigned u; dim3 size; } parts[2]; __half h, k; int const *p[2]; void *any; } C;
      struct D { C c; const void *v; };
      extern "C" __global__ void named(ns::A a) {}
      extern "C" __global__ void deep(int n, D, float *x) {}
      extern "C" __global__ void pointer(B b) {}]==]
    assert.equal("a: {x: in f32*, y: in f32*, n: u64[2][3]}", written.named:signature())
    local c <const> = "{parts: {u: u32, size: u32x3}[2], h: f16, k: f16, p: in i32*[2], any: inout void*}"
    assert.equal("n: i32, p2: {c: " .. c .. ", v: in void*}, x: inout f32*", written.deep:signature())
    assert.equal("b: B", written.pointer:signature())
  end)

  it("is not guessed where its definition is another, or not all that there is to know", function()
    if support.is_checked() then
      pending "once is enough: it compiles for a long time, and launches nothing"
      return
    end
    for _, given in ipairs {
      "struct S { int *p; __device__ int f() { return 1; } };", "struct S { int *p; int n : 3; };",
      "struct S { int *p = nullptr; };", "struct Base { int *p; }; struct S : Base { };",
      "struct Base { int n; }; struct S : Base { int *p; };", "struct __align__(16) S { int *p; };",
      "struct S { alignas(16) int *p; };", "struct S { int *p; enum { a } e; };", "struct S { union { int *p; }; };",
      "typedef int word; struct S { word *p; };", "#define N 2\nstruct S { int *p; int n[N]; };",
      "#define int unsigned\nstruct S { int *p; };", "#define more int n; int\nstruct S { more *p; };",
      "#pragma pack(1)\nstruct S { int *p; char c; };", "struct S {\n#if 1\nint *p;\n#endif\n};",
      "#if 0\nstruct S { long n; };\n#else\nstruct S { int *p; };\n#endif", "class S { public: int *p; };",
      "namespace a { struct S { long n; }; } struct S { int *p; };", "struct S { int *p; static const int n = 3; };",
      "struct S { int **p; };", "struct S { int *p; int &n; };", "struct S { int *p; S *next; };",
      "template <class T> struct P { T *p; }; typedef P<int> S;", "struct S { int (*p)[2]; };",
      "struct S { int *p; protected: int n; };", "struct alignas(16) S { int *p; };",
      "#define PART struct S { int *p; };\n#ifdef NEVER\nstruct S { long n; };\n#endif\nPART",
    } do
      local module = dev:compile(given .. '\nextern "C" __global__ void f(S s, int n) { }')
      assert.truthy(module.f:signature():find("^s: [%w_<>]+, n: "), given .. ": " .. module.f:signature())
    end
    local defined = dev:compile('struct S { MORE *p; }; extern "C" __global__ void f(S s) { }',
      { defines = { MORE = "int n; int" } })
    assert.equal("s: S", defined.f:signature())
    defined = dev:compile('struct S { int *p; }; extern "C" __global__ void f(S s) { }',
      { flags = { "-Dint=unsigned" } })
    assert.equal("s: S", defined.f:signature())
  end)

  it("runs nothing of the script's: metamethods are not asked", function()
    local asked = 0
    local proxy = setmetatable({}, { __index = function() asked = asked + 1 end, __pairs = error, __len = error })
    support.raises("InvalidArgument", "'n' is missing", by_pair.launch, by_pair, one, proxy, 1)
    assert.equal(0, asked)
  end)

  it("holds its kernel while names become strings: a finaliser may close it", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local fields, given = {}, {}
      for i = 1, 40 do
        fields[i], given[i] = ("unheard_of_%d: f32"):format(i), i
      end
      local mod = dev:compile [=[
        struct Many { float a[40]; };
        extern "C" __global__ void many(Many m, float *out) { out[0] = m.a[39]; }]=]
      local k = mod:kernel("many", "m: {" .. table.concat(fields, ", ") .. "}, out: out f32*")
      local out, launch = dev:buffer("f32", 1), k.launch
      collectgarbage("incremental", 100, 1000, 1)
      setmetatable({}, { __gc = function() k:close() end })
      for _ = 1, 100000 do
        local ok, why = pcall(launch, k, 1, given, out)
        if not ok then
          print(why.code)
          break
        end
      end
    ]]
    assert.equal(0, code, output)
    assert.equal("Closed\n", output)
  end)

  it("of one value needs no table, however deep, and is done again from a flight like that", function()
    local single = dev:compile [[
      struct In { float x[1]; }; struct Out { In in; };
      struct Outs { Out outs[2]; };
      extern "C" __global__ void single(Out s, float *out) { out[0] = s.in.x[0]; }
      extern "C" __global__ void singles(Outs s, float *out) { out[0] = s.outs[1].in.x[0]; }]]
    local k = single:kernel("single", "s: {in_: {x: f32[1]}}, out: out f32*")
    local several = single:kernel("singles", "s: { outs: { x: f32 }[2] }, out: out f32*")
    several:launch(one, { { 8, { x = 9 } } }, out)
    assert.are.same({ 9 }, out:read(1, 1))
    support.raises("InvalidArgument", { "argument 1 (s.outs)", "'2' is missing" }, several.launch, several, one,
      { { 8 } }, out)
    for i, given in ipairs { 1, { 2 }, { { 3 } }, { { { 4 } } } } do
      k:launch(one, given, out)
      assert.are.same({ i }, out:read(1, 1))
    end
  end)

  it("of one complex number takes it with and without a table around it, also from a flight", function()
    local own = support.open()
    local k = own:compile [[
      struct S { float2 z[1]; };
      extern "C" __global__ void k(S s, float *out) { out[0] = s.z[0].x; out[1] = s.z[0].y; }]]
      :kernel("k", "s: { z: c64[1] }, out: out f32*")
    local y = own:buffer("f32", 2)
    for i, given in ipairs { { 1, 5 }, { { 2, 5 } }, { { { 3, 5 } } }, { z = { 4, 5 } }, { z = { { 5, 5 } } } } do
      k:launch(one, given, y)
      assert.are.same({ i, 5 }, y:read())
    end
    support.raises("InvalidArgument", { "argument 1 (s)", "no part '2'" }, k.launch, k, one, { 1, 2, 3 }, y)
    local output = replayed(own)
    assert.truthy(output:find("nothing found", 1, true), output)
  end)

  it("has parts that graphs know by name", function()
    local graph <close> = dev:capture(function()
      by_pair:launch({ grid = 1, block = 1, label = "my.pair" }, { p = x, n = 4 }, 1)
    end)
    graph:launch()
    graph:bind { ["my.pair.pair.n"] = 2, ["my.pair.by"] = 5 }
    graph:launch()
    assert.are.same({ 7, 7, 2, 2 }, x:read())
    local y = dev:buffer("i32", 4):fill(0)
    graph:bind { ["my.pair#1.pair.p"] = y }
    graph:launch()
    assert.are.same({ 5, 5, 0, 0 }, y:read())
    local unnamed <close> = dev:capture(function()
      mod:kernel("by_pair", "q: { inout i32*, i32 }, i32"):launch({ grid = 1, block = 1, label = "u.q" }, { y, 1 }, 0)
    end)
    support.raises("InvalidArgument", "'u.q#1.2'", unnamed.bind, unnamed, { ["u.q.3"] = 1 }) -- counted as in errors
    unnamed:bind { ["u.q.2"] = 0, ["u.q#1.q.2"] = 1 }
    support.raises("InvalidArgument", "'my.pair#1.pair.n'", graph.bind, graph, { ["my.pair.pair"] = 1 })
    local f = dev:graphed(function(n) by_pair:launch(one, { p = y, n = n }, 1) end)
    for n = 1, 4 do
      f(n)
    end
    assert.are.same({ 9, 8, 2, 1 }, y:read())
  end)

  it("is bound in graphs as a table, whole or in part, by name or in order", function()
    local bound = dev:compile [[
      struct Row { int n; short2 by[2]; }; struct Rows { Row rows[2]; float *out; };
      extern "C" __global__ void bound(Rows r, float3 v, float2 z) {
        float *o = r.out;
        o[0] = r.rows[0].n; o[1] = r.rows[1].by[1].x; o[2] = v.x; o[3] = v.y; o[4] = v.z; o[5] = z.x; o[6] = z.y;
      }]]
    local k = bound:kernel("bound", "r: { rows: { n: i32, by: i16x2[2] }[2], out: inout f32* }, v: f32x3, z: c64")
    local graph <close> = dev:capture(function()
      k:launch(one, { { { 1, { { 0, 0 }, { 0, 0 } } }, { 2, { { 0, 0 }, { 3, 4 } } } }, out }, { 5, 6, 7 }, { 8, 9 })
    end)
    local function after(binds)
      graph:bind(binds)
      out:fill(0)
      graph:launch()
      return out:read(1, 7)
    end
    assert.are.same({ 1, 3, 5, 6, 7, 8, 9 }, after {})
    assert.are.same({ 1, 3, 10, 11, 12, 8, 9 }, after { ["bound#1.v"] = { 10, 11, 12 } })
    assert.are.same({ 1, 3, 10, 20, 12, 8, 9 }, after { ["bound.v"] = { y = 20 } })
    assert.are.same({ 1, 3, 10, 20, 30, 40, 50 }, after { ["bound.v.3"] = 30, ["bound.z"] = { 40, 50 } })
    assert.are.same({ 60, 70, 10, 20, 30, 40, 50 },
      after { ["bound.r"] = { rows = { { n = 60 }, { by = { [2] = { 70, 80 } } } } } })
    assert.are.same({ 61, 71, 10, 20, 30, 40, 50 },
      after { ["bound.r.rows"] = { { 61 }, { 2, { { 0, 0 }, { x = 71 } } } } })
    local other = dev:buffer("f32", 12):fill(0)
    graph:bind { ["bound.r"] = { out = other } }
    graph:launch()
    assert.are.same({ 61, 71 }, other:read(1, 2))

    local function refused(part, binds)
      support.raises("InvalidArgument", part, graph.bind, graph, binds)
    end
    refused({ "no 'bound.r.q'", "'bound#1.v.x'" }, { ["bound.r"] = { q = 1 } })
    refused({ "no 'bound.v.4'" }, { ["bound.v"] = { 1, 2, 3, 4 } })
    refused({ "'bound.v.x' of bind", "table is not a number" }, { ["bound.v"] = { x = { 1 } } })
    refused({ "no 'bound.r.rows'" }, { ["bound.r.rows"] = 1 })
    refused({ "'bound.r.rows.1.n' is there twice" }, { ["bound.r"] = { rows = { { n = 1 } } },
      ["bound.r.rows"] = { { n = 2 } } })
    for names, binds in pairs { -- one place by two of its names
      ["'bound#1.v.x' and 'bound.v.x'"] = { ["bound.v"] = { x = 1 }, ["bound#1.v.x"] = 2 },
      ["'bound.v.1' and 'bound.v.x'"] = { ["bound.v"] = { x = 20, [1] = 10 } },
      ["'bound.r.rows.1.1' and 'bound.r.rows.1.n'"] = { ["bound.r"] = { rows = { { n = 1, [1] = 2 } } } },
    } do
      refused({ names .. " are the same place" }, binds)
    end
    refused({ "'bound.r.rows.1.n' of bind", "string", "i32 expected" }, { ["bound.r"] = { rows = { { n = "x" } } } })
    for _, key in ipairs { "x\0", "x\0y", "1\0" } do -- a zero byte ends no name
      refused({ "name of bind", "zero byte" }, { ["bound.v"] = { [key] = 1 } })
    end
    refused({ "'bound.v' of bind", "a field's name", "boolean" }, { ["bound.v"] = { [true] = 1 } })
    refused({ "'bound.z' of bind", "pair of numbers" }, { ["bound.z"] = { 1, 2, 3 } })
    local deep = {}
    deep.deep = deep
    refused({ "no 'bound.v.deep" }, { ["bound.v"] = deep })
    assert.are.same({ 61, 71 }, other:fill(0) and graph:launch() and other:read(1, 2)) -- as it was
  end)

  it("is told apart where a label and a part could both be meant", function()
    local graph <close> = dev:capture(function()
      by_pair:launch({ grid = 1, block = 1, label = "a" }, { p = x, n = 1 }, 1)
      mod:kernel("by_pair", "p: { p: inout i32*, n: i32 }, by: i32"):launch(
        { grid = 1, block = 1, label = "a.pair" }, { x, 1 }, 1)
      mod:kernel("by_pair", "p: { p: inout i32*, n: i32 }, n: i32"):launch(
        { grid = 1, block = 1, label = "a.pair" }, { x, 1 }, 1)
    end)
    support.raises("InvalidArgument", { "'a#1.pair.n'", "'a.pair#2.n'" }, graph.bind, graph, { ["a.pair.n"] = 3 })
    graph:bind { ["a#1.pair.n"] = 3, ["a.pair#2.n"] = 5 }
    graph:launch():await()
    assert.are.same({ 8, 2, 2, 1 }, x:read())
  end)

  it("is done again from a flight", function()
    local own = support.open()
    local again = own:compile(source)
    local y, z = own:buffer("i32", 4):fill(1), own:buffer("f32", 12):fill(0)
    again:kernel("by_pair", "pair: { p: inout i32*, n: i32 }, by: i32"):launch(one, { p = y, n = 3 }, 4)
    again.vectors:launch(one, { 1, 2, 3, 4 }, 0, { 5, 6, 7 }, { 8, 9 }, { 1, 2, 3, 4 }, { 1, 2 }, z)
    own:synchronize()
    local output = replayed(own)
    assert.truthy(output:find("nothing found", 1, true), output)
    assert.is_nil(output:find("left out", 1, true), output)
  end)

  it("is not taken where the kernel has a pointer, which a buffer is for", function()
    local points = dev:compile [[
      struct Point { float x, y; };
      extern "C" __global__ void move(Point *p, float by) { p[threadIdx.x].x += by; }
      extern "C" __global__ void size(dim3 n, float *out) { out[0] = n.x + 10 * n.y + 100 * n.z; }]]
    local xy = dev:upload("f32", { 1, 2, 3, 4 })
    local err = support.raises("InvalidArgument", { "argument 1 (p)", "gpulua.buffer", "Point*" }, points.move.launch,
      points.move, one, xy, 1)
    assert.truthy(err.hint:find("p: inout void*", 1, true), err.hint)
    for _, signature in ipairs { "p: { x: f32, y: f32 }, by: f32", "p: f32x2, by: f32", "p: u64, by: f32" } do
      support.raises("InvalidArgument", { "'move', parameter 1", "a value", "pointer ('Point*')" }, points.kernel,
        points, "move", signature)
    end
    points:kernel("move", "p: inout void*, by: f32"):launch({ grid = 1, block = 2 }, xy, 5)
    assert.are.same({ 6, 2, 8, 4 }, xy:read())
    points:kernel("move", "p: { at: inout f32* }, by: f32"):launch(one, { xy }, 1)
    assert.are.same({ 7, 2, 8, 4 }, xy:read())
    points.size:launch(one, { 4, 3, 2 }, out) -- a dim3 is a vector of three
    assert.are.same({ 234 }, out:read(1, 1))
  end)

  it("has arrays of whatever it may have itself", function()
    local rows = dev:compile [[
      struct Row { signed char n; int *to; short2 by[2]; };
      struct Rows { Row rows[2]; float m[2][3]; int *more[2]; char last; };
      extern "C" __global__ void rows(Rows r, float *out, int end) {
        for (int i = 0; i < 2; i++) for (int j = 0; j < 2; j++) r.rows[i].to[j] += r.rows[i].n * r.rows[i].by[j].y;
        out[0] = r.m[0][2]; out[1] = r.m[1][0]; out[2] = r.last; out[3] = end;
        r.more[1][3] = 5;
      }]]
    local text <const> = "r: {rows: {n: i8, to: inout i32*, by: i16x2[2]}[2], m: f32[2][3], more: inout i32*[2], "
      .. "last: i8}, out: out f32*, end: i32"
    local k = rows:kernel("rows", text)
    assert.equal(text, k:signature())
    local y, z = dev:buffer("i32", 4):fill(1), dev:buffer("i32", 4):fill(2)
    local function given()
      return { rows = { { 2, y, { { 1, 2 }, { 1, 3 } } }, { n = 10, to = z, by = { { x = 0, y = 1 }, { 0, 2 } } } },
        m = { { 1, 2, 3 }, { 4, 5, 6 } }, more = { nil, z }, last = 7 }
    end
    k:launch(one, given(), out, 8)
    assert.are.same({ 5, 7, 1, 1 }, y:read())
    assert.are.same({ 12, 22, 2, 5 }, z:read())
    assert.are.same({ 3, 4, 7, 8 }, out:read(1, 4))

    local function refused(part, change)
      local wrong = given()
      change(wrong)
      support.raises("InvalidArgument", part, k.launch, k, one, wrong, out, 8)
    end
    refused({ "argument 1 (r.rows.2)", "'n' is missing" }, function(r) r.rows[2].n = nil end)
    refused({ "argument 1 (r.rows)", "no part '3'" }, function(r) r.rows[3] = {} end)
    refused({ "argument 1 (r.rows.1)", "a table expected for a structure, got number" }, function(r) r.rows[1] = 1 end)
    refused({ "argument 1 (r.rows)", "a table expected for an array of 2, got nil" }, function(r) r.rows = nil end)
    refused({ "argument 1 (r.rows.1.by.2)", "a table expected for a i16x2" }, function(r) r.rows[1][3][2] = "x" end)
    refused({ "argument 1 (r.m.2)", "'3' is missing" }, function(r) r.m[2][3] = nil end)
    refused({ "argument 1 (r.more)", "an array of 2, got gpulua.buffer" }, function(r) r.more = z end)
    refused({ "argument 1 (r.more.1)", "f32" }, function(r) r.more[1] = out end)

    local graph <close> = dev:capture(function()
      k:launch({ grid = 1, block = 1, label = "k" }, given(), out, 8)
    end)
    graph:bind { ["k.r.m.2.1"] = 40, ["k.r.rows.1.by.2.y"] = 1, ["k.r.more.2"] = y }
    y:fill(0)
    graph:launch()
    assert.are.same({ 4, 2, 0, 5 }, y:read())
    assert.are.same({ 40 }, out:read(2, 2))
    support.raises("InvalidArgument", { "arguments", "each part is one" }, rows.kernel, rows, "rows",
      "r: { a: { x: i8, y: i8 }[65] }")
  end)

  it("a vector needs no signature by hand", function()
    assert.equal("a: f32x4, z: i8, b: f32x3, c: i32x2, d: u8x4, e: f64x2, out: inout f32*", mod.vectors:signature())
    mod.vectors:launch(one, { 1, 2, 3, 4 }, -1, { x = 5, y = 6, z = 7 }, { 8, 9 }, { 1, 2, 3, 250 }, { 1.5, 2.5 }, out)
    assert.are.same({ 1, 4, -1, 5, 7, 9, 250, 2.5 }, out:read(1, 8))
    support.raises("InvalidArgument", { "argument 1 (a)", "a table expected for a f32x4, got number" },
      mod.vectors.launch, mod.vectors, one, 1, 2, { 5, 6, 7 }, { 8, 9 }, { 1, 2, 3, 4 }, { 1, 2 }, out)
    support.raises("InvalidArgument", { "argument 3 (b)", "no part 'w'" }, mod.vectors.launch, mod.vectors, one,
      { 1, 2, 3, 4 }, 2, { x = 5, y = 6, z = 7, w = 1 }, { 8, 9 }, { 1, 2, 3, 4 }, { 1, 2 }, out)
  end)

  it("is checked like any other argument in check mode", function()
    local checked = support.open { check = true }
    local k = checked:compile(source):kernel("by_pair", "pair: { p: in i32*, n: i32 }, by: i32")
    local y = checked:buffer("i32", 4):fill(1)
    support.raises("UndeclaredAccess", { "argument 1 ('pair.p')" }, function()
      k:launch(one, { p = y, n = 2 }, 1):await()
    end)
  end)

  it("has parts that check mode names, and speaks of one by one", function()
    local output, code = support.script([[
      local dev = require "gpulua".device()
      local mod = dev:compile [=[
        struct Three { int *a[2]; int *b; };
        extern "C" __global__ void three(Three t, int *c) { if (blockIdx.x == 7) *c = *t.a[0]; }]=]
      local k = mod:kernel("three", "t: { a: in i32*[2], b: out i32* }, in i32*")
      local x <const> = {}
      for i = 1, 4 do
        x[i] = dev:buffer("i32", 1):fill(0)
      end
      for _ = 1, 3 do
        k:launch(1, { { x[1], x[2] }, x[3] }, x[4]):await()
      end
      mod:kernel("three", "{ {in i32*, void*}, out i32* }, in i32*"):launch(1, { { nil, x[2] }, x[3] }, nil):await()
      mod:kernel("three", "{ out i32*[3] }, in i32*"):launch(1, { { nil, nil, x[3] } }, nil):await()
      mod:kernel("three", "{ out i32*[3] }, in i32*"):launch(1, { { nil, x[3] } }, nil):await()
    ]], "GPULUA_CHECK=1")
    assert.equal(0, code, output)
    local said = {}
    for line in output:gmatch "'three': (argument [^\n]*)" do
      said[#said + 1] = line
    end
    -- What a GPU's kernels have read or written the same nobody knows.
    assert.are.same(support.is_gpu() and {} or { "argument 1 ('t.a.1') is declared in but was never read",
      "argument 1 ('t.a.2') is declared in but was never read",
      "argument 1 ('t.b') is declared out but was never written",
      "argument 2 ('c') is declared in but was never read",
      "argument 1 ('t.1.2') is declared out but was never written" }, said)
  end)
end)
