-- What runs the suite ends when it is told to, and all that it has started with it.

local lfs = require "lfs"

local built = require "spec.built"
local support = require "spec.support"

local function once(pending)
  if support.isolation() ~= "none" or support.is_checked() then
    pending "once is enough"
  end
end

-- A folder with an interpreter that is this script, and a tree with these specs, of which only the names matter. The
-- command runs the suite there.
local files <const> = { "spec/lost_spec.lua", "spec/op_spec.lua", "spec/resource_spec.lua", "spec/update_spec.lua",
  "spec/wait_spec.lua", "spec/why_spec.lua", "spec/deep/inner_spec.lua" }
local function with_interpreter(script)
  local folder = built.folder()
  support.write_file(folder .. "/gpulua", "#!/bin/sh\nfor last; do :; done\n" .. script)
  built.runs("chmod +x %s/gpulua && mkdir -p %s/tree/spec/deep && cd %s/tree && touch spec/support.lua %s", folder,
    folder, folder, table.concat(files, " "))
  return folder, ("cd %s/tree && BUILD=%s sh %s/tools/test.sh"):format(folder, folder, lfs.currentdir())
end

describe("tools/test.sh", function()
  for _, signal in ipairs { "INT", "TERM", "HUP" } do
    it("ends by SIG" .. signal .. ", and with it what it has begun", function()
      once(pending)
      local folder = built.folder()
      support.write_file(folder .. "/program", "#!/bin/sh\nsleep 60 &\necho $! > " .. folder .. "/pid\nwait\n")
      local output, status = built.run([[
        chmod +x %s/program
        BUILD=%s ISOLATE= env --default-signal=INT sh tools/test.sh %s/program &
        for _ in $(seq 100); do [ ! -s %s/pid ] || break; sleep 0.1; done
        kill -%s $!
        start=$(date +%%s)
        wait $!
        echo "status $?, after $(($(date +%%s) - start < 10 ? 0 : 1))"
        # Until init, whose child it is then, has taken its end.
        for _ in $(seq 100); do kill -0 $(cat %s/pid) 2> /dev/null || exit 0; sleep 0.1; done
        kill $(cat %s/pid)
        exit 1]], folder, folder, folder, folder, signal, folder, folder)
      os.execute("rm -r " .. folder)
      assert.equal("status 130, after 0\n", output)
      assert.equal(0, status)
    end)
  end

  it("runs each file on each transport by itself, says what failed, and adds up", function()
    once(pending)
    local folder, suite = with_interpreter [[
      echo "$GPULUA_ISOLATE ${GPULUA_CHECK:-0} $last" >> "$GPULUA_BUILD/ran"
      case $GPULUA_ISOLATE:${GPULUA_CHECK:-0}:$last in
      none:0:*/wait_spec.lua) echo "what went wrong"; echo "1 passed, 2 failed, 0 skipped"; exit 1 ;;
      none:0:*/op_spec.lua) exit 3 ;;
      process:0:*/op_spec.lua) echo "0 passed, 0 failed, 0 skipped" ;;
      process:0:*/why_spec.lua) echo "5 passed, 0 failed, 0 skipped"; exit 1 ;;
      *) echo "2 passed, 0 failed, 1 skipped" ;;
      esac
    ]]
    local output, status = built.run("export ISOLATE='none process' DEVICE=cpu NVRTC_CHECK= TEST_JOBS=2\n" .. suite)
    local ran = {}
    for line in io.lines(folder .. "/ran") do
      assert.is_nil(ran[line], line)
      ran[line] = true
    end
    for _, isolate in ipairs { "none", "process" } do
      for _, file in ipairs(files) do
        assert.truthy(ran[("%s 0 %s"):format(isolate, file)], file)
      end
      assert.truthy(ran[isolate .. " 1 spec/update_spec.lua"])
      ran[isolate .. " 1 spec/update_spec.lua"] = nil
      for _, file in ipairs(files) do
        ran[("%s 0 %s"):format(isolate, file)] = nil
      end
    end
    assert.is_nil(next(ran))
    os.execute("rm -r " .. folder)
    assert.equal(1, status)
    assert.truthy(output:find("--- spec/wait_spec.lua on cpu, none failed\nwhat went wrong\n", 1, true), output)
    assert.truthy(output:find("--- spec/op_spec.lua on cpu, none failed: exit status 3", 1, true), output)
    assert.truthy(output:find("--- spec/op_spec.lua on cpu, process failed: ran no test", 1, true), output)
    assert.truthy(output:find("--- spec/why_spec.lua on cpu, process failed: exit status 1", 1, true), output)
    local fine = 2 * (#files + 1) - 4
    assert.equal(("%d passed, 5 failed, %d skipped"):format(2 * fine + 1 + 5, fine), output:match "([^\n]*)\n$")
  end)

  it("runs on the first transport alone what that is enough for", function()
    once(pending)
    local folder, suite = with_interpreter [[
      echo "$GPULUA_ISOLATE ${GPULUA_CHECK:-0} ${ONCE:-} $last" >> "$GPULUA_BUILD/ran"
      echo "1 passed, 0 failed, 0 skipped"
    ]]
    local output, status = built.run(
      "export ISOLATE='process thread' ONCE='inner why checked' DEVICE=cpu NVRTC_CHECK= TEST_JOBS=2\n" .. suite)
    local ran = support.read_file(folder .. "/ran")
    os.execute("rm -r " .. folder)
    assert.equal(0, status, output)
    for _, file in ipairs(files) do -- no suite within this one hears of it
      assert.truthy(ran:find("process 0  " .. file, 1, true), file)
      assert.equal(file:find "inner" == nil and file:find "why" == nil,
        ran:find("thread 0  " .. file, 1, true) ~= nil, file)
    end
    assert.truthy(ran:find("process 1  spec/update_spec.lua", 1, true), ran)
    assert.falsy(ran:find("thread 1 ", 1, true), ran)
  end)

  it("runs C programs as well, several at a time, and then the specs", function()
    once(pending)
    local folder, suite = with_interpreter [[
      echo "$last" >> "$GPULUA_BUILD/ran"
      echo "1 passed, 0 failed, 0 skipped"
    ]]
    -- Each waits for the other, for a while.
    for name, other in pairs { first = "second", second = "first" } do
      support.write_file(folder .. "/" .. name, ([[#!/bin/sh
        echo "$0" >> FOLDER/ran
        : > FOLDER/%s.here
        for _ in $(seq 100); do [ ! -e FOLDER/%s.here ] || break; sleep 0.1; done
        [ -e FOLDER/%s.here ] || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
        echo "10 passed, 0 failed, 1 skipped"
      ]]):format(name, other, other):gsub("FOLDER", folder), nil)
    end
    local output, status = built.run([[chmod +x %s/first %s/second
      export ISOLATE=thread DEVICE=cpu NVRTC_CHECK= TEST_JOBS=2
      %s %s/first %s/second]], folder, folder, suite, folder, folder)
    local ran, at = {}, {}
    for line in io.lines(folder .. "/ran") do
      ran[#ran + 1] = line
      at[line] = #ran
    end
    os.execute("rm -r " .. folder)
    assert.equal(0, status, output)
    assert.equal(2 + #files + 1, #ran) -- and those of check mode
    assert.truthy(at[folder .. "/first"] <= 2 and at[folder .. "/second"] <= 2, table.concat(ran, "\n"))
    assert.equal(("%d passed, 0 failed, 2 skipped"):format(20 + #ran - 2), output:match "([^\n]*)\n$")
    assert.truthy(output:find("first: 10 passed, 0 failed, 1 skipped\n", 1, true), output)
  end)

  it("runs what counts a GPU's memory behind all others", function()
    once(pending)
    local folder, suite = with_interpreter [[
      echo "$GPULUA_ISOLATE $last" >> "$GPULUA_BUILD/ran"
      echo "1 passed, 0 failed, 0 skipped"
    ]]
    local _, status = built.run("export ISOLATE='none process' DEVICE=cuda TEST_JOBS=3\n" .. suite)
    assert.equal(0, status)
    local ran = support.read_file(folder .. "/ran")
    os.execute("rm -r " .. folder)
    local last = "none spec/resource_spec.lua\nprocess spec/resource_spec.lua\n"
    assert.equal(last, ran:sub(-#last))
    assert.equal(2, select(2, ran:gsub("resource_spec", "")))
    assert.equal(2 * (#files + 1), select(2, ran:gsub("\n", "")))
  end)

  it("runs what a filter leaves, which is something", function()
    once(pending)
    local folder, suite = with_interpreter [[
      case $*:$last in
      *--filter=wanted*:*/wait_spec.lua) echo "2 passed, 0 failed, 0 skipped" ;;
      *) echo "0 passed, 0 failed, 0 skipped" ;;
      esac
    ]]
    local function filtered(filter)
      return built.run("export ISOLATE=none DEVICE=cpu NVRTC_CHECK= BUSTED_FLAGS=--filter=%s\n(%s) | tail -n 2", filter,
        suite)
    end
    assert.truthy(filtered("wanted"):find "2 passed, 0 failed, 0 skipped\n$")
    assert.equal("--- no test was run\n0 passed, 1 failed, 0 skipped\n", (filtered "other"))
    os.execute("rm -r " .. folder)
  end)
end)

-- What specs of work that is under way go by, on machines of any speed.
describe("support.under_way", function()
  local sleep <const> = require("system").sleep

  it("looks again where the script was late, and raises what was found in time, or each time", function()
    local rounds = {}
    support.under_way(0.02, function(seconds, seen)
      rounds[#rounds + 1] = seconds
      if #rounds == 1 then
        sleep(seconds)
      end
      seen()
      assert.equal(2, #rounds)
    end)
    assert.are.same({ 0.02, 0.08 }, rounds)
    local count = 0
    local ok, err = pcall(support.under_way, 60, function(_, seen)
      count = count + 1
      seen()
      error("found in time", 0)
    end)
    assert.are.same({ false, "found in time", 1 }, { ok, err, count })
    ok, err = pcall(support.under_way, 0.001, function(seconds, _, begins)
      begins()
      count = count + 1
      sleep(seconds)
      error("found each time", 0)
    end)
    assert.are.same({ false, "found each time", 4 }, { ok, err, count })
  end)
end)
