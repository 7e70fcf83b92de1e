-- What tasks have ended with, and where it lies. No device is opened.

local gpu = require "gpulua"
local support = require "spec.support"

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
    finally(support.collect_as_usual)
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
    finally(support.collect_as_usual)
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
    collectgarbage()
    assert.equal(0, seen)
  end)

  it("is not touched by a hook that raises while it ends", function()
    for _, kind in ipairs { "r", "c" } do
      for at = 1, 16 do
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
            assert.are.same(values, { table.unpack(results, 2, results.n) })
          else
            assert.are.same({ false, "late", n = 2 }, results)
          end
        end
      end
    end
  end)

  it("is kept also of children that are ended with who can never end", function()
    local output, code = support.script [[
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
      while not child_thread do gpu.sleep(0.001) end -- which a slow machine may reach before the child does
      coroutine.resume(child_thread)
      coroutine.resume(parent_thread)
      gpu.spawn(function() return parent:join() end):join()
      local _, before = child:join()
      print(coroutine.status(child_thread), coroutine.resume(child_thread))
      print(select(2, child:join()) == before)]]
    assert.truthy(output:find "dead\tfalse\tcannot resume dead coroutine\ntrue\n", output)
    assert.truthy(code ~= 139)
  end)

  it("is kept once, where something else resumes the coroutine when its children are over", function()
    for _, values in ipairs { "", "'one'", "'one', print" } do
      local output, code = support.script(([[
        local gpu = require "gpulua"
        local thread
        local first = gpu.spawn(function() gpu.sleep(0.01) end)
        local resumer = gpu.spawn(function()
          first:join()
          print("resumed", coroutine.status(thread), (coroutine.resume(thread)))
        end)
        local parent = gpu.spawn(function() -- which is in the queue by then
          thread = coroutine.running()
          gpu.spawn(function() first:join() end)
          return %s
        end)
        print(parent:status(), select("#", parent:await()))
        resumer:join()
        print(parent:status(), select("#", parent:await()))]]):format(values))
      local count = select(2, values:gsub("[%a']+", ""))
      assert.equal(0, code, output)
      assert.truthy(output:find("resumed\tsuspended\ttrue\n", 1, true), output)
      assert.truthy(output:find(("done\t%d\n"):format(count), 1, true), output)
    end
  end)

  it("is not touched by finalisers that spawn while it is kept: those tasks are nobody's children", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local children, armed = {}, 0
      local function arm()
        setmetatable({}, { __gc = function()
          if armed > 0 then
            armed = armed - 1
            children[#children + 1] = gpu.spawn(function()
              gpu.sleep(0.002)
              gpu.spawn(gpu.sleep, 0.001):join()
            end)
          end
          arm()
        end })
      end
      for _ = 1, 500 do arm() end
      collectgarbage("incremental", 100, 100, 5)
      for _ = 1, 4000 do
        local task = gpu.spawn(function()
          local grown = {}
          armed = 5 -- at most: those of the first would be 70,000
          for i = 1, 5 do grown[i] = i end
          return 1, 2, 3
        end)
        assert(select("#", task:await()) == 3)
        armed = 0
      end
      collectgarbage()
      for _, child in ipairs(children) do child:join() end
      arm = function() end
      print(#children > 100)]]
    assert.equal("true\n", output)
    assert.equal(0, code)
  end)

  it("comes for chains of tasks that are longer than C has stack, and for those that can never end", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local made
      local function link(n)
        if n > 0 then gpu.spawn(link, n - 1) else made = true gpu.sleep(1000) end
      end
      local first = gpu.spawn(link, 200000)
      while not made do gpu.sleep(0) end
      first:cancel()
      print(first:join())
      local other_thread, thread
      local other = gpu.spawn(function() other_thread = coroutine.running() gpu.sleep(1000) coroutine.yield() end)
      made = false
      local function chain(n)
        if n > 0 then gpu.spawn(chain, n - 1) else made = true other:join() end
      end
      local root = gpu.spawn(function()
        thread = coroutine.running()
        gpu.spawn(chain, 10000)
        gpu.sleep(1000)
        coroutine.yield()
      end)
      while not made do gpu.sleep(0) end
      coroutine.resume(other_thread)
      coroutine.resume(thread)
      print(gpu.spawn(function() return root:join() end):join())]]
    assert.truthy(output:find "^true\n" and output:find "true\tfalse\t[^\n]*Cancelled: the task spawned", output)
    assert.truthy(code == 1, code) -- which is told
  end)

  it("comes for who was resumed elsewhere and died of too many values, or runs when its parent is given up", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local values = table.move({}, 1, 600000, 1, {})
      for i = 1, 600000 do values[i] = i end
      local thread
      local task = gpu.spawn(function()
        thread = coroutine.running()
        pcall(gpu.sleep, 100)
        return table.unpack(values)
      end)
      gpu.sleep(0.001)
      coroutine.resume(thread)
      local ok, e = task:join()
      print(ok, e and e.code)
      local parent_thread, child_thread, parent, child
      parent = gpu.spawn(function()
        parent_thread = coroutine.running()
        child = gpu.spawn(function()
          child_thread = coroutine.running()
          gpu.sleep(1000)
          return "child"
        end)
        gpu.sleep(1000)
        coroutine.yield()
      end)
      while not child_thread do gpu.sleep(0.001) end
      coroutine.resume(parent_thread)
      local waiter = gpu.spawn(function() return parent:join() end)
      coroutine.resume(child_thread)
      print(parent:status(), child:status(), waiter:join())]]
    assert.truthy(output:find "^false\tOutOfMemory\n", output)
    assert.truthy(output:find "running\t%a+\ttrue\tfalse\t[^\n]*Cancelled: the task spawned", output)
    assert.truthy(code == 1, code)
  end)

  it("comes where what is closed in a chain that is given up detaches or closes who is above it", function()
    for _, how in ipairs { "detach", "close" } do
      local output, code = support.script([[
        local gpu = require "gpulua"
        local root_thread, leaf_thread, middle_thread, middle
        local root = gpu.spawn(function()
          root_thread = coroutine.running()
          middle = gpu.spawn(function()
            middle_thread = coroutine.running()
            gpu.spawn(function()
              leaf_thread = coroutine.running()
              local x <close> = setmetatable({}, { __close = function()
                if "]] .. how .. [[" == "close" then
                  coroutine.close(middle_thread)
                else
                  middle:detach()
                end
                collectgarbage() collectgarbage()
              end })
              pcall(gpu.sleep, 1000)
              coroutine.yield()
            end)
          end)
          gpu.sleep(1000)
          coroutine.yield()
        end)
        while not leaf_thread do gpu.sleep(0.001) end
        coroutine.resume(leaf_thread)
        coroutine.resume(root_thread)
        print(gpu.spawn(function() return root:join() end):join())
        print "over"]])
      assert.truthy(output:find "true\tfalse\t[^\n]*Cancelled: the task spawned at", output)
      assert.truthy(output:find("\nover\n", 1, true), output)
      assert.truthy(code == 1, code)
    end
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
