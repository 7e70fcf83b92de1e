-- Restarts of a lost device for which no process can be started.

local support = require "spec.support"

describe("a restart", function()
  if support.isolation() ~= "process" then
    it("is of a device in a process of its own", function()
      pending "the device lives in this process"
    end)
    return
  end

  --- A program that has a durable buffer `x` on `dev`, no descriptor left, and a loss, does `text`. What it writes.
  local function run(window, text)
    local output, code = support.script(([[
      local gpu = require "gpulua"
      local dev = gpu.device(os.getenv "GPULUA_DEVICE", { isolate = "process", restarts = 1, window = %g })
      local x = dev:buffer("i32", 4, { durable = true }):fill(6)
      x:await()
      local files, file = {}
      repeat
        file = io.open "/dev/null"
        files[#files + 1] = file
      until not file
      dev:inject { lost = 1 }
      dev:current():mark():join()
      %s]]):format(window, text), "ulimit -n 64;")
    assert.equal(0, code, output)
    return output
  end

  it("that no process could be started for is none, and is tried again", function()
    local output = run(60, [[
      local messages = {}
      for _ = 1, 30 do -- many times what one attempt after another would take
        local ok, err = pcall(x.fill, x, 1)
        messages[ok and "ok" or err.code .. ": " .. err.message] = true
        gpu.sleep(0.02)
      end
      for message in pairs(messages) do print(message) end
      for _, file in ipairs(files) do file:close() end
      dev:await()
      print(dev.epoch, x:read(1, 1)[1])]])
    assert.truthy(output:find("DeviceLost: device [^\n]* did not come up again: [^\n]*: Too many open files\n"), output)
    assert.is_nil(output:find("Unrecoverable", 1, true), output)
    assert.truthy(output:find "2\t6\n$", output)
  end)

  it("is given up when no process could be started all the time", function()
    local output = run(0.2, [[
      local ok, err = pcall(dev.await, dev)
      print(ok, err.code, err.message)]])
    assert.truthy(output:find "false\tUnrecoverable\tdevice [^\n]* could not be restarted for 0%.2 s: ", output)
    assert.truthy(output:find("Too many open files", 1, true), output)
  end)
end)
