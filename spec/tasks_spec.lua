-- Tasks and the loop: who runs when, who owns whom, how waits end. No device is opened.

local gpu = require "gpulua"
local support = require "spec.support"

describe("tasks", function()
  --- A closable that notes when it is closed.
  local function closable(log, name)
    return setmetatable({}, { __close = function() log[#log + 1] = name end })
  end

  describe("spawn", function()
    it("queues: a task first runs at its spawner's next wait", function()
      local log = {}
      local task = gpu.spawn(function() log[#log + 1] = "task" end)
      log[#log + 1] = "spawner"
      assert.equal("queued", task:status())
      gpu.sleep(0)
      assert.are.same({ "spawner", "task" }, log)
      assert.equal("done", task:status())
    end)

    it("passes arguments and gives back every result", function()
      local task = gpu.spawn(function(...) return select("#", ...), ... end, 1, nil, 3, nil)
      assert.are.same({ n = 5, 4, 1, nil, 3, nil }, table.pack(task:await()))
      -- Again, and as often as asked.
      assert.are.same({ n = 6, true, 4, 1, nil, 3, nil }, table.pack(task:join()))
    end)

    it("takes what can be called", function()
      local callable = setmetatable({}, { __call = function(_, x) return x * 2 end })
      assert.equal(8, gpu.spawn(callable, 4):await())
      assert.equal(6, coroutine.wrap(gpu.spawn)(callable, 3):await()) -- no line of a script spawns it
    end)

    it("refuses what cannot", function()
      support.raises("InvalidArgument", { "argument 1 of spawn", "no value" }, gpu.spawn)
      support.raises("InvalidArgument", { "argument 1 of spawn", "table" }, gpu.spawn, {})
    end)

    it("runs tasks in the order in which they became ready", function()
      local log = {}
      local tasks = {}
      for i = 1, 5 do
        tasks[i] = gpu.spawn(function()
          log[#log + 1] = i
          gpu.sleep(0)
          log[#log + 1] = i + 10
        end)
      end
      gpu.all(tasks)
      assert.are.same({ 1, 2, 3, 4, 5, 11, 12, 13, 14, 15 }, log)
    end)

    it("gives each task its own results and locals over many switches", function()
      local tasks = {}
      for i = 1, 200 do
        tasks[i] = gpu.spawn(function()
          local sum = 0
          for k = 1, 10 do
            sum = sum + k * i
            gpu.sleep(0)
          end
          return sum
        end)
      end
      for i, sum in ipairs { gpu.all(tasks) } do
        assert.equal(55 * i, sum)
      end
    end)
  end)

  describe("await and join", function()
    it("raise and return the error value itself", function()
      local value = { "an error" }
      local task = gpu.spawn(function() error(value) end)
      local ok, err = task:join()
      assert.is_false(ok)
      assert.equal(value, err)
      ok, err = pcall(task.await, task)
      assert.is_false(ok)
      assert.equal(value, err)
      assert.equal("failed", task:status())
    end)

    it("keep where the error was raised", function()
      local function deep() error("from the deep", 0) end
      local task = gpu.spawn(function() deep() end)
      task:join()
      assert.truthy(task:traceback():find("in upvalue 'deep'", 1, true), task:traceback())
      assert.is_nil(gpu.spawn(function() end):traceback())
    end)

    it("are named in the traceback of their errors, whoever calls them, together with the line", function()
      local task = gpu.spawn(function() gpu.sleep(0.05) end)
      local ok, err = pcall(task.await, task, 0.001)
      local line = debug.getinfo(1, "l").currentline - 1
      assert.is_false(ok)
      assert.truthy(err.traceback:find "in %a+ 'gpulua%.task%.await'\n%s*%[C%]: in function 'pcall'", err.traceback)
      assert.equal(line, err.line)
      -- Where no script calls: the line that spawned the task.
      local sleeper = gpu.spawn(gpu.sleep, 60)
      line = debug.getinfo(1, "l").currentline - 1
      gpu.sleep(0)
      sleeper:cancel()
      ok, err = sleeper:join()
      assert.is_false(ok)
      support.is_error(err, "Cancelled")
      assert.equal(line, err.line)
      assert.truthy(err.source:find("tasks_spec.lua", 1, true))
      assert.truthy(err.traceback:find("in function 'gpulua.sleep'", 1, true), err.traceback)
      task:await()
    end)

    it("have the names that scripts call them by, whatever has been loaded", function()
      for _ = 1, 8 do -- the order of a hash is another one in each process
        local output = support.script [[
          local gpu = require "gpulua"
          require "gpulua.npy"
          gpu.run(function() gpu.sleep(-1) end)]]
        assert.truthy(output:find("in function 'gpulua.sleep'", 1, true), output)
      end
    end)

    it("know who spawned the task that failed", function()
      local line = debug.getinfo(1, "l").currentline
      local outer = gpu.spawn(function()
        local inner = gpu.spawn(function() gpu.sleep(-1) end)
        inner:await()
      end)
      local _, err = outer:join()
      local wanted = "in a task spawned at spec/tasks_spec.lua:%d\n\tby a task spawned at spec/tasks_spec.lua:%d"
      assert.truthy(err.traceback:find(wanted:format(line + 2, line + 1), 1, true), err.traceback)
      local text = gpu.spawn(error, "as text")
      text:join()
      assert.truthy(text:traceback():find("in a task spawned at spec/tasks_spec.lua:" .. line + 8, 1, true))
    end)

    it("end with Timeout, and the task goes on", function()
      local gate = gpu.spawn(gpu.sleep, 60)
      local task = gpu.spawn(function()
        gate:join()
        return "late"
      end)
      support.raises("Timeout", "task", task.await, task, 0.001)
      local ok, err = task:join(0.001)
      assert.is_false(ok)
      support.is_error(err, "Timeout")
      assert.equal("waiting", task:status())
      gate:cancel()
      assert.equal("late", task:await(10))
    end)

    it("refuse a time that is none", function()
      local task = gpu.spawn(function() gpu.sleep(0) end)
      for _, seconds in ipairs { -1, 0 / 0, "1", {} } do
        support.raises("InvalidArgument", "seconds", task.await, task, seconds)
      end
      task:await()
    end)

    it("wait for a task that others wait for, too", function()
      local source = gpu.spawn(function()
        gpu.sleep(0.005)
        return "for all"
      end)
      local readers = {}
      for i = 1, 4 do
        readers[i] = gpu.spawn(function() return source:await() end)
      end
      assert.are.same({ "for all", "for all", "for all", "for all" }, { gpu.all(readers) })
    end)

    it("refuse to wait for oneself or for who waits for oneself", function()
      local own
      own = gpu.spawn(function() return own:await() end)
      local _, err = own:join()
      support.is_error(err, "InvalidArgument", "itself")
      local parent
      parent = gpu.spawn(function()
        return gpu.spawn(function() return parent:await() end):await()
      end)
      _, err = parent:join()
      support.is_error(err, "InvalidArgument", "waits for it to end")
    end)

    describe("that would close a circle of tasks", function()
      --- The line that calls this, as errors have it.
      local function here()
        return ("%s:%d"):format(debug.getinfo(2, "S").short_src, debug.getinfo(2, "l").currentline)
      end

      it("raise at the call, naming the lines that spawned them", function()
        for _, how in ipairs { "join", "await" } do
          local a, b, line_a, line_b, caught
          local outer = gpu.spawn(function()
            line_a = here() a = gpu.spawn(function()
              gpu.sleep(0)
              local ok, err = pcall(b[how], b)
              caught = not ok and err
              return "a"
            end)
            line_b = here() b = gpu.spawn(function() return a:await() end)
          end)
          outer:await()
          support.is_error(caught, "InvalidArgument",
            { "never end", ("%s (this task) -> %s -> %s"):format(line_a, line_b, line_a) })
          assert.are.same({ line_a, line_b }, caught.tasks)
          -- Who pcalls it goes on, and with it who waits for it.
          assert.equal("a", b:await())
        end
      end)

      it("are not seen by those in it who join", function()
        local a, b
        local outer = gpu.spawn(function()
          a = gpu.spawn(function()
            gpu.sleep(0)
            return b:join()
          end)
          b = gpu.spawn(function() return a:join() end)
        end)
        local ok, err = outer:join()
        assert.is_false(ok)
        support.is_error(err, "InvalidArgument", "never end")
        local own_ok, own_err = a:join()
        assert.is_false(own_ok)
        assert.equal(err, own_err)
        assert.are.same({ true, false, err }, { b:join() })
      end)

      it("raise over any number of tasks, through all and any", function()
        for _, wait in ipairs { gpu.all, gpu.any } do
          local tasks, caught = {}, nil
          local outer = gpu.spawn(function()
            tasks[1] = gpu.spawn(function()
              gpu.sleep(0)
              local ok, err = pcall(wait, tasks[9], tasks[20])
              caught = not ok and err
            end)
            for i = 2, 20 do
              tasks[i] = gpu.spawn(function() tasks[i - 1]:join() end)
            end
          end)
          outer:await()
          support.is_error(caught, "InvalidArgument", { "never end", " -> ... -> " })
          assert.equal(9, #caught.tasks)
        end
      end)

      it("raise through a child of the one that is waited for", function()
        local a, b, caught
        local outer = gpu.spawn(function()
          a = gpu.spawn(function() gpu.spawn(function()
            gpu.sleep(0)
            local ok, err = pcall(b.join, b)
            caught = not ok and err
          end) end)
          b = gpu.spawn(function() return a:join() end)
        end)
        outer:await()
        support.is_error(caught, "InvalidArgument", "never end")
      end)

      it("are fine where something else may end the wait", function()
        local a, b, other
        local outer = gpu.spawn(function()
          other = gpu.spawn(function() gpu.sleep(0.005) return "other" end)
          a = gpu.spawn(function() return gpu.any(b, other) end)
          b = gpu.spawn(function() return a:await() end)
        end)
        outer:await()
        assert.are.same({ 2, "other" }, { b:await() })
        outer = gpu.spawn(function()
          a = gpu.spawn(function()
            gpu.sleep(0)
            local ok, err = b:join(0.005)
            return ok, err.code
          end)
          b = gpu.spawn(function() return a:join() end)
        end)
        outer:await()
        assert.are.same({ true, false, "Timeout" }, { b:await() })
      end)

      it("cost no more than a look at those who wait", function()
        local tasks = {}
        tasks[1] = gpu.spawn(function() gpu.sleep(0.001) return 0 end)
        for i = 2, 3000 do
          tasks[i] = gpu.spawn(function() return 1 + gpu.all(tasks[i - 1], tasks[i // 2]) end)
        end
        local start = support.now()
        assert.equal(2999, tasks[3000]:await())
        assert.truthy(support.now() - start < 5)
      end)
    end)

    it("raise NotYieldable where a task cannot be waited for", function()
      local task = gpu.spawn(function() gpu.sleep(0.005) end)
      local generator = coroutine.wrap(function() return pcall(task.await, task) end)
      local _, err = generator()
      support.is_error(err, "NotYieldable")
      local ok
      ok, err = pcall(table.sort, { 1, 2 }, function() return task:await() end)
      assert.is_false(ok)
      support.is_error(err, "NotYieldable")
      ok, err = pcall(string.gsub, "x", "x", function() return task:await() end)
      assert.is_false(ok)
      support.is_error(err, "NotYieldable")
      package.preload["spec.awaits"] = function() return task:await() end
      ok, err = pcall(require, "spec.awaits")
      package.preload["spec.awaits"] = nil
      assert.is_false(ok)
      support.is_error(err, "NotYieldable")
      _, err = coroutine.wrap(function() return pcall(gpu.all, task) end)()
      support.is_error(err, "NotYieldable")
      -- What is over already can be had anywhere.
      task:await()
      assert.is_true((coroutine.wrap(function() return task:join() end)()))
    end)
  end)

  describe("ownership", function()
    it("a parent waits for its children when its body ends", function()
      local log = {}
      gpu.spawn(function()
        gpu.spawn(function()
          gpu.sleep(0.005)
          log[#log + 1] = "child"
          gpu.spawn(function()
            gpu.sleep(0.005)
            log[#log + 1] = "grandchild"
          end)
        end)
        log[#log + 1] = "body"
      end):await()
      assert.are.same({ "body", "child", "grandchild" }, log)
    end)

    it("an error that nobody joined cancels the siblings and is raised when the body ends", function()
      local slow, after
      local parent = gpu.spawn(function()
        slow = gpu.spawn(function() gpu.sleep(60) end)
        gpu.spawn(function() error("boom", 0) end)
        gpu.sleep(0.005)
        after = true -- not raised inside this wait
        return "result"
      end)
      local ok, err = parent:join(10)
      assert.is_false(ok)
      assert.equal("boom", err)
      assert.is_true(after)
      assert.equal("cancelled", slow:status())
      assert.truthy(parent:traceback():find("tasks_spec.lua", 1, true))
    end)

    it("an error that was joined stops there", function()
      local parent = gpu.spawn(function()
        local child = gpu.spawn(function() error("seen", 0) end)
        return child:join()
      end)
      local ok, child_ok, err = parent:join()
      assert.is_true(ok)
      assert.is_false(child_ok)
      assert.equal("seen", err)
    end)

    it("an error in the body cancels the children before it is raised", function()
      local log = {}
      local parent = gpu.spawn(function()
        gpu.spawn(function()
          local _ <close> = closable(log, "child closed")
          gpu.sleep(60)
        end)
        gpu.sleep(0)
        error("body", 0)
      end)
      local ok, err = parent:join(10)
      assert.is_false(ok)
      assert.equal("body", err)
      assert.are.same({ "child closed" }, log)
    end)

    it("detach opts out", function()
      local finished = false
      local child
      local parent = gpu.spawn(function()
        child = gpu.spawn(function()
          gpu.sleep(0.01)
          finished = true
        end):detach()
      end)
      parent:await()
      assert.is_false(finished)
      child:await()
      assert.is_true(finished)
    end)

    it("nests deeply", function()
      local function nest(n)
        return n == 0 and 0 or 1 + gpu.spawn(nest, n - 1):await()
      end
      assert.equal(150, nest(150))
    end)
  end)

  describe("cancel", function()
    it("ends a wait with Cancelled, and goes down to the children", function()
      local codes, child = {}, nil
      local parent = gpu.spawn(function()
        child = gpu.spawn(function()
          local _, err = pcall(gpu.sleep, 60)
          codes[#codes + 1] = err.code
          error(err, 0)
        end)
        local _, err = pcall(gpu.sleep, 60)
        codes[#codes + 1] = err.code
        error(err, 0)
      end)
      gpu.sleep(0.005)
      assert.equal(parent, parent:cancel())
      local ok, err = parent:join(10)
      assert.is_false(ok)
      support.is_error(err, "Cancelled")
      assert.are.same({ "Cancelled", "Cancelled" }, codes)
      assert.equal("cancelled", parent:status())
      assert.equal("cancelled", child:status())
    end)

    it("after its wait has ended lets it see how, and is heard of at the next wait", function()
      local seen = {}
      local inner = gpu.spawn(function()
        gpu.sleep(0.02)
        error("the only one who waits for this is cancelled", 0)
      end)
      local outer = gpu.spawn(function()
        seen[1] = select(2, pcall(inner.await, inner))
        seen[2] = select(2, pcall(gpu.sleep, 60)).code
      end)
      local canceller = gpu.spawn(function()
        gpu.sleep(0.02)
        while inner:status() ~= "failed" do
          gpu.sleep(0)
        end
        outer:cancel()
      end)
      gpu.spawn(function() -- until both sleeps are over, so that they end in one turn
        local past = support.now() + 0.04
        while support.now() < past do
        end
      end)
      outer:join(10)
      canceller:join(10)
      assert.are.same({ "the only one who waits for this is cancelled", "Cancelled" }, seen)
    end)

    it("lets a task clean up with further waits", function()
      local task = gpu.spawn(function()
        local ok = pcall(gpu.sleep, 60)
        gpu.sleep(0.001)
        return ok, "cleaned"
      end)
      gpu.sleep(0)
      task:cancel()
      assert.are.same({ false, "cleaned" }, { task:await() })
      assert.equal("done", task:status())
    end)

    it("keeps a task that has not started from running", function()
      local ran = false
      local task = gpu.spawn(function() ran = true end)
      task:cancel()
      local ok, err = task:join()
      assert.is_false(ok)
      support.is_error(err, "Cancelled")
      assert.is_false(ran)
      assert.equal("cancelled", task:status())
    end)

    it("is nothing for a task that is over, and no error for its parent", function()
      local parent = gpu.spawn(function()
        local child = gpu.spawn(function() gpu.sleep(60) end)
        gpu.sleep(0)
        child:cancel()
        return "fine"
      end)
      assert.equal("fine", parent:await())
      assert.equal("done", parent:cancel():status())
    end)

    it("of oneself is raised at the next wait", function()
      local task
      local went_on = false
      task = gpu.spawn(function()
        task:cancel()
        went_on = true
        gpu.sleep(0)
      end)
      local _, err = task:join()
      support.is_error(err, "Cancelled")
      assert.is_true(went_on)
    end)

    it("happens at the end of a scope with <close>", function()
      local task
      do
        local scoped <close> = gpu.spawn(function() gpu.sleep(60) end)
        task = scoped
        gpu.sleep(0)
      end
      local _, err = task:join(10)
      support.is_error(err, "Cancelled")
    end)
  end)

  describe("to-be-closed variables", function()
    it("are closed when a task fails, and may wait", function()
      local log = {}
      local task = gpu.spawn(function()
        local _ <close> = setmetatable({}, {
          __close = function()
            gpu.sleep(0.001)
            log[#log + 1] = "closed"
          end,
        })
        error("x", 0)
      end)
      local ok, err = task:join()
      assert.is_false(ok)
      assert.equal("x", err)
      assert.are.same({ "closed" }, log)
    end)
  end)

  describe("all and any", function()
    local function after(seconds, ...)
      local values = table.pack(...)
      return gpu.spawn(function()
        gpu.sleep(seconds)
        return table.unpack(values, 1, values.n)
      end)
    end

    it("all gives each first result in order", function()
      assert.are.same({ n = 3, 1, nil, 3 }, table.pack(gpu.all(after(0.01, 1, "more"), after(0), after(0.005, 3))))
      assert.are.same({ n = 2, "a", "b" }, table.pack(gpu.all { after(0.01, "a"), after(0, "b") }))
      assert.equal(0, select("#", gpu.all()))
      assert.equal(0, select("#", gpu.all {}))
    end)

    it("all takes what is over already, and the same thing twice", function()
      local task = after(0, 7)
      task:await()
      assert.are.same({ 7, 7 }, { gpu.all(task, task) })
    end)

    it("all raises the first failure at once", function()
      local slow = after(60)
      local start = support.now()
      local ok, err = pcall(gpu.all, slow, gpu.spawn(function() error("no", 0) end))
      assert.is_false(ok)
      assert.equal("no", err)
      assert.truthy(support.now() - start < 30)
      assert.equal("waiting", slow:status())
      slow:cancel()
    end)

    it("all and any see the failure that they raise, and no other", function()
      for _, name in ipairs { "all", "any" } do
        local caught
        local outer = gpu.spawn(function()
          local first = gpu.spawn(function() gpu.sleep(0) error("first", 0) end)
          local second = gpu.spawn(function() gpu.sleep(0) error("second", 0) end)
          caught = select(2, pcall(gpu[name], first, second))
          gpu.sleep(0.001)
        end)
        assert.are.same({ false, "second" }, { outer:join() })
        assert.equal("first", caught)
      end
    end)

    it("all raises the failure that ended the wait, and the others of detached tasks are told at once", function()
      local output, code = support.script [[
        local gpu = require "gpulua"
        local function fails(text)
          local task = gpu.spawn(function() gpu.sleep(0) error(text, 0) end)
          task:detach()
          return task
        end
        local b, a = fails "b", fails "a" -- which so ends later
        print(pcall(gpu.all, a, b))
        gpu.sleep(0.01)
        print "behind"]]
      assert.truthy(output:find "false\tb\n", output)
      local told, behind = output:find "a\n", output:find "behind\n"
      assert.truthy(told and behind and told < behind, output)
      assert.equal(2, select(2, output:gsub("[ab]\nstack", "")) + 1, output)
      assert.equal(1, code)
    end)

    it("any gives the index and result of the first", function()
      local slow = after(60, "slow")
      assert.are.same({ 2, "fast" }, { gpu.any(slow, after(0.001, "fast")) })
      assert.are.same({ 1, "x" }, { gpu.any { after(0, "x"), slow } })
      slow:cancel()
    end)

    it("any raises the error of the first", function()
      local slow = after(60)
      local ok, err = pcall(gpu.any, slow, gpu.spawn(function() error("first", 0) end))
      assert.is_false(ok)
      assert.equal("first", err)
      slow:cancel()
    end)

    it("a wait for several ends cleanly when it is cancelled", function()
      local items = { after(0.02, 1), after(0.02, 2) }
      local waiter = gpu.spawn(function() return gpu.all(items) end)
      gpu.sleep(0.001)
      waiter:cancel()
      local _, err = waiter:join()
      support.is_error(err, "Cancelled")
      assert.are.same({ 1, 2 }, { gpu.all(items) })
    end)

    it("name the item that cannot be waited for", function()
      support.raises("InvalidArgument", { "item 2 of all", "number" }, gpu.all, after(0), 5)
      support.raises("InvalidArgument", { "item 1 of any", "string" }, gpu.any, { "x" })
      support.raises("InvalidArgument", "at least one", gpu.any)
    end)

    it("do not mind that the script changes its table meanwhile", function()
      local list = { after(0.002, "a"), after(0.004, "b") }
      gpu.spawn(function() list[1], list[2] = nil, nil end)
      assert.are.same({ "a", "b" }, { gpu.all(list) })
    end)

    it("take thousands", function()
      local list = {}
      for i = 1, 5000 do
        list[i] = after(0.001, i)
      end
      local results = table.pack(gpu.all(list))
      assert.equal(5000, results.n)
      assert.equal(5000, results[5000])
    end)
  end)

  describe("time", function()
    it("sleep wakes in the order of the times", function()
      local log, begun, all_begun
      repeat -- until all of them began so close together that the times say which comes first
        log, begun = {}, support.now()
        local tasks = {}
        for i, ms in ipairs { 30, 10, 20, 0, 15 } do
          tasks[i] = gpu.spawn(function()
            gpu.sleep(ms / 1000)
            log[#log + 1] = ms
          end)
        end
        tasks[6] = gpu.spawn(function() all_begun = support.now() end)
        gpu.all(tasks)
      until all_begun - begun < 0.004
      assert.are.same({ 0, 10, 15, 20, 30 }, log)
    end)

    it("sleep takes at least its time", function()
      local start = support.now()
      gpu.sleep(0.02)
      assert.truthy(support.now() - start >= 0.0199)
    end)

    it("sleep refuses what is no time", function()
      for _, seconds in ipairs { -0.1, 0 / 0, "1" } do
        support.raises("InvalidArgument", "seconds", gpu.sleep, seconds)
      end
      support.raises("InvalidArgument", "seconds", gpu.sleep)
    end)

    it("sleep blocks in a generator", function()
      local start = support.now()
      local other = gpu.spawn(function() return support.now() end)
      coroutine.wrap(function() gpu.sleep(0.02) end)()
      assert.truthy(support.now() - start >= 0.0199)
      -- And runs no other task meanwhile.
      assert.equal("queued", other:status())
      other:await()
    end)

    it("timeout gives the results in time", function()
      assert.are.same({ 1, nil, 3, n = 3 }, table.pack(gpu.timeout(10, function(...)
        gpu.sleep(0)
        return ...
      end, 1, nil, 3)))
    end)

    it("timeout raises Timeout and cancels the waits", function()
      local log = {}
      local start = support.now()
      local has_begun
      for _ = 1, 5 do -- a machine that stood still for 10 ms has not begun the child
        log, has_begun = {}, false
        support.raises("Timeout", "0.01", gpu.timeout, 0.01, function()
          local _ <close> = closable(log, "closed")
          gpu.spawn(function()
            local _ <close> = closable(log, "child")
            has_begun = true
            gpu.sleep(60)
          end)
          gpu.sleep(60)
        end)
        if has_begun then
          break
        end
      end
      assert.truthy(support.now() - start < 30)
      assert.is_true(support.eventually(5, function() return #log == 2 end))
      table.sort(log)
      assert.are.same({ "child", "closed" }, log)
    end)

    it("timeout raises the function's own error", function()
      local ok, err = pcall(gpu.timeout, 10, error, "own", 0)
      assert.is_false(ok)
      assert.equal("own", err)
    end)

    it("timeouts nest", function()
      support.raises("Timeout", "0.01", gpu.timeout, 0.01, function()
        gpu.timeout(60, gpu.sleep, 60)
      end)
      local ok = pcall(gpu.timeout, 60, function()
        local inner_ok, err = pcall(gpu.timeout, 0.005, gpu.sleep, 60)
        assert(not inner_ok and err.code == "Timeout")
        gpu.sleep(0.001)
      end)
      assert.is_true(ok)
    end)

    it("timeout refuses what is no time", function()
      support.raises("InvalidArgument", "argument 1 of timeout", gpu.timeout, -1, print)
      support.raises("InvalidArgument", "argument 1 of timeout", gpu.timeout, "x", print)
      support.raises("InvalidArgument", "argument 2 of timeout", gpu.timeout, 1, nil)
    end)
  end)

  describe("a coroutine that something else resumes", function()
    it("abandons its wait and gets what the resumer passed", function()
      local thread
      local task = gpu.spawn(function()
        thread = coroutine.running()
        local a, b = gpu.sleep(60)
        return a, b, "end"
      end)
      gpu.sleep(0)
      local results = table.pack(coroutine.resume(thread, "x", "y"))
      assert.are.same({ n = 4, true, "x", "y", "end" }, results)
      assert.are.same({ "x", "y", "end" }, { task:await(10) })
    end)

    it("does not disturb those that it waited for", function()
      local source = gpu.spawn(function()
        gpu.sleep(0.01)
        return "source"
      end)
      local thread
      gpu.spawn(function()
        thread = coroutine.running()
        pcall(source.await, source)
      end)
      gpu.sleep(0)
      assert.is_true((coroutine.resume(thread)))
      assert.equal("source", source:await())
    end)

    it("may fail there, and those who join see it", function()
      local thread
      local task = gpu.spawn(function()
        thread = coroutine.running()
        gpu.sleep(60)
        error("outside", 0)
      end)
      gpu.sleep(0)
      coroutine.resume(thread)
      local ok, err = task:join(10)
      assert.is_false(ok)
      assert.equal("outside", err)
    end)
  end)

  describe("a coroutine that somebody closes", function()
    local function sleeping()
      local thread
      local task = gpu.spawn(function()
        thread = coroutine.running()
        gpu.sleep(60)
      end)
      gpu.sleep(0)
      return task, thread
    end

    it("ends its task with Cancelled, at once", function()
      local task, thread = sleeping()
      local ok, err
      local waiter = gpu.spawn(function() ok, err = task:join() end)
      gpu.sleep(0)
      local start = support.now()
      assert.is_true(coroutine.close(thread))
      assert.equal("cancelled", task:status())
      waiter:await()
      assert.truthy(support.now() - start < 30)
      assert.is_false(ok)
      support.is_error(err, "Cancelled", { "tasks_spec.lua", "was closed" })
      support.raises("Cancelled", "was closed", task.await, task)
    end)

    it("ends it with the error of what it closes", function()
      local thread
      local task = gpu.spawn(function()
        thread = coroutine.running()
        local _ <close> = setmetatable({}, { __close = function() error("in close", 0) end })
        gpu.sleep(60)
      end)
      gpu.sleep(0)
      assert.are.same({ false, "in close" }, { coroutine.close(thread) })
      assert.are.same({ false, "in close" }, { task:join() })
      assert.equal("failed", task:status())
    end)

    it("leaves nobody to wait for its children, which are cancelled", function()
      local thread, child
      local task = gpu.spawn(function()
        thread = coroutine.running()
        child = gpu.spawn(function() gpu.sleep(60) end)
        gpu.sleep(60)
      end)
      gpu.sleep(0)
      gpu.sleep(0)
      coroutine.close(thread)
      local _, err = child:join(10)
      support.is_error(err, "Cancelled")
      assert.equal("cancelled", task:status())
    end)

    it("is not its task closing its own handle", function()
      local task
      task = gpu.spawn(function()
        do
          local own <close> = task -- luacheck: ignore
        end
        return pcall(gpu.sleep, 0)
      end)
      local ok, slept, err = task:join()
      assert.is_true(ok)
      assert.is_false(slept)
      support.is_error(err, "Cancelled")
    end)
  end)

  describe("coroutines inside tasks", function()
    it("yield to whoever resumed them, not to the loop", function()
      local co = coroutine.wrap(function()
        for i = 1, 3 do
          coroutine.yield(i)
        end
      end)
      local task = gpu.spawn(function() return co(), co(), co() end)
      assert.are.same({ 1, 2, 3 }, { task:await() })
    end)

    it("a yield in a task's own body is an error, as in Lua's main chunk", function()
      local ok, err = gpu.spawn(function() coroutine.yield(1) end):join()
      assert.is_false(ok)
      assert.equal("attempt to yield from outside a coroutine", err)
    end)

    it("run in tasks may be left suspended", function()
      for _ = 1, 100 do
        gpu.spawn(function()
          local co = coroutine.create(coroutine.yield)
          coroutine.resume(co)
        end):await()
      end
      collectgarbage()
    end)
  end)

  describe("the loop", function()
    it("step and its kin belong outside tasks", function()
      support.raises("StreamMisuse", "step", gpu.step)
    end)

    it("has a descriptor and a hint", function()
      assert.equal("integer", math.type(gpu.pollfd()))
      local task = gpu.spawn(function() gpu.sleep(60) end)
      gpu.sleep(0)
      local hint = gpu.timeout_hint()
      assert.truthy(hint > 30 and hint <= 60, hint)
      task:cancel()
      assert.equal(0, gpu.timeout_hint())
      task:join()
    end)

    it("has a hint that brings its wakes back, and is not longer than a task may wait for a device unseen", function()
      local output, code = support.stock_script [[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = support.open()
        local spin = dev:compile(support.spin_source).spin
        local x = dev:buffer("i32", 1):fill(0)
        local s, y = dev:stream(), dev:buffer("i32", 1):fill(0)
        local op = spin:launch({ grid = 1, block = 1, stream = s }, support.ticks(1), x, 1)
        local task = gpu.spawn(function() op:await() end)
        gpu.step()
        y:read() -- takes the wakes away
        local hint = gpu.timeout_hint()
        print(hint and hint <= 1)
        task:await()
      ]]
      assert.equal(0, code, output)
      assert.equal("true\n", output)
    end)

    it("run gives the results of a task", function()
      assert.are.same({ 1, 2 }, { gpu.run(function(...) return ... end, 1, 2) })
    end)

    it("keeps no memory of tasks that are over", function()
      local function round()
        local tasks = {}
        for i = 1, 2000 do
          tasks[i] = gpu.spawn(function()
            gpu.sleep(0)
            if i % 7 == 0 then
              error("x", 0)
            end
          end)
        end
        for _, task in ipairs(tasks) do
          task:join()
        end
        tasks = nil -- luacheck: ignore
        collectgarbage()
        collectgarbage()
        return collectgarbage "count"
      end
      round()
      local before = round()
      for _ = 1, 5 do
        round()
      end
      assert.truthy(round() < before + 32, "grew")
    end)
  end)

  describe("handles", function()
    it("say what they are", function()
      local task = gpu.spawn(function() gpu.sleep(0) end)
      assert.equal("task", gpu.type(task))
      assert.truthy(tostring(task):find "^gpulua%.task .*tasks_spec%.lua:%d+ %(queued%)$")
      task:await()
      assert.truthy(tostring(task):find "%(done%)$")
      assert.is_nil(gpu.type(5))
      assert.is_nil(gpu.type {})
      assert.is_nil(gpu.type(io.stdout))
    end)

    it("refuse methods on something else", function()
      local task = gpu.spawn(function() end)
      support.raises("InvalidArgument", {}, task.await, {})
      support.raises("InvalidArgument", "gpulua.task expected", task.cancel, io.stdout)
      support.raises("InvalidArgument", {}, task.status)
      task:await()
    end)
  end)
end)
