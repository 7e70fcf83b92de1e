-- gpulua.busted: specs of pipelines, run as a user runs them, under gpulua and under stock Lua. Tests that must fail
-- are in spec/kit/twins.lua, those that must not in examples/project.

local gpu = require "gpulua"
local lfs = require "lfs"
local support = require "spec.support"

local build <const> = os.getenv "GPULUA_BUILD" or "build"
local stock <const> = os.getenv "GPULUA_LUA" or "lua5.4"
local busted <const> = arg[0]

--- What that interpreter says, and its exit code; `environment`: "NAME=value ...".
local function start(lua, arguments, environment)
  local path = ("%s/lua/?.so;%s"):format(build, package.cpath)
  local pipe = assert(io.popen(("GPULUA_TEST_CURRENT= LUA_CPATH='%s' LUA_PATH='%s' %s %s %s 2>&1"):format(path,
    package.path, environment or "", lua, arguments)))
  local output = pipe:read "a"
  local _, _, code = pipe:close()
  return output, code
end

--- The same of busted.
local function run(lua, arguments, environment)
  return start(lua, ("%s --ignore-lua %s"):format(busted, arguments), environment)
end

local lines = {} -- of the twins, by the marks at their ends
do
  local number = 0
  for line in io.lines "spec/kit/twins.lua" do
    number = number + 1
    local mark = line:match " %-%- ([%l ]+)$"
    if mark then
      lines[mark] = ("spec/kit/twins.lua:%d"):format(number)
    end
  end
end

