-- A warm spare: a second process with the device open, which takes over from a lost one.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a device with a spare", function()
  if not support.is_isolated() then
    it("in this process has none", function()
      local dev <close> = support.open { spare = true }
      local _, children = support.children()
      assert.equal(0, children)
      assert.are.same({ 7 }, dev:buffer("i32", 1):fill(7):read())
    end)
    return
  end

  local add = [[
    extern "C" __global__ void add(int n, int *x, int by) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) x[i] += by;
    }
  ]]

  teardown(support.close_all)

  it("is up at once, again and again, also where the spare has died", function()
    local before = support.children() -- other devices'
    local dev <close> = support.open_with_pid { restarts = 1000, spare = true }
    local mod = dev:compile(add)
    local x = dev:buffer("i32", 4, { durable = true }):fill(2)
    local spares, taken_over = {}, 0
    local function others()
      local found = {}
      for pid in pairs((support.children())) do
        if pid ~= dev.pid and not before[pid] then
          found[#found + 1] = pid
        end
      end
      return found
    end
    assert.equal(1, #others())
    for round = 1, 10 do
      if round % 3 == 0 then
        for _, pid in ipairs(others()) do
          os.execute("kill -9 " .. pid .. " 2>/dev/null")
        end
      end
      local waiting
      -- Who was lost before, or was killed, may take a moment to end, and the next one to be there.
      assert.is_true(support.eventually(5, function()
        waiting = others()
        return #waiting == 1 or #waiting == 0 and round % 3 == 0
      end))
      if round % 5 == 0 then
        gpu.sleep(0.6) -- it has the device open by then
      end
      spares[#spares + 1] = dev.pid
      support.lose(dev)
      if round % 3 ~= 0 and waiting[1] == dev.pid then
        taken_over = taken_over + 1
      end
      for _, pid in ipairs(spares) do
        assert.not_equal(pid, dev.pid)
      end
      assert.are.same({ 2, 2 }, x:read(3, 4))
      local y = dev:buffer("i32", 4):fill(1)
      mod.add:launch({ grid = 1, block = 4 }, 4, y, round)
      assert.are.same({ 1 + round }, y:read(4, 4))
    end
    assert.truthy(taken_over >= 2, taken_over) -- of seven; who has not begun by then is not waited for
    support.raises("InvalidArgument", "spare", support.open, { spare = 1 })
  end)

  it("takes over with what the script has made, while that comes and goes", function()
    local dev <close> = support.open_with_pid { restarts = 1000, spare = true }
    local mod = dev:compile(add)
    local x = dev:upload("i32", { 1, 2, 3, 4 }, { durable = true })
    local signal = { 1, 0, 0, 0, 3, 0, 0, 0 }
    local expected = dev:fft({ shape = 8 }):forward(dev:upload("c64", signal)):read()
    local graph = dev:capture(function()
      mod.add:launch({ grid = 1, block = 4 }, 4, x, 1)
      mod.add:launch({ grid = 1, block = 4 }, 4, x, 2)
    end)
    for round = 1, 4 do
      local short = dev:compile((add:gsub("by;", ("by * %d;"):format(round + 1))))
      local stream <close> = dev:stream { priority = -(round % 2) }
      local blas, plan, rng = dev:blas(), dev:fft { shape = 8 }, dev:rng { seed = round }
      if round % 2 == 0 then
        gpu.sleep(0.8) -- it knows of all of that by then
      end
      if round == 3 then
        short:close()
        short = dev:compile((add:gsub("by;", "by * 4;")))
      end
      support.lose(dev)
      local y = dev:buffer("i32", 4):fill(1)
      short.add:launch({ grid = 1, block = 4, stream = stream }, 4, y, 10)
      assert.are.same({ 1 + 10 * (round + 1) }, y:read(4, 4))
      graph:launch():await()
      graph:launch():await()
      assert.are.same({ 7 }, x:read(1, 1))
      assert.are.same(expected, plan:forward(dev:upload("c64", signal)):read())
      local c = dev:buffer("f32", { 2, 2 })
      local a = dev:upload("f32", { 2, 2 }, { 1, 2, 3, 4 })
      blas:gemm { a = a, b = a, c = c }
      assert.are.same({ 7, 10, 15, 22 }, c:read())
      local drawn = dev:buffer("f32", 64):fill(-1)
      rng:uniform(drawn)
      assert.is_true(drawn:read(64)[1] > 0)
      blas:close()
      plan:close()
      rng:close()
      short:close()
    end
  end)

  -- The second process that is started, the spare, goes wrong.
  local function with_bad_spare(what)
    local wrapper, count = os.tmpname(), os.tmpname()
    local build = os.getenv "GPULUA_BUILD" or "build"
    support.write_file(wrapper, ('#!/bin/sh\necho >> %s\n[ $(wc -l < %s) = 2 ] && %s\nexec %s/gpulua-exec "$@"\n')
      :format(count, count, what, build))
    os.execute("chmod +x " .. wrapper)
    local output, code = support.script([[
      local gpu, uv = require "gpulua", require "luv"
      local dev = gpu.device(nil, { isolate = "process", restarts = 10, spare = true })
      gpu.sleep(1)
      local worst, last, is_over = 0, uv.hrtime(), false
      local ticker = gpu.spawn(function()
        while not is_over do
          gpu.sleep(0.01)
          worst, last = math.max(worst, uv.hrtime() - last), uv.hrtime()
        end
      end)
      os.execute("kill -9 " .. dev.pid)
      last = uv.hrtime()
      while dev.epoch == 1 do
        pcall(dev.await, dev)
        gpu.sleep(0.01)
      end
      is_over = true
      ticker:await()
      print("epoch", dev.epoch, "answers", dev:buffer("i32", 1):fill(7):read()[1], worst < 5e9 and "prompt" or worst)
    ]], ("GPULUA_EXECUTOR=%s GPULUA_DEVICE=%s"):format(wrapper, os.getenv "GPULUA_DEVICE" or "cpu"))
    os.remove(wrapper)
    os.remove(count)
    assert.equal(0, code, output)
    assert.truthy(output:find("epoch\t2\tanswers\t7\tprompt", 1, true), output)
    return output
  end

  it("does not wait for a spare that does not begin", function()
    local output = with_bad_spare "exec sleep 20"
    assert.truthy(output:find("could not take over, another process does: it was still being started", 1, true), output)
    assert.is_nil(output:find("executor?", 1, true), output)
  end)

  it("says so when the spare had died, and goes on without", function()
    local output = with_bad_spare "exit 3"
    assert.truthy(output:find("process does: it had ended %(process %d+ exited with code 3"), output)
  end)

  it("loses nothing but the spare when that had died: no other start is counted", function()
    local before = support.children()
    local dev <close> = support.open_with_pid { restarts = 1, spare = true }
    assert.is_true(support.eventually(10, function() -- until all that are there but the device's have died
      local are_dead = true
      for pid, state in pairs((support.children())) do
        if pid ~= dev.pid and not before[pid] and state ~= "Z" then
          are_dead = false
          gpu.sleep(0.5) -- for it to have said that it is there
          os.execute("kill -9 " .. pid)
        end
      end
      return are_dead
    end))
    support.lose(dev)
    support.works(dev)
  end)
end)
