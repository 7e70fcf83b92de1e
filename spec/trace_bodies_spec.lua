-- Traces of graphs with conditional nodes: what was done in their bodies, in which launch, and when.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a trace of conditional nodes", function()
  -- What work of a "millisecond" takes at least (s): how long it takes to count to so much is found out beside other
  -- programs, which have the device now and then. Other work takes a twentieth of that.
  local unit <const> = 20e-6
  local dev, mod, log, ticks

  setup(function()
    support.wants_time(pending)
    local info = require "gpulua.trace".info()
    log = (info and #info or 0) + 1
    dev = support.open { trace = true }
    mod = dev:compile(support.spin_source .. [[
      extern "C" __global__ void count_down(int *count) { count[0] -= 1; }
      extern "C" __global__ void set(int *count, int value) { count[0] = value; }]])
    ticks = support.ticks(0.001)
  end)

  teardown(support.close_all)

  -- Launches of graphs with this label.
  local function launches(label)
    local list = {}
    for event in gpu.trace.events() do
      if event.log == log and event.kind == "graph" and event.label == label then
        list[#list + 1] = event
      end
    end
    return list
  end

  -- What the report has of the device that was traced as this one, by name, and all that it has of it.
  local function report_rows(number)
    local device, rows = gpu.report().devices[number], {}
    for _, row in ipairs(device.kernels) do
      rows[row.name] = row
    end
    return rows, device
  end

  -- Work of this many milliseconds, labelled with that.
  local function work(x, milliseconds)
    mod.spin:launch({ grid = 1, block = 1, label = milliseconds .. " ms" }, milliseconds * ticks, x, 1)
  end

  -- How often there is what, by label, in bodies or not; all of it within the launch, and not much shorter than said.
  local function counts(event, in_body)
    local count_of = {}
    for _, node in ipairs(event.nodes) do
      assert.truthy(node.begun >= event.begun and node.ended <= event.ended, node.label)
      if node.in_body == in_body and node.kind == "launch" then
        local least = node.label:match "^(%d+) ms$"
        assert.truthy(not least or node.ended - node.begun >= least * unit,
          node.label .. " took " .. node.ended - node.begun)
        count_of[node.label] = (count_of[node.label] or 0) + 1
      end
    end
    return count_of
  end

  it("has what bodies within bodies did, each launch its own, under their labels", function()
    local outer <close> = dev:buffer("i32", 1):fill(0)
    local inner <close> = dev:buffer("i32", 1):fill(0)
    local x <close> = dev:buffer("i32", 1)
    local switch <close> = dev:buffer("i32", 1):fill(2)
    local times <close> = dev:buffer("i32", 1):fill(1)
    local graph <close> = dev:capture({ label = "nested" }, function()
      outer:copy(times)
      gpu.graph.while_(outer, function()
        work(x, 1)
        mod.set:launch(support.one, inner, 2)
        gpu.graph.while_(inner, function()
          work(x, 2)
          mod.count_down:launch(support.one, inner)
        end)
        work(x, 3)
        gpu.graph.if_(outer, function() work(x, 4) end, function() work(x, 5) end)
        mod.count_down:launch(support.one, outer)
      end)
      work(x, 6)
      gpu.graph.switch(switch, { function() work(x, 7) end, function() work(x, 8) end })
      work(x, 9)
    end)
    graph:launch()
    times:fill(3)
    graph:launch():await()
    local list = launches "nested"
    if #list[1].nodes == 0 then
      pending "nobody tells of nodes"
    end
    local turn = "1 ms 2 ms 2 ms 3 ms 4 ms "
    for i, turns in ipairs { 1, 3 } do
      local order = {}
      for _, node in ipairs(list[i].nodes) do
        order[#order + 1] = node.label:match "%d ms" -- each of them is behind the one before
      end
      assert.equal(turn:rep(turns) .. "6 ms 8 ms 9 ms", table.concat(order, " "))
      assert.are.same({ ["1 ms"] = turns, ["2 ms"] = 2 * turns, ["3 ms"] = turns, ["4 ms"] = turns, ["8 ms"] = 1,
        set = turns, count_down = 3 * turns }, counts(list[i], true))
      assert.are.same({ ["6 ms"] = 1, ["9 ms"] = 1 }, counts(list[i]))
    end
    for _, node in ipairs(list[2].nodes) do -- the graph's nodes: a copy, the loop, 6 ms, the switch, 9 ms
      local number = node.label == "8 ms" and 4 or node.label == "9 ms" and 5 or node.label == "6 ms" and 3
        or node.in_body and 2
      assert.equal(number or node.node, node.node, node.label)
    end
    local took = graph:dot():match 'n1 %[shape=diamond, label="while_[^"]*\\n([%d.]+) us, from'
    assert.truthy(tonumber(took) >= 36 * unit * 1e6, "a loop takes as long as all that it does: " .. took)
  end)

  it("ends a launch with what its last node's bodies did", function()
    local count <close> = dev:buffer("i32", 1)
    local x <close> = dev:buffer("i32", 1)
    local graph <close> = dev:capture({ label = "last" }, function()
      mod.set:launch(support.one, count, 3)
      gpu.graph.while_(count, function()
        work(x, 2)
        mod.count_down:launch(support.one, count)
      end)
    end)
    for _ = 1, 3 do
      graph:launch()
    end
    dev:synchronize()
    local list = launches "last"
    assert.equal(3, #list)
    for i, event in ipairs(list) do
      assert.truthy(event.ended - event.begun >= 6 * unit, event.ended - event.begun)
      assert.truthy(i == 1 or event.begun >= list[i - 1].ended)
      assert.equal(#event.nodes > 0 and 3 or nil, counts(event, true)["2 ms"])
    end
  end)

  it("gives each of many launches what it did, of graphs that take turns, on two streams", function()
    local side <close> = dev:stream()
    local function made(label)
      local count, times = dev:buffer("i32", 1), dev:buffer("i32", 1)
      return times, dev:capture({ label = label }, function()
        count:copy(times)
        gpu.graph.while_(count, function() mod.count_down:launch(support.one, count) end)
      end)
    end
    local one_times, one = made "one of two"
    local other_times, other = made "other of two"
    for i = 1, 60 do
      one_times:fill(i % 7)
      one:launch()
      side:use(function()
        other_times:fill(i % 5)
        other:launch()
      end)
    end
    dev:synchronize()
    for label, turns in pairs { ["one of two"] = 7, ["other of two"] = 5 } do
      local list = launches(label)
      assert.equal(60, #list)
      for i, event in ipairs(list) do
        local wanted = #event.nodes > 0 and i % turns or 0
        assert.equal(wanted, counts(event, true).count_down or 0, label .. " " .. i)
      end
    end
  end)

  it("counts nodes as the device does, also behind one that waits for hundreds", function()
    local slots <const> = 450
    local many <close> = dev:buffer("i32", slots)
    local count <close> = dev:buffer("i32", 1):fill(1)
    local x <close> = dev:buffer("i32", 1)
    local graph <close> = dev:capture({ label = "wide" }, function()
      for i = 1, slots do
        many:slice(i, i):fill(i)
      end
      mod.set:launch(support.one, many, 2) -- behind all of them, by joins
      gpu.graph.if_(count, function() work(x, 3) end)
      work(x, 1)
    end)
    graph:launch():await()
    local event = launches "wide"[1]
    if #event.nodes == 0 then
      pending "nobody tells of nodes"
    end
    assert.are.same({ ["3 ms"] = 1 }, counts(event, true))
    assert.are.same({ set = 1, ["1 ms"] = 1 }, counts(event))
  end)

  it("has the bodies that an update has made", function()
    local count <close> = dev:buffer("i32", 1):fill(1)
    local x <close> = dev:buffer("i32", 1)
    local function body(milliseconds)
      return function() gpu.graph.if_(count, function() work(x, milliseconds) end) end
    end
    local graph <close> = dev:capture({ label = "updated" }, body(1))
    graph:launch():await()
    graph:update(body(2))
    graph:launch():await()
    for i, event in ipairs(launches "updated") do
      assert.are.same(#event.nodes > 0 and { [i .. " ms"] = 1 } or {}, counts(event, true))
    end
  end)

  it("gives the report rows by what was done, and none for bodies as a whole", function()
    local count <close> = dev:buffer("i32", 1)
    local x <close> = dev:buffer("i32", 1)
    local graph <close> = dev:capture({ label = "reported" }, function()
      mod.set:launch(support.one, count, 4)
      gpu.graph.while_(count, function()
        mod.spin:launch({ grid = 1, block = 1, label = "inside" }, 2 * ticks, x, 1)
        mod.count_down:launch(support.one, count)
      end)
    end)
    graph:launch():await()
    local rows = report_rows(log)
    if rows.inside then
      assert.equal(4, rows.inside.count)
      assert.truthy(rows.inside.total >= 8 * unit)
      assert.is_nil(rows["reported: conditional nodes"])
      assert.is_nil(rows.reported)
    else -- events alone tell
      assert.truthy(rows.reported.total >= 8 * unit)
    end
  end)

  -- A graph that counts down from that, with one launch of it.
  local function counted_down(own, from)
    local own_mod = own:compile [[
      extern "C" __global__ void down(int *count) { count[0] -= 1; }
      extern "C" __global__ void put(int *count, int value) { count[0] = value; }]]
    local count = own:buffer("i32", 1)
    local graph = own:capture({ label = "counted" }, function()
      own_mod.put:launch(support.one, count, from)
      gpu.graph.while_(count, function() own_mod.down:launch(support.one, count) end)
    end)
    graph:launch():await()
    own:synchronize()
    return graph
  end

  it("gives what there is no room for to the launch, and says how much it is", function()
    local own <close> = support.open { trace = 50 }
    local graph = counted_down(own, 20000)
    local rows, device = report_rows(#require "gpulua.trace".info())
    if not rows.down then
      pending "nobody tells of nodes"
    end
    local kept = rows.down.count + 1
    assert.truthy(kept <= 50 and device.dropped >= 20001 - kept, device.dropped)
    local rest = rows["counted: conditional nodes"].total
    local told = rows.down.total + rows.put.total -- which may be long where the machine does other work
    assert.truthy(rest > 0 and rest + told > 0.9 * device.elapsed, rest + told .. " of " .. device.elapsed)
    assert.is_nil(graph:dot():find("us, from", 1, true))
  end)

  it("keeps or counts each of more than a million turns", function()
    if support.is_gpu() then
      pending "takes long"
    end
    local output, code = support.script [[
      local gpu = require "gpulua"
      local support = require "spec.support"
      local own = support.open { trace = true }
      local mod = own:compile 'extern "C" __global__ void down(int *count) { count[0] -= 1; }'
      local count = own:upload("i32", { 1500000 })
      own:capture({ label = "counted" }, function()
        gpu.graph.while_(count, function() mod.down:launch(support.one, count) end)
      end):launch():await()
      local device = gpu.report().devices[1]
      local counted, has_rest = device.dropped, false
      for _, row in ipairs(device.kernels) do
        counted = counted + (row.name == "down" and row.count or 0)
        has_rest = has_rest or row.name == "counted: conditional nodes"
      end
      print(counted, has_rest == (device.dropped > 0))]]
    assert.equal("1500000\ttrue", output:match "^[^\n]*") -- behind it, that closing takes long, where it does
    assert.equal(0, code)
  end)

  it("has no time for a launch before it is over", function()
    -- In a program of its own: events are those of all devices that were traced, and the launch does not wait for them.
    local output, code = support.script [[
      local gpu = require "gpulua"
      local support = require "spec.support"
      local dev = support.open { trace = true }
      local mod = dev:compile(support.spin_source .. 'extern "C" __global__ void down(int *count) { count[0] -= 1; }')
      local count, x, other = dev:upload("i32", { 100 }), dev:buffer("i32", 1), dev:buffer("i32", 1)
      local ticks, side = support.ticks(0.01), dev:stream()
      local graph = dev:capture({ label = "long" }, function()
        gpu.graph.while_(count, function()
          mod.spin:launch(support.one, ticks, x, 1)
          mod.down:launch(support.one, count)
        end)
      end)
      local function launch()
        local found
        for event in gpu.trace.events() do
          found = event.kind == "graph" and event or found
        end
        return found
      end
      local op, seen = graph:launch(), 0
      for _ = 1, 10 do
        side:use(function() other:fill(1):await() end) -- with which nodes are told of
        local event, text = launch(), graph:dot()
        if not op:done() then
          seen = seen + 1
          assert(event.outcome == "pending" and not event.begun and not event.ended)
          assert(not text:find("us, from", 1, true))
        end
      end
      op:await()
      dev:synchronize()
      print(seen > 0, launch().ended - launch().begun > 0)]]
    assert.equal("true\ttrue\n", output)
    assert.equal(0, code)
  end)

  it("has nothing of bodies that were not done", function()
    local count <close> = dev:buffer("i32", 1):fill(0)
    local x <close> = dev:buffer("i32", 1)
    local graph <close> = dev:capture({ label = "not taken" }, function()
      work(x, 1)
      gpu.graph.if_(count, function() work(x, 2) end)
      gpu.graph.while_(count, function() mod.count_down:launch(support.one, count) end)
      work(x, 3)
    end)
    graph:launch():await()
    assert.are.same({}, counts(launches "not taken"[1], true))
    assert.is_nil(report_rows(log)["not taken: conditional nodes"])
  end)
end)
