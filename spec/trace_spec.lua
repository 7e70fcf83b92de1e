-- Traces: what was asked for, done and known when, by which line, behind what; as events, as JSON, as a report.

local dkjson = require "dkjson"
local gpu = require "gpulua"
local lfs = require "lfs"
local support = require "spec.support"

local build = os.getenv "GPULUA_BUILD" or "build"

-- Runs the interpreter with these arguments; what it writes, and its exit code.
local function run(arguments)
  local pipe = assert(io.popen(("%s/gpulua %s 2>&1"):format(build, arguments)))
  local output = pipe:read "a"
  return output, (select(3, pipe:close()))
end

local function json_of(path)
  local file <close> = assert(io.open(path))
  local text = file:read "a"
  local value, _, failure = dkjson.decode(text)
  return assert(value, failure), text
end

-- All that is traced, as JSON.
local function traced()
  local path = os.tmpname()
  gpu.trace.json(path)
  local value, text = json_of(path)
  os.remove(path)
  return value, text
end

local function operations(log)
  local list = {}
  for event in gpu.trace.events() do
    if event.log == log and event.kind ~= "wait" then
      list[#list + 1] = event
    end
  end
  return list
end

-- How many devices were traced before the next one.
local function log_next()
  local info = require "gpulua.trace".info()
  return (info and #info or 0) + 1
end

-- The rules of the format, as far as they concern us: numbers where numbers belong, slices of a lane one in the other,
-- arrows in pairs with both ends in slices, counters never below 0.
local function validate(trace)
  local lanes, arrows, names = {}, {}, {}
  for _, event in ipairs(trace.traceEvents) do
    assert.equal("number", math.type(event.pid) and "number", event.ph)
    if event.ph == "X" then
      assert.truthy(event.ts >= 0 and event.dur >= 0 and type(event.name) == "string" and math.type(event.tid),
        event.name)
      local lane = event.pid .. " " .. event.tid
      lanes[lane] = lanes[lane] or {}
      table.insert(lanes[lane], event)
    elseif event.ph == "s" or event.ph == "f" then
      arrows[event.id] = arrows[event.id] or {}
      assert.is_nil(arrows[event.id][event.ph])
      arrows[event.id][event.ph] = event
    elseif event.ph == "C" then
      for _, value in pairs(event.args) do
        assert.truthy(value >= 0)
      end
    elseif event.ph == "M" then
      names[event.pid .. " " .. (event.tid or "")] = event.args.name or names[event.pid .. " " .. (event.tid or "")]
    else
      error("an event of another kind: " .. event.ph)
    end
  end
  -- As readers of the format do it: Perfetto cuts to whole nanoseconds, others add as it is.
  local function cut(us) return math.tointeger(us * 1000 // 1) end
  local function same(us) return us end
  for lane, events in pairs(lanes) do
    assert.truthy(names[lane], "lane without a name: " .. lane)
    table.sort(events, function(a, b)
      return a.ts < b.ts or a.ts == b.ts and a.dur > b.dur
    end)
    for _, read in ipairs { cut, same } do
      local open = {}
      for _, event in ipairs(events) do
        local ends = read(event.ts) + read(event.dur)
        while #open > 0 and open[#open] <= read(event.ts) do
          open[#open] = nil
        end
        assert.truthy(#open == 0 or ends <= open[#open], ("%s crosses the end of another one"):format(event.name))
        open[#open + 1] = ends
      end
    end
  end
  local arrow_count = 0
  for _, arrow in pairs(arrows) do
    arrow_count = arrow_count + 1
    assert.truthy(arrow.s and arrow.f and arrow.s.ts <= arrow.f.ts)
    for _, tip in pairs(arrow) do
      local is_inside = false
      for _, event in ipairs(lanes[tip.pid .. " " .. tip.tid]) do
        is_inside = is_inside or cut(event.ts) == cut(tip.ts)
          or cut(event.ts) < cut(tip.ts) and cut(tip.ts) < cut(event.ts) + cut(event.dur)
      end
      assert.truthy(is_inside, "an arrow that joins nothing")
    end
  end
  return lanes, arrow_count
end

describe("a traced device", function()
  local dev, spin, log

  setup(function()
    log = log_next()
    dev = support.open { trace = true }
    spin = dev:compile(support.spin_source)
  end)
  teardown(support.close_all)

  it("says of each operation when it was asked for, done and known to be over", function()
    support.wants_time(pending)
    local x <close> = dev:buffer("i32", 4, { label = "data" })
    local ticks = support.ticks(0.01)
    local first = #operations(log)
    x:fill(0)
    local line = debug.getinfo(1, "l").currentline + 1
    local op = spin.spin:launch({ grid = 3, block = 2 }, ticks, x, 7)
    op:await()
    x:read()
    local list = operations(log)
    local fill, launch, download = list[first + 1], list[first + 2], list[#list]
    assert.equal("fill", fill.kind)
    assert.equal("launch", launch.kind)
    assert.equal("download", download.kind)
    assert.equal(16, fill.bytes)
    assert.equal(16, download.bytes)
    assert.equal("spin", launch.kernel)
    assert.are.same({ 3, 1, 1 }, launch.grid)
    assert.are.same({ 2, 1, 1 }, launch.block)
    assert.truthy(launch.where:find("trace_spec.lua:" .. line, 1, true))
    assert.equal(op.stream, launch.stream)
    assert.equal(op.seq, launch.seq)
    local before = 0
    for _, event in ipairs { fill, launch, download } do
      assert.equal("succeeded", event.outcome)
      assert.truthy(event.asked >= 0 and event.asked <= event.given and event.given <= event.over)
      assert.truthy(event.begun >= before and event.begun <= event.ended, event.kind)
      -- The host's clock and the device's are held against each other to some microseconds.
      assert.truthy(event.ended <= event.over + 20e-6, event.kind)
      assert.truthy(event.begun >= event.asked - 20e-6, event.kind)
      before = event.ended
    end
    local elapsed = op:elapsed()
    assert.truthy(math.abs(elapsed - (launch.ended - launch.begun)) < 1e-9)
    assert.truthy(elapsed >= 0.005 and elapsed < 0.5, elapsed)
  end)

  -- So many edges lead to one node that the device has a node more, which is none of the script's.
  it("says what each node of a graph took: in events, as text for Graphviz, as JSON and in the report", function()
    support.wants_time(pending)
    if dev.kind == "cuda" and run "--info":find "CUPTI[^\n]*traces use events" then
      pending "no CUPTI"
    end
    local ticks, count <const> = support.ticks(0.01), 205
    local x <close> = dev:buffer("i32", 2 * count, { label = "x" })
    local y <close> = dev:buffer("i32", 2 * count, { label = "y" })
    local graph <close> = dev:capture({ label = "step" }, function()
      for i = 1, count do
        x:slice(2 * i - 1, 2 * i):fill(i)
      end
      y:copy(x)
      spin.spin:launch(support.one, ticks, y, 7)
    end)
    assert.is_nil(graph:dot():find " us, from")
    graph:launch():await()
    graph:launch():await()
    local list = operations(log)
    local launch = list[#list]
    local seen, seen_count, fills_ended, copy, spun = {}, 0, 0, nil, nil
    for i, node in ipairs(launch.nodes) do
      seen_count = seen_count + (seen[node.node] and 0 or 1)
      seen[node.node] = true
      assert.truthy(node.begun >= launch.begun and node.ended <= launch.ended and node.begun <= node.ended, node.node)
      assert.truthy(i == 1 or node.begun >= launch.nodes[i - 1].begun)
      if node.node <= count then
        assert.are.same({ "fill", "fill", 8 }, { node.kind, node.label, node.bytes })
        fills_ended = math.max(fills_ended, node.ended)
      elseif node.node == count + 1 then
        copy = node
      else
        spun = node
      end
    end
    assert.are.same({ count + 2, "copy", 8 * count, count + 2 }, { seen_count, copy.kind, copy.bytes, spun.node })
    assert.truthy(copy.begun >= fills_ended and spun.begun >= copy.ended)
    assert.truthy(spun.ended - spun.begun >= 0.005 and spun.ended - spun.begun < 0.5)
    assert.is_nil(list[#list - 2].nodes)
    local took, from = graph:dot():match(("n%d %%[label=\"spin\\n[^\"]*\\n([%%d.]+) us, from ([%%d.]+) us on\""):format(
      count + 1))
    assert.truthy(math.abs(took / 1e6 - (spun.ended - spun.begun)) < 1e-6, took)
    assert.truthy(math.abs(from / 1e6 - (spun.begun - launch.begun)) < 1e-6, from)
    local written = 0
    for _, event in ipairs(traced().traceEvents) do
      local is_node = event.pid == 9 + log and event.args and event.args.node
      written = written + (is_node and event.args.number == launch.number and 1 or 0)
    end
    assert.equal(#launch.nodes, written)
    for _, row in ipairs(gpu.report().devices[log].kernels) do
      assert.not_equal("step", row.name) -- its nodes stand for it
      assert.truthy(row.name ~= "fill" or row.count >= 2 * count)
    end
  end)

  it("shows the arguments of launches: numbers, and buffers by their names", function()
    local mod = dev:compile [[
      extern "C" __global__ void many(int n, float a, double b, long long big, unsigned char flag, const float *x,
          float *y, const float *none, bool yes) {
        if (n == 5) { y[0] = a + b + big + flag + x[0] + (none ? 1 : 0) + yes; }
      }
      extern "C" __global__ void nothing() { }
      extern "C" __global__ void pairs(float2 *z, const void *x) { z[0].x = ((const float *)x)[0]; }]]
    local x <close> = dev:buffer("f32", 8, { label = "x" }):fill(1)
    local y <close> = dev:buffer("f32", 8):fill(0)
    local first = #operations(log)
    mod.many:launch(support.one, 5, 0.5, 0.1, -1 << 62, 255, x:slice(3, 8), y, nil, 1)
    mod.nothing:launch(support.one)
    mod.pairs:launch(support.one, y, x)
    dev:synchronize()
    local list = operations(log)
    local shown = {}
    for i, argument in ipairs(list[first + 1].arguments) do
      shown[i] = ("%s %s %s"):format(argument.name, argument.type, tostring(argument.value))
    end
    assert.are.same({ "n i32 5", "a f32 0.5", "b f64 0.1", "big i64 -4611686018427387904", "flag u8 255" },
      { table.unpack(shown, 1, 5) })
    assert.equal("x in f32* x + 8 B", shown[6])
    assert.truthy(shown[7]:find "^y inout f32%* buffer %d+$", shown[7])
    assert.equal("none in f32* nil", shown[8])
    assert.truthy(shown[9]:find "^yes ", shown[9])
    assert.are.same({}, list[first + 2].arguments)
    assert.equal("x", list[first + 3].arguments[2].value)
    assert.is_nil(list[first].arguments) -- a fill
    assert.truthy(select(2, traced()):find("n = 5, a = 0.5, b = 0.1, big = -4611686018427387904, flag = 255, "
      .. "x = x + 8 B, y = buffer ", 1, true), "the JSON has them, too")
  end)

  it("gives no node of a graph the times of others that were there before an update", function()
    local x <close> = dev:buffer("i32", 1 << 20)
    local y <close> = dev:buffer("i32", 1)
    local graph <close> = dev:capture(function() for i = 1, 3 do x:fill(i) end end)
    graph:launch():await()
    dev:synchronize()
    local is_timed = graph:dot():find " us, from"
    graph:update(function() y:write { 7 } end) -- made anew, with fewer nodes
    assert.is_nil(graph:dot():find " us, from")
    graph:launch():await()
    dev:synchronize()
    local _, count = graph:dot():gsub(" us, from", "")
    assert.equal(is_timed and 1 or 0, count)
  end)

  it("takes a graph that uses more than a stack holds", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local dev, buffers, path = gpu.device("cpu", { trace = 100, isolate = "none" }), {}, os.tmpname()
      for i = 1, 180000 do buffers[i] = dev:buffer("u8", 1) end
      local graph <close> = dev:capture(function() for i = 1, #buffers do buffers[i]:fill(1) end end)
      graph:launch():await()
      gpu.trace.json(path)
      local file <close> = io.open(path)
      local text = file:read "a"
      print(text:find "out buffer %d+%[0%.%.1%], out buffer" ~= nil, text:sub(-3))
      gpu.trace.timeline(path)
      os.remove(path)]]
    assert.equal("true\t}}\n\n", output)
    assert.equal(0, code)
  end)

  it("has the run in which it began", function()
    local output, code = support.script [[
      local gpu = require "gpulua"
      local dev = gpu.device(os.getenv "GPULUA_DEVICE", { trace = true })
      local x, start = dev:buffer("i32", 4), os.clock()
      while os.clock() - start < 0.1 do end
      x:fill(1):await()
      for event in gpu.trace.events() do
        if event.kind == "run" then
          print(event.ended - event.begun > 0.09 and "long" or "short")
        end
      end]]
    assert.equal(0, code, output)
    assert.truthy(output:find "^long\n", output)
  end)

  it("is written in a time that grows with what it has, also where thousands of ranges are open", function()
    local output, code = support.script [[
      local gpu, support = require "gpulua", require "spec.support"
      local dev = support.open { trace = true }
      dev:buffer("i32", 1):fill(0)
      local open, path = {}, os.tmpname()
      local function took(count)
        while #open < count do
          open[#open + 1] = gpu.range "open"
          gpu.range "short":close()
        end
        local least = math.huge
        for _ = 1, 3 do
          local start = os.clock()
          gpu.trace.json(path)
          least = math.min(least, os.clock() - start)
        end
        return least
      end
      took(10)
      local few, many = took(2000), took(16000)
      os.remove(path)
      print(many < 20 * few or many / few)
    ]]
    assert.equal("true\n", output)
    assert.equal(0, code)
  end)

  it("knows no time of what is not over, has failed or was skipped, and counts only the first as in flight", function()
    support.wants_time(pending)
    -- The last count in the trace, of this device.
    local function in_flight()
      local last
      for _, event in ipairs(traced().traceEvents) do
        last = event.name == "operations in flight" and event.pid == 9 + log and event.args.operations or last
      end
      return last
    end
    local x <close> = dev:buffer("i32", 1)
    support.under_way(0.05, function(seconds, seen)
      local op = spin.spin:launch(support.one, support.ticks(seconds), x, 1)
      local elapsed, list = op:elapsed(), operations(log)
      seen()
      assert.is_nil(elapsed)
      assert.equal("pending", list[#list].outcome)
      assert.truthy(in_flight() >= 1 or op:done())
      op:await()
      assert.truthy(op:elapsed() >= 0.025)
    end)
    dev:synchronize() -- what nobody waits for is looked after when there is time
    assert.equal(0, in_flight())
    if support.is_gpu() then
      return -- a failed assert ends a GPU
    end
    local bad = dev:compile [[
      extern "C" __global__ void bad(int *x) { assert(x == nullptr); }
      extern "C" __global__ void reads(const int *x, int *y) { y[0] = x[0]; }]]
    local y <close> = dev:buffer("i32", 1)
    assert.falsy((bad.bad:launch(support.one, x):join()))
    local skipped = bad.reads:launch(support.one, x, y)
    assert.falsy((skipped:join()))
    local list = operations(log)
    assert.are.same({ "failed", "failed" }, { list[#list - 1].outcome, list[#list].outcome })
    assert.is_nil(skipped:elapsed())
    assert.equal(1, gpu.report().devices[log].untimed)
    assert.equal(0, in_flight())
  end)

  it("shows which fence held work up, and why", function()
    support.wants_time(pending)
    local x <close> = dev:buffer("i32", 4, { label = "shared" }):fill(0)
    local y <close> = dev:buffer("i32", 4):fill(0)
    local other <close> = dev:stream()
    dev:synchronize()
    support.under_way(0.02, function(seconds, seen)
      local writes = spin.spin_fill:launch(support.one, support.ticks(seconds), x, 4, 5)
      local reads
      other:use(function() reads = spin.spin_copy:launch(support.one, 1, x, y, 4) end)
      seen()
      reads:await()
      dev:synchronize() -- what nobody waits for is looked after when there is time
      local list = operations(log)
      local later, earlier = list[#list], list[#list - 1]
      assert.equal(reads.seq, later.seq)
      assert.are.same({ earlier.number }, later.waits)
      assert.equal(writes.seq, earlier.seq)
      assert.equal("RAW 'shared'", require "gpulua.trace".reason(log, earlier.number, later.number))
      assert.truthy(later.begun >= earlier.ended - 1e-6, "its time begins behind its waits")
      assert.truthy(later.begun - later.given >= 0.4 * seconds)
    end)
  end)

  it("shows what ran side by side", function()
    support.wants_time(pending)
    local x <close> = dev:buffer("i32", 1)
    local y <close> = dev:buffer("i32", 1)
    local other <close> = dev:stream()
    local overlap
    for _, seconds in ipairs { 0.05, 0.2, 0.8 } do -- the machine may be busy when the second one is to begin
      local ticks = support.ticks(seconds)
      local a = spin.spin:launch(support.one, ticks, x, 1)
      local b
      other:use(function() b = spin.spin:launch(support.one, ticks, y, 1) end)
      gpu.all { a, b }
      local list = operations(log)
      local first, second = list[#list - 1], list[#list]
      assert.truthy(first.stream ~= second.stream)
      overlap = second.begun < first.ended and first.begun < second.ended
      if overlap then
        break
      end
    end
    assert.is_true(overlap)
  end)

  it("shows which task waited for what, and where", function()
    support.wants_time(pending)
    local x <close> = dev:buffer("i32", 1)
    support.under_way(0.02, function(seconds, seen, begins)
      local ticks = support.ticks(seconds)
      local line
      local task = gpu.spawn(function()
        begins()
        local op = spin.spin:launch({ grid = 1, block = 1, label = "slow" }, ticks, x, 1)
        line = debug.getinfo(1, "l").currentline + 2
        seen()
        op:await()
      end)
      task:await()
      local wait, number
      for event in gpu.trace.events() do
        if event.kind == "wait" and event.label == "slow" then
          wait = event
        elseif event.label == "slow" then
          number = event.number
          assert.truthy(event.task)
        end
      end
      assert.truthy(wait.where:find("trace_spec.lua:" .. line, 1, true))
      assert.equal(number, wait.number)
      assert.truthy(wait.task)
      assert.truthy(wait.ended - wait.begun >= 0.4 * seconds)
    end)
  end)

  support.once(it, "shows waits that an interrupt ends", function()
    for label, wait in pairs { sleep = "gpu.sleep(60)", ["a group"] = "gpu.all(op, x)", spin = "op:await()",
      ["a descriptor"] = "gpu.readable(io.popen 'sleep 1')" } do
      local output, code = support.script(([[
        local gpu = require "gpulua"
        local dev = gpu.device("cpu", { trace = true, isolate = "none" })
        local spin = dev:compile("extern \"C\" __global__ void spin(int *x, long long ticks) {"
          .. "long long start = clock64(); while (clock64() - start < ticks) { } x[0] = 1; }").spin
        local x = dev:buffer("i32", 1)
        local op = spin:launch(1, x, 1000000000)
        local killer <close> = io.popen("sleep 0.2; kill -INT " .. io.open "/proc/self/stat":read "n")
        local ok, err = pcall(coroutine.wrap(function() %s end)) -- a coroutine of the script's: nothing can yield
        print(ok, err.code)
        for event in gpu.trace.events() do
          if event.kind == "wait" and event.label ~= "compile" then
            print(event.label, event.ended - event.begun > 0.05, event.where:match ":(%%d+)$")
          end
        end
      ]]):format(wait))
      assert.equal(("false\tInterrupted\n%s\ttrue\t8\n"):format(label), output)
      assert.equal(0, code)
    end
  end)

  it("shows ranges that are still open, and how far they have come", function()
    local name = "open " .. log
    local function found()
      local list = {}
      for event in gpu.trace.events() do
        if event.kind == "range" and event.label == name then
          list[#list + 1] = event
        end
      end
      return list
    end
    local outer, inner = gpu.range(name), gpu.range(name)
    gpu.sleep(0.002)
    local first = found()
    assert.equal(2, #first)
    for _, event in ipairs(first) do
      assert.truthy(event.ended - event.begun >= 0.002)
      assert.truthy(event.where:find "trace_spec.lua:%d+$", event.where)
    end
    outer:close() -- in any order
    gpu.sleep(0.002)
    local second = found()
    assert.equal(2, #second)
    table.sort(second, function(a, b) return a.ended < b.ended end)
    assert.truthy(second[2].ended - second[1].ended >= 0.002)
    inner:close()
    assert.equal(2, #found())
    local function forget() return gpu.range(name) and nil end
    forget()
    collectgarbage()
    collectgarbage()
    local third = found()
    assert.equal(3, #third) -- forgotten: it ended when it was collected
    gpu.sleep(0.001)
    assert.equal(third[3].ended, found()[3].ended)
  end)

  it("shows ranges of scripts, also across waits", function()
    local name = "phase " .. log -- other specs may have ranges in the trace, too
    local range = gpu.range(name)
    gpu.sleep(0.01)
    range:close()
    range:close()
    local found = {}
    for event in gpu.trace.events() do
      if event.kind == "range" and event.label == name then
        found[#found + 1] = event
      end
    end
    assert.equal(1, #found)
    assert.truthy(found[1].ended - found[1].begun >= 0.009)
  end)

  it("keeps its log when it is closed, and texts that were its own", function()
    local other_log = log_next()
    local other = support.open { trace = true }
    local x = other:buffer("i32", 4, { label = "gone" }):fill(1)
    x:read()
    other:close()
    collectgarbage()
    local list = operations(other_log)
    assert.equal("fill", list[1].kind)
    assert.truthy(list[1].where:find("trace_spec.lua", 1, true))
    assert.truthy(tostring(gpu.report()):find("gone", 1, true))
  end)

  it("keeps as many operations as it was told to, and counts the others", function()
    local other_log = log_next()
    local other = support.open { trace = 3 }
    local x <close> = other:buffer("i32", 4)
    for i = 1, 10 do
      x:fill(i)
    end
    assert.are.same({ 10, 10, 10, 10 }, x:read())
    assert.equal(3, #operations(other_log))
    local info = require "gpulua.trace".info()[other_log]
    assert.equal(3, info.ops)
    assert.equal(8, info.dropped)
    assert.truthy(tostring(gpu.report()):find("8 more for which there was no room", 1, true))
    for _, bad in ipairs { 0, -1, 2.5, "yes", 1 << 40 } do
      support.raises("InvalidArgument", "trace of device", support.open, { trace = bad })
    end
  end)

  it("goes on keeping operations when it has no room for more nodes of graphs", function()
    support.wants_time(pending)
    if dev.kind == "cuda" and run "--info":find "CUPTI[^\n]*traces use events" then
      pending "no CUPTI"
    end
    local other_log = log_next()
    local other = support.open { trace = 25 }
    local x <close> = other:buffer("i32", 10)
    local function capture()
      return other:capture(function()
        for i = 1, 10 do
          x:slice(i, i):fill(i)
        end
      end)
    end
    local first <close> = capture()
    local second <close> = capture()
    local third <close> = capture()
    for _, graph in ipairs { first, first, second, third } do -- of the third the log has not even the nodes' names
      graph:launch()
    end
    assert.equal(10, x:read()[10])
    x:fill(7) -- when some have been left out
    assert.equal(7, x:read()[10])
    local kept, launches = 0, 0
    for _, event in ipairs(operations(other_log)) do
      kept = kept + (event.nodes and #event.nodes or 0)
      launches = launches + (event.kind == "graph" and 1 or 0)
    end
    assert.are.same({ 4, 25 }, { launches, kept })
    local info = require "gpulua.trace".info()[other_log]
    assert.are.same({ 7, 15 }, { info.ops, info.dropped })
  end)

  it("waits and completes as others do, in thousands, on several streams", function()
    local x <close> = dev:buffer("i32", 1):fill(0)
    local add = dev:compile [[extern "C" __global__ void add(int *x) { x[0] += 1; }]].add
    local streams = {}
    for i = 1, 4 do
      streams[i] = dev:stream()
    end
    for i = 1, 2000 do
      streams[i % 4 + 1]:use(function() add:launch(support.one, x) end)
    end
    assert.equal(2000, x:read()[1])
    for _, stream in ipairs(streams) do
      stream:close()
    end
    local count, last = 0, 0
    for event in gpu.trace.events() do
      if event.kernel == "add" then
        count = count + 1
        if event.begun then
          assert.truthy(event.begun >= last - 1e-6, "all of them are behind each other")
          last = event.ended
        end
      end
    end
    assert.equal(2000, count)
  end)

  it("goes on being traced in its next life", function()
    support.wants_time(pending)
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local other_log = log_next()
    local other = support.open { trace = true }
    local x <close> = other:buffer("i32", 4, { durable = true }):fill(3)
    x:read()
    support.lose(other)
    assert.are.same({ 3, 3, 3, 3 }, x:read())
    local list = operations(other_log)
    assert.equal("download", list[#list].kind)
    assert.truthy(list[#list].begun)
  end)
end)

describe("a report", function()
  it("adds up kernels, copies, memory and waits", function()
    support.wants_time(pending)
    local log = log_next()
    local dev = support.open { trace = true }
    local spin = dev:compile(support.spin_source)
    dev:compile(support.spin_source):close() -- the same, but for its name: once more, unless the cache has it, too
    local x <close> = dev:buffer("i32", 1 << 20, { label = "big" }):fill(0)
    local ticks = support.ticks(0.03)
    for _ = 1, 5 do
      spin.spin:launch(support.one, ticks, x, 1)
    end
    dev:synchronize()
    x:read()
    local report = gpu.report()
    local device = report.devices[log]
    local row
    for _, kernel in ipairs(device.kernels) do
      row = kernel.name == "spin" and kernel or row
    end
    assert.truthy(row.count >= 5)
    assert.truthy(row.median >= 0.003 and row.median <= row.longest and row.p99 <= row.longest)
    assert.truthy(row.total >= 0.015 and row.share > 0.5)
    assert.equal("download", device.copies[1].name)
    assert.equal(4 << 20, device.copies[1].bytes)
    assert.truthy(math.abs(device.copies[1].rate * device.copies[1].total - (4 << 20)) < 1)
    assert.truthy(device.busy <= device.elapsed * 1.000001 and device.busy >= 0.015)
    assert.equal("big", device.peaks[1].name)
    assert.truthy(device.peaks[1].bytes >= 4 << 20 and device.peak_bytes >= device.peaks[1].bytes)
    local compiled, stats = device.compiled, dev:stats()
    assert.truthy(compiled.count + compiled.from_cache >= 2)
    assert.equal(stats.compilations, compiled.count)
    assert.equal(stats.cache_hits, compiled.from_cache)
    assert.equal(stats.compile_ns / 1e9, compiled.total)
    local shares = 0
    for _, list in ipairs { device.kernels, device.copies } do
      for _, entry in ipairs(list) do
        shares = shares + entry.share
      end
    end
    assert.truthy(math.abs(shares - 1) < 1e-6)
    local waited
    for _, wait in ipairs(report.waits) do
      waited = waited or wait.where and wait.where:find("trace_spec.lua", 1, true) and wait.label == "spin" and wait
    end
    assert.truthy(waited and waited.total >= 0.009)
    local text = tostring(report)
    for _, part in ipairs { "spin", "download", "big", "trace_spec.lua", "median", "fences", "from the cache" } do
      assert.truthy(text:find(part, 1, true), part)
    end
    support.close_all()
  end)
end)

describe("gpulua --trace", function()
  local folder
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(lfs.mkdir(folder))
  end)
  teardown(function() os.execute("rm -r " .. folder) end)

  local function write(name, text)
    local path = folder .. "/" .. name
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
    return path
  end

  for _, example in ipairs { "saxpy.lua", "tasks.lua", "heat.lua FOLDER/heat.png 64", "cg.lua 32",
    "edges.lua examples/data/raccoon.png FOLDER/edges.png", "mlp.lua examples/data/penguins.csv" } do
    it("of examples/" .. example:match "^[^ ]+" .. " is a trace by the rules of the format", function()
      local path = folder .. "/trace.json"
      local output, code = run(("--trace %s examples/%s"):format(path, (example:gsub("FOLDER", folder))))
      assert.equal(0, code, output)
      local trace = json_of(path)
      assert.equal("0", trace.otherData.dropped)
      local lanes = validate(trace)
      local device_lanes = 0
      for lane in pairs(lanes) do
        device_lanes = device_lanes + (lane:match "^10 " and 1 or 0)
      end
      if not support.is_checked() then
        assert.truthy(device_lanes > 0, "a lane of a stream")
      end
    end)
  end

  it("has arrows for fences, and work side by side where the recorder allows it", function()
    support.wants_time(pending)
    local path = folder .. "/trace.json"
    local script = write("fences.lua", [[
      local gpu, support = require "gpulua", require "spec.support"
      local dev = gpu.device()
      local spin = dev:compile(support.spin_source)
      local a, b = dev:buffer("i32", 1, { label = "left" }), dev:buffer("i32", 1, { label = "right" })
      local ticks = support.ticks(tonumber(arg[1]))
      gpu.all { gpu.spawn(function() spin.spin:launch(support.one, ticks, a, 1):await() end),
        gpu.spawn(function() spin.spin:launch(support.one, ticks, b, 1):await() end) }
      local later <close> = dev:stream()
      spin.spin:launch(support.one, ticks, a, 2)
      later:use(function() spin.spin_copy:launch(support.one, 1, a, b, 1):await() end)
    ]])
    local overlap
    for _, seconds in ipairs { 0.03, 0.3, 1 } do -- the machine may be busy when the second one is to begin
      local output, code = run(("--trace %s %s %g"):format(path, script, seconds))
      assert.equal(0, code, output)
      local trace = json_of(path)
      local lanes, arrow_count = validate(trace)
      assert.truthy(arrow_count >= 1)
      local names, longest = {}, {}
      for _, event in ipairs(trace.traceEvents) do
        names[event.ph .. " " .. (event.name or "")] = true
        if event.ph == "X" and event.cat == "launch" and event.dur > 15000 then
          longest[#longest + 1] = event
        end
      end
      assert.truthy(names["s RAW 'left'"])
      assert.truthy(names["C operations in flight"] and names["C bytes in buffers"])
      table.sort(longest, function(x, y) return x.ts < y.ts end)
      local first, second = longest[#longest - 2], longest[#longest - 1]
      assert.truthy(lanes)
      overlap = second.ts < first.ts + first.dur
      if overlap then
        break
      end
    end
    assert.is_true(overlap, "the two tasks' kernels overlap")
  end)

  it("is written also when the script fails, or exits", function()
    local path = folder .. "/failed.json"
    local script = write("fails.lua", [[
      local dev = require "gpulua".device()
      dev:buffer("i32", 4):fill(1)
      if arg[1] then os.exit(tonumber(arg[1])) end
      error "oh no"]])
    local output, code = run(("--trace %s %s"):format(path, script))
    assert.equal(1, code)
    assert.truthy(output:find("oh no", 1, true))
    validate(json_of(path))
    os.remove(path)
    output, code = run(("--trace=%s %s 7"):format(path, script))
    assert.equal(7, code, output)
    validate(json_of(path))
  end)

  it("stands before chunks of the command line, and none of the files hinders another", function()
    local output, code = run "--summary -e 'print(5)' -e 'print(6)'"
    assert.equal(0, code)
    assert.truthy(output:find "5\n6\n", output)
    local page = folder .. "/page.html"
    local gone = folder .. "/gone"
    assert(lfs.mkdir(gone))
    output, code = run(("--trace %s/x.json --timeline %s --summary -e 'os.remove [[%s]]' examples/saxpy.lua"):format(
      gone, page, gone))
    assert.equal(1, code)
    assert.truthy(output:find(gone .. "/x.json", 1, true) and output:find("buffers took", 1, true), output)
    assert.truthy(lfs.attributes(page, "size") > 10000)
    output, code = run(("--trace %s --timeline %s -e 'local x'"):format(page, page))
    assert.equal(1, code)
    assert.truthy(output:find("two files expected", 1, true), output)
    for _, files in ipairs { "--trace %s/new --flight %s/./new", "--timeline %s/./page.html --flight %s/page.html" } do
      output, code = run((files .. " -e 'print(5)'"):format(folder, folder))
      assert.equal(1, code)
      assert.truthy(output:find("two files expected", 1, true) and not output:find("5\n", 1, true), output)
    end
    assert.equal(0, select(2, run "--trace /dev/null --flight /dev/null examples/saxpy.lua"))
    output, code = run(("--seeds 2 --trace %s examples/saxpy.lua"):format(page))
    assert.equal(1, code)
    assert.truthy(output:find("--seeds: not with --trace", 1, true), output)
    assert.is_nil(output:find("no device", 1, true), output)
    for _, off in ipairs { "0", "false", "off" } do
      local pipe = io.popen(("GPULUA_TRACE=%s %s/gpulua -e 'local g = require [[gpulua]] g.device() "
        .. "print(pcall(g.report))' 2>&1"):format(off, build))
      assert.truthy(pipe:read("a"):find("false", 1, true))
      pipe:close()
    end
  end)

  it("has what tasks are at when it is written", function()
    local path = folder .. "/open.json"
    local script = write("open.lua", [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      gpu.spawn(function() gpu.sleep(0.02) os.exit(3) end)
      gpu.sleep(100)]])
    local output, code = run(("--trace %s %s"):format(path, script))
    assert.equal(3, code, output)
    local waits = {}
    for _, event in ipairs(json_of(path).traceEvents) do
      if event.cat == "wait" then
        waits[#waits + 1] = event.args.line
      end
    end
    assert.truthy(table.concat(waits, " "):find("open.lua:4", 1, true), table.concat(waits, " "))
  end)

  it("does not wait for a kernel that hangs when it was interrupted", function()
    if support.is_gpu() or support.is_checked() then
      pending "once is enough"
    end
    local path = folder .. "/hung.json"
    local script = write("hung.lua", [==[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { isolate = "process" })
      local x = dev:buffer("i32", 1):fill(0)
      local mod = dev:compile [[extern "C" __global__ void hang(volatile int *x) { while (x[0] == 0) { } }]]
      mod.hang:launch({ grid = 1, block = 1 }, x)
      io.write "ready" io.flush()
      dev:synchronize()]==])
    local shell = write("interrupt.sh", ([[
      timeout -k 5 30 %s/gpulua --trace %s %s > %s/out 2>&1 &
      waiter=$!
      for i in $(seq 1000); do grep -q ready %s/out && break; sleep 0.01; done
      sleep 0.1
      date +%%s%%N > %s/began
      pkill -INT -P $waiter
      wait $waiter
      date +%%s%%N > %s/ended
    ]]):format(build, path, script, folder, folder, folder, folder))
    os.execute("sh " .. shell)
    local function at(name)
      local file <close> = assert(io.open(folder .. "/" .. name))
      return tonumber(file:read "a")
    end
    assert.truthy(at "ended" - at "began" < 4e9, (at "ended" - at "began") / 1e9)
    validate(json_of(path))
  end)

  it("says why there is none", function()
    local output, code
    for _, option in ipairs { "--trace", "--timeline" } do -- before anything runs: it may take hours
      output, code = run(option .. " /nowhere/at/all.json -e 'print [[ran]]'")
      assert.equal(1, code)
      assert.truthy(output:find(option .. ": '/nowhere/at/all.json' cannot be written: No such file", 1, true), output)
      assert.is_nil(output:find("ran", 1, true), output)
      output, code = run(option .. " /tmp -e 'print [[ran]]'")
      assert.equal(1, code)
      assert.truthy(output:find(option .. ": '/tmp' cannot be written: Is a directory", 1, true), output)
    end
    output, code = support.script [[
      local trace = require "gpulua".trace
      print(select(2, pcall(trace.reason, 1, 1, 2)).hint == select(2, pcall(trace.events)).hint)]]
    assert.equal(0, code)
    assert.equal("true\n", output)
    for _, option in ipairs { "--trace", "--timeline" } do
      output, code = run(option .. " /dev/full -e 'require [[gpulua]].device()'")
      assert.equal(1, code)
      assert.truthy(output:find("/dev/full: cannot be written: No space left on device", 1, true), output)
      assert.is_nil(output:find("traceback", 1, true), output)
    end
    for _, text in ipairs { "local x = 1", "require [[gpulua]].device(nil, { trace = false })" } do
      output, code = run(("--trace %s/none.json -e '%s'"):format(folder, text))
      assert.truthy(code == 0 and output:find("opened, but for those with trace = false", 1, true), output)
    end
    output, code = run "--trace"
    assert.equal(1, code)
    assert.truthy(output:find("'--trace' needs argument", 1, true))
    output, code = support.script [[
      local gpu = require "gpulua"
      for _, f in ipairs { gpu.report, gpu.trace.events, function() gpu.trace.json "x.json" end } do
        print(select(2, pcall(f)).code)
      end]]
    assert.equal(0, code, output)
    assert.equal(("StreamMisuse\n"):rep(3), output)
  end)

  it("knows no times of the device in check mode, and says so", function()
    local output, code = run "--check --summary examples/saxpy.lua"
    assert.equal(0, code, output)
    assert.truthy(output:find("operations\n4 of them without a time", 1, true), output)
  end)

  it("says at the end, with --summary, where time and memory went", function()
    support.wants_time(pending)
    local output, code = run "--summary examples/saxpy.lua"
    assert.equal(0, code, output)
    for _, part in ipairs { "saxpy", "upload", "download", "buffers took 8.0 MiB at most" } do
      assert.truthy(output:find(part, 1, true), part .. " is not in " .. output)
    end
  end)

  it("says seconds in --summary as other times", function()
    support.wants_time(pending)
    local output, code = run("--summary " .. write("long.lua", [==[
      local gpu = require "gpulua"
      local x = gpu.device():buffer("i32", 1):fill(1)
      x:read()
      gpu.sleep(1.01)
      x:read()
    ]==]))
    assert.equal(0, code, output)
    assert.truthy(output:find("3 operations in %d+%.?%d* s, idle %d+ %% of that\n"), output)
  end)

  it("names lanes by their streams' labels", function()
    support.wants_time(pending)
    local path = folder .. "/labels.json"
    local output, code = run(("--trace %s %s"):format(path, write("labels.lua", [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local x = dev:buffer("i32", 4)
      local side <close> = dev:stream { label = "side" }
      local plain <close> = dev:stream()
      side:use(function() x:fill(1) end)
      plain:use(function() x:fill(2) end)
      dev:synchronize()
      for event in gpu.trace.events() do
        if event.kind == "fill" then io.write(event.stream, " ", event.stream_label or "none", "\n") end
      end
    ]])))
    assert.equal(0, code, output)
    local side, plain = output:match "^(%d+) side\n(%d+) none\n$"
    assert.truthy(side, output)
    local names = {}
    for _, event in ipairs(json_of(path).traceEvents) do
      if event.name == "thread_name" and event.pid == 10 then
        names[event.tid] = event.args.name
      end
    end
    assert.equal(("stream %s (side)"):format(side), names[tonumber(side)])
    assert.equal("stream " .. plain, names[tonumber(plain)])
  end)

  it("carries hostile labels without harm", function()
    local path = folder .. "/hostile.json"
    local script = write("hostile.lua", [==[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local k = dev:compile [[extern "C" __global__ void k(int *x) { x[0] = 1; }]].k
      local x = dev:buffer("i32", 1, { label = "</script>\27[31m\"\\" })
      for _, label in ipairs { "</script><b>", "\27[2J\27]0;gone\7", "\255\254\192\128", ("x"):rep(1000),
        "\"},{\"ph\":\"X\"",
        "a\nb\r\tc", "\u{202e}reversed", "''\\" } do
        k:launch({ grid = 1, block = 1, label = label }, x)
        local range <close> = gpu.range(label .. "\0behind")
        local stream <close> = dev:stream { label = label:sub(1, 60) }
        stream:use(function() k:launch({ grid = 1, block = 1 }, x) end)
      end
      dev:synchronize()
    ]==])
    local output, code = run(("--summary --trace %s %s"):format(path, script))
    assert.equal(0, code, output)
    assert.falsy(output:find("[%z\1-\8\11-\31\127]"), "no control characters on the terminal")
    assert.truthy(utf8.len(output))
    local trace, text = json_of(path)
    validate(trace)
    assert.falsy(text:find("[%z\1-\9\11-\31\127]"))
    assert.truthy(utf8.len(text))
  end)

  it("works in the installed Lua, by the environment", function()
    local path = folder .. "/stock.json"
    local script = write("stock.lua", ([[
      package.cpath = "%s/lua/?.so;" .. package.cpath
      local gpu = require "gpulua"
      local dev = gpu.device()
      dev:buffer("i32", 4):fill(1):read()
      gpu.trace.json("%s")]]):format(build, path))
    local pipe = io.popen(("GPULUA_TRACE=1 GPULUA_EXECUTOR=%s/gpulua-exec %s %s 2>&1"):format(build,
      os.getenv "GPULUA_LUA" or "lua5.4", script))
    local output = pipe:read "a"
    local _, _, code = pipe:close()
    assert.equal(0, code, output)
    validate(json_of(path))
  end)
end)
