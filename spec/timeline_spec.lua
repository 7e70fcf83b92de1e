-- The timeline: one page that needs nothing else. Its data, and what a browser makes of it.

local dkjson = require "dkjson"
local gpu = require "gpulua"
local support = require "spec.support"

local build = os.getenv "GPULUA_BUILD" or "build"

local function run(arguments)
  local pipe = assert(io.popen(("%s/gpulua %s 2>&1"):format(build, arguments)))
  local output = pipe:read "a"
  local _, _, code = pipe:close()
  return output, code
end

local function text_of(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

local function data_of(page)
  local text = page:match '<script id="data" type="application/json">(.-)</script>'
  local value, _, failure = dkjson.decode(text, 1, false)
  return assert(value, failure), text
end

describe("a timeline", function()
  local folder
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
  end)
  teardown(function()
    os.execute("rm -r " .. folder)
    support.close_all()
  end)

  local function write(name, text)
    local path = folder .. "/" .. name
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
    return path
  end

  it("is a page that loads nothing, with columns that say what the events say", function()
    local info = require "gpulua.trace".info()
    local log = (info and #info or 0) + 1
    local dev = support.open { trace = true }
    local x <close> = dev:buffer("i32", 256, { label = "data" })
    local k = dev:compile [[
      extern "C" __global__ void twice(int *x, float by, long long n) {
        x[threadIdx.x] *= (int)by + (n == 0);
      }]].twice
    local other <close> = dev:stream { label = "side" }
    for i = 1, 5 do
      x:fill(i)
      other:use(function() k:launch({ grid = 1, block = 256 }, x, 2, i == 5 and 1 << 60 or i) end)
    end
    x:read()
    local y <close> = dev:buffer("i32", 256, { label = "y" })
    local graph <close> = dev:capture({ label = "step" }, function()
      x:fill(1)
      y:fill(2)
    end)
    graph:launch()
    graph:launch()
    dev:synchronize()
    local path = folder .. "/own.html"
    gpu.trace.timeline(path)
    local page = text_of(path)
    assert.falsy(page:find "https?://")
    assert.falsy(page:find "<link")
    assert.falsy(page:find "<script[^>]*src")
    assert.falsy(page:find("@DATA@", 1, true))
    local data = data_of(page)
    local device = data.devices[log]
    local base, given_before, held = nil, 0, 0
    local number, value_number, by_hand, label_of = 0, 0, {}, {}
    for event in gpu.trace.events() do
      if event.log == log and event.given then
        number = number + 1
        for _, column in ipairs { "kind", "label", "kernel", "where", "task", "stream", "asked", "given", "begun",
          "ended", "over", "bytes", "held", "shape", "uses", "arguments", "numbers", "failed" } do
          assert.truthy(device[column][number] ~= nil, column)
        end
        assert.equal(event.label, data.texts[device.label[number] + 1])
        assert.equal(event.where, data.texts[device.where[number] + 1])
        assert.equal(event.stream, device.stream[number])
        label_of[event.stream] = event.stream_label
        local asked = given_before + device.asked[number]
        local given = asked + device.given[number]
        base = base or event.asked * 1e9 - asked
        assert.truthy(math.abs(event.asked * 1e9 - base - asked) < 2)
        assert.truthy(math.abs(event.given * 1e9 - base - given) < 2)
        if event.begun then
          assert.truthy(math.abs(event.begun * 1e9 - base - given - device.begun[number]) < 2)
          assert.truthy(math.abs((event.ended - event.begun) * 1e9 - device.ended[number]) < 2)
        end
        if event.arguments then
          local text = data.texts[device.arguments[number] + 1]
          by_hand[#by_hand + 1] = text:gsub("%%d", function()
            value_number = value_number + 1
            return tostring(device.values[value_number])
          end)
        end
        assert.equal(event.arguments and 2 or 0, device.numbers[number])
        held = held + device.held[number]
        assert.equal(event.held_bytes, held)
        given_before = given
      end
    end
    assert.truthy(number >= 13)
    assert.are.same({ [other.id] = "side" }, label_of)
    assert.equal(2, #device.streams)
    assert.equal(other.id, device.streams[1])
    assert.equal("side", data.texts[device.streams[2] + 1])
    local nodes, at, begun_at = device.nodes, 0, nil
    for event in gpu.trace.events() do
      for _, node in ipairs(event.log == log and event.nodes or {}) do
        at = at + 1
        assert.are.same({ event.number - 1, node.label, node.node, node.bytes },
          { nodes.op[at], data.texts[nodes.label[at] + 1], nodes.node[at], nodes.bytes[at] })
        begun_at = (begun_at or 0) + nodes.begin[at]
        assert.truthy(math.abs(node.begun * 1e9 - base - begun_at) < 2)
        assert.truthy(math.abs((node.ended - node.begun) * 1e9 - nodes.took[at]) < 2)
      end
    end
    assert.equal(at, #nodes.op)
    assert.truthy(at >= 4 or support.is_checked() or dev.kind == "cuda", at) -- where CUPTI may not be
    assert.equal("x = data, by = 2, n = 1", by_hand[1])
    assert.equal("x = data, by = 2, n = 1152921504606846976", by_hand[5]) -- a text: too large for a number there
    assert.equal(#device.values, value_number)
    assert.equal(number, #device.kind)
    if not support.is_checked() then
      local reasons = {}
      for i = 3, #device.waits, 3 do
        reasons[data.texts[device.waits[i] + 1]] = true
      end
      assert.truthy(reasons["RAW 'data'"] or reasons["WAW 'data'"] or reasons["WAR 'data'"])
    end
  end)

  it("carries hostile labels without harm", function()
    local path = folder .. "/hostile.html"
    local script = write("hostile.lua", [==[
      local gpu = require "gpulua"
      local dev = gpu.device()
      for _, label in ipairs { "</script><script>alert(1)</script>", "<!--", "\27[2J", "\255\254", ("y"):rep(100000),
        "\"]}", "a\nb\0c", "\u{2028}" } do
        local short = label:sub(1, 40):gsub("%z", "")
        local x <close> = dev:buffer("i32", 4, { label = short })
        local stream <close> = dev:stream { label = short }
        stream:use(function() x:fill(1) end)
        local range <close> = gpu.range(label)
      end
      dev:synchronize()]==])
    local output, code = run(("--timeline=%s %s"):format(path, script))
    assert.equal(0, code, output)
    local page = text_of(path)
    local _, closings = page:gsub("</script>", "")
    assert.equal(2, closings)
    local data, text = data_of(page)
    assert.truthy(#data.texts > 5)
    assert.falsy(text:find "[<>&%z\1-\31]")
    assert.truthy(utf8.len(page))
  end)

  it("says why there is none", function()
    local output, code = run "--timeline /nowhere/t.html -e 'require [[gpulua]].device()'"
    assert.equal(1, code)
    assert.truthy(output:find("/nowhere/t.html", 1, true), output)
    output, code = support.script [[print(select(2, pcall(require "gpulua".trace.timeline, "x.html")).code)]]
    assert.equal(0, code, output)
    assert.equal("StreamMisuse\n", output)
  end)

  describe("in a browser", function()
    setup(function() support.open():compile(support.spin_source) end) -- later it would be time of the script

    -- What the page has become when its script has run, and what the browser said of errors.
    local function look(pending, path, hash)
      if support.isolation() ~= "none" then
        pending "once is enough"
      elseif support.is_checked() then
        pending "in check mode nothing has a time"
      end
      local dom, said = support.browse(pending, folder, ("%s#%s"):format(path, hash or ""))
      assert.truthy(dom:find "data%-ready%-ms", "the page's script has come to its end: " .. said)
      return (dom:gsub("<script.-</script>", "")) -- where all is said that could be
    end

    local function timeline_of(text)
      local path = folder .. "/shown.html"
      local output, code = run(("--timeline %s %s"):format(path, write("shown.lua", text)))
      assert.equal(0, code, output)
      return path
    end

    it("has what the bodies of conditional nodes took, as the report has it", function()
      local script = write("bodies.lua", [[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = gpu.device()
        local mod = dev:compile(support.spin_source ..
          'extern "C" __global__ void less(int *count) { count[0] -= 1; }')
        local count, x = dev:buffer("i32", 1):fill(10), dev:buffer("i32", 1)
        local ticks = support.ticks(0.01)
        local graph = dev:capture({ label = "solver" }, function()
          mod.less:launch(support.one, count)
          gpu.graph.while_(count, function()
            mod.spin:launch({ grid = 1, block = 1, label = "inside" }, ticks, x, 1)
            mod.less:launch(support.one, count)
          end)
        end)
        graph:launch():await()
        local rows, total = gpu.report().devices[1].kernels, 0
        for _, row in ipairs(rows) do
          if row.name:find "^solver" or row.name == "inside" then total = total + row.total end
        end
        print(total > 0.07 and "all of it" or total, rows[1].name)]])
      local path = folder .. "/bodies.html"
      local output, code = run(("--timeline %s %s"):format(path, script))
      assert.equal(0, code, output)
      assert.truthy(output:find "^all of it", output)
      local dom = look(pending, path)
      if output:find("solver: conditional nodes", 1, true) then -- the device has told of nodes
        assert.truthy(dom:find("solver: conditional nodes", 1, true))
      else
        assert.truthy(dom:find("solver", 1, true))
      end
    end)

    it("says what the script did behind its last work", function()
      local dom = look(pending, timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        dev:buffer("f32", 4):fill(1):await()
        gpu.sleep(0.5)]])
      local verdict = dom:match 'id="verdict".-</p>'
      assert.truthy(verdict:find("The script limited it", 1, true), verdict)
      assert.truthy(verdict:find("most of that [^,]*sleep[^,]*, [^ ]*shown.lua:4"), verdict)
    end)

    it("shows integers as they are, also those that Lua or JavaScript has no room for", function()
      local path = timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local k = dev:compile([==[extern "C" __global__ void k(long long a, unsigned long long b, long long *x) {
          x[0] = a + b;
        }]==]).k
        k:launch({ grid = 1, block = 1 }, math.mininteger, -2, dev:buffer("i64", 1)):await()]]
      look(pending, path)
      assert.truthy(support.read_file(path):find('"-9223372036854775808","18446744073709551614"', 1, true))
    end)

    it("says what has failed", function()
      local dom = look(pending, timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x = dev:buffer("f32", 4)
        dev:inject { fault = 1 }
        pcall(function() x:fill(1):await() end)]])
      assert.truthy(dom:find("1 operation of [^<]* failed, the first of them fill, [^ ]*shown.lua:5%."), "not said")
    end)

    it("gives what was waited for before a task was there to that wait, and not to the task", function()
      local dom = look(pending, timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x = dev:buffer("f32", 4)
        gpu.sleep(0.3)
        gpu.spawn(function()
          x:fill(1):await()
        end):await()]])
      local verdict = dom:match 'id="verdict".-</p>'
      assert.truthy(verdict:find("The script limited it", 1, true), verdict)
      assert.truthy(verdict:find("most of that [^,]*sleep[^,]*, [^ ]*shown.lua:4"), verdict)
    end)

    it("gives it to each of the waits that there were before, also of its maker's maker", function()
      local text <const> = [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x = dev:buffer("f32", 4)
        gpu.sleep(0.2)
        gpu.sleep(0.3)
        gpu.spawn(function()
          gpu.sleep(0.1)
          gpu.spawn(function() x:fill(1):await() end):await()
        end):await()]]
      local path, is_so
      for _ = 1, 3 do -- a busy machine wakes late, but not each time
        path, is_so = look(pending, timeline_of(text)):match "Critical path</h2>.-</table>", true
        for line, least in pairs { [4] = 200, [5] = 300, [7] = 100 } do
          local took = tonumber(path:match("<td>([^<]+) ms</td><td>[^<]+</td><td>1</td><td>sleep, [^<]*lua:" .. line))
          is_so = is_so and took and took >= least - 1 and took < least + 90
        end
        if is_so then
          break
        end
      end
      assert.truthy(is_so, path)
    end)

    it("draws some of many ranges that are open at once, and says how many it does not", function()
      local dom = look(pending, timeline_of [[
        local gpu = require "gpulua"
        local dev, ranges = gpu.device(), {}
        for i = 1, 200000 do ranges[i] = gpu.range "open" end
        dev:buffer("i32", 1):fill(1):await()]])
      assert.truthy(dom:find("199976 ranges beside many others are not drawn", 1, true))
    end)

    it("says that the device limited a script that gives it enough", function()
      local dom = look(pending, timeline_of [[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = gpu.device()
        local spin = dev:compile(support.spin_source).spin
        local x = dev:buffer("i32", 1)
        local ticks = support.ticks(0.05)
        dev:synchronize()
        local side <close> = dev:stream { label = "<b>side</b>" }
        side:use(function()
          for i = 1, 20 do spin:launch({ grid = 1, block = 1, label = "slow one" }, ticks, x, i) end
        end)
        dev:synchronize()]], "path&dark&search=slow")
      local verdict = dom:match 'id="verdict".-</p>'
      assert.truthy(verdict:find("The device limited it", 1, true) and verdict:find("spin", 1, true), verdict)
      assert.truthy(dom:find("%d %(&lt;b&gt;side&lt;/b&gt;%)<"), "the stream's label")
      assert.equal(21, tonumber(dom:match "(%d+) found"), "the launches and the wait for the last of them")
    end)

    it("says that the device limited a script whose work waits for room there", function()
      local dom = look(pending, timeline_of [[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = gpu.device()
        local spin = dev:compile(support.spin_source).spin
        local ticks = support.ticks(0.004)
        dev:synchronize()
        for i = 1, 8 do
          spin:launch({ grid = 64, block = 1, stream = dev:stream() }, ticks, dev:buffer("i32", 1), i)
        end
        dev:synchronize()]])
      local verdict = dom:match 'id="verdict".-</p>'
      assert.truthy(verdict:find("The device limited it", 1, true) and verdict:find("spin", 1, true), verdict)
      local path = dom:match "Critical path</h2>.-</table>"
      assert.truthy(path:find("<td>behind other work: spin</td>", 1, true), path)
    end)

    it("says that the script limited one that waits, and which wait could be left out", function()
      local dom = look(pending, timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x = dev:buffer("i32", 16)
        for i = 1, 30 do
          x:fill(i)
          dev:synchronize()
          local until_time = os.clock() + 0.002
          while os.clock() < until_time do end
        end
        print(x:read()[1])]])
      assert.truthy(dom:find("The script limited it", 1, true), dom:match 'id="verdict".-</p>')
      local table_text = dom:match "Waits that could be left out</h2>.-</table>"
      assert.truthy(table_text and table_text:find("shown.lua:6", 1, true), table_text)
    end)

    it("tells the work of other states on a shared device apart, and what it held up", function()
      local path = timeline_of [[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = gpu.device()
        local spin = dev:compile(support.spin_source).spin
        local x = dev:buffer("i32", 1)
        local ticks = support.ticks(0.02)
        dev:synchronize()
        for i = 1, 4 do spin:launch({ grid = 1, block = 1, label = i < 4 and "theirs" or "mine" }, ticks, x, i) end
        dev:synchronize()]]
      -- As if all but the last had been another's: hosts alone share devices.
      local page, count = text_of(path):gsub('"seat":%[([0,]+),0%]', function(zeros)
        return ('"seat":[%s,0]'):format((zeros:gsub("0", "7")))
      end)
      assert.equal(1, count)
      write("shown.html", page)
      local dom = look(pending, path)
      assert.truthy(dom:find("most of that spin, of seat 7", 1, true), dom:match 'id="verdict".-</p>')
      local own = dom:match "Kernels, copies, fills</h2>.-</table>"
      assert.truthy(own:find "<td>1</td><td>[^<]+</td><td>spin</td>" and not own:find "seat", own)
      local others = dom:match "Work of others</h2>.-</table>"
      assert.truthy(tonumber(others:match "<td>(%d+)</td><td>[^<]+</td><td>seat 7 of ") >= 3, others)
    end)

    it("follows waits for tasks and groups to the work that they were for", function()
      local dom = look(pending, timeline_of [[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = gpu.device()
        local spin = dev:compile(support.spin_source).spin
        local x, y = dev:buffer("i32", 1), dev:buffer("i32", 1)
        local ticks = support.ticks(0.03)
        for i = 1, 8 do
          gpu.spawn(function() spin:launch({ grid = 1, block = 1 }, ticks, x, i):await() end):await()
          y:fill(i)
          gpu.all { spin:launch({ grid = 1, block = 1 }, ticks, x, i), gpu.spawn(function() gpu.sleep(0.001) end) }
        end]])
      assert.truthy(dom:find("The device limited it", 1, true), dom:match 'id="verdict".-</p>')
    end)

    it("gives time of the script to the waits that it was, and to no others", function()
      local text <const> = [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x = dev:buffer("i32", 16)
        x:fill(1)
        gpu.sleep(0.2)
        local until_time = os.clock() + 0.1
        while os.clock() < until_time do end
        print(x:fill(2):read()[1])]]
      local dom, path, slept
      for _ = 1, 3 do -- a busy machine wakes late, but not each time
        dom = look(pending, timeline_of(text))
        path = dom:match "Critical path</h2>.-</table>"
        assert.truthy(path:find("sleep, [^<]*shown.lua:5"), path)
        slept = tonumber(path:match "<td>(%d+%.?%d*) ms</td><td>[^<]*</td><td>%d+</td><td>sleep")
        if slept and slept >= 150 and slept < 290 then
          break
        end
      end
      assert.truthy(slept and slept >= 150 and slept < 290, path) -- the fill may begin late, and end in it
      assert.falsy(dom:find("Waits that could be left out</h2>", 1, true))
    end)

    it("gives time in which other tasks kept a task from going on to those, and not to the wait", function()
      local dom = look(pending, timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x = dev:buffer("i32", 16)
        local waits = gpu.spawn(function()
          for i = 1, 8 do x:fill(i):await() end
          gpu.sleep(0.01)
        end)
        local works = gpu.spawn(function()
          for _ = 1, 8 do
            local until_time = os.clock() + 0.03
            while os.clock() < until_time do end
            gpu.sleep(0)
          end
        end)
        gpu.all { waits, works }]])
      local verdict = dom:match 'id="verdict".-</p>'
      assert.truthy(verdict:find("most of that the script, in a task spawned at [^ ]*shown.lua:8%."), verdict)
      local waited = dom:match("Waits</h2>.-</table>"):match "<td>([%d.]+) ms</td><td>8</td><td>[^ ]*lua:5  fill"
      assert.truthy(waited and tonumber(waited) > 150, dom:match "Waits</h2>.-</table>") -- that it was, all the same
      local stalled, unit = dom:match("Waits</h2>.-</table>"):match(
        "<td>([%d.]+) ?([^<]*)</td><td>[%d.]+ ms</td><td>8</td><td>[^ ]*lua:5  fill")
      assert.truthy(stalled and (unit ~= "ms" or tonumber(stalled) < waited / 2), dom:match "Waits</h2>.-</table>")
    end)

    it("gives the time in which a lost device came back to the waits for it", function()
      local path = folder .. "/shown.html"
      local output, code = run(("--isolate process --timeline %s %s"):format(path, write("shown.lua", [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local kept = dev:buffer("f32", 4, { durable = true }):write { 1, 2, 3, 4 }
        dev:synchronize()
        dev:inject { lost = 1 }
        pcall(function() dev:buffer("f32", 4):fill(1):await() end)
        gpu.sleep(0.1)
        dev:await()
        assert(kept:read()[4] == 4)]])))
      assert.equal(0, code, output)
      local dom = look(pending, path)
      local chain = dom:match "Critical path</h2>.-</table>"
      assert.truthy(chain:find("return, [^<]*shown.lua:8") or chain:find("sleep, [^<]*shown.lua:7"), chain)
      assert.falsy(chain:find("up to ?", 1, true), chain)
    end)

    it("does not count reads, of host memory neither, as waits that could be left out", function()
      local dom = look(pending, timeline_of [[
        local gpu, support = require "gpulua", require "spec.support"
        local dev = gpu.device()
        local spin = dev:compile(support.spin_source).spin
        local x, h = dev:buffer("i32", 1), dev:host("i32", 1)
        local ticks = support.ticks(0.02)
        local graph = dev:capture(function()
          spin:launch({ grid = 1, block = 1 }, ticks, x, 7)
          h:copy(x)
        end)
        for i = 1, 3 do
          graph:launch()
          assert(h[1] == 7)
        end]])
      local left_out = dom:match "Waits that could be left out</h2>.-</table>" or ""
      assert.falsy(left_out:find("shown.lua", 1, true), left_out)
    end)

    it("does not count waits for host memory that is written anew as waits that could be left out", function()
      local dom = look(pending, timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local h, x = dev:host("i32", 1 << 20), dev:buffer("i32", 1 << 20)
        for i = 1, 10 do
          h[1] = i -- the copy before reads it
          x:copy(h)
        end
        x:fill(1):await()
        x:fill(2):await()]])
      local left_out = dom:match "Waits that could be left out</h2>.-</table>" or ""
      assert.falsy(left_out:find("shown.lua:5", 1, true), left_out)
      assert.truthy(left_out:find("shown.lua:8", 1, true), left_out)
      assert.truthy(dom:match("Waits</h2>.-</table>"):find "<td>9</td><td>[^<]*lua:5  copy", "they are waits")
    end)

    support.once(it, "shows a million events", function()
      local path = timeline_of [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x, streams = {}, {}
        for i = 1, 4 do x[i], streams[i] = dev:buffer("i32", 16), dev:stream() end
        for i = 1, 500000 do -- each has a call, too
          local k = i % 4 + 1
          streams[k]:use(function() x[k]:fill(i) end)
        end]]
      local dom = look(pending, path)
      assert.truthy(dom:find("500,000 operations", 1, true))
      local loaded_ms = tonumber(dom:match 'data%-loaded%-ms="(%d+)"')
      assert.truthy(loaded_ms < 40000, loaded_ms) -- 1.5 s where nothing else runs
    end)
  end)
end)
