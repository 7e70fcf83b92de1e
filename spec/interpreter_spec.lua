-- The interpreter passes for Lua's: the same options, output, messages and exit codes; and what is
-- its own: tasks, Ctrl-C, os.exit, reports at the end.

local support = require "spec.support"

local build = os.getenv "GPULUA_BUILD" or "build"
if not build:find "^/" then
  build = require("lfs").currentdir() .. "/" .. build
end
local gpulua = build .. "/gpulua"
-- A command line: under sanitizers it sets the environment first.
local lua = os.getenv "GPULUA_LUA" or "lua5.4"

local folder

local function write(name, text)
  local path = folder .. "/" .. name
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  return path
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "a"
  file:close()
  return text
end

--- Runs a command in the folder. Returns its output, its errors (with "lua" for the program's name) and its
--- exit code, or "signal N". `environment`: assignments as in a shell.
local function run(program, arguments, input, environment)
  write("input", input or "")
  local command = "cd %s && env -u LUA_INIT -u LUA_INIT_5_4 %s timeout -k 5 60 %s %s < input > out 2> err"
  local _, kind, code = os.execute(command:format(folder, environment or "", program, arguments))
  local name = program:match "%S+$":gsub("%p", "%%%0")
  local errors = read(folder .. "/err"):gsub(name, "lua")
  return read(folder .. "/out"), errors, kind == "signal" and "signal " .. code or code
end

--- Both interpreters must do the same.
local function same(arguments, input, environment)
  local out_wanted, err_wanted, code_wanted = run(lua, arguments, input, environment)
  local out, err, code = run(gpulua, arguments, input, environment)
  assert.equal(out_wanted, out)
  assert.equal(err_wanted, err)
  assert.equal(code_wanted, code)
  return out, err, code
end

describe("the interpreter", function()
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
  end)
  teardown(function() os.execute("rm -r " .. folder) end)

  describe("is Lua:", function()
    it("-e runs a string", function()
      assert.equal("3\n", (same "-e 'print(1 + 2)'"))
      same "-e'print(1)' -e 'print(2)'"
      same "-e 'print(...)'"
    end)

    it("-l requires a library into a global", function()
      write("lib.lua", "print('loading', ...) return { x = 5 }")
      assert.equal("loading\tlib\t./lib.lua\n5\n", (same "-l lib -e 'print(lib.x)'"))
      assert.equal("loading\tlib\t./lib.lua\n5\n", (same "-l short=lib -e 'print(short.x)'"))
      local _, _, code = same "-l nothing_such -e 'print(1)'"
      assert.equal(1, code)
      same "-e 'require = setmetatable({}, { __call = function(_, name) return name .. 1 end })' -l lib -e 'print(lib)'"
      local err
      _, err, code = run(gpulua, "-e 'require = nil' -l lib")
      assert.truthy(err:find("lua: attempt to call a nil value", 1, true), err)
      assert.equal(1, code)
    end)

    it("-v shows the version first", function()
      local wanted = run(lua, "-v")
      local out, _, code = run(gpulua, "-v --device cpu")
      assert.equal(wanted, out:sub(1, #wanted))
      assert.equal(out, (run(gpulua, "--version --device cpu")))
      assert.equal(out .. "1\n", (run(gpulua, "--version --device cpu -e 'print(1)'")))
      assert.truthy(out:find("gpulua %d+%.%d+%.%d+, device cpu\n", #wanted), out)
      assert.equal(0, code)
    end)

    it("-W turns warnings on", function()
      same "-W -e 'warn(\"a\", \"b\")'"
      same "-e 'warn(\"a\")'"
      same "-e 'warn(\"@on\") warn(\"a\")'"
    end)

    it("-E ignores the environment", function()
      local out = same("-e 'print(x)'", "", "LUA_INIT='x=1'")
      assert.equal("1\n", out)
      out = same("-E -e 'print(x, package.path:find(\"somewhere\"))'", "",
        "LUA_INIT='x=1' LUA_PATH='/somewhere/?.lua;;'")
      assert.equal("nil\tnil\n", out)
      same("-e 'print(package.path)'", "", "LUA_PATH='/somewhere/?.lua;;'")
    end)

    it("LUA_INIT runs a string or a file", function()
      write("init.lua", "y = 2")
      same("-e 'print(x, y)'", "", "LUA_INIT='@init.lua'")
      same("-e 'print(x, y)'", "", "LUA_INIT='x = 1' LUA_INIT_5_4='@init.lua'")
      same("-e 'print(1)'", "", "LUA_INIT='error(5)'")
      same("-e 'print(1)'", "", "LUA_INIT='x x'")
    end)

    it("-- and - end the options", function()
      write("script.lua", "print('script', ...)")
      same "-- script.lua -x"
      same("-", "print('stdin', ...)")
      same("- a b", "print('stdin', ...)")
      same("-- -", "print(1)")
    end)

    it("gives the script what arg has when its turn comes", function()
      write("args.lua", "print(...)")
      same "-e 'arg[1] = 100 arg[3] = nil' args.lua x y z"
      same "-e 'arg = 1' args.lua x"
      same "-e 'arg = setmetatable({}, { __len = function() return 2 end })' args.lua x"
    end)

    it("passes arguments and the table arg", function()
      write("args.lua", "print(...) for i = -9, 9 do if arg[i] and i > -2 then print(i, arg[i]) end end print(#arg)")
      local show = "args.lua one 'two three' -v"
      local out = run(gpulua, show):gsub("%-1\t[^\n]*", "-1\tlua")
      local wanted = run(lua, show):gsub("%-1\t[^\n]*", "-1\tlua")
      assert.equal(wanted, out)
      same "-e 'print(arg[0] ~= nil, arg[1], arg[2], #arg)' "
      same "-e 'a = 1' args.lua x"
    end)

    it("says what ends it where a kernel crashes in its process", function()
      for body, text in pairs {
        ["x[1ll << 40] = 1;"] = "an invalid memory access, or the like. If a kernel did it: --check says which",
        ["__trap();"] = "an illegal instruction, as __trap() is one. If a kernel did it: with --isolate process",
      } do
        write("crash.lua", ([[
          local dev = require "gpulua".device("cpu")
          local x = dev:buffer("i32", 1)
          dev:compile('extern "C" __global__ void crash(int *x) { %s }').crash:launch({ grid = 1, block = 1 }, x):join()
        ]]):format(body))
        local _, err, code = run(gpulua, "--isolate none crash.lua")
        assert.truthy(err:find(text, 1, true), err)
        assert.not_equal(0, code)
      end
    end)

    it("passes as many arguments as there are", function()
      write("args.lua", "print(select('#', ...), select(-1, ...)) error({})")
      -- One more each time: where the stack ends depends on what lies on it. Going beyond is found by Lua's API checks.
      for count = 10, 40 do
        local numbers = {}
        for i = 1, count do numbers[i] = i end
        same("args.lua " .. table.concat(numbers, " "))
      end
      same "-e 'for i = 1, 5000 do arg[i] = i end' args.lua"
      same "-e 'for i = 1, 1000000 do arg[i] = i end' args.lua"
      for _, count in ipairs { "1 << 31", "(1 << 31) - 1", "1 << 32", "math.maxinteger" } do
        local _, err, code = run(gpulua,
          ("-e 'arg = setmetatable({}, { __len = function() return %s end })' args.lua"):format(count))
        assert.equal(1, code)
        assert.truthy(err:find("too many arguments to script", 1, true), err)
      end
    end)

    it("runs standard input where there is no script", function()
      same("", "print('piped') return 5")
      same("", "error('piped')")
      same("", "x x")
    end)

    it("skips a first line that begins with #", function()
      write("shebang.lua", "#!/usr/bin/env gpulua\nprint(debug.getinfo(1, 'l').currentline)")
      assert.equal("2\n", (same "shebang.lua"))
    end)

    it("refuses what it does not know, with the usage", function()
      for _, bad in ipairs { "-x", "-vv", "-ix", "-e", "-l", "-Ex" } do
        local _, wanted = run(lua, bad)
        local out, err, code = run(gpulua, bad)
        assert.equal("", out)
        assert.equal(1, code)
        -- Ours has further options at the end.
        assert.equal(wanted, err:sub(1, #wanted))
        assert.truthy(err:find("--device", 1, true))
      end
    end)

    it("reports errors of scripts with a traceback", function()
      for name, text in pairs {
        plain = "local function f() error('boom') end f()",
        level = "error('boom', 2)",
        bare = "error('boom', 0)",
        object = "error(setmetatable({}, { __tostring = function() return 'an object' end }))",
        table = "error({})",
        nothing = "error()",
        number = "error(42)",
        runtime = "local x = nil; x.y = 1",
        deep = "local function f() return f() + 1 end f()",
        syntax = "for x = 1",
        handler = "local ok, err = xpcall(error, debug.traceback, 'msg') print(err)",
        no_text = "error(setmetatable({}, { __tostring = function() return 5 end }))",
        traceback = "print(debug.traceback('hi')) print(debug.traceback('hi', 2))",
        close = "local x <close> = setmetatable({}, { __close = function() print('closed') end }) error('e')",
        coroutine = "local co = coroutine.wrap(function() error('inside') end) co()",
        resume = "print(coroutine.resume(coroutine.create(function(...) error('x') end), 1))",
        yield = "print(pcall(coroutine.yield, 1)) coroutine.yield()",
        wrapped = "local f = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end)"
          .. " print(f(1)) print(f(5)) print(pcall(f))",
        dead = "local co = coroutine.create(print) coroutine.resume(co) print(coroutine.resume(co))",
        closing = "local co = coroutine.create(function() local x <close> = setmetatable({}, { __close = function()"
          .. " print 'closed' end }) coroutine.yield() end) coroutine.resume(co) print(coroutine.close(co))",
        misuse = "coroutine.resume(5)",
        wrap = "coroutine.wrap(5)",
        memory = "string.rep('x', 1 << 40)",
      } do
        write(name .. ".lua", text)
        if name == "deep" then
          -- How many levels there are depends on what is below the script.
          local out, err, code = run(gpulua, "deep.lua")
          assert.equal("", out)
          assert.equal(1, code)
          assert.truthy(err:find "^lua: deep.lua:1: stack overflow", err)
          assert.truthy(err:find "in main chunk\n\t%[C%]: in %?\n$", err)
        else
          same(name .. ".lua")
        end
      end
    end)

    it("says when a script cannot be read", function()
      same "no_such_file.lua"
      local _, _, code = same "."
      assert.equal(1, code)
    end)

    it("gives the exit codes of os.exit", function()
      for _, call in ipairs { "os.exit()", "os.exit(true)", "os.exit(false)", "os.exit(7)", "os.exit(7, true)",
        "os.exit(true, true)", "coroutine.wrap(function() os.exit(9) end)()",
        "coroutine.wrap(function() os.exit(9, true) end)()", "pcall(os.exit, 3)", "os.exit('x')" } do
        same(("-e %q"):format("io.write('before') " .. call .. " print 'not here'"))
      end
    end)

    it("runs finalisers at the end, and not at os.exit without close", function()
      local mark = "x = setmetatable({}, { __gc = function() print 'finalised' end }) "
      assert.equal("finalised\n", (same(("-e %q"):format(mark))))
      assert.equal("finalised\n", (same(("-e %q"):format(mark .. "os.exit(0, true)"))))
      assert.equal("", (same(("-e %q"):format(mark .. "os.exit(0)"))))
    end)

    it("loads C modules, which find Lua in the interpreter", function()
      assert.equal("true\n", (same "-e 'print(require(\"lfs\").currentdir() ~= nil)'"))
    end)

    it("reads and shows interactively", function()
      local input = "1 + 1\n=2 * 3\nx = 5\nx\nfor i = 1, 2 do\nprint(i)\nend\nerror 'oops'\n'still here'\nx x\n"
      local out, err, code = run(gpulua, "-i", input)
      for _, part in ipairs { "> 2\n", "> 6\n", "> > 5\n", "> >> >> 1\n2\n", "> still here\n" } do
        assert.truthy(out:find(part, 1, true), out)
      end
      assert.truthy(err:find("stdin:1: oops\nstack traceback:", 1, true), err)
      assert.truthy(err:find("syntax error", 1, true), err)
      assert.equal(0, code)
      -- What it says on the error stream is what Lua says.
      local _, wanted = run(lua, "-i", input)
      assert.equal(wanted, err)
    end)

    it("goes on interactively after a script", function()
      write("set.lua", "z = 11")
      local out = run(gpulua, "-i set.lua", "z\n")
      assert.truthy(out:find("> 11\n", 1, true), out)
    end)
  end)

  describe("runs tasks:", function()
    it("the main chunk is one", function()
      local out, err, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        print(coroutine.isyieldable(), select(2, coroutine.running()))
        gpu.sleep(0.001)
        print(gpu.spawn(function() return 6 * 7 end):await())
      ]])
      assert.equal("true\tfalse\n42\n", out)
      assert.equal("", err)
      assert.equal(0, code)
    end)

    it("every chunk of the command line may wait", function()
      write("sleeps.lua", "require('gpulua').sleep(0.001) print 'slept'")
      local out = run(gpulua, "-e 'require[[gpulua]].sleep(0.001) print [[one]]' sleeps.lua")
      assert.equal("one\nslept\n", out)
      out = run(gpulua, "-i", "gpu = require 'gpulua'\ngpu.sleep(0.001)\ngpu.spawn(function() return 9 end):await()\n")
      assert.truthy(out:find("> 9\n", 1, true), out)
    end)

    it("until none is left", function()
      local out, _, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        gpu.spawn(function() gpu.sleep(0.01) print "child" end)
        gpu.spawn(function() gpu.sleep(0.02) print "detached" end):detach()
        print "main"
      ]])
      assert.equal("main\nchild\ndetached\n", out)
      assert.equal(0, code)
    end)

    it("a task that failed unattended prints its traceback, and the exit code is 1", function()
      local script = write("fails.lua", [[
        local gpu = require "gpulua"
        gpu.spawn(function() local function inner() error("nobody looks") end inner() end)
        gpu.sleep(0.01)
        print "main goes on"
      ]])
      local out, err, code = run(gpulua, script)
      assert.equal("main goes on\n", out)
      assert.truthy(err:find("^lua: [^\n]*fails.lua:2: nobody looks\nstack traceback:\n"), err)
      assert.truthy(err:find("in upvalue 'inner'", 1, true) or err:find("in local 'inner'", 1, true), err)
      assert.equal(1, code)
    end)

    it("tasks that wait for each other do not end in silence", function()
      for _, how in ipairs { "join", "await" } do
        local _, err, code = run(gpulua, "-", ([[
          local gpu = require "gpulua"
          local a, b
          a = gpu.spawn(function() gpu.sleep(0) return b:%s() end)
          b = gpu.spawn(function() return a:%s() end)
        ]]):format(how, how))
        assert.truthy(err:find("^lua: stdin:3: InvalidArgument: this wait would never end"), err)
        assert.truthy(err:find("stdin:3 (this task) -> stdin:4 -> stdin:3", 1, true), err)
        assert.equal(1, code)
      end
      local _, err, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        local own
        own = gpu.spawn(function() own:join() end)
      ]])
      assert.truthy(err:find("a task cannot wait for itself (spawned at stdin:3)", 1, true), err)
      assert.equal(1, code)
    end)

    it("nor does one whose coroutine something else left suspended", function()
      local out, err, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        local thread
        local task = gpu.spawn(function()
          thread = coroutine.running()
          gpu.sleep(60)
          coroutine.yield()
        end)
        gpu.sleep(0)
        coroutine.resume(thread)
        local ok, e = task:join()
        print(ok, e.code)
        print(coroutine.resume(thread)) -- which no longer changes what it has ended with
        print(select(2, task:join()) == e)
      ]])
      assert.equal("false\tCancelled\nfalse\tcannot resume dead coroutine\ntrue\n", out)
      assert.truthy(err:find("the task spawned at stdin:3 can never end", 1, true), err)
      assert.equal(1, code)
    end)

    it("nor one that failed beside what gpu.all raised, or in cleaning up behind gpu.timeout", function()
      local out, err, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        local function fails(text) return gpu.spawn(function() gpu.sleep(0) error(text, 0) end) end
        local detached = fails "seen"
        detached:detach()
        print(pcall(gpu.all, detached))
        print(pcall(gpu.all, fails "first", fails "second"))
        print(pcall(gpu.timeout, 0.001, function() pcall(gpu.sleep, 60) error("third", 0) end))
        print "goes on"
      ]])
      assert.truthy(out:find "^false\tseen\nfalse\tfirst\nfalse\t[^\n]*was not over.*\ngoes on\n$", out)
      assert.truthy(err:find("second\n", 1, true), err)
      assert.truthy(err:find("third\n", 1, true), err)
      assert.is_nil(err:find "seen\n" or err:find "first\n", err)
      assert.equal(1, code)
    end)

    it("a detached one that fails, too", function()
      local out, err, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        gpu.spawn(function() gpu.sleep(0.001) error("detached fails", 0) end):detach()
        gpu.sleep(0.01)
        print "main"
      ]])
      assert.equal("main\n", out)
      assert.truthy(err:find("lua: detached fails\nstack traceback:\n", 1, true), err)
      assert.equal(1, code == 1 and 1 or code)
    end)

    it("a failure that was seen is none of the exit code's", function()
      local out, err, code = run(gpulua, "-e 'print(require[[gpulua]].spawn(error, [[seen]], 0):join())'")
      assert.equal("false\tseen\n", out)
      assert.equal("", err)
      assert.equal(0, code)
    end)

    it("a task that fails beside a failing main chunk is told as well", function()
      local _, err, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        gpu.spawn(error, "the child's", 0)
        gpu.sleep(0)
        error("main's", 0)
      ]])
      -- Lua's interpreter gives 0 for a failing standard input; the child's failure makes it 1.
      assert.truthy(err:find("the child's", 1, true), err)
      assert.truthy(err:find("main's", 1, true), err)
      assert.equal(1, code)
    end)

    it("tasks that wait for each other for ever are ended", function()
      local _, err, code = run(gpulua, "-", [[
        local gpu = require "gpulua"
        local a, b
        a = gpu.spawn(function() gpu.sleep(0) b:await() end)
        b = gpu.spawn(function() a:await() end)
      ]])
      assert.truthy(err:find("never end", 1, true), err)
      assert.equal(1, code)
    end)
  end)

  describe("os.exit", function()
    it("closes tasks first, wherever it is called", function()
      local head = [[
        local gpu = require "gpulua"
        local function closable(name)
          return setmetatable({}, { __close = function() print(name) end })
        end
        gpu.spawn(function() local _ <close> = closable "waiting task" gpu.sleep(60) end)
        gpu.sleep(0)
        local _ <close> = closable "main"
        io.write "unflushed "
      ]]
      for _, call in ipairs { "os.exit(5)", "os.exit(5, true)", "pcall(os.exit, 5)" } do
        local out, err, code = run(gpulua, "-", head .. call)
        assert.equal("", err)
        assert.equal(5, code)
        assert.truthy(out:find("^unflushed "), out)
        assert.truthy(out:find("waiting task\n", 1, true), out)
        assert.truthy(out:find("main\n", 1, true), out)
      end
      local out, _, code = run(gpulua, "-", head .. [[
        coroutine.wrap(function() local _ <close> = closable "generator" os.exit(6, true) end)()
      ]])
      assert.equal(6, code)
      assert.truthy(out:find("generator\n", 1, true), out)
      assert.truthy(out:find("waiting task\n", 1, true), out)
      out, _, code = run(gpulua, "-", head .. [[
        gpu.spawn(function() local _ <close> = closable "caller" os.exit(7) end):await()
      ]])
      assert.equal(7, code)
      assert.truthy(out:find("caller\n", 1, true), out)
    end)
  end)

  describe("Ctrl-C", function()
    --- Runs a script, sends it SIGINT once it has written "ready", and gives its output, errors and code, and how many
    --- seconds later it ended. `count` in all, `gap` seconds (0.2) apart, or when its errors have the text `gap`.
    local function interrupted(text, count, gap, environment)
      local pause = type(gap) ~= "string" and "sleep " .. (gap or 0.2)
        or ("for i in $(seq 3000); do grep -q '%s' err && break; sleep 0.01; done"):format(gap)
      write("loop.lua", text)
      -- A shell starts what runs in the background with SIGINT ignored; ours sets its own handler all the same.
      write("interrupt.sh", ([[
        cd %s
        rm -f out
        timeout -k 5 60 env %s %s loop.lua > out 2> err &
        waiter=$!
        for i in $(seq 3000); do grep -q ready out 2> /dev/null && break; sleep 0.01; done
        sleep 0.1
        date +%%s.%%N > began; pkill -INT -P $waiter
        for n in $(seq 2 %d); do %s; pkill -INT -P $waiter; done
        wait $waiter
        echo $? > code; date +%%s.%%N > ended
      ]]):format(folder, environment or "", gpulua, count or 1, pause))
      os.execute("sh " .. folder .. "/interrupt.sh")
      return read(folder .. "/out"), read(folder .. "/err"), math.tointeger(tonumber(read(folder .. "/code"))),
        tonumber(read(folder .. "/ended")) - tonumber(read(folder .. "/began"))
    end

    it("stops a loop", function()
      local _, err, code = interrupted "io.write 'ready' io.flush() while true do end"
      assert.truthy(err:find(": interrupted!\nstack traceback:", 1, true), err)
      assert.equal(1, code)
    end)

    it("ends the wait for a process that does not begin", function()
      os.execute("chmod +x " .. write("sleeper", "#!/bin/sh\nexec sleep 20\n"))
      local _, err, code, seconds = interrupted([[io.write "ready" io.flush()
        require "gpulua".device("cpu", { isolate = "process" })]], nil, nil, "GPULUA_EXECUTOR=" .. folder .. "/sleeper")
      assert.truthy(code == 1 and err:find("interrupted!", 1, true) and seconds < 10, err)
    end)

    it("stops a loop inside a coroutine", function()
      local _, err, code = interrupted [[
        coroutine.wrap(function() io.write "ready" io.flush() while true do end end)()
      ]]
      assert.truthy(err:find("interrupted!", 1, true), err)
      assert.equal(1, code)
    end)

    it("stops a loop inside a task, and what waits for it", function()
      local _, err, code = interrupted [[
        local gpu = require "gpulua"
        gpu.spawn(function() io.write "ready" io.flush() while true do end end)
        gpu.sleep(60)
      ]]
      assert.truthy(err:find("interrupted!", 1, true), err)
      assert.equal(1, code)
    end)

    support.once(it, "while a task is busy ends the program, however it waits for the task", function()
      for _, wait in ipairs { "task:await()", "task:join()", "gpu.all(task)", "gpu.any(task, task)", "gpu.sleep(60)",
        "gpu.timeout(60, task.join, task)", "do end" } do
        local out, err, code = interrupted(([[
          local gpu = require "gpulua"
          local task = gpu.spawn(function()
            io.write "ready" io.flush()
            while true do end
          end)
          %s
          if gpu.sleep(0) then print " went on" end
        ]]):format(wait))
        assert.equal("ready", out)
        assert.truthy(err:find("^%S+: loop.lua:%d+: Interrupted: interrupted! %(while a task of this one was at " ..
          "loop.lua:%d+%)\nstack traceback:\n"), err)
        assert.equal(1, select(2, err:gsub("Interrupted:", "")), err)
        assert.equal(1, code)
      end
    end)

    local never_ends = [[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { isolate = "%s" })
      local x = dev:buffer("i32", 1):fill(0)
      local mod = dev:compile 'extern "C" __global__ void forever(volatile int *x) { while (*x == 0) { } }'
      local op = mod.forever:launch(1, x)
      io.write "ready" io.flush()
      op:await()
    ]]

    it("while a kernel never ends: a line says what holds up the end, and a second one ends it", function()
      local _, err, code = interrupted(never_ends:format "none", 2, "waiting for")
      assert.truthy(err:find("loop.lua:7: Interrupted: interrupted!", 1, true), err)
      local line = "waiting for 'forever' to end, launched at loop.lua:5 (Ctrl-C ends the program)"
      assert.truthy(err:find(line, 1, true), err)
      assert.equal(130, code)
    end)

    support.once(it, "ends what waits for a kernel of a lost device, which a line says", function()
      local out, err, code = run(gpulua, write("lost.lua", [[
        local gpu = require "gpulua"
        local dev = gpu.device("cpu", { isolate = "none" })
        local x = dev:buffer("i32", 1):fill(0)
        local mod = dev:compile 'extern "C" __global__ void forever(volatile int *x) { while (*x == 0) { } }'
        local op = mod.forever:launch(1, x)
        op:deadline(0.1)
        local ok, e = op:join()
        io.write(e.code) io.flush()
        os.execute "(sleep 5; kill -INT $PPID) > /dev/null 2>&1 &"
      ]]))
      assert.equal("DeviceLost", out)
      local line = "the devices are not closed yet; a kernel of one that is lost or closed may still run "
        .. "(Ctrl-C ends the program)"
      assert.truthy(err:find(line, 1, true), err)
      assert.truthy(code == 130 or code == "signal 2", code)
    end)

    it("while a kernel never ends in a process of its own ends at once", function()
      local _, err, code, seconds = interrupted(never_ends:format "process")
      assert.truthy(err:find("loop.lua:7: Interrupted: interrupted!", 1, true), err)
      assert.is_nil(err:find "waiting for")
      assert.truthy(seconds < 20, seconds)
      assert.equal(1, code)
    end)

    support.once(it, "is not needed there: the end of the script ends it, and tells", function()
      local text = never_ends:format("process"):gsub("op:await%(%)", "")
      local _, err, code = run(gpulua, write("never.lua", text))
      assert.truthy(err:find("waiting for 'forever' to end, launched at", 1, true), err)
      assert.truthy(err:find("Timeout: 'forever' had not ended 5 s after the script", 1, true), err)
      assert.equal(1, code)
    end)

    support.once(it, "ends the wait for room behind a kernel that never ends; closing waits for none either", function()
      local out, err, code = interrupted(([[
        local gpu = require "gpulua"
        local dev = gpu.device("cpu", { isolate = "process" })
        local mod = dev:compile [=[
          extern "C" __global__ void forever(volatile int *flag) { while (flag[0] == 0) { } }
          extern "C" __global__ void many(%s int *x) { x[0] += 1; }]=]
        local flag, x = dev:buffer("i32", 1):fill(0), dev:buffer("i32", 1):fill(0)
        local other, free, modules = dev:stream {}, dev:buffer("f32", 10000000), {}
        for i = 1, 100 do
          modules[i] = dev:compile 'extern "C" __global__ void f(int *x) { x[0] = 2; }'
        end
        other:mark():await()
        mod.forever:launch({ grid = 1, block = 1 }, flag)
        io.write "ready" io.flush()
        local ok, e = pcall(function()
          while true do mod.many:launch({ grid = 1, block = 1 }, %s x) end
        end)
        local in_flight = dev:stats().ops_in_flight
        io.write(" ", tostring(ok), " ", e.code, in_flight > 100 and in_flight < 16000 and " full" or " " .. in_flight)
        local begun = os.time()
        other:close()
        free:close()
        x:close()
        modules = nil
        collectgarbage()
        collectgarbage() -- whose end is told while a poll goes on
        dev:close(0.2)
        io.write(os.time() - begun < 5 and " closed" or " took too long")
        os.exit(7)
      ]]):format(("long long, "):rep(11), ("1, "):rep(11)))
      assert.equal("ready false Interrupted full closed", out, err)
      assert.equal(7, code)
    end)

    it("ends a wait, and closes what is open", function()
      local out, err, code = interrupted [[
        local gpu = require "gpulua"
        local _ <close> = setmetatable({}, { __close = function() print " closed" end })
        io.write "ready" io.flush()
        local ok, e = pcall(gpu.sleep, 60)
        print("", ok, e.code)
        gpu.spawn(function() gpu.sleep(60) end)
        error(e)
      ]]
      assert.equal("ready\tfalse\tInterrupted\n closed\n", out)
      assert.truthy(err:find("Interrupted: interrupted!", 1, true), err)
      assert.equal(1, code)
    end)

    it("ends the wait for children at the end of the main chunk", function()
      local out, err, code = interrupted [[
        local gpu = require "gpulua"
        gpu.spawn(function()
          local _ <close> = setmetatable({}, { __close = function() print " child closed" end })
          io.write "ready" io.flush()
          gpu.sleep(60)
        end)
      ]]
      assert.equal("ready child closed\n", out)
      assert.truthy(err:find("interrupted!", 1, true), err)
      assert.equal(1, code)
    end)

    --- A kernel that takes its time, and a wait for it: the wait ends at once.
    for name, wait in pairs {
      ["an op"] = "op:await()", ["an op where nothing can yield"] = "coroutine.wrap(function() op:await() end)()",
      ["a buffer"] = "x:await()", ["a read"] = "x:read()", ["the device"] = "dev:synchronize()",
    } do
      it("ends the wait for " .. name, function()
        local out, err, code = interrupted(([[
          local gpu = require "gpulua"
          local dev = gpu.device()
          local spin = dev:compile([=[
            %s
            extern "C" __global__ void spin(int *x, long long ticks) {
              long long start = now();
              while (now() - start < ticks) { }
              x[0] = 1;
            }
          ]=]).spin
          local x = dev:buffer("i32", 1)
          local op = spin:launch(1, x, 2000000000) -- two seconds or so
          io.write "ready" io.flush()
          local ok, e = pcall(function() %s end)
          print("", ok, type(e) == "table" and e.code or e, op:done())
          op:await()
          error(e, 0)
        ]]):format(support.clock_source, wait))
        assert.truthy(out:find "^ready\tfalse\tInterrupted\tfalse\n", out .. err)
        assert.truthy(err:find("Interrupted: interrupted!", 1, true), err)
        assert.equal(1, code)
      end)
    end

    it("can be caught", function()
      local out, _, code = interrupted [[
        local gpu = require "gpulua"
        io.write "ready" io.flush()
        local ok, e = pcall(function() while true do end end)
        print("", ok, e.code, e.message, e.line)
        gpu.sleep(0.001)
        print "on"
      ]]
      assert.equal("ready\tfalse\tInterrupted\tinterrupted!\t3\non\n", out)
      assert.equal(0, code)
    end)

    it("a second one during the first kills", function()
      local _, _, code = interrupted([[
        local gpu = require "gpulua"
        local text, pattern = ("a"):rep(1 << 22), ("a*"):rep(20) .. "b"
        io.write "ready" io.flush()
        -- A C function that never comes back to Lua, where the first one would be seen; one that comes before it runs
        -- is seen, and caught.
        while true do pcall(string.find, text, pattern) end
      ]], 3)
      assert.equal(130, code)
    end)
  end)

  describe("its own options", function()
    it("--info shows devices and why others are missing", function()
      local out, err, code = run(gpulua, "--info")
      assert.equal("", err)
      assert.equal(0, code)
      assert.truthy(out:find("\ncpu: [^\n]+ multiprocessors"), out)
      assert.truthy(out:find "\ncuda[^\n]*: [^\n]+", out)
      assert.is_nil(out:find("traceback", 1, true), out)
      for _, limit in ipairs { "user_streams 256", "ops_in_flight 16384", "params 128" } do
        assert.truthy(out:find("\n  limits: [^\n]*" .. limit), out)
      end
      assert.truthy(out:find "\ncuda: no: [^\n]*libcuda.so.1" or out:find "\ncuda: no: [^\n]*cuda.h" or
        out:find "\ncuda:0: ", out)
    end)

    it("--info shows libraries, found or not and why, and the cache", function()
      local cache = os.tmpname()
      os.remove(cache)
      local out, err, code = run(gpulua, "--info", "", "GPULUA_CACHE=" .. cache)
      assert.same({ "", 0 }, { err, code })
      assert.truthy(out:find("\nC%+%+ compiler: /[^\n]+"), out)
      assert.truthy(out:find("\ncache: " .. cache .. ", 0.0 of 256 MiB", 1, true), out)
      local not_built <const> = "\nNVTX ranges: no: [^\n]*nvToolsExt"
      assert.truthy(out:find "\nNVTX ranges: off %(GPULUA_NVTX=1" or out:find(not_built), out)
      local on = run(gpulua, "--info", "", "GPULUA_NVTX=1 GPULUA_CACHE=" .. cache)
      assert.truthy(on:find "\nNVTX ranges: on\n" or on:find(not_built), on)
      out = run(gpulua, "--info", "",
        "GPULUA_CXX=/nowhere/c++ GPULUA_LIBNVRTC=/nowhere/libnvrtc.so GPULUA_CACHE=/dev/null")
      assert.truthy(out:find("\nC%+%+ compiler: no: [^\n]*/nowhere/c%+%+"), out)
      assert.truthy(out:find "\nNVRTC: no: [^\n]*/nowhere/libnvrtc.so" or out:find "\ncuda: no: [^\n]*cuda.h", out)
      assert.truthy(out:find "\ncache: no folder can be used: kernels are compiled anew each time\n", out)
      os.execute("rm -rf " .. cache)
    end)

    it("--info=json says the same for programs", function()
      local out, err, code = run(gpulua, "--info=json")
      assert.same({ "", 0 }, { err, code })
      local info = require("dkjson").decode(out)
      assert.equal(require("gpulua").version, info.version)
      local cpu = info.devices[2]
      assert.same({ "cpu", true, 128 }, { cpu.name, cpu.ok, cpu.limits.params })
      assert.equal(256 << 20, info.cache.limit_bytes)
      local names = {}
      for _, library in ipairs(info.libraries) do names[library.name] = library end
      assert.is_true(names["C++ compiler"].ok)
    end)

    it("--device and --isolate choose", function()
      local show = " -e 'local d = require[[gpulua]].device() print(d.name, d.isolation)'"
      assert.equal("cpu\tnone\n", (run(gpulua, "--device cpu --isolate none" .. show)))
      assert.equal("cpu\tprocess\n", (run(gpulua, "--device=cpu --isolate=process" .. show)))
      assert.equal("cpu\tprocess\n", (run(gpulua, show, "", "GPULUA_DEVICE=cpu GPULUA_ISOLATE=process")))
      assert.equal("cpu\tthread\n", (run(gpulua, "--device cpu --isolate thread" .. show)))
      -- Options win.
      assert.equal("cpu\tnone\n", (run(gpulua, "--device cpu --isolate none" .. show, "",
        "GPULUA_DEVICE=cuda:7 GPULUA_ISOLATE=process")))
    end)

    it("refuse bad values", function()
      local _, err, code = run(gpulua, "--isolate threads -e 'print(1)'")
      assert.truthy(err:find("'process', 'thread' or 'none' expected, got 'threads'", 1, true), err)
      assert.equal(1, code)
      _, err, code = run(gpulua, "--device")
      assert.truthy(err:find("'--device' needs argument", 1, true), err)
      assert.equal(1, code)
      _, err, code = run(gpulua, "--nonsense")
      assert.truthy(err:find "unrecognized option '%-%-nonsense'; %S+ %-%-help shows all\n$", err)
      -- Each is found where a letter is wrong, missing or too many.
      local help, count = run(gpulua, "-h"), 0
      assert.equal(run(gpulua, "--help"), help)
      for option in help:gmatch "%-%-%l[%l-]+" do
        local letter, rest = option:match "^%-%-(%l)(.*)$"
        for _, misspelt in ipairs { "--" .. rest, "--" .. letter .. "q" .. rest, "--q" .. rest .. "=3" } do
          _, err, code = run(gpulua, misspelt)
          assert.truthy(err:find(("'%s': %s is one;"):format(misspelt, option), 1, true), err)
          assert.equal(1, code)
        end
        count = count + 1
      end
      assert.truthy(count >= 14, count)
      assert.equal(1, code)
    end)

    it("a bad environment is an error of the script that opens a device", function()
      local open = "-e 'require[[gpulua]].device[[cpu]]'"
      local _, err, code = run(gpulua, open, "", "GPULUA_ISOLATE=sometimes")
      assert.truthy(err:find('GPULUA_ISOLATE: "process", "thread" or "none" expected, got "sometimes"', 1, true), err)
      assert.equal(1, code)
      _, err, code = run(gpulua, "-e 'print(1)'", "", "GPULUA_ISOLATE=sometimes")
      assert.equal("", err)
      assert.equal(0, code)
    end)

    it("--kernel shows what there is to know of the kernels of a file", function()
      write("some.cu", [[
        extern "C" __global__ void add(int n, const float *x, float *y) {
          __shared__ float room[64];
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          room[threadIdx.x % 64] = 1;
          __syncthreads();
          if (i < n) y[i] += x[i] + room[0];
        }]])
      local out, err, code = run(gpulua, "--kernel " .. folder .. "/some.cu")
      assert.equal("", err)
      assert.equal(0, code)
      for _, part in ipairs { "add(n: i32, x: in f32*, y: inout f32*)", "shared memory 256 B", "arguments 24 B",
        "limited by", "256  " } do
        assert.truthy(out:find(part, 1, true), part .. " is not in " .. out)
      end
      write("bad.cu", "extern \"C\" __global__ void f( {")
      out, err, code = run(gpulua, "--kernel " .. folder .. "/bad.cu")
      assert.equal("", out)
      assert.falsy(err:find("stack traceback", 1, true))
      assert.truthy(err:find("bad.cu", 1, true), err)
      assert.equal(1, code)
      write("none.cu", "__device__ int x;")
      out, err, code = run(gpulua, "--kernel " .. folder .. "/none.cu")
      assert.equal("", out)
      assert.truthy(err:find("no __global__ function", 1, true), err)
      assert.equal(1, code)
      out, err, code = run(gpulua, "--kernel /nowhere.cu")
      assert.equal("", out)
      assert.truthy(err:find("/nowhere.cu", 1, true), err)
      assert.equal(1, code)
    end)

    it("writes over no script whose file to write was forgotten", function()
      for _, option in ipairs { "--trace", "--timeline", "--flight" } do
        write("kept.lua", "print 'kept'")
        local out, err, code = run(gpulua, option .. " " .. folder .. "/kept.lua")
        assert.equal("", out)
        assert.truthy(err:find("'" .. option .. "' needs argument", 1, true) and err:find("script", 1, true), err)
        assert.equal(1, code)
        local file = assert(io.open(folder .. "/kept.lua"))
        assert.equal("print 'kept'", file:read "a")
        file:close()
        out, err, code = run(gpulua, option .. " -e 'print(1)'")
        assert.equal("", out)
        assert.truthy(err:find("'" .. option .. "' needs argument", 1, true), err)
        assert.equal(1, code)
      end
    end)

    it("says what to do where a kernel ends it by a fault", function()
      write("wild.lua", [[
        local dev = require "gpulua".device("cpu", { isolate = "none" })
        local wild = dev:compile 'extern "C" __global__ void wild(int *x) { x[0] = 1; }'
        wild.wild:launch({ grid = 1, block = 1 }, nil):await()
      ]])
      local _, err, code = run(gpulua, folder .. "/wild.lua")
      assert.truthy(err:find("--check", 1, true) and err:find("--isolate process", 1, true), err)
      assert.truthy(code == 139 or code == "signal 11", code)
    end)

    it("--code with it is for GPUs", function()
      write("some.cu", "extern \"C\" __global__ void f(int *x) { *x = 1; }")
      local out, err, code = run(gpulua, "--kernel " .. folder .. "/some.cu --code --device cpu")
      assert.equal("", out)
      assert.truthy(err:find("--code: the CPU device", 1, true) and err:find("keep = ", 1, true), err)
      assert.falsy(err:find("stack traceback", 1, true), err)
      assert.equal(1, code)
      out, err, code = run(gpulua, "--code")
      assert.equal("", out)
      assert.truthy(err:find("--code", 1, true) and err:find("--kernel", 1, true), err)
      assert.equal(1, code)
    end)

    it("an unknown device is an error of the script", function()
      local _, err, code = run(gpulua, "--device nothing -e 'require[[gpulua]].device()'")
      assert.truthy(err:find("nothing", 1, true), err)
      assert.equal(1, code)
    end)
  end)

  describe("in stock Lua", function()
    local function stock(text, options)
      return run(lua, (options or "") .. " -", text,
        ("LUA_CPATH='%s/lua/?.so;;' GPULUA_EXECUTOR=%s/gpulua-exec"):format(build, build))
    end

    it("waits for tasks drive the loop", function()
      local out, err, code = stock [[
        local gpu = require "gpulua"
        assert(gpu == require "gpulua" and require "gpulua.core")
        local log = {}
        local t = gpu.spawn(function(...) gpu.sleep(0.001) return ... end, 1, 2)
        print(t:await())
        print(gpu.all(gpu.spawn(function() gpu.sleep(0.002) return "a" end), gpu.spawn(function() return "b" end)))
        print(gpu.any(gpu.spawn(function() gpu.sleep(9) end), gpu.spawn(function() return "b" end)))
        print(pcall(gpu.timeout, 0.001, gpu.sleep, 60))
        print(gpu.run(function() return gpu.spawn(function() return "inner" end):await() end))
        print(gpu.spawn(error, "e", 0):join())
        print(gpu.spawn(coroutine.yield):join())
        local n = gpu.spawn(function() end)
        print(gpu.step(), gpu.step(0.001))
      ]]
      assert.equal("", err)
      assert.truthy(out:find("^1\t2\na\tb\n2\tb\nfalse\t"), out)
      assert.truthy(out:find("inner\nfalse\te\nfalse\tattempt to yield from outside a coroutine\n1\t1\n", 1, true), out)
      assert.equal(0, code)
    end)

    it("a device works, and waits for its work block and run no task", function()
      local out, err, code = stock [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local saxpy = dev:compile([=[
          extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] = a * x[i] + y[i];
          }
        ]=]).saxpy
        local has_run = false
        local task = gpu.spawn(function() has_run = true return "task" end)
        local n = 100000
        local x <close> = dev:buffer("f32", n):fill(1)
        local y <close> = dev:upload("f32", n, function(i) return i end)
        local op = saxpy:launch(n, n, 2.0, x, y)
        print(op:await() == op, op:done(), op:join())
        print(y:read(1, 2)[2], #y:bytes(1, 3), has_run)
        dev:synchronize()
        gpu.all(op, y)
        print(has_run, task:await(), has_run)
        print(pcall(y.read, y, 0))
        local late = dev:current():mark():on_done(function(ok) print("done", ok) end)
        while gpu.step(0.01) > 0 do end
        dev:close()
      ]]
      assert.equal("", err)
      assert.equal(0, code)
      assert.truthy(out:find "^true\ttrue\ttrue\tgpulua.op saxpy[^\n]*\n4.0\t12\tfalse\nfalse\ttask\ttrue\n", out)
      assert.truthy(out:find("OutOfBounds", 1, true), out)
      assert.truthy(out:find "done\ttrue\n$", out)
    end)

    it("modules of ours are found", function()
      local out, err = stock [[
        print(type(require "gpulua.npy"), type(require "gpulua.image"))
        print(require "gpulua" == require "gpulua")
      ]]
      assert.equal("", err)
      assert.equal("table\ttable\ntrue\n", out)
      local names = { "npy", "wav", "image", "trace" }
      names[#names + 1] = support.has_luv() and "luv" or nil
      for _, name in ipairs(names) do -- before gpulua itself
        out, err = stock(("print(type(require 'gpulua.%s'), type(require 'gpulua'))"):format(name))
        assert.equal("", err)
        assert.equal("table\ttable\n", out)
      end
    end)

    it("what nobody saw is a warning at the end, and tasks are closed", function()
      local out, err = stock([[
        local gpu = require "gpulua"
        gpu.spawn(error, "unseen", 0)
        gpu.spawn(function()
          local _ <close> = setmetatable({}, { __close = function() print "closed" end })
          gpu.sleep(60)
        end)
        gpu.sleep(0.001)
      ]], "-W")
      assert.equal("closed\n", out)
      assert.truthy(err:find("Lua warning: gpulua: nobody saw this error: unseen", 1, true), err)
    end)
  end)

  it("costs little more than Lua to start", function()
    if support.keeps_freed_memory() then
      return pending "sanitizers start slowly"
    end
    local least = { [gpulua] = math.huge, [lua] = math.huge }
    local rounds = 0
    repeat -- in turn, and more often where others have the processors
      for program, fastest in pairs(least) do
        local start = support.now()
        os.execute(program .. " -e ''")
        least[program] = math.min(fastest, support.now() - start)
      end
      rounds = rounds + 1
    until rounds >= 10 and least[gpulua] - least[lua] < 0.005 or rounds == 60
    local own, stock = least[gpulua], least[lua]
    assert.truthy(own - stock < 0.005, ("%.1f ms more"):format((own - stock) * 1000))
  end)
end)
