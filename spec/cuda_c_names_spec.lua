-- CUDA C that gives names of CUDA's to things of its own, names arrays of shared memory by their namespaces, or asks
-- for clusters. What is right here compiles with NVRTC, and does the same.

local support = require "spec.support"

local dev

--- What the kernel `f` of the source leaves in eight numbers, by two blocks of four.
local function run(source)
  local x = dev:buffer("i32", 8):fill(-1)
  dev:compile(source).f:launch({ grid = 2, block = 4, shared = 64 }, x)
  return x:read()
end

local head = 'extern "C" __global__ void f(int *x) { int i = blockIdx.x * blockDim.x + threadIdx.x; '

describe("CUDA C", function()
  setup(function() dev = support.open() end)
  teardown(support.close_all)

  it("may have locals, parameters and members named as CUDA's indices", function()
    for name, own in pairs {
      ["a local of a kernel"] = head .. "int blockDim = 7; x[i] = blockDim; }",
      ["of a block of it"] = head .. "x[i] = 0; { int threadIdx = 7, gridDim = 0; x[i] += threadIdx + gridDim; }"
        .. " x[i] += threadIdx.x - threadIdx.x; }",
      ["a further declarator"] = head .. "int a = 3, blockDim = 4; x[i] = a + blockDim; }",
      ["of a type with a constructor"] = head .. "dim3 gridDim(3, 7, 5); x[i] = gridDim.y; }",
      ["a reference and a pointer"] = head .. "int v = 7; int &blockDim = v, *blockIdx = &v; x[i] = blockDim; }",
      ["of a loop"] = head .. "int s = 0; for (int threadIdx = 0; threadIdx < 7; threadIdx++) s++; x[i] = s; }",
      ["of a loop with a body"] = head .. "int s = 0, a[2] = {3, 4}; for (int threadIdx : a) { s += threadIdx; } "
        .. "x[i] = s; }",
      ["of a lambda"] = head .. "auto g = [](int threadIdx) { return threadIdx + 1; }; x[i] = g(6); }",
      ["of a function"] = "__device__ int g(dim3 blockDim, const uint3 &threadIdx) "
        .. "{ return blockDim.x + threadIdx.x; } " .. head .. "x[i] = g(dim3(7), uint3{0, 1, 2}); }",
      ["a local of a function"] = "__device__ int g() { int gridDim = 4; "
        .. "{ unsigned blockDim = 3; gridDim += blockDim; } return gridDim + blockDim.x - blockDim.x; } "
        .. head .. "x[i] = g(); }",
      ["of a template"] = "template <int blockDim> __device__ int g() { return blockDim; } "
        .. head .. "x[i] = g<7>(); }",
      ["a member"] = "struct S { int blockDim; dim3 gridDim; "
        .. "__device__ int get() const { return blockDim + gridDim.x; } }; " .. head
        .. "S s{5, dim3(2)}; x[i] = s.get(); }",
      ["a member of a function behind its class"] = "struct S { int blockDim; __device__ int get(); }; "
        .. "__device__ int S::get() { return blockDim; } " .. head .. "S s{7}; x[i] = s.get(); }",
      ["a parameter of another kernel"] = 'extern "C" __global__ void g(int threadIdx, int *x) { x[0] = threadIdx; } '
        .. head .. "x[i] = 7; }",
      ["CUDA's own beside it"] = head .. "int threadIdx = 3; x[i] = ::blockDim.x + threadIdx + ::threadIdx.x"
        .. " - ::threadIdx.x; }",
    } do
      assert.are.same({ 7, 7, 7, 7, 7, 7, 7, 7 }, run(own), name)
    end
  end)

  it("gives such a parameter to launches, and guards by it", function()
    local k = dev:compile [[
      extern "C" __global__ void k(int blockDim, int *x) {
        int i = blockIdx.x * blockDim + threadIdx.x;
        if (i < 6) x[i] = blockDim;
      }]].k
    local x = dev:buffer("i32", 8):fill(-1)
    k:launch({ grid = 2, block = 4 }, 3, x)
    assert.are.same({ 3, 3, 3, 3, 3, 3, -1, -1 }, x:read())
    assert.truthy(k:signature():find("blockDim: i32", 1, true), k:signature())
  end)

  it("may name arrays of dynamic shared memory by their namespaces", function()
    local use = "%s[threadIdx.x] = threadIdx.x + 4; __syncthreads(); x[i] = %s[3 - threadIdx.x] + threadIdx.x; }"
    for name, own in pairs {
      ["with a namespace"] = "namespace n { extern __shared__ int h[]; } " .. head .. (use:gsub("%%s", "n::h")),
      ["with one in another"] = "namespace n { namespace m { extern __shared__ int h[]; } } " .. head
        .. (use:gsub("%%s", "n::m::h")),
      ["from the file"] = "extern __shared__ int h[]; " .. head .. (use:gsub("%%s", "::h")),
      ["in its namespace"] = "namespace n { extern __shared__ int h[]; __device__ int *get() { return h; } } " .. head
        .. (use:gsub("%%s", "n::get()")),
      ["by using it"] = "namespace n { extern __shared__ int h[]; } using n::h; " .. head .. (use:gsub("%%s", "h")),
      ["by using all"] = "namespace n { extern __shared__ int h[]; } using namespace n; "
        .. head .. (use:gsub("%%s", "h")),
    } do
      assert.are.same({ 7, 7, 7, 7, 7, 7, 7, 7 }, run(own), name)
    end
  end)

  describe("with clusters", function()
    local source = 'extern "C" __global__ void __cluster_dims__(2, 1, 1) f(int *x) { x[blockIdx.x] = blockIdx.x; }'

    local function has_clusters()
      return dev.kind == "cpu" or dev.compute >= 9
    end

    it("runs kernels that only ask for them", function()
      if not has_clusters() then
        return pending "this GPU has no clusters"
      end
      local x = dev:buffer("i32", 4)
      dev:compile(source).f:launch({ grid = 4, block = 1 }, x)
      assert.are.same({ 0, 1, 2, 3 }, x:read())
    end)

    it("wants grids of whole clusters", function()
      if not has_clusters() then
        return pending "this GPU has no clusters"
      end
      local op = dev:compile(source).f:launch({ grid = 3, block = 1 }, dev:buffer("i32", 4))
      local ok, err = op:join()
      assert.is_false(ok)
      if dev.kind == "cpu" then
        assert.equal("InvalidArgument", err.code)
        assert.truthy(err.message:find("a grid of 3 x 1 x 1 blocks is no whole number of clusters of 2 x 1 x 1", 1,
          true))
      end
    end)
  end)

  it("is refused on the CPU device with its line where it cannot be had", function()
    if dev.kind ~= "cpu" then
      return pending "of the CPU device"
    end
    for part, own in pairs {
      ["k.cu:2: error: 'blockDim': a name of CUDA's, which nothing outside of functions and classes can have"] =
        '\n__device__ int blockDim;\nextern "C" __global__ void f(int *x) { x[0] = 1; }',
      ["k.cu:3: error: '__cluster_barrier_arrive': an operation of thread block clusters is not supported"] =
        'extern "C" __global__ void f(int *x) {\n x[0] = 1;\n __cluster_barrier_arrive();\n}',
    } do
      local err = support.raises("CompileFailed", {}, dev.compile, dev, own, { name = "k.cu" })
      assert.truthy(err.log:find(part, 1, true), err.log)
    end
  end)
end)
