-- Building buffers anew when the device is up again: several wait for it, and one that gives up leaves it to the rest.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a rebuild", function()
  if support.isolation() ~= "process" or support.is_checked() then
    it("is of a device that comes up again", function()
      pending "the device lives in this process, or the time of waits is not that of work"
    end)
    return
  end

  local dev
  before_each(function()
    dev = gpu.device(nil, { isolate = "process", restarts = 100 })
  end)
  after_each(function()
    dev:close()
  end)

  --- Loses the device, and waits in the way of a script that is no task, so that nobody has seen it come up again.
  local function lose_and_block(seconds)
    dev:inject { lost = 1 }
    pcall(function() dev:current():mark():await() end)
    coroutine.wrap(function() gpu.sleep(seconds) end)()
  end

  it("that loses the device is done again in the next life, and who waits hears of no loss", function()
    local built, restored = 0, 0
    local function rebuild(b)
      built = built + 1
      if built <= 3 then
        dev:inject { lost = 1 }
      end
      b:fill(built):await()
    end
    local x <close> = dev:buffer("i32", 1, { rebuild = rebuild })
    local y <close> = dev:buffer("i32", 1, { rebuild = rebuild })
    dev:on_restored(function() restored = restored + 1 end)
    gpu.all(x:fill(0), y:fill(0))
    dev:inject { lost = 1 }
    assert.is_false((dev:current():mark():join()))
    assert.equal(dev, dev:await())
    assert.equal(5, dev.epoch)
    assert.are.same({ 4, 5 }, { x:read()[1], y:read()[1] })
    assert.is_true(support.eventually(5, function() return restored == 1 end)) -- the other lives were over before
    gpu.sleep(0.05)
    assert.equal(1, restored)
  end)

  --- A device with two buffers that are built anew, which is lost, and so often more at these places; what its hooks
  --- have heard when it is quiet.
  local function heard_with(left)
    local own <close> = gpu.device(nil, { isolate = "process", restarts = 100 })
    local heard, running, bad = {}, 0, nil
    local function lose()
      own:inject { lost = 1 }
      pcall(function() own:current():mark():await() end)
    end
    local function at(place)
      if (left[place] or 0) > 0 then
        left[place] = left[place] - 1
        lose()
      end
    end
    local function built(name)
      return function(b)
        at(name .. " begun")
        b:fill(own.epoch):await()
        at(name .. " built")
      end
    end
    local x <close> = own:buffer("i32", 1, { rebuild = built "first" }):fill(0)
    local y <close> = own:buffer("i32", 1, { rebuild = built "second" }):fill(0)
    own:on_lost(function()
      heard[#heard + 1] = "lost"
      running = running + 1
      if (left.lost or 0) > 0 then
        pcall(own.await, own)
        at "lost"
      end
      running = running - 1
    end)
    own:on_restored(function()
      heard[#heard + 1] = "restored"
      running = running + 1
      local epoch = own.epoch
      local ok, err = pcall(function() return x:read()[1] == epoch and y:read()[1] == epoch end)
      bad = bad or ok and not err and "not built" or not ok and err.code ~= "DeviceLost" and tostring(err) or nil
      at "restored"
      running = running - 1
    end)
    gpu.all(x, y)
    lose()
    assert.is_true(support.eventually(60, function()
      local ok = pcall(own.await, own)
      local losses = 0
      for _, what in ipairs(heard) do losses = losses + (what == "lost" and 1 or 0) end
      for _, count in pairs(left) do ok = ok and count == 0 end
      return ok and running == 0 and losses == own:stats().losses and heard[#heard] == "restored"
    end), table.concat(heard, " "))
    assert.is_nil(bad)
    assert.are.same({ own.epoch, own.epoch }, { x:read()[1], y:read()[1] })
    return table.concat(heard, " ")
  end

  it("and hooks: each loss is heard of, a return when all is built, once, wherever it is lost meanwhile", function()
    local places <const> = { "first begun", "first built", "second begun", "second built", "lost", "restored" }
    assert.equal("lost restored", heard_with {})
    for i, one in ipairs(places) do
      for j = i, #places + 1 do
        local plan = { [one] = 1 }
        if places[j] then
          plan[places[j]] = (plan[places[j]] or 0) + 1
        end
        local heard = heard_with(plan)
        assert.is_nil(heard:find("restored restored", 1, true), one .. ", " .. (places[j] or "") .. ": " .. heard)
      end
    end
  end)

  it("is known to all in check mode, whether or not they have waited for it", function()
    for seed = 1, 5 do
      local own <close> = gpu.device("cpu", { isolate = "process", check = true, seed = seed })
      local is_built = false
      local x <close> = own:buffer("i32", 4, { rebuild = function(b)
        b:fill(2)
        is_built = true
      end }):fill(1)
      local function late(f)
        return gpu.spawn(function()
          while not is_built do
            gpu.sleep(0.001)
          end
          f()
          return x:read()[1]
        end)
      end
      local one, other = late(function() end), late(function() own:await() end)
      own:inject { lost = 1 }
      assert.is_false((own:current():mark():join()))
      own:await()
      assert.are.same({ 2, 2, 2 }, { one:await(), other:await(), x:read()[1] })
    end
  end)

  it("is no race with who used the buffer before it, in check mode", function()
    local own <close> = gpu.device("cpu", { isolate = "process", check = true })
    local has_read = false
    local first <close> = own:buffer("i32", 4, { rebuild = function(b)
      while not has_read do
        gpu.sleep(0.001)
      end
      b:fill(1)
    end })
    local second <close> = own:buffer("i32", 4, { rebuild = function(b) b:fill(2) end })
    gpu.all(first:fill(0), second:fill(0))
    local reader = gpu.spawn(function()
      while own.epoch == 1 do
        gpu.sleep(0.001)
      end
      local y <close> = own:buffer("i32", 4)
      local _, err = pcall(function() y:copy(second):await() end)
      has_read = true
      return err.code
    end)
    own:inject { lost = 1 }
    assert.is_false((own:current():mark():join()))
    own:await()
    assert.equal("DependencyFailed", reader:await())
    assert.are.same({ 1, 2 }, { first:read()[1], second:read()[1] })
  end)

  it("comes after the restart, which reports say that the script waited for", function()
    local own <close> = gpu.device("cpu", { isolate = "process", trace = true })
    own:inject { lost = 1 }
    assert.is_false((own:current():mark():join()))
    own:await()
    local labels = {}
    for _, wait in ipairs(gpu.report().waits) do
      labels[wait.label] = true
    end
    assert.is_true(labels.restart)
  end)

  it("that loses the device for good is over", function()
    local few <close> = gpu.device(nil, { isolate = "process", restarts = 2 })
    local x <close> = few:buffer("i32", 1, { rebuild = function(b)
      few:inject { lost = 1 }
      b:fill(1):await()
    end }):fill(0)
    x:await()
    few:inject { lost = 1 }
    assert.is_false((few:current():mark():join()))
    support.raises("Unrecoverable", {}, few.await, few)
  end)

  it("goes on when who waited first has no more time, or is cancelled, or fails", function()
    local ways = {
      function() dev:await(0.05) end,
      function() gpu.timeout(0.05, dev.await, dev) end,
      function()
        gpu.spawn(function() dev:await() end)
        gpu.sleep(0.05)
        error "of its own"
      end,
    }
    for i, way in ipairs(ways) do
      local built = 0
      local x <close> = dev:buffer("i32", 2, { rebuild = function(b)
        gpu.sleep(0.2)
        b:fill(i)
        built = built + 1
      end }):fill(0)
      dev:synchronize()
      local is_back = false
      local first = gpu.spawn(function()
        lose_and_block(support.is_gpu() and 1 or 0.1)
        is_back = true
        way()
      end)
      local second = gpu.spawn(function()
        while not is_back do
          gpu.sleep(0.005)
        end
        return dev:await()
      end)
      assert.is_true((second:join()), i)
      assert.is_false((first:join()))
      assert.are.same({ i, i }, x:read())
      assert.equal(1, built)
    end
  end)

  it("that raises Cancelled is one that fails, and the others are built", function()
    local dead = gpu.spawn(gpu.sleep, 100)
    dead:cancel()
    assert.is_false((dead:join()))
    local restored = false
    local a <close> = dev:buffer("i32", 2, { rebuild = function() dead:await() end }):fill(1)
    local b <close> = dev:buffer("i32", 2, { rebuild = function(x) x:fill(2) end }):fill(2)
    dev:on_restored(function() restored = true end)
    dev:synchronize()
    dev:inject { lost = 1 }
    pcall(function() dev:current():mark():await() end)
    support.raises("Cancelled", "", dev.await, dev)
    assert.are.same({ 2, 2 }, b:read())
    support.raises("DependencyFailed", "has not been built anew", a.read, a)
    assert.is_true(support.eventually(5, function() return restored end))
  end)

  local ends = {
    closed = function(held)
      held.rng:close()
      held.b:close()
    end,
    collected = function(held)
      held.rng, held.b = nil, nil
      collectgarbage()
      collectgarbage()
    end,
  }

  it("is of all that graphs and slices use, also where the handle has been closed, or collected", function()
    for how, finish in pairs(ends) do
      local x, built = dev:buffer("f32", 4, { durable = true }):fill(0), {}
      local y = dev:buffer("i32", 4, { durable = true }):fill(0)
      local held = { rng = dev:rng { seed = 3 }, b = dev:buffer("i32", { 2, 2 }, { rebuild = function(b)
        built[#built + 1] = { #b, b.shape[1], b.shape[2], b.type }
        b:write { 1, 2, 3, 4 }
      end }):fill(0) }
      held.rng:normal(x)
      local draw <close> = dev:capture(function() held.rng:normal(x) end)
      local copy <close> = dev:capture(function() y:copy(held.b:view(nil, 4)) end)
      local slice <close> = held.b:slice(2, 3)
      finish(held)
      for life = 1, 2 do -- and once more
        dev:inject { lost = 1 }
        pcall(function() x:fill(0):await() end)
        dev:await()
        assert.equal(life, #built, how)
        assert.are.same({ 4, 2, 2, "i32" }, built[life])
        x:fill(9)
        draw:launch():await()
        copy:launch():await()
        assert.are_not.same({ 9, 9, 9, 9 }, x:read())
        assert.are.same({ 1, 2, 3, 4 }, y:read())
        assert.are.same({ 2, 3 }, slice:read())
      end
      slice:write { 7, 8 }
      assert.are.same({ 7, 8 }, slice:read())
    end
  end)

  it("is over when its device is closed meanwhile, and says nothing of that", function()
    for _, last in ipairs { "", "x:fill(1)" } do
      local output, code = support.script([==[
        local gpu = require "gpulua"
        local dev = gpu.device(nil, { isolate = "process", restarts = 9 })
        local has_begun
        local kept = dev:buffer("f32", 1, { rebuild = function(x)
          has_begun = true
          gpu.sleep(0.2)
          ]==] .. last .. [==[

        end }):fill(0)
        dev:synchronize()
        dev:inject { lost = 1 }
        assert(not dev:current():mark():join())
        while not has_begun do gpu.sleep(0.001) end
        dev:close()
        gpu.sleep(0.5)
        print("end", kept)]==])
      assert.truthy(output:find("end\t", 1, true), output)
      assert.is_nil(output:find("nobody saw", 1, true), output)
      assert.equal(0, code, output)
    end
  end)

  it("waits for the next life without taking note of what the script has not heard of", function()
    local output, code = support.script [==[
      local gpu = require "gpulua"
      local dev = gpu.device(nil, { isolate = "process", restarts = 9 })
      local built = 0
      local _ <const> = dev:buffer("f32", 1, { rebuild = function(x)
        built = built + 1
        if built == 1 then dev:inject { lost = 1 } end
        x:fill(1):await()
      end }):fill(0)
      local other = dev:buffer("f32", 4)
      dev:synchronize()
      dev:inject { lost = 1 }
      gpu.spawn(function() other:fill(2) end):await() -- which has ended when its work is lost
      while dev.epoch < 3 or built < 2 do gpu.sleep(0.001) end
      print("built", built)]==]
    assert.truthy(output:find("built\t2\n", 1, true), output)
    assert.truthy(output:find("is lost", 1, true), output)
    assert.equal(1, code)
  end)

  it("is forgotten when nobody uses the buffer any more", function()
    local functions = setmetatable({}, { __mode = "k" })
    local function make()
      local b = dev:buffer("i32", 2, { rebuild = function(x) functions[x] = true end }):fill(1)
      local f = function(x) x:fill(2) end
      local c = dev:buffer("i32", 2, { rebuild = f }):fill(1)
      functions[f] = true
      local slices = { b:slice(1, 1), c:slice(1, 1) }
      b:close()
      c:close()
      return slices
    end
    for _ = 1, 40 do
      for _, slice in ipairs(make()) do
        slice:close()
      end
    end
    local kept = make()
    for _ = 1, 2 do -- what has just been over is given back a little later, and handles when they are collected
      collectgarbage()
      dev:synchronize()
      dev:inject { lost = 1 }
      pcall(function() dev:current():mark():await() end)
      dev:await()
      assert.are.same({ 2 }, kept[2]:read())
    end
    collectgarbage()
    collectgarbage()
    local count = 0
    for key in pairs(functions) do
      count = count + (type(key) == "function" and 1 or 0)
    end
    assert.equal(1, count)
  end)

  it("gives hints of what is Stale that can be followed: in captures, of what they make, of guarded memory", function()
    local x, guarded, made = dev:buffer("i32", 1):fill(0), dev:memory({ guard = true }):buffer("i32", 1):fill(0)
    local graph = dev:capture(function() made = dev:buffer("i32", 1):fill(1) end)
    graph:launch():await()
    support.lose(dev)
    local function hint(f, ...) return (support.raises("Stale", {}, f, ...).hint) end
    assert.equal("make the buffer again, or make it durable", hint(x.read, x))
    assert.equal("make the buffer again before the capture, or make it durable there",
      hint(dev.capture, dev, function() x:fill(1) end))
    assert.equal("capture again: what is made in a capture cannot be durable", hint(made.read, made))
    assert.equal("make the buffer again: memory with a guard cannot be durable", hint(guarded.read, guarded))
  end)

  it("leaves a write that was in flight failed, though its content comes back", function()
    local function run(ending)
      return support.script([==[
        local gpu = require "gpulua"
        local dev = gpu.device(nil, { isolate = "process" })
        local x = dev:buffer("i32", 1, { durable = true }):fill(1)
        dev:synchronize()
        dev:inject { lost = 1 }
        x:fill(5)
        while dev.epoch < 2 do
          gpu.sleep(0.001)
        end
        ]==] .. ending)
    end
    local output, code = run "print(select(2, pcall(x.read, x)).code, x:read()[1])"
    assert.are.same({ "DeviceLost\t5\n", 0 }, { output, code })
    output, code = run "dev:await() print(x:read()[1])"
    assert.are.same({ "5\n", 0 }, { output, code })
    output, code = run "print 'nobody has seen it'"
    assert.truthy(output:find "nobody has seen it\n" and output:find "DeviceLost: .*suspect: fill", output)
    assert.equal(1, code)
  end)
end)
