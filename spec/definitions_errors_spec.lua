-- Whatever functions raise in wrong states and of wrong arguments, their definitions (types/library) name; and those
-- that let other tasks run say that they yield.

local definitions = require "tools.definitions"
local gpu = require "gpulua"
local support = require "spec.support"

describe("what functions raise", function()
  local model = definitions.read()
  local of_groups = definitions.codes_of_groups(model)
  local problems, codes_seen, calls
  local turns, yielding = 0, {} -- of a task beside the calls; the names of those in which it ran

  local source <const> = [[
    extern "C" __global__ void scale(int n, float f, float *x) {
      if (threadIdx.x < n) x[threadIdx.x] *= f;
    }]]

  -- By class; what ends or waits for tasks of the spec is left out.
  local function objects_of(dev)
    local mod = dev:compile(source)
    local x = dev:buffer("f32", { 2, 4 }, { label = "x" }):fill(1)
    local made = { buffer = x, host_buffer = dev:host("f32", 4), scalar = dev:scalar("f32", 1), module = mod,
      kernel = mod.scale, stream = dev:stream(), op = dev:current():mark(), recorder = dev:recorder(),
      pool = dev:pool(), graphed = dev:graphed(function() end), memory = dev:memory(), blas = dev:blas(),
      fft = dev:fft { shape = 8 }, rng = dev:rng(), progress = gpu.progress(), range = gpu.range "range" }
    made.graph = dev:capture(function() mod.scale:launch({ grid = 1, block = 1 }, 8, 1.0, x) end)
    return made
  end

  local function names(own, code)
    for _, known in ipairs(own.codes) do
      if known == code then
        return true
      end
    end
    for _, group in ipairs(own.groups) do
      for _, known in ipairs(of_groups[group]) do
        if known == code then
          return true
        end
      end
    end
  end

  local function try(own, value, state, ...)
    calls = calls + 1
    local before = turns
    local f = value[own.name]
    local ok, err
    if own.is_method then
      ok, err = pcall(f, value, ...)
    else
      ok, err = pcall(f, ...)
    end
    if turns ~= before then
      yielding[own.call] = true
      if not own.waits:find "yields" then
        problems[("%s, %s: it yields"):format(own.call, state)] = true
      end
    end
    local code = not ok and gpu.type(err) == "error" and err.code
    if code then
      codes_seen[code] = true
    end
    if not ok and not (code and names(own, code)) then
      local problem = ("%s, %s: %s"):format(own.call, state, code or tostring(err))
      problems[problem] = true
    end
  end

  local function try_all(values, state, own_arguments)
    local function nothing() end
    local lists = { {}, { coroutine.create(nothing) }, { {}, {} }, { "x", "x" }, { 1, 1 }, { -1, -1 }, { 0 / 0 },
      { "f32", -1 }, { nothing, nothing }, { true }, { "/nonexistent/x.png" }, table.unpack(own_arguments or {}) }
    for short, value in pairs(values) do
      local class = assert(model.classes["gpulua." .. short] or model.classes[short], short)
      for _, own in ipairs(class.functions) do
        local takes_path = own.params[1] and own.params[1].name == "path" -- and would write what it names
        for _, list in ipairs(own.name ~= "close" and not own.is_private and lists or {}) do
          if not takes_path or type(list[1]) ~= "string" or list[1]:find "^/nonexistent/" then
            try(own, value, state, table.unpack(list))
          end
        end
      end
    end
  end

  local function told()
    local list = {}
    for problem in pairs(problems) do
      list[#list + 1] = problem
    end
    table.sort(list)
    return table.concat(list, "\n")
  end

  before_each(function()
    problems, codes_seen, calls = {}, {}, 0
  end)
  teardown(support.close_all)

  it("of wrong arguments is an error object of a code that the definition has", function()
    local dev <close> = support.open { restarts = 0 }
    local values = objects_of(dev)
    for short, value in pairs { gpulua = gpu, control = gpu.graph, trace = require "gpulua.trace",
      npy = require "gpulua.npy", wav = require "gpulua.wav", image = require "gpulua.image" } do
      values[short] = value
    end
    local x = values.buffer
    local beside = gpu.spawn(function()
      while true do
        turns = turns + 1
        gpu.sleep(0)
      end
    end)
    support.launch(dev, support.spin_source, support.one, support.ticks(0.2), dev:buffer("i32", 1), 1)
    values.op = dev:current():mark()
    try_all(values, "open", { { x, x }, { dev, "/nonexistent/x" }, { x, "/nonexistent/x.png" }, { values.op },
      { "sum", x } })
    beside:cancel():join()
    assert.equal("", told())
    assert.truthy(yielding["gpulua.sleep"] and yielding["gpulua.run"])
    assert.truthy(calls > 1500, calls)
    assert.truthy(codes_seen.InvalidArgument and codes_seen.Io)
  end)

  it("twin: a code that the definition lacks is found, an error that is no object, and a wait", function()
    local values = { sleeps = function() gpu.sleep(-1) end, fails = function() error "a text" end,
      waits = function() gpu.sleep(0) end }
    local beside = gpu.spawn(function() turns = turns + 1 end)
    try({ name = "waits", call = "h", codes = {}, groups = {}, waits = "no." }, values, "twin")
    beside:join()
    try({ name = "sleeps", call = "f", codes = { "Io" }, groups = { "those of waits" } }, values, "twin")
    try({ name = "fails", call = "g", codes = { "Io" }, groups = {} }, values, "twin")
    assert.truthy(told():find("f, twin: InvalidArgument\ng, twin: .*a text\nh, twin: it yields"), told())
  end)

  it("in a capture", function()
    local dev <close> = support.open { restarts = 0 }
    local values = objects_of(dev)
    values.graphed = nil
    local capture <close> = dev:capture {}
    try_all(values, "in a capture", { { values.buffer } })
    assert.truthy(capture:count() > 0)
    assert.equal("", told())
    assert.truthy(codes_seen.CaptureActive)
  end)

  it("of what is closed, or freed, or whose device is closed", function()
    local dev <close> = support.open { restarts = 0 }
    local values = objects_of(dev)
    for _, value in pairs(values) do
      value:close()
    end
    try_all(values, "closed")
    values = objects_of(dev)
    values.buffer:free()
    values.host_buffer:free()
    try_all({ buffer = values.buffer, host_buffer = values.host_buffer, graph = values.graph }, "freed")
    values = objects_of(dev)
    dev:close()
    values.device = dev
    try_all(values, "device closed")
    assert.equal("", told())
    assert.truthy(codes_seen.Closed and codes_seen.UseAfterFree)
  end)

  it("of a device that is lost", function()
    local dev <close> = gpu.device("cpu", { isolate = "none", restarts = 0 })
    local values = objects_of(dev)
    values.device = dev
    dev:inject { fault = 1 }
    assert.is_false((pcall(function() values.buffer:fill(1):read() end)))
    try_all(values, "lost", { { values.buffer } })
    assert.equal("", told())
    assert.truthy(codes_seen.DeviceLost)
  end)

  it("of a device that is up again", function()
    local dev <close> = gpu.device("cpu", { isolate = "process" })
    local values = objects_of(dev)
    dev:inject { lost = 1 }
    assert.is_false((pcall(function() values.buffer:fill(1):read() end)))
    dev:await()
    try_all(values, "up again", { { values.buffer } })
    assert.equal("", told())
    assert.truthy(codes_seen.Stale)
  end)
end)
