-- Core dumps of a GPU that a kernel has ended, for who asks for them.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a core dump", function()
  local kind, folder
  local source = [[
    extern "C" __global__ void trap(int *x) { x[0] = 1; __trap(); }
    extern "C" __global__ void wild(int *x, long long at) { ((volatile int *)at)[0] = x[0]; }
    extern "C" __global__ void check(int *x) { assert(x == nullptr); }
  ]]

  setup(function()
    local dev <close> = support.open()
    kind = dev.kind
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
  end)
  teardown(function()
    support.close_all()
    os.execute("rm -r " .. folder)
  end)

  local function files()
    local pipe = assert(io.popen("ls " .. folder))
    local names = {}
    for name in pipe:lines() do
      names[#names + 1] = name
    end
    pipe:close()
    return names
  end

  --- Opens a device that leaves them, or the spec is pending.
  local function open()
    if kind == "cpu" or not support.is_isolated() then
      pending "the device is no GPU in a process of its own"
    end
    local ok, dev = pcall(support.open, { coredump = folder, restarts = 100 })
    if not ok and dev.code == "Unsupported" then
      pending(dev.message)
    end
    return ok and dev or error(dev)
  end

  it("is left by each kind of fault, in a file of its own that the error names", function()
    local dev <close> = open()
    local mod = dev:compile(source)
    local before = #files()
    for i, fault in ipairs { "trap", "wild", "check" } do
      local x = dev:buffer("i32", 1):fill(0)
      local op = fault == "wild" and mod.wild:launch(support.one, x, 16) or mod[fault]:launch(support.one, x)
      local err = support.raises("DeviceLost", "; core dump in " .. folder .. "/", op.await, op)
      local path = err.message:match "; core dump in ([^;]+%.core)"
      local file <close> = assert(io.open(path, "rb"), err.message)
      assert.equal("\127ELF", file:read(4), fault)
      assert.truthy(file:seek "end" < 64 << 20, "small: " .. file:seek "end")
      assert.equal(before + i, #files())
      dev:await()
      support.works(dev)
    end
  end)

  it("is not left by who has not asked", function()
    if kind == "cpu" or not support.is_isolated() then
      pending "the device is no GPU in a process of its own"
    end
    local dev <close> = support.open()
    local before = #files()
    local x = dev:buffer("i32", 1):fill(0)
    local op = dev:compile(source).trap:launch(support.one, x)
    local err = support.raises("DeviceLost", {}, op.await, op)
    assert.is_nil(err.message:find("core dump", 1, true), err.message)
    assert.equal(before, #files())
  end)

  it("is for GPUs in a process of their own, and for a folder that is there", function()
    local wants = kind == "cpu" and "Unsupported" or not support.is_isolated() and "Unsupported" or "Io"
    support.raises(wants, "coredump: ", support.open, { coredump = folder .. "/nowhere" })
    support.raises("Unsupported", "process of its own", gpu.device, "cpu", { coredump = folder })
    support.raises("InvalidArgument", "coredump", support.open, { coredump = 5 })
    support.raises("InvalidArgument", "coredumps", support.open, { coredumps = folder })
  end)

  it("that the environment asks for changes nothing for a device that leaves none", function()
    local output, code = support.script([[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu")
      print(dev:upload("i32", { 1, 2, 3 }):read()[3])
    ]], "GPULUA_COREDUMP=/nowhere/at/all")
    assert.equal("3\n", output)
    assert.equal(0, code)
  end)
end)
