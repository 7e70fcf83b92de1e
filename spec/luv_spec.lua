-- gpulua.luv: libuv and gpulua in one loop.

local gpu = require "gpulua"
local support = require "spec.support"

describe("gpulua.luv", function()
  local luv, uv
  local is_there <const> = support.has_luv()

  local function test(name, f)
    it(name, function()
      if not is_there then
        pending "no luv"
      end
      luv, uv = require "gpulua.luv", require "luv"
      f()
      luv.run()
      assert.is_false(uv.loop_alive())
    end)
  end

  -- Begins a timer of so many milliseconds.
  local function after(ms, f)
    local timer = uv.new_timer()
    timer:start(ms, 0, function()
      timer:close()
      f()
    end)
    return timer
  end

  it("says what to install where luv is missing, or cannot be loaded", function()
    for _, run in ipairs { support.script, support.stock_script } do
      local output, code = run [[
        local gpu = require "gpulua"
        package.preload.luv = function() error("there is none", 0) end
        for _ = 1, 2 do
          local ok, err = pcall(require, "gpulua.luv")
          print(ok, err.code, err.message, err.hint)
        end
        gpu.sleep(0.001)
        print "goes on"
      ]]
      local line = "false\tLibraryUnavailable\tluv, Lua's library for libuv, cannot be loaded: there is none\t"
        .. "install it: apt install lua-luv, or luarocks install luv\n"
      assert.equal(line .. line .. "goes on\n", output)
      assert.equal(0, code)
    end
  end)

  describe("await", function()
    test("gives what the callback was given behind err", function()
      assert.equal("directory", luv.await(uv.fs_stat, "/").type)
      local function call(first, callback)
        after(1, function() callback(nil, first, nil, 3, nil) end)
      end
      assert.same({ n = 4, 1, nil, 3, nil }, table.pack(luv.await(call, 1)))
      assert.same({ n = 0 }, table.pack(luv.await(uv.timer_start, uv.new_timer(), 1, 0)))
      assert.same({ n = 0 }, table.pack(luv.await(uv.close, uv.new_timer())))
      uv.walk(uv.close)
    end)

    test("takes a callback that comes before f is over, and the first of two", function()
      assert.equal(7, luv.await(function(callback)
        callback(nil, 7)
        callback(nil, 8)
      end))
    end)

    test("raises Io with libuv's error, whoever says it", function()
      support.raises("Io", "ENOENT: no such file or directory: /no/such/file", luv.await, uv.fs_stat, "/no/such/file")
      local socket = uv.new_tcp()
      support.raises("Io", "ECONNREFUSED", luv.await, uv.tcp_connect, socket, "127.0.0.1", 1)
      support.raises("Io", "EBADF", luv.await, uv.write, uv.new_pipe(), "x") -- f itself
      uv.walk(uv.close)
    end)

    test("takes functions alone", function()
      support.raises("InvalidArgument", "argument 1 of await: a function expected, got nil", luv.await)
      support.raises("InvalidArgument", "argument 1 of await: a function expected, got number", luv.await, 5)
    end)

    test("lets errors of f through as they are", function()
      local ok, err = pcall(luv.await, uv.fs_stat)
      assert.is_false(ok)
      assert.truthy(tostring(err):find "bad argument #1", err)
      local own = {}
      assert.equal(own, select(2, pcall(luv.await, function() error(own) end)))
    end)

    test("lets other tasks run, and many wait at a time", function()
      local order, tasks = {}, {}
      for i = 20, 1, -1 do
        tasks[#tasks + 1] = gpu.spawn(function()
          luv.await(after, 5 * i)
          order[#order + 1] = i
        end)
      end
      gpu.all(tasks)
      for i = 1, 20 do
        assert.equal(i, order[i])
      end
    end)

    test("is cancelled with its task: the request too, and what comes later is dropped", function()
      -- The pool of libuv has 4 threads: what is behind these waits, and can be cancelled.
      local held = support.path ""
      support.write_file(held, "")
      for _ = 1, 4 do
        uv.new_work(function(path)
          local libuv = require "luv"
          while libuv.fs_stat(path) do libuv.sleep(1) end
        end, function() end):queue(held)
      end
      local said = {}
      local task = gpu.spawn(luv.await, function(callback)
        return uv.fs_stat("/", function(err, ...)
          said[#said + 1] = err
          callback(err, ...)
        end)
      end)
      gpu.sleep(0.01)
      support.is_error(select(2, task:cancel():join()), "Cancelled")
      os.remove(held)
      luv.run()
      assert.same({ "ECANCELED: operation canceled: /" }, said)
      local called, timer, late = false, nil, nil
      support.raises("Timeout", {}, gpu.timeout, 0.005, luv.await, function(callback)
        late = callback
        timer = after(60000, function() end)
      end)
      timer:start(1, 0, function()
        timer:close()
        called = true
        late "too late"
      end)
      assert.equal(1, luv.await(function(callback) after(1, function() callback(nil, 1) end) end))
      luv.run()
      assert.is_true(called)
    end)

    test("whose callback can never come is Cancelled", function()
      support.raises("Cancelled", "the callback can never come", luv.await, function() end)
      local task = gpu.spawn(luv.await, function() end)
      support.is_error(select(2, task:join()), "Cancelled", "the callback can never come")
    end)

    test("hands on what a task calls the callback with", function()
      local callback
      local task = gpu.spawn(luv.await, function(f) callback = f end)
      gpu.sleep(0)
      gpu.spawn(function()
        gpu.sleep(0.001)
        callback(nil, "from a task")
      end)
      assert.equal("from a task", task:await())
    end)

    test("leaves nothing behind", function()
      luv.await(uv.fs_stat, "/")
      collectgarbage()
      collectgarbage()
      local count, bytes = support.descriptors(), collectgarbage "count"
      for _ = 1, 1000 do
        luv.await(uv.fs_stat, "/")
      end
      gpu.sleep(0)
      collectgarbage()
      collectgarbage()
      assert.equal(count, (support.descriptors()))
      assert.truthy(collectgarbage "count" < bytes + 64, collectgarbage "count" - bytes)
    end)
  end)

  describe("the loop", function()
    test("sees what tasks begin in libuv, without being told", function()
      local fired = {}
      local sleeper = gpu.spawn(gpu.sleep, 60)
      gpu.spawn(function()
        gpu.sleep(0.005)
        local begun = support.now()
        after(10, function()
          fired[#fired + 1] = support.now() - begun
          sleeper:cancel()
        end)
      end)
      sleeper:join()
      assert.equal(1, #fired)
      assert.truthy(fired[1] < 30, fired[1])
    end)

    test("runs libuv although tasks are always ready", function()
      local is_over = false
      after(5, function() is_over = true end)
      local turns = 0
      while not is_over do
        gpu.sleep(0)
        turns = turns + 1
        assert.truthy(turns < 1e6)
      end
    end)

    test("waits for both: work, and sockets whose connections are tasks", function()
      local dev = support.open()
      local twice = dev:compile([[
        extern "C" __global__ void twice(int n, float *x) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) x[i] *= 2;
        }]]).twice
      local server = uv.new_tcp()
      assert(server:bind("127.0.0.1", 0))
      server:listen(16, luv.wrap(function()
        local client = uv.new_tcp()
        server:accept(client)
        local text = luv.await(function(callback) client:read_start(callback) end)
        local x <close> = dev:upload("f32", { tonumber(text) })
        twice:launch(1, 1, x):await()
        luv.await(uv.write, client, tostring(x:read()[1]))
        client:close()
      end))
      local port = server:getsockname().port
      local tasks = {}
      for i = 1, 10 do
        tasks[i] = gpu.spawn(function()
          local socket = uv.new_tcp()
          luv.await(uv.tcp_connect, socket, "127.0.0.1", port)
          luv.await(uv.write, socket, tostring(i))
          local answer = luv.await(function(callback) socket:read_start(callback) end)
          socket:close()
          return answer
        end)
      end
      for i, answer in ipairs { gpu.all(tasks) } do
        assert.equal(("%.1f"):format(2 * i), answer)
      end
      server:close()
      luv.run()
      support.close_all()
    end)

    test("runs callbacks outside of tasks: what they spawn belongs to nobody", function()
      local child, is_main
      local gate = gpu.spawn(gpu.sleep, 60)
      gpu.run(function()
        local begun = gpu.spawn(function()
          luv.await(function(callback)
            after(1, function()
              is_main = select(2, coroutine.running())
              child = gpu.spawn(function()
                gate:join()
                return "whole"
              end)
              callback()
            end)
          end)
        end)
        begun:await()
        begun:cancel()
      end)
      assert.is_true(is_main)
      gpu.sleep(0)
      assert.equal("waiting", child:status())
      gate:cancel()
      assert.equal("whole", child:await())
    end)

    test("lets no callback wait for a task, nor drive the loop", function()
      local results, begun = {}, nil
      local slow = gpu.spawn(gpu.sleep, 60)
      after(1, function()
        results[1] = select(2, pcall(slow.await, slow))
        results[2] = select(2, pcall(gpu.step))
        results[3] = select(2, pcall(luv.await, function() begun = true end))
        gpu.sleep(0.001)
        results[4] = gpu.readable(assert(io.open "README.md"))
        slow:cancel()
      end)
      slow:join()
      support.is_error(results[1], "NotYieldable")
      support.is_error(results[2], "StreamMisuse")
      support.is_error(results[3], "NotYieldable")
      assert.is_nil(begun) -- what cannot wait begins nothing
      assert.is_true(results[4])
    end)

    test("is as it was when what waits is interrupted", function()
      local output, code = support.script [[
        local luv = require "gpulua.luv"
        local uv = require "luv"
        local timer = uv.new_timer()
        timer:start(1000, 1000, function() end)
        local soon = uv.new_timer()
        soon:start(10, 0, function() uv.kill(uv.os_getpid(), "sigint") end)
        local ok, err = pcall(luv.run)
        print(ok, err.code, luv.await(uv.fs_stat, "/").type)
      ]]
      assert.equal("false\tInterrupted\tdirectory\n", output)
      assert.equal(0, code)
    end)
  end)

  describe("run", function()
    test("waits until nothing in libuv is alive, in any number of tasks", function()
      local count = 0
      local timer = uv.new_timer()
      timer:start(1, 1, function()
        count = count + 1
        if count == 10 then
          timer:close()
        end
      end)
      gpu.all(gpu.spawn(luv.run), gpu.spawn(luv.run))
      assert.equal(10, count)
      luv.run() -- nothing: at once
      support.raises("Timeout", {}, gpu.timeout, 0.005, function()
        timer = after(60000, function() end)
        luv.run()
      end)
      timer:close()
    end)
  end)

  describe("wrap", function()
    test("makes callbacks that are tasks, in the order of the calls", function()
      local order = {}
      local callback = luv.wrap(function(...)
        order[#order + 1] = table.concat({ ... }, " ")
        gpu.sleep(0.001)
        order[#order + 1] = "end"
      end)
      after(1, function()
        callback("a", 1)
        callback("b", 2)
      end)
      assert.is_true(support.eventually(5, function() return #order == 4 end))
      assert.same({ "a 1", "b 2", "end", "end" }, order)
      support.raises("InvalidArgument", "argument 1 of wrap: a function expected, got nil", luv.wrap)
    end)

    test("makes tasks that traces show by where they are defined, and waits for callbacks as such", function()
      local path = support.path "trace.json"
      local output, code = support.script(([[
        local gpu = require "gpulua"
        local luv = require "gpulua.luv"
        local uv = require "luv"
        local dev = gpu.device "cpu"
        local timer = uv.new_timer()
        uv.update_time()
        timer:start(200, 0, luv.wrap(function()
          gpu.sleep(0.001)
          timer:close()
        end))
        luv.await(uv.fs_stat, "/")
        luv.run()
        gpu.spawn(gpu.sleep, 0):join()
        require("gpulua.chrome_trace").write(%q)
      ]]):format(path), "GPULUA_TRACE=1")
      assert.equal(0, code, output)
      local text = support.read_file(path)
      os.remove(path)
      assert.truthy(text:find '"name":"task %d+, [^"]*:7"', text) -- the line of the function
      local _, callbacks = text:gsub('"name":"wait: a callback"', "")
      local _, tasks = text:gsub('"name":"wait: a task"', "")
      assert.same({ 2, 1 }, { callbacks, tasks })
    end)

    test("has errors told, and the rest goes on; without it luv ends the program", function()
      local script <const> = [[
        local gpu = require "gpulua"
        local luv = require "gpulua.luv"
        local uv = require "luv"
        local timer = uv.new_timer()
        timer:start(1, 0, %s(function() error("mishap", 0) end))
        gpu.sleep(0.02)
        print "goes on"
        timer:close()
      ]]
      local output, code = support.script(script:format "luv.wrap")
      assert.truthy(output:find("mishap", 1, true) and output:find("goes on", 1, true), output)
      assert.equal(1, code)
      output, code = support.script(script:format "")
      assert.truthy(output:find("Uncaught Error: mishap", 1, true), output)
      assert.is_nil(output:find("goes on", 1, true))
      assert.equal(255, code)
    end)
  end)

  test("ends with the script's tasks, whatever is open", function()
    local output, code = support.script [[
      local luv = require "gpulua.luv"
      local uv = require "luv"
      local server = uv.new_tcp()
      server:bind("127.0.0.1", 0)
      server:listen(8, luv.wrap(function() end))
      uv.new_timer():start(1e6, 0, luv.wrap(function() end))
      uv.tcp_connect(uv.new_tcp(), "127.0.0.1", server:getsockname().port, luv.wrap(function() end))
      uv.fs_stat("/", luv.wrap(function() end))
      uv.new_timer():close()
      print "end"
    ]]
    assert.equal("end\n", output)
    assert.equal(0, code)
  end)

  test("goes without false alarms in check mode", function()
    local output, code = support.script([[
      local gpu = require "gpulua"
      local luv = require "gpulua.luv"
      local uv = require "luv"
      local dev = gpu.device "cpu"
      local x = dev:buffer("f32", 16):fill(1)
      local timer = uv.new_timer()
      timer:start(1, 0, luv.wrap(function()
        timer:close()
        x:fill(2)
        print(luv.await(uv.fs_stat, "/").type, x:read(1, 1)[1])
      end))
      luv.run()
    ]], "GPULUA_CHECK=7")
    assert.equal("directory\t2.0\n", output)
    assert.equal(0, code)
  end)

  -- Old luv calls callbacks on the coroutine that has loaded it, which may be gone.
  test("has to come before luv in tasks, also in those that are over", function()
    local output, code = support.script [[
      local uv = require "luv"
      local ok, err = pcall(require, "gpulua.luv")
      print(ok, err.code, err.hint)
    ]]
    assert.equal('false\tUnsupported\trequire "gpulua.luv" before "luv"\n', output)
    assert.equal(0, code)
    local gpulua = (os.getenv "GPULUA_BUILD" or "build") .. "/gpulua"
    for command, wanted in pairs { ["-l luv -l gpulua.luv"] = 1,
      ["-e 'require \"luv\"' -e 'require \"gpulua.luv\"'"] = 1,
      ["-i <<< $'require \"luv\"\\nrequire \"gpulua.luv\"'"] = 0 } do
      local pipe = io.popen(("exec 2>&1; bash -c %q"):format(gpulua .. " " .. command))
      output = pipe:read "a"
      local _, how, status = pipe:close()
      assert.equal("exit " .. wanted, how .. " " .. status, output)
      assert.truthy(output:find("Unsupported: luv was loaded by a task or a coroutine", 1, true), output)
    end
  end)

  it("closes what tasks close at the end, whatever ends the script", function()
    if not is_there then
      pending "no luv"
    end
    for ending, wanted in pairs { ["error 'over'"] = 1, ["os.exit(3, true)"] = 3, ["os.exit(4)"] = 4, [""] = 0 } do
      local output, code = support.script(([[
        local gpu, luv = require "gpulua", require "gpulua.luv"
        local uv = require "luv"
        local timer, begun = uv.new_timer(), false
        timer:start(1, 0, luv.wrap(function()
          local _ <close> = setmetatable({}, { __close = function() timer:close() print "closed" end })
          begun = true
          gpu.sleep(%s)
        end))
        while not begun do gpu.sleep(0.001) end
        %s
      ]]):format(ending == "" and 0.1 or 10, ending))
      assert.equal(wanted, code, output)
      assert.truthy(output:find "closed\n", output)
    end
  end)

  it("under stock Lua: Ctrl-C ends the wait, and libuv goes on", function()
    if not is_there then
      pending "no luv"
    end
    local output, code = support.stock_script [[
      local gpu, luv = require "gpulua", require "gpulua.luv"
      local uv = require "luv"
      local count, timer = 0, uv.new_timer()
      timer:start(20, 20, function() count = count + 1 end)
      local pid = io.open "/proc/self/stat":read "n"
      local killer = uv.spawn("sh", { args = { "-c", "sleep 0.1; kill -INT " .. pid } }, function() end)
      local ok, err = pcall(gpu.sleep, 10)
      print(ok, err.code, err.message)
      local before = count
      gpu.sleep(0.2)
      print(count > before, luv.await(uv.fs_stat, "/").type, killer ~= nil)
      os.exit(0)
    ]]
    assert.equal("false\tInterrupted\tinterrupted!\ntrue\tdirectory\ttrue\n", output)
    assert.equal(0, code)
  end)

  describe("attach", function()
    test("makes uv.run() run tasks, and end with them", function()
      local output, code = support.stock_script [[
        local uv = require "luv"
        local gpu = require "gpulua"
        local luv = require "gpulua.luv"
        local attached = luv.attach()
        print(attached == luv.attach(), pcall(luv.run))
        local dev = gpu.device "cpu"
        local x = dev:buffer("f32", 4)
        gpu.spawn(function()
          gpu.sleep(0.005)
          x:fill(3):await()
          print("task", x:read(1, 1)[1], luv.await(uv.fs_stat, "/").type)
        end)
        local timer = uv.new_timer()
        timer:start(50, 0, function()
          print "timer"
          timer:close()
          gpu.spawn(function()
            gpu.sleep(0.005)
            print "spawned by a callback"
          end)
        end)
        uv.run()
        print "libuv's loop has ended"
        attached:close()
        attached:close()
        print(luv.await(uv.fs_stat, "/").type)
        do
          local again <close> = luv.attach()
          gpu.spawn(print, "again")
          uv.run()
        end
        timer = uv.new_timer()
        timer:start(1, 0, function() timer:close() end)
        luv.run()
        print "end"
      ]]
      assert.equal(0, code, output)
      assert.truthy(output:find("^true\tfalse\t[^\n]*StreamMisuse: run: libuv's loop is the outer one"), output)
      local inside, rest = output:match "outer one\n.-in main chunk\n[^\n]*\n(.-\n)(libuv's loop has ended\n.*)$"
      assert.equal("libuv's loop has ended\ndirectory\nagain\nend\n", rest, output)
      local without_task, count = inside:gsub("task\t3.0\tdirectory\n", "")
      assert.equal(1, count, output) -- sooner or later
      assert.equal("timer\nspawned by a callback\n", without_task)
    end)

    test("runs what was spawned between two runs, or by the last callbacks, and ends without tasks", function()
      local output, code = support.stock_script [[
        local uv = require "luv"
        local gpu = require "gpulua"
        local luv = require "gpulua.luv"
        local attached, run = luv.attach(), uv.run
        uv.run()
        gpu.spawn(print, "first")
        uv.run()
        gpu.spawn(print, "second")
        uv.run()
        local timer = uv.new_timer()
        timer:start(5, 0, function()
          timer:close(luv.wrap(function()
            gpu.sleep(0.005)
            print "by the last callback"
          end))
        end)
        uv.run()
        local is_done, count = false, 0
        gpu.spawn(function()
          gpu.sleep(0.02)
          is_done = true
        end)
        while not is_done do
          uv.run "once"
          count = count + 1
        end
        print(count < 100)
        local ok, err = pcall(luv.await, uv.fs_stat, "/")
        print(ok, err.code)
        uv.walk(uv.close)
        attached:close()
        print(uv.run ~= run, pcall(run, "nowait"))
        print(luv.await(uv.fs_stat, "/").type)
      ]]
      assert.equal("first\nsecond\nby the last callback\ntrue\nfalse\tStreamMisuse\ntrue\ttrue\tfalse\ndirectory\n",
        output)
      assert.equal(0, code)
    end)

    test("has errors of tasks told", function()
      local output = support.stock_script [[
        local uv, gpu = require "luv", require "gpulua"
        local luv = require "gpulua.luv"
        local attached <close> = luv.attach()
        gpu.spawn(function() error "a mistake" end)
        uv.run()
      ]]
      assert.truthy(output:find("a mistake", 1, true), output)
    end)

    test("in a task is StreamMisuse", function()
      support.raises("StreamMisuse", "attach: called from a task", luv.attach)
      luv.await(uv.fs_stat, "/")
    end)
  end)
end)
