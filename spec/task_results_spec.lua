-- What tasks have ended with, and where it lies. No device is opened.

local gpu = require "gpulua"

describe("what a task has ended with", function()
  it("is not touched by who resumes or closes its coroutine", function()
    local threads = {}
    local function body(name, f)
      return gpu.spawn(function()
        threads[name] = coroutine.running()
        return f()
      end)
    end
    local function calls() error "nobody calls what a task has returned" end
    local done = body("done", function() return calls, 1, nil end)
    local failed = body("failed", function() error("lost", 0) end)
    local called = body("called", function() error(setmetatable({}, { __call = calls })) end)
    local broken = body("broken", function() coroutine.yield "nothing of ours" end)
    local none = body("none", function() end)
    gpu.sleep(0.001)
    for _ = 1, 2 do
      for name, thread in pairs(threads) do
        assert.equal("dead", coroutine.status(thread), name)
        local went_on, message = coroutine.resume(thread, 7, 8)
        assert.is_false(went_on)
        assert.equal("cannot resume dead coroutine", message, name)
        assert.is_true(coroutine.close(thread), name)
      end
      local results = table.pack(done:await())
      assert.are.same({ calls, 1, nil, n = 3 }, results)
      assert.equal(calls, (gpu.all(done)))
      assert.are.same({ false, "lost" }, { failed:join() })
      assert.equal("table", type(select(2, called:join())))
      local joined, message = broken:join()
      assert.is_false(joined)
      assert.truthy(tostring(message):find "outside a coroutine")
      assert.equal(0, select("#", none:await()))
    end
  end)

  it("comes from a coroutine that lives until it is over, whatever collects meanwhile", function()
    for _ = 1, 50 do -- a return hook, within the end, collects
      local task = gpu.spawn(function()
        debug.sethook(function() coroutine.wrap(collectgarbage)() end, "r")
        return 1
      end)
      assert.equal(1, task:await())
    end
    collectgarbage("generational", 1, 100)
    for i = 1, 500 do -- what is looked at when those end that wait in a circle collects
      pcall(gpu.run, function()
        local a, b
        b = gpu.spawn(function() local _ = ("x"):rep(i % 50 + 10) gpu.sleep(0) a:join() end)
        a = gpu.spawn(function() gpu.sleep(0) b:await() end)
        a:join()
        b:join()
      end)
    end
    collectgarbage "incremental"
  end)

  it("is not touched by finalisers that find its coroutine", function()
    local found, seen = nil, 0
    local function arm()
      setmetatable({}, { __gc = function()
        if found and coroutine.status(found) == "suspended" then
          seen = seen + 1
          coroutine.close(found)
        end
        if arm then arm() end
      end })
    end
    for _ = 1, 200 do arm() end
    collectgarbage("incremental", 100, 200, 8)
    local values = {}
    for i = 1, 300 do values[i] = i end
    for _ = 1, 300 do
      local task = gpu.spawn(function()
        found = coroutine.running()
        return table.unpack(values)
      end)
      local results = table.pack(task:join())
      found = nil
      assert.are.same({ 301, true, 1, 300 }, { results.n, results[1], results[2], results[301] })
    end
    arm = nil
    collectgarbage "generational"
    collectgarbage "incremental"
    assert.equal(0, seen)
  end)

  it("is not touched by a hook that raises while it ends", function()
    for _, kind in ipairs { "r", "c" } do
      for at = 1, 8 do
        for _, values in ipairs { { "one" }, { "one", "two", "three", "four" } } do
          local task = gpu.spawn(function()
            local count = 0
            debug.sethook(function()
              count = count + 1
              if count == at then
                debug.sethook()
                error("late", 0)
              end
            end, kind)
            return table.unpack(values)
          end)
          local results = table.pack(task:join())
          if results[1] then -- it came too late
            assert.are.same(values, table.pack(select(2, table.unpack(results, 1, results.n))), nil)
          else
            assert.are.same({ false, "late", n = 2 }, results)
          end
        end
      end
    end
  end)

  it("is kept also of children that are ended with who can never end", function()
    local output, code = require "spec.support".script [[
      local gpu = require "gpulua"
      local parent_thread, child_thread, child
      local parent = gpu.spawn(function()
        parent_thread = coroutine.running()
        child = gpu.spawn(function()
          child_thread = coroutine.running()
          gpu.sleep(100)
          coroutine.yield()
        end)
        gpu.sleep(100)
        coroutine.yield()
      end)
      gpu.sleep(0.001)
      coroutine.resume(child_thread)
      coroutine.resume(parent_thread)
      gpu.spawn(function() return parent:join() end):join()
      local _, before = child:join()
      print(coroutine.status(child_thread), coroutine.resume(child_thread))
      print(select(2, child:join()) == before)]]
    assert.truthy(output:find "dead\tfalse\tcannot resume dead coroutine\ntrue\n", output)
    assert.truthy(code ~= 139)
  end)

  it("may be more values than half a stack holds", function()
    local values = table.move({}, 1, 600000, 1, {})
    for i = 1, 600000 do values[i] = i end
    local task = gpu.spawn(function() return table.unpack(values) end)
    assert.equal(600001, select("#", task:join()))
    assert.equal(600000, (select(600001, task:join())))
  end)

  it("has no place in a script any more", function()
    local place = require "gpulua.core".place
    local task = gpu.spawn(function() gpu.sleep(0.001) return 1 end)
    gpu.sleep(0)
    assert.truthy(place(task):find "task_results_spec.lua:%d+$")
    task:await()
    assert.is_nil(place(task))
  end)
end)
