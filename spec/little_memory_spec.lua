-- gpulua with an address space that is too small (ulimit -v): what there is no memory for is said, and nothing crashes.

local support = require "spec.support"

describe("little memory", function()
  local build = os.getenv "GPULUA_BUILD" or "build"
  if (support.read_file(build .. "/flags") or ""):find("-fsanitize", 1, true) then
    it("is for programs that have none", function() pending "sanitizers reserve addresses without end" end)
    return
  end

  local script
  before_each(function() script = os.tmpname() end)
  after_each(function() os.remove(script) end)

  local function run(limit, arguments)
    local command = "{ ulimit -c 0; ulimit -v %d; timeout -k 5 60 %s/gpulua %s %s; }"
    return support.command(command:format(limit, build, script, arguments))
  end

  it("for the stack of the script's thread is none: what the rest is used up by is an error", function()
    support.write_file(script, [[
      local keep, count, reserve = {}, 0, string.rep("r", tonumber(arg[1]) * 1024)
      for i = 1, 1000 do keep[i] = false end
      local size, block = 1 << 26, string.rep("x", 4096)
      while size >= 4096 do
        local ok, text = pcall(string.rep, block, size // #block)
        if ok then
          count = count % #keep + 1
          keep[count] = text
        else
          size = size // 2
        end
      end
      reserve = nil
      collectgarbage()
      local function nested(n)
        return n > 0 and string.gsub("a", "a", function() nested(n - 1) end)
      end
      io.write(tostring(select(2, pcall(nested, 150))))]])
    for reserve = 64, 512, 32 do -- too little for the nested calls, and enough, but for their stack
      local output, code = run(40000, reserve) -- all of which is touched, which takes its time
      assert.truthy(output == "a" or output == "not enough memory", reserve .. ": " .. output)
      assert.equal(0, code)
    end
  end)

  it("for a device and its work is said", function()
    support.write_file(script, [[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu")
      local x = dev:buffer("f32", 1000):fill(1)
      print(gpu.map("x + 1", { x = x }):read(1, 1)[1], gpu.reduce("sum", x):get())]])
    for limit = 20000, 420000, 40000 do
      local output, code = run(limit, "")
      if code ~= 0 then
        assert.equal(1, code, limit .. ": " .. output)
        assert.truthy(output:find "memory" or output:find "thread", limit .. ": " .. output)
      end
    end
  end)
end)
