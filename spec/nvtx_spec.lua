-- Ranges for profilers, as a library that NVTX loads in a profiler's place sees them (spec/ranges/listener.c).

local gpu = require "gpulua"
local support = require "spec.support"

describe("ranges", function()
  local build <const> = os.getenv "GPULUA_BUILD" or "build"
  local listener <const> = build .. "/spec/ranges/listener.so"

  local function wants_listener()
    local file = io.open(listener)
    if not file then
      pending "NVTX's headers were not there when gpulua was built"
    end
    file:close()
  end

  --- Runs a script; returns what was seen, a list of { pid =, thread =, ns =, what =, domain =, category =, id =,
  -- payload =, message = }, what the script wrote, and its exit code.
  local function seen(text, setting)
    local path = os.tmpname()
    local output, code = support.script(text, ("GPULUA_NVTX=%s NVTX_INJECTION64_PATH=%s GPULUA_RANGES_SEEN=%s"):format(
      setting or "1", listener, path))
    local events = {}
    for line in io.lines(path) do
      local pid, thread, ns, what, domain, category, id, payload, message = line:match(
        "^(%d+)\t(%d+)\t(%d+)\t(%a+)\t([^\t]*)\t([^\t]*)\t(%d+)\t(%d+)\t(.*)$")
      assert.truthy(pid, line)
      events[#events + 1] = { pid = tonumber(pid), thread = thread, ns = tonumber(ns), what = what, domain = domain,
        category = category, id = id, payload = tonumber(payload), message = message }
    end
    os.remove(path)
    return events, output, code
  end

  --- Each start has its end behind it in the same process, and each thread pops what it has pushed and no more.
  local function balanced(events)
    local depth, open, count = {}, {}, 0
    for i, event in ipairs(events) do
      local thread, range = event.thread, event.pid .. " " .. event.id
      if event.what == "push" then
        depth[thread] = (depth[thread] or 0) + 1
        count = count + 1
      elseif event.what == "pop" then
        depth[thread] = (depth[thread] or 0) - 1
        assert.truthy(depth[thread] >= 0, "a pop without its push, call " .. i)
      elseif event.what == "start" then
        assert.is_nil(open[range])
        open[range] = event.message
        count = count + 1
      elseif event.what == "end" then
        assert.truthy(open[range], "an end without its start, call " .. i)
        open[range] = nil
      end
    end
    for thread, left in pairs(depth) do
      assert.equal(0, left, "thread " .. thread)
    end
    assert.is_nil(next(open), select(2, next(open)))
    return count
  end

  local function of(events, what, category)
    local found = {}
    for _, event in ipairs(events) do
      if event.what == what and event.category == category then
        found[#found + 1] = event
      end
    end
    return found
  end

  it("are off unless GPULUA_NVTX asks for them", function()
    wants_listener()
    local script = [[
      local gpu = require "gpulua"
      local range <close> = gpu.range "mine"
      gpu.device():buffer("f32", 4):fill(1):await()
      range:close()
      print "done"]]
    for _, setting in ipairs { "''", "0", "false", "off" } do
      local events, output = seen(script, setting)
      assert.equal("done\n", output)
      assert.equal(0, #events, setting)
    end
    for _, setting in ipairs { "1", "true", "yes" } do
      assert.truthy(balanced((seen(script, setting))) > 2, setting)
    end
  end)

  it("need nobody who listens", function()
    local output, code = support.script([[
      local gpu = require "gpulua"
      local range <close> = gpu.range "mine"
      gpu.device():buffer("f32", 4):fill(1):await()
      print "done"]], "GPULUA_NVTX=1")
    assert.truthy(output:find "done\n$", output) -- a gpulua without NVTX says that it is one
    assert.equal(0, code)
  end)

  it("tell of each kind of work by its label, where the driver is called", function()
    wants_listener()
    local events, output = seen [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local add = dev:compile([=[extern "C" __global__ void add(float *x) { x[threadIdx.x] += 1; }]=],
        { name = "adding.cu" }).add
      local x, y = dev:buffer("f32", 64):fill(0), dev:buffer("f32", 64)
      local op = add:launch({ grid = 1, block = 64, label = "my step" }, x)
      add:launch({ grid = 1, block = 64 }, x)
      y:copy(x)
      x:write({ 5 }, 1)
      local stream = dev:stream {}
      stream:wait(op)
      local graph = dev:capture({ label = "frame" }, function()
        add:launch({ grid = 1, block = 64, label = "inner" }, x)
      end)
      graph:launch()
      gpu.run(function() x:await() end)
      dev:synchronize()
      print(dev.pid or 0, op.seq, op.label)]]
    local pid, seq = output:match "^(%d+)\t(%d+)\tmy step\n$"
    assert.truthy(pid, output)
    balanced(events)
    local function find(what, category, message)
      for _, event in ipairs(of(events, what, category)) do
        if event.message == message then
          return event
        end
      end
      assert.truthy(false, ("no %s of '%s'"):format(what, message))
    end
    local launch = find("start", "launch", "gpulua.launch my step")
    assert.equal(tonumber(seq), launch.payload)
    find("start", "launch", "gpulua.launch add")
    find("start", "fill", "gpulua.fill fill")
    find("start", "copy", "gpulua.copy copy")
    find("start", "copy", "gpulua.copy write")
    find("start", "graph", "gpulua.graph frame")
    find("push", "open", "gpulua.open " .. (os.getenv "GPULUA_DEVICE" or "cpu"):match "^%a+")
    find("push", "compile", "gpulua.compile adding.cu")
    find("push", "load", "gpulua.load adding.cu")
    find("push", "allocate", "gpulua.allocate")
    find("push", "instantiate", "gpulua.instantiate")
    assert.truthy(#of(events, "push", "wait") > 0)
    assert.equal(1, #of(events, "start", "graph"))
    local own = find("push", "wait", "gpulua.wait open")
    for _, event in ipairs(events) do
      assert.equal("gpulua", event.domain)
      if event.what == "start" then
        assert.equal(support.is_isolated() and tonumber(pid) or own.pid, event.pid)
        assert.equal(support.isolation() == "none", event.thread == own.thread, event.message)
      end
    end
  end)

  it("have the labels in each life of the device", function()
    wants_listener()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local events = seen [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      for life = 1, 3 do
        local x = dev:buffer("f32", 4)
        x:fill(1):await()
        dev:stream { label = "s" }:mark():await()
        if life < 3 then
          os.execute("kill -9 " .. dev.pid)
          while dev.epoch == life do dev:await() gpu.sleep(0.001) end
        end
      end]]
    local lives, count = {}, 0
    for _, event in ipairs(of(events, "start", "fill")) do
      assert.equal("gpulua.fill fill", event.message)
      count = count + (lives[event.pid] and 0 or 1)
      lives[event.pid] = true
    end
    assert.equal(3, count)
  end)

  it("show any label safely", function()
    wants_listener()
    local events, output = seen [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local function range(name) gpu.range(name):close() end
      range "a\0b"
      range "\27[31mred\27[0m\127\xc2\x9b"
      range "\xff\xfe\xc0\x80\xed\xa0\x80\xf5z"
      range "<script>alert('&amp;')</script>\n\t\"\\"
      range(("x"):rep(1 << 20))
      range(("\u{1F600}"):rep(1 << 18))
      range ""
      local x = dev:buffer("f32", 4)
      x:fill(1)
      local k = dev:compile 'extern "C" __global__ void k(float *x) { }'.k
      k:launch({ grid = 1, block = 1, label = "\27]0;title\7 \xff\u{e4}" }, x):await()
      k:launch({ grid = 1, block = 1, label = ("\u{e4}"):rep(5000) }, x):await()
      print "done"]]
    assert.equal("done\n", output)
    local no <const> = "\u{FFFD}"
    local texts = {}
    for i, event in ipairs(of(events, "start", "script")) do
      texts[i] = event.message
    end
    assert.are.same({ "a" .. no .. "b", no .. "[31mred" .. no .. "[0m" .. no .. no, no:rep(8) .. "z",
      "<script>alert('&amp;')</script>" .. no .. no .. "\"\\", ("x"):rep(255), ("\u{1F600}"):rep(63), "" }, texts)
    local launches = of(events, "start", "launch")
    assert.equal("gpulua.launch " .. no .. "]0;title" .. no .. " " .. no .. "\u{e4}", launches[1].message)
    assert.truthy(#launches[2].message <= 255 + #"gpulua.launch " and utf8.len(launches[2].message))
  end)

  it("of scripts survive waits, overlap, and end once: closed, left, cancelled or forgotten", function()
    wants_listener()
    local events, output = seen [[
      local gpu = require "gpulua"
      local dev = gpu.device()
      local function task(name)
        return gpu.spawn(function()
          local x = dev:buffer("f32", 4)
          local range <close> = gpu.range(name, 7)
          x:fill(1):await()
          gpu.sleep(0.005)
          x:read()
        end)
      end
      gpu.all { task "one", task "two" }
      local cancelled = gpu.spawn(function()
        local range <close> = gpu.range "cancelled"
        gpu.sleep(10)
      end)
      gpu.sleep(0.001)
      cancelled:cancel()
      cancelled:join()
      pcall(function()
        local range <close> = gpu.range "error"
        error "no"
      end)
      local closed = gpu.range "closed"
      closed:close()
      closed:close()
      gpu.range "collected"
      collectgarbage()
      print "here"
      left = gpu.range "left open"]]
    assert.equal("here\n", output)
    balanced(events)
    local names = {}
    for _, event in ipairs(of(events, "start", "script")) do
      names[#names + 1] = event.message
    end
    if names[1] == "two" then -- of the two tasks either may be the first
      names[1], names[2] = names[2], names[1]
    end
    assert.are.same({ "one", "two", "cancelled", "error", "closed", "collected", "left open" }, names)
    assert.equal(7, of(events, "start", "script")[1].payload)
  end)

  it("of scripts refuse what is no name", function()
    support.raises("InvalidArgument", { "argument 1 of range", "nothing" }, gpu.range)
    support.raises("InvalidArgument", { "argument 1 of range", "number" }, gpu.range, 5)
    support.raises("InvalidArgument", { "argument 2 of range", "float" }, gpu.range, "x", 1.5)
    support.raises("InvalidArgument", "gpulua.range expected, got nil", gpu.range("x").close)
    support.raises("InvalidArgument", "gpulua.range expected, got table", gpu.range("x").close, {})
    local range <close> = gpu.range("x", 1)
    range:close()
    range:close()
  end)

  it("are balanced in 1,000 random programs with errors, waits and cancelled tasks", function()
    wants_listener()
    local events, output = seen [[
      local gpu = require "gpulua"
      local random = require("spec.support").random
      local dev = gpu.device()
      local k = dev:compile 'extern "C" __global__ void k(int *x, int n) { assert(n < 90); x[0] = n; }'.k
      local failures, cancels = 0, 0
      for seed = 1, 1000 do
        local draw = random(seed)
        local x = dev:buffer("i32", 4)
        local function work(depth)
          local range <close> = gpu.range("program " .. seed, depth)
          for _ = 1, draw(1, 3) do
            local what = draw(1, 100)
            if what <= 25 then
              x:fill(what)
            elseif what <= 45 then
              k:launch({ grid = 1, block = 1, label = "k" .. what }, x, draw(1, 80))
            elseif what <= 55 then
              gpu.sleep(0)
            elseif what <= 65 then
              x:await()
            elseif what <= 75 and depth < 3 then
              work(depth + 1)
            elseif what <= 85 and depth < 3 then
              local task = gpu.spawn(work, depth + 1)
              if what <= 80 then
                gpu.sleep(0)
                cancels = cancels + 1
                task:cancel()
              end
              task:join()
            elseif what <= 88 then
              error "an error"
            elseif what <= 90 then
              x:fill(1, 2, 3, 4, 5, 6)
            elseif what <= 93 then
              gpu.range "forgotten"
            end
          end
        end
        local ok = gpu.spawn(work, 1):join()
        failures = failures + (ok and 0 or 1)
        x:close()
        if seed % 100 == 0 then
          collectgarbage()
        end
      end
      dev:synchronize()
      print(failures, cancels)]]
    -- Errors of tasks whose parent was cancelled are told on top.
    local failures, cancels = output:match "(%d+)\t(%d+)\n$"
    assert.truthy(failures, output)
    assert.truthy(tonumber(failures) > 20 and tonumber(cancels) > 20, output)
    assert.truthy(balanced(events) > 2000, #events)
  end)
end)
