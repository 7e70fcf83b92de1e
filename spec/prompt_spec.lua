-- The prompt of gpulua on a terminal: editing, completion, history, what goes on meanwhile, Ctrl-C.

local lfs = require "lfs"
local system = require "system"
local support = require "spec.support"
local terminal = require "spec.terminal"

local build = os.getenv "GPULUA_BUILD" or "build"
if not build:find "^/" then
  build = lfs.currentdir() .. "/" .. build
end
local plain <const> = "GPULUA_LIBEDIT=/nowhere GPULUA_HISTORY="

describe("the prompt", function()
  local folder, has_libedit

  local function write(name, text)
    support.write_file(folder .. "/" .. name, text)
    return folder .. "/" .. name
  end

  --- gpulua on a terminal, behind a script that makes what the tests use. `options` as for terminal.open, and
  --- `command`, what starts it.
  local function open(options, script)
    if not terminal.is_there() then
      pending "no script(1), which makes terminals, is here"
    end
    options = options or {}
    options.environment = options.environment or "GPULUA_HISTORY="
    if not has_libedit and not options.environment:find "LIBEDIT=/nowhere" then
      pending "no libedit is here"
    end
    local path = write("start.lua", script or "")
    local command = ("%s/gpulua -i %s"):format(build, path)
    local session = terminal.open((options.command or "%s"):format(command), options)
    session:expect "gpulua 0"
    return session
  end

  local function ends(session)
    session:expect_line "> "
    session:send "\4"
    local status, is_as_before = session:wait_end()
    assert.equal(0, status, session:look())
    assert.is_true(is_as_before, "the terminal's mode is another one")
  end

  setup(function()
    folder = support.path ""
    assert(lfs.mkdir(folder))
    has_libedit = os.execute "{ ldconfig -p || /sbin/ldconfig -p; } 2> /dev/null | grep -q 'libedit.so.[02] '"
  end)
  teardown(function() os.execute("rm -r " .. folder) end)

  it("does what README.md shows", function()
    if not terminal.is_there() or not has_libedit then
      pending "no script(1), or no libedit"
    end
    local readme = support.read_file "README.md"
    local wanted = readme:match "\n    %$ build/gpulua\n    Lua [^\n]*\n    gpulua [%d.]+\n(.-)\n\n"
    wanted = wanted:gsub("%f[^\0\n]    ", "")
    local environment = "-u GPULUA_ISOLATE GPULUA_DEVICE=cpu GPULUA_HISTORY="
    local session <close> = terminal.open(build .. "/gpulua", { columns = 120, rows = 50, environment = environment })
    for prompt, text in ("\n" .. wanted):gmatch "\n(>>? )([^\n]*)" do
      session:expect_line(prompt)
      local row = session.screen.row
      session:send(text .. "\r")
      session:wait("the next line", function() return session.screen.row > row end)
    end
    session:expect_line "> "
    assert.equal(wanted .. "\n> ", session:look():match "\ngpulua [%d.]+\n(.*)$")
    ends(session)
  end)

  describe("edits lines:", function()
    it("the cursor moves, and characters come and go where it is", function()
      local session <close> = open()
      session:expect_line "> "
      session:send "rint('c')\1p" -- to the front
      session:expect_line "> p"
      session:send "\27[F\27[D\27[D\27[Dab\5" -- the end, three to the left, the end
      session:expect_line "> print('abc')"
      session:send "\127\127z')\27[H\27[3~\5" -- back; the front, delete
      session:expect_line "> rint('abcz')"
      session:send "\23\23\23\23x = 4" -- words
      session:expect_line "> x = 4"
      session:finish ""
      assert.equal("4", session:enter "x")
      ends(session)
    end)

    it("characters of any width, on lines that are longer than the terminal", function()
      local text <const> = "αβγ äöü 漢字漢字漢字 é \u{1f600} and on and on"
      for _, columns in ipairs { 16, 33, 80 } do
        local session <close> = open { columns = columns }
        session:expect_line "> "
        session:send("=#'" .. text .. "'\1\27[C\27[C\27[C\27[C!\5") -- to the front, behind the α
        local wanted = "> =#'" .. text:gsub("α", "α!") .. "'"
        session:wait(wanted, function(screen)
          -- Rows are full, but where a wide character had no room.
          return (screen:match "\n(> =.*)$" or ""):gsub("[\n ]", "") == wanted:gsub(" ", "")
        end)
        session:send "\r"
        session:expect(("\n%d\n> "):format(#text + 1))
      end
    end)

    it("bytes that are no UTF-8 come through", function()
      local session <close> = open()
      session:expect_line "> "
      session:finish "x = 'a\xe4b\xff'"
      assert.equal([[{ 97, 228, 98, 255 }]], session:enter "{x:byte(1, -1)}")
      ends(session)
    end)

    it("over several lines, which come back as one", function()
      local session <close> = open()
      session:expect_line "> "
      session:send "for i = 1, 2 do\r"
      session:expect_line ">> "
      session:send "print('line', i * 11)\r"
      session:expect_line ">> "
      session:send "end\r"
      session:expect "\nline    11\nline    22\n> "
      session:send "\27[A" -- up
      session:expect "for i = 1, 2 do\nprint('line', i * 11)\nend"
      session:send "\27[H\27[F\127\127\127if i == 2 then return i end end"
      session:expect_line "if i == 2 then return i end end"
      session:send "\r"
      session:expect "\nline    11\nline    22\n2\n> "
      ends(session)
    end)

    it("by keys of the user's", function()
      write(".editrc", 'bind "^T" ed-move-to-beg\n')
      local session <close> = open { environment = "GPULUA_HISTORY= HOME=" .. folder }
      session:expect_line "> "
      session:send "2\0201"
      session:expect_line "> 1"
      session:send "\r"
      session:expect "\n12\n> "
      ends(session)
    end)

    it("when the terminal gets another size", function()
      local session <close> = open()
      session:expect_line "> "
      session:send "x = 'a line of some length, which has room on a wide terminal'"
      session:expect_line "> x = 'a line of some length, which has room on a wide terminal'"
      session:resize(30, 10)
      session:wait("the line in three rows", function(screen)
        return screen:find("> x = 'a line of some length,\nwhich has room on a wide termi\nnal'", 1, true)
      end)
      assert.truthy(session:look():find("\ngpulua 0", 1, true)) -- what is above stays
      session:finish " .. '!'"
      assert.equal("a line of some length, which h\nas room on a wide terminal!", session:enter "x")
      session:resize(100, 24)
      session:send "x = 'a line of some length, which has room on a wide terminal'"
      session:expect_line "> x = 'a line of some length, which has room on a wide terminal'"
      session:finish ""
      ends(session)
    end)
  end)

  describe("completes", function()
    it("names of globals, words of Lua, fields and methods", function()
      local session <close> = open(nil, "gpu = require 'gpulua' dev = gpu.device() b = dev:buffer('f32', 3)")
      session:expect_line "> "
      session:send "print(stri\t.rep('a', #cor\t"
      session:expect_line "> print(string.rep('a', #coroutine"
      session:send "\3"
      session:expect_line "> "
      session:send "whi\t"
      session:expect_line "> while"
      session:send "\3"
      session:expect_line "> "
      session:send "x = dev:uplo\t'i32', { 5 }):re\t" -- of a call's result nobody knows anything
      session:expect_line "> x = dev:upload('i32', { 5 }):re"
      session:finish "ad()[1]"
      assert.equal("5", session:enter "x")
      session:send "b:f\t"
      session:wait("a choice", function(screen) return screen:find("\nfill  free\n> b:f", 1, true) end)
      session:finish "i\t0)"
      assert.truthy(session:enter("b"):find("0.0  0.0  0.0", 1, true))
      ends(session)
    end)

    it("nothing at the front of a line, where it indents, and nothing in quotes", function()
      local session <close> = open()
      session:expect_line "> "
      session:send "\tprint('pri\t')\r"
      session:expect "\npri\n> "
      ends(session)
    end)
  end)

  describe("has a history", function()
    local function session_at(path, more)
      return open { environment = ("GPULUA_HISTORY=%s %s"):format(path, more or "") }
    end

    it("that outlives it", function()
      local path = folder .. "/history"
      do
        local session <close> = session_at(path)
        session:enter "first = 1"
        session:expect_line "> "
        session:send "second = [[a\\\r"
        session:expect_line ">> "
        session:send "n]]\r"
        session:enter "third = 'ä'"
        session:enter "third = 'ä'" -- twice the same is once
        session:enter "  "
        session:enter "oops oops" -- errors can be mended
        ends(session)
      end
      assert.equal("first = 1\nsecond = [[a\\\\\\nn]]\nthird = 'ä'\noops oops\n", support.read_file(path))
      assert.equal("rw-------", lfs.attributes(path, "permissions"))
      local session <close> = session_at(path)
      session:expect_line "> "
      session:send "\27[A\27[A"
      session:expect_line "> third = 'ä'"
      session:send "\27[A\r"
      session:expect_line "> "
      assert.equal("true", session:enter "second == 'a\\\\\\nn'")
      session:send "\18irst\r" -- looks for it
      session:expect "first = 1"
      assert.equal("1", session:enter "first")
      ends(session)
    end)

    it("in the place that XDG has for it, whose folders are the user's alone", function()
      for name, environment in pairs { xdg = "XDG_STATE_HOME=%s/xdg/state", home = "-u XDG_STATE_HOME HOME=%s/home" } do
        lfs.mkdir(folder .. "/home")
        local session <close> = open { environment = "-u GPULUA_HISTORY " .. environment:format(folder) }
        session:enter "x = 1"
        ends(session)
        local state = folder .. (name == "xdg" and "/xdg/state" or "/home/.local/state")
        assert.equal("x = 1\n", support.read_file(state .. "/gpulua/history"))
        assert.equal("rwx------", lfs.attributes(state .. "/gpulua", "permissions"))
      end
    end)

    it("that has bounds", function()
      local path = folder .. "/long"
      local lines = {}
      for i = 1, 2500 do lines[i] = ("x = %d\n"):format(i) end
      support.write_file(path, table.concat(lines))
      do
        local session <close> = session_at(path)
        session:enter("y = '" .. ("long "):rep(20) .. "'")
        session:expect_line "> "
        session:send "\27[A\27[A"
        session:expect_line "> x = 2500"
        session:send "\3"
        ends(session)
      end
      local kept = assert(support.read_file(path))
      assert.equal(1001, select(2, kept:gsub("\n", "")))
      assert.truthy(kept:find "^x = 1501\n")
      -- Few long ones: by bytes.
      for i = 1, 50 do lines[i] = ("x = '%s'\n"):format(("%02d"):format(i):rep(30000)) end
      support.write_file(path, table.concat(lines, "", 1, 50))
      local session <close> = session_at(path)
      ends(session)
      kept = support.read_file(path)
      assert.truthy(#kept <= 1 << 20 and #kept > 900000, #kept)
      assert.truthy(kept:find(("50"):rep(30000) .. "'\n$"))
    end)

    it("that several prompts write at once", function()
      local path = folder .. "/shared"
      do
        local one <close> = session_at(path)
        local other <close> = session_at(path)
        for i = 1, 5 do
          one:enter(("a = %d"):format(i))
          other:enter(("b = %d"):format(i))
        end
        ends(one)
        ends(other)
      end
      local kept = support.read_file(path)
      assert.equal("a = 1\nb = 1\na = 2\nb = 2\n", kept:sub(1, 24))
      assert.equal(10, select(2, kept:gsub("\n", "")))
    end)

    it("in memory alone where the file cannot be, or is not wanted", function()
      write("folder_in_the_way", "")
      for _, path in ipairs { "", folder .. "/folder_in_the_way/history", folder, "/dev/full", "/dev/null" } do
        local session <close> = session_at(path)
        session:enter "x = 7"
        session:send "\27[A"
        session:expect_line "> x = 7"
        session:send "\3"
        ends(session)
      end
      local session <close> = open { environment = "-u GPULUA_HISTORY -u XDG_STATE_HOME -u HOME" }
      session:enter "x = 7"
      ends(session)
    end)

    it("which survives what is no history", function()
      local path = folder .. "/odd"
      support.write_file(path, "a\\\n\n\\x\0\27[31m\255\nlast = 'cut")
      do
        local session <close> = session_at(path)
        session:expect_line "> "
        session:send "\27[A"
        session:expect_line "> last = 'cut"
        session:finish "\27[A\27[A\27[B\27[B'"
        assert.equal("cut", session:enter "last")
        ends(session)
      end
      assert.truthy(support.read_file(path):find("\nlast = 'cut\nlast = 'cut'\nlast\n$"), support.read_file(path))
    end)
  end)

  describe("goes on with tasks", function()
    for how, environment in pairs { ["with libedit"] = "GPULUA_HISTORY=", ["without it"] = plain } do
      it("that end while it waits for a key, and awaits what is typed, " .. how, function()
        local session <close> = open({ environment = environment }, [[
          gpu = require "gpulua"
          dev = gpu.device()
          b = dev:upload("i32", { 1, 2, 3 })
          k = dev:compile [=[
            extern "C" __global__ void twice(int n, int *x) {
              int i = threadIdx.x;
              if (i < n) x[i] *= 2;
            }]=].twice]])
        assert.equal("", session:enter "op = k:launch(3, 3, b)")
        session:enter "op:await()"
        assert.equal("2\t4\t6", session:enter("table.unpack(b:read())"):gsub("%s+", "\t"))
        session:enter "count = 0"
        session:enter "function step(i) gpu.sleep(0.01) k:launch(3, 3, b):await() count = i end"
        session:enter "task = gpu.spawn(function() for i = 1, 5 do step(i) end end)"
        local deadline = support.now() + 30
        repeat
          system.sleep(0.1) -- nobody presses a key
          local count = session:enter "count"
        until count == "5" or support.now() > deadline
        assert.equal("5", session:enter "count")
        assert.truthy(session:enter("task"):find "%(done%)$")
        ends(session)
      end)
    end

    it("that print: in front of the line that is typed", function()
      local session <close> = open({ columns = 30 }, [[
        gpu = require "gpulua"
        gpu.spawn(function()
          while not go do gpu.sleep(0.01) end
          print "one"
          io.write "half "
          gpu.sleep(0.05)
          io.stderr:write "two\n"
          print "three"
        end):detach()
        function start() gpu.spawn(function() gpu.sleep(0.2) go = true end) end]])
      session:enter "start()"
      session:send "x = 'typed before it prints, in two rows'"
      session:wait("all of it", function(screen)
        return screen:find("three\n> x = 'typed before it prints,\n in two rows'", 1, true)
      end)
      local shown = session:look()
      assert.truthy(shown:find("\none\nhalf", 1, true), shown)
      assert.truthy(shown:find("two\nthree\n", 1, true), shown)
      assert.equal(1, select(2, shown:gsub("typed before", "")), shown)
      session:finish " .. '!'"
      assert.equal("typed before it prints, in two\n rows!", session:enter "x")
      ends(session)
    end)

    it("that fail: they are told of, and it goes on", function()
      local session <close> = open(nil, "gpu = require 'gpulua'")
      session:enter "gpu.spawn(function() gpu.sleep(0.05) error 'nobody looks' end) 1" -- no chunk at all
      session:enter "do gpu.spawn(function() gpu.sleep(0.05) error 'nobody looks' end) end"
      session:expect "stdin:1: nobody looks"
      session:expect "\n> "
      assert.equal("2", session:enter "1 + 1")
      session:send "\4"
      assert.equal(1, (session:wait_end())) -- as a script's exit code says it
    end)

    it("and waits for them in the end, which it says", function()
      local go = folder .. "/go"
      local session <close> = open({ columns = 200 }, ([[
        gpu = require 'gpulua'
        function wait() while not io.open %q do gpu.sleep(0.01) end print 'over' end]]):format(go))
      session:enter "do gpu.spawn(wait) end"
      session:send "\4"
      session:expect "waiting for 1 task (Ctrl-C ends it)"
      support.write_file(go, "")
      session:expect "over"
      assert.equal(0, (session:wait_end()))
    end)
  end)

  describe("takes Ctrl-C", function()
    for how, environment in pairs { ["with libedit"] = "GPULUA_HISTORY=", ["without it"] = plain } do
      it("also before it has waited for a key, " .. how, function()
        local session <close> = open { environment = environment }
        session:enter "x = 1"
        session:expect_line "> "
        for _ = 1, 2 do
          local row = session.screen.row
          session:send "\19for i = 1, 2 do\r" -- Ctrl-S: the prompt cannot be written
          system.sleep(0.3)
          session:send "\3" -- and now it can
          session:wait("a new prompt", function()
            return session.screen.row > row and session.screen:before_cursor() == "> "
          end)
        end
        assert.equal("1", session:enter "x")
        ends(session)
      end)

      it("for the line, or for what runs, and not for other tasks, " .. how, function()
        local session <close> = open({ columns = 200, environment = environment }, [[
          gpu = require "gpulua"
          count = 0
          gpu.spawn(function() while true do gpu.sleep(0.01) count = count + 1 end end):detach()]])
        session:expect_line "> "
        session:send "x = 'never"
        session:expect_line "> x = 'never"
        session:send "\3"
        session:expect_line "> "
        session:send "for i = 1, 2 do\r"
        session:expect_line ">> "
        session:send "\3"
        session:expect_line "> "
        assert.equal("nil", session:enter "x")
        for _, endless in ipairs { "while true do end", "gpu.sleep(1000)", "gpu.spawn(gpu.sleep, 1000):await()",
          "coroutine.wrap(function() while true do end end)()",
          "gpu.all { gpu.spawn(function() while true do gpu.sleep(0) end end) }" } do
          session:expect_line "> "
          session:send("print 'begun' " .. endless .. "\r")
          session:expect "\nbegun"
          system.sleep(0.05)
          session:send "\3"
          session:expect "interrupted!"
          session:expect "\n> "
        end
        -- Where another task runs without a pause, the first one is too polite to end it, and the second is not.
        session:send "gpu.spawn(function() print 'begun' while true do end end):detach() gpu.sleep(0.1)\r"
        session:expect "\nbegun"
        system.sleep(0.05)
        session:send "\3"
        system.sleep(0.2)
        session:send "\3"
        session:expect "interrupted!"
        session:wait("a prompt", function() return session.screen:before_cursor() == "> " end)
        -- One that keeps the prompt waiting is ended at once.
        session:send "do gpu.spawn(function() gpu.sleep(0.1) print 'begun' while true do end end):detach() end\r"
        session:expect "end\n"
        session:expect "begun"
        system.sleep(0.4)
        session:send "\3"
        session:expect "in a task spawned at stdin:1"
        system.sleep(0.05)
        session:send "\3"
        session:wait("a prompt", function() return session.screen:before_cursor() == "> " end)
        local first
        session:wait("the task going on", function() -- Ctrl-C may still take the first line away
          local now = math.tointeger(session:enter "count")
          first = first or now
          return now and now > first
        end)
        session:send "\4"
        session:expect "waiting for 1 task (Ctrl-C ends it)"
        session:send "\3"
        session:expect "interrupted!"
        assert.equal(1, (session:wait_end()))
      end)
    end

    it("and is looked at without the terminal's echo of it, wherever that comes", function()
      if not terminal.is_there() then
        pending "no script(1), which makes terminals, is here"
      end
      local answer = write("answer", "printf 'inter^Crupted!\\n^'; sleep 0.2; printf 'C> ^C'; read line\n")
      local session <close> = terminal.open("sh " .. answer)
      session:expect "interrupted!"
      session:expect "\n> "
      session:expect_line "> "
      session:send "\r"
      session:wait_end()
    end)
  end)

  describe("survives", function()
    it("errors of all kinds", function()
      for _, environment in ipairs { "GPULUA_HISTORY=", plain } do
        local session <close> = open({ environment = environment }, "gpu = require 'gpulua'")
        assert.truthy(session:enter("error 'oops'"):find "^stdin:1: oops\nstack traceback:")
        assert.truthy(session:enter("x x"):find "^stdin:1: syntax error near 'x'")
        assert.truthy(session:enter("error {}"):find("(error object is a table value)", 1, true))
        local text = session:enter "setmetatable({}, { __tostring = function() error 'no name' end })"
        assert.truthy(text:find "^[^\n]*: no name")
        text = session:enter "error(setmetatable({}, { __tostring = error }))"
        assert.truthy(text:find("(error object is a table value)", 1, true))
        assert.truthy(session:enter("gpu.device():buffer('f33', 1)"):find("InvalidArgument: ", 1, true))
        assert.truthy(session:enter("coroutine.yield()"):find("%S"))
        assert.equal("still here", session:enter "'still here'")
        ends(session)
      end
    end)

    it("calls in expressions, whose line is told, with all their values", function()
      local script <const> = "gpu = require 'gpulua' dev = gpu.device()"
      for _, environment in ipairs { "GPULUA_HISTORY=", plain } do
        local session <close> = open({ environment = environment, columns = 200, rows = 50 }, script)
        session:enter "x = dev:upload('f32', { 1 })"
        assert.truthy(session:enter("gpu.map('q', { x = x })"):find "^stdin:1: ")
        assert.truthy(session:enter("=gpu.map('q', { x = x })"):find "^stdin:1: ")
        session:enter "rawset(_G, 'kept', gpu.map('x + 1', { x = x })) == _G" -- else the collector may come first
        assert.truthy(session:enter("dev:memory_map()"):find " x2 .* stdin:1") -- both
        assert.equal("1       nil     2       nil", session:enter "table.unpack({ 1, nil, 2, nil }, 1, 4)")
        assert.equal("nil", session:enter "nil")
        assert.equal("7       8", session:enter "gpu.spawn(function() gpu.sleep(0.01) return 7, 8 end):await()")
        assert.equal("", session:enter "(function() end)()")
        assert.equal("", session:enter "-- nothing")
        assert.equal("", session:enter "")
        assert.equal("", session:enter ";")
        assert.equal("", session:enter "=")
        assert.equal("1       2", session:enter "=1, 2;")
        ends(session)
      end
    end)

    it("a signal that ends it, with the terminal's mode put back", function()
      for _, signal in ipairs { "TERM", "HUP" } do
        local session <close> = open()
        session:expect_line "> "
        os.execute(("kill -%s %s"):format(signal, session:file "pid"))
        local status, is_as_before = session:wait_end()
        assert.equal(signal == "TERM" and 143 or 129, status)
        assert.is_true(is_as_before)
      end
    end)

    it("being stopped and going on", function()
      local session <close> = open()
      session:expect_line "> "
      session:send "x = 5"
      session:expect_line "> x = 5"
      local pid = session:file "pid"
      os.execute("kill -STOP " .. pid .. "; stty -F " .. session:file "tty" .. " cooked echo")
      os.execute("kill -CONT " .. pid)
      session:expect "\n> x = 5\n> x = 5" -- nobody knows what has been written meanwhile
      session:finish "5"
      assert.equal("55", session:enter "x")
      ends(session)
    end)

    it("Ctrl-Z", function()
      local session <close> = open({ command = 'sh -mc "%s; echo STOPPED; fg"' })
      session:expect_line "> "
      session:send "x = 5"
      session:expect_line "> x = 5"
      session:send "\26"
      session:expect "STOPPED\n"
      session:expect_line "> x = 5"
      session:finish "5"
      assert.equal("55", session:enter "x")
      session:enter "y = 1"
      session:send "\4"
      local _, is_as_before = session:wait_end()
      assert.is_true(is_as_before)
    end)

    it("lines that are typed ahead", function()
      for _, environment in ipairs { "GPULUA_HISTORY=", plain } do
        local session <close> = open({ environment = environment }, "gpu = require 'gpulua'")
        session:expect_line "> "
        session:send "a = 1\rgpu.sleep(0.1)\rb = 2\r'sum ' .. a + b\r"
        session:expect "sum 3\n> "
        ends(session)
      end
    end)

    it("an end that is typed ahead, and no zero within a line", function()
      local script <const> = "gpu = require 'gpulua' function wait() print 'waits' gpu.sleep(0.2) end"
      for _, environment in ipairs { "GPULUA_HISTORY=", plain } do
        for _, typed in ipairs { "\4", "\4\4", "a = 1\r\4", "a = 1\rb = 'x\0y'\r\4\4", "a = (\r\4\4" } do
          local session <close> = open({ environment = environment }, script)
          session:expect_line "> "
          session:send "wait()\r"
          session:expect "\nwaits" -- from here on the terminal puts lines together
          session:send(typed)
          local status, is_as_before = session:wait_end()
          assert.equal(0, status, session:look())
          assert.is_true(is_as_before, "the terminal's mode is another one")
        end
        local session <close> = open({ environment = environment }, script)
        session:expect_line "> "
        session:send "wait()\r"
        session:expect "\nwaits"
        session:send "b = 'x\0y' print(b:sub(1, 1) .. ' ' .. b:sub(-1))\r"
        session:expect "x y\n> "
        session:send "c = 1\r\4" -- at once
        assert.equal(0, (session:wait_end()))
      end
    end)

    it("os.exit, and io.read in what is typed", function()
      local session <close> = open()
      session:expect_line "> "
      session:send "io.write 'text? ' x = io.read()\r"
      session:expect "\ntext? "
      session:finish "a line"
      assert.equal("a line", session:enter "x")
      session:send "os.exit(7)\r"
      assert.equal(7, (session:wait_end()))
    end)
  end)

  describe("is plain", function()
    it("without libedit, and on terminals whose cursor does not move", function()
      for _, environment in ipairs { plain, "GPULUA_HISTORY= TERM=dumb", "GPULUA_HISTORY= TERM=" } do
        local session <close> = open { environment = environment }
        session:enter "x = 'ä'"
        session:expect_line "> "
        session:send "for i = 1, 2 do\r"
        session:expect_line ">> "
        session:send "print(i, x) end\r"
        session:expect "\n1       ä\n2       ä\n> "
        assert.equal("{ 1, 2 }", session:enter "{ 1, 2 }")
        session:send "12\0043\r" -- in the middle of a line ^D ends nothing
        session:expect "\n123\n> "
        ends(session)
        assert.is_nil(session.output:find "\27")
      end
    end)
  end)

  it("is Lua's where standard input is no terminal", function()
    local child <const> = "gpu.spawn(function() gpu.sleep(0.05) print 'child' end):join()"
    local input = write("input", "{}\nb\n'\\27[1m'\n" .. child .. "\nprint 'next'\n")
    local script = write("start.lua", "gpu = require 'gpulua' b = gpu.device():buffer('f32', 2)")
    local command = ("GPULUA_HISTORY=%s/none %s/gpulua -i %s < %s 2>&1"):format(folder, build, script, input)
    local pipe <close> = assert(io.popen(command))
    local output = pipe:read "a"
    local wanted = "\n> table: 0x%x+\n> gpulua.buffer f32%[2%] on [%w:]+\n> \27%[1m\n> child\ntrue\n> next\n> \n$"
    assert.truthy(output:find(wanted), output)
    assert.is_nil(lfs.attributes(folder .. "/none"))
  end)

  it("shows no control characters of labels, texts and errors", function()
    for _, environment in ipairs { "GPULUA_HISTORY=", plain } do
      local session <close> = open({ columns = 200, environment = environment }, [[
        gpu = require "gpulua"
        b = gpu.device():upload("u8", "\27]0;x\7", { label = "\27[31mred\194\155" })
        evil = "\27[2J\155 ä\127"
        function fail() error(evil) end]])
      assert.truthy(session:enter("b"):find("\u{FFFD}[31mred\u{FFFD}", 1, true))
      assert.equal("\u{FFFD}[2J\u{FFFD} ä\u{FFFD}", session:enter "evil")
      assert.equal('{ "\\27[2J\u{FFFD} ä\\127" }', session:enter "{ evil }")
      assert.truthy(session:enter("fail()"):find("start.lua:4: \u{FFFD}[2J", 1, true))
      assert.truthy(session:enter("b:free() b:read()"):find("\u{FFFD}[31mred", 1, true))
      session:send "do gpu.spawn(fail):detach() end\r"
      session:expect "end\n"
      session:expect "start.lua:4: \u{FFFD}[2J"
      session:send "\4"
      session:wait_end()
      for _, command in ipairs { "\27]0", "\27[31m", "\27[2J", "\194\155", "\155" } do
        assert.is_nil(session.output:find(command, 1, true))
      end
    end
  end)
end)
