-- The end of a program: what the command line asks for then is there, or is said to be missing.

local support = require "spec.support"

local build = os.getenv "GPULUA_BUILD" or "build"

describe("at its end a program", function()
  local path

  -- What the interpreter writes with these arguments, and its exit code. The script, at `path`, fills a buffer of a
  -- device that it keeps, and then does what `text` says.
  local function run(arguments, text)
    local file <close> = assert(io.open(path, "w"))
    file:write('kept = require "gpulua".device("cpu"):buffer("i32", 8):fill(1)\n', text or "")
    file:close()
    local pipe = assert(io.popen(("{ %s/gpulua %s; } 2>&1"):format(build, arguments)))
    local output = pipe:read "a"
    local _, _, code = pipe:close()
    return output, code
  end

  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  it("says of each file alike that it cannot be written", function()
    local output, code = run("--trace /dev/full --timeline /dev/full --summary " .. path)
    assert.equal(1, code, output)
    for _, what in ipairs { "trace", "timeline" } do
      assert.truthy(output:find(("gpulua: %s: /dev/full: cannot be written: "):format(what), 1, true), output)
    end
    assert.is_nil(output:find("traceback", 1, true), output)
  end)

  it("tells all of it also where the script has left no require", function()
    local trace, page, flown = os.tmpname(), os.tmpname(), os.tmpname()
    for _, text in ipairs { "require = nil", "require = nil setmetatable(_G, { __index = error, __newindex = error })",
      "require = error os.exit(0)" } do
      local output, code = run(("--summary --trace %s --timeline %s --flight %s %s"):format(trace, page, flown, path),
        text)
      assert.equal(0, code, output)
      assert.truthy(output:find("buffers took 512 B", 1, true), output)
      for _, name in ipairs { trace, page, flown } do
        local file <close> = assert(io.open(name))
        assert.truthy(#file:read "a" > 100, name)
        os.remove(name)
      end
      output, code = run("--check " .. path, text)
      assert.equal(0, code, output)
      assert.truthy(output:find("1 buffer of cpu is held still", 1, true), output)
    end
  end)

  it("tells all of it also where the script has left nothing of Lua's library, and works without before", function()
    local clear <const> = [[
      local next, print, exit, loaded, error = next, print, os.exit, package.loaded, error
      local gpu = require "gpulua"
      local all = { string, table, math, io, os, coroutine, debug, utf8, package.preload, package, loaded, _G }
      for i = 1, #all do
        for name, value in next, all[i] do all[i][name] = %s end
      end
    ]]
    local work <const> = [[
      local dev = gpu.device "cpu"
      local add = dev:compile('extern "C" __global__ void add(int *x) { x[threadIdx.x] += 1; }').add
      local x = dev:buffer("i32", 32):fill(1)
      add:launch({ grid = 1, block = 32 }, x)
      local task = gpu.spawn(function() gpu.sleep(0) return x:read()[3] end)
      print(gpu.timeout(60, function() return task:await() end) == 2 and "works")
      exit(true)
    ]]
    local trace, page, flown = os.tmpname(), os.tmpname(), os.tmpname()
    local arguments <const> = ("--summary --trace %s --timeline %s --flight %s %s"):format(trace, page, flown, path)
    for _, value in ipairs { "nil", "error" } do
      for _, text in ipairs { "", work } do
        local output, code = run(arguments, "local kept = kept\n" .. clear:format(value) .. text)
        assert.equal(0, code, output)
        assert.truthy(output:find("buffers took ", 1, true), output)
        assert.truthy(text == "" or output:find("works", 1, true), output)
        for _, name in ipairs { trace, page, flown } do
          local file <close> = assert(io.open(name))
          assert.truthy(#file:read "a" > 100, name)
          os.remove(name)
        end
      end
    end
    local output, code = run("--check " .. path, "local kept = kept\n" .. clear:format "nil" .. "K = kept")
    assert.equal(0, code, output)
    assert.truthy(output:find("1 buffer of cpu is held still", 1, true), output)
  end)

  it("fails where nobody could be shown the summary", function()
    assert.equal(1, select(2, run(("--summary %s 2> /dev/full"):format(path))))
    assert.equal(0, select(2, run(("--summary %s 2> /dev/null"):format(path))))
  end)

  support.once(it, "closes a device on a thread once its work has ended, however much has failed by then", function()
    local output, code = support.script([=[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { isolate = "thread" })
      local mod = dev:compile [[
        #include <assert.h>
        extern "C" __global__ void spin() { for (long long start = clock64(); clock64() - start < 3000000000;) {} }
        extern "C" __global__ void fails(const int *x) { assert(x == nullptr); }]]
      local x = dev:buffer("i32", 1):fill(0)
      mod.spin:launch(1) -- for longer than a close waits for an answer
      for _ = 1, 1000 do
        mod.fails:launch(1, x)
      end
      dev:close()
      print "closed"]=], "timeout 100")
    assert.truthy(output:find("closed\n", 1, true), output)
    assert.equal(0, code, output)
  end)

  describe("by a signal", function()
    local folder
    before_each(function()
      folder = os.tmpname()
      os.remove(folder)
      assert(os.execute("mkdir " .. folder))
    end)
    after_each(function() os.execute("rm -r " .. folder) end)

    local function read(name)
      local file <close> = io.open(folder .. "/" .. name)
      return file and file:read "a"
    end

    --- Runs `text` behind the filling of a buffer, and `signals`, shell commands with the program's id in $!, when it
    --- has written "ready"; what it has written, its exit code, and its trace.
    local function ended(signals, arguments, text, before)
      local script <close> = assert(io.open(path, "w"))
      script:write('local gpu = require "gpulua" kept = gpu.device("cpu"):buffer("i32", 8):fill(1) kept:read(1, 1)\n',
        "local function ready() io.write 'ready' io.flush() end\n", text)
      script:close()
      local shell <close> = assert(io.open(folder .. "/run.sh", "w"))
      shell:write(([[
        program=$(realpath %s/gpulua)
        cd %s
        rm -f out trace.json
        %s
        $program --trace trace.json --summary %s %s > out 2> err &
        while kill -0 $! && ! grep -q ready out; do sleep 0.01; done
        %s
        wait $!
        echo $? > code
      ]]):format(build, folder, before or "", arguments, path, signals))
      shell:close()
      os.execute(("timeout -k 5 100 sh %s/run.sh 2> /dev/null"):format(folder))
      return (read "out" or "") .. (read "err" or ""), math.tointeger(tonumber(read "code" or "")), read "trace.json"
    end

    local waits <const> = [[
      local _ <close> = setmetatable({}, { __close = function() print " closed" end })
      ready() gpu.sleep(80)]]

    it("has written all that it would have at its end, and has closed what it had", function()
      for signal, code in pairs { TERM = 143, HUP = 129 } do
        for _, isolation in ipairs { "none", "process" } do
          local output, got, trace = ended("kill -" .. signal .. " $!", "--isolate " .. isolation, waits)
          assert.equal(code, got, output)
          assert.truthy(output:find("ready closed", 1, true), output)
          assert.truthy(output:find("Interrupted: interrupted!", 1, true), output)
          assert.truthy(output:find("buffers took 512 B", 1, true), output)
          assert.truthy(trace and trace:find('"fill"', 1, true) and trace:find "}}%s*$", trace)
        end
      end
      local output, code = ended("kill -TERM $!; kill -TERM $!", "--flight last.flight", waits) -- as timeout(1) does
      assert.equal(143, code, output)
      assert.truthy(output:find("it was given last is in last.flight", 1, true), output)
      assert.truthy(output:find("buffers took 512 B", 1, true), output)
    end)

    it("has done so also where it catches every error", function()
      local output, code, trace = ended("kill -TERM $!", "", [[
        pcall(function() ready() gpu.sleep(80) end)
        while true do pcall(gpu.sleep, 80) end]])
      assert.equal(143, code, output)
      assert.truthy(output:find("gpulua: ended by signal 15", 1, true), output)
      assert.truthy(trace and trace:find('"fill"', 1, true), output)
    end)

    support.once(it, "has done so behind a kernel that never ends, for which it does not wait", function()
      for _, isolation in ipairs { "none", "process" } do
        local output, code, trace = ended("kill -TERM $!", "--isolate " .. isolation, [[
          local source <const> = 'extern "C" __global__ void f(volatile int *x) { while (x[0] == 1) { } }'
          local op = gpu.device("cpu"):compile(source).f:launch({ grid = 1, block = 1 }, kept)
          ready() op:await()]])
        assert.equal(143, code, output)
        assert.truthy(output:find("buffers took 512 B", 1, true), output)
        assert.truthy(trace and trace:find('"fill"', 1, true), output)
      end
    end)

    support.once(it, "has done so where the script catches it for ever, whatever that is at", function()
      for at, text in pairs {
        [3] = "ready() while true do pcall(function() while true do end end) end",
        [4] = "ready() coroutine.wrap(function()\nwhile true do pcall(function() while true do end end) end end)()",
        [5] = "ready() string.gsub('x', 'x', function()\n\nwhile true do pcall(gpu.sleep, 80) end end)",
      } do
        local output, code, trace = ended("kill -TERM $!", "--flight last.flight", text)
        assert.equal(143, code, output)
        assert.truthy(output:find((":%d: ended by signal 15 ("):format(at), 1, true), output)
        assert.truthy(output:find("it was given last is in last.flight", 1, true), output)
        assert.truthy(output:find("buffers took 512 B", 1, true), output)
        assert.truthy(trace and trace:find('"fill"', 1, true) and trace:find "}}%s*$", trace)
      end
    end)

    support.once(it, "is cut off where it cannot be ended otherwise, and says so", function()
      local output, code, trace = ended("kill -TERM $!", "",
        "pcall(function() ready() while true do end end) string.find(('a'):rep(200), ('a-'):rep(40) .. 'b')")
      assert.equal(143, code, output)
      assert.truthy(output:find("gpulua: the script does not end, and nothing of it is written\n", 1, true), output)
      assert.is_nil(trace)
    end)

    it("is not ended by one that is ignored, as nohup(1) has it, and may have its own status", function()
      local output, code = ended("kill -HUP $!; touch go", "", [[
        ready() while not io.open "go" do gpu.sleep(0.01) end print " went on"]], "trap '' HUP")
      assert.equal(0, code, output)
      assert.truthy(output:find("ready went on", 1, true), output)
      output, code = ended("kill -TERM $!", "", "pcall(function() ready() gpu.sleep(80) end) os.exit(7)")
      assert.equal(7, code, output)
      assert.truthy(output:find("buffers took 512 B", 1, true), output)
    end)
  end)
end)
