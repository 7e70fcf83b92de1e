-- Devices: which one a script gets, what they say of themselves, options.

local gpu = require "gpulua"
local support = require "spec.support"

describe("device", function()
  local dev

  setup(function()
    dev = support.open { label = "mine" }
  end)
  teardown(support.close_all)

  it("has name, kind, epoch, memory_bytes, compute and multiprocessors", function()
    assert.equal(dev.kind == "cpu" and "cpu" or "cuda:0", dev.name)
    assert.truthy(dev.kind == "cpu" or dev.kind == "cuda")
    assert.equal(1, dev.epoch)
    assert.equal("integer", math.type(dev.memory_bytes))
    assert.truthy(dev.memory_bytes > 1 << 20)
    assert.equal("number", type(dev.compute))
    assert.equal("integer", math.type(dev.multiprocessors))
    assert.truthy(dev.multiprocessors >= 1)
    assert.equal("mine", dev.label)
    assert.equal(support.isolation(), dev.isolation)
    assert.is_nil(dev.no_such_field)
  end)

  it("prints itself with name, isolation and label", function()
    assert.equal(("gpulua.device %s, isolation %s (mine)"):format(dev.name, dev.isolation), tostring(dev))
  end)

  it("is the one that is open already, unless options are given", function()
    local first = gpu.device(dev.name)
    assert.equal(first, gpu.device(dev.name))
    assert.not_equal(first, dev)
    local anew <close> = gpu.device(dev.name, {})
    assert.not_equal(first, anew)
    local by_table <close> = gpu.device { isolate = "none", label = "by table" }
    assert.equal("by table", by_table.label)
    assert.equal("none", by_table.isolation)
    first:close()
    local second = gpu.device(dev.name)
    assert.not_equal(first, second)
    support.works(second)
    second:close()
  end)

  it("is one, whether it is asked for by its name or as the default first", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local kind = os.getenv "GPULUA_DEVICE":match "%a+"
      local named = gpu.device(kind)
      assert(gpu.device(named.name) == named and gpu.device(kind) == named)
      if gpu.device().name == named.name then -- what the default is depends on the machine
        assert(gpu.device() == named and gpu.device(kind) == named and #gpu.devices() == 1)
      end
      local x = gpu.device():buffer("i32", 1):fill(7)
      print(x:read()[1], gpu.device(kind, {}) == named)]]
    assert.equal(0, code)
    assert.equal("7\tfalse\n", output)
  end)

  it("is among gpu.devices() as long as it is open", function()
    local function is_listed(wanted)
      for _, one in ipairs(gpu.devices()) do
        if one == wanted then
          return true
        end
      end
      return false
    end
    local other = support.open()
    assert.is_true(is_listed(dev))
    assert.is_true(is_listed(other))
    other:close()
    assert.is_false(is_listed(other))
  end)

  describe("by default", function()
    local function script(text, environment)
      return support.script(text, "env -u GPULUA_DEVICE -u GPULUA_ISOLATE " .. (environment or ""))
    end
    local default = pcall(gpu.device, "cuda", {}) and "cuda:0\tprocess\n" or "cpu\tnone\n"

    it("is the first GPU, or the CPU device where there is none", function()
      assert.equal(default, (script [[
        local dev <close> = require "gpulua".device()
        print(dev.name, dev.isolation)
      ]]))
    end)

    it("is what GPULUA_DEVICE says, and lives where GPULUA_ISOLATE says", function()
      local show = [[
        local dev <close> = require "gpulua".device()
        print(dev.name, dev.isolation)
      ]]
      assert.equal("cpu\tnone\n", (script(show, "GPULUA_DEVICE=cpu")))
      assert.equal("cpu\tprocess\n", (script(show, "GPULUA_DEVICE=cpu GPULUA_ISOLATE=process")))
      local output, code = script(show, "GPULUA_DEVICE=abacus")
      assert.equal(1, code)
      assert.truthy(output:find("abacus", 1, true), output)
    end)

    it("is said by gpulua -v", function()
      local build = os.getenv "GPULUA_BUILD" or "build"
      local pipe = assert(io.popen(("env -u GPULUA_DEVICE -u GPULUA_ISOLATE %s/gpulua -v 2>&1"):format(build)))
      local output = pipe:read "a"
      pipe:close()
      assert.truthy(output:find("device " .. default:match "^[^\t]+", 1, true), output)
    end)
  end)

  describe("refuses", function()
    it("options of other versions and ones that it does not know", function()
      support.raises("InvalidArgument", "seed", gpu.device, dev.name, { seed = 7 }) -- without check
      support.raises("InvalidArgument", '"process", "thread" or "none" expected, got "threads"', gpu.device, dev.name,
        { isolate = "threads" })
      support.raises("InvalidArgument", "budjet", gpu.device, dev.name, { budjet = 1 })
      support.raises("InvalidArgument", "with a dot, gpu.device()", gpu.device, gpu)
      support.raises("InvalidArgument", "a function that launches expected", dev.capture, dev,
        dev:buffer("i32", 1):fill(1))
      support.raises("InvalidArgument", "label", gpu.device, dev.name, { label = 5 })
      support.raises("InvalidArgument", "options", gpu.device, dev.name, 5)
      support.raises("InvalidArgument", "number", gpu.device, dev.name, { [1] = "x" })
    end)

    it("names of any length", function()
      for _, length in ipairs { 1, 31, 32, 33, 63, 64, 65, 1000, 100000 } do
        local ok, err = pcall(gpu.device, ("x"):rep(length))
        assert.is_false(ok)
        assert.truthy(err.code == "InvalidArgument" or err.code == "NoDevice", tostring(err))
      end
    end)
  end)

  it("gives its cache of compiled code the folder of GPULUA_CACHE", function()
    local folder = os.tmpname()
    os.remove(folder)
    local output = support.script([[
      local dev <close> = require "gpulua".device()
      dev:compile 'extern "C" __global__ void f(int *x) { x[0] = 1; }'
      print "compiled"
    ]], "GPULUA_CACHE=" .. folder)
    local pipe = assert(io.popen("find " .. folder .. " -type f | wc -l; rm -r " .. folder))
    local count = tonumber(pipe:read "a")
    pipe:close()
    assert.equal("compiled\n", output)
    assert.truthy(count > 0, "nothing was put there")
  end)

  it("gives its address space back when it is closed, whoever holds its modules", function()
    local output = support.script([[
      local gpu = require "gpulua"
      local function address_space()
        for line in io.lines "/proc/self/status" do
          local kib = line:match "VmSize:%s+(%d+)"
          if kib then return kib / 2 ^ 30 end -- TiB
        end
      end
      local kept, before = {}, address_space()
      for i = 1, 12 do
        local dev <close> = gpu.device("cpu", {})
        kept[i] = dev:compile 'extern "C" __global__ void k(int *x) { x[0] = 1; }'
        kept[i].k:launch({ grid = 1, block = 1 }, dev:buffer("i32", 4):fill(0)):await()
      end
      print(address_space() - before < 1)]])
    assert.equal("true\n", output)
  end)
end)