for interpreter, lua in pairs { gpulua = build .. "/gpulua", lua = stock } do
  describe("gpulua.busted in " .. interpreter, function()
    local output, failures, code = nil, {}, nil

    setup(function()
      output, code = run(lua, "-o tools/busted_output.lua spec/kit/twins.lua")
      local at = 1
      while true do
        local first, last, name = output:find("FAILED ([^\n]+)\n", at)
        if not first then
          break
        end
        at = last + 1
        failures[name:gsub("^checks on cpu ", "")] = output:sub(at, (output:find("\nFAILED ", last, true) or 0) - 1)
      end
    end)

    --- The test must have failed, with these parts in what was said, and without those of `absent`.
    local function fails(name, ...)
      local text = failures[name]
      assert.truthy(text, name .. " did not fail:\n" .. output)
      for _, part in ipairs { ... } do
        assert.truthy(text:find(part, 1, true), ("%q is not in what %s says:\n%s"):format(part, name, text))
      end
      return text
    end

    it("lets pass what leaves nothing behind", function()
      for name in pairs(failures) do
        assert.is_nil(name:find "^pass ", name)
      end
      assert.truthy(output:find "\n18 passed, 35 failed, 4 skipped\n", output)
      assert.truthy(code > 0)
    end)

    it("names the line of what a test still holds", function()
      fails("fail with a buffer", "the test has left something behind", "1 buffer of cpu is held still, 400 B:",
        "400 B 'kept', made at " .. lines.buffer)
      fails("fail with a host buffer", "80 B, made at " .. lines.host)
      fails("fail with many", "19 buffers of cpu are held still, 649 B:", "640 B in 10, made at " .. lines.many,
        "1 B, made at line", "and those of 5 other lines")
      fails("fail with a graph", "1 graph of cpu is held still", "'step'")
      fails("fail with a stream", "1 stream of cpu is held still:", "'side', made at " .. lines.stream)
    end)

    it("names the line of work in flight, and of work that failed unseen", function()
      fails("fail with work", "of cpu are in flight still:", "'add' at " .. lines.work .. ", stream")
      fails("fail with work that failed", "work of cpu failed and nobody has seen it: KernelFailed",
        "('positive' at " .. lines["failed work"])
    end)

    it("names the lines of tasks that are not over, and of those that failed unseen", function()
      fails("fail with a task", "1 task is not over:", ("spawned at %s, waiting at %s"):format(lines.task, lines.sleep))
      fails("fail with a task that failed", "nobody has seen it, spawned at " .. lines["failed task"], "mishap")
    end)

    it("tells of failures of what the test has let go of, and of devices that are lost", function()
      fails("fail with a task that failed by itself", "nobody has seen: " .. lines.detached .. ": mishap")
      fails("fail with a failure of a device that it closes", "KernelFailed", "asked for at " .. lines.closed)
      fails("fail with a device that is lost", "work of cpu failed and nobody has seen it: DeviceLost", "SIGKILL")
      fails("fail with a failure in front of a look within it", "nobody has seen:", "early")
      assert.is_nil(failures["fail not twice, where a look within it has told of it"])
      fails("fail with a device that is lost for good", "nobody has seen it: DeviceLost", "an injected fault")
    end)

    it("ends captures, so that the next tests are not in them", function()
      fails("fail with a capture", "1 capture is open still:", "on cpu 'step', begun at " .. lines.capture)
      fails("fail with a capture that it lets go of", "1 capture is open still:", "on cpu, begun at spec/kit/twins.lua")
      assert.is_nil(failures["fail with neither of those before"])
    end)

    it("cleans up behind a test that failed, and the next one does not see it", function()
      local text = fails("fail by themselves, and what they leave goes", "own mistake")
      assert.is_nil(text:find("left something behind", 1, true))
      assert.is_nil(failures["fail not because of the one before"])
      fails("fail when finally does", "in finally")
    end)

    it("injects failures, which are withdrawn behind the test", function()
      for _, name in ipairs { "oom comes", "oom is asked for", "oom is withdrawn", "loss comes" } do
        assert.is_nil(failures["injected " .. name], failures["injected " .. name])
      end
      fails("injected by a wrong name", "oom of inject", "-1")
      fails("injected allow of nothing", "'memory', 'work' or 'tasks' expected, got everything")
    end)

    it("says where buffers differ", function()
      fails("assert allclose", "Expected a and b to be close, rtol 1.3e-06, atol 1e-05.",
        "first difference at index 4, [2][2]: 4.0 and 5", "1 of 4 elements differ (25 %)",
        "largest absolute difference: 1, at index 4, [2][2]", "largest relative difference: 0.2, at index 4")
      fails("assert allclose of unlike shapes", "the shapes differ: {2, 2} and {1, 4}")
      fails("assert not allclose", "Expected a and b not to be close", "all 4 elements are")
      fails("assert allclose of text", lines.text .. ": argument 2 of allclose:", "got a string")
      fails("assert bitequal", "first difference at index 3, [2][1]: 3.0 (0x40400000) and 3.0000005 (0x40400002)")
    end)

    it("finds leaks of a function", function()
      fails("assert noleaks", "1 buffer of cpu is held still, 32 B:", "made at " .. lines.leak)
      fails("assert noleaks of a device", "(left) was opened and is open still")
      fails("assert noleaks of no function", "argument 1 of noleaks: a function expected, got number")
    end)

    it("finds a race under seeds, and says how to see it again", function()
      fails("assert racefree of tasks", "seed 1:", "RaceFound", lines["first task"], lines["second task"],
        "GPULUA_TEST_SEEDS=1 in the environment")
      local text = fails("assert racefree of a lost fence", "differs from seed 1:",
        "result 1.y: first difference at index", "missing edge: between them, for bytes 0 to 31 of buffer 'y'")
      assert.truthy(text:find("swapped: 'put' (" .. lines["first put"], 1, true) and
        text:find("used to come before 'put' (" .. lines["second put"], 1, true), text)
      fails("assert racefree of what fails always",
        "fails under each of 3 seeds (1 to 3), so that the order is not why")
      fails("assert racefree without work", "gave no work to the device")
      fails("assert racefree with a wrong option", "no option 'sedes'; there are: options, seeds")
    end)

    it("runs the seeds of the environment alone", function()
      local text = run(lua, "-o tools/busted_output.lua --filter='of a lost fence' spec/kit/twins.lua",
        "GPULUA_TEST_SEEDS=1")
      assert.truthy(text:find "\n?1 passed, 0 failed", text)
      local seeds = failures["assert racefree of a lost fence"]:match "GPULUA_TEST_SEEDS=([%d,]+)"
      text = run(lua, "-o tools/busted_output.lua --filter='of a lost fence' spec/kit/twins.lua",
        "GPULUA_TEST_SEEDS=" .. seeds)
      assert.truthy(text:find "\n0 passed, 1 failed", text)
      text = run(lua, "-o tools/busted_output.lua --filter='of a lost fence' spec/kit/twins.lua",
        "GPULUA_TEST_SEEDS=1,x")
      assert.truthy(text:find("seeds like 17 or 1,17 or 1-200 expected, got '1,x'", 1, true), text)
    end)

    it("finds what differs from run to run", function()
      fails("assert deterministic", ("run 2 of 3 on %s differs from the first:"):format(gpu.device().name),
        "result 1[1]: 1 (an integer) and 2")
      fails("assert deterministic of nothing", "returned nothing that could be compared")
    end)

    it("has a block for each device, pending where there is none", function()
      assert.truthy(output:find("skipped matrix on cuda:97 has this one: [^\n]*no device cuda:97 here: "), output)
      assert.truthy(output:find("skipped matrix on cuda:97 inside as well: ", 1, true), output)
      assert.truthy(output:find("skipped not built on cuda:96 is not run: [^\n]*no backend 'cuda'"), output)
      local text, failed = run(lua, "-o tools/busted_output.lua --filter=named spec/kit/twins.lua",
        "GPULUA_TEST_DEVICES=cpu,cuda:97")
      assert.equal(1, failed, text)
      assert.truthy(text:find("FAILED named on cuda:97 is there", 1, true), text)
      assert.is_nil(text:find("FAILED named on cpu", 1, true), text)
    end)

    it("says what it is for where there is no busted", function()
      local text, failed = start(lua, [[-e 'require "gpulua.busted"']])
      assert.truthy(text:find("gpulua.busted is for specs: run them with busted", 1, true), text)
      assert.equal(1, failed)
    end)

    it("does what docs/testing.md says", function()
      local spec = os.tmpname() .. "_spec.lua"
      finally(function() os.remove(spec) end)
      local text, blocks, said = nil, 0, 0
      for kind, block in assert(support.read_file "docs/testing.md"):gmatch "```(%l+)\n(.-)```" do
        if kind == "lua" then
          blocks = blocks + 1
          support.write_file(spec, block)
          text = run(lua, "-o tools/busted_output.lua " .. spec)
          local wanted = select(2, block:gsub("%-%- fails\n", ""))
          assert.truthy(text:find(("(%%d+) passed, %d failed"):format(wanted)), text)
        else
          for line in block:gmatch "[^\n]+" do
            said = said + 1
            assert.truthy(text:find(line:match "^%s*(.*)$", 1, true), ("%q is not in:\n%s"):format(line, text))
          end
        end
      end
      assert.equal(6, blocks)
      assert.truthy(said > 10)
    end)

    it("reports what failed as XML, whatever bytes are in it", function()
      local report, spec = os.tmpname(), os.tmpname() .. "_spec.lua"
      finally(function()
        os.remove(report)
        os.remove(spec)
      end)
      support.write_file(spec, [[it("fails", function() error "bytes: \27[31m \255 \0 <&> \u{e9}" end)]])
      local text, failed = run(lua, "--helper=gpulua.busted -o plainTerminal " .. spec, "GPULUA_TEST_JUNIT=" .. report)
      assert.equal(1, failed, text)
      local xml = support.read_file(report)
      assert.truthy(xml:find("bytes: \u{FFFD}[31m \u{FFFD} \u{FFFD} &lt;&amp;&gt; \u{e9}", 1, true), xml)
      assert.truthy(xml:find "<testsuites [^>]*errors='1'", xml)
      text, failed = run(lua, "--helper=gpulua.busted -o plainTerminal " .. spec,
        "GPULUA_TEST_JUNIT=/nowhere/report.xml")
      assert.truthy(failed ~= 0 and text:find("GPULUA_TEST_JUNIT", 1, true), text)
    end)

    it("looks behind the tests of the file that wants it, or of all by a helper", function()
      local spec, other = os.tmpname() .. "_spec.lua", os.tmpname() .. "_spec.lua"
      finally(function()
        os.remove(spec)
        os.remove(other)
      end)
      local leak <const> = [[it("leaks", function() KEPT = KEPT or {}
        KEPT[#KEPT + 1] = require "gpulua".device("cpu"):buffer("f32", 10) end)]]
      support.write_file(spec, 'require "gpulua.busted"\n' .. leak)
      support.write_file(other, leak)
      local text = run(lua, ("-o tools/busted_output.lua %s %s"):format(spec, other))
      assert.truthy(text:find "\n1 passed, 1 failed", text)
      text = run(lua, ("-o tools/busted_output.lua --helper=gpulua.busted %s %s"):format(spec, other))
      assert.truthy(text:find "\n0 passed, 2 failed", text)
      assert.equal(2, select(2, text:gsub("has left something behind", "")), text)
      -- Again and again, each time once.
      text = run(lua, ("-o tools/busted_output.lua --repeat=2 %s"):format(spec))
      assert.equal(2, select(2, text:gsub("has left something behind", "")), text)
    end)
  end)
end

describe("the template project", function()
  local folder

  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("cp -r examples/project %s"):format(folder)))
  end)
  teardown(function() os.execute("rm -r " .. folder) end)

  it("passes as CI runs it, with a report of each run", function()
    -- Which Lua busted itself starts with is not known: paths for 5.4 alone. lua5.4 is that of the suite.
    local bin, path = folder .. "/bin", os.getenv "PATH"
    assert(os.execute("mkdir -p " .. bin))
    support.write_file(bin .. "/lua5.4", ('#!/bin/sh\nexport PATH="%s"\nexec %s "$@"\n'):format(path, stock))
    assert(os.execute(("chmod +x %s/lua5.4"):format(bin)))
    local pipe = assert(io.popen(([[env -u LUA_PATH -u LUA_CPATH -u LUA_INIT PATH="%s:%s:%s" GPULUA_TEST_CURRENT= \
      GPULUA_DEVICE=cpu LUA_PATH_5_4='%s' LUA_CPATH_5_4='%s/lua/?.so;%s' sh %s/ci.sh 2>&1]])
      :format(bin, build, path, package.path, build, package.cpath, folder)))
    local output = pipe:read "a"
    assert.is_true(pipe:close(), output)
    local runs = 0
    for passed, pending_count in output:gmatch "(%d+) successes / 0 failures / 0 errors / (%d+) pending" do
      runs = runs + 1
      assert.equal(11, passed + pending_count, output)
      assert.truthy(tonumber(passed) >= 6, output)
    end
    assert.equal(2, runs, output)
    for _, name in ipairs { "lua", "gpulua" } do
      local xml = support.read_file(("%s/reports/%s.xml"):format(folder, name))
      assert.truthy(xml:find "<testsuites [^>]*tests='11'", xml)
      assert.truthy(xml:find("name='smooth on cpu is the mean of neighbours, twice'", 1, true), xml)
    end
  end)

  it("fails where its pipeline is wrong", function()
    local path = folder .. "/src/smooth.lua"
    local text = support.read_file(path)
    finally(function() support.write_file(path, text) end)
    local once <const> = 'local once <close> = device:buffer("f32", #x, { label = "once" })'
    for what, change in pairs {
      ["is the mean of neighbours"] = { "i - radius, 0", "i - radius - 1, 0" },
      ["gives everything back"] = { once, 'local once = device:buffer("f32", #x) kept[#kept + 1] = once' },
      ["gives the same bits"] = { "y[i] = sum", "y[i] = (clock64() & 1023) + sum" },
      ["whatever comes first"] = { once, 'kept[1] = kept[1] or device:buffer("f32", 1000) local once = kept[1]' },
    } do
      local first, last = text:find(change[1], 1, true)
      support.write_file(path, "local kept = {} " .. text:sub(1, first - 1) .. change[2] .. text:sub(last + 1))
      local output = run(stock, ("-C %s --run=default -o %s/tools/busted_output.lua --filter='%s'"):format(folder,
        lfs.currentdir(), what), "GPULUA_DEVICE=cpu GPULUA_TEST_DEVICES=cpu")
      assert.truthy(output:find "\n0 passed, 1 failed", what .. ":\n" .. output)
    end
  end)

  it("has a rockspec that names what is there", function()
    local rockspec = {}
    assert(loadfile("examples/project/smooth-scm-1.rockspec", "t", rockspec))()
    assert.equal("busted", rockspec.test.type)
    for _, path in pairs(rockspec.build.modules) do
      assert.truthy(support.read_file("examples/project/" .. path), path)
    end
  end)
end)

describe("closeness", function()
  local dev
  setup(function()
    require "gpulua.busted"
    dev = support.open()
  end)
  teardown(support.close_all)

  --- What the assertion says when it fails.
  local function message(name, ...)
    local ok, err = pcall(assert[name], ...)
    assert.is_false(ok)
    return tostring(err)
  end

  it("is by the tolerances of the element type, of the larger side", function()
    for kind, case in pairs { f32 = { 1.3e-6 + 1e-5, 2 ^ -23 }, f64 = { 1e-7 + 1e-7, 2 ^ -52 },
      f16 = { 1e-3 + 1e-5, 2 ^ -10 }, bf16 = { 1.6e-2 + 1e-5, 2 ^ -7 } } do
      local tolerance, step = case[1], case[2]
      local near = math.floor(tolerance / step) * step
      local far = math.ceil(1.02 * tolerance / step) * step
      local a = dev:upload(kind, { 1, 1, 1 })
      assert.allclose(a, dev:upload(kind, { 1, 1, 1 + near }))
      assert.is_not.allclose(a, dev:upload(kind, { 1, 1, 1 + far }))
      assert.allclose(a, dev:upload(kind, { 1, 1, 1 + far }), { atol = 1 })
      assert.allclose(dev:upload(kind, { 1, 1, 1 + far }), a, { rtol = 1 })
    end
    for _, kind in ipairs { "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64" } do
      assert.allclose(dev:upload(kind, { 5, 7 }), { 5, 7 })
      assert.is_not.allclose(dev:upload(kind, { 5, 7 }), { 5, 8 })
    end
  end)

  it("knows NaN, infinities, and integers that no float has", function()
    local nan, inf <const> = 0 / 0, math.huge
    local a = dev:upload("f64", { 1, nan, inf, -inf })
    assert.is_not.allclose(a, a)
    assert.allclose(a, a, { equal_nan = true })
    assert.truthy(message("allclose", a, a):find("with equal_nan = true that is close", 1, true))
    assert.is_not.allclose({ inf }, { -inf }, { rtol = 1, atol = 1e300 })
    assert.is_not.allclose({ inf }, { 1e308 }, { rtol = 1 })
    local big = dev:upload("i64", { (1 << 53) + 1 })
    assert.is_not.allclose(big, { 1 << 53 })
    assert.allclose(big, { 1 << 53 }, { atol = 1 })
    local huge = dev:upload("u64", { -1 })
    assert.is_not.allclose(huge, { 1 }, { atol = 1e6 })
    assert.truthy(message("allclose", huge, { 1 }):find("18446744073709551615 and 1", 1, true))
  end)

  it("takes numbers, tables, scalars, host buffers and complex numbers", function()
    local x = dev:buffer("f32", { 2, 3 }):fill(2)
    assert.allclose(x, 2)
    assert.allclose(2, x)
    assert.allclose(x, { 2, 2, 2, 2, 2, 2 })
    assert.allclose(x, { { 2, 2, 2 }, { 2, 2, 2 } })
    assert.is_not.allclose(x, { 2, 2, 2 })
    assert.allclose(dev:scalar("f32", 0.1), 0.1)
    local host = dev:host("i32", 3)
    host:write { 1, 2, 3 }
    assert.allclose(host, { 1, 2, 3 })
    local z = dev:upload("c64", { { 3, 4 }, { 0, 1 } })
    assert.allclose(z, { { 3, 4 }, { 0, 1 } })
    assert.is_not.allclose(z, { { 3, 4 }, { 0, -1 } })
    assert.truthy(message("allclose", z, { { 3, 4 }, { 0, -1 } }):find "index 2: 0.0%+1.0i and ", 1)
    assert.bitequal(z, { { 3, 4 }, { 0, 1 } })
  end)

  it("tells bits apart that are equal as numbers", function()
    assert.is_not.bitequal(dev:upload("f32", { 0.0 }), dev:upload("f32", { -0.0 }))
    assert.allclose(dev:upload("f32", { 0.0 }), dev:upload("f32", { -0.0 }))
    assert.is_not.bitequal(dev:upload("f32", { 1 }), dev:upload("f64", { 1 }))
    assert.bitequal(dev:upload("f32", { 0 / 0 }), dev:upload("f32", { 0 / 0 }))
    assert.is_not.bitequal({ 1 }, { 1.0 })
    assert.bitequal({ 1, 2.5 }, { 1, 2.5 })
  end)

  it("takes a scalar for one element of its type", function()
    assert.allclose(dev:scalar("c64", { 5, 0 }), 5)
    assert.is_not.allclose(dev:scalar("c64", { 5, 1 }), 5)
    assert.allclose(dev:upload("c64", { { 5, 1 }, { 5, 1 } }), dev:scalar("c64", { 5, 1 }))
    for kind, value in pairs { i8 = -3, u64 = -1, f16 = 0.1, bf16 = 0.1, f32 = 0.1, f64 = 0.1, c64 = { 0.1, 2 },
      c128 = { 0.1, 2 } } do
      local scalar, pair = dev:scalar(kind, value), dev:upload(kind, { value, value })
      assert.bitequal(scalar, dev:scalar(kind, value))
      assert.bitequal(scalar, pair)
      assert.bitequal(pair, scalar)
      assert.bitequal(scalar, type(value) == "table" and { value } or value)
    end
    assert.is_not.bitequal(dev:scalar("i32", 1), dev:scalar("i64", 1))
    assert.is_not.bitequal(dev:scalar("f32", 0.0), -0.0)
    assert.is_not.allclose(dev:scalar("u64", -1), dev:scalar("i64", -1))
    assert.truthy(message("bitequal", dev:scalar("f32", 1), 2):find("1.0 (0x3f800000) and 2.0 (0x40000000)", 1, true))
  end)

  it("finds one of a million, wherever it is", function()
    local n <const> = 1 << 20
    local a, b = dev:buffer("f32", n):fill(1), dev:buffer("f32", n):fill(1)
    assert.allclose(a, b)
    b:write({ 2 }, 777777)
    assert.truthy(message("allclose", a, b):find("first difference at index 777777: 1.0 and 2.0", 1, true))
    assert.truthy(message("bitequal", a, b):find("1 of 1048576 elements differ", 1, true))
  end)

  it("refuses what cannot be compared", function()
    for _, case in ipairs { { { 1, nil, 3 }, "holes" }, { { 1, "x" }, "[2] is a string" },
      { { { 1, 2 }, { 3 } }, "[2]" }, { dev, "got a device" }, { { a = 1 }, "no list of numbers" } } do
      assert.truthy(message("allclose", 1, case[1]):find(case[2], 1, true), message("allclose", 1, case[1]))
      assert.truthy(message("bitequal", case[1], 1):find("argument 1 of bitequal", 1, true))
    end
    assert.truthy(message("allclose", 1, 1, { rtol = -1 }):find("rtol: a number from 0 on expected, got -1", 1, true))
    assert.truthy(message("allclose", 1, 1, { tol = 1 }):find("no option 'tol'", 1, true))
    assert.truthy(message("allclose", 1, 1, 1e-3):find("argument 3 of allclose", 1, true))
  end)

  it("of orders: what is found under seeds, and what is not", function()
    local x
    assert.racefree(function(device, seed)
      x = device:buffer("i32", 4):fill(seed > 0 and 1 or 0)
      return x, "text", nil, { n = 3, inner = { true } }
    end, { seeds = { 1, 5, 9 } })
    assert.is_not.racefree(function(device, seed)
      device:buffer("i32", 4):fill(1)
      return seed
    end, { seeds = 2 })
    assert.truthy(message("racefree", function(device)
      device:buffer("i32", 4):fill(1)
      return print
    end):find("result 1 is a function, which cannot be compared", 1, true))
    assert.truthy(message("racefree", function() end, { seeds = 0 }):find("seeds: a number from 1 on", 1, true))
    assert.deterministic(function(device)
      return device:buffer("i32", 4):fill(1)
    end, { device = dev, runs = 2, seeds = 2 })
    assert.truthy(message("deterministic", print, { runs = 1 }):find("runs: a whole number from 2 on", 1, true))
    assert.equal("device", gpu.type(dev))
  end)

  it("refuses what holds itself", function()
    local list = {}
    list[1] = list
    assert.truthy(message("allclose", list, 1):find("it holds itself, which cannot be compared", 1, true))
    local tree, twice = { inner = {} }, {}
    tree.inner.back = tree
    for _, name in ipairs { "racefree", "deterministic" } do
      assert.truthy(message(name, function(device)
        device:buffer("i32", 4):fill(1)
        return 1, tree
      end):find("result 2.inner.back holds itself, which cannot be compared", 1, true))
      assert[name](function(device)
        device:buffer("i32", 4):fill(1)
        return { twice, twice }
      end, { seeds = 2 })
    end
  end)

  it("of orders: checks the options of devices", function()
    for _, name in ipairs { "racefree", "deterministic" } do
      assert.truthy(message(name, print, { options = 5 }):find(
        ("argument 2 of %s: options: a table expected, got number"):format(name), 1, true))
      for _, option in ipairs { "check", "seed" } do
        assert.truthy(message(name, print, { options = { [option] = 1 } }):find(
          ("argument 2 of %s: options: %s is not to be given"):format(name, option), 1, true))
      end
    end
  end)

  it("of orders: refuses a function that closes its device", function()
    local function f(device)
      device:buffer("i32", 4):fill(1)
      device:close()
    end
    assert.truthy(message("racefree", f):find("argument 1 of racefree: the function has closed its device", 1, true))
    for _, runs in ipairs { 0, 2 } do
      assert.truthy(message("deterministic", f, { runs = runs, device = support.open() }):find(
        "argument 1 of deterministic: the function has closed its device", 1, true))
    end
  end)

  it("of leaks: lets pass what is closed or garbage", function()
    local kept
    assert.noleaks(function()
      dev:buffer("f32", 100)
      local own <close> = gpu.device("cpu", { label = "own" })
      own:buffer("f32", 3)
      gpu.spawn(gpu.sleep, 0.01)
    end)
    assert.is_not.noleaks(function() kept = dev:buffer("f32", 1) end)
    kept:close()
  end)
end)
