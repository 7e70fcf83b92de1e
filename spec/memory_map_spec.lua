-- dev:memory_map(): who holds the memory of a device.

local gpu = require "gpulua"
local support = require "spec.support"

describe("a memory map", function()
  local dev
  before_each(function() dev = support.open() end)
  after_each(support.close_all)

  local function here(back)
    return ("spec/memory_map_spec.lua:%d"):format(debug.getinfo(2, "l").currentline + (back or 0))
  end

  local function wants_plain_sizes()
    if support.is_checked() then
      pending "check mode leaves room around each buffer"
    end
  end

  local function of(map, label)
    local found = {}
    for _, entry in ipairs(map) do
      if entry.label == label then
        found[#found + 1] = entry
      end
    end
    return found
  end

  it("says what each buffer is, where it was made, how much it takes and how old it is", function()
    wants_plain_sizes()
    local begun = support.now()
    local big <close> = dev:buffer("f32", 1 << 20, { label = "big" })
    local line = here(-1)
    local small <close> = dev:buffer("u8", 3, { label = "small" }):fill(1)
    local pinned <close> = dev:host("f64", 1000)
    require("system").sleep(0.1)
    local map = dev:memory_map()
    local entry = of(map, "big")[1]
    assert.are.same({ "buffer", line, 4 << 20, "device", false },
      { entry.kind, entry.source, entry.bytes, entry.where, entry.freed })
    assert.truthy(entry.memory_bytes >= 4 << 20)
    assert.truthy(entry.age > 0.08 and entry.age < support.now() - begun + 0.02, entry.age)
    local number = entry.number
    entry = of(map, "small")[1]
    assert.truthy(entry.number > number and number > 0)
    assert.equal(3, entry.bytes)
    assert.truthy(entry.memory_bytes >= 3 and entry.memory_bytes <= 512)
    local host
    for _, other in ipairs(map) do
      host = other.kind == "host" and other or host
    end
    assert.are.same({ 8000, "host", here(-17) }, { host.bytes, host.where, host.source })
    assert.equal("big", map[1].label) -- the largest first
    for i = 2, #map do
      assert.truthy(map[i - 1].memory_bytes >= map[i].memory_bytes)
    end
    assert.truthy(#big == 1 << 20 and #small == 3 and #pinned == 1000)
  end)

  it("adds up to what the counters of the device say", function()
    wants_plain_sizes()
    local kept = {}
    for i = 1, 200 do
      kept[i] = dev:buffer("u8", 1 + i * 37):fill(i)
      if i % 3 == 0 then
        kept[i]:close()
      end
    end
    local graph <close> = dev:capture(function()
      local temporary = dev:buffer("f32", 1000, { label = "temporary" })
      temporary:fill(1)
      kept[1]:copy(temporary:view("u8"):slice(1, #kept[1]))
    end)
    graph:launch()
    for _ = 1, 3 do
      local map, stats = dev:memory_map(), dev:stats()
      assert.equal(stats.bytes_live + stats.graph_bytes, map.live_bytes)
      assert.equal(stats.bytes_pending, map.freed_bytes)
      assert.equal(stats.bytes_reserved, map.reserved_bytes)
      dev:synchronize()
    end
    local map = dev:memory_map()
    assert.equal(0, map.freed_bytes)
    local temporary = of(map, "temporary")[1]
    assert.are.same({ "temporary", 4000, 0 }, { temporary.kind, temporary.bytes, temporary.memory_bytes })
    local kinds = {}
    for _, entry in ipairs(map) do
      kinds[entry.kind] = (kinds[entry.kind] or 0) + 1
    end
    assert.equal(1, kinds.pool)
    assert.equal(dev:stats().graph_bytes > 0 and 1 or nil, kinds.graph)
  end)

  it("shows what was freed while work in flight uses it", function()
    support.wants_time(pending)
    local mod = dev:compile(support.spin_source)
    support.under_way(0.3, function(seconds, seen)
      local x = dev:buffer("i32", 1000, { label = "gone" })
      local op = mod.spin:launch(support.one, support.ticks(seconds), x, 1)
      x:free()
      local map = dev:memory_map()
      seen()
      assert.is_true(of(map, "gone")[1].freed)
      assert.truthy(map.freed_bytes >= 4000)
      assert.truthy(tostring(map):find("'gone' [^\n]*%(freed, in use%)"), tostring(map))
      op:await()
      assert.equal(0, #of(dev:memory_map(), "gone"))
    end)
  end)

  it("is a table for people, with those of one line together", function()
    wants_plain_sizes()
    local many = {}
    for i = 1, 300 do
      many[i] = dev:buffer("u8", 512, { label = "many" })
    end
    local line = here(-2)
    local odd <close> = dev:buffer("u8", 1 << 20, { label = "\27[31m\nodd" })
    for i = 1, 40 do
      many[#many + 1] = dev:buffer("u8", 512 * i, { label = "kind " .. i })
    end
    local text = tostring(dev:memory_map())
    assert.truthy(text:find "^memory of [%w:]+: [%d.]+ %aiB in use, 0 B freed", text)
    assert.truthy(text:find("150.0 KiB   x300  buffer     device  [^\n]*'many' " .. line:gsub("%p", "%%%0")), text)
    assert.truthy(text:find("'\u{FFFD}[31m\u{FFFD}odd'", 1, true), text)
    assert.is_nil(text:find "\27")
    assert.truthy(text:find "\n +[%d.]+ KiB +x%d+  and others$", text)
    assert.truthy(select(2, text:gsub("\n", "")) == 31, text)
    assert.equal(1 << 20, #odd)
  end)

  it("has nothing of what was lost with the device", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local stale = dev:buffer("f32", 1000, { label = "stale" }):fill(1)
    local durable = dev:buffer("f32", 1000, { label = "durable", durable = true }):fill(1)
    stale:await()
    support.lose(dev)
    local map, stats = dev:memory_map(), dev:stats()
    assert.are.same({ 0, 1 }, { #of(map, "stale"), #of(map, "durable") })
    assert.equal(stats.bytes_live + stats.graph_bytes, map.live_bytes)
    local own = 0
    for _, entry in ipairs(map) do
      own = own + (entry.kind == "gpulua" and entry.label == "copy" and 1 or 0)
    end
    assert.equal(1, own)
    durable:close()
    stale:close()
  end)

  it("is what a script leaves behind, which is told at its end in check mode", function()
    local text <const> = [[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu")
      local gone = dev:buffer("f32", 1000, { label = "gone" }):fill(1)
      kept = dev:buffer("f32", 1000, { label = "ke\27pt" }):fill(1)
      many = {}
      for i = 1, 10 do many[i] = dev:buffer("u8", i) end
      pinned = dev:host("f64", 10)
      freed = dev:buffer("f32", 5)
      freed:free()
      for i = 1, N do
        many[#many + 1] = load("local d = ... local b = d:buffer('u8', 1) return b", "=line" .. i)(dev)
      end]]
    local path = os.tmpname()
    local function run(n, options)
      local file <close> = assert(io.open(path, "w"))
      file:write((text:gsub("N", n)))
      file:close()
      local pipe <close> = io.popen(("%s/gpulua %s %s 2>&1"):format(os.getenv "GPULUA_BUILD" or "build", options, path))
      return (pipe:read("a"):gsub("[^\n]*gpulua: ", ""):gsub(path:gsub("%p", "%%%0"), "SCRIPT"))
    end
    assert.equal("check: at the end of the script 12 buffers of cpu are held still, 4.0 KiB:\n"
      .. "  55 B in 10, made at SCRIPT:6\n  3.9 KiB 'ke\u{FFFD}pt', made at SCRIPT:4\n  80 B, made at SCRIPT:7\n",
      run(0, "--check"))
    local output = run(9, "--check=5")
    assert.truthy(output:find("21 buffers of cpu are held still", 1, true), output)
    assert.truthy(output:find("\n  and those of 7 other lines; device:memory_map() has them all\n", 1, true), output)
    assert.equal("", run(0, ""))
    assert.is_nil(run(0, "--seeds 3"):find("held still", 1, true))
    os.remove(path)
  end)

  it("is told behind os.exit too, when tasks hold nothing any more", function()
    local function run(script)
      local gpulua <const> = (os.getenv "GPULUA_BUILD" or "build") .. "/gpulua"
      local pipe <close> = io.popen(("%s --check -e '%s' 2>&1"):format(gpulua, script))
      return (pipe:read("a"):gsub("[^\n]*gpulua: ", ""))
    end
    local script <const> = [[
      local gpu = require "gpulua"
      local dev = gpu.device "cpu"
      kept = dev:buffer("f32", 1000, { label = "kept" })
      local mine = dev:buffer("f32", 1000, { label = "of the chunk" })
      gpu.spawn(function()
        local own = dev:buffer("f32", 1000, { label = "of a task" })
        gpu.sleep(60)
        own:free()
      end)
      gpu.spawn(function()
        local own <close> = dev:buffer("f32", 1000, { label = "of another" })
        os.exit(CODE, CLOSES)
      end)
      gpu.sleep(60)
      mine:free()]]
    local told <const> = "check: at the end of the script 1 buffer of cpu is held still, 3.9 KiB:\n"
      .. "  3.9 KiB 'kept', made at (command line):3\n"
    for code, expected in pairs { ["0"] = told, ["true"] = told, ["nil"] = told, ["1"] = "", ["false"] = "" } do
      for _, closes in ipairs { "nil", "true" } do
        assert.equal(expected, run((script:gsub("CODE", code):gsub("CLOSES", closes))), code .. ", " .. closes)
      end
    end
  end)

  it("is none of a closed device", function()
    local own = gpu.device(dev.name, {})
    own:close()
    support.raises("Closed", {}, own.memory_map, own)
    support.raises("InvalidArgument", {}, dev.memory_map)
  end)
end)
