-- What the script did, in traces: what has not ended yet, and what held it up.
local support = require "spec.support"

describe("a trace of a script", function()
  teardown(support.close_all)

  local function run(text)
    local output, code = support.script(text)
    assert.equal(0, code, output)
    return output
  end

  it("has what is open once, whatever ends while it is read", function()
    local output = run [[
      local gpu, support = require "gpulua", require "spec.support"
      local dev <close> = support.open { trace = true }
      local whole <close> = gpu.range "whole"
      local lost = {}
      for i = 1, 50 do lost[i] = gpu.range("lost" .. i) end
      local early <close> = gpu.range "early"
      local task = gpu.spawn(function() gpu.sleep(0.001) end)
      dev:buffer("f32", 4):fill(1):await()
      lost = nil
      local seen, count = {}, 0
      for event in gpu.trace.events() do
        if count % 5 == 0 then
          gpu.sleep(0.001)
          collectgarbage()
          gpu.report()
        end
        count = count + 1
        if count == 3 then early:close() end
        if event.kind == "range" then seen[event.label] = (seen[event.label] or 0) + 1 end
      end
      local is_once = seen.whole == 1 and seen.early == 1
      for i = 1, 50 do is_once = is_once and seen["lost" .. i] == 1 end
      print(is_once)]]
    assert.equal("true\n", output)
  end)

  it("has it once in files, too, though the collector closes ranges while they are written", function()
    local path = os.tmpname()
    for _, writer in ipairs { "json", "timeline" } do
      run(([[
        local gpu, support = require "gpulua", require "spec.support"
        local dev <close> = support.open { trace = true }
        local whole <close> = gpu.range "whole"
        local x = dev:buffer("f32", 4)
        for i = 1, 3000 do x:fill(i):await() end
        collectgarbage()
        for i = 1, 50 do gpu.range("lost" .. i) end
        gpu.trace.%s "%s"]]):format(writer, path))
      local file <close> = assert(io.open(path))
      local text = file:read "a"
      local function count(label)
        local found = select(2, text:gsub('"' .. label .. '"', ""))
        return found
      end
      assert.equal(1, count "whole", writer)
      assert.equal(1, count "lost1", writer)
      assert.equal(1, count "lost50", writer)
    end
    os.remove(path)
  end)

  it("has what calls wait for within themselves, each at its line", function()
    local output = run [[
      local gpu, support = require "gpulua", require "spec.support"
      local own = { trace = true, in_flight = 16, budget = 1 << 20 }
      local dev, other = support.open(own), support.open { trace = true }
      local ticks, long = support.ticks(0.02), support.ticks(0.2)
      local spin, x = dev:compile(support.spin_source).spin, dev:buffer("i32", 1)
      for i = 1, 24 do spin:launch({ grid = 1, block = 1 }, ticks, x, i) end
      dev:synchronize()
      local large = dev:buffer("u8", 900000)
      spin:launch({ grid = 1, block = 1 }, long, large:view "i32", 1)
      large:close()
      local next_one = dev:buffer("u8", 900000)
      local waiting = other:memory { oom = "wait", timeout = 0.05, budget = 1 << 16 }
      print((pcall(waiting.buffer, waiting, "u8", 1 << 20)))
      local guarded = other:memory { guard = true }
      guarded:buffer("u8", 100):fill(1)
      guarded:check()
      spin:launch({ grid = 1, block = 1 }, long, x, 1)
      dev:close()
      local found = {}
      for _, row in ipairs(gpu.report().waits) do
        local line = row.where:match ":(%d+)$"
        found[#found + 1] = ("%s %s"):format(line, row.label)
        if row.label == "close" or row.label == "freed memory" then assert(row.total > 0.01, row.total) end
        if row.label == "room for more work" then assert(row.count <= 9, row.count) end
      end
      table.sort(found)
      print(table.concat(found, ", "))]]
    for _, row in ipairs { "6 room for more work", "11 freed memory", "16 check", "18 close" } do
      assert.truthy(output:find(row, 1, true), row .. ": " .. output)
    end
  end)

  it("has compilations of a device in check mode, which waits for them at the call", function()
    local output = run [[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { check = true, trace = true })
      local fresh = require "spec.support".fresh()
      local mod = dev:compile("extern \"C\" __global__ void k" .. fresh .. "(int *x) { x[0] = 1; }")
      for _, row in ipairs(gpu.report().waits) do
        print(row.where:match ":(%d+)$", row.label, row.count, row.total > 0.005)
      end]]
    assert.equal("4\tcompile\t1\ttrue\n", output)
  end)

  it("waits for what never ends as long as the end of any script does, and no longer", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local path = os.tmpname()
    local function runs(value)
      local start = support.now()
      support.write_file(path, ([[
        local dev = require "gpulua".device()
        local mod = dev:compile 'extern "C" __global__ void f(int *p) { volatile int *q = p; while (!q[0]) {} }'
        mod.f:launch({ grid = 1, block = 1 }, dev:buffer("i32", 1):fill(%d))
      ]]):format(value))
      local pipe = assert(io.popen(("%s/gpulua --summary %s 2>&1"):format(os.getenv "GPULUA_BUILD" or "build", path)))
      local output = pipe:read "a"
      return output, (select(3, pipe:close())), support.now() - start
    end
    runs(1)
    local _, _, base = runs(1) -- what begins and ends takes
    local output, code, taken = runs(0)
    os.remove(path)
    assert.equal(1, code, output)
    assert.truthy(output:find("had not ended 5 s after the script", 1, true), output)
    assert.truthy(output:find("fences between streams", 1, true), output)
    assert.truthy(taken - base < 9, taken - base)
  end)

  it("has all arguments of launches, however many, and of a graph's many buffers some and how many others", function()
    if support.is_checked() then
      pending "in check mode no operation has a time, and the JSON none of them"
    end
    local path = os.tmpname()
    run(([[
      local gpu, support = require "gpulua", require "spec.support"
      local dev <close> = support.open { trace = true }
      local parameters, arguments, buffers = {}, {}, {}
      for i = 1, 40 do parameters[i], arguments[i] = "int parameter_" .. i, i end
      local many = dev:compile(('extern "C" __global__ void many(%%s, int *x, int *y) { *x = *y = parameter_40; }')
        :format(table.concat(parameters, ", "))).many
      arguments[41] = dev:buffer("i32", 1, { label = ("x"):rep(40) })
      arguments[42] = dev:buffer("i32", 1, { label = "y" })
      many:launch(support.one, table.unpack(arguments))
      for i = 1, 100 do buffers[i] = dev:buffer("i32", 1, { label = "of a graph " .. i }) end
      local graph = dev:capture(function()
        for i = 1, 100 do buffers[i]:fill(i) end
      end)
      graph:launch()
      dev:synchronize()
      gpu.trace.json "%s"
      gpu.trace.timeline "%s.html"]]):format(path, path))
    local json, page = support.read_file(path), support.read_file(path .. ".html")
    os.remove(path)
    os.remove(path .. ".html")
    assert.truthy(json:find("parameter_40 = 40, x = " .. ("x"):rep(40) .. ", y = y\"", 1, true))
    assert.truthy(page:find("parameter_40 = %d, x = " .. ("x"):rep(40) .. ", y = y\"", 1, true))
    assert.truthy(json:find("out of a graph 32[0..4], and 68 others\"", 1, true))
    assert.truthy(page:find("out of a graph 32, and 68 others\"", 1, true))
  end)

  it("gives waits the time in which other tasks ran as waited, and not as stalled", function()
    support.wants_time(pending)
    local text <const> = [[
      local gpu, support = require "gpulua", require "spec.support"
      local dev <close> = support.open { trace = true }
      local x = dev:buffer("i32", 16)
      local function work(seconds)
        local till = support.now() + seconds
        while support.now() < till do end
      end
      local sleeps = {}
      for i = 1, 4 do
        sleeps[i] = gpu.spawn(function() gpu.sleep(0.2) end)
      end
      local waits = gpu.spawn(function() x:fill(1):await() end)
      local works = gpu.spawn(function() work(0.1) end)
      gpu.all { waits, works, table.unpack(sleeps) }
      for _, row in ipairs(gpu.report().waits) do
        if row.label == "fill" then
          print("fill", row.total >= 0.1, row.stalled <= row.total - 0.09)
        elseif row.label == "sleep" then -- four of them at once, of which the work had a half
          print("sleep", row.total >= 0.8, row.stalled <= row.total / 4 - 0.05, row.stalled > 0)
        end
      end
      print(tostring(gpu.report()):match "stalled +waited +times +longest ")]]
    local output, missing
    for _ = 1, 3 do -- the machine may stand still for a while
      output, missing = run(text), nil
      for _, part in ipairs { "fill\ttrue\ttrue\n", "sleep\ttrue\ttrue\ttrue\n", "stalled " } do
        missing = missing or not output:find(part, 1, true) and part
      end
      if not missing then
        break
      end
    end
    assert.falsy(missing, output)
  end)

  it("tells kernels of one name apart by their labels, or lines", function()
    local path = os.tmpname()
    local output = run(([[
      local gpu, support = require "gpulua", require "spec.support"
      local dev <close> = support.open { trace = true }
      local x <close> = dev:upload("f32", { 1, 2, 3, 4 })
      local source = 'extern "C" __global__ void %%s(float *x) { x[threadIdx.x] += %%d; }'
      local function compile(...) return dev:compile(source:format(...)) end
      local one, again, other = compile("own", 1).own, compile("own", 1).own, compile("other", 1).other
      local function all()
        gpu.map("x + 1", { x = x, out = x })
        gpu.map("x * 2", { x = x, out = x })
        gpu.map("x * 3", { x = x, out = x, label = "thrice" })
        gpu.map("x * 3", { x = x, out = x })
        gpu.reduce("sum", x)
        one:launch(4, x)
        again:launch(4, x)
        other:launch(4, x)
        other:launch({ grid = 1, block = 4, label = "labelled" }, x)
      end
      local function print_rows()
        local rows = {}
        for i, row in ipairs(gpu.report().devices[1].kernels) do
          rows[i] = row.name:gsub("%%(.*:", "(") .. " " .. row.count
        end
        table.sort(rows)
        print(table.concat(rows, ", "))
      end
      all()
      all()
      dev:synchronize()
      print_rows()
      local graph <close> = dev:capture(all)
      graph:launch():await()
      print_rows()
      for event in gpu.trace.events() do
        for _, node in ipairs(event.nodes or {}) do
          print(node.label, node.kernel, node.where:match ":%%d+$")
        end
      end
      gpu.trace.timeline "%s"]]):format(path))
    local file <close> = assert(io.open(path))
    local page = file:read "a"
    os.remove(path)
    local lines = {}
    for line in output:gmatch "[^\n]+" do
      lines[#lines + 1] = line
    end
    assert.equal("map (11) 2, map (8) 2, map (9) 2, other 4, own 4, reduce 2, thrice 2", lines[1])
    if #lines > 2 then -- the device tells of nodes
      assert.equal("labelled 1, map (11) 3, map (8) 3, map (9) 3, other 5, own 6, reduce 3, thrice 3", lines[2])
      assert.are.same({ "map\tmap\t:8", "thrice\tmap\t:10", "labelled\tother\t:16" },
        { lines[3], lines[5], lines[11] })
    end
    local named = {}
    for line in page:gmatch '"map %(.-:(%d+)%)"' do
      named[#named + 1] = line
    end
    assert.equal("8 9 11", table.concat(named, " "))
  end)

  it("has the line of a call whose results are returned at once, in tasks, too, and so have errors", function()
    local output = run [[
      local gpu, support = require "gpulua", require "spec.support"
      local dev <close> = support.open { trace = true }
      local x <close> = dev:upload("f32", { 1, 2, 3, 4 })
      local blas <close> = dev:blas()
      local rng <close> = dev:rng()
      local fft <close> = dev:fft { shape = 4, type = "f32", kind = "r2c" }
      local function fill() return x:fill(2) end
      local function map() return gpu.map("x + 1", { x = x, out = x }) end
      local function reduce() return gpu.reduce("sum", x) end
      local function scal() return blas:scal { alpha = 2, x = x } end
      local function draw() return rng:uniform(x) end
      local function transform() return fft:forward(x) end
      local function fails() return gpu.map("x +", { x = x }) end
      for _, f in ipairs { fill, map, reduce, scal, draw, transform } do
        f()
        gpu.spawn(f):await()
      end
      for event in gpu.trace.events() do
        if event.stream then print(event.label, event.where:match ":%d+$") end
      end
      for _, run in ipairs { function() return fails() end, function() return gpu.spawn(fails):await() end } do
        print("fails", select(2, pcall(run)).line)
      end]]
    local lines = {}
    for label, line in output:gmatch "([^\n\t]+)\t:?(%d+)" do
      lines[label] = lines[label] and not lines[label]:find(line, 1, true) and lines[label] .. " " .. line or line
    end
    assert.are.same({ write = "3 5", fill = "7", map = "8", reduce = "9", scal = "10",
      ["rng uniform"] = "11", ["rng advance"] = "11", fft_forward = "12", fails = "13" }, lines)
  end)

  it("is written where it was asked for, whichever folder the script goes to", function()
    local folder, script = os.tmpname(), os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir -p %s/other"):format(folder)))
    support.write_file(script, [[
      local gpu = require "gpulua"
      gpu.device():buffer("f32", 4):fill(1):await()
      require "lfs".chdir "other"]])
    local command <const> = "program=$(realpath %s/gpulua); cd %s; $program --trace a.json --timeline b.html %s 2>&1"
    local pipe = assert(io.popen(command:format(os.getenv "GPULUA_BUILD" or "build", folder, script)))
    local output = pipe:read "a"
    assert.equal(0, select(3, pipe:close()), output)
    for _, name in ipairs { "a.json", "b.html" } do
      assert(io.open(folder .. "/" .. name)):close()
    end
    os.execute(("rm -r %s %s"):format(folder, script))
  end)

  it("that is a main chunk of Lua's own interpreter's knows that no wait stalled it while that ran", function()
    local output, code = support.stock_script [[
      local gpu = require "gpulua"
      local dev <close> = gpu.device("cpu", { isolate = "none", trace = true })
      local task = gpu.spawn(function() gpu.sleep(0.05) end)
      gpu.sleep(0.01)
      local over = os.clock() + 0.4
      while os.clock() < over do end
      task:await()
      local runs = 0
      for event in gpu.trace.events() do
        runs = runs + (event.kind == "run" and not event.task and event.ended - event.begun or 0)
      end
      for _, wait in ipairs(gpu.report().waits) do
        if wait.where:find(":3$") then
          print(wait.total >= 0.4, wait.total - wait.stalled >= 0.4, runs >= 0.4)
        end
      end]]
    assert.equal(0, code, output)
    assert.equal("true\ttrue\ttrue\n", output)
  end)
end)

describe("stats()", function()
  it("counts events of the driver, made and alive, captures, and what a trace has dropped", function()
    local dev = support.open { trace = 2 }
    local x <close> = dev:buffer("i32", 4)
    local before = dev:stats()
    local stream = dev:stream()
    for i = 1, 10 do
      stream:use(function() x:fill(i) end)
    end
    dev:synchronize()
    local busy = dev:stats()
    assert.truthy(busy.events_created - before.events_created >= 10)
    assert.truthy(busy.events_live - before.events_live >= 10)
    assert.equal(8, busy.drops)
    stream:close()
    local after
    local until_time = support.now() + 5
    repeat -- the executor ends it when it comes to that
      dev:synchronize()
      after = dev:stats()
    until after.events_live <= busy.events_live - 10 or support.now() > until_time
    assert.truthy(after.events_live <= busy.events_live - 10, after.events_live)
    assert.truthy(after.events_created >= busy.events_created)
    local graph <close> = dev:capture(function() x:fill(3) end)
    graph:launch():await()
    assert.equal(before.captures + 1, dev:stats().captures)
    support.close_all()
  end)
end)
