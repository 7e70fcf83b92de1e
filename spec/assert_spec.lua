-- What is told of assertions that fail in kernels: the same on every device, from wherever the device lives.

local support = require "spec.support"

describe("a failed assertion of a kernel", function()
  local kind
  local source = [[
    __device__ void need(int n, int i) {
      assert(n > i && "enough");
    }
    extern "C" __global__ void check(int *x, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      need(n, i);
      x[i] = n;
    }
  ]]

  setup(function()
    local dev <close> = support.open()
    kind = dev.kind
  end)
  teardown(support.close_all)

  --- On a GPU it ends every context of its process, and is printed there.
  local function wants_its_own_process()
    if kind ~= "cpu" and not support.is_isolated() then
      pending "a failed assertion ends a GPU for this process"
    end
  end
  local function code()
    return kind == "cpu" and "KernelFailed" or "DeviceLost"
  end

  it("is told with its text, its line, its block and its thread", function()
    wants_its_own_process()
    local dev <close> = support.open()
    local x = dev:buffer("i32", 96):fill(0)
    local mod = dev:compile(source, { name = "needs.cu" })
    local op = mod.check:launch({ grid = 3, block = 32, label = "checks" }, x, 95)
    local err = support.raises(code(), "assertion `n > i && \"enough\"' failed at ", op.await, op)
    assert.truthy(err.message:find("needs.cu:2, block (2,0,0), thread (31,0,0)", 1, true), err.message)
    assert.truthy(tostring(err):find("checks", 1, true), tostring(err))
    if kind == "cpu" then
      return
    end
    assert.truthy(err.message:find("need(int, int)", 1, true), err.message)
    assert.truthy(err.message:find("CUDA_ERROR_ASSERT (710", 1, true), err.message)
    assert.truthy(err.message:find "'checks' may have been running$", err.message)
    dev:await()
    support.works(dev)
  end)

  it("is told once, of however many threads", function()
    wants_its_own_process()
    local dev <close> = support.open()
    local x = dev:buffer("i32", 64 * 64):fill(0)
    -- A GPU's driver prints nothing at all where they are many more (1,024; 580.159.04).
    local op = dev:compile(source).check:launch({ grid = 8, block = 32 }, x, 0)
    local err = support.raises(code(), "assertion `", op.await, op)
    local _, count = err.message:gsub("assertion `", "")
    assert.equal(1, count, err.message)
    assert.truthy(#err.message < 900, err.message)
    if kind ~= "cpu" then
      assert.truthy(err.message:find "and %d+ more: ", err.message)
    end
  end)

  it("of the next life is its own", function()
    wants_its_own_process()
    local dev <close> = support.open()
    local mod = dev:compile(source .. [[
      extern "C" __global__ void other(int *x) { assert(x[0] == 12345); }
    ]])
    local x = dev:buffer("i32", 32, { durable = true }):fill(0)
    local op = mod.check:launch({ grid = 1, block = 32 }, x, 5)
    support.raises(code(), "assertion `n > i", op.await, op)
    dev:await()
    x:fill(0)
    op = mod.other:launch({ grid = 1, block = 1 }, x)
    local err = support.raises(code(), "assertion `x[0] == 12345' failed", op.await, op)
    assert.is_nil(err.message:find("n > i", 1, true), err.message)
  end)

  it("is printed by a GPU's driver as ever, on the script's standard error", function()
    if kind == "cpu" then
      pending "the CPU device prints none"
    end
    wants_its_own_process()
    local output = support.script(([[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local x = dev:buffer("i32", 32):fill(0)
      local ok, err = dev:compile(%q).check:launch({ grid = 1, block = 32 }, x, 30):join()
      io.stdout:write(err.code, "\n")
    ]]):format(source))
    local _, count = output:gsub("Assertion `n > i && \"enough\"` failed", "")
    assert.truthy(count >= 1, output)
    assert.truthy(output:find("DeviceLost", 1, true), output)
  end)
end)
