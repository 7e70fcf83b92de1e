-- CUDA C whose functions are called without being named, and what must be evaluated once.

local support = require "spec.support"

local dev

--- What kernel `name` of the source leaves in 16 numbers, which are -1 before, in two blocks of eight. HERE is where a
-- thread is among them.
local function run(source, name)
  source = source:gsub("HERE", "blockIdx.x * blockDim.x + threadIdx.x")
  local kernel = dev:compile(source, { names = name }):kernel(name or "f")
  local x = dev:buffer("i32", 16):fill(-1)
  kernel:launch({ grid = 2, block = 8 }, x)
  return x:read()
end

describe("CUDA C", function()
  setup(function() dev = support.open() end)
  teardown(support.close_all)

  it("knows its thread in functions that no kernel names", function()
    local global, own = {}, {}
    for i = 1, 16 do global[i], own[i] = i - 1, (i - 1) % 8 end
    assert.are.same(global, run([[
      struct Op { __device__ void operator()(int *x) const { int i = HERE; x[i] = i; } };
      template <class O> __global__ void f(int *x) { O op; op(x); }]], "f<Op>"))
    assert.are.same(global, run([[
      struct It { unsigned i, step; __device__ unsigned operator*() const { return i; }
        __device__ It &operator++() { i += step; return *this; }
        __device__ bool operator!=(It o) const { return i < o.i; } };
      struct Range { unsigned n;
        __device__ It begin() const { return It{HERE, gridDim.x * blockDim.x}; }
        __device__ It end() const { return It{n, 0}; } };
      extern "C" __global__ void f(int *x) { for (unsigned i : Range{16}) x[i] = i; }]]))
    local base = "struct Base { int t; __device__ Base() : t(threadIdx.x) {} }; "
    local lane = "__device__ int lane() { return threadIdx.x; } "
    for _, source in ipairs {
      base .. 'struct Derived : Base {}; extern "C" __global__ void f(int *x) { Derived d; x[HERE] = d.t; }',
      base .. 'using Ctx = Base; extern "C" __global__ void f(int *x) { Ctx d; x[HERE] = d.t; }',
      base .. 'struct W { Base b; }; typedef W Q; extern "C" __global__ void f(int *x) { Q d; x[HERE] = d.b.t; }',
      'struct Base { unsigned t{threadIdx.x}; }; extern "C" __global__ void f(int *x) { Base d; x[HERE] = d.t; }',
      'struct Base { unsigned t = threadIdx.x; }; struct E : Base { }; __device__ unsigned get(E e) { return e.t; }'
        .. ' extern "C" __global__ void f(int *x) { E d; x[HERE] = get(d); }',
      "struct Base { __device__ Base(int *x); }; __device__ Base::Base(int *x) { x[HERE] = threadIdx.x; }"
        .. ' using Other = Base; extern "C" __global__ void f(int *x) { Other o(x); }',
      lane .. 'typedef int (*F)(); __device__ F table[1] = {lane};'
        .. ' extern "C" __global__ void f(int *x) { x[HERE] = table[0](); }',
      "struct D { int *x; __device__ ~D() { x[HERE] = threadIdx.x; } };"
        .. ' extern "C" __global__ void f(int *x) { D d{x}; }',
    } do
      assert.are.same(own, run(source), source)
    end
    for _, source in ipairs {
      'struct B { __device__ int h() { return 0; } }; extern "C" __global__ void f(int *x) {'
        .. " struct A : B { __device__ int g() { return threadIdx.x; } }; A a; x[HERE] = a.g(); }",
      'template <class T> struct P { T v; }; extern "C" __global__ void f(int *x) {'
        .. " auto l = [](int k) -> P<int> { return P<int>{(int)threadIdx.x + k}; }; x[HERE] = l(0).v; }",
      'extern "C" __global__ void f(int *x) {'
        .. " auto l = [](int k) noexcept(true) -> decltype(k + 1) { return threadIdx.x + k; }; x[HERE] = l(0); }",
    } do
      assert.are.same(own, run(source), source)
    end
    assert.are.same(own, run(lane .. [[
      template <int (*F)()> __global__ void f(int *x) { x[HERE] = F(); }]], "f<lane>"))
    assert.are.same(own, run(lane .. [[
      typedef int (*Fn)();
      template <class T, Fn F> __global__ void f(int *x) { x[HERE] = F(); }]], "f<int, lane>"))
    assert.are.same(own, run(base .. [[
      template <class C> __global__ void f(int *x) { C d; x[HERE] = d.t; }]], "f<Base>"))
  end)

  it("waits in functions that no kernel names", function()
    local reversed = { 7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0 }
    local shared = "__shared__ int s[8]; s[threadIdx.x] = threadIdx.x; "
    local out = " x[blockIdx.x * 8 + threadIdx.x] = s[7 - threadIdx.x]; "
    local barrier = "struct Barrier { __device__ Barrier() { __syncthreads(); } }; "
    local wait = "__device__ void wait() { __syncthreads(); } "
    for name, source in pairs {
      [false] = barrier .. "using B = Barrier; extern \"C\" __global__ void f(int *x) { "
        .. shared .. "B b;" .. out .. "}",
      ["f<wait>"] = wait .. "template <void (*W)()> __global__ void f(int *x) { " .. shared .. "W();" .. out .. "}",
      ["f"] = wait .. "typedef void (*F)(); __device__ F table[] = {wait}; extern \"C\" __global__ void f(int *x) { "
        .. shared .. "table[0]();" .. out .. "}",
    } do
      assert.are.same(reversed, run(source, name or nil), source)
    end
  end)

  it("evaluates the condition of a guard once, and its index as narrow as it is", function()
    local mod = dev:compile [[
      template <class T> __device__ bool take(T *p, T limit) { return atomicAdd(p, T(1)) < limit; }
      __device__ int claim(int *p) { return atomicAdd(p, 1); }
      extern "C" __global__ void a(int n, int *c, int *x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (take<int>(c, n)) x[i] += 1;
      }
      extern "C" __global__ void b(int n, int *c, int *x) { int i = (claim)(c); if (i < n) x[i] += 1; }
      extern "C" __global__ void narrow(int n, int *x) {
        unsigned char t = threadIdx.x;
        if (t < n) x[threadIdx.x] = 1;
      }
      extern "C" __global__ void cast(long n, int *x) {
        const int i = (int)(blockIdx.x * blockDim.x) + static_cast<int>(threadIdx.x);
        if ((long)(i) < n) x[i] = 1;
      }]]
    local function sum(x)
      local total = 0
      for _, value in ipairs(x:read()) do total = total + value end
      return total
    end
    for kernel, limit in pairs { a = 100, b = 128 } do
      local c, x = dev:upload("i32", { 0 }), dev:buffer("i32", 256):fill(0)
      mod[kernel]:launch({ grid = 4, block = 32 }, kernel == "a" and 100 or 256, c, x)
      assert.are.same({ 128, limit }, { c:read()[1], sum(x) }, kernel)
    end
    local x = dev:buffer("i32", 300):fill(0)
    mod.narrow:launch({ grid = 1, block = 300 }, 100, x)
    assert.equal(144, sum(x))
    mod.cast:launch({ grid = 2, block = 100 }, 150, x:fill(0))
    assert.equal(150, sum(x))
  end)

  it("lets a source have its own min and max, lists, and pointers to functions", function()
    local mod = dev:compile [=[
      __device__ int min(int a, int b) { return a < b ? a + 100 : b + 200; }
      template <typename T> __device__ T max(T a, T b) { return a < b ? b : a; }
      struct P { int a, b; __device__ bool operator<(P other) const { return a < other.a; } };
      __device__ P pair(int a) { return {a, 2 * a}; }
      __device__ int add(int a) { return a + 1; }
      __device__ int twice(int a) { return 2 * a; }
      __device__ int (*op)(int) = add;
      __device__ int (*const ops[2])(int) = {add, twice}, after = 7;
      extern "C" __global__ void own(int *x, float *y) {
        x[0] = min(x[0], 3);
        x[1] = max(x[1], 3);
        x[2] = max(pair(1), P{5, 6}).b;
        x[3] = max(3u, 4u) + min(5u, 6u);
        for (int i : {10, 20, 30}) x[4] += i;
        x[5] = op(1) + ops[x[5]](4) + after;
        op = twice;
        x[6] = op(21);
        y[0] = min(y[0], 2.0f) + max(y[1], 1.0f);
      }]=]
    local x, y = dev:upload("i32", { 1, 9, 0, 0, 0, 1, 0 }), dev:upload("f32", { 4, 0.5 })
    mod.own:launch({ grid = 1, block = 1 }, x, y)
    assert.are.same({ 101, 9, 6, 9, 60, 17, 42 }, x:read())
    assert.are.same({ 3 }, y:read(1, 1))
  end)

  it("divides by the operator that is written, and has 64 bits of the same type as a GPU", function()
    local x = dev:upload("i32", { 17, 0, 0 })
    local mod = dev:compile [[
      #include <stdint.h>
      struct I { int x; };
      __device__ I operator%(I a, int b) { return I{a.x % b}; }
      __device__ I &operator%=(I &a, int b) { a.x = a.x % b + 100; return a; }
      struct H { unsigned x; __device__ void operator%=(unsigned b) { x = x % b; } };
      extern "C" __global__ void f(int n, int *x) {
        I a{x[0]};
        a %= n;
        x[1] = a.x;
        H h{(unsigned)x[0]};
        h %= n;
        x[2] = h.x;
        x[0] %= n;
      }
      extern "C" __global__ void g(uint64_t *x, int64_t *y) {
        atomicAdd(x, 1);
        unsigned long long *p = x;
        p[0] += 2;
        y[0] = max(y[1], 0ll) + INT64_MAX + INT64_MIN;
      }]]
    mod.f:launch({ grid = 1, block = 1 }, 5, x)
    assert.are.same({ 2, 102, 2 }, x:read())
    local wide, signed = dev:upload("u64", { 5 }), dev:upload("i64", { 0, 7 })
    mod.g:launch({ grid = 1, block = 1 }, wide, signed)
    assert.are.same({ 8 }, wide:read())
    assert.are.same({ 6, 7 }, signed:read())
  end)

  it("divides by templates of its own, and into bit-fields", function()
    assert.are.same({ 6, 3, 10, 5, 4, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 }, run [[
      template <class T> struct V { T x, y; };
      template <class A, class B> __device__ V<A> operator/(const V<A> &a, B b) { return V<A>{a.x / b, a.y / b}; }
      template <class A, class B> __device__ V<A> operator%(const V<A> &a, B b) { return V<A>{a.x % b, a.y % b}; }
      template <class A, class B> __device__ V<A> &operator/=(V<A> &a, B b) { a.x /= b; return a; }
      template <class A, class B> __device__ V<A> &operator%=(V<A> &a, B b) { a.y %= b; return a; }
      struct W { int x; };
      template <class A, class B> __device__ W operator/(A a, B b) { return W{a.x / b.x}; }
      extern "C" __global__ void f(int *x) {
        if (blockIdx.x != 0 || threadIdx.x != 0) return;
        int n = -2 * x[0];
        V<int> a{12, 7};
        a = a / n;
        x[0] = a.x;
        x[1] = a.y;
        V<int> b{20, 25};
        b /= n;
        b %= 10;
        x[2] = b.x;
        x[3] = b.y;
        W w{8};
        x[4] = (w / W{n}).x;
        x[5] = (V<int>{13, 0} % n).x;
      }]])
    assert.are.same({ 9, 1, 20, 2, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 }, run [[
      struct S { int a : 12, b : 20; };
      struct T { char c; int v, w; } __attribute__((packed));
      extern "C" __global__ void f(int *x) {
        if (blockIdx.x != 0 || threadIdx.x != 0) return;
        int n = -3 * x[0];
        S s{27, 400};
        s.a /= n;
        s.b %= n;
        T t{1, 60, 11};
        t.v /= n;
        t.w %= n;
        x[0] = s.a;
        x[1] = s.b;
        x[2] = t.v;
        x[3] = t.w;
      }]])
  end)
end)
