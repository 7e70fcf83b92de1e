-- The flight of a device: what it was given last, as text, and done again in check mode.

local gpu = require "gpulua"
local flight = require "gpulua.flight"
local support = require "spec.support"

describe("the flight of a device", function()
  local dev, mod
  local one <const>, once <const> = { grid = 1, block = 1 }, support.once
  local source <const> = [[
    extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = a * x[i] + y[i];
    }
    extern "C" __global__ void far(float *x, int at) { x[at] = 1; }
    extern "C" __global__ void many(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f,
        long long g, unsigned long long h, float i, double j, float *x, float *y, bool k) {
      if (blockIdx.x + blockIdx.y + threadIdx.x + threadIdx.z == 0) x[0] = a + b;
    }
    extern "C" __global__ void none() { }
    #ifdef FLAG
    extern "C" __global__ void plus(float *x) { x[0] = PLUS(1, 2) + MINUS(1, 2); }
    #endif
    struct wide { char bytes[512]; };
    extern "C" __global__ void big(wide w, float *x) { x[0] = w.bytes[0]; }
  ]]

  setup(function()
    dev = support.open()
    mod = dev:compile(source, { name = "flown.cu", defines = { WORD = "a b", FLAG = true,
      ["PLUS(a, b)"] = "a + b", ["MINUS(a, b)"] = "a - b" } })
  end)
  teardown(support.close_all)

  --- What a device has flown, read back.
  local function flown(device)
    local path = os.tmpname()
    device:flight(path)
    local got = flight.read(path)
    os.remove(path)
    return got
  end

  local function last(got)
    return got.ops[#got.ops]
  end

  --- Is there one finding, with these words?
  local function finds(report, ...)
    assert.equal(1, #report.found, report.found[2] and report.found[2].text or "nothing was found")
    for _, word in ipairs { ... } do
      assert.truthy(report.found[1].text:find(word, 1, true), report.found[1].text)
    end
  end

  local function clean(report)
    assert.equal(0, #report.found, report.found[1] and report.found[1].text)
    assert.equal(0, #report.left_out, report.left_out[1])
  end

  --- So many launches with 40 buffers each: more uses than there is room for.
  local function crowd(device, count)
    local params, many = {}, {}
    for i = 1, 40 do
      params[i], many[i] = ("float *p%d"):format(i), device:buffer("f32", 1):fill(0)
    end
    local kernel = device:compile(('extern "C" __global__ void crowd(%s) { p1[0] = 1; }'):format(
      table.concat(params, ", "))).crowd
    for _ = 1, count do
      kernel:launch(one, table.unpack(many))
    end
  end

  describe("as text", function()
    it("has each argument as it was given", function()
      local x = dev:buffer("f32", 64, { label = "x" }):fill(0)
      local y = dev:buffer("f32", 16, { label = 'a "b"\n\\\1' }):fill(0)
      local given = { -128, 255, -32768, 65535, math.mininteger >> 32, 0xffffffff, math.mininteger, -1, 0.1, 1 / 3 }
      given[5] = -2147483648
      given[8] = math.maxinteger
      mod.many:launch({ grid = { 3, 2, 1 }, block = { 4, 1, 2 }, shared = 48, label = "all of\nthem" },
        given[1], given[2], given[3], given[4], given[5], given[6], given[7], given[8], given[9], given[10],
        x:slice(5, 36), y, true)
      local got = flown(dev)
      local op = last(got)
      assert.same({ "launch", "all of\nthem", { 3, 2, 1 }, { 4, 1, 2 }, 48 },
        { op[2], op.label, op.grid, op.block, op.shared })
      assert.truthy(op.at:find("flight_spec.lua:%d+$"), op.at)
      assert.equal(13, #op.args)
      for i = 1, 8 do
        assert.equal(given[i], op.args[i])
      end
      assert.equal(string.unpack("<f", string.pack("<f", 0.1)), string.unpack("<f", string.pack("<f", op.args[9])))
      assert.equal(given[10], op.args[10])
      assert.same({ 16, 144 }, { op.args[11].first, op.args[11].past })
      local buffer = got.buffers[op.args[12].range]
      assert.same({ 'a "b"\n\\\1', 64, "f32" }, { buffer.label, buffer.bytes, buffer.type })
      assert.equal(1, op.args[13])
      local kernel = got.kernels[op.kernel]
      local module = got.modules[kernel.module]
      assert.same({ "many", "flown.cu", source }, { kernel.name, module.name, module.text })
      assert.truthy(module.options:find("define WORD a b", 1, true), module.options)
    end)

    it("has not-a-numbers and infinities, and pointers that are none", function()
      local x = dev:buffer("f32", 16):fill(0)
      local odd = dev:compile [[extern "C" __global__ void odd(float a, double b, double c, float *x, float *y) {
        if (y == 0) x[0] = a; }]]
      odd.odd:launch(one, 0 / 0, 1 / 0, -1 / 0, x, nil)
      local got = flown(dev)
      local args = last(got).args
      assert.truthy(args[1] ~= args[1] and args[2] == 1 / 0 and args[3] == -1 / 0)
      assert.truthy(args[5].is_null)
      clean(flight.replay(got))
    end)

    it("is read as it was meant, whatever the locale, the sign of zero and the end of the source", function()
      local before = os.setlocale()
      local signs = dev:compile [[
        extern "C" __global__ void signs(float a, double b, float *x) { x[0] = a + b; } // x[i]=]]
      local x = dev:buffer("f32", 4):fill(0)
      signs.signs:launch(one, -0.0, -0.0, x)
      local args = last(flown(dev)).args
      assert.same({ "float", -1 / 0, -1 / 0 }, { math.type(args[1]), 1 / args[1], 1 / args[2] })
      signs.signs:launch(one, 0.5, 1e300, x)
      for _, locale in ipairs { "de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "C" } do
        if os.setlocale(locale, "numeric") then
          local text = dev:flight()
          os.setlocale(before)
          assert.truthy(text:find("args = { 0.5, 1.0000000000000001e+300, at(", 1, true), locale)
        end
      end
      assert.truthy(flown(dev).modules[flown(dev).kernels[last(flown(dev)).kernel].module].text:find "x%[i%]=$")
    end)

    it("keeps sources, kernels and labels of what is gone", function()
      do
        local passing <close> = dev:compile([[
          extern "C" __global__ void passing(float *x) { x[0] = 2; } /* ]=] ]==] */]], { name = "passing.cu" })
        local x <close> = dev:buffer("f32", 4, { label = "passing by" }):fill(1)
        passing.passing:launch(one, x)
        x:await()
      end
      collectgarbage()
      collectgarbage()
      dev:synchronize()
      local again = dev:compile([[extern "C" __global__ void passing(float *y) { y[0] = 2; }]], { name = "other.cu" })
      local y = dev:buffer("f32", 8):fill(1)
      again.passing:launch(one, y)
      local got = flown(dev)
      local names = {}
      for _, op in ipairs(got.ops) do
        if op.kernel and got.kernels[op.kernel].name == "passing" then
          local module = got.modules[got.kernels[op.kernel].module]
          names[#names + 1] = module.name .. " " .. (got.buffers[op.args[1].range].label or "-")
          assert.truthy(module.text:find(module.name == "passing.cu" and "]=] ]==]" or "*y", 1, true), module.text)
        end
      end
      assert.same({ "passing.cu passing by", "other.cu -" }, names)
    end)

    it("holds no module: one that is closed is unloaded", function()
      local before = dev:stats().modules_live
      local passing = dev:compile [[extern "C" __global__ void held(float *x) { x[0] = 2; }]]
      local x <close> = dev:buffer("f32", 4):fill(1)
      passing.held:launch(one, x)
      x:await()
      passing:close()
      passing = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      assert.is_true(support.eventually(5, function()
        dev:synchronize()
        return dev:stats().modules_live <= before
      end))
    end)

    it("has the newest operations, and says what it has forgotten of them", function()
      local device <close> = support.open()
      local m = device:compile(source)
      local x, y = device:buffer("f32", 64):fill(0), device:buffer("f32", 64):fill(0)
      local limit = device:stats().limit_flight_ops
      for i = 1, limit + 100 do
        m.saxpy:launch(64, i % 64, 1, x, y)
      end
      local got = flown(device)
      assert.same({ limit, limit, limit + 102 }, { #got.ops, got.head.ops, got.head.of })
      assert.equal(limit + 102, last(got)[1])
      assert.equal(103, got.ops[1][1])
      assert.equal(got.ops[1].args[1], (103 - 2) % 64)
      -- More arguments, and more buffers, than there is room for.
      crowd(device, limit)
      got = flown(device)
      assert.truthy(got.ops[1].forgotten and not got.ops[1].args)
      assert.truthy(not last(got).forgotten and #last(got).args == 40)
    end)

    it("has each launch of a graph with its own line, and all of them are counted", function()
      local device <close> = support.open()
      local x <const> = device:buffer("f32", 4)
      local graph <const> = device:capture(function() x:fill(1) end)
      local replays <const> = device:stats().replays
      local here <const> = debug.getinfo(1, "l").currentline
      local function first() for _ = 1, 70 do graph:launch() end end
      local function by_turns()
        for _ = 1, 10 do
          graph:launch() graph:launch { label = "named" }
          graph:launch()
        end
      end
      first()
      assert.equal(70, graph:replays())
      first()
      by_turns()
      gpu.spawn(first):await()
      assert.equal(240, graph:replays())
      assert.equal(replays + 240, device:stats().replays)
      local ops <const>, expected <const> = flown(device).ops, {}
      local function expect(count, line, label)
        for _ = 1, count do expected[#expected + 1] = { label = label, at = "spec/flight_spec.lua:" .. here + line } end
      end
      expect(140, 1, "graph")
      for _ = 1, 10 do expect(1, 4, "graph") expect(1, 4, "named") expect(1, 5, "graph") end
      expect(70, 1, "graph")
      for i, want in ipairs(expected) do
        local op <const> = ops[#ops - #expected + i]
        assert.same({ want.label, want.at, ops[#ops][1] - #expected + i }, { op.label, op.at, op[1] })
      end
    end)

    it("tells what may have been running when the device was lost", function()
      if not support.is_isolated() then
        pending "the device lives in this process"
      end
      support.wants_time(pending)
      local device <close> = support.open { restarts = 100 }
      local m = device:compile(source)
      local x = device:buffer("f32", 4):fill(0)
      x:await()
      device:inject { fault = 1 }
      local lost = m.far:launch({ grid = 1, block = 1, label = "the one" }, x, 0)
      support.raises("DeviceLost", {}, lost.await, lost)
      local got = flown(device)
      assert.same({ "the one", "may have been running" }, { last(got).label, last(got).fate })
      assert.truthy(got.head.lost, "the head says how")
      device:await()
      x = device:buffer("f32", 4):fill(2)
      x:await()
      got = flown(device)
      assert.same({ "fill" }, { last(got)[2], last(got).fate })
      assert.equal("may have been running", got.ops[#got.ops - 1].fate)
    end)
  end)

  describe("done again", function()
    it("finds what a kernel does outside of its buffers, and says whose launch that was", function()
      local device <close> = support.open()
      local m = device:compile(source, { name = "flown.cu" })
      local x = device:buffer("f32", 16, { label = "sixteen" }):fill(0)
      local y = device:buffer("f32", 16, { label = "others" }):fill(0)
      m.saxpy:launch(16, 16, 2, x, y)
      clean(flight.replay(flown(device)))
      -- Not done here, where it would be seen, or be the end: it is made of one that is well.
      m.far:launch({ grid = 1, block = 1, label = "culprit" }, x, 15)
      local got = flown(device)
      clean(flight.replay(got))
      last(got).args[2] = 16
      finds(flight.replay(got), ("#%d 'culprit' at "):format(last(got)[1]), "flight_spec.lua:", "OutOfBounds", "'far'",
        "sixteen")
    end)

    it("sees a slice as what it was", function()
      local device <close> = support.open()
      local m = device:compile(source)
      local x = device:buffer("f32", 16, { label = "whole" }):fill(0)
      m.far:launch({ grid = 1, block = 1, label = "inside" }, x:slice(3, 6), 3)
      local got = flown(device)
      clean(flight.replay(got))
      last(got).args[2] = 4 -- in the buffer, and not in the slice
      finds(flight.replay(got), "'inside'", "whole")
    end)

    it("knows which buffers had something in them", function()
      local device <close> = support.open()
      local m = device:compile(source)
      local x, y = device:buffer("f32", 16, { label = "empty" }), device:buffer("f32", 16):fill(0)
      m.saxpy:launch(16, 16, 2, y, y:slice(1, 16))
      device:synchronize()
      local got = flown(device)
      clean(flight.replay(got))
      -- `x` was never written: check mode says so of the first launch that reads it.
      m.far:launch(one, x, 0)
      got = flown(device)
      last(got).kernel = got.ops[#got.ops - 1].kernel
      last(got).args = { 16, 2, last(got).args[1], got.ops[1].uses[1][1] }
      finds(flight.replay(got), "empty")
      -- Older ones were, as far as anybody knows.
      for i = 1, device:stats().limit_flight_ops do
        y:fill(i)
      end
      m.saxpy:launch(16, 16, 2, x:fill(1), y)
      for i = 1, device:stats().limit_flight_ops - 1 do
        y:fill(i)
      end
      m.saxpy:launch(16, 16, 2, x, y)
      clean(flight.replay(flown(device)))
    end)

    it("knows what came with a content of its own", function()
      local device <close> = support.open()
      local m = device:compile [[
        __device__ float table[4] = { 1, 2, 3, 4 };
        extern "C" __global__ void take(const float *a, float *b) {
          b[threadIdx.x] = a[threadIdx.x] + table[threadIdx.x];
        }]]
      local x, y = device:buffer("f32", 4), device:buffer("f32", 4):fill(0)
      m.take:launch({ grid = 1, block = 4 }, m:global "table", x)
      m:global "table":fill(7)
      m.take:launch({ grid = 1, block = 4 }, y, x)
      device:synchronize()
      clean(flight.replay(flown(device)))
      -- And what was written by something whose uses are forgotten: more than there is room for.
      local old = device:buffer("f32", 4):fill(1)
      crowd(device, 450)
      m.take:launch({ grid = 1, block = 4 }, old, x)
      device:synchronize()
      assert.equal(0, #flight.replay(flown(device)).found)
    end)

    it("says of which findings it has made up the data, and goes on behind a crash", function()
      local device <close> = support.open()
      local m = device:compile [[
        extern "C" __global__ void pick(const int *at, float *x) { x[at[0] - 1] = 1; }
        extern "C" __global__ void stop(int n) { if (n > 0) __trap(); }
        extern "C" __global__ void far(float *x, int at) { x[at] = 1; }]]
      local at, x = device:upload("i32", { 3 }), device:buffer("f32", 8, { label = "eight" }):fill(0)
      m.pick:launch({ grid = 1, block = 1, label = "data" }, at, x)
      m.stop:launch({ grid = 1, block = 1, label = "crash" }, 0)
      m.far:launch({ grid = 1, block = 1, label = "behind" }, x, 7)
      device:synchronize()
      local got = flown(device)
      got.ops[#got.ops - 1].args[1] = 1
      last(got).args[2] = 8
      local report = flight.replay(got)
      local texts = {}
      for i, one_of in ipairs(report.found) do
        texts[i] = one_of.text
      end
      local all = table.concat(texts, "\n")
      assert.equal(3, #report.found, all)
      assert.truthy(texts[1]:find("'data'", 1, true) and texts[1]:find("zeros stood in", 1, true), all)
      assert.truthy(texts[2]:find("'crash'", 1, true) and not report.found[2].is_made_up, all)
      assert.truthy(texts[3]:find("'behind'", 1, true) and texts[3]:find("OutOfBounds", 1, true), all)
    end)

    it("keeps no buffer longer than it is used", function()
      local device <close> = support.open()
      local take = device:compile([[extern "C" __global__ void take(int n, unsigned char *x) {
        for (volatile int i = 0; i < n; i++) { }
        x[0] = 1; }]]).take
      for _ = 1, 40 do
        local big <close> = device:buffer("u8", 1 << 20):fill(0)
        take:launch({ grid = 1, block = 1 }, 1000000, big) -- some milliseconds, for the watcher
      end
      device:synchronize()
      local got, most, is_over, known = flown(device), 0, false, {}
      for _, own in ipairs(gpu.devices()) do
        known[own] = true
      end
      local watcher = gpu.spawn(function()
        while not is_over do
          for _, other in ipairs(gpu.devices()) do
            most = known[other] and most or math.max(most, other:stats().blocks_live)
          end
          gpu.sleep(0.0005) -- in check mode work is done while tasks sleep
        end
      end)
      local ok, report = pcall(flight.replay, got)
      is_over = true
      watcher:await()
      assert.is_true(ok, report)
      clean(report)
      assert.truthy(most > 0 and most < 20, most)
    end)

    it("does what libraries, maps, reductions, generators and transforms do", function()
      local device <close> = support.open()
      local a, b = device:buffer("f32", { 8, 8 }):fill(1), device:buffer("f32", { 8, 8 }):fill(2)
      local c = device:buffer("f32", { 8, 8 })
      device:blas():gemm { a = a, b = b, c = c }
      local u = device:buffer("f32", 100)
      device:rng { seed = 5 }:uniform(u)
      local z = device:buffer("c64", 16):fill { 1, 2 }
      local w = device:buffer("c64", 16)
      device:fft { shape = 16 }:forward(z, w)
      local host = device:host("f32", 100)
      host:copy(u)
      u:copy(host)
      local n = device:scalar("i32", 7)
      n:set(9)
      device:buffer("c128", 4):fill { 1, -2 }
      device:buffer("u16", 3):fill(65535)
      device:synchronize()
      assert.equal(16, c:read()[1])
      clean(flight.replay(flown(device)))
    end)

    it("does graphs with all their nodes", function()
      local device <close> = support.open()
      local m = device:compile(source)
      local x, y = device:buffer("f32", 16, { label = "x" }):fill(1), device:buffer("f32", 16):fill(1)
      local graph = device:capture({ label = "three" }, function()
        local t = device:buffer("f32", 16)
        t:copy(x)
        m.saxpy:launch(16, 16, 2, t, y)
        m.far:launch({ grid = 1, block = 1, label = "node" }, x, 15)
      end)
      graph:launch()
      graph:launch()
      device:synchronize()
      local got = flown(device)
      assert.equal("graph", last(got)[2])
      local nodes = got.graphs[last(got).graph].nodes
      assert.equal(3, #nodes)
      clean(flight.replay(got))
      nodes[3].args[2] = 16
      local report = flight.replay(got)
      assert.truthy(#report.found >= 1)
      assert.truthy(report.found[1].text:find("'node at", 1, true) or report.found[1].text:find("'far'", 1, true),
        report.found[1].text)
    end)

    it("leaves out what it cannot do, and says so", function()
      local device <close> = support.open()
      local m = device:compile(source)
      local x = device:buffer("f32", 16, { label = "x" }):fill(1)
      local first = device:capture(function() m.far:launch(one, x, 1) end)
      first:launch()
      first:update(function() m.far:launch(one, x, 2) end)
      local count = device:buffer("i32", 1):fill(1)
      local second = device:capture({ label = "deciding" }, function()
        gpu.graph.if_(count, function() m.far:launch(one, x, 3) end)
      end)
      second:launch()
      m.far:launch(one, x, 4)
      m.far:launch({ grid = 1, block = 1, label = "made up" }, x, 4)
      device:synchronize()
      local got = flown(device)
      local made_up = last(got)
      local module = got.modules[got.kernels[made_up.kernel].module]
      module.text = "this is not CUDA C"
      local report = flight.replay(got)
      assert.equal(0, #report.found, report.found[1] and report.found[1].text)
      local text = table.concat(report.left_out, "\n")
      for _, word in ipairs { "the graph 'graph'", "the graph 'deciding'", "launches of 'far': module",
        "does not compile" } do
        assert.truthy(text:find(word, 1, true), text)
      end
      assert.equal(2, report.left_out[report.left_out[#report.left_out]])
    end)

    it("says that a kernel does not end", function()
      local device <close> = support.open()
      local m = device:compile [[extern "C" __global__ void waits(volatile int *flag) { while (flag[0] == 0) { } }]]
      local flag = device:upload("i32", { 1 })
      m.waits:launch({ grid = 1, block = 1, label = "patient" }, flag)
      device:synchronize()
      finds(flight.replay(flown(device), 1, 0.5), "'patient'", "had not ended 0.5 s")
    end)

    it("refuses what is no flight", function()
      local path = os.tmpname()
      local function refused(text, ...)
        support.write_file(path, text)
        support.raises("InvalidArgument", { path, ... }, flight.read, path)
      end
      refused("", "is not the flight of a device")
      refused("print(1)", "is not the flight of a device")
      local good = dev:flight()
      refused(good:sub(1, #good - 10), "cannot be read")
      refused((good:gsub("format = 1", "format = 99")), "format 99")
      refused(good .. "\nos.exit(3)", "cannot be read")
      refused("\27Lua", "is not the flight of a device")
      local head = good:match "^(.-\nflight {)"
        .. " format = 1, ops = 1, of = 1, buffers = 0, device = 'd', model = 'm' }\n"
      refused((head:gsub("ops = 1", "ops = {}")), "is damaged: the head")
      for what, text in pairs {
        ["an operation"] = "op(7)", ["the stream"] = "op { 1, 'fill' }",
        ["a buffer"] = "buffer { 1, bytes = 4, type = 'x' }",
        ["the kernel"] = "op { 1, 'launch', stream = 1, kernel = 5 }",
        ["an operation uses"] = "op { 1, 'fill', stream = 1, uses = { { at(1, 0, 4), 'w' } } }",
      } do
        refused(head .. text, "is damaged: ", what)
      end
      os.remove(path)
      support.raises("Io", { path }, flight.read, path)
      support.raises("Io", { "/nowhere/at/all" }, dev.flight, dev, "/nowhere/at/all")
    end)
  end)

  describe("of a program", function()
    local build = os.getenv "GPULUA_BUILD" or "build"

    local function program(options, text)
      local path = os.tmpname()
      support.write_file(path, text)
      local pipe = assert(io.popen(("%s/gpulua %s %s 2>&1"):format(build, options, path)))
      local output = pipe:read "a"
      local _, _, code = pipe:close()
      os.remove(path)
      return output, code
    end
    local function replay(path)
      local pipe = assert(io.popen(("%s/gpulua --replay %s 2>&1"):format(build, path)))
      local output = pipe:read "a"
      local _, _, code = pipe:close()
      return output, code
    end

    it("is written when the device is lost, and finds the cause", function()
      support.wants_time(pending)
      if dev.kind == "cuda" and not support.is_isolated() then
        pending "the device lives in the program's process"
      end
      local path = os.tmpname()
      local output, code = program("--isolate process --flight " .. path, [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local mod = dev:compile('extern "C" __global__ void wild(int *x, long long at) { x[at] = 1; }')
        local x = dev:buffer("i32", 8, { label = "eight" }):fill(0)
        mod.wild:launch({ grid = 1, block = 1 }, x, 7)
        mod.wild:launch({ grid = 1, block = 1, label = "beyond" }, x, 1 << 44):await()
      ]])
      assert.equal(1, code, output)
      assert.truthy(output:find("is lost: what it was given last is in " .. path, 1, true), output)
      local shown
      shown, code = replay(path)
      assert.equal(1, code)
      for _, word in ipairs { "the last 3 of 3 operations", "which was lost", "'beyond'", "which may have been running",
        "OutOfBounds", "eight", "1 found" } do
        assert.truthy(shown:find(word, 1, true), shown)
      end
      os.remove(path)
    end)

    it("is written once for each loss, a file of its own", function()
      support.wants_time(pending)
      local path = os.tmpname()
      local output, code = program("--isolate process --flight " .. path, [[
        local gpu = require "gpulua"
        local dev = gpu.device(nil, { restarts = 100 })
        local x = dev:buffer("i32", 8, { durable = true }):fill(0)
        x:await()
        for i = 1, 23 do
          dev:inject { fault = 1 }
          pcall(function() x:fill(i):await() end)
          gpu.sleep(0)
          dev:await()
        end
      ]])
      assert.equal(0, code, output)
      local count = 0
      for i = 1, 23 do
        local name = i == 1 and path or path .. "." .. i
        local file = io.open(name)
        if file then
          count = count + 1
          assert.truthy(file:read "a":find "^%-%- The operations")
          file:close()
          os.remove(name)
        end
      end
      assert.equal(20, count)
      assert.truthy(output:find("there are 20 files of flights already", 1, true), output)
    end)

    it("is written wherever the loss is found out", function()
      support.wants_time(pending)
      local path = os.tmpname()
      local script = [[
        local gpu = require "gpulua"
        local dev = gpu.device()
        local x = dev:buffer("i32", 8):fill(0)
        dev:inject { fault = 1 }
        x:fill(1)
      ]]
      local ways = { "dev:close()", "pcall(x.read, x) os.exit(0)", "pcall(dev.synchronize, dev)", "" }
      for _, way in ipairs(ways) do
        for _, lua in ipairs { "gpulua", os.getenv "GPULUA_LUA" or "lua5.4" } do
          os.remove(path)
          local file = os.tmpname()
          support.write_file(file, script .. way)
          os.execute(("GPULUA_FLIGHT=%s GPULUA_ISOLATE=process GPULUA_EXECUTOR=%s/gpulua-exec "
            .. "LUA_CPATH='%s/lua/?.so;;' %s %s > /dev/null 2>&1"):format(path, build, build,
            lua == "gpulua" and build .. "/gpulua" or lua, file))
          os.remove(file)
          local text = support.read_file(path)
          assert.truthy(text and text:find("may have been running", 1, true), lua .. " " .. way)
        end
      end
      os.remove(path)
    end)

    once(it, "is not written over by being replayed, which says what it waits for, and an interrupt ends it", function()
      support.wants_time(pending)
      local path = os.tmpname()
      program("--isolate process --flight " .. path, [[
        local gpu = require "gpulua"
        local dev = gpu.device(nil, { watchdog = 0.5, restarts = 0 })
        local mod = dev:compile('extern "C" __global__ void hang(volatile int *x) { while (x[0] == 0) { } }')
        pcall(function() mod.hang:launch({ grid = 1, block = 1 }, dev:buffer("i32", 1):fill(0)):await() end)
      ]])
      local text = support.read_file(path)
      local pipe = assert(io.popen(("GPULUA_FLIGHT=%s sh -c 'echo $$; exec %s/gpulua --replay %s' 2>&1"):format(path,
        build, path)))
      local pid <const> = pipe:read "l"
      local line
      repeat line = pipe:read "l" until not line or line:find "^waiting for "
      assert.truthy(line and line:find "#%d 'hang' at .*, which may have been running, 60 s at most$", line)
      local begun = support.now()
      os.execute("kill -INT " .. pid)
      pipe:read "a"
      pipe:close()
      assert.truthy(support.now() - begun < 20, support.now() - begun)
      assert.truthy(text:find("'hang' had not ended", 1, true), text)
      assert.equal(text, support.read_file(path))
      pipe = assert(io.popen(("%s/gpulua --replay %s -e 'print(1)' 2>&1"):format(build, path)))
      assert.truthy(pipe:read "a":find("nothing to run beside it", 1, true))
      pipe:close()
      os.remove(path)
    end)

    it("is written at its end, also of one that fails, and nothing is found in it", function()
      local path = os.tmpname()
      for _, text in ipairs { "", "error 'by itself'", "os.exit(0)", "os.exit(true, true)" } do
        os.remove(path)
        local output = program("--flight " .. path, [[
          local gpu = require "gpulua"
          local dev = gpu.device()
          dev:buffer("i32", 8):fill(3):await()
        ]] .. text)
        assert.truthy(output:find("what it was given last is in " .. path, 1, true), output)
        local shown, code = replay(path)
        assert.equal(0, code, shown)
        assert.truthy(shown:find("nothing found", 1, true), shown)
      end
      os.remove(path)
    end)

    it("is written, with all else, where a hook ends the program, which is the last one", function()
      local path, trace = os.tmpname(), os.tmpname()
      for _, hook in ipairs { "before_enqueue", "after_enqueue", "before_complete", "after_complete" } do
        os.remove(path)
        os.remove(trace)
        local output, code = program(("--summary --trace %s --flight %s"):format(trace, path), [[
          local gpu = require "gpulua"
          local dev = gpu.device()
          local x = dev:buffer("i32", 8)
          dev:hooks { ]] .. hook .. [[ = function() print "in it" os.exit(5) end }
          x:fill(3):await()
          print "not reached"]])
        assert.equal(5, code, output)
        local _, count = output:gsub("in it", "")
        assert.equal(1, count, output)
        assert.is_nil(output:find("not reached", 1, true) or output:find("Misuse", 1, true), output)
        assert.truthy(output:find("of buffers labelled", 1, true), output) -- the summary
        assert.truthy(output:find("what it was given last is in " .. path, 1, true), output)
        local text = support.read_file(trace)
        assert.truthy(text:find("traceEvents", 1, true) and text:find "}}%s*$", text:sub(-100))
        assert.equal(0, select(2, replay(path)))
      end
      os.remove(path)
      os.remove(trace)
    end)

    it("says so where there is nothing to be written", function()
      local path = os.tmpname()
      os.remove(path)
      for _, text in ipairs { "", [[
        local dev = require "gpulua".device()
        dev:buffer("i32", 8):fill(3):await()
        dev:close()]] } do
        local output, code = program("--flight " .. path, text)
        assert.equal(0, code, output)
        assert.truthy(output:find("nothing was written to " .. path .. ": no device was lost", 1, true), output)
      end
      assert.is_nil(support.read_file(path))
      -- An older one, which stays.
      program("--flight " .. path, 'local dev = require "gpulua".device()')
      local older = support.read_file(path)
      for _, text in ipairs { "--replay " .. path, "-e 'local x'" } do
        local pipe = assert(io.popen(("%s/gpulua --flight %s %s 2>&1"):format(build, path, text)))
        local output = pipe:read "a"
        pipe:close()
        assert.truthy(output:find("nothing was written to " .. path .. ": no device was lost", 1, true), output)
        assert.equal(older, support.read_file(path))
      end
      os.remove(path)
    end)

    once(it, "is shown without what a terminal takes for commands", function()
      local path = os.tmpname()
      program("--isolate none", ([[
        local gpu = require "gpulua"
        local dev = gpu.device "cpu"
        local k = dev:compile('extern "C" __global__ void k(int *x) { x[100] = 1; }').k
        local x = dev:buffer("i32", 4)
        k:launch({ grid = 1, block = 1, label = "\27]0;owned\7\27[2J \195\188\155'\n#9 'other' at other.lua:3" }, x)
        pcall(dev.synchronize, dev)
        dev:flight %q]]):format(path))
      local output, code = replay(path)
      assert.equal(1, code, output)
      assert.truthy(output:find("owned", 1, true), output)
      assert.is_nil(output:find "[%z\1-\9\11-\31\127]", output)
      assert.truthy(output:find(" \195\188", 1, true) and utf8.len(output), output)
      assert.truthy(output:find("thread (0,0,0)", 1, true), "and whole: " .. output)
      assert.is_nil(output:find "\n#9 'other'", output) -- no line of its own
      os.remove(path)
    end)

    it("is written where it was asked for, whichever folder the script goes to", function()
      support.wants_time(pending)
      local folder, script = os.tmpname(), os.tmpname()
      os.remove(folder)
      assert(os.execute(("mkdir -p %s/other"):format(folder)))
      local command <const> = "program=$(realpath %s/gpulua); cd %s; %s $program --isolate process %s %s 2>&1"
      local head <const> = [[
        local gpu = require "gpulua"
        local x = gpu.device():buffer("f32", 4):fill(1)
        require "lfs".chdir "other"
      ]]
      for ending, says in pairs { [""] = "it was given last is in a.flight\n",
        ["x.device:inject { fault = 1 } pcall(function() x:fill(2):await() end)"] = "is in a.flight\n" } do
        for environment, options in pairs { ["GPULUA_FLIGHT=a.flight"] = "", [""] = "--flight a.flight" } do
          support.write_file(script, head .. ending)
          local pipe = assert(io.popen(command:format(build, folder, environment, options, script)))
          local output = pipe:read "a"
          pipe:close()
          assert.truthy(output:find(says, 1, true), output)
          assert(os.remove(folder .. "/a.flight"))
        end
      end
      os.execute(("rm -r %s %s"):format(folder, script))
    end)

    it("says so where there is nowhere to write it, or nothing to read", function()
      local script <const> = [[require "gpulua".device():buffer("i32", 1):fill(1) print "ran"]]
      local output, code = program("--flight /nowhere/at/all", script) -- before anything runs
      assert.equal(1, code)
      assert.truthy(output:find("--flight: '/nowhere/at/all' cannot be written: No such file", 1, true), output)
      assert.is_nil(output:find("ran", 1, true), output)
      output, code = program("--flight /dev/full", script)
      assert.equal(1, code)
      assert.truthy(output:find("could not be written", 1, true) and output:find("/dev/full", 1, true), output)
      assert.is_nil(output:find("traceback", 1, true), output)
      assert.equal(3, select(2, program("--flight /dev/full", script .. " os.exit(3)")))
      output, code = replay "/nowhere/at/all"
      assert.equal(1, code)
      assert.truthy(output:find("/nowhere/at/all", 1, true) and output:find("Io", 1, true), output)
    end)
  end)
end)
