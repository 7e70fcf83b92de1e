-- Exchange of memory with real libraries by DLPack: spec/host/exchange.py is a host in Python. The same script does
-- PyTorch and CuPy, with device memory, where they can be imported.

local support = require "spec.support"
local build = assert(os.getenv "GPULUA_BUILD", "GPULUA_BUILD is not set")

describe("exchange by DLPack", function()
  local results, output = {}, ""

  setup(function()
    local python = support.python()
    -- A program that is not built with the sanitizers cannot load a library that is.
    if python and not build:find "/check/%a+$" and not build:find "/sanitize%-[%a%-]+$" then
      local command = "env -u GPULUA_CHECK GPULUA_EXECUTOR=%s/gpulua-exec timeout -k 5 300 %s %s %s/libgpulua.so 2>&1"
      local pipe = assert(io.popen(command:format(build, python, "spec/host/exchange.py", build)))
      output = pipe:read "a"
      pipe:close()
    end
    for line in output:gmatch "[^\n]+" do
      local verdict, name, why = line:match "^(%a[%a ]-) (%a+: [^:]*):? ?(.*)$"
      if name then
        results[name] = { verdict = verdict, why = why }
      end
    end
  end)

  local function check(name)
    it(name, function()
      local result = results[name]
      if not result and output == "" then
        pending "there is no Python, or the build is one with sanitizers, which it cannot load"
      elseif result and result.verdict == "skipped" then
        pending(result.why)
      end
      assert.truthy(result and result.verdict == "ok", output)
    end)
  end

  check "numpy: a kernel works on an array of NumPy's, in place"
  check "numpy: the same by a versioned tensor"
  check "numpy: a result is NumPy's without a copy"
  check "numpy: a versioned tensor says what must not be written"
  check "numpy: every element type goes both ways"
  check "numpy: what is not compact or has no elements is refused"
  check "numpy: arrays outlive the buffer, the device and the object"
  check "numpy: an array is kept until the kernel that uses it is over"
  check "numpy: an array that came back is the buffer that it was"
  check "numpy: memory without an order is external, and refused"
  check "numpy: arrays are dropped by any thread"
  check "numpy: host buffers are shared also from a process of its own"
  check "numpy: the manual's lines for bindings do what they say"
  check "torch: host memory goes both ways without a copy"
  check "torch: device memory goes both ways without a copy"
  check "cupy: device memory goes both ways without a copy"

  it("runs every test of the script", function()
    local names = {}
    for name in support.read_file("spec/host/exchange.py"):gmatch '@test%("(%a+", "[^"]*)"%)' do
      names[#names + 1] = (name:gsub('", "', ": "))
    end
    local mine = support.read_file "spec/exchange_spec.lua"
    assert.truthy(#names >= 15)
    for _, name in ipairs(names) do
      assert.truthy(mine:find('check "' .. name .. '"', 1, true), name)
    end
  end)
end)
